//! The same on several threads: many tasks of several clients in one process with the server, which is killed under them.

mod target_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coral_osd::OsdMem;
use target_common::*;

const CLIENTS: u64 = 3;
const TASKS: u64 = 10;
const ADDS: u64 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_twice_and_nothing_lost_on_threads() {
    let (mut w, disk) = (World::new(1), OsdMem::new());
    w.ping = Duration::from_millis(500);
    let mut server = w.server(&disk).await;
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    let mut imports = Vec::new();
    for c in 1..=CLIENTS {
        let imp = w.client(&format!("10.0.0.{c}@tcp")).await;
        imp.connect().await.unwrap();
        imports.push(imp.clone());
        for t in 0..TASKS {
            let (imp, done) = (imp.clone(), done.clone());
            tasks.push(tokio::spawn(async move {
                for i in 0..ADDS {
                    let r = imp.call(add(c * 1_000_000 + t * 10_000 + i)).await.unwrap();
                    assert_eq!(r.status, 0);
                    if i % 16 == 0 {
                        let o = imp.call(open()).await.unwrap();
                        tokio::task::yield_now().await;
                        imp.forget_open(o.transno, 0);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    for at in [1000, 2500, 4500] {
        while done.load(Ordering::Relaxed) < at {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.kill().await;
        server = w.server(&disk).await;
    }
    for t in tasks {
        t.await.unwrap();
    }
    let mut log = log_of(&disk);
    log.sort();
    let of = |c: u64| {
        (0..TASKS).flat_map(move |t| (0..ADDS).map(move |i| c * 1_000_000 + t * 10_000 + i))
    };
    assert_eq!(log, (1..=CLIENTS).flat_map(of).collect::<Vec<u64>>());
    for imp in imports {
        assert_eq!(imp.stats().evictions.value(), 0);
    }
    server.stop().await;
}
