//! What llite remembers, and only as long as a lock covers it.
//!
//! A plain state machine: no await, no message. [`Cache`] is the mutex around it; lock callbacks come in through
//! [`Cache::lock_lost`] before the lock is given back, so what is in here is covered at every moment.
//!
//! Invariants:
//! - attributes of an object are kept while inode bits LOOKUP, UPDATE and PERM are held on it (LAYOUT too for a file);
//! - a directory's listing is trusted while UPDATE is held on it; what is in it as of which version is remembered beyond
//!   the lock, and trusted again when the lock comes back with the same version (Coral servers count versions);
//! - a name found without the directory's lock is trusted while LOOKUP is held on what it names;
//! - of two views of one object the one with the greater version stays;
//! - own changes do not revoke own locks (`coral_wire::coral`), so their replies are taken in here; a lookup that ran beside
//!   an own change in the same directory adds no name.
//!
//! - sizes and times of a file's objects are kept while extent locks on all of them are held, and only beside attributes
//!   that say which objects these are.
//!
//! Lustre: the kernel's dentry and inode caches with `ll_md_blocking_ast` in `lustre/llite/namei.c`. "Complete directory" and
//! versions are Coral's own.

mod hooks;
mod node;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{Ibits, ResId};
use parking_lot::Mutex;

use super::inode::MdInode;
use super::types::Attr;
use crate::osc::ObjectAttr;
use crate::osc::grant::MAX_DIRTY_BYTES;
use node::{Name, Node};

/// Rough size of an object in here, names not counted, bytes: the unit of the budget.
const NODE_BYTES: usize = 920;
/// Rough size of a name, bytes.
const NAME_BYTES: usize = 150;
/// Rough size of a lock, bytes: this and the others as resident memory grew in walks over 100,000 names.
const LOCK_BYTES: usize = 480;
/// Least locks of a target, however small the budget.
const LOCKS_MIN: usize = 64;

/// A sixth of a cache of so many MiB, bytes: so much is for locks, for written data kept back, and for written data that may not
/// be on disk yet; the other half for inodes and names.
fn sixth(cache_mb: u32) -> usize {
    ((cache_mb.max(1) as usize) << 20) / 6
}

/// Locks for a cache of so many MiB.
fn lock_limit(cache_mb: u32) -> usize {
    sixth(cache_mb) / LOCK_BYTES
}

/// Idle locks that each MDT and each OST may leave with us: half of the locks are for metadata, half for data.
pub(super) fn lock_limits(cache_mb: u32, mdts: usize, osts: usize) -> (usize, usize) {
    let half = lock_limit(cache_mb) / 2;
    (
        (half / mdts.max(1)).max(LOCKS_MIN),
        (half / osts.max(1)).max(LOCKS_MIN),
    )
}

/// Files whose pages the kernel may cache at once, for a cache of so many MiB: each pins its locks.
pub(super) fn covered_limit(cache_mb: u32) -> usize {
    lock_limit(cache_mb) / 16
}

/// Bytes of written data kept back for each OST, for a cache of so many MiB.
pub(super) fn dirty_limit(cache_mb: u32, osts: usize) -> u64 {
    (sixth(cache_mb) as u64 / osts.max(1) as u64).clamp(1 << 20, MAX_DIRTY_BYTES)
}

/// Bytes of written data that each MDT, and each OST, has acknowledged and may not have on disk, for a cache of so many MiB. Of
/// files on MDTs only the beginning is there: theirs is the eighth part.
pub(super) fn kept_limits(cache_mb: u32, mdts: usize, osts: usize) -> (usize, usize) {
    let part = sixth(cache_mb) / 8;
    (
        (part / mdts.max(1)).max(1 << 20),
        (7 * part / osts.max(1)).max(1 << 20),
    )
}

/// What the budget was spent on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Locks held, of all targets.
    pub locks: usize,
    /// Objects remembered.
    pub inodes: usize,
    /// Bytes of objects and names.
    pub inode_bytes: usize,
    /// Files whose pages are in the kernel's cache; the pages are the kernel's memory, not ours.
    pub covered: usize,
    /// Bytes of written data kept back.
    pub dirty_bytes: usize,
    /// Bytes of written data kept until they are on disk.
    pub kept_bytes: usize,
}

impl Spent {
    /// All together.
    pub fn bytes(&self) -> usize {
        self.inode_bytes + self.locks * LOCK_BYTES + self.dirty_bytes + self.kept_bytes
    }

    /// The same in words.
    pub(super) fn lines(&self) -> [(&'static str, usize); 7] {
        let locks = self.locks * LOCK_BYTES;
        [
            ("inodes", self.inodes),
            ("inode_and_name_bytes", self.inode_bytes),
            ("locks", self.locks),
            ("lock_bytes", locks),
            ("files_with_cached_pages", self.covered),
            ("dirty_bytes", self.dirty_bytes),
            ("written_bytes_kept", self.kept_bytes),
        ]
    }
}

/// Names that were not there, looked up one by one before the whole directory is read.
pub(super) const MISSES_BEFORE_READDIR: u32 = 2;

/// Bits that cover attributes.
const ATTR_BITS: u64 = Ibits::LOOKUP.bits() | Ibits::UPDATE.bits() | Ibits::PERM.bits();

/// What the cache says about a name.
#[derive(Debug)]
pub(super) enum Lookup {
    /// It names this object, whose attributes are known.
    Hit(Box<Known>),
    /// It names this object.
    Name(Fid),
    /// There is no such name.
    Absent,
    /// Ask.
    Unknown,
}

/// An object with covered attributes.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// The MDT's view.
    pub md: MdInode,
    /// The OSTs' view, if covered by extent locks on the objects of that layout.
    pub objects: Option<ObjectAttr>,
    /// LOOKUP is held: names of it may be remembered by the caller.
    pub named: bool,
}

impl Known {
    /// All attributes, as they are now; `None`: those of its objects are not covered.
    pub fn attr(&self) -> Option<Attr> {
        match &self.objects {
            Some(objects) => Some(self.md.merged(objects)),
            None => (!self.md.needs_osts()).then_some(self.md.attr),
        }
    }
}

/// Where things stood when a read began; see [`Cache::begin_read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    at: u64,
    quiet: bool,
    locked: u64,
}

/// What the kernel above must forget.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Forget {
    /// Attributes of these.
    pub inodes: Vec<Fid>,
    /// These names.
    pub entries: Vec<(Fid, Bytes)>,
}

/// How directories stand with this cache, for the decision to read one whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirState {
    /// Its listing is known and covered.
    Complete,
    /// Made by this client and, as far as known, still as this client left it: the lock alone would make it complete.
    Tracked,
    /// Covered, listing unknown; so many names looked for in vain.
    Locked(u32),
    /// Not covered; so many names looked for in vain.
    Unlocked(u32),
}

#[derive(Default)]
struct Inner {
    nodes: BTreeMap<Fid, Box<Node>>,
    /// Objects whose extent locks cover cached sizes: {OST index, resource}.
    objects: BTreeMap<(u32, ResId), Fid>,
    /// Grows with every own change of any directory.
    epoch: u64,
    bytes: usize,
    sweep: Fid,
}

/// The cache of one mount.
pub(super) struct Cache {
    enabled: bool,
    limit_bytes: usize,
    inner: Mutex<Inner>,
}

impl Cache {
    pub fn new(enabled: bool, limit_mb: u32) -> Self {
        Self {
            enabled,
            limit_bytes: 3 * sixth(limit_mb),
            inner: Default::default(),
        }
    }

    /// What is remembered, without locks.
    pub fn spent(&self) -> Spent {
        let c = self.inner.lock();
        Spent {
            inodes: c.nodes.len(),
            inode_bytes: c.bytes,
            ..Default::default()
        }
    }

    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// The object a name was last known to be, covered or not: only to know what an own change may have touched.
    pub fn name_of(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        self.inner.lock().nodes.get(&parent)?.names.get(name)?.fid
    }

    // ---- questions -----------------------------------------------------------------------------------------------

    /// The object, if its attributes are covered.
    pub fn known(&self, fid: Fid) -> Option<Known> {
        self.inner.lock().known(fid)
    }

    /// The object is opened for reading; true: it was before, as far as is remembered.
    pub fn opened_again(&self, fid: Fid) -> bool {
        self.inner
            .lock()
            .nodes
            .get_mut(&fid)
            .is_some_and(|n| std::mem::replace(&mut n.opened, true))
    }

    /// What `name` in `parent` is.
    pub fn lookup(&self, parent: Fid, name: &[u8]) -> Lookup {
        let mut c = self.inner.lock();
        let Some(dir) = c.nodes.get_mut(&parent) else {
            return Lookup::Unknown;
        };
        dir.used = true;
        let complete = dir.complete();
        match dir.names.get(name).and_then(|n| n.fid) {
            Some(fid)
                if complete || c.nodes.get(&fid).is_some_and(|n| n.is_named(parent, name)) =>
            {
                c.hit(fid)
            }
            None if complete => Lookup::Absent,
            _ => Lookup::Unknown,
        }
    }

    /// How a directory stands.
    pub fn dir_state(&self, dir: Fid) -> DirState {
        let c = self.inner.lock();
        let Some(n) = c.nodes.get(&dir) else {
            return DirState::Unlocked(0);
        };
        match (n.complete(), n.holds(Ibits::UPDATE), n.tracked) {
            (true, ..) => DirState::Complete,
            (_, true, _) => DirState::Locked(n.misses),
            (_, _, Some(_)) => DirState::Tracked,
            _ => DirState::Unlocked(n.misses),
        }
    }

    // ---- what reads brought --------------------------------------------------------------------------------------

    /// Before a read about `fid` (a lookup in it, its listing, its attributes) is sent.
    pub fn begin_read(&self, fid: Fid) -> Mark {
        let mut c = self.inner.lock();
        let at = c.epoch;
        match c.nodes.get_mut(&fid) {
            Some(n) => Mark {
                at,
                quiet: n.changing == 0,
                locked: if n.holds(Ibits::UPDATE) {
                    n.update_lock
                } else {
                    0
                },
            },
            None => Mark {
                at,
                quiet: true,
                locked: 0,
            },
        }
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
        if !self.enabled {
            return;
        }
        let mut c = self.inner.lock();
        if let Some((cookie, bits)) = lock
            && still()
        {
            c.node(md.attr.fid).add_lock(cookie, bits);
        }
        if let Some(n) = c.nodes.get_mut(&md.attr.fid) {
            n.learn(md, mark.at);
        }
        c.shrink(self.limit_bytes);
    }

    /// A lookup that began at `mark` found that `name` is `child`, on whose LOOKUP lock it relies.
    pub fn learn_name(&self, mark: Mark, parent: Fid, name: &[u8], child: Fid) {
        if !self.enabled {
            return;
        }
        let mut c = self.inner.lock();
        if !c.undisturbed(parent, mark)
            || !c.nodes.get(&child).is_some_and(|n| n.holds(Ibits::LOOKUP))
        {
            return;
        }
        let dir = c.node(parent);
        let old = dir.names.insert(
            Bytes::copy_from_slice(name),
            Name {
                fid: Some(child),
                version: 0,
            },
        );
        c.bytes += if old.is_none() { NAME_BYTES } else { 0 };
        c.node(child).add_link(parent, name);
        c.shrink(self.limit_bytes);
    }

    /// A lookup found nothing.
    pub fn missed(&self, parent: Fid) {
        if self.enabled {
            self.inner.lock().node(parent).misses += 1;
        }
    }

    /// What a listing that began at `mark` said of names in `dir` still holds: the directory was covered all the time, and no
    /// own change touched it.
    pub fn names_stand(&self, mark: Mark, dir: Fid) -> bool {
        let mut c = self.inner.lock();
        self.enabled && c.undisturbed(dir, mark) && c.covers_since(dir, mark)
    }

    /// A whole listing was read between `mark` and now. True: it is covered, and the directory complete.
    pub fn learn_listing(&self, mark: Mark, dir: Fid, entries: Vec<(Bytes, Fid)>) -> bool {
        let mut c = self.inner.lock();
        if !self.enabled
            || !c.undisturbed(dir, mark)
            || entries.len() * NAME_BYTES > self.limit_bytes / 2
        {
            return false;
        }
        if !c.covers_since(dir, mark) {
            return false;
        }
        let n = c.node(dir);
        let Some(version) = n.version() else {
            return false;
        };
        let before = n.names.len();
        n.listed(
            entries
                .into_iter()
                .map(|(name, fid)| {
                    (
                        name,
                        Name {
                            fid: Some(fid),
                            version,
                        },
                    )
                })
                .collect(),
            version,
        );
        let after = n.names.len();
        c.bytes = (c.bytes + after * NAME_BYTES).saturating_sub(before * NAME_BYTES);
        c.shrink(self.limit_bytes);
        true
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
        if !self.enabled {
            return;
        }
        let mut c = self.inner.lock();
        let c = &mut *c;
        let Some(n) = c.nodes.get_mut(&fid) else {
            return;
        };
        if still() && n.covered().is_some_and(|md| md.layout.generation == layout) {
            n.objects = Some(attr);
            c.objects.extend(objects.iter().map(|o| (*o, fid)));
        }
    }

    /// A read that began at `mark` found no file capabilities (`security.capability`); `made`: it was no read, the file was
    /// made, and the lock came with it.
    pub fn learn_uncapped(&self, mark: Mark, fid: Fid, made: bool) {
        if let Some(n) = self.inner.lock().nodes.get_mut(&fid) {
            let same_lock = made || mark.locked != 0 && mark.locked == n.update_lock;
            n.uncapped |= n.holds(Ibits::UPDATE) && same_lock && n.forgot_at <= mark.at;
        }
    }

    /// Type and permissions of an object, under a lock.
    pub fn mode(&self, fid: Fid) -> Option<u32> {
        self.known(fid).map(|k| k.md.attr.mode)
    }

    /// The file is known to have no capabilities.
    pub fn is_uncapped(&self, fid: Fid) -> bool {
        self.inner
            .lock()
            .nodes
            .get(&fid)
            .is_some_and(|n| n.uncapped)
    }

    // ---- own changes ---------------------------------------------------------------------------------------------

    /// An own change of the entries of `dirs` begins: lookups beside it add no names until it ends.
    pub fn begin_change(self: &Arc<Self>, dirs: &[Fid]) -> Change {
        if self.enabled {
            let mut c = self.inner.lock();
            for d in dirs {
                c.node(*d).changing += 1;
            }
        }
        Change {
            cache: self.clone(),
            dirs: dirs.into(),
        }
    }

    /// The reply to an own change says how `dir` looks now (attributes and version), and that `name` in it is `fid` now
    /// (`None`: gone).
    pub fn changed_name(&self, dir: &Attr, version: u64, name: &[u8], fid: Option<Fid>) {
        if !self.enabled {
            return;
        }
        let mut c = self.inner.lock();
        let c = &mut *c;
        let n = c.node(dir.fid);
        n.step(version, true);
        n.update(dir, version);
        let old = n.names.get(name).copied();
        if !n.set_name(name, fid, version) {
            return;
        }
        c.bytes += if old.is_none() { NAME_BYTES } else { 0 };
        if let Some(old) = old.and_then(|o| o.fid).filter(|o| Some(*o) != fid)
            && let Some(child) = c.nodes.get_mut(&old)
        {
            child.links.retain(|(p, n)| (*p, &n[..]) != (dir.fid, name));
        }
        if let Some(child) = fid.and_then(|f| c.nodes.get_mut(&f)) {
            child.add_link(dir.fid, name);
        }
    }

    /// A name in `dir` changed in a way the reply did not tell: ask about all of them.
    pub fn doubt(&self, dir: Fid) {
        if self.enabled {
            let mut c = self.inner.lock();
            let names = c.nodes.get_mut(&dir).map_or(0, |n| {
                let names = n.names.len();
                n.untrack();
                names
            });
            c.bytes = c.bytes.saturating_sub(names * NAME_BYTES);
            c.forget(dir);
        }
    }

    /// A directory this client just made, with this version: empty until somebody changes it.
    pub fn made_dir(&self, fid: Fid, version: u64) {
        if self.enabled && version != 0 {
            let mut c = self.inner.lock();
            c.node(fid).tracked = Some(version);
            c.shrink(self.limit_bytes);
        }
    }

    /// The reply to an own change says how an object looks now (not its entries, if it is a directory). `ours`: the last
    /// change of it was this one.
    pub fn changed(&self, attr: &Attr, version: u64, ours: bool) {
        if self.enabled {
            let mut c = self.inner.lock();
            let n = c.node(attr.fid);
            n.step(version, ours);
            n.update(attr, version);
        }
    }

    /// An own change of the object's attributes whose outcome the reply did not tell.
    pub fn forget_attrs(&self, fid: Fid) {
        if self.enabled {
            self.inner.lock().forget(fid);
        }
    }

    /// An own change took the object's last name away.
    pub fn gone(&self, fid: Fid) {
        let mut c = self.inner.lock();
        if c.nodes.get(&fid).is_some_and(|n| n.changing == 0) {
            c.epoch += 1;
            c.remove(fid);
        }
    }

    // ---- locks go ------------------------------------------------------------------------------------------------

    /// An inode-bit lock on `bits` is called back or given up.
    pub fn lock_lost(&self, fid: Fid, cookie: u64, bits: u64) -> Forget {
        let mut c = self.inner.lock();
        let Some(n) = c.nodes.get_mut(&fid).filter(|n| n.has_lock(cookie)) else {
            // what it covered went from here for want of room, or already; above us it may still be remembered
            return match bits & ATTR_BITS {
                0 => Forget::default(),
                _ => Forget {
                    inodes: vec![fid],
                    entries: vec![(fid, Bytes::new())],
                },
            };
        };
        let (lost, links) = n.drop_lock(cookie);
        let mut out = Forget::default();
        if lost & ATTR_BITS != 0 {
            out.inodes.push(fid);
        }
        out.entries = links.into_vec();
        out
    }

    /// An extent lock goes: the size and times it covered are not known any more.
    pub fn extent_lost(&self, ost: u32, res: ResId) -> Forget {
        let mut c = self.inner.lock();
        let fid = c.objects.remove(&(ost, res));
        let known = fid.filter(|f| {
            c.nodes
                .get_mut(f)
                .is_none_or(|n| n.objects.take().is_some())
        });
        Forget {
            inodes: known.into_iter().collect(),
            entries: Vec::new(),
        }
    }

    /// Everything is void (eviction).
    pub fn clear(&self) -> Forget {
        let mut c = self.inner.lock();
        let mut out = Forget::default();
        c.epoch += 1;
        c.objects.clear();
        let (now, nodes) = (c.epoch, std::mem::take(&mut c.nodes));
        for (fid, n) in nodes {
            out.entries.extend(n.links.iter().cloned());
            out.inodes.push(fid);
            if n.changing > 0 {
                c.nodes.insert(fid, Box::new(Node::new(now, n.changing)));
            }
        }
        c.bytes = c.nodes.len() * NODE_BYTES;
        out
    }

    /// The caller no longer knows the object.
    pub fn unused(&self, fid: Fid) {
        if let Some(n) = self.inner.lock().nodes.get_mut(&fid) {
            n.used = false;
        }
    }
}

impl Inner {
    fn node(&mut self, fid: Fid) -> &mut Node {
        let (epoch, bytes) = (self.epoch, &mut self.bytes);
        self.nodes.entry(fid).or_insert_with(|| {
            *bytes += NODE_BYTES;
            // whatever was known of it before is forgotten: reads under way began too early
            Box::new(Node::new(epoch, 0))
        })
    }

    fn forget(&mut self, fid: Fid) {
        self.epoch += 1;
        let now = self.epoch;
        self.node(fid).forget(now);
    }

    fn known(&mut self, fid: Fid) -> Option<Known> {
        let n = self.nodes.get_mut(&fid)?;
        n.used = true;
        let md = n.covered()?.clone();
        Some(Known {
            md,
            objects: n.objects,
            named: n.holds(Ibits::LOOKUP),
        })
    }

    fn hit(&mut self, fid: Fid) -> Lookup {
        match self.known(fid) {
            Some(k) => Lookup::Hit(Box::new(k)),
            None => Lookup::Name(fid),
        }
    }

    /// No own change touched the entries of `dir` since `mark`, and none is under way.
    fn undisturbed(&mut self, dir: Fid, mark: Mark) -> bool {
        let n = self.node(dir);
        mark.quiet && n.changing == 0 && n.changed_at <= mark.at
    }

    /// The entries of `dir` are under the lock they were under at `mark`.
    fn covers_since(&mut self, dir: Fid, mark: Mark) -> bool {
        let n = self.node(dir);
        mark.locked != 0 && n.update_lock == mark.locked && n.holds(Ibits::UPDATE)
    }

    /// Second chance over the objects in order: who was not used since the last round goes.
    fn shrink(&mut self, limit: usize) {
        let mut rounds = 2 * self.nodes.len() + 1;
        while self.bytes > limit && rounds > 0 {
            rounds -= 1;
            let next = self
                .nodes
                .range(self.sweep..)
                .next()
                .or_else(|| self.nodes.iter().next())
                .map(|(f, _)| *f);
            let Some(fid) = next else { return };
            self.sweep = Fid {
                ver: fid.ver.wrapping_add(1),
                ..fid
            };
            let Some(n) = self.nodes.get_mut(&fid) else {
                return;
            };
            if n.changing > 0 || std::mem::take(&mut n.used) {
                continue;
            }
            self.remove(fid);
        }
    }

    fn remove(&mut self, fid: Fid) {
        if let Some(n) = self.nodes.remove(&fid) {
            self.bytes = self
                .bytes
                .saturating_sub(NODE_BYTES + n.names.len() * NAME_BYTES);
        }
    }
}

/// An own change of directories under way; ends when dropped.
pub(super) struct Change {
    cache: Arc<Cache>,
    dirs: smallvec::SmallVec<[Fid; 2]>,
}

impl Drop for Change {
    fn drop(&mut self) {
        if !self.cache.enabled {
            return;
        }
        let mut c = self.cache.inner.lock();
        c.epoch += 1;
        let now = c.epoch;
        for d in &self.dirs {
            let n = c.node(*d);
            n.changing = n.changing.saturating_sub(1);
            n.changed_at = now;
            let gone = if n.changing == 0 { n.purge() } else { 0 };
            c.bytes = c.bytes.saturating_sub(gone * NAME_BYTES);
        }
    }
}

#[cfg(test)]
mod tests;
