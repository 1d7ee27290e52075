//! What one peer over TCP can do to a node, and what it cannot: fill its memory, its tasks or its peer table, or speak for others.

mod panics;
mod tcp_common;

use std::net::Ipv4Addr;
use std::time::Duration;

use coral_lnet::faults::{NidMatch, Side};
use coral_lnet::{FaultAction, FaultRule, LNET_MTU, Limits, Nid, NodeConfig, PoolSizes};
use coral_wire::lnet::{KsockMsgHdr, LnetMsg, PingInfo, WireHandle, feat};
use panics::panics;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tcp_common::*;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use zerocopy::IntoBytes;

const MR: u32 = feat::MULTI_RAIL | feat::DISCOVERY | feat::NI_STATUS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_is_kept_without_what_hangs_behind_it_and_a_long_one_not_at_all() {
    let us = nid(1, 1);
    let n = start(config_of(&[us], &format!("tcp9 {}", nid(1, 2)))).await;
    let mut s = raw_conn(nid(1, 2), us).await;
    let far = |i: u32| Nid::tcp(9, Ipv4Addr::from(0x0a00_0000 + i));
    for i in 0..20 {
        let mut info = PingInfo::new(MR, 12345, 1, &[far(i)]).encode().to_vec();
        info.resize(if i < 10 { LNET_MTU } else { 4096 }, 1);
        s.write_all(&frame(far(i), us, push(), &info))
            .await
            .unwrap();
    }
    until("all have come", || {
        n.stats().pushes.value() + n.stats().unmatched.value() == 20
    })
    .await;
    assert_eq!(n.stats().unmatched.value(), 10);
    assert!(
        (0..10).all(|i| n.known_peer(far(i)).is_none()),
        "1 MiB of it is not read"
    );
    let known: Vec<PingInfo> = (10..20).filter_map(|i| n.known_peer(far(i))).collect();
    assert_eq!(
        (
            known.len(),
            known.iter().map(|p| p.tail.len()).sum::<usize>()
        ),
        (10, 0)
    );
    stop(&[&n]).await;
}

/// Connects hang: as many as the backlog holds are made and nobody speaks on them, the others are not even answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_from_nobody_cost_few_connects_and_keep_nobody_out() {
    const PINGS: u64 = 20_000;
    let deaf = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let (us, far, bad) = (nid_on(2, 0, 1), nid_on(2, 1, 3), nid_on(2, 0, 2));
    let limits = Limits {
        connectors: 16,
        connectors_for_others: 16,
        ..Limits::default()
    };
    let cfg = NodeConfig {
        connect_port: deaf.local_addr().unwrap().port(),
        routing: Some(PoolSizes::default()),
        limits,
        ..config_of(&[us, far], "")
    };
    let n = start(cfg).await;
    let mut s = raw_conn(bad, us).await;
    let nobody = |i: u64| Nid::tcp(1, Ipv4Addr::from(0x7f80_0000 + i as u32));
    let all: Vec<u8> = (0..PINGS)
        .flat_map(|i| frame(nobody(i), us, ping_of(i), &[]))
        .collect();
    s.write_all(&all).await.unwrap();
    until("all are asked", || n.stats().pings.value() == PINGS).await;
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert!(tasks < 16 + 16, "{tasks} tasks");
    assert!(
        n.nets()
            .iter()
            .flat_map(|net| &net.nis)
            .all(|ni| ni.up && (ni.health.value == 1000 || ni.nid == "0@lo")),
        "{:?}",
        n.nets()
    );
    // Who has a connection is answered as before, and others get one.
    s.write_all(&frame(bad, us, ping_of(7), &[])).await.unwrap();
    assert!(
        matches!(next_message(&mut s).await.0.msg, LnetMsg::Reply { dst_wmd } if dst_wmd.object_cookie == 7)
    );
    let other = start(config_of(&[nid_on(2, 0, 4)], "")).await;
    timeout(LONG, other.ping(us)).await.unwrap().unwrap();
    timeout(LONG, n.ping(other.nid())).await.unwrap().unwrap();
    stop(&[&n, &other]).await;
}

/// Strangers send through a router to peers that accept connections and never speak, and to addresses where nobody listens. What
/// the router itself wants to reach it reaches at once, what waits is bounded, and what cannot go on is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_in_transit_to_the_deaf_keep_no_connect_of_our_own_waiting() {
    const STRANGERS: u8 = 20;
    // As many as one peer has router credits: all are under way at once.
    const EACH: u8 = 8;
    let (r0, r1, gw1, gw2, live) = (
        nid_on(10, 0, 1),
        nid_on(10, 1, 2),
        nid_on(10, 1, 3),
        nid_on(10, 2, 4),
        nid_on(10, 1, 5),
    );
    let pid = std::process::id();
    let other = |net: u16, n: u8| {
        Nid::tcp(
            net,
            Ipv4Addr::new(127, 253 + (pid & 1) as u8, (pid >> 1) as u8, n),
        )
    };
    let deaf: Vec<Nid> = (0..STRANGERS * EACH).map(|n| other(1, n)).collect();
    // Every tenth has no listener.
    let listeners: Vec<_> = deaf
        .iter()
        .enumerate()
        .filter(|(i, _)| i % 10 != 9)
        .map(|(_, n)| std::net::TcpListener::bind((n.ipv4().unwrap(), PORT)).unwrap())
        .collect();
    let limits = Limits {
        connectors: 4,
        connectors_for_others: 2,
        handshake_timeout: Duration::from_secs(5),
        ..Limits::default()
    };
    let cfg = config_of(&[r0, r1], &format!("tcp2 {gw1}"));
    let router = start(NodeConfig {
        routing: Some(PoolSizes::default()),
        limits,
        ..cfg
    })
    .await;
    until("nobody is at the gateway's place yet", || {
        !router.routes()[0].up
    })
    .await;
    let mut strangers = Vec::new();
    for (i, dests) in deaf.chunks(EACH.into()).enumerate() {
        let me = other(0, 200 + i as u8);
        let mut s = raw_conn(me, r0).await;
        let all: Vec<u8> = dests
            .iter()
            .flat_map(|d| frame(me, *d, put_to(9, 5), &[1; 600]))
            .collect();
        s.write_all(&all).await.unwrap();
        strangers.push(s);
    }
    let sent = deaf.len() as u64;
    let s = router.stats();
    until("all have come", || s.routed.value() == sent).await;
    // A gateway comes up, and its router finds it; a peer for which a message waits behind all others is reached for our own sake.
    let gateway = start_router(&[gw1, gw2], "").await;
    let peer = start(config_of(&[live], "")).await;
    let mut honest = raw_conn(nid_on(10, 0, 6), r0).await;
    honest
        .write_all(&frame(nid_on(10, 0, 6), live, put_to(9, 5), &[]))
        .await
        .unwrap();
    until("it has come", || s.routed.value() == sent + 1).await;
    timeout(LONG, router.ping(live))
        .await
        .expect("it does not wait for others")
        .unwrap();
    until("what waited for it has come too", || {
        peer.stats().unmatched.value() == 1
    })
    .await;
    until("the gateway is alive", || router.routes()[0].up).await;
    until("the others are counted as lost", || {
        s.route_failed.value() == sent
    })
    .await;
    let show = router.routing();
    assert!(
        show.tiny.mincredits + show.small.mincredits >= 2048 + 16384 - deaf.len() - 1,
        "no more than their credits: {show:?}"
    );
    until("all buffers are free again", || {
        (
            router.routing().tiny.credits,
            router.routing().small.credits,
        ) == (2048, 16384)
    })
    .await;
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert!(
        tasks < 2 * STRANGERS as usize + 40,
        "{tasks} tasks: nobody connects any more"
    );
    drop(listeners);
    stop(&[&router, &gateway, &peer]).await;
}

/// The address of one stranger has its share of the connects for others: who comes after it by another is served meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_does_not_take_all_connects_for_others() {
    const DEAF: u8 = 8;
    let (r0, r1, bad, honest, live) = (
        nid_on(17, 0, 1),
        nid_on(17, 1, 2),
        nid_on(17, 0, 3),
        nid_on(17, 0, 4),
        nid_on(17, 1, 5),
    );
    let deaf: Vec<Nid> = (0..DEAF).map(|i| nid_on(17, 1, 100 + i)).collect();
    let listeners: Vec<_> = deaf
        .iter()
        .map(|n| std::net::TcpListener::bind((n.ipv4().unwrap(), PORT)).unwrap())
        .collect();
    // No connect to them ends while the test runs.
    let limits = Limits {
        connectors_for_others: 4,
        connectors_per_address: 3,
        handshake_timeout: 10 * LONG,
        ..Limits::default()
    };
    let router = start(NodeConfig {
        routing: Some(PoolSizes::default()),
        limits,
        ..config_of(&[r0, r1], "")
    })
    .await;
    let peer = start(config_of(&[live], "")).await;
    let mut s = raw_conn(bad, r0).await;
    let all: Vec<u8> = deaf
        .iter()
        .flat_map(|d| frame(bad, *d, put_to(9, 5), &[1; 600]))
        .collect();
    s.write_all(&all).await.unwrap();
    until("all have come", || {
        router.stats().routed.value() == DEAF.into()
    })
    .await;
    let mut other = raw_conn(honest, r0).await;
    other
        .write_all(&frame(honest, live, put_to(9, 5), &[]))
        .await
        .unwrap();
    until("it has gone on", || peer.stats().unmatched.value() == 1).await;
    assert_eq!(
        router.stats().route_failed.value(),
        0,
        "the others wait still"
    );
    drop(listeners);
    stop(&[&router, &peer]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_over_tcp_are_bounded() {
    let limits = Limits {
        peers: 2,
        ..Limits::default()
    };
    let n = start(NodeConfig {
        limits,
        ..config(3, 1)
    })
    .await;
    let [_a, _b] = [
        raw_conn(nid(3, 2), n.nid()).await,
        raw_conn(nid(3, 3), n.nid()).await,
    ];
    let err = timeout(LONG, n.ping(nid(3, 4)))
        .await
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(err.contains("too many peers"), "{err}");
    let mut refused = raw(3, 5).await;
    refused
        .write_all(&[connreq(n.nid()), hello(nid(3, 5), n.nid(), 7, 1)].concat())
        .await
        .unwrap();
    closed(&mut refused).await;
    until("it is counted", || n.stats().bad_handshakes.value() == 1).await;
    stop(&[&n]).await;
}

/// A router on tcp and tcp1 that uses another on tcp1 to reach tcp2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_of_a_message_in_transit_says_nothing_about_how_it_leaves() {
    let (r0, r1, gw1, gw2, bad) = (
        nid_on(4, 0, 1),
        nid_on(4, 1, 2),
        nid_on(4, 1, 3),
        nid_on(4, 2, 4),
        nid_on(4, 0, 5),
    );
    let gw = start_router(&[gw1, gw2], "").await;
    let router = start_router(&[r0, r1], &format!("tcp2 {gw1}")).await;
    until("the gateway is alive", || router.routes()[0].up).await;
    let mut s = raw_conn(bad, r0).await;
    // From the destination's own network, by an address that this machine does not have.
    s.write_all(&frame(
        Nid::tcp(1, Ipv4Addr::new(10, 123, 45, 67)),
        gw1,
        put_to(9, 5),
        &[],
    ))
    .await
    .unwrap();
    until("it has come", || gw.stats().unmatched.value() == 1).await;
    assert!(router.routes()[0].up);
    assert_eq!(router.stats().route_failed.value(), 0);
    assert!(
        router
            .peers()
            .iter()
            .flat_map(|p| &p.nis)
            .all(|ni| ni.health.errors == 0)
    );
    stop(&[&gw, &router]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_nid_of_a_node_answers_through_a_router() {
    let (a1, a2, gw0, gw1, b_nid) = (
        nid_on(5, 0, 1),
        nid_on(5, 0, 2),
        nid_on(5, 0, 3),
        nid_on(5, 1, 4),
        nid_on(5, 1, 5),
    );
    let router = start_router(&[gw0, gw1], "").await;
    let a = start(config_of(&[a1, a2], &format!("tcp1 {gw0}"))).await;
    let b = start(config_of(&[b_nid], &format!("tcp {gw1}"))).await;
    for to in [a1, a2] {
        let info = timeout(LONG, b.ping(to)).await.expect("an answer").unwrap();
        assert_eq!(info.nids().collect::<Vec<_>>(), [a1, a2]);
    }
    // One that sends with its second NID by the connection of its first is forwarded for too, as by Lustre's routers.
    let mut s = raw_conn(nid_on(5, 0, 6), gw0).await;
    s.write_all(&frame(nid_on(5, 0, 7), b_nid, put_to(9, 5), &[]))
        .await
        .unwrap();
    until("it has come", || b.stats().unmatched.value() == 1).await;
    stop(&[&a, &b, &router]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_our_network_nobody_speaks_for_others() {
    let n = start(config(6, 1)).await;
    let (us, bad, victim) = (n.nid(), nid(6, 2), nid(6, 3));
    let mut s = raw_conn(bad, us).await;
    // That the victim may be reached by the bad one's address.
    let info = PingInfo::new(MR, 12345, 1, &[victim, bad]).encode();
    s.write_all(&frame(victim, us, push(), &info))
        .await
        .unwrap();
    until("it has come", || n.stats().unmatched.value() == 1).await;
    assert!(n.known_peer(victim).is_none());
    // For itself it does.
    s.write_all(&frame(
        bad,
        us,
        push(),
        &PingInfo::new(MR, 12345, 1, &[bad, nid(6, 4)]).encode(),
    ))
    .await
    .unwrap();
    until("it is known", || n.known_peer(bad).is_some()).await;
    // And not for a NID that it alone has said to be its own.
    s.write_all(&frame(
        nid(6, 4),
        us,
        push(),
        &PingInfo::new(MR, 12345, 2, &[bad, nid(6, 4)]).encode(),
    ))
    .await
    .unwrap();
    until("it has come", || n.stats().unmatched.value() == 2).await;
    assert_eq!(n.known_peer(bad).unwrap().seq(), 1);
    stop(&[&n]).await;
}

/// What is for a NID goes to nobody who only says that it is his too, be that NID unknown so far or connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_what_is_for_a_nid_that_he_says_is_his() {
    let n = start(config(11, 1)).await;
    let (us, bad, victims) = (n.nid(), nid(11, 2), [nid(11, 3), nid(11, 4)]);
    let mut bad_one = raw_conn(bad, us).await;
    let mut connected = raw_conn(victims[0], us).await;
    for (seq, list) in [
        [victims[0], bad],
        [victims[1], bad],
        [bad, victims[0]],
        [bad, victims[1]],
    ]
    .iter()
    .enumerate()
    {
        bad_one
            .write_all(&frame(
                bad,
                us,
                push(),
                &PingInfo::new(MR, 12345, seq as u32, list).encode(),
            ))
            .await
            .unwrap();
        until("it is known", || {
            n.known_peer(bad).is_some_and(|i| i.seq() == seq as u32)
        })
        .await;
        // The second one comes when the bad one has spoken of it.
        if victims[1] == list[0] {
            connected = raw_conn(victims[1], us).await;
        }
        let victim = if victims.contains(&list[0]) {
            list[0]
        } else {
            list[1]
        };
        if victim == victims[0] && seq > 0 {
            continue;
        }
        for i in 0..10 {
            timeout(LONG, n.put(victim, 9, i, 0, vec![1u8; 9].into(), false))
                .await
                .unwrap()
                .unwrap();
        }
        let mut pinged = 0;
        for i in 0..10 {
            loop {
                match next_message(&mut connected).await.0.msg {
                    LnetMsg::Put { match_bits, .. } => break assert_eq!(match_bits, i),
                    LnetMsg::Get { .. } => pinged += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(pinged <= 1, "asked at most once, whatever others say");
    }
    stop(&[&n]).await;
}

/// A node that has two interfaces says so by one of them; the other is asked, and then both are used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interface_that_is_asked_and_says_the_same_belongs_to_the_peer() {
    let n = start(config(12, 1)).await;
    let (us, nids) = (n.nid(), [nid(12, 2), nid(12, 3)]);
    let (mut first, mut second) = (raw_conn(nids[0], us).await, raw_conn(nids[1], us).await);
    let info = PingInfo::new(MR, 12345, 1, &nids).encode();
    second
        .write_all(&frame(nids[1], us, push(), &info))
        .await
        .unwrap();
    let (hdr, _) = next_message(&mut first).await;
    let LnetMsg::Get {
        return_wmd,
        ptl_index: 0,
        ..
    } = hdr.msg
    else {
        panic!("{hdr:?}")
    };
    first
        .write_all(&frame(
            nids[0],
            us,
            LnetMsg::Reply {
                dst_wmd: return_wmd,
            },
            &info,
        ))
        .await
        .unwrap();
    until("both are one", || {
        n.peers()
            .iter()
            .any(|p| p.primary_nid == nids[0].to_string() && p.nis.len() == 2)
    })
    .await;
    for i in 0..10 {
        timeout(LONG, n.put(nids[0], 9, i, 0, vec![1u8; 9].into(), false))
            .await
            .unwrap()
            .unwrap();
    }
    for (i, s) in [&mut first, &mut second].into_iter().enumerate() {
        assert!(
            matches!(next_message(s).await.0.msg, LnetMsg::Put { .. }),
            "interface {i}"
        );
    }
    stop(&[&n]).await;
}

/// It never spoke for itself, and nobody can ask it: what was sent to it in vain counts all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interface_that_others_list_and_nobody_reaches_is_left() {
    let n = start(config(15, 1)).await;
    let (us, peer, gone) = (n.nid(), nid(15, 2), nid(15, 3));
    let mut s = raw_conn(peer, us).await;
    s.write_all(&frame(
        peer,
        us,
        push(),
        &PingInfo::new(MR, 12345, 1, &[peer, gone]).encode(),
    ))
    .await
    .unwrap();
    until("it has told", || {
        n.peers()
            .iter()
            .any(|p| p.primary_nid == peer.to_string() && p.nis.len() == 2)
    })
    .await;
    let health = |nid: Nid| {
        n.peers()
            .iter()
            .flat_map(|p| &p.nis)
            .find(|i| i.nid == nid.to_string())
            .map(|i| i.health.value)
    };
    for i in 0..8 {
        timeout(LONG, n.put(peer, 9, i, 0, vec![1u8; 9].into(), false))
            .await
            .unwrap()
            .unwrap();
    }
    assert!(
        health(gone) < Some(1000) && health(peer) == Some(1000),
        "{:?} {:?}",
        health(gone),
        health(peer)
    );
    stop(&[&n]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_says_that_a_dead_gateway_is_alive_or_speaks_for_who_is_far() {
    let (us, gateway, bad, far) = (nid(16, 1), nid(16, 2), nid(16, 3), nid_on(16, 9, 4));
    let n = start(config_of(&[us], &format!("tcp2 {gateway}"))).await;
    until("nobody is at the gateway's place", || !n.routes()[0].up).await;
    let mut s = raw_conn(bad, us).await;
    let tells = |nids: &[Nid]| PingInfo::new(MR, 12345, 1, nids).encode();
    s.write_all(&frame(bad, us, push(), &tells(&[bad, gateway])))
        .await
        .unwrap();
    let routing = PingInfo::new(MR, 12345, 2, &[gateway, nid_on(16, 2, 5)]).encode();
    s.write_all(&frame(gateway, us, push(), &routing))
        .await
        .unwrap();
    s.write_all(&frame(far, us, push(), &tells(&[far, bad])))
        .await
        .unwrap();
    until("they have come", || {
        n.stats().pushes.value() + n.stats().unmatched.value() == 3
    })
    .await;
    assert_eq!(n.stats().pushes.value(), 1, "its own word alone is taken");
    assert!(!n.routes()[0].up && n.known_peer(far).is_none());
    stop(&[&n]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forwarded_is_not_sent_and_rules_see_where_it_came_in() {
    let (a, b, gw0, gw1) = (
        nid_on(7, 0, 1),
        nid_on(7, 1, 2),
        nid_on(7, 0, 3),
        nid_on(7, 1, 4),
    );
    let router = start_router(&[gw0, gw1], "").await;
    let (mut from, mut to) = (raw_conn(a, gw0).await, raw_conn(b, gw1).await);
    for i in 0..5 {
        from.write_all(&frame(a, b, put_to(9, i), &[7; 100]))
            .await
            .unwrap();
        assert_eq!(next_message(&mut to).await.1, [7; 100]);
    }
    let s = router.stats();
    assert_eq!((s.routed.value(), s.routed_bytes.value()), (5, 500));
    // Counted after the bytes are out: the ping behind them is counted after them.
    from.write_all(&frame(a, gw0, ping_of(1), &[]))
        .await
        .unwrap();
    next_message(&mut from).await;
    until("the answer is counted", || s.sock_sent.value() > 0).await;
    assert_eq!(
        (s.sock_sent.value(), s.sent_bytes.value()),
        (1, 64),
        "the answer to the ping"
    );

    let at = |nid: Nid| FaultRule {
        local: NidMatch::One(nid),
        ..FaultRule::all(FaultAction::Drop).at(Side::Receive)
    };
    router.faults().add(at(gw1));
    from.write_all(&frame(a, b, put_to(9, 5), &[5]))
        .await
        .unwrap();
    assert_eq!(
        next_message(&mut to).await.1,
        [5],
        "it came in by the other NID"
    );
    router.faults().add(at(gw0));
    from.write_all(&frame(a, b, put_to(9, 6), &[6]))
        .await
        .unwrap();
    until("it is lost", || s.faults.value() == 1).await;
    assert_eq!(s.routed.value(), 6);
    stop(&[&router]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_longer_than_what_was_asked_for_is_dropped() {
    let n = start(config(8, 1)).await;
    let (us, peer) = (n.nid(), nid(8, 2));
    let mut s = raw_conn(peer, us).await;
    let get = tokio::spawn({
        let n = n.clone();
        async move { n.get(peer, 9, 1, 16).await }
    });
    let LnetMsg::Get {
        return_wmd,
        sink_length: 16,
        ..
    } = next_message(&mut s).await.0.msg
    else {
        panic!("not the GET")
    };
    let reply = LnetMsg::Reply {
        dst_wmd: return_wmd,
    };
    s.write_all(&frame(peer, us, reply, &[1; 17]))
        .await
        .unwrap();
    until("it is dropped", || n.stats().late.value() == 1).await;
    s.write_all(&frame(peer, us, reply, &[2; 16]))
        .await
        .unwrap();
    let got = timeout(LONG, get).await.unwrap().unwrap().unwrap();
    assert_eq!(got.copy_to_bytes(), vec![2; 16]);
    stop(&[&n]).await;
}

/// Where messages of a test go to and come from: the bad one, the router's NIDs, a gateway's, and an honest node's.
struct Place {
    bad: Nid,
    router: [Nid; 2],
    gateway: [Nid; 2],
    honest: Nid,
}

impl Place {
    /// What may stand in a header where a NID belongs. Addresses nobody has are of this machine, so that nothing leaves it.
    fn some_nid(&self, rng: &mut ChaCha8Rng) -> Nid {
        let known = [
            self.bad,
            self.router[0],
            self.router[1],
            self.gateway[0],
            self.gateway[1],
            self.honest,
            Nid(0),
            Nid::LO,
            Nid::ANY,
        ];
        match rng.random_range(0..3) {
            0 => Nid::tcp(
                rng.random_range(0..4),
                Ipv4Addr::new(127, 99, rng.random(), rng.random()),
            ),
            _ => known[rng.random_range(0..known.len())],
        }
    }

    /// A message as it should be: to the router, through it, or through it and the gateway.
    fn message(&self, rng: &mut ChaCha8Rng) -> Vec<u8> {
        let wmd = WireHandle {
            interface_cookie: rng.random(),
            object_cookie: rng.random_range(0..9),
        };
        let payload = vec![3; [0, 1, 64, 4096, 20_000][rng.random_range(0..5)]];
        let beyond = [self.honest, self.gateway[0], self.gateway[1]][rng.random_range(0..3)];
        match rng.random_range(0..8) {
            0 => KsockMsgHdr::noop(0, 1).as_bytes().to_vec(),
            1 => frame(
                self.bad,
                self.router[0],
                push(),
                &PingInfo::new(
                    rng.random_range(0..64),
                    12345,
                    rng.random(),
                    &[self.bad, self.gateway[0]],
                )
                .encode(),
            ),
            2 => frame(self.bad, self.router[0], ping_of(1), &[]),
            3 => frame(
                self.bad,
                self.router[0],
                LnetMsg::Reply { dst_wmd: wmd },
                &payload,
            ),
            4 => frame(self.bad, beyond, ping_of(2), &[]),
            5 => frame(
                self.bad,
                beyond,
                LnetMsg::Ack {
                    dst_wmd: wmd,
                    match_bits: 1,
                    mlength: 2,
                },
                &[],
            ),
            _ => frame(self.bad, beyond, put_to(9, 5), &payload),
        }
    }

    /// The same with one thing wrong.
    fn mutated(&self, rng: &mut ChaCha8Rng) -> Vec<u8> {
        // Both headers: type, cookies; destination, source, process ids, kind, length.
        const NIDS: [usize; 2] = [24, 32];
        let mut m = self.message(rng);
        let word = [
            0u32,
            1,
            2,
            3,
            4,
            0xc0,
            0xc1,
            0x10_0000,
            0x10_0001,
            u32::MAX,
            rng.random(),
        ][rng.random_range(0..11)];
        match rng.random_range(0..10) {
            0..5 if m.len() >= 96 => {
                for at in NIDS {
                    if rng.random_bool(0.6) {
                        m[at..at + 8].copy_from_slice(&self.some_nid(rng).0.to_le_bytes());
                    }
                }
            }
            5 if m.len() >= 96 => m[52..56].copy_from_slice(&word.to_le_bytes()),
            6 if m.len() >= 96 => m[48..52].copy_from_slice(&word.to_le_bytes()),
            7 => {
                let at = rng.random_range(0..m.len());
                if !(24..40).contains(&at) {
                    m[at] ^= 1 << rng.random_range(0..8);
                }
            }
            8 if rng.random_bool(0.2) => m.truncate(rng.random_range(0..m.len())),
            _ => {}
        }
        m
    }
}

/// Valid streams with one thing wrong here and there, to a router and through it: the connection they come by may end, and
/// nothing else. `CORAL_SEED=n` repeats a run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_streams_through_a_router_hurt_nobody_else() {
    assert_eq!(panics(), 0);
    let place = Place {
        bad: nid_on(9, 0, 1),
        router: [nid_on(9, 0, 2), nid_on(9, 1, 3)],
        gateway: [nid_on(9, 1, 4), nid_on(9, 2, 5)],
        honest: nid_on(9, 1, 6),
    };
    let gateway = start_router(&place.gateway, "").await;
    let router = start_router(&place.router, &format!("tcp2 {}", place.gateway[0])).await;
    let far = start(config_of(
        &[place.honest],
        &format!("tcp {}", place.router[1]),
    ))
    .await;
    let near = start(config_of(
        &[nid_on(9, 0, 7)],
        &format!("tcp1 {}", place.router[0]),
    ))
    .await;
    until("all routes are up", || {
        [&router, &far, &near].iter().all(|n| n.routes()[0].up)
    })
    .await;
    until("all connections are there", || {
        [&gateway, &far, &near]
            .iter()
            .all(|n| n.stats().conns.value() == 3)
    })
    .await;
    let seed = std::env::var("CORAL_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(6);
    println!("CORAL_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for round in 0..200 {
        let stream: Vec<u8> = (0..rng.random_range(1..20))
            .flat_map(|_| place.mutated(&mut rng))
            .collect();
        let mut s = raw_conn(place.bad, place.router[0]).await;
        let _ = s.write_all(&stream).await;
        let _ = s.shutdown().await;
        closed(&mut s).await;
        assert!(
            [&router, &far, &near].iter().all(|n| n.routes()[0].up),
            "round {round}: a route is down"
        );
        if round % 10 == 0 {
            timeout(LONG, near.ping(place.honest))
                .await
                .unwrap()
                .unwrap();
        }
    }
    assert_eq!(
        [&gateway, &far, &near].map(|n| n.stats().conns.value()),
        [3; 3],
        "the connections are the same as before"
    );
    let s = router.stats();
    assert!(
        s.routed.value() > 200
            && s.bad_bytes.value() > 20
            && s.unmatched.value() > 20
            && s.no_route.value() > 5,
        "all kinds were among them: {s:?}"
    );
    assert_eq!(panics(), 0);
    stop(&[&near, &far, &router, &gateway]).await;
}
