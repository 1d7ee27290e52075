//! Whom a recovery waits for and for how long, and how it is cut short.

use std::sync::Arc;
use std::time::Duration;

use coral_lnet::Nid;
use tokio::time::Instant;

use super::LuTarget;

/// How long a recovery waits, from the start of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Clients that have not come back by then are evicted (`recovery_time_soft`).
    pub soft: Duration,
    /// Clients that are not done by then are evicted (`recovery_time_hard`); not before `soft`.
    pub hard: Duration,
}

/// A client that a recovery waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedFor {
    /// Its uuid.
    pub uuid: String,
    /// Where it was last; 0 when that is not known.
    pub nid: Nid,
    /// It has come back and is not done.
    pub back: bool,
}

impl WaitedFor {
    /// Where it was last, in words.
    pub fn place(&self) -> String {
        if self.nid.0 == 0 {
            "(where is not known)".into()
        } else {
            format!("at {}", self.nid)
        }
    }
}

/// How a recovery stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryStatus {
    /// Clients that were known at the start and not given up since.
    pub clients: usize,
    /// Those that are waited for, the missing ones first.
    pub waited_for: Vec<WaitedFor>,
    /// How long at most from now on, when nobody else comes back.
    pub left: Duration,
}

impl LuTarget {
    /// How long a recovery waits.
    pub fn windows(&self) -> Windows {
        *self.windows.borrow()
    }

    /// Changes that, also of a recovery under way.
    pub fn set_windows(&self, w: Windows) {
        self.windows.send_replace(w);
    }

    /// Whom the target waits for; `None` when it is not in recovery.
    pub fn recovery_status(&self) -> Option<RecoveryStatus> {
        if !self.in_recovery() {
            return None;
        }
        let (clients, unfinished) = self.recovery.lock().unfinished();
        let one = |(cookie, back): (u64, bool)| {
            self.export(cookie).map(|e| WaitedFor {
                uuid: e.uuid.clone(),
                nid: e.nid(),
                back,
            })
        };
        let mut waited_for: Vec<WaitedFor> = unfinished.into_iter().filter_map(one).collect();
        waited_for.sort_by(|a, b| (a.back, &a.uuid).cmp(&(b.back, &b.uuid)));
        let w = self.windows();
        let missing = waited_for.first().is_some_and(|w| !w.back);
        let until = self.started_at + if missing { w.soft } else { w.hard.max(w.soft) };
        Some(RecoveryStatus {
            clients,
            waited_for,
            left: until.saturating_duration_since(Instant::now()),
        })
    }

    /// Ends a recovery at once: clients that are not done are evicted, and lose what they have not replayed
    /// (`lctl abort_recovery`). How many that were.
    pub fn abort_recovery(self: &Arc<Self>) -> usize {
        if !self.in_recovery() {
            return 0;
        }
        let behind = self.recovery.lock().unfinished().1;
        for (cookie, _) in &behind {
            self.evict(*cookie, "recovery was aborted");
        }
        self.advance_recovery();
        behind.len()
    }
}
