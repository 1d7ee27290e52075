//! `OsdFs`: a device in a local directory: fjall for tables, one sparse file per object.
//!
//! ```text
//! DIR/CORAL      the label (written last by format)
//! DIR/FRESH      no MGS has accepted the target yet
//! DIR/LOCK       locked while open, holds the pid
//! DIR/NOTED      a number that survives the process, not the machine
//! DIR/SYNCED     how far the journals of the tables were at the last sync
//! DIR/kv/        tables
//! DIR/objects/   xx/yy/<seq>-<oid>
//! DIR/RESERVE    blocks put by, for a start on a full disk and for what clients were promised
//! DIR/SPARE/     inodes put by
//! ```
//!
//! Invariants: nothing is written under a directory without a valid label and the lock; nobody but the owner can enter it.

mod ahead;
mod attr;
mod fresh;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod inspect;
mod journal;
mod largest;
mod lock;
mod manifest;
mod note;
mod objects;
mod page_cache;
mod pool;
pub(crate) mod private;
mod seen;
mod space;
mod stock;
mod synced;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

pub use self::fresh::Fresh;
pub use self::inspect::Inspection;
use self::lock::DirLock;
use self::note::NoteFile;
use self::objects::FsObjects;
pub use self::space::Disk;
use self::space::SpaceGate;
use self::tables::{Limits, Tables};
use crate::{
    Batch, FallocMode, Io, Kv, Label, ObjAttr, ObjectId, Objects, OpenError, OsdError, Ready, Room,
    SeekWhence, Seen, SetAttr, StatFs, Table, TargetKind, Visit,
};

/// Blocks of 512 bytes of an object that is removed at once: freeing takes the file system below a while when there are more.
const QUICK_DESTROY_BLOCKS: u64 = 16 << 11;

/// Name of the objects' directory in a target directory.
const OBJECTS_DIR: &str = "objects";

/// Limits of an [`OsdFs`].
#[derive(Clone, Debug)]
pub struct OsdFsOptions {
    /// Object files kept open.
    pub open_files: usize,
    /// Files of the tables kept open, at least 10.
    pub kv_open_files: usize,
    /// The account of the disk, when targets of this process share it.
    pub disk: Arc<Disk>,
}

impl Default for OsdFsOptions {
    /// Files in proportion to what the process may open (`RLIMIT_NOFILE`), of which several targets
    /// in one process take their part.
    fn default() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |n| n as usize);
        OsdFsOptions {
            open_files: (limit / 16).clamp(32, 2048),
            kv_open_files: (limit / 32).clamp(16, 512),
            disk: Arc::default(),
        }
    }
}

/// A device in a local directory.
pub struct OsdFs {
    tables: Arc<Tables>,
    objects: Arc<FsObjects>,
    space: Arc<SpaceGate>,
    note: NoteFile,
    /// See [`OsdFs::may_lack`].
    may_lack: bool,
    // Last: the lock goes after everything that writes, also after calls that go on when this is dropped.
    lock: Arc<DirLock>,
}

impl OsdFs {
    /// Makes a target of `dir`, which is created or must be empty.
    pub fn format(dir: &Path, label: &Label) -> Result<(), OpenError> {
        let fail = |what: &str, source| OpenError::Io {
            what: format!("{what} {}", dir.display()),
            source,
        };
        private::make_dir(dir).map_err(|e| fail("create", e))?;
        match Label::load(dir) {
            Ok(there) => {
                let what = there.target_name();
                return Err(OpenError::AlreadyFormatted {
                    dir: dir.to_owned(),
                    what,
                });
            }
            Err(OpenError::NotOurs { .. }) => {}
            Err(e) => return Err(e),
        }
        if let Some(why) = foreign_content(dir).map_err(|e| fail("list", e))? {
            return Err(OpenError::NotOurs {
                dir: dir.to_owned(),
                why,
            });
        }
        let lock = DirLock::acquire(dir)?;
        private::tighten(dir);
        remove_unfinished(dir).map_err(|e| fail("remove what an interrupted format left in", e))?;
        private::make_dir(&dir.join(OBJECTS_DIR)).map_err(|e| fail("create objects in", e))?;
        private::make_dir(&dir.join(tables::TABLES_DIR))
            .map_err(|e| fail("create tables in", e))?;
        tables::write_in_place(&dir.join(tables::TABLES_DIR));
        let options = OsdFsOptions::default();
        let space =
            SpaceGate::open(dir, options.disk.clone(), true).map_err(|e| fail("open", e))?;
        let tables = open_tables(dir, &options, label.kind, Arc::new(space))?;
        tables.sync().map_err(|e| bad_kv(dir, e.to_string()))?;
        tables.objects_are_synced(); // there are none
        drop(tables);
        if label.kind != TargetKind::Mgs {
            Fresh::own().store(dir).map_err(|e| fail("mark", e))?;
        }
        label.store(dir)?;
        drop(lock);
        Ok(())
    }

    /// Why no target can be formatted in `dir`, which may be missing; `None`: it can.
    pub fn foreign_content(dir: &Path) -> std::io::Result<Option<&'static str>> {
        match dir.symlink_metadata() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
            Ok(_) => foreign_content(dir),
        }
    }

    /// The label of a target without opening or locking it.
    pub fn label(dir: &Path) -> Result<Label, OpenError> {
        Label::load(dir)
    }

    /// Whether the target in `dir` was formatted and no MGS has accepted it yet, and who formatted it.
    pub fn fresh(dir: &Path) -> Result<Option<Fresh>, OpenError> {
        let fail = |source| OpenError::Io {
            what: format!("read {}", dir.join(fresh::FILE).display()),
            source,
        };
        Fresh::load(dir).map_err(fail)
    }

    /// An MGS has accepted the target in `dir`: from now on it may come back under another NID.
    pub fn set_registered(dir: &Path) -> Result<(), OpenError> {
        let fail = |source| OpenError::Io {
            what: format!("remove {}", dir.join(fresh::FILE).display()),
            source,
        };
        Fresh::remove(dir).map_err(fail)
    }

    /// Opens and locks the target in `dir`.
    pub fn open(dir: &Path) -> Result<(OsdFs, Label), OpenError> {
        Self::open_with(dir, OsdFsOptions::default())
    }

    /// Opens and locks the target in `dir` with limits of one's own.
    pub fn open_with(dir: &Path, options: OsdFsOptions) -> Result<(OsdFs, Label), OpenError> {
        let label = Label::load(dir)?;
        let lock = DirLock::acquire(dir)?;
        private::tighten(dir);
        let fail = |source| OpenError::Io {
            what: format!("open objects of {}", dir.display()),
            source,
        };
        let objects_dir = objects_dir(dir)?;
        let served = Self::has_served(dir).map_err(fail)?;
        let space = Arc::new(SpaceGate::open(dir, options.disk.clone(), true).map_err(fail)?);
        let tables = open_tables(dir, &options, label.kind, space.clone())?;
        let tables = Arc::new(tables);
        let may_lack = served && !tables.promised;
        let note = NoteFile::open(dir).map_err(fail)?;
        let largest = largest::largest(note.file());
        let objects = FsObjects::open(
            &objects_dir,
            options.open_files,
            space.clone(),
            &tables,
            largest,
        )
        .map_err(fail)?;
        if note.get() != 0 && tables.inherits_unsynced() {
            // What a killed process left in the page cache is about to be called committed, and nobody
            // knows which objects it changed.
            objects
                .sync_file_system()
                .map_err(|e| fail(std::io::Error::other(e)))?;
        }
        Ok((
            OsdFs {
                tables,
                objects: Arc::new(objects),
                space,
                note,
                may_lack,
                lock: Arc::new(lock),
            },
            label,
        ))
    }

    /// Whether the target in `dir` has been opened since it was formatted: it may hold data, whatever its label says or
    /// whether there is one.
    pub fn has_served(dir: &Path) -> std::io::Result<bool> {
        dir.join(note::FILE).try_exists()
    }

    /// What said how far the journal reaches (`SYNCED`) was gone when this was opened: the journal was read as far as it goes, and
    /// what was behind that, acknowledged or not, is lost.
    pub fn may_lack(&self) -> bool {
        self.may_lack
    }

    /// Tells that `count` targets share this one's disk: each reports its part in [`Objects::statfs`].
    pub fn share_disk(&self, count: u64) {
        self.space.share(count);
    }

    /// What keeps this target from serving as it should, in words; `None`: nothing.
    pub fn trouble(&self) -> Option<String> {
        self.tables
            .trouble()
            .or_else(|| self.objects.trouble())
            .or_else(|| self.space.trouble())
    }

    /// Reads every table record and visits every object, so that every stored checksum is
    /// verified; the numbers of records and objects.
    pub fn verify(&self) -> Result<(u64, u64), OsdError> {
        let records = self.verify_tables()?;
        let mut objects = 0;
        self.objects.iterate(&mut |_, _| {
            objects += 1;
            true
        })?;
        Ok((records, objects))
    }

    /// Reads every table record, so that every stored checksum is verified; their number.
    pub fn verify_tables(&self) -> Result<u64, OsdError> {
        self.tables.verify()
    }
}

impl Drop for OsdFs {
    fn drop(&mut self) {
        match self.objects.sync_all() {
            Ok(()) => self.tables.objects_are_synced(),
            Err(error) => tracing::warn!(%error, "last sync of the objects"),
        }
    }
}

/// The objects' directory of the target in `dir`.
fn objects_dir(dir: &Path) -> Result<PathBuf, OpenError> {
    let dir = dir.join(OBJECTS_DIR);
    match dir.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(OpenError::NoObjects { dir }),
        _ => Ok(dir),
    }
}

/// Why `dir` may not be formatted, if so. What an interrupted format left is ours to take.
fn foreign_content(dir: &Path) -> std::io::Result<Option<&'static str>> {
    if OsdFs::has_served(dir)? {
        return Ok(Some(
            "it has served as a target and lost its label; restore its file CORAL",
        ));
    }
    if has_any(&dir.join(OBJECTS_DIR))? || manifest::has_tables(&dir.join(tables::TABLES_DIR)) {
        return Ok(Some(
            "it holds objects or tables of a target that lost its label; restore its file CORAL",
        ));
    }
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let ours = [
            "lost+found",
            "LOCK",
            synced::NAME,
            tables::TABLES_DIR,
            OBJECTS_DIR,
            "CORAL.new",
            fresh::FILE,
            stock::RESERVE_FILE,
            stock::SPARE_DIR,
        ];
        if !ours.iter().any(|o| name == *o) {
            return Ok(Some("it is not empty"));
        }
    }
    Ok(None)
}

/// Whether there is anything in `dir`, which may be missing.
fn has_any(dir: &Path) -> std::io::Result<bool> {
    match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        entries => Ok(entries?.next().is_some()),
    }
}

/// Removes the store that a format may have left half made; what there is has no rows ([`foreign_content`]). What is promised of
/// it goes first.
fn remove_unfinished(dir: &Path) -> std::io::Result<()> {
    let if_there = |removed: std::io::Result<()>| match removed {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    if_there(fs::remove_file(dir.join(synced::NAME)))?;
    if_there(fs::remove_dir_all(dir.join(tables::TABLES_DIR)))
}

fn open_tables(
    dir: &Path,
    options: &OsdFsOptions,
    kind: TargetKind,
    space: Arc<SpaceGate>,
) -> Result<Tables, OpenError> {
    // An MDT flushes and compacts at the same time; the others hardly write.
    let (workers, unsorted_bytes) = match kind {
        TargetKind::Mdt => (2, 4 << 20),
        _ => (1, 512 << 10),
    };
    let limits = Limits {
        open_files: options.kv_open_files,
        workers,
        unsorted_bytes,
        logs_damage: true,
    };
    Tables::open(dir, limits, space).map_err(|why| bad_kv(dir, why))
}

fn bad_kv(dir: &Path, why: String) -> OpenError {
    OpenError::BadKv {
        dir: dir.join(tables::TABLES_DIR),
        why,
    }
}

impl Kv for OsdFs {
    fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        self.tables.get(t, key)
    }
    fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        self.tables.range(t, from, to, limit)
    }
    fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        self.tables.last(t, prefix)
    }
    /// A commit is a `write(2)` into the page cache: it is done here.
    fn commit(&self, b: Batch) -> Io<()> {
        Io::ready(self.tables.commit(b))
    }
    fn may_wait(&self, b: &Batch) -> bool {
        self.tables.may_wait(b)
    }
    fn ready(&self, b: &Batch) -> Option<Ready> {
        Some(Box::new(self.tables.ready(b)?))
    }
    fn commit_seen(&self, seen: Vec<Seen>) -> Io<()> {
        Io::ready(self.tables.commit_seen(seen))
    }
    fn sync(&self) -> Io<()> {
        if self.tables.has_many_removals() {
            self.compact_later();
        }
        let (tables, lock) = (self.tables.clone(), self.lock.clone());
        Io::blocking(move || {
            let done = tables.sync();
            drop(tables);
            drop(lock);
            done
        })
    }
    fn note(&self, number: u64) {
        self.note.set(number);
    }
    fn noted(&self) -> u64 {
        self.note.get()
    }
    fn statfs(&self) -> Result<StatFs, OsdError> {
        self.space.statfs()
    }
}

impl Room for OsdFs {
    fn left(&self) -> Result<u64, OsdError> {
        self.space.left()
    }
    fn promise(&self, most: u64) -> Result<u64, OsdError> {
        self.space.promise(most)
    }
    fn unpromise(&self, bytes: u64) {
        self.space.unpromise(bytes);
    }
    fn claim(&self, bytes: u64) -> Result<(), OsdError> {
        self.space.claim(bytes)
    }
    fn unclaim(&self, bytes: u64) {
        self.space.unclaim(bytes);
    }
    fn settle(&self) -> Io<bool> {
        let space = self.space.clone();
        Io::blocking(move || Ok(space.settle()))
    }
}

impl OsdFs {
    /// Gives space back that removals left in the tables, on a thread that may wait for the disk.
    fn compact_later(&self) {
        let (tables, lock) = (self.tables.clone(), self.lock.clone());
        drop(Io::blocking(move || {
            if let Err(error) = tables.compact() {
                tracing::warn!(%error, "space of what was removed is not given back yet");
            }
            drop(tables);
            drop(lock);
            Ok(())
        }));
    }

    /// Makes a call on the objects on a thread that may wait for the disk.
    fn elsewhere<T: Send + 'static>(
        &self,
        call: impl FnOnce(&FsObjects) -> Result<T, OsdError> + Send + 'static,
    ) -> Io<T> {
        let (objects, lock) = (self.objects.clone(), self.lock.clone());
        Io::blocking(move || {
            let done = call(&objects);
            drop(objects);
            drop(lock);
            done
        })
    }
}

/// What ends in the page cache is done here; what may wait for the disk, on a thread for that.
impl Objects for OsdFs {
    fn max_bytes(&self) -> u64 {
        self.objects.max_bytes()
    }
    fn read(&self, id: ObjectId, off: u64, len: usize) -> Io<Bytes> {
        match self.objects.try_read(id, off, len) {
            Ok(Some(data)) => Io::ready(Ok(data)),
            Ok(None) => self.elsewhere(move |o| o.read(id, off, len)),
            Err(e) => Io::ready(Err(e)),
        }
    }
    fn write(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Io<()> {
        Io::ready(self.objects.write(id, off, bufs))
    }
    fn write_promised(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Io<()> {
        Io::ready(self.objects.write_promised(id, off, bufs))
    }
    fn truncate(&self, id: ObjectId, size: u64) -> Io<()> {
        Io::ready(self.objects.truncate(id, size))
    }
    fn punch(&self, id: ObjectId, start: u64, end: u64) -> Io<()> {
        Io::ready(self.objects.punch(id, start, end))
    }
    /// Allocating much takes the file system below a while.
    fn fallocate(&self, id: ObjectId, mode: FallocMode, start: u64, end: u64) -> Io<()> {
        self.elsewhere(move |o| o.fallocate(id, mode, start, end))
    }
    fn seek(&self, id: ObjectId, off: u64, whence: SeekWhence) -> Result<Option<u64>, OsdError> {
        self.objects.seek(id, off, whence)
    }
    fn attr(&self, id: ObjectId) -> Result<Option<ObjAttr>, OsdError> {
        self.objects.attr(id)
    }
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<ObjAttr, OsdError> {
        self.objects.set_attr(id, set)
    }
    fn destroy(&self, id: ObjectId) -> Io<bool> {
        match self.objects.attr(id) {
            Ok(None) => Io::ready(Ok(false)),
            Ok(Some(a)) if a.blocks > QUICK_DESTROY_BLOCKS => {
                self.elsewhere(move |o| o.destroy(id))
            }
            Ok(Some(_)) => Io::ready(self.objects.destroy(id)),
            Err(e) => Io::ready(Err(e)),
        }
    }
    fn sync_object(&self, id: ObjectId) -> Io<()> {
        self.elsewhere(move |o| o.sync_object(id))
    }
    fn sync_all(&self) -> Io<()> {
        self.elsewhere(FsObjects::sync_all)
    }
    fn iterate(&self, mut visit: Visit) -> Io<()> {
        self.elsewhere(move |o| o.iterate(&mut visit))
    }
    fn space(&self) -> Result<StatFs, OsdError> {
        self.objects.space()
    }
}
