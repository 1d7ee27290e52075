//! Advisory locks of one file: byte ranges per owner, waiting by retrying at every change. Simple, not fast.

use coral_client::llite::types::{FileLock, LockKind};

/// One held range. flock locks are whole-file ranges in a table of their own.
#[derive(Clone, Copy, Debug)]
struct Held {
    owner: u64,
    lock: FileLock,
}

/// All locks of one file of one kind.
#[derive(Default)]
pub struct LockTable {
    held: Vec<Held>,
}

impl LockTable {
    /// The first lock of somebody else in the way of `want`.
    pub fn conflict(&self, owner: u64, want: &FileLock) -> Option<FileLock> {
        let clash = |h: &&Held| {
            h.owner != owner
                && h.lock.start <= want.end
                && want.start <= h.lock.end
                && (h.lock.kind == LockKind::Write || want.kind == LockKind::Write)
        };
        (want.kind != LockKind::Unlock)
            .then(|| self.held.iter().find(clash).map(|h| h.lock))
            .flatten()
    }

    /// Replaces what `owner` holds in the range of `set`; the caller has checked for conflicts.
    pub fn set(&mut self, owner: u64, set: FileLock) {
        let mut out = Vec::new();
        for h in self.held.drain(..) {
            if h.owner != owner || h.lock.end < set.start || set.end < h.lock.start {
                out.push(h);
                continue;
            }
            if h.lock.start < set.start {
                out.push(Held {
                    owner,
                    lock: FileLock {
                        end: set.start - 1,
                        ..h.lock
                    },
                });
            }
            if h.lock.end > set.end {
                out.push(Held {
                    owner,
                    lock: FileLock {
                        start: set.end + 1,
                        ..h.lock
                    },
                });
            }
        }
        if set.kind != LockKind::Unlock {
            out.push(Held { owner, lock: set });
        }
        self.held = out;
    }

    /// Drops everything `owner` holds.
    pub fn drop_owner(&mut self, owner: u64) {
        self.held.retain(|h| h.owner != owner);
    }
}
