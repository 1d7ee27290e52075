//! What this client knows of a file while it is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use coral_wire::fid::Fid;
use parking_lot::{Mutex, RwLock};

use super::gate::Gate;
use super::lost::Lost;
use crate::llite::inode::MdInode;
use crate::llite::range::RangeLocks;
use crate::lov::{FileLayout, Form};
use crate::osc::Owner;

/// What all handles of one inode share.
pub(in crate::llite) struct OpenInode {
    pub fid: Fid,
    layout: RwLock<Arc<FileLayout>>,
    /// The lock on the layout went: ask before the next I/O.
    pub stale: AtomicBool,
    /// Handles open for writing.
    pub writers: AtomicU32,
    /// Its pages in the kernel's cache.
    pub gate: Arc<Gate>,
    /// Whose objects are that are written first.
    owner: Mutex<Owner>,
    /// Size as far as this client knows, and whether the MDT has it; others may have changed it.
    size: Mutex<(Option<u64>, bool)>,
    /// Changes of its data.
    pub data: DataChanges,
    /// Overlapping writes of this client go one after another.
    pub writes: RangeLocks,
    /// Written data that could not be stored.
    pub lost: Lost,
    /// Appends of this client go one after another.
    pub append: tokio::sync::Mutex<()>,
    /// Held for reading by those that give file locks back because of a close.
    pub unlocking: tokio::sync::RwLock<()>,
}

impl OpenInode {
    pub fn new(md: &MdInode, size: Option<u64>, gate: Arc<Gate>) -> Self {
        Self {
            fid: md.attr.fid,
            layout: RwLock::new(md.layout.clone()),
            stale: AtomicBool::new(false),
            writers: AtomicU32::new(0),
            gate,
            owner: Mutex::new(md.attr.owner()),
            size: Mutex::new((size, true)),
            data: DataChanges::default(),
            writes: RangeLocks::default(),
            lost: Lost::default(),
            append: Default::default(),
            unlocking: Default::default(),
        }
    }

    /// Waits until the locks of what was closed by now are given back: who does not wait for a lock is not refused for
    /// one of a file that its own program has closed.
    pub async fn unlocked(&self) {
        drop(self.unlocking.write().await);
    }

    pub fn layout(&self) -> Arc<FileLayout> {
        self.layout.read().clone()
    }

    /// Takes a layout in unless it is older than the one known.
    pub fn set_layout(&self, new: Arc<FileLayout>) {
        let mut l = self.layout.write();
        if new.generation >= l.generation || l.form == Form::None {
            *l = new;
        }
    }

    /// Some handle of this client is open for writing.
    pub fn is_written(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    /// The lock on the layout is gone.
    pub fn layout_lost(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Bytes up to `end` were written.
    pub fn wrote(&self, end: u64) {
        let mut size = self.size.lock();
        if let (Some(known), told) = &mut *size
            && end > *known
        {
            (*known, *told) = (end, false);
        }
    }

    /// The file was cut to, or made, this size.
    pub fn set_size(&self, size: u64) {
        *self.size.lock() = (Some(size), false);
    }

    /// Roughly the size, bytes.
    pub fn rough_size(&self) -> Option<u64> {
        self.size.lock().0
    }

    /// What the MDT should hear with a close (Lustre's lazy size); once.
    pub fn size_to_tell(&self) -> Option<u64> {
        let mut size = self.size.lock();
        if std::mem::replace(&mut size.1, true) {
            None
        } else {
            size.0
        }
    }

    pub fn owner(&self) -> Owner {
        *self.owner.lock()
    }

    pub fn set_owner(&self, owner: Owner) {
        *self.owner.lock() = owner;
    }
}

/// Counts changes of a file's data by this client, so that what its objects were found to be is known to hold.
#[derive(Debug, Default)]
pub(in crate::llite) struct DataChanges {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl DataChanges {
    /// A change begins, and ends when what is returned is dropped.
    pub fn begin(&self) -> DataChange<'_> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        DataChange(self)
    }

    /// How many there were, if none is under way.
    pub fn quiet(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) == ended).then_some(ended)
    }
}

/// One change of a file's data, under way.
pub(in crate::llite) struct DataChange<'a>(&'a DataChanges);

impl Drop for DataChange<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::AcqRel);
    }
}
