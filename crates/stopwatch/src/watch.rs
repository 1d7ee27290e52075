//! One watch, and the one that is current on a thread.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
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

/// Number of the last operation of this process.
static LAST_OP: AtomicU64 = AtomicU64::new(0);

/// A number for an operation.
pub(crate) fn next_op() -> u64 {
    LAST_OP.fetch_add(1, Ordering::Relaxed) + 1
}

/// What is known of an operation or an RPC that has needed no watch so far: most of those that are answered at once never do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unmade {
    is_op: bool,
    /// 0: it has none yet, or is no operation.
    id: u64,
    /// The operation it is part of; 0: none.
    parent: u64,
    /// An RPC is part of it.
    has_rpc: bool,
}

impl Unmade {
    pub(crate) const OP: Unmade = Unmade {
        is_op: true,
        id: 0,
        parent: 0,
        has_rpc: false,
    };

    fn number(&mut self) -> u64 {
        if self.is_op && self.id == 0 {
            self.id = next_op();
        }
        self.id
    }
}

/// Whose time runs on a thread.
#[derive(Debug, Default)]
pub(crate) enum Current {
    #[default]
    Nobody,
    Unmade(Unmade),
    Watch(Arc<Watch>),
}

impl Current {
    pub(crate) fn known(&self) -> Option<&Arc<Watch>> {
        match self {
            Current::Watch(watch) => Some(watch),
            Current::Nobody | Current::Unmade(_) => None,
        }
    }

    /// The watch, which is made now if there is none.
    pub(crate) fn made(&mut self) -> Option<&Arc<Watch>> {
        if let Current::Unmade(unmade) = self {
            let id = unmade.number();
            let watch = Watch::new(id, unmade.parent);
            watch.has_rpc.store(unmade.has_rpc, Ordering::Relaxed);
            // the one that is under way, or was
            watch.polls.store(1, Ordering::Relaxed);
            *self = Current::Watch(watch);
        }
        self.known()
    }

    /// An RPC is part of it: its number, 0 if it is no operation.
    fn sends(&mut self) -> u64 {
        match self {
            Current::Nobody => 0,
            Current::Unmade(unmade) => {
                unmade.has_rpc = true;
                unmade.number()
            }
            Current::Watch(watch) => {
                watch.has_rpc.store(true, Ordering::Relaxed);
                watch.id
            }
        }
    }
}

impl From<Option<Arc<Watch>>> for Current {
    fn from(watch: Option<Arc<Watch>>) -> Current {
        watch.map_or(Current::Nobody, Current::Watch)
    }
}

/// What an operation has seen when it has been polled.
#[derive(Debug)]
pub struct Seen {
    pub(crate) of: Current,
    /// Nanoseconds in its only poll; what has a watch counts there.
    pub(crate) run_ns: u64,
}

impl Seen {
    /// Its watch; None: it has needed none so far.
    pub fn watch(&self) -> Option<&Arc<Watch>> {
        self.of.known()
    }

    /// It was answered without an RPC and without a wait.
    pub(crate) fn is_brief(&self) -> bool {
        match &self.of {
            Current::Nobody => true,
            Current::Unmade(unmade) => !unmade.has_rpc,
            Current::Watch(watch) => watch.is_brief(),
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> u64 {
        match &self.of {
            Current::Unmade(unmade) if unmade.id != 0 => unmade.id,
            Current::Watch(watch) => watch.id,
            Current::Nobody | Current::Unmade(_) => next_op(),
        }
    }

    pub(crate) fn take(&self) -> Ran {
        match &self.of {
            Current::Watch(watch) => watch.take(),
            Current::Nobody | Current::Unmade(_) => Ran {
                run_ns: self.run_ns,
                waits: Vec::new(),
            },
        }
    }
}

impl From<Arc<Watch>> for Seen {
    fn from(watch: Arc<Watch>) -> Seen {
        Seen {
            of: Current::Watch(watch),
            run_ns: 0,
        }
    }
}

/// An RPC, part of the operation that was current when it began.
#[derive(Debug)]
pub struct Part {
    of: Current,
    begun: Option<Instant>,
}

impl Part {
    /// It began at `begun`, which is now.
    pub(crate) fn new(begun: Instant) -> Part {
        let parent = CURRENT.with_borrow_mut(Current::sends);
        let unmade = Unmade {
            parent,
            ..Unmade::default()
        };
        Part {
            of: Current::Unmade(unmade),
            begun: Some(begun),
        }
    }

    /// One poll of its future.
    pub fn poll<F: Future + ?Sized>(
        &mut self,
        fut: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let begun = self.begun.take().unwrap_or_else(Instant::now);
        poll_under(&mut self.of, begun, fut, cx).map(|(out, ..)| out)
    }

    /// Its watch.
    pub fn watch(&mut self) -> Arc<Watch> {
        let watch = self.of.made().cloned();
        watch.unwrap_or_else(|| Watch::new(0, 0))
    }
}

/// The poll of the RPC that is current ends now, and this moment is the one: it is not stamped again. The operation it is part of, and
/// what it has waited for.
pub(crate) fn part_ends(now: Instant) -> (u64, Vec<Interval>) {
    ENDED.set(Some(now));
    CURRENT.with_borrow(|c| match c {
        Current::Nobody => (0, Vec::new()),
        Current::Unmade(unmade) => (unmade.parent, Vec::new()),
        Current::Watch(watch) => (watch.parent, watch.take().waits),
    })
}

thread_local! {
    static CURRENT: RefCell<Current> = const { RefCell::new(Current::Nobody) };
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

    /// Its number in its process; 0: it is no operation.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of the operation it is part of; 0: none.
    pub fn parent(&self) -> u64 {
        self.parent
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

    pub(crate) fn waits_for(&self, what: Option<(Wait, Instant)>) {
        *self.waiting.lock() = what;
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

    fn is_current(&self) -> bool {
        let is_it = |w: &Arc<Watch>| std::ptr::eq(&**w, self);
        CURRENT.with_borrow(|c| c.known().is_some_and(is_it))
    }

    /// What it has seen; it begins anew.
    pub fn take(&self) -> Ran {
        self.taken(0)
    }

    /// The same in the middle of a poll of its own, up to `now`.
    pub fn take_at(&self, now: Instant) -> Ran {
        let present = match (self.is_current(), BEGUN.get()) {
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
    CURRENT.with_borrow_mut(|c| c.made().cloned())
}

/// The same, if it is the watch of a request being handled.
pub fn handled() -> Option<Arc<Watch>> {
    CURRENT.with_borrow(|c| c.known().filter(|w| w.id == 0).cloned())
}

/// A watch being current, until it is dropped.
pub(crate) struct Entered {
    outer: Current,
    outer_inside_ns: u64,
    outer_begun: Option<Instant>,
    begun: Instant,
    has_left: bool,
}

impl Entered {
    /// `silent`: the poll is no time of the watch, and none of its polls.
    pub(crate) fn new(watch: Current, begun: Instant, silent: bool) -> Entered {
        if let Some(watch) = watch.known().filter(|_| !silent) {
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

    /// The poll ends now. The watch is given back, with the time of this poll.
    fn leave(mut self, now: Instant) -> Seen {
        self.has_left = true;
        self.out(Some(now))
    }

    fn out(&mut self, ended: Option<Instant>) -> Seen {
        let of = CURRENT.replace(std::mem::take(&mut self.outer));
        BEGUN.set(self.outer_begun);
        let inside = INSIDE_NS.get();
        let Some(now) = ended else {
            ENDED.set(None);
            INSIDE_NS.set(self.outer_inside_ns + inside);
            return Seen { of, run_ns: 0 };
        };
        let took = (now - self.begun).as_nanos() as u64;
        let run_ns = took.saturating_sub(inside);
        if let Some(watch) = of.known() {
            watch.add_run_ns(run_ns);
        }
        INSIDE_NS.set(self.outer_inside_ns + took);
        Seen { of, run_ns }
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
    let polled = poll_under(&mut Current::Watch(watch.clone()), begun, fut, cx);
    polled.map(|(out, now, _)| (out, now))
}

/// The same under one that is nobody else's meanwhile, with the nanoseconds of this poll.
pub(crate) fn poll_under<F: Future + ?Sized>(
    of: &mut Current,
    begun: Instant,
    fut: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<(F::Output, Instant, u64)> {
    let entered = Entered::new(std::mem::take(of), begun, false);
    let polled = fut.poll(cx);
    let told = ENDED.take().filter(|_| polled.is_ready());
    let now = told.unwrap_or_else(Instant::now);
    let seen = entered.leave(now);
    *of = seen.of;
    polled.map(|out| (out, now, seen.run_ns))
}

/// The first poll of an operation's future, which began at `begun`; what is done with its output is time of it too: `done` tells when
/// that has ended. The operation has a watch from here on if it waits.
pub fn poll_first<F: Future + ?Sized>(
    begun: Instant,
    fut: Pin<&mut F>,
    cx: &mut Context<'_>,
    done: impl FnOnce(F::Output) -> Instant,
) -> (Poll<Instant>, Seen) {
    let entered = Entered::new(Current::Unmade(Unmade::OP), begun, false);
    let ended = fut.poll(cx).map(done);
    ENDED.set(None);
    let now = match ended {
        Poll::Ready(at) => at,
        Poll::Pending => {
            CURRENT.with_borrow_mut(|c| drop(c.made().cloned()));
            Instant::now()
        }
    };
    (ended, entered.leave(now))
}

/// Tells the current watch something, if there is one.
pub(crate) fn tell_current(what: impl FnOnce(&Watch)) {
    CURRENT.with_borrow_mut(|c| {
        if let Some(watch) = c.made() {
            what(watch);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{carried, waits, watched};
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
    async fn an_operation_has_a_watch_once_it_needs_one() {
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let first = |fut: Pin<&mut dyn Future<Output = ()>>, cx: &mut Context<'_>| {
            poll_first(Instant::now(), fut, cx, |()| Instant::now())
        };
        let (ended, seen) = first(std::pin::pin!(async {}), cx);
        assert!(ended.is_ready() && seen.watch().is_none() && seen.is_brief());
        let mut part = None;
        let asks = std::pin::pin!(async { part = Some(Part::new(Instant::now())) });
        let (ended, seen) = first(asks, cx);
        assert!(ended.is_ready() && seen.watch().is_none() && !seen.is_brief());
        assert_eq!(part.unwrap().watch().parent(), seen.id());
        let mut waiting = std::pin::pin!(async {
            let watch = current().unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(current().unwrap().id(), watch.id());
        });
        let (ended, seen) = first(waiting.as_mut(), cx);
        assert!(ended.is_pending() && seen.watch().is_some() && current().is_none());
        watched(seen.watch().cloned(), waiting).await;
        assert!(current().is_none() && !seen.is_brief());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_poll_is_the_innermost_watch_s() {
        let (outer, inner) = (Watch::new(1, 0), Watch::new(0, 1));
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let a = Entered::new(Current::Watch(outer.clone()), at(0), false);
        let b = Entered::new(Current::Watch(inner.clone()), at(2), false);
        b.leave(at(5));
        let panics = Entered::new(Current::Watch(inner.clone()), at(5), false);
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
