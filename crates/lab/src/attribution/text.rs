//! Operations as text.

use std::fmt::Write;

use coral_wire::opc;

use super::{Clock, Joined, JoinedOp, Part, Segment};

/// Which operations.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// That took so long at least, nanoseconds.
    pub slow_ns: i64,
    /// On this file.
    pub fid: Option<(u64, u32, u32)>,
    /// Of this name; upper and lower case are the same.
    pub op: Option<String>,
}

impl Filter {
    /// Whether it is one of these.
    pub fn takes(&self, op: &JoinedOp) -> bool {
        op.ns() >= self.slow_ns
            && self.fid.is_none_or(|f| f == op.op.fid)
            && (self.op.as_deref()).is_none_or(|name| op.op.op.eq_ignore_ascii_case(name))
    }
}

/// Nanoseconds as people read them.
pub(crate) fn time(ns: i64) -> String {
    let n = ns as f64;
    match ns.abs() {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", n / 1e6),
        _ => format!("{:.2} s", n / 1e9),
    }
}

fn share(part: i64, of: i64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// One operation: a line of its own, one for each RPC, and one for each segment.
pub fn operation_text(j: &Joined, op: &JoinedOp) -> String {
    let mut out = String::new();
    let (seq, oid, ver) = op.op.fid;
    let client = &j.names[op.client];
    let _ = write!(out, "{} on {client}: {}", op.op.op, time(op.ns()));
    if seq != 0 {
        let _ = write!(out, "  [{seq:#x}:{oid:#x}:{ver:#x}]");
    }
    let _ = writeln!(out, "  at {}", time(op.op.span.0));
    for r in op.rpcs.iter().map(|i| &j.rpcs[*i]) {
        let name = opc::name(r.rpc.opc).unwrap_or("?");
        let from = time(r.rpc.span.0 - op.op.span.0);
        let took = time(r.rpc.span.1 - r.rpc.span.0);
        let xid = match (r.rpc.xid, r.rpc.reply_mbits) {
            (0, _) => "not answered".to_owned(),
            (xid, 0) => format!("xid {xid}, not answered"),
            (xid, _) => format!("xid {xid}"),
        };
        let _ = write!(
            out,
            "  {name} to {}, {xid}: {took} from {from} on",
            j.names[r.target]
        );
        if r.rpc.attempts > 1 {
            let _ = write!(out, ", sent {} times", r.rpc.attempts);
        }
        if !r.is_served {
            out.push_str(", without the server's record");
        }
        out.push('\n');
    }
    for s in Segment::ALL {
        let ns = op.in_segment(s);
        if ns > 0 {
            let of = share(ns, op.ns());
            let at = places(j, op, s);
            let _ = writeln!(out, "  {:>18} {:>10} {of:>5.1}%  {at}", s.name(), time(ns));
        }
    }
    out
}

/// Where the time of a segment was.
fn places(j: &Joined, op: &JoinedOp, s: Segment) -> String {
    let mut at: Vec<usize> = (op.parts.iter())
        .filter(|p| p.segment == s)
        .map(|p: &Part| p.at)
        .collect();
    at.sort_unstable();
    at.dedup();
    let names: Vec<&str> = at.iter().map(|i| j.names[*i].as_str()).collect();
    names.join(", ")
}

/// Clocks, and the operations that `filter` takes, slowest first, `most` at most.
pub fn text(j: &Joined, filter: &Filter, most: usize) -> String {
    let mut out = String::new();
    for (
        client,
        other,
        Clock {
            offset_ns,
            uncertain_ns,
        },
    ) in &j.clocks
    {
        let how = match uncertain_ns {
            Some(0) => continue,
            Some(u) => format!("+- {}", time(*u)),
            None => "uncertainty unknown: messages passed one way alone".to_owned(),
        };
        let lead = time(*offset_ns);
        let _ = writeln!(out, "clock of {other} against {client}: {lead} {how}");
    }
    if j.lost > 0 {
        let _ = writeln!(out, "{} older records had left the rings", j.lost);
    }
    if j.brief > 0 {
        let _ = writeln!(
            out,
            "{} operations were answered at once, without an RPC or a wait: they are not kept",
            j.brief
        );
    }
    if j.conflict_ns > 0 {
        let by = time(j.conflict_ns);
        let _ = writeln!(out, "stamps contradict each other by up to {by}");
    }
    let mut found: Vec<&JoinedOp> = j.ops.iter().filter(|o| filter.takes(o)).collect();
    if !found.is_empty() {
        out.push_str("moments ('at') are counted from the first time that the client's process was asked for them\n");
    }
    found.sort_by_key(|o| (-o.ns(), o.op.span.0));
    let _ = writeln!(out, "{} operations of {}", found.len(), j.ops.len());
    for op in found.into_iter().take(most) {
        out.push('\n');
        out.push_str(&operation_text(j, op));
    }
    out
}
