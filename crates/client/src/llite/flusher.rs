//! Writing out dirty data: in large requests and several at once, at the latest after [`AGE`].
//!
//! Invariants:
//! - writing out waits for no lock and for no request that may wait for one;
//! - what could not be written out is lost, as in Lustre, and each open handle is told. After an eviction by an OST nothing
//!   is sent there any more ([`BackedBy::generation`]): others may have written there.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coral_ldlm::LockRef;
use coral_wire::coral::blocks::Span;
use coral_wire::fid::Fid;
use futures_util::future::join_all;

use super::covers::{Cover, Covers, Dirty, Flight, Gate, OpenFiles, OpenInode, Taken};
use crate::error::TargetError;
use crate::osc::{BackedBy, IN_FLIGHT, Osc};

/// Dirty data is written out after this.
const AGE: Duration = Duration::from_secs(1);

/// Sends dirty data to the OSTs.
pub(super) struct Flusher {
    covers: Arc<Covers>,
    open: Arc<OpenFiles>,
    /// Where flights are.
    runtime: tokio::runtime::Handle,
    /// A task looks after dirty data.
    running: AtomicBool,
}

impl Flusher {
    /// For the files of one mount; flights are tasks of `runtime`.
    pub fn new(covers: Arc<Covers>, open: Arc<OpenFiles>, runtime: tokio::runtime::Handle) -> Self {
        Self {
            covers,
            open,
            runtime,
            running: AtomicBool::new(false),
        }
    }

    /// Sends these on their way.
    pub fn fly(self: &Arc<Self>, fid: Fid, cover: &Arc<Cover>, flights: Vec<(usize, Flight)>) {
        for (i, f) in flights {
            let (me, cover) = (self.clone(), cover.clone());
            self.runtime
                .spawn(async move { me.land(fid, &cover, i, f).await });
        }
    }

    /// Carries one flight to its end. What of it lay under a lock that is void is lost.
    async fn land(self: &Arc<Self>, fid: Fid, cover: &Cover, i: usize, f: Flight) {
        let Some(w) = &cover.writes else { return };
        let (o, cost, id) = (&w.objects()[i], f.cost(), f.id);
        {
            let _place = o.osc.write_backs().acquire().await;
            let attr = w.attr();
            // held: its object is not clean while this flies
            let mut backed: Option<(LockRef, u64)> = None;
            let mut parts = Vec::with_capacity(f.parts.len());
            for (at, data) in f.parts {
                let range = at..at + data.len() as u64;
                for (piece, lives) in w.by_life(i, &range) {
                    let found = w.backed_by(i, &piece).filter(|_| lives);
                    let Some((lock, generation)) = found else {
                        self.lost(fid, w, i, &piece, o.void());
                        continue;
                    };
                    let oldest = backed.map_or(generation, |b| b.1.min(generation));
                    backed = Some((lock, oldest));
                    let of_data = (piece.start - at) as usize..(piece.end - at) as usize;
                    parts.push((piece.start, data.slice(of_data)));
                }
            }
            if let Some((lock, generation)) = backed {
                let by = BackedBy {
                    cookie: lock.info().remote_cookie,
                    generation: Some(generation),
                    granted: true,
                    first: false,
                };
                let live = Flight { id, parts };
                let done = o.osc.write_back(&o.object, &live.parts, &attr, by);
                if let Err(e) = done.await {
                    self.lost(fid, w, i, &live.span(), e);
                }
            }
        }
        o.osc.grant().used(cost);
        w.landed(i, id);
        // it was put off while much was on its way
        if o.osc.grant().is_wanted() {
            self.relieve(&o.osc);
        }
    }

    fn lost(&self, fid: Fid, w: &Dirty, i: usize, range: &Range<u64>, why: TargetError) {
        Self::log_lost(fid, w, i, range, &why);
        if let Some(inode) = self.open.of(fid) {
            inode.lost.note(why.into());
        }
    }

    fn log_lost(fid: Fid, w: &Dirty, i: usize, range: &Range<u64>, why: &TargetError) {
        w.forget_end();
        let object = &w.objects()[i].object;
        tracing::error!(%fid, object = ?object.oi, start = range.start, end = range.end, error = %why, "written data could not be stored and is lost");
    }

    /// Writes out dirty data in these ranges of the objects and waits until it has landed. What is written meanwhile is
    /// not waited for.
    pub async fn write_out(self: &Arc<Self>, fid: Fid, cover: &Arc<Cover>, within: &[Range<u64>]) {
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

    /// The cover goes: of each object writes everything out, or drops it when its lock is void, and gives its locks back. None
    /// waits for another: their OSTs may be dead.
    pub async fn write_all_out(self: &Arc<Self>, fid: Fid, cover: &Arc<Cover>) {
        let Some(w) = &cover.writes else { return };
        w.close();
        join_all((0..w.objects().len()).map(|i| async move {
            self.write_extent_out(fid, cover, i, &Span::all(0, u64::MAX))
                .await;
            w.all_gone(i);
        }))
        .await;
    }

    /// Writes out what is dirty in an extent of object `i`, or drops what lies under void locks, until nothing is left. Nothing new may
    /// come to its bytes; what lies between its blocks may be written out too.
    pub async fn write_extent_out(
        self: &Arc<Self>,
        fid: Fid,
        cover: &Arc<Cover>,
        i: usize,
        extent: &Span,
    ) {
        let Some(w) = &cover.writes else { return };
        let range = &(extent.start..extent.end.saturating_add(1));
        while !w.is_clean_at(i, extent) {
            let (o, inode) = (&w.objects()[i], self.open.of(fid));
            let lost = || {
                if let Some(inode) = &inode {
                    inode.lost.note(o.void().into());
                }
            };
            for (void, cost) in w.discard_void(i, range, lost) {
                o.osc.grant().used(cost);
                Self::log_lost(fid, w, i, &void, &o.void());
            }
            // what another program of this mount writes between blocks meanwhile is not waited for
            let taken = w.take(&w.one(i, range));
            self.fly(fid, cover, taken.out);
            w.have_landed(&taken.under_way).await;
        }
    }

    /// What was written through any handle is at the OSTs, as far as it was not lost.
    pub async fn flush(self: &Arc<Self>, inode: &OpenInode) {
        if let Some(cover) = inode.gate.writes()
            && let Some(w) = &cover.writes
        {
            self.write_out(inode.fid, &cover, &w.whole()).await;
        }
    }

    /// Files of which data is dirty.
    pub fn unwritten(&self) -> Vec<Fid> {
        let dirty = |gate: &Gate| {
            gate.cover()
                .is_some_and(|c| c.writes.as_ref().is_some_and(|w| !w.is_clean()))
        };
        self.covers
            .all()
            .into_iter()
            .filter(|(_, gate)| dirty(gate))
            .map(|(fid, _)| fid)
            .collect()
    }

    /// Writes out dirty data of all files, however long the OSTs take.
    pub async fn write_out_all(self: &Arc<Self>) {
        let covers = self
            .covers
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

    /// Files with a cover for writes.
    fn writing(&self) -> Vec<(Fid, Arc<Cover>)> {
        self.covers
            .all()
            .into_iter()
            .filter_map(|(fid, gate)| Some((fid, gate.writes()?)))
            .collect()
    }

    /// Makes room at an OST: dirty data goes out, in requests as full as they can be. While much is on its way already this is put
    /// off until some of that has landed ([`Self::land`]).
    pub fn relieve(self: &Arc<Self>, osc: &Osc) {
        if osc.write_backs().available_permits() <= IN_FLIGHT / 2 {
            return;
        }
        for (fid, cover) in self.writing() {
            if let Some(w) = &cover.writes {
                self.fly(fid, &cover, w.relieve());
            }
        }
    }

    /// All dirty data goes out; false when there was nothing.
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

    /// Sees to it that dirty data goes out in time.
    pub fn look_after(self: &Arc<Self>) {
        if self.running.swap(true, Ordering::AcqRel) {
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
                me.running.store(false, Ordering::Release);
                // dirty just now by one who saw the flag still up
                if !me.start_all() || me.running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}
