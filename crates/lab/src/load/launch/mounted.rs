//! The mounts of the library that a run has made. They end on every way out of it, so that no server keeps a client that is gone.

use crate::load::storage::Library;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// After a failure the mounts have so long to end: servers that are gone would be waited for.
const FAILED_LIMIT: Duration = Duration::from_secs(10);

/// Mounts that have not ended.
#[derive(Clone, Default)]
pub struct Mounted(Arc<Mutex<Vec<Library>>>);

impl Mounted {
    /// More.
    pub(super) fn add(&self, mounts: &[Library]) {
        self.0.lock().extend_from_slice(mounts);
    }

    /// Ends them, and waits until all that was written is with the servers.
    pub(super) fn end(&self) {
        // Locked meanwhile: whoever gives them up waits for this.
        self.0.lock().drain(..).for_each(Library::unmount);
    }

    /// Ends them; what takes longer than some seconds is given up.
    pub fn give_up(&self) {
        if self.0.try_lock().is_some_and(|all| all.is_empty()) {
            return;
        }
        let (done, ended) = channel();
        let mounted = self.clone();
        let unmount = move || {
            mounted.end();
            let _ = done.send(());
        };
        if crate::clock::spawn("unmount", unmount).is_ok() {
            let _ = ended.recv_timeout(FAILED_LIMIT);
        }
    }
}
