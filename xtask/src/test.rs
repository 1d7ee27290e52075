//! All tests.

use crate::{conform, setup, step, tidy};
use std::process::Command;

/// Every test: first those of the crates, then the real programs on real mounts.
pub(crate) fn run(quick: bool) -> Result<(), String> {
    if !quick {
        setup::everything()?;
        step::build_release()?;
    }
    step::run("cargo", &["fmt", "--all", "--check"])?;
    tidy::run(false)?;
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
    let mut tests = Command::new("cargo");
    tests
        .args(["test", "--workspace", "--locked", "--no-fail-fast"])
        .current_dir(step::root());
    if quick {
        tests.args(["--lib", "--bins"]);
        return step::run_in(&mut tests);
    }
    let coral = step::target_dir().join("release/coral");
    let crates = step::run_in(tests.env("CORAL_BIN", &coral));
    let conform = conform::ours(&coral);
    let mut real = Command::new(step::root().join("tests/real/run.sh"));
    real.arg("--coral")
        .arg(&coral)
        .arg("--tools")
        .arg(setup::tools());
    crates.and(conform).and(step::run_in(&mut real))
}
