//! Recovery after a restart (`lustre/ldlm/ldlm_lib.c`, `target_queue_recovery_request`, `target_recovery_thread`).
//!
//! The clients known from before come back, replay what may be missing in the order of its transaction numbers, replay their
//! locks, and send a last ping that is answered when all are done or the time is over. Meanwhile no other client gets in.
//! What is replayed up to the last number found on disk needs no order: only what lived in memory is made again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use coral_wire::ldlm::{LdlmFlags, LdlmRequest};
use coral_wire::ptlrpc::{MSG_LOCK_REPLAY_DONE, MSG_REPLAY, MSG_REQ_REPLAY_DONE, Message};
use coral_wire::{Errno, opc};
use tokio::sync::watch;

use super::export::Progress;
use super::{Target, TargetRequest};

/// Requests that wait for others during recovery.
#[derive(Default)]
pub(super) struct Recovery {
    /// Replays not on disk yet, by transno.
    replays: BTreeMap<u64, TargetRequest>,
    /// One of them is being executed.
    executing: bool,
    /// Last pings, answered at the end.
    pings: Vec<TargetRequest>,
}

/// What the gate decides about a request.
pub(crate) enum Gate {
    /// Execute it now.
    Pass(TargetRequest),
    /// Not allowed before recovery is over.
    Refuse(TargetRequest, Errno),
    /// Kept for later.
    Parked,
}

impl Target {
    /// Whether a request may be executed now; outside of recovery every one may.
    pub(crate) fn gate(self: &Arc<Self>, rq: TargetRequest) -> Gate {
        if !self.in_recovery() {
            return Gate::Pass(rq);
        }
        let (flags, opcode) = (rq.rq.body.flags, rq.rq.body.opc);
        if opcode == opc::OBD_PING {
            return self.gate_ping(rq, flags);
        }
        if is_lock_replay(&rq) {
            rq.exp.set_progress(rq.exp.progress().max(Progress::Locks));
            self.counts.replayed_locks.fetch_add(1, Relaxed);
            self.advance_recovery();
            return Gate::Pass(rq);
        }
        if flags & MSG_REPLAY != 0 {
            self.counts.replayed_requests.fetch_add(1, Relaxed);
            if rq.replay_committed() {
                return Gate::Pass(rq);
            }
            self.recovery.lock().replays.insert(rq.rq.body.transno, rq);
            self.advance_recovery();
            return Gate::Parked;
        }
        match opcode {
            opc::MDS_DISCONNECT | opc::OST_DISCONNECT | opc::MGS_DISCONNECT | opc::LDLM_CANCEL => Gate::Pass(rq),
            _ => Gate::Refuse(rq, Errno::EAGAIN),
        }
    }

    fn gate_ping(self: &Arc<Self>, rq: TargetRequest, flags: u32) -> Gate {
        if flags & MSG_LOCK_REPLAY_DONE != 0 {
            rq.exp.set_progress(Progress::Done);
            self.recovery.lock().pings.push(rq);
            self.advance_recovery();
            return Gate::Parked;
        }
        if flags & MSG_REQ_REPLAY_DONE != 0 {
            rq.exp.set_progress(rq.exp.progress().max(Progress::Locks));
            self.advance_recovery();
        }
        Gate::Pass(rq)
    }

    /// A known client has connected again.
    pub(super) fn client_came(self: &Arc<Self>) {
        self.advance_recovery();
    }

    /// Executes the next replay when it is certain that none with a lower number can still come; ends recovery when all
    /// clients are done.
    pub(super) fn advance_recovery(self: &Arc<Self>) {
        if !self.in_recovery() {
            return;
        }
        let exports = self.exports();
        let next = {
            let mut r = self.recovery.lock();
            let waiting: Vec<u64> = r.replays.values().map(|rq| rq.exp.cookie).collect();
            let certain = exports.iter().all(|e| match e.progress() {
                Progress::Missing => false,
                Progress::Requests => waiting.contains(&e.cookie),
                Progress::Locks | Progress::Done => true,
            });
            if !certain || r.executing {
                return;
            }
            let next = r.replays.pop_first();
            r.executing = next.is_some();
            next
        };
        match next {
            Some((_, rq)) => {
                tokio::spawn(self.clone().execute_replay(rq));
            }
            None if exports.iter().all(|e| e.progress() == Progress::Done) => {
                tokio::spawn(self.clone().finish_recovery());
            }
            None => {}
        }
    }

    async fn execute_replay(self: Arc<Self>, rq: TargetRequest) {
        crate::dispatch::execute(rq).await;
        self.recovery.lock().executing = false;
        self.advance_recovery();
    }

    async fn finish_recovery(self: Arc<Self>) {
        if !self.recovering.swap(false, Relaxed) {
            return;
        }
        self.ldlm.replay_finished();
        self.ops().clone().recovery_finished().await;
        let r = std::mem::take(&mut *self.recovery.lock());
        tracing::info!(target = %self.cfg.name, clients = self.exports().len(), abandoned = r.replays.len(), "recovery is over");
        for ping in r.pings {
            ping.reply(0, Message::default()).await;
        }
    }
}

fn is_lock_replay(rq: &TargetRequest) -> bool {
    rq.rq.body.opc == opc::LDLM_ENQUEUE
        && LdlmRequest::decode(rq.buf(1)).is_ok_and(|r| r.flags.contains(LdlmFlags::REPLAY))
}

/// Ends recovery by the clock: first those that never came, then those that never finished, are evicted.
pub(super) async fn window(target: Weak<Target>, mut stopped: watch::Receiver<bool>) {
    let Some((soft, hard)) = target.upgrade().map(|t| (t.cfg.recovery_soft, t.cfg.recovery_hard)) else { return };
    for (wait, least) in [(soft, Progress::Requests), (hard.saturating_sub(soft), Progress::Done)] {
        tokio::select! {
            _ = stopped.wait_for(|s| *s) => return,
            () = tokio::time::sleep(wait) => {}
        }
        let Some(target) = target.upgrade() else { return };
        if !target.in_recovery() {
            return;
        }
        for exp in target.exports().iter().filter(|e| e.progress() < least) {
            target.evict(exp.cookie, "did not recover in time");
        }
        target.advance_recovery();
    }
}
