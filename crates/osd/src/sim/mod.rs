//! `OsdSim`: a disk that takes its time, on tokio's clock, and fails as disks do. Its contents are an [`OsdMem`].
//!
//! A change is seen at once, as in a page cache; the time it takes is that of the answer. What was not synced when power goes
//! ([`OsdSim::power_loss`]) is gone in part: of the batches a prefix stays, of the objects any sector. A sync counts when it has
//! been answered, not before. Everything that happens by chance comes from a seed, so a run can be repeated.
//!
//! Tables are read from memory, without time.

mod queue;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::sleep_until;

use self::queue::Queue;
use crate::mem::{ObjectChanges, OsdMem};
use crate::{
    Batch, FallocMode, Io, Kv, ObjAttr, ObjectId, Objects, OsdError, Room, SeekWhence, SetAttr,
    StatFs, Table, Visit,
};

/// How fast a simulated disk is. The default takes no time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskModel {
    /// From the beginning of a read to its answer, beside the transfer.
    pub read_latency: Duration,
    /// The same of a write or of a commit of tables.
    pub write_latency: Duration,
    /// The same of a sync.
    pub sync_latency: Duration,
    /// Bytes that the disk moves in a second, all commands together; `None`: any number at once.
    pub bytes_per_sec: Option<u64>,
    /// Commands under way at once, 1 at least; the others wait for their turn.
    pub queue_depth: u32,
    /// Share of the commands that take ten times their latency, 0 to 1.
    pub slow_share: f64,
}

impl DiskModel {
    /// A disk that takes no time.
    pub const INSTANT: DiskModel = DiskModel {
        read_latency: Duration::ZERO,
        write_latency: Duration::ZERO,
        sync_latency: Duration::ZERO,
        bytes_per_sec: None,
        queue_depth: u32::MAX,
        slow_share: 0.0,
    };

    /// A hard disk: 8 ms to any place, 200 MB/s, one command at a time.
    pub const HARD_DISK: DiskModel = DiskModel {
        read_latency: Duration::from_millis(8),
        write_latency: Duration::from_micros(100),
        sync_latency: Duration::from_millis(16),
        bytes_per_sec: Some(200_000_000),
        queue_depth: 1,
        slow_share: 0.01,
    };

    /// A solid-state disk behind NVMe: 100 us, 3 GB/s, 64 commands at a time.
    pub const NVME: DiskModel = DiskModel {
        read_latency: Duration::from_micros(100),
        write_latency: Duration::from_micros(20),
        sync_latency: Duration::from_micros(500),
        bytes_per_sec: Some(3_000_000_000),
        queue_depth: 64,
        slow_share: 0.001,
    };
}

impl Default for DiskModel {
    fn default() -> DiskModel {
        DiskModel::INSTANT
    }
}

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct OsdSim {
    mem: OsdMem,
    state: Arc<Mutex<SimState>>,
}

struct SimState {
    model: DiskModel,
    queue: Queue,
    rng: ChaCha8Rng,
    /// Syncs to come until one fails; `None`: none does.
    failing_sync: Option<u64>,
    /// One has failed: what was lost then no later sync brings back.
    sync_failed: bool,
}

impl OsdSim {
    /// The disk `mem`, with the time of `model` and the chance of `seed`.
    pub fn new(mem: OsdMem, model: DiskModel, seed: u64) -> OsdSim {
        OsdSim {
            mem,
            state: Arc::new(Mutex::new(SimState {
                model,
                queue: Queue::default(),
                rng: ChaCha8Rng::seed_from_u64(seed),
                failing_sync: None,
                sync_failed: false,
            })),
        }
    }

    /// Becomes faster or slower for what comes from now on.
    pub fn set_model(&self, model: DiskModel) {
        self.state.lock().model = model;
    }

    /// The `nth` sync from now (1: the next) fails, and every one after it: the system says once that it has lost something, and
    /// does not have it any more.
    pub fn fail_sync(&self, nth: u64) {
        self.state.lock().failing_sync = Some(nth);
    }

    /// The disk as it is found after a loss of power. Nothing that was answered by a sync is missing.
    pub fn power_loss(&self) -> OsdSim {
        let mut state = self.state.lock();
        let mem = self.mem.power_loss_by_chance(&mut state.rng);
        let seed = state.rng.random();
        OsdSim::new(mem, state.model, seed)
    }

    /// Answers a command that has been done in memory when its time has come.
    fn answer<T: Send + 'static>(
        &self,
        done: Result<T, OsdError>,
        latency: impl Fn(&DiskModel) -> Duration,
        bytes: u64,
    ) -> Io<T> {
        let mut state = self.state.lock();
        let SimState {
            model, queue, rng, ..
        } = &mut *state;
        match queue.admit(model, latency(model), bytes, rng) {
            None => Io::ready(done),
            Some(at) => Io::later(async move {
                sleep_until(at).await;
                done
            }),
        }
    }

    /// A sync that makes safe what is there now, by `safe`, when it is answered.
    fn sync_then(&self, bytes: u64, safe: impl FnOnce(&OsdMem) + Send + 'static) -> Io<()> {
        let mut state = self.state.lock();
        if let Some(left) = &mut state.failing_sync {
            *left = left.saturating_sub(1);
            state.sync_failed |= *left == 0;
        }
        if state.sync_failed {
            drop(state);
            let lost = Err(OsdError::Poisoned("a sync failed".into()));
            return self.answer(lost, |m| m.sync_latency, 0);
        }
        let SimState {
            model, queue, rng, ..
        } = &mut *state;
        let Some(at) = queue.admit(model, model.sync_latency, bytes, rng) else {
            safe(&self.mem);
            return Io::ready(Ok(()));
        };
        let mem = self.mem.clone();
        // A sync ends, whoever waits for it.
        let ended = tokio::spawn(async move {
            sleep_until(at).await;
            safe(&mem);
        });
        Io::later(async move {
            ended
                .await
                .map_err(|e| OsdError::io("sync", std::io::Error::other(e)))
        })
    }
}

impl Default for OsdSim {
    fn default() -> OsdSim {
        OsdMem::new().into()
    }
}

/// A disk that takes no time.
impl From<OsdMem> for OsdSim {
    fn from(mem: OsdMem) -> OsdSim {
        OsdSim::new(mem, DiskModel::INSTANT, 0)
    }
}

impl Deref for OsdSim {
    type Target = OsdMem;

    fn deref(&self) -> &OsdMem {
        &self.mem
    }
}

impl Kv for OsdSim {
    fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        self.mem.get(t, key)
    }
    fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        self.mem.range(t, from, to, limit)
    }
    fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        self.mem.last(t, prefix)
    }
    fn commit(&self, b: Batch) -> Io<()> {
        let bytes = b.bytes();
        self.answer(self.mem.commit_now(b), |m| m.write_latency, bytes)
    }
    fn may_wait(&self, b: &Batch) -> bool {
        self.mem.may_wait(b)
    }
    fn sync(&self) -> Io<()> {
        let upto = self.mem.batch_count();
        self.sync_then(0, move |mem| mem.keep_batches(upto))
    }
    fn note(&self, number: u64) {
        self.mem.note(number);
    }
    fn noted(&self) -> u64 {
        self.mem.noted()
    }
    fn statfs(&self) -> Result<StatFs, OsdError> {
        self.mem.statfs()
    }
}

impl Room for OsdSim {
    fn left(&self) -> Result<u64, OsdError> {
        self.mem.left()
    }
    fn promise(&self, most: u64) -> Result<u64, OsdError> {
        self.mem.promise(most)
    }
    fn unpromise(&self, bytes: u64) {
        self.mem.unpromise(bytes);
    }
    fn claim(&self, bytes: u64) -> Result<(), OsdError> {
        self.mem.claim(bytes)
    }
    fn unclaim(&self, bytes: u64) {
        self.mem.unclaim(bytes);
    }
    fn settle(&self) -> Io<bool> {
        self.mem.settle()
    }
}

impl Objects for OsdSim {
    fn max_bytes(&self) -> u64 {
        self.mem.max_bytes()
    }
    fn read(&self, id: ObjectId, off: u64, len: usize) -> Io<Bytes> {
        let data = self.mem.read_now(id, off, len);
        let bytes = data.len() as u64;
        self.answer(Ok(data), |m| m.read_latency, bytes)
    }
    fn write(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Io<()> {
        let bytes = bufs.iter().map(|b| b.len() as u64).sum();
        self.answer(
            self.mem.write_now(id, off, bufs),
            |m| m.write_latency,
            bytes,
        )
    }
    fn truncate(&self, id: ObjectId, size: u64) -> Io<()> {
        self.answer(self.mem.truncate_now(id, size), |m| m.write_latency, 0)
    }
    fn punch(&self, id: ObjectId, start: u64, end: u64) -> Io<()> {
        self.answer(self.mem.punch_now(id, start, end), |m| m.write_latency, 0)
    }
    fn fallocate(&self, id: ObjectId, mode: FallocMode, start: u64, end: u64) -> Io<()> {
        let done = self.mem.fallocate_now(id, mode, start, end);
        self.answer(done, |m| m.write_latency, 0)
    }
    fn seek(&self, id: ObjectId, off: u64, whence: SeekWhence) -> Result<Option<u64>, OsdError> {
        self.mem.seek(id, off, whence)
    }
    fn attr(&self, id: ObjectId) -> Result<Option<ObjAttr>, OsdError> {
        self.mem.attr(id)
    }
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<ObjAttr, OsdError> {
        self.mem.set_attr(id, set)
    }
    fn destroy(&self, id: ObjectId) -> Io<bool> {
        self.answer(self.mem.destroy_now(id), |m| m.write_latency, 0)
    }
    fn sync_object(&self, id: ObjectId) -> Io<()> {
        let changes = self.mem.changes_of(id);
        self.sync_objects(changes)
    }
    fn sync_all(&self) -> Io<()> {
        let changes = self.mem.changes();
        self.sync_objects(changes)
    }
    fn iterate(&self, visit: Visit) -> Io<()> {
        self.mem.iterate(visit)
    }
    fn space(&self) -> Result<StatFs, OsdError> {
        self.mem.space()
    }
}

impl OsdSim {
    fn sync_objects(&self, changes: ObjectChanges) -> Io<()> {
        self.sync_then(0, move |mem| mem.keep_changes(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    const T: Table = Table("t");
    const ID: ObjectId = ObjectId { seq: 0, oid: 1 };
    const SLOW: DiskModel = DiskModel {
        read_latency: Duration::from_millis(1),
        write_latency: Duration::from_millis(2),
        sync_latency: Duration::from_millis(10),
        bytes_per_sec: Some(1 << 20),
        queue_depth: 2,
        slow_share: 0.0,
    };

    fn disk(model: DiskModel, seed: u64) -> OsdSim {
        OsdSim::new(OsdMem::new(), model, seed)
    }

    fn put(osd: &OsdSim, key: &'static str) -> Io<()> {
        let mut b = Batch::new();
        b.put(T, key, "v");
        osd.commit(b)
    }

    fn rows(osd: &OsdSim) -> usize {
        osd.range(T, b"", None, 1000).unwrap().len()
    }

    #[tokio::test(start_paused = true)]
    async fn commands_take_their_time_and_their_turn() {
        let osd = disk(SLOW, 1);
        let begun = Instant::now();
        let data = Bytes::from(vec![1; 1 << 20]);
        osd.write(ID, 0, &[data]).await.unwrap();
        let wrote = begun.elapsed();
        assert!(wrote >= Duration::from_millis(1002), "{wrote:?}");
        let begun = Instant::now();
        let reads: Vec<_> = (0..4).map(|n| osd.read(ID, n * 4096, 4096)).collect();
        for read in reads {
            assert_eq!(read.await.unwrap().len(), 4096);
        }
        let two_by_two = begun.elapsed();
        assert!(two_by_two >= Duration::from_millis(2), "{two_by_two:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sync_counts_when_it_is_answered() {
        let osd = disk(SLOW, 1);
        put(&osd, "a").await.unwrap();
        osd.write(ID, 0, &[Bytes::from_static(b"one")])
            .await
            .unwrap();
        let (tables, objects) = (Kv::sync(&osd), osd.sync_all());
        // written after the syncs began: not theirs
        let more = put(&osd, "b");
        let over = osd.write(ID, 0, &[Bytes::from_static(b"two")]);
        let early = osd.mem.power_loss();
        assert_eq!(early.range(T, b"", None, 9).unwrap().len(), 0);
        tables.await.unwrap();
        objects.await.unwrap();
        more.await.unwrap();
        over.await.unwrap();
        let late = osd.mem.power_loss();
        assert_eq!(late.range(T, b"", None, 9).unwrap().len(), 1);
        assert_eq!(&late.read(ID, 0, 9).await.unwrap()[..], b"one");
    }

    #[tokio::test(start_paused = true)]
    async fn power_takes_a_part_of_what_was_not_synced_and_none_of_the_rest() {
        let (mut kept, mut torn) = ([false; 4], 0);
        for seed in 0..200 {
            let osd = disk(DiskModel::INSTANT, seed);
            put(&osd, "a").await.unwrap();
            osd.write(ID, 0, &[Bytes::from(vec![1; 8192])])
                .await
                .unwrap();
            Kv::sync(&osd).await.unwrap();
            osd.sync_object(ID).await.unwrap();
            for key in ["b", "c"] {
                put(&osd, key).await.unwrap();
            }
            osd.write(ID, 0, &[Bytes::from(vec![2; 8192])])
                .await
                .unwrap();
            let after = osd.power_loss();
            assert!(after.get(T, b"a").unwrap().is_some(), "seed {seed}");
            assert!(after.get(T, b"b").unwrap().is_some() || after.get(T, b"c").unwrap().is_none());
            kept[rows(&after)] = true;
            let data = after.read(ID, 0, 8192).await.unwrap();
            assert!(data.iter().all(|b| [1, 2].contains(b)), "seed {seed}");
            torn += u32::from(data.contains(&1) && data.contains(&2));
        }
        assert_eq!(kept, [false, true, true, true]);
        assert!(torn > 50, "{torn} of 200 writes were torn");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_is_the_same_disk() {
        let run = async |seed| {
            let model = DiskModel {
                slow_share: 0.5,
                ..SLOW
            };
            let osd = disk(model, seed);
            let begun = Instant::now();
            for n in 0..20u8 {
                osd.write(ID, u64::from(n) * 512, &[Bytes::from(vec![n; 512])])
                    .await
                    .unwrap();
            }
            let after = osd.power_loss();
            (begun.elapsed(), after.read(ID, 0, 1 << 20).await.unwrap())
        };
        assert_eq!(run(7).await, run(7).await);
        assert_ne!(run(7).await, run(8).await);
    }

    #[tokio::test(start_paused = true)]
    async fn no_sync_succeeds_after_one_that_failed() {
        let osd = disk(SLOW, 1);
        put(&osd, "a").await.unwrap();
        osd.fail_sync(2);
        Kv::sync(&osd).await.unwrap();
        put(&osd, "b").await.unwrap();
        assert!(Kv::sync(&osd).await.is_err());
        assert!(osd.sync_all().await.is_err());
        let after = osd.mem.power_loss();
        assert_eq!(after.range(T, b"", None, 9).unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn commits_are_answered_in_order() {
        let osd = disk(
            DiskModel {
                slow_share: 0.5,
                queue_depth: 8,
                ..SLOW
            },
            3,
        );
        let answered = Arc::new(Mutex::new(Vec::new()));
        let tasks = (0..20).map(|n| {
            let (commit, answered) = (put(&osd, "k"), answered.clone());
            tokio::spawn(async move {
                commit.await.unwrap();
                answered.lock().push(n);
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert!(answered.lock().is_sorted());
    }
}
