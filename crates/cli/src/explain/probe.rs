//! Operations of a trial's own: small files on every target in turn, and by one program and by two at once.

use super::guard::{DIR_PREFIX, Guard, Undo};
use crate::trace::ask_all;
use coral_lab::verdict::{Fid, Seen};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::time::Instant;

/// Writes of a file, each on disk before the next, and their size.
const WRITES: usize = 12;
const WRITE_BYTES: usize = 64 << 10;
/// Files that are made in a directory of an MDT.
const FILES: usize = 12;
/// Seconds after which a probe fetches its operations from the processes: a busy load soon pushes them out of the rings, which
/// hold [`coral_stopwatch::KEPT`] records.
const FETCH_S: f64 = 0.1;
/// Size of the writes of one program beside those of two.
const SMALL_BYTES: usize = 4096;

/// A directory for the files of a trial, which goes when the trial is over.
pub(super) struct Probe {
    dir: PathBuf,
    /// Places of the processes that keep the operations.
    places: Vec<PathBuf>,
    /// FIDs of what was worked on, as the stopwatches have them.
    fids: Vec<Fid>,
    /// Its own operations so far, and when they were fetched last.
    own: Seen,
    fetched: Instant,
    /// Targets that could not be worked on, and why.
    pub(super) left_out: Vec<String>,
}

impl Probe {
    /// Makes the directory below a mount.
    pub(super) fn new(
        mount: &Path,
        places: &[PathBuf],
        guard: &mut Guard,
    ) -> Result<Probe, String> {
        let dir = mount.join(format!("{DIR_PREFIX}{}", std::process::id()));
        guard.note(&Undo::Remove { dir: dir.clone() })?;
        std::fs::create_dir(&dir).map_err(|e| format!("cannot make '{}': {e}", dir.display()))?;
        let fids = vec![fid(&dir)?];
        Ok(Probe {
            dir,
            places: places.to_owned(),
            fids,
            own: Seen::default(),
            fetched: Instant::now(),
            left_out: Vec::new(),
        })
    }

    /// A target named `FSNAME-OSTxxxx` or `FSNAME-MDTxxxx` gets a file or a directory, which is worked on.
    pub(super) fn target(&mut self, name: &str) {
        let (index, is_ost) = match (name.split_once("-OST"), name.split_once("-MDT")) {
            (Some((_, hex)), _) => (u32::from_str_radix(hex, 16), true),
            (_, Some((_, hex))) => (u32::from_str_radix(hex, 16), false),
            _ => return,
        };
        let Ok(index) = index else { return };
        let path = self.dir.join(name);
        let made = match is_ost {
            true => lfs(&["setstripe", "-c", "1", "-i", &index.to_string()], &path),
            false => lfs(&["mkdir", "-i", &index.to_string()], &path),
        };
        let done = made.and_then(|_| {
            self.fids.push(fid(&path)?);
            let done = match is_ost {
                true => self.write(&path),
                false => self.make_files(&path),
            };
            done.map_err(|e| format!("'{}': {e}", path.display()))?;
            self.fetch()
        });
        if let Err(why) = done {
            self.left_out.push(format!("{name}: {why}"));
        }
    }

    /// Its own operations.
    pub(super) fn own(&self) -> &Seen {
        &self.own
    }

    /// What it has worked on.
    pub(super) fn fids(&self) -> BTreeSet<Fid> {
        self.fids.iter().copied().collect()
    }

    /// Takes its own operations from the rings of all processes.
    fn fetch(&mut self) -> Result<(), String> {
        let seen = ask_all(&self.places)?.whole()?;
        let own = seen.only(|o| self.fids.contains(&o.fid));
        self.own.add(own);
        self.fetched = Instant::now();
        Ok(())
    }

    fn fetch_in_time(&mut self) -> std::io::Result<()> {
        match self.fetched.elapsed().as_secs_f64() > FETCH_S {
            true => self.fetch().map_err(std::io::Error::other),
            false => Ok(()),
        }
    }

    fn write(&mut self, path: &Path) -> std::io::Result<()> {
        let mut file = File::options().write(true).open(path)?;
        for _ in 0..WRITES {
            file.write_all(&vec![7; WRITE_BYTES])?;
            file.sync_all()?;
            self.fetch_in_time()?;
        }
        Ok(())
    }

    fn make_files(&mut self, dir: &Path) -> std::io::Result<()> {
        for i in 0..FILES {
            File::create(dir.join(i.to_string()))?;
            self.fetch_in_time()?;
        }
        File::open(dir)?.sync_all()
    }

    /// Writes of 4 KiB in a second, each on disk before the next, of `programs` at once for so long.
    pub(super) fn rate(&mut self, programs: usize, time: Duration) -> Result<f64, String> {
        let names = (0..programs).map(|i| self.dir.join(format!("{programs}-{i}")));
        let names: Vec<PathBuf> = names.collect();
        let files = names.iter().map(File::create);
        let files: std::io::Result<Vec<File>> = files.collect();
        let failed = |e: std::io::Error| format!("'{}': {e}", self.dir.display());
        let mut files = files.map_err(failed)?;
        let rate = rate(&mut files, time, |file, _| {
            file.write_all(&[7; SMALL_BYTES])?;
            file.sync_data()
        });
        let rate = rate.map_err(failed)?;
        for name in &names {
            self.fids.push(fid(name)?);
        }
        Ok(rate)
    }

    /// Files made and removed in a second by so many programs, each in a directory of its own.
    pub(super) fn names(&mut self, programs: usize, time: Duration) -> Result<f64, String> {
        let dirs = (0..programs).map(|i| self.dir.join(format!("names-{programs}-{i}")));
        let mut dirs: Vec<PathBuf> = dirs.collect();
        for dir in &dirs {
            match std::fs::create_dir(dir) {
                // of the round before
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                made => made.map_err(|e| format!("'{}': {e}", dir.display()))?,
            }
            self.fids.push(fid(dir)?);
        }
        make_names(&mut dirs, true, time)
    }

    /// The same of two programs in a directory of the load's.
    pub(super) fn names_there(
        &mut self,
        dir: &Path,
        time: Duration,
        guard: &mut Guard,
    ) -> Result<f64, String> {
        let name = |i: usize| dir.join(format!("{DIR_PREFIX}{}-{i}", std::process::id()));
        let mut names = [name(0), name(1)];
        for name in &names {
            guard.note(&Undo::Remove { dir: name.clone() })?;
        }
        make_names(&mut names, false, time)
    }
}

/// Files made and removed in a second, by one program for each of these: files, or directories in which they are.
fn make_names(places: &mut [PathBuf], in_them: bool, time: Duration) -> Result<f64, String> {
    let shown = places.first().map(|p| p.display().to_string());
    let rate = rate(places, time, |place, i| {
        let name = match in_them {
            true => place.join(i.to_string()),
            false => place.clone(),
        };
        File::create_new(&name)?;
        std::fs::remove_file(&name)
    });
    rate.map_err(|e| format!("'{}': {e}", shown.unwrap_or_default()))
}

/// What programs do in a second, one for each place at once, for so long; each is the n-th of its program, from 0 on.
fn rate<T: Send>(
    places: &mut [T],
    time: Duration,
    does: impl Fn(&mut T, usize) -> std::io::Result<()> + Sync,
) -> std::io::Result<f64> {
    let one = |place: &mut T| -> std::io::Result<f64> {
        // The first one takes locks and opens what the others find.
        does(place, 0)?;
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < time {
            count += 1;
            does(place, count)?;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    };
    let one = &one;
    let rates: Vec<std::io::Result<f64>> = std::thread::scope(|s| {
        let threads: Vec<_> = (places.iter_mut())
            .map(|place| s.spawn(move || one(place)))
            .collect();
        let ended = threads.into_iter().map(|t| t.join());
        ended
            .map(|r| r.unwrap_or_else(|_| Err(std::io::Error::other("a program failed"))))
            .collect()
    });
    rates.into_iter().sum()
}

/// A directory by its FID, as it is seen below a mount.
pub(super) fn path_of(mount: &Path, (seq, oid, ver): Fid) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    let out = Command::new(program)
        .args(["lfs", "fid2path"])
        .arg(mount)
        .arg(format!("[{seq:#x}:{oid:#x}:{ver:#x}]"))
        .output()
        .map_err(|e| format!("lfs: {e}"))?;
    match out.status.success() {
        true => Ok(PathBuf::from(String::from_utf8_lossy(&out.stdout).trim())),
        false => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
    }
}

fn lfs(args: &[&str], path: &Path) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
    let out = Command::new(program)
        .arg("lfs")
        .args(args)
        .arg(path)
        .output()
        .map_err(|e| format!("lfs: {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
    }
}

fn fid(path: &Path) -> Result<Fid, String> {
    let text = lfs(&["path2fid"], path)?;
    let fid: coral_wire::fid::Fid = text
        .trim()
        .parse()
        .map_err(|_| format!("'{}' is no FID", text.trim()))?;
    Ok((fid.seq, fid.oid, fid.ver))
}
