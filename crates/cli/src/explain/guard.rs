//! Putting back what a trial changed, also when the trial is killed.
//!
//! A process of its own holds the other end of a pipe. It is told of every change before that is made, and puts all of it back,
//! the last first, when the pipe ends: because the trial is over, or because its process is gone. It is in a process group of its
//! own, so that an interrupt at the terminal reaches the trial alone. Only when both are killed nothing is put back.
//!
//! It tells the trial what it does, and standard error where the trial is gone. Whoever reads that by a pipe would wait for this process:
//! then it is not told there.

use super::alone::Alone;
use super::wait;
use crate::control::Ask;
use crate::lnetctl::agent::{Act, LnetAsk};
use crate::lnetctl::find;
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Begins the name of the directory in which a trial makes files.
pub(super) const DIR_PREFIX: &str = ".coral-explain-";
/// What the process says of a change that it will put back.
const NOTED: &str = "noted";

/// Begins what the process says of what it could not put back.
const NOT_PUT_BACK: &str = "not put back: ";

/// What a trial says that has ended by itself: of one that was killed the last operation may still come to pass.
const ENDED: &str = "ended";
/// How often, and after how long each time, what such an operation has made is looked for.
const LATE_LOOKS: u32 = 3;
const LATE_S: f64 = 1.0;
/// How long it is waited until all is put back; it goes on in the background then.
const PUT_BACK_LIMIT: Duration = Duration::from_secs(20);

/// How something is put back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Undo {
    /// A parameter gets this value.
    Parameter {
        socket: PathBuf,
        name: String,
        value: String,
    },
    /// A router gets so many large buffers.
    RouterBuffers {
        socket: PathBuf,
        router: String,
        large: usize,
    },
    /// A directory of the trial's is removed with all in it, or a file.
    Remove { dir: PathBuf },
}

impl Undo {
    fn text(&self) -> String {
        match self {
            Undo::Parameter { name, value, .. } => format!("{name} = {value}"),
            Undo::RouterBuffers { router, large, .. } => {
                format!("{router} has {large} large buffers")
            }
            Undo::Remove { dir } => format!("'{}' is removed", dir.display()),
        }
    }

    fn apply(&self) -> Result<(), String> {
        let ask = |socket: &Path, what| {
            let answer = find::ask(socket, &what)?;
            answer["error"]
                .as_str()
                .map_or(Ok(()), |e| Err(e.to_owned()))
        };
        match self {
            Undo::Parameter {
                socket,
                name,
                value,
            } => ask(socket, json!(Ask::SetParam(name.clone(), value.clone()))),
            Undo::RouterBuffers {
                socket,
                router,
                large,
            } => ask(socket, buffers(router, *large)),
            Undo::Remove { dir } => remove(dir),
        }
    }
}

/// The request for so many large buffers of a router.
pub(super) fn buffers(router: &str, large: usize) -> serde_json::Value {
    let act = Act::Pools {
        tiny: None,
        small: None,
        large: Some(large),
    };
    json!({ "lnet": LnetAsk { node: Some(router.to_owned()), act } })
}

fn remove(dir: &Path) -> Result<(), String> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(DIR_PREFIX) {
        return Err(format!("'{}' is no directory of a trial", dir.display()));
    }
    let removed = match dir.is_file() {
        true => std::fs::remove_file(dir),
        false => std::fs::remove_dir_all(dir),
    };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("'{}': {e}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// The process that puts back, as the trial sees it.
pub(super) struct Guard {
    child: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl Guard {
    /// Starts it. It keeps the locks until all is put back.
    pub(super) fn start(alone: &Alone) -> Result<Guard, String> {
        let failed = |e: std::io::Error| format!("the process that puts changes back: {e}");
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command
            .args(["explain", "--put-back"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        if is_read_to_its_end(std::io::stderr()) {
            command.stderr(Stdio::null());
        }
        let started = alone.shared_with(|| command.spawn());
        let mut child = started.map_err(failed)?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = from.ok_or("the process that puts changes back has no output")?;
        Ok(Guard {
            child,
            to,
            from: BufReader::new(from).lines(),
        })
    }

    /// Tells how a change is put back, before it is made.
    pub(super) fn note(&mut self, undo: &Undo) -> Result<(), String> {
        let gone =
            || "the process that puts changes back has ended: nothing was changed".to_owned();
        let mut to = self.to.as_ref().ok_or_else(gone)?;
        writeln!(to, "{}", json!(undo)).map_err(|_| gone())?;
        match self.from.next() {
            Some(Ok(line)) if line == NOTED => Ok(()),
            _ => Err(gone()),
        }
    }

    /// Has all put back; a line about each, or what failed. Where that takes long, as the removal of files does behind a queue, the
    /// process goes on by itself.
    #[expect(
        clippy::disallowed_methods,
        reason = "a command of one thread, which does not wait for ever"
    )]
    pub(super) fn put_back(mut self) -> Result<Vec<String>, String> {
        if let Some(mut to) = self.to.take() {
            // Where it is gone, that is told below.
            let _ = writeln!(to, "{ENDED}");
        }
        let pid = self.child.id();
        let (done, told) = mpsc::channel();
        std::thread::spawn(move || {
            let said: Vec<String> = self.from.by_ref().map_while(Result::ok).collect();
            let _ = done.send((self.child.wait(), said));
        });
        match told.recv_timeout(PUT_BACK_LIMIT) {
            Ok((Ok(status), said)) if status.success() => Ok(said),
            Ok((_, said)) => Err(what_is_not(&said)),
            Err(_) => Ok(vec![format!(
                "not all is put back after {} s: process {pid} goes on with it in the background",
                PUT_BACK_LIMIT.as_secs()
            )]),
        }
    }
}

/// Of what the process has said, what is not put back.
fn what_is_not(said: &[String]) -> String {
    let failed = said.iter().filter_map(|l| l.strip_prefix(NOT_PUT_BACK));
    let failed: Vec<&str> = failed.collect();
    match failed.is_empty() {
        true => "the process that puts changes back has ended: look whether all that was changed is as it was".to_owned(),
        false => format!("{NOT_PUT_BACK}{}", failed.join("; ")),
    }
}

/// Whoever reads there waits until nobody has it open any more.
fn is_read_to_its_end(file: impl AsFd) -> bool {
    let kind = fstat(file).map(|s| FileType::from_raw_mode(s.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Until it is dropped the signals do nothing that end a session or what runs in it: the trial hears of them, and then all is put back.
fn unmoved() -> Result<(Runtime, Vec<Signal>), String> {
    let failed = |e: std::io::Error| format!("signals: {e}");
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().build().map_err(failed)?;
    let inside = runtime.enter();
    let kinds = [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
    ];
    let heard: std::io::Result<Vec<Signal>> = kinds.into_iter().map(signal).collect();
    drop(inside);
    Ok((runtime, heard.map_err(failed)?))
}

/// A line for the trial; where that is gone, for standard error.
fn tell(line: &str) {
    if writeln!(std::io::stdout().lock(), "{line}").is_err() {
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

/// The process itself: `coral explain --put-back`.
pub(super) fn serve() -> Result<ExitCode, String> {
    let _unmoved = unmoved()?;
    let mut all: Vec<Undo> = Vec::new();
    let mut has_ended = false;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == ENDED {
            has_ended = true;
            continue;
        }
        let undo = serde_json::from_str(&line).map_err(|e| format!("'{line}': {e}"))?;
        all.push(undo);
        // Where nobody listens any more there is nobody left to make the change.
        let _ = writeln!(std::io::stdout().lock(), "{NOTED}");
    }
    let mut failed = Vec::new();
    for undo in all.iter().rev() {
        match undo.apply() {
            Ok(()) => tell(&format!("put back: {}", undo.text())),
            Err(e) => failed.push((undo, e)),
        }
    }
    let made = all.iter().filter(|u| matches!(u, Undo::Remove { .. }));
    let made: Vec<&Undo> = made.collect();
    for _ in 0..if has_ended || made.is_empty() {
        0
    } else {
        LATE_LOOKS
    } {
        wait(LATE_S);
        failed.retain(|f: &(&Undo, String)| !matches!(f.0, Undo::Remove { .. }));
        let again = made.iter().rev().map(|u| (*u, u.apply()));
        failed.extend(again.filter_map(|(u, r)| Some((u, r.err()?))));
    }
    for (undo, e) in &failed {
        tell(&format!("{NOT_PUT_BACK}{}: {e}", undo.text()));
    }
    Ok(match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_put_back_is_told_without_the_rest() {
        let said =
            |lines: &[&str]| what_is_not(&lines.iter().map(|l| l.to_string()).collect::<Vec<_>>());
        let failed = said(&[
            "put back: a = 1",
            "not put back: b = 2: gone",
            "not put back: c = 3: gone",
        ]);
        assert_eq!(failed, "not put back: b = 2: gone; c = 3: gone");
        assert!(said(&["put back: a = 1"]).contains(" has ended: look whether "));
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_a_file_is_not() {
        let (from, to) = std::io::pipe().unwrap();
        assert!(is_read_to_its_end(&to) && is_read_to_its_end(&from));
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(is_read_to_its_end(&one));
        assert!(!is_read_to_its_end(tempfile::tempfile().unwrap()));
    }

    #[test]
    fn only_directories_of_a_trial_are_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let (own, other) = (tmp.path().join(".coral-explain-7"), tmp.path().join("data"));
        for d in [&own, &other] {
            std::fs::create_dir(d).unwrap();
            std::fs::write(d.join("f"), "x").unwrap();
        }
        let undo = |dir: &PathBuf| Undo::Remove { dir: dir.clone() }.apply();
        assert_eq!(undo(&own), Ok(()));
        assert_eq!(undo(&own), Ok(()), "it is gone already");
        let file = tmp.path().join(".coral-explain-7-0");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(undo(&file), Ok(()));
        assert!(!file.exists());
        assert!(
            undo(&other)
                .unwrap_err()
                .contains("no directory of a trial")
        );
        assert!(other.join("f").exists());
        let undo = Undo::Parameter {
            socket: "/s".into(),
            name: "n".into(),
            value: "1".into(),
        };
        let text = json!(undo).to_string();
        assert_eq!(serde_json::from_str::<Undo>(&text).unwrap(), undo);
    }
}
