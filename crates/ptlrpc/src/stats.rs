//! Counters of an import: requests by opcode, resends, and the time they took.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Opcodes counted one by one; all others share a counter.
const OPCODES: usize = 1024;

/// Counts since the import was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcStats {
    /// Requests answered, by opcode; resends do not count twice.
    pub by_opcode: BTreeMap<u32, u64>,
    /// Requests answered.
    pub total: u64,
    /// Requests sent again.
    pub resent: u64,
    /// Requests replayed after a restart of the server.
    pub replayed: u64,
    /// Waits that ran into their deadline.
    pub timeouts: u64,
    /// Early replies that extended a deadline.
    pub early: u64,
    /// Connections made, the first included.
    pub connects: u64,
    /// Evictions.
    pub evictions: u64,
    /// Calls that had to wait for a slot or the in-flight limit.
    pub waited: u64,
}

/// The live counters behind [`RpcStats`].
#[derive(Debug)]
pub(crate) struct Counters {
    by_opcode: Box<[AtomicU64]>,
    pub(crate) resent: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) early: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) waited: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        let zero = || AtomicU64::new(0);
        Counters {
            by_opcode: (0..OPCODES).map(|_| zero()).collect(),
            resent: zero(),
            replayed: zero(),
            timeouts: zero(),
            early: zero(),
            connects: zero(),
            evictions: zero(),
            waited: zero(),
        }
    }

    /// One more answered request.
    pub(crate) fn answered(&self, opc: u32) {
        bump(&self.by_opcode[(opc as usize).min(OPCODES - 1)]);
    }

    pub(crate) fn snapshot(&self) -> RpcStats {
        let by_opcode: BTreeMap<u32, u64> = self
            .by_opcode
            .iter()
            .enumerate()
            .map(|(opc, n)| (opc as u32, n.load(Ordering::Relaxed)))
            .filter(|(_, n)| *n > 0)
            .collect();
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        RpcStats {
            total: by_opcode.values().sum(),
            by_opcode,
            resent: get(&self.resent),
            replayed: get(&self.replayed),
            timeouts: get(&self.timeouts),
            early: get(&self.early),
            connects: get(&self.connects),
            evictions: get(&self.evictions),
            waited: get(&self.waited),
        }
    }
}

/// Adds one.
pub(crate) fn bump(c: &AtomicU64) {
    c.fetch_add(1, Ordering::Relaxed);
}
