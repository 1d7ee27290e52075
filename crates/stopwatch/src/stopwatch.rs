//! The rings of a node.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use coral_wire::fid::Fid;
use coral_wire::nid::Nid;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::record::{Dump, Kind, Machine, Op, Passage, Rpc, Served, Waits};
use crate::ring::{Ring, Span};
use crate::timed::Operation;
use crate::under_way::{Entry, Going, Teller, Tellers, UnderWay, What};
use crate::watch::{Interval, Part, Ran, Seen, Watch, part_ends};

/// An operation that took longer is kept, whatever it needed.
const BRIEF: Duration = Duration::from_micros(100);

/// Names that records of a node can refer to; all others are told as [`OTHER`]. Targets and services, which are far fewer.
const NAMES_MAX: usize = 65_536;
/// The name of what has none.
const OTHER: &str = "another";

/// A moment in a ring: nanoseconds since the node's start.
type Ns = u64;

/// A name that records refer to: see [`Stopwatch::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(u32);

#[derive(Clone, Copy, Debug)]
struct KeptOp {
    id: u64,
    op: &'static str,
    fid: Fid,
    span: (Ns, Ns),
    run_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct KeptRpc {
    op: u64,
    peer: u64,
    xid: u64,
    reply_mbits: u64,
    bulk_bytes: u64,
    span: (Ns, Ns),
    sending: Ns,
    sent: Ns,
    reply: Ns,
    fid: Fid,
    target: Name,
    opc: u32,
    attempts: u32,
    inline_bytes: u32,
    in_flight: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
struct KeptServed {
    client: u64,
    xid: u64,
    arrived: Ns,
    begun: Ns,
    replying: Ns,
    replied: Ns,
    run_ns: u64,
    opc: u32,
    service: Name,
}

/// What is known of an RPC when its reply is there.
#[derive(Clone, Debug)]
pub struct RpcEnd {
    /// NID of the server.
    pub peer: u64,
    /// The target.
    pub target: Name,
    /// Its xid.
    pub xid: u64,
    /// Match bits of the reply.
    pub reply_mbits: u64,
    /// Opcode.
    pub opc: u32,
    /// The file.
    pub fid: Fid,
    /// Called.
    pub begun: Instant,
    /// Its last sending began.
    pub sending: Instant,
    /// The LND had taken it.
    pub sent: Instant,
    /// The reply was here.
    pub reply: Instant,
    /// The caller has it.
    pub ended: Instant,
    /// Times it was sent.
    pub attempts: u32,
    /// Bytes of bulk data.
    pub bulk_bytes: u64,
    /// Bytes of a file's data within request and reply.
    pub inline_bytes: u32,
    /// Places that were taken when it had got one, with its own, and how many there are; 0: it needed none.
    pub in_flight: (u32, u32),
}

/// What is known of a request when it was answered.
#[derive(Clone, Debug)]
pub struct ServedEnd {
    /// NID of the client.
    pub client: u64,
    /// Its xid.
    pub xid: u64,
    /// Opcode.
    pub opc: u32,
    /// The service.
    pub service: Name,
    /// It was here.
    pub arrived: Instant,
    /// It left the queue.
    pub begun: Instant,
    /// Its reply was ready.
    pub replying: Instant,
    /// The LND had taken that.
    pub replied: Instant,
}

/// A message on its way through a router.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// From this NID.
    pub from: u64,
    /// To this one.
    pub to: u64,
    /// What it is.
    pub kind: Kind,
    /// Portal.
    pub portal: u32,
    /// Match bits.
    pub mbits: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Its header was here.
    pub arrived: Instant,
    /// It had a router credit and a buffer.
    pub admitted: Instant,
    /// It was here whole.
    pub whole: Instant,
}

/// The stopwatch of a node: its clock, and what it keeps.
#[derive(Debug)]
pub struct Stopwatch {
    epoch: Instant,
    on: AtomicBool,
    /// Operations that needed no RPC and waited for nothing.
    brief: AtomicU64,
    names: Mutex<Vec<Arc<str>>>,
    ops: Ring<KeptOp>,
    rpcs: Ring<KeptRpc>,
    served: Ring<KeptServed>,
    passages: Ring<(Passing, Instant)>,
    pub(crate) under_way: Arc<UnderWay>,
    tellers: Tellers,
}

impl Default for Stopwatch {
    fn default() -> Self {
        Stopwatch {
            epoch: Instant::now(),
            on: AtomicBool::new(true),
            brief: AtomicU64::new(0),
            names: Mutex::default(),
            ops: Ring::default(),
            rpcs: Ring::default(),
            served: Ring::default(),
            passages: Ring::default(),
            under_way: Arc::default(),
            tellers: Tellers::default(),
        }
    }
}

impl Stopwatch {
    /// Whether it keeps anything: always, unless a measurement of its own cost says otherwise.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Turns it off or on, to measure what it costs.
    pub fn turn(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// A name for records, to be asked for once by whatever has it: it is looked for among all of them.
    pub fn name(&self, of: &str) -> Name {
        let mut names = self.names.lock();
        let at = names.iter().position(|n| &**n == of).unwrap_or_else(|| {
            if names.len() < NAMES_MAX {
                names.push(of.into());
                return names.len() - 1;
            }
            NAMES_MAX
        });
        Name(at as u32)
    }

    /// An RPC that begins now, part of the operation that is current; None: it is off.
    pub fn part(&self, begun: Instant) -> Option<Part> {
        self.is_on().then(|| Part::new(begun))
    }

    /// The watch of a request being handled; None: it is off.
    pub fn handling(&self) -> Option<Arc<Watch>> {
        self.is_on().then(|| Watch::new(0, 0))
    }

    /// Runs an operation of a client, which begins now.
    #[inline]
    pub fn operation<F: Future>(
        &self,
        op: &'static str,
        fid: Fid,
        fut: F,
    ) -> impl Future<Output = F::Output> {
        Operation::new(self, op, fid, fut)
    }

    /// An operation that began at `begun` goes on: it is told as under way until this is dropped.
    pub fn goes_on(&self, watch: &Arc<Watch>, op: &'static str, fid: Fid, begun: Instant) -> Entry {
        let going = Going {
            what: What::Op(op),
            fid,
            begun,
            watch: watch.clone(),
        };
        Entry::new(&self.under_way, going)
    }

    /// The same of an RPC.
    pub fn rpc_begins(
        &self,
        watch: &Arc<Watch>,
        opc: u32,
        target: Name,
        fid: Fid,
        begun: Instant,
    ) -> Entry {
        let going = Going {
            what: What::Rpc(opc, target),
            fid,
            begun,
            watch: watch.clone(),
        };
        Entry::new(&self.under_way, going)
    }

    /// `teller` is asked for what is under way whenever a dump is made.
    pub fn asks(&self, teller: Weak<dyn Teller>) {
        self.tellers.add(teller);
    }

    /// An operation has ended. One that needed no RPC and waited for nothing is counted only: there is nothing to take apart.
    pub fn operation_ended(
        &self,
        seen: &Seen,
        op: &'static str,
        fid: impl FnOnce() -> Fid,
        (begun, ended): (Instant, Instant),
    ) {
        if seen.is_brief() && ended.saturating_duration_since(begun) < BRIEF {
            self.brief.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Ran { run_ns, waits } = seen.take();
        let kept = KeptOp {
            id: seen.id(),
            op,
            fid: fid(),
            span: (self.ns(begun), self.ns(ended)),
            run_ns,
        };
        self.ops.push(kept, self.spans(&waits));
    }

    /// The RPC whose future is polled now was answered, and the poll ends with this.
    #[inline]
    pub fn rpc_ended(&self, end: RpcEnd) {
        let (op, waits) = part_ends(end.ended);
        self.keep_rpc(op, &waits, &end);
    }

    /// An RPC was given up before it was answered: its caller waits no longer, or it cannot be sent. What it waits for just then it has
    /// waited for.
    pub fn rpc_given_up(&self, watch: &Watch, end: RpcEnd) {
        if let Some((what, since)) = watch.waiting() {
            watch.waited(what, since, end.ended);
        }
        self.keep_rpc(watch.parent(), &watch.take().waits, &end);
    }

    #[inline]
    fn keep_rpc(&self, op: u64, waits: &[Interval], end: &RpcEnd) {
        let kept = KeptRpc {
            op,
            peer: end.peer,
            xid: end.xid,
            reply_mbits: end.reply_mbits,
            bulk_bytes: end.bulk_bytes,
            inline_bytes: end.inline_bytes,
            span: (self.ns(end.begun), self.ns(end.ended)),
            sending: self.ns(end.sending),
            sent: self.ns(end.sent),
            reply: self.ns(end.reply),
            fid: end.fid,
            target: end.target,
            opc: end.opc,
            attempts: end.attempts,
            in_flight: end.in_flight,
        };
        self.rpcs.push(kept, self.spans(waits));
    }

    /// A request was answered. `ran`: up to its reply.
    pub fn served(&self, ran: Ran, end: ServedEnd) {
        let kept = KeptServed {
            client: end.client,
            xid: end.xid,
            arrived: self.ns(end.arrived),
            begun: self.ns(end.begun),
            replying: self.ns(end.replying),
            replied: self.ns(end.replied),
            run_ns: ran.run_ns,
            opc: end.opc,
            service: end.service,
        };
        self.served.push(kept, self.spans(&ran.waits));
    }

    /// A message was written to its next hop.
    pub fn passed(&self, message: Passing) {
        if self.is_on() {
            let passed = Instant::now();
            self.passages.push((message, passed), std::iter::empty());
        }
    }

    fn ns(&self, at: Instant) -> Ns {
        at.saturating_duration_since(self.epoch).as_nanos() as Ns
    }

    fn spans<'a>(&'a self, waits: &'a [Interval]) -> impl Iterator<Item = Span> + 'a {
        let spans = waits.iter();
        spans.map(|(w, from, to)| (*w, self.ns(*from), self.ns(*to)))
    }

    /// Operations since its start that needed no RPC and waited for nothing, which are not kept.
    pub fn brief(&self) -> u64 {
        self.brief.load(Ordering::Relaxed)
    }

    /// What is kept, with moments counted from `base`, on a clock of that name.
    pub fn dump(&self, clock: &str, base: Instant) -> Dump {
        let at = |i: Instant| match i.checked_duration_since(base) {
            Some(after) => after.as_nanos() as i64,
            None => -(base.saturating_duration_since(i).as_nanos() as i64),
        };
        let epoch = at(self.epoch);
        let ns = |n: Ns| epoch + n as i64;
        let span = |(a, b): (Ns, Ns)| (ns(a), ns(b));
        let waits =
            |kept: Vec<Span>| -> Waits { kept.iter().map(|w| (w.0, ns(w.1), ns(w.2))).collect() };
        let fid = |f: Fid| (f.seq, f.oid, f.ver);
        let names = self.names.lock().clone();
        let name = |n: Name| {
            let name = names.get(n.0 as usize).map_or(OTHER, |n| n);
            Cow::Owned(name.to_owned())
        };
        let mut dump = Dump {
            clock: clock.to_owned(),
            now: at(Instant::now()),
            brief: self.brief(),
            lost: [
                self.ops.lost(),
                self.rpcs.lost(),
                self.served.lost(),
                self.passages.lost(),
            ]
            .iter()
            .sum(),
            lost_ops: self.ops.lost(),
            ..Dump::default()
        };
        dump.ops = (self.ops.all().into_iter())
            .map(|(o, kept)| Op {
                id: o.id,
                op: Cow::Borrowed(o.op),
                fid: fid(o.fid),
                span: span(o.span),
                run_ns: o.run_ns,
                waits: waits(kept),
            })
            .collect();
        dump.rpcs = (self.rpcs.all().into_iter())
            .map(|(e, kept)| Rpc {
                op: e.op,
                peer: e.peer,
                target: name(e.target),
                xid: e.xid,
                reply_mbits: e.reply_mbits,
                opc: e.opc,
                fid: fid(e.fid),
                span: span(e.span),
                sending: ns(e.sending),
                sent: ns(e.sent),
                reply: ns(e.reply),
                attempts: e.attempts,
                bulk_bytes: e.bulk_bytes,
                inline_bytes: e.inline_bytes,
                in_flight: e.in_flight.0,
                in_flight_max: e.in_flight.1,
                waits: waits(kept),
            })
            .collect();
        dump.served = (self.served.all().into_iter())
            .map(|(e, kept)| Served {
                client: e.client,
                xid: e.xid,
                opc: e.opc,
                service: name(e.service),
                arrived: ns(e.arrived),
                begun: ns(e.begun),
                replying: ns(e.replying),
                replied: ns(e.replied),
                run_ns: e.run_ns,
                waits: waits(kept),
            })
            .collect();
        dump.passages = (self.passages.all().into_iter())
            .map(|((p, passed), _)| Passage {
                from: p.from,
                to: p.to,
                kind: p.kind,
                portal: p.portal,
                mbits: p.mbits,
                bytes: p.bytes,
                arrived: at(p.arrived),
                admitted: at(p.admitted),
                whole: at(p.whole),
                passed: at(passed),
            })
            .collect();
        let going = self.under_way.all();
        dump.under_way = going.iter().map(|g| g.told(at, name)).collect();
        let told = self.tellers.told().into_iter();
        dump.under_way.extend(told.map(|asked| asked.told(at)));
        if self.rpcs.lost() > 0 {
            dump.leave_out_the_torn();
        }
        dump.sort();
        dump
    }
}

/// What the stopwatches of this process's nodes keep, each with the NIDs of its node, all on the one clock of the process:
/// dumps made one after the other have it too.
pub fn dumps<'a>(nodes: impl IntoIterator<Item = (&'a Stopwatch, &'a [Nid])>) -> Vec<Dump> {
    static BASE: OnceLock<(Instant, Option<Machine>)> = OnceLock::new();
    let (base, machine) = BASE.get_or_init(|| {
        let base = Instant::now();
        (base, Machine::here(base))
    });
    // A pid alone may be another process's in another namespace.
    let clock = format!("{}-{base:?}", std::process::id());
    let dump = |(watch, nids): (&Stopwatch, &[Nid])| {
        let mut dump = watch.dump(&clock, *base);
        dump.machine = machine.clone();
        dump.nids = nids.iter().map(|n| n.0).collect();
        dump.names = nids.iter().map(Nid::to_string).collect();
        dump
    };
    nodes.into_iter().map(dump).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KEPT, Wait};

    #[tokio::test(start_paused = true)]
    async fn the_last_records_of_several_nodes_are_kept_together() {
        let (a, b) = (Stopwatch::default(), Stopwatch::default());
        for i in 0..10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let s = if i % 2 == 0 { &a } else { &b };
            let now = Instant::now();
            s.rpc_ended(rpc(s.name("t"), i, now));
            s.operation("getattr", Fid::ZERO, async { drop(s.part(now)) })
                .await;
        }
        let mut all = dumps([(&a, &[][..]), (&b, &[][..])]);
        assert_eq!(all[0].clock, all[1].clock);
        Dump::keep_last(&mut all, 100);
        assert_eq!((all[0].rpcs.len(), all[1].rpcs.len()), (5, 5));
        assert!(all[0].rpcs.iter().all(|r| r.target == "t"));
        Dump::keep_last(&mut all, 3);
        let xids = |d: &Dump| d.rpcs.iter().map(|r| r.xid).collect::<Vec<_>>();
        assert_eq!((xids(&all[0]), xids(&all[1])), (vec![8], vec![7, 9]));
        assert_eq!((all[0].ops.len(), all[1].ops.len()), (1, 2));
        assert_eq!((all[0].lost, all[1].lost), (8, 6));
    }

    /// Three RPCs an operation: their ring reaches back a third as far as that of the operations.
    #[tokio::test(start_paused = true)]
    async fn an_operation_whose_rpcs_have_gone_is_left_out() {
        let s = Stopwatch::default();
        let base = Instant::now();
        let sends = |count: u64, each: Duration| {
            let s = &s;
            async move {
                for xid in 0..count {
                    let begun = Instant::now();
                    let mut part = s.part(begun).unwrap();
                    let mut call = std::pin::pin!(async {
                        tokio::time::sleep(each).await;
                        let mut end = rpc(s.name("t"), xid, begun);
                        end.ended = Instant::now();
                        s.rpc_ended(end);
                    });
                    std::future::poll_fn(|cx| part.poll(call.as_mut(), cx)).await;
                }
            }
        };
        // Another waits for its only RPC all the time, and so has it.
        let (ms, count) = (Duration::from_millis(1), KEPT as u64 / 2);
        let sync = s.operation("sync", Fid::ZERO, sends(1, ms * (3 * count as u32 + 1)));
        let writes = async {
            for _ in 0..count {
                s.operation("write", Fid::ZERO, sends(3, ms)).await;
            }
        };
        tokio::join!(sync, writes);
        let d = s.dump("here", base);
        let rpcs = |id: u64| d.rpcs.iter().filter(|r| r.op == id).count();
        let (sync, writes): (Vec<_>, Vec<_>) = d.ops.iter().partition(|o| o.op == "sync");
        assert_eq!((sync.len(), rpcs(sync[0].id)), (1, 1));
        assert!(writes.iter().all(|o| rpcs(o.id) == 3));
        assert_eq!(d.lost_ops, count - writes.len() as u64);
        assert_eq!(writes.len(), (KEPT - 1) / 3);
    }

    fn rpc(target: Name, xid: u64, at: Instant) -> RpcEnd {
        RpcEnd {
            peer: 0,
            target,
            xid,
            reply_mbits: 0,
            opc: 0,
            fid: Fid::ZERO,
            begun: at,
            sending: at,
            sent: at,
            reply: at,
            ended: at,
            attempts: 1,
            bulk_bytes: 0,
            inline_bytes: 0,
            in_flight: (1, 8),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_is_dumped_and_read_again() {
        let s = Stopwatch::default();
        let base = Instant::now();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let wait = crate::waits(Wait::Lock, tokio::time::sleep(Duration::from_millis(2)));
        s.operation("getattr", Fid::ZERO, wait).await;
        let dump = s.dump("here", base);
        let op = &dump.ops[0];
        assert_eq!(op.span, (1_000_000, 3_000_000));
        assert_eq!(op.waits, [(Wait::Lock, 1_000_000, 3_000_000)]);
        let text = serde_json::to_string(&dump).unwrap();
        assert_eq!(serde_json::from_str::<Dump>(&text).unwrap(), dump);
        s.operation("getattr", Fid::ZERO, async {}).await;
        let dump = s.dump("here", base);
        assert_eq!((dump.ops.len(), dump.brief), (1, 1), "it needed nobody");
        s.operation("getattr", Fid::ZERO, async { drop(s.part(base)) })
            .await;
        assert_eq!(s.dump("here", base).ops.len(), 2, "it sent an RPC");
        s.turn(false);
        s.operation("getattr", Fid::ZERO, async {}).await;
        let dump = s.dump("here", base);
        assert_eq!((dump.ops.len(), dump.brief), (2, 1), "it is off");
    }
}
