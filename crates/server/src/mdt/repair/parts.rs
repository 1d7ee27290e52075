//! Operations over several MDTs: what their coordinators have decided is made, and the rest is dropped, as after a start.
//!
//! Each change may be made twice: an interrupted repair makes it again.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_wire::coral::updates::{Look, OpId, Update, follow};
use coral_wire::fid::Fid;

use super::Result;
use super::image::Image;
use crate::mdt::out::time_of;
use crate::mdt::record::{Inode, Link, S_IFMT, XattrValue};
use crate::mdt::xattr::TRUSTED_LMV;
use crate::mdt::{dom, stripe, striped, table};

/// Ends all of them.
pub(super) fn mend(im: &mut Image<'_>) -> Result<()> {
    let mut decided: BTreeMap<OpId, usize> = BTreeMap::new();
    for part in 0..im.parts.len() {
        for (k, v) in im.rows(part, table::DECIDED)? {
            match OpId::of_key(&k) {
                Some(id) => {
                    decided.insert(id, part);
                    im.del(part, table::DECIDED, k);
                }
                None => im.bad_row(part, table::DECIDED, &k, &v)?,
            }
        }
    }
    for part in 0..im.parts.len() {
        for (k, v) in im.rows(part, table::PREPARED)? {
            let parsed = OpId::of_key(&k).zip(Update::decode_all(&v).ok());
            let Some((id, updates)) = parsed else {
                im.bad_row(part, table::PREPARED, &k, &v)?;
                continue;
            };
            let made = decided.contains_key(&id);
            im.del(part, table::PREPARED, k);
            let what = if made {
                "decided, and is made here"
            } else {
                "not decided, and is dropped"
            };
            im.say(
                part,
                format!(
                    "operation {}.{} of MDT{:04x} was {what}",
                    id.instance, id.number, id.coordinator
                ),
            );
            for u in updates.into_iter().filter(|_| made) {
                apply(im, u)?;
            }
        }
    }
    for (id, part) in decided {
        im.say(
            part,
            format!(
                "operation {}.{} is made on all MDTs",
                id.instance, id.number
            ),
        );
    }
    Ok(())
}

fn apply(im: &mut Image<'_>, update: Update) -> Result<()> {
    match update {
        Update::AddEntry {
            dir,
            name,
            child,
            file_type,
        } => im.set_entry(dir, &name, child, file_type & S_IFMT),
        Update::DelEntry { dir, name } => im.del_entry(dir, &name),
        Update::Touch { dir, time, .. } => {
            // subdirectories are counted when all is mended
            if let Some(ino) = im.change(&dir) {
                (ino.mtime, ino.ctime) = (time_of(&time), time_of(&time));
            }
        }
        Update::Object {
            fid,
            nlink,
            time,
            dropped,
            added,
        } => {
            if let Some(ino) = im.change(&fid) {
                ino.ctime = time_of(&time);
            }
            renamed(im, &fid, nlink, dropped, added);
        }
        Update::Insert { fid, record } => {
            if let (None, Ok(ino)) = (im.objs.get(&fid), Inode::decode(&record)) {
                im.insert(fid, ino);
            }
        }
        Update::Remove { fid } => im.remove(&fid),
        Update::Follow { fid, times, record } => {
            if let Ok(like) = Inode::decode(&record) {
                take_on(im, &fid, &like, times);
            }
        }
        Update::Place {
            fid,
            dir,
            name,
            lmv,
        } => {
            if let Some(ino) = im.change(&fid) {
                ino.links = vec![Link { parent: dir, name }];
            }
            im.set_xattr(&fid, TRUSTED_LMV, Some(lmv));
        }
        Update::Project { fid, projid } => {
            let Some(ino) = im.change(&fid) else {
                return Ok(());
            };
            ino.projid = projid;
            let lov = ino.lov.clone();
            for (ost, id) in stripe::objects(&lov) {
                let key = table::destroy_key(ost, id);
                im.put(
                    im.part_of(&fid),
                    table::OWNER,
                    key,
                    table::fid_key(&fid).to_vec(),
                );
            }
        }
    }
    Ok(())
}

/// An object gets and loses names. With the last it goes.
fn renamed(im: &mut Image<'_>, fid: &Fid, nlink: i32, dropped: Vec<Look>, added: Vec<Look>) {
    let dropped: BTreeSet<(Fid, Bytes)> = dropped.into_iter().map(|l| (l.dir, l.name)).collect();
    let Some(o) = im.objs.get_mut(fid) else {
        return;
    };
    o.links.retain(|l| !dropped.contains(l));
    for l in added {
        let link = (l.dir, l.name);
        if !o.links.contains(&link) {
            o.links.push(link);
        }
    }
    o.ino.nlink = o.ino.nlink.saturating_add_signed(nlink);
    if o.ino.nlink > 0 || !o.links.is_empty() {
        return;
    }
    let (part, ino) = (o.part, o.ino.clone());
    if ino.is_reg() {
        for (ost, id) in stripe::objects(&ino.lov) {
            im.put(
                part,
                table::DESTROY,
                table::destroy_key(ost, id),
                Bytes::new(),
            );
        }
        if dom::is_dom(&ino.lov) {
            im.put(part, table::DESTROY, table::data_key(fid), Bytes::new());
        }
    }
    im.remove(fid);
}

/// A shard takes on what is `like` its striped directory.
pub(super) fn take_on(im: &mut Image<'_>, fid: &Fid, like: &Inode, times: u8) {
    let Some(ino) = im.change(fid) else { return };
    striped::likeness(ino, like);
    ino.ctime = like.ctime;
    if times & follow::ATIME != 0 {
        ino.atime = like.atime;
    }
    if times & follow::MTIME != 0 {
        ino.mtime = like.mtime;
    }
    let olds: Vec<Bytes> = ino.xattrs.iter().map(|(n, _)| n.clone()).collect();
    for name in olds.iter().filter(|n| *n != TRUSTED_LMV) {
        im.set_xattr(fid, name, None);
    }
    for (name, value) in like.xattrs.iter().filter(|(n, _)| n != TRUSTED_LMV) {
        if let XattrValue::Inline(value) = value {
            im.set_xattr(fid, name, Some(value.clone()));
        }
    }
}
