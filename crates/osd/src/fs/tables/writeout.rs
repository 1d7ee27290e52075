//! Writes the journal to disk while it grows.
//!
//! fjall syncs its journal, with its lock held, when it begins to sort a table to disk; whoever commits then waits for all that
//! has not been written out. So the disk is asked for the journal whenever some MiB more are in it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::fs::journal;

/// Bytes of changes after which the journal is written out.
const EVERY_BYTES: u64 = 4 << 20;

/// See the module's head.
#[derive(Default)]
pub(super) struct WriteOut {
    /// Bytes of changes since it was begun last.
    grown: AtomicU64,
    under_way: Arc<AtomicBool>,
}

impl WriteOut {
    /// So many bytes were written to the journal in `dir`. `failed` is set when the disk refuses: then what the kernel dropped
    /// is lost.
    pub(super) fn wrote(&self, bytes: u64, dir: &Path, failed: &Arc<AtomicBool>) {
        let grown = self.grown.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if grown < EVERY_BYTES || self.under_way.swap(true, Ordering::Acquire) {
            return;
        }
        self.grown.store(0, Ordering::Relaxed);
        let (dir, failed, under_way) = (dir.to_owned(), failed.clone(), self.under_way.clone());
        let write = move || {
            if let Err(error) = journal::write_out(&dir) {
                failed.store(true, Ordering::Relaxed);
                tracing::error!(dir = %dir.display(), %error, "write out the journal: no change is accepted until the server is restarted");
            }
            under_way.store(false, Ordering::Release);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(write)),
            // a command that changes a target at rest: its sync does it
            Err(_) => self.under_way.store(false, Ordering::Release),
        }
    }
}
