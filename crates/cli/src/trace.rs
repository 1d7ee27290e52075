//! `coral trace`: where the time of operations went; and how it is asked for.

use crate::args::Trace;
use crate::lnetctl::agent::{Act, LnetAsk};
use crate::lnetctl::find;
use coral_lab::attribution::{Filter, perfetto, text};
use coral_lab::verdict::{Seen, Tcp};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// How the user says which processes.
pub(crate) const HOW: &str = "`coral trace DIR ...`, mount points or pids";

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

pub(crate) fn print(text: &str) -> Result<(), String> {
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    written.map_err(|e| format!("cannot print: {e}"))
}

/// What the processes tell together.
pub(crate) fn ask_all(places: &[PathBuf]) -> Result<Seen, String> {
    let mut seen = Seen::default();
    for socket in find::sockets(places, HOW)? {
        take(&mut seen, &socket)?;
    }
    Ok(seen)
}

/// What TCP knows of the connections of all these processes.
pub(crate) fn tcp(places: &[PathBuf]) -> Result<Vec<Tcp>, String> {
    let mut all = vec![];
    for socket in find::sockets(places, HOW)? {
        let answer = find::ask(
            &socket,
            &json!({ "lnet": LnetAsk { node: None, act: Act::Tcp } }),
        )?;
        if let Some(why) = answer["error"].as_str() {
            return Err(why.to_owned());
        }
        let more: Vec<Tcp> = serde_json::from_value(answer["tcp"].clone())
            .map_err(|e| format!("odd answer of a Coral process: {e}"))?;
        all.extend(more);
    }
    Ok(all)
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
}
