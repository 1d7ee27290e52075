//! What all targets share (`lustre/target`, `lustre/ldlm/ldlm_lib.c`).

use std::any::Any;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use coral_lnet::{Nid, Node};
use coral_osd::{Batch, Kv, OsdError, Table};
use coral_ptlrpc::ServerRequest;
use coral_wire::ObdConnectData;
use coral_wire::ptlrpc::Message;
use futures_util::future::BoxFuture;

/// Table of server and client records and reply data.
pub const LAST_RCVD: Table = Table("last_rcvd");

/// Kind of a target: decides the connect opcode it answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Management server: nothing is replayed.
    Mgs,
    /// Metadata target.
    Mdt,
    /// Object storage target.
    Ost,
}

/// Configuration and limits of a target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Name, such as `coral-MDT0000`, `MGS`.
    pub name: String,
    /// uuid clients connect to: `coral-MDT0000_UUID`, `MGS`.
    pub uuid: String,
    /// Index within the file system.
    pub index: u32,
    /// Kind.
    pub kind: TargetKind,
    /// After a restart, known clients have so long to come back; then they are evicted. Lustre: 3 x obd_timeout.
    pub recovery_soft: Duration,
    /// After so long recovery ends whatever is missing.
    pub recovery_hard: Duration,
    /// A client that says nothing for so long is evicted. Lustre: 6 ping intervals, 150 s.
    pub ping_evict: Duration,
    /// Committed transactions are made safe against power loss so often.
    pub sync_interval: Duration,
}

impl TargetConfig {
    /// The defaults. `name` without `_UUID`.
    pub fn new(kind: TargetKind, name: &str, index: u32) -> TargetConfig {
        let uuid = if kind == TargetKind::Mgs { name.to_owned() } else { format!("{name}_UUID") };
        TargetConfig {
            name: name.to_owned(),
            uuid,
            index,
            kind,
            recovery_soft: Duration::from_secs(60),
            recovery_hard: Duration::from_secs(180),
            ping_evict: Duration::from_secs(150),
            sync_interval: Duration::from_secs(1),
        }
    }
}

/// What makes a target an MGS, MDT or OST.
pub trait TargetOps: Send + Sync + 'static {
    /// What of the asked connect flags and data is granted (also sets brw_size, cksum_types, maxmodrpcs, ...).
    /// `index`, `instance` and `version` are filled in by the caller when 0. An error refuses the client.
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, coral_wire::Errno>;

    /// Every opcode that the generic code does not take. Generic are: connect, disconnect, ping, cancel, convert, enqueue
    /// without intent. A handler that drops the request without a reply makes the client send it again.
    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()>;

    /// LDLM_ENQUEUE with HAS_INTENT.
    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()>;

    /// The client disconnected or was evicted; its locks are dropped already. Close its handles. `exp.ext` is still there.
    fn export_gone(self: Arc<Self>, exp: Arc<Export>, evicted: bool) -> BoxFuture<'static, ()> {
        let _ = (exp, evicted);
        Box::pin(async {})
    }

    /// A stored reply is being sent again after a restart (request and reply given): re-create what lived in memory, such as
    /// the open handle.
    fn reconstruct(&self, exp: &Arc<Export>, request: &Message, reply: &mut Message) {
        let _ = (exp, request, reply);
    }

    /// All clients are back or evicted; new requests follow.
    fn recovery_finished(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    /// Called by [`Target::sync`] before the tables are synced (OST: sync objects). Runs on a blocking thread.
    fn sync_data(&self) -> Result<(), OsdError> {
        Ok(())
    }
}

/// Counts of a target since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetStats {
    /// Exports now.
    pub exports: u64,
    /// Connects of new clients.
    pub connects: u64,
    /// Reconnects.
    pub reconnects: u64,
    /// Evictions.
    pub evictions: u64,
    /// Transactions.
    pub transactions: u64,
    /// Syncs to stable storage.
    pub syncs: u64,
    /// Requests replayed by clients.
    pub replayed_requests: u64,
    /// Locks replayed by clients.
    pub replayed_locks: u64,
    /// Stored replies sent again.
    pub resent_replies: u64,
    /// Duplicates of requests in progress that were dropped.
    pub duplicates: u64,
    /// Requests dropped because of an old connection count or a released xid.
    pub stale: u64,
}

/// A target: exports, transactions, recovery.
pub struct Target {
    _todo: (),
}

impl Target {
    /// Opens a target on its tables: loads last_rcvd; enters recovery if it knows clients that must come back.
    pub fn new(node: Arc<Node>, cfg: TargetConfig, kv: Arc<dyn Kv>) -> Result<Arc<Target>, OsdError> {
        let _ = (node, cfg, kv);
        todo!()
    }

    /// Sets the operations and starts the timers (sync, ping eviction, recovery window).
    pub fn start(self: &Arc<Self>, ops: Arc<dyn TargetOps>) {
        let _ = ops;
        todo!()
    }

    /// Last sync, timers stopped. Exports stay known: the clients come back after a restart.
    pub async fn stop(&self) {
        todo!()
    }

    /// Name, such as `coral-MDT0000`.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// uuid.
    pub fn uuid(&self) -> &str {
        todo!()
    }

    /// Configuration.
    pub fn config(&self) -> &TargetConfig {
        todo!()
    }

    /// Index in the file system.
    pub fn index(&self) -> u32 {
        todo!()
    }

    /// The tables.
    pub fn kv(&self) -> &Arc<dyn Kv> {
        todo!()
    }

    /// The lock namespace.
    pub fn ldlm(&self) -> &Arc<coral_ldlm::LdlmServer> {
        todo!()
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        todo!()
    }

    /// Number of this start of the target, 1 for the first (`ocd_instance`).
    pub fn instance(&self) -> u32 {
        todo!()
    }

    /// Highest transno that survives power loss (and, after a restart, every one found).
    pub fn last_committed(&self) -> u64 {
        todo!()
    }

    /// Highest transno given.
    pub fn last_transno(&self) -> u64 {
        todo!()
    }

    /// Whether the target waits for known clients after a restart.
    pub fn in_recovery(&self) -> bool {
        todo!()
    }

    /// Makes everything acknowledged so far survive power loss and moves last_committed.
    pub async fn sync(self: &Arc<Self>) -> Result<(), OsdError> {
        todo!()
    }

    /// One transaction for a client's request: gives the transno (a replay keeps its own), puts it, the reply's bytes and
    /// `batch` into one atomic batch and commits it. `reply`'s body must have its status set; transno is filled in.
    /// The caller holds its own mutex around read-modify-commit, so transnos follow the order of changes.
    pub fn commit(&self, rq: &TargetRequest, batch: Batch, reply: &mut Message) -> Result<u64, OsdError> {
        let _ = (rq, batch, reply);
        todo!()
    }

    /// A transaction that changes nothing stored, such as an open: a transno so that it can be replayed, and the reply kept
    /// in memory for a resend.
    pub fn commit_empty(&self, rq: &TargetRequest, reply: &mut Message) -> Result<u64, OsdError> {
        let _ = (rq, reply);
        todo!()
    }

    /// A transaction whose request may safely be executed twice (OST writes): no reply data is stored.
    pub fn commit_idempotent(&self, rq: &TargetRequest, batch: Batch, reply: &mut Message) -> Result<u64, OsdError> {
        let _ = (rq, batch, reply);
        todo!()
    }

    /// A transaction of the target itself.
    pub fn commit_local(&self, batch: Batch) -> Result<u64, OsdError> {
        let _ = batch;
        todo!()
    }

    /// Evicts a client: its locks and handles are dropped, its next request gets -ENOTCONN.
    pub fn evict(self: &Arc<Self>, cookie: u64, why: &str) {
        let _ = (cookie, why);
        todo!()
    }

    /// The export with this cookie.
    pub fn export(&self, cookie: u64) -> Option<Arc<Export>> {
        let _ = cookie;
        todo!()
    }

    /// All exports.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> TargetStats {
        todo!()
    }
}

/// A client as a target knows it.
pub struct Export {
    /// Client uuid.
    pub uuid: String,
    /// Our cookie: `pb_handle` of its requests, and its `ExportId` in coral-ldlm.
    pub cookie: u64,
    /// In-process client (`N@lo`): not persisted, never recovered.
    pub local: bool,
    /// What the target keeps per client (MDT: open handles).
    pub ext: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Export {
    /// NID it connected from last.
    pub fn nid(&self) -> Nid {
        todo!()
    }

    /// What was granted at the last connect.
    pub fn connect(&self) -> ObdConnectData {
        todo!()
    }

    /// The client's own handle, `pb_handle` of ASTs.
    pub fn client_handle(&self) -> u64 {
        todo!()
    }

    /// Count of its current connection.
    pub fn conn_cnt(&self) -> u32 {
        todo!()
    }

    /// Whether it has been disconnected or evicted.
    pub fn gone(&self) -> bool {
        todo!()
    }
}

/// A request that has found its target and export.
pub struct TargetRequest {
    /// The request.
    pub rq: ServerRequest,
    /// The client.
    pub exp: Arc<Export>,
    /// The target.
    pub target: Arc<Target>,
}

impl TargetRequest {
    /// The request is a replay after a restart; it keeps its transno, and preconditions that held then are taken as held.
    pub fn is_replay(&self) -> bool {
        todo!()
    }

    /// A replay of something that is committed already: only in-memory state (an open handle) is to be re-created.
    pub fn replay_committed(&self) -> bool {
        todo!()
    }

    /// Buffer `i` of the request.
    pub fn buf(&self, i: usize) -> &bytes::Bytes {
        self.rq.msg.buf(i)
    }

    /// Sends the final reply; transno (if the message's body has one) and last_committed are filled in.
    pub async fn reply(self, status: i32, msg: Message) {
        let _ = (status, msg);
        todo!()
    }

    /// Replies with a negative status and no buffers.
    pub async fn fail(self, e: coral_wire::Errno) {
        self.reply(e.status(), Message::default()).await
    }
}
