//! Telling the kernel to forget, when a lock that covered its caches is lost.
//!
//! Invariants, each against a deadlock:
//! - Attributes: INVAL_INODE with offset -1 takes no inode or page lock, so it is sent from the lock callback itself.
//! - Names: INVAL_ENTRY would take the parent's inode lock, which a request of our own may hold while it waits for this very
//!   lock to be cancelled. So it is never sent. INC_EPOCH (7.44) makes every name of the mount be looked up again and takes
//!   no lock at all; on older kernels names get no validity in the first place (`Shared::entry_ttl`).
//! - Pages: INVAL_INODE with a range waits for page locks, held by reads that wait for us, and for the write-back of dirty
//!   pages. So it is sent from a thread that serves no request, and llite sees to it that such reads and writes wait for
//!   nobody (`coral_client::llite`, pages).
//!
//! A file that a request is about to bring is not known to the kernel yet, and would be remembered just after. While the answer
//! is being made, the answer itself leaves the attributes without a validity (`told`). Once it is on its way, telling the kernel
//! fails (ENOENT): such files are told again until the kernel knows or has forgotten them.
//! Linux: `fs/fuse/dev.c` fuse_notify, `fs/fuse/inode.c` fuse_reverse_inval_inode, `fs/fuse/dir.c` fuse_reverse_inval_entry.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coral_client::llite::types::Invalidate;
use coral_wire::fid::Fid;
use parking_lot::Mutex;
use rustix::io::Errno as SysErrno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{self, OutHeader, notify};
use crate::nodes::Nodes;
use crate::reply;
use crate::told::Told;

/// How often a file the kernel does not know yet is told again, and the pause between: a reply is taken within this time.
const RETRIES: u32 = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// What is still to be told.
#[derive(Default)]
struct Queue {
    /// File -> whether its pages go too, and how often it was tried.
    files: BTreeMap<(u64, u32, u32), (bool, u32)>,
    running: bool,
}

/// Sends invalidations for one mount.
pub struct Notifier {
    dev: Arc<OwnedFd>,
    nodes: Arc<Nodes>,
    minor: Arc<AtomicU32>,
    /// The kernel checks permissions itself, on attributes.
    kernel_checks: bool,
    /// Files whose attributes were to be forgotten: answers on their way know them too.
    pub(crate) told: Told,
    queue: Mutex<Queue>,
    runtime: tokio::runtime::Handle,
}

impl Notifier {
    pub(crate) fn new(
        dev: Arc<OwnedFd>,
        nodes: Arc<Nodes>,
        minor: Arc<AtomicU32>,
        kernel_checks: bool,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        Arc::new(Self { dev, nodes, minor, kernel_checks, told: Told::default(), queue: Mutex::default(), runtime })
    }

    fn send<T: IntoBytes + Immutable>(&self, code: i32, body: &T) -> rustix::io::Result<()> {
        let body = body.as_bytes();
        let h = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error: code, unique: 0 };
        reply::write(self.dev.as_fd(), &[IoSlice::new(h.as_bytes()), IoSlice::new(body)])
    }

    /// Attributes (and ACLs) of a node; with `pages` its page cache as well, which may block.
    fn inval_node(&self, ino: u64, pages: bool) -> rustix::io::Result<()> {
        self.send(notify::INVAL_INODE, &abi::InvalInodeOut { ino, off: if pages { 0 } else { -1 }, len: 0 })
    }

    /// Leaves a file to the worker.
    fn later(self: &Arc<Self>, fid: Fid, pages: bool, tries: u32) {
        let mut q = self.queue.lock();
        q.files.entry((fid.seq, fid.oid, fid.ver)).or_insert((false, tries)).0 |= pages;
        if !std::mem::replace(&mut q.running, true) {
            let me = self.clone();
            self.runtime.spawn(async move { me.work().await });
        }
    }

    /// Works the queue off.
    async fn work(self: Arc<Self>) {
        loop {
            let next = {
                let mut q = self.queue.lock();
                match q.files.pop_first() {
                    Some(n) => n,
                    None => {
                        q.running = false;
                        return;
                    }
                }
            };
            let ((seq, oid, ver), (pages, tries)) = next;
            let fid = Fid { seq, oid, ver };
            let Some(ino) = self.nodes.id(fid) else { continue };
            let me = self.clone();
            let r = tokio::task::spawn_blocking(move || me.inval_node(ino, pages)).await;
            if matches!(r, Ok(Err(SysErrno::NOENT))) && tries < RETRIES {
                tokio::time::sleep(RETRY_PAUSE).await;
                self.later(fid, pages, tries + 1);
            }
        }
    }
}

impl Notifier {
    /// Makes the kernel look every name up again. Names that were given no validity are not concerned.
    pub(crate) fn look_up_again(&self) {
        if self.minor.load(Ordering::Relaxed) >= abi::MINOR_INC_EPOCH
            && let Err(e) = self.send(notify::INC_EPOCH, &[0u8; 0])
            && e != SysErrno::NODEV
        {
            tracing::error!("telling the kernel to look names up again: {e}");
        }
    }
}

/// The [`Invalidate`] that llite gets.
pub(crate) struct Invalidator(pub Arc<Notifier>);

impl Invalidate for Invalidator {
    fn inval_inode(&self, fid: Fid, attr_only: bool) {
        let n = &self.0;
        n.told.note(fid);
        let Some(ino) = n.nodes.id(fid) else { return };
        let unknown = n.inval_node(ino, false) == Err(SysErrno::NOENT);
        if unknown || !attr_only {
            n.later(fid, !attr_only, 0);
        }
        // Who may search the directory may have changed: without its own check the kernel must ask for each name again.
        if !n.kernel_checks && n.nodes.is_dir(ino) {
            n.look_up_again();
        }
    }

    fn inval_entry(&self, _parent: Fid, _name: &[u8]) {
        self.0.look_up_again();
    }

    fn drop_pages(&self, fid: Fid, range: std::ops::Range<u64>) {
        let n = &self.0;
        let Some(ino) = n.nodes.id(fid) else { return };
        let (off, last) = (range.start as i64, range.end.min(i64::MAX as u64));
        // Length 0 is "to the end". ENOENT: the kernel has no inode, so it has no pages.
        let len = if range.end > i64::MAX as u64 { 0 } else { last as i64 - off };
        match n.send(notify::INVAL_INODE, &abi::InvalInodeOut { ino, off, len }) {
            Ok(()) | Err(SysErrno::NOENT | SysErrno::NODEV) => {}
            Err(e) => tracing::error!(%fid, "telling the kernel to drop pages: {e}"),
        }
    }
}
