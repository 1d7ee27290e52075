//! How much of the disk under a target its writers may use.
//!
//! Objects stop short of a full disk by a reserve, tables by a smaller one: so whoever filled the
//! file system can still remove files, which needs room in the tables. Asking the kernel is spread
//! over many writes: an answer is good for an allowance of bytes.
//!
//! What the tables hold in memory will be sorted to disk later, and must find room then: the store
//! cannot take back a failure. It counts as used already. (Its journal is compressed, so the space
//! that is gone says little about it.)

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::fs::fstatvfs;

use crate::{OsdError, StatFs};

/// Reserve kept from objects: this part of the disk ...
const RESERVE_DIVISOR: u64 = 50;
/// ... but at least this many bytes ...
const RESERVE_MIN_BYTES: u64 = 8 << 20;
/// ... and at most this many.
const RESERVE_MAX_BYTES: u64 = 512 << 20;
/// Bytes that may be written on one answer of the kernel.
const ALLOWANCE_MAX_BYTES: u64 = 64 << 20;

/// Who is writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Object data.
    Object,
    /// Table records.
    Table,
    /// Table changes that remove something.
    Removal,
}

/// Admits writes while there is room. Concurrent writers may overshoot by an allowance.
pub(super) struct SpaceGate {
    dir: OwnedFd,
    object_allowance: AtomicI64,
    table_allowance: AtomicI64,
    /// Targets on the same disk that are to share it in what they report.
    sharers: AtomicU64,
    /// Bytes of tables that are yet to be sorted to disk.
    unsorted: AtomicU64,
}

impl SpaceGate {
    pub(super) fn new(dir: OwnedFd) -> Self {
        SpaceGate {
            dir,
            object_allowance: AtomicI64::new(0),
            table_allowance: AtomicI64::new(0),
            sharers: AtomicU64::new(1),
            unsorted: AtomicU64::new(0),
        }
    }

    /// Tells how many bytes of tables are held in memory.
    pub(super) fn set_unsorted(&self, bytes: u64) {
        self.unsorted.store(bytes, Ordering::Relaxed);
    }

    /// Room for `len` more bytes, or [`OsdError::NoSpace`].
    pub(super) fn admit(&self, class: Class, len: u64) -> Result<(), OsdError> {
        let len = i64::try_from(len).map_err(|_| OsdError::NoSpace)?;
        let allowance = match class {
            Class::Object => &self.object_allowance,
            Class::Table | Class::Removal => &self.table_allowance,
        };
        if allowance.fetch_sub(len, Ordering::Relaxed) >= len {
            return Ok(());
        }
        let fs = self.raw()?;
        let mut room = fs.avail.saturating_sub(reserve(fs.total, class));
        if class != Class::Removal {
            room = room.saturating_sub(self.unsorted.load(Ordering::Relaxed));
        }
        if room < len as u64 {
            allowance.store(0, Ordering::Relaxed);
            return Err(OsdError::NoSpace);
        }
        let fresh = (room / 4).min(ALLOWANCE_MAX_BYTES) as i64;
        allowance.store(fresh - len, Ordering::Relaxed);
        Ok(())
    }

    /// This target is one of `count` that share the disk.
    pub(super) fn share(&self, count: u64) {
        self.sharers.store(count.max(1), Ordering::Relaxed);
    }

    /// This target's part of the disk's space, the object reserve taken off what is available. Only what is reported is
    /// divided: a target may fill the whole disk.
    pub(super) fn statfs(&self) -> Result<StatFs, OsdError> {
        const BLOCK: u64 = 4096;
        let fs = self.raw()?;
        let part = BLOCK * self.sharers.load(Ordering::Relaxed);
        let kept = reserve(fs.total, Class::Object).saturating_add(self.unsorted.load(Ordering::Relaxed));
        Ok(StatFs {
            block_size: BLOCK as u32,
            blocks: fs.total / part,
            blocks_free: fs.free / part,
            blocks_avail: fs.avail.saturating_sub(kept) / part,
            files: fs.files,
            files_free: fs.files_free,
        })
    }

    fn raw(&self) -> Result<Raw, OsdError> {
        let s = fstatvfs(&self.dir).map_err(|e| OsdError::io("statfs of the target", e.into()))?;
        let unit = s.f_frsize.max(1);
        Ok(Raw {
            total: s.f_blocks.saturating_mul(unit),
            free: s.f_bfree.saturating_mul(unit),
            avail: s.f_bavail.saturating_mul(unit),
            files: s.f_files,
            files_free: s.f_ffree,
        })
    }
}

struct Raw {
    total: u64,
    free: u64,
    avail: u64,
    files: u64,
    files_free: u64,
}

fn reserve(total: u64, class: Class) -> u64 {
    let whole = (total / RESERVE_DIVISOR).clamp(RESERVE_MIN_BYTES, RESERVE_MAX_BYTES);
    match class {
        Class::Object => whole,
        Class::Table => whole / 2,
        Class::Removal => whole / 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_outlive_creates_and_creates_outlive_data() {
        for total in [1 << 20, 64 << 20, 1 << 30, 1 << 40, u64::MAX] {
            let [o, t, r] = [Class::Object, Class::Table, Class::Removal].map(|c| reserve(total, c));
            assert!(o > t && t > r && r > 0, "{total}: {o} {t} {r}");
        }
    }

    #[test]
    fn targets_that_share_a_disk_report_it_once() {
        let dir = tempfile::tempdir().unwrap();
        let gate = SpaceGate::new(std::fs::File::open(dir.path()).unwrap().into());
        let whole = gate.statfs().unwrap().blocks;
        gate.share(4);
        assert_eq!(gate.statfs().unwrap().blocks, whole / 4);
    }

    #[test]
    fn more_than_the_disk_is_refused_and_a_little_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let gate = SpaceGate::new(std::fs::File::open(dir.path()).unwrap().into());
        assert!(matches!(gate.admit(Class::Object, 1 << 60), Err(OsdError::NoSpace)));
        gate.admit(Class::Object, 4096).unwrap();
        gate.admit(Class::Table, 4096).unwrap();
    }

    #[test]
    fn what_is_not_sorted_yet_has_its_room_kept() {
        let dir = tempfile::tempdir().unwrap();
        let gate = SpaceGate::new(std::fs::File::open(dir.path()).unwrap().into());
        gate.set_unsorted(1 << 60);
        assert_eq!(gate.statfs().unwrap().blocks_avail, 0);
        assert!(matches!(gate.admit(Class::Object, 1), Err(OsdError::NoSpace)));
        assert!(matches!(gate.admit(Class::Table, 1), Err(OsdError::NoSpace)));
        gate.admit(Class::Removal, 1).unwrap();
        gate.set_unsorted(0);
        gate.admit(Class::Table, 1).unwrap();
    }
}
