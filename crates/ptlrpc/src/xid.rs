//! Request ids: unique per node, 128 apart (`lustre/ptlrpc/client.c`, `ptlrpc_next_xid`).
//!
//! They begin at wall time in seconds times 2^20, so that a restarted node uses new ones. The low seven bits are free for the
//! match bits of up to 65 bulk descriptors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coral_lnet::Node;

/// Distance between two xids: the greatest number of bulk descriptors rounded up to a power of two.
pub(crate) const XID_STEP: u64 = 128;

/// The xids of one node.
#[derive(Debug, Default)]
pub(crate) struct XidSource {
    next: AtomicU64,
}

impl XidSource {
    /// The node's own source: all its imports share it.
    pub(crate) fn of(node: &Arc<Node>) -> Arc<XidSource> {
        let source = node.extension::<XidSource>();
        let (secs, _) = node.wall_time();
        let start = ((secs.max(1) as u64) << 20) & !(XID_STEP - 1);
        // Only the first import of a node finds 0 here.
        let _ = source
            .next
            .compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed);
        source
    }

    /// A new xid.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(XID_STEP, Ordering::Relaxed) + XID_STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_are_aligned_and_grow() {
        let s = XidSource {
            next: AtomicU64::new(5 << 20),
        };
        let (a, b) = (s.next(), s.next());
        assert_eq!(b - a, XID_STEP);
        assert_eq!(a % XID_STEP, 0);
    }
}
