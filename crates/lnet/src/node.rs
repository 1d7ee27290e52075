//! The node: configuration, start and stop, and the calls the layers above use.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::PingInfo;
use crate::Nid;

use crate::{HandoverStats, MemNet, Payload};

/// What a node is told at its start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Our NIDs, primary first. `tcp` ones need their address on this machine; `N@lo` (N >= 1) live only in a [`MemNet`].
    pub nids: Vec<Nid>,
    /// TCP port the acceptor listens on, on every `tcp` NID's address; None: no acceptor (others cannot open connections to us).
    pub listen_port: Option<u16>,
    /// TCP port of the peers' acceptors; Lustre: 988.
    pub connect_port: u16,
    /// Seed of the node's generator.
    pub seed: u64,
    /// Bind outgoing connections to ports 1023..512, which stock servers demand. Without the privilege an ordinary port is used.
    pub secure_ports: bool,
    /// Wall time of a simulation; None: the machine's.
    pub wall: Option<WallClock>,
    /// Bounds of queues and timers.
    pub limits: Limits,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig { nids: Vec::new(), listen_port: None, connect_port: 988, seed: 0, secure_ports: true, wall: None, limits: Limits::default() }
    }
}

/// Wall time that follows tokio's clock: `base` was the time (seconds, nanoseconds since 1970) at instant `at`.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// Seconds and nanoseconds since 1970.
    pub base: (i64, u32),
    /// The instant that belongs to `base`.
    pub at: tokio::time::Instant,
}

/// Every bound of the node in one place.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Messages handed to the LND and not yet written, per peer; more wait. Lustre: peer_credits 8.
    pub peer_credits: usize,
    /// The same over all peers. Lustre: credits 256.
    pub ni_credits: usize,
    /// A connection with something to send, or a message half received, that moves no byte for so long is closed. Lustre: 50 s.
    pub sock_timeout: Duration,
    /// Longest wait for a TCP connect and for each step of the handshake. Lustre: accept_timeout 5 s.
    pub handshake_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { peer_credits: 8, ni_credits: 256, sock_timeout: Duration::from_secs(50), handshake_timeout: Duration::from_secs(5) }
    }
}

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No NID was given.
    #[error("a node needs at least one NID")]
    NoNid,
    /// The acceptor could not be bound.
    #[error("cannot listen on {addr} for NID {nid}: {source}")]
    Listen {
        /// NID whose address was to be bound.
        nid: Nid,
        /// Address and port.
        addr: std::net::SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Another node of this process has the NID.
    #[error("NID {0} is already in use in this process")]
    NidInUse(Nid),
}

/// Why a message could not be sent, or its ACK or REPLY will not come.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection to the NID could be had.
    #[error("cannot reach {nid}: {source}")]
    Unreachable {
        /// Whom we wanted to reach.
        nid: Nid,
        /// The last attempt's failure.
        source: io::Error,
    },
    /// The connection made no progress for [`Limits::sock_timeout`].
    #[error("timed out")]
    Timeout,
    /// The connection broke while the message, its ACK or REPLY was under way.
    #[error("connection reset by peer")]
    PeerReset,
    /// This node is shut down.
    #[error("the node is shut down")]
    Shutdown,
}

/// A PUT that arrived.
#[derive(Clone, Debug)]
pub struct PutEvent {
    /// Sender.
    pub from: Nid,
    /// Portal index.
    pub portal: u32,
    /// Match bits.
    pub mbits: u64,
    /// 64 bits the sender put beside the data; PTLRPC uses none.
    pub hdr_data: u64,
    /// Offset in bytes the sender asked for in the receiver's buffer.
    pub offset: u32,
    /// The data.
    pub data: Payload,
}

/// Takes the PUTs of a request portal.
pub trait PortalHandler: Send + Sync + 'static {
    /// Called inline on the receiving stack, with no lock held. Must not block.
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent);
}

/// Match entry for PUTs with exact match bits; dropped = unlinked.
#[derive(Debug)]
pub struct PutExpectation {
    _todo: (),
}

impl PutExpectation {
    /// The next PUT that matches. Safe to cancel. Waits for ever when none comes: the caller has the deadline.
    pub async fn recv(&mut self) -> PutEvent {
        todo!()
    }

    /// The next PUT if it is there already.
    pub fn try_recv(&mut self) -> Option<PutEvent> {
        todo!()
    }
}

/// Match entry for one or more GETs; dropped = unlinked.
#[derive(Debug)]
pub struct GetOffer {
    _todo: (),
}

impl GetOffer {
    /// Resolves when the REPLY of the first GET was handed to the LND (for TCP: written to the socket).
    pub async fn done(&mut self) -> Result<(), SendError> {
        todo!()
    }
}

/// Counters of a node since its start.
#[derive(Debug, Default)]
pub struct NodeStats {
    _todo: (),
}

/// One LNet node.
#[derive(Debug)]
pub struct Node {
    _todo: (),
}

impl Node {
    /// Starts a node: binds the acceptor when there is one, and registers with `mem` when given.
    pub async fn start(cfg: NodeConfig, mem: Option<Arc<MemNet>>) -> Result<Arc<Node>, StartError> {
        let _ = (cfg, mem);
        todo!()
    }

    /// Primary NID.
    pub fn nid(&self) -> Nid {
        todo!()
    }

    /// All NIDs, primary first, without `0@lo`.
    pub fn nids(&self) -> &[Nid] {
        todo!()
    }

    /// Time of day: seconds since 1970 and nanoseconds.
    pub fn wall_time(&self) -> (i64, u32) {
        todo!()
    }

    /// Next number of the node's seeded generator.
    pub fn rng_u64(&self) -> u64 {
        todo!()
    }

    /// A handle cookie: never 0 and never given twice by this node; differs after a restart.
    pub fn next_cookie(&self) -> u64 {
        todo!()
    }

    /// How often handlers stayed on the receiving stack; give it to [`crate::exec::run_inline`].
    pub fn handovers(&self) -> &HandoverStats {
        todo!()
    }

    /// Counters.
    pub fn stats(&self) -> &NodeStats {
        todo!()
    }

    /// Closes connections and acceptor and leaves the [`MemNet`]. Waiting senders get [`SendError::Shutdown`].
    pub async fn shutdown(&self) {
        todo!()
    }

    /// Every PUT to `portal` that matches no expectation goes to `h`. A second call replaces the first.
    pub fn serve_portal(&self, portal: u32, h: Arc<dyn PortalHandler>) {
        let _ = (portal, h);
        todo!()
    }

    /// Takes the handler of `portal` away.
    pub fn unserve_portal(&self, portal: u32) {
        let _ = portal;
        todo!()
    }

    /// Match entry with exact bits for PUTs (replies, bulk sinks). Dropping it unlinks.
    pub fn expect_put(&self, portal: u32, mbits: u64) -> PutExpectation {
        let _ = (portal, mbits);
        todo!()
    }

    /// Match entry for GETs (bulk source). Dropping it unlinks.
    pub fn offer_get(&self, portal: u32, mbits: u64, data: Payload) -> GetOffer {
        let _ = (portal, mbits, data);
        todo!()
    }

    /// PUT. With `ack`: resolves when the ACK came; else when the LND has taken the message (written to the socket) or failed.
    pub async fn put(self: &Arc<Self>, to: Nid, portal: u32, mbits: u64, offset: u32, data: Payload, ack: bool) -> Result<(), SendError> {
        let _ = (to, portal, mbits, offset, data, ack);
        todo!()
    }

    /// GET of at most `len` bytes from offset 0 of the peer's offer.
    pub async fn get(self: &Arc<Self>, to: Nid, portal: u32, mbits: u64, len: u32) -> Result<Payload, SendError> {
        let _ = (to, portal, mbits, len);
        todo!()
    }

    /// LNet ping. No time limit of its own: the caller has one.
    pub async fn ping(self: &Arc<Self>, nid: Nid) -> Result<PingInfo, SendError> {
        let _ = nid;
        todo!()
    }
}

/// The NID of this machine from which `peer` is reached (route lookup; nothing is sent). For peers in 127/8 a free address
/// 127.a.b.c whose acceptor port can be bound, so that several nodes live on one machine.
pub fn local_nid_for(peer: Nid) -> io::Result<Nid> {
    let _ = peer;
    todo!()
}
