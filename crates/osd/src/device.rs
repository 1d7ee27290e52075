//! The tables as a target uses them: nobody waits for a disk while it holds a lock of the target.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::behind::{WriteBehind, Writing};
use crate::marks::Mark;
use crate::{Batch, DeviceStats, Io, Kv, OsdError, StatFs, Table};

/// Tables whose late answers are awaited in order. Clones are one device.
///
/// [`Device::commit`] and [`Device::sync_soon`] return at once. Whoever tells a client that something is done awaits
/// [`Device::stored`] before, when its own locks are free. The first late failure breaks the device: what came after it may rest
/// on what was lost, so every commit and every [`Device::stored`] from then on fails.
#[derive(Clone)]
pub struct Device {
    tables: Arc<Tables>,
}

/// The tables as they are seen, with what has yet to be written.
struct Tables {
    kv: Arc<dyn Kv>,
    /// `None`: batches are written when they are committed.
    behind: Option<WriteBehind>,
    late: Arc<Late>,
    stats: Arc<DeviceStats>,
}

/// How [`Device::stored_as`] is to wait.
#[must_use]
#[derive(Debug)]
pub enum Storing {
    /// What was not written is written by who waits.
    Here,
    /// One has promised to write for all.
    ByOne {
        /// The number of the last that came.
        upto: u64,
        /// That of the promise.
        promise: u64,
    },
}

/// Time between two tries to write on a full disk.
const ROOM_PAUSE: Duration = Duration::from_millis(250);

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
            tables: Arc::new(Tables {
                kv,
                behind: None,
                late: Arc::default(),
                stats: Arc::default(),
            }),
        }
    }

    /// The device, from here on with batches that are seen at once and written when somebody waits for that, several as one: who
    /// commits keeps his locks for a shorter time. What others read of the tables, by an older clone, may be behind.
    pub fn behind(self) -> Device {
        Device {
            tables: Arc::new(Tables {
                kv: self.tables.kv.clone(),
                behind: Some(WriteBehind::default()),
                late: self.tables.late.clone(),
                stats: self.tables.stats.clone(),
            }),
        }
    }

    /// Commits a batch. It is visible when this returns, and survives the end of the process when [`Device::stored`] says so.
    pub fn commit(&self, batch: Batch) -> Result<(), OsdError> {
        let begun = Instant::now();
        let done = self.tables.commit(batch);
        self.stats().commit.record_time(begun.elapsed());
        done
    }

    /// The mark of a row, for one who reads it before he has the lock under which rows are changed; it is taken before the row is
    /// read. `None`: the device writes no batches behind, and does not tell whether a row was changed.
    pub fn mark(&self, t: Table, key: &[u8]) -> Option<Mark> {
        let behind = self.tables.behind.as_ref()?;
        Some(behind.marks.of(t, key))
    }

    /// Whether the row of the mark was not changed since. The caller holds that lock.
    pub fn is_unchanged(&self, mark: &Mark) -> bool {
        let behind = self.tables.behind.as_ref();
        behind.is_some_and(|b| b.marks.is_unchanged(mark))
    }

    /// Begins to make what was committed survive power loss; [`Device::stored`] waits for it too.
    pub fn sync_soon(&self) -> Result<(), OsdError> {
        self.tables.late.refuse_broken()?;
        match self.sync().now() {
            Ok(answer) => answer,
            Err(later) => self.tables.push(later, Instant::now()),
        }
    }

    /// Begins to make what was committed survive power loss, for something that is needed later: [`Device::stored`] does not wait
    /// for it.
    pub fn sync_ahead(&self) -> Result<SyncAhead, OsdError> {
        self.tables.late.refuse_broken()?;
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

    /// Everything that was committed, and every sync begun, has ended without an error. What was not written is written here.
    pub fn stored_now(&self) -> bool {
        if self.tables.write().is_err() {
            return false;
        }
        let upto = self.tables.late.made.load(Ordering::Acquire);
        matches!(self.tables.late.ended(upto), Some(Ok(())))
    }

    /// What is to be waited for until everything that was committed before is stored; `None` if nothing is. Where several commit at the
    /// same time nothing is written here, but soon, by one for all.
    pub fn storing(&self) -> Option<Storing> {
        let soon = self.tables.write_soon();
        soon.or_else(|| (!self.stored_now()).then_some(Storing::Here))
    }

    /// Waits until everything that was committed before, and every sync begun before, has ended. It waits for room, too, where the
    /// disk is full and something was seen that has none.
    pub async fn stored(&self) -> Result<(), OsdError> {
        self.stored_as(Storing::Here).await
    }

    /// The same for what was committed before [`Device::storing`] was asked.
    pub async fn stored_as(&self, storing: Storing) -> Result<(), OsdError> {
        let written = match (storing, &self.tables.behind) {
            (Storing::ByOne { upto, promise }, Some(behind)) => behind.written(upto, promise).await,
            _ => false,
        };
        if !written {
            self.tables.write_when_there_is_room().await?;
        }
        let late = &self.tables.late;
        let upto = late.made.load(Ordering::Acquire);
        loop {
            if let Some(ended) = late.ended(upto) {
                return ended;
            }
            // counts what is told from here on, so it is looked again before the wait
            let changed = late.changed.notified();
            if let Some(ended) = late.ended(upto) {
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
        if let Err(error) = self.tables.write() {
            return Io::ready(Err(error));
        }
        let (begun, stats) = (Instant::now(), self.stats().clone());
        match self.tables.kv.sync().now() {
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

    /// Why nothing is acknowledged, in words.
    pub fn trouble(&self) -> Option<String> {
        let failure = self.tables.late.ended.lock().failure.clone();
        let broken =
            |why| format!("{why}; nothing is acknowledged until the server is started again");
        let waits = || {
            let full = matches!(self.tables.write(), Err(OsdError::NoSpace));
            full.then(|| {
                "the disk is full: what was changed last, and all replies, wait for room".into()
            })
        };
        failure.map(broken).or_else(waits)
    }

    /// Counters; clones share them.
    pub fn stats(&self) -> &Arc<DeviceStats> {
        &self.tables.stats
    }
}

impl Tables {
    fn commit(&self, batch: Batch) -> Result<(), OsdError> {
        self.late.refuse_broken()?;
        let Some(behind) = &self.behind else {
            return self.commit_now(batch);
        };
        let batch = Arc::new(batch);
        let done = self.commit_behind(behind, batch.clone());
        behind.marks.changed(&batch);
        done
    }

    fn commit_behind(&self, behind: &WriteBehind, batch: Arc<Batch>) -> Result<(), OsdError> {
        if self.kv.may_wait(&batch) {
            let ready = self.kv.ready(&batch);
            let written = match behind.push(batch, ready) {
                true => self.write(),
                false => return Ok(()),
            };
            // it is seen, and will be written when there is room
            return match written {
                Err(OsdError::NoSpace) => Ok(()),
                written => written,
            };
        }
        // whether there is room for it is known when it is written
        let writing = behind.writing();
        let written = self.write_in(&writing)?;
        let done = self.commit_now(Batch::clone(&batch));
        drop(writing);
        behind.tell();
        drop(written);
        done
    }

    fn commit_now(&self, batch: Batch) -> Result<(), OsdError> {
        let begun = Instant::now();
        match self.kv.commit(batch).now() {
            Ok(answer) => answer,
            Err(later) => self.push(later, begun),
        }
    }

    /// Writes what was committed before this and is not written. [`OsdError::NoSpace`]: it stays to be written.
    fn write(&self) -> Result<(), OsdError> {
        match self.behind.as_ref().and_then(WriteBehind::turn) {
            Some(writing) => {
                let written = self.write_in(&writing);
                drop(writing);
                if let Some(behind) = &self.behind {
                    behind.tell();
                }
                written.map(drop)
            }
            None => Ok(()),
        }
    }

    /// What it gives back is freed when the turn is over.
    fn write_in(&self, writing: &Writing<'_>) -> Result<Vec<Arc<Batch>>, OsdError> {
        self.late.refuse_broken()?;
        let begun = Instant::now();
        let mut group = writing.group();
        if !group.batches.is_empty() {
            let batches = std::mem::take(&mut group.batches);
            match self.kv.commit_seen(batches).now() {
                Ok(Ok(())) => {}
                Ok(Err(OsdError::NoSpace)) => return Err(OsdError::NoSpace),
                // others have seen it, and built on it
                Ok(Err(error)) => return Err(self.late.fail(&error)),
                Err(later) => self.push(later, begun)?,
            }
        }
        if let Some(number) = group.note {
            self.kv.note(number);
        }
        let written = writing.written(&group);
        self.stats.write.record_time(begun.elapsed());
        Ok(written)
    }

    /// Has what is here written soon, by one for all, if that is to be.
    fn write_soon(self: &Arc<Self>) -> Option<Storing> {
        let behind = self.behind.as_ref()?;
        let upto = behind.for_all()?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (promise, is_new) = behind.promise();
        if is_new {
            let one = ForAll {
                tables: Arc::downgrade(self),
                promise,
            };
            runtime.spawn(one.write());
        }
        Some(Storing::ByOne { upto, promise })
    }

    /// Writes what is here; waits for room as long as there is none.
    async fn write_when_there_is_room(&self) -> Result<(), OsdError> {
        loop {
            match self.write() {
                Err(OsdError::NoSpace) => tokio::time::sleep(ROOM_PAUSE).await,
                done => return done,
            }
        }
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

/// What is seen: with the batches that have yet to be written.
impl Kv for Tables {
    fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        match self.behind.as_ref().and_then(|b| b.find(t, key)) {
            Some(found) => Ok(found),
            None => self.kv.get(t, key),
        }
    }

    fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        self.write()?;
        self.kv.range(t, from, to, limit)
    }

    fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        self.write()?;
        self.kv.last(t, prefix)
    }

    fn commit(&self, b: Batch) -> Io<()> {
        if let Err(error) = self.write() {
            return Io::ready(Err(error));
        }
        let changed = self.behind.as_ref().map(|behind| (behind, b.clone()));
        let done = self.kv.commit(b);
        if let Some((behind, batch)) = changed {
            behind.marks.changed(&batch);
        }
        done
    }

    fn sync(&self) -> Io<()> {
        match self.write() {
            Ok(()) => self.kv.sync(),
            Err(error) => Io::ready(Err(error)),
        }
    }

    fn note(&self, number: u64) {
        match &self.behind {
            Some(behind) => behind.note(number),
            None => self.kv.note(number),
        }
    }

    fn noted(&self) -> u64 {
        self.kv.noted()
    }

    fn statfs(&self) -> Result<StatFs, OsdError> {
        self.kv.statfs()
    }
}

impl Ended {
    fn fail(&mut self, error: &OsdError) {
        if self.failure.is_none() {
            tracing::error!(%error, "a change of the tables did not reach the disk: nothing more is taken until the server is started again");
            self.failure = Some(format!("a change did not reach the disk: {error}"));
        }
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

    /// A batch that was seen was not written.
    fn fail(&self, error: &OsdError) -> OsdError {
        let mut ended = self.ended.lock();
        self.made.fetch_add(1, Ordering::Release);
        ended.count += 1;
        ended.fail(error);
        drop(ended);
        self.changed.notify_waiters();
        OsdError::Poisoned(format!("a change did not reach the disk: {error}"))
    }
}

/// Who has promised to write for all. When this is dropped the promise has ended; who waits is woken, and writes himself if it was not
/// kept.
struct ForAll {
    tables: Weak<Tables>,
    promise: u64,
}

impl ForAll {
    /// Writes when the thread that it runs on has nothing else to do.
    async fn write(self) {
        tokio::task::yield_now().await;
        if let Some(tables) = self.tables.upgrade() {
            if let Some(behind) = &tables.behind {
                behind.begins(self.promise);
            }
            // a failure is kept, or met again by who waits
            let _ = tables.write();
        }
    }
}

impl Drop for ForAll {
    fn drop(&mut self) {
        if let Some(tables) = self.tables.upgrade()
            && let Some(behind) = &tables.behind
        {
            behind.ends(self.promise);
        }
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
            if let Err(error) = &answer {
                ended.fail(error);
            }
        }
        late.changed.notify_waiters();
    }
}

impl Deref for Device {
    type Target = dyn Kv;

    fn deref(&self) -> &(dyn Kv + 'static) {
        &*self.tables
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
    use super::*;
    use crate::{DiskModel, Fault, OsdMem, OsdSim, Table};

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

    fn behind() -> (OsdSim, Device) {
        let disk = OsdSim::from(OsdMem::new());
        (disk.clone(), Device::from(Arc::new(disk)).behind())
    }

    fn put(key: &'static str, value: &'static str) -> Batch {
        let mut b = Batch::new();
        b.put(Table("t"), key, value);
        b
    }

    fn text(value: &'static str) -> Option<Bytes> {
        Some(Bytes::from_static(value.as_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_behind_is_seen_and_written_for_who_waits() {
        let (disk, device) = behind();
        let t = Table("t");
        device.commit(put("a", "1")).unwrap();
        device.commit(put("a", "2")).unwrap();
        device.note(3);
        assert_eq!(device.get(t, b"a").unwrap(), text("2"));
        assert_eq!((disk.get(t, b"a").unwrap(), disk.noted()), (None, 0));
        assert!(device.stored_now());
        assert_eq!((disk.get(t, b"a").unwrap(), disk.noted()), (text("2"), 3));
        assert_eq!(device.stats().write.count(), 1, "as one");
        device.note(4);
        assert_eq!(disk.noted(), 3);
        assert!(device.stored_now());
        assert_eq!(disk.noted(), 4);
        device.commit(put("b", "1")).unwrap();
        let all = device.range(t, b"", None, 9).unwrap();
        assert_eq!(all.len(), 2, "a range is of all that was committed");
        device.commit(put("c", "1")).unwrap();
        assert_eq!(device.last(t, b"").unwrap().unwrap().0, "c");
        device.commit(put("d", "1")).unwrap();
        device.sync().await.unwrap();
        assert!(disk.get(t, b"d").unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_and_is_not_written_breaks_the_device() {
        let (disk, device) = behind();
        device.commit(put("a", "1")).unwrap();
        disk.inject(Fault::FailWrite(1));
        assert!(!device.stored_now());
        assert!(device.stored().await.is_err());
        assert!(device.commit(put("b", "1")).is_err());
        assert!(device.sync().await.is_err());
        assert!(!device.stored_now(), "and stays so");
        assert_eq!(disk.get(Table("t"), b"a").unwrap(), None);
    }

    /// Commits one row and says what its reply is to wait for.
    fn commit_one(device: &Device, key: &'static str) -> Option<Storing> {
        device.commit(put(key, "1")).unwrap();
        device.storing()
    }

    #[tokio::test(start_paused = true)]
    async fn where_many_commit_one_writes_for_all() {
        let (disk, device) = behind();
        let t = Table("t");
        assert!(commit_one(&device, "a").is_none(), "alone: written here");
        device.commit(put("b", "1")).unwrap();
        let of_b = commit_one(&device, "c").expect("two are here");
        let of_c = device.storing().expect("and wait");
        assert_eq!(disk.get(t, b"b").unwrap(), None);
        let [b, c] = [of_b, of_c].map(|s| {
            let device = device.clone();
            tokio::spawn(async move { device.stored_as(s).await })
        });
        b.await.unwrap().unwrap();
        c.await.unwrap().unwrap();
        assert_eq!(disk.get(t, b"c").unwrap(), text("1"));
        assert_eq!(device.stats().write.count(), 2, "one for both");
        assert!(commit_one(&device, "d").is_none(), "two were not many");
        assert_eq!(device.stats().write.count(), 3);
        // where many were written as one the next waits for others, and finds that it is alone
        for key in ["e", "f", "g", "h"] {
            device.commit(put(key, "1")).unwrap();
        }
        assert!(device.stored_now());
        let of_i = commit_one(&device, "i").expect("waits for others");
        device.stored_as(of_i).await.unwrap();
        assert_eq!(disk.get(t, b"i").unwrap(), text("1"));
        assert!(commit_one(&device, "j").is_none());
        assert_eq!(device.stats().write.count(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_batch_waits_for_no_later_one() {
        let (disk, device) = behind();
        device.commit(put("a", "1")).unwrap();
        let of_b = commit_one(&device, "b").expect("two are here");
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        device.commit(put("c", "1")).unwrap();
        device.stored_as(of_b).await.unwrap();
        assert_eq!(disk.get(Table("t"), b"c").unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_for_one_are_told_that_it_failed() {
        let (disk, device) = behind();
        device.commit(put("a", "1")).unwrap();
        let of_b = commit_one(&device, "b").expect("two are here");
        let of_c = commit_one(&device, "c").expect("three");
        disk.inject(Fault::FailWrite(1));
        assert!(device.stored_as(of_b).await.is_err());
        assert!(device.stored_as(of_c).await.is_err());
        assert!(device.commit(put("d", "1")).is_err());
    }

    /// A promise that nobody keeps, as its runtime has ended, holds nobody up.
    #[test]
    fn who_waits_writes_himself_when_a_promise_is_not_kept() {
        let (disk, device) = behind();
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap()
        };
        let ends = runtime();
        let of_b = {
            let _entered = ends.enter();
            device.commit(put("a", "1")).unwrap();
            commit_one(&device, "b").expect("two are here")
        };
        drop(ends);
        runtime().block_on(device.stored_as(of_b)).unwrap();
        assert_eq!(disk.get(Table("t"), b"b").unwrap(), text("1"));
        device.commit(put("c", "1")).unwrap();
        assert!(commit_one(&device, "d").is_none(), "no runtime at all");
        assert_eq!(disk.get(Table("t"), b"d").unwrap(), text("1"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_one_waits_for_room_too() {
        let (disk, device) = behind();
        device.commit(put("a", "1")).unwrap();
        let of_b = commit_one(&device, "b").expect("two are here");
        disk.inject(Fault::Full(1));
        let waiting = tokio::spawn({
            let device = device.clone();
            async move { device.stored_as(of_b).await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        disk.inject(Fault::None);
        waiting.await.unwrap().unwrap();
        assert_eq!(disk.get(Table("t"), b"b").unwrap(), text("1"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_seen_waits_for_room() {
        let (disk, device) = behind();
        device.commit(put("a", "1")).unwrap();
        device.note(2);
        disk.inject(Fault::Full(1));
        assert!(!device.stored_now());
        assert!(device.trouble().is_some());
        assert!(
            matches!(device.commit(put("b", "1")), Err(OsdError::NoSpace)),
            "nothing more is taken"
        );
        let waiting = tokio::spawn({
            let device = device.clone();
            async move { device.stored().await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        assert!(device.get(Table("t"), b"a").unwrap().is_some());
        disk.inject(Fault::None);
        waiting.await.unwrap().unwrap();
        assert!(device.stored_now() && device.trouble().is_none());
        assert_eq!(disk.get(Table("t"), b"a").unwrap(), text("1"));
        assert_eq!(
            (disk.get(Table("t"), b"b").unwrap(), disk.noted()),
            (None, 2)
        );
    }

    #[test]
    fn what_nobody_waited_for_ends_with_the_device() {
        let (disk, device) = behind();
        device.commit(put("a", "1")).unwrap();
        assert!(device.stored_now());
        device.commit(put("a", "2")).unwrap();
        device.note(2);
        drop(device);
        assert_eq!(disk.get(Table("t"), b"a").unwrap(), text("1"));
        assert_eq!(disk.noted(), 0);
    }

    /// A row that is read before the lock, and whose mark is unchanged under it, is what the tables have then.
    #[test]
    fn a_row_read_ahead_of_the_lock_is_told_to_be_old() {
        let (_, device) = behind();
        let t = Table("t");
        let lock = Mutex::new(());
        let ended = AtomicBool::new(false);
        let (mut kept, mut again) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0u32..20_000 {
                    let held = lock.lock();
                    let mut b = Batch::new();
                    b.put(t, "row", n.to_le_bytes().to_vec());
                    device.commit(b).unwrap();
                    drop(held);
                    assert!(device.stored_now());
                }
                ended.store(true, Ordering::Release);
            });
            while !ended.load(Ordering::Acquire) {
                let mark = device.mark(t, b"row").expect("batches are written behind");
                let early = device.get(t, b"row").unwrap();
                let held = lock.lock();
                match device.is_unchanged(&mark) {
                    true => {
                        assert_eq!(early, device.get(t, b"row").unwrap());
                        kept += 1;
                    }
                    false => again += 1,
                }
                drop(held);
            }
        });
        assert!(kept > 0 && again > 0, "{kept} kept, {again} read again");
    }

    #[test]
    fn changes_of_many_threads_are_all_there_in_their_order() {
        let (disk, device) = behind();
        let t = Table("t");
        let number = |found: Option<Bytes>| {
            found.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()))
        };
        let lock = Mutex::new(());
        let (threads, each) = (4, 500u64);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (device, disk, lock) = (&device, &disk, &lock);
                scope.spawn(move || {
                    let own = vec![thread];
                    for n in 1..=each {
                        let held = lock.lock();
                        let next = number(device.get(t, b"sum").unwrap()) + 1;
                        let mut b = Batch::new();
                        b.put(t, "sum", next.to_le_bytes().to_vec());
                        b.put(t, own.clone(), n.to_le_bytes().to_vec());
                        device.commit(b).unwrap();
                        drop(held);
                        // without a lock: not less than what was committed before
                        assert!(number(device.get(t, b"sum").unwrap()) >= next);
                        assert!(device.stored_now());
                        assert!(number(disk.get(t, b"sum").unwrap()) >= next);
                        assert_eq!(number(disk.get(t, &own).unwrap()), n);
                    }
                });
            }
        });
        assert_eq!(
            number(disk.get(t, b"sum").unwrap()),
            u64::from(threads) * each
        );
    }
}
