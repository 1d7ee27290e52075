//! Setting attributes and extended attributes (`mdt_reint_setattr` in `lustre/mdt/mdt_reint.c`,
//! `mdt_reint_setxattr` in `lustre/mdt/mdt_xattr.c`).

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::coral::KEPT_ATTRS;
use coral_wire::coral::updates::follow;
use coral_wire::layout::LmvUserMd;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{
    MdtBody, MdtIoepoch, MdtRecReint, RecSetattr, RecSetxattr, attr as sa, bias, md, open,
};
use coral_wire::{Errno, Fid};

use super::push_attributes;
use crate::mdt::attr::{self, MdAttr};
use crate::mdt::core::MdtCore;
use crate::mdt::cred::Ucred;
use crate::mdt::ctx::{Answer, Ctx};
use crate::mdt::locks::HeldLocks;
use crate::mdt::store::{MdtResult, Txn, TxnObject};
use crate::mdt::version::PreVersions;
use crate::mdt::xattr::{self, SetMode};
use crate::mdt::{acl, dom};
use crate::nodemap::IdType;

impl Ctx {
    /// Times that were set are on disk, but perhaps not those of the file's data here.
    pub(super) async fn data_times_again(&self, r: &RecSetattr) -> MdtResult<()> {
        let set = self.setattr_of(r);
        match (set.mtime.is_some() || set.atime.is_some()) && self.has_data(&r.fid)? {
            true => self.set_data_times(&r.fid, &set).await,
            false => Ok(()),
        }
    }

    /// What a setattr record (of a setattr or a close) asks for.
    pub fn setattr_of(&self, r: &RecSetattr) -> MdAttr {
        let has = |bit: u64| r.valid & bit != 0;
        MdAttr {
            // a kernel client that takes setuid away for a writer also says the mode it knows, which may be an old one
            mode: (has(sa::MODE) && !(has(sa::FORCE) && has(sa::KILL_SUID | sa::KILL_SGID)))
                .then_some(r.mode),
            uid: has(sa::UID).then(|| self.view.named_to_fs(IdType::Uid, r.uid)),
            gid: has(sa::GID).then(|| self.view.named_to_fs(IdType::Gid, r.gid)),
            size: has(sa::SIZE).then_some(r.size),
            blocks: None,
            atime: has(sa::ATIME).then(|| self.time(r.atime)),
            mtime: has(sa::MTIME).then(|| self.time(r.mtime)),
            ctime: has(sa::CTIME).then(|| self.time(r.ctime)),
            flags: has(sa::ATTR_FLAG).then_some(r.attr_flags),
            projid: has(sa::PROJID).then(|| self.view.named_to_fs(IdType::Projid, r.projid)),
            kill_suid: has(sa::KILL_SUID),
            kill_sgid: has(sa::KILL_SGID),
            times_given: self.coral && has(sa::ATIME_SET | sa::MTIME_SET),
            opened: false,
            owner_override: has(sa::FROM_OPEN | sa::OVERRIDE) || r.bias & bias::OWNEROVERRIDE != 0,
        }
    }

    pub(super) async fn setattr(&self, head: &MdtRecReint, r: &RecSetattr) -> MdtResult<Answer> {
        self.cancel_early(6);
        let cred = self.cred(head);
        let default = self.buf(4).clone();
        if !default.is_empty() {
            return Box::pin(self.set_directory_default(&cred, r, default)).await;
        }
        let mut set = self.setattr_of(r);
        if let Ok(epoch) = self.rq.rq.msg.get::<MdtIoepoch>(3) {
            let core = self.reading();
            let open = core
                .opens
                .current(epoch.open_handle, self.exp())
                .and_then(|c| core.opens.get(c, self.exp()));
            set.opened = open.is_some_and(|h| h.writes() && h.fid == r.fid);
        }
        if set.flags.is_some() && set.ctime.is_none() {
            // a kernel client says no time with flags
            let (secs, nsecs) = self.rq.target.node().wall_time();
            set.ctime = Some(Time { secs, nsecs });
        }
        let mut bits = Ibits::UPDATE;
        let uncap = set.ends_capabilities() && self.has_capabilities(&r.fid)?;
        if uncap {
            bits = Ibits(bits.0 | Ibits::XATTR.0);
        }
        if set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.flags.is_some()
            || set.kill_suid
            || set.kill_sgid
        {
            bits = Ibits(bits.0 | Ibits::LOOKUP.0 | Ibits::PERM.0);
        }
        let cuts = set.size.is_some() && r.bias & bias::TRUNC_KEEP_LEASE == 0;
        if cuts && self.reading().opens.is_leased(&r.fid) {
            // leases on what is cut end
            bits = Ibits(bits.0 | Ibits::OPEN.0);
        }
        let times = set.mtime.is_some() || set.atime.is_some();
        let data = times && self.has_data(&r.fid)?;
        if data && set.times_given {
            bits = Ibits(bits.0 | Ibits::DOM.0);
        }
        if !self.shards(&r.fid)?.is_empty() {
            return Box::pin(self.setattr_striped(r, &cred, &set, bits)).await;
        }
        let kept = self.coral && r.bias & KEPT_ATTRS != 0;
        let _locks = match kept {
            true => HeldLocks::default(),
            false => {
                self.lock_attributes(&r.fid, bits, set.size.is_some())
                    .await?
            }
        };
        self.is_whole(&self.reading(), &r.fid)?;
        let (a, laid_out) = self.put_attributes(r, &cred, &set, uncap)?;
        if data {
            self.set_data_times(&r.fid, &set).await?;
        }
        if laid_out {
            Box::pin(self.layout_made()).await?;
        }
        Ok(a)
    }

    /// The same of a striped directory.
    async fn setattr_striped(
        &self,
        r: &RecSetattr,
        cred: &Ucred,
        set: &MdAttr,
        bits: Ibits,
    ) -> MdtResult<Answer> {
        let time = |set: Option<Time>, bit| if set.is_some() { bit } else { 0 };
        let times = time(set.atime, follow::ATIME) | time(set.mtime, follow::MTIME);
        let change = |t: &mut Txn<'_>| attr::setattr(t, cred, &r.fid, set);
        let fill = |a: &mut Answer, body: MdtBody| push_attributes(a, &body);
        self.change_striped(&r.fid, bits, times, change, fill).await
    }

    /// The transaction of a setattr; true: it gave the file its layout. `uncap`: file capabilities end.
    fn put_attributes(
        &self,
        r: &RecSetattr,
        cred: &Ucred,
        set: &MdAttr,
        uncap: bool,
    ) -> MdtResult<(Answer, bool)> {
        let mut core = self.core();
        if self.coral && r.bias & KEPT_ATTRS != 0 {
            let epoch: MdtIoepoch = self.rq.rq.msg.get(3)?;
            self.may_have_kept(&core, &r.fid, epoch.open_handle)?;
        }
        if set.size.is_some() && !self.rq.is_replay() {
            core.opens.conflict(&r.fid, open::WRITE)?;
        }
        let lov = match set.size {
            Some(_) => self.missing_layout(&mut core, &r.fid)?,
            None => None,
        };
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        let h = self.set_attributes(&mut t, &mut pre, &r.fid, cred, set, uncap)?;
        let laid_out = lov.is_some();
        if let Some(lov) = lov {
            t.change(h).lov = lov;
        }
        let mut a = self.answer(0);
        pre.tell(&mut a);
        push_attributes(&mut a, &self.pack(&r.fid, t.ino(h)));
        let chown_data = tell_owner(&mut t, h, set) && dom::is_dom(&t.ino(h).lov);
        let data = || self.ops.data.changing_owner(dom::object(&r.fid));
        let _changing = chown_data.then(data).transpose()?;
        self.commit(t, &mut a)?;
        drop(core);
        Ok((a, laid_out))
    }

    /// ESTALE where the client may not keep attributes of `fid` back any more by this open.
    pub(in crate::mdt) fn may_have_kept(
        &self,
        core: &MdtCore,
        fid: &Fid,
        open_handle: u64,
    ) -> MdtResult<()> {
        match self.rq.is_replay() || core.opens.keeps(fid, open_handle, self.exp()) {
            true => Ok(()),
            false => Err(Errno::ESTALE.into()),
        }
    }

    /// Sets attributes in `t`. `uncap`: file capabilities end.
    pub(in crate::mdt) fn set_attributes(
        &self,
        t: &mut Txn<'_>,
        pre: &mut PreVersions<'_>,
        fid: &Fid,
        cred: &Ucred,
        set: &MdAttr,
        uncap: bool,
    ) -> MdtResult<TxnObject> {
        // times and sizes make no version (`mdt_attr_set`)
        let versioned = set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.projid.is_some()
            || set.flags.is_some();
        if versioned {
            pre.object(0, t, Some(fid))?;
        }
        let h = attr::setattr(t, cred, fid, set)?;
        if versioned {
            t.stamp(h);
        }
        if uncap && !t.ino(h).is_dir() {
            t.put_xattr(h, xattr::CAPABILITY, None);
        }
        Ok(h)
    }

    /// Whether the object has file capabilities.
    fn has_capabilities(&self, fid: &Fid) -> MdtResult<bool> {
        Ok(self
            .reading()
            .store
            .find(fid)?
            .is_some_and(|i| i.xattr(xattr::CAPABILITY).is_some()))
    }

    /// Locks `bits` of `fid`; with them the layout of a regular file that has none, if it is `sized` and so gets one. (What
    /// has a layout keeps it: it can be looked at before the lock.) On a layout the client's own locks do not stay either.
    async fn lock_attributes(&self, fid: &Fid, bits: Ibits, sized: bool) -> MdtResult<HeldLocks> {
        let lacks = sized
            && self
                .reading()
                .store
                .find(fid)?
                .is_some_and(|i| i.is_reg() && i.lov.is_empty());
        let (bits, own) = if lacks {
            (Ibits(bits.0 | Ibits::LAYOUT.0), None)
        } else {
            (bits, self.own())
        };
        Ok(self.ops.lock(&[], &[(*fid, bits)], own).await)
    }

    pub(super) async fn setxattr(&self, head: &MdtRecReint, r: &RecSetxattr) -> MdtResult<Answer> {
        self.cancel_early(5);
        let cred = self.cred(head);
        let name = Bytes::copy_from_slice(self.name(3));
        let removes = r.valid & md::FLXATTRRM != 0;
        // the buffer is the value: a kernel client leaves the record's size 0 (`mdc_xattr_common`)
        let value = (!removes).then(|| self.buf(4).clone());
        if xattr::is_layout(&name) {
            let coral = self.coral;
            let fill = |a: &mut Answer, body| {
                a.msg.push(&if coral { body } else { Default::default() });
            };
            let set = self.set_layout(&cred, &r.fid, self.time(r.time), value, fill);
            return Box::pin(set).await;
        }
        if name == xattr::TRUSTED_LMV
            && let Some(Ok(lum)) = value.as_ref().map(LmvUserMd::decode)
        {
            return Box::pin(self.end_migration(&cred, r, &lum)).await;
        }
        // an entry of somebody unknown here is told of, not left out
        let value = value
            .map(|v| self.view.xattr_to_fs(&name, v).ok_or(Errno::EPERM))
            .transpose()?;
        let mut bits = Ibits(Ibits::XATTR.0 | Ibits::UPDATE.0);
        if *name == *acl::ACCESS || *name == *acl::DEFAULT {
            bits = Ibits(bits.0 | Ibits::PERM.0 | Ibits::LOOKUP.0);
        }
        let mode = match r.flags & 3 {
            1 => SetMode::Create,
            2 => SetMode::Replace,
            _ => SetMode::Any,
        };
        let time = self.time(r.time);
        if !self.shards(&r.fid)?.is_empty() {
            let coral = self.coral;
            let change =
                |t: &mut Txn<'_>| xattr::set(t, &cred, &r.fid, &name, value.clone(), mode, time);
            let fill = |a: &mut Answer, body: MdtBody| {
                a.msg.push(&if coral { body } else { Default::default() });
            };
            return Box::pin(self.change_striped(&r.fid, bits, 0, change, fill)).await;
        }
        let _locks = self.ops.lock(&[], &[(r.fid, bits)], self.own()).await;
        let core = self.core();
        self.is_whole(&core, &r.fid)?;
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(&r.fid))?;
        let h = xattr::set(&mut t, &cred, &r.fid, &name, value, mode, time)?;
        t.stamp(h);
        let mut a = self.answer(0);
        pre.tell(&mut a);
        a.msg.push(&if self.coral {
            self.pack(&r.fid, t.ino(h))
        } else {
            Default::default()
        });
        self.commit(t, &mut a)?;
        Ok(a)
    }
}

/// The OSTs are told whose the file is, if that was set of one that they have objects of; whether it was.
pub(in crate::mdt) fn tell_owner(t: &mut Txn<'_>, h: TxnObject, set: &MdAttr) -> bool {
    let owned = set.uid.is_some() || set.gid.is_some() || set.projid.is_some();
    let chown = owned && t.ino(h).is_reg();
    if chown {
        t.tell_owner(h);
    }
    chown
}
