//! Measures LNet over loopback TCP between two nodes of this process, and beside it the same traffic over plain sockets, so
//! that the ratio says what LNet costs on this machine today.
//!
//! `cargo run --release -p coral-lnet --example lnet-bench -- [seconds per measurement [echoes under way, and nothing else]]`

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::{LNET_MTU, MemNet, Nid, Node, NodeConfig, PortalHandler, PutEvent, exec};
use tokio::time::Instant;

const PORT: u16 = 21988;
/// Bytes of a small message's payload: about a small request.
const SMALL: usize = 400;
/// Requests or bulks under way at once where the test is about rate.
const DEPTH: u64 = 8;

struct Sink;

impl PortalHandler for Sink {
    fn on_put(&self, _: &Arc<Node>, _: PutEvent) {}
}

struct Echo;

impl PortalHandler for Echo {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let me = node.clone();
        exec::run_inline(
            node.handovers(),
            Box::pin(async move {
                let _ = me.put(ev.from, 4, ev.mbits, 0, ev.data, false).await;
            }),
        );
    }
}

async fn node(nid: Nid, mem: Option<Arc<MemNet>>) -> Arc<Node> {
    let listen_port = nid.ipv4().map(|_| PORT);
    let cfg = NodeConfig {
        nids: vec![nid],
        listen_port,
        connect_port: PORT,
        secure_ports: false,
        ..NodeConfig::default()
    };
    let n = Node::start(cfg, mem).await.expect("start");
    n.serve_portal(12, Arc::new(Echo));
    n.serve_portal(6, Arc::new(Sink));
    n
}

/// Runs `depth` loops of `op` for `secs`; gives operations a second.
async fn rate<F, Fut>(secs: f64, depth: u64, op: F) -> f64
where
    F: Fn(u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let count = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(secs);
    let next = Arc::new(AtomicU64::new(1));
    let loops: Vec<_> = (0..depth)
        .map(|_| {
            let (op, count, next) = (op.clone(), count.clone(), next.clone());
            tokio::spawn(async move {
                while Instant::now() < end {
                    op(next.fetch_add(1, Ordering::Relaxed)).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for l in loops {
        l.await.expect("loop");
    }
    count.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64()
}

async fn echo_rate(a: &Arc<Node>, to: Nid, secs: f64, depth: u64) -> f64 {
    let data = Bytes::from(vec![1u8; SMALL]);
    let a = a.clone();
    rate(secs, depth, move |i| {
        let (a, data) = (a.clone(), data.clone());
        async move {
            let mut reply = a.expect_put(4, i);
            a.put(to, 12, i, 0, data.into(), false).await.expect("put");
            reply.recv().await;
        }
    })
    .await
}

/// 1 MiB PUTs with ACK, `depth` under way; MB/s.
async fn bulk_rate(a: &Arc<Node>, to: Nid, secs: f64, depth: u64) -> f64 {
    let data = Bytes::from(vec![1u8; LNET_MTU]);
    let a = a.clone();
    let puts = rate(secs, depth, move |i| {
        let (a, data) = (a.clone(), Payload::from(data.clone()));
        async move { a.put(to, 6, i, 0, data, true).await.expect("put") }
    })
    .await;
    puts * LNET_MTU as f64 / 1e6
}

fn plain_pair() -> (TcpStream, TcpStream) {
    let l = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let a = TcpStream::connect(l.local_addr().expect("addr")).expect("connect");
    let (b, _) = l.accept().expect("accept");
    a.set_nodelay(true).expect("nodelay");
    b.set_nodelay(true).expect("nodelay");
    (a, b)
}

/// Two threads, blocking sockets: a stream of 1 MiB writes into one buffer of the reader's; MB/s.
#[expect(clippy::disallowed_methods, reason = "plain sockets to compare with")]
fn plain_bulk(secs: f64) -> f64 {
    let (mut a, mut b) = plain_pair();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let data = vec![1u8; LNET_MTU];
            while !stop.load(Ordering::Relaxed) && a.write_all(&data).is_ok() {}
        }
    });
    let (begin, mut total, mut buf) = (Instant::now(), 0u64, vec![0u8; LNET_MTU]);
    while begin.elapsed().as_secs_f64() < secs {
        b.read_exact(&mut buf).expect("read");
        total += buf.len() as u64;
    }
    let rate = total as f64 / begin.elapsed().as_secs_f64() / 1e6;
    stop.store(true, Ordering::Relaxed);
    drop(b);
    writer.join().expect("writer");
    rate
}

/// Two threads, blocking sockets, one small message to and fro; round trips a second.
#[expect(clippy::disallowed_methods, reason = "plain sockets to compare with")]
fn plain_echo(secs: f64) -> f64 {
    let (mut a, mut b) = plain_pair();
    let echo = std::thread::spawn(move || {
        let mut buf = [0u8; SMALL];
        while b.read_exact(&mut buf).is_ok() && b.write_all(&buf).is_ok() {}
    });
    let (begin, mut n, mut buf) = (Instant::now(), 0u64, [0u8; SMALL]);
    while begin.elapsed().as_secs_f64() < secs {
        a.write_all(&buf).expect("write");
        a.read_exact(&mut buf).expect("read");
        n += 1;
    }
    let rate = n as f64 / begin.elapsed().as_secs_f64();
    drop(a);
    echo.join().expect("echo");
    rate
}

#[expect(clippy::disallowed_methods, reason = "plain sockets to compare with")]
async fn run(secs: f64) {
    let (na, nb) = (
        Nid::tcp(0, [127, 0, 1, 1].into()),
        Nid::tcp(0, [127, 0, 1, 2].into()),
    );
    let (a, b) = (node(na, None).await, node(nb, None).await);
    echo_rate(&a, nb, secs / 10.0, DEPTH).await;
    for round in 1..=2 {
        println!("round {round}");
        let blocking = move |f: fn(f64) -> f64| tokio::task::spawn_blocking(move || f(secs));
        let plain = blocking(plain_bulk).await.expect("plain");
        for depth in [1, DEPTH] {
            let lnet = bulk_rate(&a, nb, secs, depth).await;
            println!(
                "  1 MiB PUT+ACK, {depth} under way: {lnet:7.0} MB/s; plain socket stream {plain:7.0} MB/s; ratio {:.2}",
                lnet / plain
            );
        }
        let plain = blocking(plain_echo).await.expect("plain");
        for depth in [1, DEPTH] {
            let lnet = echo_rate(&a, nb, secs, depth).await;
            println!(
                "  {SMALL} B request and reply, {depth} under way: {lnet:8.0}/s; plain sockets, 1 under way {plain:8.0}/s; ratio {:.2}",
                lnet / plain
            );
        }
    }
    let (s, r) = (a.stats(), b.stats());
    println!(
        "writes on the sender's stack {}, left to the writer task {}; received {} MB, copied {} MB",
        s.direct_writes.value(),
        s.deferred_writes.value(),
        r.received_bytes.value() / 1_000_000,
        r.copied_bytes.value() / 1_000_000
    );
    let mem = MemNet::new();
    let (ma, mb) = (
        node(Nid::new(0x9_0000, 1), Some(mem.clone())).await,
        node(Nid::new(0x9_0000, 2), Some(mem)).await,
    );
    let m = echo_rate(&ma, mb.nid(), secs, 1).await;
    println!(
        "memlnd: {m:.0} requests and replies/s, {:.2} us each",
        1e6 / m
    );
    a.shutdown().await;
    b.shutdown().await;
}

/// Only echoes, `depth` under way: for a profiler.
async fn echo_only(secs: f64, depth: u64) {
    let (na, nb) = (
        Nid::tcp(0, [127, 0, 1, 1].into()),
        Nid::tcp(0, [127, 0, 1, 2].into()),
    );
    let (a, b) = (node(na, None).await, node(nb, None).await);
    println!(
        "{:.0} requests and replies/s",
        echo_rate(&a, nb, secs, depth).await
    );
    a.shutdown().await;
    b.shutdown().await;
}

fn main() {
    let secs = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(1.0);
    let rt = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("runtime");
    match std::env::args().nth(2).and_then(|s| s.parse().ok()) {
        Some(depth) => rt.block_on(echo_only(secs, depth)),
        None => rt.block_on(run(secs)),
    }
}
