//! Recovery of many clients: what it costs. The counts are checked by the unit tests of `target/recovery.rs`; the time is printed.

mod target_common;

use std::sync::Arc;

use coral_osd::OsdMem;
use coral_ptlrpc::Import;
use futures_util::future::join_all;
use target_common::*;

/// Requests that each client has to replay.
const EACH: u64 = 10;
/// Clients on one node.
const PER_NODE: usize = 500;

/// Seconds of processor time of this process.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<f64> = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|n| n.parse().ok())
        .collect();
    ticks.iter().sum::<f64>() / 100.0
}

async fn recover(count: usize) {
    let (w, disk) = (World::new(1), OsdMem::new());
    let s = w.server(&disk).await;
    let mut clients: Vec<Arc<Import>> = Vec::new();
    for n in 0..count.div_ceil(PER_NODE) {
        let node = node(&w.mem, &format!("10.0.1.{n}@tcp"), n as u64 + 1, w.wall).await;
        clients.extend(
            (0..PER_NODE.min(count - n * PER_NODE))
                .map(|i| w.client_on(node.clone(), &format!("client-{n}-{i}"))),
        );
    }
    let begin = cpu_s();
    for some in clients.chunks(PER_NODE) {
        for done in join_all(some.iter().map(|c| c.connect())).await {
            done.expect("connected");
        }
    }
    println!(
        "{count} clients connect: {:.2} s of processor time",
        cpu_s() - begin
    );
    s.target.sync().await.expect("sync");
    for v in 0..EACH {
        for some in clients.chunks(PER_NODE) {
            for done in join_all(some.iter().map(|c| c.call(add(v)))).await {
                done.expect("added");
            }
        }
    }
    s.kill().await;
    let disk = disk.power_loss();
    assert_eq!(log_of(&disk).len(), 0);
    let s = w.server(&disk).await;
    let begin = cpu_s();
    for done in join_all(clients.iter().map(|c| c.call(add(EACH)))).await {
        done.expect("added after recovery");
    }
    println!(
        "{count} clients with {EACH} replays each recover: {:.2} s of processor time",
        cpu_s() - begin
    );
    assert_eq!(
        s.target.stats().replayed_requests.value(),
        count as u64 * EACH
    );
    assert_eq!(log_of(&disk).len() as u64, count as u64 * (EACH + 1));
}

#[tokio::test(start_paused = true)]
async fn many_clients_recover() {
    recover(200).await;
}

/// `cargo test -p coral-server --test recovery_scale -- --ignored --nocapture`
#[tokio::test(start_paused = true)]
#[ignore = "takes a minute; prints what recovery of many clients costs"]
async fn ten_thousand_clients_recover() {
    for count in [1000, 10_000] {
        recover(count).await;
    }
}
