//! One watch, and the one that is current on a thread.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::Wait;

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
    run_ns: AtomicU64,
    /// Polls of its future.
    polls: AtomicU32,
    /// An RPC is part of it.
    has_rpc: AtomicBool,
    waits: Mutex<Vec<Interval>>,
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
    }

    /// It ran outside its polls, such as to give its answer.
    pub fn ran(&self, time: Duration) {
        self.run_ns
            .fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// What it has seen; it begins anew.
    pub fn take(&self) -> Ran {
        self.taken(0)
    }

    /// The same in the middle of a poll of its own, up to `now`.
    pub fn take_at(&self, now: Instant) -> Ran {
        let is_own = |w: &Option<Arc<Watch>>| w.as_deref().is_some_and(|w| std::ptr::eq(w, self));
        let present = match (CURRENT.with_borrow(is_own), BEGUN.get()) {
            (true, Some(begun)) => (now - begun).as_nanos() as u64,
            _ => 0,
        };
        self.taken(present.saturating_sub(INSIDE_NS.get()))
    }

    fn taken(&self, present_ns: u64) -> Ran {
        Ran {
            run_ns: self.run_ns.swap(0, Ordering::Relaxed) + present_ns,
            waits: std::mem::take(&mut *self.waits.lock()),
        }
    }
}

/// The watch of what is being polled on this thread.
pub fn current() -> Option<Arc<Watch>> {
    CURRENT.with_borrow(Option::clone)
}

/// A watch being current, until it is dropped.
struct Entered {
    outer: Option<Arc<Watch>>,
    outer_inside_ns: u64,
    outer_begun: Option<Instant>,
    begun: Instant,
    /// The poll is no part of its time.
    silent: bool,
    ended: Option<Instant>,
}

impl Entered {
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
            silent,
            ended: None,
        }
    }

    /// The poll ends now.
    fn leave(mut self, now: Instant) {
        self.ended = Some(now);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let watch = CURRENT.replace(self.outer.take());
        BEGUN.set(self.outer_begun);
        let inside = INSIDE_NS.get();
        // A poll that panicked has no end: it counts for nothing.
        let Some(now) = self.ended.filter(|_| !self.silent) else {
            return INSIDE_NS.set(self.outer_inside_ns + inside);
        };
        let took = (now - self.begun).as_nanos() as u64;
        if let Some(watch) = watch {
            let own = took.saturating_sub(inside);
            watch.run_ns.fetch_add(own, Ordering::Relaxed);
        }
        INSIDE_NS.set(self.outer_inside_ns + took);
    }
}

/// One poll of `fut` under `watch`, which began at `begun`. The moment of its end is given back when it is ready.
pub fn first_poll<F: Future + ?Sized>(
    watch: &Arc<Watch>,
    begun: Instant,
    fut: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<(F::Output, Instant)> {
    let entered = Entered::new(Some(watch.clone()), begun, false);
    let polled = fut.poll(cx);
    let now = Instant::now();
    entered.leave(now);
    polled.map(|out| (out, now))
}

/// `fut` under `watch`: each poll is time of its own.
pub fn watched<F: Future>(watch: Arc<Watch>, fut: F) -> impl Future<Output = F::Output> {
    timed(watch, None, fut).map(|(out, _)| out)
}

/// The same of what began at `begun`.
pub fn watched_since<F: Future>(
    watch: Arc<Watch>,
    begun: Instant,
    fut: F,
) -> impl Future<Output = F::Output> {
    timed(watch, Some(begun), fut).map(|(out, _)| out)
}

/// The same of what began at `begun`, with the moment of its end.
pub(crate) fn timed<F: Future>(watch: Arc<Watch>, begun: Option<Instant>, fut: F) -> Timed<F> {
    Timed { watch, begun, fut }
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
// every RPC is such an argument.

pin_project! {
    /// See [`timed`].
    pub(crate) struct Timed<F> {
        watch: Arc<Watch>,
        begun: Option<Instant>,
        #[pin]
        fut: F,
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = (F::Output, Instant);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let begun = this.begun.take().unwrap_or_else(Instant::now);
        first_poll(this.watch, begun, this.fut, cx)
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
            (Poll::Pending, None) => *this.begun = Some(Instant::now()),
            (Poll::Ready(_), Some(begun)) => CURRENT.with_borrow(|watch| {
                if let Some(watch) = watch {
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

    #[tokio::test(start_paused = true)]
    async fn waits_belong_to_the_watch_that_is_polled() {
        let (outer, inner) = (Watch::new(1, 0), Watch::new(0, 1));
        let ms = Duration::from_millis;
        watched(outer.clone(), async {
            waits(Wait::Lock, tokio::time::sleep(ms(3))).await;
            let inside = waits(Wait::Storage, tokio::time::sleep(ms(5)));
            watched(inner.clone(), inside).await;
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
        watched(watch.clone(), async {
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
