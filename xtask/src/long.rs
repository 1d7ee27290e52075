//! `cargo xtask bench router`, `bench memory` and `cargo xtask chaos`: long runs of tests that exist, with a release build, and what they print.

use crate::step;
use std::path::Path;
use std::process::Command;

/// MiB each of the six clients writes and reads per file system in `bench router`.
const ROUTER_MIB: &str = "96";

/// Runs one test and shows what it prints.
pub(crate) fn one(
    package: &str,
    file: &str,
    name: &str,
    settings: &[(&str, String)],
) -> Result<(), String> {
    let mut c = Command::new("cargo");
    c.args([
        "test",
        "--locked",
        "-p",
        package,
        "--test",
        file,
        name,
        "--",
        "--exact",
        "--nocapture",
        "--include-ignored",
    ]);
    c.envs(settings.iter().map(|(k, v)| (k, v)))
        .current_dir(step::root());
    step::run_in(&mut c)
}

pub(crate) fn release() -> Result<(&'static str, String), String> {
    Ok((
        "CORAL_BIN",
        step::build_release()?.to_string_lossy().into_owned(),
    ))
}

/// The router's throughput over time for one file system and for two.
pub(crate) fn router(dir: &Path) -> Result<(), String> {
    let dir = step::root().join(dir);
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let plots = ("CORAL_PLOT_DIR", dir.to_string_lossy().into_owned());
    one(
        "coral-cli",
        "router",
        "one_router_serves_two_file_systems",
        &[release()?, plots, ("CORAL_ROUTER_MIB", ROUTER_MIB.into())],
    )
}

/// What a client's memory comes to after a walk over 1,000,000 names and a stream of 20 GiB each way, with the usual budget.
pub(crate) fn memory() -> Result<(), String> {
    let size = [
        ("CORAL_MEMORY_NAMES", "1000000"),
        ("CORAL_MEMORY_STREAM_MB", "20480"),
        ("CORAL_MEMORY_CACHE_MB", "256"),
    ];
    let mut settings = vec![release()?];
    settings.extend(size.map(|(k, v)| (k, v.to_owned())));
    one(
        "coral-cli",
        "memory",
        "a_client_stays_within_its_budget",
        &settings,
    )
}

/// The file system over a bad network.
pub(crate) fn chaos(seconds: u32, one_process: bool) -> Result<(), String> {
    let length = ("CORAL_CHAOS_REAL_S", seconds.to_string());
    match one_process {
        true => one(
            "coral-client",
            "chaos",
            "in_real_time_on_several_threads",
            &[length],
        ),
        false => one(
            "coral-cli",
            "router",
            "a_bad_network_and_a_dying_router_for_minutes",
            &[release()?, length],
        ),
    }
}
