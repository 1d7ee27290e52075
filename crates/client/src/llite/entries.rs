//! Calls about names, and about objects by their FID. Each waits first for what it could notice of the removals and creates that are told as
//! done and are not yet ([`super::late_names`]).

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use futures_util::future::join;

use super::types::{Cred, DirEntry, Entry, SetAttr, StatFs};
use super::{DirHandle, FileHandle, Llite, OpenedFile};
use crate::error::{Error, Refusal};

impl Llite {
    /// Attributes, and how long they may be remembered (`entry_ttl` has no meaning here).
    pub async fn getattr(
        &self,
        cred: &Cred,
        fid: Fid,
        _fh: Option<&FileHandle>,
    ) -> Result<Entry, Error> {
        self.late_names.file_settled(fid).await;
        self.attributes.getattr(cred, fid).await
    }

    /// Changes attributes; answers the new ones. With `fh` a truncate needs no write permission on the file.
    pub async fn setattr(
        &self,
        cred: &Cred,
        fid: Fid,
        set: SetAttr,
        fh: Option<&FileHandle>,
    ) -> Result<Entry, Error> {
        let _held = self.late_names.hold(&[fid]);
        self.late_names.object_settled(fid).await;
        self.setattrs.set(cred, fid, set, fh).await
    }

    /// Resolves one name; ".." works. ENOENT when there is none.
    pub async fn lookup(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, Error> {
        self.late_names.name_settled(parent, name).await;
        self.names.lookup(cred, parent, name).await
    }

    /// One of these directories was moved to another MDT since it was looked up, and has another FID there.
    pub async fn has_any_moved(&self, dirs: &[Fid]) -> bool {
        if !self.servers.lmv.several() {
            return false;
        }
        for dir in dirs {
            if self.names.has_moved(*dir).await {
                return true;
            }
        }
        false
    }

    /// Target of a symbolic link, no NUL.
    pub async fn readlink(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        self.late_names.file_settled(fid).await;
        self.names.readlink(cred, fid).await
    }

    /// A path of the file, from the mounted directory, without leading slash. Others than root are told one by which they can
    /// reach it: EACCES when a directory on the way may not be searched. (Lustre tells them none, `ll_fid2path` in
    /// lustre/llite/file.c, or with its mount option `user_fid2path` any.)
    pub async fn fid2path(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        self.late_names.file_settled(fid).await;
        self.names.fid2path(cred, fid).await
    }

    /// FID of a path below the mounted root.
    pub async fn path2fid(&self, cred: &Cred, path: &[u8]) -> Result<Fid, Error> {
        self.names.path2fid(cred, path).await
    }

    /// Makes a device, fifo, socket or regular file; `mode` holds type bits, `cred.umask` applies.
    pub async fn mknod(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry, Error> {
        self.late_names.dir_settled(parent).await;
        self.namespace.mknod(cred, parent, name, mode, rdev).await
    }

    /// Makes a directory.
    pub async fn mkdir(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry, Error> {
        self.late_names.dir_settled(parent).await;
        self.namespace.mkdir(cred, parent, name, mode).await
    }

    /// Makes a symbolic link to `target`.
    pub async fn symlink(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Error> {
        self.late_names.dir_settled(parent).await;
        self.namespace.symlink(cred, parent, name, target).await
    }

    /// A further name for `fid`.
    pub async fn link(
        &self,
        cred: &Cred,
        fid: Fid,
        parent: Fid,
        name: &[u8],
    ) -> Result<Entry, Error> {
        let _held = self.late_names.hold(&[fid]);
        self.late_names.file_settled(fid).await;
        self.late_names.dir_settled(parent).await;
        self.namespace.link(cred, fid, parent, name).await
    }

    /// Removes a name that is not a directory.
    pub async fn unlink(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Error> {
        if self.namespace.remove_late(cred, parent, name).await {
            return Ok(());
        }
        let _held = self.late_names.hold(&[parent]);
        self.late_names.dir_settled(parent).await;
        self.namespace.unlink(cred, parent, name).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Error> {
        self.what_is_named_settled(parent, name).await;
        self.namespace.rmdir(cred, parent, name).await
    }

    /// Renames; `flags` as in renameat2: RENAME_NOREPLACE, and RENAME_EXCHANGE with servers that know it, else EINVAL.
    pub async fn rename(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        new_parent: Fid,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Error> {
        let _held = self.late_names.hold(&[parent, new_parent]);
        self.what_is_named_settled(parent, name).await;
        self.what_is_named_settled(new_parent, new_name).await;
        self.namespace
            .rename(cred, parent, name, new_parent, new_name, flags)
            .await
    }

    /// access(2): `mask` of R_OK 4, W_OK 2, X_OK 1, F_OK 0. ACLs count.
    pub async fn access(&self, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Error> {
        self.late_names.file_settled(fid).await;
        self.attributes.access(cred, fid, mask).await
    }

    /// Opens, creating when there is no such name (`O_EXCL` in `flags`: EEXIST when there is). `flags` are `O_*`.
    pub async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Arc<FileHandle>), Error> {
        self.late_names.dir_settled(parent).await;
        self.opens.create(cred, parent, name, mode, flags).await
    }

    /// The same for a caller that goes on while the MDT hears of the file, where it need not be asked.
    pub async fn make(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, OpenedFile), Error> {
        let late = self.creations.create(cred, parent, name, mode, flags);
        if let Some(made) = late.await {
            return Ok(made);
        }
        let (entry, fh) = self.create(cred, parent, name, mode, flags).await?;
        Ok((entry, OpenedFile::Asked(fh)))
    }

    /// Opens an existing file; `O_TRUNC` works, permissions are checked by the MDT.
    pub async fn open(&self, cred: &Cred, fid: Fid, flags: u32) -> Result<Arc<FileHandle>, Error> {
        self.late_names.file_settled(fid).await;
        if flags & (libc::O_ACCMODE | libc::O_DIRECT) as u32 == libc::O_RDONLY as u32 {
            self.names.lookahead.opened(cred, fid).await;
        }
        self.opens.open(cred, fid, flags).await
    }

    /// Value of one xattr; ENODATA when there is none.
    pub async fn getxattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Error> {
        self.xattr_settled(fid, name).await;
        self.xattrs.get(cred, fid, name).await
    }

    /// Sets one; `flags` XATTR_CREATE 1, XATTR_REPLACE 2.
    pub async fn setxattr(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Bytes,
        flags: u32,
    ) -> Result<(), Error> {
        let _held = self.late_names.hold(&[fid]);
        self.xattr_settled(fid, name).await;
        self.xattrs.set(cred, fid, name, value, flags).await
    }

    /// Removes one; ENODATA when there is none.
    pub async fn removexattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<(), Error> {
        let _held = self.late_names.hold(&[fid]);
        self.xattr_settled(fid, name).await;
        self.xattrs.remove(cred, fid, name).await
    }

    /// All names of extended attributes, each ended by a NUL.
    pub async fn listxattr(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Error> {
        self.late_names.file_settled(fid).await;
        self.xattrs.list(cred, fid).await
    }

    /// Sum over the targets: space of the OSTs, inodes of the MDTs.
    pub async fn statfs(&self) -> Result<StatFs, Error> {
        self.late_names.all_settled().await;
        self.reports.statfs().await
    }

    /// The LOV EA as stored on the MDT.
    pub async fn layout(&self, fid: Fid) -> Result<Bytes, Error> {
        self.late_names.file_settled(fid).await;
        self.reports.layout(fid).await
    }

    /// Writes out dirty data of all files, however long the OSTs take.
    pub async fn write_out_all(&self) {
        self.late_names.all_settled().await;
        join(self.late.all_sent(), self.flusher.write_out_all()).await;
    }

    /// Opens a directory for reading.
    pub async fn opendir(&self, cred: &Cred, fid: Fid) -> Result<Arc<DirHandle>, Error> {
        self.dirs.opendir(cred, fid).await
    }

    /// Lists from `cookie` (0: the beginning) until `fill` says true (full: that entry was NOT taken) or the end.
    /// With `plus` each entry carries its attributes. ENOENT when the directory was removed, ESTALE when it was moved to another MDT
    /// since it was opened.
    pub async fn readdir(
        &self,
        cred: &Cred,
        dh: &DirHandle,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> Result<(), Error> {
        self.late_names.dir_settled(dh.fid()).await;
        match self.dirs.readdir(cred, dh, cookie, plus, fill).await {
            // taken for its end, or for empty, it would be where its names are still
            Err(e) if e.is(Errno::ENOENT) && self.has_any_moved(&[dh.fid()]).await => {
                Err(Refusal::DirectoryMoved.into())
            }
            done => done,
        }
    }

    /// Ends reading.
    pub async fn releasedir(&self, dh: &DirHandle) -> Result<(), Error> {
        self.dirs.releasedir(dh).await
    }

    /// The directory's entries are on disk when this returns. EIO, once, when some were lost with a server's memory.
    pub async fn fsyncdir(&self, dh: &DirHandle) -> Result<(), Error> {
        self.late_names.dir_settled(dh.fid()).await;
        self.dirs.fsyncdir(dh).await
    }

    /// The entries of the directory `fid` are on disk when this returns.
    pub async fn sync_dir(&self, fid: Fid) -> Result<(), Error> {
        self.late_names.dir_settled(fid).await;
        self.dirs.sync_dir(fid).await
    }

    /// Waits for removals in `parent`, and for those in what `name` stands for, whose name goes or changes.
    async fn what_is_named_settled(&self, parent: Fid, name: &[u8]) {
        self.late_names.dir_settled(parent).await;
        match self.cache.name_of(parent, name) {
            Some(fid) => self.late_names.object_settled(fid).await,
            None => self.late_names.all_settled().await,
        }
    }

    /// Waits for removals of which an extended attribute may tell: those of Lustre's commands are about any name.
    async fn xattr_settled(&self, fid: Fid, name: &[u8]) {
        match name.starts_with(b"lustre.") {
            true => self.late_names.all_settled().await,
            false => self.late_names.object_settled(fid).await,
        }
    }
}
