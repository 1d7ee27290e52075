//! Running other programs, with what went wrong said plainly.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The clock of this developer tool (the libraries' rule of tokio's clock does not reach here).
#[expect(
    clippy::disallowed_methods,
    reason = "a developer tool that times whole commands"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Lets others go on.
#[expect(
    clippy::disallowed_methods,
    reason = "a developer tool without a runtime"
)]
pub(crate) fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// The same for a program that was just started, to get ready.
pub(crate) fn settle() {
    wait(Duration::from_millis(300));
}

/// The workspace's root: of the checkout that cargo was called in, also when its target directory came from another one.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.as_deref()
        .unwrap_or(Path::new(env!("CARGO_MANIFEST_DIR")))
        .parent()
        .map(Path::to_owned)
        .unwrap_or_default()
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A command that takes so many seconds is said to have taken them.
const SAID_FROM_S: u64 = 10;

/// Runs `program` in the workspace's root; an exit code other than 0 is an error that names the command.
pub(crate) fn run(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Result<(), String> {
    run_in(
        Command::new(program.as_ref())
            .args(args)
            .current_dir(root()),
    )
}

/// As [`run`], for a command already put together.
pub(crate) fn run_in(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    eprintln!("xtask: {shown}");
    let begun = now();
    let ended = command.status();
    let took_s = begun.elapsed().as_secs();
    if took_s >= SAID_FROM_S {
        eprintln!("xtask: {took_s} s: {shown}");
    }
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(e) => Err(format!("{shown}: {e}")),
    }
}

/// Builds the release binaries and returns the path of `coral`.
pub(crate) fn build_release() -> Result<PathBuf, String> {
    run(
        "cargo",
        &["build", "--release", "--locked", "--bin", "coral"],
    )?;
    let dir = target_dir().join("release");
    for name in ["lfs", "lst", "lnetctl", "lctl", "mount.coral"] {
        let link = dir.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("coral", &link)
            .map_err(|e| format!("{}: {e}", link.display()))?;
    }
    Ok(dir.join("coral"))
}

/// Whether `program` is on the PATH.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|d| d.join(program).is_file())
}
