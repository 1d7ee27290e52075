//! The ranges of an experiment's numbers. Whole ones are looked at before they become what a program counts with, so that what is far out
//! of range is told with its range too, and nothing has begun or was reserved by then.

use super::spec::{FigureKind, MAX_FREE_MIB, MAX_MOUNTS, MAX_REPEATS, Run, Spec, SpecError, wrong};
use super::value::{LONGEST, duration, shown};
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::{Table, Value};

/// Longest distance between samples, and the shortest.
const SAMPLE: RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(3600);

/// Whole numbers: table, key, range.
const WHOLE: &[(&str, &str, RangeInclusive<i64>)] = &[
    ("run", "repeats", 1..=MAX_REPEATS as i64),
    ("run", "warmup", 0..=MAX_REPEATS as i64),
    ("run", "seed", 0..=i64::MAX),
    ("needs", "free_mib", 0..=MAX_FREE_MIB),
    ("needs", "mounts", 0..=MAX_MOUNTS),
];

/// Whole numbers of tables that are there once. What is no number at all is told by its type.
pub(super) fn check_whole(table: &Table) -> Result<(), SpecError> {
    for (section, key, range) in WHOLE {
        let value = table.get(*section).and_then(|t| t.get(key));
        let is_out = match value {
            Some(Value::Integer(n)) => !range.contains(n),
            Some(Value::Float(_)) => true,
            _ => false,
        };
        if let Some(value) = value.filter(|_| is_out) {
            return wrong(format!(
                "[{section}] {key} = {}: give a whole number of {} to {}",
                shown(value),
                range.start(),
                range.end()
            ));
        }
    }
    Ok(())
}

/// Times, and the numbers of figures.
pub(super) fn check_others(spec: &Spec) -> Result<(), SpecError> {
    let Run {
        budget,
        timeout,
        sample,
        ..
    } = &spec.run;
    // A budget of nothing makes the plan alone.
    let times = [
        ("budget", budget, Duration::ZERO..=LONGEST),
        ("timeout", timeout, Duration::from_millis(1)..=LONGEST),
        ("sample", sample, SAMPLE),
    ];
    for (key, time, range) in times {
        if !range.contains(time) {
            return wrong(format!(
                "[run] {key} = {}: give {} to {}",
                duration(time),
                duration(range.start()),
                duration(range.end())
            ));
        }
    }
    for f in &spec.figures {
        let place = format!("[[figures]] '{}'", f.title);
        if f.kind == FigureKind::Time && !(f.scale.is_finite() && f.scale != 0.0) {
            return wrong(format!(
                "{place}: scale = {}: give a number other than 0",
                f.scale
            ));
        }
        if let Some(c) = f.ceiling.filter(|c| !c.is_finite()) {
            return wrong(format!("{place}: ceiling = {c}: give a number"));
        }
    }
    Ok(())
}
