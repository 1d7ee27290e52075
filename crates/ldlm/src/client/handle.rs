//! What callers hold: a lock that is being asked for, and a granted lock.

use coral_wire::ldlm::{LdlmMode, LdlmRequest, LdlmType, Policy, ResId};
use std::sync::Arc;

use super::ClientNamespace;
use crate::core::LockInfo;

/// A lock whose request is being sent. Dropped without [`ClientNamespace::finish`], the lock is forgotten; a callback that comes
/// then is answered "unknown", which makes the server drop it too. For one that came before, the lock is cancelled.
pub struct PendingLock {
    pub(super) ns: Arc<ClientNamespace>,
    pub(super) request: LdlmRequest,
    pub(super) live: bool,
}

impl PendingLock {
    /// The DLM_REQ buffer of the RPC.
    pub fn request(&self) -> LdlmRequest {
        self.request.clone()
    }

    /// Our cookie.
    pub fn cookie(&self) -> u64 {
        self.request.handle(0)
    }
}

impl Drop for PendingLock {
    fn drop(&mut self) {
        if !self.live {
            return;
        }
        let cookie = self.cookie();
        let remote = {
            let mut locks = self.ns.locks.lock();
            if locks.abandon(cookie) {
                drop(locks);
                // Granted by a completion callback: another task may have matched it, so it goes with its last pin.
                return drop(LockRef::new(self.ns.clone(), cookie));
            }
            locks.forget(cookie)
        };
        if remote != 0 {
            let ns = self.ns.clone();
            self.ns.spawn(Box::pin(async move {
                ns.send_cancel(&[remote]).await;
            }));
        }
    }
}

/// A granted lock, pinned: while one exists the lock is not cancelled. Cheap to clone. Drop it with no mutex held that a
/// [`super::LockHook`] takes.
pub struct LockRef {
    ns: Arc<ClientNamespace>,
    cookie: u64,
}

impl LockRef {
    /// Takes over one pin.
    pub(super) fn new(ns: Arc<ClientNamespace>, cookie: u64) -> LockRef {
        LockRef { ns, cookie }
    }

    /// The lock as granted.
    pub fn info(&self) -> LockInfo {
        self.with(|h| h.info())
    }

    /// Our cookie.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Resource it is on.
    pub fn res(&self) -> ResId {
        self.with(|h| h.res)
    }

    /// Lock type.
    pub fn ty(&self) -> LdlmType {
        self.with(|h| h.ty)
    }

    /// Granted mode.
    pub fn mode(&self) -> LdlmMode {
        self.with(|h| h.mode)
    }

    /// What it covers.
    pub fn policy(&self) -> Policy {
        self.with(|h| h.policy)
    }

    /// True once the server asked for it back, or it is gone: do not start new work under it.
    pub fn is_blocked(&self) -> bool {
        self.with(|h| h.blocked || h.dead)
    }

    /// True when the server does not know it any more (eviction): what was cached under it is void.
    pub fn is_dead(&self) -> bool {
        self.with(|h| h.dead)
    }

    fn with<T>(&self, f: impl FnOnce(&super::table::ClientLock) -> T) -> T {
        f(self
            .ns
            .locks
            .lock()
            .get(self.cookie)
            .expect("a pinned lock is in the table"))
    }

    /// The LVB that came with the completion callback, once.
    pub(super) fn take_lvb(&self) -> bytes::Bytes {
        let mut locks = self.ns.locks.lock();
        locks
            .get_mut(self.cookie)
            .map(|h| std::mem::take(&mut h.lvb))
            .unwrap_or_default()
    }

    /// The namespace it belongs to.
    pub(super) fn namespace(&self) -> Arc<ClientNamespace> {
        self.ns.clone()
    }

    /// Forgets the reference without dropping its pin.
    pub(super) fn leak_pin(mut self) {
        self.cookie = 0;
    }
}

impl Clone for LockRef {
    fn clone(&self) -> Self {
        self.ns.locks.lock().pin_again(self.cookie);
        LockRef {
            ns: self.ns.clone(),
            cookie: self.cookie,
        }
    }
}

impl Drop for LockRef {
    fn drop(&mut self) {
        if self.cookie == 0 {
            return;
        }
        self.ns.unpin(self.cookie);
    }
}

impl std::fmt::Debug for LockRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let i = self.info();
        write!(
            f,
            "LockRef({} {:?} {:?} {:?})",
            i.res, i.ty, i.granted_mode, i.policy
        )
    }
}
