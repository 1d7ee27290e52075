//! Extent locks on blocks at one distance: what a program writes that has every n-th block of a file.
//!
//! They stand in the fourth word of an extent's policy, which Lustre leaves 0: the length of a block in its lower half, the distance
//! from one to the next in its upper half, both in pages of 4 KiB.

/// Blocks and distances are multiples of this, bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Of each `stride` bytes of an extent, counted from its start, the first `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    len: u64,
    stride: u64,
}

impl Blocks {
    /// Blocks of `len` bytes, from one to the next `stride`. `None`: these are not whole pages, there is no gap between them, or they are
    /// too far apart to be told (16 TiB).
    pub fn new(len: u64, stride: u64) -> Option<Blocks> {
        let whole = len.is_multiple_of(PAGE_BYTES) && stride.is_multiple_of(PAGE_BYTES);
        let told = 0 < len && len < stride && stride / PAGE_BYTES <= u64::from(u32::MAX);
        (whole && told).then_some(Blocks { len, stride })
    }

    /// Bytes of each.
    pub fn of_each(&self) -> u64 {
        self.len
    }

    /// From one to the next, bytes.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// The word of a policy; `None`: all of the extent is meant.
    pub fn from_wire(word: u64) -> Option<Blocks> {
        let half = |w: u64| (w & u64::from(u32::MAX)) * PAGE_BYTES;
        Blocks::new(half(word), half(word >> 32))
    }

    /// As [`Blocks::from_wire`] reads it.
    pub fn to_wire(self) -> u64 {
        (self.len / PAGE_BYTES) | ((self.stride / PAGE_BYTES) << 32)
    }
}

/// The bytes of an extent that a lock is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The last byte that can be one of them.
    pub end: u64,
    /// `None`: all from the first to the last.
    pub blocks: Option<Blocks>,
}

impl Span {
    /// All bytes from `start` to `end`, which is one of them.
    pub const fn all(start: u64, end: u64) -> Span {
        Span {
            start,
            end,
            blocks: None,
        }
    }

    /// The first of them that is not before `at`.
    pub fn next(&self, at: u64) -> Option<u64> {
        let at = at.max(self.start);
        let at = match self.blocks {
            None => at,
            Some(b) => match (at - self.start) % b.stride {
                within if within < b.len => at,
                behind => at.checked_add(b.stride - behind)?,
            },
        };
        (at <= self.end).then_some(at)
    }

    /// The end of the bytes that follow each other from `at`, which is one of them, on: the last of these.
    pub fn last_from(&self, at: u64) -> u64 {
        match self.blocks {
            None => self.end,
            Some(b) => {
                let left = b.len - (at - self.start) % b.stride;
                self.end.min(at.saturating_add(left - 1))
            }
        }
    }

    /// Every byte from `first` to `last` is one of them.
    pub fn has(&self, first: u64, last: u64) -> bool {
        self.next(first) == Some(first) && last <= self.last_from(first)
    }

    /// Some byte is in both. Of blocks at different distances this is said to be so wherever their extents meet, and of those at the same
    /// distance where they would meet if neither had an end.
    pub fn touches(&self, other: &Span) -> bool {
        let (from, to) = (self.start.max(other.start), self.end.min(other.end));
        let begins = |s: &Span| s.next(from).is_some_and(|at| at <= to);
        match (self.blocks, other.blocks) {
            _ if from > to => false,
            (None, _) => begins(other),
            (_, None) => begins(self),
            (Some(a), Some(b)) if a.stride == b.stride => {
                let stride = a.stride;
                let behind = (other.start % stride + stride - self.start % stride) % stride;
                behind < a.len || stride - behind < b.len
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span() -> impl Strategy<Value = Span> {
        let pages = (0u64..12, 1u64..40, prop::option::of((1u64..5, 1u64..5)));
        pages.prop_map(|(start, len, blocks)| Span {
            start: start * PAGE_BYTES,
            end: (start + len) * PAGE_BYTES - 1,
            blocks: blocks
                .and_then(|(len, gap)| Blocks::new(len * PAGE_BYTES, (len + gap) * PAGE_BYTES)),
        })
    }

    /// The pages that it has.
    fn pages(s: &Span) -> Vec<bool> {
        let has = |page: u64| {
            let at = page * PAGE_BYTES;
            let block = |b: Blocks| (at - s.start) % b.stride < b.len;
            at >= s.start && at <= s.end && s.blocks.is_none_or(block)
        };
        (0..64).map(has).collect()
    }

    proptest! {
        #[test]
        fn it_has_the_bytes_of_its_blocks(a in span(), b in span(), first in 0u64..50, len in 1u64..8) {
            let (mine, others) = (pages(&a), pages(&b));
            let next = (first..64).find(|p| mine[*p as usize]).map(|p| p * PAGE_BYTES);
            prop_assert_eq!(a.next(first * PAGE_BYTES), next);
            let all = (first..first + len).all(|p| mine[p as usize]);
            prop_assert_eq!(a.has(first * PAGE_BYTES, (first + len) * PAGE_BYTES - 1), all);
            let both = mine.iter().zip(&others).any(|(a, b)| *a && *b);
            prop_assert!(a.touches(&b) || !both, "they share a byte");
            prop_assert_eq!(a.touches(&b), b.touches(&a));
            if a.blocks.is_none() || b.blocks.is_none() {
                prop_assert_eq!(a.touches(&b), both);
            }
        }

        /// Those that go on to the end of the object, as locks do.
        #[test]
        fn blocks_at_one_distance_are_told_apart(start in 0u64..30, other in 0u64..30, len in 1u64..6, of_other in 1u64..6, stride in 7u64..12) {
            let to_the_end = |start: u64, len: u64| Span {
                start: start * PAGE_BYTES,
                end: u64::MAX,
                blocks: Blocks::new(len * PAGE_BYTES, stride * PAGE_BYTES),
            };
            let (a, b) = (to_the_end(start, len), to_the_end(other, of_other));
            let both = pages(&a).iter().zip(pages(&b)).any(|(a, b)| *a && b);
            prop_assert_eq!(a.touches(&b), both);
        }

        #[test]
        fn a_word_is_read_as_it_was_written(len in 0u64..1 << 20, stride in 0u64..1 << 20, word: u64) {
            if let Some(b) = Blocks::new(len * PAGE_BYTES, stride * PAGE_BYTES) {
                prop_assert_eq!(Blocks::from_wire(b.to_wire()), Some(b));
            }
            if let Some(b) = Blocks::from_wire(word) {
                prop_assert_eq!(b.to_wire(), word);
            }
        }
    }

    #[test]
    fn no_blocks_are_all_bytes() {
        assert_eq!(Blocks::from_wire(0), None);
        assert_eq!(Blocks::new(4096, 4096), None);
        assert_eq!(Blocks::new(100, 4096), None);
        assert_eq!(Blocks::new(4096, PAGE_BYTES << 32), None);
        let all = Span::all(0, u64::MAX);
        assert!(all.has(0, u64::MAX) && all.next(u64::MAX) == Some(u64::MAX));
    }
}
