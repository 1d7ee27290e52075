//! The studies that Coral comes from, as experiments.

/// A built-in experiment.
#[derive(Debug, Clone, Copy)]
pub struct Study {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

/// All of them.
pub const STUDIES: &[Study] = &[
    Study {
        name: "s0",
        text: include_str!("../../studies/s0.toml"),
    },
    Study {
        name: "s1",
        text: include_str!("../../studies/s1.toml"),
    },
    Study {
        name: "s2",
        text: include_str!("../../studies/s2.toml"),
    },
    Study {
        name: "s3",
        text: include_str!("../../studies/s3.toml"),
    },
    Study {
        name: "s4",
        text: include_str!("../../studies/s4.toml"),
    },
];

/// The study of this name.
pub fn study(name: &str) -> Option<Study> {
    STUDIES.iter().find(|s| s.name == name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Plan, load};

    #[test]
    fn every_study_is_valid_in_every_profile() {
        for s in STUDIES {
            for profile in [None, Some("quick")] {
                let spec =
                    load(s.text, profile).unwrap_or_else(|e| panic!("{} {profile:?}: {e}", s.name));
                assert_eq!(spec.name, s.name);
                let plan =
                    Plan::of(&spec).unwrap_or_else(|e| panic!("{} {profile:?}: {e}", s.name));
                assert!(
                    !spec.scaled_from.is_empty()
                        && !spec.published.is_empty()
                        && !spec.figures.is_empty(),
                    "{}",
                    s.name
                );
                assert!(plan.steps.len() >= 3);
            }
        }
    }
}
