//! A ring of records, in shards: who writes waits for nobody but a writer of the same shard, for the time of a copy.
//!
//! # Invariants
//! - A record is written over without being read: those that the ring is about to forget have left the processor's caches, and to
//!   wait for them would cost more than all else. So records are plain data, and refer to names by number.
//! - Only the waits of a record beyond its first are elsewhere, and most records have none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::Wait;

/// Records of each kind that a node keeps; the oldest go. With all kinds full that is some 4 MB.
pub const KEPT: usize = 8192;
const SHARDS: usize = 8;

/// For what was waited, from when to when, in nanoseconds since the node's start.
pub(crate) type Span = (Wait, u64, u64);

/// The last [`KEPT`] records of one kind. Its memory grows with what comes, up to that.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    /// Records ever put in.
    made: AtomicU64,
    shards: [Mutex<Shard<T>>; SHARDS],
}

#[derive(Debug)]
struct Shard<T> {
    /// Each with its first wait.
    records: Vec<(T, Option<Span>)>,
    /// Further waits, by the record's place.
    more: BTreeMap<usize, Box<[Span]>>,
}

impl<T> Default for Shard<T> {
    fn default() -> Self {
        Shard {
            records: Vec::new(),
            more: BTreeMap::new(),
        }
    }
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Ring {
            made: AtomicU64::new(0),
            shards: Default::default(),
        }
    }
}

impl<T: Copy> Ring<T> {
    #[inline]
    pub(crate) fn push(&self, record: T, mut waits: impl Iterator<Item = Span>) {
        let first = waits.next();
        let more: Option<Box<[Span]>> = first.and_then(|_| {
            let second = waits.next()?;
            Some(std::iter::once(second).chain(waits).collect())
        });
        let n = self.made.fetch_add(1, Ordering::Relaxed) as usize;
        let at = (n / SHARDS) % (KEPT / SHARDS);
        let mut shard = self.shards[n % SHARDS].lock();
        // Two writers of one shard may come in the other order while it grows.
        let place = at.min(shard.records.len());
        match shard.records.get_mut(place) {
            Some(old) => *old = (record, first),
            None => shard.records.push((record, first)),
        }
        if !shard.more.is_empty() {
            shard.more.remove(&place);
        }
        if let Some(more) = more {
            shard.more.insert(place, more);
        }
    }

    /// What is there, in no order.
    pub(crate) fn all(&self) -> Vec<(T, Vec<Span>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let records = shard.records.iter().enumerate();
            all.extend(records.map(|(at, (record, first))| {
                let more = shard.more.get(&at).into_iter().flatten();
                (*record, first.iter().chain(more).copied().collect())
            }));
        }
        all
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
    fn the_last_ones_stay_with_their_waits() {
        let ring = Ring::default();
        let waits = |i: u64| (0..i % 4).map(move |w| (Wait::Lock, i, w));
        let push = |i| ring.push(i, waits(i));
        (0..100).for_each(push);
        assert_eq!((ring.all().len(), ring.lost()), (100, 0));
        (100..KEPT as u64 + 1001).for_each(push);
        let mut all = ring.all();
        all.sort_unstable();
        let last = 1001..KEPT as u64 + 1001;
        let last: Vec<_> = last.map(|i| (i, waits(i).collect())).collect();
        assert_eq!(all, last);
        assert_eq!(ring.lost(), 1001);
    }
}
