//! Writes with O_APPEND: to where the file ends when they are done, whoever else appends.
//!
//! Invariant: the end is found and written to under locks on every object: those of a cover for writes that has all of them, or locks of its own
//! (`ll_file_io_generic` in `lustre/llite/file.c` does the latter).

use std::sync::Arc;

use coral_buffers::Payload;
use coral_wire::ldlm::LdlmMode;
use coral_wire::mds::layout_intent;

use super::attributes::Attributes;
use super::covers::{OpenInode, Writing};
use super::drains::Drains;
use super::finish::finish;
use super::handle::{FileHandle, end_of};
use super::layouts::Layouts;
use super::servers::Servers;
use super::writeback::{Kept, Need, WriteBack};
use crate::error::Error;
use crate::lov::{Form, Locks};
use crate::osc::WriteAttr;

/// Appends.
pub(super) struct Appends {
    pub servers: Arc<Servers>,
    pub layouts: Arc<Layouts>,
    pub attributes: Arc<Attributes>,
    pub drains: Arc<Drains>,
    pub writeback: Arc<WriteBack>,
}

impl Appends {
    pub async fn append(
        self: &Arc<Self>,
        fh: &FileHandle,
        data: Payload,
        attr: &WriteAttr,
    ) -> Result<(), Error> {
        let inode = &fh.inode;
        let worth = fh.count_write() && !fh.is_sync();
        if worth && self.append_kept(inode, &data, attr).await? {
            return Ok(());
        }
        // who gives up half way must not let others come before what he has sent
        let (me, inode, attr) = (self.clone(), inode.clone(), *attr);
        finish(async move { me.append_sync(&inode, data, &attr).await }).await
    }

    /// Keeps an append back under the cover for writes. False: there is none, nor can there be one now.
    async fn append_kept(
        self: &Arc<Self>,
        inode: &Arc<OpenInode>,
        data: &Payload,
        attr: &WriteAttr,
    ) -> Result<bool, Error> {
        let layout = self.layouts.now(inode).await?;
        if !self.writeback.may_keep(&layout) {
            return Ok(false);
        }
        let _turn = inode.append.lock().await;
        // no write of this client moves the end meanwhile
        let _whole = inode.writes.lock(0..u64::MAX).await;
        loop {
            let layout = self.layouts.now(inode).await?;
            layout.check()?;
            if !self.writeback.may_keep(&layout) {
                return Ok(false);
            }
            match inode.gate.begin_write(true) {
                Writing::Under(cover) => {
                    let Some((end, since)) = self.writeback.end_under(&cover, inode.fid).await?
                    else {
                        return Ok(false);
                    };
                    let after = end_of(end, data.len() as u64)?;
                    match self
                        .writeback
                        .keep(cover, inode.fid, end, data, attr, Some(since))
                        .await?
                    {
                        Kept::All => {
                            inode.gate.write_kept();
                            inode.wrote(after);
                            return Ok(true);
                        }
                        Kept::Again => inode.gate.may_write().await,
                        Kept::Full(osc, bytes) => osc.grant().room(bytes).await,
                        Kept::Uncovered => return Ok(false),
                        Kept::NoGrant(..) => {
                            // without grant it would be written under what the cover still has of its locks
                            inode.gate.contended();
                            return Ok(false);
                        }
                    }
                }
                Writing::Acquire(t) => {
                    // what was got may be asked back at once: servers are asked for the end first
                    drop(self.writeback.obtain(inode, t, Need::Whole).await);
                }
                Writing::Wait => inode.gate.may_write().await,
                Writing::Drain | Writing::Sync(_) => return Ok(false),
            }
        }
    }

    /// Appends under locks of its own.
    async fn append_sync(
        self: &Arc<Self>,
        inode: &Arc<OpenInode>,
        data: Payload,
        attr: &WriteAttr,
    ) -> Result<(), Error> {
        let _turn = inode.append.lock().await;
        let fid = inode.fid;
        // the kernel does not know where this goes, so it cannot drop the pages there; none may come back before it is done
        let _alone = inode.gate.begin_append();
        self.drains.drop_cover(inode).await;
        loop {
            let layout = self.layouts.now(inode).await?;
            layout.check()?;
            let locks = self
                .servers
                .lov
                .lock_objects(&layout, fid, LdlmMode::PW)
                .await?;
            if self.layouts.moved(inode, &layout, 0, u64::MAX).await? {
                continue;
            }
            let held = Locks::of_objects(locks);
            let size = match layout.form {
                Form::None => self.attributes.md_inode(fid).await?.attr.size,
                _ => self.servers.lov.getattr_locked(&layout, fid).await?.size,
            };
            let end = end_of(size, data.len() as u64)?;
            if layout.needs_intent(size, end) {
                drop(held);
                let layout = self
                    .layouts
                    .instantiate(fid, layout_intent::WRITE, size, end)
                    .await?;
                inode.set_layout(layout);
                continue;
            }
            let done = self
                .servers
                .lov
                .write(&layout, fid, size, data.clone(), attr, &held)
                .await;
            drop(held);
            if !self.layouts.moved(inode, &layout, size, end).await? {
                inode.wrote(end);
                return done;
            }
        }
    }
}
