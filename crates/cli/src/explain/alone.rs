//! One trial at a time on a process: a second one would change what the first has changed, and compare that.
//!
//! The directory of the process's control socket is locked: nothing is left behind there, and the lock goes with whoever has it: the
//! trial, and the process that puts back what it changed. A trial that began in between would take the changed value for the old one.

use crate::lnetctl::find;
use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Nobody else makes a trial on some processes while this is held.
pub(super) struct Alone(Vec<File>);

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

    /// A process that is started by `start` has the locks too, until it ends. No other one is started meanwhile.
    pub(super) fn shared_with<T>(
        &self,
        start: impl FnOnce() -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        self.mark(FdFlags::empty())?;
        let started = start();
        self.mark(FdFlags::CLOEXEC)?;
        started
    }

    fn mark(&self, flags: FdFlags) -> std::io::Result<()> {
        let mut all = self.0.iter();
        Ok(all.try_for_each(|file| fcntl_setfd(file, flags))?)
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
            let of = file.metadata().ok();
            let holder = of.and_then(|m| holder(&locks, (major(m.dev()), minor(m.dev())), m.ino()));
            Err(why_not(holder))
        }
        Err(_) => Ok(None),
    }
}

/// Why no trial is made where this one has the lock.
fn why_not(holder: Option<u32>) -> String {
    let who = match holder {
        Some(pid) if find::alive(pid) => find::described(pid),
        Some(pid) => {
            return format!(
                "process {pid} made a trial of the same processes, and what it changed is not put back yet, or its last operation has not ended: try again later"
            );
        }
        None => "a process that cannot be seen from here".to_owned(),
    };
    format!(
        "{who} makes a trial of the same processes, and two would disturb each other: wait for its end, or end it"
    )
}

/// Who has a lock on the file with this device and inode, by a table as that in /proc/locks. Some file systems show other numbers of
/// devices than those there: then whoever is the only one with a file of this inode has it.
fn holder(table: &str, device: (u32, u32), inode: u64) -> Option<u32> {
    let lock = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else {
            return None;
        };
        let (on, number) = file.rsplit_once(':')?;
        let (major, minor) = on.split_once(':')?;
        let hex = |text| u32::from_str_radix(text, 16).ok();
        let agrees = (hex(major)?, hex(minor)?) == device;
        let is_it = number.parse() == Ok(inode);
        is_it.then_some((agrees, pid.parse::<u32>().ok()?))
    };
    let all: Vec<(bool, u32)> = table.lines().filter_map(lock).collect();
    let agreeing = || all.iter().filter(|(agrees, _)| *agrees);
    let found = match (agreeing().next(), &all[..]) {
        (Some(_), _) => agreeing().find(|(_, pid)| *pid > 0),
        (None, [one]) => Some(one),
        (None, _) => None,
    };
    // One of another PID namespace has no number.
    found.map(|(_, pid)| *pid).filter(|pid| *pid > 0)
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
        assert!(is_soon_free(&[other]));
        drop(first);
        assert!(is_soon_free(&[one]));
    }

    /// A process that another test starts at this moment may have the lock until it is another program.
    fn is_soon_free(sockets: &[PathBuf]) -> bool {
        (0..1000).any(|_| {
            crate::explain::wait(0.01);
            Alone::on(sockets).is_ok()
        })
    }

    #[test]
    fn locks_of_others_and_of_other_kinds_are_not_taken_for_it() {
        let table = "1: POSIX  ADVISORY  WRITE 5 fe:00:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF\n3: FLOCK  ADVISORY  WRITE 7 fe:00:7 0 EOF\n4: FLOCK  ADVISORY  WRITE 8 fe:01:77 0 EOF\n5: FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF\n5: -> FLOCK  ADVISORY  WRITE 10 fe:00:77 0 EOF\n";
        let of = |minor, inode| holder(table, (0xfe, minor), inode);
        assert_eq!(of(0, 77), Some(9));
        assert_eq!(of(1, 77), Some(8));
        assert_eq!(of(2, 77), None, "several, and none of this device");
        assert_eq!(of(2, 7), Some(7), "the only one");
        assert_eq!(of(0, 8), None);
        let unseen = "1: FLOCK  ADVISORY  WRITE 0 00:20:5 0 EOF\n2: FLOCK  ADVISORY  WRITE 9 00:21:5 0 EOF\n";
        assert_eq!(
            holder(unseen, (0, 0x20), 5),
            None,
            "of another PID namespace"
        );
    }

    #[test]
    fn the_lock_is_held_until_all_is_put_back() {
        let tmp = tempfile::tempdir().unwrap();
        let socket = [tmp.path().join("control.sock")];
        std::fs::write(&socket[0], "").unwrap();
        let trial = Alone::on(&socket).unwrap();
        let mut cat = std::process::Command::new("cat");
        let cat = cat.stdin(std::process::Stdio::piped());
        let mut puts_back = trial.shared_with(|| cat.spawn()).unwrap();
        drop(trial);
        let why = Alone::on(&socket).err().unwrap();
        assert!(why.contains(" a trial of the same processes"), "{why}");
        drop(puts_back.stdin.take());
        puts_back.wait().unwrap();
        assert!(is_soon_free(&socket));

        let why = why_not(Some(puts_back.id()));
        assert!(why.ends_with(" has not ended: try again later"), "{why}");
        let why = why_not(None);
        assert!(
            why.starts_with("a process that cannot be seen from here makes"),
            "{why}"
        );
    }
}
