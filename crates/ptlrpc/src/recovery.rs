//! Reconnecting, replay and eviction of an import (`lustre/ptlrpc/recover.c`, `ptlrpc_import_recovery_state_machine`).

use std::sync::Arc;
use std::time::Duration;

use coral_wire::Errno;
use coral_wire::ptlrpc::{MSG_LOCK_REPLAY_DONE, MSG_REPLAY, MSG_REQ_REPLAY_DONE, MSG_RESENT, opc};

use crate::attempt::{Attempt, Ids, Watch};
use crate::config::MGS;
use crate::connect::Accepted;
use crate::replay::Kept;
use crate::state::Event;
use crate::timeouts::CONNECT_TIMEOUT_S;
use crate::{ConnectError, Import, ImportState, Replay, Request, RpcError};

impl Import {
    /// Starts the task that reconnects, unless it runs.
    pub(crate) fn start_driver(self: &Arc<Self>) {
        {
            let mut inner = self.inner.lock();
            if inner.driver || !inner.established {
                return;
            }
            inner.driver = true;
        }
        let weak = Arc::downgrade(self);
        if let Some(o) = self.observer() {
            o.on_disconnected();
        }
        tokio::spawn(async move {
            let mut pause = Duration::ZERO;
            // A server that is just starting may listen before it serves: the first attempts do not wait long for it.
            let mut patience_s = 1;
            loop {
                let Some(import) = weak.upgrade() else { return };
                if import.recover_once(patience_s).await {
                    return;
                }
                patience_s = (patience_s * 2).min(CONNECT_TIMEOUT_S);
                let cfg = &import.cfg;
                pause = (pause * 2).clamp(cfg.backoff_min, cfg.backoff_max);
                let phase = import.phase.clone();
                drop(import);
                tokio::select! {
                    biased;
                    _ = tokio::time::sleep(pause) => {}
                    _ = phase.wait_for(|p| p.state == ImportState::Closed) => {}
                }
            }
        });
    }

    /// One round: connect, recover. True when the driver is not needed any more.
    async fn recover_once(self: &Arc<Self>, patience_s: u32) -> bool {
        let state = self.state();
        if state == ImportState::Discon {
            match self.connect_all(None, patience_s).await {
                Ok(accepted) => self.recover(accepted).await,
                Err(ConnectError::Closed) => {}
                Err(e) => tracing::debug!(error = %e, "reconnect failed"),
            }
        }
        let mut inner = self.inner.lock();
        let done = matches!(inner.state, ImportState::Full | ImportState::Closed);
        inner.driver = !done;
        drop(inner);
        if done
            && let Some(o) = self
                .observer()
                .filter(|_| self.state() == ImportState::Full)
        {
            o.on_recovered();
        }
        done
    }

    /// From the state a connect reply led to, up to FULL; any failure leaves the import disconnected.
    pub(crate) async fn recover(self: &Arc<Self>, accepted: Accepted) {
        let mut state = accepted.state;
        loop {
            let event = match state {
                ImportState::Replay => match self.replay_requests(accepted.last_committed).await {
                    Ok(()) => Event::RequestsReplayed,
                    Err(_) => Event::ConnectionLost,
                },
                // it is about to evict us; locks of ours would be in others' way (`__ldlm_replay_locks`)
                ImportState::ReplayLocks if self.inner.lock().versions_failed => {
                    Event::LocksReplayed
                }
                ImportState::ReplayLocks => match self.replay_locks().await {
                    Ok(()) => Event::LocksReplayed,
                    Err(_) => Event::ConnectionLost,
                },
                ImportState::ReplayWait => match self.final_ping().await {
                    Ok(()) => Event::ServerRecovered,
                    Err(_) => Event::ConnectionLost,
                },
                ImportState::Evicted => {
                    self.stats.evictions.inc();
                    match self.cfg.target_uuid.as_str() {
                        // it keeps no clients over a restart, and nothing of theirs
                        MGS => {
                            tracing::info!(nid = %self.peer_nid(), "connected to the MGS anew; the configuration is read again")
                        }
                        target_uuid => {
                            tracing::warn!(target_uuid, nid = %self.peer_nid(), "evicted by the server: locks and open files there are void")
                        }
                    }
                    if let Some(o) = self.observer() {
                        o.on_evicted().await;
                    }
                    self.tell_lost();
                    Event::Invalidated
                }
                ImportState::Recover => Event::Resent,
                _ => return,
            };
            state = match self.step(event) {
                Ok(s) => s,
                // Something else has moved the import meanwhile: it starts over from there.
                Err(_) => return,
            };
        }
    }

    /// Sends every kept request again, one after another in transno order; after a reconnect to a server that is still in the
    /// same recovery only what it has not answered (`ptlrpc_replay_next`).
    async fn replay_requests(self: &Arc<Self>, committed: u64) -> Result<(), RpcError> {
        let (kept, before) = {
            let mut inner = self.inner.lock();
            let lost = inner.replay.lost(committed);
            inner.lost.add(lost);
            (inner.replay.replay_from(committed), inner.last_replayed)
        };
        // The first may be there already: its reply was lost with the connection.
        let mut again = if before.is_some() { MSG_RESENT } else { 0 };
        for k in kept.into_iter().filter(|k| k.transno > before.unwrap_or(0)) {
            let done = self.replay_one(&k, std::mem::take(&mut again)).await?;
            let mut inner = self.inner.lock();
            inner.last_replayed = Some(k.transno);
            if !done {
                inner.lost.files.extend(k.request.fids());
            }
        }
        self.tell_lost();
        Ok(())
    }

    fn tell_lost(&self) {
        let lost = std::mem::take(&mut self.inner.lock().lost);
        if let Some(o) = self.observer().filter(|_| !lost.is_empty()) {
            o.changes_lost(lost);
        }
    }

    /// False when the server could not do it. `again`: [`MSG_RESENT`] or nothing.
    async fn replay_one(self: &Arc<Self>, k: &Kept, again: u32) -> Result<bool, RpcError> {
        let conn = self.conn();
        let mbits = k.body.mbits & !(crate::xid::XID_STEP - 1);
        let mbits = if mbits == 0 { k.xid } else { mbits };
        let ids = Ids {
            xid: k.xid,
            mbits,
            tag: k.body.tag,
            last_xid: k.body.last_xid,
            flags: MSG_REPLAY | again,
            transno: k.transno,
            pre_versions: k.pre_versions,
        };
        let attempt: Attempt<'_> = self.attempt(&k.request, conn, ids);
        let outcome = attempt
            .run(Some(Watch::new(&self.phase, conn.conn_cnt)))
            .await;
        let reply = self.outcome_of_single(outcome, conn, &k.request, k.xid)?;
        self.stats.replayed.inc();
        if reply.status == Errno::EOVERFLOW.status() {
            self.inner.lock().versions_failed = true;
            tracing::warn!(
                target_uuid = %self.cfg.target_uuid, xid = k.xid, transno = k.transno, opc = k.request.opc,
                "a change is lost: the server was restarted, and a client whose change came before this one is missing"
            );
        } else if reply.status < 0 {
            tracing::warn!(
                xid = k.xid,
                transno = k.transno,
                opc = k.request.opc,
                status = reply.status,
                "replay failed"
            );
        }
        if k.request.replay == Replay::Open
            && let Some(o) = self.observer()
        {
            o.open_replayed(k.transno, &reply);
        }
        Ok(reply.status >= 0)
    }

    async fn replay_locks(self: &Arc<Self>) -> Result<(), RpcError> {
        match self.observer() {
            Some(o) => o.replay_locks(self.clone()).await,
            None => Ok(()),
        }
    }

    /// Tells the server that we are through, and waits until all clients are.
    async fn final_ping(self: &Arc<Self>) -> Result<(), RpcError> {
        let mut rq = Request::new(self.cfg.request_portal, opc::OBD_PING);
        rq.reply_portal = self.cfg.reply_portal;
        let reply = self
            .call_once(&rq, MSG_REQ_REPLAY_DONE | MSG_LOCK_REPLAY_DONE)
            .await?;
        match reply.status {
            0 => Ok(()),
            _ => Err(RpcError::Unreachable(self.call_of(&rq, reply.xid))),
        }
    }
}
