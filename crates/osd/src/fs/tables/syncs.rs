//! Syncs of the tables: what the disk has been asked for, and that a failed one is never followed by a success.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::OsdError;
use crate::fs::journal;
use crate::fs::synced::{Acked, JournalLen, Promise, SyncedFile};

/// Syncs the journals and keeps the promise of it.
pub(super) struct Syncs {
    /// Tables that are there, a bit each ([`manifest::present`]).
    pub(super) tables: Arc<AtomicU64>,
    /// Of the store.
    pub(super) dir: PathBuf,
    pub(super) acked: Acked,
    pub(super) synced: SyncedFile,
    /// As of the last sync. Held during a sync: promises are written in order.
    pub(super) journals: Mutex<Vec<JournalLen>>,
    pub(super) inherits_unsynced: bool,
    pub(super) objects_synced: AtomicBool,
    /// A sync failed: what the kernel dropped then, no later sync would bring back.
    pub(super) failed: Arc<AtomicBool>,
    /// The store takes no writes since one failed. A journal may end with a part of a batch then, which is never promised.
    pub(super) stuck: AtomicBool,
}

impl Syncs {
    pub(super) fn refuse_after_failure(&self) -> Result<(), OsdError> {
        match self.failed.load(Ordering::Relaxed) {
            true => Err(OsdError::Poisoned(
                "a sync failed; restart the server".into(),
            )),
            false => Ok(()),
        }
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        let mut journals = self.journals.lock();
        let seqno = self.acked.get();
        let (now, newest_began) = journal::sync(&self.dir, &journals)
            .inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
        if self.stuck.load(Ordering::Acquire) {
            return Ok(());
        }
        journals.clone_from(&now);
        self.promise(Promise {
            seqno,
            newest_began,
            tables: self.tables.load(Ordering::Relaxed),
            journals: now,
            ..Default::default()
        });
        Ok(())
    }

    /// A promise that cannot be written leaves the one before, which promises less.
    fn promise(&self, promise: Promise) {
        if let Err(error) = self.synced.write(promise) {
            tracing::warn!(dir = %self.dir.display(), %error, "note what was synced");
        }
    }

    /// The store is closed and its tables hold all that is in the journals: cuts off the newest what the next start would read in vain.
    pub(super) fn shorten(&self) -> Result<(), String> {
        let fail = |e: io::Error| e.to_string();
        if self.failed.load(Ordering::Relaxed) || self.newest_bytes() == 0 {
            return Ok(());
        }
        self.sync().map_err(fail)?;
        {
            let mut journals = self.journals.lock();
            let [newest] = &mut journals[..] else {
                return Ok(());
            };
            // Whichever of the two a crash leaves, it has what is promised.
            newest.bytes = 0;
            let promise = Promise {
                seqno: self.acked.get(),
                newest_began: true,
                tables: self.tables.load(Ordering::Relaxed),
                journals: journals.clone(),
                ..Default::default()
            };
            self.synced.write(promise).map_err(fail)?;
            self.synced.sync().map_err(fail)?;
        }
        journal::keep_last_batch(&self.dir).map(|_| ())
    }

    /// Bytes of the newest journal.
    pub(super) fn newest_bytes(&self) -> u64 {
        journal::newest_len(&self.dir)
            .ok()
            .flatten()
            .map_or(0, |j| j.bytes)
    }

    /// The last promise: every byte of the journals.
    fn close(&self) -> io::Result<()> {
        self.sync()?;
        if self.stuck.load(Ordering::Acquire) {
            return Ok(());
        }
        let seqno = self.acked.get();
        let mut journals = self.journals.lock();
        let newest = journal::newest_len(&self.dir)?;
        if let (Some(last), Some(newest)) = (journals.last_mut(), newest) {
            *last = newest;
        }
        let newest_began = newest.is_some_and(|j| j.bytes > 0);
        let closed = self.objects_synced.load(Ordering::Relaxed);
        let tables = self.tables.load(Ordering::Relaxed);
        self.promise(Promise {
            seqno,
            newest_began,
            closed,
            tables,
            journals: journals.clone(),
            ..Default::default()
        });
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
