//! Striped directories: the entries of one directory lie in shards on several MDTs, each a directory object of its own.
//!
//! A name belongs to the shard its hash says. Requests about a name, and what the cache remembers of it, are about the
//! shard, never the master object, in which other clients would not see it. The master has the owner, mode and ACL; size,
//! links and times are those of the shards together.
//! While a directory is split, merged or migrated a name may lie where the old layout or where the new one says: it is looked
//! for in that order, and made where the new one says. With a hash nobody knows every shard is searched, and none is made.
//!
//! Lustre: `lustre/lmv/lmv_obd.c` (`lmv_locate_tgt`, `lmv_create`, `lmv_read_page`, `lmv_merge_attr`), `lmv_intent.c`.

use std::cmp::Ordering;
use std::collections::HashSet;

use coral_wire::fid::Fid;
use coral_wire::layout::{LMV_MAGIC_STRIPE, LMV_MAGIC_V1, LmvMd, hash_flag};
use coral_wire::mds::{DirEntry, md};
use smallvec::SmallVec;

use super::types::Attr;
use crate::error::{Error, Refusal};
use crate::mdc::{Attrs, DirChunk};

/// The layout of a striped directory, if `md` is one.
pub(super) fn striped(md: &bytes::Bytes) -> Option<LmvMd> {
    LmvMd::decode(md)
        .ok()
        .filter(|l| l.head.magic == LMV_MAGIC_V1 && !l.stripe_fids.is_empty())
}

/// `md` is that of a shard, not of a directory somebody can name.
pub(super) fn is_shard(a: &Attrs) -> bool {
    LmvMd::decode(&a.md).is_ok_and(|l| l.head.magic == LMV_MAGIC_STRIPE)
}

/// The object is on another MDT than the name: the reply says its FID and no more.
pub(super) fn elsewhere(a: &Attrs) -> bool {
    a.body.valid & md::MDS != 0
}

/// Shards that may have `name`, in the order to look; the last is where it is made, if it may be made at all.
pub(super) fn shards(lmv: &LmvMd, name: &[u8]) -> Result<SmallVec<[Fid; 2]>, Error> {
    let fid = |i: usize| {
        lmv.stripe_fids
            .get(i)
            .copied()
            .filter(|f| !f.is_zero())
            .ok_or(Error::from(Refusal::ShardLost))
    };
    let Some(new) = lmv
        .shard_of(name)
        .filter(|_| lmv.head.hash_type & hash_flag::BAD_TYPE == 0)
    else {
        return Ok(lmv
            .stripe_fids
            .iter()
            .copied()
            .filter(|f| !f.is_zero())
            .collect());
    };
    let mut out = SmallVec::new();
    if lmv.head.hash_type & hash_flag::LAYOUT_CHANGE != 0
        && let Some(old) = lmv.old_shard_of(name).filter(|o| *o != new)
    {
        out.push(fid(old)?);
    }
    out.push(fid(new)?);
    Ok(out)
}

/// The hash is known, so that names can be made.
pub(super) fn known_hash(lmv: &LmvMd) -> bool {
    lmv.head.hash_type & hash_flag::BAD_TYPE == 0 && lmv.shard_of(b"x").is_some()
}

/// Each shard counts "." and ".." for itself; the directory has them once.
pub(super) fn merge_attrs<'a>(master: &Attr, shards: impl Iterator<Item = &'a Attr>) -> Attr {
    let mut out = Attr {
        size: 0,
        blocks: 0,
        nlink: 2,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        ..*master
    };
    let mut overflow = false;
    for s in shards {
        // 1: too many to count (ldiskfs)
        overflow |= s.nlink == 1;
        out.nlink += s.nlink.saturating_sub(2);
        out.size += s.size;
        out.blocks += s.blocks;
        out.atime = out.atime.max(s.atime);
        out.mtime = out.mtime.max(s.mtime);
        out.ctime = out.ctime.max(s.ctime);
    }
    out.nlink = if overflow { 1 } else { out.nlink };
    out
}

/// Chunks of the shards that began at one hash, in hash order. It ends where the shard ends that was read least far; where
/// all entries have one hash, they are kept though more of it may follow, for there to be progress.
pub(super) fn merge_chunks(chunks: Vec<DirChunk>) -> DirChunk {
    let next = chunks.iter().filter_map(|c| c.next).min();
    let mut entries: Vec<DirEntry> = chunks.into_iter().flat_map(|c| c.entries).collect();
    entries.sort_by(|a, b| a.hash.cmp(&b.hash).then(Ordering::Equal));
    if let Some(end) = next
        && entries.first().is_some_and(|e| e.hash < end)
    {
        entries.retain(|e| e.hash < end);
    }
    DirChunk { entries, next }
}

/// Each name once, as it was read last: one that moved between two reads is in both.
pub(super) fn once_each(mut chunk: DirChunk) -> DirChunk {
    let mut seen = HashSet::new();
    chunk.entries.reverse();
    chunk.entries.retain(|e| {
        let dots = matches!(&e.name[..], b"." | b"..");
        dots || seen.insert(e.name.clone())
    });
    chunk.entries.reverse();
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timespec;
    use bytes::Bytes;
    use coral_wire::layout::{LmvMdHead, hash_type};

    fn lmv(hash_type: u32, migrate_hash: u32, migrate_offset: u32, count: u32) -> LmvMd {
        let head = LmvMdHead {
            magic: LMV_MAGIC_V1,
            stripe_count: count,
            hash_type,
            migrate_hash,
            migrate_offset,
            ..Default::default()
        };
        LmvMd {
            head,
            stripe_fids: (0..count)
                .map(|i| Fid::new(0x2_0000_0400 + i as u64, 1))
                .collect(),
            tail: Bytes::new(),
        }
    }

    fn at(l: &LmvMd, name: &str) -> Vec<u64> {
        shards(l, name.as_bytes())
            .unwrap()
            .iter()
            .map(|f| f.seq - 0x2_0000_0400)
            .collect()
    }

    #[test]
    fn a_directory_is_striped_by_its_layout() {
        let l = lmv(hash_type::FNV_1A_64, 0, 0, 2);
        assert!(striped(&l.encode()).is_some());
        let mut shard = l.clone();
        shard.head.magic = LMV_MAGIC_STRIPE;
        assert!(striped(&shard.encode()).is_none());
        assert!(striped(&Bytes::new()).is_none());
        assert!(striped(&Bytes::from_static(b"what is this")).is_none());
    }

    #[test]
    fn a_name_has_one_place_unless_the_layout_changes() {
        let l = lmv(hash_type::FNV_1A_64, 0, 0, 4);
        for n in ["a", "b", "c", "d", "e"] {
            assert_eq!(at(&l, n), [l.shard_of(n.as_bytes()).unwrap() as u64]);
        }
        // migrated from shards 2 and 3 to 0 and 1: the old place first
        let m = lmv(
            hash_type::FNV_1A_64 | hash_flag::MIGRATION,
            hash_type::ALL_CHARS,
            2,
            4,
        );
        for n in ["a", "b", "c", "d", "e"] {
            let places = at(&m, n);
            assert!(
                places.len() == 2 && places[0] >= 2 && places[1] < 2,
                "{n}: {places:?}"
            );
        }
    }

    #[test]
    fn an_unknown_hash_is_searched_everywhere_and_made_nowhere() {
        for ty in [9, hash_type::FNV_1A_64 | hash_flag::BAD_TYPE] {
            let l = lmv(ty, 0, 0, 3);
            assert_eq!(at(&l, "a"), [0, 1, 2]);
            assert!(!known_hash(&l));
        }
        assert!(known_hash(&lmv(hash_type::CRUSH2, 0, 0, 3)));
    }

    #[test]
    fn a_lost_shard_is_an_error_for_its_names_only() {
        let mut l = lmv(hash_type::ALL_CHARS, 0, 0, 2);
        l.stripe_fids[1] = Fid::ZERO;
        // 'a' is 97, 'b' is 98
        assert_eq!(shards(&l, b"a"), Err(Refusal::ShardLost.into()));
        assert_eq!(at(&l, "b"), [0]);
    }

    fn entry(hash: u64, name: &str) -> DirEntry {
        DirEntry {
            fid: Fid::ROOT,
            hash,
            attrs: 0,
            name: Bytes::copy_from_slice(name.as_bytes()),
            mode_type: 0,
        }
    }

    fn names(c: &DirChunk) -> Vec<&str> {
        c.entries
            .iter()
            .map(|e| std::str::from_utf8(&e.name).unwrap())
            .collect()
    }

    #[test]
    fn chunks_merge_up_to_the_shard_that_was_read_least_far() {
        let a = DirChunk {
            entries: vec![entry(1, "a"), entry(5, "e"), entry(9, "i")],
            next: None,
        };
        let b = DirChunk {
            entries: vec![entry(2, "b"), entry(5, "E")],
            next: Some(6),
        };
        let m = merge_chunks(vec![a.clone(), b]);
        assert_eq!((names(&m), m.next), (vec!["a", "b", "e", "E"], Some(6)));
        let m = merge_chunks(vec![
            a,
            DirChunk {
                entries: vec![entry(6, "f")],
                next: None,
            },
        ]);
        assert_eq!((names(&m), m.next), (vec!["a", "e", "f", "i"], None));
        // nothing but one group: it is handed out
        let one = DirChunk {
            entries: vec![entry(6, "f"), entry(6, "g")],
            next: Some(6),
        };
        assert_eq!(names(&merge_chunks(vec![one])), ["f", "g"]);
    }

    #[test]
    fn a_name_that_moved_while_it_was_read_is_there_once() {
        let entry_of = |fid, name| DirEntry {
            fid,
            ..entry(2, name)
        };
        let (old, new) = (Fid::new(1, 1), Fid::new(2, 2));
        let chunk = DirChunk {
            entries: vec![entry_of(old, "x"), entry_of(old, "y"), entry_of(new, "x")],
            next: None,
        };
        let once = once_each(chunk);
        let all: Vec<_> = once.entries.iter().map(|e| (&e.name[..], e.fid)).collect();
        assert_eq!(all, [(&b"y"[..], old), (&b"x"[..], new)]);
    }

    #[test]
    fn attributes_are_those_of_the_shards() {
        let master = Attr {
            mode: 0o40755,
            uid: 7,
            nlink: 2,
            size: 4096,
            ..Attr::empty(Fid::ROOT)
        };
        let t = |secs| Timespec { secs, nanos: 0 };
        let shard = |nlink, mtime| Attr {
            nlink,
            size: 4096,
            blocks: 8,
            mtime: t(mtime),
            ..Attr::empty(Fid::ROOT)
        };
        let m = merge_attrs(&master, [shard(3, 9), shard(4, 5)].iter());
        assert_eq!(
            (m.nlink, m.size, m.blocks, m.mtime, m.uid, m.mode),
            (5, 8192, 16, t(9), 7, 0o40755)
        );
        assert_eq!(
            merge_attrs(&master, [shard(1, 9), shard(4, 5)].iter()).nlink,
            1
        );
    }
}
