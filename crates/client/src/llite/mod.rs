//! llite: a POSIX file system as a library, no FUSE in it.
//!
//! Every operation is an `async fn` whose future may be dropped at any time (an interrupt): what was asked of a server
//! may then still happen, as with a signal during a system call. Errors are positive errno values.
//!
//! Invariants: what [`Entry`] says may be cached is covered by an LDLM lock at that moment; no lock of this crate is
//! held across an await.
//!
//! Lustre: `lustre/llite/{super25,namei,file,dir,xattr,statahead}.c`. Absent: mmap consistency with other clients
//! (the mount above us sees to it), write-back data cache, statahead, encryption, PCC, HSM.

pub mod types;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use coral_lnet::{Node, Payload};
use coral_wire::{Errno, fid::Fid};
use types::*;

/// One mounted file system.
pub struct Llite {
    node: Arc<Node>,
}

/// An open regular file (or device, fifo, socket inode).
pub struct FileHandle {
    fid: Fid,
    flags: u32,
}

impl FileHandle {
    /// FID of the file.
    pub fn fid(&self) -> Fid {
        self.fid
    }

    /// `O_*` flags it was opened with.
    pub fn flags(&self) -> u32 {
        self.flags
    }
}

/// An open directory.
pub struct DirHandle {
    fid: Fid,
}

impl DirHandle {
    /// FID of the directory.
    pub fn fid(&self) -> Fid {
        self.fid
    }
}

#[allow(unused_variables, reason = "bodies follow")]
impl Llite {
    /// Reads the configuration from the MGS, connects to the targets and finds the root.
    pub async fn mount(node: Arc<Node>, opts: MountOptions) -> Result<Arc<Self>, MountError> {
        todo!()
    }

    /// Cancels all locks and disconnects. Handles still open are closed by the servers.
    pub async fn umount(&self) {
        todo!()
    }

    /// FID of the mounted directory.
    pub fn root(&self) -> Fid {
        todo!()
    }

    /// The node this mount speaks through.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// RPCs sent so far per opcode name, sorted by name, summed over all targets.
    pub fn statistics(&self) -> Vec<(String, u64)> {
        todo!()
    }

    /// Who to tell about lost locks; at most one.
    pub fn set_invalidate(&self, inval: Arc<dyn Invalidate>) {
        todo!()
    }

    /// The caller no longer remembers `fid` (FUSE forget): caches about it may go first.
    pub fn forget(&self, fid: Fid) {
        todo!()
    }

    // ---- names -------------------------------------------------------------------------------------------------

    /// Resolves one name; ".." works. ENOENT when there is none.
    pub async fn lookup(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        todo!()
    }

    /// Target of a symbolic link, no NUL.
    pub async fn readlink(self: &Arc<Self>, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        todo!()
    }

    /// Makes a device, fifo, socket or regular file; `mode` holds type bits, `cred.umask` applies.
    pub async fn mknod(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry, Errno> {
        todo!()
    }

    /// Makes a directory.
    pub async fn mkdir(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        todo!()
    }

    /// Makes a symbolic link to `target`.
    pub async fn symlink(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        todo!()
    }

    /// A further name for `fid`.
    pub async fn link(self: &Arc<Self>, cred: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        todo!()
    }

    /// Removes a name that is not a directory.
    pub async fn unlink(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        todo!()
    }

    /// Removes an empty directory.
    pub async fn rmdir(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        todo!()
    }

    /// Renames; `flags` as in renameat2: RENAME_NOREPLACE works, RENAME_EXCHANGE and WHITEOUT answer EINVAL.
    pub async fn rename(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        new_parent: Fid,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        todo!()
    }

    // ---- attributes --------------------------------------------------------------------------------------------

    /// Attributes, and how long they may be remembered (`entry_ttl` has no meaning here).
    pub async fn getattr(self: &Arc<Self>, cred: &Cred, fid: Fid, fh: Option<&FileHandle>) -> Result<Entry, Errno> {
        todo!()
    }

    /// Changes attributes; answers the new ones. With `fh` a truncate needs no write permission on the file.
    pub async fn setattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        set: SetAttr,
        fh: Option<&FileHandle>,
    ) -> Result<Entry, Errno> {
        todo!()
    }

    /// access(2): `mask` of R_OK 4, W_OK 2, X_OK 1, F_OK 0. ACLs count.
    pub async fn access(self: &Arc<Self>, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Errno> {
        todo!()
    }

    /// Sum over the targets.
    pub async fn statfs(self: &Arc<Self>) -> Result<StatFs, Errno> {
        todo!()
    }

    // ---- files -------------------------------------------------------------------------------------------------

    /// Opens, creating when there is no such name (`O_EXCL` in `flags`: EEXIST when there is). `flags` are `O_*`.
    pub async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Arc<FileHandle>), Errno> {
        todo!()
    }

    /// Opens an existing file; `O_TRUNC` works, permissions are checked by the MDT.
    pub async fn open(self: &Arc<Self>, cred: &Cred, fid: Fid, flags: u32) -> Result<Arc<FileHandle>, Errno> {
        todo!()
    }

    /// Reads up to `len_bytes`; short only at the end of the file.
    pub async fn read(self: &Arc<Self>, fh: &FileHandle, offset: u64, len_bytes: u32) -> Result<Payload, Errno> {
        todo!()
    }

    /// Writes all of `data` at `offset` (at the end, whatever `offset` says, when opened with O_APPEND); bytes written.
    pub async fn write(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
    ) -> Result<usize, Errno> {
        todo!()
    }

    /// A descriptor was closed (each close of a dup): releases the fcntl locks of `lock_owner` on the file.
    pub async fn flush(self: &Arc<Self>, fh: &FileHandle, lock_owner: u64) -> Result<(), Errno> {
        todo!()
    }

    /// The last descriptor is gone: closes at the MDT; `flock_owner`: also drop that owner's flock.
    pub async fn release(self: &Arc<Self>, fh: &FileHandle, flock_owner: Option<u64>) -> Result<(), Errno> {
        todo!()
    }

    /// Everything written and every change of metadata is on disk when this returns.
    pub async fn fsync(self: &Arc<Self>, fh: &FileHandle, datasync: bool) -> Result<(), Errno> {
        todo!()
    }

    /// fallocate(2): mode 0, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE; others EOPNOTSUPP.
    pub async fn fallocate(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &FileHandle,
        mode: u32,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), Errno> {
        todo!()
    }

    /// lseek(2) with SEEK_HOLE or SEEK_DATA; the offset found.
    pub async fn lseek(self: &Arc<Self>, fh: &FileHandle, offset: u64, whence: SeekWhence) -> Result<u64, Errno> {
        todo!()
    }

    // ---- directories -------------------------------------------------------------------------------------------

    /// Opens a directory for reading.
    pub async fn opendir(self: &Arc<Self>, cred: &Cred, fid: Fid) -> Result<Arc<DirHandle>, Errno> {
        todo!()
    }

    /// Lists from `cookie` (0: the beginning) until `fill` says true (full: that entry was NOT taken) or the end.
    /// With `plus` each entry carries its attributes.
    pub async fn readdir(
        self: &Arc<Self>,
        cred: &Cred,
        dh: &DirHandle,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> Result<(), Errno> {
        todo!()
    }

    /// Ends reading.
    pub async fn releasedir(self: &Arc<Self>, dh: &DirHandle) -> Result<(), Errno> {
        todo!()
    }

    /// The directory's entries are on disk when this returns.
    pub async fn fsyncdir(self: &Arc<Self>, dh: &DirHandle) -> Result<(), Errno> {
        todo!()
    }

    // ---- extended attributes -----------------------------------------------------------------------------------

    /// Value of one xattr; ENODATA when there is none.
    pub async fn getxattr(self: &Arc<Self>, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        todo!()
    }

    /// Sets one; `flags` XATTR_CREATE 1, XATTR_REPLACE 2.
    pub async fn setxattr(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Bytes,
        flags: u32,
    ) -> Result<(), Errno> {
        todo!()
    }

    /// All names, each ended by a NUL.
    pub async fn listxattr(self: &Arc<Self>, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        todo!()
    }

    /// Removes one; ENODATA when there is none.
    pub async fn removexattr(self: &Arc<Self>, cred: &Cred, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        todo!()
    }

    // ---- locks -------------------------------------------------------------------------------------------------

    /// fcntl F_GETLK: the lock in the way, or `kind` Unlock.
    pub async fn getlk(
        self: &Arc<Self>,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
    ) -> Result<FileLock, Errno> {
        todo!()
    }

    /// fcntl F_SETLK, or F_SETLKW with `wait`; drop the future to interrupt. EAGAIN when taken, EDEADLK on a cycle.
    pub async fn setlk(
        self: &Arc<Self>,
        fh: &FileHandle,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<(), Errno> {
        todo!()
    }

    /// flock(2); EWOULDBLOCK when taken and not `wait`.
    pub async fn flock(
        self: &Arc<Self>,
        fh: &FileHandle,
        owner: u64,
        kind: LockKind,
        wait: bool,
    ) -> Result<(), Errno> {
        todo!()
    }

    // ---- Lustre's own ------------------------------------------------------------------------------------------

    /// A path of the file, from the root of the file system, without leading slash.
    pub async fn fid2path(self: &Arc<Self>, fid: Fid) -> Result<Bytes, Errno> {
        todo!()
    }

    /// FID of a path below the mounted root.
    pub async fn path2fid(self: &Arc<Self>, cred: &Cred, path: &[u8]) -> Result<Fid, Errno> {
        todo!()
    }

    /// The LOV EA as stored on the MDT.
    pub async fn layout(self: &Arc<Self>, fid: Fid) -> Result<Bytes, Errno> {
        todo!()
    }
}

/// A range of bytes in a file.
pub(crate) type Extent = Range<u64>;
