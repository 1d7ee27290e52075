//! What a router costs: 1 MiB PUTs with ACK from one process to another, directly and through a router in a third, and beside
//! them, in the same run, plain socket streams directly and through a relay that copies (one buffer) or splices (splice(2)).
//! All over loopback. CPU seconds per GiB are those of the process in the middle.
//!
//! `cargo run --release -p coral-lnet --example router-bench -- [seconds per measurement [rounds]]`

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::{
    LNET_MTU, Nid, Node, NodeConfig, PoolSizes, PortalHandler, PutEvent, parse_routes,
};
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use tokio::time::Instant;

const PORT: u16 = 21989;
/// Bulks under way at once.
const DEPTH: u64 = 8;
const MIB: f64 = (1 << 20) as f64;

fn nid(net: u16, last: u8) -> Nid {
    Nid::tcp(net, Ipv4Addr::new(127, 0, 2, last))
}

struct Sink;

impl PortalHandler for Sink {
    fn on_put(&self, _: &Arc<Node>, _: PutEvent) {}
}

async fn node(nids: &[Nid], routes: &str, routing: bool) -> Arc<Node> {
    let routes = if routes.is_empty() {
        Vec::new()
    } else {
        parse_routes(routes).expect("routes")
    };
    let routing = routing.then(PoolSizes::default);
    let cfg = NodeConfig {
        nids: nids.to_vec(),
        listen_port: Some(PORT),
        connect_port: PORT,
        secure_ports: false,
        routes,
        routing,
        ..NodeConfig::default()
    };
    let n = Node::start(cfg, None).await.expect("start");
    n.serve_portal(6, Arc::new(Sink));
    n
}

/// CPU seconds of this process, user and system.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: u64 = after
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|t| t.parse::<u64>().ok())
        .sum();
    ticks as f64 / 100.0
}

/// Moves a stream through one buffer.
fn relay_copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buf = vec![0u8; LNET_MTU];
    while let Ok(n) = from.read(&mut buf) {
        if n == 0 || to.write_all(&buf[..n]).is_err() {
            return;
        }
    }
}

/// Moves a stream through a pipe, without its bytes coming to user space.
fn relay_splice(from: TcpStream, to: TcpStream) {
    let (r, w): (OwnedFd, OwnedFd) = pipe().expect("pipe");
    let _ = fcntl_setpipe_size(&w, LNET_MTU);
    while let Ok(mut n) = splice(&from, None, &w, None, LNET_MTU, SpliceFlags::MOVE) {
        if n == 0 {
            return;
        }
        while n > 0 {
            match splice(
                &r,
                None,
                &to,
                None,
                n,
                SpliceFlags::MOVE | SpliceFlags::MORE,
            ) {
                Ok(out) if out > 0 => n -= out,
                _ => return,
            }
        }
    }
}

/// Accepts connections for ever and reads them dry.
#[expect(clippy::disallowed_methods, reason = "plain sockets to compare with")]
fn drain(listener: TcpListener) {
    for s in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let (mut s, mut buf) = (s, vec![0u8; LNET_MTU]);
            while matches!(s.read(&mut buf), Ok(n) if n > 0) {}
        });
    }
}

/// A process of the benchmark: says `ready`, then its CPU seconds for every line it reads, until its input ends.
#[expect(clippy::disallowed_methods, reason = "plain sockets to compare with")]
fn child(role: &str) {
    let rt = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("bind");
    let relay = |port, how: fn(TcpStream, TcpStream)| {
        let listener = listen(port);
        std::thread::spawn(move || {
            for s in listener.incoming().flatten() {
                let to = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT + 1)).expect("connect");
                std::thread::spawn(move || how(s, to));
            }
        });
    };
    let _nodes = match role {
        "sink" => {
            let listener = listen(PORT + 1);
            std::thread::spawn(move || drain(listener));
            // One to be reached directly, one beyond the router.
            rt.block_on(async {
                vec![
                    node(&[nid(0, 2)], "", false).await,
                    node(&[nid(1, 6)], &format!("tcp {}", nid(1, 4)), false).await,
                ]
            })
        }
        "router" => vec![rt.block_on(node(&[nid(0, 3), nid(1, 4)], "", true))],
        "copy" => {
            relay(PORT + 2, relay_copy);
            Vec::new()
        }
        _ => {
            relay(PORT + 3, relay_splice);
            Vec::new()
        }
    };
    println!("ready");
    for _ in std::io::stdin().lock().lines() {
        println!("{}", cpu_seconds());
    }
}

struct Process(Child, ChildStdin, BufReader<ChildStdout>);

impl Process {
    fn start(role: &str) -> Process {
        let exe = std::env::current_exe().expect("own path");
        let mut c = Command::new(exe)
            .args(["child", role])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        let (i, o) = (
            c.stdin.take().expect("stdin"),
            c.stdout.take().expect("stdout"),
        );
        let mut p = Process(c, i, BufReader::new(o));
        assert_eq!(p.line(), "ready");
        p
    }

    fn line(&mut self) -> String {
        let mut l = String::new();
        self.2.read_line(&mut l).expect("a line of the child");
        l.trim().to_owned()
    }

    fn cpu(&mut self) -> f64 {
        self.1.write_all(b"cpu\n").expect("write");
        self.line().parse().expect("a number")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// 1 MiB PUTs with ACK for `secs`; bytes sent.
async fn puts(a: &Arc<Node>, to: Nid, secs: f64) -> f64 {
    let data = Bytes::from(vec![1u8; LNET_MTU]);
    let (sent, end) = (
        Arc::new(AtomicU64::new(0)),
        Instant::now() + Duration::from_secs_f64(secs),
    );
    let one = |i: u64| {
        let (a, data, sent) = (a.clone(), Payload::from(data.clone()), sent.clone());
        tokio::spawn(async move {
            while Instant::now() < end {
                a.put(to, 6, i, 0, data.clone(), true).await.expect("put");
                sent.fetch_add(LNET_MTU as u64, Ordering::Relaxed);
            }
        })
    };
    for j in (0..DEPTH).map(one).collect::<Vec<_>>() {
        j.await.expect("loop");
    }
    sent.load(Ordering::Relaxed) as f64
}

/// A plain stream of 1 MiB writes to a port for `secs`; bytes sent.
fn stream(port: u16, secs: f64) -> f64 {
    let mut s = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
    let (data, begin, mut sent) = (vec![1u8; LNET_MTU], Instant::now(), 0.0);
    while begin.elapsed().as_secs_f64() < secs {
        s.write_all(&data).expect("write");
        sent += LNET_MTU as f64;
    }
    sent
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "child") {
        return child(&args[1]);
    }
    let secs: f64 = args.first().and_then(|s| s.parse().ok()).unwrap_or(3.0);
    let rounds: u32 = args.get(1).and_then(|s| s.parse().ok()).unwrap_or(3);
    let rt = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let (_sink, mut router, mut copy, mut spliced) = (
        Process::start("sink"),
        Process::start("router"),
        Process::start("copy"),
        Process::start("splice"),
    );
    let direct = rt.block_on(node(&[nid(0, 1)], "", false));
    let routed = rt.block_on(node(&[nid(0, 5)], &format!("tcp1 {}", nid(0, 3)), false));
    rt.block_on(async {
        puts(&routed, nid(1, 6), 0.3).await + puts(&direct, nid(0, 2), 0.3).await
    });
    let mut rows = ROWS.map(|_| Vec::new());
    for _ in 0..rounds {
        let mut note = |row: usize, bytes: f64, cpu: f64| {
            rows[row].push((bytes / MIB / secs, cpu / (bytes / MIB / 1024.0)))
        };
        note(0, rt.block_on(puts(&direct, nid(0, 2), secs)), 0.0);
        let before = router.cpu();
        let bytes = rt.block_on(puts(&routed, nid(1, 6), secs));
        note(1, bytes, router.cpu() - before);
        note(2, stream(PORT + 1, secs), 0.0);
        for (row, port, p) in [(3, PORT + 2, &mut copy), (4, PORT + 3, &mut spliced)] {
            let before = p.cpu();
            let bytes = stream(port, secs);
            note(row, bytes, p.cpu() - before);
        }
    }
    print(&rows, rounds, secs);
}

const ROWS: [&str; 5] = [
    "LNet direct",
    "LNet through the router",
    "plain stream direct",
    "plain stream, copying relay",
    "plain stream, splicing relay",
];

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Medians over the rounds; a ratio is the median of the rounds' own ratios.
fn print(rows: &[Vec<(f64, f64)>; 5], rounds: u32, secs: f64) {
    println!(
        "1 MiB PUTs with ACK, {DEPTH} under way, and plain streams; medians of {rounds} rounds of {secs} s"
    );
    println!(
        "{:<30} {:>8} {:>10} {:>22}",
        "", "MiB/s", "of direct", "CPU of middle, s/GiB"
    );
    for (i, row) in rows.iter().enumerate() {
        let base = if i < 2 { 0 } else { 2 };
        let rate = median(row.iter().map(|r| r.0).collect());
        let (ratio, cpu) = match i == base {
            true => (String::new(), String::new()),
            false => {
                let ratios = row
                    .iter()
                    .zip(&rows[base])
                    .map(|(r, b)| r.0 / b.0)
                    .collect();
                (
                    format!("{:.2}", median(ratios)),
                    format!("{:.3}", median(row.iter().map(|r| r.1).collect())),
                )
            }
        };
        println!("{:<30} {rate:>8.0} {ratio:>10} {cpu:>22}", ROWS[i]);
    }
}
