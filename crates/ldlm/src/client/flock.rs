//! POSIX and BSD locks (`mdc_file_flock` in `lustre/mdc/mdc_request.c`, `ldlm_flock_completion_ast` in `ldlm_flock.c`).
//!
//! The server decides; this side repeats its arithmetic so that both know the same locks (they are replayed to a restarted
//! server). An interrupted wait leaves nothing behind: see [`ClientNamespace::flock`].

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
                let unlock = tokio::spawn(async move {
                    me.set_flock(res, LdlmMode::NL, policy, LdlmFlags(0)).await
                });
                // It neither panics nor is aborted, unless the runtime ends.
                return unlock.await.unwrap_or(Err(LockError::Evicted));
            }
            FlockOp::Test => return self.test_flock(res, mode, policy).await,
        };
        self.set_flock(res, mode, policy, flags).await
    }

    async fn set_flock(
        self: &Arc<Self>,
        res: ResId,
        mode: LdlmMode,
        policy: Policy,
        flags: LdlmFlags,
    ) -> Result<Option<(LdlmMode, Policy)>, LockError> {
        self.withdrawals.ended(res, &policy).await;
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
    /// locks. `merged`: the cancel did not find it, so it became part of an older lock: what the owner did not hold before is
    /// unlocked. What it held is locked again (at an intact server that changes nothing).
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
            if let Err(e) = super::enqueue::ask(self, pending).await {
                tracing::warn!(%res, error = %e, "an interrupted flock is not fully taken back");
            }
        }
    }
}

/// Flocks that are withdrawn just now, by resource and owner.
#[derive(Default)]
pub(super) struct Withdrawals {
    of: Mutex<HashMap<(ResId, u64), usize>>,
    one_ended: Notify,
}

impl Withdrawals {
    /// Waits until no flock on `res` of the owner in `policy` is being withdrawn: what that restores must not come after what
    /// the owner asks for next.
    async fn ended(&self, res: ResId, policy: &Policy) {
        let Policy::Flock { owner, .. } = *policy else {
            return;
        };
        loop {
            let one_ended = self.one_ended.notified();
            if !self.of.lock().contains_key(&(res, owner)) {
                return;
            }
            one_ended.await;
        }
    }
}

/// The withdrawal of one flock, from the drop of its request on.
pub(super) struct Withdrawal {
    all: Arc<Withdrawals>,
    of: (ResId, u64),
}

impl Withdrawal {
    /// `None`: `asked` is no flock.
    pub fn begin(all: &Arc<Withdrawals>, asked: &LockDesc) -> Option<Withdrawal> {
        let Policy::Flock { owner, .. } = asked.policy() else {
            return None;
        };
        let of = (asked.res(), owner);
        *all.of.lock().entry(of).or_default() += 1;
        let all = all.clone();
        Some(Withdrawal { all, of })
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let mut of = self.all.of.lock();
        if let Some(n) = of.get_mut(&self.of) {
            *n -= 1;
            if *n == 0 {
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
