//! What targets count.

use coral_metrics::{Counter, Desc, Histogram, Probe};

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[TargetStats::TABLE];

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
