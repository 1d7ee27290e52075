//! Striped directories and their shards ([`crate::mdt::striped`]).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coral_wire::fid::Fid;
use coral_wire::layout::{LMV_MAGIC_STRIPE, LMV_MAGIC_V1, LmvMd, LmvMdHead};

use super::Result;
use super::image::Image;
use super::parts::take_on;
use crate::mdt::record::{Inode, S_IFDIR, XattrValue};
use crate::mdt::xattr::TRUSTED_LMV;
use crate::mdt::{striped, table};

/// Most shards that a damaged attribute is believed.
const SHARDS_MAX: u32 = 2000;

/// What the attributes say.
#[derive(Default)]
struct Found {
    masters: BTreeMap<Fid, LmvMd>,
    shards: BTreeMap<Fid, LmvMd>,
    /// Shards by the directory that they remember, or that names them.
    of: BTreeMap<Fid, BTreeSet<Fid>>,
}

/// Mends all of them.
pub(super) fn mend(im: &mut Image<'_>) -> Result<()> {
    im.find_names();
    let mut found = read(im)?;
    lost_masters(im, &mut found);
    for (dir, lmv) in std::mem::take(&mut found.masters) {
        let open =
            im.orphans.contains_key(&dir) && im.objs.get(&dir).is_some_and(|o| o.ino.nlink == 0);
        // one that is open without a name has lost its shards already
        if !open {
            whole(im, &dir, lmv, &found)?;
        }
    }
    let strays: Vec<Fid> = found
        .shards
        .keys()
        .filter(|s| !im.shards.contains_key(s))
        .copied()
        .collect();
    for shard in strays {
        im.set_xattr(&shard, TRUSTED_LMV, None);
        im.say_of(
            &shard,
            format!("shard {shard} is of no striped directory: it is a directory of its own now"),
        );
        im.lost.insert(shard);
    }
    Ok(())
}

fn read(im: &mut Image<'_>) -> Result<Found> {
    let mut found = Found::default();
    let dirs: Vec<Fid> = im
        .objs
        .iter()
        .filter(|(_, o)| o.ino.is_dir())
        .map(|(f, _)| *f)
        .collect();
    for fid in dirs {
        if im.objs[&fid].ino.xattr(TRUSTED_LMV).is_none() {
            continue;
        }
        let raw = im.xattr(&fid, TRUSTED_LMV)?;
        match raw.as_ref().and_then(|raw| LmvMd::decode(raw).ok()) {
            Some(lmv) if lmv.head.magic == LMV_MAGIC_V1 => drop(found.masters.insert(fid, lmv)),
            Some(lmv) => {
                let o = &im.objs[&fid];
                for (dir, _) in o.links.iter().chain(&o.names) {
                    found.of.entry(*dir).or_default().insert(fid);
                }
                found.shards.insert(fid, lmv);
            }
            None => {
                let key = table::xattr_key(&fid, TRUSTED_LMV);
                im.copy_aside(
                    im.part_of(&fid),
                    table::XATTR,
                    &key,
                    &raw.unwrap_or_default(),
                )?;
                im.set_xattr(&fid, TRUSTED_LMV, None);
                im.say_of(&fid, format!("the attribute of directory {fid} that says how it is striped does not parse: it is kept aside"));
            }
        }
    }
    Ok(found)
}

/// Directories that have lost the attribute, and have shards.
fn lost_masters(im: &mut Image<'_>, found: &mut Found) {
    let lost = |dir: &&Fid| {
        im.is_dir(dir) && !found.masters.contains_key(dir) && !found.shards.contains_key(dir)
    };
    let lost: Vec<Fid> = found.of.keys().filter(lost).copied().collect();
    for dir in lost {
        let head = found.of[&dir]
            .iter()
            .find_map(|s| found.shards.get(s))
            .map(|l| l.head);
        let Some(head) = head else { continue };
        let here = im.parts[im.part_of(&dir)].index;
        let head = LmvMdHead {
            magic: LMV_MAGIC_V1,
            master_mdt_index: here,
            ..head
        };
        found.masters.insert(
            dir,
            LmvMd {
                head,
                ..LmvMd::default()
            },
        );
        im.say_of(
            &dir,
            format!("directory {dir} has shards and did not say so: it is striped again"),
        );
    }
}

/// The shards of one directory, as it and they say; a zero FID where nobody knows one.
fn slots(im: &mut Image<'_>, dir: &Fid, lmv: &LmvMd, found: &Found) -> Vec<Fid> {
    let claims = found.of.get(dir).into_iter().flatten();
    let claims: Vec<(Fid, LmvMdHead)> = claims
        .filter_map(|s| Some((*s, found.shards.get(s)?.head)))
        .collect();
    let listed = lmv.stripe_fids.len() as u32;
    let mut count = lmv.head.stripe_count;
    if listed != count {
        count = claims
            .first()
            .map_or(listed.max(1), |(_, head)| head.stripe_count);
    }
    let mut fids = lmv.stripe_fids.clone();
    fids.resize(count.clamp(1, SHARDS_MAX) as usize, Fid::ZERO);
    let mut seen = BTreeSet::new();
    for fid in &mut fids {
        let taken = im.shards.contains_key(fid) || !seen.insert(*fid);
        if taken || !fid.is_norm() || im.objs.contains_key(fid) && !im.is_dir(fid) {
            *fid = Fid::ZERO;
        }
    }
    for (shard, head) in claims {
        let number = head.master_mdt_index as usize;
        if fids.contains(&shard) || number >= fids.len() || im.objs.contains_key(&fids[number]) {
            continue;
        }
        fids[number] = shard;
        im.say_of(dir, format!("shard {shard} of striped directory {dir} was not listed: it is number {number} again"));
    }
    fids
}

/// One striped directory has all its shards, and each says so.
fn whole(im: &mut Image<'_>, dir: &Fid, lmv: LmvMd, found: &Found) -> Result<()> {
    let mut fids = slots(im, dir, &lmv, found);
    let part = im.part_of(dir);
    for fid in fids.iter_mut().filter(|f| f.is_zero()) {
        *fid = im.new_fid(part)?;
    }
    let now = LmvMd {
        head: LmvMdHead {
            stripe_count: fids.len() as u32,
            ..lmv.head
        },
        stripe_fids: fids.clone(),
        ..lmv.clone()
    };
    for (number, fid) in fids.iter().enumerate() {
        one_shard(im, dir, &now, (fid, number))?;
    }
    if now != lmv {
        im.set_xattr(dir, TRUSTED_LMV, Some(now.encode()));
        im.say_of(
            dir,
            format!(
                "striped directory {dir} lists its {} shards again",
                fids.len()
            ),
        );
    }
    im.masters.insert(*dir, now);
    Ok(())
}

fn one_shard(
    im: &mut Image<'_>,
    dir: &Fid,
    lmv: &LmvMd,
    (fid, number): (&Fid, usize),
) -> Result<()> {
    let name = striped::shard_name(fid, number);
    if !im.objs.contains_key(fid) {
        im.insert(*fid, im.new_dir());
        im.say_of(fid, format!("shard {fid}, number {number} of striped directory {dir}, was not there: it is made anew, empty"));
    }
    let head = LmvMdHead {
        magic: LMV_MAGIC_STRIPE,
        master_mdt_index: number as u32,
        ..lmv.head
    };
    let own = im
        .xattr(fid, TRUSTED_LMV)?
        .and_then(|raw| LmvMd::decode(&raw).ok());
    if own.is_none_or(|own| own.head != head) {
        let own = LmvMd {
            head,
            ..LmvMd::default()
        };
        im.set_xattr(fid, TRUSTED_LMV, Some(own.encode()));
        im.say_of(
            fid,
            format!("shard {fid} says again that it is number {number} of striped directory {dir}"),
        );
    }
    if im.dirs.get(dir).and_then(|e| e.get(&name)) != Some(&(*fid, S_IFDIR)) {
        im.set_entry(*dir, &name, *fid, S_IFDIR);
        im.say_of(
            dir,
            format!("striped directory {dir} names its shard {fid} again"),
        );
    }
    alike(im, dir, fid)?;
    im.shards.insert(*fid, (*dir, number));
    Ok(())
}

/// Owner, mode and other attributes of a shard are those of its directory.
fn alike(im: &mut Image<'_>, dir: &Fid, fid: &Fid) -> Result<()> {
    let (master, shard) = (im.objs[dir].ino.clone(), &im.objs[fid].ino);
    let names = |ino: &Inode| {
        let all = ino.xattrs.iter().map(|(n, _)| n.clone());
        all.filter(|n| n != TRUSTED_LMV)
            .collect::<BTreeSet<Bytes>>()
    };
    let mut same = shard.clone();
    striped::likeness(&mut same, &master);
    if same == *shard && names(&master) == names(shard) {
        return Ok(());
    }
    let mut like = master;
    let mut values = Vec::new();
    for name in names(&like) {
        if let Some(value) = im.xattr(dir, &name)? {
            values.push((name, XattrValue::Inline(value)));
        }
    }
    like.xattrs = values;
    take_on(im, fid, &like, 0);
    im.say_of(
        fid,
        format!("shard {fid} has the owner, mode and attributes of its directory {dir} again"),
    );
    Ok(())
}
