//! Mounting, and taking the mount down again.
//!
//! The kernel checks permissions (`default_permissions`, with ACLs) by attributes that a lock covers, or that it asks for when
//! none does. It alone can: pipes, sockets and devices it opens without asking anybody, and watches (inotify) too.
//!
//! If the process dies, the kernel answers every call on the mount with ENOTCONN ("Transport endpoint is not connected")
//! until `fusermount3 -u DIR` or `umount DIR`. If another mount namespace holds a copy of the mount (a container started
//! while it was there), an unmount here does not end the connection; it is aborted then where /sys/fs/fuse/connections is
//! at hand, else its threads stay blocked until the process ends.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use coral_client::ErrorLog;
use coral_client::llite::types::Invalidate;
use tokio::sync::watch;

use crate::buf::Pool;
use crate::fs::FileSystem;
use crate::handles::Handles;
use crate::interrupt::Waiting;
use crate::nodes::Nodes;
use crate::notify::{Invalidator, Notifier};
use crate::readers::Readers;
use crate::session::{self, Shared};
use crate::sizes::Sizes;
use crate::stats::FuseStats;
use crate::sys::{self, MountSpec};

/// How to mount.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// Threads that read and serve requests, 1..=64.
    pub threads: usize,
    /// Serving a request may block its thread, for instance on a disk: the threads all read, always.
    pub blocks: bool,
    /// What `mount` and `df` show as the device: Lustre's `NID:/fsname`.
    pub source: String,
    /// Let users other than the one mounting in (permissions are checked either way). An ordinary user needs
    /// `user_allow_other` in /etc/fuse.conf for it.
    pub allow_other: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// Start no programs from it.
    pub no_exec: bool,
    /// Give no privileges by set-uid bits and file capabilities.
    pub no_suid: bool,
    /// Open no devices on it.
    pub no_dev: bool,
    /// Show that reads change no times; the file system behind it sees to that.
    pub no_atime: bool,
    /// Largest read or write request, bytes: a multiple of 4096 up to 1 MiB (the kernel's default limit).
    pub max_write: usize,
    /// Let the kernel remember names for as long as llite says a lock covers them.
    pub name_cache: bool,
    /// Every write goes to disk before it is answered, and every change of a directory.
    pub sync: bool,
    /// Every change of a directory goes to disk before it is answered.
    pub dir_sync: bool,
}

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            threads: 4,
            blocks: true,
            source: "coral".to_owned(),
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            no_exec: false,
            no_suid: false,
            no_dev: false,
            no_atime: false,
            max_write: 1 << 20,
            name_cache: true,
            sync: false,
            dir_sync: false,
        }
    }
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is missing, no directory, or dead.
    #[error("cannot mount on {at}: {source}{hint}")]
    MountPoint {
        /// The mount point given.
        at: PathBuf,
        /// What the kernel said about it.
        source: io::Error,
        /// What to do, if there is something.
        hint: &'static str,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse: {0}; is the fuse module loaded and the device visible here?")]
    Device(io::Error),
    /// mount(2) or fusermount3 refused.
    #[error("mounting on {at} failed: {source}")]
    Refused {
        /// The mount point.
        at: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a FUSE thread: {0}")]
    Thread(io::Error),
}

/// Why a mount is still there.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open or working directories are there.
    #[error("{0} is busy: a program has files open or its working directory there")]
    Busy(PathBuf),
    /// Something else.
    #[error("unmounting {at}: {source}")]
    Failed {
        /// The mount point.
        at: PathBuf,
        /// What the kernel or fusermount3 said.
        source: io::Error,
    },
}

/// A mounted file system. Dropping it detaches the mount lazily.
pub struct Mount {
    at: PathBuf,
    by_fusermount: bool,
    connection: Option<u32>,
    ended: watch::Receiver<bool>,
    closing: Box<dyn Fn() + Send + Sync>,
    stats: Arc<FuseStats>,
    nodes: Arc<Nodes>,
    notifier: Arc<Notifier>,
    gone: AtomicBool,
}

/// How long an unmounted connection may take to end.
const END_WAIT: Duration = Duration::from_secs(3);

/// Mounts `fs` on the directory `at`. Must be called inside a tokio runtime with time enabled; requests that wait are
/// driven by it.
pub fn mount_fs<F: FileSystem>(fs: F, at: &Path, opts: &FuseOptions) -> Result<Mount, MountError> {
    assert!(
        (1..=64).contains(&opts.threads)
            && opts.max_write.is_multiple_of(4096)
            && opts.max_write <= 1 << 20
    );
    let at = check_mount_point(at)?;
    let locks = fs.takes_locks();
    let (dev, by_fusermount) = attach(&at, opts)?;
    let dev = Arc::new(dev);
    let runtime = tokio::runtime::Handle::current();
    let (nodes, minor) = (Arc::new(Nodes::new(fs.root())), Arc::new(AtomicU32::new(0)));
    let stats = Arc::<FuseStats>::default();
    let notifier = Notifier::new(dev.clone(), nodes.clone(), minor.clone(), runtime.clone());
    let shared = Arc::new(Shared {
        fs,
        nodes: nodes.clone(),
        fresh: Default::default(),
        files: Handles::new(),
        dirs: Handles::new(),
        stats: stats.clone(),
        max_write: opts.max_write,
        chmods: AtomicU64::new(1),
        minor,
        agreed: AtomicU64::new(0),
        waiting: Waiting::default(),
        waits: Arc::default(),
        pool: Pool::new(opts.max_write),
        runtime,
        name_cache: opts.name_cache,
        locks,
        notifier: notifier.clone(),
        sizes: Sizes::new({
            let dev = dev.clone();
            move |node, size| match sys::raise_size(&dev, node, size) {
                Err(e) if !is_gone(&e) => tracing::error!(node, "telling the kernel a size: {e}"),
                _ => {}
            }
        }),
        readers: Readers::new(opts.threads, opts.blocks),
        closing: AtomicBool::new(false),
        log: ErrorLog::default(),
        mount_point: at.clone(),
    });
    let closing = Box::new({
        let shared = shared.clone();
        move || shared.closing.store(true, Ordering::Relaxed)
    });
    let ended = start_threads(&shared, &dev, opts.threads).map_err(|e| {
        let _ = detach(&at, by_fusermount, true);
        MountError::Thread(e)
    })?;
    let connection = sys::connection(&at);
    Ok(Mount {
        at,
        by_fusermount,
        connection,
        ended,
        closing,
        stats,
        nodes,
        notifier,
        gone: AtomicBool::new(false),
    })
}

/// The kernel has forgotten the file, or the mount has ended.
fn is_gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// Whether what is mounted at `path` lost its process. The kernel may remember attributes of it, but must ask for its space.
pub fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(rustix::io::Errno::NOTCONN))
}

/// Changes the kernel's flags of the mount at `at`: those named by `words` are set, those by `cleared` are not, others stay
/// (`ro`, `noexec`, `nosuid`, `nodev`). Needs privilege.
pub fn remount(at: &Path, words: &[&str], cleared: &[&str]) -> io::Result<()> {
    sys::remount(&at.canonicalize()?, words, cleared)
}

/// Whether a Coral file system is mounted at `at`, by the text of a process's `/proc/PID/mountinfo`.
pub fn is_mounted(mountinfo: &str, at: &Path) -> bool {
    sys::is_mounted_in(mountinfo, at)
}

/// The mount point as an absolute path.
fn check_mount_point(at: &Path) -> Result<PathBuf, MountError> {
    let bad = |source: io::Error| {
        let dead = source.raw_os_error() == Some(libc::ENOTCONN);
        let hint = if dead {
            "; a mount whose process died is still there: fusermount3 -u it first"
        } else {
            ""
        };
        MountError::MountPoint {
            at: at.to_owned(),
            source,
            hint,
        }
    };
    let path = at.canonicalize().map_err(bad)?;
    if is_dead(&path) {
        return Err(bad(rustix::io::Errno::NOTCONN.into()));
    }
    if !path.metadata().map_err(bad)?.is_dir() {
        return Err(bad(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    Ok(path)
}

/// The connected device, and whether fusermount3 had to help.
fn attach(at: &Path, opts: &FuseOptions) -> Result<(OwnedFd, bool), MountError> {
    let words = [
        (opts.read_only, "ro"),
        (opts.no_exec, "noexec"),
        (opts.no_suid, "nosuid"),
        (opts.no_dev, "nodev"),
        (opts.no_atime, "noatime"),
        (opts.sync, "sync"),
        (opts.dir_sync, "dirsync"),
    ];
    let words = words
        .into_iter()
        .filter(|(set, _)| *set)
        .map(|(_, word)| word)
        .collect();
    let spec = MountSpec {
        source: &opts.source,
        allow_other: opts.allow_other,
        words,
    };
    let refused = |source| MountError::Refused {
        at: at.to_owned(),
        source,
    };
    let denied = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    let by_fusermount = || Ok((sys::fusermount(at, &spec).map_err(refused)?, true));
    let dev = match sys::open_device() {
        Ok(dev) => dev,
        // fusermount3 is setuid and brings the device along.
        Err(e) if denied(&e) => return by_fusermount(),
        Err(e) => return Err(MountError::Device(e)),
    };
    match sys::mount(&dev, at, &spec) {
        Ok(()) => Ok((dev, false)),
        Err(e) if denied(&e) => by_fusermount(),
        Err(e) => Err(refused(e)),
    }
}

fn detach(at: &Path, by_fusermount: bool, lazy: bool) -> io::Result<()> {
    if by_fusermount {
        sys::fusermount_unmount(at, lazy)
    } else {
        sys::unmount(at, lazy)
    }
}

/// Starts the readers; the receiver turns true when the last has ended and all handles are closed.
#[expect(
    clippy::disallowed_methods,
    reason = "the threads that read requests of the kernel, which blocks them"
)]
fn start_threads<F: FileSystem>(
    shared: &Arc<Shared<F>>,
    dev: &Arc<OwnedFd>,
    count: usize,
) -> io::Result<watch::Receiver<bool>> {
    let (tx, rx) = watch::channel(false);
    let (tx, left) = (Arc::new(tx), Arc::new(AtomicUsize::new(count)));
    for i in 0..count {
        // Where cloning is not possible the threads share a descriptor: slower under load, but right.
        let own = match i {
            0 => dev.clone(),
            _ => sys::clone_device(dev)
                .map(Arc::new)
                .unwrap_or_else(|_| dev.clone()),
        };
        let (shared, left, tx) = (shared.clone(), left.clone(), tx.clone());
        std::thread::Builder::new()
            .name(format!("coral-fuse-{i}"))
            .stack_size(4 << 20)
            .spawn(move || {
                session::reader(shared.clone(), own, i);
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let runtime = shared.runtime.clone();
                    shared.notifier.ended();
                    runtime.spawn(async move {
                        shared.finish().await;
                        tracing::debug!("served: {}", shared.stats);
                        let _ = tx.send(true);
                    });
                }
            })?;
    }
    Ok(rx)
}

impl Mount {
    /// Where it is mounted, absolute.
    pub fn mount_point(&self) -> &Path {
        &self.at
    }

    /// Resolves when the mount is gone: by [`Mount::unmount`], or by somebody's `umount`. All files are closed then.
    pub async fn join(&self) {
        let _ = self.ended.clone().wait_for(|&e| e).await;
    }

    /// Unmounts and waits until all files are closed. Busy mounts stay (an error), unless `lazy`: then the mount leaves
    /// the name space at once, and what programs still have open ends when this process does.
    #[expect(
        clippy::disallowed_methods,
        reason = "an unmount waits for whoever uses the mount"
    )]
    pub async fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        if *self.ended.borrow() {
            return Ok(());
        }
        let (at, by_fusermount) = (self.at.clone(), self.by_fusermount);
        let r = tokio::task::spawn_blocking(move || match detach(&at, by_fusermount, false) {
            Err(e) if lazy && e.kind() == io::ErrorKind::ResourceBusy => {
                detach(&at, by_fusermount, true)
            }
            r => r,
        });
        match r.await.map_err(io::Error::other).flatten() {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                return Err(UnmountError::Busy(self.at.clone()));
            }
            // Somebody was faster.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(source) => {
                return Err(UnmountError::Failed {
                    at: self.at.clone(),
                    source,
                });
            }
        }
        self.gone.store(true, Ordering::Relaxed);
        self.wait_or_abort().await;
        Ok(())
    }

    async fn wait_or_abort(&self) {
        if tokio::time::timeout(END_WAIT, self.join()).await.is_ok() {
            return;
        }
        (self.closing)();
        tracing::warn!(
            "{} is still in use elsewhere; ending its connection",
            self.at.display()
        );
        if self.connection.is_some_and(|c| sys::abort(c).is_ok()) {
            let _ = tokio::time::timeout(END_WAIT, self.join()).await;
        }
    }

    /// What the mount has done so far.
    pub fn stats(&self) -> &Arc<FuseStats> {
        &self.stats
    }

    /// Files the kernel knows at this moment.
    pub fn known_files(&self) -> usize {
        self.nodes.count()
    }

    /// Who tells the kernel about lost locks.
    pub fn invalidate(&self) -> Arc<dyn Invalidate> {
        Arc::new(Invalidator(self.notifier.clone()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !*self.ended.borrow() && !self.gone.load(Ordering::Relaxed) {
            let _ = detach(&self.at, self.by_fusermount, true);
        }
    }
}
