//! `cargo xtask bench peers`: Coral over TCP beside other file systems on this machine.
//!
//! All serve from one directory of the local file system, their servers in processes of their own, through the loopback of a
//! network namespace. Each round runs every row on every side, the sides in random order. Rows called cold come after the side
//! was mounted anew and the kernel's caches were dropped. CPU seconds are those of the whole machine.
//! A side whose mount is not what it claims to be is refused. A peer that cannot be had is left out, and that is said.
//!
//! Left out: rows of several mounts on one file, which are in `cargo xtask bench shared`; random writes with O_DIRECT, and JuiceFS,
//! which is no Debian package.

mod kind;

use super::machine::{USER_HZ, drop_caches, warm_memory};
use super::only::Only;
use super::served::{printed, sum};
use super::work;
use crate::{conform, setup, step};
use coral_metrics::wakeups;
use kind::KINDS;
pub(super) use kind::Kind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files per job.
pub(super) const FILES: u64 = 2_000;
/// Files of the tree that is unpacked.
const TREE_FILES: u64 = 4_000;
/// Size of a streamed file, MiB per job.
const STREAM_MIB: u64 = 256;
/// Rounds; medians and ranges are printed.
const ROUNDS: usize = 3;
/// Memory that the host gives back before a stream: what the file takes in the caches of a client and its servers, and more.
const WARM_MIB: usize = 2048;

/// What comes before a row on its side.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    /// Anything that others do.
    Others,
    /// A new mount, with nothing in the caches of the kernel, those of all sides.
    Mount,
    /// The row above at once: a new mount of another side would empty the kernel's caches.
    Above,
}

use Before::{Above, Mount, Others};

/// One row: its name, the work, the jobs, the amount of each, and what comes before it.
struct Row(&'static str, &'static str, u64, u64, Before);

/// A row finds what those before it made.
const ROWS: &[Row] = &[
    Row("create+close, 1 process", "create", 1, FILES, Others),
    Row("stat just created, 1 process", "stat", 1, FILES, Others),
    Row("fill 1 KiB, 1 process", "fill", 1, FILES, Others),
    Row("stat after remount, 1 process", "stat", 1, FILES, Mount),
    Row(
        "open+read+close, cold, 1 process",
        "openread",
        1,
        FILES,
        Mount,
    ),
    Row(
        "open+read+close again, 1 process",
        "openread",
        1,
        FILES,
        Above,
    ),
    Row("remove, 1 process", "remove", 1, FILES, Others),
    Row("create+close, 4 processes", "create", 4, FILES, Others),
    Row("stat just created, 4 processes", "stat", 4, FILES, Others),
    Row("stat after remount, 4 processes", "stat", 4, FILES, Mount),
    Row("remove, 4 processes", "remove", 4, FILES, Others),
    Row("untar, per file", "untar", 1, TREE_FILES, Others),
    Row("rm -rf, per file", "rmrf", 1, TREE_FILES, Others),
    Row(
        "write 1 MiB, fsync, 1 job, MiB/s",
        "write",
        1,
        STREAM_MIB,
        Others,
    ),
    Row(
        "read 1 MiB, cold, 1 job, MiB/s",
        "read",
        1,
        STREAM_MIB,
        Mount,
    ),
    Row(
        "write 4 KiB, fsync, 1 job, 4 KiB/s",
        "write4k",
        1,
        STREAM_MIB * 64,
        Others,
    ),
    Row(
        "write 1 MiB, fsync, 4 jobs, MiB/s",
        "write",
        4,
        STREAM_MIB / 4,
        Others,
    ),
    Row(
        "read 1 MiB, cold, 4 jobs, MiB/s",
        "read",
        4,
        STREAM_MIB / 4,
        Mount,
    ),
];

/// What one run of a row on one side came to.
#[derive(Clone, Copy)]
struct Got {
    rate: f64,
    /// CPU seconds of the machine, per 1,000 of the amount.
    cpu: f64,
    /// Of Coral over TCP, for each of the amount: RPCs, and wake-ups of the mount and of the servers.
    asked: Option<[f64; 3]>,
}

/// Set in the environment of the run inside its namespaces.
const INSIDE: &str = "CORAL_PEERS_INSIDE";
/// Address of the servers: one of them takes none of 127.0.0.0/8.
const ADDRESS: &str = "10.99.0.1";

/// Runs `what` with the directory and the program to measure, in a mount and a network namespace of its own. `coral`: that program; None:
/// it is built.
pub(super) fn inside(
    dir: &Path,
    coral: Option<&Path>,
    what: impl FnOnce(&Path, &Path) -> Result<(), String>,
) -> Result<(), String> {
    if std::env::var_os(INSIDE).is_none() {
        setup::fuse()?;
        if let Err(why) = setup::peers() {
            eprintln!("xtask: not all peers could be installed: {why}");
        }
        let built = match coral {
            Some(given) => given.canonicalize().map_err(|e| e.to_string())?,
            None => step::build_release()?,
        };
        return again(&built);
    }
    let coral = coral.ok_or("the program to measure was not handed on")?;
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .map_err(|e| format!("{}: {e}", dir.display()))?;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
    what(&dir, coral)
}

/// `coral`: the program to measure; None: it is built. `only`: rows with one of these in their name.
pub(crate) fn run(dir: &Path, coral: Option<&Path>, only: Option<&str>) -> Result<(), String> {
    let only = Only::of(only, ROWS.iter().map(|r| r.0))?;
    inside(dir, coral, |dir, coral| rows(dir, coral, &only))
}

fn rows(dir: &Path, coral: &Path, only: &Only) -> Result<(), String> {
    let (mut sides, mut missing) = (Vec::new(), Vec::new());
    for kind in KINDS {
        match kind.lacks() {
            Some(program) => missing.push(format!("{} ({program} is not here)", kind.name())),
            None => sides.push(Side::up(*kind, dir, coral)?),
        }
    }
    work::worker("pack", dir, 0, TREE_FILES, dir)?;
    let seed = u64::from(std::process::id());
    println!(
        "sides in random order, seed {seed}; {ROUNDS} rounds; medians, in brackets least and most"
    );
    for left in &missing {
        println!("left out: {left}");
    }
    let done = measure(&mut sides, seed, dir, only);
    let got = done.map(|got| table(&sides, &got, only));
    drop(sides);
    let _ = std::fs::remove_file(work::tree(dir));
    got
}

/// Runs this program again in a mount and a network namespace of its own, with the program to measure.
fn again(coral: &Path) -> Result<(), String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut args: Vec<_> = std::env::args_os().skip(1).collect();
    if !args.iter().any(|a| a == "--beside") {
        args.extend(["--beside".into(), coral.as_os_str().to_owned()]);
    }
    let mut unshare = conform::ends_with_us("unshare");
    unshare
        .args(["-m", "-n", "--propagation", "private"])
        .arg(exe)
        .args(args)
        .env(INSIDE, "1");
    step::run_in(&mut unshare)
}

fn ip(args: &[&str]) -> Result<(), String> {
    step::run_in(Command::new("ip").args(args))
}

/// A file system that is up and mounted.
pub(super) struct Side {
    kind: Kind,
    dir: PathBuf,
    coral: PathBuf,
    servers: Vec<kind::Process>,
    /// The client, of those that stay in the foreground.
    client: Option<kind::Process>,
}

impl Side {
    pub(super) fn up(kind: Kind, dir: &Path, coral: &Path) -> Result<Side, String> {
        let dir = dir.join(kind.short());
        let _ = std::fs::remove_dir_all(&dir);
        for part in ["data", "mnt"] {
            let part = dir.join(part);
            std::fs::create_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
        }
        let mut side = Side {
            kind,
            servers: Vec::new(),
            client: None,
            coral: coral.to_owned(),
            dir,
        };
        side.servers = kind.serve(&side.dir, coral)?;
        side.mount()?;
        let streams = side.mnt().join("streams");
        std::fs::create_dir_all(&streams).map_err(|e| format!("{}: {e}", streams.display()))?;
        Ok(side)
    }

    pub(super) fn mnt(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// Mounts it, and makes sure that it is what it claims to be.
    fn mount(&mut self) -> Result<(), String> {
        self.client = self.kind.mount(&self.dir, &self.coral)?;
        let Some(kind) = self.kind.mounted_as() else {
            return Ok(());
        };
        let mnt = self.mnt();
        for _ in 0..50 {
            if fs_type(&mnt)?.is_some_and(|found| found == kind) {
                return Ok(());
            }
            step::settle();
        }
        Err(format!(
            "{}: {} is not mounted as {kind}",
            self.kind.name(),
            mnt.display()
        ))
    }

    /// Nothing of what it had in memory is left: neither the client's nor the kernel's.
    pub(super) fn remount(&mut self) -> Result<(), String> {
        if self.kind.mounted_as().is_some() {
            self.kind.unmount(&self.dir, &self.coral)?;
            drop(self.client.take());
            self.mount()?;
        }
        drop_caches();
        Ok(())
    }

    /// Sum of a client's counters whose lines begin so and have `with` in them.
    pub(super) fn counted(&self, begin: &str, with: &str) -> Result<u64, String> {
        let text = printed(Command::new(&self.coral).arg("metrics").arg(self.mnt()))?;
        Ok(sum(&text, begin, with))
    }

    /// A parameter of the client.
    pub(super) fn parameter(&self, name: &str) -> Result<f64, String> {
        let mut get = Command::new(&self.coral);
        get.args(["lctl", "--dir"]).arg(self.mnt());
        let text = printed(get.args(["get_param", "-n", name]))?;
        let value = text.lines().next().and_then(|l| l.trim().parse().ok());
        value.ok_or_else(|| format!("{name} is no number: {text}"))
    }

    /// The process that serves Coral.
    pub(super) fn server_pid(&self) -> Option<u32> {
        let served = super::served::status(&self.coral, &self.dir.join("data"));
        served.ok().map(|(pid, ..)| pid)
    }

    /// The client, where it stays in the foreground.
    pub(super) fn client_pid(&self) -> Option<u32> {
        self.client.as_ref().map(kind::Process::id)
    }

    /// Memory of the process that serves Coral, in KiB.
    pub(super) fn server_memory_kib(&self) -> Result<f64, String> {
        let pid = self.server_pid().ok_or("the servers tell no process id")?;
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
        kib.ok_or_else(|| format!("{path} tells no memory"))
    }

    /// RPCs of the mount, and wake-ups of its process and of the servers': voluntary switches of all threads.
    fn asked(&self) -> Result<Option<[u64; 3]>, String> {
        let pids = match self.kind {
            Kind::Coral => self.client_pid().zip(self.server_pid()),
            _ => None,
        };
        let Some((client, server)) = pids else {
            return Ok(None);
        };
        let rpcs = self.counted("coral_ptlrpc_client_request_seconds_count{", "")?;
        Ok(Some([rpcs, wakeups(client), wakeups(server)]))
    }

    fn measure(&mut self, row: &Row, scratch: &Path) -> Result<Got, String> {
        let Row(name, what, jobs, amount, before) = *row;
        if before == Mount {
            self.remount()?;
        }
        if matches!(what, "write" | "write4k" | "read") {
            warm_memory(WARM_MIB);
        }
        let asked = self.asked()?;
        let (cpu, started) = (machine_cpu(), step::now());
        work::at_once(what, &self.mnt(), jobs, amount, scratch)
            .map_err(|e| format!("{}: {name}: {e}", self.kind.name()))?;
        let (seconds, cpu) = (started.elapsed().as_secs_f64(), machine_cpu() - cpu);
        let total = (jobs * amount) as f64;
        let each = |before: [u64; 3], after: [u64; 3]| {
            std::array::from_fn(|i| after[i].saturating_sub(before[i]) as f64 / total)
        };
        let asked = asked.zip(self.asked()?);
        Ok(Got {
            rate: total / seconds,
            cpu: cpu / total * 1000.0,
            asked: asked.map(|(before, after)| each(before, after)),
        })
    }
}

/// It is unmounted and its servers end, wherever a run breaks off.
impl Drop for Side {
    fn drop(&mut self) {
        if let Err(why) = self.kind.unmount(&self.dir, &self.coral) {
            eprintln!("xtask: {why}");
        }
        drop(self.client.take());
        self.kind.stop(&self.dir, &self.coral);
        while let Some(last) = self.servers.pop() {
            drop(last);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What is mounted on `mnt`, by the last line of mountinfo about it.
fn fs_type(mnt: &Path) -> Result<Option<String>, String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
    let of = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let at = left.split(' ').nth(4)?;
        (Path::new(at) == mnt).then(|| {
            let mut right = right.split(' ');
            let (kind, source) = (right.next().unwrap_or(""), right.next().unwrap_or(""));
            match source.split('\\').next() {
                Some("mfs") => format!("{kind} mfs"),
                _ => kind.to_owned(),
            }
        })
    };
    Ok(text.lines().filter_map(of).next_back())
}

/// CPU seconds of the whole machine that were not idle.
fn machine_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let all: Vec<f64> = first
        .split_whitespace()
        .skip(1)
        .map(|f| f.parse().unwrap_or(0.0))
        .collect();
    // user, nice, system, idle, iowait, irq, softirq; what guests take is in user already
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|i| all.get(*i));
    busy.sum::<f64>() / USER_HZ
}

type Table = Vec<Vec<Vec<Got>>>;

/// By row and side, all rounds.
fn measure(
    sides: &mut [Side],
    mut seed: u64,
    scratch: &Path,
    only: &Only,
) -> Result<Table, String> {
    let mut got: Table = ROWS.iter().map(|_| vec![Vec::new(); sides.len()]).collect();
    for _ in 0..ROUNDS {
        for (place, row) in ROWS.iter().enumerate() {
            let next = ROWS
                .get(place + 1)
                .filter(|n| n.4 == Above && only.wants(n.0));
            if row.4 == Above || !only.wants(row.0) && next.is_none() {
                continue;
            }
            for at in shuffled(sides.len(), &mut seed) {
                got[place][at].push(sides[at].measure(row, scratch)?);
                if let Some(next) = next {
                    got[place + 1][at].push(sides[at].measure(next, scratch)?);
                }
            }
        }
    }
    Ok(got)
}

/// The numbers below `n` in an order that follows from `seed` (Fisher and Yates; the generator is Knuth's MMIX).
fn shuffled(n: usize, seed: &mut u64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        *seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        all.swap(i, ((*seed >> 33) % (i as u64 + 1)) as usize);
    }
    all
}

/// Median, least and most.
pub(super) fn middle(mut list: Vec<f64>) -> (f64, f64, f64) {
    list.sort_by(f64::total_cmp);
    let at = |i: usize| list.get(i).copied().unwrap_or(0.0);
    (at(list.len() / 2), at(0), at(list.len().saturating_sub(1)))
}

fn table(sides: &[Side], got: &Table, only: &Only) {
    for (row, of_row) in ROWS.iter().zip(got).filter(|(row, _)| only.wants(row.0)) {
        println!("{}", row.0);
        let rate = |at: usize| middle(of_row[at].iter().map(|g| g.rate).collect()).0;
        let best_peer = (0..sides.len())
            .filter(|at| sides[*at].kind.is_peer())
            .map(rate)
            .fold(0.0, f64::max);
        for (side, all) in sides.iter().zip(of_row) {
            let (rate, least, most) = middle(all.iter().map(|g| g.rate).collect());
            let (cpu, _, _) = middle(all.iter().map(|g| g.cpu).collect());
            let ratio = match best_peer > 0.0 {
                true => format!("{:.2} of the best peer", rate / best_peer),
                false => String::new(),
            };
            println!(
                "  {:<20} {rate:>10.1} ({least:.1} to {most:.1})  CPU s per 1,000: {cpu:.3}  {ratio}",
                side.kind.name()
            );
            let asked: Vec<[f64; 3]> = all.iter().filter_map(|g| g.asked).collect();
            if !asked.is_empty() {
                let [rpcs, client, server] = [0, 1, 2].map(|i| {
                    let (middle, least, most) = middle(asked.iter().map(|a| a[i]).collect());
                    format!("{middle:.2} ({least:.2} to {most:.2})")
                });
                println!(
                    "    for each: RPCs {rpcs}, wake-ups of the mount {client}, of the servers {server}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_all_and_follows_from_its_seed() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut order = shuffled(3, &mut { seed });
            assert_eq!(order, shuffled(3, &mut { seed }));
            seen.insert(order.clone());
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2]);
        }
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn medians_and_ranges() {
        assert_eq!(middle(vec![3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(middle(vec![]), (0.0, 0.0, 0.0));
    }
}
