//! What the fuzz targets of `fuzz/` reach of the inside. Nothing else uses it.

use coral_osd::{Kv, OsdError};

/// How many clients the table `last_rcvd` of a target holds.
pub fn last_rcvd(kv: &dyn Kv) -> Result<usize, OsdError> {
    crate::target::client_count(kv)
}
