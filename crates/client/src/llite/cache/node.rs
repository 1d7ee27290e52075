//! One object in the cache: locks held, attributes, and for a directory its names.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::fid::Fid;
use coral_wire::layout::LmvUserMdHead;
use coral_wire::ldlm::Ibits;
use smallvec::SmallVec;

use super::counted::{NameCount, Names};
use super::known::ATTR_BITS;
use crate::llite::inode::MdInode;
use crate::llite::types::Attr;
use crate::osc::ObjectAttr;

/// What a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    /// The object; `None`: there was one, an own change removed it, and a late reply must not bring it back.
    pub fid: Option<Fid>,
    /// Version of the directory as of which this holds, 0 when not known.
    pub version: u64,
}

/// One object.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Locks held: cookie and inode bits.
    locks: SmallVec<[(u64, u64); 2]>,
    /// Another one each time UPDATE is gained; 0: never held.
    pub update_lock: u64,
    /// Attributes as last told.
    md: Option<MdInode>,
    /// Greatest version an own change told of: what is older is not taken in.
    seen: u64,
    /// Reads that began before come too late.
    made_at: u64,
    /// When an own change made the attributes doubtful last.
    pub forgot_at: u64,
    /// Sizes and times of the objects, covered by extent locks.
    pub objects: Option<ObjectAttr>,
    /// Number among all that came: another one each time `objects` is told.
    pub objects_came: u64,
    /// All data of a small file, as long as `objects` is known, and its number among [`super::contents::Contents`].
    pub data: Option<(u64, Payload)>,
    /// Directory: names known.
    pub names: Names,
    /// Directory: `names` was the whole listing at this version.
    pub tracked: Option<u64>,
    /// `tracked` is what the directory is now: only own changes happen while UPDATE is held.
    confirmed: bool,
    /// Names of this object that rely on its LOOKUP lock.
    pub links: SmallVec<[(Fid, Bytes); 1]>,
    /// The same in shards, as the caller knows them: the shard, the directory and the name.
    told_as: Vec<(Fid, Fid, Bytes)>,
    /// Names of this object in directories of other MDTs, each with the lock of that MDT that it relies on.
    elsewhere: Vec<(u64, Fid, Bytes)>,
    /// Names in `names` that are none any more.
    removed: Vec<Bytes>,
    /// Of each own change of its entries under way its name; `None`: it may be any.
    pub changing: SmallVec<[Option<Bytes>; 1]>,
    /// When the last own change of its entries ended.
    pub changed_at: u64,
    /// When the last one of those ended of which it was not told what it changed.
    pub doubted_at: u64,
    /// Names looked for in vain since the lock was gained.
    pub misses: u32,
    /// Asked for since the last sweep.
    pub used: bool,
    /// It has no file capabilities: found out under the UPDATE lock that is held, which goes before they are set.
    pub uncapped: bool,
    /// Directory: what new ones in it inherit, as it is stored, found out under the locks that cover its attributes.
    pub default_dirs: Option<Option<Box<LmvUserMdHead>>>,
    /// Opened for reading before, and some lock was held ever since.
    pub opened: bool,
}

impl Node {
    /// Nothing known, and reads that began before `now` come too late. Its names count among `names`.
    pub fn new(now: u64, names: &NameCount) -> Self {
        Self {
            names: Names::counted_in(names),
            made_at: now,
            changed_at: now,
            doubted_at: now,
            forgot_at: now,
            ..Default::default()
        }
    }

    /// An own change of its entries is under way.
    pub fn is_changing(&self) -> bool {
        !self.changing.is_empty()
    }

    /// One of this name is, or of one that is not known.
    pub fn may_be_changing(&self, name: &[u8]) -> bool {
        (self.changing.iter()).any(|n| n.as_ref().is_none_or(|n| n == name))
    }

    /// One of them ended at `now`.
    pub fn end_change(&mut self, name: &Option<Bytes>, now: u64) {
        if let Some(at) = self.changing.iter().position(|n| n == name) {
            self.changing.swap_remove(at);
        }
        self.changed_at = now;
        if name.is_none() {
            self.doubted_at = now;
        }
    }

    /// An own change is remembered, so that what reads from before it bring is told from what those from after it do.
    pub fn is_changed(&self) -> bool {
        self.seen > 0 || self.forgot_at.max(self.changed_at) > self.made_at
    }

    /// An own change says what a name is as of `version`. True: taken in; a later change was told of before otherwise.
    pub fn set_name(&mut self, name: &[u8], fid: Option<Fid>, version: u64) -> bool {
        if self.names.get(name).is_some_and(|o| o.version > version) {
            return false;
        }
        let name = Bytes::copy_from_slice(name);
        if fid.is_none() {
            self.removed.push(name.clone());
        }
        self.names.insert(name, Name { fid, version });
        true
    }

    /// No own change is under way, so no reply is late: names that are none go.
    pub fn purge(&mut self) {
        for name in std::mem::take(&mut self.removed) {
            if self.names.get(&name).is_some_and(|n| n.fid.is_none()) {
                self.names.remove(&name);
            }
        }
    }

    fn bits(&self) -> u64 {
        self.locks.iter().fold(0, |b, l| b | l.1)
    }

    /// The bit is held.
    pub fn holds(&self, bit: Ibits) -> bool {
        self.bits() & bit.bits() != 0
    }

    pub fn has_lock(&self, cookie: u64) -> bool {
        self.locks.iter().any(|l| l.0 == cookie)
    }

    /// `number`: another one for each lock.
    pub fn add_lock(&mut self, cookie: u64, bits: u64, number: u64) {
        let had = self.holds(Ibits::UPDATE);
        if !self.has_lock(cookie) {
            self.locks.push((cookie, bits));
        }
        if !had && self.holds(Ibits::UPDATE) {
            self.update_lock = number;
        }
    }

    /// Takes a lock away and what only it covered. The bits lost, and the names that relied on them.
    pub fn drop_lock(&mut self, cookie: u64) -> (u64, SmallVec<[(Fid, Bytes); 1]>) {
        let before = self.bits();
        self.locks.retain(|l| l.0 != cookie);
        self.opened &= !self.locks.is_empty();
        let lost = before & !self.bits();
        if lost & (ATTR_BITS | Ibits::LAYOUT.bits()) != 0 {
            self.md = None;
            self.default_dirs = None;
        }
        if lost & Ibits::LAYOUT.bits() != 0 {
            self.objects = None;
            self.data = None;
        }
        if lost & Ibits::UPDATE.bits() != 0 {
            self.uncapped = false;
            self.confirmed = false;
            self.misses = 0;
            if self.tracked == Some(0) {
                self.tracked = None;
            }
        }
        let links = match lost & Ibits::LOOKUP.bits() {
            0 => SmallVec::new(),
            _ => {
                let told = std::mem::take(&mut self.told_as).into_iter();
                let told = told.map(|(_, whole, name)| (whole, name));
                std::mem::take(&mut self.links)
                    .into_iter()
                    .chain(told)
                    .collect()
            }
        };
        (lost, links)
    }

    /// The MDT was told of this size.
    pub fn told_size(&mut self, size: u64) {
        if let Some(md) = &mut self.md {
            md.rough_size = Some(size);
        }
    }

    /// The attributes if locks cover them.
    pub fn covered(&self) -> Option<&MdInode> {
        self.md.as_ref().filter(|md| self.covers(md))
    }

    fn covers(&self, md: &MdInode) -> bool {
        let need = if md.attr.is_file() {
            ATTR_BITS | Ibits::LAYOUT.bits()
        } else {
            ATTR_BITS
        };
        self.bits() & need == need
    }

    /// All bits that cover attributes of a directory are held.
    pub fn covers_dir(&self) -> bool {
        self.bits() & ATTR_BITS == ATTR_BITS
    }

    /// The listing is whole and covered.
    pub fn complete(&self) -> bool {
        self.confirmed && self.tracked.is_some()
    }

    /// Takes attributes in from a reply to a read that began at `began`.
    pub fn learn(&mut self, md: &MdInode, began: u64) {
        let old = self.md.as_ref().map_or(0, |m| m.version).max(self.seen);
        if self.forgot_at > began || md.version < old {
            return;
        }
        if self.holds(Ibits::UPDATE) && !self.confirmed {
            match self.tracked {
                Some(t) if md.version != 0 && md.version <= t => self.confirmed = true,
                Some(_) => self.untrack(),
                None => {}
            }
        }
        if self.covers(md) {
            self.md = Some(md.clone());
        }
    }

    /// The whole listing was read under UPDATE.
    pub fn listed(&mut self, names: BTreeMap<Bytes, Name>, version: u64) {
        self.names.set(names);
        self.tracked = Some(version);
        self.confirmed = true;
    }

    /// The version of the attributes known.
    pub fn version(&self) -> Option<u64> {
        self.md.as_ref().map(|m| m.version)
    }

    /// The listing is not known to be whole any more.
    pub fn untrack(&mut self) {
        self.tracked = None;
        self.confirmed = false;
        self.names.set(BTreeMap::new());
        self.removed.clear();
    }

    /// Takes in what an own change says the attributes are now; the layout stays.
    pub fn update(&mut self, attr: &Attr, version: u64) {
        self.seen = self.seen.max(version);
        if let Some(md) = &mut self.md
            && version > md.version
        {
            if !md.acl.is_empty() && md.attr.mode != attr.mode {
                // a chmod changes the ACL too
                self.md = None;
                return;
            }
            md.attr = Attr {
                blksize: md.attr.blksize,
                ..*attr
            };
            md.version = version;
        }
    }

    /// An own change whose outcome is not known made the attributes doubtful at `now`.
    pub fn forget(&mut self, now: u64) {
        self.md = None;
        self.forgot_at = now;
        self.uncapped = false;
        self.default_dirs = None;
    }

    /// An own change brought the directory to `version`: the listing stays whole if nobody else's change lies between.
    pub fn step(&mut self, version: u64, ours: bool) {
        match self.tracked {
            Some(t) if self.confirmed || version <= t => self.tracked = Some(t.max(version)),
            Some(t) if ours && version == t + 1 => self.tracked = Some(version),
            Some(_) => self.untrack(),
            None => {}
        }
    }

    /// LOOKUP is held and this is one of its names.
    pub fn is_named(&self, parent: Fid, name: &[u8]) -> bool {
        self.holds(Ibits::LOOKUP) && self.links.iter().any(|(p, n)| *p == parent && n == name)
            || self.is_named_elsewhere(parent, name)
    }

    fn is_named_elsewhere(&self, parent: Fid, name: &[u8]) -> bool {
        (self.elsewhere.iter()).any(|(_, p, n)| *p == parent && n == name)
    }

    /// It has this name as long as the lock `cookie` is held, which the MDT of `parent` has given.
    pub fn add_link_elsewhere(&mut self, cookie: u64, parent: Fid, name: &[u8]) {
        self.elsewhere
            .push((cookie, parent, Bytes::copy_from_slice(name)));
    }

    /// The caller knows its name in `dir`, which is a shard, as one in `parent`: that goes with the same locks.
    pub fn add_link_of_shard(&mut self, dir: Fid, parent: Fid, name: &[u8]) {
        let is_told = |t: &(Fid, Fid, Bytes)| t.0 == dir && t.2 == name;
        let held = self.holds(Ibits::LOOKUP) && !self.told_as.iter().any(is_told);
        if held {
            let name = Bytes::copy_from_slice(name);
            self.told_as.push((dir, parent, name));
        }
        if self.is_named_elsewhere(parent, name) {
            return;
        }
        let here = |e: &&(u64, Fid, Bytes)| e.1 == dir && e.2 == name;
        let locks: Vec<u64> = self.elsewhere.iter().filter(here).map(|e| e.0).collect();
        for cookie in locks {
            self.add_link_elsewhere(cookie, parent, name);
        }
    }

    /// The names that relied on that lock of another MDT.
    pub fn drop_links_elsewhere(&mut self, cookie: u64) -> SmallVec<[(Fid, Bytes); 1]> {
        let relies = |e: &mut (u64, Fid, Bytes)| e.0 == cookie;
        let gone = self.elsewhere.extract_if(.., relies);
        gone.map(|(_, parent, name)| (parent, name)).collect()
    }

    /// All names that rely on locks on this object.
    pub fn all_links(&self) -> impl Iterator<Item = (Fid, Bytes)> + '_ {
        let elsewhere = self.elsewhere.iter().map(|(_, p, n)| (*p, n.clone()));
        let told = self.told_as.iter().map(|(_, p, n)| (*p, n.clone()));
        self.links.iter().cloned().chain(told).chain(elsewhere)
    }

    /// An own change took this name away.
    pub fn drop_link(&mut self, parent: Fid, name: &[u8]) {
        self.links.retain(|(p, n)| (*p, &n[..]) != (parent, name));
        self.told_as
            .retain(|(p, _, n)| (*p, &n[..]) != (parent, name));
    }

    pub fn add_link(&mut self, parent: Fid, name: &[u8]) {
        if self.holds(Ibits::LOOKUP) && !self.links.iter().any(|(p, n)| *p == parent && n == name) {
            self.links.push((parent, Bytes::copy_from_slice(name)));
        }
    }
}
