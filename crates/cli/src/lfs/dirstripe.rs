//! `lfs mkdir`, `setdirstripe`, `getdirstripe`: directories and their MDTs.

use super::{Failure, xattr};
use coral_wire::Errno;
use coral_wire::layout::{LmvMd, hash_type};
use lexopt::prelude::*;
use std::path::{Path, PathBuf};

pub(crate) fn mkdir(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut count, mut index, mut mode, mut paths) = (1u32, None::<i64>, 0o777u32, Vec::new());
    while let Some(arg) = p.next()? {
        match arg {
            Short('c') | Long("mdt-count") => count = p.value()?.parse()?,
            Short('i') | Long("mdt-index") => index = Some(p.value()?.parse()?),
            Short('m') | Long("mode") => mode = p.value()?.parse_with(|s| u32::from_str_radix(s, 8))?,
            Short('H') | Long("mdt-hash") => drop(p.value()?),
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if paths.is_empty() {
        return Err(Failure::new("lfs mkdir: give at least one directory", super::USAGE));
    }
    for path in &paths {
        make(path, count, index, mode)?;
    }
    Ok(())
}

/// With one MDT in the file system every directory is on it; asking for more is an error, not silence.
fn make(path: &Path, count: u32, index: Option<i64>, mode: u32) -> Result<(), Failure> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mdts = super::df::targets(&super::mount_of(parent)?)?.mdts.len();
    if count as usize > mdts || count == 0 {
        return Err(Failure::new(format!("lfs mkdir: cannot create '{}' over {count} MDTs: the file system has {mdts}", path.display()), Errno::EINVAL.0 as u8));
    }
    if index.is_some_and(|i| i >= mdts as i64 || i < -1) {
        return Err(Failure::new(format!("lfs mkdir: cannot create '{}' on MDT {}: the file system has {mdts}", path.display(), index.unwrap_or(0)), Errno::EINVAL.0 as u8));
    }
    // the client makes a directory on the MDT of its parent and nowhere else
    if mdts > 1 && (count > 1 || index.is_some_and(|i| i >= 0)) {
        return Err(Failure::new(format!("lfs mkdir: cannot create '{}': directories on a chosen MDT, or on several, are not supported yet", path.display()), Errno::EOPNOTSUPP.0 as u8));
    }
    let made = rustix::fs::mkdir(path, rustix::fs::Mode::from_raw_mode(mode));
    made.map_err(|e| Failure::errno(format_args!("lfs mkdir: dirstripe error on '{}'", path.display()), Errno(e.raw_os_error())))
}

pub(crate) fn getdirstripe(mut p: lexopt::Parser) -> Result<(), Failure> {
    let (mut count, mut index, mut yaml, mut paths) = (false, false, false, Vec::new());
    while let Some(arg) = p.next()? {
        match arg {
            Short('c') | Long("mdt-count") => count = true,
            Short('i' | 'm') | Long("mdt-index") => index = true,
            Short('y') | Long("yaml") => yaml = true,
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if paths.is_empty() {
        return Err(Failure::new("lfs getdirstripe: give at least one directory", super::USAGE));
    }
    for path in &paths {
        let lmv = read(path).map_err(|e| Failure::errno(format_args!("lfs: getdirstripe for '{}' failed", path.display()), e))?;
        match (count, index) {
            (true, _) => println!("{}", lmv.head.stripe_count),
            (_, true) => println!("{}", lmv.head.master_mdt_index),
            _ => print!("{}", text(&lmv, yaml)),
        }
    }
    Ok(())
}

/// The MDT layout; a plain directory has none and is on the MDT of its FID, which is the only one so far.
fn read(path: &Path) -> Result<LmvMd, Errno> {
    if !std::fs::metadata(path)?.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    match xattr(path, "lustre.lmv") {
        Ok(raw) => LmvMd::decode(&raw.into()).map_err(|_| Errno::EINVAL),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(LmvMd::default()),
        Err(e) => Err(e),
    }
}

fn text(l: &LmvMd, yaml: bool) -> String {
    let hash = match l.head.hash_type & hash_type::MASK {
        hash_type::ALL_CHARS => "all_char",
        hash_type::FNV_1A_64 => "fnv_1a_64",
        hash_type::CRUSH => "crush",
        hash_type::CRUSH2 => "crush2",
        _ => "none",
    };
    let (count, first) = (l.head.stripe_count, l.head.master_mdt_index);
    if yaml {
        return format!("lmv_stripe_count:  {count}\nlmv_stripe_offset: {first}\nhash_type_type:     {hash}\n");
    }
    let mut out = format!("lmv_stripe_count: {count} lmv_stripe_offset: {first} hash_type_type: {hash}\n");
    if !l.stripe_fids.is_empty() {
        out += "mdtidx\t\t FID[seq:oid:ver]\n";
        for fid in &l.stripe_fids {
            out += &format!("     {first}\t\t {fid}\t\t\n");
        }
    }
    out
}
