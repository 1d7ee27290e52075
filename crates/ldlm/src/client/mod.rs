//! Client shell: locks held by this node.

use bytes::Bytes;
use coral_lnet::Node;
use coral_ptlrpc::{Import, RpcError};
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmReply, LdlmRequest, LdlmType, Policy, ResId};
use coral_wire::ost::OstLvb;
use coral_wire::Errno;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::core::LockInfo;

/// Limits of a client namespace.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Unused granted locks kept (Lustre: 100 x CPUs when the server gives no lock volume).
    pub lru_size: usize,
    /// Age at which an unused lock is given back (Lustre: 65 minutes).
    pub lru_max_age: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { lru_size: 200, lru_max_age: Duration::from_secs(3900) }
    }
}

/// Why a lock was not obtained.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LockError {
    /// The RPC failed.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The server refused: `EWOULDBLOCK`/`EAGAIN`, `EDEADLK`, `ENOLCK`, ...
    #[error("lock refused: {0}")]
    Refused(Errno),
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
    fn cancelling(&self, lock: &LockInfo, discard: bool, local_only: bool) -> BoxFuture<'static, ()>;
    /// The lock is wanted elsewhere but still pinned: finish quickly.
    fn blocked(&self, _lock: &LockInfo) {}
    /// The LVB as this client knows it (size including cached writes); `None`: nothing known.
    fn glimpse(&self, lock: &LockInfo) -> Option<OstLvb>;
    /// More than this, the lock covers nothing worth a flush: it may be cancelled early or by LRU without asking.
    fn may_cancel_early(&self, _lock: &LockInfo) -> bool {
        true
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

/// One per client node: serves portal 15 and finds locks by cookie.
pub struct LdlmClient {}

impl LdlmClient {
    /// Starts the callback service on `node`.
    pub fn new(node: &Arc<Node>) -> Arc<Self> {
        todo!()
    }
    /// The namespace of one import.
    pub fn namespace(self: &Arc<Self>, import: Arc<Import>) -> Arc<ClientNamespace> {
        todo!()
    }
    /// The same with given limits.
    pub fn namespace_with(self: &Arc<Self>, import: Arc<Import>, cfg: ClientConfig) -> Arc<ClientNamespace> {
        todo!()
    }
}

/// The locks this client holds from one target.
pub struct ClientNamespace {}

impl ClientNamespace {
    /// Registers a lock before its request is sent (callbacks may overtake the reply). The request to put into an
    /// intent RPC is [`PendingLock::request`].
    pub fn prepare(self: &Arc<Self>, res: ResId, ty: LdlmType, mode: LdlmMode, policy: Policy, flags: LdlmFlags) -> PendingLock {
        todo!()
    }
    /// Takes in the reply to an intent RPC sent with [`PendingLock::request`]. `None`: the reply granted no lock.
    /// The lock may come on another resource, mode or policy than asked for: see [`LockRef::info`].
    pub fn finish(self: &Arc<Self>, pending: PendingLock, rep: &LdlmReply, status: i32) -> Option<LockRef> {
        todo!()
    }
    /// Plain, extent or flock enqueue without intent; waits until granted. Returns the lock, pinned, and the LVB.
    /// Dropping the future cancels the lock at the server, also while it waits.
    pub async fn enqueue(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        flags: LdlmFlags,
        lvb_len: usize,
    ) -> Result<(LockRef, Bytes), LockError> {
        todo!()
    }
    /// Glimpse enqueue: size and times of an OST object; with the lock when the server gave it.
    pub async fn glimpse(self: &Arc<Self>, res: ResId) -> Result<(OstLvb, Option<LockRef>), LockError> {
        todo!()
    }
    /// POSIX or BSD lock on `res` (name\[3\] = 12). `Test` returns the conflicting lock's policy and mode, if any.
    pub async fn flock(
        self: &Arc<Self>,
        res: ResId,
        mode: LdlmMode,
        policy: Policy,
        op: FlockOp,
    ) -> Result<Option<(LdlmMode, Policy)>, LockError> {
        todo!()
    }
    /// A granted lock which covers `policy_need` in a mode at least as strong as `mode_min`, pinned.
    pub fn match_lock(self: &Arc<Self>, res: &ResId, ty: LdlmType, mode_min: LdlmMode, policy_need: &Policy) -> Option<LockRef> {
        todo!()
    }
    /// What happens when locks go.
    pub fn set_hook(&self, hook: Arc<dyn LockHook>) {
        todo!()
    }
    /// Drops the pin and gives the lock back (once nobody else pins it).
    pub async fn cancel(self: &Arc<Self>, lock: LockRef) {
        todo!()
    }
    /// Gives all unused locks of a resource back.
    pub async fn cancel_resource(self: &Arc<Self>, res: &ResId) {
        todo!()
    }
    /// Gives all locks back (umount).
    pub async fn cancel_all(self: &Arc<Self>) {
        todo!()
    }
    /// Early lock cancel: unused locks that conflict with what the next request will do, flushed and forgotten here;
    /// their server cookies (at most `max`) go into that request.
    pub async fn early_cancel(self: &Arc<Self>, res: &ResId, mode: LdlmMode, policy: &Policy, max: usize) -> Vec<u64> {
        todo!()
    }
    /// Forgets every lock without a word to the server (eviction).
    pub async fn drop_all(self: &Arc<Self>) {
        todo!()
    }
    /// Replays granted and waiting locks to a restarted server (import state REPLAY_LOCKS).
    pub async fn replay_locks(self: &Arc<Self>) -> Result<(), RpcError> {
        todo!()
    }
    /// Number of granted locks and of unused ones among them.
    pub fn counts(&self) -> (usize, usize) {
        todo!()
    }
    /// Every lock, for listings.
    pub fn locks(&self) -> Vec<LockInfo> {
        todo!()
    }
}

/// A lock whose request is being sent.
pub struct PendingLock {}

impl PendingLock {
    /// The DLM_REQ buffer of the RPC.
    pub fn request(&self) -> LdlmRequest {
        todo!()
    }
    /// Our cookie.
    pub fn cookie(&self) -> u64 {
        todo!()
    }
}

/// A granted lock, pinned: while one exists the lock is not cancelled. Cheap to clone.
#[derive(Clone)]
pub struct LockRef {}

impl LockRef {
    /// The lock as granted.
    pub fn info(&self) -> LockInfo {
        todo!()
    }
    /// Our cookie.
    pub fn cookie(&self) -> u64 {
        todo!()
    }
    /// True once the server asked for it back, or it is gone: do not start new work under it.
    pub fn is_blocked(&self) -> bool {
        todo!()
    }
}
