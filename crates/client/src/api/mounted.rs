//! The mount behind the handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::PathError;
use crate::error::{Error, ErrorLog};
use crate::llite::Llite;

/// What all handles of one mount share; the last of them unmounts.
pub(super) struct Mounted {
    /// The mount.
    pub llite: Arc<Llite>,
    /// Where what is dropped is closed.
    pub runtime: tokio::runtime::Handle,
    /// It was unmounted, or is about to be.
    ended: AtomicBool,
    log: ErrorLog,
}

impl Mounted {
    /// What was just mounted, on the runtime of the caller.
    pub fn new(llite: Arc<Llite>) -> Self {
        Self {
            llite,
            runtime: tokio::runtime::Handle::current(),
            ended: AtomicBool::new(false),
            log: ErrorLog::default(),
        }
    }

    /// What the caller is told of `done`; an error is logged.
    pub fn told<T>(
        &self,
        op: &'static str,
        path: &[u8],
        done: Result<T, Error>,
    ) -> Result<T, PathError> {
        done.map_err(|why| {
            self.log.tell(op, path.escape_ascii(), &why);
            PathError::new(op, path, why)
        })
    }

    /// Unmounts, once.
    pub async fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            end(&self.llite).await;
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Acquire) {
            let llite = self.llite.clone();
            self.runtime.spawn(async move { end(&llite).await });
        }
    }
}

async fn end(llite: &Llite) {
    llite.umount().await;
    llite.node().shutdown().await;
}
