//! Whose operations the first cause is of: a trial that makes operations of its own makes them on the mount of that client.

use std::collections::BTreeMap;

use coral_stopwatch::{Begun, Dump};

use super::explain::Verdict;
use super::facts::{Facts, seconds};
use super::going::is_server;
use super::links::WAY;
use super::queue::waiting;
use super::rules::{Cause, CauseKind, FAR};
use super::seen::Seen;
use crate::attribution::{Joined, Segment};

/// NID of the client with most of the time of a verdict's first cause; without one, with most of the time. None: that cannot be told.
pub fn accused(seen: &Seen, j: &Joined, f: &Facts, v: &Verdict) -> Option<String> {
    let first = v.causes.first();
    // Who is near has time on the way too, which is no part of it.
    let far: Vec<&String> = match first {
        Some(c) if c.is_of_all_servers() => f.far_views().iter().flat_map(|v| v.nids).collect(),
        _ => vec![],
    };
    let mut of: BTreeMap<&str, f64> = BTreeMap::new();
    for o in &j.ops {
        let is_meant = |s: Segment, at: usize| match first {
            Some(c) => c.is_at(s, &j.names[at]),
            // How long a program keeps its lock is its own affair.
            None => s != Segment::LockWait,
        };
        let parts = o.parts.iter().filter(|p| is_meant(p.segment, p.at));
        let s: f64 = parts.map(|p| seconds(p.ns())).sum();
        *of.entry(j.names[o.client].as_str()).or_default() += s;
    }
    // What stands in a queue of which nobody has come out yet.
    for d in seen.dumps.iter().filter(|d| !is_server(d)) {
        if let (Some(c), Some(nid)) = (first, d.names.first()) {
            *of.entry(nid).or_default() += c.waited_s(d);
        }
    }
    let of = of.into_iter().filter(|(nid, s)| {
        let is_meant = far.is_empty() || far.iter().any(|f| f == nid);
        is_meant && *s > 0.0
    });
    let most = of.max_by(|a, b| a.1.total_cmp(&b.1));
    most.map(|(nid, _)| nid.to_owned())
}

impl Cause {
    /// It is of the way to all servers, or to all OSTs, and of no target.
    fn is_of_all_servers(&self) -> bool {
        self.kind == CauseKind::FixedConcurrency || self.subject == FAR
    }

    fn is_subject(&self, target: &str) -> bool {
        self.targets().any(|t| t == target)
    }

    /// Whether time in a segment, at a target, is of it.
    fn is_at(&self, s: Segment, target: &str) -> bool {
        if self.is_of_all_servers() {
            return s == Segment::ClientQueue || WAY.contains(&s);
        }
        self.is_subject(target)
            && match self.kind {
                CauseKind::SlowStorage => s == Segment::Storage,
                CauseKind::SlowLink => WAY.contains(&s),
                CauseKind::Window => s == Segment::ClientQueue,
                CauseKind::NoAnswer => {
                    let again = [Segment::Resend, Segment::Connection, Segment::Remote];
                    again.contains(&s) || WAY.contains(&s)
                }
                CauseKind::Resends => s == Segment::Resend,
                CauseKind::Credits => s == Segment::Credit,
                _ => true,
            }
    }

    /// Seconds that operations of a client, which have not ended, have waited for slots of its targets.
    fn waited_s(&self, d: &Dump) -> f64 {
        if self.kind != CauseKind::Window {
            return 0.0;
        }
        let age_s = |b: &Begun| seconds(d.now - b.begun).max(0.0);
        let own = waiting(d).filter(|(b, target)| {
            b.opc.is_none() && self.is_subject(target.trim_end_matches("_UUID"))
        });
        own.map(|(b, _)| age_s(b)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::explain::explain;
    use super::*;
    use crate::attribution::rpc_of;
    use coral_stopwatch::Op;
    use coral_wire::opc;

    const MS: i64 = 1_000_000;

    /// A client whose operations of 10 ms read from an OST each, for so many milliseconds.
    fn client(name: &str, nid: u64, count: i64, target: &'static str, took: i64) -> Dump {
        let one = |n: i64| {
            let rpc = coral_stopwatch::Rpc {
                op: n as u64 + 1,
                peer: 9,
                target: target.into(),
                ..rpc_of(
                    opc::OST_READ,
                    1000 * nid + n as u64,
                    (10 * n * MS, (10 * n + took) * MS),
                )
            };
            let op = Op {
                id: rpc.op,
                op: "READ".into(),
                fid: (nid, 1, 0),
                span: rpc.span,
                run_ns: 0,
                waits: vec![],
            };
            (op, rpc)
        };
        let (ops, rpcs) = (0..count).map(one).unzip();
        Dump {
            clock: name.to_owned(),
            nids: vec![nid],
            names: vec![name.to_owned()],
            now: 10 * count * MS,
            ops,
            rpcs,
            ..Dump::default()
        }
    }

    /// One has the time of the cause, another one more time of its own: in whichever order they are asked.
    #[test]
    fn the_client_with_most_of_the_time_of_the_cause_is_accused() {
        let far = client("far@tcp", 1, 50, "fs-OST0001_UUID", 8);
        let near = client("near@tcp", 2, 100, "fs-OST0000_UUID", 5);
        let idle = client("idle@tcp", 3, 0, "", 0);
        let of = |dumps: [&Dump; 3], subject: Option<&str>| {
            let seen = Seen {
                dumps: dumps.into_iter().cloned().collect(),
                ..Seen::default()
            };
            let joined = seen.joined();
            let facts = seen.facts(&joined);
            let cause = |subject: &str| Cause {
                kind: CauseKind::SlowLink,
                subject: subject.to_owned(),
                fid: None,
                share: 0.5,
                figure: String::new(),
                ceiling: None,
                change: String::new(),
            };
            let verdict = Verdict {
                causes: subject.into_iter().map(cause).collect(),
                ..explain(&facts)
            };
            accused(&seen, &joined, &facts, &verdict)
        };
        for dumps in [[&far, &near, &idle], [&idle, &near, &far]] {
            let at = |subject| of(dumps, subject);
            assert_eq!(at(Some("fs-OST0001")).as_deref(), Some("far@tcp"));
            assert_eq!(at(Some("fs-OST0000")).as_deref(), Some("near@tcp"));
            assert_eq!(at(None).as_deref(), Some("near@tcp"), "most of the time");
            assert_eq!(at(Some("fs-OST0007")), None, "it cannot be told");
        }
    }
}
