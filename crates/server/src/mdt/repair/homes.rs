//! Inode records: what does not parse, lies twice, or lies where nobody looks for it.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::layout::LmvMd;

use super::Result;
use super::image::{Image, Obj};
use crate::mdt::record::{Inode, XattrValue};
use crate::mdt::xattr::TRUSTED_LMV;
use crate::mdt::{dom, table};

/// One record of an object.
pub(super) struct Copy {
    /// Which of the MDTs it lies on.
    pub part: usize,
    ino: Inode,
    raw: Bytes,
    /// Only a part of it could be read.
    torn: bool,
}

impl Copy {
    /// What it leads to: directories it has names in, and shards.
    pub(super) fn leads_to(&self) -> Vec<Fid> {
        let mut fids: Vec<Fid> = self.ino.links.iter().map(|l| l.parent).collect();
        let lmv = self.ino.xattr_inline(TRUSTED_LMV);
        let lmv = lmv.and_then(|raw| LmvMd::decode(raw).ok());
        fids.extend(lmv.into_iter().flat_map(|lmv| lmv.stripe_fids));
        fids
    }
}

/// The records of each object.
pub(super) type Copies = BTreeMap<Fid, Vec<Copy>>;

/// Reads all records.
pub(super) fn read(im: &mut Image<'_>) -> Result<Copies> {
    let mut copies = Copies::new();
    for part in 0..im.parts.len() {
        for (k, raw) in im.rows(part, table::INODE)? {
            let Some(fid) = table::fid_of_key(&k).filter(|_| k.len() == 16) else {
                im.bad_row(part, table::INODE, &k, &raw)?;
                continue;
            };
            let (ino, torn) = match Inode::decode(&raw) {
                Ok(ino) => (ino, false),
                Err(why) => match salvaged(im, part, &fid, &raw, &why.to_string())? {
                    Some(ino) => (ino, true),
                    None => continue,
                },
            };
            let copy = Copy {
                part,
                ino,
                raw,
                torn,
            };
            copies.entry(fid).or_default().push(copy);
        }
    }
    Ok(copies)
}

/// What is left of a record that does not parse; the row is kept aside.
fn salvaged(
    im: &mut Image<'_>,
    part: usize,
    fid: &Fid,
    raw: &Bytes,
    why: &str,
) -> Result<Option<Inode>> {
    let key = table::fid_key(fid);
    im.copy_aside(part, table::INODE, &key, raw)?;
    let Some(ino) = Inode::salvage(raw) else {
        im.del(part, table::INODE, key.to_vec());
        im.say(
            part,
            format!("the record of {fid} cannot be read ({why}): it is kept aside"),
        );
        return Ok(None);
    };
    im.say(part, format!("the record of {fid} is torn ({why}): what can be read of it counts, and the row is kept aside"));
    Ok(Some(ino))
}

/// Each object has one record, on the MDT that holds its sequence.
pub(super) fn mend(im: &mut Image<'_>, copies: Copies) -> Result<()> {
    for (fid, mut all) in copies {
        let home = im.home(&fid);
        let at = all.iter().position(|c| c.part == home);
        let newest = || (0..all.len()).max_by_key(|i| (all[*i].ino.transno, all[*i].ino.version));
        let Some(at) = at.or_else(newest) else {
            continue;
        };
        let keep = all.swap_remove(at);
        for other in all {
            drop_copy(im, &fid, &keep, &other)?;
        }
        let mut o = Obj::new(keep.part, keep.ino);
        o.changed = keep.torn;
        im.objs.insert(fid, o);
        if keep.part != home {
            move_home(im, &fid, home)?;
        }
    }
    Ok(())
}

/// A second record of an object goes.
fn drop_copy(im: &mut Image<'_>, fid: &Fid, keep: &Copy, other: &Copy) -> Result<()> {
    let key = table::fid_key(fid);
    match keep.raw == other.raw {
        true => im.del(other.part, table::INODE, key.to_vec()),
        false => im.set_aside(other.part, table::INODE, &key, &other.raw)?,
    }
    for (name, value) in &other.ino.xattrs {
        if let XattrValue::External(_) = value {
            let key = table::xattr_key(fid, name);
            if let Some(value) = im.parts[other.part].kv.get(table::XATTR, &key)? {
                im.set_aside(other.part, table::XATTR, &key, &value)?;
            }
        }
    }
    let at = im.parts[keep.part].index;
    im.say(
        other.part,
        format!("{fid} lies on MDT{at:04x} too: that one counts"),
    );
    Ok(())
}

/// The record moves to the MDT where it is looked for.
fn move_home(im: &mut Image<'_>, fid: &Fid, home: usize) -> Result<()> {
    let Some(o) = im.objs.get_mut(fid) else {
        return Ok(());
    };
    let from = o.part;
    if dom::is_dom(&o.ino.lov) {
        // its data cannot go along: it stays a problem
        return Ok(());
    }
    o.part = home;
    o.changed = true;
    let names: Vec<Bytes> = o.ino.xattrs.iter().map(|(n, _)| n.clone()).collect();
    im.del(from, table::INODE, table::fid_key(fid).to_vec());
    for name in names {
        let key = table::xattr_key(fid, &name);
        if let Some(value) = im.parts[from].kv.get(table::XATTR, &key)? {
            im.put(home, table::XATTR, key.clone(), value);
            im.del(from, table::XATTR, key);
        }
    }
    let to = im.parts[home].index;
    im.say(
        from,
        format!("{fid} lies here, but belongs on MDT{to:04x}: it is moved there"),
    );
    Ok(())
}
