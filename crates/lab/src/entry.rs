//! The entry of a Coral process in the directory where others of its user find it: `PID-NAMESPACE.d`, with a control socket in it,
//! or `PID-NAMESPACE.sock`, a link to one elsewhere. Containers may share the directory, and number their processes alike: so the
//! inode of the PID namespace is part of the name.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The process whose entry it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number in its PID namespace.
    pub pid: u32,
    /// Of the PID namespace.
    pub inode: u64,
}

impl Owner {
    /// The one whose names are the longest: with the largest number that Linux gives, and the largest inode of a namespace.
    pub const LONGEST: Owner = Owner {
        pid: 1 << 22,
        inode: u32::MAX as u64,
    };

    /// The process with that number in the PID namespace of this one.
    pub fn here(pid: u32) -> Owner {
        let own = std::fs::metadata("/proc/self/ns/pid");
        Owner {
            pid,
            inode: own.map_or(0, |m| m.ino()),
        }
    }

    /// Of an entry's path.
    pub fn of(entry: &Path) -> Option<Owner> {
        let known = matches!(entry.extension()?.to_str()?, "sock" | "d");
        let (pid, inode) = entry.file_stem()?.to_str()?.split_once('-')?;
        known.then_some(())?;
        Some(Owner {
            pid: pid.parse().ok()?,
            inode: inode.parse().ok()?,
        })
    }

    /// Name of its directory.
    pub fn dir(self) -> String {
        format!("{}-{}.d", self.pid, self.inode)
    }

    /// Name of its socket.
    pub fn socket(self) -> String {
        format!("{}-{}.sock", self.pid, self.inode)
    }

    /// Its number is one of this PID namespace.
    pub fn is_here(self) -> bool {
        self == Owner::here(self.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_entry_it_is() {
        let own = Owner::here(std::process::id());
        assert!(own.inode > 0 && own.is_here());
        assert!(own.dir().len() <= Owner::LONGEST.dir().len());
        for name in [own.dir(), own.socket()] {
            assert_eq!(Owner::of(&Path::new("/run").join(name)), Some(own));
        }
        for name in ["7.d", "7-x.d", "x-7.sock", "7-8.log", "mount-a.log"] {
            assert_eq!(Owner::of(Path::new(name)), None, "{name}");
        }
        assert!(!Owner::of(Path::new("7-1.d")).unwrap().is_here());
    }
}
