//! A ring of records, in shards: who writes waits for nobody but a writer of the same shard, for the time of a copy.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Records of each kind that a node keeps; the oldest go. With all kinds full that is some 5 MB.
pub const KEPT: usize = 8192;
const SHARDS: usize = 8;

/// The last [`KEPT`] records of one kind. Its memory grows with what comes, up to that.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    /// Records ever put in.
    made: AtomicU64,
    shards: [Mutex<Vec<T>>; SHARDS],
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Ring {
            made: AtomicU64::new(0),
            shards: Default::default(),
        }
    }
}

impl<T: Clone> Ring<T> {
    pub(crate) fn push(&self, record: T) {
        let n = self.made.fetch_add(1, Ordering::Relaxed) as usize;
        let at = (n / SHARDS) % (KEPT / SHARDS);
        let mut shard = self.shards[n % SHARDS].lock();
        let old = match shard.get_mut(at) {
            Some(place) => Some(std::mem::replace(place, record)),
            None => {
                shard.push(record);
                None
            }
        };
        drop(shard);
        drop(old);
    }

    /// What is there, in no order.
    pub(crate) fn all(&self) -> Vec<T> {
        let shards = self.shards.iter();
        shards.flat_map(|s| s.lock().clone()).collect()
    }

    /// Records that have gone.
    pub(crate) fn lost(&self) -> u64 {
        let made = self.made.load(Ordering::Relaxed);
        made.saturating_sub(KEPT as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_stay() {
        let ring = Ring::default();
        (0..100).for_each(|i| ring.push(i));
        assert_eq!((ring.all().len(), ring.lost()), (100, 0));
        (100..KEPT as u64 + 1000).for_each(|i| ring.push(i));
        let mut all = ring.all();
        all.sort_unstable();
        assert_eq!(all, (1000..KEPT as u64 + 1000).collect::<Vec<_>>());
        assert_eq!(ring.lost(), 1000);
    }
}
