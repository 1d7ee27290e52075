//! Reading ahead of programs that read blocks at a distance, such as every second one.
//!
//! The kernel reads ahead where reads follow each other, and asks for each block alone where they do not. What such a program will
//! read next is read here before the kernel asks, and kept with the open file until it does: blocks that lie near each other with
//! what is between them, others each by itself.
//!
//! # Invariants
//! - A piece is read, and served, under one and the same [`Cover`], whose locks are all there: nobody else can have changed it.
//! - It is served only as long as this client has changed nothing of the file since it was asked for ([`DataChanges`]).
//! - A mount keeps [`PIECES`] pieces at most, of [`BLOCK_MAX`] bytes at most; they go with the open file, when its blocks are no longer
//!   at one distance, and when they were passed.
//!
//! [`DataChanges`]: super::covers::DataChanges

use std::ops::Range;
use std::sync::{Arc, Weak};

use coral_buffers::Payload;
use coral_wire::fid::Fid;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::covers::{Cover, OpenInode};
use super::servers::Servers;

/// Blocks at the same distance so often in a row that the next ones are read ahead.
const TIMES: u32 = 2;
/// What is read ahead of one open file.
const AHEAD_BYTES: u64 = 4 << 20;
/// Larger blocks are left to the kernel, which reads ahead within them.
const BLOCK_MAX: u64 = 2 << 20;
/// Blocks up to this size are read with what is between them ...
const NEAR_BLOCK: u64 = 32 << 10;
/// ... if that is at most so many times as long.
const NEAR_TIMES: u64 = 8;
/// In pieces of so many bytes.
const WINDOW: u64 = 1 << 20;
/// Pieces of all open files of a mount.
const PIECES: usize = 64;

/// Part of a file that is read ahead; `None`: it could not be read, whoever wants it asks himself.
type Reading = Shared<BoxFuture<'static, Option<Payload>>>;

struct Piece {
    range: Range<u64>,
    cover: Weak<Cover>,
    /// Changes of the file by this client before it.
    changes: u64,
    data: Reading,
    _permit: OwnedSemaphorePermit,
}

/// How an open file is read, and what was read ahead.
#[derive(Default)]
pub(super) struct Strides(Mutex<State>);

#[derive(Default)]
struct State {
    pattern: Pattern,
    pieces: Vec<Piece>,
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

    /// What is to be read ahead.
    fn ahead(&self) -> Vec<Range<u64>> {
        if self.times < TIMES || self.len == 0 || self.len > BLOCK_MAX {
            return Vec::new();
        }
        let next = |n: u64| {
            self.block
                .start
                .saturating_add(self.stride.saturating_mul(n))
        };
        if self.len <= NEAR_BLOCK && self.stride <= self.len * (NEAR_TIMES + 1) {
            let first = next(1) / WINDOW;
            let windows = [first, first + 1];
            return windows.map(|w| w * WINDOW..(w + 1) * WINDOW).into();
        }
        let count = (AHEAD_BYTES / self.len).clamp(1, 8);
        (1..=count)
            .map(|n| next(n)..next(n).saturating_add(self.len))
            .filter(|r| r.end < i64::MAX as u64)
            .collect()
    }
}

impl State {
    /// The piece in which all of this range is, under `cover` and with these `changes`; pieces of before are let go.
    fn find(
        &mut self,
        read: &Range<u64>,
        cover: &Arc<Cover>,
        changes: u64,
    ) -> Option<(u64, Reading)> {
        let under = Arc::as_ptr(cover);
        self.pieces
            .retain(|p| p.cover.as_ptr() == under && p.changes == changes);
        let piece = (self.pieces.iter())
            .find(|p| p.range.start <= read.start && read.end <= p.range.end)?;
        Some((piece.range.start, piece.data.clone()))
    }

    /// Lets go of what will not be asked for any more.
    fn pass(&mut self) {
        let at = self.pattern.block.start;
        match self.pattern.times {
            0 => self.pieces.clear(),
            _ => self.pieces.retain(|p| p.range.end > at),
        }
    }
}

/// Reads ahead for all open files of a mount.
pub(super) struct StrideReads {
    servers: Arc<Servers>,
    places: Arc<Semaphore>,
}

impl StrideReads {
    pub(super) fn new(servers: Arc<Servers>) -> StrideReads {
        StrideReads {
            servers,
            places: Arc::new(Semaphore::new(PIECES)),
        }
    }

    /// What was read ahead of a read under `cover`, if it was; the next ones are begun.
    pub(super) async fn read(
        &self,
        (strides, inode): (&Strides, &OpenInode),
        cover: &Arc<Cover>,
        offset: u64,
        len_bytes: u32,
    ) -> Option<Payload> {
        let read = offset..offset.checked_add(u64::from(len_bytes))?;
        let (begins, reading) = {
            let mut st = strides.0.lock();
            st.pattern.note(&read);
            st.pass();
            if st.pattern.times < TIMES {
                return None;
            }
            let changes = inode.data.quiet()?;
            let found = st.find(&read, cover, changes);
            let size = inode.rough_size().unwrap_or(u64::MAX);
            let ahead = st.pattern.ahead();
            for range in ahead.into_iter().filter(|r| r.start < size) {
                if !st.pieces.iter().any(|p| p.range == range)
                    && let Ok(permit) = self.places.clone().try_acquire_owned()
                {
                    let data = self.begin(inode.fid, cover, &range);
                    let cover = Arc::downgrade(cover);
                    let piece = Piece {
                        range,
                        cover,
                        changes,
                        data,
                        _permit: permit,
                    };
                    st.pieces.push(piece);
                }
            }
            (changes, found?)
        };
        let (start, data) = reading;
        let data = data.await?;
        if inode.data.quiet() != Some(begins) || !cover.is_whole() {
            return None;
        }
        let from = ((offset - start) as usize).min(data.len());
        let to = (from + len_bytes as usize).min(data.len());
        self.servers.stats.strided_hits.inc();
        Some(data.slice(from..to))
    }

    fn begin(&self, fid: Fid, cover: &Arc<Cover>, range: &Range<u64>) -> Reading {
        let (servers, cover) = (self.servers.clone(), cover.clone());
        let (at, len) = (range.start, (range.end - range.start) as usize);
        let read = tokio::spawn(async move {
            let (layout, held) = (cover.layout.clone(), cover.held());
            drop(cover);
            servers.lov.read(&layout, fid, at, len, &held).await.ok()
        });
        read.map(|done| done.ok().flatten()).boxed().shared()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead_after(reads: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut p = Pattern::default();
        for (at, len) in reads {
            p.note(&(*at..at + len));
        }
        p.ahead()
    }

    const K: u64 = 1 << 10;

    #[test]
    fn blocks_at_one_distance_are_followed() {
        let every_second: Vec<_> = (0..4).map(|n| (n * 128 * K, 64 * K)).collect();
        let ahead = ahead_after(&every_second);
        assert_eq!(ahead.len(), 8);
        assert_eq!(ahead[0], 512 * K..576 * K);
        assert_eq!(ahead[7], (512 + 7 * 128) * K..(576 + 7 * 128) * K);
        assert!(
            ahead_after(&every_second[..3]).is_empty(),
            "twice is chance"
        );
        // the kernel may ask for a block in parts
        let parts: Vec<_> = (0..4)
            .flat_map(|n| [(n * 4096 * K, 512 * K), (n * 4096 * K + 512 * K, 512 * K)])
            .collect();
        let ahead = ahead_after(&parts);
        assert_eq!(ahead.len(), 4);
        assert_eq!(ahead[0], 16384 * K..17408 * K);
        let near: Vec<_> = (0..4).map(|n| (n * 8 * K, 4 * K)).collect();
        assert_eq!(ahead_after(&near), [0..1024 * K, 1024 * K..2048 * K]);
        let far: Vec<_> = (0..4).map(|n| (n * 800 * K, 4 * K)).collect();
        assert_eq!(ahead_after(&far)[0], 3200 * K..3204 * K);
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
