//! What targets count.

use coral_metrics::{Counter, Desc, Family, Histogram, LabelSet, Probe};

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[TargetStats::TABLE, MdtStats::TABLE];

coral_metrics::group! {
    /// What a target has done since its start.
    pub struct TargetStats {
        /// Exports now (`num_exports`).
        pub exports: Probe = "coral_target_exports", Clients, Stable;
        /// Connects of new clients.
        pub connects: Counter = "coral_target_connects_total", Clients, Stable;
        /// Reconnects.
        pub reconnects: Counter = "coral_target_reconnects_total", Clients, Stable;
        /// Evictions.
        pub evictions: Counter = "coral_target_evictions_total", Clients, Stable;
        /// Transactions.
        pub transactions: Counter = "coral_target_transactions_total", Transactions, Stable;
        /// Syncs to stable storage, each with all callers it served: tables, and data of objects where they are asked for.
        pub syncs: Histogram = "coral_target_sync_seconds", Seconds, Stable;
        /// Sizes of reads of objects (`read_bytes` of `obdfilter.*.stats`).
        pub read: Histogram = "coral_target_read_bytes", Bytes, Stable;
        /// Sizes of writes of objects (`write_bytes` of `obdfilter.*.stats`).
        pub written: Histogram = "coral_target_write_bytes", Bytes, Stable;
        /// Time in which the storage read objects, the part of a request without locks and network.
        pub read_io: Histogram = "coral_target_read_io_seconds", Seconds, Stable;
        /// Time in which the storage took writes of objects, usually into the page cache.
        pub write_io: Histogram = "coral_target_write_io_seconds", Seconds, Stable;
        /// Requests replayed by clients.
        pub replayed_requests: Counter = "coral_target_replayed_requests_total", Requests, Stable;
        /// Locks replayed by clients.
        pub replayed_locks: Counter = "coral_target_replayed_locks_total", Locks, Stable;
        /// Stored replies sent again.
        pub resent_replies: Counter = "coral_target_resent_replies_total", Requests, Stable;
        /// Duplicates of requests in progress, which were dropped.
        pub duplicates: Counter = "coral_target_duplicates_total", Requests, Stable;
        /// Requests dropped because of an old connection count or a released xid.
        pub stale: Counter = "coral_target_stale_total", Requests, Stable;
    }
}

/// What changes the state of an MDT: the reint operations by their numbers, then other requests.
const CHANGES: LabelSet = LabelSet {
    label: "operation",
    count: 14,
    name: |i| match i {
        1 => "setattr",
        2 => "create",
        3 => "link",
        4 => "unlink",
        5 => "rename",
        6 => "open",
        7 => "setxattr",
        8 => "rmentry",
        9 => "migrate",
        10 => "resync",
        OPEN => "intent_open",
        INTENT => "intent",
        CLOSE => "close",
        _ => "other",
    },
};
const OPEN: usize = 11;
const INTENT: usize = 12;
const CLOSE: usize = 13;

/// What a request to an MDT is, by its place in [`MdtStats::locked`].
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Reint(u32),
    Open,
    Intent,
    Close,
    Other,
}

coral_metrics::group! {
    /// What an MDT has done since its start.
    pub struct MdtStats {
        /// How long an operation kept its MDT to itself: nothing else was read or changed there meanwhile.
        pub locked: Family<Histogram> = "coral_mdt_locked_seconds", Seconds, Experimental, by CHANGES;
    }
}

impl MdtStats {
    pub(crate) fn locked_by(&self, what: Change) -> &Histogram {
        self.locked.at(match what {
            Change::Reint(op) if (1..OPEN as u32).contains(&op) => op as usize,
            Change::Open => OPEN,
            Change::Intent => INTENT,
            Change::Close => CLOSE,
            Change::Reint(_) | Change::Other => 0,
        })
    }
}
