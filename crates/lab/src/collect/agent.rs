//! The collectors of another machine.
//!
//! A program there ([`answer`]) reads its sources whenever it is asked, and is asked by ours ([`Agent`]) over the standard input and
//! output that ssh passes on. So all samples are on one clock, that of who asks, up to the time of the way.

use super::host::Host;
use super::lustre::KernelLustre;
use super::sampler::{Reading, Source};
use crate::clock;
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long an agent may take to answer before its machine counts as gone: its first answer comes after ssh has connected.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// One answer, a line of JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Answer {
    readings: Vec<Reading>,
    missing: Vec<String>,
}

/// Answers each line of `asked` with what `sources` read then, until it ends.
pub fn answer(
    mut sources: Vec<Box<dyn Source>>,
    asked: impl BufRead,
    mut to: impl Write,
) -> io::Result<()> {
    for line in asked.lines() {
        line?;
        let mut out = Answer::default();
        for s in &mut sources {
            let (name, mut missing) = (s.name(), vec![]);
            for r in s.read(&mut missing) {
                out.readings.push(Reading {
                    name: format!("{name}/{}", r.name),
                    ..r
                });
            }
            out.missing
                .extend(missing.iter().map(|m| format!("{name}: {m}")));
        }
        writeln!(to, "{}", serde_json::to_string(&out)?)?;
        to.flush()?;
    }
    Ok(())
}

/// What there is to sample of this machine, besides processes that one would have to name.
pub fn of_machine() -> Vec<Box<dyn Source>> {
    let mut sources: Vec<Box<dyn Source>> = vec![Box::new(Host::new(true))];
    let lustre = KernelLustre::under(Path::new("/"));
    if lustre.is_there() {
        sources.push(Box::new(lustre));
    }
    sources
}

/// An agent on another machine; it ends with this.
pub(crate) struct Agent {
    name: String,
    child: Child,
    ask: UnixStream,
    answers: mpsc::Receiver<String>,
    /// Set once, when it answers no longer: why.
    gone: Arc<OnceLock<String>>,
}

impl Agent {
    /// Starts it by `command`, as `ssh HOST coral lab agent`. `gone` is told when it goes away.
    pub(crate) fn start(
        name: &str,
        command: &mut Command,
        gone: Arc<OnceLock<String>>,
    ) -> io::Result<Agent> {
        // A pair of sockets: a write to one that nobody reads is an error there, and no signal that would end this program.
        let (ask, asked) = UnixStream::pair()?;
        let mut child = command
            .stdin(OwnedFd::from(asked))
            .stdout(Stdio::piped())
            .spawn()?;
        // The command holds the other end of the sockets, and its last copy goes with the process.
        command.stdin(Stdio::null());
        let said = child.stdout.take();
        let said = said.ok_or_else(|| io::Error::other("a pipe is missing"))?;
        let (tx, answers) = mpsc::channel();
        clock::spawn("lab-agent", move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if tx.send(line).is_err() {
                    break;
                }
            }
        })?;
        Ok(Agent {
            name: name.to_owned(),
            child,
            ask,
            answers,
            gone,
        })
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let ended = "its agent has ended".to_owned();
        send(&self.ask, b"\n", SendFlags::NOSIGNAL).map_err(|_| ended.clone())?;
        let line = match self.answers.recv_timeout(ANSWER_LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return Err(ended),
            Err(RecvTimeoutError::Timeout) => {
                let limit = ANSWER_LIMIT.as_secs();
                return Err(format!("its agent has not answered for {limit} s"));
            }
        };
        serde_json::from_str(&line).map_err(|e| format!("odd answer of its agent: {e}"))
    }
}

impl Source for Agent {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading> {
        if self.gone.get().is_some() {
            return vec![];
        }
        match self.answer() {
            Ok(a) => {
                missing.extend(a.missing);
                a.readings
            }
            Err(why) => {
                let why = format!("the host {} went away: {why}", self.name);
                missing.push(why.clone());
                let _ = self.gone.set(why);
                vec![]
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl Source for One {
        fn name(&self) -> String {
            "host".into()
        }

        fn read(&mut self, missing: &mut Vec<String>) -> Vec<Reading> {
            missing.push("a file".into());
            vec![Reading::counter("ticks", "1", 7.0)]
        }
    }

    #[test]
    fn every_line_is_answered() {
        let mut out = vec![];
        answer(vec![Box::new(One)], &b"\n\n"[..], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let answers: Vec<Answer> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(answers.len(), 2);
        assert_eq!(
            answers[1].readings,
            [Reading::counter("host/ticks", "1", 7.0)]
        );
        assert_eq!(answers[1].missing, ["host: a file"]);
    }

    #[test]
    fn an_agent_that_ends_is_told_once() {
        let gone = Arc::new(OnceLock::new());
        let once = "read _; echo '{\"readings\":[{\"name\":\"host/x\",\"unit\":\"1\",\"value\":3.0,\"counter\":false}],\"missing\":[]}'";
        let mut sh = Command::new("sh");
        let mut agent = Agent::start("anna", sh.args(["-c", once]), gone.clone()).unwrap();
        let mut missing = vec![];
        assert_eq!(
            agent.read(&mut missing),
            [Reading::gauge("host/x", "1", 3.0)]
        );
        assert!(missing.is_empty() && gone.get().is_none());
        assert!(agent.read(&mut missing).is_empty() && agent.read(&mut missing).is_empty());
        assert_eq!(missing, ["the host anna went away: its agent has ended"]);
        assert_eq!(gone.get(), missing.first());
    }
}
