//! Opens that come with the lookup of a name: of a thread that lost an open, and of what is going to be read.

use std::sync::Arc;

use bytes::Bytes;
use coral_wire::Errno;
use coral_wire::fid::Fid;

use super::finish::finish;
use super::handle::{FileHandle, mds_flags};
use super::inode::MdInode;
use super::opens::Opens;
use super::places::MOVES_MAX;
use super::reopen::KEPT;
use super::types::{Cred, Entry};

impl Opens {
    /// A lookup by a thread that lost an open: opens along. `None`: an ordinary lookup tells.
    pub async fn lookup_and_open(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Option<Entry> {
        let flags = self.reopen.wanted(cred.pid)?;
        let dir = self.places.of(parent, name).await.ok()?.dir;
        let (fh, md) = self.open_name(cred, dir, name, flags, false).await?;
        if !md.attr.is_file() {
            return None;
        }
        self.reopen.keep(cred.pid, &fh)?;
        drop(fh);
        let (me, pid) = (Arc::downgrade(self), cred.pid);
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            if let Some(me) = me.upgrade() {
                me.reopen.drop_late(pid);
            }
        });
        let entry = self.attributes.entry(self.attributes.full(&md).await.ok()?);
        Some(Entry::for_now(entry.attr))
    }

    /// A lookup of a file that is going to be read: leaves it open for who opens it next. `None`: an ordinary lookup tells.
    pub async fn open_along(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Fid,
        name: &[u8],
    ) -> Option<MdInode> {
        if !self.servers.lmv.all_coral() {
            return None;
        }
        let flags = libc::O_RDONLY as u32;
        let (fh, md) = self.open_name(cred, dir, name, flags, true).await?;
        self.release(&fh).await.ok()?;
        md.attr.is_file().then_some(md)
    }

    /// The same of a file that is known by its FID.
    pub async fn open_along_by_fid(self: &Arc<Self>, cred: &Cred, fid: Fid) -> Option<MdInode> {
        if !self.servers.lmv.all_coral() {
            return None;
        }
        let fh = self.open_fid(cred, fid, libc::O_RDONLY as u32).await.ok()?;
        self.release(&fh).await.ok()?;
        let md = self.cache.known(fid).map(|k| k.md);
        let file = md.filter(|md| md.attr.is_file());
        if file.is_none() {
            self.kept.close(fid);
        }
        file
    }

    /// Opens what has the name at this moment; `learns`: with a lock, under which it is known from then on.
    async fn open_name(
        self: &Arc<Self>,
        cred: &Cred,
        dir: Fid,
        name: &[u8],
        flags: u32,
        learns: bool,
    ) -> Option<(Arc<FileHandle>, MdInode)> {
        self.late.sent_of_name(&self.cache, dir, name).await;
        let ids = self.ids.of(cred, &[dir]).await;
        let mdc = self.servers.lmv.of(dir).await.ok()?;
        for _ in 0..MOVES_MAX {
            let fid = mdc.new_fid().await.ok()?;
            let (me, mdc, name) = (self.clone(), mdc.clone(), Bytes::copy_from_slice(name));
            let found = finish(async move {
                // what its OPEN is to cut must be refused now if it may not be cut; it is cut then, by a setattr
                let (bits, now) = (mds_flags(flags), me.servers.now());
                let mark = me.cache.begin_read(dir);
                let opened = mdc
                    .open(&ids, dir, &name, fid, bits, 0, now, 0, learns)
                    .await;
                let mut o = match opened {
                    Err(e) if e.is(Errno::EREMOTE) => {
                        let named = mdc.getattr_name(&ids, dir, &name).await.ok()?;
                        return Some(Err(named.body.fid1));
                    }
                    opened => opened
                        .inspect_err(|e| me.cache.refused(dir, &name, e))
                        .ok()?,
                };
                let md = MdInode::read(&mdc, &o.attrs).ok()?;
                match o.lock.take().filter(|_| learns) {
                    Some(lock) => {
                        let cookie = lock.cookie();
                        me.attributes.learn(&mdc, mark, &md, Some(lock));
                        me.cache.learn_name(mark, dir, &name, md.attr.fid, cookie);
                    }
                    None => mdc.drop_lock(o.lock.take()),
                }
                Some(Ok((me.handle((mdc, &ids), &o, &md, flags).await, md)))
            })
            .await?;
            match found {
                Ok(opened) => return Some(opened),
                // what lies on another MDT than its name is opened by its FID; gone, it has lost the name meanwhile
                Err(fid) => match self.open_fid(cred, fid, flags).await {
                    Err(e) if e.is_gone() => {}
                    fh => return Some((fh.ok()?, self.attributes.md_inode(fid).await.ok()?)),
                },
            }
        }
        None
    }
}
