//! What running processes give out, as it is kept in a file.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use coral_stopwatch::Dump;

use super::facts::{Facts, Host, RouterBuffers};
use super::going::going;
use super::links::{Look, links};
use super::trial::LEAST_COUNT;
use crate::attribution::{Joined, join};

/// A grant below which an OST gives hardly any: one RPC of Lustre's.
const GRANT_LEAST_BYTES: u64 = 4 << 20;

/// Stopwatches of several nodes with what else a verdict needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Stopwatches.
    pub dumps: Vec<Dump>,
    /// Routers.
    #[serde(default)]
    pub routers: Vec<RouterBuffers>,
    /// Bytes that clients may have dirty, by target; the least of all clients.
    #[serde(default)]
    pub grants: Vec<(String, u64)>,
    /// Machines.
    #[serde(default)]
    pub hosts: Vec<Host>,
    /// Connections over TCP, from the first moment to the last.
    #[serde(default)]
    pub tcp: Vec<Look>,
}

impl Seen {
    /// Takes in what a process answered: stopwatches and routers.
    pub fn take(&mut self, answer: &Value) -> Result<(), String> {
        if let Some(why) = answer["error"].as_str() {
            return Err(why.to_owned());
        }
        let more: Seen = serde_json::from_value(answer.clone())
            .map_err(|e| format!("odd answer of a Coral process: {e}"))?;
        self.dumps.extend(more.dumps);
        self.routers.extend(more.routers);
        self.hosts.extend(more.hosts);
        self.grants.extend(more.grants);
        Ok(())
    }

    /// What began in the last `seconds` before each dump was made.
    pub fn last(&self, seconds: f64) -> Seen {
        let mut seen = self.clone();
        for d in &mut seen.dumps {
            let from = d.now - (seconds * 1e9) as i64;
            d.ops.retain(|o| o.span.0 >= from);
            d.rpcs.retain(|r| r.span.0 >= from);
            d.served.retain(|s| s.arrived >= from);
            d.passages.retain(|p| p.arrived >= from);
        }
        seen
    }

    /// What began in the last `seconds` of the load: before the last operation ended, whenever that was. Where a ring has lost
    /// records of RPCs since, only as far back as it reaches: of older operations nobody knows where their time went. Also how many
    /// seconds that are, and how long ago the last operation ended.
    ///
    /// The dumps are of one moment: what each shows is then on one clock.
    pub fn recent(&self, seconds: f64) -> (Seen, f64, f64) {
        self.of_one_moment().recent_of_one(seconds)
    }

    /// The same with the clocks of all dumps set so that all were made at once.
    fn of_one_moment(&self) -> Seen {
        let mut seen = self.clone();
        let now = seen.dumps.iter().map(|d| d.now).max().unwrap_or(0);
        for d in &mut seen.dumps {
            shift(d, now - d.now);
        }
        seen
    }

    fn recent_of_one(&self, seconds: f64) -> (Seen, f64, f64) {
        let age = |d: &Dump, at: i64| (d.now - at).max(0) as f64 / 1e9;
        let ends = |d: &Dump| d.ops.iter().map(|o| age(d, o.span.1)).reduce(f64::min);
        let Some(ago) = self.dumps.iter().filter_map(ends).reduce(f64::min) else {
            return (self.clone(), 0.0, 0.0);
        };
        let lossy = self.dumps.iter().filter(|d| d.lost > d.lost_ops);
        let reach = lossy.filter_map(|d| oldest(d).map(|at| age(d, at)));
        let reach = reach.fold(f64::INFINITY, f64::min);
        let upto = (ago + seconds).min(reach.max(ago));
        let seen = self.last(upto);
        let count: usize = seen.dumps.iter().map(|d| d.ops.len()).sum();
        match (count as u64) < LEAST_COUNT {
            true => (self.last(ago + seconds), seconds, ago),
            false => (seen, upto - ago, ago),
        }
    }

    /// Takes in what was seen of the same processes later: the rings of a busy node hold a second or less.
    pub fn add(&mut self, later: Seen) {
        for d in later.dumps {
            let same = |old: &&mut Dump| (&old.clock, &old.nids) == (&d.clock, &d.nids);
            match self.dumps.iter_mut().find(same) {
                Some(old) => old.add(d),
                None => self.dumps.push(d),
            }
        }
        (self.routers, self.grants) = (later.routers, later.grants);
        self.hosts.extend(later.hosts);
        if !later.tcp.is_empty() {
            self.tcp = later.tcp;
        }
    }

    /// Those operations and what belongs to them; what routers kept stays.
    pub fn only(&self, is_meant: impl Fn(&coral_stopwatch::Op) -> bool) -> Seen {
        let mut seen = self.clone();
        for d in &mut seen.dumps {
            d.ops.retain(&is_meant);
            let ids: BTreeSet<u64> = d.ops.iter().map(|o| o.id).collect();
            let fids: BTreeSet<(u64, u32, u32)> = d.ops.iter().map(|o| o.fid).collect();
            let behind = |r: &coral_stopwatch::Rpc| r.op == 0 && fids.contains(&r.fid);
            d.rpcs.retain(|r| ids.contains(&r.op) || behind(r));
        }
        let rpcs = seen.dumps.iter().flat_map(|d| &d.rpcs);
        let xids: BTreeSet<u64> = rpcs.map(|r| r.xid).collect();
        for d in &mut seen.dumps {
            d.served.retain(|s| xids.contains(&s.xid));
        }
        seen
    }

    /// The stopwatches joined.
    pub fn joined(&self) -> Joined {
        join(&self.dumps)
    }

    /// All that a verdict needs of it.
    pub fn facts(&self, joined: &Joined) -> Facts {
        let mut f = Facts::of(joined);
        f.hosts = self.hosts.clone();
        f.links = links(&self.tcp);
        f.going = going(&self.dumps);
        f.routers = self.routers.clone();
        for r in &mut f.routers {
            let own = self.dumps.iter().find(|d| d.names.contains(&r.name));
            r.starved = own.map_or(0.0, starved);
        }
        let few = |t: &str| (self.grants.iter()).any(|(of, b)| of == t && *b < GRANT_LEAST_BYTES);
        for o in &joined.ops {
            if o.op.op.eq_ignore_ascii_case("write") {
                f.grantless.1 += 1;
                let mut rpcs = o.rpcs.iter().map(|i| &joined.rpcs[*i]);
                let at_once = rpcs.any(|r| r.rpc.op == o.op.id && few(&joined.names[r.target]));
                f.grantless.0 += u64::from(at_once);
            }
        }
        f
    }
}

/// Sets the clock of a dump forward.
fn shift(d: &mut Dump, by: i64) {
    if by == 0 {
        return;
    }
    let waits = |waits: &mut coral_stopwatch::Waits| {
        for (_, from, to) in waits {
            (*from, *to) = (*from + by, *to + by);
        }
    };
    d.now += by;
    for o in &mut d.ops {
        (o.span.0, o.span.1) = (o.span.0 + by, o.span.1 + by);
        waits(&mut o.waits);
    }
    for r in &mut d.rpcs {
        let (begun, ended) = (&mut r.span.0, &mut r.span.1);
        let all = [begun, ended, &mut r.sending, &mut r.sent, &mut r.reply];
        all.into_iter().for_each(|at| *at += by);
        waits(&mut r.waits);
    }
    for s in &mut d.served {
        let all = [
            &mut s.arrived,
            &mut s.begun,
            &mut s.replying,
            &mut s.replied,
        ];
        all.into_iter().for_each(|at| *at += by);
        waits(&mut s.waits);
    }
    for p in &mut d.passages {
        let all = [&mut p.arrived, &mut p.admitted, &mut p.whole, &mut p.passed];
        all.into_iter().for_each(|at| *at += by);
    }
    for u in &mut d.under_way {
        u.begun += by;
        if let Some((_, since)) = &mut u.waits {
            *since += by;
        }
    }
}

/// The oldest record of the ring that has the most, which is the one that is full where records were lost.
fn oldest(d: &Dump) -> Option<i64> {
    let rpcs = d.rpcs.iter().map(|r| r.span.0).min();
    let served = d.served.iter().map(|s| s.arrived).min();
    let passages = d.passages.iter().map(|p| p.arrived).min();
    let rings = [
        (d.rpcs.len(), rpcs),
        (d.served.len(), served),
        (d.passages.len(), passages),
    ];
    rings.into_iter().max_by_key(|(count, _)| *count)?.1
}

/// Share of the time that the passages of a router span in which one of them waited to be admitted.
fn starved(router: &Dump) -> f64 {
    let mut waits: Vec<(i64, i64)> = (router.passages.iter())
        .map(|p| (p.arrived, p.admitted))
        .collect();
    waits.sort_unstable();
    let (Some(from), Some(to)) = (
        waits.first().map(|w| w.0),
        router.passages.iter().map(|p| p.passed).max(),
    ) else {
        return 0.0;
    };
    let (mut sum, mut until) = (0, from);
    for (a, b) in waits {
        sum += (b - a.max(until)).max(0);
        until = until.max(b);
    }
    sum as f64 / (to - from).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(arrived: i64, admitted: i64, passed: i64) -> coral_stopwatch::Passage {
        coral_stopwatch::Passage {
            from: 1,
            to: 2,
            kind: coral_stopwatch::Kind::Put,
            portal: 0,
            mbits: 0,
            bytes: 1 << 20,
            arrived,
            admitted,
            whole: admitted,
            passed,
        }
    }

    #[test]
    fn waits_at_a_router_are_counted_once() {
        let router = Dump {
            passages: vec![
                passage(0, 40, 50),
                passage(20, 60, 70),
                passage(90, 90, 100),
            ],
            ..Dump::default()
        };
        assert_eq!(starved(&router), 0.6);
        assert_eq!(starved(&Dump::default()), 0.0);
    }

    /// Each process counts from its own beginning.
    #[test]
    fn the_loads_of_several_processes_are_of_one_time() {
        const S: i64 = 1_000_000_000;
        let dump = |nid: u64, now: i64| Dump {
            clock: nid.to_string(),
            nids: vec![nid],
            now,
            ops: (0..100)
                .map(|n| coral_stopwatch::Op {
                    id: n,
                    op: "READ".into(),
                    fid: (0, 0, 0),
                    span: (now - S + n as i64, now - S / 2 + n as i64),
                    run_ns: 0,
                    waits: vec![],
                })
                .collect(),
            ..Dump::default()
        };
        let seen = Seen {
            dumps: vec![dump(1, 1000 * S), dump(2, 5 * S)],
            ..Seen::default()
        };
        let (recent, _, _) = seen.recent(10.0);
        let f = recent.facts(&recent.joined());
        assert_eq!(f.count(), 200);
        assert!((f.window_s - 0.5).abs() < 0.001, "{}", f.window_s);
    }

    #[test]
    fn the_last_of_the_load_is_looked_at() {
        const S: i64 = 1_000_000_000;
        let op = |id: u64, begun: i64| coral_stopwatch::Op {
            id,
            op: "READ".into(),
            fid: (id, 0, 0),
            span: (begun, begun + S / 100),
            run_ns: 0,
            waits: vec![],
        };
        // loads at 5 to 6 s and at 980 to 990 s, and a node on which one operation ended long ago
        let early = (0..100).map(|n| op(n, 5 * S + n as i64 * S / 100));
        let late = (0..100).map(|n| op(100 + n, 980 * S + n as i64 * S / 10));
        let mut busy = Dump {
            now: 1000 * S,
            ops: early.chain(late).collect(),
            ..Dump::default()
        };
        let idle = Dump {
            now: 1000 * S,
            ops: vec![op(900, 0)],
            ..Dump::default()
        };
        let seen = |busy: &Dump| Seen {
            dumps: vec![busy.clone(), idle.clone()],
            ..Seen::default()
        };
        let count = |s: &Seen| s.dumps.iter().map(|d| d.ops.len()).sum::<usize>();
        let (recent, seconds, ago) = seen(&busy).recent(5.0);
        assert_eq!((count(&recent), seconds), (50, 5.0));
        assert!((ago - 10.09).abs() < 1e-6, "{ago}");
        assert_eq!(count(&seen(&busy).recent(20.0).0), 100);
        // a ring reaches back 12 s only
        busy.lost = 7;
        busy.passages = vec![passage(988 * S, 988 * S, 988 * S)];
        let (recent, seconds, _) = seen(&busy).recent(20.0);
        assert_eq!(count(&recent), 20);
        assert!((seconds - 1.91).abs() < 1e-6, "{seconds}");
        assert_eq!(Seen::default().recent(5.0), (Seen::default(), 0.0, 0.0));
    }

    #[test]
    fn answers_are_taken_in_and_errors_told() {
        let mut seen = Seen::default();
        let answer = serde_json::json!({ "dumps": [Dump::default()], "routers": [
            { "name": "r", "buffers": 2, "least_free": 0 } ] });
        seen.take(&answer).unwrap();
        assert_eq!((seen.dumps.len(), seen.routers[0].buffers), (1, 2));
        let refused = seen.take(&serde_json::json!({ "error": "no such node" }));
        assert_eq!(refused, Err("no such node".to_owned()));
        assert!(seen.take(&serde_json::json!({ "dumps": 3 })).is_err());
        let op = |id, begun| coral_stopwatch::Op {
            id,
            op: "READ".into(),
            fid: (id, 0, 0),
            span: (begun, begun + 1),
            run_ns: 0,
            waits: vec![],
        };
        seen.dumps[0].ops = vec![op(1, -3_000_000_000), op(2, -500_000_000)];
        let ids = |s: &Seen| s.dumps[0].ops.iter().map(|o| o.id).collect::<Vec<_>>();
        assert_eq!(ids(&seen.last(1.0)), [2]);
        assert_eq!(ids(&seen.only(|o| o.fid.0 == 1)), [1]);
        let mut one = seen.only(|o| o.fid.0 == 1);
        one.add(seen.clone());
        assert_eq!((one.dumps.len(), ids(&one)), (1, vec![1, 2]));
    }
}
