//! Write-back: data of write(2) stays dirty under extent locks and goes to the OSTs later, in large requests and several at
//! once, while the writer goes on.
//!
//! Dirty data belongs to a [`super::covers::Cover`] of the file that serves nothing else: PW locks on ranges of its objects. A write asks
//! for what it needs and is given more where nobody else is: the whole object to who is alone, all up to the next lock to who is
//! not, or its blocks to who writes every n-th one beside others. Dirty data is written out when a whole RPC is together, after a second at the latest, and before: the lock it is under is given
//! back, fsync, a read of the range, a change of size or times, another use of the cover, unmount.
//!
//! Invariants:
//! - data is dirty only while a lock on it is held, and each lock goes when the last data under it has landed, whatever becomes of
//!   the others: an OST that is not there keeps no lock of another, and who wants one range takes no other;
//! - a lock is asked for again while the last one is still being given back. So the server knows of all who write when it grants,
//!   and gives each what is before the next: clients that write parts of their own of a file come to rest after a few callbacks;
//! - where a file ends is known here only while all of it is locked. Otherwise whoever holds a lock is asked;
//! - dirty data has room: its pages are taken from the OST's grant first ([`crate::grant`]); without grant the
//!   write goes out at once and is told ENOSPC itself;
//! - writing out waits for no lock and for no request that may wait for one; nobody waits for it with a lock in hand that
//!   others ask for, unless the lock is the cover's own;
//! - what could not be written out is lost, as in Lustre, and each open handle is told (`covers/lost.rs`). After an eviction by an
//!   OST nothing is sent there any more (`flusher.rs`): others may have written there.
//!
//! Lustre: `lustre/osc/osc_cache.c`, `osc_io.c`, `vvp_io.c`. Absent: a cache of clean data, which is
//! the kernel's; locks asked for ahead of a writer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use coral_buffers::Payload;
use coral_ldlm::LockRef;
use coral_wire::coral::blocks::{Blocks, PAGE_BYTES};
use coral_wire::fid::Fid;
use coral_wire::ldlm::LdlmMode;

use super::blocks::FileBlocks;
use super::cache::Cache;
use super::covers::{
    Acquiring, Cover, Covers, Dirty, EVERYTHING, Gate, Granted, Object, OpenInode, Piece, Put,
    Writing, coverable,
};
use super::drains::Drains;
use super::finish::finish;
use super::flusher::Flusher;
use super::handle::{FileHandle, end_of};
use super::layouts::Layouts;
use super::servers::Servers;
use crate::error::Error;
use crate::lov::{FileLayout, Locks, pad};
use crate::osc::{BackedBy, Osc, WriteAttr};

/// What became of a write that was to stay dirty.
pub(super) enum Kept {
    /// It is.
    All,
    /// It is to be decided anew how it goes.
    Again,
    /// So many bytes at this OST have no room now.
    Full(Arc<Osc>, u64),
    /// Not all that must be is locked.
    Uncovered,
    /// Not enough is granted: nothing of it is.
    NoGrant(Arc<Cover>, Vec<Piece>),
}

/// What of a file is to be locked for a write.
#[derive(Debug, Clone)]
pub(super) enum Need {
    /// These bytes of the file, which are of these blocks.
    Range(Range<u64>, Option<FileBlocks>),
    /// The same again: what was locked of them went before the rest had come. All that is needed of an object is asked for at once.
    Again(Range<u64>),
    /// All of it, for who must know where it ends.
    Whole,
}

/// So often a write asks for locks that are not all there when it has them; then it goes to the OSTs.
const ASKS: u32 = 2;

/// The turn of one who asks for locks. What he got is not taken from him before this is dropped: he writes first.
pub(super) struct Turn {
    drains: Arc<Drains>,
    fid: Fid,
    gate: Arc<Gate>,
    acquiring: Option<Acquiring>,
    /// What got locks.
    cover: Option<Arc<Cover>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(cover) = &self.cover {
            self.drains.used(self.fid, &self.gate, cover);
        }
        drop(self.acquiring.take());
        self.drains.drop_bare(self.fid, &self.gate);
    }
}

/// What `ask` brings, and the generation it was asked for in. Of what was granted across an eviction that is not known, and it is asked for
/// again: by the number from before, what is written under it would be taken for lost.
async fn within_one<T, E, F: Future<Output = Result<T, E>>>(
    generation: impl Fn() -> u64,
    ask: impl Fn() -> F,
) -> Result<(u64, T), E> {
    loop {
        let before = generation();
        let got = ask().await?;
        if generation() == before {
            return Ok((before, got));
        }
    }
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
        let blocks = fh.written.wrote(offset, data.len() as u64);
        let mut asks = 0;
        let mut turn: Option<Turn> = None;
        let mut layout = self.layouts.for_write(inode, offset, end).await?;
        loop {
            let mut way = inode.gate.begin_write(worth && self.may_keep(&layout));
            if let Writing::Under(cover) = way {
                let kept = self.keep(cover, fid, offset, &data, attr, None).await;
                let uncovered = matches!(kept, Ok(Kept::Uncovered));
                let wrote = match kept? {
                    Kept::All => {
                        inode.gate.write_kept();
                        true
                    }
                    Kept::NoGrant(cover, pieces) => {
                        drop(turn.take());
                        self.write_now(fid, &cover, &pieces, attr).await?
                    }
                    Kept::Full(osc, bytes) => {
                        // nothing is kept from others while waiting
                        drop(turn.take());
                        osc.grant().room(bytes).await;
                        false
                    }
                    Kept::Again | Kept::Uncovered => false,
                };
                if wrote {
                    return Ok(());
                }
                drop(turn.take());
                if uncovered && asks >= ASKS {
                    // others take one part while we wait for another
                    inode.gate.contended();
                    asks = 0;
                }
                way = match uncovered {
                    true => inode.gate.begin_more(),
                    false => Writing::Wait,
                };
            }
            match way {
                Writing::Under(_) => {}
                Writing::Acquire(t) => {
                    let need = match asks {
                        0 => Need::Range(offset..end, blocks),
                        _ => Need::Again(offset..end),
                    };
                    asks += 1;
                    turn = self.obtain(inode, t, need).await;
                }
                Writing::Wait => {
                    drop(turn.take());
                    inode.gate.may_write().await;
                }
                Writing::Drain => self.drains.spawn(fid, inode.gate.clone()),
                Writing::Sync(_write) => {
                    let (lov, none) = (&self.servers.lov, Locks::default());
                    let done = lov
                        .write(&layout, fid, offset, data.clone(), attr, &none)
                        .await;
                    if !self.layouts.moved(inode, &layout, offset, end).await? {
                        return done;
                    }
                }
            }
            if turn.is_none() {
                // not with new locks in hand: who moves the data may want them
                layout = self.layouts.for_write(inode, offset, end).await?;
            }
        }
    }

    /// Whether writes to a file of this layout may stay dirty.
    pub fn may_keep(&self, layout: &FileLayout) -> bool {
        self.cache.enabled() && coverable(layout)
    }

    /// Where a file ends that `cover` is for, if it has all of it locked, and since when it has ([`Dirty::whole_since`]). The caller lets
    /// no write of this client come between, and puts there only what may be put while all of it has been locked since.
    pub async fn end_under(&self, cover: &Cover, fid: Fid) -> Result<Option<(u64, u64)>, Error> {
        let w = cover.writes.as_ref().ok_or(Error::LocksVoid)?;
        let Some(since) = w.whole_since() else {
            return Ok(None);
        };
        if let Some(end) = w.file_end() {
            return Ok(Some((end, since)));
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
        w.found_end(end, since);
        Ok(Some((end, since)))
    }

    /// Keeps a write back under its cover, if it is locked and there is room. `whole`: only while all of the file has been locked since
    /// then.
    pub async fn keep(
        self: &Arc<Self>,
        cover: Arc<Cover>,
        fid: Fid,
        offset: u64,
        data: &Payload,
        attr: &WriteAttr,
        whole: Option<u64>,
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
        match w.put(&pieces, attr, whole) {
            Put::Kept(out) => {
                w.grew(offset + data.len() as u64);
                self.flusher.fly(fid, &cover, out);
                self.flusher.look_after();
                Ok(Kept::All)
            }
            Put::Closed => Ok(Kept::Again),
            Put::Uncovered => Ok(Kept::Uncovered),
            Put::Full(i, bytes) => {
                let osc = w.objects()[i].osc.clone();
                self.flusher.relieve(&osc);
                Ok(Kept::Full(osc, bytes))
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
        // where the file ends then is asked of the OSTs at the next append
        w.forget_end();
        let mut within = vec![0..0; w.objects().len()];
        pieces
            .iter()
            .for_each(|(i, at, data)| within[*i] = *at..*at + data.len() as u64);
        self.flusher.write_out(fid, cover, &within).await;
        for (i, at, data) in pieces {
            let range = *at..*at + data.len() as u64;
            let o = &w.objects()[*i];
            // pinned: others get none of them before this is there
            let locks = w.locks_on(&[(*i, range.clone())]).unwrap_or_default();
            let pins: Option<Vec<_>> = locks.iter().map(|(_, l)| l.pin()).collect();
            let Some(pins) = pins.filter(|all| !all.is_empty()) else {
                return Ok(false);
            };
            let Some((lock, generation)) = w.backed_by(*i, &range) else {
                return Ok(false);
            };
            let (mut done, max) = (0, o.rpc_bytes() as usize);
            while done < data.len() {
                let n = max.min(data.len() - done);
                if pins.iter().any(LockRef::is_dead) {
                    return Err(o.void().into());
                }
                let by = BackedBy {
                    cookie: lock.info().remote_cookie,
                    generation: Some(generation),
                    granted: false,
                    first: false,
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

    /// Gets locks for a write, and a cover if there is none; done even when the caller gives up. `None`: there are none to be had.
    pub async fn obtain(
        self: &Arc<Self>,
        inode: &Arc<OpenInode>,
        acquiring: Acquiring,
        need: Need,
    ) -> Option<Turn> {
        let (me, inode) = (self.clone(), inode.clone());
        finish(async move {
            let mut turn = Turn {
                drains: me.drains.clone(),
                fid: inode.fid,
                gate: inode.gate.clone(),
                acquiring: Some(acquiring),
                cover: None,
            };
            inode.gate.no_sync_write().await;
            turn.cover = match me.locked(&inode, &turn, &need).await {
                Ok(cover) => cover,
                Err(_) => {
                    inode.gate.contended();
                    None
                }
            };
            turn.cover.is_some().then_some(turn)
        })
        .await
    }

    /// The cover, with locks on what is needed. `None`: there can be none now.
    async fn locked(
        &self,
        inode: &OpenInode,
        turn: &Turn,
        need: &Need,
    ) -> Result<Option<Arc<Cover>>, Error> {
        let (fid, gate) = (inode.fid, &inode.gate);
        let present = gate.writes();
        let first = present.is_none();
        let cover = match present {
            Some(cover) => cover,
            None => {
                let layout = self.layouts.now(inode).await?;
                if !coverable(&layout) {
                    gate.contended();
                    return Ok(None);
                }
                self.bare_cover(layout, fid)?
            }
        };
        let Some(w) = &cover.writes else {
            return Ok(None);
        };
        let wanted = self.wanted(&cover, w, fid, need).await?;
        let full = |(i, range): &(usize, Range<u64>)| w.is_full(*i) && w.gap(*i, range).is_some();
        if wanted.iter().any(full) {
            gate.contended();
            return Ok(None);
        }
        let again = matches!(need, Need::Again(_));
        let blocks = match need {
            Need::Range(_, Some(blocks)) => self.blocks_of(&cover, w, fid, blocks).await?,
            _ => None,
        };
        let locks = self.ask(w, &wanted, again, blocks).await?;
        // who moved the data had these objects locked, and then gave the file others
        if self
            .layouts
            .moved(inode, &cover.layout, 0, u64::MAX)
            .await?
        {
            gate.contended();
            return Ok(None);
        }
        if first {
            self.drains.take_over(fid, &cover).await;
        }
        if !w.adopt(locks, &wanted).await {
            return Ok(None);
        }
        if first {
            let install = || turn.acquiring.as_ref().is_some_and(|t| t.install(&cover));
            if !self.covers.enlist_if(fid, gate, &cover, install) {
                return Ok(None);
            }
            self.drains.shrink();
        }
        Ok(Some(cover))
    }

    /// A cover for writes without locks.
    fn bare_cover(&self, layout: Arc<FileLayout>, fid: Fid) -> Result<Arc<Cover>, Error> {
        let object = |s: crate::lov::Stripe<'_>| {
            Ok::<_, Error>(Object {
                osc: self.servers.lov.osc(s.ost())?,
                object: s.object(fid),
            })
        };
        let objects = layout.stripes().map(object).collect::<Result<_, _>>()?;
        Ok(Cover::for_writes(layout, Dirty::new(objects)))
    }

    /// The ranges of objects that are needed, in the order of the stripes, one of each.
    async fn wanted(
        &self,
        cover: &Cover,
        w: &Dirty,
        fid: Fid,
        need: &Need,
    ) -> Result<Vec<(usize, Range<u64>)>, Error> {
        let (Need::Range(r, _) | Need::Again(r)) = need else {
            return Ok((0..w.objects().len()).map(|i| (i, EVERYTHING)).collect());
        };
        let lov = &self.servers.lov;
        let places = lov
            .places(&cover.layout, fid, r.start, r.end - r.start)
            .await?;
        let mut of_each = BTreeMap::<usize, Range<u64>>::new();
        for (object, range) in places {
            let there = of_each.entry(w.place(&object)?).or_insert(range.clone());
            *there = there.start.min(range.start)..there.end.max(range.end);
        }
        Ok(of_each.into_iter().collect())
    }

    /// Blocks of a file as they are in an object: the one that is being written, and all of them. `None`: they are not at one distance in one
    /// object, or no whole pages.
    async fn blocks_of(
        &self,
        cover: &Cover,
        w: &Dirty,
        fid: Fid,
        of: &FileBlocks,
    ) -> Result<Option<(usize, Range<u64>, Blocks)>, Error> {
        let stride = cover.layout.object_stride(of.start, of.stride);
        let Some(blocks) = stride.and_then(|stride| Blocks::new(of.len, stride)) else {
            return Ok(None);
        };
        let lov = &self.servers.lov;
        let places = lov.places(&cover.layout, fid, of.start, of.len).await?;
        let [(object, range)] = &places[..] else {
            return Ok(None);
        };
        let whole = range.start.is_multiple_of(PAGE_BYTES) && range.end - range.start == of.len;
        Ok(match whole {
            true => Some((w.place(object)?, range.clone(), blocks)),
            false => None,
        })
    }

    /// Asks for what is wanted and not locked, in the order of the stripes, one lock of each object. Every client does so, and keeps what
    /// it was given until it has all; so who waits for a lock of an object holds new ones only of objects before it, and none
    /// waits in a circle. What the cover had before is asked back and goes meanwhile, also where it lies within what is
    /// asked for: writing it out waits for no lock. `again`: of an object of which something is not locked, all that is wanted is
    /// asked for. `blocks`: what is wanted of an object is in one of these, all of which is asked for.
    async fn ask(
        &self,
        w: &Dirty,
        wanted: &[(usize, Range<u64>)],
        again: bool,
        blocks: Option<(usize, Range<u64>, Blocks)>,
    ) -> Result<Vec<Granted>, Error> {
        let mut locks = Vec::new();
        for (i, range) in wanted {
            let o = &w.objects()[*i];
            let Some(gap) = w.gap(*i, range) else {
                continue;
            };
            let within = |(place, block, _): &&(usize, Range<u64>, Blocks)| {
                place == i && block.start <= range.start && range.end <= block.end
            };
            let (asked, blocks) = match blocks.as_ref().filter(within) {
                Some((_, block, blocks)) => (block.clone(), Some(*blocks)),
                None if again => (range.clone(), None),
                // who writes what lies between its blocks has no use for a lock on these alone: it goes for the new one
                None if w.has_block_at(*i, gap.end) => {
                    (gap.start..gap.end.saturating_add(PAGE_BYTES), None)
                }
                None => (gap, None),
            };
            w.replace(*i, &asked);
            let generation = || o.osc.import().generation();
            let ask = || o.osc.lock_range(&o.object, &asked, LdlmMode::PW, blocks);
            let (generation, lock) = within_one(generation, ask).await?;
            locks.push((*i, generation, lock));
        }
        Ok(locks)
    }

    /// Reads under the cover for writes; `None`: not all of it is locked.
    pub async fn read(
        self: &Arc<Self>,
        cover: &Arc<Cover>,
        fid: Fid,
        offset: u64,
        len: usize,
    ) -> Result<Option<Payload>, Error> {
        let Some(w) = &cover.writes else {
            return Ok(None);
        };
        let lov = &self.servers.lov;
        let places = lov
            .places(&cover.layout, fid, offset, len as u64)
            .await?
            .into_iter()
            .map(|(object, range)| Ok((w.place(&object)?, range)))
            .collect::<Result<Vec<_>, Error>>()?;
        if let [(i, range)] = &places[..]
            && let Some(found) = w.read(*i, range)
        {
            return Ok(Some(found));
        }
        let Some(locks) = w.locks_on(&places) else {
            return Ok(None);
        };
        let held = locks.into_iter().map(|(i, l)| (w.objects()[i].object, l));
        let held = Locks::of_ranges(held.collect(), w.is_whole());
        let ahead = w.ahead(&cover.layout);
        let mut within = vec![0..0; w.objects().len()];
        for (i, range) in places {
            within[i] = range;
        }
        self.flusher.write_out(fid, cover, &within).await;
        let there = ahead.map_or(0, |a| a.size.saturating_sub(offset));
        let len = match lov.tells_the_end() {
            true => len,
            // as [`super::file_io`] does, but under the cover's locks: it may be drained by now, and whoever waits for a lock of
            // another client with these in hand waits in a circle
            false => {
                let size = lov.end(&cover.layout, fid, &held).await?;
                len.min(size.saturating_sub(offset).max(there) as usize)
            }
        };
        let got = lov.read(&cover.layout, fid, offset, len, &held).await?;
        // the end may be further than the OSTs know; up to there is a hole
        Ok(Some(pad(got, len.min(there as usize))))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn what_was_granted_across_an_eviction_is_asked_for_again() {
        let (generation, asked) = (Cell::new(7), Cell::new(0));
        let ask = async || {
            asked.set(asked.get() + 1);
            // the client is evicted the first two times
            generation.set(generation.get() + u64::from(asked.get() < 3));
            Ok::<_, Error>(asked.get())
        };
        let got = within_one(|| generation.get(), &ask).await;
        assert_eq!(got.expect("granted"), (9, 3));
    }
}
