//! The gate in front of one file's pages in the kernel's page cache: who may fill a page, and what must be dropped before a
//! lock is given back. A plain state machine: no await, no message.
//!
//! The kernel locks pages first and asks us second; dropping a page waits for its lock. So a read of pages must never wait for
//! an extent lock while somebody drops these very pages to give an extent lock back, or two clients wait in a circle.
//! Invariants:
//! - pages are filled and written back only under a [`Cover`]: locks on the whole of every object, taken in stripe order;
//! - while a cover is drained its locks are still held. A read that began to wait before a round of dropping is left out of that
//!   round: its pages are locked and empty, there is nothing to drop. A read that comes while its pages are being dropped is let
//!   in under the old cover, and its pages are dropped once more. So dropping waits for nobody who waits for a lock;
//! - the cover's locks go when a round of dropping ended in which nobody was let in;
//! - a new cover is asked for only when no cover is there and no truncate of this client is under way, nor an append under locks of
//!   its own (the kernel holds write-back of dirty pages up while it truncates, so a truncate must not wait for a cover of our own
//!   to be drained; such an append and a cover would share one lock and not notice each other);
//! - a cover serves either pages or data of write(2) that is kept back ([`WriteBack`]), never both: the kernel drops pages
//!   before a write, but not those that a read filled beside it. Who wants the other use drains the cover first; a read of pages
//!   that waits keeps new covers for writes away ([`writes`]).

mod writes;

pub(in crate::llite) use writes::{Acquiring, Writing};

use std::ops::Range;
use std::sync::Arc;

use coral_ldlm::LockRef;
use coral_wire::Errno;
use coral_wire::ldlm::LdlmMode;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::llite::writeback::WriteBack;
use crate::lov::{FileLayout, HeldLock, Locks};
use crate::osc::ObjectRef;

/// Extent locks on the whole of every object of one file.
#[derive(Debug)]
pub(in crate::llite) struct Cover {
    /// The layout whose objects are locked.
    pub layout: Arc<FileLayout>,
    /// PW when this client has the file open for writing (pages may be dirtied through mappings), else PR.
    pub mode: LdlmMode,
    locks: Vec<(u32, ObjectRef, HeldLock)>,
    /// It serves data of write(2) that is kept back, not pages.
    pub writes: Option<WriteBack>,
}

impl Cover {
    pub fn new(
        layout: Arc<FileLayout>,
        mode: LdlmMode,
        locks: Vec<(u32, ObjectRef, LockRef)>,
    ) -> Arc<Self> {
        Self::with(layout, mode, locks, None)
    }

    fn with(
        layout: Arc<FileLayout>,
        mode: LdlmMode,
        locks: Vec<(u32, ObjectRef, LockRef)>,
        writes: Option<WriteBack>,
    ) -> Arc<Self> {
        let locks = locks
            .into_iter()
            .map(|(ost, o, l)| (ost, o, HeldLock::new(l)))
            .collect();
        Arc::new(Self {
            layout,
            mode,
            locks,
            writes,
        })
    }

    /// One for data of write(2).
    pub fn for_writes(
        layout: Arc<FileLayout>,
        locks: Vec<(u32, ObjectRef, LockRef)>,
        writes: WriteBack,
    ) -> Arc<Self> {
        Self::with(layout, LdlmMode::PW, locks, Some(writes))
    }

    /// The locks as I/O names them.
    pub fn held(&self) -> Locks {
        Locks {
            held: self.locks.iter().map(|(_, o, l)| (*o, l.clone())).collect(),
        }
    }

    /// The lock on object `i`, pinned; `None`: it was given back.
    pub fn lock(&self, i: usize) -> Option<LockRef> {
        self.locks[i].2.pin()
    }

    /// What lay under the lock on object `i` is gone: so is the lock, whatever keeps the others.
    pub fn give_back(&self, i: usize) {
        self.locks[i].2.give_back();
    }

    /// Place of an object.
    pub fn place(&self, object: &ObjectRef) -> Option<usize> {
        self.locks.iter().position(|(_, o, _)| o == object)
    }

    /// The objects: {OST index, resource}.
    pub fn objects(&self) -> impl Iterator<Item = super::ObjectKey> + '_ {
        self.locks.iter().map(|(ost, o, _)| (*ost, o.oi.res_id()))
    }

    fn has(&self, cookie: u64) -> bool {
        self.locks
            .iter()
            .any(|(_, _, l)| l.ask(|l| l.cookie() == cookie) == Some(true))
    }

    /// Some lock is asked back, or was given back.
    pub fn is_blocked(&self) -> bool {
        self.locks
            .iter()
            .any(|(_, _, l)| l.ask(LockRef::is_blocked) != Some(false))
    }

    /// No lock was given back, and none is void.
    pub fn is_whole(&self) -> bool {
        self.locks
            .iter()
            .all(|(_, _, l)| l.ask(LockRef::is_dead) == Some(false))
    }

    /// The lock on object `i` is void (eviction).
    pub fn is_dead(&self, i: usize) -> bool {
        self.locks[i].2.ask(LockRef::is_dead) == Some(true)
    }
}

/// What a waiting read gets: the cover it goes under; `None`: this file has none, the servers lock.
pub(super) type Admission = Result<Option<Arc<Cover>>, Errno>;

#[derive(Debug)]
struct Waiter {
    id: u64,
    range: Range<u64>,
    tell: oneshot::Sender<Admission>,
}

/// Answer to a read that wants in.
pub(super) enum Enter {
    /// Go on under this.
    Under(Arc<Cover>),
    /// Wait; with `acquire` true the asker is the one to get a cover.
    Wait { waiting: Waiting, acquire: bool },
}

/// A place among those that wait; dropped, it is given up.
pub(super) struct Waiting {
    gate: Arc<Gate>,
    id: u64,
    told: oneshot::Receiver<Admission>,
}

impl Waiting {
    pub async fn admitted(mut self) -> Admission {
        (&mut self.told).await.unwrap_or(Err(Errno::EIO))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gate.inner.lock().waiting.retain(|w| w.id != self.id);
    }
}

#[derive(Debug, Default)]
struct Inner {
    cover: Option<Arc<Cover>>,
    draining: bool,
    acquiring: bool,
    /// Truncates and appends under way.
    truncating: u32,
    /// Handles open for writing.
    writers: u32,
    /// Pages may have been filled under no cover.
    uncovered: bool,
    used: bool,
    waiting: Vec<Waiter>,
    /// What is being dropped right now.
    dropping: Vec<Range<u64>>,
    /// Let in while it was being dropped.
    served: Vec<Range<u64>>,
    last_id: u64,
    /// A cover for writes is being asked for.
    acquiring_writes: bool,
    /// Writes on their way to the OSTs under no cover.
    through: u32,
    /// So many writes go through before a cover for writes is asked for again.
    skip: u32,
    /// How many it was last time.
    skipped: u32,
    /// Writes taken by the present cover for writes.
    kept: u32,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(in crate::llite) struct Gate {
    inner: Mutex<Inner>,
    /// Something ended that others wait for.
    changed: Notify,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// `from` without `hole`.
fn without(from: Vec<Range<u64>>, hole: &Range<u64>) -> Vec<Range<u64>> {
    from.into_iter()
        .flat_map(|r| [r.start..r.end.min(hole.start), r.start.max(hole.end)..r.end])
        .filter(|r| r.start < r.end)
        .collect()
}

impl Gate {
    /// A read of the pages in `range` wants in.
    pub(super) fn enter(self: &Arc<Self>, range: Range<u64>) -> Enter {
        let mut g = self.inner.lock();
        g.used = true;
        if let Some(cover) = g.cover.clone().filter(|c| c.writes.is_none()) {
            if !g.draining {
                return Enter::Under(cover);
            }
            if g.dropping.iter().any(|d| overlap(d, &range)) {
                g.served.push(range);
                return Enter::Under(cover);
            }
        }
        g.last_id += 1;
        let (id, (tell, told)) = (g.last_id, oneshot::channel());
        g.waiting.push(Waiter { id, range, tell });
        let acquire = !std::mem::replace(&mut g.acquiring, true);
        Enter::Wait {
            waiting: Waiting {
                gate: self.clone(),
                id,
                told,
            },
            acquire,
        }
    }

    /// The cover, whatever becomes of it.
    pub fn cover(&self) -> Option<Arc<Cover>> {
        self.inner.lock().cover.clone()
    }

    /// Resolves once a cover may be asked for; the mode to ask for.
    pub async fn may_acquire(&self) -> LdlmMode {
        self.until(|g| {
            g.cover.is_none() && !g.draining && g.truncating == 0 && !g.acquiring_writes
        })
        .await;
        if self.inner.lock().writers > 0 {
            LdlmMode::PW
        } else {
            LdlmMode::PR
        }
    }

    /// Resolves once no cover is being drained.
    pub async fn drained(&self) {
        self.until(|g| !g.draining).await;
    }

    async fn until(&self, free: impl Fn(&Inner) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if free(&self.inner.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// A cover was obtained: lets everybody in who waits. False: it is of no use now, ask again.
    pub fn install(&self, cover: &Arc<Cover>) -> bool {
        let waiting = {
            let mut g = self.inner.lock();
            if g.truncating > 0 || g.writers > 0 && cover.mode != LdlmMode::PW {
                return false;
            }
            g.cover = Some(cover.clone());
            g.acquiring = false;
            std::mem::take(&mut g.waiting)
        };
        for w in waiting {
            let _ = w.tell.send(Ok(Some(cover.clone())));
        }
        true
    }

    /// There will be no cover: why, or that the file cannot have one.
    pub fn refuse(&self, why: Result<(), Errno>) {
        let waiting = {
            let mut g = self.inner.lock();
            g.acquiring = false;
            g.uncovered |= why.is_ok() && !g.waiting.is_empty();
            std::mem::take(&mut g.waiting)
        };
        for w in waiting {
            let _ = w.tell.send(why.map(|()| None));
        }
    }

    /// The cover must go; of the lock `cookie`, if given. True: the caller drains it ([`Gate::round`]).
    pub fn begin_drain(&self, cookie: Option<u64>) -> bool {
        let mut g = self.inner.lock();
        let ours = g
            .cover
            .as_ref()
            .is_some_and(|c| cookie.is_none_or(|k| c.has(k)));
        ours && !std::mem::replace(&mut g.draining, true)
    }

    /// What to drop of `ranges` now: nothing that a waiting read has locked.
    pub fn round(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let mut g = self.inner.lock();
        let out = g
            .waiting
            .iter()
            .fold(ranges, |left, w| without(left, &w.range));
        g.dropping = out.clone();
        g.served.clear();
        out
    }

    /// They are dropped. What must be dropped once more; with nothing left nobody is let in any more.
    pub fn round_done(&self) -> Vec<Range<u64>> {
        let mut g = self.inner.lock();
        g.dropping.clear();
        std::mem::take(&mut g.served)
    }

    /// All is dropped: takes the cover out, a new one may come.
    pub fn end_drain(&self) -> Option<Arc<Cover>> {
        let mut g = self.inner.lock();
        assert!(
            g.draining && g.dropping.is_empty() && g.served.is_empty(),
            "rounds end before the drain does"
        );
        g.draining = false;
        let gone = g.cover.take();
        drop(g);
        self.changed.notify_waiters();
        gone
    }

    /// A handle for writing is opened. True: a cover for reading stands in the way and the caller drains it.
    pub fn writer_opened(&self) -> bool {
        let mut g = self.inner.lock();
        g.writers += 1;
        let drain = g.cover.as_ref().is_some_and(|c| c.mode != LdlmMode::PW) && !g.draining;
        g.draining |= drain;
        drain
    }

    pub fn writer_closed(&self) {
        let mut g = self.inner.lock();
        g.writers = g.writers.checked_sub(1).expect("a writer was opened");
    }

    /// A truncate begins: it goes under the cover it gets, and no new one comes until it ends.
    pub fn begin_truncate(self: &Arc<Self>) -> Truncating {
        let mut g = self.inner.lock();
        g.truncating += 1;
        let usable = |c: &Arc<Cover>| c.mode == LdlmMode::PW && c.writes.is_none();
        Truncating {
            cover: g.cover.clone().filter(usable),
            gate: self.clone(),
        }
    }

    /// An append begins: as a truncate, but it takes locks of its own, so it must not hold the cover's: they may be asked back.
    pub fn begin_append(self: &Arc<Self>) -> Truncating {
        let mut begun = self.begin_truncate();
        begun.cover = None;
        begun
    }

    /// Asked for since it was last asked about (second chance of the LRU).
    pub fn was_used(&self) -> bool {
        std::mem::take(&mut self.inner.lock().used)
    }

    /// Pages of no cover may be there; asked once.
    pub fn take_uncovered(&self) -> bool {
        std::mem::take(&mut self.inner.lock().uncovered)
    }
}

/// A truncate under way.
pub(in crate::llite) struct Truncating {
    gate: Arc<Gate>,
    /// The write cover it goes under.
    pub cover: Option<Arc<Cover>>,
}

impl Drop for Truncating {
    fn drop(&mut self) {
        self.gate.inner.lock().truncating -= 1;
        self.gate.changed.notify_waiters();
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    pub fn cover(mode: LdlmMode) -> Arc<Cover> {
        Cover::new(Arc::new(FileLayout::none()), mode, Vec::new())
    }

    pub fn wait(g: &Arc<Gate>, r: Range<u64>) -> (Waiting, bool) {
        match g.enter(r) {
            Enter::Wait { waiting, acquire } => (waiting, acquire),
            Enter::Under(_) => panic!("let in"),
        }
    }

    fn under(g: &Arc<Gate>, r: Range<u64>) -> bool {
        matches!(g.enter(r), Enter::Under(_))
    }

    #[tokio::test]
    async fn one_asks_and_all_that_wait_are_let_in() {
        let g = Arc::<Gate>::default();
        let (a, first) = wait(&g, 0..10);
        let (b, second) = wait(&g, 5..20);
        assert!(first && !second);
        assert!(g.install(&cover(LdlmMode::PR)));
        assert!(a.admitted().await.unwrap().is_some() && b.admitted().await.unwrap().is_some());
        assert!(under(&g, 100..101));
    }

    #[tokio::test]
    async fn a_drain_leaves_out_who_waits_and_repeats_what_it_let_in() {
        let g = Arc::<Gate>::default();
        let _first = wait(&g, 0..10);
        assert!(g.install(&cover(LdlmMode::PR)));
        assert!(g.begin_drain(None) && !g.begin_drain(None));
        // no round yet: it waits, and its pages are left alone
        let (early, acquire) = wait(&g, 40..50);
        assert!(acquire);
        assert_eq!(g.round(vec![0..100]), [0..40, 50..100]);
        // beside the round: let in where pages are being dropped, not elsewhere
        assert!(under(&g, 60..70));
        let (late, _) = wait(&g, 200..210);
        assert!(
            g.may_acquire().now_or_never().is_none(),
            "the old cover is still there"
        );
        assert_eq!(g.round_done(), [60..70]);
        assert_eq!(g.round(vec![60..70]), [60..70]);
        assert!(g.round_done().is_empty());
        let (last, _) = wait(&g, 60..70);
        drop(last);
        assert!(g.end_drain().is_some());
        assert!(g.cover().is_none());
        assert_eq!(g.may_acquire().now_or_never(), Some(LdlmMode::PR));
        assert!(g.install(&cover(LdlmMode::PR)));
        assert!(
            early.admitted().await.unwrap().is_some() && late.admitted().await.unwrap().is_some()
        );
    }

    #[tokio::test]
    async fn who_gives_up_waiting_holds_nothing_up() {
        let g = Arc::<Gate>::default();
        drop(wait(&g, 0..10));
        assert_eq!(g.round(vec![0..20]), [0..20]);
    }

    #[tokio::test]
    async fn writers_need_a_write_cover() {
        let g = Arc::<Gate>::default();
        let (w, _) = wait(&g, 0..1);
        assert!(!g.writer_opened());
        assert!(
            !g.install(&cover(LdlmMode::PR)),
            "somebody may dirty pages now"
        );
        assert_eq!(g.may_acquire().now_or_never(), Some(LdlmMode::PW));
        assert!(g.install(&cover(LdlmMode::PW)));
        assert!(w.admitted().await.unwrap().is_some());
        g.writer_closed();
        assert!(!g.writer_opened(), "the write cover stays");

        let g = Arc::<Gate>::default();
        let _w = wait(&g, 0..1);
        assert!(g.install(&cover(LdlmMode::PR)));
        assert!(g.writer_opened(), "a read cover goes");
        assert!(!g.begin_drain(None), "by whoever opened");
    }

    #[tokio::test]
    async fn no_cover_comes_beside_a_truncate() {
        let g = Arc::<Gate>::default();
        let t = g.begin_truncate();
        assert!(t.cover.is_none());
        let (w, _) = wait(&g, 0..1);
        assert!(!g.install(&cover(LdlmMode::PR)));
        assert!(g.may_acquire().now_or_never().is_none());
        drop(t);
        assert!(g.may_acquire().now_or_never().is_some());
        assert!(g.install(&cover(LdlmMode::PW)));
        drop(w);
        assert!(g.begin_drain(None));
        assert!(
            g.begin_truncate().cover.is_some(),
            "also while it is being drained"
        );
    }

    #[tokio::test]
    async fn pages_of_no_cover_are_remembered() {
        let g = Arc::<Gate>::default();
        let (w, _) = wait(&g, 0..1);
        g.refuse(Ok(()));
        assert!(w.admitted().await.unwrap().is_none());
        assert!(g.take_uncovered() && !g.take_uncovered());
    }

    #[test]
    fn ranges_lose_their_holes() {
        assert_eq!(without(vec![0..10], &(3..5)), [0..3, 5..10]);
        assert!(without(vec![0..10], &(0..10)).is_empty());
        assert_eq!(without(vec![0..10, 20..30], &(5..25)), [0..5, 25..30]);
    }
}
