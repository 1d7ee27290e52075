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
use coral_lnet::{LNET_MTU, Nid, Node, NodeConfig, Payload, PoolSizes, PortalHandler, PutEvent, parse_routes};
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
    let routes = if routes.is_empty() { Vec::new() } else { parse_routes(routes).expect("routes") };
    let routing = routing.then(PoolSizes::default);
    let cfg = NodeConfig { nids: nids.to_vec(), listen_port: Some(PORT), connect_port: PORT, secure_ports: false, routes, routing, ..NodeConfig::default() };
    let n = Node::start(cfg, None).await.expect("start");
    n.serve_portal(6, Arc::new(Sink));
    n
}

/// CPU seconds of this process, user and system.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: u64 = after.split(' ').skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
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
            match splice(&r, None, &to, None, n, SpliceFlags::MOVE | SpliceFlags::MORE) {
                Ok(out) if out > 0 => n -= out,
                _ => return,
            }
        }
    }
}

/// Accepts connections for ever and reads them dry.
fn drain(listener: TcpListener) {
    for s in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let (mut s, mut buf) = (s, vec![0u8; LNET_MTU]);
            while matches!(s.read(&mut buf), Ok(n) if n > 0) {}
        });
    }
}

/// A process of the benchmark: says `ready`, then its CPU seconds for every line it reads, until its input ends.
fn child(role: &str) {
    let rt = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
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
            rt.block_on(async { vec![node(&[nid(0, 2)], "", false).await, node(&[nid(1, 6)], &format!("tcp {}", nid(1, 4)), false).await] })
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
        let mut c = Command::new(exe).args(["child", role]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("spawn");
        let (i, o) = (c.stdin.take().expect("stdin"), c.stdout.take().expect("stdout"));
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
    let (sent, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + Duration::from_secs_f64(secs));
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
    let rt = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let (_sink, mut router, mut copy, mut spliced) = (Process::start("sink"), Process::start("router"), Process::start("copy"), Process::start("splice"));
    let direct = rt.block_on(node(&[nid(0, 1)], "", false));
    let routed = rt.block_on(node(&[nid(0, 5)], &format!("tcp1 {}", nid(0, 3)), false));
    rt.block_on(async { puts(&routed, nid(1, 6), 0.3).await + puts(&direct, nid(0, 2), 0.3).await });
    for round in 1..=rounds {
        println!("round {round} ({secs} s each)");
        let report = |what: &str, bytes: f64, cpu: Option<f64>, base: f64| {
            let rate = bytes / MIB / secs;
            let cpu = cpu.map_or(String::new(), |c| format!("; CPU of the middle {:.3} s/GiB", c / (bytes / MIB / 1024.0)));
            let ratio = if base > 0.0 { format!("; {:.2} of direct", rate / base) } else { String::new() };
            println!("  {what:<28} {rate:7.0} MiB/s{ratio}{cpu}");
            rate
        };
        let d = report("LNet direct", rt.block_on(puts(&direct, nid(0, 2), secs)), None, 0.0);
        let before = router.cpu();
        let bytes = rt.block_on(puts(&routed, nid(1, 6), secs));
        report("LNet through the router", bytes, Some(router.cpu() - before), d);
        let d = report("plain stream direct", stream(PORT + 1, secs), None, 0.0);
        for (name, port, p) in [("plain stream, copying relay", PORT + 2, &mut copy), ("plain stream, splicing relay", PORT + 3, &mut spliced)] {
            let before = p.cpu();
            let bytes = stream(port, secs);
            std::thread::yield_now();
            report(name, bytes, Some(p.cpu() - before), d);
        }
    }
}
