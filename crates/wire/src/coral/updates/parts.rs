//! What a message between MDTs is made of: numbers, FIDs, bytes and lists, written and read.

use bytes::Bytes;

use super::OpId;
use crate::DecodeError;
use crate::fid::Fid;

/// Most items of one list in a message.
const ITEMS_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    pub(super) fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn fid(&mut self, f: &Fid) {
        self.u64(f.seq);
        self.u32(f.oid);
        self.u32(f.ver);
    }
    pub(super) fn bytes(&mut self, b: &[u8]) {
        self.u32(b.len() as u32);
        self.0.extend_from_slice(b);
    }
    pub(super) fn id(&mut self, id: &OpId) {
        self.u32(id.coordinator);
        self.u32(id.instance);
        self.u32(id.number);
    }
    pub(super) fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Writer, &T)) {
        self.u32(items.len() as u32);
        items.iter().for_each(|i| put(self, i));
    }
}

pub(super) struct Reader<'a> {
    pub(super) raw: &'a Bytes,
    pub(super) at: usize,
}

/// What does not parse.
pub(super) fn bad() -> DecodeError {
    DecodeError::Length {
        what: "update",
        field: "length",
        got: 0,
    }
}

impl Reader<'_> {
    pub(super) fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let end = self.at.checked_add(len).ok_or_else(bad)?;
        if end > self.raw.len() {
            return Err(bad());
        }
        let part = self.raw.slice(self.at..end);
        self.at = end;
        Ok(part)
    }
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        let raw = self.take(4)?;
        raw.as_ref()
            .try_into()
            .map(u32::from_le_bytes)
            .map_err(|_| bad())
    }
    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        let raw = self.take(8)?;
        raw.as_ref()
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| bad())
    }
    pub(super) fn fid(&mut self) -> Result<Fid, DecodeError> {
        Ok(Fid {
            seq: self.u64()?,
            oid: self.u32()?,
            ver: self.u32()?,
        })
    }
    pub(super) fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let len = self.u32()? as usize;
        self.take(len)
    }
    pub(super) fn id(&mut self) -> Result<OpId, DecodeError> {
        Ok(OpId {
            coordinator: self.u32()?,
            instance: self.u32()?,
            number: self.u32()?,
        })
    }
    pub(super) fn list<T>(
        &mut self,
        mut get: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32()? as usize;
        // every item has at least one byte
        if count > ITEMS_MAX || count > self.raw.len() - self.at {
            return Err(bad());
        }
        (0..count).map(|_| get(self)).collect()
    }
    pub(super) fn end<T>(self, value: T) -> Result<T, DecodeError> {
        match self.at == self.raw.len() {
            true => Ok(value),
            false => Err(bad()),
        }
    }
}
