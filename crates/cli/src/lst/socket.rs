//! The way from an `lst` command to the console's process: a socket per session key, readable by its owner alone.
//!
//! The command sends one JSON line (its words); the console answers with lines for standard output and standard error as
//! they come, and at last the exit code. When the command goes away, what it began ends with its next line.

use super::Failed;
use crate::control::{self, Line};
use crate::rundir;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;

/// Longest command, bytes: room for many NID ranges.
pub(crate) const COMMAND_MAX_BYTES: u64 = 1 << 20;

/// A command's words.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Words {
    pub command: String,
    pub args: Vec<String>,
}

/// One answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// For standard output.
    Out(String),
    /// For standard error.
    Err(String),
    /// The exit code: all is said.
    Exit(u8),
}

/// The socket of the console with this key. Makes its directory, which no other user may own.
pub(crate) fn path(key: u32) -> Result<PathBuf, Failed> {
    let dir = rundir::named("coral-lst", &std::env::temp_dir());
    rundir::private(&dir).map_err(Failed)?;
    Ok(dir.join(format!("{key}.sock")))
}

/// Whether a console with this key runs.
pub(crate) fn exists(key: u32) -> Result<bool, Failed> {
    match control::connect(&path(key)?, control::CONNECT_LIMIT) {
        Ok(_) => Ok(true),
        // One that is stopped takes no more connections at some time.
        Err(e) => Ok(e.kind() == ErrorKind::WouldBlock),
    }
}

/// Has the console of our session run a command, prints what it says, and gives the exit code.
pub(crate) fn ask(command: &str, args: Vec<String>) -> Result<u8, Failed> {
    let key = super::key()?;
    let mut line = Line::open(&path(key)?).map_err(|e| match e.kind() {
        ErrorKind::TimedOut => Failed(e.to_string()),
        _ => Failed("No session exists: lst new_session makes one".into()),
    })?;
    let words = Words {
        command: command.to_owned(),
        args,
    };
    line.say(&serde_json::to_string(&words)?)?;
    loop {
        // What it does may take long.
        let answer = line.next(Duration::MAX)?;
        if answer.is_empty() {
            return Err(Failed(
                "the console's process went away before it answered".into(),
            ));
        }
        match serde_json::from_str(&answer)? {
            Answer::Out(text) => print_or_stop(&text)?,
            Answer::Err(text) => eprintln!("{text}"),
            Answer::Exit(code) => return Ok(code),
        }
    }
}

/// Prints a line; a closed pipe is an error and no panic.
fn print_or_stop(text: &str) -> Result<(), Failed> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Where a command's lines go.
pub(crate) struct Out(Sink);

enum Sink {
    Socket(OwnedWriteHalf),
    #[cfg(test)]
    Kept(Vec<String>),
}

impl Out {
    pub(crate) fn to(socket: OwnedWriteHalf) -> Out {
        Out(Sink::Socket(socket))
    }

    /// Keeps what is said, for tests.
    #[cfg(test)]
    pub(crate) fn kept() -> Out {
        Out(Sink::Kept(Vec::new()))
    }

    /// What was said; standard error begins with `!`.
    #[cfg(test)]
    pub(crate) fn take(&mut self) -> Vec<String> {
        match &mut self.0 {
            Sink::Kept(lines) => std::mem::take(lines),
            Sink::Socket(_) => Vec::new(),
        }
    }

    pub(crate) async fn say(&mut self, answer: Answer) -> Result<(), Failed> {
        match &mut self.0 {
            Sink::Socket(s) => {
                s.write_all(format!("{}\n", serde_json::to_string(&answer)?).as_bytes())
                    .await?
            }
            #[cfg(test)]
            Sink::Kept(lines) => lines.push(match answer {
                Answer::Out(t) => t,
                Answer::Err(t) => format!("!{t}"),
                Answer::Exit(c) => format!("exit {c}"),
            }),
        }
        Ok(())
    }

    /// A line for standard output.
    pub(crate) async fn out(&mut self, line: impl Into<String>) -> Result<(), Failed> {
        self.say(Answer::Out(line.into())).await
    }

    /// A line for standard error.
    pub(crate) async fn err(&mut self, line: impl Into<String>) -> Result<(), Failed> {
        self.say(Answer::Err(line.into())).await
    }
}
