//! Requests that nothing answered, so that they were sent again: causes that are a target which answered nobody for a time, as one
//! whose process stood still, and messages that were lost.

use std::collections::BTreeMap;

use coral_stopwatch::Wait;

use super::facts::{Facts, Path, seconds};
use super::rules::{Cause, CauseKind, SHARE_LEAST, TIMES_PEERS, ms};
use crate::attribution::{Joined, JoinedRpc, Segment};

/// A time in which a target answers nobody is told from here on, nanoseconds: a message may take long, and the next one too.
pub(super) const SILENT_NS: i64 = 1_000_000_000;
/// What a server did so soon after its last answer, or so late before the next sending, tells nothing, nanoseconds.
const HEARD_NS: i64 = 50_000_000;
/// A connection to a server that answers is there in less, nanoseconds, unless it is very far.
const CONNECTING_NS: i64 = 200_000_000;

/// A target that answered nobody for a time, so that requests to it were sent again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Silence {
    /// The target.
    pub target: String,
    /// Requests that were sent again for that.
    pub requests: u64,
    /// Seconds of these from the first sending to the last, without waits for a connection, all together.
    pub resend_s: f64,
    /// The longest time without any answer, seconds.
    pub longest_s: f64,
}

/// Of the RPCs of clients that count, and of the window `from` to `to`. A server that served anybody while it answered nobody here, as its
/// own records tell, did not stand still: messages were lost.
pub(super) fn silences(
    j: &Joined,
    (from, to): (i64, i64),
    counts: impl Fn(&JoinedRpc) -> bool,
) -> Vec<Silence> {
    let again = |r: &&JoinedRpc| r.rpc.attempts > 1 && counts(r) && r.rpc.span.1 > from;
    let mut all: BTreeMap<usize, Silence> = BTreeMap::new();
    for r in j.rpcs.iter().filter(again).filter(|r| r.rpc.span.0 < to) {
        if let Some((from, to)) = quiet(j, r).filter(|(from, _)| !is_heard_of(j, r, *from)) {
            let s = all.entry(r.target).or_default();
            s.target.clone_from(&j.names[r.target]);
            s.requests += 1;
            s.resend_s += seconds(resend_parts(r).map(|p| p.ns()).sum());
            s.longest_s = s.longest_s.max(seconds(to - from));
        }
    }
    all.into_values().collect()
}

/// Whether its server served anybody from a moment on until its answer was given up.
fn is_heard_of(j: &Joined, r: &JoinedRpc, from: i64) -> bool {
    let waits = r
        .rpc
        .waits
        .iter()
        .filter(|w| w.0 == Wait::Connection && w.1 > from);
    let given_up = waits.map(|w| w.1).min().unwrap_or(r.rpc.sending);
    let mut served = j
        .meanwhile
        .iter()
        .filter(|m| (m.client, m.peer) == (r.client, r.rpc.peer));
    served.any(|m| m.span.0 > from + HEARD_NS && m.span.1 < given_up - HEARD_NS)
}

fn resend_parts(r: &JoinedRpc) -> impl Iterator<Item = &crate::attribution::Part> {
    r.parts.iter().filter(|p| p.segment == Segment::Resend)
}

/// How long its target answered nobody between its first sending and its last. None: it answered others, or nothing tells that it did not:
/// when the answer was given up there was a connection at once. A server that goes on answers what it was sent, so that this was lost.
fn quiet(j: &Joined, r: &JoinedRpc) -> Option<(i64, i64)> {
    let (first, last) = (resend_parts(r).map(|p| p.from).min()?, r.rpc.sending);
    if last - first < SILENT_NS {
        return None;
    }
    let same = |o: &&JoinedRpc| o.target == r.target && !std::ptr::eq(*o, r);
    let answers = j.rpcs.iter().filter(same).map(|o| o.rpc.reply);
    let mut at: Vec<i64> = answers.filter(|at| (first..last).contains(at)).collect();
    at.extend([first, last]);
    at.sort_unstable();
    let longest = at.windows(2).max_by_key(|w| w[1] - w[0])?;
    let (from, to) = (longest[0], longest[1]);
    let within = |a: i64, b: i64| (b.min(to) - a.max(from)).max(0);
    // Also for other targets of its server.
    let is_peer = |o: &&JoinedRpc| std::ptr::eq(*o, r) || o.rpc.peer == r.rpc.peer;
    let connecting = |o: &JoinedRpc| {
        let waits = o.rpc.waits.iter();
        let waits = waits.filter(|w| w.0 == Wait::Connection);
        waits.map(|w| within(w.1, w.2)).sum::<i64>()
    };
    let is_silent = to - from >= SILENT_NS.max((last - first) / 2);
    let mut peers = j.rpcs.iter().filter(is_peer);
    let is_away = is_silent && peers.any(|o| connecting(o) >= CONNECTING_NS);
    is_away.then_some((from, to))
}

/// Of the seconds from the first sending to the last of requests to a target, the part in which it answered nobody, 0 to 1.
fn silent_part(f: &Facts, target: &str) -> f64 {
    let of = |p: &&Path| p.target == target;
    let all_s = f.paths.iter().find(of).map_or(0.0, resend_s);
    let silent = f.silences.iter().find(|s| s.target == target);
    silent.map_or(0.0, |s| (s.resend_s / all_s.max(1e-12)).min(1.0))
}

fn resend_s(p: &Path) -> f64 {
    p.seconds.get(&Segment::Resend).copied().unwrap_or(0.0)
}

/// Targets answered nobody: their requests were sent again, and waited for a connection to their servers.
pub(super) fn no_answer(f: &Facts) -> Option<Cause> {
    let path = |target: &str| f.paths.iter().find(|p| p.target == target);
    let resent =
        |s: &Silence| f.share(Segment::Resend, Some(&s.target)) * silent_part(f, &s.target);
    let is_peer = |p: &Path| {
        let mut silent = f.silences.iter().filter_map(|s| path(&s.target));
        silent.any(|s| s.target == p.target || (s.peer == p.peer && !p.peer.is_empty()))
    };
    let waited = f.paths.iter().filter(|p| is_peer(p));
    let waited = waited.map(|p| f.share(Segment::Connection, Some(&p.target)));
    let share = waited.sum::<f64>() + f.silences.iter().map(resent).sum::<f64>();
    let names: Vec<&str> = f.silences.iter().map(|s| s.target.as_str()).collect();
    let requests: u64 = f.silences.iter().map(|s| s.requests).sum();
    let rpcs: u64 = (names.iter().filter_map(|t| path(t))).map(|p| p.rpcs).sum();
    let longest_s = f.silences.iter().map(|s| s.longest_s).fold(0.0, f64::max);
    let were = if requests == 1 { "was" } else { "were" };
    (share >= SHARE_LEAST && requests > 0).then(|| Cause {
        kind: CauseKind::NoAnswer,
        subject: names.join(", "),
        fid: None,
        share: share.min(1.0),
        figure: format!(
            "no request had an answer for {}, and {requests} of {rpcs} {were} sent again after that; waits for a connection have {:.1}% of the time",
            ms(longest_s),
            100.0 * f.share(Segment::Connection, None)
        ),
        ceiling: None,
        change: format!(
            "see what the server of {} did then, in its log and on its machine: a process that is stopped, or has no memory, answers nobody, and so does one whose network is cut",
            names.join(", ")
        ),
    })
}

/// Operations wait for requests to be sent again, while others are answered.
pub(super) fn resends(f: &Facts) -> Option<Cause> {
    let lost = |p: &Path| 1.0 - silent_part(f, &p.target);
    let share: f64 = (f.paths.iter())
        .map(|p| f.share(Segment::Resend, Some(&p.target)) * lost(p))
        .sum();
    let resent = |p: &Path| {
        let silent = f.silences.iter().filter(|s| s.target == p.target);
        p.resent - silent.map(|s| s.requests).sum::<u64>().min(p.resent)
    };
    let waited = |p: &Path| resend_s(p) * lost(p);
    let most = f.paths.iter().map(waited).fold(0.0, f64::max);
    let alike = |p: &&Path| resent(p) > 0 && waited(p) >= most / TIMES_PEERS;
    let mut all: Vec<&Path> = f.paths.iter().filter(alike).collect();
    all.sort_by(|a, b| a.target.cmp(&b.target));
    let names: Vec<&str> = all.iter().map(|p| p.target.as_str()).collect();
    let (again, rpcs) = (
        all.iter().map(|p| resent(p)).sum::<u64>(),
        all.iter().map(|p| p.rpcs).sum::<u64>(),
    );
    let seconds: f64 = all.iter().map(|p| waited(p)).sum();
    (share >= SHARE_LEAST && again > 0).then(|| Cause {
        kind: CauseKind::Resends,
        subject: names.join(", "),
        fid: None,
        share: share.min(1.0),
        figure: format!(
            "{again} of {rpcs} requests were sent more than once, {} later each: a message or its answer was lost, or the server had asked to be asked again",
            ms(seconds / again as f64)
        ),
        ceiling: None,
        change: "see where messages are lost: `lnetctl stats show` at both ends counts what was dropped, `lctl net_drop_list` tells of rules that drop them, `lctl ping NID` tries the way".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use coral_stopwatch::{Dump, Op, Rpc, Served};
    use coral_wire::opc;

    use super::super::facts::OpKind;
    use super::super::rules::causes;
    use super::super::seen::Seen;
    use super::*;
    use crate::attribution::rpc_of;

    /// Two of a hundred requests wait so long before they are sent again.
    fn lost(each_s: f64) -> Facts {
        let path = Path {
            target: "fs-MDT0000".into(),
            rpcs: 100,
            resent: 2,
            rtt_s: 0.000_1,
            seconds: [(Segment::Resend, 2.0 * each_s)].into(),
            ..Path::default()
        };
        Facts {
            window_s: 1.0,
            under_way: 1.0,
            ops: vec![OpKind {
                op: "MKNOD".into(),
                count: 100,
                seconds: 1.0 + 2.0 * each_s,
            }],
            seconds: [((Segment::Resend, path.target.clone()), 2.0 * each_s)].into(),
            paths: vec![path],
            ..Facts::default()
        }
    }

    #[test]
    fn requests_that_are_sent_again_are_named() {
        let all = causes(&lost(5.0));
        let c = all.iter().find(|c| c.kind == CauseKind::Resends).unwrap();
        assert_eq!(c.subject, "fs-MDT0000");
        let told = "2 of 100 requests were sent more than once, 5.00 s later each: ";
        assert!(c.figure.starts_with(told), "{c:?}");
        assert!(c.share > 0.9);
        let few = causes(&lost(0.01));
        assert!(few.iter().all(|c| c.kind != CauseKind::Resends), "{few:?}");
    }

    const MS: i64 = 1_000_000;

    /// Writes of 10 ms for 5 s. In the middle of them two are sent at once and once more 11 s later: the second of them so many
    /// milliseconds after the first. Another request is answered every `others_ms` meanwhile; before the last sending the second one
    /// waits for a connection for as long as is said.
    fn causes_of(two: bool, others_ms: Option<i64>, connection_ms: i64) -> Vec<CauseKind> {
        with_server(two, others_ms, connection_ms, None)
    }

    /// The same where the server was asked too, and served another client at that moment.
    fn with_server(
        two: bool,
        others_ms: Option<i64>,
        connection_ms: i64,
        served_ms: Option<i64>,
    ) -> Vec<CauseKind> {
        let one = |n: i64, from: i64, to: i64| {
            let op = Op {
                id: n as u64 + 1,
                op: "WRITE".into(),
                fid: (1, 1, 0),
                span: (from * MS, to * MS),
                run_ns: 0,
                waits: vec![],
            };
            let rpc = Rpc {
                op: op.id,
                ..rpc_of(opc::OST_WRITE, n as u64 + 1, op.span)
            };
            (op, rpc)
        };
        let again = |n: i64, from: i64| {
            let (op, mut rpc) = one(n, from, 14_010);
            (rpc.attempts, rpc.sending, rpc.sent) = (2, 14_000 * MS, 14_000 * MS);
            if connection_ms > 0 {
                let waited = (14_000 - connection_ms) * MS;
                rpc.waits = vec![(Wait::Connection, waited, 14_000 * MS)];
            }
            (op, rpc)
        };
        let mut all: Vec<(Op, Rpc)> = (0..300).map(|n| one(n, 10 * n, 10 * n + 10)).collect();
        all.extend((300..500).map(|n| one(n, 11_020 + 10 * n, 11_030 + 10 * n)));
        all.push(again(1000, 3_000));
        all.extend(two.then(|| again(1001, 3_001)));
        if let Some(every) = others_ms {
            let count = 11_000 / every;
            all.extend((0..count).map(|i| one(2000 + i, 3_002 + i * every, 3_003 + i * every)));
        }
        let (ops, rpcs) = all.into_iter().unzip();
        let client = Dump {
            clock: "c".into(),
            nids: vec![1],
            names: vec!["c@tcp".into()],
            now: 20_000 * MS,
            ops,
            rpcs,
            ..Dump::default()
        };
        let server = served_ms.map(|at| Dump {
            clock: "c".into(),
            nids: vec![2],
            names: vec!["s@tcp".into()],
            now: 20_000 * MS,
            served: vec![Served {
                client: 9,
                xid: 1,
                opc: opc::OBD_PING,
                service: "ost".into(),
                arrived: at * MS,
                begun: at * MS,
                replying: (at + 1) * MS,
                replied: (at + 1) * MS,
                run_ns: 1,
                waits: vec![],
            }],
            ..Dump::default()
        });
        let seen = Seen {
            dumps: [client].into_iter().chain(server).collect(),
            ..Seen::default()
        };
        let f = seen.facts(&seen.joined());
        let named = causes(&f).into_iter();
        let of = |c: &Cause| [CauseKind::NoAnswer, CauseKind::Resends].contains(&c.kind);
        let named: Vec<Cause> = named.filter(of).collect();
        for c in &named {
            assert_eq!(c.subject, "fs-OST0000", "{c:?}");
            assert!(c.share > 0.6, "{c:?}");
            if c.kind == CauseKind::NoAnswer {
                let told = "no request had an answer for 11.00 s, and ";
                assert!(c.figure.starts_with(told), "{c:?}");
            }
        }
        named.into_iter().map(|c| c.kind).collect()
    }

    #[test]
    fn a_target_that_answers_nobody_has_lost_no_messages() {
        use CauseKind::{NoAnswer, Resends};
        assert_eq!(causes_of(true, None, 6_000), [NoAnswer]);
        assert_eq!(causes_of(false, None, 6_000), [NoAnswer]);
        assert_eq!(causes_of(false, None, 330), [NoAnswer]);
        // There was a connection at once, or others are answered.
        assert_eq!(causes_of(true, None, 0), [Resends]);
        assert_eq!(causes_of(true, Some(100), 0), [Resends]);
        assert_eq!(causes_of(true, Some(100), 500), [Resends]);
        assert_eq!(causes_of(false, None, 0), [Resends]);
        assert_eq!(causes_of(false, None, 5), [Resends]);
    }

    /// What it serves when the answer was given up tells only that it goes on.
    #[test]
    fn a_server_that_served_others_meanwhile_did_not_stand_still() {
        use CauseKind::{NoAnswer, Resends};
        let of = |served_ms| with_server(true, None, 500, Some(served_ms));
        assert_eq!(of(5_000), [Resends]);
        assert_eq!(of(2_000), [NoAnswer]);
        assert_eq!(of(13_700), [NoAnswer]);
    }
}
