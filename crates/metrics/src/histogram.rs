//! Histograms with the buckets of HDR: eight to each power of two, so that a value is known to 12.5%.
//!
//! The crate `hdrhistogram` records under `&mut`. A mutex around it costs no more (`examples/cost.rs` measures both), but a thread
//! that is stopped with it stops all others; here a record is two atomic additions, and waits for nobody.
//! Values are nanoseconds or bytes. What is above [`HIGHEST`] (18 minutes, 1 TiB) counts in the last bucket; the sum is exact.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::desc::{Kind, Metric, OfKind};
use crate::snapshot::Point;

/// Buckets to a power of two, as a power of two.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// The power of two up to which values are told apart.
const TOP: u32 = 40;
/// The greatest value that is told apart from all greater ones.
pub const HIGHEST: u64 = 1 << TOP;
/// Buckets of a histogram, 8 bytes each.
pub const BUCKETS: usize = SUB + (TOP - SUB_BITS) as usize * SUB;

/// How often values of which size occurred.
pub struct Histogram {
    sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            sum: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// The bucket of a value: those of bucket `i` are above [`upper`] of `i - 1`, and at most `upper` of `i`.
fn bucket(value: u64) -> usize {
    // Powers of two, which sizes often are, end a bucket.
    let v = value.saturating_sub(1).min(HIGHEST - 1);
    match v.checked_ilog2() {
        Some(power) if power >= SUB_BITS => {
            let sub = (v >> (power - SUB_BITS)) as usize % SUB;
            (power - SUB_BITS + 1) as usize * SUB + sub
        }
        _ => v as usize,
    }
}

/// The greatest value of a bucket.
fn upper(bucket: usize) -> u64 {
    match bucket.checked_sub(SUB) {
        None => bucket as u64 + 1,
        Some(above) => ((SUB + above % SUB + 1) as u64) << (above / SUB),
    }
}

impl Histogram {
    /// A value occurred.
    pub fn record(&self, value: u64) {
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.buckets[bucket(value)].fetch_add(1, Ordering::Relaxed);
    }

    /// Something took so long.
    pub fn record_time(&self, took: Duration) {
        self.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many values occurred.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).sum()
    }

    /// What was recorded so far. Records made meanwhile may be in the sum only.
    pub fn recorded(&self) -> Recorded {
        let buckets = self.buckets.iter().map(|b| b.load(Ordering::Relaxed));
        let used = buckets.enumerate().filter(|(_, n)| *n > 0);
        Recorded {
            buckets: used.map(|(i, n)| (upper(i), n)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recorded().fmt(f)
    }
}

impl OfKind for Histogram {
    const KIND: Kind = Kind::Histogram;
}

impl Metric for Histogram {
    fn points(&self, show: &mut dyn FnMut(Option<&'static str>, Point)) {
        show(None, Point::Recorded(self.recorded()));
    }
}

/// What a histogram has recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The greatest value of each bucket that is not empty, ascending, and how many values it holds.
    pub buckets: Vec<(u64, u64)>,
    /// Sum of all values.
    pub sum: u64,
}

impl Recorded {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum()
    }

    /// How many are at most `value`, which is a power of two.
    pub fn at_most(&self, value: u64) -> u64 {
        let below = self.buckets.iter().take_while(|(upper, _)| *upper <= value);
        below.map(|(_, n)| n).sum()
    }

    /// The value that a share of all (0 to 1) does not exceed, rounded up to its bucket's; 0 without any.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let reached = self.buckets.iter().find(|(_, n)| {
            seen += n;
            seen >= wanted
        });
        reached.map_or(0, |(upper, _)| *upper)
    }

    /// Takes in what another one recorded.
    pub fn add(&mut self, other: &Recorded) {
        self.sum = self.sum.wrapping_add(other.sum);
        for &(upper, n) in &other.buckets {
            match self.buckets.binary_search_by_key(&upper, |(u, _)| *u) {
                Ok(i) => self.buckets[i].1 += n,
                Err(i) => self.buckets.insert(i, (upper, n)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random.
    fn numbers(mut x: u64) -> impl Iterator<Item = u64> {
        std::iter::from_fn(move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Some(x >> 24 >> (x >> 58))
        })
    }

    #[test]
    fn buckets_follow_each_other_and_are_an_eighth_wide() {
        let mut last = 0;
        for b in 0..BUCKETS {
            let up = upper(b);
            assert!(up > last, "bucket {b}");
            assert_eq!((bucket(last + 1), bucket(up)), (b, b), "{last} to {up}");
            assert!(up - last <= (last / SUB as u64).max(1), "{last} to {up}");
            last = up;
        }
        assert_eq!(last, HIGHEST);
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn powers_of_two_end_a_bucket() {
        for power in 0..=TOP {
            assert_eq!(upper(bucket(1 << power)), 1 << power);
        }
    }

    #[test]
    fn quantiles_are_those_of_hdrhistogram() {
        let (ours, mut theirs) = (
            Histogram::default(),
            hdrhistogram::Histogram::<u64>::new(5).unwrap(),
        );
        let mut sum = 0;
        for v in numbers(7).take(20_000) {
            ours.record(v);
            theirs.record(v).unwrap();
            sum += v;
        }
        let ours = ours.recorded();
        assert_eq!((ours.count(), ours.sum), (20_000, sum));
        for share in [0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let (a, b) = (
                ours.quantile(share) as f64,
                theirs.value_at_quantile(share) as f64,
            );
            assert!(a >= b * 0.999 && a <= b * 1.126 + 1.0, "{share}: {a} {b}");
        }
    }

    #[test]
    fn what_is_added_is_as_recorded_together() {
        let [a, b, both] = [(); 3].map(|()| Histogram::default());
        for (i, v) in numbers(3).take(1000).enumerate() {
            if i % 3 == 0 { &a } else { &b }.record(v);
            both.record(v);
        }
        let mut sum = a.recorded();
        sum.add(&b.recorded());
        assert_eq!(sum, both.recorded());
        assert_eq!(sum.at_most(HIGHEST), 1000);
    }

    #[test]
    fn nothing_has_no_quantile() {
        let none = Recorded::default();
        assert_eq!(
            (none.quantile(0.5), none.count(), none.at_most(8)),
            (0, 0, 0)
        );
    }
}
