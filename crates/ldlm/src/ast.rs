//! Callbacks (ASTs) from server to client: the trait the server shell calls, and its implementation over PTLRPC.
//!
//! Lustre: `ldlm_server_blocking_ast`, `ldlm_server_completion_ast`, `ldlm_server_glimpse_ast` in
//! `lustre/ldlm/ldlm_lockd.c`. A callback is one request to portal 15 of the client, named by the client's own lock
//! cookie (handle 0) and the handle the client gave at connect (`pb_handle`).

use bytes::Bytes;
use coral_lnet::{Nid, Node};
use coral_ptlrpc::Request;
use coral_wire::Errno;
use coral_wire::ldlm::{ELDLM_NO_LOCK_DATA, LdlmFlags, LdlmRequest, LdlmType, LockDesc};
use coral_wire::ptlrpc::{opc, portal};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

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
    fn blocking(
        &self,
        exp: ExportId,
        lock: &LockInfo,
        blocked_by: &LockDesc,
    ) -> BoxFuture<'static, Result<(), AstError>>;
    /// Tells the owner that its waiting lock is granted (or, with `FLOCK_DEADLOCK`, refused). `lvb` may be empty.
    fn completion(
        &self,
        exp: ExportId,
        lock: &LockInfo,
        flags: LdlmFlags,
        lvb: Bytes,
    ) -> BoxFuture<'static, Result<(), AstError>>;
    /// Asks the holder for its LVB (size as it knows it).
    fn glimpse(
        &self,
        exp: ExportId,
        lock: &LockInfo,
    ) -> BoxFuture<'static, Result<Bytes, AstError>>;
    /// The client answers a glimpse for the object, whichever of its locks is named: to ask about another brings nothing more.
    fn answers_for_objects(&self, _exp: ExportId) -> bool {
        false
    }
    /// The client's NID, for whoever looks who is waited for.
    fn nid(&self, _exp: ExportId) -> Option<Nid> {
        None
    }
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
    /// See [`AstSender::answers_for_objects`].
    fn answers_for_objects(&self, _exp: ExportId) -> bool {
        false
    }
    /// See [`AstSender::evict`].
    fn evict(&self, exp: ExportId, why: EvictReason);
}

/// How long a client may take to answer a callback. Lustre: `ldlm_timeout`, 20 s.
pub const AST_TIMEOUT: Duration = Duration::from_secs(20);
/// Within that time a callback is sent so often, if need be.
const AST_TRIES: u32 = 5;
/// Shortest time between two tries.
const AST_PAUSE: Duration = Duration::from_secs(1);

/// [`AstSender`] over PTLRPC: what every real target uses.
///
/// A callback that gets no answer, because the message, the answer or the connection was lost, is sent again until its time is
/// over: receiving one twice does no harm.
pub struct PtlrpcAsts<P> {
    node: Arc<Node>,
    peers: Arc<P>,
    timeout: Duration,
}

impl<P: AstPeers> PtlrpcAsts<P> {
    /// Sends from `node`, finds clients through `peers`.
    pub fn new(node: Arc<Node>, peers: P) -> Arc<Self> {
        Self::with_timeout(node, peers, AST_TIMEOUT)
    }

    /// The same with another time-out for a callback's answer.
    pub fn with_timeout(node: Arc<Node>, peers: P, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            node,
            peers: Arc::new(peers),
            timeout,
        })
    }

    /// Sends one callback; the reply's buffer 1 (the LVB of a glimpse).
    fn send(
        &self,
        exp: ExportId,
        opcode: u32,
        rq: LdlmRequest,
        lvb: Option<Bytes>,
    ) -> BoxFuture<'static, Result<Bytes, AstError>> {
        let merges = opcode == opc::LDLM_CP_CALLBACK && rq.desc.ty() == LdlmType::FLOCK;
        let mut rpc = Request::new(portal::LDLM_CB_REQUEST, opcode)
            .push_bytes(rq.to_bytes())
            .no_resend();
        if let Some(lvb) = lvb {
            rpc = rpc.push_bytes(lvb);
        }
        Box::pin(deliver(
            self.node.clone(),
            self.peers.clone(),
            exp,
            rpc,
            self.timeout,
            merges,
        ))
    }
}

/// Sends until there is an answer or `timeout` is over. An answer to any of the tries counts: a client may be slow.
/// `merges`: the client may have merged the lock with others at an earlier try, and then does not know it any more.
async fn deliver<P: AstPeers>(
    node: Arc<Node>,
    peers: Arc<P>,
    exp: ExportId,
    rpc: Request,
    timeout: Duration,
    merges: bool,
) -> Result<Bytes, AstError> {
    let one_try = (timeout / AST_TRIES).max(AST_PAUSE);
    let deadline = Instant::now() + timeout;
    let mut tries = FuturesUnordered::new();
    let mut sent = 0;
    loop {
        sent += 1;
        // Asked for each time: the client may have reconnected meanwhile.
        let peer = peers.peer(exp).ok_or(AstError::NoExport)?;
        let begun = Instant::now();
        let (node, rpc) = (&node, rpc.clone());
        tries.push(async move {
            coral_ptlrpc::send_ast(
                node,
                peer.nid,
                peer.client_handle,
                peer.conn_cnt,
                rpc,
                deadline - begun,
            )
            .await
        });
        let next = begun + one_try;
        loop {
            let answer = tokio::select! {
                biased;
                Some(answer) = tries.next() => answer,
                _ = tokio::time::sleep_until(next.min(deadline)) => break,
            };
            match answer {
                Ok(r) => match check_status(r.status) {
                    Err(AstError::NoLock) if merges && sent > 1 => return Ok(Bytes::new()),
                    status => return status.map(|()| r.msg.buf(1).clone()),
                },
                Err(e) if Instant::now() >= deadline => {
                    return Err(AstError::Unanswered(e.to_string()));
                }
                // A failure at once (no connection) is not repeated in a hurry.
                Err(_) if tries.is_empty() => {
                    tokio::time::sleep_until((begun + AST_PAUSE).min(deadline)).await;
                    break;
                }
                Err(_) => {}
            }
        }
        if Instant::now() >= deadline {
            return Err(AstError::Unanswered("timed out".into()));
        }
    }
}

/// What a client's status says (`ldlm_handle_ast_error`).
fn check_status(status: i32) -> Result<(), AstError> {
    match status {
        0 => Ok(()),
        s if s == Errno::EINVAL.status()
            || s == Errno::ESTALE.status()
            || s.unsigned_abs() == ELDLM_NO_LOCK_DATA.unsigned_abs() =>
        {
            Err(AstError::NoLock)
        }
        // The node no longer knows the connection: it has restarted or was unmounted.
        s if s == Errno::ENOTCONN.status() || s == Errno::ENODEV.status() => {
            Err(AstError::Unanswered(format!("status {s}")))
        }
        s => {
            tracing::warn!(
                status = s,
                "odd answer to a callback, taken as \"no such lock\""
            );
            Err(AstError::NoLock)
        }
    }
}

/// A callback's request: the client's cookie, ours, and a lock description (seen in `contend.pcap`: count 0).
fn request(flags: LdlmFlags, desc: LockDesc, handles: [u64; 2]) -> LdlmRequest {
    LdlmRequest {
        flags,
        count: 0,
        desc,
        handles: SmallVec::from_slice(&handles),
    }
}

impl<P: AstPeers> AstSender for PtlrpcAsts<P> {
    fn blocking(
        &self,
        exp: ExportId,
        lock: &LockInfo,
        blocked_by: &LockDesc,
    ) -> BoxFuture<'static, Result<(), AstError>> {
        let flags = lock.flags & LdlmFlags::DISCARD_DATA;
        let rq = request(flags, *blocked_by, [lock.remote_cookie, lock.cookie]);
        let sent = self.send(exp, opc::LDLM_BL_CALLBACK, rq, None);
        Box::pin(async move { sent.await.map(drop) })
    }

    fn completion(
        &self,
        exp: ExportId,
        lock: &LockInfo,
        flags: LdlmFlags,
        lvb: Bytes,
    ) -> BoxFuture<'static, Result<(), AstError>> {
        let rq = request(flags, lock.desc(), [lock.remote_cookie, lock.cookie]);
        let sent = self.send(exp, opc::LDLM_CP_CALLBACK, rq, Some(lvb));
        Box::pin(async move { sent.await.map(drop) })
    }

    fn glimpse(
        &self,
        exp: ExportId,
        lock: &LockInfo,
    ) -> BoxFuture<'static, Result<Bytes, AstError>> {
        self.send(
            exp,
            opc::LDLM_GL_CALLBACK,
            request(LdlmFlags(0), lock.desc(), [lock.remote_cookie, 0]),
            None,
        )
    }

    fn answers_for_objects(&self, exp: ExportId) -> bool {
        self.peers.answers_for_objects(exp)
    }

    fn nid(&self, exp: ExportId) -> Option<Nid> {
        self.peers.peer(exp).map(|p| p.nid)
    }

    fn evict(&self, exp: ExportId, why: EvictReason) {
        self.peers.evict(exp, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever number a client answers with, it is an answer.
    #[test]
    fn any_status_of_a_client_means_something() {
        assert!(check_status(0).is_ok());
        assert!(matches!(
            check_status(Errno::ENOTCONN.status()),
            Err(AstError::Unanswered(_))
        ));
        for status in [i32::MIN, i32::MAX, 303, -303, -1] {
            assert!(
                matches!(check_status(status), Err(AstError::NoLock)),
                "{status}"
            );
        }
    }
}
