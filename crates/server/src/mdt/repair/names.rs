//! Names: each leads to something, is where it is looked for, and everything has one.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_wire::fid::Fid;

use super::Result;
use super::image::{Image, kind, text};
use crate::mdt::namespace::check_name;
use crate::mdt::record::{S_IFDIR, S_IFMT};
use crate::mdt::table;

/// The directory in the root where what has no place goes.
pub const LOST_FOUND: &str = "lost+found";

/// Mends all of them.
pub(super) fn mend(im: &mut Image<'_>) -> Result<()> {
    for (parent, name, child, ty) in im.all_entries() {
        one_entry(im, parent, &name, child, ty)?;
    }
    one_name_each(im)?;
    open_without_name(im);
    give_names(im)?;
    below_the_root(im)
}

/// What is wrong with a name whose entry must go.
fn wrong(im: &Image<'_>, parent: &Fid, name: &Bytes, child: &Fid, ty: u32) -> Option<String> {
    let what = kind(ty);
    if !im.is_dir(parent) {
        return Some(format!(
            "name {} of {what} {child} is in {parent}, which is no directory",
            text(name)
        ));
    }
    if check_name(name).is_err() {
        return Some(format!(
            "{} of {what} {child} in {parent} cannot be a name",
            text(name)
        ));
    }
    if !im.objs.contains_key(child) {
        return Some(format!(
            "name {} in {parent} leads to {what} {child}, which is gone",
            text(name)
        ));
    }
    if *child == Fid::ROOT {
        return Some(format!(
            "name {} in {parent} leads to the root directory",
            text(name)
        ));
    }
    let shard = im.shards.get(child);
    if shard.is_some_and(|(dir, n)| {
        dir != parent || *name != crate::mdt::striped::shard_name(child, *n)
    }) {
        return Some(format!(
            "name {} in {parent} leads to a shard of another directory",
            text(name)
        ));
    }
    if im.lost.contains(child) {
        return Some(format!(
            "{what} {child} leaves its place, {} in {parent}",
            text(name)
        ));
    }
    None
}

fn one_entry(im: &mut Image<'_>, parent: Fid, name: &Bytes, child: Fid, ty: u32) -> Result<()> {
    if let Some(why) = wrong(im, &parent, name, &child, ty) {
        im.drop_entry(parent, name)?;
        im.say_of(&parent, format!("{why}: the name is removed"));
        return Ok(());
    }
    let mode = im.objs[&child].ino.mode & S_IFMT;
    if mode != ty {
        im.set_entry(parent, name, child, mode);
        im.say_of(
            &parent,
            format!(
                "name {} in {parent} said that {child} is a {}: it is a {}",
                text(name),
                kind(ty),
                kind(mode)
            ),
        );
    }
    let home = where_looked_for(im, &parent, name, &child);
    if home == parent {
        return Ok(());
    }
    let there = im.dirs.get(&home).and_then(|e| e.get(name)).copied();
    match there {
        None => {
            im.set_entry(home, name, child, mode);
            im.del_entry(parent, name);
            im.say_of(&parent, format!("name {} of {child} was in shard {parent}, where nobody looks: it is in {home} now", text(name)));
        }
        Some((other, _)) => {
            im.drop_entry(parent, name)?;
            im.say_of(&parent, format!("name {} of {child} was in shard {parent}, where nobody looks, and stands for {other} in {home}: it is removed", text(name)));
        }
    }
    Ok(())
}

/// The directory or shard in which a name is looked for.
fn where_looked_for(im: &Image<'_>, parent: &Fid, name: &Bytes, child: &Fid) -> Fid {
    if im.shards.contains_key(child) {
        return *parent;
    }
    let master = im.shards.get(parent).map_or(*parent, |(dir, _)| *dir);
    let Some(lmv) = im.masters.get(&master) else {
        return *parent;
    };
    // a name of a directory that is being migrated may be where it was
    let was = lmv.old_shard_of(name).and_then(|n| lmv.stripe_fids.get(n));
    if was == Some(parent) {
        return *parent;
    }
    // of an unknown hash any shard will do
    let number = match (lmv.shard_of(name), im.shards.get(parent)) {
        (Some(number), _) => number,
        (None, Some(_)) => return *parent,
        (None, None) => 0,
    };
    lmv.stripe_fids.get(number).copied().unwrap_or(*parent)
}

/// A directory keeps the name that it remembers, or one of those it has.
fn one_name_each(im: &mut Image<'_>) -> Result<()> {
    im.find_names();
    let twice = im
        .objs
        .iter()
        .filter(|(_, o)| o.ino.is_dir() && o.names.len() > 1);
    let mut drops = Vec::new();
    for (fid, o) in twice {
        let keep = o
            .links
            .iter()
            .find(|l| o.names.contains(l))
            .or(o.names.first());
        let others = o.names.iter().filter(|n| Some(*n) != keep);
        drops.extend(others.map(|n| (*fid, n.clone())));
    }
    for (fid, (parent, name)) in drops {
        im.drop_entry(parent, &name)?;
        im.say_of(
            &parent,
            format!(
                "directory {fid} had two names: {} in {parent} is removed",
                text(&name)
            ),
        );
    }
    im.find_names();
    Ok(())
}

/// The list of objects that are open without a name has no others.
fn open_without_name(im: &mut Image<'_>) {
    for (fid, part) in im.orphans.clone() {
        let stays = im.objs.get(&fid).is_some_and(|o| {
            o.part == part && o.ino.nlink == 0 && o.names.is_empty() && !im.has_entries(&fid)
        });
        if !stays {
            im.orphans.remove(&fid);
            im.del(part, table::ORPHAN, table::fid_key(&fid).to_vec());
            im.say(
                part,
                format!("{fid} was in the list of open objects without a name, and is none"),
            );
        }
    }
}

/// Names that objects remember and do not have, and names for those that have none.
fn give_names(im: &mut Image<'_>) -> Result<()> {
    let nameless = |fid: &Fid, names: &BTreeSet<(Fid, Bytes)>| {
        names.is_empty() && *fid != Fid::ROOT && !im.orphans.contains_key(fid)
    };
    let mut wanted = Vec::new();
    for (fid, o) in &im.objs {
        let none = nameless(fid, &o.names);
        // an entry was lost when the count and the names that are remembered say the same
        let lost = !o.ino.is_dir() && !none && o.links.len() as u32 == o.ino.nlink;
        if none || lost {
            let missing = o.links.iter().filter(|l| !o.names.contains(l));
            wanted.push((*fid, none, missing.cloned().collect::<Vec<_>>()));
        }
    }
    let mut nowhere = Vec::new();
    for (fid, mut none, links) in wanted {
        for (parent, name) in links {
            let is_dir = im.is_dir(&fid);
            if is_dir && !none || im.lost.contains(&fid) || !is_free(im, &parent, &name, &fid) {
                continue;
            }
            let mode = im.objs[&fid].ino.mode;
            im.set_entry(parent, &name, fid, mode & S_IFMT);
            im.say_of(
                &parent,
                format!(
                    "name {} of {} {fid} in {parent} was lost: it is there again",
                    text(&name),
                    kind(mode)
                ),
            );
            none = false;
        }
        nowhere.extend(Some(fid).filter(|_| none));
    }
    // when all that can be is at its place, `lost+found` too
    for fid in nowhere {
        to_lost_found(im, &fid, "no name led to it")?;
    }
    im.find_names();
    Ok(())
}

/// Whether an object may get a name that it remembers.
fn is_free(im: &Image<'_>, parent: &Fid, name: &Bytes, child: &Fid) -> bool {
    im.is_dir(parent)
        && parent != child
        && !im.lost.contains(parent)
        && check_name(name).is_ok()
        && where_looked_for(im, parent, name, child) == *parent
        && im.dirs.get(parent).is_none_or(|e| !e.contains_key(name))
}

/// Every directory is below the root.
fn below_the_root(im: &mut Image<'_>) -> Result<()> {
    loop {
        let reached = reached(im);
        let apart = |(fid, o): &(&Fid, &super::image::Obj)| {
            o.ino.is_dir() && !reached.contains(fid) && !o.names.is_empty()
        };
        let Some(start) = im.objs.iter().find(apart).map(|(fid, _)| *fid) else {
            return Ok(());
        };
        let top = top_of(im, start);
        let names: Vec<(Fid, Bytes)> = im.objs[&top].names.iter().cloned().collect();
        for (parent, name) in names {
            im.drop_entry(parent, &name)?;
        }
        to_lost_found(im, &top, "it was not below the root directory")?;
        im.find_names();
    }
}

/// The directory that a branch apart from the root hangs on. Of a circle the one with the least FID, never a shard.
fn top_of(im: &Image<'_>, start: Fid) -> Fid {
    let (mut way, mut at) = (Vec::new(), start);
    while !way.contains(&at) {
        way.push(at);
        match im.objs.get(&at).and_then(|o| o.names.first()) {
            Some((parent, _)) if im.is_dir(parent) => at = *parent,
            _ => break,
        }
    }
    let from = way.iter().position(|f| *f == at).unwrap_or(0);
    let circle = way[from..].iter().filter(|f| !im.shards.contains_key(f));
    circle.min().copied().unwrap_or(start)
}

/// The directories below the root, with it.
fn reached(im: &Image<'_>) -> BTreeSet<Fid> {
    let (mut reached, mut todo) = (BTreeSet::from([Fid::ROOT]), vec![Fid::ROOT]);
    while let Some(dir) = todo.pop() {
        for (child, _) in im.dirs.get(&dir).into_iter().flat_map(BTreeMap::values) {
            if im.is_dir(child) && reached.insert(*child) {
                todo.push(*child);
            }
        }
    }
    reached
}

/// Puts an object into `lost+found`, under its FID.
fn to_lost_found(im: &mut Image<'_>, fid: &Fid, why: &str) -> Result<()> {
    let dir = lost_found(im)?;
    let mode = im.objs[fid].ino.mode;
    for n in 0u32.. {
        let name = match n {
            0 => Bytes::from(fid.to_string()),
            n => Bytes::from(format!("{fid}-{n}")),
        };
        let parent = where_looked_for(im, &dir, &name, fid);
        if im.dirs.get(&parent).is_none_or(|e| !e.contains_key(&name)) {
            im.set_entry(parent, &name, *fid, mode & S_IFMT);
            let name = String::from_utf8_lossy(&name);
            im.say_of(
                fid,
                format!(
                    "{} {fid}: {why}: it is in {LOST_FOUND} as {name}",
                    kind(mode)
                ),
            );
            break;
        }
    }
    Ok(())
}

/// The directory `lost+found`, which is made when it is not there.
fn lost_found(im: &mut Image<'_>) -> Result<Fid> {
    for n in 0u32.. {
        let name = match n {
            0 => Bytes::from(LOST_FOUND),
            n => Bytes::from(format!("{LOST_FOUND}-{n}")),
        };
        let parent = where_looked_for(im, &Fid::ROOT, &name, &Fid::ZERO);
        match im.dirs.get(&parent).and_then(|e| e.get(&name)).copied() {
            Some((fid, _)) if im.is_dir(&fid) => return Ok(fid),
            Some(_) => continue,
            None => {}
        }
        let fid = im.new_fid(im.home(&Fid::ROOT))?;
        im.insert(fid, im.new_dir());
        im.set_entry(parent, &name, fid, S_IFDIR);
        if let Some(o) = im.objs.get_mut(&fid) {
            o.links.push((parent, name.clone()));
            o.names.insert((parent, name.clone()));
        }
        im.say_of(
            &Fid::ROOT,
            format!("directory {} is made in the root", text(&name)),
        );
        return Ok(fid);
    }
    unreachable!("one of all names is free")
}
