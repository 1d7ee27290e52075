//! Open files: opening, reading, writing, syncing, closing.
//!
//! Data goes straight to the OSTs under locks the servers take, or is kept back for a while ([`super::writeback`]). Appends:
//! [`super::append`].
//!
//! Lustre: `lustre/llite/file.c`, `lustre/llite/rw26.c`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_lnet::Payload;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::mds::{layout_intent, open};
use futures_util::future::try_join;
use parking_lot::Mutex;

use super::Llite;
use super::finish::finish;
use super::inode::MdInode;
use super::mdt_open::MdtOpen;
use super::namei::check_name;
use super::open_inode::OpenInode;
use super::types::{Attr, Cred, Entry, SeekWhence};
use crate::lov::{FileLayout, Form, Locks};
use crate::mdc::{Ids, Mdc, Open, Opened};
use crate::osc::WriteAttr;
use crate::time::Timespec;

/// The first writes of a handle go through: a file that is written by one or two of them must not pay for a cover.
const WRITES_THROUGH: u32 = 2;

/// `__FMODE_EXEC` as it stands among the open flags of an exec.
const O_EXEC: u32 = 0o40;
/// Without `a_time` older than this, reads do not update it (relatime), seconds.
const RELATIME_S: i64 = 24 * 3600;

/// An open regular file.
pub struct FileHandle {
    pub(super) inode: Arc<OpenInode>,
    flags: u32,
    /// What the MDT has of it.
    pub(super) at_mdt: Arc<MdtOpen>,
    /// atime and the later of mtime and ctime at open (relatime).
    times: (Timespec, Timespec),
    was_read: AtomicBool,
    closed: AtomicBool,
    /// Of this mount's handles, this one; the owner of its flock.
    pub(super) number: u64,
    /// flock(2) was called.
    pub(super) flocked: AtomicBool,
    /// Owners that took record locks through this handle: when it goes, what a flush did not give back belongs to the open file
    /// itself (`F_OFD_SETLK`), which Linux tells nobody the end of.
    pub(super) lock_owners: Mutex<HashSet<u64>>,
    /// Writes through it so far.
    writes: AtomicU32,
    /// The file had no capabilities when that was asked last.
    pub(super) uncapped: AtomicBool,
    /// Of [`OpenInode::lost`], what it was told of.
    seen_lost: AtomicU64,
}

impl FileHandle {
    /// FID of the file.
    pub fn fid(&self) -> Fid {
        self.inode.fid
    }

    /// `O_*` flags it was opened with.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Opened for writing.
    pub fn writable(&self) -> bool {
        self.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
    }
}

impl FileHandle {
    /// Something was read: atime may have to move at close.
    pub(super) fn set_read(&self) {
        self.was_read.store(true, Ordering::Relaxed);
    }

    /// Counts a write. True: there were so many before that it pays to keep this one back.
    pub(super) fn count_write(&self) -> bool {
        self.writes.fetch_add(1, Ordering::Relaxed) >= WRITES_THROUGH
    }

    /// Nothing written through it may be kept back.
    pub(super) fn is_sync(&self) -> bool {
        self.flags & (libc::O_DSYNC | libc::O_DIRECT) as u32 != 0
    }

    /// Tells once that written data was lost.
    fn take_lost(&self) -> Result<(), Errno> {
        self.inode.lost.take(&self.seen_lost)
    }

    /// True for the one who is to close it.
    fn begin_close(&self) -> bool {
        let first = !self.closed.swap(true, Ordering::AcqRel);
        if first && self.writable() {
            self.inode.writers.fetch_sub(1, Ordering::Relaxed);
            self.inode.gate.writer_closed();
        }
        first
    }
}

impl Drop for FileHandle {
    /// A handle nobody released (its caller was interrupted) is closed all the same.
    fn drop(&mut self) {
        if !self.begin_close() {
            return;
        }
        let Ok(rt) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let at_mdt = self.at_mdt.clone();
        rt.spawn(async move { at_mdt.close(None, None).await });
    }
}

/// Where `len_bytes` from `offset` on end. EFBIG: further than a file can.
pub(super) fn end_of(offset: u64, len_bytes: u64) -> Result<u64, Errno> {
    offset
        .checked_add(len_bytes)
        .filter(|e| *e <= i64::MAX as u64)
        .ok_or(Errno::EFBIG)
}

/// `O_*` to MDS_OPEN bits. Most have the same value.
pub(super) fn mds_flags(flags: u32) -> u64 {
    let mut out = match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => open::READ,
        libc::O_WRONLY => open::WRITE,
        _ => open::READ | open::WRITE,
    };
    let same = (libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_DIRECTORY
        | libc::O_NOFOLLOW) as u32;
    out |= (flags & same) as u64;
    if flags & libc::O_DSYNC as u32 != 0 {
        out |= open::SYNC;
    }
    if flags & O_EXEC != 0 {
        out |= open::EXEC;
    }
    out
}

impl Llite {
    /// The shared part of open handles on `fid`.
    fn open_inode(&self, md: &MdInode, created: bool) -> Arc<OpenInode> {
        let fid = md.attr.fid;
        let mut open = self.open.lock();
        if let Some(i) = open.get(&fid).and_then(std::sync::Weak::upgrade) {
            drop(open);
            i.set_layout(md.layout.clone());
            i.set_owner(md.attr.owner());
            return i;
        }
        let size = if created { Some(0) } else { md.rough_size };
        let i = Arc::new(OpenInode::new(md, size, self.pages.gate(fid)));
        open.insert(fid, Arc::downgrade(&i));
        i
    }

    /// The shared part if some handle is open.
    pub(super) fn opened(&self, fid: Fid) -> Option<Arc<OpenInode>> {
        self.open
            .lock()
            .get(&fid)
            .and_then(std::sync::Weak::upgrade)
    }

    /// All open files, in the order of their FIDs: requests are sent in this order.
    #[expect(clippy::disallowed_methods, reason = "the files are sorted")]
    pub(super) fn all_opened(&self) -> Vec<Arc<OpenInode>> {
        let open = self.open.lock();
        let mut all: Vec<_> = open
            .iter()
            .filter_map(|(fid, inode)| Some((*fid, inode.upgrade()?)))
            .collect();
        drop(open);
        all.sort_unstable_by_key(|(fid, _)| *fid);
        all.into_iter().map(|(_, inode)| inode).collect()
    }

    pub(super) async fn handle(
        self: &Arc<Self>,
        mdc: Arc<Mdc>,
        o: &Opened,
        md: &MdInode,
        flags: u32,
    ) -> Arc<FileHandle> {
        let inode = self.open_inode(md, o.created);
        if !mdc.coral() && self.cache.known(md.attr.fid).is_none() {
            // no lock came along that would tell of a change
            inode.layout_lost();
        }
        let writable = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if writable {
            inode.writers.fetch_add(1, Ordering::Relaxed);
            self.writer_opened(&inode).await;
        }
        let seen_lost = AtomicU64::new(inode.lost.count());
        let bits = mds_flags(flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u32);
        Arc::new(FileHandle {
            inode,
            flags,
            at_mdt: MdtOpen::new(mdc, o, bits, md.attr.mode),
            times: (md.attr.atime, md.attr.mtime.max(md.attr.ctime)),
            was_read: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            number: self.lock_owners.fresh(),
            flocked: AtomicBool::new(false),
            lock_owners: Mutex::default(),
            writes: AtomicU32::new(0),
            uncapped: AtomicBool::new(o.created),
            seen_lost,
        })
    }

    /// Opens, creating when there is no such name (`O_EXCL` in `flags`: EEXIST when there is). `flags` are `O_*`.
    pub async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Arc<FileHandle>), Errno> {
        check_name(name)?;
        let ids = self.ids(cred, &[parent]).await;
        let place = self.place(parent, name).await?;
        let whole = place.dir == parent;
        let parent = place.dir;
        let mdc = self.lmv.of(parent).await?;
        let fid = mdc.new_fid().await?;
        let mode = mode & 0o7777 | libc::S_IFREG;
        let bits = mds_flags(flags | libc::O_CREAT as u32);
        let (me, name) = (self.clone(), Bytes::copy_from_slice(name));
        let (fh, md, created) = finish(async move {
            let want_lock = me.cache.enabled();
            let (mark, _change) = (me.cache.begin_read(parent), me.change_entries(&[parent]));
            let now = me.now();
            let mut o = mdc
                .open(
                    &ids,
                    parent,
                    &name,
                    fid,
                    bits,
                    mode,
                    now,
                    Bytes::new(),
                    want_lock,
                )
                .await?;
            let md = MdInode::read(&mdc, &o.attrs)?;
            me.learn(&mdc, mark, &md, o.lock.take());
            if o.created {
                me.named(&mdc, parent, o.dir.as_ref(), now, &name, Some(md.attr.fid));
                me.cache.learn_uncapped(mark, md.attr.fid, true);
            }
            me.hint_gid(md.attr.fid, md.attr.gid);
            Ok::<_, Errno>((me.handle(mdc, &o, &md, flags).await, md, o.created))
        })
        .await?;
        match self.attr_after_open(cred, &fh, &md, created).await {
            Ok(attr) => {
                let entry = self.entry(attr, &md);
                Ok((
                    if whole {
                        entry
                    } else {
                        Entry {
                            entry_ttl: Duration::ZERO,
                            ..entry
                        }
                    },
                    fh,
                ))
            }
            Err(e) => {
                self.release(&fh).await.ok();
                Err(e)
            }
        }
    }

    async fn attr_after_open(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &FileHandle,
        md: &MdInode,
        created: bool,
    ) -> Result<Attr, Errno> {
        if created {
            return Ok(md.fresh());
        }
        if fh.flags & libc::O_TRUNC as u32 != 0 && md.attr.is_file() {
            return Ok(self.truncate_handle(cred, fh, 0).await?.attr);
        }
        self.full_attr(md).await
    }

    /// Opens an existing file; `O_TRUNC` works, permissions are checked by the MDT.
    pub async fn open(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        flags: u32,
    ) -> Result<Arc<FileHandle>, Errno> {
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL) as u32;
        let fh = match self.reopen.take(cred.pid, fid, flags) {
            Some(fh) => fh,
            None => self.open_fid(cred, fid, flags).await.inspect_err(|e| {
                if matches!(*e, Errno::ENOENT | Errno::ESTALE) {
                    self.reopen.lost(cred.pid, flags);
                }
            })?,
        };
        if flags & libc::O_TRUNC as u32 != 0
            && fh.at_mdt.mode & libc::S_IFMT == libc::S_IFREG
            && let Err(e) = self.truncate_handle(cred, &fh, 0).await
        {
            self.release(&fh).await.ok();
            return Err(e);
        }
        Ok(fh)
    }

    async fn open_fid(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        flags: u32,
    ) -> Result<Arc<FileHandle>, Errno> {
        let ids = self.ids(cred, &[fid]).await;
        let mdc = self.lmv.of(fid).await?;
        let me = self.clone();
        finish(async move {
            // a lock that is held already need not be given again
            let want_lock = me.cache.enabled() && me.cache.known(fid).is_none();
            let mark = me.cache.begin_read(fid);
            let mut o = mdc
                .open(
                    &ids,
                    fid,
                    b"",
                    fid,
                    mds_flags(flags),
                    0,
                    me.now(),
                    Bytes::new(),
                    want_lock,
                )
                .await?;
            let md = MdInode::read(&mdc, &o.attrs)?;
            me.learn(&mdc, mark, &md, o.lock.take());
            me.hint_gid(md.attr.fid, md.attr.gid);
            Ok::<_, Errno>(me.handle(mdc, &o, &md, flags).await)
        })
        .await
    }

    /// An eviction by the MDT closes files there: opens again. EIO when the file went with it ([`MdtOpen`]).
    pub(super) async fn still_open(&self, fh: &FileHandle) -> Result<(), Errno> {
        fh.at_mdt.ensure(self.now()).await
    }

    /// Reads up to `len_bytes`; short only at the end of the file.
    pub async fn read(
        self: &Arc<Self>,
        fh: &FileHandle,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, Errno> {
        fh.set_read();
        self.still_open(fh).await?;
        if let Some(cover) = fh.inode.gate.writes() {
            return self
                .read_kept(&cover, fh.fid(), offset, len_bytes as usize)
                .await;
        }
        loop {
            let before = self.layout_now(&fh.inode).await?;
            let done = self.read_once(fh, offset, len_bytes).await;
            if !self
                .moved(
                    &fh.inode,
                    &before,
                    offset,
                    offset.saturating_add(len_bytes as u64),
                )
                .await?
            {
                return done;
            }
        }
    }

    async fn read_once(
        &self,
        fh: &FileHandle,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, Errno> {
        let fid = fh.fid();
        let mut layout = self.layout_now(&fh.inode).await?;
        layout.check()?;
        if layout.needs_init(offset, offset.saturating_add(len_bytes as u64)) {
            layout = self.fetch_layout(fid, layout_intent::ACCESS, 0, 0).await?;
            fh.inode.set_layout(layout.clone());
        }
        if layout.form == Form::None {
            return self.read_nothing(fid, offset, len_bytes).await;
        }
        let len_bytes = match self.lov.tells_the_end() {
            true => len_bytes as usize,
            false => self.inside(fid, offset, len_bytes).await?,
        };
        self.lov
            .read(&layout, fid, offset, len_bytes, &Locks::default())
            .await
    }

    /// Bytes of `offset..offset + len_bytes` that are before the end of the file. A stock OST fills the last page of a read
    /// with zeros and leaves it to the client, which has the size under its locks, to know where the file ends
    /// (`osd_read_prep` in `lustre/osd-ldiskfs/osd_io.c`). The size is asked for before the read: what grows meanwhile is
    /// not there yet, and no zeros are taken for data.
    pub(super) async fn inside(
        &self,
        fid: Fid,
        offset: u64,
        len_bytes: u32,
    ) -> Result<usize, Errno> {
        let md = self.md_inode(fid).await?;
        let size = self.full_attr(&md).await?.size;
        Ok(size.saturating_sub(offset).min(len_bytes as u64) as usize)
    }

    /// A file without objects is all hole, as long as the MDT says.
    async fn read_nothing(&self, fid: Fid, offset: u64, len_bytes: u32) -> Result<Payload, Errno> {
        let size = self.md_inode(fid).await?.attr.size;
        let n = size.saturating_sub(offset).min(len_bytes as u64);
        Ok(if n == 0 {
            Payload::new()
        } else {
            Payload::from(Bytes::from(vec![0; n as usize]))
        })
    }

    /// Writes all of `data` at `offset` (at the end, whatever `offset` says, when opened with O_APPEND); bytes written.
    pub async fn write(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
    ) -> Result<usize, Errno> {
        self.write_at(
            cred,
            fh,
            offset,
            data,
            fh.flags & libc::O_APPEND as u32 != 0,
        )
        .await
    }

    /// [`Llite::write`] with `append` said by the caller: a FUSE mount writes mmapped pages back through any handle, and
    /// fcntl(F_SETFL) may change O_APPEND after the open.
    pub async fn write_at(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> Result<usize, Errno> {
        let len = data.len();
        if len == 0 {
            return Ok(0);
        }
        fh.take_lost()?;
        self.still_open(fh).await?;
        self.drop_privileges(cred, fh).await?;
        let attr = WriteAttr {
            owner: fh.inode.owner(),
            time: self.now(),
        };
        if append {
            self.append(fh, data, &attr).await?;
        } else {
            let end = offset.saturating_add(len as u64);
            self.write_range(fh, offset, data, &attr).await?;
            fh.inode.wrote(end);
        }
        if fh.flags & libc::O_DSYNC as u32 != 0 {
            self.fsync(fh, fh.flags & (libc::O_SYNC & !libc::O_DSYNC) as u32 == 0)
                .await?;
        }
        Ok(len)
    }

    /// The layout, asked for again if its lock was lost.
    pub(super) async fn layout_now(&self, inode: &OpenInode) -> Result<Arc<FileLayout>, Errno> {
        if inode.stale.swap(false, Ordering::AcqRel) {
            match self
                .fetch_layout(inode.fid, layout_intent::ACCESS, 0, 0)
                .await
            {
                Ok(l) => inode.set_layout(l),
                // the last name is gone with an MDT that answers no more about it: what was known still holds
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(e) => {
                    inode.layout_lost();
                    return Err(e);
                }
            }
        }
        Ok(inode.layout())
    }

    /// The data of `start..end` were given other objects while they were read or written by `layout`: what was done has to be
    /// done again. Whoever moves a file (`lfs migrate`) locks its objects against others meanwhile, so a write waits for him
    /// and then goes to objects that are nobody's any more. Lustre: `vvp_io_fini` looks at the layout's generation.
    pub(super) async fn moved(
        &self,
        inode: &OpenInode,
        layout: &FileLayout,
        start: u64,
        end: u64,
    ) -> Result<bool, Errno> {
        if !inode.stale.load(Ordering::Acquire) {
            return Ok(false);
        }
        Ok(!self
            .layout_now(inode)
            .await?
            .same_objects(layout, start, end))
    }

    /// The layout, with objects everywhere in `start..end`.
    pub(super) async fn layout_for_write(
        &self,
        fh: &FileHandle,
        start: u64,
        end: u64,
    ) -> Result<Arc<FileLayout>, Errno> {
        let mut layout = self.layout_now(&fh.inode).await?;
        layout.check()?;
        if !layout.needs_intent(start, end) {
            return Ok(layout);
        }
        layout = self
            .instantiate(fh.fid(), layout_intent::WRITE, start, end)
            .await?;
        fh.inode.set_layout(layout.clone());
        Ok(layout)
    }

    /// Asks the MDT for objects in `start..end`. A file that never had a layout gets one by being opened for writing.
    pub(super) async fn instantiate(
        &self,
        fid: Fid,
        op: u32,
        start: u64,
        end: u64,
    ) -> Result<Arc<FileLayout>, Errno> {
        let layout = self.fetch_layout(fid, layout_intent::ACCESS, 0, 0).await?;
        let layout = match layout.form {
            Form::None => {
                let mdc = self.lmv.of(fid).await?;
                let mut o = mdc
                    .open(
                        &Ids::root(),
                        fid,
                        b"",
                        fid,
                        open::WRITE,
                        0,
                        self.now(),
                        Bytes::new(),
                        false,
                    )
                    .await?;
                mdc.drop_lock(o.lock.take());
                let md = MdInode::read(&mdc, &o.attrs)?;
                mdc.close(
                    &Open {
                        fid,
                        handle: &o.handle,
                        transno: o.transno,
                    },
                    md.attr.mode,
                    None,
                    None,
                )
                .await?;
                md.layout
            }
            _ => layout,
        };
        let layout = match layout.needs_intent(start, end) {
            true => self.fetch_layout(fid, op, start, end).await?,
            false => layout,
        };
        layout.check()?;
        if layout.needs_init(start, end) {
            Err(Errno::EIO)
        } else {
            Ok(layout)
        }
    }

    /// A descriptor was closed (each close of a dup): releases the fcntl locks of `lock_owner` on the file.
    pub async fn flush(self: &Arc<Self>, fh: &FileHandle, lock_owner: u64) -> Result<(), Errno> {
        self.unlock_closed(fh, lock_owner).await?;
        fh.take_lost()
    }

    /// The last descriptor is gone: drops the locks of the open file, and closes it at the MDT.
    pub async fn release(self: &Arc<Self>, fh: &FileHandle) -> Result<(), Errno> {
        if !fh.begin_close() {
            return Ok(());
        }
        if fh.writable() && !fh.inode.is_written() {
            self.settle_later(fh.fid(), &fh.inode.gate);
        }
        self.unlock_released(fh).await;
        let now = self.now();
        let (atime, change) = fh.times;
        let stale = self.opts.strict_atime
            || atime <= change
            || now.secs.saturating_sub(atime.secs) > RELATIME_S;
        let read = self.opts.atime
            && fh.was_read.load(Ordering::Relaxed)
            && fh.flags & libc::O_NOATIME as u32 == 0
            && stale;
        let size = if fh.writable() {
            fh.inode.size_to_tell()
        } else {
            None
        };
        let result = fh.at_mdt.close(read.then_some(now), size).await;
        if read {
            self.forget_attrs(fh.fid());
        }
        let mut open = self.open.lock();
        if open.get(&fh.fid()).is_some_and(|w| w.strong_count() <= 1) {
            open.remove(&fh.fid());
        }
        result
    }

    /// Everything written and every change of metadata is on disk when this returns.
    pub async fn fsync(self: &Arc<Self>, fh: &FileHandle, datasync: bool) -> Result<(), Errno> {
        self.still_open(fh).await?;
        self.flush_writes(&fh.inode).await;
        let layout = fh.inode.layout();
        let data = self.lov.sync(&layout, fh.fid());
        let done = match datasync && !fh.writable() {
            true => data.await,
            // also for fdatasync: the name and the layout that lead to the data may be new
            false => try_join(data, fh.at_mdt.mdc.sync(fh.fid())).await.map(drop),
        };
        fh.take_lost().and(done)
    }

    /// fallocate(2): mode 0, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE; others EOPNOTSUPP.
    pub async fn fallocate(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &FileHandle,
        mode: u32,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), Errno> {
        const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        if mode & !(KEEP | PUNCH | ZERO) != 0
            || mode & PUNCH != 0 && mode & KEEP == 0
            || mode & (PUNCH | ZERO) == PUNCH | ZERO
        {
            return Err(Errno::EOPNOTSUPP);
        }
        if len_bytes == 0 {
            return Err(Errno::EINVAL);
        }
        let end = end_of(offset, len_bytes)?;
        self.still_open(fh).await?;
        self.drop_privileges(cred, fh).await?;
        self.settle(fh.fid(), &fh.inode.gate).await;
        let attr = WriteAttr {
            owner: fh.inode.owner(),
            time: self.now(),
        };
        let layout = self.layout_for_write(fh, offset, end).await?;
        self.lov
            .fallocate(&layout, fh.fid(), mode, offset, end, &attr)
            .await
    }

    /// lseek(2) with SEEK_HOLE or SEEK_DATA; the offset found.
    pub async fn lseek(
        self: &Arc<Self>,
        fh: &FileHandle,
        offset: u64,
        whence: SeekWhence,
    ) -> Result<u64, Errno> {
        self.still_open(fh).await?;
        self.settle(fh.fid(), &fh.inode.gate).await;
        let layout = self.settled_layout(fh.fid(), fh.inode.layout()).await?;
        layout.check()?;
        if layout.form == Form::None {
            let size = self.md_inode(fh.fid()).await?.attr.size;
            return if offset < size && whence == SeekWhence::Hole {
                Ok(offset)
            } else {
                Err(Errno::ENXIO)
            };
        }
        self.lov
            .seek(&layout, fh.fid(), offset, whence == SeekWhence::Hole)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags() {
        assert_eq!(mds_flags(libc::O_RDONLY as u32), open::READ);
        assert_eq!(
            mds_flags(libc::O_TRUNC as u32),
            open::READ | open::TRUNC,
            "who cuts is no writer afterwards"
        );
        assert_eq!(
            mds_flags((libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL) as u32),
            open::WRITE | open::CREAT | open::EXCL
        );
        assert_eq!(
            mds_flags((libc::O_RDWR | libc::O_TRUNC) as u32),
            open::READ | open::WRITE | open::TRUNC
        );
        assert_eq!(
            mds_flags((libc::O_WRONLY | libc::O_APPEND | libc::O_SYNC) as u32),
            open::WRITE | open::APPEND | open::SYNC
        );
    }
}
