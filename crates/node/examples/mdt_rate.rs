//! How many operations one MDT serves to clients in its own process, without FUSE and without sockets, and how long each keeps the
//! MDT to itself.
//!
//! `cargo run --release -p coral-node --example mdt_rate [DIR [FILES]]`; the targets are put in a new directory in DIR, which is the
//! system's place for temporary files unless said, and FILES (100,000 unless said) are made by all clients together.
//!
//! Each row is one kind of operation by all clients at once, each in a directory of its own. CPU is that of the whole process,
//! clients and servers. Alone is the time in which an operation had its MDT to itself, as `coral_mdt_locked_seconds` counts it;
//! written is the time in which its changes were written, one at a time but beside the next operation
//! (`coral_osd_write_seconds`). The serial share is the larger of the two over the CPU time of an operation: with that share s,
//! n cores are used at best as 1 / (s + (1 - s) / n).

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Failed, targets};
use coral_client::mdc::{CreateArgs, Ids};
use coral_client::{Cred, MountOptions};
use coral_lnet::{MemNet, Nid, Node, NodeConfig};
use coral_metrics::{Point, Snapshot};
use coral_node::{Client, Servers, ServersConfig};
use coral_wire::fid::Fid;
use tokio::time::Instant;

/// The program `coral` has this one too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Clients, each a node of its own.
const CLIENTS: u32 = 8;
/// Requests that each has under way.
const TASKS: u32 = 4;
/// Files that all clients make together, unless said.
const FILES: u32 = 100_000;
const SERVER: &str = "10.0.0.1@tcp";
/// Clock ticks of /proc in a second.
const TICKS: f64 = 100.0;
const O_WRONLY: u32 = 1;

/// Seconds of CPU that this process has used.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or("");
    let field = |i: usize| {
        let text = after.split_whitespace().nth(i);
        text.and_then(|f| f.parse().ok()).unwrap_or(0.0)
    };
    (field(11) + field(12)) / TICKS
}

/// A client, its directory and how many files it makes.
struct Worker {
    fs: Client,
    dir: Fid,
    files: u32,
}

/// What the workers do.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Mknod,
    Create,
    Getattr,
    Unlink,
}

impl Worker {
    async fn one(&self, work: Work, number: u32, fids: &[Fid]) -> Result<(), Failed> {
        let me = Cred::root();
        let name = format!("file{number}");
        match work {
            Work::Mknod => {
                let mdt = self.fs.lmv().mdcs().remove(0);
                let made = CreateArgs {
                    parent: self.dir,
                    name: format!("node{number}").into(),
                    fid: mdt.new_fid().await?,
                    mode: 0o100_644,
                    rdev: 0,
                    now: Default::default(),
                    symlink: None,
                    eadata: bytes::Bytes::new(),
                    inherited: false,
                    layout_version: 0,
                    restripe: false,
                };
                mdt.create(&Ids::root(), &made).await?;
            }
            Work::Create => {
                let made = self
                    .fs
                    .create(&me, self.dir, name.as_bytes(), 0o644, O_WRONLY);
                self.fs.release(&made.await?.1).await?;
            }
            Work::Getattr => {
                let mdt = self.fs.lmv().mdcs().remove(0);
                mdt.getattr(&Ids::root(), fids[number as usize]).await?;
            }
            Work::Unlink => self.fs.unlink(&me, self.dir, name.as_bytes()).await?,
        }
        Ok(())
    }

    /// FIDs of its files.
    async fn fids(&self) -> Result<Vec<Fid>, Failed> {
        let (me, mut fids) = (Cred::root(), Vec::new());
        for number in 0..self.files {
            let name = format!("file{number}");
            let found = self.fs.lookup(&me, self.dir, name.as_bytes());
            fids.push(found.await?.attr.fid);
        }
        Ok(fids)
    }

    /// All its files, [`TASKS`] at a time.
    async fn all(self: Arc<Self>, work: Work, fids: Arc<Vec<Fid>>) -> Result<(), Failed> {
        let next = Arc::new(AtomicU32::new(0));
        let tasks = (0..TASKS).map(|_| {
            let (me, next, fids) = (self.clone(), next.clone(), fids.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= me.files {
                        return Ok::<_, Failed>(());
                    }
                    me.one(work, number, &fids).await?;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await??;
        }
        Ok(())
    }
}

/// Seconds in which operations had the MDT to themselves, and in which their changes were written.
fn serial_s(servers: &Servers) -> [f64; 2] {
    let mut now = Snapshot::default();
    now.add(servers.node().metrics(), &[]);
    ["coral_mdt_locked_seconds", "coral_osd_write_seconds"].map(|name| sum_s(&now, name))
}

fn sum_s(now: &Snapshot, name: &str) -> f64 {
    let series = now.of(name);
    let points = series.into_iter().flat_map(|s| s.values());
    let sums = points.map(|p| match p {
        Point::Recorded(r) => r.sum,
        Point::Count(_) => 0,
    });
    sums.sum::<u64>() as f64 / 1e9
}

async fn measure(
    name: &str,
    work: Work,
    workers: &[Arc<Worker>],
    servers: &Servers,
) -> Result<(), Failed> {
    let mut fids = Vec::new();
    for worker in workers {
        let known = match work {
            Work::Getattr => worker.fids().await?,
            _ => Vec::new(),
        };
        fids.push(Arc::new(known));
    }
    let (began, cpu, serial) = (Instant::now(), cpu_s(), serial_s(servers));
    let all = workers.iter().zip(fids);
    let tasks: Vec<_> = all
        .map(|(w, f)| tokio::spawn(w.clone().all(work, f)))
        .collect();
    for task in tasks {
        task.await??;
    }
    let operations = f64::from(workers.iter().map(|w| w.files).sum::<u32>());
    let (took, cpu, now) = (
        began.elapsed().as_secs_f64(),
        cpu_s() - cpu,
        serial_s(servers),
    );
    let [alone, written] = [now[0] - serial[0], now[1] - serial[1]];
    let share = alone.max(written) / cpu;
    let cores = |n: f64| 1.0 / (share + (1.0 - share) / n);
    let each = 1e6 / operations;
    println!(
        "{name:<16} {:>9.0} /s {:>7.1} us of CPU {:>7.1} us alone {:>7.1} us written {:>6.1} % serial {:>6.1} of 8 cores {:>6.1} of 32",
        operations / took,
        cpu * each,
        alone * each,
        written * each,
        share * 100.0,
        cores(8.0),
        cores(32.0),
    );
    Ok(())
}

async fn serve(dir: &Path, net: &Arc<MemNet>) -> Result<Servers, Failed> {
    let server: Nid = SERVER.parse()?;
    let node = Node::start(NodeConfig::in_memory(server, 1), Some(net.clone())).await?;
    let config = ServersConfig {
        targets: targets(dir, "rate")?,
        ..ServersConfig::default()
    };
    Ok(Servers::start(node, config).await?)
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(std::env::temp_dir, Into::into);
    let files: u32 = args.next().map_or(Ok(FILES), |n| n.parse())?;
    let dir = tempfile::tempdir_in(dir)?;
    let net = MemNet::alone();
    let servers = serve(dir.path(), &net).await?;
    let mut workers = Vec::new();
    for number in 0..CLIENTS {
        let nid = Nid::tcp(0, [10, 0, 1, number as u8].into());
        let config = NodeConfig::in_memory(nid, 100 + u64::from(number));
        let node = Node::start(config, Some(net.clone())).await?;
        let fs = Client::mount(node, MountOptions::new("rate", vec![SERVER.parse()?])).await?;
        let name = format!("dir{number}");
        let me = Cred::root();
        let dir = fs.mkdir(&me, fs.root(), name.as_bytes(), 0o755).await?;
        let dir = dir.attr.fid;
        workers.push(Arc::new(Worker {
            fs,
            dir,
            files: files / CLIENTS,
        }));
    }
    println!(
        "{CLIENTS} clients with {TASKS} requests each, {files} files, {} cores",
        std::thread::available_parallelism()?
    );
    for (name, work) in [
        ("mknod", Work::Mknod),
        ("create + close", Work::Create),
        ("getattr", Work::Getattr),
        ("unlink", Work::Unlink),
    ] {
        measure(name, work, &workers, &servers).await?;
    }
    for worker in workers {
        worker.fs.umount().await;
    }
    servers.stop().await;
    Ok(())
}
