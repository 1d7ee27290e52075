//! One trial at a time on a process: a second one would change what the first has changed, and compare that.
//!
//! The directory of the process's control socket is locked: nothing is left behind there, and the lock goes with whoever has it.

use crate::lnetctl::find;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Nobody else makes a trial on some processes while this is held.
pub(super) struct Alone(#[expect(dead_code, reason = "its locks go with it")] Vec<File>);

impl Alone {
    /// On the processes with these sockets; an error names who makes one already.
    pub(super) fn on(sockets: &[PathBuf]) -> Result<Alone, String> {
        // A socket may be named by a link to it.
        let whole = sockets.iter().filter_map(|s| s.canonicalize().ok());
        let dirs: BTreeSet<PathBuf> = whole
            .filter_map(|s| s.parent().map(Path::to_owned))
            .collect();
        let locked = dirs.iter().filter_map(|dir| lock(dir).transpose());
        locked.collect::<Result<Vec<File>, String>>().map(Alone)
    }
}

/// Where a directory cannot be locked at all, as on some network file systems, nobody is kept out.
fn lock(dir: &Path) -> Result<Option<File>, String> {
    let Ok(file) = File::open(dir) else {
        return Ok(None);
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => {
            let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
            let inode = file.metadata().map_or(0, |m| m.ino());
            let who = match holder(&locks, inode) {
                Some(pid) => find::described(pid),
                None => "a process that cannot be seen from here".to_owned(),
            };
            Err(format!(
                "{who} makes a trial of the same processes, and two would disturb each other: wait for its end, or end it"
            ))
        }
        Err(_) => Ok(None),
    }
}

/// Who has a lock on the file with this inode, by a table as that in /proc/locks. Its numbers of devices are not those that a file
/// system shows everywhere.
fn holder(table: &str, inode: u64) -> Option<u32> {
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else {
            return None;
        };
        let is_it = file.rsplit(':').next()?.parse() == Ok(inode);
        // One of another PID namespace has none.
        pid.parse().ok().filter(|pid| is_it && *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_a_trial_already_is_named() {
        let tmp = tempfile::tempdir().unwrap();
        let (one, other) = (tmp.path().join("one"), tmp.path().join("other"));
        for dir in [&one, &other] {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("control.sock"), "").unwrap();
        }
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(one.join("control.sock"), &link).unwrap();
        let (one, other) = (one.join("control.sock"), other.join("control.sock"));
        let first = Alone::on(&[one.clone(), link.clone()]).unwrap();
        let why = |sockets: &[PathBuf]| Alone::on(sockets).err();
        for sockets in [vec![one.clone()], vec![other.clone(), link]] {
            let why = why(&sockets).unwrap();
            let own = format!("process {} (", std::process::id());
            assert!(why.starts_with(&own), "{why}");
            assert!(
                why.contains(") makes a trial of the same processes"),
                "{why}"
            );
        }
        assert_eq!(why(&[other]), None);
        drop(first);
        assert_eq!(why(&[one]), None);
    }

    #[test]
    fn locks_of_others_and_of_other_kinds_are_not_taken_for_it() {
        let table = "1: POSIX  ADVISORY  WRITE 5 fe:00:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF\n3: FLOCK  ADVISORY  WRITE 7 fe:00:7 0 EOF\n4: FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF\n4: -> FLOCK  ADVISORY  WRITE 10 fe:00:77 0 EOF\n";
        assert_eq!(holder(table, 77), Some(9));
        assert_eq!(holder(table, 8), None);
    }
}
