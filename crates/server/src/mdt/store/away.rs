//! A transaction's view of objects that lie on other MDTs, and what it changes there ([`crate::mdt::trans`]).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_osd::Op;
use coral_wire::Errno;
use coral_wire::coral::updates::{Look, Stamp, Update};
use coral_wire::fid::Fid;

use super::{MdtResult, Slot, Txn, TxnObject, torn};
use crate::mdt::record::{Inode, XattrValue};
use crate::mdt::xattr::TRUSTED_LMV;
use crate::mdt::{striped, table};

/// An object of another MDT, which keeps it locked for this transaction, as it was found to look.
#[derive(Clone, Debug)]
pub struct Away {
    /// Index of that MDT.
    pub mdt: u32,
    /// Its record; ACLs lie in it.
    pub ino: Inode,
    /// It is a directory with entries.
    pub has_entries: bool,
    /// Names that were looked up in it.
    pub names: Vec<(Bytes, Option<Fid>)>,
    /// Names that the transaction takes from it.
    pub dropped: Vec<Look>,
    /// Names that the transaction gives it.
    pub added: Vec<Look>,
}

impl Txn<'_> {
    /// Takes an object of another MDT in: what is done to it goes to [`Txn::updates`], not into the batch.
    pub fn take_away(&mut self, fid: Fid, away: Away) {
        let (ino, away) = (away.ino.clone(), Some(Box::new(away)));
        self.hold(Slot {
            fid,
            ino,
            was: None,
            dirty: false,
            stamped: false,
            gone: false,
            away,
        });
    }

    /// Whether the object lies on another MDT.
    pub fn is_away(&self, h: TxnObject) -> bool {
        self.slots[h.0].away.is_some()
    }

    /// The MDT on which it lies, if that is another one.
    pub fn away_at(&self, h: TxnObject) -> Option<u32> {
        self.slots[h.0].away.as_ref().map(|a| a.mdt)
    }

    /// A change on another MDT.
    pub fn add_update(&mut self, mdt: u32, update: Update) {
        self.away.push((mdt, update));
    }

    /// These directories are above `dir`, itself first, the root last; nobody moves them meanwhile.
    pub fn know_above(&mut self, dir: Fid, fids: Vec<Fid>) {
        self.above.push((dir, fids));
    }

    /// These were looked for on their MDTs, and are not there.
    pub fn know_lost(&mut self, fids: BTreeSet<Fid>) {
        self.lost = fids;
    }

    /// Those directories, if they are known.
    pub fn known_above(&self, dir: &Fid) -> Option<&[Fid]> {
        let known = self.above.iter().find(|(d, _)| d == dir)?;
        Some(&known.1)
    }

    pub(super) fn away(&self, fid: &Fid) -> Option<&Away> {
        let slot = self.slots.iter().find(|s| s.fid == *fid)?;
        slot.away.as_deref()
    }

    /// What `name` in `parent` names, before this transaction.
    pub fn lookup(&mut self, parent: &Fid, name: &[u8]) -> MdtResult<Option<Fid>> {
        match self.away(parent) {
            None => self.read_name(parent, name),
            Some(a) => {
                let found = a.names.iter().find(|(n, _)| n == name);
                // a name that was not looked up when its directory was locked cannot be told now
                Ok(found.ok_or(Errno::EAGAIN)?.1)
            }
        }
    }

    /// Whether directory `fid` has no entries, before this transaction; of a striped one, whether its shards have none.
    pub fn is_empty(&mut self, fid: &Fid) -> MdtResult<bool> {
        let h = self.get(fid)?;
        let shards = striped::shards(self.store, fid, self.ino(h))?;
        if shards.is_empty() {
            return self.is_empty_object(fid);
        }
        for shard in shards {
            let known = self.away(&shard).is_some() || self.store.is_here(&shard);
            match known {
                true if !self.is_empty_object(&shard)? => return Ok(false),
                true => {}
                // a shard that is lost has no entries
                false if self.lost.contains(&shard) => {}
                // its MDT was not asked
                false => return Err(Errno::EINPROGRESS.into()),
            }
        }
        Ok(true)
    }

    fn is_empty_object(&self, fid: &Fid) -> MdtResult<bool> {
        match self.away(fid) {
            None => self.store.is_empty(fid),
            Some(a) => Ok(!a.has_entries),
        }
    }

    /// What this transaction changes on other MDTs, by their indices. A directory there changes its entries, its number of
    /// subdirectories and its times; nothing else of it can be told.
    pub fn updates(&self) -> BTreeMap<u32, Vec<Update>> {
        let mut all: BTreeMap<u32, Vec<Update>> = BTreeMap::new();
        for (mdt, update) in &self.away {
            all.entry(*mdt).or_default().push(update.clone());
        }
        for s in self.slots.iter().filter(|s| s.dirty && !s.gone) {
            let Some(away) = &s.away else { continue };
            if s.ino.projid != away.ino.projid {
                let (fid, projid) = (s.fid, s.ino.projid);
                let updates = all.entry(away.mdt).or_default();
                updates.push(Update::Project { fid, projid });
            }
            let nlink = s.ino.nlink.wrapping_sub(away.ino.nlink) as i32;
            let time = Stamp {
                secs: s.ino.ctime.secs,
                nsecs: s.ino.ctime.nsecs,
            };
            let named = away.dropped.is_empty() && away.added.is_empty();
            let contents = named && (nlink != 0 || s.ino.mtime != away.ino.mtime);
            all.entry(away.mdt).or_default().push(match contents {
                true => Update::Touch {
                    dir: s.fid,
                    nlink,
                    time,
                },
                // of what has its names still, the time of its change alone
                false => Update::Object {
                    fid: s.fid,
                    nlink,
                    time,
                    dropped: away.dropped.clone(),
                    added: away.added.clone(),
                },
            });
        }
        all
    }

    /// The inode with all of its extended attributes in it but what says that it is striped, as it is after the changes so far.
    pub fn whole(&self, h: TxnObject) -> MdtResult<Inode> {
        let fid = self.fid(h);
        let mut ino = self.ino(h).clone();
        ino.xattrs.retain(|(name, _)| name != TRUSTED_LMV);
        for (name, value) in &mut ino.xattrs {
            if let XattrValue::External(_) = value {
                let key = table::xattr_key(&fid, name);
                let put = |op: &Op| match op {
                    Op::Put { table, key: k, val } => {
                        (*table == table::XATTR && *k == key).then(|| val.clone())
                    }
                    _ => None,
                };
                let new = self.batch.ops().iter().rev().find_map(put);
                let stored = match new {
                    Some(new) => Some(new),
                    None => self.store.kv.get(table::XATTR, &key)?,
                };
                *value = XattrValue::Inline(stored.ok_or_else(|| torn(&fid))?);
            }
        }
        Ok(ino)
    }
}
