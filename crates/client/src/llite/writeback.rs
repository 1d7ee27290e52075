//! Write-back: data of write(2) stays dirty under extent locks and goes to the OSTs later, in large requests and several at
//! once, while the writer goes on.
//!
//! Dirty data belongs to a [`super::covers::Cover`] of the file that serves nothing else: PW locks on the whole of every object. It is
//! written out when a whole RPC is together, after a second at the latest, and before: a lock of the cover is given back,
//! fsync, a read of the range, a change of size or times, another use of the cover, unmount.
//!
//! Invariants:
//! - data is dirty only while the cover's locks are held, and each lock goes when the last of its object's data has landed:
//!   an OST that is not there keeps no lock of another;
//! - dirty data has room: its pages are taken from the OST's grant first ([`crate::grant`]); without grant the
//!   write goes out at once and is told ENOSPC itself;
//! - writing out waits for no lock and for no request that may wait for one; nobody waits for it with a lock in hand that
//!   others ask for, unless the lock is the cover's own;
//! - what could not be written out is lost, as in Lustre, and each open handle is told (`covers/lost.rs`). After an eviction by an
//!   OST nothing is sent there any more (`flusher.rs`): others may have written there.
//!
//! Lustre: `lustre/osc/osc_cache.c`, `osc_io.c`, `vvp_io.c`. Absent: locks on parts of objects; the cache of clean data is the
//! kernel's.

use std::sync::Arc;

use coral_buffers::Payload;
use coral_ldlm::LockRef;
use coral_wire::fid::Fid;
use coral_wire::ldlm::LdlmMode;

use super::cache::Cache;
use super::covers::{
    Acquiring, Cover, Covers, Dirty, Object, OpenInode, Piece, Put, Writing, coverable,
};
use super::drains::Drains;
use super::finish::finish;
use super::flusher::Flusher;
use super::handle::{FileHandle, end_of};
use super::layouts::Layouts;
use super::servers::Servers;
use crate::error::Error;
use crate::lov::{FileLayout, pad};
use crate::osc::{BackedBy, ObjectRef, Osc, WriteAttr};

/// What became of a write that was to stay dirty.
pub(super) enum Kept {
    /// It is.
    All,
    /// It is to be decided anew how it goes.
    Again,
    /// Not enough is granted: nothing of it is.
    NoGrant(Arc<Cover>, Vec<Piece>),
}

/// Keeps data of write(2) back, and hands on what may not be kept.
pub(super) struct WriteBack {
    pub servers: Arc<Servers>,
    pub cache: Arc<Cache>,
    pub covers: Arc<Covers>,
    pub layouts: Arc<Layouts>,
    pub flusher: Arc<Flusher>,
    pub drains: Arc<Drains>,
}

impl WriteBack {
    /// Writes all of `data` at `offset`: keeps it back where that pays, else hands it to the OSTs.
    pub async fn write(
        self: &Arc<Self>,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
        attr: &WriteAttr,
    ) -> Result<(), Error> {
        let (inode, fid) = (&fh.inode, fh.fid());
        let end = end_of(offset, data.len() as u64)?;
        let _whole = inode.writes.lock(offset..end).await;
        let worth = fh.count_write() && !fh.is_sync();
        loop {
            let layout = self.layouts.for_write(inode, offset, end).await?;
            match inode.gate.begin_write(worth && self.may_keep(&layout)) {
                Writing::Under(cover) => {
                    let done = match self.keep(cover, fid, offset, &data, attr).await? {
                        Kept::All => true,
                        Kept::Again => false,
                        Kept::NoGrant(cover, pieces) => {
                            self.write_now(fid, &cover, &pieces, attr).await?
                        }
                    };
                    if done {
                        return Ok(());
                    }
                    inode.gate.may_write().await;
                }
                Writing::Acquire(turn) => self.acquire_turn(inode, turn).await,
                Writing::Wait => inode.gate.may_write().await,
                Writing::Drain => self.drains.spawn(fid, inode.gate.clone()),
                Writing::Sync(_write) => {
                    let done = self
                        .servers
                        .lov
                        .write(
                            &layout,
                            fid,
                            offset,
                            data.clone(),
                            attr,
                            &Default::default(),
                        )
                        .await;
                    if !self.layouts.moved(inode, &layout, offset, end).await? {
                        return done;
                    }
                }
            }
        }
    }

    /// Whether writes to a file of this layout may stay dirty.
    pub fn may_keep(&self, layout: &FileLayout) -> bool {
        self.cache.enabled() && coverable(layout)
    }

    /// Where a file ends that `cover` is for; the caller lets no write of this client come between.
    pub async fn end_under(&self, cover: &Cover, fid: Fid) -> Result<u64, Error> {
        let w = cover.writes.as_ref().ok_or(Error::LocksVoid)?;
        if let Some(end) = w.file_end() {
            return Ok(end);
        }
        // dirty data may land while the OSTs are asked: one of both tells of it
        let kept = w.ahead(&cover.layout).map_or(0, |a| a.size);
        let stored = self
            .servers
            .lov
            .getattr_locked(&cover.layout, fid)
            .await?
            .size;
        let end = stored.max(kept);
        w.set_file_end(Some(end));
        Ok(end)
    }

    /// Keeps a write back under its cover, if there is room.
    pub async fn keep(
        self: &Arc<Self>,
        cover: Arc<Cover>,
        fid: Fid,
        offset: u64,
        data: &Payload,
        attr: &WriteAttr,
    ) -> Result<Kept, Error> {
        let Some(w) = &cover.writes else {
            return Ok(Kept::Again);
        };
        let pieces = self
            .servers
            .lov
            .pieces(&cover.layout, fid, offset, data)
            .await?;
        let pieces: Vec<Piece> = pieces
            .into_iter()
            .map(|(o, at, data)| w.place(&o).map(|i| (i, at, data)))
            .collect::<Result<_, _>>()?;
        match w.put(&pieces, attr) {
            Put::Kept(out) => {
                w.grew(offset + data.len() as u64);
                self.flusher.fly(fid, &cover, out);
                self.flusher.look_after();
                Ok(Kept::All)
            }
            Put::Closed => Ok(Kept::Again),
            Put::Full(i, bytes) => {
                let osc = w.objects()[i].osc.clone();
                self.flusher.relieve(&osc);
                // no lock is held while waiting
                drop(cover);
                osc.grant().room(bytes).await;
                Ok(Kept::Again)
            }
            Put::NoGrant => Ok(Kept::NoGrant(cover, pieces)),
        }
    }

    /// Writes under the cover's locks, without grant: the reply says whether there is room, and may grant some. False: they are
    /// being given back.
    async fn write_now(
        self: &Arc<Self>,
        fid: Fid,
        cover: &Arc<Cover>,
        pieces: &[Piece],
        attr: &WriteAttr,
    ) -> Result<bool, Error> {
        let Some(w) = &cover.writes else {
            return Ok(false);
        };
        // how far it comes is seen when an append asks
        w.set_file_end(None);
        let mut within = vec![0..0; w.objects().len()];
        pieces
            .iter()
            .for_each(|(i, at, data)| within[*i] = *at..*at + data.len() as u64);
        self.flusher.write_out(fid, cover, &within).await;
        for (i, at, data) in pieces {
            let Some(lock) = cover.lock(*i) else {
                return Ok(false);
            };
            let o = &w.objects()[*i];
            let (mut done, max) = (0, o.rpc_bytes() as usize);
            while done < data.len() {
                let n = max.min(data.len() - done);
                if lock.is_dead() {
                    return Err(o.void().into());
                }
                let by = BackedBy {
                    cookie: lock.info().remote_cookie,
                    generation: o.generation,
                    granted: false,
                };
                o.osc
                    .write_back(
                        &o.object,
                        &[(at + done as u64, data.slice(done..done + n))],
                        attr,
                        by,
                    )
                    .await?;
                done += n;
            }
        }
        Ok(true)
    }

    /// Gets a cover for writes, if it is to be had; done even when the caller gives up.
    pub async fn acquire_turn(self: &Arc<Self>, inode: &Arc<OpenInode>, turn: Acquiring) {
        let (me, inode) = (self.clone(), inode.clone());
        finish(async move { me.acquire_writes(&inode, turn).await }).await;
    }

    async fn acquire_writes(self: &Arc<Self>, inode: &OpenInode, turn: Acquiring) {
        let (fid, gate) = (inode.fid, &inode.gate);
        gate.no_sync_write().await;
        let cover = match self.cover_for_writes(inode).await {
            Ok(Some(c)) if !c.is_blocked() => c,
            _ => return gate.contended(),
        };
        self.drains.take_over(fid, &cover).await;
        if !self
            .covers
            .enlist_if(fid, gate, &cover, || turn.install(&cover))
        {
            return;
        }
        // asked back before anybody could be told
        if cover.is_blocked() && gate.begin_drain(None) {
            gate.contended();
            self.drains.spawn(fid, gate.clone());
        }
        self.drains.shrink();
    }

    async fn cover_for_writes(&self, inode: &OpenInode) -> Result<Option<Arc<Cover>>, Error> {
        let layout = self.layouts.now(inode).await?;
        if !coverable(&layout) {
            return Ok(None);
        }
        let mut before = Vec::new();
        for s in layout.stripes() {
            let osc = self.servers.lov.osc(s.ost())?;
            before.push((osc.import().generation(), osc));
        }
        let locks = self
            .servers
            .lov
            .lock_objects(&layout, inode.fid, LdlmMode::PW)
            .await?;
        // who moved the data had these objects locked, and then gave the file others
        if self.layouts.moved(inode, &layout, 0, u64::MAX).await? {
            return Ok(None);
        }
        let object =
            |((generation, osc), (_, object, _)): ((u64, Arc<Osc>), &(u32, ObjectRef, LockRef))| {
                Object {
                    osc,
                    object: *object,
                    generation,
                }
            };
        let writes = Dirty::new(before.into_iter().zip(&locks).map(object).collect());
        Ok(Some(Cover::for_writes(layout, locks, writes)))
    }

    /// Reads under the cover for writes.
    pub async fn read(
        self: &Arc<Self>,
        cover: &Arc<Cover>,
        fid: Fid,
        offset: u64,
        len: usize,
    ) -> Result<Payload, Error> {
        let Some(w) = &cover.writes else {
            return Err(Error::LocksVoid);
        };
        let places = self
            .servers
            .lov
            .places(&cover.layout, fid, offset, len as u64)
            .await?;
        if let [(object, range)] = &places[..]
            && let Some(found) = w.read(w.place(object)?, range)
        {
            return Ok(found);
        }
        let ahead = w.ahead(&cover.layout);
        let mut within = vec![0..0; w.objects().len()];
        for (object, range) in &places {
            within[w.place(object)?] = range.clone();
        }
        self.flusher.write_out(fid, cover, &within).await;
        let there = ahead.map_or(0, |a| a.size.saturating_sub(offset));
        let len = match self.servers.lov.tells_the_end() {
            true => len,
            // as [`super::file_io`] does, but under the cover's locks: it may be drained by now, and whoever waits for a lock of
            // another client with these in hand waits in a circle
            false => {
                let size = self
                    .servers
                    .lov
                    .getattr_locked(&cover.layout, fid)
                    .await?
                    .size;
                len.min(size.saturating_sub(offset).max(there) as usize)
            }
        };
        let got = self
            .servers
            .lov
            .read(&cover.layout, fid, offset, len, &cover.held())
            .await?;
        // the end may be further than the OSTs know; up to there is a hole
        Ok(pad(got, len.min(there as usize)))
    }
}
