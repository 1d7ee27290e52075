//! Whose a run is that goes on: the command that began it, which may be gone while what it started is still being ended.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;

/// A process, which no later one with the same pid is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Inode of its PID namespace: a pid of another one says nothing here.
    namespace: u64,
    pid: u32,
    /// When it was started, in ticks since the machine was.
    started: u64,
}

impl Owner {
    /// This process. None: its directory in /proc cannot be read.
    pub fn this() -> Option<Owner> {
        let pid = std::process::id();
        Some(Owner {
            namespace: namespace()?,
            pid,
            started: started(pid)?,
        })
    }

    /// It has ended. Of one that cannot be seen from here nothing is known.
    pub(super) fn is_gone(&self) -> bool {
        let is_here = namespace() == Some(self.namespace) && Path::new("/proc/self").exists();
        is_here && started(self.pid) != Some(self.started)
    }
}

/// As [`Owner::from_str`] reads it.
impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {}", self.namespace, self.pid, self.started)
    }
}

impl FromStr for Owner {
    type Err = ();

    fn from_str(text: &str) -> Result<Owner, ()> {
        let mut words = text.split_whitespace();
        let mut next = || words.next().and_then(|w| w.parse().ok()).ok_or(());
        Ok(Owner {
            namespace: next()?,
            pid: u32::try_from(next()?).map_err(|_| ())?,
            started: next()?,
        })
    }
}

fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|m| m.ino())
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
        let own = Owner::this().unwrap();
        assert_eq!(own.to_string().parse(), Ok(own));
        assert!(!own.is_gone());
        let later = Owner {
            started: own.started + 1,
            ..own
        };
        assert!(later.is_gone());
        let elsewhere = Owner {
            namespace: own.namespace + 1,
            ..later
        };
        assert!(!elsewhere.is_gone(), "nobody knows");
        for text in ["", "1 2", "1 -2 3", "1 2 x"] {
            assert_eq!(text.parse::<Owner>(), Err(()));
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(started(pid), None);
    }
}
