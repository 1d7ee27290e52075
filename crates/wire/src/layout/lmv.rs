//! Striped directories: the LMV attribute, a user's request for one, and which shard a name belongs to
//! (`lustre_idl.h`, `lustre_user.h`, `lustre/include/lustre_lmv.h`).

use crate::fid::Fid;
use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// The attribute of a striped directory.
pub const LMV_MAGIC_V1: u32 = 0x0CD2_0CD0;
/// A user's request or a directory's default.
pub const LMV_USER_MAGIC: u32 = 0x0CD3_0CD0;
/// The attribute of one shard; also a user's request that lists MDTs.
pub const LMV_MAGIC_STRIPE: u32 = 0x0CD4_0CD0;
/// Foreign directory.
pub const LMV_MAGIC_FOREIGN: u32 = 0x0CD5_0CD0;
/// MDT of the server's choice.
pub const LMV_OFFSET_DEFAULT: u32 = u32::MAX;

/// Hash types, low half of `hash_type`.
pub mod hash_type {
    /// Unknown.
    pub const UNKNOWN: u32 = 0;
    /// Sum of bytes.
    pub const ALL_CHARS: u32 = 1;
    /// FNV-1a, 64 bits.
    pub const FNV_1A_64: u32 = 2;
    /// Placement groups and straws.
    pub const CRUSH: u32 = 3;
    /// The same with a better notion of temporary names.
    pub const CRUSH2: u32 = 4;
    /// Bits of the type.
    pub const MASK: u32 = 0xffff;
}

/// Flags, upper part of `hash_type`.
pub mod hash_flag {
    /// Several stripes on one MDT.
    pub const OVERSTRIPED: u32 = 0x0100_0000;
    /// Not to be split automatically.
    pub const FIXED: u32 = 0x0200_0000;
    /// Being merged.
    pub const MERGE: u32 = 0x0400_0000;
    /// Being split.
    pub const SPLIT: u32 = 0x0800_0000;
    /// The attribute was lost.
    pub const LOST_LMV: u32 = 0x1000_0000;
    /// Unknown type.
    pub const BAD_TYPE: u32 = 0x2000_0000;
    /// Being migrated.
    pub const MIGRATION: u32 = 0x8000_0000;
    /// Any of the three changes.
    pub const LAYOUT_CHANGE: u32 = MIGRATION | SPLIT | MERGE;
}

/// How far a default is handed down: values of `max_inherit` and `max_inherit_rr`.
pub mod inherit {
    /// `max_inherit`: without end.
    pub const UNLIMITED: u8 = 0;
    /// `max_inherit`: not at all.
    pub const NONE: u8 = 255;
    /// `max_inherit_rr`: directories are not made round robin.
    pub const RR_NONE: u8 = 0;
    /// `max_inherit_rr`: without end.
    pub const RR_UNLIMITED: u8 = 255;
    /// Most levels of both; more are none.
    pub const MAX: u8 = 250;
    /// `max_inherit_rr` of a new file system's root.
    pub const RR_ROOT: u8 = 3;
}

wire_struct! {
    /// `lmv_mds_md_v1` without its stripes.
    #[derive(Eq)]
    pub struct LmvMdHead : 56 {
        0 magic: u32,
        4 stripe_count: u32,
        /// Of the directory: index of its master MDT; of a shard: its own number.
        8 master_mdt_index: u32,
        /// See [`hash_type`] and [`hash_flag`].
        12 hash_type: u32,
        16 layout_version: u32,
        20 migrate_offset: u32,
        24 migrate_hash: u32,
        28 padding2: u32,
        32 padding3: u64,
        40 pool_name: [u8; 16],
    }
}

/// The attribute of a striped directory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LmvMd {
    /// The fixed part.
    pub head: LmvMdHead,
    /// FIDs of the shards present.
    pub stripe_fids: Vec<Fid>,
    /// Bytes behind them, as received.
    pub tail: Bytes,
}

wire_struct! {
    /// `lmv_user_md_v1` without its list.
    #[derive(Eq)]
    pub struct LmvUserMdHead : 48 {
        0 magic: u32,
        4 stripe_count: u32,
        /// MDT, [`LMV_OFFSET_DEFAULT`] for any.
        8 stripe_offset: u32,
        12 hash_type: u32,
        16 r#type: u32,
        20 max_inherit: u8,
        21 max_inherit_rr: u8,
        22 padding1: u16,
        24 padding2: u32,
        28 padding3: u32,
        32 pool_name: [u8; 16],
    }
}

wire_struct! {
    /// `lmv_user_mds_data`.
    #[derive(Eq)]
    pub struct LmvUserMdsData : 24 {
        0 fid: Fid,
        16 padding: u32,
        20 mds: u32,
    }
}

/// A user's request for a striped or remote directory, or a directory's default.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LmvUserMd {
    /// The fixed part.
    pub head: LmvUserMdHead,
    /// MDTs, for the form that lists them.
    pub objects: Vec<LmvUserMdsData>,
    /// Bytes behind them, as received.
    pub tail: Bytes,
}

/// Splits `count` structures of `T` (or as many as there are) off `buf` from `at`.
fn take_array<T: Wire>(buf: &Bytes, at: usize, count: usize) -> (Vec<T>, Bytes) {
    let n = count.min((buf.len() - at) / size_of::<T>());
    let end = at + n * size_of::<T>();
    (crate::raw::decode_all(&buf[at..end]), buf.slice(end..))
}

impl LmvMd {
    /// Reads the attribute of a directory or shard.
    pub fn decode(buf: &Bytes) -> Result<LmvMd, DecodeError> {
        let head = LmvMdHead::decode(buf)?;
        if head.magic != LMV_MAGIC_V1 && head.magic != LMV_MAGIC_STRIPE {
            return Err(DecodeError::Magic {
                what: "LmvMd",
                got: head.magic as u64,
            });
        }
        let (stripe_fids, tail) =
            take_array(buf, size_of::<LmvMdHead>(), head.stripe_count as usize);
        Ok(LmvMd {
            head,
            stripe_fids,
            tail,
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut v = self.head.as_bytes().to_vec();
        v.extend_from_slice(self.stripe_fids.as_bytes());
        v.extend_from_slice(&self.tail);
        v.into()
    }

    /// The shard of a name in the new layout (or the only one). `None` for an unknown hash type: search all.
    pub fn shard_of(&self, name: &[u8]) -> Option<usize> {
        self.shard_by(name, true)
    }

    /// The shard where the name lay before a change under way.
    pub fn old_shard_of(&self, name: &[u8]) -> Option<usize> {
        self.shard_by(name, false)
    }

    /// `__lmv_name_to_stripe_index`.
    fn shard_by(&self, name: &[u8], new: bool) -> Option<usize> {
        let h = &self.head;
        let (mut ty, mut count, mut base) = (h.hash_type, h.stripe_count, 0);
        const SPLITTING: u32 = hash_flag::SPLIT | hash_flag::MIGRATION;
        const MERGING: u32 = hash_flag::MERGE | hash_flag::MIGRATION;
        match (h.hash_type & hash_flag::LAYOUT_CHANGE, new) {
            (SPLITTING, false) | (MERGING, true) => {
                (ty, count) = (h.migrate_hash, h.migrate_offset)
            }
            (hash_flag::MIGRATION, true) => count = h.migrate_offset,
            (hash_flag::MIGRATION, false) => {
                (ty, count, base) = (
                    h.migrate_hash,
                    count.saturating_sub(h.migrate_offset),
                    h.migrate_offset,
                );
            }
            _ => {}
        }
        Some(name_to_shard(ty, count, name)? + base as usize)
    }
}

impl LmvUserMdHead {
    /// What a subdirectory inherits of this default (`lmv_inherit_next`, `lmv_inherit_rr_next`); `None`: nothing.
    pub fn next(&self) -> Option<LmvUserMdHead> {
        let max_inherit = match self.max_inherit {
            inherit::UNLIMITED => inherit::UNLIMITED,
            n @ 2..=inherit::MAX => n - 1,
            _ => return None,
        };
        let max_inherit_rr = match self.max_inherit_rr {
            n @ (inherit::RR_NONE | inherit::RR_UNLIMITED) => n,
            n @ 2..=inherit::MAX => n - 1,
            _ => inherit::RR_NONE,
        };
        Some(LmvUserMdHead {
            max_inherit,
            max_inherit_rr,
            ..*self
        })
    }

    /// What is left of this default so many levels further down; `None`: nothing.
    pub fn below(&self, levels: usize) -> Option<LmvUserMdHead> {
        match self.max_inherit {
            // an endless one is the same from some level on
            inherit::UNLIMITED => {
                (0..levels.min(inherit::MAX as usize)).try_fold(*self, |d, _| d.next())
            }
            _ => (0..levels).try_fold(*self, |d, _| d.next()),
        }
    }
}

impl LmvUserMd {
    /// The default of the root of a new file system: directories near the root go round robin, others by space
    /// (`mdd_prepare` in `lustre/mdd/mdd_device.c`).
    pub fn of_new_root() -> LmvUserMd {
        let mut all = LmvUserMd::request(1, LMV_OFFSET_DEFAULT, hash_type::UNKNOWN);
        all.head.max_inherit = inherit::UNLIMITED;
        all.head.max_inherit_rr = inherit::RR_ROOT;
        all
    }

    /// A request: `count` shards, MDT index or [`LMV_OFFSET_DEFAULT`], hash type.
    pub fn request(count: u32, offset: u32, hash_type: u32) -> LmvUserMd {
        LmvUserMd {
            head: LmvUserMdHead {
                magic: LMV_USER_MAGIC,
                stripe_count: count,
                stripe_offset: offset,
                hash_type,
                ..Default::default()
            },
            ..Default::default()
        }
    }

    /// Reads a request or default.
    pub fn decode(buf: &Bytes) -> Result<LmvUserMd, DecodeError> {
        let head = LmvUserMdHead::decode(buf)?;
        let listed = match head.magic {
            LMV_USER_MAGIC => 0,
            LMV_MAGIC_STRIPE => head.stripe_count as usize,
            m => {
                return Err(DecodeError::Magic {
                    what: "LmvUserMd",
                    got: m as u64,
                });
            }
        };
        let (objects, tail) = take_array(buf, size_of::<LmvUserMdHead>(), listed);
        Ok(LmvUserMd {
            head,
            objects,
            tail,
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut v = self.head.as_bytes().to_vec();
        v.extend_from_slice(self.objects.as_bytes());
        v.extend_from_slice(&self.tail);
        v.into()
    }
}

/// FNV-1a over 64 bits (`lustre_hash_fnv_1a_64`).
pub fn fnv_1a_64(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ *b as u64).wrapping_mul(0x100_0000_01b3)
    })
}

/// Shard of `name` among `count`; `None` for an unknown type.
pub fn name_to_shard(ty: u32, count: u32, name: &[u8]) -> Option<usize> {
    if count <= 1 {
        return Some(0);
    }
    Some(match ty & hash_type::MASK {
        hash_type::ALL_CHARS => {
            name.iter().fold(0u32, |s, b| s.wrapping_add(*b as u32)) as usize % count as usize
        }
        hash_type::FNV_1A_64 => (fnv_1a_64(name) % count as u64) as usize,
        hash_type::CRUSH => crush(count, name, false),
        hash_type::CRUSH2 => crush(count, name, true),
        _ => return None,
    })
}

/// Placement groups of the crush hashes.
const CRUSH_PG_COUNT: u64 = 4096;

fn crush(count: u32, name: &[u8], crush2: bool) -> usize {
    let pg = (fnv_1a_64(base_name(name, crush2)) % CRUSH_PG_COUNT) as u32;
    let mut best = (0, 0);
    for i in 0..count {
        let straw = crush_hash(pg, i);
        if straw > best.0 {
            best = (straw, i as usize);
        }
    }
    best.1
}

/// The name that temporary and backup files hash as: the file they will become or were.
fn base_name(name: &[u8], crush2: bool) -> &[u8] {
    if is_temp(name, true, 6, crush2) {
        &name[1..name.len() - 7]
    } else if is_temp(name, false, 8, crush2) {
        &name[..name.len() - 9]
    } else {
        &name[..name.len() - backup_suffix(name)]
    }
}

/// `lu_name_is_temp_file`: `[.]name.XXXXXX` with a suffix like mktemp's.
fn is_temp(name: &[u8], dot: bool, suffix: usize, crush2: bool) -> bool {
    let n = name.len();
    if n < dot as usize + suffix + 2 || (dot && name[0] != b'.') || name[n - suffix - 1] != b'.' {
        return false;
    }
    let s = &name[n - suffix..];
    if crush2 && s.iter().any(|b| !b.is_ascii_alphanumeric()) {
        return false;
    }
    let count = |f: fn(&u8) -> bool| s.iter().filter(|b| f(b)).count();
    let (lower, upper, digit) = (
        count(u8::is_ascii_lowercase),
        count(u8::is_ascii_uppercase),
        count(u8::is_ascii_digit),
    );
    if upper == suffix || lower == suffix {
        return false;
    }
    // crush2 refuses number-like suffixes that begin with a digit, the old one those that do not
    !(digit >= suffix - 1 && s[0].is_ascii_digit() == crush2)
}

/// Bytes of a backup suffix (`lu_name_is_backup_file`): `~`, `.bak`, `.sav`, `.orig`.
fn backup_suffix(name: &[u8]) -> usize {
    let n = name.len();
    let ends = |s: &str| n > s.len() && name[n - s.len()..].eq_ignore_ascii_case(s.as_bytes());
    if n > 1 && name[n - 2] != b'.' && name[n - 1] == b'~' {
        1
    } else if ends(".bak") || ends(".sav") {
        4
    } else if ends(".orig") {
        5
    } else {
        0
    }
}

/// Jenkins' mix of three words, as CRUSH seeds and orders it.
fn crush_hash(a: u32, b: u32) -> u32 {
    let (mut a, mut b) = (a, b);
    let (mut x, mut y) = (231232u32, 1232u32);
    let mut hash = 1315423911 ^ a ^ b;
    mix(&mut a, &mut b, &mut hash);
    mix(&mut x, &mut a, &mut hash);
    mix(&mut b, &mut y, &mut hash);
    hash
}

fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
    let sub = |p: &mut u32, q: u32, r: u32| *p = p.wrapping_sub(q).wrapping_sub(r);
    for (s1, s2, s3) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
        sub(a, *b, *c);
        *a ^= *c >> s1;
        sub(b, *c, *a);
        *b ^= *a << s2;
        sub(c, *a, *b);
        *c ^= *b >> s3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fnv_reference_values() {
        // from the FNV authors' test vectors
        assert_eq!(fnv_1a_64(b""), 0xcbf29ce484222325);
        assert_eq!(fnv_1a_64(b"a"), 0xaf63dc4c8601ec8c);
        assert_eq!(fnv_1a_64(b"foobar"), 0x85944171f73967e8);
    }

    /// Where a stock client (2.17.57) put names in directories striped over two MDTs.
    #[test]
    fn names_are_where_the_kernel_client_puts_them() {
        let recorded: [(u32, &[&str], &[&str]); 4] = [
            (
                hash_type::ALL_CHARS,
                &[
                    "Da1",
                    "Ddata.bak",
                    "Dlong_name_with_many_chars_all_char",
                    "Dout~",
                    "data.bak",
                    "long_name_with_many_chars_all_char",
                    "out~",
                ],
                &[".tmpf.Ab3xY9", "D.tmpf.Ab3xY9"],
            ),
            (
                hash_type::FNV_1A_64,
                &[".tmpf.Ab3xY9", "D.tmpf.Ab3xY9"],
                &[
                    "Da1",
                    "Ddata.bak",
                    "Dlong_name_with_many_chars_fnv_1a_64",
                    "Dout~",
                    "data.bak",
                    "long_name_with_many_chars_fnv_1a_64",
                    "out~",
                ],
            ),
            (
                hash_type::CRUSH,
                &[
                    ".tmpf.Ab3xY9",
                    "D.tmpf.Ab3xY9",
                    "Ddata.bak",
                    "Dlong_name_with_many_chars_crush",
                    "data.bak",
                    "long_name_with_many_chars_crush",
                    "out~",
                ],
                &["Da1", "Dout~"],
            ),
            (
                hash_type::CRUSH2,
                &[
                    ".tmpf.Ab3xY9",
                    "D.tmpf.Ab3xY9",
                    "Ddata.bak",
                    "data.bak",
                    "long_name_with_many_chars_crush2",
                    "out~",
                ],
                &["Da1", "Dlong_name_with_many_chars_crush2", "Dout~"],
            ),
        ];
        for (ty, first, second) in recorded {
            for (shard, names) in [first, second].into_iter().enumerate() {
                for name in names {
                    assert_eq!(
                        name_to_shard(ty, 2, name.as_bytes()),
                        Some(shard),
                        "{name}, hash type {ty}"
                    );
                }
            }
        }
    }

    #[test]
    fn temporary_names_hash_as_what_they_become() {
        for ty in [hash_type::CRUSH, hash_type::CRUSH2] {
            for (temp, base) in [
                (".data.Ab3xY9", "data"),
                ("data.Ab3xY9Zq", "data"),
                ("data.bak", "data"),
                ("data~", "data"),
                ("data.ORIG", "data"),
            ] {
                assert_eq!(
                    base_name(temp.as_bytes(), ty == hash_type::CRUSH2),
                    base.as_bytes(),
                    "{temp}"
                );
                assert_eq!(
                    name_to_shard(ty, 7, temp.as_bytes()),
                    name_to_shard(ty, 7, base.as_bytes())
                );
            }
        }
        // the difference between the two: numbers and dots in the suffix
        assert_eq!(base_name(b"out.12345678", true), b"out.12345678");
        assert_eq!(base_name(b"out.12345678", false), b"out");
        assert_eq!(base_name(b"a.mdtest.12.1", true), b"a.mdtest.12.1");
    }

    proptest! {
        #[test]
        fn shards_are_in_range(name in proptest::collection::vec(any::<u8>(), 1..40), count in 1u32..200, ty in 0u32..6) {
            match name_to_shard(ty, count, &name) {
                Some(i) => prop_assert!(i < count as usize),
                None => prop_assert!(count > 1 && !(1..=4).contains(&ty)),
            }
        }

        #[test]
        fn decode_is_lossless_or_refuses(mut raw in proptest::collection::vec(any::<u8>(), 0..200), magic in 0usize..4) {
            let magics = [LMV_MAGIC_V1, LMV_USER_MAGIC, LMV_MAGIC_STRIPE, 9];
            if raw.len() >= 4 {
                raw[..4].copy_from_slice(&magics[magic].to_le_bytes());
            }
            let raw = Bytes::from(raw);
            if let Ok(l) = LmvMd::decode(&raw) {
                prop_assert_eq!(l.encode(), raw.clone());
                let _ = (l.shard_of(b"x"), l.old_shard_of(b"x"));
            }
            if let Ok(l) = LmvUserMd::decode(&raw) {
                prop_assert_eq!(l.encode(), raw);
            }
        }
    }
}
