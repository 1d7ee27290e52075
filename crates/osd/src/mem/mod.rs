//! `OsdMem`: a device in ordered maps, with faults on demand, for tests.
//!
//! Besides the device as it is, it keeps the device as power loss would leave it: batches wait in
//! order until a sync makes them safe, objects are copied (pages shared) when they are synced.

mod object;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::Rng;

use self::object::{MemObject, PAGE_BYTES};
use crate::{
    Batch, FallocMode, Io, Kv, ObjAttr, ObjectId, Objects, Op, OsdError, Room, SeekWhence, SetAttr,
    StatFs, Table, Visit,
};

/// Size of a device unless said otherwise, in bytes.
const CAPACITY_BYTES: u64 = 16 << 30;

/// A failure to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// The n-th write from now (1 = the next; commits and object changes count) fails with EIO.
    FailWrite(u64),
    /// Every write from the n-th on fails with ENOSPC, until [`OsdMem::inject`] is called again.
    Full(u64),
    /// Changes of objects fail with ENOSPC until [`Room::settle`] was called n times.
    Lags(u64),
    /// No fault.
    #[default]
    None,
}

/// Objects as they were when a sync of them began; `None`: it was gone.
pub(crate) struct ObjectChanges(Vec<(ObjectId, Option<MemObject>)>);

/// A device in memory. Clones share the same contents.
#[derive(Clone)]
pub struct OsdMem {
    state: Arc<Mutex<MemState>>,
}

type Rows = BTreeMap<Table, BTreeMap<Bytes, Bytes>>;

#[derive(Clone, Default)]
struct MemState {
    capacity: u64,
    fault: Fault,
    tables: Rows,
    /// Tables as they would be after power loss.
    safe_tables: Rows,
    /// Committed since, in order.
    unsafe_batches: VecDeque<Batch>,
    /// Number of batches that are safe.
    safe_count: u64,
    objects: BTreeMap<ObjectId, MemObject>,
    /// Objects as they would be after power loss.
    safe_objects: BTreeMap<ObjectId, MemObject>,
    /// Those that may differ from that.
    changed: BTreeSet<ObjectId>,
    page_count: u64,
    /// Bytes promised to writers, and those of writes under way.
    promised: u64,
    claimed: u64,
    /// Largest object in bytes; 0: no limit of its own.
    max_bytes: u64,
    /// Lost with power.
    noted: u64,
}

impl Default for OsdMem {
    fn default() -> Self {
        Self::with_capacity(CAPACITY_BYTES)
    }
}

impl OsdMem {
    /// An empty device.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty device with room for so many bytes of objects.
    pub fn with_capacity(bytes: u64) -> Self {
        let state = MemState {
            capacity: bytes,
            ..Default::default()
        };
        OsdMem {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Holds no object larger than this from now on.
    pub fn set_max_bytes(&self, bytes: u64) {
        self.state.lock().max_bytes = bytes;
    }

    /// Orders a fault, replacing the one ordered before.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().fault = fault;
    }

    /// The device as it would be found after power loss now: only what was synced, and of the
    /// rest nothing.
    pub fn power_loss(&self) -> OsdMem {
        self.power_loss_keeping(0)
    }

    /// As [`OsdMem::power_loss`], but the first `batches` of the batches not yet synced happened
    /// to reach the disk.
    pub fn power_loss_keeping(&self, batches: usize) -> OsdMem {
        let s = self.state.lock();
        s.found_with(batches, s.safe_objects.clone())
    }

    /// As [`OsdMem::power_loss`], but of what was not synced a part reached the disk, as `rng` has it: some of the batches in
    /// their order, and of the changed objects any sector.
    pub(crate) fn power_loss_by_chance(&self, rng: &mut impl Rng) -> OsdMem {
        let s = self.state.lock();
        let batches = rng.random_range(0..=s.unsafe_batches.len());
        let mut objects = s.safe_objects.clone();
        for id in &s.changed {
            match MemObject::torn(s.safe_objects.get(id), s.objects.get(id), rng) {
                Some(torn) => objects.insert(*id, torn),
                None => objects.remove(id),
            };
        }
        s.found_with(batches, objects)
    }

    /// A device of its own with the same contents: what the end of the process that uses it leaves.
    pub fn copy(&self) -> OsdMem {
        let s = self.state.lock();
        let state = MemState {
            promised: 0,
            claimed: 0,
            ..s.clone()
        };
        OsdMem {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Number of batches committed since it was made.
    pub(crate) fn batch_count(&self) -> u64 {
        let s = self.state.lock();
        s.safe_count + s.unsafe_batches.len() as u64
    }

    /// The first `upto` batches survive power loss.
    pub(crate) fn keep_batches(&self, upto: u64) {
        let mut s = self.state.lock();
        let s = &mut *s;
        while s.safe_count < upto
            && let Some(b) = s.unsafe_batches.pop_front()
        {
            apply(&mut s.safe_tables, b);
            s.safe_count += 1;
        }
    }

    /// The objects that changed since they were synced, as they are now.
    pub(crate) fn changes(&self) -> ObjectChanges {
        let mut s = self.state.lock();
        let changed = std::mem::take(&mut s.changed);
        let now = |id: &ObjectId| (*id, s.objects.get(id).cloned());
        ObjectChanges(changed.iter().map(now).collect())
    }

    /// One object, as it is now.
    pub(crate) fn changes_of(&self, id: ObjectId) -> ObjectChanges {
        let mut s = self.state.lock();
        s.changed.remove(&id);
        ObjectChanges(vec![(id, s.objects.get(&id).cloned())])
    }

    /// Objects as they were survive power loss.
    pub(crate) fn keep_changes(&self, changes: ObjectChanges) {
        let mut s = self.state.lock();
        for (id, then) in changes.0 {
            match then {
                Some(object) => s.safe_objects.insert(id, object),
                None => s.safe_objects.remove(&id),
            };
        }
    }

    /// All objects in order.
    pub fn objects(&self) -> Vec<(ObjectId, ObjAttr)> {
        let s = self.state.lock();
        s.objects.iter().map(|(id, o)| (*id, o.attr())).collect()
    }

    /// Number of batches committed and not yet synced.
    pub fn unsynced_batches(&self) -> usize {
        self.state.lock().unsafe_batches.len()
    }

    /// Lets `change` change an object, created if need be, unless a fault is due or the
    /// `start..end` it will fill does not fit.
    fn change(
        &self,
        id: ObjectId,
        (start, end): (u64, u64),
        change: impl FnOnce(&mut MemObject),
    ) -> Result<(), OsdError> {
        let mut s = self.state.lock();
        s.write_gate()?;
        if matches!(s.fault, Fault::Lags(_)) {
            return Err(OsdError::NoSpace);
        }
        let before = s.objects.get(&id).map_or(0, MemObject::page_count);
        let more = match s.objects.get(&id) {
            Some(o) => o.missing_pages(start, end),
            None => MemObject::default().missing_pages(start, end),
        };
        if more > 0 && (s.page_count + more) * PAGE_BYTES > s.capacity {
            return Err(OsdError::NoSpace);
        }
        s.changed.insert(id);
        let object = s.objects.entry(id).or_default();
        change(object);
        let after = object.page_count();
        s.page_count = s.page_count + after - before;
        Ok(())
    }
}

impl MemState {
    /// A device with what is safe, `batches` more, and these objects.
    fn found_with(&self, batches: usize, objects: BTreeMap<ObjectId, MemObject>) -> OsdMem {
        let mut tables = self.safe_tables.clone();
        for b in self.unsafe_batches.iter().take(batches) {
            apply(&mut tables, b.clone());
        }
        let state = MemState {
            capacity: self.capacity,
            max_bytes: self.max_bytes,
            safe_tables: tables.clone(),
            tables,
            page_count: objects.values().map(MemObject::page_count).sum(),
            objects: objects.clone(),
            safe_objects: objects,
            ..Default::default()
        };
        OsdMem {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Counts a write and fails it when its time has come.
    fn write_gate(&mut self) -> Result<(), OsdError> {
        match &mut self.fault {
            Fault::None | Fault::Lags(_) => Ok(()),
            Fault::FailWrite(n) => {
                *n = n.saturating_sub(1);
                if *n > 0 {
                    return Ok(());
                }
                self.fault = Fault::None;
                Err(OsdError::Injected)
            }
            Fault::Full(n) => {
                *n = n.saturating_sub(1);
                if *n > 0 {
                    Ok(())
                } else {
                    Err(OsdError::NoSpace)
                }
            }
        }
    }

    fn statfs(&self) -> StatFs {
        let blocks = self.capacity / PAGE_BYTES;
        let free = blocks.saturating_sub(self.page_count);
        StatFs {
            block_size: PAGE_BYTES as u32,
            blocks,
            blocks_free: free,
            blocks_avail: free,
            files: self.objects.len() as u64 + free,
            files_free: free,
        }
    }
}

fn apply(tables: &mut Rows, b: Batch) {
    for op in b.into_ops() {
        match op {
            Op::Put { table, key, val } => {
                tables.entry(table).or_default().insert(key, val);
            }
            Op::Del { table, key } => {
                tables.entry(table).or_default().remove(&key);
            }
        }
    }
}

impl Kv for OsdMem {
    fn get(&self, t: Table, key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        let s = self.state.lock();
        Ok(s.tables.get(&t).and_then(|rows| rows.get(key)).cloned())
    }

    fn range(
        &self,
        t: Table,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        use std::ops::Bound::{Included, Unbounded};
        let s = self.state.lock();
        let Some(rows) = s.tables.get(&t) else {
            return Ok(Vec::new());
        };
        let rows = rows.range::<[u8], _>((Included(from), Unbounded));
        let rows = rows
            .take_while(|(k, _)| to.is_none_or(|to| &k[..] < to))
            .take(limit);
        Ok(rows.map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    fn last(&self, t: Table, prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let s = self.state.lock();
        let Some(rows) = s.tables.get(&t) else {
            return Ok(None);
        };
        let after = after_prefix(prefix);
        let to = after.as_deref().map_or(Unbounded, Excluded);
        let last = rows.range::<[u8], _>((Included(prefix), to)).next_back();
        Ok(last.map(|(k, v)| (k.clone(), v.clone())))
    }

    fn commit(&self, b: Batch) -> Io<()> {
        Io::ready(self.commit_now(b))
    }

    /// So that what is seen before it is written is tried too; not while changes are to fail.
    fn may_wait(&self, _b: &Batch) -> bool {
        matches!(self.state.lock().fault, Fault::None)
    }
    fn sync(&self) -> Io<()> {
        self.keep_batches(u64::MAX);
        Io::ready(Ok(()))
    }

    fn note(&self, number: u64) {
        let mut s = self.state.lock();
        s.noted = s.noted.max(number);
    }

    fn noted(&self) -> u64 {
        self.state.lock().noted
    }

    fn statfs(&self) -> Result<StatFs, OsdError> {
        Ok(self.state.lock().statfs())
    }
}

/// The first key after all that begin with `prefix`, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut after = prefix[..=keep].to_vec();
    after[keep] += 1;
    Some(after)
}

impl MemState {
    fn left(&self) -> u64 {
        self.capacity
            .saturating_sub(self.page_count * PAGE_BYTES + self.promised + self.claimed)
    }
}

impl Room for OsdMem {
    fn left(&self) -> Result<u64, OsdError> {
        Ok(self.state.lock().left())
    }
    fn promise(&self, most: u64) -> Result<u64, OsdError> {
        let mut s = self.state.lock();
        let take = most.min(s.left());
        s.promised += take;
        Ok(take)
    }
    fn unpromise(&self, bytes: u64) {
        let mut s = self.state.lock();
        s.promised = s.promised.saturating_sub(bytes);
    }
    fn claim(&self, bytes: u64) -> Result<(), OsdError> {
        let mut s = self.state.lock();
        if s.left() < bytes {
            return Err(OsdError::NoSpace);
        }
        s.claimed += bytes;
        Ok(())
    }
    fn unclaim(&self, bytes: u64) {
        let mut s = self.state.lock();
        s.claimed = s.claimed.saturating_sub(bytes);
    }
    fn settle(&self) -> Io<bool> {
        let mut s = self.state.lock();
        let Fault::Lags(n) = s.fault else {
            return Io::ready(Ok(false));
        };
        s.fault = if n > 1 {
            Fault::Lags(n - 1)
        } else {
            Fault::None
        };
        Io::ready(Ok(true))
    }
}

impl OsdMem {
    pub(crate) fn read_now(&self, id: ObjectId, off: u64, len: usize) -> Bytes {
        let s = self.state.lock();
        let object = s.objects.get(&id);
        object.map_or_else(Bytes::new, |o| o.read(off, len))
    }

    pub(crate) fn commit_now(&self, b: Batch) -> Result<(), OsdError> {
        let mut s = self.state.lock();
        s.write_gate()?;
        s.unsafe_batches.push_back(b.clone());
        apply(&mut s.tables, b);
        Ok(())
    }

    pub(crate) fn write_now(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Result<(), OsdError> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let end = off.checked_add(len).filter(|e| *e <= self.max_bytes());
        let end = end.ok_or(OsdError::TooLarge(off))?;
        self.change(id, (off, end), |o| {
            let mut at = off;
            // bytes that are none make the object no longer
            for b in bufs.iter().filter(|b| !b.is_empty()) {
                o.write(at, b);
                at += b.len() as u64;
            }
        })
    }

    pub(crate) fn truncate_now(&self, id: ObjectId, size: u64) -> Result<(), OsdError> {
        if size > self.max_bytes() {
            return Err(OsdError::TooLarge(size));
        }
        self.change(id, (0, 0), |o| o.truncate(size))
    }

    pub(crate) fn punch_now(&self, id: ObjectId, start: u64, end: u64) -> Result<(), OsdError> {
        if !self.state.lock().objects.contains_key(&id) {
            return Ok(());
        }
        self.change(id, (0, 0), |o| o.punch(start, end))
    }

    pub(crate) fn fallocate_now(
        &self,
        id: ObjectId,
        mode: FallocMode,
        start: u64,
        end: u64,
    ) -> Result<(), OsdError> {
        if start >= end {
            return Err(OsdError::Invalid("an empty range"));
        }
        if end > self.max_bytes() {
            return Err(OsdError::TooLarge(end));
        }
        match mode {
            FallocMode::PunchHole => self.punch_now(id, start, end),
            FallocMode::Allocate => {
                self.change(id, (start, end), |o| o.allocate(start, end, false))
            }
            FallocMode::AllocateKeepSize => {
                self.change(id, (start, end), |o| o.allocate(start, end, true))
            }
            FallocMode::ZeroRange | FallocMode::ZeroRangeKeepSize => {
                let keep = mode == FallocMode::ZeroRangeKeepSize;
                self.change(id, (start, end), |o| {
                    o.zero(start, end);
                    o.allocate(start, end, keep);
                })
            }
        }
    }

    pub(crate) fn destroy_now(&self, id: ObjectId) -> Result<bool, OsdError> {
        let mut s = self.state.lock();
        s.write_gate()?;
        let Some(o) = s.objects.remove(&id) else {
            return Ok(false);
        };
        s.page_count -= o.page_count();
        s.changed.insert(id);
        Ok(true)
    }
}

impl Objects for OsdMem {
    fn max_bytes(&self) -> u64 {
        match self.state.lock().max_bytes {
            0 => i64::MAX as u64,
            n => n,
        }
    }

    fn read(&self, id: ObjectId, off: u64, len: usize) -> Io<Bytes> {
        Io::ready(Ok(self.read_now(id, off, len)))
    }

    fn write(&self, id: ObjectId, off: u64, bufs: &[Bytes]) -> Io<()> {
        Io::ready(self.write_now(id, off, bufs))
    }

    fn truncate(&self, id: ObjectId, size: u64) -> Io<()> {
        Io::ready(self.truncate_now(id, size))
    }

    fn punch(&self, id: ObjectId, start: u64, end: u64) -> Io<()> {
        Io::ready(self.punch_now(id, start, end))
    }

    fn fallocate(&self, id: ObjectId, mode: FallocMode, start: u64, end: u64) -> Io<()> {
        Io::ready(self.fallocate_now(id, mode, start, end))
    }

    fn seek(&self, id: ObjectId, off: u64, whence: SeekWhence) -> Result<Option<u64>, OsdError> {
        Ok(self
            .state
            .lock()
            .objects
            .get(&id)
            .and_then(|o| o.seek(off, whence)))
    }

    fn attr(&self, id: ObjectId) -> Result<Option<ObjAttr>, OsdError> {
        Ok(self.state.lock().objects.get(&id).map(MemObject::attr))
    }

    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<ObjAttr, OsdError> {
        let mut after = ObjAttr::default();
        let done = self.change(id, (0, 0), |o| {
            o.set_attr(set);
            after = o.attr();
        });
        done.map(|()| after)
    }

    fn destroy(&self, id: ObjectId) -> Io<bool> {
        Io::ready(self.destroy_now(id))
    }

    fn sync_object(&self, id: ObjectId) -> Io<()> {
        self.keep_changes(self.changes_of(id));
        Io::ready(Ok(()))
    }

    fn sync_all(&self) -> Io<()> {
        self.keep_changes(self.changes());
        Io::ready(Ok(()))
    }

    fn iterate(&self, mut visit: Visit) -> Io<()> {
        let _ = self.objects().into_iter().all(|(id, attr)| visit(id, attr));
        Io::ready(Ok(()))
    }

    fn space(&self) -> Result<StatFs, OsdError> {
        Ok(self.state.lock().statfs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Table = Table("t");
    const ID: ObjectId = ObjectId { seq: 0, oid: 1 };

    fn put(osd: &OsdMem, key: &'static str) -> Result<(), OsdError> {
        let mut b = Batch::new();
        b.put(T, key, "v");
        osd.commit(b).wait()
    }

    fn keys(osd: &OsdMem) -> Vec<String> {
        let rows = osd.range(T, b"", None, 100).unwrap();
        rows.iter()
            .map(|(k, _)| String::from_utf8(k.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn power_loss_keeps_what_was_synced_and_a_prefix_of_the_rest() {
        let osd = OsdMem::new();
        put(&osd, "a").unwrap();
        osd.sync().wait().unwrap();
        put(&osd, "b").unwrap();
        put(&osd, "c").unwrap();
        assert_eq!(osd.unsynced_batches(), 2);
        assert_eq!(keys(&osd), ["a", "b", "c"]);
        assert_eq!(keys(&osd.power_loss()), ["a"]);
        assert_eq!(keys(&osd.power_loss_keeping(1)), ["a", "b"]);
        assert_eq!(keys(&osd.power_loss_keeping(9)), ["a", "b", "c"]);
    }

    #[test]
    fn power_loss_takes_objects_back_to_their_sync() {
        let osd = OsdMem::new();
        osd.write(ID, 0, &[Bytes::from_static(b"one")])
            .wait()
            .unwrap();
        osd.sync_object(ID).wait().unwrap();
        osd.write(ID, 3, &[Bytes::from_static(b"two")])
            .wait()
            .unwrap();
        let other = ObjectId { seq: 0, oid: 2 };
        osd.write(other, 0, &[Bytes::from_static(b"x")])
            .wait()
            .unwrap();
        let after = osd.power_loss();
        assert_eq!(&after.read(ID, 0, 99).wait().unwrap()[..], b"one");
        assert_eq!(after.attr(other).unwrap(), None);
        assert_eq!(&osd.read(ID, 0, 99).wait().unwrap()[..], b"onetwo");
    }

    #[test]
    fn the_nth_write_fails_once_and_changes_nothing() {
        let osd = OsdMem::new();
        osd.inject(Fault::FailWrite(2));
        put(&osd, "a").unwrap();
        assert!(matches!(put(&osd, "b"), Err(OsdError::Injected)));
        put(&osd, "c").unwrap();
        assert_eq!(keys(&osd), ["a", "c"]);
    }

    #[test]
    fn a_full_device_gives_its_space_back_on_destroy() {
        let osd = OsdMem::with_capacity(3 * PAGE_BYTES);
        let data = Bytes::from(vec![1; 2 * PAGE_BYTES as usize]);
        osd.write(ID, 0, std::slice::from_ref(&data))
            .wait()
            .unwrap();
        let full = osd
            .write(ID, 2 * PAGE_BYTES, std::slice::from_ref(&data))
            .wait();
        assert!(matches!(full, Err(OsdError::NoSpace)));
        osd.write(ID, 0, std::slice::from_ref(&data))
            .wait()
            .unwrap();
        assert_eq!(osd.space().unwrap().blocks_avail, 1);
        assert!(osd.destroy(ID).wait().unwrap() && !osd.destroy(ID).wait().unwrap());
        osd.write(ID, PAGE_BYTES, &[data]).wait().unwrap();
        osd.inject(Fault::Full(1));
        assert!(matches!(osd.truncate(ID, 1).wait(), Err(OsdError::NoSpace)));
    }

    #[test]
    fn last_finds_the_greatest_key_of_a_prefix() {
        let osd = OsdMem::new();
        let mut b = Batch::new();
        for key in [&[1, 0][..], &[1, 0xff, 0xff], &[2], &[0xff, 0xff]] {
            b.put(T, key.to_vec(), "v");
        }
        osd.commit(b).wait().unwrap();
        let last = |p: &[u8]| osd.last(T, p).unwrap().map(|(k, _)| k.to_vec());
        assert_eq!(last(&[1]), Some(vec![1, 0xff, 0xff]));
        assert_eq!(last(&[1, 0xff]), Some(vec![1, 0xff, 0xff]));
        assert_eq!(last(&[0xff]), Some(vec![0xff, 0xff]));
        assert_eq!(last(&[]), Some(vec![0xff, 0xff]));
        assert_eq!(last(&[3]), None);
    }
}
