//! Futures whose polls are told apart: whose time they are, and for what they wait.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use coral_wire::fid::Fid;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::under_way::Entry;
use crate::watch::{Current, Entered, Seen, Unmade, Watch, current, poll_under, tell_current};
use crate::{Stopwatch, Wait};

/// `fut` under `watch`: each poll is time of its own.
pub fn watched<F: Future>(watch: Option<Arc<Watch>>, fut: F) -> impl Future<Output = F::Output> {
    Timed {
        watch: watch.into(),
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

/// `fut`, which is part of no operation, though it is polled on the stack of one that began it.
pub fn apart<F: Future>(fut: F) -> impl Future<Output = F::Output> {
    Carried {
        watch: None,
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
        watch: Current,
        #[pin]
        fut: F,
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Current::Nobody = this.watch {
            return this.fut.poll(cx);
        }
        poll_under(this.watch, Instant::now(), this.fut, cx).map(|(out, ..)| out)
    }
}

pin_project! {
    /// See [`Stopwatch::operation`].
    pub(crate) struct Operation<'a, F> {
        stopwatch: &'a Stopwatch,
        watch: Current,
        // None: the stopwatch is off.
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
        Operation {
            stopwatch,
            watch: Current::Unmade(Unmade::OP),
            begun: stopwatch.is_on().then(Instant::now),
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
        if let (Poll::Pending, None) = (&polled, &this.entry)
            && let Some(watch) = this.watch.made()
        {
            *this.entry = Some(this.stopwatch.goes_on(watch, this.op, *this.fid, begun));
        }
        let (out, ended, run_ns) = ready!(polled);
        *this.entry = None;
        let (of, fid) = (std::mem::take(this.watch), *this.fid);
        (this.stopwatch).operation_ended(&Seen { of, run_ns }, this.op, || fid, (begun, ended));
        Poll::Ready(out)
    }
}

pin_project! {
    /// See [`carried`] and [`apart`].
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
        let _entered = Entered::new(this.watch.clone().into(), begun, true);
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
                tell_current(|watch| watch.waits_for(Some((*this.what, now))));
            }
            (Poll::Ready(_), Some(begun)) => tell_current(|watch| {
                watch.waits_for(None);
                watch.waited(*this.what, begun, Instant::now());
            }),
            _ => {}
        }
        polled
    }
}
