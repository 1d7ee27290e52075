//! Which OST objects are due, for destruction or to be told their owner: what the table `destroy` or `owner` holds, kept in
//! memory as far as it fits, so that the table is read only after a start, an overflow or a failure (reading it walks over
//! all that was removed from it lately).
//!
//! Only what is on the MDT's disk gets here ([`crate::mdt::waiting`]). What an OST has done stays a row until that is on the
//! OST's disk ([`SyncQueues::settle`]): before that it may be undone by the loss of power, and is done again.
//!
//! Invariant: every row of the table is in [`SyncQueues`], or waits for the MDT's disk, or is ahead of where the next reading
//! begins, or will be read again.

use std::collections::{BTreeMap, VecDeque};

use coral_osd::{Batch, Op, Table};

use crate::mdt::table;

/// Object ids held in memory for each OST.
const HELD_MAX: usize = 16_384;
/// Answers of one OST that it has not committed; beyond that it is asked nothing more until it has (it does every 5 s).
const ANSWERED_MAX: usize = 65_536;

/// When an OST did what it was asked, in its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// Number of the OST's start that was known when it was asked (`ocd_instance`).
    pub(super) instance: u32,
    /// Number of the transaction.
    pub(super) transno: u64,
}

/// The objects of one OST.
struct Queue {
    held: VecDeque<u64>,
    /// Rows from this id on were not read yet; `None`: all rows are held, or taken.
    read_from: Option<u64>,
    /// After this pass the table is read once more from the start.
    again: bool,
    /// Done, and not known to be on the OST's disk.
    answered: BTreeMap<u64, Answered>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            held: VecDeque::new(),
            read_from: Some(0),
            again: false,
            answered: BTreeMap::new(),
        }
    }
}

impl Queue {
    fn push(&mut self, id: u64) {
        match self.held.len() < HELD_MAX {
            true => self.held.push_back(id),
            false => self.read_again(),
        }
    }

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
    /// These.
    Objects(Vec<u64>),
    /// Read rows from this id on, tell [`SyncQueues::read`], go on with what was read.
    Read(u64),
}

/// All that is due, by OST index.
#[derive(Default)]
pub(super) struct SyncQueues {
    queues: BTreeMap<u32, Queue>,
}

impl SyncQueues {
    /// Rows that are on disk.
    pub(super) fn add(&mut self, rows: &[(u32, u64)]) {
        for (ost, id) in rows {
            self.queues.entry(*ost).or_default().push(*id);
        }
    }

    /// Takes at most `max` objects of `ost`.
    pub(super) fn take(&mut self, ost: u32, max: usize) -> Next {
        let q = self.queues.entry(ost).or_default();
        if q.answered.len() >= ANSWERED_MAX {
            return Next::Nothing;
        }
        if !q.held.is_empty() {
            let mut ids: Vec<u64> = q.held.drain(..max.min(q.held.len())).collect();
            ids.sort_unstable();
            ids.dedup();
            // what was answered of them before says nothing of what is asked now
            for id in &ids {
                q.answered.remove(id);
            }
            return Next::Objects(ids);
        }
        q.read_from.take().map_or(Next::Nothing, Next::Read)
    }

    /// The rows asked for by [`Next::Read`] were read; `more`: there may be more behind them. Those that are due.
    pub(super) fn read(&mut self, ost: u32, mut ids: Vec<u64>, more: bool) -> Vec<u64> {
        let q = self.queues.entry(ost).or_default();
        let last = ids.last().copied().filter(|_| more);
        if let Some(last) = last {
            q.again |= q.read_from.is_some();
            q.read_from = Some(last.saturating_add(1));
        } else if std::mem::take(&mut q.again) {
            q.read_from = Some(0);
        }
        ids.retain(|id| !q.answered.contains_key(id));
        ids
    }

    /// The OST has done this one.
    pub(super) fn answered(&mut self, ost: u32, id: u64, when: Answered) {
        self.queues
            .entry(ost)
            .or_default()
            .answered
            .insert(id, when);
    }

    /// The OST, in its start number `instance`, has committed everything up to `committed`. Takes out at most `max` whose rows
    /// may go.
    /// What an earlier start had done may be undone, and is due again.
    pub(super) fn settle(
        &mut self,
        ost: u32,
        instance: u32,
        committed: u64,
        max: usize,
    ) -> Vec<u64> {
        let q = self.queues.entry(ost).or_default();
        let (mut done, mut again) = (Vec::new(), Vec::new());
        q.answered.retain(|id, d| {
            match d.instance == instance {
                true if d.transno > committed || done.len() == max => return true,
                true => done.push(*id),
                false => again.push(*id),
            }
            false
        });
        again.into_iter().for_each(|id| q.push(id));
        done
    }

    /// Some of what was taken is still there, or the reading failed.
    pub(super) fn missed(&mut self, ost: u32) {
        self.queues.entry(ost).or_default().read_again();
    }

    /// There are rows that nobody told of.
    pub(super) fn missed_all(&mut self) {
        self.queues.values_mut().for_each(Queue::read_again);
    }
}

/// The objects that `batch` makes due in table `t`.
pub(in crate::mdt) fn of_batch(batch: &Batch, t: Table) -> Vec<(u32, u64)> {
    let row = |op: &Op| match op {
        Op::Put { table, key, .. } if *table == t => table::destroy_of_key(key),
        _ => None,
    };
    batch.ops().iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// An OST's numbers.
    #[derive(Default)]
    struct Ost {
        instance: u32,
        transno: u64,
        committed: u64,
    }

    impl Ost {
        fn next(&mut self) -> u64 {
            self.transno += 1;
            self.transno
        }
    }

    /// The rows that are settled go.
    fn settle(queues: &mut SyncQueues, rows: &mut BTreeSet<u64>, ost: &Ost) {
        let gone = queues.settle(0, ost.instance, ost.committed, usize::MAX);
        rows.retain(|id| !gone.contains(id));
    }

    /// What the task in `osp` does in one round, against a table; `fails`: the OST destroys only half of it.
    fn round(
        queues: &mut SyncQueues,
        rows: &mut BTreeSet<u64>,
        max: usize,
        ost: &mut Ost,
        fails: bool,
        meanwhile: &[u64],
    ) -> bool {
        let ids: Vec<u64> = match queues.take(0, max) {
            Next::Nothing => return false,
            Next::Objects(ids) => ids,
            Next::Read(from) => {
                let ids: Vec<u64> = rows.range(from..).take(max).copied().collect();
                commit(queues, rows, meanwhile);
                let more = ids.len() == max;
                queues.read(0, ids, more)
            }
        };
        let gone = if fails { ids.len() / 2 } else { ids.len() };
        ids[..gone].iter().for_each(|id| {
            queues.answered(
                0,
                *id,
                Answered {
                    instance: ost.instance,
                    transno: ost.next(),
                },
            )
        });
        if gone < ids.len() {
            queues.missed(0);
        }
        true
    }

    fn commit(queues: &mut SyncQueues, rows: &mut BTreeSet<u64>, ids: &[u64]) {
        rows.extend(ids);
        queues.add(&ids.iter().map(|id| (0, *id)).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn no_row_is_forgotten(
            first in prop::collection::btree_set(0u64..200, 0..30),
            steps in prop::collection::vec((prop::collection::vec(0u64..200, 0..8), any::<bool>(), prop::collection::vec(0u64..200, 0..3), 0..3), 0..30),
        ) {
            let (mut queues, mut rows, mut ost) = (SyncQueues::default(), first, Ost::default());
            for (ids, fails, meanwhile, then) in &steps {
                commit(&mut queues, &mut rows, ids);
                round(&mut queues, &mut rows, 4, &mut ost, *fails, meanwhile);
                match then {
                    0 => ost.committed = ost.transno,
                    // numbers that were not committed are given again
                    1 => (ost.instance, ost.transno) = (ost.instance + 1, ost.committed),
                    _ => (),
                }
                settle(&mut queues, &mut rows, &ost);
            }
            while round(&mut queues, &mut rows, 4, &mut ost, false, &[]) {}
            ost.committed = ost.transno;
            settle(&mut queues, &mut rows, &ost);
            prop_assert!(rows.is_empty(), "{rows:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_read_from_the_table() {
        let (mut queues, mut rows) = (SyncQueues::default(), BTreeSet::new());
        assert_eq!(
            queues.take(0, 10),
            Next::Read(0),
            "after a start nothing is known"
        );
        queues.read(0, vec![], false);
        assert_eq!(queues.take(0, 10), Next::Nothing);
        commit(
            &mut queues,
            &mut rows,
            &(0..HELD_MAX as u64 + 100).collect::<Vec<_>>(),
        );
        let mut ost = Ost::default();
        while round(&mut queues, &mut rows, 512, &mut ost, false, &[]) {}
        ost.committed = ost.transno;
        settle(&mut queues, &mut rows, &ost);
        assert!(rows.is_empty());
    }

    #[test]
    fn a_row_goes_when_the_ost_has_committed_and_is_due_again_when_it_has_lost_it() {
        let mut queues = SyncQueues::default();
        assert_eq!(queues.take(0, 10), Next::Read(0));
        assert_eq!(queues.read(0, vec![1, 2, 3], false), [1, 2, 3]);
        for id in 1..=3 {
            queues.answered(
                0,
                id,
                Answered {
                    instance: 7,
                    transno: 10 + id,
                },
            );
        }
        assert_eq!(queues.settle(0, 7, 10, 10), [0; 0]);
        queues.missed(0);
        assert_eq!(queues.take(0, 10), Next::Read(0));
        assert_eq!(
            queues.read(0, vec![1, 2, 3, 4], false),
            [4],
            "those are done"
        );
        assert_eq!(queues.settle(0, 7, 11, 10), [1]);
        assert_eq!(
            queues.settle(0, 8, 1000, 10),
            [0; 0],
            "numbers of another start say nothing"
        );
        assert_eq!(queues.take(0, 10), Next::Objects(vec![2, 3]));
        assert_eq!(queues.take(0, 10), Next::Nothing);
    }

    #[test]
    fn an_ost_that_commits_nothing_destroys_so_much_and_no_more() {
        let mut queues = SyncQueues::default();
        queues.add(&[(0, 0)]);
        (0..ANSWERED_MAX as u64).for_each(|id| {
            queues.answered(
                0,
                id + 1,
                Answered {
                    instance: 1,
                    transno: id,
                },
            )
        });
        assert_eq!(queues.take(0, 10), Next::Nothing);
        assert_eq!(queues.settle(0, 1, 0, 10), [1]);
        assert_eq!(queues.take(0, 10), Next::Objects(vec![0]));
    }
}
