//! Parts of operations over several MDTs, as a check counts them: made when their coordinator has decided so ([`crate::mdt::out`]).

use std::collections::BTreeSet;

use bytes::Bytes;
use coral_osd::OsdError;
use coral_wire::coral::updates::{Look, Update};
use coral_wire::fid::Fid;

use super::report::Problem;
use super::{Entry, Names, Seen};
use crate::mdt::record::{Inode, XattrValue};
use crate::mdt::xattr::TRUSTED_LMV;
use crate::mdt::{out, striped, table, trans};

impl Names<'_> {
    /// Makes what other MDTs have decided; returns the entries that come with it.
    pub(super) fn read_parts(&mut self) -> Result<Vec<Entry>, OsdError> {
        let mut added = Vec::new();
        for (i, p) in self.parts.iter().enumerate() {
            for (id, raw) in out::stored(p.kv)? {
                self.report.unfinished += 1;
                let coordinator = self.parts.iter().find(|c| c.fld.index() == id.coordinator);
                let decided = match coordinator {
                    Some(c) => trans::stored(c.kv)?.contains_key(&id),
                    None => false,
                };
                let Ok(updates) = Update::decode_all(&raw) else {
                    let what = format!("{id:?} does not parse");
                    let table = table::PREPARED.0;
                    self.report.problems.push(Problem::BadRow { table, what });
                    continue;
                };
                if coordinator.is_none() {
                    self.unsettled.extend(updates.iter().flat_map(changed));
                } else if decided {
                    added.extend(updates.into_iter().filter_map(|u| self.made(i, u)));
                }
            }
        }
        Ok(added)
    }

    /// One change that is decided; returns the entry that comes with it.
    fn made(&mut self, part: usize, update: Update) -> Option<Entry> {
        match update {
            Update::AddEntry {
                dir,
                name,
                child,
                file_type,
            } => {
                // it may take the place of another
                self.gone.insert((dir, name.clone()));
                return Some((dir, name, child, file_type));
            }
            Update::DelEntry { dir, name } => drop(self.gone.insert((dir, name))),
            Update::Touch { dir, nlink, .. } => {
                if let Some(s) = self.seen.get_mut(&dir) {
                    s.ino.nlink = s.ino.nlink.wrapping_add_signed(nlink);
                }
            }
            Update::Object {
                fid,
                nlink,
                dropped,
                added,
                ..
            } => self.renamed(&fid, nlink, dropped, added),
            Update::Insert { fid, record } => {
                if let Ok(ino) = Inode::decode(&record) {
                    let links = ino.links.iter().map(|l| (l.parent, l.name.clone()));
                    let links = links.collect();
                    let found = Seen {
                        part,
                        ino,
                        links,
                        ..Seen::default()
                    };
                    self.seen.insert(fid, found);
                }
            }
            Update::Remove { fid } => drop(self.seen.remove(&fid)),
            Update::Follow { fid, record, .. } => {
                if let (Some(s), Ok(like)) = (self.seen.get_mut(&fid), Inode::decode(&record)) {
                    striped::likeness(&mut s.ino, &like);
                }
            }
            Update::Project { fid, projid } => {
                if let Some(s) = self.seen.get_mut(&fid) {
                    s.ino.projid = projid;
                }
            }
            Update::Place {
                fid,
                dir,
                name,
                lmv,
            } => {
                if let Some(s) = self.seen.get_mut(&fid) {
                    s.links = BTreeSet::from([(dir, name)]);
                    let own = Bytes::from_static(TRUSTED_LMV);
                    s.ino.xattrs.retain(|(n, _)| *n != own);
                    s.ino.xattrs.push((own, XattrValue::Inline(lmv)));
                }
            }
        }
        None
    }

    /// An object gets and loses names, maybe the last.
    fn renamed(&mut self, fid: &Fid, nlink: i32, dropped: Vec<Look>, added: Vec<Look>) {
        let Some(s) = self.seen.get_mut(fid) else {
            return;
        };
        s.ino.nlink = s.ino.nlink.wrapping_add_signed(nlink);
        for l in dropped {
            s.links.remove(&(l.dir, l.name));
        }
        s.links.extend(added.into_iter().map(|l| (l.dir, l.name)));
        if s.ino.nlink == 0 {
            self.seen.remove(fid);
        }
    }
}

/// What a change is of.
pub(in crate::mdt) fn changed(update: &Update) -> Vec<Fid> {
    match update {
        Update::AddEntry { dir, child, .. } => vec![*dir, *child],
        Update::DelEntry { dir, .. } | Update::Touch { dir, .. } => vec![*dir],
        Update::Object { fid, .. }
        | Update::Insert { fid, .. }
        | Update::Remove { fid }
        | Update::Follow { fid, .. }
        | Update::Project { fid, .. } => vec![*fid],
        Update::Place { fid, dir, .. } => vec![*fid, *dir],
    }
}
