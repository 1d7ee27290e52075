//! Ramp, steady part and tail of a rate over time.
//!
//! The series is cut where its level changes: the cuts that minimise the squared distance from the level of each part, plus a price
//! per cut that comes from the noise between neighbours (optimal partitioning). The part in which most was done, level times length,
//! is steady, with the neighbours close to its level; what is before is the ramp, what is after is the tail. A long wait before the
//! work begins is ramp by that, however long it is.

use super::{mad, median};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Name of the rule.
pub const PHASE_RULE: &str = "optimal partitioning, least squares, 3 sigma^2 ln(n) per cut, sigma from the MAD of differences; parts within 10% are one";
/// Fewest samples of a series that is cut, and of a part.
const MIN_SERIES: usize = 8;
const MIN_PART: usize = 2;
/// Neighbouring parts whose medians differ by less than this share are one.
const SAME_LEVEL: f64 = 0.1;
/// Longest series that is cut as it is; longer ones are averaged down first, because the cost grows with the square.
const MAX_SERIES: usize = 2000;

/// Which samples of a series belong to which part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Before the steady part; may be empty.
    pub ramp: Range<usize>,
    /// The steady part.
    pub steady: Range<usize>,
    /// After it; may be empty.
    pub tail: Range<usize>,
}

/// Cuts `series`, samples at equal distances, by [`PHASE_RULE`]. `None` when it is too short to be cut.
pub fn phases(series: &[f64]) -> Option<Phases> {
    if series.len() < MIN_SERIES || series.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let step = series.len().div_ceil(MAX_SERIES);
    let short: Vec<f64> = series.chunks(step).map(super::mean).collect();
    let steady = steady(&short, &cuts(&short));
    let (from, to) = (steady.start * step, (steady.end * step).min(series.len()));
    Some(Phases {
        ramp: 0..from,
        steady: from..to,
        tail: to..series.len(),
    })
}

/// Ends of the parts, the last of which is the series' end.
fn cuts(series: &[f64]) -> Vec<usize> {
    let n = series.len();
    let differences: Vec<f64> = series.windows(2).map(|w| w[1] - w[0]).collect();
    // A difference of two samples has twice the variance of one.
    let sigma = mad(&differences) / 0.6745 / 2f64.sqrt();
    let scale = series.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let price = 3.0 * sigma.max(scale * 1e-3).powi(2) * (n as f64).ln();
    let (mut sum, mut square) = (vec![0.0; n + 1], vec![0.0; n + 1]);
    for (i, v) in series.iter().enumerate() {
        sum[i + 1] = sum[i] + v;
        square[i + 1] = square[i] + v * v;
    }
    let cost = |a: usize, b: usize| {
        let s: f64 = sum[b] - sum[a];
        square[b] - square[a] - s * s / (b - a) as f64
    };
    // best[i]: the least cost of the first i samples; from[i]: where its last part begins
    let (mut best, mut from) = (vec![f64::INFINITY; n + 1], vec![0; n + 1]);
    best[0] = -price;
    for end in MIN_PART..=n {
        for begin in 0..=end - MIN_PART {
            let c = best[begin] + cost(begin, end) + price;
            if c < best[end] {
                (best[end], from[end]) = (c, begin);
            }
        }
    }
    let mut ends = vec![];
    let mut at = n;
    while at > 0 {
        ends.push(at);
        at = from[at];
    }
    ends.reverse();
    ends
}

fn steady(series: &[f64], ends: &[usize]) -> Range<usize> {
    let parts: Vec<Range<usize>> = std::iter::once(&0)
        .chain(ends)
        .zip(ends)
        .map(|(a, b)| *a..*b)
        .collect();
    let work = |i: usize| series[parts[i].clone()].iter().sum::<f64>();
    let most = (0..parts.len())
        .max_by(|a, b| work(*a).total_cmp(&work(*b)))
        .unwrap_or(0);
    let level = median(&series[parts[most].clone()]);
    let same =
        |i: usize| (median(&series[parts[i].clone()]) - level).abs() <= SAME_LEVEL * level.abs();
    let (mut first, mut last) = (most, most);
    while first > 0 && same(first - 1) {
        first -= 1;
    }
    while last + 1 < parts.len() && same(last + 1) {
        last += 1;
    }
    parts[first].start..parts[last].end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};

    fn noisy(levels: &[(usize, f64)], noise: f64, seed: u64) -> Vec<f64> {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        levels
            .iter()
            .flat_map(|(n, level)| std::iter::repeat_n(*level, *n))
            .map(|level| level + noise * (rng.random::<f64>() - 0.5))
            .collect()
    }

    #[test]
    fn a_flat_series_is_all_steady_and_a_short_one_is_not_cut() {
        let p = phases(&noisy(&[(40, 100.0)], 8.0, 1)).unwrap();
        assert_eq!((p.ramp, p.steady, p.tail), (0..0, 0..40, 40..40));
        assert_eq!(phases(&[1.0; 7]), None);
        assert_eq!(phases(&[0.0; 20]).unwrap().steady, 0..20);
    }

    #[test]
    fn a_slow_climb_is_ramp() {
        // as a cache that fills: 12 samples of climbing, then level
        let mut v: Vec<f64> = (0..12).map(|i| 8.0 * f64::from(i)).collect();
        v.extend(noisy(&[(30, 100.0)], 2.0, 3));
        let p = phases(&v).unwrap();
        assert!(
            (10..=13).contains(&p.ramp.end) && p.tail.is_empty(),
            "{p:?}"
        );
    }

    #[test]
    fn a_wait_before_the_work_is_ramp() {
        let p = phases(&noisy(&[(30, 0.0), (12, 100.0), (4, 0.0)], 0.0, 5)).unwrap();
        assert_eq!((p.ramp, p.steady, p.tail), (0..30, 30..42, 42..46));
    }

    #[test]
    fn a_long_series_is_cut_in_its_own_samples() {
        let v = noisy(&[(3000, 10.0), (9000, 100.0)], 3.0, 4);
        let p = phases(&v).unwrap();
        assert!(
            (2980..=3020).contains(&p.steady.start) && p.steady.end == 12_000,
            "{p:?}"
        );
    }

    proptest! {
        /// Planted levels are found to the sample; noise is a fifth of the step at most.
        #[test]
        fn planted_phases_are_found(
            ramp in 3usize..15, steady in 25usize..60, tail in 3usize..15, noise in 0f64..10.0, seed in 0u64..1000,
        ) {
            let v = noisy(&[(ramp, 40.0), (steady, 100.0), (tail, 20.0)], noise, seed);
            let p = phases(&v).unwrap();
            prop_assert_eq!(p.steady, ramp..ramp + steady);
        }

        #[test]
        fn the_parts_are_the_series(v in prop::collection::vec(0f64..1000.0, 8..200)) {
            let p = phases(&v).unwrap();
            prop_assert_eq!((p.ramp.start, p.ramp.end, p.steady.end, p.tail.end), (0, p.steady.start, p.tail.start, v.len()));
            prop_assert!(!p.steady.is_empty());
        }
    }
}
