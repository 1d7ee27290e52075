//! Nodes of one process over memlnd: what PUT, GET, ACK and the match table promise, without a port, with a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::faults::{HealthError, Side};
use coral_lnet::{
    FaultAction, FaultRule, LinkModel, MemNet, MsgType, Nid, Node, NodeConfig, PortalHandler,
    PutEvent, SendError, WallClock, exec,
};
use parking_lot::Mutex;
use tokio::time::Instant;

fn nid(s: &str) -> Nid {
    s.parse().unwrap()
}

async fn node(mem: &Arc<MemNet>, nids: &[&str]) -> Arc<Node> {
    let cfg = NodeConfig {
        nids: nids.iter().map(|n| nid(n)).collect(),
        seed: 7,
        ..NodeConfig::default()
    };
    Node::start(cfg, Some(mem.clone())).await.unwrap()
}

async fn pair() -> (Arc<Node>, Arc<Node>) {
    let mem = MemNet::new();
    (node(&mem, &["1@lo"]).await, node(&mem, &["2@lo"]).await)
}

/// Sends every request back to the reply portal 4, inline.
struct Echo;

impl PortalHandler for Echo {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let me = node.clone();
        exec::run_inline(
            node.handovers(),
            Box::pin(async move {
                me.put(ev.from, 4, ev.mbits, 0, ev.data, false)
                    .await
                    .unwrap();
            }),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_trip_is_inline_and_copies_nothing() {
    let (client, server) = pair().await;
    server.serve_portal(12, Arc::new(Echo));
    let data = Bytes::from(vec![9u8; 1 << 20]);
    let mut reply = client.expect_put(4, 77);
    client
        .put(nid("2@lo"), 12, 77, 0, data.clone().into(), false)
        .await
        .unwrap();
    let ev = reply
        .try_recv()
        .expect("the reply is there before put returns");
    assert_eq!((ev.from, ev.portal, ev.mbits), (nid("2@lo"), 4, 77));
    assert_eq!(
        ev.data.iter().next().unwrap().as_ptr(),
        data.as_ptr(),
        "the very same memory came back"
    );
    assert_eq!(
        (
            server.handovers().inline.value(),
            server.handovers().spawned.value()
        ),
        (1, 0)
    );
    for n in [&client, &server] {
        assert_eq!(n.stats().copied_bytes.value(), 0);
        assert_eq!(n.stats().received_bytes.value(), 1 << 20);
    }
}

#[tokio::test(start_paused = true)]
async fn get_and_ack() {
    let (a, b) = pair().await;
    let data: Payload = [Bytes::from_static(b"hello "), Bytes::from_static(b"world")]
        .into_iter()
        .collect();
    let mut offer = b.offer_get(8, 5, data);
    let got = a.get(nid("2@lo"), 8, 5, 8).await.unwrap();
    assert_eq!(
        &got.copy_to_bytes()[..],
        b"hello wo",
        "no more than asked for"
    );
    assert_eq!(
        a.get(nid("2@lo"), 8, 5, 100).await.unwrap().len(),
        11,
        "no more than there is"
    );
    offer.done().await.unwrap();

    let mut sink = b.expect_put(8, 6);
    a.put(nid("2@lo"), 8, 6, 224, Payload::new(), true)
        .await
        .unwrap();
    assert_eq!(sink.recv().await.offset, 224);
}

#[tokio::test(start_paused = true)]
async fn what_nothing_matches_is_dropped_and_never_acknowledged() {
    let (a, b) = pair().await;
    a.put(nid("2@lo"), 12, 1, 0, Payload::from(vec![1u8]), false)
        .await
        .unwrap();
    drop(b.expect_put(8, 2));
    let acked = tokio::time::timeout(
        Duration::from_secs(100),
        a.put(nid("2@lo"), 8, 2, 0, Payload::new(), true),
    )
    .await;
    assert!(acked.is_err());
    let got = tokio::time::timeout(Duration::from_secs(100), a.get(nid("2@lo"), 8, 2, 1)).await;
    assert!(got.is_err());
    assert_eq!(b.stats().unmatched.value(), 3);
}

#[tokio::test(start_paused = true)]
async fn to_ourselves_by_any_name() {
    let mem = MemNet::new();
    let n = node(&mem, &["127.0.0.9@tcp", "5@lo"]).await;
    for name in ["0@lo", "127.0.0.9@tcp", "5@lo"] {
        let mut sink = n.expect_put(3, 1);
        n.put(nid(name), 3, 1, 0, Payload::from(vec![1u8]), true)
            .await
            .unwrap();
        let ev = sink.try_recv().unwrap();
        assert_eq!(ev.from, nid(name));
        assert_eq!(
            n.ping(nid(name)).await.unwrap().nis[1].nid,
            nid("127.0.0.9@tcp")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_unique_and_leave_with_their_node() {
    let mem = MemNet::new();
    let a = node(&mem, &["1@lo"]).await;
    let b = node(&mem, &["2@lo", "3@lo"]).await;
    let again = NodeConfig {
        nids: vec![nid("9@lo"), nid("3@lo")],
        ..NodeConfig::default()
    };
    let err = Node::start(again.clone(), Some(mem.clone()))
        .await
        .unwrap_err();
    assert!(err.to_string().contains("3@lo"), "{err}");
    b.shutdown().await;
    let err = a
        .put(nid("3@lo"), 1, 1, 0, Payload::new(), false)
        .await
        .unwrap_err();
    assert!(matches!(err, SendError::Unreachable { nid: n, .. } if n == nid("3@lo")));
    assert!(matches!(
        b.ping(nid("1@lo")).await,
        Err(SendError::Shutdown)
    ));
    Node::start(again, Some(mem)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn faults_lose_and_delay() {
    let (a, b) = pair().await;
    let mut sink = b.expect_put(8, 1);
    a.faults()
        .add(FaultRule::all(FaultAction::Drop).portal(8).times(1));
    a.put(nid("2@lo"), 8, 1, 0, Payload::new(), false)
        .await
        .unwrap();
    assert!(sink.try_recv().is_none());
    a.put(nid("2@lo"), 8, 1, 0, Payload::new(), false)
        .await
        .unwrap();
    assert!(sink.try_recv().is_some(), "the rule was for one message");

    b.faults()
        .add(FaultRule::all(FaultAction::Delay(Duration::from_secs(30))).kind(MsgType::Ack));
    let begin = Instant::now();
    a.put(nid("2@lo"), 8, 1, 0, Payload::new(), true)
        .await
        .unwrap();
    assert_eq!(
        begin.elapsed(),
        Duration::from_secs(30),
        "only the ACK was late"
    );
    assert!(sink.try_recv().is_some());
}

#[tokio::test(start_paused = true)]
async fn rules_see_what_arrives_and_let_go_when_they_go() {
    let (a, b) = pair().await;
    let mut sink = b.expect_put(8, 1);
    b.faults().add(
        FaultRule::all(FaultAction::Drop)
            .from(nid("1@lo"))
            .at(Side::Receive)
            .times(1),
    );
    a.put(nid("2@lo"), 8, 1, 0, Payload::new(), false)
        .await
        .unwrap();
    assert!(sink.try_recv().is_none());
    assert_eq!(
        (b.stats().faults.value(), b.stats().received.value()),
        (1, 0)
    );

    b.faults()
        .add(FaultRule::all(FaultAction::Delay(Duration::from_secs(1000))).at(Side::Receive));
    let begin = Instant::now();
    a.put(nid("2@lo"), 8, 1, 0, Payload::new(), false)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(sink.try_recv().is_none());
    b.faults().clear();
    sink.recv().await;
    assert_eq!(begin.elapsed(), Duration::from_secs(1));

    a.faults().add(FaultRule::all(FaultAction::Fail(
        HealthError::NetworkTimeout,
    )));
    assert!(matches!(
        a.put(nid("2@lo"), 8, 1, 0, Payload::new(), false).await,
        Err(SendError::Timeout)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ends_is_not_kept_by_what_a_rule_holds_back() {
    for side in [Side::Send, Side::Receive] {
        let (a, b) = pair().await;
        let mut sink = b.expect_put(8, 1);
        let holder = if side == Side::Send { &a } else { &b };
        holder
            .faults()
            .add(FaultRule::all(FaultAction::Delay(Duration::from_secs(1_000_000))).at(side));
        let put = tokio::spawn({
            let a = a.clone();
            async move { a.put(nid("2@lo"), 8, 1, 0, Payload::new(), true).await }
        });
        until(|| holder.faults().hits() == 1).await;
        let begin = Instant::now();
        holder.shutdown().await;
        assert!(holder.faults().list().is_empty());
        a.shutdown().await;
        assert!(
            matches!(put.await.unwrap(), Err(SendError::Shutdown)),
            "{side:?}"
        );
        assert!(
            sink.try_recv().is_none(),
            "{side:?}: what was held back is lost"
        );
        drop(sink);
        let gone = [Arc::downgrade(&a), Arc::downgrade(&b)];
        b.shutdown().await;
        drop((a, b));
        until(|| gone.iter().all(|n| n.strong_count() == 0)).await;
        assert!(begin.elapsed() < Duration::from_secs(1000), "{side:?}");
    }
}

/// Lets others run until `holds`.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never");
}

#[tokio::test(start_paused = true)]
async fn links_take_time_are_cut_and_break() {
    let mem = MemNet::new();
    let (a, b) = (node(&mem, &["1@lo"]).await, node(&mem, &["2@lo"]).await);
    let (one, two) = (nid("1@lo"), nid("2@lo"));
    let model = LinkModel {
        bandwidth: Some(1 << 20),
        delay: Duration::from_millis(10),
        ..Default::default()
    };
    mem.set_link(one, two, model, 1);
    let mut sink = b.expect_put(8, 1);
    let begin = Instant::now();
    let data = || Payload::from(vec![0u8; 1 << 20]);
    a.put(two, 8, 1, 0, data(), true).await.unwrap();
    let took = begin.elapsed();
    assert!(
        took > Duration::from_millis(1020) && took < Duration::from_millis(1030),
        "a second for the bytes, 10 ms each way: {took:?}"
    );
    sink.recv().await;

    mem.cut(one, two, true);
    let lost =
        tokio::time::timeout(Duration::from_secs(50), a.put(two, 8, 1, 0, data(), true)).await;
    assert!(lost.is_err());
    mem.cut(one, two, false);
    a.put(two, 8, 1, 0, Payload::new(), true).await.unwrap();
    assert_eq!(mem.link_stat(one, two).unwrap().lost, 1);

    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.put(two, 8, 1, 0, data(), true).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    mem.reset(one, two);
    assert!(
        matches!(waiting.await.unwrap(), Err(SendError::PeerReset)),
        "what was under way is lost"
    );
    mem.clear_links();
    let begin = Instant::now();
    a.put(two, 8, 1, 0, data(), true).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::ZERO, "inline again");
}

/// Waits before it answers, so it cannot stay on the sender's stack.
struct Slow;

impl PortalHandler for Slow {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let me = node.clone();
        exec::run_inline(
            node.handovers(),
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                me.put(ev.from, 4, ev.mbits, 0, ev.data, false)
                    .await
                    .unwrap();
            }),
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_does_not_hold_the_sender() {
    let (a, b) = pair().await;
    b.serve_portal(12, Arc::new(Slow));
    let mut reply = a.expect_put(4, 1);
    let begin = Instant::now();
    a.put(nid("2@lo"), 12, 1, 0, Payload::new(), false)
        .await
        .unwrap();
    assert_eq!(begin.elapsed(), Duration::ZERO);
    reply.recv().await;
    assert_eq!(begin.elapsed(), Duration::from_secs(3));
    assert_eq!(b.handovers().spawned.value(), 1);
}

/// Bounces a message with a countdown in its match bits between two nodes.
struct Bounce(Arc<Mutex<Vec<u64>>>);

impl PortalHandler for Bounce {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        self.0.lock().push(ev.mbits);
        if ev.mbits > 0 {
            let me = node.clone();
            exec::run_inline(
                node.handovers(),
                Box::pin(async move {
                    me.put(ev.from, 12, ev.mbits - 1, 0, ev.data, false)
                        .await
                        .unwrap();
                }),
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn endless_bouncing_does_not_eat_the_stack() {
    let (a, b) = pair().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    a.serve_portal(12, Arc::new(Bounce(seen.clone())));
    b.serve_portal(12, Arc::new(Bounce(seen.clone())));
    a.put(nid("2@lo"), 12, 10_000, 0, Payload::new(), false)
        .await
        .unwrap();
    while seen.lock().last() != Some(&0) {
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.lock().len(), 10_001);
    assert!(a.handovers().too_deep.value() + b.handovers().too_deep.value() > 0);
}

struct Count(AtomicUsize);

impl PortalHandler for Count {
    fn on_put(&self, _: &Arc<Node>, _: PutEvent) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn portals_change_hands() {
    let (a, b) = pair().await;
    let (one, two) = (
        Arc::new(Count(AtomicUsize::new(0))),
        Arc::new(Count(AtomicUsize::new(0))),
    );
    let send = || a.put(nid("2@lo"), 63, 1, 0, Payload::new(), false);
    b.serve_portal(63, one.clone());
    send().await.unwrap();
    b.serve_portal(63, two.clone());
    send().await.unwrap();
    b.unserve_portal(63);
    send().await.unwrap();
    assert_eq!(
        (one.0.load(Ordering::Relaxed), two.0.load(Ordering::Relaxed)),
        (1, 1)
    );
    assert_eq!(b.stats().unmatched.value(), 1);
}

#[tokio::test(start_paused = true)]
async fn simulated_wall_time_follows_the_clock() {
    let wall = WallClock {
        base: (1_000_000_000, 999_999_999),
        at: Instant::now(),
    };
    let cfg = NodeConfig {
        nids: vec![nid("1@lo")],
        wall: Some(wall),
        ..NodeConfig::default()
    };
    let n = Node::start(cfg.clone(), None).await.unwrap();
    let cookies: Vec<u64> = (0..100).map(|_| n.next_cookie()).collect();
    tokio::time::sleep(Duration::from_secs(5) + Duration::from_nanos(1_000_000)).await;
    let (secs, nanos) = n.wall_time();
    assert_eq!(secs, 1_000_000_006);
    assert!((999_999..2_999_999).contains(&nanos), "{nanos}");
    n.shutdown().await;
    let next_life = Node::start(cfg, None).await.unwrap();
    assert_eq!(
        next_life.rng_u64(),
        {
            let m = Node::start(
                NodeConfig {
                    nids: vec![nid("1@lo")],
                    ..NodeConfig::default()
                },
                None,
            )
            .await
            .unwrap();
            m.rng_u64()
        },
        "the generator depends on the seed alone"
    );
    let again: Vec<u64> = (0..100).map(|_| next_life.next_cookie()).collect();
    assert!(
        again.iter().all(|c| !cookies.contains(c)),
        "cookies of a new life are new"
    );
}
