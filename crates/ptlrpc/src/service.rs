//! The server side of PTLRPC: portals, queues, requests and their replies.

use std::sync::Arc;

use coral_lnet::{Nid, Node, Payload};
use coral_wire::ptlrpc::{Message, PtlrpcBody};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

/// Takes the requests of a service.
pub trait RequestHandler: Send + Sync + 'static {
    /// Handles one request; polled once inline on the receiving stack, spawned when it waits. A request that is dropped
    /// without a reply is not answered: the client sends it again.
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()>;
}

/// Configuration and limits of a service.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Name in logs.
    pub name: String,
    /// Request portals served.
    pub portals: Vec<u32>,
    /// Most requests being handled at once; more are queued. Lustre: threads_max.
    pub max_active: usize,
    /// Most requests queued; more are dropped, the clients send them again.
    pub max_queued: usize,
}

impl ServiceConfig {
    /// A service with the default limits.
    pub fn new(name: &str, portals: &[u32]) -> ServiceConfig {
        ServiceConfig { name: name.to_owned(), portals: portals.to_vec(), max_active: 512, max_queued: 16384 }
    }
}

/// Counts since the start of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Requests taken.
    pub requests: u64,
    /// Messages that are no PTLRPC requests.
    pub malformed: u64,
    /// Requests dropped because the queue was full.
    pub dropped_full: u64,
    /// Requests that had to be queued.
    pub queued: u64,
    /// Early replies sent.
    pub early_replies: u64,
    /// Replies sent.
    pub replies: u64,
}

/// Why bulk data did not flow.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum BulkError {
    /// The client did not answer in time, or reconnected.
    #[error("bulk timed out")]
    Timeout,
    /// The network failed.
    #[error("bulk transfer failed: {0}")]
    Network(String),
    /// Fewer bytes than asked for.
    #[error("bulk of {got} bytes where {want} were asked for")]
    Short {
        /// Bytes that came.
        got: usize,
        /// Bytes wanted.
        want: usize,
    },
}

/// A running service.
pub struct Service {
    _todo: (),
}

impl Service {
    /// Serves the portals of `cfg` on `node` with `h`.
    pub fn start(node: &Arc<Node>, cfg: ServiceConfig, h: Arc<dyn RequestHandler>) -> Arc<Service> {
        let _ = (node, cfg, h);
        todo!()
    }

    /// Takes no more requests, drops queued ones and waits until none is being handled.
    pub async fn stop(&self) {
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> ServiceStats {
        todo!()
    }
}

/// A request as it reached a service.
pub struct ServerRequest {
    /// The message; buffer 0 is the body.
    pub msg: Message,
    /// Its body.
    pub body: PtlrpcBody,
    /// NID of the sender.
    pub from: Nid,
    /// Its xid.
    pub xid: u64,
    /// Portal it came to.
    pub portal: u32,
    /// When it came.
    pub arrived: Instant,
    /// Match bits of the reply: xid, or `pb_mbits` when REP_MBITS is agreed ([`ServerRequest::use_reply_mbits`]).
    pub(crate) reply_mbits: u64,
}

impl ServerRequest {
    /// The node the service runs on.
    pub fn node(&self) -> &Arc<Node> {
        todo!()
    }

    /// Connect flag REP_MBITS is agreed with this client.
    pub fn use_reply_mbits(&mut self) {
        self.reply_mbits = self.body.mbits;
    }

    /// Fetches bulk data from the client (a client's write): one GET per length. Result: one payload per descriptor.
    pub async fn bulk_read_from_client(&self, portal: u32, lens: &[u32]) -> Result<Vec<Payload>, BulkError> {
        let _ = (portal, lens);
        todo!()
    }

    /// Sends bulk data to the client (a client's read): one PUT with ACK per descriptor; descriptors the client posted beyond
    /// `data` get an empty PUT.
    pub async fn bulk_write_to_client(&self, portal: u32, data: Vec<Payload>) -> Result<(), BulkError> {
        let _ = (portal, data);
        todo!()
    }

    /// Number of bulk descriptors the client posted, from `pb_mbits`.
    pub fn bulk_md_count(&self) -> usize {
        todo!()
    }

    /// Sends the final reply. Of `msg`'s body only transno, last_committed, handle, op_flags, slv, limit and pre_versions are
    /// used, the rest is filled in. `msg` needs no body: see [`Message::new`].
    pub async fn reply(self, status: i32, msg: Message) {
        let _ = (status, msg);
        todo!()
    }
}
