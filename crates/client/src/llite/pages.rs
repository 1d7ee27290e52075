//! File data in the kernel's page cache, under extent locks of ours.
//!
//! Pages are filled by [`PageCache::admit`] and written back by [`PageCache::write`], both under a [`Cover`]: locks on the
//! whole of every object of the file. While a cover is there the kernel may keep the pages as long as it likes, also beyond
//! close. When a lock of the cover is asked back, all pages of the file are dropped, dirty ones after they were written back
//! under the very locks, and only then the locks are given back: no page outlives its lock. `covers/gate/` has the rules against
//! waiting in a circle.
//!
//! Lustre: `vvp_io.c`, `osc_lock.c`, `osc_ldlm_blocking_ast` do this in the kernel, with locks on parts of objects. Here a file
//! is covered as a whole or not at all. Dirty data of write(2) has covers of its own: [`super::writeback`].

use std::sync::Arc;

use coral_buffers::Payload;
use coral_wire::fid::Fid;
use coral_wire::ldlm::LdlmMode;

use super::cache::Cache;
use super::covers::{Cover, Covers, Enter, OpenInode, coverable};
use super::drains::Drains;
use super::finish::finish;
use super::handle::FileHandle;
use super::late::LateAttrs;
use super::layouts::Layouts;
use super::servers::Servers;
use super::upcalls::Upcalls;
use crate::error::Error;
use crate::osc::{IoLock, WriteAttr};

/// A file of so many bytes is read with one request.
const SMALL_BYTES: u64 = 64 << 10;
/// The kernel's page, bytes.
const PAGE_BYTES: u64 = 4096;

/// Says which pages the kernel may fill, and takes back what it has dirtied.
pub(super) struct PageCache {
    pub late: Arc<LateAttrs>,
    pub servers: Arc<Servers>,
    pub cache: Arc<Cache>,
    pub upcalls: Arc<Upcalls>,
    pub covers: Arc<Covers>,
    pub layouts: Arc<Layouts>,
    pub drains: Arc<Drains>,
}

impl PageCache {
    /// Pages that reads through `fh` bring may stay in the kernel's cache. A file that one read brings whole is worth a lock
    /// when it is opened a second time, as most are read once, unless its data came with one and there is room for its cover.
    pub fn caches(&self, fh: &FileHandle) -> bool {
        if fh.writable() || fh.flags() & libc::O_DIRECT as u32 != 0 || !self.cache.enabled() {
            return false;
        }
        let small = fh.inode.rough_size().is_some_and(|s| s <= SMALL_BYTES)
            && fh.inode.gate.cover().is_none()
            && !(self.covers.has_room() && self.cache.has_data(fh.fid()));
        let again = self.cache.opened_again(fh.fid());
        (again || !small) && coverable(&fh.inode.layout()) && self.upcalls.are_heard()
    }

    /// A read of pages wants in: the cover it goes under; `None`: this file has none, the servers lock.
    pub async fn admit(
        self: &Arc<Self>,
        inode: &Arc<OpenInode>,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Option<Arc<Cover>>, Error> {
        let end = offset.saturating_add(len_bytes as u64);
        let range = offset / PAGE_BYTES * PAGE_BYTES
            ..end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
        match inode.gate.enter(range) {
            Enter::Under(cover) => {
                self.servers.stats.page_hits.inc();
                Ok(Some(cover))
            }
            Enter::Wait { waiting, acquire } => {
                self.servers.stats.page_misses.inc();
                if acquire {
                    let (me, inode) = (self.clone(), inode.clone());
                    finish(async move { me.acquire(inode).await }).await;
                }
                waiting.admitted().await
            }
        }
    }

    /// Writes dirty pages of the kernel's cache back, under the cover they were dirtied under. EIO when its locks are void.
    pub async fn write(&self, fh: &FileHandle, offset: u64, data: Payload) -> Result<usize, Error> {
        let len = data.len();
        fh.still_open(self.servers.now()).await?;
        self.late.sent(fh.fid()).await;
        let _changing = fh.inode.data.begin();
        let attr = WriteAttr::of(fh.inode.owner(), self.servers.now());
        let Some(cover) = fh
            .inode
            .gate
            .cover()
            .filter(|c| c.mode == LdlmMode::PW && c.writes.is_none())
        else {
            let layout = self
                .layouts
                .for_write(&fh.inode, offset, offset + len as u64)
                .await?;
            self.servers
                .lov
                .write(&layout, fh.fid(), offset, data, &attr, &Default::default())
                .await?;
            return Ok(len);
        };
        if !cover.is_whole() {
            return self
                .write_live(fh.fid(), &cover, offset, data, &attr)
                .await
                .map(|()| len);
        }
        self.servers
            .lov
            .write(&cover.layout, fh.fid(), offset, data, &attr, &cover.held())
            .await?;
        Ok(len)
    }

    /// The same after an eviction: only what lay under the locks that are void is lost.
    async fn write_live(
        &self,
        fid: Fid,
        cover: &Cover,
        offset: u64,
        data: Payload,
        attr: &WriteAttr,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for (object, at, part) in self
            .servers
            .lov
            .pieces(&cover.layout, fid, offset, &data)
            .await?
        {
            let lock = cover
                .place(&object)
                .and_then(|i| cover.lock(i))
                .filter(|l| !l.is_dead());
            let done = match lock {
                Some(l) => {
                    let ours = IoLock::Ours(l.info().remote_cookie);
                    let osc = self.servers.lov.osc(object.ost)?;
                    let done = osc.write(&object, at, part, attr, ours).await;
                    done.map_err(Error::from)
                }
                None => Err(Error::LocksVoid),
            };
            result = result.and(done);
        }
        result
    }

    /// Gets a cover and lets in who waits for one.
    async fn acquire(self: Arc<Self>, inode: Arc<OpenInode>) {
        let gate = inode.gate.clone();
        loop {
            // none comes anew while reads of pages wait
            if gate.begin_drain_writes() {
                gate.contended();
                self.drains.spawn(inode.fid, gate.clone());
            }
            let mode = gate.may_acquire().await;
            let layout = match self.layouts.now(&inode).await {
                Ok(l) if coverable(&l) && self.cache.enabled() => l,
                Ok(_) => return gate.refuse(Ok(())),
                Err(e) => return gate.refuse(Err(e)),
            };
            let locks = match self
                .servers
                .lov
                .lock_objects(&layout, inode.fid, mode)
                .await
            {
                Ok(l) => l,
                Err(e) => return gate.refuse(Err(e)),
            };
            // who moved the data had these objects locked, and then gave the file others
            if self
                .layouts
                .moved(&inode, &layout, 0, u64::MAX)
                .await
                .unwrap_or(true)
            {
                continue;
            }
            let cover = Cover::new(layout, mode, locks);
            self.drains.take_over(inode.fid, &cover).await;
            self.covers.enlist(inode.fid, &gate, &cover);
            if !gate.install(&cover) {
                self.covers.strike(inode.fid, &cover);
                continue;
            }
            // asked back before anybody could be told
            if cover.is_blocked() && gate.begin_drain(None) {
                self.drains.spawn(inode.fid, gate);
            }
            return self.drains.shrink();
        }
    }
}
