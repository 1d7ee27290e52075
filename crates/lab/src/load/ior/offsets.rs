//! Where a task's transfers go: by position, shuffled within a block (`-z`), or anywhere (`-z -z`).
//!
//! With the same seed these are the offsets of the original (hpc/ior: `src/ior.c`), so that either verifies what the
//! other wrote. One thing differs: `-z -z` writes over the file that was planned. The original divides by the
//! size that it learns at the first read, which is zero then.

use super::params::Params;
use crate::load::random::Rand;

/// The offsets of one task.
#[derive(Debug)]
pub(super) struct Offsets {
    block: i64,
    transfer: i64,
    /// Bytes from a segment to the next.
    stride: i64,
    /// Where the task's block begins in a segment.
    start: i64,
    order: Order,
}

#[derive(Debug)]
enum Order {
    Straight,
    Shuffled(Vec<i64>),
    Random(Anywhere),
}

#[derive(Debug)]
struct Anywhere {
    numbers: Rand64,
    blocks: u64,
    last_first: bool,
    at: i64,
}

impl Offsets {
    /// Of the task that acts as `task` of `tasks`. `seed` is the same for all tasks. `file_bytes` is the size of the file,
    /// for `-z -z`; `last_first` if its last block is to be touched first, so that the file has its size.
    pub(super) fn new(
        p: &Params,
        task: u32,
        tasks: u32,
        seed: u32,
        file_bytes: i64,
        last_first: bool,
    ) -> Offsets {
        let own_file = p.file_per_proc != 0;
        let seed = if own_file {
            seed.wrapping_add(task)
        } else {
            seed
        };
        let tasks = i64::from(tasks);
        let shuffled = p.random_offset == 1;
        let order = match p.random_offset {
            0 => Order::Straight,
            1 if own_file => Order::Shuffled(shuffled_own(p, seed)),
            1 => Order::Shuffled(shuffled_dealt(p, seed, task, tasks)),
            _ => Order::Random(Anywhere {
                numbers: Rand64(0, u64::from(seed).wrapping_mul(u64::from(task) + 1)),
                blocks: (file_bytes / p.block_size).max(1) as u64,
                last_first,
                at: 0,
            }),
        };
        Offsets {
            block: p.block_size,
            transfer: p.transfer_size,
            stride: if own_file {
                p.block_size
            } else {
                tasks * p.block_size
            },
            // Dealt offsets are those of the whole segment already.
            start: if own_file || shuffled {
                0
            } else {
                i64::from(task) * p.block_size
            },
            order,
        }
    }

    /// Transfers of this task in a segment.
    pub(super) fn in_segment(&self) -> i64 {
        match &self.order {
            Order::Shuffled(offsets) => offsets.len() as i64,
            Order::Straight | Order::Random(_) => self.block / self.transfer,
        }
    }

    /// The offset of transfer `j` in `segment`. Called in order: `-z -z` draws a block at its first transfer.
    pub(super) fn at(&mut self, segment: i64, j: i64) -> i64 {
        let base = segment * self.stride + self.start;
        match &mut self.order {
            Order::Straight => base + j * self.transfer,
            Order::Shuffled(offsets) => base + offsets[j as usize],
            Order::Random(any) => {
                if j == 0 {
                    let drawn = any.numbers.next() % any.blocks;
                    let last = any.last_first && segment == 0;
                    any.at = if last { any.blocks - 1 } else { drawn } as i64 * self.block;
                }
                any.at + j * self.transfer
            }
        }
    }
}

fn shuffled_own(p: &Params, seed: u32) -> Vec<i64> {
    let count = p.block_size / p.transfer_size;
    let mut offsets: Vec<i64> = (0..count).map(|i| i * p.transfer_size).collect();
    shuffle(&mut offsets, &mut Rand::new(seed));
    offsets
}

/// Each transfer of a segment goes to a random task, so tasks have different numbers of them.
fn shuffled_dealt(p: &Params, seed: u32, task: u32, tasks: i64) -> Vec<i64> {
    let mut rand = Rand::new(seed);
    let all = (0..p.block_size * tasks).step_by(p.transfer_size as usize);
    let mut offsets: Vec<i64> = all
        .filter(|_| i64::from(rand.next()) % tasks == i64::from(task))
        .collect();
    shuffle(&mut offsets, &mut rand);
    offsets
}

fn shuffle(offsets: &mut [i64], rand: &mut Rand) {
    for i in 0..offsets.len() {
        offsets.swap(rand.next() as usize % offsets.len(), i);
    }
}

/// IOR's random numbers of 64 bits: the upper half of a product, high and low word.
#[derive(Debug)]
struct Rand64(u64, u64);

impl Rand64 {
    fn next(&mut self) -> u64 {
        self.1 = self.1.wrapping_mul(0x8664_58cd_56f5_e605);
        self.0 = self
            .0
            .wrapping_mul(0x0fc9_4e3b_f4e9_ab32)
            .wrapping_add(self.1 >> 32);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(own: i64, random: i64) -> Params {
        Params {
            block_size: 64,
            transfer_size: 8,
            segments: 3,
            file_per_proc: own,
            random_offset: random,
            ..Params::default()
        }
    }

    fn all(p: &Params, task: u32, tasks: u32) -> Vec<i64> {
        let mut o = Offsets::new(p, task, tasks, 42, 64 * 3 * i64::from(tasks), true);
        let n = o.in_segment();
        (0..p.segments)
            .flat_map(|s| (0..n).map(move |j| (s, j)))
            .map(|(s, j)| o.at(s, j))
            .collect()
    }

    #[test]
    fn tasks_cover_each_file_once() {
        for (own, random) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let p = params(own, random);
            let mut seen: Vec<i64> = (0..4).flat_map(|t| all(&p, t, 4)).collect();
            seen.sort_unstable();
            let each = if own == 0 { 1 } else { 4 };
            let size = if own == 0 { 4 } else { 1 } * 3 * 64;
            let expected: Vec<i64> = (0..size / 8).flat_map(|i| vec![i * 8; each]).collect();
            assert_eq!(seen, expected, "own file {own}, random {random}");
        }
    }

    #[test]
    fn segments_lie_as_ior_lays_them() {
        assert_eq!(all(&params(0, 0), 1, 4)[..2], [64, 72]);
        assert_eq!(all(&params(0, 0), 1, 4)[8], 4 * 64 + 64);
        assert_eq!(all(&params(1, 0), 1, 4)[8], 64);
    }

    #[test]
    fn shuffled_offsets_are_the_ones_that_the_c_library_draws() {
        // srand(42 + 0): 71876166, 708592740, 1483128881, 907283241, 442951012 modulo 8 is 6, 4, 1, 1, 4, ...
        let first = all(&params(1, 1), 0, 1);
        let mut by_hand: Vec<i64> = (0..8).map(|i| i * 8).collect();
        let mut rand = Rand::new(42);
        for i in 0..8 {
            let other = rand.next() as usize % 8;
            by_hand.swap(other, i);
        }
        assert_eq!(first[..8], by_hand);
        assert_ne!(first[..8], [0, 8, 16, 24, 32, 40, 48, 56]);
    }

    #[test]
    fn random_blocks_stay_in_the_file_and_the_last_comes_first() {
        let seen = all(&params(1, 2), 0, 1);
        assert_eq!(seen[0], 2 * 64);
        assert!(seen.iter().all(|o| (0..3 * 64).contains(o)));
        assert!(seen.chunks(8).all(|b| b[0] % 64 == 0 && b[7] == b[0] + 56));
    }
}
