//! The mutex around the rules of a gate, and the waiting.

use std::ops::Range;
use std::sync::{Arc, Weak};

use coral_wire::ldlm::LdlmMode;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::core::{Core, Entered};
use super::writes::Way;
use crate::error::Error;
use crate::llite::covers::cover::Cover;

/// What a waiting read gets: the cover it goes under; `None`: this file has none, the servers lock.
pub(in crate::llite) type Admission = Result<Option<Arc<Cover>>, Error>;

/// Answer to a read that wants in.
pub(in crate::llite) enum Enter {
    /// Go on under this.
    Under(Arc<Cover>),
    /// Wait; with `acquire` true the asker is the one to get a cover.
    Wait { waiting: Waiting, acquire: bool },
}

/// A place among those that wait; dropped, it is given up.
pub(in crate::llite) struct Waiting {
    gate: Arc<Gate>,
    id: u64,
    told: oneshot::Receiver<Admission>,
}

impl Waiting {
    /// Resolves when the read is let in, or refused.
    pub async fn admitted(mut self) -> Admission {
        (&mut self.told).await.unwrap_or(Err(Error::LocksVoid))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gate.core.lock().leave(self.id);
    }
}

/// How a write(2) goes.
pub(in crate::llite) enum Writing {
    /// Its data is dirty under this.
    Under(Arc<Cover>),
    /// To the OSTs, which lock for it.
    Sync(SyncWrite),
    /// The asker is the one to get a cover, and asks again.
    Acquire(Acquiring),
    /// Something must end first ([`Gate::may_write`]); ask again.
    Wait,
    /// The asker drains the cover for writes, and asks again.
    Drain,
}

/// A write on its way to the OSTs, until dropped.
pub(in crate::llite) struct SyncWrite {
    gate: Arc<Gate>,
}

impl Drop for SyncWrite {
    fn drop(&mut self) {
        let last = self.gate.core.lock().end_sync();
        if last {
            self.gate.changed.notify_waiters();
        }
    }
}

/// A cover for writes is being asked for, until dropped.
pub(in crate::llite) struct Acquiring {
    gate: Arc<Gate>,
}

impl Acquiring {
    /// It was obtained. False: others were quicker, it is of no use.
    pub fn install(&self, cover: &Arc<Cover>) -> bool {
        self.gate.core.lock().install_writes(cover)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.gate.core.lock().end_acquire();
        self.gate.changed.notify_waiters();
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
        self.gate.core.lock().end_truncate();
        self.gate.changed.notify_waiters();
    }
}

/// Data on its way into the kernel's cache, until dropped.
pub(in crate::llite) struct Storing {
    gate: Arc<Gate>,
    number: u64,
}

impl Storing {
    /// Nobody waits for the end of it.
    pub fn goes_on(&self) -> bool {
        !self.gate.core.lock().draining
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        self.gate.core.lock().end_store(self.number);
        self.gate.changed.notify_waiters();
    }
}

type Rules = Core<oneshot::Sender<Admission>>;

/// The gate of one file; the module's head says what it is for.
#[derive(Debug, Default)]
pub(in crate::llite) struct Gate {
    core: Mutex<Rules>,
    /// Something ended that others wait for.
    changed: Notify,
}

impl Gate {
    /// A read of the pages in `range` wants in.
    pub fn enter(self: &Arc<Self>, range: Range<u64>) -> Enter {
        let mut ear = None;
        let entered = self.core.lock().enter(range, || {
            let (tell, told) = oneshot::channel();
            ear = Some(told);
            tell
        });
        match entered {
            Entered::Under(cover) => Enter::Under(cover),
            Entered::Wait { id, acquire } => Enter::Wait {
                waiting: Waiting {
                    gate: self.clone(),
                    id,
                    told: ear.expect("who waits is told"),
                },
                acquire,
            },
        }
    }

    /// The cover, whatever becomes of it.
    pub fn cover(&self) -> Option<Arc<Cover>> {
        self.core.lock().cover.clone()
    }

    /// The cover for writes, if that is what is there.
    pub fn writes(&self) -> Option<Arc<Cover>> {
        self.cover().filter(|c| c.writes.is_some())
    }

    /// Resolves once a cover may be asked for; the mode to ask for.
    pub async fn may_acquire(&self) -> LdlmMode {
        self.until(Rules::may_acquire).await
    }

    /// Resolves once no cover is being drained.
    pub async fn drained(&self) {
        self.until(|g| (!g.draining).then_some(())).await;
    }

    /// Resolves once no write is synchronous.
    pub async fn no_sync_write(&self) {
        self.until(|g| (g.sync_writes == 0).then_some(())).await;
    }

    /// Resolves once [`Gate::begin_write`] may answer otherwise than [`Writing::Wait`].
    pub async fn may_write(&self) {
        self.until(|g| g.may_write().then_some(())).await;
    }

    /// Resolves once there is no cover for writes.
    pub async fn no_writes(&self) {
        self.until(|g| (!g.has_writes()).then_some(())).await;
    }

    /// Resolves once nothing is being stored into the kernel's cache.
    pub async fn no_store(&self) {
        self.until(|g| g.stores_nothing().then_some(())).await;
    }

    async fn until<V>(&self, found: impl Fn(&Rules) -> Option<V>) -> V {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(v) = found(&self.core.lock()) {
                return v;
            }
            changed.await;
        }
    }

    /// A cover was obtained: lets everybody in who waits. False: it is of no use now, ask again.
    pub fn install(&self, cover: &Arc<Cover>) -> bool {
        let Some(waiting) = self.core.lock().install(cover) else {
            return false;
        };
        for w in waiting {
            let _ = w.tell.send(Ok(Some(cover.clone())));
        }
        true
    }

    /// There will be no cover: why, or that the file cannot have one.
    pub fn refuse(&self, why: Result<(), Error>) {
        let waiting = self.core.lock().refuse(why.is_ok());
        for w in waiting {
            let _ = w.tell.send(why.clone().map(|()| None));
        }
    }

    /// What was read under `cover` is to be stored into the kernel's cache; `None`: it may not.
    pub fn begin_store(self: &Arc<Self>, cover: &Weak<Cover>) -> Option<Storing> {
        let number = self.core.lock().begin_store(cover.as_ptr())?;
        Some(Storing {
            gate: self.clone(),
            number,
        })
    }

    /// Resolves once this cover is not there, or is about to go.
    pub async fn lets_go(&self, cover: &Weak<Cover>) {
        self.until(|g| g.lets_go(cover.as_ptr()).then_some(()))
            .await;
    }

    /// The cover must go; of the lock `cookie`, if given. True: the caller drains it ([`Gate::round`]).
    pub fn begin_drain(&self, cookie: Option<u64>) -> bool {
        let begun = self.core.lock().begin_drain(cookie);
        self.drain_begun(begun)
    }

    /// The cover for writes must go. True: the caller drains it.
    pub fn begin_drain_writes(&self) -> bool {
        self.core.lock().begin_drain_writes()
    }

    /// Tells who waits for a cover of pages to go ([`Gate::lets_go`]).
    fn drain_begun(&self, begun: bool) -> bool {
        if begun {
            self.changed.notify_waiters();
        }
        begun
    }

    /// What to drop of `ranges` now: nothing that a waiting read has locked.
    pub fn round(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        self.core.lock().round(ranges)
    }

    /// They are dropped. What must be dropped once more; with nothing left nobody is let in any more.
    pub fn round_done(&self) -> Vec<Range<u64>> {
        self.core.lock().round_done()
    }

    /// All is dropped: takes the cover out, a new one may come.
    pub fn end_drain(&self) -> Option<Arc<Cover>> {
        let gone = self.core.lock().end_drain();
        self.changed.notify_waiters();
        gone
    }

    /// A handle for writing is opened. True: a cover for reading stands in the way and the caller drains it.
    pub fn writer_opened(&self) -> bool {
        let begun = self.core.lock().writer_opened();
        self.drain_begun(begun)
    }

    /// A handle for writing is closed.
    pub fn writer_closed(&self) {
        self.core.lock().writer_closed();
    }

    /// A truncate begins: it goes under the cover it gets, and no new one comes until it ends.
    pub fn begin_truncate(self: &Arc<Self>) -> Truncating {
        let cover = self.core.lock().begin_truncate();
        Truncating {
            gate: self.clone(),
            cover,
        }
    }

    /// A truncate or an append is under way.
    pub fn is_truncating(&self) -> bool {
        self.core.lock().is_truncating()
    }

    /// An append begins: as a truncate, but it takes locks of its own, so it must not hold the cover's: they may be asked back.
    pub fn begin_append(self: &Arc<Self>) -> Truncating {
        let mut begun = self.begin_truncate();
        begun.cover = None;
        begun
    }

    /// How a write(2) goes. `may_keep`: its data may stay dirty.
    pub fn begin_write(self: &Arc<Self>, may_keep: bool) -> Writing {
        let way = self.core.lock().begin_write(may_keep);
        self.writing(way)
    }

    /// How a write goes that was let in under the cover, which has no lock for it.
    pub fn begin_more(self: &Arc<Self>) -> Writing {
        let way = self.core.lock().begin_more();
        self.writing(way)
    }

    /// A write was taken under the cover for writes.
    pub fn write_kept(&self) {
        self.core.lock().write_kept();
    }

    fn writing(self: &Arc<Self>, way: Way) -> Writing {
        match way {
            Way::Under(cover) => Writing::Under(cover),
            Way::Sync => Writing::Sync(SyncWrite { gate: self.clone() }),
            Way::Acquire => Writing::Acquire(Acquiring { gate: self.clone() }),
            Way::Wait => Writing::Wait,
            Way::Drain => Writing::Drain,
        }
    }

    /// A lock of the cover for writes was asked back.
    pub fn lock_lost(&self) {
        self.core.lock().lock_lost();
    }

    /// The cover for writes has no lock any more. True: the caller drains it.
    pub fn begin_drain_bare(&self) -> bool {
        self.core.lock().begin_drain_bare()
    }

    /// Others want the file, or it cannot be covered: writes are synchronous for a while, longer each time unless the cover was
    /// worth it.
    pub fn contended(&self) {
        self.core.lock().contended();
    }

    /// Asked for since it was last asked about (second chance of the LRU).
    pub fn was_used(&self) -> bool {
        self.core.lock().was_used()
    }

    /// Pages of no cover may be there; asked once.
    pub fn take_uncovered(&self) -> bool {
        self.core.lock().take_uncovered()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
mod tests {
    use super::super::writes::{LOSSES, SKIP_MIN};
    use super::*;
    use crate::llite::covers::dirty::Dirty;
    use crate::lov::FileLayout;
    use futures_util::FutureExt;

    fn cover(mode: LdlmMode) -> Arc<Cover> {
        Cover::new(Arc::new(FileLayout::none()), mode, Vec::new())
    }

    fn wait(g: &Arc<Gate>, r: Range<u64>) -> (Waiting, bool) {
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

    /// A store waits for pages that reads hold: these are let in, and the pages are dropped after it.
    #[tokio::test]
    async fn a_drain_begins_when_nothing_is_being_stored() {
        let g = Arc::<Gate>::default();
        let (_w, _) = wait(&g, 0..1);
        let (c, other) = (cover(LdlmMode::PR), cover(LdlmMode::PR));
        assert!(g.install(&c));
        let begin = |c: &Arc<Cover>| g.begin_store(&Arc::downgrade(c));
        let going = |c: &Arc<Cover>| g.lets_go(&Arc::downgrade(c)).now_or_never().is_some();
        assert!(begin(&other).is_none(), "of an earlier cover");
        let store = begin(&c).expect("it may");
        assert!(going(&other) && !going(&c));
        assert!(store.goes_on() && g.begin_drain(None) && !store.goes_on());
        assert!(going(&c));
        assert!(begin(&c).is_none(), "none begins now");
        assert!(g.no_store().now_or_never().is_none());
        assert!(under(&g, 150..160), "the store may wait for it");
        assert!(
            under(&g, 300..310),
            "no place at the kernel is taken up meanwhile"
        );
        drop(store);
        assert!(g.no_store().now_or_never().is_some());
        let (_later, _) = wait(&g, 150..160);
        assert_eq!(g.round(vec![0..400]), [0..150, 160..400]);
        assert!(g.round_done().is_empty());
        assert!(g.end_drain().is_some());
    }

    #[test]
    fn nothing_is_stored_where_pages_may_be_dirty_or_are_cut() {
        let g = Arc::<Gate>::default();
        let (_w, _) = wait(&g, 0..1);
        let c = cover(LdlmMode::PW);
        assert!(g.install(&c));
        assert!(g.begin_store(&Arc::downgrade(&c)).is_none());
        let g = Arc::<Gate>::default();
        let (_w, _) = wait(&g, 0..1);
        let c = cover(LdlmMode::PR);
        assert!(g.install(&c));
        let cut = g.begin_truncate();
        assert!(g.begin_store(&Arc::downgrade(&c)).is_none());
        drop(cut);
        assert!(g.begin_store(&Arc::downgrade(&c)).is_some());
        assert!(g.writer_opened());
        assert!(g.begin_store(&Arc::downgrade(&c)).is_none());
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

    fn for_writes() -> Arc<Cover> {
        Cover::for_writes(Arc::new(FileLayout::none()), Dirty::new(Vec::new()))
    }

    fn acquire(g: &Arc<Gate>) -> Acquiring {
        match g.begin_write(true) {
            Writing::Acquire(turn) => turn,
            _ => panic!("not the one to get a cover"),
        }
    }

    #[tokio::test]
    async fn one_asks_for_a_cover_for_writes_while_none_is_synchronous() {
        let g = Arc::<Gate>::default();
        let Writing::Sync(first) = g.begin_write(false) else {
            panic!("nothing may stay dirty of it")
        };
        let turn = acquire(&g);
        assert!(g.no_sync_write().now_or_never().is_none());
        drop(first);
        assert!(g.no_sync_write().now_or_never().is_some());
        assert!(
            matches!(g.begin_write(true), Writing::Wait) && g.may_write().now_or_never().is_none()
        );
        assert!(turn.install(&for_writes()));
        drop(turn);
        assert!(g.may_write().now_or_never().is_some());
        assert!(matches!(g.begin_write(true), Writing::Under(_)));
        // who may not keep back lets the cover go
        assert!(
            matches!(g.begin_write(false), Writing::Drain)
                && matches!(g.begin_write(true), Writing::Wait)
        );
        assert!(!g.begin_drain_writes() && g.no_writes().now_or_never().is_none());
        assert!(g.end_drain().is_some());
        assert!(g.no_writes().now_or_never().is_some());
        // one who gives up leaves the turn to others
        drop(acquire(&g));
        drop(acquire(&g));
    }

    #[tokio::test]
    async fn pages_and_writes_never_share_a_cover() {
        let g = Arc::<Gate>::default();
        let turn = acquire(&g);
        let (reader, first) = wait(&g, 0..10);
        assert!(
            first && !turn.install(&for_writes()),
            "a read of pages waits"
        );
        assert!(
            g.may_acquire().now_or_never().is_none(),
            "locks are being asked for"
        );
        drop(turn);
        assert!(matches!(g.begin_write(true), Writing::Sync(_)));
        assert_eq!(g.may_acquire().now_or_never(), Some(LdlmMode::PR));
        assert!(g.install(&cover(LdlmMode::PR)));
        assert!(reader.admitted().await.unwrap().is_some());
        assert!(
            matches!(g.begin_write(true), Writing::Sync(_))
                && g.writes().is_none()
                && !g.begin_drain_writes()
        );
        assert!(g.begin_drain(None) && g.end_drain().is_some());

        let turn = acquire(&g);
        assert!(turn.install(&for_writes()));
        drop(turn);
        let t = g.begin_truncate();
        assert!(t.cover.is_none(), "it is not for truncates");
        let (_late, acquire) = wait(&g, 0..1);
        assert!(acquire && g.begin_drain_writes());
        drop(t);
        assert!(g.may_acquire().now_or_never().is_none());
        assert!(g.end_drain().is_some() && g.may_acquire().now_or_never().is_some());
    }

    #[test]
    fn contention_makes_writes_synchronous_for_a_while() {
        let g = Arc::<Gate>::default();
        let synchronous = |g: &Arc<Gate>| {
            let mut n = 0;
            while matches!(g.begin_write(true), Writing::Sync(_)) {
                n += 1;
            }
            n
        };
        g.contended();
        assert_eq!(synchronous(&g), SKIP_MIN);
        g.contended();
        assert_eq!(synchronous(&g), 2 * SKIP_MIN);
        let turn = acquire(&g);
        assert!(turn.install(&for_writes()));
        drop(turn);
        for _ in 0..100 * SKIP_MIN {
            assert!(matches!(g.begin_write(true), Writing::Under(_)));
            g.write_kept();
        }
        assert!(g.begin_drain(None) && g.end_drain().is_some());
        g.contended();
        assert_eq!(synchronous(&g), SKIP_MIN, "it was worth it");
    }

    #[test]
    fn one_event_is_one_loss_however_many_locks_it_takes() {
        let g = Arc::<Gate>::default();
        let turn = acquire(&g);
        assert!(turn.install(&for_writes()));
        drop(turn);
        let more = |g: &Arc<Gate>| matches!(g.begin_more(), Writing::Acquire(_));
        let event = |g: &Arc<Gate>| {
            assert!(matches!(g.begin_write(true), Writing::Under(_)));
            g.write_kept();
            (0..16).for_each(|_| g.lock_lost());
        };
        for _ in 1..LOSSES {
            event(&g);
            assert!(more(&g));
        }
        event(&g);
        let mut synchronous = 0;
        while !more(&g) {
            synchronous += 1;
        }
        assert_eq!(synchronous, SKIP_MIN);
        // it takes as many again before the file is contended once more
        for _ in 1..LOSSES {
            event(&g);
            assert!(more(&g));
        }
    }
}
