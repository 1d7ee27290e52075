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
    #[expect(
        clippy::disallowed_methods,
        reason = "whether a file is open depends on itself alone"
    )]
    pub fn of_or_make(&self, fid: Fid, make: impl FnOnce() -> OpenInode) -> (Arc<OpenInode>, bool) {
        let mut open = self.0.lock();
        if let Some(i) = open.get(&fid).and_then(Weak::upgrade) {
            return (i, true);
        }
        // who used the file while its last handle was closed has kept it here
        if open.len() == open.capacity() {
            open.retain(|_, i| i.strong_count() > 0);
            let as_many = open.len() + 1;
            open.reserve(as_many);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llite::inode::MdInode;
    use crate::llite::types::Attr;
    use crate::lov::FileLayout;

    fn inode(fid: Fid) -> OpenInode {
        let md = MdInode {
            attr: Attr::empty(fid),
            layout: Arc::new(FileLayout::none()),
            acl: bytes::Bytes::new(),
            striped: None,
            shard: false,
            version: 0,
            rough_size: None,
            anyone: false,
        };
        OpenInode::new(&md, None, Arc::default())
    }

    /// Who still uses a file when its last handle is closed leaves nothing behind for long.
    #[test]
    fn closed_files_are_forgotten() {
        let files = OpenFiles::default();
        for n in 0..10_000 {
            let fid = Fid::new(0x400, n);
            let (handle, was_open) = files.of_or_make(fid, || inode(fid));
            assert!(!was_open);
            let other = files.of(fid);
            files.closed(fid);
            drop((handle, other));
        }
        assert!(files.0.lock().len() < 100);
        let open: Vec<_> = (0..1000)
            .map(|n| Fid::new(0x500, n))
            .map(|fid| files.of_or_make(fid, || inode(fid)).0)
            .collect();
        assert_eq!(files.all().len(), open.len());
    }
}
