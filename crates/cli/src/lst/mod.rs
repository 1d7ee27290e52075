//! `lst`: LNet self-test, with the kernel tool's grammar and output (`lnet/utils/lst.c`).
//!
//! The kernel keeps a console's session between two calls of its `lst`; here a background process does, one per session key
//! (environment variable LST_SESSION, as with the kernel's): `new_session` starts it, `end_session` ends it, and so does its
//! own idle timeout. Every other command is sent to it and runs there; [`socket`] is the way between.
//!
//! Ours alone: `lst serve` (a bare node that serves self-tests) and `lst quick`.

mod commands;
mod console;
mod node;
mod options;
mod quick;
mod serve;
mod session;
mod show;
mod socket;
mod stat;

use std::ffi::OsString;
use std::process::ExitCode;

/// Why a command did not do all it was asked: what is printed on standard error.
#[derive(Debug)]
pub(crate) struct Failed(pub String);

impl<E: std::fmt::Display> From<E> for Failed {
    fn from(e: E) -> Failed {
        Failed(e.to_string())
    }
}

/// Commands the console's process runs, with their usage.
const COMMANDS: &[(&str, &str)] = &[
    ("end_session", ""),
    ("show_session", ""),
    (
        "ping",
        "[--session] [--group NAME] [--batch NAME [--server]] [--nodes NIDS] [--timeout SECONDS]",
    ),
    ("add_group", "NAME NIDS [NIDS]..."),
    ("del_group", "NAME"),
    (
        "update_group",
        "NAME [--refresh] [--clean active|busy|down|unknown|invalid] [--remove NIDS]",
    ),
    (
        "list_group",
        "[--active] [--busy] [--down] [--unknown] [--all] [NAME]...",
    ),
    (
        "stat",
        "[--bw] [--rate] [--read] [--write] [--max] [--min] [--avg] [--mbs] [--timeout #] [--delay #] [--count #] NAME|NIDS...",
    ),
    ("show_error", "[--session] NAME|NIDS..."),
    ("add_batch", "NAME"),
    ("run", "[NAME]"),
    ("stop", "[--force] [NAME]"),
    (
        "list_batch",
        "[NAME] [--test #] [--server] [--active] [--invalid] [--all]",
    ),
    (
        "query",
        "[--test #] [--server] [--timeout #] [--loop #] [--delay #] [--active] [--idle] [--error] [--all] [NAME]",
    ),
    (
        "add_test",
        "[--batch NAME] [--loop #] [--concurrency #] [--distribute #:#] --from NAME --to NAME ping|brw [read|write] [check=simple|full|discard] [size=#[K|M]] [off=#]",
    ),
];

/// Usage of commands that need no console.
const OTHERS: &[(&str, &str)] = &[
    (
        "new_session",
        "[--timeout SECONDS] [--force] [--nid NID] [--port PORT] [--route ROUTE]... [--routes FILE] [--accept WHOSE] [NAME]",
    ),
    (
        "serve",
        "--nid NID [--port PORT] [--route ROUTE]... [--routes FILE] [--accept WHOSE]",
    ),
    (
        "quick",
        "[A B] [--time SECONDS] [--size #[K|M]] [--concurrency #] [--check none|simple|full] [--only ping|read|write] [--port PORT] [--nid NID] [--route ROUTE]... [--routes FILE] [--accept WHOSE] [--json]",
    ),
];

fn usage(command: &str) -> Option<String> {
    COMMANDS
        .iter()
        .chain(OTHERS)
        .find(|c| c.0 == command)
        .map(|(name, args)| format!("usage: lst {name} {args}").trim_end().to_owned())
}

/// Entry: the arguments after the program's name.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let mut words = Vec::new();
    for a in args {
        match a.into_string() {
            Ok(w) => words.push(w),
            Err(w) => return fail(&format!("'{}' is no text", w.to_string_lossy())),
        }
    }
    let Some(command) = words.first().cloned() else {
        print_help();
        return ExitCode::FAILURE;
    };
    let rest = words.split_off(1);
    if let Some(text) = usage(&command)
        && rest.iter().any(|w| w == "--help" || w == "-h")
    {
        println!("{text}");
        return ExitCode::SUCCESS;
    }
    let done = match command.as_str() {
        "help" | "--help" | "-h" => {
            print_help();
            Ok(0)
        }
        "new_session" => session::new(rest).map(|()| 0),
        "serve" => serve::run(rest).map(|()| 0),
        "quick" => quick::run(rest).map(|()| 0),
        // The background process itself.
        "console" => console::run(rest).map(|()| 0),
        c if COMMANDS.iter().any(|known| known.0 == c) => {
            crate::daemon::end_with_closed_pipe();
            socket::ask(&command, rest)
        }
        c => Err(Failed(format!(
            "there is no command '{c}': lst help lists them"
        ))),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Failed(why)) => fail(&why),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("lst: {why}");
    ExitCode::FAILURE
}

fn print_help() {
    println!("lst: LNet self-test. Commands:");
    for (name, args) in OTHERS.iter().chain(COMMANDS) {
        println!("  {name} {args}");
    }
    println!(
        "NIDS: a NID or a range as 10.0.0.[1-4/2,9]@tcp. LST_SESSION in the environment is the session's key, a number above 0."
    );
}

/// The session key from the environment.
fn key() -> Result<u32, Failed> {
    let key = std::env::var("LST_SESSION")
        .ok()
        .and_then(|v| v.parse().ok())
        .filter(|k| *k > 0);
    key.ok_or_else(|| {
        Failed(
            "Can't find env LST_SESSION or value is not valid: export LST_SESSION=$$ first".into(),
        )
    })
}
