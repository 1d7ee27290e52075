//! The run directory: everything a run says, and all that is needed to say it again.
//!
//! ```text
//! plan.json         the experiment, its points and steps
//! environment.json  machine, versions, command line
//! points.jsonl      a record per step that was made, in the order they were made
//! events.jsonl      started, resumed, ended; why it ended early
//! raw/STEP/         what the commands of a step printed, and what was sampled meanwhile
//! ```
//!
//! Files of lines are only appended to, and synced line by line. A line cut short by a kill or a full disk is put aside when the
//! directory is opened again, and its step is measured again.

use super::plan::{Plan, Step};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Version of the directory's format.
const FORMAT: u32 = 1;

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file of it cannot be read or written.
    #[error("'{}': {error}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file of it is not what it should be.
    #[error("'{}' is no file of a run: {why}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A line of it is not what it should be.
    #[error("line {line} of '{}' is damaged ({why}): take it out; {after}", file.display())]
    DamagedLine {
        /// The file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
        /// What is so without it.
        after: &'static str,
    },
    /// A newer program made it.
    #[error("'{}' has format {format}, and this program knows {FORMAT}: use a newer one", file.display())]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its format.
        format: u32,
    },
    /// There is no run.
    #[error("'{}' {what}: give the directory of a run; `coral lab list DIR` shows those in a directory", dir.display())]
    NoRun {
        /// What was given.
        dir: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// It is there already.
    #[error("'{}' is there already; `coral lab resume` goes on with a run, another --dir makes a new one", .0.display())]
    Exists(PathBuf),
}

/// A figure that a command printed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Its name, as in `write`.
    pub name: String,
    /// Its unit, as in `MiB/s`.
    pub unit: String,
    /// Its value.
    pub value: f64,
}

/// What was done to caches, and what was asked and could not be done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Did {
    /// Done.
    pub done: Vec<String>,
    /// Not done, each with the reason.
    pub not_done: Vec<String>,
}

/// What one command of a step did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoleRecord {
    /// Role.
    pub name: String,
    /// Program and arguments as they were run.
    pub command: Vec<String>,
    /// Exit status; none when a signal ended it.
    pub exit: Option<i32>,
    /// From the common start to its end, seconds.
    pub seconds: f64,
    /// CPU time of it and its children, seconds.
    pub cpu_s: f64,
    /// What its output says.
    pub measures: Vec<Measure>,
    /// Its output, in the run directory.
    pub stdout: String,
    /// Its errors, in the run directory.
    pub stderr: String,
    /// Which ranks of a load generator stood still, and how long.
    #[serde(default)]
    pub stood_still: Vec<String>,
}

/// One step that was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Which.
    #[serde(flatten)]
    pub step: Step,
    /// When its commands started, milliseconds since 1970.
    pub started_ms: u64,
    /// Caches before it.
    pub cache: Did,
    /// Its commands.
    pub roles: Vec<RoleRecord>,
    /// Sums of measures over roles.
    #[serde(default)]
    pub sums: Vec<Measure>,
    /// Of several roles: the share of the time of all in which all ran.
    #[serde(default)]
    pub overlap: Option<f64>,
    /// What was sampled, in the run directory.
    pub samples: Option<String>,
    /// What limited it, as the stopwatches tell; or why they do not.
    #[serde(default)]
    pub verdict: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}

impl Record {
    /// Value of ROLE/MEASURE, or of a sum.
    pub fn measure(&self, name: &str) -> Option<&Measure> {
        match name.split_once('/') {
            None => self.sums.iter().find(|m| m.name == name),
            Some((role, measure)) => self
                .roles
                .iter()
                .find(|r| r.name == role)?
                .measures
                .iter()
                .find(|m| m.name == measure),
        }
    }
}

/// What happened to the run as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// It began.
    Started {
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// It went on.
    Resumed {
        /// Milliseconds since 1970.
        at_ms: u64,
        /// Steps that were there.
        done: usize,
        /// What of the environment is another than before.
        changed: Vec<String>,
    },
    /// It ended.
    Ended {
        /// Milliseconds since 1970.
        at_ms: u64,
        /// Why before all steps were made; none when all were.
        incomplete: Option<String>,
    },
}

#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    #[serde(flatten)]
    plan: Plan,
}

/// The file that makes a directory a run's.
const PLAN: &str = "plan.json";

/// A run directory.
#[derive(Debug)]
pub struct RunDir {
    dir: PathBuf,
}

impl RunDir {
    /// Whether there is a run in `dir`.
    pub fn is_at(dir: &Path) -> bool {
        dir.join(PLAN).exists()
    }

    /// There is no run in `dir`.
    pub(super) fn is_free(dir: &Path) -> Result<(), StoreError> {
        match RunDir::is_at(dir) {
            true => Err(StoreError::Exists(dir.to_owned())),
            false => Ok(()),
        }
    }

    /// Makes one.
    pub fn create(
        dir: &Path,
        plan: &Plan,
        environment: &serde_json::Value,
    ) -> Result<RunDir, StoreError> {
        RunDir::is_free(dir)?;
        let run = RunDir {
            dir: dir.to_owned(),
        };
        let raw = dir.join("raw");
        std::fs::create_dir_all(&raw).map_err(|error| StoreError::Io { file: raw, error })?;
        run.write("environment.json", environment)?;
        run.write(
            PLAN,
            &Kept {
                format: FORMAT,
                plan: plan.clone(),
            },
        )?;
        Ok(run)
    }

    /// Opens one, with its plan.
    pub fn open(dir: &Path) -> Result<(RunDir, Plan), StoreError> {
        let run = RunDir {
            dir: dir.to_owned(),
        };
        let what = match std::fs::metadata(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some("is not there"),
            Ok(m) if !m.is_dir() => Some("is a file"),
            Ok(_) if !RunDir::is_at(dir) => {
                Some("holds no run of the laboratory: it has no plan.json")
            }
            _ => None,
        };
        if let Some(what) = what {
            let dir = dir.to_owned();
            return Err(StoreError::NoRun { dir, what });
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        // The format first: what else is there is another version's business.
        let Format { format } = run.read(PLAN)?;
        if format > FORMAT {
            return Err(StoreError::Newer {
                file: dir.join(PLAN),
                format,
            });
        }
        let kept: Kept = run.read(PLAN)?;
        Ok((run, kept.plan))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Directory of a step's files, relative to the run's.
    pub fn raw(step: &Step) -> String {
        format!("raw/{}", step.name())
    }

    /// Makes a directory, empty also where a step that was killed or failed has left something: what is made again begins as it did
    /// the first time. What is mounted there is not touched, and is an error.
    pub fn emptied(&self, name: &str) -> Result<(), StoreError> {
        let dir = self.dir.join(name);
        let made = std::fs::create_dir_all(&dir)
            .and_then(|()| std::fs::symlink_metadata(&dir))
            .and_then(|own| empty(&dir, own.dev()));
        made.map_err(|error| StoreError::Io { file: dir, error })
    }

    /// Writes a file whole: another name first, so that a kill leaves the old one or the new one.
    pub fn write(&self, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let text = serde_json::to_string_pretty(value).map_err(|e| self.damaged(name, &e))?;
        self.write_text(name, &text)
    }

    /// As [`RunDir::write`], of a text.
    pub fn write_text(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let (file, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let write = || -> io::Result<()> {
            let mut f = File::create(&new)?;
            f.write_all(text.as_bytes())?;
            f.sync_all()?;
            std::fs::rename(&new, &file)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&new);
            StoreError::Io {
                file: file.clone(),
                error,
            }
        })
    }

    /// Reads a file of JSON.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<T, StoreError> {
        let file = self.dir.join(name);
        let text =
            std::fs::read_to_string(&file).map_err(|error| StoreError::Io { file, error })?;
        serde_json::from_str(&text).map_err(|e| self.damaged(name, &e))
    }

    fn damaged(&self, name: &str, why: &dyn std::fmt::Display) -> StoreError {
        StoreError::Damaged {
            file: self.dir.join(name),
            why: why.to_string(),
        }
    }

    /// Appends a record; it is on disk when this returns.
    pub fn record(&self, record: &Record) -> Result<(), StoreError> {
        self.append("points.jsonl", record)
    }

    /// Appends an event; it is on disk when this returns.
    pub fn event(&self, event: &Event) -> Result<(), StoreError> {
        self.append("events.jsonl", event)
    }

    fn append(&self, name: &str, line: &impl Serialize) -> Result<(), StoreError> {
        let file = self.dir.join(name);
        let text = serde_json::to_string(line).map_err(|e| self.damaged(name, &e))? + "\n";
        let append = || -> io::Result<()> {
            let mut f = OpenOptions::new().create(true).append(true).open(&file)?;
            f.write_all(text.as_bytes())?;
            f.sync_data()
        };
        append().map_err(|error| StoreError::Io {
            file: file.clone(),
            error,
        })
    }

    /// Every record, in the order they were made.
    pub fn records(&self) -> Result<Vec<Record>, StoreError> {
        let after = "without it `coral lab resume` makes its step again";
        self.lines("points.jsonl", after)
    }

    /// Every event.
    pub fn events(&self) -> Result<Vec<Event>, StoreError> {
        let after = "no measurement is lost with it, it says when the run began, went on or ended";
        self.lines("events.jsonl", after)
    }

    fn lines<T: DeserializeOwned>(
        &self,
        name: &str,
        after: &'static str,
    ) -> Result<Vec<T>, StoreError> {
        let file = self.dir.join(name);
        let bytes = match std::fs::read(&file) {
            Ok(b) => b,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(error) => return Err(StoreError::Io { file, error }),
        };
        // What follows the last newline was cut short, maybe within a character.
        let whole = &bytes[..whole_lines(&bytes)];
        let lines = whole.split_inclusive(|b| *b == b'\n').enumerate();
        let read = |(i, l)| {
            serde_json::from_slice(l).map_err(|e| StoreError::DamagedLine {
                file: self.dir.join(name),
                line: i + 1,
                why: e.to_string(),
                after,
            })
        };
        lines.map(read).collect()
    }

    /// Cuts lines off that were written in part, so that the next is not glued to them.
    pub fn mend(&self) -> Result<(), StoreError> {
        for name in ["points.jsonl", "events.jsonl"] {
            let file = self.dir.join(name);
            let mend = || -> io::Result<()> {
                let bytes = match std::fs::read(&file) {
                    Ok(b) => b,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                    Err(e) => return Err(e),
                };
                let whole = whole_lines(&bytes);
                if whole < bytes.len() {
                    let f = OpenOptions::new().write(true).open(&file)?;
                    f.set_len(whole as u64)?;
                    f.sync_all()?;
                }
                Ok(())
            };
            mend().map_err(|error| StoreError::Io {
                file: file.clone(),
                error,
            })?;
        }
        Ok(())
    }
}

/// Removes what is in a directory, all directories of which have to be on device `device`.
fn empty(dir: &Path, device: u64) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let is = std::fs::symlink_metadata(&path)?;
        if !is.is_dir() {
            std::fs::remove_file(&path)?;
            continue;
        }
        if is.dev() != device {
            let what = format!("'{}' is mounted: unmount it", path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        empty(&path, device)?;
        std::fs::remove_dir(&path)?;
    }
    Ok(())
}

/// How many bytes the lines have that were written whole.
fn whole_lines(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|b| *b == b'\n');
    last.map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::super::plan::StepKind;
    use super::super::spec::load;
    use super::*;

    fn plan() -> Plan {
        Plan::of(&load("name='x'\n[[roles]]\nname='r'\ncommand=['true']\n", None).unwrap()).unwrap()
    }

    fn record(rep: u32) -> Record {
        Record {
            step: Step {
                point: "p".into(),
                rep,
                kind: StepKind::Measure,
            },
            started_ms: 1,
            cache: Did::default(),
            roles: vec![RoleRecord {
                name: "w".into(),
                command: vec!["true".into()],
                exit: Some(0),
                seconds: 1.5,
                cpu_s: 0.5,
                measures: vec![Measure {
                    name: "write".into(),
                    unit: "MiB/s".into(),
                    value: 7.25,
                }],
                stdout: "\u{f6}\u{20ac}".into(),
                stderr: "e".into(),
                stood_still: vec![],
            }],
            sums: vec![Measure {
                name: "all".into(),
                unit: "MiB/s".into(),
                value: 8.0,
            }],
            overlap: None,
            samples: None,
            verdict: None,
            error: None,
        }
    }

    #[test]
    fn what_is_written_is_read_and_a_torn_line_is_mended() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("run");
        let run = RunDir::create(&dir, &plan(), &serde_json::json!({})).unwrap();
        for rep in 0..3 {
            run.record(&record(rep)).unwrap();
        }
        let (run, p) = RunDir::open(run.path()).unwrap();
        assert_eq!(p, plan());
        assert_eq!(run.records().unwrap(), [record(0), record(1), record(2)]);
        let file = dir.join("points.jsonl");
        let bytes = std::fs::read(&file).unwrap();
        let last = bytes[..bytes.len() - 1]
            .iter()
            .rposition(|b| *b == b'\n')
            .unwrap()
            + 1;
        // cut at every place within the last line, also within a character: two records are left, and a new one is appended cleanly
        for cut in last..bytes.len() {
            std::fs::write(&file, &bytes[..cut]).unwrap();
            assert_eq!(run.records().unwrap().len(), 2);
            run.mend().unwrap();
            run.record(&record(9)).unwrap();
            assert_eq!(run.records().unwrap(), [record(0), record(1), record(9)]);
        }
        let mut damaged = bytes;
        damaged[last - 2] = 0xff;
        std::fs::write(&file, &damaged).unwrap();
        let why = run.records().unwrap_err().to_string();
        let named = format!("line 2 of '{}' is damaged (", file.display());
        let end = "): take it out; without it `coral lab resume` makes its step again";
        assert!(why.starts_with(&named) && why.ends_with(end), "{why}");
        std::fs::write(dir.join("events.jsonl"), "{}\n").unwrap();
        let why = run.events().unwrap_err().to_string();
        let named = format!(
            "line 1 of '{}' is damaged (",
            dir.join("events.jsonl").display()
        );
        assert!(
            why.starts_with(&named) && why.contains("no measurement is lost"),
            "{why}"
        );
        assert!(matches!(
            RunDir::create(&dir, &plan(), &serde_json::json!({})),
            Err(StoreError::Exists(_))
        ));
    }

    #[test]
    fn a_step_that_is_made_again_finds_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let run = RunDir::create(&tmp.path().join("run"), &plan(), &serde_json::json!({})).unwrap();
        let raw = RunDir::raw(&record(0).step);
        let (at, kept) = (run.path().join(&raw), tmp.path().join("kept"));
        run.emptied(&raw).unwrap();
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), "").unwrap();
        std::fs::create_dir_all(at.join("a/b")).unwrap();
        std::fs::write(at.join("a/b/r.out"), "old").unwrap();
        std::os::unix::fs::symlink(&kept, at.join("a/link")).unwrap();
        run.emptied(&raw).unwrap();
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
        assert!(kept.join("file").exists(), "a link is no directory");
        // on another device than it should be
        std::fs::create_dir_all(at.join("dir/below")).unwrap();
        let why = empty(&at, 0).unwrap_err().to_string();
        assert!(why.contains("dir' is mounted: unmount it"), "{why}");
        assert!(at.join("dir/below").exists());
    }

    #[test]
    fn measures_are_found_by_role_and_sum() {
        let r = record(0);
        assert_eq!(r.measure("w/write").unwrap().value, 7.25);
        assert_eq!(r.measure("all").unwrap().value, 8.0);
        assert_eq!(r.measure("w/read"), None);
        assert_eq!(r.measure("x/write"), None);
    }

    #[test]
    fn what_is_no_run_and_what_is_newer_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let said = |at: &Path| RunDir::open(at).unwrap_err().to_string();
        let file = tmp.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (at, says) in [
            (
                tmp.path(),
                "holds no run of the laboratory: it has no plan.json",
            ),
            (&file, "is a file"),
            (&tmp.path().join("gone"), "is not there"),
        ] {
            let said = said(at);
            let start = format!("'{}' {says}: give the directory of a run", at.display());
            assert!(said.starts_with(&start), "{said}");
        }
        std::fs::write(tmp.path().join("plan.json"), "{").unwrap();
        assert!(matches!(
            RunDir::open(tmp.path()),
            Err(StoreError::Damaged { .. })
        ));
        std::fs::write(tmp.path().join("plan.json"), r#"{"format": 99, "what": 1}"#).unwrap();
        assert!(matches!(
            RunDir::open(tmp.path()),
            Err(StoreError::Newer { format: 99, .. })
        ));
    }
}
