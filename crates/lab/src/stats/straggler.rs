//! The slow member of a group: a rank, a client, an OST.

use super::{OUTLIER_MIN, OUTLIER_Z, median, robust_z};
use serde::Serialize;

/// A member has to be below the median by this share of it: among very even members a tiny gap is many deviations.
const MIN_GAP: f64 = 0.1;

/// The member of a group that is slower than the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Straggler {
    /// Its name.
    pub name: String,
    /// Its rate.
    pub rate: f64,
    /// The group's median rate.
    pub median: f64,
    /// Whether it stands apart, and is not merely the last of similar ones.
    pub apart: bool,
}

/// The member with the lowest rate, and whether it stands apart. `None` of fewer than two members.
pub fn slowest(group: &[(String, f64)]) -> Option<Straggler> {
    if group.len() < 2 {
        return None;
    }
    let rates: Vec<f64> = group.iter().map(|(_, r)| *r).collect();
    let (at, rate) = rates
        .iter()
        .copied()
        .enumerate()
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    let middle = median(&rates);
    let far = if rates.len() >= OUTLIER_MIN {
        robust_z(&rates)[at] < -OUTLIER_Z
    } else {
        // Of two or three members there is no spread to go by: half of the median is apart.
        rate < middle / 2.0
    };
    Some(Straggler {
        name: group[at].0.clone(),
        rate,
        median: middle,
        apart: far && rate < middle * (1.0 - MIN_GAP),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rates: &[f64]) -> Vec<(String, f64)> {
        rates
            .iter()
            .enumerate()
            .map(|(i, r)| (format!("OST{i:04x}"), *r))
            .collect()
    }

    #[test]
    fn the_slow_one_is_named_and_the_last_of_equals_is_not_accused() {
        let s = slowest(&group(&[100.0, 101.0, 99.0, 40.0, 100.5])).unwrap();
        assert_eq!((s.name.as_str(), s.apart), ("OST0003", true));
        let s = slowest(&group(&[100.0, 101.0, 99.0, 98.0, 100.5])).unwrap();
        assert_eq!((s.name.as_str(), s.apart), ("OST0003", false));
        // far in deviations, but by 3% only
        assert!(
            !slowest(&group(&[100.0, 100.0, 100.01, 99.99, 97.0]))
                .unwrap()
                .apart
        );
        assert!(slowest(&group(&[100.0, 30.0])).unwrap().apart);
        assert!(!slowest(&group(&[100.0, 80.0])).unwrap().apart);
        assert_eq!(slowest(&group(&[1.0])), None);
    }
}
