//! What llite remembers, and only as long as a lock covers it.
//!
//! The rules are a plain state machine ([`core`]): no await, no message. [`Cache`] is the mutex around it; lock callbacks come
//! in through [`Cache::lock_lost`] before the lock is given back, so what is in here is covered at every moment.
//!
//! Invariants:
//! - attributes of an object are kept while inode bits LOOKUP, UPDATE and PERM are held on it (LAYOUT too for a file);
//! - a directory's listing is trusted while UPDATE is held on it; what is in it as of which version is remembered beyond
//!   the lock, and trusted again when the lock comes back with the same version (Coral servers count versions);
//! - a name found without the directory's lock is trusted while LOOKUP is held on what it names;
//! - of two views of one object the one with the greater version stays;
//! - own changes do not revoke own locks (`coral_wire::coral`), so their replies are taken in here; a lookup that ran beside
//!   an own change of the same name adds no name, and a listing beside one in the same directory none at all.
//!
//! - sizes and times of a file's objects are kept while extent locks on all of them are held, and only beside attributes
//!   that say which objects these are.
//!
//! Lustre: the kernel's dentry and inode caches with `ll_md_blocking_ast` in `lustre/llite/namei.c`. "Complete directory" and
//! versions are Coral's own.

mod changing;
mod contents;
mod core;
mod counted;
mod known;
mod node;
mod own;
mod told;

use std::sync::Arc;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::layout::LmvUserMdHead;
use coral_wire::ldlm::ResId;
use parking_lot::Mutex;

use self::core::Core;
pub(super) use self::known::{DirState, Forget, Known, Lookup, MISSES_BEFORE_READDIR, Mark};
use super::budget::{Spent, sixth};
use super::inode::MdInode;
use super::types::Attr;
use crate::error::TargetError;
use crate::osc::ObjectAttr;

/// The cache of one mount.
pub(super) struct Cache {
    enabled: bool,
    core: Mutex<Core>,
}

impl Cache {
    /// One of so many MiB; with `enabled` false nothing is ever remembered.
    pub fn new(enabled: bool, limit_mb: u32) -> Self {
        Self {
            enabled,
            core: Mutex::new(Core::new(3 * sixth(limit_mb))),
        }
    }

    /// What is remembered, without locks.
    pub fn spent(&self) -> Spent {
        self.core.lock().spent()
    }

    /// Something may be remembered.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    // ---- questions -----------------------------------------------------------------------------------------------------

    /// The object a name was last known to be, covered or not: only to know what an own change may have touched.
    pub fn name_of(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        self.core.lock().name_of(parent, name)
    }

    /// Whether it is known what the name stands for, if only that it stands for nothing.
    pub fn knows_name(&self, parent: Fid, name: &[u8]) -> bool {
        self.core.lock().knows_name(parent, name)
    }

    /// The object, if its attributes are covered.
    pub fn known(&self, fid: Fid) -> Option<Known> {
        self.core.lock().known(fid)
    }

    /// The attributes of a striped directory, if those of all its shards are covered. The caller will be told of the directory when
    /// one of their locks goes.
    pub fn striped(&self, fid: Fid) -> Option<Attr> {
        self.core.lock().striped(fid)
    }

    /// The striped directory of which this is a shard, if the caller may remember its attributes.
    pub fn directory_of(&self, shard: Fid) -> Option<Fid> {
        self.core.lock().directory_of(shard)
    }

    /// The MDT was told that the file has this size.
    pub fn told_size(&self, fid: Fid, size: u64) {
        self.core.lock().told_size(fid, size);
    }

    /// The object is opened for reading; true: it was before, as far as is remembered.
    pub fn opened_again(&self, fid: Fid) -> bool {
        self.core.lock().opened_again(fid)
    }

    /// What `name` in `parent` is.
    pub fn lookup(&self, parent: Fid, name: &[u8]) -> Lookup {
        self.core.lock().lookup(parent, name)
    }

    /// How a directory stands.
    pub fn dir_state(&self, dir: Fid) -> DirState {
        self.core.lock().dir_state(dir)
    }

    /// Type and permissions of an object, under a lock.
    pub fn mode(&self, fid: Fid) -> Option<u32> {
        self.core.lock().mode(fid)
    }

    /// The file is known to have no capabilities.
    pub fn is_uncapped(&self, fid: Fid) -> bool {
        self.core.lock().is_uncapped(fid)
    }

    // ---- what reads brought --------------------------------------------------------------------------------------------

    /// Before a read about `fid` (a lookup in it, its listing, its attributes) is sent.
    pub fn begin_read(&self, fid: Fid) -> Mark {
        self.core.lock().begin_read(fid)
    }

    /// Attributes from the reply to a read that began at `mark`. `lock`: cookie and bits of the lock that came with them,
    /// which the caller pins; `still`: it is not called back yet, asked under the cache's mutex.
    pub fn learn(
        &self,
        mark: Mark,
        md: &MdInode,
        lock: Option<(u64, u64)>,
        still: impl FnOnce() -> bool,
    ) {
        if self.enabled {
            self.core.lock().learn(mark, md, lock, still);
        }
    }

    /// A lookup that began at `mark` found that `name` is `child`, and brought the lock `cookie` on it, on whose LOOKUP it relies.
    pub fn learn_name(&self, mark: Mark, parent: Fid, name: &[u8], child: Fid, cookie: u64) {
        if self.enabled {
            self.core
                .lock()
                .learn_name(mark, parent, name, child, cookie);
        }
    }

    /// The same of a child that lies on another MDT than its name: the lock is one of the name's MDT. `still`: it is not called back
    /// yet, asked under the cache's mutex.
    pub fn learn_name_elsewhere(
        &self,
        mark: Mark,
        name: (Fid, &[u8]),
        child: Fid,
        cookie: u64,
        still: impl FnOnce() -> bool,
    ) {
        if self.enabled {
            self.core
                .lock()
                .learn_name_elsewhere(mark, name, child, cookie, still);
        }
    }

    /// The listing of `parent` has said since `mark`, and says, that `name` is `child`: relies on the child's LOOKUP lock from now
    /// on, if there is one. False: that does not stand.
    pub fn confirm_name(&self, mark: Mark, parent: Fid, name: &[u8], child: Fid) -> bool {
        self.enabled && self.core.lock().confirm_name(mark, parent, name, child)
    }

    /// A lock covers that `name` in `dir` is `child`. The caller knows it as a name in `parent`, of which `dir` may be a shard: it
    /// will be told of that when the lock goes.
    pub fn is_named_to_caller(&self, dir: Fid, parent: Fid, name: &[u8], child: Fid) -> bool {
        self.enabled
            && self
                .core
                .lock()
                .is_named_to_caller(dir, parent, name, child)
    }

    /// A lookup found nothing.
    pub fn missed(&self, parent: Fid) {
        if self.enabled {
            self.core.lock().missed(parent);
        }
    }

    /// What a listing that began at `mark` said of names in `dir` still holds: the directory was covered all the time, and no
    /// own change touched it.
    pub fn names_stand(&self, mark: Mark, dir: Fid) -> bool {
        self.enabled && self.core.lock().names_stand(mark, dir)
    }

    /// A whole listing was read between `mark` and now. True: it is covered, and the directory complete.
    pub fn learn_listing(&self, mark: Mark, dir: Fid, entries: Vec<(Bytes, Fid)>) -> bool {
        self.enabled && self.core.lock().learn_listing(mark, dir, entries)
    }

    /// Sizes and times of a file's objects, which extent locks on `objects` ({OST index, resource}) cover; `still`: none of
    /// them is called back yet, asked under the cache's mutex. `layout`: generation of the layout they belong to.
    pub fn learn_objects(
        &self,
        fid: Fid,
        layout: u32,
        objects: &[(u32, ResId)],
        attr: ObjectAttr,
        still: impl FnOnce() -> bool,
    ) {
        if self.enabled {
            self.core
                .lock()
                .learn_objects(fid, layout, objects, attr, still);
        }
    }

    /// A read that began at `mark` found no file capabilities (`security.capability`); `made`: it was no read, the file was
    /// made, and the lock came with it.
    pub fn learn_uncapped(&self, mark: Mark, fid: Fid, made: bool) {
        self.core.lock().learn_uncapped(mark, fid, made);
    }

    /// A read that began at `mark` found what new directories in `dir` inherit.
    pub fn learn_default(&self, mark: Mark, dir: Fid, found: Option<LmvUserMdHead>) {
        self.core.lock().learn_default(mark, dir, found);
    }

    /// What new directories in `dir` inherit, if that is known; within: nothing is set.
    pub fn default_of(&self, dir: Fid) -> Option<Option<LmvUserMdHead>> {
        self.core.lock().default_of(dir)
    }

    /// The same of a small file with all its data, for the next who reads it.
    pub fn learn_data(
        &self,
        fid: Fid,
        layout: u32,
        object: (u32, ResId),
        found: (ObjectAttr, Payload),
        still: impl FnOnce() -> bool,
    ) {
        if self.enabled {
            self.core
                .lock()
                .learn_data(fid, layout, object, found, still);
        }
    }

    /// What the data of a small file is asked for with, whose size is known and of which nothing was read; and that size.
    pub fn wants_data(&self, fid: Fid) -> Option<(u64, u64)> {
        self.core.lock().wants_data(fid)
    }

    /// The data that was asked for then: under the locks that covered the size, if they were held ever since.
    pub fn learn_data_since(&self, fid: Fid, asked: u64, data: Payload) {
        self.core.lock().learn_data_since(fid, asked, data);
    }

    /// All data of a file, if it is known, for who reads `len_bytes` from `offset`.
    pub fn data(&self, fid: Fid, offset: u64, len_bytes: u32) -> Option<Payload> {
        self.core.lock().data(fid, offset, len_bytes)
    }

    /// All data of a file is known.
    pub fn has_data(&self, fid: Fid) -> bool {
        self.core.lock().has_data(fid)
    }

    // ---- own changes ---------------------------------------------------------------------------------------------

    /// An own change of these entries begins, each a directory and the name, if it is known which it is: lookups of them beside it add
    /// no names until what is returned is dropped.
    pub fn begin_change(self: &Arc<Self>, entries: Entries) -> Change {
        if self.enabled {
            self.core.lock().begin_change(&entries);
        }
        Change {
            cache: self.clone(),
            entries,
        }
    }

    /// The reply to an own change says how `dir` looks now (attributes and version), and that `name` in it is `fid` now
    /// (`None`: gone).
    pub fn changed_name(&self, dir: &Attr, version: u64, name: &[u8], fid: Option<Fid>) {
        if self.enabled {
            self.core.lock().changed_name(dir, version, name, fid);
        }
    }

    /// A name in `dir` changed in a way the reply did not tell: ask about all of them.
    pub fn doubt(&self, dir: Fid) {
        if self.enabled {
            self.core.lock().doubt(dir);
        }
    }

    /// What a server answered to a request about a name. Where there is none and the cache has it, another task's removal was
    /// executed and not answered yet: what is known of the directory goes.
    pub fn refused(&self, dir: Fid, name: &[u8], e: &TargetError) {
        if e.is(Errno::ENOENT) && self.name_of(dir, name).is_some() {
            self.doubt(dir);
        }
    }

    /// A directory this client just made, with this version: empty until somebody changes it.
    pub fn made_dir(&self, fid: Fid, version: u64) {
        if self.enabled {
            self.core.lock().made_dir(fid, version);
        }
    }

    /// The reply to an own change says how an object looks now (not its entries, if it is a directory). `ours`: the last
    /// change of it was this one.
    pub fn changed(&self, attr: &Attr, version: u64, ours: bool) {
        if self.enabled {
            self.core.lock().changed(attr, version, ours);
        }
    }

    /// An own change of the object's attributes whose outcome the reply did not tell.
    pub fn forget_attrs(&self, fid: Fid) {
        if self.enabled {
            self.core.lock().forget_attrs(fid);
        }
    }

    /// The objects of a file whose attributes are covered: {OST index, resource}.
    pub fn objects_of(&self, fid: Fid) -> Vec<(u32, ResId)> {
        self.core.lock().objects_of(fid)
    }

    /// An own change took the object's last name away.
    pub fn gone(&self, fid: Fid) {
        self.core.lock().gone(fid);
    }

    // ---- locks go ------------------------------------------------------------------------------------------------------

    /// An inode-bit lock on `bits` is called back or given up.
    pub fn lock_lost(&self, fid: Fid, cookie: u64, bits: u64) -> Forget {
        self.core.lock().lock_lost(fid, cookie, bits)
    }

    /// An extent lock goes: the size and times it covered are not known any more.
    pub fn extent_lost(&self, ost: u32, res: ResId) -> Forget {
        self.core.lock().extent_lost(ost, res)
    }

    /// Everything is void (eviction).
    pub fn clear(&self) -> Forget {
        self.core.lock().clear()
    }

    /// The caller no longer knows the object.
    pub fn unused(&self, fid: Fid) {
        self.core.lock().unused(fid);
    }
}

/// Entries of directories that change; with no name it may be any of the directory.
pub(super) type Entries = smallvec::SmallVec<[(Fid, Option<Bytes>); 2]>;

/// An own change of directories under way; ends when dropped.
pub(super) struct Change {
    cache: Arc<Cache>,
    entries: Entries,
}

impl Drop for Change {
    fn drop(&mut self) {
        if self.cache.enabled {
            self.cache.core.lock().end_change(&self.entries);
        }
    }
}

#[cfg(test)]
mod tests;
