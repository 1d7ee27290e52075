//! RPCs gathered by client and target: what the paths of a window are made of.

use std::collections::BTreeMap;

use coral_stopwatch::Wait;
use coral_wire::nid::Nid;
use coral_wire::opc;

use super::facts::{Data, Path, SMALL_BYTES, bytes, seconds};
use super::requests::Requests;
use super::stored::stored;
use crate::attribution::{Joined, JoinedOp, JoinedRpc, Part, Segment};

/// A path with storage seconds and RPCs of each half, the sum and number of slots in use, and how many each client may use.
type Gathered = (Path, [(f64, u64); 2], (u64, u64), BTreeMap<usize, u32>);

/// One more RPC with data.
fn take_data(p: &mut Path, opc: u32, data: Data) {
    p.data = p.data.with(data);
    if opc != opc::OST_WRITE {
        p.reading_s += data.inside_s;
    }
    if data.bytes > SMALL_BYTES {
        p.large = p.large.with(data);
    }
}

/// What is known of each RPC by others, in the order of [`Joined::rpcs`].
pub(super) struct Known {
    /// Bytes that it had to store or to read, where that is known.
    stored: Vec<Option<u64>>,
    /// Whether an operation waited for it: one in the background may be what a sync of its file waits for.
    waited_for: Vec<bool>,
}

impl Known {
    pub(super) fn of(j: &Joined, ops: &[&JoinedOp]) -> Known {
        let mut waited_for = vec![false; j.rpcs.len()];
        for i in ops.iter().flat_map(|o| &o.rpcs) {
            waited_for[*i] = true;
        }
        Known {
            stored: stored(j),
            waited_for,
        }
    }
}

/// What went on in the window, by group of clients and target; RPCs that ended before it, such as those of the mount, say nothing of the
/// load. One that began before it and ended in it counts whole.
pub(super) fn paths(
    j: &Joined,
    (from, to): (i64, i64),
    known: &Known,
    group: impl Fn(&JoinedRpc) -> Option<usize>,
) -> BTreeMap<(usize, usize), Path> {
    let half = from + (to - from) / 2;
    let mut all: BTreeMap<(usize, usize), Gathered> = BTreeMap::new();
    let mut ways: BTreeMap<(usize, usize), Vec<OnWay>> = BTreeMap::new();
    let inside = |r: &JoinedRpc| {
        let (begun, ended) = r.rpc.span;
        ended > begun && begun < to && (begun >= from || (ended > from && ended <= to))
    };
    for (i, r) in j.rpcs.iter().enumerate().filter(|(_, r)| inside(r)) {
        let Some(group) = group(r) else {
            continue;
        };
        let (p, halves, slotted, limits) = all.entry((group, r.target)).or_default();
        let in_segment = |s| -> i64 {
            let of = r.parts.iter().filter(|p| p.segment == s);
            of.map(Part::ns).sum()
        };
        let way_ns = in_segment(Segment::Network) + in_segment(Segment::Bulk);
        let on_way = (r.rpc.span, way_ns);
        ways.entry((group, r.target)).or_default().push(on_way);
        for part in &r.parts {
            *p.seconds.entry(part.segment).or_default() += seconds(part.ns());
        }
        let queued = in_segment(Segment::ClientQueue);
        let served = seconds(r.rpc.span.1 - r.rpc.span.0 - queued);
        if p.peer.is_empty() && r.rpc.peer != 0 {
            p.peer = Nid(r.rpc.peer).to_string();
        }
        let kind = p.kinds.entry(r.rpc.opc).or_default();
        kind.take(r, known.waited_for[i]);
        let own = r.rpc.waits.iter().filter(|w| w.0 == Wait::Credit);
        p.own_credit_s += seconds(own.map(|(_, from, to)| to - from).sum());
        p.rpcs += 1;
        p.resent += u64::from(r.rpc.attempts > 1);
        p.service_s += served;
        if r.rpc.in_flight > 0 {
            p.placed.0 += 1;
            p.placed.1 += served;
        }
        slotted.0 += u64::from(r.rpc.in_flight);
        slotted.1 += u64::from(r.rpc.in_flight > 0);
        p.in_flight_max = p.in_flight_max.max(r.rpc.in_flight_max);
        p.bulk_rpcs += u64::from(r.rpc.bulk_bytes > 0);
        let bytes = bytes(&r.rpc);
        if bytes > 0 {
            let begun = r.rpc.span.0 + queued;
            let inside = seconds((r.rpc.span.1.min(to) - begun.max(from)).max(0));
            let data = Data {
                rpcs: 1,
                bytes,
                seconds: served,
                inside_s: inside,
                placed_s: if r.rpc.in_flight > 0 { inside } else { 0.0 },
            };
            take_data(p, r.rpc.opc, data);
        }
        limits.insert(r.client, r.rpc.in_flight_max);
        let stored_s = seconds(in_segment(Segment::Storage));
        match known.stored[i] {
            None if stored_s > 0.0 => {
                p.unsized_syncs.0 += 1;
                p.unsized_syncs.1 += stored_s;
                continue;
            }
            Some(bytes) if stored_s > 0.0 => {
                p.storage_rpcs += 1;
                p.storage_bytes += bytes;
            }
            _ => {}
        }
        let h = &mut halves[usize::from(r.rpc.span.0 >= half)];
        h.0 += stored_s;
        h.1 += 1;
    }
    let done = all
        .into_iter()
        .map(|((group, target), (mut p, halves, slotted, limits))| {
            p.target = j.names[target].clone();
            p.of_one_moment = of_one_moment(&ways[&(group, target)]);
            p.kinds.values_mut().for_each(Requests::take_answers);
            let least =
                |of: fn(&Requests) -> f64| p.kinds.values().map(of).fold(f64::INFINITY, f64::min);
            (p.rtt_s, p.send_s) = (least(|r| r.rtt_s), least(|r| r.send_s));
            p.places = limits.into_values().sum();
            p.in_flight = slotted.0 as f64 / slotted.1.max(1) as f64;
            let mean = |(s, n): (f64, u64)| s / n.max(1) as f64;
            p.storage_halves_s = (mean(halves[0]), mean(halves[1]));
            ((group, target), p)
        });
    done.collect()
}

/// An RPC: when it was called and ended, and its nanoseconds on the way with its data.
type OnWay = ((i64, i64), i64);

/// As [`Path::of_one_moment`].
fn of_one_moment(all: &[OnWay]) -> (u64, f64) {
    let Some(((from, to), _)) = all.iter().max_by_key(|(_, ns)| *ns) else {
        return (0, 0.0);
    };
    let with = all.iter().filter(|((a, b), _)| a <= to && b >= from);
    let sum = with.fold((0, 0), |s, (_, ns)| (s.0 + 1, s.1 + ns));
    (sum.0, seconds(sum.1))
}
