//! An open object file, and the bounded cache of them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::ahead::Ahead;
use super::attr::Record;
use crate::{ObjectId, OsdError};

/// An open object. At most one exists per object at any time.
pub(super) struct Handle {
    pub(super) id: ObjectId,
    pub(super) file: OwnedFd,
    /// The attribute record as stored; held while it changes.
    pub(super) record: Mutex<Record>,
    /// Created by us and its directory not synced since.
    pub(super) dir_dirty: AtomicBool,
    /// Changed since the last sync, and noted as such.
    pub(super) dirty: AtomicBool,
    /// Held while it is synced: who comes meanwhile must not take it for synced already.
    pub(super) syncing: Mutex<()>,
    /// What is read ahead of it.
    pub(super) ahead: Ahead,
    used: AtomicBool,
}

impl Handle {
    /// `dir_dirty`: its name may not be on disk yet.
    pub(super) fn new(id: ObjectId, file: OwnedFd, record: Record, dir_dirty: bool) -> Self {
        Handle {
            id,
            file,
            record: Mutex::new(record),
            dir_dirty: AtomicBool::new(dir_dirty),
            dirty: AtomicBool::new(false),
            syncing: Mutex::new(()),
            ahead: Ahead::default(),
            used: AtomicBool::new(true),
        }
    }
}

/// Shards of the cache, to keep lookups of different objects apart.
const SHARDS: usize = 8;

/// Open objects by id. Opening and removing happen under the shard's lock, which is what keeps a
/// handle the only one of its object. A handle in use is never evicted, so the bound may be
/// exceeded by the calls under way.
pub(super) struct HandleCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_max: usize,
}

/// Attribute records that a shard keeps of objects which it has closed.
const RECORDS_MAX: usize = 1024;

#[derive(Default)]
struct Shard {
    open: HashMap<ObjectId, Arc<Handle>>,
    /// Second-chance order; holds ids that may be gone already.
    order: VecDeque<ObjectId>,
    /// Of objects that are not open; nobody changes them before they are opened, from here.
    records: HashMap<ObjectId, Record>,
    /// The oldest first; holds ids that may be gone already.
    records_order: VecDeque<ObjectId>,
}

impl HandleCache {
    pub(super) fn new(open_files: usize) -> Self {
        HandleCache {
            shards: Default::default(),
            shard_max: open_files.div_ceil(SHARDS).max(1),
        }
    }

    fn shard(&self, id: ObjectId) -> &Mutex<Shard> {
        &self.shards[(id.oid ^ id.seq) as usize % SHARDS]
    }

    /// The handle of `id`, opened by `open` when it is not cached.
    pub(super) fn find(
        &self,
        id: ObjectId,
        open: impl FnOnce() -> Result<Option<Handle>, OsdError>,
    ) -> Result<Option<Arc<Handle>>, OsdError> {
        let mut shard = self.shard(id).lock();
        if let Some(h) = shard.open.get(&id) {
            h.used.store(true, Ordering::Relaxed);
            return Ok(Some(h.clone()));
        }
        let Some(handle) = open()? else {
            return Ok(None);
        };
        shard.records.remove(&id);
        let handle = Arc::new(handle);
        shard.evict(self.shard_max - 1);
        shard.order.push_back(id);
        shard.open.insert(id, handle.clone());
        Ok(Some(handle))
    }

    /// Asks about `id` with its attribute record, while nobody can open it. `None`: it is open, or its record is not known.
    pub(super) fn closed<T>(&self, id: ObjectId, ask: impl FnOnce(&Record) -> T) -> Option<T> {
        let shard = self.shard(id).lock();
        shard.records.get(&id).map(ask)
    }

    /// Forgets `id` and lets `remove` take its name away while nobody can open it.
    pub(super) fn remove<T>(&self, id: ObjectId, remove: impl FnOnce() -> T) -> T {
        let mut shard = self.shard(id).lock();
        shard.open.remove(&id);
        shard.records.remove(&id);
        remove()
    }

    /// Closes what nobody uses, as far as shards are not busy, because descriptors ran out.
    pub(super) fn shed(&self) {
        for shard in &self.shards {
            if let Some(mut shard) = shard.try_lock() {
                shard.evict(0);
            }
        }
    }

    /// Every open handle, in no order.
    #[expect(
        clippy::disallowed_methods,
        reason = "a sync of everything marks each of them alike"
    )]
    pub(super) fn all(&self) -> Vec<Arc<Handle>> {
        self.shards
            .iter()
            .flat_map(|s| s.lock().open.values().cloned().collect::<Vec<_>>())
            .collect()
    }
}

impl Shard {
    fn keep(&mut self, id: ObjectId, record: Record) {
        self.records.insert(id, record);
        self.records_order.push_back(id);
        while self.records_order.len() > RECORDS_MAX {
            if let Some(oldest) = self.records_order.pop_front() {
                self.records.remove(&oldest);
            }
        }
    }

    fn evict(&mut self, keep: usize) {
        let mut tries = 2 * self.order.len();
        while self.open.len() > keep && tries > 0 {
            tries -= 1;
            let Some(id) = self.order.pop_front() else {
                return;
            };
            let Some(h) = self.open.get(&id) else {
                continue;
            };
            if h.used.swap(false, Ordering::Relaxed) || Arc::strong_count(h) > 1 {
                self.order.push_back(id);
            } else {
                let record = *h.record.lock();
                self.open.remove(&id);
                self.keep(id, record);
            }
        }
        if self.order.len() > 2 * self.open.len() + 16 {
            let open = &self.open;
            self.order.retain(|id| open.contains_key(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(oid: u64) -> ObjectId {
        ObjectId {
            seq: 0,
            oid: oid * SHARDS as u64,
        }
    }

    fn open(id: ObjectId) -> Result<Option<Handle>, OsdError> {
        let file = std::fs::File::open("/dev/null").unwrap().into();
        Ok(Some(Handle::new(id, file, Record::default(), false)))
    }

    #[test]
    fn is_bounded_but_keeps_what_is_in_use() {
        let cache = HandleCache::new(4 * SHARDS);
        let held = cache.find(id(0), || open(id(0))).unwrap().unwrap();
        for n in 1..100 {
            cache.find(id(n), || open(id(n))).unwrap();
        }
        assert_eq!(cache.all().len(), 4);
        let again = cache.find(id(0), || panic!("was in use")).unwrap().unwrap();
        assert!(Arc::ptr_eq(&held, &again));
        let order = cache.shard(id(0)).lock().order.len();
        assert!(order < 40, "{order} stale ids");
    }

    #[test]
    fn shedding_closes_the_idle_even_from_within_an_open() {
        let cache = HandleCache::new(100 * SHARDS);
        let held = cache.find(id(0), || open(id(0))).unwrap();
        for oid in 1..50 {
            let other = ObjectId { seq: 0, oid };
            cache.find(other, || open(other)).unwrap();
        }
        cache
            .find(id(100), || {
                cache.shed();
                open(id(100))
            })
            .unwrap();
        // The shard of id(100) was busy opening it.
        assert!(
            cache.all().len() <= 2 + 50 / SHARDS + 1,
            "{}",
            cache.all().len()
        );
        drop(held);
        cache.shed();
        assert_eq!(cache.all().len(), 0);
    }

    #[test]
    fn the_record_of_a_closed_object_is_kept_until_it_is_opened_or_removed() {
        let cache = HandleCache::new(1);
        let with = |uid: u32| Record {
            uid,
            ..Record::default()
        };
        let uid = |n: u64| cache.closed(id(n), |r| r.uid);
        for n in 1..4 {
            cache.find(id(n), || open(id(n))).unwrap();
            let h = cache.find(id(n), || panic!("it is open")).unwrap().unwrap();
            *h.record.lock() = with(n as u32);
        }
        assert_eq!([1, 2, 3].map(uid), [Some(1), Some(2), None], "3 is open");
        cache.find(id(1), || open(id(1))).unwrap();
        assert_eq!([1, 2, 3].map(uid), [None, Some(2), Some(3)]);
        cache.remove(id(2), || ());
        assert_eq!([1, 2, 3].map(uid), [None, None, Some(3)]);
        for n in 10..10 + 2 * RECORDS_MAX as u64 {
            cache.find(id(n), || open(id(n))).unwrap();
        }
        let shard = cache.shard(id(0)).lock();
        assert_eq!(shard.records.len(), RECORDS_MAX);
        assert!(shard.records_order.len() <= RECORDS_MAX);
    }

    #[test]
    fn a_removed_object_is_opened_anew() {
        let cache = HandleCache::new(100);
        cache.find(id(1), || open(id(1))).unwrap();
        cache.remove(id(1), || ());
        assert!(cache.find(id(1), || Ok(None)).unwrap().is_none());
    }
}
