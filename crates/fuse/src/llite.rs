//! llite behind the FUSE layer.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_client::Error;
use coral_client::llite::types::{
    Cred, DirEntry, Entry, FileLock, LockKind, SeekWhence, SetAttr, StatFs,
};
use coral_client::llite::{DirHandle, Llite, OpenedFile};
use coral_wire::Errno;
use coral_wire::fid::Fid;

use crate::error::OpError;
use crate::fs::{FileSystem, PageCache};
use crate::mount::{FuseOptions, Mount, MountError, mount_fs};

/// Mounts a Lustre file system on the directory `at`. Lost locks are told to the kernel from here on.
pub fn mount(llite: Arc<Llite>, at: &Path, opts: &FuseOptions) -> Result<Mount, MountError> {
    let mount = mount_fs(
        LliteFs {
            llite: llite.clone(),
            sync: opts.sync,
            dir_sync: opts.sync || opts.dir_sync,
        },
        at,
        opts,
    )?;
    llite.set_invalidate(mount.invalidate());
    Ok(mount)
}

/// The kernel checks permissions (see `crate::mount`), of special files too, which it opens by itself; llite and the MDT check
/// besides.
struct LliteFs {
    llite: Arc<Llite>,
    /// Every write goes to disk at once.
    sync: bool,
    /// So does every change of a directory.
    dir_sync: bool,
}

impl LliteFs {
    /// The flags a file is opened with.
    fn flags(&self, flags: u32) -> u32 {
        if self.sync {
            flags | libc::O_SYNC as u32
        } else {
            flags
        }
    }

    /// A change of the directory `dir` is done.
    async fn changed(&self, dir: Fid) -> Result<(), OpError> {
        if self.dir_sync {
            Ok(self.llite.sync_dir(dir).await?)
        } else {
            Ok(())
        }
    }

    /// What became of names in `dirs`. Where one of these was moved to another MDT since the kernel looked it up, the kernel is to look
    /// at the whole path again.
    async fn named<T>(&self, dirs: &[Fid], done: Result<T, Error>) -> Result<T, OpError> {
        match done {
            Err(e) if e.errno() == Errno::ENOENT && self.llite.has_any_moved(dirs).await => {
                Err(OpError::from(e).looked_up())
            }
            done => Ok(done?),
        }
    }
}

impl FileSystem for LliteFs {
    type File = OpenedFile;
    type Dir = Arc<DirHandle>;
    const DROPS_SETID: bool = true;

    fn takes_locks(&self) -> bool {
        self.llite.takes_locks()
    }
    fn is_cut_off(&self) -> bool {
        self.llite.is_cut_off()
    }

    fn stopwatch(&self) -> Option<&Arc<coral_stopwatch::Stopwatch>> {
        Some(self.llite.node().stopwatch())
    }

    fn root(&self) -> Fid {
        self.llite.root()
    }
    fn forget(&self, fid: Fid) {
        self.llite.forget(fid);
    }
    async fn lookup(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, OpError> {
        let found = self.llite.lookup(cred, parent, name).await;
        self.named(&[parent], found).await
    }
    async fn readlink(&self, cred: &Cred, fid: Fid) -> Result<Bytes, OpError> {
        Ok(self.llite.readlink(cred, fid).await?)
    }
    async fn mknod(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry, OpError> {
        let made = self.llite.mknod(cred, parent, name, mode, rdev).await;
        let e = self.named(&[parent], made).await?;
        self.changed(parent).await.map(|()| e)
    }
    async fn mkdir(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry, OpError> {
        let made = self.llite.mkdir(cred, parent, name, mode).await;
        let e = self.named(&[parent], made).await?;
        self.changed(parent).await.map(|()| e)
    }
    async fn symlink(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, OpError> {
        let made = self.llite.symlink(cred, parent, name, target).await;
        let e = self.named(&[parent], made).await?;
        self.changed(parent).await.map(|()| e)
    }
    async fn link(
        &self,
        cred: &Cred,
        fid: Fid,
        parent: Fid,
        name: &[u8],
    ) -> Result<Entry, OpError> {
        let made = self.llite.link(cred, fid, parent, name).await;
        let e = self.named(&[parent], made).await?;
        self.changed(parent).await.map(|()| e)
    }
    async fn unlink(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), OpError> {
        let done = self.llite.unlink(cred, parent, name).await;
        self.named(&[parent], done).await?;
        self.changed(parent).await
    }
    async fn rmdir(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), OpError> {
        let done = self.llite.rmdir(cred, parent, name).await;
        self.named(&[parent], done).await?;
        self.changed(parent).await
    }
    async fn rename(
        &self,
        cred: &Cred,
        p1: Fid,
        n1: &[u8],
        p2: Fid,
        n2: &[u8],
        flags: u32,
    ) -> Result<(), OpError> {
        let done = self.llite.rename(cred, p1, n1, p2, n2, flags).await;
        self.named(&[p1, p2], done).await?;
        self.changed(p1).await?;
        self.changed(p2).await
    }
    async fn getattr(
        &self,
        cred: &Cred,
        fid: Fid,
        file: Option<&Self::File>,
    ) -> Result<Entry, OpError> {
        // the file is asked about by its FID
        let _ = file;
        Ok(self.llite.getattr(cred, fid, None).await?)
    }
    async fn setattr(
        &self,
        cred: &Cred,
        fid: Fid,
        set: SetAttr,
        file: Option<&Self::File>,
    ) -> Result<Entry, OpError> {
        let handle = match file {
            Some(file) => Some(file.handle().await?),
            None => None,
        };
        let set = self.llite.setattr(cred, fid, set, handle.as_deref());
        Ok(set.await?)
    }
    async fn access(&self, cred: &Cred, fid: Fid, mask: u32) -> Result<(), OpError> {
        Ok(self.llite.access(cred, fid, mask).await?)
    }
    async fn statfs(&self) -> Result<StatFs, OpError> {
        Ok(self.llite.statfs().await?)
    }
    async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Self::File), OpError> {
        let flags = self.flags(flags);
        if self.dir_sync {
            let made = self.llite.create(cred, parent, name, mode, flags).await;
            let (entry, fh) = self.named(&[parent], made).await?;
            self.changed(parent).await?;
            return Ok((entry, OpenedFile::Asked(fh)));
        }
        let made = self.llite.make(cred, parent, name, mode, flags).await;
        self.named(&[parent], made).await
    }
    async fn open(&self, cred: &Cred, fid: Fid, flags: u32) -> Result<Self::File, OpError> {
        let opened = self.llite.open(cred, fid, self.flags(flags)).await?;
        Ok(OpenedFile::Asked(opened))
    }
    async fn read(
        &self,
        file: &Self::File,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, OpError> {
        Ok(self
            .llite
            .read(&*file.handle().await?, offset, len_bytes)
            .await?)
    }
    async fn write(
        &self,
        cred: &Cred,
        file: &Self::File,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> Result<usize, OpError> {
        Ok(self
            .llite
            .write_at(cred, &*file.handle().await?, offset, data, append)
            .await?)
    }
    async fn read_pages(
        &self,
        file: &Self::File,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, OpError> {
        Ok(self
            .llite
            .read_pages(&*file.handle().await?, offset, len_bytes)
            .await?)
    }
    async fn write_pages(
        &self,
        file: &Self::File,
        offset: u64,
        data: Payload,
    ) -> Result<usize, OpError> {
        Ok(self
            .llite
            .write_pages(&*file.handle().await?, offset, data)
            .await?)
    }
    fn page_cache(&self, file: &Self::File) -> PageCache {
        // what was made is open for writing, or empty
        let Some(Ok(file)) = file.handle_now() else {
            return PageCache::Around;
        };
        match self.llite.caches_pages(&file) {
            true if self.llite.pages_uncovered(&file) => PageCache::Fresh,
            true => PageCache::Keep,
            false => PageCache::Around,
        }
    }
    async fn flush(&self, file: &Self::File, lock_owner: u64) -> Result<(), OpError> {
        Ok(self.llite.flush_opened(file, lock_owner).await?)
    }
    async fn release(&self, file: &Self::File) -> Result<(), OpError> {
        Ok(self.llite.release_opened(file).await?)
    }
    async fn fsync(&self, file: &Self::File, datasync: bool) -> Result<(), OpError> {
        Ok(self.llite.fsync(&*file.handle().await?, datasync).await?)
    }
    async fn fallocate(
        &self,
        cred: &Cred,
        file: &Self::File,
        mode: u32,
        off: u64,
        len: u64,
    ) -> Result<(), OpError> {
        Ok(self
            .llite
            .fallocate(cred, &*file.handle().await?, mode, off, len)
            .await?)
    }
    async fn lseek(
        &self,
        file: &Self::File,
        offset: u64,
        whence: SeekWhence,
    ) -> Result<u64, OpError> {
        Ok(self
            .llite
            .lseek(&*file.handle().await?, offset, whence)
            .await?)
    }
    async fn opendir(&self, cred: &Cred, fid: Fid) -> Result<Self::Dir, OpError> {
        Ok(self.llite.opendir(cred, fid).await?)
    }
    async fn readdir(
        &self,
        cred: &Cred,
        dir: &Self::Dir,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> Result<(), OpError> {
        Ok(self.llite.readdir(cred, dir, cookie, plus, fill).await?)
    }
    async fn releasedir(&self, dir: &Self::Dir) -> Result<(), OpError> {
        Ok(self.llite.releasedir(dir).await?)
    }
    async fn fsyncdir(&self, dir: &Self::Dir) -> Result<(), OpError> {
        Ok(self.llite.fsyncdir(dir).await?)
    }
    async fn getxattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, OpError> {
        Ok(self.llite.getxattr(cred, fid, name).await?)
    }
    async fn setxattr(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Bytes,
        flags: u32,
    ) -> Result<(), OpError> {
        Ok(self.llite.setxattr(cred, fid, name, value, flags).await?)
    }
    async fn listxattr(&self, cred: &Cred, fid: Fid) -> Result<Bytes, OpError> {
        Ok(self.llite.listxattr(cred, fid).await?)
    }
    async fn removexattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<(), OpError> {
        Ok(self.llite.removexattr(cred, fid, name).await?)
    }
    async fn getlk(
        &self,
        file: &Self::File,
        owner: u64,
        lock: FileLock,
    ) -> Result<FileLock, OpError> {
        Ok(self
            .llite
            .getlk(&*file.handle().await?, owner, lock)
            .await?)
    }
    async fn setlk(
        &self,
        file: &Self::File,
        owner: u64,
        lock: FileLock,
        wait: bool,
    ) -> Result<(), OpError> {
        Ok(self
            .llite
            .setlk(&*file.handle().await?, owner, lock, wait)
            .await?)
    }
    async fn flock(&self, file: &Self::File, kind: LockKind, wait: bool) -> Result<(), OpError> {
        Ok(self.llite.flock(&*file.handle().await?, kind, wait).await?)
    }
}
