//! The inode record: everything an MDT keeps of one object, in one value.
//!
//! Small things lie inside (layout, symlink target, first links, small extended attributes), so
//! that a getattr is one read and a create one write; what grows without bound lies in tables of
//! its own ([`super::table::LINK`], [`super::table::XATTR`]).
//!
//! Invariants: the first byte is the format version; a record that does not parse to its last byte
//! is corrupt. Lustre has the same in an ldiskfs inode and its EAs (`lustre/mdd/mdd_object.c`).

use bytes::Bytes;
use coral_osd::Time;
use coral_wire::fid::Fid;

/// Version of the record's format.
const VERSION: u8 = 2;
/// The one before: without `transno`.
const VERSION_1: u8 = 1;
/// Links kept in the record; further ones go to the table `link`.
pub const LINKS_INLINE: usize = 8;
/// Largest extended attribute value kept in the record, in bytes.
pub const XATTR_INLINE_BYTES: usize = 512;
/// Most bytes of extended attribute values kept in one record.
pub const XATTR_INLINE_TOTAL_BYTES: usize = 2048;

/// File type bits of a mode.
pub const S_IFMT: u32 = 0o170000;
/// A directory.
pub const S_IFDIR: u32 = 0o040000;
/// A regular file.
pub const S_IFREG: u32 = 0o100000;
/// A symbolic link.
pub const S_IFLNK: u32 = 0o120000;

/// One name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The directory the name is in.
    pub parent: Fid,
    /// The name.
    pub name: Bytes,
}

/// Where the value of an extended attribute is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrValue {
    /// In the record.
    Inline(Bytes),
    /// In the table `xattr`; the length in bytes.
    External(u32),
}

/// What an MDT knows of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names (directories: 2 and one for each directory within).
    pub nlink: u32,
    /// `LUSTRE_*_FL` attribute flags (immutable 0x10, append 0x20).
    pub flags: u32,
    /// Project.
    pub projid: u32,
    /// Device number of a device node, as the wire has it.
    pub rdev: u32,
    /// Bytes: of a file without objects the truth, of a striped one what closes told us.
    pub size: u64,
    /// Space in 512-byte blocks, likewise.
    pub blocks: u64,
    /// Number of changes so far.
    pub version: u64,
    /// Number of the transaction that made its version for recovery ([`super::version`]); 0: made before these were kept.
    pub transno: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Layout EA of a file, default layout of a directory; empty if there is none.
    pub lov: Bytes,
    /// Target of a symbolic link.
    pub symlink: Bytes,
    /// Names, the first [`LINKS_INLINE`].
    pub links: Vec<Link>,
    /// Extended attributes but those kept in fields above.
    pub xattrs: Vec<(Bytes, XattrValue)>,
}

/// A record that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Written by a newer Coral.
    #[error("inode record has format {0}, this program knows {VERSION}")]
    Version(u8),
    /// Shorter or longer than its parts say.
    #[error("inode record is torn")]
    Torn,
}

impl Inode {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_reg(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & S_IFMT == S_IFLNK
    }

    /// The entry of `name` among the extended attributes.
    pub fn xattr(&self, name: &[u8]) -> Option<&XattrValue> {
        self.xattrs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// The value of `name` if it lies in the record.
    pub fn xattr_inline(&self, name: &[u8]) -> Option<&Bytes> {
        match self.xattr(name) {
            Some(XattrValue::Inline(v)) => Some(v),
            _ => None,
        }
    }

    /// The record as bytes.
    pub fn encode(&self) -> Bytes {
        let mut w = Vec::with_capacity(192 + self.lov.len() + self.symlink.len());
        w.push(VERSION);
        for v in [
            self.mode,
            self.uid,
            self.gid,
            self.nlink,
            self.flags,
            self.projid,
            self.rdev,
        ] {
            w.extend_from_slice(&v.to_le_bytes());
        }
        for v in [self.size, self.blocks, self.version, self.transno] {
            w.extend_from_slice(&v.to_le_bytes());
        }
        for t in [self.atime, self.mtime, self.ctime, self.btime] {
            w.extend_from_slice(&t.secs.to_le_bytes());
            w.extend_from_slice(&t.nsecs.to_le_bytes());
        }
        put(&mut w, &self.lov);
        put(&mut w, &self.symlink);
        w.extend_from_slice(&(self.links.len() as u32).to_le_bytes());
        for l in &self.links {
            w.extend_from_slice(&super::table::fid_key(&l.parent));
            put(&mut w, &l.name);
        }
        w.extend_from_slice(&(self.xattrs.len() as u32).to_le_bytes());
        for (name, value) in &self.xattrs {
            put(&mut w, name);
            match value {
                XattrValue::Inline(v) => {
                    w.push(0);
                    put(&mut w, v);
                }
                XattrValue::External(len) => {
                    w.push(1);
                    w.extend_from_slice(&len.to_le_bytes());
                }
            }
        }
        let raw = Bytes::from(w);
        debug_assert_eq!(Inode::decode(&raw).as_ref(), Ok(self));
        raw
    }

    /// A record read back; parts share `raw`'s memory.
    pub fn decode(raw: &Bytes) -> Result<Inode, RecordError> {
        let mut r = Reader { raw, at: 0 };
        let mut ino = Inode::read_fields(&mut r)?;
        ino.read_lists(&mut r)?;
        match r.at == raw.len() {
            true => Ok(ino),
            false => Err(RecordError::Torn),
        }
    }

    /// What can be read of a torn record: the object without some of its names and extended attributes. `None`: not even its
    /// type, owner and layout can.
    pub fn salvage(raw: &Bytes) -> Option<Inode> {
        let mut r = Reader { raw, at: 0 };
        let mut ino = Inode::read_fields(&mut r).ok()?;
        let known = [
            S_IFDIR, S_IFREG, S_IFLNK, 0o010000, 0o020000, 0o060000, 0o140000,
        ];
        if !known.contains(&(ino.mode & S_IFMT)) {
            return None;
        }
        // as far as it goes
        let _ = ino.read_lists(&mut r);
        Some(ino)
    }

    /// Everything before the lists.
    fn read_fields(r: &mut Reader<'_>) -> Result<Inode, RecordError> {
        let format = r.u8()?;
        if !(VERSION_1..=VERSION).contains(&format) {
            return Err(RecordError::Version(format));
        }
        Ok(Inode {
            mode: r.u32()?,
            uid: r.u32()?,
            gid: r.u32()?,
            nlink: r.u32()?,
            flags: r.u32()?,
            projid: r.u32()?,
            rdev: r.u32()?,
            size: r.u64()?,
            blocks: r.u64()?,
            version: r.u64()?,
            transno: if format == VERSION_1 { 0 } else { r.u64()? },
            atime: r.time()?,
            mtime: r.time()?,
            ctime: r.time()?,
            btime: r.time()?,
            lov: r.bytes()?,
            symlink: r.bytes()?,
            links: Vec::new(),
            xattrs: Vec::new(),
        })
    }

    fn read_lists(&mut self, r: &mut Reader<'_>) -> Result<(), RecordError> {
        for _ in 0..r.u32()? {
            let parent = super::table::fid_of_key(r.take(16)?).ok_or(RecordError::Torn)?;
            let name = r.bytes()?;
            self.links.push(Link { parent, name });
        }
        for _ in 0..r.u32()? {
            let name = r.bytes()?;
            let value = match r.u8()? {
                0 => XattrValue::Inline(r.bytes()?),
                1 => XattrValue::External(r.u32()?),
                _ => return Err(RecordError::Torn),
            };
            self.xattrs.push((name, value));
        }
        Ok(())
    }
}

fn put(w: &mut Vec<u8>, b: &[u8]) {
    w.extend_from_slice(&(b.len() as u32).to_le_bytes());
    w.extend_from_slice(b);
}

struct Reader<'a> {
    raw: &'a Bytes,
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], RecordError> {
        let end = self.at.checked_add(n).ok_or(RecordError::Torn)?;
        let s = self.raw.get(self.at..end).ok_or(RecordError::Torn)?;
        self.at = end;
        Ok(s)
    }
    fn u8(&mut self) -> Result<u8, RecordError> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32, RecordError> {
        Ok(u32::from_le_bytes(
            self.take(4)?.try_into().map_err(|_| RecordError::Torn)?,
        ))
    }
    fn u64(&mut self) -> Result<u64, RecordError> {
        Ok(u64::from_le_bytes(
            self.take(8)?.try_into().map_err(|_| RecordError::Torn)?,
        ))
    }
    fn time(&mut self) -> Result<Time, RecordError> {
        Ok(Time {
            secs: self.u64()? as i64,
            nsecs: self.u32()?,
        })
    }
    fn bytes(&mut self) -> Result<Bytes, RecordError> {
        let n = self.u32()? as usize;
        let from = self.at;
        self.take(n)?;
        Ok(self.raw.slice(from..from + n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Inode {
        Inode {
            mode: S_IFREG | 0o644,
            nlink: 2,
            size: 77,
            version: 5,
            transno: 1 << 33,
            mtime: Time { secs: -5, nsecs: 9 },
            lov: Bytes::from_static(b"layout"),
            links: vec![Link {
                parent: Fid::ROOT,
                name: Bytes::from_static(b"a"),
            }],
            xattrs: vec![
                (
                    Bytes::from_static(b"user.a"),
                    XattrValue::Inline(Bytes::from_static(b"1")),
                ),
                (Bytes::from_static(b"user.b"), XattrValue::External(70_000)),
            ],
            ..Inode::default()
        }
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let raw = sample().encode();
        assert_eq!(Inode::decode(&raw), Ok(sample()));
    }

    #[test]
    fn a_record_of_the_first_format_is_read() {
        let raw = sample().encode();
        let at = 1 + 7 * 4 + 3 * 8;
        let old = [&[VERSION_1], &raw[1..at], &raw[at + 8..]].concat();
        assert_eq!(
            Inode::decode(&old.into()),
            Ok(Inode {
                transno: 0,
                ..sample()
            })
        );
    }

    #[test]
    fn every_cut_and_every_longer_record_is_refused() {
        let raw = sample().encode();
        for n in 0..raw.len() {
            assert!(Inode::decode(&raw.slice(..n)).is_err(), "cut at {n}");
        }
        let mut longer = raw.to_vec();
        longer.push(0);
        assert_eq!(Inode::decode(&longer.into()), Err(RecordError::Torn));
        let mut newer = raw.to_vec();
        newer[0] = 9;
        assert_eq!(Inode::decode(&newer.into()), Err(RecordError::Version(9)));
    }
}
