//! Directories that are migrated: a new master with shards of its own, to which the old ones are attached until their names have
//! moved (`lustre/lod/lod_object.c`: attach, detach, shrink; `lustre/mdd/mdd_dir.c`: `mdd_migrate_create`, `mdd_dir_layout_shrink`).
//!
//! | layout | shards `0..migrate_offset` | the others |
//! | --- | --- | --- |
//! | migrating | where names belong, by `hash_type` | where names were, by `migrate_hash`; they get no new ones |
//! | afterwards | all there are | removed, when they were empty |
//!
//! A directory in one piece becomes the only old shard itself. Each shard's attribute has the layout's head, so a shard knows alone
//! whether it takes a name ([`striped::takes_name`]). Layouts of one shard stay: the directory is not put into one piece again, as
//! in Lustre for `lfs migrate` with its default flags.

use bytes::Bytes;
use coral_wire::coral::updates::Update;
use coral_wire::layout::{LMV_MAGIC_V1, LmvMd, LmvMdHead, LmvUserMd, hash_flag, hash_type};
use coral_wire::{Errno, Fid};

use super::record::{Inode, Link, S_IFDIR};
use super::store::{MdtResult, Txn, TxnObject, torn};
use super::striped::{self, Plan};
use super::xattr::TRUSTED_LMV;

/// The layout in a record that has its attributes inside.
pub fn layout_of(fid: &Fid, ino: &Inode) -> MdtResult<Option<LmvMd>> {
    let Some(raw) = ino.xattr_inline(TRUSTED_LMV) else {
        return Ok(None);
    };
    let lmv = LmvMd::decode(raw).map_err(|_| torn(fid))?;
    Ok(Some(lmv).filter(|l| l.head.magic == LMV_MAGIC_V1))
}

/// Whether its names are moving.
pub fn is_changing(lmv: &LmvMd) -> bool {
    lmv.head.hash_type & hash_flag::LAYOUT_CHANGE != 0
}

/// Whether it is being split or merged: its names move by themselves ([`super::restripe`]).
pub fn is_restriping(lmv: &LmvMd) -> bool {
    is_changing(lmv) && !is_migrating(lmv)
}

/// Whether it is being migrated, and not split or merged.
fn is_migrating(lmv: &LmvMd) -> bool {
    lmv.head.hash_type & hash_flag::LAYOUT_CHANGE == hash_flag::MIGRATION
}

/// Where a name of `dir` is before it is migrated, and where it belongs. EBADF where that cannot be told.
pub fn places(dir: Fid, lmv: Option<&LmvMd>, name: &[u8]) -> Result<(Fid, Fid), Errno> {
    let Some(lmv) = lmv else {
        return Ok((dir, dir));
    };
    let shard = |n: Option<usize>| {
        let fid = n.and_then(|n| lmv.stripe_fids.get(n)).copied();
        fid.filter(|f| !f.is_zero()).ok_or(Errno::EBADF)
    };
    let new = shard(lmv.shard_of(name))?;
    match is_changing(lmv) {
        true => Ok((shard(lmv.old_shard_of(name))?, new)),
        false => Ok((new, new)),
    }
}

/// The shards that a migration to the MDT `here` makes, at least one.
pub fn targets(lum: &LmvUserMd, here: u32, mdts: &[u32]) -> Result<Plan, Errno> {
    let others = |count| {
        let after = mdts.iter().cycle().skip_while(|m| **m != here).skip(1);
        after.take(count).copied().collect()
    };
    if !mdts.contains(&here) {
        return Err(Errno::EINVAL);
    }
    let plan = striped::plan(lum, here, mdts, others)?;
    Ok(plan.unwrap_or_else(|| Plan {
        hash: striped::hash_of(lum) & !hash_flag::OVERSTRIPED,
        mdts: vec![here],
    }))
}

/// How many shards a migration makes when so many MDTs can be used.
fn shards_of(lum: &LmvUserMd, mdts: u32) -> Result<usize, Errno> {
    // a list is as long as it says
    if !lum.objects.is_empty() {
        return Ok(lum.objects.len());
    }
    let mdts: Vec<u32> = (0..mdts).collect();
    Ok(targets(lum, 0, &mdts)?.mdts.len())
}

/// What is there already of a migration to `plan` of the directory on `home` with this layout, whose shards lie on `homes`.
/// The file system has `mdts` MDTs; where not all can be used now, the directory may have more shards than the plan.
/// EALREADY: all of it, or its beginning. EPERM: the beginning of another one (`mdd_migrate_cmd_check`).
pub fn begun(
    was: Option<&LmvMd>,
    home: u32,
    homes: &[u32],
    plan: &Plan,
    (lum, mdts): (&LmvUserMd, u32),
) -> Result<(), Errno> {
    let count = plan.mdts.len();
    let first = plan.mdts.first().copied();
    let Some(was) = was.filter(|l| l.head.stripe_count > 1) else {
        return match count == 1 && first == Some(home) {
            true => Err(Errno::EALREADY),
            false => Ok(()),
        };
    };
    let asked = lum.head.hash_type & hash_type::MASK;
    let hash = asked == 0 || asked == was.head.hash_type & hash_type::MASK;
    let changing = is_changing(was);
    let kept = match changing {
        true => was.head.migrate_offset as usize,
        false => was.stripe_fids.len(),
    };
    let lies = homes.get(..kept).unwrap_or_default();
    let as_many = |n: usize| n == count || shards_of(lum, mdts) == Ok(n);
    let same = match lum.objects.is_empty() {
        true => as_many(lies.len()) && lies.first().copied() == first && first == Some(home),
        // each directory of a tree begins on the MDT of its name, so the order tells nothing
        false => sorted(lies) == sorted(&plan.mdts),
    };
    match (changing, same && hash) {
        (true, true) if is_migrating(was) => Err(Errno::EALREADY),
        (true, _) => Err(Errno::EPERM),
        (false, true) => Err(Errno::EALREADY),
        (false, false) => Ok(()),
    }
}

fn sorted(mdts: &[u32]) -> Vec<u32> {
    let mut mdts = mdts.to_vec();
    mdts.sort_unstable();
    mdts
}

/// Gives the directory `h` its only place, as a shard. It lies here.
pub fn put_place(t: &mut Txn<'_>, h: TxnObject, dir: Fid, name: &Bytes, lmv: Bytes) {
    t.change(h).links = vec![Link {
        parent: dir,
        name: name.clone(),
    }];
    t.put_xattr(h, TRUSTED_LMV, Some(lmv));
}

/// Makes `fid`, wherever it lies, shard `number` of `master`, whose layout has this head.
fn place(t: &mut Txn<'_>, fid: Fid, master: Fid, number: usize, head: &LmvMdHead) -> MdtResult<()> {
    let h = t.find(&fid)?.ok_or(Errno::EBADF)?;
    let name = striped::shard_name(&fid, number);
    let lmv = striped::shard_attribute(head, number).encode();
    match t.away_at(h) {
        None => put_place(t, h, master, &name, lmv),
        Some(mdt) => t.add_update(
            mdt,
            Update::Place {
                fid,
                dir: master,
                name,
                lmv,
            },
        ),
    }
    Ok(())
}

/// Makes the new directory `h` take the place of `src`, whose layout was `was`: it gets shards of its own, and those of `src`, or
/// `src` itself, behind them.
pub fn attach(
    t: &mut Txn<'_>,
    h: TxnObject,
    src: Fid,
    was: Option<&LmvMd>,
    plan: &Plan,
    fids: &[Fid],
) -> MdtResult<()> {
    let (olds, old_hash) = match was {
        Some(was) => (was.stripe_fids.clone(), was.head.hash_type),
        None => (vec![src], hash_type::FNV_1A_64),
    };
    let (new, old) = (fids.len(), olds.len());
    let mut all = striped::attribute_of(plan, fids, t.store.fld().index());
    all.head.stripe_count = (new + old) as u32;
    all.head.hash_type |= hash_flag::MIGRATION;
    all.head.migrate_offset = new as u32;
    all.head.migrate_hash = old_hash & hash_type::MASK;
    all.stripe_fids.extend(&olds);
    striped::insert_shards(t, h, &all.head, 0, plan, fids)?;
    let master = t.fid(h);
    for (i, fid) in olds.iter().enumerate() {
        if was.is_some() {
            t.del_entry(&src, &striped::shard_name(fid, i));
        }
        place(t, *fid, master, new + i, &all.head)?;
        t.add_entry(&master, &striped::shard_name(fid, new + i), fid, S_IFDIR);
    }
    t.change(h).nlink += (new + old) as u32;
    t.put_xattr(h, TRUSTED_LMV, Some(all.encode()));
    Ok(())
}

/// Makes `src`, which is in one piece, the first shard of the new directory `h`, which gets these beside it.
pub fn split_plain(
    t: &mut Txn<'_>,
    h: TxnObject,
    src: Fid,
    plan: &Plan,
    fids: &[Fid],
) -> MdtResult<()> {
    let one = Plan {
        hash: hash_type::FNV_1A_64,
        mdts: Vec::new(),
    };
    let was = striped::attribute_of(&one, &[src], t.store.fld().index());
    t.add_entry(&t.fid(h), &striped::shard_name(&src, 0), &src, S_IFDIR);
    t.change(h).nlink += 1;
    split(t, h, &was, plan, fids)
}

/// Gives the striped directory `h` further shards; names that belong there have yet to move (`lod_dir_declare_layout_split`).
pub fn split(
    t: &mut Txn<'_>,
    h: TxnObject,
    was: &LmvMd,
    plan: &Plan,
    fids: &[Fid],
) -> MdtResult<()> {
    let old = was.stripe_fids.len();
    let mut now = was.clone();
    now.stripe_fids.extend(fids);
    now.head.stripe_count = now.stripe_fids.len() as u32;
    now.head.hash_type = plan.hash | hash_flag::SPLIT | hash_flag::MIGRATION;
    now.head.migrate_offset = old as u32;
    now.head.migrate_hash = was.head.hash_type & hash_type::MASK;
    now.head.layout_version += 1;
    striped::insert_shards(t, h, &now.head, old, plan, fids)?;
    t.change(h).nlink += fids.len() as u32;
    say(t, h, &now, old)
}

/// The striped directory `h` is to have `count` of its shards only, or another hash; names have yet to move.
pub fn merge(t: &mut Txn<'_>, h: TxnObject, was: &LmvMd, count: u32, hash: u32) -> MdtResult<()> {
    let mut now = was.clone();
    now.head.hash_type |= hash_flag::MERGE | hash_flag::MIGRATION;
    now.head.migrate_offset = count;
    now.head.migrate_hash = hash;
    now.head.layout_version += 1;
    let all = now.stripe_fids.len();
    say(t, h, &now, all)
}

/// The directory `h` has this layout, and its first shards, which are not new, say so too.
fn say(t: &mut Txn<'_>, h: TxnObject, now: &LmvMd, olds: usize) -> MdtResult<()> {
    let master = t.fid(h);
    for (number, fid) in now.stripe_fids.iter().enumerate().take(olds) {
        place(t, *fid, master, number, &now.head)?;
    }
    t.put_xattr(h, TRUSTED_LMV, Some(now.encode()));
    Ok(())
}

/// Whether the change under way of this layout can be ended as asked. EALREADY: none is under way; EINVAL: it is another one
/// (`mdt_dir_layout_update`); EOPNOTSUPP: it is none that is made here.
pub fn may_end(was: Option<&LmvMd>, lum: &LmvUserMd, mdts: u32) -> Result<(), Errno> {
    let was = was.filter(|l| is_changing(l)).ok_or(Errno::EALREADY)?;
    if !is_migrating(was) {
        return Err(Errno::EOPNOTSUPP);
    }
    // the number comes from the disk
    if was.head.migrate_offset as usize > was.stripe_fids.len() {
        return Err(Errno::EBADF);
    }
    // there may be MDTs that are not known again yet
    let count = shards_of(lum, was.head.migrate_offset.max(mdts))?;
    let asked = lum.head.hash_type & hash_type::MASK;
    let other = asked != 0 && asked != was.head.hash_type & hash_type::MASK;
    match count != was.head.migrate_offset as usize || count > 1 && other {
        true => Err(Errno::EINVAL),
        false => Ok(()),
    }
}

/// How many shards are kept when the change under way of this layout ends, and by which hash names lie in them then.
fn settled(was: &LmvMd) -> (usize, u32) {
    let head = &was.head;
    let offset = head.migrate_offset as usize;
    let (kept, hash) = match head.hash_type & hash_flag::LAYOUT_CHANGE {
        c if c & hash_flag::SPLIT != 0 => (was.stripe_fids.len(), head.hash_type),
        c if c & hash_flag::MERGE != 0 => (offset, head.migrate_hash),
        _ => (offset, head.hash_type),
    };
    (kept, hash & !hash_flag::LAYOUT_CHANGE)
}

/// Ends the change of the directory `h`, and lets go of the shards that it does not keep. ENOTEMPTY when names are left in them.
pub fn shrink(t: &mut Txn<'_>, h: TxnObject, was: &LmvMd) -> MdtResult<()> {
    let master = t.fid(h);
    let (kept, hash) = settled(was);
    let mut now = was.clone();
    now.stripe_fids.truncate(kept);
    now.head.stripe_count = kept as u32;
    now.head.hash_type = hash;
    now.head.layout_version += 1;
    (now.head.migrate_offset, now.head.migrate_hash) = (0, 0);
    for (number, fid) in was.stripe_fids.iter().enumerate().skip(kept) {
        if !t.is_empty(fid)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        t.del_entry(&master, &striped::shard_name(fid, number));
        let shard = t.get(fid)?;
        t.remove(shard)?;
    }
    let gone = was.stripe_fids.len().saturating_sub(kept) as u32;
    let ino = t.change(h);
    ino.nlink = ino.nlink.saturating_sub(gone);
    say(t, h, &now, kept)
}

#[cfg(test)]
mod tests {
    use coral_wire::layout::LmvUserMdsData;

    use super::*;

    fn lmv(count: u32, hash: u32, offset: u32) -> LmvMd {
        let mut l = LmvMd::default();
        l.head.magic = LMV_MAGIC_V1;
        l.head.stripe_count = count;
        l.head.hash_type = hash;
        l.head.migrate_offset = offset;
        l.stripe_fids = (1..=count).map(|i| Fid::new(9, i)).collect();
        l
    }

    const FNV: u32 = hash_type::FNV_1A_64;
    const MOVES: u32 = FNV | hash_flag::MIGRATION;

    fn to(mdts: &[u32]) -> Plan {
        Plan {
            hash: FNV,
            mdts: mdts.to_vec(),
        }
    }

    #[test]
    fn what_is_asked_again_goes_on_and_what_is_asked_otherwise_is_refused() {
        let lum = |hash| LmvUserMd::request(2, 1, hash);
        let now = |was: Option<&LmvMd>, home, homes: &[u32], mdts: &[u32], hash| {
            begun(was, home, homes, &to(mdts), (&lum(hash), 1))
        };
        // in one piece, or in one shard
        assert_eq!(now(None, 0, &[], &[1], 0), Ok(()));
        assert_eq!(now(None, 1, &[], &[1], 0), Err(Errno::EALREADY));
        assert_eq!(now(None, 1, &[], &[1, 0], 0), Ok(()));
        let one = lmv(1, FNV, 0);
        assert_eq!(now(Some(&one), 1, &[1], &[1], 0), Err(Errno::EALREADY));
        assert_eq!(now(Some(&one), 1, &[1], &[0], 0), Ok(()));
        // laid out as asked, or otherwise
        let two = lmv(2, FNV, 0);
        assert_eq!(
            now(Some(&two), 1, &[1, 0], &[1, 0], 0),
            Err(Errno::EALREADY)
        );
        assert_eq!(
            now(Some(&two), 1, &[1, 0], &[1, 0], hash_type::CRUSH),
            Ok(())
        );
        assert_eq!(now(Some(&two), 1, &[1, 0], &[1], 0), Ok(()));
        // under way
        let moves = lmv(3, MOVES, 2);
        let homes = [1, 0, 0];
        assert_eq!(
            now(Some(&moves), 1, &homes, &[1, 0], 0),
            Err(Errno::EALREADY)
        );
        assert_eq!(now(Some(&moves), 1, &homes, &[1], 0), Err(Errno::EPERM));
        assert_eq!(now(Some(&moves), 1, &homes, &[0, 1], 0), Err(Errno::EPERM));
        let crush = now(Some(&moves), 1, &homes, &[1, 0], hash_type::CRUSH);
        assert_eq!(crush, Err(Errno::EPERM));
        // a list, in whichever order
        let mut list = lum(0);
        list.objects = vec![LmvUserMdsData::default(); 2];
        let listed = |was, homes: &[u32], mdts: &[u32]| {
            begun(Some(was), homes[0], homes, &to(mdts), (&list, 4))
        };
        assert_eq!(listed(&two, &[3, 1], &[1, 3]), Err(Errno::EALREADY));
        assert_eq!(listed(&moves, &[3, 1, 0], &[1, 3]), Err(Errno::EALREADY));
        assert_eq!(listed(&two, &[3, 0], &[1, 3]), Ok(()));
        assert_eq!(listed(&moves, &[3, 0, 1], &[1, 3]), Err(Errno::EPERM));
        // with an MDT that is away now
        let three = LmvUserMd::request(3, 1, 0);
        let without =
            |was, homes: &[u32], mdts: &[u32]| begun(Some(was), 1, homes, &to(mdts), (&three, 4));
        let wide = lmv(4, MOVES, 3);
        assert_eq!(without(&wide, &[1, 2, 3, 0], &[1, 3]), Err(Errno::EALREADY));
        assert_eq!(without(&moves, &homes, &[1, 2, 3]), Err(Errno::EPERM));
        let settled = lmv(3, FNV, 0);
        assert_eq!(without(&settled, &[1, 2, 3], &[1, 3]), Err(Errno::EALREADY));
        assert_eq!(without(&two, &[1, 2], &[1, 2, 3]), Ok(()));
        let splits = lmv(3, MOVES | hash_flag::SPLIT, 2);
        assert_eq!(now(Some(&splits), 1, &homes, &[1, 0], 0), Err(Errno::EPERM));
    }

    #[test]
    fn a_migration_ends_as_it_was_begun() {
        let lum = |count, hash| LmvUserMd::request(count, 0, hash);
        let moves = lmv(3, MOVES, 2);
        let end = |count, hash| may_end(Some(&moves), &lum(count, hash), 4);
        assert_eq!(end(2, 0), Ok(()));
        assert_eq!(end(2, FNV), Ok(()));
        assert_eq!(end(2, hash_type::CRUSH), Err(Errno::EINVAL));
        assert_eq!(end(1, 0), Err(Errno::EINVAL));
        let one = lmv(2, MOVES, 1);
        assert_eq!(may_end(Some(&one), &lum(0, 0), 4), Ok(()));
        assert_eq!(may_end(None, &lum(2, 0), 4), Err(Errno::EALREADY));
        let still = lmv(2, FNV, 0);
        assert_eq!(may_end(Some(&still), &lum(2, 0), 4), Err(Errno::EALREADY));
        let merges = lmv(3, MOVES | hash_flag::MERGE, 2);
        let ended = may_end(Some(&merges), &lum(2, 0), 4);
        assert_eq!(ended, Err(Errno::EOPNOTSUPP));
    }
}
