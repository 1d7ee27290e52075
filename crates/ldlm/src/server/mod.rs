//! Server shell: the namespace of one target.
//!
//! Every operation takes the mutex, lets the [core](crate::core) decide, releases the mutex and then sends what came out.
//! A callback to a client of the same process is answered, and often the lock cancelled, before the call returns: then the
//! operation finishes without ever leaving its stack. A lock granted while its enqueue is still being answered is reported
//! by the reply, not by a completion callback; a flock, which asks nobody, by the callback.
//!
//! A client that does not answer a callback, or does not give a lock back within [`LdlmConfig::cancel_timeout`] of being
//! asked, is evicted ([`AstSender::evict`]) and its locks are dropped.
//!
//! Lustre: `lustre/ldlm/ldlm_lockd.c`; glimpse: `ofd_intent_policy` in `lustre/ofd/ofd_dlm.c`. Left out: contention,
//! per-client adaptive cancel times (the fixed minimum is used).

mod asts;
mod enqueue;
mod glimpse;
mod local;

pub use local::LocalLock;

use bytes::Bytes;
use coral_lnet::Node;
use coral_wire::Errno;
use coral_wire::ldlm::{
    ELDLM_LOCK_ABORTED, Ibits, LdlmFlags, LdlmMode, LdlmReply, LdlmType, Policy, ResId,
};
use coral_wire::ost::OstLvb;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ExportId;
use crate::ast::AstSender;
use crate::core::{Actions, FoldMap, LockInfo, Namespace, Refused};
use crate::stats::ServerLockStats;
use asts::WaitingLocks;

/// Limits and times of a server namespace.
#[derive(Debug, Clone)]
pub struct LdlmConfig {
    /// How long a client may take from a blocking callback to its cancel before it is evicted. Lustre:
    /// `ldlm_enqueue_min`, 100 s.
    pub cancel_timeout: Duration,
}

impl Default for LdlmConfig {
    fn default() -> Self {
        Self {
            cancel_timeout: Duration::from_secs(100),
        }
    }
}

/// The lock value block of a resource: who knows it and who keeps it (`lustre/ofd/ofd_lvb.c`).
pub trait LvbOps: Send + Sync + 'static {
    /// The value as stored at the target now.
    fn lvb(&self, res: ResId) -> BoxFuture<'static, OstLvb>;
    /// A client's answer to a glimpse, or the LVB it sent: the target keeps what is newer.
    fn update(&self, res: ResId, lvb: &OstLvb);
}

/// Why an enqueue is refused. [`EnqueueError::status`] is what goes into the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// Malformed request: unknown type or mode (`-EFAULT`).
    #[error("malformed lock request")]
    Malformed,
    /// A flag that may not be in a request, or an impossible combination (`-EPROTO`).
    #[error("lock request with forbidden flags")]
    Protocol,
    /// `BLOCK_NOWAIT` and it would block (`-EWOULDBLOCK`).
    #[error("lock would block")]
    WouldBlock,
    /// Flock deadlock (`-EDEADLK`).
    #[error("deadlock")]
    Deadlock,
    /// None of the wanted bits is free: no lock (`ELDLM_LOCK_ABORTED`, 301).
    #[error("lock aborted")]
    Aborted,
    /// The export was evicted or disconnected meanwhile (`-ENOTCONN`).
    #[error("export is gone")]
    NoExport,
    /// The namespace or the resource is full (`-ENOLCK`).
    #[error("too many locks")]
    TooMany,
}

impl EnqueueError {
    /// Status for the reply: negative errno or positive `ELDLM_*`.
    pub fn status(self) -> i32 {
        match self {
            Self::Malformed => Errno::EFAULT.status(),
            Self::Protocol => Errno::EPROTO.status(),
            Self::WouldBlock => Errno::EWOULDBLOCK.status(),
            Self::Deadlock => Errno::EDEADLK.status(),
            Self::Aborted => ELDLM_LOCK_ABORTED,
            Self::NoExport => Errno::ENOTCONN.status(),
            Self::TooMany => Errno::ENOLCK.status(),
        }
    }
}

impl From<Refused> for EnqueueError {
    fn from(r: Refused) -> Self {
        match r {
            Refused::WouldBlock => Self::WouldBlock,
            Refused::Deadlock => Self::Deadlock,
            Refused::Aborted => Self::Aborted,
            Refused::TooMany => Self::TooMany,
            Refused::Malformed => Self::Malformed,
        }
    }
}

/// Answer to an enqueue.
#[derive(Debug, Clone)]
pub struct EnqueueReply {
    /// Goes into the reply's DLM_REP buffer. `BLOCK_*` flags set: not granted yet, a completion callback will follow.
    pub reply: LdlmReply,
    /// LVB at grant (56 bytes for locks on data, else empty).
    pub lvb: Bytes,
}

/// Answer to a glimpse enqueue (extent lock or DOM bit with `HAS_INTENT`).
#[derive(Debug, Clone)]
pub struct GlimpseReply {
    /// 0 with a granted lock, or 301 (`ELDLM_LOCK_ABORTED`) with the LVB only.
    pub status: i32,
    /// DLM_REP buffer.
    pub reply: LdlmReply,
    /// The newest size and times, all holders asked.
    pub lvb: OstLvb,
}

/// Exports that are gone are remembered, so that a request of theirs which is still being served leaves no lock behind.
const GONE_REMEMBERED: usize = 4096;

/// The namespace of one target.
pub struct LdlmServer {
    name: String,
    node: Arc<Node>,
    asts: Arc<dyn AstSender>,
    cfg: LdlmConfig,
    lvb: OnceLock<Arc<dyn LvbOps>>,
    stats: Arc<ServerLockStats>,
    state: Mutex<NamespaceState>,
}

/// What the mutex guards.
struct NamespaceState {
    ns: Namespace,
    /// Server-side locks that wait.
    waiters: FoldMap<u64, oneshot::Sender<()>>,
    /// Locks their owners were asked to give back, and until when.
    waiting_locks: WaitingLocks,
    gone: Gone,
}

/// The last exports that went.
#[derive(Default)]
struct Gone {
    order: VecDeque<ExportId>,
    set: FoldMap<ExportId, ()>,
}

impl Gone {
    fn contains(&self, exp: &ExportId) -> bool {
        self.set.contains_key(exp)
    }

    fn add(&mut self, exp: ExportId) {
        if self.set.insert(exp, ()).is_some() {
            return;
        }
        if self.order.len() == GONE_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        self.order.push_back(exp);
    }
}

impl LdlmServer {
    /// A namespace with default limits.
    pub fn new(name: &str, node: Arc<Node>, asts: Arc<dyn AstSender>) -> Arc<Self> {
        Self::with_config(name, node, asts, LdlmConfig::default())
    }

    /// A namespace with given limits.
    pub fn with_config(
        name: &str,
        node: Arc<Node>,
        asts: Arc<dyn AstSender>,
        cfg: LdlmConfig,
    ) -> Arc<Self> {
        let ns = Namespace::new(node.rng_u64());
        let state = NamespaceState {
            ns,
            waiters: FoldMap::default(),
            waiting_locks: WaitingLocks::default(),
            gone: Gone::default(),
        };
        let me = Arc::new(Self {
            name: name.to_owned(),
            node,
            asts,
            cfg,
            lvb: OnceLock::new(),
            stats: Arc::default(),
            state: Mutex::new(state),
        });
        me.show();
        let weak = Arc::downgrade(&me);
        me.node.stopwatch().asks(weak);
        me
    }

    /// Shows what it counts among the metrics of its node.
    fn show(self: &Arc<Self>) {
        let (locks, resources) = (Arc::downgrade(self), Arc::downgrade(self));
        let count = |me: Arc<Self>| me.counts().0 as u64;
        self.stats.locks.ask(move || locks.upgrade().map(count));
        let count = |me: Arc<Self>| me.counts().1 as u64;
        self.stats
            .resources
            .ask(move || resources.upgrade().map(count));
        let labels = [("target", self.name.as_str())];
        self.node.metrics().attach(&labels, &self.stats);
    }

    /// Sets the LVB methods (OSTs), once. Without them every LVB is empty.
    pub fn set_lvb_ops(&self, ops: Arc<dyn LvbOps>) {
        assert!(
            self.lvb.set(ops).is_ok(),
            "LVB methods of {} are set twice",
            self.name
        );
    }

    /// The namespace's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// LDLM_CANCEL, or early cancels packed in any request. Returns how many cookies were known; unknown ones are
    /// ignored (`-ESTALE` to the caller when none of them is known).
    pub fn cancel(self: &Arc<Self>, exp: ExportId, cookies: &[u64]) -> usize {
        self.cancel_if(exp, cookies, |_| true)
    }

    /// As [`Self::cancel`] for Coral's clients, to whom a granted flock is as unknown as one that was merged: they unlock such, and
    /// mean one that waits. When it was granted first, others must not get what its owner held before, so the client itself takes
    /// back what is too much. (A kernel client's CANCEL ends the flock, granted or not: `ldlm_request_cancel` in `ldlm_lockd.c`.)
    pub fn cancel_but_flocks(self: &Arc<Self>, exp: ExportId, cookies: &[u64]) -> usize {
        let is_held = |l: &LockInfo| l.ty == LdlmType::FLOCK && l.granted_mode != LdlmMode::NONE;
        self.cancel_if(exp, cookies, |l| !is_held(l))
    }

    fn cancel_if(
        self: &Arc<Self>,
        exp: ExportId,
        cookies: &[u64],
        may: impl Fn(&LockInfo) -> bool,
    ) -> usize {
        let mut out = Actions::new();
        let mut st = self.state.lock();
        let mut known = 0;
        for cookie in cookies {
            if st.ns.info(*cookie).is_some_and(|l| may(&l))
                && st.ns.cancel(*cookie, Some(exp), &mut out)
            {
                st.waiting_locks.remove(*cookie);
                known += 1;
            }
        }
        self.finish(st, out);
        self.stats.cancelled.add(known as u64);
        known
    }

    /// Disconnect or eviction: drops every lock of the export and grants who waited for them.
    pub fn export_gone(self: &Arc<Self>, exp: ExportId) {
        let mut out = Actions::new();
        let mut st = self.state.lock();
        st.gone.add(exp);
        st.ns.export_gone(exp, &mut out);
        self.finish(st, out);
    }

    /// Prolongs the cancel time-out of this client's blocked locks on a resource (it does I/O under them).
    pub fn prolong(&self, exp: ExportId, res: ResId) {
        let mut st = self.state.lock();
        if st.waiting_locks.is_empty() {
            return;
        }
        let until = Instant::now() + self.cfg.cancel_timeout;
        let NamespaceState {
            ns, waiting_locks, ..
        } = &mut *st;
        for ty in [LdlmType::EXTENT, LdlmType::IBITS] {
            for l in ns.granted(res, ty).filter(|l| l.export == Some(exp)) {
                waiting_locks.prolong(l.cookie, until);
            }
        }
    }

    /// True when `exp` holds a granted lock on `res` that covers `policy` in a mode that allows what `mode` does.
    pub fn holds(
        &self,
        exp: ExportId,
        res: &ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: &Policy,
    ) -> bool {
        let st = self.state.lock();
        st.ns.granted(*res, ty).any(|l| {
            l.export == Some(exp)
                && l.granted_mode.covers(mode)
                && crate::cover::covers(&l.policy, policy)
        })
    }

    /// Another client than `exp` has an EX lock on the UPDATE bit of one of these inodes; which.
    pub fn alone_on(&self, exp: ExportId, all: &[ResId]) -> Option<ResId> {
        let st = self.state.lock();
        let other = |res: &&ResId| st.ns.alone_on(**res).is_some_and(|e| e != exp);
        all.iter().find(other).copied()
    }

    /// Another client than `exp` has such a lock on anything.
    pub fn is_other_alone(&self, exp: ExportId) -> bool {
        self.state.lock().ns.is_other_alone(exp)
    }

    /// Other clients than `exp` have locks, or wait for some, on this inode.
    pub fn others_on(&self, exp: ExportId, res: ResId) -> bool {
        self.state.lock().ns.others_on(res, exp)
    }

    /// Nobody but `exp` has any locks here.
    pub fn is_only(&self, exp: ExportId) -> bool {
        self.state.lock().ns.is_only(exp)
    }

    /// Every lock, for `lctl`-like listings.
    pub fn locks(&self) -> Vec<LockInfo> {
        self.state.lock().ns.locks().collect()
    }

    /// Number of locks and of resources.
    pub fn counts(&self) -> (usize, usize) {
        let st = self.state.lock();
        (st.ns.len(), st.ns.resource_count())
    }

    /// Fills an [`LdlmReply`] for a lock granted in an intent by [`Self::try_grant`], [`Self::grant`] or
    /// [`LocalLock::give_to`]. Its flags are what a real MDT sends: a kernel client takes resource, mode and policy from the
    /// reply only with `LOCK_CHANGED`. `None` when the lock is gone.
    pub fn reply_for(&self, cookie: u64) -> Option<LdlmReply> {
        self.state
            .lock()
            .ns
            .info(cookie)
            .map(|l| intent_reply_of(&l))
    }
}

/// Locks on data carry size and times: extent locks, and inode bits with DOM among them.
fn has_lvb(ty: LdlmType, policy: &Policy) -> bool {
    match policy {
        Policy::Ibits { bits, .. } => bits.intersects(Ibits::DOM),
        _ => ty == LdlmType::EXTENT,
    }
}

/// The reply buffer that describes a lock.
fn reply_of(l: &LockInfo) -> LdlmReply {
    LdlmReply {
        desc: l.desc(),
        handle: l.cookie,
        ..LdlmReply::default()
    }
}

/// The same for a lock that came with an intent (`contend.pcap`: 0x1001).
fn intent_reply_of(l: &LockInfo) -> LdlmReply {
    LdlmReply {
        flags: LdlmFlags::HAS_INTENT | LdlmFlags::LOCK_CHANGED,
        ..reply_of(l)
    }
}
