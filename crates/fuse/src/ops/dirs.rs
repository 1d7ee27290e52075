//! Reading directories.

use std::sync::Arc;

use coral_client::llite::types::DirEntry;
use coral_wire::fid::Fid;
use zerocopy::IntoBytes;

use super::{Fut, In, boxed, cred};
use crate::abi::{self, InHeader};
use crate::error::OpError;
use crate::fs::FileSystem;
use crate::listings::Began;
use crate::nodes::Nodes;
use crate::reply::{self, Body};
use crate::session::Shared;
use crate::told::Mark;

pub(super) fn opendir<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader) -> Fut {
    let (s, fid, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    Ok(boxed(async move {
        let dir = s.fs.opendir(&cred, fid).await?;
        let fh = s.dirs.insert(Arc::new(dir));
        Ok(Body::of(&abi::OpenOut {
            fh,
            open_flags: 0,
            backing_id: 0,
        }))
    }))
}

/// The entry of a name of which the kernel remembers nothing: node id 0.
fn nothing_of(ino: u64, mode: u32) -> abi::EntryOut {
    abi::EntryOut {
        attr: abi::Attr {
            ino,
            mode,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// A page of directory records in the making.
struct Listing {
    out: Vec<u8>,
    room: usize,
    plus: bool,
    /// The kernel may be given names to keep.
    keep: bool,
    /// Records still without a node id: where they belong, and of which file.
    pending: Vec<(usize, abi::EntryOut, Fid)>,
}

impl Listing {
    /// Adds one record; true when there is no room for it.
    fn add(&mut self, e: DirEntry) -> bool {
        let fixed = size_of::<abi::Dirent>()
            + if self.plus {
                size_of::<abi::EntryOut>()
            } else {
                0
            };
        let len = abi::record_len(fixed, e.name.len());
        if self.out.len() + len > self.room {
            return true;
        }
        let at = self.out.len();
        let ino = e.entry.map_or(e.fid, |x| x.attr.fid).flatten();
        if self.plus {
            let dots = matches!(&e.name[..], b"." | b"..");
            let record = match &e.entry {
                Some(x) if !dots => {
                    let record = reply::entry(x, 0, self.keep);
                    self.pending.push((at, record, x.attr.fid));
                    record
                }
                _ => nothing_of(ino, e.kind),
            };
            self.out.extend_from_slice(record.as_bytes());
        }
        let d = abi::Dirent {
            ino,
            off: e.next,
            namelen: e.name.len() as u32,
            typ: (e.kind & libc::S_IFMT) >> 12,
        };
        self.out.extend_from_slice(d.as_bytes());
        self.out.extend_from_slice(&e.name);
        self.out.resize(at + len, 0);
        false
    }

    /// Whether the kernel is given names to keep, beside the one that is the receipt.
    fn keeps(&self) -> bool {
        let before = self.pending.split_last().map(|(_, before)| before);
        before.is_some_and(|records| records.iter().any(|(_, r, _)| r.is_kept()))
    }

    /// The finished page of directory `dir`, whose request began at `began`; counts the lookups.
    fn finish<F: FileSystem>(
        mut self,
        s: &Shared<F>,
        dir: u64,
        began: Mark,
        listed: Began,
    ) -> Body {
        let listings = &s.notifier.listings;
        // the kernel would wait for that LOOKUP with whatever it is to remember
        if listings.is_looked_up(dir) {
            for (at, record, _) in std::mem::take(&mut self.pending) {
                self.put(at, &nothing_of(record.attr.ino, record.attr.mode));
            }
            return Body::Vec(self.out);
        }
        let receipt = match self.keeps() {
            true => listings.receipt(dir, listed),
            false => None,
        };
        if let Some(receipt) = &receipt
            && let Some((at, ..)) = self.pending.pop()
        {
            let record = abi::EntryOut {
                nodeid: receipt.nodeid(),
                ..Default::default()
            };
            self.put(at, &record);
        }
        for (_, record, fid) in &mut self.pending {
            record.nodeid = s.remember(Nodes::remember, *fid, (record.attr.mode, record.attr.size));
        }
        let told = s.notifier.told.since(began);
        for (at, record, fid) in std::mem::take(&mut self.pending) {
            let record = if told.has(fid) {
                record.doubtful()
            } else {
                record
            };
            let record = match receipt.is_some() {
                true => record,
                false => record.unkept(),
            };
            self.put(at, &record);
        }
        match receipt {
            Some(receipt) => Body::Listing(self.out, receipt),
            None => Body::Vec(self.out),
        }
    }

    fn put(&mut self, at: usize, record: &abi::EntryOut) {
        self.out[at..at + size_of_val(record)].copy_from_slice(record.as_bytes());
    }
}

pub(super) fn readdir<F: FileSystem>(
    s: &Arc<Shared<F>>,
    h: &InHeader,
    mut i: In<'_>,
    plus: bool,
) -> Fut {
    let r: abi::ReadIn = i.get()?;
    let (s, node) = (s.clone(), h.nodeid);
    let (dir, cred) = (s.dirs.get(r.fh).ok_or(OpError::BadHandle)?, cred(h, 0));
    let room = (r.size as usize).min(s.max_write);
    let mut page = Listing {
        out: Vec::new(),
        room,
        plus,
        keep: s.entry_ttl(),
        pending: Vec::new(),
    };
    Ok(boxed(async move {
        let (began, listed) = (s.notifier.told.mark(), s.notifier.listings.begin());
        s.fs.readdir(&cred, &dir, r.offset, plus, &mut |e| page.add(e))
            .await?;
        Ok(page.finish(&s, node, began, listed))
    }))
}

pub(super) fn releasedir<F: FileSystem>(s: &Arc<Shared<F>>, mut i: In<'_>) -> Fut {
    let r: abi::ReleaseIn = i.get()?;
    let (s, dir) = (s.clone(), s.dirs.remove(r.fh).ok_or(OpError::BadHandle)?);
    Ok(boxed(async move {
        s.fs.releasedir(&dir).await.map(|()| Body::Empty)
    }))
}

pub(super) fn fsyncdir<F: FileSystem>(s: &Arc<Shared<F>>, mut i: In<'_>) -> Fut {
    let f: abi::FsyncIn = i.get()?;
    let (s, dir) = (s.clone(), s.dirs.get(f.fh).ok_or(OpError::BadHandle)?);
    Ok(boxed(async move {
        s.fs.fsyncdir(&dir).await.map(|()| Body::Empty)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use zerocopy::FromBytes;

    #[test]
    fn a_full_page_takes_no_part_of_an_entry() {
        let mut page = Listing {
            out: Vec::new(),
            room: 70,
            plus: false,
            keep: false,
            pending: Vec::new(),
        };
        let e = |name: &'static [u8]| DirEntry {
            fid: Fid {
                seq: 1,
                oid: 2,
                ver: 0,
            },
            name: Bytes::from_static(name),
            kind: libc::S_IFDIR,
            next: 9,
            entry: None,
        };
        assert!(!page.add(e(b"abc")));
        assert!(!page.add(e(b"abcdefgh")));
        assert!(page.add(e(b"x")), "64 of 70 bytes are taken");
        assert_eq!(page.out.len(), 64);
        let d = abi::Dirent::read_from_prefix(&page.out).unwrap().0;
        assert_eq!((d.typ, d.namelen, d.off), (4, 3, 9));
    }
}
