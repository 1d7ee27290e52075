//! Whether a row was changed since it was read.
//!
//! Who changes tables under a lock of his own can read rows before he has it, and under the lock only ask whether they are still so.
//! Rows are told apart by their hashes: one that was not changed may be taken for one that was, never the other way round.

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::{Batch, Table};

/// Places that rows share.
const PLACES: usize = 4096;

/// What a row's place said before the row was read ([`crate::Device::mark`]).
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    place: usize,
    changes: u64,
}

/// How often a row of each place was changed.
pub(crate) struct Marks(Box<[AtomicU64]>);

impl Default for Marks {
    fn default() -> Marks {
        Marks((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

/// A row's hash.
pub(crate) fn hash(t: Table, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, xxh3_64(t.0.as_bytes()))
}

fn place(t: Table, key: &[u8]) -> usize {
    hash(t, key) as usize % PLACES
}

impl Marks {
    /// The mark of a row, which is taken before the row is read.
    pub(crate) fn of(&self, t: Table, key: &[u8]) -> Mark {
        let place = place(t, key);
        Mark {
            place,
            changes: self.0[place].load(Ordering::Acquire),
        }
    }

    /// Whether no row of that place was changed since. The caller holds the lock under which rows are changed.
    pub(crate) fn is_unchanged(&self, mark: &Mark) -> bool {
        self.0[mark.place].load(Ordering::Acquire) == mark.changes
    }

    /// The rows of this batch were changed, and are seen so: whoever finds this in a mark finds them when he reads.
    pub(crate) fn changed(&self, batch: &Batch) {
        for op in batch.ops() {
            let (table, key) = op.row();
            self.0[place(table, key)].fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_changed_is_told() {
        let (t, u) = (Table("t"), Table("u"));
        let marks = Marks::default();
        let before = [marks.of(t, b"a"), marks.of(u, b"a"), marks.of(t, b"b")];
        let mut b = Batch::new();
        b.put(t, "a", "1").del(t, "b");
        marks.changed(&b);
        let unchanged = before.map(|m| marks.is_unchanged(&m));
        assert_eq!(unchanged, [false, true, false]);
        assert!(marks.is_unchanged(&marks.of(t, b"a")));
    }
}
