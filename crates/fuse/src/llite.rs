//! llite behind the FUSE layer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_client::llite::types::{Cred, DirEntry, Entry, FileLock, LockKind, SeekWhence, SetAttr, StatFs};
use coral_client::llite::{DirHandle, FileHandle, Llite};
use coral_lnet::Payload;
use coral_wire::{Errno, fid::Fid};

use crate::fs::{FileSystem, PageCache};
use crate::mount::{FuseOptions, Mount, MountError, mount_fs};

/// Mounts a Lustre file system on the directory `at`. Lost locks are told to the kernel from here on.
pub fn mount(llite: Arc<Llite>, at: &Path, opts: &FuseOptions) -> Result<Mount, MountError> {
    let mount = mount_fs(LliteFs::new(llite.clone(), !opts.kernel_permissions), at, opts)?;
    llite.set_invalidate(mount.invalidate());
    Ok(mount)
}

struct LliteFs {
    llite: Arc<Llite>,
    /// Permissions are checked here and by the MDT; the kernel checks none.
    checks: bool,
    /// `fs.protected_hardlinks`, which the kernel cannot enforce when it checks nothing.
    protected_hardlinks: bool,
}

const R_OK: u32 = 4;
const W_OK: u32 = 2;

impl LliteFs {
    fn new(llite: Arc<Llite>, checks: bool) -> Self {
        let sysctl = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap_or_default();
        Self { llite, checks, protected_hardlinks: sysctl.trim() != "0" }
    }

    /// A name gets a validity only where everybody may search the directory: the kernel asks nobody again.
    fn named(&self, parent: Fid, mut e: Entry) -> Entry {
        if self.checks && !e.entry_ttl.is_zero() && !self.llite.anyone_may_search(parent) {
            e.entry_ttl = Duration::ZERO;
        }
        e
    }

    /// What the MDT does not get to see, or answers from a cache of ours.
    async fn check(&self, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Errno> {
        if self.checks && cred.uid != 0 { self.llite.access(cred, fid, mask).await } else { Ok(()) }
    }

    /// `user.*` xattrs follow the permission bits of the file; the others have rules of their own, which the kernel checks.
    async fn check_xattr(&self, cred: &Cred, fid: Fid, name: &[u8], mask: u32) -> Result<(), Errno> {
        if name.starts_with(b"user.") { self.check(cred, fid, mask).await } else { Ok(()) }
    }
}

impl FileSystem for LliteFs {
    type File = Arc<FileHandle>;
    type Dir = Arc<DirHandle>;
    const DROPS_SETID: bool = true;

    fn checks_permissions(&self) -> bool {
        self.checks
    }
    fn takes_locks(&self) -> bool {
        self.llite.takes_locks()
    }
    fn root(&self) -> Fid {
        self.llite.root()
    }
    fn forget(&self, fid: Fid) {
        self.llite.forget(fid);
    }
    async fn lookup(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        self.llite.lookup(cred, parent, name).await.map(|e| self.named(parent, e))
    }
    async fn readlink(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        self.llite.readlink(cred, fid).await
    }
    async fn mknod(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32, rdev: u32) -> Result<Entry, Errno> {
        self.llite.mknod(cred, parent, name, mode, rdev).await.map(|e| self.named(parent, e))
    }
    async fn mkdir(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        self.llite.mkdir(cred, parent, name, mode).await.map(|e| self.named(parent, e))
    }
    async fn symlink(&self, cred: &Cred, parent: Fid, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.llite.symlink(cred, parent, name, target).await.map(|e| self.named(parent, e))
    }
    async fn link(&self, cred: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        if self.checks && self.protected_hardlinks && cred.uid != 0 {
            let attr = self.llite.getattr(cred, fid, None).await?.attr;
            if attr.uid != cred.uid {
                let plain = attr.mode & libc::S_IFMT == libc::S_IFREG
                    && attr.mode & libc::S_ISUID == 0
                    && attr.mode & (libc::S_ISGID | libc::S_IXGRP) != libc::S_ISGID | libc::S_IXGRP;
                let may = self.llite.access(cred, fid, R_OK | W_OK).await.is_ok();
                if !plain || !may {
                    return Err(Errno(libc::EPERM));
                }
            }
        }
        self.llite.link(cred, fid, parent, name).await.map(|e| self.named(parent, e))
    }
    async fn unlink(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        self.llite.unlink(cred, parent, name).await
    }
    async fn rmdir(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        self.llite.rmdir(cred, parent, name).await
    }
    async fn rename(&self, cred: &Cred, p1: Fid, n1: &[u8], p2: Fid, n2: &[u8], flags: u32) -> Result<(), Errno> {
        self.llite.rename(cred, p1, n1, p2, n2, flags).await
    }
    async fn getattr(&self, cred: &Cred, fid: Fid, file: Option<&Self::File>) -> Result<Entry, Errno> {
        self.llite.getattr(cred, fid, file.map(|f| &**f)).await
    }
    async fn setattr(&self, cred: &Cred, fid: Fid, set: SetAttr, file: Option<&Self::File>) -> Result<Entry, Errno> {
        self.llite.setattr(cred, fid, set, file.map(|f| &**f)).await
    }
    async fn access(&self, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Errno> {
        self.llite.access(cred, fid, mask).await
    }
    async fn statfs(&self) -> Result<StatFs, Errno> {
        self.llite.statfs().await
    }
    async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Self::File), Errno> {
        self.llite.create(cred, parent, name, mode, flags).await.map(|(e, f)| (self.named(parent, e), f))
    }
    async fn open(&self, cred: &Cred, fid: Fid, flags: u32) -> Result<Self::File, Errno> {
        self.llite.open(cred, fid, flags).await
    }
    async fn read(&self, file: &Self::File, offset: u64, len_bytes: u32) -> Result<Payload, Errno> {
        self.llite.read(file, offset, len_bytes).await
    }
    async fn write(
        &self,
        cred: &Cred,
        file: &Self::File,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> Result<usize, Errno> {
        self.llite.write_at(cred, file, offset, data, append).await
    }
    async fn read_pages(&self, file: &Self::File, offset: u64, len_bytes: u32) -> Result<Payload, Errno> {
        self.llite.read_pages(file, offset, len_bytes).await
    }
    async fn write_pages(&self, file: &Self::File, offset: u64, data: Payload) -> Result<usize, Errno> {
        self.llite.write_pages(file, offset, data).await
    }
    fn page_cache(&self, file: &Self::File) -> PageCache {
        match self.llite.caches_pages(file) {
            true if self.llite.pages_uncovered(file) => PageCache::Fresh,
            true => PageCache::Keep,
            false => PageCache::Around,
        }
    }
    async fn flush(&self, file: &Self::File, lock_owner: u64) -> Result<(), Errno> {
        self.llite.flush(file, lock_owner).await
    }
    async fn release(&self, file: &Self::File, flock_owner: Option<u64>) -> Result<(), Errno> {
        self.llite.release(file, flock_owner).await
    }
    async fn fsync(&self, file: &Self::File, datasync: bool) -> Result<(), Errno> {
        self.llite.fsync(file, datasync).await
    }
    async fn fallocate(&self, cred: &Cred, file: &Self::File, mode: u32, off: u64, len: u64) -> Result<(), Errno> {
        self.llite.fallocate(cred, file, mode, off, len).await
    }
    async fn lseek(&self, file: &Self::File, offset: u64, whence: SeekWhence) -> Result<u64, Errno> {
        self.llite.lseek(file, offset, whence).await
    }
    async fn opendir(&self, cred: &Cred, fid: Fid) -> Result<Self::Dir, Errno> {
        self.check(cred, fid, R_OK).await?;
        self.llite.opendir(cred, fid).await
    }
    async fn readdir(
        &self,
        cred: &Cred,
        dir: &Self::Dir,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> Result<(), Errno> {
        let parent = dir.fid();
        let mut fill = |mut e: DirEntry| {
            e.entry = e.entry.map(|x| self.named(parent, x));
            fill(e)
        };
        self.llite.readdir(cred, dir, cookie, plus, &mut fill).await
    }
    async fn releasedir(&self, dir: &Self::Dir) -> Result<(), Errno> {
        self.llite.releasedir(dir).await
    }
    async fn fsyncdir(&self, dir: &Self::Dir) -> Result<(), Errno> {
        self.llite.fsyncdir(dir).await
    }
    async fn getxattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        self.check_xattr(cred, fid, name, R_OK).await?;
        self.llite.getxattr(cred, fid, name).await
    }
    async fn setxattr(&self, cred: &Cred, fid: Fid, name: &[u8], value: Bytes, flags: u32) -> Result<(), Errno> {
        self.check_xattr(cred, fid, name, W_OK).await?;
        self.llite.setxattr(cred, fid, name, value, flags).await
    }
    async fn listxattr(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        self.llite.listxattr(cred, fid).await
    }
    async fn removexattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        self.check_xattr(cred, fid, name, W_OK).await?;
        self.llite.removexattr(cred, fid, name).await
    }
    async fn getlk(&self, file: &Self::File, owner: u64, lock: FileLock) -> Result<FileLock, Errno> {
        self.llite.getlk(file, owner, lock).await
    }
    async fn setlk(&self, file: &Self::File, owner: u64, lock: FileLock, wait: bool) -> Result<(), Errno> {
        self.llite.setlk(file, owner, lock, wait).await
    }
    async fn flock(&self, file: &Self::File, owner: u64, kind: LockKind, wait: bool) -> Result<(), Errno> {
        self.llite.flock(file, owner, kind, wait).await
    }
}
