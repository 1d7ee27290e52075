//! Lock callbacks and recovery, as far as the cache and open files care.

use std::sync::{Arc, Weak};

use coral_ldlm::{LockHook, LockInfo};
use coral_ptlrpc::{Lost, Reply};
use coral_wire::fid::Fid;
use coral_wire::ldlm::{Ibits, LdlmType, Policy};
use coral_wire::ost::OstLvb;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{Change, Forget};
use crate::llite::Llite;
use crate::lov::DOM_OST;
use crate::mdc::Mdc;
use crate::osc::Osc;
use crate::target::{Target, TargetHooks};

/// What happens when a lock of an MDT goes, or the MDT itself.
pub(in crate::llite) struct MdtHooks {
    pub llite: Weak<Llite>,
    pub mdc: Weak<Mdc>,
}

impl MdtHooks {
    fn lost(&self, lock: &LockInfo) {
        let Some(llite) = self.llite.upgrade().filter(|_| lock.ty == LdlmType::IBITS) else {
            return;
        };
        let fid = Fid::from_res_id(&lock.res);
        let Policy::Ibits { bits, .. } = lock.policy else {
            return;
        };
        if bits.intersects(Ibits::DOM) {
            llite.tell(llite.cache.extent_lost(DOM_OST, lock.res));
        }
        if bits.intersects(Ibits::LAYOUT)
            && let Some(open) = llite.opened(fid)
        {
            open.layout_lost();
            llite.settle_later(fid, &open.gate);
        }
        llite.tell(llite.cache.lock_lost(fid, lock.cookie, bits.bits()));
    }
}

impl LockHook for MdtHooks {
    fn cancelling(
        &self,
        lock: &LockInfo,
        _discard: bool,
        _local_only: bool,
    ) -> BoxFuture<'static, ()> {
        self.lost(lock);
        forgotten(&self.llite)
    }

    fn blocked(&self, lock: &LockInfo) {
        self.lost(lock);
    }

    fn glimpse(&self, _lock: &LockInfo) -> Option<OstLvb> {
        None
    }
}

impl TargetHooks for MdtHooks {
    fn evicted(&self, target: &Target) {
        tracing::warn!(target = %target.uuid, "open files of this MDT are stale");
        if let Some(mdc) = self.mdc.upgrade() {
            mdc.evicted();
        }
        if let Some(llite) = self.llite.upgrade() {
            llite.tell(llite.cache.clear());
        }
    }

    fn open_replayed(&self, transno: u64, reply: &Reply) {
        if let Some(mdc) = self.mdc.upgrade() {
            mdc.open_replayed(transno, reply);
        }
    }

    fn changes_lost(&self, lost: Lost) {
        if let Some(llite) = self.llite.upgrade() {
            llite.changes_lost(&lost);
        }
    }
}

/// What happens when an extent lock of an OST goes, or what it acknowledged.
struct OstHooks {
    llite: Weak<Llite>,
    ost: u32,
}

impl TargetHooks for OstHooks {
    fn changes_lost(&self, lost: Lost) {
        if let Some(llite) = self.llite.upgrade() {
            llite.changes_lost(&lost);
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
        forgotten(&self.llite)
    }

    fn blocked(&self, lock: &LockInfo) {
        if let Some(llite) = self.llite.upgrade() {
            llite.tell(llite.cache.extent_lost(self.ost, lock.res));
            llite.object_lock_lost((self.ost, lock.res), lock.cookie);
        }
    }

    fn glimpse(&self, lock: &LockInfo) -> Option<OstLvb> {
        self.llite.upgrade()?.glimpsed((self.ost, lock.res))
    }
}

/// Resolves when the caller has forgotten what it was told of; then the lock may go.
fn forgotten(llite: &Weak<Llite>) -> BoxFuture<'static, ()> {
    let inval = llite.upgrade().and_then(|l| l.inval.read().clone());
    inval.map_or_else(|| Box::pin(async {}) as BoxFuture<_>, |i| i.forgotten())
}

/// An own change of the entries of directories, under way.
pub(in crate::llite) struct ChangingEntries {
    change: Option<Change>,
    llite: Arc<Llite>,
    dirs: SmallVec<[Fid; 2]>,
}

impl Drop for ChangingEntries {
    fn drop(&mut self) {
        self.change = None;
        self.dirs.iter().for_each(|d| self.llite.tell_own(*d));
    }
}

impl Llite {
    /// Lets the cache follow the locks of an OST.
    pub(in crate::llite) fn attach_ost(self: &Arc<Self>, osc: &Osc) {
        let hooks = Arc::new(OstHooks {
            llite: Arc::downgrade(self),
            ost: osc.index,
        });
        osc.namespace().set_hook(hooks.clone());
        osc.set_hooks(hooks);
    }

    /// Lets the cache and the open files follow the locks of an MDT.
    pub(in crate::llite) fn attach(self: &Arc<Self>, mdc: &Arc<Mdc>) {
        let hooks = Arc::new(MdtHooks {
            llite: Arc::downgrade(self),
            mdc: Arc::downgrade(mdc),
        });
        mdc.namespace().set_hook(hooks.clone());
        mdc.set_hooks(hooks);
    }

    /// Times of data on the MDT were set by way of the inode: what is cached of the data is older.
    pub(in crate::llite) fn data_times_set(&self, fid: Fid) {
        self.tell(self.cache.extent_lost(DOM_OST, fid.res_id()));
    }

    /// An own change of the entries of `dirs` begins; when what is returned is dropped it has ended, whatever came of it, and
    /// the caller is told that attributes of theirs it asked for before are old.
    pub(in crate::llite) fn change_entries(self: &Arc<Self>, dirs: &[Fid]) -> ChangingEntries {
        ChangingEntries {
            change: Some(self.cache.begin_change(dirs)),
            llite: self.clone(),
            dirs: dirs.into(),
        }
    }

    /// Tells the caller that attributes of `fid` it asked for before are old: this client changed them.
    pub(in crate::llite) fn tell_own(&self, fid: Fid) {
        if let Some(inval) = self.inval.read().clone() {
            inval.own_change(fid);
        }
    }

    /// An own change of the object's attributes whose outcome the reply did not tell.
    pub(in crate::llite) fn forget_attrs(&self, fid: Fid) {
        self.cache.forget_attrs(fid);
        self.tell_own(fid);
    }

    /// Tells the caller what to forget.
    fn tell(&self, what: Forget) {
        let Some(inval) = self.inval.read().clone() else {
            return;
        };
        for (parent, name) in &what.entries {
            inval.inval_entry(*parent, name);
        }
        for fid in &what.inodes {
            inval.inval_inode(*fid, true);
        }
    }
}
