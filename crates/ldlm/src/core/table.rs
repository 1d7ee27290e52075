//! Storage of locks: slots reused by index, cookies that name a slot, and each export's list.
//!
//! A cookie is `base ^ (generation << 24 | index)`: found without hashing, never the same twice in the life of a
//! namespace, and with a random base not valid after a restart.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::lock::Lock;
use crate::ExportId;

/// Bits of a cookie that index the slot; bounds the locks of a namespace at 16 Mi.
const INDEX_BITS: u32 = 24;
/// Most locks in one namespace.
pub const MAX_LOCKS: usize = 1 << INDEX_BITS;

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
    base: u64,
    generation: u64,
    slots: Vec<Option<Lock>>,
    free: Vec<u32>,
    exports: FoldMap<ExportId, Vec<u32>>,
}

impl Table {
    pub fn new(base: u64) -> Table {
        Table { base, generation: 0, slots: Vec::new(), free: Vec::new(), exports: FoldMap::default() }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores `lock` and gives it its cookie. `None` when the namespace is full.
    pub fn insert(&mut self, mut lock: Lock) -> Option<u32> {
        let idx = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < MAX_LOCKS => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        self.generation += 1;
        lock.cookie = self.base ^ (self.generation << INDEX_BITS | idx as u64);
        if let Some(exp) = lock.export {
            lock.exp_pos = self.list(exp, idx);
        }
        self.slots[idx as usize] = Some(lock);
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
        let lock = self.slots[idx as usize].take().expect("slot is in use");
        self.free.push(idx);
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
        let idx = ((cookie ^ self.base) & (MAX_LOCKS as u64 - 1)) as u32;
        match self.slots.get(idx as usize) {
            Some(Some(l)) if l.cookie == cookie => Some(idx),
            _ => None,
        }
    }

    pub fn lock(&self, idx: u32) -> &Lock {
        self.slots[idx as usize].as_ref().expect("slot is in use")
    }

    pub fn lock_mut(&mut self, idx: u32) -> &mut Lock {
        self.slots[idx as usize].as_mut().expect("slot is in use")
    }

    /// Slots of an export, in no particular but a repeatable order.
    pub fn of_export(&self, exp: ExportId) -> &[u32] {
        self.exports.get(&exp).map_or(&[], |l| l.as_slice())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.slots.iter().flatten()
    }
}
