//! Objects on their way to the disk: syncs of one, of all, and what follows from one that failed.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{FsObjects, failed};
use crate::fs::handle::Handle;
use crate::fs::objects::names::dir_names;
use crate::{ObjectId, OsdError};

/// Up to so many changed objects are synced one by one; for more, the whole file system is.
const SYNC_EACH_MAX: usize = 32;

impl FsObjects {
    /// Syncs one object and the directories of a new one.
    fn sync_handle(&self, h: &Handle) -> Result<(), OsdError> {
        let _turn = h.syncing.lock();
        // Before the sync: what changes during it is for the next.
        h.dirty.store(false, Ordering::Release);
        rustix::fs::fsync(&h.file).map_err(|e| self.failed_sync("sync object", h.id, e))?;
        if h.dir_dirty.load(Ordering::Relaxed) {
            let (outer, inner) = dir_names(h.id);
            for dir in [inner.as_str(), outer.as_str(), "."] {
                sync_dir(self.root.as_fd(), dir)
                    .map_err(|e| self.failed_sync("sync the directory of object", h.id, e))?;
            }
            h.dir_dirty.store(false, Ordering::Relaxed);
        }
        let mut changed = self.changed.lock();
        if !h.dirty.load(Ordering::Acquire) {
            changed.remove(&h.id);
        }
        Ok(())
    }

    /// Syncs everything on the disk of the objects.
    pub(in crate::fs) fn sync_file_system(&self) -> Result<(), OsdError> {
        drop(std::mem::take(&mut *self.changed.lock()));
        drop(std::mem::take(&mut *self.shrunk.lock()));
        // After that: who changes an object from here on finds it clean, and notes it for the next sync.
        let all = self.handles.all();
        for h in &all {
            h.dirty.store(false, Ordering::Release);
        }
        rustix::fs::syncfs(&self.root).map_err(|e| {
            self.sync_failed.store(true, Ordering::Relaxed);
            OsdError::io("sync objects", e.into())
        })?;
        for h in all {
            h.dir_dirty.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Why nothing is synced any more, in words.
    pub(in crate::fs) fn trouble(&self) -> Option<String> {
        let failed = self.sync_failed.load(Ordering::Relaxed);
        failed.then(|| "a sync of the objects failed: nothing is called safe until the server is restarted; look at the disk".into())
    }

    pub(super) fn failed_sync(&self, what: &str, id: ObjectId, e: Errno) -> OsdError {
        self.sync_failed.store(true, Ordering::Relaxed);
        failed(what, id, e)
    }

    fn failed_dir_sync(&self, dir: &str, e: Errno) -> OsdError {
        self.sync_failed.store(true, Ordering::Relaxed);
        OsdError::io(format!("sync directory {dir} of objects"), e.into())
    }

    fn refuse_after_failure(&self) -> Result<(), OsdError> {
        match self.sync_failed.load(Ordering::Relaxed) {
            true => Err(OsdError::io(
                "objects: an earlier sync failed; restart the server",
                Errno::IO.into(),
            )),
            false => Ok(()),
        }
    }

    pub(in crate::fs) fn sync_object(&self, id: ObjectId) -> Result<(), OsdError> {
        self.refuse_after_failure()?;
        let Some(h) = self.find(id)? else {
            return Ok(());
        };
        self.sync_handle(&h)?;
        match &self.records {
            Some(tables) => tables.sync(),
            None => Ok(()),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the objects are sorted")]
    pub(in crate::fs) fn sync_all(&self) -> Result<(), OsdError> {
        let _turn = self.syncing_all.lock();
        self.refuse_after_failure()?;
        let mut changed: Vec<_> = self.changed.lock().iter().copied().collect();
        changed.sort_unstable();
        if changed.len() + self.shrunk.lock().len() > SYNC_EACH_MAX {
            self.sync_file_system()?;
        } else {
            // Before the sync: what is removed during it is for the next.
            for dir in std::mem::take(&mut *self.shrunk.lock()) {
                sync_dir(self.root.as_fd(), &dir).map_err(|e| self.failed_dir_sync(&dir, e))?;
            }
            for id in changed {
                match self.find(id)? {
                    Some(h) => self.sync_handle(&h)?,
                    None => {
                        self.changed.lock().remove(&id);
                    }
                }
            }
        }
        match &self.records {
            Some(tables) => tables.sync(),
            None => Ok(()),
        }
    }
}

fn sync_dir(root: rustix::fd::BorrowedFd<'_>, dir: &str) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::fsync(rustix::fs::openat(root, dir, flags, Mode::empty())?)
}
