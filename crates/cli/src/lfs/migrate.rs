//! `lfs migrate -m`: directories and what is in them move to other MDTs.
//!
//! A directory moves first, with an empty new layout beside the old one; then each of its names; then the old layout goes. Who stops in
//! between leaves a directory that can be used, and the same command again goes on. Lustre: `cb_migrate_mdt_init`,
//! `cb_migrate_mdt_fini` in `lustre/utils/liblustreapi.c`. Absent: `lfs migrate` of data between OSTs.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use coral_client::llite::MigrateRequest;
use coral_wire::Errno;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd, hash_flag};
use lexopt::prelude::*;
use rustix::fs::XattrFlags;

use super::dirstripe::{self, Want, hash, mdt_count, mdt_list, missing_mdt};
use super::getstripe::mdt_index;
use super::{Failure, USAGE, set_xattr};

/// Times a name that others change at that moment is tried.
const TRIES: usize = 16;

/// What the command line asks for.
struct Task {
    lum: LmvUserMd,
    /// Only the directory itself; of directories in it only the names move.
    shallow: bool,
    verbose: bool,
    /// The MDTs that things go to, where all of them were named.
    mdts: Option<Vec<u32>>,
    /// Files whose names moved and that stayed themselves.
    stayed: Cell<u64>,
}

pub(crate) fn migrate(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut w, mut paths) = (Want::default(), Vec::new());
    let (mut shallow, mut verbose, mut fixed) = (false, false, hash_flag::FIXED);
    while let Some(arg) = p.next()? {
        match arg {
            Short('m') | Long("mdt-index") => w.mdts = mdt_list(&p.value()?.string()?)?,
            Short('c') | Long("mdt-count") => w.count = Some(mdt_count(&p.value()?.string()?)?),
            Short('C') | Long("mdt-overcount") => {
                w.count = Some(mdt_count(&p.value()?.string()?)?);
                w.over = hash_flag::OVERSTRIPED;
            }
            Short('H') | Long("mdt-hash") => w.hash = hash(&p.value()?.string()?)?,
            Short('d') | Long("directory") => shallow = true,
            Short('v') | Long("verbose") => verbose = true,
            Long("clear-fixed") => fixed = 0,
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if w.mdts.is_empty() {
        let what = "lfs migrate: say with -m to which MDT; data is not moved between OSTs";
        return Err(Failure::new(what, USAGE));
    }
    if paths.is_empty() {
        let what = "lfs migrate: give at least one directory or file";
        return Err(Failure::new(what, USAGE));
    }
    if let (Some(twice), 0) = (w.twice(), w.over) {
        let what = format!(
            "lfs migrate: MDT {twice} is listed twice; several shards on one MDT are asked for with -C"
        );
        return Err(Failure::new(what, Errno::EINVAL.0 as u8));
    }
    w.hash |= fixed;
    let lum = w.request(1).map_err(|e| {
        let what = "lfs migrate: the number of shards is not that of the MDTs given";
        Failure::new(what, e.0 as u8)
    })?;
    let named =
        !w.mdts.contains(&LMV_OFFSET_DEFAULT) && lum.head.stripe_count == w.mdts.len() as u32;
    let task = Task {
        lum,
        shallow,
        verbose,
        mdts: named.then_some(w.mdts),
        stayed: Cell::new(0),
    };
    for path in &paths {
        // "." and ".." have no name that could move
        let path = std::fs::canonicalize(path).map_err(|e| failed(path, e.into()))?;
        let mount = super::mount_of(&path)?;
        if mount.path == path {
            let what = format!(
                "lfs migrate: '{}' is the root of the file system, which stays",
                path.display()
            );
            return Err(Failure::new(what, Errno::EINVAL.0 as u8));
        }
        task.check(&path)?;
        if task.lum.head.stripe_count > 1 && !path.is_dir() {
            let what = format!(
                "lfs migrate: '{}' is a file, which goes to one MDT",
                path.display()
            );
            return Err(Failure::new(what, Errno::EINVAL.0 as u8));
        }
        task.tree(&path, 0)?;
    }
    if task.stayed.get() > 0 {
        eprintln!(
            "lfs migrate: names that moved without their files (-v tells which): {}. Those that are open go along with the same command later; those \
             with data on their MDT stay, and those with another name there as long as they have it",
            task.stayed.get()
        );
    }
    Ok(())
}

fn failed(path: &Path, e: Errno) -> Failure {
    Failure::errno(format_args!("lfs migrate: '{}'", path.display()), e)
}

/// What a server does not permit may be on its way to elsewhere, and cannot be ended otherwise than it was begun.
fn refused(path: &Path, e: Errno) -> Failure {
    if e == Errno::EINPROGRESS {
        let what = format!(
            "lfs migrate: '{}': an MDT that it needs was down or in recovery for a minute (`lfs df` and `lctl get_param mdc.*.import` show which); the same command goes on when it is back",
            path.display()
        );
        return Failure::new(what, e.0 as u8);
    }
    let layout = match e {
        Errno::EPERM | Errno::EINVAL => dirstripe::read(path, false).ok(),
        _ => None,
    };
    match layout.and_then(|l| under_way(path, &l)) {
        Some(what) => Failure::new(format!("lfs migrate: {what}"), Errno::EPERM.0 as u8),
        None => failed(path, e),
    }
}

/// What moves the names of a directory with that layout, if they move, and what can be done.
fn under_way(path: &Path, l: &LmvUserMd) -> Option<String> {
    let kept = dirstripe::changes_at(l)?;
    let path = path.display();
    if l.head.hash_type & (hash_flag::SPLIT | hash_flag::MERGE) != 0 {
        return Some(format!(
            "'{path}' is being split or merged; it can be moved when `lfs getdirstripe -H` shows no 'migrating'"
        ));
    }
    let mdts: Vec<u32> = l.objects.iter().take(kept).map(|o| o.mds).collect();
    let list: Vec<String> = mdts.iter().map(u32::to_string).collect();
    let twice = (1..mdts.len()).any(|i| mdts[..i].contains(&mdts[i]));
    let over = match twice {
        true => format!(" -C {kept}"),
        false => String::new(),
    };
    let list = list.join(",");
    Some(format!(
        "'{path}' is on its way to MDT {list} since an earlier migration; end that first: `lfs migrate{over} -m {list} {path}`"
    ))
}

impl Task {
    /// ENODEV when there is no such MDT. More shards than MDTs are as many as these (`lod_ah_init`).
    fn check(&self, path: &Path) -> Result<(), Failure> {
        let there = super::df::targets(&super::mount_of(path)?)?.mdts;
        let listed = self.lum.objects.iter().map(|o| o.mds);
        let asked = listed.chain([self.lum.head.stripe_offset]);
        match missing_mdt(&there, asked) {
            Some(missing) => {
                let what = format!("lfs migrate: there is no {missing}");
                Err(Failure::new(what, Errno::ENODEV.0 as u8))
            }
            None => Ok(()),
        }
    }

    /// Moves one name; a directory's names after that.
    fn tree(&self, path: &Path, depth: u32) -> Result<(), Failure> {
        let of_path = |e| failed(path, e);
        let bottom = self.shallow && depth > 0;
        match self.step(path, bottom) {
            Ok(()) if self.verbose => println!(
                "migrate {} to MDT{} stripe count {}",
                path.display(),
                self.lum.head.stripe_offset as i32,
                self.lum.head.stripe_count as i32
            ),
            Ok(()) => {}
            Err(Errno::EALREADY) if self.verbose => println!(
                "{} migrated to MDT{} already",
                path.display(),
                self.lum.head.stripe_offset as i32
            ),
            Err(Errno::EALREADY) => {}
            Err(e) => return Err(refused(path, e)),
        }
        let kind = std::fs::symlink_metadata(path).map_err(|e| of_path(e.into()))?;
        if !kind.is_dir()
            && !self.shallow
            && let Some(to) = &self.mdts
        {
            let stays = mdt_index(path)
                .ok()
                .filter(|at| !to.contains(&(*at).into()));
            if let (Some(at), true) = (stays, self.verbose) {
                println!("{} stays on MDT{at}", path.display());
            }
            self.stayed
                .set(self.stayed.get() + u64::from(stays.is_some()));
        }
        if bottom || !kind.is_dir() {
            return Ok(());
        }
        // opened anew: what was open is the directory as it was
        let names = std::fs::read_dir(path).map_err(|e| of_path(e.into()))?;
        let names: Result<Vec<_>, _> = names.map(|e| e.map(|e| e.file_name())).collect();
        for name in names.map_err(|e| of_path(e.into()))? {
            self.entry(&path.join(name), depth + 1)?;
        }
        let lum = self.lum.encode();
        match set_xattr(path, "lustre.lmv", &lum, XattrFlags::empty()) {
            Ok(()) | Err(Errno::EALREADY) => Ok(()),
            Err(e) => Err(refused(path, e)),
        }
    }

    /// The same of a name in a directory, which others may take away.
    fn entry(&self, path: &Path, depth: u32) -> Result<(), Failure> {
        let (mut tries, stayed) = (0, self.stayed.get());
        loop {
            self.stayed.set(stayed);
            let done = self.tree(path, depth);
            let gone = [Errno::ENOENT.0 as u8, Errno::ESTALE.0 as u8];
            let lost = |f: &Failure| gone.contains(&f.code);
            match done {
                Err(f) if lost(&f) && std::fs::symlink_metadata(path).is_err() => return Ok(()),
                // it is there, and was another when it was looked at
                Err(f) if lost(&f) && tries < TRIES => tries += 1,
                done => return done,
            }
        }
    }

    fn step(&self, path: &Path, name_only: bool) -> Result<(), Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EINVAL);
        };
        let rq = MigrateRequest {
            name_only,
            name: bytes::Bytes::copy_from_slice(OsStr::as_bytes(name)),
            lum: self.lum.clone(),
        };
        let (dir, value) = (parent.join("."), rq.encode());
        for _ in 0..TRIES {
            match set_xattr(&dir, "lustre.migrate", &value, XattrFlags::empty()) {
                Err(Errno::EAGAIN) => continue,
                done => return done,
            }
        }
        Err(Errno::EAGAIN)
    }
}
