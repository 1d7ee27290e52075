//! Peers over TCP that are made by hand: as a kernel speaks, and as nobody should.

mod panics;
mod tcp_common;

use std::sync::Arc;
use std::time::Duration;

use coral_lnet::{
    Accept, LNET_MTU, Limits, Nid, Node, NodeConfig, PortalHandler, PutEvent, SendError,
};
use coral_wire::lnet::{LnetMsg, PingInfo, WireHandle};
use panics::panics;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tcp_common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// A handshake and messages behind it, as they should be but for some fields, bytes, or an early end.
fn mutated_connection(rng: &mut ChaCha8Rng, life: u64) -> Vec<u8> {
    const SRC_NID: std::ops::Range<usize> = 24..32;
    let (peer, us) = (nid(6, 3), nid(6, 1));
    let mut all = [connreq(us), hello(peer, us, life, rng.random_range(1..4))].concat();
    let handshake = all.len();
    for i in 0..rng.random_range(1..10) {
        let message = match rng.random_range(0..5) {
            0 => frame(peer, us, ping_of(i), &[]),
            1 => frame(
                peer,
                us,
                push(),
                &PingInfo::new(rng.random_range(0..64), 12345, i as u32, &[peer, nid(6, 4)])
                    .encode(),
            ),
            2 => put(peer, us, i + 2, 9, i, &vec![1; rng.random_range(0..9000)]),
            3 => frame(
                peer,
                us,
                LnetMsg::Reply {
                    dst_wmd: WireHandle {
                        interface_cookie: rng.random(),
                        object_cookie: i,
                    },
                },
                &[2; 64],
            ),
            _ => frame(
                peer,
                us,
                LnetMsg::Ack {
                    dst_wmd: WireHandle::NONE,
                    match_bits: i,
                    mlength: rng.random(),
                },
                &[],
            ),
        };
        all.extend(message);
    }
    for _ in 0..rng.random_range(0..4) {
        // Half of them in the handshake. Nobody claims to be the peer that is there.
        let end = if rng.random_bool(0.5) {
            handshake
        } else {
            all.len()
        };
        let at = 4 * rng.random_range(0..end / 4);
        let word = [
            0u32,
            1,
            2,
            3,
            0xc0,
            0xc1,
            0x10_0000,
            0x10_0001,
            u32::MAX,
            rng.random(),
        ][rng.random_range(0..10)];
        match rng.random_range(0..4) {
            _ if SRC_NID.contains(&at) => all[SRC_NID].copy_from_slice(
                &[Nid(0), Nid::LO, us, nid(6, 5), Nid::tcp(7, ip(6, 5))][rng.random_range(0..5)]
                    .0
                    .to_le_bytes(),
            ),
            0 => all.truncate(at.max(1)),
            1 => all[at] ^= 1 << rng.random_range(0..8),
            _ if at + 4 <= all.len() => all[at..at + 4].copy_from_slice(&word.to_le_bytes()),
            _ => {}
        }
        if all.len() < handshake {
            break;
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_connections_hurt_only_themselves() {
    assert_eq!(panics(), 0);
    // What is closed at once has no owner any more when it is asked for.
    let a = start(NodeConfig {
        accept: Accept::All,
        ..config(6, 1)
    })
    .await;
    let b = start(config(6, 2)).await;
    timeout(LONG, b.ping(nid(6, 1))).await.unwrap().unwrap();
    until("b has all its connections", || b.stats().conns.value() == 3).await;
    let seed = std::env::var("CORAL_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(6);
    println!("CORAL_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for life in 0..200 {
        let bytes = mutated_connection(&mut rng, life);
        let mut s = raw(6, 3).await;
        let _ = s.write_all(&bytes).await;
        let _ = s.shutdown().await;
        closed(&mut s).await;
    }
    let info = timeout(LONG, b.ping(nid(6, 1))).await.unwrap();
    assert!(info.is_ok(), "the others' connections still work: {info:?}");
    assert_eq!(b.stats().conns.value(), 3, "and are the same as before");
    let s = a.stats();
    assert!(
        s.bad_handshakes.value() >= 10
            && s.bad_bytes.value() >= 5
            && s.pings.value() >= 50
            && s.pushes.value() >= 50,
        "all kinds were among them: {s:?}"
    );
    assert_eq!(panics(), 0);
    stop(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshake_as_a_kernel_does_it() {
    let a = start(config(7, 1)).await;
    let (mut bulk_out, answer) = shake(7, 3, 77, 3).await;
    assert_eq!(
        answer[48..52],
        2i32.to_le_bytes(),
        "their BULK_OUT is our BULK_IN"
    );
    assert_eq!(answer[8..16], nid(7, 1).0.to_le_bytes());
    // Zero-copy bulk: the cookie comes back in a NOOP on this very connection once the payload is there.
    let payload = vec![5u8; 300_000];
    let mut sink = a.expect_put(8, 9);
    bulk_out
        .write_all(&put(nid(7, 3), nid(7, 1), 0x1234_5678, 8, 9, &payload))
        .await
        .unwrap();
    let ev = timeout(LONG, sink.recv()).await.unwrap();
    assert_eq!(ev.data.copy_to_bytes(), payload);
    let mut noop = [0; 24];
    timeout(LONG, bulk_out.read_exact(&mut noop))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (noop[0], &noop[8..16], &noop[16..24]),
        (0xc0, &[0; 8][..], &0x1234_5678u64.to_le_bytes()[..])
    );
    // A new life of the peer drops the old connections.
    let (_control, _) = shake(7, 3, 78, 1).await;
    closed(&mut bulk_out).await;

    // Wrong target, version and type.
    let mut s = raw(7, 3).await;
    s.write_all(&connreq(nid(7, 2))).await.unwrap();
    closed(&mut s).await;
    let mut s = raw(7, 3).await;
    let mut req = connreq(nid(7, 1));
    req[4] = 9;
    s.write_all(&req).await.unwrap();
    let mut v = [0; 16];
    timeout(LONG, s.read_exact(&mut v)).await.unwrap().unwrap();
    assert_eq!(
        v[..8],
        connreq(Nid(0))[..8],
        "told which version is spoken here"
    );
    let mut s = raw(7, 3).await;
    s.write_all(&[connreq(nid(7, 1)), hello(nid(7, 3), nid(7, 1), 78, 7)].concat())
        .await
        .unwrap();
    closed(&mut s).await;
    // A message that is not for us, an acknowledgement of nothing.
    let (mut s, _) = shake(7, 3, 78, 1).await;
    s.write_all(&put(nid(7, 3), nid(7, 2), 0, 8, 9, &[]))
        .await
        .unwrap();
    closed(&mut s).await;
    let (mut s, _) = shake(7, 3, 78, 1).await;
    let mut ack = [0u8; 24];
    ack[0] = 0xc0;
    ack[16] = 99;
    s.write_all(&ack).await.unwrap();
    closed(&mut s).await;
    assert_eq!(a.stats().bad_bytes.value(), 2);
    stop(&[&a]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_do_not_block_others() {
    let limits = Limits {
        handshake_timeout: Duration::from_millis(300),
        half_open: 8,
        ..Limits::default()
    };
    let a = start(NodeConfig {
        limits,
        ..config(8, 1)
    })
    .await;
    let mut stalled = Vec::new();
    for i in 0..20 {
        let mut s = raw(8, 3).await;
        if i % 2 == 0 {
            s.write_all(&connreq(nid(8, 1))[..10]).await.unwrap();
        }
        stalled.push(s);
    }
    let b = start(config(8, 2)).await;
    timeout(LONG, b.ping(nid(8, 1)))
        .await
        .expect("served in the end")
        .unwrap();
    for s in &mut stalled {
        closed(s).await;
    }
    until("all are counted", || a.stats().bad_handshakes.value() == 20).await;
    stop(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_stops_reading_is_given_up() {
    let limits = Limits {
        sock_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let a = start(NodeConfig {
        limits,
        ..config(9, 1)
    })
    .await;
    let (_silent, _) = shake(9, 3, 1, 1).await;
    // More than the socket buffers take; credits let eight wait at the connection.
    let sends: Vec<_> = (0..20)
        .map(|i| {
            let a = a.clone();
            tokio::spawn(async move { a.put(nid(9, 3), 8, i, 0, noise(i, LNET_MTU), false).await })
        })
        .collect();
    let mut timeouts = 0;
    for s in sends {
        if let Err(SendError::Timeout) = timeout(LONG, s).await.expect("no hang").unwrap() {
            timeouts += 1;
        }
    }
    assert!(timeouts > 0);
    // A message half received is given up as well.
    let (mut half, _) = shake(9, 4, 1, 1).await;
    half.write_all(&put(nid(9, 4), nid(9, 1), 0, 8, 9, &[1; 5000])[..3000])
        .await
        .unwrap();
    closed(&mut half).await;
    stop(&[&a]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_frees_the_port_and_tells_waiters() {
    let (a, b) = pair(12).await;
    timeout(LONG, a.ping(nid(12, 2))).await.unwrap().unwrap();
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.get(nid(12, 2), 8, 1, 1).await }
    });
    until("the GET has arrived", || b.stats().unmatched.value() > 0).await;
    // A connector that waits for its next try, and a connection in the handshake, do not hold it up.
    assert!(timeout(LONG, a.ping(nid(12, 5))).await.unwrap().is_err());
    let _half_open = raw(12, 3).await;
    a.shutdown().await;
    assert!(matches!(
        timeout(LONG, waiting).await.unwrap().unwrap(),
        Err(SendError::Shutdown)
    ));
    let again = start(config(12, 1)).await;
    timeout(LONG, again.ping(nid(12, 2)))
        .await
        .unwrap()
        .unwrap();
    let taken = Node::start(config(12, 1), None).await.unwrap_err();
    assert!(taken.to_string().contains("20988"), "{taken}");
    stop(&[&again, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_peer_is_kept_alive() {
    let limits = Limits {
        keepalive_idle: Duration::from_millis(50),
        ..Limits::default()
    };
    let a = start(NodeConfig {
        limits,
        ..config(13, 1)
    })
    .await;
    let (_control, _) = shake(13, 3, 1, 1).await;
    // Our BULK_OUT is their connection for incoming bulk: acknowledgements and keepalives come there.
    let (mut bulk, _) = shake(13, 3, 1, 3).await;
    let mut noop = [0; 24];
    timeout(LONG, bulk.read_exact(&mut noop))
        .await
        .expect("a keepalive")
        .unwrap();
    assert_eq!((noop[0], noop[8], noop[16], noop[17]), (0xc0, 0, 1, 0));
    stop(&[&a]).await;
}

/// A ping as a kernel sends it.
fn ping(src: Nid, dst: Nid) -> Vec<u8> {
    let mut v = put(src, dst, 0, 0, 1 << 63, &[]);
    v[24 + 24] = 2;
    v[24 + 56..24 + 72].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 0, 0, 0, 0, 0, 0]);
    v
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_one_who_does_not_read_are_bounded() {
    let limits = Limits {
        responses_per_peer: 100,
        ..Limits::default()
    };
    let a = start(NodeConfig {
        limits,
        ..config(14, 1)
    })
    .await;
    let (mut flood, _) = shake(14, 3, 1, 1).await;
    let pings = ping(nid(14, 3), nid(14, 1)).repeat(10_000);
    timeout(LONG, async {
        while a.stats().overrun.value() == 0 {
            flood.write_all(&pings).await.unwrap();
        }
    })
    .await
    .expect("the queue of answers has an end");
    let b = start(config(14, 2)).await;
    timeout(LONG, b.ping(nid(14, 1))).await.unwrap().unwrap();
    stop(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_acknowledgements_and_does_not_read_is_cut_off() {
    let a = start(config(28, 1)).await;
    let b = start(config(28, 2)).await;
    timeout(LONG, b.ping(nid(28, 1))).await.unwrap().unwrap();
    let (mut flood, _) = shake(28, 3, 5, 1).await;
    // Each of 96 bytes wants 24 back: what the kernel's buffers do not take may not grow without end here.
    let batch: Vec<u8> = (1..=1000u64)
        .flat_map(|i| put(nid(28, 3), nid(28, 1), i + 1, 9, i, &[]))
        .collect();
    let cut = async { while flood.write_all(&batch).await.is_ok() {} };
    timeout(LONG, cut).await.expect("the connection is closed");
    assert!(a.stats().overrun.value() > 0);
    assert!(
        timeout(LONG, b.ping(nid(28, 1))).await.unwrap().is_ok(),
        "others are served"
    );
    assert_eq!(b.stats().conns.value(), 3, "by the connections they had");
    stop(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_never_end_keep_nobody_out() {
    let mut cfg = config(29, 1);
    cfg.limits.handshake_timeout = LONG;
    let a = start(cfg).await;
    let limits = a.limits().clone();
    // More than there are places for half-open connections.
    let mut stuck = Vec::new();
    for _ in 0..2 * limits.half_open {
        stuck.push(raw(29, 3).await);
    }
    until("those too many are closed", || {
        a.stats().bad_handshakes.value() as usize
            >= 2 * limits.half_open - limits.half_open_per_address
    })
    .await;
    let b = start(config(29, 2)).await;
    assert!(
        timeout(LONG / 2, b.ping(nid(29, 1)))
            .await
            .expect("no wait for the stuck ones")
            .is_ok()
    );
    // and from four addresses as many as there are places in all: the same address is served too
    for from in 3..7 {
        for _ in 0..limits.half_open_per_address {
            stuck.push(raw(29, from).await);
        }
    }
    drop(
        timeout(LONG / 2, shake(29, 3, 5, 1))
            .await
            .expect("it speaks"),
    );
    let c = start(config(29, 7)).await;
    assert!(
        timeout(LONG / 2, c.ping(nid(29, 1)))
            .await
            .expect("no wait for the stuck ones")
            .is_ok()
    );
    drop(stuck);
    stop(&[&a, &b, &c]).await;
}

/// One machine with many mounts, of which one holds connections and uses none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_carry_nothing_give_way_to_new_ones_of_their_address() {
    let limits = Limits {
        conns_per_address: 4,
        gives_way_after: Duration::ZERO,
        ..Limits::default()
    };
    let a = start(NodeConfig {
        limits,
        ..config(33, 1)
    })
    .await;
    let mut idle = tokio::task::JoinSet::new();
    for life in 0..4 {
        // each a peer of its own, at one address
        let mut s = raw(33, 3).await;
        s.write_all(
            &[
                connreq(nid(33, 1)),
                hello(nid(33, 10 + life), nid(33, 1), 1, 1),
            ]
            .concat(),
        )
        .await
        .unwrap();
        let mut answer = [0; 56];
        timeout(LONG, s.read_exact(&mut answer))
            .await
            .unwrap()
            .unwrap();
        idle.spawn(async move { closed(&mut s).await });
    }
    until("all are open", || a.stats().conns.value() == 4).await;
    drop(shake(33, 3, 5, 1).await);
    idle.join_next().await.unwrap().unwrap();
    stop(&[&a]).await;
}

/// An LNet ping, as a kernel asks it.
fn get_ping(src: Nid, dst: Nid, object: u64) -> Vec<u8> {
    let mut v = put(src, dst, 0, 0, 0, &[]);
    v[48..52].copy_from_slice(&2u32.to_le_bytes());
    v[56..64].copy_from_slice(&7u64.to_le_bytes());
    v[64..72].copy_from_slice(&object.to_le_bytes());
    v[72..80].copy_from_slice(&(1u64 << 63).to_le_bytes());
    v[80..96].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
    v
}

/// Length of the REPLY to a ping of a node with one NID.
const PING_REPLY: usize = 24 + 72 + 48;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_what_came_at_once_are_written_at_once() {
    let a = start(config(26, 1)).await;
    let (mut s, _) = shake(26, 3, 5, 1).await;
    let before = a.stats().direct_writes.value();
    let batch: Vec<u8> = (0..12)
        .flat_map(|i| get_ping(nid(26, 3), nid(26, 1), i))
        .collect();
    s.write_all(&batch).await.unwrap();
    let mut replies = vec![0; 12 * PING_REPLY];
    timeout(LONG, s.read_exact(&mut replies))
        .await
        .unwrap()
        .unwrap();
    for (i, r) in replies.chunks(PING_REPLY).enumerate() {
        assert_eq!(
            (
                r[0],
                r[48],
                u64::from_le_bytes(r[64..72].try_into().unwrap())
            ),
            (0xc1, 3, i as u64),
            "in their order"
        );
    }
    let writes = a.stats().direct_writes.value() - before;
    assert!(writes <= 4, "{writes} writes for 12 answers to one segment");
    stop(&[&a]).await;
}

/// Answers when those that came together have been handled.
struct Unhurried;

impl PortalHandler for Unhurried {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let (node, to, mbits) = (node.clone(), ev.from, ev.mbits);
        let answer = move || {
            node.put(to, 10, mbits, 0, coral_buffers::Payload::new(), false)
                .unwatched()
        };
        coral_lnet::exec::at_end(answer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_handlers_leave_to_the_end_is_written_at_once() {
    let a = start(config(34, 1)).await;
    a.serve_portal(12, Arc::new(Unhurried));
    let (mut s, _) = shake(34, 3, 5, 1).await;
    let before = a.stats().direct_writes.value();
    let batch: Vec<u8> = (0..6)
        .flat_map(|i| put(nid(34, 3), nid(34, 1), 0, 12, i, &[]))
        .collect();
    s.write_all(&batch).await.unwrap();
    let mut answers = vec![0; 6 * (24 + 72)];
    timeout(LONG, s.read_exact(&mut answers))
        .await
        .unwrap()
        .unwrap();
    let writes = a.stats().direct_writes.value() - before;
    assert!(writes <= 3, "{writes} writes for 6 answers to one segment");
    stop(&[&a]).await;
}

/// Waits until the test has seen the answer before.
struct Slow(
    Arc<std::sync::atomic::AtomicBool>,
    Arc<std::sync::atomic::AtomicBool>,
);

impl PortalHandler for Slow {
    fn on_put(&self, _: &Arc<Node>, _: PutEvent) {
        for _ in 0..500 {
            if self.0.load(std::sync::atomic::Ordering::SeqCst) {
                return self.1.store(true, std::sync::atomic::Ordering::SeqCst);
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "a handler that blocks, on purpose"
            )]
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[expect(
    clippy::disallowed_methods,
    reason = "a peer with a socket that blocks"
)]
async fn a_slow_handler_holds_no_answer_back() {
    let a = start(config(27, 1)).await;
    let (seen, in_time) = (Arc::default(), Arc::default());
    a.serve_portal(12, Arc::new(Slow(Arc::clone(&seen), Arc::clone(&in_time))));
    let (s, _) = shake(27, 3, 5, 1).await;
    let both = [
        get_ping(nid(27, 3), nid(27, 1), 1),
        put(nid(27, 3), nid(27, 1), 0, 12, 1, &[]),
    ]
    .concat();
    // A socket without tokio: the worker that the handler blocks may be the one that watches all others.
    let mut s = s.into_std().unwrap();
    s.set_nonblocking(false).unwrap();
    s.set_read_timeout(Some(LONG)).unwrap();
    let peer = tokio::task::spawn_blocking(move || {
        std::io::Write::write_all(&mut s, &both).unwrap();
        std::io::Read::read_exact(&mut s, &mut [0; PING_REPLY]).unwrap();
        seen.store(true, std::sync::atomic::Ordering::SeqCst);
        s // open until the end
    });
    let _open = peer.await.unwrap();
    until("the handler has gone on", || {
        in_time.load(std::sync::atomic::Ordering::SeqCst)
    })
    .await;
    stop(&[&a]).await;
}
