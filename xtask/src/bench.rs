//! `cargo xtask bench`: the mount against the directory underneath it, in one run.
//!
//! Each row runs the same work first on a plain directory (or on the mount of another build), then on the mount, several times in
//! turn, and prints the medians,
//! their ratio, the CPU seconds of everything involved (worker processes and the Coral process), and the RPCs, thread
//! hand-overs and wake-ups per operation that the Coral process counted. Times are only reported; nothing here passes or fails.

mod machine;
mod only;
pub(crate) mod originals;
pub(crate) mod peers;
mod profile;
mod rows;
pub(crate) mod served;
pub(crate) mod shared;
pub(crate) mod steady;
mod work;

use crate::{setup, step};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) use machine::process_cpu;
use machine::{children_cpu, compact_memory, drop_caches};
use only::Only;
use rows::{READS, ROWS, Row, Unit};
use served::{Mdts, Served, status};
pub(crate) use work::worker;

/// A tmpfs.
const SMALL_PAGES: &str = "/dev/shm";
/// Rounds of each row; the median is printed.
const ROUNDS: usize = 3;
/// The same for reads from the page cache, which are short.
const ROUNDS_AGAIN: usize = 15;

/// What one run of a row on one side came to.
#[derive(Clone, Copy, Default)]
struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    rpcs: u64,
    handovers: u64,
    wakeups: u64,
}

/// One side of the comparison.
struct Side {
    dir: PathBuf,
    /// Where things are that belong to neither side.
    scratch: PathBuf,
    /// The Coral process, when this side is the mount.
    coral: Option<Served>,
}

/// What is to be measured, and beside what.
pub(crate) struct Asked<'a> {
    /// Where the file systems and the files to compare with are put.
    pub dir: &'a Path,
    /// A Coral binary of another build to compare with, instead of the local directory.
    pub beside: Option<&'a Path>,
    /// With more than one: a file system with so many MDTs beside one that has one, instead of the local directory.
    pub mdts: u32,
    /// There, new directories are striped over all of them.
    pub striped: bool,
    /// How often the whole table is measured.
    pub times: usize,
    /// Also say where the CPU time went.
    pub profile: bool,
    /// Only rows with one of these in their name.
    pub rows: Option<&'a str>,
}

/// The tables of whole mounts, by name.
pub(crate) fn of_mounts(
    what: &str,
    dir: &Path,
    beside: Option<&Path>,
    only: Option<&str>,
) -> Result<(), String> {
    match what {
        "peers" => peers::run(dir, beside, only),
        "steady" => steady::run(dir, beside),
        _ => shared::run(dir, beside, only),
    }
}

pub(crate) fn run(asked: &Asked<'_>) -> Result<(), String> {
    if asked.striped && asked.mdts < 2 {
        return Err(format!(
            "bench --striped stripes directories over several MDTs, and --mdts is {}: give --mdts 2 or more",
            asked.mdts
        ));
    }
    let only = Only::of(asked.rows, ROWS.iter().map(|r| r.name))?;
    setup::fuse()?;
    if asked.profile {
        setup::profiler()?;
    }
    let coral = step::build_release()?;
    let dir = asked.dir;
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .map_err(|e| format!("{}: {e}", dir.display()))?;
    let (mnt, plain) = (dir.join("mnt"), dir.join("plain"));
    let several = (asked.mdts > 1).then_some(coral.as_path());
    let other = match asked.beside.or(several) {
        Some(other) => Some(Served::up(
            other,
            &dir.join("data0"),
            &plain,
            9986,
            Mdts::ONE,
        )?),
        None => {
            let _ = std::fs::remove_dir_all(&plain);
            std::fs::create_dir_all(&plain).map_err(|e| format!("{}: {e}", plain.display()))?;
            None
        }
    };
    let side = |at: &Path, coral: &Option<Served>| Side {
        dir: at.to_owned(),
        scratch: dir.clone(),
        coral: coral.clone(),
    };
    let mdts = Mdts {
        count: asked.mdts,
        striped: asked.striped,
    };
    let ours = Served::up(&coral, &dir.join("data"), &mnt, 9987, mdts).map(Some);
    let done = match &ours {
        Ok(ours) => {
            let sides = [side(&plain, &other), side(&mnt, ours)];
            (0..asked.times).try_for_each(|_| measure(&sides, asked, &only))
        }
        Err(e) => Err(e.clone()),
    };
    let down = [other, ours.ok().flatten()]
        .into_iter()
        .flatten()
        .map(Served::down)
        .fold(Ok(()), Result::and);
    let _ = std::fs::remove_dir_all(&plain);
    let _ = std::fs::remove_file(work::tree(&dir));
    done.and(down)
}

/// Prints every row; with `profile` also where the time of each went.
fn measure(sides: &[Side; 2], asked: &Asked<'_>, only: &Only) -> Result<(), String> {
    let beside = match asked.beside {
        Some(_) => "other build",
        None if asked.mdts > 1 => "one MDT",
        None => "directory",
    };
    let mut reads = 0.0;
    println!(
        "{:<34} {:>12} {:>12} {:>6}  {:>11} {:>11}  {:>8} {:>9} {:>7}",
        "",
        beside,
        "coral",
        "ratio",
        "CPU s there",
        "CPU s coral",
        "RPC/op",
        "hand-o/op",
        "wake/op  floor"
    );
    for row in ROWS.iter().filter(|r| only.wants(r.name)) {
        let mut got = [Vec::new(), Vec::new()];
        let again = row.prepare == "warm";
        if again {
            sides
                .iter()
                .try_for_each(|s| work::worker(row.prepare, &s.dir, 0, row.amount, &s.scratch))?;
            compact_memory();
        }
        for _ in 0..if again { ROUNDS_AGAIN } else { ROUNDS } {
            for (side, list) in sides.iter().zip(&mut got) {
                list.push(run_row(row, side)?);
            }
            if matches!(
                row.work,
                "create" | "remove" | "untar" | "rmrf" | "openread"
            ) {
                break; // these change the tree, or are about a first time: one round, the next row undoes it
            }
        }
        let rate = print_row(row, median(&mut got[0]), median(&mut got[1]), reads);
        if row.name == READS {
            reads = rate;
        }
        if again && sides[0].coral.is_none() {
            small_pages(row, rate)?;
        }
        if asked.profile {
            profile_row(row, &sides[1])?;
        }
    }
    println!(
        "throughput in MiB/s or operations/s; CPU seconds per GiB, or per 1,000 operations; {ROUNDS} rounds, {ROUNDS_AGAIN} of files read again, medians (creates, removes and first times: one round)"
    );
    Ok(())
}

/// The same on a tmpfs, whose cache has pages of 4 KiB as FUSE's has, while ext4's has larger folios: what of a difference is
/// the kernel's.
fn small_pages(row: &Row, coral: f64) -> Result<(), String> {
    let dir = PathBuf::from(SMALL_PAGES).join(format!("coral-bench-{}", std::process::id()));
    let side = Side {
        scratch: dir.clone(),
        dir: dir.clone(),
        coral: None,
    };
    std::fs::create_dir_all(dir.join("streams")).map_err(|e| format!("{}: {e}", dir.display()))?;
    compact_memory();
    let got: Result<Vec<_>, _> = (0..ROUNDS_AGAIN).map(|_| run_row(row, &side)).collect();
    let _ = std::fs::remove_dir_all(&dir);
    let rate = (row.jobs * row.amount) as f64 / median(&mut got?).seconds;
    println!(
        "{:<34} {rate:>12.1} {:>12} {:>6.2}",
        "  against a tmpfs of 4 KiB pages",
        "",
        coral / rate
    );
    Ok(())
}

/// Runs `row` on the mount once more, sampled. Creates and removes run in a directory that is made and emptied again.
fn profile_row(row: &Row, mount: &Side) -> Result<(), String> {
    let Some(served) = &mount.coral else {
        return Ok(());
    };
    let again = Side {
        dir: mount.dir.join("again"),
        scratch: mount.scratch.clone(),
        coral: mount.coral.clone(),
    };
    let (before, sampled) = match row.work {
        "create" | "untar" => (None, &again),
        "rmrf" => (
            Some(Row {
                work: "untar",
                ..*row
            }),
            &again,
        ),
        "remove" => (
            Some(Row {
                work: "create",
                ..*row
            }),
            &again,
        ),
        _ => (None, mount),
    };
    std::fs::create_dir_all(&again.dir).map_err(|e| e.to_string())?;
    if let Some(before) = before {
        run_row(&before, sampled)?;
    }
    let recording = profile::Recording::start(served.pid, &mount.scratch)?;
    let done = run_row(row, sampled);
    recording.finish(row.name)?;
    std::fs::remove_dir_all(&again.dir).map_err(|e| e.to_string())?;
    done.map(drop)
}

fn run_row(row: &Row, side: &Side) -> Result<Measured, String> {
    if !row.prepare.is_empty() {
        work::worker(row.prepare, &side.dir, 0, row.amount, &side.scratch)?;
    }
    if row.cold {
        side.drop_locks()?;
        drop_caches();
    }
    let before = side.counts()?;
    let cpu_before = children_cpu();
    let started = step::now();
    work::at_once(row.work, &side.dir, row.jobs, row.amount, &side.scratch)
        .map_err(|e| format!("{}: {e}", row.name))?;
    let seconds = started.elapsed().as_secs_f64();
    let after = side.counts()?;
    Ok(Measured {
        seconds,
        cpu_seconds: children_cpu() - cpu_before + after.cpu_seconds - before.cpu_seconds,
        rpcs: after.rpcs - before.rpcs,
        handovers: after.handovers - before.handovers,
        wakeups: after.wakeups.saturating_sub(before.wakeups),
    })
}

impl Side {
    /// Lets a mount forget all that its locks cover.
    fn drop_locks(&self) -> Result<(), String> {
        let Some(served) = &self.coral else {
            return Ok(());
        };
        let mut lctl = Command::new(&served.coral);
        lctl.args(["lctl", "--dir"])
            .arg(&served.data)
            .args(["set_param", "ldlm.namespaces.*.lru_size=clear"])
            .stdout(Stdio::null());
        step::run_in(&mut lctl)
    }

    fn counts(&self) -> Result<Measured, String> {
        let Some(served) = &self.coral else {
            return Ok(Measured::default());
        };
        let (_, rpcs, handovers, wakeups) = status(&served.coral, &served.data)?;
        Ok(Measured {
            seconds: 0.0,
            cpu_seconds: process_cpu(served.pid),
            rpcs,
            handovers,
            wakeups,
        })
    }
}

fn median(list: &mut [Measured]) -> Measured {
    list.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    list[list.len() / 2]
}

/// Prints a row; the mount's rate. `reads`: that of [`READS`].
fn print_row(row: &Row, dir: Measured, coral: Measured, reads: f64) -> f64 {
    let total = (row.jobs * row.amount) as f64;
    let (rate, per) = match row.unit {
        Unit::MiB => (total, total / 1024.0),
        Unit::Pages => (total / 256.0, total / 256.0 / 1024.0),
        Unit::Ops => (total, total / 1000.0),
    };
    let r = |m: Measured| rate / m.seconds;
    println!(
        "{:<34} {:>12.1} {:>12.1} {:>6.2}  {:>11.3} {:>11.3}  {:>8.2} {:>9.2} {:>7.2}  {}",
        row.name,
        r(dir),
        r(coral),
        dir.seconds / coral.seconds,
        dir.cpu_seconds / per,
        coral.cpu_seconds / per,
        coral.rpcs as f64 / total,
        coral.handovers as f64 / total,
        coral.wakeups as f64 / total,
        row.floor.map_or(String::new(), |f| f.judge(
            dir.seconds / coral.seconds,
            r(coral),
            coral.rpcs as f64 / total,
            reads
        ))
    );
    r(coral)
}
