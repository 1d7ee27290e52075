//! The conformance suite: what a mounted Lustre must do, whoever serves it and whoever mounts it, checked through system calls.
//!
//! A group is a file of this crate and a list of checks. A check works in a fresh directory and says in a word or two what it
//! saw; it is ok when that is what stands beside it as expected. So the table it prints is the whole story of a run.
//! It knows nothing of Coral: a mount of the kernel client, of another release or a local directory is checked the same way.
#![warn(missing_docs)]

mod attributes;
mod check;
mod coherence;
mod contention;
mod data;
mod layout;
mod locks;
mod mmap;
mod names;
mod readdir;
mod recovery;
mod report;
mod sys;
mod xattrs;

pub use check::Place;
pub use report::{CheckState, Report, Row};

use check::{Check, Env};
use std::path::Path;

/// A group of checks.
pub struct Group {
    /// Its name, as `--only` takes it.
    pub name: &'static str,
    /// Part of what `--only posix` means: must hold on any local file system too.
    pub posix: bool,
    /// Needs a second mount of the same file system.
    pub two_mounts: bool,
    /// Needs to be told how the servers are restarted.
    pub restart: bool,
    checks: &'static [Check],
}

const POSIX: Group = Group {
    name: "",
    posix: true,
    two_mounts: false,
    restart: false,
    checks: &[],
};
const TWO: Group = Group {
    posix: false,
    two_mounts: true,
    ..POSIX
};

/// Every group, in the order they run.
pub const GROUPS: &[Group] = &[
    Group {
        name: "names",
        checks: names::CHECKS,
        ..POSIX
    },
    Group {
        name: "data",
        checks: data::CHECKS,
        ..POSIX
    },
    Group {
        name: "attributes",
        checks: attributes::CHECKS,
        ..POSIX
    },
    Group {
        name: "xattrs",
        checks: xattrs::CHECKS,
        ..POSIX
    },
    Group {
        name: "readdir",
        checks: readdir::CHECKS,
        ..POSIX
    },
    Group {
        name: "locks",
        checks: locks::CHECKS,
        ..POSIX
    },
    Group {
        name: "mmap",
        checks: mmap::CHECKS,
        ..POSIX
    },
    Group {
        name: "layout",
        checks: layout::CHECKS,
        posix: false,
        ..POSIX
    },
    Group {
        name: "coherence",
        checks: coherence::CHECKS,
        ..TWO
    },
    Group {
        name: "contention",
        checks: contention::CHECKS,
        ..TWO
    },
    Group {
        name: "recovery",
        checks: recovery::CHECKS,
        posix: false,
        restart: true,
        ..POSIX
    },
];

/// Whether `--only WORD` takes the group: by its name, or all of `posix`.
pub fn selected(group: &Group, only: &[String]) -> bool {
    only.is_empty()
        || only
            .iter()
            .any(|o| o == group.name || (o == "posix" && group.posix))
}

/// Runs the selected groups in a new directory of `place`, which is removed afterwards. `told` hears of each row as it is done.
/// A group that `place` lacks something for is left out, with a row that says so.
pub fn run(place: &Place, only: &[String], mut told: impl FnMut(&Row)) -> std::io::Result<Report> {
    let top = format!("conform-{}", std::process::id());
    std::fs::create_dir(place.mount.join(&top))?;
    let mut report = Report::default();
    for group in GROUPS.iter().filter(|g| selected(g, only)) {
        let lacks = match group {
            g if g.two_mounts && place.second.is_none() => Some("needs a second mount (--second)"),
            g if g.restart && place.restart.is_none() => {
                Some("needs to know how to restart the servers (--restart)")
            }
            _ => None,
        };
        if let Some(why) = lacks {
            let row = Row {
                group: group.name,
                check: "the whole group",
                state: CheckState::NotSupported,
                expected: "",
                seen: why.into(),
            };
            told(&row);
            report.rows.push(row);
            continue;
        }
        for (i, check) in group.checks.iter().enumerate() {
            let dir = Path::new(&top).join(format!("{}-{i}", group.name));
            let row = check.run(group.name, &Env::new(place, &dir));
            told(&row);
            report.rows.push(row);
        }
    }
    let _ = std::fs::remove_dir_all(place.mount.join(&top));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks are checked: a local file system passes all of POSIX.
    #[test]
    fn a_local_directory_passes() {
        let here = tempfile::tempdir_in(
            std::env::var_os("CARGO_TARGET_TMPDIR")
                .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()),
        )
        .unwrap();
        let place = Place {
            mount: here.path().into(),
            second: None,
            restart: None,
        };
        let report = run(&place, &["posix".into()], |_| {}).unwrap();
        let wrong: Vec<&Row> = report
            .rows
            .iter()
            .filter(|r| r.state == CheckState::Differs)
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(report.rows.len() > 100);
    }

    /// Names of checks tell them apart.
    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = GROUPS
            .iter()
            .flat_map(|g| g.checks.iter().map(move |c| (g.name, c.name)))
            .collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
