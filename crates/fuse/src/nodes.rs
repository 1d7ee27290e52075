//! Node ids: the kernel's names for files, tied to FIDs with lookup counts.
//!
//! Invariants: an id is never used twice in a session (so its generation is always 0 and a late FORGET cannot hit another
//! file); a FID has at most one id; a pair lives as long as the kernel's lookup count is above zero. The root is id 1 for ever.
//! Lustre: the kernel's inode cache does this for llite (`lustre/llite/namei.c`, ll_iget).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use coral_wire::fid::Fid;
use parking_lot::Mutex;

use crate::abi::ROOT_ID;

/// A multiplicative hasher for ids we or the MDT hand out in sequence; nobody hostile picks them.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map keyed by small integers or FIDs.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

struct Node {
    fid: Fid,
    lookups: u64,
    dir: bool,
}

struct Inner {
    by_id: IdMap<u64, Node>,
    by_fid: IdMap<Fid, u64>,
    next: u64,
}

/// The table of one mount. Bounded by the kernel's inode cache, which forgets under memory pressure.
pub struct Nodes {
    inner: Mutex<Inner>,
}

impl Nodes {
    /// A table that knows the root only.
    pub fn new(root: Fid) -> Self {
        let mut inner = Inner { by_id: IdMap::default(), by_fid: IdMap::default(), next: ROOT_ID + 1 };
        inner.by_id.insert(ROOT_ID, Node { fid: root, lookups: 1, dir: true });
        inner.by_fid.insert(root, ROOT_ID);
        Self { inner: Mutex::new(inner) }
    }

    /// The file behind a node id.
    pub fn fid(&self, nodeid: u64) -> Option<Fid> {
        self.inner.lock().by_id.get(&nodeid).map(|n| n.fid)
    }

    /// The id the kernel knows `fid` by, if it does.
    pub fn id(&self, fid: Fid) -> Option<u64> {
        self.inner.lock().by_fid.get(&fid).copied()
    }

    /// Whether the node is a directory.
    pub fn is_dir(&self, nodeid: u64) -> bool {
        self.inner.lock().by_id.get(&nodeid).is_some_and(|n| n.dir)
    }

    /// Counts one more lookup of `fid` that the kernel is about to be told of; its id.
    pub fn remember(&self, fid: Fid, dir: bool) -> u64 {
        let inner = &mut *self.inner.lock();
        let id = *inner.by_fid.entry(fid).or_insert_with(|| {
            inner.next += 1;
            inner.next - 1
        });
        inner.by_id.entry(id).or_insert(Node { fid, lookups: 0, dir }).lookups += 1;
        id
    }

    /// Takes back `count` lookups; the FID when the kernel has forgotten the file altogether.
    pub fn forget(&self, nodeid: u64, count: u64) -> Option<Fid> {
        if nodeid == ROOT_ID {
            return None;
        }
        let inner = &mut *self.inner.lock();
        let node = inner.by_id.get_mut(&nodeid)?;
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 {
            return None;
        }
        let fid = node.fid;
        inner.by_id.remove(&nodeid);
        inner.by_fid.remove(&fid);
        Some(fid)
    }

    /// Number of files the kernel knows, the root included.
    pub fn count(&self) -> usize {
        self.inner.lock().by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(oid: u32) -> Fid {
        Fid { seq: 0x2_0000_0400, oid, ver: 0 }
    }

    #[test]
    fn one_id_per_fid_until_all_lookups_are_taken_back() {
        let t = Nodes::new(fid(1));
        let a = t.remember(fid(2), false);
        assert_eq!(t.remember(fid(2), false), a);
        assert_ne!(t.remember(fid(3), true), a);
        assert_eq!(t.forget(a, 1), None);
        assert_eq!(t.fid(a), Some(fid(2)));
        assert_eq!(t.forget(a, 1), Some(fid(2)));
        assert_eq!((t.fid(a), t.id(fid(2))), (None, None));
        let again = t.remember(fid(2), false);
        assert_ne!(again, a, "ids are not reused");
        assert_eq!(t.count(), 3);
    }

    #[test]
    fn the_root_stays() {
        let t = Nodes::new(fid(1));
        assert_eq!(t.remember(fid(1), true), ROOT_ID);
        assert_eq!(t.forget(ROOT_ID, 1000), None);
        assert_eq!(t.fid(ROOT_ID), Some(fid(1)));
        assert_eq!(t.forget(77, 1), None, "unknown ids are ignored");
    }
}
