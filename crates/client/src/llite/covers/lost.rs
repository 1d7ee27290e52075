//! Written data that could not be stored: told once through each handle that was open then (`lli_async_rc`).

use std::sync::atomic::{AtomicU64, Ordering};

use coral_wire::Errno;
use parking_lot::Mutex;

/// Errors of writing out, for handles that were open then.
#[derive(Debug, Default)]
pub(in crate::llite) struct Lost {
    last: Mutex<(u64, Option<Errno>)>,
}

impl Lost {
    /// One more.
    pub fn note(&self, e: Errno) {
        let mut l = self.last.lock();
        *l = (l.0 + 1, Some(e));
    }

    /// Errors so far: a new handle does not hear of them.
    pub fn count(&self) -> u64 {
        self.last.lock().0
    }

    /// The last error if it came after the one `seen`, once.
    pub fn take(&self, seen: &AtomicU64) -> Result<(), Errno> {
        let (count, e) = *self.last.lock();
        match e {
            Some(e) if seen.swap(count, Ordering::AcqRel) != count => Err(e),
            _ => Ok(()),
        }
    }
}
