//! What the stopwatch costs: the same work with it on and off, in turns of a few hundred operations of one process, and that in several
//! processes one after the other, as where a process has its memory is worth more than what is measured.
//!
//! `coral-cost [TURNS [ROW [PROCESSES]]]`: creates, and writes and reads of 4 KiB, through the client library and through a mount (which needs
//! /dev/fuse), client and servers in memory; with ROW only rows with that in their names. Each row has the CPU time of the whole
//! process for an operation without the stopwatch, what it adds to that in the mean of the processes, and the least and the most that
//! it added in one of them.

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

/// Turns of each kind in a process, and processes, unless said.
const TURNS: usize = 160;
const PROCESSES: usize = 8;
/// Before the arguments of such a process.
const ONE: &str = "--one";
/// Operations of a turn.
const OPERATIONS: usize = 250;
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

/// CPU time of an operation without the stopwatch and with it, seconds.
type Cost = [f64; 2];

fn added(cost: &Cost) -> f64 {
    (cost[1] / cost[0] - 1.0) * 100.0
}

/// What the processes have measured.
fn print(row: &str, all: &[Cost]) {
    let mean = |on: usize| all.iter().map(|c| c[on]).sum::<f64>() / all.len() as f64;
    let mean = [mean(0), mean(1)];
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for percent in all.iter().map(added) {
        (least, most) = (least.min(percent), most.max(percent));
    }
    println!(
        "{row:<36} {:>8.2} us  stopwatch {:>6.2} us  {:>5.1} %  ({least:.1} to {most:.1} % in {} processes)",
        mean[0] * 1e6,
        (mean[1] - mean[0]) * 1e6,
        added(&mean),
        all.len(),
    );
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
        let mut cost = Cost::default();
        for number in 0..2 * self.turns {
            let on = (number + number / 2) % 2;
            self.turn(on == 1);
            let before = cpu_s();
            block((number * OPERATIONS) as u64).await?;
            cost[on] += (cpu_s() - before) / (self.turns * OPERATIONS) as f64;
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

fn main() -> Result<(), Failed> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == ONE) {
        return one(&args.split_off(1));
    }
    let number = |at: usize, name: &str, unless_said: usize| {
        match args.get(at) {
        None => Ok(unless_said),
        Some(n) => n.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
            format!(
                "{name} is '{n}', and has to be a number from 1 on: coral-cost [TURNS [ROW [PROCESSES]]]"
            )
        }),
    }
    };
    let turns = number(0, "TURNS", TURNS)?.to_string();
    let processes = number(2, "PROCESSES", PROCESSES)?;
    let only = args.get(1).map_or("", String::as_str);
    if !Path::new("/dev/fuse").exists() {
        eprintln!("there is no /dev/fuse: no rows of a mount");
    }
    for (row, ..) in rows().filter(|(row, ..)| row.contains(only)) {
        let all: Result<Vec<Cost>, Failed> =
            (0..processes).map(|_| in_process(&turns, &row)).collect();
        print(&row, &all?);
    }
    Ok(())
}

/// All rows that can be here.
fn rows() -> impl Iterator<Item = (String, Work, bool)> {
    let kinds = [("library", false), ("mount", true)].into_iter();
    let kinds = kinds.filter(|(_, mount)| !mount || Path::new("/dev/fuse").exists());
    kinds.flat_map(|(kind, mount)| {
        WORKS.map(|(work, name)| (format!("{kind}: {name}"), work, mount))
    })
}

/// A row in a process of its own, with servers of its own: what others made stays in their memory.
fn in_process(turns: &str, row: &str) -> Result<Cost, Failed> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    let out = command.args([ONE, turns, row]).output()?;
    let said = String::from_utf8_lossy(&out.stdout);
    let numbers: Vec<f64> = said.split_whitespace().flat_map(str::parse).collect();
    match (out.status.success(), &numbers[..]) {
        (true, &[off, on]) => Ok([off, on]),
        _ => Err(format!("{row}: {said}{}", String::from_utf8_lossy(&out.stderr)).into()),
    }
}

#[tokio::main]
async fn one(args: &[String]) -> Result<(), Failed> {
    let [turns, row] = args else {
        return Err(format!("{ONE} TURNS ROW").into());
    };
    let mut all = rows();
    let (_, work, mount) = all.find(|(name, ..)| name == row).ok_or("no such row")?;
    let [off, on] = measured(turns.parse()?, work, mount).await?;
    println!("{off} {on}");
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
