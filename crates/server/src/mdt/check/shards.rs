//! What masters and shards of striped directories must have in common ([`crate::mdt::striped`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_osd::OsdError;
use coral_wire::fid::Fid;
use coral_wire::layout::{LMV_MAGIC_STRIPE, LMV_MAGIC_V1, LmvMd, LmvMdHead};

use super::report::{Problem, Report};
use super::{Part, Seen, is_given};
use crate::mdt::record::{Inode, XattrValue};
use crate::mdt::xattr::TRUSTED_LMV;
use crate::mdt::{striped, table};

/// The LMV attribute of what is one of the two.
fn attribute(part: &Part<'_>, fid: &Fid, ino: &Inode) -> Result<Option<Bytes>, OsdError> {
    match ino.xattr(TRUSTED_LMV) {
        None => Ok(None),
        Some(XattrValue::Inline(v)) => Ok(Some(v.clone())),
        Some(XattrValue::External(_)) => {
            let key = table::xattr_key(fid, TRUSTED_LMV);
            part.kv.get(table::XATTR, &key)
        }
    }
}

/// Looks at all striped directories.
pub(super) fn check(
    parts: &[Part<'_>],
    seen: &BTreeMap<Fid, Seen>,
    report: &mut Report,
) -> Result<(), OsdError> {
    let (mut masters, mut shards) = (BTreeMap::new(), BTreeMap::new());
    for (fid, s) in seen.iter().filter(|(_, s)| s.ino.is_dir()) {
        let Some(raw) = attribute(&parts[s.part], fid, &s.ino)? else {
            continue;
        };
        match LmvMd::decode(&raw) {
            Ok(lmv) if lmv.head.magic == LMV_MAGIC_V1 => drop(masters.insert(*fid, lmv)),
            Ok(lmv) if lmv.head.magic == LMV_MAGIC_STRIPE => drop(shards.insert(*fid, lmv)),
            _ => report.problems.push(Problem::Shard {
                dir: *fid,
                shard: *fid,
                what: "its attribute does not parse",
            }),
        }
    }
    // one that is open without a name has lost its shards already
    let live = |dir: &Fid| seen.get(dir).is_some_and(|s| s.ino.nlink > 0);
    for (dir, lmv) in masters.iter().filter(|(dir, _)| live(dir)) {
        for (number, shard) in lmv.stripe_fids.iter().enumerate() {
            let what = disagrees(seen, &shards, (dir, lmv), (shard, number as u32));
            let away = !seen.contains_key(shard) && !is_given(parts, shard);
            if let Some(what) = what.filter(|_| !away) {
                let (dir, shard) = (*dir, *shard);
                report.problems.push(Problem::Shard { dir, shard, what });
            }
        }
        if lmv.stripe_fids.len() != lmv.head.stripe_count as usize {
            report.problems.push(Problem::Shard {
                dir: *dir,
                shard: *dir,
                what: "it has not as many as it says",
            });
        }
    }
    check_names(seen, &masters, &shards, report);
    Ok(())
}

/// What a shard has that it should not, or lacks.
fn disagrees(
    seen: &BTreeMap<Fid, Seen>,
    shards: &BTreeMap<Fid, LmvMd>,
    (dir, lmv): (&Fid, &LmvMd),
    (fid, number): (&Fid, u32),
) -> Option<&'static str> {
    let (Some(master), Some(shard)) = (seen.get(dir), seen.get(fid)) else {
        return Some("it is not there");
    };
    let head = LmvMdHead {
        magic: LMV_MAGIC_STRIPE,
        master_mdt_index: number,
        ..lmv.head
    };
    if shards.get(fid).is_none_or(|own| own.head != head) {
        return Some("its attribute is another");
    }
    let name = striped::shard_name(fid, number as usize);
    if !shard.named.contains(&(*dir, name)) {
        return Some("its directory does not name it");
    }
    let mut like = shard.ino.clone();
    striped::likeness(&mut like, &master.ino);
    let names = |ino: &Inode| {
        let mut all: Vec<Bytes> = ino.xattrs.iter().map(|(n, _)| n.clone()).collect();
        all.sort();
        all
    };
    match like == shard.ino && names(&like) == names(&master.ino) {
        true => None,
        false => Some("its owner, mode or other attributes are not those of its directory"),
    }
}

/// Names are in the shards that their hashes say, and in a master only those of shards.
fn check_names(
    seen: &BTreeMap<Fid, Seen>,
    masters: &BTreeMap<Fid, LmvMd>,
    shards: &BTreeMap<Fid, LmvMd>,
    report: &mut Report,
) {
    for (fid, s) in seen {
        for (parent, name) in &s.named {
            let at_home = match (masters.get(parent), shards.get(parent)) {
                (Some(lmv), _) => lmv.stripe_fids.contains(fid),
                (_, Some(lmv)) => {
                    let number = lmv.head.master_mdt_index as usize;
                    // names of a directory that is migrated may not have moved yet
                    let is_it = |n: Option<usize>| n.is_none_or(|n| n == number);
                    is_it(lmv.shard_of(name)) || is_it(lmv.old_shard_of(name))
                }
                (None, None) => true,
            };
            if !at_home {
                report.problems.push(Problem::WrongShard {
                    shard: *parent,
                    name: name.clone(),
                });
            }
        }
        let lost = shards.contains_key(fid) && {
            let of = |(dir, _): &(Fid, Bytes)| !seen.contains_key(dir) || masters.contains_key(dir);
            !s.links.iter().any(of)
        };
        if lost {
            report.problems.push(Problem::Shard {
                dir: s.links.iter().next().map_or(*fid, |(dir, _)| *dir),
                shard: *fid,
                what: "no striped directory has it",
            });
        }
    }
}
