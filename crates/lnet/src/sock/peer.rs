//! A peer over TCP: its connections, what waits for one, and who opens them.
//!
//! The decisions (which connection for a message, which to open next, whom to let in) are in [`choice`].
//!
//! Invariants: at most one connector task per peer; a message waits only while one is running, and that one for a permit no
//! longer than for a handshake; `st` is never held while a message is sent or finished.

mod choice;
mod connector;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use coral_wire::lnet::LnetMsg;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

pub(super) use self::choice::Admission;
use self::choice::{admit, choose, missing, types_for};
use self::connector::Ticket;
use super::SockNet;
use super::conn::{CloseReason, Conn};
use super::dialer::{DialAct, DialEvent, Dialer};
use super::frame::KEEPALIVE;
use super::hello::ConnType;
use super::tx::Tx;
use crate::gateway::GwEvent;
use crate::ni::Ni;
use crate::show::{LinkShow, PeerNiShow};
use crate::{Limits, Nid, SendError};

#[derive(Default)]
struct PeerState {
    conns: Vec<Arc<Conn>>,
    /// Messages without a connection, while a connector runs.
    waiting: VecDeque<Tx>,
    dialer: Dialer,
    /// A connector has its permit and connects.
    dialing: bool,
    incarnation: Option<u64>,
    /// Why the last connect failed.
    error: Option<(io::ErrorKind, String)>,
}

impl PeerState {
    fn choose(&self, wanted: &[ConnType]) -> Option<Arc<Conn>> {
        let i = choose(
            self.conns.iter().map(|c| (c.ctype, c.queued_bytes())),
            wanted,
        )?;
        Some(self.conns[i].clone())
    }

    fn missing(&self) -> Option<ConnType> {
        missing(self.conns.iter().map(|c| c.ctype))
    }

    fn dial(&mut self, event: DialEvent, limits: &Limits) -> DialAct {
        self.dialer.handle(event, Instant::now(), limits)
    }

    fn unreachable(&self, nid: Nid) -> SendError {
        let (kind, text) = self
            .error
            .clone()
            .unwrap_or((io::ErrorKind::NotConnected, "no connection".into()));
        SendError::Unreachable {
            nid,
            source: io::Error::new(kind, text),
        }
    }
}

/// A peer that is reached over TCP from one of our NIDs.
pub(crate) struct Peer {
    pub(crate) net: Arc<SockNet>,
    pub(crate) local: Nid,
    pub(crate) nid: Nid,
    pub(crate) credits: Arc<Semaphore>,
    /// The fewest credits there were.
    pub(crate) min_credits: AtomicUsize,
    /// Credits for what it sends through us (`lpni_rtrcredits`).
    pub(crate) router_credits: Arc<Semaphore>,
    pub(crate) min_router_credits: AtomicUsize,
    /// What went through our interface and through the peer's.
    traffic: [Arc<Ni>; 2],
    /// A message of our own wanted a connection with it: from then on connects to it are for us. Told to a connector that waits.
    ours: AtomicBool,
    became_ours: Notify,
    st: Mutex<PeerState>,
}

/// Where a message went in [`Peer::send`].
enum Way {
    Conn(Arc<Conn>, Tx),
    Waits,
    Failed(SendError, Tx),
    /// An answer too many.
    Dropped(Tx),
}

impl Peer {
    pub(crate) fn new(net: Arc<SockNet>, local: Nid, nid: Nid) -> Arc<Peer> {
        let credits = Arc::new(Semaphore::new(net.limits.peer_credits));
        let router_credits = Arc::new(Semaphore::new(net.limits.router_credits()));
        let (min_credits, min_router_credits) = (
            AtomicUsize::new(net.limits.peer_credits),
            AtomicUsize::new(net.limits.router_credits()),
        );
        let node = net.node();
        let ours = node
            .as_ref()
            .and_then(|n| n.nis().iter().find(|n| n.nid == local).cloned())
            .unwrap_or_else(|| Arc::new(Ni::new(local)));
        let theirs = node.map_or_else(|| Arc::new(Ni::new(nid)), |n| n.peer_table().ni(nid));
        let traffic = [ours, theirs];
        let (ours, became_ours, st) = (AtomicBool::new(false), Notify::new(), Mutex::default());
        Arc::new(Peer {
            net,
            local,
            nid,
            credits,
            min_credits,
            router_credits,
            min_router_credits,
            traffic,
            ours,
            became_ours,
            st,
        })
    }

    /// A message is handed to it.
    pub(crate) fn count_sent(&self, msg: &LnetMsg) {
        for ni in &self.traffic {
            ni.traffic.sent.count(msg);
        }
    }

    /// A message came from it.
    pub(crate) fn count_received(&self, msg: &LnetMsg) {
        for ni in &self.traffic {
            ni.traffic.received.count(msg);
            ni.succeeded();
        }
    }

    /// A message could not be sent to it.
    pub(crate) fn failed(&self, err: &SendError) {
        if let Some(node) = self.net.node() {
            node.hop_failed(Some(self.local), self.nid, err);
        }
    }

    /// Waits for a router credit of it.
    pub(crate) async fn router_credit(&self) -> Result<OwnedSemaphorePermit, SendError> {
        let credit = self
            .router_credits
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| SendError::Shutdown)?;
        self.min_router_credits
            .fetch_min(self.router_credits.available_permits(), Ordering::Relaxed);
        Ok(credit)
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        !self.st.lock().conns.is_empty()
    }

    /// Bytes queued for it.
    pub(crate) fn queued_bytes(&self) -> u64 {
        let st = self.st.lock();
        st.conns.iter().map(|c| c.queued_bytes()).sum::<u64>()
            + st.waiting.iter().map(|tx| tx.len() as u64).sum::<u64>()
    }

    /// Adds what it knows to `show`.
    pub(crate) fn show(&self, show: &mut PeerNiShow) {
        show.tx_credits = show.tx_credits.min(self.credits.available_permits());
        show.min_tx_credits = show
            .min_tx_credits
            .min(self.min_credits.load(Ordering::Relaxed));
        show.rtr_credits = show
            .rtr_credits
            .min(self.router_credits.available_permits());
        show.min_rtr_credits = show
            .min_rtr_credits
            .min(self.min_router_credits.load(Ordering::Relaxed));
        show.tx_queued_bytes += self.queued_bytes();
        show.conns += self.st.lock().conns.len();
    }

    /// What TCP knows of its connections.
    pub(crate) fn links(&self) -> Vec<LinkShow> {
        let conns = self.st.lock().conns.clone();
        conns.iter().filter_map(|c| c.link()).collect()
    }

    /// Sends on a connection, or lets the message wait for one; the owner is told if neither is possible.
    pub(crate) fn send(self: &Arc<Self>, mut tx: Tx) {
        loop {
            let (way, dial, ticket) = self.way_for(tx);
            self.follow(dial, ticket);
            match way {
                Way::Waits => return,
                Way::Failed(e, tx) => return tx.finish(Err(e), self),
                Way::Dropped(tx) => return tx.abandon(self),
                Way::Conn(conn, out) => match conn.send(out) {
                    Ok(()) => return,
                    // It was closed a moment ago; whoever closes it takes it out of the list, as we do now.
                    Err(back) => {
                        self.st.lock().conns.retain(|c| !Arc::ptr_eq(c, &conn));
                        tx = back;
                    }
                },
            }
        }
    }

    /// Starts a connector when the dialer says so.
    fn follow(self: &Arc<Self>, dial: DialAct, ticket: Ticket) {
        if let DialAct::Connect(after) = dial {
            self.spawn_connector(after, ticket);
        }
    }

    /// Where `tx` goes, what the dialer says, and by what right a connector would connect.
    fn way_for(&self, tx: Tx) -> (Way, DialAct, Ticket) {
        let limits = &self.net.limits;
        let mut st = self.st.lock();
        if st.dialer.is_down() {
            return (
                Way::Failed(SendError::Shutdown, tx),
                DialAct::Nothing,
                Ticket::default(),
            );
        }
        if let Some(conn) = st.choose(&types_for(tx.len())) {
            let missing = st.missing().is_some();
            let dial = st.dial(DialEvent::Sent { missing }, limits);
            let ticket = Ticket::to(&dial, &tx, None);
            return (Way::Conn(conn, tx), dial, ticket);
        }
        if tx.is_noop() {
            return (
                Way::Failed(st.unreachable(self.nid), tx),
                DialAct::Nothing,
                Ticket::default(),
            );
        }
        let permit = if tx.response && !st.dialer.is_connecting() {
            self.net.connector_for_answer()
        } else {
            None
        };
        let may_connect = !tx.response || st.dialer.is_connecting() || permit.is_some();
        if !may_connect || tx.response && st.waiting.len() >= limits.responses_per_peer {
            self.net.stats.overrun.inc();
            return (Way::Dropped(tx), DialAct::Nothing, Ticket::default());
        }
        if tx.begins() {
            self.note_ours();
        }
        match st.dial(DialEvent::Wanted, limits) {
            DialAct::Refuse | DialAct::Nothing => (
                Way::Failed(st.unreachable(self.nid), tx),
                DialAct::Nothing,
                Ticket::default(),
            ),
            dial @ (DialAct::Wait | DialAct::Connect(_)) => {
                let ticket = Ticket::to(&dial, &tx, permit);
                st.waiting.push_back(tx);
                (Way::Waits, dial, ticket)
            }
        }
    }

    fn is_ours(&self) -> bool {
        self.ours.load(Ordering::Acquire)
    }

    fn note_ours(&self) {
        if !self.ours.swap(true, Ordering::AcqRel) {
            self.became_ours.notify_one();
        }
    }

    /// Sends a NOOP on the connection for acknowledgements (incoming bulk), else on any.
    pub(crate) fn send_noop(&self, cookies: [u64; 2]) {
        let conn = self
            .st
            .lock()
            .choose(&[ConnType::BulkIn, ConnType::Control, ConnType::BulkOut]);
        if let Some(conn) = conn {
            let _ = conn.send(Tx::noop(cookies));
        }
    }

    /// Whether the peer may open one more connection of a type (as we see it).
    pub(crate) fn admit(&self, ctype: ConnType) -> Admission {
        let st = self.st.lock();
        let same_type = st.conns.iter().filter(|c| c.ctype == ctype).count();
        if st.dialer.is_down() {
            Admission::Later
        } else {
            admit(
                self.local,
                self.nid,
                st.dialing,
                same_type,
                &self.net.limits,
            )
        }
    }

    /// Takes a connection that has finished its handshake, and sends on it what waited.
    pub(crate) fn add_conn(self: &Arc<Self>, conn: Arc<Conn>, incarnation: u64) {
        let Some(node) = self.net.node() else { return };
        let (old, waiting) = {
            let mut st = self.st.lock();
            if st.dialer.is_down() || self.net.is_closed() {
                return;
            }
            let rebooted = st.incarnation.is_some_and(|i| i != incarnation);
            let old = if rebooted {
                std::mem::take(&mut st.conns)
            } else {
                Vec::new()
            };
            st.incarnation = Some(incarnation);
            st.dial(
                DialEvent::Opened {
                    active: conn.active && self.is_ours(),
                },
                &self.net.limits,
            );
            st.conns.push(conn.clone());
            // A connection for incoming bulk is of no use to them.
            let waiting = if conn.ctype == ConnType::BulkIn {
                VecDeque::new()
            } else {
                std::mem::take(&mut st.waiting)
            };
            (old, waiting)
        };
        self.net.stats.conns.inc();
        let first_of_ours = conn.active && conn.ctype == ConnType::Control;
        for c in old {
            tracing::info!(us = %self.local, peer = %self.nid, "peer has a new life: closing its old connections");
            c.close(CloseReason::Rebooted);
        }
        conn.start(node.clone());
        for tx in waiting {
            self.send(tx);
        }
        // Who only has messages in transit is no business of ours.
        if first_of_ours && self.is_ours() {
            node.discover_in_background(self.nid);
        }
        if conn.ctype == ConnType::Control {
            node.check_hearsay(self.nid);
        }
        node.gateway_event(self.nid, GwEvent::Connected);
        node.ask_gateways();
    }

    /// `conn` closes itself. Opens it again when it was us who opened it, for ourselves.
    pub(crate) fn conn_closed(self: &Arc<Self>, conn: &Conn, reason: CloseReason) {
        let dial = {
            let mut st = self.st.lock();
            st.conns.retain(|c| !std::ptr::eq(&**c, conn));
            st.dial(
                DialEvent::Lost {
                    reopen: conn.active && self.is_ours() && reason != CloseReason::BadBytes,
                },
                &self.net.limits,
            )
        };
        self.answers_lost(reason);
        self.follow(dial, Ticket::default());
    }

    /// A connection broke: answers that were under way may be lost with it.
    pub(crate) fn answers_lost(&self, reason: CloseReason) {
        if let Some(node) = self.net.node() {
            node.connection_lost(self.nid, || reason.error());
        }
    }

    /// Closes all connections.
    pub(crate) fn close_all(&self, reason: CloseReason) {
        let (conns, waiting) = {
            let mut st = self.st.lock();
            if reason == CloseReason::Shutdown {
                st.dial(DialEvent::Shutdown, &self.net.limits);
            }
            let waiting = if st.dialer.is_down() {
                std::mem::take(&mut st.waiting)
            } else {
                VecDeque::new()
            };
            (st.conns.clone(), waiting)
        };
        for conn in conns {
            conn.close(reason);
        }
        for tx in waiting {
            tx.finish(Err(reason.error()), self);
        }
    }

    /// Once a second: closes what is stuck, keeps alive what is quiet. False: the peer can be forgotten.
    pub(crate) fn tick(self: &Arc<Self>, now: u64) -> bool {
        let (conns, idle) = {
            let st = self.st.lock();
            (
                st.conns.clone(),
                st.waiting.is_empty() && st.dialer.is_idle(Instant::now()),
            )
        };
        if conns.is_empty() {
            return !idle || Arc::strong_count(self) > 2;
        }
        let limits = &self.net.limits;
        for conn in conns
            .iter()
            .filter(|c| c.stalled_ms(now) > limits.sock_timeout.as_millis() as u64)
        {
            tracing::warn!(us = %self.local, peer = %self.nid, ctype = ?conn.ctype, "connection closed: no progress");
            conn.close(CloseReason::Timeout);
        }
        let quiet = conns.iter().map(|c| c.quiet_ms(now)).min().unwrap_or(0);
        if quiet > limits.keepalive_idle.as_millis() as u64 {
            self.send_noop([0, KEEPALIVE]);
        }
        true
    }
}
