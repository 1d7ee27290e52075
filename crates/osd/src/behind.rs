//! Batches that are seen and have yet to be written: who commits puts his batch here and lets go of his locks, and who then waits
//! for it writes all that are here as one.
//!
//! So of what one change after the other must do, the longer half (the journal, the sorted tables) is done while the next change is
//! being made; and where several wait, their rows are written once and in one piece.
//!
//! Invariants:
//! * Batches are written in the order in which they came, each whole or not at all.
//! * A lookup sees every batch that is here; ranges are read when nothing is left here.
//! * One writes at a time, with [`WriteBehind::writing`] in hand.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use crate::marks::Marks;
use crate::{Batch, Op, Ready, Table};

/// With more rows than this waiting, who commits writes them himself: lookups go through all of them.
const ROWS_MAX: usize = 128;

/// A batch, and what was made of it so that it is written sooner.
struct Change {
    batch: Arc<Batch>,
    ready: Option<Ready>,
}

/// Batches in the order in which they came.
#[derive(Default)]
struct Waiting {
    batches: VecDeque<Change>,
    /// The greatest number that is to be noted behind them, and how many came with it.
    note: Option<u64>,
    notes: u64,
}

/// The batches of one device.
#[derive(Default)]
pub(crate) struct WriteBehind {
    waiting: Mutex<Waiting>,
    /// Rows of these, to be seen without the lock; 0 when all are written.
    rows: AtomicUsize,
    /// Batches and notes that came.
    came: AtomicU64,
    /// Of these, those that were written.
    written: AtomicU64,
    turn: Mutex<()>,
    /// They tell whether a row was changed by a batch that came.
    pub(crate) marks: Marks,
}

/// The turn of whoever writes.
pub(crate) struct Writing<'a> {
    behind: &'a WriteBehind,
    _turn: MutexGuard<'a, ()>,
}

/// What is to be written, as one batch.
pub(crate) struct Group {
    pub(crate) batch: Arc<Batch>,
    /// Of `batch`, where it is one that came so.
    pub(crate) ready: Option<Ready>,
    /// Noted behind it.
    pub(crate) note: Option<u64>,
    batches: usize,
    notes: u64,
}

fn value(op: &Op) -> Option<Bytes> {
    match op {
        Op::Put { val, .. } => Some(val.clone()),
        Op::Del { .. } => None,
    }
}

/// The changes of these batches, those of each row by the last of them alone: a row that all change is written once.
fn merged<'a>(changes: impl Iterator<Item = &'a Change>) -> Batch {
    let ops: Vec<&'a Op> = changes.flat_map(|c| c.batch.ops()).collect();
    let mut seen = BTreeSet::new();
    let mut kept = Vec::with_capacity(ops.len());
    for op in ops.into_iter().rev() {
        if seen.insert(op.row()) {
            kept.push(op.clone());
        }
    }
    kept.reverse();
    Batch::from(kept)
}

impl WriteBehind {
    /// Takes a batch in: it is seen from now on. True if it is time to write.
    pub(crate) fn push(&self, batch: Arc<Batch>, ready: Option<Ready>) -> bool {
        let mut waiting = self.waiting.lock();
        let rows = self.rows.fetch_add(batch.len(), Ordering::Release) + batch.len();
        waiting.batches.push_back(Change { batch, ready });
        self.came.fetch_add(1, Ordering::Release);
        rows > ROWS_MAX
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
        let waiting = self.waiting.lock();
        let mut ops = waiting
            .batches
            .iter()
            .rev()
            .flat_map(|c| c.batch.ops().iter().rev());
        ops.find(|op| matches!(op.row(), (table, k) if table == t && k == key))
            .map(value)
    }

    /// The turn to write, which is waited for; `None` if what was here has been written meanwhile.
    pub(crate) fn turn(&self) -> Option<Writing<'_>> {
        let upto = self.came.load(Ordering::Acquire);
        let done = || self.written.load(Ordering::Acquire) >= upto;
        if done() {
            return None;
        }
        let writing = self.writing();
        (!done()).then_some(writing)
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
    /// What is here, as one batch, which may be empty. It stays here, to be seen, until [`Writing::written`].
    pub(crate) fn group(&self) -> Group {
        let mut waiting = self.behind.waiting.lock();
        let (batch, ready) = match waiting.batches.make_contiguous() {
            [] => Default::default(),
            [one] => (one.batch.clone(), one.ready.take()),
            several => (Arc::new(merged(several.iter())), None),
        };
        Group {
            batch,
            ready,
            note: waiting.note,
            batches: waiting.batches.len(),
            notes: waiting.notes,
        }
    }

    /// The tables show what these batches have changed.
    pub(crate) fn written(&self, group: &Group) {
        let mut waiting = self.behind.waiting.lock();
        let rows = waiting
            .batches
            .drain(..group.batches)
            .map(|c| c.batch.len())
            .sum();
        self.behind.rows.fetch_sub(rows, Ordering::Release);
        waiting.notes -= group.notes;
        // a greater one has come since
        waiting.note = waiting.note.filter(|_| waiting.notes > 0);
        let count = group.batches as u64 + group.notes;
        self.behind.written.fetch_add(count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((&*group.batch, group.batches), (&wanted, 3));
        // comes while the others are written, and stays
        behind.push(put(T, "a", "4").into(), None);
        writing.written(&group);
        drop(writing);
        assert_eq!(behind.find(T, b"a"), text("4"));
        assert_eq!(behind.find(U, b"a"), None);
        assert!(behind.turn().is_some());
    }

    #[test]
    fn a_note_goes_behind_what_is_here() {
        let behind = WriteBehind::default();
        behind.push(put(T, "a", "1").into(), None);
        behind.note(7);
        behind.note(5);
        let writing = behind.turn().unwrap();
        let group = writing.group();
        assert_eq!((group.note, group.batch.len()), (Some(7), 1));
        writing.written(&group);
        drop(writing);
        assert!(behind.turn().is_none());
        behind.note(8);
        let writing = behind.turn().unwrap();
        let group = writing.group();
        assert_eq!((group.note, group.batch.len()), (Some(8), 0));
        writing.written(&group);
        drop(writing);
        assert!(behind.turn().is_none());
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
