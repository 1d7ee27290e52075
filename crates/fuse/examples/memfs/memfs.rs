//! The file system in memory: one mutex, one map of inodes. The kernel checks permissions; nothing here is persistent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_client::llite::types::*;
use coral_fuse::{FileSystem, OpError};
use coral_wire::{Errno, fid::Fid};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::hooks::Hooks;
use crate::locks::LockTable;

#[path = "hooks.rs"]
mod hooks;

const MAX_SIZE: u64 = 1 << 34;
const PAGE: u64 = 4096;
/// A name whose lookup never ends, to try interrupts on.
pub const STUCK: &[u8] = b".stuck";

struct Inode {
    attr: Attr,
    data: Vec<u8>,
    /// 4 KiB pages that were written: the rest are holes.
    pages: BTreeSet<u64>,
    link: Bytes,
    names: BTreeMap<Vec<u8>, (u64, Fid)>,
    parent: Fid,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
    opens: u32,
    posix: LockTable,
    flocks: LockTable,
}

struct MemFsState {
    inodes: HashMap<Fid, Inode>,
    next: u32,
    cookie: u64,
    /// Files opened so far.
    opened: u64,
}

/// The file system; clones are the same one.
#[derive(Clone)]
pub struct MemFs {
    state: Arc<Mutex<MemFsState>>,
    changed: Arc<Notify>,
    slow: bool,
    ttl: Duration,
    hooks: Arc<Hooks>,
}

/// An open file: which, and its number among those opened.
pub struct MemFile(Fid, u64);

type R<T> = Result<T, OpError>;

fn err<T>(e: i32) -> R<T> {
    Err(Errno(e).into())
}

#[expect(clippy::disallowed_methods, reason = "wall time at the edge")]
fn now() -> Timespec {
    let d = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timespec {
        secs: d.as_secs() as i64,
        nanos: d.subsec_nanos(),
    }
}

fn root() -> Fid {
    Fid {
        seq: 0x2_0000_0007,
        oid: 1,
        ver: 0,
    }
}

fn fresh(fid: Fid, mode: u32, uid: u32, gid: u32, parent: Fid) -> Inode {
    let t = now();
    let dir = mode & libc::S_IFMT == libc::S_IFDIR;
    Inode {
        attr: Attr {
            fid,
            mode,
            uid,
            gid,
            projid: 0,
            size: if dir { 4096 } else { 0 },
            blocks: 0,
            nlink: if dir { 2 } else { 1 },
            rdev: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            blksize: 4096,
            flags: 0,
        },
        data: Vec::new(),
        pages: BTreeSet::new(),
        link: Bytes::new(),
        names: BTreeMap::new(),
        parent,
        xattrs: BTreeMap::new(),
        opens: 0,
        posix: LockTable::default(),
        flocks: LockTable::default(),
    }
}

impl Inode {
    fn is_dir(&self) -> bool {
        self.attr.mode & libc::S_IFMT == libc::S_IFDIR
    }

    fn touch(&mut self) {
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
    }

    fn resize(&mut self, size: u64) -> R<()> {
        if size > MAX_SIZE {
            return err(libc::EFBIG);
        }
        self.data.resize(size as usize, 0);
        self.pages.split_off(&size.div_ceil(PAGE));
        self.sized();
        self.touch();
        Ok(())
    }

    fn sized(&mut self) {
        self.attr.size = self.data.len() as u64;
        self.attr.blocks = self.pages.len() as u64 * (PAGE / 512);
    }
}

impl MemFsState {
    fn inode(&mut self, fid: Fid) -> R<&mut Inode> {
        self.inodes.get_mut(&fid).ok_or(Errno(libc::ESTALE).into())
    }

    fn dir(&mut self, fid: Fid) -> R<&mut Inode> {
        let i = self.inode(fid)?;
        if i.is_dir() {
            Ok(i)
        } else {
            err(libc::ENOTDIR)
        }
    }

    fn child(&mut self, parent: Fid, name: &[u8]) -> R<Fid> {
        self.dir(parent)?
            .names
            .get(name)
            .map(|e| e.1)
            .ok_or(Errno(libc::ENOENT).into())
    }

    fn insert(&mut self, parent: Fid, name: &[u8], fid: Fid) -> R<()> {
        if name.len() > 255 {
            return err(libc::ENAMETOOLONG);
        }
        self.cookie += 1;
        let cookie = self.cookie;
        let dir = self.dir(parent)?;
        if dir.names.contains_key(name) {
            return err(libc::EEXIST);
        }
        dir.names.insert(name.to_vec(), (cookie, fid));
        dir.touch();
        Ok(())
    }

    fn open(&mut self, fid: Fid) -> R<MemFile> {
        self.opened += 1;
        let number = self.opened;
        self.inode(fid)?.opens += 1;
        Ok(MemFile(fid, number))
    }

    /// What is in `dir` behind `cookie`: cookies, files, names.
    fn list(&mut self, dir: Fid, cookie: u64) -> R<Vec<(u64, Fid, Vec<u8>)>> {
        let d = self.dir(dir)?;
        let mut list: Vec<_> = d
            .names
            .iter()
            .map(|(n, &(c, f))| (c, f, n.clone()))
            .collect();
        list.push((1, dir, b".".to_vec()));
        list.push((2, d.parent, b"..".to_vec()));
        list.retain(|e| e.0 > cookie);
        list.sort();
        Ok(list)
    }

    /// A new inode in `parent`, with setgid inheritance and the umask.
    fn make(&mut self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> R<Fid> {
        if name.len() > 255 {
            return err(libc::ENAMETOOLONG);
        }
        self.next += 1;
        let fid = Fid {
            seq: 0x2_0000_0400,
            oid: self.next,
            ver: 0,
        };
        let dir = self.dir(parent)?;
        if dir.attr.nlink == 0 {
            return err(libc::ENOENT);
        }
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        let setgid = dir.attr.mode & libc::S_ISGID != 0;
        let gid = if setgid { dir.attr.gid } else { cred.gid };
        let mode = mode & !cred.umask | if setgid && is_dir { libc::S_ISGID } else { 0 };
        self.insert(parent, name, fid)?;
        if is_dir {
            self.dir(parent)?.attr.nlink += 1;
        }
        self.inodes
            .insert(fid, fresh(fid, mode, cred.uid, gid, parent));
        Ok(fid)
    }

    /// One name of `fid` is gone.
    fn dropped(&mut self, fid: Fid) -> R<()> {
        let i = self.inode(fid)?;
        i.attr.nlink = if i.is_dir() { 0 } else { i.attr.nlink - 1 };
        i.attr.ctime = now();
        Ok(())
    }

    fn remove(&mut self, parent: Fid, name: &[u8], want_dir: bool) -> R<()> {
        let fid = self.child(parent, name)?;
        let victim = self.inode(fid)?;
        match (victim.is_dir(), want_dir) {
            (true, false) => return err(libc::EISDIR),
            (false, true) => return err(libc::ENOTDIR),
            (true, true) if !victim.names.is_empty() => return err(libc::ENOTEMPTY),
            _ => {}
        }
        self.dropped(fid)?;
        let dir = self.dir(parent)?;
        dir.names.remove(name);
        dir.touch();
        if want_dir {
            dir.attr.nlink -= 1;
        }
        Ok(())
    }

    fn rename(&mut self, p1: Fid, n1: &[u8], p2: Fid, n2: &[u8], flags: u32) -> R<()> {
        let fid = self.child(p1, n1)?;
        let over = self.child(p2, n2).ok();
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return err(libc::EINVAL);
        }
        let is_dir = self.inode(fid)?.is_dir();
        if let Some(o) = over {
            if flags & libc::RENAME_NOREPLACE != 0 {
                return err(libc::EEXIST);
            }
            if o == fid {
                return Ok(());
            }
            match (is_dir, self.inode(o)?.is_dir()) {
                (true, false) => return err(libc::ENOTDIR),
                (false, true) => return err(libc::EISDIR),
                _ => self.remove(p2, n2, is_dir)?,
            }
        }
        self.insert(p2, n2, fid)?;
        let from = self.dir(p1)?;
        from.names.remove(n1);
        from.touch();
        if is_dir && p1 != p2 {
            self.dir(p1)?.attr.nlink -= 1;
            self.dir(p2)?.attr.nlink += 1;
        }
        let moved = self.inode(fid)?;
        moved.parent = p2;
        moved.attr.ctime = now();
        Ok(())
    }

    fn set(&mut self, fid: Fid, set: &SetAttr) -> R<()> {
        let at = |t: SetTime| if let SetTime::At(t) = t { t } else { now() };
        let i = self.inode(fid)?;
        if let Some(size) = set.size {
            i.resize(size)?;
        }
        if let Some(mode) = set.mode {
            i.attr.mode = i.attr.mode & libc::S_IFMT | mode;
        }
        let chown = set.uid.is_some() || set.gid.is_some();
        if set.kill_suidgid || chown && !i.is_dir() {
            let drop_gid = i.attr.mode & libc::S_IXGRP != 0;
            i.attr.mode &= !(libc::S_ISUID | if drop_gid { libc::S_ISGID } else { 0 });
        }
        i.attr.uid = set.uid.unwrap_or(i.attr.uid);
        i.attr.gid = set.gid.unwrap_or(i.attr.gid);
        i.attr.atime = set.atime.map_or(i.attr.atime, at);
        i.attr.mtime = set.mtime.map_or(i.attr.mtime, at);
        i.attr.ctime = now();
        Ok(())
    }
}

impl MemFs {
    /// An empty file system.
    pub fn new(slow: bool, ttl: Duration) -> Self {
        let mut inodes = HashMap::new();
        inodes.insert(root(), fresh(root(), libc::S_IFDIR | 0o755, 0, 0, root()));
        let state = MemFsState {
            inodes,
            next: 0,
            cookie: 2,
            opened: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: Arc::new(Notify::new()),
            slow,
            ttl,
            hooks: Arc::default(),
        }
    }

    fn made(&self) {
        let f = self.hooks.beside.lock().take();
        f.into_iter().for_each(|f| f());
    }

    async fn pause(&self) {
        if self.slow {
            tokio::task::yield_now().await;
        }
    }

    fn entry(&self, st: &mut MemFsState, fid: Fid) -> R<Entry> {
        Ok(Entry {
            attr: st.inode(fid)?.attr,
            attr_ttl: self.ttl,
            entry_ttl: self.ttl,
        })
    }
}

impl FileSystem for MemFs {
    type File = MemFile;
    type Dir = MemFile;

    /// As if the server of [`STUCK`] were away.
    fn is_cut_off(&self) -> bool {
        true
    }

    fn root(&self) -> Fid {
        root()
    }

    fn forget(&self, fid: Fid) {
        let st = &mut *self.state.lock();
        if st
            .inodes
            .get(&fid)
            .is_some_and(|i| i.attr.nlink == 0 && i.opens == 0)
        {
            st.inodes.remove(&fid);
        }
    }

    async fn lookup(&self, _: &Cred, parent: Fid, name: &[u8]) -> R<Entry> {
        self.pause().await;
        if name == STUCK {
            std::future::pending::<()>().await;
        }
        if name.len() > 255 {
            return err(libc::ENAMETOOLONG);
        }
        let e = {
            let st = &mut *self.state.lock();
            let fid = if name == b".." {
                st.dir(parent)?.parent
            } else {
                st.child(parent, name)?
            };
            self.entry(st, fid)
        };
        self.made();
        e
    }

    async fn readlink(&self, _: &Cred, fid: Fid) -> R<Bytes> {
        self.pause().await;
        Ok(self.state.lock().inode(fid)?.link.clone())
    }

    async fn mknod(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32, rdev: u32) -> R<Entry> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let fid = st.make(cred, parent, name, mode)?;
        st.inode(fid)?.attr.rdev = rdev;
        self.entry(st, fid)
    }

    async fn mkdir(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> R<Entry> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let fid = st.make(cred, parent, name, mode & 0o7777 | libc::S_IFDIR)?;
        self.entry(st, fid)
    }

    async fn symlink(&self, cred: &Cred, parent: Fid, name: &[u8], target: &[u8]) -> R<Entry> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let fid = st.make(cred, parent, name, libc::S_IFLNK | 0o777)?;
        let i = st.inode(fid)?;
        i.attr.mode = libc::S_IFLNK | 0o777;
        i.link = Bytes::copy_from_slice(target);
        i.attr.size = target.len() as u64;
        self.entry(st, fid)
    }

    async fn link(&self, _: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> R<Entry> {
        self.pause().await;
        let st = &mut *self.state.lock();
        if st.inode(fid)?.is_dir() {
            return err(libc::EPERM);
        }
        st.insert(parent, name, fid)?;
        let i = st.inode(fid)?;
        i.attr.nlink += 1;
        i.attr.ctime = now();
        self.entry(st, fid)
    }

    async fn unlink(&self, _: &Cred, parent: Fid, name: &[u8]) -> R<()> {
        self.pause().await;
        self.state.lock().remove(parent, name, false)
    }

    async fn rmdir(&self, _: &Cred, parent: Fid, name: &[u8]) -> R<()> {
        self.pause().await;
        self.state.lock().remove(parent, name, true)
    }

    async fn rename(&self, _: &Cred, p1: Fid, n1: &[u8], p2: Fid, n2: &[u8], flags: u32) -> R<()> {
        self.pause().await;
        self.state.lock().rename(p1, n1, p2, n2, flags)
    }

    async fn getattr(&self, _: &Cred, fid: Fid, _: Option<&MemFile>) -> R<Entry> {
        self.pause().await;
        self.hooks.asked.lock().push(fid);
        let e = self.entry(&mut self.state.lock(), fid);
        let late = self.hooks.late.lock().take_if(|(of, _)| *of == fid);
        late.into_iter().for_each(|(_, f)| f());
        e
    }

    async fn setattr(&self, _: &Cred, fid: Fid, set: SetAttr, _: Option<&MemFile>) -> R<Entry> {
        self.pause().await;
        let e = {
            let st = &mut *self.state.lock();
            st.set(fid, &set)?;
            self.entry(st, fid)
        };
        self.made();
        e
    }

    async fn access(&self, _: &Cred, _: Fid, _: u32) -> R<()> {
        Ok(())
    }

    async fn statfs(&self) -> R<StatFs> {
        let files = self.state.lock().inodes.len() as u64;
        Ok(StatFs {
            bsize: 4096,
            blocks: 1 << 22,
            bfree: 1 << 21,
            bavail: 1 << 21,
            files: files + (1 << 20),
            ffree: 1 << 20,
            namelen: 255,
        })
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> R<(Entry, MemFile)> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let fid = match st.child(parent, name) {
            Ok(_) if flags & libc::O_EXCL as u32 != 0 => return err(libc::EEXIST),
            Ok(fid) => fid,
            Err(_) => st.make(cred, parent, name, mode & 0o7777 | libc::S_IFREG)?,
        };
        let file = st.open(fid)?;
        self.hooks.tell(parent);
        Ok((self.entry(st, fid)?, file))
    }

    async fn open(&self, _: &Cred, fid: Fid, flags: u32) -> R<MemFile> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let i = st.inode(fid)?;
        if flags & libc::O_TRUNC as u32 != 0 {
            i.resize(0)?;
        }
        st.open(fid)
    }

    async fn read(&self, f: &MemFile, offset: u64, len: u32) -> R<Payload> {
        self.pause().await;
        self.hooks.reads.fetch_add(1, Ordering::SeqCst);
        let _ = self.hooks.answers.subscribe().wait_for(|a| *a).await;
        let st = &mut *self.state.lock();
        let i = st.inode(f.0)?;
        let from = (offset as usize).min(i.data.len());
        let to = (from + len as usize).min(i.data.len());
        // In two pieces, so that the scatter path is used.
        let mid = from + (to - from) / 2;
        let mut p = Payload::new();
        p.push(Bytes::copy_from_slice(&i.data[from..mid]));
        p.push(Bytes::copy_from_slice(&i.data[mid..to]));
        Ok(p)
    }

    async fn write(
        &self,
        _: &Cred,
        f: &MemFile,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> R<usize> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let i = st.inode(f.0)?;
        let mut at = if append {
            i.data.len()
        } else {
            offset as usize
        };
        if (at + data.len()) as u64 > MAX_SIZE {
            return err(libc::EFBIG);
        }
        if i.data.len() < at + data.len() {
            i.data.resize(at + data.len(), 0);
        }
        i.pages
            .extend(at as u64 / PAGE..(at + data.len()).div_ceil(PAGE as usize) as u64);
        for seg in &data {
            i.data[at..at + seg.len()].copy_from_slice(seg);
            at += seg.len();
        }
        i.sized();
        i.touch();
        Ok(data.len())
    }

    async fn flush(&self, f: &MemFile, owner: u64) -> R<()> {
        self.state.lock().inode(f.0)?.posix.drop_owner(owner);
        self.changed.notify_waiters();
        Ok(())
    }

    async fn release(&self, f: &MemFile) -> R<()> {
        let st = &mut *self.state.lock();
        let i = st.inode(f.0)?;
        i.opens -= 1;
        i.flocks.drop_owner(f.1);
        self.changed.notify_waiters();
        Ok(())
    }

    async fn fsync(&self, _: &MemFile, _: bool) -> R<()> {
        Ok(())
    }

    async fn fallocate(&self, _: &Cred, f: &MemFile, mode: u32, offset: u64, len: u64) -> R<()> {
        self.pause().await;
        const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        if mode & !(KEEP | PUNCH | ZERO) != 0 {
            return err(libc::EOPNOTSUPP);
        }
        let st = &mut *self.state.lock();
        let i = st.inode(f.0)?;
        let size = i.data.len() as u64;
        if mode & KEEP == 0 && offset + len > size {
            i.resize(offset + len)?;
        }
        if mode & (PUNCH | ZERO) != 0 {
            let end = (offset + len)
                .min(i.data.len() as u64)
                .max(offset.min(i.data.len() as u64));
            let start = offset.min(end);
            i.data[start as usize..end as usize].fill(0);
            // What reaches the end of the file covers its last page whole.
            let whole = if offset + len >= i.data.len() as u64 {
                end.div_ceil(PAGE)
            } else {
                end / PAGE
            };
            i.pages
                .retain(|p| !(start.div_ceil(PAGE)..whole).contains(p));
        }
        if mode & PUNCH == 0 {
            i.pages
                .extend(offset / PAGE..(offset + len).min(i.data.len() as u64).div_ceil(PAGE));
        }
        i.sized();
        i.touch();
        Ok(())
    }

    async fn lseek(&self, f: &MemFile, offset: u64, whence: SeekWhence) -> R<u64> {
        let st = &mut *self.state.lock();
        let i = st.inode(f.0)?;
        let size = i.attr.size;
        if offset >= size {
            return err(libc::ENXIO);
        }
        let page = offset / PAGE;
        let found = match whence {
            SeekWhence::Data => *i.pages.range(page..).next().ok_or(Errno(libc::ENXIO))?,
            SeekWhence::Hole => (page..).find(|p| !i.pages.contains(p)).unwrap_or(page),
        };
        Ok((found * PAGE).clamp(offset, size))
    }

    async fn opendir(&self, _: &Cred, fid: Fid) -> R<MemFile> {
        self.pause().await;
        Ok(MemFile(fid, 0))
    }

    async fn readdir(
        &self,
        _: &Cred,
        dir: &MemFile,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> R<()> {
        self.pause().await;
        let entries =
            self.state
                .lock()
                .list(dir.0, cookie)?
                .into_iter()
                .map(|(next, fid, name)| {
                    let st = &mut *self.state.lock();
                    let kind = st.inode(fid).map_or(libc::S_IFDIR, |i| i.attr.mode) & libc::S_IFMT;
                    let entry = if plus { self.entry(st, fid).ok() } else { None };
                    DirEntry {
                        fid,
                        name: name.into(),
                        kind,
                        next,
                        entry,
                    }
                });
        let entries: Vec<DirEntry> = entries.collect();
        if plus {
            self.made();
        }
        entries.into_iter().any(fill);
        Ok(())
    }

    async fn releasedir(&self, _: &MemFile) -> R<()> {
        Ok(())
    }

    async fn fsyncdir(&self, _: &MemFile) -> R<()> {
        Ok(())
    }

    async fn getxattr(&self, _: &Cred, fid: Fid, name: &[u8]) -> R<Bytes> {
        self.pause().await;
        self.state
            .lock()
            .inode(fid)?
            .xattrs
            .get(name)
            .cloned()
            .ok_or(Errno(libc::ENODATA).into())
    }

    async fn setxattr(&self, _: &Cred, fid: Fid, name: &[u8], value: Bytes, flags: u32) -> R<()> {
        self.pause().await;
        if name.starts_with(b"system.") {
            return err(libc::EOPNOTSUPP);
        }
        let st = &mut *self.state.lock();
        let i = st.inode(fid)?;
        match (i.xattrs.contains_key(name), flags as i32) {
            (true, libc::XATTR_CREATE) => return err(libc::EEXIST),
            (false, libc::XATTR_REPLACE) => return err(libc::ENODATA),
            _ => {}
        }
        i.xattrs.insert(name.to_vec(), value);
        i.attr.ctime = now();
        Ok(())
    }

    async fn listxattr(&self, _: &Cred, fid: Fid) -> R<Bytes> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let names: Vec<u8> = st
            .inode(fid)?
            .xattrs
            .keys()
            .flat_map(|n| n.iter().copied().chain([0]))
            .collect();
        Ok(names.into())
    }

    async fn removexattr(&self, _: &Cred, fid: Fid, name: &[u8]) -> R<()> {
        self.pause().await;
        let st = &mut *self.state.lock();
        let i = st.inode(fid)?;
        i.xattrs.remove(name).ok_or(Errno(libc::ENODATA))?;
        i.attr.ctime = now();
        Ok(())
    }

    async fn getlk(&self, f: &MemFile, owner: u64, lock: FileLock) -> R<FileLock> {
        let found = self.state.lock().inode(f.0)?.posix.conflict(owner, &lock);
        Ok(found.unwrap_or(FileLock {
            kind: LockKind::Unlock,
            ..lock
        }))
    }

    async fn setlk(&self, f: &MemFile, owner: u64, lock: FileLock, wait: bool) -> R<()> {
        self.lock(f, owner, lock, wait, |i| &mut i.posix).await
    }

    async fn flock(&self, f: &MemFile, kind: LockKind, wait: bool) -> R<()> {
        let whole = FileLock {
            start: 0,
            end: u64::MAX,
            kind,
            pid: 0,
        };
        self.lock(f, f.1, whole, wait, |i| &mut i.flocks).await
    }
}

impl MemFs {
    async fn lock(
        &self,
        f: &MemFile,
        owner: u64,
        lock: FileLock,
        wait: bool,
        table: impl Fn(&mut Inode) -> &mut LockTable + Send,
    ) -> R<()> {
        loop {
            let changed = self.changed.clone().notified_owned();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let st = &mut *self.state.lock();
                let t = table(st.inode(f.0)?);
                if t.conflict(owner, &lock).is_none() {
                    t.set(owner, lock);
                    self.changed.notify_waiters();
                    return Ok(());
                }
            }
            if !wait {
                return err(libc::EAGAIN);
            }
            changed.await;
        }
    }
}
