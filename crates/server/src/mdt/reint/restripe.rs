//! A directory that is there is laid out over more or fewer shards: `lfs setdirstripe -c` (`mdt_restripe` in `lustre/mdt/mdt_reint.c`,
//! `mdd_dir_layout_split` in `lustre/mdd/mdd_dir.c`).
//!
//! | what | becomes |
//! | --- | --- |
//! | a directory in one piece | the first shard of a new directory, which has its name, and another FID |
//! | a striped one, to more shards | the same with further shards |
//! | a striped one, to fewer shards or another hash | the same, with a layout that says so |
//!
//! Names move afterwards ([`crate::mdt::restripe`]). Clients ask by a creation of what is there, with no MDT named, and say with
//! `MDS_OPEN_CREAT` where they want nothing but a new directory.

use bytes::Bytes;
use coral_wire::coral::updates::Look;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvMd, LmvUserMd, hash_flag, hash_type};
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{MdtRecReint, RecCreate, open};
use coral_wire::{Errno, Fid};

use super::migrate::{Found, may_migrate};
use crate::mdt::ctx::{Answer, Ctx};
use crate::mdt::namespace;
use crate::mdt::out::ALL_BITS;
use crate::mdt::record::Inode;
use crate::mdt::remote::{Needs, RENAMES, RETRIES};
use crate::mdt::restripe::unchanged;
use crate::mdt::store::{MdtError, MdtResult, Txn};
use crate::mdt::striped::{Plan, SHARDS_PER_MDT};
use crate::mdt::trans::Op;
use crate::mdt::{migrating, table};

/// What becomes of the layout.
#[derive(Debug, PartialEq, Eq)]
enum Aim {
    /// It gets these shards more.
    Split(Plan),
    /// It keeps so many, with this hash.
    Merge(u32, u32),
}

impl Ctx {
    /// What a request to make a directory asks of one that may be there already.
    pub(super) fn may_restripe(&self, r: &RecCreate) -> Option<LmvUserMd> {
        if r.flags() & (open::CREAT | open::DEFAULT_LMV) != 0 || !self.ops.mdts.several() {
            return None;
        }
        let lum = LmvUserMd::decode(self.buf(4)).ok()?;
        let anywhere = lum.head.stripe_offset == LMV_OFFSET_DEFAULT && lum.objects.is_empty();
        anywhere.then_some(lum)
    }

    /// Lays a directory out anew that is there; `None`: there is none of that name. EALREADY: it is laid out as asked. EBUSY: it is
    /// being migrated, split or merged.
    pub(super) async fn restripe(
        &self,
        head: &MdtRecReint,
        r: &RecCreate,
        lum: &LmvUserMd,
    ) -> MdtResult<Option<Answer>> {
        let name = Bytes::copy_from_slice(self.name(3));
        namespace::check_name(&name)?;
        for _ in 0..RETRIES {
            let Some(child) = Op::begin(&self.ops).look(r.fid1, &name).await? else {
                return Ok(None);
            };
            if !self.is_here(&child) {
                return Ok(Some(self.child_elsewhere(child)));
            }
            self.refuse_replay()?;
            may_migrate(&self.cred(head))?;
            match self.restripe_once(r, &name, child, lum).await {
                Err(MdtError::Errno(Errno::EAGAIN)) => {}
                done => return done.map(Some),
            }
        }
        Err(Errno::EAGAIN.into())
    }

    async fn restripe_once(
        &self,
        r: &RecCreate,
        name: &Bytes,
        child: Fid,
        lum: &LmvUserMd,
    ) -> MdtResult<Answer> {
        let ino = self.ops.peek(child).await?.ok_or(Errno::EAGAIN)?;
        if !ino.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let was = migrating::layout_of(&child, &ino)?;
        let mut homes = Vec::new();
        for shard in was.iter().flat_map(|l| &l.stripe_fids) {
            homes.push(self.ops.home(shard).await?);
        }
        if was.is_none() {
            homes.push(self.ops.mdts.index());
        }
        let mdts = (self.ops.mdts.usable()?, self.ops.mdts.count());
        match (aim(was.as_ref(), &homes, lum, (&mdts.0, mdts.1))?, was) {
            (Aim::Split(plan), None) => {
                let f = Found {
                    name: name.clone(),
                    old: r.fid1,
                    new: r.fid1,
                    moved: false,
                    child,
                    ino,
                    time: self.time(r.time),
                    lease: None,
                };
                self.split_plain(r.fid2, f, plan).await
            }
            (aim, Some(was)) => self.lay_out_anew(child, &was, &aim).await,
            (Aim::Merge(..), None) => Err(Errno::EALREADY.into()),
        }
    }

    /// A directory in one piece becomes the first shard of a new one, `fid`.
    async fn split_plain(&self, fid: Fid, f: Found, plan: Plan) -> MdtResult<Answer> {
        if f.child == Fid::ROOT || !self.is_here(&fid) {
            return Err(Errno::EINVAL.into());
        }
        let mut op = Op::begin(&self.ops);
        // who looks for what is above a directory finds FIDs that stay
        op.lock(vec![RENAMES], &[]).await?;
        let named = self.ops.home(&f.old).await?;
        let mut needs = Needs::default();
        needs.add(f.old, named, Ibits::UPDATE.0);
        needs.add(f.child, named, Ibits::LOOKUP.0);
        needs.add(f.child, self.ops.mdts.index(), ALL_BITS.0);
        let look = Look {
            dir: f.old,
            name: f.name.clone(),
        };
        op.lock(needs.list(), &[look]).await?;
        let fids = op.new_fids(&plan.mdts).await?;
        let split = |t: &mut Txn<'_>| {
            if t.lookup(&f.old, &f.name)? != Some(f.child) {
                return Err(Errno::EAGAIN.into());
            }
            let store = t.store;
            let h = unchanged(store, t, &f.child, None)?;
            if t.find(&fid)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            let new = f.take_place(t, h, fid)?;
            migrating::split_plain(t, new, f.child, &plan, &fids)?;
            t.put(table::RESTRIPE, table::fid_key(&fid).to_vec(), Bytes::new());
            t.add_entry(&f.old, &f.name, &fid, f.ino.mode);
            let parent = t.get(&f.old)?;
            namespace::touch(t, parent, f.time);
            Ok(new)
        };
        let a = self.make(op, split, self.fill_restriped(fid)).await?;
        self.ops.restriper.wake();
        Ok(a)
    }

    /// A striped directory gets more shards, or is to have fewer.
    async fn lay_out_anew(&self, dir: Fid, was: &LmvMd, aim: &Aim) -> MdtResult<Answer> {
        let mut op = self.ops.lock_all(dir, was).await?;
        let fids = match aim {
            Aim::Split(plan) => op.new_fids(&plan.mdts).await?,
            Aim::Merge(..) => Vec::new(),
        };
        let change = |t: &mut Txn<'_>| {
            let store = t.store;
            let h = unchanged(store, t, &dir, Some(was))?;
            match aim {
                Aim::Split(plan) => migrating::split(t, h, was, plan, &fids)?,
                Aim::Merge(count, hash) => migrating::merge(t, h, was, *count, *hash)?,
            }
            t.put(table::RESTRIPE, table::fid_key(&dir).to_vec(), Bytes::new());
            t.stamp(h);
            Ok(h)
        };
        let a = self.make(op, change, self.fill_restriped(dir)).await?;
        self.ops.restriper.wake();
        Ok(a)
    }

    fn fill_restriped(&self, dir: Fid) -> impl FnOnce(&mut Answer, &Inode) + '_ {
        move |a, ino| {
            a.msg.push(&self.pack(&dir, ino));
            self.push_parents(a, [None, None]);
        }
    }
}

/// What is to become of a directory with that layout, whose shards, or itself, lie on `homes`. Of `known` MDTs these are `usable`.
/// E2BIG: there are not so many MDTs; EINPROGRESS: one of them is away.
fn aim(
    was: Option<&LmvMd>,
    homes: &[u32],
    lum: &LmvUserMd,
    (usable, known): (&[u32], u32),
) -> Result<Aim, Errno> {
    if was.is_some_and(migrating::is_changing) {
        return Err(Errno::EBUSY);
    }
    let over = lum.head.hash_type & hash_flag::OVERSTRIPED;
    let asked = match lum.head.stripe_count as i32 {
        n @ -5..=-1 => known * n.unsigned_abs(),
        n if over != 0 => (n.max(1) as u32).min(known * SHARDS_PER_MDT),
        n => n.max(1) as u32,
    };
    let now = homes.len() as u32;
    let old_hash = was.map_or(hash_type::FNV_1A_64, |l| l.head.hash_type);
    let (old_type, wanted) = (
        old_hash & hash_type::MASK,
        lum.head.hash_type & hash_type::MASK,
    );
    let ty = match wanted {
        hash_type::ALL_CHARS..=hash_type::CRUSH2 => wanted,
        _ => old_type,
    };
    // a user who lays a directory out wants it so
    let hash = ty | hash_flag::FIXED;
    if asked > now {
        if over == 0 && asked > known {
            return Err(Errno::E2BIG);
        }
        let mdts = further(homes, usable, asked - now)?;
        let twice = |m: &u32| homes.iter().chain(&mdts).filter(|o| *o == m).count() > 1;
        let over = match homes.iter().chain(&mdts).any(twice) {
            // so many MDTs there are, and not all can be used now
            true if over == 0 && mdts.iter().any(twice) => return Err(Errno::EINPROGRESS),
            true => hash_flag::OVERSTRIPED,
            false => 0,
        };
        return Ok(Aim::Split(Plan {
            hash: hash | over,
            mdts,
        }));
    }
    if was.is_none() || asked == now && ty == old_type {
        return Err(Errno::EALREADY);
    }
    let kept = homes.get(..asked as usize).unwrap_or(homes);
    let twice = |m: &u32| kept.iter().filter(|o| *o == m).count() > 1;
    let over = if kept.iter().any(twice) {
        hash_flag::OVERSTRIPED
    } else {
        0
    };
    Ok(Aim::Merge(asked, hash | over))
}

/// The MDTs of `count` shards beside those on `homes`: each time the one with the fewest, the next behind the last of equals.
fn further(homes: &[u32], usable: &[u32], count: u32) -> Result<Vec<u32>, Errno> {
    let mut all = homes.to_vec();
    for _ in 0..count {
        let last = all.last().copied().unwrap_or(0);
        let held = |m: &u32| all.iter().filter(|o| *o == m).count();
        let behind = |m: &u32| (*m <= last, *m);
        let next = usable.iter().min_by_key(|m| (held(m), behind(m)));
        all.push(*next.ok_or(Errno::E2BIG)?);
    }
    Ok(all.split_off(homes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::LMV_MAGIC_V1;

    fn lmv(count: u32, hash: u32) -> LmvMd {
        let mut l = LmvMd::default();
        l.head.magic = LMV_MAGIC_V1;
        l.head.stripe_count = count;
        l.head.hash_type = hash;
        l.stripe_fids = (1..=count).map(|i| Fid::new(9, i)).collect();
        l
    }

    const FNV: u32 = hash_type::FNV_1A_64;
    const FIXED: u32 = hash_flag::FIXED;

    fn asked(was: Option<&LmvMd>, homes: &[u32], count: i32, hash: u32) -> Result<Aim, Errno> {
        let lum = LmvUserMd::request(count as u32, LMV_OFFSET_DEFAULT, hash);
        aim(was, homes, &lum, (&[0, 1, 2, 3], 4))
    }

    fn split(hash: u32, mdts: &[u32]) -> Result<Aim, Errno> {
        let mdts = mdts.to_vec();
        Ok(Aim::Split(Plan {
            hash: hash | FIXED,
            mdts,
        }))
    }

    #[test]
    fn more_shards_go_where_fewest_are() {
        assert_eq!(asked(None, &[2], 3, 0), split(FNV, &[3, 0]));
        assert_eq!(
            asked(None, &[2], -1, hash_type::CRUSH),
            split(hash_type::CRUSH, &[3, 0, 1])
        );
        let two = lmv(2, hash_type::CRUSH);
        assert_eq!(
            asked(Some(&two), &[1, 3], 3, 0),
            split(hash_type::CRUSH, &[0])
        );
        assert_eq!(asked(Some(&two), &[1, 3], 5, 0), Err(Errno::E2BIG));
        let over = hash_flag::OVERSTRIPED;
        assert_eq!(
            asked(Some(&two), &[1, 3], 5, over),
            split(hash_type::CRUSH | over, &[0, 2, 3])
        );
        // no more than there can be
        let most = asked(Some(&two), &[1, 3], 21, over);
        assert_eq!(most, asked(Some(&two), &[1, 3], 20, over));
        assert!(matches!(most, Ok(Aim::Split(plan)) if plan.mdts.len() == 18));
        // one that is away is waited for
        let lum = LmvUserMd::request(4, LMV_OFFSET_DEFAULT, 0);
        let now = aim(Some(&two), &[1, 3], &lum, (&[0, 1, 3], 4));
        assert_eq!(now, Err(Errno::EINPROGRESS));
    }

    #[test]
    fn fewer_shards_or_another_hash_are_a_merge_and_the_same_is_nothing() {
        let three = lmv(3, FNV);
        let homes = [1, 2, 1];
        assert_eq!(
            asked(Some(&three), &homes, 2, 0),
            Ok(Aim::Merge(2, FNV | FIXED))
        );
        assert_eq!(
            asked(Some(&three), &homes, 0, 0),
            Ok(Aim::Merge(1, FNV | FIXED))
        );
        let over = hash_flag::OVERSTRIPED | FIXED | hash_type::CRUSH2;
        assert_eq!(
            asked(Some(&three), &homes, 3, hash_type::CRUSH2),
            Ok(Aim::Merge(3, over))
        );
        assert_eq!(asked(Some(&three), &homes, 3, FNV), Err(Errno::EALREADY));
        assert_eq!(asked(None, &[0], 1, 0), Err(Errno::EALREADY));
        let changing = lmv(3, FNV | hash_flag::MERGE | hash_flag::MIGRATION);
        assert_eq!(asked(Some(&changing), &homes, 4, 0), Err(Errno::EBUSY));
    }
}
