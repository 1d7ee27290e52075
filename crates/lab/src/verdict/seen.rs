//! What running processes give out, as it is kept in a file.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use coral_stopwatch::Dump;
use coral_wire::nid::Nid;
use coral_wire::opc;

use super::facts::{Facts, Host, RouterBuffers, is_ost};
use super::going::{going, is_server, quiet};
use super::links::{Look, links};
use super::queue::queued;
use super::time::{Earlier, Span};
use crate::attribution::{Joined, JoinedRpc, Segment, join, to_one_clock};

/// A grant below which an OST gives hardly any: one RPC of Lustre's.
const GRANT_LEAST_BYTES: u64 = 4 << 20;

/// What a target has granted a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// NID of the client.
    pub client: String,
    /// The target.
    pub target: String,
    /// Bytes that the client may have dirty.
    pub bytes: u64,
}

impl Granted {
    /// What the answer of `coral metrics` has of it.
    pub fn of(metrics: &Value) -> Vec<Granted> {
        let all = metrics.as_array().into_iter().flatten();
        let series = all.filter(|m| m["name"] == "coral_osc_grant_bytes");
        let points = series.filter_map(|m| m["series"].as_array()).flatten();
        let one = |p: &Value| {
            Some(Granted {
                client: p["labels"]["node"].as_str()?.to_owned(),
                target: p["labels"]["target"].as_str()?.to_owned(),
                bytes: p["value"].as_u64()?,
            })
        };
        points.filter_map(one).collect()
    }
}

/// Stopwatches of several nodes with what else a verdict needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Stopwatches.
    pub dumps: Vec<Dump>,
    /// Routers.
    #[serde(default)]
    pub routers: Vec<RouterBuffers>,
    /// What targets have granted clients.
    #[serde(default)]
    pub granted: Vec<Granted>,
    /// Machines.
    #[serde(default)]
    pub hosts: Vec<Host>,
    /// Connections over TCP, from the first moment to the last.
    #[serde(default)]
    pub tcp: Vec<Look>,
    /// The time that the operations are of, where it was chosen: all others were left out. None: they are all that there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
    /// Operations of which only a part is in that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Earlier>,
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
        self.granted.extend(more.granted);
        Ok(())
    }

    /// What limits what was kept, in a run or a file: the verdict, with the time that it is of.
    pub fn judged(&self) -> Judged {
        Judged {
            span: self.span,
            verdict: super::explain(&self.facts(&self.joined())).of_record(),
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
        (self.routers, self.granted) = (later.routers, later.granted);
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

    /// Whether an operation of a client was under way when it was asked.
    pub fn is_under_way(&self) -> bool {
        let begun = self.dumps.iter().flat_map(|d| &d.under_way);
        begun.into_iter().any(|b| b.opc.is_none())
    }

    /// The stopwatches joined.
    pub fn joined(&self) -> Joined {
        join(&self.dumps)
    }

    /// All that a verdict needs of it.
    pub fn facts(&self, joined: &Joined) -> Facts {
        let mut f = Facts::of(joined);
        let machines: BTreeSet<Option<&str>> = (self.dumps.iter())
            .map(|d| d.machine.as_ref().map(|m| m.name.as_str()))
            .collect();
        let serves = self.dumps.iter().any(is_server);
        let serves_only = |d: &Dump| tells(d) && d.ops.is_empty() && d.brief == 0;
        f.only_servers = serves && self.dumps.iter().all(serves_only);
        f.is_one_machine = serves && machines.len() == 1 && !machines.contains(&None);
        f.hosts = self.hosts.clone();
        f.links = links(&self.tcp);
        f.going = going(&self.dumps);
        f.lock_waits.not_all_asked = !self.has_all_at(&f);
        f.queued = queued(&self.dumps);
        f.quiet_s = quiet(&self.dumps);
        f.earlier = self.earlier.unwrap_or_default();
        f.forgotten_s = self.forgotten_s(joined, &f);
        let of_paths = f.paths.iter().map(|p| p.target.as_str());
        let known = self.granted.iter().map(|g| g.target.as_str());
        let osts: BTreeSet<&str> = known.chain(of_paths).filter(|t| is_ost(t)).collect();
        f.osts = osts.len();
        f.routers = self.routers.clone();
        for r in &mut f.routers {
            let own = self.dumps.iter().find(|d| d.names.contains(&r.name));
            r.starved = own.map_or(0.0, starved);
        }
        // What a target grants another client, or an MDT a client whose data lie on OSTs, says nothing of this write.
        let few = |client: &str, target: &str| {
            let mut of = self.granted.iter().filter(|g| g.client == client);
            is_ost(target) && of.any(|g| g.target == target && g.bytes < GRANT_LEAST_BYTES)
        };
        for o in &joined.ops {
            if o.op.op.eq_ignore_ascii_case("write") {
                f.grantless.1 += 1;
                let mut own = (o.rpcs.iter().map(|i| &joined.rpcs[*i]))
                    .filter(|r| r.rpc.op == o.op.id && r.rpc.opc == opc::OST_WRITE);
                let client = &joined.names[o.client];
                let at_once = own.any(|r| few(client, &joined.names[r.target]));
                f.grantless.0 += u64::from(at_once);
            }
        }
        f
    }
}

impl Seen {
    /// Whether the server of the target with most waits for locks was asked, and all whom servers have served.
    fn has_all_at(&self, f: &Facts) -> bool {
        let path = f.paths.iter().find(|p| p.target == f.lock_waits.target);
        let nids = |d: &Dump| {
            d.nids
                .iter()
                .map(|n| Nid(*n).to_string())
                .collect::<Vec<_>>()
        };
        let names: BTreeSet<String> = (self.dumps.iter())
            .flat_map(|d| nids(d).into_iter().chain(d.names.clone()))
            .collect();
        let asked: BTreeSet<u64> = self.dumps.iter().flat_map(|d| d.nids.clone()).collect();
        let mut served = self.dumps.iter().flat_map(|d| &d.served);
        path.is_some_and(|p| names.contains(&p.peer)) && served.all(|s| asked.contains(&s.client))
    }

    /// Seconds of operations at targets whose servers were asked, and have no record of requests that ended before their oldest one.
    fn forgotten_s(&self, joined: &Joined, f: &Facts) -> f64 {
        if !self.dumps.iter().any(|d| is_lossy(d) && tells(d)) {
            return 0.0;
        }
        let by = to_one_clock(&self.dumps);
        let mut since: BTreeMap<u64, i64> = BTreeMap::new();
        let lossy = self.dumps.iter().zip(&by).filter(|(d, _)| is_lossy(d));
        for (d, by) in lossy.filter(|(d, _)| tells(d)) {
            // A server that has lost records and has none has lost them all.
            let oldest = oldest(d).map_or(i64::MAX, |at| at + by);
            since.extend(d.nids.iter().map(|nid| (*nid, oldest)));
        }
        let clocks = self.dumps.iter().zip(&by);
        let clocks: BTreeMap<&str, i64> = clocks
            .filter_map(|(d, by)| Some((d.names.first()?.as_str(), *by)))
            .collect();
        let is_forgotten = |r: &&JoinedRpc| {
            let by = clocks.get(joined.names[r.client].as_str()).unwrap_or(&0);
            let oldest = since.get(&r.rpc.peer);
            !r.is_served && r.rpc.xid != 0 && oldest.is_some_and(|o| r.rpc.span.1 + by < *o)
        };
        let missing = joined.rpcs.iter().filter(is_forgotten);
        let targets: BTreeSet<&str> = missing.map(|r| joined.names[r.target].as_str()).collect();
        let all = f.seconds.iter();
        let at = all.filter(|((s, at), _)| *s == Segment::Remote && targets.contains(at.as_str()));
        at.map(|(_, s)| s).sum::<f64>() + 0.0
    }
}

/// The verdict on what was kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The time that it is of; None: all.
    pub span: Option<Span>,
    /// It.
    pub verdict: super::Verdict,
}

impl std::fmt::Display for Judged {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(span) = &self.span {
            write!(out, "{span}")?;
        }
        write!(out, "{}", self.verdict)
    }
}

/// Whether records other than of operations have gone.
pub(super) fn is_lossy(d: &Dump) -> bool {
    d.lost > d.lost_ops
}

/// Whether it tells of RPCs what their clients cannot know.
pub(super) fn tells(d: &Dump) -> bool {
    is_server(d) || !d.passages.is_empty()
}

/// Since when all records of a node are there, where older ones have gone. A client knows of older operations only by those that
/// were long: their RPCs ended late.
pub(super) fn oldest(d: &Dump) -> Option<i64> {
    if !tells(d) {
        return d.rpcs.iter().map(|r| r.span.1).min();
    }
    let served = d.served.iter().map(|s| s.replied).min();
    let passages = d.passages.iter().map(|p| p.passed).min();
    served.max(passages)
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
    use super::super::rules::CauseKind;
    use super::*;
    use crate::attribution::rpc_of;

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

    const MS: i64 = 1_000_000;

    #[test]
    fn servers_alone_know_no_operations() {
        let verdict = |seen: &Seen| {
            let f = seen.facts(&seen.joined());
            super::super::explain(&f).to_string()
        };
        let both = two(100 * MS, 100 * MS);
        let mut servers = both.clone();
        servers.dumps.remove(0);
        let said = verdict(&servers);
        assert!(
            said.contains("verdict: unknown: only servers were asked"),
            "{said}"
        );
        assert!(said.contains("next: name the mounts too"), "{said}");
        let mut idle = both;
        idle.dumps[0].ops.clear();
        idle.dumps[0].rpcs.clear();
        let said = verdict(&idle);
        assert!(said.contains("no operation was seen"), "{said}");
    }

    #[test]
    fn who_was_asked_of_a_target_and_its_clients_is_known() {
        let mut seen = two(100 * MS, 100 * MS);
        let mut f = seen.facts(&seen.joined());
        f.lock_waits.target = "fs-OST0000".into();
        assert!(seen.has_all_at(&f));
        let mut alone = seen.clone();
        alone.dumps.truncate(1);
        assert!(!alone.has_all_at(&f), "not its server");
        seen.dumps[1].served[0].client = 9;
        assert!(!seen.has_all_at(&f), "not one of its clients");
    }

    /// A client with an operation of 5 ms every 10 ms, each with an RPC, and its server, whose clock is elsewhere. Each tells at its
    /// own moment, on the clock of the client.
    fn two(client_tells: i64, server_tells: i64) -> Seen {
        const AHEAD: i64 = 77_000 * MS;
        let client_of = |n: i64| {
            let at = 10 * n * MS;
            let op = coral_stopwatch::Op {
                id: n as u64 + 1,
                op: "READ".into(),
                fid: (1, 1, 0),
                span: (at, at + 5 * MS),
                run_ns: 0,
                waits: vec![],
            };
            let rpc = coral_stopwatch::Rpc {
                op: op.id,
                fid: op.fid,
                ..rpc_of(opc::OST_READ, n as u64, op.span)
            };
            (op, rpc)
        };
        let served = |n: i64| coral_stopwatch::Served {
            client: 1,
            xid: n as u64,
            opc: opc::OST_READ,
            service: "ost_io".into(),
            arrived: AHEAD + (10 * n + 1) * MS,
            begun: AHEAD + (10 * n + 1) * MS,
            replying: AHEAD + (10 * n + 4) * MS,
            replied: AHEAD + (10 * n + 4) * MS,
            run_ns: 3 * MS as u64,
            waits: vec![],
        };
        let count = |tells: i64| 0..=(tells - 5 * MS) / (10 * MS);
        let (ops, rpcs) = count(client_tells).map(client_of).unzip();
        let client = Dump {
            clock: "c".into(),
            nids: vec![1],
            names: vec!["client".into()],
            now: client_tells,
            ops,
            rpcs,
            ..Dump::default()
        };
        let server = Dump {
            clock: "s".into(),
            nids: vec![2],
            names: vec!["server".into()],
            now: AHEAD + server_tells,
            served: count(server_tells).map(served).collect(),
            ..Dump::default()
        };
        Seen {
            dumps: vec![client, server],
            ..Seen::default()
        }
    }

    /// Share of the time of which the server should have told, and the operations.
    fn untold(seen: &Seen) -> (f64, u64) {
        let f = seen.facts(&seen.joined());
        (
            f.share(crate::attribution::Segment::Remote, None),
            f.count(),
        )
    }

    #[test]
    fn who_tells_earlier_or_later_is_cut_at_the_same_moment() {
        for (client, server) in [(3000, 3000), (3000, 3300), (3300, 3000)] {
            let seen = two(client * MS, server * MS);
            let (share, count) = untold(&seen.last(1.0));
            assert_eq!(share, 0.0, "{client}, {server}: {count} operations");
            assert!((65..=100).contains(&count), "{client}, {server}: {count}");
            let (recent, seconds, ago) = seen.recent(1.0);
            let (share, count) = untold(&recent);
            assert_eq!((share, seconds), (0.0, 1.0), "{client}, {server}");
            assert!((99..=101).contains(&count) && ago < 0.015, "{count}, {ago}");
            let (_, _, ago) = seen.until_now(1.0);
            assert!(ago < 0.015, "{ago}");
        }
    }

    /// As S3 has it: the MDT is asked at the end only, and its records of before the step have left with it.
    #[test]
    fn what_is_kept_of_a_run_is_judged_as_its_report_says() {
        let mut seen = two(3000 * MS, 3000 * MS);
        let mut mdt = seen.dumps[1].clone();
        (mdt.clock, mdt.names, mdt.nids) = ("m".into(), vec!["mdt".into()], vec![3]);
        (mdt.now, mdt.lost) = (5000 * MS, 900);
        mdt.served.truncate(2);
        for (at, s) in [100, 4500].into_iter().zip(&mut mdt.served) {
            s.xid += 10_000;
            (s.arrived, s.begun, s.replying, s.replied) = (at * MS, at * MS, at * MS, at * MS);
        }
        seen.dumps.push(mdt);
        let kept = seen.within(1.0, 0.0, false);
        let span = kept.span.unwrap();
        assert_eq!((span.seconds, span.asked_s), (1.0, 1.0));
        let in_report = kept.judged().to_string();
        let text = serde_json::to_string(&kept).unwrap();
        let read: Seen = serde_json::from_str(&text).unwrap();
        assert_eq!(read.of_file().judged().to_string(), in_report);
        let count = |seen: &Seen| seen.facts(&seen.joined()).count();
        assert!((98..=100).contains(&count(&kept)), "{}", count(&kept));
        // cut once more it would be of the time since that record
        assert!(count(&kept.recent(f64::INFINITY).0) < 60);
    }

    #[test]
    fn where_records_reach_back_a_part_of_the_way_it_is_told() {
        let mut seen = two(3000 * MS, 3000 * MS);
        let server = &mut seen.dumps[1];
        let kept = server.served.split_off(240);
        (server.lost, server.served) = (240, kept);
        let text = seen.within(2.0, 0.0, false).judged().to_string();
        let told = "operations of the last 0.60 s of 2.0 s: the records reach back no further\n";
        assert!(text.starts_with(told), "{text}");
        let whole = seen.within(0.5, 0.0, false).judged().to_string();
        assert!(whole.starts_with("Little's law"), "{whole}");
    }

    /// Two commands, of which one ended a second before the other.
    #[test]
    fn a_step_is_judged_by_the_time_in_which_all_ran() {
        let seen = two(3000 * MS, 3000 * MS);
        let within = seen.within(2.5, 1.0, true);
        let ops = within.dumps.iter().flat_map(|d| &d.ops);
        let spans: Vec<(i64, i64)> = ops.map(|o| o.span).collect();
        let begun = spans.iter().map(|s| s.0).min().unwrap();
        let ended = spans.iter().map(|s| s.1).max().unwrap();
        let now = within.now();
        let ages = ((now - begun) / MS, (now - ended) / MS);
        assert!(ages.0 <= 2500 && ages.1 >= 1000, "{ages:?}");
        assert!(spans.len() > 145, "{}", spans.len());
        let text = within.judged().to_string();
        let told = "operations of the 1.5 s in which all commands ran\n";
        assert!(text.starts_with(told), "{text}");
    }

    /// Programs wait 64 s for each of the slots of an MDT, of which 100 in a second get one: so it has been for 100 s, and 6,400 wait.
    fn backlog() -> Seen {
        let (now, took) = (100_000 * MS, 64_000 * MS);
        let rpc_of_op = |n: i64| {
            let end = now - 5 * MS - 10 * n * MS;
            let rpc = coral_stopwatch::Rpc {
                op: n as u64 + 1,
                target: "fs-MDT0000_UUID".into(),
                sending: end - 20 * MS,
                sent: end - 20 * MS,
                in_flight: 2,
                in_flight_max: 2,
                waits: vec![(coral_stopwatch::Wait::Slot, end - took, end - 20 * MS)],
                ..rpc_of(opc::MDS_REINT, n as u64, (end - took, end))
            };
            let op = coral_stopwatch::Op {
                id: rpc.op,
                op: "CREATE".into(),
                fid: (1, 1, 0),
                span: rpc.span,
                run_ns: 0,
                waits: vec![],
            };
            (op, rpc)
        };
        let (ops, rpcs) = (0..3600).map(rpc_of_op).unzip();
        let waits = (0..6400_u64).flat_map(|n| {
            let (op, begun) = (10_000 + n, now - 10 * (n as i64 + 1) * MS);
            let name = coral_stopwatch::Begun {
                op,
                name: "CREATE".into(),
                opc: None,
                target: "".into(),
                fid: (1, 1, 0),
                begun,
                waits: None,
            };
            let rpc = coral_stopwatch::Begun {
                name: "".into(),
                opc: Some(opc::MDS_REINT),
                target: "fs-MDT0000_UUID".into(),
                waits: Some((coral_stopwatch::Wait::Slot, begun)),
                ..name.clone()
            };
            [name, rpc]
        });
        let client = Dump {
            nids: vec![1],
            names: vec!["c@tcp".into()],
            now,
            ops,
            rpcs,
            under_way: waits.collect(),
            ..Dump::default()
        };
        Seen {
            dumps: vec![client],
            ..Seen::default()
        }
    }

    #[test]
    fn what_ended_in_the_time_counts_however_long_ago_it_began() {
        for (seen, seconds, ago) in [backlog().recent(10.0), backlog().until_now(10.0)] {
            assert!(seconds == 10.0 && ago < 0.1, "{seconds}, {ago}");
            let mut f = seen.facts(&seen.joined());
            f.asked_s = seconds;
            assert!((990..=1001).contains(&f.count()), "{}", f.count());
            assert!((9.9..=10.0).contains(&f.window_s), "{}", f.window_s);
            // of each what is within: from nothing to 10 s
            assert!((4900.0..5100.0).contains(&f.op_s()), "{}", f.op_s());
            assert!(f.share(Segment::ClientQueue, None) > 0.99);
            let p = &f.paths[0];
            assert!((63.9..64.1).contains(&p.mean_s(Segment::ClientQueue)));
            let v = super::super::explain(&f);
            assert_eq!((v.unknown.as_deref(), v.is_idle), (None, false), "{v}");
            let first = &v.causes[0];
            assert_eq!(
                (first.kind, first.subject.as_str()),
                (CauseKind::Window, "fs-MDT0000")
            );
            assert!(
                v.causes.iter().all(|c| c.kind != CauseKind::StandsStill),
                "{v}"
            );
            let text = v.to_string();
            for told in [
                " counted, without 6400 that have not ended
",
                "operations that ended in the time that is judged began before it, the oldest 6",
                "not ended: 6400 operations wait for an RPC slot of fs-MDT0000, the oldest for 64.00 s; meanwhile 1",
                "next: more mounts, ",
            ] {
                assert!(text.contains(told), "{told}: {text}");
            }
        }
    }

    /// The same in a second in which none of those that wait ended, but closes did.
    #[test]
    fn a_queue_of_which_nobody_has_come_out_yet_is_the_cause() {
        let mut seen = backlog();
        let client = &mut seen.dumps[0];
        client.ops.clear();
        for r in &mut client.rpcs {
            (r.op, r.opc) = (0, opc::MDS_CLOSE);
        }
        let (seen, ..) = seen.recent(10.0);
        let v = super::super::explain(&seen.facts(&seen.joined()));
        assert_eq!((v.unknown.as_deref(), v.is_idle), (None, false), "{v}");
        assert_eq!(v.causes[0].kind, CauseKind::Window, "{v}");
        let told = "1. RPCs in flight (fs-MDT0000): 100% of the time\n   6400 operations wait for an RPC slot";
        assert!(v.to_string().contains(told), "{v}");
        assert!(v.next.starts_with("more mounts"), "{v}");
        let joined = seen.joined();
        let accused = super::super::accused(&seen, &joined, &seen.facts(&joined), &v);
        assert_eq!(accused.as_deref(), Some("c@tcp"));
    }

    /// Closes of an earlier step wait still when a later one of 3 s is over, of which two operations wait too.
    #[test]
    fn what_an_earlier_step_has_left_is_not_judged() {
        let mut seen = two(3000 * MS, 3000 * MS);
        let begun = |op, at: i64, opc| coral_stopwatch::Begun {
            op,
            name: if op > 0 { "READ" } else { "" }.into(),
            opc,
            target: "fs-MDT0000_UUID".into(),
            fid: (9, 9, 0),
            begun: at,
            waits: None,
        };
        let closes = (0..50).map(|_| begun(0, -61_000 * MS, Some(opc::MDS_CLOSE)));
        let client = &mut seen.dumps[0];
        client.under_way = closes.collect();
        client.under_way.push(begun(9001, 2999 * MS, None));
        let mut early = client.ops[0].clone();
        (early.id, early.span) = (9000, (-64_000 * MS, 100 * MS));
        client.ops.insert(0, early);
        let within = seen.within(3.0, 0.0, false);
        let ids = within.dumps[0].ops.iter().map(|o| o.id);
        assert!(ids.clone().count() > 290 && !ids.clone().any(|id| id == 9000));
        let going: Vec<u64> = within.dumps[0].under_way.iter().map(|b| b.op).collect();
        assert_eq!(going, [9001]);
        let judged = within.judged();
        let told = "left out: 50 operations that were under way all the time; the oldest began 61.0 s before the commands\n";
        assert!(judged.to_string().starts_with(told), "{judged}");
        assert!(judged.verdict.causes.is_empty(), "{judged}");
        // and beside commands that go on: what began after the first had ended
        let common = seen.within(3.0, 0.002, true);
        assert!(common.dumps[0].under_way.is_empty());
    }

    /// A file has what was done before the load too, as the mounting.
    #[test]
    fn idle_times_before_the_load_are_left_out_of_a_file() {
        let mut seen = two(3000 * MS, 3000 * MS);
        let mut early = seen.dumps[0].ops[..5].to_vec();
        for o in &mut early {
            (o.id, o.span) = (
                o.id + 5000,
                (o.span.0 - 60_000 * MS, o.span.1 - 60_000 * MS),
            );
        }
        seen.dumps[0].ops.splice(0..0, early);
        let judged = seen.clone().of_file().judged();
        let rate = judged.verdict.little.rate;
        assert!((95.0..105.0).contains(&rate), "{judged}");
        let told =
            "left out: 5 operations before the load, from which 60.0 s without any part it\n";
        assert!(judged.to_string().starts_with(told), "{judged}");
        // as many as that are a load themselves
        let mut more = two(3000 * MS, 3000 * MS);
        for o in &mut more.dumps[0].ops[..100] {
            o.span = (o.span.0 - 60_000 * MS, o.span.1 - 60_000 * MS);
        }
        assert_eq!(more.of_file().span.unwrap().before, (0, 0.0));
    }

    /// A file was written until 1.5 s ago, and names are made since 0.5 s ago: what is judged has no data.
    #[test]
    fn a_load_of_before_a_pause_is_another_one() {
        let of = |gone_ms: i64, every: i64| {
            let mut seen = two(3000 * MS, 3000 * MS);
            let client = &mut seen.dumps[0];
            // 150 operations of before, and 300 since then
            let quick = |at: i64, n: i64| (3000 - gone_ms) * MS + at + n * every;
            let mut more = vec![];
            for (n, o) in client.ops.iter().enumerate() {
                let mut o = o.clone();
                let at = quick(0, n as i64);
                (o.id, o.span) = (o.id + 9000, (at, at + MS));
                more.push(o);
            }
            client.ops.truncate(150);
            client.rpcs.truncate(150);
            for r in &mut client.rpcs {
                r.bulk_bytes = 1 << 20;
            }
            client.ops.extend(more);
            let (recent, seconds, _) = seen.recent(10.0);
            let f = recent.facts(&recent.joined());
            let bytes: u64 = f.paths.iter().map(|p| p.data.bytes).sum();
            (f.count(), bytes, seconds, recent.span)
        };
        let (count, bytes, seconds, span) = of(500, MS + MS / 2);
        assert!(
            count >= 299 && bytes == 0 && seconds < 0.6,
            "{count}, {bytes}, {seconds}"
        );
        assert_eq!(span.unwrap().before.0, 150);
        // it goes on without a pause, or has pauses itself
        for (gone_ms, every) in [(1600, MS), (500, 700 * MS)] {
            let (count, bytes, seconds, span) = of(gone_ms, every);
            assert!(
                bytes > 0 && seconds == 10.0,
                "{gone_ms}: {count}, {seconds}, {span:?}"
            );
        }
    }

    #[test]
    fn what_a_server_has_forgotten_is_left_out() {
        let mut seen = two(3000 * MS, 3000 * MS);
        let server = &mut seen.dumps[1];
        let kept = server.served.split_off(240);
        (server.lost, server.served) = (240, kept);
        let (share, count) = untold(&seen.last(2.0));
        assert!(
            share == 0.0 && (55..=60).contains(&count),
            "{share}, {count}"
        );
        assert!(untold(&seen).0 > 0.5, "all of it");
    }

    /// Its server was asked, and the requests of others have taken the places of its own.
    #[test]
    fn a_server_that_has_forgotten_is_not_to_be_asked() {
        let next = |seen: &Seen| super::super::explain(&seen.facts(&seen.joined())).next;
        let mut seen = two(3000 * MS, 3000 * MS);
        let server = &mut seen.dumps[1];
        for (n, s) in server.served.iter_mut().enumerate() {
            (s.client, s.xid) = (9, n as u64);
        }
        assert!(next(&seen).starts_with("ask the servers"), "it lost none");
        seen.dumps[1].lost = 300;
        let it_remembers = "its records are of the same time: these requests were not forgotten";
        assert!(next(&seen).starts_with("ask the servers"), "{it_remembers}");
        for s in &mut seen.dumps[1].served {
            let all = [
                &mut s.arrived,
                &mut s.begun,
                &mut s.replying,
                &mut s.replied,
            ];
            all.into_iter().for_each(|at| *at += 2980 * MS);
        }
        let told = next(&seen);
        assert!(told.starts_with("the servers were asked"), "{told}");
        seen.dumps.pop();
        assert!(next(&seen).starts_with("ask the servers"));
    }

    /// A program waits for another's lock for most of the time, between its reads.
    #[test]
    fn waits_for_locks_of_programs_are_left_out() {
        let facts = |seen: &Seen| seen.facts(&seen.joined());
        let mut seen = two(3000 * MS, 3000 * MS);
        let without = facts(&seen);
        let lock = |id: u64, from: i64| coral_stopwatch::Op {
            id,
            op: "SETLKW".into(),
            fid: (1, 1, 0),
            span: (from, from + 1000 * MS),
            run_ns: 0,
            waits: vec![(coral_stopwatch::Wait::Lock, from + MS, from + 999 * MS)],
        };
        let own = [lock(1001, 100 * MS), lock(1002, 1200 * MS)];
        let asks = own.iter().map(|op| coral_stopwatch::Rpc {
            op: op.id,
            ..rpc_of(opc::LDLM_ENQUEUE, op.id, (op.span.0, op.span.0 + MS))
        });
        seen.dumps[0].rpcs.extend(asks.collect::<Vec<_>>());
        seen.dumps[0].ops.extend(own);
        let f = facts(&seen);
        assert_eq!((f.enqueues, &f.paths), (without.enqueues, &without.paths));
        assert_eq!(f.program_locks, (2, 2.0));
        let same = Facts {
            program_locks: (0, 0.0),
            ..f.clone()
        };
        assert_eq!(same, without);
        let text = super::super::explain(&f).to_string();
        let told = "left out: 2 operations, 2.00 s in all, in which programs waited";
        assert!(text.contains(told), "{text}");
        // one that is answered at once counts
        seen.dumps[0].ops.push(coral_stopwatch::Op {
            waits: vec![],
            ..lock(1003, 2000 * MS)
        });
        assert_eq!(facts(&seen).count(), without.count() + 1);
    }

    /// A client that is so far from all, and another that is near and reads little.
    #[test]
    fn each_client_has_its_own_way() {
        let op = |client: u64, id: u64, took: i64, way: i64, at: i64| {
            let target = if id.is_multiple_of(2) {
                "fs-OST0000_UUID"
            } else {
                "fs-OST0001_UUID"
            };
            let rpc = coral_stopwatch::Rpc {
                op: id,
                peer: 10 + id % 2,
                target: target.into(),
                bulk_bytes: 4096,
                ..rpc_of(opc::OST_READ, 1000 * client + id, (at, at + took))
            };
            let op = coral_stopwatch::Op {
                id,
                op: "READ".into(),
                fid: (client, 1, 0),
                span: rpc.span,
                run_ns: 0,
                waits: vec![],
            };
            let served = coral_stopwatch::Served {
                client,
                xid: rpc.xid,
                opc: opc::OST_READ,
                service: "ost_io".into(),
                arrived: at + way / 2,
                begun: at + way / 2,
                replying: at + took - way / 2,
                replied: at + took - way / 2,
                run_ns: (took - way) as u64,
                waits: vec![],
            };
            (op, rpc, served)
        };
        // of each operation to each server, its time and the part of that which is the way
        let seen = |far: [i64; 2], near: i64| {
            let mut seen = Seen::default();
            let node = |nid: u64| Dump {
                clock: "one".into(),
                nids: vec![nid],
                names: vec![format!("{nid}@tcp")],
                ..Dump::default()
            };
            let mut servers = [node(10), node(11)];
            for (client, count) in [(1, 100), (2, near)] {
                let mut own = node(client);
                let mut at = 0;
                for id in 1..=count as u64 {
                    let way = if client == 1 {
                        far[(id % 2) as usize]
                    } else {
                        MS / 20
                    };
                    let (op, rpc, served) = op(client, id, way + MS / 2, way, at);
                    at += way + MS;
                    servers[(id % 2) as usize].served.push(served);
                    own.ops.push(op);
                    own.rpcs.push(rpc);
                }
                seen.dumps.push(own);
            }
            seen.dumps.extend(servers);
            seen
        };
        let causes = |far, near| {
            let seen = seen(far, near);
            let joined = seen.joined();
            let f = seen.facts(&joined);
            let v = super::super::explain(&f);
            assert_eq!(v.unknown, None, "{v}");
            let accused = super::super::accused(&seen, &joined, &f, &v);
            assert_eq!(accused.as_deref(), Some("1@tcp"), "{v}");
            let all = v.causes.iter().map(|c| (c.kind, c.subject.clone()));
            let figures: Vec<_> = v.causes.iter().map(|c| c.figure.as_str()).collect();
            (all.collect::<Vec<_>>(), figures.join("\n"))
        };
        let programs = vec![(CauseKind::FixedConcurrency, "the programs".to_owned())];
        let far = [20 * MS; 2];
        assert_eq!(causes(far, 0).0, programs);
        for near in [9, 1000] {
            let (named, figure) = causes(far, near);
            assert_eq!(named, programs, "{near}: {figure}");
            let told = ", 20.50 ms each, 20.00 ms of it on the way; an RPC is there and back 20.00 ms, and as long again for the bulk data that 100% of them have; that is 1@tcp, and others are near";
            assert!(figure.ends_with(told), "{figure}");
        }
        // far from one server only
        let link = vec![(CauseKind::SlowLink, "fs-OST0001".to_owned())];
        for near in [0, 9, 1000] {
            assert_eq!(causes([MS / 20, 20 * MS], near).0, link, "{near}");
        }
        let (named, figure) = causes([4 * MS, 40 * MS], 9);
        assert!(named.contains(&link[0]), "{named:?}");
        assert!(
            figure.contains(
                "40.00 ms at least there and back; the nearest server 4.00 ms; from 1@tcp"
            ),
            "{figure}"
        );
    }

    /// A client whose records of RPCs reach back half a second, beside one that did little for three: no rate is of the time of which
    /// the busy one cannot tell.
    #[test]
    fn what_a_client_has_forgotten_is_not_counted_as_idle() {
        let mut seen = two(3000 * MS, 3000 * MS);
        let mut quiet = seen.dumps[0].clone();
        quiet.names = vec!["quiet".into()];
        quiet.nids = vec![3];
        quiet.ops.retain(|o| o.id % 10 == 1);
        quiet.rpcs.retain(|r| r.op % 10 == 1);
        let busy = &mut seen.dumps[0];
        (busy.lost, busy.rpcs) = (250, busy.rpcs.split_off(250));
        busy.ops.retain(|o| o.id > 250);
        seen.dumps.push(quiet);
        let (recent, seconds, _) = seen.recent(3.0);
        assert!((0.49..0.51).contains(&seconds), "{seconds}");
        let of = |client: usize| recent.dumps[client].ops.len();
        assert_eq!((of(0), of(2)), (49, 4));
    }

    #[test]
    fn a_write_without_a_grant_is_known_by_what_its_own_ost_has_granted_its_own_client() {
        let mut seen = two(3000 * MS, 3000 * MS);
        let client = &mut seen.dumps[0];
        client.ops.iter_mut().for_each(|o| o.op = "WRITE".into());
        client.rpcs.iter_mut().for_each(|r| r.opc = opc::OST_WRITE);
        let granted = |client: &str, target: &str, bytes| Granted {
            client: client.to_owned(),
            target: target.to_owned(),
            bytes,
        };
        let without = |seen: &Seen, granted: Granted| {
            let mut seen = seen.clone();
            seen.granted = vec![granted];
            let f = seen.facts(&seen.joined());
            let causes = super::super::explain(&f).causes;
            let is_named = causes.iter().any(|c| c.kind == CauseKind::Grants);
            (f.grantless.0, is_named)
        };
        let few = granted("client", "fs-OST0000", 4096);
        assert_eq!(without(&seen, few), (300, true));
        for other in [
            granted("client", "fs-OST0000", 8 << 20),
            granted("another", "fs-OST0000", 0),
            granted("client", "fs-OST0001", 0),
        ] {
            assert_eq!(without(&seen, other), (0, false));
        }
        // data on an MDT, and what a synchronous write asks it for
        for r in &mut seen.dumps[0].rpcs {
            r.target = "fs-MDT0000_UUID".into();
        }
        let none = granted("client", "fs-MDT0000", 0);
        assert_eq!(without(&seen, none), (0, false));
    }

    #[test]
    fn grants_are_read_from_metrics() {
        let metrics = serde_json::json!([{ "name": "coral_osc_grant_bytes", "series": [
            { "labels": { "node": "1@lo", "target": "coral-OST0000" }, "value": 7 } ] }, { "name": "other" }]);
        let granted = Granted {
            client: "1@lo".to_owned(),
            target: "coral-OST0000".to_owned(),
            bytes: 7,
        };
        assert_eq!(Granted::of(&metrics), [granted]);
        assert!(Granted::of(&serde_json::json!({ "error": "x" })).is_empty());
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
        let of_s = |seen: &Seen, looked_s| seen.facts(&seen.joined()).of_s(looked_s);
        assert!((4.9..=5.0).contains(&of_s(&recent, seconds)));
        assert!((ago - 10.09).abs() < 1e-6, "{ago}");
        let (younger, seconds, _) = seen(&busy).recent(20.0);
        assert_eq!((count(&younger), seconds), (100, 20.0));
        let of = of_s(&younger, seconds);
        assert!((of - 9.91).abs() < 1e-6, "the load is younger: {of}");
        let f = younger.facts(&younger.joined());
        let rate = super::super::explain(&f).little.rate;
        assert!((rate * of - 100.0).abs() < 1e-6, "{rate} in a second");
        assert_eq!(Facts::default().of_s(20.0), 20.0);
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
