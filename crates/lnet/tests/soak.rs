//! Two nodes over TCP that both send all the time while connections are torn down at random: nobody hangs, nothing that was
//! acknowledged is wrong, and when it is quiet again everything works as at the beginning.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::{LNET_MTU, Nid, Node, NodeConfig};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep, timeout};

const PORT: u16 = 23988;
const SENDERS: u64 = 6;
const LONG: Duration = Duration::from_secs(30);

fn nid(n: u8) -> Nid {
    let pid = std::process::id();
    Nid::tcp(0, Ipv4Addr::new(127, 252, (pid % 251) as u8, n))
}

async fn start(n: u8) -> Arc<Node> {
    let cfg = NodeConfig {
        nids: vec![nid(n)],
        listen_port: Some(PORT),
        connect_port: PORT,
        secure_ports: false,
        ..NodeConfig::default()
    };
    Node::start(cfg, None).await.unwrap()
}

/// `len` bytes that tell where they belong.
fn pattern(id: u64, len: usize) -> Bytes {
    (0..len)
        .map(|i| (id as usize + i * 7) as u8)
        .collect::<Vec<u8>>()
        .into()
}

#[derive(Default)]
struct Tally {
    good: AtomicU64,
    failed: AtomicU64,
    /// The end.
    enough: AtomicBool,
}

/// PUTs and GETs of random sizes until the end, checking each that is said to have worked.
async fn sender(me: Arc<Node>, other: Arc<Node>, id: u64, tally: Arc<Tally>) {
    let mut rng = ChaCha8Rng::seed_from_u64(id);
    let mut bits = id << 32;
    while !tally.enough.load(Ordering::Relaxed) {
        bits += 1;
        let len = if rng.random_bool(0.5) {
            rng.random_range(0..2000)
        } else {
            rng.random_range(0..LNET_MTU)
        };
        let data = pattern(bits, len);
        let ok = if rng.random_bool(0.5) {
            let mut sink = other.expect_put(8, bits);
            let sent = timeout(
                LONG,
                me.put(other.nid(), 8, bits, 0, data.clone().into(), true),
            )
            .await;
            let sent = sent.unwrap_or_else(|_| panic!("sender {id}: PUT of {len} bytes hangs"));
            if sent.is_ok() {
                let ev = sink.try_recv().expect("acknowledged means delivered");
                assert!(ev.data == Payload::from(data), "PUT of {len} bytes");
            }
            sent.is_ok()
        } else {
            let _offer = other.offer_get(8, bits, data.clone().into());
            let got = timeout(LONG, me.get(other.nid(), 8, bits, LNET_MTU as u32)).await;
            let got = got.unwrap_or_else(|_| panic!("sender {id}: GET of {len} bytes hangs"));
            if let Ok(got) = &got {
                assert!(*got == Payload::from(data), "GET of {len} bytes");
            }
            got.is_ok()
        };
        if ok { &tally.good } else { &tally.failed }.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_hangs_while_connections_come_and_go() {
    let (a, b) = (start(1).await, start(2).await);
    let tally = Arc::new(Tally::default());
    let jobs: Vec<_> = (0..SENDERS)
        .flat_map(|i| {
            [
                (a.clone(), b.clone(), 2 * i + 1),
                (b.clone(), a.clone(), 2 * i + 2),
            ]
        })
        .map(|(me, other, id)| tokio::spawn(sender(me, other, id, tally.clone())))
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(99);
    let mut resets = 0;
    let counts = || {
        (
            tally.good.load(Ordering::Relaxed),
            tally.failed.load(Ordering::Relaxed),
        )
    };
    let deadline = Instant::now() + 4 * LONG;
    // Until enough of everything has happened, however long this machine takes for it.
    while resets < 40 || counts().0 <= 100 || counts().1 == 0 {
        assert!(
            Instant::now() < deadline,
            "{resets} resets, {:?} right and failed",
            counts()
        );
        sleep(Duration::from_millis(rng.random_range(1..150))).await;
        if rng.random_bool(0.5) {
            a.reset_peer(b.nid())
        } else {
            b.reset_peer(a.nid())
        }
        resets += 1;
    }
    tally.enough.store(true, Ordering::Relaxed);
    for j in jobs {
        j.await.unwrap();
    }
    let (good, failed) = counts();
    println!("{resets} resets, {good} exchanges right, {failed} reported failed");

    // Quiet again: all credits are back, and both ends reach each other.
    for (x, y) in [(&a, &b), (&b, &a)] {
        let deadline = Instant::now() + LONG;
        while timeout(LONG, x.ping(y.nid()))
            .await
            .expect("no hang")
            .is_err()
        {
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(50)).await;
        }
        let puts = (0..32u64).map(|i| {
            let (x, y) = (x.clone(), y.clone());
            async move {
                let _sink = y.expect_put(8, i);
                timeout(
                    LONG,
                    x.put(y.nid(), 8, i, 0, pattern(i, 100_000).into(), true),
                )
                .await
                .expect("no hang")
                .unwrap();
            }
        });
        futures_util::future::join_all(puts).await;
    }
    a.shutdown().await;
    b.shutdown().await;
}
