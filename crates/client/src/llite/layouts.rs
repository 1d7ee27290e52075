//! Layouts of files: fetched, instantiated, and asked for again once their lock went.

use std::sync::Arc;

use coral_wire::fid::Fid;
use coral_wire::mds::{layout_intent, open};

use super::covers::{OpenFiles, OpenInode};
use super::inode::MdInode;
use super::servers::Servers;
use crate::error::Error;
use crate::lov::{FileLayout, Form};
use crate::mdc::{Ids, Open};

/// Asks MDTs for layouts.
pub(super) struct Layouts {
    servers: Arc<Servers>,
    open: Arc<OpenFiles>,
}

impl Layouts {
    /// For the files of one mount.
    pub fn new(servers: Arc<Servers>, open: Arc<OpenFiles>) -> Self {
        Self { servers, open }
    }

    /// A layout with components still to be instantiated may have grown elsewhere since: ask again.
    pub async fn settled(
        &self,
        fid: Fid,
        layout: Arc<FileLayout>,
    ) -> Result<Arc<FileLayout>, Error> {
        if layout.form == Form::None || !layout.needs_init(0, u64::MAX) {
            return Ok(layout);
        }
        if let Some(open) = self.open.of(fid)
            && open.layout_losses.open().is_none()
            && self.servers.lmv.of(fid).await?.holds_layout(fid)
        {
            return Ok(open.layout());
        }
        self.fetch(fid, layout_intent::ACCESS, 0, 0).await
    }

    /// The layout now, after instantiating `start..end` for a write or truncate.
    pub async fn fetch(
        &self,
        fid: Fid,
        op: u32,
        start: u64,
        end: u64,
    ) -> Result<Arc<FileLayout>, Error> {
        let mdc = self.servers.lmv.of(fid).await?;
        let (raw, lock) = mdc.layout(fid, op, start, end).await?;
        // Kept, the lock tells when the layout changes; without one it must be asked for again. To give back one that would be kept is to lose it: the next I/O would ask once more.
        let kept = op == layout_intent::ACCESS && lock.as_ref().is_some_and(|l| !l.is_blocked());
        if !kept {
            mdc.drop_lock(lock);
        }
        if !kept && let Some(open) = self.open.of(fid) {
            open.layout_lost();
        }
        let layout = FileLayout::decode(&raw);
        let layout = layout.map_err(|what| Error::BadLayout { fid, what })?;
        Ok(Arc::new(layout))
    }

    /// The layout, asked for again if its lock was lost.
    pub async fn now(&self, inode: &OpenInode) -> Result<Arc<FileLayout>, Error> {
        if let Some(lost) = inode.layout_losses.open() {
            match self.fetch(inode.fid, layout_intent::ACCESS, 0, 0).await {
                Ok(l) => inode.set_layout(l),
                // the last name is gone with an MDT that answers no more about it: what was known still holds
                Err(e) if e.is_gone() => {}
                Err(e) => return Err(e),
            }
            inode.layout_losses.made_good(lost);
        }
        Ok(inode.layout())
    }

    /// The data of `start..end` were given other objects while they were read or written by `layout`: what was done has to be
    /// done again. Whoever moves a file (`lfs migrate`) locks its objects against others meanwhile, so a write waits for him
    /// and then goes to objects that are nobody's any more. Others may have learnt the new layout by then. Lustre: `vvp_io_fini` looks at the layout's generation.
    pub async fn moved(
        &self,
        inode: &OpenInode,
        layout: &FileLayout,
        start: u64,
        end: u64,
    ) -> Result<bool, Error> {
        Ok(!self.now(inode).await?.same_objects(layout, start, end))
    }

    /// The layout, with objects everywhere in `start..end`.
    pub async fn for_write(
        &self,
        inode: &OpenInode,
        start: u64,
        end: u64,
    ) -> Result<Arc<FileLayout>, Error> {
        let mut layout = self.now(inode).await?;
        layout.check()?;
        if !layout.needs_intent(start, end) {
            return Ok(layout);
        }
        layout = self
            .instantiate(inode.fid, layout_intent::WRITE, start, end)
            .await?;
        inode.set_layout(layout.clone());
        Ok(layout)
    }

    /// Asks the MDT for objects in `start..end`. A file that never had a layout gets one by being opened for writing.
    pub async fn instantiate(
        &self,
        fid: Fid,
        op: u32,
        start: u64,
        end: u64,
    ) -> Result<Arc<FileLayout>, Error> {
        let layout = self.fetch(fid, layout_intent::ACCESS, 0, 0).await?;
        let layout = match layout.form {
            Form::None => {
                let mdc = self.servers.lmv.of(fid).await?;
                let mut o = mdc
                    .open(
                        &Ids::root(),
                        fid,
                        b"",
                        fid,
                        open::WRITE,
                        0,
                        self.servers.now(),
                        0,
                        false,
                    )
                    .await?;
                mdc.drop_lock(o.lock.take());
                let md = MdInode::read(&mdc, &o.attrs)?;
                mdc.close(
                    &Open {
                        fid,
                        handle: o.handle.clone(),
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
            true => self.fetch(fid, op, start, end).await?,
            false => layout,
        };
        layout.check()?;
        if layout.needs_init(start, end) {
            Err(Error::NoObjects)
        } else {
            Ok(layout)
        }
    }
}
