//! Running a handler's future on the stack that received its message.
//!
//! A thread hand-over costs 5-50 us; most handlers finish without waiting. So a boxed future is polled once right here and only
//! spawned when it has to wait. Nesting is bounded: with memlnd a handler may send, which runs the next handler on top of it.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;

use crate::HandoverStats;

/// Deepest nesting of inline polls on one stack; beyond it the future is spawned at once.
pub const MAX_INLINE_DEPTH: u32 = 4;

thread_local! {
    /// Inline polls on this thread's stack right now. A property of the stack, not of any node.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
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

/// Polls `fut` once on this stack; if it is not ready, spawns it on the current tokio runtime.
/// `stats` is usually [`crate::Node::handovers`].
///
/// The first poll has a waker that does nothing: an event between it and the spawned task's own first poll is not lost,
/// because that poll looks again. A future must therefore not rely on being woken by a waker of its first poll alone.
///
/// A panic of the future ends the future, as in a spawned task, and not whoever's stack it was polled on.
pub fn run_inline(stats: &HandoverStats, mut fut: BoxFuture<'static, ()>) {
    match Nested::enter() {
        Some(_nested) => match catch_unwind(AssertUnwindSafe(|| poll_once(fut.as_mut()))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => {
                stats.inline.inc();
                return;
            }
            Err(_) => {
                stats.panicked.inc();
                return;
            }
        },
        None => {
            stats.too_deep.inc();
        }
    }
    stats.spawned.inc();
    tokio::spawn(fut);
}

/// One poll with a waker that does nothing.
fn poll_once(fut: Pin<&mut (dyn Future<Output = ()> + Send)>) -> Poll<()> {
    fut.poll(&mut Context::from_waker(Waker::noop()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn ready_futures_need_no_runtime() {
        let stats = HandoverStats::default();
        run_inline(&stats, Box::pin(async {}));
        assert_eq!((stats.inline.value(), stats.spawned.value()), (1, 0));
    }

    #[tokio::test]
    async fn waiting_futures_move_and_finish() {
        let stats = HandoverStats::default();
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

    #[test]
    fn a_panic_stays_with_its_future() {
        let stats = HandoverStats::default();
        run_inline(
            &stats,
            Box::pin(async { panic!("expected: thrown by the test") }),
        );
        run_inline(&stats, Box::pin(async {}));
        assert_eq!((stats.inline.value(), stats.panicked.value()), (1, 1));
        assert_eq!(DEPTH.get(), 0);
    }

    fn nest(stats: Arc<HandoverStats>, left: u32) {
        if left > 0 {
            let inner = stats.clone();
            run_inline(&stats, Box::pin(async move { nest(inner, left - 1) }));
        }
    }

    #[tokio::test]
    async fn nesting_is_bounded() {
        let stats = Arc::new(HandoverStats::default());
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
