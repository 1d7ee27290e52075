//! Names: lookup and everything that changes a directory.
//!
//! Lustre: `lustre/llite/namei.c`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::mds::{MdtBody, md};

use super::Llite;
use super::cache::{DirState, Lookup, MISSES_BEFORE_READDIR};
use super::cred::permitted;
use super::finish::finish;
use super::inode::{MdInode, read_attr};
use super::types::{Cred, Entry};
use crate::mdc::{Attrs, CreateArgs, Ids, Mdc};
use crate::time::Timespec;

/// Longest name, bytes.
const NAME_MAX: usize = 255;
/// Names of a file that are tried until one is found that the caller can reach.
const PATHS_TRIED: usize = 64;
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

/// The object is on another MDT than the name: the reply says its FID and no more.
fn elsewhere(a: &Attrs) -> bool {
    a.body.valid & md::MDS != 0
}

impl Llite {
    pub(super) fn now(&self) -> Timespec {
        Timespec::now(&self.node)
    }

    /// Resolves one name; ".." works. ENOENT when there is none.
    pub async fn lookup(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        check_name(name)?;
        if name == b"." || name == b".." && parent == self.root {
            return self.getattr(cred, parent, None).await;
        }
        if name == b".." && self.lmv.several() {
            return self.getattr(cred, self.parent_of(parent).await, None).await;
        }
        if let Some(entry) = self.lookup_and_open(cred, parent, name).await {
            return Ok(entry);
        }
        let (md, whole) = self.resolve(cred, parent, name).await?;
        let entry = match self.full_attr(&md).await {
            // No reason to keep the name from whoever wants to remove it. The MDT's size is not the file's, and must not reach
            // the pages of one that is open.
            Err(_) if self.lov.lacks(&md.layout) && self.opened(md.attr.fid).is_none() => Entry {
                attr_ttl: Duration::ZERO,
                ..self.entry(md.attr, &md)
            },
            attr => self.entry(attr?, &md),
        };
        // the caller is told of names lost by the directory object they are in, and knows no shards
        Ok(if whole {
            entry
        } else {
            Entry {
                entry_ttl: Duration::ZERO,
                ..entry
            }
        })
    }

    /// What a name is, as the MDT sees it; true: the directory is in one piece.
    pub(super) async fn resolve(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<(MdInode, bool), Errno> {
        let mut found = Err(Errno::ENOENT);
        for p in self.places(parent, name).await? {
            found = self
                .resolve_in(cred, parent, p.dir, name)
                .await
                .map(|md| (md, p.dir == parent));
            if !matches!(found, Err(Errno::ENOENT)) {
                break;
            }
        }
        found
    }

    /// The same in `dir`, which is `parent` or a shard of it.
    async fn resolve_in(
        &self,
        cred: &Cred,
        parent: Fid,
        dir: Fid,
        name: &[u8],
    ) -> Result<MdInode, Errno> {
        match self.lookup_cached(cred, parent, dir, name).await? {
            Some(md) => Ok(md),
            None => self.lookup_rpc(cred, dir, name).await,
        }
    }

    /// What the cache knows of a name, after making it know the directory where that pays.
    async fn lookup_cached(
        &self,
        cred: &Cred,
        parent: Fid,
        dir: Fid,
        name: &[u8],
    ) -> Result<Option<MdInode>, Errno> {
        if !self.cache.enabled() || name == b".." {
            return Ok(None);
        }
        if let Some(found) = self.answer(cred, parent, dir, name).await? {
            return found.map(Some);
        }
        if !self.make_complete(dir).await {
            return Ok(None);
        }
        self.answer(cred, parent, dir, name).await?.transpose()
    }

    /// The cache's answer if it has one: `Some(Err(ENOENT))` when there is no such name.
    async fn answer(
        &self,
        cred: &Cred,
        parent: Fid,
        at: Fid,
        name: &[u8],
    ) -> Result<Option<Result<MdInode, Errno>>, Errno> {
        match self.cache.known(parent) {
            Some(dir) if dir.md.attr.is_dir() => permitted(cred, &dir.md.attr, &dir.md.acl, 1)?,
            Some(_) => return Err(Errno::ENOTDIR),
            // the server must check
            None if cred.uid != 0 => return Ok(None),
            None => {}
        }
        Ok(match self.cache.lookup(at, name) {
            Lookup::Hit(k) => Some(Ok(k.md)),
            Lookup::Absent => Some(Err(Errno::ENOENT)),
            Lookup::Unknown => None,
            Lookup::Name(fid) => {
                let mark = self.cache.begin_read(at);
                match self.md_inode(fid).await {
                    Ok(md) => {
                        self.cache.learn_name(mark, at, name, fid);
                        Some(Ok(md))
                    }
                    // gone meanwhile
                    Err(Errno::ENOENT) => None,
                    Err(e) => return Err(e),
                }
            }
        })
    }

    /// Makes the whole listing of a directory known when that costs less than asking name by name. True: it is.
    async fn make_complete(&self, dir: Fid) -> bool {
        let worth = |misses: u32| misses >= MISSES_BEFORE_READDIR && misses.is_power_of_two();
        match self.cache.dir_state(dir) {
            DirState::Complete => return true,
            DirState::Tracked => drop(self.md_inode(dir).await),
            DirState::Unlocked(m) if worth(m) => drop(self.md_inode(dir).await),
            DirState::Locked(m) if worth(m) => {}
            _ => return false,
        }
        if self.cache.dir_state(dir) == DirState::Complete {
            return true;
        }
        self.read_whole(dir).await
    }

    async fn lookup_rpc(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<MdInode, Errno> {
        let ids = self.ids(cred, &[parent]).await;
        let mdc = self.lmv.of(parent).await?;
        let mark = self.cache.begin_read(parent);
        let (attrs, lock) = if self.cache.enabled() && name != b".." {
            match mdc.lookup_lock(&ids, parent, name).await {
                Ok(f) => (f.attrs, f.lock),
                Err(e) => {
                    if e == Errno::ENOENT {
                        self.cache.missed(parent);
                    }
                    return Err(e);
                }
            }
        } else {
            (mdc.getattr_name(&ids, parent, name).await?, None)
        };
        if elsewhere(&attrs) {
            // the lock covers the name, but no attributes: nothing is kept under it
            mdc.drop_lock(lock);
            return self.md_inode(attrs.body.fid1).await;
        }
        let md = MdInode::read(&mdc, &attrs)?;
        self.learn(&mdc, mark, &md, lock);
        self.cache.learn_name(mark, parent, name, md.attr.fid);
        self.hint_gid(md.attr.fid, md.attr.gid);
        Ok(md)
    }

    /// Where to send a request that takes `name` from what it names: with several MDTs that is the one of the victim, which
    /// alone can tell whether it becomes an orphan (`lmv_unlink`, `lmv_rename`). The FID is zero when none is needed or there
    /// is no such name.
    async fn victim(&self, dir: Fid, name: &[u8]) -> Result<(Arc<Mdc>, Fid), Errno> {
        let mdc = self.lmv.of(dir).await?;
        if !self.lmv.several() {
            return Ok((mdc, Fid::ZERO));
        }
        match mdc.getattr_name(&Ids::root(), dir, name).await {
            Ok(a) if elsewhere(&a) => Ok((self.lmv.of(a.body.fid1).await?, a.body.fid1)),
            Ok(a) => Ok((mdc, a.body.fid1)),
            Err(Errno::ENOENT) => Ok((mdc, Fid::ZERO)),
            Err(e) => Err(e),
        }
    }

    /// An own change at `now` gave `name` in `dir` to `fid` (`None`: took it away); `body`: how the directory looks now.
    /// A directory whose mtime is not that of the change was not changed by it (a rename to itself): then what the reply
    /// says proves nothing about the name.
    pub(super) fn named(
        &self,
        mdc: &Mdc,
        dir: Fid,
        body: Option<&MdtBody>,
        now: Timespec,
        name: &[u8],
        fid: Option<Fid>,
    ) {
        match body.filter(|b| b.fid1 == dir && mdc.untime(b.mtime) == now) {
            Some(b) => self
                .cache
                .changed_name(&read_attr(mdc, b), b.version, name, fid),
            None => self.cache.doubt(dir),
        }
    }

    /// An own change at `now` left `fid` as `body` says, or in a way it does not say.
    pub(super) fn object_changed(&self, mdc: &Mdc, fid: Fid, body: &MdtBody, now: Timespec) {
        if mdc.coral() && body.fid1 == fid {
            let ours = mdc.untime(body.ctime) == now;
            self.cache
                .changed(&read_attr(mdc, body), body.version, ours);
            self.tell_own(fid);
        } else {
            self.forget_attrs(fid);
        }
    }

    /// Target of a symbolic link, no NUL.
    pub async fn readlink(self: &Arc<Self>, _cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        self.lmv.of(fid).await?.readlink(&Ids::root(), fid).await
    }

    /// Makes something that is no open file.
    async fn make(self: &Arc<Self>, cred: &Cred, mut args: CreateArgs) -> Result<Entry, Errno> {
        check_name(&args.name)?;
        let mut ids = self.ids(cred, &[args.parent]).await;
        let dir = args.parent;
        let place = self.place_new(dir, &args.name).await?;
        (args.parent, args.layout_version) = (place.dir, place.version);
        if args.symlink.is_some() {
            // a symbolic link's mode is 0777, whatever the umask
            ids.umask = 0;
        }
        let mdc = match args.mode & libc::S_IFMT == libc::S_IFDIR {
            true => self.inherit(dir, &mut args).await?,
            false => self.lmv.of(args.parent).await?,
        };
        args.fid = mdc.new_fid().await?;
        args.now = self.now();
        let me = self.clone();
        finish(async move {
            let _change = me.change_entries(&[args.parent]);
            let done = mdc.create(&ids, &args).await?;
            let body = &done.attrs.body;
            let mut attr = read_attr(&mdc, body);
            attr.fid = args.fid;
            me.named(
                &mdc,
                args.parent,
                done.dir(args.parent),
                args.now,
                &args.name,
                Some(args.fid),
            );
            if attr.is_dir() && mdc.coral() {
                me.cache.made_dir(args.fid, body.version);
            }
            me.hint_gid(attr.fid, attr.gid);
            Ok(Entry::for_now(attr))
        })
        .await
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
        let mode = if mode & libc::S_IFMT == 0 {
            mode | libc::S_IFREG
        } else {
            mode
        };
        self.make(
            cred,
            CreateArgs {
                parent,
                name: Bytes::copy_from_slice(name),
                mode,
                rdev,
                ..CreateArgs::default()
            },
        )
        .await
    }

    /// Makes a directory.
    pub async fn mkdir(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry, Errno> {
        let mode = mode & 0o7777 | libc::S_IFDIR;
        self.make(
            cred,
            CreateArgs {
                parent,
                name: Bytes::copy_from_slice(name),
                mode,
                ..CreateArgs::default()
            },
        )
        .await
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
        let (name, symlink) = (
            Bytes::copy_from_slice(name),
            Some(Bytes::copy_from_slice(target)),
        );
        self.make(
            cred,
            CreateArgs {
                parent,
                name,
                mode,
                symlink,
                ..CreateArgs::default()
            },
        )
        .await
    }

    /// A further name for `fid`.
    pub async fn link(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        parent: Fid,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        check_name(name)?;
        self.within_reach(fid).await?;
        let ids = self.ids(cred, &[fid, parent]).await;
        let parent = self.place_new(parent, name).await?.dir;
        let mdc = self.lmv.of(parent).await?;
        let (me, name) = (self.clone(), Bytes::copy_from_slice(name));
        finish(async move {
            let _change = me.change_entries(&[parent]);
            let now = me.now();
            let done = mdc.link(&ids, fid, parent, &name, now).await?;
            me.named(&mdc, parent, done.dir(parent), now, &name, Some(fid));
            me.object_changed(&mdc, fid, &done.attrs.body, now);
            Ok::<_, Errno>(())
        })
        .await?;
        self.getattr(cred, fid, None).await
    }

    /// Removes a name that is not a directory.
    pub async fn unlink(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<(), Errno> {
        self.remove(cred, parent, name, false).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<(), Errno> {
        match name {
            b"." => return Err(Errno::EINVAL),
            b".." => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.remove(cred, parent, name, true).await
    }

    async fn remove(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        dir: bool,
    ) -> Result<(), Errno> {
        check_name(name)?;
        let ids = self.ids(cred, &[parent]).await;
        let parent = self.place(parent, name).await?.dir;
        let (mdc, child) = self.victim(parent, name).await?;
        let (me, name) = (self.clone(), Bytes::copy_from_slice(name));
        finish(async move {
            let victim = me.cache.name_of(parent, &name);
            let _change = me.change_entries(&[parent]);
            let now = me.now();
            let done = mdc.unlink(&ids, parent, &name, child, dir, now).await?;
            me.named(&mdc, parent, done.dir(parent), now, &name, None);
            me.lost_a_name(&mdc, victim, &done.attrs.body, now);
            Ok(())
        })
        .await
    }

    /// Renames; `flags` as in renameat2: RENAME_NOREPLACE, and RENAME_EXCHANGE with servers that know it, else EINVAL.
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
        if flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE) != 0
            || flags == RENAME_NOREPLACE | RENAME_EXCHANGE
        {
            return Err(Errno::EINVAL);
        }
        let ids = self.ids(cred, &[parent, new_parent]).await;
        let (parent, new_parent) = (
            self.place(parent, name).await?.dir,
            self.place(new_parent, new_name).await?.dir,
        );
        let mdc = self.lmv.of(parent).await?;
        if flags != 0 && !mdc.coral() {
            if flags & RENAME_EXCHANGE != 0 {
                return Err(Errno::EINVAL);
            }
            // as the kernel client: looked up first, not atomic against other clients
            match self
                .lmv
                .of(new_parent)
                .await?
                .getattr_name(&ids, new_parent, new_name)
                .await
            {
                Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
                Ok(_) => return Err(Errno::EEXIST),
            }
        }
        let (mdc, _) = self.victim(new_parent, new_name).await?;
        let me = self.clone();
        let (name, new_name) = (
            Bytes::copy_from_slice(name),
            Bytes::copy_from_slice(new_name),
        );
        finish(async move {
            let (moved, victim) = (
                me.cache.name_of(parent, &name),
                me.cache.name_of(new_parent, &new_name),
            );
            let _change = me.change_entries(&[parent, new_parent]);
            let now = me.now();
            // what is not known may be a directory
            let mode = moved
                .and_then(|fid| me.cache.known(fid))
                .map_or(libc::S_IFDIR, |k| k.md.attr.mode);
            let done = mdc
                .rename(&ids, parent, &name, new_parent, &new_name, mode, flags, now)
                .await?;
            let (from, to) = (done.dir(parent), done.dir(new_parent));
            match (flags & RENAME_EXCHANGE, moved) {
                (0, Some(fid)) => {
                    me.named(&mdc, parent, from, now, &name, None);
                    me.named(&mdc, new_parent, to, now, &new_name, Some(fid));
                }
                (0, None) => {
                    me.named(&mdc, parent, from, now, &name, None);
                    me.cache.doubt(new_parent);
                }
                _ => {
                    me.cache.doubt(parent);
                    me.cache.doubt(new_parent);
                }
            }
            if let Some(fid) = moved {
                me.forget_attrs(fid);
            }
            me.lost_a_name(&mdc, victim, &done.attrs.body, now);
            Ok(())
        })
        .await
    }

    /// An object lost a name: `body` says how it looks now, `cached` which it was as far as the cache knew.
    fn lost_a_name(&self, mdc: &Mdc, cached: Option<Fid>, body: &MdtBody, now: Timespec) {
        if !body.fid1.is_zero() {
            self.object_changed(mdc, body.fid1, body, now);
            if body.nlink == 0 && body.mode & libc::S_IFMT != libc::S_IFREG {
                self.ghosts.removed(read_attr(mdc, body));
            }
            if mdc.coral() && body.nlink == 0 {
                self.cache.gone(body.fid1);
                mdc.object_gone(body.fid1);
            }
        }
        if let Some(fid) = cached.filter(|f| *f != body.fid1) {
            self.forget_attrs(fid);
        }
    }

    /// A path of the file, from the mounted directory, without leading slash. Others than root are told one by which they can
    /// reach it: EACCES when a directory on the way may not be searched. (Lustre tells them none, `ll_fid2path` in
    /// lustre/llite/file.c, or with its mount option `user_fid2path` any.)
    pub async fn fid2path(self: &Arc<Self>, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        let mdc = self.lmv.of(fid).await?;
        let (mut refused, mut linkno) = (Errno::ENOENT, 0);
        for _ in 0..PATHS_TRIED {
            let (path, next) = mdc.fid2path(fid, self.root, linkno).await?;
            if cred.uid == 0 {
                return Ok(path);
            }
            match self.path2fid(cred, &path).await {
                Ok(there) if there == fid => return Ok(path),
                // It was renamed meanwhile.
                Ok(_) => {}
                Err(e) => refused = e,
            }
            let Some(next) = next else { break };
            linkno = next;
        }
        Err(refused)
    }

    /// FID of a path below the mounted root.
    pub async fn path2fid(self: &Arc<Self>, cred: &Cred, path: &[u8]) -> Result<Fid, Errno> {
        let mut at = self.root;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            check_name(name)?;
            if name != b"." && (name != b".." || at != self.root) {
                at = self.resolve(cred, at, name).await?.0.attr.fid;
            }
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
