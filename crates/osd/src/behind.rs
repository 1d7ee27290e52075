//! Batches that are seen and have yet to be written: who commits puts his batch here and lets go of his locks. All that are here are
//! written as one.
//!
//! So of what one change after the other must do, the longer half (the journal, the sorted tables) is done while the next change is
//! being made; and where several wait, their rows are written once and in one piece. Who waits for his batch writes it himself, and
//! with it what else is here. Where several commit at the same time, one writes for all as soon as no more are being made
//! ([`WriteBehind::for_all`]).
//!
//! Invariants:
//! * Batches are written in the order in which they came, each whole or not at all.
//! * A lookup sees every batch that is here; ranges are read when nothing is left here.
//! * One writes at a time, with [`WriteBehind::writing`] in hand.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::marks::{self, Marks};
use crate::{Batch, Op, Ready, Seen, Table};

/// With more rows than this here, who commits writes them himself: their memory is bounded, and the time that one write takes.
const ROWS_MAX: usize = 512;
/// Places by which it is told, without a lock, that a row is not here.
const ROWS_AT: usize = 4096;
/// Where fewer batches than this were written as one, a single one does not wait for others: that would cost more than it saves.
const BATCHES_MIN: usize = 4;
/// With so many batches here nobody waits for more: more would save little.
const BATCHES_MAX: usize = 32;
/// What came so long ago waits for no others.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// A batch, with the hashes of its rows.
struct Here {
    seen: Seen,
    hashes: SmallVec<[u64; 8]>,
}

/// Batches in the order in which they came.
#[derive(Default)]
struct Waiting {
    batches: VecDeque<Here>,
    /// Number of the first; they are numbered as they came.
    first: u64,
    /// Of each row that they change, by its hash, the last change: the number of its batch, and its place there. Of rows with the
    /// same hash the one that was changed last is told.
    last: HashMap<u64, (u64, usize), BuildHasherDefault<Hashed>>,
    /// The greatest number that is to be noted behind them, and how many came with it.
    note: Option<u64>,
    notes: u64,
}

/// For keys that are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The batches of one device.
pub(crate) struct WriteBehind {
    waiting: Mutex<Waiting>,
    /// Rows of these, to be seen without the lock; 0 when all are written.
    rows: AtomicUsize,
    /// The batches, to be counted without the lock.
    batches: AtomicUsize,
    /// When the first of them came, or became the first: nanoseconds since `epoch`.
    first_ns: AtomicU64,
    epoch: Instant,
    /// How many of them are at each place that rows share.
    rows_at: Box<[AtomicU32]>,
    /// Batches and notes that came.
    came: AtomicU64,
    /// Of these, those that were written.
    written: AtomicU64,
    /// How many batches were written as one the last time.
    group: AtomicUsize,
    turn: Mutex<()>,
    /// Twice the number of the last promise to write what is here, and one more if it has yet to begin.
    promise: AtomicU64,
    /// The number of the last promise that has ended, kept or not.
    ended: AtomicU64,
    /// Something was written, or a promise has ended.
    tried: Notify,
    /// They tell whether a row was changed by a batch that came.
    pub(crate) marks: Marks,
}

impl Default for WriteBehind {
    fn default() -> WriteBehind {
        WriteBehind {
            waiting: Mutex::default(),
            rows: AtomicUsize::new(0),
            batches: AtomicUsize::new(0),
            first_ns: AtomicU64::new(0),
            epoch: Instant::now(),
            rows_at: (0..ROWS_AT).map(|_| AtomicU32::new(0)).collect(),
            came: AtomicU64::new(0),
            written: AtomicU64::new(0),
            group: AtomicUsize::new(0),
            turn: Mutex::default(),
            promise: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            tried: Notify::new(),
            marks: Marks::default(),
        }
    }
}

/// The turn of whoever writes.
pub(crate) struct Writing<'a> {
    behind: &'a WriteBehind,
    _turn: MutexGuard<'a, ()>,
}

/// What is to be written as one.
pub(crate) struct Group {
    pub(crate) batches: Vec<Seen>,
    /// Noted behind them.
    pub(crate) note: Option<u64>,
    count: usize,
    notes: u64,
}

fn value(op: &Op) -> Option<Bytes> {
    match op {
        Op::Put { val, .. } => Some(val.clone()),
        Op::Del { .. } => None,
    }
}

fn hashes(batch: &Batch) -> SmallVec<[u64; 8]> {
    let rows = batch.ops().iter().map(Op::row);
    rows.map(|(table, key)| marks::hash(table, key)).collect()
}

impl Waiting {
    fn push(&mut self, seen: Seen, hashes: SmallVec<[u64; 8]>) {
        let number = self.first + self.batches.len() as u64;
        for (place, hash) in hashes.iter().enumerate() {
            self.last.insert(*hash, (number, place));
        }
        self.batches.push_back(Here { seen, hashes });
    }

    fn pop(&mut self) -> Option<Here> {
        let here = self.batches.pop_front()?;
        for hash in &here.hashes {
            if let Entry::Occupied(last) = self.last.entry(*hash)
                && last.get().0 == self.first
            {
                last.remove();
            }
        }
        self.first += 1;
        Some(here)
    }

    fn find(&self, t: Table, key: &[u8], hash: u64) -> Option<&Op> {
        let (number, place) = *self.last.get(&hash)?;
        let is_it = |op: &&Op| matches!(op.row(), (table, k) if table == t && k == key);
        let here = self.batches.get((number - self.first) as usize)?;
        let op = here.seen.batch.ops().get(place).filter(is_it);
        // another row of that hash was changed since
        op.or_else(|| {
            let batches = self.batches.iter().rev();
            let mut ops = batches.flat_map(|here| here.seen.batch.ops().iter().rev());
            ops.find(is_it)
        })
    }
}

impl WriteBehind {
    /// Takes a batch in: it is seen from now on. True if it is time to write.
    pub(crate) fn push(&self, batch: Arc<Batch>, ready: Option<Ready>) -> bool {
        let hashes = hashes(&batch);
        let mut waiting = self.waiting.lock();
        for hash in &hashes {
            self.at(*hash).fetch_add(1, Ordering::Release);
        }
        let rows = self.rows.fetch_add(hashes.len(), Ordering::Release) + hashes.len();
        if self.batches.fetch_add(1, Ordering::Release) == 0 {
            self.comes_first();
        }
        waiting.push(Seen { batch, ready }, hashes);
        self.came.fetch_add(1, Ordering::Release);
        rows > ROWS_MAX
    }

    fn at(&self, hash: u64) -> &AtomicU32 {
        &self.rows_at[hash as usize % ROWS_AT]
    }

    /// Takes a number that is to be noted behind the batches that are here.
    pub(crate) fn note(&self, number: u64) {
        let mut waiting = self.waiting.lock();
        waiting.note = waiting.note.max(Some(number));
        waiting.notes += 1;
        self.came.fetch_add(1, Ordering::Release);
    }

    /// What the batches here make of a row: its value, or that it is not there. `None`: they say nothing of it.
    pub(crate) fn find(&self, t: Table, key: &[u8]) -> Option<Option<Bytes>> {
        if self.rows.load(Ordering::Acquire) == 0 {
            return None;
        }
        let hash = marks::hash(t, key);
        if self.at(hash).load(Ordering::Acquire) == 0 {
            return None;
        }
        self.waiting.lock().find(t, key, hash).map(value)
    }

    fn comes_first(&self) {
        let now = self.epoch.elapsed().as_nanos() as u64;
        self.first_ns.store(now, Ordering::Relaxed);
    }

    /// The number of the last that came, when one is to write for all: several are here, or one where many were written as one the
    /// last time; and they did not come long ago.
    pub(crate) fn for_all(&self) -> Option<u64> {
        let here = self.batches.load(Ordering::Acquire);
        let many = here > 1 || (here == 1 && self.group.load(Ordering::Relaxed) >= BATCHES_MIN);
        if !many || here >= BATCHES_MAX {
            return None;
        }
        let first = Duration::from_nanos(self.first_ns.load(Ordering::Relaxed));
        let waited = self.epoch.elapsed().saturating_sub(first);
        (waited < WAIT_MAX).then(|| self.came.load(Ordering::Acquire))
    }

    /// Whether what came up to this number is written.
    pub(crate) fn is_written(&self, upto: u64) -> bool {
        self.written.load(Ordering::Acquire) >= upto
    }

    /// Waits until what came up to this number is written, or this promise has ended otherwise: false then.
    pub(crate) async fn written(&self, upto: u64, promise: u64) -> bool {
        loop {
            // counts what is told from here on, so it is looked before the wait
            let tried = self.tried.notified();
            if self.is_written(upto) {
                return true;
            }
            if self.ended.load(Ordering::Acquire) >= promise {
                return false;
            }
            tried.await;
        }
    }

    /// Wakes those who wait. With no lock held: what they wait in may be dropped by this.
    pub(crate) fn tell(&self) {
        self.tried.notify_waiters();
    }

    /// The promise to write what is here, which has yet to begin; true if it is a new one, which the caller has to keep.
    pub(crate) fn promise(&self) -> (u64, bool) {
        let set = |p: u64| (p & 1 == 0).then_some(p + 3);
        match self
            .promise
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, set)
        {
            Ok(before) => (before / 2 + 1, true),
            Err(waits) => (waits / 2, false),
        }
    }

    /// What comes from now on is another promise's.
    pub(crate) fn begins(&self, promise: u64) {
        let clear = |p: u64| (p == 2 * promise + 1).then_some(p - 1);
        let _ = self
            .promise
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, clear);
    }

    /// The promise has ended, kept or not.
    pub(crate) fn ends(&self, promise: u64) {
        self.begins(promise);
        self.ended.fetch_max(promise, Ordering::AcqRel);
        self.tell();
    }

    /// The turn to write, which is waited for; `None` if what was here has been written meanwhile.
    pub(crate) fn turn(&self) -> Option<Writing<'_>> {
        let upto = self.came.load(Ordering::Acquire);
        if self.is_written(upto) {
            return None;
        }
        let writing = self.writing();
        (!self.is_written(upto)).then_some(writing)
    }

    /// The turn to write, whether anything is here or not.
    pub(crate) fn writing(&self) -> Writing<'_> {
        Writing {
            behind: self,
            _turn: self.turn.lock(),
        }
    }
}

impl Writing<'_> {
    /// What is here, which may be nothing. It stays here, to be seen, until [`Writing::written`].
    pub(crate) fn group(&self) -> Group {
        let mut waiting = self.behind.waiting.lock();
        let seen = |here: &mut Here| Seen {
            batch: here.seen.batch.clone(),
            ready: here.seen.ready.take(),
        };
        let batches: Vec<Seen> = waiting.batches.iter_mut().map(seen).collect();
        Group {
            count: batches.len(),
            batches,
            note: waiting.note,
            notes: waiting.notes,
        }
    }

    /// The tables show what these batches have changed. The caller frees them when the turn is over, and tells who waits.
    pub(crate) fn written(&self, group: &Group) -> Vec<Arc<Batch>> {
        let behind = self.behind;
        let mut waiting = behind.waiting.lock();
        let mut batches = Vec::with_capacity(group.count);
        let mut rows = 0;
        for here in (0..group.count).filter_map(|_| waiting.pop()) {
            for hash in &here.hashes {
                behind.at(*hash).fetch_sub(1, Ordering::Release);
            }
            rows += here.hashes.len();
            batches.push(here.seen.batch);
        }
        behind.rows.fetch_sub(rows, Ordering::Release);
        waiting.notes -= group.notes;
        // a greater one has come since
        waiting.note = waiting.note.filter(|_| waiting.notes > 0);
        if group.count > 0 {
            behind.group.store(group.count, Ordering::Relaxed);
            if behind.batches.fetch_sub(group.count, Ordering::Release) > group.count {
                behind.comes_first();
            }
        }
        let count = group.count as u64 + group.notes;
        behind.written.fetch_add(count, Ordering::Release);
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::merged;

    const T: Table = Table("t");
    const U: Table = Table("u");

    fn put(t: Table, key: &'static str, val: &'static str) -> Batch {
        let mut b = Batch::new();
        b.put(t, key, val);
        b
    }

    fn text(t: &'static str) -> Option<Option<Bytes>> {
        Some(Some(Bytes::from_static(t.as_bytes())))
    }

    #[test]
    fn the_last_change_of_a_row_is_seen_and_written() {
        let behind = WriteBehind::default();
        assert!(behind.turn().is_none());
        assert_eq!(behind.find(T, b"a"), None);
        behind.push(put(T, "a", "1").into(), None);
        let mut both = put(T, "a", "2");
        both.put(U, "a", "other").put(T, "b", "3");
        behind.push(both.into(), None);
        let mut gone = Batch::new();
        gone.del(T, "b");
        behind.push(gone.into(), None);
        assert_eq!(behind.find(T, b"a"), text("2"));
        assert_eq!(behind.find(U, b"a"), text("other"));
        assert_eq!(behind.find(T, b"b"), Some(None));
        assert_eq!(behind.find(T, b"c"), None);
        let writing = behind.turn().unwrap();
        let group = writing.group();
        let mut wanted = put(T, "a", "2");
        wanted.put(U, "a", "other").del(T, "b");
        assert_eq!((merged(&group.batches), group.count), (wanted, 3));
        // comes while the others are written, and stays
        behind.push(put(T, "a", "4").into(), None);
        writing.written(&group);
        drop(writing);
        assert_eq!(behind.find(T, b"a"), text("4"));
        assert_eq!(behind.find(U, b"a"), None);
        assert!(behind.turn().is_some());
    }

    /// Rows of few hashes, so that most share theirs, in random batches that come and go: each is found as a search of all finds it.
    #[test]
    fn rows_are_found_by_their_hashes() {
        use rand::{Rng, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let keys: Vec<Bytes> = (0..12_u8).map(|n| Bytes::from(vec![n])).collect();
        let hash = |key: &Bytes| u64::from(key[0] % 4);
        let mut waiting = Waiting::default();
        let mut here: VecDeque<Arc<Batch>> = VecDeque::new();
        for step in 0..20_000_u32 {
            if rng.random_bool(0.5) && waiting.pop().is_some() {
                here.pop_front();
            } else {
                let mut b = Batch::new();
                for _ in 0..rng.random_range(1..4) {
                    let key = keys[rng.random_range(0..keys.len())].clone();
                    match rng.random_bool(0.2) {
                        true => b.del(T, key),
                        false => b.put(T, key, step.to_be_bytes().to_vec()),
                    };
                }
                let hashes = b.ops().iter().map(|op| hash(op.row().1)).collect();
                let batch = Arc::new(b);
                here.push_back(batch.clone());
                let seen = Seen { batch, ready: None };
                waiting.push(seen, hashes);
            }
            let key = &keys[rng.random_range(0..keys.len())];
            let mut all = here.iter().rev().flat_map(|b| b.ops().iter().rev());
            let wanted = all.find(|op| op.row().1 == key);
            assert_eq!(waiting.find(T, key, hash(key)), wanted, "step {step}");
        }
        while waiting.pop().is_some() {}
        assert!(waiting.last.is_empty());
    }

    #[test]
    fn a_note_goes_behind_what_is_here() {
        let behind = WriteBehind::default();
        behind.push(put(T, "a", "1").into(), None);
        behind.note(7);
        behind.note(5);
        let writing = behind.turn().unwrap();
        let group = writing.group();
        assert_eq!((group.note, group.count), (Some(7), 1));
        writing.written(&group);
        drop(writing);
        assert!(behind.turn().is_none());
        behind.note(8);
        let writing = behind.turn().unwrap();
        let group = writing.group();
        assert_eq!((group.note, group.count), (Some(8), 0));
        writing.written(&group);
        drop(writing);
        assert!(behind.turn().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_long_ago_waits_for_no_others() {
        let behind = WriteBehind::default();
        behind.push(put(T, "a", "1").into(), None);
        behind.push(put(T, "b", "1").into(), None);
        assert_eq!(behind.for_all(), Some(2));
        tokio::time::advance(WAIT_MAX).await;
        assert_eq!(behind.for_all(), None);
        let writing = behind.writing();
        let group = writing.group();
        behind.push(put(T, "c", "1").into(), None);
        behind.push(put(T, "d", "1").into(), None);
        writing.written(&group);
        assert_eq!(behind.for_all(), Some(4), "what is left came just now");
    }

    #[tokio::test(start_paused = true)]
    async fn with_very_many_here_nobody_waits_for_more() {
        let behind = WriteBehind::default();
        behind.push(put(T, "a", "1").into(), None);
        assert_eq!(behind.for_all(), None, "one alone");
        behind.note(1);
        assert_eq!(behind.for_all(), None, "a note is none");
        for n in 2..BATCHES_MAX as u64 {
            behind.push(put(T, "a", "1").into(), None);
            assert_eq!(behind.for_all(), Some(n + 1));
        }
        behind.push(put(T, "a", "1").into(), None);
        assert_eq!(behind.for_all(), None);
    }

    #[test]
    fn many_rows_are_written_by_who_brings_them() {
        let behind = WriteBehind::default();
        let mut big = Batch::new();
        (0..ROWS_MAX as u32).for_each(|n| {
            big.put(T, n.to_be_bytes().to_vec(), "");
        });
        assert!(!behind.push(big.into(), None));
        assert!(behind.push(put(T, "a", "1").into(), None));
    }
}
