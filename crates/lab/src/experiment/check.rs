//! What of an experiment has to fit together, beyond its keys.

use super::hosts::check_hosts;
use super::measures::check_measures;
use super::nearest::unknown;
use super::numbers::check_others;
use super::spec::{FigureKind, OneOrMany, Spec, SpecError, wrong};
use std::collections::BTreeMap;

/// Values in their ranges, names that exist, lists that are equally long.
pub(super) fn check(spec: &Spec) -> Result<(), SpecError> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if spec.name.is_empty() || spec.name.len() > 64 || !spec.name.chars().all(word) {
        return wrong(format!(
            "name '{}': give 1 to 64 letters, digits, '-' or '_'",
            spec.name
        ));
    }
    if spec.roles.is_empty() {
        return wrong("the experiment has no [[roles]]: nothing would be measured");
    }
    check_others(spec)?;
    let names: Vec<&str> = spec.parameters.keys().map(String::as_str).collect();
    if let Some((name, _)) = spec.parameters.iter().find(|(_, v)| v.0.is_empty()) {
        return wrong(format!("parameter '{name}' has no values"));
    }
    if let Some(name) = names.iter().find(|n| !n.chars().all(word)) {
        return wrong(format!(
            "parameter '{name}': letters, digits, '-' and '_' only"
        ));
    }
    let parameter = |place: &str, name: &str| match names.contains(&name) {
        true => Ok(()),
        false => wrong(format!("{place}: {}", unknown("parameter", name, &names))),
    };
    for (place, when) in whens(spec) {
        for (name, values) in when {
            parameter(place, name)?;
            let has: Vec<&str> = spec.parameters[name].0.iter().map(String::as_str).collect();
            if let Some(v) = values.0.iter().find(|v| !has.contains(&v.as_str())) {
                return wrong(format!(
                    "{place}: {}",
                    unknown(&format!("value of '{name}'"), v, &has)
                ));
            }
        }
    }
    check_zip(spec, &parameter)?;
    check_values(spec)?;
    check_hosts(spec)?;
    check_measures(spec)?;
    for f in &spec.figures {
        if !matches!(f.kind, FigureKind::Time | FigureKind::Cdf) {
            parameter("[[figures]] x", &f.x)?;
        }
        for s in &f.series {
            parameter("[[figures]] series", s)?;
        }
    }
    if let Some(ab) = &spec.ab {
        parameter("[ab] parameter", &ab.parameter)?;
        let n = spec.parameters[&ab.parameter].0.len();
        if n != 2 {
            return wrong(format!(
                "[ab]: parameter '{}' has {n} values, and needs two",
                ab.parameter
            ));
        }
    }
    for c in spec.commands() {
        if c.command.is_empty() {
            return wrong("a command is empty: give the program and its arguments");
        }
        if !super::parse::PARSERS.contains(&c.parser.as_str()) {
            return wrong(unknown("parser", &c.parser, super::parse::PARSERS));
        }
    }
    for (section, all) in [("roles", &spec.roles), ("sar", &spec.sar)] {
        for (i, c) in all.iter().enumerate() {
            let nth = format!("[[{section}]] number {}", i + 1);
            if c.name.is_empty() {
                return wrong(format!(
                    "{nth}, which runs '{}', has no name: give `name = \"...\"`, by which its results are called",
                    c.command.join(" ")
                ));
            }
            if !c.name.chars().all(word) {
                return wrong(format!(
                    "{nth} is called '{}': give letters, digits, '-' or '_'",
                    c.name
                ));
            }
        }
    }
    Ok(())
}

/// Every place that picks points by their parameters.
fn whens(spec: &Spec) -> impl Iterator<Item = (&'static str, &BTreeMap<String, OneOrMany>)> {
    let commands = [
        ("[[prepare]] when", &spec.prepare),
        ("[[roles]] when", &spec.roles),
        ("[[cleanup]] when", &spec.cleanup),
        ("[[sar]] when", &spec.sar),
    ];
    commands
        .into_iter()
        .flat_map(|(place, list)| list.iter().map(move |c| (place, &c.when)))
        .chain(spec.figures.iter().map(|f| ("[[figures]] when", &f.when)))
        .chain(
            spec.published
                .iter()
                .map(|p| ("[[published]] when", &p.when)),
        )
        .chain(spec.exclude.iter().map(|e| ("exclude", e)))
}

/// Each value of a list, or of lists that step together, is there once: twice would be one point, measured as often as any other.
fn check_values(spec: &Spec) -> Result<(), SpecError> {
    let zipped = |name: &String| spec.zip.iter().flatten().any(|n| n == name);
    for (name, values) in spec.parameters.iter().filter(|(n, _)| !zipped(n)) {
        if let Some(v) = repeated(&values.0) {
            return wrong(format!(
                "parameter '{name}' has the value '{v}' twice: `repeats` of [run] measures each value more often"
            ));
        }
    }
    for group in spec.zip.iter().filter(|g| !g.is_empty()) {
        let count = spec.parameters[&group[0]].0.len();
        let at = |i: usize| {
            let values = group.iter().map(|n| (n, &spec.parameters[n].0[i]));
            let values: Vec<String> = values.map(|(n, v)| format!("{n}={v}")).collect();
            values.join(", ")
        };
        let together: Vec<String> = (0..count).map(at).collect();
        if let Some(v) = repeated(&together) {
            return wrong(format!(
                "zip: the values {v} are there twice: `repeats` of [run] measures each more often"
            ));
        }
    }
    Ok(())
}

/// The first that was there before.
fn repeated(values: &[String]) -> Option<&String> {
    let mut seen = std::collections::BTreeSet::new();
    values.iter().find(|v| !seen.insert(*v))
}

fn check_zip(
    spec: &Spec,
    parameter: &dyn Fn(&str, &str) -> Result<(), SpecError>,
) -> Result<(), SpecError> {
    let mut seen = std::collections::BTreeSet::new();
    for group in &spec.zip {
        let mut length = None;
        for name in group {
            parameter("zip", name)?;
            if !seen.insert(name) {
                return wrong(format!("zip: parameter '{name}' is there twice"));
            }
            let n = spec.parameters[name].0.len();
            if *length.get_or_insert(n) != n {
                return wrong(format!(
                    "zip: '{name}' has {n} values and '{}' has {}: lists that step together are equally long",
                    group[0],
                    spec.parameters[&group[0]].0.len()
                ));
            }
        }
    }
    Ok(())
}
