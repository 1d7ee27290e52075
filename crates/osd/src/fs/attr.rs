//! The attributes of an object that its file cannot hold by itself.
//!
//! Size, blocks, mtime and atime are the file's own. Owner, project, parent FID and ctime go into
//! one record of fixed size, written only when it changes: a stream of writes writes it once. The
//! record is an extended attribute of the file, or a table record where the file system has none.
//!
//! ctime: the kernel does not let us set a file's. Nearly always it equals mtime, so the record
//! holds a ctime only with the mtime it belongs to; without one, ctime is mtime (or the stored
//! ctime if that is later).

use crate::{ObjAttr, SetAttr, Time};

/// Name of the extended attribute.
pub(super) const XATTR: &str = "user.coral";

/// Length of the record in bytes.
pub(super) const RECORD_BYTES: usize = 64;

const MAGIC: u32 = 0x314f_4243; // "CBO1"
const OWNED: u32 = 1;
const HAS_CTIME: u32 = 2;

/// The record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) projid: u32,
    pub(super) owned: bool,
    pub(super) parent: (u64, u32, u32),
    /// ctime and the mtime at which it was told.
    pub(super) ctime: Option<(Time, Time)>,
}

impl Record {
    /// The ctime of an object whose file has this `mtime`.
    pub(super) fn ctime(&self, mtime: Time) -> Time {
        match self.ctime {
            Some((ctime, at)) if at == mtime => ctime,
            Some((ctime, _)) => ctime.max(mtime),
            None => mtime,
        }
    }

    /// The record after `set`, when the file's mtime goes from `old_mtime` to `new_mtime`.
    pub(super) fn after(&self, set: &SetAttr, old_mtime: Time, new_mtime: Time) -> Record {
        let mut r = *self;
        r.uid = set.uid.unwrap_or(r.uid);
        r.gid = set.gid.unwrap_or(r.gid);
        r.owned |= set.uid.is_some() || set.gid.is_some();
        r.projid = set.projid.unwrap_or(r.projid);
        r.parent = set.parent.unwrap_or(r.parent);
        let want = set.ctime.unwrap_or_else(|| self.ctime(old_mtime));
        if r.ctime(new_mtime) != want {
            r.ctime = Some((want, new_mtime));
        }
        r
    }

    /// Fills the fields this record holds into `attr`, whose mtime is known.
    pub(super) fn fill(&self, attr: &mut ObjAttr) {
        attr.uid = self.uid;
        attr.gid = self.gid;
        attr.projid = self.projid;
        attr.owned = self.owned;
        attr.parent = self.parent;
        attr.ctime = self.ctime(attr.mtime);
    }

    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let (ctime, at) = self.ctime.unwrap_or_default();
        let mut flags = if self.owned { OWNED } else { 0 };
        if self.ctime.is_some() {
            flags |= HAS_CTIME;
        }
        let mut b = [0; RECORD_BYTES];
        let mut w = &mut b[..];
        for v in [
            MAGIC,
            flags,
            self.uid,
            self.gid,
            self.projid,
            self.parent.1,
            self.parent.2,
        ] {
            put(&mut w, &v.to_le_bytes());
        }
        put(&mut w, &ctime.nsecs.to_le_bytes());
        put(&mut w, &self.parent.0.to_le_bytes());
        put(&mut w, &ctime.secs.to_le_bytes());
        put(&mut w, &at.secs.to_le_bytes());
        put(&mut w, &at.nsecs.to_le_bytes());
        let sum = crc32c::crc32c(&b[..RECORD_BYTES - 4]);
        b[RECORD_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(Record::decode(&b), Some(*self));
        b
    }

    /// `None` when the bytes are not a record.
    pub(super) fn decode(b: &[u8]) -> Option<Record> {
        let b: &[u8; RECORD_BYTES] = b.try_into().ok()?;
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u32_at(i) as u64 | (u32_at(i + 4) as u64) << 32;
        if u32_at(0) != MAGIC || u32_at(60) != crc32c::crc32c(&b[..60]) {
            return None;
        }
        let flags = u32_at(4);
        let ctime = Time {
            secs: u64_at(40) as i64,
            nsecs: u32_at(28),
        };
        let at = Time {
            secs: u64_at(48) as i64,
            nsecs: u32_at(56),
        };
        Some(Record {
            uid: u32_at(8),
            gid: u32_at(12),
            projid: u32_at(16),
            owned: flags & OWNED != 0,
            parent: (u64_at(32), u32_at(20), u32_at(24)),
            ctime: (flags & HAS_CTIME != 0).then_some((ctime, at)),
        })
    }
}

fn put(w: &mut &mut [u8], bytes: &[u8]) {
    let (head, tail) = std::mem::take(w).split_at_mut(bytes.len());
    head.copy_from_slice(bytes);
    *w = tail;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(secs: i64) -> Time {
        Time { secs, nsecs: 5 }
    }

    #[test]
    fn decodes_what_it_encodes_and_nothing_else() {
        let r = Record {
            uid: 1,
            gid: 2,
            projid: 3,
            owned: true,
            parent: (0x2_0000_0401, 7, 9),
            ctime: Some((t(-1), t(1 << 40))),
        };
        let b = r.encode();
        assert_eq!(Record::decode(&b), Some(r));
        assert_eq!(
            Record::decode(&Record::default().encode()),
            Some(Record::default())
        );
        for i in 0..b.len() * 8 {
            let mut bad = b;
            bad[i / 8] ^= 1 << (i % 8);
            assert_eq!(Record::decode(&bad), None, "bit {i}");
        }
        assert_eq!(Record::decode(&b[1..]), None);
    }

    #[test]
    fn writes_with_equal_times_leave_the_record_alone() {
        let r = Record::default();
        let set = SetAttr {
            mtime: Some(t(9)),
            ctime: Some(t(9)),
            ..Default::default()
        };
        assert_eq!(r.after(&set, t(8), t(9)), r);
        assert_eq!(r.ctime(t(9)), t(9));
    }

    #[test]
    fn ctime_is_what_was_told_whatever_mtime_became() {
        for mtime in [t(1), t(1000)] {
            let set = SetAttr {
                mtime: Some(mtime),
                ctime: Some(t(50)),
                ..Default::default()
            };
            let r = Record::default().after(&set, t(40), mtime);
            assert_eq!(r.ctime(mtime), t(50));
            // A write later on carries both along.
            let write = SetAttr {
                mtime: Some(t(60)),
                ctime: Some(t(60)),
                ..Default::default()
            };
            let w = r.after(&write, mtime, t(60));
            assert_eq!(w.ctime(t(60)), t(60));
            assert_eq!(w, r, "no record to write");
        }
    }

    #[test]
    fn mtime_alone_keeps_ctime() {
        let set = SetAttr {
            mtime: Some(t(1)),
            ..Default::default()
        };
        assert_eq!(
            Record::default().after(&set, t(40), t(1)).ctime(t(1)),
            t(40)
        );
    }
}
