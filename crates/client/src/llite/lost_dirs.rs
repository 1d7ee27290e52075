//! Directories with acknowledged changes that a restarted server has lost: fsync of a handle opened before tells once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

use crate::error::Error;

/// Losses that are told apart; older ones count for every directory.
const LOSSES_MAX: usize = 1024;

/// What was lost so far.
#[derive(Debug, Default)]
pub(super) struct LostDirs(Mutex<Losses>);

#[derive(Debug, Default)]
struct Losses {
    /// Number of the last loss.
    count: u64,
    /// Each with its number.
    dirs: VecDeque<(u64, Fid)>,
    /// Number of the last loss that counts for every directory.
    any: u64,
}

impl LostDirs {
    /// A change of `dir` is lost.
    pub fn note(&self, dir: Fid) {
        let mut l = self.0.lock();
        l.count += 1;
        let number = l.count;
        l.dirs.push_back((number, dir));
        if l.dirs.len() > LOSSES_MAX
            && let Some((number, _)) = l.dirs.pop_front()
        {
            l.any = number;
        }
    }

    /// Losses so far: a new handle does not hear of them.
    pub fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// EIO if changes of `dir` were lost after the loss `seen`, once.
    pub fn take(&self, dir: Fid, seen: &AtomicU64) -> Result<(), Error> {
        let l = self.0.lock();
        let before = seen.swap(l.count, Ordering::AcqRel);
        let lost = l.any > before
            || l.dirs
                .iter()
                .any(|(number, d)| *number > before && *d == dir);
        if lost {
            Err(Error::ChangesLost)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_before_hear_of_their_directory_once() {
        let (a, b) = (Fid::new(0x2_0000_0400, 1), Fid::new(0x2_0000_0400, 2));
        let l = LostDirs::default();
        let before = AtomicU64::new(l.count());
        l.note(a);
        assert_eq!(l.take(b, &AtomicU64::new(0)), Ok(()), "another's");
        assert_eq!(
            l.take(a, &AtomicU64::new(l.count())),
            Ok(()),
            "opened afterwards"
        );
        assert_eq!(
            (l.take(a, &before), l.take(a, &before)),
            (Err(Error::ChangesLost), Ok(()))
        );
        let before = AtomicU64::new(l.count());
        (0..LOSSES_MAX + 1).for_each(|_| l.note(a));
        assert_eq!(
            l.take(b, &before),
            Err(Error::ChangesLost),
            "more than are told apart"
        );
    }
}
