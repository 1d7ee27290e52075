//! Whose a run is that goes on: the command that began it, which may be gone while what it started is still being ended.

use crate::entry::Owner;
use crate::process_stat::ProcessStat;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;

/// A process, which no later one with the same pid is taken for, and none of another machine: the first PID namespace has the same
/// inode everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunBy {
    /// Of the machine, which gets another one each time it starts.
    boot: u128,
    process: Owner,
    /// When it was started, in ticks since the machine was.
    started: u64,
}

impl BegunBy {
    /// This process. None: its directory in /proc cannot be read.
    pub fn this() -> Option<BegunBy> {
        let process = Owner::here(std::process::id());
        Some(BegunBy {
            boot: boot()?,
            process,
            started: ProcessStat::of(process.pid).ok()?.started,
        })
    }

    /// It has ended. Of one that cannot be seen from here nothing is known.
    pub(super) fn is_gone(&self) -> bool {
        let is_seen =
            boot() == Some(self.boot) && self.process.is_here() && Path::new("/proc/self").exists();
        is_seen && !self.is_there()
    }

    fn is_there(&self) -> bool {
        match ProcessStat::of(self.process.pid) {
            Ok(stat) => !stat.has_ended() && stat.started == self.started,
            // /proc may hide processes of other users.
            Err(e) => e.kind() != ErrorKind::NotFound || is_of_another_user(self.process.pid),
        }
    }
}

fn is_of_another_user(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM))
}

/// What tells this start of this machine from all others.
fn boot() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// As [`BegunBy::from_str`] reads it.
impl fmt::Display for BegunBy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { pid, inode } = self.process;
        write!(out, "{:032x} {inode} {pid} {}", self.boot, self.started)
    }
}

impl FromStr for BegunBy {
    type Err = ();

    fn from_str(text: &str) -> Result<BegunBy, ()> {
        let mut words = text.split_whitespace();
        let boot = words.next().ok_or(())?;
        let boot = u128::from_str_radix(boot, 16).map_err(|_| ())?;
        let mut next = || words.next().and_then(|w| w.parse().ok()).ok_or(());
        let inode = next()?;
        let pid = u32::try_from(next()?).map_err(|_| ())?;
        Ok(BegunBy {
            boot,
            process: Owner { pid, inode },
            started: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_gone_when_it_has_ended_or_another_has_its_pid() {
        let own = BegunBy::this().unwrap();
        assert_eq!(own.to_string().parse(), Ok(own));
        assert!(!own.is_gone());
        let later = BegunBy {
            started: own.started + 1,
            ..own
        };
        assert!(later.is_gone());
        let mut elsewhere = later;
        elsewhere.process.inode += 1;
        assert!(!elsewhere.is_gone(), "nobody knows");
        let on_another_machine = BegunBy {
            boot: later.boot ^ 1,
            ..later
        };
        assert!(!on_another_machine.is_gone(), "nobody knows");
        // The last but one is what an earlier version says.
        for text in ["", "1 1 2", "1 1 -2 3", "4026531836 1 2", "1 1 2 x"] {
            assert_eq!(text.parse::<BegunBy>(), Err(()));
        }
    }

    #[test]
    fn a_child_is_gone_when_it_has_ended() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let process = Owner::here(child.id());
        let begun_by = BegunBy {
            process,
            started: ProcessStat::of(process.pid).unwrap().started,
            ..BegunBy::this().unwrap()
        };
        assert!(!begun_by.is_gone());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(begun_by.is_gone());
    }
}
