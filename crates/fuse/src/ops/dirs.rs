//! Reading directories.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use coral_client::llite::types::DirEntry;
use coral_wire::fid::Fid;
use zerocopy::IntoBytes;

use super::{Fut, In, boxed, cred};
use crate::abi::{self, InHeader};
use crate::error::OpError;
use crate::fs::FileSystem;
use crate::listings::{Began, Page};
use crate::nodes::Nodes;
use crate::reply::{self, Body};
use crate::session::Shared;
use crate::told::Mark;

pub(super) fn opendir<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader) -> Fut {
    let (s, fid, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    Ok(boxed(async move {
        let dir = s.fs.opendir(&cred, fid).await;
        let dir = dir.map_err(OpError::looked_up)?;
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
    /// Records still without a node id.
    pending: Vec<Pending>,
}

/// A record still without a node id: where it belongs, and of which file.
struct Pending {
    at: usize,
    record: abi::EntryOut,
    fid: Fid,
    name: Bytes,
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
                    self.pending.push(Pending {
                        at,
                        record,
                        fid: x.attr.fid,
                        name: e.name.clone(),
                    });
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

    /// Takes back what the kernel is to remember of names that are being looked up: it would wait for them.
    fn leave_out(&mut self, looked_up: &HashSet<Bytes>) {
        if looked_up.is_empty() {
            return;
        }
        let is_looked_up = |p: &mut Pending| looked_up.contains(&p.name);
        let out: Vec<Pending> = self.pending.extract_if(.., is_looked_up).collect();
        for p in out {
            self.put(p.at, &nothing_of(p.record.attr.ino, p.record.attr.mode));
        }
    }

    /// What the kernel is given to keep of `dir`, beside the name that is the receipt; `None`: nothing.
    fn kept(&self, dir: u64) -> Option<Page> {
        let (_, before) = self.pending.split_last()?;
        before.iter().any(|p| p.record.is_kept()).then(|| Page {
            dir,
            names: before.iter().map(|p| p.name.clone()).collect(),
            files: before.iter().map(|p| p.fid).collect(),
        })
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
        self.leave_out(&listings.looked_up(dir));
        let receipt = self.kept(dir).and_then(|p| listings.receipt(p, listed));
        if let Some(receipt) = &receipt
            && let Some(last) = self.pending.pop()
        {
            let record = abi::EntryOut {
                nodeid: receipt.nodeid(),
                ..Default::default()
            };
            self.put(last.at, &record);
        }
        for p in &mut self.pending {
            let attr = (p.record.attr.mode, p.record.attr.size);
            p.record.nodeid = s.remember(Nodes::remember, p.fid, attr);
            s.notifier.askers.note(p.fid, 0);
        }
        let told = s.notifier.told.since(began);
        for Pending {
            at, record, fid, ..
        } in std::mem::take(&mut self.pending)
        {
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

    #[test]
    fn names_that_are_looked_up_are_left_out_of_what_the_kernel_remembers() {
        let mut page = Listing {
            out: Vec::new(),
            room: 4096,
            plus: true,
            keep: true,
            pending: Vec::new(),
        };
        for name in ["a", "b", "c"] {
            let (at, record) = (page.out.len(), abi::EntryOut::default());
            page.out.extend_from_slice(record.as_bytes());
            page.pending.push(Pending {
                at,
                record: abi::EntryOut {
                    entry_valid: 1,
                    ..record
                },
                fid: Fid::ZERO,
                name: name.into(),
            });
        }
        let names = |page: &Listing| -> Vec<Bytes> {
            let mut names: Vec<_> = page.kept(7).into_iter().flat_map(|p| p.names).collect();
            names.sort();
            names
        };
        assert_eq!(names(&page), ["a", "b"], "c is the receipt");
        page.leave_out(&["b".into(), "x".into()].into());
        assert_eq!(names(&page), ["a"]);
        page.leave_out(&["c".into()].into());
        assert!(
            page.kept(7).is_none(),
            "one name is none beside the receipt"
        );
    }
}
