//! `cargo xtask bench steady`: what small writes in random order cost beside a FUSE passthrough, and what servers keep after many rounds.
//!
//! Servers and mount are processes of their own, over the loopback, as for [`super::peers`].

use super::machine::process_cpu;
use super::peers::{Kind, Side, middle};
use super::work;
use crate::step;
use std::path::Path;

/// Size of the file that is written in random order, in MiB.
const RANDOM_MIB: u64 = 256;
/// Repeats of it; medians are printed.
const REPEATS: usize = 3;
/// Rounds after each of which the servers' memory is looked at.
const ROUNDS: usize = 10;
/// Of a round: as many files as one process and four have in a round of [`super::peers`], and MiB of one large file.
const FILES: u64 = 5 * super::peers::FILES;
const LARGE_MIB: u64 = 256;

/// `coral`: the program to measure; None: it is built. In namespaces of their own.
pub(crate) fn run(dir: &Path, coral: Option<&Path>) -> Result<(), String> {
    super::peers::inside(dir, coral, |dir, coral| {
        let mut ours = Side::up(Kind::Coral, dir, coral)?;
        let passthrough = match Kind::Passthrough.lacks() {
            None => Some(Side::up(Kind::Passthrough, dir, coral)?),
            Some(program) => {
                println!(
                    "left out: {} ({program} is not here)",
                    Kind::Passthrough.name()
                );
                None
            }
        };
        random(&ours, passthrough.as_ref(), dir).and_then(|()| rounds(&mut ours, dir))
    })
}

/// Writes of 4 KiB in random order, through the page cache, with an fsync at the end.
fn random(ours: &Side, passthrough: Option<&Side>, scratch: &Path) -> Result<(), String> {
    let pages = RANDOM_MIB * 256;
    println!(
        "random writes of 4 KiB, {RANDOM_MIB} MiB, with an fsync; medians of {REPEATS}, least and most"
    );
    let (mut rpcs, mut ours_cpu, mut other_cpu) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let before = ours.counted("coral_ptlrpc_client_request_seconds_count{", "OST_WRITE")?;
        ours_cpu.push(one(ours, pages, scratch)?);
        let after = ours.counted("coral_ptlrpc_client_request_seconds_count{", "OST_WRITE")?;
        rpcs.push((after - before) as f64);
        if let Some(other) = passthrough {
            other_cpu.push(one(other, pages, scratch)?);
        }
    }
    let full = ours.parameter("osc.*.max_pages_per_rpc")?;
    let least = (pages as f64 / full).ceil();
    let (count, low, high) = middle(rpcs);
    println!(
        "OST_WRITE: {count:.0} ({low:.0} to {high:.0}); full ones of {full:.0} pages would be {least:.0}: ratio {:.2}",
        count / least
    );
    let part = |all: &[Cost], of: fn(&Cost) -> f64| middle(all.iter().map(of).collect());
    let show = |name: &str, what: &str, (cpu, low, high): (f64, f64, f64)| {
        println!("CPU of {what}, {name}: {cpu:.1} us a write ({low:.1} to {high:.1})");
        cpu
    };
    let ours = show(
        Kind::Coral.name(),
        "program and mount",
        part(&ours_cpu, |c| c.client),
    );
    show(
        Kind::Coral.name(),
        "the servers",
        part(&ours_cpu, |c| c.servers),
    );
    if !other_cpu.is_empty() {
        let other = show(
            Kind::Passthrough.name(),
            "program and mount",
            part(&other_cpu, |c| c.client),
        );
        println!("ratio {:.2}", ours / other);
    }
    Ok(())
}

/// CPU time for each write, in us, with that of the fsync.
struct Cost {
    client: f64,
    servers: f64,
}

fn one(side: &Side, pages: u64, scratch: &Path) -> Result<Cost, String> {
    let servers = || match side.server_pid() {
        Some(pid) => process_cpu(pid),
        None => 0.0,
    };
    let client = || side.client_pid().map_or(0.0, process_cpu) + process_cpu(std::process::id());
    let before = (client(), servers());
    work::worker("randomwrite", &side.mnt(), 0, pages, scratch)?;
    let each = |s: f64| s / pages as f64 * 1e6;
    Ok(Cost {
        client: each(client() - before.0),
        servers: each(servers() - before.1),
    })
}

/// The same work again and again, and what the servers' process keeps of it.
fn rounds(ours: &mut Side, scratch: &Path) -> Result<(), String> {
    println!(
        "memory of the servers after each round of {FILES} files and {LARGE_MIB} MiB, made, read cold and removed, MiB"
    );
    let mut all = Vec::new();
    for round in 1..=ROUNDS {
        let mnt = ours.mnt();
        work::worker("create", &mnt, 0, FILES, scratch)?;
        work::worker("fill", &mnt, 0, FILES, scratch)?;
        work::worker("write", &mnt, 0, LARGE_MIB, scratch)?;
        ours.remount()?;
        work::worker("stat", &mnt, 0, FILES, scratch)?;
        work::worker("openread", &mnt, 0, FILES, scratch)?;
        work::worker("read", &mnt, 0, LARGE_MIB, scratch)?;
        work::worker("remove", &mnt, 0, FILES, scratch)?;
        std::fs::remove_dir_all(mnt.join("streams")).map_err(|e| format!("streams: {e}"))?;
        std::fs::create_dir_all(mnt.join("streams")).map_err(|e| format!("streams: {e}"))?;
        // objects of removed files go after their names
        (0..10).for_each(|_| step::settle());
        let kib = ours.server_memory_kib()?;
        println!("{round:>4} {:>8.1}", kib / 1024.0);
        all.push(kib);
    }
    if let (Some(second), Some(last)) = (all.get(1), all.last()) {
        println!("ratio of the last to the second: {:.2}", last / second);
    }
    Ok(())
}
