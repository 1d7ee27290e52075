//! One object in memory: a sparse map of shared pages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rand::Rng;

use crate::{ObjAttr, SeekWhence, SetAttr, Time};

/// Bytes in a page, the unit of allocation and of holes.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Bytes that a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

type Page = [u8; PAGE_BYTES as usize];

/// An object. A clone shares pages until one side writes them.
#[derive(Clone, Debug, Default)]
pub(super) struct MemObject {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
    /// Everything but size and blocks.
    attr: ObjAttr,
}

impl MemObject {
    pub(super) fn attr(&self) -> ObjAttr {
        ObjAttr {
            size: self.size,
            blocks: self.pages.len() as u64 * (PAGE_BYTES / 512),
            ..self.attr
        }
    }

    pub(super) fn set_attr(&mut self, set: &SetAttr) {
        let set = set.for_object(self.attr.owned);
        let a = &mut self.attr;
        let time = |to: &mut Time, t: Option<Time>| *to = t.unwrap_or(*to);
        time(&mut a.mtime, set.mtime);
        time(&mut a.atime, set.atime);
        time(&mut a.ctime, set.ctime);
        a.owned |= set.uid.is_some() || set.gid.is_some();
        a.uid = set.uid.unwrap_or(a.uid);
        a.gid = set.gid.unwrap_or(a.gid);
        a.projid = set.projid.unwrap_or(a.projid);
        a.parent = set.parent.unwrap_or(a.parent);
    }

    pub(super) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Pages a write to `start..end` would add.
    pub(super) fn missing_pages(&self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let range = start / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        range.end - range.start - self.pages.range(range).count() as u64
    }

    pub(super) fn read(&self, off: u64, len: usize) -> Bytes {
        let end = off.saturating_add(len as u64).min(self.size);
        if off >= end {
            return Bytes::new();
        }
        let mut out = vec![0; (end - off) as usize];
        for (n, from, to) in pieces(off, end) {
            if let Some(page) = self.pages.get(&n) {
                let at = (n * PAGE_BYTES + from as u64 - off) as usize;
                out[at..at + (to - from)].copy_from_slice(&page[from..to]);
            }
        }
        out.into()
    }

    pub(super) fn write(&mut self, off: u64, data: &[u8]) {
        let end = off + data.len() as u64;
        for (n, from, to) in pieces(off, end) {
            let at = (n * PAGE_BYTES + from as u64 - off) as usize;
            self.page(n)[from..to].copy_from_slice(&data[at..at + (to - from)]);
        }
        self.size = self.size.max(end);
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size.next_multiple_of(PAGE_BYTES));
            self.pages.split_off(&size.div_ceil(PAGE_BYTES));
        }
        self.size = size;
    }

    /// Drops whole pages of `start..end` and zeros the rest of it.
    pub(super) fn zero(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        // only pages that are there: the range may span the whole of an object without data
        let there: Vec<u64> = self
            .pages
            .range(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
            .map(|(n, _)| *n)
            .collect();
        for n in there {
            let (from, to) = part(n, start, end);
            if to - from == PAGE_BYTES as usize {
                self.pages.remove(&n);
            } else if let Some(page) = self.pages.get_mut(&n) {
                Arc::make_mut(page)[from..to].fill(0);
            }
        }
    }

    pub(super) fn punch(&mut self, start: u64, end: u64) {
        self.zero(start, end.min(self.size.next_multiple_of(PAGE_BYTES)));
    }

    pub(super) fn allocate(&mut self, start: u64, end: u64, keep_size: bool) {
        for n in start / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            self.page(n);
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
    }

    pub(super) fn seek(&self, off: u64, whence: SeekWhence) -> Option<u64> {
        if off >= self.size {
            return None;
        }
        let mut n = off / PAGE_BYTES;
        match whence {
            SeekWhence::Data => {
                let (n, _) = self.pages.range(n..).next()?;
                let at = off.max(n * PAGE_BYTES);
                (at < self.size).then_some(at)
            }
            SeekWhence::Hole => {
                while self.pages.contains_key(&n) {
                    n += 1;
                }
                Some(off.max(n * PAGE_BYTES).min(self.size))
            }
        }
    }

    /// What is found of an object that was `safe` and is `now`, when power goes: any sector of either, and the size of one of
    /// them. An object that was made or removed may be there or not.
    pub(super) fn torn(
        safe: Option<&MemObject>,
        now: Option<&MemObject>,
        rng: &mut impl Rng,
    ) -> Option<MemObject> {
        let (Some(was), Some(is)) = (safe, now) else {
            return [safe, now][usize::from(rng.random::<bool>())].cloned();
        };
        let mut torn = if rng.random() { is } else { was }.clone();
        let pages: BTreeSet<u64> = was.pages.keys().chain(is.pages.keys()).copied().collect();
        for n in pages {
            let (before, after) = (was.pages.get(&n), is.pages.get(&n));
            if before.zip(after).is_some_and(|(b, a)| Arc::ptr_eq(b, a)) {
                continue;
            }
            const ZEROS: Page = [0; PAGE_BYTES as usize];
            let (before, after) = (before.map_or(&ZEROS, |p| p), after.map_or(&ZEROS, |p| p));
            let page = torn.page(n);
            for at in (0..PAGE_BYTES as usize).step_by(SECTOR_BYTES) {
                let from = if rng.random() { after } else { before };
                page[at..at + SECTOR_BYTES].copy_from_slice(&from[at..at + SECTOR_BYTES]);
            }
        }
        torn.pages.split_off(&torn.size.div_ceil(PAGE_BYTES));
        torn.zero(torn.size, torn.size.next_multiple_of(PAGE_BYTES));
        Some(torn)
    }

    fn page(&mut self, n: u64) -> &mut Page {
        let page = self
            .pages
            .entry(n)
            .or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
        Arc::make_mut(page)
    }
}

/// The pages of `start..end`: number, and the part within the page.
fn pieces(start: u64, end: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let last = if start < end {
        end.div_ceil(PAGE_BYTES)
    } else {
        0
    };
    (start / PAGE_BYTES..last).map(move |n| {
        let (from, to) = part(n, start, end);
        (n, from, to)
    })
}

/// Where in page `n` the bytes of `start..end` lie.
fn part(n: u64, start: u64, end: u64) -> (usize, usize) {
    let base = n * PAGE_BYTES;
    (
        (start.max(base) - base) as usize,
        (end.min(base.saturating_add(PAGE_BYTES)) - base) as usize,
    )
}
