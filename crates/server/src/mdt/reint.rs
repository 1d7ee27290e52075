//! MDS_REINT: everything that changes the name space or attributes (`lustre/mdt/mdt_reint.c`).
//!
//! Each operation: early cancels, server locks, then under the core's mutex the transaction and
//! its commit, then the reply. What was looked up to know what to lock is looked up again under
//! the mutex; if it changed meanwhile, the operation starts over.

use bytes::Bytes;
use coral_wire::layout::{LMV_OFFSET_DEFAULT, LmvUserMd};
use coral_wire::ldlm::Ibits;
use coral_wire::mds::{
    MdtBody, MdtIoepoch, MdtRecReint, Rec, RecCreate, RecLink, RecRename, RecSetattr, RecSetxattr,
    RecUnlink, attr as sa, bias, md, open,
};
use coral_wire::{Errno, Fid, coral};

use super::attr::{self, SetAttr};
use super::ctx::{Answer, Ctx};
use super::namespace::{self, At, NewObject, RenameMode, Unlinked};
use super::record::{Inode, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use super::store::{MdtResult, Txn};
use super::xattr::{self, SetMode};
use super::{acl, dom, stripe};
use crate::nodemap::IdType;

/// Times an operation starts over because what it looked up changed meanwhile.
const RETRIES: usize = 64;

/// Bits of an object that loses a name.
const NAME_BITS: Ibits = Ibits(Ibits::LOOKUP.0 | Ibits::UPDATE.0);

impl Ctx {
    /// Serves a reint request.
    pub async fn reint(&self) -> MdtResult<Answer> {
        let buf = self.buf(1);
        let head: MdtRecReint = self.rq.rq.msg.get(1)?;
        let rec = Rec::decode(buf)?;
        if self.rq.replay_committed() {
            if let Rec::Setattr(r) = &rec {
                self.data_times_again(r).await?;
            }
            return Ok(self.empty_reint());
        }
        match rec {
            Rec::Setattr(r) => self.setattr(&head, &r).await,
            Rec::Create(r) => self.create(&head, &r).await,
            Rec::Link(r) => self.link(&head, &r).await,
            Rec::Unlink(r) => self.unlink(&head, &r).await,
            Rec::Rename(r) => self.rename(&head, &r).await,
            Rec::Setxattr(r) => self.setxattr(&head, &r).await,
            Rec::Open(_) => self.reint_open().await,
            Rec::Rmentry(_) | Rec::Migrate(_) | Rec::Resync(_) => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// Times that were set are on disk, but perhaps not those of the file's data here.
    async fn data_times_again(&self, r: &RecSetattr) -> MdtResult<()> {
        let set = self.setattr_of(r);
        match (set.mtime.is_some() || set.atime.is_some()) && self.has_data(&r.fid)? {
            true => self.set_data_times(&r.fid, &set).await,
            false => Ok(()),
        }
    }

    /// Reply to a replay of what is on disk already.
    fn empty_reint(&self) -> Answer {
        let mut a = self.answer(0);
        a.msg
            .push(&coral_wire::mds::MdtBody::default())
            .push_empty()
            .push_empty()
            .push_empty()
            .push_empty();
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
            0o020000 | 0o060000 if cred.has(super::cred::cap::MKNOD) => (),
            0o020000 | 0o060000 => return Err(Errno::EPERM.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let at = At {
            parent: r.fid1,
            name: self.name(3),
        };
        if !self.is_here(&at.parent) {
            return match kind {
                S_IFDIR => self.create_away(head, r, new).await,
                // only directories may lie on another MDT than their name
                _ => Err(Errno::EREMOTE.into()),
            };
        }
        let _locks = self.ops.lock(&[at.parent], &[], self.own()).await;
        let core = self.core();
        let mut t = Txn::new(&core.store);
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
        };
        self.all_here([&at.parent, &r.fid1])?;
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
        };
        let rmdir = r.mode & S_IFMT == S_IFDIR;
        if !self.is_here(&at.parent) {
            return self.unlink_away(head, r, rmdir).await;
        }
        for _ in 0..RETRIES {
            let dots = matches!(at.name, b"." | b"..");
            let child = match dots {
                true => None,
                // whether the directory is the one of then is seen first
                false if self.rq.is_replay() => self.core().store.lookup(&at.parent, at.name)?,
                false => namespace::lookup(&mut Txn::new(&self.core().store), &cred, at)?,
            };
            let objects: Vec<_> = child.map(|c| (c, NAME_BITS)).into_iter().collect();
            let _locks = self.ops.lock(&[at.parent], &objects, self.own()).await;
            let core = self.core();
            let mut t = Txn::new(&core.store);
            if t.store.lookup(&at.parent, at.name)? != child {
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
            let gone = namespace::unlink(
                &mut t,
                &cred,
                at,
                rmdir,
                &|f| core.opens.is_open(f),
                self.time(r.time),
            )?;
            let mut a = self.answer(0);
            pre.tell(&mut a);
            self.push_unlinked(&mut a, Some(&gone));
            let parent = t.get(&at.parent)?;
            self.push_parents(&mut a, [Some((at.parent, t.ino(parent))), None]);
            self.commit(t, &mut a)?;
            return Ok(a);
        }
        Err(Errno::EAGAIN.into())
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

    /// Body, MDT_MD and LOGCOOKIES of a reply about an object that lost a name.
    pub(super) fn push_unlinked(&self, a: &mut Answer, gone: Option<&Unlinked>) {
        let body = gone.map(|g| self.pack(&g.fid, &g.ino)).unwrap_or_default();
        a.msg.push(&body).push_empty().push_empty();
    }

    async fn rename(&self, head: &MdtRecReint, r: &RecRename) -> MdtResult<Answer> {
        self.cancel_early(6);
        let cred = self.cred(head);
        let src = At {
            parent: r.fid1,
            name: self.name(4),
        };
        let dst = At {
            parent: r.fid2,
            name: self.name(5),
        };
        let mode = match r.padding_5 {
            _ if !self.coral => RenameMode::Replace,
            0 => RenameMode::Replace,
            coral::RENAME_NOREPLACE => RenameMode::NoReplace,
            coral::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::EINVAL.into()),
        };
        let look = |store: &super::store::Store, at: At<'_>| -> MdtResult<Option<Fid>> {
            store.lookup(&at.parent, at.name)
        };
        // two renames of directories could make a loop that neither sees alone
        let _serial = if src.parent != dst.parent {
            Some(self.ops.rename_lock.lock().await)
        } else {
            None
        };
        for _ in 0..RETRIES {
            let (child, target) = {
                let core = self.core();
                (look(&core.store, src)?, look(&core.store, dst)?)
            };
            self.all_here([src.parent, dst.parent].iter().chain(&child).chain(&target))?;
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
            self.push_unlinked(&mut a, gone.as_ref());
            let (p1, p2) = (t.get(&src.parent)?, t.get(&dst.parent)?);
            let other = (src.parent != dst.parent).then(|| (dst.parent, t.ino(p2)));
            self.push_parents(&mut a, [Some((src.parent, t.ino(p1))), other]);
            let mut data = Vec::new();
            for (fid, _) in &objects {
                if Self::tell_project(&core.store, &mut t, fid)? {
                    data.push(dom::object(fid));
                }
            }
            self.commit(t, &mut a)?;
            drop(core);
            data.into_iter()
                .for_each(|id| self.ops.data.owner_changed(id));
            return Ok(a);
        }
        Err(Errno::EAGAIN.into())
    }

    /// If `t` moves the file `fid` into another project, its OSTs must be told. Returns whether data on the MDT moves with it.
    fn tell_project(store: &super::store::Store, t: &mut Txn<'_>, fid: &Fid) -> MdtResult<bool> {
        let (Some(old), Some(h)) = (store.find(fid)?, t.find(fid)?) else {
            return Ok(false);
        };
        let moved = t.ino(h).is_reg() && t.ino(h).projid != old.projid;
        if moved {
            t.tell_owner(h);
        }
        Ok(moved && dom::is_dom(&t.ino(h).lov))
    }

    /// What a setattr record (of a setattr or a close) asks for.
    pub fn setattr_of(&self, r: &RecSetattr) -> SetAttr {
        let has = |bit: u64| r.valid & bit != 0;
        SetAttr {
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

    async fn setattr(&self, head: &MdtRecReint, r: &RecSetattr) -> MdtResult<Answer> {
        self.cancel_early(6);
        let cred = self.cred(head);
        let default = self.buf(4).clone();
        if !default.is_empty() {
            return self.set_directory_default(&cred, r, default).await;
        }
        let mut set = self.setattr_of(r);
        if let Ok(epoch) = self.rq.rq.msg.get::<MdtIoepoch>(3) {
            let core = self.core();
            let open = core
                .opens
                .current(epoch.open_handle, self.exp())
                .and_then(|c| core.opens.get(c, self.exp()));
            set.opened = open.is_some_and(|h| h.writes() && h.fid == r.fid);
        }
        if set.flags.is_some() && set.ctime.is_none() {
            // a kernel client says no time with flags
            let (secs, nsecs) = self.rq.target.node().wall_time();
            set.ctime = Some(coral_osd::Time { secs, nsecs });
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
        let times = set.mtime.is_some() || set.atime.is_some();
        let data = times && self.has_data(&r.fid)?;
        if data && set.times_given {
            bits = Ibits(bits.0 | Ibits::DOM.0);
        }
        let _locks = self
            .lock_attributes(&r.fid, bits, set.size.is_some())
            .await?;
        let (a, laid_out) = self.put_attributes(r, &cred, &set, uncap)?;
        if data {
            self.set_data_times(&r.fid, &set).await?;
        }
        if laid_out {
            self.layout_made().await?;
        }
        Ok(a)
    }

    /// The transaction of a setattr; true: it gave the file its layout. `uncap`: file capabilities end.
    fn put_attributes(
        &self,
        r: &RecSetattr,
        cred: &super::cred::Ucred,
        set: &SetAttr,
        uncap: bool,
    ) -> MdtResult<(Answer, bool)> {
        let mut core = self.core();
        if set.size.is_some() && !self.rq.is_replay() {
            core.opens.conflict(&r.fid, open::WRITE)?;
        }
        let lov = match set.size {
            Some(_) => self.missing_layout(&mut core, &r.fid)?,
            None => None,
        };
        let mut t = Txn::new(&core.store);
        // times and sizes make no version (`mdt_attr_set`)
        let versioned = set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.projid.is_some()
            || set.flags.is_some();
        let mut pre = self.pre_versions();
        if versioned {
            pre.object(0, &mut t, Some(&r.fid))?;
        }
        let h = attr::setattr(&mut t, cred, &r.fid, set)?;
        if versioned {
            t.stamp(h);
        }
        if uncap && !t.ino(h).is_dir() {
            t.put_xattr(h, xattr::CAPABILITY, None);
        }
        let laid_out = lov.is_some();
        if let Some(lov) = lov {
            t.change(h).lov = lov;
        }
        let mut a = self.answer(0);
        pre.tell(&mut a);
        a.msg
            .push(&self.pack(&r.fid, t.ino(h)))
            .push_empty()
            .push_empty()
            .push_empty()
            .push_empty();
        let chown =
            (set.uid.is_some() || set.gid.is_some() || set.projid.is_some()) && t.ino(h).is_reg();
        if chown {
            t.tell_owner(h);
        }
        let chown_data = chown && dom::is_dom(&t.ino(h).lov);
        self.commit(t, &mut a)?;
        drop(core);
        if chown_data {
            self.ops.data.owner_changed(dom::object(&r.fid));
        }
        Ok((a, laid_out))
    }

    /// Whether the object has file capabilities.
    fn has_capabilities(&self, fid: &Fid) -> MdtResult<bool> {
        Ok(self
            .core()
            .store
            .find(fid)?
            .is_some_and(|i| i.xattr(xattr::CAPABILITY).is_some()))
    }

    /// Locks `bits` of `fid`; with them the layout of a regular file that has none, if it is `sized` and so gets one. (What
    /// has a layout keeps it: it can be looked at before the lock.) On a layout the client's own locks do not stay either.
    async fn lock_attributes(
        &self,
        fid: &Fid,
        bits: Ibits,
        sized: bool,
    ) -> MdtResult<super::locks::Held> {
        let lacks = sized
            && self
                .core()
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

    /// A layout for a regular file that has none, by its directory's default; `None` if it has one.
    pub fn missing_layout(
        &self,
        core: &mut super::core::MdtCore,
        fid: &Fid,
    ) -> MdtResult<Option<Bytes>> {
        let ino = match core.store.find(fid)? {
            Some(i) if i.is_reg() && i.lov.is_empty() => i,
            _ => return Ok(None),
        };
        let wanted = self.inherited_layout(core, ino.links.first().map(|l| l.parent).as_ref())?;
        let (mut alloc, store) = core.allocator();
        Ok(Some(alloc.layout(store, fid, wanted.as_ref())?))
    }

    /// The default layout of `parent`, else the root's.
    pub fn inherited_layout(
        &self,
        core: &super::core::MdtCore,
        parent: Option<&Fid>,
    ) -> MdtResult<Option<Bytes>> {
        for dir in parent.into_iter().chain([&Fid::ROOT]) {
            if let Some(ino) = core.store.find(dir)?.filter(|i: &Inode| !i.lov.is_empty()) {
                return Ok(Some(ino.lov));
            }
        }
        Ok(None)
    }

    async fn setxattr(&self, head: &MdtRecReint, r: &RecSetxattr) -> MdtResult<Answer> {
        self.cancel_early(5);
        let cred = self.cred(head);
        let name = Bytes::copy_from_slice(self.name(3));
        let removes = r.valid & md::FLXATTRRM != 0;
        // the buffer is the value: a kernel client leaves the record's size 0 (`mdc_xattr_common`)
        let value = (!removes).then(|| self.buf(4).clone());
        if xattr::is_layout(&name) {
            let coral = self.coral;
            return self
                .set_layout(&cred, &r.fid, self.time(r.time), value, |a, body| {
                    a.msg.push(&if coral { body } else { Default::default() });
                })
                .await;
        }
        // an entry of somebody unknown here is told of, not left out
        let value = value
            .map(|v| self.view.xattr_to_fs(&name, v).ok_or(Errno::EPERM))
            .transpose()?;
        let mut bits = Ibits(Ibits::XATTR.0 | Ibits::UPDATE.0);
        if *name == *acl::ACCESS || *name == *acl::DEFAULT {
            bits = Ibits(bits.0 | Ibits::PERM.0 | Ibits::LOOKUP.0);
        }
        let _locks = self.ops.lock(&[], &[(r.fid, bits)], self.own()).await;
        let mode = match r.flags & 3 {
            1 => SetMode::Create,
            2 => SetMode::Replace,
            _ => SetMode::Any,
        };
        let core = self.core();
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(&r.fid))?;
        let h = xattr::set(&mut t, &cred, &r.fid, &name, value, mode, self.time(r.time))?;
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

    /// A setattr that carries a layout: what a directory hands down (`mdt_reint_setattr` with MA_LOV or MA_LMV). With one MDT
    /// new directories can inherit nothing but to be here.
    async fn set_directory_default(
        &self,
        cred: &super::cred::Ucred,
        r: &RecSetattr,
        value: Bytes,
    ) -> MdtResult<Answer> {
        let fill = |a: &mut Answer, body: MdtBody| {
            a.msg
                .push(&body)
                .push_empty()
                .push_empty()
                .push_empty()
                .push_empty();
        };
        let ino = self.core().store.inode(&r.fid)?;
        if !ino.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        match LmvUserMd::decode(&value) {
            Err(_) => {
                let (secs, nsecs) = self.rq.target.node().wall_time();
                self.set_layout(
                    cred,
                    &r.fid,
                    coral_osd::Time { secs, nsecs },
                    Some(value),
                    fill,
                )
                .await
            }
            Ok(l)
                if l.head.stripe_count as i32 > 1
                    || !matches!(l.head.stripe_offset, 0 | LMV_OFFSET_DEFAULT) =>
            {
                Err(Errno::EOPNOTSUPP.into())
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
        cred: &super::cred::Ucred,
        fid: &Fid,
        value: Option<Bytes>,
        fill: impl FnOnce(&mut Answer, MdtBody) + Send,
    ) -> MdtResult<Answer> {
        let bits = Ibits(Ibits::XATTR.0 | Ibits::UPDATE.0);
        let _locks = self.ops.lock(&[], &[(*fid, bits)], self.own()).await;
        let core = self.core();
        let ino = core.store.inode(fid)?;
        if !cred.owns(&ino) && !cred.has(super::cred::cap::SYS_ADMIN) {
            core.store.permit(cred, fid, &ino, super::cred::MAY_WRITE)?;
        }
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        pre.object(0, &mut t, Some(fid))?;
        let h = t.get(fid)?;
        t.put_xattr(h, xattr::TRUSTED_DMV, value);
        t.stamp(h);
        let (secs, nsecs) = self.rq.target.node().wall_time();
        t.change(h).ctime = coral_osd::Time { secs, nsecs };
        let mut a = self.answer(0);
        pre.tell(&mut a);
        fill(&mut a, self.pack(fid, t.ino(h)));
        self.commit(t, &mut a)?;
        Ok(a)
    }

    /// `lfs setstripe`: the default layout of a directory, or the layout of a file without one. `fill` puts how the object
    /// looks then into the answer.
    async fn set_layout(
        &self,
        cred: &super::cred::Ucred,
        fid: &Fid,
        time: coral_osd::Time,
        value: Option<Bytes>,
        fill: impl FnOnce(&mut Answer, MdtBody) + Send,
    ) -> MdtResult<Answer> {
        let bits = Ibits(Ibits::XATTR.0 | Ibits::UPDATE.0 | Ibits::LAYOUT.0);
        let _locks = self.ops.lock(&[], &[(*fid, bits)], None).await;
        let (a, file) = self.put_layout(cred, fid, time, value, fill)?;
        if file {
            self.layout_made().await?;
        }
        Ok(a)
    }

    /// A layout made by another request than an open is on disk before its client is told: the replay of such a request does
    /// not say which objects the file got, and the client may have written to them by then.
    pub(super) async fn layout_made(&self) -> MdtResult<()> {
        Ok(self.rq.target.sync().await?)
    }

    /// The transaction of [`Ctx::set_layout`]; true: of a file.
    fn put_layout(
        &self,
        cred: &super::cred::Ucred,
        fid: &Fid,
        time: coral_osd::Time,
        value: Option<Bytes>,
        fill: impl FnOnce(&mut Answer, MdtBody),
    ) -> MdtResult<(Answer, bool)> {
        let mut core = self.core();
        let ino = core.store.inode(fid)?;
        let file = ino.is_reg();
        if !cred.owns(&ino) && !cred.has(super::cred::cap::SYS_ADMIN) {
            core.store.permit(cred, fid, &ino, super::cred::MAY_WRITE)?;
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
