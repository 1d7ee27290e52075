//! Which small files have their data in the cache: put there for their first read. Within a bound; what came first goes first.

use std::collections::VecDeque;

use coral_wire::fid::Fid;

/// All data, bytes: more than is read ahead for some tens of programs.
const MOST_BYTES: usize = 8 << 20;
/// What a file takes beside its data, roughly.
const EACH_BYTES: usize = 256;

/// Data of a file, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub fid: Fid,
    /// Of all that came.
    pub number: u64,
    bytes: usize,
}

/// The files, in the order in which their data came. Those that have none any more are among them until it is their turn.
#[derive(Default)]
pub(super) struct Contents {
    came: VecDeque<Came>,
    bytes: usize,
    last: u64,
}

impl Contents {
    /// So many bytes of a file come: their number.
    pub fn come(&mut self, fid: Fid, len: usize) -> u64 {
        let bytes = len + EACH_BYTES;
        self.last += 1;
        self.bytes += bytes;
        let number = self.last;
        self.came.push_back(Came { fid, number, bytes });
        number
    }

    /// What has to go, if it is there still.
    pub fn beyond(&mut self) -> Option<Came> {
        if self.bytes <= MOST_BYTES {
            return None;
        }
        let first = self.came.pop_front()?;
        self.bytes -= first.bytes;
        Some(first)
    }

    /// Nothing has data.
    pub fn clear(&mut self) {
        self.came.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_go_and_the_sum_is_bounded() {
        let mut c = Contents::default();
        let fid = |n: u64| Fid::new(1, n as u32, 0);
        let mut gone = 0;
        for n in 1..20_000 {
            assert_eq!(c.come(fid(n), 16 << 10), n);
            while let Some(came) = c.beyond() {
                gone += 1;
                assert_eq!((came.fid, came.number), (fid(gone), gone));
            }
            assert!((n - gone) as usize * (16 << 10) <= MOST_BYTES);
        }
        assert!(gone > 0);
        c.clear();
        assert_eq!(c.beyond(), None);
    }
}
