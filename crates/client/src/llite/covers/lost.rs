//! Written data that could not be stored: told once through each handle that was open then (`lli_async_rc`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::Error;

/// Errors of writing out, for handles that were open then.
#[derive(Debug, Default)]
pub(in crate::llite) struct Lost {
    last: Mutex<(u64, Option<Arc<Error>>)>,
}

impl Lost {
    /// One more.
    pub fn note(&self, e: Error) {
        let mut l = self.last.lock();
        *l = (l.0 + 1, Some(Arc::new(e)));
    }

    /// Errors so far: a new handle does not hear of them.
    pub fn count(&self) -> u64 {
        self.last.lock().0
    }

    /// The last error if it came after the one `seen`, once.
    pub fn take(&self, seen: &AtomicU64) -> Result<(), Error> {
        let (count, e) = &*self.last.lock();
        match e {
            Some(e) if seen.swap(*count, Ordering::AcqRel) != *count => Err(Error::Lost(e.clone())),
            _ => Ok(()),
        }
    }
}
