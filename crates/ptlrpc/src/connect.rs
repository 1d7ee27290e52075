//! Connecting and disconnecting (`lustre/ptlrpc/import.c`, `ptlrpc_connect_import`, `ptlrpc_connect_interpret`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use coral_lnet::Nid;
use coral_wire::connect::{ConnectFlags, ObdConnectData};
use coral_wire::errno::Errno;
use coral_wire::ptlrpc::{
    MSG_CONNECT_INITIAL, MSG_CONNECT_RECONNECT, MSG_CONNECT_RECOVERING, MSG_CONNECT_REPLAYABLE,
};
use coral_wire::raw::c_array;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::attempt::{Attempt, Ids, Outcome};
use crate::import::Conn;
use crate::replay::Lost;
use crate::state::{Event, Granted};
use crate::timeouts::CONNECT_TIMEOUT_S;
use crate::{ConnectError, Import, ImportState, Reply, Request};

/// Bytes of a uuid buffer (`RMF_TGTUUID`: `obd_uuid` without its last NUL).
const UUID_LEN: usize = 39;
/// Longest wait for the answer to a disconnect.
const DISCONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A server whose connections break while it is asked whether it lives is asked again so often; then an answer is waited for.
const ASKED_AGAIN: u32 = 8;

/// A connect request the server has accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) state: ImportState,
    /// Where the server's commits stand.
    pub(crate) last_committed: u64,
}

impl Import {
    /// Connects: tries the NIDs in turn. Once connected, the import reconnects by itself for ever.
    /// On an import that is connected already, waits until it is usable.
    pub async fn connect(self: &Arc<Self>) -> Result<ObdConnectData, ConnectError> {
        self.check_way()?;
        let start = Instant::now();
        let mut pause = self.cfg.backoff_min.min(Duration::from_secs(1));
        loop {
            let established = self.inner.lock().established;
            if established {
                self.wake();
                return self.wait_connected().await;
            }
            let e = match self.connect_all(Some(start), CONNECT_TIMEOUT_S).await {
                Ok(accepted) => {
                    self.spawn_pinger();
                    self.recover(accepted).await;
                    if self.state() == ImportState::Discon {
                        self.start_driver();
                    }
                    return self.wait_connected().await;
                }
                Err(e) => e,
            };
            let (limit, busy) = match &e {
                ConnectError::Refused { status, .. } if is_busy(*status) => {
                    (self.cfg.busy_limit, true)
                }
                ConnectError::Refused { status, .. } if *status == Errno::ENODEV.status() => {
                    (self.cfg.first_connect_limit, false)
                }
                ConnectError::NoAnswer { .. } => (self.cfg.first_connect_limit, false),
                _ => return Err(e),
            };
            if start.elapsed() + pause >= limit {
                return Err(e);
            }
            tokio::time::sleep(pause).await;
            pause = if busy {
                (pause * 2).min(Duration::from_secs(5))
            } else {
                pause
            };
        }
    }

    /// Where nothing leads there is nothing to wait for.
    fn check_way(&self) -> Result<(), ConnectError> {
        let nids = &self.cfg.nids;
        match nids.first() {
            Some(first) if !nids.iter().any(|n| self.node.leads_to(*n)) => {
                let (target, us, net) = (
                    self.cfg.target_uuid.clone(),
                    self.node.nid(),
                    coral_lnet::net_name(first.net()),
                );
                Err(ConnectError::NoWay {
                    target,
                    nids: nids.clone(),
                    us,
                    net,
                })
            }
            _ => Ok(()),
        }
    }

    async fn wait_connected(&self) -> Result<ObdConnectData, ConnectError> {
        match self
            .phase
            .wait_for(|p| matches!(p.state, ImportState::Full | ImportState::Closed))
            .await
            .state
        {
            ImportState::Full => Ok(self.granted()),
            _ => Err(ConnectError::Closed),
        }
    }

    /// Resolves when the import is in use, idle or closed: nothing is being recovered.
    pub async fn recovered(&self) {
        self.phase
            .wait_for(|p| {
                matches!(
                    p.state,
                    ImportState::Full | ImportState::Idle | ImportState::Closed
                )
            })
            .await;
    }

    /// Tries every NID once, at most `most_s` seconds each. `first`: when the first connect began; the last error is returned.
    pub(crate) async fn connect_all(
        self: &Arc<Self>,
        first: Option<Instant>,
        most_s: u32,
    ) -> Result<Accepted, ConnectError> {
        let nids = self.cfg.nids.len();
        let begin = self.inner.lock().nid;
        let mut last = None;
        for i in 0..nids {
            if i > 0 && first.is_some_and(|f| f.elapsed() >= self.cfg.first_connect_limit) {
                break;
            }
            let timeout = self.attempt_timeout(first).min(most_s);
            match self.connect_to((begin + i) % nids, timeout).await {
                Ok(a) => return Ok(a),
                // A refusal counts more than the silence of another NID.
                Err(e @ ConnectError::Refused { .. }) => last = Some(e),
                Err(ConnectError::Closed) => return Err(ConnectError::Closed),
                Err(e @ ConnectError::Proto { .. }) => return Err(e),
                Err(e) => {
                    last = last
                        .filter(|l| matches!(l, ConnectError::Refused { .. }))
                        .or(Some(e))
                }
            }
        }
        let mut e = last.unwrap_or(ConnectError::Closed);
        if let (ConnectError::NoAnswer { waited_s, .. }, Some(first)) = (&mut e, first) {
            *waited_s = first.elapsed().as_secs();
        }
        Err(e)
    }

    /// Seconds for one attempt: all NIDs of a first connect share its limit.
    fn attempt_timeout(&self, first: Option<Instant>) -> u32 {
        match first {
            None => CONNECT_TIMEOUT_S,
            Some(first) => {
                let limit = self.cfg.first_connect_limit;
                let share = limit.as_secs() / self.cfg.nids.len() as u64;
                let left = limit.saturating_sub(first.elapsed()).as_secs();
                (share.min(left).max(1) as u32).min(CONNECT_TIMEOUT_S)
            }
        }
    }

    /// One connect request to NID number `i`.
    async fn connect_to(
        self: &Arc<Self>,
        i: usize,
        timeout_s: u32,
    ) -> Result<Accepted, ConnectError> {
        let (conn, initial) = {
            let mut inner = self.inner.lock();
            if inner.step(Event::ConnectSent).is_err() {
                return Err(ConnectError::Closed);
            }
            inner.attempts += 1;
            inner.conn_cnt = inner.attempts;
            self.quickest_ns.store(u64::MAX, Ordering::Relaxed);
            inner.nid = i;
            let conn = Conn {
                rep_mbits: false,
                at: false,
                tags: false,
                ..inner.conn(&self.cfg)
            };
            self.publish(&inner);
            (conn, inner.remote_handle == 0)
        };
        let rq = self.connect_request();
        let own = self.xids.next();
        let ids = Ids {
            xid: own,
            mbits: own,
            tag: 0,
            last_xid: 0,
            flags: 0,
            transno: 0,
            pre_versions: [0; 4],
        };
        let attempt = Attempt {
            op_flags: if initial {
                MSG_CONNECT_INITIAL
            } else {
                MSG_CONNECT_RECONNECT
            },
            timeout_s,
            at: false,
            ..self.attempt(&rq, conn, ids)
        };
        let result = match attempt.run(None).await {
            Outcome::Done(r) if r.status == 0 => self.accept(&r, conn, initial),
            Outcome::Done(r) => Err(ConnectError::Refused {
                target: self.cfg.target_uuid.clone(),
                nid: conn.nid,
                status: r.status,
            }),
            Outcome::Garbage(what) => Err(self.proto(conn.nid, what)),
            Outcome::Unsent(e) => Err(self.no_answer(timeout_s, e.to_string())),
            Outcome::TimedOut | Outcome::Superseded => {
                Err(self.no_answer(timeout_s, format!("{}: no answer to connect", conn.nid)))
            }
        };
        if result.is_err() {
            let _ = self.step(Event::ConnectFailed);
        }
        result
    }

    fn connect_request(&self) -> Request {
        let cfg = &self.cfg;
        let mut data = cfg.data;
        if let Some(o) = self.observer() {
            o.asks(&mut data);
        }
        let mut rq = Request::new(cfg.request_portal, cfg.connect_opc)
            .push_bytes(Bytes::copy_from_slice(&c_array::<UUID_LEN>(
                cfg.target_uuid.as_bytes(),
            )))
            .push_bytes(Bytes::copy_from_slice(&c_array::<UUID_LEN>(
                cfg.client_uuid.as_bytes(),
            )))
            .push_bytes(Bytes::copy_from_slice(&self.cookie.to_le_bytes()))
            .push(&data)
            .push_empty();
        rq.reply_portal = cfg.reply_portal;
        rq
    }

    /// The server said yes: checks what it granted and moves on.
    fn accept(
        self: &Arc<Self>,
        r: &Reply,
        conn: Conn,
        initial: bool,
    ) -> Result<Accepted, ConnectError> {
        let granted = ObdConnectData::decode_any(r.msg.buf(1))
            .map_err(|e| self.proto(conn.nid, e.to_string()))?;
        self.check_granted(&granted, conn.nid)?;
        let ops = r.body.op_flags;
        // Slots first: calls go out as soon as the state is published.
        self.modify
            .set_limit(modify_limit(&granted, self.cfg.max_modify));
        if let Some(o) = self.observer() {
            o.granted(&granted);
        }
        let state = {
            let mut inner = self.inner.lock();
            if inner.conn_cnt != conn.conn_cnt {
                return Err(ConnectError::Closed);
            }
            let event = Event::Connected(Granted {
                initial,
                reconnect: ops & MSG_CONNECT_RECONNECT != 0,
                recovering: ops & (MSG_CONNECT_RECOVERING | MSG_CONNECT_REPLAYABLE)
                    == MSG_CONNECT_RECOVERING | MSG_CONNECT_REPLAYABLE,
                same_handle: inner.remote_handle == r.body.handle,
                reached: inner.reached,
            });
            let untold = std::mem::take(&mut inner.lost);
            let state = inner.step(event).map_err(|_| ConnectError::Closed)?;
            // The same server still has what it acknowledged, also when it has forgotten us.
            let lost = if inner.granted.instance == granted.instance {
                Lost::default()
            } else {
                std::mem::take(&mut inner.lost)
            };
            inner.lost = untold;
            inner.lost.add(lost);
            if initial {
                // nothing is kept, and the server may have lost its numbers meanwhile
                let _ = inner.replay.clear();
            }
            let back = ops & MSG_CONNECT_RECONNECT != 0 && inner.remote_handle == r.body.handle;
            if state == ImportState::Replay {
                inner.last_replayed = back.then(|| inner.last_replayed.unwrap_or(0));
            }
            inner.remote_handle = r.body.handle;
            inner.granted = granted;
            inner.established = true;
            self.publish(&inner);
            state
        };
        self.stats.connects.inc();
        tracing::debug!(target_uuid = %self.cfg.target_uuid, nid = %conn.nid, state = state.name(), "connected");
        Ok(Accepted {
            state,
            last_committed: r.body.last_committed,
        })
    }

    /// Flags we did not ask for, or values that cannot be, are a protocol error (`ptlrpc_connect_set_flags`).
    fn check_granted(&self, granted: &ObdConnectData, nid: Nid) -> Result<(), ConnectError> {
        let asked = &self.cfg.data;
        let extra = granted.connect_flags.0 & !asked.connect_flags.0;
        let extra2 = if granted.has(ConnectFlags::FLAGS2) {
            granted.connect_flags2.0 & !asked.connect_flags2.0
        } else {
            0
        };
        if extra != 0 || extra2 != 0 {
            return Err(self.proto(
                nid,
                format!("granted flags that were not asked for: {extra:#x} {extra2:#x}"),
            ));
        }
        if granted.has(ConnectFlags::BRW_SIZE) && granted.brw_size == 0 {
            return Err(self.proto(nid, "granted a bulk size of 0".into()));
        }
        Ok(())
    }

    fn proto(&self, nid: Nid, what: String) -> ConnectError {
        ConnectError::Proto {
            target: self.cfg.target_uuid.clone(),
            nid,
            what,
        }
    }

    fn no_answer(&self, waited_s: u32, last: String) -> ConnectError {
        ConnectError::NoAnswer {
            target: self.cfg.target_uuid.clone(),
            nids: self.cfg.nids.clone(),
            waited_s: waited_s as u64,
            last,
        }
    }

    /// Says goodbye to the server and closes the import. Waiting calls fail.
    pub async fn disconnect(self: &Arc<Self>) {
        if self.state() == ImportState::Full {
            let mut rq = Request::new(self.cfg.request_portal, self.cfg.disconnect_opc);
            rq.reply_portal = self.cfg.reply_portal;
            let goodbye = std::pin::pin!(self.call_once(&rq, 0));
            tokio::select! {
                biased;
                _ = goodbye => {}
                _ = tokio::time::sleep(DISCONNECT_LIMIT) => {}
            }
        }
        let _ = self.step(Event::Close);
    }

    /// Starts the task that keeps an idle import alive, and asks at once when a connection to the server breaks: a server that
    /// died has lost what it owes us, and others may be waiting for us to recover. With the node the import ends.
    fn spawn_pinger(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let interval = self.cfg.ping_interval;
        let phase = self.phase.clone();
        let (mut lost, mut ended) = (self.node.peers_lost(), self.node.ended());
        tokio::spawn(async move {
            loop {
                let broken = tokio::select! {
                    biased;
                    _ = tokio::time::sleep(interval) => None,
                    r = lost.recv() => match r {
                        Ok(nid) => Some(Some(nid)),
                        Err(RecvError::Lagged(_)) => Some(None),
                        Err(RecvError::Closed) => return,
                    },
                    _ = phase.wait_for(|p| p.state == ImportState::Closed) => return,
                    _ = ended.wait_for(|e| *e) => {
                        if let Some(import) = weak.upgrade() {
                            let _ = import.step(Event::Close);
                        }
                        return;
                    }
                };
                let Some(import) = weak.upgrade() else { return };
                let wanted = match broken {
                    None if import.leave_if_unused().await => false,
                    None => import.idle_ms() >= interval.as_millis() as u64 / 2,
                    Some(nid) => nid.is_none_or(|n| n == import.peer_nid()),
                };
                let mut again = 0;
                while wanted && import.state() == ImportState::Full {
                    tokio::select! {
                        biased;
                        _ = import.ping() => break,
                        // it may have gone to the dead peer over a connection that was thought to be whole
                        () = breaks_again(&mut lost, &import), if again < ASKED_AGAIN => again += 1,
                    }
                }
            }
        });
    }

    /// One ping; a lost connection is noticed by it.
    pub async fn ping(self: &Arc<Self>) -> bool {
        let mut rq = Request::new(self.cfg.request_portal, coral_wire::ptlrpc::opc::OBD_PING);
        rq.reply_portal = self.cfg.reply_portal;
        self.call_once(&rq, 0).await.is_ok()
    }
}

/// One more connection to the server of `import` breaks.
async fn breaks_again(lost: &mut Receiver<Nid>, import: &Arc<Import>) {
    loop {
        match lost.recv().await {
            Ok(nid) if nid != import.peer_nid() => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// The server is there and in recovery.
fn is_busy(status: i32) -> bool {
    status == Errno::EBUSY.status()
        || status == Errno::EAGAIN.status()
        || status == Errno::EALREADY.status()
}

/// Slots of modifying requests; one of those granted is left for closes.
fn modify_limit(granted: &ObdConnectData, ours: u16) -> u16 {
    match granted.has(ConnectFlags::MULTIMODRPCS) {
        true => ours.min(granted.maxmodrpcs.saturating_sub(1)).max(1),
        false => 1,
    }
}
