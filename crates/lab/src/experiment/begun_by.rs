//! Whose a run is that goes on: the command that began it, which may be gone while what it started is still being ended.

use crate::entry::Owner;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A process, which no later one with the same pid is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunBy {
    process: Owner,
    /// When it was started, in ticks since the machine was.
    started: u64,
}

impl BegunBy {
    /// This process. None: its directory in /proc cannot be read.
    pub fn this() -> Option<BegunBy> {
        let process = Owner::here(std::process::id());
        let started = started(process.pid)?;
        Some(BegunBy { process, started })
    }

    /// It has ended. Of one that cannot be seen from here nothing is known.
    pub(super) fn is_gone(&self) -> bool {
        let is_seen = self.process.is_here() && Path::new("/proc/self").exists();
        is_seen && started(self.process.pid) != Some(self.started)
    }
}

/// As [`BegunBy::from_str`] reads it.
impl fmt::Display for BegunBy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { pid, inode } = self.process;
        write!(out, "{inode} {pid} {}", self.started)
    }
}

impl FromStr for BegunBy {
    type Err = ();

    fn from_str(text: &str) -> Result<BegunBy, ()> {
        let mut words = text.split_whitespace();
        let mut next = || words.next().and_then(|w| w.parse().ok()).ok_or(());
        let inode = next()?;
        let pid = u32::try_from(next()?).map_err(|_| ())?;
        Ok(BegunBy {
            process: Owner { pid, inode },
            started: next()?,
        })
    }
}

/// When a process was started that has not ended.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have spaces: the state, and nineteen fields later the time.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let at = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(at)
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
        for text in ["", "1 2", "1 -2 3", "1 2 x"] {
            assert_eq!(text.parse::<BegunBy>(), Err(()));
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(started(pid), None);
    }
}
