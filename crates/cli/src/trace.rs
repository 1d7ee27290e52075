//! `coral trace` and `coral explain`: where the time of operations went, and what limits them.

use crate::args::{Explain, Trace};
use crate::lnetctl::agent::{Act, LnetAsk};
use crate::lnetctl::find;
use coral_lab::attribution::{Filter, perfetto, text};
use coral_lab::verdict::{STOPWATCHES as IN_RUN, Seen, Verdict, explain as judge, this_host};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the user says which processes.
const HOW: &str = "`coral trace DIR ...`, mount points or pids";
/// Longest that this machine is watched.
const WATCH_MAX_S: f64 = 3600.0;

/// Entry of `coral trace`.
pub(crate) fn run(t: Trace) -> Result<(), String> {
    let seen = ask_all(&t.places)?;
    if t.json {
        return print(&format!("{}\n", json!(seen)));
    }
    let joined = seen.joined();
    let filter = Filter {
        slow_ns: t.slow.unwrap_or(0),
        fid: t.fid.map(|f| (f.seq, f.oid, f.ver)),
        op: t.op,
    };
    if let Some(file) = &t.perfetto {
        let trace = perfetto(&joined, &filter).to_string();
        std::fs::write(file, trace)
            .map_err(|e| format!("cannot write '{}': {e}", file.display()))?;
    }
    print(&text(&joined, &filter, t.most))
}

/// Entry of `coral explain`.
pub(crate) fn explain(e: Explain) -> Result<(), String> {
    if !(0.0..=WATCH_MAX_S).contains(&e.watch) {
        return Err(format!(
            "--watch {}: give 0 to {WATCH_MAX_S} seconds",
            e.watch
        ));
    }
    let seen = match &e.places[..] {
        [one] if kept(one).is_some() => read(&kept(one).unwrap_or_default())?,
        places => {
            let machine = this_host(|| wait(e.watch));
            let mut seen = ask_all(places)?;
            seen.hosts.push(machine);
            seen
        }
    };
    let verdict = judge(&seen.facts(&seen.joined()));
    match e.json {
        true => print(&format!("{:#}\n", as_json(&verdict))),
        false => print(&verdict.to_string()),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command of one thread that watches a real machine"
)]
fn wait(s: f64) {
    std::thread::sleep(Duration::from_secs_f64(s));
}

fn print(text: &str) -> Result<(), String> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|e| format!("cannot print: {e}"))
}

/// The file of a run, or a file itself.
fn kept(place: &Path) -> Option<PathBuf> {
    let inside = place.join(IN_RUN);
    match place.is_file() {
        true => Some(place.to_owned()),
        false => inside.is_file().then_some(inside),
    }
}

fn read(file: &Path) -> Result<Seen, String> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|e| format!("cannot read '{}': {e}", file.display()))?;
    serde_json::from_str(&text)
        .map_err(|e| format!("'{}' is none of `coral trace --json`: {e}", file.display()))
}

/// What the processes tell together.
pub(crate) fn ask_all(places: &[PathBuf]) -> Result<Seen, String> {
    let mut seen = Seen::default();
    for socket in find::sockets(places, HOW)? {
        take(&mut seen, &socket)?;
    }
    Ok(seen)
}

fn take(seen: &mut Seen, socket: &Path) -> Result<(), String> {
    let ask = |act| json!({ "lnet": LnetAsk { node: None, act } });
    seen.take(&find::ask(socket, &ask(Act::Stopwatch))?)?;
    let counted = find::ask(socket, &ask(Act::Metrics { json: true }))?;
    seen.grants.extend(grants(&counted["metrics"]));
    Ok(())
}

/// What clients may have dirty, by target, in the answer of `coral metrics`.
fn grants(metrics: &Value) -> Vec<(String, u64)> {
    let all = metrics.as_array().into_iter().flatten();
    let series = all.filter(|m| m["name"] == "coral_osc_grant_bytes");
    let points = series.filter_map(|m| m["series"].as_array()).flatten();
    points
        .filter_map(|p| {
            Some((
                p["labels"]["target"].as_str()?.to_owned(),
                p["value"].as_u64()?,
            ))
        })
        .collect()
}

fn as_json(v: &Verdict) -> Value {
    let causes = v.causes.iter().map(|c| {
        json!({
            "cause": c.kind.name(), "subject": c.subject, "share": c.share, "figure": c.figure,
            "ceiling": c.ceiling, "change": c.change,
        })
    });
    let shares = v.shares.iter().map(|(s, share)| json!([s.name(), share]));
    json!({
        "little": {
            "holds": v.little.holds(), "operations_per_s": v.little.rate, "seconds": v.little.time_s,
            "expected": v.little.expected(), "counted": v.little.counted,
        },
        "unknown": v.unknown, "causes": causes.collect::<Vec<_>>(), "segments": shares.collect::<Vec<_>>(),
        "next": v.next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_read_from_metrics() {
        let metrics = json!([{ "name": "coral_osc_grant_bytes", "series": [
            { "labels": { "target": "coral-OST0000" }, "value": 7 } ] }, { "name": "other" }]);
        assert_eq!(grants(&metrics), [("coral-OST0000".to_owned(), 7)]);
        assert!(grants(&json!({ "error": "x" })).is_empty());
    }

    #[test]
    fn what_is_kept_is_found_in_a_run() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kept(dir.path()), None);
        let file = dir.path().join(IN_RUN);
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(kept(dir.path()), Some(file.clone()));
        assert_eq!(kept(&file), Some(file.clone()));
        assert!(read(&file).unwrap_err().contains("coral trace --json"));
    }
}
