//! Bad input is refused or survived: every message says what is wrong, where, and what to do.

mod common;

use common::{
    Place, Rng, Running, coral, fails, in_namespace, in_network_namespace, ok, pattern, pause,
    until,
};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A NID that does not answer must be given up within this time, seconds.
const NO_ANSWER_S: u64 = 10;
/// Connections with random bytes.
const JUNK_CONNECTIONS: u64 = 150;

/// `coral up DIR --foreground` that must fail; a process that stays up is ended by timeout(1) with status 124.
fn up_fails(dir: &Path, port: u16, more: &[&str]) -> String {
    let mut c = Command::new("timeout");
    c.args(["-k", "5", "30"])
        .arg(coral().get_program())
        .arg("up")
        .arg(dir)
        .args(["--port", &port.to_string(), "--foreground"])
        .args(more);
    let (code, said) = fails(&mut c);
    assert_eq!(code, 1, "not refused but ended with {code}: {said}");
    assert_clear(&said);
    said
}

fn assert_clear(said: &str) {
    assert!(!said.contains("panicked"), "a panic: {said}");
    assert!(said.contains("coral: "), "no message of coral: {said}");
}

fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            said.contains(part),
            "the message does not say '{part}': {said}"
        );
    }
}

/// A file system that was up once and went down cleanly, with some files.
fn used(place: &Place) -> PathBuf {
    let running = place.up(&["--stripe-count", "2", "--stripe-size", "64K"]);
    let mnt = place.make("mnt");
    for n in 0..20 {
        std::fs::write(mnt.join(format!("f{n}")), pattern(n, 10_000 * n as usize)).unwrap();
    }
    running.stop();
    place.path("data")
}

#[test]
fn a_directory_that_is_not_ours_is_left_alone() {
    in_namespace("a_directory_that_is_not_ours_is_left_alone", || {
        let place = Place::new();
        let dir = place.make("thesis");
        std::fs::write(dir.join("chapter1.tex"), "precious").unwrap();
        assert_says(
            &up_fails(&dir, place.port, &[]),
            &[
                "not a Coral directory",
                "thesis",
                "chapter1.tex",
                "empty or a new",
            ],
        );
        let (_, said) = fails(
            coral()
                .args(["format", "--ost", "0", "--mgsnode", "127.0.0.1@tcp"])
                .arg(place.path("no-name")),
        );
        assert!(said.contains("--fsname NAME"), "{said}");
        let (_, said) = fails(
            coral()
                .arg("format")
                .args(["--ost", "0", "--fsname", "a", "--mgsnode", "127.0.0.1@tcp"])
                .arg(&dir),
        );
        assert_says(
            &said,
            &["not empty", "thesis", "chapter1.tex", "new directory"],
        );
        let (_, said) = fails(coral().arg("serve").arg(&dir));
        assert_says(&said, &["not a Coral target", "thesis", "coral format"]);
        assert!(
            coral()
                .arg("check")
                .arg(&dir)
                .output()
                .is_ok_and(|o| !o.status.success())
        );
        let names: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["chapter1.tex"], "something was written there");
        let file = place.path("file");
        std::fs::write(&file, "").unwrap();
        assert_says(&up_fails(&file, place.port, &[]), &["file"]);
    });
}

#[test]
fn a_newer_format_is_refused() {
    in_namespace("a_newer_format_is_refused", || {
        let place = Place::new();
        let data = used(&place);
        let config = data.join("coral.json");
        let kept = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, kept.replace("\"version\": 1", "\"version\": 7")).unwrap();
        assert_says(
            &up_fails(&data, place.port, &[]),
            &["data", "version 7", "newer coral"],
        );
        std::fs::write(&config, kept).unwrap();
        // a label that a newer coral wrote has its own right checksum, which is not ours to make: both orders of checking refuse it; of MDT0000, because nothing is served without it
        let label = data.join("mdt0000/CORAL");
        let kept = std::fs::read_to_string(&label).unwrap();
        std::fs::write(
            &label,
            kept.replace("\"format_version\": 1", "\"format_version\": 7"),
        )
        .unwrap();
        assert_says(&up_fails(&data, place.port, &[]), &["mdt0000"]);
        std::fs::write(&label, kept).unwrap();
        place.up(&[]).stop();
    });
}

#[test]
fn wrong_names_and_busy_ports_are_named() {
    in_namespace("wrong_names_and_busy_ports_are_named", || {
        let place = Place::new();
        let data = used(&place);
        assert_says(
            &up_fails(&data, place.port, &["--fsname", "other"]),
            &["data", "coral", "cannot be changed"],
        );
        assert_says(
            &up_fails(&place.path("new"), place.port, &["--fsname", "waytoolong"]),
            &["waytoolong", "1 to 8"],
        );
        let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_says(
            &up_fails(&data, port, &[]),
            &["127.0.0.1", &port.to_string(), "another --port"],
        );
        let new = place.path("new");
        assert_says(&up_fails(&new, port, &[]), &["another --port"]);
        let left = std::fs::read_dir(&new).unwrap().flatten();
        let left: Vec<_> = left.map(|e| e.file_name()).collect();
        assert!(left.is_empty(), "formatted all the same: {left:?}");
        drop(taken);
        let running = place.up(&[]);
        let other = place.make("other");
        let (_, said) = fails(
            Command::new("timeout")
                .args(["-k", "5", "30"])
                .arg(coral().get_program())
                .args(["mount", "127.0.0.1@tcp:/nosuch"])
                .arg(&other)
                .args(["--port", &place.port.to_string(), "--foreground"]),
        );
        assert_clear(&said);
        assert_says(&said, &["nosuch", "127.0.0.1@tcp"]);
        assert_says(
            &up_fails(&data, place.port, &[]),
            &["already up", "coral status"],
        );
        running.stop();
    });
}

/// Values are looked at before anything is made.
#[test]
fn a_file_system_that_is_refused_leaves_nothing() {
    let place = Place::new();
    let new = place.path("new");
    for wrong in [
        ["--fsname", "bad.name"],
        ["--mdts", "65000"],
        ["--stripe-size", "1"],
    ] {
        let (_, said) = fails(coral().arg("up").arg(&new).args(wrong));
        assert_says(&said, &[wrong[1]]);
        assert!(!new.exists(), "{said}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_named_with_what_to_give() {
    let place = Place::new();
    let (none, file) = (place.path("none"), place.path("file"));
    std::fs::write(&file, "text").unwrap();
    for (dir, is) in [(&none, "does not exist"), (&file, "is not a directory")] {
        for command in ["down", "status"] {
            let (_, said) = fails(coral().arg(command).arg(dir));
            assert_clear(&said);
            assert_says(
                &said,
                &[&dir.display().to_string(), is, "give the directory"],
            );
        }
    }
}

/// A mount of a NID nobody has: an unreachable one, and one that swallows what it gets.
#[test]
fn a_nid_that_does_not_answer_is_given_up() {
    in_network_namespace("a_nid_that_does_not_answer_is_given_up", || {
        let place = Place::new();
        let mnt = place.make("mnt");
        let silent = std::net::TcpListener::bind(("127.0.0.3", place.port)).unwrap();
        for nid in ["127.0.0.2@tcp", "127.0.0.3@tcp"] {
            let mount = |prefix: &[&str]| {
                let mut c = Command::new(prefix[0]);
                c.args(&prefix[1..])
                    .arg(coral().get_program())
                    .args(["mount", &format!("{nid}:/coral")])
                    .arg(&mnt);
                c.args([
                    "--nid",
                    "127.0.0.9@tcp",
                    "--port",
                    &place.port.to_string(),
                    "--foreground",
                ]);
                c
            };
            let (code, said) = fails(&mut mount(&[
                "timeout",
                "-k",
                "5",
                &NO_ANSWER_S.to_string(),
            ]));
            assert_eq!(code, 1, "{nid}: no message within {NO_ANSWER_S} s: {said}");
            assert_clear(&said);
            assert_says(&said, &[nid, "port"]);
            // Ctrl-C during the wait: timeout(1) sends it after a second and reports 124
            let (code, said) = fails(&mut mount(&["timeout", "-s", "INT", "-k", "4", "1"]));
            assert_eq!(code, 124, "{nid}: Ctrl-C did not end it: {said}");
        }
        drop(silent);
    });
}

#[test]
fn a_full_disk_is_enospc_and_heals() {
    in_namespace("a_full_disk_is_enospc_and_heals", || {
        let place = Place::new();
        let data = place.make("data");
        ok(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=160M", "tmpfs"])
            .arg(&data));
        let (data_s, mnt, port) = (
            data.to_string_lossy().into_owned(),
            place.make("mnt"),
            place.port.to_string(),
        );
        let start = || {
            Running::start(
                &[
                    "up",
                    &data_s,
                    "--mount",
                    &mnt.to_string_lossy(),
                    "--port",
                    &port,
                    "--stripe-count",
                    "4",
                    "--stripe-size",
                    "64K",
                ],
                &data,
                &[&mnt],
            )
        };
        let running = start();
        let before = pattern(77, 2_000_000);
        let mut kept = File::create(mnt.join("kept")).unwrap();
        kept.write_all(&before).unwrap();
        kept.sync_all().unwrap();
        let free = rustix::fs::statvfs(&mnt).unwrap();
        let free_bytes = free.f_bavail * free.f_frsize;

        let block = pattern(3, 1 << 20);
        let full = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mnt.join("full"))
            .unwrap();
        let mut whole = 0;
        let why = loop {
            match full
                .write_all_at(&block, whole << 20)
                .and_then(|()| full.sync_all())
            {
                Ok(()) => whole += 1,
                Err(e) => break e,
            }
            assert!(whole < 400, "400 MiB fit into 160");
        };
        assert_eq!(
            why.raw_os_error(),
            Some(libc::ENOSPC),
            "the writer got {why} after {whole} MiB"
        );
        println!(
            "ENOSPC after {whole} MiB of {} MiB said to be free",
            free_bytes >> 20
        );
        let mut got = vec![0; 1 << 20];
        for b in 0..whole {
            full.read_exact_at(&mut got, b << 20).unwrap();
            assert!(got == block, "block {b} of the full file differs");
        }
        assert!(
            std::fs::read(mnt.join("kept")).unwrap() == before,
            "another file was changed"
        );
        drop(full);
        std::fs::remove_file(mnt.join("full")).expect("a file can be removed on a full disk");
        until("the space is back", || {
            rustix::fs::statvfs(&mnt)
                .is_ok_and(|s| s.f_bavail * s.f_frsize + (8 << 20) > free_bytes)
        });
        std::fs::write(mnt.join("again"), &block).unwrap();
        drop(kept);
        running.stop();
        ok(coral().arg("check").arg(&data));
        let running = start();
        assert!(
            std::fs::read(mnt.join("kept")).unwrap() == before
                && std::fs::read(mnt.join("again")).unwrap() == block
        );
        running.stop();
        ok(Command::new("umount").arg(&data));
    });
}

/// What became of one damaged file.
#[derive(Debug, PartialEq)]
enum Fate {
    /// The start was refused with a message.
    Refused,
    /// It started without the target that is not the one it should be by what is damaged, and says so.
    Degraded,
    /// It started, and reading gave an error.
    Detected,
    /// It started and everything read is right (the damaged bytes were not in use).
    Harmless,
}

/// Starts on a damaged copy. A panic, a hang or a wrong byte fails the test.
fn start_damaged(place: &Place, data: &Path, what: &str) -> Fate {
    let mnt = place.make("mnt");
    let log = data.with_extension("log");
    let _ = std::fs::remove_file(&log);
    let out = File::create(&log).unwrap();
    let mut child = coral();
    child.arg("up").arg(data).args(["--mount"]).arg(&mnt).args([
        "--port",
        &place.port.to_string(),
        "--foreground",
    ]);
    let mut child = child
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    let mut ended = None;
    until(&format!("coral is up or has refused ({what})"), || {
        ended = child.try_wait().unwrap();
        let said = || std::fs::read_to_string(&log).unwrap();
        ended.is_some() || common::is_mounted(&mnt) && said().contains("stop: coral down")
    });
    let said = std::fs::read_to_string(&log).unwrap();
    let fate = match ended {
        Some(status) => {
            assert_eq!(
                status.code(),
                Some(1),
                "{what}: ended with {status}: {said}"
            );
            assert_clear(&said);
            Fate::Refused
        }
        // what lies on that target waits
        None if said.contains("\nmissing: coral-") => {
            assert_says(&said, &["\ndegraded: coral-"]);
            let why = said.lines().find(|l| l.starts_with("missing: coral-"));
            let of_it = ["mdt", "ost"].iter().find_map(|t| {
                let of = what.split(' ').nth(1)?.split('/').next()?;
                of.starts_with(t).then_some(of)
            });
            // damage of coral.json is told of the targets that do not fit it
            let parts = of_it.unwrap_or("than the one that was formatted");
            assert_says(why.unwrap(), &[parts]);
            ok(Command::new("kill").arg("-INT").arg(child.id().to_string()));
            until("coral has stopped", || child.try_wait().unwrap().is_some());
            Fate::Degraded
        }
        None => {
            let reads: Vec<bool> = (0..20_u64)
                .map(|n| read_or_error(&mnt.join(format!("f{n}")), n, what))
                .collect();
            ok(Command::new("kill").arg("-INT").arg(child.id().to_string()));
            until("coral has stopped", || child.try_wait().unwrap().is_some());
            if reads.iter().all(|r| *r) {
                Fate::Harmless
            } else {
                Fate::Detected
            }
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    let _ = Command::new("umount")
        .arg("-l")
        .arg(&mnt)
        .stderr(Stdio::null())
        .status();
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains("panicked"), "{what}: a panic: {said}");
    fate
}

/// True for right content, false for an error; wrong content fails.
fn read_or_error(path: &Path, seed: u64, what: &str) -> bool {
    match std::fs::read(path) {
        Ok(got) => {
            assert!(
                got == pattern(seed, 10_000 * seed as usize),
                "{what}: {} has silently other content",
                path.display()
            );
            true
        }
        Err(_) => false,
    }
}

fn files_under(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap() {
            t if t.is_dir() => out.extend(files_under(&entry.path())),
            t if t.is_file() && entry.metadata().unwrap().len() > 0 => out.push(entry.path()),
            _ => {}
        }
    }
    out.sort();
    out
}

#[test]
fn damaged_labels_and_tables_are_detected() {
    in_namespace("damaged_labels_and_tables_are_detected", || {
        let place = Place::new();
        let mut rng = Rng::from_env();
        let data = used(&place);
        let copy = place.path("copy");
        // objects are the user's bytes: what protects them is the disk; everything of ours is covered
        let ours: Vec<PathBuf> = files_under(&data)
            .into_iter()
            .filter(|p| !p.to_string_lossy().contains("/objects/"))
            .collect();
        let named = |p: &PathBuf| {
            p.ends_with("CORAL")
                || p.ends_with("coral.json")
                || p.to_string_lossy().ends_with(".jnl") && p.to_string_lossy().contains("mdt0000")
        };
        let mut victims: Vec<PathBuf> = ours.iter().filter(|p| named(p)).cloned().collect();
        let tables: Vec<&PathBuf> = ours
            .iter()
            .filter(|p| p.to_string_lossy().contains("mdt0000/kv/"))
            .collect();
        victims.extend((0..12).map(|_| tables[rng.below(tables.len() as u64) as usize].clone()));
        let (mut refused, mut degraded) = (0, 0);
        let (mut detected, mut harmless) = (Vec::new(), Vec::new());
        for victim in victims {
            for tear in [false, true] {
                let _ = std::fs::remove_dir_all(&copy);
                ok(Command::new("cp").arg("-a").arg(&data).arg(&copy));
                let file = copy.join(victim.strip_prefix(&data).unwrap());
                let len = std::fs::metadata(&file).unwrap().len();
                let f = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(&file)
                    .unwrap();
                let at = rng.below(len);
                if tear {
                    f.set_len(at).unwrap();
                } else {
                    let mut byte = [0];
                    f.read_exact_at(&mut byte, at).unwrap();
                    f.write_all_at(&[byte[0] ^ 1 << rng.below(8)], at).unwrap();
                }
                drop(f);
                let what = format!(
                    "{} {} at {at} of {len}",
                    if tear { "torn" } else { "flipped" },
                    file.strip_prefix(&copy).unwrap().display()
                );
                match start_damaged(&place, &copy, &what) {
                    Fate::Refused => refused += 1,
                    Fate::Degraded => degraded += 1,
                    Fate::Detected => detected.push(what),
                    Fate::Harmless => harmless.push(what),
                }
            }
        }
        println!(
            "{refused} refused; {degraded} without a target; errors while it ran:\n  {}\nwithout effect:\n  {}",
            detected.join("\n  "),
            harmless.join("\n  ")
        );
        assert!(refused > 0);
        assert!(
            !harmless
                .iter()
                .any(|w| w.contains("flipped") && w.contains("/CORAL")),
            "a changed label was taken"
        );
        assert!(
            !detected.iter().any(|w| w.contains(".jnl")),
            "transactions that were synced are missing and it started"
        );
    });
}

#[test]
fn a_target_that_was_never_served_is_clean() {
    let place = Place::new();
    let dir = place.path("formatted");
    ok(coral()
        .args(["format", "--mgs", "--mdt", "0", "--fsname", "a"])
        .arg(&dir));
    let out = coral().arg("check").arg(&dir).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_says(&said, &["a-MDT0000", "clean", "formatted, never served"]);
    let mut again = coral();
    again.args([
        "format",
        "--ost",
        "3",
        "--fsname",
        "a",
        "--mgsnode",
        "127.0.0.1@tcp",
    ]);
    let (_, said) = fails(again.arg(dir.join("mdt0000")));
    assert_says(
        &said,
        &["a-MDT0000 already", "coral serve", "new directory"],
    );
    let (_, said) = fails(
        coral()
            .args(["format", "--mgs", "--mdt", "0", "--fsname", "a"])
            .arg(&dir),
    );
    assert_says(&said, &["MGS already", "left as it is"]);
}

/// Random bytes, and a true HELLO magic with random bytes after it.
fn junk(port: u16, rng: &mut Rng) {
    let Ok(mut s) = TcpStream::connect(("127.0.0.1", port)) else {
        panic!("the server does not accept any more")
    };
    let _ = s.set_read_timeout(Some(Duration::from_millis(20)));
    let mut bytes = pattern(rng.next(), 1 + rng.below(4000) as usize);
    if rng.below(2) == 0 {
        let magic = 0xacce_7100_u32.to_le_bytes(); // LNET_PROTO_ACCEPTOR_MAGIC
        bytes.splice(..0, magic.into_iter().chain(1_u32.to_le_bytes()));
    }
    let _ = s.write_all(&bytes);
    let _ = s.read(&mut [0; 64]);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test that reads what a program prints"
)]
fn random_bytes_to_the_port_disturb_nobody() {
    in_namespace("random_bytes_to_the_port_disturb_nobody", || {
        let place = Place::new();
        let mut rng = Rng::from_env();
        let (data, mnt, port) = (
            place.path("data"),
            place.make("mnt"),
            place.port.to_string(),
        );
        // Or the bytes would not be read: they come from an ordinary port.
        let server = Running::start(
            &[
                "up",
                &data.to_string_lossy(),
                "--port",
                &port,
                "--accept",
                "all",
            ],
            &data,
            &[],
        );
        let client = Running::start(
            &[
                "mount",
                "127.0.0.1@tcp:/coral",
                &mnt.to_string_lossy(),
                "--port",
                &port,
            ],
            &place.path("client"),
            &[&mnt],
        );
        let worker = {
            let mnt = mnt.clone();
            std::thread::spawn(move || {
                for n in 0..60 {
                    let (path, bytes) = (mnt.join(format!("w{n}")), pattern(n, 100_000));
                    std::fs::write(&path, &bytes).unwrap();
                    assert!(std::fs::read(&path).unwrap() == bytes);
                    pause(30);
                }
            })
        };
        for _ in 0..JUNK_CONNECTIONS {
            junk(place.port, &mut rng);
        }
        worker.join().expect("the client's work failed");
        client.stop();
        server.stop();
        let log = std::fs::read_to_string(data.with_extension("log")).unwrap();
        assert!(!log.contains("panicked"), "a panic in the server: {log}");
        ok(coral().arg("check").arg(&data));
    });
}
