//! Changes that this client made, as the cache and the caller hear of them: no lost lock tells of those.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::mds::MdtBody;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::cache::{Cache, Change, Entries, Forget};
use super::inode::read_attr;
use super::upcalls::Upcalls;
use crate::lov::DOM_OST;
use crate::mdc::Mdc;
use crate::time::Timespec;

/// An own change of the entries of directories, under way.
pub(super) struct ChangingEntries {
    change: Option<Change>,
    caller: Caller,
    /// Of these the caller is told at its end.
    dirs: SmallVec<[Fid; 2]>,
}

impl Drop for ChangingEntries {
    fn drop(&mut self) {
        self.change = None;
        self.dirs.iter().for_each(|d| self.caller.tell(*d));
    }
}

/// Who is told of own changes.
#[derive(Clone)]
struct Caller {
    cache: Arc<Cache>,
    upcalls: Arc<Upcalls>,
}

impl Caller {
    /// Attributes of `fid`, and of the directory of which it is a shard, that were asked for before are old.
    fn tell(&self, fid: Fid) {
        self.upcalls.tell_own(fid);
        if let Some(dir) = self.cache.directory_of(fid) {
            self.upcalls.tell_own(dir);
        }
    }
}

/// Takes own changes in.
pub(super) struct Changes {
    cache: Arc<Cache>,
    caller: Caller,
}

impl Changes {
    /// For the objects of one mount.
    pub fn new(cache: Arc<Cache>, upcalls: Arc<Upcalls>) -> Self {
        let caller = Caller {
            cache: cache.clone(),
            upcalls,
        };
        Self { cache, caller }
    }

    /// Times of data on the MDT were set by way of the inode: what is cached of the data is older.
    pub fn data_times_set(&self, fid: Fid) {
        self.caller
            .upcalls
            .tell(|| self.cache.extent_lost(DOM_OST, fid.res_id()));
    }

    /// An own change of names in directories begins; when what is returned is dropped it has ended, whatever came of it, and
    /// the caller is told that attributes of these directories it asked for before are old.
    pub fn begin(&self, names: &[(Fid, &Bytes)]) -> ChangingEntries {
        let entries = names.iter();
        self.begin_of(entries.map(|(d, n)| (*d, Some((*n).clone()))).collect())
    }

    /// The same of a name, without a word to the caller at its end: who begins it says so ([`Changes::kept_back`]), and the directory
    /// looks as it will.
    pub fn begin_told(&self, dir: Fid, name: &Bytes) -> ChangingEntries {
        let mut change = self.begin(&[(dir, name)]);
        change.dirs.clear();
        change
    }

    /// The same where it may be any names of these directories.
    pub fn begin_any(&self, dirs: &[Fid]) -> ChangingEntries {
        self.begin_of(dirs.iter().map(|d| (*d, None)).collect())
    }

    fn begin_of(&self, entries: Entries) -> ChangingEntries {
        ChangingEntries {
            dirs: entries.iter().map(|(dir, _)| *dir).collect(),
            change: Some(self.cache.begin_change(entries)),
            caller: self.caller.clone(),
        }
    }

    /// Attributes of the object were changed, of which its MDT is to hear later.
    pub fn kept_back(&self, fid: Fid) {
        self.caller.tell(fid);
    }

    /// An own change of the object's attributes whose outcome the reply did not tell.
    pub fn forget_attrs(&self, fid: Fid) {
        self.cache.forget_attrs(fid);
        self.caller.tell(fid);
    }

    /// An own change at `now` gave `name` in `dir` to `fid` (`None`: took it away); `body`: how the directory looks now.
    /// A directory whose mtime is not that of the change was not changed by it (a rename to itself): then what the reply
    /// says proves nothing about the name.
    pub fn named(
        &self,
        mdc: &Mdc,
        dir: Fid,
        body: Option<&MdtBody>,
        now: Timespec,
        name: &[u8],
        fid: Option<Fid>,
    ) {
        match body.filter(|b| b.fid1 == dir && mdc.untime(b.mtime) == now) {
            Some(b) => self
                .cache
                .changed_name(&read_attr(mdc, b), b.version, name, fid),
            None => self.cache.doubt(dir),
        }
    }

    /// The caller may remember what a lock covers: it is told when that ends.
    pub fn are_heard(&self) -> bool {
        self.caller.upcalls.are_heard()
    }

    /// Resolves when the caller has forgotten what it was told to.
    pub fn forgotten(&self) -> BoxFuture<'static, ()> {
        self.caller.upcalls.forgotten()
    }

    /// The caller is told to forget attributes of `fid`, if it has to; whoever finds that it has not comes after who told it.
    pub fn caller_forgets(&self, fid: Fid, has_to: impl FnOnce() -> bool) {
        self.caller.upcalls.tell(|| Forget {
            inodes: if has_to() { vec![fid] } else { Vec::new() },
            entries: Vec::new(),
        });
    }

    /// The own change that made `fid` gave it `name` in `dir`, which looks as `body` says now.
    pub fn made(&self, mdc: &Mdc, dir: Fid, body: Option<&MdtBody>, name: &[u8], fid: Fid) {
        match body.filter(|b| b.fid1 == dir) {
            Some(b) => self
                .cache
                .changed_name(&read_attr(mdc, b), b.version, name, Some(fid)),
            None => self.cache.doubt(dir),
        }
    }

    /// An own change at `now` left `fid` as `body` says, or in a way it does not say.
    pub fn object(&self, mdc: &Mdc, fid: Fid, body: &MdtBody, now: Timespec) {
        if mdc.coral() && body.fid1 == fid {
            let ours = mdc.untime(body.ctime) == now;
            self.cache
                .changed(&read_attr(mdc, body), body.version, ours);
            self.caller.tell(fid);
        } else {
            self.forget_attrs(fid);
        }
    }
}
