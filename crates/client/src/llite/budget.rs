//! How the memory of a mount is shared out (mount option `cache_mb`), and what it was spent on.

use crate::grant::MAX_DIRTY_BYTES;

/// Rough size of a lock, bytes: this and the others as resident memory grew in walks over 100,000 names.
const LOCK_BYTES: usize = 480;
/// Least locks of a target, however small the budget.
const LOCKS_MIN: usize = 64;

/// A sixth of a cache of so many MiB, bytes: so much is for locks, for dirty data, and for written data that may not
/// be on disk yet; the other half for inodes and names.
pub(super) fn sixth(cache_mb: u32) -> usize {
    ((cache_mb.max(1) as usize) << 20) / 6
}

/// Locks for a cache of so many MiB.
fn lock_limit(cache_mb: u32) -> usize {
    sixth(cache_mb) / LOCK_BYTES
}

/// Idle locks that all MDTs may leave with us together, and all OSTs: half of the locks are for metadata, half for data.
pub(super) fn lock_pool(cache_mb: u32) -> usize {
    lock_limit(cache_mb) / 2
}

/// Of these, those that each of so many targets may leave in any case.
pub(super) fn lock_share(cache_mb: u32, targets: usize) -> usize {
    (lock_pool(cache_mb) / targets.max(1)).max(LOCKS_MIN)
}

/// Files whose pages the kernel may cache at once, for a cache of so many MiB: each pins its locks.
pub(super) fn covered_limit(cache_mb: u32) -> usize {
    lock_limit(cache_mb) / 16
}

/// Bytes of dirty data for each OST, for a cache of so many MiB.
pub(super) fn dirty_limit(cache_mb: u32, osts: usize) -> u64 {
    (sixth(cache_mb) as u64 / osts.max(1) as u64).clamp(1 << 20, MAX_DIRTY_BYTES)
}

/// Bytes of written data that each MDT, and each OST, has acknowledged and may not have on disk, for a cache of so many MiB. Of
/// files on MDTs only the beginning is there: theirs is the eighth part.
pub(super) fn kept_limits(cache_mb: u32, mdts: usize, osts: usize) -> (usize, usize) {
    let part = sixth(cache_mb) / 8;
    (
        (part / mdts.max(1)).max(1 << 20),
        (7 * part / osts.max(1)).max(1 << 20),
    )
}

/// What the budget was spent on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Locks held, of all targets.
    pub locks: usize,
    /// Objects remembered.
    pub inodes: usize,
    /// Bytes of objects and names.
    pub inode_bytes: usize,
    /// Files whose pages are in the kernel's cache; the pages are the kernel's memory, not ours.
    pub covered: usize,
    /// Bytes of dirty data.
    pub dirty_bytes: usize,
    /// Bytes of written data kept until they are on disk.
    pub kept_bytes: usize,
}

impl Spent {
    /// All together.
    pub fn bytes(&self) -> usize {
        self.inode_bytes + self.locks * LOCK_BYTES + self.dirty_bytes + self.kept_bytes
    }

    /// The same in words.
    pub(super) fn lines(&self) -> [(&'static str, usize); 7] {
        let locks = self.locks * LOCK_BYTES;
        [
            ("inodes", self.inodes),
            ("inode_and_name_bytes", self.inode_bytes),
            ("locks", self.locks),
            ("lock_bytes", locks),
            ("files_with_cached_pages", self.covered),
            ("dirty_bytes", self.dirty_bytes),
            ("written_bytes_kept", self.kept_bytes),
        ]
    }
}
