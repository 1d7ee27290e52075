//! What an experiment names and no step has: an empty figure must say that a name is wrong, and which is right.

use super::analysis::Analysis;
use super::{cdf, figure};
use crate::experiment::{Figure, FigureKind, Point, applies, is_unit, nearest};
use std::collections::{BTreeMap, BTreeSet};

/// A sentence for each name. What was not measured because the run ended before is not told.
pub(super) fn told(a: &Analysis) -> Vec<String> {
    let spec = &a.plan.spec;
    let done: Vec<&Point> = (a.plan.points.iter())
        .filter(|p| !a.measured(&p.id).is_empty())
        .collect();
    let mut out = vec![];
    for f in &spec.figures {
        let drawn: Vec<&Point> = (done.iter().copied())
            .filter(|p| applies(&f.when, &p.params))
            .collect();
        let place = format!("the figure '{}'", f.title);
        let (has, how) = match f.kind {
            FigureKind::Time => (figure::sampled(a, &drawn), "sampled"),
            FigureKind::Cdf => (recorded(a, f, &drawn), "recorded by a load generator"),
            FigureKind::Lines | FigureKind::Bars => (measures(a, &drawn), "measured"),
        };
        out.extend(missing(&place, &f.y, &drawn, &has, how));
        out.extend(other_units(a, f, &drawn));
    }
    for (name, parts) in &spec.sums {
        if !done.is_empty() && !a.rows.iter().any(|r| r.measure == *name) {
            out.push(format!(
                "the sum '{name}': no step has all of {}",
                parts.join(", ")
            ));
        }
    }
    for p in &spec.published {
        let beside: Vec<&Point> = (done.iter().copied())
            .filter(|q| applies(&p.when, &q.params))
            .collect();
        let wanted: Vec<String> = (Some(p.measure.clone()).into_iter())
            .filter(|m| !m.is_empty())
            .collect();
        let (place, has) = (
            format!("beside the published '{}'", p.what),
            measures(a, &beside),
        );
        out.extend(missing(&place, &wanted, &beside, &has, "measured"));
    }
    out
}

/// Names among `wanted` that nothing at these points has, where there are points.
fn missing(
    place: &str,
    wanted: &[String],
    points: &[&Point],
    has: &BTreeSet<String>,
    how: &str,
) -> Vec<String> {
    let empty = wanted
        .iter()
        .filter(|w| !points.is_empty() && !has.contains(*w));
    let one = |name: &String| {
        let near = match nearest(name, has.iter().map(String::as_str)) {
            Some(near) => format!("; did you mean '{near}'?"),
            None => String::new(),
        };
        format!("{place}: nothing was {how} as '{name}'{near}")
    };
    empty.map(one).collect()
}

/// What a figure shows in another unit than it says, as only those know who measured it.
fn other_units(a: &Analysis, f: &Figure, points: &[&Point]) -> Vec<String> {
    let sampled;
    let units: BTreeMap<&str, &str> = match f.kind {
        FigureKind::Time if f.scale == 1.0 => {
            sampled = figure::units(a, points);
            let of = sampled.iter();
            of.map(|(name, unit): (&String, &String)| (name.as_str(), unit.as_str()))
                .collect()
        }
        FigureKind::Time | FigureKind::Cdf => return vec![],
        FigureKind::Lines | FigureKind::Bars => {
            let of = a.rows.iter();
            let drawn = of.filter(|r| points.iter().any(|p| p.id == r.point));
            drawn
                .map(|r| (r.measure.as_str(), r.unit.as_str()))
                .collect()
        }
    };
    let one = |y: &String| {
        let unit = units.get(y.as_str())?;
        (!f.unit.is_empty() && !is_unit(unit, &f.unit)).then(|| {
            let is = match figure::has_no_unit(unit) {
                true => "has no unit",
                false => &format!("is in {unit}"),
            };
            format!(
                "the figure '{}': '{y}' {is}, where the experiment says {}",
                f.title, f.unit
            )
        })
    };
    f.y.iter().filter_map(one).collect()
}

/// Phases of which load generators left latencies.
fn recorded(a: &Analysis, f: &Figure, points: &[&Point]) -> BTreeSet<String> {
    let has = |y: &&String| points.iter().any(|p| cdf::has(a, p, y));
    f.y.iter().filter(has).cloned().collect()
}

/// Measures of these points.
fn measures(a: &Analysis, points: &[&Point]) -> BTreeSet<String> {
    let mut of: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for r in &a.rows {
        of.entry(&r.point).or_default().push(&r.measure);
    }
    let of = points.iter().filter_map(|p| of.get(p.id.as_str()));
    of.flatten().map(|m| (*m).clone()).collect()
}
