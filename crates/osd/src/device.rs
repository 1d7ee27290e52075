//! The tables as a target uses them: nobody waits for a disk while it holds a lock of the target.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::{Batch, Io, Kv, OsdError};

/// Tables whose late answers are awaited in order. Clones are one device.
///
/// [`Device::commit`] and [`Device::sync_soon`] return at once. Whoever tells a client that something is done awaits
/// [`Device::stored`] before, when its own locks are free. The first late failure breaks the device: what came after it may rest
/// on what was lost, so every commit and every [`Device::stored`] from then on fails.
#[derive(Clone)]
pub struct Device {
    kv: Arc<dyn Kv>,
    late: Arc<Late>,
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

/// Calls that are answered later, in the order in which they were made.
#[derive(Default)]
struct Late {
    /// Number of such calls.
    made: AtomicU64,
    ended: watch::Sender<Ended>,
    /// To the task that awaits them; it ends with the device.
    queue: Mutex<Option<mpsc::UnboundedSender<Io<()>>>>,
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
        }
    }

    /// Commits a batch. It is visible when this returns, and survives the end of the process when [`Device::stored`] says so.
    pub fn commit(&self, batch: Batch) -> Result<(), OsdError> {
        self.late.refuse_broken()?;
        match self.kv.commit(batch).now() {
            Ok(answer) => answer,
            Err(later) => self.push(later),
        }
    }

    /// Begins to make what was committed survive power loss; [`Device::stored`] waits for it too.
    pub fn sync_soon(&self) -> Result<(), OsdError> {
        self.late.refuse_broken()?;
        match self.kv.sync().now() {
            Ok(answer) => answer,
            Err(later) => self.push(later),
        }
    }

    /// Begins to make what was committed survive power loss, for something that is needed later: [`Device::stored`] does not wait
    /// for it.
    pub fn sync_ahead(&self) -> Result<SyncAhead, OsdError> {
        self.late.refuse_broken()?;
        let ended = Arc::new(AtomicBool::new(false));
        match self.kv.sync().now() {
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

    /// Waits until everything that was committed before, and every sync begun before, has ended.
    pub async fn stored(&self) -> Result<(), OsdError> {
        let upto = self.late.made.load(Ordering::Acquire);
        if upto > 0 {
            let mut ended = self.late.ended.subscribe();
            // The sender lives as long as this does.
            let _ = ended
                .wait_for(|e| e.count >= upto || e.failure.is_some())
                .await;
        }
        self.late.refuse_broken()
    }

    fn push(&self, later: Io<()>) -> Result<(), OsdError> {
        let mut queue = self.late.queue.lock();
        let sender = queue.get_or_insert_with(|| {
            let (sender, calls) = mpsc::unbounded_channel();
            tokio::spawn(await_in_order(calls, self.late.ended.clone()));
            sender
        });
        if sender.send(later).is_err() {
            return Err(OsdError::Poisoned(
                "the server stopped before its disk had answered".into(),
            ));
        }
        self.late.made.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Late {
    fn refuse_broken(&self) -> Result<(), OsdError> {
        if self.made.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        match &self.ended.borrow().failure {
            Some(why) => Err(OsdError::Poisoned(why.clone())),
            None => Ok(()),
        }
    }
}

async fn await_in_order(mut calls: mpsc::UnboundedReceiver<Io<()>>, ended: watch::Sender<Ended>) {
    while let Some(call) = calls.recv().await {
        let answer = call.await;
        ended.send_modify(|e| {
            e.count += 1;
            if let (Err(error), None) = (&answer, &e.failure) {
                tracing::error!(%error, "a change of the tables did not reach the disk");
                e.failure = Some(format!("a change did not reach the disk: {error}"));
            }
        });
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
