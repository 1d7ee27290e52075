//! Locks on the objects of a file, as an operation holds or lends them.

use std::sync::Arc;

use coral_ldlm::LockRef;
use parking_lot::Mutex;

use crate::osc::{IoLock, ObjectRef};

/// A lock of ours on one object, until it is given back.
#[derive(Debug, Clone)]
pub struct HeldLock(Arc<Mutex<Option<LockRef>>>);

impl HeldLock {
    /// A lock that is held.
    pub fn new(lock: LockRef) -> Self {
        Self(Arc::new(Mutex::new(Some(lock))))
    }

    /// The lock, pinned; `None`: it was given back.
    pub fn pin(&self) -> Option<LockRef> {
        self.0.lock().clone()
    }

    /// What `ask` says of it, without a pin, whose end could cancel it; `None`: it was given back.
    pub fn ask(&self, ask: impl FnOnce(&LockRef) -> bool) -> Option<bool> {
        self.0.lock().as_ref().map(ask)
    }

    /// Gives it back, once nobody has it pinned.
    pub fn give_back(&self) {
        let lock = self.0.lock().take();
        // not under the mutex: it may be cancelled here
        drop(lock);
    }
}

/// Which extent locks of ours cover an I/O; none: the servers lock.
#[derive(Debug, Clone, Default)]
pub struct Locks {
    /// Objects and our locks on them.
    pub held: Vec<(ObjectRef, HeldLock)>,
}

impl Locks {
    /// Locks on whole objects, each with the index of its OST.
    pub fn of_objects(locks: Vec<(u32, ObjectRef, LockRef)>) -> Locks {
        let held = |(_, object, lock)| (object, HeldLock::new(lock));
        Locks {
            held: locks.into_iter().map(held).collect(),
        }
    }

    /// For a question about all objects: whether locks of ours cover all of them.
    pub(super) fn whole(&self) -> IoLock {
        let all = !self.held.is_empty() && self.held.iter().all(|(_, l)| l.ask(|_| true).is_some());
        if all { IoLock::Ours(0) } else { IoLock::Server }
    }

    /// How I/O on this object goes, and the lock to be kept until it is done: of this object only, others may be asked back.
    pub(super) fn of(&self, obj: &ObjectRef) -> (IoLock, Option<LockRef>) {
        let pin = self
            .held
            .iter()
            .find(|(o, _)| o == obj)
            .and_then(|(_, l)| l.pin());
        (
            pin.as_ref()
                .map_or(IoLock::Server, |l| IoLock::Ours(l.info().remote_cookie)),
            pin,
        )
    }
}
