//! What this client knows of a file while it is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// When the lock on the layout went: ask before the next I/O.
    pub layout_losses: Losses,
    /// Handles open for writing.
    pub writers: AtomicU32,
    /// Its pages in the kernel's cache.
    pub gate: Arc<Gate>,
    /// Whose objects are that are written first.
    owner: Mutex<Owner>,
    /// As far as this client knows; others may have changed it.
    size: Mutex<Size>,
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

/// A size, and what the MDT should hear of it with a close (Lustre's lazy size).
#[derive(Debug, Default)]
struct Size {
    bytes: Option<u64>,
    /// It has changed here.
    to_tell: bool,
    /// The MDT had another one when the file was opened: to be told by who writes.
    differs: bool,
}

impl OpenInode {
    pub fn new(md: &MdInode, size: Option<u64>, gate: Arc<Gate>) -> Self {
        Self {
            fid: md.attr.fid,
            layout: RwLock::new(md.layout.clone()),
            layout_losses: Losses::default(),
            writers: AtomicU32::new(0),
            gate,
            owner: Mutex::new(md.attr.owner()),
            size: Mutex::new(Size {
                bytes: size,
                to_tell: false,
                differs: size.unwrap_or(0) != md.rough_size.unwrap_or(0),
            }),
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
        self.layout_losses.note();
    }

    /// Bytes up to `end` were written.
    pub fn wrote(&self, end: u64) {
        let mut size = self.size.lock();
        let Some(known) = size.bytes else { return };
        if end > known || size.differs {
            *size = Size {
                bytes: Some(known.max(end)),
                to_tell: true,
                differs: false,
            };
        }
    }

    /// The file was cut to, or made, this size.
    pub fn set_size(&self, size: u64) {
        *self.size.lock() = Size {
            bytes: Some(size),
            to_tell: true,
            differs: false,
        };
    }

    /// Roughly the size, bytes.
    pub fn rough_size(&self) -> Option<u64> {
        self.size.lock().bytes
    }

    /// What the MDT should hear with a close (Lustre's lazy size); once.
    pub fn size_to_tell(&self) -> Option<u64> {
        let mut size = self.size.lock();
        let to_tell = std::mem::take(&mut size.to_tell);
        size.bytes.filter(|_| to_tell)
    }

    pub fn owner(&self) -> Owner {
        *self.owner.lock()
    }

    pub fn set_owner(&self, owner: Owner) {
        *self.owner.lock() = owner;
    }
}

/// Counts how often something went that was known. It is unknown to all until an answer to a question of after the last loss is in.
#[derive(Debug, Default)]
pub(in crate::llite) struct Losses {
    lost: AtomicU64,
    /// The losses that the newest answer is of after.
    made_good: AtomicU64,
}

impl Losses {
    /// It went.
    pub fn note(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
    }

    /// What is known went since it was asked for: hand this to [`Self::made_good`] with the answer to a question that begins now.
    pub fn open(&self) -> Option<u64> {
        let lost = self.lost.load(Ordering::Acquire);
        (self.made_good.load(Ordering::Acquire) < lost).then_some(lost)
    }

    /// What a question brought is known to all from here on.
    pub fn made_good(&self, lost: u64) {
        self.made_good.fetch_max(lost, Ordering::AcqRel);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_unknown_until_an_answer_of_after_it_is_in() {
        let l = Losses::default();
        assert_eq!(l.open(), None);
        l.note();
        let (one, other) = (l.open(), l.open());
        assert!(one.is_some() && one == other, "until one has its answer");
        l.note();
        l.made_good(one.unwrap());
        let again = l.open();
        assert!(again > one, "lost once more while it was asked for");
        l.made_good(again.unwrap());
        l.made_good(other.unwrap());
        assert_eq!(l.open(), None, "a late answer takes nothing back");
    }
}
