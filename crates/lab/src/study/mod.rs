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

    /// A program in the place of this one has so many OSTs, and says what it is asked to place; None: the step fails.
    fn placed_by_s3(osts: &str) -> Option<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let script = format!(
            "#!/bin/sh\ntest $2 = setstripe && {{ shift 2; echo \"$@\" >> ../placed; exit; }}\n{osts}\n"
        );
        // Written by another process: a program that this one has open cannot be started.
        let written = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""])
            .args([at("a coral"), script])
            .status();
        assert!(written.unwrap().success());
        std::fs::create_dir(at("5%d of it")).unwrap();
        let spec = load(study("s3").unwrap().text, None).unwrap();
        let place = spec.prepare.iter().find(|c| c.name == "place").unwrap();
        let (coral, mount) = (at("a coral"), at("5%d of it"));
        let words = place.command.iter();
        let words: Vec<String> = words
            .map(|w| w.replace("{coral}", &coral).replace("{fs1}", &mount))
            .collect();
        let status = std::process::Command::new(&words[0])
            .args(&words[1..])
            .status();
        let placed = std::fs::read_to_string(at("placed")).unwrap_or_default();
        let placed = placed.lines().map(str::to_owned).collect();
        status.unwrap().success().then_some(placed)
    }

    #[test]
    fn files_of_s3_have_the_same_osts_in_each_repeat() {
        let no_lustre = "echo \"lfs: '/m' is not on a Lustre file system\" >&2; exit 95";
        assert_eq!(placed_by_s3(no_lustre), Some(vec![]));
        assert_eq!(placed_by_s3("echo 'lfs: timed out' >&2; exit 5"), None);
        let three = "echo OBDS:; for i in 0 1 7; do echo $i: fs-OST000${i}_UUID ACTIVE; done; echo 8: fs-OST0008_UUID INACTIVE";
        let placed = placed_by_s3(three).unwrap();
        assert_eq!(placed.len(), 3, "{placed:?}");
        let begins = |i: usize| placed[i].split(' ').take(4).collect::<Vec<_>>().join(" ");
        assert_eq!(begins(0), "-i 0 f.0.0 f.0.3");
        assert_eq!(begins(1), "-i 1 f.0.1 f.0.4");
        assert_eq!(begins(2), "-i 7 f.0.2 f.0.5");
        let count = |of: &String| of.split(' ').count() - 2;
        assert_eq!(placed.iter().map(count).collect::<Vec<_>>(), [67, 67, 66]);
        assert!(placed[1].ends_with(" f.0.199"), "{}", placed[1]);
        // more OSTs than files
        let many = "for i in $(seq 0 249); do echo $i: fs-OST_UUID ACTIVE; done";
        assert_eq!(placed_by_s3(many).unwrap().len(), 200);
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
