//! All tests.

use crate::{conform, deny, setup, step, tidy};
use std::path::Path;
use std::process::Command;

/// Every test: first the checks of the sources, then the tests of the crates, then the real programs on real mounts.
pub(crate) fn run(quick: bool, nextest: bool) -> Result<(), String> {
    if !quick {
        setup::everything()?;
        step::build_release()?;
    }
    step::run("cargo", &["fmt", "--all", "--check"])?;
    tidy::run(false)?;
    deny::run()?;
    step::run(
        "cargo",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    if quick {
        return crates(&["--lib", "--bins"], nextest, None);
    }
    let coral = step::target_dir().join("release/coral");
    let crates = match nextest {
        // it runs no examples in documentation
        true => crates(&[], true, Some(&coral)).and(cargo_test(&["--doc"], None)),
        false => crates(&[], false, Some(&coral)),
    };
    let conform = conform::ours(&coral);
    let mut all = real_programs(&coral);
    all.args(["--files", "10000"])
        .env("COHERENCE_SECONDS", "40");
    let mut over_mdts = real_programs(&coral);
    over_mdts
        .args(["--files", "2000", "git", "two-mounts", "pjdfstest"])
        .env("CORAL_UP_FLAGS", "--mdts 4")
        .env("CORAL_ROOT_STRIPES", "4")
        .env("COHERENCE_SECONDS", "20");
    crates
        .and(conform)
        .and(step::run_in(&mut all))
        .and(step::run_in(&mut over_mdts))
}

/// Real programs on a mount of this binary.
fn real_programs(coral: &Path) -> Command {
    let mut run = Command::new(step::root().join("tests/real/run.sh"));
    run.arg("--coral")
        .arg(coral)
        .arg("--tools")
        .arg(setup::tools());
    run
}

/// The tests of the crates, by the runner that is asked for and there.
fn crates(which: &[&str], nextest: bool, coral: Option<&Path>) -> Result<(), String> {
    if !nextest {
        return cargo_test(which, coral);
    }
    setup::tools_of_developers();
    let Some(runner) = setup::tool("cargo-nextest") else {
        eprintln!("xtask: cargo-nextest is not there: cargo test runs the tests");
        return cargo_test(which, coral);
    };
    let mut tests = Command::new(runner);
    tests.args(["nextest", "run", "--workspace", "--locked"]);
    step::run_in(with(&mut tests, which, coral))
}

fn cargo_test(which: &[&str], coral: Option<&Path>) -> Result<(), String> {
    let mut tests = Command::new("cargo");
    tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    step::run_in(with(&mut tests, which, coral))
}

fn with<'a>(tests: &'a mut Command, which: &[&str], coral: Option<&Path>) -> &'a mut Command {
    tests
        .args(which)
        .envs(coral.map(|c| ("CORAL_BIN", c)))
        .current_dir(step::root())
}
