//! The random numbers of the C library, which decide what IOR writes where.
//!
//! With the same seed, ranks must touch the same offsets and write the same bytes as the original does: a file that one
//! of them wrote is verified by the other. Read from the behaviour of glibc's `rand` and `rand_r`.

/// `rand()` after `srand(seed)`: additive feedback over 31 words.
#[derive(Debug, Clone)]
pub struct Rand {
    words: [u32; 31],
    at: usize,
}

/// The word that is replaced first: three beyond the one that is added to it.
const START: usize = 3;
/// Numbers that `srand` throws away.
const DISCARDED: usize = 310;

impl Rand {
    /// As after `srand(seed)`.
    pub fn new(seed: u32) -> Rand {
        let mut words = [0_u32; 31];
        words[0] = if seed == 0 { 1 } else { seed };
        for i in 1..31 {
            // A signed remainder, as the C library computes it.
            let product = 16807 * i64::from(words[i - 1] as i32) % 2_147_483_647;
            words[i] = (if product < 0 {
                product + 2_147_483_647
            } else {
                product
            }) as u32;
        }
        let mut rand = Rand { words, at: START };
        for _ in 0..DISCARDED {
            rand.next();
        }
        rand
    }

    /// The next number, at most 2^31 - 1.
    #[expect(
        clippy::should_implement_trait,
        reason = "an endless source needs no Option"
    )]
    pub fn next(&mut self) -> u32 {
        // word n is word n-3 plus word n-31; the oldest of 31 words is the one to be replaced
        let value = self.words[self.at].wrapping_add(self.words[(self.at + 28) % 31]);
        self.words[self.at] = value;
        self.at = (self.at + 1) % 31;
        value >> 1
    }
}

/// Greatest number that [`Rand::next`] and [`rand_r`] give.
pub const RAND_MAX: u32 = 0x7fff_ffff;

/// `rand_r(&seed)`.
pub fn rand_r(seed: &mut u32) -> u32 {
    let mut step = || {
        *seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        *seed / 65_536
    };
    let high = step() % 2048;
    let middle = step() % 1024;
    let low = step() % 1024;
    (((high << 10) ^ middle) << 10) ^ low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What glibc 2.36 gives.
    #[test]
    fn the_numbers_are_those_of_the_c_library() {
        for (seed, expected) in [(1, RAND_1), (42, RAND_42), (4_000_000_000, RAND_BIG)] {
            let mut rand = Rand::new(seed);
            assert_eq!([(); 5].map(|()| rand.next()), expected, "srand({seed})");
        }
        for (seed, expected) in [
            (1, RAND_R_1),
            (573, RAND_R_573),
            (4_000_000_000, RAND_R_BIG),
        ] {
            let mut state = seed;
            assert_eq!(
                [(); 3].map(|()| rand_r(&mut state)),
                expected,
                "rand_r({seed})"
            );
        }
    }

    const RAND_1: [u32; 5] = [1804289383, 846930886, 1681692777, 1714636915, 1957747793];
    const RAND_42: [u32; 5] = [71876166, 708592740, 1483128881, 907283241, 442951012];
    const RAND_BIG: [u32; 5] = [1111130805, 1380198982, 1306113867, 1557021840, 1956528986];
    const RAND_R_1: [u32; 3] = [476707713, 1186278907, 505671508];
    const RAND_R_573: [u32; 3] = [232209523, 787916368, 1350756878];
    const RAND_R_BIG: [u32; 3] = [487554599, 1168232177, 1272124963];
}
