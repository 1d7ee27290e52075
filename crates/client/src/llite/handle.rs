//! The handle of an open file.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use coral_wire::coral::ATIME_DIFF_S;
use coral_wire::fid::Fid;
use coral_wire::mds::open;
use parking_lot::Mutex;

use super::blocks::WriteTrack;
use super::covers::{OpenInode, Told};
use super::inode::MdInode;
use super::late::LateFile;
use super::mdt_open::MdtOpen;
use super::streams::Stream;
use super::strides::Strides;
use crate::error::{Error, Refusal};
use crate::time::Timespec;

/// The first writes of a handle are synchronous: a file that is written by one or two of them must not pay for a cover.
const SYNC_WRITES: u32 = 2;

/// `__FMODE_EXEC` as it stands among the open flags of an exec.
const O_EXEC: u32 = 0o40;
/// Without `a_time` older than this, reads do not update it (relatime), seconds.
const RELATIME_S: i64 = 24 * 3600;

/// An open regular file.
pub struct FileHandle {
    pub(super) inode: Arc<OpenInode>,
    flags: u32,
    /// What the MDT has of it.
    pub(super) at_mdt: Arc<MdtOpen>,
    /// atime and the later of mtime and ctime at open (relatime).
    times: (Timespec, Timespec),
    was_read: AtomicBool,
    closed: AtomicBool,
    /// Of this mount's handles, this one; the owner of its flock.
    pub(super) number: u64,
    /// flock(2) was called.
    pub(super) flocked: AtomicBool,
    /// Owners that took record locks through this handle: when it goes, what a flush did not give back belongs to the open file
    /// itself (`F_OFD_SETLK`), which Linux tells nobody the end of.
    pub(super) lock_owners: Mutex<HashSet<u64>>,
    /// Writes through it so far.
    writes: AtomicU32,
    /// The file had no capabilities when that was asked last.
    pub(super) uncapped: AtomicBool,
    /// Of [`OpenInode::lost`], what it was told.
    pub(super) told: Told,
    /// It made the file: what is kept back of the attributes.
    pub(super) late: OnceLock<Arc<LateFile>>,
    /// What is read ahead of one who reads on.
    pub(super) stream: Arc<Stream>,
    /// What is read ahead of one who reads blocks at a distance.
    pub(super) strides: Arc<Strides>,
    /// What it was written at.
    pub(super) written: WriteTrack,
}

impl FileHandle {
    /// FID of the file.
    pub fn fid(&self) -> Fid {
        self.inode.fid
    }

    /// `O_*` flags it was opened with.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Opened for writing.
    pub fn writable(&self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
    }
}

impl FileHandle {
    /// Of a file that is open at its MDT; `created`: it was made by that. `number` is of this handle alone.
    pub(super) fn new(
        inode: Arc<OpenInode>,
        at_mdt: Arc<MdtOpen>,
        md: &MdInode,
        flags: u32,
        created: bool,
        number: u64,
    ) -> Self {
        let told = inode.lost.beginning_now();
        Self {
            inode,
            flags,
            at_mdt,
            times: (md.attr.atime, md.attr.mtime.max(md.attr.ctime)),
            was_read: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            number,
            flocked: AtomicBool::new(false),
            lock_owners: Mutex::default(),
            writes: AtomicU32::new(0),
            uncapped: AtomicBool::new(created),
            told,
            late: OnceLock::new(),
            stream: Arc::default(),
            strides: Arc::default(),
            written: WriteTrack::default(),
        }
    }

    /// An eviction by the MDT closes files there: opens again. EIO when the file went with it ([`MdtOpen`]).
    pub(super) async fn still_open(&self, now: Timespec) -> Result<(), Error> {
        self.at_mdt.ensure(now).await
    }

    /// Something was read: atime may have to move at close.
    pub(super) fn set_read(&self) {
        self.was_read.store(true, Ordering::Relaxed);
    }

    /// Counts a write. True: there were so many before that it pays to keep this one back.
    pub(super) fn count_write(&self) -> bool {
        self.writes.fetch_add(1, Ordering::Relaxed) >= SYNC_WRITES
    }

    /// Nothing written through it may stay dirty.
    pub(super) fn is_sync(&self) -> bool {
        self.flags & (libc::O_DSYNC | libc::O_DIRECT) as u32 != 0
    }

    /// Whether its atime moves with its close at `now`; `strict`: however new it is (strictatime).
    pub(super) fn moves_atime(&self, now: Timespec, strict: bool) -> bool {
        let (atime, change) = self.times;
        let stale = strict || atime <= change || now.secs.saturating_sub(atime.secs) > RELATIME_S;
        self.was_read.load(Ordering::Relaxed) && self.flags & libc::O_NOATIME as u32 == 0 && stale
    }

    /// Whether a Coral MDT would take the access time of a close at `now`.
    pub(super) fn is_atime_taken(&self, now: Timespec) -> bool {
        now.secs > self.times.0.secs.saturating_add(ATIME_DIFF_S)
    }

    /// True for the one who is to close it.
    pub(super) fn begin_close(&self) -> bool {
        let first = !self.closed.swap(true, Ordering::AcqRel);
        if first && self.writable() {
            self.inode.writers.fetch_sub(1, Ordering::Relaxed);
            self.inode.gate.writer_closed();
        }
        first
    }
}

impl Drop for FileHandle {
    /// A handle nobody released (its caller was interrupted) is closed all the same.
    fn drop(&mut self) {
        if !self.begin_close() {
            return;
        }
        let Ok(rt) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (at_mdt, late) = (self.at_mdt.clone(), self.late.get().cloned());
        rt.spawn(async move {
            if let Some(late) = late {
                late.sent().await;
            }
            at_mdt.close(None, None).await
        });
    }
}

/// Where `len_bytes` from `offset` on end. EFBIG: further than a file can.
pub(super) fn end_of(offset: u64, len_bytes: u64) -> Result<u64, Error> {
    offset
        .checked_add(len_bytes)
        .filter(|e| *e <= i64::MAX as u64)
        .ok_or(Refusal::TooLarge.into())
}

/// MDS_OPEN bits with which a file that was opened with `flags` is opened once more.
pub(super) fn again_bits(flags: u32) -> u64 {
    mds_flags(flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u32)
}

/// `O_*` to MDS_OPEN bits. Most have the same value. O_NOFOLLOW is left out: it is about the name, which has been looked up.
pub(super) fn mds_flags(flags: u32) -> u64 {
    let mut out = match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => open::READ,
        libc::O_WRONLY => open::WRITE,
        _ => open::READ | open::WRITE,
    };
    let same =
        (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND | libc::O_DIRECTORY) as u32;
    out |= (flags & same) as u64;
    if flags & libc::O_DSYNC as u32 != 0 {
        out |= open::SYNC;
    }
    if flags & O_EXEC != 0 {
        out |= open::EXEC;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags() {
        assert_eq!(mds_flags(libc::O_RDONLY as u32), open::READ);
        assert_eq!(mds_flags(libc::O_NOFOLLOW as u32), open::READ);
        assert_eq!(
            mds_flags(libc::O_TRUNC as u32),
            open::READ | open::TRUNC,
            "who cuts is no writer afterwards"
        );
        assert_eq!(
            mds_flags((libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL) as u32),
            open::WRITE | open::CREAT | open::EXCL
        );
        assert_eq!(
            mds_flags((libc::O_RDWR | libc::O_TRUNC) as u32),
            open::READ | open::WRITE | open::TRUNC
        );
        assert_eq!(
            mds_flags((libc::O_WRONLY | libc::O_APPEND | libc::O_SYNC) as u32),
            open::WRITE | open::APPEND | open::SYNC
        );
    }
}
