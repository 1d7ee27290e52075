//! What the kernel was told to forget lately.
//!
//! A request that brings attributes takes a while, and their lock may be asked back before they are answered. The kernel does
//! not know a new file yet, so telling it then is in vain, and the answer would be remembered under no lock. So whoever answers
//! with attributes asks here whether the file was told of since the request began, after it counted the lookup
//! ([`crate::nodes::Nodes::remember`]): what is told from then on finds the file.
//! Linux guards files it knows by itself (`attr_version` in `fs/fuse/inode.c`), not new ones.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

/// Files remembered; a request during which more were told of counts all of them.
const KEPT: usize = 4096;

/// When a request began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(u64);

/// What was told of since a [`Mark`].
pub(crate) enum Since {
    Nothing,
    These(HashSet<Fid>),
    /// Too much to know.
    Anything,
}

impl Since {
    pub fn has(&self, fid: Fid) -> bool {
        match self {
            Since::Nothing => false,
            Since::These(files) => files.contains(&fid),
            Since::Anything => true,
        }
    }
}

/// The last files told of. A request that nothing was told beside pays two loads.
#[derive(Default)]
pub(crate) struct Told {
    count: AtomicU64,
    last: Mutex<VecDeque<Fid>>,
}

impl Told {
    /// A request begins.
    pub fn mark(&self) -> Mark {
        Mark(self.count.load(Ordering::Acquire))
    }

    /// `fid` is about to be told of; noted before it is looked for among the files the kernel knows.
    pub fn note(&self, fid: Fid) {
        let mut last = self.last.lock();
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(fid);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// What was told of since `mark`.
    pub fn since(&self, mark: Mark) -> Since {
        if self.count.load(Ordering::Acquire) == mark.0 {
            return Since::Nothing;
        }
        let last = self.last.lock();
        let new = self.count.load(Ordering::Acquire) - mark.0;
        match last.len().checked_sub(new as usize) {
            Some(skip) => Since::These(last.iter().skip(skip).copied().collect()),
            None => Since::Anything,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_since() {
        let fid = |oid| Fid {
            seq: 0x2_0000_0400,
            oid,
            ver: 0,
        };
        let t = Told::default();
        let start = t.mark();
        t.note(fid(1));
        let later = t.mark();
        assert!(matches!(t.since(later), Since::Nothing) && t.since(start).has(fid(1)));
        t.note(fid(2));
        assert!(
            t.since(start).has(fid(2))
                && !t.since(start).has(fid(3))
                && !t.since(later).has(fid(1))
        );
        (0..KEPT as u32).for_each(|i| t.note(fid(10 + i)));
        assert!(t.since(start).has(fid(3)), "more than it keeps");
        let last = t.mark();
        t.note(fid(4));
        assert!(t.since(last).has(fid(4)) && !t.since(last).has(fid(10)));
    }
}
