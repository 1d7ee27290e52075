//! The queue of a resource: who is in the way of whom, who is asked to go, who is granted next.
//!
//! Lustre: `ldlm_reprocess_all`, `ldlm_reprocess_queue` in `lustre/ldlm/ldlm_lock.c`, and the `*_compat_queue` functions.

use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, LockDesc, Policy};
use smallvec::SmallVec;
use std::collections::VecDeque;

use super::lock::{Lock, conflicts, is_to_write, writes_for_another};
use super::{Action, Actions, Found, Key, MAX_BLOCKED_TRIED, Namespace};

#[derive(Debug, Default)]
pub(super) struct Resource {
    pub ty: LdlmType,
    pub granted: SmallVec<[u32; 4]>,
    pub waiting: VecDeque<u32>,
    /// Granted locks by mode (index: bit number), and the modes present as a mask: most scans need not look further.
    by_mode: [u32; 9],
    modes: u32,
}

impl Resource {
    pub fn new(ty: LdlmType) -> Resource {
        Resource {
            ty,
            ..Resource::default()
        }
    }

    pub fn add_granted(&mut self, idx: u32, mode: LdlmMode) {
        self.granted.push(idx);
        self.by_mode[mode.0.trailing_zeros() as usize] += 1;
        self.modes |= mode.0;
    }

    pub fn drop_granted(&mut self, idx: u32, mode: LdlmMode) {
        let pos = self
            .granted
            .iter()
            .position(|i| *i == idx)
            .expect("granted lock is in its resource");
        self.granted.swap_remove(pos);
        let n = &mut self.by_mode[mode.0.trailing_zeros() as usize];
        *n -= 1;
        if *n == 0 {
            self.modes &= !mode.0;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }
}

/// How a blocking callback describes the lock that waits: for inode bits the bits to give up are repeated where a client
/// looks for them (`cancel_bits`, in the place of the optional bits).
fn blocking_desc(lock: &Lock) -> LockDesc {
    let mut info = lock.info();
    if let Policy::Ibits { bits, try_bits, .. } = &mut info.policy {
        *try_bits = *bits;
    }
    info.desc()
}

impl Namespace {
    /// True when the lock must wait; `found` receives who is in the way.
    pub(super) fn blocked(&self, idx: u32, found: &mut Found) -> bool {
        let want = self.table.lock(idx);
        let r = &self.resources[&want.key()];
        let table = &self.table;
        if r.modes & !want.mode.compat_mask() != 0 || want.mode == LdlmMode::GROUP {
            found.extend(
                r.granted
                    .iter()
                    .copied()
                    .filter(|i| conflicts(table.lock(*i), want)),
            );
        }
        let group = want.mode == LdlmMode::GROUP;
        if want.ty != LdlmType::FLOCK && !(group && self.joins_group(r, want)) {
            let before = r.waiting.iter().copied().take_while(|i| *i != idx);
            // A group lock goes before all others that wait.
            let before = before.filter(|i| !group || table.lock(*i).mode == LdlmMode::GROUP);
            found.extend(before.filter(|i| conflicts(table.lock(*i), want)));
        }
        !found.is_empty()
    }

    /// True when a granted group lock of the same gid is there already.
    fn joins_group(&self, r: &Resource, want: &Lock) -> bool {
        r.modes & LdlmMode::GROUP.0 != 0
            && r.granted
                .iter()
                .map(|i| self.table.lock(*i))
                .any(|l| l.mode == LdlmMode::GROUP && !conflicts(l, want))
    }

    /// Puts a blocked lock into the queue.
    pub(super) fn queue(&mut self, idx: u32) {
        let lock = self.table.lock(idx);
        let (res, group) = (lock.key(), lock.mode == LdlmMode::GROUP);
        let r = self.resources.get_mut(&res).expect("lock has a resource");
        let pos = if group {
            r.waiting
                .iter()
                .position(|i| self.table.lock(*i).mode != LdlmMode::GROUP)
        } else {
            None
        };
        match pos {
            Some(p) => r.waiting.insert(p, idx),
            None => r.waiting.push_back(idx),
        }
    }

    /// Asks the locks in `found` to make way for `idx`. True when one of them is gone already (`CANCEL_ON_BLOCK`).
    pub(super) fn ask(&mut self, found: &Found, idx: u32, out: &mut Actions) -> bool {
        let by = blocking_desc(self.table.lock(idx));
        let discard = self
            .table
            .lock(idx)
            .flags
            .contains(LdlmFlags::AST_DISCARD_DATA);
        let (mode, export) = (self.table.lock(idx).mode, self.table.lock(idx).export);
        let writes = |i: &u32| {
            let l = self.table.lock(*i);
            writes_for_another(l.mode, l.export, export)
        };
        let company = is_to_write(mode) && found.iter().any(writes);
        self.table.lock_mut(idx).has_company |= company;
        let mut removed = false;
        for i in found.iter().copied() {
            let lock = self.table.lock_mut(i);
            if lock.ast_sent || lock.ty == LdlmType::FLOCK || lock.mode == LdlmMode::GROUP {
                continue;
            }
            lock.ast_sent = true;
            if discard {
                lock.flags |= LdlmFlags::DISCARD_DATA;
            }
            if !lock.granted || lock.export.is_none() {
                continue;
            }
            let instant = lock.flags.contains(LdlmFlags::CANCEL_ON_BLOCK);
            out.push(Action::Blocking {
                lock: lock.info(),
                by,
                instant,
            });
            if instant {
                self.unlink(i);
                removed = true;
            }
        }
        removed
    }

    /// Grants what can be granted on `res`, asks who is in the way of the rest, forgets the resource when it is empty.
    pub(super) fn reprocess(&mut self, res: Key, out: &mut Actions) {
        let (mut i, mut blocked) = (0, 0);
        while let Some(r) = self.resources.get(&res) {
            let Some(idx) = r.waiting.get(i).copied() else {
                break;
            };
            if self.replaying && self.table.lock(idx).export.is_some() {
                i += 1;
                continue;
            }
            let flock = r.ty == LdlmType::FLOCK;
            let mut found = Found::new();
            if self.blocked(idx, &mut found) {
                if flock && self.flock_deadlocks(idx) {
                    self.refuse_deadlock(idx, out);
                    continue;
                }
                if self.ask(&found, idx, out) {
                    i = 0;
                    continue;
                }
                (i, blocked) = (i + 1, blocked + 1);
                if blocked >= MAX_BLOCKED_TRIED && !flock {
                    break;
                }
                continue;
            }
            self.dequeue(res, i);
            if self.grant_waiting(idx, out) {
                i = 0;
            }
        }
        self.drop_resource_if_empty(res);
    }

    fn dequeue(&mut self, res: Key, pos: usize) {
        self.resources
            .get_mut(&res)
            .expect("resource is there")
            .waiting
            .remove(pos);
    }

    /// Grants a lock that waited and announces it. True when the queue must be looked at from its head again.
    fn grant_waiting(&mut self, idx: u32, out: &mut Actions) -> bool {
        if self.table.lock(idx).ty == LdlmType::FLOCK {
            return self.grant_waiting_flock(idx, out);
        }
        self.trim_try_bits(idx);
        self.grant(idx);
        self.announce(idx, out);
        false
    }

    /// Tells the owner that its lock is granted, unless the enqueue's own reply will.
    fn announce(&mut self, idx: u32, out: &mut Actions) {
        let lock = self.table.lock(idx);
        match lock.export {
            None => out.push(Action::LocalGranted {
                cookie: lock.cookie,
            }),
            Some(_) if lock.reply_pending => {}
            Some(_) => {
                let mut flags = lock.flags & LdlmFlags::DISCARD_DATA;
                if lock.ast_sent {
                    flags |= LdlmFlags::AST_SENT;
                }
                let (info, gone) = (
                    lock.info(),
                    lock.ast_sent && lock.flags.contains(LdlmFlags::CANCEL_ON_BLOCK),
                );
                out.push(Action::Completion { lock: info, flags });
                if gone {
                    self.unlink(idx);
                }
            }
        }
    }
}
