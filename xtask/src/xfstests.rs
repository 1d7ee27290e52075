//! `cargo xtask xfstests`: the file system tests of the Linux kernel's developers, from a tree that is there and built.

use crate::step;
use std::path::PathBuf;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Xfstests {
    /// A built tree of xfstests (git.kernel.org, fs/xfs/xfstests-dev.git); nothing is fetched.
    #[arg(long)]
    tree: PathBuf,
    /// Which tests, unless some are named.
    #[arg(long, default_value = "quick")]
    group: String,
    /// Tests, such as generic/001.
    tests: Vec<String>,
}

pub(crate) fn run(asked: &Xfstests) -> Result<(), String> {
    let coral = step::build_release()?;
    let mut c = Command::new(step::root().join("tests/xfstests/run.sh"));
    c.arg("--tree")
        .arg(&asked.tree)
        .arg("--coral")
        .arg(coral)
        .args(["--group", &asked.group])
        .args(&asked.tests);
    step::run_in(&mut c)
}
