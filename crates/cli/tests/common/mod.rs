//! Running the real `coral` in a private mount namespace.
//!
//! A test calls [`in_namespace`] first: it runs itself again under `unshare -m`, so that its mounts are seen by nobody else and
//! vanish with it. Every process a test starts dies with the guard that holds it.

#![allow(dead_code, reason = "each test file uses its share")]

pub mod load;
pub mod net;
pub mod two;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Set inside the namespace.
const INSIDE: &str = "CORAL_TEST_INSIDE";
/// How long a start or an unmount may take before the test fails, seconds.
const PATIENCE_S: u64 = 60;

/// Runs `body` in a private mount namespace. `name` is the test's own name.
pub fn in_namespace(name: &str, body: impl FnOnce()) {
    in_namespaces(name, &[], body);
}

/// The same with a private network, of which only the loopback is up: any port is free and nobody else is seen.
pub fn in_network_namespace(name: &str, body: impl FnOnce()) {
    in_namespaces(name, &["--net"], || {
        ok(Command::new("ip").args(["link", "set", "lo", "up"]));
        body();
    });
}

fn in_namespaces(name: &str, more: &[&str], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let exe = std::env::current_exe().expect("own path");
    let mut unshare = Command::new("unshare");
    if !is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    let status = unshare
        .args(["--mount", "--propagation", "private"])
        .args(more)
        .arg("--")
        .arg(exe)
        .args([
            "--exact",
            name,
            "--include-ignored",
            "--nocapture",
            "--test-threads",
            "1",
        ])
        .env(INSIDE, "1")
        .status();
    let status = status.expect("unshare(1) from util-linux");
    assert!(
        status.success(),
        "{name} failed in its namespace; rerun: cargo test -p coral-cli {name}"
    );
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self")
        .map(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
        .unwrap_or(false)
}

/// The binary under test: the release build when the test run names one, else cargo's own.
pub fn coral() -> Command {
    Command::new(
        std::env::var_os("CORAL_BIN")
            .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_coral")), PathBuf::from),
    )
}

pub fn lfs() -> Command {
    let mut c = coral();
    c.arg("lfs");
    c
}

/// Runs a command to its end and returns what it printed; a failure shows all of it.
pub fn ok(command: &mut Command) -> String {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        out.status.success(),
        "{command:?}: {}\n{}",
        out.status,
        text(&out)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs a command that must fail and returns what it said.
pub fn fails(command: &mut Command) -> (i32, String) {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        !out.status.success(),
        "{command:?} succeeded:\n{}",
        text(&out)
    );
    (out.status.code().unwrap_or(-1), text(&out))
}

pub fn text(out: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// The directory of a process's own control socket, in the registry of its user.
pub fn own_dir_of(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("a PID namespace");
    format!("{pid}-{}.d", namespace.ino())
}

/// A TCP port that is free now, on every loopback address.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test waits for another process"
)]
pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Waits until `what` holds; fails after [`PATIENCE_S`].
pub fn until(why: &str, mut what: impl FnMut() -> bool) {
    for _ in 0..PATIENCE_S * 50 {
        if what() {
            return;
        }
        pause(20);
    }
    panic!("waited {PATIENCE_S} s in vain until {why}");
}

/// A `coral ... --foreground` process; killed when dropped.
pub struct Running {
    child: Child,
    mounts: Vec<PathBuf>,
}

impl Running {
    /// Starts `args` and waits until the mounts are there (or, without mounts, until the process reported).
    pub fn start(args: &[&str], dir: &Path, mounts: &[&Path]) -> Running {
        Running::start_as(coral(), args, dir, mounts)
    }

    /// The same with a log elsewhere than beside the directory.
    pub fn start_logged(args: &[&str], dir: &Path, log: &Path) -> Running {
        Running::start_with(coral(), args, dir, &[], log)
    }

    /// The same for a command that ends in running coral (`nsenter ... coral`) without another process in between.
    pub fn start_as(command: Command, args: &[&str], dir: &Path, mounts: &[&Path]) -> Running {
        Running::start_with(command, args, dir, mounts, dir)
    }

    fn start_with(
        mut command: Command,
        args: &[&str],
        dir: &Path,
        mounts: &[&Path],
        log: &Path,
    ) -> Running {
        let name = log.with_extension("log");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&name)
            .expect("a log");
        let errors = log.try_clone().expect("a log");
        let child = command
            .args(args)
            .arg("--foreground")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .expect("coral");
        let mut running = Running {
            child,
            mounts: mounts.iter().map(|m| m.to_path_buf()).collect(),
        };
        until("coral is up", || {
            if let Some(status) = running.child.try_wait().expect("its state") {
                let log = std::fs::read_to_string(&name).unwrap_or_default();
                panic!("coral {args:?} ended at its start: {status}\n{log}");
            }
            let mounted = mounts.iter().all(|m| is_mounted(m));
            mounted
                && (!mounts.is_empty()
                    || coral()
                        .arg("status")
                        .arg(dir)
                        .output()
                        .is_ok_and(|o| o.status.success()))
        });
        running
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and clears the mounts that it leaves dead.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.clear_mounts();
    }

    /// Ctrl-C, and waits for the end.
    pub fn stop(self) {
        ok(Command::new("kill").arg("-INT").arg(self.pid().to_string()));
        self.ended();
    }

    /// Waits for a clean end that somebody else has asked for.
    pub fn ended(mut self) {
        until("coral has stopped", || {
            self.child.try_wait().expect("its state").is_some()
        });
        let status = self.child.wait().expect("its state");
        assert!(status.success(), "coral ended with {status}");
        assert!(
            self.mounts.iter().all(|m| !is_mounted(m)),
            "the mount outlived coral"
        );
    }

    fn clear_mounts(&self) {
        for m in &self.mounts {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(m)
                .stderr(Stdio::null())
                .status();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.clear_mounts();
    }
}

pub fn is_mounted(path: &Path) -> bool {
    let wanted = path.to_string_lossy().into_owned();
    std::fs::read_to_string("/proc/self/mountinfo")
        .unwrap_or_default()
        .lines()
        .any(|l| l.split(' ').nth(4) == Some(&wanted))
}

/// A data directory, mount points and a port for one test.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub port: u16,
}

impl Place {
    pub fn new() -> Place {
        Place {
            dir: tempfile::tempdir().expect("a temporary directory"),
            port: free_port(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn make(&self, name: &str) -> PathBuf {
        let p = self.path(name);
        std::fs::create_dir_all(&p).expect("a directory");
        p.canonicalize().expect("its path")
    }

    /// `coral up data --mount mnt` with more arguments.
    pub fn up(&self, more: &[&str]) -> Running {
        let (data, mnt) = (self.path("data"), self.make("mnt"));
        let (data_s, mnt_s, port) = (
            data.to_string_lossy().into_owned(),
            mnt.to_string_lossy().into_owned(),
            self.port.to_string(),
        );
        let mut args = vec!["up", &data_s, "--mount", &mnt_s, "--port", &port];
        args.extend(more);
        Running::start(&args, &data, &[&mnt])
    }
}

/// A small generator whose seed is printed, so that a failure can be run again.
pub struct Rng(u64);

impl Rng {
    pub fn from_env() -> Rng {
        let seed = std::env::var("CORAL_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| std::process::id() as u64 * 2_654_435_761);
        println!("seed: CORAL_SEED={seed}");
        Rng(seed | 1)
    }

    pub fn seeded(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Bytes that any other seed has otherwise, and any other sector of 512 bytes of this seed: each begins with a number of its own. Most
/// of them are copied, because tests are compiled without optimization and write gigabytes.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    const SECTOR: usize = 512;
    let mut rng = Rng::seeded(seed + 1);
    let rest: Vec<u8> = (1..SECTOR / 8)
        .flat_map(|_| rng.next().to_le_bytes())
        .collect();
    let mut out = Vec::with_capacity(len + SECTOR);
    while out.len() < len {
        out.extend_from_slice(&rng.next().to_le_bytes());
        out.extend_from_slice(&rest);
    }
    out.truncate(len);
    out
}
