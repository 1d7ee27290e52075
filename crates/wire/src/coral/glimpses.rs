//! Several glimpses in one request to a Coral OST, and data that comes along.

use bytes::Bytes;

use crate::ldlm::LdlmRequest;
use crate::ost::{CksumType, OBD_FL_CKSUM_MASK, ObdFlags};
use crate::raw::{DecodeError, decode_all, encode_all, wire_struct};

/// Most glimpses in one request.
pub const GLIMPSES_MAX: usize = 64;
/// Most data that comes with their answers, bytes.
pub const DATA_BYTES_MAX: usize = 256 << 10;
/// In place of a length: the data did not come.
const NO_DATA: u32 = u32::MAX;
/// An `ldlm_request` with its two handles, bytes.
const REQUEST_BYTES: usize = 104;

/// The requests behind the first.
pub fn encode(further: &[LdlmRequest]) -> Bytes {
    let all = further.iter().map(LdlmRequest::to_bytes);
    all.collect::<Vec<_>>().concat().into()
}

/// The same, read. No buffer, or an empty one: there is one glimpse only.
pub fn decode(buf: &[u8]) -> Result<Vec<LdlmRequest>, DecodeError> {
    let count = buf.len() / REQUEST_BYTES;
    if !buf.len().is_multiple_of(REQUEST_BYTES) || count >= GLIMPSES_MAX {
        return Err(DecodeError::Length {
            what: "glimpses",
            field: "requests",
            got: buf.len() as u64,
        });
    }
    buf.chunks_exact(REQUEST_BYTES)
        .map(LdlmRequest::decode)
        .collect()
}

wire_struct! {
    /// The data of small objects is to come along.
    #[derive(Eq)]
    pub struct DataWanted : 8 {
        /// Of objects that are no longer, bytes.
        0 most: u32,
        /// Type of the checksum of all data, as in an obdo's flags; 0: none is wanted.
        4 cksum: u32,
    }
}

impl DataWanted {
    /// Of objects up to `most` bytes.
    pub fn new(most: u32, cksum: Option<CksumType>) -> DataWanted {
        let cksum = cksum.map_or(0, |c| c.flags().bits());
        DataWanted { most, cksum }
    }

    fn kind(&self) -> Option<CksumType> {
        let flags = self.cksum & OBD_FL_CKSUM_MASK;
        (flags != 0).then(|| CksumType::from_flags(ObdFlags::from_bits_retain(flags)))?
    }

    /// The buffers of a reply: the checksum and the length of each object's data, and all data.
    pub fn encode_data(&self, data: &[Option<Bytes>]) -> (Bytes, Bytes) {
        let brought = data.iter().flatten();
        let sum = self.kind();
        let sum = sum.map_or(0, |k| k.compute(brought.clone().map(|d| &d[..])));
        let len = |d: &Option<Bytes>| d.as_ref().map_or(NO_DATA, |d| d.len() as u32);
        let head: Vec<u32> = std::iter::once(sum).chain(data.iter().map(len)).collect();
        let all = brought.map(|d| &d[..]).collect::<Vec<_>>().concat();
        (encode_all(&head), all.into())
    }

    /// What these say, each with memory of its own. `None`: they do not fit together, or were changed on the way.
    pub fn decode_data(&self, head: &[u8], mut all: &[u8]) -> Option<Vec<Option<Bytes>>> {
        let head: Vec<u32> = decode_all(head);
        let (sum, lens) = head.split_first()?;
        if self.kind().is_some_and(|k| k.compute([all]) != *sum) {
            return None;
        }
        let mut data = Vec::with_capacity(lens.len());
        for len in lens {
            if *len == NO_DATA {
                data.push(None);
                continue;
            }
            let (this, rest) = all.split_at_checked(*len as usize)?;
            data.push(Some(Bytes::copy_from_slice(this)));
            all = rest;
        }
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ldlm::{LdlmFlags, LdlmMode, LdlmType, LockDesc, Policy, ResId};

    #[test]
    fn requests_are_read_as_they_were_written() {
        let of = |n: u64| {
            let whole = Policy::extent(0, u64::MAX);
            let desc = LockDesc::new(ResId([n, 0, 0, 0]), LdlmType::EXTENT, LdlmMode::PR, &whole);
            LdlmRequest::enqueue(LdlmFlags::HAS_INTENT, desc, n)
        };
        let all: Vec<LdlmRequest> = (1..GLIMPSES_MAX as u64).map(of).collect();
        let bytes = encode(&all);
        assert_eq!(decode(&bytes).unwrap(), all);
        assert_eq!(decode(&[]).unwrap(), []);
        assert!(decode(&bytes[1..]).is_err());
        assert!(decode(&[&bytes[..], &bytes[..REQUEST_BYTES]].concat()).is_err());
    }

    #[test]
    fn data_comes_as_it_was_sent_or_not_at_all() {
        let data = [
            Some(Bytes::from_static(b"abc")),
            None,
            Some(Bytes::new()),
            Some(Bytes::from_static(b"de")),
        ];
        for cksum in [None, Some(CksumType::Crc32c), Some(CksumType::Adler)] {
            let wanted = DataWanted::new(16 << 10, cksum);
            let (head, all) = wanted.encode_data(&data);
            assert_eq!(wanted.decode_data(&head, &all).unwrap(), data);
            assert_eq!(wanted.decode_data(&head, &all[1..]), None);
            assert_eq!(wanted.decode_data(&[], &all), None);
            let changed = wanted.decode_data(&head, b"abcdf");
            assert_eq!(changed.is_none(), cksum.is_some());
        }
    }
}
