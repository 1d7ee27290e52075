//! What IOR and mdtest write and verify.
//!
//! A buffer is filled once for a rank and changed a little for each transfer, so that each transfer differs and filling
//! costs nothing. The words are those of the original (hpc/ior: `src/utilities.c`): data of one is verified by the other.

use super::random::rand_r;

/// Kinds of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pattern {
    /// Rank and position in the buffer.
    #[default]
    Timestamp,
    /// The same, and the offset in the file at each 4 KiB.
    Offset,
    /// A word of the seed, and the offset in the file at each 4 KiB.
    Incompressible,
    /// Each transfer of its own random words.
    Random,
}

/// Words from one that holds the offset to the next.
const OFFSET_WORDS: usize = 512;
const GOLDEN: u64 = 0x9e37_ffff_fffc_0001;

impl Pattern {
    /// By the first letter of its name, as the originals do it. None for another letter.
    pub fn named(name: &str) -> Option<Pattern> {
        match name.as_bytes().first() {
            None | Some(b't') => Some(Pattern::Timestamp),
            Some(b'i') => Some(Pattern::Incompressible),
            Some(b'o') => Some(Pattern::Offset),
            Some(b'r') => Some(Pattern::Random),
            Some(_) => None,
        }
    }

    /// The number of it in IOR's JSON.
    pub fn number(self) -> usize {
        match self {
            Pattern::Timestamp => 0,
            Pattern::Incompressible => 1,
            Pattern::Offset => 2,
            Pattern::Random => 3,
        }
    }

    /// A transfer needs its own data: there is work between two transfers.
    pub fn changes(self) -> bool {
        self != Pattern::Timestamp
    }

    /// Fills a rank's buffer, before the first transfer.
    pub fn fill(self, buffer: &mut [u8], seed: u32, rank: u32) {
        let basis = self.basis(seed, rank);
        let (words, rest) = buffer.as_chunks_mut::<8>();
        for (i, word) in words.iter_mut().enumerate() {
            *word = basis.word(i).to_le_bytes();
        }
        let start = words.len() * 8;
        for (i, byte) in rest.iter_mut().enumerate() {
            *byte = (start + i) as u8;
        }
    }

    /// Makes the buffer that of the transfer at `item`: an offset in a file, or the number of a file.
    pub fn update(self, item: u64, buffer: &mut [u8], seed: u32, rank: u32) {
        let (words, _) = buffer.as_chunks_mut::<8>();
        match self {
            Pattern::Timestamp => {}
            Pattern::Random => {
                let mut state = random_start(item, seed, rank);
                for word in words {
                    state = random_next(state);
                    *word = state.to_le_bytes();
                }
            }
            Pattern::Offset | Pattern::Incompressible => {
                for (k, word) in words.iter_mut().step_by(OFFSET_WORDS).enumerate() {
                    *word = offset_word(item, k, rank).to_le_bytes();
                }
            }
        }
    }

    /// The first byte of `buffer` that is not what [`Pattern::fill`] and [`Pattern::update`] put there.
    pub fn wrong(self, item: u64, buffer: &[u8], seed: u32, rank: u32) -> Option<usize> {
        let basis = self.basis(seed, rank);
        let mut state = random_start(item, seed, rank);
        let (words, rest) = buffer.as_chunks::<8>();
        for (i, word) in words.iter().enumerate() {
            let expected = match self {
                Pattern::Random => {
                    state = random_next(state);
                    state
                }
                Pattern::Timestamp => basis.word(i),
                Pattern::Offset | Pattern::Incompressible if i % OFFSET_WORDS == 0 => {
                    offset_word(item, i / OFFSET_WORDS, rank)
                }
                Pattern::Offset | Pattern::Incompressible => basis.word(i),
            }
            .to_le_bytes();
            if *word != expected {
                let byte = word.iter().zip(expected).position(|(a, b)| *a != b);
                return Some(i * 8 + byte.unwrap_or(0));
            }
        }
        let start = words.len() * 8;
        let byte = rest
            .iter()
            .enumerate()
            .position(|(i, b)| *b != (start + i) as u8);
        byte.map(|i| start + i)
    }

    fn basis(self, seed: u32, rank: u32) -> Basis {
        match self {
            Pattern::Incompressible => {
                let mut state = seed.wrapping_add(rank);
                let high = u64::from(rand_r(&mut state)) << 32;
                Basis {
                    mask: high | u64::from(rand_r(&mut state)),
                    counter: None,
                }
            }
            // The seed is a signed number in the original; its sign reaches the upper half.
            _ => Basis {
                mask: u64::from(rank) << 32,
                counter: Some(i64::from(seed as i32) as u64),
            },
        }
    }
}

/// The words of a buffer before a transfer changes some.
struct Basis {
    mask: u64,
    counter: Option<u64>,
}

impl Basis {
    fn word(&self, i: usize) -> u64 {
        self.mask | self.counter.map_or(0, |c| c.wrapping_add(i as u64))
    }
}

fn offset_word(item: u64, k: usize, rank: u32) -> u64 {
    u64::from((item as u32).wrapping_mul(k as u32 + 1)) | (u64::from(rank) << 32)
}

fn random_start(item: u64, seed: u32, rank: u32) -> u64 {
    let mut state = seed.wrapping_add(rank).wrapping_add(item as u32);
    u64::from(rand_r(&mut state))
}

fn random_next(state: u64) -> u64 {
    state.wrapping_mul(GOLDEN) >> 3
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Pattern; 4] = [
        Pattern::Timestamp,
        Pattern::Offset,
        Pattern::Incompressible,
        Pattern::Random,
    ];

    #[test]
    fn the_words_are_the_ones_of_ior() {
        let mut buffer = vec![0; 8192];
        let word = |b: &[u8], i: usize| {
            u64::from_le_bytes(b[i * 8..][..8].try_into().expect("eight bytes"))
        };
        Pattern::Offset.fill(&mut buffer, 1000, 3);
        Pattern::Offset.update(4096 * 7, &mut buffer, 1000, 3);
        assert_eq!(word(&buffer, 0), (3 << 32) | (4096 * 7));
        assert_eq!(word(&buffer, 1), (3 << 32) | 1001);
        assert_eq!(word(&buffer, 511), (3 << 32) | 1511);
        assert_eq!(word(&buffer, 512), (3 << 32) | (4096 * 14));
        Pattern::Timestamp.fill(&mut buffer, 1000, 3);
        assert_eq!(word(&buffer, 512), (3 << 32) | 1512);
        // rand_r(573) gives 232209523, then 787916368
        Pattern::Incompressible.fill(&mut buffer, 573, 0);
        assert_eq!(word(&buffer, 9), (232_209_523 << 32) | 787_916_368);
        // rand_r(1) gives 476707713
        Pattern::Random.update(1, &mut buffer, 0, 0);
        let first = 476_707_713_u64.wrapping_mul(GOLDEN) >> 3;
        assert_eq!(word(&buffer, 0), first);
        assert_eq!(word(&buffer, 1), first.wrapping_mul(GOLDEN) >> 3);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found_where_it_is() {
        for pattern in ALL {
            for size in [64, 4096, 10_003, 8] {
                let mut buffer = vec![0; size];
                pattern.fill(&mut buffer, 77, 5);
                pattern.update(123_456, &mut buffer, 77, 5);
                assert_eq!(pattern.wrong(123_456, &buffer, 77, 5), None, "{pattern:?}");
                for at in [0, 7, size / 2, size - 1] {
                    let mut bad = buffer.clone();
                    bad[at] ^= 1 << (at % 8);
                    assert_eq!(pattern.wrong(123_456, &bad, 77, 5), Some(at), "{pattern:?}");
                }
            }
        }
    }

    #[test]
    fn data_of_another_rank_seed_or_offset_is_wrong() {
        for pattern in ALL {
            let mut buffer = vec![0; 4096];
            pattern.fill(&mut buffer, 77, 5);
            pattern.update(8192, &mut buffer, 77, 5);
            assert!(pattern.wrong(8192, &buffer, 77, 6).is_some(), "{pattern:?}");
            if pattern != Pattern::Timestamp {
                assert!(pattern.wrong(4096, &buffer, 77, 5).is_some(), "{pattern:?}");
            }
            assert!(pattern.wrong(8192, &buffer, 78, 5).is_some(), "{pattern:?}");
        }
    }
}
