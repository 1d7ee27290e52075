//! The same over real TCP on loopback, with the real clock: a server that is killed and restarted under working clients.

mod target_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coral_lnet::{Node, NodeConfig};
use coral_osd::{Kv, OsdMem};
use coral_ptlrpc::{Import, ImportConfig};
use coral_server::{LuTarget, ServerNode, TargetConfig, TargetKind};
use coral_wire::connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
use target_common::*;

const SERVER_NID: &str = "127.77.0.2@tcp";

async fn tcp_node(n: &str, listen: Option<u16>, port: u16, seed: u64) -> Arc<Node> {
    let cfg = NodeConfig {
        nids: vec![nid(n)],
        listen_port: listen,
        connect_port: port,
        secure_ports: false,
        seed,
        ..NodeConfig::default()
    };
    Node::start(cfg, None).await.unwrap()
}

async fn start(disk: &OsdMem, port: u16, seed: u64) -> Server {
    let node = tcp_node(SERVER_NID, Some(port), port, seed).await;
    let sn = ServerNode::start(node.clone());
    let target = LuTarget::new(
        node.clone(),
        TargetConfig::new(TargetKind::Mdt, "t-MDT0000", 0),
        Arc::new(disk.clone()) as Arc<dyn Kv>,
    )
    .unwrap();
    let log = Arc::new(Log::default());
    target.start(log.clone());
    sn.add_target(target.clone());
    Server {
        node,
        sn,
        target,
        log,
    }
}

async fn client(port: u16, n: u64, ping_interval: Duration) -> Arc<Import> {
    let node = tcp_node(&format!("127.77.1.{n}@tcp"), None, port, 10 + n).await;
    let data = ObdConnectData {
        connect_flags: ConnectFlags::AT
            | ConnectFlags::BULK_MBITS
            | ConnectFlags::MULTIMODRPCS
            | ConnectFlags::FLAGS2,
        connect_flags2: ConnectFlags2::REP_MBITS,
        ..Default::default()
    };
    let cfg = ImportConfig::mdt(
        "t-MDT0000_UUID",
        vec![nid(SERVER_NID)],
        &format!("tcp-client-{n}"),
        data,
    );
    let imp = Import::new(
        node,
        ImportConfig {
            ping_interval,
            ..cfg
        },
    );
    imp.connect().await.unwrap();
    imp
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_survive_kills_of_the_server() {
    let port = std::net::TcpListener::bind(("127.77.0.2", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let disk = OsdMem::new();
    let mut server = start(&disk, port, 1).await;
    // Somebody who says nothing and never pings: the broken connection alone must bring it back, or recovery would wait for it.
    let idle = client(port, 9, Duration::from_secs(1000)).await;
    let done = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for c in 1..=2u64 {
        let imp = client(port, c, Duration::from_secs(25)).await;
        for t in 0..4u64 {
            let (imp, done) = (imp.clone(), done.clone());
            writers.push(tokio::spawn(async move {
                for i in 0..150u64 {
                    let r = imp.call(add(c * 100_000 + t * 1000 + i)).await.unwrap();
                    assert_eq!(r.status, 0);
                    done.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                assert_eq!(imp.stats().evictions.value(), 0);
            }));
        }
    }
    for (n, at) in [200, 700].into_iter().enumerate() {
        while done.load(Ordering::Relaxed) < at {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.kill().await;
        server = start(&disk, port, 20 + n as u64).await;
    }
    for w in writers {
        w.await.unwrap();
    }
    let mut log = log_of(&disk);
    log.sort();
    let want: Vec<u64> = (1..=2u64)
        .flat_map(|c| {
            (0..4u64).flat_map(move |t| (0..150u64).map(move |i| c * 100_000 + t * 1000 + i))
        })
        .collect();
    assert_eq!(log, want);
    assert_eq!(
        (
            idle.stats().evictions.value(),
            server.target.stats().evictions.value()
        ),
        (0, 0)
    );
    assert!(idle.stats().connects.value() >= 3, "{:?}", idle.stats());
    server.stop().await;
}
