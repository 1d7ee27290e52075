//! `coral format`: makes target directories for `coral serve`.

use crate::args::{Format, check_fsname, check_stripes};
use coral_node::target_dir::{Defaults, label, write_defaults, write_failover};
use coral_osd::{OsdFs, TargetKind};
use coral_server::mdt::fld::INDEX_MAX;
use std::path::Path;

/// Entry of `coral format`.
pub(crate) fn run(f: Format) -> Result<(), String> {
    let (kind, index) = match (f.mgs, f.mdt, f.ost) {
        (_, None, Some(index)) => (TargetKind::Ost, index),
        (_, Some(index), None) => (TargetKind::Mdt, index),
        (true, None, None) => (TargetKind::Mgs, 0),
        _ => return Err("say what to format: --mgs, --mdt INDEX or --ost INDEX".into()),
    };
    if index > 0xffff {
        return Err(format!("index {index}: give 0 to 65535"));
    }
    let fsname = match f.fsname {
        None if kind != TargetKind::Mgs => return Err("say which file system it belongs to: --fsname NAME, 1 to 8 letters, digits, '-' or '_'".into()),
        None => String::new(),
        Some(name) => check_fsname(&name).map(|()| name).map_err(|e| format!("--fsname: {e}"))?,
    };
    if kind == TargetKind::Ost && f.mgsnode.is_empty()
        || kind == TargetKind::Mdt && !f.mgs && f.mgsnode.is_empty()
    {
        return Err("say where the MGS is: --mgsnode NID".into());
    }
    if kind == TargetKind::Mdt && index > INDEX_MAX {
        return Err(format!("--mdt {index}: give 0 to {INDEX_MAX}"));
    }
    check_stripes(f.stripe_count, f.stripe_size)?;
    let defaults = Defaults {
        stripe_count: f.stripe_count,
        stripe_size: f.stripe_size,
    };
    prepare(&f.dir)?;
    if f.mgs && kind == TargetKind::Mdt {
        let (mgs, mdt) = (f.dir.join("mgs"), f.dir.join(format!("mdt{index:04x}")));
        OsdFs::format(&mgs, &label(TargetKind::Mgs, &fsname, 0, &[])).map_err(|e| e.to_string())?;
        OsdFs::format(&mdt, &label(kind, &fsname, index, &f.mgsnode)).map_err(|e| e.to_string())?;
        write_defaults(&mdt, defaults).map_err(|e| e.to_string())?;
        write_failover(&mdt, &f.failnode).map_err(|e| e.to_string())?;
    } else {
        OsdFs::format(&f.dir, &label(kind, &fsname, index, &f.mgsnode))
            .map_err(|e| e.to_string())?;
        if kind == TargetKind::Mdt {
            write_defaults(&f.dir, defaults).map_err(|e| e.to_string())?;
        }
        write_failover(&f.dir, &f.failnode).map_err(|e| e.to_string())?;
    }
    println!("formatted '{}'; serve it: coral serve {0}", f.dir.display());
    Ok(())
}

fn prepare(dir: &Path) -> Result<(), String> {
    for target in [dir, &dir.join("mgs")] {
        if let Ok(there) = OsdFs::label(target) {
            return Err(format!(
                "'{}' holds {} already and is left as it is: serve it with `coral serve {0}`, or give a new directory",
                dir.display(),
                there.target_name()
            ));
        }
    }
    std::fs::create_dir_all(dir).map_err(|e| format!("cannot make '{}': {e}", dir.display()))?;
    let mut entries = std::fs::read_dir(dir)
        .map_err(|e| format!("'{}': {e}", dir.display()))?
        .flatten()
        .filter(|e| e.file_name() != "lost+found"); // of a new ext4 file system
    match entries.next() {
        None => Ok(()),
        Some(e) => Err(format!(
            "'{}' is not empty (it holds '{}'): give an empty or a new directory",
            dir.display(),
            e.file_name().to_string_lossy()
        )),
    }
}
