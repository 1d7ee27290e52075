//! Many callers, one sync: who waits while a sync runs is served by the next one (group commit of fsyncs).

use std::sync::atomic::{AtomicU64, Ordering};

use coral_stopwatch::{Wait, waits};
use tokio::sync::{Mutex, MutexGuard};

/// How far syncs have come, in tickets. A ticket is covered by a sync that began after it was drawn.
#[derive(Debug, Default)]
pub(crate) struct SyncGroup {
    drawn: AtomicU64,
    done: Mutex<Done>,
}

/// Highest ticket covered by a sync of the tables, and by one of data and tables.
#[derive(Debug, Default)]
struct Done {
    tables: u64,
    all: u64,
}

/// One caller's turn.
pub(crate) struct SyncTurn<'a> {
    done: MutexGuard<'a, Done>,
    ticket: u64,
    data: bool,
}

impl SyncGroup {
    /// Draws a ticket and waits for its turn. `data`: objects too, not only tables.
    pub(crate) async fn enter(&self, data: bool) -> SyncTurn<'_> {
        let ticket = self.drawn.fetch_add(1, Ordering::SeqCst) + 1;
        SyncTurn {
            done: waits(Wait::Storage, self.done.lock()).await,
            ticket,
            data,
        }
    }

    /// A sync begins in this turn: every ticket drawn up to here will be covered.
    pub(crate) fn begin(&self, _turn: &SyncTurn<'_>) -> u64 {
        self.drawn.load(Ordering::SeqCst)
    }
}

impl SyncTurn<'_> {
    /// Whether another caller's sync has done our work.
    pub(crate) fn covered(&self) -> bool {
        self.ticket
            <= if self.data {
                self.done.all
            } else {
                self.done.tables
            }
    }

    /// The sync that covers tickets up to `covers` has succeeded.
    pub(crate) fn finished(&mut self, covers: u64) {
        self.done.tables = covers;
        if self.data {
            self.done.all = covers;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn waiters_share_the_next_sync() {
        let g = SyncGroup::default();
        let mut first = g.enter(true).await;
        assert!(!first.covered());
        let covers = g.begin(&first);
        // These come while the first sync runs: it may have missed their writes.
        let (mut a, mut b, mut c) = (
            Box::pin(g.enter(true)),
            Box::pin(g.enter(false)),
            Box::pin(g.enter(true)),
        );
        assert!(
            a.as_mut().now_or_never().is_none()
                && b.as_mut().now_or_never().is_none()
                && c.as_mut().now_or_never().is_none()
        );
        first.finished(covers);
        drop(first);
        let mut a = a.await;
        assert!(!a.covered());
        let covers = g.begin(&a);
        a.finished(covers);
        drop(a);
        assert!(b.await.covered());
        assert!(c.await.covered());
    }

    #[tokio::test]
    async fn a_sync_of_tables_covers_no_data() {
        let g = SyncGroup::default();
        let mut t = g.enter(false).await;
        let mut d = Box::pin(g.enter(true));
        assert!(d.as_mut().now_or_never().is_none());
        let covers = g.begin(&t);
        t.finished(covers);
        drop(t);
        assert!(!d.await.covered());
    }
}
