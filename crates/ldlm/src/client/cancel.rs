//! Giving locks back: because the server asks, because they are too many, because the owner is done.

use coral_ptlrpc::Request;
use coral_wire::ldlm::{LdlmRequest, LdlmType, ResId};
use coral_wire::ptlrpc::{opc, portal};
use futures_util::{FutureExt, StreamExt};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

use super::table::Doomed;
use super::{ClientNamespace, LockHook, LockRef};

/// Locks given back in one CANCEL, and at once when the LRU is over its size.
pub const CANCEL_BATCH: usize = 128;
/// Hooks of locks of one CANCEL that are at work at a time: each may wait for a round trip of its own.
const TOLD_AT_ONCE: usize = 16;
/// What is given back soon waits so long for more. A Coral MDT has the objects of a file that went destroyed after 20 ms at the
/// earliest, and their OST would ask for these locks then.
const SOON: Duration = Duration::from_millis(8);

/// Locks on their way out. Nobody else gives them back, so it goes on by itself when whoever waits for it goes.
struct GivingBack {
    ns: Arc<ClientNamespace>,
    /// Those whose hooks are to be called.
    doomed: VecDeque<Doomed>,
    /// Server cookies of those that are forgotten here, to be cancelled.
    cookies: Vec<u64>,
}

impl GivingBack {
    async fn run(&mut self) {
        let hook = self.ns.hook();
        while !self.doomed.is_empty() || !self.cookies.is_empty() {
            let room = CANCEL_BATCH.saturating_sub(self.cookies.len());
            let batch = self.doomed.len().min(room);
            if let Some(hook) = &hook {
                let told = self.doomed.iter().take(batch).map(|d| tell(&**hook, d));
                let told = futures_util::stream::iter(told);
                told.for_each_concurrent(TOLD_AT_ONCE, |told| told).await;
            }
            self.forget(batch);
            self.ns.send_cancel(&self.cookies).await;
            self.cookies.clear();
        }
    }

    /// The first so many locks are no locks of this client any more, and the server is to be told.
    fn forget(&mut self, batch: usize) {
        let mut locks = self.ns.locks.lock();
        for d in self.doomed.drain(..batch) {
            let remote = locks.cancelled(d.info.cookie);
            self.cookies.extend((remote != 0).then_some(remote));
        }
    }
}

/// Has the hook do what it does. If it panics, the lock is given back without.
async fn tell(hook: &dyn LockHook, d: &Doomed) {
    let told = async { hook.cancelling(&d.info, d.discard, false).await };
    let _ = AssertUnwindSafe(told).catch_unwind().await;
}

impl Drop for GivingBack {
    fn drop(&mut self) {
        if self.doomed.is_empty() && self.cookies.is_empty() {
            return;
        }
        let (doomed, cookies) = (
            std::mem::take(&mut self.doomed),
            std::mem::take(&mut self.cookies),
        );
        // The rest is a guard again from its first poll on: a runtime that ends does not begin it.
        let ns = self.ns.clone();
        self.ns.spawn(Box::pin(ns.go_on(doomed.into(), cookies)));
    }
}

impl ClientNamespace {
    /// Gives one pin up; what follows from it is never done inline: the caller may hold mutexes of its own.
    pub(super) fn unpin(self: &Arc<Self>, cookie: u64) {
        let now = Instant::now();
        let (doomed, idle, old) = {
            let mut locks = self.locks.lock();
            let doomed = locks.unpin(cookie, now);
            let old = locks.has_older(now.checked_sub(self.lru_max_age));
            (doomed, locks.counts().1, old)
        };
        // The LRU is served once it is worth an RPC, so that not every unpin makes one.
        let size = self.lru_size();
        let slack = (size / 8).clamp(1, CANCEL_BATCH);
        let over = old | (self.tell(idle) && idle >= size + slack);
        if let Some(d) = doomed {
            let me = self.clone();
            self.spawn(Box::pin(async move { me.give_back(vec![d]).await }));
        }
        if over && !self.shrinking.swap(true, Ordering::AcqRel) {
            let me = self.clone();
            self.spawn(Box::pin(async move {
                me.clone().shrink(me.kept()).await;
                me.shrinking.store(false, Ordering::Release);
            }));
        }
    }

    /// Gives all idle locks back (`lru_size=clear`).
    pub async fn cancel_unused(self: &Arc<Self>) {
        self.clone().shrink(0).await;
    }

    /// Gives idle locks back until `keep` are left and none is too old.
    async fn shrink(self: Arc<Self>, keep: usize) {
        loop {
            let doomed = self.doom_beyond(keep);
            if doomed.is_empty() {
                return;
            }
            self.clone().give_back(doomed).await;
        }
    }

    /// The oldest idle locks beyond `keep`, and those that are too old, are to go: as many as one message holds.
    fn doom_beyond(&self, keep: usize) -> Vec<Doomed> {
        let limit = Instant::now().checked_sub(self.lru_max_age);
        let mut locks = self.locks.lock();
        let aged = locks.aged(keep, limit, CANCEL_BATCH);
        let doomed = locks.doom_if_idle(&aged);
        drop(locks);
        self.tell_idle(self.counts().1);
        doomed
    }

    /// Gives the oldest idle locks beyond `keep` back, as many as one message holds, in the background. False: there are none.
    pub(super) fn give_back_beyond(self: &Arc<Self>, keep: usize) -> bool {
        let doomed = self.doom_beyond(keep);
        let some = !doomed.is_empty();
        if some {
            let me = self.clone();
            self.spawn(Box::pin(async move { me.give_back(doomed).await }));
        }
        some
    }

    /// Calls the hooks, then tells the server, in as few messages as possible. It is done even when the future is dropped.
    pub(super) async fn give_back(self: Arc<Self>, doomed: Vec<Doomed>) {
        self.go_on(doomed, Vec::new()).await;
    }

    /// The same with server cookies of locks that are forgotten already.
    async fn go_on(self: Arc<Self>, doomed: Vec<Doomed>, cookies: Vec<u64>) {
        let mut work = GivingBack {
            ns: self,
            doomed: doomed.into(),
            cookies,
        };
        work.run().await;
    }

    /// CANCEL by server cookies. What goes wrong is of no use to anybody: a server that cannot be reached or knows nothing of
    /// the locks has dropped them.
    /// The server's status; `None` when there is none.
    pub async fn send_cancel(&self, cookies: &[u64]) -> Option<i32> {
        if cookies.is_empty() {
            return None;
        }
        self.stats.cancelled.add(cookies.len() as u64);
        let rq = LdlmRequest::cancel(cookies);
        let rpc = Request::new(portal::LDLM_CANCEL_REQUEST, opc::LDLM_CANCEL)
            .push_bytes(rq.to_bytes())
            .urgent();
        match self.import.call(rpc).await {
            Ok(reply) => Some(reply.status),
            Err(e) => {
                tracing::debug!(target = self.import.target_uuid(), locks = cookies.len(), error = %e, "cancel not delivered");
                None
            }
        }
    }

    /// Drops the pin and gives the lock back: now, or when nobody else pins it.
    pub async fn cancel(self: &Arc<Self>, lock: LockRef) {
        let (ns, cookie) = (lock.namespace(), lock.cookie());
        lock.leak_pin();
        let doomed = {
            let mut locks = ns.locks.lock();
            if let Some(h) = locks.get_mut(cookie) {
                h.blocked = true;
            }
            locks.unpin(cookie, Instant::now())
        };
        if let Some(d) = doomed {
            ns.give_back(vec![d]).await;
        }
    }

    /// Gives back the idle locks on an object that nobody has a use for any more, in one message with those of others.
    pub fn give_back_soon(self: &Arc<Self>, res: ResId, ty: LdlmType) {
        let doomed = self.locks.lock().doom_idle(res, ty);
        if doomed.is_empty() {
            return;
        }
        self.tell_idle(self.counts().1);
        let mut soon = self.soon.lock();
        let is_first = soon.is_empty();
        soon.extend(doomed);
        let full = (soon.len() >= CANCEL_BATCH).then(|| std::mem::take(&mut *soon));
        drop(soon);
        let me = self.clone();
        if let Some(doomed) = full {
            self.spawn(Box::pin(me.give_back(doomed)));
        } else if is_first {
            self.spawn(Box::pin(async move {
                tokio::time::sleep(SOON).await;
                let doomed = std::mem::take(&mut *me.soon.lock());
                me.give_back(doomed).await;
            }));
        }
    }

    /// Gives all locks back (umount): unused ones now, others with their last pin.
    pub async fn cancel_all(self: &Arc<Self>) {
        let doomed = self.locks.lock().doom_all();
        self.clone().give_back(doomed).await;
    }

    /// The locks on an object that are held and not wanted back: {our cookie, the server's}.
    pub fn held_on(&self, res: &ResId, ty: LdlmType) -> Vec<(u64, u64)> {
        self.locks.lock().usable_on(*res, ty)
    }

    /// The server has given a greater lock for these, by our cookies. No hook is called: what they covered is covered by it.
    pub fn replaced(&self, cookies: impl Iterator<Item = u64>) {
        let mut locks = self.locks.lock();
        cookies.for_each(|cookie| locks.replaced(cookie));
    }

    /// Forgets the unused locks on an object that is gone; their server cookies, for a request of the next days to cancel on its
    /// way. No hook is called: the caller has dropped what they covered. Until then the server may ask for them back: they are
    /// then unknown here, which ends them there as well.
    pub fn forget_unused(&self, res: &ResId, ty: LdlmType) -> Vec<u64> {
        let mut locks = self.locks.lock();
        let doomed = locks.doom_idle(*res, ty);
        doomed
            .iter()
            .map(|d| locks.cancelled(d.info.cookie))
            .filter(|remote| *remote != 0)
            .collect()
    }
}
