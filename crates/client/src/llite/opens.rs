//! Opening and closing files.
//!
//! Lustre: `lustre/llite/file.c`, `ll_atomic_open` in `lustre/llite/namei.c`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::mds::open;

use super::attributes::{Attributes, COVERED_TTL};
use super::cache::{Cache, Mark};
use super::changes::Changes;
use super::covers::{Covers, OpenFiles, OpenInode};
use super::drains::Drains;
use super::finish::finish;
use super::flock::FileLocks;
use super::foresight::Foresight;
use super::handle::{FileHandle, again_bits, mds_flags};
use super::identities::Identities;
use super::inode::MdInode;
use super::kept::KeptOpens;
use super::late::{LateAttrs, LateFile};
use super::late_names::Sample;
use super::mdt_open::MdtOpen;
use super::name::check_name;
use super::places::{MOVES_MAX, Missed, Place, Places};
use super::reopen::Reopen;
use super::servers::Servers;
use super::setattr::SetAttrs;
use super::types::{Attr, Cred, Entry};
use super::untold::UntoldOpens;
use crate::error::{Error, Refusal};
use crate::mdc::{Ids, Mdc, Opened};
use crate::osc::ObjectAttr;

/// `O_LARGEFILE` of the kernel, which sets it for every 64-bit program; to `libc` it is 0 there. It says nothing of an open.
const LARGEFILE: u32 = 0o100_000;

/// What came of an open that may create.
enum Created {
    Here(Entry, Arc<FileHandle>),
    /// What has the name lies on another MDT than the name. `None`: the name went before it was asked what it is.
    Elsewhere(Option<Fid>),
}

/// Opens and closes files.
pub(super) struct Opens {
    pub late: Arc<LateAttrs>,
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub cache: Arc<Cache>,
    pub covers: Arc<Covers>,
    pub open: Arc<OpenFiles>,
    pub reopen: Arc<Reopen>,
    pub foresight: Arc<Foresight>,
    pub kept: Arc<KeptOpens>,
    pub untold: Arc<UntoldOpens>,
    pub changes: Arc<Changes>,
    pub attributes: Arc<Attributes>,
    pub places: Arc<Places>,
    pub drains: Arc<Drains>,
    pub setattrs: Arc<SetAttrs>,
    pub locks: Arc<FileLocks>,
}

impl Opens {
    /// What open handles on the object share.
    fn open_inode(&self, md: &MdInode, created: bool) -> Arc<OpenInode> {
        let fid = md.attr.fid;
        let (inode, was_open) = self.open.of_or_make(fid, || {
            let objects = || self.cache.known(fid)?.objects.map(|o| o.size);
            let size = match created {
                true => Some(0),
                false => objects().or(md.rough_size),
            };
            OpenInode::new(md, size, self.covers.gate(fid))
        });
        if was_open {
            inode.set_layout(md.layout.clone());
            inode.set_owner(md.attr.owner());
        }
        inode
    }

    /// A handle on what `ids` have just opened at `mdc`.
    pub(super) async fn handle(
        self: &Arc<Self>,
        (mdc, ids): (Arc<Mdc>, &Ids),
        o: &Opened,
        md: &MdInode,
        flags: u32,
    ) -> Arc<FileHandle> {
        let at_mdt = MdtOpen::new(mdc, o, again_bits(flags), ids, &md.attr);
        self.handle_on(at_mdt, md, flags, o.created).await
    }

    pub(super) async fn handle_on(
        self: &Arc<Self>,
        at_mdt: Arc<MdtOpen>,
        md: &MdInode,
        flags: u32,
        created: bool,
    ) -> Arc<FileHandle> {
        let inode = self.open_inode(md, created);
        // the file may be written from here on
        if let Some(made) = self.kept.take_made(md.attr.fid) {
            self.kept.close_soon(made);
        }
        if !at_mdt.mdc.coral() && self.cache.known(md.attr.fid).is_none() {
            // no lock came along that would tell of a change
            inode.layout_lost();
        }
        let writable = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if writable {
            inode.writers.fetch_add(1, Ordering::Relaxed);
            self.drains.writer_opened(&inode).await;
        }
        let number = self.locks.fresh_number();
        Arc::new(FileHandle::new(inode, at_mdt, md, flags, created, number))
    }

    /// Opens, creating when there is no such name (`O_EXCL` in `flags`: EEXIST when there is). `flags` are `O_*`.
    pub async fn create(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Result<(Entry, Arc<FileHandle>), Error> {
        check_name(name)?;
        let mut missed = Missed::none();
        loop {
            let at = self.places.of(parent, name).await?;
            missed.is_new(&at)?;
            let done = self.create_here_or_elsewhere(cred, parent, at, name, (mode, flags));
            match done.await {
                Err(e) if self.places.may_have_moved(&[parent], &e) => missed.at(at, e),
                done => return done,
            }
        }
    }

    async fn create_here_or_elsewhere(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        at: Place,
        name: &[u8],
        how: (u32, u32),
    ) -> Result<(Entry, Arc<FileHandle>), Error> {
        let mut lost = Refusal::NoName.into();
        for _ in 0..MOVES_MAX {
            match self.create_at(cred, parent, at, name, how).await? {
                Created::Here(entry, fh) => return Ok((entry, fh)),
                Created::Elsewhere(None) => {}
                // what is gone has lost the name meanwhile, and whoever has it now is opened
                Created::Elsewhere(Some(fid)) => {
                    match self.open_elsewhere(cred, fid, how.1).await {
                        Err(e) if e.is_gone() => lost = e,
                        done => return done,
                    }
                }
            }
        }
        Err(lost)
    }

    /// The same at one place of the directory that the caller knows as `whole`.
    async fn create_at(
        self: &Arc<Self>,
        cred: &Cred,
        whole: Fid,
        at: Place,
        name: &[u8],
        (mode, flags): (u32, u32),
    ) -> Result<Created, Error> {
        let parent = at.dir;
        self.late.sent_of_name(&self.cache, parent, name).await;
        let ids = self.ids.of(cred, &[parent]).await;
        let mdc = self.servers.lmv.of(parent).await?;
        let fid = mdc.new_fid().await?;
        let mode = mode & 0o7777 | libc::S_IFREG;
        let bits = mds_flags(flags | libc::O_CREAT as u32);
        let (me, called) = (self.clone(), Bytes::copy_from_slice(name));
        let lent = mdc.lent(parent).map(|lock| lock.cookie());
        let so_far = self.attributes.late_names.mark();
        let by = mdc.clone();
        let done = finish(async move {
            let (mdc, name) = (by, called);
            let want_lock = me.cache.enabled();
            let mark = me.cache.begin_read(parent);
            let _change = me.changes.begin(&[(parent, &name)]);
            let now = me.servers.now();
            let late = me.late.expect(fid);
            let ask = || {
                mdc.open(
                    &ids, parent, &name, fid, bits, mode, now, at.version, want_lock,
                )
            };
            let opened = me.kept.with_room(&mdc, ask).await;
            if !opened.as_ref().is_ok_and(|o| o.keeps) {
                me.late.closed(&late);
            }
            let o = match opened {
                Err(e) if e.is(Errno::EREMOTE) => {
                    return match mdc.getattr_name(&ids, parent, &name).await {
                        Ok(named) => Ok(Err(Some(named.body.fid1))),
                        Err(e) if e.is(Errno::ENOENT) => Ok(Err(None)),
                        Err(e) => Err(e.into()),
                    };
                }
                opened => opened?,
            };
            let (created, more) = (o.created, o.more);
            let (fh, md) = me
                .take_in((&mdc, &ids), (parent, &name), o, (mark, flags), late)
                .await?;
            Ok::<_, Error>(Ok((fh, md, created, more)))
        })
        .await?;
        let (fh, md, created, more) = match done {
            Ok(opened) => opened,
            Err(fid) => return Ok(Created::Elsewhere(fid)),
        };
        match self.attr_after_open(cred, &fh, &md, created).await {
            Ok(attr) => {
                let mut entry = self.attributes.entry(attr);
                // the caller knows no shards
                let fid = md.attr.fid;
                if parent != whole && !self.cache.is_named_to_caller(parent, whole, name, fid) {
                    entry.entry_ttl = Duration::ZERO;
                }
                if !created {
                    // the kernel may know the file already, and would take this in whatever it was told meanwhile
                    entry = Entry::for_now(entry.attr);
                } else if self.shows_empty(&fh) {
                    entry.attr_ttl = COVERED_TTL;
                }
                // held all the time, so nobody else has changed what the file inherited
                let held = |lock: u64| mdc.lent(parent).is_some_and(|l| l.cookie() == lock);
                if let Some(lock) = lent.filter(|lock| more && held(*lock)) {
                    let sample = Sample {
                        ids,
                        mode,
                        lock,
                        entry,
                    };
                    self.attributes.late_names.told(so_far, parent, sample);
                }
                Ok(Created::Here(entry, fh))
            }
            Err(e) => {
                self.release(&fh).await.ok();
                Err(e)
            }
        }
    }

    /// Takes in what came of an open by `ids` that may have made `name` in `parent`, and was asked for at `mark`; a handle on it.
    pub(super) async fn take_in(
        self: &Arc<Self>,
        (mdc, ids): (&Arc<Mdc>, &Ids),
        (parent, name): (Fid, &[u8]),
        mut o: Opened,
        (mark, flags): (Mark, u32),
        late: Arc<LateFile>,
    ) -> Result<(Arc<FileHandle>, MdInode), Error> {
        let md = MdInode::read(mdc, &o.attrs)?;
        let fid = md.attr.fid;
        self.attributes.learn(mdc, mark, &md, o.lock.take());
        if o.created {
            self.changes.made(mdc, parent, o.dir.as_ref(), name, fid);
            self.cache.learn_uncapped(mark, fid, true);
        }
        self.ids.hint(fid, md.attr.gid);
        let fh = self.handle((mdc.clone(), ids), &o, &md, flags).await;
        if o.keeps {
            self.begin_keeping(&fh, late, ObjectAttr::default());
        }
        Ok((fh, md))
    }

    /// The caller may remember the attributes of the file that `fh` has just made, with its size.
    pub(super) fn shows_empty(&self, fh: &FileHandle) -> bool {
        self.changes.are_heard() && self.size_can_be_known(fh) && self.late.show_empty(fh.fid())
    }

    /// Attributes of the file that `fh` has made may be kept back.
    pub(super) fn begin_keeping(&self, fh: &FileHandle, late: Arc<LateFile>, objects: ObjectAttr) {
        let fid = fh.fid();
        late.begin(fh.at_mdt.clone(), objects);
        if fh.late.set(late).is_err() || self.cache.known(fid).is_none() {
            // the lock has gone meanwhile
            self.late.end(fid);
        }
    }

    /// What has the name lies on another MDT than the name: it is there, and opened by its FID.
    async fn open_elsewhere(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        flags: u32,
    ) -> Result<(Entry, Arc<FileHandle>), Error> {
        if flags & libc::O_EXCL as u32 != 0 {
            return Err(Refusal::NameTaken.into());
        }
        let flags = flags & !libc::O_CREAT as u32;
        let fh = self.open_fid(cred, fid, flags).await?;
        self.cut_at_open(cred, &fh, flags).await?;
        let found = async {
            let md = self.attributes.md_inode(fid).await?;
            let attr = self.attributes.full(&md).await?;
            Ok::<_, Error>(self.attributes.entry(attr))
        };
        match found.await {
            Ok(entry) => Ok((Entry::for_now(entry.attr), fh)),
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
    ) -> Result<Attr, Error> {
        if created {
            return Ok(md.fresh());
        }
        if fh.flags() & libc::O_TRUNC as u32 != 0 && md.attr.is_file() {
            return Ok(self.setattrs.truncate(cred, fh, 0).await?.attr);
        }
        self.attributes.full(md).await
    }

    /// Opens an existing file; `O_TRUNC` works, permissions are checked by the MDT.
    pub async fn open(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        flags: u32,
    ) -> Result<Arc<FileHandle>, Error> {
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL) as u32;
        if mds_flags(flags) == open::READ {
            self.foresight.opened(fid);
        }
        // opened with other flags it is open once more: until then what was opened keeps the file from being destroyed
        let opened = self.reopen.take(cred.pid, fid);
        let fh = match &opened {
            Some(fh) if (fh.flags() ^ flags) & !LARGEFILE == 0 => fh.clone(),
            _ => self.open_fid(cred, fid, flags).await.inspect_err(|e| {
                if e.is_gone() {
                    self.reopen.lost(cred.pid, flags);
                }
            })?,
        };
        drop(opened);
        self.cut_at_open(cred, &fh, flags).await?;
        Ok(fh)
    }

    /// Cuts what was opened, if it is to be; closed when that fails.
    async fn cut_at_open(
        self: &Arc<Self>,
        cred: &Cred,
        fh: &Arc<FileHandle>,
        flags: u32,
    ) -> Result<(), Error> {
        if flags & libc::O_TRUNC as u32 != 0
            && fh.at_mdt.mode & libc::S_IFMT == libc::S_IFREG
            && let Err(e) = self.setattrs.truncate(cred, fh, 0).await
        {
            self.release(fh).await.ok();
            return Err(e);
        }
        Ok(())
    }

    pub(super) async fn open_fid(
        self: &Arc<Self>,
        cred: &Cred,
        fid: Fid,
        flags: u32,
    ) -> Result<Arc<FileHandle>, Error> {
        self.late.sent(fid).await;
        let ids = self.ids.of(cred, &[fid]).await;
        if let Some(fh) = self.handle_kept(cred, &ids, fid, flags).await {
            return Ok(fh);
        }
        let mdc = self.servers.lmv.of(fid).await?;
        let me = self.clone();
        finish(async move {
            // a lock that is held already need not be given again
            let want_lock = me.cache.enabled() && me.cache.known(fid).is_none();
            let mark = me.cache.begin_read(fid);
            let (bits, now) = (mds_flags(flags), me.servers.now());
            let ask = || mdc.open(&ids, fid, b"", fid, bits, 0, now, 0, want_lock);
            let mut o = me.kept.with_room(&mdc, ask).await?;
            let md = MdInode::read(&mdc, &o.attrs)?;
            me.attributes.learn(&mdc, mark, &md, o.lock.take());
            me.ids.hint(md.attr.fid, md.attr.gid);
            Ok::<_, Error>(me.handle((mdc, &ids), &o, &md, flags).await)
        })
        .await
    }

    /// A descriptor was closed (each close of a dup): releases the fcntl locks of `lock_owner` on the file.
    pub async fn flush(self: &Arc<Self>, fh: &FileHandle, lock_owner: u64) -> Result<(), Error> {
        self.locks.unlock_closed(fh, lock_owner).await?;
        fh.inode.lost.tell_close(&fh.told)
    }

    /// The last descriptor is gone: drops the locks of the open file, and closes it at the MDT.
    pub async fn release(self: &Arc<Self>, fh: &FileHandle) -> Result<(), Error> {
        if !fh.begin_close() {
            return Ok(());
        }
        if let Some(late) = fh.late.get() {
            // before the file's locks go, for whoever waits for one
            late.data_sent().await;
        }
        if fh.writable() && !fh.inode.is_written() {
            self.drains.settle_later(fh.fid(), &fh.inode.gate);
        }
        self.locks.unlock_released(fh).await;
        if let Some(late) = fh.late.get() {
            if fh.inode.data.quiet() == Some(0) {
                late.sent().await; // whoever takes what may be kept now finds them there
            }
            let kept = self.keep_made(fh, late);
            // the kernel forgets the size of what it writes
            if kept || fh.inode.rough_size() != Some(0) {
                late.told_otherwise();
            }
            if self.late.end_of(late) {
                self.changes.forgotten().await;
            }
            if kept {
                late.sent().await;
                self.late.closed(late);
                self.open.closed(fh.fid());
                return Ok(());
            }
        }
        let now = self.servers.now();
        let read = self.servers.opts.atime && fh.moves_atime(now, self.servers.opts.strict_atime);
        let size = if fh.writable() {
            fh.inode.size_to_tell()
        } else {
            None
        };
        let told = read && fh.is_atime_taken(now);
        let untold = fh.at_mdt.is_untold();
        let result = match !told && (untold || self.keep(fh)) {
            true if untold => fh.at_mdt.close(None, None).await,
            true => Ok(()),
            false => {
                let late = fh.late.get();
                let closed = match late.filter(|_| !read) {
                    Some(late) => late.close(&fh.at_mdt, size).await,
                    None => {
                        if let Some(late) = late {
                            late.sent().await;
                        }
                        fh.at_mdt.close(read.then_some(now), size).await
                    }
                };
                if let (Ok(()), Some(size)) = (&closed, size) {
                    self.cache.told_size(fh.fid(), size);
                }
                if read {
                    self.changes.forget_attrs(fh.fid());
                }
                closed
            }
        };
        if let Some(late) = fh.late.get() {
            self.late.closed(late);
        }
        self.untold.closed(&fh.at_mdt);
        self.open.closed(fh.fid());
        result
    }
}
