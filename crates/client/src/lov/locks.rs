//! Locks on the objects of a file, as an operation holds or lends them.

use std::sync::Arc;

use coral_ldlm::LockRef;
use parking_lot::Mutex;

use crate::osc::{IoLock, ObjectRef};

/// A lock of ours on one object, until it is given back.
#[derive(Debug, Clone, Default)]
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

/// Where a file ends that was read and came short: how that is found out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum End {
    /// The servers lock for it.
    #[default]
    Server,
    /// All of every object is locked: whoever knows says it.
    Ours,
    /// Who holds locks is asked and keeps them. What was read is locked.
    Asked,
    /// The same, and nothing is locked.
    AskedBeside,
}

/// Which extent locks of ours cover an I/O; none: the servers lock.
#[derive(Debug, Clone, Default)]
pub struct Locks {
    /// Objects and our locks on what of them the I/O touches.
    held: Vec<(ObjectRef, HeldLock)>,
    end: End,
}

impl Locks {
    /// Locks on whole objects, each with the index of its OST.
    pub fn of_objects(locks: Vec<(u32, ObjectRef, LockRef)>) -> Locks {
        let held = |(_, object, lock)| (object, HeldLock::new(lock));
        Self::whole_objects(locks.into_iter().map(held).collect())
    }

    /// Locks on the whole of every object.
    pub fn whole_objects(held: Vec<(ObjectRef, HeldLock)>) -> Locks {
        let end = match held.is_empty() {
            true => End::Server,
            false => End::Ours,
        };
        Locks { held, end }
    }

    /// Locks on all that an I/O touches; with `whole` all of every object is locked.
    pub fn of_ranges(held: Vec<(ObjectRef, HeldLock)>, whole: bool) -> Locks {
        let end = match whole {
            true => End::Ours,
            false => End::Asked,
        };
        Locks { held, end }
    }

    /// None; other ranges of the file are locked by this client, and are to stay so.
    pub fn beside() -> Locks {
        Locks {
            held: Vec::new(),
            end: End::AskedBeside,
        }
    }

    /// No lock of ours.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// All are held still, and none is asked back.
    fn stay(&self) -> bool {
        self.held
            .iter()
            .all(|(_, l)| l.ask(LockRef::is_blocked) == Some(false))
    }

    /// For a question about all objects: whether locks of ours cover all of them.
    pub(super) fn whole(&self) -> IoLock {
        let all = self.held.iter().all(|(_, l)| l.ask(|_| true).is_some());
        match self.end == End::Ours && all {
            true => IoLock::Ours(0),
            false => IoLock::Server,
        }
    }

    /// All of every object is locked for the I/O.
    pub(super) fn has_all(&self) -> bool {
        self.end == End::Ours
    }

    /// The end of the file is asked from those who hold locks, who keep them.
    pub(super) fn asks_the_end(&self) -> bool {
        matches!(self.end, End::Asked | End::AskedBeside)
    }

    /// What was read is as it was: it is locked.
    pub(super) fn holds(&self) -> bool {
        match self.end {
            End::Ours => self.whole() != IoLock::Server,
            End::Asked => self.stay(),
            End::Server | End::AskedBeside => false,
        }
    }

    /// How I/O on this object goes, and the locks to be kept until it is done: of this object only, others may be asked back.
    pub(super) fn of(&self, obj: &ObjectRef) -> (IoLock, Pins) {
        let mut pins = Pins::default();
        for (_, lock) in self.held.iter().filter(|(o, _)| o == obj) {
            match lock.pin() {
                None => return (IoLock::Server, Pins::default()),
                Some(l) if pins.first.is_none() => pins.first = Some(l),
                Some(l) => pins.more.push(l),
            }
        }
        let lock = pins.first.as_ref();
        let cookie = lock.map(|l| l.info().remote_cookie);
        (cookie.map_or(IoLock::Server, IoLock::Ours), pins)
    }
}

/// Locks that are kept while this exists.
#[derive(Debug, Default)]
pub(super) struct Pins {
    first: Option<LockRef>,
    more: Vec<LockRef>,
}
