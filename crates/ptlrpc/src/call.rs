//! Calls: a request from its caller's hands to its reply, over lost connections (`lustre/ptlrpc/client.c`).
//!
//! # Invariants
//! - A modifying request takes its slot first, then its xid.
//! - A resend keeps the xid and takes new match bits; only after EINPROGRESS is the xid new.
//! - A caller that gives up on a modifying request which may have reached the server does not free its slot: the call goes on
//!   in the background.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use coral_lnet::Nid;
use coral_metrics::Held;
use coral_stopwatch::{self as stopwatch, RpcEnd, Wait};
use coral_wire::errno::Errno;
use coral_wire::fid::Fid;
use coral_wire::ptlrpc::{MSG_REQ_REPLAY_DONE, MSG_RESENT, PtlrpcBody, opc};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::attempt::{Attempt, Ids, Outcome, Watch};
use crate::import::{Conn, Phase};
use crate::slots::{Slot, Slots};
use crate::stats::place;
use crate::{Bulk, Call, Import, ImportState, Replay, Reply, Request, RpcError};

/// Pause before a request is sent again that was answered with EINPROGRESS; grows to [`INPROGRESS_PAUSE_MAX`].
const INPROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause.
const INPROGRESS_PAUSE_MAX: Duration = Duration::from_secs(10);

impl Import {
    /// Sends a request and waits for its reply, over lost connections and restarts of the server. `Ok` also for a negative
    /// status. Dropping the future abandons the wait.
    pub async fn call(self: &Arc<Self>, rq: Request) -> Result<Reply, RpcError> {
        let progress = Arc::new(Progress::default());
        let limited = rq
            .limit
            .map(|limit| (Instant::now() + limit, self.call_of(&rq, 0)));
        let call = self.started(rq, progress.clone());
        let Some((deadline, mut late)) = limited else {
            return call.await;
        };
        // Armed on the first Pending only: the timer's own first poll comes after the call's.
        tokio::select! {
            biased;
            r = call => r,
            _ = tokio::time::sleep_until(deadline) => {
                late.xid = progress.xid.load(Ordering::Relaxed);
                Err(RpcError::Timeout(late))
            }
        }
    }

    /// The call, on the heap: that keeps the futures of its callers small, and many of them end without a request.
    fn started(self: &Arc<Self>, rq: Request, progress: Arc<Progress>) -> Started {
        let (import, mine, modifies) = (self.clone(), progress.clone(), rq.modifies);
        Started {
            progress,
            modifies,
            brings: matches!(rq.bulk, Some(Bulk::Sink { .. })),
            call: Some(Box::pin(async move { import.run(rq, &mine).await })),
        }
    }

    /// What is said of `rq` in messages, when it went with `xid`.
    pub fn call_of(&self, rq: &Request, xid: u64) -> Call {
        self.call_named(rq.opc, xid, rq.fid())
    }

    /// The same of a request that is not at hand any more.
    pub fn call_named(&self, opc: u32, xid: u64, fid: Fid) -> Call {
        Call {
            target: self.target.clone(),
            nid: self.peer_nid(),
            opc,
            xid,
            fid,
        }
    }

    /// The call, with its stopwatch.
    async fn run(self: &Arc<Self>, rq: Request, progress: &Progress) -> Result<Reply, RpcError> {
        let (begun, stopwatch) = (Instant::now(), self.node.stopwatch());
        // A server that asks another one waits for it.
        let handled = stopwatch::handled().filter(|_| stopwatch.is_on());
        let Some(mut part) = stopwatch.part(begun) else {
            return self.run_from(begun, false, rq, progress).await;
        };
        let (opc, fid) = (rq.opc, rq.fid());
        let unanswered = |watch| Unanswered {
            import: self,
            watch,
            of: (opc, fid),
            begun,
            progress,
            is_answered: false,
        };
        let mut call = std::pin::pin!(self.run_from(begun, true, rq, progress));
        let mut waiting = None;
        let done = poll_fn(|cx| {
            let polled = part.poll(call.as_mut(), cx);
            if polled.is_pending() && waiting.is_none() {
                let watch = part.watch();
                let entry = stopwatch.rpc_begins(&watch, opc, self.name, fid, begun);
                waiting = Some((entry, unanswered(watch)));
            }
            polled
        });
        let done = done.await;
        match (&mut waiting, &done) {
            (Some((_, unanswered)), _) => unanswered.is_answered = done.is_ok(),
            (None, Ok(_)) => {}
            (None, Err(_)) => drop(unanswered(part.watch())),
        }
        if let Some(handled) = handled {
            handled.waited(Wait::Server, begun, Instant::now());
        }
        done
    }

    /// The call proper. Says `sent` before the first message leaves.
    async fn run_from(
        self: &Arc<Self>,
        begun: Instant,
        timed: bool,
        rq: Request,
        progress: &Progress,
    ) -> Result<Reply, RpcError> {
        let born = rq.generation.unwrap_or_else(|| self.phase.now().generation);
        let mut held = (self.slot_for(&rq).await, self.place_for(&rq).await);
        let taken = held.1.as_ref();
        let taken = taken.map_or(0, |_| self.stats.in_flight.value() as u32);
        let places = (taken, self.in_flight.limit().into());
        let mut own = self.new_xid();
        let mut mbits = own.xid;
        let mut flags = 0;
        let mut pause = INPROGRESS_PAUSE;
        let mut attempts = 0;
        loop {
            progress.xid.store(own.xid, Ordering::Relaxed);
            let full = self.wait_full(born, &rq, own.xid);
            let conn = stopwatch::waits(Wait::Connection, full).await?;
            attempts += 1;
            progress.sent.store(true, Ordering::Relaxed);
            progress.sending(attempts, begun.elapsed());
            let tag = (held.0)
                .as_ref()
                .filter(|_| conn.tags)
                .map_or(0, |(_, tag)| *tag);
            let last_xid = self.inner.lock().last_xid(own.xid);
            let ids = Ids {
                xid: own.xid,
                mbits,
                tag,
                last_xid,
                flags,
                transno: 0,
                pre_versions: [0; 4],
            };
            let attempt = self.attempt(&rq, conn, ids);
            match attempt
                .run(Some(Watch::new(&self.phase, conn.conn_cnt)))
                .await
            {
                Outcome::Done(r) if is_not_connected(&r) => self.connection_lost(conn.conn_cnt),
                Outcome::Done(r)
                    if r.status == Errno::EINPROGRESS.status()
                        && rq.patience.is_none_or(|most| begun.elapsed() < most) =>
                {
                    // nothing of it was done, and others go on meanwhile
                    progress.sent.store(false, Ordering::Relaxed);
                    drop(held);
                    stopwatch::waits(Wait::Pause, tokio::time::sleep(pause)).await;
                    pause = (pause * 2).min(INPROGRESS_PAUSE_MAX);
                    held = (self.slot_for(&rq).await, self.place_for(&rq).await);
                    own = self.new_xid();
                    mbits = own.xid;
                    flags = 0;
                    continue;
                }
                Outcome::Done(r) => {
                    let now = Instant::now();
                    self.keep(&rq, &attempt.body(), &r, now);
                    self.answered(&rq, &r, now - begun);
                    if timed {
                        let end = self.rpc_end(&rq, &r, (begun, now), (attempts, conn.nid), places);
                        self.node.stopwatch().rpc_ended(end);
                    }
                    return Ok(*r);
                }
                Outcome::Garbage(what) => {
                    let call = self.call_of(&rq, own.xid);
                    return Err(RpcError::Proto { call, what });
                }
                Outcome::TimedOut => {
                    self.stats.timeouts.inc();
                    tracing::debug!(xid = own.xid, opc = rq.opc, nid = %conn.nid, target_uuid = %self.cfg.target_uuid, "request timed out");
                    self.connection_lost(conn.conn_cnt);
                }
                Outcome::Unsent(e) => {
                    tracing::debug!(xid = own.xid, opc = rq.opc, nid = %conn.nid, error = %e, "request not sent");
                    self.connection_lost(conn.conn_cnt);
                }
                Outcome::Superseded => {}
            }
            if rq.no_resend {
                return Err(RpcError::Unreachable(self.call_of(&rq, own.xid)));
            }
            self.stats.resent.inc();
            flags = MSG_RESENT;
            mbits = self.xids.next();
        }
    }

    /// Sends a request while the import recovers (lock replay): once, without waiting for FULL, with REQ_REPLAY_DONE.
    pub async fn call_in_recovery(self: &Arc<Self>, rq: Request) -> Result<Reply, RpcError> {
        self.call_once(&rq, MSG_REQ_REPLAY_DONE).await
    }

    /// One attempt on the present connection, whatever the state.
    pub(crate) async fn call_once(
        self: &Arc<Self>,
        rq: &Request,
        flags: u32,
    ) -> Result<Reply, RpcError> {
        let begun = Instant::now();
        let conn = self.conn();
        let own = self.new_xid();
        let last_xid = self.inner.lock().last_xid(own.xid);
        let ids = Ids {
            xid: own.xid,
            mbits: own.xid,
            tag: 0,
            last_xid,
            flags,
            transno: 0,
            pre_versions: [0; 4],
        };
        let outcome = self
            .attempt(rq, conn, ids)
            .run(Some(Watch::new(&self.phase, conn.conn_cnt)))
            .await;
        match self.outcome_of_single(outcome, conn, rq, own.xid) {
            Ok(r) => {
                self.answered(rq, &r, begun.elapsed());
                Ok(r)
            }
            Err(e) => Err(e),
        }
    }

    /// Turns the outcome of a request that is not sent again into a result; a lost connection is taken note of.
    pub(crate) fn outcome_of_single(
        self: &Arc<Self>,
        outcome: Outcome,
        conn: Conn,
        rq: &Request,
        xid: u64,
    ) -> Result<Reply, RpcError> {
        match outcome {
            Outcome::Done(r) if is_not_connected(&r) => {}
            Outcome::Done(r) => {
                self.note_reply(&r);
                return Ok(*r);
            }
            Outcome::Garbage(what) => {
                let call = self.call_of(rq, xid);
                return Err(RpcError::Proto { call, what });
            }
            Outcome::TimedOut => self.stats.timeouts.inc(),
            Outcome::Unsent(_) | Outcome::Superseded => {}
        }
        let call = self.call_of(rq, xid);
        self.connection_lost(conn.conn_cnt);
        Err(RpcError::Unreachable(call))
    }

    pub(crate) fn attempt<'a>(
        self: &'a Arc<Self>,
        request: &'a Request,
        conn: Conn,
        ids: Ids,
    ) -> Attempt<'a> {
        self.note_used(Instant::now());
        Attempt {
            node: &self.node,
            request,
            conn,
            ids,
            secflvr: (self.cfg.part as u32) << 24,
            timeout_s: self.timeout_s(request.portal),
            op_flags: 0,
            at: conn.at,
            stats: Some(&self.stats),
        }
    }

    /// The slot and tag that the request needs. Slots are the MDTs' (`mdc_get_mod_rpc_slot`): an OST's writes may be executed twice.
    async fn slot_for(&self, rq: &Request) -> Option<(Slot, u16)> {
        match rq.modifies && self.cfg.connect_opc == opc::MDS_CONNECT {
            true => Some(self.modify_slot(rq).await),
            false => None,
        }
    }

    /// A place among the requests in flight, counted. Dropped in this order: one that is free again is not counted any more.
    async fn place_for(&self, rq: &Request) -> Option<(Held<'_>, Slot)> {
        if rq.urgent {
            return None;
        }
        let place = self.take(&self.in_flight).await;
        Some((self.stats.in_flight.hold(), place))
    }

    /// A slot for a modifying request and its tag. A close has one slot more than others: what holds all the others may be
    /// waiting for a lock that goes with the close (`obd_get_mod_rpc_slot`). So has what is urgent.
    async fn modify_slot(&self, rq: &Request) -> (Slot, u16) {
        let slot = match self.modify.try_acquire() {
            Some(s) => s,
            // whichever is free first: behind many others its own would take it long after the others were free
            None if rq.opc == opc::MDS_CLOSE || rq.urgent => tokio::select! {
                biased;
                slot = self.take(&self.modify) => slot,
                spare = self.take(&self.close) => return (spare, self.modify.limit() + 1),
            },
            None => self.take(&self.modify).await,
        };
        let tag = slot.number();
        (slot, tag)
    }

    /// A slot; the wait for it is recorded.
    async fn take(&self, slots: &Arc<Slots>) -> Slot {
        match slots.try_acquire() {
            Some(s) => s,
            None => {
                let begun = Instant::now();
                let slot = stopwatch::waits(Wait::Slot, slots.acquire()).await;
                self.stats.slot_wait.record_time(begun.elapsed());
                slot
            }
        }
    }

    /// Waits until `rq` may be sent; fails when an eviction came between.
    async fn wait_full(
        self: &Arc<Self>,
        generation: u64,
        rq: &Request,
        xid: u64,
    ) -> Result<Conn, RpcError> {
        let decide = |p: Phase| {
            if p.generation != generation {
                return Some(Err(RpcError::Evicted(self.call_of(rq, xid))));
            }
            match p.state {
                ImportState::Full => Some(Ok(())),
                ImportState::Closed | ImportState::New => {
                    Some(Err(RpcError::Unreachable(self.call_of(rq, xid))))
                }
                _ => None,
            }
        };
        loop {
            let now = self.phase.now();
            if let Some(verdict) = decide(now) {
                verdict?;
                let inner = self.inner.lock();
                if inner.state == ImportState::Full {
                    return Ok(inner.conn(&self.cfg));
                }
            }
            if now.state == ImportState::Idle {
                self.wake();
                continue;
            }
            self.phase.wait_for(|p| *p != now).await;
        }
    }

    /// Takes note of what every reply tells.
    fn note_reply(&self, r: &Reply) {
        let mut inner = self.inner.lock();
        inner.replay.committed(r.body.last_committed);
        inner.replay.seen(r.transno);
    }

    /// What the stopwatch keeps of a request that was answered.
    fn rpc_end(
        &self,
        rq: &Request,
        r: &Reply,
        (begun, ended): (Instant, Instant),
        (attempts, nid): (u32, Nid),
        places: (u32, u32),
    ) -> RpcEnd {
        let offered = match &rq.bulk {
            Some(Bulk::Source { data, .. }) => data.iter().map(|d| d.len() as u64).sum(),
            _ => 0,
        };
        let got: u64 = r.bulk.iter().map(|d| d.len() as u64).sum();
        RpcEnd {
            peer: nid.0,
            target: self.name,
            xid: r.xid,
            reply_mbits: r.stamps.mbits,
            opc: rq.opc,
            fid: rq.fid(),
            begun,
            sending: r.stamps.sending,
            sent: r.stamps.sent,
            reply: r.stamps.arrived,
            ended,
            attempts,
            bulk_bytes: offered + got,
            inline_bytes: inline_bytes(rq, r),
            in_flight: places,
        }
    }

    /// Counts a request that was answered.
    fn answered(&self, rq: &Request, r: &Reply, took: Duration) {
        self.stats.answered.at(place(rq.opc)).record_time(took);
        self.note_time(took);
        if let Some(Bulk::Source { data, .. }) = &rq.bulk {
            let bytes = data.iter().map(|d| d.len() as u64).sum();
            self.stats.bulk_write.add(bytes);
        }
        if !r.bulk.is_empty() {
            let bytes = r.bulk.iter().map(|d| d.len() as u64).sum();
            self.stats.bulk_read.add(bytes);
        }
    }

    /// The final reply is here: keeps the request for replay, learns from the reply.
    fn keep(&self, rq: &Request, sent: &PtlrpcBody, r: &Reply, now: Instant) {
        self.note_used(now);
        let mut inner = self.inner.lock();
        inner
            .estimates
            .entry(rq.portal)
            .or_default()
            .measured(now, r.body.timeout);
        if r.transno != 0 {
            match rq.replay {
                Replay::No if rq.file.is_none() => inner.replay.seen(r.transno),
                // A client in the server's own process goes with it and never replays: its data are not held on to.
                _ if rq.bulk.is_some() && self.node().is_beside(inner.conn(&self.cfg).nid) => {
                    inner.replay.seen(r.transno)
                }
                kind => {
                    // A write is replayed with its data, which the server fetches again.
                    let request = match rq.bulk {
                        Some(Bulk::Sink { .. }) => Request {
                            bulk: None,
                            ..rq.clone()
                        },
                        _ => rq.clone(),
                    };
                    inner.replay.keep(
                        request,
                        *sent,
                        r.xid,
                        r.transno,
                        r.body.pre_versions,
                        kind == Replay::Open,
                    );
                }
            }
        }
        inner.replay.committed(r.body.last_committed);
    }
}

/// The server does not know us (any more).
pub(crate) fn is_not_connected(r: &Reply) -> bool {
    r.status == Errno::ENOTCONN.status() || r.status == Errno::ENODEV.status()
}

/// How far a call has come.
#[derive(Default)]
struct Progress {
    /// A message has left, or is about to.
    sent: AtomicBool,
    /// The xid it has now; 0: none yet.
    xid: AtomicU64,
    /// Times it was sent.
    attempts: AtomicU32,
    /// Nanoseconds from its beginning to the last of these.
    sending_ns: AtomicU64,
}

impl Progress {
    fn sending(&self, attempts: u32, after: Duration) {
        self.attempts.store(attempts, Ordering::Relaxed);
        let ns = after.as_nanos() as u64;
        self.sending_ns.store(ns, Ordering::Relaxed);
    }
}

/// Tells the stopwatch of a call that ends without an answer, also when it is dropped: the wait was for it.
struct Unanswered<'a> {
    import: &'a Import,
    watch: Arc<stopwatch::Watch>,
    of: (u32, Fid),
    begun: Instant,
    progress: &'a Progress,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let ended = Instant::now();
        let attempts = self.progress.attempts.load(Ordering::Relaxed);
        let sending = match attempts {
            0 => ended,
            _ => {
                self.begun + Duration::from_nanos(self.progress.sending_ns.load(Ordering::Relaxed))
            }
        };
        let end = RpcEnd {
            peer: self.import.peer_nid().0,
            target: self.import.name,
            xid: self.progress.xid.load(Ordering::Relaxed),
            reply_mbits: 0,
            opc: self.of.0,
            fid: self.of.1,
            begun: self.begun,
            sending,
            sent: sending,
            reply: ended,
            ended,
            attempts,
            bulk_bytes: 0,
            inline_bytes: 0,
            in_flight: (0, self.import.in_flight.limit().into()),
        };
        (self.import.node.stopwatch()).rpc_given_up(&self.watch, end);
    }
}

/// Bytes of a file's data that travelled within the messages: a small write is the last part of its request, a small read tells in its
/// status how many it brought.
fn inline_bytes(rq: &Request, r: &Reply) -> u32 {
    let bytes = match (&rq.bulk, rq.opc) {
        (None, opc::OST_WRITE) => rq.bufs.last().map_or(0, |b| b.len()),
        (None, opc::OST_READ) => usize::try_from(r.status).unwrap_or(0),
        _ => 0,
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// For so long a call takes bulk data that nobody wants any more: a server would send it again and again, and hold a place for it until it
/// gives up.
const UNWANTED: Duration = Duration::from_secs(60);

/// A call. When it is dropped after its request was sent, a modifying one goes on in the background, and one that brings bulk data for
/// [`UNWANTED`].
struct Started {
    progress: Arc<Progress>,
    modifies: bool,
    brings: bool,
    call: Option<BoxFuture<'static, Result<Reply, RpcError>>>,
}

impl Future for Started {
    type Output = Result<Reply, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = self.call.as_mut() else {
            return Poll::Ready(Err(RpcError::Interrupted));
        };
        let out = std::task::ready!(call.as_mut().poll(cx));
        self.call = None;
        Poll::Ready(out)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        if !self.progress.sent.load(Ordering::Relaxed) {
            return;
        }
        match tokio::runtime::Handle::try_current() {
            Ok(rt) if self.modifies => drop(rt.spawn(call)),
            Ok(rt) if self.brings => drop(rt.spawn(tokio::time::timeout(UNWANTED, call))),
            _ => {}
        }
    }
}
