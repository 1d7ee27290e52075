//! The blocks that a program writes which has every n-th one of a file, as the processes of a parallel program do that share it.
//!
//! Where others write the blocks between, a lock on an extent is one that they wait for. A Coral OST gives each writer a lock on blocks
//! at one distance, if it is told of them ([`Blocks`](coral_wire::coral::blocks::Blocks)).

use parking_lot::Mutex;

/// So many times in a row the same length and the same distance to the next: the program goes on like this.
const TIMES: u32 = 2;

/// Blocks of a file at one distance. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileBlocks {
    /// Where the one begins that is being written.
    pub start: u64,
    /// Of each.
    pub len: u64,
    /// From one to the next.
    pub stride: u64,
}

#[derive(Debug, Default)]
struct Track {
    /// Where the writes began that follow each other, and how long they are by now.
    start: u64,
    len: u64,
    /// Length of the block before, and from it to this one.
    before: (u64, u64),
    /// So often in a row.
    times: u32,
}

/// What an open file was written at.
#[derive(Debug, Default)]
pub(super) struct WriteTrack(Mutex<Track>);

impl WriteTrack {
    /// `len` bytes are being written at `offset`. The blocks of which they are, if there are some.
    pub fn wrote(&self, offset: u64, len: u64) -> Option<FileBlocks> {
        let t = &mut *self.0.lock();
        if offset == t.start.saturating_add(t.len) {
            t.len += len;
        } else {
            let there = offset.checked_sub(t.start).filter(|stride| *stride > t.len);
            let seen = there.map(|stride| (t.len, stride));
            t.times = match seen {
                Some(seen) if seen == t.before => t.times + 1,
                _ => u32::from(seen.is_some()),
            };
            t.before = seen.unwrap_or_default();
            (t.start, t.len) = (offset, len);
        }
        let (of_each, stride) = t.before;
        // one that is longer than those before is none of them
        let goes_on = t.times >= TIMES && t.len <= of_each;
        goes_on.then_some(FileBlocks {
            start: t.start,
            len: of_each,
            stride,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(track: &WriteTrack, writes: &[(u64, u64)]) -> Vec<bool> {
        let seen = writes.iter().map(|(at, len)| track.wrote(*at, *len));
        seen.map(|b| b.is_some()).collect()
    }

    #[test]
    fn blocks_at_one_distance_are_seen_from_the_third_on() {
        let t = WriteTrack::default();
        assert_eq!(all(&t, &[(10, 4), (20, 4), (30, 4)]), [false, false, true]);
        let blocks = |start| FileBlocks {
            start,
            len: 4,
            stride: 10,
        };
        assert_eq!(t.wrote(40, 4), Some(blocks(40)));
        // a block in two writes
        assert_eq!(t.wrote(50, 2), Some(blocks(50)));
        assert_eq!(t.wrote(52, 2), Some(blocks(50)));
        assert_eq!(t.wrote(60, 4), Some(blocks(60)));
        // longer than a block
        assert_eq!(t.wrote(64, 4), None);
    }

    #[test]
    fn a_stream_and_what_goes_back_are_none() {
        let t = WriteTrack::default();
        let stream: Vec<(u64, u64)> = (0..9).map(|i| (i * 4, 4)).collect();
        assert_eq!(all(&t, &stream), [false; 9]);
        assert_eq!(
            all(&t, &[(0, 4), (90, 4), (50, 4), (200, 4), (100, 4)]),
            [false; 5]
        );
        assert_eq!(all(&t, &[(10, 4), (20, 4), (31, 4), (43, 4)]), [false; 4]);
        assert!(t.wrote(55, 4).is_some());
    }
}
