//! What a device counts.

use coral_metrics::{Desc, Gauge, Histogram};

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[DeviceStats::TABLE];

coral_metrics::group! {
    /// What the tables of a target have done since they were opened.
    pub struct DeviceStats {
        /// Time in which a batch was committed, until it was to be seen; the target's lock is held so long.
        pub commit: Histogram = "coral_osd_commit_seconds", Seconds, Stable;
        /// Time in which committed batches that others had seen already were written, several as one; one writes at a time.
        pub write: Histogram = "coral_osd_write_seconds", Seconds, Stable;
        /// Time until a commit or sync that was answered later reached the disk; replies wait so long.
        pub late: Histogram = "coral_osd_late_seconds", Seconds, Stable;
        /// Such commits and syncs under way.
        pub late_active: Gauge = "coral_osd_late_active", Transactions, Stable;
        /// Time in which the tables were synced to stable storage.
        pub sync: Histogram = "coral_osd_sync_seconds", Seconds, Stable;
    }
}
