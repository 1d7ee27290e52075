//! All tests.

use crate::{conform, deny, programs, setup, step, tidy};
use std::path::Path;
use std::process::Command;

/// Every test: first the checks of the sources, then the tests of the crates, then the real programs on real mounts.
pub(crate) fn run(quick: bool) -> Result<(), String> {
    if quick {
        sources()?;
        deny::run()?;
        return cargo_test(&["--lib", "--bins"]);
    }
    // what the checks need; the rest comes while they run, and is mostly downloaded
    setup::fuse()?;
    let (sources, ready) = std::thread::scope(|threads| {
        let ready = threads.spawn(setup::everything);
        (sources(), ready.join())
    });
    ready.map_err(|_| "setting up has panicked")??;
    sources?;
    deny::run()?;
    let built = programs::build()?;
    let coral = built.coral()?;
    // the examples in documentation are no programs
    let crates = built.run().and(cargo_test(&["--doc"]));
    let conform = conform::ours(&coral);
    let mut all = real_programs(&coral);
    all.args(["--files", "10000"])
        .env("COHERENCE_SECONDS", "40")
        .env("FSX_OPS", "30000");
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

/// Checks of the sources.
fn sources() -> Result<(), String> {
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
    )
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

fn cargo_test(which: &[&str]) -> Result<(), String> {
    let all = ["test", "--workspace", "--locked", "--no-fail-fast"];
    step::run("cargo", &[&all, which].concat())
}
