//! `coral explain`: what limits operations. With `--try` it makes the trial that tells the first two causes apart.

mod alone;
mod apart;
mod beside;
mod guard;
mod limit;
mod part;
mod places;
mod probe;
mod stopped;
mod trial;

use crate::args::Explain;
use crate::control;
use crate::lfs;
use crate::lnetctl::find;
use crate::trace::{HOW, ask_all, left_out, print, tcp};
use beside::Before;
use coral_lab::verdict::{
    Host, Judged, Look, Looks, PagingWatch, Seen, Span, Verdict, explain as judge, this_host,
};
use places::{Kept, are_each_one, kept, once};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between looks at the TCP connections, at first.
const LOOKS: f64 = 8.0;

/// Operations of so many last seconds are judged, unless the machine is watched for longer.
const RECENT_S: f64 = 10.0;
/// Where the last operation ended so many seconds ago, or more, it is said how long ago that was.
const AGO_S: f64 = 2.0;

/// Entry of `coral explain`.
pub(crate) fn run(e: &Explain) -> Result<ExitCode, String> {
    if e.put_back {
        return guard::serve();
    }
    let e = &Explain {
        places: once(&e.places),
        ..*e
    };
    let file = match &e.places[..] {
        [one] => kept(one)?,
        several => match several.iter().find(|p| matches!(kept(p), Ok(Some(_)))) {
            Some(file) => {
                return Err(format!(
                    "'{}' is what was kept of a run, which is explained alone: name nothing else",
                    file.display()
                ));
            }
            None => None,
        },
    };
    match file {
        Some(kept) if e.trial => Err(format!(
            "'{}' is what was kept of a run: --try needs the processes themselves, and a load on them",
            kept.file.display()
        )),
        Some(kept) => of_file(e, &kept).map(|()| ExitCode::SUCCESS),
        None => {
            are_each_one(&e.places)?;
            match e.trial {
                true => apart::run(|| trial::run(e)),
                false => of_processes(e),
            }
        }
    }
}

/// Explains what processes tell now.
fn of_processes(e: &Explain) -> Result<ExitCode, String> {
    let before = Before::ask(&e.places);
    let watched = watched(&e.places, e.watch);
    let all = ask_all(&e.places)?;
    let at_once_per_s = before.at_once_per_s(&all.seen.dumps);
    let (mut seen, seconds, ago) = all.seen.recent(e.watch.max(RECENT_S));
    let goes_on = seen.is_under_way();
    let is_over = watched.is_over(e.watch, ago, goes_on);
    if !is_over {
        watched.into(&mut seen, seconds + ago);
    }
    let mut facts = seen.facts(&seen.joined());
    facts.asked_s = seconds;
    facts.at_once_per_s = at_once_per_s.filter(|_| !is_over);
    let of_s = facts.of_s(seconds);
    let mut verdict = judge(&facts);
    verdict.notes.extend(before.notes());
    stopped::advise(&mut verdict, &all.stopped);
    if is_over && ago < AGO_S {
        verdict.notes.push(format!(
            "the last operation ended {ago:.1} s ago, and this machine was watched for {} s until now: what its processors and connections did then is left out",
            e.watch
        ));
    }
    if e.json {
        let mut all = with_source(&verdict, Some((of_s, ago)), &all.silent);
        all["of"]["before"] = json!(seen.span.map(|s| s.before));
        all["of"]["after"] = json!(seen.span.map(|s| s.after));
        all["processors_watched"] = json!(!is_over);
        print(&format!("{all:#}\n"))?;
    } else {
        let of = of_text(of_s, ago, is_over);
        let left_out = seen.span.map_or_else(String::new, |s| s.to_string());
        print(&format!("{of}{left_out}{verdict}"))?;
    }
    Ok(left_out(&all.silent))
}

/// Of what time the operations are, as a line.
fn of_text(seconds: f64, ago: f64, is_over: bool) -> String {
    let digits = if seconds < 1.0 { 3 } else { 1 };
    match (ago >= AGO_S, is_over) {
        (true, true) => format!(
            "operations of {seconds:.digits$} s, the last of which ended {ago:.0} s ago: what processors and connections did since then is left out\n"
        ),
        (true, false) => {
            format!("operations of {seconds:.digits$} s, the last of which ended {ago:.0} s ago\n")
        }
        _ if seconds > 0.0 => format!("operations of the last {seconds:.digits$} s\n"),
        _ => String::new(),
    }
}

/// Explains what was kept.
fn of_file(e: &Explain, kept: &Kept) -> Result<(), String> {
    let (seen, part) = kept.read()?;
    let Judged { span, verdict } = seen.judged();
    let step = kept.step();
    if e.json {
        let mut all = of_kept(&verdict, span);
        if let Some(part) = part {
            all["of"] = part.json();
        }
        all["step"] = step.map_or(Value::Null, |s| s.json());
        return print(&format!("{all:#}\n"));
    }
    let step = step.map_or_else(String::new, |s| s.to_string());
    let of = match part {
        Some(part) => part.to_string(),
        None => span.map_or_else(String::new, |s| s.to_string()),
    };
    print(&format!("{step}{of}{verdict}"))
}

/// What was watched meanwhile: this machine, and the TCP connections of the processes.
struct Watched {
    machine: Host,
    tcp: Vec<Look>,
}

impl Watched {
    /// What a machine did when the load was over says nothing of it: for most of the watch nothing has ended, and nothing is under way, or
    /// has ended for long. A client that stands still because its pages are on disk only looks as if its load were over.
    fn is_over(&self, watch_s: f64, ago_s: f64, goes_on: bool) -> bool {
        let is_quiet = ago_s > watch_s / 2.0 && (ago_s >= AGO_S || (!goes_on && watch_s > 0.0));
        is_quiet && self.machine.paged_out().is_none()
    }

    /// With operations of the last `judged_s`: of connections what was since then.
    fn into(self, seen: &mut Seen, judged_s: f64) {
        seen.hosts.push(self.machine);
        seen.tcp = since(self.tcp, judged_s);
    }
}

/// Looks of the last seconds; two at least, as what one tells is only what was counted before.
fn since(mut looks: Vec<Look>, seconds: f64) -> Vec<Look> {
    let from_s = looks.last().map_or(0.0, |l| l.at_s) - seconds;
    let before = looks.iter().take_while(|l| l.at_s < from_s).count();
    looks.drain(..before.min(looks.len().saturating_sub(2)));
    looks
}

/// Watches for so many seconds. Whoever uses one of the mounts of this mount namespace is load, whichever processes are asked.
fn watched(places: &[PathBuf], seconds: f64) -> Watched {
    let mounts = lfs::mounts().unwrap_or_default().into_iter();
    let others = places.iter().filter(|p| !lfs::is_on_mount(p));
    let others = others.filter_map(|p| p.canonicalize().ok());
    let mounts: Vec<PathBuf> = mounts.map(|m| m.path).chain(others).collect();
    let mut tcp = vec![];
    let pages = PagingWatch::begin(clients(places), mounts.clone());
    let mut machine = this_host(&mounts, || tcp = looks(places, seconds));
    machine.paging = pages.end();
    Watched { machine, tcp }
}

/// The processes at these places, each as a user knows it.
fn clients(places: &[PathBuf]) -> Vec<(u32, String)> {
    let sockets = find::named(places, HOW).map_or_else(|_| vec![], |n| n.sockets);
    let pid = |socket: &PathBuf| {
        let asked = control::connect(socket, control::CONNECT_LIMIT).ok()?;
        control::peer(&asked)
    };
    let pids = sockets.iter().filter_map(pid);
    pids.map(|pid| (pid, find::described(pid))).collect()
}

/// Looks at the TCP connections, evenly spread over so many seconds. Processes that cannot be asked are told of later.
fn looks(places: &[PathBuf], seconds: f64) -> Vec<Look> {
    let begun = Instant::now();
    let mut looks = Looks::every(seconds / LOOKS);
    loop {
        let at_s = begun.elapsed().as_secs_f64();
        if let Ok(tcp) = tcp(places) {
            looks.take(at_s, tcp);
        }
        let left = seconds - begun.elapsed().as_secs_f64();
        if left <= 0.0 {
            return looks.all();
        }
        wait(left.min(looks.pause_s()));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command of one thread that watches a real machine"
)]
fn wait(s: f64) {
    std::thread::sleep(Duration::from_secs_f64(s));
}

/// The verdict, with the seconds it is of and how long ago the last operation ended, and why processes did not answer.
fn with_source(v: &Verdict, of: Option<(f64, f64)>, silent: &[String]) -> Value {
    let mut all = as_json(v);
    if let Some((seconds, ago)) = of {
        all["of"] = json!({ "seconds": seconds, "ended_s_ago": ago });
    }
    all["left_out"] = json!(silent);
    all
}

/// The same of what was kept.
fn of_kept(v: &Verdict, span: Option<Span>) -> Value {
    let mut all = with_source(v, None, &[]);
    all["of"] = json!(span);
    all
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
            "answered_at_once_per_s": v.little.at_once_per_s,
        },
        "unknown": v.unknown, "causes": causes.collect::<Vec<_>>(), "segments": shares.collect::<Vec<_>>(),
        "no_load": v.is_idle, "nearly_full": v.nearly_full, "at_once": v.at_once, "notes": v.notes,
        "next": v.next, "processors_left": v.room,
        "rpcs_with_data": v.transfers.map(|t| json!({
            "rpcs": t.rpcs, "mean_bytes": t.mean_bytes, "mean_s": t.mean_s, "under_way": t.under_way,
            "in_flight": t.in_flight, "places": t.places, "targets": t.targets,
        })),
        "queued": v.queued.as_ref().map(|q| json!({
            "target": q.target, "operations": q.operations, "rpcs_in_background": q.background,
            "oldest_s": q.oldest_s, "ended_per_s": q.ended_per_s,
        })),
        "program_locks": { "operations": v.program_locks.0, "seconds": v.program_locks.1 },
        "not_ended": v.going.as_ref().map(|g| json!({
            "operations": g.count, "oldest_s": g.oldest_s, "oldest": g.oldest,
            "of_programs": g.of_programs,
            "held_by": g.holder.as_ref().map(|h| json!({
                "client": h.client, "server": h.server, "asked_s": h.asked_s,
            })),
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing has ended for 3 s: the load is over, or its client cannot go on.
    #[test]
    fn a_client_whose_pages_are_on_disk_looks_as_if_its_load_were_over() {
        let watched = |awake, ago_s, goes_on| {
            let paging = vec![coral_lab::verdict::Paging {
                awake,
                faults_per_s: 50.0,
                swapped_bytes: 1 << 20,
                ..Default::default()
            }];
            let machine = Host {
                swap_in_per_s: 1000.0,
                paging,
                ..Host::default()
            };
            Watched {
                machine,
                tcp: vec![],
            }
            .is_over(3.0, ago_s, goes_on)
        };
        assert!(watched(0.0, 3.0, true) && !watched(0.9, 3.0, true) && !watched(0.0, 1.0, true));
    }

    #[test]
    fn a_load_that_ended_before_most_of_the_watch_is_over() {
        let is_over = |watch_s, ago_s, goes_on| {
            let watched = Watched {
                machine: Host::default(),
                tcp: vec![],
            };
            watched.is_over(watch_s, ago_s, goes_on)
        };
        assert!(is_over(1.0, 1.3, false) && is_over(1.0, 0.6, false));
        assert!(!is_over(1.0, 1.3, true), "its operations take as long");
        assert!(!is_over(1.0, 0.1, false) && !is_over(0.0, 0.1, false));
        assert!(is_over(1.0, 2.0, true));
    }

    #[test]
    fn the_time_of_a_young_load_is_told_as_it_is() {
        let told = |seconds| of_text(seconds, 0.1, false);
        assert_eq!(told(10.0), "operations of the last 10.0 s\n");
        assert_eq!(told(0.05), "operations of the last 0.050 s\n");
        assert_eq!(told(0.0), "");
    }

    #[test]
    fn connections_are_looked_at_in_the_time_of_the_operations() {
        let look = |at_s| Look { at_s, tcp: vec![] };
        let looks = || (0..=10).map(|i| look(f64::from(i))).collect::<Vec<_>>();
        let of = |seconds| {
            since(looks(), seconds)
                .iter()
                .map(|l| l.at_s)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(3.0), [7.0, 8.0, 9.0, 10.0]);
        assert_eq!(of(0.5), [9.0, 10.0], "one alone tells nothing");
        assert_eq!(of(99.0).len(), 11);
        assert!(since(vec![], 1.0).is_empty());
    }
}
