//! LOV: maps bytes of files to objects on OSTs and does their I/O, stripe by stripe.
//!
//! Data is never copied: writes hand out slices of the caller's [`Payload`], reads put slices together, holes are slices of
//! one static page of zeroes. Tasks are spawned only where several stripes have much to do.
//!
//! Lustre: `lustre/lov/lov_io.c`, `lov_merge.c`.

mod blocks;
mod layout;
mod locks;
mod pieces;
mod seek;
mod small;
mod together;

pub use layout::{DOM_OST, FileLayout, Form, Part, Stripe};
pub use locks::{HeldLock, Locks};
pub(crate) use together::{AskedFile, Glimpsed};

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use coral_buffers::Payload;
use coral_ldlm::LockRef;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmMode, ResId};
use futures_util::future::try_join_all;
use parking_lot::RwLock;

pub(crate) use self::pieces::pad;
use self::pieces::{assemble, before_gap, merge, sum};
use crate::error::{Error, Refusal};
use crate::lmv::Lmv;
use crate::osc::{IoLock, ObjectAttr, ObjectData, ObjectRef, ObjectTimes, Osc, WriteAttr};

/// From so many bytes per stripe on, stripes are worked on by tasks of their own.
const SPAWN_BYTES: u64 = 256 << 10;

/// The OSTs of a file system.
#[derive(Default)]
pub struct Lov {
    oscs: RwLock<BTreeMap<u32, Arc<Osc>>>,
    /// Where data on MDTs is.
    lmv: Arc<Lmv>,
}

/// A lock on a whole object: {OST index ([`DOM_OST`]: an MDT), resource} and the lock.
pub type ObjectLock = ((u32, ResId), LockRef);

/// A range of one object and the pieces of the file it is made of.
struct ObjectRange {
    osc: Arc<Osc>,
    object: ObjectRef,
    offset: u64,
    len: u64,
    /// (offset relative to the start of the I/O, bytes), in object order.
    pieces: Vec<(u64, u64)>,
}

impl ObjectRange {
    /// The bytes of `data`, which is the whole I/O, that are this range's.
    fn cut(&self, data: &Payload) -> Payload {
        if self.len == data.len() as u64 {
            return data.clone();
        }
        let mut part = Payload::new();
        for (at, len) in &self.pieces {
            part.append(data.slice(*at as usize..(*at + *len) as usize));
        }
        part
    }
}

impl Lov {
    /// No OST yet; data on MDTs is with those of `lmv`.
    pub fn new(lmv: Arc<Lmv>) -> Self {
        Self {
            oscs: RwLock::default(),
            lmv,
        }
    }

    /// Adds or replaces an OST.
    pub fn add(&self, osc: Arc<Osc>) {
        self.oscs.write().insert(osc.index, osc);
    }

    /// Forgets an OST.
    pub fn remove(&self, index: u32) {
        self.oscs.write().remove(&index);
    }

    /// All OSTs by index.
    pub fn oscs(&self) -> Vec<Arc<Osc>> {
        self.oscs.read().values().cloned().collect()
    }

    /// Number of OSTs in use.
    pub fn count(&self) -> usize {
        self.oscs.read().len()
    }

    /// One OST; EIO when the configuration does not know it, or it is deactivated.
    pub fn osc(&self, index: u32) -> Result<Arc<Osc>, Error> {
        let osc = self.oscs.read().get(&index).cloned();
        osc.ok_or(Error::NoOst(index))
    }

    /// An OST that is not used and has an object of `layout`.
    pub fn lacks(&self, layout: &FileLayout) -> Option<u32> {
        let mut osts = layout.stripes().filter(|s| !s.part.md.is_dom());
        osts.find(|s| self.osc(s.ost()).is_err()).map(|s| s.ost())
    }

    /// Who holds a stripe of `fid`: an OST, or the MDT of the file.
    pub async fn store(&self, stripe: &Stripe<'_>, fid: Fid) -> Result<Arc<Osc>, Error> {
        match stripe.part.md.is_dom() {
            true => Ok(self.lmv.of(fid).await?.data().clone()),
            false => self.osc(stripe.ost()),
        }
    }

    /// Size, blocks and newest times over all objects.
    pub async fn getattr(&self, layout: &FileLayout, fid: Fid) -> Result<ObjectAttr, Error> {
        self.collect(layout, fid, IoLock::Server).await
    }

    /// The same for a caller that holds extent locks on every object.
    pub async fn getattr_locked(&self, layout: &FileLayout, fid: Fid) -> Result<ObjectAttr, Error> {
        self.collect(layout, fid, IoLock::Ours(0)).await
    }

    async fn collect(
        &self,
        layout: &FileLayout,
        fid: Fid,
        lock: IoLock,
    ) -> Result<ObjectAttr, Error> {
        let attrs = try_join_all(layout.stripes().map(|s| async move {
            let a = self
                .store(&s, fid)
                .await?
                .getattr(&s.object(fid), lock)
                .await?;
            Ok::<_, Error>((s.file_size(a.size), a))
        }))
        .await?;
        Ok(sum(&attrs))
    }

    /// The same, with a lock on every object if nobody is changing any of them; the objects locked otherwise are given back.
    pub async fn glimpse(
        &self,
        layout: &FileLayout,
        fid: Fid,
    ) -> Result<(ObjectAttr, Option<Vec<ObjectLock>>), Error> {
        let found = try_join_all(layout.stripes().map(|s| async move {
            let object = s.object(fid);
            let (a, lock) = self.store(&s, fid).await?.glimpse(&object).await?;
            Ok::<_, Error>((
                s.file_size(a.size),
                a,
                lock.map(|l| ((s.ost(), object.oi.res_id()), l)),
            ))
        }))
        .await?;
        let mut sum = ObjectAttr::default();
        let mut locks = Some(Vec::with_capacity(found.len()));
        for (size, a, lock) in found {
            merge(&mut sum, size, &a);
            match (&mut locks, lock) {
                (Some(all), Some(l)) => all.push(l),
                _ => locks = None,
            }
        }
        Ok((sum, locks))
    }

    /// Locks on the whole of every object, in stripe order (every client locks in that order, so none waits in a circle).
    pub async fn lock_objects(
        &self,
        layout: &FileLayout,
        fid: Fid,
        mode: LdlmMode,
    ) -> Result<Vec<(u32, ObjectRef, LockRef)>, Error> {
        let mut out = Vec::new();
        for s in layout.stripes() {
            let object = s.object(fid);
            let store = self.store(&s, fid).await?;
            let lock = store.lock_whole(&object, mode).await?;
            out.push((s.ost(), object, lock));
        }
        Ok(out)
    }

    /// How far the OSTs of these bytes are: the quickest request to the farthest of them took so long.
    pub async fn distance(
        &self,
        layout: &FileLayout,
        fid: Fid,
        bytes: &Range<u64>,
    ) -> Result<Duration, Error> {
        let len = bytes.end - bytes.start;
        let ranges = self.ranges(layout, fid, bytes.start, len).await?;
        let far = ranges.iter().map(|r| r.osc.import().quickest());
        Ok(far.max().unwrap_or_default())
    }

    /// The object ranges that `offset..offset+len` touches in instantiated components, in order of first touch.
    async fn ranges(
        &self,
        layout: &FileLayout,
        fid: Fid,
        offset: u64,
        len: u64,
    ) -> Result<Vec<ObjectRange>, Error> {
        let mut out: Vec<ObjectRange> = Vec::new();
        let end = offset.saturating_add(len);
        for part in layout.overlapping(offset, end).filter(|p| p.init) {
            let base = out.len();
            let from = offset.max(part.start);
            for piece in part.md.map(from, end.min(part.end) - from) {
                let stripe = Stripe {
                    part,
                    index: piece.stripe,
                };
                let object = stripe.object(fid);
                let at = (piece.file_offset - offset, piece.len);
                match out[base..].iter_mut().find(|r| r.object == object) {
                    Some(r) => {
                        debug_assert_eq!(
                            r.offset + r.len,
                            piece.object_offset,
                            "pieces of a stripe follow one another"
                        );
                        r.len += piece.len;
                        r.pieces.push(at);
                    }
                    None => out.push(ObjectRange {
                        osc: self.store(&stripe, fid).await?,
                        object,
                        offset: piece.object_offset,
                        len: piece.len,
                        pieces: vec![at],
                    }),
                }
            }
        }
        Ok(out)
    }

    /// The servers answer a read with no byte beyond the end of the object. Stock ones answer whole pages.
    pub fn tells_the_end(&self) -> bool {
        self.oscs.read().values().all(|o| o.coral()) && self.lmv.all_coral()
    }

    /// Reads up to `len` bytes at `offset`; short only at the end of the file, holes are zeroes.
    pub async fn read(
        &self,
        layout: &FileLayout,
        fid: Fid,
        offset: u64,
        len: usize,
        lock: &Locks,
    ) -> Result<Payload, Error> {
        if len == 0 || layout.form == Form::None {
            return Ok(Payload::new());
        }
        let ranges = self.ranges(layout, fid, offset, len as u64).await?;
        // the common case: one object holds it all
        if let [r] = &ranges[..]
            && r.len == len as u64
        {
            let got = {
                let (lock, _pin) = lock.of(&r.object);
                r.osc.read(&r.object, r.offset, len, lock).await?
            };
            // The end of what is stored is that of the file for who keeps all others from writing. Otherwise they may have written behind it
            // under locks of their own, which the read leaves alone; the OST may know that there are none. Data on an MDT is locked as a whole.
            let ends = got.is_end || lock.has_all() || r.osc.is_mdt();
            let got = got.data;
            if got.len() == len || ends && layout.is_one_object() {
                return Ok(got);
            }
            let total = self.end_within(layout, fid, offset, len, lock).await?;
            if total <= got.len() || lock.holds() {
                return Ok(pad(got, total));
            }
            let (lock, _pin) = lock.of(&r.object);
            let got = r.osc.read(&r.object, r.offset, total, lock).await?;
            return Ok(pad(got.data, total));
        }
        let pieces = self.read_ranges(&ranges, lock).await?;
        let there = before_gap(&pieces);
        if there == len {
            return Ok(assemble(pieces, len));
        }
        let total = self.end_within(layout, fid, offset, len, lock).await?;
        if total <= there || lock.holds() {
            return Ok(assemble(pieces, total));
        }
        let ranges = self.ranges(layout, fid, offset, total as u64).await?;
        let pieces = self.read_ranges(&ranges, lock).await?;
        Ok(assemble(pieces, total))
    }

    /// Where the file ends, bytes.
    pub async fn end(&self, layout: &FileLayout, fid: Fid, lock: &Locks) -> Result<u64, Error> {
        // of one object that is no dearer than to ask under a lock of the server's, and takes no lock from others
        match lock.asks_the_end() || !lock.has_all() && layout.is_one_object() {
            true => Ok(self.glimpse(layout, fid).await?.0.size),
            false => Ok(self.collect(layout, fid, lock.whole()).await?.size),
        }
    }

    /// How many of `len` bytes from `offset` on are before the end of the file. Asked after a read that came short: who reads up
    /// to there once more finds all that was written when the file had that end, and what is missing then is a hole. (Of what
    /// came short before the end was asked, that cannot be said: it may have been written meanwhile.)
    async fn end_within(
        &self,
        layout: &FileLayout,
        fid: Fid,
        offset: u64,
        len: usize,
        lock: &Locks,
    ) -> Result<usize, Error> {
        let size = self.end(layout, fid, lock).await?;
        Ok((len as u64).min(size.saturating_sub(offset)) as usize)
    }

    /// What each piece brought: (offset in the I/O, bytes wanted, data), sorted.
    async fn read_ranges(
        &self,
        ranges: &[ObjectRange],
        lock: &Locks,
    ) -> Result<Vec<(u64, u64, Payload)>, Error> {
        let big = ranges.len() > 1 && ranges.iter().all(|r| r.len >= SPAWN_BYTES);
        let jobs = ranges.iter().map(|r| {
            let (osc, object, offset, len, (lock, pin)) = (
                r.osc.clone(),
                r.object,
                r.offset,
                r.len as usize,
                lock.of(&r.object),
            );
            async move {
                let done = osc.read(&object, offset, len, lock).await;
                drop(pin);
                Ok::<_, Error>(done?)
            }
        });
        let datas = if big {
            spawn_all(jobs).await?
        } else {
            try_join_all(jobs).await?
        };
        let mut out = Vec::new();
        for (r, ObjectData { data, .. }) in ranges.iter().zip(datas) {
            let mut done = 0usize;
            for (at, len) in &r.pieces {
                let n = (*len as usize).min(data.len().saturating_sub(done));
                let part = if n == 0 {
                    Payload::new()
                } else {
                    data.slice(done..done + n)
                };
                out.push((*at, *len, part));
                done += *len as usize;
            }
        }
        out.sort_by_key(|(at, _, _)| *at);
        Ok(out)
    }

    /// A write cut into what goes to each object: the object, the offset in it, the data. Every component touched must be
    /// instantiated.
    pub async fn pieces(
        &self,
        layout: &FileLayout,
        fid: Fid,
        offset: u64,
        data: &Payload,
    ) -> Result<Vec<(ObjectRef, u64, Payload)>, Error> {
        let ranges = self.ranges(layout, fid, offset, data.len() as u64).await?;
        if ranges.iter().map(|r| r.len).sum::<u64>() != data.len() as u64 {
            layout.check_end(offset.saturating_add(data.len() as u64))?;
            return Err(Error::NoObjects);
        }
        fit(&ranges)?;
        Ok(ranges
            .into_iter()
            .map(|r| (r.object, r.offset, r.cut(data)))
            .collect())
    }

    /// What holds the file's bytes up to `end`, if that is the beginning of one object on an OST.
    pub async fn beginning(
        &self,
        layout: &FileLayout,
        fid: Fid,
        end: u64,
    ) -> Result<Option<(Arc<Osc>, ObjectRef)>, Error> {
        let ranges = self.ranges(layout, fid, 0, end).await?;
        let all = |r: &ObjectRange| (r.offset, r.len) == (0, end) && !r.osc.is_mdt();
        let one: Result<[ObjectRange; 1], _> = ranges.try_into();
        Ok(one.ok().filter(|[r]| all(r)).map(|[r]| (r.osc, r.object)))
    }

    /// The parts of objects that `len` bytes at `offset` are in.
    pub async fn places(
        &self,
        layout: &FileLayout,
        fid: Fid,
        offset: u64,
        len: u64,
    ) -> Result<Vec<(ObjectRef, Range<u64>)>, Error> {
        let ranges = self.ranges(layout, fid, offset, len).await?;
        Ok(ranges
            .into_iter()
            .map(|r| (r.object, r.offset..r.offset + r.len))
            .collect())
    }

    /// Writes all of `data` at `offset`. Every component touched must be instantiated.
    pub async fn write(
        &self,
        layout: &FileLayout,
        fid: Fid,
        offset: u64,
        data: Payload,
        attr: &WriteAttr,
        lock: &Locks,
    ) -> Result<(), Error> {
        let ranges = self.ranges(layout, fid, offset, data.len() as u64).await?;
        if ranges.iter().map(|r| r.len).sum::<u64>() != data.len() as u64 {
            layout.check_end(offset.saturating_add(data.len() as u64))?;
            return Err(Error::NoObjects);
        }
        fit(&ranges)?;
        if let [r] = &ranges[..] {
            let (lock, _pin) = lock.of(&r.object);
            return Ok(r.osc.write(&r.object, r.offset, data, attr, lock).await?);
        }
        let big = ranges.iter().all(|r| r.len >= SPAWN_BYTES);
        let jobs = ranges.into_iter().map(|r| {
            let part = r.cut(&data);
            let (attr, (lock, pin)) = (*attr, lock.of(&r.object));
            async move {
                let done = r.osc.write(&r.object, r.offset, part, &attr, lock).await;
                drop(pin);
                Ok::<_, Error>(done?)
            }
        });
        match big {
            true => spawn_all(jobs).await.map(drop),
            false => try_join_all(jobs).await.map(drop),
        }
    }

    /// Makes the file `size` bytes long. The component that holds `size` must be instantiated when the file grows. Size, blocks and
    /// newest times over all objects, if all were cut and told.
    pub async fn truncate(
        &self,
        layout: &FileLayout,
        fid: Fid,
        size: u64,
        attr: &WriteAttr,
        lock: &Locks,
    ) -> Result<Option<ObjectAttr>, Error> {
        let from = size.saturating_sub(1);
        // behind the component that holds the end, objects are empty: they must not say a size of their own
        let size_in = |s: &Stripe<'_>| {
            if s.part.start >= size && size > 0 || size == 0 {
                0
            } else {
                s.object_size(size)
            }
        };
        for s in layout
            .stripes()
            .filter(|s| s.part.end > from && size_in(s) > 0)
        {
            if size_in(&s) > self.store(&s, fid).await?.max_bytes() {
                return Err(Refusal::ObjectTooLarge.into());
            }
        }
        let jobs = layout.stripes().filter(|s| s.part.end > from).map(|s| {
            let object_size = size_in(&s);
            let object = s.object(fid);
            async move {
                let (lock, _pin) = lock.of(&object);
                let store = self.store(&s, fid).await?;
                let told = store.truncate(&object, object_size, attr, lock).await?;
                Ok::<_, Error>(told.map(|a| (s.file_size(a.size), a)))
            }
        });
        let told: Option<Vec<_>> = try_join_all(jobs).await?.into_iter().collect();
        let all = layout.stripes().len();
        Ok(told.filter(|t| t.len() == all).map(|t| sum(&t)))
    }

    /// Sets times on every object; size, blocks and newest times over all of them, if all told.
    pub async fn set_times(
        &self,
        layout: &FileLayout,
        fid: Fid,
        times: &ObjectTimes,
        lock: &Locks,
    ) -> Result<Option<ObjectAttr>, Error> {
        let jobs = layout.stripes().map(|s| async move {
            let object = s.object(fid);
            let (lock, _pin) = lock.of(&object);
            let a = self
                .store(&s, fid)
                .await?
                .setattr(&object, times, lock)
                .await?;
            Ok::<_, Error>(a.map(|a| (s.file_size(a.size), a)))
        });
        let all: Option<Vec<_>> = try_join_all(jobs).await?.into_iter().collect();
        Ok(all.map(|all| sum(&all)))
    }

    /// Every object is on disk when this returns.
    pub async fn sync(&self, layout: &FileLayout, fid: Fid) -> Result<(), Error> {
        try_join_all(layout.stripes().map(|s| async move {
            let store = self.store(&s, fid).await?;
            Ok::<_, Error>(store.sync(&s.object(fid)).await?)
        }))
        .await
        .map(drop)
    }

    /// fallocate(2) of `start..end` with `mode`; components touched must be instantiated.
    pub async fn fallocate(
        &self,
        layout: &FileLayout,
        fid: Fid,
        mode: u32,
        start: u64,
        end: u64,
        attr: &WriteAttr,
    ) -> Result<(), Error> {
        let jobs = layout
            .stripes()
            .filter(|s| s.part.start < end && s.part.end > start)
            .map(|s| async move {
                let (from, to) = (
                    s.object_size(start.max(s.part.start)),
                    s.object_size(end.min(s.part.end)),
                );
                if from >= to {
                    return Ok(());
                }
                let (store, object) = (self.store(&s, fid).await?, s.object(fid));
                Ok::<_, Error>(store.fallocate(&object, mode, from, to, attr).await?)
            });
        try_join_all(jobs).await.map(drop)
    }
}

/// Runs all to the end on tasks of their own; the first error wins. Dropping it stops them.
async fn spawn_all<T, F>(jobs: impl Iterator<Item = F>) -> Result<Vec<T>, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let mut set = tokio::task::JoinSet::new();
    let mut count = 0;
    for (i, job) in jobs.enumerate() {
        set.spawn(coral_stopwatch::carried(async move { (i, job.await) }));
        count = i + 1;
    }
    let mut out: Vec<Option<T>> = (0..count).map(|_| None).collect();
    while let Some(done) = set.join_next().await {
        let (i, result) = done.map_err(|_| Error::Task)?;
        out[i] = Some(result?);
    }
    Ok(out.into_iter().flatten().collect())
}

/// EFBIG where an OST cannot hold an object so large: it would refuse it, and dirty data is to be told before.
fn fit(ranges: &[ObjectRange]) -> Result<(), Error> {
    match ranges.iter().all(|r| {
        r.offset
            .checked_add(r.len)
            .is_some_and(|end| end <= r.osc.max_bytes())
    }) {
        true => Ok(()),
        false => Err(Refusal::ObjectTooLarge.into()),
    }
}
