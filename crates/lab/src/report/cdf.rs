//! How latency is distributed, from the records that load generators left in the run directory, and from what fio printed.

use super::analysis::Analysis;
use super::chart::{Chart, Line, Mark, XAxis};
use super::figure::{WIDE, called, points, series, wrap};
use super::{escape, short};
use crate::experiment::parse::fio_latencies;
use crate::experiment::{Figure, Point, record_name};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Most lines of a figure; the rest is in the run directory.
const MAX_LINES: usize = 16;
/// Most marks of a line, about.
const MAX_MARKS: usize = 200;

/// Latency of one operation at a point, of all its repeats together.
struct Found {
    name: String,
    repeats: usize,
    latency: Value,
}

/// The figure in HTML. The operations of all repeats of a point count alike.
pub(super) fn html(a: &Analysis, f: &Figure, id: &str) -> String {
    let drawn: Vec<&Point> = points(a, f).collect();
    let series = series(f, &drawn);
    let found = |p: &&Point, y: &String| {
        let all = latencies(a, p, y)?;
        Some(Found {
            name: called(f, &series, p, y),
            repeats: all.len(),
            latency: together(all)?,
        })
    };
    let all: Vec<Found> = (drawn.iter())
        .flat_map(|p| f.y.iter().filter_map(|y| found(p, y)))
        .collect();
    let lines: Vec<Line> = all.iter().take(MAX_LINES).map(line).collect();
    let most = |x: &&Found| x.latency["p99"].as_u64().unwrap_or(0);
    let finding = match all.iter().max_by_key(most) {
        None => format!("{}: no load generator left a record of it.", f.title),
        Some(x) => format!(
            "{}: the longest 99th percentile is {} us, of {}.",
            f.title,
            micro(&x.latency["p99"]),
            x.name
        ),
    };
    let left = all.len().saturating_sub(MAX_LINES);
    let mut note = "<p>The operations of all repeats and iterations count together.</p>".to_owned();
    if left > 0 {
        note += &format!("<p>{left} more are in the table only.</p>");
    }
    let chart = Chart {
        finding: finding.clone(),
        x_label: "latency, us".into(),
        y_label: "share of the operations".into(),
        x: XAxis::Tens,
        lines,
        shades: vec![],
        ceiling: None,
        size: WIDE,
    };
    let picture = match all.is_empty() {
        true => String::new(),
        false => chart.svg(id) + &note,
    };
    let table = match all.is_empty() {
        true => String::new(),
        false => table(&all),
    };
    wrap(&f.title, &picture, &finding, &table)
}

/// What the records of the point's repeats say of it.
fn latencies(a: &Analysis, p: &Point, y: &str) -> Option<Vec<Value>> {
    let (role, operation) = y.split_once('/')?;
    let of = a.measured(&p.id).into_iter().filter_map(|r| {
        let role = r.roles.iter().find(|r| r.name == role)?;
        let printed = a.dir.join(&role.stdout);
        let file = printed.parent()?.join(record_name(&role.name));
        recorded(&file, operation).or_else(|| {
            let text = std::fs::read_to_string(&printed).ok()?;
            fio_latencies(&text, operation).map(|all| {
                let all = all.into_iter().map(|(ns, n)| (ns, n as f64));
                distribution(&all.collect())
            })
        })
    });
    Some(of.collect()).filter(|all: &Vec<Value>| !all.is_empty())
}

/// Several repeats, or iterations, as one. Of a record only some shares are known: what took longer than one of them, and no longer
/// than the next, counts as the next.
fn together(mut all: Vec<Value>) -> Option<Value> {
    if all.len() == 1 {
        return all.pop();
    }
    let mut counts: BTreeMap<u64, f64> = BTreeMap::new();
    // Of a phase without operations there is nothing to add.
    all.retain(|one| one["samples"] != 0);
    for one in &all {
        let (samples, mut before) = (one["samples"].as_f64()?, 0.0);
        for step in one["cdf"].as_array()? {
            let (ns, share) = (step[0].as_u64()?, step[1].as_f64()?);
            *counts.entry(ns).or_default() += samples * (share - before);
            before = share;
        }
    }
    if counts.is_empty() {
        return None;
    }
    let of = |key: &'static str| all.iter().filter_map(move |one| one[key].as_u64());
    let mut joined = distribution(&counts);
    joined["min"] = json!(of("min").min());
    joined["max"] = json!(of("max").max());
    joined["samples"] = json!(of("samples").sum::<u64>());
    Some(joined)
}

/// Whether the latencies of ROLE/PHASE are there for a point.
pub(super) fn has(a: &Analysis, p: &Point, y: &str) -> bool {
    latencies(a, p, y).is_some()
}

/// What a load generator recorded of all its iterations of that name; of several tests of a script, of the last that has it.
fn recorded(file: &Path, operation: &str) -> Option<Value> {
    let record: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let phases = record["phases"].as_array()?.iter();
    let named = || phases.clone().filter(|p| p["name"] == operation);
    let test = &named().next_back()?["test"];
    let of_test = named().filter(|p| p["test"] == *test);
    let latencies = of_test.map(|p| p["latency_ns"].clone());
    together(latencies.filter(|l| !l.is_null()).collect())
}

/// The same of counts by nanoseconds.
fn distribution(all: &BTreeMap<u64, f64>) -> Value {
    // Shares that were multiplied and added are a little off.
    const OFF: f64 = 1e-9;
    let samples: f64 = all.values().sum();
    let mut sum = 0.0;
    let cdf: Vec<(u64, f64)> = (all.iter())
        .map(|(ns, n)| {
            sum += n;
            (*ns, (sum / samples).min(1.0))
        })
        .collect();
    let first = |share: f64| cdf.iter().find(|(_, s)| *s >= share - OFF);
    let at = |share: f64| first(share).map(|(ns, _)| *ns);
    json!({
        "samples": samples.round() as u64, "cdf": cdf,
        "min": cdf.first().map(|(ns, _)| *ns), "max": cdf.last().map(|(ns, _)| *ns),
        "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "p9999": at(0.9999),
    })
}

fn line(x: &Found) -> Line {
    let mark = |v: &Value| {
        Some(Mark {
            x: (v[0].as_f64()? / 1000.0).max(0.001),
            y: v[1].as_f64()?,
            range: None,
            raw: vec![],
        })
    };
    let all: &[Value] = x.latency["cdf"].as_array().map_or(&[], |all| all);
    let nth = all.len().div_ceil(MAX_MARKS).max(1);
    // The last is always among them.
    let drawn = all.iter().rev().step_by(nth).rev();
    Line {
        name: x.name.clone(),
        marks: drawn.filter_map(mark).collect(),
    }
}

fn micro(ns: &Value) -> String {
    ns.as_f64().map_or("-".into(), |ns| short(ns / 1000.0))
}

fn table(all: &[Found]) -> String {
    const COLUMNS: [&str; 7] = ["min", "p50", "p90", "p99", "p999", "p9999", "max"];
    let mut out = String::from(
        "<table><thead><tr><th>of</th><th>repeats</th><th>operations</th><th>shortest, us</th><th>50%</th><th>90%</th><th>99%</th><th>99.9%</th><th>99.99%</th><th>longest</th></tr></thead><tbody>\n",
    );
    for x in all {
        let cells = COLUMNS.map(|c| format!("<td>{}</td>", micro(&x.latency[c])));
        out += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td>{}</tr>\n",
            escape(&x.name),
            x.repeats,
            x.latency["samples"],
            cells.concat()
        );
    }
    out + "</tbody></table>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_a_distribution() {
        let d = distribution(&BTreeMap::from([(100, 90.0), (200, 9.0), (5000, 1.0)]));
        assert_eq!(
            (&d["samples"], &d["min"], &d["max"]),
            (&json!(100), &json!(100), &json!(5000))
        );
        assert_eq!(
            (&d["p50"], &d["p90"], &d["p99"], &d["p999"]),
            (&json!(100), &json!(100), &json!(200), &json!(5000))
        );
        assert_eq!(d["cdf"], json!([[100, 0.9], [200, 0.99], [5000, 1.0]]));
    }

    /// The second repeat had three times as many operations, and half of them were slow.
    #[test]
    fn repeats_count_by_their_operations() {
        let quick = json!({ "samples": 100, "min": 10, "max": 100, "cdf": [[100, 1.0]] });
        let slow =
            json!({ "samples": 300, "min": 20, "max": 5000, "cdf": [[100, 0.5], [5000, 1.0]] });
        let d = together(vec![quick.clone(), slow]).unwrap();
        assert_eq!(d["cdf"], json!([[100, 0.625], [5000, 1.0]]));
        assert_eq!(
            (&d["samples"], &d["min"], &d["max"]),
            (&json!(400), &json!(10), &json!(5000))
        );
        assert_eq!((&d["p50"], &d["p90"]), (&json!(100), &json!(5000)));
        assert_eq!(together(vec![quick.clone()]), Some(quick));
        assert_eq!(together(vec![]), None);
    }

    #[test]
    fn all_iterations_of_the_last_test_count() {
        let phase = |name: &str, test: u32, ns: u64| json!({ "name": name, "test": test, "latency_ns": { "samples": 10, "min": ns, "max": ns, "cdf": [[ns, 1.0]] } });
        let phases = [
            phase("write", 0, 7),
            phase("write", 1, 100),
            phase("read", 1, 5),
            phase("write", 1, 200),
            json!({ "name": "write", "test": 1 }),
        ];
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), json!({ "phases": phases }).to_string()).unwrap();
        let write = recorded(file.path(), "write").unwrap();
        assert_eq!(write["samples"], 20);
        assert_eq!(write["cdf"], json!([[100, 0.5], [200, 1.0]]));
        assert_eq!(recorded(file.path(), "read").unwrap()["samples"], 10);
        assert_eq!(recorded(file.path(), "remove"), None);
    }
}
