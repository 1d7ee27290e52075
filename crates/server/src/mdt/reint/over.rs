//! Directories that are made where their name is not, or in shards on several MDTs, and changes of what is in shards.

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::coral::updates::Look;
use coral_wire::layout::LmvUserMd;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{MdtBody, MdtRecReint, RecCreate, md, open};
use coral_wire::{Errno, Fid};

use crate::mdt::core::MdtCore;
use crate::mdt::ctx::{Answer, Ctx};
use crate::mdt::namespace::{self, At, NewObject};
use crate::mdt::record::Inode;
use crate::mdt::remote::{Needs, RETRIES, same};
use crate::mdt::store::{MdtError, MdtResult, Txn, TxnObject};
use crate::mdt::striped::{self, Plan};
use crate::mdt::trans::{Need, Op};

impl Ctx {
    /// How the directory that this request makes is to be laid out; `None`: in one piece.
    pub(super) fn plan(&self) -> MdtResult<Option<Plan>> {
        let Ok(lum) = LmvUserMd::decode(self.buf(4)) else {
            return Ok(None);
        };
        let mdts = &self.ops.mdts;
        let (here, usable) = (mdts.index(), mdts.usable_for(&lum)?);
        let others = |count| mdts.roomy(&usable, count);
        Ok(striped::plan(&lum, here, &usable, others)?)
    }

    /// What the new directory hands down, if that is stored. What comes from above is not: clients know it
    /// (`OBD_CONNECT2_DMV_IMP_INHERIT`).
    pub(super) fn own_default(&self, r: &RecCreate) -> Bytes {
        if r.flags() & open::DEFAULT_LMV != 0 || !self.ops.mdts.several() {
            return Bytes::new();
        }
        let lum = LmvUserMd::decode(self.buf(4)).ok();
        let kept = lum.and_then(|l| striped::kept_together(&l, self.ops.mdts.index()));
        kept.map_or(Bytes::new(), |l| l.encode())
    }

    /// Makes a directory here whose name or shards lie on other MDTs.
    pub(super) async fn create_over(
        &self,
        head: &MdtRecReint,
        r: &RecCreate,
        mut new: NewObject,
        plan: Option<Plan>,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let mut cred = self.cred(head);
        cred.umask = r.umask;
        let name = Bytes::copy_from_slice(self.name(3));
        namespace::check_name(&name)?;
        let at = At {
            parent: r.fid1,
            name: &name,
            layout: self.layout(r.layout_ver),
        };
        let need = Need {
            fid: at.parent,
            mdt: self.ops.home(&at.parent).await?,
            bits: Ibits::UPDATE.0,
        };
        let look = Look {
            dir: at.parent,
            name: name.clone(),
        };
        let mut op = Op::begin(&self.ops);
        op.lock(vec![need], &[look]).await?;
        let fids = match &plan {
            Some(plan) => op.new_fids(&plan.mdts).await?,
            None => Vec::new(),
        };
        // It inherits its parent's default layout, also that of the root, which other MDTs do not know later.
        new.lov = match op.away(&at.parent) {
            Some(parent) => parent.ino.lov.clone(),
            None => self.reading().store.inode(&at.parent)?.lov,
        };
        let create = |t: &mut Txn<'_>| {
            let h = namespace::create(t, &cred, at, &new)?;
            if let Some(plan) = &plan {
                striped::make_shards(t, h, plan, &fids)?;
            }
            Ok(h)
        };
        let fill = |a: &mut Answer, ino: &Inode| {
            let mut body = self.pack(&new.fid, ino);
            let Some(plan) = plan.as_ref().filter(|_| !self.coral) else {
                a.msg.push(&body);
                return self.push_parents(a, [None, None]);
            };
            // a kernel client learns from the reply that names go to shards
            let lmv = striped::attribute_of(plan, &fids, self.ops.mdts.index()).encode();
            body.valid |= md::FLDIREA | md::MEA;
            body.eadatasize = lmv.len() as u32;
            a.msg.push(&body).push_empty().push_bytes(lmv);
        };
        self.make(op, create, fill).await
    }

    /// Makes an operation of which all is locked. `change` is run twice: for what others prepare, and to decide.
    pub(in crate::mdt) async fn make(
        &self,
        mut op: Op,
        change: impl Fn(&mut Txn<'_>) -> MdtResult<TxnObject>,
        fill: impl FnOnce(&mut Answer, &Inode),
    ) -> MdtResult<Answer> {
        let updates = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            change(&mut t)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        let a = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            let h = change(&mut t)?;
            same(&updates, &t.updates())?;
            let mut a = self.answer(0);
            fill(&mut a, t.ino(h));
            op.decide(self, t, &mut a)?;
            a
        };
        op.finish(&self.rq.target).await?;
        Ok(a)
    }

    /// The shards of a directory that lies here.
    pub(in crate::mdt) fn shards(&self, fid: &Fid) -> MdtResult<Vec<Fid>> {
        let core = self.reading();
        match core.store.find(fid)? {
            Some(ino) => striped::shards(&core.store, fid, &ino),
            None => Ok(Vec::new()),
        }
    }

    /// ESTALE for a directory that is in shards by now, or is one: whoever changes it is to look at its name again. Asked with the
    /// lock of the change in hand, because a directory may be migrated while that is waited for.
    pub(super) fn is_whole(&self, core: &MdtCore, fid: &Fid) -> MdtResult<()> {
        let Some(dir) = core.store.find(fid)? else {
            return Ok(());
        };
        match striped::is_in_parts(&core.store, fid, &dir)? {
            true => Err(Errno::ESTALE.into()),
            false => Ok(()),
        }
    }

    /// Changes the striped directory `fid` and all its shards with it. `times`: which times they take on.
    pub(super) async fn change_striped(
        &self,
        fid: &Fid,
        bits: Ibits,
        times: u8,
        change: impl Fn(&mut Txn<'_>) -> MdtResult<TxnObject>,
        fill: impl FnOnce(&mut Answer, MdtBody),
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let change = |t: &mut Txn<'_>| {
            let h = change(t)?;
            t.stamp(h);
            striped::followed(t, h, times)?;
            Ok(h)
        };
        let fill = |a: &mut Answer, ino: &Inode| fill(a, self.pack(fid, ino));
        for _ in 0..RETRIES {
            let shards = self.shards(fid)?;
            let mut needs = Needs::default();
            needs.add(*fid, self.ops.mdts.index(), bits.0);
            for shard in &shards {
                needs.add(*shard, self.ops.home(shard).await?, bits.0);
            }
            let mut op = Op::begin(&self.ops);
            op.lock(needs.list(), &[]).await?;
            if self.shards(fid)? == shards {
                return self.make(op, change, fill).await;
            }
        }
        Err(MdtError::Errno(Errno::EAGAIN))
    }

    /// The present time, where a request says none.
    pub(super) fn now(&self) -> Time {
        let (secs, nsecs) = self.rq.target.node().wall_time();
        Time { secs, nsecs }
    }
}
