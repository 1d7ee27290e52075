//! What one RPC costs between two processes over loopback TCP, beside an echo of the same bytes over one socket.
//!
//! `cargo run --release -p coral-node --example rpc_echo [RPCS [ROUNDS]]`; 20,000 and 5 unless said. Each round measures in turns an
//! MDS_GETATTR by FID, an OST_READ of 4 KiB, and an echo of as many bytes as each of them sent and received, headers of the socket
//! LND and of LNet included. One is under way at a time. The table has medians of the rounds.
//!
//! Wake-ups are the voluntary switches of all threads of the client and of the server; an echo has two.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Failed, targets};
use coral_client::lov::FileLayout;
use coral_client::mdc::Ids;
use coral_client::osc::{IoLock, ObjectRef};
use coral_client::{Cred, MountOptions};
use coral_lnet::Nid;
use coral_node::{Client, NetConfig, Servers, ServersConfig, net};
use coral_wire::fid::Fid;
use tokio::time::Instant;

/// The program `coral` has this one too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SERVER: &str = "127.0.89.1@tcp";
const CLIENT: &str = "127.0.89.2@tcp";
/// Header of the socket LND and header of LNet.
const HEADERS: u64 = 24 + 72;
const BLOCK: usize = 4096;
const O_WRONLY: u32 = 1;

/// The other process; it ends when this one lets go of its standard input.
struct Other {
    child: Child,
    _until: Option<ChildStdin>,
    port: u16,
}

impl Other {
    /// This program as `role`, once it has said on which port it listens.
    fn start(role: &str, args: &[&str]) -> Result<Other, Failed> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(role)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let said = child.stdout.take().ok_or("no standard output")?;
        BufReader::new(said).read_line(&mut line)?;
        Ok(Other {
            _until: child.stdin.take(),
            port: line.trim().parse()?,
            child,
        })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self._until = None;
        let _ = self.child.wait();
    }
}

/// Until whoever started this process lets go of it.
async fn end() {
    let wait = || std::io::stdin().lock().read_to_end(&mut Vec::new());
    let _ = apart(wait).await;
}

/// On a thread of its own.
#[expect(
    clippy::disallowed_methods,
    reason = "a pipe and a socket without tokio are waited for"
)]
fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

async fn serve(dir: &Path) -> Result<(), Failed> {
    let server: Nid = SERVER.parse()?;
    let free = TcpListener::bind((server.ipv4().ok_or("no address")?, 0))?;
    let port = free.local_addr()?.port();
    drop(free);
    let node = net::start(&NetConfig {
        nids: vec![server],
        port,
        ..NetConfig::default()
    })
    .await?;
    let config = ServersConfig {
        targets: targets(dir, "rpc")?,
        ..ServersConfig::default()
    };
    let servers = Servers::start(node, config).await?;
    println!("{port}");
    end().await;
    servers.stop().await;
    Ok(())
}

/// Answers requests. A connection begins with the size of its requests and that of their answers, bytes.
fn echo() -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    for socket in listener.incoming() {
        let mut socket = socket?;
        socket.set_nodelay(true)?;
        let mut sizes = [0; 16];
        socket.read_exact(&mut sizes)?;
        let size = |half: &[u8]| half.try_into().map(u64::from_le_bytes).unwrap_or(0) as usize;
        let mut request = vec![0; size(&sizes[..8])];
        let reply = vec![1; size(&sizes[8..])];
        while socket.read_exact(&mut request).is_ok() {
            socket.write_all(&reply)?;
        }
    }
    Ok(())
}

/// What one operation cost in a round.
#[derive(Clone, Copy)]
struct Cost {
    us: f64,
    client: f64,
    server: f64,
    sent: u64,
    received: u64,
}

/// Operations that are being measured.
struct Round {
    began: Instant,
    wakeups: [u64; 2],
    server: u32,
}

impl Round {
    fn begin(server: u32) -> Round {
        let wakeups = [
            coral_metrics::wakeups(std::process::id()),
            coral_metrics::wakeups(server),
        ];
        Round {
            began: Instant::now(),
            wakeups,
            server,
        }
    }

    fn end(self, count: u64, sent: u64, received: u64) -> Cost {
        let took = self.began.elapsed();
        let each = |now: u64, then: u64| now.saturating_sub(then) as f64 / count as f64;
        Cost {
            us: took.as_secs_f64() * 1e6 / count as f64,
            client: each(coral_metrics::wakeups(std::process::id()), self.wakeups[0]),
            server: each(coral_metrics::wakeups(self.server), self.wakeups[1]),
            sent: sent / count,
            received: received / count,
        }
    }
}

/// A mounted client, and what it asks for.
struct Asking {
    fs: Client,
    server: u32,
    fid: Fid,
    object: ObjectRef,
}

impl Asking {
    async fn prepare(server: &Other) -> Result<Asking, Failed> {
        let node = net::start(&NetConfig {
            nids: vec![CLIENT.parse()?],
            port: server.port,
            ..NetConfig::default()
        })
        .await?;
        let fs = Client::mount(node, MountOptions::new("rpc", vec![SERVER.parse()?])).await?;
        let me = Cred::root();
        let (made, file) = fs.create(&me, fs.root(), b"file", 0o644, O_WRONLY).await?;
        let data = bytes::Bytes::from(vec![1; BLOCK]);
        fs.write(&me, &file, 0, data.into()).await?;
        fs.fsync(&file, false).await?;
        fs.release(&file).await?;
        let fid = made.attr.fid;
        let mdt = fs.lmv().mdcs().remove(0);
        let layout = FileLayout::decode(&mdt.getattr(&Ids::root(), fid).await?.md)?;
        let object = layout.stripes().next().ok_or("a file without objects")?;
        let object = object.object(fid);
        Ok(Asking {
            fs,
            server: server.child.id(),
            fid,
            object,
        })
    }

    /// Bytes that were sent and received so far, with the headers of `rpcs` RPCs: each is one message either way.
    fn bytes(&self, rpcs: u64) -> [u64; 2] {
        let stats = self.fs.node().stats();
        [&stats.sent_bytes, &stats.received_bytes].map(|c| c.value() + rpcs * HEADERS)
    }

    async fn getattr(&self, count: u64) -> Result<Cost, Failed> {
        let mdt = self.fs.lmv().mdcs().remove(0);
        let ids = Ids::root();
        let (before, round) = (self.bytes(0), Round::begin(self.server));
        for _ in 0..count {
            mdt.getattr(&ids, self.fid).await?;
        }
        let now = self.bytes(count);
        Ok(round.end(count, now[0] - before[0], now[1] - before[1]))
    }

    async fn read(&self, count: u64) -> Result<Cost, Failed> {
        let ost = self.fs.lov().osc(self.object.ost)?;
        let (before, round) = (self.bytes(0), Round::begin(self.server));
        for _ in 0..count {
            let read = ost.read(&self.object, 0, BLOCK, IoLock::Server).await?;
            if read.data.len() != BLOCK {
                return Err("a read was short".into());
            }
        }
        let now = self.bytes(count);
        Ok(round.end(count, now[0] - before[0], now[1] - before[1]))
    }
}

/// An echo of the bytes of `like`.
fn echoed(other: &Other, like: &Cost, count: u64) -> Result<Cost, Failed> {
    let mut socket = TcpStream::connect(("127.0.0.1", other.port))?;
    socket.set_nodelay(true)?;
    let sizes = [like.sent.to_le_bytes(), like.received.to_le_bytes()].concat();
    socket.write_all(&sizes)?;
    let request = vec![2; like.sent as usize];
    let mut reply = vec![0; like.received as usize];
    let round = Round::begin(other.child.id());
    for _ in 0..count {
        socket.write_all(&request)?;
        socket.read_exact(&mut reply)?;
    }
    Ok(round.end(count, like.sent * count, like.received * count))
}

fn median(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let mut all: Vec<f64> = costs.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn show(name: &str, costs: &[Cost], echo_us: Option<f64>) -> f64 {
    let us = median(costs, |c| c.us);
    let ratio = echo_us.map_or_else(String::new, |e| format!("{:.2} of the echo", us / e));
    println!(
        "{name:<24} {us:>7.1} us {:>6.2} wake-ups of the client {:>6.2} of the server {:>6} bytes out {:>6} in  {ratio}",
        median(costs, |c| c.client),
        median(costs, |c| c.server),
        costs[0].sent,
        costs[0].received,
    );
    us
}

async fn measure(rpcs: u64, rounds: u64) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let at = dir.path().to_str().ok_or("a directory without UTF-8")?;
    let (server, echo) = (Other::start("serve", &[at])?, Other::start("echo", &[])?);
    let asking = Arc::new(Asking::prepare(&server).await?);
    let mut all: [Vec<Cost>; 4] = Default::default();
    for _ in 0..=rounds {
        // in tasks of the runtime, where a mount's requests go on after a wait
        let [me, also] = [asking.clone(), asking.clone()];
        let getattr = tokio::spawn(async move { me.getattr(rpcs).await }).await??;
        let read = tokio::spawn(async move { also.read(rpcs).await }).await??;
        let round = [
            echoed(&echo, &getattr, rpcs)?,
            getattr,
            echoed(&echo, &read, rpcs)?,
            read,
        ];
        all.iter_mut().zip(round).for_each(|(a, c)| a.push(c));
    }
    // the first round has everything for the first time
    let [of_getattr, getattr, of_read, read] = all.each_ref().map(|a| &a[1..]);
    let us = show("echo", of_getattr, None);
    show("MDS_GETATTR by FID", getattr, Some(us));
    let us = show("echo", of_read, None);
    show("OST_READ of 4 KiB", read, Some(us));
    tokio::time::timeout(Duration::from_secs(10), asking.fs.umount()).await?;
    Ok(())
}

/// A number that is given, or else `unless_said`.
fn number(name: &str, given: Option<&str>, unless_said: u64) -> Result<u64, Failed> {
    let Some(text) = given else {
        return Ok(unless_said);
    };
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| {
        format!("rpc_echo [RPCS [ROUNDS]]: {name} is '{text}', and must be a number above 0").into()
    })
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("serve") => serve(Path::new(args.get(1).ok_or("serve DIR")?)).await,
        Some("echo") => {
            let _echo = apart(|| echo().map_err(|e| eprintln!("echo: {e}")));
            end().await;
            std::process::exit(0);
        }
        rpcs => {
            let rounds = args.get(1).map(String::as_str);
            let (rpcs, rounds) = (number("RPCS", rpcs, 20_000)?, number("ROUNDS", rounds, 5)?);
            measure(rpcs, rounds).await
        }
    }
}
