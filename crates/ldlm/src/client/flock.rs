//! POSIX and BSD locks (`mdc_file_flock` in `lustre/mdc/mdc_request.c`, `ldlm_flock_completion_ast` in `ldlm_flock.c`).
//!
//! The server decides; this side repeats its arithmetic so that both know the same locks (they are replayed to a restarted
//! server). An interrupted wait leaves nothing behind: see [`ClientNamespace::flock`].

use coral_wire::Errno;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, LockDesc, Policy, ResId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

use super::{ClientNamespace, FlockOp, LockError};

impl ClientNamespace {
    /// POSIX or BSD lock on `res` (name\[3\] = 12): `policy` is the range and its owner, `mode` PR or PW. `Test` returns the
    /// conflicting lock's mode and policy, if any.
    ///
    /// Dropping the future while it waits withdraws the lock; if it was granted in that very moment, what the owner held
    /// before is restored, and the owner's next request waits for that. An unlock goes on although its future is dropped.
    pub async fn flock(
        self: &Arc<Self>,
        res: ResId,
        mode: LdlmMode,
        policy: Policy,
        op: FlockOp,
    ) -> Result<Option<(LdlmMode, Policy)>, LockError> {
        let flags = match op {
            FlockOp::Lock { wait: true } => LdlmFlags(0),
            FlockOp::Lock { wait: false } => LdlmFlags::BLOCK_NOWAIT,
            FlockOp::Unlock => {
                let me = self.clone();
                let aftermath =
                    Aftermath::begin(&self.aftermaths, res, &policy, |c| &mut c.unlocks);
                let unlock = tokio::spawn(async move {
                    let _aftermath = aftermath;
                    me.aftermaths.ended(res, &policy, |c| c.withdrawals).await;
                    me.set_flock(res, LdlmMode::NL, policy, LdlmFlags(0)).await
                });
                // It neither panics nor is aborted, unless the runtime ends.
                return unlock.await.unwrap_or(Err(LockError::Evicted));
            }
            FlockOp::Test => return self.test_flock(res, mode, policy).await,
        };
        loop {
            let all = |c: &Counts| c.withdrawals + c.unlocks;
            self.aftermaths.ended(res, &policy, all).await;
            match self.set_flock(res, mode, policy, flags).await {
                // An unlock of the same range by its own owner ends a wait at the server (`ldlm_process_flock_lock`). Linux
                // unlocks what is held and lets another thread's wait go on.
                Err(LockError::Refused {
                    errno: Errno::EINTR,
                    ..
                }) if flags.0 == 0 => {}
                done => return done,
            }
        }
    }

    /// Whether another owner of this client holds what keeps the one in `policy` from a flock in `mode`.
    pub fn flock_in_the_way(&self, res: ResId, mode: LdlmMode, policy: &Policy) -> bool {
        self.locks.lock().flock_in_the_way(res, mode, policy)
    }

    async fn set_flock(
        self: &Arc<Self>,
        res: ResId,
        mode: LdlmMode,
        policy: Policy,
        flags: LdlmFlags,
    ) -> Result<Option<(LdlmMode, Policy)>, LockError> {
        let (lock, _) = self
            .enqueue(res, LdlmType::FLOCK, mode, policy, flags, 0)
            .await?;
        self.locks.lock().apply_flock(lock.cookie(), mode);
        Ok(None)
    }

    async fn test_flock(
        self: &Arc<Self>,
        res: ResId,
        mode: LdlmMode,
        policy: Policy,
    ) -> Result<Option<(LdlmMode, Policy)>, LockError> {
        let pending = self.prepare(res, LdlmType::FLOCK, mode, policy, LdlmFlags::TEST_LOCK);
        let rep = super::enqueue::ask(self, pending).await?;
        let found = rep.desc.req_mode;
        Ok((found != LdlmMode::NL && found != LdlmMode::NONE).then(|| (found, rep.desc.policy())))
    }

    /// A flock that was asked for is withdrawn, but the server may have granted it first, with its effect on the owner's other
    /// locks. `merged`: the cancel did not end it, so it is granted or became part of an older lock: what the owner did not
    /// hold before is unlocked. What it held is locked again (where nothing was granted that changes nothing).
    pub(super) async fn restore_flocks(self: &Arc<Self>, asked: &LockDesc, merged: bool) {
        let Policy::Flock {
            start,
            end,
            owner,
            pid,
        } = asked.policy()
        else {
            return;
        };
        if asked.req_mode == LdlmMode::NL {
            return;
        }
        let res = asked.res();
        let held = |mode| self.locks.lock().flock_pieces(res, owner, mode);
        let (reads, writes) = (held(LdlmMode::PR), held(LdlmMode::PW));
        let mut todo = Vec::new();
        if merged {
            let both = reads.iter().chain(&writes).copied().collect();
            todo.extend(
                gaps(start, end, both)
                    .into_iter()
                    .map(|r| (LdlmMode::NL, r)),
            );
        }
        for (mode, pieces) in [(LdlmMode::PR, reads), (LdlmMode::PW, writes)] {
            let inside = pieces
                .into_iter()
                .filter(|p| p.0 <= end && start <= p.1)
                .map(|p| (p.0.max(start), p.1.min(end)));
            todo.extend(inside.map(|r| (mode, r)));
        }
        for (mode, (start, end)) in todo {
            let policy = Policy::Flock {
                start,
                end,
                owner,
                pid,
            };
            let flags = if mode == LdlmMode::NL {
                LdlmFlags(0)
            } else {
                LdlmFlags::BLOCK_NOWAIT
            };
            let pending = self.prepare(res, LdlmType::FLOCK, mode, policy, flags);
            match super::enqueue::ask(self, pending).await {
                Ok(rep) if mode != LdlmMode::NL => {
                    let mut locks = self.locks.lock();
                    locks.flock_renamed(res, &policy, mode, rep.handle);
                }
                Ok(_) => {}
                Err(e) => {
                    tracing::warn!(%res, error = %e, "an interrupted flock is not fully taken back")
                }
            }
        }
    }
}

/// What goes on of requests for flocks that were dropped, and unlocks, by resource and owner. What the owner asks for next must
/// not come before it.
#[derive(Default)]
pub(super) struct Aftermaths {
    of: Mutex<HashMap<(ResId, u64), Counts>>,
    one_ended: Notify,
}

#[derive(Default)]
struct Counts {
    /// Locks that are being withdrawn.
    withdrawals: usize,
    unlocks: usize,
}

impl Aftermaths {
    /// Waits until none of the owner in `policy` is left on `res`: of those that `what` picks.
    async fn ended(&self, res: ResId, policy: &Policy, what: fn(&Counts) -> usize) {
        let Policy::Flock { owner, .. } = *policy else {
            return;
        };
        loop {
            let one_ended = self.one_ended.notified();
            if self.of.lock().get(&(res, owner)).map_or(0, what) == 0 {
                return;
            }
            one_ended.await;
        }
    }
}

/// One of them, from when it begins.
pub(super) struct Aftermath {
    all: Arc<Aftermaths>,
    of: (ResId, u64),
    count: fn(&mut Counts) -> &mut usize,
}

impl Aftermath {
    /// The request for `asked` was dropped. `None`: that is no flock.
    pub fn of_drop(all: &Arc<Aftermaths>, asked: &LockDesc) -> Option<Aftermath> {
        Aftermath::begin(all, asked.res(), &asked.policy(), |c| &mut c.withdrawals)
    }

    fn begin(
        all: &Arc<Aftermaths>,
        res: ResId,
        policy: &Policy,
        count: fn(&mut Counts) -> &mut usize,
    ) -> Option<Aftermath> {
        let Policy::Flock { owner, .. } = *policy else {
            return None;
        };
        let of = (res, owner);
        *count(all.of.lock().entry(of).or_default()) += 1;
        let all = all.clone();
        Some(Aftermath { all, of, count })
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        let mut of = self.all.of.lock();
        if let Some(n) = of.get_mut(&self.of) {
            *(self.count)(n) -= 1;
            if n.withdrawals + n.unlocks == 0 {
                of.remove(&self.of);
            }
        }
        self.all.one_ended.notify_waiters();
    }
}

/// The parts of `start..=end` that none of `held` covers.
fn gaps(start: u64, end: u64, mut held: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    held.sort_unstable();
    let mut out = Vec::new();
    let mut next = Some(start);
    for (s, e) in held {
        let Some(n) = next.filter(|n| *n <= end) else {
            break;
        };
        if s > n {
            out.push((n, end.min(s - 1)));
        }
        if e >= n {
            next = e.checked_add(1);
        }
    }
    if let Some(n) = next.filter(|n| *n <= end) {
        out.push((n, end));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn gaps_are_what_nobody_covers() {
        assert_eq!(gaps(0, 9, vec![]), [(0, 9)]);
        assert_eq!(gaps(0, 9, vec![(3, 5)]), [(0, 2), (6, 9)]);
        assert_eq!(gaps(0, 9, vec![(8, 20), (0, 1)]), [(2, 7)]);
        assert_eq!(gaps(5, u64::MAX, vec![(0, 9), (20, u64::MAX)]), [(10, 19)]);
        assert!(gaps(0, u64::MAX, vec![(0, u64::MAX)]).is_empty());
        assert_eq!(gaps(5, 6, vec![(50, 60)]), [(5, 6)]);
    }
}
