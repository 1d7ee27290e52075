//! Programs that remove what they list, as `rm -r` does: it lists a directory, removes what is in it, and asks for the attributes of
//! none of it. The kernel asks for these with the listing all the same, and sizes are what an OST has to be asked for, file by file.
//!
//! A program is taken for one of these by what it removed lately, until it asks for the attributes of a file.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Programs remembered; the one that did not remove anything for longest goes first.
const PROGRAMS: usize = 16;
/// From so many removals on it is one that removes all.
const ENOUGH: u32 = 8;

/// Who removes, by process id, with how much.
#[derive(Default)]
pub(super) struct Removers(Mutex<VecDeque<(u32, u32)>>);

impl Removers {
    /// `pid` removed a name.
    pub fn removed(&self, pid: u32) {
        if pid == 0 {
            return;
        }
        let mut all = self.0.lock();
        let at = all.iter().position(|(p, _)| *p == pid);
        let before = at.and_then(|at| all.remove(at)).map_or(0, |(_, n)| n);
        if all.len() == PROGRAMS {
            all.pop_front();
        }
        all.push_back((pid, before.saturating_add(1)));
    }

    /// `pid` asked for the attributes of a file.
    pub fn looked(&self, pid: u32) {
        let mut all = self.0.lock();
        if !all.is_empty() {
            all.retain(|(p, _)| *p != pid);
        }
    }

    /// What `pid` lists it is going to remove.
    pub fn removes(&self, pid: u32) -> bool {
        let all = self.0.lock();
        all.iter().any(|(p, n)| *p == pid && *n >= ENOUGH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_removes_is_known_until_it_looks() {
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
    }
}
