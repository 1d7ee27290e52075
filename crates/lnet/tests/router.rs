//! Routers and Multi-Rail over TCP on loopback addresses, and over memlnd with a paused clock.
//!
//! Every test has addresses of its own (by process id and test number), so that runs side by side do not meet.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use coral_buffers::Payload;
use coral_lnet::{
    FaultAction, FaultRule, LNET_MTU, Limits, MemNet, Nid, Node, NodeConfig, PoolSizes, SendError,
    StartError, parse_routes,
};
use coral_wire::Wire;
use coral_wire::lnet::{
    ConnRequest, KsockHello, KsockMsgHdr, LNET_PROTO_MAGIC, LnetHdr, LnetMsg, WireHandle, feat,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use zerocopy::IntoBytes;

const PORT: u16 = 20989;
/// Longer than anything here takes; a test that hangs fails by it.
const LONG: Duration = Duration::from_secs(60);

/// Address `n` of network tcp`net` of a test.
fn nid(test: u8, net: u16, n: u8) -> Nid {
    let pid = std::process::id();
    Nid::tcp(
        net,
        Ipv4Addr::new(
            127,
            2 + (pid >> 7) as u8 % 250,
            ((pid & 0x7f) << 1) as u8 + (test >> 5),
            ((test & 31) << 3) + n,
        ),
    )
}

fn config(nids: &[Nid], routes: &str) -> NodeConfig {
    let routes = if routes.is_empty() {
        Vec::new()
    } else {
        parse_routes(routes).unwrap()
    };
    NodeConfig {
        nids: nids.to_vec(),
        listen_port: Some(PORT),
        connect_port: PORT,
        secure_ports: false,
        routes,
        ..NodeConfig::default()
    }
}

async fn start(nids: &[Nid], routes: &str) -> Arc<Node> {
    Node::start(config(nids, routes), None).await.unwrap()
}

async fn start_router(nids: &[Nid]) -> Arc<Node> {
    Node::start(
        NodeConfig {
            routing: Some(PoolSizes::default()),
            ..config(nids, "")
        },
        None,
    )
    .await
    .unwrap()
}

async fn stop(nodes: &[&Arc<Node>]) {
    for n in nodes {
        n.shutdown().await;
    }
}

/// `len` bytes that depend on `seed`.
fn noise(seed: u64, len: usize) -> Payload {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut all = Vec::with_capacity(len + 8);
    while all.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        all.extend_from_slice(&x.to_le_bytes());
    }
    all.truncate(len);
    Payload::from(all)
}

/// Waits until `what` holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + LONG;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// A PUT with ACK of `data`, seen whole by the other side.
async fn send_checked(
    from: &Arc<Node>,
    to: &Arc<Node>,
    to_nid: Nid,
    mbits: u64,
    len: usize,
) -> Result<(), SendError> {
    let data = noise(mbits, len);
    let mut sink = to.expect_put(8, mbits);
    timeout(LONG, from.put(to_nid, 8, mbits, 0, data.clone(), true))
        .await
        .expect("an end")?;
    let ev = sink.try_recv().expect("an ACK means that it is there");
    assert!(ev.data == data, "{len} bytes changed on the way");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_crosses_a_router() {
    let (a_nid, b_nid, gw0, gw1) = (nid(1, 0, 1), nid(1, 1, 2), nid(1, 0, 3), nid(1, 1, 4));
    let router = start_router(&[gw0, gw1]).await;
    let a = start(&[a_nid], &format!("tcp1 {gw0}")).await;
    let b = start(&[b_nid], &format!("tcp {gw1}")).await;

    let info = timeout(LONG, a.ping(b_nid)).await.unwrap().unwrap();
    assert_eq!(info.nids().collect::<Vec<_>>(), [b_nid]);
    let info = timeout(LONG, a.ping(gw0)).await.unwrap().unwrap();
    assert_eq!(
        (
            info.features & feat::RTE_DISABLED,
            info.nids().collect::<Vec<_>>()
        ),
        (0, vec![gw0, gw1])
    );
    until("the route is up", || {
        a.routes()[0].up && !a.routes()[0].multi_hop
    })
    .await;

    for (i, len) in [0, 1, 928, 4096, 4097, 65536, LNET_MTU - 1, LNET_MTU]
        .into_iter()
        .enumerate()
    {
        send_checked(&a, &b, b_nid, i as u64, len).await.unwrap();
        send_checked(&b, &a, a_nid, 100 + i as u64, len)
            .await
            .unwrap();
        let mut offer = b.offer_get(9, i as u64, noise(7, len));
        assert!(
            timeout(LONG, a.get(b_nid, 9, i as u64, LNET_MTU as u32))
                .await
                .unwrap()
                .unwrap()
                == noise(7, len)
        );
        timeout(LONG, offer.done()).await.unwrap().unwrap();
    }
    let s = router.stats();
    assert!(s.routed.value() >= 8 * 6, "{}", s.routed.value());
    assert_eq!(
        (
            s.no_route.value(),
            s.not_routing.value(),
            s.route_failed.value()
        ),
        (0, 0, 0)
    );
    until("all buffers are free again", || {
        let r = router.routing();
        (r.tiny.credits, r.small.credits, r.large.credits) == (2048, 16384, 1024)
    })
    .await;
    assert!(router.routing().large.mincredits < 1024 && router.routing().enabled);
    assert_eq!(a.stats().no_route.value() + a.stats().unmatched.value(), 0);
    stop(&[&a, &b, &router]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routers_share_the_load_and_a_dead_one_is_left_out() {
    let (a_nid, b_nid) = (nid(2, 0, 1), nid(2, 1, 2));
    let gws = [[nid(2, 0, 3), nid(2, 1, 4)], [nid(2, 0, 5), nid(2, 1, 6)]];
    let mut routers = [start_router(&gws[0]).await, start_router(&gws[1]).await];
    let a = start(&[a_nid], &format!("tcp1 {},{}", gws[0][0], gws[1][0])).await;
    let b = start(&[b_nid], &format!("tcp {},{}", gws[0][1], gws[1][1])).await;
    until("both routes are up", || {
        a.routes().iter().chain(&b.routes()).all(|r| r.up)
    })
    .await;
    for i in 0..40 {
        send_checked(&a, &b, b_nid, i, 10_000).await.unwrap();
    }
    let routed: Vec<u64> = routers.iter().map(|r| r.stats().routed.value()).collect();
    assert!(
        routed.iter().all(|n| *n >= 20),
        "{routed:?} of 80 messages each way"
    );

    routers[0].shutdown().await;
    // What was inside the dying router, or answers given to it by who has not noticed yet, may be lost; nothing after that.
    until("both notice", || {
        [&a, &b]
            .iter()
            .all(|n| n.routes().iter().filter(|r| r.up).count() == 1)
    })
    .await;
    let before = routers[1].stats().routed.value();
    for i in 100..140 {
        send_checked(&a, &b, b_nid, i, 10_000).await.unwrap();
    }
    assert!(
        routers[1].stats().routed.value() >= before + 80,
        "all by the one that is left"
    );

    routers[0] = start_router(&gws[0]).await;
    until("it is found again", || {
        a.routes().iter().chain(&b.routes()).all(|r| r.up)
    })
    .await;
    for i in 200..220 {
        send_checked(&a, &b, b_nid, i, 10_000).await.unwrap();
    }
    assert!(routers[0].stats().routed.value() >= 10, "it is used again");
    stop(&[&a, &b, &routers[0], &routers[1]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_buffers_senders_wait_and_nothing_is_lost() {
    let (b_nid, gw0, gw1) = (nid(3, 1, 2), nid(3, 0, 3), nid(3, 1, 4));
    let router = start_router(&[gw0, gw1]).await;
    router.set_pools(PoolSizes {
        tiny: 1,
        small: 1,
        large: 1,
    });
    let b = start(&[b_nid], &format!("tcp {gw1}")).await;
    let senders = [
        start(&[nid(3, 0, 5)], &format!("tcp1 {gw0}")).await,
        start(&[nid(3, 0, 6)], &format!("tcp1 {gw0}")).await,
    ];
    let jobs: Vec<_> = (0..48u64)
        .map(|i| {
            let (a, b) = (senders[i as usize % 2].clone(), b.clone());
            tokio::spawn(async move {
                send_checked(&a, &b, b_nid, i, [0, 4000, LNET_MTU][i as usize % 3])
                    .await
                    .unwrap()
            })
        })
        .collect();
    for j in jobs {
        j.await.unwrap();
    }
    assert!(router.stats().route_waits.value() > 0);
    assert_eq!(router.routing().large.mincredits, 0);
    assert_eq!(
        router.stats().route_failed.value() + router.stats().no_route.value(),
        0
    );
    stop(&[&senders[0], &senders[1], &b, &router]).await;
}

/// A connection of a made-up peer, with the handshake done.
async fn raw_conn(from: Nid, to: Nid) -> TcpStream {
    let sock = TcpSocket::new_v4().unwrap();
    sock.set_reuseaddr(true).unwrap();
    sock.bind((from.ipv4().unwrap(), 0).into()).unwrap();
    let mut s = sock
        .connect((to.ipv4().unwrap(), PORT).into())
        .await
        .unwrap();
    let hello = KsockHello {
        magic: LNET_PROTO_MAGIC,
        version: 3,
        src_nid: from,
        dst_nid: to,
        src_pid: 12345,
        dst_pid: 0,
        src_incarnation: 7,
        dst_incarnation: 0,
        ctype: 1,
        nips: 0,
    };
    s.write_all(&[ConnRequest::new(to).to_bytes(), hello.to_bytes()].concat())
        .await
        .unwrap();
    let mut answer = [0; 56];
    s.read_exact(&mut answer).await.unwrap();
    s
}

fn raw_put(src: Nid, dest: Nid, pids: (u32, u32), zc: u64, len: u32) -> Vec<u8> {
    let msg = LnetMsg::Put {
        ack_wmd: WireHandle::NONE,
        match_bits: 5,
        hdr_data: 6,
        ptl_index: 8,
        offset: 9,
    };
    let hdr = LnetHdr {
        dest_nid: dest,
        src_nid: src,
        dest_pid: pids.0,
        src_pid: pids.1,
        payload_length: len,
        msg,
    };
    [KsockMsgHdr::lnet(zc).as_bytes(), &hdr.encode()].concat()
}

/// Reads frames until one is an LNet message; gives its header and payload.
async fn raw_read(s: &mut TcpStream) -> ([u8; 72], Vec<u8>) {
    loop {
        let mut ksm = [0; 24];
        s.read_exact(&mut ksm).await.unwrap();
        if ksm[0] == 0xc0 {
            continue;
        }
        let mut hdr = [0; 72];
        s.read_exact(&mut hdr).await.unwrap();
        let mut payload = vec![0; LnetHdr::decode(&hdr).unwrap().payload_length as usize];
        s.read_exact(&mut payload).await.unwrap();
        return (hdr, payload);
    }
}

async fn closed(s: &mut TcpStream) {
    let mut b = [0; 4096];
    timeout(LONG, async {
        while matches!(s.read(&mut b).await, Ok(n) if n > 0) {}
    })
    .await
    .expect("the router closes the connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_pass_unchanged_and_zero_copy_is_acknowledged() {
    let (a, b, gw0, gw1) = (nid(4, 0, 1), nid(4, 1, 2), nid(4, 0, 3), nid(4, 1, 4));
    let router = start_router(&[gw0, gw1]).await;
    let mut out = raw_conn(b, gw1).await;
    let mut into = raw_conn(a, gw0).await;
    let head = raw_put(a, b, (77, 88), 0xabcd, 20_000);
    let data = noise(3, 20_000).copy_to_bytes();
    into.write_all(&[&head[..], &data[..]].concat())
        .await
        .unwrap();
    let (hdr, payload) = timeout(LONG, raw_read(&mut out)).await.unwrap();
    assert_eq!(hdr, head[24..], "all 72 bytes, process ids too");
    assert!(payload == data);
    let mut ack = [0; 24];
    timeout(LONG, into.read_exact(&mut ack))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        ack,
        KsockMsgHdr::noop(0, 0xabcd).as_bytes(),
        "the router has it: the sender may have its pages back"
    );
    router.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_costs_its_own_connection_only() {
    let (a_nid, b_nid, bad, gw0, gw1) = (
        nid(5, 0, 1),
        nid(5, 1, 2),
        nid(5, 0, 5),
        nid(5, 0, 3),
        nid(5, 1, 4),
    );
    let limits = Limits {
        sock_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let cfg = NodeConfig {
        routing: Some(PoolSizes {
            tiny: 4,
            small: 4,
            large: 12,
        }),
        limits,
        ..config(&[gw0, gw1], "")
    };
    let router = Node::start(cfg, None).await.unwrap();
    let a = start(&[a_nid], &format!("tcp1 {gw0}")).await;
    let b = start(&[b_nid], &format!("tcp {gw1}")).await;

    // Messages that nobody can deliver are counted, and the connection lives on.
    let mut s = raw_conn(bad, gw0).await;
    s.write_all(&raw_put(bad, nid(5, 9, 1), (1, 1), 0, 0))
        .await
        .unwrap();
    s.write_all(&[&raw_put(bad, nid(5, 9, 1), (1, 1), 0, 5000)[..], &[7; 5000]].concat())
        .await
        .unwrap();
    until("both are counted", || router.stats().no_route.value() == 2).await;
    // Destinations that break the protocol end it: on the sender's own network, and the router's other NID.
    for dest in [nid(5, 0, 7), gw1] {
        let mut s = raw_conn(bad, gw0).await;
        s.write_all(&raw_put(bad, dest, (1, 1), 0, 0))
            .await
            .unwrap();
        closed(&mut s).await;
    }
    // Somebody else wrote it, perhaps far behind the peer: dropped.
    s.write_all(&raw_put(nid(5, 7, 1), gw1, (1, 1), 0, 0))
        .await
        .unwrap();
    until("it is dropped", || router.stats().not_routing.value() == 1).await;
    // A message that claims to be the router's own goes nowhere.
    s.write_all(&raw_put(gw0, b_nid, (1, 1), 0, 0))
        .await
        .unwrap();
    until("it is counted", || router.stats().unmatched.value() == 1).await;

    // Bulk that is announced and does not come holds as many buffers as one peer may have; the others work on.
    let mut stuck = Vec::new();
    for _ in 0..12 {
        let mut s = raw_conn(bad, gw0).await;
        s.write_all(&raw_put(bad, b_nid, (1, 1), 0, LNET_MTU as u32))
            .await
            .unwrap();
        s.write_all(&[1; 1000]).await.unwrap();
        stuck.push(s);
    }
    until("its credits are gone", || {
        router.routing().large.credits == 4
    })
    .await;
    for i in 0..10 {
        send_checked(&a, &b, b_nid, i, LNET_MTU).await.unwrap();
    }
    until(
        "the stuck connections are closed and their buffers free",
        || router.routing().large.credits == 12,
    )
    .await;
    stop(&[&a, &b, &router]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_does_not_read_costs_bounded_memory() {
    let (a_nid, deaf, b_nid, gw0, gw1) = (
        nid(6, 0, 1),
        nid(6, 1, 2),
        nid(6, 1, 5),
        nid(6, 0, 3),
        nid(6, 1, 4),
    );
    let limits = Limits {
        sock_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let router = Node::start(
        NodeConfig {
            routing: Some(PoolSizes::default()),
            limits,
            ..config(&[gw0, gw1], "")
        },
        None,
    )
    .await
    .unwrap();
    let a = start(&[a_nid], &format!("tcp1 {gw0}")).await;
    let b = start(&[b_nid], &format!("tcp {gw1}")).await;
    let _deaf = raw_conn(deaf, gw1).await;
    let jobs: Vec<_> = (0..64u64)
        .map(|i| {
            let a = a.clone();
            tokio::spawn(async move { a.put(deaf, 8, i, 0, noise(i, LNET_MTU), false).await })
        })
        .collect();
    until("the sender has used its credits up", || {
        router.routing().large.credits <= 1024 - 8
    })
    .await;
    assert!(
        router.routing().large.mincredits >= 1024 - 8,
        "{}: one peer holds at most its credits",
        router.routing().large.mincredits
    );
    // The connection with the deaf one is given up, and the road is free again.
    until("messages to it are counted as lost", || {
        router.stats().route_failed.value() > 0
    })
    .await;
    timeout(LONG, send_checked(&a, &b, b_nid, 1000, LNET_MTU))
        .await
        .unwrap()
        .unwrap();
    for j in jobs {
        j.abort();
    }
    stop(&[&a, &b, &router]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_does_not_route_is_no_gateway() {
    let (a_nid, b_nid, gw0, gw1) = (nid(7, 0, 1), nid(7, 1, 2), nid(7, 0, 3), nid(7, 1, 4));
    let lazy = start(&[gw0, gw1], "").await;
    let a = start(&[a_nid], &format!("tcp1 {gw0}")).await;
    until("it says that it does not route", || matches!(a.peers().iter().find(|p| p.primary_nid == gw0.to_string()), Some(p) if !p.router && p.nis.len() == 2)).await;
    let err = a
        .put(b_nid, 8, 1, 0, Payload::new(), true)
        .await
        .unwrap_err();
    assert!(
        err.to_string()
            .contains("no router on the way to it is alive"),
        "{err}"
    );
    let mut s = raw_conn(nid(7, 0, 5), gw0).await;
    s.write_all(&raw_put(nid(7, 0, 5), b_nid, (1, 1), 0, 0))
        .await
        .unwrap();
    until("what it is given is dropped and counted", || {
        lazy.stats().not_routing.value() == 1
    })
    .await;
    // It begins to route, and says so to those who know it.
    lazy.set_routing(true);
    until("the route comes up", || a.routes()[0].up).await;
    stop(&[&a, &lazy]).await;
}

#[tokio::test]
async fn bad_configurations_are_named() {
    let us = nid(8, 0, 1);
    let why = async |nids: &[Nid], routes: &str| {
        Node::start(config(nids, routes), None)
            .await
            .expect_err("refused")
            .to_string()
    };
    assert!(
        why(&[us], &format!("tcp1 {us}"))
            .await
            .contains("through this node itself")
    );
    assert!(
        why(&[us], "tcp1 10.9.0.1@tcp9")
            .await
            .contains("on which this node has no NID")
    );
    assert!(why(&[us, us], "").await.contains("given twice"));
    let _first = start(&[us], "").await;
    assert!(
        matches!(
            Node::start(config(&[us], ""), None).await,
            Err(StartError::Listen { .. })
        ),
        "a second node with the same NID on this machine"
    );
    let a = start(&[nid(8, 0, 2)], "").await;
    let err = a
        .put(nid(8, 5, 1), 8, 1, 0, Payload::new(), false)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        err.contains("no network interface on its network, and no route to it"),
        "{err}"
    );
    stop(&[&_first, &a]).await;
}

/// PUTs that `node` has received from `nid`.
fn received_puts(node: &Node, nid: Nid) -> u64 {
    let peers = node.peers();
    let ni = peers
        .iter()
        .flat_map(|p| &p.nis)
        .find(|n| n.nid == nid.to_string());
    ni.map_or(0, |n| n.traffic.received.put)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_interfaces_are_used_and_one_that_fails_is_left() {
    let (a_nids, b_nids) = ([nid(9, 0, 1), nid(9, 1, 2)], [nid(9, 0, 3), nid(9, 1, 4)]);
    let a = start(&a_nids, "").await;
    let b = start(&b_nids, "").await;
    timeout(LONG, a.discover(b_nids[0])).await.unwrap().unwrap();
    until("b was told", || {
        b.peers()
            .iter()
            .any(|p| p.primary_nid == a_nids[0].to_string() && p.nis.len() == 2)
    })
    .await;
    // What comes by the second NID before that has spoken for itself is its own.
    let mut known = 0;
    for i in 1000.. {
        let mut sink = b.expect_put(8, i);
        timeout(LONG, a.put(b_nids[0], 8, i, 0, Payload::new(), true))
            .await
            .unwrap()
            .unwrap();
        known = if sink.try_recv().unwrap().from == a_nids[0] {
            known + 1
        } else {
            0
        };
        if known == 4 {
            break;
        }
        assert!(i < 4000, "it was never asked where it belongs");
        sleep(Duration::from_millis(10)).await;
    }
    let before = a_nids.map(|nid| received_puts(&b, nid));
    for i in 0..40u64 {
        let data = noise(i, 20_000);
        let mut sink = b.expect_put(8, i);
        timeout(LONG, a.put(b_nids[0], 8, i, 0, data.clone(), true))
            .await
            .unwrap()
            .unwrap();
        let ev = sink.try_recv().unwrap();
        assert_eq!(ev.from, a_nids[0], "a node is known by its primary NID");
        assert!(ev.data == data);
    }
    let after = a_nids.map(|nid| received_puts(&b, nid));
    assert!(
        after
            .iter()
            .zip(before)
            .all(|(after, before)| after - before >= 19),
        "{before:?} {after:?}"
    );

    // b loses an interface: what fails there goes again by the other, and its health says so.
    b.shutdown().await;
    let b = start(&b_nids[..1], "").await;
    for i in 100..140u64 {
        let done = timeout(LONG, a.put(b_nids[0], 8, i, 0, Payload::new(), false))
            .await
            .unwrap();
        assert!(done.is_ok() || i < 104, "message {i}: {done:?}");
    }
    until(
        "its health has fallen, or b has told that it has it no more",
        || {
            let peers = a.peers();
            let p = peers
                .iter()
                .find(|p| p.primary_nid == b_nids[0].to_string())
                .unwrap();
            p.nis.get(1).is_none_or(|n| n.health.value < 1000)
        },
    )
    .await;
    stop(&[&a, &b]).await;
}

/// What a writing client does: bulk that a server GETs, and a small message after each. In turn by messages all bulk would take
/// the same way.
#[tokio::test(start_paused = true)]
async fn routers_of_equal_priority_share_the_bytes_both_ways() {
    let mem = MemNet::new();
    let node = async |nids: &[&str], routes: &str| {
        let nids: Vec<Nid> = nids.iter().map(|n| n.parse().unwrap()).collect();
        let routing = (nids.len() > 1).then(PoolSizes::default);
        Node::start(
            NodeConfig {
                listen_port: None,
                routing,
                ..config(&nids, routes)
            },
            Some(mem.clone()),
        )
        .await
        .unwrap()
    };
    let client = node(&["10.0.0.1@tcp"], "tcp1 10.0.0.3@tcp 10.0.0.4@tcp").await;
    let server = node(&["10.1.0.2@tcp1"], "tcp 10.1.0.3@tcp1 10.1.0.4@tcp1").await;
    let routers = [
        node(&["10.0.0.3@tcp", "10.1.0.3@tcp1"], "").await,
        node(&["10.0.0.4@tcp", "10.1.0.4@tcp1"], "").await,
    ];
    while !client.routes().iter().chain(&server.routes()).all(|r| r.up) {
        sleep(Duration::from_secs(1)).await;
    }
    let bytes = || routers.each_ref().map(|r| r.stats().routed_bytes.value());
    let data = noise(1, LNET_MTU);
    let mut before = bytes();
    for write in [true, false] {
        let (mut requests, mut replies, mut sink) = (
            server.expect_put(8, 1),
            client.expect_put(8, 1),
            client.expect_put(9, 1),
        );
        for i in 0..40 {
            let _offer = client.offer_get(7, i, data.clone());
            client
                .put(server.nid(), 8, 1, 0, vec![1u8; 500].into(), true)
                .await
                .unwrap();
            match write {
                true => drop(
                    server
                        .get(client.nid(), 7, i, LNET_MTU as u32)
                        .await
                        .unwrap(),
                ),
                false => server
                    .put(client.nid(), 9, 1, 0, data.clone(), true)
                    .await
                    .unwrap(),
            }
            server
                .put(client.nid(), 8, 1, 0, vec![1u8; 500].into(), true)
                .await
                .unwrap();
            drop((requests.try_recv(), replies.try_recv(), sink.try_recv()));
        }
        let now = bytes();
        let [a, b] = [now[0] - before[0], now[1] - before[1]];
        assert!(
            a + b >= 40 * LNET_MTU as u64 && a.abs_diff(b) <= 4 * LNET_MTU as u64,
            "writing {write}: {a} and {b} bytes"
        );
        before = now;
    }
    stop(&[&client, &server, &routers[0], &routers[1]]).await;
}

#[tokio::test(start_paused = true)]
async fn memory_nodes_route_too_and_time_can_be_paused() {
    let mem = MemNet::new();
    let nid = |s: &str| s.parse::<Nid>().unwrap();
    let node = async |nids: &[&str], routes: &str, routing: bool| {
        let nids: Vec<Nid> = nids.iter().map(|n| nid(n)).collect();
        let cfg = NodeConfig {
            listen_port: None,
            routing: routing.then(PoolSizes::default),
            ..config(&nids, routes)
        };
        Node::start(cfg, Some(mem.clone())).await.unwrap()
    };
    let a = node(&["10.0.0.1@tcp"], "tcp1 10.0.0.3@tcp", false).await;
    let b = node(&["10.1.0.2@tcp1"], "tcp 10.1.0.3@tcp1", false).await;
    let router = node(&["10.0.0.3@tcp", "10.1.0.3@tcp1"], "", true).await;
    send_checked(&a, &b, b.nid(), 1, LNET_MTU).await.unwrap();
    assert!(router.stats().routed.value() >= 2, "PUT and ACK");
    // A router that loses everything for a while is dead, and comes back.
    router.faults().add(FaultRule::all(FaultAction::Drop));
    sleep(Duration::from_secs(300)).await;
    assert!(!a.routes()[0].up);
    router.faults().clear();
    sleep(Duration::from_secs(120)).await;
    assert!(a.routes()[0].up);
    send_checked(&a, &b, b.nid(), 2, 100).await.unwrap();
    stop(&[&a, &b, &router]).await;
}
