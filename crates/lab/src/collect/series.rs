//! A series of samples in bounded memory: when its bins are all in use, neighbours are put together and each is twice as wide.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Most bins of a series.
pub const MAX_BINS: usize = 600;

/// What fell into a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// Samples in it.
    pub count: u32,
    /// Their sum, of each as much as it is of a whole one.
    pub sum: f64,
    /// How many whole ones they lack: the last rate of a series is of a part of the interval, and counts for as much.
    #[serde(default)]
    pub short: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Bin {
    const EMPTY: Bin = Bin {
        count: 0,
        sum: 0.0,
        short: 0.0,
        min: f64::MAX,
        max: f64::MIN,
    };

    /// Whole samples that those in it come to.
    pub fn weight(&self) -> f64 {
        f64::from(self.count) - self.short
    }

    /// Mean over the time of its samples; none of no samples.
    pub fn mean(&self) -> Option<f64> {
        (self.weight() > 0.0).then(|| self.sum / self.weight())
    }

    fn add(self, other: Bin) -> Bin {
        Bin {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            short: self.short + other.short,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}

/// Samples over time, from 0 on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Unit of the samples.
    pub unit: String,
    /// Width of a bin, milliseconds.
    pub width_ms: u64,
    /// The bins; the first begins at 0.
    pub bins: Vec<Bin>,
}

impl Series {
    /// An empty one with bins of this width.
    pub fn new(unit: &str, width_ms: u64) -> Series {
        Series {
            unit: unit.to_owned(),
            width_ms: width_ms.max(1),
            bins: vec![],
        }
    }

    /// Adds a sample taken `at_ms` after the start.
    pub fn add(&mut self, at_ms: u64, value: f64) {
        self.add_part(at_ms, value, 1.0);
    }

    /// The same of one that tells of `weight` times the usual stretch of time.
    pub fn add_part(&mut self, at_ms: u64, value: f64, weight: f64) {
        if !value.is_finite() || weight <= 0.0 {
            return;
        }
        while at_ms / self.width_ms >= MAX_BINS as u64 {
            self.bins = self
                .bins
                .chunks(2)
                .map(|pair| pair.iter().copied().fold(Bin::EMPTY, Bin::add))
                .collect();
            self.width_ms *= 2;
        }
        let at = (at_ms / self.width_ms) as usize;
        if self.bins.len() <= at {
            self.bins.resize(at + 1, Bin::EMPTY);
        }
        self.bins[at] = self.bins[at].add(Bin {
            count: 1,
            sum: value * weight,
            short: 1.0 - weight,
            min: value,
            max: value,
        });
    }

    /// Middle of each bin that has samples, seconds, with their mean.
    pub fn points(&self) -> Vec<(f64, f64)> {
        self.bins
            .iter()
            .enumerate()
            .filter_map(|(i, b)| Some((self.middle_s(i), b.mean()?)))
            .collect()
    }

    /// Mean over the time of all samples.
    pub fn mean(&self) -> Option<f64> {
        self.total().mean()
    }

    /// The same of the bins whose middle is in a stretch of time, seconds.
    pub fn mean_within(&self, time_s: Range<f64>) -> Option<f64> {
        let within = |i: usize| time_s.contains(&self.middle_s(i));
        let bins = self.bins.iter().enumerate();
        let bins = bins.filter(|(i, _)| within(*i)).map(|(_, b)| *b);
        bins.fold(Bin::EMPTY, Bin::add).mean()
    }

    fn middle_s(&self, bin: usize) -> f64 {
        (bin as f64 + 0.5) * self.width_ms as f64 / 1000.0
    }

    /// The largest sample.
    pub fn max(&self) -> Option<f64> {
        let all = self.total();
        (all.count > 0).then_some(all.max)
    }

    fn total(&self) -> Bin {
        self.bins.iter().copied().fold(Bin::EMPTY, Bin::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever comes: nothing is lost, the extremes are kept, the length is bounded, each sample is in the bin of its time.
        #[test]
        fn samples_are_kept_in_bounded_space(width in 1u64..2000, samples in prop::collection::vec((0u64..50_000_000, -1e6f64..1e6), 1..400)) {
            let mut s = Series::new("x", width);
            for (at, v) in &samples {
                s.add(*at, *v);
            }
            prop_assert!(s.bins.len() <= MAX_BINS);
            let total = s.total();
            prop_assert_eq!(total.count as usize, samples.len());
            prop_assert_eq!(total.max, samples.iter().map(|s| s.1).fold(f64::MIN, f64::max));
            prop_assert_eq!(total.min, samples.iter().map(|s| s.1).fold(f64::MAX, f64::min));
            prop_assert_eq!(s.width_ms % width, 0);
            prop_assert!((s.width_ms / width).is_power_of_two());
            for (i, b) in s.bins.iter().enumerate() {
                let (from, to) = (i as u64 * s.width_ms, (i as u64 + 1) * s.width_ms);
                let here = samples.iter().filter(|(at, _)| (from..to).contains(at)).count();
                prop_assert_eq!(b.count as usize, here);
            }
        }
    }

    /// As a run of 2.1 s is sampled that does most at its end.
    #[test]
    fn a_short_sample_counts_for_its_time() {
        let mut s = Series::new("x/s", 1000);
        s.add(1000, 10.0);
        s.add(2000, 10.0);
        s.add_part(2100, 1000.0, 0.1);
        // 120 in 2.1 s; the second bin has 110 in 1.1 s
        assert!((s.mean().unwrap() - 120.0 / 2.1).abs() < 1e-9);
        assert!((s.points()[1].1 - 100.0).abs() < 1e-9, "{:?}", s.points());
        assert!((s.mean_within(2.0..3.0).unwrap() - 100.0).abs() < 1e-9);
        assert_eq!(
            (s.mean_within(1.0..2.0), s.max()),
            (Some(10.0), Some(1000.0))
        );
        // as records of older runs have it
        let old: Bin =
            serde_json::from_str(r#"{"count":2,"sum":6.0,"min":2.0,"max":4.0}"#).unwrap();
        assert_eq!(old.mean(), Some(3.0));
    }

    #[test]
    fn a_gap_is_no_zero() {
        let mut s = Series::new("x", 1000);
        s.add(500, 4.0);
        s.add(3500, 8.0);
        s.add(3600, f64::NAN);
        assert_eq!(s.points(), [(0.5, 4.0), (3.5, 8.0)]);
        assert_eq!((s.mean(), s.max()), (Some(6.0), Some(8.0)));
        assert_eq!(Series::new("x", 0).mean(), None);
    }
}
