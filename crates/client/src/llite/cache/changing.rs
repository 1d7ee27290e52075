//! Own changes of entries of directories, as far as what was read beside them may be older than they are: a read that began before one of
//! them ended does not tell of the name that it changed; of other names it does.

use std::collections::VecDeque;

use bytes::Bytes;
use coral_wire::fid::Fid;

/// Names remembered of changes that have ended: more than change while one lookup of many names is on its way.
const ENDED: usize = 256;

/// Names of the own changes that ended last, of all directories.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// When each ended, the directory and the name.
    last: VecDeque<(u64, Fid, Bytes)>,
    /// The names of changes that ended until then are not known.
    forgotten_to: u64,
}

impl Ended {
    /// A change ended at `now`, which is later than all others.
    pub fn push(&mut self, now: u64, dir: Fid, name: Bytes) {
        if self.last.len() == ENDED
            && let Some((at, ..)) = self.last.pop_front()
        {
            self.forgotten_to = at;
        }
        self.last.push_back((now, dir, name));
    }

    /// It may have been a change of this name that ended after `mark`.
    pub fn may_have(&self, mark: u64, dir: Fid, name: &[u8]) -> bool {
        let mut since = self.last.iter().rev().take_while(|(at, ..)| *at > mark);
        self.forgotten_to > mark || since.any(|(_, d, n)| *d == dir && n == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Fid = Fid::new(5, 6);

    #[test]
    fn a_change_is_of_its_own_name_and_directory() {
        let mut e = Ended::default();
        e.push(3, DIR, Bytes::from_static(b"f"));
        assert!(e.may_have(2, DIR, b"f") && !e.may_have(3, DIR, b"f"));
        assert!(!e.may_have(2, DIR, b"g") && !e.may_have(2, Fid::new(5, 7), b"f"));
    }

    #[test]
    fn names_that_are_forgotten_may_be_any() {
        let mut e = Ended::default();
        for n in 0..=ENDED as u64 {
            e.push(1 + n, DIR, format!("f{n}").into());
        }
        assert!(e.may_have(0, DIR, b"other") && !e.may_have(1, DIR, b"other"));
        assert!(e.may_have(1, DIR, b"f1"));
    }
}
