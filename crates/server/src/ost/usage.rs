//! What owners have in use, in tables (`lustre/quota` over the accounting of ldiskfs or ZFS).
//!
//! Objects and tables have no common transactions, so a change of an object is counted after it: the object is noted, which is
//! all that a change costs, and measured when somebody asks, and once more after the sync that makes it safe: a file system may
//! give blocks or take them back until then. What a row says of an object ([`table`]) is what the sums of its owner contain.
//! What may not be counted when the process or the machine ends is in the table of groups ([`groups`]) before it changes, and is
//! measured in the background after the next start. Until that is done a question is answered with EINPROGRESS.
//!
//! A target that an older program served, which kept no such tables, is counted whole, once, in the background. When that is
//! interrupted, the next start begins anew.
//!
//! Invariants:
//! * An object changes between the beginning and the end of a [`Changing`]. It is noted at the end, and only what was noted before
//!   a measurement began is taken off the notes by it: so what is counted is right, or noted, or in a group that is in the table.
//! * Only a sync takes off a note, and only one from before it began.
//!
//! In memory are the notes since the last sync and the groups; nothing grows with the number of objects.

mod groups;
mod table;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use coral_osd::{Batch, Device, ObjectId, Objects, OsdError, Visit};
use coral_wire::Errno;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use self::groups::{Groups, KEPT_GROUPS};
use self::table::Group;
use super::{FileThere, OstError};
use crate::quota::{self, Owner, Sums, Used};
use crate::target::{SyncGroup, stored_instance};

/// Bytes of a block that attributes are in.
const BLOCK_BYTES: u64 = 512;

/// Objects that are measured without letting others run, and counted in one batch.
const MEASURED_AT_ONCE: usize = 64;

/// See the module's head.
pub(super) struct OstUsage {
    objects: Arc<dyn Objects>,
    kv: Device,
    /// Objects that are files of an MDT are theirs who own the files.
    files: Option<Arc<FileThere>>,
    notes: Mutex<Notes>,
    /// Held while objects are measured and counted.
    measuring: Mutex<()>,
    /// Syncs of rows of groups.
    syncs: SyncGroup,
    /// Every object has been counted; false: it failed.
    complete: OnceLock<bool>,
    stopping: AtomicBool,
    counting: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Notes {
    groups: Groups,
    /// Changed objects, each with the number of its last note.
    changed: HashMap<ObjectId, u64>,
    /// Number of notes.
    count: u64,
}

impl Notes {
    /// Notes an object, whose group is under way.
    fn note(&mut self, id: ObjectId) {
        self.count += 1;
        match self.changed.entry(id) {
            Entry::Occupied(mut noted) => drop(noted.insert(self.count)),
            Entry::Vacant(none) => {
                none.insert(self.count);
                self.groups.noted(Group::of(id));
            }
        }
    }

    /// Objects were measured, each after its note of that number.
    fn all_measured(&mut self, objects: &[(ObjectId, u64)]) {
        for (id, number) in objects {
            if self.changed.get(id) == Some(number) {
                self.changed.remove(id);
                self.groups.measured(Group::of(*id));
            }
        }
    }
}

/// An object that is being changed, or removed. When it ends, the object is noted.
pub(crate) struct Changing {
    usage: Arc<OstUsage>,
    id: ObjectId,
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut notes = self.usage.notes.lock();
        notes.note(self.id);
        notes.groups.end(Group::of(self.id));
    }
}

/// What is to be counted when a target starts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToCount {
    /// What the table of groups says.
    Groups,
    /// Everything: the last program that had the target kept no tables.
    All,
}

impl ToCount {
    /// Found out before the target starts, which makes its number another.
    pub(crate) fn before_start(kv: &Device) -> Result<ToCount, OsdError> {
        let last = stored_instance(&**kv)?;
        Ok(match table::holds_all(&**kv, last)? {
            true => ToCount::Groups,
            false => ToCount::All,
        })
    }
}

impl OstUsage {
    pub(super) fn new(
        objects: Arc<dyn Objects>,
        kv: Device,
        files: Option<Arc<FileThere>>,
    ) -> OstUsage {
        OstUsage {
            objects,
            kv,
            files,
            notes: Mutex::default(),
            measuring: Mutex::default(),
            syncs: SyncGroup::default(),
            complete: OnceLock::new(),
            stopping: AtomicBool::new(false),
            counting: Mutex::default(),
        }
    }

    /// Counts in the background what is `to_count`; this is the target's start number `instance`.
    pub(super) fn start(
        self: &Arc<Self>,
        to_count: ToCount,
        instance: u32,
    ) -> Result<(), OsdError> {
        let found = table::groups(&*self.kv)?;
        let all = to_count == ToCount::All;
        if to_count == ToCount::Groups {
            self.counted_by(instance)?;
            if found.is_empty() {
                let _ = self.complete.set(true);
                return Ok(());
            }
        }
        let mut notes = self.notes.lock();
        found.iter().for_each(|group| notes.groups.found(*group));
        drop(notes);
        tracing::info!(
            groups = found.len(),
            all,
            "counting what owners use: groups of objects that were being changed, or all, because an older program was the last to serve them"
        );
        let me = self.clone();
        let task = async move {
            let done = match to_count {
                ToCount::Groups => me.count_groups(&found).await,
                ToCount::All => me.count_all().await,
            };
            if !me.stopping.load(Relaxed) {
                me.counted(done.and_then(|()| me.counted_by(instance)), found);
            }
        };
        *self.counting.lock() = Some(tokio::spawn(task));
        Ok(())
    }

    fn counted_by(&self, instance: u32) -> Result<(), OsdError> {
        let mut b = Batch::new();
        table::put_counted_by(&mut b, instance);
        self.kv.commit(b)
    }

    /// Counts every object of these groups.
    async fn count_groups(&self, groups: &[Group]) -> Result<(), OsdError> {
        for group in groups {
            let ids: Vec<_> = group.ids().collect();
            self.measure_all(&ids).await?;
        }
        Ok(())
    }

    /// Counts everything: what has a row, for the object may be gone, and then every object there is.
    async fn count_all(self: &Arc<Self>) -> Result<(), OsdError> {
        let mut last = None;
        loop {
            let ids = table::objects_after(&*self.kv, last, MEASURED_AT_ONCE)?;
            self.measure_all(&ids).await?;
            last = ids.last().copied();
            if ids.len() < MEASURED_AT_ONCE || self.stopping.load(Relaxed) {
                break;
            }
        }
        let visits = Arc::new(Mutex::new(Visits {
            usage: Arc::downgrade(self),
            some: Vec::new(),
            failed: None,
        }));
        let visiting = visits.clone();
        let visit = Box::new(move |id, _| visiting.lock().visit(id));
        self.objects.iterate(visit).await?;
        let mut visits = visits.lock();
        visits.measure();
        visits.failed.take().map_or(Ok(()), Err)
    }

    /// The greatest id in `ids` of an object of the sequence `seq` that there is; EINPROGRESS while that is not known. `instance` is
    /// this start of the target.
    pub(super) fn last_id(
        &self,
        seq: u64,
        ids: &Range<u64>,
        instance: u32,
    ) -> Result<Option<u64>, OstError> {
        if !table::holds_all(&*self.kv, instance)? {
            return Err(Errno::EINPROGRESS.into());
        }
        // before what is counted: a group goes when all of it is
        let mut groups = table::groups(&*self.kv)?;
        let counted = table::last_counted(&*self.kv, seq, ids)?;
        let after = counted.map_or(ids.start, |last| last + 1)..ids.end;
        groups.sort_unstable();
        for group in groups.into_iter().rev() {
            for id in group.ids_of(seq, &after).rev() {
                if self.objects.attr(id)?.is_some() {
                    return Ok(Some(id.oid));
                }
            }
        }
        Ok(counted)
    }

    /// Ends the counting: nothing holds the objects any more when this returns.
    pub(super) async fn stop(&self) {
        self.stopping.store(true, Relaxed);
        let counting = self.counting.lock().take();
        if let Some(counting) = counting {
            // it ends soon; a panic of it has been reported
            let _ = counting.await;
        }
    }

    fn counted(&self, done: Result<(), OsdError>, groups: Vec<Group>) {
        match &done {
            Ok(()) => {
                let mut notes = self.notes.lock();
                groups.into_iter().for_each(|g| notes.groups.end(g));
                tracing::info!("what owners use is counted");
            }
            Err(e) => {
                tracing::error!(error = %e, "what owners use could not be counted: quotas are not answered");
            }
        }
        let _ = self.complete.set(done.is_ok());
    }

    /// An object is about to change: its data, its size or its owner, or to go. It may when this returns, until the value ends.
    pub(super) async fn changing(self: &Arc<Self>, id: ObjectId) -> Result<Changing, OsdError> {
        let (changing, safe) = self.begin(id)?;
        if !safe {
            let mut turn = self.syncs.enter(false).await;
            if !turn.covered() {
                let covers = self.syncs.begin(&turn);
                self.kv.sync().await?;
                self.kv.stored().await?;
                turn.finished(covers);
            }
            drop(turn);
            self.notes.lock().groups.safe(Group::of(id));
        }
        Ok(changing)
    }

    /// The same for a change that is made in these very tables, and not on disk before they are.
    pub(super) fn changing_in_tables(self: &Arc<Self>, id: ObjectId) -> Result<Changing, OsdError> {
        self.begin(id).map(|(changing, _)| changing)
    }

    fn begin(self: &Arc<Self>, id: ObjectId) -> Result<(Changing, bool), OsdError> {
        let safe = self.notes.lock().groups.begin(&self.kv, Group::of(id))?;
        let usage = self.clone();
        Ok((Changing { usage, id }, safe))
    }

    /// Visits every object, until `visit` returns false.
    pub(super) async fn each(&self, visit: Visit) -> Result<(), OsdError> {
        self.objects.iterate(visit).await
    }

    /// Whose an object is and what it uses now; `None`: it is not there, or nobody's.
    fn of_object(&self, id: ObjectId) -> Result<Option<(Owner, u64)>, OsdError> {
        let attr = self.objects.attr(id)?;
        Ok(attr.and_then(|a| {
            let owner = match &self.files {
                Some(files) => files(id).ok()?,
                None => Owner {
                    uid: a.uid,
                    gid: a.gid,
                    projid: a.projid,
                },
            };
            Some((owner, a.blocks * BLOCK_BYTES))
        }))
    }

    /// Counts these objects as they are, in one batch.
    fn measure(&self, ids: &[ObjectId]) -> Result<(), OsdError> {
        let _turn = self.measuring.lock();
        let (mut batch, mut more, mut less) = (Batch::new(), Sums::default(), Sums::default());
        for &id in ids {
            let (was, now) = (table::object(&*self.kv, id)?, self.of_object(id)?);
            if was == now {
                continue;
            }
            table::put_object(&mut batch, id, now);
            let one = |(owner, bytes)| (owner, Used { inodes: 1, bytes });
            if let Some((owner, used)) = was.map(one) {
                less.add(owner, used);
            }
            if let Some((owner, used)) = now.map(one) {
                more.add(owner, used);
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        for (owner, _) in more.iter().chain(less.iter()) {
            let before = table::sum(&*self.kv, owner)?;
            let now = before.plus(more.of(owner)).minus(less.of(owner));
            quota::put_row(&mut batch, table::USAGE, owner, now);
        }
        self.kv.commit(batch)
    }

    /// Counts these objects a few at a time.
    async fn measure_all(&self, ids: &[ObjectId]) -> Result<(), OsdError> {
        for some in ids.chunks(MEASURED_AT_ONCE) {
            if self.stopping.load(Relaxed) {
                return Ok(());
            }
            self.measure(some)?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Objects with notes up to number `upto`, in order: they are looked at in this order.
    #[expect(clippy::disallowed_methods, reason = "the objects are sorted")]
    fn noted(&self, upto: u64) -> Vec<(ObjectId, u64)> {
        let notes = self.notes.lock();
        let early = notes.changed.iter().filter(|(_, number)| **number <= upto);
        let mut noted: Vec<_> = early.map(|(id, number)| (*id, *number)).collect();
        noted.sort_unstable();
        noted
    }

    /// A sync begins; what [`OstUsage::synced`] is to be told.
    pub(super) fn sync_begins(&self) -> u64 {
        self.notes.lock().count
    }

    /// What had changed when the sync began is on disk, and stays as it is.
    pub(super) async fn synced(&self, began: u64) {
        let noted = self.noted(began);
        for some in noted.chunks(MEASURED_AT_ONCE) {
            let ids: Vec<_> = some.iter().map(|(id, _)| *id).collect();
            if let Err(e) = self.measure(&ids) {
                // they stay noted
                tracing::error!(error = %e, "counting what owners use");
                return;
            }
            self.notes.lock().all_measured(some);
            tokio::task::yield_now().await;
        }
        let keep = match self.stopping.load(Relaxed) {
            true => 0,
            false => KEPT_GROUPS,
        };
        if let Err(e) = self.notes.lock().groups.trim(&self.kv, keep) {
            // they stay, and are counted again at worst
            tracing::error!(error = %e, "taking counted groups of objects off the table");
        }
    }

    /// What an id has in use now; `None` while it is not known yet. May take a while.
    pub(super) async fn of_id(&self, kind: u32, id: u32) -> Result<Option<Used>, OsdError> {
        match self.complete.get() {
            None => return Ok(None),
            Some(false) => {
                return Err(OsdError::Corrupt(
                    "what owners use could not be counted at the start".into(),
                ));
            }
            Some(true) => {}
        }
        let ids: Vec<_> = self.noted(u64::MAX).into_iter().map(|(id, _)| id).collect();
        for some in ids.chunks(MEASURED_AT_ONCE) {
            self.measure(some)?;
            tokio::task::yield_now().await;
        }
        quota::used_in(&*self.kv, table::USAGE, kind, id).map(Some)
    }
}

/// Objects met on the way through all of them.
struct Visits {
    usage: Weak<OstUsage>,
    some: Vec<ObjectId>,
    failed: Option<OsdError>,
}

impl Visits {
    /// Whether to go on.
    fn visit(&mut self, id: ObjectId) -> bool {
        self.some.push(id);
        if self.some.len() == MEASURED_AT_ONCE {
            self.measure();
        }
        let stopping = |usage: &Arc<OstUsage>| usage.stopping.load(Relaxed);
        self.failed.is_none() && self.usage.upgrade().is_some_and(|usage| !stopping(&usage))
    }

    fn measure(&mut self) {
        let some = std::mem::take(&mut self.some);
        if let Some(usage) = self.usage.upgrade().filter(|_| self.failed.is_none()) {
            self.failed = usage.measure(&some).err();
        }
    }
}

/// What notes that these objects of a target that is not served are about to change: its next start counts them anew.
pub fn to_be_counted(ids: &[ObjectId]) -> Batch {
    let mut batch = Batch::new();
    for id in ids {
        batch.put(table::GROUP, table::Group::of(*id).key(), Vec::new());
    }
    batch
}

#[cfg(test)]
mod tests;
