//! What nodes count agrees with what was done, and on both ends; every metric that a layer declares is shown.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::*;
use coral_client::Llite;
use coral_lnet::{LinkModel, Node};
use coral_metrics::{Kind, Point, Recorded, Snapshot};

fn of(node: &Node) -> Snapshot {
    let mut s = Snapshot::default();
    s.add(node.metrics(), &[]);
    s
}

/// Values of a metric whose labels include all of these, added up: a number, or what histograms recorded.
fn values(s: &Snapshot, name: &str, labels: &[(&str, &str)]) -> (u64, Recorded) {
    let (mut sum, mut all) = (0, Recorded::default());
    let fits = |own: &[(&str, String)]| {
        let has = |(k, v): &(&str, &str)| own.iter().any(|(a, b)| a == k && b == v);
        labels.iter().all(has)
    };
    let series = s.of(name).into_iter().flatten();
    for (_, point) in series.filter(|(own, _)| fits(own)) {
        match point {
            Point::Count(n) => sum += n,
            Point::Recorded(r) => all.add(r),
        }
    }
    (sum, all)
}

/// Its number; of a histogram, how often something was recorded.
fn total(s: &Snapshot, name: &str, labels: &[(&str, &str)]) -> u64 {
    let (sum, recorded) = values(s, name, labels);
    sum + recorded.count()
}

fn bytes(s: &Snapshot, name: &str) -> u64 {
    values(s, name, &[]).1.sum
}

/// Writes and reads a file of 5 MiB, and asks for names and attributes twice.
async fn work(u: &User, fs: &Llite) {
    u.mkdir("d").await.unwrap();
    let data = vec![7; 5 << 20];
    u.put("d/f", &data).await.unwrap();
    assert_eq!(u.get("d/f").await.unwrap().len(), data.len());
    for _ in 0..2 {
        u.stat("d/f").await.unwrap();
        u.names("d").await.unwrap();
    }
    let f = u.open("d/f", libc::O_RDONLY).await.unwrap();
    fs.fsync(&f, false).await.unwrap();
    u.close(&f).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn both_ends_count_the_same() {
    let c = Cluster::start(2, 2, 1 << 20).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    work(&u, &fs).await;
    let (client, server) = (of(fs.node()), of(c.node()));
    for opcode in ["OST_READ", "OST_WRITE", "MDS_CLOSE", "MDS_REINT"] {
        let labels = [("opcode", opcode)];
        let sent = total(&client, "coral_ptlrpc_client_request_seconds", &labels);
        let served = total(&server, "coral_ptlrpc_service_request_seconds", &labels);
        assert!(sent > 0 && sent == served, "{opcode}: {sent} {served}");
    }
    for way in ["read", "write"] {
        let sent = total(
            &client,
            &format!("coral_ptlrpc_client_bulk_{way}_bytes_total"),
            &[],
        );
        let served = total(
            &server,
            &format!("coral_ptlrpc_service_bulk_{way}_bytes_total"),
            &[],
        );
        // a listing is bulk data, too
        assert!(sent == served && sent >= 5 << 20, "{way}: {sent} {served}");
        assert_eq!(bytes(&client, &format!("coral_llite_{way}_bytes")), 5 << 20);
        assert_eq!(
            bytes(&server, &format!("coral_target_{way}_bytes")),
            5 << 20
        );
    }
    let connects = total(
        &server,
        "coral_target_connects_total",
        &[("target", "test-MDT0000")],
    );
    let exports = total(
        &server,
        "coral_target_exports",
        &[("target", "test-MDT0000")],
    );
    assert!(connects > 0 && exports > 0);
    let held = total(&client, "coral_ldlm_client_locks", &[]);
    let given = total(&server, "coral_ldlm_server_locks", &[]);
    assert!(held > 0 && given >= held, "{held} {given}");
    for idle in ["coral_ptlrpc_client_in_flight", "coral_osc_dirty_bytes"] {
        assert_eq!(total(&client, idle, &[]), 0, "{idle}");
    }
    for idle in [
        "coral_ptlrpc_service_req_active",
        "coral_ptlrpc_service_req_qdepth",
    ] {
        assert_eq!(total(&server, idle, &[]), 0, "{idle}");
    }
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_cache_answers_is_a_hit() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.client().await;
    let u = User::root(&fs);
    u.put("f", b"x").await.unwrap();
    let f = u.fid("f").await.unwrap();
    fs.getattr(&u.cred, f, None).await.unwrap();
    let hits = |s: &Snapshot| total(s, "coral_llite_attr_cache_hits_total", &[]);
    let misses = |s: &Snapshot| total(s, "coral_llite_attr_cache_misses_total", &[]);
    let before = of(fs.node());
    for _ in 0..10 {
        fs.getattr(&u.cred, f, None).await.unwrap();
    }
    let after = of(fs.node());
    assert_eq!(hits(&after) - hits(&before), 10);
    assert_eq!(misses(&after), misses(&before));
    // another client changes it: the lock goes, and the next question is a miss
    let other = User::root(&c.remote_client().await);
    other.put("f", b"yy").await.unwrap();
    fs.getattr(&u.cred, f, None).await.unwrap();
    let after = of(fs.node());
    assert!(misses(&after) > misses(&before));
    assert!(total(&after, "coral_ldlm_client_bl_callbacks_total", &[]) > 0);
    let asked = total(&of(c.node()), "coral_ldlm_server_bl_ast_seconds", &[]);
    assert!(asked > 0);
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn time_is_counted_where_it_passes() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    let u = User::root(&fs);
    u.put("f", b"far away").await.unwrap();
    let slow = LinkModel {
        delay: Duration::from_millis(100),
        ..LinkModel::default()
    };
    c.net.set_link(fs.node().nid(), c.node().nid(), slow, 1);
    assert_eq!(u.get("f").await.unwrap(), b"far away");
    let read = [("opcode", "OST_READ")];
    let client = values(&of(fs.node()), "coral_ptlrpc_client_request_seconds", &read).1;
    let server = values(&of(c.node()), "coral_ptlrpc_service_request_seconds", &read).1;
    assert_eq!(client.count(), server.count());
    // request, data, ACK, reply: the client waits for all four ways, the server for the two of the data and its ACK
    let ways = |n: u32| Duration::from_millis(100) * n * client.count() as u32;
    assert_eq!(Duration::from_nanos(client.sum), ways(4));
    assert_eq!(Duration::from_nanos(server.sum), ways(2));
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_metric_is_shown_and_declared() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    work(&User::root(&fs), &fs).await;
    let mut all = of(fs.node());
    all.add(c.node().metrics(), &[]);
    let shown: BTreeSet<&str> = all.metrics().map(|(desc, _)| desc.name).collect();
    let declared: BTreeSet<&str> = [
        coral_lnet::METRICS,
        coral_ptlrpc::METRICS,
        coral_ldlm::METRICS,
        coral_osd::METRICS,
        coral_server::METRICS,
        coral_client::METRICS,
    ]
    .into_iter()
    .flatten()
    .flat_map(|table| table.iter().map(|d| d.name))
    .collect();
    assert_eq!(shown, declared);
    let kinds = all.metrics().map(|(desc, _)| desc.kind);
    assert!(kinds.filter(|k| *k == Kind::Histogram).count() > 10);
    c.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_ends_takes_its_counts_along() {
    let c = Cluster::start(1, 1, 1 << 20).await;
    let fs = c.remote_client().await;
    let node = fs.node().clone();
    User::root(&fs).put("f", b"x").await.unwrap();
    assert!(of(&node).of("coral_llite_write_bytes").is_some());
    fs.umount().await;
    drop(fs);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(of(&node).of("coral_llite_write_bytes"), None);
    assert!(of(&node).of("coral_lnet_recv_total").is_some());
    c.stop().await;
}
