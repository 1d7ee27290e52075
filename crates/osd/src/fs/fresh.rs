//! The mark of a target that no MGS has accepted yet: the file `FRESH`.
//!
//! `format` writes it before the label and it goes when the first registration is accepted, so it is there after a crash in
//! between. Lustre keeps the same as `LDD_F_VIRGIN` in `mountdata`. A target without the file counts as registered.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::private;
use serde::{Deserialize, Serialize};

/// Name of the file in a target directory.
pub(super) const FILE: &str = "FRESH";

/// Who formatted a target that no MGS has accepted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fresh {
    /// Effective user id of `format`.
    pub uid: u32,
    /// Effective group id of `format`.
    pub gid: u32,
}

impl Fresh {
    /// Of this process.
    pub fn own() -> Fresh {
        Fresh {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Marks `dir`. The caller syncs the directory.
    pub(super) fn store(self, dir: &Path) -> io::Result<()> {
        let mut f = private::create(&dir.join(FILE))?;
        f.write_all(serde_json::to_string(&self)?.as_bytes())?;
        f.sync_all()
    }

    /// The mark of `dir`, if it is there.
    pub(super) fn load(dir: &Path) -> io::Result<Option<Fresh>> {
        match fs::read(dir.join(FILE)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Takes the mark away, also after power loss.
    pub(super) fn remove(dir: &Path) -> io::Result<()> {
        match fs::remove_file(dir.join(FILE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => fs::File::open(dir)?.sync_all(),
        }
    }
}
