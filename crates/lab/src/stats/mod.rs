//! Statistics fit for few repeats: pure functions of numbers and, where something is drawn, of a seed.
//!
//! Nothing is dropped: an outlier is marked, and every summary keeps its raw values.
//! Deviations say which kind they are: IOR prints the population's, mdtest the sample's.

mod compare;
mod interval;
mod outlier;
mod phase;
mod straggler;

pub use compare::{Comparison, MIN_PAIRS, Verdict, compare};
pub use interval::{BOOTSTRAP_MIN, bootstrap_mean95, t_mean95, t975};
pub use outlier::{OUTLIER_MIN, OUTLIER_RULE, OUTLIER_Z, outliers, robust_z};
pub use phase::{PHASE_RULE, Phases, phases};
pub use straggler::{Straggler, slowest};

use serde::{Deserialize, Serialize};

/// A range of numbers, both ends in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// From 0 on at least, if none of `values` is below 0.
    fn cut(self, values: &[f64]) -> Interval {
        let least = match values.iter().all(|v| *v >= 0.0) {
            true => 0.0,
            false => f64::NEG_INFINITY,
        };
        Interval {
            low: self.low.max(least),
            ..self
        }
    }
}

/// What some measurements of one thing say, in the unit of the measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The values, in the order they were measured.
    pub values: Vec<f64>,
    /// Which of them stand apart, by [`OUTLIER_RULE`].
    pub outliers: Vec<bool>,
    /// Arithmetic mean.
    pub mean: f64,
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Standard deviation of the values as the whole population (divided by n), as IOR prints it.
    pub sd_population: f64,
    /// Standard deviation of the values as a sample (divided by n - 1), as mdtest prints it; of two values or more.
    pub sd_sample: Option<f64>,
    /// Student's t interval of the mean at 95%; of two values or more. It begins at 0 where it would begin below, and no value
    /// is below 0: rates, times and counts cannot be.
    pub t95: Option<Interval>,
    /// Percentile bootstrap interval of the mean at 95%; of [`BOOTSTRAP_MIN`] values or more.
    pub bootstrap95: Option<Interval>,
}

impl Summary {
    /// Of `values`; `None` when there are none, or one is not finite. `seed` is the bootstrap's.
    pub fn of(values: &[f64], seed: u64) -> Option<Summary> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        Some(Summary {
            outliers: outliers(values),
            mean: mean(values),
            median: median(values),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            sd_population: sd_population(values),
            sd_sample: sd_sample(values),
            t95: t_mean95(values).map(|i| i.cut(values)),
            bootstrap95: bootstrap_mean95(values, seed),
            values: values.to_vec(),
        })
    }
}

/// Arithmetic mean; NaN of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The middle value, or the mean of the two in the middle; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => sorted[n / 2 - 1].midpoint(sorted[n / 2]),
    }
}

/// Median of the distances from the median.
pub fn mad(values: &[f64]) -> f64 {
    let middle = median(values);
    let away: Vec<f64> = values.iter().map(|v| (v - middle).abs()).collect();
    median(&away)
}

fn squares(values: &[f64]) -> f64 {
    let m = mean(values);
    values.iter().map(|v| (v - m) * (v - m)).sum()
}

/// Standard deviation, the squares divided by n.
pub fn sd_population(values: &[f64]) -> f64 {
    (squares(values) / values.len() as f64).sqrt()
}

/// Standard deviation, the squares divided by n - 1.
pub fn sd_sample(values: &[f64]) -> Option<f64> {
    (values.len() >= 2).then(|| (squares(values) / (values.len() - 1) as f64).sqrt())
}

/// Rate of work of which parts were done in parts of the time: all work by all time. The mean of rates would give the fast parts,
/// which took little of the time, as much weight as the slow ones.
pub fn total_rate(amounts: &[f64], times: &[f64]) -> Option<f64> {
    let time: f64 = times.iter().sum();
    (amounts.len() == times.len() && time > 0.0).then(|| amounts.iter().sum::<f64>() / time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_known_sample() {
        // 2 4 4 4 5 5 7 9: mean 5, deviation 2 as a population, 2.138 as a sample
        let s = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], 1).unwrap();
        assert_eq!((s.mean, s.median, s.min, s.max), (5.0, 4.5, 2.0, 9.0));
        assert_eq!(s.sd_population, 2.0);
        assert!((s.sd_sample.unwrap() - 2.138_089_935).abs() < 1e-9);
        assert_eq!(s.bootstrap95, None, "8 values are too few");
        let t = s.t95.unwrap();
        // 5 +- 2.3646 * 2.13809 / sqrt(8)
        assert!(
            (t.low - 3.212_51).abs() < 1e-4 && (t.high - 6.787_49).abs() < 1e-4,
            "{t:?}"
        );
    }

    #[test]
    fn what_is_no_sample_has_no_summary() {
        assert_eq!(Summary::of(&[], 1), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN], 1), None);
        let one = Summary::of(&[3.0], 1).unwrap();
        assert_eq!(
            (one.mean, one.sd_population, one.sd_sample, one.t95),
            (3.0, 0.0, None, None)
        );
    }

    #[test]
    fn an_interval_of_what_is_never_below_0_begins_at_0() {
        let t = |values: &[f64]| Summary::of(values, 1).unwrap().t95.unwrap();
        let plain = t_mean95(&[1.0, 9.0]).unwrap();
        assert!(plain.low < 0.0);
        let cut = t(&[1.0, 9.0]);
        assert_eq!((cut.low, cut.high), (0.0, plain.high));
        assert_eq!(
            t(&[-1.0, 9.0]),
            t_mean95(&[-1.0, 9.0]).unwrap(),
            "it can be below"
        );
        assert_eq!(t(&[5.0, 6.0, 7.0]), t_mean95(&[5.0, 6.0, 7.0]).unwrap());
    }

    #[test]
    fn a_total_rate_is_no_mean_of_rates() {
        // 100 in 1 s and 100 in 4 s are 40 a second, not 62.5
        assert_eq!(total_rate(&[100.0, 100.0], &[1.0, 4.0]), Some(40.0));
        assert_eq!(total_rate(&[1.0], &[0.0]), None);
    }

    proptest! {
        /// Against the two-pass definitions, and what must hold of any sample.
        #[test]
        fn a_summary_agrees_with_the_definitions(v in prop::collection::vec(-1e6f64..1e6, 1..60)) {
            let s = Summary::of(&v, 7).unwrap();
            let n = v.len() as f64;
            let m = v.iter().sum::<f64>() / n;
            let var = v.iter().map(|x| x * x).sum::<f64>() / n - m * m;
            prop_assert!((s.sd_population.powi(2) - var).abs() <= 1e-6 * (1.0 + var.abs() + m * m));
            prop_assert!(s.min <= s.median && s.median <= s.max);
            prop_assert!(s.min <= s.mean + 1e-6 && s.mean <= s.max + 1e-6);
            prop_assert_eq!(s.values.len(), s.outliers.len());
            let below = v.iter().filter(|x| **x < s.median).count();
            let above = v.iter().filter(|x| **x > s.median).count();
            prop_assert!(below <= v.len() / 2 && above <= v.len() / 2);
            if let Some(sample) = s.sd_sample {
                prop_assert!(sample >= s.sd_population);
                let t = s.t95.unwrap();
                prop_assert!(t.low <= s.mean && s.mean <= t.high);
            }
        }

        /// Shifted and scaled values have a shifted and scaled summary.
        #[test]
        fn units_do_not_matter(v in prop::collection::vec(1f64..1e3, 3..20), k in 0.1f64..10.0, d in 0f64..100.0) {
            let a = Summary::of(&v, 3).unwrap();
            let moved: Vec<f64> = v.iter().map(|x| x * k + d).collect();
            let b = Summary::of(&moved, 3).unwrap();
            prop_assert!((b.mean - (a.mean * k + d)).abs() < 1e-6 * b.mean.abs().max(1.0));
            prop_assert!((b.sd_sample.unwrap() - a.sd_sample.unwrap() * k).abs() < 1e-6 * b.mean.abs().max(1.0));
        }
    }
}
