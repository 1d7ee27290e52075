//! Names: lookup and everything that changes a directory.
//!
//! Lustre: `lustre/llite/namei.c`.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::inode::{MdInode, read_attr};
use super::types::{Cred, Entry};
use super::Llite;
use crate::mdc::{CreateArgs, Ids};
use crate::time::Timespec;

/// Longest name, bytes.
const NAME_MAX: usize = 255;
/// Longest symlink target, bytes, without NUL.
const SYMLINK_MAX: usize = 4095;

/// renameat2(2) flag.
const RENAME_NOREPLACE: u32 = 1;
/// renameat2(2) flag.
const RENAME_EXCHANGE: u32 = 2;

/// A name that may be made or looked up.
pub(super) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl Llite {
    pub(super) fn now(&self) -> Timespec {
        Timespec::now(&self.node)
    }

    /// Resolves one name; ".." works. ENOENT when there is none.
    pub async fn lookup(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        if name == b"." || name == b".." && parent == self.root {
            return self.getattr(cred, parent, None).await;
        }
        let ids = self.ids(cred, &[parent]).await;
        let mdc = self.lmv.of(parent).await?;
        let attrs = mdc.getattr_name(&ids, parent, name).await?;
        let md = MdInode::read(&mdc, &attrs)?;
        self.hint_gid(md.attr.fid, md.attr.gid);
        Ok(Self::uncached(self.full_attr(&md).await?))
    }

    /// Target of a symbolic link, no NUL.
    pub async fn readlink(self: &Arc<Self>, _cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        self.lmv.of(fid).await?.readlink(&Ids::root(), fid).await
    }

    /// Makes something that is no open file.
    async fn make(&self, cred: &Cred, mut args: CreateArgs<'_>) -> Result<Entry, Errno> {
        check_name(args.name)?;
        let ids = self.ids(cred, &[args.parent]).await;
        let mdc = self.lmv.of(args.parent).await?;
        args.fid = mdc.new_fid().await?;
        args.now = self.now();
        let attrs = mdc.create(&ids, &args).await?;
        let mut attr = read_attr(&mdc, &attrs.body);
        attr.fid = args.fid;
        self.hint_gid(attr.fid, attr.gid);
        Ok(Self::uncached(attr))
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
        let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
        self.make(cred, CreateArgs { parent, name, mode, rdev, ..CreateArgs::empty() }).await
    }

    /// Makes a directory.
    pub async fn mkdir(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        let mode = mode & 0o7777 | libc::S_IFDIR;
        self.make(cred, CreateArgs { parent, name, mode, ..CreateArgs::empty() }).await
    }

    /// Makes a symbolic link to `target`.
    pub async fn symlink(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        if target.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        let mode = libc::S_IFLNK | 0o777;
        self.make(cred, CreateArgs { parent, name, mode, symlink: Some(target), ..CreateArgs::empty() }).await
    }

    /// A further name for `fid`.
    pub async fn link(self: &Arc<Self>, cred: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        let ids = self.ids(cred, &[fid, parent]).await;
        let mdc = self.lmv.of(parent).await?;
        mdc.link(&ids, fid, parent, name, self.now()).await?;
        self.getattr(cred, fid, None).await
    }

    /// Removes a name that is not a directory.
    pub async fn unlink(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        self.remove(cred, parent, name, false).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(self: &Arc<Self>, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        match name {
            b"." => return Err(Errno::EINVAL),
            b".." => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.remove(cred, parent, name, true).await
    }

    async fn remove(&self, cred: &Cred, parent: Fid, name: &[u8], dir: bool) -> Result<(), Errno> {
        check_name(name)?;
        let ids = self.ids(cred, &[parent]).await;
        let mdc = self.lmv.of(parent).await?;
        mdc.unlink(&ids, parent, name, Fid::ZERO, dir, self.now()).await.map(drop)
    }

    /// Renames; `flags` as in renameat2: RENAME_NOREPLACE, and RENAME_EXCHANGE with servers that know it, else EINVAL.
    #[expect(clippy::too_many_arguments, reason = "renameat2 has that many")]
    pub async fn rename(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        new_parent: Fid,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        check_name(name)?;
        check_name(new_name)?;
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0 || flags == RENAME_NOREPLACE | RENAME_EXCHANGE {
            return Err(Errno::EINVAL);
        }
        let ids = self.ids(cred, &[parent, new_parent]).await;
        let mdc = self.lmv.of(parent).await?;
        if flags != 0 && !mdc.coral() {
            if flags & RENAME_EXCHANGE != 0 {
                return Err(Errno::EINVAL);
            }
            // as the kernel client: looked up first, not atomic against other clients
            match mdc.getattr_name(&ids, new_parent, new_name).await {
                Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
                Ok(_) => return Err(Errno::EEXIST),
            }
        }
        mdc.rename(&ids, parent, name, new_parent, new_name, flags, self.now()).await.map(drop)
    }

    /// A path of the file, from the mounted directory, without leading slash.
    pub async fn fid2path(self: &Arc<Self>, fid: Fid) -> Result<Bytes, Errno> {
        self.lmv.of(fid).await?.fid2path(fid, self.root).await
    }

    /// FID of a path below the mounted root.
    pub async fn path2fid(self: &Arc<Self>, cred: &Cred, path: &[u8]) -> Result<Fid, Errno> {
        let mut at = self.root;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            at = self.lookup(cred, at, name).await?.attr.fid;
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(check_name(b"ok"), Ok(()));
        assert_eq!(check_name(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        for bad in [&b""[..], b"a/b", b"a\0b"] {
            assert_eq!(check_name(bad), Err(Errno::EINVAL));
        }
    }
}
