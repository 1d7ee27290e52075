//! One process at a time: the file `LOCK` in a target directory, locked and holding our pid.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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
        let io = |source| OpenError::Io {
            what: format!("lock {}", path.display()),
            source,
        };
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(private::FILE);
        let mut file = options.open(&path).map_err(io)?;
        lock(&mut file, dir, &path)?;
        // In place, and as far as it goes: a full disk does not keep a target from its start.
        if let Err(error) = file.write_all_at(format!("{:<10}\n", std::process::id()).as_bytes(), 0)
        {
            tracing::warn!(path = %path.display(), %error, "the lock does not name this process");
        }
        Ok(DirLock(file))
    }
}

/// Locks `dir` for somebody who changes nothing, not even who has it. `None`: there is no lock, so nobody has it.
pub(super) fn look(dir: &Path) -> Result<Option<File>, OpenError> {
    let path = dir.join("LOCK");
    match File::open(&path) {
        Ok(mut file) => lock(&mut file, dir, &path).map(|()| Some(file)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Io {
            what: format!("lock {}", path.display()),
            source,
        }),
    }
}

fn lock(file: &mut File, dir: &Path, path: &Path) -> Result<(), OpenError> {
    match flock(&*file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            let pid = text
                .lines()
                .next()
                .and_then(|l| l.trim().parse().ok())
                .unwrap_or(0);
            Err(OpenError::InUse {
                dir: dir.to_owned(),
                pid,
            })
        }
        Err(e) => Err(OpenError::Io {
            what: format!("lock {}", path.display()),
            source: e.into(),
        }),
    }
}
