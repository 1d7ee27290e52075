//! A client's connection to one target: what it is and what it remembers (`lustre/include/lustre_import.h`).
//!
//! [`Import`] is the shell; the state table is in [`crate::state`]. Calls are in `call.rs`, one attempt of a request in
//! `attempt.rs`, connecting in `connect.rs`, replay and reconnection in `recovery.rs`.
//!
//! # Invariants
//! - At most one driver task reconnects an import; it holds the import weakly, so a forgotten import goes away.
//! - `conn_cnt` grows with every connect request; an attempt that fails under an older count changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_lnet::{Nid, Node};
use coral_wire::connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::replay::{Lost, ReplayList};
use crate::slots::Slots;
use crate::state::{BadEvent, Event};
use crate::timeouts::Estimate;
use crate::watched::Watched;
use crate::xid::XidSource;
use crate::{ImportConfig, ImportState, Reply, RpcError, RpcStats};

/// What an import tells its owner about recovery. All methods have empty defaults.
pub trait ImportObserver: Send + Sync + 'static {
    /// The server evicted us: drop locks and caches, fail what is dirty. New requests wait until this returns.
    fn on_evicted(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
    /// A connect request is about to go out: what it asks for may be changed.
    fn asks(&self, data: &mut ObdConnectData) {
        let _ = data;
    }
    /// The server has accepted us; nothing was sent on this connection yet. Must not call the import.
    fn granted(&self, data: &ObdConnectData) {
        let _ = data;
    }
    /// The server restarted: replay every lock with [`Import::call_in_recovery`].
    fn replay_locks(&self, import: Arc<Import>) -> BoxFuture<'static, Result<(), RpcError>> {
        let _ = import;
        Box::pin(async { Ok(()) })
    }
    /// An open was replayed; the reply has its new handle. `transno` names it as in [`Import::amend_replay`].
    fn open_replayed(&self, transno: u64, reply: &Reply) {
        let _ = (transno, reply);
    }
    /// The server was restarted and has lost acknowledged changes of these files, which are not kept here either.
    fn changes_lost(&self, lost: Lost) {
        let _ = lost;
    }
    /// Whether the owner needs no connection now: it holds no locks there, and has nothing to write.
    fn is_unused(&self) -> bool {
        true
    }
    /// The connection was given up for want of use: what the server had granted is void.
    fn on_idle(&self) {}
    /// Requests flow again after a lost connection.
    fn on_recovered(&self) {}
    /// The connection is lost.
    fn on_disconnected(&self) {}
}

/// A client's connection to one target.
pub struct Import {
    pub(crate) node: Arc<Node>,
    pub(crate) cfg: ImportConfig,
    /// Target uuid, for errors.
    pub(crate) target: Arc<str>,
    /// The same, for the stopwatch.
    pub(crate) name: coral_stopwatch::Name,
    /// Our handle, which the server puts into every AST.
    pub(crate) cookie: u64,
    pub(crate) xids: Arc<XidSource>,
    pub(crate) inner: Mutex<Inner>,
    pub(crate) phase: Arc<Watched<Phase>>,
    pub(crate) in_flight: Arc<Slots>,
    pub(crate) modify: Arc<Slots>,
    /// The spare slot of closes.
    pub(crate) close: Arc<Slots>,
    pub(crate) stats: Arc<RpcStats>,
    observer: Mutex<Option<Arc<dyn ImportObserver>>>,
    born: Instant,
    /// Nanoseconds of the quickest request over this connection; `u64::MAX`: there was none.
    pub(crate) quickest_ns: AtomicU64,
    /// Milliseconds after `born` when a request was sent or answered last.
    last_used_ms: AtomicU64,
    /// Milliseconds without use after which the import disconnects; 0: it does not.
    idle_timeout_ms: AtomicU64,
}

/// What waiting calls look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) state: ImportState,
    /// Grows with each eviction.
    pub(crate) generation: u64,
    /// Connection attempt in use.
    pub(crate) conn_cnt: u32,
}

/// What changes.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: ImportState,
    pub(crate) generation: u64,
    pub(crate) conn_cnt: u32,
    /// Connect requests sent so far; `conn_cnt` is the one that was accepted.
    pub(crate) attempts: u32,
    /// The server's export cookie; 0: it does not know us.
    pub(crate) remote_handle: u64,
    /// Index into the NID list of the connection in use or tried last.
    pub(crate) nid: usize,
    pub(crate) granted: ObdConnectData,
    /// The first connect has succeeded.
    pub(crate) established: bool,
    /// A task reconnects.
    pub(crate) driver: bool,
    /// How far the last recovery came ([`crate::state::Granted::reached`]).
    pub(crate) reached: ImportState,
    /// Transno of the last request replayed in it (`imp_last_replay_transno`); `None`: it begins.
    pub(crate) last_replayed: Option<u64>,
    /// The server has refused a replay because a change of another client is missing (`imp_vbr_failed`).
    pub(crate) versions_failed: bool,
    /// Requests without reply.
    pub(crate) unreplied: BTreeSet<u64>,
    pub(crate) replay: ReplayList,
    /// Files whose changes are gone with the server and that were not told yet.
    pub(crate) lost: Lost,
    /// Service time by request portal.
    pub(crate) estimates: BTreeMap<u32, Estimate>,
}

/// What an attempt needs to know of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conn {
    pub(crate) nid: Nid,
    pub(crate) handle: u64,
    pub(crate) conn_cnt: u32,
    /// Replies match `pb_mbits`.
    pub(crate) rep_mbits: bool,
    /// Early replies and the offset rule are agreed.
    pub(crate) at: bool,
    /// Tags are agreed.
    pub(crate) tags: bool,
}

impl Import {
    /// An import in state NEW.
    pub fn new(node: Arc<Node>, cfg: ImportConfig) -> Arc<Import> {
        assert!(!cfg.nids.is_empty(), "an import needs a NID");
        let inner = Inner {
            state: ImportState::New,
            generation: 0,
            conn_cnt: 0,
            attempts: 0,
            remote_handle: 0,
            nid: 0,
            granted: ObdConnectData::default(),
            established: false,
            driver: false,
            reached: ImportState::Replay,
            last_replayed: None,
            versions_failed: false,
            unreplied: BTreeSet::new(),
            replay: ReplayList::default(),
            lost: Lost::default(),
            estimates: BTreeMap::new(),
        };
        let stats = Arc::<RpcStats>::default();
        let target = cfg.target_uuid.trim_end_matches("_UUID");
        node.metrics().attach(&[("target", target)], &stats);
        Arc::new(Import {
            cookie: node.next_cookie(),
            xids: XidSource::of(&node),
            phase: Arc::new(Watched::new(inner.phase())),
            inner: Mutex::new(inner),
            in_flight: Slots::new(cfg.max_in_flight.clamp(1, u16::MAX as usize) as u16),
            modify: Slots::new(1),
            close: Slots::new(1),
            stats,
            observer: Mutex::new(None),
            born: Instant::now(),
            quickest_ns: AtomicU64::new(u64::MAX),
            last_used_ms: AtomicU64::new(0),
            idle_timeout_ms: AtomicU64::new(cfg.idle_timeout.as_millis() as u64),
            target: cfg.target_uuid.as_str().into(),
            name: node.stopwatch().name(&cfg.target_uuid),
            node,
            cfg,
        })
    }

    /// State now.
    pub fn state(&self) -> ImportState {
        self.phase.now().state
    }

    /// What the server granted at the last connect.
    pub fn granted(&self) -> ObdConnectData {
        self.inner.lock().granted
    }

    /// Our handle: `pb_handle` of every AST for this import.
    pub fn handle_cookie(&self) -> u64 {
        self.cookie
    }

    /// Counters.
    pub fn stats(&self) -> &RpcStats {
        &self.stats
    }

    /// NID of the server we are connected to, or tried last.
    pub fn peer_nid(&self) -> Nid {
        self.cfg.nids[self.inner.lock().nid]
    }

    /// Target uuid.
    pub fn target_uuid(&self) -> &str {
        &self.cfg.target_uuid
    }

    /// The node we live on.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Sets who is told about recovery.
    pub fn set_observer(&self, o: Arc<dyn ImportObserver>) {
        *self.observer.lock() = Some(o);
    }

    pub(crate) fn observer(&self) -> Option<Arc<dyn ImportObserver>> {
        self.observer.lock().clone()
    }

    /// The in-flight limit.
    pub fn max_in_flight(&self) -> u16 {
        self.in_flight.limit()
    }

    /// Sets the in-flight limit.
    pub fn set_max_in_flight(&self, n: usize) {
        self.in_flight
            .set_limit(n.clamp(1, u16::MAX as usize) as u16);
    }

    /// The file of the open with this transno is closed, by a request that got transno `by` and is replayed as long as the open
    /// is. 0: it is not known, and the open is dropped once everything up to now is committed.
    pub fn forget_open(&self, transno: u64, by: u64) {
        self.inner.lock().replay.close(transno, by);
    }

    /// Replaces the buffers (after the body) of a request kept for replay, e.g. to put the FID and handle of the first reply
    /// into an open. Nothing happens when it is not kept any more.
    pub fn amend_replay(&self, transno: u64, bufs: Vec<Bytes>) {
        self.inner.lock().replay.amend(transno, bufs);
    }

    /// As [`Import::amend_replay`], for a part of them. `change` must not call the import.
    pub fn edit_replay(&self, transno: u64, change: impl FnOnce(&mut Vec<Bytes>)) {
        self.inner.lock().replay.edit(transno, change);
    }

    /// Requests kept for replay now.
    pub fn replayable(&self) -> usize {
        self.inner.lock().replay.len()
    }

    /// What the changes of files ([`Request::file`]) kept for replay cost, bytes.
    pub fn kept_bytes(&self) -> usize {
        self.inner.lock().replay.file_bytes()
    }

    /// Most of that, from now on; 0 at first.
    pub fn set_kept_limit(&self, bytes: usize) {
        self.inner.lock().replay.set_file_limit(bytes);
    }

    /// Highest transno the server said is committed.
    pub fn last_committed(&self) -> u64 {
        self.inner.lock().replay.last_committed()
    }

    /// Number of evictions so far: what was learned under an older number is void.
    pub fn generation(&self) -> u64 {
        self.phase.now().generation
    }

    /// Applies `event`; the new state is published to the waiting calls.
    pub(crate) fn step(&self, event: Event) -> Result<ImportState, BadEvent> {
        let mut inner = self.inner.lock();
        let next = inner.step(event)?;
        self.publish(&inner);
        Ok(next)
    }

    /// Tells the waiting calls; under the lock, so that they see the phases in order. Waking a task runs nothing.
    pub(crate) fn publish(&self, inner: &Inner) {
        self.phase.set(inner.phase());
    }

    /// An attempt under `conn_cnt` failed. Starts reconnecting unless somebody has noticed before.
    pub(crate) fn connection_lost(self: &Arc<Self>, conn_cnt: u32) {
        let state = {
            let mut inner = self.inner.lock();
            if inner.conn_cnt != conn_cnt || inner.step(Event::ConnectionLost).is_err() {
                return;
            }
            self.publish(&inner);
            inner.state
        };
        tracing::info!(target_uuid = %self.cfg.target_uuid, nid = %self.peer_nid(), "connection lost");
        if state != ImportState::Closed {
            self.start_driver();
        }
    }

    /// The connection as attempts use it.
    pub(crate) fn conn(&self) -> Conn {
        self.inner.lock().conn(&self.cfg)
    }

    /// A new xid, counted as unreplied until the guard is dropped.
    pub(crate) fn new_xid(self: &Arc<Self>) -> Unreplied {
        let mut inner = self.inner.lock();
        let xid = self.xids.next();
        inner.unreplied.insert(xid);
        Unreplied {
            xid,
            import: self.clone(),
        }
    }

    /// Seconds to wait for a reply on `portal`.
    pub(crate) fn timeout_s(&self, portal: u32) -> u32 {
        self.inner
            .lock()
            .estimates
            .entry(portal)
            .or_default()
            .timeout_s()
    }

    pub(crate) fn note_used(&self, now: Instant) {
        self.last_used_ms
            .store((now - self.born).as_millis() as u64, Ordering::Relaxed);
    }

    /// A request took so long.
    pub(crate) fn note_time(&self, took: Duration) {
        let ns = took.as_nanos() as u64;
        if ns < self.quickest_ns.load(Ordering::Relaxed) {
            self.quickest_ns.fetch_min(ns, Ordering::Relaxed);
        }
    }

    /// How long the quickest request over the connection took, which says how far the server is; zero: there was none yet.
    pub fn quickest(&self) -> Duration {
        match self.quickest_ns.load(Ordering::Relaxed) {
            u64::MAX => Duration::ZERO,
            ns => Duration::from_nanos(ns),
        }
    }

    /// Milliseconds since a request was sent or answered last.
    pub(crate) fn idle_ms(&self) -> u64 {
        (self.born.elapsed().as_millis() as u64)
            .saturating_sub(self.last_used_ms.load(Ordering::Relaxed))
    }

    /// How long nothing may use the import before it disconnects; zero: for ever.
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms.load(Ordering::Relaxed))
    }

    /// Changes that; zero brings the connection back too.
    pub fn set_idle_timeout(self: &Arc<Self>, timeout: Duration) {
        self.idle_timeout_ms
            .store(timeout.as_millis() as u64, Ordering::Relaxed);
        if timeout.is_zero() {
            self.wake();
        }
    }
}

impl Inner {
    pub(crate) fn phase(&self) -> Phase {
        Phase {
            state: self.state,
            generation: self.generation,
            conn_cnt: self.conn_cnt,
        }
    }

    pub(crate) fn step(&mut self, event: Event) -> Result<ImportState, BadEvent> {
        let next = self.state.after(event)?;
        if next == ImportState::Replay {
            self.versions_failed = false;
        }
        if next == ImportState::Evicted {
            self.generation += 1;
            let lost = self.replay.clear();
            self.lost.add(lost);
        }
        if matches!(
            next,
            ImportState::Replay | ImportState::ReplayLocks | ImportState::ReplayWait
        ) {
            self.reached = next;
        }
        self.state = next;
        Ok(next)
    }

    pub(crate) fn conn(&self, cfg: &ImportConfig) -> Conn {
        Conn {
            nid: cfg.nids[self.nid],
            handle: self.remote_handle,
            conn_cnt: self.conn_cnt,
            rep_mbits: self.granted.has2(ConnectFlags2::REP_MBITS),
            at: self.granted.has(ConnectFlags::AT),
            tags: self.granted.has(ConnectFlags::MULTIMODRPCS),
        }
    }

    /// `pb_last_xid`: everything up to it has been replied to.
    pub(crate) fn last_xid(&self, own: u64) -> u64 {
        self.unreplied
            .first()
            .copied()
            .unwrap_or(own)
            .min(own)
            .saturating_sub(1)
    }
}

/// An xid without reply so far; dropped = replied to or abandoned.
pub(crate) struct Unreplied {
    pub(crate) xid: u64,
    import: Arc<Import>,
}

impl Drop for Unreplied {
    fn drop(&mut self) {
        self.import.inner.lock().unreplied.remove(&self.xid);
    }
}
