//! What the FUSE layer asks of a file system: llite's operations, as a trait.
//!
//! The trait exists so that this crate is tested with a small in-memory file system (examples/memfs.rs) before and apart
//! from llite. Futures may be dropped at any time: that is how a lock wait ends, and, while servers are away, any other call of
//! a program that is being killed.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_client::llite::types::{
    Cred, DirEntry, Entry, FileLock, LockKind, SeekWhence, SetAttr, StatFs,
};
use coral_stopwatch::Stopwatch;
use coral_wire::fid::Fid;

use crate::error::OpError;

/// How reads through an open file use the kernel's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCache {
    /// Every read and write is asked of the file system.
    Around,
    /// Reads go through it, and what is in it already may be used.
    Keep,
    /// Reads go through it; what is in it is dropped first.
    Fresh,
}

/// A file system by FID. Every method is the operation of the same name of [`coral_client::llite::Llite`].
#[allow(clippy::too_many_arguments, reason = "rename has that many")]
pub trait FileSystem: Send + Sync + 'static {
    /// An open file.
    type File: Send + Sync + 'static;
    /// An open directory.
    type Dir: Send + Sync + 'static;
    /// Whether `write` and opens that cut clear setuid and setgid by themselves; if not, the FUSE layer does when the kernel says so.
    const DROPS_SETID: bool = false;

    /// Whether fcntl and flock locks come here; else the kernel keeps them, for this mount alone.
    fn takes_locks(&self) -> bool {
        true
    }

    /// Whether requests may wait long because a server cannot be reached: a program that is being killed need not wait for them.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Where the time of its operations is kept, if anywhere.
    fn stopwatch(&self) -> Option<&Arc<Stopwatch>> {
        None
    }

    /// FID of the mounted directory.
    fn root(&self) -> Fid;
    /// The kernel no longer knows `fid`.
    fn forget(&self, fid: Fid);

    /// Resolves one name; ".." works.
    fn lookup(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> impl Future<Output = Result<Entry, OpError>> + Send;
    /// Target of a symbolic link.
    fn readlink(
        &self,
        cred: &Cred,
        fid: Fid,
    ) -> impl Future<Output = Result<Bytes, OpError>> + Send;
    /// Makes a device, fifo, socket or regular file.
    fn mknod(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> impl Future<Output = Result<Entry, OpError>> + Send;
    /// Makes a directory.
    fn mkdir(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
    ) -> impl Future<Output = Result<Entry, OpError>> + Send;
    /// Makes a symbolic link.
    fn symlink(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        target: &[u8],
    ) -> impl Future<Output = Result<Entry, OpError>> + Send;
    /// A further name for a file.
    fn link(
        &self,
        cred: &Cred,
        fid: Fid,
        parent: Fid,
        name: &[u8],
    ) -> impl Future<Output = Result<Entry, OpError>> + Send;
    /// Removes a name that is not a directory.
    fn unlink(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// Removes an empty directory.
    fn rmdir(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// Renames; `flags` as in renameat2.
    fn rename(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        new_parent: Fid,
        new_name: &[u8],
        flags: u32,
    ) -> impl Future<Output = Result<(), OpError>> + Send;

    /// Attributes.
    fn getattr(
        &self,
        cred: &Cred,
        fid: Fid,
        file: Option<&Self::File>,
    ) -> impl Future<Output = Result<Entry, OpError>> + Send;
    /// Changes attributes.
    fn setattr(
        &self,
        cred: &Cred,
        fid: Fid,
        set: SetAttr,
        file: Option<&Self::File>,
    ) -> impl Future<Output = Result<Entry, OpError>> + Send;
    /// access(2).
    fn access(
        &self,
        cred: &Cred,
        fid: Fid,
        mask: u32,
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// Whole file system statistics.
    fn statfs(&self) -> impl Future<Output = Result<StatFs, OpError>> + Send;

    /// Opens, creating if need be.
    fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> impl Future<Output = Result<(Entry, Self::File), OpError>> + Send;
    /// Opens an existing file.
    fn open(
        &self,
        cred: &Cred,
        fid: Fid,
        flags: u32,
    ) -> impl Future<Output = Result<Self::File, OpError>> + Send;
    /// Reads; short only at the end of the file.
    fn read(
        &self,
        file: &Self::File,
        offset: u64,
        len_bytes: u32,
    ) -> impl Future<Output = Result<Payload, OpError>> + Send;
    /// Writes all of `data`; with `append` at the end of the file, whatever `offset` says.
    fn write(
        &self,
        cred: &Cred,
        file: &Self::File,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> impl Future<Output = Result<usize, OpError>> + Send;
    /// Reads pages for the kernel's page cache, which holds them locked meanwhile.
    fn read_pages(
        &self,
        file: &Self::File,
        offset: u64,
        len_bytes: u32,
    ) -> impl Future<Output = Result<Payload, OpError>> + Send {
        self.read(file, offset, len_bytes)
    }
    /// Writes dirty pages of the kernel's page cache back.
    fn write_pages(
        &self,
        file: &Self::File,
        offset: u64,
        data: Payload,
    ) -> impl Future<Output = Result<usize, OpError>> + Send {
        async move { self.write(&Cred::root(), file, offset, data, false).await }
    }
    /// How reads through `file` use the kernel's page cache.
    fn page_cache(&self, file: &Self::File) -> PageCache {
        let _ = file;
        PageCache::Around
    }
    /// A descriptor was closed.
    fn flush(
        &self,
        file: &Self::File,
        lock_owner: u64,
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// The last descriptor was closed: drops the open file's own locks.
    fn release(&self, file: &Self::File) -> impl Future<Output = Result<(), OpError>> + Send;
    /// Content and attributes to disk.
    fn fsync(
        &self,
        file: &Self::File,
        datasync: bool,
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// fallocate(2).
    fn fallocate(
        &self,
        cred: &Cred,
        file: &Self::File,
        mode: u32,
        offset: u64,
        len_bytes: u64,
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// SEEK_HOLE and SEEK_DATA.
    fn lseek(
        &self,
        file: &Self::File,
        offset: u64,
        whence: SeekWhence,
    ) -> impl Future<Output = Result<u64, OpError>> + Send;

    /// Opens a directory.
    fn opendir(
        &self,
        cred: &Cred,
        fid: Fid,
    ) -> impl Future<Output = Result<Self::Dir, OpError>> + Send;
    /// Lists from `cookie` until `fill` answers true (full; that entry was not taken).
    fn readdir(
        &self,
        cred: &Cred,
        dir: &Self::Dir,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// Closes a directory.
    fn releasedir(&self, dir: &Self::Dir) -> impl Future<Output = Result<(), OpError>> + Send;
    /// A directory's entries to disk.
    fn fsyncdir(&self, dir: &Self::Dir) -> impl Future<Output = Result<(), OpError>> + Send;

    /// Value of an xattr.
    fn getxattr(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
    ) -> impl Future<Output = Result<Bytes, OpError>> + Send;
    /// Sets an xattr.
    fn setxattr(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Bytes,
        flags: u32,
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// Names of all xattrs, each ended by a NUL.
    fn listxattr(
        &self,
        cred: &Cred,
        fid: Fid,
    ) -> impl Future<Output = Result<Bytes, OpError>> + Send;
    /// Removes an xattr.
    fn removexattr(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
    ) -> impl Future<Output = Result<(), OpError>> + Send;

    /// fcntl F_GETLK.
    fn getlk(
        &self,
        file: &Self::File,
        owner: u64,
        lock: FileLock,
    ) -> impl Future<Output = Result<FileLock, OpError>> + Send;
    /// fcntl F_SETLK and F_SETLKW.
    fn setlk(
        &self,
        file: &Self::File,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> impl Future<Output = Result<(), OpError>> + Send;
    /// flock(2). The lock is the open file's: its release drops it.
    fn flock(
        &self,
        file: &Self::File,
        kind: LockKind,
        wait: bool,
    ) -> impl Future<Output = Result<(), OpError>> + Send;
}
