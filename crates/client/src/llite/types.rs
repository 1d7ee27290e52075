//! The vocabulary of [`super::Llite`]: what a caller hands in and gets back. No behaviour beyond small conversions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::{fid::Fid, nid::Nid};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Error;
pub use crate::time::Timespec;

/// Attributes of one file, merged from its MDT and (regular files) its OST objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// FID; the inode number is `fid.flatten()`.
    pub fid: Fid,
    /// Type and permission bits (`S_IFMT | 07777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project id.
    pub projid: u32,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks in use.
    pub blocks: u64,
    /// Hard links.
    pub nlink: u32,
    /// Device number of character and block devices, as Linux encodes it for user space (`makedev`).
    pub rdev: u32,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of content or attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
    /// Preferred I/O size, bytes.
    pub blksize: u32,
    /// Inode flags (`FS_*_FL`: immutable, append only, ...).
    pub flags: u32,
}

/// A name resolved: the attributes of what it names and for how long the caller may remember them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Attributes of the object.
    pub attr: Attr,
    /// How long attributes may be cached; zero unless covered by a lock whose loss is told through [`Invalidate`].
    pub attr_ttl: Duration,
    /// The same for the name.
    pub entry_ttl: Duration,
}

impl Entry {
    /// One that nobody may remember.
    pub(super) fn for_now(attr: Attr) -> Self {
        Self {
            attr,
            attr_ttl: Duration::ZERO,
            entry_ttl: Duration::ZERO,
        }
    }
}

/// Who asks. Supplementary groups are read from `/proc/<pid>/status` when first needed.
#[derive(Debug, Clone, Default)]
pub struct Cred {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Process (thread) id of the caller, 0 if unknown: then there are no supplementary groups but [`Cred::groups`].
    pub pid: u32,
    /// The caller's umask (only create, mkdir and mknod look at it).
    pub umask: u32,
    /// Supplementary groups when the caller knows them already; `None`: read from `/proc/<pid>/status` when needed.
    pub groups: Option<std::sync::Arc<[u32]>>,
}

impl Cred {
    /// The superuser without umask and groups.
    pub fn root() -> Self {
        Self {
            groups: Some(std::sync::Arc::from([])),
            ..Self::default()
        }
    }

    /// A user with one group and nothing else.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: Some(std::sync::Arc::from([])),
            ..Self::default()
        }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present (`UTIME_NOW`): needs write permission only.
    Now,
    /// A given time: needs ownership.
    At(Timespec),
}

/// Attributes to change; `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits (`07777`).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes: truncates or extends.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (FUSE sends it with writeback caching only).
    pub ctime: Option<Timespec>,
    /// Clear setuid, and setgid where group execute is set (FUSE `FATTR_KILL_SUIDGID`).
    pub kill_suidgid: bool,
    /// Inode flags (`FS_*_FL`, chattr).
    pub flags: Option<u32>,
    /// Project id.
    pub projid: Option<u32>,
}

impl SetAttr {
    /// Without flags and a project id that are so already: other flags are another privilege than another project.
    pub fn beside(self, now: &Attr) -> Self {
        Self {
            flags: self.flags.filter(|f| *f != now.flags),
            projid: self.projid.filter(|p| *p != now.projid),
            ..self
        }
    }
}

/// One entry of a directory listing. "." and ".." are included, first.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// FID of what is named.
    pub fid: Fid,
    /// The name, without NUL.
    pub name: Bytes,
    /// `S_IFMT` bits of the type.
    pub kind: u32,
    /// The cookie that continues AFTER this entry (stable: telldir).
    pub next: u64,
    /// With `plus`: attributes, except for "." and "..", or when they could not be had.
    pub entry: Option<Entry>,
}

/// Whole file system statistics (sum of the targets). Units as in `statvfs(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Bytes per block.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for users.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name, bytes.
    pub namelen: u32,
}

/// Kind of a byte-range or whole-file lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// Free the range.
    Unlock,
}

/// A byte-range lock (fcntl). `end` is inclusive, `u64::MAX` (or anything >= i64::MAX) means to the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive.
    pub end: u64,
    /// Shared, exclusive or unlock.
    pub kind: LockKind,
    /// Process id of the owner (of the holder, in the answer of `getlk`).
    pub pid: u32,
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhence {
    /// Next hole at or after the offset (the end of the file counts as one).
    Hole,
    /// Next data at or after the offset; ENXIO when there is none.
    Data,
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// File system name, 1 to 8 characters.
    pub fsname: String,
    /// NIDs of the MGS, tried in turn.
    pub mgs_nids: Vec<Nid>,
    /// Directory of the file system to mount instead of its root, without leading slash.
    pub subdir: Option<String>,
    /// Ask for `user.*` xattrs (mount option user_xattr).
    pub user_xattr: bool,
    /// Keep attributes and names under LDLM locks. Off: every answer is asked from the servers.
    pub cache: bool,
    /// Bound of what is cached, MiB.
    pub cache_mb: u32,
    /// flock and fcntl locks go to the servers (mount option flock). Off: ENOSYS, so the kernel keeps them local.
    pub flock: bool,
    /// Reads move access times, at most once a day and after changes (relatime). Off: never (mount option noatime).
    pub atime: bool,
    /// Every close of a file that was read moves its access time (mount option strictatime).
    pub strict_atime: bool,
    /// How long to wait for the MGS and the targets before giving up.
    pub connect_timeout: Duration,
    /// Claim data checksums on the wire (ignored between nodes of one process).
    pub checksums: bool,
    /// SELinux is on on this machine: `security.selinux` is an xattr like others, else EOPNOTSUPP.
    pub selinux: bool,
    /// The Lustre release to claim (`ocd_version`, [`coral_wire::connect::release`]).
    pub version: u32,
    /// Speak as the kernel client does even to Coral servers: nothing private is agreed on.
    pub plain: bool,
    /// Says what the mount waits for.
    pub waits: Arc<Waits>,
}

/// Targets that a mount was never connected to and waits for, with their NIDs.
#[derive(Debug, Default)]
pub struct Waits {
    targets: Mutex<BTreeMap<String, String>>,
    given_up: Notify,
}

impl Waits {
    /// The mount is to be given up while it waits: servers that know it already are told goodbye.
    pub fn give_up(&self) {
        self.given_up.notify_one();
    }

    /// Resolves when the mount is to be given up.
    pub(super) async fn given_up(&self) {
        self.given_up.notified().await;
    }

    /// Each as `coral-MDT0002 at 10.0.0.1@tcp`, or with why nobody knows where it is, in the order of their names.
    pub fn list(&self) -> Vec<String> {
        let waits = self.targets.lock();
        let told = waits.iter().map(|(name, place)| format!("{name} {place}"));
        told.collect()
    }

    /// The target is waited for until what is returned is dropped.
    pub(super) fn begin(self: &Arc<Self>, uuid: &str, nids: &[Nid]) -> Waiting {
        let name = uuid.trim_end_matches("_UUID");
        self.begin_told(name, format!("at {}", crate::mgc::list(nids)))
    }

    /// The same for one of which the MGS does not say where it is.
    pub(super) fn begin_unknown(self: &Arc<Self>, name: &str, mgs: &str) -> Waiting {
        let told = format!("(the MGS at {mgs} does not know it: it was never served)");
        self.begin_told(name, told)
    }

    fn begin_told(self: &Arc<Self>, name: &str, place: String) -> Waiting {
        self.targets.lock().insert(name.to_owned(), place);
        Waiting(self.clone(), name.to_owned())
    }
}

/// A target is waited for.
pub(super) struct Waiting(Arc<Waits>, String);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.targets.lock().remove(&self.1);
    }
}

impl MountOptions {
    /// Defaults for `fsname` served by `mgs_nids`.
    pub fn new(fsname: &str, mgs_nids: Vec<Nid>) -> Self {
        Self {
            fsname: fsname.to_owned(),
            mgs_nids,
            subdir: None,
            user_xattr: true,
            cache: true,
            cache_mb: 256,
            flock: true,
            atime: true,
            strict_atime: false,
            connect_timeout: Duration::from_secs(10),
            checksums: true,
            selinux: false,
            version: coral_wire::connect::CLAIMED,
            plain: false,
            waits: Arc::default(),
        }
    }
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The name is empty, longer than 8 characters, or not [A-Za-z0-9_-].
    #[error("'{0}' is not a file system name (1 to 8 of A-Z a-z 0-9 _ -)")]
    BadFsname(String),
    /// No MGS answered.
    #[error("no answer from the MGS at {nids}: {reason}; is it running, and is the port right?")]
    MgsUnreachable {
        /// NIDs tried, comma separated.
        nids: String,
        /// The last failure.
        reason: String,
    },
    /// The MGS does not know the file system.
    #[error(
        "the MGS at {mgs} knows no file system '{fsname}'; check the name given to `coral up` or `coral format`"
    )]
    NoSuchFs {
        /// The name asked for.
        fsname: String,
        /// The MGS that answered.
        mgs: String,
    },
    /// The file system has no root.
    #[error(
        "the MGS at {mgs} knows no MDT0000 of the file system '{fsname}', which has its root: serve that once, or check the name"
    )]
    NoRoot {
        /// The name asked for.
        fsname: String,
        /// The MGS that answered.
        mgs: String,
    },
    /// The configuration log could not be read or understood.
    #[error("configuration log {log}: {reason}")]
    Config {
        /// Name of the log.
        log: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A metadata target could not be connected.
    #[error("cannot connect to {target} at {nids}: {reason}")]
    Target {
        /// Target name, `fs-MDT0000`.
        target: String,
        /// NIDs tried.
        nids: String,
        /// The last failure.
        reason: String,
    },
    /// Whoever asked for it does not want it any more.
    #[error("stopped before it was mounted")]
    GivenUp,
    /// The subdirectory does not exist or is no directory.
    #[error("cannot mount subdirectory '{path}': {why}")]
    Subdir {
        /// The path asked for.
        path: String,
        /// The server's answer.
        why: Error,
    },
}

/// Told what the caller's own caches (the kernel's, under a FUSE mount) must forget, because a lock was lost.
/// Called inline from lock callbacks: must not block and must not call back into [`super::Llite`].
pub trait Invalidate: Send + Sync {
    /// Attributes of `fid` are no longer known; with `attr_only` false cached pages are not either.
    fn inval_inode(&self, fid: Fid, attr_only: bool);
    /// Resolves when the caller has forgotten what it was told of by now, which may take moments when it is just being given an
    /// answer. A lock is given back after that.
    fn forgotten(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
    /// Attributes of `fid` were changed by the caller's own request, which no lost lock tells of: an answer of before, still on
    /// its way, must not be remembered over the change.
    fn own_change(&self, fid: Fid) {
        let _ = fid;
    }
    /// The name `name` in `parent` may now mean something else.
    fn inval_entry(&self, parent: Fid, name: &[u8]);
    /// Drops the cached pages of `fid` in `range` (bytes; `u64::MAX`: to the end), dirty ones after writing them back. Unlike
    /// the others it is called on a thread of its own and returns when they are gone, after reads of them that are under way.
    fn drop_pages(&self, fid: Fid, range: std::ops::Range<u64>) {
        let _ = (fid, range);
    }
    /// Puts `data` into the cached pages of `fid` from `offset` on: whole pages, within the file. It is called on a thread of its
    /// own as well, and returns when they are there, after reads of them that are under way. False: they are not.
    fn store_pages(&self, fid: Fid, offset: u64, data: &Payload) -> bool {
        let _ = (fid, offset, data);
        false
    }
}
