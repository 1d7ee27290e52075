//! Moving what a name stands for to another MDT (`mdt_reint_migrate` in `lustre/mdt/mdt_reint.c`, `mdd_migrate_object` in
//! `lustre/mdd/mdd_dir.c`), and ending the migration of a directory (`mdt_dir_layout_update` in `lustre/mdt/mdt_xattr.c`).
//!
//! | what | coordinator | what becomes of it |
//! | --- | --- | --- |
//! | a directory | the MDT it moves to | a new one that has the old one's shards beside its own ([`migrating`]) |
//! | anything else | the MDT where it lies | a new object with the same contents and names; the OST objects stay |
//! | what is open, has data on the MDT or a further name on its MDT | the same | stays, and its name goes to the shard where it belongs |
//!
//! The new object has another FID: whoever has cached the old one loses all locks on it before.

use bytes::Bytes;
use coral_ldlm::ExportId;
use coral_osd::Time;
use coral_wire::coral::updates::{Look, Update};
use coral_wire::layout::{LmvMd, LmvUserMd};
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{
    CloseData, MdtBody, MdtIoepoch, MdtRecReint, RecRename, RecSetxattr, bias, md,
};
use coral_wire::{Errno, Fid};

use crate::mdt::core::MdtCore;
use crate::mdt::cred::{Ucred, cap};
use crate::mdt::ctx::{Answer, Ctx};
use crate::mdt::handler::MdtOps;
use crate::mdt::namespace::{self, At};
use crate::mdt::open_handles::OpenTable;
use crate::mdt::out::ALL_BITS;
use crate::mdt::record::{Inode, Link, S_IFDIR, S_IFMT, XattrValue};
use crate::mdt::remote::{Needs, RENAMES, RETRIES, same};
use crate::mdt::store::{MdtError, MdtResult, Txn, TxnObject};
use crate::mdt::striped::{self, Plan};
use crate::mdt::trans::Op;
use crate::mdt::{dom, migrating, object_ids};

/// What is migrated, as it was found before it was locked.
pub(in crate::mdt) struct Found {
    pub name: Bytes,
    /// The directory that has the name.
    pub old: Fid,
    /// The directory that the name belongs in.
    pub new: Fid,
    /// The name went there before, and the migration of its directory has not ended.
    pub moved: bool,
    pub child: Fid,
    /// How that looks.
    pub ino: Inode,
    pub time: Time,
    /// The cookie of the open handle with which a client has leased it, and the client.
    pub lease: Option<(u64, ExportId)>,
}

/// What is to become of it.
pub(in crate::mdt) enum Aim {
    /// The name goes where it belongs, and nothing else.
    Name,
    /// Beside that, a file goes to that MDT and gets that FID.
    File(u32, Fid),
    /// A directory gets that FID and these shards; that was its layout.
    Dir(Fid, Plan, Vec<Fid>, Option<LmvMd>),
}

impl Ctx {
    /// MDS_REINT_MIGRATE.
    pub(super) async fn migrate(&self, head: &MdtRecReint, r: &RecRename) -> MdtResult<Answer> {
        self.cancel_early(6);
        may_migrate(&self.cred(head))?;
        let name = Bytes::copy_from_slice(self.name(4));
        namespace::check_name(&name).map_err(|e| match e {
            Errno::EEXIST => Errno::EBUSY,
            e => e,
        })?;
        if !r.fid2.is_norm() {
            return Err(Errno::EINVAL.into());
        }
        self.refuse_replay()?;
        self.end_lease(r);
        for _ in 0..RETRIES {
            let is_dir = r.mode & S_IFMT == S_IFDIR;
            match self.migrate_once(r, &name, is_dir).await {
                Err(MdtError::Errno(Errno::EAGAIN)) => continue,
                done => return done,
            }
        }
        // a kernel client that is told EAGAIN looks for a body that errors do not have (`ll_migrate`)
        Err(if self.coral {
            Errno::EAGAIN
        } else {
            Errno::EBUSY
        }
        .into())
    }

    /// The lease with which a kernel client comes has done its work: from here on the locks of the operation keep others away.
    /// The client has forgotten it already. One that was broken meanwhile does no harm: who opened the file is seen.
    fn end_lease(&self, r: &RecRename) {
        let close = self.rq.rq.msg.get::<CloseData>(9);
        if let (true, Ok(close)) = (r.bias & bias::CLOSE_MIGRATE != 0, close) {
            self.ops.ldlm.cancel(self.exp(), &[close.handle]);
        }
    }

    /// The cookie of the open handle that goes with the lease.
    fn leased_handle(&self, r: &RecRename) -> Option<u64> {
        let epoch = self.rq.rq.msg.get::<MdtIoepoch>(8).ok()?;
        let comes = r.bias & bias::CLOSE_MIGRATE != 0;
        let core = self.reading();
        comes
            .then(|| core.opens.current(epoch.open_handle, self.exp()))
            .flatten()
    }

    /// EAGAIN: what was found has changed before it was locked.
    async fn migrate_once(&self, r: &RecRename, name: &Bytes, is_dir: bool) -> MdtResult<Answer> {
        let mut op = Op::begin(&self.ops);
        if is_dir {
            // who looks for what is above a directory finds FIDs that stay
            op.lock(vec![RENAMES], &[]).await?;
        }
        let f = self.find_migrated(&mut op, r, name).await?;
        if f.ino.is_dir() != is_dir {
            return Err(Errno::EINVAL.into());
        }
        let aim = match is_dir {
            _ if r.bias & bias::MIGRATE_NSONLY != 0 => Aim::Name,
            true => self.dir_aim(&mut op, &f, r.fid2).await?,
            false => self.file_aim(&f, r.fid2).await?,
        };
        if matches!(aim, Aim::Name) && f.old == f.new {
            return Err(Errno::EALREADY.into());
        }
        f.lock(&self.ops, &mut op, &aim).await?;
        self.migrate_locked(op, &f, &aim).await
    }

    /// A name that is where it belongs, though the migration of its directory has not ended, may stand for what has yet to move.
    async fn find_migrated(&self, op: &mut Op, r: &RecRename, name: &Bytes) -> MdtResult<Found> {
        let dir = self.ops.peek(r.fid1).await?.ok_or(Errno::ENOENT)?;
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let lmv = migrating::layout_of(&r.fid1, &dir)?;
        let (mut old, new) = migrating::places(r.fid1, lmv.as_ref(), name)?;
        let mut child = op.look(old, name).await?;
        let moved = child.is_none() && old != new;
        if moved {
            old = new;
            child = op.look(new, name).await?;
        }
        let child = child.ok_or(Errno::ENOENT)?;
        Ok(Found {
            name: name.clone(),
            old,
            new,
            moved,
            child,
            ino: self.ops.peek(child).await?.ok_or(Errno::EAGAIN)?,
            time: self.time(r.time),
            lease: self.leased_handle(r).map(|cookie| (cookie, self.exp())),
        })
    }

    async fn dir_aim(&self, op: &mut Op, f: &Found, fid: Fid) -> MdtResult<Aim> {
        if !self.is_here(&fid) {
            return Err(Errno::EREMOTE.into());
        }
        let lum = LmvUserMd::decode(self.buf(10)).map_err(|_| Errno::EOPNOTSUPP)?;
        let mdts = &self.ops.mdts;
        let plan = migrating::targets(&lum, mdts.index(), &mdts.usable_for(&lum)?)?;
        let was = migrating::layout_of(&f.child, &f.ino)?;
        let mut homes = Vec::new();
        for shard in was.iter().flat_map(|l| &l.stripe_fids) {
            if shard.is_zero() {
                return Err(Errno::EBADF.into());
            }
            homes.push(self.ops.home(shard).await?);
        }
        let home = self.ops.home(&f.child).await?;
        let known = mdts.count();
        match migrating::begun(was.as_ref(), home, &homes, &plan, (&lum, known)) {
            // it is laid out as asked, and only its name is not where it belongs
            Err(Errno::EALREADY) if f.old != f.new => return Ok(Aim::Name),
            // a kernel client's walk of a tree would end there (`mdt_migrate_lookup` does not look at what has moved)
            Err(Errno::EPERM) if f.moved && !self.coral => return Err(Errno::EALREADY.into()),
            done => done?,
        }
        let fids = op.new_fids(&plan.mdts).await?;
        Ok(Aim::Dir(fid, plan, fids, was))
    }

    async fn file_aim(&self, f: &Found, fid: Fid) -> MdtResult<Aim> {
        if !self.is_here(&f.child) {
            return Err(Errno::EREMOTE.into());
        }
        let (here, to) = (self.ops.mdts.index(), self.ops.home(&fid).await?);
        // more names than lie in the record, or data that would have to move
        let stays = f.ino.nlink as usize != f.ino.links.len() || dom::is_dom(&f.ino.lov);
        if to == here || stays {
            return Ok(Aim::Name);
        }
        for link in f.others() {
            if self.ops.home(&link.parent).await? == here {
                return Ok(Aim::Name);
            }
        }
        Ok(Aim::File(to, fid))
    }

    async fn migrate_locked(&self, mut op: Op, f: &Found, aim: &Aim) -> MdtResult<Answer> {
        let updates = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            f.run(&core, &mut t, aim)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        let a = {
            let mut core = self.core();
            let mut t = op.txn(&core.store);
            f.run(&core, &mut t, aim)?;
            same(&updates, &t.updates())?;
            let mut a = self.answer(0);
            a.msg.push(&f.told()).push_empty().push_empty();
            self.push_parents(&mut a, [None, None]);
            op.decide(self, t, &mut a)?;
            if let Some((cookie, client)) = f.lease {
                core.opens.remove(cookie, client);
            }
            a
        };
        op.finish(&self.rq.target).await?;
        Ok(a)
    }

    /// `trusted.lmv` is set to what was asked of the migration of a directory: all names have moved, and it ends.
    pub(super) async fn end_migration(
        &self,
        cred: &Ucred,
        r: &RecSetxattr,
        lum: &LmvUserMd,
    ) -> MdtResult<Answer> {
        may_migrate(cred)?;
        let layout = || {
            let core = self.reading();
            let ino = core.store.inode(&r.fid)?;
            match ino.is_dir() {
                true => striped::layout(&core.store, &r.fid, &ino),
                false => Err(Errno::ENOTDIR.into()),
            }
        };
        // EINPROGRESS while none of the others is known
        self.ops.mdts.usable()?;
        let mdts = self.ops.mdts.count();
        migrating::may_end(layout()?.as_ref(), lum, mdts)?;
        self.refuse_replay()?;
        for _ in 0..RETRIES {
            let Some(was) = layout()? else { break };
            migrating::may_end(Some(&was), lum, mdts)?;
            let mut needs = Needs::default();
            needs.add(r.fid, self.ops.mdts.index(), ALL_BITS.0);
            for shard in &was.stripe_fids {
                needs.add(*shard, self.ops.home(shard).await?, ALL_BITS.0);
            }
            let mut op = Op::begin(&self.ops);
            op.lock(needs.list(), &[]).await?;
            if layout()?.as_ref() != Some(&was) {
                continue;
            }
            let change = |t: &mut Txn<'_>| {
                let h = t.get(&r.fid)?;
                migrating::shrink(t, h, &was)?;
                t.stamp(h);
                Ok(h)
            };
            let coral = self.coral;
            let fill = |a: &mut Answer, ino: &Inode| {
                let body = match coral {
                    true => self.pack(&r.fid, ino),
                    false => MdtBody::default(),
                };
                a.msg.push(&body);
            };
            return self.make(op, change, fill).await;
        }
        Err(Errno::EAGAIN.into())
    }
}

/// EPERM for all but the superuser.
pub(super) fn may_migrate(cred: &Ucred) -> MdtResult<()> {
    match cred.has(cap::SYS_ADMIN) {
        true => Ok(()),
        false => Err(Errno::EPERM.into()),
    }
}

impl Found {
    /// Locks all of it.
    pub async fn lock(&self, ops: &MdtOps, op: &mut Op, aim: &Aim) -> MdtResult<()> {
        let mut needs = Needs::default();
        for dir in [self.old, self.new] {
            needs.add(dir, ops.home(&dir).await?, Ibits::UPDATE.0);
        }
        needs.add(self.child, ops.home(&self.child).await?, ALL_BITS.0);
        let named = ops.home(&self.old).await?;
        needs.add(self.child, named, Ibits::LOOKUP.0);
        let mut looks = vec![self.look(self.old)];
        if self.new != self.old {
            looks.push(self.look(self.new));
        }
        match aim {
            Aim::Name => {}
            Aim::File(mdt, fid) => {
                // that MDT takes part, also where it has none of the directories
                needs.add(*fid, *mdt, Ibits::LOOKUP.0);
                for link in self.others() {
                    let home = ops.home(&link.parent).await?;
                    needs.add(link.parent, home, Ibits::UPDATE.0);
                    needs.add(self.child, home, Ibits::LOOKUP.0);
                    looks.push(Look {
                        dir: link.parent,
                        name: link.name.clone(),
                    });
                }
            }
            Aim::Dir(.., was) => {
                for shard in was.iter().flat_map(|l| &l.stripe_fids) {
                    needs.add(*shard, ops.home(shard).await?, ALL_BITS.0);
                }
            }
        }
        op.lock(needs.list(), &looks).await
    }

    fn look(&self, dir: Fid) -> Look {
        let name = self.name.clone();
        Look { dir, name }
    }

    /// Whether the reply ends what the client has open.
    fn told(&self) -> MdtBody {
        let valid = match self.lease {
            Some(_) => md::CLOSE_INTENT_EXECED,
            None => 0,
        };
        MdtBody {
            valid,
            ..MdtBody::default()
        }
    }

    /// The names that it has beside the one that is migrated.
    fn others(&self) -> impl Iterator<Item = &Link> {
        let all = self.ino.links.iter();
        all.filter(|l| l.parent != self.old || l.name != self.name)
    }

    /// Changes all of it, which is locked.
    pub fn run(&self, core: &MdtCore, t: &mut Txn<'_>, aim: &Aim) -> MdtResult<()> {
        if t.lookup(&self.old, &self.name)? != Some(self.child) {
            return Err(Errno::EAGAIN.into());
        }
        let h = t.get(&self.child)?;
        // what was concluded from how it looked holds
        let now = t.ino(h);
        let same = now.links == self.ino.links && now.nlink == self.ino.nlink;
        if !same || now.nlink == 0 {
            return Err(Errno::EAGAIN.into());
        }
        if self.old != self.new {
            if t.lookup(&self.new, &self.name)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            let new = t.get(&self.new)?;
            let at = At {
                parent: self.new,
                name: &self.name,
                layout: 0,
            };
            striped::takes_name(t, new, at)?;
        }
        let moved = match aim {
            Aim::Name => None,
            Aim::File(..) if self.is_used(&core.opens) => None,
            Aim::File(mdt, fid) => Some(self.move_file(t, h, *mdt, *fid)?),
            Aim::Dir(fid, plan, fids, was) => {
                self.move_dir(&core.opens, t, h, *fid, (plan, fids, was.as_ref()))?;
                Some(*fid)
            }
        };
        if moved.is_none() {
            if self.old == self.new {
                return Err(Errno::EALREADY.into());
            }
            t.del_link(h, &self.old, &self.name);
            t.add_link(h, self.new, &self.name);
            t.change(h);
        }
        self.move_name(t, moved.unwrap_or(self.child))
    }

    /// Whether somebody has it open, beside who moves it.
    fn is_used(&self, opens: &OpenTable) -> bool {
        opens.is_open_but(&self.child, self.lease)
    }

    /// The entry, and what its directories count.
    fn move_name(&self, t: &mut Txn<'_>, fid: Fid) -> MdtResult<()> {
        if self.old != self.new {
            t.del_entry(&self.old, &self.name);
        }
        t.add_entry(&self.new, &self.name, &fid, self.ino.mode);
        let (old, new) = (t.get(&self.old)?, t.get(&self.new)?);
        for dir in [old, new] {
            namespace::touch(t, dir, self.time);
        }
        if self.ino.is_dir() && old != new {
            namespace::fewer(t, old);
            t.change(new).nlink += 1;
        }
        Ok(())
    }

    /// The record of the new object, whose only name so far is where it belongs.
    fn renewed(&self, t: &Txn<'_>, h: TxnObject) -> MdtResult<Inode> {
        let first = Link {
            parent: self.new,
            name: self.name.clone(),
        };
        let mut ino = t.whole(h)?;
        ino.links = vec![first];
        (ino.version, ino.transno) = (1, 0);
        Ok(ino)
    }

    /// Makes the new directory `fid` like `h`, which it takes the place of, with nothing in it.
    pub(super) fn take_place(
        &self,
        t: &mut Txn<'_>,
        h: TxnObject,
        fid: Fid,
    ) -> MdtResult<TxnObject> {
        let mut ino = self.renewed(t, h)?;
        ino.nlink = 2;
        let xattrs = std::mem::take(&mut ino.xattrs);
        let new = t.insert(fid, ino);
        for (name, value) in xattrs {
            if let XattrValue::Inline(value) = value {
                t.put_xattr(new, &name, Some(value));
            }
        }
        Ok(new)
    }

    fn move_file(&self, t: &mut Txn<'_>, h: TxnObject, mdt: u32, fid: Fid) -> MdtResult<Fid> {
        if t.find(&fid)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let mut ino = self.renewed(t, h)?;
        for link in self.others() {
            if t.lookup(&link.parent, &link.name)? != Some(self.child) {
                return Err(Errno::EAGAIN.into());
            }
            t.add_entry(&link.parent, &link.name, &fid, ino.mode);
            ino.links.push(link.clone());
        }
        object_ids::moved_away(t, &ino.lov)?;
        let record = ino.encode();
        t.add_update(mdt, Update::Insert { fid, record });
        // its data are the new one's
        t.remove(h)?;
        Ok(fid)
    }

    fn move_dir(
        &self,
        opens: &OpenTable,
        t: &mut Txn<'_>,
        h: TxnObject,
        fid: Fid,
        (plan, fids, was): (&Plan, &[Fid], Option<&LmvMd>),
    ) -> MdtResult<()> {
        if striped::layout(t.store, &self.child, t.ino(h))?.as_ref() != was {
            return Err(Errno::EAGAIN.into());
        }
        if t.find(&fid)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let new = self.take_place(t, h, fid)?;
        migrating::attach(t, new, self.child, was, plan, fids)?;
        if was.is_none() {
            return Ok(());
        }
        // the old master has given its shards away
        t.del_link(h, &self.old, &self.name);
        t.change(h).nlink = 0;
        match t.is_away(h) {
            true => Ok(()),
            false => namespace::let_go(t, h, &|f| opens.is_open(f)),
        }
    }
}
