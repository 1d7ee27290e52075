//! Objects as sparse files: `objects/xx/yy/<seq>-<oid>`, numbers in hex.
//!
//! Consecutive objects share a directory (256 of them), so creating many touches few directories.
//! A write costs a `pwritev` for each MiB and one `futimens`; the attribute record is written when it changes.

mod names;
mod ranges;
mod sync;

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use self::names::{dir_names, file_name, parse_name, record_key};
use super::attr::{RECORD_BYTES, Record, XATTR};
use super::handle::{Handle, HandleCache};
use super::page_cache;
use super::pool::BufPool;
use super::space::{Class, SpaceGate};
use super::tables::Tables;
use crate::{
    Batch, FallocMode, ObjAttr, ObjectId, OsdError, SeekWhence, SetAttr, StatFs, Table, Time,
};

/// Room for an attribute record that needs a block of its own, bytes.
const RECORD_ROOM_BYTES: u64 = 64 << 10;
/// Attribute records where the file system has no extended attributes.
const OBJ_ATTR: Table = Table("osd_object_attr");
/// Times of an object that was never written or given any: 1970 itself, which is no time.
const NO_TIMES: Timestamps = Timestamps {
    last_access: Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    },
    last_modification: Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    },
};

/// The objects of one target.
pub(super) struct FsObjects {
    root: OwnedFd,
    path: PathBuf,
    handles: HandleCache,
    pool: Arc<BufPool>,
    space: Arc<SpaceGate>,
    /// Objects changed since their last sync.
    changed: Mutex<HashSet<ObjectId>>,
    /// Directories that objects were removed from since their last sync.
    shrunk: Mutex<BTreeSet<String>>,
    /// Held while all are synced: a second one must not take for synced what the first is still syncing.
    syncing_all: Mutex<()>,
    /// A sync failed. The kernel says so once and drops the data: a later sync would succeed without them.
    sync_failed: AtomicBool,
    /// Holds the attribute records where xattrs are not to be had.
    records: Option<Arc<Tables>>,
    max_bytes: u64,
}

impl FsObjects {
    pub(super) fn open(
        dir: &Path,
        open_files: usize,
        space: Arc<SpaceGate>,
        tables: &Arc<Tables>,
        max_bytes: u64,
    ) -> std::io::Result<FsObjects> {
        let root = std::fs::File::open(dir)?;
        // Asked for first: setting it may need room.
        if rustix::fs::fgetxattr(&root, XATTR, &mut [0; 1]) == Err(Errno::NODATA) {
            match rustix::fs::fsetxattr(&root, XATTR, b"", XattrFlags::empty()) {
                Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Self::look(dir, open_files, space, tables, max_bytes)
    }

    /// As [`FsObjects::open`] without changing anything, for reading only.
    pub(super) fn look(
        dir: &Path,
        open_files: usize,
        space: Arc<SpaceGate>,
        tables: &Arc<Tables>,
        max_bytes: u64,
    ) -> std::io::Result<FsObjects> {
        let root = OwnedFd::from(std::fs::File::open(dir)?);
        let has_xattr = match rustix::fs::fgetxattr(&root, XATTR, &mut [0; 1]) {
            Ok(_) => true,
            // Never opened, or it cannot be set: then there are records if there is anything.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => false,
            Err(e) => return Err(e.into()),
        };
        Ok(FsObjects {
            root,
            path: dir.to_owned(),
            handles: HandleCache::new(open_files),
            pool: BufPool::of_process(),
            space,
            changed: Mutex::default(),
            shrunk: Mutex::default(),
            syncing_all: Mutex::default(),
            sync_failed: AtomicBool::new(false),
            records: (!has_xattr).then(|| tables.clone()),
            max_bytes,
        })
    }

    fn find(&self, id: ObjectId) -> Result<Option<Arc<Handle>>, OsdError> {
        self.handles.find(id, || self.open_file(id))
    }

    fn make(&self, id: ObjectId) -> Result<Arc<Handle>, OsdError> {
        self.make_in(id, Some(Class::Object))
    }

    /// As [`FsObjects::make`]; `None`: its room is promised.
    fn make_in(&self, id: ObjectId, class: Option<Class>) -> Result<Arc<Handle>, OsdError> {
        let handle = self
            .handles
            .find(id, || self.open_or_make(id, Some(class)))?;
        handle.ok_or(OsdError::Invalid("an object that cannot be created"))
    }

    /// Notes an object for the next sync of all. After the change: a sync in between would take it
    /// for done.
    fn note_change(&self, h: &Handle) {
        if !h.dirty.swap(true, Ordering::AcqRel) {
            self.changed.lock().insert(h.id);
        }
    }

    fn open_file(&self, id: ObjectId) -> Result<Option<Handle>, OsdError> {
        self.open_or_make(id, None)
    }

    /// Opens an object; `make`: makes it if it is not there, with room of that class.
    fn open_or_make(
        &self,
        id: ObjectId,
        make: Option<Option<Class>>,
    ) -> Result<Option<Handle>, OsdError> {
        let name = file_name(id);
        let mut created = false;
        let file = match (self.openat(&name, OFlags::empty()), make) {
            (Err(Errno::NOENT), Some(class)) => {
                if let Some(class) = class {
                    self.space.admit(class, 4096)?;
                }
                created = true;
                self.create_file(id, &name)
            }
            (Err(Errno::NOENT), None) => return Ok(None),
            (other, _) => other,
        };
        let file = file.map_err(|e| failed("open object", id, e))?;
        let record = if created {
            // Nobody has written to it yet: it has no times of its own, those of the file's inode count (`ofd_precreate_objects`).
            rustix::fs::futimens(&file, &NO_TIMES)
                .map_err(|e| failed("clear the times of new", id, e))?;
            Record::default()
        } else {
            self.load_record(id, &file)?
        };
        // Closed and opened again between its making and its sync: its name is not safe yet either.
        let unsynced = created || self.changed.lock().contains(&id);
        Ok(Some(Handle::new(id, file, record, unsynced)))
    }

    fn openat(&self, name: &str, more: OFlags) -> rustix::io::Result<OwnedFd> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOATIME | more;
        match rustix::fs::openat(&self.root, name, flags, mode) {
            // Not our file (another user wrote it): then its atime moves, nothing else.
            Err(Errno::PERM) => rustix::fs::openat(&self.root, name, flags - OFlags::NOATIME, mode),
            Err(Errno::MFILE | Errno::NFILE) => {
                self.handles.shed();
                rustix::fs::openat(&self.root, name, flags, mode)
            }
            other => other,
        }
    }

    fn create_file(&self, id: ObjectId, name: &str) -> rustix::io::Result<OwnedFd> {
        match self.openat(name, OFlags::CREATE) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let (outer, inner) = dir_names(id);
        for dir in [&outer, &inner] {
            match rustix::fs::mkdirat(&self.root, dir.as_str(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
        self.openat(name, OFlags::CREATE)
    }

    fn load_record(&self, id: ObjectId, file: &OwnedFd) -> Result<Record, OsdError> {
        let damaged = || OsdError::Corrupt(format!("attributes of object {id}"));
        if let Some(tables) = &self.records {
            let rec = tables.get(OBJ_ATTR, &record_key(id))?;
            return rec.map_or(Ok(Record::default()), |b| {
                Record::decode(&b).ok_or_else(damaged)
            });
        }
        let mut buf = [0; RECORD_BYTES];
        match rustix::fs::fgetxattr(file, XATTR, &mut buf) {
            Ok(n) => Record::decode(&buf[..n]).ok_or_else(damaged),
            Err(Errno::NODATA) => Ok(Record::default()),
            Err(Errno::RANGE) => Err(damaged()),
            Err(e) => Err(failed("read attributes of object", id, e)),
        }
    }

    fn store_record(&self, id: ObjectId, file: &OwnedFd, rec: &Record) -> Result<(), OsdError> {
        let bytes = rec.encode();
        if let Some(tables) = &self.records {
            let mut b = Batch::new();
            b.put(OBJ_ATTR, record_key(id).to_vec(), bytes.to_vec());
            return tables.commit(b);
        }
        rustix::fs::fsetxattr(file, XATTR, &bytes, XattrFlags::empty())
            .map_err(|e| failed("store attributes of object", id, e))
    }

    fn each_dir(
        &self,
        dir: &Path,
        f: &mut dyn FnMut(&Path) -> Result<bool, OsdError>,
    ) -> Result<bool, OsdError> {
        let fail = |e| OsdError::io(format!("list {}", dir.display()), e);
        for entry in std::fs::read_dir(dir).map_err(fail)? {
            if !f(&entry.map_err(fail)?.path())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn visit_file(
        &self,
        path: &Path,
        f: &mut dyn FnMut(ObjectId, ObjAttr) -> bool,
    ) -> Result<bool, OsdError> {
        let name = path.file_name().and_then(|n| n.to_str());
        let Some(id) = name.and_then(parse_name) else {
            return Err(OsdError::Corrupt(format!(
                "{}: not an object",
                path.display()
            )));
        };
        if path != self.path.join(file_name(id)) {
            return Err(OsdError::Corrupt(format!(
                "{}: in the wrong directory",
                path.display()
            )));
        }
        Ok(self.attr(id)?.is_none_or(|attr| f(id, attr)))
    }
}

impl FsObjects {
    pub(super) fn read(&self, id: ObjectId, off: u64, len: usize) -> Result<Bytes, OsdError> {
        let Some(h) = self.find(id)? else {
            return Ok(Bytes::new());
        };
        self.read_at(&h, off, len)
    }

    pub(super) fn try_read(
        &self,
        id: ObjectId,
        off: u64,
        len: usize,
    ) -> Result<Option<Bytes>, OsdError> {
        let Some(h) = self.find(id)? else {
            return Ok(Some(Bytes::new()));
        };
        // Not RWF_NOWAIT: a read that may not wait asks for no read-ahead either, and sequential
        // reading falls to a third of the disk's speed.
        let end = (off + len as u64).min(self.stat(&h)?.st_size as u64);
        if off < end && !page_cache::holds(h.file.as_fd(), off, end - off) {
            return Ok(None);
        }
        self.read_at(&h, off, len).map(Some)
    }

    pub(super) fn write(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Result<(), OsdError> {
        let len = self.fits(off, bufs)?;
        let h = self.make(id)?;
        self.admit_write(&h, off, len)?;
        let done = self.pwrite_all(&h, off, bufs);
        self.note_change(&h);
        done
    }

    pub(super) fn write_promised(
        &self,
        id: ObjectId,
        off: u64,
        bufs: &[Bytes],
    ) -> Result<(), OsdError> {
        let len = self.fits(off, bufs)?;
        self.with_promised(len, || {
            let h = self.make_in(id, None)?;
            let done = self.pwrite_all(&h, off, bufs);
            self.note_change(&h);
            done
        })
    }

    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    pub(super) fn truncate(&self, id: ObjectId, size: u64) -> Result<(), OsdError> {
        if size > self.max_bytes {
            return Err(OsdError::TooLarge(size));
        }
        let h = self.make(id)?;
        rustix::fs::ftruncate(&h.file, size).map_err(|e| failed("truncate object", id, e))?;
        self.note_change(&h);
        Ok(())
    }

    pub(super) fn punch(&self, id: ObjectId, start: u64, end: u64) -> Result<(), OsdError> {
        let Some(h) = self.find(id)? else {
            return Ok(());
        };
        let done = self.punch_handle(&h, start, end);
        self.note_change(&h);
        done
    }

    pub(super) fn fallocate(
        &self,
        id: ObjectId,
        mode: FallocMode,
        start: u64,
        end: u64,
    ) -> Result<(), OsdError> {
        if start >= end {
            return Err(OsdError::Invalid("an empty range"));
        }
        if end > self.max_bytes {
            return Err(OsdError::TooLarge(end));
        }
        if mode == FallocMode::PunchHole {
            return self.punch(id, start, end);
        }
        let h = self.make(id)?;
        self.admit_write(&h, start, end - start)?;
        let done = match mode {
            FallocMode::Allocate => {
                self.fallocate_file(&h, FallocateFlags::empty(), start, end - start)
            }
            FallocMode::AllocateKeepSize => {
                self.fallocate_file(&h, FallocateFlags::KEEP_SIZE, start, end - start)
            }
            FallocMode::ZeroRange => self.zero_range(&h, start, end, false),
            FallocMode::ZeroRangeKeepSize => self.zero_range(&h, start, end, true),
            FallocMode::PunchHole => Ok(()),
        };
        self.note_change(&h);
        done
    }

    pub(super) fn seek(
        &self,
        id: ObjectId,
        off: u64,
        whence: SeekWhence,
    ) -> Result<Option<u64>, OsdError> {
        let Some(h) = self.find(id)? else {
            return Ok(None);
        };
        if off > i64::MAX as u64 {
            return Ok(None);
        }
        let from = match whence {
            SeekWhence::Data => SeekFrom::Data(off),
            SeekWhence::Hole => SeekFrom::Hole(off),
        };
        match rustix::fs::seek(&h.file, from) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(failed("seek object", id, e)),
        }
    }

    pub(super) fn attr(&self, id: ObjectId) -> Result<Option<ObjAttr>, OsdError> {
        // to open it would close another
        let by_name = |record: &Record| {
            let name = file_name(id);
            let st = rustix::fs::statat(&self.root, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            st.ok().map(|st| attr_of(&st, record))
        };
        if let Some(Some(attr)) = self.handles.closed(id, by_name) {
            return Ok(Some(attr));
        }
        let Some(h) = self.find(id)? else {
            return Ok(None);
        };
        let st = self.stat(&h)?;
        Ok(Some(attr_of(&st, &h.record.lock())))
    }

    pub(super) fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<ObjAttr, OsdError> {
        let h = self.make(id)?;
        let mut record = h.record.lock();
        let set = set.for_object(record.owned);
        let old_mtime = match set.ctime {
            Some(_) => Time::default(),
            None => mtime(&self.stat(&h)?),
        };
        if set.mtime.is_some() || set.atime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            rustix::fs::futimens(&h.file, &times).map_err(|e| failed("set times of", id, e))?;
        }
        // What the file system made of the times: it may keep fewer digits or years.
        let st = self.stat(&h)?;
        let new = record.after(&set, old_mtime, mtime(&st));
        if new != *record {
            // Behind a write it belongs to: the block it may need is part of what that was promised.
            self.with_promised(RECORD_ROOM_BYTES, || self.store_record(id, &h.file, &new))?;
            *record = new;
        }
        self.note_change(&h);
        Ok(attr_of(&st, &record))
    }

    pub(super) fn destroy(&self, id: ObjectId) -> Result<bool, OsdError> {
        let name = file_name(id);
        let unlink = || rustix::fs::unlinkat(&self.root, name.as_str(), AtFlags::empty());
        match self.handles.remove(id, unlink) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(e) => return Err(failed("remove object", id, e)),
        }
        self.changed.lock().remove(&id);
        self.shrunk.lock().insert(dir_names(id).1);
        if let Some(tables) = &self.records {
            let mut b = Batch::new();
            b.del(OBJ_ATTR, record_key(id).to_vec());
            tables.commit(b)?;
        }
        Ok(true)
    }

    pub(super) fn iterate(
        &self,
        f: &mut dyn FnMut(ObjectId, ObjAttr) -> bool,
    ) -> Result<(), OsdError> {
        self.each_dir(&self.path, &mut |outer| {
            self.each_dir(outer, &mut |inner| {
                self.each_dir(inner, &mut |file| self.visit_file(file, f))
            })
        })?;
        Ok(())
    }

    pub(super) fn space(&self) -> Result<StatFs, OsdError> {
        self.space.statfs()
    }
}

fn failed(what: &str, id: ObjectId, e: Errno) -> OsdError {
    OsdError::io(format!("{what} {id}"), e.into())
}

fn mtime(st: &Stat) -> Time {
    Time {
        secs: st.st_mtime,
        nsecs: st.st_mtime_nsec as u32,
    }
}

fn attr_of(st: &Stat, record: &Record) -> ObjAttr {
    let mut attr = ObjAttr {
        size: st.st_size as u64,
        blocks: st.st_blocks as u64,
        mtime: mtime(st),
        atime: Time {
            secs: st.st_atime,
            nsecs: st.st_atime_nsec as u32,
        },
        ..Default::default()
    };
    record.fill(&mut attr);
    attr
}

fn timespec(t: Option<Time>) -> Timespec {
    match t {
        Some(t) => Timespec {
            tv_sec: t.secs,
            tv_nsec: t.nsecs.min(999_999_999) as _,
        },
        None => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path, open_files: usize) -> FsObjects {
        let gate = || Arc::new(SpaceGate::open(dir, Arc::default(), false).unwrap());
        let limits = super::super::tables::Limits {
            open_files: 16,
            workers: 1,
            unsorted_bytes: 1 << 20,
            logs_damage: true,
        };
        let tables = Tables::open(dir, limits, gate()).unwrap();
        FsObjects::open(dir, open_files, gate(), &Arc::new(tables), i64::MAX as u64).unwrap()
    }

    fn oid(oid: u64) -> ObjectId {
        ObjectId { seq: 0, oid }
    }

    #[test]
    fn an_object_stays_noted_until_its_sync_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let o = open(dir.path(), 100);
        o.write(oid(1), 0, &[Bytes::from_static(b"x")]).unwrap();
        let h = o.find(oid(1)).unwrap().unwrap();
        std::thread::scope(|s| {
            // as if another sync of it were under way
            let other = h.syncing.lock();
            let all = s.spawn(|| o.sync_all());
            while !o.syncing_all.is_locked() {
                std::thread::yield_now();
            }
            assert!(o.changed.lock().contains(&oid(1)), "not synced yet");
            drop(other);
            all.join().unwrap().unwrap();
        });
        assert!(o.changed.lock().is_empty() && !h.dir_dirty.load(Ordering::Relaxed));
    }

    #[test]
    fn what_changes_around_a_sync_is_noted_for_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let o = open(dir.path(), 100);
        let write = |n| o.write(oid(n), 0, &[Bytes::from_static(b"x")]).unwrap();
        write(1);
        o.sync_file_system().unwrap();
        assert!(o.changed.lock().is_empty());
        write(1);
        assert!(
            o.changed.lock().contains(&oid(1)),
            "changed after a sync of everything"
        );
        o.sync_object(oid(1)).unwrap();
        write(1);
        assert!(
            o.changed.lock().contains(&oid(1)),
            "changed after its own sync"
        );
    }

    #[test]
    fn a_new_object_that_was_closed_meanwhile_still_needs_its_directory_synced() {
        let dir = tempfile::tempdir().unwrap();
        let o = open(dir.path(), 1);
        o.write(oid(8), 0, &[Bytes::from_static(b"x")]).unwrap();
        o.attr(oid(16)).unwrap();
        o.handles.shed();
        assert!(
            o.find(oid(8))
                .unwrap()
                .unwrap()
                .dir_dirty
                .load(Ordering::Relaxed)
        );
        o.sync_all().unwrap();
        o.handles.shed();
        assert!(
            !o.find(oid(8))
                .unwrap()
                .unwrap()
                .dir_dirty
                .load(Ordering::Relaxed)
        );
    }

    #[test]
    fn no_sync_succeeds_after_one_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let o = open(dir.path(), 100);
        o.write(oid(1), 0, &[Bytes::from_static(b"x")]).unwrap();
        // The kernel reports a lost page once; the next fsync would succeed.
        o.failed_sync("sync object", oid(1), Errno::IO);
        assert_eq!(o.sync_object(oid(1)).unwrap_err().errno(), libc::EIO);
        assert_eq!(o.sync_all().unwrap_err().errno(), libc::EIO);
    }
}
