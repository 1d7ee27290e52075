//! The node: start and stop, and what it is made of. What it sends is in `send`, what becomes of what arrives in `receive`.

mod cookie;
mod receive;
mod send;

pub use send::Put;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use coral_buffers::Payload;
use coral_metrics::Registry;
use coral_stopwatch::Stopwatch;
use coral_wire::lnet::{LNET_NI_STATUS_DOWN, feat};
use parking_lot::{Mutex, MutexGuard};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::exec::Inline;
use crate::gateway::GwEvent;
use crate::ni::Ni;
use crate::path::NoWay;
use crate::peers::PeerTable;
use crate::pending::Pending;
use crate::portals::Portals;
use crate::router::{PoolSizes, Router};
use crate::routes::{RouteError, RouteSpec, RouteTable};
use crate::sock::{SockNet, local};
use crate::wall::{WallClock, time_by};
use crate::{
    Accept, Faults, GetOffer, Limits, MemNet, Nid, NodeStats, PingInfo, PortalHandler,
    PutExpectation, ping,
};

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
    /// No other node of this machine that is to be alone may have one of the addresses, at the port of the acceptor or, without one, of the
    /// peers' acceptors: what is meant for one node would go to the other.
    pub alone: bool,
    /// Whose connections the acceptor takes. A command takes [`Accept::of_this_process`] when nothing else is said.
    pub accept: Accept,
    /// Wall time of a simulation; None: the machine's.
    pub wall: Option<WallClock>,
    /// Bounds of queues and timers.
    pub limits: Limits,
    /// Routes to networks on which we have no NID.
    pub routes: Vec<RouteSpec>,
    /// Forward for others, with so many buffers; None: do not.
    pub routing: Option<PoolSizes>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let limits = Limits::default();
        NodeConfig {
            nids: Vec::new(),
            listen_port: None,
            connect_port: 988,
            seed: 0,
            secure_ports: true,
            alone: false,
            accept: Accept::default(),
            wall: None,
            limits,
            routes: Vec::new(),
            routing: None,
        }
    }
}

impl NodeConfig {
    /// A node with one NID that lives in a [`MemNet`] only, with a `seed`, and whose wall clock begins now and always with the same
    /// time ([`WallClock::SIMULATED_SECS`]): what it does depends on no machine and no day.
    pub fn in_memory(nid: Nid, seed: u64) -> NodeConfig {
        NodeConfig {
            nids: vec![nid],
            seed,
            wall: Some(WallClock::starting_at(WallClock::SIMULATED_SECS)),
            ..NodeConfig::default()
        }
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
    /// Another node of this machine has the address.
    #[error(
        "{nid} port {port} is another node's on this machine, and a NID is one node's: this one needs another address of this machine (`ip addr` lists them)"
    )]
    Taken {
        /// Whose address it is.
        nid: Nid,
        /// The port.
        port: u16,
    },
    /// The address is none of this machine.
    #[error("no interface of this machine has the address of {0}")]
    NotHere(Nid),
    /// Another node of this process has the NID.
    #[error("NID {0} is already in use in this process")]
    NidInUse(Nid),
    /// A NID was given twice.
    #[error("NID {0} is given twice")]
    NidTwice(Nid),
    /// A route makes no sense on this node.
    #[error(transparent)]
    Route(#[from] RouteError),
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

/// Broken connections remembered for a slow listener of [`Node::peers_lost`].
const LOST_KEPT: usize = 64;

/// One LNet node. Stop it with [`Node::shutdown`]: connections keep it alive.
pub struct Node {
    nids: Vec<Nid>,
    wall: Option<WallClock>,
    mem: Option<Arc<MemNet>>,
    sock: Arc<SockNet>,
    portals: Arc<Portals>,
    pending: Arc<Pending>,
    /// Our interfaces, as [`Self::nids`].
    nis: Vec<Arc<Ni>>,
    peers: Mutex<PeerTable>,
    routes: Mutex<RouteTable>,
    router: Router,
    no_way: Mutex<NoWay>,
    /// There are routes; some peer has several NIDs; some interface of a peer is to recover.
    has_routes: AtomicBool,
    has_rails: AtomicBool,
    recovering: AtomicBool,
    /// Changes of what we say of ourselves, and the peers that were told as it is now.
    changes: AtomicU32,
    told: Mutex<BTreeSet<Nid>>,
    rng: Mutex<ChaCha8Rng>,
    cookies: cookie::Cookies,
    faults: Faults,
    handovers: Inline,
    metrics: Registry,
    stats: Arc<NodeStats>,
    stopwatch: Arc<Stopwatch>,
    runtime: tokio::runtime::Handle,
    down: AtomicBool,
    /// The same, to wait for.
    ended: tokio::sync::watch::Sender<bool>,
    ext: crate::ext::Extensions,
    /// Peers a connection to which broke.
    lost: tokio::sync::broadcast::Sender<Nid>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.nid())
    }
}

impl Node {
    /// Starts a node: binds the acceptor when there is one, and registers with `mem` when given. Needs a tokio runtime.
    pub async fn start(cfg: NodeConfig, mem: Option<Arc<MemNet>>) -> Result<Arc<Node>, StartError> {
        if cfg.nids.is_empty() {
            return Err(StartError::NoNid);
        }
        if let Some((i, twice)) = cfg
            .nids
            .iter()
            .enumerate()
            .find(|(i, n)| cfg.nids[..*i].contains(n))
        {
            debug_assert!(i > 0);
            return Err(StartError::NidTwice(*twice));
        }
        let mut routes = RouteTable::default();
        for spec in &cfg.routes {
            routes.add(&cfg.nids, *spec)?;
        }
        let (secs, nanos) = time_by(cfg.wall);
        // One number per life of the node: microseconds, as the kernel's socklnd.
        let incarnation = (secs as u64).wrapping_mul(1_000_000) + nanos as u64 / 1000;
        let stats = Arc::new(NodeStats::default());
        let listeners = SockNet::bind(&cfg).await?;
        let claims = local::claim(&cfg)?;
        let mut rng = ChaCha8Rng::seed_from_u64(cfg.seed);
        let cookies = cookie::Cookies::new(
            rng.next_u64() ^ incarnation.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            cfg.seed,
        );
        let faults = Faults::new(rng.next_u64());
        let node = Arc::new_cyclic(|me| Node {
            sock: SockNet::new(me.clone(), &cfg, claims, incarnation, stats.clone()),
            nis: cfg.nids.iter().map(|n| Arc::new(Ni::new(*n))).collect(),
            nids: cfg.nids,
            wall: cfg.wall,
            mem,
            portals: Arc::default(),
            pending: Pending::new(incarnation),
            peers: Mutex::new(PeerTable::new(cfg.limits.known_peers)),
            routes: Mutex::new(routes),
            no_way: Mutex::default(),
            router: Router::new(cfg.routing.is_some(), cfg.routing.unwrap_or_default()),
            has_routes: AtomicBool::new(false),
            has_rails: AtomicBool::new(false),
            recovering: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            told: Mutex::default(),
            rng: Mutex::new(rng),
            cookies,
            faults,
            handovers: Inline::default(),
            metrics: Registry::default(),
            stats,
            stopwatch: Arc::default(),
            runtime: tokio::runtime::Handle::current(),
            down: AtomicBool::new(false),
            ended: tokio::sync::watch::Sender::new(false),
            ext: Default::default(),
            lost: tokio::sync::broadcast::Sender::new(LOST_KEPT),
        });
        if let Some(mem) = &node.mem {
            mem.register(&node.nids, &node)
                .map_err(StartError::NidInUse)?;
        }
        node.metrics.attach(&[], &node.stats);
        node.metrics.attach(&[], node.handovers.counts());
        node.sock.listen(listeners);
        node.routes_changed();
        Ok(node)
    }

    /// Primary NID.
    pub fn nid(&self) -> Nid {
        self.nids[0]
    }

    /// All NIDs, primary first, without `0@lo`.
    pub fn nids(&self) -> &[Nid] {
        &self.nids
    }

    /// Where the time of its operations and requests went.
    pub fn stopwatch(&self) -> &Arc<Stopwatch> {
        &self.stopwatch
    }

    /// Whose connections it takes.
    pub fn accept(&self) -> Accept {
        self.sock.accept
    }

    /// Time of day: seconds since 1970 and nanoseconds.
    pub fn wall_time(&self) -> (i64, u32) {
        time_by(self.wall)
    }

    /// Tells of every peer a TCP connection to which has broken. It may be reachable still, or again: ask it.
    pub fn peers_lost(&self) -> tokio::sync::broadcast::Receiver<Nid> {
        self.lost.subscribe()
    }

    /// True from [`Node::shutdown`] on.
    pub fn ended(&self) -> tokio::sync::watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// The value of type `T` that an upper layer keeps once per node, made by `Default` when it is asked for first.
    pub fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.ext.of()
    }

    /// Next number of the node's seeded generator.
    pub fn rng_u64(&self) -> u64 {
        self.rng.lock().next_u64()
    }

    /// A handle cookie: never 0, never given twice by this node, other ones after a restart. Whoever knows some cannot tell the
    /// next: a handle is all that a request shows to be its client's.
    pub fn next_cookie(&self) -> u64 {
        self.cookies.next()
    }

    /// How often handlers stayed on the receiving stack; give it to [`crate::exec::run_inline`].
    pub fn handovers(&self) -> &Inline {
        &self.handovers
    }

    /// Counters.
    pub fn stats(&self) -> &NodeStats {
        &self.stats
    }

    /// All that is counted on this node, by whatever layer.
    pub fn metrics(&self) -> &Registry {
        &self.metrics
    }

    /// Bounds and timers.
    pub fn limits(&self) -> &Limits {
        &self.sock.limits
    }

    /// Rules that lose, fail or delay messages on purpose.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Breaks all TCP connections with `peer`, for tests. What is under way fails with [`SendError::PeerReset`].
    pub fn reset_peer(&self, peer: Nid) {
        self.sock.reset_peer(peer);
    }

    /// What a peer told about itself in a discovery push or a ping answer.
    pub fn known_peer(&self, nid: Nid) -> Option<PingInfo> {
        self.peer_table().told(nid)
    }

    /// Our interfaces, as [`Self::nids`].
    pub(crate) fn nis(&self) -> &[Arc<Ni>] {
        &self.nis
    }

    pub(crate) fn sock(&self) -> &Arc<SockNet> {
        &self.sock
    }

    /// The peer table, which knows the time.
    pub(crate) fn peer_table(&self) -> MutexGuard<'_, PeerTable> {
        let now_ms = self.sock.now_ms();
        let mut peers = self.peers.lock();
        peers.now_ms = now_ms;
        peers
    }

    pub(crate) fn route_table(&self) -> &Mutex<RouteTable> {
        &self.routes
    }

    pub(crate) fn no_way(&self) -> &Mutex<NoWay> {
        &self.no_way
    }

    /// Whether this node forwards for others.
    pub fn is_routing(&self) -> bool {
        self.router.is_on()
    }

    pub(crate) fn router(&self) -> &Router {
        &self.router
    }

    pub(crate) fn has_routes(&self) -> bool {
        self.has_routes.load(Ordering::Relaxed)
    }

    pub(crate) fn has_rails(&self) -> bool {
        self.has_rails.load(Ordering::Relaxed)
    }

    pub(crate) fn recovering(&self) -> &AtomicBool {
        &self.recovering
    }

    pub(crate) fn pending(&self) -> &Arc<Pending> {
        &self.pending
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    pub(crate) fn stats_arc(&self) -> Arc<NodeStats> {
        self.stats.clone()
    }

    /// All nodes there are, are in this process.
    pub(crate) fn mem_alone(&self) -> bool {
        self.mem.as_ref().is_some_and(|m| m.is_alone())
    }

    pub(crate) fn has_mem(&self) -> bool {
        self.mem.is_some()
    }

    pub(crate) fn mem_node(&self, nid: Nid) -> Option<Arc<Node>> {
        self.mem.as_ref().and_then(|m| m.node(nid))
    }

    /// What we say of ourselves.
    pub(crate) fn ping_info(&self) -> PingInfo {
        let mut info = ping::info(
            &self.nids,
            self.router.is_on(),
            self.changes.load(Ordering::Relaxed),
        );
        for ni in self.nis.iter().filter(|n| n.is_down()) {
            info.nis
                .iter_mut()
                .filter(|n| n.nid == ni.nid)
                .for_each(|n| n.status = LNET_NI_STATUS_DOWN);
        }
        info
    }

    /// Whether the peer knows us as we are now.
    pub(crate) fn told(&self, nid: Nid) -> bool {
        self.told.lock().contains(&nid)
    }

    pub(crate) fn note_told(&self, nid: Nid) {
        let mut told = self.told.lock();
        if told.len() < self.sock.limits.known_peers {
            told.insert(nid);
        }
    }

    /// What we say of ourselves has changed: peers that take it are told (`lnet_push_update_to_peers`).
    pub(crate) fn info_changed(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.told.lock().clear();
        let takes = |told: &PingInfo| told.features & feat::DISCOVERY != 0;
        let peers = self
            .peer_table()
            .views()
            .into_iter()
            .filter(|v| v.told.as_ref().is_some_and(takes));
        let Some(me) = self.sock.node() else { return };
        for nid in peers.map(|v| v.primary) {
            let me = me.clone();
            self.sock.spawn(async move {
                let _ = tokio::time::timeout(me.sock.limits.router_ping, me.push(nid)).await;
            });
        }
    }

    /// The route table has changed.
    pub(crate) fn routes_changed(&self) {
        self.has_routes
            .store(!self.routes.lock().is_empty(), Ordering::Relaxed);
        if let Some(me) = self.sock.node().filter(|n| n.has_routes()) {
            self.sock.look_after();
            me.ask_gateways();
        }
    }

    /// The peer table has changed.
    pub(crate) fn peers_changed(&self) {
        self.has_rails
            .store(self.peer_table().has_rails(), Ordering::Relaxed);
    }

    /// Whether the gateway `nid` is alive; None: it is no gateway.
    pub(crate) fn gateway_is_up(&self, nid: Nid) -> Option<bool> {
        self.routes
            .lock()
            .gateways()
            .find(|(n, _)| *n == nid)
            .map(|(_, state)| state == crate::gateway::GwState::Alive)
    }

    /// Closes connections and acceptor, leaves the [`MemNet`], and takes fault rules away; what they held back is lost. Waiting
    /// senders get [`SendError::Shutdown`].
    pub async fn shutdown(&self) {
        if self.down.swap(true, Ordering::AcqRel) {
            return;
        }
        self.ended.send_replace(true);
        if let Some(mem) = &self.mem {
            mem.unregister(&self.nids, self);
        }
        // What they hold back would keep us.
        self.faults.clear();
        self.router.close();
        self.sock.shutdown().await;
        self.pending.fail(None, || SendError::Shutdown);
        self.portals.clear_handlers();
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// Every PUT to `portal` that matches no expectation goes to `h`. A second call replaces the first.
    /// Panics on portal 0 (pings) and above 63.
    pub fn serve_portal(&self, portal: u32, h: Arc<dyn PortalHandler>) {
        assert!(portal != ping::PORTAL, "portal 0 is LNet's own");
        self.portals.serve(portal, Some(h));
    }

    /// Takes the handler of `portal` away.
    pub fn unserve_portal(&self, portal: u32) {
        self.portals.serve(portal, None);
    }

    /// Match entry with exact bits for PUTs (replies, bulk sinks). Dropping it unlinks.
    pub fn expect_put(&self, portal: u32, mbits: u64) -> PutExpectation {
        self.portals.expect_put(portal, mbits)
    }

    /// Match entry for GETs (bulk source). Dropping it unlinks.
    pub fn offer_get(&self, portal: u32, mbits: u64, data: Payload) -> GetOffer {
        self.portals.offer_get(portal, mbits, data)
    }

    /// A TCP connection with `peer` broke: what waits for it will get no answer. Of a gateway all behind it are affected.
    pub(crate) fn connection_lost(self: &Arc<Self>, peer: Nid, err: impl Fn() -> SendError) {
        if self.has_routes() {
            self.gateway_event(peer, GwEvent::ConnLost);
            let behind = self.routes.lock().reached_by(peer);
            for nid in behind {
                let _ = self.lost.send(nid);
            }
            self.ask_gateways();
        }
        self.told.lock().remove(&peer);
        let _ = self.lost.send(peer);
        self.pending.fail(Some(peer), err);
    }
}
