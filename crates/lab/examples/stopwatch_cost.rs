//! What the stopwatch costs: the same work with it on and off, in turns of a few hundred operations, in one process.
//!
//! `stopwatch_cost [TURNS [ROW]]`: creates, and writes and reads of 4 KiB, through the client library and through a mount (which needs
//! /dev/fuse), client and servers in memory; with ROW only rows with that in their names. Each row has the CPU time of the whole
//! process for an operation without the stopwatch, what it adds to that, and in how many of eight parts of the turns it added
//! anything.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use coral_client::{Cred, FileHandle};
use coral_node::{Client, Cluster};
use coral_wire::fid::Fid;

/// The program `coral` has this one too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Turns of each kind, unless said.
const TURNS: usize = 160;
/// Operations of a turn.
const OPERATIONS: usize = 250;
const PARTS: usize = 8;
const BLOCK_BYTES: usize = 4096;
/// Blocks of the file that is written and read.
const BLOCKS: u64 = 1024;

/// What one operation is.
#[derive(Clone, Copy)]
enum Work {
    Create,
    Write,
    Read,
}

const WORKS: [(Work, &str); 3] = [
    (Work::Create, "create and close"),
    (Work::Write, "write of 4 KiB"),
    (Work::Read, "read of 4 KiB"),
];

/// CPU time of this process, seconds.
fn cpu_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// CPU time of an operation in each part of the turns, without the stopwatch and with it.
struct Cost([[f64; 2]; PARTS]);

impl Cost {
    fn print(&self, row: &str) {
        let mean = |on: usize| self.0.iter().map(|p| p[on]).sum::<f64>() / PARTS as f64;
        let dearer = self.0.iter().filter(|p| p[1] > p[0]).count();
        let (off, on) = (mean(0), mean(1));
        println!(
            "{row:<36} {:>8.2} us  stopwatch {:>6.2} us  {:>5.1} %  ({dearer} of {PARTS} parts)",
            off * 1e6,
            (on - off) * 1e6,
            (on / off - 1.0) * 100.0,
        );
    }
}

struct Rig {
    cluster: Cluster,
    fs: Client,
    turns: usize,
}

impl Rig {
    fn turn(&self, on: bool) {
        self.fs.node().stopwatch().turn(on);
        self.cluster.node().stopwatch().turn(on);
    }

    /// Runs `block`, which does [`OPERATIONS`] from a number on, with the stopwatch off and on in turns.
    async fn measure<F: Future<Output = Result<(), Failed>>>(
        &self,
        block: impl Fn(u64) -> F,
    ) -> Result<Cost, Failed> {
        let mut cost = Cost([[0.0; 2]; PARTS]);
        let each = (self.turns / PARTS).max(1);
        for number in 0..2 * each * PARTS {
            let (part, on) = (number / 2 / each, (number + number / 2) % 2);
            self.turn(on == 1);
            let before = cpu_s();
            block((number * OPERATIONS) as u64).await?;
            cost.0[part][on] += (cpu_s() - before) / (each * OPERATIONS) as f64;
        }
        Ok(cost)
    }

    /// Through the library: each call as a mount makes it, as one operation.
    async fn library(&self, work: Work, file: &FileHandle, from: u64) -> Result<(), Failed> {
        let (me, fs) = (Cred::root(), &self.fs);
        let w = fs.node().stopwatch().clone();
        for n in from..from + OPERATIONS as u64 {
            match work {
                Work::Create => {
                    let name = format!("f{n}");
                    let made = fs.create(&me, fs.root(), name.as_bytes(), 0o644, 2);
                    let (_, file) = w.operation("create", Fid::ZERO, made).await?;
                    let closed = fs.release(&file);
                    w.operation("release", Fid::ZERO, closed).await?;
                }
                Work::Write => {
                    let data = Bytes::from_static(&[7; BLOCK_BYTES]);
                    let written = fs.write(&me, file, at(n), data.into());
                    w.operation("write", file.fid(), written).await?;
                }
                Work::Read => {
                    let read = fs.read(file, at(n), BLOCK_BYTES as u32);
                    w.operation("read", file.fid(), read).await?;
                }
            }
        }
        Ok(())
    }
}

fn at(n: u64) -> u64 {
    n % BLOCKS * BLOCK_BYTES as u64
}

/// The same by a program on a mount.
fn program(work: Work, dir: &Path, file: &std::fs::File, from: u64) -> Result<(), Failed> {
    let mut block = [7; BLOCK_BYTES];
    for n in from..from + OPERATIONS as u64 {
        match work {
            Work::Create => drop(std::fs::File::create(dir.join(format!("m{n}")))?),
            Work::Write => file.write_all_at(&block, at(n))?,
            Work::Read => file.read_exact_at(&mut block, at(n))?,
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let mut args = std::env::args().skip(1);
    let turns = args.next().map_or(Ok(TURNS), |n| {
        let turns = n.parse();
        turns.map_err(|_| {
            format!("TURNS is '{n}', and has to be a number: stopwatch_cost [TURNS [ROW]]")
        })
    })?;
    let only = args.next().unwrap_or_default();
    let kinds: &[&str] = match Path::new("/dev/fuse").exists() {
        true => &["library", "mount"],
        false => {
            eprintln!("there is no /dev/fuse: no rows of a mount");
            &["library"]
        }
    };
    for kind in kinds {
        for (work, name) in WORKS {
            let row = format!("{kind}: {name}");
            if row.contains(&only) {
                // servers of their own for each row: what others made stays in their memory
                measured(turns, work, *kind == "mount").await?.print(&row);
            }
        }
    }
    Ok(())
}

/// One row, through a mount or the library.
async fn measured(turns: usize, work: Work, mount: bool) -> Result<Cost, Failed> {
    let cluster = Cluster::builder().start().await?;
    let fs = cluster.client().await?;
    let rig = Rig { cluster, fs, turns };
    let (me, fs) = (Cred::root(), &rig.fs);
    let (_, file) = fs.create(&me, fs.root(), b"file", 0o644, 2).await?;
    let content = Bytes::from_static(&[7; BLOCKS as usize * BLOCK_BYTES]);
    fs.write(&me, &file, 0, content.into()).await?;
    let cost = match mount {
        false => rig.measure(|from| rig.library(work, &file, from)).await?,
        true => {
            let place = tempfile::tempdir()?;
            let options = coral_fuse::FuseOptions::default();
            let mount = coral_fuse::mount(fs.llite().clone(), place.path(), &options)?;
            let cost = mounted(&rig, work, place.path()).await?;
            mount.unmount(false).await?;
            cost
        }
    };
    fs.release(&file).await?;
    rig.fs.umount().await;
    rig.cluster.stop().await;
    Ok(cost)
}

#[expect(
    clippy::disallowed_methods,
    reason = "system calls on a mount that this process serves"
)]
async fn mounted(rig: &Rig, work: Work, dir: &Path) -> Result<Cost, Failed> {
    let (dir, name): (Arc<Path>, _) = (dir.into(), dir.join("file"));
    let open = move || {
        let mut how = std::fs::OpenOptions::new();
        how.read(true).write(true).open(name)
    };
    let file = Arc::new(tokio::task::spawn_blocking(open).await??);
    let block = |from| {
        let (dir, file) = (dir.clone(), file.clone());
        async move { tokio::task::spawn_blocking(move || program(work, &dir, &file, from)).await? }
    };
    let cost = rig.measure(block).await?;
    tokio::task::spawn_blocking(move || drop(file)).await?;
    Ok(cost)
}
