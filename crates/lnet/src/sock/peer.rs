//! A peer over TCP: its connections, what waits for one, and who opens them.
//!
//! The decisions (which connection for a message, which to open next, whom to let in) are plain functions below, as
//! `ksocknal_match_tx_v3`, `ksocknal_connect` and `ksocknal_create_conn` decide them in the kernel.
//!
//! Invariants: at most one connector task per peer; a message waits only while one is running, and that one for a permit no
//! longer than for a handshake; `st` is never held while a message is sent or finished.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use coral_wire::lnet::LnetMsg;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::conn::{CloseReason, Conn};
use super::dialer::{DialAct, DialEvent, Dialer};
use super::frame::{HEAD_LEN, KEEPALIVE};
use super::hello::{ConnType, Dial, HandshakeError};
use super::tx::Tx;
use super::{For, SockNet};
use crate::gateway::GwEvent;
use crate::ni::Ni;
use crate::show::PeerNiShow;
use crate::{Limits, Nid, SendError};

/// Messages below this many bytes on the wire, headers included, are small (`min_bulk`).
const MIN_BULK: usize = 1024;
/// Pause after a lost connection race; the winner needs a few round trips.
const RACE_PAUSE: Duration = Duration::from_millis(20);

/// The connection types a message may take, best first. Never the one for incoming bulk.
fn types_for(len: usize) -> [ConnType; 2] {
    if len < MIN_BULK {
        [ConnType::Control, ConnType::BulkOut]
    } else {
        [ConnType::BulkOut, ConnType::Control]
    }
}

/// Index of the connection to send on, out of (type, bytes queued): of several the emptiest, and of those the newest.
fn choose(
    conns: impl Iterator<Item = (ConnType, u64)> + Clone,
    wanted: &[ConnType],
) -> Option<usize> {
    wanted.iter().find_map(|t| {
        let of_type = conns
            .clone()
            .enumerate()
            .filter(|(_, (ctype, _))| ctype == t);
        of_type
            .min_by_key(|(i, (_, queued))| (*queued, usize::MAX - i))
            .map(|(i, _)| i)
    })
}

/// The next type to open.
fn missing(conns: impl Iterator<Item = ConnType> + Clone) -> Option<ConnType> {
    ConnType::ALL
        .into_iter()
        .find(|t| !conns.clone().any(|c| c == *t))
}

/// What to do with a peer that wants to open a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Welcome,
    /// It shall try again later: we are connecting to it and have the higher NID, or it has enough connections.
    Later,
}

fn admit(us: Nid, peer: Nid, connecting: bool, same_type: usize, limits: &Limits) -> Admission {
    if connecting && peer < us || same_type >= limits.conns_per_type {
        Admission::Later
    } else {
        Admission::Welcome
    }
}

#[derive(Default)]
struct State {
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

impl State {
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
    st: Mutex<State>,
}

/// What kind of failure it is: who has no descriptor or memory left is itself at fault.
fn kind_of(e: &io::Error) -> io::ErrorKind {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    if ours
        .iter()
        .any(|n| e.raw_os_error() == Some(n.raw_os_error()))
    {
        io::ErrorKind::Other
    } else {
        e.kind()
    }
}

/// What a connector holds while it runs.
type Held = SmallVec<[OwnedSemaphorePermit; 2]>;

/// Where a message went in [`Peer::send`].
enum Way {
    Conn(Arc<Conn>, Tx),
    Waits,
    Failed(SendError, Tx),
    /// An answer too many.
    Dropped(Tx),
}

/// By what right a connector connects.
#[derive(Default)]
struct Ticket {
    /// Taken already, for an answer.
    permit: Option<OwnedSemaphorePermit>,
    /// Where it takes a share first, for the sake of a message in transit.
    origin: Option<Arc<Semaphore>>,
}

impl Ticket {
    /// What `dial` needs for the sake of `tx`.
    fn to(dial: &DialAct, tx: &Tx, permit: Option<OwnedSemaphorePermit>) -> Ticket {
        let origin = if matches!(dial, DialAct::Connect(_)) {
            tx.origin.clone()
        } else {
            None
        };
        Ticket { permit, origin }
    }
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

    /// Waits for what a connector holds, no longer than for a handshake. None: the node goes down.
    async fn connector(&self, origin: Option<Arc<Semaphore>>) -> Result<Option<Held>, io::Error> {
        let for_others = async {
            let mut held = Held::new();
            if let Some(origin) = origin {
                held.push(origin.acquire_owned().await.ok()?);
            }
            held.push(self.net.connector(For::Others).await?);
            Some(held)
        };
        let permit = async {
            if !self.is_ours() {
                tokio::select! {
                    biased;
                    held = for_others => return held,
                    () = self.became_ours.notified() => {}
                }
            }
            self.net
                .connector(For::Us)
                .await
                .map(|permit| Held::from_iter([permit]))
        };
        // Our own side's fault, as its kind says.
        let late = |_| io::Error::other("too many connects are under way");
        tokio::time::timeout(self.net.limits.handshake_timeout, permit)
            .await
            .map_err(late)
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

    /// Opens connections until none is missing. The dialer has said so.
    fn spawn_connector(self: &Arc<Self>, after: Duration, ticket: Ticket) {
        let me = self.clone();
        self.net.spawn(async move {
            tokio::time::sleep(after).await;
            let held = match ticket.permit {
                Some(permit) => Ok(Some(Held::from_iter([permit]))),
                None => me.connector(ticket.origin).await,
            };
            let (done, _held) = match held {
                Ok(Some(held)) => {
                    me.st.lock().dialing = true;
                    let done = me.open_in_time().await.map_err(HandshakeError::into_io);
                    me.st.lock().dialing = false;
                    (done, Some(held))
                }
                Ok(None) => return,
                Err(e) => (Err(e), None),
            };
            if let Err(e) = done {
                tracing::info!(us = %me.local, peer = %me.nid, error = %e, "cannot connect");
                me.connect_failed(e);
            }
        });
    }

    /// For the sake of others not for ever: who answers "later" again and again keeps what the connector holds.
    async fn open_in_time(self: &Arc<Self>) -> Result<(), HandshakeError> {
        if self.is_ours() {
            return self.open_missing().await;
        }
        let limit = self.net.limits.handshake_timeout * ConnType::ALL.len() as u32;
        let opened = tokio::time::timeout(limit, self.open_missing()).await;
        opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    async fn open_missing(self: &Arc<Self>) -> Result<(), HandshakeError> {
        let mut races = 0;
        while let Some(ctype) = self.next_missing() {
            let limit = self.net.limits.handshake_timeout;
            let opened = tokio::time::timeout(limit, self.dial().connect(ctype)).await;
            match opened.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
                Ok((stream, incarnation)) => {
                    races = 0;
                    let known_by = self.net.known_of_dialed(&stream)?;
                    self.add_conn(
                        Conn::new(self.clone(), ctype, None, known_by, stream),
                        incarnation,
                    );
                }
                Err(HandshakeError::Race) if races < self.net.limits.race_retries => {
                    races += 1;
                    tokio::time::sleep(RACE_PAUSE * races.min(10)).await;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn dial(&self) -> Dial {
        let net = &self.net;
        Dial {
            local: self.local,
            peer: self.nid,
            port: net.connect_port,
            secure: net.secure_ports,
            incarnation: net.incarnation,
        }
    }

    /// The type to open next; None ends the connector.
    fn next_missing(&self) -> Option<ConnType> {
        let mut st = self.st.lock();
        let next = if st.dialer.is_down() {
            None
        } else {
            st.missing()
        };
        if next.is_none() {
            st.dial(DialEvent::Complete, &self.net.limits);
        }
        next
    }

    fn connect_failed(self: &Arc<Self>, e: io::Error) {
        let (waiting, dial) = {
            let mut st = self.st.lock();
            st.error = Some((kind_of(&e), e.to_string()));
            let dial = st.dial(DialEvent::Failed, &self.net.limits);
            (std::mem::take(&mut st.waiting), dial)
        };
        for tx in waiting {
            let err = self.st.lock().unreachable(self.nid);
            tx.finish(Err(err), self);
        }
        self.follow(dial, Ticket::default());
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

const _: () = assert!(HEAD_LEN < MIN_BULK, "an ACK has to be a small message");

#[cfg(test)]
mod tests {
    use super::*;
    use ConnType::*;

    #[test]
    fn small_on_control_large_on_bulk_and_either_before_none() {
        let pick = |conns: &[(ConnType, u64)], len| {
            choose(conns.iter().copied(), &types_for(len)).map(|i| conns[i].0)
        };
        let all = [(Control, 0), (BulkIn, 0), (BulkOut, 0)];
        assert_eq!(pick(&all, 1023), Some(Control));
        assert_eq!(pick(&all, 1024), Some(BulkOut));
        assert_eq!(pick(&all[..2], 5000), Some(Control));
        assert_eq!(pick(&all[1..], 100), Some(BulkOut));
        assert_eq!(
            pick(&all[1..2], 100),
            None,
            "never on the connection for incoming bulk"
        );
    }

    #[test]
    fn several_of_a_type_share_the_load() {
        let pick = |conns: &[(ConnType, u64)]| choose(conns.iter().copied(), &types_for(1 << 20));
        assert_eq!(pick(&[(BulkOut, 10), (BulkOut, 5), (BulkOut, 7)]), Some(1));
        assert_eq!(
            pick(&[(BulkOut, 5), (BulkOut, 5)]),
            Some(1),
            "the newer one: the older may be dead"
        );
    }

    #[test]
    fn a_lack_of_descriptors_is_our_own() {
        let of = |n: rustix::io::Errno| kind_of(&io::Error::from_raw_os_error(n.raw_os_error()));
        assert_eq!(of(rustix::io::Errno::MFILE), io::ErrorKind::Other);
        assert_eq!(
            of(rustix::io::Errno::CONNREFUSED),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn opening_order() {
        assert_eq!(missing([].into_iter()), Some(Control));
        assert_eq!(missing([Control].into_iter()), Some(BulkIn));
        assert_eq!(missing([BulkIn, Control].into_iter()), Some(BulkOut));
        assert_eq!(missing([BulkOut, BulkIn, Control].into_iter()), None);
    }

    #[test]
    fn race_goes_to_the_higher_nid() {
        let (low, high): (Nid, Nid) = (
            "10.0.0.1@tcp".parse().unwrap(),
            "10.0.0.2@tcp".parse().unwrap(),
        );
        let limits = Limits::default();
        assert_eq!(admit(high, low, true, 0, &limits), Admission::Later);
        assert_eq!(admit(low, high, true, 0, &limits), Admission::Welcome);
        assert_eq!(admit(high, low, false, 0, &limits), Admission::Welcome);
        assert_eq!(
            admit(low, high, false, limits.conns_per_type, &limits),
            Admission::Later
        );
    }
}
