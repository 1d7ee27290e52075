//! Programs that do one thing to name after name.
//!
//! Some remove what they list, as `rm -r` does: it lists a directory, removes what is in it, and asks for the attributes of none of it.
//! The kernel asks for these with the listing all the same, and sizes are what an OST has to be asked for, file by file. Others make file
//! after file and write nothing.
//!
//! A program is taken for one of these by what it did lately, until it does something else: asks for the attributes of a file, or writes.

use std::collections::VecDeque;
use std::time::Duration;

use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::types::Cred;

/// Programs remembered; the one that did nothing for longest goes first.
const PROGRAMS: usize = 16;
/// From so many names on it is taken for one of these.
const ENOUGH: u32 = 8;
/// A program that has done nothing for so long is none any more.
const LATELY: Duration = Duration::from_secs(2);

/// What a program did.
struct Program {
    pid: u32,
    names: u32,
    /// The directory of the last one, and how many of them one after the other were in it.
    dir: Fid,
    in_dir: u32,
    /// As which user and group.
    who: (u32, u32),
    last: Instant,
}

/// Who does so.
#[derive(Default)]
pub(super) struct Programs(Mutex<VecDeque<Program>>);

impl Programs {
    /// A program did it to a name in `dir`.
    pub fn did(&self, cred: &Cred, dir: Fid) {
        let (pid, who) = (cred.pid, (cred.uid, cred.gid));
        if pid == 0 {
            return;
        }
        let last = Instant::now();
        let mut all = self.0.lock();
        let at = all.iter().position(|r| r.pid == pid);
        let before = at.and_then(|at| all.remove(at));
        let before = before.filter(|r| r.last + LATELY > last);
        let names = before.as_ref().map_or(0, |r| r.names).saturating_add(1);
        let in_dir = before.filter(|r| (r.dir, r.who) == (dir, who));
        let in_dir = in_dir.map_or(0, |r| r.in_dir);
        if all.len() == PROGRAMS {
            all.pop_front();
        }
        all.push_back(Program {
            pid,
            names,
            dir,
            in_dir: in_dir.saturating_add(1),
            who,
            last,
        });
    }

    /// To how many names one after the other a program did it in `dir`, as the same user, if it is one of these.
    pub fn in_dir(&self, cred: &Cred, dir: Fid) -> u32 {
        let (who, all) = ((cred.uid, cred.gid), self.0.lock());
        let of_it = (all.iter()).find(|r| (r.pid, r.dir, r.who) == (cred.pid, dir, who));
        let lately = of_it.filter(|r| r.names >= ENOUGH && r.last.elapsed() < LATELY);
        lately.map_or(0, |r| r.in_dir)
    }

    /// `pid` does something else.
    pub fn ended(&self, pid: u32) {
        let mut all = self.0.lock();
        if !all.is_empty() {
            all.retain(|r| r.pid != pid);
        }
    }

    /// `pid` is going to do it to the next name too.
    pub fn does(&self, pid: u32) -> bool {
        let all = self.0.lock();
        let of_it = all.iter().find(|r| r.pid == pid);
        of_it.is_some_and(|r| r.names >= ENOUGH && r.last.elapsed() < LATELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Fid = Fid::new(5, 6);

    fn of(pid: u32) -> Cred {
        Cred {
            pid,
            ..Cred::root()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_removes_is_known_until_it_looks_or_rests() {
        let all = Programs::default();
        for n in 1..=ENOUGH {
            assert!(!all.does(7));
            all.did(&of(7), DIR);
            all.did(&of(0), DIR);
            assert_eq!(all.does(7), n == ENOUGH);
        }
        assert!(!all.does(0) && !all.does(8));
        all.ended(8);
        assert!(all.does(7));
        all.ended(7);
        assert!(!all.does(7));
        // others do not drive it out, but by many
        (0..ENOUGH).for_each(|_| all.did(&of(7), DIR));
        (100..100 + PROGRAMS as u32 - 1).for_each(|p| all.did(&of(p), DIR));
        assert!(all.does(7));
        all.did(&of(99), DIR);
        assert!(!all.does(7));
        (0..ENOUGH).for_each(|_| all.did(&of(7), DIR));
        tokio::time::advance(LATELY).await;
        assert!(!all.does(7));
        all.did(&of(7), DIR);
        assert!(!all.does(7));
    }

    #[tokio::test(start_paused = true)]
    async fn names_count_in_the_directory_of_the_last() {
        let (all, other) = (Programs::default(), Fid::new(5, 7));
        (0..ENOUGH).for_each(|_| all.did(&of(7), DIR));
        assert_eq!(
            (all.in_dir(&of(7), DIR), all.in_dir(&of(7), other)),
            (ENOUGH, 0)
        );
        all.did(&of(7), other);
        assert_eq!((all.in_dir(&of(7), DIR), all.in_dir(&of(7), other)), (0, 1));
        all.did(&of(8), other);
        assert_eq!(all.in_dir(&of(8), other), 0);
        let user = Cred { uid: 9, ..of(7) };
        assert_eq!(all.in_dir(&user, other), 0);
        all.did(&user, other);
        assert_eq!(all.in_dir(&user, other), 1);
        tokio::time::advance(LATELY).await;
        assert_eq!(all.in_dir(&user, other), 0);
    }
}
