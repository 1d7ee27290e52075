//! The MDT's tables and the keys in them.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `inode` | FID (16 B big-endian) | [`super::record::Inode`] |
//! | `dirent` | parent FID, name hash (8 B), name | child FID, type (18 B) |
//! | `link` | child FID, parent FID, name | empty: the links that do not fit the inode record |
//! | `xattr` | FID, name | the values that do not fit the inode record |
//! | `orphan` | FID | empty: nlink 0 and still open somewhere |
//! | `destroy` | OST index (4 B), object id (8 B); or 4 B of ones, FID | OST objects, and data on this MDT, nobody refers to any more: so many from that id on (4 B little-endian), or empty for one |
//! | `owner` | OST index, object id | FID: objects whose OST is to be told the owner of their file |
//! | `usage` | uid, gid, project (4 B each) | inodes and bytes of that owner (8 B each) |
//! | `meta` | name | allocators, defaults, format version |
//! | `fld` | first sequence (8 B) | the one after the last (8 B little-endian), index of the MDT (4 B) |
//! | `prepared` | operation over several MDTs ([`OpId`](coral_wire::coral::updates::OpId)) | changes made here when its coordinator has decided |
//! | `decided` | operation that this MDT coordinates | indices of MDTs that have not made their part yet (4 B each) |
//! | `restripe` | FID of a directory that is split or merged | empty: its names have yet to move ([`super::restripe`]) |
//! | `aside` | name of a table, NUL, a key of it | the row that a repair took out of that table ([`super::repair`]) |
//!
//! Invariant: keys are big-endian, so that the order of keys is the order of numbers: a directory
//! in hash order is one range. Lustre keeps the same things in an ldiskfs directory, the object
//! index and EAs (`lustre/osd-ldiskfs/osd_oi.c`, `osd_handler.c`).

use bytes::Bytes;
use coral_osd::Table;
use coral_wire::fid::Fid;

/// Inode records by FID.
pub const INODE: Table = Table("mdt_inode");
/// Directory entries in hash order.
pub const DIRENT: Table = Table("mdt_dirent");
/// Links beyond those in the inode record.
pub const LINK: Table = Table("mdt_link");
/// Large extended attributes.
pub const XATTR: Table = Table("mdt_xattr");
/// Open files without a name.
pub const ORPHAN: Table = Table("mdt_orphan");
/// OST objects to destroy.
pub const DESTROY: Table = Table("mdt_destroy");
/// OST objects whose owner is to be told.
pub const OWNER: Table = Table("mdt_owner");
/// What owners have in use.
pub const USAGE: Table = Table("mdt_usage");
/// Allocators and defaults.
pub const META: Table = Table("mdt_meta");
/// Where sequences are.
pub const FLD: Table = Table("mdt_fld");
/// Parts of operations that other MDTs coordinate.
pub const PREPARED: Table = Table("mdt_prepared");
/// Operations that were decided here.
pub const DECIDED: Table = Table("mdt_decided");

/// Striped directories whose names are on their way to other shards.
pub const RESTRIPE: Table = Table("mdt_restripe");
/// Rows that a repair took out of other tables.
pub const ASIDE: Table = Table("mdt_aside");

/// Every table of an MDT, for who must create them beforehand.
pub const ALL: [Table; 14] = [
    INODE, DIRENT, LINK, XATTR, ORPHAN, DESTROY, OWNER, USAGE, META, FLD, PREPARED, DECIDED,
    RESTRIPE, ASIDE,
];

/// First hash an entry may have: 0 to 2 stand for the start, `.` and `..`.
pub const HASH_FIRST: u64 = 3;
/// First hash no entry has. Hashes stay within 63 bits: they are file offsets of readdir.
pub const HASH_LIMIT: u64 = 0x7fff_ffff_ffff_ff00;
/// Hash of `.`.
pub const HASH_DOT: u64 = 1;
/// Hash of `..`.
pub const HASH_DOTDOT: u64 = 2;

/// A FID as 16 big-endian bytes.
pub fn fid_key(fid: &Fid) -> [u8; 16] {
    let mut k = [0; 16];
    k[..8].copy_from_slice(&fid.seq.to_be_bytes());
    k[8..12].copy_from_slice(&fid.oid.to_be_bytes());
    k[12..].copy_from_slice(&fid.ver.to_be_bytes());
    k
}

/// The FID at the head of a key, if the key is long enough.
pub fn fid_of_key(key: &[u8]) -> Option<Fid> {
    Some(Fid {
        seq: u64::from_be_bytes(key.get(..8)?.try_into().ok()?),
        oid: u32::from_be_bytes(key.get(8..12)?.try_into().ok()?),
        ver: u32::from_be_bytes(key.get(12..16)?.try_into().ok()?),
    })
}

/// Position of `name` in readdir: FNV-1a with a final mix, within `HASH_FIRST..HASH_LIMIT`.
pub fn name_hash(name: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for &b in name {
        h = (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    }
    h ^= h >> 32;
    h = h.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^= h >> 29;
    HASH_FIRST + (h >> 1) % (HASH_LIMIT - HASH_FIRST)
}

/// Key of the entry `name` with hash `hash` in `parent`.
pub fn dirent_key(parent: &Fid, hash: u64, name: &[u8]) -> Bytes {
    let mut k = Vec::with_capacity(24 + name.len());
    k.extend_from_slice(&fid_key(parent));
    k.extend_from_slice(&hash.to_be_bytes());
    k.extend_from_slice(name);
    let k = Bytes::from(k);
    debug_assert!(
        dirent_of_key(&k).is_some_and(|(p, h, n)| p == *parent && h == hash && n == name)
    );
    k
}

/// Parent, hash and name of an entry's key.
pub fn dirent_of_key(key: &Bytes) -> Option<(Fid, u64, Bytes)> {
    let parent = fid_of_key(key)?;
    let hash = u64::from_be_bytes(key.get(16..24)?.try_into().ok()?);
    Some((parent, hash, key.slice(24..)))
}

/// Value of an entry: child and the type bits of its mode (`S_IFMT`).
pub fn dirent_value(child: &Fid, mode: u32) -> Bytes {
    let mut v = Vec::with_capacity(18);
    v.extend_from_slice(&fid_key(child));
    v.extend_from_slice(&((mode & 0o170000) as u16).to_be_bytes());
    v.into()
}

/// Child and type bits of an entry's value.
pub fn dirent_of_value(v: &[u8]) -> Option<(Fid, u32)> {
    let ty = u16::from_be_bytes(v.get(16..18)?.try_into().ok()?);
    Some((fid_of_key(v)?, u32::from(ty)))
}

/// Key of a link that lies outside the inode record.
pub fn link_key(child: &Fid, parent: &Fid, name: &[u8]) -> Bytes {
    let mut k = Vec::with_capacity(32 + name.len());
    k.extend_from_slice(&fid_key(child));
    k.extend_from_slice(&fid_key(parent));
    k.extend_from_slice(name);
    k.into()
}

/// Key of an extended attribute that lies outside the inode record.
pub fn xattr_key(fid: &Fid, name: &[u8]) -> Bytes {
    let mut k = Vec::with_capacity(16 + name.len());
    k.extend_from_slice(&fid_key(fid));
    k.extend_from_slice(name);
    k.into()
}

/// Key of an OST object that is to be destroyed, or to be told its owner.
pub fn destroy_key(ost: u32, id: u64) -> Bytes {
    let mut k = Vec::with_capacity(12);
    k.extend_from_slice(&ost.to_be_bytes());
    k.extend_from_slice(&id.to_be_bytes());
    debug_assert_eq!(destroy_of_key(&k), Some((ost, id)));
    k.into()
}

/// OST index and object id of a destroy key; `None`: of data on the MDT.
pub fn destroy_of_key(key: &[u8]) -> Option<(u32, u64)> {
    if key.len() != 12 {
        return None;
    }
    let ost = u32::from_be_bytes(key.get(..4)?.try_into().ok()?);
    Some((ost, u64::from_be_bytes(key.get(4..12)?.try_into().ok()?)))
}

/// Value of a destroy row for `count` objects with consecutive ids.
pub fn destroy_count(count: u32) -> Bytes {
    if count == 1 {
        Bytes::new()
    } else {
        count.to_le_bytes().to_vec().into()
    }
}

/// The count of such a value.
pub fn destroy_count_of(value: &[u8]) -> u32 {
    value.try_into().map_or(1, u32::from_le_bytes)
}

/// What destroy keys of data on the MDT begin with: no OST has that index.
pub const DATA_PREFIX: [u8; 4] = [0xff; 4];

/// Key of data on the MDT that is to be destroyed.
pub fn data_key(fid: &Fid) -> Bytes {
    [&DATA_PREFIX[..], &fid_key(fid)[..]].concat().into()
}

/// The file of such a key.
pub fn data_of_key(key: &[u8]) -> Option<Fid> {
    fid_of_key(key.strip_prefix(&DATA_PREFIX)?).filter(|_| key.len() == 20)
}

/// Key under which a row of another table is kept aside.
pub fn aside_key(t: Table, key: &[u8]) -> Vec<u8> {
    [t.0.as_bytes(), b"\0", key].concat()
}

/// The least key greater than every key that begins with `prefix`; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_back_to_what_they_were_made_of() {
        let f = Fid {
            seq: 0x2_0000_0400,
            oid: 7,
            ver: 1,
        };
        let k = dirent_key(&f, 42, b"name");
        assert_eq!(
            dirent_of_key(&k),
            Some((f, 42, Bytes::from_static(b"name")))
        );
        assert_eq!(
            dirent_of_value(&dirent_value(&f, 0o100644)),
            Some((f, 0o100000))
        );
        assert_eq!(destroy_of_key(&destroy_key(3, 9)), Some((3, 9)));
        assert_eq!(fid_of_key(&k[..15]), None);
    }

    #[test]
    fn hashes_stay_within_offsets() {
        for i in 0..10_000u32 {
            let h = name_hash(format!("file.{i}").as_bytes());
            assert!((HASH_FIRST..HASH_LIMIT).contains(&h));
        }
        assert_eq!(prefix_end(&[1, 0xff]), Some(vec![2]));
        assert_eq!(prefix_end(&[0xff]), None);
    }
}
