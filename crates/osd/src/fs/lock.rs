//! One process at a time: the file `LOCK` in a target directory, locked and holding our pid.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::private;
use crate::OpenError;

/// Held for as long as the target is open; the kernel drops it with the process.
pub(super) struct DirLock(#[allow(dead_code, reason = "held, not used")] File);

impl DirLock {
    /// Locks `dir` or says who has it.
    pub(super) fn acquire(dir: &Path) -> Result<DirLock, OpenError> {
        let path = dir.join("LOCK");
        let io = |source| OpenError::Io { what: format!("lock {}", path.display()), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(private::FILE);
        let mut file = options.open(&path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                let pid = text.trim().parse().unwrap_or(0);
                return Err(OpenError::InUse { dir: dir.to_owned(), pid });
            }
            Err(e) => return Err(io(e.into())),
        }
        file.set_len(0).map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(DirLock(file))
    }
}
