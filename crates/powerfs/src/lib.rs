//! For tests only: a file system in memory, mounted with FUSE, whose power can be cut.
//!
//! It keeps what programs see and what a disk would have after power loss, by the rules in `disk.rs`. At the cut every operation
//! under way waits; the programs are killed; then the waiting ones fail, the mount goes, and the next [`PowerFs::on`] mounts what
//! the disk had. What is lost comes from a seed and from how far the programs were.
//! syncfs(2) reaches it for programs started through [`PowerFs::watch`]. Absent: RENAME_EXCHANGE, ACLs, locks of files (the kernel
//! keeps them).

mod content;
mod disk;
mod fs;
mod syncfs;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

pub use disk::CutReport;

use coral_client::llite::types::Timespec;
use coral_fuse::{FuseOptions, Mount};
use disk::Disk;
use fs::Fs;
use tree::{ROOT, Tree};

#[expect(clippy::disallowed_methods, reason = "wall time at the edge")]
pub(crate) fn now() -> Timespec {
    let d = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timespec {
        secs: d.as_secs() as i64,
        nanos: d.subsec_nanos(),
    }
}

/// A disk whose power is on: mounted.
pub struct PowerFs {
    fs: Fs,
    mount: Mount,
    at: PathBuf,
    runtime: tokio::runtime::Handle,
}

/// What a disk has while its power is off.
pub struct Platters(Tree);

impl Platters {
    /// A new disk.
    pub fn empty() -> Platters {
        let mut tree = Tree::default();
        tree.nodes
            .insert(ROOT, fs::node(libc::S_IFDIR | 0o755, 0, 0, ROOT));
        Platters(tree)
    }
}

/// The power was cut; programs that use the disk stand still until this is dropped.
pub struct Cut {
    fs: Fs,
    mount: Mount,
    runtime: tokio::runtime::Handle,
    disk: Disk,
}

impl PowerFs {
    /// Mounts `disk` on the directory `at`; what the next cut takes comes from `seed`. `runtime` must have time and more than one
    /// thread.
    pub fn on(
        disk: Platters,
        at: &Path,
        seed: u64,
        runtime: &tokio::runtime::Handle,
    ) -> io::Result<PowerFs> {
        let _inside = runtime.enter();
        let fs = Fs::new(Disk::new(disk.0, seed));
        let options = FuseOptions {
            source: "powerfs".into(),
            ..FuseOptions::default()
        };
        let mount = coral_fuse::mount_fs(fs.clone(), at, &options).map_err(io::Error::other)?;
        Ok(PowerFs {
            fs,
            mount,
            at: at.to_owned(),
            runtime: runtime.clone(),
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Lets syncfs(2) of `command` and its children reach this disk; what is returned must be called once it was started.
    pub fn watch(
        &self,
        command: &mut Command,
    ) -> io::Result<impl FnOnce() -> io::Result<()> + use<>> {
        let fs = self.fs.clone();
        let sync = move || {
            if let Some(disk) = &mut fs.0.state.lock().disk {
                disk.sync_all();
            }
        };
        syncfs::catch(command, Box::new(sync))
    }

    /// Every fsync takes so long from now on.
    pub fn slow_syncs(&self, ms: u64) {
        self.fs.0.sync_ms.store(ms, Ordering::Relaxed);
    }

    /// Operations asked of it so far.
    pub fn operations(&self) -> u64 {
        self.fs.0.operations.load(Ordering::Relaxed)
    }

    /// Cuts the power.
    pub fn cut(self) -> Cut {
        let disk = self.fs.0.state.lock().disk.take().expect("its power is on");
        Cut {
            fs: self.fs,
            mount: self.mount,
            runtime: self.runtime,
            disk,
        }
    }

    /// Takes the disk out cleanly: nothing is lost.
    pub fn off(self) -> Platters {
        let mut cut = self.cut();
        cut.disk.sync_all();
        cut.end(false).0
    }
}

impl Cut {
    /// After the programs were sent SIGKILL: what they wait for fails, and when they are gone the mount goes. `torn`: some blocks
    /// are composed of sectors of what was and what came.
    pub fn after_kill(self, reap: impl FnOnce(), torn: bool) -> (Platters, CutReport) {
        let _ = self.fs.0.released.send_replace(true);
        reap();
        self.end(torn)
    }

    fn end(self, torn: bool) -> (Platters, CutReport) {
        let _ = self.fs.0.released.send_replace(true);
        if let Err(e) = self.runtime.block_on(self.mount.unmount(true)) {
            eprintln!("powerfs: {e}");
        }
        let (tree, report) = self.disk.cut(torn);
        (Platters(tree), report)
    }
}
