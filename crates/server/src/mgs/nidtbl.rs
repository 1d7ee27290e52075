//! The nid table: where each target runs now, for imperative recovery (`lustre/mgs/mgs_nids.c`).
//!
//! Every change gets the next version. A client remembers the version it has and asks for what is newer; entries are
//! packed into units (pages), an entry never crosses one.

use coral_wire::Errno;
use coral_wire::mgs::{MgsConfigRes, MgsNidtblHead, ldd};
use coral_wire::nid::Nid;
use zerocopy::IntoBytes;

use super::table::StoredKind;

/// First version of an empty table: Lustre's begin with 2, so that version 1 means "from the start".
const FIRST_VERSION: u64 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
struct NidEntry {
    version: u64,
    kind: StoredKind,
    index: u32,
    instance: u32,
    nids: Vec<Nid>,
}

/// The table of one file system. Kept in memory: targets register at every start.
#[derive(Clone, Debug)]
pub struct NidTable {
    version: u64,
    /// Ascending by version.
    entries: Vec<NidEntry>,
}

impl Default for NidTable {
    fn default() -> NidTable {
        NidTable {
            version: FIRST_VERSION,
            entries: Vec::new(),
        }
    }
}

impl NidTable {
    /// A target runs at `nids`, for the `instance`-th time. Says whether that is new.
    pub fn set(&mut self, kind: StoredKind, index: u32, instance: u32, nids: &[Nid]) -> bool {
        let old = self
            .entries
            .iter()
            .position(|e| e.kind == kind && e.index == index);
        if old.is_some_and(|i| self.entries[i].instance == instance && self.entries[i].nids == nids)
        {
            return false;
        }
        if let Some(i) = old {
            self.entries.remove(i);
        }
        self.version += 1;
        self.entries.push(NidEntry {
            version: self.version,
            kind,
            index,
            instance,
            nids: nids.to_vec(),
        });
        true
    }

    /// Number of the target's start; 0 when it has not registered.
    pub fn instance(&self, kind: StoredKind, index: u32) -> u32 {
        self.entries
            .iter()
            .find(|e| e.kind == kind && e.index == index)
            .map_or(0, |e| e.instance)
    }

    /// Entries of version `from` and newer, in units of `unit` bytes, `room` bytes at most. `nid_size` is 20 for large
    /// NIDs, else short ones are given.
    pub fn read(
        &self,
        from: u64,
        nid_size: u8,
        unit: usize,
        room: usize,
    ) -> Result<(Vec<u8>, MgsConfigRes), Errno> {
        if unit < 64 || room < unit {
            return Err(Errno::EINVAL);
        }
        let mut out: Vec<u8> = Vec::new();
        let mut res = MgsConfigRes {
            offset: self.version,
            size: self.version,
        };
        // where the last entry's length stands, to stretch it over what remains of its unit
        let mut last: Option<usize> = None;
        for e in self.entries.iter().filter(|e| e.version >= from) {
            let raw = e.encode(nid_size, unit);
            if out.len() % unit + raw.len() > unit {
                let gap = unit - out.len() % unit;
                stretch(&mut out, last, gap);
            }
            if out.len() + raw.len() > room {
                res.offset = e.version - 1;
                break;
            }
            last = Some(out.len());
            out.extend_from_slice(&raw);
        }
        Ok((out, res))
    }
}

/// Fills a unit up: the gap belongs to the last entry.
fn stretch(out: &mut Vec<u8>, last: Option<usize>, gap: usize) {
    let Some(at) = last else { return };
    let field = at + core::mem::offset_of!(MgsNidtblHead, length);
    let length =
        u32::from_le_bytes(out[field..field + 4].try_into().unwrap_or_default()) + gap as u32;
    out[field..field + 4].copy_from_slice(&length.to_le_bytes());
    out.resize(out.len() + gap, 0);
}

impl NidEntry {
    /// As many NIDs as fit into a unit.
    fn encode(&self, nid_size: u8, unit: usize) -> Vec<u8> {
        let large = nid_size == LARGE;
        let size = if large { LARGE } else { 8 };
        let fits = (unit - size_of::<MgsNidtblHead>()) / size as usize;
        let nids = &self.nids[..self.nids.len().min(fits).min(255)];
        let head = MgsNidtblHead {
            version: self.version,
            instance: self.instance,
            index: self.index,
            length: (size_of::<MgsNidtblHead>() + nids.len() * size as usize) as u32,
            r#type: match self.kind {
                StoredKind::Mdt => ldd::SV_TYPE_MDT as u8,
                StoredKind::Ost => ldd::SV_TYPE_OST as u8,
            },
            nid_type: large as u8,
            nid_size: size,
            nid_count: nids.len() as u8,
        };
        let mut v = head.as_bytes().to_vec();
        for n in nids {
            if large {
                v.extend_from_slice(&large_nid(*n));
            } else {
                v.extend_from_slice(n.as_bytes());
            }
        }
        v
    }
}

/// Bytes of a large NID (`struct lnet_nid`).
const LARGE: u8 = 20;

/// A short NID in the large form: extra address bytes, type, number (big endian), address (big endian).
fn large_nid(n: Nid) -> [u8; LARGE as usize] {
    let mut v = [0; LARGE as usize];
    v[1] = (n.net() >> 16) as u8;
    v[2..4].copy_from_slice(&(n.net() as u16).to_be_bytes());
    v[4..8].copy_from_slice(&n.addr().to_be_bytes());
    v
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::mgs::MgsNidtblEntry;

    fn nid(n: u32) -> Nid {
        Nid::new(coral_wire::nid::NET_TCP, 0x0a4d_0000 + n)
    }

    /// The four entries a real MGS gave for 2 MDTs and 2 OSTs at 10.77.0.2@tcp (captures, mount).
    #[test]
    fn as_a_real_mgs_answers() {
        let mut t = NidTable::default();
        for (kind, index) in [
            (StoredKind::Mdt, 0),
            (StoredKind::Mdt, 1),
            (StoredKind::Ost, 0),
            (StoredKind::Ost, 1),
        ] {
            assert!(t.set(kind, index, 1, &[nid(2)]));
        }
        let (raw, res) = t.read(1, 20, 4096, 1 << 20).unwrap();
        assert_eq!((raw.len(), res), (176, MgsConfigRes { offset: 6, size: 6 }));
        let (first, _) = MgsNidtblEntry::decode(&raw.clone().into()).unwrap();
        assert_eq!(
            (
                first.head.version,
                first.head.length,
                first.head.r#type,
                first.head.nid_type
            ),
            (3, 44, 1, 1)
        );
        assert_eq!(
            &first.nids[..],
            b"\0\x02\0\0\nM\0\x02\0\0\0\0\0\0\0\0\0\0\0\0"
        );
        assert_eq!(
            t.read(7, 20, 4096, 1 << 20).unwrap(),
            (vec![], MgsConfigRes { offset: 6, size: 6 })
        );
    }

    #[test]
    fn entries_do_not_cross_units_and_the_rest_follows() {
        let mut t = NidTable::default();
        for i in 0..300 {
            t.set(StoredKind::Ost, i, 1, &[nid(i), nid(i + 1)]);
        }
        let (mut from, mut seen) = (1, Vec::new());
        loop {
            let (raw, res) = t.read(from, 8, 4096, 8192).unwrap();
            let mut rest = bytes::Bytes::from(raw);
            let whole = rest.len();
            while !rest.is_empty() {
                let at = whole - rest.len();
                let (e, r) = MgsNidtblEntry::decode(&rest).unwrap();
                assert!(at / 4096 == (at + e.head.length as usize - 1) / 4096);
                assert_eq!(e.short_nids().len(), 2);
                seen.push(e.head.index);
                rest = r;
            }
            if res.offset == res.size {
                break;
            }
            from = res.offset + 1;
        }
        assert_eq!(seen, (0..300).collect::<Vec<_>>());
        assert!(t.read(0, 8, 0, 0).is_err());
    }

    #[test]
    fn a_moved_target_is_the_newest() {
        let mut t = NidTable::default();
        t.set(StoredKind::Mdt, 0, 1, &[nid(1)]);
        t.set(StoredKind::Ost, 0, 1, &[nid(1)]);
        assert!(!t.set(StoredKind::Mdt, 0, 1, &[nid(1)]));
        assert!(t.set(StoredKind::Mdt, 0, 2, &[nid(9)]));
        let (raw, _) = t.read(5, 8, 4096, 4096).unwrap();
        let (e, rest) = MgsNidtblEntry::decode(&raw.into()).unwrap();
        assert_eq!(
            (e.head.instance, e.short_nids(), rest.len()),
            (2, vec![nid(9)], 0)
        );
        assert_eq!(t.instance(StoredKind::Mdt, 0), 2);
    }
}
