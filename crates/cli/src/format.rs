//! `coral format`: makes target directories for `coral serve`.

use crate::args::{Format, check_fsname, check_stripes};
use coral_osd::{Label, OsdFs, TargetKind};
use coral_wire::nid::Nid;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;

/// What an MDT gives new files when neither they nor their directory say anything: kept beside the label.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Defaults {
    /// Stripes; -1 is all OSTs.
    pub stripe_count: i32,
    /// Bytes.
    pub stripe_size: u64,
}

/// File in an MDT's directory that holds [`Defaults`].
const DEFAULTS_FILE: &str = "defaults.json";

/// File in a target's directory that holds the NIDs of its failover nodes.
const FAILOVER_FILE: &str = "failover.json";

fn write_failover(dir: &Path, nids: &[Nid]) -> Result<(), String> {
    if nids.is_empty() {
        return Ok(());
    }
    let path = dir.join(FAILOVER_FILE);
    let texts: Vec<String> = nids.iter().map(Nid::to_string).collect();
    let text = serde_json::to_string(&texts).map_err(|e| e.to_string())?;
    std::fs::write(&path, text + "\n").map_err(|e| format!("write '{}': {e}", path.display()))
}

/// The failover nodes of the target in `dir`.
pub(crate) fn read_failover(dir: &Path) -> Result<Vec<Nid>, String> {
    let path = dir.join(FAILOVER_FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(t) => t,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(format!("read '{}': {e}", path.display())),
    };
    let texts: Vec<String> =
        serde_json::from_str(&text).map_err(|e| format!("'{}': {e}", path.display()))?;
    texts
        .iter()
        .map(|t| {
            t.parse()
                .map_err(|_| format!("'{}': '{t}' is no NID", path.display()))
        })
        .collect()
}

/// A new label. The uuid tells this formatting from any other of the same target.
pub(crate) fn label(kind: TargetKind, fsname: &str, index: u32, mgs: &[Nid]) -> Label {
    Label {
        kind,
        fsname: fsname.to_owned(),
        index,
        uuid: fresh_uuid(),
        mgs_nids: mgs.iter().map(Nid::to_string).collect(),
    }
}

/// 128 random bits from the kernel, as a uuid: identities must differ between runs, so no seed here.
pub(crate) fn fresh_uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map(|s| s.trim().to_owned())
        .unwrap_or_else(|_| format!("pid-{}", std::process::id()))
}

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
    if kind == TargetKind::Mdt && index != 0 {
        return Err(format!("--mdt {index}: only MDT 0 is supported so far"));
    }
    check_stripes(f.stripe_count, f.stripe_size)?;
    prepare(&f.dir)?;
    if f.mgs && kind == TargetKind::Mdt {
        let (mgs, mdt) = (f.dir.join("mgs"), f.dir.join(format!("mdt{index:04x}")));
        OsdFs::format(&mgs, &label(TargetKind::Mgs, &fsname, 0, &[])).map_err(|e| e.to_string())?;
        OsdFs::format(&mdt, &label(kind, &fsname, index, &f.mgsnode)).map_err(|e| e.to_string())?;
        write_defaults(
            &mdt,
            Defaults {
                stripe_count: f.stripe_count,
                stripe_size: f.stripe_size,
            },
        )?;
        write_failover(&mdt, &f.failnode)?;
    } else {
        OsdFs::format(&f.dir, &label(kind, &fsname, index, &f.mgsnode))
            .map_err(|e| e.to_string())?;
        if kind == TargetKind::Mdt {
            write_defaults(
                &f.dir,
                Defaults {
                    stripe_count: f.stripe_count,
                    stripe_size: f.stripe_size,
                },
            )?;
        }
        write_failover(&f.dir, &f.failnode)?;
    }
    println!("formatted '{}'; serve it: coral serve {0}", f.dir.display());
    Ok(())
}

fn prepare(dir: &Path) -> Result<(), String> {
    std::fs::create_dir_all(dir).map_err(|e| format!("cannot make '{}': {e}", dir.display()))?;
    let mut entries = std::fs::read_dir(dir)
        .map_err(|e| format!("'{}': {e}", dir.display()))?
        .flatten();
    match entries.next() {
        None => Ok(()),
        Some(e) => Err(format!(
            "'{}' is not empty (it holds '{}'): give an empty or a new directory",
            dir.display(),
            e.file_name().to_string_lossy()
        )),
    }
}

fn write_defaults(dir: &Path, d: Defaults) -> Result<(), String> {
    let text = serde_json::to_string(&d).map_err(|e| e.to_string())?;
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(dir.join(DEFAULTS_FILE))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|e| format!("'{}': {e}", dir.display()))
}

/// The defaults kept with the MDT in `dir`, if any.
pub(crate) fn read_defaults(dir: &Path) -> Result<Option<Defaults>, String> {
    let file = dir.join(DEFAULTS_FILE);
    match std::fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| {
            format!(
                "'{}' is damaged ({e}); restore it, or remove it to go back to 1 stripe of 1 MiB",
                file.display()
            )
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("'{}': {e}", file.display())),
    }
}
