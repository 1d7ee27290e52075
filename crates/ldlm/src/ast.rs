//! Callbacks (ASTs) from server to client: the trait the server shell calls, and its implementation over PTLRPC.
//!
//! Lustre: `ldlm_server_blocking_ast`, `ldlm_server_completion_ast`, `ldlm_server_glimpse_ast` in
//! `lustre/ldlm/ldlm_lockd.c`. A callback is one request to portal 15 of the client, named by the client's own lock
//! cookie (handle 0) and the handle the client gave at connect (`pb_handle`).

use bytes::Bytes;
use coral_lnet::{Nid, Node};
use coral_wire::ldlm::{LdlmFlags, LockDesc};
use futures_util::future::BoxFuture;
use std::sync::Arc;

use crate::ExportId;
use crate::core::LockInfo;

/// Why a callback brought no answer that counts.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AstError {
    /// The client does not know the lock (it cancelled it, or its cancel is on the way): `-EINVAL` or 303.
    #[error("the client has no such lock")]
    NoLock,
    /// No answer in time, or the client cannot be reached: the client is to be evicted.
    #[error("callback not answered: {0}")]
    Unanswered(String),
    /// The export is gone already.
    #[error("export is gone")]
    NoExport,
}

/// Why a client is evicted by the lock manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictReason {
    /// It did not answer a callback.
    CallbackUnanswered {
        /// Which callback: "blocking", "completion" or "glimpse".
        what: &'static str,
    },
    /// It answered a blocking callback but did not cancel the lock in time.
    LockNotCancelled {
        /// The lock's server cookie.
        cookie: u64,
    },
}

/// How the server shell reaches the holder of a lock.
pub trait AstSender: Send + Sync + 'static {
    /// Tells the holder that `blocked_by` waits for its lock; resolves when the holder has answered (not when it has
    /// cancelled).
    fn blocking(&self, exp: ExportId, lock: &LockInfo, blocked_by: &LockDesc) -> BoxFuture<'static, Result<(), AstError>>;
    /// Tells the owner that its waiting lock is granted (or, with `FLOCK_DEADLOCK`, refused). `lvb` may be empty.
    fn completion(&self, exp: ExportId, lock: &LockInfo, flags: LdlmFlags, lvb: Bytes) -> BoxFuture<'static, Result<(), AstError>>;
    /// Asks the holder for its LVB (size as it knows it).
    fn glimpse(&self, exp: ExportId, lock: &LockInfo) -> BoxFuture<'static, Result<Bytes, AstError>>;
    /// The client failed its duties: the target must evict it. It then calls [`crate::LdlmServer::export_gone`].
    fn evict(&self, exp: ExportId, why: EvictReason);
}

/// Where a client's callback service is.
#[derive(Debug, Clone, Copy)]
pub struct AstPeer {
    /// NID the client connected from.
    pub nid: Nid,
    /// The handle the client gave at connect; goes into `pb_handle`.
    pub client_handle: u64,
    /// `pb_conn_cnt` of the current connection.
    pub conn_cnt: u32,
}

/// The target's export table as the callbacks need it.
pub trait AstPeers: Send + Sync + 'static {
    /// Address of the client behind `exp`, or `None` when the export is gone.
    fn peer(&self, exp: ExportId) -> Option<AstPeer>;
    /// See [`AstSender::evict`].
    fn evict(&self, exp: ExportId, why: EvictReason);
}

/// [`AstSender`] over PTLRPC: what every real target uses.
pub struct PtlrpcAsts<P> {
    node: Arc<Node>,
    peers: P,
}

impl<P: AstPeers> PtlrpcAsts<P> {
    /// Sends from `node`, finds clients through `peers`.
    pub fn new(node: Arc<Node>, peers: P) -> Arc<Self> {
        Arc::new(Self { node, peers })
    }
}

impl<P: AstPeers> AstSender for PtlrpcAsts<P> {
    fn blocking(&self, exp: ExportId, lock: &LockInfo, blocked_by: &LockDesc) -> BoxFuture<'static, Result<(), AstError>> {
        todo!()
    }
    fn completion(&self, exp: ExportId, lock: &LockInfo, flags: LdlmFlags, lvb: Bytes) -> BoxFuture<'static, Result<(), AstError>> {
        todo!()
    }
    fn glimpse(&self, exp: ExportId, lock: &LockInfo) -> BoxFuture<'static, Result<Bytes, AstError>> {
        todo!()
    }
    fn evict(&self, exp: ExportId, why: EvictReason) {
        self.peers.evict(exp, why);
    }
}
