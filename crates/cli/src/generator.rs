//! A load generator as a process. What it mounts through the library ends with it, also when a signal ends it: servers would keep a
//! client that is gone until they miss it.

use coral_lab::load::{self, Mounted};
use std::ffi::OsString;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// The option that mounts.
const MOUNTS: &[u8] = b"--coral-fs";

/// Runs the generator of this name.
pub(crate) fn main(name: &str, args: Vec<OsString>) -> ExitCode {
    let mounted = Mounted::default();
    let mounts = |a: &OsString| a.as_encoded_bytes().starts_with(MOUNTS);
    if args.iter().any(mounts)
        && let Err(why) = end_with_signals(&mounted)
    {
        eprintln!("{name}: waiting for signals: {why}");
        return ExitCode::FAILURE;
    }
    load::main(name, args, mounted)
}

/// SIGINT and SIGTERM end the mounts, and then the process with the code that a shell gives for the signal.
fn end_with_signals(mounted: &Mounted) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let _inside = runtime.enter();
        let (mut told, mounted) = (signal(kind)?, mounted.clone());
        runtime.spawn(async move {
            if told.recv().await.is_some() {
                mounted.abandon();
                std::process::exit(128 + kind.as_raw_value());
            }
        });
    }
    // It lives as long as the process.
    std::mem::forget(runtime);
    Ok(())
}
