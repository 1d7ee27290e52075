//! What is on disk: how others learn that a transaction survives power loss, and the task that sees to it from time to time.
//!
//! A transaction that frees something, such as the objects of a file, may be undone by the loss of power until it is on disk.
//! Who acts on it takes a mark after its commit, and waits until [`LuTarget::durable`] has reached that.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_osd::{Batch, OsdError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::{LuTarget, TargetKind, last_rcvd};

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

    /// Highest transno that, with all before it, survives power loss.
    pub fn last_committed(&self) -> u64 {
        self.last_committed.load(Relaxed)
    }

    /// Makes everything acknowledged so far survive power loss and moves last_committed.
    pub async fn sync(self: &Arc<Self>) -> Result<(), OsdError> {
        self.sync_with(true).await
    }

    /// The same, of the tables alone unless `data`.
    pub(super) async fn sync_with(self: &Arc<Self>, data: bool) -> Result<(), OsdError> {
        let mut group = self.syncs.enter(data).await;
        if group.covered() {
            return Ok(());
        }
        let covers = self.syncs.begin(&group);
        self.sync_now(data).await?;
        group.finished(covers);
        Ok(())
    }

    /// One sync. Without the data nothing is committed: clients keep what they have written.
    async fn sync_now(&self, data: bool) -> Result<(), OsdError> {
        let begun = Instant::now();
        let upto = self.done_transno();
        if data {
            if let Some(ops) = self.ops.get() {
                ops.sync_data().await?;
            }
            // After the data: the number may reach the disk at any time.
            self.store_done(upto)?;
        }
        let mark = self.mark();
        self.kv.sync().await?;
        self.reached(mark);
        if data {
            self.last_committed.fetch_max(upto, Relaxed);
        }
        self.stats.syncs.record_time(begun.elapsed());
        Ok(())
    }

    /// Stores that all is on disk up to `upto`, where the last transactions have not: a number clients were told to be committed
    /// must never be given again.
    fn store_done(&self, upto: u64) -> Result<(), OsdError> {
        let _numbers = self.numbers.lock();
        let mut batch = Batch::new();
        self.put_transno(&mut batch, upto);
        let stored = *self.stored.lock();
        if self.cfg.kind == TargetKind::Mdt && upto > stored.data {
            last_rcvd::put_data_transno(&mut batch, upto);
            // for older versions, which do not look for it in the replies
            last_rcvd::put_transno(&mut batch, upto.max(stored.tables));
        }
        if !batch.is_empty() {
            self.store(batch, upto)?;
            let mut stored = self.stored.lock();
            stored.data = stored.data.max(upto);
        }
        Ok(())
    }

    /// A sync that began after `mark` was taken has ended.
    fn reached(&self, mark: u64) {
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
        // what nobody waits for is written too
        target.stored_now();
        if target.has_unsynced()
            && let Err(error) = target.sync().await
        {
            tracing::error!(target = %target.cfg.name, %error, "periodic sync");
            // What waits for its space to be freed needs the tables only.
            let _ = target.sync_with(false).await;
        }
    }
}
