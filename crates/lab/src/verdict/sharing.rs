//! Directories and files in which several work at once: programs of one mount, which the kernel lets in one at a time, and clients,
//! which want each other's locks.

use std::collections::{BTreeMap, BTreeSet};

use coral_wire::opc;

use super::facts::{rtt, seconds};
use super::trial::LEAST_COUNT;
use crate::attribution::{Asks, Joined, JoinedOp, JoinedRpc, Segment};

/// What holds the kernel's lock of the directory, as FUSE names it.
const NAMES: [&str; 9] = [
    "CREATE", "MKNOD", "MKDIR", "SYMLINK", "LINK", "UNLINK", "RMDIR", "RENAME", "RENAME2",
];
/// Share of the time of operations on a directory in which two may be under way: when one is answered, the next begins before its
/// record is made.
const OVERLAPS: f64 = 0.05;

/// A directory in which a mount makes and removes names one at a time: the kernel lets no more through, however many programs wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OneDirectory {
    /// It.
    pub fid: (u64, u32, u32),
    /// NID of the client.
    pub client: String,
    /// The operation that has most of the time.
    pub op: String,
    /// Seconds of these operations, all together.
    pub seconds: f64,
}

/// A file whose lock several clients want.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contended {
    /// It.
    pub fid: (u64, u32, u32),
    /// Clients that waited.
    pub clients: u32,
    /// Seconds they waited.
    pub wait_s: f64,
    /// Times.
    pub waits: u64,
}

/// A file that several clients write, past their caches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shared {
    /// It.
    pub fid: (u64, u32, u32),
    /// Clients that wrote.
    pub writers: u32,
    /// Writes and reads that went to a server at once.
    pub at_once: u64,
    /// Seconds of these, and those that other operations waited for its lock.
    pub seconds: f64,
}

/// A client that servers have asked about its locks, for one thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Its NID.
    pub client: String,
    /// How often.
    pub times: u64,
    /// Least time there and back between it and a server, seconds; infinite: it is not known.
    pub rtt_s: f64,
}

/// Waits of operations for locks that others have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LockWaits {
    /// NIDs of the clients that waited, the one that waited longest first.
    pub clients: Vec<String>,
    /// Operations that waited.
    pub waits: u64,
    /// Their seconds.
    pub seconds: f64,
    /// The target at which most of these were.
    pub target: String,
    /// Its server was not asked, or not all whom servers have served.
    pub not_all_asked: bool,
}

/// A client, and a directory in which it works.
type ClientDir = (usize, (u64, u32, u32));

/// The directory with most of such operations' time, if they never went side by side.
pub(super) fn one_directory(j: &Joined, ops: &[&JoinedOp]) -> Option<OneDirectory> {
    let mut all: BTreeMap<ClientDir, Vec<&JoinedOp>> = BTreeMap::new();
    let named = ops.iter().filter(|o| o.op.fid.0 != 0);
    for o in named.filter(|o| NAMES.contains(&&*o.op.op)) {
        all.entry((o.client, o.op.fid)).or_default().push(o);
    }
    let took = |of: &[&JoinedOp]| of.iter().map(|o| o.ns()).sum::<i64>();
    let ((client, fid), mut of) = all.into_iter().max_by_key(|(_, of)| took(of))?;
    of.sort_by_key(|o| o.op.span.0);
    let overlap = of
        .windows(2)
        .map(|w| (w[0].op.span.1 - w[1].op.span.0).max(0));
    let is_one = overlap.sum::<i64>() as f64 <= OVERLAPS * took(&of) as f64;
    let mut kinds: BTreeMap<&str, i64> = BTreeMap::new();
    for o in &of {
        *kinds.entry(&o.op.op).or_default() += o.ns();
    }
    let most = kinds.into_iter().max_by_key(|(_, ns)| *ns)?;
    (is_one && of.len() as u64 >= LEAST_COUNT).then(|| OneDirectory {
        fid,
        client: j.names[client].clone(),
        op: most.0.to_owned(),
        seconds: seconds(took(&of)),
    })
}

/// Files whose locks operations waited for, the worst first.
pub(super) fn contended(ops: &[&JoinedOp]) -> Vec<Contended> {
    let mut all: BTreeMap<(u64, u32, u32), (Contended, BTreeSet<usize>)> = BTreeMap::new();
    for o in ops.iter().filter(|o| o.op.fid.0 != 0) {
        let waited = o.in_segment(Segment::LockWait);
        if waited > 0 {
            let (c, clients) = all.entry(o.op.fid).or_default();
            c.wait_s += seconds(waited);
            c.waits += 1;
            clients.insert(o.client);
        }
    }
    let mut all: Vec<Contended> = (all.into_iter())
        .map(|(fid, (c, clients))| Contended {
            fid,
            clients: clients.len() as u32,
            ..c
        })
        .collect();
    all.sort_by(|a, b| b.wait_s.total_cmp(&a.wait_s));
    all
}

/// Waits for locks, all together.
pub(super) fn lock_waits(j: &Joined, ops: &[&JoinedOp]) -> LockWaits {
    let (mut all, mut waited_ns) = (LockWaits::default(), 0);
    let (mut clients, mut targets) = (BTreeMap::new(), BTreeMap::new());
    for o in ops {
        let waited = o.in_segment(Segment::LockWait);
        if waited > 0 {
            all.waits += 1;
            waited_ns += waited;
            *clients.entry(o.client).or_default() += waited;
            *targets.entry(waited_at(j, o)).or_default() += waited;
        }
    }
    let names = |all: BTreeMap<usize, i64>| -> Vec<String> {
        let mut all: Vec<(usize, i64)> = all.into_iter().collect();
        all.sort_by_key(|(_, ns)| -ns);
        all.into_iter().map(|(n, _)| j.names[n].clone()).collect()
    };
    all.seconds = seconds(waited_ns);
    all.clients = names(clients);
    all.target = names(targets).into_iter().next().unwrap_or_default();
    all
}

/// Where an operation waited longest for a lock: at a target, or at its client, which a target had told to wait.
fn waited_at(j: &Joined, o: &JoinedOp) -> usize {
    let waits = o.parts.iter().filter(|p| p.segment == Segment::LockWait);
    let at = waits.max_by_key(|p| p.ns()).map_or(o.client, |p| p.at);
    let own = o.rpcs.iter().map(|i| &j.rpcs[*i]);
    let asked = own.filter(|r| r.rpc.opc == opc::LDLM_ENQUEUE);
    match asked.max_by_key(|r| r.rpc.span.1) {
        Some(last) if at == o.client => last.target,
        _ => at,
    }
}

/// Clients that were asked for that from `from` to `to`, the one that was asked most often first: also those that did nothing else then.
pub(super) fn asked(j: &Joined, asks: Asks, (from, to): (i64, i64)) -> Vec<Asked> {
    let mut times: BTreeMap<usize, u64> = BTreeMap::new();
    for c in j.callbacks.iter().filter(|c| c.asks == asks) {
        if (from..to).contains(&c.at) {
            *times.entry(c.client).or_default() += 1;
        }
    }
    let inside = |r: &JoinedRpc| r.rpc.span.0 < to && r.rpc.span.1 > from;
    let one = |(client, times): (usize, u64)| {
        let own = j.rpcs.iter().filter(|r| r.client == client && r.is_served);
        let own = own.filter(|r| inside(r));
        Asked {
            client: j.names[client].clone(),
            times,
            rtt_s: own.map(rtt).fold(f64::INFINITY, f64::min),
        }
    };
    let mut all: Vec<Asked> = times.into_iter().map(one).collect();
    all.sort_by_key(|a| std::cmp::Reverse(a.times));
    all
}

/// Files that more than one client wrote with an RPC within the operation, the worst first.
pub(super) fn shared(j: &Joined, ops: &[&JoinedOp]) -> Vec<Shared> {
    let mut all: BTreeMap<(u64, u32, u32), (Shared, BTreeSet<usize>)> = BTreeMap::new();
    for o in ops.iter().filter(|o| o.op.fid.0 != 0) {
        let own = o.rpcs.iter().map(|i| &j.rpcs[*i].rpc);
        let sent: Vec<u32> = own.filter(|r| r.op == o.op.id).map(|r| r.opc).collect();
        let is_at_once = |o: &u32| [opc::OST_WRITE, opc::OST_READ].contains(o);
        let waited = o.in_segment(Segment::LockWait);
        if !sent.iter().any(is_at_once) {
            if waited > 0 {
                all.entry(o.op.fid).or_default().0.seconds += seconds(waited);
            }
        } else {
            let (s, writers) = all.entry(o.op.fid).or_default();
            s.at_once += 1;
            s.seconds += seconds(o.ns());
            if sent.contains(&opc::OST_WRITE) {
                writers.insert(o.client);
            }
        }
    }
    let mut all: Vec<Shared> = (all.into_iter())
        .filter(|(_, (_, writers))| writers.len() > 1)
        .map(|(fid, (s, writers))| Shared {
            fid,
            writers: writers.len() as u32,
            ..s
        })
        .collect();
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    all
}

#[cfg(test)]
mod tests {
    use super::super::facts::Facts;
    use super::*;
    use crate::attribution::{Callback, Part, rpc_of};

    /// Operations of a name in a directory, each with its beginning and end.
    fn in_directory(names: &[&str], spans: impl Iterator<Item = (i64, i64)>) -> Joined {
        let op = |(id, span): (usize, (i64, i64))| JoinedOp {
            op: coral_stopwatch::Op {
                id: id as u64,
                op: names[id % names.len()].to_owned().into(),
                fid: (5, 6, 0),
                span,
                run_ns: 0,
                waits: vec![],
            },
            client: 0,
            parts: vec![],
            rpcs: vec![],
        };
        Joined {
            names: vec!["c@tcp".into()],
            ops: spans.enumerate().map(op).collect(),
            ..Joined::default()
        }
    }

    #[test]
    fn names_that_are_made_one_at_a_time_are_known() {
        let of = |names: &[&str], every: i64| {
            let spans = (0..20).map(|i| (every * i, every * i + 9_000_000));
            Facts::of(&in_directory(names, spans)).one_directory
        };
        let one = of(&["CREATE", "UNLINK"], 10_000_000).unwrap();
        assert_eq!((one.fid, one.client.as_str()), ((5, 6, 0), "c@tcp"));
        assert!((one.seconds - 0.18).abs() < 1e-9, "{one:?}");
        assert!(of(&["CREATE"], 8_800_000).is_some(), "it is recorded late");
        assert_eq!(of(&["CREATE"], 4_000_000), None, "two at a time");
        assert_eq!(of(&["READ"], 10_000_000), None);
        assert_eq!(of(&["CREATE", "READ", "READ"], 10_000_000), None);
    }

    /// A client is told by an OST to wait for a lock, and waits at an MDT for another one; a client that does nothing had them.
    #[test]
    fn who_waits_for_locks_and_who_had_them_is_known() {
        let mut j = in_directory(&["UNLINK"], (0..2).map(|i| (100 * i, 100 * i + 50)));
        j.names = ["near@tcp", "far@tcp", "fs-OST0001", "fs-MDT0000"]
            .map(String::from)
            .to_vec();
        let part = |from, to, at| Part {
            segment: Segment::LockWait,
            from,
            to,
            at,
        };
        let rpc = |client, target, opc, span: (i64, i64)| JoinedRpc {
            rpc: rpc_of(opc, 1, span),
            is_served: true,
            service: String::new(),
            target,
            client,
            reply_late_ns: 0,
            parts: vec![Part {
                segment: Segment::Network,
                ..part(span.0, span.1, target)
            }],
        };
        j.rpcs = vec![
            rpc(0, 2, opc::LDLM_ENQUEUE, (0, 10)),
            rpc(1, 3, opc::LDLM_CANCEL, (20, 35)),
            // before all operations
            rpc(1, 3, opc::OST_CONNECT, (-9, -8)),
        ];
        (j.ops[0].parts, j.ops[0].rpcs) = (vec![part(10, 45, 0)], vec![0]);
        j.ops[1].parts = vec![part(100, 110, 3)];
        // what is asked before and after is of no operation here
        let callback = |asks, at| Callback {
            client: 1,
            at,
            asks,
        };
        j.callbacks = [-5, 20, 30, 150]
            .map(|at| callback(Asks::Lock, at))
            .to_vec();
        j.callbacks.push(callback(Asks::Size, 25));
        let f = Facts::of(&j);
        let waits = LockWaits {
            clients: vec!["near@tcp".into()],
            waits: 2,
            seconds: 45e-9,
            target: "fs-OST0001".into(),
            not_all_asked: false,
        };
        assert_eq!(f.lock_waits, waits);
        let times = |times| Asked {
            client: "far@tcp".into(),
            times,
            rtt_s: 15e-9,
        };
        assert_eq!(f.gave_back, [times(2)]);
        assert_eq!(f.told_sizes, [times(1)]);
        assert_eq!(f.callbacks, (0, 0), "it does nothing else");
    }

    /// Two clients write a file past their caches, for 10 ns each, and one of them waits 30 ns of 40 for its lock beside that.
    #[test]
    fn waits_for_the_lock_of_a_shared_file_are_part_of_its_time() {
        let op = |client: usize, id: u64, ns: i64, waited: i64, rpcs| JoinedOp {
            op: coral_stopwatch::Op {
                id,
                op: "WRITE".into(),
                fid: (1, 1, 0),
                span: (0, ns),
                run_ns: 0,
                waits: vec![],
            },
            client,
            parts: vec![Part {
                segment: Segment::LockWait,
                from: 0,
                to: waited,
                at: 2,
            }],
            rpcs,
        };
        let write = |client, id| JoinedRpc {
            rpc: coral_stopwatch::Rpc {
                op: id,
                ..rpc_of(opc::OST_WRITE, id, (0, 10))
            },
            is_served: true,
            service: String::new(),
            target: 2,
            client,
            reply_late_ns: 0,
            parts: vec![],
        };
        let j = Joined {
            names: ["a@tcp", "b@tcp", "fs-OST0000"].map(Into::into).to_vec(),
            ops: vec![
                op(0, 1, 10, 5, vec![0]),
                op(1, 2, 10, 0, vec![1]),
                op(0, 3, 40, 30, vec![]),
            ],
            rpcs: vec![write(0, 1), write(1, 2)],
            ..Joined::default()
        };
        let known = Shared {
            fid: (1, 1, 0),
            writers: 2,
            at_once: 2,
            seconds: 50e-9,
        };
        assert_eq!(shared(&j, &j.ops.iter().collect::<Vec<_>>()), [known]);
    }
}
