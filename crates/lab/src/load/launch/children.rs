//! Processes that a run has started: they are told why it is over, and waited for.

use super::force::LEAVE_LIMIT;
use super::{Duration, Ending, Failed, Meeting};
use crate::clock::now;
use crate::load::ending::FORCE_AFTER;
use parking_lot::Mutex;
use std::io::Write;
use std::ops::Range;
use std::process::{Child, Command, Stdio};

/// Before the reason that other processes are told, where the run cannot go on and nobody has ended it from outside.
pub(super) const BROKEN: &str = "broken: ";

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
}

impl Running {
    /// Says a line on its standard input. One that has ended already is noticed when it is waited for.
    fn tell(&self, line: &str) {
        if let Some(stdin) = &mut self.child.lock().stdin {
            let _ = writeln!(stdin, "{line}");
        }
    }
}

/// How often it is looked whether a process has ended.
const CHILD_LOOK: Duration = Duration::from_millis(10);

impl Children {
    pub(super) fn start(
        starts: Vec<(Command, Range<u32>, String)>,
        token: &str,
    ) -> Result<Children, Failed> {
        let mut children = Children {
            running: Vec::new(),
            failed: Mutex::new(None),
            killed: Mutex::new(None),
        };
        for (mut command, ranks, what) in starts {
            let started = command.stdin(Stdio::piped()).spawn().map(|mut child| {
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
                    ranks,
                    what,
                }),
                Err(e) => {
                    for r in &children.running {
                        let mut child = r.child.lock();
                        let _ = child.kill().and_then(|()| child.wait());
                    }
                    return Err(Failed::Apart(format!("cannot start {what}: {e}")));
                }
            }
        }
        Ok(children)
    }

    /// Waits until all have ended; the greatest code. One that ends before it took part ends the run. They are told why the run is
    /// over, and have [`LEAVE_LIMIT`] to say what they did; where it was ended from outside, they may take as long as this process. Then
    /// they end with their standard input, after [`FORCE_AFTER`] by force.
    pub(super) fn wait(&self, meeting: &Meeting, ending: &Ending) -> u8 {
        let (mut code, mut told, mut over, mut by_force) = (0, None, None, false);
        let mut left: Vec<&Running> = self.running.iter().collect();
        while !left.is_empty() {
            left.retain(|r| {
                let mut killed = false;
                let ended = match r.child.lock().try_wait() {
                    Ok(None) => return true,
                    Ok(Some(status)) => match status.code() {
                        Some(c) => {
                            code = code.max(c.clamp(0, 255) as u8);
                            format!("with code {c}")
                        }
                        None => {
                            killed = true;
                            format!("by {status}")
                        }
                    },
                    Err(e) => format!("unseen: {e}"),
                };
                // What has joined is missed by the hub when it goes without a farewell.
                if !meeting.missing(r.ranks.clone()).is_empty() {
                    let why = format!("{} ended {ended} before it took part", r.what);
                    // It may have said why.
                    if meeting.broken().is_none() {
                        meeting.break_up(&why);
                        self.failed.lock().get_or_insert(why);
                    }
                } else if killed && !by_force && ending.outside().is_none() {
                    let why = format!("{} ended {ended}", r.what);
                    meeting.break_up(&why);
                    self.killed.lock().get_or_insert(why);
                }
                false
            });
            if let Some(why) = meeting.broken() {
                let outside = ending.outside();
                let since = *told.get_or_insert_with(|| {
                    let line = match outside {
                        Some(why) => why.to_owned(),
                        None => format!("{BROKEN}{why}"),
                    };
                    left.iter().for_each(|r| r.tell(&line));
                    now()
                });
                if outside.is_none() && now().duration_since(since) >= LEAVE_LIMIT {
                    over.get_or_insert_with(now);
                }
            }
            ending.others_are(left.len());
            if let Some(since) = over.or(ending.given_up()) {
                by_force = now().duration_since(since) >= FORCE_AFTER;
                for r in &left {
                    let mut child = r.child.lock();
                    drop(child.stdin.take());
                    if by_force {
                        let _ = child.kill();
                    }
                }
            }
            crate::load::clock::sleep(CHILD_LOOK);
        }
        ending.others_are(0);
        code
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
            (command, 0..1, what.to_owned())
        };
        let mut seen = start(&cat, "").0;
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
