//! How much of the disk under a target its writers may use, and what they were promised of it.
//!
//! Objects stop short of a full disk by a reserve, tables by a smaller one: so whoever filled the file system can still remove
//! files, which needs room in the tables. Space that clients were promised ([`Room`]) is nobody else's: neither an unpromised
//! write nor the tables get it. Targets of one process on one disk share one account ([`Disk`]). When the disk is tight, promised
//! space is really taken, by [`Stock`], so that other programs do not get it either. What one target puts by is there for the
//! promises of all: what it frees for a write of its own, a write to another may take.
//!
//! What the tables hold in memory will be sorted to disk later, and must find room then. It counts as used already. (Its journal
//! is compressed, so the space that is gone says little about it.)
//!
//! Invariant: what is written stays in the account until it has its room on the disk. So who reads the disk's free space while the
//! account is locked sees every byte in one of the two. On btrfs, which counts what is written once it has put it somewhere, a write
//! that nobody was promised room counts what was written since the last `syncfs` besides ([`SpaceGate::settle`]). Promises and the
//! tables' journal need no such account there: they have their blocks before they are used.
//!
//! Lock order: the account of the disk, then the list of its stocks, then a stock.

use std::cmp::Reverse;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::fstatvfs;

use super::journal;
use super::seen::SeenAllowance;
use super::stock::{PIECE_BYTES, Stock};
use super::tables::TABLES_DIR;
use crate::{OsdError, StatFs};

/// Reserve kept from objects: this part of the disk ...
const RESERVE_DIVISOR: u64 = 50;
/// ... but at least this many bytes ...
const RESERVE_MIN_BYTES: u64 = 8 << 20;
/// ... and at most this many.
const RESERVE_MAX_BYTES: u64 = 512 << 20;
/// Reserve kept from changes of the tables that remove something, bytes.
const REMOVAL_RESERVE_BYTES: u64 = 256 << 10;
/// Where free space lags, the tables' journal has its next blocks before they are written: so many bytes of them ...
const JOURNAL_AHEAD_BYTES: u64 = 4 << 20;
/// ... of which so many are left to changes that remove something; with fewer blocks ahead these go on.
const JOURNAL_REMOVAL_BYTES: u64 = 512 << 10;
/// Bytes the tables may write on one answer of the kernel.
const ALLOWANCE_MAX_BYTES: u64 = 2 << 20;
/// With less than this left, promised space is taken from the disk.
const TIGHT_BYTES: u64 = 1 << 30;
/// With fewer inodes left nothing is promised: a promised write may need one for its object.
const INODES_MIN: u64 = 256;
/// What is kept for a start on a full disk, as a part of the disk, within these bounds in bytes.
const BALLAST_DIVISOR: u64 = 64;
pub(super) const BALLAST_MIN_BYTES: u64 = 1 << 20;
pub(super) const BALLAST_MAX_BYTES: u64 = 8 << 20;
/// Ballast that is dropped at a time.
const BALLAST_STEP_BYTES: u64 = 512 << 10;
/// A start with less room drops the ballast.
const START_BYTES: u64 = 2 << 20;
/// With fewer inodes a start drops the spare ones.
const START_INODES: u64 = 16;
/// The file system whose free space does not tell of what is written and not yet on the disk.
const BTRFS_MAGIC: i64 = 0x9123_683e;

/// ext4 counts as free what it keeps for itself: a fiftieth of the disk, at most so many bytes (`ext4_calculate_resv_clusters`).
const NOBODYS_MAX_BYTES: u64 = 16 << 20;
/// Kept free beside the reserve where free space lags, bytes.
const LAG_BYTES: u64 = 48 << 20;

/// A promised write that finds no room has four times as much freed after each settle, so many times at most.
const GROWTH_MAX: u32 = 4;
/// No promised write lacks room.
const NOT_SHORT: u64 = u64::MAX;

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

/// The account of one disk, shared by the targets on it ([`crate::OsdFsOptions::disk`]).
#[derive(Debug, Default)]
pub struct Disk {
    sums: Mutex<Sums>,
    /// Settles that have begun.
    settles: AtomicU64,
    /// The number of the last that succeeded; held while the disk is settled.
    settled: Mutex<u64>,
    /// What the targets on it put by.
    stocks: Mutex<Vec<Weak<Stock>>>,
}

impl Disk {
    fn settles_begun(&self) -> u64 {
        self.settles.load(Ordering::Acquire)
    }

    /// Runs `settle`, unless one has succeeded that began after `begun` were counted: those who wait for one share the next.
    fn settle_after(&self, begun: u64, settle: impl FnOnce() -> bool) -> bool {
        let mut settled = self.settled.lock();
        if *settled > begun {
            return true;
        }
        let number = self.settles.fetch_add(1, Ordering::AcqRel) + 1;
        let done = settle();
        if done {
            *settled = number;
        }
        done
    }
}

/// All in bytes.
#[derive(Debug, Default)]
struct Sums {
    /// Of tables, yet to be sorted to disk.
    unsorted: u64,
    /// Promised to writers.
    promised: u64,
    /// Of that, taken from the disk already.
    stocked: u64,
    /// Of writes under way that nobody had been promised.
    claimed: u64,
    /// Written where free space lags, and perhaps not seen in it yet.
    lagging: u64,
}

impl Sums {
    /// What is spoken for and not seen in the disk's free space.
    fn spoken_for(&self) -> u64 {
        self.unsorted
            .saturating_add(self.promised.saturating_sub(self.stocked))
            .saturating_add(self.claimed)
    }
}

/// Admits writes while there is room.
pub(super) struct SpaceGate {
    dir: File,
    /// The directory of the tables.
    tables: PathBuf,
    disk: Arc<Disk>,
    stock: Arc<Stock>,
    /// Free space lags behind what is written.
    pub(super) lags: bool,
    /// May use what a file system keeps for root.
    privileged: bool,
    table_allowance: AtomicI64,
    removal_allowance: AtomicI64,
    /// What may be seen before it is written.
    seen: SeenAllowance,
    /// Targets on the same disk that are to share it in what they report.
    sharers: AtomicU64,
    /// Bytes of our tables that are yet to be sorted to disk.
    unsorted: AtomicU64,
    /// Bytes we promised.
    promised: AtomicU64,
    /// Where free space lags: settles that had begun when a promised write found no room, until one finds some.
    short_since: AtomicU64,
}

impl SpaceGate {
    /// The gate of the target in `dir`. With `keeps` it keeps a stock of space there; without, nothing is written.
    pub(super) fn open(dir: &Path, disk: Arc<Disk>, keeps: bool) -> std::io::Result<SpaceGate> {
        let file = File::open(dir)?;
        let lags = rustix::fs::fstatfs(&file).is_ok_and(|s| s.f_type == BTRFS_MAGIC);
        let stock = Arc::new(match keeps {
            true => {
                let s = fstatvfs(&file)?;
                Stock::open(dir, s.f_blocks.saturating_mul(s.f_frsize), lags)
            }
            false => Stock::none(),
        });
        let mut stocks = disk.stocks.lock();
        stocks.retain(|other| other.strong_count() > 0);
        stocks.push(Arc::downgrade(&stock));
        drop(stocks);
        let gate = SpaceGate {
            stock,
            dir: file,
            tables: dir.join(TABLES_DIR),
            disk,
            lags,
            privileged: !lags && rustix::process::geteuid().is_root(),
            table_allowance: AtomicI64::new(0),
            removal_allowance: AtomicI64::new(0),
            seen: SeenAllowance::default(),
            sharers: AtomicU64::new(1),
            unsorted: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            short_since: AtomicU64::new(NOT_SHORT),
        };
        if keeps {
            gate.begin();
        }
        Ok(gate)
    }

    /// Lets go what was put by for a start without room, if this is one; else puts it by.
    pub(super) fn begin(&self) {
        let Ok(fs) = self.raw() else { return };
        if fs.usable < START_BYTES {
            self.stock.drop_ballast(u64::MAX);
            self.settle();
        }
        if fs.files > 0 && fs.files_free < START_INODES {
            self.stock.drop_inodes();
        }
        self.refill();
    }

    /// Puts by again what was let go, when there is room for it.
    pub(super) fn refill(&self) {
        if !self.stock.wants_more() {
            return;
        }
        let Ok(fs) = self.raw() else { return };
        let ballast = (fs.total / BALLAST_DIVISOR)
            .clamp(BALLAST_MIN_BYTES, BALLAST_MAX_BYTES)
            .next_multiple_of(PIECE_BYTES);
        let room = self.left_of(&fs, &self.disk.sums.lock(), Class::Object) > 2 * ballast;
        let inodes = fs.files == 0 || fs.files_free > INODES_MIN;
        self.stock.put_by(if room { ballast } else { 0 }, inodes);
    }

    /// Tells how many bytes of tables are held in memory.
    pub(super) fn set_unsorted(&self, bytes: u64) {
        let mut sums = self.disk.sums.lock();
        let before = self.unsorted.swap(bytes, Ordering::Relaxed);
        sums.unsorted = sums.unsorted + bytes - before;
    }

    /// Kept free because free space lags, bytes.
    fn lag(&self) -> u64 {
        if self.lags { LAG_BYTES } else { 0 }
    }

    fn left_of(&self, fs: &Raw, sums: &Sums, class: Class) -> u64 {
        fs.avail.saturating_sub(
            reserve(fs.total, class)
                .saturating_add(self.lag())
                .saturating_add(sums.spoken_for()),
        )
    }

    /// So many bytes that were promised or claimed were written, or are wanted no more.
    fn count_lagging(&self, sums: &mut Sums, bytes: u64) {
        if self.lags {
            sums.lagging = sums.lagging.saturating_add(bytes);
        }
    }

    /// Room for `len` more bytes, or [`OsdError::NoSpace`].
    pub(super) fn admit(&self, class: Class, len: u64) -> Result<(), OsdError> {
        let signed = i64::try_from(len).map_err(|_| OsdError::NoSpace)?;
        let allowance = match class {
            Class::Removal => &self.removal_allowance,
            _ => &self.table_allowance,
        };
        if class != Class::Object && allowance.fetch_sub(signed, Ordering::Relaxed) >= signed {
            return Ok(());
        }
        let fresh = match class {
            Class::Removal => self.room_for_removal(len)?,
            _ => {
                let room = {
                    let sums = self.disk.sums.lock();
                    self.left_of(&self.raw()?, &sums, class)
                };
                let there = room >= len
                    && (class == Class::Object || self.journal_goes_on(JOURNAL_AHEAD_BYTES + len));
                if !there {
                    allowance.store(0, Ordering::Relaxed);
                    return Err(OsdError::NoSpace);
                }
                self.refill();
                allowance_of(room)
            }
        };
        if class != Class::Object {
            allowance.store(fresh as i64 - signed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether so many bytes of tables may be seen before they are written: not where free space lags, nor on a tight disk.
    pub(super) fn may_wait(&self, bytes: u64) -> bool {
        let left = || self.left().is_ok_and(|left| left > TIGHT_BYTES);
        let roomy = || !self.lags && self.stock.has_ballast() && left();
        self.seen.take(bytes, roomy)
    }

    /// Room for a change of the tables that removes something: what such changes may write from now on. They come before everything
    /// else, as they are how room is made: what was put by is let go for them.
    fn room_for_removal(&self, len: u64) -> Result<u64, OsdError> {
        let mut settled = !self.lags;
        loop {
            if self.lags {
                if self.journal_goes_on(JOURNAL_REMOVAL_BYTES + len) {
                    return Ok(JOURNAL_REMOVAL_BYTES);
                }
            } else {
                let room = self.raw()?.usable.saturating_sub(REMOVAL_RESERVE_BYTES);
                if room >= len {
                    return Ok(allowance_of(room));
                }
            }
            let dropped = self
                .stock
                .drop_ballast(len.max(BALLAST_STEP_BYTES).next_multiple_of(PIECE_BYTES));
            if !dropped && std::mem::replace(&mut settled, true) {
                self.removal_allowance.store(0, Ordering::Relaxed);
                return Err(OsdError::NoSpace);
            }
            self.settle();
        }
    }

    /// Where free space lags: whether the tables' journal has the blocks of its next `bytes`. Changes that remove something may then
    /// use their part of them, whatever happens to the disk.
    fn journal_goes_on(&self, bytes: u64) -> bool {
        if !self.lags {
            return true;
        }
        if let Err(error) = journal::reserve(&self.tables, bytes) {
            tracing::debug!(%error, "no blocks for the journal");
            return false;
        }
        if bytes > JOURNAL_AHEAD_BYTES {
            self.removal_allowance
                .store(JOURNAL_REMOVAL_BYTES as i64, Ordering::Relaxed);
        }
        true
    }

    /// Bytes that may still be promised.
    pub(super) fn left(&self) -> Result<u64, OsdError> {
        self.refill();
        let sums = self.disk.sums.lock();
        let fs = self.raw()?;
        if fs.files > 0 && fs.files_free < INODES_MIN {
            return Ok(0);
        }
        Ok(self.left_of(&fs, &sums, Class::Object))
    }

    /// Promises up to `most` bytes; how many.
    pub(super) fn promise(&self, most: u64) -> Result<u64, OsdError> {
        if most == 0 {
            return Ok(0);
        }
        let mut sums = self.disk.sums.lock();
        let fs = self.raw()?;
        let left = self.left_of(&fs, &sums, Class::Object);
        let take = most.min(left);
        if take == 0 || (fs.files > 0 && fs.files_free < INODES_MIN) {
            return Ok(0);
        }
        let promised = self.promised.load(Ordering::Relaxed) + take;
        if self.lags || left - take < TIGHT_BYTES {
            let before = self.stock.promised();
            if let Err(e) = self.stock.hold_promised(promised) {
                tracing::debug!(error = %e, "no space to promise");
                return Ok(0);
            }
            sums.stocked = sums.stocked + self.stock.promised() - before;
        }
        self.promised.store(promised, Ordering::Relaxed);
        sums.promised += take;
        Ok(take)
    }

    /// Promised space was written to, or is wanted no more.
    pub(super) fn unpromise(&self, bytes: u64) {
        let mut sums = self.disk.sums.lock();
        let promised = self.promised.load(Ordering::Relaxed).saturating_sub(bytes);
        let less = self.promised.swap(promised, Ordering::Relaxed) - promised;
        sums.promised -= less;
        self.count_lagging(&mut sums, less);
        let before = self.stock.promised();
        self.stock.let_go_beyond(promised);
        sums.stocked = sums.stocked + self.stock.promised() - before;
    }

    /// A promised write of `bytes` finds no room: frees some of what was put by for it. True when it may find some now. Where free
    /// space lags it may after [`SpaceGate::settle`] only, so more is freed after each.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        if !self.lags {
            return self.yield_promised(bytes);
        }
        let now = self.disk.settles_begun();
        let since = self.short_since.fetch_min(now, Ordering::Relaxed).min(now);
        let growth = u32::try_from(now - since).map_or(GROWTH_MAX, |n| n.min(GROWTH_MAX));
        self.yield_promised(bytes.saturating_mul(4_u64.pow(growth)));
        false
    }

    /// A promised write found room.
    pub(super) fn found_room(&self) {
        if self.lags && self.short_since.load(Ordering::Relaxed) != NOT_SHORT {
            self.short_since.store(NOT_SHORT, Ordering::Relaxed);
        }
    }

    /// Frees some of what was put by for promises, here or else by another target. False when there is none.
    fn yield_promised(&self, bytes: u64) -> bool {
        // whoever tries how much can be put by has it locked, and may have had the last of the room just now
        let mut sums = self.disk.sums.lock();
        let mut spend = |stock: &Stock| {
            let before = stock.promised();
            stock.spend(bytes);
            let after = stock.promised();
            sums.stocked = sums.stocked + after - before;
            after < before
        };
        spend(&self.stock) || {
            let mut others: Vec<_> = (self.disk.stocks.lock().iter())
                .filter_map(Weak::upgrade)
                .collect();
            others.sort_by_key(|stock| Reverse(stock.promised()));
            others.iter().any(|stock| spend(stock))
        }
    }

    /// Room for a write that nobody was promised, until [`SpaceGate::unclaim`].
    pub(super) fn claim(&self, bytes: u64) -> Result<(), OsdError> {
        let mut sums = self.disk.sums.lock();
        let fs = self.raw()?;
        let left = self.left_of(&fs, &sums, Class::Object);
        if left.saturating_sub(sums.lagging) < bytes {
            let account = (&*sums, fs.avail);
            tracing::debug!(
                ?account,
                left,
                bytes,
                "no room for a write that nobody was promised"
            );
            return Err(OsdError::NoSpace);
        }
        sums.claimed += bytes;
        Ok(())
    }

    pub(super) fn unclaim(&self, bytes: u64) {
        let mut sums = self.disk.sums.lock();
        sums.claimed = sums.claimed.saturating_sub(bytes);
        self.count_lagging(&mut sums, bytes);
    }

    /// Where free space lags: what was written is counted and what was freed is free, once all of it is on the disk, for which it
    /// waits. False where it does not lag or cannot be had.
    pub(super) fn settle(&self) -> bool {
        if !self.lags {
            return false;
        }
        self.disk.settle_after(self.disk.settles_begun(), || {
            let before = self.disk.sums.lock().lagging;
            if rustix::fs::syncfs(&self.dir).is_err() {
                return false;
            }
            let mut sums = self.disk.sums.lock();
            sums.lagging = sums.lagging.saturating_sub(before);
            true
        })
    }

    /// A write to the tables failed: nothing is taken for granted any more.
    pub(super) fn forget_allowances(&self) {
        self.table_allowance.store(0, Ordering::Relaxed);
        self.removal_allowance.store(0, Ordering::Relaxed);
        self.seen.forget();
    }

    /// Whether a store that failed for want of room may be opened again for a change of `class`. Only a removal uses what was put
    /// by, and no more than it needs: whoever fills the disk would have it otherwise, and nothing could be removed.
    pub(super) fn may_begin(&self, class: Class) -> bool {
        let mut settled = !self.lags;
        while let Ok(fs) = self.raw() {
            if class == Class::Removal && fs.files > 0 && fs.files_free < START_INODES {
                self.stock.drop_inodes();
            }
            if fs.usable >= START_BYTES {
                return true;
            }
            let dropped = class == Class::Removal && self.stock.drop_ballast(BALLAST_STEP_BYTES);
            if !dropped && std::mem::replace(&mut settled, true) {
                return fs.usable >= START_BYTES / 2;
            }
            self.settle();
        }
        false
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
        // What is stocked is promised, not used.
        let (unsorted, stocked) = {
            let s = self.disk.sums.lock();
            (s.unsorted, s.stocked)
        };
        let kept = reserve(fs.total, Class::Object) + self.lag();
        let kept = kept.saturating_add(unsorted);
        Ok(StatFs {
            block_size: BLOCK as u32,
            blocks: fs.total / part,
            blocks_free: (fs.free + stocked).min(fs.total) / part,
            blocks_avail: (fs.avail + stocked).saturating_sub(kept) / part,
            files: fs.files,
            files_free: fs.files_free,
        })
    }

    /// What is wrong with the space, in words.
    pub(super) fn trouble(&self) -> Option<String> {
        let fs = self.raw().ok()?;
        if fs.files > 0 && fs.files_free < INODES_MIN {
            return Some(format!(
                "the disk has {} inodes left: new files cannot be stored; remove some",
                fs.files_free
            ));
        }
        let left = self.left_of(&fs, &self.disk.sums.lock(), Class::Table);
        (left == 0).then(|| {
            format!(
                "the disk is full ({} KiB free): files can be read and removed only",
                fs.avail >> 10
            )
        })
    }

    fn raw(&self) -> Result<Raw, OsdError> {
        let s = fstatvfs(&self.dir).map_err(|e| OsdError::io("statfs of the target", e.into()))?;
        let unit = s.f_frsize.max(1);
        let total = s.f_blocks.saturating_mul(unit);
        let (free, avail) = (
            s.f_bfree.saturating_mul(unit),
            s.f_bavail.saturating_mul(unit),
        );
        Ok(Raw {
            total,
            free,
            avail,
            usable: if self.privileged {
                avail.max(free.saturating_sub((total / 50).min(NOBODYS_MAX_BYTES)))
            } else {
                avail
            },
            files: s.f_files,
            files_free: s.f_ffree,
        })
    }
}

impl Drop for SpaceGate {
    fn drop(&mut self) {
        self.set_unsorted(0);
        self.unpromise(u64::MAX);
    }
}

/// What the tables may write before they ask again, of so much room.
fn allowance_of(room: u64) -> u64 {
    (room / 16).min(ALLOWANCE_MAX_BYTES)
}

struct Raw {
    total: u64,
    free: u64,
    avail: u64,
    /// What this process may use to the last: root has what ext4 keeps for it.
    usable: u64,
    files: u64,
    files_free: u64,
}

fn reserve(total: u64, class: Class) -> u64 {
    let whole = (total / RESERVE_DIVISOR).clamp(RESERVE_MIN_BYTES, RESERVE_MAX_BYTES);
    match class {
        Class::Object => whole,
        Class::Table => whole / 2,
        Class::Removal => REMOVAL_RESERVE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(dir: &Path) -> SpaceGate {
        SpaceGate::open(dir, Arc::default(), true).unwrap()
    }

    #[test]
    fn removals_outlive_creates_and_creates_outlive_data() {
        for total in [1 << 20, 64 << 20, 1 << 30, 1 << 40, u64::MAX] {
            let [o, t, r] =
                [Class::Object, Class::Table, Class::Removal].map(|c| reserve(total, c));
            assert!(o > t && t > r && r > 0, "{total}: {o} {t} {r}");
        }
    }

    #[test]
    fn targets_that_share_a_disk_report_it_once() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path());
        let whole = gate.statfs().unwrap().blocks;
        gate.share(4);
        assert_eq!(gate.statfs().unwrap().blocks, whole / 4);
    }

    #[test]
    fn more_than_the_disk_is_refused_and_a_little_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path());
        assert!(matches!(
            gate.admit(Class::Object, 1 << 60),
            Err(OsdError::NoSpace)
        ));
        gate.admit(Class::Object, 4096).unwrap();
        gate.admit(Class::Table, 4096).unwrap();
    }

    #[test]
    fn those_who_wait_for_a_settle_share_the_next() {
        let disk = Disk::default();
        let mut runs = 0;
        let (one, two) = (disk.settles_begun(), disk.settles_begun());
        let mut meanwhile = 0;
        assert!(disk.settle_after(one, || {
            runs += 1;
            meanwhile = disk.settles_begun();
            true
        }));
        assert!(disk.settle_after(two, || unreachable!("it waited for the first")));
        assert!(
            !disk.settle_after(meanwhile, || {
                runs += 1;
                false
            }),
            "the first had begun"
        );
        assert!(disk.settle_after(meanwhile, || {
            runs += 1;
            true
        }));
        assert_eq!(runs, 3, "what failed is nobody's");
    }

    #[test]
    fn a_promised_write_never_settles_and_has_more_freed_after_each_settle() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::<Disk>::default();
        let mut gate = SpaceGate::open(dir.path(), disk.clone(), true).unwrap();
        gate.lags = true;
        assert!(gate.promise(64 << 20).unwrap() > 0);
        let freed = |gate: &SpaceGate| {
            let before = gate.stock.promised();
            assert!(!gate.make_room(1 << 20), "nothing is free before a settle");
            before - gate.stock.promised()
        };
        let (first, again) = (freed(&gate), freed(&gate));
        assert_eq!(first, again);
        assert_eq!(disk.settles_begun(), 0);
        assert!(gate.settle());
        assert!(freed(&gate) > first);
        gate.found_room();
        assert_eq!(freed(&gate), first);
    }

    #[test]
    fn a_promised_write_finds_room_that_another_target_put_by() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let disk = Arc::<Disk>::default();
        let open = |d: &Path| {
            let mut gate = SpaceGate::open(d, disk.clone(), true).unwrap();
            // so that it puts by what it promises, whatever is free here
            gate.lags = true;
            gate.promise(8 << 20).unwrap();
            gate.lags = false;
            gate
        };
        let (one, two) = (open(a.path()), open(b.path()));
        let all = one.stock.promised() + two.stock.promised();
        assert!(all >= 16 << 20, "{all}");
        let mut freed = 0;
        while one.make_room(1 << 20) {
            let left = one.stock.promised() + two.stock.promised();
            freed += 1;
            assert!(left < all && disk.sums.lock().stocked == left);
        }
        assert_eq!((one.stock.promised(), two.stock.promised()), (0, 0));
        assert!(freed > 4, "a little at a time: {freed}");
        drop(two);
        assert!(!one.make_room(1 << 20), "nothing is left");
    }

    #[test]
    fn what_is_not_sorted_yet_has_its_room_kept() {
        let dir = tempfile::tempdir().unwrap();
        let gate = gate(dir.path());
        gate.set_unsorted(1 << 60);
        assert_eq!(gate.statfs().unwrap().blocks_avail, 0);
        assert!(matches!(
            gate.admit(Class::Object, 1),
            Err(OsdError::NoSpace)
        ));
        assert!(matches!(
            gate.admit(Class::Table, 1),
            Err(OsdError::NoSpace)
        ));
        gate.admit(Class::Removal, 1).unwrap();
        gate.set_unsorted(0);
        gate.admit(Class::Table, 1).unwrap();
    }

    #[test]
    fn what_one_target_promised_is_not_there_for_the_others() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let disk = Arc::<Disk>::default();
        let open = |d: &Path| SpaceGate::open(d, disk.clone(), true).unwrap();
        let (one, two) = (open(a.path()), open(b.path()));
        // Leaves more than what makes a disk tight, or the test would fill it.
        let most = one.left().unwrap().saturating_sub(4 << 30);
        let taken = one.promise(most).unwrap();
        assert_eq!(taken, most);
        let left = two.left().unwrap();
        assert!(left <= 5 << 30, "{left}");
        assert!(matches!(two.claim(6 << 30), Err(OsdError::NoSpace)));
        assert!(matches!(
            two.admit(Class::Table, 6 << 30),
            Err(OsdError::NoSpace)
        ));
        two.claim(1 << 30).unwrap();
        assert!(one.left().unwrap() <= 4 << 30);
        two.unclaim(1 << 30);
        one.unpromise(taken / 2);
        assert!(two.left().unwrap() >= taken / 3);
        drop(one);
        assert_eq!(
            disk.sums.lock().promised,
            0,
            "a closed target promises nothing"
        );
    }
}
