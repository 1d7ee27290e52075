//! Property: whatever messages are lost and whenever the server dies or its machine loses power, no modifying request is
//! executed twice and none that was acknowledged is lost, as long as its client lives.
//!
//! A failing seed is printed; `CORAL_SEED=n cargo test -p coral-server --test target_property` runs that one alone.

mod target_common;

use std::sync::Arc;
use std::time::Duration;

use coral_osd::OsdMem;
use coral_ptlrpc::Import;
use coral_wire::ptlrpc::portal;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use target_common::*;
use tokio::time::sleep;

const CLIENTS: u64 = 3;
const ADDS: u64 = 100;
const SEEDS: u64 = 40;
const CRASHES: u64 = 6;

/// Adds `ADDS` numbers, several at a time; returns those that were acknowledged.
async fn work(imp: Arc<Import>, client: u64, seed: u64) -> Vec<u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed * 31 + client);
    let mut acked = Vec::new();
    let mut n = 0;
    while n < ADDS {
        let burst = rng.random_range(1..5).min(ADDS - n);
        let calls: Vec<_> = (n..n + burst)
            .map(|i| {
                let imp = imp.clone();
                let v = client * 10_000 + i;
                tokio::spawn(async move { imp.call(add(v)).await.map(|r| (v, r.status)) })
            })
            .collect();
        n += burst;
        for c in calls {
            let (v, status) = c
                .await
                .unwrap()
                .unwrap_or_else(|e| panic!("client {client}: {e}"));
            assert_eq!(status, 0);
            acked.push(v);
        }
        sleep(Duration::from_millis(rng.random_range(0..2000))).await;
    }
    acked
}

/// Losses of the server's replies and the clients' requests.
fn faults(s: &Server) {
    lose(&s.node, portal::MDC_REPLY, 0.04, None);
}

/// Crashes, resends and replays that happened.
#[derive(Debug, Default)]
struct Seen {
    crashes: u64,
    resent: u64,
    replayed: u64,
}

async fn run(seed: u64, seen: &mut Seen) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (w, mut disk) = (World::new(seed), OsdMem::new());
    let mut server = w.server(&disk).await;
    let mut workers = Vec::new();
    for c in 1..=CLIENTS {
        let imp = w.client(&format!("10.0.0.{c}@tcp")).await;
        imp.connect().await.unwrap();
        lose(imp.node(), portal::MDS_REQUEST, 0.04, None);
        workers.push((imp.clone(), tokio::spawn(work(imp, c, seed))));
    }
    faults(&server);
    let mut crashes = 0;
    while workers.iter().any(|(_, t)| !t.is_finished()) {
        sleep(Duration::from_millis(rng.random_range(1..8_000))).await;
        if crashes == CRASHES {
            continue;
        }
        crashes += 1;
        server.kill().await;
        if rng.random_range(0..2) == 0 {
            disk = disk.power_loss();
        }
        sleep(Duration::from_millis(rng.random_range(1..5000))).await;
        server = w.server(&disk).await;
        faults(&server);
    }
    seen.crashes += crashes;
    let mut acked = Vec::new();
    for (imp, t) in workers {
        acked.extend(t.await.unwrap());
        seen.resent += imp.stats().resent.value();
        seen.replayed += imp.stats().replayed.value();
        assert_eq!(
            imp.stats().evictions.value(),
            0,
            "seed {seed}: {} was evicted",
            imp.node().nid()
        );
    }
    let log = log_of(&disk);
    let mut once = log.clone();
    once.sort();
    once.dedup();
    assert_eq!(
        once.len(),
        log.len(),
        "seed {seed}: executed twice: {log:?}"
    );
    acked.sort();
    assert_eq!(once, acked, "seed {seed}: lost or invented");
}

#[test]
fn nothing_twice_and_nothing_lost() {
    let seeds: Vec<u64> = match std::env::var("CORAL_SEED") {
        Ok(s) => vec![s.parse().unwrap()],
        Err(_) => (0..std::env::var("CORAL_SEEDS").map_or(SEEDS, |n| n.parse().unwrap())).collect(),
    };
    let mut seen = Seen::default();
    for seed in seeds {
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        println!("CORAL_SEED={seed} cargo test -p coral-server --test target_property");
        rt.block_on(run(seed, &mut seen));
    }
    println!("{seen:?}");
    assert!(
        seen.crashes > 0 && seen.resent > 0 && seen.replayed > 0,
        "nothing happened: {seen:?}"
    );
}
