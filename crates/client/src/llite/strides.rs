//! Reading ahead of programs that read blocks at a distance, such as every second one.
//!
//! The kernel reads ahead where reads follow each other, and asks for each block alone where they do not. What such a program will
//! read next is read here before the kernel asks, many blocks with one request to each OST, and stored into the kernel's page
//! cache. Of such a batch the first page is left out: when the kernel asks for it, the program has come so far, and the next batch is
//! begun.
//!
//! # Invariants
//! - A batch is read, served and stored under one and the same [`Cover`], whose locks are all there: nobody else can have changed it.
//! - It is served and stored only as long as this client has changed nothing of the file since it was asked for ([`DataChanges`]).
//! - The file's gate has a say in each store ([`Gate::begin_store`]): it goes over no dirty page, and has ended before pages are
//!   dropped and a lock is given back.
//! - Only whole pages are stored, and none behind the end of the file as it is under those locks: no size is raised by it that is right.
//! - No answer to the kernel waits for a store, which itself waits for pages that wait for such answers.
//! - A mount keeps [`BATCHES`] batches at most, of [`BLOCK_MAX`] bytes at most; they go when they are stored, with the open file, when its
//!   blocks are no longer at one distance, and when they were passed.
//!
//! [`DataChanges`]: super::covers::DataChanges

use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::fid::Fid;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, ready};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::covers::{Cover, Gate, OpenInode};
use super::servers::Servers;
use super::upcalls::Upcalls;

/// Blocks at the same distance so often in a row that the next ones are read ahead.
const TIMES: u32 = 2;
/// Larger blocks are left to the kernel, which reads ahead within them.
const BLOCK_MAX: u64 = 2 << 20;
/// What is read together: so many bytes, but one block at least ...
const BATCH_BYTES: u64 = 1 << 20;
/// ... and so many blocks at most.
const BATCH_BLOCKS: u64 = 256;
/// Batches that are read ahead of the one that is being read.
const AHEAD: u64 = 2;
/// Batches of all open files of a mount that are kept until they are stored or passed.
const BATCHES: usize = 64;
/// The kernel's page, bytes.
const PAGE_BYTES: u64 = 4096;

/// Blocks of a file at one distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Blocks {
    /// Where the first begins, bytes.
    start: u64,
    /// Bytes of each.
    len: u64,
    /// From one to the next, bytes.
    stride: u64,
    count: u64,
}

impl Blocks {
    fn nth(&self, n: u64) -> Range<u64> {
        let start = self.start + n * self.stride;
        start..start + self.len
    }

    fn all(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let blocks = *self;
        (0..blocks.count).map(move |n| blocks.nth(n))
    }

    /// Where the last one begins.
    fn last(&self) -> u64 {
        self.start + (self.count - 1) * self.stride
    }

    /// Where the last one ends.
    fn end(&self) -> u64 {
        self.last() + self.len
    }

    /// Which of them all of this range is in.
    fn has(&self, range: &Range<u64>) -> Option<u64> {
        let n = range.start.checked_sub(self.start)? / self.stride;
        (n < self.count && range.end <= self.nth(n).end).then_some(n)
    }

    /// The kernel's pages are parts of them.
    fn are_pages(&self) -> bool {
        [self.start, self.len, self.stride]
            .iter()
            .all(|n| n.is_multiple_of(PAGE_BYTES))
    }
}

/// The blocks of a batch that could be read; `None`: whoever wants one asks himself.
type Read = Option<Arc<Vec<Payload>>>;
type Reading = Shared<BoxFuture<'static, Read>>;

struct Batch {
    blocks: Blocks,
    cover: Weak<Cover>,
    /// Changes of the file by this client before it.
    changes: u64,
    data: Reading,
    /// None: it is stored, and has only what was left out.
    permit: Option<OwnedSemaphorePermit>,
}

/// How an open file is read, and what was read ahead.
#[derive(Default)]
pub(super) struct Strides(Mutex<State>);

#[derive(Default)]
struct State {
    pattern: Pattern,
    batches: Vec<Batch>,
}

/// Blocks that were read; what follows the last byte that was read is part of its block.
#[derive(Default)]
struct Pattern {
    block: Range<u64>,
    /// Length of the block before.
    len: u64,
    /// From the block before to this one.
    stride: u64,
    /// How often that was the distance, of blocks of that length.
    times: u32,
}

impl Pattern {
    /// Takes a read in.
    fn note(&mut self, read: &Range<u64>) {
        if read.start == self.block.end && !self.block.is_empty() {
            self.block.end = read.end;
            // it is longer than those before
            if self.block.end - self.block.start > self.len {
                self.times = 0;
            }
            return;
        }
        // a part of the block once more, or one that was overtaken
        if self.block.contains(&read.start) {
            return;
        }
        let len = self.block.end - self.block.start;
        let stride = read.start.saturating_sub(self.block.start);
        let again = stride == self.stride && (self.times == 0 || len == self.len);
        self.times = if again && stride > len {
            self.times + 1
        } else {
            0
        };
        (self.len, self.stride) = (len, stride);
        self.block = read.clone();
    }

    /// The batch that follows what is read ahead up to the block at `done`, before `size`; `None`: nothing is to be read ahead now.
    fn next(&self, done: Option<u64>, size: u64) -> Option<Blocks> {
        if self.times < TIMES || self.len == 0 || self.len > BLOCK_MAX {
            return None;
        }
        let (len, stride) = (self.len, self.stride);
        let most = (BATCH_BYTES / len).clamp(1, BATCH_BLOCKS);
        let start = done
            .unwrap_or(self.block.start)
            .checked_add(stride)
            .filter(|s| *s < size.min(i64::MAX as u64))?;
        let far = most.checked_mul(stride)?.checked_mul(AHEAD)?;
        if start.saturating_sub(self.block.start) > far {
            return None;
        }
        let count = (size - start).div_ceil(stride).min(most);
        let blocks = Blocks {
            start,
            len,
            stride,
            count,
        };
        let last = start.checked_add(stride.checked_mul(count)?)?;
        (last <= i64::MAX as u64).then_some(blocks)
    }
}

impl State {
    /// Takes a read in, and lets go of what will not be asked for any more.
    fn note(&mut self, read: &Range<u64>) {
        let ahead = (self.batches.iter()).find_map(|b| b.blocks.has(read).map(|n| b.blocks.nth(n)));
        match ahead {
            // the kernel had those in between
            Some(block) if block.start > self.pattern.block.start => self.pattern.block = block,
            Some(_) => {}
            None => self.pattern.note(read),
        }
        let at = self.pattern.block.start;
        match self.pattern.times {
            0 => self.batches.clear(),
            _ => self.batches.retain(|b| b.blocks.end() > at),
        }
    }

    /// The batch to be read ahead now.
    fn next(&self, size: u64) -> Option<Blocks> {
        let done = self.batches.last().map(|b| b.blocks.last());
        self.pattern.next(done, size)
    }

    /// The batch in which all of this range is, under `cover` and with these `changes`; batches of before are let go.
    fn find(
        &mut self,
        read: &Range<u64>,
        cover: &Arc<Cover>,
        changes: u64,
    ) -> Option<(Blocks, u64, Reading)> {
        let under = Arc::as_ptr(cover);
        self.batches
            .retain(|b| b.cover.as_ptr() == under && b.changes == changes);
        let found = |b: &Batch| Some((b.blocks, b.blocks.has(read)?, b.data.clone()));
        self.batches.iter().find_map(found)
    }

    /// A block of this batch has not been asked for and may still be.
    fn wants(&self, batch: &Blocks, block: &Range<u64>) -> bool {
        self.pattern.block.start < block.start && self.batches.iter().any(|b| b.blocks == *batch)
    }

    /// What is in the kernel's cache goes; `left` was left out.
    fn stored(&mut self, batch: &Blocks, left: Payload) {
        for b in self.batches.iter_mut().filter(|b| b.blocks == *batch) {
            let only = Some(Arc::new(vec![left.clone()]));
            b.data = ready(only).boxed().shared();
            b.permit = None;
        }
    }
}

/// Reads ahead for all open files of a mount.
pub(super) struct StrideReads {
    servers: Arc<Servers>,
    upcalls: Arc<Upcalls>,
    places: Arc<Semaphore>,
}

impl StrideReads {
    pub(super) fn new(servers: Arc<Servers>, upcalls: Arc<Upcalls>) -> StrideReads {
        StrideReads {
            servers,
            upcalls,
            places: Arc::new(Semaphore::new(BATCHES)),
        }
    }

    /// What was read ahead of a read under `cover`, if it was; the next ones are begun.
    pub(super) async fn read(
        &self,
        (strides, inode): (&Arc<Strides>, &Arc<OpenInode>),
        cover: &Arc<Cover>,
        offset: u64,
        len_bytes: u32,
    ) -> Option<Payload> {
        let read = offset..offset.checked_add(u64::from(len_bytes))?;
        let (begins, reading) = {
            let mut st = strides.0.lock();
            st.note(&read);
            if st.pattern.times < TIMES {
                return None;
            }
            let changes = inode.data.quiet()?;
            let found = st.find(&read, cover, changes);
            let size = inode.rough_size().unwrap_or(u64::MAX);
            while let Some(blocks) = st.next(size)
                && let Ok(permit) = self.places.clone().try_acquire_owned()
            {
                let ahead = Ahead {
                    servers: self.servers.clone(),
                    upcalls: self.upcalls.clone(),
                    strides: Arc::downgrade(strides),
                    inode: Arc::downgrade(inode),
                    gate: inode.gate.clone(),
                    fid: inode.fid,
                    cover: Arc::downgrade(cover),
                    changes,
                    blocks,
                };
                st.batches.push(Batch {
                    blocks,
                    cover: Arc::downgrade(cover),
                    changes,
                    data: ahead.begin(cover),
                    permit: Some(permit),
                });
            }
            (changes, found?)
        };
        let (blocks, n, data) = reading;
        let data = data.await?;
        if inode.data.quiet() != Some(begins) || !cover.is_whole() {
            return None;
        }
        let block = data.get(n as usize)?;
        let from = (offset - blocks.nth(n).start) as usize;
        let to = from + len_bytes as usize;
        if to > block.len() {
            return None;
        }
        self.servers.stats.strided_hits.inc();
        Some(block.slice(from..to))
    }
}

/// A batch on its way. It keeps nothing open, and no lock once it is read.
struct Ahead {
    servers: Arc<Servers>,
    upcalls: Arc<Upcalls>,
    strides: Weak<Strides>,
    inode: Weak<OpenInode>,
    gate: Arc<Gate>,
    fid: Fid,
    cover: Weak<Cover>,
    changes: u64,
    blocks: Blocks,
}

impl Ahead {
    /// Reads it, and stores it then.
    fn begin(self, cover: &Cover) -> Reading {
        let (layout, held) = (cover.layout.clone(), cover.held());
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            let lov = &self.servers.lov;
            let read = lov.read_blocks(&layout, self.fid, self.blocks.all(), &held);
            let read = read.await.ok().map(Arc::new);
            drop(held);
            let _ = tell.send(read.clone());
            if let Some(data) = read {
                self.store(data).await;
            }
        });
        told.map(|read| read.ok().flatten()).boxed().shared()
    }

    /// Nothing has changed since it was asked for. Asked while the gate lets it be stored.
    fn is_good(&self) -> bool {
        let quiet = |i: Arc<OpenInode>| i.data.quiet() == Some(self.changes);
        self.inode.upgrade().is_some_and(quiet)
            && self.cover.upgrade().is_some_and(|c| c.is_whole())
    }

    /// Stores it into the kernel's page cache, but for the first page, which tells how far the program is.
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel may wait for a page that one of our threads is to fill"
    )]
    async fn store(self, data: Arc<Vec<Payload>>) {
        let blocks = self.blocks;
        let kernel = self.upcalls.who().filter(|_| blocks.are_pages());
        let span = blocks.start..blocks.end();
        let Some(kernel) = kernel else { return };
        let Some(storing) = self.gate.begin_store(&self.cover, span) else {
            return;
        };
        if data.is_empty() || !self.is_good() {
            return;
        }
        // a stock OST answers whole pages, also where the file ends within
        let sure = match self.servers.lov.tells_the_end() {
            true => 0,
            false => PAGE_BYTES as usize,
        };
        let store = move || {
            let last = data.len() - 1;
            let mut stored = 0;
            for (n, (block, range)) in data.iter().zip(blocks.all()).enumerate() {
                let wanted = |s: Arc<Strides>| s.0.lock().wants(&blocks, &range);
                if !storing.goes_on() {
                    break;
                }
                if !self.strides.upgrade().is_some_and(wanted) {
                    continue;
                }
                let from = if n == 0 { PAGE_BYTES as usize } else { 0 };
                let to = block.len() - if n == last { sure } else { 0 };
                if from < to {
                    let part = block.slice(from..to);
                    if !kernel.store_pages(self.fid, range.start + from as u64, &part) {
                        break;
                    }
                    stored += 1;
                }
            }
            drop(storing);
            self.servers.stats.strided_stores.add(stored);
            if let Some(s) = self.strides.upgrade().filter(|_| stored > 0) {
                let left: Vec<u8> = (data[0].iter().flatten().copied())
                    .take(PAGE_BYTES as usize)
                    .collect();
                s.0.lock().stored(&blocks, Payload::from(Bytes::from(left)));
            }
        };
        let _ = tokio::task::spawn_blocking(store).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read ahead after these reads.
    fn ahead_after(reads: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut p = Pattern::default();
        for (at, len) in reads {
            p.note(&(*at..at + len));
        }
        let (mut out, mut done) = (Vec::new(), None);
        while let Some(blocks) = p.next(done, 1 << 40) {
            done = Some(blocks.last());
            out.extend(blocks.all());
        }
        out
    }

    const K: u64 = 1 << 10;

    #[test]
    fn blocks_at_one_distance_are_followed() {
        let every_second: Vec<_> = (0..4).map(|n| (n * 128 * K, 64 * K)).collect();
        let ahead = ahead_after(&every_second);
        assert_eq!(ahead.len(), 32, "two batches of 1 MiB");
        assert_eq!(ahead[0], 512 * K..576 * K);
        assert_eq!(ahead[31], (512 + 31 * 128) * K..(576 + 31 * 128) * K);
        assert!(
            ahead_after(&every_second[..3]).is_empty(),
            "twice is chance"
        );
        // the kernel may ask for a block in parts
        let parts: Vec<_> = (0..4)
            .flat_map(|n| [(n * 4096 * K, 512 * K), (n * 4096 * K + 512 * K, 512 * K)])
            .collect();
        let ahead = ahead_after(&parts);
        assert_eq!(ahead.len(), 2);
        assert_eq!(ahead[0], 16384 * K..17408 * K);
        let far: Vec<_> = (0..4).map(|n| (n * 800 * K, 4 * K)).collect();
        let ahead = ahead_after(&far);
        assert_eq!((ahead.len(), &ahead[0]), (512, &(3200 * K..3204 * K)));
    }

    #[test]
    fn batches_begin_before_the_end_of_the_file() {
        let mut p = Pattern::default();
        (0..4).for_each(|n| p.note(&(n * 8 * K..n * 8 * K + 4 * K)));
        let next = |done, size| {
            p.next(done, size)
                .map(|b: Blocks| (b.start, b.count, b.end()))
        };
        assert_eq!(next(None, 32 * K), None);
        assert_eq!(next(None, 32 * K + 1), Some((32 * K, 1, 36 * K)));
        assert_eq!(next(None, 41 * K), Some((32 * K, 2, 44 * K)));
        assert_eq!(next(Some(40 * K), 41 * K), None);
        assert_eq!(
            next(Some(40 * K), u64::MAX).map(|b| b.1),
            Some(BATCH_BLOCKS)
        );
        assert_eq!(next(Some(1 << 30), u64::MAX), None, "far enough");
    }

    #[test]
    fn a_program_is_followed_from_batch_to_batch() {
        let mut st = State::default();
        let read = |st: &mut State, at: u64, len: u64| {
            st.note(&(at..at + len));
            while let Some(blocks) = st.next(u64::MAX) {
                st.batches.push(Batch {
                    blocks,
                    cover: Weak::new(),
                    changes: 0,
                    data: ready(None).boxed().shared(),
                    permit: None,
                });
            }
            st.batches
                .iter()
                .map(|b| b.blocks.start / K)
                .collect::<Vec<_>>()
        };
        for n in 0..3 {
            assert!(read(&mut st, n * 128 * K, 64 * K).is_empty());
        }
        assert_eq!(read(&mut st, 384 * K, 64 * K), [512, 2560]);
        // the first page of a batch is all that the kernel asks for
        assert_eq!(read(&mut st, 512 * K, 4 * K), [512, 2560, 4608]);
        let batch = st.batches[0].blocks;
        assert!(!st.wants(&batch, &batch.nth(0)) && st.wants(&batch, &batch.nth(1)));
        assert_eq!(read(&mut st, 2560 * K, 4 * K), [2560, 4608, 6656]);
        assert!(!st.wants(&batch, &batch.nth(1)), "it was passed");
        // a part of a block before is asked for once more
        assert_eq!(read(&mut st, 2572 * K, 4 * K), [2560, 4608, 6656]);
        assert!(read(&mut st, 99 * K, 4 * K).is_empty());
        assert!(st.batches.is_empty());
    }

    #[test]
    fn what_has_no_distance_is_left_alone() {
        let one_after_the_other: Vec<_> = (0..9).map(|n| (n * 64 * K, 64 * K)).collect();
        assert!(ahead_after(&one_after_the_other).is_empty());
        let backwards: Vec<_> = (0..9).rev().map(|n| (n * 128 * K, 64 * K)).collect();
        assert!(ahead_after(&backwards).is_empty());
        let at_random = [
            (0, 4 * K),
            (90 * K, 4 * K),
            (40 * K, 4 * K),
            (400 * K, 4 * K),
            (408 * K, 4 * K),
        ];
        assert!(ahead_after(&at_random).is_empty());
        let huge: Vec<_> = (0..5).map(|n| (n << 24, 4096 * K)).collect();
        assert!(ahead_after(&huge).is_empty());
        assert!(ahead_after(&[]).is_empty());
    }
}
