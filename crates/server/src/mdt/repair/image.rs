//! The name space of all MDTs in memory, with what is to be changed in their tables.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_osd::{Kv, Table, Time};
use coral_wire::fid::Fid;
use coral_wire::layout::LmvMd;

use super::{Mended, RepairError, Result};
use crate::mdt::check::{each, is_never_served};
use crate::mdt::fld;
use crate::mdt::namespace::DIR_SIZE_BYTES;
use crate::mdt::record::{
    Inode, S_IFDIR, S_IFMT, S_IFREG, XATTR_INLINE_BYTES, XATTR_INLINE_TOTAL_BYTES, XattrValue,
};
use crate::mdt::{core, table};

/// Changes of one MDT's tables: a value to put, or none for a removal.
pub(super) type Staged = BTreeMap<(Table, Bytes), Option<Bytes>>;

/// One of the MDTs.
pub(super) struct Part<'a> {
    pub kv: &'a dyn Kv,
    pub index: u32,
}

/// An object.
pub(super) struct Obj {
    /// Which of the MDTs it lies on.
    pub part: usize,
    pub ino: Inode,
    /// Names it remembers, in their order.
    pub links: Vec<(Fid, Bytes)>,
    /// Names it has, as of the last [`Image::find_names`].
    pub names: BTreeSet<(Fid, Bytes)>,
    /// Its record is to be written.
    pub changed: bool,
}

impl Obj {
    pub fn new(part: usize, ino: Inode) -> Obj {
        let links = ino.links.iter().map(|l| (l.parent, l.name.clone()));
        Obj {
            part,
            links: links.collect(),
            ino,
            names: BTreeSet::new(),
            changed: false,
        }
    }
}

/// Entries of one directory: what each name stands for, and the type.
pub(super) type Entries = BTreeMap<Bytes, (Fid, u32)>;

/// Everything that is known of the MDTs.
pub(super) struct Image<'a> {
    pub parts: Vec<Part<'a>>,
    pub now: Time,
    /// Which MDT holds which sequences.
    pub ranges: BTreeMap<u64, (u64, u32)>,
    pub objs: BTreeMap<Fid, Obj>,
    pub dirs: BTreeMap<Fid, Entries>,
    /// Links outside the records, as stored.
    pub link_rows: BTreeMap<Fid, BTreeSet<(Fid, Bytes)>>,
    /// Objects that are said to be open without a name, and the MDT that says so.
    pub orphans: BTreeMap<Fid, usize>,
    /// Layouts of striped directories, when they are mended.
    pub masters: BTreeMap<Fid, LmvMd>,
    /// Their shards: the directory and the number.
    pub shards: BTreeMap<Fid, (Fid, usize)>,
    /// Objects whose names are to go: they belong into `lost+found`.
    pub lost: BTreeSet<Fid>,
    pub staged: Vec<Staged>,
    /// Records that are written last: until then they say why their objects go to `lost+found`.
    pub late: Vec<Staged>,
    /// The objects of those.
    pub losers: BTreeSet<Fid>,
    pub mended: Vec<Mended>,
    /// The sequence of new FIDs by MDT, and the next number in it.
    fresh: BTreeMap<usize, Fid>,
}

/// What a mode says an object is.
pub(super) fn kind(mode: u32) -> &'static str {
    match mode & S_IFMT {
        S_IFDIR => "directory",
        S_IFREG => "file",
        0o120000 => "symbolic link",
        _ => "special file",
    }
}

/// A name as it is told.
pub(super) fn text(name: &Bytes) -> String {
    format!("{:?}", String::from_utf8_lossy(name))
}

impl<'a> Image<'a> {
    /// Nothing is read yet. One that was never served has nothing.
    pub fn open(kvs: &[&'a dyn Kv], now: Time) -> Result<Image<'a>> {
        let mut parts: Vec<Part<'a>> = Vec::new();
        for kv in kvs {
            if is_never_served(*kv)? {
                continue;
            }
            let index = fld::index(*kv)?;
            if let Some(found) = core::format_of(*kv)?.filter(|f| *f > core::FORMAT) {
                return Err(RepairError::Newer { mdt: index, found });
            }
            parts.push(Part { kv: *kv, index });
        }
        parts.sort_by_key(|p| p.index);
        if let Some(twins) = parts.windows(2).find(|w| w[0].index == w[1].index) {
            return Err(RepairError::Twice(twins[0].index));
        }
        Ok(Image {
            staged: parts.iter().map(|_| Staged::new()).collect(),
            late: parts.iter().map(|_| Staged::new()).collect(),
            losers: BTreeSet::new(),
            parts,
            now,
            ranges: BTreeMap::new(),
            objs: BTreeMap::new(),
            dirs: BTreeMap::new(),
            link_rows: BTreeMap::new(),
            orphans: BTreeMap::new(),
            masters: BTreeMap::new(),
            shards: BTreeMap::new(),
            lost: BTreeSet::new(),
            mended: Vec::new(),
            fresh: BTreeMap::new(),
        })
    }

    /// Tells of something that is mended on one of the MDTs.
    pub fn say(&mut self, part: usize, what: String) {
        let mdt = self.parts[part].index;
        self.mended.push(Mended { mdt, what });
    }

    /// Tells of something that is mended where the object lies.
    pub fn say_of(&mut self, fid: &Fid, what: String) {
        self.say(self.part_of(fid), what);
    }

    pub fn part_at(&self, index: u32) -> Option<usize> {
        self.parts.iter().position(|p| p.index == index)
    }

    /// Which of the MDTs an object with that FID belongs on.
    pub fn home(&self, fid: &Fid) -> usize {
        let index = match fid.seq < coral_wire::fid::seq::NORMAL {
            true => 0,
            false => fld::find(&self.ranges, fid.seq).map_or(0, |(.., index)| index),
        };
        // every MDT with a range was given
        self.part_at(index).unwrap_or(0)
    }

    /// Where the object lies, or would.
    pub fn part_of(&self, fid: &Fid) -> usize {
        self.objs
            .get(fid)
            .map_or_else(|| self.home(fid), |o| o.part)
    }

    pub fn put(&mut self, part: usize, t: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.staged[part].insert((t, key.into()), Some(value.into()));
    }

    pub fn del(&mut self, part: usize, t: Table, key: impl Into<Bytes>) {
        self.staged[part].insert((t, key.into()), None);
    }

    /// A row goes, and is kept in the table `aside`.
    pub fn set_aside(&mut self, part: usize, t: Table, key: &[u8], value: &Bytes) -> Result<()> {
        self.copy_aside(part, t, key, value)?;
        self.del(part, t, key.to_vec());
        Ok(())
    }

    /// A row is kept in the table `aside`, beside those of the same key that are there.
    pub fn copy_aside(&mut self, part: usize, t: Table, key: &[u8], value: &Bytes) -> Result<()> {
        let mut key = table::aside_key(t, key);
        loop {
            let there = match self.staged[part].get(&(table::ASIDE, Bytes::from(key.clone()))) {
                Some(staged) => staged.clone(),
                None => self.parts[part].kv.get(table::ASIDE, &key)?,
            };
            match there {
                Some(there) if there != *value => key.push(0),
                _ => break,
            }
        }
        self.put(part, table::ASIDE, key, value.clone());
        Ok(())
    }

    /// A row that does not parse.
    pub fn bad_row(&mut self, part: usize, t: Table, key: &[u8], value: &Bytes) -> Result<()> {
        self.set_aside(part, t, key, value)?;
        self.say(
            part,
            format!("table {}: a row that does not parse is kept aside", t.0),
        );
        Ok(())
    }

    pub fn rows(&self, part: usize, t: Table) -> Result<Vec<(Bytes, Bytes)>> {
        let mut rows = Vec::new();
        each(self.parts[part].kv, t, |k, v| {
            rows.push((k.clone(), v.clone()));
        })?;
        Ok(rows)
    }

    /// Reads entries, links and the list of open objects. The objects are there.
    pub fn read_names(&mut self) -> Result<()> {
        for part in 0..self.parts.len() {
            self.read_links(part)?;
            for (k, v) in self.rows(part, table::ORPHAN)? {
                match table::fid_of_key(&k) {
                    Some(fid) => drop(self.orphans.insert(fid, part)),
                    None => self.bad_row(part, table::ORPHAN, &k, &v)?,
                }
            }
        }
        let mut astray = Vec::new();
        for part in 0..self.parts.len() {
            for (k, v) in self.rows(part, table::DIRENT)? {
                let row = table::dirent_of_key(&k).zip(table::dirent_of_value(&v));
                let Some(((parent, hash, name), (child, ty))) = row else {
                    self.bad_row(part, table::DIRENT, &k, &v)?;
                    continue;
                };
                if hash != table::name_hash(&name) || part != self.part_of(&parent) {
                    astray.push((part, k, v, parent, name));
                    continue;
                }
                let entries = self.dirs.entry(parent).or_default();
                entries.insert(name, (child, ty));
            }
        }
        for (part, k, v, parent, name) in astray {
            self.bring_home(part, (&k, &v), parent, name)?;
        }
        Ok(())
    }

    /// An entry that is not where it is looked for.
    fn bring_home(
        &mut self,
        part: usize,
        (k, v): (&Bytes, &Bytes),
        parent: Fid,
        name: Bytes,
    ) -> Result<()> {
        let Some((child, ty)) = table::dirent_of_value(v) else {
            return Ok(());
        };
        let there = self.dirs.get(&parent).and_then(|e| e.get(&name)).copied();
        let what = match there {
            None => {
                self.del(part, table::DIRENT, k.clone());
                self.set_entry(parent, &name, child, ty);
                "it is where it is looked for now"
            }
            Some((other, _)) if other == child => {
                self.del(part, table::DIRENT, k.clone());
                "it is removed, as it is at the right place too"
            }
            Some(_) => {
                self.set_aside(part, table::DIRENT, k, v)?;
                "it is removed, as the name stands for another at the right place"
            }
        };
        self.say(
            part,
            format!(
                "entry {} in {parent}, for {child}, was where nobody looks: {what}",
                text(&name)
            ),
        );
        Ok(())
    }

    fn read_links(&mut self, part: usize) -> Result<()> {
        for (k, v) in self.rows(part, table::LINK)? {
            let child = table::fid_of_key(&k).filter(|c| self.objs.contains_key(c));
            let parent = table::fid_of_key(k.get(16..).unwrap_or(&[])).filter(|_| k.len() > 32);
            let Some((child, parent)) = child.zip(parent) else {
                self.set_aside(part, table::LINK, &k, &v)?;
                self.say(part, "a remembered name of nothing is kept aside".into());
                continue;
            };
            let link = (parent, k.slice(32..));
            let home = self.part_of(&child);
            if home != part {
                self.del(part, table::LINK, k.clone());
                self.put(home, table::LINK, k, v);
            }
            self.link_rows
                .entry(child)
                .or_default()
                .insert(link.clone());
            if let Some(o) = self.objs.get_mut(&child)
                && !o.links.contains(&link)
            {
                o.links.push(link);
            }
        }
        Ok(())
    }

    /// Makes an entry, or changes it.
    pub fn set_entry(&mut self, parent: Fid, name: &Bytes, child: Fid, ty: u32) {
        let key = table::dirent_key(&parent, table::name_hash(name), name);
        let value = table::dirent_value(&child, ty);
        self.put(self.part_of(&parent), table::DIRENT, key, value);
        let entries = self.dirs.entry(parent).or_default();
        entries.insert(name.clone(), (child, ty & S_IFMT));
    }

    /// Takes an entry away.
    pub fn del_entry(&mut self, parent: Fid, name: &Bytes) {
        let key = table::dirent_key(&parent, table::name_hash(name), name);
        self.del(self.part_of(&parent), table::DIRENT, key);
        if let Some(entries) = self.dirs.get_mut(&parent) {
            entries.remove(name);
        }
    }

    /// Takes an entry away and keeps the row aside.
    pub fn drop_entry(&mut self, parent: Fid, name: &Bytes) -> Result<()> {
        let Some((child, ty)) = self.dirs.get(&parent).and_then(|e| e.get(name)).copied() else {
            return Ok(());
        };
        let key = table::dirent_key(&parent, table::name_hash(name), name);
        let value = table::dirent_value(&child, ty);
        self.copy_aside(self.part_of(&parent), table::DIRENT, &key, &value)?;
        self.del_entry(parent, name);
        Ok(())
    }

    /// All entries: directory, name, what it stands for, type.
    pub fn all_entries(&self) -> Vec<(Fid, Bytes, Fid, u32)> {
        let dirs = self.dirs.iter();
        dirs.flat_map(|(parent, entries)| {
            let entry =
                |(name, (child, ty)): (&Bytes, &(Fid, u32))| (*parent, name.clone(), *child, *ty);
            entries.iter().map(entry)
        })
        .collect()
    }

    /// Finds out which names every object has.
    pub fn find_names(&mut self) {
        self.objs.values_mut().for_each(|o| o.names.clear());
        for (parent, entries) in &self.dirs {
            for (name, (child, _)) in entries {
                if let Some(o) = self.objs.get_mut(child) {
                    o.names.insert((*parent, name.clone()));
                }
            }
        }
    }

    pub fn is_dir(&self, fid: &Fid) -> bool {
        self.objs.get(fid).is_some_and(|o| o.ino.is_dir())
    }

    pub fn has_entries(&self, fid: &Fid) -> bool {
        self.dirs.get(fid).is_some_and(|e| !e.is_empty())
    }

    /// The inode, to be changed.
    pub fn change(&mut self, fid: &Fid) -> Option<&mut Inode> {
        let o = self.objs.get_mut(fid)?;
        o.changed = true;
        Some(&mut o.ino)
    }

    /// A new object.
    pub fn insert(&mut self, fid: Fid, ino: Inode) {
        let mut o = Obj::new(self.home(&fid), ino);
        o.changed = true;
        self.objs.insert(fid, o);
    }

    /// The object goes, with its extended attributes; its record is not kept.
    pub fn remove(&mut self, fid: &Fid) {
        let Some(o) = self.objs.remove(fid) else {
            return;
        };
        self.del(o.part, table::INODE, table::fid_key(fid).to_vec());
        for (name, value) in &o.ino.xattrs {
            if matches!(value, XattrValue::External(_)) {
                self.del(o.part, table::XATTR, table::xattr_key(fid, name));
            }
        }
    }

    /// A directory with nothing in it, of root, for nobody else.
    pub fn new_dir(&self) -> Inode {
        Inode {
            mode: S_IFDIR | 0o700,
            nlink: 2,
            size: DIR_SIZE_BYTES,
            blocks: 8,
            version: 1,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
            ..Inode::default()
        }
    }

    /// Directories of which only their entries are left are made anew: what is in them keeps its place. So is the root.
    pub fn make_lost_directories(&mut self) -> Result<()> {
        loop {
            let lost = self.dirs.iter().filter(|(dir, entries)| {
                !self.objs.contains_key(dir)
                    && dir.is_norm()
                    && entries
                        .values()
                        .any(|(child, _)| self.objs.contains_key(child))
            });
            let lost: Vec<Fid> = lost.map(|(dir, _)| *dir).collect();
            for fid in &lost {
                self.insert(*fid, self.new_dir());
                self.say_of(fid, format!("directory {fid} had lost its record: it is made anew, of root and mode 0700, with the names in it"));
            }
            if lost.is_empty() {
                break;
            }
        }
        let mut used = !self.objs.is_empty() || !self.dirs.is_empty();
        for p in &self.parts {
            used |= crate::target::stored_transno(p.kv)?.is_some();
        }
        if used && !self.objs.contains_key(&Fid::ROOT) {
            let root = Inode {
                mode: S_IFDIR | 0o755,
                ..self.new_dir()
            };
            self.insert(Fid::ROOT, root);
            let what = "there was no root directory: it is made anew, of root and mode 0755";
            self.say_of(&Fid::ROOT, what.into());
        }
        Ok(())
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, fid: &Fid, name: &[u8]) -> Result<Option<Bytes>> {
        let Some(o) = self.objs.get(fid) else {
            return Ok(None);
        };
        match o.ino.xattr(name) {
            None => Ok(None),
            Some(XattrValue::Inline(v)) => Ok(Some(v.clone())),
            Some(XattrValue::External(_)) => {
                let key = table::xattr_key(fid, name);
                match self.staged[o.part].get(&(table::XATTR, key.clone())) {
                    Some(staged) => Ok(staged.clone()),
                    None => Ok(self.parts[o.part].kv.get(table::XATTR, &key)?),
                }
            }
        }
    }

    /// Sets or removes an extended attribute.
    pub fn set_xattr(&mut self, fid: &Fid, name: &[u8], value: Option<Bytes>) {
        let part = self.part_of(fid);
        let key = table::xattr_key(fid, name);
        let Some(ino) = self.change(fid) else { return };
        let external = matches!(ino.xattr(name), Some(XattrValue::External(_)));
        ino.xattrs.retain(|(n, _)| n != name);
        let inline = |v: &XattrValue| match v {
            XattrValue::Inline(v) => v.len(),
            XattrValue::External(_) => 0,
        };
        let used: usize = ino.xattrs.iter().map(|(_, v)| inline(v)).sum();
        let own = Bytes::copy_from_slice(name);
        match value {
            Some(v)
                if v.len() <= XATTR_INLINE_BYTES && used + v.len() <= XATTR_INLINE_TOTAL_BYTES =>
            {
                ino.xattrs.push((own, XattrValue::Inline(v)));
                if external {
                    self.del(part, table::XATTR, key);
                }
            }
            Some(v) => {
                ino.xattrs.push((own, XattrValue::External(v.len() as u32)));
                self.put(part, table::XATTR, key, v);
            }
            None if external => self.del(part, table::XATTR, key),
            None => {}
        }
    }

    /// A FID for a new object on one of the MDTs.
    pub fn new_fid(&mut self, part: usize) -> Result<Fid> {
        if let Some(fid) = self.fresh.get_mut(&part) {
            fid.oid += 1;
            return Ok(*fid);
        }
        let Part { kv, index } = self.parts[part];
        let staged = |key: &[u8]| {
            let row = (table::META, Bytes::copy_from_slice(key));
            match self.staged[part].get(&row) {
                Some(Some(v)) => Ok(v.as_ref().try_into().ok().map(u64::from_le_bytes)),
                Some(None) => Ok(None),
                None => fld::word(kv, key),
            }
        };
        let end = match staged(fld::KEY_SEQ_END)? {
            None if index == 0 => Some(fld::FIRST.1),
            end => end,
        };
        let next = staged(fld::KEY_SEQ)?.filter(|next| end.is_some_and(|end| *next < end));
        let seq = next.ok_or(RepairError::NoSequence(index))?;
        self.put(
            part,
            table::META,
            fld::KEY_SEQ,
            (seq + 1).to_le_bytes().to_vec(),
        );
        let fid = Fid::new(seq, 1);
        self.fresh.insert(part, fid);
        Ok(fid)
    }

    /// Stages the records that have changed.
    pub fn encode_changed(&mut self) {
        for (fid, o) in self.objs.iter_mut().filter(|(_, o)| o.changed) {
            o.ino.version += 1;
            let row = (table::INODE, Bytes::copy_from_slice(&table::fid_key(fid)));
            let staged = match self.losers.contains(fid) {
                true => &mut self.late,
                false => &mut self.staged,
            };
            staged[o.part].insert(row, Some(o.ino.encode()));
        }
    }

    pub fn is_unchanged(&self) -> bool {
        self.staged.iter().chain(&self.late).all(BTreeMap::is_empty)
    }
}
