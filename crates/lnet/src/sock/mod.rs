//! socklnd: LNet over TCP, as the kernel's `lnet/klnds/socklnd` speaks it.
//!
//! [`SockNet`] is the TCP side of a node: acceptors, peers, credits and the once-a-second look after stuck connections.

mod admission;
mod conn;
pub(crate) mod cork;
mod dialer;
pub(crate) mod frame;
mod hello;
pub(crate) mod local;
mod owner;
mod peer;
mod stage;
mod tcp_info;
mod tx;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_stopwatch::{Wait, waits};
use coral_wire::Wire;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::access::{self, Refusal};
use crate::show::{LinkShow, PeerNiShow, Tunables};
use crate::{Accept, KnownBy, Limits, Nid, Node, NodeConfig, NodeStats, SendError, StartError};
use admission::{Addresses, Place};
use conn::{CloseReason, Conn};
use frame::BufPool;
use hello::HandshakeError;
use local::Claim;
use peer::Admission;
pub(crate) use peer::Peer;
pub(crate) use tx::{Again, Credits, Done, Tx};

/// Connections the system may hold for us before we accept them. Lustre: accept_backlog 127.
const BACKLOG: u32 = 127;
/// Longest wait at shutdown for the tasks of connections to end.
const DRAIN: Duration = Duration::from_secs(1);
/// What is shown as peer_timeout, as the kernel's socklnd shows it. Dead peers are noticed by [`Limits::sock_timeout`].
const PEER_TIMEOUT_S: u64 = 180;
const TICK: Duration = Duration::from_secs(1);
/// More tasks than any node runs: all permits together mean that no task is left.
const MAX_TASKS: usize = 1 << 20;

/// Whom a connect is for. Others give us the addresses we connect to, be it as the source of a question or as the destination of
/// a message in transit, so that such connects must not keep our own messages from being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// We send messages of our own to the peer.
    Us,
    /// It is only answered, or messages of others go on to it.
    Others,
}

/// The TCP side of a node.
pub(crate) struct SockNet {
    node: Weak<Node>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) limits: Limits,
    pub(crate) stats: Arc<NodeStats>,
    pub(crate) pool: Arc<BufPool>,
    pub(crate) incarnation: u64,
    pub(crate) connect_port: u16,
    pub(crate) secure_ports: bool,
    pub(crate) accept: Accept,
    refusals: Mutex<Refusals>,
    /// Our TCP NIDs are addresses of this machine: their acceptors were bound.
    pub(crate) bound: bool,
    started: Instant,
    peers: Mutex<BTreeMap<(Nid, Nid), Arc<Peer>>>,
    credits: Arc<Semaphore>,
    /// The fewest credits there were.
    min_credits: AtomicUsize,
    half_open: Arc<Semaphore>,
    /// One for each connect that runs, by whom it is for.
    connectors: [Arc<Semaphore>; 2],
    /// Shares in the connects for others by address, of connections that are there.
    origins: Mutex<HashMap<Option<IpAddr>, Weak<Semaphore>>>,
    addresses: Arc<Addresses>,
    tasks: Arc<Semaphore>,
    ticking: AtomicBool,
    /// True once the node goes down.
    stop: watch::Sender<bool>,
    /// What keeps others from our addresses, until then.
    claims: Mutex<Vec<Claim>>,
}

impl SockNet {
    /// Binds the acceptors of all TCP NIDs.
    pub(crate) async fn bind(cfg: &NodeConfig) -> Result<Vec<(Nid, TcpListener)>, StartError> {
        let Some(port) = cfg.listen_port.filter(|_| cfg.accept != Accept::None) else {
            return Ok(Vec::new());
        };
        let mut out = Vec::new();
        for nid in &cfg.nids {
            let Some(ip) = nid.ipv4() else { continue };
            let addr = SocketAddr::V4(SocketAddrV4::new(ip, port));
            let listen = || {
                let sock = TcpSocket::new_v4()?;
                sock.set_reuseaddr(true)?;
                sock.bind(addr)?;
                sock.listen(BACKLOG)
            };
            let listener = listen().map_err(|source| StartError::Listen {
                nid: *nid,
                addr,
                source,
            })?;
            out.push((*nid, listener));
        }
        Ok(out)
    }

    pub(crate) fn new(
        node: Weak<Node>,
        cfg: &NodeConfig,
        claims: Vec<Claim>,
        incarnation: u64,
        stats: Arc<NodeStats>,
    ) -> Arc<SockNet> {
        Arc::new(SockNet {
            node,
            claims: Mutex::new(claims),
            runtime: tokio::runtime::Handle::current(),
            pool: BufPool::new(cfg.limits.free_buffers),
            incarnation,
            connect_port: cfg.connect_port,
            secure_ports: cfg.secure_ports,
            accept: cfg.accept,
            refusals: Mutex::default(),
            bound: cfg.listen_port.is_some() && cfg.accept != Accept::None,
            started: Instant::now(),
            peers: Mutex::default(),
            credits: Arc::new(Semaphore::new(cfg.limits.ni_credits)),
            min_credits: AtomicUsize::new(cfg.limits.ni_credits),
            half_open: Arc::new(Semaphore::new(cfg.limits.half_open)),
            connectors: [cfg.limits.connectors, cfg.limits.connectors_for_others]
                .map(|n| Arc::new(Semaphore::new(n))),
            origins: Mutex::default(),
            addresses: Arc::default(),
            tasks: Arc::new(Semaphore::new(MAX_TASKS)),
            ticking: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            limits: cfg.limits.clone(),
            stats,
        })
    }

    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade()
    }

    /// Whether the node goes down.
    pub(crate) fn is_closed(&self) -> bool {
        *self.stop.borrow()
    }

    /// Runs `work` in a task of its own, to its end or to the node's.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let (mut stop, task) = (self.stop.subscribe(), self.task());
        self.runtime.spawn(async move {
            let _task = task;
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = work => {}
            }
        });
    }

    /// Milliseconds of the node's life.
    pub(crate) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// A permit that every task holds which shutdown waits for.
    pub(crate) fn task(&self) -> Option<OwnedSemaphorePermit> {
        self.tasks.clone().try_acquire_owned().ok()
    }

    /// The peer `nid` as reached from our `local`. None: there are too many, or it is only to be `answered`, was not known, and
    /// as many connects as may be are under way for such ones.
    pub(crate) fn peer(
        self: &Arc<Self>,
        local: Nid,
        nid: Nid,
        answered: bool,
    ) -> Option<Arc<Peer>> {
        let peer = {
            let mut all = self.peers.lock();
            match all.get(&(local, nid)) {
                Some(peer) => peer.clone(),
                None if all.len() >= self.limits.peers
                    || answered && !self.answers_may_connect() =>
                {
                    return None;
                }
                None => all
                    .entry((local, nid))
                    .or_insert_with(|| Peer::new(self.clone(), local, nid))
                    .clone(),
            }
        };
        self.look_after();
        Some(peer)
    }

    fn answers_may_connect(&self) -> bool {
        self.connectors[For::Others as usize].available_permits()
            > self.limits.connectors_for_others / 2
    }

    /// What a connector holds that is there for an answer; None: such ones have their half.
    pub(crate) fn connector_for_answer(&self) -> Option<OwnedSemaphorePermit> {
        if self.answers_may_connect() {
            self.connectors[For::Others as usize]
                .clone()
                .try_acquire_owned()
                .ok()
        } else {
            None
        }
    }

    /// The share of an address in the connects for others.
    #[expect(
        clippy::disallowed_methods,
        reason = "whether a share stays depends on itself alone"
    )]
    pub(crate) fn origin(&self, address: Option<IpAddr>) -> Arc<Semaphore> {
        let mut origins = self.origins.lock();
        if let Some(share) = origins.get(&address).and_then(Weak::upgrade) {
            return share;
        }
        if origins.len() == origins.capacity() {
            origins.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(self.limits.connectors_per_address));
        origins.insert(address, Arc::downgrade(&share));
        share
    }

    /// Waits for what a connector holds.
    pub(crate) async fn connector(&self, whom: For) -> Option<OwnedSemaphorePermit> {
        self.connectors[whom as usize]
            .clone()
            .acquire_owned()
            .await
            .ok()
    }

    /// Makes sure that somebody looks after peers and gateways once a second.
    pub(crate) fn look_after(self: &Arc<Self>) {
        if !self.ticking.swap(true, Ordering::AcqRel) {
            self.spawn(tick(Arc::downgrade(self)));
        }
    }

    /// Whether there are connections between our `local` and `nid`.
    pub(crate) fn has_conns(&self, local: Nid, nid: Nid) -> bool {
        let peer = self.peers.lock().get(&(local, nid)).cloned();
        peer.is_some_and(|p| p.is_connected())
    }

    /// Bytes queued for `nid`, and send credits left, over all NIDs of ours.
    pub(crate) fn load(&self, nid: Nid) -> (u64, usize) {
        let node = self.node();
        let nids = node.as_ref().map_or(&[][..], |n| n.nids());
        let peers: Vec<Arc<Peer>> = {
            let all = self.peers.lock();
            nids.iter()
                .filter_map(|local| all.get(&(*local, nid)).cloned())
                .collect()
        };
        let sum = |(queued, credits), p: &Arc<Peer>| {
            (
                queued + p.queued_bytes(),
                credits + p.credits.available_permits(),
            )
        };
        if peers.is_empty() {
            (0, self.limits.peer_credits)
        } else {
            peers.iter().fold((0, 0), sum)
        }
    }

    /// A credit of the peer and one of the network interface, if both are there.
    pub(crate) fn credits_now(&self, peer: &Peer) -> Option<Credits> {
        let of_peer = peer.credits.clone().try_acquire_owned().ok()?;
        let of_ni = self.credits.clone().try_acquire_owned().ok()?;
        Some(self.took(peer, of_peer, of_ni))
    }

    /// Waits for a credit of the peer and one of the network interface.
    pub(crate) async fn credits(&self, peer: &Peer) -> Result<Credits, SendError> {
        let of_peer = self.credit(&peer.credits).await?;
        let of_ni = self.credit(&self.credits).await?;
        Ok(self.took(peer, of_peer, of_ni))
    }

    fn took(
        &self,
        peer: &Peer,
        of_peer: OwnedSemaphorePermit,
        of_ni: OwnedSemaphorePermit,
    ) -> Credits {
        peer.min_credits
            .fetch_min(peer.credits.available_permits(), Ordering::Relaxed);
        self.min_credits
            .fetch_min(self.credits.available_permits(), Ordering::Relaxed);
        Credits::from_iter([of_peer, of_ni])
    }

    async fn credit(&self, of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, SendError> {
        if let Ok(credit) = of.clone().try_acquire_owned() {
            return Ok(credit);
        }
        // Perhaps they are with what this stack holds back.
        cork::flush();
        let begun = Instant::now();
        let credit = waits(Wait::Credit, of.clone().acquire_owned()).await;
        self.stats.credit_wait.record_time(begun.elapsed());
        credit.map_err(|_| SendError::Shutdown)
    }

    /// Begins to accept.
    pub(crate) fn listen(self: &Arc<Self>, listeners: Vec<(Nid, TcpListener)>) {
        for (nid, listener) in listeners {
            self.spawn(self.clone().accept_all(nid, listener));
        }
    }

    async fn accept_all(self: Arc<Self>, us: Nid, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let Some((place, gives_way)) = self.addresses.enter(from.ip(), &self.limits)
                    else {
                        self.stats.bad_handshakes.inc();
                        continue;
                    };
                    // when there are as many as there may be, one has just been told to give way
                    let Ok(slot) = self.half_open.clone().acquire_owned().await else {
                        return;
                    };
                    let known_by = match self.judge(&stream) {
                        Ok(known_by) => known_by,
                        Err(why) => {
                            self.refused(us, from, &why);
                            continue;
                        }
                    };
                    let me = self.clone();
                    self.spawn(async move {
                        let _slot = slot;
                        let limit = me.limits.handshake_timeout;
                        let failed =
                            |kind: std::io::ErrorKind| Err(std::io::Error::from(kind).into());
                        let shaken = tokio::select! {
                            biased;
                            done = me.accept(us, stream, place, known_by) => done,
                            _ = gives_way => failed(std::io::ErrorKind::ConnectionAborted),
                            () = tokio::time::sleep(limit) => failed(std::io::ErrorKind::TimedOut),
                        };
                        if let Err(e) = shaken {
                            me.stats.bad_handshakes.inc();
                            tracing::info!(%us, %from, error = %e, "connection refused");
                        }
                    });
                }
                Err(e) => {
                    // Out of descriptors, or the peer gave up: neither is a reason to spin or to stop.
                    tracing::warn!(%us, error = %e, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn accept(
        self: &Arc<Self>,
        us: Nid,
        mut stream: TcpStream,
        place: Place,
        known_by: KnownBy,
    ) -> Result<(), HandshakeError> {
        stream.set_nodelay(true)?;
        let (theirs, ctype) = hello::accept(&mut stream, us, self.incarnation).await?;
        let peer = self
            .peer(us, theirs.src_nid, false)
            .ok_or(HandshakeError::Race)?;
        let welcome = peer.admit(ctype) == Admission::Welcome;
        let answer = hello::hello(
            us,
            theirs.src_nid,
            self.incarnation,
            welcome.then_some(ctype),
        );
        stream.write_all(&answer.to_bytes()).await?;
        if welcome {
            peer.add_conn(
                Conn::new(peer.clone(), ctype, Some(place.shaken()), known_by, stream),
                theirs.src_incarnation,
            );
        }
        Ok(())
    }

    /// Whether we take a connection, and how we know whose it is. Nothing was read from it yet.
    fn judge(&self, stream: &TcpStream) -> Result<KnownBy, Refusal> {
        let SocketAddr::V4(from) = stream
            .peer_addr()
            .map_err(|e| Refusal::NotTold(e, self.accept))?
        else {
            return Err(Refusal::NotTold(
                std::io::ErrorKind::Unsupported.into(),
                self.accept,
            ));
        };
        access::judge(self.accept, from, access::unprivileged_port_start(), || {
            owner::of_other_end(stream)
        })
    }

    /// How we know whom we have connected to. It has ended its handshake, so that a process has the connection. What listens where
    /// a server of ours was may be anybody's: with one that we would not let in we do not speak either.
    pub(crate) fn known_of_dialed(&self, stream: &TcpStream) -> Result<KnownBy, HandshakeError> {
        let SocketAddr::V4(to) = stream.peer_addr()? else {
            return Err(std::io::Error::from(std::io::ErrorKind::Unsupported).into());
        };
        match access::known_of_dialed(
            to,
            access::unprivileged_port_start(),
            owner::of_other_end(stream),
        ) {
            Ok(known_by) => Ok(known_by),
            Err(_) if self.accept == Accept::All => Ok(KnownBy::Nothing),
            Err(uid) => Err(HandshakeError::AnotherUsers(to, uid, self.accept)),
        }
    }

    fn refused(&self, us: Nid, from: SocketAddr, why: &Refusal) {
        self.stats.refused.inc();
        if let Some(others) = self.refusals.lock().tell(Instant::now()) {
            tracing::warn!(%us, %from, others_since_last_told = others, "connection refused: {why}");
        }
    }

    /// Tunables of an interface, its send credits and the fewest there were.
    pub(crate) fn show_ni(&self) -> (Tunables, usize, usize) {
        let l = &self.limits;
        let tunables = Tunables {
            peer_timeout: PEER_TIMEOUT_S,
            peer_credits: l.peer_credits,
            peer_buffer_credits: 0,
            credits: l.ni_credits,
        };
        (
            tunables,
            self.credits.available_permits(),
            self.min_credits.load(Ordering::Relaxed),
        )
    }

    /// Whether there is a connection with `nid`.
    pub(crate) fn is_connected(&self, nid: Nid) -> bool {
        self.peers
            .lock()
            .iter()
            .any(|((_, n), p)| *n == nid && p.is_connected())
    }

    /// Adds to `show` what the TCP peers of `nid` know; of several the one with the fewest credits counts.
    pub(crate) fn show_peer(&self, nid: Nid, mut show: PeerNiShow) -> PeerNiShow {
        (show.max_tx_credits, show.tx_credits, show.min_tx_credits) = (
            self.limits.peer_credits,
            self.limits.peer_credits,
            self.limits.peer_credits,
        );
        (show.rtr_credits, show.min_rtr_credits) =
            (self.limits.router_credits(), self.limits.router_credits());
        let peers: Vec<Arc<Peer>> = self
            .peers
            .lock()
            .iter()
            .filter(|((_, n), _)| *n == nid)
            .map(|(_, p)| p.clone())
            .collect();
        for p in peers {
            p.show(&mut show);
        }
        show
    }

    /// What TCP knows of all connections, by peer.
    pub(crate) fn links(&self) -> Vec<LinkShow> {
        let mut peers: Vec<Arc<Peer>> = self.peers.lock().values().cloned().collect();
        peers.sort_by_key(|p| (p.local, p.nid));
        peers.iter().flat_map(|p| p.links()).collect()
    }

    /// Breaks the connections with `nid`.
    pub(crate) fn reset_peer(&self, nid: Nid) {
        let peers: Vec<Arc<Peer>> = self
            .peers
            .lock()
            .values()
            .filter(|p| p.nid == nid)
            .cloned()
            .collect();
        for p in peers {
            p.close_all(CloseReason::Reset);
        }
    }

    /// Closes everything and waits a moment for the tasks to end, so that addresses and ports are free again.
    pub(crate) async fn shutdown(&self) {
        self.stop.send_replace(true);
        self.claims.lock().clear();
        self.credits.close();
        self.half_open.close();
        self.connectors.iter().for_each(|c| c.close());
        let peers = std::mem::take(&mut *self.peers.lock());
        for peer in peers.values() {
            peer.credits.close();
            peer.router_credits.close();
            peer.close_all(CloseReason::Shutdown);
        }
        let _ = tokio::time::timeout(DRAIN, self.tasks.acquire_many(MAX_TASKS as u32)).await;
    }
}

/// Refused connections are told of no more often: whoever is refused may come again without end.
const TELL_REFUSALS: Duration = Duration::from_secs(10);

/// When a refused connection was last told of, and how many were not since.
#[derive(Default)]
struct Refusals {
    told: Option<Instant>,
    others: u64,
}

impl Refusals {
    /// One more; Some: it is to be told, with the number of those before it that were not.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|at| now < at + TELL_REFUSALS) {
            self.others += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.others))
    }
}

/// TCP's own keepalive, as the kernel's socklnd sets it: idle 30 s, every 5 s, 5 times. Failing to set it is no reason to stop.
pub(crate) fn set_keepalive(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(30));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(stream, 5);
}

/// Looks after the peers once a second, until the node is gone.
async fn tick(net: Weak<SockNet>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(net) = net.upgrade() else { return };
        let now = net.now_ms();
        if let Some(node) = net.node() {
            node.look_after();
        }
        let peers: Vec<Arc<Peer>> = net.peers.lock().values().cloned().collect();
        for peer in peers {
            if !peer.tick(now) {
                let mut all = net.peers.lock();
                // Nobody else has it (two: the table and we), and nobody can get it while we hold the table.
                if Arc::strong_count(&peer) <= 2 {
                    all.remove(&(peer.local, peer.nid));
                }
            }
        }
    }
}
