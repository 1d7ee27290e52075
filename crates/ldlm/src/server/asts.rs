//! Sending what the core decided, and what becomes of clients that do not answer.

use bytes::Bytes;
use coral_lnet::exec::run_inline;
use coral_stopwatch::{Asked, Teller};
use coral_wire::Wire;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmFlags, LdlmType, LockDesc};
use coral_wire::ptlrpc::opc;
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{LdlmServer, NamespaceState};
use crate::ExportId;
use crate::ast::{AstError, EvictReason};
use crate::core::{Action, Actions, FoldMap, LockInfo};

/// A lock that was asked back so long ago and is not cancelled is told as under way: somebody waits for it.
const TOLD_AFTER: Duration = Duration::from_millis(500);
/// Most of them that are told.
const TOLD_MAX: usize = 4096;

/// Locks asked back and not cancelled yet, by deadline.
#[derive(Default)]
pub(super) struct WaitingLocks {
    by_cookie: FoldMap<u64, Owed>,
    by_time: BTreeSet<(Instant, u64)>,
    /// The task that evicts is running.
    watched: bool,
}

#[derive(Clone, Copy)]
struct Owed {
    since: Instant,
    until: Instant,
}

impl WaitingLocks {
    pub fn is_empty(&self) -> bool {
        self.by_cookie.is_empty()
    }

    pub fn add(&mut self, cookie: u64, until: Instant) {
        self.put(cookie, Instant::now(), until);
    }

    fn put(&mut self, cookie: u64, since: Instant, until: Instant) {
        self.remove(cookie);
        self.by_cookie.insert(cookie, Owed { since, until });
        self.by_time.insert((until, cookie));
    }

    /// Moves the deadline of a waiting lock; does nothing for others.
    pub fn prolong(&mut self, cookie: u64, until: Instant) {
        if let Some(owed) = self.by_cookie.get(&cookie) {
            self.put(cookie, owed.since, until);
        }
    }

    pub fn remove(&mut self, cookie: u64) {
        if self.by_cookie.is_empty() {
            return;
        }
        if let Some(owed) = self.by_cookie.remove(&cookie) {
            self.by_time.remove(&(owed.until, cookie));
        }
    }

    /// Those that were asked back so long ago, of which at most [`TOLD_MAX`] are told.
    fn older(&self, age: Duration) -> impl Iterator<Item = (u64, Instant)> {
        let now = Instant::now();
        let all = self.by_time.iter();
        let all = all.filter_map(|(_, cookie)| Some((*cookie, self.by_cookie.get(cookie)?.since)));
        all.filter(move |(_, since)| now - *since >= age)
            .take(TOLD_MAX)
    }

    fn first(&self) -> Option<(Instant, u64)> {
        self.by_time.first().copied()
    }
}

impl LdlmServer {
    /// Ends an operation: notes which locks are waiting from now on, releases the mutex, then sends. Nothing may hold another mutex
    /// here: clients of this process answer on this very stack.
    pub(super) fn finish(self: &Arc<Self>, mut st: MutexGuard<'_, NamespaceState>, out: Actions) {
        if out.is_empty() {
            return;
        }
        let mut woken: SmallVec<[oneshot::Sender<()>; 2]> = SmallVec::new();
        for a in &out {
            match a {
                Action::Blocking {
                    lock,
                    instant: false,
                    ..
                } => self.owe(&mut st, lock.cookie),
                Action::Completion { lock, flags }
                    if flags.contains(LdlmFlags::AST_SENT) && lock.granted_mode.0 != 0 =>
                {
                    self.owe(&mut st, lock.cookie)
                }
                Action::LocalGranted { cookie } => woken.extend(st.waiters.remove(cookie)),
                _ => {}
            }
        }
        drop(st);
        for a in out {
            self.send(a);
        }
        for w in woken {
            // A waiter that went away withdraws its lock itself.
            let _ = w.send(());
        }
    }

    pub(super) fn owe(self: &Arc<Self>, st: &mut NamespaceState, cookie: u64) {
        if st.ns.info(cookie).is_none() {
            return;
        }
        st.waiting_locks
            .add(cookie, Instant::now() + self.cfg.cancel_timeout);
        if !st.waiting_locks.watched {
            st.waiting_locks.watched = true;
            tokio::spawn(watch(Arc::downgrade(self)));
        }
    }

    fn send(self: &Arc<Self>, action: Action) {
        let me = self.clone();
        match action {
            Action::Blocking { lock, by, instant } => run_inline(
                self.node.handovers(),
                Box::pin(async move { me.blocking(lock, by, instant).await }),
            ),
            Action::Completion { lock, flags } => run_inline(
                self.node.handovers(),
                Box::pin(async move { me.completion(lock, flags).await }),
            ),
            Action::LocalGranted { .. } => {}
        }
    }

    async fn blocking(self: Arc<Self>, lock: LockInfo, by: LockDesc, instant: bool) {
        let Some(exp) = lock.export else { return };
        let begun = Instant::now();
        let done = self.asts.blocking(exp, &lock, &by).await;
        self.stats.blocking.record_time(begun.elapsed());
        if !instant {
            self.answered(exp, lock.cookie, "blocking", done);
        }
    }

    async fn completion(self: Arc<Self>, lock: LockInfo, flags: LdlmFlags) {
        let Some(exp) = lock.export else { return };
        let lvb = if lock.granted_mode.0 != 0 {
            self.lvb_of(&lock).await
        } else {
            Bytes::new()
        };
        let begun = Instant::now();
        let done = self.asts.completion(exp, &lock, flags, lvb).await;
        self.stats.completion.record_time(begun.elapsed());
        self.answered(exp, lock.cookie, "completion", done);
    }

    /// The LVB that goes with a lock: of locks on data the object's, else empty.
    pub(super) async fn lvb_of(&self, lock: &LockInfo) -> Bytes {
        match self.lvb.get() {
            Some(ops) if super::has_lvb(lock.ty, &lock.policy) => {
                ops.lvb(lock.res).await.to_bytes()
            }
            _ => Bytes::new(),
        }
    }

    /// What a callback's answer means for the lock.
    pub(super) fn answered(
        self: &Arc<Self>,
        exp: ExportId,
        cookie: u64,
        what: &'static str,
        done: Result<(), AstError>,
    ) {
        match done {
            Ok(()) => {}
            Err(AstError::NoLock | AstError::NoExport) => {
                self.cancel(exp, &[cookie]);
            }
            Err(AstError::Unanswered(why)) => {
                tracing::warn!(namespace = %self.name, export = exp, lock = cookie, what, why, "callback not answered, evicting");
                self.evict(exp, EvictReason::CallbackUnanswered { what });
            }
        }
    }

    fn evict(self: &Arc<Self>, exp: ExportId, why: EvictReason) {
        self.stats.evictions.inc();
        self.asts.evict(exp, why);
        self.export_gone(exp);
    }

    /// Locks that are overdue now; forgets what is cancelled meanwhile. `Err`: when to look again, `None` for never.
    fn overdue(&self) -> Result<Vec<(ExportId, u64)>, Option<Instant>> {
        let mut st = self.state.lock();
        let now = Instant::now();
        let mut late = Vec::new();
        while let Some((at, cookie)) = st.waiting_locks.first() {
            let lock = st.ns.info(cookie);
            if at > now && lock.is_some() {
                break;
            }
            st.waiting_locks.remove(cookie);
            late.extend(lock.and_then(|l| l.export).map(|e| (e, cookie)));
        }
        if !late.is_empty() {
            // Once per client, however many locks it owes.
            late.sort_unstable();
            late.dedup_by_key(|(exp, _)| *exp);
            return Ok(late);
        }
        let next = st.waiting_locks.first().map(|(at, _)| at);
        st.waiting_locks.watched = next.is_some();
        Err(next)
    }
}

/// For the stopwatch: who was asked for a lock and has it still, whether it has answered or not.
impl Teller for LdlmServer {
    fn under_way(&self) -> Vec<Asked> {
        let owed: Vec<_> = {
            let st = self.state.lock();
            let old = st.waiting_locks.older(TOLD_AFTER);
            old.filter_map(|(cookie, since)| Some((st.ns.info(cookie)?, since)))
                .collect()
        };
        let asked = |(lock, since): (LockInfo, Instant)| {
            // Locks on an OST's objects are named by these, and not by the file.
            let fid = match lock.ty {
                LdlmType::IBITS | LdlmType::FLOCK => Fid::from_res_id(&lock.res),
                _ => Fid::ZERO,
            };
            Some(Asked {
                opc: opc::LDLM_BL_CALLBACK,
                whom: self.asts.nid(lock.export?)?.to_string(),
                fid,
                since,
            })
        };
        owed.into_iter().filter_map(asked).collect()
    }
}

/// Evicts who does not give locks back in time; ends when no lock is waiting.
async fn watch(server: Weak<LdlmServer>) {
    while let Some(me) = server.upgrade() {
        match me.overdue() {
            Ok(late) => {
                for (exp, cookie) in late {
                    tracing::warn!(namespace = %me.name, export = exp, lock = cookie, "lock not given back in time, evicting");
                    me.evict(exp, EvictReason::LockNotCancelled { cookie });
                }
            }
            Err(None) => return,
            Err(Some(at)) => {
                drop(me);
                tokio::time::sleep_until(at).await;
            }
        }
    }
}
