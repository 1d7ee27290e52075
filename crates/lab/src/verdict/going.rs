//! What was under way when it was asked, told by the oldest of it: an operation that hangs is in no record, as records are made at
//! the end.

use std::collections::BTreeSet;

use coral_stopwatch::{Begun, Dump, Rpc, Wait};
use coral_wire::opc;

use super::queue::{first_rpcs, in_queue};
use super::rules::ms;
use crate::attribution::Segment;

/// The operation in which a program waits for a lock of programs, fcntl(2) or flock(2).
pub(super) const PROGRAM_LOCK: &str = "SETLKW";

/// An RPC in the background that is not so old is no work that stands still, as a ping.
const BACKGROUND_NS: i64 = 1_000_000_000;

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
    /// The client that it is of.
    pub client: String,
    /// Seconds since each began, all together.
    pub seconds: f64,
    /// The longest of its kind that has ended took so long, seconds; 0: none has.
    pub usual_s: f64,
    /// Seconds since an operation ended; infinite: none has.
    pub quiet_s: f64,
    /// The oldest is an RPC in the background, for which no program waits.
    pub in_background: bool,
    /// It waits for a lock.
    pub wants_lock: bool,
    /// All of it are programs that wait for locks which programs have: how long these keep them is their own affair.
    pub of_programs: bool,
    /// Who has that lock and does not give it back, as far as servers were asked.
    pub holder: Option<Holder>,
}

/// A client that a server has asked for a lock, and that has not given it back, or not answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holder {
    /// Its NID.
    pub client: String,
    /// The server's.
    pub server: String,
    /// For so many seconds.
    pub asked_s: f64,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} has the lock, and has not given it back since {} asked for it {} ago",
            self.client,
            self.server,
            ms(self.asked_s)
        )
    }
}

impl Going {
    /// How many there are.
    pub(super) fn counted(&self) -> String {
        match self.count {
            1 => "1 operation is".to_owned(),
            n => format!("{n} operations are"),
        }
    }
}

/// What a server asks clients about their locks.
const CALLBACKS: [u32; 3] = [
    opc::LDLM_BL_CALLBACK,
    opc::LDLM_CP_CALLBACK,
    opc::LDLM_GL_CALLBACK,
];

/// Of several nodes; None: nothing is under way.
pub(super) fn going(dumps: &[Dump]) -> Option<Going> {
    // What a server asks of others is within what its client waits for. What stands in a queue that moves is told apart.
    let clients = dumps.iter().filter(|d| !is_server(d));
    let all = clients.flat_map(|d| {
        let queue = in_queue(d);
        let others = tops(&d.under_way).filter(move |b| !queue.contains(&(b.op, b.begun)));
        others.map(move |b| (d.now - b.begun, d, b))
    });
    let (of_programs, others): (Vec<_>, Vec<_>) = all.partition(|(.., b)| is_program_lock(b));
    let is_brief = |(age, _, b): &(i64, &Dump, &Begun)| b.opc.is_some() && *age < BACKGROUND_NS;
    let is_of_programs = !of_programs.is_empty() && others.iter().all(is_brief);
    let all = if is_of_programs { of_programs } else { others };
    // The first of those that are equally old: `max_by_key` takes the last.
    let oldest = all.iter().rev().max_by_key(|(age, ..)| *age)?;
    // Where a program waits for what is in the background, it is its operation that is told.
    let waits = |(_, d, b): &&(i64, &Dump, &Begun)| b.opc.is_none() && behind(d, b).is_some();
    let held = all.iter().rev().filter(waits).max_by_key(|(age, ..)| *age);
    let (age, d, b) = *held.filter(|_| oldest.2.opc.is_some()).unwrap_or(oldest);
    // Of its RPCs the oldest: the others may have begun when it had waited already.
    let rpc = match b.opc {
        Some(_) => Some(b),
        None => first_rpcs(&d.under_way).get(&b.op).copied(),
    };
    let behind = behind(d, b);
    let wants_lock = match rpc {
        Some(r) => r.opc == Some(opc::LDLM_ENQUEUE) && r.waits.is_none(),
        None => b.waits.is_some_and(|(wait, _)| wait == Wait::Lock),
    };
    Some(Going {
        count: all.len() as u64,
        oldest_s: seconds(age),
        oldest: text(d, b, rpc) + &behind.as_ref().map_or_else(String::new, |r| r.text(d)),
        target: rpc.or(behind.map(|r| r.oldest)).map(name),
        client: primary(d).to_owned(),
        seconds: all.iter().map(|(age, ..)| seconds(*age)).sum(),
        usual_s: usual(dumps, b),
        quiet_s: quiet(dumps),
        in_background: b.opc.is_some(),
        wants_lock,
        of_programs: is_of_programs,
        holder: (wants_lock && !is_of_programs)
            .then(|| holder(dumps, d, b, rpc))
            .flatten(),
    })
}

/// Requests of a client to one target that answers none of them.
struct Unanswered<'a> {
    count: usize,
    oldest: &'a Begun,
}

impl Unanswered<'_> {
    fn text(&self, d: &Dump) -> String {
        let opcode = self.oldest.opc.and_then(opc::name).unwrap_or("an RPC");
        let (target, age) = (name(self.oldest), ms(seconds(d.now - self.oldest.begun)));
        match self.count {
            1 => format!(", while {opcode} of its client to {target} is not answered for {age}"),
            n => format!(
                ", while {n} RPCs of its client to {target} are not answered, the oldest, {opcode}, for {age}"
            ),
        }
    }
}

/// What an operation without an RPC of its own may wait for, as data that are written behind: the requests of its client to the target
/// that has not answered for longest, where that is for half of the operation's time or more.
fn behind<'a>(d: &'a Dump, b: &Begun) -> Option<Unanswered<'a>> {
    let own = |r: &Begun| r.opc.is_some() && r.op == b.op;
    if b.opc.is_some() || b.waits.is_some() || d.under_way.iter().any(own) {
        return None;
    }
    let age = |r: &Begun| d.now - r.begun;
    let answers = |target: &str| {
        let of = d.rpcs.iter().filter(|r| r.target == target);
        of.map(|r| r.span.1)
            .max()
            .is_some_and(|at| d.now - at < BACKGROUND_NS)
    };
    let is_asked = |r: &&Begun| {
        let is_sent = r.waits.is_none_or(|(wait, _)| wait == Wait::Connection);
        is_sent && r.opc.is_some_and(|o| o != opc::OBD_PING)
    };
    let asked: Vec<&Begun> = d.under_way.iter().filter(is_asked).collect();
    let is_silent = |r: &&&Begun| age(r) >= BACKGROUND_NS.max(age(b) / 2) && !answers(&r.target);
    let oldest = *asked.iter().filter(is_silent).max_by_key(|r| age(r))?;
    let count = asked.iter().filter(|r| r.target == oldest.target).count();
    Some(Unanswered { count, oldest })
}

/// Its server has answered that others have the lock.
fn is_program_lock(b: &Begun) -> bool {
    b.name == PROGRAM_LOCK && b.waits.is_some_and(|(wait, _)| wait == Wait::Lock)
}

fn primary(d: &Dump) -> &str {
    d.names.first().map_or("?", String::as_str)
}

/// Seconds that the longest took which has ended and is of the same name or opcode.
fn usual(dumps: &[Dump], b: &Begun) -> f64 {
    let ops = dumps.iter().flat_map(|d| &d.ops);
    let ops = ops.filter(|o| b.opc.is_none() && o.op == b.name);
    let rpcs = dumps.iter().flat_map(|d| &d.rpcs);
    let rpcs = rpcs.filter(|r| r.op == 0 && b.opc == Some(r.opc));
    let spans = ops.map(|o| o.span).chain(rpcs.map(|r| r.span));
    seconds(spans.map(|(from, to)| to - from).max().unwrap_or(0))
}

/// Seconds since an operation ended, on whichever client.
pub(super) fn quiet(dumps: &[Dump]) -> f64 {
    let of = |d: &Dump| {
        let last = d.ops.iter().map(|o| o.span.1).max();
        last.map(|at| seconds(d.now - at))
    };
    dumps.iter().filter_map(of).fold(f64::INFINITY, f64::min)
}

/// The client that a server has waited for longest, of the others that it has asked for a lock or what they know of a file; where it is
/// known that one of them was asked for this file, of those. The server is that of the RPC which waits, or of the last enqueue of an
/// operation that was told to wait.
fn holder(dumps: &[Dump], waits: &Dump, b: &Begun, rpc: Option<&Begun>) -> Option<Holder> {
    let mine = |r: &&Rpc| b.op != 0 && r.op == b.op && r.opc == opc::LDLM_ENQUEUE;
    let peer = match rpc {
        Some(rpc) => (dumps.iter().flat_map(|d| &d.rpcs))
            .find(|r| r.target == rpc.target)
            .map(|r| r.peer),
        None => (waits.rpcs.iter().filter(mine))
            .max_by_key(|r| r.span.1)
            .map(|r| r.peer),
    }?;
    let fid = rpc.map_or(b.fid, |r| r.fid);
    let servers = dumps.iter().filter(|d| d.nids.contains(&peer));
    let all = servers.flat_map(|d| asked(d).map(move |b| (d, b)));
    let all = all.filter(|(_, b)| waits.names.iter().all(|n| *n != b.target));
    let (d, b) = all.max_by_key(|(d, b)| (b.fid == fid && fid.0 != 0, d.now - b.begun))?;
    Some(Holder {
        client: b.target.to_string(),
        server: primary(d).to_owned(),
        asked_s: seconds(d.now - b.begun),
    })
}

fn asked(d: &Dump) -> impl Iterator<Item = &Begun> {
    (d.under_way.iter()).filter(|b| b.opc.is_some_and(|o| CALLBACKS.contains(&o)))
}

/// Clients are asked as well: for their locks.
pub(super) fn is_server(d: &Dump) -> bool {
    d.served.iter().any(|s| !CALLBACKS.contains(&s.opc)) || asked(d).next().is_some()
}

/// Operations, and RPCs of none that is there.
pub(super) fn tops(all: &[Begun]) -> impl Iterator<Item = &Begun> {
    let known = all.iter().filter(|b| b.opc.is_none());
    let known: BTreeSet<u64> = known.map(|b| b.op).collect();
    all.iter()
        .filter(move |b| b.opc.is_none() || b.op == 0 || !known.contains(&b.op))
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
    let client = primary(d);
    let what = match b.opc {
        Some(_) => "an RPC in the background",
        None => &b.name,
    };
    format!("{what}{file} on {client}: {at}")
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A write that waits for room among the pages that its client writes behind.
    #[test]
    fn the_target_that_does_not_answer_what_is_written_behind_is_named() {
        let sent = |at, target| Begun {
            opc: Some(opc::OST_WRITE),
            ..rpc(0, target, at)
        };
        let write = begun(1, "WRITE", 6 * S);
        let of = |begun| {
            let also = sent(7 * S, "fs-OST0001_UUID");
            let all = vec![write.clone(), sent(begun, "fs-OST0001_UUID"), also];
            client(all)
        };
        // Also where the request is older: a program waits for it.
        let older = going(&[of(5 * S)]).unwrap();
        assert_eq!((older.oldest_s, older.in_background), (4.0, false));
        assert_eq!(older.target.as_deref(), Some("fs-OST0001"));
        let g = going(&[of(6 * S)]).unwrap();
        assert_eq!(g.target, older.target);
        let told = "WRITE on [0x5:0x6:0x0] on c@tcp: with no RPC of its own, while 2 RPCs of its client to fs-OST0001 are not answered, the oldest, OST_WRITE, for 4.00 s";
        assert_eq!(g.oldest, told);
        let mut answered = of(6 * S);
        answered.rpcs = vec![Rpc {
            target: "fs-OST0001_UUID".into(),
            ..crate::attribution::rpc_of(opc::OST_WRITE, 1, (9 * S, 9 * S + S / 2))
        }];
        let g = going(&[answered]).unwrap();
        assert_eq!(g.target, None, "it answers others");
        let young = going(&[client(vec![write, sent(9 * S, "fs-OST0001_UUID")])]).unwrap();
        assert_eq!(young.target, None, "it was begun just now");
    }

    /// A write wants a lock of an OST, which has asked two others; one of them answered. Another server waits for others still longer.
    #[test]
    fn the_client_that_does_not_give_a_lock_back_is_named() {
        let enqueue = Begun {
            opc: Some(opc::LDLM_ENQUEUE),
            ..rpc(1, "fs-OST0001_UUID", 2 * S)
        };
        let mut waits = client(vec![begun(1, "WRITE", 2 * S), enqueue]);
        waits.ops = vec![coral_stopwatch::Op {
            id: 9,
            op: "WRITE".into(),
            fid: (5, 6, 0),
            span: (S, S + S / 2),
            run_ns: 0,
            waits: vec![],
        }];
        waits.rpcs = vec![Rpc {
            op: 1,
            target: "fs-OST0001_UUID".into(),
            ..crate::attribution::rpc_of(opc::LDLM_ENQUEUE, 1, (S, 2 * S))
        }];
        let callback = |client: &'static str, at: i64| Begun {
            opc: Some(opc::LDLM_BL_CALLBACK),
            ..rpc(0, client, at)
        };
        let server = |nid: u64, name: &str, asked: Vec<Begun>| Dump {
            nids: vec![nid],
            names: vec![name.into()],
            ..client(asked)
        };
        let itself = callback("c@tcp", 2 * S);
        let own = server(2, "s@tcp", vec![itself.clone(), callback("b@tcp", 3 * S)]);
        let other = server(3, "t@tcp", vec![callback("x@tcp", S)]);
        let all = [waits.clone(), own, other.clone()];
        let g = going(&all).unwrap();
        let holder = g.holder.clone().unwrap();
        assert_eq!(
            (holder.client.as_str(), holder.server.as_str()),
            ("b@tcp", "s@tcp")
        );
        assert_eq!(
            (holder.asked_s, g.count),
            (7.0, 1),
            "a callback is no operation"
        );
        assert_eq!((g.usual_s, g.quiet_s, g.seconds), (0.5, 8.5, 8.0));
        let mut told_to_wait = all;
        told_to_wait[0].under_way.truncate(1);
        told_to_wait[0].under_way[0].waits = Some((Wait::Lock, 2 * S));
        assert_eq!(going(&told_to_wait).unwrap().holder.unwrap(), holder);
        let of_none = |dumps: &[Dump]| {
            let g = going(dumps).unwrap();
            assert!(g.wants_lock && g.holder.is_none(), "{g:?}");
        };
        of_none(&[waits.clone()]);
        of_none(&[waits.clone(), other]);
        of_none(&[waits, server(2, "s@tcp", vec![itself])]);
    }

    #[test]
    fn a_lock_of_programs_is_told_where_nothing_else_goes_on() {
        let lock = |waits| Begun {
            waits,
            ..begun(1, "SETLKW", 0)
        };
        let waits = lock(Some((Wait::Lock, 0)));
        let alone = going(&[client(vec![waits.clone()])]).unwrap();
        assert!(alone.of_programs, "{alone:?}");
        let with_ping = |at| {
            let ping = rpc(0, "fs-OST0000_UUID", at);
            going(&[client(vec![waits.clone(), ping])]).unwrap()
        };
        assert!(with_ping(10 * S - 1).of_programs && !with_ping(8 * S).of_programs);
        let read = begun(2, "READ", 9 * S);
        let g = going(&[client(vec![waits, read])]).unwrap();
        assert_eq!((g.of_programs, g.count, g.seconds), (false, 1, 1.0));
        assert!(g.oldest.starts_with("READ "), "{}", g.oldest);
        let asks = client(vec![lock(None), rpc(1, "fs-MDT0000_UUID", 0)]);
        let g = going(&[asks]).unwrap();
        assert!(!g.of_programs, "its server does not answer");
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
