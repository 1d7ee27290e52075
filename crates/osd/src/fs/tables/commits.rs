//! Batches on their way into the store: what of them is made before their turn has come, and several written as one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fjall::{PersistMode, UserKey, UserValue};

use super::{NEWEST, NEWEST_KEY, Store, Tables, from_fjall};
use crate::fs::space::Class;
use crate::{Batch, Op, OsdError, Ready, Seen};

/// Journal bytes a change takes beside its key and value.
const CHANGE_OVERHEAD_BYTES: u64 = 64;

/// A batch as an open store takes it, made before its turn to be written has come.
pub(in crate::fs) struct Rows {
    /// [`Store::number`].
    store: u64,
    class: Class,
    bytes: u64,
    rows: Vec<Row>,
}

struct Row {
    /// Its table's place in [`Store::open`].
    table: usize,
    key: UserKey,
    /// Without one it goes.
    val: Option<UserValue>,
}

impl Store {
    fn rows(&self, b: &Batch) -> Result<Rows, OsdError> {
        let (class, bytes) = weigh(b)?;
        let row = |op: &Op| {
            let (table, key) = op.row();
            let val = match op {
                Op::Put { val, .. } => Some(val[..].into()),
                Op::Del { .. } => None,
            };
            Ok(Row {
                table: self.place(table)?,
                key: key[..].into(),
                val,
            })
        };
        Ok(Rows {
            store: self.number,
            class,
            bytes,
            rows: b.ops().iter().map(row).collect::<Result<_, OsdError>>()?,
        })
    }

    /// The row of [`NEWEST`], where its table could be made.
    fn newest(&self) -> Option<Row> {
        Some(Row {
            table: self.place(NEWEST).ok()?,
            key: NEWEST_KEY.into(),
            val: Some([][..].into()),
        })
    }
}

impl Tables {
    /// What [`Tables::commit_seen`] needs of `b`. `None`: it will find out why there is nothing.
    pub(in crate::fs) fn ready(&self, b: &Batch) -> Option<Rows> {
        self.store.read().rows(b).ok()
    }

    pub(in crate::fs) fn commit(&self, b: Batch) -> Result<(), OsdError> {
        self.commit_as(vec![(Arc::new(b), None)], false)
    }

    /// Others have seen them already, so they get what is kept for removals.
    pub(in crate::fs) fn commit_seen(&self, seen: Vec<Seen>) -> Result<(), OsdError> {
        let rows = |r: Ready| r.downcast::<Rows>().ok().map(|r| *r);
        let batches = seen
            .into_iter()
            .map(|s| (s.batch, s.ready.and_then(rows)))
            .filter(|(b, _)| !b.is_empty());
        self.commit_as(batches.collect(), true)
    }

    fn commit_as(
        &self,
        mut batches: Vec<(Arc<Batch>, Option<Rows>)>,
        seen: bool,
    ) -> Result<(), OsdError> {
        self.syncs.refuse_after_failure()?;
        let (mut class, mut bytes) = (Class::Removal, 0);
        for (batch, rows) in &batches {
            let (its, more) = match rows {
                Some(rows) => (rows.class, rows.bytes),
                None => weigh(batch)?,
            };
            bytes += more;
            if !seen {
                class = its;
            }
        }
        if bytes == 0 {
            return Ok(());
        }
        // What removes something is tried once more where the kernel had counted room that is none.
        let mut again = class == Class::Removal;
        loop {
            if self.syncs.stuck.load(Ordering::Acquire) {
                self.revive(class)?;
            }
            // Once for the journal and once for the sorted table.
            self.space.admit(class, 2 * bytes)?;
            let e = match self.commit_now(&mut batches) {
                Ok(written) => {
                    let (dir, failed) = (&self.syncs.dir, &self.syncs.failed);
                    self.write_out.wrote(written, dir, failed);
                    return Ok(());
                }
                Err(e) => e,
            };
            tracing::error!(dir = %self.syncs.dir.display(), error = %e, "a change of the tables could not be written");
            if !std::mem::take(&mut again) {
                if seen {
                    // whoever waits for it tries again, and the tables are opened again then
                    return Err(OsdError::NoSpace);
                }
                let full = matches!(e, OsdError::Poisoned(_)) && !self.space.may_begin(class);
                return Err(if full { OsdError::NoSpace } else { e });
            }
        }
    }

    /// Takes their rows. The bytes that were written.
    fn commit_now(&self, batches: &mut [(Arc<Batch>, Option<Rows>)]) -> Result<u64, OsdError> {
        let store = self.store.read();
        let db = store.db()?;
        let rows = |(batch, rows): &mut (Arc<Batch>, Option<Rows>)| match rows.take() {
            Some(rows) if rows.store == store.number => Ok(rows.rows),
            _ => Ok(store.rows(batch)?.rows),
        };
        let all = batches.iter_mut().map(rows);
        let mut all = all.collect::<Result<Vec<_>, OsdError>>()?;
        let mut rows = match all.len() {
            1 => std::mem::take(&mut all[0]),
            _ => last_of_each(all.into_iter().flatten().collect()),
        };
        if rows.iter().all(|r| r.val.is_none()) {
            rows.extend(store.newest());
        }
        let mut batch = fjall::OwnedWriteBatch::with_capacity(db.clone(), rows.len())
            .durability(Some(PersistMode::Buffer));
        let (mut bytes, mut removed) = (0, Vec::new());
        let open = store.open.read();
        for Row { table, key, val } in rows {
            let (table, keyspace) = &open[table];
            let val_bytes = val.as_ref().map_or(0, |v| v.len());
            bytes += (key.len() + val_bytes) as u64 + CHANGE_OVERHEAD_BYTES;
            match val {
                Some(val) => batch.insert(keyspace, key, val),
                None => {
                    removed.push(*table);
                    batch.remove(keyspace, key);
                }
            }
        }
        drop(open);
        let next = db.seqno();
        if let Err(e) = batch.commit() {
            // while this store is the one in use: one that was opened since is well
            self.syncs.stuck.store(true, Ordering::Release);
            self.space.forget_allowances();
            return Err(from_fjall(e));
        }
        self.syncs.acked.committed(next);
        self.removed.note(&removed);
        let unsorted = db.write_buffer_size();
        self.space.set_unsorted(unsorted);
        store.bound(unsorted);
        Ok(bytes)
    }
}

/// The last change of each row: a row that all change is written once.
fn last_of_each(mut rows: Vec<Row>) -> Vec<Row> {
    let mut seen = HashSet::with_capacity(rows.len());
    let last = |r: &Row| seen.insert((r.table, r.key.clone()));
    let mut kept: Vec<bool> = rows.iter().rev().map(last).collect();
    rows.retain(|_| kept.pop().unwrap_or(true));
    rows
}

/// What a batch needs of the disk. A batch that removes something, or grows no table of names, may use more of it.
pub(super) fn weigh(b: &Batch) -> Result<(Class, u64), OsdError> {
    let (mut removes, mut puts, mut grows) = (false, false, false);
    let mut bytes = 0;
    for op in b.ops() {
        let (key, val) = match op {
            Op::Put { table, key, val } => {
                puts = true;
                grows |= !table.is_vital();
                (key, val.len())
            }
            Op::Del { key, .. } => {
                removes = true;
                (key, 0)
            }
        };
        if key.is_empty() || key.len() > u16::MAX as usize {
            return Err(OsdError::Invalid("a key of no bytes or more than 65535"));
        }
        bytes += key.len() as u64 + val as u64 + CHANGE_OVERHEAD_BYTES;
    }
    if removes && !puts {
        bytes += NEWEST_KEY.len() as u64 + CHANGE_OVERHEAD_BYTES;
    }
    Ok((
        if removes || !grows {
            Class::Removal
        } else {
            Class::Table
        },
        bytes,
    ))
}
