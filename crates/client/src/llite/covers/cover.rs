//! A cover: extent locks on the objects of one file, held together: on the whole of every object for pages, on ranges for dirty
//! data of write(2).

use std::sync::Arc;

use coral_ldlm::LockRef;
use coral_wire::ldlm::LdlmMode;

use super::dirty::{Dirty, ObjectKey};
use crate::lov::{FileLayout, HeldLock, Locks};
use crate::osc::ObjectRef;

/// Extent locks on the objects of one file.
#[derive(Debug)]
pub(in crate::llite) struct Cover {
    /// The layout whose objects are locked.
    pub layout: Arc<FileLayout>,
    /// PW when this client has the file open for writing (pages may be dirtied through mappings), else PR.
    pub mode: LdlmMode,
    /// On the whole of every object; none when it serves dirty data.
    locks: Vec<(u32, ObjectRef, HeldLock)>,
    /// It serves dirty data of write(2), not pages; its locks are there.
    pub writes: Option<Dirty>,
}

impl Cover {
    /// One for pages.
    pub fn new(
        layout: Arc<FileLayout>,
        mode: LdlmMode,
        locks: Vec<(u32, ObjectRef, LockRef)>,
    ) -> Arc<Self> {
        let locks = locks
            .into_iter()
            .map(|(ost, o, l)| (ost, o, HeldLock::new(l)))
            .collect();
        Arc::new(Self {
            layout,
            mode,
            locks,
            writes: None,
        })
    }

    /// One for data of write(2).
    pub fn for_writes(layout: Arc<FileLayout>, writes: Dirty) -> Arc<Self> {
        Arc::new(Self {
            layout,
            mode: LdlmMode::PW,
            locks: Vec::new(),
            writes: Some(writes),
        })
    }

    /// The locks of one for pages, as I/O names them.
    pub fn held(&self) -> Locks {
        Locks::whole_objects(self.locks.iter().map(|(_, o, l)| (*o, l.clone())).collect())
    }

    /// The lock on object `i` of one for pages, pinned; `None`: it was given back.
    pub fn lock(&self, i: usize) -> Option<LockRef> {
        self.locks[i].2.pin()
    }

    /// Place of an object among those locks.
    pub fn place(&self, object: &ObjectRef) -> Option<usize> {
        self.locks.iter().position(|(_, o, _)| o == object)
    }

    /// The objects: {OST index, resource}.
    pub fn objects(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        let dirty = self.writes.iter().flat_map(Dirty::objects);
        let dirty = dirty.map(|o| (o.osc.index, o.object));
        let pages = self.locks.iter().map(|(ost, o, _)| (*ost, *o));
        dirty.chain(pages).map(|(ost, o)| (ost, o.oi.res_id()))
    }

    /// A lock of it, for pages, has this cookie.
    pub fn has(&self, cookie: u64) -> bool {
        self.locks
            .iter()
            .any(|(_, _, l)| l.ask(|l| l.cookie() == cookie) == Some(true))
    }

    /// Some lock is asked back, or was given back.
    pub fn is_blocked(&self) -> bool {
        self.locks
            .iter()
            .any(|(_, _, l)| l.ask(LockRef::is_blocked) != Some(false))
    }

    /// Every byte of every object is locked, and no lock is void.
    pub fn is_whole(&self) -> bool {
        match &self.writes {
            Some(w) => w.is_whole(),
            None => self
                .locks
                .iter()
                .all(|(_, _, l)| l.ask(LockRef::is_dead) == Some(false)),
        }
    }
}
