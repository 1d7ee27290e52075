//! Inodes with open handles.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

use super::open_inode::OpenInode;

/// The open files of a mount; their handles keep them.
#[derive(Default)]
pub(in crate::llite) struct OpenFiles(Mutex<HashMap<Fid, Weak<OpenInode>>>);

impl OpenFiles {
    /// What the handles of `fid` share, if some handle is open.
    pub fn of(&self, fid: Fid) -> Option<Arc<OpenInode>> {
        self.0.lock().get(&fid).and_then(Weak::upgrade)
    }

    /// The same, made when none is open; true: it was there.
    pub fn of_or_make(&self, fid: Fid, make: impl FnOnce() -> OpenInode) -> (Arc<OpenInode>, bool) {
        let mut open = self.0.lock();
        if let Some(i) = open.get(&fid).and_then(Weak::upgrade) {
            return (i, true);
        }
        let i = Arc::new(make());
        open.insert(fid, Arc::downgrade(&i));
        (i, false)
    }

    /// All open files, in the order of their FIDs: requests are sent in this order.
    #[expect(clippy::disallowed_methods, reason = "the files are sorted")]
    pub fn all(&self) -> Vec<Arc<OpenInode>> {
        let open = self.0.lock();
        let mut all: Vec<_> = open
            .iter()
            .filter_map(|(fid, inode)| Some((*fid, inode.upgrade()?)))
            .collect();
        drop(open);
        all.sort_unstable_by_key(|(fid, _)| *fid);
        all.into_iter().map(|(_, inode)| inode).collect()
    }

    /// The handle that is being closed may be the last of `fid`.
    pub fn closed(&self, fid: Fid) {
        let mut open = self.0.lock();
        if open.get(&fid).is_some_and(|w| w.strong_count() <= 1) {
            open.remove(&fid);
        }
    }
}
