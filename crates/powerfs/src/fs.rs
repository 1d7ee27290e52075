//! The file system that a kernel mounts: [`Disk`] behind a switch. After the cut every operation waits until it may fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_client::llite::types::*;
use coral_fuse::{FileSystem, OpError};
use coral_wire::{Errno, fid::Fid};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::content::BLOCK;
use crate::disk::Disk;
use crate::now;
use crate::tree::{Change, Ino, Node, ROOT};

/// Blocks that all files may have together: 1 GiB.
const BLOCKS_MAX: u64 = 1 << 18;
const FILE_BYTES_MAX: u64 = 1 << 40;
/// Nobody else changes what the kernel remembers.
const TTL: Duration = Duration::from_secs(3600);

pub(crate) struct PowerFsState {
    /// None: the power is off.
    pub disk: Option<Disk>,
    next: Ino,
    cookie: u64,
    opens: HashMap<Ino, u32>,
}

pub(crate) struct Inner {
    pub state: Mutex<PowerFsState>,
    /// True: what waits since the cut may fail.
    pub released: watch::Sender<bool>,
    pub operations: AtomicU64,
    /// How long each fsync takes, milliseconds.
    pub sync_ms: AtomicU64,
}

#[derive(Clone)]
pub(crate) struct Fs(pub Arc<Inner>);

pub(crate) struct File {
    ino: Ino,
    /// O_SYNC or O_DSYNC.
    sync: bool,
}

type R<T> = Result<T, OpError>;

fn err<T>(e: i32) -> R<T> {
    Err(Errno(e).into())
}

fn fid(ino: Ino) -> Fid {
    Fid {
        seq: 0x2_0000_0400,
        oid: ino,
        ver: 0,
    }
}

pub(crate) fn node(mode: u32, uid: u32, gid: u32, parent: Ino) -> Node {
    let t = now();
    let nlink = if mode & libc::S_IFMT == libc::S_IFDIR {
        2
    } else {
        1
    };
    Node {
        mode,
        uid,
        gid,
        nlink,
        rdev: 0,
        atime: t,
        mtime: t,
        ctime: t,
        link: Bytes::new(),
        xattrs: Default::default(),
        parent,
        names: Default::default(),
        data: Default::default(),
    }
}

/// The state with the power on.
struct On<'a> {
    disk: &'a mut Disk,
    next: &'a mut Ino,
    cookie: &'a mut u64,
    opens: &'a mut HashMap<Ino, u32>,
}

impl On<'_> {
    fn node(&self, f: Fid) -> R<&Node> {
        self.disk.seen.nodes.get(&f.oid).ok_or(OpError::Forgotten)
    }

    fn dir(&self, f: Fid) -> R<&Node> {
        let n = self.node(f)?;
        if n.is_dir() {
            Ok(n)
        } else {
            err(libc::ENOTDIR)
        }
    }

    fn child(&self, parent: Fid, name: &[u8]) -> R<Ino> {
        self.dir(parent)?
            .names
            .get(name)
            .map(|e| e.1)
            .ok_or(Errno(libc::ENOENT).into())
    }

    fn entry(&self, ino: Ino) -> R<Entry> {
        let n = self.node(fid(ino))?;
        let size = match n.mode & libc::S_IFMT {
            libc::S_IFDIR => 4096,
            libc::S_IFLNK => n.link.len() as u64,
            _ => n.data.size,
        };
        let attr = Attr {
            fid: fid(ino),
            mode: n.mode,
            uid: n.uid,
            gid: n.gid,
            projid: 0,
            size,
            blocks: n.data.blocks.len() as u64 * (BLOCK / 512),
            nlink: n.nlink,
            rdev: n.rdev,
            atime: n.atime,
            mtime: n.mtime,
            ctime: n.ctime,
            btime: n.ctime,
            blksize: BLOCK as u32,
            flags: 0,
        };
        Ok(Entry {
            attr,
            attr_ttl: TTL,
            entry_ttl: TTL,
        })
    }

    fn cookie(&mut self) -> u64 {
        *self.cookie += 1;
        *self.cookie
    }

    fn may_enter(&self, parent: Fid, name: &[u8]) -> R<()> {
        if name.len() > 255 {
            return err(libc::ENAMETOOLONG);
        }
        match self.dir(parent)? {
            d if d.nlink == 0 => err(libc::ENOENT),
            d if d.names.contains_key(name) => err(libc::EEXIST),
            _ => Ok(()),
        }
    }

    fn make(
        &mut self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        more: impl FnOnce(&mut Node),
    ) -> R<Ino> {
        self.may_enter(parent, name)?;
        *self.next += 1;
        let (ino, cookie) = (*self.next, self.cookie());
        let mut new = node(mode & !cred.umask, cred.uid, cred.gid, parent.oid);
        more(&mut new);
        self.disk.change(Change::Make {
            parent: parent.oid,
            name: name.to_vec(),
            cookie,
            ino,
            node: Box::new(new),
        });
        Ok(ino)
    }

    /// The last name of an inode went.
    fn unnamed(&mut self, ino: Option<Ino>) {
        if let Some(ino) = ino
            && self.opens.get(&ino).copied().unwrap_or(0) == 0
        {
            self.disk.forget(ino);
        }
    }

    fn may_remove(&self, ino: Ino, want_dir: bool) -> R<()> {
        match (self.node(fid(ino))?, want_dir) {
            (n, false) if n.is_dir() => err(libc::EISDIR),
            (n, true) if !n.is_dir() => err(libc::ENOTDIR),
            (n, true) if !n.names.is_empty() => err(libc::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    fn remove(&mut self, parent: Fid, name: &[u8], want_dir: bool) -> R<()> {
        let ino = self.child(parent, name)?;
        self.may_remove(ino, want_dir)?;
        let gone = self.disk.change(Change::Unlink {
            parent: parent.oid,
            name: name.to_vec(),
        });
        self.unnamed(gone);
        Ok(())
    }

    fn rename(&mut self, p1: Fid, n1: &[u8], p2: Fid, n2: &[u8], flags: u32) -> R<()> {
        let ino = self.child(p1, n1)?;
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return err(libc::EINVAL);
        }
        match self.child(p2, n2) {
            Ok(_) if flags != 0 => return err(libc::EEXIST),
            Ok(over) if over == ino => return Ok(()),
            Ok(over) => self.may_remove(over, self.node(fid(ino))?.is_dir())?,
            Err(_) => self.may_enter(p2, n2)?,
        }
        let cookie = self.cookie();
        let gone = self.disk.change(Change::Rename {
            from: (p1.oid, n1.to_vec()),
            to: (p2.oid, n2.to_vec()),
            cookie,
        });
        self.unnamed(gone);
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "a sum is the same in any order")]
    fn used(&self) -> u64 {
        self.disk
            .seen
            .nodes
            .values()
            .map(|n| n.data.blocks.len() as u64)
            .sum()
    }

    fn opened(&mut self, ino: Ino, flags: u32) -> File {
        *self.opens.entry(ino).or_default() += 1;
        File {
            ino,
            sync: flags & libc::O_DSYNC as u32 != 0,
        }
    }

    fn set_size(&mut self, ino: Ino, size: u64) -> R<()> {
        if size > FILE_BYTES_MAX {
            return err(libc::EFBIG);
        }
        self.disk.change(Change::Size { ino, size });
        self.touch(ino);
        Ok(())
    }

    fn touch(&mut self, ino: Ino) {
        if let Some(n) = self.disk.seen.nodes.get_mut(&ino) {
            n.mtime = now();
            n.ctime = n.mtime;
        }
    }
}

impl Fs {
    #[expect(
        clippy::disallowed_methods,
        reason = "a maximum is the same in any order"
    )]
    pub fn new(disk: Disk) -> Fs {
        let next = disk.seen.nodes.keys().copied().max().unwrap_or(ROOT);
        let cookies = disk
            .seen
            .nodes
            .values()
            .flat_map(|n| n.names.values().map(|(c, _)| *c));
        let cookie = cookies.max().unwrap_or(0).max(2);
        let state = PowerFsState {
            disk: Some(disk),
            next,
            cookie,
            opens: HashMap::new(),
        };
        Fs(Arc::new(Inner {
            state: Mutex::new(state),
            released: watch::channel(false).0,
            operations: AtomicU64::new(0),
            sync_ms: AtomicU64::new(0),
        }))
    }

    /// One operation with the power on; without it, one that fails when it may.
    async fn on<T>(&self, f: impl FnOnce(&mut On<'_>) -> R<T> + Send) -> R<T> {
        if let Some(done) = self.try_on(f) {
            return done;
        }
        let _ = self.0.released.subscribe().wait_for(|r| *r).await;
        err(libc::EIO)
    }

    fn try_on<T>(&self, f: impl FnOnce(&mut On<'_>) -> R<T>) -> Option<R<T>> {
        self.0.operations.fetch_add(1, Ordering::Relaxed);
        let PowerFsState {
            disk,
            next,
            cookie,
            opens,
        } = &mut *self.0.state.lock();
        disk.as_mut().map(|disk| {
            f(&mut On {
                disk,
                next,
                cookie,
                opens,
            })
        })
    }
}

impl FileSystem for Fs {
    type File = File;
    type Dir = Ino;

    fn takes_locks(&self) -> bool {
        false
    }

    fn root(&self) -> Fid {
        fid(ROOT)
    }

    fn forget(&self, _: Fid) {}

    async fn lookup(&self, _: &Cred, parent: Fid, name: &[u8]) -> R<Entry> {
        self.on(|s| {
            let ino = if name == b".." {
                s.dir(parent)?.parent
            } else {
                s.child(parent, name)?
            };
            s.entry(ino)
        })
        .await
    }

    async fn readlink(&self, _: &Cred, f: Fid) -> R<Bytes> {
        self.on(|s| Ok(s.node(f)?.link.clone())).await
    }

    async fn mknod(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32, rdev: u32) -> R<Entry> {
        self.on(|s| {
            let ino = s.make(cred, parent, name, mode, |n| n.rdev = rdev)?;
            s.entry(ino)
        })
        .await
    }

    async fn mkdir(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> R<Entry> {
        self.on(|s| {
            let ino = s.make(cred, parent, name, mode & 0o7777 | libc::S_IFDIR, |_| {})?;
            s.entry(ino)
        })
        .await
    }

    async fn symlink(&self, cred: &Cred, parent: Fid, name: &[u8], target: &[u8]) -> R<Entry> {
        self.on(|s| {
            let ino = s.make(cred, parent, name, libc::S_IFLNK | 0o777, |n| {
                n.link = Bytes::copy_from_slice(target)
            })?;
            s.entry(ino)
        })
        .await
    }

    async fn link(&self, _: &Cred, f: Fid, parent: Fid, name: &[u8]) -> R<Entry> {
        self.on(|s| {
            if s.node(f)?.is_dir() {
                return err(libc::EPERM);
            }
            s.may_enter(parent, name)?;
            let cookie = s.cookie();
            s.disk.change(Change::Link {
                parent: parent.oid,
                name: name.to_vec(),
                cookie,
                ino: f.oid,
            });
            s.entry(f.oid)
        })
        .await
    }

    async fn unlink(&self, _: &Cred, parent: Fid, name: &[u8]) -> R<()> {
        self.on(|s| s.remove(parent, name, false)).await
    }

    async fn rmdir(&self, _: &Cred, parent: Fid, name: &[u8]) -> R<()> {
        self.on(|s| s.remove(parent, name, true)).await
    }

    async fn rename(&self, _: &Cred, p1: Fid, n1: &[u8], p2: Fid, n2: &[u8], flags: u32) -> R<()> {
        self.on(|s| s.rename(p1, n1, p2, n2, flags)).await
    }

    async fn getattr(&self, _: &Cred, f: Fid, _: Option<&File>) -> R<Entry> {
        self.on(|s| s.entry(f.oid)).await
    }

    async fn setattr(&self, _: &Cred, f: Fid, set: SetAttr, _: Option<&File>) -> R<Entry> {
        self.on(|s| {
            let at = |t: SetTime| if let SetTime::At(t) = t { t } else { now() };
            if let Some(size) = set.size {
                s.set_size(f.oid, size)?;
            }
            let mode = set
                .mode
                .map(|m| s.node(f).map(|n| n.mode & libc::S_IFMT | m & 0o7777))
                .transpose()?;
            let change = Change::Attr {
                ino: f.oid,
                mode,
                uid: set.uid,
                gid: set.gid,
                atime: set.atime.map(at),
                mtime: set.mtime.map(at),
            };
            s.disk.change(change);
            s.entry(f.oid)
        })
        .await
    }

    async fn access(&self, _: &Cred, _: Fid, _: u32) -> R<()> {
        Ok(())
    }

    async fn statfs(&self) -> R<StatFs> {
        self.on(|s| {
            let free = BLOCKS_MAX.saturating_sub(s.used());
            let nodes = s.disk.seen.nodes.len() as u64;
            Ok(StatFs {
                bsize: BLOCK as u32,
                blocks: BLOCKS_MAX,
                bfree: free,
                bavail: free,
                files: nodes + (1 << 20),
                ffree: 1 << 20,
                namelen: 255,
            })
        })
        .await
    }

    async fn create(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> R<(Entry, File)> {
        self.on(|s| {
            let ino = match s.child(parent, name) {
                Ok(_) if flags & libc::O_EXCL as u32 != 0 => return err(libc::EEXIST),
                Ok(ino) => ino,
                Err(_) => s.make(cred, parent, name, mode & 0o7777 | libc::S_IFREG, |_| {})?,
            };
            let e = s.entry(ino)?;
            Ok((e, s.opened(ino, flags)))
        })
        .await
    }

    async fn open(&self, _: &Cred, f: Fid, flags: u32) -> R<File> {
        self.on(|s| {
            s.node(f)?;
            if flags & libc::O_TRUNC as u32 != 0 {
                s.set_size(f.oid, 0)?;
            }
            Ok(s.opened(f.oid, flags))
        })
        .await
    }

    async fn read(&self, f: &File, offset: u64, len: u32) -> R<Payload> {
        self.on(|s| {
            let mut p = Payload::new();
            p.push(Bytes::from(
                s.node(fid(f.ino))?.data.read(offset, len as usize),
            ));
            Ok(p)
        })
        .await
    }

    async fn write(
        &self,
        _: &Cred,
        f: &File,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> R<usize> {
        self.on(|s| {
            let mut at = if append {
                s.node(fid(f.ino))?.data.size
            } else {
                offset
            };
            if at + data.len() as u64 > FILE_BYTES_MAX {
                return err(libc::EFBIG);
            }
            if s.used() + data.len() as u64 / BLOCK > BLOCKS_MAX {
                return err(libc::ENOSPC);
            }
            for seg in &data {
                s.disk.write(f.ino, at, seg);
                at += seg.len() as u64;
            }
            s.touch(f.ino);
            if f.sync {
                s.disk.sync(f.ino);
            }
            Ok(data.len())
        })
        .await
    }

    async fn flush(&self, _: &File, _: u64) -> R<()> {
        Ok(())
    }

    async fn release(&self, f: &File) -> R<()> {
        // nothing waits for it, and it must not keep the end of a mount waiting
        let _ = self.try_on(|s| {
            let left = s.opens.get_mut(&f.ino).map_or(0, |n| {
                *n -= 1;
                *n
            });
            if left == 0 {
                s.opens.remove(&f.ino);
                if s.node(fid(f.ino)).is_ok_and(|n| n.nlink == 0) {
                    s.disk.forget(f.ino);
                }
            }
            Ok(())
        });
        Ok(())
    }

    async fn fsync(&self, f: &File, _: bool) -> R<()> {
        let takes = self.0.sync_ms.load(Ordering::Relaxed);
        if takes > 0 {
            tokio::time::sleep(Duration::from_millis(takes)).await;
        }
        self.on(|s| {
            s.disk.sync(f.ino);
            Ok(())
        })
        .await
    }

    async fn fallocate(&self, _: &Cred, f: &File, mode: u32, offset: u64, len: u64) -> R<()> {
        const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        if mode & !(KEEP | PUNCH | ZERO) != 0 {
            return err(libc::EOPNOTSUPP);
        }
        self.on(|s| {
            let (from, to) = (offset, offset + len);
            if mode & (PUNCH | ZERO) != 0 {
                s.disk.change(Change::Punch {
                    ino: f.ino,
                    from,
                    to,
                });
            }
            if mode & PUNCH == 0 {
                if s.used() + len / BLOCK > BLOCKS_MAX {
                    return err(libc::ENOSPC);
                }
                let size = if mode & KEEP == 0 { to } else { 0 };
                s.disk.change(Change::Allocate {
                    ino: f.ino,
                    from,
                    to,
                    size,
                });
            }
            s.touch(f.ino);
            Ok(())
        })
        .await
    }

    async fn lseek(&self, f: &File, offset: u64, whence: SeekWhence) -> R<u64> {
        self.on(|s| {
            let data = &s.node(fid(f.ino))?.data;
            if offset >= data.size {
                return err(libc::ENXIO);
            }
            let b = offset / BLOCK;
            let found = match whence {
                SeekWhence::Data => *data.blocks.range(b..).next().ok_or(Errno(libc::ENXIO))?.0,
                SeekWhence::Hole => (b..).find(|b| !data.blocks.contains_key(b)).unwrap_or(b),
            };
            let at = (found * BLOCK).max(offset);
            match whence {
                SeekWhence::Data if at >= data.size => err(libc::ENXIO),
                _ => Ok(at.min(data.size)),
            }
        })
        .await
    }

    async fn opendir(&self, _: &Cred, f: Fid) -> R<Ino> {
        Ok(f.oid)
    }

    async fn readdir(
        &self,
        _: &Cred,
        dir: &Ino,
        cookie: u64,
        plus: bool,
        fill: &mut (dyn FnMut(DirEntry) -> bool + Send),
    ) -> R<()> {
        let entries = self
            .on(|s| {
                let d = s.dir(fid(*dir))?;
                let mut list: Vec<_> = d
                    .names
                    .iter()
                    .map(|(n, (c, i))| (*c, *i, n.clone()))
                    .collect();
                list.extend([(1, *dir, b".".to_vec()), (2, d.parent, b"..".to_vec())]);
                list.retain(|e| e.0 > cookie);
                list.sort();
                let of = |(next, ino, name): (u64, Ino, Vec<u8>)| {
                    let kind = s
                        .node(fid(ino))
                        .map_or(libc::S_IFDIR, |n| n.mode & libc::S_IFMT);
                    let entry = if plus && next > 2 {
                        s.entry(ino).ok()
                    } else {
                        None
                    };
                    DirEntry {
                        fid: fid(ino),
                        name: name.into(),
                        kind,
                        next,
                        entry,
                    }
                };
                Ok(list.into_iter().map(of).collect::<Vec<_>>())
            })
            .await?;
        entries.into_iter().any(fill);
        Ok(())
    }

    async fn releasedir(&self, _: &Ino) -> R<()> {
        Ok(())
    }

    async fn fsyncdir(&self, _: &Ino) -> R<()> {
        self.on(|s| {
            s.disk.commit_all();
            Ok(())
        })
        .await
    }

    async fn getxattr(&self, _: &Cred, f: Fid, name: &[u8]) -> R<Bytes> {
        self.on(|s| {
            s.node(f)?
                .xattrs
                .get(name)
                .cloned()
                .ok_or(Errno(libc::ENODATA).into())
        })
        .await
    }

    async fn setxattr(&self, _: &Cred, f: Fid, name: &[u8], value: Bytes, flags: u32) -> R<()> {
        if name.starts_with(b"system.") {
            return err(libc::EOPNOTSUPP);
        }
        self.on(|s| {
            match (s.node(f)?.xattrs.contains_key(name), flags as i32) {
                (true, libc::XATTR_CREATE) => return err(libc::EEXIST),
                (false, libc::XATTR_REPLACE) => return err(libc::ENODATA),
                _ => {}
            }
            s.disk.change(Change::Xattr {
                ino: f.oid,
                name: name.to_vec(),
                value: Some(value),
            });
            Ok(())
        })
        .await
    }

    async fn listxattr(&self, _: &Cred, f: Fid) -> R<Bytes> {
        self.on(|s| {
            Ok(s.node(f)?
                .xattrs
                .keys()
                .flat_map(|n| n.iter().copied().chain([0]))
                .collect::<Vec<u8>>()
                .into())
        })
        .await
    }

    async fn removexattr(&self, _: &Cred, f: Fid, name: &[u8]) -> R<()> {
        self.on(|s| {
            if !s.node(f)?.xattrs.contains_key(name) {
                return err(libc::ENODATA);
            }
            s.disk.change(Change::Xattr {
                ino: f.oid,
                name: name.to_vec(),
                value: None,
            });
            Ok(())
        })
        .await
    }

    async fn getlk(&self, _: &File, _: u64, _: FileLock) -> R<FileLock> {
        err(libc::ENOSYS)
    }

    async fn setlk(&self, _: &File, _: u64, _: FileLock, _: bool) -> R<()> {
        err(libc::ENOSYS)
    }

    async fn flock(&self, _: &File, _: LockKind, _: bool) -> R<()> {
        err(libc::ENOSYS)
    }
}
