//! The locks a client holds, as a plain state machine: no I/O, no mutex; time is an argument.
//!
//! A lock is pending (its request is under way or it waits at the server), granted, or dead (evicted, kept only while
//! somebody pins it). A granted lock that nobody pins is idle: on the LRU. A lock the server wants back is blocked: it is
//! matched no more and is cancelled when its last pin goes. Flocks are never idle and never matched.
//!
//! Lustre: `struct ldlm_lock` on the client, `ldlm_lock_decref_internal`, `ldlm_lock_match` in `ldlm_lock.c`;
//! `ldlm_prepare_lru_list` in `ldlm_request.c`.

mod flocks;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmType, LockDesc, Policy, ResId};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::core::{FoldMap, LockInfo};
use crate::cover::covers;
use crate::slab::Slab;

const NONE: u32 = u32::MAX;

/// A lock of ours.
#[derive(Debug)]
pub(super) struct ClientLock {
    pub cookie: u64,
    pub remote: u64,
    pub res: ResId,
    pub ty: LdlmType,
    pub mode: LdlmMode,
    pub policy: Policy,
    pub flags: LdlmFlags,
    pub granted: bool,
    pub pins: u32,
    /// The server wants it back.
    pub blocked: bool,
    /// The server does not want what is cached under it.
    pub discard: bool,
    /// Being given back: neither matched nor pinned again.
    pub cancelling: bool,
    /// The server knows nothing of it any more.
    pub dead: bool,
    /// Why it will never be granted.
    pub refused: Option<Errno>,
    /// The server's cookie by which it was asked back before it was granted here; the server waits for its cancel.
    asked_back: u64,
    pub lvb: Bytes,
    pub waiter: Option<oneshot::Sender<()>>,
    idle_since: Option<Instant>,
    prev: u32,
    next: u32,
}

impl ClientLock {
    pub fn info(&self) -> LockInfo {
        LockInfo {
            cookie: self.cookie,
            remote_cookie: self.remote,
            export: None,
            res: self.res,
            ty: self.ty,
            req_mode: self.mode,
            granted_mode: if self.granted {
                self.mode
            } else {
                LdlmMode::NONE
            },
            policy: self.policy,
            flags: self.flags,
        }
    }

    fn usable(&self) -> bool {
        self.granted && !self.blocked && !self.cancelling && !self.dead
    }
}

/// A lock to be given back: its hook is to be called, then it is to be cancelled at the server.
#[derive(Debug, Clone)]
pub(super) struct Doomed {
    pub info: LockInfo,
    pub discard: bool,
}

#[derive(Debug)]
pub(super) struct LockTable {
    slab: Slab<ClientLock>,
    /// Granted locks by resource.
    by_res: FoldMap<(ResId, LdlmType), SmallVec<[u32; 2]>>,
    head: u32,
    tail: u32,
    idle: usize,
    granted: usize,
}

impl LockTable {
    pub fn new(base: u64) -> LockTable {
        LockTable {
            slab: Slab::new(base),
            by_res: FoldMap::default(),
            head: NONE,
            tail: NONE,
            idle: 0,
            granted: 0,
        }
    }

    /// Granted locks, and idle ones among them.
    pub fn counts(&self) -> (usize, usize) {
        (self.granted, self.idle)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ClientLock> {
        self.slab.iter()
    }

    pub fn get(&self, cookie: u64) -> Option<&ClientLock> {
        self.slab.find(cookie).map(|i| self.slab.at(i))
    }

    pub fn get_mut(&mut self, cookie: u64) -> Option<&mut ClientLock> {
        self.slab.find(cookie).map(|i| self.slab.at_mut(i))
    }

    /// Registers a lock that is about to be asked for, pinned once; its cookie.
    pub fn prepare(
        &mut self,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        flags: LdlmFlags,
    ) -> Option<u64> {
        let idx = self.slab.insert_with(|cookie| ClientLock {
            cookie,
            remote: 0,
            res,
            ty,
            mode,
            policy,
            flags,
            granted: false,
            pins: 1,
            blocked: false,
            discard: false,
            cancelling: false,
            dead: false,
            refused: None,
            asked_back: 0,
            lvb: Bytes::new(),
            waiter: None,
            idle_since: None,
            prev: NONE,
            next: NONE,
        })?;
        Some(self.slab.at(idx).cookie)
    }

    /// The lock is granted as `desc` says, by the reply or by the completion callback, whichever comes first. False: it was
    /// granted before.
    pub fn grant(&mut self, cookie: u64, desc: &LockDesc, remote: u64) -> bool {
        let Some(idx) = self.slab.find(cookie) else {
            return false;
        };
        let h = self.slab.at_mut(idx);
        if h.dead || h.refused.is_some() {
            return false;
        }
        // a request that was sent again may have been given another lock than at first
        if remote != 0 {
            h.remote = remote;
        }
        if h.granted {
            return false;
        }
        h.granted = true;
        if desc.ty() == h.ty {
            h.res = desc.res();
            h.policy = desc.policy();
            h.mode = if desc.granted_mode != LdlmMode::NONE {
                desc.granted_mode
            } else {
                desc.req_mode
            };
        }
        if let Policy::Ibits { try_bits, .. } = &mut h.policy {
            try_bits.0 = 0;
        }
        let key = (h.res, h.ty);
        self.by_res.entry(key).or_default().push(idx);
        self.granted += 1;
        true
    }

    /// Pins a usable granted lock that covers `need` in a mode that allows what `mode` does.
    pub fn pin_match(
        &mut self,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        need: &Policy,
    ) -> Option<u64> {
        let list = self.by_res.get(&(res, ty))?;
        let fits = |h: &ClientLock| {
            h.usable()
                && (h.mode == mode || h.mode.covers(mode) && mode != LdlmMode::GROUP)
                && covers(&h.policy, need)
        };
        let idx = list.iter().copied().find(|i| fits(self.slab.at(*i)))?;
        self.pin(idx);
        Some(self.slab.at(idx).cookie)
    }

    /// One more pin on a lock that is pinned already.
    pub fn pin_again(&mut self, cookie: u64) {
        let idx = self
            .slab
            .find(cookie)
            .expect("a pinned lock is in the table");
        self.slab.at_mut(idx).pins += 1;
    }

    fn pin(&mut self, idx: u32) {
        self.leave_lru(idx);
        self.slab.at_mut(idx).pins += 1;
    }

    /// One pin less. When it was the last and the lock is wanted back, it is to be cancelled now.
    pub fn unpin(&mut self, cookie: u64, now: Instant) -> Option<Doomed> {
        let idx = self.slab.find(cookie)?;
        let h = self.slab.at_mut(idx);
        h.pins -= 1;
        if h.pins > 0 || h.cancelling {
            return None;
        }
        if h.dead || !h.granted {
            self.slab.remove(idx);
            return None;
        }
        if h.blocked && h.ty != LdlmType::FLOCK {
            return Some(self.doom(idx));
        }
        self.enter_lru(idx, now);
        None
    }

    /// Forgets a lock whose request failed or is withdrawn, unless others have it pinned. The server's cookie if the server may
    /// wait for its cancel, else 0.
    pub fn forget(&mut self, cookie: u64) -> u64 {
        let Some(idx) = self.slab.find(cookie) else {
            return 0;
        };
        let h = self.slab.at_mut(idx);
        if h.pins > 1 {
            h.pins -= 1;
            h.blocked = true;
            return 0;
        }
        let h = self.take(idx);
        match h.remote {
            _ if h.dead || h.refused.is_some() => 0,
            0 => h.asked_back,
            remote => remote,
        }
    }

    /// The asker of a lock goes away before it has it. True: the lock is granted already and is to be let go as any other, with
    /// its last pin; nobody else will match it. Flocks are their owner's alone and are withdrawn.
    pub fn abandon(&mut self, cookie: u64) -> bool {
        match self.get_mut(cookie) {
            Some(h) if h.granted && !h.dead && h.ty != LdlmType::FLOCK => {
                h.blocked = true;
                true
            }
            _ => false,
        }
    }

    /// The server wants the lock back, which it calls `remote`. `Err`: we have no such lock. `Some`: nobody uses it, it is to be
    /// cancelled now.
    pub fn block(&mut self, cookie: u64, remote: u64, discard: bool) -> Result<Option<Doomed>, ()> {
        let Some(idx) = self.slab.find(cookie) else {
            return Err(());
        };
        let h = self.slab.at_mut(idx);
        if h.dead {
            return Err(());
        }
        h.discard |= discard;
        h.blocked = true;
        h.asked_back = remote;
        let now = h.granted && h.pins == 0 && !h.cancelling;
        Ok(now.then(|| self.doom(idx)))
    }

    /// Marks a lock as being given back.
    fn doom(&mut self, idx: u32) -> Doomed {
        self.leave_lru(idx);
        let h = self.slab.at_mut(idx);
        h.blocked = true;
        h.cancelling = true;
        Doomed {
            info: h.info(),
            discard: h.discard,
        }
    }

    /// The lock is given back: takes it out. Its server cookie, 0 when the server knows nothing of it.
    pub fn cancelled(&mut self, cookie: u64) -> u64 {
        match self.slab.find(cookie) {
            Some(idx) => {
                let dead = self.slab.at(idx).dead;
                let h = self.take(idx);
                if dead { 0 } else { h.remote }
            }
            None => 0,
        }
    }

    fn take(&mut self, idx: u32) -> ClientLock {
        self.leave_lru(idx);
        self.unlist(idx);
        self.slab.remove(idx)
    }

    /// Takes a granted lock off its resource.
    fn unlist(&mut self, idx: u32) {
        let h = self.slab.at_mut(idx);
        if !h.granted {
            return;
        }
        h.granted = false;
        self.granted -= 1;
        let key = (h.res, h.ty);
        if let Some(list) = self.by_res.get_mut(&key) {
            list.retain(|i| *i != idx);
            if list.is_empty() {
                self.by_res.remove(&key);
            }
        }
    }

    /// Idle locks over `keep` or idle since before `limit`, oldest first, at most `max`: the LRU would give these back.
    pub fn aged(&self, keep: usize, limit: Option<Instant>, max: usize) -> Vec<LockInfo> {
        let mut out = Vec::new();
        let mut at = self.head;
        while at != NONE && out.len() < max {
            let h = self.slab.at(at);
            let old = matches!((limit, h.idle_since), (Some(l), Some(s)) if s < l);
            if self.idle - out.len() <= keep && !old {
                break;
            }
            out.push(h.info());
            at = h.next;
        }
        out
    }

    /// True when the oldest idle lock went idle before `limit`.
    pub fn has_older(&self, limit: Option<Instant>) -> bool {
        self.head != NONE
            && matches!((limit, self.slab.at(self.head).idle_since), (Some(l), Some(s)) if s < l)
    }

    /// Those of these locks that are still idle are to go.
    pub fn doom_if_idle(&mut self, locks: &[LockInfo]) -> Vec<Doomed> {
        let idle = |i: &u32| self.slab.at(*i).idle_since.is_some();
        let idx: Vec<u32> = locks
            .iter()
            .filter_map(|l| self.slab.find(l.cookie))
            .filter(idle)
            .collect();
        idx.into_iter().map(|i| self.doom(i)).collect()
    }

    /// The idle locks of a resource are to go.
    pub fn doom_idle(&mut self, res: ResId, ty: LdlmType) -> Vec<Doomed> {
        let Some(list) = self.by_res.get(&(res, ty)) else {
            return Vec::new();
        };
        let hit = |h: &ClientLock| !h.cancelling && h.pins == 0 && !h.dead;
        let idx: Vec<u32> = list
            .iter()
            .copied()
            .filter(|i| hit(self.slab.at(*i)))
            .collect();
        idx.into_iter().map(|i| self.doom(i)).collect()
    }

    /// The granted locks of a resource that nobody wants back: {our cookie, the server's}.
    pub fn usable_on(&self, res: ResId, ty: LdlmType) -> Vec<(u64, u64)> {
        let list = self.by_res.get(&(res, ty)).into_iter().flatten();
        let locks = list.map(|i| self.slab.at(*i)).filter(|h| h.usable());
        locks.map(|h| (h.cookie, h.remote)).collect()
    }

    /// The server has given another lock for this one, of which it knows no more.
    pub fn replaced(&mut self, cookie: u64) {
        let Some(idx) = self.slab.find(cookie) else {
            return;
        };
        let h = self.slab.at_mut(idx);
        h.blocked = true;
        if h.pins == 0 && !h.cancelling {
            self.take(idx);
        }
    }

    /// Every granted lock is to go: idle ones now, others with their last pin.
    pub fn doom_all(&mut self) -> Vec<Doomed> {
        let all: Vec<u32> = self
            .slab
            .indexes()
            .filter(|i| self.slab.at(*i).granted && !self.slab.at(*i).cancelling)
            .collect();
        let mut out = Vec::new();
        for i in all {
            self.slab.at_mut(i).blocked = true;
            if self.slab.at(i).pins == 0 {
                out.push(self.doom(i));
            }
        }
        out
    }

    /// Eviction: every lock is dead. Those that were granted (for their hooks), and who waits for one.
    pub fn kill_all(&mut self) -> (Vec<LockInfo>, Vec<oneshot::Sender<()>>) {
        let (mut infos, mut waiters) = (Vec::new(), Vec::new());
        let all: Vec<u32> = self.slab.indexes().collect();
        for idx in all {
            let h = self.slab.at_mut(idx);
            if h.dead {
                continue;
            }
            if h.granted {
                infos.push(h.info());
            }
            (h.dead, h.blocked) = (true, true);
            waiters.extend(h.waiter.take());
            let (pins, cancelling) = (h.pins, h.cancelling);
            self.leave_lru(idx);
            self.unlist(idx);
            if pins == 0 && !cancelling {
                self.slab.remove(idx);
            }
        }
        (infos, waiters)
    }

    fn enter_lru(&mut self, idx: u32, now: Instant) {
        let tail = self.tail;
        let h = self.slab.at_mut(idx);
        if h.ty == LdlmType::FLOCK || h.idle_since.is_some() {
            return;
        }
        (h.idle_since, h.prev, h.next) = (Some(now), tail, NONE);
        if tail == NONE {
            self.head = idx;
        } else {
            self.slab.at_mut(tail).next = idx;
        }
        self.tail = idx;
        self.idle += 1;
    }

    fn leave_lru(&mut self, idx: u32) {
        let h = self.slab.at_mut(idx);
        if h.idle_since.take().is_none() {
            return;
        }
        let (prev, next) = (h.prev, h.next);
        if prev == NONE {
            self.head = next;
        } else {
            self.slab.at_mut(prev).next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            self.slab.at_mut(next).prev = prev;
        }
        self.idle -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::ldlm::Ibits;

    const RES: ResId = ResId([1, 2, 0, 0]);
    const PR: LdlmMode = LdlmMode::PR;
    const PW: LdlmMode = LdlmMode::PW;

    fn ibits(bits: u64) -> Policy {
        Policy::ibits(Ibits(bits))
    }

    fn add(l: &mut LockTable, mode: LdlmMode, ty: LdlmType, policy: Policy) -> u64 {
        let c = l.prepare(RES, ty, mode, policy, LdlmFlags(0)).unwrap();
        assert!(l.grant(c, &LockDesc::new(RES, ty, mode, &policy), c + 1));
        c
    }

    fn idle(l: &mut LockTable, mode: LdlmMode, policy: Policy) -> u64 {
        let c = add(l, mode, LdlmType::IBITS, policy);
        assert!(l.unpin(c, Instant::now()).is_none());
        c
    }

    #[tokio::test]
    async fn a_lock_is_matched_by_what_it_covers() {
        let mut l = LockTable::new(1);
        let c = idle(&mut l, PR, ibits(3));
        assert_eq!(l.pin_match(RES, LdlmType::IBITS, PR, &ibits(1)), Some(c));
        assert_eq!(
            l.pin_match(RES, LdlmType::IBITS, LdlmMode::CR, &ibits(2)),
            Some(c)
        );
        assert_eq!(l.pin_match(RES, LdlmType::IBITS, PW, &ibits(1)), None);
        assert_eq!(l.pin_match(RES, LdlmType::IBITS, PR, &ibits(4)), None);
        assert_eq!(l.counts(), (1, 0));
    }

    #[tokio::test]
    async fn a_blocked_lock_goes_with_its_last_pin() {
        let mut l = LockTable::new(1);
        let c = add(&mut l, PR, LdlmType::IBITS, ibits(3));
        l.pin_again(c);
        assert!(l.block(c, c + 1, true).unwrap().is_none());
        assert_eq!(
            l.pin_match(RES, LdlmType::IBITS, PR, &ibits(1)),
            None,
            "blocked locks are not matched"
        );
        assert!(l.unpin(c, Instant::now()).is_none());
        let d = l.unpin(c, Instant::now()).unwrap();
        assert!(d.discard && d.info.cookie == c);
        assert!(
            l.block(c, c + 1, false).unwrap().is_none(),
            "asked again while being given back"
        );
        assert_eq!(l.cancelled(c), c + 1);
        assert!(l.block(c, c + 1, false).is_err());
        assert_eq!(l.counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn lru_gives_the_oldest_back() {
        let mut l = LockTable::new(1);
        let c: Vec<u64> = (0..4).map(|i| idle(&mut l, PR, ibits(1 << i))).collect();
        assert!(l.pin_match(RES, LdlmType::IBITS, PR, &ibits(1)).is_some());
        assert!(l.unpin(c[0], Instant::now()).is_none());
        let old = l.aged(2, None, 10);
        assert_eq!(
            old.iter().map(|d| d.cookie).collect::<Vec<_>>(),
            [c[1], c[2]],
            "the first was used again"
        );
        assert!(l.pin_match(RES, LdlmType::IBITS, PR, &ibits(2)).is_some());
        let gone: Vec<u64> = l.doom_if_idle(&old).iter().map(|d| d.info.cookie).collect();
        assert_eq!(gone, [c[2]], "one is in use again");
        assert_eq!(l.counts(), (4, 2), "still there until its cancel is sent");
        tokio::time::advance(std::time::Duration::from_secs(10)).await;
        let limit = Instant::now() - std::time::Duration::from_secs(5);
        assert!(l.has_older(Some(limit)));
        assert_eq!(
            l.aged(100, Some(limit), 10).len(),
            2,
            "too old, whatever their number"
        );
    }

    #[tokio::test]
    async fn the_grant_may_come_twice_in_any_order() {
        let mut l = LockTable::new(1);
        let c = l
            .prepare(RES, LdlmType::IBITS, PR, ibits(1), LdlmFlags(0))
            .unwrap();
        let other = ResId([9, 9, 0, 0]);
        assert!(l.grant(
            c,
            &LockDesc::new(other, LdlmType::IBITS, LdlmMode::CR, &ibits(3)),
            70
        ));
        assert!(!l.grant(c, &LockDesc::new(RES, LdlmType::IBITS, PR, &ibits(1)), 70));
        let h = l.get(c).unwrap();
        assert_eq!(
            (h.res, h.mode, h.policy, h.remote),
            (other, LdlmMode::CR, ibits(3), 70)
        );
    }

    /// The completion callback was quicker than the asker's patience, and another task than both.
    #[tokio::test]
    async fn a_lock_in_use_outlives_its_asker() {
        let mut l = LockTable::new(1);
        let c = add(&mut l, PR, LdlmType::IBITS, ibits(1));
        assert_eq!(l.pin_match(RES, LdlmType::IBITS, PR, &ibits(1)), Some(c));
        assert!(l.abandon(c));
        assert!(
            l.unpin(c, Instant::now()).is_none(),
            "the other task uses it"
        );
        assert!(l.get(c).is_some_and(|h| h.granted));
        assert_eq!(l.pin_match(RES, LdlmType::IBITS, PR, &ibits(1)), None);
        assert_eq!(l.unpin(c, Instant::now()).unwrap().info.cookie, c);

        let c = add(&mut l, PR, LdlmType::IBITS, ibits(2));
        l.pin_again(c);
        assert_eq!(l.forget(c), 0);
        assert_eq!(l.unpin(c, Instant::now()).unwrap().info.cookie, c);
        let waiting = l
            .prepare(RES, LdlmType::IBITS, PR, ibits(4), LdlmFlags(0))
            .unwrap();
        assert!(!l.abandon(waiting));
        assert_eq!(
            l.forget(waiting),
            0,
            "the server keeps it or does not: it asks"
        );
        let asked_back = l
            .prepare(RES, LdlmType::IBITS, PR, ibits(4), LdlmFlags(0))
            .unwrap();
        assert!(l.block(asked_back, 70, false).unwrap().is_none());
        assert_eq!(l.forget(asked_back), 70, "the server waits for its cancel");
        let flock = add(
            &mut l,
            PR,
            LdlmType::FLOCK,
            Policy::Flock {
                start: 0,
                end: 9,
                owner: 1,
                pid: 1,
            },
        );
        assert!(!l.abandon(flock));
    }

    #[tokio::test]
    async fn idle_locks_of_a_resource_can_go() {
        let mut l = LockTable::new(1);
        let a = idle(&mut l, PR, ibits(1));
        let _pinned = add(&mut l, PR, LdlmType::IBITS, ibits(1));
        let d = l.doom_idle(RES, LdlmType::IBITS);
        assert_eq!(d.iter().map(|d| d.info.cookie).collect::<Vec<_>>(), [a]);
    }

    #[tokio::test]
    async fn eviction_kills_all_and_pins_keep_the_shell() {
        let mut l = LockTable::new(1);
        let a = idle(&mut l, PR, ibits(1));
        let b = add(&mut l, PR, LdlmType::IBITS, ibits(2));
        let w = l
            .prepare(RES, LdlmType::IBITS, PR, ibits(4), LdlmFlags(0))
            .unwrap();
        let (tx, mut rx) = oneshot::channel();
        l.get_mut(w).unwrap().waiter = Some(tx);
        let (infos, waiters) = l.kill_all();
        assert_eq!((infos.len(), waiters.len()), (2, 1));
        drop(waiters);
        assert!(rx.try_recv().is_err());
        assert!(l.get(a).is_none() && l.get(b).unwrap().dead && l.get(w).unwrap().dead);
        assert!(!l.grant(w, &LockDesc::new(RES, LdlmType::IBITS, PR, &ibits(4)), 5));
        assert!(l.unpin(b, Instant::now()).is_none() && l.get(b).is_none());
        assert_eq!(l.counts(), (0, 0));
    }

    #[tokio::test]
    async fn flocks_merge_as_on_the_server() {
        let mut l = LockTable::new(1);
        let lock = |start, end| Policy::Flock {
            start,
            end,
            owner: 5,
            pid: 1,
        };
        let take = |l: &mut LockTable, mode, start, end| {
            let c = add(l, mode, LdlmType::FLOCK, lock(start, end));
            l.apply_flock(c, mode);
            l.unpin(c, Instant::now());
            c
        };
        let a = take(&mut l, PW, 0, 99);
        let n = take(&mut l, LdlmMode::NL, 40, 59);
        assert!(l.get(n).is_none());
        assert_eq!(l.flock_pieces(RES, 5, PW), [(0, 39), (60, 99)]);
        let m = take(&mut l, PW, 40, 59);
        assert!(l.get(m).is_none(), "merged");
        assert_eq!(l.flock_pieces(RES, 5, PW), [(0, 99)]);
        assert_eq!(l.counts(), (1, 0));
        let _ = a;
    }
}
