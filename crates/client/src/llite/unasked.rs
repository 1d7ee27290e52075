//! Opens of which no MDT is asked: of what is open there still, and of what locks cover.

use std::sync::Arc;

use coral_wire::fid::Fid;
use coral_wire::mds::open;

use super::cache::Known;
use super::cred::permitted;
use super::finish::finish;
use super::handle::{FileHandle, mds_flags};
use super::inode::MdInode;
use super::kept::KeptOpens;
use super::late::LateFile;
use super::mdt_open::MdtOpen;
use super::opens::Opens;
use super::types::Cred;
use super::untold::may_be_untold;
use crate::lov::Form;
use crate::mdc::Ids;

impl Opens {
    /// A handle on what is open still, if `ids` would be given it now.
    pub(super) async fn handle_kept(
        self: &Arc<Self>,
        cred: &Cred,
        ids: &Ids,
        fid: Fid,
        flags: u32,
    ) -> Option<Arc<FileHandle>> {
        let bits = mds_flags(flags);
        if bits & open::EXEC != 0 {
            // nobody executes what is open for writing
            self.kept.made_closed(fid).await;
        }
        if let Some(fh) = self.handle_made(cred, ids, fid, flags).await {
            return Some(fh);
        }
        if bits != open::READ {
            return None;
        }
        if let Some(at_mdt) = self.kept.take(fid) {
            match self.cache.known(fid) {
                Some(now) if KeptOpens::takes(&at_mdt) && at_mdt.stands_for(ids, &now.md.attr) => {
                    return Some(self.handle_on(at_mdt, &now.md, flags, false).await);
                }
                _ => self.kept.close_soon(at_mdt),
            }
        }
        self.handle_untold(ids, fid, flags).await
    }

    /// A handle on the open that made the file, of its maker, who may open it so.
    async fn handle_made(
        self: &Arc<Self>,
        cred: &Cred,
        ids: &Ids,
        fid: Fid,
        flags: u32,
    ) -> Option<Arc<FileHandle>> {
        let bits = mds_flags(flags);
        let known = || {
            let now = self.cache.known(fid)?;
            let objects = now.objects.filter(|_| may_open(cred, bits, &now.md))?;
            Some((now.md, objects))
        };
        let (_, before) = known()?;
        let good = |open: &MdtOpen| open.lets_its_maker(ids, bits);
        let first = || self.late.expect(fid);
        let (at_mdt, late, changes) = self.kept.take_made_again(fid, good, first)?;
        let Some((mut md, objects)) = known().filter(|(_, now)| *now == before) else {
            self.late.closed(&late);
            self.kept.close_soon(at_mdt);
            return None;
        };
        self.kept.used_again(fid);
        md.rough_size = Some(objects.size);
        let me = self.clone();
        let handle = finish(async move {
            let fh = me.handle_on(at_mdt, &md, flags, false).await;
            me.begin_keeping(&fh, late, objects);
            if me.kept.changes() != changes {
                // perhaps of this file, by one who did not find that it is open
                me.late.end(fid);
            }
            fh
        });
        Some(handle.await)
    }

    /// A handle of which the MDT need not be told.
    async fn handle_untold(
        self: &Arc<Self>,
        ids: &Ids,
        fid: Fid,
        flags: u32,
    ) -> Option<Arc<FileHandle>> {
        let (md, bits) = (self.cache.known(fid)?.md, mds_flags(flags));
        if !may_be_untold(bits, &md) {
            return None;
        }
        let mdc = self.servers.lmv.of(fid).await.ok()?;
        let at_mdt = (mdc.coral()).then(|| self.untold.open(&mdc, ids, &md.attr))??;
        // as it is now that the lock cannot go
        let now = self.cache.known(fid);
        let now = now.filter(|n| may_be_untold(bits, &n.md));
        match now {
            Some(Known {
                mut md, objects, ..
            }) => {
                md.rough_size = objects.map(|o| o.size).or(md.rough_size);
                let fh = self.handle_on(at_mdt, &md, flags, false).await;
                if fh.at_mdt.is_asked_back() {
                    // perhaps before there was an open file to be told that its layout is lost
                    fh.inode.layout_lost();
                }
                Some(fh)
            }
            None => {
                self.untold.closed(&at_mdt);
                tokio::spawn(async move { at_mdt.close(None, None).await });
                None
            }
        }
    }

    /// Keeps what a handle had open at the MDT; false: that is to be closed.
    pub(super) fn keep(&self, fh: &FileHandle) -> bool {
        let fid = fh.fid();
        if !KeptOpens::takes(&fh.at_mdt) || !self.has_covered_name(fid) {
            return false;
        }
        self.kept.keep(fid, fh.at_mdt.clone());
        if !self.has_covered_name(fid) {
            // the lock has gone meanwhile, perhaps before there was anything to close
            self.kept.close(fid);
        }
        true
    }

    /// Keeps the open that made a file in which nothing was written; false: it is to be closed.
    pub(super) fn keep_made(&self, fh: &FileHandle, late: &LateFile) -> bool {
        let (fid, layout) = (fh.fid(), fh.inode.layout());
        let is_untouched = || {
            let alone = Arc::strong_count(&fh.inode) == 1;
            alone && fh.inode.data.quiet() == Some(0) && !late.has_ended()
        };
        let takes = self.size_can_be_known(fh) && self.kept.takes_made(&fh.at_mdt);
        if !takes || !is_untouched() {
            return false;
        }
        let objects = self.late.objects(fid).unwrap_or_default();
        self.kept.keep(fid, fh.at_mdt.clone());
        // who opens or changes the file from here on finds it here
        let kept = is_untouched() && self.has_covered_name(fid);
        if kept {
            self.kept.learn_made(&fh.at_mdt, layout.generation, objects);
        }
        kept || self.kept.take_made(fid).is_none() // whoever took it closes it
    }

    /// Who made the file may know its size without a lock of its objects: it has nothing but these, and a name of it is covered.
    pub(super) fn size_can_be_known(&self, fh: &FileHandle) -> bool {
        let layout = fh.inode.layout();
        layout.form == Form::Objects && !layout.has_dom() && self.has_covered_name(fh.fid())
    }

    /// Whoever takes the last name of the file away calls a lock of this client back first.
    pub(super) fn has_covered_name(&self, fid: Fid) -> bool {
        self.cache.known(fid).is_some_and(|k| k.md.attr.nlink > 0)
    }
}

/// Whether who is not asked about may open a file like this with these MDS_OPEN bits.
fn may_open(cred: &Cred, bits: u64, md: &MdInode) -> bool {
    let (read, write) = (
        bits & open::READ != 0,
        bits & (open::WRITE | open::TRUNC) != 0,
    );
    let mask = if read { 4 } else { 0 } | if write { 2 } else { 0 };
    let plain = md.attr.is_file() && md.attr.nlink > 0 && md.attr.flags == 0;
    plain && bits & open::EXEC == 0 && permitted(cred, &md.attr, &md.acl, mask).is_ok()
}
