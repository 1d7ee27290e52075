//! Attributes: from the MDT, completed by the OSTs; remembered as long as locks cover them.

use std::sync::Arc;
use std::time::Duration;

use coral_buffers::Payload;
use coral_ldlm::LockRef;
use coral_wire::fid::Fid;
use coral_wire::layout::LmvMd;
use coral_wire::ldlm::{LdlmMode, Policy};
use futures_util::future::try_join_all;

use super::cache::{Cache, Mark};
use super::covers::{Covers, OpenFiles};
use super::cred::permitted;
use super::ghosts::Ghosts;
use super::identities::Identities;
use super::inode::MdInode;
use super::late::LateAttrs;
use super::late_names::LateNames;
use super::layouts::Layouts;
use super::programs::Programs;
use super::reopen::Reopen;
use super::servers::Servers;
use super::shards;
use super::types::{Attr, Cred, Entry};
use super::upcalls::Upcalls;
use crate::error::Error;
use crate::lov::FileLayout;
use crate::mdc::{Ids, Mdc};
use crate::time::Timespec;

/// How long what a lock covers may be remembered: until its loss is told.
pub(super) const COVERED_TTL: Duration = Duration::from_secs(24 * 3600);

/// Times a layout is read again of which a shard has gone.
const MERGES_MAX: usize = 4;

/// Tells the attributes of objects.
pub(super) struct Attributes {
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub cache: Arc<Cache>,
    pub upcalls: Arc<Upcalls>,
    pub covers: Arc<Covers>,
    pub open: Arc<OpenFiles>,
    pub layouts: Arc<Layouts>,
    pub ghosts: Arc<Ghosts>,
    pub reopen: Arc<Reopen>,
    pub late: Arc<LateAttrs>,
    pub removers: Arc<Programs>,
    pub late_names: Arc<LateNames>,
}

impl Attributes {
    /// The MDT's view of an object, by FID: remembered, or asked for together with a lock.
    pub async fn md_inode(&self, fid: Fid) -> Result<MdInode, Error> {
        Ok(self.beside_late(self.md_inode_told(fid).await?))
    }

    /// What the MDT has, with what this client has set and keeps back.
    pub fn beside_late(&self, mut md: MdInode) -> MdInode {
        md.attr = self.late.beside(md.attr);
        md
    }

    /// The same as the MDT has it.
    async fn md_inode_told(&self, fid: Fid) -> Result<MdInode, Error> {
        if let Some(k) = self.cache.known(fid) {
            self.servers.stats.attr_hits.inc();
            return Ok(k.md);
        }
        self.servers.stats.attr_misses.inc();
        let mdc = self.servers.lmv.of(fid).await?;
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
        self.ids.hint(fid, md.attr.gid);
        Ok(md)
    }

    /// Takes the reply to a read that began at `mark` into the cache, with the lock that came along.
    pub fn learn(&self, mdc: &Mdc, mark: Mark, md: &MdInode, lock: Option<LockRef>) {
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
    pub async fn full(&self, md: &MdInode) -> Result<Attr, Error> {
        if let Some(lmv) = &md.striped {
            return self.merged_shards(md, lmv).await;
        }
        if !md.needs_osts() {
            return Ok(md.attr);
        }
        let fid = md.attr.fid;
        self.late.data_sent(fid).await;
        let known = self.cache.known(fid);
        if let Some(objects) = known.as_ref().and_then(|k| k.objects) {
            return Ok(md.merged(&objects));
        }
        if let Some(objects) = self.late.objects(fid) {
            return Ok(md.merged(&objects));
        }
        // what covers the pages covers these too; asked otherwise our own write lock would be called back
        let cover = self.covers.cover(fid);
        let cover = cover.filter(|c| c.layout.generation == md.layout.generation);
        if let Some(cover) = cover.as_ref().filter(|c| c.is_whole()) {
            // asked first: what lands meanwhile is counted twice, not missed
            let ahead = cover.writes.as_ref().and_then(|w| w.ahead(&cover.layout));
            let objects = self.servers.lov.getattr_locked(&cover.layout, fid).await?;
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
        if let Some(w) = cover.as_ref().and_then(|c| c.writes.as_ref()) {
            // others may have what is not locked here: they are asked, and keep it
            let ahead = w.ahead(&md.layout);
            let (objects, _) = self.servers.lov.glimpse(&md.layout, fid).await?;
            return Ok(md.merged(&ahead.map_or(objects, |a| a.complete(objects))));
        }
        let layout = self.layouts.settled(fid, md.layout.clone()).await?;
        // a lock that our own next write would call back is not worth having
        let writing = self.open.of(fid).is_some_and(|o| o.is_written());
        if known.is_none() || writing {
            return Ok(md.merged(&self.servers.lov.getattr(&layout, fid).await?));
        }
        let (objects, locks) = self.servers.lov.glimpse(&layout, fid).await?;
        if let Some(locks) = locks {
            let names: Vec<_> = locks.iter().map(|(o, _)| *o).collect();
            let still = || locks.iter().all(|(_, l)| !l.is_blocked());
            self.cache
                .learn_objects(fid, layout.generation, &names, objects, still);
        }
        Ok(md.merged(&objects))
    }

    /// The same of a file that is going to be read: a small one's data comes along.
    pub async fn full_to_read(&self, md: &MdInode) -> Result<Attr, Error> {
        let (fid, layout) = (md.attr.fid, &md.layout);
        self.late.data_sent(fid).await;
        let open = self.open.of(fid);
        let may = md.is_small()
            && md.needs_osts()
            && !layout.needs_init(0, u64::MAX)
            && self.covers.cover(fid).is_none()
            && !open.is_some_and(|o| o.is_written());
        let wants = || self.cache.known(fid).is_some_and(|k| k.objects.is_none());
        if may
            && wants()
            && let Some((data, objects, (name, lock))) =
                self.servers.lov.read_small(layout, fid).await?
        {
            let still = || !lock.is_blocked();
            self.cache
                .learn_data(fid, layout.generation, name, (objects, data), still);
            return Ok(md.merged(&objects));
        }
        self.full(md).await
    }

    /// What a read of `len_bytes` at `offset` brings, if the data of the file is known.
    pub fn data_known(&self, fid: Fid, offset: u64, len_bytes: u32) -> Option<Payload> {
        let data = self.cache.data(fid, offset, len_bytes)?;
        let from = offset.min(data.len() as u64) as usize;
        let to = data.len().min(from.saturating_add(len_bytes as usize));
        Some(data.slice(from..to))
    }

    /// Locks of this client say that nothing lies in the objects of this layout, and that they were not changed after `time`.
    pub fn known_empty(&self, fid: Fid, layout: &FileLayout, time: Timespec) -> bool {
        let known = self.cache.known(fid);
        known
            .filter(|k| k.md.layout.generation == layout.generation)
            .and_then(|k| k.objects)
            .is_some_and(|o| o.is_empty() && o.mtime.max(o.ctime) <= time)
    }

    /// EIO, before anything is done, for a file with objects on an OST that is deactivated: its attributes cannot be told.
    pub async fn within_reach(&self, fid: Fid) -> Result<(), Error> {
        if self.servers.lov.count() >= self.servers.config.borrow().osts.len() {
            return Ok(()); // nearly always
        }
        let md = self.md_inode(fid).await?;
        match self.servers.lov.lacks(&md.layout) {
            Some(ost) if md.attr.is_file() => Err(Error::NoOst(ost)),
            _ => Ok(()),
        }
    }

    /// An answer: the caller may remember what a lock covers, if it wants to hear of its loss. What is covered by now counts more
    /// than `attr`, which may have been asked for before the lock came, and before what made it grow.
    pub fn entry(&self, attr: Attr) -> Entry {
        let covered = self
            .cache
            .known(attr.fid)
            .filter(|_| self.upcalls.are_heard());
        let ttl = |yes: bool| if yes { COVERED_TTL } else { Duration::ZERO };
        let now = covered.as_ref().and_then(|k| match k.md.striped {
            None => k.attr(),
            Some(_) => self.cache.striped(attr.fid),
        });
        Entry {
            attr: self
                .late_names
                .beside(self.late.beside(now.unwrap_or(attr))),
            attr_ttl: ttl(now.is_some()),
            entry_ttl: ttl(covered.is_some_and(|k| k.named)),
        }
    }

    /// Attributes, and how long they may be remembered (`entry_ttl` has no meaning here).
    pub async fn getattr(&self, cred: &Cred, fid: Fid) -> Result<Entry, Error> {
        let md = match self.md_inode(fid).await {
            Err(e) if e.is_gone() => {
                let Some(attr) = self.ghosts.of(fid) else {
                    self.reopen.looked_late(cred.pid);
                    return Err(e);
                };
                return Ok(Entry::for_now(attr));
            }
            md => md?,
        };
        if md.attr.is_file() {
            self.removers.ended(cred.pid);
        }
        Ok(self.entry(self.full(&md).await?))
    }

    /// An answer with a size that is not the file's and is not asked for: the caller asks when it wants to know it. None: it is known, or
    /// there may be pages of the file, which no other size must reach.
    pub fn without_size(&self, md: &MdInode) -> Option<Entry> {
        let fid = md.attr.fid;
        let is_known = || self.cache.known(fid).is_some_and(|k| k.objects.is_some());
        let has_pages = || {
            self.open.of(fid).is_some()
                || self.covers.cover(fid).is_some()
                || self.late.objects(fid).is_some()
        };
        (md.needs_osts() && !is_known() && !has_pages()).then(|| Entry {
            attr_ttl: Duration::ZERO,
            ..self.entry(md.attr)
        })
    }

    /// access(2): `mask` of R_OK 4, W_OK 2, X_OK 1, F_OK 0. ACLs count.
    pub async fn access(&self, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Error> {
        let md = self.md_inode(fid).await?;
        permitted(cred, &md.attr, &md.acl, mask)
    }

    /// Attributes of a striped directory, from its shards. One that is gone may have been merged into others since the layout was read.
    pub async fn merged_shards(&self, md: &MdInode, lmv: &LmvMd) -> Result<Attr, Error> {
        let (mut master, mut layout) = (md.attr, lmv.clone());
        for _ in 0..MERGES_MAX {
            match self.merged(&master, &layout).await {
                Err(e) if e.is_gone() => {
                    let now = self.md_inode(master.fid).await?;
                    match now.striped {
                        Some(l) if *l != layout => (master, layout) = (now.attr, (*l).clone()),
                        _ => return Err(e),
                    }
                }
                done => return done,
            }
        }
        self.merged(&master, &layout).await
    }

    async fn merged(&self, master: &Attr, lmv: &LmvMd) -> Result<Attr, Error> {
        let shards = lmv
            .stripe_fids
            .iter()
            .filter(|f| !f.is_zero())
            .map(|f| self.md_inode(*f));
        let found = try_join_all(shards).await?;
        Ok(shards::merge_attrs(master, found.iter().map(|m| &m.attr)))
    }
}
