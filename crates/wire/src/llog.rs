//! Llogs: the log format of configuration and the requests that read it
//! (`lustre_idl.h`: llog part; `lustre/obdclass/llog.c`, `llog_osd.c`).
//!
//! A log is a header chunk of 8192 bytes (with a bitmap of live records), then chunks of 8192 bytes of records.
//! Invariants: indices ascend without gaps; no record crosses a chunk; a chunk's unused end is a padding record,
//! which takes an index but has no bit; bit 0 (the header) is set; `count` is the number of set bits.

use crate::fid::OstId;
use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Bytes of a chunk.
pub const LLOG_CHUNK_SIZE: usize = 8192;
/// Smallest record in bytes.
pub const LLOG_MIN_REC_SIZE: usize = 24;
/// Type of padding records.
pub const LLOG_PAD_MAGIC: u32 = 0x1060_0000;
/// Type of configuration records.
pub const OBD_CFG_REC: u32 = 0x1062_0000;
/// Type of the header record.
pub const LLOG_HDR_MAGIC: u32 = 0x1064_5539;
/// Type of a catalog's records.
pub const LLOG_LOGID_MAGIC: u32 = 0x1064_553b;
/// Header flag: plain log.
pub const LLOG_F_IS_PLAIN: u32 = 0x4;
/// Header flag: catalog.
pub const LLOG_F_IS_CAT: u32 = 0x2;
/// Header flag: may be removed when empty.
pub const LLOG_F_ZAP_WHEN_EMPTY: u32 = 0x1;
/// Context of configuration logs on the client's side of a request (`LLOG_CONFIG_ORIG_CTXT`).
pub const LLOG_CONFIG_ORIG_CTXT: u32 = 0;

wire_struct! {
    /// `llog_logid`.
    #[derive(Eq)]
    pub packed struct LlogLogid : 20 {
        0 oi: OstId,
        16 ogen: u32,
    }
}

wire_struct! {
    /// `llogd_body`: request and reply of the llog opcodes.
    #[derive(Eq)]
    pub packed struct LlogdBody : 48 {
        0 logid: LlogLogid,
        /// Context.
        20 ctxt_idx: u32,
        24 llh_flags: u32,
        /// Record wanted; in the reply what the server left there.
        28 index: u32,
        32 saved_index: u32,
        /// Bytes wanted.
        36 len: u32,
        /// Byte in the log to go on from.
        40 cur_offset: u64,
    }
}

wire_struct! {
    /// `llog_rec_hdr`.
    #[derive(Eq)]
    pub struct LlogRecHdr : 16 {
        /// Bytes of the record with head and tail.
        0 len: u32,
        4 index: u32,
        8 r#type: u32,
        12 id: u32,
    }
}

wire_struct! {
    /// `llog_rec_tail`.
    #[derive(Eq)]
    pub struct LlogRecTail : 8 {
        0 len: u32,
        4 index: u32,
    }
}

wire_struct! {
    /// `llog_log_hdr` with its bitmap.
    #[derive(Eq)]
    pub struct LlogLogHdr : 8192 {
        0 hdr: LlogRecHdr,
        /// Seconds.
        16 timestamp: i64,
        /// Live records, the header included.
        24 count: u32,
        28 bitmap_offset: u32,
        /// Bytes of the smallest record.
        32 size: u32,
        /// `LLOG_F_*`.
        36 flags: u32,
        40 cat_idx: u32,
        44 tgtuuid: [u8; 40],
        84 reserved: u32,
        88 bitmap: [u8; 8096],
        8184 tail: LlogRecTail,
    }
}

impl LlogLogHdr {
    /// Records a log can have.
    pub const MAX_RECORDS: u32 = 8096 * 8;

    /// Whether record `index` is live.
    pub fn is_live(&self, index: u32) -> bool {
        self.bitmap
            .get(index as usize / 8)
            .is_some_and(|b| b & (1 << (index % 8)) != 0)
    }

    /// Makes record `index` live or dead, counting.
    pub fn set_live(&mut self, index: u32, live: bool) {
        let Some(b) = self.bitmap.get_mut(index as usize / 8) else {
            return;
        };
        let bit = 1u8 << (index % 8);
        match (*b & bit != 0, live) {
            (false, true) => {
                *b |= bit;
                self.count += 1;
            }
            (true, false) => {
                *b &= !bit;
                self.count -= 1;
            }
            _ => {}
        }
    }
}

/// A record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlogRec {
    /// Its index.
    pub index: u32,
    /// Its type, like [`OBD_CFG_REC`].
    pub r#type: u32,
    /// Its id word.
    pub id: u32,
    /// What lies between head and tail.
    pub payload: Bytes,
}

impl LlogRec {
    /// Its bytes, head and tail included. The payload must be a multiple of 8.
    pub fn encode(&self) -> Vec<u8> {
        let len = (LLOG_MIN_REC_SIZE + self.payload.len()) as u32;
        let mut v = Vec::with_capacity(len as usize);
        v.extend_from_slice(
            LlogRecHdr {
                len,
                index: self.index,
                r#type: self.r#type,
                id: self.id,
            }
            .as_bytes(),
        );
        v.extend_from_slice(&self.payload);
        v.extend_from_slice(
            LlogRecTail {
                len,
                index: self.index,
            }
            .as_bytes(),
        );
        v
    }
}

/// Parses the records of one chunk (what NEXT_BLOCK gives). Stops at zeros or at the chunk's end.
pub fn parse_chunk(chunk: &Bytes) -> Result<Vec<LlogRec>, DecodeError> {
    let mut out = Vec::new();
    let mut at = 0;
    while at + LLOG_MIN_REC_SIZE <= chunk.len() {
        let h = LlogRecHdr::decode(&chunk[at..])?;
        if h.len == 0 {
            break;
        }
        let len = h.len as usize;
        let bad = |field, got: u32| DecodeError::Length {
            what: "LlogRec",
            field,
            got: got as u64,
        };
        if len < LLOG_MIN_REC_SIZE || !len.is_multiple_of(8) || at + len > chunk.len() {
            return Err(bad("len", h.len));
        }
        let tail = LlogRecTail::decode(&chunk[at + len - size_of::<LlogRecTail>()..])?;
        if tail.len != h.len || tail.index != h.index {
            return Err(bad("tail", tail.len));
        }
        let payload =
            chunk.slice(at + size_of::<LlogRecHdr>()..at + len - size_of::<LlogRecTail>());
        out.push(LlogRec {
            index: h.index,
            r#type: h.r#type,
            id: h.id,
            payload,
        });
        at += len;
    }
    Ok(out)
}

/// A log in memory: writes it as Lustre does, serves blocks of it, reads it back.
#[derive(Clone, Debug, PartialEq)]
pub struct Llog {
    header: Box<LlogLogHdr>,
    /// Everything behind the header.
    body: Vec<u8>,
    last_index: u32,
}

/// Why a record was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LlogFull {
    /// The record is larger than a chunk or its payload not a multiple of 8.
    #[error("a record of {0} payload bytes does not go into a log")]
    Size(usize),
    /// The log has as many records as its bitmap has bits.
    #[error("the log is full")]
    Indices,
}

impl Llog {
    /// An empty plain log. `uuid` is what real configuration logs carry: `config_uuid`.
    pub fn new(uuid: &[u8], timestamp: i64) -> Llog {
        let mut h = LlogLogHdr {
            hdr: LlogRecHdr {
                len: LLOG_CHUNK_SIZE as u32,
                index: 0,
                r#type: LLOG_HDR_MAGIC,
                id: 0,
            },
            timestamp,
            bitmap_offset: core::mem::offset_of!(LlogLogHdr, bitmap) as u32,
            flags: LLOG_F_IS_PLAIN,
            tgtuuid: crate::raw::c_array(uuid),
            tail: LlogRecTail {
                len: LLOG_CHUNK_SIZE as u32,
                index: 0,
            },
            ..Default::default()
        };
        h.set_live(0, true);
        Llog {
            header: Box::new(h),
            body: Vec::new(),
            last_index: 0,
        }
    }

    /// Appends a live record and gives its index.
    pub fn push(&mut self, r#type: u32, payload: &[u8]) -> Result<u32, LlogFull> {
        let len = LLOG_MIN_REC_SIZE + payload.len();
        if len > LLOG_CHUNK_SIZE || !payload.len().is_multiple_of(8) {
            return Err(LlogFull::Size(payload.len()));
        }
        if self.last_index + 2 >= LlogLogHdr::MAX_RECORDS {
            return Err(LlogFull::Indices);
        }
        let left = LLOG_CHUNK_SIZE - self.body.len() % LLOG_CHUNK_SIZE;
        // what would be left behind must be nothing or room for a padding record
        if left != len && left < len + LLOG_MIN_REC_SIZE {
            let pad = Bytes::from(vec![0; left - LLOG_MIN_REC_SIZE]);
            self.append(LlogRec {
                index: self.last_index + 1,
                r#type: LLOG_PAD_MAGIC,
                id: 0,
                payload: pad,
            });
        }
        let index = self.last_index + 1;
        self.append(LlogRec {
            index,
            r#type,
            id: 0,
            payload: Bytes::copy_from_slice(payload),
        });
        self.header.set_live(index, true);
        Ok(index)
    }

    fn append(&mut self, r: LlogRec) {
        let len = (LLOG_MIN_REC_SIZE + r.payload.len()) as u32;
        if r.r#type != LLOG_PAD_MAGIC && (self.header.size == 0 || len < self.header.size) {
            self.header.size = len;
        }
        self.last_index = r.index;
        self.header.tail.index = r.index;
        self.body.extend_from_slice(&r.encode());
    }

    /// Makes a record dead.
    pub fn cancel(&mut self, index: u32) {
        self.header.set_live(index, false);
    }

    /// Index of the last record.
    pub fn last_index(&self) -> u32 {
        self.last_index
    }

    /// Seconds at which the log was made.
    pub fn timestamp(&self) -> i64 {
        self.header.timestamp
    }

    /// The header chunk.
    pub fn header(&self) -> &LlogLogHdr {
        &self.header
    }

    /// The chunk that holds record `index` and the offset in the log behind it; `None` behind the last record.
    /// The last chunk is filled up with zeros.
    pub fn chunk_of(&self, index: u32) -> Option<(Bytes, u64)> {
        if index > self.last_index {
            return None;
        }
        for (i, chunk) in self.body.chunks(LLOG_CHUNK_SIZE).enumerate() {
            let recs = parse_chunk(&Bytes::copy_from_slice(chunk)).ok()?;
            if recs.last().is_some_and(|r| r.index >= index) {
                let mut whole = chunk.to_vec();
                whole.resize(LLOG_CHUNK_SIZE, 0);
                let end = LLOG_CHUNK_SIZE * (i + 1) + chunk.len();
                return Some((whole.into(), end as u64));
            }
        }
        None
    }

    /// The log as one file.
    pub fn encode(&self) -> Bytes {
        let mut v = self.header.as_bytes().to_vec();
        v.extend_from_slice(&self.body);
        v.into()
    }

    /// Reads a whole log.
    pub fn decode(file: &Bytes) -> Result<Llog, DecodeError> {
        let header = LlogLogHdr::decode(file)?;
        if header.hdr.r#type != LLOG_HDR_MAGIC {
            return Err(DecodeError::Magic {
                what: "LlogLogHdr",
                got: header.hdr.r#type as u64,
            });
        }
        let mut log = Llog {
            header: Box::new(header),
            body: Vec::new(),
            last_index: 0,
        };
        for at in (LLOG_CHUNK_SIZE..file.len()).step_by(LLOG_CHUNK_SIZE) {
            let chunk = file.slice(at..file.len().min(at + LLOG_CHUNK_SIZE));
            let recs = parse_chunk(&chunk)?;
            let used: usize = recs
                .iter()
                .map(|r| LLOG_MIN_REC_SIZE + r.payload.len())
                .sum();
            log.body.extend_from_slice(&chunk[..used]);
            log.last_index = recs.last().map_or(log.last_index, |r| r.index);
        }
        Ok(log)
    }

    /// All records but padding with whether they are live.
    pub fn records(&self) -> Vec<(LlogRec, bool)> {
        self.body
            .chunks(LLOG_CHUNK_SIZE)
            .filter_map(|c| parse_chunk(&Bytes::copy_from_slice(c)).ok())
            .flatten()
            .filter(|r| r.r#type != LLOG_PAD_MAGIC)
            .map(|r| (self.header.is_live(r.index), r))
            .map(|(live, r)| (r, live))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn log_round_trip(sizes in proptest::collection::vec(0usize..200, 1..150), dead in proptest::collection::vec(any::<bool>(), 150)) {
            let mut log = Llog::new(b"config_uuid", 1);
            let mut want = Vec::new();
            for (s, d) in sizes.iter().zip(&dead) {
                let payload = vec![*s as u8; 8 * s];
                let i = log.push(OBD_CFG_REC, &payload).unwrap();
                if *d {
                    log.cancel(i);
                }
                want.push((i, payload, !*d));
            }
            prop_assert!(log.push(OBD_CFG_REC, &vec![0; LLOG_CHUNK_SIZE]).is_err());
            let got: Vec<_> = log.records().into_iter().map(|(r, live)| (r.index, r.payload.to_vec(), live)).collect();
            prop_assert_eq!(&got, &want);
            prop_assert_eq!(log.header().count as usize, 1 + want.iter().filter(|w| w.2).count());
            prop_assert_eq!(Llog::decode(&log.encode()).unwrap(), log.clone());
            // read it as a client does: chunk after chunk by index
            let (mut next, mut seen) = (1, Vec::new());
            while let Some((chunk, _)) = log.chunk_of(next) {
                prop_assert_eq!(chunk.len(), LLOG_CHUNK_SIZE);
                for r in parse_chunk(&chunk).unwrap() {
                    prop_assert!(r.index <= next || r.index == next);
                    if r.index == next {
                        if r.r#type != LLOG_PAD_MAGIC {
                            seen.push(r.index);
                        }
                        next += 1;
                    }
                }
            }
            prop_assert_eq!(seen, want.iter().map(|w| w.0).collect::<Vec<_>>());
        }

        #[test]
        fn never_panics(mut raw in proptest::collection::vec(any::<u8>(), 0..400), small in any::<bool>()) {
            if small && raw.len() > 4 {
                raw[1..4].fill(0);
            }
            let raw = Bytes::from(raw);
            let _ = parse_chunk(&raw);
            let mut file = Llog::new(b"", 0).encode().to_vec();
            file.extend_from_slice(&raw);
            let _ = Llog::decode(&file.into());
        }
    }
}
