//! Write-back: data of write(2) is kept back under extent locks and goes to the OSTs later, in large requests and several at
//! once, while the writer goes on.
//!
//! What is kept back belongs to a [`Cover`] of the file that serves nothing else: PW locks on the whole of every object. It is
//! written out when a whole RPC is together, at the latest after [`AGE`], and before: a lock of the cover is given back,
//! fsync, a read of the range, a change of size or times, another use of the cover, unmount.
//!
//! Invariants:
//! - data is kept back only while the cover's locks are held, and each lock goes when the last of its object's data has landed:
//!   an OST that is not there keeps no lock of another;
//! - what is kept back has room: its pages are taken from the OST's grant first ([`crate::osc::grant`]); without grant the
//!   write goes out at once and is told ENOSPC itself;
//! - writing out waits for no lock and for no request that may wait for one; nobody waits for it with a lock in hand that
//!   others ask for, unless the lock is the cover's own;
//! - what could not be written out is lost, as in Lustre, and each open handle is told once ([`Lost`]). After an eviction by an
//!   OST nothing is sent there any more ([`BackedBy::generation`]): others may have written there.
//!
//! Lustre: `lustre/osc/osc_cache.c`, `osc_io.c`, `vvp_io.c`. Absent: locks on parts of objects; the cache of clean data is the
//! kernel's.

mod map;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coral_ldlm::LockRef;
use coral_lnet::Payload;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::ldlm::LdlmMode;
use coral_wire::ost::OstLvb;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Llite;
use super::file::{FileHandle, end_of};
use super::finish::finish;
use super::open_inode::OpenInode;
use super::pages::{Acquiring, Cover, Gate, ObjectKey, Writing, coverable};
use crate::lov::{FileLayout, pad};
use crate::osc::grant::{NoRoom, PAGE_BYTES, pages_bytes};
use crate::osc::{BackedBy, IN_FLIGHT, ObjectAttr, ObjectRef, Osc, WriteAttr};
use crate::time::Timespec;
use map::{DirtyMap, Flight};

/// What was kept back is written out after this.
const AGE: Duration = Duration::from_secs(1);

const EVERYTHING: Range<u64> = 0..u64::MAX;

/// One object of a cover for writes.
pub(super) struct Object {
    osc: Arc<Osc>,
    object: ObjectRef,
    /// Of the import, from before the lock was asked for.
    generation: u64,
}

impl Object {
    /// Largest RPC, bytes, whole pages.
    fn rpc_bytes(&self) -> u64 {
        self.osc.rpc_bytes() as u64 / PAGE_BYTES * PAGE_BYTES
    }
}

#[derive(Default)]
struct Inner {
    /// One for each object.
    maps: Vec<DirtyMap>,
    /// Owner and newest time.
    attr: WriteAttr,
    /// Where the file ends, once it was asked for (by an append).
    file_end: Option<u64>,
    /// Nothing is taken any more: it is being drained.
    closed: bool,
}

/// What is kept back of one file.
pub(super) struct WriteBack {
    /// In the order of the layout's stripes.
    objects: Vec<Object>,
    inner: Mutex<Inner>,
    /// Something landed.
    landed: Notify,
}

impl std::fmt::Debug for WriteBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WriteBack({} objects)", self.objects.len())
    }
}

/// A part of a write: the object by its place in the cover, offset in it, data.
pub(super) type Piece = (usize, u64, Payload);

/// Ranges of objects on their way out.
#[derive(Default)]
struct Taken {
    /// To be sent now.
    out: Vec<(usize, Flight)>,
    /// All flights there, these among them: object by its place, id.
    under_way: Vec<(usize, u64)>,
    /// Something is left that waits for flights.
    left: bool,
}

/// What became of a write that was to be kept back.
pub(super) enum Kept {
    /// It is.
    All,
    /// It is to be decided anew how it goes.
    Again,
    /// Not enough is granted: nothing of it is.
    NoGrant(Arc<Cover>, Vec<Piece>),
}

/// The same by what stands in the way.
enum Put {
    /// It is; these may go out.
    Kept(Vec<(usize, Flight)>),
    /// The cover goes.
    Closed,
    /// This OST's limit is reached; bytes wanted.
    Full(usize, u64),
    /// Not enough is granted.
    NoGrant,
}

/// What the OSTs do not know of yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    /// The file is at least so long, bytes.
    size: u64,
    /// When it was written last.
    mtime: Timespec,
    /// Bytes kept back.
    bytes: u64,
}

impl Ahead {
    /// What the OSTs say, completed. Blocks are an estimate: what is kept back may overwrite.
    pub fn complete(&self, mut a: ObjectAttr) -> ObjectAttr {
        a.size = a.size.max(self.size);
        a.mtime = a.mtime.max(self.mtime);
        a.ctime = a.ctime.max(self.mtime);
        let most = a.size.div_ceil(PAGE_BYTES) * (PAGE_BYTES / 512);
        a.blocks = a.blocks.max((a.blocks + self.bytes / 512).min(most));
        a
    }
}

impl WriteBack {
    /// Nothing yet.
    pub fn new(objects: Vec<Object>) -> Self {
        let maps = objects.iter().map(|_| DirtyMap::default()).collect();
        Self {
            objects,
            inner: Mutex::new(Inner {
                maps,
                ..Default::default()
            }),
            landed: Notify::new(),
        }
    }

    fn place(&self, object: &ObjectRef) -> Result<usize, Errno> {
        self.objects
            .iter()
            .position(|o| o.object == *object)
            .ok_or(Errno::EIO)
    }

    /// Keeps a write back, all of it or nothing.
    fn put(&self, pieces: &[Piece], attr: &WriteAttr) -> Put {
        let cost = |(_, at, data): &Piece| pages_bytes(*at, at + data.len() as u64);
        let give_back = |these: &[Piece]| {
            these
                .iter()
                .for_each(|p| self.objects[p.0].osc.grant().unreserve(cost(p)))
        };
        for (n, p) in pieces.iter().enumerate() {
            let osc = &self.objects[p.0].osc;
            if let Err(why) = osc.grant().reserve(cost(p)) {
                give_back(&pieces[..n]);
                // other objects of the write may be on the same OST
                let there = |q: &&Piece| Arc::ptr_eq(&self.objects[q.0].osc, osc);
                let wanted = pieces.iter().filter(there).map(cost).sum();
                return match why {
                    NoRoom::Full if wanted <= osc.grant().max_dirty() => Put::Full(p.0, wanted),
                    _ => Put::NoGrant,
                };
            }
        }
        let mut inner = self.inner.lock();
        if inner.closed {
            drop(inner);
            give_back(pieces);
            return Put::Closed;
        }
        inner.attr = WriteAttr {
            time: attr.time.max(inner.attr.time),
            ..*attr
        };
        let mut out = Vec::new();
        for p in pieces {
            let (object, map) = (&self.objects[p.0], &mut inner.maps[p.0]);
            let before = map.cost();
            map.insert(p.1, p.2.clone());
            object.osc.grant().unreserve(cost(p) + before - map.cost());
            while let Some(f) = map.take(&EVERYTHING, object.rpc_bytes(), true) {
                out.push((p.0, f));
            }
        }
        Put::Kept(out)
    }

    /// What is to be done to write out the ranges that `within` names for each object.
    fn take(&self, within: &[Range<u64>]) -> Taken {
        let mut inner = self.inner.lock();
        let Taken {
            mut out,
            mut under_way,
            mut left,
        } = Taken::default();
        for (i, (map, range)) in inner.maps.iter_mut().zip(within).enumerate() {
            while let Some(f) = map.take(range, self.objects[i].rpc_bytes(), false) {
                out.push((i, f));
            }
            under_way.extend(map.flights(range).map(|id| (i, id)));
            left |= map.has_dirty(range);
        }
        Taken {
            out,
            under_way,
            left,
        }
    }

    /// Resolves once all these have landed.
    async fn have_landed(&self, flights: &[(usize, u64)]) {
        loop {
            let landed = self.landed.notified();
            tokio::pin!(landed);
            landed.as_mut().enable();
            {
                let inner = self.inner.lock();
                if !flights.iter().any(|(i, id)| inner.maps[*i].flies(*id)) {
                    return;
                }
            }
            landed.await;
        }
    }

    /// A write ends there.
    fn grew(&self, end: u64) {
        if let Some(known) = &mut self.inner.lock().file_end {
            *known = end.max(*known);
        }
    }

    fn is_clean(&self) -> bool {
        self.inner.lock().maps.iter().all(DirtyMap::is_clean)
    }

    fn whole(&self) -> Vec<Range<u64>> {
        vec![EVERYTHING; self.objects.len()]
    }

    /// All of object `i`.
    fn one(&self, i: usize) -> Vec<Range<u64>> {
        let mut within = vec![0..0; self.objects.len()];
        within[i] = EVERYTHING;
        within
    }

    /// What the OSTs do not know of yet, if anything.
    pub fn ahead(&self, layout: &FileLayout) -> Option<Ahead> {
        let inner = self.inner.lock();
        let ends = layout
            .stripes()
            .zip(&inner.maps)
            .filter(|(_, m)| !m.is_clean())
            .map(|(s, m)| s.file_size(m.end()));
        let size = ends.max()?;
        let bytes = inner.maps.iter().map(DirtyMap::bytes).sum();
        Some(Ahead {
            size,
            mtime: inner.attr.time,
            bytes,
        })
    }

    /// The same of one object, as a glimpse asks for it.
    fn lvb(&self, key: ObjectKey) -> Option<OstLvb> {
        let i = self
            .objects
            .iter()
            .position(|o| (o.osc.index, o.object.oi.res_id()) == key)?;
        let inner = self.inner.lock();
        let map = inner.maps.get(i).filter(|m| !m.is_clean())?;
        let t = inner.attr.time;
        Some(OstLvb {
            size: map.end(),
            blocks: map.bytes() / 512,
            mtime: t.secs,
            mtime_ns: t.nanos,
            ctime: t.secs,
            ctime_ns: t.nanos,
            ..Default::default()
        })
    }
}

/// Errors of writing out, for handles that were open then.
#[derive(Debug, Default)]
pub(super) struct Lost {
    last: Mutex<(u64, Option<Errno>)>,
}

impl Lost {
    fn note(&self, e: Errno) {
        let mut l = self.last.lock();
        *l = (l.0 + 1, Some(e));
    }

    /// Errors so far: a new handle does not hear of them.
    pub fn count(&self) -> u64 {
        self.last.lock().0
    }

    /// The last error if it came after the one `seen`, once.
    pub fn take(&self, seen: &AtomicU64) -> Result<(), Errno> {
        let (count, e) = *self.last.lock();
        match e {
            Some(e) if seen.swap(count, Ordering::AcqRel) != count => Err(e),
            _ => Ok(()),
        }
    }
}

impl Llite {
    /// Writes all of `data` at `offset`: keeps it back where that pays, else hands it to the OSTs.
    pub(super) async fn write_range(
        self: &Arc<Self>,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
        attr: &WriteAttr,
    ) -> Result<(), Errno> {
        let (inode, fid) = (&fh.inode, fh.fid());
        let end = end_of(offset, data.len() as u64)?;
        let _whole = inode.writes.lock(offset..end).await;
        let worth = fh.count_write() && !fh.is_sync();
        loop {
            let layout = self.layout_for_write(fh, offset, end).await?;
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
                Writing::Drain => self.spawn_drain(fid, inode.gate.clone()),
                Writing::Through(_through) => {
                    let done = self
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
                    if !self.moved(inode, &layout, offset, end).await? {
                        return done;
                    }
                }
            }
        }
    }

    /// Whether writes to a file of this layout may be kept back.
    pub(super) fn may_keep(&self, layout: &FileLayout) -> bool {
        self.cache.enabled() && coverable(layout)
    }

    /// Where a file ends that `cover` is for; the caller lets no write of this client come between.
    pub(super) async fn end_under(&self, cover: &Cover, fid: Fid) -> Result<u64, Errno> {
        let w = cover.writes.as_ref().ok_or(Errno::EIO)?;
        if let Some(end) = w.inner.lock().file_end {
            return Ok(end);
        }
        // what is kept back may land while the OSTs are asked: one of both tells of it
        let kept = w.ahead(&cover.layout).map_or(0, |a| a.size);
        let stored = self.lov.getattr_locked(&cover.layout, fid).await?.size;
        let end = stored.max(kept);
        w.inner.lock().file_end = Some(end);
        Ok(end)
    }

    /// Keeps a write back under its cover, if there is room.
    pub(super) async fn keep(
        self: &Arc<Self>,
        cover: Arc<Cover>,
        fid: Fid,
        offset: u64,
        data: &Payload,
        attr: &WriteAttr,
    ) -> Result<Kept, Errno> {
        let Some(w) = &cover.writes else {
            return Ok(Kept::Again);
        };
        let pieces = self.lov.pieces(&cover.layout, fid, offset, data).await?;
        let pieces: Vec<Piece> = pieces
            .into_iter()
            .map(|(o, at, data)| w.place(&o).map(|i| (i, at, data)))
            .collect::<Result<_, _>>()?;
        match w.put(&pieces, attr) {
            Put::Kept(out) => {
                w.grew(offset + data.len() as u64);
                self.fly(fid, &cover, out);
                self.look_after();
                Ok(Kept::All)
            }
            Put::Closed => Ok(Kept::Again),
            Put::Full(i, bytes) => {
                let osc = w.objects[i].osc.clone();
                self.relieve(&osc);
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
    ) -> Result<bool, Errno> {
        let Some(w) = &cover.writes else {
            return Ok(false);
        };
        // how far it comes is seen when an append asks
        w.inner.lock().file_end = None;
        let mut within = vec![0..0; w.objects.len()];
        pieces
            .iter()
            .for_each(|(i, at, data)| within[*i] = *at..*at + data.len() as u64);
        self.write_out(fid, cover, &within).await;
        for (i, at, data) in pieces {
            let Some(lock) = cover.lock(*i) else {
                return Ok(false);
            };
            let o = &w.objects[*i];
            let (mut done, max) = (0, o.rpc_bytes() as usize);
            while done < data.len() {
                let n = max.min(data.len() - done);
                if lock.is_dead() {
                    return Err(Errno::EIO);
                }
                let by = BackedBy {
                    cookie: lock.info().remote_cookie,
                    generation: o.generation,
                    granted: false,
                };
                o.osc
                    .write_back(
                        &o.object,
                        at + done as u64,
                        data.slice(done..done + n),
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
    pub(super) async fn acquire_turn(self: &Arc<Self>, inode: &Arc<OpenInode>, turn: Acquiring) {
        let (me, inode) = (self.clone(), inode.clone());
        finish(async move { me.acquire_writes(&inode, turn).await }).await;
    }

    async fn acquire_writes(self: &Arc<Self>, inode: &OpenInode, turn: Acquiring) {
        let (fid, gate) = (inode.fid, &inode.gate);
        gate.none_through().await;
        let cover = match self.cover_for_writes(inode).await {
            Ok(Some(c)) if !c.is_blocked() => c,
            _ => return gate.contended(),
        };
        if !self
            .pages
            .enlist_if(fid, gate, &cover, || turn.install(&cover))
        {
            return;
        }
        // asked back before anybody could be told
        if cover.is_blocked() && gate.begin_drain(None) {
            gate.contended();
            self.spawn_drain(fid, gate.clone());
        }
        self.shrink_pages();
    }

    async fn cover_for_writes(&self, inode: &OpenInode) -> Result<Option<Arc<Cover>>, Errno> {
        let layout = self.layout_now(inode).await?;
        if !coverable(&layout) {
            return Ok(None);
        }
        let mut before = Vec::new();
        for s in layout.stripes() {
            let osc = self.lov.osc(s.ost())?;
            before.push((osc.import().generation(), osc));
        }
        let locks = self.lock_objects(&layout, inode.fid, LdlmMode::PW).await?;
        // who moved the data had these objects locked, and then gave the file others
        if self.moved(inode, &layout, 0, u64::MAX).await? {
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
        let writes = WriteBack::new(before.into_iter().zip(&locks).map(object).collect());
        Ok(Some(Cover::for_writes(layout, locks, writes)))
    }

    /// Sends these on their way.
    fn fly(self: &Arc<Self>, fid: Fid, cover: &Arc<Cover>, flights: Vec<(usize, Flight)>) {
        for (i, f) in flights {
            let (me, cover) = (self.clone(), cover.clone());
            self.runtime
                .spawn(async move { me.land(fid, &cover, i, f).await });
        }
    }

    /// Carries one flight to its end.
    async fn land(self: &Arc<Self>, fid: Fid, cover: &Cover, i: usize, f: Flight) {
        let Some(w) = &cover.writes else { return };
        let (o, range, cost) = (&w.objects[i], f.range(), f.cost());
        let done = {
            let _place = o.osc.write_backs().acquire().await;
            let attr = w.inner.lock().attr;
            // held: its object is not clean while this flies
            match cover.lock(i).filter(|l| !l.is_dead()) {
                None => Err(Errno::EIO),
                Some(l) => {
                    let by = BackedBy {
                        cookie: l.info().remote_cookie,
                        generation: o.generation,
                        granted: true,
                    };
                    o.osc
                        .write_back(&o.object, f.start, f.data, &attr, by)
                        .await
                }
            }
        };
        o.osc.grant().used(cost);
        if let Err(e) = done {
            w.inner.lock().file_end = None;
            self.lost(fid, &o.object, &range, e);
        }
        w.inner.lock().maps[i].landed(f.id);
        w.landed.notify_waiters();
        // it was put off while much was on its way
        if o.osc.grant().is_wanted() {
            self.relieve(&o.osc);
        }
    }

    fn lost(&self, fid: Fid, object: &ObjectRef, range: &Range<u64>, why: Errno) {
        tracing::error!(%fid, object = ?object.oi, start = range.start, end = range.end, error = %why, "written data could not be stored and is lost");
        if let Some(inode) = self.opened(fid) {
            inode.lost.note(why);
        }
    }

    /// Changes that servers had acknowledged are gone with their memory, and could not be brought again.
    pub(super) fn changes_lost(&self, lost: &coral_ptlrpc::Lost) {
        for fid in &lost.files {
            tracing::error!(%fid, "a server was restarted and has lost acknowledged changes that could not be made again");
        }
        if lost.more {
            tracing::error!(
                "a server was restarted and has lost acknowledged writes of more files than are kept account of"
            );
        }
        lost.files.iter().for_each(|fid| self.lost_dirs.note(*fid));
        for inode in self.all_opened() {
            if lost.more || lost.files.contains(&inode.fid) {
                inode.lost.note(Errno::EIO);
            }
        }
    }

    /// Writes out what is kept back in these ranges of the objects and waits until it has landed. What is written meanwhile is
    /// not waited for.
    async fn write_out(self: &Arc<Self>, fid: Fid, cover: &Arc<Cover>, within: &[Range<u64>]) {
        let Some(w) = &cover.writes else { return };
        loop {
            let Taken {
                out,
                under_way,
                left,
            } = w.take(within);
            self.fly(fid, cover, out);
            w.have_landed(&under_way).await;
            if !left {
                return;
            }
        }
    }

    /// The cover goes: of each object writes everything out, or drops it when its lock is void, and gives its lock back. None
    /// waits for another: their OSTs may be dead.
    pub(super) async fn write_all_out(self: &Arc<Self>, fid: Fid, cover: &Arc<Cover>) {
        let Some(w) = &cover.writes else { return };
        w.inner.lock().closed = true;
        join_all((0..w.objects.len()).map(|i| async move {
            while !w.inner.lock().maps[i].is_clean() {
                if cover.is_dead(i) {
                    self.discard(fid, w, i);
                }
                self.write_out(fid, cover, &w.one(i)).await;
            }
            cover.give_back(i);
        }))
        .await;
    }

    fn discard(&self, fid: Fid, w: &WriteBack, i: usize) {
        let gone = {
            let mut inner = w.inner.lock();
            let map = &mut inner.maps[i];
            map.has_dirty(&EVERYTHING)
                .then(|| (0..map.end(), map.discard()))
        };
        if let Some((range, cost)) = gone {
            w.objects[i].osc.grant().used(cost);
            self.lost(fid, &w.objects[i].object, &range, Errno::EIO);
        }
    }

    /// What was written through any handle is at the OSTs, as far as it was not lost.
    pub(super) async fn flush_writes(self: &Arc<Self>, inode: &OpenInode) {
        if let Some(cover) = inode.gate.writes()
            && let Some(w) = &cover.writes
        {
            self.write_out(inode.fid, &cover, &w.whole()).await;
        }
    }

    /// The same, and there is no cover for writes any more.
    pub(super) async fn settle(self: &Arc<Self>, fid: Fid, gate: &Arc<Gate>) {
        self.settle_later(fid, gate);
        gate.no_writes().await;
    }

    /// The same without waiting.
    pub(super) fn settle_later(self: &Arc<Self>, fid: Fid, gate: &Arc<Gate>) {
        if gate.begin_drain_writes() {
            self.spawn_drain(fid, gate.clone());
        }
    }

    /// Files of which written data is kept back.
    pub fn unwritten(&self) -> Vec<Fid> {
        let dirty = |gate: &Gate| {
            gate.cover()
                .is_some_and(|c| c.writes.as_ref().is_some_and(|w| !w.is_clean()))
        };
        self.pages
            .all()
            .into_iter()
            .filter(|(_, gate)| dirty(gate))
            .map(|(fid, _)| fid)
            .collect()
    }

    /// Writes out what is kept back of all files, however long the OSTs take.
    pub async fn write_out_all(self: &Arc<Self>) {
        let covers = self
            .pages
            .all()
            .into_iter()
            .filter_map(|(fid, gate)| Some((fid, gate.cover()?)));
        join_all(covers.map(|(fid, cover)| async move {
            if let Some(w) = &cover.writes {
                self.write_out(fid, &cover, &w.whole()).await;
            }
        }))
        .await;
    }

    /// Settles every file.
    pub(super) async fn settle_all(self: &Arc<Self>) {
        join_all(
            self.pages
                .all()
                .into_iter()
                .map(|(fid, gate)| async move { self.settle(fid, &gate).await }),
        )
        .await;
    }

    /// Reads under the cover for writes.
    pub(super) async fn read_kept(
        self: &Arc<Self>,
        cover: &Arc<Cover>,
        fid: Fid,
        offset: u64,
        len: usize,
    ) -> Result<Payload, Errno> {
        let Some(w) = &cover.writes else {
            return Err(Errno::EIO);
        };
        let places = self
            .lov
            .places(&cover.layout, fid, offset, len as u64)
            .await?;
        if let [(object, range)] = &places[..]
            && let Some(found) = w.inner.lock().maps[w.place(object)?].read(range)
        {
            return Ok(found);
        }
        let ahead = w.ahead(&cover.layout);
        let mut within = vec![0..0; w.objects.len()];
        for (object, range) in &places {
            within[w.place(object)?] = range.clone();
        }
        self.write_out(fid, cover, &within).await;
        let there = ahead.map_or(0, |a| a.size.saturating_sub(offset));
        let len = match self.lov.tells_the_end() {
            true => len,
            // as [`Self::inside`], but under the cover's locks: it may be drained by now, and whoever waits for a lock of
            // another client with these in hand waits in a circle
            false => {
                let size = self.lov.getattr_locked(&cover.layout, fid).await?.size;
                len.min(size.saturating_sub(offset).max(there) as usize)
            }
        };
        let got = self
            .lov
            .read(&cover.layout, fid, offset, len, &cover.held())
            .await?;
        // the end may be further than the OSTs know; up to there is a hole
        Ok(pad(got, len.min(there as usize)))
    }

    /// What is known here of an object that others ask about.
    pub(super) fn glimpsed(&self, key: ObjectKey) -> Option<OstLvb> {
        let (_, gate) = self.pages.by_object(key)?;
        gate.writes()?.writes.as_ref()?.lvb(key)
    }

    /// Files with a cover for writes.
    fn writing(&self) -> Vec<(Fid, Arc<Cover>)> {
        self.pages
            .all()
            .into_iter()
            .filter_map(|(fid, gate)| Some((fid, gate.writes()?)))
            .collect()
    }

    /// Makes room at an OST: all that is kept back goes out. While much is on its way already this is put off until some of
    /// that has landed ([`Self::land`]).
    fn relieve(self: &Arc<Self>, osc: &Osc) {
        if osc.write_backs().available_permits() > IN_FLIGHT / 2 {
            self.start_all();
        }
    }

    /// Everything kept back goes out; false when there was nothing.
    fn start_all(self: &Arc<Self>) -> bool {
        let mut any = false;
        for (fid, cover) in self.writing() {
            let Some(w) = &cover.writes else { continue };
            any |= !w.is_clean();
            let Taken { out, .. } = w.take(&w.whole());
            self.fly(fid, &cover, out);
        }
        any
    }

    /// Sees to it that what is kept back goes out in time.
    fn look_after(self: &Arc<Self>) {
        if self.flusher.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = Arc::downgrade(self);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(AGE).await;
                let Some(me) = me.upgrade() else { return };
                if me.start_all() {
                    continue;
                }
                me.flusher.store(false, Ordering::Release);
                // kept back just now by one who saw the flag still up
                if !me.start_all() || me.flusher.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}
