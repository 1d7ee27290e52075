//! How the targets of a node stand, and how their recovery is cut short.

use std::path::PathBuf;
use std::sync::Arc;

use coral_server::{LuTarget, RecoveryStatus, TargetKind, TargetStats};
use coral_wire::connect::ConnectFlags;
use coral_wire::nid::Nid;

use super::{Served, Servers};

/// How a target stands.
#[derive(Clone, Debug)]
pub struct TargetStatus {
    /// Its name, such as `coral-MDT0000`.
    pub name: String,
    /// The directory it lies in.
    pub dir: Option<PathBuf>,
    /// Whom it waits for, when it is in recovery.
    pub recovery: Option<RecoveryStatus>,
    /// What keeps its device from serving as it should, in words.
    pub trouble: Option<String>,
    /// Of an MDT: where clients elsewhere are that have the file system mounted, in no order; one NID each.
    pub mounts: Vec<Nid>,
    /// Number of the last transaction.
    pub last_transno: u64,
    /// Transactions up to here survive power loss.
    pub last_committed: u64,
    /// Its exports.
    pub exports: u64,
    /// Counts since its start.
    pub stats: Arc<TargetStats>,
}

impl Servers {
    /// How each target stands, in the order in which they were started.
    pub fn status(&self) -> Vec<TargetStatus> {
        self.targets.iter().map(|t| self.status_of(t)).collect()
    }

    fn status_of(&self, served: &Served) -> TargetStatus {
        let t = &served.target;
        let osd = served.dir.as_ref().map(|(_, osd)| osd);
        TargetStatus {
            name: t.name().to_owned(),
            dir: served.dir.as_ref().map(|(dir, _)| dir.clone()),
            recovery: t.recovery_status(),
            trouble: t.kv().trouble().or_else(|| osd?.upgrade()?.trouble()),
            mounts: self.mounts(t),
            last_transno: t.last_transno(),
            last_committed: t.last_committed(),
            exports: t.exports().len() as u64,
            stats: t.stats().clone(),
        }
    }

    /// NIDs of clients elsewhere, servers aside: whoever has the file system mounted.
    fn mounts(&self, t: &LuTarget) -> Vec<Nid> {
        // of an OST it may be a server
        if t.config().kind != TargetKind::Mdt {
            return Vec::new();
        }
        let far = |nid: &Nid| nid.0 != 0 && !self.node.is_beside(*nid);
        let exports = t.exports();
        // another MDT says that it is one
        let others = exports
            .iter()
            .filter(|e| !e.connect().has(ConnectFlags::LIGHTWEIGHT));
        others.map(|e| e.nid()).filter(far).collect()
    }

    /// The targets in recovery, each with whom it waits for.
    pub fn recovering(&self) -> Vec<(String, RecoveryStatus)> {
        let waiting = |t: &Served| Some((t.target.name().to_owned(), t.target.recovery_status()?));
        self.targets.iter().filter_map(waiting).collect()
    }

    /// Ends the recovery of the targets whose names match, and names each with the number of clients it gave up.
    pub fn abort_recovery(&self, matches: impl Fn(&str) -> bool) -> Vec<(String, usize)> {
        self.targets()
            .filter(|t| matches(t.name()) && t.in_recovery())
            .map(|t| (t.name().to_owned(), t.abort_recovery()))
            .collect()
    }
}
