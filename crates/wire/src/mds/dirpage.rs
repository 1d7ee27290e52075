//! Directory pages of MDS_READPAGE (`lustre_idl.h`: `lu_dirpage`, `lu_dirent`; `lustre/mdd/mdd_dir.c`, `lustre/obdclass/dt_object.c`).
//!
//! A page of 4096 bytes: head {hash_start, hash_end, flags}, then entries in hash order; the last entry's
//! `reclen` is 0. `hash_end` of a page is where the next one begins, [`MDS_DIR_END_OFF`] at the end of the directory.

use crate::fid::Fid;
use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Bytes of a directory page on the wire, whatever the host's page size.
pub const LU_PAGE_SIZE: usize = 4096;
/// `hash_end` of a directory's last page.
pub const MDS_DIR_END_OFF: u64 = 0xffff_ffff_ffff_fffe;

/// Attributes of an entry (`LUDA_*`): asked for in `MdtBody::mode`, given in the entry.
pub mod luda {
    /// The FID is valid.
    pub const FID: u32 = 0x1;
    /// The type follows the name.
    pub const TYPE: u32 = 0x2;
    /// Hashes are 64 bits wide.
    pub const B64BITHASH: u32 = 0x4;
}

/// Page flags.
const LDF_EMPTY: u32 = 1;
const LDF_COLLIDE: u32 = 2;

wire_struct! {
    /// `lu_dirpage` without its entries.
    #[derive(Eq)]
    pub struct LuDirpage : 24 {
        0 hash_start: u64,
        8 hash_end: u64,
        16 flags: u32,
        20 pad0: u32,
    }
}

wire_struct! {
    /// `lu_dirent` without its name.
    #[derive(Eq)]
    pub struct LuDirent : 32 {
        0 fid: Fid,
        16 hash: u64,
        24 reclen: u16,
        26 namelen: u16,
        28 attrs: u32,
    }
}

/// One entry of a directory page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The object.
    pub fid: Fid,
    /// Position in the directory's hash order.
    pub hash: u64,
    /// `luda` bits.
    pub attrs: u32,
    /// The name, no NUL.
    pub name: Bytes,
    /// `S_IFMT` bits of the mode; 0 when the server did not say.
    pub mode_type: u16,
}

/// Bytes of an entry with a name of `namelen` bytes (`lu_dirent_calc_size`).
pub const fn dirent_size(namelen: usize, attrs: u32) -> usize {
    let n = if attrs & luda::TYPE != 0 {
        ((size_of::<LuDirent>() + namelen + 1 + 1) & !1) + 2
    } else {
        size_of::<LuDirent>() + namelen + 1
    };
    (n + 7) & !7
}

/// Why an entry was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DirPageError {
    /// All pages allowed are full; go on from this hash.
    #[error("pages are full")]
    Full,
    /// A name longer than 255 bytes or empty.
    #[error("a name of {0} bytes does not go into a directory page")]
    Name(usize),
}

/// Writes directory pages: push entries in hash order until full or out of entries, then [`DirPageBuilder::finish`].
#[derive(Debug)]
pub struct DirPageBuilder {
    pages: Vec<u8>,
    max_pages: usize,
    attrs: u32,
    /// Bytes used in the page being filled; 0 when none is open.
    used: usize,
    /// Offset of the last entry in `pages`.
    last_entry: Option<usize>,
    last_hash: u64,
    next_start: u64,
}

impl DirPageBuilder {
    /// At most `max_bytes` (whole pages, one at least) starting at hash `start`; `attrs` are the asked [`luda`] bits.
    pub fn new(start: u64, max_bytes: usize, attrs: u32) -> DirPageBuilder {
        let max_pages = (max_bytes / LU_PAGE_SIZE).clamp(1, 1024);
        DirPageBuilder {
            pages: Vec::new(),
            max_pages,
            attrs,
            used: 0,
            last_entry: None,
            last_hash: 0,
            next_start: start,
        }
    }

    /// Appends an entry. `Full` means: nothing was added, the next request continues with this entry.
    pub fn push(
        &mut self,
        fid: Fid,
        hash: u64,
        name: &[u8],
        mode_type: u32,
    ) -> Result<(), DirPageError> {
        if name.is_empty() || name.len() > 255 {
            return Err(DirPageError::Name(name.len()));
        }
        let size = dirent_size(name.len(), self.attrs);
        if self.used == 0 || self.used + size > LU_PAGE_SIZE {
            if self.pages.len() >= self.max_pages * LU_PAGE_SIZE {
                self.seal(hash);
                self.used = LU_PAGE_SIZE;
                return Err(DirPageError::Full);
            }
            if self.used != 0 {
                self.seal(hash);
            }
            self.open_page();
        }
        self.write_entry(fid, hash, name, mode_type, size);
        Ok(())
    }

    fn open_page(&mut self) {
        let head = LuDirpage {
            hash_start: self.next_start,
            hash_end: MDS_DIR_END_OFF,
            flags: 0,
            pad0: 0,
        };
        self.pages.extend_from_slice(head.as_bytes());
        self.pages
            .resize(self.pages.len() - size_of::<LuDirpage>() + LU_PAGE_SIZE, 0);
        self.used = size_of::<LuDirpage>();
        self.last_entry = None;
    }

    fn write_entry(&mut self, fid: Fid, hash: u64, name: &[u8], mode_type: u32, size: usize) {
        let at = self.pages.len() - LU_PAGE_SIZE + self.used;
        let ent = LuDirent {
            fid,
            hash,
            reclen: size as u16,
            namelen: name.len() as u16,
            attrs: self.attrs,
        };
        let head = size_of::<LuDirent>();
        self.pages[at..at + head].copy_from_slice(ent.as_bytes());
        self.pages[at + head..at + head + name.len()].copy_from_slice(name);
        if self.attrs & luda::TYPE != 0 {
            // behind the name, aligned to 2 from the name's start (`lu_dirent_type_get`)
            let t = at + head + ((name.len() + 1) & !1);
            self.pages[t..t + 2].copy_from_slice(&((mode_type & 0o170000) as u16).to_le_bytes());
        }
        self.last_entry = Some(at);
        self.last_hash = hash;
        self.used += size;
    }

    /// Closes the open page: the next one starts at `hash`.
    fn seal(&mut self, hash: u64) {
        let page = self.pages.len() - LU_PAGE_SIZE;
        self.put_u64(page + 8, hash);
        if self.last_entry.is_some() && self.last_hash == hash {
            let flags = page + 16;
            self.pages[flags] |= LDF_COLLIDE as u8;
        }
        self.end_entries();
        self.next_start = hash;
    }

    fn end_entries(&mut self) {
        if let Some(at) = self.last_entry.take() {
            let reclen = at + core::mem::offset_of!(LuDirent, reclen);
            self.pages[reclen..reclen + 2].fill(0);
        }
    }

    fn put_u64(&mut self, at: usize, v: u64) {
        self.pages[at..at + 8].copy_from_slice(&v.to_le_bytes());
    }

    /// The pages. Call after the directory ended or after `Full`. An empty directory gives one empty page.
    pub fn finish(mut self) -> Bytes {
        if self.used == 0 {
            self.open_page();
            let flags = self.pages.len() - LU_PAGE_SIZE + 16;
            self.pages[flags] |= LDF_EMPTY as u8;
        }
        self.end_entries();
        self.pages.into()
    }
}

/// A parsed page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPages {
    /// Its head.
    pub head: LuDirpage,
    /// Its entries.
    pub entries: Vec<DirEntry>,
    /// The page as received, when bytes that mean nothing (behind a name, behind the last entry) were not zero.
    residue: Option<Bytes>,
}

impl DirPages {
    fn with_residue(head: LuDirpage, entries: Vec<DirEntry>, page: &Bytes) -> DirPages {
        let mut p = DirPages {
            head,
            entries,
            residue: None,
        };
        if p.encode() != *page {
            p.residue = Some(page.clone());
        }
        p
    }

    /// Whether the last entries share the hash the next page begins with.
    pub fn collides(&self) -> bool {
        self.head.flags & LDF_COLLIDE != 0
    }

    /// Whether this is the directory's last page.
    pub fn is_last(&self) -> bool {
        self.head.hash_end == MDS_DIR_END_OFF
    }

    /// The page's bytes as our builder lays them out.
    pub fn encode(&self) -> Bytes {
        let attrs = self.entries.first().map_or(0, |e| e.attrs);
        let mut b = DirPageBuilder::new(self.head.hash_start, LU_PAGE_SIZE, attrs);
        for e in &self.entries {
            b.attrs = e.attrs;
            if b.push(e.fid, e.hash, &e.name, e.mode_type as u32).is_err() {
                break;
            }
        }
        let mut raw = b.finish().to_vec();
        raw[..size_of::<LuDirpage>()].copy_from_slice(self.head.as_bytes());
        self.restore_residue(&mut raw);
        raw.into()
    }

    /// Puts back what stood where nothing means anything.
    fn restore_residue(&self, raw: &mut [u8]) {
        let Some(was) = self.residue.as_ref().filter(|r| r.len() == raw.len()) else {
            return;
        };
        let mut at = size_of::<LuDirpage>();
        for e in &self.entries {
            let name_end = at + size_of::<LuDirent>() + e.name.len();
            let type_at = at + size_of::<LuDirent>() + ((e.name.len() + 1) & !1);
            at += dirent_size(e.name.len(), e.attrs);
            let gap = if e.attrs & luda::TYPE != 0 {
                name_end..type_at
            } else {
                name_end..name_end
            };
            let used = if e.attrs & luda::TYPE != 0 {
                type_at + 2
            } else {
                name_end
            };
            for r in [gap, used..at.min(raw.len())] {
                raw[r.clone()].copy_from_slice(&was[r]);
            }
        }
        raw[at..].copy_from_slice(&was[at..]);
    }
}

/// Parses one page of [`LU_PAGE_SIZE`] bytes.
pub fn parse_page(page: &Bytes) -> Result<DirPages, DecodeError> {
    let head = LuDirpage::decode(page)?;
    let mut entries = Vec::new();
    let mut at = size_of::<LuDirpage>();
    if head.flags & LDF_EMPTY != 0 {
        return Ok(DirPages::with_residue(head, entries, page));
    }
    loop {
        let ent = LuDirent::decode(page.get(at..).unwrap_or(&[]))?;
        let name_at = at + size_of::<LuDirent>();
        let name_len = ent.namelen as usize;
        let bad = |field, got| DecodeError::Length {
            what: "LuDirent",
            field,
            got,
        };
        if name_len == 0 || name_at + name_len > page.len() {
            return Err(bad("namelen", name_len as u64));
        }
        let mode_type = if ent.attrs & luda::TYPE != 0 {
            let t = name_at + ((name_len + 1) & !1);
            let b = page.get(t..t + 2).ok_or(bad("namelen", name_len as u64))?;
            u16::from_le_bytes([b[0], b[1]])
        } else {
            0
        };
        entries.push(DirEntry {
            fid: ent.fid,
            hash: ent.hash,
            attrs: ent.attrs,
            name: page.slice(name_at..name_at + name_len),
            mode_type,
        });
        if ent.reclen == 0 {
            return Ok(DirPages::with_residue(head, entries, page));
        }
        if (ent.reclen as usize) < size_of::<LuDirent>() + name_len || !ent.reclen.is_multiple_of(8)
        {
            return Err(bad("reclen", ent.reclen as u64));
        }
        at += ent.reclen as usize;
    }
}

/// Parses all pages of a readpage answer; gives the entries in order and the hash to go on from
/// ([`MDS_DIR_END_OFF`] at the end).
pub fn readpage_entries(bulk: &Bytes) -> Result<(Vec<DirEntry>, u64), DecodeError> {
    let mut all = Vec::new();
    let mut next = MDS_DIR_END_OFF;
    for start in (0..bulk.len()).step_by(LU_PAGE_SIZE) {
        if bulk.len() - start < LU_PAGE_SIZE {
            return Err(DecodeError::Length {
                what: "LuDirpage",
                field: "bulk size",
                got: bulk.len() as u64,
            });
        }
        let page = parse_page(&bulk.slice(start..start + LU_PAGE_SIZE))?;
        next = page.head.hash_end;
        all.extend(page.entries);
        if next == MDS_DIR_END_OFF {
            break;
        }
    }
    Ok((all, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ATTRS: u32 = luda::FID | luda::TYPE | luda::B64BITHASH;

    #[test]
    fn empty_directory_is_one_empty_page() {
        let b = DirPageBuilder::new(0, 1 << 20, ATTRS).finish();
        assert_eq!(b.len(), LU_PAGE_SIZE);
        assert_eq!(readpage_entries(&b).unwrap(), (vec![], MDS_DIR_END_OFF));
    }

    #[test]
    fn same_hash_across_pages_is_marked() {
        let mut b = DirPageBuilder::new(0, 2 * LU_PAGE_SIZE, ATTRS);
        let name = [b'x'; 200];
        let mut n = 0;
        while b.push(Fid::new(1, n), 77, &name, 0o100000).is_ok() {
            n += 1;
        }
        let raw = b.finish();
        assert_eq!(raw.len(), 2 * LU_PAGE_SIZE);
        for p in 0..2 {
            let page = parse_page(&raw.slice(p * LU_PAGE_SIZE..(p + 1) * LU_PAGE_SIZE)).unwrap();
            assert!(page.collides() && page.head.hash_end == 77);
        }
        assert_eq!(readpage_entries(&raw).unwrap().0.len(), n as usize);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(names in proptest::collection::vec(proptest::collection::vec(1u8..=255, 1..60), 1..300), pages in 1usize..5) {
            let mut b = DirPageBuilder::new(3, pages * LU_PAGE_SIZE, ATTRS);
            let mut fed = 0;
            for (i, n) in names.iter().enumerate() {
                match b.push(Fid::new(9, i as u32), 10 + i as u64, n, 0o040000) {
                    Ok(()) => fed += 1,
                    Err(DirPageError::Full) => break,
                    Err(e) => panic!("{e}"),
                }
            }
            let raw = b.finish();
            prop_assert!(raw.len().is_multiple_of(LU_PAGE_SIZE) && raw.len() <= pages * LU_PAGE_SIZE);
            let (got, next) = readpage_entries(&raw).unwrap();
            prop_assert_eq!(got.len(), fed);
            prop_assert_eq!(next, if fed == names.len() { MDS_DIR_END_OFF } else { 10 + fed as u64 });
            for (i, e) in got.iter().enumerate() {
                prop_assert_eq!(&e.name[..], &names[i][..]);
                prop_assert_eq!((e.hash, e.mode_type), (10 + i as u64, 0o040000));
            }
            for start in (0..raw.len()).step_by(LU_PAGE_SIZE) {
                let page = raw.slice(start..start + LU_PAGE_SIZE);
                prop_assert_eq!(parse_page(&page).unwrap().encode(), page);
            }
        }

        #[test]
        fn never_panics(raw in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = parse_page(&raw.clone().into());
            let _ = readpage_entries(&raw.into());
        }
    }
}
