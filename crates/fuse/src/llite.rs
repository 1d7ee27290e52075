//! llite behind the FUSE layer.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use coral_client::llite::types::{Cred, DirEntry, Entry, FileLock, LockKind, SeekWhence, SetAttr, StatFs};
use coral_client::llite::{DirHandle, FileHandle, Llite};
use coral_lnet::Payload;
use coral_wire::{Errno, fid::Fid};

use crate::fs::FileSystem;
use crate::mount::{FuseOptions, Mount, MountError, mount_fs};

/// Mounts a Lustre file system on the directory `at`. Lost locks are told to the kernel from here on.
pub fn mount(llite: Arc<Llite>, at: &Path, opts: &FuseOptions) -> Result<Mount, MountError> {
    let mount = mount_fs(LliteFs(llite.clone()), at, opts)?;
    llite.set_invalidate(mount.invalidate());
    Ok(mount)
}

struct LliteFs(Arc<Llite>);

impl FileSystem for LliteFs {
    type File = Arc<FileHandle>;
    type Dir = Arc<DirHandle>;
    const DROPS_SETID: bool = true;

    fn root(&self) -> Fid {
        self.0.root()
    }
    fn forget(&self, fid: Fid) {
        self.0.forget(fid);
    }
    async fn lookup(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        self.0.lookup(cred, parent, name).await
    }
    async fn readlink(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        self.0.readlink(cred, fid).await
    }
    async fn mknod(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32, rdev: u32) -> Result<Entry, Errno> {
        self.0.mknod(cred, parent, name, mode, rdev).await
    }
    async fn mkdir(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        self.0.mkdir(cred, parent, name, mode).await
    }
    async fn symlink(&self, cred: &Cred, parent: Fid, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.0.symlink(cred, parent, name, target).await
    }
    async fn link(&self, cred: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        self.0.link(cred, fid, parent, name).await
    }
    async fn unlink(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        self.0.unlink(cred, parent, name).await
    }
    async fn rmdir(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        self.0.rmdir(cred, parent, name).await
    }
    async fn rename(&self, cred: &Cred, p1: Fid, n1: &[u8], p2: Fid, n2: &[u8], flags: u32) -> Result<(), Errno> {
        self.0.rename(cred, p1, n1, p2, n2, flags).await
    }
    async fn getattr(&self, cred: &Cred, fid: Fid, file: Option<&Self::File>) -> Result<Entry, Errno> {
        self.0.getattr(cred, fid, file.map(|f| &**f)).await
    }
    async fn setattr(&self, cred: &Cred, fid: Fid, set: SetAttr, file: Option<&Self::File>) -> Result<Entry, Errno> {
        self.0.setattr(cred, fid, set, file.map(|f| &**f)).await
    }
    async fn access(&self, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Errno> {
        self.0.access(cred, fid, mask).await
    }
    async fn statfs(&self) -> Result<StatFs, Errno> {
        self.0.statfs().await
    }
    async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Self::File), Errno> {
        self.0.create(cred, parent, name, mode, flags).await
    }
    async fn open(&self, cred: &Cred, fid: Fid, flags: u32) -> Result<Self::File, Errno> {
        self.0.open(cred, fid, flags).await
    }
    async fn read(&self, file: &Self::File, offset: u64, len_bytes: u32) -> Result<Payload, Errno> {
        self.0.read(file, offset, len_bytes).await
    }
    async fn write(
        &self,
        cred: &Cred,
        file: &Self::File,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> Result<usize, Errno> {
        self.0.write_at(cred, file, offset, data, append).await
    }
    async fn flush(&self, file: &Self::File, lock_owner: u64) -> Result<(), Errno> {
        self.0.flush(file, lock_owner).await
    }
    async fn release(&self, file: &Self::File, flock_owner: Option<u64>) -> Result<(), Errno> {
        self.0.release(file, flock_owner).await
    }
    async fn fsync(&self, file: &Self::File, datasync: bool) -> Result<(), Errno> {
        self.0.fsync(file, datasync).await
    }
    async fn fallocate(&self, cred: &Cred, file: &Self::File, mode: u32, off: u64, len: u64) -> Result<(), Errno> {
        self.0.fallocate(cred, file, mode, off, len).await
    }
    async fn lseek(&self, file: &Self::File, offset: u64, whence: SeekWhence) -> Result<u64, Errno> {
        self.0.lseek(file, offset, whence).await
    }
    async fn opendir(&self, cred: &Cred, fid: Fid) -> Result<Self::Dir, Errno> {
        self.0.opendir(cred, fid).await
    }
    async fn readdir(
        &self,
        cred: &Cred,
        dir: &Self::Dir,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> Result<(), Errno> {
        self.0.readdir(cred, dir, cookie, plus, fill).await
    }
    async fn releasedir(&self, dir: &Self::Dir) -> Result<(), Errno> {
        self.0.releasedir(dir).await
    }
    async fn fsyncdir(&self, dir: &Self::Dir) -> Result<(), Errno> {
        self.0.fsyncdir(dir).await
    }
    async fn getxattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        self.0.getxattr(cred, fid, name).await
    }
    async fn setxattr(&self, cred: &Cred, fid: Fid, name: &[u8], value: Bytes, flags: u32) -> Result<(), Errno> {
        self.0.setxattr(cred, fid, name, value, flags).await
    }
    async fn listxattr(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        self.0.listxattr(cred, fid).await
    }
    async fn removexattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        self.0.removexattr(cred, fid, name).await
    }
    async fn getlk(&self, file: &Self::File, owner: u64, lock: FileLock) -> Result<FileLock, Errno> {
        self.0.getlk(file, owner, lock).await
    }
    async fn setlk(&self, file: &Self::File, owner: u64, lock: FileLock, wait: bool) -> Result<(), Errno> {
        self.0.setlk(file, owner, lock, wait).await
    }
    async fn flock(&self, file: &Self::File, owner: u64, kind: LockKind, wait: bool) -> Result<(), Errno> {
        self.0.flock(file, owner, kind, wait).await
    }
}
