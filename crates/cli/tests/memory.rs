//! A client's memory stays within its budget (`--cache-mb`) however many names it walks and bytes it streams, and it says how
//! the budget was spent.

mod common;

use common::{Place, Running, coral, in_network_namespace, ok, own_dir_of, until};
use std::io::{Read, Write};
use std::path::Path;

/// Files in each directory.
const FILES: usize = 400;
/// What else may be used: buffers of requests under way, and what malloc keeps, MiB.
const SLACK_MB: u64 = 24;
/// A streamed file, MiB: more than the small budget and slack.
const STREAM_MB: usize = 96;

/// How much is done. `cargo xtask bench memory` asks for more than the test by itself.
struct Size {
    names: usize,
    /// Times a file of [`STREAM_MB`] is written and read.
    streams: usize,
    /// The budget, MiB: far less than all names and locks would take.
    cache_mb: u64,
}

impl Size {
    fn asked() -> Self {
        let number = |name: &str, default: usize| match std::env::var(name) {
            Ok(v) => v
                .parse()
                .unwrap_or_else(|_| panic!("{name} must be a number, not {v:?}")),
            Err(_) => default,
        };
        Self {
            names: number("CORAL_MEMORY_NAMES", 12_000),
            streams: number("CORAL_MEMORY_STREAM_MB", STREAM_MB).div_ceil(STREAM_MB),
            cache_mb: number("CORAL_MEMORY_CACHE_MB", 3) as u64,
        }
    }

    fn dirs(&self) -> usize {
        self.names.div_ceil(FILES)
    }
}

fn rss_mb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the client runs");
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    line.trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .expect("a number")
        / 1024
}

fn walk(top: &Path, dirs: std::ops::Range<usize>) {
    for d in dirs {
        let mut seen = 0;
        for entry in std::fs::read_dir(top.join(format!("d{d}"))).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().len(), 5);
            seen += 1;
        }
        assert_eq!(seen, FILES);
    }
}

fn lctl(socket: &Path, args: &[&str]) -> String {
    ok(coral().args(["lctl", "--socket"]).arg(socket).args(args))
}

fn number(socket: &Path, name: &str) -> u64 {
    lctl(socket, &["get_param", "-n", name])
        .lines()
        .map(|l| l.parse::<u64>().expect("a number"))
        .sum()
}

#[test]
fn a_client_stays_within_its_budget() {
    in_network_namespace("a_client_stays_within_its_budget", || {
        let (place, size) = (Place::new(), Size::asked());
        let server = place.up(&["--nid", "127.0.0.1@tcp"]);
        for d in 0..size.dirs() {
            let dir = place.path("mnt").join(format!("d{d}"));
            std::fs::create_dir(&dir).unwrap();
            (0..FILES).for_each(|f| std::fs::write(dir.join(format!("f{f}")), b"bytes").unwrap());
        }
        let (far, port, mb) = (
            place.make("far"),
            place.port.to_string(),
            size.cache_mb.to_string(),
        );
        let far_text = far.to_string_lossy();
        let args = [
            "mount",
            "127.0.0.1@tcp:/coral",
            &far_text,
            "--port",
            &port,
            "--nid",
            "127.0.0.2@tcp",
            "--cache-mb",
            &mb,
        ];
        let mut command = coral();
        command.env("XDG_RUNTIME_DIR", place.make("run"));
        let client = Running::start_as(command, &args, &place.path("far-client"), &[&far]);
        let socket = place
            .path("run")
            .join(format!("coral/{}/control.sock", own_dir_of(client.pid())));
        until("it can be asked", || socket.exists());

        walk(&far, 0..2);
        let (before, budget) = (rss_mb(client.pid()), size.cache_mb + SLACK_MB);
        println!(
            "resident before: {before} MiB; may grow by {} MiB of budget and {SLACK_MB} MiB for requests under way",
            size.cache_mb
        );
        walk(&far, 0..size.dirs());
        let walked = rss_mb(client.pid());
        println!(
            "after a walk over {} names: {walked} MiB",
            size.dirs() * FILES
        );
        print!(
            "{}",
            lctl(
                &socket,
                &["get_param", "llite.*.cache_usage", "llite.*.max_cached_mb"]
            )
        );
        assert!(
            walked <= before + budget,
            "{before} MiB before the walk, {walked} MiB after it"
        );
        said(&socket, size.cache_mb);
        let most = (0..size.streams)
            .map(|_| stream(&far, client.pid()))
            .max()
            .unwrap_or_default();
        println!(
            "while {} MiB were written and read: {most} MiB at most",
            size.streams * STREAM_MB
        );
        print!(
            "{}",
            lctl(
                &socket,
                &["get_param", "llite.*.cache_usage", "llite.*.max_cached_mb"]
            )
        );
        assert!(
            most <= before + budget,
            "{before} MiB before, {most} MiB while streaming"
        );

        // nothing that the locks covered is believed once they are cleared
        assert_eq!(
            lctl(
                &socket,
                &["set_param", "-n", "ldlm.namespaces.*.lru_size=clear"]
            ),
            ""
        );
        assert_eq!(number(&socket, "ldlm.namespaces.*.lock_unused_count"), 0);
        walk(&far, 0..1);
        client.stop();
        server.stop();
    });
}

/// What the parameters say about the budget.
fn said(socket: &Path, cache_mb: u64) {
    let text = lctl(socket, &["get_param", "-n", "llite.*.max_cached_mb"]);
    let field = |name: &str| -> u64 {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|v| v.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in\n{text}"))
    };
    assert_eq!(field("max_cached_mb"), cache_mb);
    assert!((1..=cache_mb + 1).contains(&field("used_mb")), "{text}");
    let (locks, limit) = (
        number(socket, "ldlm.namespaces.*.lock_count"),
        number(socket, "ldlm.namespaces.*.lru_size"),
    );
    assert!(
        (100..=limit + 1000).contains(&locks),
        "{locks} locks, LRUs for {limit}"
    );
    let names = lctl(socket, &["get_param", "ldlm.namespaces.*OST*.lru_size"]);
    assert_eq!(
        names
            .lines()
            .filter(|l| l.starts_with("ldlm.namespaces.coral-OST0") && l.contains("-osc-"))
            .count(),
        4,
        "{names}"
    );
    assert!(lctl(socket, &["get_param", "llite.*.cache_usage"]).contains("inode_and_name_bytes: "));
    let missing = coral()
        .args(["lctl", "--socket"])
        .arg(socket)
        .args(["get_param", "ldlm.nothing"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
    let refused = coral()
        .args(["lctl", "--socket"])
        .arg(socket)
        .args(["set_param", "ldlm.namespaces.*.lock_count=1"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
}

/// Writes a file and reads it; the most memory that process `pid` had meanwhile, MiB.
fn stream(top: &Path, pid: u32) -> u64 {
    let (path, block) = (top.join("stream"), vec![7u8; 1 << 20]);
    let mut most = 0;
    let mut file = std::fs::File::create(&path).unwrap();
    for _ in 0..STREAM_MB {
        file.write_all(&block).unwrap();
        most = most.max(rss_mb(pid));
    }
    drop(file);
    let (mut file, mut got) = (std::fs::File::open(&path).unwrap(), vec![0u8; 1 << 20]);
    for _ in 0..STREAM_MB {
        file.read_exact(&mut got).unwrap();
        assert!(got == block);
        most = most.max(rss_mb(pid));
    }
    most
}
