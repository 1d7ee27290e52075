//! The servers of one mount, and what was asked for when it was mounted: what every part of llite asks.

use std::sync::Arc;

use coral_lnet::Node;
use coral_wire::fid::Fid;
use tokio::sync::watch;

use super::types::MountOptions;
use crate::lmv::Lmv;
use crate::lov::Lov;
use crate::mgc::Config;
use crate::stats::LliteStats;
use crate::time::Timespec;

/// Fixed for the life of a mount, but for the targets inside.
pub(super) struct Servers {
    /// The node the mount speaks through.
    pub node: Arc<Node>,
    /// What was asked for.
    pub opts: MountOptions,
    /// The configuration, as of now.
    pub config: watch::Receiver<Config>,
    /// The MDTs.
    pub lmv: Arc<Lmv>,
    /// The OSTs.
    pub lov: Arc<Lov>,
    /// The mounted directory.
    pub root: Fid,
    /// What the mount counts.
    pub stats: Arc<LliteStats>,
}

impl Servers {
    /// Wall time of the node.
    pub fn now(&self) -> Timespec {
        Timespec::now(&self.node)
    }
}
