//! What was seen.

use std::collections::{BTreeMap, BTreeSet};

use coral_wire::opc;
use serde::{Deserialize, Serialize};

use super::clients::{Clients, ENOUGH_OF_PATH, clients};
use super::gathered::{Known, paths};
use super::going::{Going, PROGRAM_LOCK};
use super::links::Link;
use super::paging::Paging;
use super::queue::Queued;
use super::requests::Requests;
use super::resends::{Silence, silences};
use super::sharing::{
    Asked, Contended, LockWaits, OneDirectory, Shared, asked, contended, lock_waits, one_directory,
    shared,
};
use super::stood::{Standstill, standstills, still_ns};
use super::time::Earlier;
use crate::attribution::{Asks, Callback, Joined, JoinedOp, JoinedRpc, Part, Segment};

/// Moments at which it is counted how many operations are under way: with few of them, operations that come in bursts are missed
/// or met by chance.
const SAMPLES: i64 = 20_000;

/// Bytes of an RPC up to which its bytes do not matter on the way, only the distance does.
pub const SMALL_BYTES: u64 = 65_536;

/// RPCs that carry data of files.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Data {
    /// RPCs.
    pub rpcs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their seconds, from the slot to the reply.
    pub seconds: f64,
    /// Of these seconds, what is within the window.
    pub inside_s: f64,
    /// The same of those that had taken a place of `max_rpcs_in_flight`: what is under a lock of the client's own needs none.
    pub placed_s: f64,
}

impl Data {
    /// With others.
    pub fn with(self, o: Data) -> Data {
        Data {
            rpcs: self.rpcs + o.rpcs,
            bytes: self.bytes + o.bytes,
            seconds: self.seconds + o.seconds,
            inside_s: self.inside_s + o.inside_s,
            placed_s: self.placed_s + o.placed_s,
        }
    }

    /// Bytes of one, in the mean.
    pub fn mean_bytes(&self) -> f64 {
        self.bytes as f64 / self.rpcs.max(1) as f64
    }

    /// Seconds of one, in the mean.
    pub fn mean_s(&self) -> f64 {
        self.seconds / self.rpcs.max(1) as f64
    }
}

/// RPCs to one target, of all clients or of those that are told apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path {
    /// The target.
    pub target: String,
    /// NID of its server.
    pub peer: String,
    /// RPCs.
    pub rpcs: u64,
    /// Those of them that were sent more than once.
    pub resent: u64,
    /// Seconds from the slot to the reply, all RPCs together.
    pub service_s: f64,
    /// Those of them that had taken a place of the most that may be in flight, and their seconds from it to the reply.
    pub placed: (u64, f64),
    /// Seconds by segment, all RPCs together.
    pub seconds: BTreeMap<Segment, f64>,
    /// The RPC that was longest on the way and those that were under way with it: how many, and their seconds on it with their data.
    pub of_one_moment: (u64, f64),
    /// RPCs by opcode.
    pub kinds: BTreeMap<u32, Requests>,
    /// Seconds of operations by segment, where clients are told apart.
    pub op_seconds: BTreeMap<Segment, f64>,
    /// Least time on the way there and back, seconds; infinite where no server has said when it had a request and sent the reply.
    pub rtt_s: f64,
    /// Least time until request and reply were sent, seconds.
    pub send_s: f64,
    /// RPCs that waited for storage, and of which it is known what they had to store or to read.
    pub storage_rpcs: u64,
    /// Bytes that these had to store or to read.
    pub storage_bytes: u64,
    /// Syncs whose writes are not in the records, so that it is not known what they had to store; and the seconds they waited for it.
    pub unsized_syncs: (u64, f64),
    /// RPCs with data of files, in bulk or within the message.
    pub data: Data,
    /// Those of them with more than [`SMALL_BYTES`].
    pub large: Data,
    /// Of [`Data::inside_s`] what reads have.
    pub reading_s: f64,
    /// RPCs with bulk data.
    pub bulk_rpcs: u64,
    /// Of the seconds in [`Segment::Credit`] what the client waited; the rest the server did.
    pub own_credit_s: f64,
    /// Most RPCs a client may have in flight.
    pub in_flight_max: u32,
    /// The same of all clients together.
    pub places: u32,
    /// Mean of the places taken when an RPC had got one.
    pub in_flight: f64,
    /// Storage seconds of an RPC, mean over the first and over the second half of the time, without [`Path::unsized_syncs`].
    pub storage_halves_s: (f64, f64),
}

impl Path {
    /// Mean seconds that storage takes, of RPCs that wait for it and of which it is known with how much.
    pub fn storage_s(&self) -> f64 {
        self.storage_all_s() / self.storage_rpcs.max(1) as f64
    }

    /// The same of all these RPCs together.
    pub fn storage_all_s(&self) -> f64 {
        let all = self.seconds.get(&Segment::Storage).copied();
        (all.unwrap_or(0.0) - self.unsized_syncs.1).max(0.0)
    }

    /// Share of its storage seconds whose RPCs had to store or to read what is known, 0 to 1.
    pub fn sized_share(&self) -> f64 {
        let all = self.seconds.get(&Segment::Storage).copied();
        self.storage_all_s() / all.unwrap_or(0.0).max(1e-12)
    }

    /// Mean seconds of an RPC on the way, with its data.
    pub fn way_s(&self) -> f64 {
        self.held_s() + self.mean_s(Segment::Network) + self.mean_s(Segment::Bulk)
    }

    /// The same without those of the moment in which one took longest, where others tell enough: one moment tells of no way.
    pub fn usual_way_s(&self) -> f64 {
        let (count, seconds) = self.of_one_moment;
        let others = self.rpcs.saturating_sub(count);
        match others >= ENOUGH_OF_PATH {
            true => (self.way_s() * self.rpcs as f64 - seconds).max(0.0) / others as f64,
            false => self.way_s(),
        }
    }

    /// Mean seconds of an RPC from its place to the reply, of those that need one where some do.
    pub fn placed_s(&self) -> f64 {
        match self.placed {
            (0, _) => self.service_s / self.rpcs.max(1) as f64,
            (rpcs, seconds) => seconds / rpcs as f64,
        }
    }

    /// Mean seconds of an RPC in a segment.
    pub fn mean_s(&self, s: Segment) -> f64 {
        self.seconds.get(&s).copied().unwrap_or(0.0) / self.rpcs.max(1) as f64
    }

    /// Whether it is an OST.
    pub fn is_ost(&self) -> bool {
        is_ost(&self.target)
    }
}

/// Whether a target is an OST.
pub(super) fn is_ost(target: &str) -> bool {
    target.contains("-OST")
}

/// Operations of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpKind {
    /// Its name.
    pub op: String,
    /// How many.
    pub count: u64,
    /// Seconds of all together.
    pub seconds: f64,
}

/// A machine, as the collectors see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Share of the time that its busiest core was busy, 0 to 1.
    pub busiest_core: f64,
    /// The same of all its cores, in the mean.
    pub cores: f64,
    /// Number of cores.
    pub core_count: u32,
    /// Pages read from swap in a second.
    pub swap_in_per_s: f64,
    /// Seconds in a second that threads of Coral's processes waited for a processor.
    #[serde(default)]
    pub cpu_wait: f64,
    /// Cores that Coral and its load took.
    #[serde(default)]
    pub ours: f64,
    /// Cores that other programs took, as far as it is known.
    #[serde(default)]
    pub others: f64,
    /// The one that took most of them.
    #[serde(default)]
    pub other: Option<String>,
    /// Threads that waited at once in the kernel for the lock of a directory or a file, in the mean, of programs that use a mount;
    /// None: it could not be seen.
    #[serde(default)]
    pub lock_waiters: Option<f64>,
    /// Mounts on it that were watched, for waits for their pages.
    #[serde(default)]
    pub paging: Vec<Paging>,
}

/// Large buffers of a router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterBuffers {
    /// Its name.
    pub name: String,
    /// Buffers there are.
    pub buffers: u64,
    /// Fewest that were free.
    pub least_free: u64,
    /// Share of the time in which a message waited at it for a credit or a buffer, 0 to 1. What came behind that message on its
    /// connection waited unread.
    #[serde(default)]
    pub starved: f64,
}

/// What was seen of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Seconds from the first operation's beginning to the last one's end.
    pub window_s: f64,
    /// Operations by name.
    pub ops: Vec<OpKind>,
    /// Operations in a second that were answered at once, without an RPC or a wait, where it was counted.
    pub at_once_per_s: Option<f64>,
    /// Operations under way, counted at moments evenly spread over the window.
    pub under_way: f64,
    /// Seconds of operations by segment, and by target, router or client.
    pub seconds: BTreeMap<(Segment, String), f64>,
    /// The part of these that were waits for servers which stood still: it is no figure of the way or of the server.
    pub still: BTreeMap<(Segment, String), f64>,
    /// By target, without requests that waited for a server which stood still.
    pub paths: Vec<Path>,
    /// The same for each client; none where there is one only, or all have few RPCs.
    pub clients: Vec<Clients>,
    /// Operations that waited for a lock of programs, which nothing else counts, and their seconds.
    pub program_locks: (u64, f64),
    /// Seconds of operations at servers that were asked, and had forgotten their requests.
    pub forgotten_s: f64,
    /// Files whose locks were waited for, the worst first.
    pub contended: Vec<Contended>,
    /// Files that several clients write, past their caches, the worst first.
    pub shared: Vec<Shared>,
    /// The directory in which most of the time names are made or removed, by one mount and never two at a time.
    pub one_directory: Option<OneDirectory>,
    /// Only servers were asked, and they have served requests.
    pub only_servers: bool,
    /// Whether all that was asked is on one machine, clients and servers.
    pub is_one_machine: bool,
    /// Locks that clients were asked to give back, and clients that were.
    pub callbacks: (u64, u32),
    /// Who was asked for locks, also who has no operation here; the one that had most first.
    pub gave_back: Vec<Asked>,
    /// Who was asked for sizes of files that it writes; the one that was asked most often first.
    pub told_sizes: Vec<Asked>,
    /// Waits for locks that others have.
    pub lock_waits: LockWaits,
    /// Seconds of the RPCs that operations waited for, and those of them with more than [`SMALL_BYTES`] of data.
    pub waited: (f64, f64),
    /// LDLM_ENQUEUEs within operations, and their seconds.
    pub enqueues: (u64, f64),
    /// Machines.
    pub hosts: Vec<Host>,
    /// Routers.
    pub routers: Vec<RouterBuffers>,
    /// Ways over TCP.
    pub links: Vec<Link>,
    /// What had not ended.
    pub going: Option<Going>,
    /// Targets that answered nobody for a time, so that requests were sent again.
    pub silences: Vec<Silence>,
    /// Servers that answered nobody for a time, and went on.
    pub standstills: Vec<Standstill>,
    /// What waits for slots in a queue that moves.
    pub queued: Option<Queued>,
    /// Seconds since an operation ended, on whichever client; infinite: none has.
    pub quiet_s: f64,
    /// Operations of which only a part is in the window.
    pub earlier: Earlier,
    /// OSTs that the clients know.
    pub osts: usize,
    /// Seconds that were looked at, also those without an operation; 0: it is not known.
    pub asked_s: f64,
    /// Writes that had to be synchronous for want of a grant, and all writes.
    pub grantless: (u64, u64),
    /// Records had left the rings.
    pub lost: u64,
    /// Most by which stamps contradict each other, seconds.
    pub conflict_s: f64,
}

/// RPCs that carry data of files, in bulk or within the message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfers {
    /// RPCs.
    pub rpcs: u64,
    /// Bytes of one, in the mean.
    pub mean_bytes: f64,
    /// Seconds of one, in the mean, from its slot to its reply.
    pub mean_s: f64,
    /// Under way at once, in the mean.
    pub under_way: f64,
    /// Those of them that had taken a place: what is under a lock of the client's own needs none.
    pub in_flight: f64,
    /// Places of all clients at all targets.
    pub places: u32,
    /// Targets.
    pub targets: usize,
}

impl Transfers {
    pub(super) fn of(f: &Facts) -> Option<Transfers> {
        let used: Vec<&Path> = f.paths.iter().filter(|p| p.data.rpcs > 0).collect();
        let all = used.iter().fold(Data::default(), |d, p| d.with(p.data));
        (!used.is_empty()).then(|| Transfers {
            rpcs: all.rpcs,
            mean_bytes: all.mean_bytes(),
            mean_s: all.mean_s(),
            under_way: all.inside_s / f.window_s.max(1e-12),
            in_flight: all.placed_s / f.window_s.max(1e-12),
            places: used.iter().map(|p| p.places).sum(),
            targets: used.len(),
        })
    }
}

pub(super) fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

impl Facts {
    /// What stopwatches tell.
    pub fn of(j: &Joined) -> Facts {
        let mut f = Facts {
            lost: j.lost,
            conflict_s: seconds(j.conflict_ns),
            ..Facts::default()
        };
        let (left_out, ops): (Vec<&JoinedOp>, Vec<&JoinedOp>) =
            j.ops.iter().partition(|o| waits_for_a_program(o));
        let left_out_s = left_out.iter().map(|o| seconds(o.ns())).sum::<f64>() + 0.0;
        f.program_locks = (left_out.len() as u64, left_out_s);
        let from = ops.iter().map(|o| o.op.span.0).min().unwrap_or(0);
        let to = ops.iter().map(|o| o.op.span.1).max().unwrap_or(0);
        f.window_s = seconds(to - from);
        // A server's own RPCs to others are no way of a client, and what belongs to operations that are left out is left out as well.
        let own: BTreeSet<usize> = ops.iter().map(|o| o.client).collect();
        let without: BTreeSet<(usize, u64)> =
            left_out.iter().map(|o| (o.client, o.op.id)).collect();
        let counts =
            |r: &JoinedRpc| own.contains(&r.client) && !without.contains(&(r.client, r.rpc.op));
        f.standstills = standstills(j, (from, to), counts);
        let mut kinds: BTreeMap<&str, OpKind> = BTreeMap::new();
        for o in &ops {
            let k = kinds.entry(&o.op.op).or_default();
            k.op = o.op.op.to_string();
            k.count += 1;
            k.seconds += seconds(o.ns());
            for p in &o.parts {
                let at = (p.segment, j.names[p.at].clone());
                let still = still_ns(&f.standstills, j, p);
                if still > 0 {
                    *f.still.entry(at.clone()).or_default() += seconds(still);
                }
                *f.seconds.entry(at).or_default() += seconds(p.ns());
            }
        }
        f.ops = kinds.into_values().collect();
        f.ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let part = |i: i64| i128::from(to - from) * i128::from(2 * i + 1) / i128::from(2 * SAMPLES);
        let moments = (0..SAMPLES).map(|i| from + part(i) as i64);
        let sorted = |end: fn(&JoinedOp) -> i64| {
            let mut all: Vec<i64> = ops.iter().map(|o| end(o)).collect();
            all.sort_unstable();
            all
        };
        let (begun, ended) = (sorted(|o| o.op.span.0), sorted(|o| o.op.span.1));
        let by = |all: &[i64], t: i64| all.partition_point(|at| *at <= t);
        let is_on = |t: i64| by(&begun, t) - by(&ended, t);
        f.under_way = moments.map(is_on).sum::<usize>() as f64 / SAMPLES as f64;
        let known = Known::of(j, &ops);
        let is_held = |r: &JoinedRpc| f.standstills.iter().any(|s| s.holds(r));
        let on_path = |r: &JoinedRpc| counts(r) && !is_held(r);
        let together = paths(j, (from, to), &known, |r| on_path(r).then_some(0));
        let together: Vec<Path> = together.into_values().collect();
        f.clients = clients(j, &ops, &together, &f.standstills, |group| {
            paths(j, (from, to), &known, |r| {
                on_path(r).then(|| group(r.client)).flatten()
            })
        });
        f.paths = together;
        f.silences = silences(j, (from, to), counts);
        f.contended = contended(&ops);
        f.shared = shared(j, &ops);
        let inside = |c: &&Callback| own.contains(&c.client) && (from..to).contains(&c.at);
        let locks = j.callbacks.iter().filter(|c| c.asks == Asks::Lock);
        let locks = locks.filter(inside);
        let who: BTreeSet<usize> = locks.clone().map(|c| c.client).collect();
        f.callbacks = (locks.count() as u64, who.len() as u32);
        f.gave_back = asked(j, Asks::Lock, (from, to));
        f.told_sizes = asked(j, Asks::Size, (from, to));
        f.lock_waits = lock_waits(j, &ops);
        f.one_directory = one_directory(j, &ops).filter(|d| 2.0 * d.seconds > f.op_s());
        f.waited = waited(j, ops.iter().copied());
        let enqueues =
            |r: &&JoinedRpc| r.rpc.op != 0 && r.rpc.opc == opc::LDLM_ENQUEUE && counts(r);
        for r in j.rpcs.iter().filter(enqueues) {
            f.enqueues.0 += 1;
            f.enqueues.1 += seconds(r.rpc.span.1 - r.rpc.span.0);
        }
        f
    }

    /// Seconds of all operations together.
    pub fn op_s(&self) -> f64 {
        // The sum of nothing is -0.0.
        self.ops.iter().map(|o| o.seconds).sum::<f64>() + 0.0
    }

    /// Operations.
    pub fn count(&self) -> u64 {
        self.ops.iter().map(|o| o.count).sum()
    }

    /// Share of the operations' time in a segment at a place, without waits for servers that stood still; none: at all.
    pub fn share(&self, s: Segment, at: Option<&str>) -> f64 {
        let of = |all: &BTreeMap<(Segment, String), f64>| {
            let is_meant =
                |(seg, name): &(Segment, String)| *seg == s && at.is_none_or(|a| a == name);
            let of = all.iter().filter(|(key, _)| is_meant(key));
            of.map(|(_, v)| v).sum::<f64>()
        };
        (of(&self.seconds) - of(&self.still)).max(0.0) / self.op_s().max(1e-12)
    }

    /// Share of the operations' time in a segment.
    pub(super) fn whole_share(&self, s: Segment) -> f64 {
        let still = self.still.iter().filter(|((seg, _), _)| *seg == s);
        let still_s: f64 = still.map(|(_, v)| v).sum();
        self.share(s, None) + still_s / self.op_s().max(1e-12)
    }
}

/// Bytes of a file's data that an RPC carried.
pub(super) fn bytes(r: &coral_stopwatch::Rpc) -> u64 {
    r.bulk_bytes + u64::from(r.inline_bytes)
}

/// Whether most of its time is a wait for a lock that programs take from each other: how long one keeps it is its own affair.
pub(super) fn waits_for_a_program(o: &JoinedOp) -> bool {
    o.op.op == PROGRAM_LOCK && 2 * o.in_segment(Segment::LockWait) > o.ns()
}

/// Seconds of the RPCs of these operations; of those that are large apart.
pub(super) fn waited<'a>(j: &Joined, ops: impl Iterator<Item = &'a JoinedOp>) -> (f64, f64) {
    let of: BTreeSet<usize> = ops.flat_map(|o| &o.rpcs).copied().collect();
    let (mut all, mut large) = (0.0, 0.0);
    for r in of.into_iter().map(|i| &j.rpcs[i].rpc) {
        let took = seconds(r.span.1 - r.span.0);
        all += took;
        large += if bytes(r) > SMALL_BYTES { took } else { 0.0 };
    }
    (all, large)
}

/// The way there and back, without the time that routers and the server take. A delay that LNet makes is where it sends.
const WAY: [Segment; 3] = [Segment::Send, Segment::Network, Segment::ReplyOut];

/// Seconds of an RPC on the way.
pub(super) fn rtt(r: &JoinedRpc) -> f64 {
    let on_it = r.parts.iter().filter(|p| WAY.contains(&p.segment));
    seconds(on_it.map(Part::ns).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::rpc_of;

    /// Two writes in the background, for one of which a sync of its file waits, and for the other nobody.
    #[test]
    fn what_is_in_the_background_counts_where_an_operation_waits_for_it() {
        let write = |xid: u64| JoinedRpc {
            rpc: rpc_of(opc::OST_WRITE, xid, (0, 100)),
            is_served: true,
            service: String::new(),
            target: 1,
            client: 0,
            reply_late_ns: 0,
            parts: vec![Part {
                segment: Segment::Network,
                from: 0,
                to: 100,
                at: 1,
            }],
        };
        let sync = JoinedOp {
            op: coral_stopwatch::Op {
                id: 1,
                op: "FSYNC".into(),
                fid: (1, 1, 0),
                span: (0, 100),
                run_ns: 0,
                waits: vec![],
            },
            client: 0,
            parts: write(1).parts,
            rpcs: vec![0],
        };
        let f = Facts::of(&Joined {
            names: vec!["client".into(), "fs-OST0000".into()],
            ops: vec![sync],
            rpcs: vec![write(1), write(2)],
            ..Joined::default()
        });
        let writes = &f.paths[0].kinds[&opc::OST_WRITE];
        assert_eq!((writes.all.count, writes.waited.count), (2, 1));
        assert_eq!(f.paths[0].way_waited_s(), 1e-7);
    }

    /// A request that was held back for 40 ms. By their bounds alone the clocks of both ends may be 20 ms apart.
    #[test]
    fn what_is_held_back_goes_by_the_clock_of_who_holds_it() {
        const MS: i64 = 1_000_000;
        let part = |segment, from, to| Part {
            segment,
            from: from * MS,
            to: to * MS,
            at: 1,
        };
        let rpc = coral_stopwatch::Rpc {
            op: 1,
            sent: 40 * MS,
            ..rpc_of(opc::OST_READ, 1, (0, 41 * MS))
        };
        let op = coral_stopwatch::Op {
            id: 1,
            op: "READ".into(),
            fid: rpc.fid,
            span: rpc.span,
            run_ns: 0,
            waits: vec![],
        };
        let parts = vec![part(Segment::Send, 0, 20), part(Segment::Network, 20, 41)];
        let j = Joined {
            names: vec!["client".into(), "fs-OST0000".into()],
            ops: vec![JoinedOp {
                op,
                client: 0,
                parts: parts.clone(),
                rpcs: vec![0],
            }],
            rpcs: vec![JoinedRpc {
                rpc,
                is_served: true,
                service: String::new(),
                target: 1,
                client: 0,
                reply_late_ns: 0,
                parts,
            }],
            ..Joined::default()
        };
        let f = Facts::of(&j);
        assert_eq!((f.paths[0].send_s, f.paths[0].rtt_s), (0.04, 0.041));
        assert_eq!(f.paths[0].way_s(), 0.041);
        // a reply that is held back for 1 s, half of which its client takes for the network
        let mut late = j;
        let r = &mut late.rpcs[0];
        (r.rpc.sent, r.rpc.span, r.reply_late_ns) = (0, (0, 1000 * MS), 1000 * MS);
        let half = [(Segment::ReplyOut, 0, 500), (Segment::Network, 500, 1000)];
        r.parts = half.map(|(s, from, to)| part(s, from, to)).to_vec();
        late.ops[0].op.span = r.rpc.span;
        let f = Facts::of(&late);
        assert_eq!((f.paths[0].send_s, f.paths[0].rtt_s), (1.0, 1.0));
    }
}
