//! What a target directory holds is its owner's alone: tables and objects hold names, attributes and data of everybody.
//!
//! The directories say so themselves, whatever the umask of the process: nobody else can enter them. Files that the tables make
//! later have the modes that the umask leaves; a program that serves targets sets it to 077.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::{stock, tables};

/// Mode of a directory.
const DIR: u32 = 0o700;
/// Mode of a file.
pub(crate) const FILE: u32 = 0o600;
/// What nobody but the owner has.
const OTHERS: u32 = 0o077;
/// Directories of a target whose content [`tighten`] looks at. Not `objects`, which is large, nor `lost+found`, which is not ours.
const WITHIN: [&str; 2] = [tables::TABLES_DIR, stock::SPARE_DIR];

/// Makes one directory, which must not be there.
pub(super) fn make_new_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR).create(dir)
}

/// Makes a directory, and those above it, if it is not there.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR).create(dir)
}

/// A new file, or an old one that is emptied.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE)
        .open(path)
}

/// A copy whose mode is not that of `from`.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut create(to)?).map(drop)
}

/// Takes from others what they may do in the target directory `dir`: in itself, what it holds, its tables and spare files. The
/// objects are made so, below a directory that nobody else can enter. One line in the log when there was something to take.
pub(super) fn tighten(dir: &Path) {
    let mut changed = 0;
    let done = take_from_others(dir, &mut changed).and_then(|()| each(dir, &mut changed, true));
    if changed > 0 {
        tracing::info!(dir = %dir.display(), changed, "target was open to other users of this machine: modes are 0700 and 0600 now");
    }
    if let Err(error) = done {
        tracing::warn!(dir = %dir.display(), %error, "cannot take from other users what they may do here: check the modes and the owner");
    }
}

/// The entries of a directory and what is below them; in a target (`top`) what is below [`WITHIN`] only.
fn each(dir: &Path, changed: &mut u64, top: bool) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if !kind.is_symlink() {
            take_from_others(&entry.path(), changed)?;
        }
        let within = !top || WITHIN.iter().any(|w| entry.file_name() == *w);
        if kind.is_dir() && within {
            each(&entry.path(), changed, false)?;
        }
    }
    Ok(())
}

fn take_from_others(path: &Path, changed: &mut u64) -> io::Result<()> {
    let mode = match std::fs::symlink_metadata(path) {
        Ok(m) => m.mode() & 0o7777,
        // A table that was merged away a moment ago.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if mode & OTHERS != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS))?;
        *changed += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kv, Label, OsdFs, TargetKind};
    use std::path::PathBuf;

    /// Everything below `dir` that others may use.
    fn open(dir: &Path) -> Vec<PathBuf> {
        let mode = std::fs::symlink_metadata(dir).unwrap().mode();
        let mut out: Vec<PathBuf> = if mode & OTHERS == 0 {
            Vec::new()
        } else {
            vec![dir.to_owned()]
        };
        if dir.is_dir() {
            out.extend(
                std::fs::read_dir(dir)
                    .unwrap()
                    .flat_map(|e| open(&e.unwrap().path())),
            );
        }
        out
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn nobody_else_can_enter_a_target_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("t");
        let label = Label {
            kind: TargetKind::Mdt,
            fsname: "a".into(),
            index: 0,
            uuid: "u".into(),
            mgs_nids: Vec::new(),
        };
        OsdFs::format(&target, &label).unwrap();
        for sub in ["", "kv", "objects", stock::SPARE_DIR] {
            assert_eq!(mode(&target.join(sub)), DIR, "{sub}");
        }
        for file in ["CORAL", "FRESH", "LOCK", "SYNCED", stock::RESERVE_FILE] {
            assert_eq!(mode(&target.join(file)), FILE, "{file}");
        }
        let spare = std::fs::read_dir(target.join(stock::SPARE_DIR))
            .unwrap()
            .map(|e| mode(&e.unwrap().path()));
        assert!(spare.collect::<Vec<_>>().iter().all(|m| *m == FILE));
        // As an older version left it.
        fn loosen(dir: &Path) {
            for e in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                if e.file_type().unwrap().is_dir() {
                    loosen(&e.path());
                } else {
                    std::fs::set_permissions(e.path(), Permissions::from_mode(0o644)).unwrap();
                }
            }
            std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        }
        loosen(&target);
        let (osd, _) = OsdFs::open(&target).unwrap();
        assert_eq!(mode(&target), DIR);
        let left: Vec<PathBuf> = open(&target)
            .into_iter()
            .filter(|p| !p.starts_with(target.join("kv")))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        osd.sync().wait().unwrap();
        drop(osd);
        // What the tables have made since has the modes of the umask; the next start takes them away.
        tighten(&target);
        assert_eq!(open(&target), Vec::<PathBuf>::new());
    }
}
