//! One function per kind of request: decode on the reader's stack, then a future that owns what it needs.
//!
//! Invariants: a lookup is counted in the node table after the last await of its future, so a dropped future never leaves a
//! count behind; everything the kernel sent is length-checked before it is used (EIO otherwise: it cannot happen with a
//! kernel that speaks what INIT agreed on).

mod dirs;
mod files;
mod locks;
mod xattrs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use coral_client::llite::types::{Cred, Entry, SetAttr, SetTime, Timespec};
use coral_wire::fid::Fid;
use dirs::{fsyncdir, opendir, readdir, releasedir};
use futures_util::future::BoxFuture;
use locks::{getlk, setlk};
use smallvec::SmallVec;
use xattrs::{getxattr, listxattr, removexattr, setxattr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use self::files::{create, fallocate, flush, fsync, lseek, open, read, release, write};
use crate::abi::{self, InHeader, fattr, fopen, op};
use crate::buf::RequestBuf;
use crate::error::OpError;
use crate::fs::{FileSystem, PageCache};
use crate::ioctl::{self, Asked};
use crate::nodes::Nodes;
use crate::reply::{self, Body, Reply};
use crate::session::Shared;
use crate::told::Mark;

pub(crate) use locks::waits_for_lock;

/// A name as it travels in a future: most fit without allocation.
type Name = SmallVec<[u8; 32]>;

/// What a request turned into.
pub(crate) enum Started {
    /// Answered without asking the file system.
    Done(Reply),
    /// To be polled.
    Future(BoxFuture<'static, Reply>),
    /// Takes no answer.
    Silent,
}

/// An open file as the kernel's `fh` finds it.
pub(crate) struct OpenFile<F: FileSystem> {
    pub file: F::File,
    pub fid: Fid,
    /// Chmod generation at which this file was last seen without setuid and setgid (see `kill_suidgid`).
    clean: AtomicU64,
}

impl<F: FileSystem> OpenFile<F> {
    fn new(file: F::File, fid: Fid) -> Arc<Self> {
        Arc::new(Self {
            file,
            fid,
            clean: AtomicU64::new(0),
        })
    }
}

/// A cursor over a request's body.
struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn get<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, OpError> {
        let (v, rest) = T::read_from_prefix(self.0).map_err(|_| OpError::Malformed)?;
        self.0 = rest;
        Ok(v)
    }

    /// A NUL-terminated string.
    fn name(&mut self) -> Result<Name, OpError> {
        let end = self
            .0
            .iter()
            .position(|&b| b == 0)
            .ok_or(OpError::Malformed)?;
        let name = Name::from_slice(&self.0[..end]);
        self.0 = &self.0[end + 1..];
        Ok(name)
    }
}

/// Who asks.
fn cred(h: &InHeader, umask: u32) -> Cred {
    Cred {
        uid: h.uid,
        gid: h.gid,
        pid: h.pid,
        umask,
        groups: None,
    }
}

/// Turns a request into a future or an answer. `len` bytes of it are in `buf`.
pub(crate) fn start<F: FileSystem>(
    s: &Arc<Shared<F>>,
    buf: &mut RequestBuf,
    len: usize,
    h: &InHeader,
) -> Started {
    match try_start(s, buf, len, h) {
        Ok(started) => started,
        Err(e) => Started::Done(Err(e)),
    }
}

fn try_start<F: FileSystem>(
    s: &Arc<Shared<F>>,
    buf: &mut RequestBuf,
    len: usize,
    h: &InHeader,
) -> Result<Started, OpError> {
    let body = &buf.request(len)[size_of::<InHeader>()..];
    let i = In(body);
    s.nodes.confirm(h.nodeid);
    if let Some(check) = s.fresh.check(h, body, &s.notifier.told) {
        return Ok(Started::Done(Ok(Body::of(&check))));
    }
    let fut = match h.opcode {
        op::WRITE => return write(s, buf, len, h),
        op::READ => read(s, h, i)?,
        op::LOOKUP => lookup(s, h, i)?,
        op::GETATTR => getattr(s, h, i)?,
        op::CREATE => create(s, h, i)?,
        op::OPEN => open(s, h, i)?,
        op::FLUSH => flush(s, i)?,
        op::RELEASE => release(s, i)?,
        op::STATX => statx(s, h, i)?,
        op::SETATTR => setattr(s, h, i)?,
        op::READLINK => readlink(s, h)?,
        op::SYMLINK => symlink(s, h, i)?,
        op::MKNOD => mknod(s, h, i)?,
        op::MKDIR => mkdir(s, h, i)?,
        op::UNLINK => unlink(s, h, i)?,
        op::RMDIR => rmdir(s, h, i)?,
        op::RENAME | op::RENAME2 => rename(s, h, i)?,
        op::LINK => link(s, h, i)?,
        op::STATFS => statfs(s),
        op::FSYNC => fsync(s, h, i)?,
        op::SETXATTR => setxattr(s, h, i)?,
        op::GETXATTR => getxattr(s, h, i)?,
        op::LISTXATTR => listxattr(s, h, i)?,
        op::REMOVEXATTR => removexattr(s, h, i)?,
        op::OPENDIR => opendir(s, h)?,
        op::READDIR => readdir(s, h, i, false)?,
        op::READDIRPLUS => readdir(s, h, i, true)?,
        op::RELEASEDIR => releasedir(s, i)?,
        op::FSYNCDIR => fsyncdir(s, i)?,
        op::GETLK => getlk(s, i)?,
        op::SETLK | op::SETLKW => setlk(s, h, i)?,
        op::ACCESS => access(s, h, i)?,
        op::FALLOCATE => fallocate(s, h, i)?,
        op::LSEEK => lseek(s, i)?,
        op::FORGET | op::BATCH_FORGET => {
            forget(s, h, i)?;
            return Ok(Started::Silent);
        }
        op::DESTROY => return Ok(Started::Done(Ok(Body::Empty))),
        op::IOCTL => inode_ioctl(s, h, i)?,
        // The kernel copies by itself, makes no O_TMPFILE, polls files as always ready, and asks no more.
        _ => return Err(OpError::NotHere),
    };
    Ok(Started::Future(fut))
}

fn boxed(f: impl Future<Output = Reply> + Send + 'static) -> BoxFuture<'static, Reply> {
    Box::pin(f)
}

type Fut = Result<BoxFuture<'static, Reply>, OpError>;

impl<F: FileSystem> Shared<F> {
    /// The file that a request names.
    fn fid(&self, nodeid: u64) -> Result<Fid, OpError> {
        self.nodes.fid(nodeid).ok_or(OpError::Forgotten)
    }

    fn file(&self, fh: u64) -> Result<Arc<OpenFile<F>>, OpError> {
        self.files.get(fh).ok_or(OpError::BadHandle)
    }

    /// Counts a lookup of a file by `count`, which the kernel is about to be told of with this mode and size; its id.
    fn remember(&self, count: fn(&Nodes, Fid) -> u64, fid: Fid, (mode, size): (u32, u64)) -> u64 {
        let new = self.nodes.id(fid).is_none();
        let id = count(&self.nodes, fid);
        self.tell_size(id, (mode, size), new);
        id
    }

    /// An answer says this mode and size of a file; `new` if the kernel has not known it until now.
    fn tell_size(&self, node: u64, (mode, size): (u32, u64), new: bool) {
        if mode & libc::S_IFMT == libc::S_IFREG {
            self.sizes.tell(node, size, new);
        }
    }

    /// The answer to a request of `thread` that began at `began`, which makes the kernel remember `e`.
    fn entry_out(&self, thread: u32, began: Mark, e: &Entry) -> abi::EntryOut {
        self.notifier.askers.note(e.attr.fid, thread);
        self.counted_out(Nodes::remember, began, e)
    }

    fn counted_out(&self, count: fn(&Nodes, Fid) -> u64, began: Mark, e: &Entry) -> abi::EntryOut {
        let id = self.remember(count, e.attr.fid, (e.attr.mode, e.attr.size));
        let out = reply::entry(e, id, self.entry_ttl());
        if self.notifier.told.since(began).has(e.attr.fid) {
            out.doubtful()
        } else {
            out
        }
    }

    /// The answer to a request that makes a name. The kernel takes its attributes in even where it was told meanwhile to
    /// forget them (version 0 in `create_new_entry`, `fs/fuse/dir.c`), so they get no validity.
    fn named_out(&self, e: &Entry) -> abi::EntryOut {
        let id = self.remember(Nodes::remember, e.attr.fid, (e.attr.mode, e.attr.size));
        reply::entry(e, id, self.entry_ttl()).doubtful()
    }

    /// The answer to CREATE, which the kernel takes in the same way ([`crate::notify`]).
    fn created_out(&self, began: Mark, e: &Entry) -> abi::EntryOut {
        self.counted_out(Nodes::remember_created, began, e)
    }

    fn open_out(&self, file: Arc<OpenFile<F>>) -> abi::OpenOut {
        let open_flags = match self.fs.page_cache(&file.file) {
            PageCache::Around => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
            PageCache::Keep => fopen::KEEP_CACHE,
            PageCache::Fresh => 0,
        };
        abi::OpenOut {
            fh: self.files.insert(file),
            open_flags,
            backing_id: 0,
        }
    }

    /// Clears setuid and setgid after a write or truncation by somebody without CAP_FSETID, as the kernel leaves it to us
    /// (HANDLE_KILLPRIV_V2), for a file system that does not do it by itself. Asked once per open file, and again after any
    /// chmod or ACL through this mount.
    async fn kill_suidgid(&self, f: &OpenFile<F>) -> Result<(), OpError> {
        let now = self.chmods.load(Ordering::Acquire);
        if f.clean.load(Ordering::Relaxed) == now {
            return Ok(());
        }
        let root = Cred::root();
        let mode = self
            .fs
            .getattr(&root, f.fid, Some(&f.file))
            .await?
            .attr
            .mode;
        let setgid = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0;
        if mode & libc::S_ISUID != 0 || setgid {
            let drop = libc::S_ISUID | if setgid { libc::S_ISGID } else { 0 };
            let set = SetAttr {
                mode: Some(mode & 0o7777 & !drop),
                ..SetAttr::default()
            };
            self.fs.setattr(&root, f.fid, set, None).await?;
        }
        f.clean.store(now, Ordering::Relaxed);
        Ok(())
    }
}

// ---- names -------------------------------------------------------------------------------------------------------------

fn lookup<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let (name, cred) = (i.name()?, cred(h, 0));
    // "." comes from open_by_handle_at: the kernel has the node id of the handle, and may have forgotten the file
    let parent = if &name[..] == b"." {
        s.nodes.decode(h.nodeid).ok_or(OpError::Forgotten)?
    } else {
        s.fid(h.nodeid)?
    };
    let looking = (s.notifier.listings).looking(h.nodeid, Bytes::copy_from_slice(&name));
    let s = s.clone();
    Ok(boxed(async move {
        let _looking = looking;
        let began = s.notifier.told.mark();
        let e = match &name[..] {
            b"." => s.fs.getattr(&cred, parent, None).await?,
            _ => s.fs.lookup(&cred, parent, &name).await?,
        };
        Ok(Body::of(&s.entry_out(cred.pid, began, &e)))
    }))
}

fn forget<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Result<(), OpError> {
    if h.opcode == op::FORGET {
        s.forget(h.nodeid, i.get::<abi::ForgetIn>()?.nlookup);
        return Ok(());
    }
    for _ in 0..i.get::<abi::BatchForgetIn>()?.count {
        let one: abi::ForgetOne = i.get()?;
        s.forget(one.nodeid, one.nlookup);
    }
    Ok(())
}

fn readlink<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader) -> Fut {
    let (s, fid, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    Ok(boxed(async move {
        let target = s.fs.readlink(&cred, fid).await;
        Ok(Body::Bytes(target.map_err(OpError::looked_up)?))
    }))
}

fn symlink<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let (s, parent, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    let (name, target) = (i.name()?, i.name()?);
    Ok(boxed(async move {
        let e = s.fs.symlink(&cred, parent, &name, &target).await?;
        Ok(Body::of(&s.named_out(&e)))
    }))
}

fn mknod<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let m: abi::MknodIn = i.get()?;
    let (s, parent, name, cred) = (s.clone(), s.fid(h.nodeid)?, i.name()?, cred(h, m.umask));
    Ok(boxed(async move {
        let e = s.fs.mknod(&cred, parent, &name, m.mode, m.rdev).await?;
        Ok(Body::of(&s.named_out(&e)))
    }))
}

fn mkdir<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let m: abi::MkdirIn = i.get()?;
    let (s, parent, name, cred) = (s.clone(), s.fid(h.nodeid)?, i.name()?, cred(h, m.umask));
    Ok(boxed(async move {
        let e = s.fs.mkdir(&cred, parent, &name, m.mode).await?;
        Ok(Body::of(&s.named_out(&e)))
    }))
}

fn unlink<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let (s, parent, name, cred) = (s.clone(), s.fid(h.nodeid)?, i.name()?, cred(h, 0));
    Ok(boxed(async move {
        s.fs.unlink(&cred, parent, &name)
            .await
            .map(|()| Body::Empty)
    }))
}

fn rmdir<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let (s, parent, name, cred) = (s.clone(), s.fid(h.nodeid)?, i.name()?, cred(h, 0));
    Ok(boxed(async move {
        s.fs.rmdir(&cred, parent, &name).await.map(|()| Body::Empty)
    }))
}

fn rename<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let (newdir, flags) = if h.opcode == op::RENAME2 {
        let r: abi::Rename2In = i.get()?;
        (r.newdir, r.flags)
    } else {
        (i.get::<abi::RenameIn>()?.newdir, 0)
    };
    let (s, from, to, cred) = (s.clone(), s.fid(h.nodeid)?, s.fid(newdir)?, cred(h, 0));
    let (old, new) = (i.name()?, i.name()?);
    Ok(boxed(async move {
        s.fs.rename(&cred, from, &old, to, &new, flags)
            .await
            .map(|()| Body::Empty)
    }))
}

fn link<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let old = i.get::<abi::LinkIn>()?.oldnodeid;
    let (s, fid, parent, name, cred) = (
        s.clone(),
        s.fid(old)?,
        s.fid(h.nodeid)?,
        i.name()?,
        cred(h, 0),
    );
    Ok(boxed(async move {
        let linked = s.fs.link(&cred, fid, parent, &name).await;
        let e = linked.map_err(OpError::looked_up)?;
        Ok(Body::of(&s.named_out(&e)))
    }))
}

// ---- attributes --------------------------------------------------------------------------------------------------------

/// The attributes that GETATTR and STATX are answered with.
async fn looked_at<F: FileSystem>(
    s: &Shared<F>,
    cred: &Cred,
    node: u64,
    fid: Fid,
    file: Option<Arc<OpenFile<F>>>,
) -> Result<Entry, OpError> {
    loop {
        // asked for the check of an open, of a file that was replaced since its name was looked up
        let e =
            s.fs.getattr(cred, fid, file.as_ref().map(|f| &f.file))
                .await
                .map_err(OpError::looked_up)?;
        if file.is_none() || !e.attr.is_file() {
            s.tell_size(node, (e.attr.mode, e.attr.size), false);
            return Ok(e);
        }
        if s.sizes.tell_open(node, e.attr.size).await {
            return Ok(e);
        }
    }
}

fn getattr<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let g: abi::GetattrIn = i.get()?;
    let file = if g.getattr_flags & abi::GETATTR_FH != 0 {
        s.files.get(g.fh)
    } else {
        None
    };
    let (s, node, fid, cred) = (s.clone(), h.nodeid, s.fid(h.nodeid)?, cred(h, 0));
    s.notifier.askers.note(fid, h.pid);
    Ok(boxed(async move {
        let e = looked_at(&s, &cred, node, fid, file).await?;
        Ok(Body::of(&reply::attr_out(&e)))
    }))
}

fn statx<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let g: abi::StatxIn = i.get()?;
    let file = if g.getattr_flags & abi::GETATTR_FH != 0 {
        s.files.get(g.fh)
    } else {
        None
    };
    let (s, node, fid, cred) = (s.clone(), h.nodeid, s.fid(h.nodeid)?, cred(h, 0));
    s.notifier.askers.note(fid, h.pid);
    Ok(boxed(async move {
        let e = looked_at(&s, &cred, node, fid, file).await?;
        Ok(Body::of(&reply::statx_out(&e)))
    }))
}

/// The kernel's valid bits as options.
fn set_attr(a: &abi::SetattrIn) -> SetAttr {
    let has = |bit| a.valid & bit != 0;
    let time = |bit, now, secs: u64, nanos| {
        let at = || {
            SetTime::At(Timespec {
                secs: secs as i64,
                nanos,
            })
        };
        has(bit).then(|| if has(now) { SetTime::Now } else { at() })
    };
    SetAttr {
        mode: has(fattr::MODE).then_some(a.mode & 0o7777),
        uid: has(fattr::UID).then_some(a.uid),
        gid: has(fattr::GID).then_some(a.gid),
        size: has(fattr::SIZE).then_some(a.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, a.atime, a.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, a.mtime, a.mtimensec),
        ctime: has(fattr::CTIME).then_some(Timespec {
            secs: a.ctime as i64,
            nanos: a.ctimensec,
        }),
        kill_suidgid: has(fattr::KILL_SUIDGID),
        ..SetAttr::default()
    }
}

fn setattr<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let a: abi::SetattrIn = i.get()?;
    let file = if a.valid & fattr::FH != 0 {
        s.files.get(a.fh)
    } else {
        None
    };
    let (s, node, fid, cred) = (s.clone(), h.nodeid, s.fid(h.nodeid)?, cred(h, 0));
    let set = set_attr(&a);
    if set.mode.is_some() {
        s.mode_changed();
    }
    Ok(boxed(async move {
        let handle = file.as_ref().map(|f| &f.file);
        let e = match s.fs.setattr(&cred, fid, set, handle).await {
            Err(e) if handle.is_none() => return Err(e.looked_up()),
            done => done?,
        };
        s.tell_size(node, (e.attr.mode, e.attr.size), false);
        // the kernel takes these in even where it was told meanwhile to forget them (`fuse_do_setattr` in `fs/fuse/dir.c`)
        Ok(Body::of(&reply::attr_out(&e).doubtful()))
    }))
}

fn inode_ioctl<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let asked = ioctl::parse(&i.get::<abi::IoctlIn>()?, i.0)?;
    let (s, fid, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    Ok(boxed(async move {
        let now = s.fs.getattr(&cred, fid, None).await?.attr;
        if let Asked::Set(set) = &asked {
            let set = ioctl::changed(*set, &now);
            if set != SetAttr::default() {
                s.fs.setattr(&cred, fid, set, None).await?;
            }
        }
        let mut out = abi::IoctlOut {
            result: 0,
            flags: 0,
            in_iovs: 0,
            out_iovs: 0,
        }
        .as_bytes()
        .to_vec();
        out.extend(ioctl::answer(&asked, &now));
        Ok(Body::Vec(out))
    }))
}

fn access<F: FileSystem>(s: &Arc<Shared<F>>, h: &InHeader, mut i: In<'_>) -> Fut {
    let mask = i.get::<abi::AccessIn>()?.mask;
    let (s, fid, cred) = (s.clone(), s.fid(h.nodeid)?, cred(h, 0));
    Ok(boxed(async move {
        s.fs.access(&cred, fid, mask)
            .await
            .map(|()| Body::Empty)
            .map_err(OpError::looked_up)
    }))
}

fn statfs<F: FileSystem>(s: &Arc<Shared<F>>) -> BoxFuture<'static, Reply> {
    let s = s.clone();
    boxed(async move {
        let st = s.fs.statfs().await?;
        Ok(Body::of(&abi::StatfsOut {
            blocks: st.blocks,
            bfree: st.bfree,
            bavail: st.bavail,
            files: st.files,
            ffree: st.ffree,
            bsize: st.bsize,
            namelen: st.namelen,
            frsize: st.bsize,
            ..Default::default()
        }))
    })
}

// ---- files -------------------------------------------------------------------------------------------------------------

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setattr_bits_become_options() {
        let a = abi::SetattrIn {
            valid: fattr::MODE
                | fattr::ATIME
                | fattr::ATIME_NOW
                | fattr::MTIME
                | fattr::KILL_SUIDGID,
            mode: 0o100644,
            mtime: (-5i64) as u64,
            mtimensec: 7,
            ..Default::default()
        };
        let s = set_attr(&a);
        assert_eq!(s.mode, Some(0o644));
        assert_eq!(s.atime, Some(SetTime::Now));
        assert_eq!(s.mtime, Some(SetTime::At(Timespec { secs: -5, nanos: 7 })));
        assert_eq!((s.uid, s.size, s.kill_suidgid), (None, None, true));
    }

    #[test]
    fn truncated_requests_are_refused() {
        assert!(In(&[1, 2, 3]).get::<abi::GetattrIn>().is_err());
        assert!(In(b"no end").name().is_err());
        let mut i = In(b"a\0bc\0");
        assert_eq!(
            (&i.name().unwrap()[..], &i.name().unwrap()[..]),
            (&b"a"[..], &b"bc"[..])
        );
    }
}
