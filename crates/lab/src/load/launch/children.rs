//! Processes that a run has started: they are told why it is over, and waited for.

use super::force::LEAVE_LIMIT;
use super::{Duration, Ending, Failed, Meeting};
use crate::clock::now;
use crate::load::ending::FORCE_AFTER;
use crate::load::pulse::Process;
use crate::process_stat::ProcessStat;
use parking_lot::Mutex;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

/// Before the reason that other processes are told, where the run cannot go on and nobody has ended it from outside.
pub(super) const BROKEN: &str = "broken: ";

/// A process to start.
pub(super) struct Start {
    pub(super) command: Command,
    pub(super) ranks: Range<u32>,
    /// As in "the process of rank 1", "rank 1 on anna".
    pub(super) what: String,
    /// Where its ranks are on another host: it is the connection to that.
    pub(super) there: Option<There>,
}

/// Another host.
pub(super) struct There {
    pub(super) host: String,
    /// The program that runs a command there, with its arguments.
    pub(super) ssh: Vec<String>,
}

impl There {
    /// Runs a command of the host's shell there.
    pub(super) fn command(&self, line: &str) -> Command {
        let mut words = self.ssh.iter();
        let mut command = Command::new(words.next().map_or("ssh", String::as_str));
        command.args(words).arg(&self.host).arg(line);
        command
    }

    /// Ends a process by force; false where that could not be begun. It is not waited for: the connection of the process tells when it
    /// has ended.
    fn kill(&self, pid: u32) -> bool {
        let mut kill = self.command(&format!("kill -KILL {pid}"));
        let begun = kill.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        begun.is_ok()
    }
}

/// Processes that were started for a run, and what became of them.
pub(super) struct Children {
    running: Vec<Running>,
    failed: Mutex<Option<String>>,
    /// One that was killed: the others heard only that it is gone.
    killed: Mutex<Option<String>>,
}

struct Running {
    child: Mutex<Child>,
    ranks: Range<u32>,
    what: String,
    there: Option<There>,
    /// Processes there that were ended by force.
    killed_there: Mutex<Vec<u32>>,
}

/// How a process has ended.
enum End {
    /// With this code.
    Code(i32),
    /// It, or with a host the process there, was killed: in words.
    Killed(String),
    /// The connection to a host was: in words. Its ranks may go on.
    Cut(String),
    Unseen(io::Error),
}

impl Running {
    /// Says a line on its standard input. One that has ended already is noticed when it is waited for.
    fn tell(&self, line: &str) {
        if let Some(stdin) = &mut self.child.lock().stdin {
            let _ = writeln!(stdin, "{line}");
        }
    }

    fn ended(&self) -> Option<End> {
        let mut child = self.child.lock();
        let status = match child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status,
            Err(e) => return Some(End::Unseen(e)),
        };
        let code = status.code();
        Some(match (&self.there, code, code.and_then(killed_by)) {
            (None, Some(code), _) | (Some(_), Some(code), None) => End::Code(code),
            (None, None, _) => End::Killed(format!("{} ended by {status}", self.what)),
            (Some(there), None, _) => End::Cut(format!(
                "the connection to {} (its ssh, process {}) ended by {status}",
                there.host,
                child.id()
            )),
            (Some(_), Some(_), Some(status)) => {
                End::Killed(format!("the process of {} ended by {status}", self.what))
            }
        })
    }

    /// It was stopped, as by SIGSTOP, or a debugger holds it.
    fn is_stopped(&self) -> bool {
        let stat = ProcessStat::of(self.child.lock().id());
        stat.is_ok_and(|stat| matches!(stat.state, 'T' | 't'))
    }

    /// What stands still hears nothing, and would stay: it ends by force.
    fn kill_where_it_stands_still(&self, still: &[Process]) {
        match &self.there {
            None if self.is_stopped() => drop(self.child.lock().kill()),
            None => {}
            Some(there) => {
                let mut killed = self.killed_there.lock();
                let own = still.iter().filter(|p| self.ranks.contains(&p.ranks.start));
                for p in own {
                    if !killed.contains(&p.pid) && there.kill(p.pid) {
                        killed.push(p.pid);
                    }
                }
            }
        }
    }
}

/// A shell ends so where its command was killed. SIGINT and SIGTERM end a run in order, with such a code.
fn killed_by(code: i32) -> Option<ExitStatus> {
    let in_order = [libc::SIGINT, libc::SIGTERM];
    let signal = Some(code - 128).filter(|s| (1..=64).contains(s) && !in_order.contains(s));
    signal.map(ExitStatus::from_raw)
}

/// How often it is looked whether a process has ended.
const CHILD_LOOK: Duration = Duration::from_millis(10);
/// A connection to a host that ends before its ranks have left the run was cut. What they said may take so long.
const CUT_AFTER: Duration = Duration::from_millis(500);

/// The end of a run, as seen by whoever waits for its processes.
#[derive(Default)]
struct Course {
    code: u8,
    /// Since when the processes know that the run is over.
    told: Option<Instant>,
    /// Since when they are not waited for, after a failure.
    over: Option<Instant>,
    by_force: bool,
    /// Connections to hosts that have ended, since when, and how: ranks may be at work there.
    cut: Vec<(Range<u32>, Instant, String)>,
}

impl Children {
    pub(super) fn start(starts: Vec<Start>, token: &str) -> Result<Children, Failed> {
        let mut children = Children {
            running: Vec::new(),
            failed: Mutex::new(None),
            killed: Mutex::new(None),
        };
        for mut start in starts {
            let started = start.command.stdin(Stdio::piped()).spawn();
            let started = started.map(|mut child| {
                // Kept open: the process ends when this one does.
                // One that has ended already is noticed when it is waited for.
                if let Some(stdin) = &mut child.stdin {
                    let _ = writeln!(stdin, "{token}");
                }
                child
            });
            match started {
                Ok(child) => children.running.push(Running {
                    child: Mutex::new(child),
                    ranks: start.ranks,
                    what: start.what,
                    there: start.there,
                    killed_there: Mutex::default(),
                }),
                Err(e) => {
                    for r in &children.running {
                        let mut child = r.child.lock();
                        let _ = child.kill().and_then(|()| child.wait());
                    }
                    return Err(Failed::Apart(format!("cannot start {}: {e}", start.what)));
                }
            }
        }
        Ok(children)
    }

    /// Waits until all have ended; the greatest code. One that ends before it took part ends the run. They are told why the run is
    /// over, and have [`LEAVE_LIMIT`] to say what they did; where it was ended from outside, they may take as long as this process. Then
    /// they end with their standard input, after [`FORCE_AFTER`] by force. Those that stand still end by force after [`LEAVE_LIMIT`].
    pub(super) fn wait(&self, meeting: &Meeting, ending: &Ending) -> u8 {
        let mut course = Course::default();
        let mut left: Vec<&Running> = self.running.iter().collect();
        while !left.is_empty() || course.waits_for_cut(meeting, ending) {
            left.retain(|r| match r.ended() {
                Some(end) => {
                    self.has_ended(r, end, &mut course, meeting, ending);
                    false
                }
                None => true,
            });
            self.look_for_cut(&course, meeting, ending);
            if let Some(why) = meeting.broken() {
                let outside = ending.outside();
                let since = *course.told.get_or_insert_with(|| {
                    let line = match outside {
                        Some(why) => why.to_owned(),
                        None => format!("{BROKEN}{why}"),
                    };
                    left.iter().for_each(|r| r.tell(&line));
                    now()
                });
                if now().duration_since(since) >= LEAVE_LIMIT {
                    let still = meeting.still();
                    (self.running.iter()).for_each(|r| r.kill_where_it_stands_still(&still));
                    if outside.is_none() {
                        course.over.get_or_insert_with(now);
                    }
                }
            }
            ending.others_are(left.len());
            if let Some(since) = course.over.or(ending.given_up()) {
                course.by_force = now().duration_since(since) >= FORCE_AFTER;
                let still = meeting.still();
                for r in &self.running {
                    let mut child = r.child.lock();
                    drop(child.stdin.take());
                    // Nothing is done to one that has ended.
                    if course.by_force {
                        let _ = child.kill();
                    }
                    drop(child);
                    r.kill_where_it_stands_still(&still);
                }
            }
            crate::load::clock::sleep(CHILD_LOOK);
        }
        ending.others_are(0);
        meeting.close();
        course.code
    }

    fn has_ended(
        &self,
        r: &Running,
        end: End,
        course: &mut Course,
        meeting: &Meeting,
        ending: &Ending,
    ) {
        let (how, killed) = match end {
            End::Code(code) => {
                course.code = course.code.max(code.clamp(0, 255) as u8);
                (format!("with code {code}"), None)
            }
            End::Killed(how) => (how.clone(), Some(how)),
            End::Cut(how) => (how.clone(), Some(how)),
            End::Unseen(why) => (format!("unseen: {why}"), None),
        };
        // What has joined is missed by the hub when it goes without a farewell.
        if !meeting.missing(r.ranks.clone()).is_empty() {
            let why = match killed {
                Some(how) => format!("{how} before it took part"),
                None => format!("{} ended {how} before it took part", r.what),
            };
            // It may have said why.
            if meeting.broken().is_none() {
                meeting.break_up(&why);
                self.failed.lock().get_or_insert(why);
            }
            return;
        }
        if let Some(there) = &r.there {
            let cut = format!("the connection to {} (its ssh) ended {how}", there.host);
            course.cut.push((r.ranks.clone(), now(), cut));
        }
        if let Some(why) = killed.filter(|_| !course.by_force && ending.outside().is_none()) {
            self.is_killed(meeting, why);
        }
    }

    fn is_killed(&self, meeting: &Meeting, why: String) {
        meeting.break_up(&why);
        self.killed.lock().get_or_insert(why);
    }

    /// A host whose connection has ended while its ranks are in the run.
    fn look_for_cut(&self, course: &Course, meeting: &Meeting, ending: &Ending) {
        if meeting.broken().is_some() || ending.outside().is_some() {
            return;
        }
        let late = |since: Instant| now().duration_since(since) >= CUT_AFTER;
        let is_cut = |(ranks, since, _): &&(Range<u32>, Instant, String)| {
            late(*since) && meeting.are_here(ranks.clone())
        };
        if let Some((_, _, how)) = course.cut.iter().find(is_cut) {
            self.is_killed(meeting, how.clone());
        }
    }

    /// What a process did says more than that the meeting ended.
    pub(super) fn why(&self, heard: Failed) -> Failed {
        let killed = self.killed.lock().take();
        match (self.failed.lock().take(), killed, heard) {
            (Some(why), _, Failed::Apart(_)) => Failed::Apart(why),
            (_, Some(killed), Failed::Apart(heard)) if heard != killed => {
                Failed::Apart(format!("{heard}; {killed}"))
            }
            (_, _, heard) => heard,
        }
    }
}

impl Course {
    /// Ranks on a host without a connection are in the run still: they hear of its end by themselves, and say what they did.
    fn waits_for_cut(&self, meeting: &Meeting, ending: &Ending) -> bool {
        let may_take = match self.told {
            Some(since) if ending.outside().is_none() => {
                now().duration_since(since) < LEAVE_LIMIT + CUT_AFTER
            }
            _ => ending.given_up().is_none(),
        };
        may_take && (self.cut.iter()).any(|(ranks, ..)| meeting.are_here(ranks.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::path::Path;

    /// Processes of this one by that name, those that wait to be reaped too.
    fn of_name(name: &str) -> usize {
        let parent = format!(" {} ", std::process::id());
        let all = std::fs::read_dir("/proc").expect("listed").flatten();
        let stats = all.filter_map(|p| std::fs::read_to_string(p.path().join("stat")).ok());
        let found = stats.filter(|stat| {
            let after = stat.split_once(&format!("({name}) "));
            after.is_some_and(|(_, after)| after[1..].starts_with(&parent))
        });
        found.count()
    }

    #[test]
    fn nobody_is_left_where_another_cannot_be_started() {
        let dir = tempfile::tempdir().expect("a directory");
        // By its name it is told from what other tests start.
        let cat = dir.path().join("half-started");
        let which = Command::new("sh").args(["-c", "command -v cat"]).output();
        let found = String::from_utf8(which.expect("sh").stdout).expect("a path");
        std::os::unix::fs::symlink(found.trim(), &cat).expect("linked");
        let start = |program: &Path, what: &str| {
            let mut command = Command::new(program);
            // What has all programs in one asks for this one by its own name.
            command.arg0("cat");
            Start {
                command,
                ranks: 0..1,
                what: what.to_owned(),
                there: None,
            }
        };
        let mut seen = start(&cat, "").command;
        let seen = seen.stdin(Stdio::piped()).spawn();
        let mut seen = seen.expect("it starts");
        assert_eq!(of_name("half-started"), 1, "it is found by its name");
        drop(seen.stdin.take());
        seen.wait().expect("it ends");

        let none = dir.path().join("none");
        let starts = vec![start(&cat, "one"), start(&none, "another")];
        let why = Children::start(starts, "token")
            .err()
            .expect("there is none");
        assert!(
            why.to_string().starts_with("cannot start another: "),
            "{why}"
        );
        assert_eq!(of_name("half-started"), 0);
    }
}
