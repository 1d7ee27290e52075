//! A against B, with the noise that A has against itself.
//!
//! Runs of A and B are taken in pairs that were close in time, so that what drifts meets both. The floor comes from pairs of A with A.

use super::{Interval, mean, median, sd_sample, t975};
use serde::{Deserialize, Serialize};

/// Fewest pairs of which a verdict is given.
pub const MIN_PAIRS: usize = 3;

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B's figure is higher, beyond chance and beyond the noise floor.
    Higher,
    /// B's figure is lower, beyond chance and beyond the noise floor.
    Lower,
    /// The two cannot be told apart.
    WithinNoise,
    /// Fewer than [`MIN_PAIRS`] pairs.
    NotEnoughRuns,
}

/// B against A.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Pairs of one A and one B.
    pub pairs: usize,
    /// Median of B by median of A.
    pub ratio: f64,
    /// 95% interval of the ratio: Student's t on the logarithms of the pairs' ratios.
    pub ratio95: Option<Interval>,
    /// How far A was from A, as a share: the largest of the A/A pairs. `None` without such pairs.
    pub noise_floor: Option<f64>,
    /// What that means.
    pub verdict: Verdict,
}

/// `pairs` are (A, B); `again` are (A, A) of the same times. All must be above zero, others are no rates and give `None`.
pub fn compare(pairs: &[(f64, f64)], again: &[(f64, f64)]) -> Option<Comparison> {
    let positive = |p: &(f64, f64)| p.0 > 0.0 && p.1 > 0.0 && p.0.is_finite() && p.1.is_finite();
    if pairs.is_empty() || !pairs.iter().chain(again).all(positive) {
        return None;
    }
    let side = |pick: fn(&(f64, f64)) -> f64| median(&pairs.iter().map(pick).collect::<Vec<_>>());
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (b / a).ln()).collect();
    let ratio95 = sd_sample(&logs).and_then(|sd| {
        let half = t975(logs.len() - 1)? * sd / (logs.len() as f64).sqrt();
        let middle = mean(&logs);
        Some(Interval {
            low: (middle - half).exp(),
            high: (middle + half).exp(),
        })
    });
    let noise_floor = again
        .iter()
        .map(|(a, b)| (b / a).ln().abs().exp() - 1.0)
        .reduce(f64::max);
    let floor = noise_floor.unwrap_or(0.0);
    let ratio = side(|p| p.1) / side(|p| p.0);
    let verdict = match ratio95 {
        Some(i) if pairs.len() >= MIN_PAIRS => {
            if i.low > 1.0 && ratio > 1.0 + floor {
                Verdict::Higher
            } else if i.high < 1.0 && ratio < 1.0 / (1.0 + floor) {
                Verdict::Lower
            } else {
                Verdict::WithinNoise
            }
        }
        _ => Verdict::NotEnoughRuns,
    };
    Some(Comparison {
        pairs: pairs.len(),
        ratio,
        ratio95,
        noise_floor,
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};

    #[test]
    fn a_clear_difference_a_noisy_one_and_too_few() {
        let faster = [(100.0, 150.0), (101.0, 149.0), (99.0, 152.0)];
        let c = compare(&faster, &[(100.0, 102.0), (100.0, 99.0)]).unwrap();
        assert_eq!((c.verdict, c.ratio), (Verdict::Higher, 1.5));
        assert!((c.noise_floor.unwrap() - 0.02).abs() < 1e-9);
        // the same difference is nothing where A is 60% away from itself
        let c = compare(&faster, &[(100.0, 160.0)]).unwrap();
        assert_eq!(c.verdict, Verdict::WithinNoise);
        let slower: Vec<(f64, f64)> = faster.iter().map(|(a, b)| (*b, *a)).collect();
        assert_eq!(compare(&slower, &[]).unwrap().verdict, Verdict::Lower);
        assert_eq!(
            compare(&faster[..2], &[]).unwrap().verdict,
            Verdict::NotEnoughRuns
        );
        assert_eq!(compare(&faster[..1], &[]).unwrap().ratio95, None);
        assert_eq!(compare(&[(0.0, 1.0)], &[]), None);
        assert_eq!(compare(&[], &[]), None);
    }

    #[test]
    fn equal_sides_are_seldom_told_apart() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(9);
        let mut draw = || 100.0 + 10.0 * (rng.random::<f64>() - 0.5);
        let wrong = (0..1000)
            .filter(|_| {
                let pairs: Vec<(f64, f64)> = (0..5).map(|_| (draw(), draw())).collect();
                let again: Vec<(f64, f64)> = (0..5).map(|_| (draw(), draw())).collect();
                compare(&pairs, &again).unwrap().verdict != Verdict::WithinNoise
            })
            .count();
        assert!(wrong < 50, "{wrong} of 1000");
    }

    proptest! {
        #[test]
        fn swapping_the_sides_turns_the_verdict(v in prop::collection::vec((1f64..100.0, 1f64..100.0), 3..10)) {
            let there = compare(&v, &[]).unwrap();
            let back = compare(&v.iter().map(|(a, b)| (*b, *a)).collect::<Vec<_>>(), &[]).unwrap();
            let turned = match there.verdict {
                Verdict::Higher => Verdict::Lower,
                Verdict::Lower => Verdict::Higher,
                same => same,
            };
            prop_assert_eq!(back.verdict, turned);
            prop_assert!((there.ratio * back.ratio - 1.0).abs() < 1e-9);
        }
    }
}
