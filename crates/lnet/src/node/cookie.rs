//! Handle cookies: numbers that never come twice and that nobody can foretell.
//!
//! A counter goes through a permutation of 64-bit numbers (four rounds of a Feistel network, each keyed by ChaCha), so that it
//! stays one to one. The counter begins elsewhere in every life of a node; the key depends on its seed.
//! Lustre counts handles up from a random base (`class_handle_hash`, `lustre/obdclass/lustre_handles.c`).

use std::sync::atomic::{AtomicU64, Ordering};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Rounds of the network.
const ROUNDS: u64 = 4;
/// 32-bit words of one block of ChaCha.
const BLOCK_WORDS: u128 = 16;
/// Keeps the key apart from the numbers that the node's generator gives for the same seed.
const KEY_OF: u64 = 0x636f_6f6b_6965_7321;

/// Gives cookies.
pub(super) struct Cookies {
    key: [u8; 32],
    next: AtomicU64,
}

impl Cookies {
    /// `first` differs between lives of a node; `seed` is the node's.
    pub(super) fn new(first: u64, seed: u64) -> Cookies {
        let mut key = [0; 32];
        ChaCha8Rng::seed_from_u64(seed ^ KEY_OF).fill_bytes(&mut key);
        Cookies {
            key,
            next: AtomicU64::new(first),
        }
    }

    /// The next one; never 0 nor all ones.
    pub(super) fn next(&self) -> u64 {
        loop {
            let cookie = self.permuted(self.next.fetch_add(1, Ordering::Relaxed));
            if cookie != 0 && cookie != u64::MAX {
                return cookie;
            }
        }
    }

    fn permuted(&self, n: u64) -> u64 {
        let (mut left, mut right) = ((n >> 32) as u32, n as u32);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.word(round, right));
        }
        u64::from(left) << 32 | u64::from(right)
    }

    /// A word that depends on the key, the round and `half`.
    fn word(&self, round: u64, half: u32) -> u32 {
        let mut stream = ChaCha8Rng::from_seed(self.key);
        stream.set_stream(round);
        stream.set_word_pos(u128::from(half) * BLOCK_WORDS);
        stream.next_u32()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn none_comes_twice_and_none_is_near_another() {
        let c = Cookies::new(u64::MAX - 5000, 7);
        let all: Vec<u64> = (0..10_000).map(|_| c.next()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let near = all
            .windows(2)
            .filter(|w| w[0].abs_diff(w[1]) < 1 << 40)
            .count();
        assert!(
            near < 10,
            "{near} of {} follow each other closely",
            all.len()
        );
    }

    #[test]
    fn another_seed_or_another_life_gives_others() {
        let some = |first, seed| {
            (0..1000)
                .map({
                    let c = Cookies::new(first, seed);
                    move |_| c.next()
                })
                .collect::<BTreeSet<_>>()
        };
        let base = some(0, 1);
        assert!(base.is_disjoint(&some(0, 2)) && base.is_disjoint(&some(5000, 1)));
        assert_eq!(base, some(0, 1), "a seed repeats a run");
    }
}
