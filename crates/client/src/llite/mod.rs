//! llite: a POSIX file system as a library, no FUSE in it.
//!
//! Every operation is an `async fn` whose future may be dropped at any time (an interrupt): what was asked of a server
//! may then still happen, as with a signal during a system call. Errors are positive errno values.
//!
//! Invariants: what [`Entry`] says may be cached is covered by an LDLM lock at that moment; no `parking_lot` lock of this
//! crate is held across an await (locks of tokio order appends, unlocks and the like, and are).
//!
//! Lustre: `lustre/llite/{super25,namei,file,dir,xattr,statahead}.c`. Absent: mmap consistency with other clients
//! where the kernel does not ask (a page that is there), statahead, encryption, PCC, HSM.

mod append;
mod cache;
mod cred;
mod dir;
mod dirstripe;
mod file;
mod finish;
mod flock;
mod getattr;
mod ghosts;
mod inode;
mod lock_owners;
mod lost_dirs;
mod mdt_open;
mod mount;
mod namei;
mod open_inode;
mod pages;
mod params;
mod pools;
mod privileges;
mod quota;
mod range;
mod reopen;
mod setattr;
mod striped;
pub mod types;
mod writeback;
mod xattr;

pub use dir::DirHandle;
pub use dirstripe::MkdirRequest;
pub use file::FileHandle;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use coral_lnet::Node;
use coral_wire::fid::Fid;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::lmv::Lmv;
use crate::lov::Lov;
use crate::mgc::{Config, Mgc};
use crate::target::Dialer;
use cache::Cache;
pub use cache::Spent;
use ghosts::Ghosts;
use lock_owners::LockOwners;
use open_inode::OpenInode;
use pages::Pages;
use reopen::Reopen;
use types::{Invalidate, MountOptions};

/// One mounted file system.
pub struct Llite {
    node: Arc<Node>,
    opts: MountOptions,
    dialer: Dialer,
    mgc: Arc<Mgc>,
    config: watch::Receiver<Config>,
    lmv: Arc<Lmv>,
    lov: Arc<Lov>,
    root: Fid,
    /// Inodes with open handles.
    open: Mutex<HashMap<Fid, Weak<OpenInode>>>,
    lost_dirs: lost_dirs::LostDirs,
    /// Groups of objects seen, to choose supplementary groups by.
    gids: Mutex<HashMap<Fid, u32>>,
    /// Who holds file locks.
    lock_owners: LockOwners,
    inval: RwLock<Option<Arc<dyn Invalidate>>>,
    cache: Arc<Cache>,
    pages: Pages,
    reopen: Reopen,
    ghosts: Ghosts,
    /// A task looks after data that is kept back.
    flusher: AtomicBool,
    /// What was set here of OSTs, by index: used or not.
    activation: Mutex<BTreeMap<u32, bool>>,
    /// Held while OSTs come and go.
    following: tokio::sync::Mutex<()>,
    /// Where drains of the kernel's pages run.
    runtime: tokio::runtime::Handle,
}

impl Llite {
    /// FID of the mounted directory.
    pub fn root(&self) -> Fid {
        self.root
    }

    /// The node this mount speaks through.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Whether fcntl and flock locks go to the servers.
    pub fn takes_locks(&self) -> bool {
        self.opts.flock
    }

    /// File system name.
    pub fn fsname(&self) -> &str {
        &self.opts.fsname
    }

    /// Who to tell about lost locks; at most one.
    pub fn set_invalidate(&self, inval: Arc<dyn Invalidate>) {
        *self.inval.write() = Some(inval);
    }

    /// Files whose data may be in the kernel's page cache, under extent locks of ours.
    pub fn covered_files(&self) -> usize {
        self.pages.covered()
    }

    /// The caller no longer remembers `fid` (FUSE forget): caches about it may go first.
    pub fn forget(self: &Arc<Self>, fid: Fid) {
        self.gids.lock().remove(&fid);
        self.ghosts.forget(fid);
        self.cache.unused(fid);
        self.release_pages(fid);
    }
}
