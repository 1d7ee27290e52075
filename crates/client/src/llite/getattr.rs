//! Attributes: from the MDT, completed by the OSTs.

use std::sync::Arc;
use std::time::Duration;

use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::mds::layout_intent;
use futures_util::future::join_all;

use super::cred::permitted;
use super::file::FileHandle;
use super::inode::MdInode;
use super::mount::any_ok;
use super::types::{Attr, Cred, Entry, StatFs};
use super::Llite;
use crate::lov::{FileLayout, Form};
use crate::mdc::Ids;

impl Llite {
    /// The MDT's view of an object, by FID.
    pub(super) async fn md_inode(&self, ids: &Ids, fid: Fid) -> Result<MdInode, Errno> {
        let mdc = self.lmv.of(fid).await?;
        let attrs = mdc.getattr(ids, fid).await?;
        let inode = MdInode::read(&mdc, &attrs)?;
        self.hint_gid(fid, inode.attr.gid);
        Ok(inode)
    }

    /// Completes the MDT's view with the OSTs'.
    pub(super) async fn full_attr(&self, md: &MdInode) -> Result<Attr, Errno> {
        if !md.needs_osts() {
            return Ok(md.attr);
        }
        let layout = self.settled_layout(md.attr.fid, md.layout.clone()).await?;
        let objects = self.lov.getattr(&layout, md.attr.fid).await?;
        Ok(md.merged(&objects))
    }

    /// A layout with components still to be instantiated may have grown elsewhere since: ask again.
    pub(super) async fn settled_layout(&self, fid: Fid, layout: Arc<FileLayout>) -> Result<Arc<FileLayout>, Errno> {
        if layout.form == Form::None || !layout.needs_init(0, u64::MAX) {
            return Ok(layout);
        }
        self.fetch_layout(fid, layout_intent::ACCESS, 0, 0).await
    }

    /// The layout now, after instantiating `start..end` for a write or truncate.
    pub(super) async fn fetch_layout(&self, fid: Fid, op: u32, start: u64, end: u64) -> Result<Arc<FileLayout>, Errno> {
        let mdc = self.lmv.of(fid).await?;
        let (raw, lock) = mdc.layout(fid, op, start, end).await?;
        mdc.drop_lock(lock);
        Ok(Arc::new(FileLayout::decode(&raw).map_err(crate::error::proto)?))
    }

    /// An answer that may not be remembered.
    pub(super) fn uncached(attr: Attr) -> Entry {
        Entry { attr, attr_ttl: Duration::ZERO, entry_ttl: Duration::ZERO }
    }

    /// Attributes, and how long they may be remembered (`entry_ttl` has no meaning here).
    pub async fn getattr(self: &Arc<Self>, cred: &Cred, fid: Fid, _fh: Option<&FileHandle>) -> Result<Entry, Errno> {
        let _ = cred;
        let md = self.md_inode(&Ids::root(), fid).await?;
        Ok(Self::uncached(self.full_attr(&md).await?))
    }

    /// access(2): `mask` of R_OK 4, W_OK 2, X_OK 1, F_OK 0. ACLs count.
    pub async fn access(self: &Arc<Self>, cred: &Cred, fid: Fid, mask: u32) -> Result<(), Errno> {
        let md = self.md_inode(&Ids::root(), fid).await?;
        permitted(cred, &md.attr, &md.acl, mask)
    }

    /// Sum over the targets: space of the OSTs, inodes of the MDTs.
    pub async fn statfs(self: &Arc<Self>) -> Result<StatFs, Errno> {
        const BSIZE: u64 = 4096;
        let mdts = any_ok(join_all(self.lmv.mdcs().iter().map(|m| m.statfs(false))).await)?;
        let osts = any_ok(join_all(self.lov.oscs().iter().map(|o| o.statfs())).await)?;
        let mut sum = StatFs { bsize: BSIZE as u32, namelen: 255, ..Default::default() };
        for m in &mdts {
            sum.files += m.files;
            sum.ffree += m.ffree;
        }
        for o in &osts {
            let scale = |blocks: u64| (blocks as u128 * o.bsize as u128 / BSIZE as u128) as u64;
            sum.blocks += scale(o.blocks);
            sum.bfree += scale(o.bfree);
            sum.bavail += scale(o.bavail);
        }
        Ok(sum)
    }

    /// The LOV EA as stored on the MDT.
    pub async fn layout(self: &Arc<Self>, fid: Fid) -> Result<bytes::Bytes, Errno> {
        let mdc = self.lmv.of(fid).await?;
        Ok(mdc.getattr(&Ids::root(), fid).await?.md)
    }
}
