//! Programs that remove what they list, as `rm -r` does: it lists a directory, removes what is in it, and asks for the attributes of
//! none of it. The kernel asks for these with the listing all the same, and sizes are what an OST has to be asked for, file by file.
//!
//! A program is taken for one of these by what it removed lately, until it asks for the attributes of a file.

use std::collections::VecDeque;
use std::time::Duration;

use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::types::Cred;

/// Programs remembered; the one that did not remove anything for longest goes first.
const PROGRAMS: usize = 16;
/// From so many removals on it is one that removes all.
const ENOUGH: u32 = 8;
/// A program that has removed nothing for so long is none any more.
const LATELY: Duration = Duration::from_secs(2);

/// What a program removed.
struct Remover {
    pid: u32,
    names: u32,
    /// The directory of the last one, and how many of them one after the other were in it.
    dir: Fid,
    in_dir: u32,
    /// As which user and group.
    who: (u32, u32),
    last: Instant,
}

/// Who removes.
#[derive(Default)]
pub(super) struct Removers(Mutex<VecDeque<Remover>>);

impl Removers {
    /// A program removed a name in `dir`.
    pub fn removed(&self, cred: &Cred, dir: Fid) {
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
        all.push_back(Remover {
            pid,
            names,
            dir,
            in_dir: in_dir.saturating_add(1),
            who,
            last,
        });
    }

    /// How many names one after the other a program removed in `dir`, as the same user, if it removes what it lists.
    pub fn removes_in(&self, cred: &Cred, dir: Fid) -> u32 {
        let (who, all) = ((cred.uid, cred.gid), self.0.lock());
        let of_it = (all.iter()).find(|r| (r.pid, r.dir, r.who) == (cred.pid, dir, who));
        let lately = of_it.filter(|r| r.names >= ENOUGH && r.last.elapsed() < LATELY);
        lately.map_or(0, |r| r.in_dir)
    }

    /// `pid` asked for the attributes of a file.
    pub fn looked(&self, pid: u32) {
        let mut all = self.0.lock();
        if !all.is_empty() {
            all.retain(|r| r.pid != pid);
        }
    }

    /// What `pid` lists it is going to remove.
    pub fn removes(&self, pid: u32) -> bool {
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
        let all = Removers::default();
        for n in 1..=ENOUGH {
            assert!(!all.removes(7));
            all.removed(&of(7), DIR);
            all.removed(&of(0), DIR);
            assert_eq!(all.removes(7), n == ENOUGH);
        }
        assert!(!all.removes(0) && !all.removes(8));
        all.looked(8);
        assert!(all.removes(7));
        all.looked(7);
        assert!(!all.removes(7));
        // others do not drive it out, but by many
        (0..ENOUGH).for_each(|_| all.removed(&of(7), DIR));
        (100..100 + PROGRAMS as u32 - 1).for_each(|p| all.removed(&of(p), DIR));
        assert!(all.removes(7));
        all.removed(&of(99), DIR);
        assert!(!all.removes(7));
        (0..ENOUGH).for_each(|_| all.removed(&of(7), DIR));
        tokio::time::advance(LATELY).await;
        assert!(!all.removes(7));
        all.removed(&of(7), DIR);
        assert!(!all.removes(7));
    }

    #[tokio::test(start_paused = true)]
    async fn names_count_in_the_directory_of_the_last() {
        let (all, other) = (Removers::default(), Fid::new(5, 7));
        (0..ENOUGH).for_each(|_| all.removed(&of(7), DIR));
        assert_eq!(
            (all.removes_in(&of(7), DIR), all.removes_in(&of(7), other)),
            (ENOUGH, 0)
        );
        all.removed(&of(7), other);
        assert_eq!(
            (all.removes_in(&of(7), DIR), all.removes_in(&of(7), other)),
            (0, 1)
        );
        all.removed(&of(8), other);
        assert_eq!(all.removes_in(&of(8), other), 0);
        let user = Cred { uid: 9, ..of(7) };
        assert_eq!(all.removes_in(&user, other), 0);
        all.removed(&user, other);
        assert_eq!(all.removes_in(&user, other), 1);
        tokio::time::advance(LATELY).await;
        assert_eq!(all.removes_in(&user, other), 0);
    }
}
