//! Node ids: the kernel's names for files, tied to FIDs with lookup counts.
//!
//! A node id is made of the FID itself, so that all there is to keep for a file is its count: the kernel may know millions. For
//! sequences near the first one of clients it holds the sequence's distance from there and the object id, and so means the
//! same file on every mount: file handles (`name_to_handle_at`, NFS) hold node ids. For other sequences it holds a number given
//! when the first file of the sequence is seen; the generation, made of the sequence, tells handles of another mount apart. No
//! file has an id below 2^32 but the root: these are the receipts of listings ([`crate::listings`]).
//! Invariants: an id stands for one FID for ever (a late FORGET cannot hit another file); requests are taken for it as long as
//! the kernel's lookup count is above zero, and for a handle always. The root is id 1 for ever.
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

/// Counts kept together: object ids of a sequence are given out one after another.
const CHUNK: usize = 16;
/// In a count: the answer that created the file may not have been taken in yet.
const CREATED: u32 = 1 << 31;
/// The greatest count; what is above it is forgotten with the rest, when the kernel gives all of it back.
const MOST: u32 = CREATED - 1;

/// The first sequence a client may be given (`FID_SEQ_NORMAL` in Lustre's `lustre_idl.h`).
const SEQ_FIRST: u64 = 0x2_0000_0400;
/// Sequences from there whose ids are made without a number.
const SEQ_NEAR: u64 = (1 << 31) - 1;
/// In an id: its sequence has a number.
const NUMBERED: u64 = 1 << 63;

/// The distance of a sequence that needs no number.
fn near(fid: Fid) -> Option<u64> {
    fid.seq
        .checked_sub(SEQ_FIRST)
        .filter(|d| fid.ver == 0 && *d < SEQ_NEAR)
}

/// The generation of a file's node.
pub(crate) fn generation(fid: Fid) -> u64 {
    if near(fid).is_some() {
        0
    } else {
        u64::from(((fid.seq ^ fid.seq >> 32) as u32 ^ fid.ver) << 1 | 1)
    }
}

#[derive(Default)]
struct Inner {
    /// {sequence, version} by number, of those that need one.
    seqs: Vec<(u64, u32)>,
    numbers: HashMap<(u64, u32), u64>,
    /// Lookup counts of [`CHUNK`] ids, by id / CHUNK.
    counts: IdMap<u64, [u32; CHUNK]>,
    /// Files with a count.
    known: usize,
}

impl Inner {
    fn id(&self, fid: Fid) -> Option<u64> {
        let high = match near(fid) {
            Some(distance) => distance + 1,
            None => *self.numbers.get(&(fid.seq, fid.ver))?,
        };
        Some(if near(fid).is_some() { 0 } else { NUMBERED } | high << 32 | u64::from(fid.oid))
    }

    fn fid(&self, id: u64) -> Option<Fid> {
        let (high, oid) = ((id & !NUMBERED) >> 32, id as u32);
        if id & NUMBERED == 0 {
            return Some(Fid {
                seq: SEQ_FIRST + high.checked_sub(1)?,
                oid,
                ver: 0,
            });
        }
        let (seq, ver) = *self.seqs.get(high as usize)?;
        Some(Fid { seq, oid, ver })
    }

    fn count(&mut self, id: u64) -> Option<&mut u32> {
        Some(&mut self.counts.get_mut(&(id / CHUNK as u64))?[id as usize % CHUNK])
    }
}

/// The table of one mount. Bounded by the kernel's inode cache, which forgets under memory pressure: a key and [`CHUNK`]
/// counts of 4 bytes for neighbours, however many of them are known.
pub struct Nodes {
    root: Fid,
    inner: Mutex<Inner>,
}

impl Nodes {
    /// A table that knows the root only.
    pub fn new(root: Fid) -> Self {
        Self {
            root,
            inner: Mutex::default(),
        }
    }

    /// The file behind a node id.
    pub fn fid(&self, nodeid: u64) -> Option<Fid> {
        if nodeid == ROOT_ID {
            return Some(self.root);
        }
        let mut inner = self.inner.lock();
        if inner.count(nodeid).is_none_or(|c| *c & MOST == 0) {
            return None;
        }
        inner.fid(nodeid)
    }

    /// The file a node id stands for, also when the kernel has forgotten it: the id is from a file handle.
    pub fn decode(&self, nodeid: u64) -> Option<Fid> {
        if nodeid == ROOT_ID {
            Some(self.root)
        } else {
            self.inner.lock().fid(nodeid)
        }
    }

    /// The id the kernel knows `fid` by, if it does.
    pub fn id(&self, fid: Fid) -> Option<u64> {
        if fid == self.root {
            return Some(ROOT_ID);
        }
        let mut inner = self.inner.lock();
        let id = inner.id(fid)?;
        inner.count(id).filter(|c| **c & MOST > 0).map(|_| id)
    }

    /// A request names the node: the kernel has taken in the answer that created it.
    pub fn confirm(&self, nodeid: u64) {
        if let Some(c) = self.inner.lock().count(nodeid) {
            *c &= !CREATED;
        }
    }

    /// Whether the answer that created the node may still be on its way.
    pub fn is_unconfirmed(&self, nodeid: u64) -> bool {
        self.inner
            .lock()
            .count(nodeid)
            .is_some_and(|c| *c & CREATED != 0)
    }

    /// [`Nodes::remember`] of a file that the answer creates.
    pub fn remember_created(&self, fid: Fid) -> u64 {
        let id = self.remember(fid);
        if let Some(c) = self.inner.lock().count(id) {
            *c |= CREATED;
        }
        id
    }

    /// Counts one more lookup of `fid` that the kernel is about to be told of; its id.
    pub fn remember(&self, fid: Fid) -> u64 {
        if fid == self.root {
            return ROOT_ID;
        }
        let inner = &mut *self.inner.lock();
        let id = inner.id(fid).unwrap_or_else(|| {
            let number = inner.seqs.len() as u64;
            inner.seqs.push((fid.seq, fid.ver));
            inner.numbers.insert((fid.seq, fid.ver), number);
            NUMBERED | number << 32 | u64::from(fid.oid)
        });
        let count = &mut inner.counts.entry(id / CHUNK as u64).or_default()[id as usize % CHUNK];
        inner.known += usize::from(*count & MOST == 0);
        *count = (*count & MOST).saturating_add(1).min(MOST) | *count & CREATED;
        id
    }

    /// Takes back `count` lookups; the FID when the kernel has forgotten the file altogether.
    pub fn forget(&self, nodeid: u64, count: u64) -> Option<Fid> {
        if nodeid == ROOT_ID {
            return None;
        }
        let fid = self.fid(nodeid)?;
        let inner = &mut *self.inner.lock();
        let kept = inner.count(nodeid)?;
        let left = (*kept & MOST).saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        *kept = if left > 0 { left | *kept & CREATED } else { 0 };
        if left > 0 {
            return None;
        }
        inner.known = inner.known.saturating_sub(1);
        let chunk = nodeid / CHUNK as u64;
        if inner.counts.get(&chunk).is_some_and(|c| *c == [0; CHUNK]) {
            inner.counts.remove(&chunk);
            // a walk over millions of files must not leave its room behind
            if inner.counts.len() < inner.counts.capacity() / 8 {
                inner.counts.shrink_to_fit();
            }
        }
        Some(fid)
    }

    /// Number of files the kernel knows, the root included.
    pub fn count(&self) -> usize {
        self.inner.lock().known + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(oid: u32) -> Fid {
        Fid {
            seq: 0x2_0000_0400,
            oid,
            ver: 0,
        }
    }

    #[test]
    fn one_id_per_fid_until_all_lookups_are_taken_back() {
        let t = Nodes::new(fid(1));
        let a = t.remember(fid(2));
        assert_eq!(t.remember(fid(2)), a);
        assert_ne!(t.remember(fid(3)), a);
        assert_eq!(t.forget(a, 1), None);
        assert_eq!(t.fid(a), Some(fid(2)));
        assert_eq!(t.forget(a, 1), Some(fid(2)));
        assert_eq!((t.fid(a), t.id(fid(2))), (None, None));
        assert_eq!(t.remember(fid(2)), a, "an id is one file for ever");
        assert_eq!(t.count(), 3);
        assert_eq!(t.forget(a, 1), Some(fid(2)));
        assert_eq!(t.forget(a, 1), None, "forgotten already");
    }

    #[test]
    fn files_of_all_sequences_and_versions_differ() {
        let t = Nodes::new(fid(1));
        let all: Vec<Fid> = (0..1000)
            .map(|i| Fid {
                seq: 0x2_0000_0400 + i % 7,
                oid: i as u32 / 7,
                ver: (i % 3) as u32,
            })
            .filter(|f| *f != fid(1))
            .collect();
        let ids: Vec<u64> = all.iter().map(|f| t.remember(*f)).collect();
        for (f, id) in all.iter().zip(&ids) {
            assert_eq!((t.fid(*id), t.id(*f)), (Some(*f), Some(*id)), "{f}");
        }
        assert_eq!(
            t.count(),
            all.iter().collect::<std::collections::BTreeSet<_>>().len() + 1
        );
        for (f, id) in all.iter().zip(ids) {
            t.forget(id, u64::MAX);
            assert_eq!(
                (t.fid(id), t.decode(id)),
                (None, Some(*f)),
                "a handle outlives what the kernel knows"
            );
        }
        assert_eq!((t.count(), t.inner.lock().counts.len()), (1, 0));
    }

    #[test]
    fn a_count_that_is_too_great_ends_with_the_kernel_s() {
        let t = Nodes::new(fid(1));
        let a = t.remember(fid(2));
        *t.inner.lock().count(a).unwrap() = MOST;
        assert_eq!(t.remember(fid(2)), a);
        assert_eq!(t.forget(a, u64::from(MOST) + 1), Some(fid(2)));
    }

    #[test]
    fn an_id_means_the_same_file_on_every_mount_or_has_another_generation() {
        let (a, b) = (Nodes::new(fid(1)), Nodes::new(fid(1)));
        let far = |seq| Fid {
            seq,
            oid: 7,
            ver: 0,
        };
        assert_eq!(
            b.decode(a.remember(fid(2))),
            Some(fid(2)),
            "never seen there"
        );
        let id = a.remember(far(12));
        assert_eq!(b.decode(id), None);
        assert_eq!(b.remember(far(13)), id);
        assert_ne!(generation(far(12)), generation(far(13)));
        assert_eq!(generation(fid(2)), 0);
        for id in [0, 2, 77, u64::MAX] {
            assert!(a.decode(id).is_none_or(|f| f != fid(2)), "{id:x}");
        }
    }

    #[test]
    fn the_root_stays() {
        let t = Nodes::new(fid(1));
        assert_eq!(t.remember(fid(1)), ROOT_ID);
        assert_eq!(t.forget(ROOT_ID, 1000), None);
        assert_eq!(t.fid(ROOT_ID), Some(fid(1)));
        assert_eq!(t.forget(77, 1), None, "unknown ids are ignored");
    }
}
