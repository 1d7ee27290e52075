//! What running processes give out, as it is kept in a file.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use coral_stopwatch::Dump;

use super::facts::{Facts, Host, RouterBuffers};
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

    #[test]
    fn waits_at_a_router_are_counted_once() {
        let passage = |arrived, admitted, passed| coral_stopwatch::Passage {
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
        };
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
