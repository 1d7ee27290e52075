//! Opens of names that others replace all the time.
//!
//! FUSE opens in two steps: LOOKUP of the name, then OPEN of what it was. Somebody who renames another file to the name
//! between the two makes the OPEN find its file gone; Linux then walks the path once more, and once only. So an OPEN that
//! found its file gone is remembered with the thread that asked, and the lookups of that thread open along, by name and at
//! once, until its OPEN comes and takes what was opened.
//!
//! Lustre's own client has no such gap: its open carries the name (`ll_atomic_open` in `lustre/llite/namei.c`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coral_wire::fid::Fid;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::handle::FileHandle;

/// How long a thread that lost an open may take to come back, and what was opened for it is kept.
pub(super) const KEPT: Duration = Duration::from_secs(1);
/// Threads remembered at once; more go without.
const THREADS: usize = 256;

/// A thread whose OPEN found its file gone.
struct Lost {
    flags: u32,
    until: Instant,
    /// What its lookups opened since.
    opened: BTreeMap<Fid, Arc<FileHandle>>,
}

/// Threads that lost an open, by id.
#[derive(Default)]
pub(super) struct Reopen {
    lost: Mutex<BTreeMap<u32, Lost>>,
}

impl Reopen {
    /// An OPEN with `flags` found its file gone. 0 is every thread of other PID namespaces: not to be told apart.
    pub fn lost(&self, pid: u32, flags: u32) {
        let (now, mut lost) = (Instant::now(), self.lost.lock());
        lost.retain(|_, l| l.until > now);
        if pid != 0 && lost.len() < THREADS {
            lost.insert(
                pid,
                Lost {
                    flags,
                    until: now + KEPT,
                    opened: BTreeMap::new(),
                },
            );
        }
    }

    /// The attributes that the kernel asked for before an open, to check permissions, were of a file that is gone. Most such
    /// opens are for reading.
    pub fn looked_late(&self, pid: u32) {
        if self.wanted(pid).is_none() {
            self.lost(pid, libc::O_RDONLY as u32);
        }
    }

    /// The flags a lookup of this thread opens along with.
    pub fn wanted(&self, pid: u32) -> Option<u32> {
        self.lost
            .lock()
            .get(&pid)
            .filter(|l| l.until > Instant::now())
            .map(|l| l.flags)
    }

    /// Keeps what was opened; `None`: nobody waits for it any more.
    pub fn keep(&self, pid: u32, fh: &Arc<FileHandle>) -> Option<()> {
        self.lost
            .lock()
            .get_mut(&pid)?
            .opened
            .insert(fh.fid(), fh.clone());
        Some(())
    }

    /// The OPEN is there: what was opened of its file, perhaps with other flags. Whatever else was opened is closed.
    pub fn take(&self, pid: u32, fid: Fid) -> Option<Arc<FileHandle>> {
        self.lost.lock().remove(&pid)?.opened.remove(&fid)
    }

    /// The thread has not come back in time: what was opened for it is closed.
    pub fn drop_late(&self, pid: u32) {
        let now = Instant::now();
        let mut lost = self.lost.lock();
        let late = lost.get(&pid).is_some_and(|l| l.until <= now);
        let gone = late.then(|| lost.remove(&pid));
        drop(lost);
        drop(gone);
    }
}
