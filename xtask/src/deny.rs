//! `cargo deny`: licences and sources of the dependencies, and what is known against them (`deny.toml`).

use crate::{setup, step};
use std::process::Command;

/// Where cargo-deny gets the advisories from.
const DATABASE: &str = "advisory-db";

/// Checks the dependencies. Without the tool nothing is checked, and without the database of advisories all but them: that is
/// said, and is no failure.
pub(crate) fn run() -> Result<(), String> {
    let Some(deny) = setup::tool("cargo-deny") else {
        eprintln!(
            "xtask: cargo-deny is not there: licences, sources and advisories are not checked"
        );
        return Ok(());
    };
    let mut check = Command::new(&deny);
    check
        .args([
            "--locked",
            "--log-level",
            "error",
            "check",
            "--hide-inclusion-graph",
        ])
        .args(["licenses", "bans", "sources"])
        .current_dir(step::root());
    step::run_in(&mut check)?;
    let fetched = Command::new(&deny)
        .args(["--log-level", "off", "fetch", "db"])
        .current_dir(step::root())
        .output();
    if !fetched.is_ok_and(|o| o.status.success()) {
        eprintln!("xtask: the {DATABASE} cannot be reached: advisories are not checked");
        return Ok(());
    }
    let mut check = Command::new(&deny);
    check
        .args([
            "--locked",
            "--log-level",
            "error",
            "check",
            "--disable-fetch",
            "advisories",
        ])
        .current_dir(step::root());
    step::run_in(&mut check)
}
