//! The locks under which the data of a cover for writes is dirty: ranges of its objects, as the servers granted them.
//!
//! They are in [`Dirty`], because what may be dirty and what is locked change together: data is taken and a lock begins to go
//! under one mutex.

use std::ops::Range;

use coral_ldlm::LockRef;
use coral_wire::coral::blocks::Span;
use tokio::time::Instant;

use super::dirty::{Dirty, EVERYTHING, ObjectKey};
use super::extents::Backing;
use crate::lov::HeldLock;

/// A lock on a range of an object.
#[derive(Debug, Clone)]
pub(in crate::llite) struct RangeLock {
    held: HeldLock,
    /// Of the import, from before the lock was asked for.
    generation: u64,
}

impl Backing for RangeLock {
    fn is_void(&self) -> bool {
        self.held.ask(LockRef::is_dead) != Some(false)
    }
}

impl RangeLock {
    fn is_blocked(&self) -> bool {
        self.held.ask(LockRef::is_blocked) != Some(false)
    }
}

/// A lock that was granted: the object by its place, the generation of the import from before it was asked for.
pub(in crate::llite) type Granted = (usize, u64, LockRef);

/// A lock that was asked back: the object by its place, the lock by its cookie.
#[derive(Debug, Clone, Copy)]
pub(in crate::llite) struct Asked {
    /// The object by its place.
    pub place: usize,
    cookie: u64,
}

/// What a lock is on.
fn extent_of(lock: &LockRef) -> Span {
    let span = lock.policy().span();
    span.unwrap_or(Span::all(0, u64::MAX))
}

impl Dirty {
    /// Takes new locks in, once those that are going or void have gone from their places; without new ones, from what is `wanted`. They
    /// stay until [`Dirty::used`]. One that is void by now, or is here already, is left out; who needs it asks again. False: the
    /// cover goes.
    pub async fn adopt(&self, locks: Vec<Granted>, wanted: &[(usize, Range<u64>)]) -> bool {
        let locks: Vec<_> = locks
            .into_iter()
            .map(|(i, generation, l)| (i, generation, extent_of(&l), l))
            .collect();
        // with locks in hand nobody waits for what the servers have not promised to be free
        let given: Vec<(usize, Span)> = locks.iter().map(|(i, _, e, _)| (*i, *e)).collect();
        let wanted = wanted.iter().filter(|_| given.is_empty());
        // not dropped under the mutex
        let mut unused = Vec::new();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut inner = self.inner.lock();
                if inner.closed {
                    break;
                }
                let mut left = given.iter();
                let left = left.any(|(i, extent)| inner.locks[*i].is_left_of(extent));
                let mut wanted = wanted.clone();
                if !left && !wanted.any(|(i, range)| inner.locks[*i].is_left(range)) {
                    for (i, generation, extent, lock) in locks {
                        let cookie = lock.cookie();
                        if lock.is_dead() || inner.locks[i].has(cookie) {
                            unused.push(lock);
                            continue;
                        }
                        let held = HeldLock::new(lock);
                        inner.locks[i].add(cookie, extent, RangeLock { held, generation });
                    }
                    return true;
                }
            }
            changed.await;
        }
        false
    }

    /// Nothing is locked.
    pub fn is_bare(&self) -> bool {
        self.inner.lock().locks.iter().all(|l| l.is_empty())
    }

    /// What was adopted has served who asked for it: those that were asked back meanwhile, to go now.
    pub fn used(&self) -> Vec<Asked> {
        let mut inner = self.inner.lock();
        let mut out = Vec::new();
        for (place, locks) in inner.locks.iter_mut().enumerate() {
            locks.settle();
            let blocked = locks
                .within(&EVERYTHING)
                .filter(|(.., l)| l.is_blocked())
                .map(|(cookie, ..)| cookie);
            let blocked: Vec<u64> = blocked.collect();
            let asked = blocked.into_iter().filter(|cookie| locks.asked(*cookie));
            out.extend(asked.map(|cookie| Asked { place, cookie }));
        }
        out
    }

    /// The lock `cookie` on an object is asked back. `None`: it is none of these, was not used yet, or that was told before.
    pub fn asked(&self, key: ObjectKey, cookie: u64) -> Option<Asked> {
        let mut inner = self.inner.lock();
        let here = |o: &super::Object| (o.osc.index, o.object.oi.res_id()) == key;
        let mut places = (0..self.objects.len()).filter(|i| here(&self.objects[*i]));
        let place = places.find(|place| inner.locks[*place].asked(cookie))?;
        Some(Asked { place, cookie })
    }

    /// The lock is void, or was given back.
    pub fn is_void(&self, asked: &Asked) -> bool {
        let inner = self.inner.lock();
        let mut locks = inner.locks[asked.place].within(&EVERYTHING);
        locks.all(|(cookie, _, l)| cookie != asked.cookie || l.is_void())
    }

    /// Writes taken under the lock so far, and when the last was; `None`: it is gone.
    pub fn puts(&self, asked: &Asked) -> Option<(u64, Option<Instant>)> {
        self.inner.lock().locks[asked.place].puts(asked.cookie)
    }

    /// Nothing new goes under the lock any more: what it is on.
    pub fn going(&self, asked: &Asked) -> Option<Span> {
        self.inner.lock().locks[asked.place].going(asked.cookie)
    }

    /// What lay under it is at the OST, or dropped: the lock goes.
    pub fn gone(&self, lock: &Asked) {
        let mut inner = self.inner.lock();
        let lock = inner.locks[lock.place].remove(lock.cookie);
        // others may move the end now
        inner.forget_end();
        drop(inner);
        if let Some(l) = lock {
            l.held.give_back();
        }
        self.changed.notify_waiters();
    }

    /// What lay in object `place` is at the OST, or dropped: all locks on it go.
    pub fn all_gone(&self, place: usize) {
        let locks = self.inner.lock().locks[place].take();
        locks.iter().for_each(|l| l.held.give_back());
        self.changed.notify_waiters();
    }

    /// What is to be locked of object `place` so that `range` is.
    pub fn gap(&self, place: usize, range: &Range<u64>) -> Option<Range<u64>> {
        self.inner.lock().locks[place].gap(range)
    }

    /// A lock of object `place` is on blocks, of which one begins at `at`.
    pub fn has_block_at(&self, place: usize, at: u64) -> bool {
        self.inner.lock().locks[place].has_block_at(at)
    }

    /// A lock is going to be asked for on `range` of object `place`: what it lies over goes for it.
    pub fn replace(&self, place: usize, range: &Range<u64>) {
        self.inner.lock().locks[place].replace(range);
    }

    /// The lock goes for another of this client: nobody else wants it.
    pub fn is_replaced(&self, lock: &Asked) -> bool {
        self.inner.lock().locks[lock.place].is_replaced(lock.cookie)
    }

    /// Object `place` has as many locks as it may have.
    pub fn is_full(&self, place: usize) -> bool {
        self.inner.lock().locks[place].is_full()
    }

    /// Every byte of every object is locked, and no lock is void: the servers know the end of the file, but for what is dirty here.
    pub fn is_whole(&self) -> bool {
        self.inner.lock().is_whole()
    }

    /// The same, and how often a lock had gone by then.
    pub fn whole_since(&self) -> Option<u64> {
        let inner = self.inner.lock();
        inner.is_whole().then_some(inner.losses)
    }

    /// The locks on all of these ranges of objects; `None`: some byte is not locked, or its lock is void.
    pub fn locks_on(&self, ranges: &[(usize, Range<u64>)]) -> Option<Vec<(usize, HeldLock)>> {
        let inner = self.inner.lock();
        let mut out = Vec::new();
        for (place, range) in ranges {
            let locks = &inner.locks[*place];
            if !locks.cover(range) {
                return None;
            }
            let held = locks.within(range).map(|(.., l)| (*place, l.held.clone()));
            out.extend(held);
        }
        Some(out)
    }

    /// The locks that what is dirty in `range` of object `place` is under, also those that go: one of them, pinned, and the generation
    /// of the import by which it may be sent. `None`: one is void.
    pub fn backed_by(&self, place: usize, range: &Range<u64>) -> Option<(LockRef, u64)> {
        let inner = self.inner.lock();
        let mut found: Option<(LockRef, u64)> = None;
        for (.., l) in inner.locks[place].within(range) {
            let lock = l.held.pin().filter(|l| !l.is_dead())?;
            let generation = found
                .as_ref()
                .map_or(l.generation, |f| f.1.min(l.generation));
            found = Some((lock, generation));
        }
        found
    }

    /// `range` of object `place`, cut where locks begin and end: what of it may be sent (true), and what is lost with its lock.
    pub fn by_life(&self, place: usize, range: &Range<u64>) -> Vec<(Range<u64>, bool)> {
        self.inner.lock().locks[place].by_life(range)
    }

    /// Drops what is dirty of object `place` in `range` under void locks: where that was, and what room it had. `lost` notes that there
    /// is some before it is gone: who finds nothing dirty, and nothing lost, takes all for stored. It must not ask anything of this.
    pub fn discard_void(
        &self,
        place: usize,
        range: &Range<u64>,
        lost: impl FnOnce(),
    ) -> Vec<(Range<u64>, u64)> {
        let mut inner = self.inner.lock();
        let void = inner.locks[place].within(range);
        let void: Vec<_> = void
            .filter(|(.., l)| l.is_void())
            .map(|(_, extent, _)| *extent)
            .collect();
        let map = &mut inner.maps[place];
        let dirty = void
            .iter()
            .map(|extent| map.dirty_in(extent).collect::<Vec<_>>());
        let dirty: Vec<_> = dirty.filter(|parts| !parts.is_empty()).collect();
        if !dirty.is_empty() {
            lost();
        }
        let discard = |parts: Vec<Range<u64>>| {
            let cost = parts.iter().map(|part| map.discard(part)).sum();
            let ends = parts.first().zip(parts.last());
            (ends.map_or(0..0, |(a, b)| a.start..b.end), cost)
        };
        dirty.into_iter().map(discard).collect()
    }
}

impl super::dirty::Inner {
    /// See [`Dirty::is_whole`].
    pub(super) fn is_whole(&self) -> bool {
        self.locks.iter().all(|locks| locks.cover(&EVERYTHING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llite::covers::extents::ExtentLocks;
    use crate::llite::covers::map::DirtyMap;

    const PAGE: u64 = crate::grant::PAGE_BYTES;

    /// Two dirty pages of one object, the first of them under a lock that was given back.
    fn half_void() -> Dirty {
        let mut map = DirtyMap::default();
        map.insert(0, bytes::Bytes::from(vec![1; 2 * PAGE as usize]).into());
        let mut locks = ExtentLocks::default();
        let void = RangeLock {
            held: HeldLock::default(),
            generation: 0,
        };
        locks.add(1, Span::all(0, PAGE - 1), void);
        let all = Dirty::new(Vec::new());
        {
            let mut inner = all.inner.lock();
            (inner.maps, inner.locks) = (vec![map], vec![locks]);
        }
        all
    }

    #[test]
    fn a_loss_is_noted_while_nobody_can_see_that_the_data_is_gone() {
        let all = half_void();
        let mut noted = 0;
        let note = |noted: &mut u32| {
            assert!(all.inner.try_lock().is_none(), "others see it gone");
            *noted += 1;
        };
        let gone = all.discard_void(0, &EVERYTHING, || note(&mut noted));
        let ranges: Vec<_> = gone.into_iter().map(|(range, _)| range).collect();
        assert_eq!(noted, 1);
        assert!(ranges.iter().eq([&(0..PAGE)]), "{ranges:?}");
        let page = |n: u64| Span::all(n * PAGE, (n + 1) * PAGE - 1);
        assert!(all.is_clean_at(0, &page(0)) && !all.is_clean_at(0, &page(1)));
        // what was noted is not noted again
        assert!(
            all.discard_void(0, &EVERYTHING, || note(&mut noted))
                .is_empty()
        );
        assert_eq!(noted, 1);
    }
}
