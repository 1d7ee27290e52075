//! Changes of a part, made when its coordinator has decided.

use coral_osd::Time;
use coral_wire::Fid;
use coral_wire::coral::updates::{Stamp, Update};

use crate::mdt::namespace::{self, IsOpen};
use crate::mdt::record::{Inode, XattrValue};
use crate::mdt::store::{MdtError, MdtResult, Txn};
use crate::mdt::{migrating, striped};

/// One change of a part that was prepared; what it rests on was locked since.
pub(super) fn apply(t: &mut Txn<'_>, update: &Update, is_open: IsOpen<'_>) -> MdtResult<()> {
    match update {
        Update::AddEntry {
            dir,
            name,
            child,
            file_type,
        } => t.add_entry(dir, name, child, *file_type),
        Update::DelEntry { dir, name } => t.del_entry(dir, name),
        Update::Touch { dir, nlink, time } => {
            let time = time_of(time);
            if let Some(h) = t.find(dir)? {
                let ino = t.change(h);
                ino.nlink = ino.nlink.wrapping_add_signed(*nlink);
                ino.mtime = time;
                ino.ctime = time;
            }
        }
        Update::Object {
            fid,
            nlink,
            time,
            dropped,
            added,
        } => {
            let Some(h) = t.find(fid)? else {
                return Ok(());
            };
            dropped.iter().for_each(|l| t.del_link(h, &l.dir, &l.name));
            added.iter().for_each(|l| t.add_link(h, l.dir, &l.name));
            let ino = t.change(h);
            ino.nlink = ino.nlink.wrapping_add_signed(*nlink);
            ino.ctime = time_of(time);
            if ino.nlink == 0 {
                namespace::let_go(t, h, is_open)?;
            }
        }
        Update::Insert { fid, record } => {
            let ino =
                Inode::decode(record).map_err(|source| MdtError::Corrupt { fid: *fid, source })?;
            if t.find(fid)?.is_none() {
                insert(t, *fid, ino);
            }
        }
        Update::Remove { fid } => {
            if let Some(h) = t.find(fid)? {
                t.remove(h)?;
            }
        }
        Update::Follow { fid, times, record } => {
            let like =
                Inode::decode(record).map_err(|source| MdtError::Corrupt { fid: *fid, source })?;
            if let Some(h) = t.find(fid)? {
                striped::take_on(t, h, &like, *times);
            }
        }
        Update::Project { fid, projid } => {
            if let Some(h) = t.find(fid)? {
                t.change(h).projid = *projid;
                t.tell_owner(h);
            }
        }
        Update::Place {
            fid,
            dir,
            name,
            lmv,
        } => {
            if let Some(h) = t.find(fid)? {
                migrating::put_place(t, h, *dir, name, lmv.clone());
            }
        }
    }
    Ok(())
}

/// A new object from another MDT, with its extended attributes where they belong here. The OSTs hear whose objects it brings.
fn insert(t: &mut Txn<'_>, fid: Fid, mut ino: Inode) {
    let xattrs = std::mem::take(&mut ino.xattrs);
    let brings = ino.is_reg();
    let h = t.insert(fid, ino);
    for (name, value) in xattrs {
        if let XattrValue::Inline(value) = value {
            t.put_xattr(h, &name, Some(value));
        }
    }
    if brings {
        t.tell_owner(h);
    }
}

/// A time as it is in messages between MDTs.
pub(in crate::mdt) fn time_of(time: &Stamp) -> Time {
    Time {
        secs: time.secs,
        nsecs: time.nsecs,
    }
}
