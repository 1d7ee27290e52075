//! What each rank has done so far, readable by anyone without a lock.
//!
//! Each rank has a line of its own and is its only writer, so a reader costs the ranks nothing but the cache line.

use std::sync::atomic::{AtomicU64, Ordering};

/// Operations and bytes of one rank, since it started.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Line {
    operations: AtomicU64,
    bytes: AtomicU64,
}

impl Line {
    /// Adds one operation. Called by the rank of the line only.
    #[inline]
    pub(crate) fn add(&self, bytes: u64) {
        // The only writer needs no atomic addition: two plain stores cost less than one locked instruction.
        let operations = self.operations.load(Ordering::Relaxed) + 1;
        self.operations.store(operations, Ordering::Relaxed);
        let sum = self.bytes.load(Ordering::Relaxed) + bytes;
        self.bytes.store(sum, Ordering::Relaxed);
    }

    /// Operations and bytes.
    pub fn read(&self) -> (u64, u64) {
        (
            self.operations.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }
}

/// The lines of the ranks of this process.
#[derive(Debug)]
pub struct Board {
    first: u32,
    lines: Vec<Line>,
}

impl Board {
    /// For ranks `first..first + count`.
    pub fn new(first: u32, count: u32) -> Board {
        Board {
            first,
            lines: (0..count).map(|_| Line::default()).collect(),
        }
    }

    /// The line of a rank of this process.
    pub fn line(&self, rank: u32) -> &Line {
        &self.lines[(rank - self.first) as usize]
    }

    /// Operations and bytes of each rank, in the order of ranks.
    pub fn read(&self) -> impl Iterator<Item = (u64, u64)> {
        self.lines.iter().map(Line::read)
    }

    /// Operations and bytes of all of them.
    pub fn totals(&self) -> (u64, u64) {
        self.read()
            .fold((0, 0), |(o, b), (ro, rb)| (o + ro, b + rb))
    }
}
