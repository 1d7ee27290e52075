//! Storage of locks: a slab, and each export's list.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::lock::Lock;
use crate::ExportId;
use crate::slab::Slab;

/// Most locks in one namespace.
pub const MAX_LOCKS: usize = crate::slab::MAX_ENTRIES;

/// A quick hash for keys that peers cannot choose freely enough to matter (FIDs, cookies): multiply and fold.
#[derive(Default, Clone)]
pub struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for c in bytes.chunks(8) {
            let mut w = [0; 8];
            w[..c.len()].copy_from_slice(c);
            self.write_u64(u64::from_le_bytes(w));
        }
    }
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(23) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_u32(&mut self, v: u32) {
        self.write_u64(v as u64);
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
}

/// Map with [`FoldHasher`]: its order depends on the keys alone, never on the run.
pub type FoldMap<K, V> = HashMap<K, V, BuildHasherDefault<FoldHasher>>;

/// All locks of a namespace.
#[derive(Debug)]
pub(crate) struct Table {
    locks: Slab<Lock>,
    exports: FoldMap<ExportId, Vec<u32>>,
}

impl Table {
    pub fn new(base: u64) -> Table {
        Table {
            locks: Slab::new(base),
            exports: FoldMap::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Stores `lock` and gives it its cookie. `None` when the namespace is full.
    pub fn insert(&mut self, lock: Lock) -> Option<u32> {
        let export = lock.export;
        let idx = self.locks.insert_with(|cookie| Lock { cookie, ..lock })?;
        if let Some(exp) = export {
            let pos = self.list(exp, idx);
            self.locks.at_mut(idx).exp_pos = pos;
        }
        Some(idx)
    }

    fn list(&mut self, exp: ExportId, idx: u32) -> u32 {
        let list = self.exports.entry(exp).or_default();
        list.push(idx);
        (list.len() - 1) as u32
    }

    /// Gives a server-side lock to an export.
    pub fn set_export(&mut self, idx: u32, exp: ExportId, remote: u64) {
        let pos = self.list(exp, idx);
        let l = self.lock_mut(idx);
        assert!(l.export.is_none(), "the lock has an owner already");
        (l.export, l.remote, l.exp_pos) = (Some(exp), remote, pos);
    }

    /// Takes the lock out.
    pub fn remove(&mut self, idx: u32) -> Lock {
        let lock = self.locks.remove(idx);
        if let Some(exp) = lock.export {
            self.unlist(exp, lock.exp_pos);
        }
        lock
    }

    fn unlist(&mut self, exp: ExportId, pos: u32) {
        let list = self.exports.get_mut(&exp).expect("export has locks");
        list.swap_remove(pos as usize);
        if let Some(moved) = list.get(pos as usize).copied() {
            self.lock_mut(moved).exp_pos = pos;
        } else if list.is_empty() {
            self.exports.remove(&exp);
        }
    }

    pub fn find(&self, cookie: u64) -> Option<u32> {
        self.locks.find(cookie)
    }

    pub fn lock(&self, idx: u32) -> &Lock {
        self.locks.at(idx)
    }

    pub fn lock_mut(&mut self, idx: u32) -> &mut Lock {
        self.locks.at_mut(idx)
    }

    /// Slots of an export, in no particular but a repeatable order.
    pub fn of_export(&self, exp: ExportId) -> &[u32] {
        self.exports.get(&exp).map_or(&[], |l| l.as_slice())
    }

    /// No other export has a lock.
    #[expect(
        clippy::disallowed_methods,
        reason = "whether there is one does not depend on the order"
    )]
    pub fn is_only(&self, exp: ExportId) -> bool {
        let mut all = self.exports.iter();
        all.all(|(other, locks)| *other == exp || locks.is_empty())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.locks.iter()
    }
}
