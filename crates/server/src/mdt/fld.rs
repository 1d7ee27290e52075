//! Which MDT holds which sequence of FIDs, and where sequences come from (`lustre/fld`, `lustre/fid/fid_handler.c`).
//!
//! MDT0000 is the controller: it gives every MDT super-sequences and remembers whose they are. An MDT gives clients sequences out
//! of its own super-sequence. Invariants:
//! * a range is on the controller's disk before the MDT hears of it, and on the MDT's before a client does: no sequence is given
//!   twice, whatever loses power;
//! * an MDT knows its own ranges by itself. What is in nobody's range is the controller's: it was the only MDT once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use coral_osd::{Batch, Kv, OsdError};
use coral_wire::fid::{Fid, seq};
use coral_wire::fld::{LuSeqRange, RANGE_MDT};
use parking_lot::RwLock;

use super::table;

/// Sequences of one super-sequence (`LUSTRE_SEQ_SUPER_WIDTH`).
pub const SUPER_SEQUENCE: u64 = 0x4000_0000;
/// Greatest index of an MDT of Coral: OST object ids of 48 bits have room for so many MDTs' own.
pub const INDEX_MAX: u32 = 255;
/// Ranges of other MDTs remembered.
const CACHE_MAX: usize = 4096;

/// Index of the MDT these tables belong to; not there: 0.
pub(super) const KEY_INDEX: &[u8] = b"index";
/// Next sequence for a client; not there: the MDT has no super-sequence yet.
pub(super) const KEY_SEQ: &[u8] = b"seq";
/// The first sequence behind the super-sequence in use; not there: that of [`FIRST`].
pub(super) const KEY_SEQ_END: &[u8] = b"seq_end";

/// The super-sequence that MDT0000 has from the beginning.
pub(super) const FIRST: (u64, u64) = (seq::NORMAL, seq::NORMAL + SUPER_SEQUENCE);

/// Where sequences are, as one MDT knows it.
#[derive(Debug)]
pub struct Fld {
    index: u32,
    /// Of this MDT, and of MDT0000 those of all: first to the one after the last, and the MDT's index.
    known: RwLock<BTreeMap<u64, (u64, u32)>>,
    /// What MDT0000 has told.
    told: RwLock<BTreeMap<u64, (u64, u32)>>,
    /// The sequence of objects that this MDT makes by itself; 0: none yet.
    reserved: AtomicU64,
}

/// The range that a sequence is in: first, the one after the last, and index of the MDT.
pub(super) fn find(ranges: &BTreeMap<u64, (u64, u32)>, seq: u64) -> Option<(u64, u64, u32)> {
    let (&start, &(end, index)) = ranges.range(..=seq).next_back()?;
    (seq < end).then_some((start, end, index))
}

/// A number in the table `meta`.
pub(super) fn word(kv: &dyn Kv, key: &[u8]) -> Result<Option<u64>, OsdError> {
    let raw = kv.get(table::META, key)?;
    Ok(raw
        .and_then(|v| v.as_ref().try_into().ok())
        .map(u64::from_le_bytes))
}

/// Index of the MDT whose tables these are.
pub(super) fn index(kv: &dyn Kv) -> Result<u32, OsdError> {
    let raw = kv.get(table::META, KEY_INDEX)?;
    Ok(raw
        .and_then(|v| v.as_ref().try_into().ok())
        .map_or(0, u32::from_le_bytes))
}

/// Ranges in the table `fld`.
pub(super) fn stored(kv: &dyn Kv) -> Result<BTreeMap<u64, (u64, u32)>, OsdError> {
    let rows = kv.range(table::FLD, &[], None, usize::MAX)?;
    Ok(rows
        .iter()
        .filter_map(|(k, v)| range_of_row(k, v))
        .collect())
}

/// The range of a row in the table `fld`: first, the one after the last, and index of the MDT.
pub(super) fn range_of_row(k: &Bytes, v: &Bytes) -> Option<(u64, (u64, u32))> {
    let start = u64::from_be_bytes(k.as_ref().try_into().ok()?);
    let end = u64::from_le_bytes(v.get(..8)?.try_into().ok()?);
    let index = u32::from_le_bytes(v.get(8..12)?.try_into().ok()?);
    Some((start, (end, index)))
}

/// Key and value of such a row.
pub(super) fn row_of_range(start: u64, end: u64, index: u32) -> (Vec<u8>, Vec<u8>) {
    let value = [end.to_le_bytes().as_slice(), &index.to_le_bytes()].concat();
    (start.to_be_bytes().to_vec(), value)
}

fn put_range(b: &mut Batch, start: u64, end: u64, index: u32) {
    let (key, value) = row_of_range(start, end, index);
    b.put(table::FLD, key, value);
}

impl Fld {
    /// As `kv` has it.
    pub(super) fn open(kv: &dyn Kv) -> Result<Fld, OsdError> {
        let index = index(kv)?;
        let mut known = stored(kv)?;
        if index == 0 {
            known.insert(FIRST.0, (FIRST.1, 0));
        }
        Ok(Fld {
            index,
            known: RwLock::new(known),
            told: RwLock::default(),
            reserved: AtomicU64::new(0),
        })
    }

    /// Index of this MDT.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The sequence is for objects that this MDT makes by itself from now on.
    pub(super) fn reserve(&self, seq: u64) {
        self.reserved.store(seq, Ordering::Relaxed);
    }

    /// Whether no client may name objects with that sequence.
    pub(super) fn is_reserved(&self, seq: u64) -> bool {
        self.reserved.load(Ordering::Relaxed) == seq
    }

    /// Whether objects with that FID lie on this MDT.
    pub fn is_here(&self, fid: &Fid) -> bool {
        if fid.seq < seq::NORMAL {
            return self.index == 0;
        }
        match find(&self.known.read(), fid.seq) {
            Some((.., index)) => index == self.index,
            None => self.index == 0,
        }
    }

    /// The range a sequence is in and its MDT, as far as this MDT knows.
    pub(super) fn range_of(&self, seq: u64) -> Option<LuSeqRange> {
        let range = |(start, end, index)| LuSeqRange {
            start,
            end,
            index,
            flags: RANGE_MDT,
        };
        if (seq::DOT_LUSTRE..seq::NORMAL).contains(&seq) {
            return Some(range((seq, seq + 1, 0)));
        }
        let known = find(&self.known.read(), seq);
        known.or_else(|| find(&self.told.read(), seq)).map(range)
    }

    /// MDT0000 has told where a range is.
    pub(super) fn heard(&self, r: &LuSeqRange) {
        let mut told = self.told.write();
        if told.len() < CACHE_MAX {
            told.insert(r.start, (r.end, r.index));
        }
    }

    /// The next super-sequence, for the MDT `index`; of MDT0000. It is given when the batch is on disk.
    pub(super) fn next_super(&self, index: u32) -> (LuSeqRange, Batch) {
        let start = self
            .known
            .read()
            .values()
            .map(|(end, _)| *end)
            .max()
            .unwrap_or(FIRST.1);
        let end = start + SUPER_SEQUENCE;
        let mut b = Batch::new();
        put_range(&mut b, start, end, index);
        let range = LuSeqRange {
            start,
            end,
            index,
            flags: RANGE_MDT,
        };
        (range, b)
    }

    /// What makes the range this MDT's own, from which it gives sequences from then on.
    pub(super) fn own(&self, r: &LuSeqRange) -> Batch {
        let mut b = Batch::new();
        put_range(&mut b, r.start, r.end, self.index);
        b.put(table::META, KEY_SEQ, r.start.to_le_bytes().to_vec());
        b.put(table::META, KEY_SEQ_END, r.end.to_le_bytes().to_vec());
        b
    }

    /// A range is on disk here.
    pub(super) fn add(&self, r: &LuSeqRange) {
        self.known.write().insert(r.start, (r.end, r.index));
    }
}

/// The next sequence for a client with what remembers that; `None`: a super-sequence is needed first.
pub(super) fn next_sequence(kv: &dyn Kv) -> Result<Option<(u64, Batch)>, OsdError> {
    let Some(next) = word(kv, KEY_SEQ)? else {
        return Ok(None);
    };
    if next >= word(kv, KEY_SEQ_END)?.unwrap_or(FIRST.1) {
        return Ok(None);
    }
    let mut b = Batch::new();
    b.put(table::META, KEY_SEQ, (next + 1).to_le_bytes().to_vec());
    Ok(Some((next, b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_osd::OsdMem;

    fn commit(kv: &OsdMem, b: Batch) {
        kv.commit(b).wait().unwrap();
    }

    fn mdt(index: u32) -> OsdMem {
        let kv = OsdMem::new();
        let mut b = Batch::new();
        b.put(table::META, KEY_INDEX, index.to_le_bytes().to_vec());
        if index == 0 {
            b.put(table::META, KEY_SEQ, FIRST.0.to_le_bytes().to_vec());
        }
        commit(&kv, b);
        kv
    }

    #[test]
    fn every_sequence_has_one_mdt() {
        let (kv0, kv1) = (mdt(0), mdt(1));
        let (fld0, fld1) = (Fld::open(&kv0).unwrap(), Fld::open(&kv1).unwrap());
        assert_eq!(next_sequence(&kv1).unwrap().map(|s| s.0), None);
        let (range, b) = fld0.next_super(1);
        commit(&kv0, b);
        fld0.add(&range);
        assert_eq!((range.start, range.index), (FIRST.1, 1));
        commit(&kv1, fld1.own(&range));
        fld1.add(&range);
        // the next is another's
        assert_eq!(fld0.next_super(2).0.start, range.end);
        for (fld0, fld1) in [
            (fld0, fld1),
            (Fld::open(&kv0).unwrap(), Fld::open(&kv1).unwrap()),
        ] {
            for (seq, home) in [
                (seq::ROOT, 0),
                (seq::NORMAL, 0),
                (FIRST.1 - 1, 0),
                (FIRST.1, 1),
                (range.end - 1, 1),
                (range.end, 0),
            ] {
                let fid = Fid::new(seq, 1);
                assert_eq!(
                    (fld0.is_here(&fid), fld1.is_here(&fid)),
                    (home == 0, home == 1),
                    "{fid}"
                );
            }
            assert_eq!(fld0.range_of(range.start + 5), Some(range));
            assert_eq!(fld1.range_of(range.start + 5), Some(range));
            assert_eq!(fld1.range_of(seq::NORMAL), None);
            assert_eq!(fld0.range_of(range.end), None);
        }
        let (first, b) = next_sequence(&kv1).unwrap().unwrap();
        commit(&kv1, b);
        assert_eq!(first, range.start);
        assert_eq!(next_sequence(&kv1).unwrap().unwrap().0, first + 1);
    }

    #[test]
    fn a_used_up_super_sequence_ends() {
        let kv = mdt(0);
        let mut b = Batch::new();
        b.put(table::META, KEY_SEQ, (FIRST.1 - 1).to_le_bytes().to_vec());
        commit(&kv, b);
        let (last, b) = next_sequence(&kv).unwrap().unwrap();
        commit(&kv, b);
        assert_eq!(last, FIRST.1 - 1);
        assert!(next_sequence(&kv).unwrap().is_none());
    }
}
