//! Tables in fjall, a log-structured store.
//!
//! Durability: a commit is in the operating system's hands when it returns (the journal is written
//! with `write(2)` before the batch becomes visible), so it survives `kill -9`; `sync` asks for the
//! disk. fjall stops accepting writes after a failed journal write, hence the [`SpaceGate`]: it
//! must never meet a full disk.
//!
//! Before fjall opens the store it is verified that the journals reach as far as the last sync
//! ([`super::synced`]) and that the lists of files are whole ([`super::manifest`]). The files
//! themselves have a checksum for each block, which fjall verifies when it reads one.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::{Mutex, RwLock};

use super::space::{Class, SpaceGate};
use super::synced::{Acked, JournalLen, Promise, SyncedFile};
use super::{journal, manifest};
use crate::{Batch, Op, OsdError, Table};

/// Bytes of recent changes held in memory for each table before they are sorted to disk.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Bytes of journals kept on disk before tables are flushed to let them go.
const JOURNALS_MAX_BYTES: u64 = 256 << 20;
/// Journal bytes a change takes beside its key and value.
const CHANGE_OVERHEAD_BYTES: u64 = 64;

/// The tables of one target.
pub(super) struct Tables {
    db: Database,
    /// Few enough that a scan beats hashing.
    open: RwLock<Vec<(Table, Keyspace)>>,
    space: Arc<SpaceGate>,
    // After `db`: its last promise is made when the store is closed.
    syncs: Syncs,
}

impl Tables {
    /// Opens or creates the store in the target directory `target`. The message of an error says
    /// what is damaged.
    pub(super) fn open(
        target: &Path,
        cache_bytes: u64,
        open_files: usize,
        workers: usize,
        space: Arc<SpaceGate>,
    ) -> Result<Tables, String> {
        let dir = target.join("kv");
        let fail = |e| format!("open SYNCED in {}: {e}", target.display());
        let (synced, promise) = SyncedFile::open(target).map_err(fail)?;
        manifest::check(&dir)?;
        let found = journal::check(&dir, promise.as_ref())?;
        let open = || {
            Database::builder(&dir)
                .cache_size(cache_bytes)
                .max_cached_files(Some(open_files.max(10)))
                .worker_threads(workers)
                .max_journaling_size(JOURNALS_MAX_BYTES)
                .open()
        };
        // A store that is damaged in ways fjall does not expect makes it panic.
        let db = catch_unwind(AssertUnwindSafe(open))
            .map_err(|_| damaged(&dir, "a file has content that makes no sense"))?
            .map_err(|e| damaged(&dir, &describe(&e)))?;
        let inherits_unsynced = promise.as_ref().is_none_or(Promise::may_leave_unsynced);
        let last = found.last_seqno.max(promise.map(|p| p.seqno)).unwrap_or(0);
        if last > 0 && db.seqno() <= last {
            return Err(format!("it goes up to batch {}, but there was batch {last}", db.seqno()));
        }
        let syncs = Syncs {
            dir,
            acked: Acked::new(last),
            synced,
            journals: Mutex::new(found.journals),
            inherits_unsynced,
            objects_synced: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        };
        syncs.sync().map_err(fail)?;
        space.set_unsorted(db.write_buffer_size());
        Ok(Tables { db, open: RwLock::default(), space, syncs })
    }

    /// Whether the process that had the target before may have left object data unsynced.
    pub(super) fn inherits_unsynced(&self) -> bool {
        self.syncs.inherits_unsynced
    }

    /// The target is being closed and its objects were synced.
    pub(super) fn objects_are_synced(&self) {
        self.syncs.objects_synced.store(true, Ordering::Relaxed);
    }

    fn keyspace(&self, t: Table) -> Result<Keyspace, OsdError> {
        if let Some((_, k)) = self.open.read().iter().find(|(name, _)| *name == t) {
            return Ok(k.clone());
        }
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .expect_point_read_hits(false)
        };
        let k = self.db.keyspace(t.0, options).map_err(from_fjall)?;
        let mut open = self.open.write();
        if !open.iter().any(|(name, _)| *name == t) {
            open.push((t, k.clone()));
        }
        Ok(k)
    }

    pub(super) fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        let val = self.keyspace(t)?.get(key).map_err(from_fjall)?;
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
        let k = self.keyspace(t)?;
        let iter = match to {
            Some(to) => k.range(from..to),
            None => k.range(from..),
        };
        iter.take(limit).map(|g| pair(g.into_inner())).collect()
    }

    pub(super) fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        let last = self.keyspace(t)?.prefix(prefix).next_back();
        last.map(|g| pair(g.into_inner())).transpose()
    }

    pub(super) fn commit(&self, b: Batch) -> Result<(), OsdError> {
        if b.is_empty() {
            return Ok(());
        }
        self.syncs.refuse_after_failure()?;
        let (class, bytes) = weigh(&b)?;
        // Once for the journal and once for the sorted table.
        self.space.admit(class, 2 * bytes)?;
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), b.len())
            .durability(Some(PersistMode::Buffer));
        for op in b.ops() {
            match op {
                Op::Put { table, key, val } => {
                    batch.insert(&self.keyspace(*table)?, &key[..], &val[..]);
                }
                Op::Del { table, key } => batch.remove(&self.keyspace(*table)?, &key[..]),
            }
        }
        let next = self.db.seqno();
        batch.commit().map_err(from_fjall)?;
        self.syncs.acked.committed(next);
        self.space.set_unsorted(self.db.write_buffer_size());
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), OsdError> {
        self.syncs.refuse_after_failure()?;
        self.space.set_unsorted(self.db.write_buffer_size());
        self.syncs.sync().map_err(|e| OsdError::io("sync the key-value store", e))
    }

    /// Reads every record of every table, so that every checksum is verified; the number of
    /// records.
    pub(super) fn verify(&self) -> Result<u64, OsdError> {
        let mut count = 0;
        for name in self.db.list_keyspace_names() {
            let k = self.db.keyspace(&name, KeyspaceCreateOptions::default).map_err(from_fjall)?;
            for guard in k.iter() {
                guard.into_inner().map_err(|e| {
                    OsdError::Corrupt(format!("table {}: {}", &*name, damaged(&self.syncs.dir, &describe(&e))))
                })?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Syncs the journals and keeps the promise of it.
struct Syncs {
    /// Of the store.
    dir: PathBuf,
    acked: Acked,
    synced: SyncedFile,
    /// As of the last sync. Held during a sync: promises are written in order.
    journals: Mutex<Vec<JournalLen>>,
    inherits_unsynced: bool,
    objects_synced: AtomicBool,
    /// A sync failed: what the kernel dropped then, no later sync would bring back.
    failed: AtomicBool,
}

impl Syncs {
    fn refuse_after_failure(&self) -> Result<(), OsdError> {
        match self.failed.load(Ordering::Relaxed) {
            true => Err(OsdError::Poisoned("a sync failed; restart the server".into())),
            false => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut journals = self.journals.lock();
        let seqno = self.acked.get();
        let (now, newest_began) = journal::sync(&self.dir, &journals)
            .inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
        journals.clone_from(&now);
        self.promise(Promise { seqno, newest_began, journals: now, ..Default::default() });
        Ok(())
    }

    /// A promise that cannot be written leaves the one before, which promises less.
    fn promise(&self, promise: Promise) {
        if let Err(error) = self.synced.write(promise) {
            tracing::warn!(dir = %self.dir.display(), %error, "note what was synced");
        }
    }

    /// The last promise: every byte of the journals.
    fn close(&self) -> io::Result<()> {
        self.sync()?;
        let seqno = self.acked.get();
        let mut journals = self.journals.lock();
        let newest = journal::newest_len(&self.dir)?;
        if let (Some(last), Some(newest)) = (journals.last_mut(), newest) {
            *last = newest;
        }
        let newest_began = newest.is_some_and(|j| j.bytes > 0);
        let closed = self.objects_synced.load(Ordering::Relaxed);
        self.promise(Promise { seqno, newest_began, closed, journals: journals.clone(), ..Default::default() });
        self.synced.sync()
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.close() {
            tracing::warn!(dir = %self.dir.display(), %error, "last sync of the tables");
        }
    }
}

/// What a batch needs of the disk. A batch that removes something may use more of it.
fn weigh(b: &Batch) -> Result<(Class, u64), OsdError> {
    let mut class = Class::Table;
    let mut bytes = 0;
    for op in b.ops() {
        let (key, val) = match op {
            Op::Put { key, val, .. } => (key, val.len()),
            Op::Del { key, .. } => {
                class = Class::Removal;
                (key, 0)
            }
        };
        if key.is_empty() || key.len() > u16::MAX as usize {
            return Err(OsdError::Invalid("a key of no bytes or more than 65535"));
        }
        bytes += key.len() as u64 + val as u64 + CHANGE_OVERHEAD_BYTES;
    }
    Ok((class, bytes))
}

fn pair(
    p: fjall::Result<(fjall::UserKey, fjall::UserValue)>,
) -> Result<(Bytes, Bytes), OsdError> {
    let (k, v) = p.map_err(from_fjall)?;
    Ok((Bytes::copy_from_slice(&k), Bytes::copy_from_slice(&v)))
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
        fjall::Error::Io(e) | fjall::Error::Storage(L::Io(e)) => format!("a file cannot be read, it may be cut or changed: {e}"),
        fjall::Error::Storage(L::ChecksumMismatch { .. }) => "a block's checksum is wrong: the file was changed".into(),
        fjall::Error::Storage(L::Decompress(_)) => "a block does not decompress: the file was changed".into(),
        fjall::Error::Storage(L::Unrecoverable) => "a file of a table is missing or was changed".into(),
        fjall::Error::Storage(_) => "a file of a table has another form than it should: it was cut or changed".into(),
        fjall::Error::JournalRecovery(_) => "a batch in a journal (*.jnl) was cut or changed".into(),
        fjall::Error::Locked => "another process has it open".into(),
        fjall::Error::InvalidVersion(_) => "the file `version` was changed".into(),
        fjall::Error::Poisoned => "an earlier write failed".into(),
        fjall::Error::KeyspaceDeleted => "a table was removed".into(),
        _ => "a file is missing or was changed".into(),
    }
}
