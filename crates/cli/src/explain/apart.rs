//! A trial in a process of its own. A thread that waits inside the kernel, for a directory in which another one works or for a file system
//! that does not answer, cannot be stopped, and the process with it does not end before. So that the command ends all the same, it is
//! another process, which waits for no more than what it is told. The whole trial is made there, and not its single operations: then
//! no figures and no changes have to be passed on.
//!
//! Both hold an end of a socket, the trial as its standard input. A line on it says that the trial was given up, and which processes it has
//! started that have not ended; its end, that the trial has ended, or for the trial that the command is gone: then the trial ends too.

use std::fs::File;
use std::io::{Read, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, exit};

use coral_lab::process_stat::ProcessStat;
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::stdio::{dup2_stderr, dup2_stdout};

use super::wait;

/// Set in the process that makes the trial.
const APART: &str = "CORAL_EXPLAIN_APART";
/// How often it is looked whether a trial that was given up has ended, and the pause between.
const LOOKS: u32 = 10;
const PAUSE_S: f64 = 0.05;
/// Most bytes of the line about a trial that was given up.
const LINE_BYTES: usize = 4096;

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

/// Says that the trial is over, though this process may have to wait for its threads. It ends at once then: what it has started is killed.
pub(super) fn give_up() {
    // Whoever reads what the command says waits until nobody can say anything more.
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stdout(&nothing);
        let _ = dup2_stderr(&nothing);
    }
    let started = started();
    let words: Vec<String> = started.iter().map(u32::to_string).collect();
    // Where nobody listens the command is gone.
    let _ = rustix::io::write(stdin().as_fd(), format!("{}\n", words.join(" ")).as_bytes());
    for pid in started {
        // It may have ended meanwhile.
        let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
    }
}

/// Processes that this one has started and that have not ended, but for that which puts changes back: it is in a group of its own.
fn started() -> Vec<u32> {
    let (own, group) = (std::process::id(), getpgrp().as_raw_pid() as u32);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let is_own = |s: ProcessStat| s.parent == own && s.group == group && !s.has_ended();
    pids.filter(|pid| ProcessStat::of(*pid).is_ok_and(is_own))
        .collect()
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
    let mut line = [0; LINE_BYTES];
    if let Ok(length @ 1..) = ours.read(&mut line) {
        let line = String::from_utf8_lossy(&line[..length]);
        let started = line.split_whitespace().filter_map(|w| w.parse().ok());
        let left = left(&mut child, started.collect());
        left.iter().for_each(|l| eprintln!("{l}"));
        return Ok(ExitCode::FAILURE);
    }
    let ended = child.wait().map_err(failed)?;
    let code = ended.code();
    let code = code.or_else(|| ended.signal().map(|s| 128 + s));
    Ok(ExitCode::from(code.unwrap_or(1) as u8))
}

/// Of a trial that was given up, and of what it had started: a line about each process that does not end.
fn left(child: &mut Child, started: Vec<u32>) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..LOOKS {
        wait(PAUSE_S);
        // One that nobody has waited for is there still.
        let _ = child.try_wait();
        let all = std::iter::once(child.id()).chain(started.iter().copied());
        told = all
            .filter_map(|pid| left_as(pid, &ProcessStat::of_threads(pid)))
            .collect();
        if told.is_empty() {
            break;
        }
    }
    told
}

fn left_as(pid: u32, threads: &[ProcessStat]) -> Option<String> {
    let is_left = threads.iter().any(|t| !t.has_ended());
    let is_in_the_kernel = threads.iter().any(|t| t.state == 'D');
    is_left.then(|| match is_in_the_kernel {
        true => format!(
            "left: process {pid} waits inside the kernel for an operation of the trial, where nothing can end it: it ends with that operation"
        ),
        false => format!("left: process {pid} of the trial has not ended yet"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    #[test]
    fn what_a_trial_has_started_is_found_without_who_puts_back() {
        let mut cat = Command::new("cat");
        let mut probe = cat.stdin(Stdio::piped()).spawn().unwrap();
        let mut guard = cat.process_group(0).spawn().unwrap();
        let all = started();
        assert!(all.contains(&probe.id()), "{all:?}");
        assert!(!all.contains(&guard.id()), "{all:?}");
        drop(probe.stdin.take());
        // It is known to have ended, and nobody has waited for it.
        while !ProcessStat::of(probe.id()).unwrap().has_ended() {
            wait(0.01);
        }
        assert!(!started().contains(&probe.id()));
        drop(guard.stdin.take());
        guard.wait().unwrap();
        probe.wait().unwrap();
    }

    #[test]
    fn only_who_waits_in_the_kernel_is_said_to() {
        let threads = |states: &str| {
            let of = |state| ProcessStat {
                state,
                parent: 1,
                group: 1,
                started: 1,
            };
            states.chars().map(of).collect::<Vec<_>>()
        };
        let told = |states| left_as(7, &threads(states));
        assert_eq!((told(""), told("Z"), told("ZX")), (None, None, None));
        let in_the_kernel = told("ZD").unwrap();
        assert_eq!(told("SD").as_ref(), Some(&in_the_kernel));
        assert!(
            in_the_kernel.starts_with("left: process 7 waits inside the kernel "),
            "{in_the_kernel}"
        );
        let not_yet = told("ZS").unwrap();
        assert_eq!(not_yet, "left: process 7 of the trial has not ended yet");
    }

    #[test]
    fn who_does_not_end_is_told_of_and_who_does_is_not() {
        let cat = || {
            let mut cat = Command::new("cat");
            cat.stdin(Stdio::piped()).spawn().unwrap()
        };
        let (mut trial, mut probe) = (cat(), cat());
        let of = |child: &Child| {
            format!(
                "left: process {} of the trial has not ended yet",
                child.id()
            )
        };
        let both = vec![of(&trial), of(&probe)];
        let started = vec![probe.id()];
        assert_eq!(left(&mut trial, started.clone()), both);
        drop(trial.stdin.take());
        assert_eq!(left(&mut trial, started.clone()), [of(&probe)]);
        drop(probe.stdin.take());
        assert_eq!(left(&mut trial, started), [""; 0]);
        probe.wait().unwrap();
    }
}
