//! Whether a load goes on: a trial says nothing of a load that has ended, though it was busy a while ago and is quiet now.
//!
//! # Invariants
//! - Only the clients are looked at whose load it is, and never what a trial does itself.
//! - A load that makes pauses goes on as long as no pause is much longer than its longest one was.
//! - Ages are counted on each node's own clock, from the moment at which it was asked.

use std::collections::BTreeSet;

use coral_stopwatch::Dump;

use super::going::tops;
use super::rules::{SHARE_LEAST, ms};
use super::seen::Seen;
use super::trial::{LEAST_COUNT, Outcome};

/// A pause so many times as long as the longest one before is an end.
const TIMES_PAUSE: f64 = 3.0;
/// But none that is shorter, seconds.
const PAUSE_LEAST_S: f64 = 0.3;
/// A pause that takes so much of the window is an end, however long others were.
const PAUSE_MOST: f64 = 0.5;

/// What closes a file is no sign of a load: it has been opened before, and a trial that makes files knows only their directories.
const CLOSES: [&str; 3] = ["FLUSH", "RELEASE", "RELEASEDIR"];

/// A file or a directory.
pub type Fid = (u64, u32, u32);

/// A load, by the clients that do it.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Clients that have a large part of it, each alone; or all together, where none has.
    groups: Vec<Vec<u64>>,
    /// The longest time in which nothing of such a group was under way, seconds.
    pauses_s: Vec<f64>,
}

/// When something was under way at some clients, on ages: seconds before they were asked.
struct Busy {
    /// From the oldest to the youngest, apart.
    times: Vec<(f64, f64)>,
    operations: u64,
    /// How long ago the oldest of the records began, where older ones have gone.
    reach_s: Option<f64>,
}

impl Busy {
    fn of(seen: &Seen, group: &[u64], own: &BTreeSet<Fid>, seconds: f64) -> Busy {
        let is_of = |d: &&Dump| d.nids.first().is_some_and(|n| group.contains(n));
        let mut all: Vec<(f64, f64)> = vec![];
        let (mut operations, mut reach_s) = (0, None::<f64>);
        for d in seen.dumps.iter().filter(is_of) {
            let age = |at: i64| (d.now - at) as f64 / 1e9;
            let ended = d.ops.iter();
            let ended = ended.filter(|o| !own.contains(&o.fid) && !CLOSES.contains(&&*o.op));
            let ended: Vec<(f64, f64)> = ended
                .map(|o| (age(o.span.0), age(o.span.1)))
                .filter(|(_, end)| *end < seconds)
                .collect();
            operations += ended.len() as u64;
            all.extend(ended);
            let begun = d.under_way.iter().filter(|b| b.opc.is_none());
            let begun = begun.filter(|b| !own.contains(&b.fid) && !CLOSES.contains(&&*b.name));
            all.extend(begun.map(|b| (age(b.begun), 0.0)));
            let oldest = d.ops.iter().map(|o| age(o.span.1)).fold(0.0, f64::max);
            if d.lost_ops > 0 && oldest < seconds {
                reach_s = Some(reach_s.map_or(oldest, |r| r.max(oldest)));
            }
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut times: Vec<(f64, f64)> = vec![];
        for (from, to) in all {
            match times.last_mut() {
                Some(last) if from >= last.1 => last.1 = last.1.min(to),
                _ => times.push((from, to)),
            }
        }
        Busy {
            times,
            operations,
            reach_s,
        }
    }

    /// The longest time between two that were busy, seconds.
    fn longest_pause_s(&self) -> f64 {
        let pauses = self.times.windows(2).map(|w| w[0].1 - w[1].0);
        pauses.fold(0.0, f64::max)
    }

    /// How long ago it was busy last.
    fn quiet_s(&self) -> f64 {
        self.times.last().map_or(f64::INFINITY, |t| t.1)
    }
}

impl Load {
    /// Of the last `seconds` of what was seen.
    pub fn of(seen: &Seen, seconds: f64) -> Load {
        let none = BTreeSet::new();
        let nids = seen.dumps.iter().filter(|d| !d.ops.is_empty());
        let nids = nids.filter_map(|d| d.nids.first().copied());
        let nids: BTreeSet<u64> = nids.collect();
        let share = |nid: &u64| {
            let of = seen.dumps.iter().filter(|d| d.nids.first() == Some(nid));
            let ops = of.flat_map(|d| d.ops.iter().map(|o| (d.now, o.span)));
            let inside = ops.filter(|(now, (_, end))| ((now - end) as f64 / 1e9) < seconds);
            let s = inside.map(|(_, (from, to))| (to - from) as f64);
            s.sum::<f64>()
        };
        let all: f64 = nids.iter().map(share).sum();
        let major = nids.iter().copied();
        let major: Vec<u64> = major.filter(|n| share(n) >= SHARE_LEAST * all).collect();
        let groups: Vec<Vec<u64>> = match major.is_empty() {
            true => vec![nids.into_iter().collect()],
            false => major.into_iter().map(|n| vec![n]).collect(),
        };
        let pause = |g: &Vec<u64>| Busy::of(seen, g, &none, seconds).longest_pause_s();
        Load {
            pauses_s: groups.iter().map(pause).collect(),
            groups,
        }
    }

    /// Why nothing can be tried at the end of the window that it is of: it is over already, or nothing of it ends. None: it goes on.
    pub fn is_over(&self, seen: &Seen, seconds: f64) -> Option<Outcome> {
        let none = BTreeSet::new();
        let mut each = self.groups.iter().zip(&self.pauses_s);
        each.find_map(|(g, pause_s)| {
            let quiet_s = Busy::of(seen, g, &none, seconds).quiet_s();
            let is_over = quiet_s > (TIMES_PAUSE * pause_s).max(PAUSE_LEAST_S);
            is_over.then(|| match quiet_s.is_finite() {
                true => Outcome::ended(format!(
                    "the load{} ended {} ago",
                    self.who(seen, g),
                    ms(quiet_s)
                )),
                false => Outcome::untried(self.only_closes(seen, g, seconds)),
            })
        })
    }

    /// Nothing but what closes files has ended of these clients: how much waits instead.
    fn only_closes(&self, seen: &Seen, group: &[u64], seconds: f64) -> String {
        let is_of = |d: &&Dump| d.nids.first().is_some_and(|n| group.contains(n));
        let waiting = seen.dumps.iter().filter(is_of);
        let waiting = waiting.map(|d| tops(&d.under_way).count()).sum::<usize>();
        let wait = match waiting {
            0 => String::new(),
            1 => ", and 1 operation or RPC in the background waits".to_owned(),
            n => format!(", and {n} operations or RPCs in the background wait"),
        };
        let who = self.who(seen, group);
        format!(
            "nothing of the load{who} but closes has ended in the last {}{wait}",
            ms(seconds)
        )
    }

    /// Why it cannot be said that it went on for the last `seconds` of what was seen later, but for what was done with `own` files: it
    /// had ended when they began, or ended meanwhile. None: it went on.
    pub fn ended(&self, later: &Seen, own: &BTreeSet<Fid>, seconds: f64) -> Option<String> {
        let each = self.groups.iter().zip(&self.pauses_s);
        each.filter_map(|(g, pause_s)| {
            let busy = Busy::of(later, g, own, seconds);
            let most = (TIMES_PAUSE * pause_s).max(PAUSE_LEAST_S);
            let most = most.min((PAUSE_MOST * seconds).max(PAUSE_LEAST_S));
            let begun = busy.times.first().map_or(0.0, |t| t.0);
            let late_s = match busy.reach_s {
                Some(_) => 0.0,
                None => seconds - begun.min(seconds),
            };
            let ended = |how: String| Some(format!("the load{} {how}", self.who(later, g)));
            match busy.quiet_s() {
                quiet if quiet >= seconds => ended("had ended before".to_owned()),
                quiet if quiet > most => ended(format!("ended {} before the end", ms(quiet))),
                _ if late_s > most => {
                    ended(format!("stood still for {} at the beginning", ms(late_s)))
                }
                // One operation that goes on all the time is a load too.
                _ if busy.operations < LEAST_COUNT && begun < seconds => {
                    ended(format!("has {} operations only", busy.operations))
                }
                _ => None,
            }
        })
        .next()
    }

    /// Which client, where there are several.
    fn who(&self, seen: &Seen, group: &[u64]) -> String {
        let of = seen.dumps.iter().find(|d| d.nids.first() == group.first());
        match (self.groups.len(), of.and_then(|d| d.names.first())) {
            (2.., Some(name)) => format!(" of {name}"),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::Was;
    use super::*;

    const MS: i64 = 1_000_000;

    /// A client asked at 100 s on its own clock, with an operation of 5 ms every `every` ms in the time between these ages.
    fn client(nid: u64, (from_s, to_s): (f64, f64), every: i64) -> Dump {
        let now = (100_000 + nid as i64) * MS;
        let at = |age_s: f64| now - (age_s * 1e9) as i64;
        let count = (at(to_s) - at(from_s)) / (every * MS);
        let op = |i: i64| coral_stopwatch::Op {
            id: i as u64 + 1,
            op: "READ".into(),
            fid: (nid, 1, 0),
            span: (
                at(from_s) + i * every * MS,
                at(from_s) + (i * every + 5) * MS,
            ),
            run_ns: 0,
            waits: vec![],
        };
        Dump {
            nids: vec![nid],
            names: vec![format!("c{nid}@tcp")],
            now,
            ops: (0..count).map(op).collect(),
            ..Dump::default()
        }
    }

    fn seen(dumps: Vec<Dump>) -> Seen {
        Seen {
            dumps,
            ..Seen::default()
        }
    }

    /// What is said of a load that made an operation every `every` ms, and later only in the time between these ages of 5 s.
    fn said(every: i64, busy_s: (f64, f64)) -> Option<String> {
        let load = Load::of(&seen(vec![client(1, (5.0, 0.0), every)]), 5.0);
        load.ended(&seen(vec![client(1, busy_s, every)]), &BTreeSet::new(), 5.0)
    }

    #[test]
    fn a_load_that_has_ended_is_none() {
        for every in [10, 100] {
            assert_eq!(said(every, (9.0, 0.0)), None, "{every}");
            assert_eq!(said(every, (5.0, 0.05)), None, "{every}");
            let before = said(every, (9.0, 5.0)).expect("it has ended");
            assert_eq!(before, "the load had ended before");
            let meanwhile = said(every, (9.0, 2.0)).expect("it has ended");
            assert!(meanwhile.starts_with("the load ended 2."), "{meanwhile}");
            let late = said(every, (2.0, 0.0)).expect("it began late");
            assert!(late.ends_with("at the beginning"), "{late}");
        }
        assert_eq!(said(400, (9.0, 0.6)), None, "as long as its pauses");
        assert!(said(400, (9.0, 2.0)).is_some());
        let early = client(1, (9.0, 4.9), 10);
        assert!(said(10, (9.0, 4.9)).is_some(), "{}", early.ops.len());
    }

    /// What closes files has ended, and as many closes wait in the background.
    #[test]
    fn a_load_of_which_nothing_but_closes_ends_has_no_age() {
        let mut closes = client(1, (5.0, 0.0), 10);
        closes.ops.iter_mut().for_each(|o| o.op = "RELEASE".into());
        let close = |n: i64| coral_stopwatch::Begun {
            op: 0,
            name: "".into(),
            opc: Some(coral_wire::opc::MDS_CLOSE),
            target: "fs-MDT0000_UUID".into(),
            fid: (1, 1, 0),
            begun: closes.now - n * MS,
            waits: None,
        };
        let over = |waiting: i64| {
            let dump = Dump {
                under_way: (0..waiting).map(close).collect(),
                ..closes.clone()
            };
            let seen = seen(vec![dump]);
            let over = Load::of(&seen, 5.0).is_over(&seen, 5.0).unwrap();
            (over.was, over.why.unwrap())
        };
        let told = "nothing of the load but closes has ended in the last 5.00 s";
        assert_eq!(over(0), (Was::Open, told.to_owned()));
        let wait = ", and 50 operations or RPCs in the background wait";
        assert_eq!(over(50), (Was::Open, format!("{told}{wait}")));
        let seen = seen(vec![client(1, (5.0, 2.0), 10)]);
        let over = Load::of(&seen, 5.0).is_over(&seen, 5.0).unwrap();
        assert_eq!(over.was, Was::Ended);
        assert!(over.why.unwrap().starts_with("the load ended 2."));
    }

    #[test]
    fn what_a_trial_and_others_do_is_not_the_load() {
        let load = Load::of(&seen(vec![client(1, (5.0, 0.0), 10)]), 5.0);
        let mut own = client(1, (5.0, 0.0), 10);
        own.ops.iter_mut().for_each(|o| o.fid = (7, 7, 0));
        // files that it has made, of which it knows no more than the directory
        let mut closed = own.ops.clone();
        for (i, o) in closed.iter_mut().enumerate() {
            (o.fid, o.op) = ((8, i as u32, 0), ["FLUSH", "RELEASE"][i % 2].into());
        }
        own.ops.extend(closed);
        let later = seen(vec![own, client(2, (5.0, 0.0), 10)]);
        let why = load.ended(&later, &[(7, 7, 0)].into(), 5.0);
        assert_eq!(why.as_deref(), Some("the load had ended before"));
        assert_eq!(load.ended(&later, &BTreeSet::new(), 5.0), None);
    }

    #[test]
    fn each_large_part_of_a_load_has_to_go_on() {
        let two = |second: (f64, f64)| seen(vec![client(1, (5.0, 0.0), 10), client(2, second, 10)]);
        let load = Load::of(&two((5.0, 0.0)), 5.0);
        assert_eq!(load.ended(&two((5.0, 0.0)), &BTreeSet::new(), 5.0), None);
        let why = load.ended(&two((5.0, 3.0)), &BTreeSet::new(), 5.0);
        let why = why.expect("one has ended");
        assert!(why.starts_with("the load of c2@tcp ended"), "{why}");
    }

    /// One of an hour, and one of which the records reach back a tenth of a second only.
    #[test]
    fn what_cannot_be_seen_has_not_ended() {
        let load = Load::of(&seen(vec![client(1, (5.0, 0.0), 10)]), 5.0);
        let mut long = client(1, (5.0, 5.0), 10);
        long.under_way = vec![coral_stopwatch::Begun {
            op: 1,
            name: "WRITE".into(),
            opc: None,
            target: "".into(),
            fid: (1, 1, 0),
            begun: 0,
            waits: None,
        }];
        assert_eq!(load.ended(&seen(vec![long]), &BTreeSet::new(), 5.0), None);
        let mut busy = client(1, (0.2, 0.0), 10);
        busy.lost_ops = 1000;
        assert_eq!(load.ended(&seen(vec![busy]), &BTreeSet::new(), 5.0), None);
    }
}
