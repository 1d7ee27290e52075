//! Objects whose names lie on other MDTs than they do (`lustre/mdt/mdt_reint.c`, `lustre/mdd/mdd_dir.c`).
//!
//! A client sends what makes or removes such a directory to the MDT where the directory lies, which coordinates
//! ([`super::trans`]): it knows whether it is empty, open, and whose it is. The name is the other MDT's part. Renames go to the MDT
//! of what is replaced, else to that of the new directory, and links to that of the directory.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::coral::updates::Look;
use coral_wire::fld::LuSeqRange;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{MdtBody, MdtRecReint, RecCreate, RecUnlink, md};
use coral_wire::{Errno, Fid};

use super::core::MdtCore;
use super::cred::Ucred;
use super::ctx::{Answer, Ctx};
use super::handler::MdtOps;
use super::namespace::{self, At, NewObject, RenameMode, Unlinked};
use super::store::{MdtError, MdtResult, Store, Txn};
use super::trans::{Need, Op};

/// Times an operation starts over because the names have changed before it had its locks.
const RETRIES: usize = 16;

/// A name in a directory.
type Name = (Fid, Bytes);

/// Bits of an object that loses a name.
const GOES: u64 = Ibits::LOOKUP.0 | Ibits::UPDATE.0;

impl MdtOps {
    /// Which MDT holds that sequence; EIO when nobody does.
    pub(super) async fn range_of(&self, seq: u64) -> MdtResult<LuSeqRange> {
        let store = self.core.read().store.clone();
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
    pub(super) async fn home(&self, fid: &Fid) -> MdtResult<u32> {
        Ok(self.range_of(fid.seq).await?.index)
    }
}

/// Locks of an operation, one of an object on each MDT.
#[derive(Default)]
struct Needs(BTreeMap<(Fid, u32), u64>);

impl Needs {
    fn add(&mut self, fid: Fid, mdt: u32, bits: u64) {
        *self.0.entry((fid, mdt)).or_default() |= bits;
    }

    fn list(self) -> Vec<Need> {
        let need = |((fid, mdt), bits)| Need { fid, mdt, bits };
        self.0.into_iter().map(need).collect()
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
        self.reading().store.is_here(fid)
    }

    /// Whether all of these lie here.
    pub(super) fn all_here<'a>(&self, fids: impl IntoIterator<Item = &'a Fid>) -> bool {
        let store: Store = self.reading().store.clone();
        fids.into_iter().all(|f| store.is_here(f))
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

    /// Moves names over MDTs. Directories stay in their directory: only then it is known without others that none comes to be
    /// below itself.
    pub(super) async fn rename_away(
        &self,
        cred: &Ucred,
        src: Name,
        dst: Name,
        mode: RenameMode,
        time: Time,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let (src_mdt, dst_mdt) = (self.ops.home(&src.0).await?, self.ops.home(&dst.0).await?);
        for _ in 0..RETRIES {
            let mut op = Op::begin(&self.ops);
            let child = op.look(src.0, &src.1).await?;
            let target = op.look(dst.0, &dst.1).await?;
            let mut needs = Needs::default();
            needs.add(src.0, src_mdt, Ibits::UPDATE.0);
            needs.add(dst.0, dst_mdt, Ibits::UPDATE.0);
            for (fid, named) in [(child, src_mdt), (target, dst_mdt)] {
                let Some(fid) = fid else { continue };
                needs.add(fid, self.ops.home(&fid).await?, GOES);
                needs.add(fid, named, Ibits::LOOKUP.0);
            }
            let looks = [&src, &dst].map(|(dir, name)| Look {
                dir: *dir,
                name: name.clone(),
            });
            op.lock(needs.list(), &looks).await?;
            for fid in [child, target].into_iter().flatten() {
                if src.0 != dst.0 && op.is_dir(&fid)? {
                    return Err(Errno::EXDEV.into());
                }
            }
            let rename = Rename {
                names: [&src, &dst],
                was: (child, target),
                mode,
                time,
            };
            match self.rename_locked(op, cred, &rename).await {
                Err(MdtError::Errno(Errno::EAGAIN)) => continue,
                done => return done,
            }
        }
        Err(Errno::EAGAIN.into())
    }

    /// The rename, when all of it is locked. EAGAIN: the names have changed before that.
    async fn rename_locked(
        &self,
        mut op: Op,
        cred: &Ucred,
        rename: &Rename<'_>,
    ) -> MdtResult<Answer> {
        let updates = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            rename.run(&core, &mut t, cred)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        let a = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            let gone = rename.run(&core, &mut t, cred)?;
            same(&updates, &t.updates())?;
            let mut a = self.answer(0);
            self.push_unlinked(&mut a, gone.as_ref());
            self.push_parents(&mut a, [None, None]);
            op.decide(self, t, &mut a)?;
            a
        };
        op.finish(self).await?;
        Ok(a)
    }

    /// Gives a file another name, where the two do not lie on one MDT.
    pub(super) async fn link_away(
        &self,
        cred: &Ucred,
        fid: Fid,
        parent: Fid,
        name: Bytes,
        time: Time,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let at = At {
            parent,
            name: &name,
        };
        let mut needs = Needs::default();
        needs.add(parent, self.ops.home(&parent).await?, Ibits::UPDATE.0);
        needs.add(fid, self.ops.home(&fid).await?, Ibits::UPDATE.0);
        let look = Look {
            dir: parent,
            name: name.clone(),
        };
        let mut op = Op::begin(&self.ops);
        op.lock(needs.list(), &[look]).await?;
        let link = |t: &mut Txn<'_>| {
            if self.view.guards_links() {
                namespace::may_link(t, cred, &fid)?;
            }
            namespace::link(t, cred, &fid, at, time)
        };
        let updates = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            link(&mut t)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        let a = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            let h = link(&mut t)?;
            same(&updates, &t.updates())?;
            let mut a = self.answer(0);
            let body = self.pack(&fid, t.ino(h));
            a.msg
                .push(&if self.coral { body } else { MdtBody::default() });
            if self.coral {
                self.push_parents(&mut a, [None, None]);
            }
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

/// A rename of which all is locked.
struct Rename<'a> {
    /// From, and to.
    names: [&'a Name; 2],
    /// What the names stood for when it was found out what to lock.
    was: (Option<Fid>, Option<Fid>),
    mode: RenameMode,
    time: Time,
}

impl Rename<'_> {
    fn run(&self, core: &MdtCore, t: &mut Txn<'_>, cred: &Ucred) -> MdtResult<Option<Unlinked>> {
        let [src, dst] = self.names.map(|(parent, name)| At {
            parent: *parent,
            name,
        });
        let is = (
            t.lookup(&src.parent, src.name)?,
            t.lookup(&dst.parent, dst.name)?,
        );
        if is != self.was {
            return Err(Errno::EAGAIN.into());
        }
        let child = self.was.0.ok_or(Errno::ENOENT)?;
        let (dir, h) = (t.get(&dst.parent)?, t.get(&child)?);
        // its OSTs would have to be told by the MDT where it lies
        if namespace::other_project(t.ino(dir), t.ino(h)).is_some() {
            return Err(Errno::EXDEV.into());
        }
        let is_open = |f: &Fid| core.opens.is_open(f);
        namespace::rename(t, cred, src, dst, self.mode, &is_open, self.time)
    }
}

/// What was prepared is what is decided: all of it was locked in between.
fn same<T: PartialEq>(prepared: &T, decided: &T) -> MdtResult<()> {
    match prepared == decided {
        true => Ok(()),
        false => Err(Errno::EAGAIN.into()),
    }
}
