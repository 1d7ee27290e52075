//! What a simulated run did: two runs of one seed must have done the same.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// Every finished operation in order, with its time.
pub struct Journal {
    start: Instant,
    digest: parking_lot::Mutex<u64>,
    operations: AtomicU64,
    bytes: AtomicU64,
}

impl Journal {
    /// An empty one; time counts from now.
    pub fn begin() -> Journal {
        Journal {
            start: Instant::now(),
            digest: Default::default(),
            operations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// An operation has ended. `CORAL_CHAOS_TRACE` prints each.
    pub fn note(&self, worker: u64, what: &str, result: u64) {
        let at = self.micros();
        let mut d = self.digest.lock();
        for b in at
            .to_le_bytes()
            .into_iter()
            .chain(worker.to_le_bytes())
            .chain(what.bytes())
            .chain(result.to_le_bytes())
        {
            *d = (*d ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.operations.fetch_add(1, Ordering::Relaxed);
        if std::env::var_os("CORAL_CHAOS_TRACE").is_some() {
            eprintln!("{at} {worker} {what} {result}");
        }
    }

    /// So many bytes were written.
    pub fn wrote(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Of all that was noted, with its times.
    pub fn digest(&self) -> u64 {
        *self.digest.lock()
    }

    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    pub fn bytes_written(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Since it began, on the clock of the run.
    pub fn micros(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}
