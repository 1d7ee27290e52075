//! Composite layouts: components by extent and mirror (`lustre_user.h`: `lov_comp_md_v1`).
//!
//! Encoding keeps the offsets the components have; [`CompMd::new`] lays them out one behind the other.

use super::lov::{ForeignMd, LOV_MAGIC_COMP_V1, LOV_MAGIC_FOREIGN, LovMd};
use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Component flags (`LCME_FL_*`).
pub mod lcme {
    /// Mirror is out of date.
    pub const STALE: u32 = 0x1;
    /// Preferred for reading.
    pub const PREF_RD: u32 = 0x2;
    /// Preferred for writing.
    pub const PREF_WR: u32 = 0x4;
    /// Unused.
    pub const OFFLINE: u32 = 0x8;
    /// Instantiated: has objects.
    pub const INIT: u32 = 0x10;
    /// Not resynced.
    pub const NOSYNC: u32 = 0x20;
    /// Extension space.
    pub const EXTENSION: u32 = 0x40;
    /// Parity.
    pub const PARITY: u32 = 0x80;
    /// Negates, in commands.
    pub const NEG: u32 = 0x8000_0000;
}

/// Layout states (`LCM_FL_*`).
pub mod lcm {
    /// One mirror.
    pub const NONE: u16 = 0;
    /// Mirrors in sync.
    pub const RDONLY: u16 = 1;
    /// Written since.
    pub const WRITE_PENDING: u16 = 2;
    /// Being resynced.
    pub const SYNC_PENDING: u16 = 3;
}

wire_struct! {
    /// `lov_comp_md_v1` without its entries.
    #[derive(Eq)]
    pub struct LovCompMdHead : 32 {
        0 magic: u32,
        /// Bytes of the whole.
        4 size: u32,
        8 layout_gen: u32,
        /// See [`lcm`].
        12 flags: u16,
        14 entry_count: u16,
        /// Mirrors minus one.
        16 mirror_count: u16,
        18 ec_count: u8,
        19 padding3: u8,
        20 padding1: u32,
        24 padding2: u64,
    }
}

wire_struct! {
    /// `lov_comp_md_entry_v1`.
    #[derive(Eq)]
    pub packed struct LovCompMdEntry : 48 {
        /// Unique in the file; bits 16..31 are the mirror.
        0 id: u32,
        /// See [`lcme`].
        4 flags: u32,
        /// First byte of the file.
        8 start: u64,
        /// End, exclusive; all ones is end of file.
        16 end: u64,
        /// Of the component's layout in the attribute, bytes.
        24 offset: u32,
        /// Bytes of the component's layout.
        28 size: u32,
        32 layout_gen: u32,
        /// Time in the low 48 bits, mirror link id above.
        36 time_and_id: u64,
        44 dstripe_count: u8,
        45 cstripe_count: u8,
        46 compr_type: u8,
        47 compr_lvl: u8,
    }
}

/// What a component holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubLayout {
    /// A plain layout.
    Plain(LovMd),
    /// A foreign one.
    Foreign(ForeignMd),
}

/// A component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompEntry {
    /// Its description; `offset` and `size` are kept as received.
    pub head: LovCompMdEntry,
    /// Its layout.
    pub md: SubLayout,
}

impl CompEntry {
    /// An uninstantiated or instantiated component over `start..end`.
    pub fn new(id: u32, flags: u32, start: u64, end: u64, md: LovMd) -> CompEntry {
        CompEntry {
            head: LovCompMdEntry {
                id,
                flags,
                start,
                end,
                ..Default::default()
            },
            md: SubLayout::Plain(md),
        }
    }

    /// The plain layout, if it is one.
    pub fn plain(&self) -> Option<&LovMd> {
        match &self.md {
            SubLayout::Plain(l) => Some(l),
            SubLayout::Foreign(_) => None,
        }
    }

    /// Whether it has objects.
    pub fn is_init(&self) -> bool {
        self.head.flags & lcme::INIT != 0
    }

    /// Mirror number.
    pub fn mirror_id(&self) -> u16 {
        ((self.head.id & 0x7fff_0000) >> 16) as u16
    }

    /// Whether file byte `offset` is its.
    pub fn covers(&self, offset: u64) -> bool {
        offset >= { self.head.start } && offset < { self.head.end }
    }

    fn encode_md(&self) -> Bytes {
        match &self.md {
            SubLayout::Plain(l) => l.encode(),
            SubLayout::Foreign(f) => f.encode(),
        }
    }
}

/// A composite layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompMd {
    /// Composite or SEL magic.
    pub magic: u32,
    /// Grows with each change.
    pub layout_gen: u32,
    /// See [`lcm`].
    pub flags: u16,
    /// Mirrors minus one.
    pub mirror_count: u16,
    /// Parity components.
    pub ec_count: u8,
    /// Components in their order.
    pub entries: Vec<CompEntry>,
    /// The attribute it was read from, for bytes that belong to nothing.
    raw: Option<Bytes>,
}

impl CompMd {
    /// Most components accepted.
    pub const MAX_ENTRIES: usize = 1024;

    /// Lays components out one behind the other.
    pub fn new(
        layout_gen: u32,
        flags: u16,
        mirror_count: u16,
        mut entries: Vec<CompEntry>,
    ) -> CompMd {
        let mut at =
            (size_of::<LovCompMdHead>() + entries.len() * size_of::<LovCompMdEntry>()) as u32;
        for e in &mut entries {
            e.head.offset = at;
            e.head.size = e.encode_md().len() as u32;
            at += e.head.size;
        }
        CompMd {
            magic: LOV_MAGIC_COMP_V1,
            layout_gen,
            flags,
            mirror_count,
            ec_count: 0,
            entries,
            raw: None,
        }
    }

    /// After changing entries: offsets and sizes anew.
    pub fn relayout(self) -> CompMd {
        let CompMd {
            magic, ec_count, ..
        } = self;
        CompMd {
            magic,
            ec_count,
            ..CompMd::new(self.layout_gen, self.flags, self.mirror_count, self.entries)
        }
    }

    /// Reads a composite layout.
    pub fn decode(buf: &Bytes) -> Result<CompMd, DecodeError> {
        let h = LovCompMdHead::decode(buf)?;
        let bad = |field, got: u64| DecodeError::Length {
            what: "CompMd",
            field,
            got,
        };
        let table =
            size_of::<LovCompMdHead>() + h.entry_count as usize * size_of::<LovCompMdEntry>();
        if h.entry_count as usize > Self::MAX_ENTRIES || table > buf.len() {
            return Err(bad("entry_count", h.entry_count as u64));
        }
        if h.size as usize > buf.len() || (h.size as usize) < table {
            return Err(bad("size", h.size as u64));
        }
        let mut entries = Vec::with_capacity(h.entry_count as usize);
        let mut total = 0;
        for head in
            crate::raw::decode_all::<LovCompMdEntry>(&buf[size_of::<LovCompMdHead>()..table])
        {
            let (from, len) = (head.offset as usize, head.size as usize);
            let end = from
                .checked_add(len)
                .filter(|end| *end <= buf.len() && from >= table)
                .ok_or(bad("offset", from as u64))?;
            // overlapping components must not make memory of nothing
            total += len;
            if total > buf.len() {
                return Err(bad("component size", len as u64));
            }
            let blob = buf.slice(from..end);
            let md = match u32::decode(&blob)? {
                LOV_MAGIC_FOREIGN => SubLayout::Foreign(ForeignMd::decode(&blob)?),
                _ => SubLayout::Plain(LovMd::decode(&blob)?),
            };
            entries.push(CompEntry { head, md });
        }
        let mut c = CompMd {
            magic: h.magic,
            layout_gen: h.layout_gen,
            flags: h.flags,
            mirror_count: h.mirror_count,
            ec_count: h.ec_count,
            entries,
            raw: None,
        };
        if c.encode() != *buf {
            c.raw = Some(buf.clone());
        }
        Ok(c)
    }

    /// Its bytes: entries at their offsets; bytes no entry covers are as they were received, else 0.
    pub fn encode(&self) -> Bytes {
        let table = size_of::<LovCompMdHead>() + self.entries.len() * size_of::<LovCompMdEntry>();
        let end = self
            .entries
            .iter()
            .map(|e| e.head.offset as usize + e.head.size as usize)
            .max()
            .unwrap_or(0)
            .max(table);
        let mut out = self
            .raw
            .as_ref()
            .filter(|r| r.len() >= end)
            .map_or_else(|| vec![0; end], |r| r.to_vec());
        let mut h = LovCompMdHead::decode(&out).unwrap_or_default();
        h = LovCompMdHead {
            magic: self.magic,
            layout_gen: self.layout_gen,
            flags: self.flags,
            entry_count: self.entries.len() as u16,
            mirror_count: self.mirror_count,
            ec_count: self.ec_count,
            size: if self.raw.is_some() {
                h.size
            } else {
                end as u32
            },
            ..h
        };
        out[..size_of::<LovCompMdHead>()].copy_from_slice(h.as_bytes());
        for (i, e) in self.entries.iter().enumerate() {
            let at = size_of::<LovCompMdHead>() + i * size_of::<LovCompMdEntry>();
            out[at..at + size_of::<LovCompMdEntry>()].copy_from_slice(e.head.as_bytes());
            let blob = e.encode_md();
            let at = e.head.offset as usize;
            let n = blob.len().min(e.head.size as usize);
            out[at..at + n].copy_from_slice(&blob[..n]);
        }
        out.into()
    }

    /// The component of the first mirror that is not stale and covers `offset`.
    pub fn component_at(&self, offset: u64) -> Option<&CompEntry> {
        self.entries.iter().find(|e| {
            e.covers(offset) && e.head.flags & (lcme::STALE | lcme::PARITY | lcme::OFFLINE) == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    #[test]
    fn pfl_of_two_components() {
        let first = LovMd::new(1 << 20, vec![Default::default()]);
        let rest = LovMd::request(4 << 20, 4, 0xffff, None);
        let c = CompMd::new(
            3,
            0,
            0,
            vec![
                CompEntry::new(1, lcme::INIT, 0, 1 << 20, first),
                CompEntry::new(2, 0, 1 << 20, u64::MAX, rest),
            ],
        );
        let raw = c.encode();
        assert_eq!(raw.len(), 32 + 2 * 48 + 56 + 32);
        let back = Layout::decode(&raw).unwrap();
        assert_eq!(back, Layout::Composite(c.clone()));
        assert_eq!(c.component_at(0).unwrap().head.id, { 1 });
        assert_eq!(c.component_at(1 << 20).unwrap().head.id, { 2 });
        assert!(c.component_at(u64::MAX).is_none());
    }
}
