//! The rules of the cache. A plain state machine: no await, no message, no mutex.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::fid::Fid;
use coral_wire::layout::LmvUserMdHead;
use coral_wire::ldlm::{Ibits, ResId};

use super::changing::Ended;
use super::contents::Contents;
use super::counted::NameCount;
use super::known::{DirState, Known, Lookup, Mark};
use super::node::{Name, Node};
use crate::llite::budget::Spent;
use crate::llite::inode::MdInode;
use crate::osc::{ObjectAttr, SHORT_IO_BYTES};

/// Rough size of an object in here, names not counted, bytes: the unit of the budget.
pub(super) const NODE_BYTES: usize = 920;
/// Rough size of a name, bytes.
pub(super) const NAME_BYTES: usize = 150;

/// What is remembered of the objects of one mount.
pub(super) struct Core {
    pub(super) limit_bytes: usize,
    pub(super) nodes: BTreeMap<Fid, Box<Node>>,
    /// Objects whose extent locks cover cached sizes: {OST index, resource}.
    pub(super) objects: BTreeMap<(u32, ResId), Fid>,
    /// Shards of striped directories whose attributes the caller may remember, and the directory.
    pub(super) shard_of: BTreeMap<Fid, Fid>,
    /// Grows with every own change of any directory.
    pub(super) epoch: u64,
    /// Locks taken in.
    locks: u64,
    /// Names that own changes changed last.
    pub(super) ended: Ended,
    /// Own changes of objects that are not in `nodes` ended until then, or until the moment that `gone` has.
    pub(super) changed_to: u64,
    /// Objects that own changes took away last, and when.
    pub(super) gone: VecDeque<(Fid, u64)>,
    /// Of all directories.
    names: NameCount,
    pub(super) contents: Contents,
    /// How often sizes and times of objects were told.
    objects_came: u64,
    sweep: Fid,
}

impl Core {
    /// Nothing yet; at most so many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            nodes: BTreeMap::new(),
            objects: BTreeMap::new(),
            shard_of: BTreeMap::new(),
            epoch: 0,
            locks: 0,
            ended: Ended::default(),
            changed_to: 0,
            gone: VecDeque::new(),
            names: NameCount::default(),
            contents: Contents::default(),
            objects_came: 0,
            sweep: Fid::default(),
        }
    }

    /// What is remembered, without locks.
    pub fn spent(&self) -> Spent {
        Spent {
            inodes: self.nodes.len(),
            inode_bytes: self.bytes(),
            ..Default::default()
        }
    }

    /// Bytes of objects and names.
    pub(super) fn bytes(&self) -> usize {
        self.nodes.len() * NODE_BYTES + self.names.now() * NAME_BYTES
    }

    /// Bytes of names that one directory may have here: it shall not push out all else.
    pub(super) fn most_of_one(&self) -> usize {
        self.limit_bytes / 2
    }

    /// The object a name was last known to be, covered or not: only to know what an own change may have touched.
    pub fn name_of(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        self.nodes.get(&parent)?.names.get(name)?.fid
    }

    /// Whether it is known what the name stands for, if only that it stands for nothing.
    pub fn knows_name(&self, parent: Fid, name: &[u8]) -> bool {
        let dir = self.nodes.get(&parent);
        dir.is_some_and(|d| d.names.get(name).is_some())
    }

    // ---- questions -----------------------------------------------------------------------------------------------

    /// The object, if its attributes are covered.
    pub fn known(&mut self, fid: Fid) -> Option<Known> {
        let n = self.nodes.get_mut(&fid)?;
        n.used = true;
        let md = n.covered()?.clone();
        Some(Known {
            md,
            objects: n.objects,
            named: n.holds(Ibits::LOOKUP),
        })
    }

    /// The MDT was told that the file has this size.
    pub fn told_size(&mut self, fid: Fid, size: u64) {
        if let Some(n) = self.nodes.get_mut(&fid) {
            n.told_size(size);
        }
    }

    /// The object is opened for reading; true: it was before, as far as is remembered.
    pub fn opened_again(&mut self, fid: Fid) -> bool {
        self.nodes
            .get_mut(&fid)
            .is_some_and(|n| std::mem::replace(&mut n.opened, true))
    }

    /// What `name` in `parent` is.
    pub fn lookup(&mut self, parent: Fid, name: &[u8]) -> Lookup {
        let c = self;
        let Some(dir) = c.nodes.get_mut(&parent) else {
            return Lookup::Unknown;
        };
        dir.used = true;
        let (complete, changing) = (dir.complete(), dir.may_be_changing(name));
        match dir.names.get(name).and_then(|n| n.fid) {
            Some(fid)
                if complete || c.nodes.get(&fid).is_some_and(|n| n.is_named(parent, name)) =>
            {
                c.hit(fid)
            }
            // the server may have made it already, and told another caller that it is there
            None if complete && !changing => Lookup::Absent,
            _ => Lookup::Unknown,
        }
    }

    /// The objects of a file whose attributes are covered: {OST index, resource}.
    pub fn objects_of(&self, fid: Fid) -> Vec<(u32, ResId)> {
        let covered = self.nodes.get(&fid).and_then(|n| n.covered());
        let stripes = covered.iter().flat_map(|md| md.layout.stripes());
        stripes
            .map(|s| (s.ost(), s.object(fid).oi.res_id()))
            .collect()
    }

    /// How a directory stands.
    pub fn dir_state(&self, dir: Fid) -> DirState {
        let c = self;
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
    pub fn begin_read(&mut self, fid: Fid) -> Mark {
        let c = self;
        let at = c.epoch;
        match c.nodes.get_mut(&fid) {
            Some(n) => Mark {
                at,
                quiet: !n.is_changing(),
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
        &mut self,
        mark: Mark,
        md: &MdInode,
        lock: Option<(u64, u64)>,
        still: impl FnOnce() -> bool,
    ) {
        let c = self;
        let mut added = false;
        if let Some((cookie, bits)) = lock
            && still()
        {
            c.locks += 1;
            let number = c.locks;
            c.node(md.attr.fid).add_lock(cookie, bits, number);
            added = true;
        }
        // where versions are not counted, a reply whose lock has gone again may be older than what another lock covers
        if (md.version != 0 || added)
            && let Some(n) = c.nodes.get_mut(&md.attr.fid)
        {
            n.learn(md, mark.at);
        }
        c.shrink(c.limit_bytes);
    }

    /// A lookup that began at `mark` found that `name` is `child`, and brought the lock `cookie` on it, on whose LOOKUP it relies.
    pub fn learn_name(&mut self, mark: Mark, parent: Fid, name: &[u8], child: Fid, cookie: u64) {
        let c = self;
        let covers = |n: &Node| n.has_lock(cookie) && n.holds(Ibits::LOOKUP);
        if !c.is_untouched(parent, name, mark) || !c.nodes.get(&child).is_some_and(|n| covers(n)) {
            return;
        }
        c.put_name(parent, name, child);
        c.node(child).add_link(parent, name);
        c.shrink(c.limit_bytes);
    }

    /// The same of a child that lies on another MDT than its name: the lock is one of the name's MDT. `still`: it is not called back
    /// yet, asked under the cache's mutex.
    pub fn learn_name_elsewhere(
        &mut self,
        mark: Mark,
        (parent, name): (Fid, &[u8]),
        child: Fid,
        cookie: u64,
        still: impl FnOnce() -> bool,
    ) {
        let c = self;
        // what lies there is remembered, or nobody would ask for the name
        if !still() || !c.is_untouched(parent, name, mark) || !c.nodes.contains_key(&child) {
            return;
        }
        c.put_name(parent, name, child);
        c.node(child).add_link_elsewhere(cookie, parent, name);
        c.shrink(c.limit_bytes);
    }

    /// The listing of `parent` has said since `mark`, and says, that `name` is `child`: relies on the child's LOOKUP lock from now
    /// on, if there is one. False: that does not stand.
    pub fn confirm_name(&mut self, mark: Mark, parent: Fid, name: &[u8], child: Fid) -> bool {
        if !self.names_stand(mark, parent) {
            return self.is_named(parent, name, child);
        }
        let holds = |n: &Node| n.holds(Ibits::LOOKUP);
        if self.nodes.get(&child).is_some_and(|n| holds(n)) {
            self.put_name(parent, name, child);
            self.node(child).add_link(parent, name);
            self.shrink(self.limit_bytes);
        }
        true
    }

    /// A lock covers that `name` in `parent` is `child`.
    pub fn is_named(&self, parent: Fid, name: &[u8], child: Fid) -> bool {
        let listed = |dir: &Node| {
            dir.complete() && dir.names.get(name).is_some_and(|n| n.fid == Some(child))
        };
        self.nodes
            .get(&child)
            .is_some_and(|n| n.is_named(parent, name))
            || self.nodes.get(&parent).is_some_and(|dir| listed(dir))
    }

    /// The same of a name that the caller knows as one in `parent`, of which `dir` may be a shard: it will be told of both when the
    /// lock goes.
    pub fn is_named_to_caller(&mut self, dir: Fid, parent: Fid, name: &[u8], child: Fid) -> bool {
        let named = self.is_named(dir, name, child);
        if named && dir != parent {
            self.node(child).add_link_of_shard(dir, parent, name);
        }
        named
    }

    fn put_name(&mut self, parent: Fid, name: &[u8], child: Fid) {
        let is = Name {
            fid: Some(child),
            version: 0,
        };
        let names = &mut self.node(parent).names;
        names.insert(Bytes::copy_from_slice(name), is);
    }

    /// A lookup found nothing.
    pub fn missed(&mut self, parent: Fid) {
        self.node(parent).misses += 1;
    }

    /// What a listing that began at `mark` said of names in `dir` still holds: the directory was covered all the time, and no
    /// own change touched it.
    pub fn names_stand(&mut self, mark: Mark, dir: Fid) -> bool {
        let c = self;
        c.undisturbed(dir, mark) && c.covers_since(dir, mark)
    }

    /// A whole listing was read between `mark` and now. True: it is covered, and the directory complete.
    pub fn learn_listing(&mut self, mark: Mark, dir: Fid, entries: Vec<(Bytes, Fid)>) -> bool {
        let c = self;
        if !c.undisturbed(dir, mark) || entries.len() * NAME_BYTES > c.most_of_one() {
            return false;
        }
        if !c.covers_since(dir, mark) {
            return false;
        }
        let n = c.node(dir);
        let Some(version) = n.version() else {
            return false;
        };
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
        c.shrink(c.limit_bytes);
        true
    }

    /// Sizes and times of a file's objects, which extent locks on `objects` ({OST index, resource}) cover; `still`: none of
    /// them is called back yet, asked under the cache's mutex. `layout`: generation of the layout they belong to. True: they are known
    /// now.
    pub fn learn_objects(
        &mut self,
        fid: Fid,
        layout: u32,
        objects: &[(u32, ResId)],
        attr: ObjectAttr,
        still: impl FnOnce() -> bool,
    ) -> bool {
        let c = self;
        let Some(n) = c.nodes.get_mut(&fid) else {
            return false;
        };
        let covered = n.covered().is_some_and(|md| md.layout.generation == layout);
        let learned = still() && covered;
        if learned {
            c.objects_came += 1;
            n.objects = Some(attr);
            n.objects_came = c.objects_came;
            n.data = None;
            c.objects.extend(objects.iter().map(|o| (*o, fid)));
        }
        learned
    }

    /// The same of a small file with all its data, for the next who reads it.
    pub fn learn_data(
        &mut self,
        fid: Fid,
        layout: u32,
        object: (u32, ResId),
        (attr, data): (ObjectAttr, Payload),
        still: impl FnOnce() -> bool,
    ) {
        if self.learn_objects(fid, layout, &[object], attr, still) {
            self.put_data(fid, data);
        }
    }

    /// What the data of a small file is asked for with, whose size is known and of which nothing was read; and that size.
    pub fn wants_data(&self, fid: Fid) -> Option<(u64, u64)> {
        let n = self.nodes.get(&fid)?;
        let size = n.objects.map(|o| o.size)?;
        let wanted = (1..=SHORT_IO_BYTES as u64).contains(&size) && n.data.is_none() && !n.opened;
        wanted.then_some((n.objects_came, size))
    }

    /// The data that was asked for then: under the locks that covered the size, if they were held ever since.
    pub fn learn_data_since(&mut self, fid: Fid, asked: u64, data: Payload) {
        let n = self.nodes.get(&fid);
        let size = n.filter(|n| n.objects_came == asked);
        let size = size.and_then(|n| Some(n.objects?.size));
        if size == Some(data.len() as u64) {
            self.put_data(fid, data);
        }
    }

    fn put_data(&mut self, fid: Fid, data: Payload) {
        let number = self.contents.come(fid, data.len());
        self.node(fid).data = Some((number, data));
        while let Some((fid, goes)) = self.contents.beyond() {
            if let Some(n) = self.nodes.get_mut(&fid) {
                n.data.take_if(|(number, _)| *number == goes);
            }
        }
    }

    /// All data of a file, if it is known, for who reads `len_bytes` from `offset`.
    pub fn data(&mut self, fid: Fid, offset: u64, len_bytes: u32) -> Option<Payload> {
        let n = self.nodes.get(&fid)?;
        let (number, data) = n.data.as_ref().filter(|_| n.objects.is_some())?;
        if offset == 0 && len_bytes as usize >= data.len() {
            self.contents.was_read(*number);
        }
        Some(data.clone())
    }

    /// All data of a file is known.
    pub fn has_data(&self, fid: Fid) -> bool {
        let n = self.nodes.get(&fid);
        n.is_some_and(|n| n.data.is_some() && n.objects.is_some())
    }

    /// A read that began at `mark` found no file capabilities (`security.capability`); `made`: it was no read, the file was
    /// made, and the lock came with it.
    pub fn learn_uncapped(&mut self, mark: Mark, fid: Fid, made: bool) {
        if let Some(n) = self.nodes.get_mut(&fid) {
            let same_lock = made || mark.locked != 0 && mark.locked == n.update_lock;
            n.uncapped |= n.holds(Ibits::UPDATE) && same_lock && n.forgot_at <= mark.at;
        }
    }

    /// A read that began at `mark` found what new directories in `dir` inherit.
    pub fn learn_default(&mut self, mark: Mark, dir: Fid, found: Option<LmvUserMdHead>) {
        if let Some(n) = self.nodes.get_mut(&dir) {
            let same_lock = mark.locked != 0 && mark.locked == n.update_lock;
            if n.covers_dir() && same_lock && n.forgot_at <= mark.at {
                n.default_dirs = Some(found.map(Box::new));
            }
        }
    }

    /// What new directories in `dir` inherit, if that is known; within: nothing is set.
    pub fn default_of(&self, dir: Fid) -> Option<Option<LmvUserMdHead>> {
        let found = self.nodes.get(&dir)?.default_dirs.as_ref()?;
        Some(found.as_deref().copied())
    }

    /// Type and permissions of an object, under a lock.
    pub fn mode(&mut self, fid: Fid) -> Option<u32> {
        self.known(fid).map(|k| k.md.attr.mode)
    }

    /// The file is known to have no capabilities.
    pub fn is_uncapped(&self, fid: Fid) -> bool {
        self.nodes.get(&fid).is_some_and(|n| n.uncapped)
    }

    /// The caller no longer knows the object.
    pub fn unused(&mut self, fid: Fid) {
        if let Some(n) = self.nodes.get_mut(&fid) {
            n.used = false;
        }
    }
}

impl Core {
    pub(super) fn node(&mut self, fid: Fid) -> &mut Node {
        let (changed_to, gone, names) = (self.changed_to, &self.gone, &self.names);
        let new = || {
            // what own changes did to it is forgotten: reads that began before them come too late
            let gone = gone.iter().rev().find(|(f, _)| *f == fid);
            let at = gone.map_or(changed_to, |(_, at)| changed_to.max(*at));
            Box::new(Node::new(at, names))
        };
        self.nodes.entry(fid).or_insert_with(new)
    }

    pub(super) fn forget(&mut self, fid: Fid) {
        self.epoch += 1;
        let now = self.epoch;
        self.node(fid).forget(now);
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
        mark.quiet && !n.is_changing() && n.changed_at <= mark.at
    }

    /// No own change touched this entry of `dir` since `mark`, and none is under way.
    fn is_untouched(&self, dir: Fid, name: &[u8], mark: Mark) -> bool {
        let Some(n) = self.nodes.get(&dir) else {
            return self.changed_to <= mark.at;
        };
        let changed = n.changed_at > mark.at
            && (n.doubted_at > mark.at || self.ended.may_have(mark.at, dir, name));
        !changed && !n.may_be_changing(name)
    }

    /// The entries of `dir` are under the lock they were under at `mark`.
    fn covers_since(&mut self, dir: Fid, mark: Mark) -> bool {
        let n = self.node(dir);
        mark.locked != 0 && n.update_lock == mark.locked && n.holds(Ibits::UPDATE)
    }

    /// Second chance over the objects in order: who was not used since the last round goes.
    pub(super) fn shrink(&mut self, limit: usize) {
        let mut rounds = 2 * self.nodes.len() + 1;
        while self.bytes() > limit && rounds > 0 {
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
            if n.is_changing() || std::mem::take(&mut n.used) {
                continue;
            }
            if n.is_changed() {
                self.epoch += 1;
                self.changed_to = self.epoch;
            }
            self.nodes.remove(&fid);
        }
    }

    /// Reads that began before now say nothing, whatever they are about.
    pub(super) fn begin_anew(&mut self) {
        self.epoch += 1;
        self.changed_to = self.epoch;
        self.gone.clear();
    }
}
