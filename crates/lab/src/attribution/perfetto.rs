//! Operations as trace events in JSON, which Perfetto opens (`chrome://tracing`'s format, "Trace Event Format").

use coral_wire::opc;
use serde_json::{Value, json};

use super::{Filter, Joined, Part};

/// One process a client, one thread an operation, so that those side by side do not cover each other; its RPCs and segments lie
/// in it. Times are microseconds from the first operation on.
pub fn perfetto(j: &Joined, filter: &Filter) -> Value {
    let ops: Vec<_> = j.ops.iter().filter(|o| filter.takes(o)).collect();
    let zero = ops.iter().map(|o| o.op.span.0).min().unwrap_or(0);
    let us = |ns: i64| (ns - zero) as f64 / 1e3;
    let mut events: Vec<Value> = Vec::new();
    // A row is free again when what lies in it has ended.
    let mut rows: Vec<(usize, i64)> = Vec::new();
    let mut clients: Vec<usize> = ops.iter().map(|o| o.client).collect();
    clients.sort_unstable();
    clients.dedup();
    for c in &clients {
        let name = json!({ "name": format!("client {}", j.names[*c]) });
        events.push(json!({ "ph": "M", "name": "process_name", "pid": c, "args": name }));
    }
    for o in ops {
        let (from, to) = o.op.span;
        let free = rows.iter().position(|r| r.0 == o.client && r.1 <= from);
        let row = free.unwrap_or_else(|| {
            rows.push((o.client, 0));
            rows.len() - 1
        });
        rows[row].1 = to;
        let (seq, oid, ver) = o.op.fid;
        let fid = format!("[{seq:#x}:{oid:#x}:{ver:#x}]");
        let event = |name: &str, cat: &str, (from, to): (i64, i64), row: usize, args: Value| {
            json!({
                "ph": "X", "name": name, "cat": cat, "ts": us(from), "dur": (to - from) as f64 / 1e3,
                "pid": o.client, "tid": row, "args": args,
            })
        };
        events.push(event(
            &o.op.op,
            "operation",
            o.op.span,
            row,
            json!({ "fid": fid }),
        ));
        for Part {
            segment,
            from,
            to,
            at,
        } in &o.parts
        {
            let args = json!({ "at": j.names[*at] });
            events.push(event(segment.name(), "segment", (*from, *to), row, args));
        }
        for r in o.rpcs.iter().map(|i| &j.rpcs[*i]) {
            let name = opc::name(r.rpc.opc).unwrap_or("?");
            let args = json!({ "xid": r.rpc.xid, "target": j.names[r.target], "bulk_bytes": r.rpc.bulk_bytes,
                "inline_bytes": r.rpc.inline_bytes });
            // RPCs side by side would cover each other in a row: each is an asynchronous pair of its own.
            for (ph, ts) in [("b", r.rpc.span.0), ("e", r.rpc.span.1)] {
                events.push(json!({
                    "ph": ph, "name": name, "cat": "rpc", "id": r.rpc.xid, "ts": us(ts), "pid": o.client, "tid": row, "args": args,
                }));
            }
        }
    }
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}
