//! File locks: fcntl byte ranges and flock, both as LDLM flock locks on the MDT.
//!
//! Both kinds share one resource there, as in Lustre, so an flock and an fcntl lock of different owners exclude each other.
//! Lustre: `ll_file_flock` in `lustre/llite/file.c`, `lustre/ldlm/ldlm_flock.c`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coral_ldlm::FlockOp;
use coral_wire::Errno;
use coral_wire::ldlm::{LdlmMode, Policy};

use super::handle::FileHandle;
use super::lock_owners::LockOwners;
use super::servers::Servers;
use super::types::{FileLock, LockKind};
use crate::error::{Error, Refusal, TargetError};

/// End of a lock to the end of the file (`OFFSET_MAX`).
const OFFSET_MAX: u64 = i64::MAX as u64;

/// A lock that is refused because of another of this mount is asked for again when that is gone within this time: the kernel tells
/// of a close without waiting for it (FUSE_RELEASE), so a program may ask for what it has closed before the close is known here.
const CLOSE_LOOKS: u32 = 20;
/// Pause between two looks.
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

fn mode(kind: LockKind) -> LdlmMode {
    match kind {
        LockKind::Read => LdlmMode::PR,
        LockKind::Write => LdlmMode::PW,
        LockKind::Unlock => LdlmMode::NL,
    }
}

/// A lock of the whole file, as flock(2) takes it.
fn whole(kind: LockKind) -> FileLock {
    FileLock {
        start: 0,
        end: OFFSET_MAX,
        kind,
        pid: 0,
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

/// Takes and frees file locks.
pub(super) struct FileLocks {
    servers: Arc<Servers>,
    /// Who holds them.
    lock_owners: LockOwners,
}

impl FileLocks {
    /// None is held.
    pub fn new(servers: Arc<Servers>) -> Self {
        Self {
            servers,
            lock_owners: LockOwners::default(),
        }
    }

    /// A number that no owner and no handle has.
    pub fn fresh_number(&self) -> u64 {
        self.lock_owners.fresh()
    }

    async fn flock_rpc(
        &self,
        fh: &FileHandle,
        m: LdlmMode,
        p: Policy,
        op: FlockOp,
    ) -> Result<Option<(LdlmMode, Policy)>, Error> {
        if !self.servers.opts.flock {
            return Err(Refusal::LocksOff.into());
        }
        let res = fh.fid().flock_res_id();
        fh.at_mdt
            .mdc
            .namespace()
            .flock(res, m, p, op)
            .await
            .map_err(|e| TargetError::of_lock(e, fh.at_mdt.mdc.import(), fh.fid()).into())
    }

    /// Takes a lock; with `wait` when it is free, else EAGAIN when it is not.
    async fn lock(&self, fh: &FileHandle, m: LdlmMode, p: Policy, wait: bool) -> Result<(), Error> {
        let res = fh.fid().flock_res_id();
        let ns = fh.at_mdt.mdc.namespace();
        let ours = || ns.flock_in_the_way(res, m, &p);
        let mut looks = 0;
        loop {
            if !wait {
                fh.inode.unlocked().await;
            }
            // asked before the server is: what is given back meanwhile may have been in the way
            let of_ours = ours();
            let taken = self.flock_rpc(fh, m, p, FlockOp::Lock { wait }).await;
            if wait
                || !of_ours
                || !matches!(&taken, Err(e) if e.is(Errno::EAGAIN))
                || looks == CLOSE_LOOKS
            {
                return taken.map(drop);
            }
            looks += 1;
            while ours() {
                if looks == CLOSE_LOOKS {
                    return Err(Refusal::LockTaken.into());
                }
                looks += 1;
                tokio::time::sleep(CLOSE_PAUSE).await;
            }
        }
    }

    /// fcntl F_GETLK: the lock in the way, or `kind` Unlock.
    pub async fn getlk(
        &self,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
    ) -> Result<FileLock, Error> {
        let number = self.lock_owners.number(owner);
        let number = number.unwrap_or_else(|| self.lock_owners.fresh());
        let found = self
            .flock_rpc(fh, mode(lock.kind), policy(number, &lock), FlockOp::Test)
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
        &self,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<(), Error> {
        if lock.start > lock.end {
            return Err(Refusal::BadRange.into());
        }
        if !self.servers.opts.flock {
            return Err(Refusal::LocksOff.into());
        }
        if lock.kind == LockKind::Unlock {
            let Some(number) = self.lock_owners.holder(owner, fh.fid()) else {
                return Ok(());
            };
            return self.unlock(fh, number, &lock).await;
        }
        // before it is granted: a close racing with the grant must release it
        let asking = self.lock_owners.ask(owner, (fh.fid(), fh.number));
        fh.lock_owners.lock().insert(owner);
        let policy = policy(asking.number, &lock);
        self.lock(fh, mode(lock.kind), policy, wait).await?;
        asking.granted();
        Ok(())
    }

    /// flock(2); EWOULDBLOCK when taken and not `wait`.
    pub async fn flock(&self, fh: &FileHandle, kind: LockKind, wait: bool) -> Result<(), Error> {
        let whole = whole(kind);
        if kind == LockKind::Unlock {
            return self.unlock(fh, fh.number, &whole).await;
        }
        fh.flocked.store(true, Ordering::Relaxed);
        self.lock(fh, mode(kind), policy(fh.number, &whole), wait)
            .await
    }

    async fn unlock(&self, fh: &FileHandle, number: u64, lock: &FileLock) -> Result<(), Error> {
        self.flock_rpc(fh, LdlmMode::NL, policy(number, lock), FlockOp::Unlock)
            .await
            .map(drop)
    }

    /// Frees what `owner` holds on the file: it closed a descriptor of it.
    pub async fn unlock_closed(&self, fh: &FileHandle, owner: u64) -> Result<(), Error> {
        if self.lock_owners.holder(owner, fh.fid()).is_none() {
            return Ok(());
        }
        let _unlocking = fh.inode.unlocking.read().await;
        match self.lock_owners.flushed(owner, fh.fid()) {
            Some(number) => self.unlock(fh, number, &whole(LockKind::Unlock)).await,
            None => Ok(()),
        }
    }

    /// Frees what the handle holds, which is gone: its flock, and the record locks of the open file itself.
    pub async fn unlock_released(&self, fh: &FileHandle) {
        let owners = std::mem::take(&mut *fh.lock_owners.lock());
        if owners.is_empty() && !fh.flocked.load(Ordering::Relaxed) {
            return;
        }
        let _unlocking = fh.inode.unlocking.read().await;
        let through = (fh.fid(), fh.number);
        let records = owners
            .into_iter()
            .filter_map(|owner| self.lock_owners.released(owner, through));
        let flock = fh.flocked.load(Ordering::Relaxed).then_some(fh.number);
        for number in records.chain(flock) {
            // A server that does not answer now has evicted this client, and its locks with it, when it does.
            self.unlock(fh, number, &whole(LockKind::Unlock)).await.ok();
        }
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
    }
}
