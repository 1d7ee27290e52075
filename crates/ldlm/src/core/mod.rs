//! The lock table of one server namespace, as a plain state machine: no I/O, no clock, no mutex.
//!
//! A resource has granted locks and a queue of waiting ones. A lock is granted when it conflicts with no granted lock and
//! with no lock that waits before it; flocks look at granted locks only (as in Lustre and POSIX). Whoever is in the way
//! of a waiting lock gets one blocking callback; a waiting lock that is itself in the way learns it with its grant
//! (`AST_SENT`). What must be sent comes out as [`Action`]s, in order.
//!
//! Lustre: `lustre/ldlm/ldlm_lock.c` (`ldlm_lock_enqueue`, `ldlm_reprocess_all`), `ldlm_extent.c`, `ldlm_inodebits.c`,
//! `ldlm_flock.c`, `ldlm_plain.c`. Different here: waiting locks are tried past the first one that stays blocked (up to
//! [`MAX_BLOCKED_TRIED`]), and flock deadlocks are searched over all blockers, not the first.

mod alone;
pub mod extent;
pub mod flock;
mod ibits;
mod lock;
mod posix;
mod queue;
mod table;

pub use lock::{Action, LockInfo};
pub use table::{FoldHasher, FoldMap, MAX_LOCKS};

use coral_wire::coral::blocks::Span;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, Policy, ResId};
use lock::{Lock, conflicts, writes_for_another};
use queue::Resource;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use table::Table;

use crate::ExportId;

/// Waiting locks that stay blocked before a pass over a queue ends (Lustre: the first ends it). Flocks are all tried.
pub const MAX_BLOCKED_TRIED: usize = 32;

/// What comes out of an operation.
pub type Actions = SmallVec<[Action; 2]>;
type Found = SmallVec<[u32; 8]>;
/// Names a queue: a resource, for locks of one type.
type Key = (ResId, LdlmType);

/// A lock asked for.
#[derive(Debug, Clone)]
pub struct Want {
    /// Resource.
    pub res: ResId,
    /// Lock type. Resources of different types never meet, even under the same name.
    pub ty: LdlmType,
    /// Mode.
    pub mode: LdlmMode,
    /// What is to be covered.
    pub policy: Policy,
    /// `BLOCK_NOWAIT`, `TEST_LOCK`, `NO_EXPANSION`, `CANCEL_ON_BLOCK`, `AST_DISCARD_DATA`, `SPECULATIVE` count.
    pub flags: LdlmFlags,
    /// Owner; `None`: a server-side lock.
    pub export: Option<ExportId>,
    /// The client's cookie.
    pub remote: u64,
    /// Locks of this export are no obstacle.
    pub ignore: Option<ExportId>,
}

/// How an enqueue went.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Granted; the cookie names it.
    Granted(u64),
    /// Queued; a [`Action::Completion`] or [`Action::LocalGranted`] will follow.
    Waiting(u64),
    /// Flock: done, and no lock of this name remains (an unlock, or merged into an older lock of the owner).
    Absorbed,
    /// F_GETLK: the first lock in the way, if any.
    Tested(Option<LockInfo>),
}

/// Why an enqueue was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It conflicts and may not wait.
    WouldBlock,
    /// Flock: waiting would never end.
    Deadlock,
    /// None of the bits is free, or none was asked for.
    Aborted,
    /// [`MAX_LOCKS`] reached.
    TooMany,
    /// Unknown mode or type, a policy of another type, or a range that ends before it starts.
    Malformed,
}

/// The lock table of one target.
#[derive(Debug)]
pub struct Namespace {
    table: Table,
    resources: FoldMap<Key, Resource>,
    flock_waiters: posix::Waiters,
    replaying: bool,
    /// Clients with granted locks that are [`Lock::is_alone`], and how many.
    alone: FoldMap<ExportId, usize>,
}

/// False for what no queue can hold: an unknown mode or type, a policy of another type, a range that ends before it starts.
pub(crate) fn well_formed(ty: LdlmType, mode: LdlmMode, policy: &Policy) -> bool {
    let fits = matches!(
        (ty, policy),
        (LdlmType::PLAIN, Policy::Plain)
            | (LdlmType::EXTENT, Policy::Extent { .. })
            | (LdlmType::IBITS, Policy::Ibits { .. })
            | (LdlmType::FLOCK, Policy::Flock { .. })
    );
    let ordered = match *policy {
        Policy::Extent { start, end, .. } | Policy::Flock { start, end, .. } => start <= end,
        _ => true,
    };
    fits && ordered && mode.0.is_power_of_two() && mode.0 <= LdlmMode::TXN.0
}

fn check(want: &Want) -> Result<(), Refused> {
    if well_formed(want.ty, want.mode, &want.policy) {
        Ok(())
    } else {
        Err(Refused::Malformed)
    }
}

impl Namespace {
    /// An empty table. `base` makes cookies differ from those of earlier lives: any random number.
    pub fn new(base: u64) -> Namespace {
        Namespace {
            table: Table::new(base),
            resources: FoldMap::default(),
            flock_waiters: Default::default(),
            replaying: false,
            alone: FoldMap::default(),
        }
    }

    /// Number of locks, granted and waiting.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True without locks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of resources.
    pub fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// Copy of a lock.
    pub fn info(&self, cookie: u64) -> Option<LockInfo> {
        self.table.find(cookie).map(|i| self.table.lock(i).info())
    }

    /// Copies of all locks.
    pub fn locks(&self) -> impl Iterator<Item = LockInfo> {
        self.table.iter().map(Lock::info)
    }

    /// Copies of the granted locks of a resource.
    pub fn granted(&self, res: ResId, ty: LdlmType) -> impl Iterator<Item = LockInfo> {
        self.resources
            .get(&(res, ty))
            .into_iter()
            .flat_map(|r| r.granted.iter().map(|i| self.table.lock(*i).info()))
    }

    /// The lock an export has under its own cookie. Linear in the export's locks: for resends only.
    pub fn find_remote(&self, exp: ExportId, remote: u64) -> Option<LockInfo> {
        self.table
            .of_export(exp)
            .iter()
            .map(|i| self.table.lock(*i))
            .find(|l| l.remote == remote)
            .map(Lock::info)
    }

    /// True when a blocking callback was sent for the lock, or will go with its grant.
    pub fn ast_sent(&self, cookie: u64) -> bool {
        self.table
            .find(cookie)
            .is_some_and(|i| self.table.lock(i).ast_sent)
    }

    /// Asks for a lock. With `reply_pending` a later grant makes no completion callback until [`Self::reply_done`].
    pub fn enqueue(
        &mut self,
        want: Want,
        reply_pending: bool,
        out: &mut Actions,
    ) -> Result<Outcome, Refused> {
        check(&want)?;
        if want.ty == LdlmType::FLOCK {
            return self.enqueue_flock(want, reply_pending, out);
        }
        let nowait = want
            .flags
            .intersects(LdlmFlags::BLOCK_NOWAIT | LdlmFlags::SPECULATIVE);
        let (idx, alone) = self.insert(want, reply_pending)?;
        if alone && ibits::wants_something(self.table.lock(idx)) {
            self.grant(idx);
            return Ok(Outcome::Granted(self.table.lock(idx).cookie));
        }
        let mut removed = false;
        let outcome = loop {
            let mut found = Found::new();
            self.trim_try_bits(idx);
            if !ibits::wants_something(self.table.lock(idx)) {
                self.discard(idx);
                break Err(Refused::Aborted);
            }
            if !self.blocked(idx, &mut found) {
                self.grant(idx);
                break Ok(Outcome::Granted(self.table.lock(idx).cookie));
            }
            if nowait {
                self.discard(idx);
                break Err(Refused::WouldBlock);
            }
            if self.ask(&found, idx, out) {
                removed = true;
                continue;
            }
            self.queue(idx);
            break Ok(Outcome::Waiting(self.table.lock(idx).cookie));
        };
        if removed {
            let res = match &outcome {
                Ok(Outcome::Granted(c) | Outcome::Waiting(c)) => {
                    self.table.find(*c).map(|i| self.table.lock(i).key())
                }
                _ => None,
            };
            if let Some(res) = res {
                self.reprocess(res, out);
            }
        }
        outcome
    }

    /// A grant that needs no callbacks and changes nothing when it is not possible.
    pub fn try_enqueue(&mut self, mut want: Want) -> Result<u64, Refused> {
        want.flags |= LdlmFlags::BLOCK_NOWAIT;
        let mut out = Actions::new();
        match self.enqueue(want, false, &mut out)? {
            Outcome::Granted(cookie) => Ok(cookie),
            other => unreachable!("a lock that may not wait is granted or refused, not {other:?}"),
        }
    }

    /// The enqueue's reply is written now; from here a grant makes a completion callback. Returns the lock as it stands, and
    /// whether it was asked to go meanwhile (a granted one then learns it from the reply). `None`: it is gone.
    pub fn reply_done(&mut self, cookie: u64) -> Option<(LockInfo, bool)> {
        let idx = self.table.find(cookie)?;
        let lock = self.table.lock_mut(idx);
        lock.reply_pending = false;
        Some((lock.info(), lock.ast_sent))
    }

    /// Puts a lock into the table, not yet on a queue. Its slot, and whether its resource was made for it.
    fn insert(&mut self, want: Want, reply_pending: bool) -> Result<(u32, bool), Refused> {
        let req = match want.policy {
            Policy::Extent { start, end, .. } => (start, end),
            _ => (0, u64::MAX),
        };
        let (key, ty) = ((want.res, want.ty), want.ty);
        let lock = Lock {
            cookie: 0,
            remote: want.remote,
            export: want.export,
            ignore: want.ignore,
            res: want.res,
            ty,
            mode: want.mode,
            granted: false,
            policy: want.policy,
            req,
            flags: want.flags
                & (LdlmFlags::CANCEL_ON_BLOCK
                    | LdlmFlags::NO_EXPANSION
                    | LdlmFlags::AST_DISCARD_DATA),
            ast_sent: false,
            has_company: false,
            reply_pending,
            exp_pos: 0,
        };
        let idx = self.table.insert(lock).ok_or(Refused::TooMany)?;
        let alone = match self.resources.entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(v) => {
                v.insert(Resource::new(ty));
                true
            }
        };
        Ok((idx, alone))
    }

    /// Forgets a lock that is on no queue.
    fn discard(&mut self, idx: u32) {
        let lock = self.table.remove(idx);
        self.drop_resource_if_empty(lock.key());
    }

    fn drop_resource_if_empty(&mut self, res: Key) {
        if let Entry::Occupied(e) = self.resources.entry(res)
            && e.get().is_empty()
        {
            e.remove();
        }
    }

    /// Makes the lock granted, with all it can get.
    fn grant(&mut self, idx: u32) {
        let policy = match self.table.lock(idx).ty {
            LdlmType::EXTENT => self.grown(idx),
            LdlmType::IBITS => ibits::with_try_bits(self.table.lock(idx).policy),
            _ => self.table.lock(idx).policy,
        };
        let lock = self.table.lock_mut(idx);
        lock.granted = true;
        lock.policy = policy;
        let (res, mode) = (lock.key(), lock.mode);
        self.resources
            .get_mut(&res)
            .expect("lock has a resource")
            .add_granted(idx, mode);
        self.count_alone(idx);
    }

    fn grown(&self, idx: u32) -> Policy {
        let lock = self.table.lock(idx);
        let Policy::Extent {
            start,
            end,
            gid,
            blocks,
        } = lock.policy
        else {
            return lock.policy;
        };
        let on = |Span { start, end, blocks }: Span| Policy::Extent {
            start,
            end,
            gid,
            blocks,
        };
        if lock.export.is_none() || (start, end) == (0, extent::EOF) {
            return on(Span::all(start, end));
        }
        let (start, end) = if lock.flags.contains(LdlmFlags::NO_EXPANSION) {
            extent::aligned(lock.mode, (start, end))
        } else {
            let r = &self.resources[&lock.key()];
            let other = |i: &u32| {
                let l = self.table.lock(*i);
                extent::Other {
                    mode: l.mode,
                    span: l.span(),
                    req: l.req,
                    export: l.export,
                }
            };
            let granted = r.granted.iter().map(other);
            let waiting = r.waiting.iter().filter(|i| **i != idx).map(other);
            let others = granted.clone().chain(waiting.clone());
            let writes = |o: extent::Other| writes_for_another(o.mode, o.export, lock.export);
            if let Some(blocks) = blocks
                && (lock.has_company || others.clone().any(writes))
                && let Some(span) = extent::interleaved(lock.mode, (start, end), blocks, others)
            {
                return on(span);
            }
            // others write before it, and would ask for that at once
            let from = if lock.has_company { start } else { 0 };
            extent::grow(lock.mode, (start, end), from, lock.export, granted, waiting)
        };
        on(Span::all(start, end))
    }

    /// Leaves out the optional bits that others hold or wait for.
    fn trim_try_bits(&mut self, idx: u32) {
        if ibits::try_bits(self.table.lock(idx)) == 0 {
            return;
        }
        let want = self.table.lock(idx);
        let r = &self.resources[&want.key()];
        let others = r
            .granted
            .iter()
            .chain(&r.waiting)
            .filter(|i| **i != idx)
            .map(|i| self.table.lock(*i));
        let policy = ibits::trimmed(want, others);
        self.table.lock_mut(idx).policy = policy;
    }

    /// Takes a lock off its queue and out of the table, without serving anybody. The resource stays.
    fn unlink(&mut self, idx: u32) -> Lock {
        let lock = self.table.remove(idx);
        let r = self
            .resources
            .get_mut(&lock.key())
            .expect("lock has a resource");
        if lock.granted {
            r.drop_granted(idx, lock.mode);
        } else {
            r.waiting.retain(|i| *i != idx);
            if let (LdlmType::FLOCK, Some(owner)) = (lock.ty, lock.flock_owner()) {
                self.flock_waiters.remove(owner, idx);
            }
        }
        self.uncount_alone(&lock);
        lock
    }

    /// Cancels a lock, granted or waiting, and serves who waited for it. `exp`: only when it is that export's. False:
    /// there is no such lock.
    pub fn cancel(&mut self, cookie: u64, exp: Option<ExportId>, out: &mut Actions) -> bool {
        match self.table.find(cookie) {
            Some(idx) if exp.is_none() || self.table.lock(idx).export == exp => {
                let key = self.unlink(idx).key();
                let waited_for = self
                    .resources
                    .get(&key)
                    .is_some_and(|r| !r.waiting.is_empty());
                if waited_for {
                    self.reprocess(key, out);
                } else {
                    self.drop_resource_if_empty(key);
                }
                true
            }
            _ => false,
        }
    }

    /// Drops all locks of an export; returns how many.
    pub fn export_gone(&mut self, exp: ExportId, out: &mut Actions) -> usize {
        let all = self.table.of_export(exp).to_vec();
        let mut touched: Vec<Key> = Vec::new();
        for idx in &all {
            touched.push(self.unlink(*idx).key());
        }
        touched.dedup();
        for res in touched {
            self.reprocess(res, out);
        }
        all.len()
    }

    /// Leaves a granted inode-bits lock only the bits in `keep` (LDLM_CONVERT); it goes when no bit is left. False: no such
    /// lock.
    pub fn keep_bits(&mut self, cookie: u64, exp: ExportId, keep: u64, out: &mut Actions) -> bool {
        let Some(idx) = self.table.find(cookie) else {
            return false;
        };
        let lock = self.table.lock_mut(idx);
        if lock.export != Some(exp) || !lock.granted || lock.ty != LdlmType::IBITS {
            return false;
        }
        let before = lock.clone();
        lock.policy = ibits::only(lock.policy, keep);
        lock.ast_sent = false;
        let res = lock.key();
        self.uncount_alone(&before);
        self.count_alone(idx);
        let lock = self.table.lock(idx);
        if !ibits::wants_something(lock) {
            self.unlink(idx);
        }
        self.reprocess(res, out);
        true
    }

    /// From now on waiting locks of clients are only collected (replay after a restart): locks that must come first may not
    /// have been replayed yet. Server-side locks, which replayed requests take, are served.
    pub fn begin_replay(&mut self) {
        self.replaying = true;
    }

    /// Puts a replayed lock where it stood, without looking at others. Returns its cookie.
    pub fn replay(&mut self, want: Want, granted: bool) -> Result<u64, Refused> {
        check(&want)?;
        let (idx, _) = self.insert(want, false)?;
        if granted {
            let lock = self.table.lock_mut(idx);
            lock.granted = true;
            let (res, mode) = (lock.key(), lock.mode);
            self.resources
                .get_mut(&res)
                .expect("lock has a resource")
                .add_granted(idx, mode);
            self.count_alone(idx);
        } else {
            self.queue(idx);
            if let Some(owner) = self.table.lock(idx).flock_owner() {
                self.flock_waiters.add(owner, idx);
            }
        }
        Ok(self.table.lock(idx).cookie)
    }

    /// Lock replay is over: serves all queues.
    #[expect(
        clippy::disallowed_methods,
        reason = "the names are sorted before they are used"
    )]
    pub fn end_replay(&mut self, out: &mut Actions) {
        self.replaying = false;
        let mut names: Vec<Key> = self
            .resources
            .iter()
            .filter(|(_, r)| !r.waiting.is_empty())
            .map(|(n, _)| *n)
            .collect();
        names.sort_unstable();
        for res in names {
            self.reprocess(res, out);
        }
    }

    /// Panics when two granted locks conflict, or a resource is empty. For tests and fuzz targets: it looks at everything.
    #[doc(hidden)]
    #[expect(
        clippy::iter_over_hash_type,
        reason = "each resource is checked by itself"
    )]
    pub fn check_invariants(&self) {
        let mut alone = FoldMap::default();
        let found = self.table.iter().filter(|l| l.is_alone());
        found
            .filter_map(|l| l.export)
            .for_each(|exp| *alone.entry(exp).or_default() += 1);
        assert_eq!(self.alone, alone, "clients that have EX locks on UPDATE");
        for (name, r) in &self.resources {
            assert!(!r.is_empty(), "{name:?} is empty and still there");
            for (n, a) in r.granted.iter().enumerate() {
                let a = self.table.lock(*a);
                assert!(a.granted && a.key() == *name);
                for b in r.granted[n + 1..].iter().map(|b| self.table.lock(*b)) {
                    let exempt = |l: &Lock| l.mode == LdlmMode::GROUP || l.ignore.is_some();
                    let beside = a.ty != LdlmType::EXTENT
                        || a.mode.compatible(b.mode)
                        || exempt(a)
                        || exempt(b)
                        || !a.span().touches(&b.span());
                    assert!(
                        (!conflicts(a, b) || !conflicts(b, a)) && beside,
                        "{a:?} and {b:?} are both granted"
                    );
                }
            }
            for w in r.waiting.iter().map(|w| self.table.lock(*w)) {
                assert!(!w.granted && w.key() == *name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
