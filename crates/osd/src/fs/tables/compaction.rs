//! When the store is asked to write its tables anew: to give space back after many removals, and to leave little to read to the next start.
//!
//! fjall merges the files of a table as new ones come. When nothing is written any more, what was removed last stays on the disk
//! with the marks of its removal. So a table of which as many rows were removed as are left is written whole: that costs each
//! removal as much as one row at most.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions};
use parking_lot::Mutex;

use super::{NEWEST, NEWEST_KEY, Store, Tables, from_fjall};
use crate::{Batch, OsdError, Table};

/// Removals of a table below which it is left alone.
const REMOVED_MIN: u64 = 100_000;
/// A store that closes with less than so many bytes of changes in memory and in its newest journal leaves them to the next start.
const CLOSE_BYTES: u64 = 4 << 20;
/// A closing store waits so long for its changes to be sorted to disk; what is not is in the journals.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// How often it looks.
const CLOSE_LOOK: Duration = Duration::from_millis(5);

/// Rows removed from each table since it was written whole.
#[derive(Default)]
pub(super) struct Removed(Mutex<BTreeMap<Table, u64>>);

impl Removed {
    /// A row was removed from each of these.
    pub(super) fn note(&self, tables: &[Table]) {
        if !tables.is_empty() {
            let mut removed = self.0.lock();
            for table in tables {
                *removed.entry(*table).or_default() += 1;
            }
        }
    }

    /// A table of which much was removed, and how much, for which `is_sparse` says that it is as much as is left. It counts from
    /// none again.
    fn take(&self, is_sparse: &dyn Fn(Table, u64) -> bool) -> Option<Table> {
        let mut removed = self.0.lock();
        let sparse = |(table, n): (&Table, &u64)| {
            (*n >= REMOVED_MIN && is_sparse(*table, *n)).then_some(*table)
        };
        let table = removed.iter().find_map(sparse)?;
        removed.remove(&table);
        Some(table)
    }
}

impl Tables {
    /// Whether [`Tables::compact`] may have something to do.
    pub(in crate::fs) fn has_many_removals(&self) -> bool {
        self.removed.0.lock().values().any(|n| *n >= REMOVED_MIN)
    }

    /// Writes tables anew of which much was removed. Takes as long as writing what is left in them.
    pub(in crate::fs) fn compact(&self) -> Result<(), OsdError> {
        // One at a time.
        let Some(_turn) = self.compacting.try_lock() else {
            return Ok(());
        };
        // The store is not opened again meanwhile.
        let store = self.store.read();
        let is_sparse = |table, removed: u64| {
            // rows and marks of removals: both are counted
            let rows = store.keyspace(table).map(|k| k.approximate_len() as u64);
            rows.is_ok_and(|rows| removed >= rows / 2)
        };
        while let Some(table) = self.removed.take(&is_sparse) {
            let keyspace = store.keyspace(table)?;
            tracing::info!(dir = %self.syncs.dir.display(), table = table.0, "writing a table anew of which much was removed");
            keyspace.rotate_memtable().map_err(from_fjall)?;
            wait_for_sorting(std::slice::from_ref(&keyspace));
            keyspace.major_compact().map_err(from_fjall)?;
        }
        self.space.set_unsorted(store.db()?.write_buffer_size());
        Ok(())
    }
}

impl Tables {
    /// Whether the next start would have much to read of what is in memory, or in the newest journal.
    pub(super) fn has_much_to_read(&mut self) -> bool {
        let db = self.store.get_mut().db.as_ref();
        let unsorted = db.map_or(0, Database::write_buffer_size);
        self.syncs.newest_bytes().max(unsorted) > CLOSE_BYTES
    }

    /// Closes the store with all changes sorted to disk. False: some are left to the next start.
    pub(super) fn close_sorted(&mut self) -> bool {
        let mut last = Batch::new();
        last.put(NEWEST, NEWEST_KEY, "");
        let noted = self.commit(last);
        let store = self.store.get_mut();
        let sorted = noted.is_ok() && store.sort_all();
        store.close();
        sorted
    }
}

impl Store {
    /// With `unsorted` bytes of recent changes in memory: where that is too much, those of the table that has most are sorted to disk.
    pub(super) fn bound(&self, unsorted: u64) {
        let most = self.unsorted_bytes;
        if unsorted < self.look_at.load(Ordering::Relaxed) {
            if unsorted < most {
                self.look_at.store(most, Ordering::Relaxed);
            }
            return;
        }
        // what is being sorted counts until it is on the disk
        let part = most / 8;
        self.look_at.store(unsorted + part, Ordering::Relaxed);
        let size = |k: &Keyspace| k.tree.active_memtable().size();
        let open = self.open.read();
        let sizes = open.iter().map(|(_, k)| (size(k), k));
        let Some((_, largest)) = sizes.filter(|(n, _)| *n >= part).max_by_key(|(n, _)| *n) else {
            return;
        };
        if let Err(error) = largest.rotate_memtable() {
            tracing::debug!(dir = %self.dir.display(), %error, "recent changes stay in memory");
        }
    }

    /// Sorts to disk what is in memory, before the store is closed. False: not all of it.
    fn sort_all(&self) -> bool {
        let Some(db) = &self.db else {
            return false;
        };
        let names = db.list_keyspace_names();
        let mut keyspaces = Vec::with_capacity(names.len());
        for name in names {
            let sorted = db
                .keyspace(&name, KeyspaceCreateOptions::default)
                .and_then(|k| k.rotate_memtable().map(|_| keyspaces.push(k)));
            if let Err(error) = sorted {
                tracing::debug!(%error, table = &*name, "left to the next start");
                return false;
            }
        }
        wait_for_sorting(&keyspaces)
    }

    /// Ends its threads.
    pub(super) fn close(&mut self) {
        self.open.get_mut().clear();
        self.db = None;
    }
}

/// Waits until nothing is being sorted to disk; false: it takes too long, or cannot be.
#[expect(
    clippy::disallowed_methods,
    reason = "on a thread that may wait for the disk; fjall has no other way to hear of it"
)]
fn wait_for_sorting(keyspaces: &[Keyspace]) -> bool {
    let looks = CLOSE_WAIT.as_millis() / CLOSE_LOOK.as_millis();
    for _ in 0..looks {
        if keyspaces.iter().all(|k| k.sealed_memtable_count() == 0) {
            return true;
        }
        std::thread::sleep(CLOSE_LOOK);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_taken_when_as_much_was_removed_as_is_left() {
        let (some, other) = (Table("some"), Table("other"));
        let removed = Removed::default();
        removed.note(&vec![some; REMOVED_MIN as usize - 1]);
        removed.note(&[other]);
        assert_eq!(removed.take(&|_, _| true), None, "too few");
        removed.note(&[some]);
        assert_eq!(removed.take(&|_, n| n > REMOVED_MIN), None, "more are left");
        assert_eq!(removed.take(&|_, n| n == REMOVED_MIN), Some(some));
        assert_eq!(removed.take(&|_, _| true), None);
    }
}
