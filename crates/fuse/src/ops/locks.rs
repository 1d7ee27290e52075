//! File locks: fcntl and flock.

use std::sync::Arc;

use coral_client::llite::types::{FileLock, LockKind};

use super::{Fut, In, boxed};
use crate::abi::{self, InHeader, op};
use crate::error::OpError;
use crate::fs::FileSystem;
use crate::reply::Body;
use crate::session::Shared;

fn lock_kind(typ: u32) -> Result<LockKind, OpError> {
    match typ as i32 {
        libc::F_RDLCK => Ok(LockKind::Read),
        libc::F_WRLCK => Ok(LockKind::Write),
        libc::F_UNLCK => Ok(LockKind::Unlock),
        _ => Err(OpError::BadValue),
    }
}

fn file_lock(l: &abi::FileLock) -> Result<FileLock, OpError> {
    Ok(FileLock {
        start: l.start,
        end: l.end,
        kind: lock_kind(l.typ)?,
        pid: l.pid,
    })
}

/// F_SETLKW or flock(2) that takes a lock. An unlock comes as the same request, but waits for nobody and is not interrupted.
pub(crate) fn waits_for_lock(h: &InHeader, body: &[u8]) -> bool {
    h.opcode == op::SETLKW
        && In(body)
            .get::<abi::LkIn>()
            .is_ok_and(|l| l.lk.typ as i32 != libc::F_UNLCK)
}

pub(super) fn getlk<F: FileSystem>(s: &Arc<Shared<F>>, mut i: In<'_>) -> Fut {
    let l: abi::LkIn = i.get()?;
    let (s, file, lock) = (s.clone(), s.file(l.fh)?, file_lock(&l.lk)?);
    Ok(boxed(async move {
        let l = s.fs.getlk(&file.file, l.owner, lock).await?;
        let typ = match l.kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        // The kernel refuses ranges beyond the largest file offset.
        let end = l.end.min(i64::MAX as u64);
        Ok(Body::of(&abi::LkOut {
            lk: abi::FileLock {
                start: l.start,
                end,
                typ: typ as u32,
                pid: l.pid,
            },
        }))
    }))
}

pub(super) fn setlk<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let l: abi::LkIn = i.get()?;
    let (s, file, lock, wait) = (
        s.clone(),
        s.file(l.fh)?,
        file_lock(&l.lk)?,
        h.opcode == op::SETLKW,
    );
    let flock = l.lk_flags & abi::LK_FLOCK != 0;
    Ok(boxed(async move {
        if flock {
            s.fs.flock(&file.file, lock.kind, wait).await?;
        } else {
            s.fs.setlk(&file.file, l.owner, lock, wait).await?;
        }
        Ok(Body::Empty)
    }))
}
