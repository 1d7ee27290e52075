//! The tables as a target uses them: nobody waits for a disk while it holds a lock of the target.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::{Batch, DeviceStats, Io, Kv, OsdError};

/// Tables whose late answers are awaited in order. Clones are one device.
///
/// [`Device::commit`] and [`Device::sync_soon`] return at once. Whoever tells a client that something is done awaits
/// [`Device::stored`] before, when its own locks are free. The first late failure breaks the device: what came after it may rest
/// on what was lost, so every commit and every [`Device::stored`] from then on fails.
#[derive(Clone)]
pub struct Device {
    kv: Arc<dyn Kv>,
    late: Arc<Late>,
    stats: Arc<DeviceStats>,
}

/// A sync begun with [`Device::sync_ahead`].
#[derive(Debug)]
pub struct SyncAhead(Arc<AtomicBool>);

impl SyncAhead {
    /// Whether it has ended, and well.
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A call that is answered later, and when it was made.
type LateCall = (Io<()>, Instant);

/// Calls that are answered later, in the order in which they were made.
#[derive(Default)]
struct Late {
    /// Number of such calls.
    made: AtomicU64,
    ended: Mutex<Ended>,
    /// Some have ended. Who waits is woken in order: a simulated run repeats.
    changed: Notify,
    /// To the task that awaits them; it ends with the device.
    queue: Mutex<Option<mpsc::UnboundedSender<LateCall>>>,
}

#[derive(Clone, Debug, Default)]
struct Ended {
    count: u64,
    /// Why the device is broken.
    failure: Option<String>,
}

impl Device {
    /// The device on `kv`.
    pub fn new(kv: Arc<dyn Kv>) -> Device {
        Device {
            kv,
            late: Arc::default(),
            stats: Arc::default(),
        }
    }

    /// Commits a batch. It is visible when this returns, and survives the end of the process when [`Device::stored`] says so.
    pub fn commit(&self, batch: Batch) -> Result<(), OsdError> {
        self.late.refuse_broken()?;
        let begun = Instant::now();
        let answer = self.kv.commit(batch).now();
        self.stats.commit.record_time(begun.elapsed());
        match answer {
            Ok(answer) => answer,
            Err(later) => self.push(later, begun),
        }
    }

    /// Begins to make what was committed survive power loss; [`Device::stored`] waits for it too.
    pub fn sync_soon(&self) -> Result<(), OsdError> {
        self.late.refuse_broken()?;
        match self.sync().now() {
            Ok(answer) => answer,
            Err(later) => self.push(later, Instant::now()),
        }
    }

    /// Begins to make what was committed survive power loss, for something that is needed later: [`Device::stored`] does not wait
    /// for it.
    pub fn sync_ahead(&self) -> Result<SyncAhead, OsdError> {
        self.late.refuse_broken()?;
        let ended = Arc::new(AtomicBool::new(false));
        match self.sync().now() {
            Ok(answer) => {
                answer?;
                ended.store(true, Ordering::Release);
            }
            Err(later) => {
                let ended = ended.clone();
                tokio::spawn(async move {
                    match later.await {
                        Ok(()) => ended.store(true, Ordering::Release),
                        Err(error) => tracing::error!(%error, "sync of the tables"),
                    }
                });
            }
        }
        Ok(SyncAhead(ended))
    }

    /// Everything that was committed, and every sync begun, has ended without an error.
    pub fn stored_now(&self) -> bool {
        let upto = self.late.made.load(Ordering::Acquire);
        matches!(self.late.ended(upto), Some(Ok(())))
    }

    /// Waits until everything that was committed before, and every sync begun before, has ended.
    pub async fn stored(&self) -> Result<(), OsdError> {
        let upto = self.late.made.load(Ordering::Acquire);
        loop {
            if let Some(ended) = self.late.ended(upto) {
                return ended;
            }
            // counts what is told from here on, so it is looked again before the wait
            let changed = self.late.changed.notified();
            if let Some(ended) = self.late.ended(upto) {
                return ended;
            }
            changed.await;
        }
    }

    /// Commits a batch and waits until it survives power loss.
    pub async fn commit_synced(&self, batch: Batch) -> Result<(), OsdError> {
        self.commit(batch)?;
        self.sync().await?;
        self.stored().await
    }

    /// Makes everything that was committed survive power loss. It does not wait for what is answered later.
    pub fn sync(&self) -> Io<()> {
        let (begun, stats) = (Instant::now(), self.stats.clone());
        match self.kv.sync().now() {
            Ok(answer) => {
                stats.sync.record_time(begun.elapsed());
                Io::ready(answer)
            }
            Err(later) => Io::later(async move {
                let answer = later.await;
                stats.sync.record_time(begun.elapsed());
                answer
            }),
        }
    }

    /// Counters; clones share them.
    pub fn stats(&self) -> &Arc<DeviceStats> {
        &self.stats
    }

    fn push(&self, later: Io<()>, begun: Instant) -> Result<(), OsdError> {
        let mut queue = self.late.queue.lock();
        let sender = queue.get_or_insert_with(|| {
            let (sender, calls) = mpsc::unbounded_channel();
            let (late, stats) = (Arc::downgrade(&self.late), self.stats.clone());
            tokio::spawn(await_in_order(calls, late, stats));
            sender
        });
        if sender.send((later, begun)).is_err() {
            return Err(OsdError::Poisoned(
                "the server stopped before its disk had answered".into(),
            ));
        }
        self.stats.late_active.inc();
        self.late.made.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Late {
    /// How the first `upto` calls ended, when they have, or one has failed.
    fn ended(&self, upto: u64) -> Option<Result<(), OsdError>> {
        if self.made.load(Ordering::Acquire) == 0 {
            return Some(Ok(()));
        }
        let ended = self.ended.lock();
        match &ended.failure {
            Some(why) => Some(Err(OsdError::Poisoned(why.clone()))),
            None => (ended.count >= upto).then_some(Ok(())),
        }
    }

    fn refuse_broken(&self) -> Result<(), OsdError> {
        self.ended(0).unwrap_or(Ok(()))
    }
}

async fn await_in_order(
    mut calls: mpsc::UnboundedReceiver<LateCall>,
    late: Weak<Late>,
    stats: Arc<DeviceStats>,
) {
    while let Some((call, begun)) = calls.recv().await {
        let answer = call.await;
        stats.late.record_time(begun.elapsed());
        stats.late_active.dec();
        let Some(late) = late.upgrade() else {
            return;
        };
        {
            let mut ended = late.ended.lock();
            ended.count += 1;
            if let (Err(error), None) = (&answer, &ended.failure) {
                tracing::error!(%error, "a change of the tables did not reach the disk");
                ended.failure = Some(format!("a change did not reach the disk: {error}"));
            }
        }
        late.changed.notify_waiters();
    }
}

impl Deref for Device {
    type Target = dyn Kv;

    fn deref(&self) -> &(dyn Kv + 'static) {
        &*self.kv
    }
}

impl<K: Kv + 'static> From<Arc<K>> for Device {
    fn from(kv: Arc<K>) -> Device {
        Device::new(kv)
    }
}

impl From<Arc<dyn Kv>> for Device {
    fn from(kv: Arc<dyn Kv>) -> Device {
        Device::new(kv)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{DiskModel, OsdMem, OsdSim, Table};

    fn slow() -> (OsdSim, Device) {
        let model = DiskModel {
            write_latency: Duration::from_millis(10),
            sync_latency: Duration::from_millis(100),
            ..DiskModel::INSTANT
        };
        let disk = OsdSim::new(OsdMem::new(), model, 1);
        (disk.clone(), Device::from(Arc::new(disk)))
    }

    fn batch() -> Batch {
        let mut b = Batch::new();
        b.put(Table("t"), "key", "value");
        b
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_is_seen_at_once_and_stored_later() {
        let (_, device) = slow();
        let begun = tokio::time::Instant::now();
        device.commit(batch()).unwrap();
        assert!(device.get(Table("t"), b"key").unwrap().is_some());
        assert_eq!(begun.elapsed(), Duration::ZERO);
        device.stored().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(10));
        let begun = tokio::time::Instant::now();
        device.stored().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO, "nothing is under way");
        let stats = device.stats();
        assert_eq!((stats.commit.count(), stats.commit.recorded().sum), (1, 0));
        let late = stats.late.recorded();
        assert_eq!((late.count(), stats.late_active.value()), (1, 0));
        assert!(Duration::from_nanos(late.sum) >= Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_synced_ahead_keeps_nobody_waiting() {
        let (_, device) = slow();
        let ahead = device.sync_ahead().unwrap();
        device.commit(batch()).unwrap();
        device.stored().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(ahead.has_ended());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_failure_breaks_the_device() {
        let (disk, device) = slow();
        disk.fail_sync(1);
        device.sync_soon().unwrap();
        device.commit(batch()).unwrap();
        assert!(device.stored().await.is_err());
        assert!(device.commit(batch()).is_err());
        assert!(device.stored().await.is_err(), "and stays so");
    }
}
