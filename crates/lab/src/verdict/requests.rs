//! Requests of one kind, an opcode, to one target: what holds up some kinds only, as a rule of LNet for one portal does, is not in the
//! least times of all requests to that target.

use std::collections::BTreeMap;

use super::clients::ENOUGH_OF_PATH;
use super::facts::{Path, SMALL_BYTES, bytes, rtt, seconds};
use super::rules::RTT_NEAR_S;
use crate::attribution::{JoinedRpc, Segment};

/// Bytes that a slow line carries in a second: 100 Mbit/s.
const SLOW_LINE_BYTES_PER_S: f64 = 12.5e6;

/// How many requests, and where their time went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    /// How many.
    pub count: u64,
    /// Seconds by segment, of all together.
    pub seconds: BTreeMap<Segment, f64>,
}

impl Spent {
    fn take(&mut self, r: &JoinedRpc) {
        self.count += 1;
        for part in &r.parts {
            *self.seconds.entry(part.segment).or_default() += seconds(part.ns());
        }
    }

    fn all_s(&self, s: Segment) -> f64 {
        self.seconds.get(&s).copied().unwrap_or(0.0)
    }

    fn sending_s(&self) -> f64 {
        self.all_s(Segment::Send) + self.all_s(Segment::ReplyOut)
    }
}

/// Requests of one opcode to a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// All of them.
    pub all: Spent,
    /// Those that operations waited for: what goes on in the background holds up nobody, unless a sync of its file or a cache without
    /// room waits for it.
    pub waited: Spent,
    /// Bytes of files that they carried.
    pub bytes: u64,
    /// As [`Path::rtt_s`].
    pub rtt_s: f64,
    /// As [`Path::send_s`].
    pub send_s: f64,
    /// Least time from the sending to the reply, seconds, with what the server took.
    pub answered_s: f64,
    /// No server has told its part, and that is taken for the way.
    pub is_by_answers: bool,
}

impl Requests {
    /// Whether its least times are believed: the least of few may have stood in a queue.
    pub fn is_known(&self) -> bool {
        self.all.count >= ENOUGH_OF_PATH
    }

    /// One more.
    pub(super) fn take(&mut self, r: &JoinedRpc, is_waited_for: bool) {
        if self.all.count == 0 {
            (self.rtt_s, self.send_s) = (f64::INFINITY, f64::INFINITY);
            self.answered_s = f64::INFINITY;
        }
        self.all.take(r);
        if is_waited_for {
            self.waited.take(r);
        }
        self.bytes += bytes(&r.rpc);
        // One that is not answered was nowhere and back, and may not have gone out.
        if r.rpc.xid == 0 {
            return;
        }
        self.answered_s = (self.answered_s).min(seconds(r.rpc.reply - r.rpc.sending));
        if !r.parts.iter().any(|p| p.segment == Segment::Remote) {
            self.rtt_s = self.rtt_s.min(rtt(r));
        }
        // Where nobody else tells, and the answer was here before its sender heard that it was sent, it is not known when it was.
        if !r.is_served && r.rpc.sent > r.rpc.reply {
            return;
        }
        let late = seconds(sent_late_ns(&r.rpc) + r.reply_late_ns);
        self.send_s = self.send_s.min(late.min(rtt(r)));
    }

    /// Where no server has told its part, and even the quickest was held back before it was sent as no near way does: the way is what the
    /// quickest answer took.
    pub(super) fn take_answers(&mut self) {
        let is_held = self.is_known() && self.send_s.is_finite() && self.send_s > RTT_NEAR_S;
        if is_held && self.rtt_s.is_infinite() {
            (self.rtt_s, self.is_by_answers) = (self.answered_s, true);
        }
    }

    /// Whether they carry so much in the mean that their bytes matter on the way.
    pub(super) fn is_large(&self) -> bool {
        self.bytes > self.all.count * SMALL_BYTES
    }

    /// Seconds that a slow line takes for the bytes of one, in the mean.
    pub(super) fn on_slow_line_s(&self) -> f64 {
        self.bytes as f64 / self.all.count.max(1) as f64 / SLOW_LINE_BYTES_PER_S
    }
}

impl Path {
    /// The least times of requests of a kind, there and back and until they were sent; of few they are those of all requests.
    fn least_of(&self, r: &Requests) -> (f64, f64) {
        match r.is_known() {
            true => (r.rtt_s, r.send_s),
            false => (self.rtt_s, self.send_s),
        }
    }

    /// All requests by kind, summed up; where they are not told apart, all together.
    fn by_kind(&self, of: impl Fn(&Requests) -> f64) -> f64 {
        let together = || Spent {
            count: self.rpcs,
            seconds: self.seconds.clone(),
        };
        match self.kinds.is_empty() {
            true => of(&Requests {
                all: together(),
                waited: together(),
                bytes: self.data.bytes,
                rtt_s: self.rtt_s,
                send_s: self.send_s,
                answered_s: self.rtt_s,
                is_by_answers: false,
            }),
            false => self.kinds.values().map(of).sum(),
        }
    }

    /// Seconds by which these requests of a kind and their replies were sent late because of the way, all together: no more than the
    /// least of each, since the rest is the wait for a processor.
    fn held_of(&self, r: &Requests, of: &Spent) -> f64 {
        let late_s = match of.count {
            0 => 0.0,
            n => self.least_of(r).1 * n as f64,
        };
        of.sending_s().min(late_s)
    }

    /// Seconds by which requests that operations waited for, and the replies to these, were sent late because of the way.
    pub fn held_waited_s(&self) -> f64 {
        self.by_kind(|r| self.held_of(r, &r.waited))
    }

    /// The least by which requests that operations waited for were late because of the way, all together: also those of which nobody knows
    /// when they were sent, and where no server has told its part until they were answered.
    pub fn late_waited_s(&self) -> f64 {
        self.by_kind(|r| {
            let (there, sent) = self.least_of(r);
            let late_s = if r.is_by_answers { there } else { sent };
            match late_s.is_finite() {
                true => late_s * r.waited.count as f64,
                false => 0.0,
            }
        })
    }

    /// Seconds by which requests and replies, in the mean, were sent late because of the way.
    pub fn held_s(&self) -> f64 {
        self.by_kind(|r| self.held_of(r, &r.all)) / self.rpcs.max(1) as f64
    }

    /// Seconds of these requests of a kind on the way, with their data, all together.
    pub(super) fn way_of(&self, r: &Requests, of: &Spent) -> f64 {
        self.held_of(r, of) + of.all_s(Segment::Network) + of.all_s(Segment::Bulk)
    }

    /// Seconds on the way of all requests that operations waited for, with their data.
    pub fn way_waited_s(&self) -> f64 {
        self.by_kind(|r| self.way_of(r, &r.waited))
    }

    /// Seconds in the network beyond the least of each kind, of all requests that operations waited for.
    pub fn beyond_least_s(&self) -> f64 {
        self.by_kind(|r| match r.waited.count {
            0 => 0.0,
            n => (r.waited.all_s(Segment::Network) - self.least_of(r).0 * n as f64).max(0.0),
        })
    }
}

/// How long after its client wanted to send it a request was sent. Only the client's clock counts: where one direction takes longer,
/// matching the clocks of both ends shares that out to both directions, and half of it would be missing here. Of a reply it is the
/// server's clock that counts, for the same reason.
fn sent_late_ns(r: &coral_stopwatch::Rpc) -> i64 {
    (r.sent.min(r.reply) - r.sending).max(0)
}

#[cfg(test)]
mod tests {
    use coral_stopwatch::{Begun, Dump, Op, Rpc, Wait};
    use coral_wire::opc;

    use super::super::seen::Seen;
    use super::super::{CauseKind, Verdict, explain};
    use crate::attribution::rpc_of;

    const US: i64 = 1_000;

    /// One program on a mount that is asked alone, from which messages go out 5 ms late, and to which answers come so late: two requests to the MDT and one to each of
    /// two OSTs on the same node, each after the other. Of one in `late` the reply is there before its sender hears that it was sent.
    fn held_back(late: i64, back_us: i64) -> Verdict {
        let request = |n: i64| {
            let (from, to) = (5_200 * n * US, (5_200 * n + 5_150) * US);
            let op = Op {
                id: n as u64 + 1,
                op: "OPEN".into(),
                fid: (1, 1, 0),
                span: (from, to),
                run_ns: 0,
                waits: vec![],
            };
            let (opc, target) = match n % 4 {
                0 => (opc::LDLM_ENQUEUE, "fs-MDT0000"),
                1 => (opc::MDS_CLOSE, "fs-MDT0000"),
                2 => (opc::OST_PUNCH, "fs-OST0000"),
                _ => (opc::OST_PUNCH, "fs-OST0001"),
            };
            let sent = if n % late == 0 {
                to + US
            } else {
                to - back_us * US
            };
            let rpc = Rpc {
                op: op.id,
                target: target.into(),
                sent,
                ..rpc_of(opc, n as u64 + 1, op.span)
            };
            (op, rpc)
        };
        let (mut ops, rpcs): (Vec<Op>, Vec<Rpc>) = (0..400).map(request).unzip();
        let now = 400 * 5_200 * US;
        // Its operation has ended, and it has waited for a slot since it was begun.
        let begun = now - 20 * US;
        ops[399].span.1 = now;
        let waits = Begun {
            op: 400,
            begun,
            opc: Some(opc::MDS_CLOSE),
            target: "fs-MDT0000".into(),
            fid: (1, 1, 0),
            waits: Some((Wait::Slot, begun + 9 * US)),
            name: "".into(),
        };
        let seen = Seen {
            dumps: vec![Dump {
                clock: "c".into(),
                nids: vec![1],
                names: vec!["c@tcp".into()],
                now,
                ops,
                rpcs,
                under_way: vec![waits],
                ..Dump::default()
            }],
            ..Seen::default()
        };
        let f = seen.facts(&seen.joined());
        explain(&f)
    }

    #[test]
    fn a_mount_alone_knows_that_its_servers_are_far() {
        for late in [3, 7, 1_000] {
            let v = held_back(late, 100);
            let kinds: Vec<_> = v.causes.iter().map(|c| c.kind).collect();
            assert_eq!(kinds, [CauseKind::FixedConcurrency], "{v}");
            let told = "an RPC is there and back 5.15 ms";
            assert!(v.causes[0].figure.contains(told), "{v}");
        }
        // Half of it, and more, on the way back.
        let v = held_back(1_000, 2_900);
        assert_eq!(v.causes[0].kind, CauseKind::FixedConcurrency, "{v}");
        assert!(v.causes[0].share > 0.95, "{v}");
    }
}
