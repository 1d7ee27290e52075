//! All tests.

use crate::{setup, step};
use std::process::Command;

/// Every test: first those of the crates, then the real programs on real mounts.
pub(crate) fn run(quick: bool) -> Result<(), String> {
    if !quick {
        setup::everything()?;
        step::build_release()?;
    }
    step::run("cargo", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    let mut tests = Command::new("cargo");
    tests.args(["test", "--workspace", "--locked", "--no-fail-fast"]).current_dir(step::root());
    if quick {
        tests.args(["--exclude", "coral-tests"]);
    } else {
        tests.env("CORAL_BIN", step::target_dir().join("release/coral")).env("CORAL_TOOLS", setup::tools().join("bin"));
    }
    step::run_in(&mut tests)
}
