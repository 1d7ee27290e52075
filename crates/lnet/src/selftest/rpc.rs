//! The self-test's RPCs, client side (`lnet/selftest/rpc.c`).
//!
//! A request of fixed size is PUT to portal 51 (services of the framework) or 50 (tests) with the service's number as match
//! bits. Its first two fields are match bits on portal 52: where the reply is PUT, and where the server PUTs or GETs bulk.
//! Request sent, reply and bulk may come in any order; the RPC is over when all have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coral_buffers::Payload;
use coral_wire::Errno;
use coral_wire::srpc::{SrpcBody, SrpcMsg, SrpcType};

use super::{FRAMEWORK_PORTAL, RDMA_PORTAL, Service, TEST_PORTAL};
use crate::{Nid, Node, SendError};
use coral_metrics::Counter;

/// Longest life of an RPC (`rpc_timeout` 64 s).
pub const RPC_TIMEOUT: Duration = Duration::from_secs(64);

/// Why an RPC has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// The request could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// No reply or bulk in time.
    #[error("no answer in time")]
    Timeout,
    /// The reply is none to this request.
    #[error("bad reply")]
    BadMessage,
    /// Given up because the test or the console ends.
    #[error("interrupted")]
    Aborted,
}

impl RpcError {
    /// The errno Lustre's `lst` would print.
    pub fn errno(&self) -> Errno {
        match self {
            RpcError::Send(SendError::Unreachable { .. }) => Errno(libc::EHOSTUNREACH),
            RpcError::Send(SendError::Shutdown) => Errno(libc::ESHUTDOWN),
            RpcError::Send(SendError::PeerReset) => Errno(libc::ECONNRESET),
            RpcError::Send(_) | RpcError::Timeout => Errno(libc::ETIMEDOUT),
            RpcError::BadMessage => Errno(libc::EBADMSG),
            RpcError::Aborted => Errno(libc::EINTR),
        }
    }
}

/// Counters of `struct srpc_counters`.
#[derive(Debug, Default)]
pub(crate) struct RpcCounters {
    pub(crate) errors: Counter,
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
    pub(crate) dropped: Counter,
    pub(crate) expired: Counter,
    pub(crate) bulk_get: Counter,
    pub(crate) bulk_put: Counter,
}

/// What goes with a request besides the message.
pub(crate) enum Bulk {
    None,
    /// The server GETs it.
    Source(Payload),
    /// The server PUTs it.
    Sink,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) msg: SrpcMsg,
    /// What was PUT into a sink.
    pub(crate) bulk: Option<Payload>,
}

/// Status of a reply, its first field.
pub(crate) fn status_of(msg: &SrpcMsg) -> u32 {
    match &msg.body {
        SrpcBody::MksnReply(r) => r.status,
        SrpcBody::RmsnReply(r) | SrpcBody::TestReply(r) => r.status,
        SrpcBody::BatchReply(r) => r.status,
        SrpcBody::StatReply(r) => r.status,
        SrpcBody::DebugReply(r) => r.status,
        SrpcBody::BrwReply(r) => r.status,
        SrpcBody::PingReply(r) => r.status,
        SrpcBody::JoinReply(r) => r.status,
        _ => 0,
    }
}

/// The client half: match bits and counters.
pub(crate) struct RpcClient {
    next: AtomicU64,
    pub(crate) counters: RpcCounters,
}

impl RpcClient {
    /// `secs`: seconds since 1970, which keep match bits of two lives apart.
    pub(crate) fn new(secs: u64) -> RpcClient {
        RpcClient {
            next: AtomicU64::new(secs << 48),
            counters: RpcCounters::default(),
        }
    }

    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a request and waits for its reply and bulk, at most [`RPC_TIMEOUT`]. `body` gets the match bits of reply and bulk.
    pub(crate) async fn call(
        &self,
        node: &Arc<Node>,
        dest: Nid,
        service: Service,
        feats: u32,
        bulk: Bulk,
        body: impl FnOnce(u64, u64) -> SrpcBody,
    ) -> Result<Answer, RpcError> {
        let result = tokio::time::timeout(
            RPC_TIMEOUT,
            self.exchange(node, dest, service, feats, bulk, body),
        )
        .await;
        match result {
            Ok(Err(RpcError::Send(e))) => {
                self.counters.errors.inc();
                Err(RpcError::Send(e))
            }
            Ok(r) => r,
            Err(_) => {
                self.counters.expired.inc();
                Err(RpcError::Timeout)
            }
        }
    }

    async fn exchange(
        &self,
        node: &Arc<Node>,
        dest: Nid,
        service: Service,
        feats: u32,
        bulk: Bulk,
        body: impl FnOnce(u64, u64) -> SrpcBody,
    ) -> Result<Answer, RpcError> {
        let (rpyid, bulkid) = (
            self.next_id(),
            if matches!(bulk, Bulk::None) {
                0
            } else {
                self.next_id()
            },
        );
        let mut reply = node.expect_put(RDMA_PORTAL, rpyid);
        let (mut sink, mut offer) = (None, None);
        match bulk {
            Bulk::None => {}
            Bulk::Sink => sink = Some(node.expect_put(RDMA_PORTAL, bulkid)),
            Bulk::Source(data) => offer = Some(node.offer_get(RDMA_PORTAL, bulkid, data)),
        }
        let msg = SrpcMsg::new(service.request(), feats, body(rpyid, bulkid)).encode();
        let portal = if service.is_framework() {
            FRAMEWORK_PORTAL
        } else {
            TEST_PORTAL
        };
        node.put(dest, portal, service as u64, 0, msg.into(), false)
            .await?;
        self.counters.sent.inc();
        let msg = SrpcMsg::decode(&reply.recv().await.data.copy_to_bytes())
            .map_err(|_| RpcError::BadMessage)?;
        if msg.head.r#type != SrpcType(service.request().0 + 1) {
            return Err(RpcError::BadMessage);
        }
        let mut bulk = None;
        if status_of(&msg) == 0 {
            if let Some(sink) = &mut sink {
                bulk = Some(sink.recv().await.data);
            }
            if let Some(offer) = &mut offer {
                offer.done().await?;
            }
        }
        Ok(Answer { msg, bulk })
    }
}
