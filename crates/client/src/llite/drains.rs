//! Letting covers go: the kernel's pages are dropped, or dirty data is written out, and then the locks go.
//!
//! Nobody waits for a drain with a lock in hand that others ask for, unless the lock is the cover's own.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use coral_wire::fid::Fid;
use coral_wire::ldlm::LdlmMode;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::covers::{Asked, Cover, Covers, Dirty, Gate, ObjectKey, OpenInode};
use super::flusher::Flusher;
use super::upcalls::Upcalls;

/// A lock that is asked back while data is written under it all the time serves the writer for so long still, at most. It would ask
/// for it again at once, and the file would be handed to and fro with every write.
const TURN: Duration = Duration::from_millis(10);
/// Who has written nothing for so long does not write all the time.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until a lock that was asked back is to go. One that is void serves nobody.
async fn linger(w: &Dirty, lock: &Asked) {
    let began = Instant::now();
    let Some((mut seen, last)) = w.puts(lock) else {
        return;
    };
    if last.is_none_or(|l| l.elapsed() > PAUSE) {
        return;
    }
    while began.elapsed() < TURN && !w.is_void(lock) {
        tokio::time::sleep(PAUSE).await;
        let now = w.puts(lock).map_or(seen, |(now, _)| now);
        if std::mem::replace(&mut seen, now) == now {
            return;
        }
    }
}

/// Drains covers.
pub(super) struct Drains {
    covers: Arc<Covers>,
    upcalls: Arc<Upcalls>,
    flusher: Arc<Flusher>,
    /// Where drains run.
    runtime: tokio::runtime::Handle,
}

impl Drains {
    /// For the files of one mount; drains are tasks of `runtime`.
    pub fn new(
        covers: Arc<Covers>,
        upcalls: Arc<Upcalls>,
        flusher: Arc<Flusher>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            covers,
            upcalls,
            flusher,
            runtime,
        }
    }

    /// The same, and there is no cover for writes any more.
    pub async fn settle(self: &Arc<Self>, fid: Fid, gate: &Arc<Gate>) {
        self.settle_later(fid, gate);
        gate.no_writes().await;
    }

    /// The same without waiting.
    pub fn settle_later(self: &Arc<Self>, fid: Fid, gate: &Arc<Gate>) {
        if gate.begin_drain_writes() {
            self.spawn(fid, gate.clone());
        }
    }

    /// Settles every file.
    pub async fn settle_all(self: &Arc<Self>) {
        join_all(
            self.covers
                .all()
                .into_iter()
                .map(|(fid, gate)| async move { self.settle(fid, &gate).await }),
        )
        .await;
    }

    /// The lock `cookie` on an object goes or is asked back: what it covers must be dropped.
    pub fn lock_lost(self: &Arc<Self>, key: ObjectKey, cookie: u64) {
        let Some((fid, gate)) = self.covers.by_object(key) else {
            return;
        };
        if let Some(cover) = gate.writes() {
            let asked = cover.writes.as_ref();
            if let Some(asked) = asked.and_then(|w| w.asked(key, cookie)) {
                self.write_out_one(fid, gate, cover, asked);
            }
        } else if gate.begin_drain(Some(cookie)) {
            self.spawn(fid, gate);
        }
    }

    /// New locks of a cover for writes were used, or will not be: those that were asked back meanwhile go.
    pub fn used(self: &Arc<Self>, fid: Fid, gate: &Arc<Gate>, cover: &Arc<Cover>) {
        let Some(w) = &cover.writes else { return };
        for asked in w.used() {
            self.write_out_one(fid, gate.clone(), cover.clone(), asked);
        }
    }

    /// A cover for writes goes that has no lock.
    pub fn drop_bare(self: &Arc<Self>, fid: Fid, gate: &Arc<Gate>) {
        let bare = |c: Arc<Cover>| c.writes.as_ref().is_some_and(|w| w.is_bare());
        if gate.writes().is_some_and(bare) && gate.begin_drain_bare() {
            self.spawn(fid, gate.clone());
        }
    }

    /// One lock of a cover for writes goes, after what lies under it was written out; the others stay.
    fn write_out_one(self: &Arc<Self>, fid: Fid, gate: Arc<Gate>, cover: Arc<Cover>, lock: Asked) {
        let me = self.clone();
        self.runtime.spawn(async move {
            let Some(w) = &cover.writes else { return };
            if !w.is_replaced(&lock) {
                linger(w, &lock).await;
                gate.lock_lost();
            }
            if let Some(extent) = w.going(&lock) {
                let out = me
                    .flusher
                    .write_extent_out(fid, &cover, lock.place, &extent);
                out.await;
            }
            w.gone(&lock);
            me.drop_bare(fid, &gate);
        });
    }

    /// A handle for writing was opened: pages may be dirtied from now on, so a cover for reading is not enough any more.
    pub async fn writer_opened(self: &Arc<Self>, inode: &OpenInode) {
        if inode.gate.writer_opened() {
            self.spawn(inode.fid, inode.gate.clone());
        }
        if inode.gate.cover().is_some_and(|c| c.mode != LdlmMode::PW) {
            inode.gate.drained().await;
        }
    }

    /// Lets a file's pages and cover go.
    pub fn release(self: &Arc<Self>, fid: Fid) {
        let gate = self.covers.gate_of(fid);
        if let Some(gate) = gate.filter(|g| g.begin_drain(None)) {
            self.spawn(fid, gate);
        }
    }

    /// The same, and waits for it.
    pub async fn drop_cover(self: &Arc<Self>, inode: &OpenInode) {
        self.release(inode.fid);
        inode.gate.drained().await;
    }

    /// Other files that have objects of this new cover let theirs go first: a file that was migrated to another MDT has another FID
    /// since, and what was kept of the old one was not written out yet, or would not be told when the lock is asked back. The
    /// lock that `cover` holds meanwhile is the same.
    pub async fn take_over(self: &Arc<Self>, fid: Fid, cover: &Cover) {
        for key in cover.objects() {
            let other = self.covers.by_object(key).filter(|(f, _)| *f != fid);
            if let Some((other, gate)) = other {
                self.release(other);
                gate.drained().await;
            }
        }
    }

    /// Keeps the number of covered files within its limit: one more came, one goes.
    pub fn shrink(self: &Arc<Self>) {
        if let Some((fid, gate)) = self.covers.surplus()
            && gate.begin_drain(None)
        {
            self.spawn(fid, gate);
        }
    }

    /// Lets all covers go without a word to anybody (umount: the kernel's cache is gone).
    pub fn forget_all(&self) {
        for (fid, gate) in self.covers.all() {
            if gate.begin_drain(None) {
                self.end(fid, &gate);
            }
        }
    }

    pub fn spawn(self: &Arc<Self>, fid: Fid, gate: Arc<Gate>) {
        let me = self.clone();
        self.runtime.spawn(async move { me.drain(fid, gate).await });
    }

    /// Drops a file's pages, or writes out dirty data, and then drops its cover; the gate was told that it begins.
    #[expect(
        clippy::disallowed_methods,
        reason = "it waits for pages that are being filled or written back"
    )]
    async fn drain(self: Arc<Self>, fid: Fid, gate: Arc<Gate>) {
        if let Some(cover) = gate.writes() {
            self.flusher.write_all_out(fid, &cover).await;
            drop(cover);
            return self.end(fid, &gate);
        }
        gate.no_store().await;
        let inval = self.upcalls.who();
        let mut left: Vec<Range<u64>> = std::iter::once(0..u64::MAX).collect();
        while !left.is_empty() {
            let now = gate.round(left);
            if let Some(inval) = inval.clone() {
                let drop_all = move || {
                    now.into_iter()
                        .for_each(|r: Range<u64>| inval.drop_pages(fid, r))
                };
                // on a thread of its own: it waits for pages that are being filled or written back
                let _ = tokio::task::spawn_blocking(drop_all).await;
            }
            left = gate.round_done();
        }
        self.end(fid, &gate);
    }

    /// The tables first: once the gate is told, a new cover may be entered in them.
    fn end(&self, fid: Fid, gate: &Gate) {
        if let Some(cover) = gate.cover() {
            self.covers.strike(fid, &cover);
        }
        drop(gate.end_drain());
    }
    /// Lets all pages that are not being read go, with what covers them.
    pub async fn drop_all(self: &Arc<Self>) {
        join_all(self.covers.all().into_iter().map(|(fid, gate)| async move {
            self.release(fid);
            gate.drained().await;
        }))
        .await;
    }
}
