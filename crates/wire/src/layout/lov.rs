//! Plain layouts: RAID0 over OST objects (`lustre_idl.h`: `lov_mds_md_v1`, `_v3`; `lustre/lov/lov_offset.c`).
//!
//! The same bytes serve as the stored attribute, as a directory's default and as a user's request (`lov_user_md`):
//! there `layout_gen` is the wanted first OST and `oi` means nothing.

use crate::fid::OstId;
use crate::raw::{DecodeError, Wire, c_array, c_str, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Plain layout.
pub const LOV_MAGIC_V1: u32 = 0x0BD1_0BD0;
/// Plain layout with a pool name.
pub const LOV_MAGIC_V3: u32 = 0x0BD3_0BD0;
/// A user's request that lists OSTs.
pub const LOV_MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
/// Composite layout.
pub const LOV_MAGIC_COMP_V1: u32 = 0x0BD6_0BD0;
/// Foreign layout.
pub const LOV_MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;
/// Composite layout with self-extending components.
pub const LOV_MAGIC_SEL: u32 = 0x0BD8_0BD0;

/// Stripe count that means all OSTs, in requests and defaults.
pub const LOV_ALL_STRIPES: u16 = 0xffff;
/// From here on a count is a number of stripes per OST, not a count.
pub const LOV_ALL_STRIPES_WIDE: u16 = 0xffe0;
/// First OST is the server's choice.
pub const LOV_OFFSET_DEFAULT: u16 = 0xffff;
/// Most stripes of a file.
pub const LOV_MAX_STRIPE_COUNT: usize = 2000;
/// Smallest stripe and the unit of stripe sizes, bytes.
pub const LOV_MIN_STRIPE_SIZE: u32 = 65536;

/// Patterns (`LOV_PATTERN_*`).
pub mod pattern {
    /// Striped.
    pub const RAID0: u32 = 0x1;
    /// Parity component.
    pub const PARITY: u32 = 0x4;
    /// Data on the MDT.
    pub const MDT: u32 = 0x100;
    /// Several stripes on one OST.
    pub const OVERSTRIPING: u32 = 0x200;
    /// Foreign.
    pub const FOREIGN: u32 = 0x400;
    /// Compressed.
    pub const COMPRESS: u32 = 0x800;
    /// Some objects are missing.
    pub const F_HOLE: u32 = 0x4000_0000;
    /// Data is in the archive only.
    pub const F_RELEASED: u32 = 0x8000_0000;
    /// Bits that are flags.
    pub const F_MASK: u32 = 0xffff_0000;
}

wire_struct! {
    /// Head of `lov_mds_md_v1`.
    #[derive(Eq)]
    pub struct LovMdHead : 32 {
        0 magic: u32,
        4 pattern: u32,
        8 oi: OstId,
        24 stripe_size: u32,
        28 stripe_count: u16,
        30 layout_gen: u16,
    }
}

wire_struct! {
    /// `lov_ost_data_v1`: one stripe.
    #[derive(Eq)]
    pub struct LovOstData : 24 {
        0 oi: OstId,
        /// Generation of the OST index, 0.
        16 ost_gen: u32,
        20 ost_idx: u32,
    }
}

/// A plain layout.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LovMd {
    /// [`LOV_MAGIC_V1`], [`LOV_MAGIC_V3`] or [`LOV_MAGIC_SPECIFIC`].
    pub magic: u32,
    /// See [`pattern`].
    pub pattern: u32,
    /// Identity of the file (its FID's sequence and oid).
    pub oi: OstId,
    /// Bytes.
    pub stripe_size: u32,
    /// Stripes; in requests and defaults 0 (default) or [`LOV_ALL_STRIPES`] are allowed and no objects follow.
    pub stripe_count: u16,
    /// Generation; in requests and defaults the wanted first OST ([`LovMd::stripe_offset`]).
    pub layout_gen: u16,
    /// Pool name field (v3 and specific), NUL filled.
    pub pool: [u8; 16],
    /// Objects present.
    pub objects: Vec<LovOstData>,
    /// Bytes behind the objects, as received.
    pub tail: Bytes,
}

/// A piece of a file range on one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripePiece {
    /// Index of the stripe.
    pub stripe: usize,
    /// First byte in the object.
    pub object_offset: u64,
    /// First byte in the file.
    pub file_offset: u64,
    /// Bytes.
    pub len: u64,
}

impl LovMd {
    /// A file's layout over these objects.
    pub fn new(stripe_size: u32, objects: Vec<LovOstData>) -> LovMd {
        LovMd {
            magic: LOV_MAGIC_V1,
            pattern: pattern::RAID0,
            stripe_size,
            stripe_count: objects.len() as u16,
            objects,
            ..Default::default()
        }
    }

    /// A request or a directory's default: size in bytes, count ([`LOV_ALL_STRIPES`] for all), first OST ([`LOV_OFFSET_DEFAULT`] for any).
    pub fn request(
        stripe_size: u32,
        stripe_count: u16,
        stripe_offset: u16,
        pool: Option<&str>,
    ) -> LovMd {
        LovMd {
            magic: if pool.is_some() {
                LOV_MAGIC_V3
            } else {
                LOV_MAGIC_V1
            },
            pattern: pattern::RAID0,
            stripe_size,
            stripe_count,
            layout_gen: stripe_offset,
            pool: c_array(pool.unwrap_or("").as_bytes()),
            ..Default::default()
        }
    }

    /// Reads a v1, v3 or specific layout.
    pub fn decode(buf: &Bytes) -> Result<LovMd, DecodeError> {
        let h = LovMdHead::decode(buf)?;
        let mut at = size_of::<LovMdHead>();
        let mut pool = [0; 16];
        match h.magic {
            LOV_MAGIC_V1 => {}
            LOV_MAGIC_V3 | LOV_MAGIC_SPECIFIC => {
                pool = Wire::decode(&buf[at..])?;
                at += pool.len();
            }
            m => {
                return Err(DecodeError::Magic {
                    what: "LovMd",
                    got: m as u64,
                });
            }
        }
        let room = (buf.len() - at) / size_of::<LovOstData>();
        let want = if h.stripe_count >= LOV_ALL_STRIPES_WIDE {
            0
        } else {
            h.stripe_count as usize
        };
        let end = at + room.min(want) * size_of::<LovOstData>();
        Ok(LovMd {
            magic: h.magic,
            pattern: h.pattern,
            oi: h.oi,
            stripe_size: h.stripe_size,
            stripe_count: h.stripe_count,
            layout_gen: h.layout_gen,
            pool,
            objects: crate::raw::decode_all(&buf[at..end]),
            tail: buf.slice(end..),
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let h = LovMdHead {
            magic: self.magic,
            pattern: self.pattern,
            oi: self.oi,
            stripe_size: self.stripe_size,
            stripe_count: self.stripe_count,
            layout_gen: self.layout_gen,
        };
        let mut v = h.as_bytes().to_vec();
        if self.magic != LOV_MAGIC_V1 {
            v.extend_from_slice(&self.pool);
        }
        v.extend_from_slice(self.objects.as_bytes());
        v.extend_from_slice(&self.tail);
        v.into()
    }

    /// The wanted first OST of a request or default.
    pub fn stripe_offset(&self) -> u16 {
        self.layout_gen
    }

    /// Pool name; `None` when there is none.
    pub fn pool_name(&self) -> Option<&str> {
        core::str::from_utf8(c_str(&self.pool))
            .ok()
            .filter(|s| self.magic != LOV_MAGIC_V1 && !s.is_empty())
    }

    /// Whether data is in the archive only.
    pub fn is_released(&self) -> bool {
        self.pattern & pattern::F_RELEASED != 0
    }

    /// Whether the data lies on the MDT.
    pub fn is_dom(&self) -> bool {
        self.pattern & pattern::MDT != 0
    }

    /// Bytes of one round over all stripes; 0 when the layout holds no data.
    fn width(&self) -> u64 {
        self.stripe_size as u64 * self.objects.len() as u64
    }

    /// Where file byte `offset` lies: stripe index and object offset. `None` without objects.
    pub fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        let (width, ssize) = (self.width(), self.stripe_size as u64);
        if width == 0 {
            return None;
        }
        let in_round = offset % width;
        Some((
            (in_round / ssize) as usize,
            offset / width * ssize + in_round % ssize,
        ))
    }

    /// The pieces of `len` bytes from `offset`, in file order. Adjacent rounds of a single stripe come as one piece.
    pub fn map(&self, offset: u64, len: u64) -> impl Iterator<Item = StripePiece> + '_ {
        let end = offset.saturating_add(len);
        let mut at = offset;
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (stripe, object_offset) = self.locate(at)?;
            let ssize = self.stripe_size as u64;
            let room = if self.objects.len() == 1 {
                end - at
            } else {
                ssize - at % ssize
            };
            let piece = StripePiece {
                stripe,
                object_offset,
                file_offset: at,
                len: room.min(end - at),
            };
            at += piece.len;
            Some(piece)
        })
    }

    /// Bytes of `stripe`'s object when the file has `size` bytes and no hole at its end (`lov_size_to_stripe`).
    pub fn object_size(&self, stripe: usize, size: u64) -> u64 {
        let (width, ssize) = (self.width(), self.stripe_size as u64);
        if width == 0 || stripe >= self.objects.len() {
            return 0;
        }
        let before = stripe as u64 * ssize;
        let in_round = size % width;
        size / width * ssize + in_round.saturating_sub(before).min(ssize)
    }

    /// Size of the file that an object of `object_size` bytes implies (`lov_stripe_size`); the file's size is the greatest over its stripes.
    pub fn file_size(&self, stripe: usize, object_size: u64) -> u64 {
        let (width, ssize) = (self.width(), self.stripe_size as u64);
        if object_size == 0 || width == 0 {
            return 0;
        }
        let last = object_size - 1;
        (last / ssize)
            .saturating_mul(width)
            .saturating_add(stripe as u64 * ssize + last % ssize + 1)
    }
}

/// `lov_foreign_md` and `lmv_foreign_md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMd {
    /// LOV or LMV foreign magic.
    pub magic: u32,
    /// Kind of store.
    pub r#type: u32,
    /// Flags of it.
    pub flags: u32,
    /// Opaque value.
    pub value: Bytes,
    /// Bytes behind it.
    pub tail: Bytes,
}

impl ForeignMd {
    /// Reads it.
    pub fn decode(buf: &Bytes) -> Result<ForeignMd, DecodeError> {
        let [magic, length, r#type, flags] = <[u32; 4]>::decode(buf)?;
        let end = 16usize.saturating_add(length as usize);
        if end > buf.len() {
            return Err(DecodeError::Length {
                what: "ForeignMd",
                field: "length",
                got: length as u64,
            });
        }
        Ok(ForeignMd {
            magic,
            r#type,
            flags,
            value: buf.slice(16..end),
            tail: buf.slice(end..),
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut v = [self.magic, self.value.len() as u32, self.r#type, self.flags]
            .as_bytes()
            .to_vec();
        v.extend_from_slice(&self.value);
        v.extend_from_slice(&self.tail);
        v.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lov(ssize: u32, n: u64) -> LovMd {
        let o = |i| LovOstData {
            oi: OstId::group0(100 + i),
            ost_gen: 0,
            ost_idx: i as u32,
        };
        LovMd::new(ssize, (0..n).map(o).collect())
    }

    #[test]
    fn request_has_no_objects() {
        let r = LovMd::request(1 << 20, LOV_ALL_STRIPES, LOV_OFFSET_DEFAULT, Some("fast"));
        let raw = r.encode();
        assert_eq!(raw.len(), 48);
        let back = LovMd::decode(&raw).unwrap();
        assert_eq!(back, r);
        assert_eq!(back.pool_name(), Some("fast"));
    }

    /// The model: byte by byte, a stripe's next free byte is where the file's next byte of it goes.
    #[test]
    fn locate_agrees_with_counting() {
        let l = lov(4, 3);
        let mut next = [0u64; 3];
        for off in 0..200u64 {
            let s = (off / 4 % 3) as usize;
            assert_eq!(l.locate(off), Some((s, next[s])));
            next[s] += 1;
            for (i, n) in next.iter().enumerate() {
                assert_eq!(l.object_size(i, off + 1), *n);
            }
            assert_eq!((0..3).map(|i| l.file_size(i, next[i])).max(), Some(off + 1));
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_the_range(ssize in 1u32..5000, n in 1u64..9, off in 0u64..1_000_000, len in 0u64..100_000) {
            let l = lov(ssize, n);
            let mut at = off;
            for p in l.map(off, len) {
                prop_assert_eq!(p.file_offset, at);
                prop_assert!(p.len > 0 && p.stripe < n as usize);
                prop_assert_eq!(l.locate(at), Some((p.stripe, p.object_offset)));
                prop_assert_eq!(l.locate(at + p.len - 1), Some((p.stripe, p.object_offset + p.len - 1)));
                at += p.len;
            }
            prop_assert_eq!(at, off + len);
        }

        #[test]
        fn huge_offsets_do_not_panic(off in any::<u64>(), len in any::<u64>(), n in 0u64..4) {
            let l = lov(1 << 20, n);
            let _ = l.map(off, len).take(5).count();
            let _ = l.object_size(0, off);
            let _ = l.file_size(0, off);
        }

        #[test]
        fn decode_is_lossless_or_refuses(mut raw in proptest::collection::vec(any::<u8>(), 0..300), magic in 0usize..6) {
            let magics = [LOV_MAGIC_V1, LOV_MAGIC_V3, LOV_MAGIC_SPECIFIC, LOV_MAGIC_FOREIGN, LOV_MAGIC_COMP_V1, 7];
            if raw.len() >= 4 {
                raw[..4].copy_from_slice(&magics[magic].to_le_bytes());
            }
            let raw = Bytes::from(raw);
            if let Ok(l) = crate::layout::Layout::decode(&raw) {
                prop_assert_eq!(l.encode(), raw);
            }
        }
    }
}
