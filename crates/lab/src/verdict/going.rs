//! What was under way when it was asked, told by the oldest of it: an operation that hangs is in no record, as records are made at
//! the end.

use coral_stopwatch::{Begun, Dump};
use coral_wire::opc;

use super::rules::ms;
use crate::attribution::Segment;

/// Operations that are under way, and where the oldest of them waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Going {
    /// Operations; RPCs in the background count as one each.
    pub count: u64,
    /// Seconds since the oldest began.
    pub oldest_s: f64,
    /// What the oldest is and where it waits.
    pub oldest: String,
    /// The target that its RPC went to.
    pub target: Option<String>,
}

/// Of several nodes; None: nothing is under way.
pub(super) fn going(dumps: &[Dump]) -> Option<Going> {
    // What a server asks of others is within what its client waits for.
    let clients = dumps.iter().filter(|d| !is_server(d));
    let mut count = 0;
    let mut oldest: Option<(i64, &Dump, &Begun)> = None;
    for d in clients {
        for b in tops(&d.under_way) {
            count += 1;
            let age = d.now - b.begun;
            if oldest.is_none_or(|(most, ..)| age > most) {
                oldest = Some((age, d, b));
            }
        }
    }
    let (age, d, b) = oldest?;
    // Of its RPCs the oldest: the others may have begun when it had waited already.
    let mine = |r: &&Begun| r.opc.is_some() && b.op != 0 && r.op == b.op;
    let rpc = match b.opc {
        Some(_) => Some(b),
        None => d.under_way.iter().filter(mine).min_by_key(|r| r.begun),
    };
    Some(Going {
        count,
        oldest_s: seconds(age),
        oldest: text(d, b, rpc),
        target: rpc.map(name),
    })
}

/// Clients are asked as well: for their locks.
pub(super) fn is_server(d: &Dump) -> bool {
    let callbacks = [
        opc::LDLM_BL_CALLBACK,
        opc::LDLM_CP_CALLBACK,
        opc::LDLM_GL_CALLBACK,
    ];
    d.served.iter().any(|s| !callbacks.contains(&s.opc))
}

/// Operations, and RPCs of none that is there.
fn tops(all: &[Begun]) -> impl Iterator<Item = &Begun> {
    let is_known = |op: u64| all.iter().any(|b| b.opc.is_none() && b.op == op);
    all.iter()
        .filter(move |b| b.opc.is_none() || b.op == 0 || !is_known(b.op))
}

fn seconds(ns: i64) -> f64 {
    ns.max(0) as f64 / 1e9
}

fn name(rpc: &Begun) -> String {
    rpc.target.trim_end_matches("_UUID").to_owned()
}

fn text(d: &Dump, b: &Begun, rpc: Option<&Begun>) -> String {
    let (seq, oid, ver) = b.fid;
    let file = match seq {
        0 => String::new(),
        _ => format!(" on [{seq:#x}:{oid:#x}:{ver:#x}]"),
    };
    let ago = |at: i64| ms(seconds(d.now - at));
    let waits = |b: &Begun| {
        let (wait, since) = b.waits?;
        Some(format!(
            "in '{}' for {}",
            Segment::of(wait).name(),
            ago(since)
        ))
    };
    let at = match rpc {
        None => waits(b).unwrap_or_else(|| "with no RPC of its own".to_owned()),
        Some(r) => {
            let opcode = r.opc.and_then(opc::name).unwrap_or("an RPC");
            let target = name(r);
            match waits(r) {
                Some(at) => format!("its {opcode} to {target} is {at}"),
                None => format!(
                    "its {opcode} to {target} was begun {} ago, is sent and not answered",
                    ago(r.begun)
                ),
            }
        }
    };
    let client = d.names.first().map_or("?", String::as_str);
    let what = match b.opc {
        Some(_) => "an RPC in the background",
        None => &b.name,
    };
    format!("{what}{file} on {client}: {at}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_stopwatch::Wait;

    const S: i64 = 1_000_000_000;

    fn begun(op: u64, name: &'static str, begun: i64) -> Begun {
        Begun {
            op,
            name: name.into(),
            opc: None,
            target: "".into(),
            fid: (5, 6, 0),
            begun,
            waits: None,
        }
    }

    fn rpc(op: u64, target: &'static str, at: i64) -> Begun {
        Begun {
            opc: Some(opc::OST_READ),
            target: target.into(),
            ..begun(op, "", at)
        }
    }

    fn client(under_way: Vec<Begun>) -> Dump {
        Dump {
            now: 10 * S,
            names: vec!["c@tcp".into()],
            under_way,
            ..Dump::default()
        }
    }

    #[test]
    fn the_oldest_is_told_with_where_it_waits() {
        assert_eq!(going(&[client(vec![])]), None);
        let all = vec![
            begun(1, "READ", 9 * S),
            begun(2, "READ", 8 * S),
            rpc(2, "fs-OST0001_UUID", 8 * S + S / 2),
            rpc(2, "fs-OST0002_UUID", 9 * S),
            rpc(0, "fs-OST0003_UUID", 9 * S),
        ];
        let g = going(&[client(vec![begun(7, "STAT", 9 * S)]), client(all.clone())]).unwrap();
        assert_eq!((g.count, g.oldest_s), (4, 2.0));
        assert_eq!(
            g.oldest,
            "READ on [0x5:0x6:0x0] on c@tcp: its OST_READ to fs-OST0001 was begun 1.50 s ago, is sent and not answered"
        );
        assert_eq!(g.target.as_deref(), Some("fs-OST0001"));
        let mut waits = all.clone();
        waits[2].waits = Some((Wait::Connection, 9 * S));
        let g = going(&[client(waits)]).unwrap();
        assert!(
            g.oldest
                .ends_with("its OST_READ to fs-OST0001 is in 'connection' for 1.00 s"),
            "{}",
            g.oldest
        );
        let mut alone = vec![begun(1, "WRITE", 0)];
        assert!(
            going(&[client(alone.clone())])
                .unwrap()
                .oldest
                .ends_with("no RPC of its own")
        );
        alone[0].waits = Some((Wait::Lock, 4 * S));
        let g = going(&[client(alone)]).unwrap();
        assert!(
            g.oldest.ends_with("in 'lock wait' for 6.00 s"),
            "{}",
            g.oldest
        );
        let g = going(&[client(vec![rpc(0, "fs-OST0003_UUID", 7 * S)])]).unwrap();
        assert!(
            g.oldest.starts_with("an RPC in the background on [0x5"),
            "{}",
            g.oldest
        );
    }

    #[test]
    fn what_servers_ask_each_other_is_no_operation() {
        let asked = |opc| Dump {
            served: vec![coral_stopwatch::Served {
                client: 1,
                xid: 1,
                opc,
                service: "x".into(),
                arrived: 0,
                begun: 0,
                replying: 0,
                replied: 0,
                run_ns: 0,
                waits: vec![],
            }],
            ..client(vec![rpc(0, "fs-MDT0001_UUID", 0)])
        };
        assert_eq!(going(&[asked(opc::MDS_GETATTR)]), None);
        assert!(going(&[asked(opc::LDLM_BL_CALLBACK)]).is_some(), "a client");
    }
}
