//! How latency is distributed, from the records that load generators left in the run directory, and from what fio printed.

use super::analysis::Analysis;
use super::chart::{Chart, Line, Mark, XAxis};
use super::figure::{WIDE, points, wrap};
use super::{escape, short};
use crate::experiment::parse::fio_latencies;
use crate::experiment::{Figure, Point, record_name};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Most lines of a figure; the rest is in the run directory.
const MAX_LINES: usize = 16;

/// Latency of one operation at a point.
struct Found {
    name: String,
    latency: Value,
}

/// The figure in HTML: the first repeat of each point.
pub(super) fn html(a: &Analysis, f: &Figure, id: &str) -> String {
    let all: Vec<Found> = points(a, f)
        .flat_map(|p| f.y.iter().filter_map(|y| found(a, f, p, y)))
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
    let note = match left {
        0 => String::new(),
        n => format!("<p>{n} more are in the table only.</p>"),
    };
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
    wrap(&f.title, &picture, &finding, &table(&all))
}

/// The record of the point's first repeat, and in it the last phase of that name.
fn found(a: &Analysis, f: &Figure, p: &Point, y: &str) -> Option<Found> {
    let (role, operation) = y.split_once('/')?;
    let latency = a.measured(&p.id).iter().find_map(|r| {
        let role = r.roles.iter().find(|r| r.name == role)?;
        let printed = a.dir.join(&role.stdout);
        let file = printed.parent()?.join(record_name(&role.name));
        recorded(&file, operation).or_else(|| {
            let text = std::fs::read_to_string(&printed).ok()?;
            fio_latencies(&text, operation).map(|all| distribution(&all))
        })
    })?;
    let of = |s: &String| Some(format!("{s}={}", p.param(s)?));
    let mut name: Vec<String> = f.series.iter().filter_map(of).collect();
    if f.y.len() > 1 || name.is_empty() {
        name.insert(0, y.to_owned());
    }
    Some(Found {
        name: name.join(" "),
        latency,
    })
}

/// Whether the latencies of ROLE/PHASE are there for a point.
pub(super) fn has(a: &Analysis, f: &Figure, p: &Point, y: &str) -> bool {
    found(a, f, p, y).is_some()
}

/// What a load generator recorded of its last phase of that name.
fn recorded(file: &Path, operation: &str) -> Option<Value> {
    let record: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let mut phases = record["phases"].as_array()?.iter().rev();
    let named = phases.find(|p| p["name"] == operation);
    named.map(|p| p["latency_ns"].clone())
}

/// The same of counts by nanoseconds.
fn distribution(all: &BTreeMap<u64, u64>) -> Value {
    let samples: u64 = all.values().sum();
    let mut sum = 0;
    let cdf: Vec<(u64, f64)> = (all.iter())
        .map(|(ns, n)| {
            sum += n;
            (*ns, sum as f64 / samples as f64)
        })
        .collect();
    let at = |share: f64| cdf.iter().find(|(_, s)| *s >= share).map(|(ns, _)| *ns);
    json!({
        "samples": samples, "cdf": cdf, "min": cdf[0].0, "max": at(1.0),
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
    let all = x.latency["cdf"].as_array();
    Line {
        name: x.name.clone(),
        marks: all.into_iter().flatten().filter_map(mark).collect(),
    }
}

fn micro(ns: &Value) -> String {
    ns.as_f64().map_or("-".into(), |ns| short(ns / 1000.0))
}

fn table(all: &[Found]) -> String {
    const COLUMNS: [&str; 7] = ["min", "p50", "p90", "p99", "p999", "p9999", "max"];
    let mut out = String::from(
        "<table><thead><tr><th>of</th><th>operations</th><th>shortest, us</th><th>50%</th><th>90%</th><th>99%</th><th>99.9%</th><th>99.99%</th><th>longest</th></tr></thead><tbody>\n",
    );
    for x in all {
        let cells = COLUMNS.map(|c| format!("<td>{}</td>", micro(&x.latency[c])));
        out += &format!(
            "<tr><td>{}</td><td>{}</td>{}</tr>\n",
            escape(&x.name),
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
        let d = distribution(&BTreeMap::from([(100, 90), (200, 9), (5000, 1)]));
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
}
