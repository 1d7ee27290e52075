//! Targets and imports together, over memlnd with a paused clock: resends, restarts, power loss, recovery of several clients,
//! evictions.

mod target_common;

use std::sync::Arc;
use std::time::Duration;

use coral_buffers::Payload;
use coral_ldlm::{ClientNamespace, LdlmClient};
use coral_osd::{Batch, Kv, OsdMem};
use coral_ptlrpc::{ConnectError, Import, ImportObserver, ImportState, RpcError};
use coral_wire::Wire;
use coral_wire::connect::ObdConnectData;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmRequest, LdlmType, LockDesc, Policy, ResId};
use coral_wire::ptlrpc::*;
use futures_util::future::BoxFuture;
use rand::{Rng, SeedableRng};
use target_common::*;
use tokio::time::{Instant, sleep};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn background(
    imp: &Arc<Import>,
    rq: coral_ptlrpc::Request,
) -> tokio::task::JoinHandle<Result<coral_ptlrpc::Reply, RpcError>> {
    let imp = imp.clone();
    tokio::spawn(async move { imp.call(rq).await })
}

#[tokio::test(start_paused = true)]
async fn connect_work_disconnect() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let c = w.client("10.0.0.1@tcp").await;
    let granted = c.connect().await.unwrap();
    assert_eq!((granted.maxmodrpcs, granted.instance), (8, 1));
    let r = c.call(add(5)).await.unwrap();
    assert_eq!((r.status, r.transno), (0, 1));
    assert_eq!(r.body.last_committed, 0, "not synced yet");
    // The sync runs on a thread of its own, which the paused clock does not wait for.
    for _ in 0..100 {
        sleep(secs(1)).await;
    }
    assert_eq!(
        c.call(add(6)).await.unwrap().body.last_committed,
        1,
        "the periodic sync has been there"
    );
    c.disconnect().await;
    assert_eq!(
        *s.log.gone.lock(),
        [("client-10.0.0.1@tcp".to_owned(), false)]
    );
    assert_eq!(s.target.exports().len(), 0);
    s.stop().await;
    assert!(
        !w.server(&disk).await.target.in_recovery(),
        "who has left need not come back"
    );
    assert_eq!(log_of(&disk), [5, 6]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_target_is_refused_in_time() {
    let w = World::new(1);
    let node = node(&w.mem, SERVER, 9, w.wall).await;
    let _sn = coral_server::ServerNode::start(node);
    let start = Instant::now();
    let e = w.client("10.0.0.1@tcp").await.connect().await.unwrap_err();
    assert!(
        matches!(e, ConnectError::Refused { status: -19, .. }),
        "{e}"
    );
    assert!(start.elapsed() < secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_sent_again_from_what_was_kept() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let c = w.client("10.0.0.1@tcp").await;
    c.connect().await.unwrap();
    lose(&s.node, portal::MDC_REPLY, 1.0, Some(1));
    assert_eq!(c.call(add(1)).await.unwrap().transno, 1);
    assert_eq!(log_of(&disk), [1]);
    assert_eq!(
        (
            s.target.stats().resent_replies.value(),
            s.target.stats().reconnects.value()
        ),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_resend_of_a_request_in_progress_gets_its_reply() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let c = w.client("10.0.0.1@tcp").await;
    c.connect().await.unwrap();
    // The early replies of the first attempt are lost: the client sends again while the handler runs.
    lose(&s.node, portal::MDC_REPLY, 1.0, Some(1));
    let start = Instant::now();
    c.call(slow(25)).await.unwrap();
    assert_eq!(
        start.elapsed().as_secs(),
        25,
        "the first execution answers the second sending"
    );
    assert_eq!(
        (
            *s.log.executed_slow.lock(),
            s.target.stats().duplicates.value()
        ),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_killed_server_comes_back_with_everything_acknowledged() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let (a, b) = (
        w.client("10.0.0.1@tcp").await,
        w.client("10.0.0.2@tcp").await,
    );
    a.connect().await.unwrap();
    b.connect().await.unwrap();
    for v in 1..=6 {
        if v % 2 == 0 { &a } else { &b }.call(add(v)).await.unwrap();
    }
    let opened = a.call(open()).await.unwrap();
    assert_eq!(opened.transno, 7);
    // A reply that never arrives: executed, on disk, and asked for again after the restart.
    lose(&s.node, portal::MDC_REPLY, 1.0, Some(1));
    let pending = background(&a, add(7));
    sleep(secs(1)).await;
    s.kill().await;
    let s = w.server(&disk).await;
    assert!(s.target.in_recovery());
    let late = w.client("10.0.0.3@tcp").await;
    let late = tokio::spawn(async move { late.connect().await.map(|_| late) });
    assert_eq!(pending.await.unwrap().unwrap().transno, 8);
    let next = b.call(add(8)).await.unwrap();
    assert_eq!(next.transno, 9);
    late.await.unwrap().unwrap();
    assert_eq!(log_of(&disk), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(*s.log.reconstructed.lock(), [8]);
    assert_eq!(
        *s.log.reopened.lock(),
        [7],
        "the open is replayed although nothing of it was on disk"
    );
    assert_eq!(
        (a.stats().evictions.value(), b.stats().evictions.value()),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn after_power_loss_replay_restores_the_order_of_all_clients() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let (a, b) = (
        w.client("10.0.0.1@tcp").await,
        w.client("10.0.0.2@tcp").await,
    );
    a.connect().await.unwrap();
    b.connect().await.unwrap();
    a.call(add(1)).await.unwrap();
    s.target.sync().await.unwrap();
    for v in 2..=9 {
        if v % 3 == 0 { &a } else { &b }.call(add(v)).await.unwrap();
    }
    s.kill().await;
    let disk = disk.power_loss();
    assert_eq!(log_of(&disk), [1]);
    let s = w.server(&disk).await;
    let (ra, rb) = (background(&a, add(10)), background(&b, add(11)));
    ra.await.unwrap().unwrap();
    rb.await.unwrap().unwrap();
    let log = log_of(&disk);
    assert_eq!(log[..9], [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(log.len(), 11);
    assert_eq!(s.target.stats().replayed_requests.value(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_replay_does_not_execute_it_twice() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let a = w.client("10.0.0.1@tcp").await;
    a.connect().await.unwrap();
    s.target.sync().await.unwrap();
    for v in 1..=4 {
        a.call(add(v)).await.unwrap();
    }
    s.kill().await;
    let disk = disk.power_loss();
    let s = w.server(&disk).await;
    // The connect reply passes, then two replies are lost.
    let pending = background(&a, add(5));
    while s.target.stats().replayed_requests.value() == 0 {
        sleep(Duration::from_millis(1)).await;
        if a.state() == ImportState::Replay && s.node.faults().hits() == 0 {
            lose(&s.node, portal::MDC_REPLY, 1.0, Some(2));
        }
    }
    pending.await.unwrap().unwrap();
    assert_eq!(log_of(&disk), [1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_replayed_open_does_not_push_out_the_reply_to_what_came_after_it() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let a = w.client("10.0.0.1@tcp").await;
    a.connect().await.unwrap();
    // one slot for both
    a.call(open()).await.unwrap();
    lose(&s.node, portal::MDC_REPLY, 1.0, Some(1));
    let pending = background(&a, add(2));
    sleep(secs(1)).await;
    assert_eq!(log_of(&disk), [2], "executed, and the reply is lost");
    s.kill().await;
    let s = w.server(&disk).await;
    assert_eq!(pending.await.unwrap().unwrap().transno, 2);
    assert_eq!((log_of(&disk), s.log.reopened.lock().len()), (vec![2], 1));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_come_back_is_evicted_when_the_window_closes() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let (a, b) = (
        w.client("10.0.0.1@tcp").await,
        w.client("10.0.0.2@tcp").await,
    );
    a.connect().await.unwrap();
    b.connect().await.unwrap();
    s.kill().await;
    b.node().shutdown().await;
    let s = w.server(&disk).await;
    let start = Instant::now();
    a.call(add(1)).await.unwrap();
    assert!(
        (55..80).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(
        *s.log.gone.lock(),
        [("client-10.0.0.2@tcp".to_owned(), true)]
    );
    s.stop().await;
    let s = w.server(&disk).await;
    assert_eq!(
        s.target.exports().len(),
        1,
        "the evicted one is forgotten on disk too"
    );
}

#[tokio::test(start_paused = true)]
async fn what_commits_after_its_client_was_evicted_leaves_no_reply_behind() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let c = w.client("10.0.0.1@tcp").await;
    c.connect().await.unwrap();
    c.call(add(1)).await.unwrap();
    assert_eq!(remembered(&disk), 2);
    let late = background(&c, late_add(2));
    sleep(secs(5)).await;
    s.target.evict(s.target.exports()[0].cookie, "a test");
    late.await.unwrap().unwrap();
    assert_eq!(log_of(&disk), [1, 2], "it was under way and is done");
    assert_eq!(remembered(&disk), 0);
}

#[tokio::test(start_paused = true)]
async fn silence_is_evicted_and_noticed() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let (a, b) = (
        w.client("10.0.0.1@tcp").await,
        w.client("10.0.0.2@tcp").await,
    );
    a.connect().await.unwrap();
    b.connect().await.unwrap();
    lose(b.node(), portal::MDS_REQUEST, 1.0, None);
    sleep(secs(200)).await;
    assert_eq!(
        *s.log.gone.lock(),
        [("client-10.0.0.2@tcp".to_owned(), true)]
    );
    assert_eq!(s.target.stats().evictions.value(), 1);
    a.call(add(1)).await.unwrap();
    b.node().faults().clear();
    sleep(secs(30)).await;
    assert_eq!(b.stats().evictions.value(), 1);
    b.call(add(2)).await.unwrap();
    assert_eq!(log_of(&disk), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn clients_of_the_same_process_are_not_waited_for() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let c = w.client("7@lo").await;
    c.connect().await.unwrap();
    c.call(add(1)).await.unwrap();
    s.kill().await;
    let s = w.server(&disk).await;
    assert!(!s.target.in_recovery());
    assert_eq!(s.target.last_committed(), 1);
    let new = w.client("8@lo").await;
    new.connect().await.unwrap();
    assert_eq!(new.call(add(2)).await.unwrap().transno, 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_starts_anew_under_its_old_name_replaces_itself() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let a = w.client("10.0.0.1@tcp").await;
    a.connect().await.unwrap();
    a.node().shutdown().await;
    let again = w.client("10.0.0.1@tcp").await;
    again.connect().await.unwrap();
    again.call(add(1)).await.unwrap();
    sleep(secs(5)).await;
    assert_eq!(
        *s.log.gone.lock(),
        [("client-10.0.0.1@tcp".to_owned(), true)]
    );
    s.kill().await;
    let s = w.server(&disk).await;
    assert_eq!(s.target.exports().len(), 1, "the new one is known on disk");
    // And once more, while the server waits for it.
    again.node().shutdown().await;
    let third = w.client("10.0.0.1@tcp").await;
    let start = Instant::now();
    third.connect().await.unwrap();
    assert!(
        start.elapsed() < secs(30),
        "nobody else is to come back: {:?}",
        start.elapsed()
    );
    third.call(add(2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn numbers_do_not_go_back_behind_what_clients_were_told() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let a = w.client("10.0.0.1@tcp").await;
    a.connect().await.unwrap();
    for _ in 0..5 {
        a.call(open()).await.unwrap();
    }
    s.target.sync().await.unwrap();
    let told = s.target.last_committed();
    assert_eq!(told, 5);
    s.kill().await;
    let s = w.server(&disk.power_loss()).await;
    assert!(s.target.last_committed() >= told);
}

/// What is done after the end of a process, by what the tables say (4 is their last number, data are on disk up to 1) and what was
/// noted since the machine started.
#[tokio::test(start_paused = true)]
async fn a_start_takes_to_be_done_what_the_tables_hold_unless_they_were_ahead() {
    let table = coral_server::target::LAST_RCVD;
    for (noted, behind, done) in [
        (0, "0", 1),
        (0, "1", 1),
        (2, "0", 4),
        (2, "1", 2),
        (2, "", 2),
        (7, "0", 7),
        (7, "1", 7),
    ] {
        let (w, disk) = (World::new(1), OsdMem::new());
        let mut b = Batch::new();
        b.put(table, "t", 4u64.to_le_bytes().to_vec());
        b.put(table, "d", 1u64.to_le_bytes().to_vec());
        b.put(
            table,
            "cclient-10.0.0.1@tcp",
            ObdConnectData::default().to_bytes(),
        );
        if !behind.is_empty() {
            b.put(table, "b", behind);
        }
        disk.commit(b).wait().unwrap();
        disk.note(noted);
        let s = w.server(&disk).await;
        assert!(s.target.in_recovery());
        assert_eq!(s.target.last_committed(), done, "{noted} {behind}");
        // The next kill, before anything was replayed, changes nothing of that.
        s.kill().await;
        let s = w.server(&disk).await;
        assert_eq!(s.target.last_committed(), done, "{noted} {behind}, again");
        s.target.abort_recovery();
        sleep(secs(1)).await;
        assert!(!s.target.in_recovery());
        assert_eq!(
            disk.get(table, b"b").unwrap().as_deref(),
            Some(&b"0"[..]),
            "all is done"
        );
        s.kill().await;
        let s = w.server(&disk).await;
        let told = s.target.last_committed();
        assert!(told >= done.max(4));
        s.kill().await;
        // What was told to be committed is so after a loss of power, too.
        let s = w.server(&disk.power_loss()).await;
        assert!(s.target.last_committed() >= told);
        assert!(s.target.last_transno() >= told);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_tables_tell_is_not_noted() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let a = w.client("10.0.0.1@tcp").await;
    a.connect().await.unwrap();
    for v in 1..=5 {
        a.call(add(v)).await.unwrap();
    }
    a.call(open()).await.unwrap();
    assert_eq!(disk.noted(), 1, "that the machine is up");
    s.kill().await;
    let s = w.server(&disk).await;
    assert_eq!(
        (s.target.last_transno(), s.target.last_committed()),
        (5, 5),
        "the open is replayed"
    );
    sleep(secs(30)).await;
    assert!(!s.target.in_recovery());
    assert_eq!(s.target.last_transno(), 6);
    // The replies go, the number stays.
    s.target.evict(s.target.exports()[0].cookie, "for the test");
    s.kill().await;
    let s = w.server(&disk).await;
    assert!(s.target.exports().is_empty());
    assert!(s.target.last_transno() >= 5);
}

/// Replays a namespace's locks, as the client's targets do.
struct Replays(Arc<ClientNamespace>);

impl ImportObserver for Replays {
    fn on_evicted(&self) -> BoxFuture<'static, ()> {
        let ns = self.0.clone();
        Box::pin(async move { ns.drop_all().await })
    }
    fn replay_locks(&self, _: Arc<Import>) -> BoxFuture<'static, Result<(), RpcError>> {
        let ns = self.0.clone();
        Box::pin(async move { ns.replay_locks().await })
    }
}

async fn locker(w: &World, n: &str) -> (Arc<Import>, Arc<LdlmClient>, Arc<ClientNamespace>) {
    let imp = w.client(n).await;
    let ldlm = LdlmClient::new(imp.node());
    let ns = ldlm.namespace(imp.clone());
    imp.set_observer(Arc::new(Replays(ns.clone())));
    imp.connect().await.unwrap();
    (imp, ldlm, ns)
}

async fn lock(ns: &Arc<ClientNamespace>, res: u64, mode: LdlmMode) -> coral_ldlm::LockRef {
    let res = ResId([res, 0, 0, 0]);
    ns.enqueue(
        res,
        LdlmType::PLAIN,
        mode,
        Policy::Plain,
        LdlmFlags::empty(),
        0,
    )
    .await
    .unwrap()
    .0
}

#[tokio::test(start_paused = true)]
async fn locks_survive_a_kill_and_still_exclude() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let (a, _la, na) = locker(&w, "10.0.0.1@tcp").await;
    let (b, _lb, nb) = locker(&w, "10.0.0.2@tcp").await;
    let held = lock(&na, 1, LdlmMode::PW).await;
    let shared = (
        lock(&na, 2, LdlmMode::PR).await,
        lock(&nb, 2, LdlmMode::PR).await,
    );
    // b waits for what a holds, across the restart.
    let waits = tokio::spawn({
        let nb = nb.clone();
        async move { lock(&nb, 1, LdlmMode::PW).await }
    });
    sleep(secs(1)).await;
    s.kill().await;
    let s = w.server(&disk).await;
    let (ra, rb) = (background(&a, add(1)), background(&b, add(2)));
    ra.await.unwrap().unwrap();
    rb.await.unwrap().unwrap();
    assert_eq!(s.target.stats().replayed_locks.value(), 4);
    assert_eq!(
        (a.stats().evictions.value(), b.stats().evictions.value()),
        (0, 0)
    );
    assert!(!held.is_dead() && !shared.0.is_dead() && !waits.is_finished());
    let modes: Vec<_> = s
        .target
        .ldlm()
        .locks()
        .iter()
        .map(|l| (l.res.0[0], l.granted_mode))
        .collect();
    assert_eq!(
        modes.iter().filter(|(_, m)| *m != LdlmMode::NONE).count(),
        3,
        "{modes:?}"
    );
    drop(held);
    let got = waits.await.unwrap();
    assert!(!got.is_dead());
    drop(shared);
    let excl = lock(&na, 2, LdlmMode::EX).await;
    assert!(!excl.is_dead());
    assert_eq!(s.target.stats().evictions.value(), 0);
}

/// Replays so many locks at once, as a kernel client does.
struct ReplaysAtOnce(u64);

impl ImportObserver for ReplaysAtOnce {
    fn replay_locks(&self, import: Arc<Import>) -> BoxFuture<'static, Result<(), RpcError>> {
        let first = self.0 * 100;
        Box::pin(async move {
            let replay = |i| {
                let desc = LockDesc::new(
                    ResId([first + i, 0, 0, 0]),
                    LdlmType::PLAIN,
                    LdlmMode::PR,
                    &Policy::Plain,
                );
                let rq = LdlmRequest::enqueue(
                    LdlmFlags::REPLAY | LdlmFlags::BLOCK_GRANTED,
                    desc,
                    first + i,
                );
                let rq = coral_ptlrpc::Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
                    .push_bytes(rq.to_bytes());
                import.call_in_recovery(rq)
            };
            futures_util::future::try_join_all((0..8).map(replay))
                .await
                .map(drop)
        })
    }
}

/// More lock replays wait for the last client than the service handles at once.
#[tokio::test(start_paused = true)]
async fn what_waits_in_recovery_keeps_nobody_out() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let mut clients = Vec::new();
    for i in 1..=66 {
        let c = w.client(&format!("10.0.1.{i}@tcp")).await;
        c.set_observer(Arc::new(ReplaysAtOnce(i)));
        c.connect().await.unwrap();
        clients.push(c);
    }
    // What is left to replay of the last one waits for all others' requests.
    s.target.sync().await.unwrap();
    s.kill().await;
    let s = w.server(&disk).await;
    let mut calls: Vec<_> = clients[..65]
        .iter()
        .map(|c| background(c, add(1)))
        .collect();
    sleep(secs(20)).await;
    assert_eq!(
        s.target.stats().replayed_locks.value(),
        65 * 8,
        "all got in, and wait for the last client"
    );
    calls.push(background(&clients[65], add(2)));
    for c in calls {
        assert_eq!(c.await.unwrap().unwrap().status, 0);
    }
    let st = s.target.stats();
    assert_eq!(
        (st.evictions.value(), st.reconnects.value()),
        (0, 66),
        "early replies kept everybody waiting"
    );
    assert_eq!(s.target.ldlm().locks().len(), 66 * 8);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_answer_a_callback_is_evicted_and_its_lock_goes() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let (a, la, na) = locker(&w, "10.0.0.1@tcp").await;
    let (_b, _lb, nb) = locker(&w, "10.0.0.2@tcp").await;
    let held = lock(&na, 1, LdlmMode::PW).await;
    la.stop().await;
    let start = Instant::now();
    lock(&nb, 1, LdlmMode::PW).await;
    assert!(start.elapsed() < secs(130), "{:?}", start.elapsed());
    assert_eq!(
        *s.log.gone.lock(),
        [("client-10.0.0.1@tcp".to_owned(), true)]
    );
    sleep(secs(60)).await;
    assert!(held.is_dead(), "its next ping told the client");
    assert_eq!(a.stats().evictions.value(), 1);
}

/// Messages that parse and mean nothing: any opcode, flags and buffers, with and without a known handle, in and out of recovery.
#[tokio::test(start_paused = true)]
async fn nonsense_harms_nobody() {
    for seed in 0..60 {
        let (w, disk) = (World::new(seed), OsdMem::new());
        let mut s = w.server(&disk).await;
        let good = w.client("10.0.0.1@tcp").await;
        good.connect().await.unwrap();
        good.call(add(1)).await.unwrap();
        if seed % 2 == 1 {
            s.kill().await;
            s = w.server(&disk).await;
        }
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let bad = node(&w.mem, "10.0.0.9@tcp", seed, w.wall).await;
        let cookies: Vec<u64> = s.target.exports().iter().map(|e| e.cookie).collect();
        let opcodes = [
            38, 8, 250, 39, 9, 251, 101, 102, 103, 400, 36, 35, 34, 501, 0, 9999,
        ];
        for _ in 0..200 {
            let opcode = opcodes[rng.random_range(0..opcodes.len())];
            // The well-behaved client is not to be disconnected in its own name.
            let own = !matches!(opcode, 39 | 9 | 251) && rng.random_bool(0.5);
            let body = PtlrpcBody {
                handle: if own { cookies[0] } else { rng.random() },
                conn_cnt: if own {
                    u32::MAX
                } else {
                    rng.random_range(0..3)
                },
                flags: rng.random::<u32>() & if rng.random_bool(0.5) { 0 } else { u32::MAX },
                op_flags: rng.random(),
                transno: if rng.random_bool(0.9) {
                    rng.random_range(0..5)
                } else {
                    u64::MAX
                },
                last_xid: if own { 0 } else { rng.random() },
                timeout: rng.random_range(0..3),
                mbits: rng.random(),
                ..PtlrpcBody::request(opcode)
            };
            let mut msg = Message::new(&body);
            for _ in 0..rng.random_range(0..6) {
                let len = rng.random_range(0..300);
                msg.push_bytes(
                    (0..len)
                        .map(|_| rng.random::<u8>() & if seed % 3 == 0 { 1 } else { 255 })
                        .collect::<Vec<u8>>()
                        .into(),
                );
            }
            if rng.random_bool(0.3) && msg.len() > 1 {
                msg.bufs[1] = bytes::Bytes::from_static(b"t-MDT0000_UUID\0");
            }
            let portal = [
                portal::MDS_REQUEST,
                portal::LDLM_CANCEL_REQUEST,
                portal::OST_IO,
                portal::MGS_REQUEST,
            ][rng.random_range(0..4)];
            let _ = bad
                .put(
                    nid(SERVER),
                    portal,
                    rng.random(),
                    0,
                    Payload::from(msg.encode()),
                    false,
                )
                .await;
        }
        assert_eq!(good.call(add(2)).await.unwrap().status, 0, "seed {seed}");
    }
}

/// A replay is believed only where it belongs: after a restart.
#[tokio::test(start_paused = true)]
async fn a_replay_outside_of_recovery_is_refused() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let c = w.client("10.0.0.1@tcp").await;
    c.connect().await.unwrap();
    c.call(add(1)).await.unwrap();
    let bad = node(&w.mem, "10.0.0.9@tcp", 5, w.wall).await;
    let cookie = s.target.exports()[0].cookie;
    for (xid, transno) in [(0x1000, 7), (0x2000, u64::MAX)] {
        let body = PtlrpcBody {
            handle: cookie,
            conn_cnt: u32::MAX,
            flags: MSG_REPLAY,
            transno,
            timeout: 5,
            ..PtlrpcBody::request(ADD)
        };
        let mut msg = Message::new(&body);
        msg.push(&99u64);
        let mut reply = bad.expect_put(portal::MDC_REPLY, xid);
        bad.put(
            nid(SERVER),
            portal::MDS_REQUEST,
            xid,
            0,
            Payload::from(msg.encode()),
            false,
        )
        .await
        .unwrap();
        let answer = Message::decode(reply.recv().await.data.copy_to_bytes())
            .unwrap()
            .body()
            .unwrap();
        assert_eq!(
            answer.status,
            coral_wire::errno::Errno::EPROTO.status(),
            "transno {transno:#x}"
        );
    }
    assert_eq!(
        c.call(add(2)).await.unwrap().transno,
        2,
        "the numbers go on where they were"
    );
    assert_eq!(log_of(&disk), [1, 2]);
}

/// What a target commits for itself during recovery takes no number that a client has yet to replay, and reports none as committed.
#[tokio::test(start_paused = true)]
async fn a_targets_own_transactions_take_no_numbers_of_replays() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let a = w.client("10.0.0.1@tcp").await;
    a.connect().await.unwrap();
    a.call(add(1)).await.unwrap();
    s.target.sync().await.unwrap();
    for v in 2..=9 {
        a.call(add(v)).await.unwrap();
    }
    s.kill().await;
    let disk = disk.power_loss();
    let s = w.server(&disk).await;
    for row in 0..5u8 {
        let mut own = coral_osd::Batch::new();
        own.put(coral_osd::Table("test_own"), vec![row], "row");
        s.target.commit_local(own).unwrap();
    }
    s.target.sync().await.unwrap();
    assert_eq!((s.target.last_transno(), s.target.last_committed()), (1, 1));
    assert_eq!(a.call(add(10)).await.unwrap().transno, 10);
    assert_eq!(log_of(&disk), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
}

/// An open that is on disk is replayed for ever; its old number must not take the place of the last one.
#[tokio::test(start_paused = true)]
async fn what_is_replayed_though_committed_sets_no_number_back() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let a = w.client("10.0.0.1@tcp").await;
    a.connect().await.unwrap();
    assert_eq!(a.call(open_add(1)).await.unwrap().transno, 1);
    for v in 2..=5 {
        a.call(add(v)).await.unwrap();
    }
    s.target.sync().await.unwrap();
    s.kill().await;
    let s = w.server(&disk).await;
    // replays the open, which writes again
    assert_eq!(a.call(slow(1)).await.unwrap().status, 0);
    assert_eq!(log_of(&disk), [1, 2, 3, 4, 5, 1]);
    s.kill().await;
    assert_eq!(w.server(&disk).await.target.last_transno(), 5);
}

/// A client cannot push the numbers to their end for everybody.
#[tokio::test(start_paused = true)]
async fn a_replay_far_above_what_was_found_is_refused() {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let (c, other) = (
        w.client("10.0.0.1@tcp").await,
        w.client("10.0.0.2@tcp").await,
    );
    c.connect().await.unwrap();
    other.connect().await.unwrap();
    c.call(add(1)).await.unwrap();
    s.target.sync().await.unwrap();
    s.kill().await;
    let s = w.server(&disk).await;
    let bad = node(&w.mem, "10.0.0.9@tcp", 5, w.wall).await;
    let cookie = s.target.exports()[0].cookie;
    let next = background(&c, add(2));
    while s.target.stats().reconnects.value() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    for (xid, transno) in [
        (0x1000, 2 + (1 << 32)),
        (0x2000, u64::MAX / 2),
        (0x3000, u64::MAX),
    ] {
        let body = PtlrpcBody {
            handle: cookie,
            conn_cnt: u32::MAX,
            flags: MSG_REPLAY,
            transno,
            timeout: 5,
            ..PtlrpcBody::request(ADD)
        };
        let mut msg = Message::new(&body);
        msg.push(&99u64);
        let mut reply = bad.expect_put(portal::MDC_REPLY, xid);
        bad.put(
            nid(SERVER),
            portal::MDS_REQUEST,
            xid,
            0,
            Payload::from(msg.encode()),
            false,
        )
        .await
        .unwrap();
        let answer = Message::decode(reply.recv().await.data.copy_to_bytes())
            .unwrap()
            .body()
            .unwrap();
        assert_eq!(
            answer.status,
            coral_wire::errno::Errno::EPROTO.status(),
            "transno {transno:#x}"
        );
    }
    assert!(s.target.in_recovery());
    let last = background(&other, add(3));
    let mut numbers = [
        next.await.unwrap().unwrap().transno,
        last.await.unwrap().unwrap().transno,
    ];
    numbers.sort();
    assert_eq!(numbers, [2, 3], "the numbers go on where they were");
    assert_eq!(s.target.stats().evictions.value(), 0);
}
