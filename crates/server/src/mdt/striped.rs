//! Striped directories: a master object, and shards that hold its entries (`lustre/lod/lod_object.c`).
//!
//! The master has the attribute `trusted.lmv` with the FIDs of its shards and, as its only entries, the shards by names of their
//! own. Each shard is a directory whose `..` is the master; its attribute says its number. Invariants:
//! * owner, mode, project, layouts and extended attributes of a shard are those of its master: each change of the master is made
//!   to all shards in the same operation;
//! * nobody makes or removes an entry of a master but who makes or removes all of it;
//! * a master is empty when all its shards are, and they go together.

use bytes::Bytes;
use coral_wire::coral::updates::{Update, follow};
use coral_wire::layout::{
    LMV_MAGIC_STRIPE, LMV_MAGIC_V1, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvMd, LmvMdHead,
    LmvUserMd, hash_flag, hash_type, inherit,
};
use coral_wire::{Errno, Fid};

use super::namespace::At;
use super::record::{Inode, Link, S_IFDIR, XattrValue};
use super::store::{MdtResult, Store, Txn, TxnObject, torn};
use super::xattr::TRUSTED_LMV;

/// Most shards of one directory on one MDT (`LMV_MAX_STRIPES_PER_MDT`).
pub const SHARDS_PER_MDT: u32 = 5;
/// Version of the layout of a new striped directory.
pub(super) const FIRST_LAYOUT: u32 = 1;
/// A count below zero asks for so many shards on each MDT, at most this many (`LMV_OVERSTRIPE_COUNT_MAX`).
const FACTOR_MAX: u32 = 5;

/// The attribute of `ino` if it is a master or a shard.
pub(super) fn attribute(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<Option<LmvMd>> {
    if !ino.is_dir() {
        return Ok(None);
    }
    let raw = store.xattr(fid, ino, TRUSTED_LMV)?;
    raw.map(|raw| LmvMd::decode(&raw).map_err(|_| torn(fid)))
        .transpose()
}

/// The layout of a master.
pub fn layout(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<Option<LmvMd>> {
    Ok(attribute(store, fid, ino)?.filter(|l| l.head.magic == LMV_MAGIC_V1))
}

/// The shards of a directory; none: it is in one piece.
pub fn shards(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<Vec<Fid>> {
    let all = layout(store, fid, ino)?.map_or(Vec::new(), |l| l.stripe_fids);
    Ok(all.into_iter().filter(|f| !f.is_zero()).collect())
}

/// Whether it is a shard, whose name is nobody's.
pub fn is_shard(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<bool> {
    Ok(attribute(store, fid, ino)?.is_some_and(|l| l.head.magic == LMV_MAGIC_STRIPE))
}

/// Whether it is a directory in shards, or a shard.
pub fn is_in_parts(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<bool> {
    Ok(attribute(store, fid, ino)?.is_some())
}

/// Whether two directories are the same one, or shards of one.
pub fn are_one(t: &Txn<'_>, a: TxnObject, b: TxnObject) -> MdtResult<bool> {
    if a == b {
        return Ok(true);
    }
    let master = |h: TxnObject| {
        let is_shard = is_shard(t.store, &t.fid(h), t.ino(h))?;
        Ok::<_, super::store::MdtError>(
            t.ino(h)
                .links
                .first()
                .filter(|_| is_shard)
                .map(|l| l.parent),
        )
    };
    let of_a = master(a)?;
    Ok(of_a.is_some() && of_a == master(b)?)
}

/// ESTALE for a master, in which no names are made and removed: the client knows an older layout.
pub fn holds_names(t: &Txn<'_>, h: TxnObject) -> MdtResult<()> {
    match layout(t.store, &t.fid(h), t.ino(h))? {
        Some(_) => Err(Errno::ESTALE.into()),
        None => Ok(()),
    }
}

/// ESTALE for a directory in which a name is not to be made: a master, or a shard that another name than this belongs to, or that
/// gives its names away to others. The client knows an older layout. One that says which it knows is also refused where the name
/// would belong there: it may lie in another shard still, where that client does not look (`mdt_layout_version_check`).
pub fn takes_name(t: &Txn<'_>, h: TxnObject, at: At<'_>) -> MdtResult<()> {
    let is_known = |version| at.layout == 0 || at.layout == version;
    let belongs = match attribute(t.store, &t.fid(h), t.ino(h))? {
        None => is_known(FIRST_LAYOUT),
        Some(own) if own.head.magic == LMV_MAGIC_V1 => false,
        Some(own) => {
            let number = own.head.master_mdt_index as usize;
            own.shard_of(at.name).is_none_or(|n| n == number) && is_known(own.head.layout_version)
        }
    };
    match belongs {
        true => Ok(()),
        false => Err(Errno::ESTALE.into()),
    }
}

/// The name of shard `number` in its master.
pub fn shard_name(fid: &Fid, number: usize) -> Bytes {
    format!("{fid}:{number}").into()
}

/// How a new directory is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Hash type with its flags.
    pub hash: u32,
    /// Of each shard: its MDT.
    pub mdts: Vec<u32>,
}

/// The hash type that a request asks for, with the flags that a user may give.
pub(super) fn hash_of(lum: &LmvUserMd) -> u32 {
    let hash = match lum.head.hash_type & hash_type::MASK {
        hash_type::ALL_CHARS..=hash_type::CRUSH2 => lum.head.hash_type,
        _ => lum.head.hash_type & !hash_type::MASK | hash_type::FNV_1A_64,
    };
    hash & (hash_type::MASK | hash_flag::OVERSTRIPED | hash_flag::FIXED)
}

/// How a directory is to be laid out that is made on `here`. `None`: in one piece. `mdts`: those that can be used, in order;
/// `others` takes so many of them for shards whose place nobody has said.
/// E2BIG, EINVAL: it cannot be laid out so (`lod_prep_md_striped_create`, `lod_ah_init`).
pub fn plan(
    lum: &LmvUserMd,
    here: u32,
    mdts: &[u32],
    others: impl FnOnce(usize) -> Vec<u32>,
) -> Result<Option<Plan>, Errno> {
    let known = u32::try_from(mdts.len()).unwrap_or(u32::MAX);
    if known <= 1 {
        return Ok(None);
    }
    let mut hash = hash_of(lum);
    let over = hash & hash_flag::OVERSTRIPED != 0;
    let most = known * SHARDS_PER_MDT;
    // as many as Lustre's 16 bits say, those below zero being factors
    let asked = lum.head.stripe_count & 0xffff;
    let count = match 0x1_0000 - asked {
        factor @ 1..=FACTOR_MAX => known * factor,
        _ if over => asked.min(most),
        _ => asked.min(known),
    };
    if count <= 1 {
        return Ok(None);
    }
    if !lum.objects.is_empty() {
        return listed(lum, here, mdts, hash, count).map(Some);
    }
    if count <= known {
        hash &= !hash_flag::OVERSTRIPED;
    } else if !over {
        hash |= hash_flag::OVERSTRIPED;
    }
    if count <= known && lum.head.stripe_offset == LMV_OFFSET_DEFAULT {
        let mut list = vec![here];
        list.extend(others(count as usize - 1));
        return Ok((list.len() > 1).then_some(Plan { hash, mdts: list }));
    }
    let first = mdts.iter().position(|m| *m == here).ok_or(Errno::EINVAL)?;
    let around = mdts.iter().cycle().skip(first);
    let mdts = around.take(count as usize).copied().collect();
    Ok(Some(Plan { hash, mdts }))
}

/// The same with a list of MDTs, the first of which is this one whatever it says.
fn listed(lum: &LmvUserMd, here: u32, mdts: &[u32], hash: u32, count: u32) -> Result<Plan, Errno> {
    let list = lum.objects.iter().map(|o| o.mds);
    let mut list: Vec<u32> = list.take(count as usize).collect();
    if list.len() != count as usize || list.iter().any(|m| !mdts.contains(m)) {
        return Err(Errno::EINVAL);
    }
    list[0] = here;
    let most = mdts
        .iter()
        .map(|m| list.iter().filter(|l| *l == m).count())
        .max()
        .unwrap_or(0);
    let mut hash = hash;
    match (most > 1, hash & hash_flag::OVERSTRIPED != 0) {
        _ if most > SHARDS_PER_MDT as usize => return Err(Errno::EINVAL),
        (true, false) => return Err(Errno::EINVAL),
        (false, _) => hash &= !hash_flag::OVERSTRIPED,
        (true, true) => {}
    }
    Ok(Plan { hash, mdts: list })
}

/// The default of a new directory that a user has put on one MDT, `here`: what is made in it stays there (`lod_ah_init`).
pub fn kept_together(lum: &LmvUserMd, here: u32) -> Option<LmvUserMd> {
    let mut head = lum.head;
    if !matches!(head.stripe_count, 0 | 1) {
        return None;
    }
    let next = head.next();
    // the directory is the first level itself
    match head.max_inherit {
        inherit::UNLIMITED | 1..inherit::MAX => {}
        inherit::MAX => head.max_inherit = inherit::MAX - 1,
        _ => return None,
    }
    head.max_inherit_rr = next.map_or(inherit::RR_NONE, |n| n.max_inherit_rr);
    if head.stripe_offset == LMV_OFFSET_DEFAULT {
        head.stripe_offset = here;
    }
    head.magic = LMV_USER_MAGIC;
    Some(LmvUserMd {
        head,
        ..LmvUserMd::default()
    })
}

/// The attribute of a new master on the MDT `here`.
pub fn attribute_of(plan: &Plan, fids: &[Fid], here: u32) -> LmvMd {
    LmvMd {
        head: LmvMdHead {
            magic: LMV_MAGIC_V1,
            stripe_count: fids.len() as u32,
            master_mdt_index: here,
            hash_type: plan.hash,
            layout_version: FIRST_LAYOUT,
            ..LmvMdHead::default()
        },
        stripe_fids: fids.to_vec(),
        ..LmvMd::default()
    }
}

/// Makes the new directory `h` the master of these shards. Those that lie on other MDTs go to [`Txn::updates`].
pub fn make_shards(t: &mut Txn<'_>, h: TxnObject, plan: &Plan, fids: &[Fid]) -> MdtResult<()> {
    let all = attribute_of(plan, fids, t.store.fld().index());
    insert_shards(t, h, &all.head, 0, plan, fids)?;
    t.change(h).nlink += fids.len() as u32;
    t.put_xattr(h, TRUSTED_LMV, Some(all.encode()));
    Ok(())
}

/// The attribute of shard `number` in a layout.
pub(super) fn shard_attribute(head: &LmvMdHead, number: usize) -> LmvMd {
    LmvMd {
        head: LmvMdHead {
            magic: LMV_MAGIC_STRIPE,
            master_mdt_index: number as u32,
            ..*head
        },
        ..LmvMd::default()
    }
}

/// Makes new shards of the directory `h` for its layout `head`, from number `first` on, and names them in it.
pub(super) fn insert_shards(
    t: &mut Txn<'_>,
    h: TxnObject,
    head: &LmvMdHead,
    first: usize,
    plan: &Plan,
    fids: &[Fid],
) -> MdtResult<()> {
    let (master, here) = (t.fid(h), t.store.fld().index());
    let like = t.whole(h)?;
    for (i, (fid, mdt)) in fids.iter().zip(&plan.mdts).enumerate() {
        let number = first + i;
        let lmv = shard_attribute(head, number);
        let name = shard_name(fid, number);
        let mut shard = Inode {
            nlink: 2,
            links: vec![Link {
                parent: master,
                name: name.clone(),
            }],
            ..like.clone()
        };
        shard.xattrs.push((
            Bytes::from_static(TRUSTED_LMV),
            XattrValue::Inline(lmv.encode()),
        ));
        match *mdt == here {
            true if t.find(fid)?.is_some() => return Err(Errno::EEXIST.into()),
            true => drop(t.insert(*fid, shard)),
            false => {
                let (fid, record) = (
                    *fid,
                    Inode {
                        version: 1,
                        ..shard
                    }
                    .encode(),
                );
                t.add_update(*mdt, Update::Insert { fid, record });
            }
        }
        t.add_entry(&master, &name, fid, S_IFDIR);
    }
    Ok(())
}

/// The directory `h` has lost its name, and its empty shards go with it.
pub fn drop_shards(t: &mut Txn<'_>, h: TxnObject) -> MdtResult<()> {
    let master = t.fid(h);
    let Some(lmv) = layout(t.store, &master, t.ino(h))? else {
        return Ok(());
    };
    for (number, fid) in lmv.stripe_fids.iter().enumerate() {
        if fid.is_zero() {
            continue;
        }
        t.del_entry(&master, &shard_name(fid, number));
        if let Some(shard) = t.find(fid)? {
            t.remove(shard)?;
        }
    }
    Ok(())
}

/// The shards of `h` take on what has been done to it. `times`: which times too.
pub fn followed(t: &mut Txn<'_>, h: TxnObject, times: u8) -> MdtResult<()> {
    let shards = shards(t.store, &t.fid(h), t.ino(h))?;
    if shards.is_empty() {
        return Ok(());
    }
    let like = t.whole(h)?;
    for fid in shards {
        let Some(shard) = t.find(&fid)? else { continue };
        // a directory that was migrated while it was open has given its shards away
        if t.ino(shard).links.first().map(|l| l.parent) != Some(t.fid(h)) {
            continue;
        }
        match t.away_at(shard) {
            None => take_on(t, shard, &like, times),
            Some(mdt) => {
                let record = like.encode();
                t.add_update(mdt, Update::Follow { fid, times, record });
            }
        }
    }
    Ok(())
}

/// The directory `h` has another name: its project and the time of its change are those of its shards too.
pub fn renamed(t: &mut Txn<'_>, h: TxnObject) -> MdtResult<()> {
    let (projid, ctime) = (t.ino(h).projid, t.ino(h).ctime);
    for fid in shards(t.store, &t.fid(h), t.ino(h))? {
        if let Some(shard) = t.find(&fid)? {
            let ino = t.change(shard);
            (ino.projid, ino.ctime) = (projid, ctime);
        }
    }
    Ok(())
}

/// What lies in the fields of a record, and is the same in a master and its shards.
pub(super) fn likeness(ino: &mut Inode, like: &Inode) {
    ino.mode = like.mode;
    ino.uid = like.uid;
    ino.gid = like.gid;
    ino.flags = like.flags;
    ino.projid = like.projid;
    ino.lov = like.lov.clone();
}

/// Shard `h` takes on what is `like` its master.
pub fn take_on(t: &mut Txn<'_>, h: TxnObject, like: &Inode, times: u8) {
    let own = |name: &[u8]| name == TRUSTED_LMV;
    let olds: Vec<Bytes> = t.ino(h).xattrs.iter().map(|(n, _)| n.clone()).collect();
    for name in olds.iter().filter(|n| !own(n)) {
        t.put_xattr(h, name, None);
    }
    for (name, value) in like.xattrs.iter().filter(|(n, _)| !own(n)) {
        if let XattrValue::Inline(value) = value {
            t.put_xattr(h, name, Some(value.clone()));
        }
    }
    let ino = t.change(h);
    likeness(ino, like);
    ino.ctime = like.ctime;
    if times & follow::ATIME != 0 {
        ino.atime = like.atime;
    }
    if times & follow::MTIME != 0 {
        ino.mtime = like.mtime;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::LmvUserMdsData;

    fn asked(count: u32, hash: u32, list: &[u32]) -> LmvUserMd {
        let mut lum = LmvUserMd::request(count, 0, hash);
        let one = |m: &u32| LmvUserMdsData {
            mds: *m,
            ..Default::default()
        };
        lum.objects = list.iter().map(one).collect();
        lum
    }

    const OVER: u32 = hash_flag::OVERSTRIPED;
    const FNV: u32 = hash_type::FNV_1A_64;

    fn laid(count: u32, hash: u32, list: &[u32]) -> Result<Option<(u32, Vec<u32>)>, Errno> {
        let plan = plan(&asked(count, hash, list), 1, &[0, 1, 2], |_| vec![])?;
        Ok(plan.map(|p| (p.hash, p.mdts)))
    }

    #[test]
    fn shards_go_around_the_mdts_from_the_one_that_is_asked() {
        assert_eq!(laid(0, 0, &[]), Ok(None));
        assert_eq!(laid(1, 0, &[]), Ok(None));
        assert_eq!(laid(2, 0, &[]), Ok(Some((FNV, vec![1, 2]))));
        let all = |hash| Ok(Some((hash, vec![1, 2, 0])));
        assert_eq!(laid(3, hash_type::CRUSH, &[]), all(hash_type::CRUSH));
        // no more than there are
        assert_eq!(laid(9, 0, &[]), all(FNV));
        assert_eq!(laid(u32::MAX, 0, &[]), all(FNV));
        assert_eq!(laid(3, OVER, &[]), all(FNV));
        let four = Ok(Some((OVER | FNV, vec![1, 2, 0, 1])));
        assert_eq!(laid(4, OVER, &[]), four);
        let twice = laid(-2i32 as u32, 0, &[]).unwrap().unwrap();
        assert_eq!((twice.0, twice.1.len()), (OVER | FNV, 6));
        let most = laid(1000, OVER, &[]).unwrap().unwrap();
        assert_eq!(most.1.len(), 15);
        // where there is one MDT, everything is in one piece
        assert_eq!(plan(&asked(4, OVER, &[]), 0, &[0], |_| vec![]), Ok(None));
    }

    #[test]
    fn lists_say_which_mdts() {
        assert_eq!(laid(2, 0, &[1, 0]), Ok(Some((FNV, vec![1, 0]))));
        assert_eq!(laid(2, 0, &[1, 7]), Err(Errno::EINVAL));
        assert_eq!(laid(3, 0, &[1, 0]), Err(Errno::EINVAL));
        assert_eq!(laid(2, 0, &[1, 1]), Err(Errno::EINVAL));
        assert_eq!(laid(2, OVER, &[1, 1]), Ok(Some((OVER | FNV, vec![1, 1]))));
        assert_eq!(laid(2, OVER, &[1, 2]), Ok(Some((FNV, vec![1, 2]))));
        assert_eq!(laid(6, OVER, &[1; 6]), Err(Errno::EINVAL));
    }

    #[test]
    fn shards_whose_place_nobody_has_said_go_where_there_is_room() {
        let anywhere = |count, hash| {
            let lum = LmvUserMd::request(count, LMV_OFFSET_DEFAULT, hash);
            let roomy = |n: usize| [3, 0, 2].into_iter().take(n).collect();
            let plan = plan(&lum, 1, &[0, 1, 2, 3], roomy).unwrap().unwrap();
            (plan.hash, plan.mdts)
        };
        assert_eq!(anywhere(2, 0), (FNV, vec![1, 3]));
        assert_eq!(anywhere(3, OVER), (FNV, vec![1, 3, 0]));
        assert_eq!(anywhere(9, 0), (FNV, vec![1, 3, 0, 2]));
        assert_eq!(anywhere(5, OVER), (FNV | OVER, vec![1, 2, 3, 0, 1]));
    }

    #[test]
    fn what_is_made_in_a_directory_of_one_mdt_stays_there() {
        let kept = |count, offset, levels, rr| {
            let mut lum = LmvUserMd::request(count, offset, 0);
            (lum.head.max_inherit, lum.head.max_inherit_rr) = (levels, rr);
            let kept = kept_together(&lum, 2).map(|l| l.head);
            kept.map(|h| (h.stripe_offset, h.max_inherit, h.max_inherit_rr))
        };
        assert_eq!(kept(1, 3, 0, 0), Some((3, 0, 0)));
        assert_eq!(kept(0, LMV_OFFSET_DEFAULT, 3, 2), Some((2, 3, 1)));
        assert_eq!(kept(1, 1, 250, 255), Some((1, 249, 255)));
        assert_eq!(
            [kept(1, 1, 255, 0), kept(1, 1, 251, 0), kept(2, 1, 0, 0)],
            [None; 3]
        );
    }

    #[test]
    fn shards_are_named_as_in_lustre() {
        let fid = Fid::new(0x2_4000_0bd1, 1);
        assert_eq!(&shard_name(&fid, 3)[..], b"[0x240000bd1:0x1:0x0]:3");
    }
}
