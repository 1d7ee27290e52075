//! `coral history`: what a node did in each second of the last hour, as a table with bars, JSON or an SVG plot.

use crate::args::History;
use crate::lnetctl::agent::{Act, LnetAsk};
use crate::lnetctl::find;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Most rows of the table; longer times are summed up over several seconds.
const ROWS: usize = 60;
/// Width of the longest bar.
const BAR: f64 = 30.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Entry of `coral history`.
pub(crate) fn run(h: History) -> Result<(), String> {
    let socket = find::socket(
        h.dir.as_deref(),
        None,
        "`coral history DIR`, a mount point or a pid",
    )?;
    let ask = LnetAsk {
        node: h.node.clone(),
        act: Act::History { seconds: h.since },
    };
    let answer = find::ask(&socket, &json!({ "lnet": ask }))?;
    if let Some(why) = answer["error"].as_str() {
        return Err(why.to_owned());
    }
    if let Some(file) = &h.svg {
        std::fs::write(file, svg(&answer))
            .map_err(|e| format!("cannot write '{}': {e}", file.display()))?;
    }
    if h.json {
        println!("{answer:#}");
    } else {
        print!("{}", table(&answer));
    }
    Ok(())
}

fn seconds(answer: &Value) -> &[Value] {
    answer["seconds"].as_array().map_or(&[], Vec::as_slice)
}

/// Mean of a count per second over some samples.
fn rate(samples: &[Value], key: &str) -> f64 {
    let sum: u64 = samples.iter().filter_map(|s| s[key].as_u64()).sum();
    sum as f64 / samples.len().max(1) as f64
}

/// HH:MM:SS in UTC.
fn clock(at: &Value) -> String {
    let s = at.as_i64().unwrap_or(0).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

fn busiest(samples: &[Value]) -> f64 {
    ["routed_bytes", "sent_bytes", "received_bytes"]
        .iter()
        .map(|k| rate(samples, k))
        .fold(0.0, f64::max)
}

fn table(answer: &Value) -> String {
    let all = seconds(answer);
    let mut out = format!(
        "node {}, {} seconds, times in UTC; per second: messages and MiB of payload\n",
        answer["nid"].as_str().unwrap_or("?"),
        all.len()
    );
    let _ = writeln!(
        out,
        "{:<8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "until", "sent", "MiB", "received", "MiB", "routed", "MiB", "dropped", "faults"
    );
    let rows: Vec<&[Value]> = all.chunks(all.len().div_ceil(ROWS).max(1)).collect();
    let most = rows.iter().map(|r| busiest(r)).fold(0.0, f64::max);
    for r in rows {
        let m = |k: &str| rate(r, k) / MIB;
        let bar = if most > 0.0 {
            (busiest(r) / most * BAR).round() as usize
        } else {
            0
        };
        let dropped = rate(r, "dropped") + rate(r, "route_dropped");
        let _ = writeln!(
            out,
            "{:<8} {:>9.0} {:>9.2} {:>9.0} {:>9.2} {:>9.0} {:>9.2} {:>7.1} {:>7.1} {}",
            clock(&r[r.len() - 1]["at"]),
            rate(r, "sent"),
            m("sent_bytes"),
            rate(r, "received"),
            m("received_bytes"),
            rate(r, "routed"),
            m("routed_bytes"),
            dropped,
            rate(r, "faults"),
            "#".repeat(bar)
        );
    }
    out
}

/// A line per direction; the time goes from left to right.
fn svg(answer: &Value) -> String {
    const W: f64 = 800.0;
    const H: f64 = 240.0;
    const LEFT: f64 = 70.0;
    const TOP: f64 = 30.0;
    let all = seconds(answer);
    let most = all
        .iter()
        .map(|s| busiest(std::slice::from_ref(s)))
        .fold(0.0, f64::max)
        .max(MIB / 100.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"18\">{}: MiB/s of payload</text>\n",
        W + LEFT + 20.0,
        H + TOP + 50.0,
        answer["nid"].as_str().unwrap_or("?")
    );
    for i in 0..=4 {
        let y = TOP + H * i as f64 / 4.0;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.2}</text>",
            LEFT + W,
            LEFT - 6.0,
            y + 4.0,
            most / MIB * (4 - i) as f64 / 4.0
        );
    }
    for (i, (key, colour)) in [
        ("sent_bytes", "#1f77b4"),
        ("received_bytes", "#2ca02c"),
        ("routed_bytes", "#d62728"),
    ]
    .into_iter()
    .enumerate()
    {
        let step = W / (all.len().max(2) - 1) as f64;
        let points: Vec<String> = all
            .iter()
            .enumerate()
            .map(|(x, s)| {
                format!(
                    "{:.1},{:.1}",
                    LEFT + x as f64 * step,
                    TOP + H - H * s[key].as_u64().unwrap_or(0) as f64 / most
                )
            })
            .collect();
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{}\"/><text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            LEFT + i as f64 * 120.0,
            TOP + H + 38.0,
            key.trim_end_matches("_bytes")
        );
    }
    if let (Some(first), Some(last)) = (all.first(), all.last()) {
        let _ = writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"{0}\">{1}</text><text x=\"{2}\" y=\"{0}\" text-anchor=\"end\">{3} UTC</text>",
            TOP + H + 18.0,
            clock(&first["at"]),
            LEFT + W,
            clock(&last["at"])
        );
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_means_and_bars_are_relative() {
        let second = |at: i64, mib: u64| json!({"at": at, "sent": 10, "sent_bytes": mib << 20, "received": 0, "received_bytes": 0, "routed": 0, "routed_bytes": 0, "dropped": 1, "route_dropped": 1, "faults": 0});
        let answer = json!({"nid": "1@lo", "seconds": [second(3661, 10), second(3662, 20)]});
        let text = table(&answer);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[2].starts_with("01:01:01")
                && lines[2].contains(" 10.00 ")
                && lines[2].ends_with(&format!(" {}", "#".repeat(15))),
            "{text}"
        );
        assert!(
            lines[3].ends_with(&format!(" {}", "#".repeat(30))),
            "{text}"
        );
        let long: Vec<Value> = (0..600).map(|i| second(i, 1)).collect();
        assert_eq!(
            table(&json!({"nid": "x", "seconds": long})).lines().count(),
            62
        );
        assert!(table(&json!({"nid": "x", "seconds": []})).lines().count() == 2);
        let plot = svg(&answer);
        assert!(plot.contains("polyline") && plot.ends_with("</svg>\n"));
    }
}
