//! Close (`mdt_close` and `mdt_mfd_close` in `lustre/mdt/mdt_open.c`).
//!
//! What a close of Lustre may do besides (swapping or merging layouts, releasing a file to an archive) is not there.

use coral_wire::coral::{ATIME_DIFF_S, KEPT_ATTRS, READABLE, UNTOLD_OPEN};
use coral_wire::mds::{CloseData, MdtBody, MdtIoepoch, MdtRecReint, RecSetattr, attr as sa, bias};
use coral_wire::{Errno, Fid};

use super::acl;
use super::attr::{self, MdAttr};
use super::ctx::{Answer, Ctx};
use super::namespace;
use super::record::Inode;
use super::reint::{push_attributes, setattr::tell_owner};
use super::store::{MdtResult, Store, Txn};
use super::version::PreVersions;
use super::xattr;
use crate::target::reads_only;

impl Ctx {
    /// MDS_CLOSE: times and lazy size come with it; the last close of an orphan destroys it.
    pub async fn close(&self) -> MdtResult<Answer> {
        let epoch: MdtIoepoch = self.rq.rq.msg.get(1)?;
        let rec: RecSetattr = self.rq.rq.msg.get(2).unwrap_or_default();
        let more = rec.bias & bias::CLOSE_INTENT != 0;
        if let (true, Ok(data)) = (more, self.rq.rq.msg.get::<CloseData>(4)) {
            self.ops.ldlm.cancel(self.exp(), &[data.handle]);
        }
        if epoch.open_handle == 0 && self.coral && rec.bias & UNTOLD_OPEN != 0 {
            return self.read_untold(&rec);
        }
        let mut guard = self.core();
        let core = &mut *guard;
        let found = core.opens.current(epoch.open_handle, self.exp());
        let Some((cookie, handle)) = found.and_then(|c| Some((c, *core.opens.get(c, self.exp())?)))
        else {
            if self.rq.is_replay() {
                return self.close_answer(true);
            }
            return Err(Errno::ESTALE.into());
        };
        // What is on disk already stays: others may have changed it since.
        let done = self.rq.replay_committed();
        let idle = done || reads_only(&self.rq);
        let kept = self.coral && rec.bias & KEPT_ATTRS != 0;
        if kept {
            self.may_have_kept(core, &handle.fid, cookie)?;
            if reads_only(&self.rq) && !done {
                return Err(Errno::ESTALE.into());
            }
        }
        let mut set = match idle || kept {
            true => MdAttr::default(),
            false => self.setattr_of(&rec),
        };
        if !handle.writes() {
            // who only read changed nothing but the time of the last access
            (set.mtime, set.ctime) = (None, None);
        }
        let sized = !idle && handle.writes() && rec.valid & sa::LSIZE != 0;
        set.size = sized.then_some(rec.size);
        set.blocks = (sized && rec.valid & sa::LBLOCKS != 0).then_some(rec.blocks);
        let mut t = Txn::new(&core.store);
        let mut pre = self.pre_versions();
        let (mut changed, mut body) = (false, MdtBody::default());
        if let Some(h) = t.find(&handle.fid)? {
            // A close that is on disk is replayed at once: who else had the file open may not be back. It goes when recovery ends.
            let others_may_come = done && core.recovering;
            let last = core.opens.handles_of(&handle.fid) == 1 && !others_may_come;
            if t.ino(h).nlink == 0 && last {
                namespace::reap(&mut t, &handle.fid)?;
                changed = true;
            } else {
                if kept && !idle {
                    self.set_kept(&mut t, &mut pre, &handle.fid, &rec)?;
                    changed = true;
                }
                if t.ino(h).nlink > 0 && !t.ino(h).lov.is_empty() | t.ino(h).is_dir() {
                    changed |= attr::close_update(&mut t, h, &set, ATIME_DIFF_S);
                }
                if kept && !idle {
                    body = self.pack(&handle.fid, t.ino(h));
                }
            }
        }
        // what is to be done besides is not there; the file is closed all the same, as the client takes it to be
        let mut a = match more {
            true => self.answer(Errno::EOPNOTSUPP.status()),
            false => {
                let mut a = self.answer(0);
                pre.tell(&mut a);
                push_attributes(&mut a, &body);
                a
            }
        };
        if changed {
            self.commit(t, &mut a)?;
        } else {
            self.commit_empty(&mut a)?;
        }
        core.opens.remove(cookie, self.exp());
        Ok(a)
    }

    /// The access time of what a client read without an open. What is gone has none.
    fn read_untold(&self, rec: &RecSetattr) -> MdtResult<Answer> {
        let mut a = self.close_answer(false)?;
        let idle = self.rq.replay_committed() || reads_only(&self.rq);
        let core = self.core();
        let mut t = Txn::new(&core.store);
        let (now, _) = self.rq.target.node().wall_time();
        let atime = self.setattr_of(rec).atime;
        let set = MdAttr {
            atime: atime.filter(|at| at.secs <= now + ATIME_DIFF_S),
            ..MdAttr::default()
        };
        // of nothing else a client need say that it has read it
        let found = match t.find(&rec.fid)? {
            Some(h) if has_untold_readers(&core.store, &rec.fid, t.ino(h))? => Some(h),
            _ => None,
        };
        let moves = |h| attr::close_update(&mut t, h, &set, ATIME_DIFF_S);
        match found.filter(|_| !idle).is_some_and(moves) {
            true => self.commit(t, &mut a)?,
            false => self.commit_empty(&mut a)?,
        }
        Ok(a)
    }

    /// Sets what the client that made the file has kept back of its attributes until now.
    fn set_kept(
        &self,
        t: &mut Txn<'_>,
        pre: &mut PreVersions<'_>,
        fid: &Fid,
        rec: &RecSetattr,
    ) -> MdtResult<()> {
        let head: MdtRecReint = self.rq.rq.msg.get(2)?;
        let asked = self.setattr_of(rec);
        // what a client may keep back
        let set = MdAttr {
            mode: asked.mode,
            uid: asked.uid,
            gid: asked.gid,
            atime: asked.atime,
            mtime: asked.mtime,
            ctime: asked.ctime,
            times_given: asked.times_given,
            ..MdAttr::default()
        };
        let capable = t
            .get(fid)
            .map(|h| t.ino(h).xattr(xattr::CAPABILITY).is_some())?;
        let uncap = capable && set.ends_capabilities();
        let owner = |t: &Txn<'_>, h| {
            let ino: &Inode = t.ino(h);
            (ino.uid, ino.gid, ino.projid)
        };
        let before = t.get(fid).map(|h| owner(t, h))?;
        let h = self.set_attributes(t, pre, fid, &self.cred(&head), &set, uncap)?;
        // its data has the owner that the MDT knows, as long as nobody else has written any
        if owner(t, h) != before {
            tell_owner(t, h, &set);
        }
        Ok(())
    }

    fn close_answer(&self, transno: bool) -> MdtResult<Answer> {
        let mut a = self.answer(0);
        push_attributes(&mut a, &MdtBody::default());
        if transno {
            self.commit_empty(&mut a)?;
        }
        Ok(a)
    }
}

/// Whether a client may read such a file and the MDT not be told.
fn has_untold_readers(store: &Store, fid: &Fid, ino: &Inode) -> MdtResult<bool> {
    let plain = ino.is_reg() && ino.nlink > 0 && ino.mode & READABLE == READABLE;
    Ok(plain && store.xattr(fid, ino, acl::ACCESS)?.is_none())
}
