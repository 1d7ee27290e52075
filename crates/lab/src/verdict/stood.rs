//! Servers that stood still for a time and then went on: what they were asked meanwhile was answered when they did, and nothing had to be
//! sent again. A few such requests make the mean of all late, which is no slow way.

use std::collections::{BTreeMap, BTreeSet};

use super::clients::ENOUGH_OF_PATH;
use super::facts::{Facts, SMALL_BYTES, bytes, seconds};
use super::resends::SILENT_NS;
use super::rules::{Cause, CauseKind, SHARE_LEAST, ms};
use crate::attribution::{Joined, JoinedRpc, Part, Segment};

/// Other requests take less than such a part of the time without an answer.
const OTHERS_PART: i64 = 10;
/// Most of what waited is answered within such a part of that time after the first of it.
const ENDS_WITHIN: i64 = 4;
/// A request waited all the time where it did not for at most such a part of it.
const NOT_ALL: i64 = 10;

/// Where a request is that a server has not looked at yet.
const UNREAD: [Segment; 5] = [
    Segment::Send,
    Segment::Network,
    Segment::Remote,
    Segment::Router,
    Segment::RouterQueue,
];

/// A time in which a server answered nobody, and after which it answered what it had been asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standstill {
    /// NID of the server.
    pub peer: u64,
    /// Targets of it that were asked something.
    pub targets: Vec<String>,
    /// Requests that waited.
    pub requests: u64,
    /// From the first of them to the first answer, nanoseconds on the clock of the records.
    pub span: (i64, i64),
    /// Nanoseconds from its end to that of the last operation.
    pub ended_before_ns: i64,
    /// Seconds of operations within it that waited for these requests.
    pub waited_s: f64,
    /// What the other requests to the server take: half of them no more.
    pub usual_s: f64,
}

impl Standstill {
    /// Whether a request waited for its end.
    pub(super) fn holds(&self, r: &JoinedRpc) -> bool {
        r.rpc.peer == self.peer && r.rpc.span.0 < self.span.1 && r.rpc.reply >= self.span.1
    }

    /// Nanoseconds of a part of an operation that are a wait for its end.
    pub(super) fn of_part(&self, j: &Joined, p: &Part) -> i64 {
        let within = p.to.min(self.span.1) - p.from.max(self.span.0);
        let is_of_it = UNREAD.contains(&p.segment) && self.targets.contains(&j.names[p.at]);
        if is_of_it { within.max(0) } else { 0 }
    }
}

/// Nanoseconds of a part of an operation that are a wait for a server which stood still.
pub(super) fn still_ns(all: &[Standstill], j: &Joined, p: &Part) -> i64 {
    all.iter().map(|s| s.of_part(j, p)).sum()
}

/// All of them, of requests that count, in the window `from` to `to`.
pub(super) fn standstills(
    j: &Joined,
    (from, to): (i64, i64),
    counts: impl Fn(&JoinedRpc) -> bool,
) -> Vec<Standstill> {
    let mut by_peer: BTreeMap<u64, Vec<&JoinedRpc>> = BTreeMap::new();
    // One that is not answered has no xid here.
    let is_answered = |r: &&JoinedRpc| r.rpc.xid != 0 && r.rpc.peer != 0 && counts(r);
    let inside = |r: &&JoinedRpc| r.rpc.reply > from && r.rpc.span.0 < to;
    for r in j.rpcs.iter().filter(is_answered).filter(inside) {
        by_peer.entry(r.rpc.peer).or_default().push(r);
    }
    let mut all = vec![];
    for (peer, mut rpcs) in by_peer {
        rpcs.sort_by_key(|r| r.rpc.reply);
        let answers = std::iter::once(from).chain(rpcs.iter().map(|r| r.rpc.reply));
        let answers: Vec<i64> = answers.collect();
        let silent = answers.windows(2).filter(|w| w[1] - w[0] >= SILENT_NS);
        all.extend(silent.filter_map(|w| standstill(j, peer, &rpcs, (w[0], w[1]))));
    }
    for s in &mut all {
        s.ended_before_ns = to - s.span.1;
        let parts = j.ops.iter().flat_map(|o| &o.parts);
        s.waited_s = seconds(parts.map(|p| s.of_part(j, p)).sum());
    }
    all
}

/// Whether a server stood still between two answers one after the other, of all requests to it.
fn standstill(
    j: &Joined,
    peer: u64,
    rpcs: &[&JoinedRpc],
    (before, to): (i64, i64),
) -> Option<Standstill> {
    let (waited, others): (Vec<&JoinedRpc>, Vec<&JoinedRpc>) =
        (rpcs.iter()).partition(|r| r.rpc.span.0 < to && r.rpc.reply >= to);
    let begun = waited.iter().map(|r| r.rpc.span.0).min()?;
    let span = (begun.max(before), to);
    let long = to - span.0;
    // Whatever was sent again is told otherwise.
    if long < SILENT_NS || waited.iter().any(|r| r.rpc.attempts > 1) {
        return None;
    }
    let late = waited
        .iter()
        .filter(|r| r.rpc.reply - to > long / ENDS_WITHIN);
    let unread = waited.iter().filter(|r| was_unread(r, span)).count();
    // A single one, of which only its client tells, may have waited for a lock or for a disk.
    let is_told = waited.iter().any(|r| r.is_served && was_unread(r, span)) || unread > 1;
    let mut usual: Vec<i64> = others.iter().map(|r| r.rpc.reply - r.rpc.sending).collect();
    usual.sort_unstable();
    let middle = usual.get(usual.len() / 2).copied();
    let middle = middle.filter(|_| usual.len() as u64 >= ENOUGH_OF_PATH)?;
    let is_one = 2 * late.count() < waited.len() && is_told && middle < long / OTHERS_PART;
    let targets: BTreeSet<&String> = waited.iter().map(|r| &j.names[r.target]).collect();
    is_one.then(|| Standstill {
        peer,
        targets: targets.into_iter().cloned().collect(),
        requests: waited.len() as u64,
        span,
        usual_s: seconds(middle),
        ..Standstill::default()
    })
}

/// Whether a request waited for nearly all of the time for its server to look at it; large ones may have stood in a queue.
fn was_unread(r: &JoinedRpc, (from, to): (i64, i64)) -> bool {
    let is_unread = |p: &&Part| UNREAD.contains(&p.segment);
    let parts = r.parts.iter().skip_while(|p| !is_unread(p));
    let unread = parts.take_while(is_unread);
    let unread: i64 = unread
        .map(|p| (p.to.min(to) - p.from.max(from)).max(0))
        .sum();
    bytes(&r.rpc) <= SMALL_BYTES && unread >= (to - from) - (to - from) / NOT_ALL
}

/// Operations waited for servers that stood still.
pub(super) fn stood_still(f: &Facts) -> Option<Cause> {
    let share = f.standstills.iter().map(|s| s.waited_s).sum::<f64>() / f.op_s().max(1e-12);
    let long_s = |s: &Standstill| seconds(s.span.1 - s.span.0);
    let longest = (f.standstills.iter()).max_by(|a, b| long_s(a).total_cmp(&long_s(b)))?;
    let all: BTreeSet<&str> = (f.standstills.iter())
        .flat_map(|s| s.targets.iter().map(String::as_str))
        .collect();
    let names = all.into_iter().collect::<Vec<_>>().join(", ");
    let (request, were) = match longest.requests {
        1 => ("request", "was"),
        _ => ("requests", "were"),
    };
    let times = match f.standstills.len() {
        1 => String::new(),
        n => format!("; that is the longest of {n} such times"),
    };
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::NoAnswer,
        subject: names.clone(),
        fid: None,
        share: share.min(1.0),
        figure: format!(
            "no request had an answer for {}, until {} before the last operation ended; then the {} {request} that waited {were} answered, where others take {}{times}",
            ms(long_s(longest)),
            ms(seconds(longest.ended_before_ns)),
            longest.requests,
            ms(longest.usual_s)
        ),
        ceiling: None,
        change: format!(
            "see what the server of {names} did then, in its log and on its machine: a process that is stopped, or has no memory, answers nobody, and so does one whose network is cut"
        ),
    })
}

#[cfg(test)]
mod tests {
    use coral_stopwatch::{Dump, Op, Rpc, Served};
    use coral_wire::opc;

    use super::super::seen::Seen;
    use super::super::{Verdict, explain};
    use super::*;
    use crate::attribution::rpc_of;

    const MS: i64 = 1_000_000;

    /// Two clients with a request of a millisecond to each of two targets in turn, for 4 s; the server of the second one does not look at
    /// what it is asked in the third second, so that the clients wait, and the answers come at once when it does.
    fn stopped(asks_server: bool, own_ms: i64) -> Verdict {
        let at = |n: i64| if n < 2_000 { n } else { n + own_ms };
        let request = |client: u64, n: i64| {
            let to = if n == 1_999 { at(2_000) } else { at(n) + 1 };
            let op = Op {
                id: n as u64 + 1,
                op: "WRITE".into(),
                fid: (1, 1, 0),
                span: (at(n) * MS, to * MS),
                run_ns: 0,
                waits: vec![],
            };
            let second = n % 2 == 1;
            let rpc = Rpc {
                op: op.id,
                peer: if second { 8 } else { 7 },
                target: if second { "fs-OST0001" } else { "fs-OST0000" }.into(),
                sent: op.span.0 + MS / 8,
                ..rpc_of(opc::OST_PUNCH, client * 100_000 + n as u64, op.span)
            };
            (op, rpc)
        };
        let client = |nid: u64| {
            let (ops, rpcs) = (0..4_000).map(|n| request(nid, n)).unzip();
            Dump {
                clock: "c".into(),
                nids: vec![nid],
                names: vec![format!("c{nid}@tcp")],
                now: 9_000 * MS,
                ops,
                rpcs,
                ..Dump::default()
            }
        };
        let served = |client: u64, r: &Rpc| Served {
            client,
            xid: r.xid,
            opc: r.opc,
            service: "ost".into(),
            arrived: r.reply - MS / 2,
            begun: r.reply - MS / 2,
            replying: r.reply - MS / 4,
            replied: r.reply - MS / 4,
            run_ns: 1,
            waits: vec![],
        };
        let clients = [client(1), client(2)];
        let server = |nid: u64| Dump {
            clock: "c".into(),
            nids: vec![nid],
            names: vec![format!("s{nid}@tcp")],
            now: 9_000 * MS,
            served: (clients.iter())
                .flat_map(|d| d.rpcs.iter().map(|r| (d.nids[0], r)))
                .filter(|(_, r)| r.peer == nid)
                .map(|(client, r)| served(client, r))
                .collect(),
            ..Dump::default()
        };
        let servers = [server(7), server(8)];
        let mut dumps = clients.to_vec();
        dumps.extend(servers.into_iter().filter(|_| asks_server));
        let seen = Seen {
            dumps,
            ..Seen::default()
        };
        explain(&seen.facts(&seen.joined()))
    }

    #[test]
    fn a_server_that_stood_still_and_went_on_has_no_slow_link() {
        for asks_server in [true, false] {
            let v = stopped(asks_server, 3_000);
            let c = &v.causes[0];
            let named = (c.kind, c.subject.as_str(), v.causes.len());
            assert_eq!(named, (CauseKind::NoAnswer, "fs-OST0001", 1), "{v}");
            assert!((0.38..0.46).contains(&c.share), "{v}");
            let told = "no request had an answer for 3.00 s, until 2.00 s before the last operation ended; then the 2 requests that waited were answered, where others take 1.00 ms";
            assert_eq!(c.figure, told);
        }
        // Too short for a standstill, and of one moment.
        let v = stopped(true, 900);
        assert!(
            v.causes.iter().all(|c| c.kind != CauseKind::SlowLink),
            "{v}"
        );
    }
}
