//! What a worker process of the benchmark does, on either side.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const MIB: usize = 1 << 20;
/// What a program appends to its log at once, bytes.
const RECORD: usize = 100;
const PAGE: usize = 4096;

/// Files of one directory in the tree that is unpacked.
const PER_DIR: u64 = 200;

/// The packed tree.
pub(crate) fn tree(scratch: &Path) -> PathBuf {
    scratch.join("tree.tar")
}

/// So many workers at once, each a process with a number of its own. All have ended when it returns.
pub(super) fn at_once(
    work: &str,
    dir: &Path,
    jobs: u64,
    amount: u64,
    scratch: &Path,
) -> Result<(), String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let one = |job: u64| {
        let mut one = Command::new(&exe);
        one.args(["bench-worker", work]).arg(dir);
        one.args([job.to_string(), amount.to_string()]).arg(scratch);
        one.stdin(Stdio::null()).spawn()
    };
    let workers: Vec<_> = (0..jobs).map(one).collect();
    let end = |worker: io::Result<Child>| {
        let status = worker.and_then(|mut w| w.wait());
        match status.map_err(|e| e.to_string())? {
            s if s.success() => Ok(()),
            s => Err(format!("the worker on {} failed: {s}", dir.display())),
        }
    };
    let ended: Vec<_> = workers.into_iter().map(end).collect();
    ended.into_iter().collect()
}

/// Runs job number `job` of `work` in `dir`; what belongs to no side is in `scratch`.
pub(crate) fn worker(
    work: &str,
    dir: &Path,
    job: u64,
    amount: u64,
    scratch: &Path,
) -> Result<(), String> {
    let (big, listed) = (dir.join("streams").join("again"), dir.join("listed"));
    let place = dir.join(format!("job{job}"));
    let stream = dir.join("streams").join(format!("stream{job}"));
    let done = match work {
        "write" => write(&stream, |p| File::create(p), amount, MIB),
        "write4k" => write(&stream, |p| File::create(p), amount, PAGE),
        "append" => write(
            &stream,
            |p| OpenOptions::new().append(true).create(true).open(p),
            amount,
            RECORD,
        ),
        "read" => read(&stream, amount, MIB),
        "read4k" => read(&stream, amount, PAGE),
        "random" => random(&stream, amount, job),
        "randomwrite" => random_write(&stream, amount),
        "create" => create(&place, amount),
        "stat" => each(&place, amount, |p| std::fs::metadata(p).map(drop)),
        "openread" => each(&place, amount, |p| {
            File::open(p)?.read(&mut [0; 64]).map(drop)
        }),
        "fill" => each(&place, amount, |p| std::fs::write(p, [7; 1024])),
        "remove" => each(&place, amount, |p| std::fs::remove_file(p)),
        "warm" => warm(&big, amount),
        "again" => read(&big, amount, MIB),
        "again128k" => read(&big, amount * 8, MIB / 8),
        "again4k" => read(&big, amount * 256, PAGE),
        "list" if listed.exists() => Ok(()),
        "list" => create(&listed, amount)
            .and_then(|()| each(&listed, amount, |p| std::fs::write(p, [7; 1024]))),
        "ls" => run("ls", &["-l"], &listed),
        "pack" => pack(scratch, amount),
        "untar" => run("tar", &["-xf", &tree(scratch).to_string_lossy(), "-C"], dir),
        "rmrf" => run("rm", &["-rf"], &dir.join("tree")),
        shared if shared.starts_with("shared:") => blocks(shared, dir, job, amount),
        other => return Err(format!("no such work: {other}")),
    };
    done.map_err(|e| format!("{work} in {}: {e}", dir.display()))
}

/// Writes `blocks` blocks of `size` bytes to what `open` opens, and syncs once.
fn write(
    path: &Path,
    open: impl FnOnce(&Path) -> std::io::Result<File>,
    blocks: u64,
    size: usize,
) -> std::io::Result<()> {
    let block: Vec<u8> = (0..size).map(|i| ((i * 31) >> 3) as u8).collect();
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let mut file = open(path)?;
    for _ in 0..blocks {
        file.write_all(&block)?;
    }
    file.sync_all()
}

/// Blocks of one file of two jobs, or of a file of this job's own: `shared:` and what, how and bytes, with colons between.
fn blocks(what: &str, dir: &Path, job: u64, count: u64) -> std::io::Result<()> {
    let bad = || std::io::Error::other(format!("{what} is no such work"));
    let [_, what, how, size] = what.split(':').collect::<Vec<_>>()[..] else {
        return Err(bad());
    };
    let size: u64 = size.parse().map_err(|_| bad())?;
    let (name, place): (_, &dyn Fn(u64) -> u64) = match how {
        "own" => (format!("own{job}"), &|i| i),
        "segmented" => ("shared".to_owned(), &|i| job * count + i),
        "strided" => ("shared".to_owned(), &|i| 2 * i + job),
        _ => return Err(bad()),
    };
    let path = dir.join(name);
    let mut block = vec![job as u8 + 1; size as usize];
    if what == "write" {
        let mut open = OpenOptions::new();
        let file = open.write(true).create(true).truncate(false).open(path)?;
        for i in 0..count {
            file.write_all_at(&block, place(i) * size)?;
        }
        return file.sync_all();
    }
    let file = File::open(path)?;
    for i in 0..count {
        file.read_exact_at(&mut block, place(i) * size)?;
        if block[0] != job as u8 + 1 || block[block.len() - 1] != job as u8 + 1 {
            return Err(std::io::Error::other(format!(
                "block {i} is not what was written"
            )));
        }
    }
    Ok(())
}

/// A file that is there and was read.
fn warm(path: &Path, mib: u64) -> std::io::Result<()> {
    if !path.exists() {
        write(path, |p| File::create(p), mib, MIB)?;
    }
    read(path, mib, MIB)
}

fn run(program: &str, args: &[&str], at: &Path) -> std::io::Result<()> {
    let status = Command::new(program)
        .args(args)
        .arg(at)
        .stdout(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(std::io::Error::other(format!("{program}: {status}")))
    }
}

/// Packs a tree of files of 1 KiB.
fn pack(scratch: &Path, files: u64) -> std::io::Result<()> {
    let (top, tar) = (scratch.join("tree"), tree(scratch));
    if tar.exists() {
        return Ok(());
    }
    for d in 0..files.div_ceil(PER_DIR) {
        let dir = top.join(format!("d{d:03}"));
        std::fs::create_dir_all(&dir)?;
        each(&dir, PER_DIR.min(files - d * PER_DIR), |p| {
            std::fs::write(p, [7; 1024])
        })?;
    }
    run(
        "tar",
        &[
            "-cf",
            &tar.to_string_lossy(),
            "-C",
            &scratch.to_string_lossy(),
        ],
        Path::new("tree"),
    )?;
    std::fs::remove_dir_all(top)
}

/// Into a buffer at the start of a page, as cat, dd and fio have it: the kernel copies into others at half the speed.
fn read(path: &Path, count: u64, size: usize) -> std::io::Result<()> {
    let mut room = vec![0u8; size + PAGE];
    let start = room.as_ptr().align_offset(PAGE);
    let block = &mut room[start..start + size];
    let mut file = File::open(path)?;
    for _ in 0..count {
        file.read_exact(block)?;
    }
    Ok(())
}

/// Reads at places a fixed multiplicative generator gives: the same on both sides.
fn random(path: &Path, count: u64, job: u64) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).open(path)?;
    let pages = file.metadata()?.len() / PAGE as u64;
    let mut block = [0; PAGE];
    let mut x = 0x9e37_79b9_7f4a_7c15u64 ^ (job + 1);
    for _ in 0..count {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        file.read_exact_at(&mut block, (x >> 33) % pages * PAGE as u64)?;
    }
    Ok(())
}

/// Writes each of so many pages of a new file once, in an order that looks like none, and syncs. The count is a power of two.
fn random_write(path: &Path, pages: u64) -> std::io::Result<()> {
    let (mask, half) = (pages - 1, pages.trailing_zeros() / 2);
    // each step gives every number below the count once
    let place = |i: u64| {
        let mixed = i.wrapping_mul(0x9e37_79b1) & mask;
        let mixed = mixed ^ (mixed >> half);
        mixed.wrapping_mul(0x85eb_ca6b) & mask
    };
    let block = [7; PAGE];
    let file = File::create(path)?;
    for i in 0..pages {
        file.write_all_at(&block, place(i) * PAGE as u64)?;
    }
    file.sync_all()
}

fn name(dir: &Path, i: u64) -> PathBuf {
    dir.join(format!("file-{i:06}"))
}

fn create(dir: &Path, files: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    each(dir, files, |p| {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(p)
            .map(drop)
    })
}

fn each(
    dir: &Path,
    files: u64,
    what: impl Fn(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    (0..files).try_for_each(|i| what(&name(dir, i)))
}
