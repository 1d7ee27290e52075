//! Open handles: who has what open, and how (`lustre/mdt/mdt_open.c`: `mdt_file_data`).
//!
//! Handles live in memory. After a restart clients replay their opens, which makes them anew; what
//! no client replays is closed by its loss. Invariant: counts per object are the sums over the
//! handles.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use coral_wire::mds::open as flag;
use coral_wire::{Errno, Fid};

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHandle {
    /// What is open.
    pub fid: Fid,
    /// `MDS_OPEN_*` flags it was opened with.
    pub flags: u64,
    /// Cookie of the client's export.
    pub export: u64,
    /// Of a replayed open: its cookie before the restart, which a close that was sent before it still names; else 0.
    pub old: u64,
    /// It made the file, and its client may keep back what it sets of the file's attributes.
    pub keeps: bool,
}

impl OpenHandle {
    /// Opened for writing.
    pub fn writes(&self) -> bool {
        self.flags & flag::WRITE != 0
    }

    /// Opened with a lease.
    pub fn leases(&self) -> bool {
        self.flags & flag::LEASE != 0
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct OpenCounts {
    handles: u32,
    writers: u32,
    executors: u32,
    leases: u32,
    /// Cookie of the handle whose client may keep attributes back; 0: none.
    keeper: u64,
}

/// Most handles of one client: files of a node that are open at a time. Lustre names no bound; a node of Linux allows a process
/// 1,048,576 (`fs.nr_open`), and each handle costs some 200 bytes here.
pub const CLIENT_MAX: usize = 1 << 18;
/// Most handles of all clients.
pub const ALL_MAX: usize = 1 << 22;

/// How many handles there may be.
#[derive(Clone, Copy, Debug)]
pub struct OpenLimits {
    /// Of one client.
    pub client: usize,
    /// Of all.
    pub all: usize,
}

impl Default for OpenLimits {
    fn default() -> OpenLimits {
        OpenLimits {
            client: CLIENT_MAX,
            all: ALL_MAX,
        }
    }
}

/// Every open handle of a target.
#[derive(Debug, Default)]
pub struct OpenTable {
    /// How many there may be.
    pub limits: OpenLimits,
    handles: HashMap<u64, OpenHandle>,
    counts: HashMap<Fid, OpenCounts>,
    exports: BTreeMap<u64, BTreeSet<u64>>,
    /// Cookies of replayed opens, by {export, cookie before the restart}.
    replayed: HashMap<(u64, u64), u64>,
}

impl OpenTable {
    /// Whether `fid` is open anywhere.
    pub fn is_open(&self, fid: &Fid) -> bool {
        self.counts.contains_key(fid)
    }

    /// How many handles are open on `fid`.
    pub fn handles_of(&self, fid: &Fid) -> u32 {
        self.counts.get(fid).map_or(0, |c| c.handles)
    }

    /// Whether `fid` is open anywhere but as that cookie of that client.
    pub fn is_open_but(&self, fid: &Fid, own: Option<(u64, u64)>) -> bool {
        let own = own.and_then(|(cookie, export)| self.get(cookie, export));
        self.handles_of(fid) > u32::from(own.is_some_and(|h| h.fid == *fid))
    }

    /// The client that may keep attributes of `fid` back.
    pub fn keeper(&self, fid: &Fid) -> Option<u64> {
        let cookie = self.counts.get(fid)?.keeper;
        self.handles.get(&cookie).map(|h| h.export)
    }

    /// Whether another client than `export` may keep attributes of `fid` back.
    pub fn is_kept_by_other(&self, fid: &Fid, export: u64) -> bool {
        self.keeper(fid).is_some_and(|e| e != export)
    }

    /// Whether client `export` may keep attributes of `fid` back, by the handle that was `cookie` before a restart or is it now.
    pub fn keeps(&self, fid: &Fid, cookie: u64, export: u64) -> bool {
        let now = self.current(cookie, export);
        now.is_some() && self.counts.get(fid).map(|c| c.keeper) == now
    }

    /// Nobody may keep attributes of `fid` back any more.
    pub fn end_keeping(&mut self, fid: &Fid) {
        if let Some(c) = self.counts.get_mut(fid) {
            c.keeper = 0;
        }
    }

    /// Whether somebody has `fid` open with a lease, which may have been broken since.
    pub fn is_leased(&self, fid: &Fid) -> bool {
        self.counts.get(fid).is_some_and(|c| c.leases > 0)
    }

    /// EBUSY if `fid` cannot be leased: it is already, or others write it. `own` is what the asking client `export` has open
    /// itself. One writer beside that is let through, as in Lustre (`mdt_object_open_lock`).
    pub fn may_lease(&self, fid: &Fid, own: u64, export: u64) -> Result<(), Errno> {
        let c = self.counts.get(fid).copied().unwrap_or_default();
        let own = self.current(own, export);
        let written = c.writers > 1 && self.is_open_but(fid, own.map(|cookie| (cookie, export)));
        match c.leases > 0 || written {
            true => Err(Errno::EBUSY),
            false => Ok(()),
        }
    }

    /// ETXTBSY if writing or cutting what is executed, or executing what is written. Who cuts does so at the open and is no
    /// writer afterwards.
    pub fn conflict(&self, fid: &Fid, flags: u64) -> Result<(), Errno> {
        let c = self.counts.get(fid).copied().unwrap_or_default();
        let busy = (flags & (flag::WRITE | flag::TRUNC) != 0 && c.executors > 0)
            || (flags & flag::EXEC != 0 && c.writers > 0);
        if busy { Err(Errno::ETXTBSY) } else { Ok(()) }
    }

    /// ENFILE when client `export` may have no further handle.
    pub fn room(&self, export: u64) -> Result<(), Errno> {
        let has = self.exports.get(&export).map_or(0, BTreeSet::len);
        if has >= self.limits.client || self.handles.len() >= self.limits.all {
            Err(Errno::ENFILE)
        } else {
            Ok(())
        }
    }

    /// Client `export` may have far more handles than it has.
    pub fn has_ample_room_for(&self, export: u64) -> bool {
        let has = self.exports.get(&export).map_or(0, BTreeSet::len);
        self.has_ample_room() && has < self.limits.client / 2
    }

    /// Half of it is free. A client that may keep attributes of a file back keeps the file open longer than its programs do.
    pub fn has_ample_room(&self) -> bool {
        self.handles.len() < self.limits.all / 2
    }

    /// Enters `handle` under `cookie`.
    pub fn insert(&mut self, cookie: u64, handle: OpenHandle) {
        if self.handles.insert(cookie, handle).is_some() {
            return;
        }
        if handle.old != 0 {
            // The open is replayed a second time: nobody was told of the first one's handle.
            let twin = self.replayed.insert((handle.export, handle.old), cookie);
            twin.map(|twin| self.remove(twin, handle.export));
        }
        let c = self.counts.entry(handle.fid).or_default();
        c.handles += 1;
        c.writers += u32::from(handle.flags & flag::WRITE != 0);
        c.executors += u32::from(handle.flags & flag::EXEC != 0);
        c.leases += u32::from(handle.leases());
        if handle.keeps {
            c.keeper = cookie;
        }
        self.exports
            .entry(handle.export)
            .or_default()
            .insert(cookie);
    }

    /// The handle `cookie` of client `export`.
    pub fn get(&self, cookie: u64, export: u64) -> Option<&OpenHandle> {
        self.handles.get(&cookie).filter(|h| h.export == export)
    }

    /// The cookie now of what client `export` has open as `cookie`, or had before a restart.
    pub fn current(&self, cookie: u64, export: u64) -> Option<u64> {
        let now = self.get(cookie, export).map(|_| cookie);
        now.or_else(|| self.replayed.get(&(export, cookie)).copied())
    }

    /// Forgets a handle; the second value says whether it was the last of its object.
    pub fn remove(&mut self, cookie: u64, export: u64) -> Option<(OpenHandle, bool)> {
        let h = *self.get(cookie, export)?;
        self.handles.remove(&cookie);
        if self.replayed.get(&(export, h.old)) == Some(&cookie) {
            self.replayed.remove(&(export, h.old));
        }
        if let Some(set) = self.exports.get_mut(&export) {
            set.remove(&cookie);
            if set.is_empty() {
                self.exports.remove(&export);
            }
        }
        let c = self.counts.get_mut(&h.fid)?;
        c.handles -= 1;
        c.writers -= u32::from(h.flags & flag::WRITE != 0);
        c.executors -= u32::from(h.flags & flag::EXEC != 0);
        c.leases -= u32::from(h.leases());
        if c.keeper == cookie {
            c.keeper = 0;
        }
        let last = c.handles == 0;
        if last {
            self.counts.remove(&h.fid);
        }
        Some((h, last))
    }

    /// Cookies of a client's handles, in order.
    pub fn of_export(&self, export: u64) -> Vec<u64> {
        self.exports
            .get(&export)
            .map(|s| s.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Number of handles.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_handles_and_exports_own_theirs() {
        let mut t = OpenTable::default();
        let fid = Fid::new(0x2_0000_0400, 1);
        t.insert(
            1,
            OpenHandle {
                fid,
                flags: flag::WRITE,
                export: 7,
                old: 5,
                keeps: false,
            },
        );
        t.insert(
            2,
            OpenHandle {
                fid,
                flags: flag::READ,
                export: 8,
                old: 0,
                keeps: false,
            },
        );
        assert_eq!((t.current(5, 7), t.current(1, 7)), (Some(1), Some(1)));
        assert_eq!(
            (t.current(5, 8), t.current(1, 8), t.current(0, 8)),
            (None, None, None)
        );
        assert_eq!(t.conflict(&fid, flag::EXEC), Err(Errno::ETXTBSY));
        assert!(t.get(1, 8).is_none(), "another client's handle");
        assert_eq!(t.remove(1, 7).map(|(_, last)| last), Some(false));
        assert!(t.conflict(&fid, flag::EXEC).is_ok());
        assert_eq!(t.of_export(8), [2]);
        assert_eq!(t.remove(2, 8).map(|(_, last)| last), Some(true));
        assert!(!t.is_open(&fid) && t.is_empty());
        assert!(t.remove(2, 8).is_none());
    }

    #[test]
    fn attributes_are_kept_back_as_long_as_the_handle_is_there() {
        let mut t = OpenTable::default();
        let fid = Fid::new(0x2_0000_0400, 1);
        let handle = |export, old, keeps| OpenHandle {
            fid,
            flags: flag::WRITE,
            export,
            old,
            keeps,
        };
        t.insert(1, handle(7, 5, true));
        t.insert(2, handle(8, 0, false));
        assert!(t.keeps(&fid, 1, 7) && t.keeps(&fid, 5, 7) && !t.keeps(&fid, 2, 8));
        assert!(t.is_kept_by_other(&fid, 8) && !t.is_kept_by_other(&fid, 7));
        t.remove(2, 8);
        t.end_keeping(&fid);
        assert!(!t.keeps(&fid, 1, 7) && !t.is_kept_by_other(&fid, 8));
        t.insert(3, handle(7, 0, true));
        t.remove(3, 7);
        assert!(!t.keeps(&fid, 1, 7) && !t.is_kept_by_other(&fid, 8));
    }

    #[test]
    fn an_open_that_is_replayed_twice_is_one() {
        let mut t = OpenTable::default();
        let fid = Fid::new(0x2_0000_0400, 1);
        for cookie in [1, 2] {
            t.insert(
                cookie,
                OpenHandle {
                    fid,
                    flags: flag::WRITE,
                    export: 7,
                    old: 5,
                    keeps: false,
                },
            );
        }
        assert_eq!(
            (t.len(), t.handles_of(&fid), t.current(5, 7), t.get(1, 7)),
            (1, 1, Some(2), None)
        );
        assert_eq!(t.remove(2, 7).map(|(_, last)| last), Some(true));
        assert_eq!(t.current(5, 7), None);
    }
}
