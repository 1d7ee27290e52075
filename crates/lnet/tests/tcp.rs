//! Nodes over TCP on loopback addresses: integrity, recovery from broken connections. Peers that misbehave are in `raw_peer.rs`.

mod tcp_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coral_buffers::Payload;
use coral_lnet::{
    LNET_MTU, Limits, Nid, Node, NodeConfig, PortalHandler, PutEvent, SendError, exec,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tcp_common::*;
use tokio::time::{sleep, timeout};

/// Sends every request back to portal 4.
struct Echo;

impl PortalHandler for Echo {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let me = node.clone();
        exec::run_inline(
            node.handovers(),
            Box::pin(async move {
                let _ = me.put(ev.from, 4, ev.mbits, 0, ev.data, false).await;
            }),
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_comes_back_whole() {
    let (client, server) = pair(1).await;
    server.serve_portal(12, Arc::new(Echo));
    let mut rng = ChaCha8Rng::seed_from_u64(42);
    let mut sizes = vec![
        0,
        1,
        927,
        928,
        929,
        4000,
        4096,
        65536,
        LNET_MTU - 1,
        LNET_MTU,
    ];
    sizes.extend((0..40).map(|_| rng.random_range(0..LNET_MTU)));
    let jobs: Vec<_> = sizes
        .into_iter()
        .enumerate()
        .map(|(i, len)| {
            let client = client.clone();
            tokio::spawn(async move {
                let data = noise(i as u64, len);
                let mut reply = client.expect_put(4, i as u64);
                client
                    .put(nid(1, 2), 12, i as u64, 0, data.clone(), false)
                    .await
                    .unwrap();
                let back = timeout(LONG, reply.recv()).await.expect("a reply");
                assert_eq!(back.from, nid(1, 2));
                assert!(back.data == data, "{len} bytes changed on the way");
            })
        })
        .collect();
    for j in jobs {
        j.await.unwrap();
    }
    assert_eq!(
        client.stats().conns.value(),
        3,
        "control, bulk in, bulk out"
    );
    assert_eq!(
        server.stats().conns.value(),
        3,
        "the server opens none of its own"
    );
    assert_eq!(
        server.handovers().spawned.value() + server.handovers().inline.value(),
        50
    );
    stop(&[&client, &server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_gets_and_pings() {
    let (a, b) = pair(2).await;
    let info = timeout(LONG, a.ping(nid(2, 2))).await.unwrap().unwrap();
    assert_eq!(
        info.nis.iter().map(|n| n.nid).collect::<Vec<_>>(),
        [Nid::LO, nid(2, 2)]
    );
    assert_eq!(a.known_peer(nid(2, 2)), Some(info));

    let data = noise(1, LNET_MTU);
    let mut sink = b.expect_put(8, 3);
    timeout(LONG, a.put(nid(2, 2), 8, 3, 0, data.clone(), true))
        .await
        .unwrap()
        .unwrap();
    assert!(sink.try_recv().expect("an ACK means it is there").data == data);

    let mut offer = b.offer_get(8, 4, data.clone());
    assert!(
        timeout(LONG, a.get(nid(2, 2), 8, 4, LNET_MTU as u32))
            .await
            .unwrap()
            .unwrap()
            == data
    );
    timeout(LONG, offer.done()).await.unwrap().unwrap();

    // The other way, over the connections a has opened.
    let mut sink = a.expect_put(8, 5);
    timeout(LONG, b.put(nid(2, 1), 8, 5, 0, data.clone(), true))
        .await
        .unwrap()
        .unwrap();
    assert!(sink.recv().await.data == data);
    assert_eq!(b.stats().conns.value(), 3);
    stop(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_connect_at_once() {
    for round in 0..5 {
        let (a, b) = pair(3).await;
        let (x, y) = tokio::join!(
            timeout(LONG, a.ping(nid(3, 2))),
            timeout(LONG, b.ping(nid(3, 1)))
        );
        x.expect("no hang")
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        y.expect("no hang")
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        stop(&[&a, &b]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_are_reported_and_opened_again() {
    let (a, b) = pair(4).await;
    b.serve_portal(12, Arc::new(Echo));
    timeout(LONG, a.ping(nid(4, 2))).await.unwrap().unwrap();
    until("all three are open", || {
        a.stats().conns.value() == 3 && b.stats().conns.value() == 3
    })
    .await;
    // A GET that nobody answers is under way when the connections go.
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.get(nid(4, 2), 8, 1, 1).await }
    });
    until("the GET has arrived", || b.stats().unmatched.value() > 0).await;
    b.reset_peer(nid(4, 1));
    let err = timeout(LONG, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(err, SendError::PeerReset), "{err}");
    // The initiator opens them again by itself, and b can reach a over them.
    until("the connections come back", || a.stats().conns.value() >= 6).await;
    timeout(LONG, b.ping(nid(4, 1))).await.unwrap().unwrap();
    // Resets in the middle of a stream: every message arrives whole or its sender is told.
    let (mut sent, mut failed) = (0u32, 0u32);
    for i in 0..200u64 {
        let data = noise(i, 100_000);
        let mut sink = b.expect_put(8, 100 + i);
        if i % 10 == 5 {
            let a = a.clone();
            tokio::spawn(async move { a.reset_peer(nid(4, 2)) });
        }
        match timeout(LONG, a.put(nid(4, 2), 8, 100 + i, 0, data.clone(), true))
            .await
            .expect("no hang")
        {
            Ok(()) => {
                sent += 1;
                assert!(sink.try_recv().expect("acknowledged").data == data);
            }
            Err(_) => failed += 1,
        }
    }
    assert!(sent > 100, "{sent} sent, {failed} failed");
    stop(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_restarts_is_found_again() {
    let a = start(config(5, 1)).await;
    let err = timeout(LONG, a.ping(nid(5, 2))).await.unwrap().unwrap_err();
    assert!(matches!(err, SendError::Unreachable { .. }), "{err}");
    for _ in 0..3 {
        let b = start(config(5, 2)).await;
        let deadline = tokio::time::Instant::now() + LONG;
        while let Err(e) = timeout(LONG, a.ping(nid(5, 2))).await.expect("no hang") {
            assert!(tokio::time::Instant::now() < deadline, "{e}");
            sleep(Duration::from_millis(20)).await;
        }
        b.shutdown().await;
    }
    stop(&[&a]).await;
}

struct Sum(AtomicU64);

impl PortalHandler for Sum {
    fn on_put(&self, _: &Arc<Node>, ev: PutEvent) {
        self.0.fetch_add(ev.data.len() as u64, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_senders_share_the_credits() {
    let limits = Limits {
        peer_credits: 2,
        ni_credits: 3,
        ..Limits::default()
    };
    let a = start(NodeConfig {
        limits,
        ..config(10, 1)
    })
    .await;
    let b = start(config(10, 2)).await;
    let sum = Arc::new(Sum(AtomicU64::new(0)));
    b.serve_portal(12, sum.clone());
    let sends: Vec<_> = (0..64u64)
        .map(|i| {
            let a = a.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    a.put(nid(10, 2), 12, i, 0, Payload::from(vec![1; 50_000]), true)
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for s in sends {
        timeout(LONG, s).await.expect("no hang").unwrap();
    }
    assert_eq!(sum.0.load(Ordering::Relaxed), 64 * 10 * 50_000);
    stop(&[&a, &b]).await;
    assert!(matches!(a.ping(nid(10, 2)).await, Err(SendError::Shutdown)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_acceptor_is_reached_over_its_own_connections() {
    let server = start(config(11, 1)).await;
    let client = start(NodeConfig {
        listen_port: None,
        secure_ports: true,
        ..config(11, 2)
    })
    .await;
    let err = timeout(LONG, server.ping(nid(11, 2)))
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(err, SendError::Unreachable { .. }), "{err}");
    timeout(LONG, client.ping(nid(11, 1)))
        .await
        .unwrap()
        .unwrap();
    timeout(LONG, server.ping(nid(11, 2)))
        .await
        .unwrap()
        .unwrap();
    stop(&[&server, &client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_ports_are_below_1024_when_allowed() {
    let privileged = std::net::TcpListener::bind((ip(15, 3), 1000)).is_ok();
    let listener = tokio::net::TcpListener::bind((ip(15, 1), PORT))
        .await
        .unwrap();
    let b = start(NodeConfig {
        secure_ports: true,
        ..config(15, 2)
    })
    .await;
    for round in 0..3 {
        let pinging = tokio::spawn({
            let b = b.clone();
            async move { b.ping(nid(15, 1)).await }
        });
        let (_, from) = timeout(LONG, listener.accept()).await.unwrap().unwrap();
        assert_eq!(
            from.ip(),
            ip(15, 2),
            "round {round}: from our NID's address"
        );
        assert_eq!(from.port() < 1024, privileged, "round {round}: {from}");
        assert!(timeout(LONG, pinging).await.unwrap().unwrap().is_err());
        sleep(Duration::from_millis(500)).await;
    }
    stop(&[&b]).await;
}

struct Panics;

impl PortalHandler for Panics {
    fn on_put(&self, _: &Arc<Node>, _: PutEvent) {
        panic!("expected: thrown by the test");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_panics_costs_one_connection() {
    let (a, b) = pair(16).await;
    b.serve_portal(12, Arc::new(Panics));
    let err = timeout(LONG, a.put(nid(16, 2), 12, 1, 0, Payload::new(), true))
        .await
        .expect("no hang")
        .unwrap_err();
    assert!(matches!(err, SendError::PeerReset), "{err}");
    b.unserve_portal(12);
    until("it answers again", || a.stats().conns.value() >= 4).await;
    timeout(LONG, a.ping(nid(16, 2))).await.unwrap().unwrap();
    stop(&[&a, &b]).await;
}
