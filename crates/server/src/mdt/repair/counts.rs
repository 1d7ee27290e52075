//! What follows from names and objects: link counts, remembered names, values of extended attributes, owners of objects, sums.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_osd::Batch;
use coral_osd::Op;
use coral_wire::fid::Fid;

use super::Result;
use super::image::{Image, kind, text};
use crate::mdt::record::{LINKS_INLINE, Link, XattrValue};
use crate::mdt::{stripe, table, usage};
use crate::quota::{self, Sums};

/// Counts everything anew.
pub(super) fn mend(im: &mut Image<'_>) -> Result<()> {
    im.find_names();
    let mut subdirs: BTreeMap<Fid, u32> = BTreeMap::new();
    for (parent, entries) in &im.dirs {
        let dirs = entries
            .values()
            .filter(|(child, _)| im.is_dir(child))
            .count();
        subdirs.insert(*parent, dirs as u32);
    }
    let fids: Vec<Fid> = im.objs.keys().copied().collect();
    for fid in fids {
        names_of(im, &fid, subdirs.get(&fid).copied().unwrap_or(0));
    }
    values(im)?;
    sums(im)
}

/// One object counts and remembers the names it has.
fn names_of(im: &mut Image<'_>, fid: &Fid, subdirs: u32) {
    let o = &im.objs[fid];
    let open = o.names.is_empty() && *fid != Fid::ROOT;
    let nlink = match (open, o.ino.is_dir()) {
        (true, _) => 0,
        (false, true) => 2 + subdirs,
        (false, false) => o.names.len() as u32,
    };
    let had = o.ino.nlink;
    if had != nlink {
        if let Some(ino) = im.change(fid) {
            ino.nlink = nlink;
        }
        im.say_of(
            fid,
            format!(
                "link count of {} {fid} was {had}: it is {nlink}",
                kind(im.objs[fid].ino.mode)
            ),
        );
    }
    let o = &im.objs[fid];
    let stored = im.link_rows.get(fid).cloned().unwrap_or_default();
    let inline: BTreeSet<(Fid, Bytes)> = o
        .ino
        .links
        .iter()
        .map(|l| (l.parent, l.name.clone()))
        .collect();
    let one_each = inline.len() == o.ino.links.len() && inline.is_disjoint(&stored);
    let known: BTreeSet<(Fid, Bytes)> = inline.union(&stored).cloned().collect();
    if known == o.names && one_each || *fid == Fid::ROOT && known.is_empty() {
        return;
    }
    remember(im, fid, &stored);
    let what = match im.is_dir(fid) {
        true => "the directory it is in (\"..\")",
        false => "the names it has",
    };
    im.say_of(fid, format!("{fid} remembers {what} again"));
}

/// The names of an object, in the order in which it remembers them, are in its record and behind it.
fn remember(im: &mut Image<'_>, fid: &Fid, stored: &BTreeSet<(Fid, Bytes)>) {
    let o = &im.objs[fid];
    let part = o.part;
    let mut all: Vec<(Fid, Bytes)> = Vec::new();
    for l in o.links.iter().chain(&o.names) {
        if o.names.contains(l) && !all.contains(l) {
            all.push(l.clone());
        }
    }
    let outside: BTreeSet<(Fid, Bytes)> = all
        .split_off(all.len().min(LINKS_INLINE))
        .into_iter()
        .collect();
    for (parent, name) in stored.difference(&outside) {
        im.del(part, table::LINK, table::link_key(fid, parent, name));
    }
    for (parent, name) in &outside {
        im.put(
            part,
            table::LINK,
            table::link_key(fid, parent, name),
            Bytes::new(),
        );
    }
    if let Some(ino) = im.change(fid) {
        ino.links = all
            .into_iter()
            .map(|(parent, name)| Link { parent, name })
            .collect();
    }
}

/// Extended attributes outside of records.
fn values(im: &mut Image<'_>) -> Result<()> {
    let mut stored: Vec<BTreeMap<Bytes, u32>> = Vec::new();
    for part in 0..im.parts.len() {
        let rows = im.rows(part, table::XATTR)?;
        let mut lens: BTreeMap<Bytes, u32> = rows
            .iter()
            .map(|(k, v)| (k.clone(), v.len() as u32))
            .collect();
        for ((t, key), value) in &im.staged[part] {
            match value {
                _ if *t != table::XATTR => {}
                Some(value) => drop(lens.insert(key.clone(), value.len() as u32)),
                None => drop(lens.remove(key)),
            }
        }
        stored.push(lens);
    }
    let mut torn = Vec::new();
    for (fid, o) in &im.objs {
        for (name, value) in &o.ino.xattrs {
            let XattrValue::External(len) = value else {
                continue;
            };
            let there = stored[o.part].remove(&table::xattr_key(fid, name));
            if there != Some(*len) {
                torn.push((*fid, name.clone(), there));
            }
        }
    }
    for (fid, name, there) in torn {
        one_value(im, &fid, &name, there);
    }
    for (part, left) in stored.into_iter().enumerate() {
        for key in left.into_keys() {
            if let Some(value) = im.parts[part].kv.get(table::XATTR, &key)? {
                im.set_aside(part, table::XATTR, &key, &value)?;
                let whose = table::fid_of_key(&key).unwrap_or_default();
                im.say(
                    part,
                    format!("an extended attribute of {whose} that has none such is kept aside"),
                );
            }
        }
    }
    Ok(())
}

fn one_value(im: &mut Image<'_>, fid: &Fid, name: &Bytes, there: Option<u32>) {
    let Some(ino) = im.change(fid) else { return };
    let what = match there {
        Some(len) => {
            for (_, v) in ino.xattrs.iter_mut().filter(|(n, _)| n == name) {
                *v = XattrValue::External(len);
            }
            "is of another length than noted: what is there counts"
        }
        None => {
            ino.xattrs.retain(|(n, _)| n != name);
            "has lost its value: it is removed"
        }
    };
    im.say_of(
        fid,
        format!("extended attribute {} of {fid} {what}", text(name)),
    );
}

/// No OST object belongs to two files, or to a file and to those that are to be destroyed.
pub(super) fn part_shared(im: &mut Image<'_>) -> Result<()> {
    let mut owners: BTreeMap<(u32, u64), Fid> = BTreeMap::new();
    let mut losers: BTreeSet<Fid> = BTreeSet::new();
    for (fid, o) in im.objs.iter().filter(|(_, o)| o.ino.is_reg()) {
        for object in stripe::objects(&o.ino.lov) {
            if owners.get(&object).is_some_and(|first| first != fid) {
                losers.insert(*fid);
            }
        }
        if !losers.contains(fid) {
            owners.extend(
                stripe::objects(&o.ino.lov)
                    .into_iter()
                    .map(|object| (object, *fid)),
            );
        }
    }
    for fid in losers {
        let key = table::fid_key(&fid);
        let raw = im.objs[&fid].ino.encode();
        im.copy_aside(im.part_of(&fid), table::INODE, &key, &raw)?;
        if let Some(ino) = im.change(&fid) {
            ino.lov = Bytes::new();
            (ino.size, ino.blocks) = (0, 0);
        }
        im.lost.insert(fid);
        let stored = im.parts[im.part_of(&fid)].kv.get(table::INODE, &key)?;
        if stored.is_some() {
            im.losers.insert(fid);
        }
        im.say_of(&fid, format!("an object of {fid} belongs to another file too: {fid} is without data now, and its record is kept aside"));
    }
    for part in 0..im.parts.len() {
        keep_used(im, part, &owners)?;
    }
    Ok(())
}

/// What a file has is not destroyed.
fn keep_used(im: &mut Image<'_>, part: usize, owners: &BTreeMap<(u32, u64), Fid>) -> Result<()> {
    for (k, v) in im.rows(part, table::DESTROY)? {
        let Some((ost, first)) = table::destroy_of_key(&k) else {
            continue;
        };
        let end = first.saturating_add(u64::from(table::destroy_count_of(&v)));
        let used: Vec<(u64, Fid)> = owners
            .range((ost, first)..(ost, end))
            .map(|((_, id), fid)| (*id, *fid))
            .collect();
        if used.is_empty() {
            continue;
        }
        im.del(part, table::DESTROY, k);
        let mut from = first;
        for id in used.iter().map(|(id, _)| *id).chain([end]) {
            if id > from {
                let count = table::destroy_count((id - from) as u32);
                im.put(part, table::DESTROY, table::destroy_key(ost, from), count);
            }
            from = id + 1;
        }
        for (id, fid) in used {
            im.say(
                part,
                format!(
                    "object {id} of OST {ost} was to be destroyed and belongs to {fid}: it stays"
                ),
            );
        }
    }
    Ok(())
}

/// What owners have in use is what the inodes say.
fn sums(im: &mut Image<'_>) -> Result<()> {
    for part in 0..im.parts.len() {
        let kv = im.parts[part].kv;
        if !usage::is_kept(kv)? {
            continue;
        }
        let mut recorded = Sums::default();
        for (k, v) in im.rows(part, table::USAGE)? {
            match usage::row_of(&k, &v).filter(|_| k.len() == 12) {
                Some((owner, used)) => recorded.set(owner, used),
                None => im.bad_row(part, table::USAGE, &k, &v)?,
            }
        }
        let mut counted = Sums::default();
        for o in im.objs.values().filter(|o| o.part == part) {
            let (owner, used) = usage::of_inode(&o.ino);
            counted.add(owner, used);
        }
        let owners: BTreeSet<_> = counted
            .iter()
            .chain(recorded.iter())
            .map(|(o, _)| *o)
            .collect();
        let mut batch = Batch::new();
        for owner in owners {
            let (had, has) = (recorded.of(&owner), counted.of(&owner));
            if had != has {
                quota::put_row(&mut batch, table::USAGE, &owner, has);
                im.say(
                    part,
                    format!(
                        "usage of user {}, group {}, project {} is {} inodes and {} bytes again",
                        owner.uid, owner.gid, owner.projid, has.inodes, has.bytes
                    ),
                );
            }
        }
        for op in batch.into_ops() {
            match op {
                Op::Put { table, key, val } => im.put(part, table, key, val),
                Op::Del { table, key } => im.del(part, table, key),
            }
        }
    }
    Ok(())
}
