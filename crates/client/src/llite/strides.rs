//! Reading ahead of programs that read blocks at a distance, such as every second one.
//!
//! The kernel reads ahead where reads follow each other, and asks for each block alone where they do not. What such a program will
//! read next is read here before the kernel asks, many blocks with one request to each OST, and stored into the kernel's page
//! cache, but for large blocks, which are served when it asks. Of a batch that is stored the first page is left out: when the kernel
//! asks for it, the program has come so far, and the next batch is begun.
//!
//! A gap of one page is none to the kernel (`page_cache_sync_ra` in Linux's `mm/readahead.c`): it takes such a read for one that goes on,
//! begins to read ahead anew, four pages, and does so again and again. From reads of four pages that follow each other it is guessed
//! that the program reads every second page. A wrong guess costs the requests for the pages that were left out, a few of which end it.
//!
//! # Invariants
//! - A batch is read, served and stored under one and the same [`Cover`], whose locks are all there: nobody else can have changed it.
//! - It is served and stored only as long as this client has changed nothing of the file since it was asked for ([`DataChanges`]).
//! - The file's gate has a say in each store ([`Gate::begin_store`]): it goes over no dirty page, and has ended before pages are
//!   dropped and a lock is given back.
//! - Only whole pages are stored, and none behind the end of the file as it is under those locks: no size is raised by it that is right.
//! - No answer to the kernel waits for a store, which itself waits for pages that wait for such answers.
//! - A mount reads and keeps [`BATCHES`] batches at most, of [`BLOCK_MAX`] bytes at most; they go when they are stored, if they are, with
//!   the open file, when its blocks are no longer at one distance, and when they were passed. With a batch its reading ends; what an OST was
//!   asked for already still comes, and is dropped then.
//! - Nothing is read ahead while the file is truncated.
//! - No lock is kept for a batch once its cover is to go: the reading of it ends.
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
use tokio::task::AbortHandle;

use super::covers::{Cover, Gate, OpenInode};
use super::servers::Servers;
use super::upcalls::Upcalls;

/// Blocks at the same distance so often in a row that the next ones are read ahead.
const TIMES: u32 = 2;
/// Blocks of so many bytes are not stored: the kernel asks for one with one request or a few, and copies it with less ado.
const SERVED_BYTES: u64 = 512 << 10;
/// Larger blocks are left to the kernel, which reads ahead within them.
const BLOCK_MAX: u64 = 2 << 20;
/// What is read together: so many bytes, but one block at least ...
const BATCH_BYTES: u64 = 1 << 20;
/// ... and so many blocks at most.
const BATCH_BLOCKS: u64 = 256;
/// Batches that are read ahead of the one that is being read, at most ...
const AHEAD: u64 = 4;
/// ... and so many bytes at first, but one block: with each batch that the program has come to it is four times as much.
const FIRST_BYTES: u64 = 128 << 10;
/// Batches of all open files of a mount that are kept until they are stored or passed.
const BATCHES: usize = 64;
/// The kernel's page, bytes.
const PAGE_BYTES: u64 = 4096;
/// What the kernel reads when it begins to read ahead of a read of one page, bytes.
const BEGUN_BYTES: u64 = 4 * PAGE_BYTES;
/// So many such reads in a row are a program that reads every second page.
const BEGUN: u32 = 3;
/// So many reads of what lies between its pages, of one batch that is stored, show that it is none: some there are where a program is as
/// fast as stores ...
const STRAYS: u32 = 8;
/// ... and so many times as many of one that is not stored yet, where a program that came to it too soon asks for all.
const TOO_SOON: u32 = 8;

/// Blocks of a file at one distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Blocks {
    /// Where the first begins, bytes.
    start: u64,
    /// Bytes of the first, and from it to the second.
    head: (u64, u64),
    /// Bytes of each other.
    len: u64,
    /// From each other to the next, bytes.
    stride: u64,
    count: u64,
}

impl Blocks {
    fn nth(&self, n: u64) -> Range<u64> {
        match n.checked_sub(1) {
            None => self.start..self.start + self.head.0,
            Some(n) => {
                let start = self.start + self.head.1 + n * self.stride;
                start..start + self.len
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let blocks = *self;
        (0..blocks.count).map(move |n| blocks.nth(n))
    }

    /// Where the last one ends.
    fn end(&self) -> u64 {
        self.nth(self.count - 1).end
    }

    /// Where the one would begin that follows the last.
    fn next(&self) -> u64 {
        self.start + self.head.1 + (self.count - 1) * self.stride
    }

    /// Which of them begins at `at`, or has that byte.
    fn at(&self, at: u64) -> Option<u64> {
        let from = at.checked_sub(self.start)?;
        let n = match from.checked_sub(self.head.1) {
            None => 0,
            Some(rest) => 1 + rest / self.stride,
        };
        (n < self.count && at < self.nth(n).end).then_some(n)
    }

    /// Which of them all of this range is in.
    fn has(&self, range: &Range<u64>) -> Option<u64> {
        self.at(range.start)
            .filter(|n| range.end <= self.nth(*n).end)
    }

    /// The kernel's pages are parts of them.
    fn are_pages(&self) -> bool {
        [self.start, self.head.0, self.head.1, self.len, self.stride]
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
    task: Option<Task>,
}

/// What reads ahead, and its places among those of the mount; dropped, it ends.
pub(super) struct Task {
    task: AbortHandle,
    _places: OwnedSemaphorePermit,
}

impl Task {
    pub(super) fn new(task: AbortHandle, places: OwnedSemaphorePermit) -> Task {
        Task {
            task,
            _places: places,
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.task.abort();
    }
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
    /// How often the program has come to a batch since then.
    followed: u32,
    /// Reads in a row with which the kernel began to read ahead.
    begun: u32,
    /// The blocks are every second page, as was guessed from those.
    guessed: bool,
    /// Reads that were not as it was guessed, since a batch began; of what is stored each is [`TOO_SOON`].
    strays: u32,
}

impl Pattern {
    /// Takes a read in.
    fn note(&mut self, read: &Range<u64>) {
        let follows = read.start == self.block.end && !self.block.is_empty();
        self.begun = match read.end - read.start == BEGUN_BYTES {
            true if follows => self.begun + 1,
            began => began as u32,
        };
        self.guessed = self.begun >= BEGUN && self.strays < STRAYS * TOO_SOON;
        if self.guessed {
            // it has read the first page, and will read the third
            let third = read.start + 2 * PAGE_BYTES;
            self.block = third..third + PAGE_BYTES;
            (self.len, self.stride, self.times) = (PAGE_BYTES, 2 * PAGE_BYTES, TIMES);
            self.begun = 0;
            return;
        }
        if follows {
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
            self.followed = 0;
            0
        };
        (self.len, self.stride) = (len, stride);
        self.block = read.clone();
    }

    /// A read of what lies between the blocks. False: it follows the pattern no more.
    fn stray(&mut self, is_stored: bool) -> bool {
        if self.guessed {
            self.strays += if is_stored { TOO_SOON } else { 1 };
        }
        self.guessed && self.strays < STRAYS * TOO_SOON
    }

    /// The batch that is to be read ahead at `start`, or else behind the block that is being read, before `size`; `None`: nothing is
    /// to be read ahead now.
    fn next(&self, start: Option<u64>, size: u64) -> Option<Blocks> {
        if self.times < TIMES || self.len == 0 || self.len > BLOCK_MAX {
            return None;
        }
        let (len, stride) = (self.len, self.stride);
        let most = (BATCH_BYTES / len).clamp(1, BATCH_BLOCKS);
        let reach = (FIRST_BYTES / len).max(1);
        let reach = reach.saturating_mul(4_u64.saturating_pow(self.followed));
        let reach = reach.min(most * AHEAD);
        let start = match start {
            Some(start) => start,
            None => self.block.start.checked_add(stride)?,
        };
        let size = size.min(i64::MAX as u64);
        let far = reach.checked_mul(stride)?;
        if start >= size || start.saturating_sub(self.block.start) > far {
            return None;
        }
        // where the first page is missing the kernel asks for three more
        let head = match self.guessed {
            true => (BEGUN_BYTES, BEGUN_BYTES),
            false => (len, stride),
        };
        let more = (size - start).saturating_sub(head.1).div_ceil(stride);
        let count = 1 + more.min(most.min(reach) - 1);
        let blocks = Blocks {
            start,
            head,
            len,
            stride,
            count,
        };
        let end = start.checked_add(head.1)?;
        let end = end.checked_add(stride.checked_mul(count)?)?;
        (end <= i64::MAX as u64).then_some(blocks)
    }
}

impl State {
    /// Takes a read in, and lets go of what will not be asked for any more.
    fn note(&mut self, read: &Range<u64>) {
        let at = |b: &Batch| b.blocks.at(read.start).map(|n| (n, b.blocks.nth(n)));
        let between = |b: &&Batch| (b.blocks.start..b.blocks.end()).contains(&read.start);
        match self.batches.iter().find_map(at) {
            // the kernel had those in between
            Some((n, block)) if block.start > self.pattern.block.start => {
                self.pattern.block = block;
                if n == 0 {
                    self.pattern.strays = 0;
                    self.pattern.followed += 1;
                }
            }
            Some(_) => {}
            None => {
                let batch = self.batches.iter().find(between);
                let is_stored = batch.map(|b| b.task.is_none());
                if !is_stored.is_some_and(|stored| self.pattern.stray(stored)) {
                    self.pattern.note(read);
                }
            }
        }
        let at = self.pattern.block.start;
        match self.pattern.times {
            0 => self.batches.clear(),
            _ => self.batches.retain(|b| b.blocks.end() > at),
        }
    }

    /// The batch to be read ahead now.
    fn next(&self, size: u64) -> Option<Blocks> {
        let start = self.batches.last().map(|b| b.blocks.next());
        self.pattern.next(start, size)
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
    fn stored(&mut self, batch: &Blocks, cover: &Weak<Cover>, left: Payload) {
        let same = |b: &&mut Batch| b.blocks == *batch && b.cover.ptr_eq(cover);
        for b in self.batches.iter_mut().filter(same) {
            let only = Some(Arc::new(vec![left.clone()]));
            b.data = ready(only).boxed().shared();
            b.task = None;
        }
    }

    /// It is of no use.
    fn forget(&mut self, batch: &Blocks, cover: &Weak<Cover>) {
        self.batches
            .retain(|b| b.blocks != *batch || !b.cover.ptr_eq(cover));
    }
}

impl Strides {
    /// Blocks at one distance are read.
    pub(super) fn are_followed(&self) -> bool {
        self.0.lock().pattern.times >= TIMES
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
        // a truncate by its path knows only of those who had the file open before
        let may_begin = !inode.gate.is_truncating();
        let (begins, reading) = {
            let mut st = strides.0.lock();
            st.note(&read);
            if st.pattern.times < TIMES {
                return None;
            }
            let changes = inode.data.quiet()?;
            let found = st.find(&read, cover, changes);
            // where it is old the file has grown elsewhere
            let size = inode.rough_size().filter(|size| offset < *size);
            let size = size.unwrap_or(u64::MAX);
            while may_begin
                && let Some(blocks) = st.next(size)
                && let Ok(place) = self.places.clone().try_acquire_owned()
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
                let (task, data) = ahead.begin(cover);
                st.batches.push(Batch {
                    blocks,
                    cover: Arc::downgrade(cover),
                    changes,
                    data,
                    task: Some(Task::new(task, place)),
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
    fn begin(self, cover: &Cover) -> (AbortHandle, Reading) {
        let (layout, held) = (cover.layout.clone(), cover.held());
        let (tell, told) = oneshot::channel();
        let task = tokio::spawn(async move {
            let lov = &self.servers.lov;
            let read = lov.read_blocks(&layout, self.fid, self.blocks.all(), &held);
            let read = tokio::select! {
                read = read => read.ok().map(Arc::new),
                () = self.gate.lets_go(&self.cover) => None,
            };
            drop(held);
            let _ = tell.send(read.clone());
            match read {
                Some(data) => self.store(data).await,
                None => self.forget_with_cover(),
            }
        });
        let read = told.map(|read| read.ok().flatten()).boxed().shared();
        (task.abort_handle(), read)
    }

    /// Where its cover goes nobody will find it among those that were read ahead. Under another it serves what the kernel asks
    /// for, and is not read once more.
    fn forget_with_cover(&self) {
        let goes = self.gate.lets_go(&self.cover).now_or_never().is_some();
        if let Some(s) = self.strides.upgrade().filter(|_| goes) {
            s.0.lock().forget(&self.blocks, &self.cover);
        }
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
        let may_store = blocks.are_pages() && blocks.len < SERVED_BYTES;
        let kernel = self.upcalls.who().filter(|_| may_store);
        let Some(kernel) = kernel else { return };
        let Some(storing) = self.gate.begin_store(&self.cover) else {
            return self.forget_with_cover();
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
            self.servers.stats.strided_stores.add(stored);
            // while no other cover can come: a batch of the same blocks under that has other data
            if let Some(s) = self.strides.upgrade().filter(|_| stored > 0) {
                // a copy: the page alone would keep the whole answer
                let left = data[0].slice(0..PAGE_BYTES as usize).copy_to_bytes();
                let left = Payload::from(Bytes::copy_from_slice(&left));
                s.0.lock().stored(&blocks, &self.cover, left);
            } else {
                self.forget_with_cover();
            }
            drop(storing);
        };
        let _ = tokio::task::spawn_blocking(store).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lov::FileLayout;
    use coral_wire::ldlm::LdlmMode;

    /// What is read ahead after these reads.
    fn ahead_after(reads: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut p = Pattern::default();
        for (at, len) in reads {
            p.note(&(*at..at + len));
        }
        let (mut out, mut start) = (Vec::new(), None);
        while let Some(blocks) = p.next(start, 1 << 40) {
            start = Some(blocks.next());
            out.extend(blocks.all());
        }
        out
    }

    const K: u64 = 1 << 10;

    #[test]
    fn blocks_at_one_distance_are_followed() {
        let every_second: Vec<_> = (0..4).map(|n| (n * 128 * K, 64 * K)).collect();
        let ahead = ahead_after(&every_second);
        assert_eq!(ahead, [512 * K..576 * K, 640 * K..704 * K], "128 KiB");
        assert!(
            ahead_after(&every_second[..3]).is_empty(),
            "twice is chance"
        );
        // the kernel may ask for a block in parts
        let parts: Vec<_> = (0..4)
            .flat_map(|n| [(n * 4096 * K, 512 * K), (n * 4096 * K + 512 * K, 512 * K)])
            .collect();
        let ahead = ahead_after(&parts);
        assert_eq!((ahead.len(), &ahead[0]), (1, &(16384 * K..17408 * K)));
        let far: Vec<_> = (0..4).map(|n| (n * 800 * K, 4 * K)).collect();
        let ahead = ahead_after(&far);
        assert_eq!((ahead.len(), &ahead[0]), (32, &(3200 * K..3204 * K)));
    }

    #[test]
    fn what_is_read_ahead_grows_with_what_is_asked_for() {
        let mut st = State::default();
        (0..3).for_each(|n| assert!(read(&mut st, n * 8 * K, 4 * K).is_empty()));
        read(&mut st, 24 * K, 4 * K);
        let counts = |st: &State| {
            st.batches
                .iter()
                .map(|b| b.blocks.count)
                .collect::<Vec<_>>()
        };
        assert_eq!(counts(&st), [32]);
        for expected in [&[32, 128][..], &[128, 256, 256], &[256, 256, 256, 256, 256]] {
            let (first, at) = (st.pattern.followed == 0, st.pattern.block.start);
            let came_to = if first { 0 } else { 1 };
            let batch = st.batches[came_to].blocks.start;
            assert!(batch > at);
            read(&mut st, batch, 4 * K);
            assert_eq!(counts(&st), expected);
        }
        // another distance begins with little again
        (0..4).for_each(|n| drop(read(&mut st, (90_000 + n * 12) * K, 4 * K)));
        assert_eq!(counts(&st), [32]);
    }

    /// Two batches of the same blocks: what the earlier one has stored says nothing of the data of the later.
    #[test]
    fn a_batch_under_another_cover_is_another() {
        let cover = || Cover::new(Arc::new(FileLayout::none()), LdlmMode::PR, Vec::new());
        let (old, new) = (cover(), cover());
        let mut st = State::default();
        (0..4).for_each(|n| drop(read(&mut st, n * 8 * K, 4 * K)));
        st.batches[0].cover = Arc::downgrade(&new);
        let blocks = st.batches[0].blocks;
        let page = |b: u8| Payload::from(Bytes::from(vec![b; PAGE_BYTES as usize]));
        let has = |st: &State| {
            st.batches[0]
                .data
                .clone()
                .now_or_never()
                .expect("it is there")
        };
        st.stored(&blocks, &Arc::downgrade(&old), page(1));
        assert!(has(&st).is_none());
        st.stored(&blocks, &Arc::downgrade(&new), page(2));
        assert!(has(&st).is_some());
        st.forget(&blocks, &Arc::downgrade(&old));
        assert_eq!(st.batches.len(), 1);
        st.forget(&blocks, &Arc::downgrade(&new));
        assert!(st.batches.is_empty());
    }

    #[test]
    fn batches_begin_before_the_end_of_the_file() {
        let mut p = Pattern::default();
        (0..4).for_each(|n| p.note(&(n * 8 * K..n * 8 * K + 4 * K)));
        p.followed = 9;
        let next = |start, size| {
            p.next(start, size)
                .map(|b: Blocks| (b.start, b.count, b.end()))
        };
        assert_eq!(next(None, 32 * K), None);
        assert_eq!(next(None, 32 * K + 1), Some((32 * K, 1, 36 * K)));
        assert_eq!(next(None, 41 * K), Some((32 * K, 2, 44 * K)));
        assert_eq!(next(Some(48 * K), 41 * K), None);
        let count = next(Some(48 * K), u64::MAX).map(|b| b.1);
        assert_eq!(count, Some(BATCH_BLOCKS));
        assert_eq!(next(Some(1 << 30), u64::MAX), None, "far enough");
    }

    /// Takes a read in, as [`StrideReads::read`] does; where the batches begin, KiB.
    fn read(st: &mut State, at: u64, len: u64) -> Vec<u64> {
        st.note(&(at..at + len));
        while let Some(blocks) = st.next(u64::MAX) {
            st.batches.push(Batch {
                blocks,
                cover: Weak::new(),
                changes: 0,
                data: ready(None).boxed().shared(),
                task: None,
            });
        }
        st.batches.iter().map(|b| b.blocks.start / K).collect()
    }

    #[test]
    fn a_program_is_followed_from_batch_to_batch() {
        let mut st = State::default();
        for n in 0..3 {
            assert!(read(&mut st, n * 128 * K, 64 * K).is_empty());
        }
        st.pattern.followed = 9;
        assert_eq!(read(&mut st, 384 * K, 64 * K), [512, 2560, 4608, 6656]);
        // the first page of a batch is all that the kernel asks for
        let next = [512, 2560, 4608, 6656, 8704];
        assert_eq!(read(&mut st, 512 * K, 4 * K), next);
        let batch = st.batches[0].blocks;
        assert!(!st.wants(&batch, &batch.nth(0)) && st.wants(&batch, &batch.nth(1)));
        let next = [2560, 4608, 6656, 8704, 10752];
        assert_eq!(read(&mut st, 2560 * K, 4 * K), next);
        assert!(!st.wants(&batch, &batch.nth(1)), "it was passed");
        // a part of a block before is asked for once more
        assert_eq!(read(&mut st, 2572 * K, 4 * K), next);
        assert!(read(&mut st, 99 * K, 4 * K).is_empty());
        assert!(st.batches.is_empty());
    }

    #[test]
    fn every_second_page_is_guessed_from_what_the_kernel_begins() {
        let mut st = State::default();
        for n in 0..2 {
            assert!(read(&mut st, n * 16 * K, 16 * K).is_empty());
        }
        st.pattern.followed = 9;
        // 256 blocks, the first of which is four pages
        let batches = [48, 2104, 4160, 6216];
        assert_eq!(read(&mut st, 32 * K, 16 * K), batches);
        let batch = st.batches[0].blocks;
        let pages = [0, 1, 2, 255]
            .map(|n| batch.nth(n))
            .map(|b| (b.start / K, b.end / K));
        assert_eq!(pages, [(48, 64), (64, 68), (72, 76), (2096, 2100)]);
        let has = |at: u64, len: u64| batch.has(&(at * K..(at + len) * K));
        assert_eq!(
            (has(48, 4), has(52, 12), has(64, 4)),
            (Some(0), Some(0), Some(1))
        );
        assert_eq!(
            (has(68, 4), has(64, 8), has(2096, 4)),
            (None, None, Some(255))
        );
        assert_eq!((has(2100, 4), has(2104, 4), has(44, 4)), (None, None, None));
        // all is stored but the first page; then it is not, and the kernel begins once more
        assert_eq!(read(&mut st, 2104 * K, 4 * K)[0], 2104);
        assert_eq!(read(&mut st, 2120 * K, 16 * K)[0], 2104);
        assert_eq!(st.pattern.block, 2120 * K..2124 * K);
        // pages in between are asked for: not such a program
        for _ in 1..STRAYS {
            assert_eq!(read(&mut st, 2124 * K, 4 * K)[0], 2104);
        }
        assert_eq!(read(&mut st, 4160 * K, 4 * K)[0], 4160, "it goes on");
        for _ in 1..STRAYS {
            assert_eq!(read(&mut st, 4180 * K, 4 * K)[0], 4160);
        }
        assert!(read(&mut st, 4188 * K, 4 * K).is_empty());
        for n in 0..20 {
            assert!(read(&mut st, (6000 + n * 16) * K, 16 * K).is_empty());
        }
        // other programs are followed all the same
        for n in 1..4 {
            read(&mut st, (8000 + n * 128) * K, 64 * K);
        }
        assert_eq!(read(&mut st, 8512 * K, 64 * K)[0], 8640);
    }

    #[tokio::test]
    async fn who_comes_before_pages_are_stored_is_followed_for_longer() {
        let mut st = State::default();
        for n in 0..3 {
            read(&mut st, n * 16 * K, 16 * K);
        }
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        let places = Arc::new(Semaphore::new(1));
        let place = places.try_acquire_owned().expect("one is free");
        st.batches[0].task = Some(Task::new(task, place));
        let between = 68 * K..72 * K;
        for _ in 1..STRAYS * TOO_SOON {
            st.note(&between);
            assert!(st.pattern.guessed);
        }
        st.note(&between);
        assert!(!st.pattern.guessed && st.batches.is_empty());
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
