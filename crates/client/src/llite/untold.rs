//! Opens for reading that the MDT is not told of.
//!
//! Who reads a file that it knows needs no word of the MDT: a lock on the file's names is held, and nobody takes the last of them away, or
//! moves what the file is made of, before that lock is called back. Then the MDT is told of the open, and keeps the file for it as for any
//! other. Lustre's client asks for each open that no OPEN lock of its own covers (`ll_file_open` in `lustre/llite/file.c`).
//!
//! # Invariants
//! - Only what everyone may read by its mode is opened so, without an ACL, where the MDT refuses nobody for being unknown: whoever asks, and
//!   whoever the MDT takes that one for, may.
//! - The lock is in use as long as there is such an open under it, so it is not given back before the MDT knows of the open.
//! - Removals and renames of this client call none of its own locks back. Before one is sent, the MDT is told of the opens of what loses
//!   a name, or of all where that is not known, or where another is under way; until it is answered, nothing more is opened so.
//! - Where the lock goes without a callback, as with an eviction, or the MDT could not be told, such an open is made at its next use, as
//!   every other is ([`MdtOpen::ensure`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use coral_wire::coral::READABLE;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{Ibits, LdlmMode, LdlmType, Policy};
use coral_wire::mds::open;
use futures_util::StreamExt;
use parking_lot::Mutex;

use super::inode::MdInode;
use super::mdt_open::MdtOpen;
use super::types::Attr;
use crate::lov::Form;
use crate::mdc::{Ids, Mdc};
use crate::time::Timespec;

/// What the lock is on: the names, who may read, and the objects.
const COVERED: Ibits = Ibits(Ibits::LOOKUP.0 | Ibits::PERM.0 | Ibits::LAYOUT.0);

/// Files open so at most: an MDT has room for some times as many opens of a client.
const MOST: usize = 65_536;
/// Told of at a time.
const TOLD_AT_ONCE: usize = 16;
/// Below so many files nothing is swept out.
const SWEPT_LEAST: usize = 1024;

/// Those of a mount.
#[derive(Default)]
pub(super) struct UntoldOpens(Mutex<State>);

#[derive(Default)]
struct State {
    by_fid: BTreeMap<Fid, Vec<Weak<MdtOpen>>>,
    /// Files when those were swept out whose opens nobody closed.
    swept: usize,
    /// Removals and renames of this client that are under way.
    takers: usize,
    /// Files that go, of which it is known which they are.
    going: Vec<Fid>,
    /// The mount ends.
    ended: bool,
}

impl State {
    fn of(&self, fid: Fid) -> Vec<Arc<MdtOpen>> {
        let opens = self.by_fid.get(&fid);
        opens.map_or_else(Vec::new, |all| {
            all.iter().filter_map(Weak::upgrade).collect()
        })
    }
}

/// A name is being taken away by this client.
pub(super) struct Taking(Arc<UntoldOpens>);

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.0.lock().takers -= 1;
    }
}

/// A file goes.
pub(super) struct GoingFile(Arc<UntoldOpens>, Fid);

impl Drop for GoingFile {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        if let Some(at) = state.going.iter().position(|f| *f == self.1) {
            state.going.swap_remove(at);
        }
    }
}

/// Whether what is covered so may be opened with these MDS_OPEN bits and the MDT not be told.
pub(super) fn may_be_untold(bits: u64, md: &MdInode) -> bool {
    bits == open::READ
        && md.anyone
        && md.attr.is_file()
        && md.attr.nlink > 0
        && md.attr.mode & READABLE == READABLE
        && md.acl.is_empty()
        && md.layout.form == Form::Objects
        && !md.layout.has_dom()
}

impl UntoldOpens {
    /// Opens `fid`, which has attributes `attr` under a lock. None: the MDT is to be asked.
    pub fn open(&self, mdc: &Arc<Mdc>, ids: &Ids, attr: &Attr) -> Option<Arc<MdtOpen>> {
        let fid = attr.fid;
        let opened = MdtOpen::untold(mdc.clone(), open::READ, ids, attr);
        {
            let mut state = self.0.lock();
            if state.takers > 0
                || state.going.contains(&fid)
                || state.ended
                || state.by_fid.len() >= MOST
            {
                return None;
            }
            if state.by_fid.len() > SWEPT_LEAST.max(2 * state.swept) {
                let is_open = |all: &mut Vec<Weak<_>>| all.iter().any(|o| o.strong_count() > 0);
                state.by_fid.retain(|_, all| is_open(all));
                state.swept = state.by_fid.len();
            }
            let all = state.by_fid.entry(fid).or_default();
            if all.len() == all.capacity() {
                all.retain(|o| o.strong_count() > 0);
            }
            all.push(Arc::downgrade(&opened));
        }
        // from here on whoever wants the lock back finds the open
        let need = Policy::ibits(COVERED);
        let lock = mdc
            .namespace()
            .match_lock(&fid.res_id(), LdlmType::IBITS, LdlmMode::CR, &need);
        match lock {
            Some(lock) if opened.is_current() => {
                opened.hold(lock);
                Some(opened)
            }
            _ => {
                self.closed(&opened);
                // the MDT may have been told already
                tokio::spawn(async move { opened.close(None, None).await });
                None
            }
        }
    }

    /// An open is closed.
    pub fn closed(&self, open: &Arc<MdtOpen>) {
        let mut state = self.0.lock();
        if let Some(all) = state.by_fid.get_mut(&open.fid()) {
            let is_it = |o: &Weak<MdtOpen>| std::ptr::eq(o.as_ptr(), Arc::as_ptr(open));
            all.retain(|o| o.strong_count() > 0 && !is_it(o));
            if all.is_empty() {
                state.by_fid.remove(&open.fid());
            }
        }
    }

    /// A lock of `fid` is wanted back: the MDT is told of what is open under it, and the lock is let go of.
    pub fn wanted(&self, fid: Fid, now: Timespec) {
        let opens = self.0.lock().of(fid);
        for open in opens {
            tokio::spawn(async move { open.tell(now).await });
        }
    }

    /// This client is about to take names away: nothing is opened so until what is returned is dropped. True: another is about it too.
    pub fn begin_taking(self: &Arc<Self>) -> (Taking, bool) {
        let mut state = self.0.lock();
        state.takers += 1;
        (Taking(self.clone()), state.takers > 1)
    }

    /// The same of one file alone: others are opened so.
    pub fn going(self: &Arc<Self>, fid: Fid) -> GoingFile {
        self.0.lock().going.push(fid);
        GoingFile(self.clone(), fid)
    }

    /// When this returns the MDT knows of the opens of these files; None: of all.
    pub async fn told(&self, victims: Option<&[Fid]>, now: Timespec) {
        let opens: Vec<Arc<MdtOpen>> = {
            let state = self.0.lock();
            let all = || state.by_fid.keys().copied().collect();
            let fids: Vec<Fid> = victims.map_or_else(all, <[Fid]>::to_vec);
            fids.into_iter().flat_map(|fid| state.of(fid)).collect()
        };
        futures_util::stream::iter(opens)
            .for_each_concurrent(TOLD_AT_ONCE, |open| async move { open.tell(now).await })
            .await;
    }

    /// The same for one file that this client takes away by its FID.
    pub async fn taking(self: &Arc<Self>, victim: Fid, now: Timespec) -> Taking {
        let (taking, _) = self.begin_taking();
        self.told(Some(&[victim]), now).await;
        taking
    }

    /// The lock of a file has gone without a callback.
    pub fn lost(&self, fid: Fid) {
        let opens = self.0.lock().of(fid);
        opens.iter().for_each(|o| o.lose());
    }

    /// This MDT has forgotten the client.
    pub fn evicted(&self, mdc: &Arc<Mdc>) {
        self.lost_where(|o| Arc::ptr_eq(&o.mdc, mdc));
    }

    /// The mount ends: nothing holds a lock any more.
    pub fn end(&self) {
        self.0.lock().ended = true;
        self.lost_where(|_| true);
    }

    fn lost_where(&self, lost: impl Fn(&MdtOpen) -> bool) {
        let opens: Vec<Arc<MdtOpen>> = {
            let state = self.0.lock();
            let all = state.by_fid.values().flatten();
            all.filter_map(Weak::upgrade).collect()
        };
        let lost = opens.iter().filter(|o| lost(o));
        lost.for_each(|o| o.lose());
    }
}
