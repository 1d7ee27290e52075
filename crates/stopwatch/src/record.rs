//! What a node keeps of operations, RPCs, requests and messages passed on, and gives out as JSON.
//!
//! Moments are nanoseconds since a moment that the dump chooses; all nodes of one process have the same.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Part of an operation's time that may be before its first RPC where older ones have gone.
const UNTOLD: i64 = 20;

/// For what is waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// A slot of modifying requests, or a place of `max_rpcs_in_flight`.
    Slot,
    /// A connection in use, or the end of a recovery.
    Connection,
    /// The pause before a request goes out again that was answered with EINPROGRESS.
    Pause,
    /// An LNet send credit.
    Credit,
    /// A lock of the DLM.
    Lock,
    /// A storage call that was not answered at once.
    Storage,
    /// Bulk data on their way.
    Bulk,
    /// Another server, which is asked on the way.
    Server,
}

/// One wait: for what, from when, to when.
pub type Waited = (Wait, i64, i64);
/// Waits of one record.
pub type Waits = Vec<Waited>;

/// An operation of a client: a system call, or a call of the library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// Its number in its process, from 1.
    pub id: u64,
    /// What it is.
    pub op: Cow<'static, str>,
    /// The file, as sequence, object id and version; zeros: unknown.
    pub fid: (u64, u32, u32),
    /// When it began and ended.
    pub span: (i64, i64),
    /// Nanoseconds on a processor, RPCs excluded; with preemption.
    pub run_ns: u64,
    /// Waits outside RPCs.
    pub waits: Waits,
}

/// An RPC at its client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rpc {
    /// The operation it is part of; 0: none, such as write-out in the background.
    pub op: u64,
    /// NID of the server.
    pub peer: u64,
    /// The target.
    pub target: Cow<'static, str>,
    /// Its xid.
    pub xid: u64,
    /// Match bits of the reply.
    pub reply_mbits: u64,
    /// Opcode.
    pub opc: u32,
    /// The file, as sequence, object id and version; zeros: unknown.
    pub fid: (u64, u32, u32),
    /// When it was called, and when its caller had the reply.
    pub span: (i64, i64),
    /// When its last sending began.
    pub sending: i64,
    /// When the LND had taken that.
    pub sent: i64,
    /// When the reply was here.
    pub reply: i64,
    /// Times it was sent.
    pub attempts: u32,
    /// Bytes of bulk data.
    pub bulk_bytes: u64,
    /// Bytes of a file's data that were within request and reply.
    #[serde(default)]
    pub inline_bytes: u32,
    /// Places of the import that were taken when it had got one, its own included; 0: it needed none.
    pub in_flight: u32,
    /// How many there may be.
    pub in_flight_max: u32,
    /// Waits.
    pub waits: Waits,
}

/// An RPC at its server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// NID of the client.
    pub client: u64,
    /// Its xid.
    pub xid: u64,
    /// Opcode.
    pub opc: u32,
    /// The service.
    pub service: Cow<'static, str>,
    /// When it was here.
    pub arrived: i64,
    /// When it left the queue of its service.
    pub begun: i64,
    /// When its reply was ready.
    pub replying: i64,
    /// When the LND had taken that.
    pub replied: i64,
    /// Nanoseconds on a processor up to the reply, with preemption and storage calls that do not wait.
    pub run_ns: u64,
    /// Waits up to the reply.
    pub waits: Waits,
}

/// What passes a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A PUT: a request, a reply or bulk data.
    Put,
    /// A GET: it asks for bulk data.
    Get,
    /// An ACK or a REPLY, without match bits.
    Answer,
}

/// A message at a router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// From this NID.
    pub from: u64,
    /// To this one.
    pub to: u64,
    /// What it is.
    pub kind: Kind,
    /// Portal; 0 of an answer.
    pub portal: u32,
    /// Match bits; 0 of an answer.
    pub mbits: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// When its header was here.
    pub arrived: i64,
    /// When it had a router credit and a buffer.
    pub admitted: i64,
    /// When it was here whole.
    pub whole: i64,
    /// When it was written to the next hop.
    pub passed: i64,
}

/// An operation or an RPC of a client that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    /// Number of the operation; of an RPC: of that which it is part of, 0: none.
    pub op: u64,
    /// Name of the operation; empty: it is an RPC.
    pub name: Cow<'static, str>,
    /// Opcode of the RPC.
    pub opc: Option<u32>,
    /// Target of the RPC.
    pub target: Cow<'static, str>,
    /// The file, as sequence, object id and version; zeros: unknown.
    pub fid: (u64, u32, u32),
    /// When it began.
    pub begun: i64,
    /// What it waits for now, and since when. None: an operation runs, or has RPCs that wait; an RPC was sent, and is not answered.
    pub waits: Option<(Wait, i64)>,
}

/// Readings of the machine's clock, of which the shortest counts.
const READINGS: u32 = 8;

/// A kernel with the clock that all of its processes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its boot and the time namespace: where they are the same, so is the monotonic clock.
    pub name: String,
    /// What that clock showed at moment 0 of the dump, nanoseconds.
    pub base_ns: i64,
}

impl Machine {
    /// This one, with `base` as moment 0; None where the system does not tell.
    pub(crate) fn here(base: Instant) -> Option<Machine> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/time").ok()?;
        // A thread may lose its processor between two looks at the clock: the shortest of several readings is the one to believe.
        let read = |_| {
            let before = base.elapsed().as_nanos() as i64;
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let took = base.elapsed().as_nanos() as i64 - before;
            let now_ns = now.tv_sec * 1_000_000_000 + now.tv_nsec;
            (took, now_ns - before - took / 2)
        };
        let (_, base_ns) = (0..READINGS).map(read).min()?;
        Some(Machine {
            name: format!("{} {}", boot.trim(), namespace.display()),
            base_ns,
        })
    }
}

/// What a node gives out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// Dumps with the same name here have the same clock; others are to be compared by what they tell.
    pub clock: String,
    /// The kernel whose monotonic clock it is; None: it is not known.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// NIDs of the node, primary first.
    pub nids: Vec<u64>,
    /// Their names.
    pub names: Vec<String>,
    /// When it was made, on that clock.
    pub now: i64,
    /// Records that the rings no longer had.
    pub lost: u64,
    /// Operations among them.
    #[serde(default)]
    pub lost_ops: u64,
    /// Operations that needed no RPC and waited for nothing: they are counted, and not kept.
    #[serde(default)]
    pub brief: u64,
    /// Operations.
    pub ops: Vec<Op>,
    /// RPCs of its clients.
    pub rpcs: Vec<Rpc>,
    /// RPCs of its servers.
    pub served: Vec<Served>,
    /// Messages it has passed on.
    pub passages: Vec<Passage>,
    /// Operations and RPCs of its clients that were under way when it was made.
    #[serde(default)]
    pub under_way: Vec<Begun>,
}

impl Dump {
    /// Operations per second that ended in the last `seconds`, or since the earliest end that is kept, where operations that ended
    /// before have made room for later ones.
    pub fn rate(&self, seconds: f64) -> f64 {
        let window = self.now - (seconds * 1e9) as i64;
        let from = match self.ops.iter().map(|o| o.span.1).min() {
            Some(first) if self.lost_ops > 0 => first.max(window),
            _ => window,
        };
        let ended = self.ops.iter().filter(|o| o.span.1 >= from).count();
        ended as f64 * 1e9 / (self.now - from).max(1) as f64
    }

    /// Records by when they began.
    pub(crate) fn sort(&mut self) {
        self.ops.sort_by_key(|o| (o.span.0, o.id));
        self.rpcs.sort_by_key(|r| (r.span.0, r.xid));
        self.served.sort_by_key(|s| (s.arrived, s.xid));
        self.passages.sort_by_key(|p| (p.arrived, p.mbits));
        self.under_way.sort_by_key(|u| (u.begun, u.op, u.opc));
    }

    /// Leaves out operations whose RPCs have gone from their ring: those that began before the first end that is there of an RPC.
    /// One that has had an RPC nearly since it began is whole. They count as lost.
    pub(crate) fn leave_out_the_torn(&mut self) {
        let Some(from) = self.rpcs.iter().map(|r| r.span.1).min() else {
            return;
        };
        let mut first: BTreeMap<u64, i64> = BTreeMap::new();
        for r in self.rpcs.iter().filter(|r| r.span.0 <= from) {
            let at = first.entry(r.op).or_insert(r.span.0);
            *at = r.span.0.min(*at);
        }
        let is_whole = |o: &Op| {
            let untold = first.get(&o.id).map(|at| at - o.span.0);
            untold.is_some_and(|ns| ns <= (o.span.1 - o.span.0) / UNTOLD)
        };
        let before = self.ops.len();
        self.ops.retain(|o| o.span.0 >= from || is_whole(o));
        let torn = (before - self.ops.len()) as u64;
        self.lost_ops += torn;
        self.lost += torn;
    }

    /// Takes in a later dump of the same node and clock; records that both have are there once.
    pub fn add(&mut self, later: Dump) {
        (self.now, self.brief) = (later.now, later.brief);
        (self.lost, self.lost_ops) = (later.lost, later.lost_ops);
        self.under_way = later.under_way;
        self.ops.extend(later.ops);
        self.rpcs.extend(later.rpcs);
        self.served.extend(later.served);
        self.passages.extend(later.passages);
        self.sort();
        self.ops.dedup();
        self.rpcs.dedup();
        self.served.dedup();
        self.passages.dedup();
    }

    /// Leaves out what was over before the last `most` RPCs, with the operations that they are part of, began.
    pub fn keep_last(dumps: &mut [Dump], most: usize) {
        let mut begun: Vec<i64> = dumps
            .iter()
            .flat_map(|d| &d.rpcs)
            .map(|r| r.span.0)
            .collect();
        let Some(left_out) = begun.len().checked_sub(most + 1) else {
            return;
        };
        begun.sort_unstable();
        let from = begun[left_out];
        for d in dumps {
            let (ops, rpcs) = (d.ops.len(), d.rpcs.len());
            d.ops.retain(|o| o.span.0 > from);
            d.rpcs.retain(|r| r.span.0 > from);
            d.lost_ops += (ops - d.ops.len()) as u64;
            d.lost += (ops + rpcs - d.ops.len() - d.rpcs.len()) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_the_machine_is_read() {
        let now = Machine::here(Instant::now()).unwrap();
        let later = Machine::here(Instant::now()).unwrap();
        assert!(later.name == now.name && later.base_ns >= now.base_ns);
        assert!(later.base_ns - now.base_ns < 60_000_000_000);
        let mut old = serde_json::to_value(Dump::default()).unwrap();
        old.as_object_mut().unwrap().remove("machine");
        let read: Dump = serde_json::from_value(old).unwrap();
        assert_eq!(read.machine, None);
    }

    #[test]
    fn what_two_dumps_have_is_there_once() {
        let op = |id, begun| Op {
            id,
            op: "READ".into(),
            fid: (1, 0, 0),
            span: (begun, begun + 1),
            run_ns: 0,
            waits: vec![],
        };
        let dump = |now, ops| Dump {
            now,
            ops,
            ..Dump::default()
        };
        let mut all = dump(5, vec![op(1, 1), op(2, 2)]);
        all.add(dump(9, vec![op(2, 2), op(3, 2)]));
        assert_eq!(all, dump(9, vec![op(1, 1), op(2, 2), op(3, 2)]));
    }
}
