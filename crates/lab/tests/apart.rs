//! Time taken apart: on simulated clusters the segments are exact.

use std::time::Duration;

use bytes::Bytes;
use coral_client::Cred;
use coral_lab::attribution::{Filter, Joined, Segment, join, perfetto, text};
use coral_lnet::{LinkModel, Nid, Node};
use coral_node::Cluster;
use coral_osd::DiskModel;
use coral_stopwatch::Dump;
use std::sync::Arc;
use tokio::time::Instant;

type TestResult = Result<(), Box<dyn std::error::Error>>;

const O_RDWR: u32 = 2;

fn nid(text: &str) -> Nid {
    text.parse().expect("a NID")
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What a node gives out, on a clock of its own that is `lead` behind the others.
fn dump(node: &Arc<Node>, clock: &str, base: Instant) -> Dump {
    let mut dump = node.stopwatch().dump(clock, base);
    dump.nids = node.nids().iter().map(|n| n.0).collect();
    dump.names = node.nids().iter().map(Nid::to_string).collect();
    dump
}

fn ns(d: Duration) -> i64 {
    d.as_nanos() as i64
}

/// What every joined run keeps: parts fill each operation, and no stamp contradicts another.
fn adds_up(j: &Joined) {
    assert!(!j.ops.is_empty());
    assert_eq!(j.conflict_ns, 0, "stamps contradict each other");
    for o in &j.ops {
        let mut at = o.op.span.0;
        for p in &o.parts {
            assert_eq!(p.from, at, "{o:?}");
            at = p.to;
        }
        assert_eq!(at, o.op.span.1, "{o:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_segment_has_what_was_planted() -> TestResult {
    let (mds, oss) = (nid("10.0.0.2@tcp"), nid("10.0.0.3@tcp"));
    let cluster = Cluster::builder().mgs_at(mds).mdt_at(mds).ost_at(0, oss);
    let cluster = cluster.start().await?;
    let fs = cluster.client().await?;
    let (me, node) = (Cred::root(), fs.node().clone());
    let (_, file) = fs.create(&me, fs.root(), b"f", 0o644, O_RDWR).await?;
    let link = |delay| LinkModel {
        delay,
        ..LinkModel::default()
    };
    cluster.net.set_link(node.nid(), mds, link(ms(3)), 1);
    cluster.net.set_link(node.nid(), oss, link(ms(5)), 2);
    cluster.disks.osts[0].set_model(DiskModel {
        write_latency: ms(7),
        sync_latency: ms(11),
        ..DiskModel::INSTANT
    });
    let watch = node.stopwatch();
    let fid = file.fid();
    let base = Instant::now();
    let found = fs.lookup(&me, fs.root(), b"other");
    assert!(watch.operation("lookup", fid, found).await.is_err());
    let data = Bytes::from(vec![7; 100_000]);
    let written = fs.write(&me, &file, 0, data.into());
    watch.operation("write", fid, written).await?;
    watch.operation("sync", fid, fs.fsync(&file, false)).await?;

    let server = |at| cluster.servers_at(at).expect("it runs").node();
    // Three machines: the clocks of the servers lead and lag by seconds.
    let dumps = [
        dump(&node, "client", base),
        dump(server(mds), "mds", base - Duration::from_secs(3)),
        dump(server(oss), "oss", base + Duration::from_secs(5)),
    ];
    let j = join(&dumps);
    println!("{}", text(&j, &Filter::default(), 10));
    adds_up(&j);
    for (_, other, clock) in &j.clocks {
        let lead = if *other == mds.to_string() { 3 } else { -5 };
        assert!(clock.uncertain_ns.is_some(), "{other}: {clock:?}");
        assert_eq!(clock.offset_ns, lead * 1_000_000_000, "{other}");
    }
    let op = |name: &str| {
        j.ops
            .iter()
            .rev()
            .find(|o| o.op.op == name)
            .expect("it is kept")
    };
    let of = |name: &str| -> Vec<(Segment, i64)> {
        let parts = Segment::ALL.iter().map(|s| (*s, op(name).in_segment(*s)));
        parts.filter(|(_, ns)| *ns > 0).collect()
    };
    assert_eq!(of("lookup"), [(Segment::Network, ns(ms(6)))]);
    let placed: i64 = ["write", "sync"]
        .iter()
        .map(|n| op(n).ns() - op(n).in_segment(Segment::NotPlaced))
        .sum();
    let all: i64 = ["write", "sync"].iter().map(|n| op(n).ns()).sum();
    assert!(placed * 20 >= all * 19, "{placed} of {all} ns placed");
    let storage =
        op("write").in_segment(Segment::Storage) + op("sync").in_segment(Segment::Storage);
    assert!(storage >= ns(ms(11)), "{storage}");
    let trace = perfetto(&j, &Filter::default());
    let events = trace["traceEvents"].as_array().expect("a list");
    assert!(
        events
            .iter()
            .any(|e| e["name"] == "storage" && e["ph"] == "X")
    );

    fs.release(&file).await?;
    fs.umount().await;
    cluster.stop().await;
    Ok(())
}
