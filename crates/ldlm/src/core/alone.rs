//! Clients that are alone with a directory, and locks of the server that become a client's.

use std::collections::hash_map::Entry;

use coral_wire::ldlm::{LdlmType, ResId};

use super::lock::{Lock, LockInfo, conflicts};
use super::{Actions, Namespace};
use crate::ExportId;

impl Namespace {
    /// The client that has an EX lock on the UPDATE bit of this resource.
    pub fn alone_on(&self, res: ResId) -> Option<ExportId> {
        if self.alone.is_empty() {
            return None;
        }
        let r = self.resources.get(&(res, LdlmType::IBITS))?;
        let mut locks = r.granted.iter().map(|i| self.table.lock(*i));
        locks.find(|l| l.is_alone()).and_then(|l| l.export)
    }

    /// Another client than this has such a lock.
    pub fn is_other_alone(&self, exp: ExportId) -> bool {
        self.alone.len() > usize::from(self.alone.contains_key(&exp))
    }

    /// The lock `idx` may be such a one from now on.
    pub(super) fn count_alone(&mut self, idx: u32) {
        let lock = self.table.lock(idx);
        if let Some(exp) = lock.export.filter(|_| lock.is_alone()) {
            *self.alone.entry(exp).or_default() += 1;
        }
    }

    /// `lock` goes, or changes.
    pub(super) fn uncount_alone(&mut self, lock: &Lock) {
        if let (true, Some(exp)) = (lock.is_alone(), lock.export)
            && let Entry::Occupied(mut e) = self.alone.entry(exp)
        {
            *e.get_mut() -= 1;
            if *e.get() == 0 {
                e.remove();
            }
        }
    }

    /// Other clients than this have locks, granted or waiting, on this inode.
    pub fn others_on(&self, res: ResId, exp: ExportId) -> bool {
        let r = self.resources.get(&(res, LdlmType::IBITS));
        r.is_some_and(|r| {
            let all = r.granted.iter().chain(&r.waiting);
            (all.map(|i| self.table.lock(*i))).any(|l| l.export.is_some_and(|e| e != exp))
        })
    }

    /// Nobody but this export has any locks, granted or waiting.
    pub fn is_only(&self, exp: ExportId) -> bool {
        self.table.is_only(exp)
    }

    /// Turns a granted server-side lock into one of a client (Lustre: `mdt_intent_lock_replace`). Whoever waits for it
    /// now waits for the client. `None`: no such lock, or it would conflict with what the export holds already.
    pub fn hand_over(
        &mut self,
        cookie: u64,
        exp: ExportId,
        remote: u64,
        out: &mut Actions,
    ) -> Option<LockInfo> {
        let idx = self.table.find(cookie)?;
        let lock = self.table.lock_mut(idx);
        if !lock.granted || lock.export.is_some() {
            return None;
        }
        let ignored = lock.ignore.take();
        if ignored.is_some() && self.meets_granted(idx) {
            self.table.lock_mut(idx).ignore = ignored;
            return None;
        }
        self.table.set_export(idx, exp, remote);
        self.count_alone(idx);
        let lock = self.table.lock_mut(idx);
        let (info, wanted, res) = (lock.info(), lock.ast_sent, lock.key());
        lock.ast_sent = false;
        if wanted {
            self.reprocess(res, out);
        }
        Some(info)
    }

    fn meets_granted(&self, idx: u32) -> bool {
        self.meets_others(idx, |_| false)
    }

    /// Whether a granted lock conflicts with this one, its own client's too, but for those that go.
    fn meets_others(&self, idx: u32, goes: impl Fn(&Lock) -> bool) -> bool {
        let want = Lock {
            ignore: None,
            ..self.table.lock(idx).clone()
        };
        let granted = self.resources[&want.key()].granted.iter();
        let others = granted.filter(|i| **i != idx);
        let mut locks = others.map(|i| self.table.lock(*i));
        locks.any(|l| !goes(l) && conflicts(l, &want))
    }

    /// Locks of `own` that are this client's, on what the lock `cookie` is on.
    pub fn own_beside(&self, cookie: u64, exp: ExportId, own: &[u64]) -> Vec<u64> {
        let key = self.table.find(cookie).map(|i| self.table.lock(i).key());
        let is_own = |c: &&u64| {
            let lock = self.table.find(**c).map(|i| self.table.lock(i));
            lock.is_some_and(|l| l.export == Some(exp) && Some(l.key()) == key)
        };
        own.iter().filter(is_own).copied().collect()
    }

    /// Whether the server-side lock can become one of the client `exp` that gives up these locks of its own for it.
    pub fn would_hand_over(&self, cookie: u64, exp: ExportId, own: &[u64]) -> bool {
        let goes = |l: &Lock| l.export == Some(exp) && own.contains(&l.cookie);
        let idx = self.table.find(cookie);
        idx.is_some_and(|idx| {
            let lock = self.table.lock(idx);
            let gives = lock.granted && lock.export.is_none();
            gives && (lock.ignore.is_none() || !self.meets_others(idx, goes))
        })
    }
}
