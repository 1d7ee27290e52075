//! Imports against a small server over memlnd with a paused clock: inline calls, lost messages, restarts, evictions, bulk.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use coral_buffers::Payload;
use coral_lnet::{MemNet, Node};
use coral_ptlrpc::*;
use coral_wire::Errno;
use coral_wire::connect::ConnectFlags;
use coral_wire::ptlrpc::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;

struct World {
    mem: Arc<MemNet>,
    client: Arc<Node>,
    server: Arc<Node>,
    disk: Arc<Mutex<Disk>>,
}

async fn world() -> World {
    let mem = MemNet::new();
    World {
        client: node(&mem, "10.0.0.1@tcp", 1).await,
        server: node(&mem, "10.0.0.2@tcp", 2).await,
        disk: Arc::default(),
        mem,
    }
}

async fn connected(w: &World) -> (Server, Arc<Import>) {
    let s = Server::start(&w.server, &w.disk);
    let imp = import(&w.client, &["10.0.0.2@tcp"]);
    imp.connect().await.unwrap();
    (s, imp)
}

fn rq(opcode: u32, v: u64) -> Request {
    Request::new(portal::MDS_REQUEST, opcode).push(&v)
}

fn add(v: u64) -> Request {
    rq(ADD, v).replayable()
}

fn log(w: &World) -> Vec<u64> {
    w.disk.lock().log.iter().map(|(_, v)| *v).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_is_inline() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    assert_eq!(imp.state(), ImportState::Full);
    let reply = imp
        .call(rq(ECHO, 77))
        .now_or_never()
        .expect("answered on our own stack")
        .unwrap();
    assert_eq!((reply.status, reply.msg.get::<u64>(1).unwrap()), (0, 77));
    assert!(
        imp.call(add(5))
            .now_or_never()
            .expect("modifying too")
            .is_ok()
    );
    assert_eq!(w.server.handovers().spawned.value(), 0);
    assert_eq!(imp.stats().answered_of(ECHO), 1);
    imp.disconnect().await;
    assert_eq!(imp.state(), ImportState::Closed);
    let closed = imp.call(rq(ECHO, 1)).await.unwrap_err();
    let RpcError::Unreachable(call) = &closed else {
        panic!("{closed}");
    };
    assert!(call.xid != 0 && call.opc == ECHO);
    assert_eq!(
        closed.to_string(),
        format!(
            "{} (xid {}) to t-MDT0000_UUID at 10.0.0.2@tcp: not connected",
            call.op(),
            call.xid
        )
    );
    s.stop().await;
}

/// Where neither a NID nor a route leads there is nothing to wait for; one NID that can be reached is enough to try.
#[tokio::test(start_paused = true)]
async fn a_network_that_nothing_leads_to_is_named_at_once() {
    let cfg = coral_lnet::NodeConfig {
        nids: vec![nid("127.0.0.1@tcp")],
        ..Default::default()
    };
    let node = Node::start(cfg, None).await.unwrap();
    let start = Instant::now();
    let e = import(&node, &["10.0.0.2@tcp5", "10.0.0.3@tcp6"])
        .connect()
        .await
        .unwrap_err();
    assert!(
        matches!(e, ConnectError::NoWay { .. }) && start.elapsed().is_zero(),
        "{e} after {:?}",
        start.elapsed()
    );
    assert!(e.to_string().ends_with("this node (127.0.0.1@tcp) has no NID on tcp5 and no route to it; give --route 'tcp5 GATEWAY'"), "{e}");
    node.add_route(coral_lnet::parse_routes("tcp5 127.0.0.4@tcp").unwrap()[0])
        .unwrap();
    assert!(node.leads_to(nid("10.0.0.2@tcp5")) && !node.leads_to(nid("10.0.0.3@tcp6")));
    node.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_answers() {
    let w = world().await;
    w.server.serve_portal(portal::MDS_REQUEST, Arc::new(Silent));
    // Nobody has the first NID; the second is there and silent.
    for nids in [
        &["10.9.9.9@tcp", "10.0.0.2@tcp"][..],
        &["10.0.0.2@tcp"],
        &["10.0.0.2@tcp"; 20],
    ] {
        let start = Instant::now();
        let e = import(&w.client, nids).connect().await.unwrap_err();
        assert!(matches!(e, ConnectError::NoAnswer { .. }), "{e}");
        assert!(
            e.to_string().contains("10.0.0.2@tcp") && e.to_string().contains("does not answer"),
            "{e}"
        );
        assert!(
            start.elapsed() <= Duration::from_secs(10),
            "{nids:?} {:?}",
            start.elapsed()
        );
    }
}

struct Silent;
impl coral_lnet::PortalHandler for Silent {
    fn on_put(&self, _: &Arc<Node>, _: coral_lnet::PutEvent) {}
}

#[tokio::test(start_paused = true)]
async fn flags_not_asked_for_are_refused() {
    let w = world().await;
    let s = Server::start(&w.server, &w.disk);
    *s.mini.flags_extra.lock() = ConnectFlags::ACL;
    let e = import(&w.client, &["10.0.0.2@tcp"])
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(e, ConnectError::Proto { .. }), "{e}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_and_a_lost_reply_are_sent_again_and_executed_once() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    lose(&w.client, portal::MDS_REQUEST, 1);
    imp.call(add(1)).await.unwrap();
    lose(&w.server, portal::MDC_REPLY, 1);
    let r = imp.call(add(2)).await.unwrap();
    assert_eq!(r.transno, 2);
    assert_eq!(log(&w), [1, 2]);
    let st = imp.stats();
    assert_eq!(
        (st.resent.value(), st.timeouts.value(), st.connects.value()),
        (2, 2, 3)
    );
    let seen = s.mini.seen.lock();
    let two: Vec<_> = seen.iter().filter(|(o, ..)| *o == ADD).collect();
    assert_eq!(two.len(), 3);
    assert_eq!(two[1].1, two[2].1, "a resend keeps its xid");
    assert_ne!(two[1].2.mbits, two[2].2.mbits, "and takes new match bits");
    assert_eq!(two[1].2.tag, two[2].2.tag);
    assert_ne!(two[2].2.flags & MSG_RESENT, 0);
}

#[tokio::test(start_paused = true)]
async fn last_xid_and_tags() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let slow: Vec<_> = (0..3)
        .map(|_| {
            let imp = imp.clone();
            tokio::spawn(async move { imp.call(rq(SLOW, 3).modifying()).await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    imp.call(rq(ECHO, 1)).await.unwrap();
    for t in slow {
        t.await.unwrap();
    }
    imp.call(rq(ECHO, 2)).await.unwrap();
    let seen = s.mini.seen.lock();
    let slow: Vec<_> = seen.iter().filter(|(o, ..)| *o == SLOW).collect();
    let mut tags: Vec<u16> = slow.iter().map(|s| s.2.tag).collect();
    tags.sort();
    assert_eq!(tags, [1, 2, 3]);
    let oldest = slow.iter().map(|s| s.1).min().unwrap();
    let echoes: Vec<_> = seen.iter().filter(|(o, ..)| *o == ECHO).collect();
    assert_eq!(
        echoes[0].2.last_xid,
        oldest - 1,
        "nothing at or above the oldest unreplied xid"
    );
    assert_eq!(echoes[1].2.last_xid, echoes[1].1 - 1);
    assert!(seen.iter().all(|(_, xid, b)| b.last_xid < *xid));
    assert_eq!(seen[0].2.last_xid, 0, "connect has none");
}

#[tokio::test(start_paused = true)]
async fn modify_slots_bound_what_is_in_flight() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let start = Instant::now();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let imp = imp.clone();
            tokio::spawn(async move { imp.call(rq(SLOW, 2).modifying()).await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        s.mini
            .seen
            .lock()
            .iter()
            .filter(|(o, ..)| *o == SLOW)
            .count(),
        4,
        "the server grants four and one for closes"
    );
    assert!(
        imp.call(rq(ECHO, 1)).now_or_never().is_some(),
        "others are not held up"
    );
    assert!(
        imp.call(rq(opc::MDS_CLOSE, 1).modifying())
            .now_or_never()
            .is_some(),
        "a close has a slot of its own"
    );
    assert_eq!(s.mini.seen.lock().last().unwrap().2.tag, 5);
    for c in calls {
        c.await.unwrap();
    }
    assert!(start.elapsed() >= Duration::from_secs(4));
    assert_eq!(imp.stats().slot_wait.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_osts_writes_need_no_slots() {
    let w = world().await;
    let s = Server::start(&w.server, &w.disk);
    let cfg = ImportConfig {
        request_portal: portal::MDS_REQUEST,
        reply_portal: portal::MDC_REPLY,
        ..ImportConfig::ost("t-OST0000_UUID", vec![nid("10.0.0.2@tcp")], "c", flags())
    };
    let imp = Import::new(w.client.clone(), cfg);
    imp.connect().await.unwrap();
    let start = Instant::now();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let imp = imp.clone();
            tokio::spawn(async move { imp.call(rq(SLOW, 2).replayable()).await.unwrap() })
        })
        .collect();
    for c in calls {
        c.await.unwrap();
    }
    assert_eq!(start.elapsed().as_secs(), 2, "all at once");
    assert!(s.mini.seen.lock().iter().all(|(_, _, b)| b.tag == 0));
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_modifying_call_keeps_its_slot_until_the_reply() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    for _ in 0..4 {
        let r =
            tokio::time::timeout(Duration::from_secs(1), imp.call(rq(SLOW, 10).modifying())).await;
        assert!(r.is_err());
    }
    assert!(
        imp.call(add(1)).now_or_never().is_none(),
        "all slots are taken"
    );
    tokio::time::sleep(Duration::from_secs(12)).await;
    imp.call(add(1)).await.unwrap();
    assert_eq!(
        s.mini
            .seen
            .lock()
            .iter()
            .filter(|(o, ..)| *o == ADD)
            .count(),
        1,
        "a call dropped before it was sent is not sent"
    );
}

#[tokio::test(start_paused = true)]
async fn early_replies_extend_the_deadline() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let start = Instant::now();
    imp.call(rq(SLOW, 100)).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 100);
    let st = imp.stats();
    assert_eq!(
        (st.resent.value(), st.timeouts.value(), st.connects.value()),
        (0, 0, 1)
    );
    assert!(st.early.value() >= 2, "{st:?}");
    assert_eq!(
        s.services[0].stats().early_replies.value(),
        st.early.value()
    );
    imp.call(rq(ECHO, 1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn einprogress_is_tried_again_with_a_new_xid() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    *s.mini.inprogress.lock() = 1;
    assert_eq!(imp.call(rq(ECHO, 3)).await.unwrap().status, 0);
    let seen = s.mini.seen.lock();
    let xids: Vec<u64> = seen
        .iter()
        .filter(|(o, ..)| *o == ECHO)
        .map(|s| s.1)
        .collect();
    assert!(xids.len() == 2 && xids[0] != xids[1]);
}

/// What is to come later holds nothing that others need, is not sent any more when nobody waits for it, and may be told.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_answered_einprogress_holds_no_slot() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let slots = 8;
    let sent = || {
        s.mini
            .seen
            .lock()
            .iter()
            .filter(|(o, ..)| *o == ECHO)
            .count()
    };
    let mut waits = Vec::new();
    for _ in 0..slots {
        *s.mini.inprogress.lock() = 1;
        let later = imp.call(rq(ECHO, 1).modifying());
        waits.push(Box::pin(later));
        let waited = tokio::time::timeout(Duration::from_millis(500), waits.last_mut().unwrap());
        assert!(waited.await.is_err(), "it is tried again after a second");
    }
    assert_eq!(sent(), slots);
    let begun = Instant::now();
    imp.call(rq(ECHO, 1).modifying()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(500));
    drop(waits);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(sent(), slots + 1, "they were given up");
    *s.mini.inprogress.lock() = 1;
    let told = imp
        .call(rq(ECHO, 1).patience(Duration::ZERO))
        .await
        .unwrap();
    assert_eq!(told.status, Errno::EINPROGRESS.status());
}

#[tokio::test(start_paused = true)]
async fn limits_and_no_resend() {
    let w = world().await;
    let (_s, imp) = connected(&w).await;
    let start = Instant::now();
    let slow = rq(SLOW, 100).limit(Duration::from_secs(3));
    match imp.call(slow).await.unwrap_err() {
        RpcError::Timeout(call) => assert!(call.xid != 0 && call.opc == SLOW, "{call}"),
        other => panic!("{other}"),
    }
    assert_eq!(start.elapsed().as_secs(), 3);
    lose(&w.client, portal::MDS_REQUEST, 1);
    assert!(matches!(
        imp.call(rq(ECHO, 1).no_resend()).await,
        Err(RpcError::Unreachable(_))
    ));
    imp.call(rq(ECHO, 1)).await.unwrap();
}

/// What a caller gave up, and what could not be sent, is kept with the time it took: whoever waited, waited for that.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_is_kept_by_the_stopwatch() {
    let w = world().await;
    let (_s, imp) = connected(&w).await;
    let base = Instant::now();
    let kept = || {
        let rpcs = w.client.stopwatch().dump("c", base).rpcs;
        let rpcs = rpcs.into_iter().filter(|r| [SLOW, ECHO].contains(&r.opc));
        rpcs.map(|r| {
            (
                r.opc,
                r.reply_mbits == 0,
                (r.span.1 - r.span.0) / 1_000_000_000,
            )
        })
        .collect::<Vec<_>>()
    };
    let limited = imp.call(rq(SLOW, 100).limit(Duration::from_secs(3)));
    assert!(limited.await.is_err());
    let dropped = imp.call(rq(SLOW, 100));
    let waited = tokio::time::timeout(Duration::from_secs(2), dropped).await;
    assert!(waited.is_err());
    imp.call(rq(ECHO, 1)).await.unwrap();
    assert_eq!(kept(), [(SLOW, true, 3), (SLOW, true, 2), (ECHO, false, 0)]);
    assert!(w.client.stopwatch().dump("c", base).under_way.is_empty());
}

fn bulk_lens(lens: &[u32]) -> Bytes {
    lens.iter()
        .flat_map(|l| l.to_le_bytes())
        .collect::<Vec<u8>>()
        .into()
}

#[tokio::test(start_paused = true)]
async fn bulk_of_odd_sizes_both_ways() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let mib = 1 << 20;
    for lens in [
        vec![1],
        vec![4095],
        vec![mib],
        vec![mib, 1],
        vec![mib, mib, mib, 12345],
        vec![mib; 64],
    ] {
        let data: Vec<Payload> = lens
            .iter()
            .enumerate()
            .map(|(i, l)| pattern(i, *l).into())
            .collect();
        let write = Request::new(portal::OST_IO, WRITE).push_bytes(bulk_lens(&lens));
        let write = write.bulk(Bulk::Source {
            portal: BULK,
            data: data.clone(),
        });
        // tokio's budget of 128 operations per poll of a task lets no more than some tens of descriptors pass at once.
        let inline = lens.len() < 10;
        let r = match imp.call(write.clone()).now_or_never() {
            None if inline => panic!("not inline"),
            None => imp.call(write).await.unwrap(),
            Some(r) => r.unwrap(),
        };
        assert_eq!(r.status, 0);
        assert!(*s.mini.written.lock() == data, "{lens:?}");

        let read = Request::new(portal::OST_IO, READ).push_bytes(bulk_lens(&lens));
        let r = imp
            .call(read.bulk(Bulk::Sink {
                portal: BULK,
                lens: lens.clone(),
            }))
            .await
            .unwrap();
        assert!(r.bulk == data, "{lens:?}");
    }
    // A short read: the server has less than the descriptors hold, the rest get empty PUTs.
    let read = Request::new(portal::OST_IO, READ).push_bytes(bulk_lens(&[mib, 100]));
    let r = imp
        .call(read.bulk(Bulk::Sink {
            portal: BULK,
            lens: vec![mib; 4],
        }))
        .await
        .unwrap();
    let got: Vec<usize> = r.bulk.iter().map(Payload::len).collect();
    assert_eq!(got, [mib as usize, 100, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn lost_bulk_is_sent_again_by_the_server_and_at_last_asked_for_again_by_the_client() {
    let w = world().await;
    let (_s, imp) = connected(&w).await;
    let lens = vec![1 << 20, 777];
    let read = Request::new(portal::OST_IO, READ)
        .push_bytes(bulk_lens(&lens))
        .bulk(Bulk::Sink {
            portal: BULK,
            lens: lens.clone(),
        });
    lose(&w.server, BULK, 1);
    let r = imp.call(read.clone()).await.unwrap();
    assert_eq!(r.bulk[1], Payload::from(pattern(1, 777)));
    assert_eq!(imp.stats().resent.value(), 0);
    // All that the server sends for the first attempt: the second goes to new match bits.
    lose(&w.server, BULK, 8);
    let r = imp.call(read).await.unwrap();
    assert_eq!(r.bulk[1], Payload::from(pattern(1, 777)));
    assert!(imp.stats().resent.value() >= 1);
}

/// Nobody waits for the data any more: the server is not left to send it again and again.
#[tokio::test(start_paused = true)]
async fn bulk_that_nobody_wants_any_more_is_taken_all_the_same() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let lens = vec![1 << 20];
    let read = Request::new(portal::OST_IO, READ)
        .push_bytes(bulk_lens(&lens))
        .bulk(Bulk::Sink { portal: BULK, lens });
    lose(&w.server, BULK, 1);
    let dropped = tokio::time::timeout(Duration::from_secs(2), imp.call(read)).await;
    assert!(dropped.is_err());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(*s.mini.read.lock(), [true]);
}

#[derive(Default)]
struct Told {
    evicted: AtomicU32,
    recovered: AtomicU32,
    locks: AtomicU32,
    idle: AtomicU32,
    busy: AtomicBool,
}

impl ImportObserver for Told {
    fn is_unused(&self) -> bool {
        !self.busy.load(Ordering::Relaxed)
    }
    fn on_idle(&self) {
        self.idle.fetch_add(1, Ordering::Relaxed);
    }
    fn on_evicted(&self) -> BoxFuture<'static, ()> {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {})
    }
    fn replay_locks(&self, import: Arc<Import>) -> BoxFuture<'static, Result<(), RpcError>> {
        self.locks.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { import.call_in_recovery(rq(ECHO, 9)).await.map(drop) })
    }
    fn on_recovered(&self) {
        self.recovered.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn eviction_fails_what_waits_and_lets_new_calls_through() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let told = Arc::new(Told::default());
    imp.set_observer(told.clone());
    let waiting = tokio::spawn({
        let imp = imp.clone();
        async move { imp.call(rq(SLOW, 1000)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    s.evict_all();
    let e = imp.call(rq(ECHO, 1)).await.unwrap_err();
    assert!(matches!(e, RpcError::Evicted(_)), "{e}");
    assert!(matches!(waiting.await.unwrap(), Err(RpcError::Evicted(_))));
    assert_eq!(imp.call(rq(ECHO, 2)).await.unwrap().status, 0);
    assert_eq!(
        (
            told.evicted.load(Ordering::Relaxed),
            imp.generation(),
            imp.stats().evictions.value()
        ),
        (1, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_import_pings_and_notices_an_eviction() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    tokio::time::sleep(Duration::from_secs(26)).await;
    assert_eq!(imp.stats().answered_of(opc::OBD_PING), 1);
    s.evict_all();
    tokio::time::sleep(Duration::from_secs(26)).await;
    assert_eq!(imp.stats().evictions.value(), 1);
    assert_eq!(imp.state(), ImportState::Full);
}

/// Unused for its idle timeout, an import leaves the server; the next request connects anew, and that is no eviction.
#[tokio::test(start_paused = true)]
async fn an_unused_import_disconnects_and_comes_back() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let told = Arc::new(Told::default());
    imp.set_observer(told.clone());
    imp.set_idle_timeout(Duration::from_secs(20));
    told.busy.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(imp.state(), ImportState::Full, "its owner needs it");
    told.busy.store(false, Ordering::Relaxed);
    let slow = tokio::spawn({
        let imp = imp.clone();
        async move { imp.call(rq(SLOW, 70)).await }
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(imp.state(), ImportState::Full, "a request is without reply");
    slow.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(imp.state(), ImportState::Idle);
    assert_eq!(told.idle.load(Ordering::Relaxed), 1);
    assert_eq!(
        w.disk.lock().clients.len(),
        0,
        "the server has forgotten it"
    );
    let pings = imp.stats().answered_of(opc::OBD_PING);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        imp.stats().answered_of(opc::OBD_PING),
        pings,
        "nothing is asked"
    );
    assert_eq!(imp.call(rq(ECHO, 2)).await.unwrap().status, 0);
    assert_eq!(
        (
            imp.state(),
            imp.stats().evictions.value(),
            imp.generation(),
            told.evicted.load(Ordering::Relaxed)
        ),
        (ImportState::Full, 0, 0, 0)
    );
    imp.call(add(5)).await.unwrap();
    assert_eq!(imp.replayable(), 0);
    s.stop().await;
}

/// What comes while the server is being told, or what it kept, is not lost on the way.
#[tokio::test(start_paused = true)]
async fn an_import_leaves_only_when_nothing_can_be_lost() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    *s.mini.lag.lock() = 1;
    imp.call(add(5)).await.unwrap();
    assert_eq!(imp.replayable(), 1);
    imp.set_idle_timeout(Duration::from_secs(20));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(
        imp.state(),
        ImportState::Full,
        "it keeps what is not committed"
    );
    *s.mini.lag.lock() = 0;
    imp.call(add(6)).await.unwrap();
    // a server that does not answer the goodbye
    s.stop().await;
    while imp.state() != ImportState::Leaving {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let call = tokio::spawn({
        let imp = imp.clone();
        async move { imp.call(add(7)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(imp.state(), ImportState::Leaving);
    let s = Server::start(&w.server, &w.disk);
    call.await.unwrap().unwrap();
    assert_eq!((imp.state(), imp.generation()), (ImportState::Full, 0));
    assert_eq!(log(&w), [5, 6, 7]);
    s.stop().await;
}

/// A server that died is asked again when each of several connections to it breaks: the first ping may have gone into one that was
/// thought to be whole.
#[tokio::test(start_paused = true)]
async fn a_ping_that_went_into_a_dead_connection_is_not_waited_for() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    s.stop().await;
    w.server.serve_portal(portal::MDS_REQUEST, Arc::new(Silent));
    let breaks = || w.mem.reset(nid("10.0.0.1@tcp"), nid("10.0.0.2@tcp"));
    breaks();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(imp.state(), ImportState::Full, "the ping has no answer yet");
    let again = Server::start(&w.server, &w.disk);
    breaks();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let seen = again.mini.seen.lock().clone();
    assert!(
        seen.iter().any(|(opc, ..)| *opc == opc::MDS_CONNECT),
        "{seen:?}"
    );
    assert_eq!(imp.state(), ImportState::Full);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_server_gets_uncommitted_requests_in_transno_order() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    let told = Arc::new(Told::default());
    imp.set_observer(told.clone());
    *s.mini.lag.lock() = 1000;
    for v in 1..=5 {
        imp.call(add(v)).await.unwrap();
    }
    let open = imp.call(rq(ADD, 6).replayable_open()).await.unwrap();
    assert_eq!(imp.replayable(), 6);
    imp.amend_replay(
        open.transno,
        vec![Bytes::copy_from_slice(&66u64.to_le_bytes())],
    );
    s.stop().await;
    // Power loss: the last transactions, and the replies that go with them, were never written.
    {
        let mut d = w.disk.lock();
        d.log.truncate(2);
        d.last_transno = 2;
        d.replies.clear();
    }
    let waiting = tokio::spawn({
        let imp = imp.clone();
        async move { imp.call(add(7)).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(!waiting.is_finished());
    let s = Server::start(&w.server, &w.disk);
    *s.mini.lag.lock() = 0;
    let last = waiting.await.unwrap();
    assert_eq!(
        w.disk.lock().log,
        [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 66), (7, 7)]
    );
    assert_eq!(last.transno, 7);
    let st = imp.stats();
    assert_eq!((st.replayed.value(), st.evictions.value()), (4, 0));
    assert_eq!(
        (
            told.locks.load(Ordering::Relaxed),
            told.recovered.load(Ordering::Relaxed)
        ),
        (1, 1)
    );
    assert_eq!(imp.replayable(), 1, "the open stays");
    imp.forget_open(open.transno, 0);
    assert_eq!(imp.replayable(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_replay_goes_on_where_the_connection_broke() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    *s.mini.lag.lock() = 1000;
    for v in 1..=5 {
        imp.call(add(v)).await.unwrap();
    }
    s.stop().await;
    let lose_power = || {
        let mut d = w.disk.lock();
        (d.last_transno, d.log, d.replies) = (0, vec![], Default::default());
    };
    lose_power();
    let start = || {
        let s = Server::start(&w.server, &w.disk);
        *s.mini.lag.lock() = 1000;
        s
    };
    let replays = |s: &Server| -> Vec<(u64, bool)> {
        let seen = s.mini.seen.lock();
        let adds = seen
            .iter()
            .filter(|(opc, _, b)| *opc == ADD && b.flags & MSG_REPLAY != 0);
        adds.map(|(_, _, b)| (b.transno, b.flags & MSG_RESENT != 0))
            .collect()
    };
    let s1 = start();
    *s1.mini.silent.lock() = vec![3];
    imp.call(add(6)).await.unwrap();
    let once = |transno| (transno, false);
    assert_eq!(
        replays(&s1),
        [once(1), once(2), once(3), (3, true), once(4), once(5)]
    );
    assert_eq!(log(&w), [1, 2, 3, 4, 5, 6]);
    // another start has nothing of it
    s1.stop().await;
    lose_power();
    let s2 = start();
    imp.call(add(7)).await.unwrap();
    assert_eq!(replays(&s2), [1, 2, 3, 4, 5, 6].map(once));
    assert_eq!(
        (log(&w), imp.stats().evictions.value()),
        (vec![1, 2, 3, 4, 5, 6, 7], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_vanishes_is_found_again() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    s.stop().await;
    w.server.shutdown().await;
    let waiting = tokio::spawn({
        let imp = imp.clone();
        async move { imp.call(rq(ECHO, 8)).await.unwrap() }
    });
    tokio::time::sleep(Duration::from_secs(100)).await;
    let server = node(&w.mem, "10.0.0.2@tcp", 3).await;
    let start = Instant::now();
    let _s = Server::start(&server, &w.disk);
    assert_eq!(waiting.await.unwrap().msg.get::<u64>(1).unwrap(), 8);
    assert!(
        start.elapsed() <= Duration::from_secs(15),
        "back-off has a bound"
    );
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_import_goes_away() {
    let w = world().await;
    let (s, imp) = connected(&w).await;
    s.stop().await;
    lose(&w.client, portal::MDS_REQUEST, 1);
    let _ = imp.call(rq(ECHO, 1).no_resend()).await;
    let weak = Arc::downgrade(&imp);
    drop(imp);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(weak.upgrade().is_none());
}
