//! Flocks in the table: test, unlock, grant with its effect on the owner's other locks, and deadlock.

use coral_wire::ldlm::{LdlmFlags, LdlmMode, Policy};
use smallvec::SmallVec;

use super::flock::{Edit, OwnLock, plan};
use super::lock::{Lock, overlap};
use super::{Action, Actions, FoldMap, Found, Key, Namespace, Outcome, Refused, Want};
use crate::ExportId;

/// A flock's owner: the client and what the client calls it.
type Owner = (Option<ExportId>, u64);

/// Which owners wait, and for which locks.
#[derive(Debug, Default)]
pub(super) struct Waiters(FoldMap<Owner, SmallVec<[u32; 2]>>);

impl Waiters {
    pub fn add(&mut self, owner: Owner, idx: u32) {
        self.0.entry(owner).or_default().push(idx);
    }

    pub fn remove(&mut self, owner: Owner, idx: u32) {
        if let Some(list) = self.0.get_mut(&owner) {
            list.retain(|i| *i != idx);
            if list.is_empty() {
                self.0.remove(&owner);
            }
        }
    }

    fn of(&self, owner: Owner) -> &[u32] {
        self.0.get(&owner).map_or(&[], |l| l.as_slice())
    }
}

impl Namespace {
    /// Enqueue of a flock: F_GETLK with `TEST_LOCK`, F_UNLCK with mode NL, else F_SETLK or F_SETLKW.
    pub(super) fn enqueue_flock(
        &mut self,
        want: Want,
        reply_pending: bool,
        out: &mut Actions,
    ) -> Result<Outcome, Refused> {
        let (flags, res, unlock) = (want.flags, (want.res, want.ty), want.mode == LdlmMode::NL);
        let (idx, _) = self.insert(want, reply_pending)?;
        let mut found = Found::new();
        if flags.contains(LdlmFlags::TEST_LOCK) {
            self.blocked(idx, &mut found);
            let first = found.first().map(|i| self.table.lock(*i).info());
            self.discard(idx);
            return Ok(Outcome::Tested(first));
        }
        if unlock {
            self.withdraw_waiting(idx, out);
        } else if self.blocked(idx, &mut found) {
            return self.wait_for_flock(idx, flags);
        }
        let outcome = match self.apply_flock(idx) {
            None => Outcome::Absorbed,
            Some(cookie) => Outcome::Granted(cookie),
        };
        self.reprocess(res, out);
        Ok(outcome)
    }

    fn wait_for_flock(&mut self, idx: u32, flags: LdlmFlags) -> Result<Outcome, Refused> {
        let refused = if flags.contains(LdlmFlags::BLOCK_NOWAIT) {
            Refused::WouldBlock
        } else if self.flock_deadlocks(idx) {
            Refused::Deadlock
        } else {
            let lock = self.table.lock(idx);
            let (cookie, owner) = (
                lock.cookie,
                lock.flock_owner().expect("a flock has an owner"),
            );
            self.queue(idx);
            self.flock_waiters.add(owner, idx);
            return Ok(Outcome::Waiting(cookie));
        };
        self.discard(idx);
        Err(refused)
    }

    /// An unlock of exactly the range that its owner still waits for withdraws that wait.
    fn withdraw_waiting(&mut self, idx: u32, out: &mut Actions) {
        let want = self.table.lock(idx);
        let same = |l: &Lock| l.flock_owner() == want.flock_owner() && l.range() == want.range();
        let r = &self.resources[&want.key()];
        if let Some(w) = r
            .waiting
            .iter()
            .copied()
            .find(|i| same(self.table.lock(*i)))
        {
            let lock = self.unlink(w);
            if lock.export.is_some() && !lock.reply_pending {
                out.push(Action::Completion {
                    lock: lock.info(),
                    flags: LdlmFlags::AST_SENT,
                });
            }
        }
    }

    fn own_flocks(&self, want: &Lock) -> Vec<OwnLock<u32>> {
        let own = |i: &u32| {
            let l = self.table.lock(*i);
            let (start, end) = l.range();
            (l.flock_owner() == want.flock_owner()).then_some(OwnLock {
                key: *i,
                mode: l.mode,
                start,
                end,
            })
        };
        self.resources[&want.key()]
            .granted
            .iter()
            .filter_map(own)
            .collect()
    }

    /// Grants the flock: cuts and merges the owner's other locks. `None`: no lock of its own remains.
    fn apply_flock(&mut self, idx: u32) -> Option<u64> {
        let want = self.table.lock(idx);
        let (mode, (start, end), res) = (want.mode, want.range(), want.key());
        let p = plan(&self.own_flocks(want), mode, start, end);
        for edit in &p.edits {
            match *edit {
                Edit::Resize { key, start, end } => set_range(self.table.lock_mut(key), start, end),
                Edit::Remove(key) => {
                    self.unlink(key);
                }
                Edit::Lower { of, start, end } => self.split_off(of, res, start, end),
            }
        }
        if mode == LdlmMode::NL || p.merged_into.is_some() {
            self.table.remove(idx);
            return None;
        }
        self.grant(idx);
        Some(self.table.lock(idx).cookie)
    }

    /// A new granted lock for the lower part of one that is cut in two. The client knows no cookie of it.
    fn split_off(&mut self, of: u32, res: Key, start: u64, end: u64) {
        let mut lower = self.table.lock(of).clone();
        (lower.remote, lower.reply_pending) = (0, false);
        set_range(&mut lower, start, end);
        let mode = lower.mode;
        // A full table drops the part: the owner loses a lock rather than others waiting for ever.
        if let Some(idx) = self.table.insert(lower) {
            self.resources
                .get_mut(&res)
                .expect("resource is there")
                .add_granted(idx, mode);
        }
    }

    /// Grants a flock that waited; true when the owner's other locks changed, so that earlier waiters may go too.
    pub(super) fn grant_waiting_flock(&mut self, idx: u32, out: &mut Actions) -> bool {
        let owner = self
            .table
            .lock(idx)
            .flock_owner()
            .expect("a flock has an owner");
        self.flock_waiters.remove(owner, idx);
        let mut info = self.table.lock(idx).info();
        let pending = self.table.lock(idx).reply_pending;
        info.granted_mode = info.req_mode;
        self.apply_flock(idx);
        match info.export {
            None => out.push(Action::LocalGranted {
                cookie: info.cookie,
            }),
            Some(_) if pending => {}
            Some(_) => out.push(Action::Completion {
                lock: info,
                flags: LdlmFlags(0),
            }),
        }
        true
    }

    /// Ends the wait of a lock that would wait for ever.
    pub(super) fn refuse_deadlock(&mut self, idx: u32, out: &mut Actions) {
        let lock = self.unlink(idx);
        if lock.export.is_some() {
            let flags =
                LdlmFlags::FLOCK_DEADLOCK | LdlmFlags::AST_SENT | LdlmFlags::CANCEL_ON_BLOCK;
            out.push(Action::Completion {
                lock: lock.info(),
                flags,
            });
        }
    }

    /// Owners of the granted locks in the way of `idx`.
    fn blocking_owners(&self, idx: u32) -> SmallVec<[Owner; 4]> {
        let mut found = Found::new();
        self.blocked(idx, &mut found);
        found
            .iter()
            .filter_map(|i| self.table.lock(*i).flock_owner())
            .collect()
    }

    /// True when somebody `idx` waits for waits, through any number of others, for the owner of `idx`.
    pub(super) fn flock_deadlocks(&self, idx: u32) -> bool {
        let me = self
            .table
            .lock(idx)
            .flock_owner()
            .expect("a flock has an owner");
        let mut todo = self.blocking_owners(idx).to_vec();
        let mut seen: Vec<Owner> = Vec::new();
        while let Some(owner) = todo.pop() {
            if owner == me {
                return true;
            }
            if seen.contains(&owner) {
                continue;
            }
            seen.push(owner);
            for w in self.flock_waiters.of(owner) {
                todo.extend(self.blocking_owners(*w));
            }
        }
        false
    }
}

fn set_range(lock: &mut Lock, from: u64, to: u64) {
    if let Policy::Flock { start, end, .. } = &mut lock.policy {
        (*start, *end) = (from, to);
    }
    debug_assert!(overlap(lock.range(), (from, to)));
}
