//! One step of a run: file systems, preparation, caches, the commands from one instant with the collectors beside them, cleanup.

use super::parse::{errors, parse};
use super::plan::{Plan, Point, Step, fill_point, is_several};
use super::process::{Ended, Moment, Role, find_program, overlap, run_together};
use super::rig::{Rig, mount_value};
use super::rig_spec::RigSpec;
use super::runner::Settings;
use super::sampling::host_of;
use super::spec::{Cache, Command as SpecCommand, SpecError, applies};
use super::stopwatches::Time;
use super::store::{Did, Measure, Record, RoleRecord, RunDir, StoreError};
use super::tcp_watch::TcpWatch;
use crate::clock;
use crate::collect::{Samples, read_sadf};
use crate::load::record::StoodStill;
use crate::verdict::Processors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use toml::Table;

/// Most of a command's output that is read; the file has all of it.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Least pause between two looks at which programs use the mounts: it is beside a measurement.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Least pause between two looks at the TCP connections.
const TCP_PAUSE: Duration = Duration::from_millis(500);

/// Why the run ends here.
pub(super) enum Stop {
    /// This step failed; what was measured is kept.
    Failed(String),
    /// The run directory cannot be written.
    Store(StoreError),
}

/// Makes steps, with the rig between them.
pub(super) struct Runner<'a> {
    pub(super) run: &'a RunDir,
    pub(super) plan: &'a Plan,
    pub(super) settings: &'a Settings,
    pub(super) rig: Option<Rig>,
    /// Why a host of the experiment is there no more.
    pub(super) gone: Arc<OnceLock<String>>,
    /// When the run began, or was resumed: its budget counts from then on.
    pub(super) begun: Instant,
}

impl Runner<'_> {
    /// Makes one step and records it, also when it failed.
    pub(super) fn step(&mut self, step: &Step) -> Result<Record, Stop> {
        let raw = RunDir::raw(step);
        let mut record = Record {
            step: step.clone(),
            started_ms: clock::unix_ms(),
            cache: Did::default(),
            roles: vec![],
            sums: vec![],
            overlap: None,
            samples: None,
            verdict: None,
            error: None,
        };
        let was_begun = self.run.path().join(&raw).exists();
        let made = (self.run.emptied(&raw))
            .map_err(|e| e.to_string())
            .and_then(|()| self.measure(step, &raw, was_begun, &mut record));
        record.error = made.as_ref().err().cloned();
        self.run.record(&record).map_err(Stop::Store)?;
        match made {
            Ok(()) => Ok(record),
            Err(e) => {
                let label = self
                    .plan
                    .point(&step.point)
                    .map_or("", |p| p.label.as_str());
                Err(Stop::Failed(format!("{label}, repeat {}: {e}", step.rep)))
            }
        }
    }

    /// `was_begun`: before, and it did not end, so that what it made may be there.
    fn measure(
        &mut self,
        step: &Step,
        raw: &str,
        was_begun: bool,
        record: &mut Record,
    ) -> Result<(), String> {
        let spec = &self.plan.spec;
        let point = self
            .plan
            .point(&step.point)
            .ok_or("the plan has no such point")?
            .clone();
        self.rig_for(&point)?;
        let stop = || self.ends();
        if was_begun {
            // It may not have come to what there is to clean up.
            let _ = self.around(&point, step, &spec.cleanup, raw, ("remains", &stop));
        }
        self.around(&point, step, &spec.prepare, raw, ("prepare", &stop))?;
        if spec.run.cache == Cache::Warm {
            let (roles, _) = self.roles(&point, step, raw, "warm-")?;
            self.timed(&roles, |_| ())?;
            record
                .cache
                .done
                .push("the same work was done once before".into());
        }
        record.cache = self.caches(std::mem::take(&mut record.cache))?;
        let (roles, parsers) = self.roles(&point, step, raw, "")?;
        let (mut sampler, mut samples) = (None, None);
        // Before it begins: this asks the file system.
        let mounts = self.settings.mounts.values().flatten();
        let mounts: Vec<PathBuf> = mounts.filter_map(|m| m.canonicalize().ok()).collect();
        record.started_ms = clock::unix_ms();
        let begun = clock::now();
        let mut released = begun;
        let pause = spec.run.sample.max(TCP_PAUSE);
        let tcp = TcpWatch::start(self.settings.tcp.clone(), self.places(), pause);
        let ends = || self.ends().is_some();
        let (mut processors, mut used, mut together) = (None, None, None);
        let ended = self.timed(&roles, |at| match at {
            Moment::Ready(pids) => {
                sampler = self.sampler(&roles, pids, raw);
                processors = Some(Processors::begin(&mounts, LOOK_PAUSE));
                released = clock::now();
            }
            // What the records have of the time in which all ran goes with every later operation.
            Moment::Apart => {
                used = processors.take().map(Processors::end);
                together = Some((self.told(), released.elapsed().as_secs_f64()));
            }
            Moment::Ended => {
                used = processors.take().map(Processors::end).or(used.take());
                samples = sampler.take().map(|s| s.stop(&ends));
            }
        });
        let used = used.or_else(|| processors.map(Processors::end));
        let (used, mut tcp) = (used.unwrap_or_default(), tcp.end());
        let samples = samples.or_else(|| sampler.map(|s| s.stop(&ends)));
        if let Some(mut samples) = samples {
            self.sar(&point, step, raw, &mut samples);
            let host = host_of(&samples, used, together.is_some());
            let ends = ended.iter().flatten().map(|e| e.seconds);
            let first_s = ends.fold(f64::INFINITY, f64::min);
            let time = Time {
                released,
                together: together.map(|(seen, at_s)| (seen, at_s, first_s)),
            };
            if let Some((.., first_s)) = &time.together {
                let begun_s = released.duration_since(begun).as_secs_f64();
                let common = tcp.iter().filter(|l| l.at_s <= begun_s + first_s).count();
                tcp.truncate(common.max(2));
            }
            record.verdict = self.verdict((host, tcp), time, raw);
            let name = format!("{raw}/samples.json");
            self.run.write(&name, &samples).map_err(|e| e.to_string())?;
            record.samples = Some(name);
        }
        let ended = ended?;
        // Gone while the commands ended: what was measured is without it.
        if let Some(why) = self.gone.get() {
            return Err(why.clone());
        }
        let ends: Vec<f64> = ended.iter().map(|e| e.seconds).collect();
        record.overlap = overlap(&ends);
        let mut failed = None;
        for ((role, parser), end) in roles.iter().zip(parsers).zip(&ended) {
            let (r, error) = self.role_record(role, &parser, end);
            record.roles.push(r);
            failed = failed.or(error);
        }
        if let Some(e) = failed {
            return Err(e);
        }
        record.sums = sums(&spec.sums, record)?;
        let stop = || self.is_interrupted();
        self.around(&point, step, &spec.cleanup, raw, ("cleanup", &stop))
    }

    /// Starts the rig, or another when this point's is another than the one that runs.
    fn rig_for(&mut self, point: &Point) -> Result<(), String> {
        let Some(table) = self
            .plan
            .spec
            .rig
            .as_ref()
            .filter(|_| self.settings.mounts.is_empty())
        else {
            return Ok(());
        };
        let spec = fill_table(table, point)
            .and_then(|t| RigSpec::of(&t))
            .map_err(|e| e.to_string())?;
        if !spec.fresh && self.rig.as_ref().is_some_and(|r| r.spec == spec) {
            return Ok(());
        }
        if let Some(mut old) = self.rig.take() {
            old.stop()?;
        }
        let dir = rig_dir(self.run.path(), self.settings);
        let dir = std::path::absolute(&dir).map_err(|e| format!("'{}': {e}", dir.display()))?;
        self.rig = Some(
            Rig::start(&spec, &dir, self.settings)
                .map_err(|e| format!("starting the file systems: {e}"))?,
        );
        Ok(())
    }

    /// What sar saw meanwhile, here or elsewhere; what cannot be had is said among what is missing.
    fn sar(&self, point: &Point, step: &Step, raw: &str, samples: &mut Samples) {
        let until = clock::unix_ms();
        let commands = self.plan.spec.sar.iter();
        for c in commands.filter(|c| applies(&c.when, &point.params)) {
            let name = format!("sar-{}", c.name);
            let had = self
                .untimed(point, step, c, raw, (&name, &|| self.is_interrupted()))
                .and_then(|()| {
                    let out = self.run.path().join(raw).join(format!("{name}.out"));
                    read_sadf(&read_head(&out))
                })
                .and_then(|sar| match samples.take(&c.name, &sar, until) {
                    true => Ok(()),
                    false => Err("nothing in it is of this step's time".to_owned()),
                });
            if let Err(why) = had {
                samples.missing.push(format!("{}/sar: {why}", c.name));
            }
        }
    }

    fn command(&self, point: &Point, step: &Step, c: &SpecCommand) -> Result<Vec<String>, String> {
        let mounts = match &self.rig {
            Some(r) => r.mounts(),
            None => self.settings.mounts.clone(),
        };
        let names: Vec<&str> = mounts
            .keys()
            .map(String::as_str)
            .chain(["rep", "scratch", "coral"])
            .collect();
        let host = self.plan.spec.hosts.iter().find(|h| h.name == c.host);
        let here = &self.settings.coral;
        let coral = || host.map_or_else(|| here.display().to_string(), |h| h.coral(here));
        let value = |name: &str| match name {
            "rep" => Some(step.rep.to_string()),
            "coral" => Some(coral()),
            "scratch" => Some(
                self.run
                    .path()
                    .join(RunDir::raw(step))
                    .display()
                    .to_string(),
            ),
            _ => match (name.strip_suffix(".library"), &self.rig) {
                (Some(system), Some(rig)) => rig.library(system),
                _ => mount_value(&mounts, name),
            },
        };
        let mut words: Vec<String> = vec![];
        for w in &c.command {
            let filled = fill_point(point, w, &names, &value).map_err(|e| e.to_string())?;
            match is_several(point, w) {
                true => words.extend(filled.split_whitespace().map(str::to_owned)),
                false => words.push(filled),
            }
        }
        if words[0] == "coral" {
            words[0] = coral();
        }
        if let Some(host) = host {
            return Ok(host.wrap(&words));
        }
        if find_program(&words[0]).is_none() {
            return Err(format!("the program '{}' is not there", words[0]));
        }
        Ok(words)
    }

    fn roles(
        &self,
        point: &Point,
        step: &Step,
        raw: &str,
        prefix: &str,
    ) -> Result<(Vec<Role>, Vec<String>), String> {
        let dir = self.run.path().join(raw);
        let mut out = (vec![], vec![]);
        for c in self
            .plan
            .spec
            .roles
            .iter()
            .filter(|c| applies(&c.when, &point.params))
        {
            out.0.push(Role {
                name: c.name.clone(),
                command: self.command(point, step, c)?,
                stdout: dir.join(format!("{prefix}{}.out", c.name)),
                stderr: dir.join(format!("{prefix}{}.err", c.name)),
                record: prefix.is_empty().then(|| dir.join(record_name(&c.name))),
            });
            out.1.push(c.parser.clone());
        }
        Ok(out)
    }

    fn timed(&self, roles: &[Role], at: impl FnMut(Moment<'_>)) -> Result<Vec<Ended>, String> {
        self.timed_until(roles, &|| self.ends(), at)
    }

    fn timed_until(
        &self,
        roles: &[Role],
        stop: &dyn Fn() -> Option<String>,
        at: impl FnMut(Moment<'_>),
    ) -> Result<Vec<Ended>, String> {
        run_together(roles, self.plan.spec.run.timeout, stop, at)
            .map_err(|e| format!("running the commands: {e}"))
    }

    /// Why what runs has to end.
    pub(super) fn ends(&self) -> Option<String> {
        let budget = self.plan.spec.run.budget;
        let is_over = self.begun.elapsed() >= budget;
        let spent = || format!("the budget of {} s was used up", budget.as_secs());
        self.is_interrupted().or_else(|| is_over.then(spent))
    }

    /// Why even what tidies up, or fetches what was measured, has to end: the budget is of measuring.
    fn is_interrupted(&self) -> Option<String> {
        let stopped = self.settings.stop.load(Ordering::Relaxed);
        (self.gone.get().cloned()).or_else(|| stopped.then(|| "interrupted".to_owned()))
    }

    /// Runs what prepares a step, or tidies up after it: one command after the other.
    fn around(
        &self,
        point: &Point,
        step: &Step,
        commands: &[SpecCommand],
        raw: &str,
        (name, stop): (&str, &dyn Fn() -> Option<String>),
    ) -> Result<(), String> {
        let of_point = commands.iter().filter(|c| applies(&c.when, &point.params));
        for (i, c) in of_point.enumerate() {
            self.untimed(point, step, c, raw, (&format!("{name}{i}"), stop))?;
        }
        Ok(())
    }

    fn untimed(
        &self,
        point: &Point,
        step: &Step,
        c: &SpecCommand,
        raw: &str,
        (name, stop): (&str, &dyn Fn() -> Option<String>),
    ) -> Result<(), String> {
        let dir = self.run.path().join(raw);
        let role = Role {
            name: name.to_owned(),
            command: self.command(point, step, c)?,
            stdout: dir.join(format!("{name}.out")),
            stderr: dir.join(format!("{name}.err")),
            record: None,
        };
        let ended = self.timed_until(std::slice::from_ref(&role), stop, |_| ())?;
        self.role_record(&role, "none", &ended[0])
            .1
            .map_or(Ok(()), Err)
    }

    /// What is recorded of a command, and why it failed.
    fn role_record(&self, role: &Role, parser: &str, end: &Ended) -> (RoleRecord, Option<String>) {
        let relative = |p: &Path| {
            p.strip_prefix(self.run.path())
                .unwrap_or(p)
                .display()
                .to_string()
        };
        let mut record = RoleRecord {
            name: role.name.clone(),
            command: role.command.clone(),
            exit: end.status.code(),
            seconds: end.seconds,
            cpu_s: end.cpu_s,
            measures: vec![],
            stdout: relative(&role.stdout),
            stderr: relative(&role.stderr),
            stood_still: role.record.as_deref().map_or(vec![], stood_still),
        };
        let said = || {
            let text = read_head(&role.stderr);
            let text = if text.trim().is_empty() {
                read_head(&role.stdout)
            } else {
                text
            };
            match errors(&text) {
                last if last.is_empty() => String::new(),
                last => format!(": {}", last.join(" / ")),
            }
        };
        let error = if end.timed_out {
            Some(format!(
                "{} took longer than {} s and was ended",
                role.name,
                self.plan.spec.run.timeout.as_secs()
            ))
        } else if !end.status.success() {
            Some(format!("{} ended with {}{}", role.name, end.status, said()))
        } else {
            match parse(parser, &read_head(&role.stdout)) {
                Ok(m) => {
                    record.measures = m;
                    let lost = role.record.as_deref().and_then(not_all);
                    lost.map(|why| format!("{}: {why}", role.name))
                }
                Err(e) => Some(format!("{}: {e}", role.name)),
            }
        };
        (record, error)
    }

    /// Puts caches into the state that is asked for, and says what was done and what could not be.
    fn caches(&mut self, mut did: Did) -> Result<Did, String> {
        let cache = self.plan.spec.run.cache;
        if matches!(cache, Cache::Remount | Cache::Cold) {
            match &mut self.rig {
                Some(r) => {
                    r.remount()?;
                    did.done.push("clients were mounted anew".into());
                }
                None => did.not_done.push(
                    "clients were not mounted anew: the laboratory did not mount them".into(),
                ),
            }
        }
        if matches!(cache, Cache::Drop | Cache::Cold) {
            rustix::fs::sync();
            match std::fs::write("/proc/sys/vm/drop_caches", "3") {
                Ok(()) => did.done.push("the machine's page cache was dropped".into()),
                Err(e) => did
                    .not_done
                    .push(format!("the machine's page cache was not dropped: {e}")),
            }
        }
        Ok(did)
    }
}

/// Where the rig of a run has its targets.
pub(super) fn rig_dir(run: &Path, settings: &Settings) -> PathBuf {
    settings.scratch.as_deref().unwrap_or(run).join("rig")
}

/// The record of a load generator, where there is one.
fn read_record(file: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Which ranks of a load generator stood still, as its record says.
fn stood_still(record: &Path) -> Vec<String> {
    let stood = read_record(record).map(|mut r| r["stood_still"].take());
    let stood = stood.and_then(|s| serde_json::from_value::<Vec<StoodStill>>(s).ok());
    stood.iter().flatten().map(StoodStill::told).collect()
}

/// Why a load generator did not do all that it was to do, as its record says: some go on where an operation fails, and end well.
fn not_all(record: &Path) -> Option<String> {
    let record = read_record(record)?;
    let why = record["why_incomplete"].as_str();
    (record["complete"] == false).then(|| why.unwrap_or("its record is incomplete").to_owned())
}

/// The file of a step in which a load generator leaves its record.
pub(crate) fn record_name(role: &str) -> String {
    format!("{role}.record.json")
}

fn read_head(file: &Path) -> String {
    use std::io::Read;
    let mut bytes = vec![];
    if let Ok(f) = std::fs::File::open(file) {
        let _ = f.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sums that an experiment names, of those that have all their parts here. Programs of one's own say their units only now.
fn sums(wanted: &BTreeMap<String, Vec<String>>, r: &Record) -> Result<Vec<Measure>, String> {
    let mut all = vec![];
    for (name, parts) in wanted {
        let found = parts.iter().filter_map(|p| match p.strip_suffix('?') {
            Some(optional) => r.measure(optional).map(|m| Some((optional, m))),
            None => Some(r.measure(p).map(|m| (p.as_str(), m))),
        });
        let Some(found) = found.collect::<Option<Vec<(&str, &Measure)>>>() else {
            continue;
        };
        let Some((first, m)) = found.first() else {
            continue;
        };
        if let Some((other, o)) = found.iter().find(|(_, o)| o.unit != m.unit) {
            return Err(format!(
                "the sum '{name}': '{first}' is in {} and '{other}' is in {}: figures of different units cannot be added up",
                m.unit, o.unit
            ));
        }
        all.push(Measure {
            name: name.clone(),
            unit: m.unit.clone(),
            value: found.iter().map(|(_, m)| m.value).sum(),
        });
    }
    Ok(all)
}

/// Fills a point's parameters into every text of a table.
pub(super) fn fill_table(t: &Table, point: &Point) -> Result<Table, SpecError> {
    fn fill(v: &toml::Value, point: &Point) -> Result<toml::Value, SpecError> {
        Ok(match v {
            toml::Value::String(s) => toml::Value::String(fill_point(point, s, &[], &|_| None)?),
            toml::Value::Array(a) => {
                toml::Value::Array(a.iter().map(|v| fill(v, point)).collect::<Result<_, _>>()?)
            }
            toml::Value::Table(t) => toml::Value::Table(fill_table(t, point)?),
            other => other.clone(),
        })
    }
    t.iter()
        .map(|(k, v)| Ok((k.clone(), fill(v, point)?)))
        .collect()
}
