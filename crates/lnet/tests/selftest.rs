//! The self-test between nodes of one process, by memlnd and by TCP: a console drives servers and clients.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use coral_lnet::selftest::console::{Console, NodeError, NodeState, TestSpec, Update};
use coral_lnet::selftest::{BrwParams, Check, Rw, Selftest, TestParams, quick};
use coral_lnet::{MemNet, Nid, Node, NodeConfig, PoolSizes, parse_routes};

const LIMIT: Duration = Duration::from_secs(20);

struct Member {
    node: Arc<Node>,
    st: Arc<Selftest>,
}

impl Member {
    fn nid(&self) -> Nid {
        self.node.nid()
    }
}

async fn members(n: u32) -> Vec<Member> {
    let mem = MemNet::new();
    let mut out = Vec::new();
    for i in 1..=n {
        let cfg = NodeConfig {
            nids: vec![format!("{i}@lo").parse().unwrap()],
            seed: i as u64,
            ..NodeConfig::default()
        };
        let node = Node::start(cfg, Some(mem.clone())).await.unwrap();
        out.push(Member {
            st: Selftest::serve(&node),
            node,
        });
    }
    out
}

async fn tcp_members(n: u8, test: u8) -> Vec<Member> {
    let mut out = Vec::new();
    for i in 1..=n {
        let nid = Nid::tcp(
            0,
            Ipv4Addr::new(127, 253, (std::process::id() % 251) as u8, (test << 4) + i),
        );
        let cfg = NodeConfig {
            nids: vec![nid],
            listen_port: Some(23988),
            connect_port: 23988,
            secure_ports: false,
            ..NodeConfig::default()
        };
        let node = Node::start(cfg, None).await.unwrap();
        out.push(Member {
            st: Selftest::serve(&node),
            node,
        });
    }
    out
}

fn console_on(m: &Member, stamp: u64) -> Arc<Console> {
    let c = Console::new("test", false, 1, stamp).unwrap();
    c.attach(m.node.clone(), m.st.clone());
    c
}

fn spec(params: TestParams, count: Option<u32>) -> TestSpec {
    TestSpec {
        from: "clients".into(),
        to: "servers".into(),
        count,
        concurrency: 4,
        dist: 1,
        span: 1,
        params,
    }
}

fn brw(rw: Rw, check: Check, len_bytes: u32) -> TestParams {
    TestParams::Brw(BrwParams {
        rw,
        check,
        len_bytes,
        offset_bytes: 0,
    })
}

fn all_ok<T: std::fmt::Debug>(
    results: Vec<coral_lnet::selftest::console::NodeResult<T>>,
) -> Vec<T> {
    results
        .into_iter()
        .map(|r| r.result.unwrap_or_else(|e| panic!("{}: {e:?}", r.nid)))
        .collect()
}

async fn wait_idle(c: &Console, batch: &str) {
    let idle = async {
        while all_ok(c.query(batch, 0, false, LIMIT).await.unwrap())
            .iter()
            .any(|n| *n > 0)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, idle)
        .await
        .expect("the batch ends by itself");
}

async fn counted_batches(m: Vec<Member>) {
    let c = console_on(&m[0], 1);
    for (g, list) in [("clients", &m[0..2]), ("servers", &m[2..3])] {
        c.add_group(g).unwrap();
        all_ok(
            c.add_nodes(g, &list.iter().map(Member::nid).collect::<Vec<_>>())
                .await
                .unwrap(),
        );
    }
    c.add_batch("b").unwrap();
    for params in [
        brw(Rw::Read, Check::Simple, 1 << 20),
        brw(Rw::Write, Check::Full, 64 << 10),
        brw(Rw::Write, Check::Discard, 1000),
        brw(Rw::Read, Check::None, 12),
        TestParams::Ping,
    ] {
        all_ok(c.add_test("b", spec(params, Some(6))).await.unwrap());
    }
    all_ok(c.run("b").await.unwrap());
    wait_idle(&c, "b").await;
    let stat = all_ok(c.stat(&[m[2].nid()], LIMIT).await.unwrap()).remove(0);
    assert_eq!(
        (stat.fw[3], stat.fw[4], { stat.rpc }[0]),
        (0, 0, 0),
        "no errors"
    );
    // Two clients, four loops, six RPCs of each test.
    let each = 2 * 4 * 6;
    assert_eq!(
        stat.rpc_bulk[1][0],
        each * ((1 << 20) + 12),
        "PUT by the server"
    );
    assert_eq!(
        stat.rpc_bulk[0][0],
        each * (65536 + 1000),
        "fetched by the server"
    );
    assert!({ stat.rpc }[2] >= 5 * each);
    let info = c.batch("b").unwrap();
    assert!(
        !info.running
            && info.tests.len() == 5
            && info.clients.len() == 2
            && info.servers.len() == 1
    );
    assert!(c.end().await.iter().all(|r| r.result.is_ok()));
    for x in m {
        x.node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counted_batches_in_memory() {
    let m = members(3).await;
    let nodes: Vec<_> = m.iter().map(|m| m.node.clone()).collect();
    counted_batches(m).await;
    assert!(
        nodes.iter().all(|n| n.stats().copied_bytes.value() == 0),
        "memlnd hands bulk over without a copy"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counted_batches_over_tcp() {
    counted_batches(tcp_members(3, 1).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_batches_stop_and_sessions_end_what_runs() {
    let m = members(2).await;
    let c = console_on(&m[0], 1);
    for (g, x) in [("clients", &m[0]), ("servers", &m[1])] {
        c.add_group(g).unwrap();
        all_ok(c.add_nodes(g, &[x.nid()]).await.unwrap());
    }
    c.add_batch("b").unwrap();
    all_ok(
        c.add_test("b", spec(brw(Rw::Write, Check::Full, 4096), None))
            .await
            .unwrap(),
    );
    all_ok(c.run("b").await.unwrap());
    assert!(
        c.add_test("b", spec(TestParams::Ping, None)).await.is_err(),
        "it runs"
    );
    assert_eq!(all_ok(c.query("b", 0, false, LIMIT).await.unwrap()), [1]);
    all_ok(c.stop("b", false).await.unwrap());
    wait_idle(&c, "b").await;
    // Again, and now the session ends under it.
    all_ok(c.run("b").await.unwrap());
    c.end().await;
    let again = console_on(&m[0], 2);
    again.add_group("g").unwrap();
    all_ok(
        again
            .add_nodes("g", &[m[0].nid(), m[1].nid()])
            .await
            .unwrap(),
    );
    let gone = async {
        while all_ok(again.stat(&[m[0].nid()], LIMIT).await.unwrap())[0].fw[2] > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone)
        .await
        .expect("the old session's tests end");
    again.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_data_is_found_and_counted() {
    let m = members(2).await;
    let c = console_on(&m[0], 1);
    for (g, x) in [("clients", &m[0]), ("servers", &m[1])] {
        c.add_group(g).unwrap();
        all_ok(c.add_nodes(g, &[x.nid()]).await.unwrap());
    }
    for (batch, rw, wrong) in [("r", Rw::Read, &m[1]), ("w", Rw::Write, &m[0])] {
        c.add_batch(batch).unwrap();
        all_ok(
            c.add_test(batch, spec(brw(rw, Check::Simple, 8192), Some(3)))
                .await
                .unwrap(),
        );
        wrong.st.inject_errors(1);
        all_ok(c.run(batch).await.unwrap());
        wait_idle(&c, batch).await;
    }
    let stat = all_ok(c.stat(&[m[0].nid(), m[1].nid()], LIMIT).await.unwrap());
    assert_eq!(
        (stat[0].fw[3], stat[1].fw[3]),
        (2, 0),
        "brw errors are counted by the client"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_others_and_dead_ones_are_told_apart() {
    let m = members(3).await;
    let (c, other) = (console_on(&m[0], 1), console_on(&m[1], 2));
    let nids: Vec<Nid> = m.iter().map(Member::nid).collect();
    other.add_group("g").unwrap();
    all_ok(other.add_nodes("g", &nids[1..2]).await.unwrap());
    m[2].node.shutdown().await;
    c.add_group("g").unwrap();
    let got = c.add_nodes("g", &nids).await.unwrap();
    assert_eq!(
        got.iter().map(|r| r.state).collect::<Vec<_>>(),
        [NodeState::Active, NodeState::Busy, NodeState::Down]
    );
    assert!(matches!(got[1].result, Err(NodeError::Remote(e)) if e.0 == libc::EBUSY));
    assert!(matches!(got[2].result, Err(NodeError::Rpc(_))));
    let ping = c.ping(&nids[1..2], LIMIT).await.unwrap();
    assert_eq!(
        ping[0].result.as_ref().unwrap().1,
        nids[1],
        "whose session it is"
    );
    other.end().await;
    let got = c.update_group("g", Update::Refresh).await.unwrap();
    assert_eq!(got[0].state, NodeState::Active, "free now");
    c.update_group("g", Update::Clean(vec![NodeState::Down]))
        .await
        .unwrap();
    assert_eq!(c.group("g").unwrap().len(), 2);
    all_ok(c.del_group("g").await.unwrap());
    let fresh = console_on(&m[0], 3);
    fresh.add_group("g").unwrap();
    all_ok(fresh.add_nodes("g", &nids[..2]).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_silent_console_loses_its_session() {
    let m = members(2).await;
    let c = console_on(&m[0], 1);
    c.add_group("g").unwrap();
    all_ok(c.add_nodes("g", &[m[1].nid()]).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(
        c.ping(&[m[1].nid()], LIMIT).await.unwrap()[0].state,
        NodeState::Active,
        "a console that lives says so"
    );
    drop(c);
    tokio::time::sleep(Duration::from_secs(200)).await;
    let other = console_on(&m[0], 2);
    other.add_group("g").unwrap();
    all_ok(other.add_nodes("g", &[m[1].nid()]).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quick_measures_three_tests() {
    let m = tcp_members(2, 2).await;
    let c = console_on(&m[0], 1);
    let o = quick::QuickOptions {
        time: Duration::from_millis(200),
        size_bytes: 1 << 20,
        concurrency: 4,
        check: Check::Simple,
        only: None,
    };
    let mut rows = Vec::new();
    quick::run(&c, m[0].nid(), m[1].nid(), o, |r| rows.push(r))
        .await
        .unwrap();
    assert_eq!(
        rows.iter().map(|r| r.name).collect::<Vec<_>>(),
        quick::TESTS
    );
    assert!(
        rows.iter()
            .all(|r| r.rpcs_per_s > 0.0 && r.total_rpcs > 0 && r.errors == 0),
        "{rows:?}"
    );
    println!("{rows:?}");
    c.end().await;
}

/// Console and client on one network, server on another, a router between them, over TCP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quick_measures_through_a_router() {
    let nid = |net: u16, n: u8| {
        Nid::tcp(
            net,
            Ipv4Addr::new(127, 253, (std::process::id() % 251) as u8, (9 << 4) + n),
        )
    };
    let start = async |nids: &[Nid], routes: &str, routing: bool| {
        let routes = if routes.is_empty() {
            Vec::new()
        } else {
            parse_routes(routes).unwrap()
        };
        let routing = routing.then(PoolSizes::default);
        let cfg = NodeConfig {
            nids: nids.to_vec(),
            listen_port: Some(23988),
            connect_port: 23988,
            secure_ports: false,
            routes,
            routing,
            ..NodeConfig::default()
        };
        Node::start(cfg, None).await.unwrap()
    };
    let router = start(&[nid(0, 3), nid(1, 4)], "", true).await;
    let near = start(&[nid(0, 1)], &format!("tcp1 {}", nid(0, 3)), false).await;
    let far = start(&[nid(1, 2)], &format!("tcp {}", nid(1, 4)), false).await;
    let m = Member {
        st: Selftest::serve(&near),
        node: near.clone(),
    };
    let _far = Selftest::serve(&far);
    let c = console_on(&m, 9);
    let o = quick::QuickOptions {
        time: Duration::from_millis(200),
        size_bytes: 1 << 20,
        concurrency: 4,
        check: Check::Full,
        only: None,
    };
    let mut rows = Vec::new();
    tokio::time::timeout(
        LIMIT * 3,
        quick::run(&c, near.nid(), far.nid(), o, |r| rows.push(r)),
    )
    .await
    .expect("an end")
    .unwrap();
    assert_eq!(
        rows.iter().map(|r| (r.name, r.errors)).collect::<Vec<_>>(),
        [("ping", 0), ("brw read", 0), ("brw write", 0)]
    );
    let bytes: u64 = rows.iter().map(|r| r.total_bytes).sum();
    assert!(
        bytes > 0 && router.stats().routed_bytes.value() >= bytes,
        "{} of {bytes} bytes went through the router",
        router.stats().routed_bytes.value()
    );
    assert_eq!(
        router.stats().no_route.value() + router.stats().route_failed.value(),
        0
    );
    c.end().await;
    for n in [&near, &far, &router] {
        n.shutdown().await;
    }
}
