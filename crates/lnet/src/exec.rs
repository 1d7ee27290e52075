//! Running a handler's future on the stack that received its message.
//!
//! A thread hand-over costs 5-50 us; most handlers finish without waiting. So a boxed future is polled once right here. One that
//! has to wait stays where it is until it is woken, and becomes a task of the runtime then: whoever wakes it is usually a thread
//! of the runtime, which runs it next, and nobody is woken for it before. Nesting is bounded: with memlnd a handler may send,
//! which runs the next handler on top of it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::HandoverStats;
use crate::sock::cork;

/// Deepest nesting of inline polls on one stack; beyond it the future is spawned at once.
pub const MAX_INLINE_DEPTH: u32 = 4;

thread_local! {
    /// Inline polls on this thread's stack right now. A property of the stack, not of any node.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Where futures are polled inline, with their counts, and where those that wait are kept.
#[derive(Debug, Default)]
pub struct Inline {
    counts: Arc<HandoverStats>,
    waiting: Arc<Deferred>,
}

impl Inline {
    /// Its counts, for a registry.
    pub fn counts(&self) -> &Arc<HandoverStats> {
        &self.counts
    }
}

impl std::ops::Deref for Inline {
    type Target = HandoverStats;

    fn deref(&self) -> &HandoverStats {
        &self.counts
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.waiting.end();
    }
}

/// One more inline poll on this stack, until dropped (also by a panic).
struct Nested;

impl Nested {
    /// None when the stack is nested as deep as it may be.
    fn enter() -> Option<Nested> {
        DEPTH.with(|d| {
            (d.get() < MAX_INLINE_DEPTH).then(|| {
                d.set(d.get() + 1);
                Nested
            })
        })
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        DEPTH.with(|d| d.set(d.get() - 1));
    }
}

/// Futures that wait and are no tasks yet, by number. They belong to this list, not to their wakers: what a runtime's end drops
/// of its tasks, it drops of these too.
#[derive(Debug, Default)]
struct Deferred {
    inner: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    futures: BTreeMap<u64, Arc<Later>>,
    /// A task that does nothing but be dropped with its runtime.
    end: Option<AbortHandle>,
}

/// A future that becomes a task when it is woken.
struct Later {
    number: u64,
    list: Weak<Deferred>,
    runtime: Handle,
    state: Mutex<State>,
}

enum State {
    /// Its poll is under way; whether it was woken meanwhile.
    Polled {
        woken: bool,
    },
    Waits(BoxFuture<'static, ()>),
    Gone,
}

impl std::fmt::Debug for Later {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Later").field(&self.number).finish()
    }
}

impl Wake for Later {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let fut = {
            let mut state = self.state.lock();
            match &mut *state {
                State::Polled { woken } => {
                    *woken = true;
                    return;
                }
                State::Gone => return,
                State::Waits(_) => match std::mem::replace(&mut *state, State::Gone) {
                    State::Waits(fut) => fut,
                    _ => return,
                },
            }
        };
        if let Some(list) = self.list.upgrade() {
            list.inner.lock().futures.remove(&self.number);
        }
        self.runtime.spawn(fut);
    }
}

impl Deferred {
    /// Lets `fut` wait: it has been polled once, and is polled once more here, by a waker that counts. False: it panicked.
    fn add(self: &Arc<Self>, mut fut: BoxFuture<'static, ()>) -> bool {
        let (later, ends) = {
            let mut inner = self.inner.lock();
            inner.last += 1;
            let later = Arc::new(Later {
                number: inner.last,
                list: Arc::downgrade(self),
                runtime: Handle::current(),
                state: Mutex::new(State::Polled { woken: false }),
            });
            inner.futures.insert(later.number, later.clone());
            let ends = inner.end.as_ref().is_some_and(|e| !e.is_finished());
            (later, ends)
        };
        if !ends {
            self.end_with_runtime();
        }
        let waker = Waker::from(later.clone());
        let polled = catch_unwind(AssertUnwindSafe(|| {
            fut.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        let pending = matches!(polled, Ok(Poll::Pending));
        let woken = {
            let mut state = later.state.lock();
            if pending && matches!(*state, State::Polled { woken: false }) {
                *state = State::Waits(fut);
                return true;
            }
            let was = std::mem::replace(&mut *state, State::Gone);
            pending && matches!(was, State::Polled { woken: true })
        };
        self.inner.lock().futures.remove(&later.number);
        // with no mutex held: it may be dropped here
        match woken {
            true => drop(later.runtime.spawn(fut)),
            false => drop(fut),
        }
        polled.is_ok()
    }

    /// Has what waits dropped with the current runtime. No mutex is held: a runtime that is closing drops the task at once.
    fn end_with_runtime(self: &Arc<Self>) {
        let end = Ends(self.clone());
        let task = tokio::spawn(async move {
            let _end = end;
            std::future::pending::<()>().await;
        });
        self.inner.lock().end = Some(task.abort_handle());
    }

    /// Nobody waits any more.
    fn end(&self) {
        let (all, end) = {
            let mut inner = self.inner.lock();
            (std::mem::take(&mut inner.futures), inner.end.take())
        };
        for later in all.into_values() {
            let state = std::mem::replace(&mut *later.state.lock(), State::Gone);
            drop(state);
        }
        if let Some(end) = end {
            end.abort();
        }
    }
}

/// Drops what waits, with the runtime.
struct Ends(Arc<Deferred>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Polls `fut` once on this stack; if it is not ready, it becomes a task of the current tokio runtime when it is woken.
/// `on` is usually [`crate::Node::handovers`].
///
/// A panic of the future ends the future, as in a spawned task, and not whoever's stack it was polled on.
pub fn run_inline(on: &Inline, mut fut: BoxFuture<'static, ()>) {
    let Some(_nested) = Nested::enter() else {
        on.too_deep.inc();
        on.spawned.inc();
        tokio::spawn(fut);
        return;
    };
    match catch_unwind(AssertUnwindSafe(|| poll_once(fut.as_mut()))) {
        Ok(Poll::Pending) => wait(on, fut),
        Ok(Poll::Ready(())) => on.inline.inc(),
        Err(_) => on.panicked.inc(),
    }
}

/// Runs `batch`, with which nobody is in a hurry: what it sends on this stack is written together at its end.
pub fn together<T>(batch: impl FnOnce() -> T) -> T {
    cork::together(batch)
}

/// Does `end`, with which nobody is in a hurry, when the messages that came with the one that is handled on this stack have been handled;
/// at once if it is on no such stack. What all that is done then sends is written together.
pub fn at_end(end: impl FnOnce() + 'static) {
    cork::at_end(end);
}

/// Lets a future that has to wait go on when it is woken, as a task of the current runtime. It is polled once more here.
pub fn wait(on: &Inline, fut: BoxFuture<'static, ()>) {
    on.spawned.inc();
    if !on.waiting.add(fut) {
        on.panicked.inc();
    }
}

/// One poll with a waker that does nothing: most futures are ready, and need none.
fn poll_once(fut: Pin<&mut (dyn Future<Output = ()> + Send)>) -> Poll<()> {
    fut.poll(&mut Context::from_waker(Waker::noop()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn ready_futures_need_no_runtime() {
        let stats = Inline::default();
        run_inline(&stats, Box::pin(async {}));
        assert_eq!((stats.inline.value(), stats.spawned.value()), (1, 0));
    }

    #[tokio::test]
    async fn waiting_futures_move_and_finish() {
        let stats = Inline::default();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let (done, finished) = tokio::sync::oneshot::channel();
        run_inline(
            &stats,
            Box::pin(async move {
                gone.await.unwrap();
                done.send(7).unwrap();
            }),
        );
        go.send(()).unwrap();
        assert_eq!(finished.await.unwrap(), 7);
        assert_eq!((stats.inline.value(), stats.spawned.value()), (0, 1));
    }

    /// What waits is dropped with its runtime, though what wakes it lives on and it holds what wakes it.
    #[test]
    fn what_waits_ends_with_its_runtime() {
        let stats = Inline::default();
        let held = Arc::new(tokio::sync::Notify::new());
        let rt = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        rt.block_on(async {
            let held = held.clone();
            run_inline(&stats, Box::pin(async move { held.notified().await }));
        });
        assert_eq!(Arc::strong_count(&held), 2);
        drop(rt);
        assert_eq!(Arc::strong_count(&held), 1);
        held.notify_waiters();
    }

    /// Waits for ever, and begins another such future when it is dropped, as a request does that makes room for the next.
    struct Follows(Arc<Inline>, u32);

    impl Drop for Follows {
        fn drop(&mut self) {
            if self.1 > 0 {
                let next = Follows(self.0.clone(), self.1 - 1);
                let on = self.0.clone();
                run_inline(
                    &on,
                    Box::pin(async move {
                        let _next = next;
                        std::future::pending::<()>().await;
                    }),
                );
            }
        }
    }

    #[test]
    fn what_begins_while_a_runtime_ends_ends_with_it() {
        let stats = Arc::new(Inline::default());
        let rt = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        rt.block_on(async {
            let first = Follows(stats.clone(), 3);
            run_inline(
                &stats,
                Box::pin(async move {
                    let _first = first;
                    std::future::pending::<()>().await;
                }),
            );
        });
        drop(rt);
        assert_eq!(stats.spawned.value(), 4);
    }

    /// Nobody is woken for what waits; who wakes it runs it, and only once.
    #[tokio::test]
    async fn what_is_woken_while_it_is_polled_goes_on() {
        let stats = Inline::default();
        let (done, finished) = tokio::sync::oneshot::channel();
        run_inline(
            &stats,
            Box::pin(async move {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                done.send(7).unwrap();
            }),
        );
        assert_eq!(finished.await.unwrap(), 7);
        assert!(stats.waiting.inner.lock().futures.is_empty());
    }

    #[test]
    fn a_panic_stays_with_its_future() {
        let stats = Inline::default();
        run_inline(
            &stats,
            Box::pin(async { panic!("expected: thrown by the test") }),
        );
        run_inline(&stats, Box::pin(async {}));
        assert_eq!((stats.inline.value(), stats.panicked.value()), (1, 1));
        assert_eq!(DEPTH.get(), 0);
    }

    fn nest(stats: Arc<Inline>, left: u32) {
        if left > 0 {
            let inner = stats.clone();
            run_inline(&stats, Box::pin(async move { nest(inner, left - 1) }));
        }
    }

    #[tokio::test]
    async fn nesting_is_bounded() {
        let stats = Arc::new(Inline::default());
        nest(stats.clone(), MAX_INLINE_DEPTH + 1);
        assert_eq!(
            (stats.inline.value(), stats.too_deep.value()),
            (MAX_INLINE_DEPTH as u64, 1)
        );
        tokio::task::yield_now().await;
        nest(stats.clone(), 1);
        assert_eq!(
            stats.inline.value(),
            MAX_INLINE_DEPTH as u64 + 1,
            "the depth goes back down"
        );
    }
}
