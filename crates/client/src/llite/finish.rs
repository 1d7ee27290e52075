//! Changes that are carried to their end though the caller gives up.
//!
//! A request that was sent may be executed whether or not somebody waits for the reply. Own changes do not revoke own locks,
//! so the reply must be taken into the cache in any case; and a file opened for a caller that is gone must be closed. So a
//! change that is dropped half way goes on by itself. Lustre: `ptlrpc` interprets replies of interrupted callers likewise.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

/// A future that goes on as a task of its own when it is dropped after its first poll.
pub(super) struct Finish<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    begun: bool,
}

/// See [`Finish`].
pub(super) fn finish<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Finish<T> {
    Finish {
        work: Some(Box::pin(work)),
        begun: false,
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let work = self.work.as_mut().expect("not polled after it was ready");
        let out = std::task::ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(out)
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.begun)
            && let Ok(rt) = tokio::runtime::Handle::try_current()
        {
            rt.spawn(async move { drop(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn what_was_begun_ends() {
        for polled in [true, false] {
            let (tx, rx) = tokio::sync::oneshot::channel::<()>();
            let done = Arc::new(AtomicBool::new(false));
            let flag = done.clone();
            let mut f = finish(async move {
                let _ = rx.await;
                flag.store(true, Ordering::Release);
            });
            if polled {
                assert!((&mut f).now_or_never().is_none());
            }
            drop(f);
            let _ = tx.send(());
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(done.load(Ordering::Acquire), polled);
        }
    }
}
