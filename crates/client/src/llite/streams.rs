//! Reading ahead of programs that read a file from one place on without a gap.
//!
//! The kernel reads ahead too, but a fixed number of bytes, which fill no long way: a window of 1 MiB and 20 ms there and back are 50 MB/s.
//! And what it reads ahead of large blocks at a distance lies between them. So it reads ahead little (`fuse/src/init.rs`), and what it is
//! going to ask for is read here before: into memory of the client, from where it is served.
//!
//! Lustre: `lustre/llite/rw.c` (`ras_update`, `ll_readahead`), whose window grows by a fixed step up to `max_read_ahead_per_file_mb`.
//!
//! # Invariants
//! - A piece is read and served under one and the same [`Cover`], whose locks are all there, and only as long as this client has changed
//!   nothing of the file since it was asked for ([`DataChanges`]). So it is what the server would answer.
//! - The pieces of a file adjoin; what is served is all that was asked for, or ends where the file does.
//! - No more is read ahead than was read in a row, nor than the window. Where a stream ended before it had used that, the next one has to
//!   be longer before it is one.
//! - What is kept is bounded for the mount ([`KEPT_MIB`]), in equal parts for those who read. It goes when it was passed, when the program
//!   goes elsewhere or has read to the end, with the open file, and where the file is not read for [`IDLE`] and others want its place. With
//!   a piece its reading ends; what an OST was asked for already still comes, and is dropped then (`ptlrpc/src/call.rs`).
//! - Nothing is read ahead while the file is truncated: a truncate by its path knows only of those who had it open before.
//! - No lock is kept for a piece once its cover is to go: the reading of it ends.
//!
//! [`DataChanges`]: super::covers::DataChanges

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_buffers::Payload;
use coral_wire::fid::Fid;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::covers::{Cover, Gate, OpenInode};
use super::servers::Servers;
use super::strides::Task;

const PAGE_BYTES: u64 = 4096;
const MIB: u64 = 1 << 20;
/// So many bytes in a row, in several reads, are a stream.
const BEGINS_BYTES: u64 = 256 << 10;
/// After a stream of so many bytes the next one may begin as early as the first.
const SURE_BYTES: u64 = 8 * MIB;
/// What is read ahead of one at first, bytes; twice as much with each piece that the program has come through too soon.
const WINDOW_MIN: u64 = 4 * MIB;
/// At most. 19 ms there and back at 10 Gb/s are 24 MB.
const WINDOW_MAX: u64 = 32 * MIB;
/// A piece is a fourth of the window, within these: no less than is worth a request, no more than one request of each OST carries.
const PIECE_MIN: u64 = 256 << 10;
const PIECE_MAX: u64 = 4 * MIB;
/// A piece was wanted too soon that was passed within so many times the time there and back: the way is not full, or just so. A read with
/// data goes there and back twice. Where it takes longer, the program or the servers are what it waits for; of slow disks near by a larger
/// window would keep more busy, but from here they look like busy processors.
const TOO_SOON: u32 = 4;
/// One that was passed after so many times that time came too early: half as much will do.
const TOO_EARLY: u32 = 16;
/// What is kept for all open files of a mount, MiB.
const KEPT_MIB: u64 = 128;
/// What is kept of a file that was not read for so long may go.
const IDLE: Duration = Duration::from_secs(1);
/// The kernel's requests overtake one another by so many bytes.
const SLACK: u64 = 2 * MIB;
/// What is passed over for good, because the kernel has it, is forgotten by one byte for so many that are read. Where more is passed over the
/// program reads blocks at a distance.
const PASSED_OVER: u64 = 8;

/// What came of a piece; `None`: whoever wants it asks himself.
type Reading = Shared<BoxFuture<'static, Option<Arc<Came>>>>;

/// What a piece has.
struct Came {
    /// It ends where the file does.
    data: Payload,
    /// The time there and back to where it came from.
    distance: Duration,
}

/// A part of the file that is read ahead.
struct Piece {
    range: Range<u64>,
    cover: Weak<Cover>,
    /// Changes of the file by this client before it.
    changes: u64,
    begun: Instant,
    came: Reading,
    _task: Task,
}

/// How far a program has read.
#[derive(Debug)]
struct Run {
    /// Where what was read so far ends.
    next: u64,
    /// Bytes that were read without a gap.
    bytes: u64,
    reads: u64,
    /// Of them, those that were passed over and may be asked for still.
    skipped: u64,
    /// 0: it is no stream.
    window: u64,
    /// So many bytes make it one.
    begins: u64,
    /// The file ends here, by what came.
    end: u64,
}

impl Default for Run {
    fn default() -> Run {
        Run {
            next: 0,
            bytes: 0,
            reads: 0,
            skipped: 0,
            window: 0,
            begins: BEGINS_BYTES,
            end: u64::MAX,
        }
    }
}

impl Run {
    /// Takes a read in; `ahead`: where what is read ahead of it ends. False: the program has gone elsewhere. Where its blocks are at one
    /// distance they are no streams: it may not begin.
    fn note(&mut self, read: &Range<u64>, ahead: u64, may_begin: bool) -> bool {
        let len = read.end - read.start;
        let behind = read.end <= self.next && read.end + SLACK > self.next;
        if self.window > 0 && behind {
            self.skipped = self.skipped.saturating_sub(len);
            return true;
        }
        let gap = read.start.checked_sub(self.next);
        let goes_on = match gap {
            Some(0) => true,
            Some(gap) => self.window > 0 && read.start < ahead && self.skipped + gap <= SLACK,
            None => false,
        };
        if !goes_on {
            let begins = match self.window {
                0 => self.begins,
                _ if self.bytes >= SURE_BYTES => BEGINS_BYTES,
                _ => 2 * self.bytes,
            };
            *self = Run {
                next: read.end,
                bytes: len,
                reads: 1,
                begins,
                ..Run::default()
            };
            return false;
        }
        if read.start >= self.end {
            // it has grown
            self.end = u64::MAX;
        }
        let skipped = self.skipped + gap.unwrap_or(0);
        self.skipped = skipped.saturating_sub(len / PASSED_OVER);
        self.next = read.end;
        self.bytes = self.bytes.saturating_add(len);
        self.reads += 1;
        if self.window == 0 && may_begin && self.reads > 1 && self.bytes >= self.begins {
            (self.window, self.begins) = (WINDOW_MIN, BEGINS_BYTES);
        }
        true
    }

    /// A piece was passed so long after it was begun.
    fn passed(&mut self, after: Duration, distance: Duration) {
        if after < distance * TOO_SOON {
            self.window = (2 * self.window).min(WINDOW_MAX);
        } else if after > distance * TOO_EARLY {
            self.window = (self.window / 2).max(WINDOW_MIN);
        }
    }

    /// What is to be read ahead now where it is read ahead up to `ahead`, of a file of `size` bytes, and no more than `most` bytes.
    fn piece(&self, ahead: u64, size: u64, most: u64) -> Option<Range<u64>> {
        let size = size.min(self.end).min(i64::MAX as u64);
        let start = ahead.max(self.next);
        let window = self.window.min(self.bytes).min(most);
        let len = (window / 4).clamp(PIECE_MIN, PIECE_MAX);
        let end = start.checked_add(len)?;
        if self.window == 0 || start >= size || end > self.next.saturating_add(window) {
            return None;
        }
        Some(start..end.min(size.next_multiple_of(PAGE_BYTES)))
    }
}

/// How an open file is read in a row, and what was read ahead.
#[derive(Default)]
pub(super) struct Stream(Mutex<State>);

#[derive(Default)]
struct State {
    run: Run,
    /// Ascending and adjoining.
    pieces: VecDeque<Piece>,
    /// When it was read last.
    read: Option<Instant>,
}

impl State {
    fn ahead(&self) -> u64 {
        self.pieces.back().map_or(0, |p| p.range.end)
    }

    /// Takes a read in, and lets go of what will not be asked for any more.
    fn note(&mut self, read: &Range<u64>, may_begin: bool) {
        if !self.run.note(read, self.ahead(), may_begin) {
            return self.pieces.clear();
        }
        let next = self.run.next;
        let passed = |p: &Piece| p.range.end.saturating_add(SLACK) <= next;
        while self.pieces.front().is_some_and(passed)
            && let Some(p) = self.pieces.pop_front()
        {
            if let Some(Some(came)) = p.came.now_or_never() {
                self.run.passed(p.begun.elapsed(), came.distance);
            }
        }
    }

    /// The pieces in which all of this range is, under `cover` and with these `changes`; what is of before is let go.
    fn find(
        &mut self,
        read: &Range<u64>,
        cover: &Arc<Cover>,
        changes: u64,
    ) -> Vec<(Range<u64>, Reading)> {
        let is_good = |p: &Piece| p.cover.as_ptr() == Arc::as_ptr(cover) && p.changes == changes;
        if !self.pieces.iter().all(is_good) {
            self.pieces.clear();
            self.run.end = u64::MAX;
        }
        let begins = self.pieces.front().map(|p| p.range.start);
        if begins.is_none_or(|start| read.start < start) || self.ahead() < read.end {
            return Vec::new();
        }
        let touches = |p: &&Piece| p.range.start < read.end && read.start < p.range.end;
        let found = self.pieces.iter().filter(touches);
        found.map(|p| (p.range.clone(), p.came.clone())).collect()
    }

    /// Nothing came of this piece: neither it nor those behind it are of use.
    fn forget(&mut self, piece: &Range<u64>, cover: &Arc<Cover>) {
        let same = |p: &Piece| p.range == *piece && p.cover.as_ptr() == Arc::as_ptr(cover);
        if self.pieces.iter().any(same) {
            self.pieces.clear();
        }
    }

    /// Adds a piece to those that adjoin.
    fn push(&mut self, piece: Piece) {
        if self.ahead() != piece.range.start {
            self.pieces.clear();
        }
        self.pieces.push_back(piece);
    }
}

/// What was asked for, of these pieces: all of it, or up to the end of the file, where that is; `None`: it is to be asked for.
fn joined(read: &Range<u64>, pieces: &[(Range<u64>, Arc<Came>)]) -> Option<(Payload, Option<u64>)> {
    let (mut out, mut at) = (Payload::new(), read.start);
    for (range, came) in pieces {
        let (from, to) = (
            at.checked_sub(range.start)?,
            read.end.min(range.end) - range.start,
        );
        let len = came.data.len() as u64;
        let is_end = len < range.end - range.start;
        let to = to.min(len);
        if from < to {
            out.append(came.data.slice(from as usize..to as usize));
            at = range.start + to;
        }
        if is_end {
            return Some((out, Some(range.start + len)));
        }
    }
    (at == read.end).then_some((out, None))
}

/// What a read is.
pub(super) enum InARow {
    /// It was read ahead.
    Served(Payload),
    /// It goes on where the one before ended, and is to be asked for.
    Unserved,
    /// None in a row.
    No,
}

/// Reads ahead for all open files of a mount.
pub(super) struct Streams {
    servers: Arc<Servers>,
    places: Arc<Semaphore>,
    /// Open files of which something was read ahead.
    all: Mutex<Vec<Weak<Stream>>>,
}

impl Streams {
    pub(super) fn new(servers: Arc<Servers>) -> Streams {
        Streams {
            servers,
            places: Arc::new(Semaphore::new(KEPT_MIB as usize)),
            all: Mutex::default(),
        }
    }

    /// What was read ahead of a read under `cover`, if it was; what follows is begun, where it may.
    pub(super) async fn read(
        &self,
        (stream, inode): (&Arc<Stream>, &Arc<OpenInode>),
        may_begin: bool,
        cover: &Arc<Cover>,
        read: Range<u64>,
    ) -> InARow {
        {
            let mut st = stream.0.lock();
            st.note(&read, may_begin);
            if st.run.window == 0 {
                return InARow::No;
            }
        }
        match self.served(stream, inode, cover, &read).await {
            Some(data) => InARow::Served(data),
            None => InARow::Unserved,
        }
    }

    /// What was read ahead of a read of a stream, if it was; what follows is begun.
    async fn served(
        &self,
        stream: &Arc<Stream>,
        inode: &Arc<OpenInode>,
        cover: &Arc<Cover>,
        read: &Range<u64>,
    ) -> Option<Payload> {
        let offset = read.start;
        let (changes, found, size) = {
            let mut st = stream.0.lock();
            let changes = inode.data.quiet()?;
            st.read = Some(Instant::now());
            let found = st.find(read, cover, changes);
            // where it is old the file has grown elsewhere
            let size = inode.rough_size().filter(|size| offset < *size);
            let size = size.unwrap_or(u64::MAX);
            drop(st);
            if !inode.gate.is_truncating() {
                self.go_on(stream, inode, cover, (size, changes));
            }
            (changes, found, size)
        };
        let mut pieces = Vec::with_capacity(found.len());
        for (range, came) in found {
            match came.await {
                Some(came) => pieces.push((range, came)),
                None => {
                    stream.0.lock().forget(&range, cover);
                    return None;
                }
            }
        }
        let (data, end) = joined(read, &pieces)?;
        if inode.data.quiet() != Some(changes) || !cover.is_whole() {
            return None;
        }
        if end.is_some() || read.end >= size {
            // nobody else needs what is left: it is read to its end
            let mut st = stream.0.lock();
            st.run.end = end.unwrap_or(st.run.end);
            st.pieces.clear();
        }
        self.servers.stats.stream_hits.inc();
        Some(data)
    }

    /// Begins what is to be read ahead now.
    fn go_on(
        &self,
        stream: &Arc<Stream>,
        inode: &Arc<OpenInode>,
        cover: &Arc<Cover>,
        (size, changes): (u64, u64),
    ) {
        let next = |st: &State, most| st.run.piece(st.ahead(), size, most);
        if next(&stream.0.lock(), WINDOW_MAX).is_none() {
            return;
        }
        let most = self.share(stream);
        let mut st = stream.0.lock();
        while let Some(range) = next(&st, most)
            && let Some(piece) = self.begin(range, inode, cover, changes)
        {
            st.push(piece);
        }
    }

    /// The bytes that may be kept of this file, which is noted; what is kept of those that are read no more goes.
    fn share(&self, stream: &Arc<Stream>) -> u64 {
        let mut all = self.all.lock();
        let mut reading = 1;
        all.retain(|other| {
            let Some(other) = other.upgrade() else {
                return false;
            };
            if Arc::ptr_eq(&other, stream) {
                return false;
            }
            let mut st = other.0.lock();
            let is_read = st.read.is_some_and(|at| at.elapsed() < IDLE);
            if !is_read {
                st.pieces.clear();
                st.read = None;
            }
            reading += u64::from(is_read);
            is_read
        });
        all.push(Arc::downgrade(stream));
        (KEPT_MIB * MIB / reading).max(PIECE_MIN)
    }

    /// Begins to read a piece. `None`: enough is kept.
    fn begin(
        &self,
        range: Range<u64>,
        inode: &Arc<OpenInode>,
        cover: &Arc<Cover>,
        changes: u64,
    ) -> Option<Piece> {
        let mib = (range.end - range.start).div_ceil(MIB) as u32;
        let places = self.places.clone().try_acquire_many_owned(mib).ok()?;
        let ahead = Ahead {
            servers: self.servers.clone(),
            gate: inode.gate.clone(),
            fid: inode.fid,
            cover: Arc::downgrade(cover),
            range: range.clone(),
        };
        let (task, came) = ahead.begin(cover);
        self.servers.stats.stream_reads.inc();
        Some(Piece {
            range,
            cover: Arc::downgrade(cover),
            changes,
            begun: Instant::now(),
            came,
            _task: Task::new(task, places),
        })
    }
}

/// A piece on its way. It keeps nothing open, and no lock once it is read.
struct Ahead {
    servers: Arc<Servers>,
    gate: Arc<Gate>,
    fid: Fid,
    cover: Weak<Cover>,
    range: Range<u64>,
}

impl Ahead {
    fn begin(self, cover: &Cover) -> (AbortHandle, Reading) {
        let (layout, held) = (cover.layout.clone(), cover.held());
        let (tell, told) = oneshot::channel();
        let task = tokio::spawn(async move {
            let len = (self.range.end - self.range.start) as usize;
            let lov = &self.servers.lov;
            let far = lov.distance(&layout, self.fid, &self.range).await;
            let distance = far.unwrap_or_default();
            let read = lov.read(&layout, self.fid, self.range.start, len, &held);
            let read = tokio::select! {
                read = read => read.ok(),
                () = self.gate.lets_go(&self.cover) => None,
            };
            drop(held);
            let _ = tell.send(read.map(|data| Arc::new(Came { data, distance })));
        });
        let read = told.map(|read| read.ok().flatten()).boxed().shared();
        (task.abort_handle(), read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    /// Takes reads in, one after the other from `from` on, of `len` bytes each; what is begun, where `ahead` is read ahead already.
    fn reads_on(
        run: &mut Run,
        from: u64,
        len: u64,
        times: u64,
        ahead: &mut u64,
    ) -> Vec<Range<u64>> {
        let mut begun = Vec::new();
        for n in 0..times {
            let at = from + n * len;
            if !run.note(&(at..at + len), *ahead, true) {
                *ahead = 0;
            }
            while let Some(piece) = run.piece(*ahead, u64::MAX, u64::MAX) {
                *ahead = piece.end;
                begun.push(piece);
            }
        }
        begun
    }

    #[test]
    fn several_reads_in_a_row_are_a_stream() {
        let (mut run, mut ahead) = (Run::default(), 0);
        assert!(reads_on(&mut run, 0, MIB, 1, &mut ahead).is_empty());
        let begun = reads_on(&mut run, MIB, MIB, 1, &mut ahead);
        assert_eq!((begun[0].start, ahead), (2 * MIB, 4 * MIB), "as much again");
        assert!(begun.windows(2).all(|p| p[0].end == p[1].start));
        reads_on(&mut run, 2 * MIB, MIB, 9, &mut ahead);
        let most = 11 * MIB + WINDOW_MIN;
        assert!(ahead <= most && ahead > most - MIB, "{ahead}");
        let (mut run, mut ahead) = (Run::default(), 0);
        assert!(reads_on(&mut run, 0, 4 * K, 63, &mut ahead).is_empty());
        let begun = reads_on(&mut run, 252 * K, 4 * K, 1, &mut ahead);
        assert_eq!((begun.len(), &begun[0]), (1, &(256 * K..512 * K)));
    }

    #[test]
    fn the_window_is_as_large_as_the_way_is_long() {
        let ms = Duration::from_millis;
        let (mut run, mut ahead) = (Run::default(), 0);
        reads_on(&mut run, 0, MIB, 40, &mut ahead);
        // the program waits for data that need not come from far: more ahead would not help
        run.passed(ms(8), ms(1));
        assert_eq!(run.window, WINDOW_MIN);
        for _ in 0..9 {
            run.passed(ms(21), ms(20));
        }
        let begun = reads_on(&mut run, 40 * MIB, MIB, 1, &mut ahead);
        assert_eq!(run.window, WINDOW_MAX);
        assert!(ahead > 41 * MIB + WINDOW_MAX - PIECE_MAX);
        assert!(begun.iter().all(|p| p.end - p.start == PIECE_MAX));
        // it is a slow program now
        (0..9).for_each(|_| run.passed(ms(999), ms(20)));
        assert_eq!(run.window, WINDOW_MIN);
        // others read too
        assert_eq!(
            run.piece(0, u64::MAX, MIB),
            Some(41 * MIB..41 * MIB + PIECE_MIN)
        );
        assert_eq!(run.piece(0, u64::MAX, PIECE_MIN - 1), None);
    }

    #[test]
    fn who_goes_elsewhere_begins_anew_and_later() {
        for elsewhere in [0, 3 * MIB / 2, 100 * MIB] {
            let (mut run, mut ahead) = (Run::default(), 0);
            reads_on(&mut run, 50 * MIB, 128 * K, 8, &mut ahead);
            assert!(ahead > 51 * MIB);
            assert!(
                !run.note(&(elsewhere..elsewhere + K), ahead, true),
                "{elsewhere}"
            );
            assert_eq!((run.window, run.bytes, run.next), (0, K, elsewhere + K));
            assert_eq!(run.begins, 2 * MIB);
        }
        // large blocks at random, each asked for in two requests
        let (mut run, mut ahead, mut bytes) = (Run::default(), 0, 0);
        for n in 0..100 {
            let begun = reads_on(&mut run, (n * 7919 % 1000) * 4 * MIB, MIB, 2, &mut ahead);
            bytes += begun.iter().map(|p| p.end - p.start).sum::<u64>();
        }
        assert!(bytes <= 2 * MIB, "{bytes} bytes in vain");
        // and then from one place on
        assert!(!reads_on(&mut run, 0, MIB, 17, &mut ahead).is_empty());
    }

    #[test]
    fn requests_may_overtake_one_another() {
        let (mut run, mut ahead) = (Run::default(), 0);
        reads_on(&mut run, 0, 128 * K, 8, &mut ahead);
        let at = |n: u64| n * 128 * K..(n + 1) * 128 * K;
        for n in [9, 8, 10, 12, 13, 11, 14] {
            assert!(run.note(&at(n), ahead, true), "{n}");
        }
        assert_eq!((run.next, run.skipped), (15 * 128 * K, 0));
    }

    /// Blocks at a distance are for `strides.rs`, also behind what was read in a row.
    #[test]
    fn blocks_at_a_distance_are_no_stream() {
        let (mut run, mut ahead) = (Run::default(), 0);
        for n in 0..50 {
            assert!(reads_on(&mut run, n * 2 * MIB, MIB, 1, &mut ahead).is_empty());
        }
        // where the kernel asks for less, each is read in parts: one of them begins, in vain
        let (mut run, mut ahead, mut bytes) = (Run::default(), 0, 0);
        for n in 0..50 {
            let begun = reads_on(&mut run, n * 2 * MIB, 128 * K, 8, &mut ahead);
            bytes += begun.iter().map(|p| p.end - p.start).sum::<u64>();
        }
        assert!(bytes <= 2 * MIB, "{bytes} bytes in vain");
        let (mut run, mut ahead) = (Run::default(), 0);
        reads_on(&mut run, 200 * MIB, MIB, 9, &mut ahead);
        let distant = |n: u64| 210 * MIB + n * 2 * MIB..211 * MIB + n * 2 * MIB;
        let goes_on = |run: &mut Run, n: u64| {
            run.passed(Duration::from_millis(8), Duration::from_millis(1));
            run.note(&distant(n), u64::MAX, true)
        };
        let ends = (0..50).find(|n| !goes_on(&mut run, *n));
        assert!(ends.is_some_and(|n| n <= SLACK / MIB), "{ends:?}");
        // the kernel has a page here and there
        let (mut run, mut ahead) = (Run::default(), 0);
        for n in 0..500 {
            reads_on(&mut run, n * MIB + 64 * K, 240 * K, 4, &mut ahead);
        }
        assert_eq!(run.bytes, 500 * 960 * K);
    }

    #[test]
    fn nothing_is_read_ahead_behind_the_end() {
        let (mut run, mut ahead) = (Run::default(), 0);
        reads_on(&mut run, 0, MIB, 4, &mut ahead);
        let all = u64::MAX;
        assert_eq!(run.piece(0, 4 * MIB, all), None);
        let last = Some(4 * MIB..4 * MIB + 8 * K);
        assert_eq!(run.piece(0, 4 * MIB + 5 * K, all), last);
        run.end = 4 * MIB + 5 * K;
        assert_eq!(run.piece(0, all, all), last);
        let mut last = Run {
            next: u64::MAX - K,
            bytes: WINDOW_MIN,
            window: WINDOW_MIN,
            ..Run::default()
        };
        assert_eq!(last.piece(0, all, all), None);
        assert!(!last.note(&(0..K), 0, true));
    }

    #[test]
    fn blocks_at_a_distance_do_not_begin_one() {
        let mut run = Run::default();
        for n in 0..20 {
            run.note(&(n * MIB..(n + 1) * MIB), 0, false);
            assert_eq!(run.window, 0);
        }
        run.note(&(20 * MIB..21 * MIB), 0, true);
        assert_eq!(run.window, WINDOW_MIN);
    }

    /// Pieces that came, with as many bytes of each as said.
    fn came(pieces: &[(Range<u64>, u64)]) -> Vec<(Range<u64>, Arc<Came>)> {
        let one = |(range, len): &(Range<u64>, u64)| {
            let bytes: Vec<u8> = (range.start..range.start + len).map(|b| b as u8).collect();
            let came = Came {
                data: Payload::from(bytes::Bytes::from(bytes)),
                distance: Duration::ZERO,
            };
            (range.clone(), Arc::new(came))
        };
        pieces.iter().map(one).collect()
    }

    #[test]
    fn what_is_served_is_all_that_was_asked_for() {
        let get = |read: Range<u64>, pieces: &[(Range<u64>, u64)]| {
            let (data, end) = joined(&read, &came(pieces))?;
            Some((data.copy_to_bytes().to_vec(), end))
        };
        let bytes = |r: Range<u8>| r.collect::<Vec<u8>>();
        let two = [(10..20, 10), (20..30, 10)];
        assert_eq!(get(10..30, &two), Some((bytes(10..30), None)));
        assert_eq!(get(15..25, &two), Some((bytes(15..25), None)));
        assert_eq!(get(9..12, &two[..1]), None, "before");
        assert_eq!(get(15..31, &two), None, "behind");
        assert_eq!(get(15..25, &[(10..20, 10), (21..30, 9)]), None, "a gap");
        assert_eq!(get(15..25, &[]), None);
        // the file ends in the first, or in the second
        let ends = [(10..20, 7), (20..30, 0)];
        assert_eq!(get(15..25, &ends), Some((bytes(15..17), Some(17))));
        assert_eq!(get(18..25, &ends), Some((Vec::new(), Some(17))));
        let ends = [(10..20, 10), (20..30, 3)];
        assert_eq!(get(15..25, &ends), Some((bytes(15..23), Some(23))));
    }
}
