//! What is on disk: how others learn that a transaction survives power loss, and the task that sees to it from time to time.
//!
//! A transaction that frees something, such as the objects of a file, may be undone by the loss of power until it is on disk.
//! Who acts on it takes a mark after its commit, and waits until [`LuTarget::durable`] has reached that.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::LuTarget;

/// Least pause between two syncs that somebody asked for with [`LuTarget::sync_soon`].
const SOON_PAUSE: Duration = Duration::from_millis(100);

impl LuTarget {
    /// Everything that was committed before this call is on disk when [`LuTarget::durable`] is not less.
    pub fn mark(&self) -> u64 {
        // A batch is committed and counted under this lock.
        let _numbers = self.numbers.lock();
        self.commits.load(Relaxed)
    }

    /// The mark up to which everything is on disk. It only grows, and ends with the target.
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.durable.subscribe()
    }

    /// Whether everything up to `mark` is on disk.
    pub fn is_durable(&self, mark: u64) -> bool {
        *self.durable.borrow() >= mark
    }

    /// Asks for a sync before the next periodic one.
    pub fn sync_soon(&self) {
        self.soon.notify_one();
    }

    /// A sync that began after `mark` was taken has ended.
    pub(super) fn reached(&self, mark: u64) {
        self.durable.send_if_modified(|durable| {
            let more = mark > *durable;
            *durable = mark.max(*durable);
            more
        });
    }

    /// Whether a sync would bring anything to disk.
    fn has_unsynced(&self) -> bool {
        self.done_transno() > self.last_committed() || !self.is_durable(self.mark())
    }
}

/// Makes everything safe against power loss from time to time, data first and then tables, and moves last_committed to what
/// was acknowledged when it began: a client drops what it keeps for replay only when it is on disk.
pub(super) async fn sync_loop(
    target: Weak<LuTarget>,
    soon: Arc<Notify>,
    mut stopped: watch::Receiver<bool>,
) {
    let Some(every) = target.upgrade().map(|t| t.cfg.sync_interval) else {
        return;
    };
    loop {
        let asked = async {
            tokio::time::sleep(SOON_PAUSE).await;
            soon.notified().await;
        };
        tokio::select! {
            biased;
            _ = stopped.wait_for(|s| *s) => return,
            () = tokio::time::sleep(every) => {}
            () = asked => {}
        }
        let Some(target) = target.upgrade() else {
            return;
        };
        if target.has_unsynced()
            && let Err(error) = target.sync().await
        {
            tracing::error!(target = %target.cfg.name, %error, "periodic sync");
            // What waits for its space to be freed needs the tables only.
            let _ = target.sync_with(false).await;
        }
    }
}
