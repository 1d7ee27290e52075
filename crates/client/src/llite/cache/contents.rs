//! Which small files have their data in the cache: put there for their first read. Within a bound; what was read goes before what was not,
//! and of these what came first.

use std::collections::BTreeMap;

use coral_wire::fid::Fid;

/// All data, bytes.
const MOST_BYTES: usize = 16 << 20;
/// What a file takes beside its data, roughly.
const EACH_BYTES: usize = 256;

/// The files by the numbers with which their data came. Those that have none any more are among them until it is their turn.
#[derive(Default)]
pub(super) struct Contents {
    unread: BTreeMap<u64, (Fid, usize)>,
    read: BTreeMap<u64, (Fid, usize)>,
    bytes: usize,
    last: u64,
}

impl Contents {
    /// So many bytes of a file come: their number.
    pub fn come(&mut self, fid: Fid, len: usize) -> u64 {
        let bytes = len + EACH_BYTES;
        self.last += 1;
        self.bytes += bytes;
        self.unread.insert(self.last, (fid, bytes));
        self.last
    }

    /// Somebody has read all of what came with this number.
    pub fn was_read(&mut self, number: u64) {
        if let Some(file) = self.unread.remove(&number) {
            self.read.insert(number, file);
        }
    }

    /// What has to go, if it is there still: a file, and the number of its data.
    pub fn beyond(&mut self) -> Option<(Fid, u64)> {
        if self.bytes <= MOST_BYTES {
            return None;
        }
        let first = self.read.pop_first().or_else(|| self.unread.pop_first());
        let (number, (fid, bytes)) = first?;
        self.bytes -= bytes;
        Some((fid, number))
    }

    /// Nothing has data.
    pub fn clear(&mut self) {
        self.unread.clear();
        self.read.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fid(n: u64) -> Fid {
        Fid::new(1, n as u32)
    }

    #[test]
    fn the_first_go_and_the_sum_is_bounded() {
        let mut c = Contents::default();
        let mut gone = 0;
        for n in 1..20_000 {
            assert_eq!(c.come(fid(n), 16 << 10), n);
            while let Some(went) = c.beyond() {
                gone += 1;
                assert_eq!(went, (fid(gone), gone));
            }
            assert!((n - gone) as usize * (16 << 10) <= MOST_BYTES);
        }
        assert!(gone > 0);
        c.clear();
        assert_eq!(c.beyond(), None);
    }

    #[test]
    fn what_was_read_goes_first() {
        let mut c = Contents::default();
        let each = MOST_BYTES / 4;
        for n in 1..=3 {
            c.come(fid(n), each);
        }
        c.was_read(2);
        c.was_read(2);
        c.was_read(77);
        c.come(fid(4), each);
        assert_eq!(c.beyond(), Some((fid(2), 2)));
        assert_eq!(c.beyond(), None);
        c.come(fid(5), each);
        assert_eq!(c.beyond(), Some((fid(1), 1)));
    }
}
