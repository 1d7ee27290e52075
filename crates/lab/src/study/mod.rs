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

    /// A program in the place of this one has so many OSTs, and says what it is asked to place.
    fn placed_by_s3(osts: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let script = format!(
            "test $2 = setstripe && {{ shift 2; echo \"$@\" >> {}; exit; }}\n{osts}\n",
            at("placed")
        );
        std::fs::write(at("coral"), script).unwrap();
        let spec = load(study("s3").unwrap().text, None).unwrap();
        let place = spec.prepare.iter().find(|c| c.name == "place").unwrap();
        let coral = format!("sh {}", at("coral"));
        let words = place.command.iter();
        let words: Vec<String> = words
            .map(|w| w.replace("{coral}", &coral).replace("{fs1}", "/m"))
            .collect();
        let status = std::process::Command::new(&words[0])
            .args(&words[1..])
            .status();
        assert!(status.unwrap().success());
        let placed = std::fs::read_to_string(at("placed")).unwrap_or_default();
        placed.lines().map(str::to_owned).collect()
    }

    #[test]
    fn files_of_s3_have_the_same_osts_in_each_repeat() {
        assert_eq!(placed_by_s3("exit 95"), [""; 0], "no Lustre");
        let three = "echo OBDS:; for i in 0 1 7; do echo $i: fs-OST000${i}_UUID ACTIVE; done; echo 8: fs-OST0008_UUID INACTIVE";
        let placed = placed_by_s3(three);
        assert_eq!(placed.len(), 3, "{placed:?}");
        let begins = |i: usize| placed[i].split(' ').take(4).collect::<Vec<_>>().join(" ");
        assert_eq!(begins(0), "-i 0 /m/f.0.0 /m/f.0.3");
        assert_eq!(begins(1), "-i 1 /m/f.0.1 /m/f.0.4");
        assert_eq!(begins(2), "-i 7 /m/f.0.2 /m/f.0.5");
        let count = |of: &String| of.split(' ').count() - 2;
        assert_eq!(placed.iter().map(count).collect::<Vec<_>>(), [67, 67, 66]);
        assert!(placed[1].ends_with(" /m/f.0.199"), "{}", placed[1]);
        // more OSTs than files
        let many = "for i in $(seq 0 249); do echo $i: fs-OST_UUID ACTIVE; done";
        assert_eq!(placed_by_s3(many).len(), 200);
    }

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
