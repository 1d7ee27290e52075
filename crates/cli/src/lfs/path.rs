//! `lfs path2fid`, `fid2path`, `rmfid`, `getname`: names and FIDs.

use super::{Failure, MountPoint, mount_named, mount_of, mounts, set_xattr, xattr};
use coral_wire::fid::Fid;
use lexopt::prelude::*;
use rustix::fs::XattrFlags;
use std::path::{Path, PathBuf};

/// The FID of `path`, as the mount says.
pub(crate) fn fid_of(path: &Path) -> Result<Fid, coral_wire::Errno> {
    let raw = xattr(path, "lustre.fid")?;
    String::from_utf8_lossy(&raw)
        .trim_end_matches('\0')
        .parse()
        .map_err(|_| coral_wire::Errno::EINVAL)
}

pub(crate) fn path2fid(mut p: lexopt::Parser) -> Result<(), Failure> {
    let mut paths = Vec::new();
    while let Some(arg) = p.next()? {
        match arg {
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    if paths.is_empty() {
        return Err(Failure::new(
            "lfs path2fid: give at least one path",
            super::USAGE,
        ));
    }
    let mut last_error = None;
    for path in &paths {
        match fid_of(path) {
            Ok(fid) if paths.len() == 1 => println!("{fid}"),
            Ok(fid) => println!("{}: {fid}", path.display()),
            Err(e) => {
                eprintln!("lfs path2fid: can't get fid for {}: {e}", path.display());
                last_error = Some(e);
            }
        }
    }
    last_error.map_or(Ok(()), |e| Err(Failure::new("", e.0 as u8)))
}

pub(crate) fn fid2path(mut p: lexopt::Parser) -> Result<(), Failure> {
    let mut values = Vec::new();
    while let Some(arg) = p.next()? {
        match arg {
            Value(v) => values.push(v.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let Some((place, fids)) = values.split_first().filter(|(_, fids)| !fids.is_empty()) else {
        return Err(Failure::new(
            "lfs fid2path: give a mount point (or fsname) and at least one FID",
            super::USAGE,
        ));
    };
    let mount = mount_at(place)?;
    for text in fids {
        let fid = fid_in("fid2path", text)?;
        let raw = xattr(&mount.path, format!("lustre.path:{fid}"))
            .map_err(|e| Failure::errno(format_args!("lfs fid2path: cannot find '{fid}'"), e))?;
        let relative = String::from_utf8_lossy(&raw).into_owned();
        println!(
            "{}/{}",
            mount.path.display(),
            if relative.is_empty() { "/" } else { &relative }
        );
    }
    Ok(())
}

/// The mount of a path, or of the file system of that name.
fn mount_at(place: &str) -> Result<MountPoint, Failure> {
    let named = if place.contains('/') {
        None
    } else {
        mount_named(place)?
    };
    named.map_or_else(|| mount_of(Path::new(place)), Ok)
}

fn fid_in(command: &str, text: &str) -> Result<Fid, Failure> {
    let bad = |_| {
        let what = format!(
            "lfs {command}: bad FID format '{text}', should be [seq:oid:ver] (e.g. [0x200000400:0x2:0x0])"
        );
        Failure::new(what, 22)
    };
    text.parse().map_err(bad)
}

pub(crate) fn rmfid(mut p: lexopt::Parser) -> Result<(), Failure> {
    let mut values = Vec::new();
    while let Some(arg) = p.next()? {
        match arg {
            Value(v) => values.push(v.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let Some((place, fids)) = values.split_first().filter(|(_, fids)| !fids.is_empty()) else {
        return Err(Failure::new(
            "lfs rmfid: give a mount point (or fsname) and at least one FID",
            super::USAGE,
        ));
    };
    let mount = mount_at(place)?;
    let fids: Result<Vec<Fid>, Failure> = fids.iter().map(|t| fid_in("rmfid", t)).collect();
    let mut first_error = None;
    for fid in fids? {
        let text = fid.to_string();
        let done = set_xattr(
            &mount.path,
            "lustre.rmfid",
            text.as_bytes(),
            XattrFlags::empty(),
        );
        if let Err(e) = done {
            eprintln!("lfs rmfid: cannot remove {fid}: {e}");
            first_error = first_error.or(Some(e));
        }
    }
    first_error.map_or(Ok(()), |e| Err(Failure::new("", e.0 as u8)))
}

pub(crate) fn getname(mut p: lexopt::Parser) -> Result<(), Failure> {
    let mut paths = Vec::new();
    while let Some(arg) = p.next()? {
        match arg {
            Value(v) => paths.push(PathBuf::from(v)),
            other => return Err(other.unexpected().into()),
        }
    }
    let list = if paths.is_empty() {
        mounts()?
    } else {
        paths
            .iter()
            .map(|p| mount_of(p))
            .collect::<Result<_, _>>()?
    };
    for m in list {
        println!("{}-{} {}", m.fsname(), m.instance(), m.path.display());
    }
    Ok(())
}
