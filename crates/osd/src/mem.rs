//! `OsdMem`: a device in ordered maps, with faults on demand, for tests.

use bytes::Bytes;

use crate::{
    Batch, FallocMode, Kv, ObjAttr, ObjectId, Objects, OsdError, SeekWhence, SetAttr, StatFs, Table,
};

/// A failure to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th write from now (1 = the next; commits and object changes count) fails with EIO.
    FailWrite(u64),
    /// Every write from the n-th on fails with ENOSPC, until [`OsdMem::inject`] is called again.
    Full(u64),
    /// No fault.
    None,
}

/// A device in memory. Clones share the same contents.
#[derive(Clone, Default)]
pub struct OsdMem {}

impl OsdMem {
    /// An empty device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Orders a fault, replacing the one ordered before.
    pub fn inject(&self, _fault: Fault) {
        todo!()
    }

    /// The device as it would be found after power loss now: only what was synced, and of the
    /// rest nothing.
    pub fn power_loss(&self) -> OsdMem {
        todo!()
    }
}

impl Kv for OsdMem {
    fn get(&self, _t: Table, _key: &[u8]) -> Result<Option<Bytes>, OsdError> {
        todo!()
    }
    fn range(
        &self,
        _t: Table,
        _from: &[u8],
        _to: Option<&[u8]>,
        _limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        todo!()
    }
    fn last(&self, _t: Table, _prefix: &[u8]) -> Result<Option<(Bytes, Bytes)>, OsdError> {
        todo!()
    }
    fn commit(&self, _b: Batch) -> Result<(), OsdError> {
        todo!()
    }
    fn sync(&self) -> Result<(), OsdError> {
        todo!()
    }
    fn statfs(&self) -> Result<StatFs, OsdError> {
        todo!()
    }
}

impl Objects for OsdMem {
    fn read(&self, _id: ObjectId, _off: u64, _len: usize) -> Result<Bytes, OsdError> {
        todo!()
    }
    fn write(&self, _id: ObjectId, _off: u64, _bufs: &[Bytes]) -> Result<(), OsdError> {
        todo!()
    }
    fn truncate(&self, _id: ObjectId, _size: u64) -> Result<(), OsdError> {
        todo!()
    }
    fn punch(&self, _id: ObjectId, _start: u64, _end: u64) -> Result<(), OsdError> {
        todo!()
    }
    fn fallocate(
        &self,
        _id: ObjectId,
        _mode: FallocMode,
        _start: u64,
        _end: u64,
    ) -> Result<(), OsdError> {
        todo!()
    }
    fn seek(&self, _id: ObjectId, _off: u64, _w: SeekWhence) -> Result<Option<u64>, OsdError> {
        todo!()
    }
    fn attr(&self, _id: ObjectId) -> Result<Option<ObjAttr>, OsdError> {
        todo!()
    }
    fn set_attr(&self, _id: ObjectId, _set: &SetAttr) -> Result<(), OsdError> {
        todo!()
    }
    fn destroy(&self, _id: ObjectId) -> Result<bool, OsdError> {
        todo!()
    }
    fn sync_object(&self, _id: ObjectId) -> Result<(), OsdError> {
        todo!()
    }
    fn sync_all(&self) -> Result<(), OsdError> {
        todo!()
    }
    fn iterate(&self, _f: &mut dyn FnMut(ObjectId, ObjAttr) -> bool) -> Result<(), OsdError> {
        todo!()
    }
    fn space(&self) -> Result<StatFs, OsdError> {
        todo!()
    }
}
