//! MDS_REINT: everything that changes the name space or attributes (`lustre/mdt/mdt_reint.c`).
//!
//! Each operation: early cancels, server locks, then under the core's lock the transaction and
//! its commit, then the reply. What was looked up to know what to lock is seen to be so still under
//! the lock; if it changed meanwhile, the operation starts over.

mod layout;
pub(super) mod migrate;
mod over;
mod restripe;
pub(super) mod setattr;

use bytes::Bytes;
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{MdtBody, MdtRecReint, Rec, RecCreate, RecLink, RecRename, RecUnlink};
use coral_wire::{Errno, Fid, coral};

pub(super) use self::layout::inherited_layout;
use super::core::MdtCore;
use super::cred::cap;
use super::ctx::{Answer, Ctx};
use super::dom;
use super::namespace::{self, At, NewObject, RenameMode, Unlinked};
use super::record::{Inode, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use super::remote::Name;
use super::store::{MdtError, MdtResult, Store, Txn};
use super::striped;

/// Times an operation starts over because what it looked up changed meanwhile.
const RETRIES: usize = 64;

/// Bits of an object that loses a name.
pub(super) const NAME_BITS: Ibits = Ibits(Ibits::LOOKUP.0 | Ibits::UPDATE.0);

/// Body of a reply about attributes, and the fields behind it, which stay empty.
pub(super) fn push_attributes(a: &mut Answer, body: &MdtBody) {
    a.msg
        .push(body)
        .push_empty()
        .push_empty()
        .push_empty()
        .push_empty();
}

/// Body, MDT_MD and LOGCOOKIES of a reply about an object that lost a name.
pub(super) fn push_unlinked(a: &mut Answer, body: &MdtBody) {
    a.msg.push(body).push_empty().push_empty();
}

impl Ctx {
    /// Serves a reint request.
    pub async fn reint(&self) -> MdtResult<Answer> {
        let buf = self.buf(1);
        let head: MdtRecReint = self.rq.rq.msg.get(1)?;
        let rec = Rec::decode(buf)?;
        if self.rq.replay_committed() {
            match &rec {
                Rec::Setattr(r) => Box::pin(self.data_times_again(r)).await?,
                Rec::Unlink(r) if self.is_late(r.bias) => self.lent_again()?,
                // its open was replayed before it
                Rec::Unlink(r) => {
                    let core = &mut *self.core();
                    let given_up = self.given_up(core, r.close, Some(r.fid2));
                    given_up.map(|cookie| core.opens.remove(cookie, self.exp()));
                }
                _ => {}
            }
            return Ok(self.empty_reint());
        }
        match rec {
            Rec::Setattr(r) => self.setattr(&head, &r).await,
            Rec::Create(r) => self.create(&head, &r).await,
            Rec::Link(r) => self.link(&head, &r).await,
            Rec::Unlink(r) if r.bias & coral::LENT != 0 && !self.coral => Err(Errno::EPROTO.into()),
            Rec::Unlink(r) if self.is_late(r.bias) => self.unlink_lent(&head, &r).await,
            Rec::Unlink(r) => self.unlink(&head, &r).await,
            Rec::Rename(r) => self.rename(&head, &r).await,
            Rec::Setxattr(r) => self.setxattr(&head, &r).await,
            Rec::Open(_) => self.reint_open().await,
            Rec::Migrate(r) => Box::pin(self.migrate(&head, &r)).await,
            Rec::Rmentry(_) | Rec::Resync(_) => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// Reply to a replay of what is on disk already.
    fn empty_reint(&self) -> Answer {
        let mut a = self.answer(0);
        push_attributes(&mut a, &MdtBody::default());
        a
    }

    async fn create(&self, head: &MdtRecReint, r: &RecCreate) -> MdtResult<Answer> {
        self.cancel_early(5);
        let mut cred = self.cred(head);
        cred.umask = r.umask;
        let kind = r.mode & S_IFMT;
        let mut new = NewObject {
            fid: r.fid2,
            mode: r.mode,
            rdev: r.rdev as u32,
            time: self.time(r.time),
            ..NewObject::default()
        };
        match kind {
            S_IFLNK => {
                new.symlink = Bytes::copy_from_slice(self.name(4));
                if new.symlink.is_empty() {
                    return Err(Errno::ENOENT.into());
                }
                if new.symlink.len() > 4095 {
                    return Err(Errno::ENAMETOOLONG.into());
                }
                new.mode |= 0o777;
            }
            S_IFDIR | S_IFREG | 0o010000 | 0o140000 => (),
            0o020000 | 0o060000 if cred.has(cap::MKNOD) => (),
            0o020000 | 0o060000 => return Err(Errno::EPERM.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let at = At {
            parent: r.fid1,
            name: self.name(3),
            layout: self.layout(r.layout_ver),
        };
        let plan = match kind {
            S_IFDIR => self.plan()?,
            _ => None,
        };
        if kind == S_IFDIR {
            new.dmv = self.own_default(r);
        }
        let here = self.is_here(&at.parent);
        if kind == S_IFDIR
            && let Some(lum) = self.may_restripe(r)
            && let Some(a) = Box::pin(self.restripe(head, r, &lum)).await?
        {
            return Ok(a);
        }
        if !here && kind != S_IFDIR {
            // only directories may lie on another MDT than their name
            return Err(Errno::EREMOTE.into());
        }
        if !here || plan.is_some() {
            return Box::pin(self.create_over(head, r, new, plan)).await;
        }
        let _locks = self.ops.lock(&[at.parent], &[], self.own()).await;
        let early = self.ahead(|t| {
            t.find(&at.parent)?;
            t.lookup(&at.parent, at.name)?;
            t.find(&new.fid).map(drop)
        });
        let core = self.core();
        let mut t = Txn::after(&core.store, early);
        // a subdirectory inherits its parent's default layout, unless that is the file system's
        if kind == S_IFDIR
            && at.parent != Fid::ROOT
            && let Some(h) = t.find(&at.parent)?
        {
            new.lov = t.ino(h).lov.clone();
        }
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(&at.parent))?;
        pre.absent(1, &mut t, |t| t.store.lookup(&at.parent, at.name))?;
        pre.absent(2, &mut t, |_| Ok(Some(new.fid)))?;
        let h = namespace::create(&mut t, &cred, at, &new)?;
        let mut a = self.answer(0);
        pre.tell(&mut a);
        a.msg.push(&self.pack(&new.fid, t.ino(h)));
        let parent = t.get(&at.parent)?;
        self.push_parents(&mut a, [Some((at.parent, t.ino(parent))), None]);
        self.commit(t, &mut a)?;
        Ok(a)
    }

    async fn link(&self, head: &MdtRecReint, r: &RecLink) -> MdtResult<Answer> {
        self.cancel_early(5);
        let cred = self.cred(head);
        let at = At {
            parent: r.fid2,
            name: self.name(4),
            layout: self.layout_of_coral(r.layout_ver),
        };
        if !self.all_here([&at.parent, &r.fid1]) {
            let (name, time) = (Name::of(at), self.time(r.time));
            return Box::pin(self.link_away(&cred, r.fid1, name, time)).await;
        }
        let _locks = self
            .ops
            .lock(&[at.parent], &[(r.fid1, Ibits::UPDATE)], self.own())
            .await;
        let core = self.core();
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(&at.parent))?;
        pre.object(1, &mut t, Some(&r.fid1))?;
        pre.absent(2, &mut t, |t| t.store.lookup(&at.parent, at.name))?;
        if self.view.guards_links() {
            namespace::may_link(&mut t, &cred, &r.fid1)?;
        }
        let h = namespace::link(&mut t, &cred, &r.fid1, at, self.time(r.time))?;
        t.stamp(h);
        let mut a = self.answer(0);
        pre.tell(&mut a);
        a.msg.push(&if self.coral {
            self.pack(&r.fid1, t.ino(h))
        } else {
            Default::default()
        });
        if self.coral {
            let parent = t.get(&at.parent)?;
            self.push_parents(&mut a, [Some((at.parent, t.ino(parent))), None]);
        }
        self.commit(t, &mut a)?;
        Ok(a)
    }

    async fn unlink(&self, head: &MdtRecReint, r: &RecUnlink) -> MdtResult<Answer> {
        self.cancel_early(4);
        let cred = self.cred(head);
        let at = At {
            parent: r.fid1,
            name: self.name(3),
            layout: 0,
        };
        let rmdir = r.mode & S_IFMT == S_IFDIR;
        if !self.is_here(&at.parent) {
            return Box::pin(self.unlink_over(head, r, r.fid2, rmdir)).await;
        }
        for _ in 0..RETRIES {
            let dots = matches!(at.name, b"." | b"..");
            // whether the directory is the one of then is seen first
            let look = |t: &mut Txn<'_>| match self.rq.is_replay() {
                true => t.lookup(&at.parent, at.name),
                false => namespace::lookup(t, &cred, at),
            };
            let mut found = None;
            let early = self.ahead(|t| {
                if dots {
                    return t.find(&at.parent).map(drop);
                }
                let child = look(t)?;
                found = Some(child);
                child.map_or(Ok(()), |c| t.find(&c).map(drop))
            });
            let child = match found {
                Some(child) => child,
                None if dots => None,
                None => look(&mut Txn::new(&self.reading().store))?,
            };
            if let Some(dir) = child.filter(|_| rmdir)
                && !self.shards(&dir)?.is_empty()
            {
                match Box::pin(self.unlink_over(head, r, dir, rmdir)).await {
                    Err(MdtError::Errno(Errno::ESTALE)) => continue,
                    done => return done,
                }
            }
            // not waited for with the directory's lock in hand
            self.ops.out.settled(child.as_slice()).await?;
            let objects: Vec<_> = child.map(|c| (c, NAME_BITS)).into_iter().collect();
            let _locks = self.ops.lock(&[at.parent], &objects, self.own()).await;
            let mut guard = self.core();
            let core = &mut *guard;
            let mut t = Txn::after(&core.store, early);
            if t.lookup(&at.parent, at.name)? != child {
                continue;
            }
            if let Some(away) = child.filter(|c| !core.store.is_here(c)) {
                // whoever has its LOOKUP lock has lost it: the MDT where it lies is asked next
                return Ok(self.child_elsewhere(away));
            }
            let mut pre = self.pre_versions();
            pre.object(0, &mut t, Some(&at.parent))?;
            pre.object(1, &mut t, child.as_ref())?;
            pre.same(&r.fid2, child.as_ref())?;
            let given_up = self.given_up(core, r.close, child);
            let own = given_up.map(|cookie| (cookie, self.exp()));
            let gone = namespace::unlink(
                &mut t,
                &cred,
                at,
                rmdir,
                &|f| core.opens.is_open_but(f, own),
                self.time(r.time),
            )?;
            let mut a = self.answer(0);
            pre.tell(&mut a);
            let mut body = self.unlinked(Some(&gone));
            body.open_handle = given_up.map_or(0, |_| r.close);
            push_unlinked(&mut a, &body);
            let parent = t.get(&at.parent)?;
            self.push_parents(&mut a, [Some((at.parent, t.ino(parent))), None]);
            self.commit(t, &mut a)?;
            if let Some(cookie) = given_up {
                core.opens.remove(cookie, self.exp());
            }
            return Ok(a);
        }
        Err(Errno::EAGAIN.into())
    }

    /// The open that the client closes with its removal of `child`: `handle`, or what became of it by a replay.
    pub(super) fn given_up(&self, core: &MdtCore, handle: u64, child: Option<Fid>) -> Option<u64> {
        let cookie = core
            .opens
            .current(handle, self.exp())
            .filter(|_| self.coral)?;
        let open = core.opens.get(cookie, self.exp())?;
        (!open.leases() && Some(open.fid) == child).then_some(cookie)
    }

    /// The client is to send its removal to the MDT where the child lies.
    fn child_elsewhere(&self, child: Fid) -> Answer {
        let mut a = self.answer(Errno::EREMOTE.status());
        a.msg
            .push(&super::remote::elsewhere(child))
            .push_empty()
            .push_empty();
        self.push_parents(&mut a, [None, None]);
        a
    }

    /// Body of a reply about an object that lost a name.
    pub(super) fn unlinked(&self, gone: Option<&Unlinked>) -> MdtBody {
        gone.map(|g| self.pack(&g.fid, &g.ino)).unwrap_or_default()
    }

    /// What lost a name in a rename, and for Coral's clients what got another one: `child`, and `other` in an exchange.
    fn renamed(
        &self,
        t: &mut Txn<'_>,
        gone: Option<&Unlinked>,
        child: Option<Fid>,
        other: Option<Fid>,
    ) -> MdtResult<MdtBody> {
        let mut body = match other.filter(|_| self.coral) {
            Some(other) => {
                let h = t.get(&other)?;
                self.pack(&other, t.ino(h))
            }
            None => self.unlinked(gone),
        };
        body.fid2 = child.filter(|_| self.coral).unwrap_or_default();
        Ok(body)
    }

    fn rename_mode(&self, r: &RecRename) -> Result<RenameMode, Errno> {
        match r.padding_5 {
            _ if !self.coral => Ok(RenameMode::Replace),
            0 => Ok(RenameMode::Replace),
            coral::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
            coral::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
            _ => Err(Errno::EINVAL),
        }
    }

    async fn rename(&self, head: &MdtRecReint, r: &RecRename) -> MdtResult<Answer> {
        self.cancel_early(6);
        let cred = self.cred(head);
        let src = At {
            parent: r.fid1,
            name: self.name(4),
            layout: 0,
        };
        let dst = At {
            parent: r.fid2,
            name: self.name(5),
            layout: self.layout_of_coral(r.layout_ver),
        };
        let mode = self.rename_mode(r)?;
        let look = |store: &Store, at: At<'_>| -> MdtResult<Option<Fid>> {
            store.lookup(&at.parent, at.name)
        };
        let named = || -> MdtResult<(Option<Fid>, Option<Fid>)> {
            let core = self.reading();
            Ok((look(&core.store, src)?, look(&core.store, dst)?))
        };
        // not waited for with a lock in hand
        let (child, target) = named()?;
        let both: Vec<_> = child.into_iter().chain(target).collect();
        self.ops.out.settled(&both).await?;
        // two renames of directories could make a loop that neither sees alone
        let serial = if src.parent != dst.parent {
            Some(self.ops.rename_lock.lock().await)
        } else {
            None
        };
        for _ in 0..RETRIES {
            let (child, target) = named()?;
            if self.renames_over([src.parent, dst.parent], [child, target])? {
                drop(serial);
                let (src, dst, time) = (Name::of(src), Name::of(dst), self.time(r.time));
                return Box::pin(self.rename_over(&cred, src, dst, mode, time)).await;
            }
            let objects: Vec<_> = child
                .into_iter()
                .chain(target.filter(|t| Some(*t) != child))
                .map(|f| (f, NAME_BITS))
                .collect();
            let _locks = self
                .ops
                .lock(&[src.parent, dst.parent], &objects, self.own())
                .await;
            let core = self.core();
            if (look(&core.store, src)?, look(&core.store, dst)?) != (child, target) {
                continue;
            }
            let mut t = Txn::new(&core.store);
            let mut pre = self.pre_versions();
            for (i, fid) in [Some(src.parent), Some(dst.parent), child, target]
                .iter()
                .enumerate()
            {
                pre.object(i, &mut t, fid.as_ref())?;
            }
            let gone = namespace::rename(
                &mut t,
                &cred,
                src,
                dst,
                mode,
                &|f| core.opens.is_open(f),
                self.time(r.time),
            )?;
            for moved in [child, target.filter(|_| mode == RenameMode::Exchange)]
                .into_iter()
                .flatten()
            {
                let h = t.get(&moved)?;
                t.stamp(h);
            }
            let mut a = self.answer(0);
            pre.tell(&mut a);
            let other = target.filter(|_| mode == RenameMode::Exchange);
            push_unlinked(&mut a, &self.renamed(&mut t, gone.as_ref(), child, other)?);
            let (p1, p2) = (t.get(&src.parent)?, t.get(&dst.parent)?);
            // two names of one object stay, and what the directories look like now is by others' changes
            let changed = target != child;
            let other = (changed && src.parent != dst.parent).then(|| (dst.parent, t.ino(p2)));
            let first = changed.then(|| (src.parent, t.ino(p1)));
            self.push_parents(&mut a, [first, other]);
            let mut data = Vec::new();
            for (fid, _) in &objects {
                if Self::tell_project(&core.store, &mut t, fid)? {
                    data.push(dom::object(fid));
                }
            }
            let changing = data.into_iter().map(|id| self.ops.data.changing_owner(id));
            let _changing = changing.collect::<Result<Vec<_>, _>>()?;
            self.commit(t, &mut a)?;
            drop(core);
            return Ok(a);
        }
        Err(Errno::EAGAIN.into())
    }

    /// Whether a rename is about several MDTs: something lies on another one, or is in shards, or a directory moves to another,
    /// whose ancestors may lie anywhere.
    fn renames_over(&self, dirs: [Fid; 2], fids: [Option<Fid>; 2]) -> MdtResult<bool> {
        if !self.ops.mdts.several() {
            return Ok(false);
        }
        let moves = dirs[0] != dirs[1];
        let core = self.reading();
        if !dirs.iter().all(|d| core.store.is_here(d)) {
            return Ok(true);
        }
        for fid in fids.iter().flatten() {
            if !core.store.is_here(fid) {
                return Ok(true);
            }
            let Some(ino) = core.store.find(fid)?.filter(Inode::is_dir) else {
                continue;
            };
            if moves || striped::layout(&core.store, fid, &ino)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// If `t` moves the file `fid` into another project, its OSTs must be told. Returns whether data on the MDT moves with it.
    pub(super) fn tell_project(store: &Store, t: &mut Txn<'_>, fid: &Fid) -> MdtResult<bool> {
        let (Some(old), Some(h)) = (store.find(fid)?, t.find(fid)?) else {
            return Ok(false);
        };
        let moved = t.ino(h).is_reg() && t.ino(h).projid != old.projid;
        if moved {
            t.tell_owner(h);
        }
        Ok(moved && dom::is_dom(&t.ino(h).lov))
    }
}
