//! The mounts of the library that a run has made. They end on every way out of it, so that no server keeps a client that is gone.

use crate::clock::{now, spawn};
use crate::load::Failed;
use crate::load::storage::Library;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// After a failure the mounts have so long to end: servers that are gone would be waited for.
const FAILED_LIMIT: Duration = Duration::from_secs(10);
/// Where the process is ended under them.
const ABANDONED_LIMIT: Duration = Duration::from_secs(5);
/// Of that, so long at most for operations under way.
const OPERATIONS_LIMIT: Duration = Duration::from_secs(2);

/// Mounts that have not ended.
#[derive(Clone, Default)]
pub struct Mounted(Arc<Mutex<Vec<Library>>>);

impl Mounted {
    /// More: those that `mount` makes. Whoever gives them up meanwhile waits for it.
    pub(super) fn add(
        &self,
        mount: impl FnOnce() -> Result<Vec<Library>, Failed>,
    ) -> Result<Vec<Library>, Failed> {
        let mut all = self.0.lock();
        let mounts = mount()?;
        all.extend_from_slice(&mounts);
        Ok(mounts)
    }

    /// Ends them, and waits until all that was written is with the servers.
    pub(super) fn end(&self) {
        // Locked meanwhile: whoever gives them up waits for this.
        self.0.lock().drain(..).for_each(Library::unmount);
    }

    /// Ends them; what takes longer than some seconds is given up.
    pub(super) fn give_up(&self) {
        self.within(FAILED_LIMIT, Mounted::end);
    }

    /// Ends them under ranks that work on them, before the process ends: ranks that went on would connect again to servers that
    /// were told goodbye. That takes [`ABANDONED_LIMIT`] at most. They stand still after the operation that they are in.
    pub(super) fn abandon(&self) {
        self.within(ABANDONED_LIMIT, |mounted| {
            mounted.stand_still();
            mounted.end();
        });
    }

    fn stand_still(&self) {
        let until = now() + OPERATIONS_LIMIT;
        let all = self.0.lock().clone();
        all.iter()
            .for_each(|m| m.stand_still(until.saturating_duration_since(now())));
    }

    fn within(&self, limit: Duration, end: impl FnOnce(&Mounted) + Send + 'static) {
        if self.0.try_lock().is_some_and(|all| all.is_empty()) {
            return;
        }
        let (done, ended) = channel();
        let mounted = self.clone();
        let unmount = move || {
            end(&mounted);
            let _ = done.send(());
        };
        if spawn("unmount", unmount).is_ok() {
            let _ = ended.recv_timeout(limit);
        }
    }
}
