//! What owners have in use, in memory (`lustre/quota` over the accounting of ldiskfs or ZFS).
//!
//! Nothing of it is stored: no table may tell of data that are not safe yet. It is counted when the target starts, from all
//! objects, on a thread of its own; until that is done a question is answered with EINPROGRESS. What changes is noted, which
//! is all that a write costs, and measured when somebody asks, and once more after the sync that makes it safe: a file system
//! may give blocks or take them back until then.
//!
//! Invariants:
//! * An object is noted after it changed, and measured and counted under one lock: what changed after a measurement is noted
//!   after it, so what is counted is right, or noted.
//! * Only a sync forgets a note, and only one from before it began.
//!
//! An object costs some 50 to 90 bytes of memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use coral_osd::{ObjectId, Objects, OsdError};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::FileThere;
use crate::quota::{Owner, Sums, Used};

/// Bytes of a block that attributes are in.
const BLOCK_BYTES: u64 = 512;

/// Objects that are measured without letting others run.
const MEASURED_AT_ONCE: usize = 64;

/// See the module's head.
pub(super) struct OstUsage {
    objects: Arc<dyn Objects>,
    /// Objects that are files of an MDT are theirs who own the files.
    files: Option<Arc<FileThere>>,
    counts: Mutex<UsageCounts>,
    /// Every object has been counted; false: it failed.
    complete: OnceLock<bool>,
    stopping: AtomicBool,
    counting: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct UsageCounts {
    /// As counted.
    objects: HashMap<ObjectId, (Owner, u64)>,
    sums: Sums,
    /// Changed objects, and how many syncs had begun then.
    changed: HashMap<ObjectId, u64>,
    syncs: u64,
}

impl UsageCounts {
    /// The object is `now`, or gone.
    fn count(&mut self, id: ObjectId, now: Option<(Owner, u64)>) {
        let was = match now {
            Some(now) => self.objects.insert(id, now),
            None => self.objects.remove(&id),
        };
        if was == now {
            return;
        }
        let used = |bytes| Used { inodes: 1, bytes };
        if let Some((owner, bytes)) = was {
            self.sums.take(owner, used(bytes));
        }
        if let Some((owner, bytes)) = now {
            self.sums.add(owner, used(bytes));
        }
    }
}

impl OstUsage {
    pub(super) fn new(objects: Arc<dyn Objects>, files: Option<Arc<FileThere>>) -> OstUsage {
        OstUsage {
            objects,
            files,
            counts: Mutex::default(),
            complete: OnceLock::new(),
            stopping: AtomicBool::new(false),
            counting: Mutex::default(),
        }
    }

    /// Counts every object there is, in the background.
    pub(super) fn start(self: &Arc<Self>) {
        let (me, failed) = (Arc::downgrade(self), Arc::new(Mutex::new(None)));
        let fails = failed.clone();
        // the object was just read for this: measuring it again keeps nobody waiting for the disk
        let counted = self.objects.iterate(Box::new(move |id, _| {
            let Some(me) = me.upgrade().filter(|me| !me.stopping.load(Relaxed)) else {
                return false;
            };
            let measured = me.measure(id);
            let goes_on = measured.is_ok();
            *fails.lock() = measured.err();
            goes_on
        }));
        let me = Arc::downgrade(self);
        let end = move |done: Result<(), OsdError>| {
            let failed = failed.lock().take();
            if let Some(me) = me.upgrade() {
                me.counted(done.and(failed.map_or(Ok(()), Err)));
            }
        };
        match counted.now() {
            Ok(done) => end(done),
            Err(later) => {
                *self.counting.lock() = Some(tokio::spawn(async move { end(later.await) }))
            }
        }
    }

    /// Ends the counting: nothing holds the objects any more when this returns.
    pub(super) async fn stop(&self) {
        self.stopping.store(true, Relaxed);
        let counting = self.counting.lock().take();
        if let Some(counting) = counting {
            // it ends at the next object; a panic of it has been reported
            let _ = counting.await;
        }
    }

    fn counted(&self, done: Result<(), OsdError>) {
        if self.stopping.load(Relaxed) {
            return;
        }
        if let Err(e) = &done {
            tracing::error!(error = %e, "what owners use could not be counted: quotas are not answered");
        }
        let _ = self.complete.set(done.is_ok());
    }

    /// An object changed: its data, its size or its owner.
    pub(super) fn changed(&self, id: ObjectId) {
        let mut counts = self.counts.lock();
        let syncs = counts.syncs;
        counts.changed.insert(id, syncs);
    }

    /// An object was removed.
    pub(super) fn gone(&self, id: ObjectId) {
        let mut counts = self.counts.lock();
        counts.changed.remove(&id);
        counts.count(id, None);
    }

    fn measure(&self, id: ObjectId) -> Result<(), OsdError> {
        self.measure_in(&mut self.counts.lock(), id)
    }

    fn measure_in(&self, counts: &mut UsageCounts, id: ObjectId) -> Result<(), OsdError> {
        let attr = self.objects.attr(id)?;
        let now = attr.and_then(|a| {
            let owner = match &self.files {
                Some(files) => files(id).ok()?,
                None => Owner {
                    uid: a.uid,
                    gid: a.gid,
                    projid: a.projid,
                },
            };
            Some((owner, a.blocks * BLOCK_BYTES))
        });
        counts.count(id, now);
        Ok(())
    }

    /// Objects that changed before `syncs` had begun, in order: they are looked at in this order.
    #[expect(clippy::disallowed_methods, reason = "the objects are sorted")]
    fn noted(&self, syncs: u64) -> Vec<ObjectId> {
        let mut noted: Vec<ObjectId> = self
            .counts
            .lock()
            .changed
            .iter()
            .filter(|(_, at)| **at < syncs)
            .map(|(id, _)| *id)
            .collect();
        noted.sort_unstable();
        noted
    }

    /// A sync begins; what [`OstUsage::synced`] is to be told.
    pub(super) fn sync_begins(&self) -> u64 {
        let mut counts = self.counts.lock();
        counts.syncs += 1;
        counts.syncs
    }

    /// What had changed when the sync began is on disk, and stays as it is.
    pub(super) async fn synced(&self, began: u64) {
        for (i, id) in self.noted(began).into_iter().enumerate() {
            pause_after(i).await;
            let mut counts = self.counts.lock();
            if counts.changed.get(&id).is_some_and(|at| *at < began) {
                match self.measure_in(&mut counts, id) {
                    Ok(()) => drop(counts.changed.remove(&id)),
                    // it stays noted
                    Err(e) => tracing::error!(error = %e, "measuring an object"),
                }
            }
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
        for (i, changed) in self.noted(u64::MAX).into_iter().enumerate() {
            pause_after(i).await;
            self.measure(changed)?;
        }
        Ok(Some(self.counts.lock().sums.of_id(kind, id)))
    }
}

/// Lets others run now and then.
async fn pause_after(measured: usize) {
    if measured % MEASURED_AT_ONCE == MEASURED_AT_ONCE - 1 {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use coral_osd::OsdMem;

    fn id(oid: u64) -> ObjectId {
        ObjectId { seq: 0, oid }
    }

    #[tokio::test]
    async fn what_changes_during_a_sync_stays_noted() {
        let osd = Arc::new(OsdMem::new());
        let write = |oid, off| {
            osd.write(id(oid), off, &[Bytes::from_static(b"x")])
                .wait()
                .unwrap()
        };
        let usage = Arc::new(OstUsage::new(osd.clone(), None));
        let root = async || {
            usage
                .of_id(0, 0)
                .await
                .unwrap()
                .map(|u| (u.inodes, u.bytes))
        };
        write(1, 0);
        assert_eq!(root().await, None, "nothing has been counted yet");
        usage.start();
        assert_eq!(root().await, Some((1, 4096)));
        write(1, 4096);
        write(2, 0);
        usage.changed(id(1));
        usage.changed(id(2));
        let began = usage.sync_begins();
        write(1, 8192);
        usage.changed(id(1));
        usage.synced(began).await;
        assert_eq!(usage.noted(u64::MAX), [id(1)]);
        assert_eq!(root().await, Some((2, 16384)));
        osd.destroy(id(1)).wait().unwrap();
        usage.gone(id(1));
        usage.synced(usage.sync_begins()).await;
        assert_eq!(
            (root().await, usage.noted(u64::MAX)),
            (Some((1, 4096)), vec![])
        );
    }

    #[tokio::test]
    async fn an_object_of_a_file_is_the_files_owners_and_nobodys_without_one() {
        let osd = Arc::new(OsdMem::new());
        osd.write(id(1), 0, &[Bytes::from_static(b"x")])
            .wait()
            .unwrap();
        osd.write(id(2), 0, &[Bytes::from_static(b"x")])
            .wait()
            .unwrap();
        let owner = Owner {
            uid: 7,
            gid: 8,
            projid: 9,
        };
        let files = move |of: ObjectId| {
            if of == id(1) {
                Ok(owner)
            } else {
                Err(coral_wire::Errno::ENOENT)
            }
        };
        let usage = Arc::new(OstUsage::new(osd, Some(Arc::new(files))));
        usage.start();
        let used = async |kind, id| usage.of_id(kind, id).await.unwrap();
        let one = Some(Used {
            inodes: 1,
            bytes: 4096,
        });
        assert_eq!(
            [
                used(0, 7).await,
                used(1, 8).await,
                used(2, 9).await,
                used(0, 0).await
            ],
            [one, one, one, Some(Used::default())]
        );
    }
}
