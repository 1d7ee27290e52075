//! Reading an MDT's tables, and the transaction that changes them.
//!
//! A [`Txn`] reads through to the store, keeps every inode it touched, and ends as one
//! [`Batch`]: all of an operation or nothing of it. It holds no lock; the caller serialises
//! transactions (one MDT has one writer), so what a transaction read cannot change under it. One
//! that only reads may do so before ([`Txn::ahead`]).
//!
//! Lustre: `lustre/mdd/mdd_dir.c`, `mdd_object.c` over `lustre/osd-ldiskfs`.

mod ahead;
mod away;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use coral_osd::{Batch, Device, Mark, OsdError, Table};
use coral_wire::Errno;
use coral_wire::coral::updates::{Look, Update};
use coral_wire::fid::Fid;

pub use self::ahead::Early;
pub use self::away::Away;
use super::acl::{self, Acl};
use super::fld::Fld;
use super::record::{
    Inode, LINKS_INLINE, Link, RecordError, S_IFMT, XATTR_INLINE_BYTES, XATTR_INLINE_TOTAL_BYTES,
    XattrValue,
};
use super::stripe;
use super::table::{self, fid_key};
use super::usage::{self, MdtUsage};
use crate::ost::OstError;
use crate::quota::{Owner, Used};

/// Why an operation on the name space failed.
#[derive(Debug, thiserror::Error)]
pub enum MdtError {
    /// The caller's doing, or the state of the name space: goes to the caller as it is.
    #[error("{0}")]
    Errno(Errno),
    /// The device failed.
    #[error("metadata device: {0}")]
    Osd(#[from] OsdError),
    /// A record on the device does not parse.
    #[error("object {fid}: {source}")]
    Corrupt {
        /// Whose record.
        fid: Fid,
        /// What is wrong.
        source: RecordError,
    },
}

impl From<Errno> for MdtError {
    fn from(e: Errno) -> Self {
        MdtError::Errno(e)
    }
}

impl From<OstError> for MdtError {
    fn from(e: OstError) -> Self {
        match e {
            OstError::Errno(e) => MdtError::Errno(e),
            OstError::Osd(e) => MdtError::Osd(e),
        }
    }
}

impl MdtError {
    /// What the caller is told: a full device is ENOSPC, any other trouble of the device EIO.
    pub fn errno(&self) -> Errno {
        match self {
            MdtError::Errno(e) => *e,
            MdtError::Osd(e) => Errno(e.errno()),
            MdtError::Corrupt { .. } => Errno::EIO,
        }
    }
}

/// Result of reading or changing the name space.
pub type MdtResult<T> = Result<T, MdtError>;

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// Position in readdir.
    pub hash: u64,
    /// Its name.
    pub name: Bytes,
    /// What it names.
    pub fid: Fid,
    /// Type bits of its mode.
    pub file_type: u32,
}

/// The tables of one MDT.
#[derive(Clone)]
pub struct Store {
    kv: Device,
    usage: Arc<MdtUsage>,
    fld: Arc<Fld>,
}

impl Store {
    /// The tables in `kv`.
    pub fn open(kv: impl Into<Device>) -> MdtResult<Store> {
        let kv = kv.into();
        let usage = Arc::new(MdtUsage::open(&kv)?);
        let fld = Arc::new(Fld::open(&*kv)?);
        Ok(Store { kv, usage, fld })
    }

    /// What owners have in use.
    pub fn usage(&self) -> &MdtUsage {
        &self.usage
    }

    /// Where sequences are.
    pub fn fld(&self) -> &Arc<Fld> {
        &self.fld
    }

    /// Whether objects with that FID lie on this MDT.
    pub fn is_here(&self, fid: &Fid) -> bool {
        self.fld.is_here(fid)
    }

    /// The device.
    pub fn kv(&self) -> &Device {
        &self.kv
    }

    /// The inode of `fid`, if there is one.
    pub fn find(&self, fid: &Fid) -> MdtResult<Option<Inode>> {
        match self.kv.get(table::INODE, &fid_key(fid))? {
            None => Ok(None),
            Some(raw) => {
                let ino = Inode::decode(&raw)
                    .map_err(|source| MdtError::Corrupt { fid: *fid, source })?;
                Ok(Some(ino))
            }
        }
    }

    /// The inode of `fid`; ENOENT if there is none.
    pub fn inode(&self, fid: &Fid) -> MdtResult<Inode> {
        self.find(fid)?.ok_or(Errno::ENOENT.into())
    }

    /// What `name` in `parent` names.
    pub fn lookup(&self, parent: &Fid, name: &[u8]) -> MdtResult<Option<Fid>> {
        let key = table::dirent_key(parent, table::name_hash(name), name);
        match self.kv.get(table::DIRENT, &key)? {
            None => Ok(None),
            Some(v) => {
                let (fid, _) = table::dirent_of_value(&v).ok_or_else(|| torn(parent))?;
                Ok(Some(fid))
            }
        }
    }

    /// At most `limit` entries of `parent` from hash `from` on, in hash order.
    pub fn entries(&self, parent: &Fid, from: u64, limit: usize) -> MdtResult<Vec<NameEntry>> {
        let start = table::dirent_key(parent, from, b"");
        self.entries_from(parent, &start, limit)
    }

    /// At most `limit` entries of `parent` that follow `last`.
    pub fn entries_after(
        &self,
        parent: &Fid,
        last: &NameEntry,
        limit: usize,
    ) -> MdtResult<Vec<NameEntry>> {
        let mut start = table::dirent_key(parent, last.hash, &last.name).to_vec();
        start.push(0);
        self.entries_from(parent, &start, limit)
    }

    fn entries_from(&self, parent: &Fid, start: &[u8], limit: usize) -> MdtResult<Vec<NameEntry>> {
        let end = table::prefix_end(&fid_key(parent));
        let rows = self.kv.range(table::DIRENT, start, end.as_deref(), limit)?;
        rows.iter()
            .map(|(k, v)| {
                let (_, hash, name) = table::dirent_of_key(k).ok_or_else(|| torn(parent))?;
                let (fid, file_type) = table::dirent_of_value(v).ok_or_else(|| torn(parent))?;
                Ok(NameEntry {
                    hash,
                    name,
                    fid,
                    file_type,
                })
            })
            .collect()
    }

    /// Whether directory `fid` has no entries.
    pub fn is_empty(&self, fid: &Fid) -> MdtResult<bool> {
        Ok(self.entries(fid, 0, 1)?.is_empty())
    }

    /// The value of extended attribute `name` of an object whose record is `ino`.
    pub fn xattr(&self, fid: &Fid, ino: &Inode, name: &[u8]) -> MdtResult<Option<Bytes>> {
        match ino.xattr(name) {
            None => Ok(None),
            Some(XattrValue::Inline(v)) => Ok(Some(v.clone())),
            Some(XattrValue::External(_)) => Ok(Some(
                self.kv
                    .get(table::XATTR, &table::xattr_key(fid, name))?
                    .ok_or_else(|| torn(fid))?,
            )),
        }
    }

    /// The ACL kept as attribute `name`.
    pub fn acl(&self, fid: &Fid, ino: &Inode, name: &[u8]) -> MdtResult<Option<Acl>> {
        match self.xattr(fid, ino, name)? {
            None => Ok(None),
            Some(raw) => Ok(Acl::parse(&raw).map_err(|_| torn(fid))?),
        }
    }

    /// EACCES unless `cred` may do `want` to the object.
    pub fn permit(
        &self,
        cred: &super::cred::Ucred,
        fid: &Fid,
        ino: &Inode,
        want: u32,
    ) -> MdtResult<()> {
        let acl = self.acl(fid, ino, acl::ACCESS)?;
        Ok(cred.may(ino, acl.as_ref(), want)?)
    }

    /// At most `limit` names of an object, those in its record first.
    pub fn links(&self, fid: &Fid, ino: &Inode, limit: usize) -> MdtResult<Vec<Link>> {
        let mut links: Vec<Link> = ino.links.iter().take(limit).cloned().collect();
        if links.len() < limit && !ino.is_dir() && ino.nlink as usize > ino.links.len() {
            let from = fid_key(fid);
            let end = table::prefix_end(&from);
            for (k, _) in self
                .kv
                .range(table::LINK, &from, end.as_deref(), limit - links.len())?
            {
                let parent =
                    table::fid_of_key(k.get(16..).unwrap_or(&[])).ok_or_else(|| torn(fid))?;
                links.push(Link {
                    parent,
                    name: k.slice(32..),
                });
            }
        }
        Ok(links)
    }

    /// The directory `fid` (a directory other than the root) is in.
    pub fn parent(&self, fid: &Fid) -> MdtResult<Fid> {
        if *fid == Fid::ROOT {
            return Ok(Fid::ROOT);
        }
        let ino = self.inode(fid)?;
        ino.links
            .first()
            .map(|l| l.parent)
            .ok_or(Errno::ENOENT.into())
    }
}

pub(super) fn torn(fid: &Fid) -> MdtError {
    MdtError::Corrupt {
        fid: *fid,
        source: RecordError::Torn,
    }
}

/// An inode held by a transaction; valid for that transaction only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnObject(usize);

struct Slot {
    fid: Fid,
    ino: Inode,
    /// What it counted for before.
    was: Option<(Owner, Used)>,
    dirty: bool,
    /// The transaction makes its version ([`super::version`]).
    stamped: bool,
    gone: bool,
    /// It lies on another MDT.
    away: Option<Box<Away>>,
}

impl Slot {
    fn counts_for(&self) -> Option<(Owner, Used)> {
        (!self.gone && self.away.is_none()).then(|| usage::of_inode(&self.ino))
    }
}

/// A directory, a name in it, and what that names.
type Looked = (Fid, Box<[u8]>, Option<Fid>);

/// One operation in the making.
pub struct Txn<'s> {
    /// What is read through to.
    pub store: &'s Store,
    slots: Vec<Slot>,
    batch: Batch,
    /// The name that was looked up last: who may not have it and who makes it ask one after the other.
    looked: Option<Looked>,
    /// Inodes that were read ahead and are not held yet.
    known: Vec<(Fid, Mark, Option<Inode>)>,
    /// There if it only reads, ahead of a lock.
    marks: Option<ahead::MarksRead>,
    /// Changes of entries and objects that lie on other MDTs.
    away: Vec<(u32, Update)>,
    /// Directories above some, over all MDTs.
    above: Vec<(Fid, Vec<Fid>)>,
    /// Objects of other MDTs that are not there.
    lost: BTreeSet<Fid>,
}

impl<'s> Txn<'s> {
    /// An empty transaction.
    pub fn new(store: &'s Store) -> Txn<'s> {
        Txn {
            store,
            slots: Vec::with_capacity(4),
            batch: Batch::new(),
            looked: None,
            known: Vec::new(),
            marks: None,
            away: Vec::new(),
            above: Vec::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Holds the inode of `fid`, if there is one (and this transaction has not removed it).
    pub fn find(&mut self, fid: &Fid) -> MdtResult<Option<TxnObject>> {
        if let Some(i) = self.slots.iter().position(|s| s.fid == *fid) {
            return Ok((!self.slots[i].gone).then_some(TxnObject(i)));
        }
        Ok(self.read_inode(fid)?.map(|ino| {
            let was = Some(usage::of_inode(&ino));
            self.hold(Slot {
                fid: *fid,
                ino,
                was,
                dirty: false,
                stamped: false,
                gone: false,
                away: None,
            })
        }))
    }

    /// Holds the inode of `fid`; ENOENT if there is none.
    pub fn get(&mut self, fid: &Fid) -> MdtResult<TxnObject> {
        self.find(fid)?.ok_or(Errno::ENOENT.into())
    }

    fn hold(&mut self, slot: Slot) -> TxnObject {
        self.slots.push(slot);
        TxnObject(self.slots.len() - 1)
    }

    /// A new object. The caller has made sure that there is none of that FID.
    pub fn insert(&mut self, fid: Fid, mut ino: Inode) -> TxnObject {
        ino.version = 1;
        self.hold(Slot {
            fid,
            ino,
            was: None,
            dirty: true,
            stamped: true,
            gone: false,
            away: None,
        })
    }

    /// The inode.
    pub fn ino(&self, h: TxnObject) -> &Inode {
        &self.slots[h.0].ino
    }

    /// Its FID.
    pub fn fid(&self, h: TxnObject) -> Fid {
        self.slots[h.0].fid
    }

    /// The inode, to be changed.
    pub fn change(&mut self, h: TxnObject) -> &mut Inode {
        let slot = &mut self.slots[h.0];
        if !slot.dirty {
            slot.dirty = true;
            slot.ino.version += 1;
        }
        &mut slot.ino
    }

    /// If this transaction changes the object, its number is the object's version from then on ([`super::version`]).
    pub fn stamp(&mut self, h: TxnObject) {
        self.slots[h.0].stamped = true;
    }

    /// Forgets the object and what lies outside its record.
    pub fn remove(&mut self, h: TxnObject) -> MdtResult<()> {
        self.slots[h.0].gone = true;
        let slot = &self.slots[h.0];
        if let Some(away) = &slot.away {
            self.away.push((away.mdt, Update::Remove { fid: slot.fid }));
            return Ok(());
        }
        let key = fid_key(&slot.fid);
        self.batch.del(table::INODE, key.to_vec());
        for (name, value) in &slot.ino.xattrs {
            if matches!(value, XattrValue::External(_)) {
                self.batch
                    .del(table::XATTR, table::xattr_key(&slot.fid, name));
            }
        }
        Ok(())
    }

    /// Adds the entry `name` in `parent`; no check.
    pub fn add_entry(&mut self, parent: &Fid, name: &[u8], child: &Fid, mode: u32) {
        if let Some(mdt) = self.away(parent).map(|a| a.mdt) {
            let update = Update::AddEntry {
                dir: *parent,
                name: Bytes::copy_from_slice(name),
                child: *child,
                file_type: mode & S_IFMT,
            };
            return self.away.push((mdt, update));
        }
        let key = table::dirent_key(parent, table::name_hash(name), name);
        self.batch
            .put(table::DIRENT, key, table::dirent_value(child, mode));
    }

    /// Removes the entry `name` from `parent`; no check.
    pub fn del_entry(&mut self, parent: &Fid, name: &[u8]) {
        if let Some(mdt) = self.away(parent).map(|a| a.mdt) {
            let (dir, name) = (*parent, Bytes::copy_from_slice(name));
            return self.away.push((mdt, Update::DelEntry { dir, name }));
        }
        self.batch.del(
            table::DIRENT,
            table::dirent_key(parent, table::name_hash(name), name),
        );
    }

    /// Remembers that the object is named `name` in `parent`.
    pub fn add_link(&mut self, h: TxnObject, parent: Fid, name: &[u8]) {
        if let Some(away) = &mut self.slots[h.0].away {
            let name = Bytes::copy_from_slice(name);
            return away.added.push(Look { dir: parent, name });
        }
        if self.ino(h).links.len() < LINKS_INLINE {
            let name = Bytes::copy_from_slice(name);
            self.change(h).links.push(Link { parent, name });
        } else {
            let key = table::link_key(&self.fid(h), &parent, name);
            self.batch.put(table::LINK, key, Bytes::new());
        }
    }

    /// Forgets that link.
    pub fn del_link(&mut self, h: TxnObject, parent: &Fid, name: &[u8]) {
        if let Some(away) = &mut self.slots[h.0].away {
            let (dir, name) = (*parent, Bytes::copy_from_slice(name));
            return away.dropped.push(Look { dir, name });
        }
        let at = self
            .ino(h)
            .links
            .iter()
            .position(|l| l.parent == *parent && l.name == name);
        match at {
            Some(i) => {
                self.change(h).links.remove(i);
            }
            None => {
                let key = table::link_key(&self.fid(h), parent, name);
                self.batch.del(table::LINK, key);
            }
        }
    }

    /// Sets (`Some`) or removes (`None`) an extended attribute; no check.
    pub fn put_xattr(&mut self, h: TxnObject, name: &[u8], value: Option<Bytes>) {
        let fid = self.fid(h);
        let old = self.ino(h).xattrs.iter().position(|(n, _)| n == name);
        if let Some(i) = old {
            let (_, was) = self.change(h).xattrs.remove(i);
            if matches!(was, XattrValue::External(_)) {
                self.batch.del(table::XATTR, table::xattr_key(&fid, name));
            }
        }
        let Some(value) = value else { return };
        let inline: usize = self.ino(h).xattrs.iter().map(|(_, v)| inline_len(v)).sum();
        let small =
            value.len() <= XATTR_INLINE_BYTES && inline + value.len() <= XATTR_INLINE_TOTAL_BYTES;
        let stored = if small {
            XattrValue::Inline(value)
        } else {
            let len = value.len() as u32;
            self.batch
                .put(table::XATTR, table::xattr_key(&fid, name), value);
            XattrValue::External(len)
        };
        let name = Bytes::copy_from_slice(name);
        self.change(h).xattrs.push((name, stored));
    }

    /// The OSTs will be told whose the objects of a file are.
    pub fn tell_owner(&mut self, h: TxnObject) {
        let fid = fid_key(&self.fid(h));
        for (ost, id) in stripe::objects(&self.ino(h).lov.clone()) {
            self.batch
                .put(table::OWNER, table::destroy_key(ost, id), fid.to_vec());
        }
    }

    /// Adds any other change.
    pub fn put(&mut self, t: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.batch.put(t, key, value);
    }

    /// Adds the removal of any other record.
    pub fn del(&mut self, t: Table, key: impl Into<Bytes>) {
        self.batch.del(t, key);
    }

    /// The finished batch, when it has no number: no version is made.
    pub fn finish(self) -> Batch {
        let (mut batch, stamped) = self.finish_stamped();
        stamped
            .0
            .iter()
            .for_each(|(fid, ino)| put_inode(&mut batch, fid, ino));
        batch
    }

    /// The batch, and what is to be added when it has its number.
    pub fn finish_stamped(mut self) -> (Batch, Stamped) {
        assert!(self.marks.is_none(), "who reads ahead changes nothing");
        let changes = self.slots.iter().map(|s| (s.was, s.counts_for()));
        self.store.usage.change(&mut self.batch, changes);
        let mut stamped = Vec::new();
        let here = |s: &Slot| s.dirty && !s.gone && s.away.is_none();
        for s in self.slots.into_iter().filter(here) {
            match s.stamped {
                true => stamped.push((s.fid, s.ino)),
                false => put_inode(&mut self.batch, &s.fid, &s.ino),
            }
        }
        (self.batch, Stamped(stamped))
    }
}

/// Objects whose version a transaction makes.
pub struct Stamped(Vec<(Fid, Inode)>);

impl Stamped {
    /// Adds them to the batch: the transaction has this number.
    pub fn put(self, batch: &mut Batch, transno: u64) {
        for (fid, ino) in self.0 {
            put_inode(batch, &fid, &Inode { transno, ..ino });
        }
    }
}

fn put_inode(batch: &mut Batch, fid: &Fid, ino: &Inode) {
    batch.put(table::INODE, fid_key(fid).to_vec(), ino.encode());
}

fn inline_len(v: &XattrValue) -> usize {
    match v {
        XattrValue::Inline(b) => b.len(),
        XattrValue::External(_) => 0,
    }
}
