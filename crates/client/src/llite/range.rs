//! Byte ranges being written by this client: overlapping writes go one after another, others side by side.
//!
//! Two writes of one file must each be there whole in the end, never half of each (POSIX), but their stripes travel on
//! their own. Between clients the servers' extent locks keep each piece whole; between threads of one client this does.
//! Invariants: ranges held never overlap; who waits is woken at every release, and no order among those is promised.
//!
//! Lustre: `lustre/llite/range_lock.c` (an interval tree there; a list here: one entry per write under way).

use std::ops::Range;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The ranges of one file that are being written.
#[derive(Default)]
pub(super) struct RangeLocks {
    held: Mutex<Vec<Range<u64>>>,
    released: Notify,
}

/// One range, until dropped.
pub(super) struct RangeGuard<'a> {
    of: &'a RangeLocks,
    range: Range<u64>,
}

impl RangeLocks {
    /// Takes `range` once nobody holds any byte of it. Empty ranges conflict with nothing.
    pub async fn lock(&self, range: Range<u64>) -> RangeGuard<'_> {
        loop {
            if self.try_lock(&range) {
                return RangeGuard { of: self, range };
            }
            let released = self.released.notified();
            tokio::pin!(released);
            // registered before looking again, so a release in between is not missed
            released.as_mut().enable();
            if self.try_lock(&range) {
                return RangeGuard { of: self, range };
            }
            released.await;
        }
    }

    fn try_lock(&self, range: &Range<u64>) -> bool {
        let mut held = self.held.lock();
        let free = !held
            .iter()
            .any(|h| h.start < range.end && range.start < h.end);
        if free {
            held.push(range.clone());
        }
        free
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock();
        let at = held
            .iter()
            .position(|h| *h == self.range)
            .expect("a guard's range is held");
        held.swap_remove(at);
        drop(held);
        self.of.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn overlapping_ranges_wait_and_others_do_not() {
        let l = RangeLocks::default();
        let a = l.lock(10..20).await;
        let b = l.lock(20..30).now_or_never().expect("they only touch");
        let mut over = Box::pin(l.lock(15..25));
        assert!((&mut over).now_or_never().is_none());
        drop(a);
        assert!(
            (&mut over).now_or_never().is_none(),
            "the other one still holds 20..25"
        );
        drop(b);
        drop(over.now_or_never().expect("free now"));
        assert!(l.held.lock().is_empty());
    }

    #[tokio::test]
    async fn a_dropped_wait_holds_nothing() {
        let l = RangeLocks::default();
        let a = l.lock(0..u64::MAX).await;
        assert!(l.lock(5..6).now_or_never().is_none());
        drop(a);
        assert!(l.lock(0..10).now_or_never().is_some());
    }
}
