//! Attributes: from the MDT, completed by the OSTs.

use std::sync::Arc;
use std::time::Duration;

use coral_ldlm::LockRef;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmMode, Policy};
use coral_wire::mds::layout_intent;
use futures_util::future::join_all;

use super::Llite;
use super::cache::{Known, Mark};
use super::cred::permitted;
use super::file::FileHandle;
use super::inode::MdInode;
use super::mount::any_ok;
use super::types::{Attr, Cred, Entry, StatFs};
use crate::lov::{FileLayout, Form};
use crate::mdc::{Ids, Mdc};

/// How long what a lock covers may be remembered: until its loss is told.
const COVERED_TTL: Duration = Duration::from_secs(24 * 3600);

impl Llite {
    /// The MDT's view of an object, by FID: remembered, or asked for together with a lock.
    pub(super) async fn md_inode(&self, fid: Fid) -> Result<MdInode, Errno> {
        if let Some(k) = self.cache.known(fid) {
            return Ok(k.md);
        }
        let mdc = self.lmv.of(fid).await?;
        let (attrs, lock, mark) = if self.cache.enabled() {
            let mark = self.cache.begin_read(fid);
            let found = mdc.lookup_lock(&Ids::root(), fid, b"").await?;
            (found.attrs, found.lock, mark)
        } else {
            let mark = self.cache.begin_read(fid);
            (mdc.getattr(&Ids::root(), fid).await?, None, mark)
        };
        let md = MdInode::read(&mdc, &attrs)?;
        self.learn(&mdc, mark, &md, lock);
        self.hint_gid(fid, md.attr.gid);
        Ok(md)
    }

    /// Takes the reply to a read that began at `mark` into the cache, with the lock that came along.
    pub(super) fn learn(&self, mdc: &Mdc, mark: Mark, md: &MdInode, lock: Option<LockRef>) {
        if !self.cache.enabled() {
            return mdc.drop_lock(lock);
        }
        let info = lock
            .as_ref()
            .map(LockRef::info)
            .filter(|i| i.res == md.attr.fid.res_id());
        let bits = info.and_then(|i| match i.policy {
            Policy::Ibits { bits, .. } => Some((i.cookie, bits.bits())),
            _ => None,
        });
        self.cache.learn(mark, md, bits, || {
            lock.as_ref().is_some_and(|l| !l.is_blocked())
        });
    }

    /// Completes the MDT's view with the OSTs'.
    pub(super) async fn full_attr(&self, md: &MdInode) -> Result<Attr, Errno> {
        if let Some(lmv) = &md.striped {
            return self.merged_shards(md, lmv).await;
        }
        if !md.needs_osts() {
            return Ok(md.attr);
        }
        let fid = md.attr.fid;
        let known = self.cache.known(fid);
        if let Some(objects) = known.as_ref().and_then(|k| k.objects) {
            return Ok(md.merged(&objects));
        }
        // what covers the pages covers these too; asked otherwise our own write lock would be called back
        if let Some(cover) = self
            .pages
            .cover(fid)
            .filter(|c| c.is_whole() && c.layout.generation == md.layout.generation)
        {
            // asked first: what lands meanwhile is counted twice, not missed
            let ahead = cover.writes.as_ref().and_then(|w| w.ahead(&cover.layout));
            let objects = self.lov.getattr_locked(&cover.layout, fid).await?;
            let objects = ahead.map_or(objects, |a| a.complete(objects));
            if cover.mode == LdlmMode::PR && known.is_some() {
                let names: Vec<_> = cover.objects().collect();
                self.cache
                    .learn_objects(fid, cover.layout.generation, &names, objects, || {
                        !cover.is_blocked()
                    });
            }
            return Ok(md.merged(&objects));
        }
        let layout = self.settled_layout(fid, md.layout.clone()).await?;
        // a lock that our own next write would call back is not worth having
        let writing = self.opened(fid).is_some_and(|o| o.is_written());
        if known.is_none() || writing {
            return Ok(md.merged(&self.lov.getattr(&layout, fid).await?));
        }
        let (objects, locks) = self.lov.glimpse(&layout, fid).await?;
        if let Some(locks) = locks {
            let names: Vec<_> = locks.iter().map(|(o, _)| *o).collect();
            let still = || locks.iter().all(|(_, l)| !l.is_blocked());
            self.cache
                .learn_objects(fid, layout.generation, &names, objects, still);
        }
        Ok(md.merged(&objects))
    }

    /// EIO, before anything is done, for a file with objects on an OST that is deactivated: its attributes cannot be told.
    pub(super) async fn within_reach(&self, fid: Fid) -> Result<(), Errno> {
        if self.lov.count() >= self.config.borrow().osts.len() {
            return Ok(()); // nearly always
        }
        let md = self.md_inode(fid).await?;
        if md.attr.is_file() && self.lov.lacks(&md.layout) {
            Err(Errno::EIO)
        } else {
            Ok(())
        }
    }

    /// A layout with components still to be instantiated may have grown elsewhere since: ask again.
    pub(super) async fn settled_layout(
        &self,
        fid: Fid,
        layout: Arc<FileLayout>,
    ) -> Result<Arc<FileLayout>, Errno> {
        if layout.form == Form::None || !layout.needs_init(0, u64::MAX) {
            return Ok(layout);
        }
        self.fetch_layout(fid, layout_intent::ACCESS, 0, 0).await
    }

    /// The layout now, after instantiating `start..end` for a write or truncate.
    pub(super) async fn fetch_layout(
        &self,
        fid: Fid,
        op: u32,
        start: u64,
        end: u64,
    ) -> Result<Arc<FileLayout>, Errno> {
        let mdc = self.lmv.of(fid).await?;
        let (raw, lock) = mdc.layout(fid, op, start, end).await?;
        // Kept, the lock tells when the layout changes; without one it must be asked for again. (A Coral server gives a file
        // no other objects than it has.)
        let kept = op == layout_intent::ACCESS && lock.as_ref().is_some_and(|l| !l.is_blocked());
        if mdc.coral() || !kept {
            mdc.drop_lock(lock);
        }
        if !mdc.coral()
            && !kept
            && let Some(open) = self.opened(fid)
        {
            open.layout_lost();
        }
        Ok(Arc::new(
            FileLayout::decode(&raw).map_err(crate::error::proto)?,
        ))
    }

    /// An answer: the caller may remember what a lock covers, if it wants to hear of its loss. What is covered by now counts more
    /// than `attr`, which may have been asked for before the lock came, and before what made it grow.
    pub(super) fn entry(&self, attr: Attr, md: &MdInode) -> Entry {
        let covered = self
            .cache
            .known(attr.fid)
            .filter(|_| self.inval.read().is_some());
        let ttl = |yes: bool| if yes { COVERED_TTL } else { Duration::ZERO };
        // locks on the shards cover those of a striped directory; the caller knows no shards
        let now = covered
            .as_ref()
            .filter(|_| md.striped.is_none())
            .and_then(Known::attr);
        Entry {
            attr: now.unwrap_or(attr),
            attr_ttl: ttl(now.is_some()),
            entry_ttl: ttl(covered.is_some_and(|k| k.named)),
        }
    }

    /// Attributes, and how long they may be remembered (`entry_ttl` has no meaning here).
    pub async fn getattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        _fh: Option<&FileHandle>,
    ) -> Result<Entry, Errno> {
        let md = match self.md_inode(fid).await {
            Err(e @ (Errno::ENOENT | Errno::ESTALE)) => {
                let Some(attr) = self.ghosts.of(fid) else {
                    self.reopen.looked_late(cred.pid);
                    return Err(e);
                };
                return Ok(Entry::for_now(attr));
            }
            md => md?,
        };
        Ok(self.entry(self.full_attr(&md).await?, &md))
    }

    /// access(2): `mask` of R_OK 4, W_OK 2, X_OK 1, F_OK 0. ACLs count.
    pub async fn access(self: &Arc<Self>, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Errno> {
        let md = self.md_inode(fid).await?;
        permitted(cred, &md.attr, &md.acl, mask)
    }

    /// Sum over the targets: space of the OSTs, inodes of the MDTs.
    pub async fn statfs(self: &Arc<Self>) -> Result<StatFs, Errno> {
        const BSIZE: u64 = 4096;
        let mdts = any_ok(join_all(self.lmv.mdcs().iter().map(|m| m.statfs(false))).await)?;
        let osts = any_ok(join_all(self.lov.oscs().iter().map(|o| o.statfs())).await)?;
        let mut sum = StatFs {
            bsize: BSIZE as u32,
            namelen: 255,
            ..Default::default()
        };
        for m in &mdts {
            sum.files += m.files;
            sum.ffree += m.ffree;
        }
        for o in &osts {
            let scale = |blocks: u64| (blocks as u128 * o.bsize as u128 / BSIZE as u128) as u64;
            sum.blocks += scale(o.blocks);
            sum.bfree += scale(o.bfree);
            sum.bavail += scale(o.bavail);
        }
        Ok(sum)
    }

    /// The LOV EA as stored on the MDT.
    pub async fn layout(self: &Arc<Self>, fid: Fid) -> Result<bytes::Bytes, Errno> {
        let mdc = self.lmv.of(fid).await?;
        Ok(mdc.getattr(&Ids::root(), fid).await?.md)
    }
}
