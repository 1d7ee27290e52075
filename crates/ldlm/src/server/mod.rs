//! Server shell: the namespace of one target.

use bytes::Bytes;
use coral_lnet::Node;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmReply, LdlmRequest, LdlmType, Policy, ResId};
use coral_wire::ost::OstLvb;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::ExportId;
use crate::ast::AstSender;
use crate::core::LockInfo;

/// Limits and times of a server namespace.
#[derive(Debug, Clone)]
pub struct LdlmConfig {
    /// How long a client may take from a blocking callback to its cancel before it is evicted. Lustre:
    /// `ldlm_enqueue_min`, 100 s.
    pub cancel_timeout: Duration,
    /// How long a client may take to answer a callback. Lustre: `ldlm_timeout`, 20 s.
    pub ast_timeout: Duration,
}

impl Default for LdlmConfig {
    fn default() -> Self {
        Self { cancel_timeout: Duration::from_secs(100), ast_timeout: Duration::from_secs(20) }
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
        todo!()
    }
}

/// Answer to an enqueue.
#[derive(Debug, Clone)]
pub struct EnqueueReply {
    /// Goes into the reply's DLM_REP buffer. `BLOCK_*` flags set: not granted yet, a completion callback will follow.
    pub reply: LdlmReply,
    /// LVB at grant (56 bytes for extent locks, else empty).
    pub lvb: Bytes,
}

/// Answer to a glimpse enqueue (extent lock with `HAS_INTENT`).
#[derive(Debug, Clone)]
pub struct GlimpseReply {
    /// 0 with a granted lock, or 301 (`ELDLM_LOCK_ABORTED`) with the LVB only.
    pub status: i32,
    /// DLM_REP buffer.
    pub reply: LdlmReply,
    /// The newest size and times, all holders asked.
    pub lvb: OstLvb,
}

/// The namespace of one target.
pub struct LdlmServer {}

impl LdlmServer {
    /// A namespace with default limits.
    pub fn new(name: &str, node: Arc<Node>, asts: Arc<dyn AstSender>) -> Arc<Self> {
        Self::with_config(name, node, asts, LdlmConfig::default())
    }
    /// A namespace with given limits.
    pub fn with_config(name: &str, node: Arc<Node>, asts: Arc<dyn AstSender>, cfg: LdlmConfig) -> Arc<Self> {
        todo!()
    }
    /// Sets the LVB methods (OSTs). Without them every LVB is empty.
    pub fn set_lvb_ops(&self, ops: Arc<dyn LvbOps>) {
        todo!()
    }
    /// Takes a server-side lock: asks holders of conflicting locks to give them up and waits for it. Released when the
    /// result is dropped. Locks of `ignore_export` are taken as compatible: pass `Some(exp)` only when that client
    /// agreed to keep and fix up its own locks (Coral's private "keep own directory lock"); with `None` the requesting
    /// client's own conflicting locks get a blocking callback too, as in Lustre. Dropping the future withdraws the lock.
    pub async fn lock_local(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        ignore_export: Option<ExportId>,
    ) -> LocalLock {
        todo!()
    }
    /// The same without waiting: `None` when it conflicts (no callbacks are sent).
    pub fn try_lock_local(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        ignore_export: Option<ExportId>,
    ) -> Option<LocalLock> {
        todo!()
    }
    /// A client's enqueue without intent (plain, extent, ibits, flock). Returns at once: granted, or queued with
    /// `BLOCK_*` set in the reply (blocking callbacks are on their way, the completion callback will follow).
    /// The cookies after the first in the request (early cancels) must have been passed to [`Self::cancel`] before.
    pub async fn enqueue(self: &Arc<Self>, exp: ExportId, req: &LdlmRequest) -> Result<EnqueueReply, EnqueueError> {
        todo!()
    }
    /// The enqueue was sent before (RESENT): the reply for the lock that the export already has under this client cookie.
    pub fn find_resent(&self, exp: ExportId, client_cookie: u64) -> Option<LdlmReply> {
        todo!()
    }
    /// Glimpse: enqueue of an extent lock with `HAS_INTENT`. Asks the holder of the highest PW lock for its size; may
    /// grant the lock when nobody holds a conflicting one.
    pub async fn glimpse(self: &Arc<Self>, exp: ExportId, req: &LdlmRequest) -> Result<GlimpseReply, EnqueueError> {
        todo!()
    }
    /// Server-side size of an object for getattr: asks the holder of the highest PW lock, returns the newest LVB.
    pub async fn glimpse_local(self: &Arc<Self>, res: ResId) -> OstLvb {
        todo!()
    }
    /// Gives a client a lock if it is free, never waits and sends nothing: for intents. For ibits, `try_bits` that are
    /// taken are left out of the granted policy; `None` when a wanted bit is taken.
    pub fn try_grant(
        &self,
        exp: ExportId,
        client_cookie: u64,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
    ) -> Option<(u64, Policy)> {
        todo!()
    }
    /// Gives a client a lock in an intent, waiting for conflicting locks to be cancelled first (Lustre: the MDT takes
    /// the lock itself, then hands it to the client).
    pub async fn grant(
        self: &Arc<Self>,
        exp: ExportId,
        client_cookie: u64,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
    ) -> Result<(u64, Policy), EnqueueError> {
        todo!()
    }
    /// Fills an [`LdlmReply`] for a lock granted by [`Self::try_grant`] or [`Self::grant`]. `None` when it is gone.
    pub fn reply_for(&self, cookie: u64) -> Option<LdlmReply> {
        todo!()
    }
    /// LDLM_CANCEL, or early cancels packed in any request. Returns how many cookies were known; unknown ones are
    /// ignored (`-ESTALE` to the caller when none of them is known).
    pub fn cancel(self: &Arc<Self>, exp: ExportId, cookies: &[u64]) -> usize {
        todo!()
    }
    /// LDLM_CONVERT: drops inode bits (`cancel_bits` of the policy).
    pub fn convert(self: &Arc<Self>, exp: ExportId, req: &LdlmRequest) -> Result<LdlmReply, EnqueueError> {
        todo!()
    }
    /// Replay after a restart: the lock is put where it stood (`BLOCK_GRANTED` or `BLOCK_WAIT` set: waiting).
    pub fn replay(self: &Arc<Self>, exp: ExportId, req: &LdlmRequest) -> Result<LdlmReply, EnqueueError> {
        todo!()
    }
    /// Lock replay is over: grants what can be granted. Locks are only collected, not granted, until then.
    pub fn replay_finished(self: &Arc<Self>) {
        todo!()
    }
    /// Disconnect or eviction: drops every lock of the export and grants who waited for them.
    pub fn export_gone(self: &Arc<Self>, exp: ExportId) {
        todo!()
    }
    /// Prolongs the cancel time-out of this client's blocked locks on a resource (it does I/O under them).
    pub fn prolong(&self, exp: ExportId, res: ResId) {
        todo!()
    }
    /// True when `exp` holds granted locks on `res` that cover `policy` in a mode at least as strong as `mode`.
    pub fn holds(&self, exp: ExportId, res: &ResId, mode: LdlmMode, policy: &Policy) -> bool {
        todo!()
    }
    /// Every lock, for `lctl`-like listings.
    pub fn locks(&self) -> Vec<LockInfo> {
        todo!()
    }
}

/// A server-side lock; dropped = released, and waiters are served.
pub struct LocalLock {
    server: Arc<LdlmServer>,
    cookie: u64,
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        todo!()
    }
}
