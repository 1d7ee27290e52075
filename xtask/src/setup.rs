//! What the project needs on a Debian machine besides Rust, and how it gets there.

use crate::step;
use std::path::PathBuf;
use std::process::Command;

/// (program, Debian package): what the demonstration needs.
const DEMO: &[(&str, &str)] = &[("fusermount3", "fuse3")];

/// (program, Debian package): what the tests need besides.
const TESTS: &[(&str, &str)] = &[
    ("fio", "fio"),
    ("getfacl", "acl"),
    ("getfattr", "attr"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("make", "make"),
    ("python3", "python3"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("tshark", "tshark"),
];

/// (program, crate, version): test programs from crates.io, put into `target/tools`.
const CRATES: &[(&str, &str, &str)] = &[("fsx", "fsx", "0.3.2"), ("pjdfstest", "pjdfstest", "0.2.2")];

/// The demonstration's needs only.
pub(crate) fn demo() -> Result<(), String> {
    packages(DEMO)
}

/// Everything the tests and the benchmark need.
pub(crate) fn everything() -> Result<(), String> {
    packages(DEMO)?;
    packages(TESTS)?;
    for (program, name, version) in CRATES {
        if !tools().join("bin").join(program).is_file() {
            let root = tools();
            step::run("cargo", &["install", "--quiet", "--locked", name, "--version", version, "--root", &root.to_string_lossy()])?;
        }
    }
    Ok(())
}

/// Where the test programs from crates.io are.
pub(crate) fn tools() -> PathBuf {
    step::target_dir().join("tools")
}

fn packages(wanted: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<&str> = wanted.iter().filter(|(program, _)| !step::on_path(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !step::on_path("apt-get") {
        return Err(format!("please install {}: this is no Debian, so it cannot be done for you", missing.join(", ")));
    }
    apt(&["update", "-qq"])?;
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(&missing);
    apt(&args)
}

fn apt(args: &[&str]) -> Result<(), String> {
    let root = effective_uid() == Some(0);
    let mut command = if root { Command::new("apt-get") } else { Command::new("sudo") };
    if !root {
        command.arg("apt-get");
    }
    step::run_in(command.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// This process's user id, read from /proc: no library is needed for one number.
fn effective_uid() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|l| l.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}
