//! What the user names: processes, or what was kept of a run.

use super::part::Part;
use crate::control::{self, Ask};
use crate::lfs;
use crate::lnetctl::find;
use crate::trace::HOW;
use coral_lab::experiment::{RunDir, Step, StepKind};
use coral_lab::verdict::{STOPWATCHES as IN_RUN, Seen};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// A file of stopwatches.
#[derive(Debug, PartialEq)]
pub(super) struct Kept {
    pub file: PathBuf,
    /// The run that it is of.
    run: Option<PathBuf>,
}

/// The file of a run, or a file itself. On a mount there is none: looking for it would be load.
pub(super) fn kept(place: &Path) -> Result<Option<Kept>, String> {
    if lfs::is_on_mount(place) {
        return Ok(None);
    }
    let of = |file: PathBuf| {
        let run = file.parent().filter(|dir| RunDir::is_at(dir));
        let run = run.filter(|_| file.ends_with(IN_RUN)).map(Path::to_owned);
        Ok(Some(Kept { file, run }))
    };
    let inside = place.join(IN_RUN);
    if place.is_file() {
        return of(place.to_owned());
    }
    if inside.is_file() {
        return of(inside);
    }
    match RunDir::is_at(place) {
        true => Err(format!(
            "'{}' is a run of the laboratory without stopwatches: no step has ended in which it knew Coral processes, its own or those of --mount",
            place.display()
        )),
        false => Ok(None),
    }
}

impl Kept {
    /// What was kept of a run, which was chosen then; or the last load of a file, and which part of it that is.
    pub(super) fn read(&self) -> Result<(Seen, Option<Part>), String> {
        let file = self.file.display();
        let text = std::fs::read_to_string(&self.file);
        let text = text.map_err(|e| format!("cannot read '{file}': {e}"))?;
        let seen = serde_json::from_str::<Seen>(&text).map_err(|e| {
            let is_other = serde_json::from_str::<Value>(&text);
            let is_other = is_other.is_ok_and(|v| v.is_object() && v.get("dumps").is_none());
            match is_other {
                true => format!(
                    "'{file}' has no stopwatches: give a file of `coral trace --json` or of a load generator's --coral-stopwatches (its --coral-json has figures only), or the directory of a run"
                ),
                false => format!("'{file}' is none of `coral trace --json`: {e}"),
            }
        })?;
        Ok(match self.run {
            Some(_) => (seen, None),
            None => Part::last(seen),
        })
    }

    /// The step of a run that it is of: the last one that has a verdict.
    pub(super) fn step(&self) -> Option<OfStep> {
        let (run, plan) = RunDir::open(self.run.as_ref()?).ok()?;
        let records = run.records().ok()?;
        let step = records.into_iter().rfind(|r| r.verdict.is_some())?.step;
        let point = plan.points.into_iter().find(|p| p.id == step.point)?;
        Some(OfStep {
            label: point.label,
            params: point.params,
            step,
        })
    }
}

/// A step of a run.
#[derive(Debug, PartialEq)]
pub(super) struct OfStep {
    label: String,
    params: Vec<(String, String)>,
    step: Step,
}

impl OfStep {
    fn kind(&self) -> &'static str {
        match self.step.kind {
            StepKind::Warmup => "warm-up",
            StepKind::Measure => "repeat",
            StepKind::Again => "once more, repeat",
        }
    }

    pub(super) fn json(&self) -> Value {
        let params = self.params.iter().map(|(n, v)| (n.clone(), json!(v)));
        json!({
            "label": self.label, "parameters": params.collect::<serde_json::Map<_, _>>(),
            "kind": self.step.kind, "repeat": self.step.rep,
        })
    }
}

impl fmt::Display for OfStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "of the last step of the run: {}, {} {}",
            self.label,
            self.kind(),
            self.step.rep
        )
    }
}

/// Each place once, however often and by whichever path it is named.
pub(super) fn once(places: &[PathBuf]) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let is_new = |p: &&PathBuf| seen.insert(lfs::resolved(p));
    places.iter().filter(is_new).cloned().collect()
}

/// Each place that is named is of one process at most: a directory with mount points below it is none, and a mount point may be that of
/// several.
pub(super) fn are_each_one(places: &[PathBuf]) -> Result<(), String> {
    let mounts: Vec<PathBuf> = lfs::mounts()
        .unwrap_or_default()
        .into_iter()
        .map(|m| m.path)
        .collect();
    places.iter().try_for_each(|place| {
        let own = !lfs::is_on_mount(place) && control::path(place).exists();
        match own {
            true => Ok(()),
            false => is_one(place, &lfs::resolved(place), &mounts),
        }
    })
}

fn is_one(place: &Path, full: &Path, mounts: &[PathBuf]) -> Result<(), String> {
    let here = mounts.iter().filter(|m| *m == full).count();
    if here > 1 {
        return match &mounted_at(full)[..] {
            [] | [_] => Ok(()),
            several => Err(format!(
                "'{}' is the mount point of {} processes, one over the other: name one by its pid: {}",
                place.display(),
                several.len(),
                several.join(", ")
            )),
        };
    }
    let below: Vec<String> = (mounts.iter())
        .filter(|m| m.starts_with(full))
        .map(|m| format!("'{}'", m.display()))
        .collect();
    match (here, below.len()) {
        (1, _) | (_, 0) => Ok(()),
        (_, 1) => Err(format!(
            "'{}' is no mount point: the one below it is {}, name that",
            place.display(),
            below[0]
        )),
        (_, n) => Err(format!(
            "'{}' is no mount point: {n} are below it, name those that are meant: {}",
            place.display(),
            below.join(", ")
        )),
    }
}

/// Processes that are mounted there, as a user knows them.
fn mounted_at(full: &Path) -> Vec<String> {
    let sockets = find::named(&[], HOW).map_or_else(|_| vec![], |n| n.sockets);
    let is_there = |socket: &PathBuf| {
        let status = find::ask_within(socket, &json!(Ask::Status), control::BESIDE_LIMIT).ok()?;
        let mount = lfs::resolved(Path::new(status["mount"].as_str()?));
        let asked = control::connect(socket, control::CONNECT_LIMIT).ok()?;
        let pid = control::peer(&asked)?;
        (mount == full).then(|| find::described(pid))
    };
    sockets.iter().filter_map(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_in_a_run() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kept(dir.path()), Ok(None));
        std::fs::write(dir.path().join("plan.json"), "{}").unwrap();
        let why = kept(dir.path()).unwrap_err();
        assert!(why.contains("without stopwatches"), "{why}");
        let file = dir.path().join(IN_RUN);
        std::fs::write(&file, "{}").unwrap();
        for place in [dir.path(), file.as_path()] {
            let kept = kept(place).unwrap().unwrap();
            assert_eq!((&kept.file, kept.run.as_deref()), (&file, Some(dir.path())));
            assert_eq!(kept.step(), None, "its plan cannot be read");
        }
    }

    #[test]
    fn what_has_no_stopwatches_is_told_with_what_has() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.json");
        let why = |text: &str| {
            std::fs::write(&file, text).unwrap();
            kept(&file).unwrap().unwrap().read().unwrap_err()
        };
        let record = why(r#"{"format": 1, "points": []}"#);
        assert!(record.contains("--coral-stopwatches"), "{record}");
        for other in ["[]", "not JSON", r#"{"dumps": 1}"#] {
            let why = why(other);
            assert!(why.contains("is none of `coral trace --json`: "), "{why}");
        }
    }

    #[test]
    fn the_step_of_a_verdict_is_told_with_its_parameters() {
        let of = |kind| OfStep {
            label: "size=4096".into(),
            params: vec![("size".into(), "4096".into())],
            step: Step {
                point: "p".into(),
                rep: 2,
                kind,
            },
        };
        let text = |kind| of(kind).to_string();
        let begin = "of the last step of the run: size=4096, ";
        assert_eq!(text(StepKind::Measure), format!("{begin}repeat 2\n"));
        assert_eq!(text(StepKind::Warmup), format!("{begin}warm-up 2\n"));
        let json = of(StepKind::Measure).json();
        assert_eq!(
            (&json["parameters"]["size"], &json["repeat"]),
            (&json!("4096"), &json!(2))
        );
    }

    #[test]
    fn a_place_that_is_named_twice_is_one() {
        let all = ["/a/b", "/a/./b", "/a/c", "/a/c/../b"].map(PathBuf::from);
        assert_eq!(once(&all), ["/a/b", "/a/c"].map(PathBuf::from));
    }

    #[test]
    fn a_directory_with_mount_points_names_them() {
        let mounts = ["/m/a", "/m/b", "/n/c"].map(PathBuf::from);
        let of = |place: &str| is_one(Path::new(place), Path::new(place), &mounts);
        let why = of("/m").unwrap_err();
        assert!(
            why.ends_with("2 are below it, name those that are meant: '/m/a', '/m/b'"),
            "{why}"
        );
        let why = of("/n").unwrap_err();
        assert!(
            why.ends_with("the one below it is '/n/c', name that"),
            "{why}"
        );
        assert_eq!((of("/m/a"), of("/other")), (Ok(()), Ok(())));
    }
}
