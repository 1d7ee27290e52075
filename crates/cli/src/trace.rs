//! `coral trace`: where the time of operations went; and how it is asked for.

use crate::args::Trace;
use crate::control::{self, BESIDE_LIMIT};
use crate::lnetctl::agent::{Act, LnetAsk};
use crate::lnetctl::find;
use coral_fuse::abi::op as opcode;
use coral_lab::attribution::{Filter, perfetto, text};
use coral_lab::experiment::nearest;
use coral_lab::verdict::{Answers, Granted, Seen, Tcp};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How the user says which processes.
pub(crate) const HOW: &str = "`coral trace DIR ...`, mount points or pids";

/// Exit code of what is done without a process that did not answer.
const LEFT_OUT: u8 = 3;

/// Entry of `coral trace`.
pub(crate) fn run(t: Trace) -> Result<ExitCode, String> {
    let Told { seen, silent, .. } = ask_all(&t.places)?;
    if t.json {
        print(&format!("{}\n", json!(seen)))?;
        return Ok(left_out(&silent));
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
    print(&text(&joined, &filter, t.most))?;
    Ok(left_out(&silent))
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

/// What processes tell together.
#[derive(Default)]
pub(crate) struct Told {
    pub seen: Seen,
    /// Why those told nothing that did not answer.
    pub silent: Vec<String>,
    /// Of these the processes that a signal has stopped.
    pub stopped: Vec<u32>,
}

impl Told {
    /// What all of them tell; an error where one did not answer.
    pub(crate) fn whole(self) -> Result<Seen, String> {
        match self.silent.is_empty() {
            true => Ok(self.seen),
            false => Err(self.silent.join("; ")),
        }
    }
}

/// The exit code of what was done without those that did not answer, which are named.
pub(crate) fn left_out(silent: &[String]) -> ExitCode {
    silent.iter().for_each(|why| eprintln!("left out: {why}"));
    match silent.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(LEFT_OUT),
    }
}

/// What a process tells: its stopwatch, and what it has counted.
fn told_by(socket: &Path) -> Result<(Value, Value), String> {
    let ask = |act| find::ask(socket, &json!({ "lnet": LnetAsk { node: None, act } }));
    Ok((ask(Act::Stopwatch)?, ask(Act::Metrics { json: true })?))
}

/// The process at a socket, where a signal has stopped it.
fn stopped(socket: &Path) -> Option<u32> {
    let asked = control::connect(socket, control::CONNECT_LIMIT).ok()?;
    control::peer(&asked).filter(|pid| find::is_stopped(*pid))
}

/// Asks all processes, at once: what went on after the first had told is known by a part of them only. Those that do not answer are left
/// out, unless nobody does.
pub(crate) fn ask_all(places: &[PathBuf]) -> Result<Told, String> {
    let named = find::named(places, HOW)?;
    let mut told = Told {
        silent: named.silent,
        ..Told::default()
    };
    let mut answers = 0;
    let all: Vec<_> = std::thread::scope(|s| {
        let asked: Vec<_> = (named.sockets.iter())
            .map(|socket| (socket, s.spawn(|| told_by(socket))))
            .collect();
        let failed = |socket: &PathBuf| Err(format!("'{}' could not be asked", socket.display()));
        let ended = asked.into_iter();
        ended
            .map(|(socket, t)| t.join().unwrap_or_else(|_| failed(socket)))
            .collect()
    });
    for (socket, answered) in named.sockets.iter().zip(all) {
        match answered {
            Ok((stopwatch, counted)) => {
                answers += 1;
                told.seen.take(&stopwatch)?;
                told.seen.granted.extend(Granted::of(&counted["metrics"]));
            }
            Err(why) => {
                told.silent.push(why);
                told.stopped.extend(stopped(socket));
            }
        }
    }
    match answers {
        0 => Err(told.silent.join("; ")),
        _ => Ok(told),
    }
}

/// With what the servers of these mounts tell, and the routers between, as far as they run here and are this user's: whose NIDs the mounts
/// have talked to. One that does not answer tells nothing.
pub(crate) fn with_servers(places: &[PathBuf], mut seen: Seen) -> Result<Seen, String> {
    let rpcs = seen.dumps.iter().flat_map(|d| &d.rpcs);
    let peers: BTreeSet<u64> = rpcs.map(|r| r.peer).collect();
    let own: BTreeSet<u64> = seen.dumps.iter().flat_map(|d| d.nids.clone()).collect();
    let inode = |socket: &PathBuf| std::fs::metadata(socket).map(|m| (m.dev(), m.ino())).ok();
    let asked = find::named(places, HOW)?.sockets;
    let asked: BTreeSet<_> = asked.iter().filter_map(inode).collect();
    let others = find::named(&[], HOW)?.sockets.into_iter();
    let others = others.filter(|s| inode(s).is_none_or(|i| !asked.contains(&i)));
    let what = json!({ "lnet": LnetAsk { node: None, act: Act::Stopwatch } });
    for socket in others {
        let Ok(answer) = find::ask_within(&socket, &what, BESIDE_LIMIT) else {
            continue;
        };
        let mut told = Seen::default();
        let serves = told.take(&answer).is_ok()
            && told.dumps.iter().any(|d| {
                d.nids.iter().any(|n| peers.contains(n))
                    || d.passages.iter().any(|p| own.contains(&p.from))
            });
        if serves {
            seen.take(&answer)?;
        }
    }
    Ok(seen)
}

/// What TCP knows of the connections of all these processes.
pub(crate) fn tcp(places: &[PathBuf]) -> Result<Answers, String> {
    let one = |socket: &Path| -> Result<Option<Vec<Tcp>>, String> {
        let what = json!({ "lnet": LnetAsk { node: None, act: Act::Tcp } });
        let Ok(answer) = find::ask_within(socket, &what, BESIDE_LIMIT) else {
            return Ok(None);
        };
        if let Some(why) = answer["error"].as_str() {
            return Err(why.to_owned());
        }
        let tcp = serde_json::from_value(answer["tcp"].clone());
        tcp.map(Some)
            .map_err(|e| format!("odd answer of a Coral process: {e}"))
    };
    let sockets = find::named(places, HOW)?.sockets;
    (sockets.into_iter())
        .map(|s| one(&s).map(|told| (s, told)))
        .collect()
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
