//! Which names are looked up to be read: a program that reads one file after the other of a directory does a lookup, an open and
//! a read of each, and the lookup may bring the other two along.
//!
//! A directory has points: an open for reading of what was looked up in it lately gives some, and each lookup takes one. Above a
//! threshold the next lookup is taken for the beginning of an open. A lookup that only asks for attributes takes the point away
//! that it cost, so a directory that is only looked at brings nothing along.
//!
//! Lustre's client has no such guess: its open carries the name.

use std::collections::{BTreeMap, VecDeque};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

/// Directories remembered; the one that was not looked in longest goes first.
const DIRS: usize = 64;
/// Of each, lookups that an open may follow.
const LATELY: usize = 8;
/// What an open gives.
const OPEN_POINTS: u32 = 2;
/// Points from which on a lookup brings the open along.
const ENOUGH: u32 = 4;
/// Most points.
const MOST: u32 = 16;

/// Guesses what a lookup is for.
#[derive(Default)]
pub(super) struct Foresight(Mutex<Dirs>);

#[derive(Default)]
struct Dirs {
    /// With the number of the last lookup.
    dirs: BTreeMap<Fid, (u64, Dir)>,
    lookups: u64,
    /// The directory in which a file was looked up.
    parents: BTreeMap<Fid, Fid>,
}

#[derive(Default)]
struct Dir {
    points: u32,
    lately: VecDeque<Fid>,
}

impl Foresight {
    /// What is looked up in `dir` next is going to be read.
    pub fn expects_read(&self, dir: Fid) -> bool {
        let dirs = self.0.lock();
        dirs.dirs.get(&dir).is_some_and(|(_, d)| d.points >= ENOUGH)
    }

    /// `fid` was looked up in `dir`.
    pub fn looked_up(&self, dir: Fid, fid: Fid) {
        let mut all = self.0.lock();
        let all = &mut *all;
        all.lookups += 1;
        let (last, d) = all.dirs.entry(dir).or_default();
        *last = all.lookups;
        d.points = d.points.saturating_sub(1);
        if !d.lately.contains(&fid) {
            d.lately.push_back(fid);
            all.parents.insert(fid, dir);
            if d.lately.len() > LATELY {
                d.lately.pop_front().map(|f| all.parents.remove(&f));
            }
        }
        if all.dirs.len() > DIRS
            && let Some(oldest) = all
                .dirs
                .iter()
                .min_by_key(|(_, (n, _))| *n)
                .map(|(f, _)| *f)
            && let Some((_, gone)) = all.dirs.remove(&oldest)
        {
            all.parents.retain(|f, _| !gone.lately.contains(f));
        }
    }

    /// `fid` is opened for reading.
    pub fn opened(&self, fid: Fid) {
        let mut all = self.0.lock();
        let Some(dir) = all.parents.remove(&fid) else {
            return;
        };
        if let Some((_, d)) = all.dirs.get_mut(&dir) {
            d.lately.retain(|f| *f != fid);
            d.points = (d.points + OPEN_POINTS).min(MOST);
        }
    }

    /// What was expected of `dir` could not be done.
    pub fn was_wrong(&self, dir: Fid) {
        if let Some((_, d)) = self.0.lock().dirs.get_mut(&dir) {
            d.points = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(n: u32) -> Fid {
        Fid::new(0x2_0000_0400, n)
    }

    #[test]
    fn who_opens_what_it_looks_up_is_expected_to_go_on_and_who_looks_is_not() {
        let f = Foresight::default();
        let (dir, other) = (fid(1), fid(2));
        for n in 10..13 {
            assert!(!f.expects_read(dir));
            f.looked_up(dir, fid(n));
            f.opened(fid(n));
        }
        assert!(f.expects_read(dir) && !f.expects_read(other));
        for n in 20..40 {
            f.looked_up(dir, fid(n));
        }
        assert!(!f.expects_read(dir));
        // an open long after the lookup is no sign
        f.opened(fid(20));
        f.looked_up(dir, fid(50));
        assert!(f.0.lock().parents.len() <= LATELY);
    }

    #[test]
    fn it_stays_small() {
        let f = Foresight::default();
        for n in 0..1000 {
            f.looked_up(fid(n), fid(5000 + n));
        }
        let all = f.0.lock();
        assert_eq!((all.dirs.len(), all.parents.len()), (DIRS, DIRS));
    }
}
