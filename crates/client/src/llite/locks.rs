//! Lock callbacks and recovery: what is emptied before a lock goes, and who hears of what a server has lost.

use std::sync::{Arc, Weak};

use coral_ldlm::{LockHook, LockInfo};
use coral_ptlrpc::{Lost, Reply};
use coral_wire::fid::Fid;
use coral_wire::ldlm::{Ibits, LdlmType, Policy};
use coral_wire::ost::OstLvb;
use futures_util::future::BoxFuture;

use super::cache::Cache;
use super::covers::{Covers, ObjectKey, OpenFiles};
use super::drains::Drains;
use super::kept::KeptOpens;
use super::late::LateAttrs;
use super::lost_dirs::LostDirs;
use super::untold::UntoldOpens;
use super::upcalls::Upcalls;
use crate::error::Error;
use crate::lov::DOM_OST;
use crate::mdc::Mdc;
use crate::osc::Osc;
use crate::target::{ClientObd, TargetHooks};
use crate::time::Timespec;

/// What the locks of a mount's targets protect.
pub(super) struct Locks {
    pub cache: Arc<Cache>,
    pub upcalls: Arc<Upcalls>,
    pub covers: Arc<Covers>,
    pub open: Arc<OpenFiles>,
    pub kept: Arc<KeptOpens>,
    pub untold: Arc<UntoldOpens>,
    pub late: Arc<LateAttrs>,
    pub lost_dirs: Arc<LostDirs>,
    pub drains: Arc<Drains>,
}

impl Locks {
    /// Lets the cache follow the locks of an OST.
    pub fn attach_ost(self: &Arc<Self>, osc: &Osc) {
        let hooks = Arc::new(OstHooks {
            locks: Arc::downgrade(self),
            ost: osc.index,
        });
        osc.namespace().set_hook(hooks.clone());
        osc.set_hooks(hooks);
    }

    /// Lets the cache and the open files follow the locks of an MDT.
    pub fn attach(self: &Arc<Self>, mdc: &Arc<Mdc>) {
        let hooks = Arc::new(MdtHooks {
            locks: Arc::downgrade(self),
            mdc: Arc::downgrade(mdc),
        });
        mdc.namespace().set_hook(hooks.clone());
        mdc.set_hooks(hooks);
    }

    /// Changes that servers had acknowledged are gone with their memory, and could not be brought again.
    fn changes_lost(&self, lost: &coral_ptlrpc::Lost) {
        for fid in &lost.files {
            tracing::error!(%fid, "a server was restarted and has lost acknowledged changes that could not be made again");
        }
        if lost.more {
            tracing::error!(
                "a server was restarted and has lost acknowledged writes of more files than are kept account of"
            );
        }
        lost.files.iter().for_each(|fid| self.lost_dirs.note(*fid));
        for inode in self.open.all() {
            if lost.more || lost.files.contains(&inode.fid) {
                inode.lost.note(Error::ChangesLost);
            }
        }
    }

    /// What is known here of an object that others ask about.
    fn glimpsed(&self, key: ObjectKey) -> Option<OstLvb> {
        let (_, gate) = self.covers.by_object(key)?;
        gate.writes()?.writes.as_ref()?.lvb(key)
    }
}

/// What happens when a lock of an MDT goes, or the MDT itself.
struct MdtHooks {
    locks: Weak<Locks>,
    mdc: Weak<Mdc>,
}

impl MdtHooks {
    fn lost(&self, lock: &LockInfo) {
        let Some(locks) = self.locks.upgrade().filter(|_| lock.ty == LdlmType::IBITS) else {
            return;
        };
        let fid = Fid::from_res_id(&lock.res);
        let Policy::Ibits { bits, .. } = lock.policy else {
            return;
        };
        if bits.intersects(Ibits::DOM) {
            locks
                .upcalls
                .tell(|| locks.cache.extent_lost(DOM_OST, lock.res));
        }
        if bits.intersects(Ibits::LAYOUT)
            && let Some(open) = locks.open.of(fid)
        {
            open.layout_lost();
            locks.drains.settle_later(fid, &open.gate);
        }
        if bits.intersects(Ibits::ATTRIBUTES) {
            locks.late.end(fid);
        }
        locks
            .upcalls
            .tell(|| locks.cache.lock_lost(fid, lock.cookie, bits.bits()));
    }
}

impl LockHook for MdtHooks {
    fn cancelling(
        &self,
        lock: &LockInfo,
        _discard: bool,
        local_only: bool,
    ) -> BoxFuture<'static, ()> {
        self.lost(lock);
        if let Policy::Ibits { bits, .. } = lock.policy
            && bits.intersects(Ibits::ATTRIBUTES)
            && let Some(locks) = self.locks.upgrade()
        {
            let fid = Fid::from_res_id(&lock.res);
            let closed = locks.kept.closed(fid);
            // of one that was opened again just before
            locks.late.end(fid);
            let forgotten = forgotten(&self.locks);
            if local_only {
                locks.untold.lost(fid);
                // a server that is coming back would wait for this, and the request for the server
                locks.late.send(fid);
            }
            return Box::pin(async move {
                if !local_only {
                    locks.late.sent_for_others(fid).await;
                }
                forgotten.await;
                closed.await;
            });
        }
        forgotten(&self.locks)
    }

    fn blocked(&self, lock: &LockInfo) {
        self.lost(lock);
        if let (LdlmType::IBITS, Some(locks), Some(mdc)) =
            (lock.ty, self.locks.upgrade(), self.mdc.upgrade())
        {
            let now = Timespec::now(mdc.import().node());
            locks.untold.wanted(Fid::from_res_id(&lock.res), now);
        }
    }

    fn told(&self, lock: &LockInfo) -> BoxFuture<'static, bool> {
        let Some(locks) = self.locks.upgrade() else {
            return Box::pin(async { false });
        };
        let fid = Fid::from_res_id(&lock.res);
        Box::pin(async move {
            locks.late.end(fid);
            locks.late.sent_for_others(fid).await;
            let closed = locks.kept.made_closed(fid);
            // of one that was opened again just before
            locks.late.end(fid);
            locks.late.sent_for_others(fid).await;
            locks.upcalls.forgotten().await;
            closed.await;
            true
        })
    }

    fn glimpse(&self, _lock: &LockInfo) -> Option<OstLvb> {
        None
    }
}

impl TargetHooks for MdtHooks {
    fn evicted(&self, _target: &ClientObd) {
        let mdc = self.mdc.upgrade();
        if let Some(mdc) = &mdc {
            mdc.evicted();
        }
        if let Some(locks) = self.locks.upgrade() {
            if let Some(mdc) = &mdc {
                locks.untold.evicted(mdc);
            }
            locks.upcalls.tell(|| locks.cache.clear());
        }
    }

    fn open_replayed(&self, transno: u64, reply: &Reply) {
        if let Some(mdc) = self.mdc.upgrade() {
            mdc.open_replayed(transno, reply);
        }
    }

    fn changes_lost(&self, lost: Lost) {
        if let Some(locks) = self.locks.upgrade() {
            locks.changes_lost(&lost);
        }
    }
}

/// What happens when an extent lock of an OST goes, or what it acknowledged.
struct OstHooks {
    locks: Weak<Locks>,
    ost: u32,
}

impl TargetHooks for OstHooks {
    fn changes_lost(&self, lost: Lost) {
        if let Some(locks) = self.locks.upgrade() {
            locks.changes_lost(&lost);
        }
    }
}

impl LockHook for OstHooks {
    fn cancelling(
        &self,
        lock: &LockInfo,
        _discard: bool,
        _local_only: bool,
    ) -> BoxFuture<'static, ()> {
        self.blocked(lock);
        forgotten(&self.locks)
    }

    fn blocked(&self, lock: &LockInfo) {
        if let Some(locks) = self.locks.upgrade() {
            locks
                .upcalls
                .tell(|| locks.cache.extent_lost(self.ost, lock.res));
            locks.drains.lock_lost((self.ost, lock.res), lock.cookie);
        }
    }

    fn glimpse(&self, lock: &LockInfo) -> Option<OstLvb> {
        self.locks.upgrade()?.glimpsed((self.ost, lock.res))
    }
}

/// Resolves when the caller has forgotten what it was told of; then the lock may go.
fn forgotten(locks: &Weak<Locks>) -> BoxFuture<'static, ()> {
    match locks.upgrade() {
        Some(l) => l.upcalls.forgotten(),
        None => Box::pin(async {}),
    }
}
