//! What the mount has done: requests per opcode, the time they took inline, hand-overs.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::abi::op;

/// Counters of one mount.
pub(crate) struct Counters {
    requests: [AtomicU64; op::COUNT],
    inline: [AtomicU64; op::COUNT],
    inline_ns: [AtomicU64; op::COUNT],
    pub spawned: AtomicU64,
    pub interrupts: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            requests: zeros(),
            inline: zeros(),
            inline_ns: zeros(),
            spawned: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// A request begins.
    pub fn begin(&self, opcode: u32) -> Instant {
        if let Some(n) = self.requests.get(opcode as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
        Instant::now()
    }

    /// It was answered on the stack that read it.
    pub fn end_inline(&self, opcode: u32, begun: Instant) {
        if let (Some(n), Some(ns)) = (
            self.inline.get(opcode as usize),
            self.inline_ns.get(opcode as usize),
        ) {
            n.fetch_add(1, Ordering::Relaxed);
            ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// What was counted so far.
    pub fn snapshot(&self) -> FuseStats {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let ops = (0..op::COUNT)
            .filter(|&i| load(&self.requests[i]) > 0)
            .map(|i| OpStats {
                name: op::name(i as u32),
                requests: load(&self.requests[i]),
                inline: load(&self.inline[i]),
                inline_ns: load(&self.inline_ns[i]),
            })
            .collect();
        FuseStats {
            ops,
            spawned: load(&self.spawned),
            interrupts: load(&self.interrupts),
        }
    }
}

/// Counts of one kind of request.
#[derive(Debug, Clone, Copy)]
pub struct OpStats {
    /// The kernel's name of the opcode.
    pub name: &'static str,
    /// Requests read.
    pub requests: u64,
    /// Those answered by the thread that read them.
    pub inline: u64,
    /// Time from reading to answered for those, nanoseconds in all.
    pub inline_ns: u64,
}

/// What a mount has done since it began.
#[derive(Debug, Clone, Default)]
pub struct FuseStats {
    /// Per opcode, those that occurred, in order of their numbers.
    pub ops: Vec<OpStats>,
    /// Requests that had to wait and moved to the runtime (thread hand-overs).
    pub spawned: u64,
    /// FUSE_INTERRUPTs read.
    pub interrupts: u64,
}

impl std::fmt::Display for FuseStats {
    /// One line: requests, hand-overs, then per opcode its count and mean inline time.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} requests, {} spawned, {} interrupts;",
            self.requests(),
            self.spawned,
            self.interrupts
        )?;
        for o in &self.ops {
            let mean_us = o.inline_ns.checked_div(o.inline).unwrap_or(0) as f64 / 1000.0;
            write!(
                f,
                " {} {} ({} inline, {mean_us:.1} us)",
                o.name, o.requests, o.inline
            )?;
        }
        Ok(())
    }
}

impl FuseStats {
    /// Requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.ops.iter().map(|o| o.requests).sum()
    }
}
