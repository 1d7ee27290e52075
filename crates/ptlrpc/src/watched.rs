//! A value that many wait on. As tokio's `watch`, but those who wait are woken in the order they began to wait: `watch` picks
//! among its queues at random, and a run from a seed would not repeat.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A value and those who wait for it to become something.
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> Watched<T> {
    pub(crate) fn new(value: T) -> Watched<T> {
        Watched {
            value: Mutex::new(value),
            changed: Notify::new(),
        }
    }

    /// The value now.
    pub(crate) fn now(&self) -> T {
        *self.value.lock()
    }

    /// A new value. Waking a task runs nothing.
    pub(crate) fn set(&self, value: T) {
        *self.value.lock() = value;
        self.changed.notify_waiters();
    }

    /// Waits until the value is one that `wanted` accepts. It may be another when this returns; values that were there only for
    /// a moment may be missed.
    pub(crate) async fn wait_for(&self, mut wanted: impl FnMut(&T) -> bool) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = self.now();
            if wanted(&now) {
                return now;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn waiters_wake_in_their_order() {
        let w = Arc::new(Watched::new(0));
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|i| {
                let (w, order) = (w.clone(), order.clone());
                tokio::spawn(async move {
                    w.wait_for(|v| *v == 2).await;
                    order.lock().push(i);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        w.set(1);
        tokio::task::yield_now().await;
        w.set(2);
        for t in tasks {
            t.await.unwrap();
        }
        assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
        assert_eq!(w.wait_for(|v| *v == 2).await, 2);
    }
}
