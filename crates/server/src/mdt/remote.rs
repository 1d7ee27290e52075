//! Directories whose name lies on another MDT than they do (`lustre/mdt/mdt_reint.c`, `lustre/mdd/mdd_dir.c`).
//!
//! A client sends what makes or removes such a directory to the MDT where the directory lies, which coordinates
//! ([`super::trans`]): it knows whether it is empty, open, and whose it is. The name is the other MDT's part.

use bytes::Bytes;
use coral_wire::coral::updates::Look;
use coral_wire::fld::LuSeqRange;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{MdtBody, MdtRecReint, RecCreate, RecUnlink, md};
use coral_wire::{Errno, Fid};

use super::ctx::{Answer, Ctx};
use super::handler::MdtOps;
use super::namespace::{self, At, NewObject};
use super::store::{MdtResult, Store};
use super::trans::{Need, Op};

/// Bits of a directory that loses its name.
const GOES: u64 = Ibits::LOOKUP.0 | Ibits::UPDATE.0;

impl MdtOps {
    /// Which MDT holds that sequence; EIO when nobody does.
    pub(super) async fn range_of(&self, seq: u64) -> MdtResult<LuSeqRange> {
        let store = self.core.lock().store.clone();
        if let Some(range) = store.fld().range_of(seq) {
            return Ok(range);
        }
        if self.mdts.index() == 0 {
            return Err(Errno::ENOENT.into());
        }
        let range = self.mdts.locate(seq).await?;
        store.fld().heard(&range);
        Ok(range)
    }

    /// The MDT on which an object lies.
    async fn home(&self, fid: &Fid) -> MdtResult<u32> {
        Ok(self.range_of(fid.seq).await?.index)
    }
}

/// The body that says that an object is on another MDT, and no more.
pub(super) fn elsewhere(fid: Fid) -> MdtBody {
    MdtBody {
        fid1: fid,
        valid: md::FLID | md::MDS,
        ..MdtBody::default()
    }
}

impl Ctx {
    /// Whether the object lies here.
    pub(super) fn is_here(&self, fid: &Fid) -> bool {
        self.core().store.is_here(fid)
    }

    /// EXDEV unless all of these lie here: what is not built goes round this as it goes round file systems.
    pub(super) fn all_here<'a>(&self, fids: impl IntoIterator<Item = &'a Fid>) -> MdtResult<()> {
        let store: Store = self.core().store.clone();
        match fids.into_iter().all(|f| store.is_here(f)) {
            true => Ok(()),
            false => Err(Errno::EXDEV.into()),
        }
    }

    /// Makes a directory here whose name lies on another MDT.
    pub(super) async fn create_away(
        &self,
        head: &MdtRecReint,
        r: &RecCreate,
        mut new: NewObject,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let mut cred = self.cred(head);
        cred.umask = r.umask;
        let name = Bytes::copy_from_slice(self.name(3));
        namespace::check_name(&name)?;
        let at = At {
            parent: r.fid1,
            name: &name,
        };
        let mdt = self.ops.home(&at.parent).await?;
        let need = Need {
            fid: at.parent,
            mdt,
            bits: Ibits::UPDATE.0,
        };
        let look = Look {
            dir: at.parent,
            name: name.clone(),
        };
        let mut op = Op::begin(&self.ops);
        op.lock(vec![need], &[look]).await?;
        let parent = op.away(&at.parent).ok_or(Errno::ENOENT)?;
        // It inherits its parent's default layout, also that of the root, which this MDT does not know later.
        new.lov = parent.ino.lov.clone();
        let updates = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            namespace::create(&mut t, &cred, at, &new)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        let a = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            let h = namespace::create(&mut t, &cred, at, &new)?;
            same(&updates, &t.updates())?;
            let mut a = self.answer(0);
            a.msg.push(&self.pack(&new.fid, t.ino(h)));
            self.push_parents(&mut a, [None, None]);
            op.decide(self, t, &mut a)?;
            a
        };
        op.finish(self).await?;
        Ok(a)
    }

    /// Removes a directory that lies here and whose name lies on another MDT.
    pub(super) async fn unlink_away(
        &self,
        head: &MdtRecReint,
        r: &RecUnlink,
        rmdir: bool,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let cred = self.cred(head);
        let name = Bytes::copy_from_slice(self.name(3));
        let at = At {
            parent: r.fid1,
            name: &name,
        };
        let child = r.fid2;
        if !self.is_here(&child) {
            return Err(Errno::EREMOTE.into());
        }
        let (mdt, here) = (self.ops.home(&at.parent).await?, self.ops.mdts.index());
        let need = |fid, mdt, bits| Need { fid, mdt, bits };
        let needs = vec![
            need(at.parent, mdt, Ibits::UPDATE.0),
            need(child, here, GOES),
            need(child, mdt, Ibits::LOOKUP.0),
        ];
        let look = Look {
            dir: at.parent,
            name: name.clone(),
        };
        let mut op = Op::begin(&self.ops);
        op.lock(needs, &[look]).await?;
        let parent = op.away(&at.parent).ok_or(Errno::ENOENT)?;
        // the name was another's before this came
        match parent.names.first().and_then(|(_, found)| *found) {
            Some(found) if found == child => {}
            Some(_) => return Err(Errno::ESTALE.into()),
            None => return Err(Errno::ENOENT.into()),
        }
        let time = self.time(r.time);
        let updates = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            let is_open = |f: &Fid| core.opens.is_open(f);
            namespace::unlink(&mut t, &cred, at, rmdir, &is_open, time)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        let a = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            let is_open = |f: &Fid| core.opens.is_open(f);
            let gone = namespace::unlink(&mut t, &cred, at, rmdir, &is_open, time)?;
            same(&updates, &t.updates())?;
            let mut a = self.answer(0);
            self.push_unlinked(&mut a, Some(&gone));
            self.push_parents(&mut a, [None, None]);
            op.decide(self, t, &mut a)?;
            a
        };
        op.finish(self).await?;
        Ok(a)
    }

    /// What was answered is on disk, so that nothing is left to be replayed.
    fn refuse_replay(&self) -> MdtResult<()> {
        match self.rq.is_replay() {
            true => Err(Errno::EOVERFLOW.into()),
            false => Ok(()),
        }
    }
}

/// What was prepared is what is decided: all of it was locked in between.
fn same<T: PartialEq>(prepared: &T, decided: &T) -> MdtResult<()> {
    match prepared == decided {
        true => Ok(()),
        false => Err(Errno::EAGAIN.into()),
    }
}
