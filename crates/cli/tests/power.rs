//! Power loss: the servers' targets are on a disk that forgets what was not flushed (crate `coral-powerfs`), and its power goes at
//! random moments of a workload. What was acknowledged as safe must be there afterwards, and where the clients live on, everything
//! acknowledged.
//!
//! A failing run prints the line that runs it again. `CORAL_POWER_CUTS` makes it longer (`cargo xtask power`): each ten cuts are
//! a file system of their own with the next seed.

mod common;
#[path = "power/file.rs"]
mod file;
#[path = "power/rig.rs"]
mod rig;
#[path = "power/worker.rs"]
mod worker;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Rng, in_network_namespace, lfs, ok, pause};
use rig::Rig;
use worker::Worker;

/// Cuts of one file system.
const CUTS_EACH: u64 = 10;
/// After so many cuts the servers are stopped and their targets checked.
const CHECK_EVERY: u64 = 3;
/// How long a worker may take to end after the servers are back, seconds.
const PATIENCE_S: u64 = 300;

/// Layouts of the workers' directories.
const LAYOUTS: [&[&str]; 6] = [
    &["-c", "1"],
    &["-E", "64K", "-L", "mdt", "-E", "-1", "-c", "1"],
    &["-c", "2", "-S", "64K"],
    &["-E", "64K", "-c", "1", "-E", "-1", "-c", "2", "-S", "64K"],
    &["-c", "1"],
    &["-E", "1M", "-L", "mdt", "-E", "-1", "-c", "2"],
];

#[derive(Default)]
struct Outcome {
    cuts: u64,
    acked: u64,
    losses: Vec<String>,
    problems: Vec<String>,
    told: Vec<String>,
    changes_lost: u64,
    blocks_lost: u64,
    blocks_kept: u64,
}

impl Outcome {
    fn add(&mut self, other: Outcome) {
        self.cuts += other.cuts;
        self.acked += other.acked;
        self.losses.extend(other.losses);
        self.problems.extend(other.problems);
        self.told.extend(other.told);
        self.changes_lost += other.changes_lost;
        self.blocks_lost += other.blocks_lost;
        self.blocks_kept += other.blocks_kept;
    }
}

/// Each worker with the mount it works on and the one its work is looked at through.
struct Team {
    workers: Vec<Worker>,
    looked_at: Vec<PathBuf>,
    acked: Vec<Arc<AtomicU64>>,
}

impl Team {
    fn new(rig: &Rig, seed: u64, lives: bool) -> Team {
        let (mut workers, mut looked_at) = (Vec::new(), Vec::new());
        for (i, layout) in LAYOUTS.iter().enumerate() {
            let (own, other) = (
                &rig.mounts[i % rig.mounts.len()],
                &rig.mounts[(i + 1) % rig.mounts.len()],
            );
            let name = format!("w{i}");
            let mut worker = Worker::new(&own.join(&name), seed * 100 + i as u64);
            worker.keeps = lives;
            workers.push(worker);
            looked_at.push(other.join(&name));
            ok(lfs().arg("setstripe").args(*layout).arg(own.join(&name)));
        }
        for m in &rig.mounts {
            std::fs::File::open(m)
                .and_then(|d| d.sync_all())
                .expect("fsync of the root");
        }
        let acked = workers.iter().map(|w| w.acked.clone()).collect();
        Team {
            workers,
            looked_at,
            acked,
        }
    }

    fn acked(&self) -> u64 {
        self.acked.iter().map(|a| a.load(Ordering::Relaxed)).sum()
    }

    fn verify(&mut self, only_newest: bool) -> Vec<String> {
        self.workers
            .iter_mut()
            .zip(&self.looked_at)
            .flat_map(|(w, at)| w.verify(at, only_newest))
            .collect()
    }
}

/// Lets the workers work, with another program that syncs now and then, until `meanwhile` is done; `why` when one does not end.
#[expect(
    clippy::disallowed_methods,
    reason = "a test that reads what other processes print"
)]
fn work(
    team: &mut Team,
    disk: &Path,
    dies: bool,
    foreign: bool,
    meanwhile: impl FnOnce(),
) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::new(false));
    let (send, done) = std::sync::mpsc::channel();
    let mut count = team.workers.len();
    for (i, mut w) in std::mem::take(&mut team.workers).into_iter().enumerate() {
        let (stop, send) = (stop.clone(), send.clone());
        std::thread::spawn(move || {
            w.work(&stop, dies);
            let _ = send.send((i, w));
        });
    }
    let (disk, syncing) = (disk.to_owned(), stop.clone());
    let other = std::thread::spawn(move || {
        while foreign && !syncing.load(Ordering::Relaxed) {
            Rig::foreign_sync(&disk);
            pause(70);
        }
    });
    meanwhile();
    stop.store(true, Ordering::Relaxed);
    let mut back = Vec::new();
    while count > 0 {
        match done.recv_timeout(std::time::Duration::from_secs(PATIENCE_S)) {
            Ok(w) => back.push(w),
            Err(_) => {
                return Err(format!(
                    "{count} operations have not ended {PATIENCE_S} s after the servers were back"
                ));
            }
        }
        count -= 1;
    }
    let _ = other.join();
    back.sort_by_key(|(i, _)| *i);
    team.workers = back.into_iter().map(|(_, w)| w).collect();
    Ok(())
}

/// One file system through `cuts` cuts, or up to the first loss.
fn one_file_system(seed: u64, lives: bool, cuts: u64) -> Outcome {
    let mut rng = Rng::seeded(seed);
    let mut out = Outcome::default();
    let mut rig = Rig::new(seed, lives);
    let mut team = Team::new(&rig, seed, lives);
    for cut in 1..=cuts {
        let (before, after) = (50 + rng.below(1500), 100 + rng.below(600));
        let percent = [0, 2, 20, 50][rng.below(4) as usize];
        team.workers
            .iter_mut()
            .for_each(|w| w.sync_percent = percent);
        let (foreign, torn, disk) = (rng.below(2) == 0, rng.below(2) == 0, rig.disk());
        let mut report = Default::default();
        let worked = work(&mut team, &disk, !lives, foreign, || {
            pause(before);
            report = rig.cut(torn);
            if lives {
                rig.start();
                pause(after);
            }
        });
        out.cuts += 1;
        out.acked = team.acked();
        out.changes_lost += report.changes_lost;
        out.blocks_lost += report.blocks_lost;
        out.blocks_kept += report.blocks_kept;
        let mut bad = match worked {
            Err(stuck) => vec![stuck],
            Ok(()) => {
                if !lives {
                    rig.start();
                }
                team.verify(lives)
            }
        };
        for w in &mut team.workers {
            out.told.append(&mut w.told);
        }
        if bad.is_empty() {
            bad.extend(team.workers.iter_mut().filter_map(|w| {
                w.tidy()
                    .err()
                    .map(|e| format!("{}: tidying: {e}", w.dir.display()))
            }));
        }
        if !bad.is_empty() {
            let at = rig.keep();
            let again = format!("CORAL_POWER_SEED={seed} CORAL_POWER_CUTS={CUTS_EACH}");
            out.losses.extend(
                bad.into_iter()
                    .map(|b| format!("cut {cut}, {again}, kept in {}: {b}", at.display())),
            );
            return out;
        }
        if cut % CHECK_EVERY == 0 || cut == cuts {
            // what is removed in the background has its time
            pause(300);
            let found = rig.check();
            if let Some(first) = found.first() {
                out.problems.push(format!(
                    "cut {cut}, CORAL_POWER_SEED={seed}: {} problems, the first: {first}",
                    found.len()
                ));
            }
            rig.start();
        }
    }
    out
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// `cuts` cuts of file systems with seeds from CORAL_POWER_SEED.
fn run(lives: bool, short: u64) {
    let (cuts, first) = (
        number("CORAL_POWER_CUTS").unwrap_or(short),
        number("CORAL_POWER_SEED").unwrap_or(u64::from(std::process::id())),
    );
    let (mut all, mut seed) = (Outcome::default(), first);
    while all.cuts < cuts {
        let one = one_file_system(seed, lives, CUTS_EACH.min(cuts - all.cuts));
        one.losses.iter().for_each(|l| println!("LOST: {l}"));
        one.problems
            .iter()
            .for_each(|p| println!("coral check: {p}"));
        one.told.iter().for_each(|p| println!("error told: {p}"));
        all.add(one);
        println!(
            "{} cuts so far, {} acknowledged operations, {} losses",
            all.cuts,
            all.acked,
            all.losses.len()
        );
        seed += 1;
    }
    println!(
        "{} cuts, {} acknowledged operations, {} losses, {} problems of coral check, {} errors told; the cuts took {} changes and {} blocks, {} blocks survived by chance",
        all.cuts,
        all.acked,
        all.losses.len(),
        all.problems.len(),
        all.told.len(),
        all.changes_lost,
        all.blocks_lost,
        all.blocks_kept
    );
    let name = if lives {
        "power_loss_under_clients_that_live_on"
    } else {
        "power_loss_of_everything"
    };
    let again = format!(
        "run again: CORAL_POWER_SEED={first} CORAL_POWER_CUTS={cuts} cargo test -p coral-cli --test power {name} -- --exact --nocapture"
    );
    assert!(
        all.losses.is_empty() && all.problems.is_empty(),
        "{} losses, {} problems; {again}",
        all.losses.len(),
        all.problems.len()
    );
    assert!(
        all.acked > 0 && all.changes_lost > 0,
        "nothing was acknowledged, or nothing was at stake; {again}"
    );
}

#[test]
fn power_loss_of_everything() {
    needs_root_or_namespaces("power_loss_of_everything", || run(false, 6));
}

#[test]
fn power_loss_under_clients_that_live_on() {
    needs_root_or_namespaces("power_loss_under_clients_that_live_on", || run(true, 5));
}

fn needs_root_or_namespaces(name: &str, body: impl FnOnce()) {
    in_network_namespace(name, || {
        if Command::new("test")
            .args(["-w", "/dev/fuse"])
            .status()
            .is_ok_and(|s| s.success())
        {
            body();
        } else {
            eprintln!("SKIPPED: needs /dev/fuse");
        }
    });
}
