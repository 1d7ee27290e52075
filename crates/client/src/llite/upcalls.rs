//! Whoever mounted, who is told what to forget.

use std::sync::Arc;

use coral_wire::fid::Fid;
use futures_util::future::BoxFuture;
use parking_lot::RwLock;

use super::cache::Forget;
use super::types::Invalidate;

/// Who is told, if anybody.
#[derive(Default)]
pub(super) struct Upcalls(RwLock<Option<Arc<dyn Invalidate>>>);

impl Upcalls {
    /// From now on this one is told.
    pub fn set(&self, who: Arc<dyn Invalidate>) {
        *self.0.write() = Some(who);
    }

    /// Somebody is told, and so may remember.
    pub fn are_heard(&self) -> bool {
        self.0.read().is_some()
    }

    /// Who is told.
    pub fn who(&self) -> Option<Arc<dyn Invalidate>> {
        self.0.read().clone()
    }

    /// Tells what to forget.
    pub fn tell(&self, what: Forget) {
        let Some(who) = self.who() else {
            return;
        };
        for (parent, name) in &what.entries {
            who.inval_entry(*parent, name);
        }
        for fid in &what.inodes {
            who.inval_inode(*fid, true);
        }
    }

    /// Tells that attributes of `fid` asked for before are old: this client changed them.
    pub fn tell_own(&self, fid: Fid) {
        if let Some(who) = self.who() {
            who.own_change(fid);
        }
    }

    /// Resolves when what was told is forgotten; then the lock may go.
    pub fn forgotten(&self) -> BoxFuture<'static, ()> {
        self.who()
            .map_or_else(|| Box::pin(async {}) as BoxFuture<_>, |w| w.forgotten())
    }
}
