//! Running in the background: the command starts itself again, waits until the new process says it is ready
//! (or why it is not), and leaves it.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::set_parent_process_death_signal;

/// The environment variable that names the descriptor on which the background process reports.
const READY_FD: &str = "CORAL_READY_FD";

/// What the background process reports: notes, then one of the others.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Report {
    Note(String),
    Ready(String),
    /// As `Ready`, but something is missing.
    Degraded(String),
    Failed(String),
}

/// What a background process said when it was ready.
pub(crate) struct Started {
    pub(crate) text: String,
    /// It runs without something that is missing.
    pub(crate) degraded: bool,
}

impl Started {
    fn new(text: String, degraded: bool) -> Started {
        // it goes on, whoever reads what is said of it
        end_with_closed_pipe();
        Started { text, degraded }
    }
}

/// Starts this command again with the same arguments plus `--foreground`, its log in `log`.
/// Returns what it printed when ready.
pub(crate) fn start(log: &Path) -> Result<Started, String> {
    let mut own = std::env::args_os();
    // The name it is called by picks the command.
    let name = own.next().unwrap_or_else(|| "coral".into());
    spawn(name, own, log)
}

/// As [`start`], with other arguments: those of `coral`, whatever name this process was called by.
pub(crate) fn start_as(args: impl Iterator<Item = OsString>, log: &Path) -> Result<String, String> {
    spawn("coral".into(), args, log).map(|started| started.text)
}

#[allow(
    unsafe_code,
    reason = "a descriptor and a session of its own are handed to the child"
)]
fn spawn(
    name: OsString,
    args: impl Iterator<Item = OsString>,
    log: &Path,
) -> Result<Started, String> {
    // Closed in other programs, or the child would hold the end it is heard at.
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| format!("pipe: {e}"))?;
    let log_file = match OpenOptions::new().create(true).append(true).open(log) {
        Ok(file) => file,
        // no inode left for it: files are to be removed all the same
        Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
            eprintln!(
                "coral: cannot write the log '{}': {e}; going on without",
                log.display()
            );
            OpenOptions::new()
                .write(true)
                .open("/dev/null")
                .map_err(|e| format!("/dev/null: {e}"))?
        }
        Err(e) => return Err(format!("cannot write the log '{}': {e}", log.display())),
    };
    let errors = log_file.try_clone().map_err(|e| e.to_string())?;
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let fd = write.as_raw_fd();
    let mut command = Command::new(exe);
    command
        .arg0(name)
        .args(args)
        .arg("--foreground")
        .env(READY_FD, fd.to_string());
    command.stdin(Stdio::null()).stdout(log_file).stderr(errors);
    let parent = std::process::id();
    // SAFETY: setsid, prctl, getppid and fcntl are async-signal-safe, and the descriptor is open in the child.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            // Ctrl-C at the command that waits is meant for the one it waits for.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT);
            if libc::getppid().cast_unsigned() != parent {
                // it came before that
                return Err(std::io::Error::from_raw_os_error(libc::EINTR));
            }
            if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut child = command
        .spawn()
        .map_err(|e| format!("cannot start in the background: {e}"))?;
    drop(write);
    for line in BufReader::new(File::from(read)).lines() {
        match line.ok().and_then(|l| serde_json::from_str(&l).ok()) {
            Some(Report::Note(text)) => eprintln!("coral: {text}"),
            Some(Report::Ready(text)) => return Ok(Started::new(text, false)),
            Some(Report::Degraded(text)) => return Ok(Started::new(text, true)),
            Some(Report::Failed(why)) => {
                let _ = child.wait();
                return Err(why);
            }
            None => break,
        }
    }
    let status = child.wait().map(|s| s.to_string()).unwrap_or_default();
    Err(format!(
        "the background process ended before it was ready ({status}); see '{}'",
        log.display()
    ))
}

/// A command whose output nobody reads any more ends quietly, as others do.
#[allow(
    unsafe_code,
    reason = "there is no safe way to set a signal's default action"
)]
pub(crate) fn end_with_closed_pipe() {
    // SAFETY: the default action is no handler, and nothing else in a command that only asks and prints sets one.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// The side of the background process.
pub(crate) struct Reporter(Option<File>);

impl Reporter {
    /// Takes the descriptor handed over by [`start`], if this process was started by it.
    #[allow(
        unsafe_code,
        reason = "a descriptor and a session of its own are handed to the child"
    )]
    pub(crate) fn from_env() -> Reporter {
        let fd = std::env::var(READY_FD)
            .ok()
            .and_then(|v| v.parse::<i32>().ok());
        // SAFETY: the descriptor was inherited for this purpose alone, and nothing else in this process knows it.
        Reporter(fd.map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Says that all is up; `text` is for the user. An error: who asked for it has gone.
    pub(crate) fn ready(&mut self, text: &str) -> Result<(), String> {
        self.up(Report::Ready(text.to_owned()), text)
    }

    /// Says that all but what is missing is up.
    pub(crate) fn degraded(&mut self, text: &str) -> Result<(), String> {
        self.up(Report::Degraded(text.to_owned()), text)
    }

    fn up(&mut self, report: Report, text: &str) -> Result<(), String> {
        let Some(mut pipe) = self.0.take() else {
            let _ = writeln!(std::io::stdout(), "{text}");
            return Ok(());
        };
        let _ = set_parent_process_death_signal(None);
        send(&mut pipe, &report).map_err(|_| "interrupted before it was ready".to_owned())
    }

    /// Says something while the user waits.
    pub(crate) fn note(&mut self, text: &str) {
        match &mut self.0 {
            Some(pipe) => drop(send(pipe, &Report::Note(text.to_owned()))),
            None => eprintln!("coral: {text}"),
        }
    }

    /// Says why it did not start.
    pub(crate) fn failed(&mut self, why: &str) {
        match self.0.take() {
            Some(mut pipe) => drop(send(&mut pipe, &Report::Failed(why.to_owned()))),
            None => eprintln!("coral: {why}"),
        }
    }
}

fn send(pipe: &mut File, report: &Report) -> std::io::Result<()> {
    writeln!(pipe, "{}", serde_json::to_string(report)?)
}
