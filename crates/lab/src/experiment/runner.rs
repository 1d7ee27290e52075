//! Running a plan: one step after the other, each on disk before the next begins.

use super::begun_by::BegunBy;
use super::environment::{differences, environment};
use super::needs::check_needs;
use super::plan::{Plan, Step, StepKind};
use super::process::output_unless;
use super::step::{Runner, Stop, rig_dir};
use super::store::{Event, Record, RunDir, StoreError};
use crate::clock;
use crate::verdict::{Answers, Seen};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a run that was killed may take to end its file systems.
const ENDING: Duration = Duration::from_secs(30);

/// A file system with less room, bytes, is full.
const LEAST_BYTES: u64 = 64 << 10;

/// Asks the Coral process with this directory for its status.
pub type Ask = Arc<dyn Fn(&Path) -> Result<Value, String> + Send + Sync>;

/// Reads the stopwatches of the processes at these places.
pub type Trace = Arc<dyn Fn(&[PathBuf]) -> Result<Seen, String> + Send + Sync>;

/// Reads what TCP knows of the connections of the processes at these places.
pub type AskTcp = Arc<dyn Fn(&[PathBuf]) -> Result<Answers, String> + Send + Sync>;

/// What a run needs besides its plan.
#[derive(Clone)]
pub struct Settings {
    /// This program: what `coral` in a command means.
    pub coral: PathBuf,
    /// File systems that are there already, by name; without any the rig is started.
    pub mounts: BTreeMap<String, Vec<PathBuf>>,
    /// Where the rig's targets go; `RUN/rig` unless given.
    pub scratch: Option<PathBuf>,
    /// How Coral processes are asked.
    pub ask: Ask,
    /// How the stopwatches of processes are read, by their directories and mount points.
    pub trace: Trace,
    /// How their TCP connections are looked at.
    pub tcp: AskTcp,
    /// The command line, for the record.
    pub command_line: Vec<String>,
    /// Set to end the run: what runs then is killed, and the run is incomplete.
    pub stop: Arc<AtomicBool>,
    /// The command whose run it is.
    pub begun_by: Option<BegunBy>,
    /// Takes a line about each step.
    pub say: Arc<dyn Fn(&str) + Send + Sync>,
}

/// On which file systems an experiment runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Mounts that are there already, by name; without any the rig is started.
    pub mounts: BTreeMap<String, Vec<PathBuf>>,
    /// Where the rig's targets go; `RUN/rig` unless given.
    pub scratch: Option<PathBuf>,
}

/// Of a run's environment.
const PLACE: &str = "place";

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Steps with a result, of all.
    pub done: usize,
    /// Steps of the plan.
    pub all: usize,
    /// Why it ended before all were made.
    pub incomplete: Option<String>,
}

/// Begins a run in a new directory.
pub fn run(dir: &Path, plan: &Plan, settings: &Settings) -> Result<Outcome, String> {
    has_parent("--dir", dir)?;
    check_scratch(plan, settings)?;
    check_needs(plan, dir, settings)?;
    let now = environment_of(plan, settings);
    // Of two that begin in one directory the second is told that it is there, and not that it may write over it.
    let say = |e: StoreError| e.to_string();
    RunDir::is_free(dir).map_err(say)?;
    std::fs::create_dir_all(dir).map_err(|e| format!("'{}': {e}", dir.display()))?;
    let _alone = alone(dir, settings)?;
    let run = RunDir::create(dir, plan, &now).map_err(say)?;
    (settings.say)(&format!(
        "{}: {} points, {} steps, in '{}'",
        plan.spec.name,
        plan.points.len(),
        plan.steps.len(),
        dir.display()
    ));
    go(
        &run,
        plan,
        settings,
        vec![],
        Event::Started {
            at_ms: clock::unix_ms(),
        },
    )
}

/// Goes on with a run that ended early.
pub fn resume(dir: &Path, settings: &Settings) -> Result<Outcome, String> {
    let say = |e: StoreError| e.to_string();
    let (_, plan) = RunDir::open(dir).map_err(say)?;
    check_scratch(&plan, settings)?;
    let _alone = alone(dir, settings)?;
    let (run, plan) = RunDir::open(dir).map_err(say)?;
    run.mend().map_err(say)?;
    if plan.spec.rig.is_some() {
        // Of a run that was killed: nobody has its targets open any more.
        let _ = std::fs::remove_dir_all(rig_dir(dir, settings));
    }
    let before: Value = run.read("environment.json").map_err(say)?;
    check_needs(&plan, dir, settings)?;
    let now = environment_of(&plan, settings);
    let done = run.records().map_err(say)?;
    let events = run.events().map_err(say)?;
    if matches!(
        events.last(),
        Some(Event::Ended {
            incomplete: None,
            ..
        })
    ) && missing(&plan, &done).is_empty()
    {
        (settings.say)("every step was made already: nothing is left to do");
        let all = plan.steps.len();
        return Ok(Outcome {
            done: all,
            all,
            incomplete: None,
        });
    }
    let event = Event::Resumed {
        at_ms: clock::unix_ms(),
        done: done.iter().filter(|r| r.error.is_none()).count(),
        changed: differences(&before, &now),
    };
    go(&run, &plan, settings, done, event)
}

/// A directory is made where its parent is: a misspelt path would fill another disk.
fn has_parent(option: &str, dir: &Path) -> Result<(), String> {
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty());
    match parent {
        Some(parent) if !parent.is_dir() => Err(format!(
            "{option} {}: there is no directory '{}': make it, or correct the path",
            dir.display(),
            parent.display()
        )),
        _ => Ok(()),
    }
}

/// Where targets go, if the run starts any.
fn check_scratch(plan: &Plan, settings: &Settings) -> Result<(), String> {
    let is_used = plan.spec.rig.is_some() && settings.mounts.is_empty();
    match settings.scratch.as_deref().filter(|_| is_used) {
        Some(scratch) => has_parent("--scratch", scratch),
        None => Ok(()),
    }
}

/// What steps depend on, with the place where they are made.
fn environment_of(plan: &Plan, settings: &Settings) -> Value {
    let programs = &plan.spec.needs.programs;
    let mut now = environment(&settings.coral, programs, &settings.command_line);
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let mounts = settings.mounts.iter();
    let place = Place {
        mounts: mounts
            .map(|(name, dirs)| (name.clone(), dirs.iter().map(whole).collect()))
            .collect(),
        scratch: settings.scratch.as_ref().map(whole),
    };
    now[PLACE] = serde_json::to_value(place).unwrap_or_default();
    now
}

/// Where a run that goes on is to be made: on the mounts of before, which `given` need not name again. The steps of one run are of the
/// same file systems, so those of the laboratory's own are not given up for others.
pub fn place_of_before(dir: &Path, mut given: Place) -> Result<Place, String> {
    let (run, plan) = RunDir::open(dir).map_err(|e| e.to_string())?;
    let environment: Value = run.read("environment.json").map_err(|e| e.to_string())?;
    // A run of an earlier version does not say.
    let Ok(before) = serde_json::from_value::<Place>(environment[PLACE].clone()) else {
        return Ok(given);
    };
    if before.mounts.is_empty() && !given.mounts.is_empty() && plan.spec.rig.is_some() {
        return Err(format!(
            "'{}' is of file systems that the laboratory started itself: leave --mount out, or begin another run",
            dir.display()
        ));
    }
    if given.mounts.is_empty() {
        given.mounts = before.mounts;
    }
    given.scratch = given.scratch.or(before.scratch);
    Ok(given)
}

/// File of a run directory that is locked while the run goes on.
const LOCK: &str = "lock";

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// In this process or another.
    Running,
    /// Its command is gone, and what that started is being ended.
    Ending,
    /// Nobody works on it.
    Absent,
}

/// Whether the run in `dir` goes on. Who looks has the lock for a moment, which a run that begins waits for.
pub fn presence(dir: &Path) -> Presence {
    let file = dir.join(LOCK);
    let looked = File::open(&file).map(|f| flock(&f, FlockOperation::NonBlockingLockShared));
    if !matches!(looked, Ok(Err(Errno::WOULDBLOCK))) {
        return Presence::Absent;
    }
    let begun_by = std::fs::read_to_string(file).unwrap_or_default();
    match begun_by.parse::<BegunBy>().is_ok_and(|b| b.is_gone()) {
        true => Presence::Ending,
        false => Presence::Running,
    }
}

/// Nobody else runs in this directory while this is held. A run that was killed may still be ending: that is waited for.
fn alone(dir: &Path, settings: &Settings) -> Result<File, String> {
    let file = dir.join(LOCK);
    let failed = |e: std::io::Error| format!("'{}': {e}", file.display());
    // What another one says in it stays until that has ended.
    let mut open = OpenOptions::new();
    let open = open.create(true).truncate(false).write(true).open(&file);
    let mut lock = open.map_err(failed)?;
    let (begun, mut told) = (clock::now(), false);
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() >= ENDING || settings.stop.load(Ordering::Relaxed) {
            return Err(format!(
                "another `coral lab` runs in '{}': wait for its end, or end it",
                dir.display()
            ));
        }
        if !std::mem::replace(&mut told, true) {
            (settings.say)("waiting for another `coral lab` in this directory to end");
        }
        clock::pause(ENDING / 100);
    }
    let begun_by = settings.begun_by.map(|b| b.to_string()).unwrap_or_default();
    let said = lock
        .set_len(0)
        .and_then(|()| lock.write_all(begun_by.as_bytes()));
    // A full disk has no room for it: the run says so where its results go.
    said.or_else(|e| match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Ok(()),
        _ => Err(failed(e)),
    })?;
    Ok(lock)
}

fn go(
    run: &RunDir,
    plan: &Plan,
    settings: &Settings,
    done: Vec<Record>,
    event: Event,
) -> Result<Outcome, String> {
    run.event(&event).map_err(|e| e.to_string())?;
    if let Event::Resumed { done, changed, .. } = &event {
        (settings.say)(&format!(
            "resumed: {done} of {} steps were there",
            plan.steps.len()
        ));
        for c in changed {
            (settings.say)(&format!("another environment than before: {c}"));
        }
    }
    let todo = missing(plan, &done);
    let mut made = plan.steps.len() - todo.len();
    let begun = clock::now();
    let mut runner = Runner {
        run,
        plan,
        settings,
        rig: None,
        gone: Arc::default(),
        begun,
    };
    let mut why = None;
    for (i, step) in todo.iter().enumerate() {
        why = runner.ends();
        if why.is_some() {
            break;
        }
        match runner.step(step) {
            Ok(record) => {
                made += 1;
                let steps = todo.len() - i - 1;
                let left = begun.elapsed().mul_f64(steps as f64 / (i + 1) as f64);
                (settings.say)(&format!(
                    "[{made}/{}] {} ({})",
                    plan.steps.len(),
                    line(plan, &record),
                    remaining(steps, left)
                ));
            }
            Err(Stop::Failed(e)) => {
                // Then what the commands said of it may be lost too.
                why = Some(match is_full(run.path()) {
                    true => format!("{e}; no space is left on '{}'", run.path().display()),
                    false => e,
                });
                break;
            }
            Err(Stop::Store(e)) => {
                why = Some(format!("the run directory cannot be written: {e}"));
                break;
            }
        }
    }
    if let Some(mut rig) = runner.rig.take()
        && let Err(e) = rig.stop()
    {
        (settings.say)(&format!("ending the file systems: {e}"));
    }
    // A full disk that ended the run may refuse this line too: then the missing steps say it.
    let ended = run.event(&Event::Ended {
        at_ms: clock::unix_ms(),
        incomplete: why.clone(),
    });
    if let (None, Err(e)) = (&why, ended) {
        why = Some(e.to_string());
    }
    Ok(Outcome {
        done: made,
        all: plan.steps.len(),
        incomplete: why,
    })
}

/// Whether the file system of the run directory has no room for what a step writes.
fn is_full(dir: &Path) -> bool {
    let space = rustix::fs::statvfs(dir);
    space.is_ok_and(|s| s.f_bavail.saturating_mul(s.f_frsize) < LEAST_BYTES)
}

/// Steps that have no result yet.
fn missing<'a>(plan: &'a Plan, done: &[Record]) -> Vec<&'a Step> {
    let made = done.iter().filter(|r| r.error.is_none());
    let have: Vec<&Step> = made.map(|r| &r.step).collect();
    plan.steps.iter().filter(|s| !have.contains(s)).collect()
}

fn remaining(steps: usize, left: Duration) -> String {
    match left.as_secs() {
        _ if steps == 0 => "the last".into(),
        0 => "less than 1 s left".into(),
        s if s < 90 => format!("about {s} s left"),
        s => format!("about {} min left", (s + 30) / 60),
    }
}

/// One line about a step that was made.
fn line(plan: &Plan, r: &Record) -> String {
    let label = plan.point(&r.step.point).map_or("", |p| p.label.as_str());
    let kind = match r.step.kind {
        StepKind::Warmup => "warm-up",
        StepKind::Measure => "repeat",
        StepKind::Again => "A again",
    };
    // What a figure shows, where it shows something of the role; the first else.
    let is_drawn = |name: &str| {
        let drawn = plan.spec.figures.iter().flat_map(|f| &f.y);
        drawn.into_iter().any(|y| y == name)
    };
    let figures: Vec<String> = (r.roles.iter())
        .filter_map(|role| {
            let all = &role.measures;
            let drawn = all
                .iter()
                .find(|m| is_drawn(&format!("{}/{}", role.name, m.name)));
            let m = drawn.or(all.first())?;
            let shown = format!("{}/{} {:.2} {}", role.name, m.name, m.value, m.unit);
            Some(shown.trim_end().to_owned())
        })
        .collect();
    format!("{label}, {kind} {}: {}", r.step.rep, figures.join(", "))
}

/// Brings the loopback device of a fresh network namespace up, unless `stop` is set.
pub fn loopback_up(stop: &AtomicBool) -> Result<(), String> {
    let mut up = Command::new("ip");
    let stop = || stop.load(Ordering::Relaxed);
    output_unless(up.args(["link", "set", "lo", "up"]), &stop).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::super::store::{Did, Measure, RoleRecord};
    use super::*;

    /// The first figure that a program prints may be a count.
    #[test]
    fn a_step_tells_what_figures_show() {
        let of = |y: &str| {
            let text = format!(
                "name = 'x'\n[parameters]\nop = ['a']\n[[roles]]\nname = 'j'\ncommand = ['true']\nparser = 'json'\n[[figures]]\ntitle = 't'\nkind = 'lines'\nx = 'op'\ny = ['{y}']\n"
            );
            let plan = Plan::of(&load(&text, None).unwrap()).unwrap();
            let measure = |name: &str, unit: &str, value: f64| Measure {
                name: name.into(),
                unit: unit.into(),
                value,
            };
            let role = RoleRecord {
                name: "j".into(),
                command: vec![],
                exit: Some(0),
                seconds: 1.0,
                cpu_s: 0.0,
                measures: vec![measure("n", "", 1.0), measure("rate", "ops/s", 7.0)],
                stdout: String::new(),
                stderr: String::new(),
                stood_still: vec![],
            };
            let record = Record {
                step: plan.steps[0].clone(),
                started_ms: 1,
                cache: Did::default(),
                roles: vec![role],
                sums: vec![],
                overlap: None,
                samples: None,
                verdict: None,
                error: None,
            };
            let told = line(&plan, &record);
            told.rsplit_once(": ").unwrap().1.to_owned()
        };
        assert_eq!(of("j/rate"), "j/rate 7.00 ops/s");
        assert_eq!(of("j/n"), "j/n 1.00");
    }
}
