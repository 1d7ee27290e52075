//! `cargo xtask bench shared`: two mounts that write and read one file, beside the same bytes in a file for each.
//!
//! The servers and both mounts are processes of their own, over the loopback. Segmented: each mount has half of the file. Strided: the
//! mounts' blocks alternate. The shared file lies in one object, and then in two as the two files do. A round makes the files anew,
//! writes them with an fsync at the end, and reads them. Beside the rates stand the locks that both mounts asked the OSTs for in a
//! round, and those that the OSTs asked back.

use super::only::Only;
use super::served::{printed, sum};
use crate::step;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Rounds; the median is printed.
const ROUNDS: usize = 3;
/// Port of the servers.
const PORT: &str = "9983";
/// Objects of the shared file.
const OBJECTS: [u32; 2] = [1, 2];
/// Who has which blocks of it.
const HOW: [&str; 2] = ["segmented", "strided"];
/// Block in bytes, and MiB that each mount writes.
const STEPS: [(u64, u64); 3] = [(4 << 10, 64), (64 << 10, 192), (1 << 20, 256)];

/// `beside`: the program to measure, instead of building it. `only`: rows with one of these in their name.
pub(crate) fn run(dir: &Path, beside: Option<&Path>, only: Option<&str>) -> Result<(), String> {
    let names: Vec<String> = STEPS
        .iter()
        .flat_map(|(block, _)| HOW.map(|how| name(how, *block)))
        .collect();
    let only = Only::of(only, names.iter().map(String::as_str))?;
    let coral = match beside {
        Some(given) => given.canonicalize().map_err(|e| e.to_string())?,
        None => step::build_release()?,
    };
    let dir = dir.join("shared");
    let _ = std::fs::remove_dir_all(&dir);
    for part in ["data", "mnt0", "mnt1"] {
        let part = dir.join(part);
        std::fs::create_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
    }
    let dir = dir.canonicalize().map_err(|e| e.to_string())?;
    let mut up = Command::new(&coral);
    up.arg("up").arg(dir.join("data"));
    quietly(up.args(["--nid", "127.0.0.1@tcp", "--port", PORT]))?;
    let done = with_mounts(&coral, &dir, &only);
    let down = quietly(Command::new(&coral).arg("down").arg(dir.join("data")));
    let _ = std::fs::remove_dir_all(&dir);
    done.and(down)
}

fn with_mounts(coral: &Path, dir: &Path, only: &Only) -> Result<(), String> {
    let mnt = |i: usize| dir.join(format!("mnt{i}"));
    let mut mounts: Vec<Child> = Vec::new();
    for i in 0..2 {
        let mut mount = Command::new(coral);
        mount.args(["mount", "127.0.0.1@tcp:/coral"]).arg(mnt(i));
        mount.args(["--port", PORT, "--foreground"]);
        mount.args(["--nid", &format!("127.0.0.{}@tcp", i + 2)]);
        let log = std::fs::File::create(dir.join(format!("mount{i}.log")));
        mount.stdout(Stdio::null()).stdin(Stdio::null());
        mount.stderr(log.map_err(|e| e.to_string())?);
        mounts.push(mount.spawn().map_err(|e| e.to_string())?);
    }
    let done = (0..2)
        .try_for_each(|i| mounted(&mnt(i)))
        .and_then(|()| table(coral, &[mnt(0), mnt(1)], only));
    for (i, mut child) in mounts.into_iter().enumerate() {
        let _ = quietly(Command::new("umount").arg(mnt(i)));
        let _ = child.wait();
    }
    done
}

/// Waits until it is.
fn mounted(mnt: &Path) -> Result<(), String> {
    for _ in 0..50 {
        let text = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        if text.contains(&format!(" {} ", mnt.display())) {
            return Ok(());
        }
        step::settle();
    }
    Err(format!("{} is not mounted", mnt.display()))
}

fn quietly(command: &mut Command) -> Result<(), String> {
    step::run_in(command.stdout(Stdio::null()))
}

/// What the rounds of one row came to: MB/s of the shared file, of two files, and (locks asked for, asked back) for the shared file.
#[derive(Default)]
struct Seen {
    shared: Vec<f64>,
    own: Vec<f64>,
    locks: Vec<(u64, u64)>,
}

fn name(how: &str, block: u64) -> String {
    format!("{how} {} KiB", block >> 10)
}

fn table(coral: &Path, mounts: &[PathBuf; 2], only: &Only) -> Result<(), String> {
    println!("MB/s of both mounts together; medians of {ROUNDS} rounds, least and most");
    for (block, mib) in STEPS {
        for how in HOW {
            let name = name(how, block);
            if !only.wants(&name) {
                continue;
            }
            let blocks = (mib << 20) / block;
            let mut rows: [[Seen; 2]; OBJECTS.len()] = Default::default();
            for _ in 0..ROUNDS {
                round(coral, mounts, how, (block, blocks), &mut rows)?;
            }
            for (objects, rows) in OBJECTS.iter().zip(rows) {
                for (what, seen) in ["write", "read"].iter().zip(rows) {
                    print_row(&format!("{name} {what}, objects: {objects}"), seen);
                }
            }
        }
    }
    Ok(())
}

/// All layouts once, written and read.
fn round(
    coral: &Path,
    mounts: &[PathBuf; 2],
    how: &str,
    (block, blocks): (u64, u64),
    rows: &mut [[Seen; 2]; OBJECTS.len()],
) -> Result<(), String> {
    let clean = || {
        for name in ["shared", "own0", "own1"] {
            let _ = std::fs::remove_file(mounts[0].join(name));
        }
    };
    clean();
    for (at, what) in ["write", "read"].iter().enumerate() {
        let rate = both(mounts, what, "own", block, blocks)?;
        rows.iter_mut().for_each(|rows| rows[at].own.push(rate));
    }
    for (objects, rows) in OBJECTS.iter().zip(rows) {
        clean();
        let mut stripe = Command::new(coral);
        stripe.args(["lfs", "setstripe", "-c", &objects.to_string()]);
        quietly(stripe.arg(mounts[0].join("shared")))?;
        for (row, what) in rows.iter_mut().zip(["write", "read"]) {
            let before = locks(coral, mounts)?;
            row.shared.push(both(mounts, what, how, block, blocks)?);
            let after = locks(coral, mounts)?;
            row.locks.push((after.0 - before.0, after.1 - before.1));
        }
    }
    clean();
    Ok(())
}

fn print_row(name: &str, seen: Seen) {
    let Seen {
        shared,
        own,
        mut locks,
    } = seen;
    locks.sort_unstable();
    let (asked, back) = locks.get(locks.len() / 2).copied().unwrap_or_default();
    let (own, _, _) = super::peers::middle(own);
    let (rate, least, most) = super::peers::middle(shared);
    let ratio = rate / own;
    println!(
        "{name:<36} {rate:>8.1} ({least:.1} to {most:.1})  two files {own:>8.1}  ratio {ratio:.2}  locks {asked}, asked back {back}"
    );
}

/// Locks that both mounts asked the OSTs for since their start, and those that the OSTs asked back.
fn locks(coral: &Path, mounts: &[PathBuf; 2]) -> Result<(u64, u64), String> {
    let mut all = (0, 0);
    for mnt in mounts {
        let text = printed(Command::new(coral).arg("metrics").arg(mnt))?;
        all.0 += sum(&text, "coral_ldlm_client_enqueue_seconds_count{", "OST");
        all.1 += sum(&text, "coral_ldlm_client_bl_callbacks_total{", "OST");
    }
    Ok(all)
}

/// One job on each mount, at once; MB/s of both together.
fn both(
    mounts: &[PathBuf; 2],
    what: &str,
    layout: &str,
    block: u64,
    blocks: u64,
) -> Result<f64, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let started = step::now();
    let mut jobs = Vec::new();
    for (i, mnt) in mounts.iter().enumerate() {
        let child = Command::new(&exe)
            .args(["bench-worker", &format!("shared:{what}:{layout}:{block}")])
            .arg(mnt)
            .args([i.to_string(), blocks.to_string()])
            .arg(mnt)
            .stdin(Stdio::null())
            .spawn();
        jobs.push(child.map_err(|e| e.to_string())?);
    }
    for mut job in jobs {
        let status = job.wait().map_err(|e| e.to_string())?;
        if !status.success() {
            return Err(format!("{layout} {what} of {block} bytes: {status}"));
        }
    }
    let bytes = (2 * block * blocks) as f64;
    Ok(bytes / started.elapsed().as_secs_f64() / 1e6)
}
