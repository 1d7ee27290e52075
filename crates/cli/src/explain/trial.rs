//! Makes the trial that tells the first cause from the second: says what it changes, changes it, watches, puts it back, and says
//! which of the two it was.

use super::alone::Alone;
use super::guard::{Guard, Undo, buffers};
use super::limit::{self, Limit};
use super::probe::{Probe, path_of};
use super::{AGO_S, RECENT_S, judge, wait, watched, with_source};
use crate::args::Explain;
use crate::control::Ask;
use crate::lnetctl::find;
use crate::trace::{HOW, ask_all, print};
use coral_lab::verdict::{
    Cause, CauseKind, Facts, Fid, LEAST_COUNT, Load, LockWindow, OpKind, Outcome, Rates, Seen,
    Trial, Verdict, Was, Window, Windows, accused, again, alone, elsewhen, given_back, locks, swap,
    this_host, threads, trial, two_at_once,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Threads that a machine may have for them to be watched.
const THREADS_MAX: usize = 100_000;

/// How often one program and two take turns.
const ROUNDS: u32 = 2;

/// A trial that is being made.
struct Maker<'a> {
    e: &'a Explain,
    sockets: Vec<PathBuf>,
    guard: Guard,
    locked: Alone,
    /// The load that is to be explained, and what a trial has worked on itself.
    load: Load,
    own: BTreeSet<Fid>,
    /// NID of the client that the first cause's operations are of, where that can be told.
    accused: Option<String>,
    /// Waits for locks of the load.
    lock_waits: LockWindow,
    /// The seconds that the verdict is of, and how long ago the last operation ended.
    of: (f64, f64),
    /// While the trial makes operations of its own.
    limit: Option<Limit>,
}

/// Entry of `coral explain --try`.
pub(super) fn run(e: &Explain) -> Result<(), String> {
    let find::Named { sockets, .. } = find::named(&e.places, HOW)?;
    let locked = Alone::on(&sockets)?;
    let Looked {
        seen,
        whole,
        window: before,
        of,
    } = looked(e)?;
    let joined = seen.joined();
    let facts = seen.facts(&joined);
    let of = (facts.of_s(of.0), of.1);
    let mut verdict = judge(&facts);
    verdict.notes.extend(of_longer(&whole, &seen, &verdict));
    // Its client cannot go on: it only looks as if the load were over, and a trial needs operations that end.
    if seen.hosts.iter().any(|h| h.paged_out().is_some()) && of.1 >= AGO_S {
        if !e.json {
            print(&verdict.to_string())?;
        }
        return tell(e, &verdict, of, None);
    }
    if (verdict.causes.first()).is_some_and(|c| c.kind == CauseKind::StandsStill) {
        let why = "nothing can be tried while it stands still".to_owned();
        return untried(e, &verdict, of, &Outcome::untried(why), "");
    }
    if facts.count() < LEAST_COUNT {
        let why = format!(
            "{} operations ended in the last {} s",
            facts.count(),
            e.window
        );
        let why = Outcome::untried(why);
        return untried(e, &verdict, of, &why, PUT_LOAD);
    }
    let load = Load::of(&whole, e.window);
    if let Some(why) = load.is_over(&whole, e.window) {
        let then = format!(", so that nothing can be tried: {AGAIN}");
        return untried(e, &verdict, of, &why, &then);
    }
    if !e.json {
        print(&verdict.to_string())?;
    }
    let Some(trial) = trial(&verdict).filter(|_| verdict.unknown.is_none()) else {
        return tell(e, &verdict, of, None);
    };
    let mut maker = Maker {
        e,
        sockets,
        guard: Guard::start(&locked)?,
        locked,
        load,
        accused: accused(&seen, &joined, &facts, &verdict),
        lock_waits: LockWindow::of(&seen, &joined),
        of,
        limit: None,
        own: BTreeSet::new(),
    };
    let made = maker.make(&trial, &verdict, &before);
    maker.limit = None;
    let put_back = maker.guard.put_back();
    if !e.json {
        put_back.iter().flatten().for_each(|l| eprintln!("{l}"));
    }
    let outcome = made?;
    tell(e, &verdict, of, Some(&outcome))?;
    put_back?;
    match (outcome.was, outcome.why) {
        (Was::Ended, Some(why)) => Err(format!("{why}, so that nothing can be said: {AGAIN}")),
        _ => Ok(()),
    }
}

/// What `coral explain` alone would name first, where that is another cause: it looks back further.
fn of_longer(whole: &Seen, judged: &Seen, v: &Verdict) -> Option<String> {
    let (mut longer, seconds, _) = whole.recent(RECENT_S);
    (longer.hosts, longer.tcp) = (judged.hosts.clone(), judged.tcp.clone());
    let mut facts = longer.facts(&longer.joined());
    facts.asked_s = seconds;
    elsewhen(&judge(&facts), facts.of_s(seconds), v)
}

/// Tells the verdict, and fails with why nothing can be tried, and what is to do `then`.
fn untried(
    e: &Explain,
    v: &Verdict,
    of: (f64, f64),
    outcome: &Outcome,
    then: &str,
) -> Result<(), String> {
    match e.json {
        true => tell(e, v, of, Some(outcome))?,
        false => print(&v.to_string())?,
    }
    let why = outcome.why.as_deref().unwrap_or_default();
    Err(format!("{why}{then}"))
}

/// What is to do where there is none.
const PUT_LOAD: &str = ": put the load on it that is to be explained, and try again";
/// What is to do where the load did not last.
const AGAIN: &str = "put a load on it that goes on for longer than the trial, and try again";

/// Waits for a window, and what was seen in it.
fn looked(e: &Explain) -> Result<Looked, String> {
    let watched = watched(&e.places, e.window);
    let all = ask_all(&e.places)?.whole()?;
    let (mut seen, seconds, ago) = all.until_now(e.window);
    watched.into(&mut seen, seconds);
    Ok(Looked {
        seen,
        window: Window::of(&all, e.window),
        whole: all,
        of: (seconds, ago),
    })
}

/// What was seen in a window.
struct Looked {
    seen: Seen,
    /// All that the processes told.
    whole: Seen,
    window: Window,
    /// The seconds that it is of, and how long ago the last operation ended.
    of: (f64, f64),
}

fn tell(e: &Explain, v: &Verdict, of: (f64, f64), outcome: Option<&Outcome>) -> Result<(), String> {
    match (e.json, outcome) {
        (true, outcome) => print(&format!("{:#}\n", told(v, of, outcome))),
        (false, Some(o)) => print(&format!("trial:\n{}", o.text(v))),
        (false, None) => print("trial: there is nothing to try\n"),
    }
}

/// All processes have answered: else no trial is made.
fn told(v: &Verdict, of: (f64, f64), outcome: Option<&Outcome>) -> Value {
    let mut all = with_source(v, Some(of), &[]);
    all["trial"] = outcome.map_or(Value::Null, |o| o.json(v));
    all
}

impl Maker<'_> {
    fn say(&self, text: &str) {
        eprintln!("{text}");
    }

    /// Makes it. What comes out counts only where the load went on, from its beginning to its end.
    fn make(&mut self, trial: &Trial, v: &Verdict, before: &Window) -> Result<Outcome, String> {
        let begun = Instant::now();
        let made = self.outcome(trial, v, before)?;
        // Where there are windows it was looked at in the one with the change.
        if matches!(trial, Trial::Parameter(..) | Trial::RouterBuffers(..)) {
            return Ok(made);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let ended = self.ended(&ask_all(&self.e.places)?.whole()?, seconds);
        Ok(ended.unwrap_or(made))
    }

    /// What is said where the load did not go on in the last `seconds`.
    fn ended(&self, seen: &Seen, seconds: f64) -> Option<Outcome> {
        let why = self.load.ended(seen, &self.own, seconds);
        why.map(Outcome::ended)
    }

    fn outcome(&mut self, trial: &Trial, v: &Verdict, before: &Window) -> Result<Outcome, String> {
        let first = || v.causes.first().ok_or("there is no cause to try");
        match trial {
            Trial::Parameter(pattern, value) => {
                self.parameters(pattern, value)?;
                self.windows(before, first()?, v.room)
            }
            Trial::RouterBuffers(router, large) => {
                self.router(router, *large as usize)?;
                self.windows(before, first()?, None)
            }
            Trial::ClearCache => self.clear_cache(first()?),
            Trial::Probe => self.probe(v),
            Trial::Concurrency => self.two_at_once(v),
            Trial::CountLocks => self.count_locks(v),
            Trial::WatchThreads => {
                self.say(&format!(
                    "trying: threads are watched for {} s",
                    self.e.window
                ));
                let mut all = Vec::new();
                let machine = this_host(&[], || all = busiest(self.e.window));
                Ok(threads(&all, machine.cpu_wait))
            }
            Trial::LookAgain => {
                self.say(&format!(
                    "trying: nothing is changed; it is looked at again for {} s",
                    self.e.window
                ));
                let seen = looked(self.e)?.seen;
                Ok(again(&judge(&seen.facts(&seen.joined())), first()?))
            }
        }
    }

    /// One program, and two at once: where the load makes or removes names in one directory these do the same, also in that one.
    fn two_at_once(&mut self, v: &Verdict) -> Result<Outcome, String> {
        let mount = self.mount()?;
        self.limited(0, v);
        let there = v.directory.map(|fid| path_of(&mount, fid));
        let there = match there.transpose() {
            Ok(there) => there,
            Err(why) => {
                self.say(&format!("left out: the directory of the load: {why}"));
                None
            }
        };
        let time = |parts: f64| Duration::from_secs_f64(self.e.window / parts / f64::from(ROUNDS));
        let Some(dir) = there else {
            let half = time(2.0);
            let mut probe =
                self.directory("files are written by one program, then by two at once")?;
            let made = rounds(|| {
                Ok(Rates {
                    one: probe.rate(1, half)?,
                    two: probe.rate(2, half)?,
                    there: None,
                })
            });
            self.own = probe.fids();
            return made.map(two_at_once);
        };
        let third = time(3.0);
        let mut probe = self.directory(&format!(
            "files are made and removed by one program, by two at once in '{}', where the load works, and by two in directories of their own, these",
            dir.display()
        ))?;
        let made = rounds(|| {
            Ok(Rates {
                one: probe.names(1, third)?,
                there: Some(probe.names_there(&dir, third, &mut self.guard)?),
                two: probe.names(2, third)?,
            })
        });
        self.own = probe.fids();
        made.map(two_at_once)
    }

    /// The window with the change; then it is put back, and the window after that.
    fn windows(
        &mut self,
        before: &Window,
        first: &Cause,
        room: Option<f64>,
    ) -> Result<Outcome, String> {
        let Looked {
            window: with,
            whole,
            ..
        } = looked(self.e)?;
        if let Some(ended) = self.ended(&whole, self.e.window) {
            return Ok(ended);
        }
        let guard = std::mem::replace(&mut self.guard, Guard::start(&self.locked)?);
        let said = guard.put_back()?;
        said.iter().for_each(|l| self.say(l));
        let after = looked(self.e)?.window;
        let windows = Windows {
            before: before.clone(),
            with,
            after,
        };
        Ok(windows.outcome(first, room))
    }

    fn ask(&self, socket: &Path, what: &Value) -> Result<Value, String> {
        let answer = find::ask(socket, what)?;
        match answer["error"].as_str() {
            Some(e) => Err(e.to_owned()),
            None => Ok(answer),
        }
    }

    /// Parameters of mounts that match, each with the socket of its process.
    fn matching(&self, pattern: &str) -> Vec<(PathBuf, String, String)> {
        let of = |s: &PathBuf| {
            let answer = self
                .ask(s, &json!(Ask::GetParam(pattern.to_owned())))
                .ok()?;
            let all: Vec<(String, String)> =
                serde_json::from_value(answer["params"].clone()).ok()?;
            let with = |(name, value): (String, String)| (s.clone(), name, value);
            Some(all.into_iter().map(with).collect::<Vec<_>>())
        };
        self.sockets.iter().filter_map(of).flatten().collect()
    }

    fn parameters(&mut self, pattern: &str, value: &str) -> Result<(), String> {
        let mut found = self.matching(pattern);
        if found.is_empty() {
            return Err(format!(
                "none of the processes has the parameter {pattern}: name the mount too"
            ));
        }
        // what has more already keeps it
        let number = |text: &str| text.trim().parse::<u64>().ok();
        found.retain(|(_, _, old)| {
            number(old).is_none_or(|old| number(value).is_none_or(|v| old < v))
        });
        if found.is_empty() {
            return Err(format!("{pattern} is {value} or more already"));
        }
        for (socket, name, old) in found {
            self.say(&format!(
                "trying: {name} = {value} for {} s (it is {old}, and that is put back)",
                self.e.window
            ));
            self.guard.note(&Undo::Parameter {
                socket: socket.clone(),
                name: name.clone(),
                value: old,
            })?;
            self.ask(&socket, &json!(Ask::SetParam(name, value.to_owned())))?;
        }
        Ok(())
    }

    fn router(&mut self, name: &str, large: usize) -> Result<(), String> {
        let seen = self.sockets.iter().find_map(|s| {
            let seen = ask_all(std::slice::from_ref(s)).ok()?.seen;
            let router = seen.routers.into_iter().find(|r| r.name == name)?;
            Some((s.clone(), router.buffers as usize))
        });
        let (socket, old) =
            seen.ok_or_else(|| format!("the router {name} is no process of yours here"))?;
        self.say(&format!(
            "trying: {name} has {large} large buffers for {} s (it has {old}, and that is put back)",
            self.e.window
        ));
        self.guard.note(&Undo::RouterBuffers {
            socket: socket.clone(),
            router: name.to_owned(),
            large: old,
        })?;
        self.ask(&socket, &buffers(name, large)).map(drop)
    }

    fn clear_cache(&self, first: &Cause) -> Result<Outcome, String> {
        let wants_locks = first.kind == CauseKind::LockWait;
        let before = match wants_locks {
            true => 0.0,
            false => this_host(&[], || wait(self.e.window)).swap_in_per_s,
        };
        self.say("trying: the mounts give back their locks and what they cache; it fills again by itself");
        for (socket, name, _) in self.matching("ldlm.namespaces.*.lru_size") {
            self.ask(&socket, &json!(Ask::SetParam(name, "clear".into())))?;
        }
        if wants_locks {
            let seen = looked(self.e)?.seen;
            let after = LockWindow::of(&seen, &seen.joined());
            return Ok(given_back(&self.lock_waits, &after));
        }
        let with = this_host(&[], || wait(self.e.window)).swap_in_per_s;
        Ok(swap(before, with))
    }

    /// From now on operations are the trial's own, which look at so many targets.
    fn limited(&mut self, targets: usize, v: &Verdict) {
        let seconds = limit::seconds(self.e.window, targets);
        let why = format!(
            "the trial's own operations did not end within {seconds:.0} s: they stand where those of the load do, and what they have made is removed in the background"
        );
        let outcome = Outcome::untried(why.clone());
        let told = match self.e.json {
            true => format!("{:#}\n", told(v, self.of, Some(&outcome))),
            false => format!("trial:\n{}", outcome.text(v)),
        };
        self.limit = Some(Limit::new(seconds, told, why));
    }

    /// The mount on which files are made.
    fn mount(&self) -> Result<PathBuf, String> {
        let mounts = self.sockets.iter().filter_map(|s| {
            let status = self.ask(s, &json!(Ask::Status)).ok()?;
            let mount = status["mount"].as_str().map(PathBuf::from)?;
            let told = ask_all(std::slice::from_ref(&mount)).ok();
            let dumps = told.into_iter().flat_map(|t| t.seen.dumps);
            let nids = dumps.filter_map(|d| d.names.into_iter().next());
            Some((mount, nids.collect()))
        });
        let mounts: Vec<(PathBuf, Vec<String>)> = mounts.collect();
        mount_of(&mounts, self.accused.as_deref())
            .ok_or_else(|| "this trial makes files: name a mount too".to_owned())
    }

    /// A directory for files below that mount.
    fn directory(&mut self, what: &str) -> Result<Probe, String> {
        let mount = self.mount()?;
        self.say(&format!(
            "trying: small {what}, in a directory of their own below '{}', which goes afterwards",
            mount.display()
        ));
        Probe::new(&mount, &self.e.places, &mut self.guard)
    }

    fn probe(&mut self, v: &Verdict) -> Result<Outcome, String> {
        let names = self.matching("*.*.active").into_iter();
        let osts = names.filter_map(|(_, n, _)| target_of(&n, "osc."));
        let names = self.matching("ldlm.namespaces.*.lock_count").into_iter();
        let mdts = names.filter_map(|(_, n, _)| target_of(&n, "ldlm.namespaces."));
        let all = osts.chain(mdts.filter(|n| n.contains("-MDT")));
        let all: BTreeSet<String> = all.collect();
        self.limited(all.len(), v);
        let mut probe = self.directory("files are made and written on each target in turn")?;
        all.iter().for_each(|name| probe.target(name));
        probe
            .left_out
            .iter()
            .for_each(|w| self.say(&format!("left out: {w}")));
        self.own = probe.fids();
        let own = probe.own();
        let facts = own.facts(&own.joined());
        Ok(alone(&judge(&facts), &facts, v))
    }

    fn count_locks(&self, v: &Verdict) -> Result<Outcome, String> {
        self.say(&format!(
            "trying: nothing is changed; locks are counted for {} s",
            self.e.window
        ));
        let seen = looked(self.e)?.seen;
        let joined = seen.joined();
        let facts: Facts = seen.facts(&joined);
        let named = v.causes.first().and_then(|c| c.fid);
        let mut of: BTreeMap<bool, OpKind> = BTreeMap::new();
        for o in &joined.ops {
            let k = of.entry(Some(o.op.fid) == named).or_default();
            k.count += 1;
            k.seconds += o.ns() as f64 / 1e9;
        }
        let kind = |is| of.get(&is).cloned().unwrap_or_default();
        Ok(locks(&facts, &kind(true), &kind(false), v))
    }
}

/// Rates in the mean, measured in turns: a machine is not as busy all the time.
fn rounds(mut once: impl FnMut() -> Result<Rates, String>) -> Result<Rates, String> {
    let all: Result<Vec<Rates>, String> = (0..ROUNDS).map(|_| once()).collect();
    let all = all?;
    let mean = |of: fn(&Rates) -> Option<f64>| {
        let of: Option<f64> = all.iter().map(of).sum();
        of.map(|sum| sum / f64::from(ROUNDS))
    };
    Ok(Rates {
        one: mean(|r| Some(r.one)).unwrap_or_default(),
        two: mean(|r| Some(r.two)).unwrap_or_default(),
        there: mean(|r| r.there),
    })
}

/// Of mounts, each with the NIDs of its process, that of the accused client; the first one where none is known to be.
fn mount_of(mounts: &[(PathBuf, Vec<String>)], accused: Option<&str>) -> Option<PathBuf> {
    let is_accused = |nids: &[String]| nids.iter().any(|n| Some(n.as_str()) == accused);
    let found = mounts.iter().find(|(_, nids)| is_accused(nids));
    found.or(mounts.first()).map(|(mount, _)| mount.clone())
}

/// `fs-OST0000` of `osc.fs-OST0000-osc-1234.active`.
fn target_of(parameter: &str, prefix: &str) -> Option<String> {
    let device = parameter.strip_prefix(prefix)?.split('.').next()?;
    let mut parts = device.split('-');
    Some(format!("{}-{}", parts.next()?, parts.next()?))
}

/// Threads by the share of a core that they had in so many seconds, the busiest first.
fn busiest(seconds: f64) -> Vec<(String, f64)> {
    let before = threads_now();
    let begun = tokio::time::Instant::now();
    wait(seconds);
    let after = threads_now();
    let s = begun.elapsed().as_secs_f64().max(1e-3);
    let shares = after.into_iter().filter_map(|(key, (name, ns))| {
        let (_, was) = before.get(&key)?;
        Some((name, ns.saturating_sub(*was) as f64 / 1e9 / s))
    });
    let mut all: Vec<(String, f64)> = shares.collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// Nanoseconds on a processor of every thread, by process and thread.
fn threads_now() -> BTreeMap<(u32, u32), (String, u64)> {
    let numbers = |dir: PathBuf| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
    };
    let mut all = BTreeMap::new();
    for pid in numbers("/proc".into()) {
        for tid in numbers(format!("/proc/{pid}/task").into()) {
            let of = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
            let (Ok(name), Ok(times)) = (of("comm"), of("schedstat")) else {
                continue;
            };
            let ns = times.split(' ').next().and_then(|n| n.parse().ok());
            let name = format!("thread '{}' of process {pid}", name.trim());
            if all.len() < THREADS_MAX {
                all.insert((pid, tid), (name, ns.unwrap_or(0)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_from_parameters() {
        assert_eq!(
            target_of("osc.fs-OST0001-osc-12ab.active", "osc.").as_deref(),
            Some("fs-OST0001")
        );
        assert_eq!(target_of("llite.fs-12ab.x", "osc."), None);
    }

    #[test]
    fn a_trial_tells_what_a_verdict_alone_tells() {
        let v = judge(&Facts::default());
        let with = told(&v, (5.0, 0.5), None);
        assert_eq!(with["of"], json!({ "seconds": 5.0, "ended_s_ago": 0.5 }));
        assert_eq!(with["left_out"], json!([]));
        assert!(with["trial"].is_null());
        let alone = with_source(&v, Some((5.0, 0.5)), &[]);
        for key in alone.as_object().unwrap().keys() {
            assert_eq!(with[key], alone[key], "{key}");
        }
    }

    #[test]
    fn why_nothing_is_tried_is_told_with_the_verdict() {
        let v = judge(&Facts::default());
        let why = "nothing but closes has ended";
        let with = told(&v, (5.0, 0.5), Some(&Outcome::untried(why.to_owned())));
        let trial = &with["trial"];
        assert_eq!(trial["why"], why);
        assert_eq!(
            (&trial["settled"], &trial["load_ended"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(with["unknown"], json!(v.unknown));
    }

    #[test]
    fn a_trial_is_made_on_the_mount_that_is_accused() {
        let near = (PathBuf::from("/near"), vec!["1@tcp".to_owned()]);
        let far = (
            PathBuf::from("/far"),
            vec!["9@tcp".to_owned(), "2@tcp".to_owned()],
        );
        for mounts in [[near.clone(), far.clone()], [far.clone(), near.clone()]] {
            assert_eq!(mount_of(&mounts, Some("2@tcp")), Some(far.0.clone()));
            assert_eq!(mount_of(&mounts, Some("1@tcp")), Some(near.0.clone()));
            for unknown in [None, Some("3@tcp")] {
                assert_eq!(mount_of(&mounts, unknown), Some(mounts[0].0.clone()));
            }
        }
        assert_eq!(mount_of(&[], Some("1@tcp")), None);
    }

    #[test]
    fn rates_are_those_of_all_rounds() {
        let of = |rates: [(f64, f64, Option<f64>); 2]| {
            let mut rates = rates.into_iter();
            rounds(|| {
                let (one, two, there) = rates.next().unwrap();
                Ok(Rates { one, two, there })
            })
        };
        let mean = Rates {
            one: 9.0,
            two: 15.0,
            there: Some(2.0),
        };
        let measured = [(8.0, 20.0, Some(1.0)), (10.0, 10.0, Some(3.0))];
        assert_eq!(of(measured), Ok(mean));
        let none = of([(8.0, 20.0, None), (10.0, 10.0, None)]).unwrap();
        assert_eq!(none.there, None);
        let failed = rounds(|| Err("cannot".to_owned()));
        assert_eq!(failed, Err("cannot".to_owned()));
    }

    #[test]
    fn this_thread_is_among_the_busiest() {
        let me = (std::process::id(), std::process::id());
        assert!(threads_now().contains_key(&me));
    }
}
