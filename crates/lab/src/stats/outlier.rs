//! Values that stand apart from the others of their kind.

use super::{mad, median};

/// Name of the rule.
pub const OUTLIER_RULE: &str = "modified z-score over 3.5: 0.6745 x (value - median) / MAD";
/// From here on a value stands apart.
pub const OUTLIER_Z: f64 = 3.5;
/// Fewest values among which one can be told apart.
pub const OUTLIER_MIN: usize = 4;

/// Scale of the MAD of normally distributed values.
const MAD_TO_SD: f64 = 0.6745;

/// How far each value is from the median, in deviations that the outliers themselves do not inflate. Where more than half of the
/// values are equal, the others are infinitely far.
pub fn robust_z(values: &[f64]) -> Vec<f64> {
    let (middle, spread) = (median(values), mad(values));
    values
        .iter()
        .map(|v| match (v - middle, spread) {
            (0.0, _) => 0.0,
            (away, 0.0) => away.signum() * f64::INFINITY,
            (away, spread) => MAD_TO_SD * away / spread,
        })
        .collect()
}

/// Marks values by [`OUTLIER_RULE`]; none of fewer than [`OUTLIER_MIN`].
pub fn outliers(values: &[f64]) -> Vec<bool> {
    if values.len() < OUTLIER_MIN {
        return vec![false; values.len()];
    }
    robust_z(values)
        .into_iter()
        .map(|z| z.abs() > OUTLIER_Z)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_far_value_is_marked_and_three_values_tell_nothing() {
        assert_eq!(
            outliers(&[10.0, 11.0, 9.0, 10.0, 40.0]),
            [false, false, false, false, true]
        );
        assert_eq!(outliers(&[10.0, 10.0, 400.0]), [false; 3]);
        assert_eq!(outliers(&[5.0; 6]), [false; 6]);
        assert_eq!(outliers(&[5.0, 5.0, 5.0, 6.0]), [false, false, false, true]);
    }

    proptest! {
        #[test]
        fn less_than_half_can_stand_apart(v in prop::collection::vec(-100f64..100.0, 4..40)) {
            let marked = outliers(&v).into_iter().filter(|o| *o).count();
            prop_assert!(marked * 2 <= v.len());
        }

        #[test]
        fn a_value_moved_far_away_is_marked(v in prop::collection::vec(90f64..110.0, 7..40), at in 0usize..7) {
            let mut v = v;
            v[at] = 1e9;
            prop_assert!(outliers(&v)[at]);
        }
    }
}
