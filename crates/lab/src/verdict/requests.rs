//! Requests of one kind, an opcode, to one target: what holds up some kinds only, as a rule of LNet for one portal does, is not in the
//! least times of all requests to that target.

use std::collections::BTreeMap;

use super::clients::ENOUGH_OF_PATH;
use super::facts::{Path, SMALL_BYTES, bytes, rtt, seconds};
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
        }
        self.all.take(r);
        if is_waited_for {
            self.waited.take(r);
        }
        self.bytes += bytes(&r.rpc);
        if !r.parts.iter().any(|p| p.segment == Segment::Remote) {
            self.rtt_s = self.rtt_s.min(rtt(r));
        }
        let late = seconds(sent_late_ns(&r.rpc) + r.reply_late_ns);
        self.send_s = self.send_s.min(late.min(rtt(r)));
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
