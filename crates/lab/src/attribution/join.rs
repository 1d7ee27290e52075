//! The dumps of several nodes joined by (client NID, xid).

use std::collections::BTreeMap;

use coral_stopwatch::{Begun, Dump, Kind, Op, Passage, Rpc, Served};

use coral_wire::opc;

use super::clocks::{Bounds, Clock};
use super::line::{Line, Part};
use super::segment::Segment;

/// Where so much of an operation's time is placed nowhere, it waited for RPCs in the background on the same file.
const WAITS_SHARE: f64 = 0.02;
/// An RPC in the background that is not answered is one that an operation waited for when it is so old.
const BACKGROUND_NS: i64 = 1_000_000_000;

/// An RPC with its parts.
#[derive(Clone, Debug)]
pub struct JoinedRpc {
    /// As its client kept it.
    pub rpc: Rpc,
    /// Whether its server's record is there.
    pub is_served: bool,
    /// Service at the server.
    pub service: String,
    /// The target: a place in [`Joined::names`].
    pub target: usize,
    /// The client: a place in [`Joined::names`].
    pub client: usize,
    /// How long after it was ready its reply was sent, by the server's own clock, nanoseconds; the server may hear of it late.
    pub reply_late_ns: i64,
    /// Its parts on the clock of the client; they fill its span.
    pub parts: Vec<Part>,
}

/// An operation with its parts.
#[derive(Clone, Debug)]
pub struct JoinedOp {
    /// As its client kept it.
    pub op: Op,
    /// The client: a place in [`Joined::names`].
    pub client: usize,
    /// Its parts; they fill its span. Of RPCs side by side those count that it had to wait for.
    pub parts: Vec<Part>,
    /// Its RPCs: places in [`Joined::rpcs`].
    pub rpcs: Vec<usize>,
}

impl JoinedOp {
    /// Nanoseconds it took.
    pub fn ns(&self) -> i64 {
        self.op.span.1 - self.op.span.0
    }

    /// Nanoseconds in a segment.
    pub fn in_segment(&self, s: Segment) -> i64 {
        self.parts
            .iter()
            .filter(|p| p.segment == s)
            .map(Part::ns)
            .sum()
    }
}

/// What a server asks a client about its locks, while another client's request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// To give one back: LDLM_BL_CALLBACK.
    Lock,
    /// What it knows of a file under one, such as its size, and to keep it: LDLM_GL_CALLBACK.
    Size,
}

/// A client was asked about its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callback {
    /// The client: a place in [`Joined::names`].
    pub client: usize,
    /// When, on its clock.
    pub at: i64,
    /// What for.
    pub asks: Asks,
}

impl Asks {
    fn of(opc: u32) -> Option<Asks> {
        match opc {
            opc::LDLM_BL_CALLBACK => Some(Asks::Lock),
            opc::LDLM_GL_CALLBACK => Some(Asks::Size),
            _ => None,
        }
    }
}

/// A server's work while a request of a client was not answered there, and was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meanwhile {
    /// The client: a place in [`Joined::names`].
    pub client: usize,
    /// NID of the server.
    pub peer: u64,
    /// From the queue to the reply, on the clock of the client.
    pub span: (i64, i64),
}

/// What several dumps say together.
#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// Targets, routers and clients.
    pub names: Vec<String>,
    /// Operations, by client and beginning.
    pub ops: Vec<JoinedOp>,
    /// RPCs, by client and beginning.
    pub rpcs: Vec<JoinedRpc>,
    /// Clocks as a client sees them: client, other node, and what is known of its clock.
    pub clocks: Vec<(String, String, Clock)>,
    /// Most by which two stamps contradict each other, beyond what clocks explain.
    pub conflict_ns: i64,
    /// What servers asked clients about their locks.
    pub callbacks: Vec<Callback>,
    /// What servers did for whomever while a client's request was sent again.
    pub meanwhile: Vec<Meanwhile>,
    /// Records that had left the rings.
    pub lost: u64,
    /// Operations that needed no RPC and waited for nothing, which are not kept.
    pub brief: u64,
}

impl Joined {
    fn name(&mut self, name: &str) -> usize {
        match self.names.iter().position(|n| n == name) {
            Some(i) => i,
            None => {
                self.names.push(name.to_owned());
                self.names.len() - 1
            }
        }
    }
}

type ServedAt<'a> = BTreeMap<(u64, u64), Vec<(usize, &'a Served)>>;
type PassedAt<'a> = BTreeMap<(u64, u64, u64), Vec<(usize, &'a Passage)>>;

/// Records of all dumps by what joins them.
struct Index<'a> {
    dumps: &'a [Dump],
    served: ServedAt<'a>,
    passed: PassedAt<'a>,
}

impl<'a> Index<'a> {
    fn new(dumps: &'a [Dump]) -> Index<'a> {
        let (mut served, mut passed) = (ServedAt::new(), PassedAt::new());
        for (d, dump) in dumps.iter().enumerate() {
            for s in &dump.served {
                served.entry((s.client, s.xid)).or_default().push((d, s));
            }
            for p in dump.passages.iter().filter(|p| p.kind == Kind::Put) {
                let key = (p.from, p.to, p.mbits);
                passed.entry(key).or_default().push((d, p));
            }
        }
        Index {
            dumps,
            served,
            passed,
        }
    }

    /// The last time it was served: that is what was answered.
    fn served(&self, client: &Dump, rpc: &Rpc) -> Option<(usize, &'a Served)> {
        let of = |nid: &u64| self.served.get(&(*nid, rpc.xid));
        let found = client.nids.iter().filter_map(of).flatten();
        found
            .filter(|(_, s)| s.opc == rpc.opc)
            .max_by_key(|(_, s)| s.arrived)
            .copied()
    }

    /// Routers on the way of a PUT, in the order in which it passed them.
    fn passed(&self, from: &[u64], to: &[u64], mbits: u64) -> Vec<(usize, &'a Passage)> {
        let pairs = from.iter().flat_map(|f| to.iter().map(move |t| (*f, *t)));
        let mut last: BTreeMap<usize, &Passage> = BTreeMap::new();
        for (d, p) in pairs
            .filter_map(|(f, t)| self.passed.get(&(f, t, mbits)))
            .flatten()
        {
            last.insert(*d, p);
        }
        last.into_iter().collect()
    }
}

/// One RPC with the records that belong to it.
struct Whole<'a> {
    rpc: &'a Rpc,
    served: Option<(usize, &'a Served)>,
    there: Vec<(usize, &'a Passage)>,
    back: Vec<(usize, &'a Passage)>,
}

/// The RPCs of operations that have ended, or were waited for by one, and that are not answered: as if their answer came when the dump
/// was made, under no xid.
fn unanswered(d: &Dump) -> Vec<Rpc> {
    let waited = |b: &&Begun| {
        let is_old = d.now - b.begun >= BACKGROUND_NS;
        let of = |o: &Op| match b.op {
            0 => is_old && o.fid == b.fid && b.fid.0 != 0,
            op => o.id == op,
        };
        b.opc.is_some() && d.ops.iter().any(|o| of(o) && o.span.1 > b.begun)
    };
    let rpc = |b: &Begun| {
        let same = d.rpcs.iter().find(|r| r.target == b.target);
        let sending = b.waits.map_or(b.begun, |_| d.now);
        Rpc {
            op: b.op,
            peer: same.map_or(0, |r| r.peer),
            target: b.target.clone(),
            xid: 0,
            reply_mbits: 0,
            opc: b.opc.unwrap_or(0),
            fid: b.fid,
            span: (b.begun, d.now),
            sending,
            sent: sending,
            reply: d.now,
            attempts: 1,
            bulk_bytes: 0,
            inline_bytes: 0,
            in_flight: 0,
            in_flight_max: same.map_or(0, |r| r.in_flight_max),
            waits: (b.waits.iter())
                .map(|(w, since)| (*w, *since, d.now))
                .collect(),
        }
    };
    d.under_way.iter().filter(waited).map(rpc).collect()
}

/// Joins what nodes gave out.
pub fn join(dumps: &[Dump]) -> Joined {
    let missing: Vec<Vec<Rpc>> = dumps.iter().map(unanswered).collect();
    if missing.iter().all(Vec::is_empty) {
        return join_whole(dumps);
    }
    let mut dumps = dumps.to_vec();
    for (d, missing) in dumps.iter_mut().zip(missing) {
        d.rpcs.extend(missing);
        d.rpcs.sort_by_key(|r| (r.span.0, r.xid));
    }
    join_whole(&dumps)
}

fn join_whole(dumps: &[Dump]) -> Joined {
    let index = Index::new(dumps);
    let mut out = Joined {
        lost: dumps.iter().map(|d| d.lost).sum(),
        brief: dumps.iter().map(|d| d.brief).sum(),
        ..Joined::default()
    };
    for (c, dump) in dumps.iter().enumerate() {
        // Also of a client that does nothing else: it tells others how big its files are.
        let asked: Vec<(i64, Asks)> = (dump.served.iter())
            .filter_map(|s| Some((s.arrived, Asks::of(s.opc)?)))
            .collect();
        if dump.ops.is_empty() && dump.rpcs.is_empty() && asked.is_empty() {
            continue;
        }
        let wholes: Vec<Whole> = dump.rpcs.iter().map(|r| whole(&index, dump, r)).collect();
        let clocks = clocks(&index, c, &wholes);
        let me = out.name(primary(dump));
        for (d, clock) in clocks.iter().enumerate() {
            if let Some(clock) = clock.filter(|_| d != c && !dump.ops.is_empty()) {
                let names = (primary(dump).to_owned(), primary(&dumps[d]).to_owned());
                out.clocks.push((names.0, names.1, clock));
            }
        }
        let callback = |(at, asks)| Callback {
            client: me,
            at,
            asks,
        };
        out.callbacks.extend(asked.into_iter().map(callback));
        let again = dump.rpcs.iter().filter(|r| r.attempts > 1);
        let again: Vec<Meanwhile> = again
            .flat_map(|r| meanwhile(dumps, me, r, &clocks))
            .collect();
        out.meanwhile.extend(again);
        let first = out.rpcs.len();
        for w in &wholes {
            let rpc = taken_apart(&mut out, &index, me, w, &clocks);
            out.rpcs.push(rpc);
        }
        for op in &dump.ops {
            let op = operation(op, me, first, &out.rpcs);
            out.ops.push(op);
        }
    }
    out
}

/// What the server of a request that was sent again did before the last sending.
fn meanwhile(dumps: &[Dump], client: usize, r: &Rpc, clocks: &[Option<Clock>]) -> Vec<Meanwhile> {
    let server = dumps.iter().position(|d| d.nids.contains(&r.peer));
    let known = server.and_then(|d| Some((&dumps[d], clocks[d]?)));
    let Some((server, clock)) = known else {
        return vec![];
    };
    let of = server.served.iter().map(|s| Meanwhile {
        client,
        peer: r.peer,
        span: (s.begun - clock.offset_ns, s.replied - clock.offset_ns),
    });
    of.filter(|m| m.span.0 > r.span.0 && m.span.1 < r.sending)
        .collect()
}

/// What is added to the moments of each dump, so that all are on one clock. Nodes between which no message passed, whoever is between
/// them, are taken to have been asked last at one moment.
pub(crate) fn to_one_clock(dumps: &[Dump]) -> Vec<i64> {
    let leads = leads(dumps);
    let now = dumps.iter().map(|d| d.now).max().unwrap_or(0);
    let mut by = vec![0; dumps.len()];
    for (d, (group, lead)) in leads.iter().enumerate() {
        let of = leads.iter().zip(dumps).filter(|((g, _), _)| g == group);
        let last = of.map(|((_, lead), d)| d.now - lead).max();
        by[d] = now - last.unwrap_or(now) - lead;
    }
    by
}

/// Of each dump, a group of dumps that messages join, and by how much its clock is ahead of that of the group's first.
fn leads(dumps: &[Dump]) -> Vec<(usize, i64)> {
    let index = Index::new(dumps);
    let mut pairs: Vec<(usize, usize, i64)> = Vec::new();
    for (c, dump) in dumps.iter().enumerate() {
        let wholes: Vec<Whole> = dump.rpcs.iter().map(|r| whole(&index, dump, r)).collect();
        let of = clocks(&index, c, &wholes).into_iter().enumerate();
        pairs.extend(of.filter_map(|(d, clock)| Some((c, d, clock?.offset_ns))));
    }
    let mut leads: Vec<Option<(usize, i64)>> = vec![None; dumps.len()];
    for first in 0..dumps.len() {
        leads[first].get_or_insert((first, 0));
        loop {
            let before = leads.iter().flatten().count();
            for (c, d, lead) in &pairs {
                match (leads[*c], leads[*d]) {
                    (Some((group, of)), None) => leads[*d] = Some((group, of + lead)),
                    (None, Some((group, of))) => leads[*c] = Some((group, of - lead)),
                    _ => {}
                }
            }
            if leads.iter().flatten().count() == before {
                break;
            }
        }
    }
    leads.into_iter().flatten().collect()
}

fn primary(dump: &Dump) -> &str {
    dump.names.first().map_or("?", String::as_str)
}

fn whole<'a>(index: &Index<'a>, client: &Dump, rpc: &'a Rpc) -> Whole<'a> {
    let served = index.served(client, rpc);
    let server: &[u64] = match served {
        Some((d, _)) => &index.dumps[d].nids,
        None => std::slice::from_ref(&rpc.peer),
    };
    let mut there = index.passed(&client.nids, server, rpc.xid);
    let mut back = index.passed(server, &client.nids, rpc.reply_mbits);
    // Bulk data have match bits near these, on portals of their own: only the reply has just these and comes last.
    there.sort_by_key(|(_, p)| p.arrived);
    back.sort_by_key(|(_, p)| p.arrived);
    Whole {
        rpc,
        served,
        there,
        back,
    }
}

/// The clocks of all dumps as the client `c` sees them.
fn clocks(index: &Index, c: usize, wholes: &[Whole]) -> Vec<Option<Clock>> {
    let mut bounds = vec![Bounds::default(); index.dumps.len()];
    let mut seen = vec![false; index.dumps.len()];
    for w in wholes {
        if let Some((d, s)) = w.served {
            seen[d] = true;
            bounds[d].there(w.rpc.sending, s.arrived);
            bounds[d].back(s.replying, w.rpc.reply);
        }
        for (d, p) in &w.there {
            seen[*d] = true;
            bounds[*d].there(w.rpc.sending, p.arrived);
        }
        for (d, p) in &w.back {
            seen[*d] = true;
            bounds[*d].back(p.whole, w.rpc.reply);
        }
    }
    let mine = &index.dumps[c];
    let of = |d: usize| match known(mine, &index.dumps[d]) {
        Some(clock) => Some(clock),
        None => seen[d].then(|| bounds[d].clock()),
    };
    (0..index.dumps.len()).map(of).collect()
}

/// The clock of another node where it needs no message to be known: both are of one process, or of one machine.
fn known(mine: &Dump, other: &Dump) -> Option<Clock> {
    if mine.clock == other.clock {
        return Some(Clock::SAME);
    }
    let (here, there) = (mine.machine.as_ref()?, other.machine.as_ref()?);
    (here.name == there.name).then(|| Clock {
        offset_ns: here.base_ns - there.base_ns,
        ..Clock::SAME
    })
}

fn taken_apart(
    out: &mut Joined,
    index: &Index,
    client: usize,
    w: &Whole,
    clocks: &[Option<Clock>],
) -> JoinedRpc {
    let r = w.rpc;
    let target = out.name(r.target.trim_end_matches("_UUID"));
    let mut line = Line::new(r.span.0, r.span.1);
    let before = match r.attempts {
        0 | 1 => Segment::Send,
        _ => Segment::Resend,
    };
    let all = (before, i64::MAX / 4);
    line.waits_until(&r.waits, 0, all, target, (r.sending, 0));
    let clock = |d: usize| clocks[d].unwrap_or(Clock::SAME);
    let routers = |out: &mut Joined, line: &mut Line, way: &[(usize, &Passage)]| {
        for (d, p) in way {
            let (c, name) = (clock(*d), out.name(primary(&index.dumps[*d])));
            let (at, sure) = (|t: i64| t - c.offset_ns, c.sure());
            line.until(Segment::Network, target, at(p.arrived), sure);
            line.until(Segment::RouterQueue, name, at(p.admitted), sure);
            // Its last byte may be there before the router hears that it was taken.
            line.until(Segment::Router, name, at(p.whole), sure);
        }
    };
    // Where it arrives next: the sender may hear of it later.
    let next = w
        .there
        .first()
        .map(|(d, p)| p.arrived - clock(*d).offset_ns);
    let arrived = w.served.map(|(d, s)| s.arrived - clock(d).offset_ns);
    let sent = match [next, arrived].into_iter().flatten().min() {
        Some(there) => r.sent.min(there).max(r.sending),
        // Where nobody else tells, and the answer was here before the sender heard that the question was taken, none of it was
        // known to be sending: it may have lost its processor in between.
        None if r.sent > r.reply => r.sending,
        None => r.sent,
    };
    let all = (Segment::Send, i64::MAX / 4);
    line.waits_until(&r.waits, 0, all, target, (sent, 0));
    let service = match w.served {
        None => {
            line.until(Segment::Remote, target, r.reply, 0);
            String::new()
        }
        Some((d, s)) => {
            let c = clock(d);
            let (at, sure) = (|t: i64| t - c.offset_ns, c.sure());
            routers(out, &mut line, &w.there);
            line.until(Segment::Network, target, at(s.arrived), sure);
            line.until(Segment::ServerQueue, target, at(s.begun), sure);
            let run = (Segment::ServerCpu, s.run_ns as i64);
            let ready = (at(s.replying), sure);
            line.waits_until(&s.waits, c.offset_ns, run, target, ready);
            let next = w.back.first().map(|(d, p)| p.arrived - clock(*d).offset_ns);
            let out_by = next.unwrap_or(r.reply).min(at(s.replied));
            line.until(Segment::ReplyOut, target, out_by.max(at(s.replying)), sure);
            routers(out, &mut line, &w.back);
            line.until(Segment::Network, target, r.reply, sure);
            s.service.to_string()
        }
    };
    line.until(Segment::WakeUp, client, r.span.1, 0);
    out.conflict_ns = out.conflict_ns.max(line.conflict);
    JoinedRpc {
        rpc: r.clone(),
        is_served: w.served.is_some(),
        service,
        target,
        client,
        reply_late_ns: w.served.map_or(0, |(_, s)| s.replied - s.replying),
        parts: line.parts,
    }
}

/// An operation: from its end back, always with the RPC that ended last.
fn operation(op: &Op, client: usize, first: usize, all: &[JoinedRpc]) -> JoinedOp {
    let (begin, end) = op.span;
    let rpcs = &all[first..];
    let overlaps = |r: &Rpc| r.span.0 < end && r.span.1 > begin;
    let own: Vec<usize> = (0..rpcs.len())
        .filter(|i| rpcs[*i].rpc.op == op.id && overlaps(&rpcs[*i].rpc))
        .collect();
    let mut line = chain(op, client, rpcs, &own);
    let mut mine = own.clone();
    let is = |p: &&Part| p.segment == Segment::NotPlaced && p.at == client;
    let missing: i64 = line.iter().filter(is).map(Part::ns).sum();
    if missing as f64 > WAITS_SHARE * (end - begin) as f64 && op.fid.0 != 0 {
        let same = |r: &Rpc| r.op == 0 && r.fid == op.fid && overlaps(r);
        mine.extend((0..rpcs.len()).filter(|i| same(&rpcs[*i].rpc)));
        line = chain(op, client, rpcs, &mine);
    }
    JoinedOp {
        op: op.clone(),
        client,
        parts: line,
        rpcs: mine.into_iter().map(|i| first + i).collect(),
    }
}

/// The parts of an operation that had these RPCs.
fn chain(op: &Op, client: usize, rpcs: &[JoinedRpc], of: &[usize]) -> Vec<Part> {
    let (begin, mut t) = op.span;
    // Stretches with the RPC that was waited for, from the last to the first.
    let mut stretches: Vec<(usize, i64, i64)> = Vec::new();
    while t > begin {
        let last = of.iter().filter(|i| rpcs[**i].rpc.span.0 < t);
        let last = last.max_by_key(|i| (rpcs[**i].rpc.span.1.min(t), -rpcs[**i].rpc.span.0));
        let Some(i) = last else { break };
        let (from, to) = rpcs[*i].rpc.span;
        let (from, to) = (from.max(begin), to.min(t));
        if to <= from {
            break;
        }
        stretches.push((*i, from, to));
        t = from;
    }
    let mut line = Line::new(begin, op.span.1);
    let mut budget = op.run_ns as i64;
    let mut own = |line: &mut Line, to: i64| {
        let before = line.parts.len();
        let run = (Segment::ClientCpu, budget);
        line.waits_until(&op.waits, 0, run, client, (to, 0));
        let ran = line.parts[before.saturating_sub(1)..].iter();
        let ran = ran.filter(|p| p.segment == Segment::ClientCpu);
        budget -= ran.map(Part::ns).sum::<i64>().min(budget);
    };
    for (i, from, to) in stretches.into_iter().rev() {
        own(&mut line, from);
        for p in rpcs[i].parts.iter().filter(|p| p.to > from && p.from < to) {
            line.until(p.segment, p.at, p.to.min(to), 0);
        }
    }
    own(&mut line, op.span.1);
    line.parts
}

/// An RPC of no operation to an OST at NID 2, which was sent at once and took its caller no time after the reply: for tests.
#[cfg(test)]
pub(crate) fn rpc_of(opc: u32, xid: u64, span: (i64, i64)) -> Rpc {
    Rpc {
        op: 0,
        peer: 2,
        target: "fs-OST0000_UUID".into(),
        xid,
        reply_mbits: xid,
        opc,
        fid: (0, 0, 0),
        span,
        sending: span.0,
        sent: span.0,
        reply: span.1,
        attempts: 1,
        bulk_bytes: 0,
        inline_bytes: 0,
        in_flight: 1,
        in_flight_max: 8,
        waits: vec![],
    }
}

#[cfg(test)]
mod tests {
    use coral_stopwatch::Machine;

    use super::*;

    /// A client whose server was not asked; its sender heard at `sent` that the request was taken.
    fn parts(sent: i64) -> (Vec<(Segment, i64)>, i64) {
        let rpc = Rpc {
            sending: 10,
            sent,
            reply: 50,
            ..rpc_of(opc::OST_READ, 7, (0, 70))
        };
        let client = Dump {
            clock: "c".into(),
            nids: vec![1],
            names: vec!["c@tcp".into()],
            rpcs: vec![rpc],
            ..Dump::default()
        };
        let joined = join(&[client]);
        let parts = joined.rpcs[0].parts.iter();
        (
            parts.map(|p| (p.segment, p.ns())).collect(),
            joined.conflict_ns,
        )
    }

    /// A write that was given up after 22 s, while its RPC goes on; and one in the background, which it waited for.
    #[test]
    fn the_wait_for_what_is_not_answered_is_at_its_target() {
        const S: i64 = 1_000_000_000;
        for of in [7, 0] {
            let op = Op {
                id: 7,
                op: "WRITE".into(),
                fid: (1, 2, 0),
                span: (S, 23 * S),
                run_ns: 0,
                waits: vec![],
            };
            let rpc = Begun {
                op: of,
                name: "".into(),
                opc: Some(opc::OST_WRITE),
                target: "fs-OST0001_UUID".into(),
                fid: op.fid,
                begun: S,
                waits: None,
            };
            let joined = join(&[Dump {
                now: 30 * S,
                nids: vec![1],
                names: vec!["c@tcp".into()],
                ops: vec![op],
                under_way: vec![rpc],
                ..Dump::default()
            }]);
            let op = &joined.ops[0];
            assert_eq!(op.in_segment(Segment::Remote), 22 * S, "{op:?}");
            let text = crate::attribution::operation_text(&joined, op);
            let told = "  OST_WRITE to fs-OST0001, not answered: 29.00 s from 0 ns on";
            assert!(text.contains(told), "{text}");
            assert!(text.contains("100.0%  fs-OST0001"), "{text}");
        }
    }

    /// Replies that are held back for 1 s, between two processes: by the messages alone the clocks may be half a second apart.
    #[test]
    fn the_clocks_of_one_machine_are_known() {
        const S: i64 = 1_000_000_000;
        let reply_out = |name: &str| {
            let machine = |name: &str, base_ns| {
                Some(Machine {
                    name: name.to_owned(),
                    base_ns,
                })
            };
            let client = Dump {
                clock: "c".into(),
                machine: machine("here", 20 * S),
                nids: vec![1],
                rpcs: vec![rpc_of(opc::OST_READ, 7, (0, 2 * S))],
                ..Dump::default()
            };
            let server = Dump {
                clock: "s".into(),
                machine: machine(name, 5 * S),
                nids: vec![2],
                served: vec![Served {
                    client: 1,
                    xid: 7,
                    opc: opc::OST_READ,
                    service: "ost_io".into(),
                    arrived: 15 * S,
                    begun: 15 * S,
                    replying: 16 * S,
                    replied: 17 * S,
                    run_ns: S as u64,
                    waits: vec![],
                }],
                ..Dump::default()
            };
            let joined = join(&[client, server]);
            let rpc = &joined.rpcs[0];
            let parts = rpc.parts.iter().filter(|p| p.segment == Segment::ReplyOut);
            assert_eq!(rpc.reply_late_ns, S);
            (parts.map(Part::ns).sum::<i64>(), joined.conflict_ns)
        };
        assert_eq!(reply_out("here"), (S, 0));
        assert_eq!(reply_out("there"), (S / 2, 0), "as far as messages tell");
    }

    /// A client that has no RPC in the time is asked for a lock and for a size, and told that a lock is granted.
    #[test]
    fn what_clients_are_asked_about_their_locks_is_known_with_what_for() {
        let asked = |opc, arrived| Served {
            client: 2,
            xid: 7,
            opc,
            service: "ldlm_cbd".into(),
            arrived,
            begun: arrived,
            replying: arrived,
            replied: arrived,
            run_ns: 0,
            waits: vec![],
        };
        let joined = join(&[Dump {
            nids: vec![1],
            names: vec!["c@tcp".into()],
            served: vec![
                asked(opc::LDLM_BL_CALLBACK, 10),
                asked(opc::LDLM_CP_CALLBACK, 20),
                asked(opc::LDLM_GL_CALLBACK, 30),
            ],
            ..Dump::default()
        }]);
        let all = joined.callbacks.iter();
        let all: Vec<_> = all
            .map(|c| (&*joined.names[c.client], c.at, c.asks))
            .collect();
        assert_eq!(all, [("c@tcp", 10, Asks::Lock), ("c@tcp", 30, Asks::Size)]);
    }

    #[test]
    fn a_sender_that_hears_late_contradicts_nobody() {
        use Segment::{Remote, Send, WakeUp};
        assert_eq!(parts(20), (vec![(Send, 20), (Remote, 30), (WakeUp, 20)], 0));
        // it had lost its processor, and the answer was there before it went on
        assert_eq!(parts(60), (vec![(Send, 10), (Remote, 40), (WakeUp, 20)], 0));
    }
}
