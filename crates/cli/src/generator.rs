//! A load generator as a process. A signal ends the run in order, with its record. What it mounts through the library ends with it:
//! servers would keep a client that is gone until they miss it.

use coral_lab::load::{self, END_LIMIT, Ending, Mounted};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use tokio::signal::unix::{SignalKind, signal};

/// Runs the generator of this name.
pub(crate) fn main(name: &str, args: Vec<OsString>) -> ExitCode {
    let (mounted, ending) = (Mounted::default(), Ending::default());
    let code = match end_with_signals(name, &mounted, &ending) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("{name}: waiting for signals: {why}");
            return ExitCode::FAILURE;
        }
    };
    let ended = load::main(name, args, mounted, ending);
    match code.get() {
        Some(code) if ended != ExitCode::SUCCESS => ExitCode::from(*code),
        _ => ended,
    }
}

/// SIGINT and SIGTERM end the run; a second one, or what takes too long, ends the mounts under it. The process then has the code that
/// a shell gives for the signal.
fn end_with_signals(
    tool: &str,
    mounted: &Mounted,
    ending: &Ending,
) -> std::io::Result<Arc<OnceLock<u8>>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let code: Arc<OnceLock<u8>> = Arc::default();
    for (kind, name) in [
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::terminate(), "SIGTERM"),
    ] {
        let _inside = runtime.enter();
        let (mut told, code) = (signal(kind)?, code.clone());
        let (mounted, ending, tool) = (mounted.clone(), ending.clone(), tool.to_owned());
        runtime.spawn(async move {
            if told.recv().await.is_some() {
                let of = 128 + kind.as_raw_value();
                // the other one may have come before
                let mut when = format!("at a second signal, {name}");
                if code.set(of as u8).is_ok() {
                    ending.end_by_signal(name);
                    if tokio::time::timeout(END_LIMIT, told.recv()).await.is_err() {
                        when = format!("{} s after {name}", END_LIMIT.as_secs());
                    }
                }
                load::end_by_force(&tool, &when, &mounted, &ending, of);
            }
        });
    }
    // It lives as long as the process.
    std::mem::forget(runtime);
    Ok(code)
}
