//! What is to be done once the transaction that asks for it is on disk: the loss of power may undo it before that, and an object
//! that is destroyed does not come back.
//!
//! Marks are those of [`crate::target::LuTarget::mark`].

use std::collections::VecDeque;

/// Rows held in memory. What is beyond is read from its table, once it is on disk.
const WAITING_MAX: usize = 65_536;
/// So many rows that wait ask for a sync before the next periodic one.
pub(super) const EARLY_ROWS: usize = 8_192;
/// So does one row whose space is on a device of which less than this part is free,
const EARLY_FREE_PART: u64 = 10;
/// and fewer bytes: more than is written to it until the next periodic sync.
const EARLY_FREE_BYTES: u64 = 16 << 30;

/// Whether so little of a device is free that what can be freed should be soon; all in blocks.
pub(crate) fn low_space(avail: u64, all: u64, block_bytes: u32) -> bool {
    avail < all / EARLY_FREE_PART && avail.saturating_mul(u64::from(block_bytes)) < EARLY_FREE_BYTES
}

/// Rows that wait, in the order of their marks.
pub(super) struct Waiting<T> {
    parts: VecDeque<(u64, Vec<T>)>,
    count: usize,
    /// Mark of the last row that found no room.
    spilled: Option<u64>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting {
            parts: VecDeque::new(),
            count: 0,
            spilled: None,
        }
    }
}

/// What is on disk now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ripe<T> {
    pub(super) rows: Vec<T>,
    /// There are more, in the table only.
    pub(super) spilled: bool,
}

impl<T: Clone> Waiting<T> {
    /// These rows are on disk once everything up to `mark` is.
    pub(super) fn add(&mut self, mark: u64, rows: &[T]) {
        if rows.is_empty() {
            return;
        }
        if self.count + rows.len() > WAITING_MAX {
            self.spilled = self.spilled.max(Some(mark));
            return;
        }
        self.count += rows.len();
        // Who read the table may be late: that waits a little longer.
        let mark = self.parts.back().map_or(mark, |(last, _)| mark.max(*last));
        self.parts.push_back((mark, rows.to_vec()));
    }

    /// Takes out what is on disk when everything up to `durable` is.
    pub(super) fn ripe(&mut self, durable: u64) -> Ripe<T> {
        let mut rows = Vec::new();
        while self.parts.front().is_some_and(|(mark, _)| *mark <= durable) {
            rows.extend(
                self.parts
                    .pop_front()
                    .into_iter()
                    .flat_map(|(_, part)| part),
            );
        }
        self.count -= rows.len();
        let spilled = self.spilled.is_some_and(|mark| mark <= durable);
        if spilled {
            self.spilled = None;
        }
        Ripe { rows, spilled }
    }

    /// All rows held.
    pub(super) fn rows(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flat_map(|(_, part)| part)
    }

    /// Whether so many wait that a sync is worth its while.
    pub(super) fn many(&self) -> bool {
        self.count >= EARLY_ROWS || self.spilled.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_when_their_mark_is_on_disk() {
        let mut w = Waiting::default();
        w.add(3, &["a", "b"]);
        w.add(7, &["c"]);
        w.add(5, &["late"]);
        assert_eq!(
            w.ripe(2),
            Ripe {
                rows: vec![],
                spilled: false
            }
        );
        assert_eq!(
            w.ripe(6),
            Ripe {
                rows: vec!["a", "b"],
                spilled: false
            }
        );
        assert_eq!(w.rows().collect::<Vec<_>>(), [&"c", &"late"]);
        assert_eq!(
            w.ripe(7),
            Ripe {
                rows: vec!["c", "late"],
                spilled: false
            }
        );
        assert_eq!(w.count, 0);
    }

    #[test]
    fn what_finds_no_room_is_read_from_the_table_once_it_is_on_disk() {
        let mut w = Waiting::default();
        let part: Vec<u64> = (0..1000).collect();
        for mark in 0..EARLY_ROWS as u64 / 1000 {
            w.add(mark, &part);
        }
        assert!(!w.many());
        for mark in 0..100 {
            w.add(100 + mark, &part);
        }
        assert!(w.many() && w.count <= WAITING_MAX);
        let some = w.ripe(150);
        assert!(!some.spilled && !some.rows.is_empty());
        assert!(w.ripe(199).spilled && !w.ripe(199).spilled);
        assert!(!w.many());
    }
}
