//! `coral check`: verifies targets that are not running.

use crate::args::Check;

/// Entry of `coral check`.
pub(crate) fn run(_c: Check) -> Result<(), String> {
    Err("not there yet".into())
}
