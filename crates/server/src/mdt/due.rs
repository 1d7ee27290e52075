//! Which OST objects are due for destruction: what the table `destroy` holds, kept in memory as far as it fits, so that the
//! table is read only after a start, an overflow or a failure (reading it walks over all that was removed from it lately).
//!
//! Invariant: every row of the table is in [`Due`], or ahead of where the next reading begins, or will be read again.

use std::collections::{BTreeMap, VecDeque};

use coral_osd::{Batch, Op};

use super::table;

/// Object ids held in memory for each OST.
const HELD_MAX: usize = 16_384;

/// The objects of one OST.
struct Queue {
    held: VecDeque<u64>,
    /// Rows from this id on were not read yet; `None`: all rows are held, or taken.
    read_from: Option<u64>,
    /// After this pass the table is read once more from the start.
    again: bool,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { held: VecDeque::new(), read_from: Some(0), again: false }
    }
}

impl Queue {
    fn read_again(&mut self) {
        match self.read_from {
            None => self.read_from = Some(0),
            Some(_) => self.again = true,
        }
    }
}

/// What to do next for an OST.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing is due.
    Nothing,
    /// Destroy these.
    Destroy(Vec<u64>),
    /// Read rows from this id on, tell [`Due::read`], destroy what was read.
    Read(u64),
}

/// All that is due, by OST index.
#[derive(Default)]
pub(super) struct Due {
    queues: BTreeMap<u32, Queue>,
}

impl Due {
    /// Rows that were committed.
    pub(super) fn add(&mut self, rows: &[(u32, u64)]) {
        for (ost, id) in rows {
            let q = self.queues.entry(*ost).or_default();
            match q.held.len() < HELD_MAX {
                true => q.held.push_back(*id),
                false => q.read_again(),
            }
        }
    }

    /// Takes at most `max` objects of `ost`.
    pub(super) fn take(&mut self, ost: u32, max: usize) -> Next {
        let q = self.queues.entry(ost).or_default();
        if !q.held.is_empty() {
            return Next::Destroy(q.held.drain(..max.min(q.held.len())).collect());
        }
        q.read_from.take().map_or(Next::Nothing, Next::Read)
    }

    /// The rows asked for by [`Next::Read`] were read; `last`: the last id, if there may be more behind it.
    pub(super) fn read(&mut self, ost: u32, last: Option<u64>) {
        let q = self.queues.entry(ost).or_default();
        if let Some(last) = last {
            q.again |= q.read_from.is_some();
            q.read_from = Some(last.saturating_add(1));
        } else if std::mem::take(&mut q.again) {
            q.read_from = Some(0);
        }
    }

    /// Some of what was taken is still there, or the reading failed.
    pub(super) fn missed(&mut self, ost: u32) {
        self.queues.entry(ost).or_default().read_again();
    }
}

/// The objects that `batch` makes due.
pub(super) fn of_batch(batch: &Batch) -> Vec<(u32, u64)> {
    let row = |op: &Op| match op {
        Op::Put { table: table::DESTROY, key, .. } => table::destroy_of_key(key),
        _ => None,
    };
    batch.ops().iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What the task in `osp` does in one round, against a table; `fails`: the OST destroys only half of it.
    fn round(due: &mut Due, rows: &mut BTreeSet<u64>, max: usize, fails: bool, meanwhile: &[u64]) -> bool {
        let ids: Vec<u64> = match due.take(0, max) {
            Next::Nothing => return false,
            Next::Destroy(ids) => ids,
            Next::Read(from) => {
                let ids: Vec<u64> = rows.range(from..).take(max).copied().collect();
                commit(due, rows, meanwhile);
                due.read(0, ids.last().copied().filter(|_| ids.len() == max));
                ids
            }
        };
        let gone = if fails { ids.len() / 2 } else { ids.len() };
        rows.retain(|id| !ids[..gone].contains(id));
        if gone < ids.len() {
            due.missed(0);
        }
        true
    }

    fn commit(due: &mut Due, rows: &mut BTreeSet<u64>, ids: &[u64]) {
        rows.extend(ids);
        due.add(&ids.iter().map(|id| (0, *id)).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn no_row_is_forgotten(
            first in prop::collection::btree_set(0u64..200, 0..30),
            steps in prop::collection::vec((prop::collection::vec(0u64..200, 0..8), any::<bool>(), prop::collection::vec(0u64..200, 0..3)), 0..30),
        ) {
            let (mut due, mut rows) = (Due::default(), first);
            for (ids, fails, meanwhile) in &steps {
                commit(&mut due, &mut rows, ids);
                round(&mut due, &mut rows, 4, *fails, meanwhile);
            }
            while round(&mut due, &mut rows, 4, false, &[]) {}
            prop_assert!(rows.is_empty(), "{rows:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_read_from_the_table() {
        let (mut due, mut rows) = (Due::default(), BTreeSet::new());
        assert_eq!(due.take(0, 10), Next::Read(0), "after a start nothing is known");
        due.read(0, None);
        assert_eq!(due.take(0, 10), Next::Nothing);
        commit(&mut due, &mut rows, &(0..HELD_MAX as u64 + 100).collect::<Vec<_>>());
        while round(&mut due, &mut rows, 512, false, &[]) {}
        assert!(rows.is_empty());
    }
}
