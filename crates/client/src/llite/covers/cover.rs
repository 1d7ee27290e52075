//! A cover: extent locks on the whole of every object of one file, held together.

use std::sync::Arc;

use coral_ldlm::LockRef;
use coral_wire::ldlm::LdlmMode;

use super::dirty::{Dirty, ObjectKey};
use crate::lov::{FileLayout, HeldLock, Locks};
use crate::osc::ObjectRef;

/// Extent locks on the whole of every object of one file.
#[derive(Debug)]
pub(in crate::llite) struct Cover {
    /// The layout whose objects are locked.
    pub layout: Arc<FileLayout>,
    /// PW when this client has the file open for writing (pages may be dirtied through mappings), else PR.
    pub mode: LdlmMode,
    locks: Vec<(u32, ObjectRef, HeldLock)>,
    /// It serves dirty data of write(2), not pages.
    pub writes: Option<Dirty>,
}

impl Cover {
    /// One for pages.
    pub fn new(
        layout: Arc<FileLayout>,
        mode: LdlmMode,
        locks: Vec<(u32, ObjectRef, LockRef)>,
    ) -> Arc<Self> {
        Self::with(layout, mode, locks, None)
    }

    fn with(
        layout: Arc<FileLayout>,
        mode: LdlmMode,
        locks: Vec<(u32, ObjectRef, LockRef)>,
        writes: Option<Dirty>,
    ) -> Arc<Self> {
        let locks = locks
            .into_iter()
            .map(|(ost, o, l)| (ost, o, HeldLock::new(l)))
            .collect();
        Arc::new(Self {
            layout,
            mode,
            locks,
            writes,
        })
    }

    /// One for data of write(2).
    pub fn for_writes(
        layout: Arc<FileLayout>,
        locks: Vec<(u32, ObjectRef, LockRef)>,
        writes: Dirty,
    ) -> Arc<Self> {
        Self::with(layout, LdlmMode::PW, locks, Some(writes))
    }

    /// The locks as I/O names them.
    pub fn held(&self) -> Locks {
        Locks {
            held: self.locks.iter().map(|(_, o, l)| (*o, l.clone())).collect(),
        }
    }

    /// The lock on object `i`, pinned; `None`: it was given back.
    pub fn lock(&self, i: usize) -> Option<LockRef> {
        self.locks[i].2.pin()
    }

    /// What lay under the lock on object `i` is gone: so is the lock, whatever keeps the others.
    pub fn give_back(&self, i: usize) {
        self.locks[i].2.give_back();
    }

    /// Place of an object.
    pub fn place(&self, object: &ObjectRef) -> Option<usize> {
        self.locks.iter().position(|(_, o, _)| o == object)
    }

    /// The objects: {OST index, resource}.
    pub fn objects(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.locks.iter().map(|(ost, o, _)| (*ost, o.oi.res_id()))
    }

    /// A lock of it has this cookie.
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

    /// No lock was given back, and none is void.
    pub fn is_whole(&self) -> bool {
        self.locks
            .iter()
            .all(|(_, _, l)| l.ask(LockRef::is_dead) == Some(false))
    }

    /// The lock on object `i` is void (eviction).
    pub fn is_dead(&self, i: usize) -> bool {
        self.locks[i].2.ask(LockRef::is_dead) == Some(true)
    }
}
