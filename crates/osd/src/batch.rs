//! Tables and the batches that change them.

use std::collections::HashSet;

use bytes::Bytes;

use crate::Seen;

/// Names a table; declared as constants by whoever stores in it. A table exists from its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(pub &'static str);

/// Tables of what servers keep of their clients and of themselves, and of which objects are being changed: small, and nobody is
/// served without room in them, not even who comes to remove something.
const VITAL: [&str; 5] = [
    "last_rcvd",
    "mgs_targets",
    "mdt_meta",
    "ost_group",
    "ost_meta",
];

impl Table {
    /// Whether records of it find room as long as removals do.
    pub fn is_vital(self) -> bool {
        VITAL.contains(&self.0)
    }
}

/// One change in a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Store `val` under `key`, replacing what was there.
    Put {
        /// Table to change.
        table: Table,
        /// Key, at most 65535 bytes.
        key: Bytes,
        /// Value.
        val: Bytes,
    },
    /// Forget `key`; not an error when it is absent.
    Del {
        /// Table to change.
        table: Table,
        /// Key.
        key: Bytes,
    },
}

impl Op {
    /// The row that it changes.
    pub fn row(&self) -> (Table, &Bytes) {
        match self {
            Op::Put { table, key, .. } | Op::Del { table, key } => (*table, key),
        }
    }
}

/// Changes that are applied together or not at all, in the order they were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    ops: Vec<Op>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds "store `val` under `key` in `t`".
    pub fn put(&mut self, t: Table, key: impl Into<Bytes>, val: impl Into<Bytes>) -> &mut Self {
        self.ops.push(Op::Put {
            table: t,
            key: key.into(),
            val: val.into(),
        });
        self
    }

    /// Adds "forget `key` in `t`".
    pub fn del(&mut self, t: Table, key: impl Into<Bytes>) -> &mut Self {
        self.ops.push(Op::Del {
            table: t,
            key: key.into(),
        });
        self
    }

    /// Adds every change of `other` after ours.
    pub fn extend(&mut self, other: Batch) -> &mut Self {
        self.ops.extend(other.ops);
        self
    }

    /// The changes in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The changes in order, consumed.
    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Bytes of its keys and values.
    pub fn bytes(&self) -> u64 {
        let bytes = |op: &Op| match op {
            Op::Put { key, val, .. } => key.len() + val.len(),
            Op::Del { key, .. } => key.len(),
        };
        self.ops().iter().map(bytes).sum::<usize>() as u64
    }

    /// True when there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

impl From<Vec<Op>> for Batch {
    fn from(ops: Vec<Op>) -> Batch {
        Batch { ops }
    }
}

/// The changes of these batches, those of each row by the last of them alone: a row that all change is written once.
pub(crate) fn merged(seen: &[Seen]) -> Batch {
    let mut rows = HashSet::new();
    let ops = seen.iter().flat_map(|s| s.batch.ops());
    let last_first = ops.rev().filter(|op| rows.insert(op.row()));
    let mut kept: Vec<Op> = last_first.cloned().collect();
    kept.reverse();
    Batch::from(kept)
}
