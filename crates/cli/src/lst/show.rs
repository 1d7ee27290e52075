//! How nodes and their answers are shown.

use super::Failed;
use super::socket::Out;
use coral_lnet::Nid;
use coral_lnet::selftest::console::{NodeError, NodeResult, NodeState, StateCounts};
use coral_wire::Errno;

/// Over the counts of nodes by state.
pub(crate) const NODES_TITLE: &str = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL";

/// A node as the kernel's tools name it: pid and NID.
pub(crate) fn id(nid: Nid) -> String {
    format!("{}-{nid}", coral_wire::nid::LNET_PID)
}

/// The system's words for an errno.
pub(crate) fn strerror(e: Errno) -> String {
    let text = std::io::Error::from(e).to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Counts with tabs between them.
pub(crate) fn counts(c: StateCounts) -> String {
    let [active, busy, down, unknown] = c.by_state;
    format!("{active}\t{busy}\t{down}\t{unknown}\t{}", c.total())
}

/// A state's name, as on a command line.
pub(crate) fn state(name: &str) -> Option<Vec<NodeState>> {
    match name.to_ascii_lowercase().as_str() {
        "active" => Some(vec![NodeState::Active]),
        "busy" => Some(vec![NodeState::Busy]),
        "down" => Some(vec![NodeState::Down]),
        "unknown" => Some(vec![NodeState::Unknown]),
        "invalid" => Some(vec![NodeState::Busy, NodeState::Down, NodeState::Unknown]),
        _ => None,
    }
}

/// Says which nodes did not do `what`; true: all did.
pub(crate) async fn failures<T>(
    results: &[NodeResult<T>],
    what: &str,
    out: &mut Out,
) -> Result<bool, Failed> {
    let mut well = true;
    for r in results {
        match &r.result {
            Ok(_) => continue,
            Err(NodeError::Rpc(e)) => {
                out.err(format!(
                    "{what} RPC failed on {}: {}",
                    id(r.nid),
                    strerror(*e)
                ))
                .await?
            }
            Err(NodeError::Remote(e)) => {
                out.err(format!(
                    "operation {what} failed on {}: {}",
                    id(r.nid),
                    strerror(*e)
                ))
                .await?
            }
        }
        well = false;
    }
    Ok(well)
}
