//! What a run says: its records put together by point and measure.

use crate::clock::utc;
use crate::experiment::{
    Event, Plan, Point, Presence, Record, RoleRecord, RunDir, Step, StepKind, StoreError, presence,
};
use crate::stats::{Comparison, Summary, compare};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One measure of one point over its repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The point's id.
    pub point: String,
    /// The point's parameters as text.
    pub label: String,
    /// ROLE/MEASURE, or the name of a sum.
    pub measure: String,
    /// Its unit.
    pub unit: String,
    /// What the repeats say.
    pub summary: Summary,
}

/// B against A at otherwise equal parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct AgainstRow {
    /// The other parameters.
    pub label: String,
    /// The measure.
    pub measure: String,
    /// What the pairs say.
    pub comparison: Comparison,
}

/// A run, analysed.
#[derive(Debug)]
pub struct Analysis {
    /// Where it is.
    pub dir: PathBuf,
    /// Its plan.
    pub plan: Plan,
    /// Its environment.
    pub environment: Value,
    /// What happened to it.
    pub events: Vec<Event>,
    /// Its records.
    pub records: Vec<Record>,
    /// Summaries, in the order of points.
    pub rows: Vec<Row>,
    /// A/B.
    pub against: Vec<AgainstRow>,
    /// Steps with a result.
    pub done: usize,
    /// Whether it went on when it was read.
    pub presence: Presence,
    /// What the experiment names and no step has, a sentence each. A report looks for it.
    pub unmeasured: Vec<String>,
}

impl Analysis {
    /// Of the run in this directory.
    pub fn of(dir: &Path) -> Result<Analysis, StoreError> {
        // First, as one that ends meanwhile says so in its events.
        let presence = presence(dir);
        let (run, plan) = RunDir::open(dir)?;
        let records = run.records()?;
        let good: Vec<&Record> = latest(&records);
        let done = plan
            .steps
            .iter()
            .filter(|s| good.iter().any(|r| r.step == **s))
            .count();
        let rows = plan
            .points
            .iter()
            .flat_map(|p| rows_of(&plan, p, &good))
            .collect();
        let against = against(&plan, &good);
        Ok(Analysis {
            dir: dir.to_owned(),
            environment: run.read("environment.json")?,
            events: run.events()?,
            rows,
            against,
            done,
            presence,
            plan,
            records,
            unmeasured: vec![],
        })
    }

    /// Why it is incomplete; none when every step has a result.
    pub fn incomplete(&self) -> Option<String> {
        let all = self.plan.steps.len();
        if self.done == all {
            return None;
        }
        let why = match self.events.last() {
            Some(Event::Ended {
                incomplete: Some(why),
                ..
            }) => why,
            Some(Event::Ended { .. }) => {
                "it had all when it ended, and records were taken out of points.jsonl since: `coral lab resume` makes these steps again"
            }
            _ => match self.presence {
                Presence::Running => "it runs still",
                Presence::Ending => "its command was killed, and what that started is being ended",
                Presence::Absent => "it was ended without notice, by a kill or a crash",
            },
        };
        Some(format!("{} of {all} steps have a result: {why}", self.done))
    }

    /// One line for each time it was gone on with.
    pub fn resumptions(&self) -> Vec<String> {
        self.events
            .iter()
            .filter_map(|e| match e {
                Event::Resumed {
                    at_ms,
                    done,
                    changed,
                } => {
                    let mut text = format!("Resumed at {} with {done} steps done.", utc(*at_ms));
                    if !changed.is_empty() {
                        text += &format!(" Other than before: {}.", changed.join("; "));
                    }
                    Some(text)
                }
                _ => None,
            })
            .collect()
    }

    /// One line for each step in which ranks of a load generator stood still: its figures have that time in them.
    pub fn stood_still(&self) -> Vec<String> {
        let of_role = |step: &Step, role: &RoleRecord| {
            let point = self.plan.points.iter().find(|p| p.id == step.point);
            let label = point.map_or(step.point.as_str(), |p| &p.label);
            let stood = role.stood_still.join("; ");
            format!("{label}, repeat {}: {}: {stood}", step.rep, role.name)
        };
        let of_step = |r: &Record| -> Vec<String> {
            let stood = r.roles.iter().filter(|role| !role.stood_still.is_empty());
            stood.map(|role| of_role(&r.step, role)).collect()
        };
        self.records.iter().flat_map(of_step).collect()
    }

    /// When it began.
    pub fn began(&self) -> String {
        self.events
            .iter()
            .find_map(|e| match e {
                Event::Started { at_ms } => Some(utc(*at_ms)),
                _ => None,
            })
            .unwrap_or_default()
    }

    /// The row of a point and a measure.
    pub fn row(&self, point: &str, measure: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|r| r.point == point && r.measure == measure)
    }

    /// The last good record of a step kind for a point, repeats in order.
    pub fn measured(&self, point: &str) -> Vec<&Record> {
        let mut all: Vec<&Record> = latest(&self.records)
            .into_iter()
            .filter(|r| r.step.point == point && r.step.kind == StepKind::Measure)
            .collect();
        all.sort_by_key(|r| r.step.rep);
        all
    }
}

/// Records with a result, the last of each step.
fn latest(records: &[Record]) -> Vec<&Record> {
    let by_step: BTreeMap<_, &Record> = records
        .iter()
        .filter(|r| r.error.is_none())
        .map(|r| (&r.step, r))
        .collect();
    by_step.into_values().collect()
}

/// Names and units of the measures in these records, in the order they come.
fn names(records: &[&Record]) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = vec![];
    for r in records {
        let roles = r.roles.iter().flat_map(|role| {
            role.measures
                .iter()
                .map(move |m| (format!("{}/{}", role.name, m.name), m.unit.clone()))
        });
        let sums = r.sums.iter().map(|m| (m.name.clone(), m.unit.clone()));
        for n in roles.chain(sums) {
            if !out.contains(&n) {
                out.push(n);
            }
        }
    }
    out
}

fn rows_of(plan: &Plan, p: &Point, good: &[&Record]) -> Vec<Row> {
    let mut of: Vec<&Record> = good
        .iter()
        .copied()
        .filter(|r| r.step.point == p.id && r.step.kind == StepKind::Measure)
        .collect();
    of.sort_by_key(|r| r.step.rep);
    names(&of)
        .into_iter()
        .filter_map(|(measure, unit)| {
            let values: Vec<f64> = of
                .iter()
                .filter_map(|r| Some(r.measure(&measure)?.value))
                .collect();
            Some(Row {
                point: p.id.clone(),
                label: p.label.clone(),
                measure,
                unit,
                summary: Summary::of(&values, plan.spec.run.seed)?,
            })
        })
        .collect()
}

/// Pairs of A and B of the same repeat, for every point of A.
fn against(plan: &Plan, good: &[&Record]) -> Vec<AgainstRow> {
    let Some(ab) = &plan.spec.ab else {
        return vec![];
    };
    let values = &plan.spec.parameters[&ab.parameter].0;
    let mut out = vec![];
    for a in plan
        .points
        .iter()
        .filter(|p| p.param(&ab.parameter) == Some(&values[0]))
    {
        // Lists that step together with the parameter differ as well.
        let with: Vec<&String> = plan
            .spec
            .zip
            .iter()
            .filter(|g| g.contains(&ab.parameter))
            .flatten()
            .collect();
        let others = |p: &Point| -> Vec<(String, String)> {
            p.params
                .iter()
                .filter(|(n, _)| *n != ab.parameter && !with.contains(&n))
                .cloned()
                .collect()
        };
        let Some(b) = plan
            .points
            .iter()
            .find(|p| p.param(&ab.parameter) == Some(&values[1]) && others(p) == others(a))
        else {
            continue;
        };
        let of = |p: &Point, kind: StepKind, rep: u32| {
            good.iter()
                .copied()
                .find(|r| r.step.point == p.id && r.step.kind == kind && r.step.rep == rep)
        };
        let mine: Vec<&Record> = good
            .iter()
            .copied()
            .filter(|r| r.step.point == a.id && r.step.kind == StepKind::Measure)
            .collect();
        for (measure, _) in names(&mine) {
            let value = |r: Option<&Record>| Some(r?.measure(&measure)?.value);
            let pairs = |other: &Point, kind| -> Vec<(f64, f64)> {
                (1..=plan.spec.run.repeats)
                    .filter_map(|rep| {
                        Some((
                            value(of(a, StepKind::Measure, rep))?,
                            value(of(other, kind, rep))?,
                        ))
                    })
                    .collect()
            };
            if let Some(comparison) =
                compare(&pairs(b, StepKind::Measure), &pairs(a, StepKind::Again))
            {
                let label: Vec<String> = others(a)
                    .iter()
                    .filter(|(n, _)| plan.spec.parameters[n].0.len() > 1)
                    .map(|(n, v)| format!("{n}={v}"))
                    .collect();
                out.push(AgainstRow {
                    label: label.join(" "),
                    measure,
                    comparison,
                });
            }
        }
    }
    out
}

/// One line about the run in a directory.
pub fn state(dir: &Path) -> Result<String, StoreError> {
    let a = Analysis::of(dir)?;
    let (name, began) = (&a.plan.spec.name, a.began());
    Ok(match a.incomplete() {
        None => format!("{name}, complete, begun {began}"),
        Some(why) => match a.presence {
            Presence::Running => format!(
                "{name}, running, begun {began}: {} of {} steps have a result",
                a.done,
                a.plan.steps.len()
            ),
            Presence::Ending => format!("{name}, ending, begun {began}: {why}"),
            Presence::Absent => format!("{name}, incomplete, begun {began}: {why}"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::BegunBy;

    #[test]
    fn why_a_run_is_incomplete_is_told_by_how_it_ended() {
        let text = "name='x'\n[[roles]]\nname='r'\ncommand=['true']\n";
        let plan = Plan::of(&crate::experiment::load(text, None).unwrap()).unwrap();
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("run");
        let run = RunDir::create(&dir, &plan, &serde_json::json!({})).unwrap();
        let told = || Analysis::of(&dir).unwrap().incomplete().unwrap();
        let killed =
            "0 of 3 steps have a result: it was ended without notice, by a kill or a crash";
        assert_eq!(told(), killed);
        // Whoever holds the lock works on it, for a command that is there, or for one that has ended.
        let file = dir.join("lock");
        let lock = std::fs::File::create(&file).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let own = BegunBy::this().unwrap().to_string();
        let (before, start) = own.rsplit_once(' ').unwrap();
        let gone = format!("{before} {}", start.parse::<u64>().unwrap() + 1);
        for (begun_by, says) in [
            (own.as_str(), "x, running, begun "),
            (gone.as_str(), "x, ending, begun "),
            ("", "x, running, begun "),
        ] {
            std::fs::write(&file, begun_by).unwrap();
            let said = state(&dir).unwrap();
            assert!(said.starts_with(says), "{begun_by}: {said}");
        }
        drop(lock);
        let said = state(&dir).unwrap();
        assert!(
            said.starts_with("x, incomplete, ") && said.ends_with(killed),
            "{said}"
        );
        for (incomplete, says) in [
            (Some("its budget is used up"), "its budget is used up"),
            (None, "records were taken out of points.jsonl"),
        ] {
            let incomplete = incomplete.map(str::to_owned);
            run.event(&Event::Ended {
                at_ms: 1,
                incomplete,
            })
            .unwrap();
            assert!(told().contains(says), "{}", told());
        }
    }
}
