//! What a mount counts: requests by opcode, the time they took, hand-overs.

use coral_metrics::{Counter, Desc, Family, Histogram, LabelSet};
use tokio::time::Instant;

use crate::abi::op;

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[FuseStats::TABLE];

/// The kernel's opcodes by their numbers; the last value is for all that are greater.
const OPCODES: LabelSet = LabelSet {
    label: "opcode",
    count: op::COUNT + 1,
    name: |i| {
        if i < op::COUNT {
            op::name(i as u32)
        } else {
            "other"
        }
    },
};

coral_metrics::group! {
    /// What a mount has done since it began.
    pub struct FuseStats {
        /// Requests read, by opcode.
        pub requests: Family<Counter> = "coral_fuse_requests_total", Requests, Stable, by OPCODES;
        /// Time from reading a request to its answer, by opcode; FORGET and what the kernel takes back have none.
        pub answered: Family<Histogram> = "coral_fuse_request_seconds", Seconds, Stable, by OPCODES;
        /// Requests answered by the thread that read them, by opcode.
        pub inline: Family<Counter> = "coral_fuse_inline_total", Requests, Experimental, by OPCODES;
        /// Requests that had to wait and moved to the runtime.
        pub spawned: Counter = "coral_fuse_handovers_total", Requests, Experimental;
        /// FUSE_INTERRUPTs read.
        pub interrupts: Counter = "coral_fuse_interrupts_total", Requests, Stable;
    }
}

impl FuseStats {
    /// A request was read.
    pub(crate) fn begin(&self, opcode: u32) -> Instant {
        self.requests.at(opcode as usize).inc();
        Instant::now()
    }

    /// It was answered, now.
    pub(crate) fn done(&self, opcode: u32, begun: Instant) -> Instant {
        let now = Instant::now();
        let answered = self.answered.at(opcode as usize);
        answered.record_time(now - begun);
        now
    }

    /// It was answered on the stack that read it.
    pub(crate) fn done_inline(&self, opcode: u32, begun: Instant) -> Instant {
        self.inline.at(opcode as usize).inc();
        self.done(opcode, begun)
    }

    /// Requests of all kinds.
    pub fn total(&self) -> u64 {
        self.requests.used().map(|(_, n)| n.value()).sum()
    }
}

impl std::fmt::Display for FuseStats {
    /// One line: requests, hand-overs, then by opcode how many, how many of them inline, and the mean time to the answer.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} requests, {} spawned, {} interrupts;",
            self.total(),
            self.spawned.value(),
            self.interrupts.value()
        )?;
        for (i, n) in self.requests.used() {
            let (took, inline) = (self.answered.at(i).recorded(), self.inline.at(i).value());
            let mean_us = took.sum.checked_div(took.count()).unwrap_or(0) as f64 / 1000.0;
            write!(
                f,
                " {} {} ({inline} inline, {mean_us:.1} us)",
                (OPCODES.name)(i),
                n.value()
            )?;
        }
        Ok(())
    }
}
