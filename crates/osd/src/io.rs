//! A storage call that is answered now or later.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use coral_stopwatch::{Wait, waits};
use tokio::time::Instant;

use crate::OsdError;

/// The answer of a storage call. The call is under way when this is made, in the order in which calls were made; whoever drops
/// it does not hear how the call ended, but the call ends all the same.
///
/// What needs no waiting, such as a read of what is in memory, is answered at once: awaiting it costs nothing and crosses no
/// thread.
#[must_use = "a storage call may have failed"]
pub struct Io<T>(IoState<T>);

enum IoState<T> {
    Ready(Option<Result<T, OsdError>>),
    Later(Pin<Box<dyn Future<Output = Result<T, OsdError>> + Send>>),
}

impl<T> Io<T> {
    /// An answer that is there.
    pub fn ready(answer: Result<T, OsdError>) -> Io<T> {
        Io(IoState::Ready(Some(answer)))
    }

    /// An answer to come.
    pub fn later(answer: impl Future<Output = Result<T, OsdError>> + Send + 'static) -> Io<T> {
        Io(IoState::Later(Box::pin(waits(Wait::Storage, answer))))
    }

    /// The answer, where it is there; else the call, to be awaited.
    pub fn now(self) -> Result<Result<T, OsdError>, Io<T>> {
        match self.0 {
            IoState::Ready(Some(answer)) => Ok(answer),
            later => Err(Io(later)),
        }
    }
}

/// A call that takes longer is told in the log.
const SLOW: Duration = Duration::from_secs(5);

/// Tells of a call that was made after `asked` and has just been heard of: whether the disk was slow, or this process.
fn tell_if_slow(asked: Instant, begun: Instant, done: Instant) {
    let all = asked.elapsed();
    if all >= SLOW {
        let (thread, disk, told) = (begun - asked, done - begun, done.elapsed());
        tracing::warn!(
            waited_for_a_thread = ?thread, on_the_disk = ?disk, until_it_was_told = ?told,
            "a call to the local file system took {all:?}"
        );
    }
}

impl<T: Send + 'static> Io<T> {
    /// Makes a call that may wait for a disk on a thread for such calls; where no runtime runs, here.
    pub fn blocking(call: impl FnOnce() -> Result<T, OsdError> + Send + 'static) -> Io<T> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Io::ready(call());
        };
        let asked = Instant::now();
        let ended = runtime.spawn_blocking(move || {
            let begun = Instant::now();
            (call(), begun, Instant::now())
        });
        Io::later(async move {
            match ended.await {
                Ok((answer, begun, done)) => {
                    tell_if_slow(asked, begun, done);
                    answer
                }
                Err(panicked) => Err(OsdError::io(
                    "a storage call",
                    std::io::Error::other(panicked),
                )),
            }
        })
    }

    /// Waits on this thread. For tools and tests: a thread of a runtime would be held up.
    pub fn wait(self) -> Result<T, OsdError> {
        match self.now() {
            Ok(answer) => answer,
            Err(later) => futures_executor::block_on(later),
        }
    }
}

impl<T> Unpin for Io<T> {}

impl<T> Future for Io<T> {
    type Output = Result<T, OsdError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            IoState::Ready(answer) => Poll::Ready(answer.take().expect("an answer is taken once")),
            IoState::Later(answer) => answer.as_mut().poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_needs_no_runtime() {
        assert!(matches!(Io::ready(Ok(1)).now(), Ok(Ok(1))));
        assert_eq!(Io::blocking(|| Ok(2)).wait().unwrap(), 2);
        let fails: Io<u8> = Io::ready(Err(OsdError::NoSpace));
        assert!(matches!(fails.wait(), Err(OsdError::NoSpace)));
    }

    #[tokio::test]
    async fn what_may_wait_runs_elsewhere() {
        let here = std::thread::current().id();
        let there = Io::blocking(move || Ok(std::thread::current().id()));
        let Err(later) = there.now() else {
            panic!("answered at once")
        };
        assert_ne!(later.await.unwrap(), here);
        let panics: Io<()> = Io::blocking(|| panic!("a bug"));
        assert!(matches!(panics.await, Err(OsdError::Io { .. })));
    }

    #[tokio::test]
    async fn a_dropped_call_ends() {
        let (done, ended) = tokio::sync::oneshot::channel();
        drop(Io::blocking(move || {
            let _ = done.send(());
            Ok(())
        }));
        ended.await.expect("the call is made");
    }
}
