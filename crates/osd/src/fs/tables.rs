//! Tables in fjall, a log-structured store.
//!
//! Durability: a commit is in the operating system's hands when it returns (the journal is written
//! with `write(2)` before the batch becomes visible), so it survives `kill -9`; `sync` asks for the
//! disk. fjall stops accepting writes after a failed journal write, hence the [`SpaceGate`]: it
//! should never meet a full disk. Where it does (somebody else filled it), the store is closed and
//! opened again in place once there is room ([`Tables::revive`]); what was being committed then is
//! cut off: whoever committed it was told that it failed.
//!
//! Before fjall opens the store it is verified that the journals reach as far as the last sync
//! ([`super::synced`]) and that the lists of files are whole ([`super::manifest`]). The files
//! themselves have a checksum for each block, which fjall verifies when it reads one.

mod commits;
mod compaction;
mod syncs;
mod writeout;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use parking_lot::{Mutex, RwLock};
use rustix::fs::IFlags;

use self::commits::weigh;
use self::compaction::Removed;
use self::syncs::Syncs;
use self::writeout::WriteOut;
use super::space::{Class, SpaceGate};
use super::synced::{Acked, Promise, SyncedFile};
use super::{journal, manifest};
use crate::{Batch, OsdError, Table};

/// Bytes of journals kept on disk before tables are flushed to let them go.
const JOURNALS_MAX_BYTES: u64 = 64 << 20;
/// Blocks of tables that all stores of the process keep in memory together, bytes.
const CACHE_BYTES: u64 = 8 << 20;
/// Has one row, which is written with each batch that only removes, and when a store is closed sorted: of a row that was removed last the
/// sorted tables may not keep the number, and numbers must not be given again.
const NEWEST: Table = Table("closed");
const NEWEST_KEY: &str = "last";
/// Name of the tables' directory in a target directory.
pub(super) const TABLES_DIR: &str = "kv";
/// Least time between two tries to open the store again, milliseconds.
const REVIVE_PAUSE_MS: u64 = 250;

/// Limits of a store.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) open_files: usize,
    pub(super) workers: usize,
    /// Bytes of recent changes held in memory before those of the table with most of them are sorted to disk.
    pub(super) unsorted_bytes: u64,
    /// Damage is logged: whoever is served does not see what is wrong.
    pub(super) logs_damage: bool,
}

/// The tables of one target.
pub(super) struct Tables {
    /// Held for writing while the store is opened again.
    store: RwLock<Store>,
    revival: Mutex<Revival>,
    removed: Removed,
    /// Held while a table is written anew.
    compacting: Mutex<()>,
    /// The first table of which something could not be read, and what.
    damage: OnceLock<(Table, String)>,
    logs_damage: bool,
    target: PathBuf,
    limits: Limits,
    space: Arc<SpaceGate>,
    write_out: WriteOut,
    /// It was known how far the journal reaches.
    pub(super) promised: bool,
    // After `store`: its last promise is made when the store is closed.
    syncs: Syncs,
}

/// Tries to open a store again that takes no writes.
#[derive(Default)]
struct Revival {
    tried: Option<tokio::time::Instant>,
    /// Batches from this number on were never seen: what is in a journal of them is cut off.
    first_unseen: Option<u64>,
}

/// The open store.
struct Store {
    /// `None`: it could not be opened again.
    db: Option<Database>,
    /// How often it was opened again.
    number: u64,
    unsorted_bytes: u64,
    /// With so many bytes of recent changes it looks which table has most ([`Store::bound`]).
    look_at: AtomicU64,
    dir: PathBuf,
    /// Tables that are there, a bit each ([`manifest::present`]).
    present: Arc<AtomicU64>,
    /// Few enough that a scan beats hashing. Each keeps its place.
    open: RwLock<Vec<(Table, Keyspace)>>,
}

impl Store {
    fn new(
        db: Database,
        number: u64,
        limits: Limits,
        dir: &Path,
        present: &Arc<AtomicU64>,
    ) -> Store {
        present.fetch_or(manifest::present(dir), Ordering::Relaxed);
        Store {
            db: Some(db),
            number,
            unsorted_bytes: limits.unsorted_bytes,
            look_at: AtomicU64::new(limits.unsorted_bytes),
            dir: dir.to_owned(),
            present: present.clone(),
            open: RwLock::default(),
        }
    }

    fn db(&self) -> Result<&Database, OsdError> {
        self.db
            .as_ref()
            .ok_or_else(|| OsdError::Poisoned("it could not be opened again; see the log".into()))
    }

    fn keyspace(&self, t: Table) -> Result<Keyspace, OsdError> {
        if let Some((_, k)) = self.open.read().iter().find(|(name, _)| *name == t) {
            return Ok(k.clone());
        }
        let place = self.make(t)?;
        Ok(self.open.read()[place].1.clone())
    }

    /// The place of a table in [`Store::open`], where it is put when it is not there.
    fn place(&self, t: Table) -> Result<usize, OsdError> {
        let place = self.open.read().iter().position(|(name, _)| *name == t);
        place.map_or_else(|| self.make(t), Ok)
    }

    fn make(&self, t: Table) -> Result<usize, OsdError> {
        let place = self.make_one(t)?;
        // With the first other one: removals go on where the disk is full and no table can be made.
        if let Err(error) = self.make_one(NEWEST) {
            tracing::debug!(dir = %self.dir.display(), %error, "left to the next table");
        }
        Ok(place)
    }

    fn make_one(&self, t: Table) -> Result<usize, OsdError> {
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(self.unsorted_bytes)
                .expect_point_read_hits(false)
        };
        // One at a time: a table that is being made is not promised to be there.
        let mut open = self.open.write();
        if let Some(place) = open.iter().position(|(name, _)| *name == t) {
            return Ok(place);
        }
        let k = self.db()?.keyspace(t.0, options).map_err(from_fjall)?;
        self.present
            .fetch_or(manifest::present(&self.dir), Ordering::Relaxed);
        open.push((t, k));
        Ok(open.len() - 1)
    }
}

/// New files in `dir` are written where they lie, on a file system that would write elsewhere (btrfs): what has its blocks needs no
/// more of them. The store has checksums of its own.
pub(super) fn write_in_place(dir: &Path) {
    let set = || -> rustix::io::Result<()> {
        let dir = std::fs::File::open(dir).map_err(|_| rustix::io::Errno::NOENT)?;
        let flags = rustix::fs::ioctl_getflags(&dir)?;
        rustix::fs::ioctl_setflags(&dir, flags | IFlags::NOCOW)
    };
    if let Err(error) = set() {
        tracing::debug!(dir = %dir.display(), %error, "written elsewhere at each change, or in place anyway");
    }
}

/// Has the cache that all stores of the process share: a file system with many targets needs no more memory for each. It is in the
/// configuration of the first store, as fjall has no name for the cache alone.
static SHARED: OnceLock<fjall::Config> = OnceLock::new();

/// Opens the store in `dir`, whose files were looked at before.
fn open_store(dir: &Path, limits: Limits) -> Result<Database, String> {
    let open = || {
        let mut config = Database::builder(dir)
            .cache_size(CACHE_BYTES)
            .max_cached_files(Some(limits.open_files.max(10)))
            .worker_threads(limits.workers)
            .max_journaling_size(JOURNALS_MAX_BYTES)
            .into_config();
        config.cache = SHARED.get_or_init(|| config.clone()).cache.clone();
        Database::open(config)
    };
    // A store that is damaged in ways fjall does not expect makes it panic.
    catch_unwind(AssertUnwindSafe(open))
        .map_err(|_| damaged(dir, "a file has content that makes no sense"))?
        .map_err(|e| damaged(dir, &describe(&e)))
}

impl Tables {
    /// Opens or creates the store in the target directory `target`. The message of an error says
    /// what is damaged.
    pub(super) fn open(
        target: &Path,
        limits: Limits,
        space: Arc<SpaceGate>,
    ) -> Result<Tables, String> {
        let dir = target.join(TABLES_DIR);
        let fail = |e| format!("open SYNCED in {}: {e}", target.display());
        let (synced, promise) = SyncedFile::open(target).map_err(fail)?;
        let found = look_at(&dir, promise.as_ref())?;
        let db = open_store(&dir, limits)?;
        let promised = promise.is_some();
        let inherits_unsynced = promise.as_ref().is_none_or(Promise::may_leave_unsynced);
        let last = found.last_seqno.max(promise.map(|p| p.seqno)).unwrap_or(0);
        if last > 0 && db.seqno() <= last {
            return Err(format!(
                "it goes up to batch {}, but there was batch {last}",
                db.seqno()
            ));
        }
        let syncs = Syncs {
            tables: Arc::default(),
            dir: dir.clone(),
            acked: Acked::new(last),
            synced,
            journals: Mutex::new(found.journals),
            inherits_unsynced,
            objects_synced: AtomicBool::new(false),
            failed: Arc::default(),
            stuck: AtomicBool::new(false),
        };
        space.set_unsorted(db.write_buffer_size());
        let store = Store::new(db, 0, limits, &dir, &syncs.tables);
        syncs.sync().map_err(fail)?;
        Ok(Tables {
            store: RwLock::new(store),
            revival: Mutex::default(),
            removed: Removed::default(),
            compacting: Mutex::default(),
            damage: OnceLock::new(),
            logs_damage: limits.logs_damage,
            target: target.to_owned(),
            limits,
            space,
            write_out: WriteOut::default(),
            promised,
            syncs,
        })
    }

    /// Why changes are refused, in words.
    pub(super) fn trouble(&self) -> Option<String> {
        if self.syncs.failed.load(Ordering::Relaxed) {
            return Some("a sync of the tables failed: no change is accepted until the server is restarted; look at the disk".into());
        }
        if self.syncs.stuck.load(Ordering::Relaxed) {
            return Some(
                "a write to the tables failed; they are opened again when there is room on the disk"
                    .into(),
            );
        }
        let (_, damage) = self.damage.get()?;
        Some(format!(
            "{damage}; what is in it cannot be read: stop the servers and run `coral check`"
        ))
    }

    /// Opens a store again that takes no writes any more. What is committed and acknowledged is in the journals; what was being
    /// committed when it failed is cut off.
    fn revive(&self, class: Class) -> Result<(), OsdError> {
        self.syncs.refuse_after_failure()?;
        let mut revival = self.revival.lock();
        if !self.syncs.stuck.load(Ordering::Acquire) {
            return Ok(());
        }
        let pause = std::time::Duration::from_millis(REVIVE_PAUSE_MS);
        let early = class != Class::Removal && revival.tried.is_some_and(|t| t.elapsed() < pause);
        if early || !self.space.may_begin(class) {
            return Err(OsdError::NoSpace);
        }
        revival.tried = Some(tokio::time::Instant::now());
        tracing::warn!(dir = %self.syncs.dir.display(), "a write to the tables had failed; opening them again");
        // Waits for the calls under way.
        let mut store = self.store.write();
        // A try that failed has closed the store: what was seen before that counts.
        if let Some(db) = &store.db {
            revival.first_unseen = Some(db.visible_seqno());
        }
        store.close();
        let reopened = self.reopen(revival.first_unseen);
        match reopened {
            Ok(db) => {
                self.space.set_unsorted(db.write_buffer_size());
                let number = store.number + 1;
                *store = Store::new(db, number, self.limits, &self.syncs.dir, &self.syncs.tables);
                self.syncs.stuck.store(false, Ordering::Release);
                Ok(())
            }
            Err(why) => {
                tracing::error!(dir = %self.syncs.dir.display(), %why, "the tables could not be opened again");
                Err(OsdError::Poisoned(why))
            }
        }
    }

    fn reopen(&self, first_unseen: Option<u64>) -> Result<Database, String> {
        let dir = &self.syncs.dir;
        if let Some(first) = first_unseen {
            journal::cut_from(dir, first)
                .map_err(|e| format!("cut the journal in {}: {e}", dir.display()))?;
        }
        let (_, promise) = SyncedFile::open(&self.target)
            .map_err(|e| format!("open SYNCED in {}: {e}", self.target.display()))?;
        let found = look_at(dir, promise.as_ref())?;
        let db = open_store(dir, self.limits)?;
        *self.syncs.journals.lock() = found.journals;
        Ok(db)
    }

    /// Whether the process that had the target before may have left object data unsynced.
    pub(super) fn inherits_unsynced(&self) -> bool {
        self.syncs.inherits_unsynced
    }

    /// The target is being closed and its objects were synced.
    pub(super) fn objects_are_synced(&self) {
        self.syncs.objects_synced.store(true, Ordering::Relaxed);
    }

    pub(super) fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        let val = self.store.read().keyspace(t)?.get(key);
        let val = val.map_err(|e| self.unreadable(t, e))?;
        Ok(val.map(|v| Bytes::copy_from_slice(&v)))
    }

    pub(super) fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        if to.is_some_and(|to| to <= from) {
            return Ok(Vec::new());
        }
        let store = self.store.read();
        let k = store.keyspace(t)?;
        let iter = match to {
            Some(to) => k.range(from..to),
            None => k.range(from..),
        };
        iter.take(limit).map(|g| self.pair(t, g)).collect()
    }

    pub(super) fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        let store = self.store.read();
        let last = store.keyspace(t)?.prefix(prefix).next_back();
        last.map(|g| self.pair(t, g)).transpose()
    }

    fn pair(&self, t: Table, row: fjall::Guard) -> Result<(Bytes, Bytes), OsdError> {
        let (k, v) = row.into_inner().map_err(|e| self.unreadable(t, e))?;
        Ok((Bytes::copy_from_slice(&k), Bytes::copy_from_slice(&v)))
    }

    /// Which file is damaged is looked for once: all files of all tables are read for it.
    fn unreadable(&self, t: Table, e: fjall::Error) -> OsdError {
        let (why, error) = (describe(&e), from_fjall(e));
        let OsdError::Corrupt(_) = error else {
            return error;
        };
        let (table, told) = self.damage.get_or_init(|| {
            let told = format!("table {}: {}", t.0, damaged(&self.syncs.dir, &why));
            if self.logs_damage {
                tracing::error!(damage = %told, "what is in it cannot be read; stop the servers and run `coral check`");
            }
            (t, told)
        });
        OsdError::Corrupt(match *table == t {
            true => told.clone(),
            false => format!("table {}: {why} (under {})", t.0, self.syncs.dir.display()),
        })
    }

    /// Whether `b` may be seen before it is written.
    pub(super) fn may_wait(&self, b: &Batch) -> bool {
        let well =
            !self.syncs.failed.load(Ordering::Relaxed) && !self.syncs.stuck.load(Ordering::Acquire);
        well && weigh(b).is_ok_and(|(_, bytes)| self.space.may_wait(bytes))
    }

    pub(super) fn sync(&self) -> Result<(), OsdError> {
        self.syncs.refuse_after_failure()?;
        {
            // Not while the store is opened again: journals may be cut then.
            let store = self.store.read();
            if let Some(db) = &store.db {
                self.space.set_unsorted(db.write_buffer_size());
            }
            self.syncs
                .sync()
                .map_err(|e| OsdError::io("sync the key-value store", e))?;
        }
        self.space.refill();
        Ok(())
    }

    /// Reads every record of every table, so that every checksum is verified; the number of
    /// records.
    pub(super) fn verify(&self) -> Result<u64, OsdError> {
        let mut count = 0;
        let store = self.store.read();
        let db = store.db()?;
        for name in db.list_keyspace_names() {
            let k = db
                .keyspace(&name, KeyspaceCreateOptions::default)
                .map_err(from_fjall)?;
            for guard in k.iter() {
                guard.into_inner().map_err(|e| {
                    OsdError::Corrupt(format!(
                        "table {}: {}",
                        &*name,
                        damaged(&self.syncs.dir, &describe(&e))
                    ))
                })?;
                count += 1;
            }
        }
        Ok(count)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        if !self.syncs.stuck.load(Ordering::Acquire) {
            if self.has_much_to_read()
                && self.close_sorted()
                && let Err(error) = self.syncs.shorten()
            {
                tracing::warn!(dir = %self.syncs.dir.display(), %error, "the next start reads the whole journal");
            }
            return;
        }
        // What failed, fjall would try to write once more when it is closed. Whoever committed it was told that it failed.
        let store = self.store.get_mut();
        let first_unseen = store
            .db
            .as_ref()
            .map(Database::visible_seqno)
            .or(self.revival.get_mut().first_unseen);
        store.close();
        if let Some(Err(error)) =
            first_unseen.map(|first| journal::cut_from(&self.syncs.dir, first))
        {
            tracing::error!(dir = %self.syncs.dir.display(), %error, "cutting off what could not be written");
        }
    }
}

/// Verifies the files of the store in `dir` before it is opened.
fn look_at(dir: &Path, promise: Option<&Promise>) -> Result<journal::Found, String> {
    manifest::check(dir, promise.map_or(0, |p| p.tables))?;
    let found = journal::check(dir, promise)?;
    match found.tables.iter().find(|id| !manifest::is_made(dir, **id)) {
        Some(id) => Err(manifest::missing(
            dir,
            *id,
            "a journal has rows of that table",
        )),
        None => Ok(found),
    }
}

fn from_fjall(e: fjall::Error) -> OsdError {
    match e {
        fjall::Error::Io(e) => OsdError::io("key-value store", e),
        fjall::Error::Storage(fjall::LsmError::Io(e)) => OsdError::io("key-value store", e),
        fjall::Error::Poisoned => OsdError::Poisoned("restart the server".into()),
        e => OsdError::Corrupt(format!("key-value store: {}", describe(&e))),
    }
}

/// What is wrong with the store in `kv`, with the file where it can be told. fjall's errors name none.
fn damaged(kv: &Path, why: &str) -> String {
    match manifest::damaged_file(kv) {
        Some(file) => format!("{}: {why}", file.display()),
        None => format!("{why} (under {})", kv.display()),
    }
}

/// A store's error in words.
fn describe(e: &fjall::Error) -> String {
    use fjall::LsmError as L;
    match e {
        fjall::Error::Io(e) | fjall::Error::Storage(L::Io(e)) => {
            format!("a file cannot be read, it may be cut or changed: {e}")
        }
        fjall::Error::Storage(L::ChecksumMismatch { .. }) => {
            "a block's checksum is wrong: the file was changed".into()
        }
        fjall::Error::Storage(L::Decompress(_)) => {
            "a block does not decompress: the file was changed".into()
        }
        fjall::Error::Storage(L::Unrecoverable) => {
            "a file of a table is missing or was changed".into()
        }
        fjall::Error::Storage(_) => {
            "a file of a table has another form than it should: it was cut or changed".into()
        }
        fjall::Error::JournalRecovery(_) => {
            "a batch in a journal (*.jnl) was cut or changed".into()
        }
        fjall::Error::Locked => "another process has it open".into(),
        fjall::Error::InvalidVersion(_) => "the file `version` was changed".into(),
        fjall::Error::Poisoned => "an earlier write failed".into(),
        fjall::Error::KeyspaceDeleted => "a table was removed".into(),
        _ => "a file is missing or was changed".into(),
    }
}
