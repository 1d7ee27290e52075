//! File locks: fcntl byte ranges and flock, both as LDLM flock locks on the MDT.
//!
//! Both kinds share one resource there, as in Lustre, so an flock and an fcntl lock of different owners exclude each other.
//! Lustre: `ll_file_flock` in `lustre/llite/file.c`, `lustre/ldlm/ldlm_flock.c`.

use std::sync::Arc;

use coral_ldlm::FlockOp;
use coral_wire::Errno;
use coral_wire::ldlm::{LdlmMode, Policy};

use super::Llite;
use super::file::FileHandle;
use super::types::{FileLock, LockKind};
use crate::error::lock_errno;

/// End of a lock to the end of the file (`OFFSET_MAX`).
const OFFSET_MAX: u64 = i64::MAX as u64;

fn mode(kind: LockKind) -> LdlmMode {
    match kind {
        LockKind::Read => LdlmMode::PR,
        LockKind::Write => LdlmMode::PW,
        LockKind::Unlock => LdlmMode::NL,
    }
}

fn op(kind: LockKind, wait: bool) -> FlockOp {
    match kind {
        LockKind::Unlock => FlockOp::Unlock,
        _ => FlockOp::Lock { wait },
    }
}

fn policy(owner: u64, l: &FileLock) -> Policy {
    Policy::Flock {
        start: l.start,
        end: l.end.min(OFFSET_MAX),
        owner,
        pid: l.pid,
    }
}

impl Llite {
    async fn flock_rpc(
        &self,
        fh: &FileHandle,
        m: LdlmMode,
        p: Policy,
        op: FlockOp,
    ) -> Result<Option<(LdlmMode, Policy)>, Errno> {
        if !self.opts.flock {
            return Err(Errno::ENOSYS);
        }
        let res = fh.fid().flock_res_id();
        fh.at_mdt
            .mdc
            .namespace()
            .flock(res, m, p, op)
            .await
            .map_err(|e| lock_errno(&e))
    }

    /// fcntl F_GETLK: the lock in the way, or `kind` Unlock.
    pub async fn getlk(
        self: &Arc<Self>,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
    ) -> Result<FileLock, Errno> {
        let found = self
            .flock_rpc(fh, mode(lock.kind), policy(owner, &lock), FlockOp::Test)
            .await?;
        Ok(match found {
            Some((
                m,
                Policy::Flock {
                    start, end, pid, ..
                },
            )) if m != LdlmMode::NL => {
                let kind = if m == LdlmMode::PR {
                    LockKind::Read
                } else {
                    LockKind::Write
                };
                FileLock {
                    start,
                    end,
                    kind,
                    pid,
                }
            }
            _ => FileLock {
                kind: LockKind::Unlock,
                ..lock
            },
        })
    }

    /// fcntl F_SETLK, or F_SETLKW with `wait`; drop the future to interrupt. EAGAIN when taken, EDEADLK on a cycle.
    pub async fn setlk(
        self: &Arc<Self>,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<(), Errno> {
        if lock.start > lock.end {
            return Err(Errno::EINVAL);
        }
        if lock.kind != LockKind::Unlock {
            // before it is granted: a close racing with the grant must release it
            fh.inode.posix_owners.lock().insert(owner);
            fh.lock_owners.lock().insert(owner);
        } else if !fh.inode.posix_owners.lock().contains(&owner) {
            return Ok(());
        }
        self.flock_rpc(
            fh,
            mode(lock.kind),
            policy(owner, &lock),
            op(lock.kind, wait),
        )
        .await
        .map(drop)
    }

    /// flock(2); EWOULDBLOCK when taken and not `wait`.
    pub async fn flock(
        self: &Arc<Self>,
        fh: &FileHandle,
        owner: u64,
        kind: LockKind,
        wait: bool,
    ) -> Result<(), Errno> {
        if kind != LockKind::Unlock {
            fh.inode.flock_owners.lock().insert(owner);
        }
        let whole = FileLock {
            start: 0,
            end: OFFSET_MAX,
            kind,
            pid: 0,
        };
        self.flock_rpc(fh, mode(kind), policy(owner, &whole), op(kind, wait))
            .await
            .map(drop)
    }

    /// Frees everything an owner holds on the file.
    pub(super) async fn unlock_all(&self, fh: &FileHandle, owner: u64) -> Result<(), Errno> {
        let whole = FileLock {
            start: 0,
            end: OFFSET_MAX,
            kind: LockKind::Unlock,
            pid: 0,
        };
        self.flock_rpc(fh, LdlmMode::NL, policy(owner, &whole), FlockOp::Unlock)
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_linux_ends() {
        let l = FileLock {
            start: 5,
            end: u64::MAX,
            kind: LockKind::Read,
            pid: 3,
        };
        assert_eq!(
            policy(9, &l),
            Policy::Flock {
                start: 5,
                end: OFFSET_MAX,
                owner: 9,
                pid: 3
            }
        );
        assert_eq!(op(LockKind::Unlock, true), FlockOp::Unlock);
    }
}
