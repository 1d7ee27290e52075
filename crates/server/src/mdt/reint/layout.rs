//! Layouts that are set: of a file without one, and what a directory hands down
//! (`mdt_reint_setattr` with MA_LOV or MA_LMV in `lustre/mdt/mdt_reint.c`).

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd};
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{MdtBody, RecSetattr};
use coral_wire::{Errno, Fid};

use super::push_attributes;
use crate::mdt::core::MdtCore;
use crate::mdt::cred::{FL_APPEND, FL_IMMUTABLE, MAY_WRITE, Ucred, cap};
use crate::mdt::ctx::{Answer, Ctx};
use crate::mdt::record::Inode;
use crate::mdt::store::{MdtResult, Txn};
use crate::mdt::{stripe, xattr};

/// EPERM unless the caller may say what a directory hands down to what others make in it (`mdd_xattr_sanity_check`).
fn may_lay_out(cred: &Ucred, ino: &Inode) -> MdtResult<()> {
    let fixed = ino.flags & (FL_IMMUTABLE | FL_APPEND) != 0;
    match !fixed && (cred.owns(ino) || cred.has(cap::SYS_ADMIN)) {
        true => Ok(()),
        false => Err(Errno::EPERM.into()),
    }
}

impl Ctx {
    /// A layout for a regular file that has none, by its directory's default; `None` if it has one.
    pub fn missing_layout(&self, core: &mut MdtCore, fid: &Fid) -> MdtResult<Option<Bytes>> {
        let ino = match core.store.find(fid)? {
            Some(i) if i.is_reg() && i.lov.is_empty() => i,
            _ => return Ok(None),
        };
        let parent = ino.links.first().map(|l| l.parent);
        let wanted = inherited_layout(&mut Txn::new(&core.store), parent.as_ref())?;
        let (mut alloc, store) = core.allocator();
        Ok(Some(alloc.layout(store, fid, wanted.as_ref())?))
    }

    /// A setattr that carries a layout: what a directory hands down (`mdt_reint_setattr` with MA_LOV or MA_LMV). New directories
    /// can inherit on which MDT they are, and over how many they lie.
    pub(super) async fn set_directory_default(
        &self,
        cred: &Ucred,
        r: &RecSetattr,
        value: Bytes,
    ) -> MdtResult<Answer> {
        let fill = |a: &mut Answer, body: MdtBody| push_attributes(a, &body);
        let ino = self.reading().store.inode(&r.fid)?;
        if !ino.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        match LmvUserMd::decode(&value) {
            Err(_) => {
                self.set_layout(cred, &r.fid, self.now(), Some(value), fill)
                    .await
            }
            // no directory could be made by it
            Ok(l)
                if l.head.stripe_offset != LMV_OFFSET_DEFAULT
                    && !self.ops.mdts.has(l.head.stripe_offset) =>
            {
                Err(Errno::EINVAL.into())
            }
            Ok(l) => {
                // a request that says nothing takes the default away
                let says = l.head.stripe_count != 0
                    || l.head.stripe_offset != LMV_OFFSET_DEFAULT
                    || l.head.hash_type != 0;
                self.set_default_lmv(cred, &r.fid, says.then_some(value), fill)
                    .await
            }
        }
    }

    /// The default of new subdirectories is kept as it came.
    async fn set_default_lmv(
        &self,
        cred: &Ucred,
        fid: &Fid,
        value: Option<Bytes>,
        fill: impl FnOnce(&mut Answer, MdtBody) + Send,
    ) -> MdtResult<Answer> {
        let bits = Ibits(Ibits::XATTR.0 | Ibits::UPDATE.0);
        let now = self.now();
        let change = |t: &mut Txn<'_>| {
            let h = t.get(fid)?;
            may_lay_out(cred, t.ino(h))?;
            t.put_xattr(h, xattr::TRUSTED_DMV, value.clone());
            t.change(h).ctime = now;
            Ok(h)
        };
        if !self.shards(fid)?.is_empty() {
            return self.change_striped(fid, bits, 0, change, fill).await;
        }
        let _locks = self.ops.lock(&[], &[(*fid, bits)], self.own()).await;
        let core = self.core();
        self.is_whole(&core, fid)?;
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(fid))?;
        let h = change(&mut t)?;
        t.stamp(h);
        let mut a = self.answer(0);
        pre.tell(&mut a);
        fill(&mut a, self.pack(fid, t.ino(h)));
        self.commit(t, &mut a)?;
        Ok(a)
    }

    /// `lfs setstripe`: the default layout of a directory, or the layout of a file without one. `fill` puts how the object
    /// looks then into the answer.
    pub(super) async fn set_layout(
        &self,
        cred: &Ucred,
        fid: &Fid,
        time: Time,
        value: Option<Bytes>,
        fill: impl FnOnce(&mut Answer, MdtBody) + Send,
    ) -> MdtResult<Answer> {
        let bits = Ibits(Ibits::XATTR.0 | Ibits::UPDATE.0 | Ibits::LAYOUT.0);
        if !self.shards(fid)?.is_empty() {
            let lov = match value {
                Some(v) => stripe::directory_default(&v)?,
                None => Bytes::new(),
            };
            let change = |t: &mut Txn<'_>| {
                let h = t.get(fid)?;
                may_lay_out(cred, t.ino(h))?;
                let ino = t.change(h);
                ino.lov = lov.clone();
                ino.ctime = time;
                Ok(h)
            };
            return self.change_striped(fid, bits, 0, change, fill).await;
        }
        let _locks = self.ops.lock(&[], &[(*fid, bits)], None).await;
        let (a, file) = self.put_layout(cred, fid, time, value, fill)?;
        if file {
            self.layout_made().await?;
        }
        Ok(a)
    }

    /// A layout made by another request than an open is on disk before its client is told: the replay of such a request does
    /// not say which objects the file got, and the client may have written to them by then.
    pub(in crate::mdt) async fn layout_made(&self) -> MdtResult<()> {
        Ok(self.rq.target.sync().await?)
    }

    /// The transaction of [`Ctx::set_layout`]; true: of a file.
    fn put_layout(
        &self,
        cred: &Ucred,
        fid: &Fid,
        time: Time,
        value: Option<Bytes>,
        fill: impl FnOnce(&mut Answer, MdtBody),
    ) -> MdtResult<(Answer, bool)> {
        let mut core = self.core();
        let ino = core.store.inode(fid)?;
        let file = ino.is_reg();
        if ino.is_dir() {
            may_lay_out(cred, &ino)?;
            self.is_whole(&core, fid)?;
        } else if !cred.owns(&ino) && !cred.has(cap::SYS_ADMIN) {
            core.store.permit(cred, fid, &ino, MAY_WRITE)?;
        }
        let lov = match (ino.is_dir(), value) {
            (true, Some(v)) => stripe::directory_default(&v)?,
            (true, None) => Bytes::new(),
            (false, _) if !ino.is_reg() => return Err(Errno::EOPNOTSUPP.into()),
            (false, None) => return Err(Errno::EOPNOTSUPP.into()),
            // a copied attribute (cp -a, tar) of a file that has its layout already
            (false, Some(_)) if !ino.lov.is_empty() => return Err(Errno::EEXIST.into()),
            (false, Some(v)) => {
                let wanted = stripe::request_of(&v)?;
                let (mut alloc, store) = core.allocator();
                alloc.layout(store, fid, Some(&wanted))?
            }
        };
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(fid))?;
        let h = t.get(fid)?;
        t.stamp(h);
        let ino = t.change(h);
        ino.lov = lov;
        ino.ctime = time;
        let mut a = self.answer(0);
        pre.tell(&mut a);
        fill(&mut a, self.pack(fid, t.ino(h)));
        self.commit(t, &mut a)?;
        Ok((a, file))
    }
}

/// The default layout of `parent`, else the root's.
pub(in crate::mdt) fn inherited_layout(
    t: &mut Txn<'_>,
    parent: Option<&Fid>,
) -> MdtResult<Option<Bytes>> {
    for dir in parent.into_iter().chain([&Fid::ROOT]) {
        let found = t.find(dir)?.map(|h| t.ino(h).lov.clone());
        if let Some(lov) = found.filter(|lov| !lov.is_empty()) {
            return Ok(Some(lov));
        }
    }
    Ok(None)
}
