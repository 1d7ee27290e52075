//! Client shell: locks held by this node.
//!
//! [`LdlmClient`] serves the callbacks (portal 15) of a node, one [`ClientNamespace`] per import keeps its locks. A callback
//! is answered at once; the work it causes (flush what the lock covers, then CANCEL) runs after the answer, on the same stack
//! when nobody pins the lock and the hook need not wait.
//!
//! A lock is registered before its request is sent, so that callbacks may overtake the reply. A [`LockRef`] pins a lock:
//! while one exists the lock is not given back. No mutex is held while a hook, a send or a waker runs.
//!
//! Lustre: `lustre/ldlm/ldlm_request.c` and the callback half of `ldlm_lockd.c`. Left out: lock volume (the LRU has a fixed
//! size, or one that targets share, [`LockPool`]), lock convert (the whole lock is given back), cancel of idle locks before replay.

mod callback;
mod cancel;
mod enqueue;
mod flock;
mod handle;
mod pool;
mod table;

use coral_lnet::Node;
use coral_ptlrpc::{Import, Request, RpcError, Service, ServiceConfig};
use coral_wire::Errno;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmRequest, LdlmType, Policy, ResId};
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::{opc, portal};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;

use crate::core::LockInfo;
use crate::stats::ClientLockStats;
use flock::Aftermaths;
use table::{Doomed, LockTable};

pub use enqueue::Glimpsed;
pub use handle::{LockRef, PendingLock};
pub use pool::LockPool;

/// Lock replays under way at once, per server: a client with thousands of locks would else hold up everybody's recovery by a
/// round trip for each. Lustre: `lock_can_replay`, 8 at most.
const REPLAYS_IN_FLIGHT: usize = 8;

/// Limits of a client namespace.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Unused granted locks kept. Lustre: 100 x CPUs when the server manages no lock volume; with one, the usual case, as many
    /// as the server's memory allows, tens of thousands.
    pub lru_size: usize,
    /// Age at which an unused lock is given back (Lustre: 65 minutes).
    pub lru_max_age: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            lru_size: 16384,
            lru_max_age: Duration::from_secs(3900),
        }
    }
}

/// Why a lock was not obtained.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LockError {
    /// The RPC failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The server refused: `EWOULDBLOCK`/`EAGAIN`, `EDEADLK`, `ENOLCK`, ...
    #[error("lock refused: {errno}")]
    Refused {
        /// What the server said.
        errno: Errno,
        /// xid of the request; 0 when the refusal came by a callback.
        xid: u64,
    },
    /// The server answered that there will be no lock (`ELDLM_LOCK_ABORTED`), e.g. a glimpse.
    #[error("lock aborted by the server")]
    Aborted,
    /// The client was evicted while the lock waited.
    #[error("evicted")]
    Evicted,
    /// The server's answer makes no sense.
    #[error("protocol error: {0}")]
    Proto(String),
}

/// What the upper layer does when a lock goes away or its value is asked for. Called without any mutex held.
pub trait LockHook: Send + Sync + 'static {
    /// Before CANCEL is sent: flush what the lock covers, then drop it from the caches. The lock can no longer be
    /// matched, and it is unused. `discard`: the object is being destroyed, dirty data may be thrown away.
    /// `local_only`: the server no longer knows us (eviction): drop everything, flush nothing.
    fn cancelling(
        &self,
        lock: &LockInfo,
        discard: bool,
        local_only: bool,
    ) -> BoxFuture<'static, ()>;
    /// The lock is wanted elsewhere but still pinned: finish quickly.
    fn blocked(&self, _lock: &LockInfo) {}
    /// The LVB as this client knows it (size including cached writes); `None`: nothing known.
    fn glimpse(&self, lock: &LockInfo) -> Option<OstLvb>;
    /// What is kept back under an inode-bit lock is to be told to the server, and nothing more is to be kept back; the lock stays. True
    /// when that is done.
    fn told(&self, _lock: &LockInfo) -> BoxFuture<'static, bool> {
        Box::pin(async { false })
    }
}

/// What an flock enqueue is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlockOp {
    /// F_SETLK (`wait: false`) or F_SETLKW.
    Lock {
        /// True: wait for it.
        wait: bool,
    },
    /// F_UNLCK.
    Unlock,
    /// F_GETLK.
    Test,
}

/// Callbacks served at once. A blocking callback counts until its lock is flushed and given back, and others must not wait
/// for that: as many as there can be idle locks on a large client.
pub const MAX_CALLBACKS: usize = 65536;

/// The service that takes servers' callbacks, by its name in Lustre.
pub const CALLBACK_SERVICE: &str = "ldlm_cbd";

/// Where a node keeps its callback service.
#[derive(Default)]
struct PerNode(Mutex<Weak<LdlmClient>>);

/// One per client node: serves portal 15 and finds locks by cookie.
pub struct LdlmClient {
    node: Arc<Node>,
    namespaces: Mutex<Vec<Weak<ClientNamespace>>>,
    service: OnceLock<Arc<Service>>,
}

impl LdlmClient {
    /// The callback service of `node`: started when there is none yet, else the one that runs.
    pub fn new(node: &Arc<Node>) -> Arc<Self> {
        let slot = node.extension::<PerNode>();
        let mut slot = slot.0.lock();
        if let Some(running) = slot.upgrade() {
            return running;
        }
        let me = Arc::new(Self {
            node: node.clone(),
            namespaces: Mutex::new(Vec::new()),
            service: OnceLock::new(),
        });
        let handler = Arc::new(callback::Callbacks::new(&me));
        let cfg = ServiceConfig {
            max_active: MAX_CALLBACKS,
            ..ServiceConfig::new(CALLBACK_SERVICE, &[portal::LDLM_CB_REQUEST])
        };
        let service = Service::start(node, cfg, handler);
        let _ = me.service.set(service);
        *slot = Arc::downgrade(&me);
        me
    }

    /// The namespace of one import.
    pub fn namespace(self: &Arc<Self>, import: Arc<Import>) -> Arc<ClientNamespace> {
        self.namespace_with(import, ClientConfig::default())
    }

    /// The same with given limits.
    pub fn namespace_with(
        self: &Arc<Self>,
        import: Arc<Import>,
        cfg: ClientConfig,
    ) -> Arc<ClientNamespace> {
        let ns = Arc::new(ClientNamespace {
            portal: enqueue_portal(import.target_uuid()),
            import,
            stats: Arc::default(),
            lru_size: AtomicUsize::new(cfg.lru_size),
            lru_max_age: cfg.lru_max_age,
            hook: RwLock::new(None),
            locks: Mutex::new(LockTable::new(self.node.rng_u64())),
            soon: Mutex::default(),
            shrinking: AtomicBool::new(false),
            pool: OnceLock::new(),
            pooled: AtomicBool::new(false),
            told: AtomicUsize::new(0),
            aftermaths: Default::default(),
            runtime: Handle::try_current().ok(),
        });
        ns.show(&self.node);
        let mut all = self.namespaces.lock();
        all.retain(|w| w.strong_count() > 0);
        all.push(Arc::downgrade(&ns));
        ns
    }

    /// The namespace a callback is for: named by the import's handle; by the lock when that handle is not known.
    fn find(&self, handle: u64, cookie: u64) -> Option<Arc<ClientNamespace>> {
        let all: Vec<_> = self
            .namespaces
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let by_handle = all.iter().find(|n| n.import.handle_cookie() == handle);
        by_handle
            .or_else(|| all.iter().find(|n| n.locks.lock().get(cookie).is_some()))
            .cloned()
    }

    /// Stops answering callbacks.
    pub async fn stop(&self) {
        if let Some(s) = self.service.get() {
            s.stop().await;
        }
    }
}

/// Enqueues go where the target's default requests go; its kind is in its uuid, as everywhere in Lustre.
fn enqueue_portal(target_uuid: &str) -> u32 {
    if target_uuid.starts_with("MGS") {
        portal::MGS_REQUEST
    } else if target_uuid.contains("-OST") {
        portal::OST_REQUEST
    } else {
        portal::MDS_REQUEST
    }
}

/// The locks this client holds from one target.
pub struct ClientNamespace {
    import: Arc<Import>,
    /// Where enqueues go.
    portal: u32,
    stats: Arc<ClientLockStats>,
    lru_size: AtomicUsize,
    lru_max_age: Duration,
    hook: RwLock<Option<Arc<dyn LockHook>>>,
    locks: Mutex<LockTable>,
    /// Locks that are given back soon.
    soon: Mutex<Vec<Doomed>>,
    /// A task serves the LRU.
    shrinking: AtomicBool,
    pool: OnceLock<Arc<LockPool>>,
    /// The pool decides how many idle locks are kept, not `lru_size` alone.
    pooled: AtomicBool,
    /// Idle locks that the pool was told of last.
    told: AtomicUsize,
    /// Which owners of flocks have requests under way that nobody waits for.
    aftermaths: Arc<Aftermaths>,
    /// For work started by a drop outside of any task.
    runtime: Option<Handle>,
}

impl Drop for ClientNamespace {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.get() {
            pool.told(*self.told.get_mut(), 0);
        }
    }
}

impl ClientNamespace {
    /// What happens when locks go.
    pub fn set_hook(&self, hook: Arc<dyn LockHook>) {
        *self.hook.write() = Some(hook);
    }

    fn hook(&self) -> Option<Arc<dyn LockHook>> {
        self.hook.read().clone()
    }

    /// A granted lock which covers `policy_need` in a mode that allows what `mode_min` does, pinned.
    pub fn match_lock(
        self: &Arc<Self>,
        res: &ResId,
        ty: LdlmType,
        mode_min: LdlmMode,
        policy_need: &Policy,
    ) -> Option<LockRef> {
        let cookie = self
            .locks
            .lock()
            .pin_match(*res, ty, mode_min, policy_need)?;
        self.stats.matched.inc();
        Some(LockRef::new(self.clone(), cookie))
    }

    /// Shows what it counts among the metrics of its node.
    fn show(self: &Arc<Self>, node: &Arc<Node>) {
        let (locks, unused) = (Arc::downgrade(self), Arc::downgrade(self));
        let count = |ns: Arc<Self>| ns.counts().0 as u64;
        self.stats.locks.ask(move || locks.upgrade().map(count));
        let count = |ns: Arc<Self>| ns.counts().1 as u64;
        self.stats.unused.ask(move || unused.upgrade().map(count));
        let target = self.import.target_uuid().trim_end_matches("_UUID");
        node.metrics().attach(&[("target", target)], &self.stats);
    }

    /// Number of granted locks and of unused ones among them.
    pub fn counts(&self) -> (usize, usize) {
        self.locks.lock().counts()
    }

    /// No lock is held, asked for or being given back.
    pub fn is_empty(&self) -> bool {
        self.locks.lock().iter().next().is_none()
    }

    /// Unused granted locks kept at most; in a pool, those kept in any case.
    pub fn lru_size(&self) -> usize {
        self.lru_size.load(Ordering::Relaxed)
    }

    /// Changes that, whatever others have; the next lock that goes idle makes it true.
    pub fn set_lru_size(&self, locks: usize) {
        self.lru_size.store(locks, Ordering::Relaxed);
        if self.pooled.swap(false, Ordering::AcqRel)
            && let Some(pool) = self.pool.get()
        {
            pool.told(self.told.swap(0, Ordering::AcqRel), 0);
        }
    }

    /// Keeps `locks` in any case, and as many more as the other members leave unused of the pool, which is always the same one.
    pub fn share(self: &Arc<Self>, pool: &Arc<LockPool>, locks: usize) {
        self.lru_size.store(locks, Ordering::Relaxed);
        self.pool.get_or_init(|| pool.clone()).join(self);
        self.pooled.store(true, Ordering::Release);
        self.tell(self.counts().1);
    }

    fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Acquire)
    }

    /// Tells the pool how many locks are idle. True if there is none: the LRU is this namespace's alone.
    fn tell(&self, idle: usize) -> bool {
        if !self.is_pooled() {
            return true;
        }
        if let Some(pool) = self.pool.get()
            && self.tell_idle(idle)
        {
            pool.serve(self);
        }
        false
    }

    /// The same; true if all members have too many.
    fn tell_idle(&self, idle: usize) -> bool {
        let tell = |idle| {
            let before = self.told.swap(idle, Ordering::AcqRel);
            self.pool.get().is_some_and(|p| p.told(before, idle))
        };
        let too_many = tell(idle);
        match self.is_pooled() {
            true => too_many,
            // it has left the pool meanwhile
            false => {
                tell(0);
                false
            }
        }
    }

    /// Unused locks that are kept, as far as this namespace alone decides.
    fn kept(&self) -> usize {
        match self.is_pooled() {
            true => usize::MAX,
            false => self.lru_size(),
        }
    }

    /// Age at which an unused lock is given back.
    pub fn lru_max_age(&self) -> Duration {
        self.lru_max_age
    }

    /// Every lock, for listings.
    pub fn locks(&self) -> Vec<LockInfo> {
        self.locks.lock().iter().map(|h| h.info()).collect()
    }

    /// The import whose target gave the locks.
    pub fn import(&self) -> &Arc<Import> {
        &self.import
    }

    /// Forgets every lock without a word to the server (eviction): hooks are called with `local_only`, waiting enqueues fail.
    pub async fn drop_all(self: &Arc<Self>) {
        let (infos, waiters) = self.locks.lock().kill_all();
        drop(waiters);
        let Some(hook) = self.hook() else { return };
        for info in infos {
            hook.cancelling(&info, false, true).await;
        }
    }

    /// Replays granted and waiting locks to a restarted server (import state REPLAY_LOCKS; `ldlm_replay_locks`). A lock the
    /// server refuses to take back is dead: its hook is called with `local_only`.
    pub async fn replay_locks(self: &Arc<Self>) -> Result<(), RpcError> {
        let all: Vec<(LockInfo, bool)> = {
            let locks = self.locks.lock();
            let known = |h: &&table::ClientLock| !h.dead && (h.granted || h.remote != 0);
            locks
                .iter()
                .filter(known)
                .map(|h| (h.info(), h.granted))
                .collect()
        };
        let replays = all
            .into_iter()
            .map(|(info, granted)| self.clone().replay_lock(info, granted).boxed());
        stream::iter(replays)
            .buffer_unordered(REPLAYS_IN_FLIGHT)
            .try_collect()
            .await
    }

    /// Replays one lock; a server that does not take it back ends it.
    async fn replay_lock(self: Arc<Self>, info: LockInfo, granted: bool) -> Result<(), RpcError> {
        let stood = if granted {
            LdlmFlags::BLOCK_GRANTED
        } else {
            LdlmFlags::BLOCK_WAIT
        };
        let rq = LdlmRequest::enqueue(LdlmFlags::REPLAY | stood, info.desc(), info.cookie);
        let rpc = Request::new(self.portal, opc::LDLM_ENQUEUE).push_bytes(rq.to_bytes());
        let reply = self.import.call_in_recovery(rpc).await?;
        match reply.msg.get::<coral_wire::ldlm::LdlmReply>(1) {
            Ok(rep) if reply.status == 0 => {
                if let Some(h) = self.locks.lock().get_mut(info.cookie) {
                    h.remote = rep.handle;
                }
            }
            _ => self.lost_in_replay(info).await,
        }
        Ok(())
    }

    async fn lost_in_replay(self: &Arc<Self>, info: LockInfo) {
        tracing::warn!(target = self.import.target_uuid(), res = %info.res, "the server did not take a lock back");
        let waiter = {
            let mut locks = self.locks.lock();
            let Some(h) = locks.get_mut(info.cookie) else {
                return;
            };
            (h.dead, h.blocked) = (true, true);
            let idle = h.pins == 0 && !h.cancelling;
            let waiter = h.waiter.take();
            if idle {
                locks.cancelled(info.cookie);
            }
            waiter
        };
        drop(waiter);
        if let Some(hook) = self.hook() {
            hook.cancelling(&info, false, true).await;
        }
    }

    /// Runs work that a drop or a callback started.
    fn spawn(&self, work: BoxFuture<'static, ()>) {
        match Handle::try_current().ok().or_else(|| self.runtime.clone()) {
            Some(rt) => drop(rt.spawn(work)),
            None => tracing::debug!("no runtime left to give locks back"),
        }
    }
}
