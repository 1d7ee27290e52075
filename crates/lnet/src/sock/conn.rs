//! One TCP connection: a queue of messages going out, a reader, and a writer for when the socket is full.
//!
//! Writing: whoever queues a message while nobody writes becomes the writer, on its own stack, without blocking. Only when
//! the socket takes no more the rest is left to the writer task. So a message usually costs one system call and no hand-over,
//! and answers to messages that came in one read are written together ([`super::cork`]).
//! Reading: one task; it delivers on its own stack.

mod reader;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

use super::admission::{Open, Place};
use super::cork;
use super::hello::ConnType;
use super::peer::Peer;
use super::stage::{Stage, StageAct, StageEvent};
use super::tcp_info::tcp_info;
use super::tx::{Burst, Tx};
use crate::show::LinkShow;
use crate::{KnownBy, Node, SendError};

/// Messages one burst takes from the queue.
const BURST_TXS: usize = 32;
/// Bytes a sender writes on its own stack before the writer task takes over, so that it does not write for others for ever.
const DIRECT_BYTES: usize = 4 << 20;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The peer closed it, or it broke.
    Reset,
    /// It made no progress.
    Timeout,
    /// The peer sent what it must not.
    BadBytes,
    /// Replaced, because the peer has a new life.
    Rebooted,
    /// This node goes down.
    Shutdown,
}

impl CloseReason {
    /// What the senders are told.
    pub(crate) fn error(self) -> SendError {
        match self {
            CloseReason::Timeout => SendError::Timeout,
            CloseReason::Shutdown => SendError::Shutdown,
            _ => SendError::PeerReset,
        }
    }
}

#[derive(Default)]
struct Out {
    queue: VecDeque<Tx>,
    stage: Stage,
    /// What the writer task finds when it begins.
    burst: Burst,
}

impl Out {
    fn handle(&mut self, event: StageEvent) -> StageAct {
        self.stage
            .handle(event)
            .expect("whoever writes knows the stage")
    }
}

/// A connection that has finished its handshake.
pub(crate) struct Conn {
    pub(crate) peer: Arc<Peer>,
    pub(crate) ctype: ConnType,
    /// We opened it.
    pub(crate) active: bool,
    /// How we know who is at the other end.
    known_by: KnownBy,
    /// Of one that the peer opened.
    place: Option<Place>,
    stream: TcpStream,
    /// Share of the peer's address in the connects for others.
    origin: Arc<Semaphore>,
    out: Mutex<Out>,
    resume: Notify,
    /// Bytes queued and not written.
    queued: AtomicU64,
    /// When bytes last went out, or when there began to be some to send; milliseconds of the node's life.
    last_tx: AtomicU64,
    last_rx: AtomicU64,
    /// When a message last came or was sent, keepalives apart.
    last_used: AtomicU64,
    rx_partial: AtomicBool,
}

/// How a write call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// On a sender's stack: tokio's idea of readiness is passed by.
    Sender,
    /// In the writer task, which waits by tokio's readiness and so has to keep it true.
    Task,
}

/// How a round of writing ended.
#[derive(PartialEq, Eq)]
enum Pumped {
    /// All is written; nobody writes any more.
    Idle,
    /// There is more.
    Full,
    /// The connection was closed.
    Closed(CloseReason),
}

impl Conn {
    /// `place`: of one that the peer opened.
    pub(crate) fn new(
        peer: Arc<Peer>,
        ctype: ConnType,
        place: Option<Place>,
        known_by: KnownBy,
        stream: TcpStream,
    ) -> Arc<Conn> {
        let now = peer.net.now_ms();
        super::set_keepalive(&stream);
        let origin = peer.net.origin(stream.peer_addr().ok().map(|a| a.ip()));
        let conn = Arc::new(Conn {
            peer,
            ctype,
            active: place.is_none(),
            known_by,
            place,
            stream,
            origin,
            out: Mutex::default(),
            resume: Notify::new(),
            queued: AtomicU64::new(0),
            last_tx: AtomicU64::new(now),
            last_rx: AtomicU64::new(now),
            last_used: AtomicU64::new(now),
            rx_partial: AtomicBool::new(false),
        });
        if let Some(place) = &conn.place {
            place.held_by(Arc::downgrade(&conn) as Weak<dyn Open>);
        }
        conn
    }

    /// Starts the reader and the writer.
    pub(crate) fn start(self: &Arc<Self>, node: Arc<Node>) {
        let net = self.peer.net.clone();
        let (me, task) = (self.clone(), net.task());
        net.runtime.spawn(async move {
            let _task = task;
            me.read_all(&node).await;
        });
        let (me, task) = (self.clone(), net.task());
        net.runtime.spawn(async move {
            let _task = task;
            me.write_deferred().await;
        });
    }

    /// Bytes queued and not written.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Queues a message and, when nobody writes, writes it here and now. Gives it back when the connection is closed.
    #[allow(
        clippy::result_large_err,
        reason = "the message itself, in the rare case"
    )]
    pub(crate) fn send(self: &Arc<Self>, tx: Tx) -> Result<(), Tx> {
        {
            let mut out = self.out.lock();
            if out.stage.closed().is_some() {
                return Err(tx);
            }
            // What answers the peer holds no credit of ours: whoever asks and does not read must not fill our memory.
            if (tx.response || tx.is_noop())
                && out.queue.len() >= self.peer.net.limits.responses_per_peer
            {
                drop(out);
                self.overrun(tx);
                return Ok(());
            }
            if !tx.is_noop() {
                self.last_used
                    .store(self.peer.net.now_ms(), Ordering::Relaxed);
            }
            self.queued.fetch_add(tx.len() as u64, Ordering::Relaxed);
            out.queue.push_back(tx);
            if out.handle(StageEvent::Queued) != StageAct::Write {
                return Ok(());
            }
            self.last_tx
                .store(self.peer.net.now_ms(), Ordering::Relaxed);
        }
        if !cork::holds(self) {
            self.write_now();
        }
        Ok(())
    }

    /// Writes on this stack. Only for whom the queueing of a message said so.
    pub(super) fn write_now(&self) {
        match self.pump(By::Sender) {
            Pumped::Full => {
                self.peer.net.stats.deferred_writes.inc();
                self.resume.notify_one();
            }
            Pumped::Idle => self.peer.net.stats.direct_writes.inc(),
            Pumped::Closed(_) => {}
        }
    }

    /// An answer too many. A response is lost, as the network may lose it; the acknowledgement of a zero-copy message must
    /// not be, so that the connection ends.
    fn overrun(&self, tx: Tx) {
        self.peer.net.stats.overrun.inc();
        if tx.is_noop() {
            tracing::warn!(peer = %self.peer.nid, ctype = ?self.ctype, "connection closed: the peer does not read what it asks for");
            return self.close(CloseReason::BadBytes);
        }
        tx.abandon(&self.peer);
    }

    /// Writes until the queue is empty or the socket full. Only the one who set `writing` may call it.
    fn pump(&self, by: By) -> Pumped {
        let mut burst = std::mem::take(&mut self.out.lock().burst);
        let mut left = DIRECT_BYTES;
        loop {
            if burst.is_empty() {
                match self.refill(&mut burst) {
                    Pumped::Full => {}
                    Pumped::Idle => return Pumped::Idle,
                    Pumped::Closed(why) => {
                        // Closed between our last write and its report: those who wait for answers were not found then.
                        self.peer.answers_lost(why);
                        return Pumped::Closed(why);
                    }
                }
            }
            match self.write(&burst, by) {
                Ok(n) => {
                    self.wrote(&mut burst, n);
                    left = left.saturating_sub(n);
                    if left > 0 {
                        continue;
                    }
                    return self.park(burst);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return self.park(burst),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    tracing::debug!(peer = %self.peer.nid, ctype = ?self.ctype, error = %e, "write failed");
                    self.park(burst);
                    self.close(CloseReason::Reset);
                    return Pumped::Closed(CloseReason::Reset);
                }
            }
        }
    }

    /// Takes messages from the queue: Full when there are some, Idle when not, and then nobody writes any more.
    fn refill(&self, burst: &mut Burst) -> Pumped {
        let mut out = self.out.lock();
        if let Some(why) = out.stage.closed() {
            return Pumped::Closed(why);
        }
        while burst.count() < BURST_TXS {
            match out.queue.pop_front() {
                Some(tx) => burst.push(tx),
                None => break,
            }
        }
        if !burst.is_empty() {
            return Pumped::Full;
        }
        out.handle(StageEvent::Drained);
        // Its room is for the next burst.
        out.burst = std::mem::take(burst);
        Pumped::Idle
    }

    /// Leaves the rest of a burst to the writer task; fails it when the connection was closed meanwhile.
    fn park(&self, burst: Burst) -> Pumped {
        let why = {
            let mut out = self.out.lock();
            match out.handle(StageEvent::Full) {
                StageAct::Fail(why) => why,
                _ => {
                    out.burst = burst;
                    return Pumped::Full;
                }
            }
        };
        burst.fail(&self.peer, || why.error());
        Pumped::Closed(why)
    }

    fn write(&self, burst: &Burst, by: By) -> io::Result<usize> {
        let slices = burst.slices();
        let send = || {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            Ok(rustix::net::sendmsg(
                &self.stream,
                &slices,
                &mut SendAncillaryBuffer::default(),
                flags,
            )?)
        };
        match by {
            By::Sender => send(),
            By::Task => self.stream.try_io(Interest::WRITABLE, send),
        }
    }

    fn wrote(&self, burst: &mut Burst, n: usize) {
        self.last_tx
            .store(self.peer.net.now_ms(), Ordering::Relaxed);
        self.queued.fetch_sub(n as u64, Ordering::Relaxed);
        let stats = &self.peer.net.stats;
        burst.advance(n);
        while let Some(tx) = burst.pop_done() {
            if tx.is_ours() {
                stats.sock_sent.inc();
                stats.sent_bytes.add(tx.payload_len() as u64);
            }
            tx.finish(Ok(()), &self.peer);
        }
    }

    /// The writer task: waits until a sender found the socket full, and writes what is left.
    async fn write_deferred(&self) {
        loop {
            self.resume.notified().await;
            loop {
                if self.out.lock().stage.closed().is_some() {
                    return;
                }
                if self.stream.writable().await.is_err() {
                    return self.close(CloseReason::Reset);
                }
                match self.out.lock().handle(StageEvent::Resumed) {
                    StageAct::Write => {}
                    StageAct::Nothing | StageAct::Wake => break,
                    StageAct::Fail(_) => return,
                }
                match self.pump(By::Task) {
                    Pumped::Full => {}
                    Pumped::Idle => break,
                    Pumped::Closed(_) => return,
                }
            }
        }
    }

    /// Closes the connection, once: senders with something on it are told, the peer's state forgets it.
    pub(crate) fn close(&self, reason: CloseReason) {
        let (burst, queue) = {
            let mut out = self.out.lock();
            if out.handle(StageEvent::Close(reason)) == StageAct::Nothing {
                return;
            }
            (
                std::mem::take(&mut out.burst),
                std::mem::take(&mut out.queue),
            )
        };
        // Wakes the reader, and with the peer's end gone the writer.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
        self.resume.notify_one();
        self.peer.conn_closed(self, reason);
        burst.fail(&self.peer, || reason.error());
        for tx in queue {
            tx.finish(Err(reason.error()), &self.peer);
        }
    }

    /// Milliseconds without progress although there was something to send or to receive.
    pub(crate) fn stalled_ms(&self, now: u64) -> u64 {
        let tx = if self.out.lock().stage.is_busy() {
            now.saturating_sub(self.last_tx.load(Ordering::Relaxed))
        } else {
            0
        };
        let rx = if self.rx_partial.load(Ordering::Relaxed) {
            now.saturating_sub(self.last_rx.load(Ordering::Relaxed))
        } else {
            0
        };
        tx.max(rx)
    }

    /// What TCP knows of it; None: it is closed, or the kernel is too old to tell.
    pub(crate) fn link(&self) -> Option<LinkShow> {
        let info = tcp_info(&self.stream).ok()?;
        Some(LinkShow {
            from: self.peer.local.to_string(),
            to: self.peer.nid.to_string(),
            ports: (
                self.stream.local_addr().ok()?.port(),
                self.stream.peer_addr().ok()?.port(),
            ),
            acked_bytes: info.acked_bytes,
            waiting_bytes: self.queued_bytes() + info.waiting_bytes,
            unread_bytes: rustix::io::ioctl_fionread(&self.stream).ok()?,
            busy_us: info.busy_us,
            peer_full_us: info.peer_full_us,
            rtt_us: info.rtt_us,
            least_rtt_us: info.least_rtt_us,
        })
    }

    /// Milliseconds since the last byte went out.
    pub(crate) fn quiet_ms(&self, now: u64) -> u64 {
        now.saturating_sub(self.last_tx.load(Ordering::Relaxed))
    }
}

impl Open for Conn {
    fn unused(&self) -> Duration {
        let busy = self.rx_partial.load(Ordering::Relaxed) || self.out.lock().stage.is_busy();
        let since = self
            .peer
            .net
            .now_ms()
            .saturating_sub(self.last_used.load(Ordering::Relaxed));
        Duration::from_millis(if busy { 0 } else { since })
    }

    fn give_way(&self) {
        tracing::info!(peer = %self.peer.nid, ctype = ?self.ctype, "connection closed: its address has as many as it may have, and others are in use");
        self.close(CloseReason::Timeout);
    }
}

struct CloseOnDrop<'a>(&'a Conn);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close(CloseReason::Reset);
    }
}
