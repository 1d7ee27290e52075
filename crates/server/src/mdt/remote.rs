//! Objects whose names lie on other MDTs than they do (`lustre/mdt/mdt_reint.c`, `lustre/mdd/mdd_dir.c`).
//!
//! A client sends what makes or removes such a directory to the MDT where the directory lies, which coordinates
//! ([`super::trans`]): it knows whether it is empty, open, and whose it is. The name is the other MDT's part. Renames go to the MDT
//! of what is replaced, else to that of the new directory, and links to that of the directory.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::coral::updates::{Look, Stamp, Update};
use coral_wire::fld::LuSeqRange;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{MdtBody, MdtRecReint, RecUnlink, md};
use coral_wire::{Errno, Fid};

use super::core::MdtCore;
use super::cred::Ucred;
use super::ctx::{Answer, Ctx};
use super::dom;
use super::handler::MdtOps;
use super::namespace::{self, At, RenameMode, Unlinked};
use super::record::Inode;
use super::reint::push_unlinked;
use super::store::{MdtError, MdtResult, Txn};
use super::trans::{Need, Op};

/// Times an operation starts over because the names have changed before it had its locks.
pub(super) const RETRIES: usize = 16;

/// A name in a directory.
#[derive(Clone, Debug)]
pub(super) struct Name {
    dir: Fid,
    name: Bytes,
    /// See [`At::layout`].
    layout: u32,
}

impl Name {
    /// It, to be kept.
    pub fn of(at: At<'_>) -> Self {
        Self {
            dir: at.parent,
            name: Bytes::copy_from_slice(at.name),
            layout: at.layout,
        }
    }

    fn at(&self) -> At<'_> {
        At {
            parent: self.dir,
            name: &self.name,
            layout: self.layout,
        }
    }

    fn look(&self) -> Look {
        Look {
            dir: self.dir,
            name: self.name.clone(),
        }
    }
}

/// The lock of who moves directories, the only one of the file system: the first of all in the order of locks.
pub(super) const RENAMES: Need = Need {
    fid: Fid::BFL,
    mdt: 0,
    bits: Ibits::UPDATE.0,
};

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
pub(super) struct Needs(BTreeMap<(Fid, u32), u64>);

impl Needs {
    pub(super) fn add(&mut self, fid: Fid, mdt: u32, bits: u64) {
        *self.0.entry((fid, mdt)).or_default() |= bits;
    }

    pub(super) fn list(self) -> Vec<Need> {
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
        self.ops.fld.is_here(fid)
    }

    /// Whether all of these lie here.
    pub(super) fn all_here<'a>(&self, fids: impl IntoIterator<Item = &'a Fid>) -> bool {
        fids.into_iter().all(|f| self.is_here(f))
    }

    /// Removes the directory `child`, which lies here, and whose name or shards lie on other MDTs.
    pub(super) async fn unlink_over(
        &self,
        head: &MdtRecReint,
        r: &RecUnlink,
        child: Fid,
        rmdir: bool,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let cred = self.cred(head);
        let name = Bytes::copy_from_slice(self.name(3));
        let at = At {
            parent: r.fid1,
            name: &name,
            layout: 0,
        };
        if !self.is_here(&child) {
            return Err(Errno::EREMOTE.into());
        }
        let (mdt, here) = (self.ops.home(&at.parent).await?, self.ops.mdts.index());
        let mut needs = Needs::default();
        needs.add(at.parent, mdt, Ibits::UPDATE.0);
        needs.add(child, here, GOES);
        needs.add(child, mdt, Ibits::LOOKUP.0);
        // shards are those of the directory for as long as it is there
        for shard in self.shards(&child)? {
            needs.add(shard, self.ops.home(&shard).await?, GOES);
        }
        let look = Look {
            dir: at.parent,
            name: name.clone(),
        };
        let mut op = Op::begin(&self.ops);
        op.lock(needs.list(), &[look]).await?;
        let time = self.time(r.time);
        let unlink = |core: &MdtCore, t: &mut Txn<'_>| {
            t.get(&at.parent)?;
            // the name was another's before this came
            match t.lookup(&at.parent, at.name)? {
                Some(found) if found == child => {}
                Some(_) => return Err(Errno::ESTALE.into()),
                None => return Err(Errno::ENOENT.into()),
            }
            namespace::unlink(t, &cred, at, rmdir, &|f| core.opens.is_open(f), time)
        };
        let updates = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            unlink(&core, &mut t)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        let a = {
            let core = self.core();
            let mut t = op.txn(&core.store);
            let gone = unlink(&core, &mut t)?;
            same(&updates, &t.updates())?;
            let mut a = self.answer(0);
            push_unlinked(&mut a, &self.unlinked(Some(&gone)));
            self.push_parents(&mut a, [None, None]);
            op.decide(self, t, &mut a)?;
            a
        };
        op.finish(&self.rq.target).await?;
        Ok(a)
    }

    /// Moves names over MDTs. Who moves a directory to another one holds the lock of the file system for that: only then it is
    /// known that none comes to be below itself (`mdt_rename_lock`).
    pub(super) async fn rename_over(
        &self,
        cred: &Ucred,
        src: Name,
        dst: Name,
        mode: RenameMode,
        time: Time,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let (src_mdt, dst_mdt) = (
            self.ops.home(&src.dir).await?,
            self.ops.home(&dst.dir).await?,
        );
        let mut shards: Vec<Fid> = Vec::new();
        let mut moves = Vec::new();
        for _ in 0..RETRIES {
            let mut op = Op::begin(&self.ops);
            let mut above = Vec::new();
            if !moves.is_empty() {
                op.lock(vec![RENAMES], &[]).await?;
                for dir in [src.dir, dst.dir] {
                    above.push((dir, op.above(dir).await?));
                }
            }
            let child = op.look(src.dir, &src.name).await?;
            let target = op.look(dst.dir, &dst.name).await?;
            let mut needs = Needs::default();
            needs.add(src.dir, src_mdt, Ibits::UPDATE.0);
            needs.add(dst.dir, dst_mdt, Ibits::UPDATE.0);
            for (fid, named) in [(child, src_mdt), (target, dst_mdt)] {
                let Some(fid) = fid else { continue };
                needs.add(fid, self.ops.home(&fid).await?, GOES);
                needs.add(fid, named, Ibits::LOOKUP.0);
            }
            for shard in &shards {
                needs.add(*shard, self.ops.home(shard).await?, GOES);
            }
            let looks = [src.look(), dst.look()];
            op.lock(needs.list(), &looks).await?;
            // what is found out late is locked from the beginning
            let dirs = directories(&op, src.dir != dst.dir, [child, target])?;
            let mut parts = Vec::new();
            for fid in [child, target].into_iter().flatten() {
                parts.extend(op.shards(&fid)?);
            }
            if parts != shards || !dirs.iter().all(|d| moves.contains(d)) {
                (shards, moves) = (parts, dirs);
                continue;
            }
            let rename = Rename {
                names: [&src, &dst],
                was: (child, target),
                above: &above,
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
            let mut data = Vec::new();
            let gone = rename.run(&core, &mut t, cred)?;
            same(&updates, &t.updates())?;
            for fid in [rename.was.0, rename.was.1].into_iter().flatten() {
                if Self::tell_project(&core.store, &mut t, &fid)? {
                    data.push(dom::object(&fid));
                }
            }
            let mut a = self.answer(0);
            push_unlinked(&mut a, &self.unlinked(gone.as_ref()));
            self.push_parents(&mut a, [None, None]);
            let changing = data.iter().map(|id| self.ops.data.changing_owner(*id));
            let _changing = changing.collect::<Result<Vec<_>, _>>()?;
            op.decide(self, t, &mut a)?;
            drop(core);
            a
        };
        op.finish(&self.rq.target).await?;
        Ok(a)
    }

    /// Gives a file another name, where the two do not lie on one MDT.
    pub(super) async fn link_away(
        &self,
        cred: &Ucred,
        fid: Fid,
        name: Name,
        time: Time,
    ) -> MdtResult<Answer> {
        self.refuse_replay()?;
        let (at, parent) = (name.at(), name.dir);
        let mut needs = Needs::default();
        needs.add(parent, self.ops.home(&parent).await?, Ibits::UPDATE.0);
        needs.add(fid, self.ops.home(&fid).await?, Ibits::UPDATE.0);
        let mut op = Op::begin(&self.ops);
        op.lock(needs.list(), &[name.look()]).await?;
        let link = |t: &mut Txn<'_>| {
            if self.view.guards_links() {
                namespace::may_link(t, cred, &fid)?;
            }
            namespace::link(t, cred, &fid, at, time)
        };
        let fill = |a: &mut Answer, ino: &Inode| {
            let body = match self.coral {
                true => self.pack(&fid, ino),
                false => MdtBody::default(),
            };
            a.msg.push(&body);
            if self.coral {
                self.push_parents(a, [None, None]);
            }
        };
        self.make(op, link, fill).await
    }

    /// What was answered is on disk, so that nothing is left to be replayed.
    pub(super) fn refuse_replay(&self) -> MdtResult<()> {
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
    /// Directories above the two, if directories move.
    above: &'a [(Fid, Vec<Fid>)],
    mode: RenameMode,
    time: Time,
}

impl Rename<'_> {
    fn run(&self, core: &MdtCore, t: &mut Txn<'_>, cred: &Ucred) -> MdtResult<Option<Unlinked>> {
        let [src, dst] = self.names.map(Name::at);
        let is = (
            t.lookup(&src.parent, src.name)?,
            t.lookup(&dst.parent, dst.name)?,
        );
        if is != self.was {
            return Err(Errno::EAGAIN.into());
        }
        self.was.0.ok_or(Errno::ENOENT)?;
        for (dir, fids) in self.above {
            t.know_above(*dir, fids.clone());
        }
        if !self.above.is_empty() && core.store.fld().index() != RENAMES.mdt {
            // MDT0000 prepares only what it still has locked: the move is not decided without the lock of who moves directories
            let held = Update::Touch {
                dir: RENAMES.fid,
                nlink: 0,
                time: Stamp {
                    secs: self.time.secs,
                    nsecs: self.time.nsecs,
                },
            };
            t.add_update(RENAMES.mdt, held);
        }
        let is_open = |f: &Fid| core.opens.is_open(f);
        namespace::rename(t, cred, src, dst, self.mode, &is_open, self.time)
    }
}

/// Which of these, locked by `op`, are directories that move to another one.
fn directories(op: &Op, moves: bool, fids: [Option<Fid>; 2]) -> MdtResult<Vec<Fid>> {
    let mut dirs = Vec::new();
    for fid in fids.into_iter().flatten().filter(|_| moves) {
        match op.is_dir(&fid) {
            Ok(true) => dirs.push(fid),
            Ok(false) | Err(MdtError::Errno(Errno::ENOENT)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(dirs)
}

/// What was prepared is what is decided: all of it was locked in between.
pub(super) fn same<T: PartialEq>(prepared: &T, decided: &T) -> MdtResult<()> {
    match prepared == decided {
        true => Ok(()),
        false => Err(Errno::EAGAIN.into()),
    }
}
