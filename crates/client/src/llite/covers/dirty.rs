//! The dirty data of one file, of each of its objects, under the locks of one cover.
//!
//! No message is sent here: what is to go out is handed out as flights, and their end is told ([`Dirty::landed`]).

use std::ops::Range;
use std::sync::Arc;

use coral_buffers::Payload;
use coral_wire::coral::blocks::Span;
use coral_wire::ldlm::ResId;
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::opc;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::backing::RangeLock;
use super::extents::ExtentLocks;
use super::map::{DirtyMap, Flight, Wanted};
use crate::error::{Error, TargetError};
use crate::grant::{NoRoom, PAGE_BYTES, pages_bytes};
use crate::lov::FileLayout;
use crate::osc::{ObjectAttr, ObjectRef, Osc, WriteAttr};
use crate::time::Timespec;

/// Of an object.
pub(in crate::llite) const EVERYTHING: Range<u64> = 0..u64::MAX;

/// An object by {OST index, resource}.
pub(in crate::llite) type ObjectKey = (u32, ResId);

/// One object of a cover for writes.
pub(in crate::llite) struct Object {
    /// Its OST.
    pub osc: Arc<Osc>,
    /// The object.
    pub object: ObjectRef,
}

impl Object {
    /// Largest RPC, bytes, whole pages.
    pub fn rpc_bytes(&self) -> u64 {
        self.osc.rpc_bytes() as u64 / PAGE_BYTES * PAGE_BYTES
    }

    /// Why nothing can be written to it any more: its lock is void.
    pub fn void(&self) -> TargetError {
        let (import, fid) = (self.osc.import(), self.object.parent);
        TargetError::LockVoid(import.call_named(opc::OST_WRITE, 0, fid))
    }
}

#[derive(Default)]
pub(super) struct Inner {
    /// One for each object.
    pub(super) maps: Vec<DirtyMap>,
    /// What is locked of each object.
    pub(super) locks: Vec<ExtentLocks<RangeLock>>,
    /// Owner and newest time.
    attr: WriteAttr,
    /// Where the file ends, once it was asked for (by an append) and while all of it is locked.
    file_end: Option<u64>,
    /// Times at which others may have begun to move it.
    pub(super) losses: u64,
    /// Nothing is taken any more: it is being drained.
    pub(super) closed: bool,
}

/// Dirty data of one file.
pub(in crate::llite) struct Dirty {
    /// In the order of the layout's stripes.
    pub(super) objects: Vec<Object>,
    pub(super) inner: Mutex<Inner>,
    /// Something landed.
    landed: Notify,
    /// A lock has gone, or nothing is taken any more.
    pub(super) changed: Notify,
}

impl std::fmt::Debug for Dirty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dirty({} objects)", self.objects.len())
    }
}

/// A part of a write: the object by its place in the cover, offset in it, data.
pub(in crate::llite) type Piece = (usize, u64, Payload);

/// Ranges of objects on their way out.
#[derive(Default)]
pub(in crate::llite) struct Taken {
    /// To be sent now.
    pub out: Vec<(usize, Flight)>,
    /// All flights there, these among them: object by its place, id.
    pub under_way: Vec<(usize, u64)>,
    /// Something is left that waits for flights.
    pub left: bool,
}

/// What became of a write that was to stay dirty.
pub(in crate::llite) enum Put {
    /// It is; these may go out.
    Kept(Vec<(usize, Flight)>),
    /// The cover goes.
    Closed,
    /// Not all of it is locked.
    Uncovered,
    /// This OST's limit is reached; bytes wanted.
    Full(usize, u64),
    /// Not enough is granted.
    NoGrant,
}

/// What the OSTs do not know of yet.
#[derive(Debug, Clone, Copy)]
pub(in crate::llite) struct Ahead {
    /// The file is at least so long, bytes.
    pub size: u64,
    /// When it was written last.
    mtime: Timespec,
    /// Bytes dirty.
    bytes: u64,
}

impl Ahead {
    /// What the OSTs say, completed. Blocks are an estimate: dirty data may overwrite.
    pub fn complete(&self, mut a: ObjectAttr) -> ObjectAttr {
        a.size = a.size.max(self.size);
        a.mtime = a.mtime.max(self.mtime);
        a.ctime = a.ctime.max(self.mtime);
        let most = a.size.div_ceil(PAGE_BYTES) * (PAGE_BYTES / 512);
        a.blocks = a.blocks.max((a.blocks + self.bytes / 512).min(most));
        a
    }
}

impl Dirty {
    /// Nothing yet.
    pub fn new(objects: Vec<Object>) -> Self {
        let maps = objects.iter().map(|_| DirtyMap::default()).collect();
        let locks = objects.iter().map(|_| ExtentLocks::default()).collect();
        Self {
            objects,
            inner: Mutex::new(Inner {
                maps,
                locks,
                ..Default::default()
            }),
            landed: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Place of an object; EIO when it is none of these.
    pub fn place(&self, object: &ObjectRef) -> Result<usize, Error> {
        self.objects
            .iter()
            .position(|o| o.object == *object)
            .ok_or(Error::LocksVoid)
    }

    /// Keeps a write back, all of it or nothing. `whole`: only while every byte of the file has been locked since then
    /// ([`Dirty::whole_since`]).
    pub fn put(&self, pieces: &[Piece], attr: &WriteAttr, whole: Option<u64>) -> Put {
        // who is not let in needs no room; asked again below, when there is room
        if let Some(no) = self.inner.lock().refuses(pieces, whole) {
            return no;
        }
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
        if let Some(no) = inner.refuses(pieces, whole) {
            drop(inner);
            give_back(pieces);
            return no;
        }
        let now = Instant::now();
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
            // a request may have become whole where this was written
            let range = p.1..p.1 + p.2.len() as u64;
            inner.locks[p.0].put(&range, now);
            let map = &mut inner.maps[p.0];
            while let Some(f) = map.take(&range, object.rpc_bytes(), Wanted::Whole) {
                out.push((p.0, f));
            }
        }
        Put::Kept(out)
    }

    /// What is to be done to write out the ranges that `within` names for each object.
    pub fn take(&self, within: &[Range<u64>]) -> Taken {
        let mut inner = self.inner.lock();
        let mut taken = Taken::default();
        for (i, (map, range)) in inner.maps.iter_mut().zip(within).enumerate() {
            while let Some(f) = map.take(range, self.objects[i].rpc_bytes(), Wanted::All) {
                taken.out.push((i, f));
            }
            let (left, mut under_way) = (map.has_dirty(range), map.flights(range));
            if left && under_way.is_empty() {
                // what is left is of a piece that reaches beyond, where something flies
                under_way = map.flights(&EVERYTHING);
            }
            taken
                .under_way
                .extend(under_way.into_iter().map(|id| (i, id)));
            taken.left |= left;
        }
        taken
    }

    /// What is to be sent to make room. Of an object of which some is on its way only full requests: the rest goes when that has
    /// landed, unless it is more by then.
    pub fn relieve(&self) -> Vec<(usize, Flight)> {
        let mut inner = self.inner.lock();
        let mut out = Vec::new();
        for (i, map) in inner.maps.iter_mut().enumerate() {
            let what = match map.has_flights() {
                true => Wanted::Full,
                false => Wanted::All,
            };
            while let Some(f) = map.take(&EVERYTHING, self.objects[i].rpc_bytes(), what) {
                out.push((i, f));
            }
        }
        out
    }

    /// Resolves once all these have landed.
    pub async fn have_landed(&self, flights: &[(usize, u64)]) {
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
    pub fn grew(&self, end: u64) {
        if let Some(known) = &mut self.inner.lock().file_end {
            *known = end.max(*known);
        }
    }

    /// Nothing is dirty, nor on its way.
    pub fn is_clean(&self) -> bool {
        self.inner.lock().maps.iter().all(DirtyMap::is_clean)
    }

    /// Everything, as [`Self::take`] wants it said.
    pub fn whole(&self) -> Vec<Range<u64>> {
        vec![EVERYTHING; self.objects.len()]
    }

    /// A range of object `i`.
    pub fn one(&self, i: usize, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut within = vec![0..0; self.objects.len()];
        within[i] = range.clone();
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
    pub fn lvb(&self, key: ObjectKey) -> Option<OstLvb> {
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

    /// The objects, in the order of the layout's stripes.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Owner and newest time of dirty data.
    pub fn attr(&self) -> WriteAttr {
        self.inner.lock().attr
    }

    /// Where the file ends, if that is known.
    pub fn file_end(&self) -> Option<u64> {
        self.inner.lock().file_end
    }

    /// Where the file ends is not known any more.
    pub fn forget_end(&self) {
        self.inner.lock().forget_end();
    }

    /// The file ends there, if nothing was lost since ([`Dirty::whole_since`]).
    pub fn found_end(&self, end: u64, since: u64) {
        let mut inner = self.inner.lock();
        if inner.losses == since {
            inner.file_end = Some(end);
        }
    }

    /// Takes nothing any more.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Nothing is dirty in `extent` of object `i`, nor on its way.
    pub fn is_clean_at(&self, i: usize, extent: &Span) -> bool {
        let map = &self.inner.lock().maps[i];
        map.dirty_in(extent).next().is_none() && !map.flies_in(extent)
    }

    /// The bytes in `range` of object `i`, if all of them are dirty.
    pub fn read(&self, i: usize, range: &Range<u64>) -> Option<Payload> {
        self.inner.lock().maps[i].read(range)
    }

    /// A flight of object `i` has ended.
    pub fn landed(&self, i: usize, flight: u64) {
        self.inner.lock().maps[i].landed(flight);
        self.landed.notify_waiters();
    }
}

impl Inner {
    pub(super) fn forget_end(&mut self) {
        (self.file_end, self.losses) = (None, self.losses + 1);
    }

    /// Why these are not taken, if they are not.
    fn refuses(&self, pieces: &[Piece], whole: Option<u64>) -> Option<Put> {
        if self.closed {
            return Some(Put::Closed);
        }
        let locked = |p: &Piece| self.locks[p.0].cover(&(p.1..p.1 + p.2.len() as u64));
        let as_before = |since| self.losses == since && self.is_whole();
        let taken = pieces.iter().all(locked) && whole.is_none_or(as_before);
        (!taken).then_some(Put::Uncovered)
    }
}
