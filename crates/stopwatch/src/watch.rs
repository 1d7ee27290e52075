//! One watch, and the one that is current on a thread.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::under_way::Entry;
use crate::{Stopwatch, Wait};
use coral_wire::fid::Fid;

/// Waits that a watch keeps; later ones are in no segment.
pub const WAITS_KEPT: usize = 32;

/// For what was waited, from when to when.
pub(crate) type Interval = (Wait, Instant, Instant);

/// The watch of an operation, an RPC or a request being handled.
#[derive(Debug, Default)]
pub struct Watch {
    id: u64,
    /// The operation it is part of; 0: none.
    parent: u64,
    /// Only who polls its future changes it, so it needs no locked instruction.
    run_ns: AtomicU64,
    /// Polls of its future.
    polls: AtomicU32,
    /// An RPC is part of it.
    has_rpc: AtomicBool,
    /// There is something in `waits`: most watches never wait, and need not lock that to say so.
    has_waits: AtomicBool,
    waits: Mutex<Vec<Interval>>,
    /// What it waits for now, and since when.
    waiting: Mutex<Option<(Wait, Instant)>>,
}

/// What a watch has seen.
#[derive(Debug, Default)]
pub struct Ran {
    /// Nanoseconds in polls of its future, without those of watches inside.
    pub run_ns: u64,
    pub(crate) waits: Vec<Interval>,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Watch>>> = const { RefCell::new(None) };
    /// Nanoseconds in polls of watches inside the current one, in its present poll.
    static INSIDE_NS: Cell<u64> = const { Cell::new(0) };
    /// When the present poll of the current watch began.
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// A moment that was stamped right before the end of the present poll.
    static ENDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl Watch {
    pub(crate) fn new(id: u64, parent: u64) -> Arc<Watch> {
        Arc::new(Watch {
            id,
            parent,
            ..Watch::default()
        })
    }

    /// Its number on its node; 0: it is no operation.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of the operation it is part of; 0: none.
    pub fn parent(&self) -> u64 {
        self.parent
    }

    /// An RPC is part of it.
    pub(crate) fn sends(&self) {
        self.has_rpc.store(true, Ordering::Relaxed);
    }

    /// It was answered without an RPC and without a wait.
    pub(crate) fn is_brief(&self) -> bool {
        self.polls.load(Ordering::Relaxed) <= 1 && !self.has_rpc.load(Ordering::Relaxed)
    }

    /// It waited from one moment to the other.
    pub fn waited(&self, what: Wait, from: Instant, to: Instant) {
        let mut waits = self.waits.lock();
        if waits.len() < WAITS_KEPT {
            waits.push((what, from, to));
        }
        self.has_waits.store(true, Ordering::Release);
    }

    /// What it waits for now, and since when; of several waits at once the one that began last.
    pub(crate) fn waiting(&self) -> Option<(Wait, Instant)> {
        *self.waiting.lock()
    }

    /// It ran from one moment to the other outside its polls, such as to give its answer.
    pub fn ran(&self, from: Instant, to: Instant) {
        self.add_run_ns((to - from).as_nanos() as u64);
    }

    fn add_run_ns(&self, ns: u64) {
        let so_far = self.run_ns.load(Ordering::Relaxed);
        self.run_ns.store(so_far + ns, Ordering::Relaxed);
    }

    /// The poll of its future ends now, and this moment is the one: it is not stamped again.
    pub(crate) fn ends(&self, now: Instant) {
        if CURRENT.with_borrow(|w| self.is(w)) {
            ENDED.set(Some(now));
        }
    }

    fn is(&self, other: &Option<Arc<Watch>>) -> bool {
        other.as_deref().is_some_and(|w| std::ptr::eq(w, self))
    }

    /// What it has seen; it begins anew.
    pub fn take(&self) -> Ran {
        self.taken(0)
    }

    /// The same in the middle of a poll of its own, up to `now`.
    pub fn take_at(&self, now: Instant) -> Ran {
        let is_own = CURRENT.with_borrow(|w| self.is(w));
        let present = match (is_own, BEGUN.get()) {
            (true, Some(begun)) => (now - begun).as_nanos() as u64,
            _ => 0,
        };
        self.taken(present.saturating_sub(INSIDE_NS.get()))
    }

    fn taken(&self, present_ns: u64) -> Ran {
        let run_ns = self.run_ns.load(Ordering::Relaxed) + present_ns;
        self.run_ns.store(0, Ordering::Relaxed);
        let waits = match self.has_waits.load(Ordering::Acquire) {
            true => std::mem::take(&mut *self.waits.lock()),
            false => Vec::new(),
        };
        Ran { run_ns, waits }
    }
}

/// The watch of what is being polled on this thread.
pub fn current() -> Option<Arc<Watch>> {
    CURRENT.with_borrow(Option::clone)
}

/// The same, if it is the watch of a request being handled.
pub fn handled() -> Option<Arc<Watch>> {
    CURRENT.with_borrow(|w| w.as_ref().filter(|w| w.id == 0).cloned())
}

/// Tells the current watch that an RPC is part of it; its number, 0 without one.
pub(crate) fn sends_for() -> u64 {
    CURRENT.with_borrow(|w| {
        w.as_ref().map_or(0, |w| {
            w.sends();
            w.id
        })
    })
}

/// A watch being current, until it is dropped.
struct Entered {
    outer: Option<Arc<Watch>>,
    outer_inside_ns: u64,
    outer_begun: Option<Instant>,
    begun: Instant,
    has_left: bool,
}

impl Entered {
    /// `silent`: the poll is no time of the watch, and none of its polls.
    fn new(watch: Option<Arc<Watch>>, begun: Instant, silent: bool) -> Entered {
        if let Some(watch) = watch.as_ref().filter(|_| !silent) {
            // One poll at a time: it needs no locked instruction.
            let polls = watch.polls.load(Ordering::Relaxed);
            watch
                .polls
                .store(polls.saturating_add(1), Ordering::Relaxed);
        }
        Entered {
            outer: CURRENT.replace(watch),
            outer_inside_ns: INSIDE_NS.replace(0),
            outer_begun: BEGUN.replace(Some(begun)),
            begun,
            has_left: false,
        }
    }

    /// The poll ends now. The watch is given back.
    fn leave(mut self, now: Instant) -> Option<Arc<Watch>> {
        self.has_left = true;
        self.out(Some(now))
    }

    fn out(&mut self, ended: Option<Instant>) -> Option<Arc<Watch>> {
        let watch = CURRENT.replace(self.outer.take());
        BEGUN.set(self.outer_begun);
        let inside = INSIDE_NS.get();
        let Some(now) = ended else {
            ENDED.set(None);
            INSIDE_NS.set(self.outer_inside_ns + inside);
            return watch;
        };
        let took = (now - self.begun).as_nanos() as u64;
        if let Some(watch) = &watch {
            watch.add_run_ns(took.saturating_sub(inside));
        }
        INSIDE_NS.set(self.outer_inside_ns + took);
        watch
    }
}

impl Drop for Entered {
    /// A poll that panicked, or one that is no time of its watch, has no end: it counts for nothing.
    fn drop(&mut self) {
        if !self.has_left {
            self.out(None);
        }
    }
}

/// One poll of `fut` under `watch`, which began at `begun`. The moment of its end is given back when it is ready.
pub fn first_poll<F: Future + ?Sized>(
    watch: &Arc<Watch>,
    begun: Instant,
    fut: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<(F::Output, Instant)> {
    poll_under(&mut Some(watch.clone()), begun, fut, cx)
}

/// The same under a watch that is nobody else's meanwhile.
fn poll_under<F: Future + ?Sized>(
    watch: &mut Option<Arc<Watch>>,
    begun: Instant,
    fut: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<(F::Output, Instant)> {
    let entered = Entered::new(watch.take(), begun, false);
    let polled = fut.poll(cx);
    let told = ENDED.take().filter(|_| polled.is_ready());
    let now = told.unwrap_or_else(Instant::now);
    *watch = entered.leave(now);
    polled.map(|out| (out, now))
}

/// The same, where what is done with its output is time of it too: `done` tells when that has ended.
pub fn poll_and<F: Future + ?Sized>(
    watch: &Arc<Watch>,
    begun: Instant,
    fut: Pin<&mut F>,
    cx: &mut Context<'_>,
    done: impl FnOnce(F::Output) -> Instant,
) -> Poll<Instant> {
    let entered = Entered::new(Some(watch.clone()), begun, false);
    let ended = fut.poll(cx).map(done);
    ENDED.set(None);
    entered.leave(match ended {
        Poll::Ready(at) => at,
        Poll::Pending => Instant::now(),
    });
    ended
}

/// `fut` under `watch`: each poll is time of its own.
pub fn watched<F: Future>(watch: Option<Arc<Watch>>, fut: F) -> impl Future<Output = F::Output> {
    Timed {
        watch,
        begun: None,
        fut,
    }
}

/// The same of what began at `begun`.
#[inline]
pub fn watched_since<F: Future>(
    watch: Option<Arc<Watch>>,
    begun: Instant,
    fut: F,
) -> impl Future<Output = F::Output> {
    Timed {
        watch,
        begun: Some(begun),
        fut,
    }
}

/// `fut` with the watch that is current now, for a task of its own that is part of an operation. Its polls are no time of the
/// operation, which runs beside it.
pub fn carried<F: Future>(fut: F) -> impl Future<Output = F::Output> {
    Carried {
        watch: current(),
        begun: None,
        fut,
    }
}

/// `fut`, for which the current watch waits, if it is not ready at once.
pub fn waits<F: Future>(what: Wait, fut: F) -> impl Future<Output = F::Output> {
    Waits {
        what,
        begun: None,
        fut,
    }
}

// These are types, not async functions: the future of an async function has room for its argument twice, and the future of
// every RPC is such an argument. For the same reason they are not put together of smaller ones: each would be a copy.

pin_project! {
    /// See [`watched`]. Without a watch it is the future.
    struct Timed<F> {
        watch: Option<Arc<Watch>>,
        begun: Option<Instant>,
        #[pin]
        fut: F,
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.watch.is_none() {
            return this.fut.poll(cx);
        }
        let begun = this.begun.take().unwrap_or_else(Instant::now);
        poll_under(this.watch, begun, this.fut, cx).map(|(out, _)| out)
    }
}

pin_project! {
    /// See [`Stopwatch::operation`].
    pub(crate) struct Operation<'a, F> {
        stopwatch: &'a Stopwatch,
        // None: the stopwatch is off.
        watch: Option<Arc<Watch>>,
        begun: Option<Instant>,
        op: &'static str,
        fid: Fid,
        is_polled: bool,
        entry: Option<Entry>,
        #[pin]
        fut: F,
    }
}

impl<'a, F> Operation<'a, F> {
    #[inline]
    pub(crate) fn new(stopwatch: &'a Stopwatch, op: &'static str, fid: Fid, fut: F) -> Self {
        let watch = stopwatch.begin();
        let begun = watch.as_ref().map(|_| Instant::now());
        Operation {
            stopwatch,
            watch,
            begun,
            op,
            fid,
            is_polled: false,
            entry: None,
            fut,
        }
    }
}

impl<F: Future> Future for Operation<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(begun) = *this.begun else {
            return this.fut.poll(cx);
        };
        let poll_begun = match std::mem::replace(this.is_polled, true) {
            true => Instant::now(),
            false => begun,
        };
        let polled = poll_under(this.watch, poll_begun, this.fut, cx);
        if let (Poll::Pending, None, Some(watch)) = (&polled, &this.entry, &this.watch) {
            *this.entry = Some(this.stopwatch.goes_on(watch, this.op, *this.fid, begun));
        }
        let (out, ended) = ready!(polled);
        *this.entry = None;
        if let Some(watch) = this.watch {
            let fid = *this.fid;
            (this.stopwatch).operation_ended(watch, this.op, || fid, (begun, ended));
        }
        Poll::Ready(out)
    }
}

pin_project! {
    /// See [`carried`].
    struct Carried<F> {
        watch: Option<Arc<Watch>>,
        begun: Option<Instant>,
        #[pin]
        fut: F,
    }
}

impl<F: Future> Future for Carried<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let begun = *this.begun.get_or_insert_with(Instant::now);
        let _entered = Entered::new(this.watch.clone(), begun, true);
        this.fut.poll(cx)
    }
}

pin_project! {
    /// See [`waits`].
    struct Waits<F> {
        what: Wait,
        begun: Option<Instant>,
        #[pin]
        fut: F,
    }
}

impl<F: Future> Future for Waits<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.fut.poll(cx);
        match (&polled, *this.begun) {
            (Poll::Pending, None) => {
                let now = Instant::now();
                *this.begun = Some(now);
                CURRENT.with_borrow(|watch| {
                    if let Some(watch) = watch {
                        *watch.waiting.lock() = Some((*this.what, now));
                    }
                });
            }
            (Poll::Ready(_), Some(begun)) => CURRENT.with_borrow(|watch| {
                if let Some(watch) = watch {
                    *watch.waiting.lock() = None;
                    watch.waited(*this.what, begun, Instant::now());
                }
            }),
            _ => {}
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn waits_belong_to_the_watch_that_is_polled() {
        let (outer, inner) = (Watch::new(1, 0), Watch::new(0, 1));
        let ms = Duration::from_millis;
        watched(Some(outer.clone()), async {
            waits(Wait::Lock, tokio::time::sleep(ms(3))).await;
            let inside = waits(Wait::Storage, tokio::time::sleep(ms(5)));
            watched(Some(inner.clone()), inside).await;
            waits(Wait::Slot, async {}).await;
            assert_eq!(current().unwrap().id(), 1);
        })
        .await;
        assert!(current().is_none());
        let kinds = |w: &Watch| -> Vec<_> {
            let ran = w.take();
            ran.waits.iter().map(|(k, a, b)| (*k, *b - *a)).collect()
        };
        assert_eq!(kinds(&outer), [(Wait::Lock, ms(3))]);
        assert_eq!(kinds(&inner), [(Wait::Storage, ms(5))]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_poll_is_the_innermost_watch_s() {
        let (outer, inner) = (Watch::new(1, 0), Watch::new(0, 1));
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let a = Entered::new(Some(outer.clone()), at(0), false);
        let b = Entered::new(Some(inner.clone()), at(2), false);
        b.leave(at(5));
        let panics = Entered::new(Some(inner.clone()), at(5), false);
        drop(panics);
        a.leave(at(10));
        assert_eq!(inner.take().run_ns, 3_000_000);
        assert_eq!(outer.take().run_ns, 7_000_000);
        assert!(current().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_of_an_operation_is_part_of_it() {
        let watch = Watch::new(7, 0);
        watched(Some(watch.clone()), async {
            let task = tokio::spawn(carried(async { current().map(|w| w.id()) }));
            assert_eq!(task.await.unwrap(), Some(7));
        })
        .await;
        for _ in 0..2 * WAITS_KEPT {
            watch.waited(Wait::Lock, Instant::now(), Instant::now());
        }
        assert_eq!(watch.take().waits.len(), WAITS_KEPT);
    }
}
