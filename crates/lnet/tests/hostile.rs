//! Peers and consoles that send nonsense: whatever arrives, the node lives, holds bounded state, and answers the next one.
//!
//! Runs are seeded; a failure prints its seed, and `CORAL_SEED=n` repeats it.

mod panics;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::faults::NidMatch;
use coral_lnet::selftest::{FRAMEWORK_PORTAL, RDMA_PORTAL, Selftest, TEST_PORTAL, nids};
use coral_lnet::{LNET_MTU, MemNet, Nid, Node, NodeConfig, PingInfo, parse_net, parse_routes};
use coral_wire::lnet::{LNET_PROTO_PING_MATCHBITS, feat};
use coral_wire::srpc::{SRPC_MSG_LEN, SrpcMsg};
use panics::panics;
use proptest::prelude::*;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Exchanges of a kernel's session: portal, service, request and reply (see `lst_replay.rs`).
const RECORDED: &[u8] = include_bytes!("data/lst.bin");
const EXCHANGE: usize = 2 + 2 * SRPC_MSG_LEN;
const ROUNDS: usize = 20_000;

async fn node(nid: &str, mem: &Arc<MemNet>) -> Arc<Node> {
    let cfg = NodeConfig {
        nids: vec![nid.parse().unwrap()],
        ..NodeConfig::default()
    };
    Node::start(cfg, Some(mem.clone())).await.unwrap()
}

fn seed() -> u64 {
    let seed = std::env::var("CORAL_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(6);
    println!("CORAL_SEED={seed}");
    seed
}

/// A recorded message with some bytes changed, cut or lengthened; now and then all of it is random.
fn mutated(rng: &mut ChaCha8Rng, original: &[u8]) -> Vec<u8> {
    let mut m = original.to_vec();
    match rng.random_range(0..8) {
        0 => m.truncate(rng.random_range(0..=m.len())),
        1 => m.resize(rng.random_range(0..400), rng.random()),
        2 => rng.fill_bytes(&mut m),
        _ => {}
    }
    for _ in 0..rng.random_range(0..6) {
        if !m.is_empty() {
            let at = rng.random_range(0..m.len());
            m[at] = [0, 1, 0x7f, 0x80, 0xff, rng.random()][rng.random_range(0..6)];
        }
    }
    m
}

/// Requests, replies and bulk of the self-test, mutated, to every portal and service it has. Time is paused: what waits, for bulk
/// that nobody sends or for a reply that nobody wants, ends by its limit at once.
#[tokio::test(start_paused = true)]
async fn mutated_self_test_messages_leave_the_node_well() {
    assert_eq!(panics(), 0);
    let mem = MemNet::new();
    let (bad, server) = (node("1@lo", &mem).await, node("2@lo", &mem).await);
    let _st = Selftest::serve(&server);
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let recorded: Vec<&[u8]> = RECORDED.chunks_exact(EXCHANGE).collect();
    // Something for tests that were made by luck to read and write.
    let _bulk: Vec<_> = (0..8)
        .map(|i| bad.offer_get(RDMA_PORTAL, i, Payload::from(vec![0xee; 4096])))
        .collect();
    for round in 0..ROUNDS {
        let x = recorded[rng.random_range(0..recorded.len())];
        let (portal, service) = if rng.random_bool(0.9) {
            (x[0] as u32, x[1] as u64)
        } else {
            (rng.random_range(49..53), rng.random_range(0..16))
        };
        let part = if rng.random_bool(0.9) {
            &x[2..2 + SRPC_MSG_LEN]
        } else {
            &x[2 + SRPC_MSG_LEN..]
        };
        let m = mutated(&mut rng, part);
        let _ = SrpcMsg::decode(&Bytes::from(m.clone())).map(|m| m.encode());
        bad.put(server.nid(), portal, service, rng.random(), m.into(), false)
            .await
            .unwrap();
        if round % 500 == 0 {
            tokio::time::sleep(Duration::from_secs(120)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(panics(), 0, "in no task either");
    // A whole request is answered as before.
    let make = recorded
        .iter()
        .find(|x| x[1] == 1)
        .expect("a session is made in it");
    let rpyid = u64::from_le_bytes(make[26..34].try_into().unwrap());
    let mut reply = bad.expect_put(RDMA_PORTAL, rpyid);
    bad.put(
        server.nid(),
        FRAMEWORK_PORTAL,
        1,
        0,
        Bytes::copy_from_slice(&make[2..2 + SRPC_MSG_LEN]).into(),
        false,
    )
    .await
    .unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(10), reply.recv())
        .await
        .expect("a reply");
    assert_eq!(answer.data.len(), SRPC_MSG_LEN);
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert!(tasks < 16, "{tasks} tasks are left");
}

/// Sessions made one after the other by force leave one task behind that watches, and no memory of the old ones.
#[tokio::test(start_paused = true)]
async fn a_flood_of_sessions_leaves_nothing_behind() {
    let mem = MemNet::new();
    let (bad, server) = (node("1@lo", &mem).await, node("2@lo", &mem).await);
    let _st = Selftest::serve(&server);
    let make = RECORDED
        .chunks_exact(EXCHANGE)
        .find(|x| x[1] == 1)
        .expect("a session is made in it");
    let mut m = make[2..2 + SRPC_MSG_LEN].to_vec();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    for i in 0..5000u64 {
        let mut msg = SrpcMsg::decode(&Bytes::from(std::mem::take(&mut m))).unwrap();
        if let coral_wire::srpc::SrpcBody::MksnReqst(r) = &mut msg.body {
            (r.sid.stamp, r.force) = (i, 1);
        }
        m = msg.encode().to_vec();
        bad.put(
            server.nid(),
            FRAMEWORK_PORTAL,
            1,
            0,
            m.clone().into(),
            false,
        )
        .await
        .unwrap();
    }
    tokio::task::yield_now().await;
    assert!(tasks() <= 2, "{} tasks for one session", tasks());
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(tasks(), 0, "the last one ends by its time");
}

/// Ping information of all kinds, pushed and asked for, some of it with a long tail.
#[tokio::test]
async fn mutated_ping_information_is_taken_or_left() {
    assert_eq!(panics(), 0);
    let mem = MemNet::new();
    let (bad, us) = (
        node("10.0.0.1@tcp", &mem).await,
        node("10.0.0.2@tcp", &mem).await,
    );
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for i in 0..ROUNDS as u32 {
        let nids: Vec<Nid> = (0..rng.random_range(1..300))
            .map(|n| Nid::tcp(n as u16 % 3, (0x0a00_0000 + n + i).into()))
            .collect();
        let info = PingInfo::new(
            feat::MULTI_RAIL | feat::DISCOVERY | (rng.random::<u32>() % 64),
            12345,
            i,
            &nids,
        )
        .encode();
        let mut m = mutated(&mut rng, &info);
        if i % 100 == 0 {
            m.resize(rng.random_range(0..=LNET_MTU), 7);
        }
        bad.put(us.nid(), 0, LNET_PROTO_PING_MATCHBITS, 0, m.into(), true)
            .await
            .unwrap();
        if i % 64 == 0 {
            let _ = bad
                .get(
                    us.nid(),
                    0,
                    LNET_PROTO_PING_MATCHBITS,
                    rng.random_range(0..64),
                )
                .await;
        }
    }
    let known: usize = us.peers().iter().map(|p| p.nis.len()).sum();
    assert!(known <= us.limits().known_peers, "{known} NIDs are kept");
    let told = us
        .peers()
        .into_iter()
        .filter_map(|p| us.known_peer(p.primary_nid.parse().unwrap()))
        .map(|t| t.encode().len());
    let (most, bytes) = told.fold((0, 0), |(most, all), n| (n.max(most), all + n));
    assert!(
        most <= 4096 && bytes <= 4096 * us.limits().known_peers,
        "{bytes} bytes of what peers told, {most} of one"
    );
    // Who comes late is known all the same.
    let late = node("10.0.0.9@tcp", &mem).await;
    late.discover(us.nid()).await.unwrap();
    assert_eq!(
        us.known_peer(late.nid())
            .map(|t| t.nids().collect::<Vec<_>>()),
        Some(vec![late.nid()])
    );
    assert_eq!(panics(), 0);
    assert_eq!(
        bad.ping(us.nid()).await.unwrap().nids().collect::<Vec<_>>(),
        [us.nid()]
    );
}

/// Self-test portals of a node that does not serve: dropped and counted.
#[tokio::test]
async fn who_does_not_serve_drops() {
    let mem = MemNet::new();
    let (bad, us) = (node("1@lo", &mem).await, node("2@lo", &mem).await);
    for portal in [TEST_PORTAL, FRAMEWORK_PORTAL, RDMA_PORTAL, 63, 64, u32::MAX] {
        bad.put(us.nid(), portal, 1, 0, vec![1u8; 160].into(), false)
            .await
            .unwrap();
    }
    assert_eq!(us.stats().unmatched.value(), 6);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// What users write: routes, NID lists, rules' NIDs, names of networks. A value or an error, quickly.
    #[test]
    fn words_of_users_never_panic(text in "[0-9a-z@.:,;/ \\[\\]*-]{0,60}") {
        if let Ok(routes) = parse_routes(&text) {
            prop_assert!(routes.len() <= 64 * 1024);
        }
        if let Ok(list) = nids::expand(&text) {
            prop_assert!(list.len() <= nids::MAX_NIDS);
        }
        let _ = (parse_net(&text), text.parse::<Nid>(), text.parse::<NidMatch>());
    }

    #[test]
    fn words_that_almost_are_right_never_panic(a in 0u64..1 << 33, b in 0u64..1 << 33, cut in 0usize..40) {
        for text in [format!("tcp1 10.0.0.[{a}-{b}]@tcp 2 3"), format!("tcp[{a},{b}] {a} 10.0.0.1@tcp:{b}"), format!("10.[{a}-{b}/{a}].0.[0-255]@tcp")] {
            for t in [&text[..], &text[..cut.min(text.len())]] {
                let _ = (parse_routes(t), nids::expand(t), t.parse::<NidMatch>());
            }
        }
    }
}
