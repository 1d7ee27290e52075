//! Record locks (flocks) in the table of a client's locks: merged, split and looked for as at the server
//! (`ldlm_process_flock_lock` in `lustre/ldlm/ldlm_flock.c`).

use coral_wire::Errno;
use coral_wire::ldlm::{LdlmMode, LdlmType, LockDesc, Policy, ResId};

use super::{ClientLock, LockTable};
use crate::core::flock::{Edit, OwnLock, plan};

impl LockTable {
    /// The asker of a flock goes away before it has it: a grant that comes, or has come, is none here, and a restarted server hears
    /// nothing of it. Its server cookie, 0 when there is nothing to withdraw.
    pub fn withdraw_flock(&mut self, cookie: u64) -> u64 {
        let Some(idx) = self.slab.find(cookie) else {
            return 0;
        };
        self.unlist(idx);
        let h = self.slab.at_mut(idx);
        let known = !h.dead && h.refused.is_none();
        h.refused = Some(Errno::EINTR);
        let remote = std::mem::take(&mut h.remote);
        if known { remote } else { 0 }
    }

    /// A flock is granted: cuts and merges the older locks of its owner, as the server did. It may be gone afterwards.
    pub fn apply_flock(&mut self, cookie: u64, mode: LdlmMode) {
        let Some(idx) = self.slab.find(cookie) else {
            return;
        };
        let h = self.slab.at(idx);
        let Policy::Flock {
            start, end, owner, ..
        } = h.policy
        else {
            return;
        };
        let key = (h.res, h.ty);
        let mut own: Vec<OwnLock<u32>> = Vec::new();
        for i in self
            .by_res
            .get(&key)
            .into_iter()
            .flatten()
            .copied()
            .filter(|i| *i != idx)
        {
            let l = self.slab.at(i);
            if let Policy::Flock {
                start,
                end,
                owner: o,
                ..
            } = l.policy
                && o == owner
            {
                own.push(OwnLock {
                    key: i,
                    mode: l.mode,
                    start,
                    end,
                });
            }
        }
        let p = plan(&own, mode, start, end);
        for e in &p.edits {
            match *e {
                Edit::Resize { key, start, end } => set_range(self.slab.at_mut(key), start, end),
                Edit::Remove(key) => {
                    self.take(key);
                }
                Edit::Lower { of, start, end } => self.split_off(of, start, end),
            }
        }
        if mode == LdlmMode::NL || p.merged_into.is_some() {
            self.unlist(idx);
        }
    }

    fn split_off(&mut self, of: u32, start: u64, end: u64) {
        let h = self.slab.at(of);
        let desc = LockDesc {
            granted_mode: h.mode,
            ..LockDesc::new(h.res, h.ty, h.mode, &h.policy)
        };
        let Some(cookie) = self.prepare(h.res, h.ty, h.mode, h.policy, h.flags) else {
            return;
        };
        self.grant(cookie, &desc, 0);
        if let Some(l) = self.get_mut(cookie) {
            l.pins = 0;
            set_range(l, start, end);
        }
    }

    /// What the owner holds in `mode`, in pieces of `(first byte, last byte)`.
    pub fn flock_pieces(&self, res: ResId, owner: u64, mode: LdlmMode) -> Vec<(u64, u64)> {
        let mine = self.flocks_of(res, owner, mode);
        let mut v: Vec<_> = mine.map(|(_, range)| range).collect();
        v.sort_unstable();
        v
    }

    /// The server holds an owner's lock on exactly this range under a new cookie, unless that is 0.
    pub fn flock_renamed(&mut self, res: ResId, policy: &Policy, mode: LdlmMode, remote: u64) {
        let Policy::Flock {
            start, end, owner, ..
        } = *policy
        else {
            return;
        };
        let same = self
            .flocks_of(res, owner, mode)
            .find(|(_, range)| *range == (start, end));
        if let Some((idx, _)) = same.filter(|_| remote != 0) {
            self.slab.at_mut(idx).remote = remote;
        }
    }

    /// Whether a granted flock of another owner than that in `policy` keeps it from a lock in `mode`.
    pub fn flock_in_the_way(&self, res: ResId, mode: LdlmMode, policy: &Policy) -> bool {
        let Policy::Flock {
            start, end, owner, ..
        } = *policy
        else {
            return false;
        };
        let list = self.by_res.get(&(res, LdlmType::FLOCK));
        list.into_iter().flatten().any(|i| {
            let h = self.slab.at(*i);
            matches!(h.policy, Policy::Flock { start: s, end: e, owner: o, .. }
                if o != owner && s <= end && start <= e && !h.mode.compatible(mode))
        })
    }

    /// Granted locks of an owner, with their ranges.
    fn flocks_of(
        &self,
        res: ResId,
        owner: u64,
        mode: LdlmMode,
    ) -> impl Iterator<Item = (u32, (u64, u64))> {
        let list = self.by_res.get(&(res, LdlmType::FLOCK));
        list.into_iter().flatten().filter_map(move |i| {
            let h = self.slab.at(*i);
            match h.policy {
                Policy::Flock {
                    start,
                    end,
                    owner: o,
                    ..
                } if o == owner && h.mode == mode => Some((*i, (start, end))),
                _ => None,
            }
        })
    }
}

fn set_range(h: &mut ClientLock, from: u64, to: u64) {
    if let Policy::Flock { start, end, .. } = &mut h.policy {
        (*start, *end) = (from, to);
    }
}
