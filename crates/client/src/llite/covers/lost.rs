//! Written data that could not be stored: every handle that was open then hears of it (`lli_async_rc`).
//!
//! fsync tells it once, and whoever heard of it otherwise hears it there too: Linux turns the error of a write into a short count when a
//! part of it was done before, and the descriptor that another process closes may be the one that this process syncs. So a write tells
//! it once and a close as long as no fsync did, and neither takes it from fsync.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::Error;

/// Errors of writing out, for handles that were open then.
#[derive(Debug, Default)]
pub(in crate::llite) struct Lost {
    last: Mutex<(u64, Option<Arc<Error>>)>,
}

/// Of the errors of a file, what one handle was told.
#[derive(Debug)]
pub(in crate::llite) struct Told {
    /// Number of the last that an fsync told.
    by_fsync: AtomicU64,
    /// Number of the last that a write or an fsync told.
    by_write: AtomicU64,
}

impl Lost {
    /// One more.
    pub fn note(&self, e: Error) {
        let mut l = self.last.lock();
        *l = (l.0 + 1, Some(Arc::new(e)));
    }

    /// For a new handle: it does not hear of errors so far.
    pub fn beginning_now(&self) -> Told {
        let count = self.last.lock().0;
        Told {
            by_fsync: AtomicU64::new(count),
            by_write: AtomicU64::new(count),
        }
    }

    /// A write begins: the last error, once, unless an fsync told it.
    pub fn tell_write(&self, told: &Told) -> Result<(), Error> {
        self.tell(|last| told.by_write.swap(last, Ordering::AcqRel))
    }

    /// A descriptor is closed: the last error, unless an fsync told it.
    pub fn tell_close(&self, told: &Told) -> Result<(), Error> {
        self.tell(|_| told.by_fsync.load(Ordering::Acquire))
    }

    /// An fsync ends: the last error, once.
    pub fn tell_fsync(&self, told: &Told) -> Result<(), Error> {
        self.tell(|last| {
            told.by_write.store(last, Ordering::Release);
            told.by_fsync.swap(last, Ordering::AcqRel)
        })
    }

    /// The last error if it is not the one that was told.
    fn tell(&self, told: impl FnOnce(u64) -> u64) -> Result<(), Error> {
        let (count, e) = &*self.last.lock();
        match e {
            Some(e) if told(*count) != *count => Err(Error::Lost(e.clone())),
            _ => Ok(()),
        }
    }
}
