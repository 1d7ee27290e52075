//! `coral trace`: where the time of operations went; and how it is asked for.

use crate::args::Trace;
use crate::lnetctl::agent::{Act, LnetAsk};
use crate::lnetctl::find;
use coral_fuse::abi::op as opcode;
use coral_lab::attribution::{Filter, perfetto, text};
use coral_lab::experiment::nearest;
use coral_lab::verdict::{Granted, Seen, Tcp};
use serde_json::json;
use std::collections::BTreeSet;
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
    if let Some(op) = &t.op {
        is_known(op, joined.ops.iter().map(|o| &*o.op.op))?;
    }
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

/// Whether there is an operation of this name: of a mount, or one that was `seen`.
fn is_known<'a>(op: &str, seen: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let of_mounts = (0..opcode::COUNT as u32).map(|i| -> &'a str { opcode::name(i) });
    let mut all: BTreeSet<&str> = seen.collect();
    all.extend(of_mounts.filter(|n| !n.starts_with('?')));
    if all.iter().any(|n| n.eq_ignore_ascii_case(op)) {
        return Ok(());
    }
    let hint = match nearest(&op.to_ascii_uppercase(), all.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!("known: {}", Vec::from_iter(all).join(", ")),
    };
    Err(format!("--op: there is no operation '{op}'; {hint}"))
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
    seen.granted.extend(Granted::of(&counted["metrics"]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_no_operation_is_refused() {
        let told = |op| is_known(op, ["stat"].into_iter());
        for op in ["READ", "getattr", "STAT"] {
            assert_eq!(told(op), Ok(()));
        }
        let why = told("RAED").unwrap_err();
        assert_eq!(
            why,
            "--op: there is no operation 'RAED'; did you mean 'READ'?"
        );
        let why = told("BOGUS").unwrap_err();
        assert!(
            why.contains("known: ACCESS, ") && why.contains(", stat"),
            "{why}"
        );
    }
}
