//! Idle locks that several targets may leave with a client together: what one of them does not use the others have.
//!
//! Each member has a share, which it always may keep. As long as all together are within the limit, none gives anything back; beyond
//! it, whoever has most beyond his share does.

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::ClientNamespace;
use super::cancel::CANCEL_BATCH;

/// See the module.
#[derive(Default)]
pub struct LockPool {
    limit: AtomicUsize,
    /// Idle locks of all members, as each told last.
    idle: AtomicIsize,
    members: Mutex<Vec<Weak<ClientNamespace>>>,
    /// A task gives locks back.
    serving: AtomicBool,
}

impl LockPool {
    /// Sets how many idle locks all members may have together.
    pub fn set_limit(&self, locks: usize) {
        self.limit.store(locks, Ordering::Relaxed);
    }

    /// Idle locks of all members, about.
    pub fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed).max(0) as usize
    }

    pub(super) fn join(&self, member: &Arc<ClientNamespace>) {
        let mut members = self.members.lock();
        members.retain(|m| m.strong_count() > 0);
        if !members.iter().any(|m| std::ptr::eq(m.as_ptr(), &**member)) {
            members.push(Arc::downgrade(member));
        }
    }

    /// A member has `now` idle locks and told of `before` last. True: it is time to give some back.
    pub(super) fn told(&self, before: usize, now: usize) -> bool {
        let change = now as isize - before as isize;
        let idle = self.idle.fetch_add(change, Ordering::Relaxed) + change;
        let limit = self.limit.load(Ordering::Relaxed);
        // once it is worth an RPC
        let slack = (limit / 8).clamp(1, CANCEL_BATCH);
        idle.max(0) as usize >= limit + slack
    }

    /// Gives locks back until there are no more than there may be: in the background, and no server is waited for, because one may
    /// be away.
    pub(super) fn serve(self: &Arc<Self>, member: &ClientNamespace) {
        if !self.serving.swap(true, Ordering::AcqRel) {
            let serving = Serving(self.clone());
            member.spawn(Box::pin(async move { serving.0.shrink() }));
        }
    }

    fn shrink(&self) {
        let mut all: Vec<_> = {
            let members = self.members.lock();
            members.iter().filter_map(Weak::upgrade).collect()
        };
        all.retain(|m| m.is_pooled());
        // what was called back meanwhile is idle no more
        for member in &all {
            member.tell_idle(member.counts().1);
        }
        loop {
            let over = self
                .idle()
                .saturating_sub(self.limit.load(Ordering::Relaxed));
            let beyond = |m: &Arc<ClientNamespace>| m.counts().1.saturating_sub(m.lru_size());
            let most = all.iter().enumerate().max_by_key(|(_, m)| beyond(m));
            let Some((i, more)) = most.map(|(i, m)| (i, beyond(m))) else {
                return;
            };
            if over == 0 || more == 0 {
                return;
            }
            let keep = all[i].counts().1.saturating_sub(more.min(over));
            if !all[i].give_back_beyond(keep) {
                // its hooks keep them
                all.swap_remove(i);
            }
        }
    }
}

/// A pool that is served, until it is dropped: also when its task ends before it began.
struct Serving(Arc<LockPool>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.store(false, Ordering::Release);
    }
}
