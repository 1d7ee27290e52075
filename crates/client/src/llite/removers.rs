//! Programs that remove what they list, as `rm -r` does: it lists a directory, removes what is in it, and asks for the attributes of
//! none of it. The kernel asks for these with the listing all the same, and sizes are what an OST has to be asked for, file by file.
//!
//! A program is taken for one of these by what it removed lately, until it asks for the attributes of a file.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

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
    last: Instant,
}

/// Who removes.
#[derive(Default)]
pub(super) struct Removers(Mutex<VecDeque<Remover>>);

impl Removers {
    /// `pid` removed a name.
    pub fn removed(&self, pid: u32) {
        if pid == 0 {
            return;
        }
        let last = Instant::now();
        let mut all = self.0.lock();
        let at = all.iter().position(|r| r.pid == pid);
        let before = at.and_then(|at| all.remove(at));
        let names = before.filter(|r| r.last + LATELY > last);
        let names = names.map_or(0, |r| r.names).saturating_add(1);
        if all.len() == PROGRAMS {
            all.pop_front();
        }
        all.push_back(Remover { pid, names, last });
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

    #[tokio::test(start_paused = true)]
    async fn who_removes_is_known_until_it_looks_or_rests() {
        let all = Removers::default();
        for n in 1..=ENOUGH {
            assert!(!all.removes(7));
            all.removed(7);
            all.removed(0);
            assert_eq!(all.removes(7), n == ENOUGH);
        }
        assert!(!all.removes(0) && !all.removes(8));
        all.looked(8);
        assert!(all.removes(7));
        all.looked(7);
        assert!(!all.removes(7));
        // others do not drive it out, but by many
        (0..ENOUGH).for_each(|_| all.removed(7));
        (100..100 + PROGRAMS as u32 - 1).for_each(|p| all.removed(p));
        assert!(all.removes(7));
        all.removed(99);
        assert!(!all.removes(7));
        (0..ENOUGH).for_each(|_| all.removed(7));
        tokio::time::advance(LATELY).await;
        assert!(!all.removes(7));
        all.removed(7);
        assert!(!all.removes(7));
    }
}
