//! Recovery after a restart (`lustre/ldlm/ldlm_lib.c`, `target_queue_recovery_request`, `target_recovery_thread`).
//!
//! The clients known from before come back, replay what may be missing in the order of its transaction numbers, replay their
//! locks, and send a last ping that is answered when all are done or the time is over. Meanwhile no other client gets in.
//! What is replayed up to the last number found on disk needs no order: only what lived in memory is made again. For data on an
//! MDT that is a number of its own ([`super::StoredTransnos`]).
//!
//! A request that must wait is kept by its own handler, so that its client gets early replies; here is only its place in the
//! order. It holds no place of its service meanwhile: what it waits for must get in. Locks come after all requests: a request that is executed again must not meet locks whose holders cannot answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_osd::Batch;
use coral_wire::ldlm::{LdlmFlags, LdlmRequest};
use coral_wire::ptlrpc::{MSG_LOCK_REPLAY_DONE, MSG_REPLAY, MSG_REQ_REPLAY_DONE};
use coral_wire::{ConnectFlags, Errno, opc};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::{Export, LuTarget, TargetRequest, last_rcvd};

/// A replay with a greater transno is nonsense: the numbers after it must not run out.
const TRANSNO_MAX: u64 = u64::MAX / 2;
/// So is one that is further above all that was found at the start: no restart loses so many transactions.
const TRANSNO_AHEAD: u64 = 1 << 32;

/// A client that comes back when recovery should be over has so long.
const LATE: Duration = Duration::from_secs(10);

/// Lock replays, and request replays, of one client that wait. A Lustre client sends at most 9 of the first at a time
/// (`lock_can_replay`) and one of the second; what an earlier connection of it has left behind gives way to newer ones.
const WAITING_MAX: usize = 64;

/// How far a client is in recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// Has not come back yet.
    Missing,
    /// Connected: replays requests.
    Requests,
    /// Replays locks.
    Locks,
    /// Waits for the others.
    Done,
}

/// A client that is recovered.
struct RecoveringClient {
    progress: Progress,
    /// Transnos of its replays that wait.
    replays: BTreeSet<u64>,
}

impl RecoveringClient {
    /// A replay of it may come that is before all others.
    fn may_replay(&self) -> bool {
        match self.progress {
            Progress::Missing => true,
            Progress::Requests => self.replays.is_empty(),
            Progress::Locks | Progress::Done => false,
        }
    }
}

/// A request that waits for its turn.
struct WaitingRequest {
    cookie: u64,
    go: oneshot::Sender<ReplayTurn>,
}

/// Leave to execute; dropped = executed.
pub(crate) struct ReplayTurn {
    /// A replay: the next one follows when it is done.
    replay: Option<Arc<LuTarget>>,
}

impl Drop for ReplayTurn {
    fn drop(&mut self) {
        if let Some(target) = self.replay.take() {
            target.recovery.lock().executing = false;
            target.advance_recovery();
        }
    }
}

/// The clients that are recovered, and their requests that wait for others. Each event costs a few looks into ordered maps,
/// however many clients there are.
#[derive(Default)]
pub(super) struct Recovery {
    clients: BTreeMap<u64, RecoveringClient>,
    /// How many of them may still send a replay that is before all others.
    may_replay: usize,
    /// How many are not done.
    unfinished: usize,
    /// Clients looked at, for a test.
    #[cfg(test)]
    looked: u64,
    /// Replays not on disk yet, by transno.
    replays: BTreeMap<u64, WaitingRequest>,
    /// One of them is being executed.
    executing: bool,
    /// Lock replays, by client.
    locks: BTreeMap<u64, VecDeque<WaitingRequest>>,
    /// Last pings, answered at the end, by client.
    pings: BTreeMap<u64, WaitingRequest>,
    /// Clients with a replay that did not find the versions it had found: evicted when all requests are replayed.
    failed: BTreeSet<u64>,
    /// A known client is gone, and with it perhaps changes that others' rest on.
    gap: bool,
}

impl Recovery {
    /// These clients are expected back.
    /// `gap`: others were known too, and do not come back.
    pub(super) fn of(cookies: impl Iterator<Item = u64>, gap: bool) -> Recovery {
        let client = |cookie| {
            (
                cookie,
                RecoveringClient {
                    progress: Progress::Missing,
                    replays: BTreeSet::new(),
                },
            )
        };
        let clients: BTreeMap<u64, RecoveringClient> = cookies.map(client).collect();
        Recovery {
            may_replay: clients.len(),
            unfinished: clients.len(),
            clients,
            gap,
            ..Recovery::default()
        }
    }

    /// Changes what is known of a client, and counts it anew.
    fn change(&mut self, cookie: u64, change: impl FnOnce(&mut RecoveringClient)) {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        let Some(c) = self.clients.get_mut(&cookie) else {
            return;
        };
        self.may_replay -= usize::from(c.may_replay());
        self.unfinished -= usize::from(c.progress < Progress::Done);
        change(c);
        self.may_replay += usize::from(c.may_replay());
        self.unfinished += usize::from(c.progress < Progress::Done);
    }

    /// The client is at least so far.
    fn reached(&mut self, cookie: u64, progress: Progress) {
        self.change(cookie, |c| c.progress = c.progress.max(progress));
    }

    /// The client has connected: it begins its replay, also if it had done so before.
    fn came(&mut self, cookie: u64) {
        self.change(cookie, |c| c.progress = Progress::Requests);
    }

    /// Clients that are not so far.
    fn before(&self, progress: Progress) -> Vec<u64> {
        self.clients
            .iter()
            .filter(|(_, c)| c.progress < progress)
            .map(|(cookie, _)| *cookie)
            .collect()
    }

    /// How many clients there are, and those that are not done: whether each is back.
    pub(super) fn unfinished(&self) -> (usize, Vec<(u64, bool)>) {
        let behind = self
            .clients
            .iter()
            .filter(|(_, c)| c.progress < Progress::Done);
        (
            self.clients.len(),
            behind
                .map(|(cookie, c)| (*cookie, c.progress > Progress::Missing))
                .collect(),
        )
    }

    /// The client is gone: so is what it had to say.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.gap = true;
        self.failed.remove(&cookie);
        self.change(cookie, |c| c.progress = Progress::Done);
        for transno in self
            .clients
            .remove(&cookie)
            .into_iter()
            .flat_map(|c| c.replays)
        {
            self.replays.remove(&transno);
        }
        self.locks.remove(&cookie);
        self.pings.remove(&cookie);
    }

    fn add_replay(&mut self, transno: u64, w: WaitingRequest) {
        if !self.clients.contains_key(&w.cookie) {
            return; // evicted meanwhile
        }
        let mut too_old = None;
        self.change(w.cookie, |c| {
            too_old = (c.replays.len() >= WAITING_MAX)
                .then(|| c.replays.pop_first())
                .flatten();
            c.replays.insert(transno);
        });
        if let Some(first) = too_old {
            self.replays.remove(&first);
        }
        let cookie = w.cookie;
        // A number that two clients claim is the last one's.
        if let Some(other) = self
            .replays
            .insert(transno, w)
            .filter(|other| other.cookie != cookie)
        {
            self.change(other.cookie, |c| _ = c.replays.remove(&transno));
        }
    }

    fn add_lock(&mut self, w: WaitingRequest) {
        let waiting = self.locks.entry(w.cookie).or_default();
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(w);
    }

    /// What may go on, given how far the clients are.
    fn next(&mut self) -> RecoveryStep {
        if self.executing || self.may_replay > 0 {
            return RecoveryStep::Wait;
        }
        if let Some((transno, w)) = self.replays.pop_first() {
            self.change(w.cookie, |c| _ = c.replays.remove(&transno));
            self.executing = true;
            return RecoveryStep::Replay(w);
        }
        if let Some(cookie) = self.failed.pop_first() {
            return RecoveryStep::Evict(cookie);
        }
        if !self.locks.is_empty() {
            return RecoveryStep::Locks(
                std::mem::take(&mut self.locks)
                    .into_values()
                    .flatten()
                    .collect(),
            );
        }
        if self.unfinished == 0 {
            RecoveryStep::Finish
        } else {
            RecoveryStep::Wait
        }
    }
}

/// What recovery does next.
enum RecoveryStep {
    /// A client's move.
    Wait,
    /// This replay is executed.
    Replay(WaitingRequest),
    /// This client is evicted: not all that it did could be done again.
    Evict(u64),
    /// These locks are.
    Locks(Vec<WaitingRequest>),
    /// Recovery is over.
    Finish,
}

/// What the gate decides about a request.
pub(crate) enum RecoveryGate {
    /// Execute it now.
    Pass(TargetRequest),
    /// Not allowed before recovery is over.
    Refuse(TargetRequest, Errno),
    /// Execute it when its turn comes; when none comes, drop it.
    Wait(TargetRequest, oneshot::Receiver<ReplayTurn>),
}

impl LuTarget {
    /// Whether a request may be executed now; outside of recovery every one may that is no replay: a replay is trusted in what
    /// was checked when it was first executed.
    pub(crate) fn gate(self: &Arc<Self>, rq: TargetRequest) -> RecoveryGate {
        let (flags, opcode) = (rq.rq.body.flags, rq.rq.body.opc);
        let highest = self
            .recovered
            .tables
            .saturating_add(TRANSNO_AHEAD)
            .min(TRANSNO_MAX);
        if rq.is_replay() && (!self.in_recovery() || rq.rq.body.transno > highest) {
            return RecoveryGate::Refuse(rq, Errno::EPROTO);
        }
        if !self.in_recovery() {
            return RecoveryGate::Pass(rq);
        }
        if opcode == opc::OBD_PING {
            return self.gate_ping(rq, flags);
        }
        if is_lock_replay(&rq) {
            self.stats.replayed_locks.inc();
            return self.wait(rq, |r, w| {
                r.reached(w.cookie, Progress::Locks);
                r.add_lock(w);
            });
        }
        if flags & MSG_REPLAY != 0 {
            self.stats.replayed_requests.inc();
            if rq.replay_committed() {
                return RecoveryGate::Pass(rq);
            }
            let transno = rq.rq.body.transno;
            return self.wait(rq, |r, w| r.add_replay(transno, w));
        }
        match opcode {
            opc::MDS_DISCONNECT | opc::OST_DISCONNECT | opc::MGS_DISCONNECT | opc::LDLM_CANCEL => {
                RecoveryGate::Pass(rq)
            }
            // other MDTs, whose operations no replay depends on: what they may do now is for the MDT to say
            opc::OUT_UPDATE | opc::FLD_QUERY | opc::SEQ_QUERY
                if rq.exp.connect().has(ConnectFlags::LIGHTWEIGHT) =>
            {
                RecoveryGate::Pass(rq)
            }
            _ => RecoveryGate::Refuse(rq, Errno::EAGAIN),
        }
    }

    fn gate_ping(self: &Arc<Self>, rq: TargetRequest, flags: u32) -> RecoveryGate {
        if flags & MSG_LOCK_REPLAY_DONE != 0 {
            return self.wait(rq, |r, w| {
                r.reached(w.cookie, Progress::Done);
                r.pings.insert(w.cookie, w);
            });
        }
        if flags & MSG_REQ_REPLAY_DONE != 0 {
            self.recovery.lock().reached(rq.exp.cookie, Progress::Locks);
            self.advance_recovery();
        }
        RecoveryGate::Pass(rq)
    }

    /// Puts a request in its place, and lets go on what may.
    fn wait(
        self: &Arc<Self>,
        rq: TargetRequest,
        place: impl FnOnce(&mut Recovery, WaitingRequest),
    ) -> RecoveryGate {
        let (go, turn) = oneshot::channel();
        place(
            &mut self.recovery.lock(),
            WaitingRequest {
                cookie: rq.exp.cookie,
                go,
            },
        );
        self.advance_recovery();
        RecoveryGate::Wait(rq, turn)
    }

    /// A replay of this client did not find the versions it had found. Its other replays are still tried, each for itself;
    /// then it is evicted (`exp_vbr_failed`, `lustre/ldlm/ldlm_lib.c`).
    pub(crate) fn versions_failed(&self, exp: &Export) {
        self.recovery.lock().failed.insert(exp.cookie);
    }

    /// Whether a known client has not come back, so that changes may be missing which others rest on.
    pub(crate) fn changes_are_missing(&self) -> bool {
        self.recovery.lock().gap
    }

    /// A known client has connected again.
    pub(super) fn client_came(self: &Arc<Self>, cookie: u64) {
        self.recovery.lock().came(cookie);
        self.advance_recovery();
    }

    /// Lets go on what may: the next replay when it is certain that none with a lower number can still come, the locks when no
    /// request can, everything when all clients are done.
    pub(super) fn advance_recovery(self: &Arc<Self>) {
        while self.in_recovery() {
            let step = self.recovery.lock().next();
            match step {
                RecoveryStep::Wait => return,
                // A handler that is no more gives its turn back at once, by dropping it.
                RecoveryStep::Replay(w) => drop(w.go.send(ReplayTurn {
                    replay: Some(self.clone()),
                })),
                RecoveryStep::Evict(cookie) => self.evict(
                    cookie,
                    "not all that it did could be done again: a client before it is missing",
                ),
                RecoveryStep::Locks(all) => {
                    for w in all {
                        let _ = w.go.send(ReplayTurn { replay: None });
                    }
                }
                RecoveryStep::Finish => {
                    if self.recovering.swap(false, Relaxed) {
                        tokio::spawn(self.clone().finish_recovery());
                    }
                }
            }
        }
    }

    async fn finish_recovery(self: Arc<Self>) {
        self.all_is_done();
        self.ldlm.replay_finished();
        self.ops().clone().recovery_finished().await;
        let r = std::mem::take(&mut *self.recovery.lock());
        if r.gap {
            let mut batch = Batch::new();
            last_rcvd::put_gap(&mut batch, false);
            if let Err(error) = self.commit_local(batch) {
                tracing::error!(target = %self.cfg.name, %error, "noting that recovery is over");
            }
        }
        let exports = self.exports();
        exports.iter().for_each(|e| e.recovery_finished());
        tracing::info!(target = %self.cfg.name, clients = exports.len(), "recovery is over");
        for ping in r.pings.into_values() {
            let _ = ping.go.send(ReplayTurn { replay: None });
        }
    }
}

fn is_lock_replay(rq: &TargetRequest) -> bool {
    rq.rq.body.opc == opc::LDLM_ENQUEUE
        && LdlmRequest::decode(rq.buf(1)).is_ok_and(|r| r.flags.contains(LdlmFlags::REPLAY))
}

/// Ends recovery by the clock: first those that never came, then those that never finished, are evicted; and then, as long as it
/// goes on all the same, those that have come back meanwhile and are not done.
pub(super) async fn window(target: Weak<LuTarget>, mut stopped: watch::Receiver<bool>) {
    let Some((start, mut windows)) = target
        .upgrade()
        .map(|t| (t.started_at, t.windows.subscribe()))
    else {
        return;
    };
    let mut again = start;
    for least in std::iter::once(Progress::Requests).chain(std::iter::repeat(Progress::Done)) {
        loop {
            let w = *windows.borrow_and_update();
            let wait = if least == Progress::Requests {
                w.soft
            } else {
                w.hard.max(w.soft)
            };
            tokio::select! {
                biased;
                _ = stopped.wait_for(|s| *s) => return,
                () = tokio::time::sleep_until(again.max(start + wait)) => break,
                changed = windows.changed() => if changed.is_err() { return },
            }
        }
        let Some(target) = target.upgrade() else {
            return;
        };
        if !target.in_recovery() {
            return;
        }
        let late = target.recovery.lock().before(least);
        for cookie in late {
            target.evict(cookie, "did not recover in time");
        }
        target.advance_recovery();
        if least == Progress::Done {
            again = Instant::now() + LATE;
        }
    }
}

#[cfg(test)]
mod tests {
    use coral_lnet::{MemNet, Node, NodeConfig};
    use coral_osd::{Batch, Kv, OsdMem};
    use coral_wire::ObdConnectData;
    use futures_util::future::BoxFuture;

    use super::super::{TargetConfig, TargetKind, TargetOps, last_rcvd};
    use super::*;

    fn waiting(cookie: u64) -> (WaitingRequest, oneshot::Receiver<ReplayTurn>) {
        let (go, turn) = oneshot::channel();
        (WaitingRequest { cookie, go }, turn)
    }

    #[test]
    fn one_client_has_so_many_waiting_and_the_oldest_give_way() {
        let mut r = Recovery::of(1..=2, false);
        let (w, mut others) = waiting(2);
        r.add_lock(w);
        let (w, mut other_replay) = waiting(2);
        r.add_replay(1, w);
        let mut locks = Vec::new();
        let mut replays = Vec::new();
        for i in 0..WAITING_MAX as u64 + 3 {
            let (w, turn) = waiting(1);
            r.add_lock(w);
            locks.push(turn);
            let (w, turn) = waiting(1);
            r.add_replay(i + 2, w);
            replays.push(turn);
        }
        for kept in [&mut locks, &mut replays] {
            let dropped = |t: &mut oneshot::Receiver<ReplayTurn>| {
                t.try_recv()
                    .is_err_and(|e| e == oneshot::error::TryRecvError::Closed)
            };
            let gone: Vec<usize> = (0..kept.len()).filter(|i| dropped(&mut kept[*i])).collect();
            assert_eq!(gone, [0, 1, 2]);
        }
        assert_eq!(
            others.try_recv().err(),
            Some(oneshot::error::TryRecvError::Empty)
        );
        assert_eq!(
            other_replay.try_recv().err(),
            Some(oneshot::error::TryRecvError::Empty)
        );
        r.forget(1);
        assert_eq!((r.locks.len(), r.replays.len()), (1, 1));
        let (w, mut late) = waiting(1);
        r.add_replay(99, w);
        assert!(
            late.try_recv()
                .is_err_and(|e| e == oneshot::error::TryRecvError::Closed),
            "of a client that is gone"
        );
    }

    /// Clients come back one after another, and each replays `each` requests; the numbers go round. Returns the numbers in the
    /// order of their execution, and how often a client was looked at.
    fn recover(clients: u64, each: u64) -> (Vec<u64>, u64) {
        let mut r = Recovery::of(1..=clients, false);
        let (mut done, mut turns) = (Vec::new(), Vec::new());
        let mut send = |r: &mut Recovery, cookie, transno| {
            let (w, turn) = waiting(cookie);
            r.add_replay(transno, w);
            turns.push(turn);
        };
        for cookie in 1..=clients {
            assert!(matches!(r.next(), RecoveryStep::Wait), "not all are back");
            r.came(cookie);
            send(&mut r, cookie, cookie);
        }
        while let RecoveryStep::Replay(w) = r.next() {
            assert!(matches!(r.next(), RecoveryStep::Wait), "one at a time");
            r.executing = false;
            done.push(done.len() as u64 + 1);
            match done.len() as u64 + clients {
                next if next <= clients * each => send(&mut r, w.cookie, next),
                _ => r.reached(w.cookie, Progress::Locks),
            }
        }
        for cookie in 1..=clients {
            assert!(matches!(r.next(), RecoveryStep::Wait), "not all are done");
            r.reached(cookie, Progress::Done);
        }
        assert!(matches!(r.next(), RecoveryStep::Finish));
        (done, r.looked)
    }

    #[test]
    fn each_event_looks_at_a_few_clients_however_many_there_are() {
        for clients in [10, 10_000] {
            let (done, looked) = recover(clients, 10);
            assert_eq!(done.len() as u64, clients * 10);
            // back, 10 replays sent and 10 executed, locks, done
            assert_eq!(looked, clients * 23);
        }
    }

    /// A target that serves nothing.
    struct Idle;

    impl TargetOps for Idle {
        fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
            Ok(*asked)
        }
        fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
            Box::pin(rq.fail(Errno::EIO))
        }
        fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
            Box::pin(rq.fail(Errno::EIO))
        }
    }

    /// A target on a device that knows two clients, started with another address each time.
    async fn with_two_known(kv: &Arc<OsdMem>, start: u8) -> Arc<LuTarget> {
        let nid = format!("10.0.0.{start}@tcp").parse().expect("a NID");
        let node = Node::start(
            NodeConfig {
                nids: vec![nid],
                ..NodeConfig::default()
            },
            Some(MemNet::new()),
        )
        .await
        .expect("node");
        if start == 1 {
            let mut batch = Batch::new();
            for uuid in ["a", "b"] {
                last_rcvd::put_client(&mut batch, uuid, &ObdConnectData::default());
            }
            kv.commit(batch).wait().expect("commit");
        }
        let target = LuTarget::new(
            node,
            TargetConfig::new(TargetKind::Mdt, "t-MDT0000", 0),
            kv.clone(),
        )
        .expect("target");
        target.start(Arc::new(Idle));
        target
    }

    #[tokio::test(start_paused = true)]
    async fn that_changes_are_missing_is_known_until_a_recovery_ends() {
        let kv = Arc::new(OsdMem::new());
        let target = with_two_known(&kv, 1).await;
        assert!(!target.changes_are_missing());
        target.evict(target.exports()[0].cookie, "a test");
        assert!(target.changes_are_missing() && target.in_recovery());
        // killed before the other is back
        let target = with_two_known(&kv, 2).await;
        assert!(target.changes_are_missing() && target.exports().len() == 1);
        let b = target.exports()[0].cookie;
        target.client_came(b);
        target.recovery.lock().reached(b, Progress::Done);
        target.advance_recovery();
        while target.changes_are_missing() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!target.in_recovery());
        assert!(!with_two_known(&kv, 3).await.changes_are_missing());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_comes_back_late_and_dies_is_given_up_too() {
        let target = with_two_known(&Arc::new(OsdMem::new()), 1).await;
        let [a, b] = [0, 1].map(|i| target.exports()[i].cookie);
        target.client_came(a);
        target.client_came(b);
        target.recovery.lock().reached(b, Progress::Done);
        // A replay of the first is under way beyond the end of all windows, and the second connects again meanwhile.
        target.recovery.lock().executing = true;
        tokio::time::sleep(target.windows().hard + LATE / 2).await;
        assert!(target.export(a).is_none() && target.export(b).is_some() && target.in_recovery());
        target.client_came(b);
        drop(ReplayTurn {
            replay: Some(target.clone()),
        });
        assert!(target.in_recovery(), "it has some time");
        tokio::time::sleep(LATE).await;
        assert!(target.export(b).is_none() && !target.in_recovery());
    }
}
