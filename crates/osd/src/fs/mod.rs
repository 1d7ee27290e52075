//! `OsdFs`: a device in a local directory: fjall for tables, one sparse file per object.

use std::path::Path;

use bytes::Bytes;

use crate::{
    Batch, FallocMode, Kv, Label, ObjAttr, ObjectId, Objects, OpenError, OsdError, SeekWhence,
    SetAttr, StatFs, Table,
};

/// Limits of an [`OsdFs`].
#[derive(Clone, Debug)]
pub struct OsdFsOptions {
    /// Cache of the tables in bytes.
    pub kv_cache_bytes: u64,
    /// Object files kept open.
    pub open_files: usize,
}

impl Default for OsdFsOptions {
    fn default() -> Self {
        OsdFsOptions { kv_cache_bytes: 32 << 20, open_files: 512 }
    }
}

/// A device in a local directory.
pub struct OsdFs {}

impl OsdFs {
    /// Makes a target of `dir`, which is created or must be empty.
    pub fn format(_dir: &Path, _label: &Label) -> Result<(), OpenError> {
        todo!()
    }

    /// The label of a target without opening or locking it.
    pub fn label(_dir: &Path) -> Result<Label, OpenError> {
        todo!()
    }

    /// Opens and locks the target in `dir`.
    pub fn open(dir: &Path) -> Result<(OsdFs, Label), OpenError> {
        Self::open_with(dir, OsdFsOptions::default())
    }

    /// Opens and locks the target in `dir` with limits of one's own.
    pub fn open_with(_dir: &Path, _options: OsdFsOptions) -> Result<(OsdFs, Label), OpenError> {
        todo!()
    }
}

impl Kv for OsdFs {
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

impl Objects for OsdFs {
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
