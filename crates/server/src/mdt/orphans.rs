//! Objects that no file refers to: the loss of power took back the creation of their file, and nobody replayed it. They are found
//! in the background after a start that follows no clean stop, when recovery is over (Lustre: `OBD_FL_DELORPHAN` in
//! `lustre/ofd/ofd_dev.c`, which goes by the last ids).
//!
//! On OSTs: this MDT gives the ids, and reserves them on disk before ([`super::stripe`]). Looked through are the ids that earlier
//! starts had reserved, from the first one of which a file may have been lost. One that is in no layout is put into the
//! table `destroy`. Nothing else goes:
//! * None of these ids is given to a file from now on: new files get ids that this start reserves, and the layouts that clients
//!   bring with a replay end with recovery.
//! * A file that is there all the time is seen, as its record stays at its key. Of one that goes meanwhile the objects are to be
//!   destroyed anyway.
//! * Objects of a file that went to another MDT are noted with that.
//! * A record or layout that does not parse ends the look: what it refers to is not known.
//!
//! On the MDT: the data of a file has the file's FID for its id, and only a file that is there can be written. Data without a file
//! is put into the table `destroy`, too: no new file gets that FID. All of it is looked through.
//!
//! Absent: an object that a client makes again by writing to it, after the MDT has evicted that client with the creation of the
//! file unreplayed; objects lost by starts before this was looked for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_osd::{Batch, Device, Kv, ObjectId, OsdError};
use coral_wire::Fid;
use coral_wire::fid::seq;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::fld;
use super::follows::Follows;
use super::handler::MdtOps;
use super::object_ids::{self, RESERVE_IDS};
use super::record::Inode;
use super::store::{MdtError, MdtResult, Store, torn};
use super::stripe;
use super::table::{self, fid_key};
use crate::target::{LuTarget, stored_transno};

/// Ids of one OST looked for in one pass over the files.
const PASS_IDS: u64 = 65_536;
/// Records read at a time.
const CHUNK: usize = 512;
/// Ids of one row of the table `destroy`, which is one request.
const ROW_IDS: u64 = 512;
/// Objects on the MDT found in one pass.
const PASS_OBJECTS: usize = 4096;
/// Pause after a pass that failed.
const RETRY: Duration = Duration::from_secs(60);

/// Last transno of a clean stop; there from then until the next start.
const KEY_STOPPED: &[u8] = b"stopped";

/// There where data without a file may be all that is left of one: no start looks for it from then on.
const KEY_KEEPS_DATA: &[u8] = b"keeps-data";

/// What earlier starts have left to be looked through.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Ids by OST.
    ids: BTreeMap<u32, Range<u64>>,
    /// The objects of the MDT.
    data: bool,
}

/// Finds out what is to be looked through, before the target starts. `kv` is synced by that start.
pub(super) fn left(kv: &Device) -> Result<Left, OsdError> {
    let transno = stored_transno(&**kv)?.unwrap_or(0);
    let stopped = kv.get(table::META, KEY_STOPPED)?;
    let clean = stopped
        .as_deref()
        .is_some_and(|n| n == transno.to_le_bytes());
    let keeps_data = kv.get(table::META, KEY_KEEPS_DATA)?.is_some();
    let mut left = Left {
        ids: BTreeMap::new(),
        data: !clean && !keeps_data,
    };
    let mut b = Batch::new();
    b.del(table::META, KEY_STOPPED);
    let first = object_ids::first_id(fld::index(&**kv)?);
    let floor = object_ids::floor(&**kv)?;
    for (ost, reserved) in object_ids::all_reserved(&**kv)? {
        let seen = object_ids::seen(&**kv, ost)?
            .unwrap_or(reserved.saturating_sub(2 * RESERVE_IDS))
            .max(first);
        object_ids::forget_moved(&**kv, &mut b, ost, seen)?;
        // what may be left of files that an older copy of the MDT does not know is not this MDT's to destroy
        let seen = match floor < reserved {
            true => seen.max(floor),
            false => seen,
        };
        if clean {
            object_ids::put_seen(&mut b, ost, reserved);
        } else if seen < reserved {
            left.ids.insert(ost, seen..reserved);
        }
    }
    kv.commit(b)?;
    Ok(left)
}

/// The MDT on `kv` is an older copy: files that it does not know may be on other MDTs, and what is left of lost ones is all that
/// there is of them. So nothing of what it was given before is looked through.
pub(crate) fn put_older_copy(kv: &dyn Kv, b: &mut Batch) -> Result<(), OsdError> {
    put_unsearched(kv, b)?;
    object_ids::leave_out_given(kv, b)
}

/// The next start looks through nothing, as after a clean stop, and no later one looks for data without a file.
pub(super) fn put_unsearched(kv: &dyn Kv, b: &mut Batch) -> Result<(), OsdError> {
    let transno = stored_transno(kv)?.unwrap_or(0);
    b.put(table::META, KEY_STOPPED, transno.to_le_bytes().to_vec());
    b.put(table::META, KEY_KEEPS_DATA, Bytes::new());
    Ok(())
}

/// The background task. It ends with this value.
#[derive(Default)]
pub struct Search {
    left: Mutex<Left>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Search {
    fn drop(&mut self) {
        drop(self.abort());
    }
}

impl Search {
    pub(super) fn new(left: Left) -> Search {
        Search {
            left: Mutex::new(left),
            task: Mutex::default(),
        }
    }

    /// Recovery is over.
    pub(super) fn start(&self, ops: &Arc<MdtOps>) {
        *self.task.lock() = Some(tokio::spawn(run(Arc::downgrade(ops))));
    }

    /// Ends it.
    pub(super) async fn stop(&self) {
        if let Some(task) = self.abort() {
            let _ = task.await;
        }
    }

    fn abort(&self) -> Option<JoinHandle<()>> {
        let task = self.task.lock().take();
        task.inspect(JoinHandle::abort)
    }

    /// Whether nothing is left.
    fn is_done(&self) -> bool {
        *self.left.lock() == Left::default()
    }
}

/// The target has stopped, and synced: the next start has nothing to look through, if this one is through.
pub(super) async fn stopped(ops: &MdtOps, target: &LuTarget) -> Result<(), OsdError> {
    if target.in_recovery() || !ops.search.is_done() {
        return Ok(());
    }
    let kv = ops.core.read().store.kv().clone();
    let mut b = Batch::new();
    b.put(
        table::META,
        KEY_STOPPED,
        target.last_transno().to_le_bytes().to_vec(),
    );
    kv.commit_synced(b).await
}

async fn run(ops: Weak<MdtOps>) {
    loop {
        let Some(ops) = ops.upgrade() else { return };
        let done = ops.search_pass().await;
        if ops.search.is_done() {
            return;
        }
        drop(ops);
        if let Err(e) = done {
            tracing::error!(error = %e, "looking for objects that no file refers to: none of them is removed; `coral check` tells what is wrong");
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Takes out of `ids` what `store`'s files refer to.
async fn referred(store: &Store, ids: &mut BTreeMap<u32, BTreeSet<u64>>) -> MdtResult<()> {
    let mut from: Vec<u8> = Vec::new();
    loop {
        let rows = store.kv().range(table::INODE, &from, None, CHUNK)?;
        for (key, value) in &rows {
            let fid = table::fid_of_key(key).ok_or_else(|| torn(&Fid::ZERO))?;
            let ino = Inode::decode(value).map_err(|source| MdtError::Corrupt { fid, source })?;
            let objects = if ino.is_reg() {
                stripe::try_objects(&ino.lov).map_err(|_| torn(&fid))?
            } else {
                Vec::new()
            };
            for (ost, id) in objects {
                ids.get_mut(&ost).map(|of_ost| of_ost.remove(&id));
            }
        }
        match rows.last() {
            Some((key, _)) if rows.len() == CHUNK => from = [&key[..], &[0]].concat(),
            _ => return Ok(()),
        }
        tokio::task::yield_now().await;
    }
}

/// Runs of consecutive numbers, none longer than `max`: first and length.
fn runs(ids: &BTreeSet<u64>, max: u64) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for &id in ids {
        match out.last_mut() {
            Some((first, len)) if *first + *len == id && *len < max => *len += 1,
            _ => out.push((id, 1)),
        }
    }
    out
}

impl MdtOps {
    /// One pass over the files, and over the data of the MDT.
    async fn search_pass(&self) -> MdtResult<()> {
        let store = self.core.read().store.clone();
        let (parts, data) = {
            let left = self.search.left.lock();
            let part = |r: &Range<u64>| r.start..r.end.min(r.start + PASS_IDS);
            (
                left.ids
                    .iter()
                    .map(|(ost, r)| (*ost, part(r)))
                    .collect::<BTreeMap<_, _>>(),
                left.data,
            )
        };
        if !parts.is_empty() {
            let mut ids: BTreeMap<u32, BTreeSet<u64>> = parts
                .iter()
                .map(|(ost, r)| (*ost, r.clone().collect()))
                .collect();
            referred(&store, &mut ids).await?;
            // after that: what moved away meanwhile was there, or is among these
            for (ost, part) in &parts {
                let moved = object_ids::moved(&**store.kv(), *ost, part.clone())?;
                let of_ost = ids.get_mut(ost);
                if let Some(of_ost) = of_ost {
                    moved.iter().for_each(|id| _ = of_ost.remove(id));
                }
            }
            for (ost, part) in parts {
                self.give_up(ost, ids.remove(&ost).unwrap_or_default(), part.end)?;
            }
        }
        if data {
            let lost = self.lost_data(&store).await?;
            let all = lost.len() < PASS_OBJECTS;
            self.give_up_data(&lost)?;
            self.search.left.lock().data = !all;
        }
        self.core.write().ids.settled = self.search.left.lock().ids.is_empty();
        Ok(())
    }

    /// Has these objects of an OST destroyed; all below `upto` are looked through then.
    fn give_up(&self, ost: u32, mut ids: BTreeSet<u64>, upto: u64) -> MdtResult<()> {
        let core = self.core.write();
        // A row that is there stays as it is: its OST may have been asked already.
        let first = ids.first().copied().unwrap_or(upto);
        let (from, to) = (
            table::destroy_key(ost, first),
            table::destroy_key(ost, upto),
        );
        for (key, _) in core
            .store
            .kv()
            .range(table::DESTROY, &from, Some(&to), usize::MAX)?
        {
            table::destroy_of_key(&key).map(|(_, id)| ids.remove(&id));
        }
        let mut b = Batch::new();
        for (first, len) in runs(&ids, ROW_IDS) {
            b.put(
                table::DESTROY,
                table::destroy_key(ost, first),
                table::destroy_count(len as u32),
            );
        }
        object_ids::put_seen(&mut b, ost, upto);
        tracing::info!(
            ost,
            ids = ids.len(),
            upto,
            "object ids that no file refers to are destroyed"
        );
        self.commit_own(&core.store, b)?;
        let mut left = self.search.left.lock();
        match left.ids.get_mut(&ost) {
            Some(r) if upto < r.end => r.start = upto,
            _ => drop(left.ids.remove(&ost)),
        }
        Ok(())
    }

    /// Data of the MDT whose file is not there.
    async fn lost_data(&self, store: &Store) -> MdtResult<Vec<Fid>> {
        let store = store.clone();
        let found = Arc::new(Mutex::new(Ok(Vec::new())));
        let finds = found.clone();
        let visit = move |id, _| {
            let mut found = finds.lock();
            match (without_file(&store, id), &mut *found) {
                (Ok(fid), Ok(lost)) => lost.extend(fid),
                (Err(e), found) => *found = Err(e),
                (_, Err(_)) => {}
            }
            found.as_ref().is_ok_and(|lost| lost.len() < PASS_OBJECTS)
        };
        self.data.each(Box::new(visit)).await?;
        std::mem::replace(&mut *found.lock(), Ok(Vec::new()))
    }

    /// Has the data of these files destroyed.
    fn give_up_data(&self, lost: &[Fid]) -> MdtResult<()> {
        if lost.is_empty() {
            return Ok(());
        }
        let core = self.core.write();
        let mut b = Batch::new();
        for fid in lost {
            if core.store.find(fid)?.is_none() {
                b.put(table::DESTROY, table::data_key(fid), Bytes::new());
            }
        }
        tracing::info!(
            files = lost.len(),
            "data on the MDT without a file is destroyed"
        );
        self.commit_own(&core.store, b)
    }

    /// A transaction of the MDT itself; the core is locked.
    pub(super) fn commit_own(&self, store: &Store, batch: Batch) -> MdtResult<()> {
        let follows = Follows::of(&batch);
        let mark = self.osp.commit_local(batch)?;
        self.committed(store, follows, mark);
        Ok(())
    }
}

/// The FID of the data `id`, if there is no such file and it is not to be destroyed already.
fn without_file(store: &Store, id: ObjectId) -> MdtResult<Option<Fid>> {
    let Ok(oid) = u32::try_from(id.oid) else {
        return Ok(None);
    };
    let fid = Fid {
        seq: id.seq,
        oid,
        ver: 0,
    };
    if id.seq < seq::NORMAL || store.kv().get(table::INODE, &fid_key(&fid))?.is_some() {
        return Ok(None);
    }
    // a repair could not read its record, and has kept it
    let aside = table::aside_key(table::INODE, &fid_key(&fid));
    if store.kv().get(table::ASIDE, &aside)?.is_some() {
        return Ok(None);
    }
    let due = store
        .kv()
        .get(table::DESTROY, &table::data_key(&fid))?
        .is_some();
    Ok((!due).then_some(fid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ids_are_one_run() {
        let ids = |list: &[u64]| list.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(runs(&ids(&[]), 3), []);
        assert_eq!(
            runs(&ids(&[1, 2, 3, 4, 7, 9, 10]), 3),
            [(1, 3), (4, 1), (7, 1), (9, 2)]
        );
    }

    #[test]
    fn after_a_clean_stop_nothing_is_left() {
        let kv = Device::from(Arc::new(coral_osd::OsdMem::new()));
        let mut b = Batch::new();
        object_ids::put_reserved(&mut b, 3, 10_000);
        object_ids::put_reserved(&mut b, 4, 4097);
        object_ids::put_seen(&mut b, 4, 4000);
        kv.commit(b).unwrap();
        let both = BTreeMap::from([(3, 10_000 - 2 * RESERVE_IDS..10_000), (4, 4000..4097)]);
        assert_eq!(
            left(&kv).unwrap(),
            Left {
                ids: both,
                data: true
            }
        );
        let mut b = Batch::new();
        b.put(table::META, KEY_STOPPED, 0u64.to_le_bytes().to_vec());
        kv.commit(b).unwrap();
        assert_eq!(left(&kv).unwrap(), Left::default());
        // that start was killed, having reserved more
        let mut b = Batch::new();
        object_ids::put_reserved(&mut b, 3, 14_096);
        kv.commit(b).unwrap();
        assert_eq!(
            left(&kv).unwrap(),
            Left {
                ids: BTreeMap::from([(3, 10_000..14_096)]),
                data: true
            }
        );
    }

    #[test]
    fn data_of_lost_files_stay_however_often_the_server_is_killed() {
        let kv = Device::from(Arc::new(coral_osd::OsdMem::new()));
        let mut b = Batch::new();
        object_ids::put_reserved(&mut b, 3, 10_000);
        kv.commit(b).unwrap();
        let mut b = Batch::new();
        put_older_copy(&*kv, &mut b).unwrap();
        kv.commit(b).unwrap();
        for _start in 0..3 {
            assert_eq!(left(&kv).unwrap(), Left::default());
        }
    }
}
