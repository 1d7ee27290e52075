//! A trial in a process of its own. A thread that waits inside the kernel, for a directory in which another one works or for a file system
//! that does not answer, cannot be stopped, and the process with it does not end before. So that the command ends all the same, it is
//! another process, which waits for no more than what it is told. The whole trial is made there, and not its single operations: then
//! no figures and no changes have to be passed on.
//!
//! Both hold an end of a socket, the trial as its standard input. A byte on it says that the trial was given up; its end, that the trial
//! has ended, or for the trial that the command is gone: then the trial ends too.

use std::io::{Read, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, exit};

use super::wait;

/// Set in the process that makes the trial.
const APART: &str = "CORAL_EXPLAIN_APART";
/// How often it is looked whether a trial that was given up has ended, and the pause between.
const LOOKS: u32 = 10;
const PAUSE_S: f64 = 0.05;

/// Makes the trial apart, and ends as it does, or when it is given up.
pub(super) fn run(trial: impl FnOnce() -> Result<(), String>) -> Result<ExitCode, String> {
    match std::env::var_os(APART) {
        Some(_) => {
            end_with_the_command();
            trial().map(|()| ExitCode::SUCCESS)
        }
        None => watch(),
    }
}

/// Says that the trial is over, though this process may have to wait for its threads.
pub(super) fn give_up() {
    // Where nobody listens the command is gone.
    let _ = rustix::io::write(stdin().as_fd(), &[1]);
}

fn watch() -> Result<ExitCode, String> {
    let failed = |e: std::io::Error| format!("the process of the trial: {e}");
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    // The command that is started keeps its end until it is dropped.
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(APART, "1")
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .map_err(failed)?;
    if matches!(ours.read(&mut [0]), Ok(1..)) {
        if !has_ended(&mut child) {
            eprintln!(
                "left: process {} waits inside the kernel for an operation of the trial, where nothing can end it: it ends with that operation",
                child.id()
            );
        }
        return Ok(ExitCode::FAILURE);
    }
    let ended = child.wait().map_err(failed)?;
    let code = ended.code();
    let code = code.or_else(|| ended.signal().map(|s| 128 + s));
    Ok(ExitCode::from(code.unwrap_or(1) as u8))
}

fn has_ended(child: &mut Child) -> bool {
    (0..LOOKS).any(|_| {
        wait(PAUSE_S);
        matches!(child.try_wait(), Ok(Some(_)))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "it waits for another process all its life"
)]
fn end_with_the_command() {
    std::thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        // What was changed is put back by the process that does so.
        exit(1);
    });
}
