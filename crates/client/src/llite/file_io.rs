//! Reading, writing and syncing open files.
//!
//! Data goes straight to the OSTs under locks the servers take, or is dirty for a while ([`super::writeback`]). Appends:
//! [`super::append`]. Pages of the kernel: [`super::pages`].
//!
//! Lustre: `lustre/llite/file.c`, `lustre/llite/rw26.c`.

use std::sync::Arc;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_wire::fid::Fid;
use coral_wire::mds::layout_intent;
use futures_util::TryFutureExt;
use futures_util::future::try_join;

use super::append::Appends;
use super::attributes::Attributes;
use super::drains::Drains;
use super::flusher::Flusher;
use super::handle::{FileHandle, end_of};
use super::late::{LateAttrs, LateFile};
use super::layouts::Layouts;
use super::pages::PageCache;
use super::privileges::Privileges;
use super::servers::Servers;
use super::streams::{InARow, Streams};
use super::strides::StrideReads;
use super::types::{Cred, SeekWhence};
use super::writeback::WriteBack;
use crate::error::{Error, Refusal};
use crate::lov::{Form, Locks};
use crate::osc::WriteAttr;

/// Moves the data of open files.
pub(super) struct FileIo {
    pub late: Arc<LateAttrs>,
    pub servers: Arc<Servers>,
    pub layouts: Arc<Layouts>,
    pub attributes: Arc<Attributes>,
    pub flusher: Arc<Flusher>,
    pub drains: Arc<Drains>,
    pub writeback: Arc<WriteBack>,
    pub appends: Arc<Appends>,
    pub pages: Arc<PageCache>,
    pub streams: Streams,
    pub strides: StrideReads,
    pub privileges: Arc<Privileges>,
}

impl FileIo {
    /// Reads up to `len_bytes`; short only at the end of the file.
    pub async fn read(
        &self,
        fh: &FileHandle,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, Error> {
        fh.set_read();
        fh.still_open(self.servers.now()).await?;
        self.late.data_sent(fh.fid()).await;
        if let Some(cover) = fh.inode.gate.writes() {
            let len = len_bytes as usize;
            let under = self.writeback.read(&cover, fh.fid(), offset, len).await?;
            if let Some(data) = under {
                return Ok(data);
            }
        }
        let around = fh.flags() & libc::O_DIRECT as u32 != 0;
        if !around && let Some(data) = self.attributes.data_known(fh.fid(), offset, len_bytes) {
            return Ok(data);
        }
        loop {
            let before = self.layouts.now(&fh.inode).await?;
            let done = self.read_once(fh, offset, len_bytes).await;
            if !self
                .layouts
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
    ) -> Result<Payload, Error> {
        let fid = fh.fid();
        let mut layout = self.layouts.now(&fh.inode).await?;
        layout.check()?;
        if layout.needs_init(offset, offset.saturating_add(len_bytes as u64)) {
            layout = self.layouts.fetch(fid, layout_intent::ACCESS, 0, 0).await?;
            fh.inode.set_layout(layout.clone());
        }
        if layout.form == Form::None {
            return self.read_nothing(fid, offset, len_bytes).await;
        }
        let len_bytes = match self.servers.lov.tells_the_end() {
            true => len_bytes as usize,
            false => self.inside(fid, offset, len_bytes).await?,
        };
        let locks = match fh.inode.gate.writes() {
            Some(_) => Locks::beside(),
            None => Locks::default(),
        };
        self.servers
            .lov
            .read(&layout, fid, offset, len_bytes, &locks)
            .await
    }

    /// Bytes of `offset..offset + len_bytes` that are before the end of the file. A stock OST fills the last page of a read
    /// with zeros and leaves it to the client, which has the size under its locks, to know where the file ends
    /// (`osd_read_prep` in `lustre/osd-ldiskfs/osd_io.c`). The size is asked for before the read: what grows meanwhile is
    /// not there yet, and no zeros are taken for data.
    async fn inside(&self, fid: Fid, offset: u64, len_bytes: u32) -> Result<usize, Error> {
        let md = self.attributes.md_inode(fid).await?;
        let size = self.attributes.full(&md).await?.size;
        Ok(size.saturating_sub(offset).min(len_bytes as u64) as usize)
    }

    /// A file without objects is all hole, as long as the MDT says.
    async fn read_nothing(&self, fid: Fid, offset: u64, len_bytes: u32) -> Result<Payload, Error> {
        let size = self.attributes.md_inode(fid).await?.attr.size;
        let n = size.saturating_sub(offset).min(len_bytes as u64);
        Ok(if n == 0 {
            Payload::new()
        } else {
            Payload::from(Bytes::from(vec![0; n as usize]))
        })
    }

    /// Fills pages of the kernel's cache, which holds them locked: [`FileIo::read`] under the file's cover.
    pub async fn read_pages(
        &self,
        fh: &FileHandle,
        offset: u64,
        len_bytes: u32,
    ) -> Result<Payload, Error> {
        fh.set_read();
        fh.still_open(self.servers.now()).await?;
        self.late.data_sent(fh.fid()).await;
        match self.pages.admit(&fh.inode, offset, len_bytes).await? {
            Some(c) => {
                if let Some(data) = self.attributes.data_known(fh.fid(), offset, len_bytes) {
                    return Ok(data);
                }
                let read = offset..offset.saturating_add(u64::from(len_bytes));
                let may_begin = !fh.strides.are_followed();
                let of_it = (&fh.stream, &fh.inode);
                let ahead = match self.streams.read(of_it, may_begin, &c, read).await {
                    InARow::Served(data) => Some(data),
                    InARow::Unserved => None,
                    InARow::No => {
                        let of_it = (&fh.strides, &fh.inode);
                        self.strides.read(of_it, &c, offset, len_bytes).await
                    }
                };
                if let Some(data) = ahead {
                    return Ok(data);
                }
                self.servers
                    .lov
                    .read(&c.layout, fh.fid(), offset, len_bytes as usize, &c.held())
                    .await
            }
            None => self.read(fh, offset, len_bytes).await,
        }
    }

    /// Writes all of `data` at `offset` (at the end, whatever `offset` says, when opened with O_APPEND); bytes written.
    pub async fn write(
        &self,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
    ) -> Result<usize, Error> {
        self.write_at(
            cred,
            fh,
            offset,
            data,
            fh.flags() & libc::O_APPEND as u32 != 0,
        )
        .await
    }

    /// [`FileIo::write`] with `append` said by the caller: a FUSE mount writes mmapped pages back through any handle, and
    /// fcntl(F_SETFL) may change O_APPEND after the open.
    pub async fn write_at(
        &self,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: Payload,
        append: bool,
    ) -> Result<usize, Error> {
        let len = data.len();
        if len == 0 {
            return Ok(0);
        }
        fh.inode.lost.tell_write(&fh.told)?;
        fh.still_open(self.servers.now()).await?;
        if !append && self.hold(cred, fh, offset, &data).await? {
            return Ok(len);
        }
        self.late.sent_before_data(fh.fid()).await;
        let _changing = fh.inode.data.begin();
        self.privileges.drop_for_write(cred, fh).await?;
        let attr = WriteAttr::of(fh.inode.owner(), self.servers.now());
        if append {
            self.appends.append(fh, data, &attr).await?;
        } else {
            let end = offset.saturating_add(len as u64);
            self.writeback.write(fh, offset, data, &attr).await?;
            fh.inode.wrote(end);
        }
        if fh.late.get().is_some() {
            self.late.data_written(fh.fid());
        }
        if fh.flags() & libc::O_DSYNC as u32 != 0 {
            self.fsync(fh, fh.flags() & (libc::O_SYNC & !libc::O_DSYNC) as u32 == 0)
                .await?;
        }
        Ok(len)
    }

    /// Keeps the beginning of a file that was just made back; false: `data` is to be written.
    async fn hold(
        &self,
        cred: &Cred,
        fh: &FileHandle,
        offset: u64,
        data: &Payload,
    ) -> Result<bool, Error> {
        let may = |late: &&Arc<LateFile>| late.may_hold(&fh.inode, offset, data.len());
        let Some(late) = fh.late.get().filter(|l| !fh.is_sync() && may(l)) else {
            return Ok(false);
        };
        self.privileges.drop_for_write(cred, fh).await?;
        let end = end_of(offset, data.len() as u64)?;
        let layout = self.layouts.for_write(&fh.inode, offset, end).await?;
        let Some(object) = self.servers.lov.beginning(&layout, fh.fid(), end).await? else {
            return Ok(false);
        };
        let attr = WriteAttr::of(fh.inode.owner(), self.servers.now());
        let held = late.hold(&fh.inode, object, offset, data, &attr);
        if held {
            fh.count_write();
            fh.inode.wrote(end);
            self.late.held_back(fh.fid());
        }
        Ok(held)
    }

    /// Everything written and every change of metadata is on disk when this returns.
    pub async fn fsync(&self, fh: &FileHandle, datasync: bool) -> Result<(), Error> {
        fh.still_open(self.servers.now()).await?;
        self.late.sent(fh.fid()).await;
        self.flusher.flush(&fh.inode).await;
        let layout = fh.inode.layout();
        let data = self.servers.lov.sync(&layout, fh.fid());
        let done = match datasync && !fh.writable() {
            true => data.await,
            // also for fdatasync: the name and the layout that lead to the data may be new
            false => {
                let names = fh.at_mdt.mdc.sync(fh.fid()).map_err(Error::from);
                try_join(data, names).await.map(drop)
            }
        };
        fh.inode.lost.tell_fsync(&fh.told).and(done)
    }

    /// fallocate(2): mode 0, FALLOC_FL_KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE; others EOPNOTSUPP.
    pub async fn fallocate(
        &self,
        cred: &Cred,
        fh: &FileHandle,
        mode: u32,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), Error> {
        const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        if mode & !(KEEP | PUNCH | ZERO) != 0
            || mode & PUNCH != 0 && mode & KEEP == 0
            || mode & (PUNCH | ZERO) == PUNCH | ZERO
        {
            return Err(Refusal::FallocateMode.into());
        }
        if len_bytes == 0 {
            return Err(Refusal::BadRange.into());
        }
        let end = end_of(offset, len_bytes)?;
        fh.still_open(self.servers.now()).await?;
        self.late.sent(fh.fid()).await;
        let _changing = fh.inode.data.begin();
        self.privileges.drop_for_write(cred, fh).await?;
        self.drains.settle(fh.fid(), &fh.inode.gate).await;
        let attr = WriteAttr::of(fh.inode.owner(), self.servers.now());
        let layout = self.layouts.for_write(&fh.inode, offset, end).await?;
        // one that fails may have grown the file, and the kernel forgets its size after one that does not
        self.late.forget_size(fh.fid());
        self.servers
            .lov
            .fallocate(&layout, fh.fid(), mode, offset, end, &attr)
            .await
    }

    /// lseek(2) with SEEK_HOLE or SEEK_DATA; the offset found.
    pub async fn lseek(
        &self,
        fh: &FileHandle,
        offset: u64,
        whence: SeekWhence,
    ) -> Result<u64, Error> {
        fh.still_open(self.servers.now()).await?;
        self.late.data_sent(fh.fid()).await;
        self.drains.settle(fh.fid(), &fh.inode.gate).await;
        let layout = self.layouts.now(&fh.inode).await?;
        let layout = self.layouts.settled(fh.fid(), layout).await?;
        layout.check()?;
        if layout.form == Form::None {
            let size = self.attributes.md_inode(fh.fid()).await?.attr.size;
            return if offset < size && whence == SeekWhence::Hole {
                Ok(offset)
            } else {
                Err(Refusal::NoData.into())
            };
        }
        self.servers
            .lov
            .seek(&layout, fh.fid(), offset, whence == SeekWhence::Hole)
            .await
    }
}
