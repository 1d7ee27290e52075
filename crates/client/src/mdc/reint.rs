//! Changes of the namespace and of attributes: MDS_REINT in its kinds.
//!
//! Lustre: `lustre/mdc/mdc_reint.c`, packing `lustre/mdc/mdc_lib.c`.

use std::time::Duration;

use bytes::Bytes;
use coral_ptlrpc::Request;
use coral_wire::coral::KEPT_ATTRS;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{LdlmRequest, LdlmType};
use coral_wire::mds::{
    MdtIoepoch, RecCreate, RecLink, RecRename, RecSetattr, RecSetxattr, RecUnlink, ReintOp, attr,
    bias, md, open,
};
use coral_wire::ptlrpc::{opc, portal};

use super::device::{Attrs, Changed, Mdc, Open, nul};
use super::ids::Ids;
use crate::ask::Answer;
use crate::error::TargetError;
use crate::time::Timespec;

/// What to make.
#[derive(Debug, Clone, Default)]
pub struct CreateArgs {
    /// Directory.
    pub parent: Fid,
    /// Name, without NUL.
    pub name: Bytes,
    /// FID of the new object.
    pub fid: Fid,
    /// Type and permission bits; the server applies the umask.
    pub mode: u32,
    /// Device number.
    pub rdev: u32,
    /// Time of the change.
    pub now: Timespec,
    /// Target of a symbolic link.
    pub symlink: Option<Bytes>,
    /// Default or demanded layout of a directory (`lmv_user_md`), or empty.
    pub eadata: Bytes,
    /// `eadata` is what the parent hands down, not what a user demands.
    pub inherited: bool,
    /// `eadata` is for a directory of that name that is there, too.
    pub restripe: bool,
    /// Version of the parent's layout, 0: not to be checked.
    pub layout_version: u32,
}

/// What to change; `valid` is `coral_wire::mds::attr` bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetattrArgs {
    /// Which fields count.
    pub valid: u64,
    /// Permission bits (type bits are ignored).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Access time.
    pub atime: Timespec,
    /// Modification time.
    pub mtime: Timespec,
    /// Change time.
    pub ctime: Timespec,
    /// Inode flags.
    pub flags: u32,
    /// Project id.
    pub projid: u32,
    /// `coral_wire::mds::bias`.
    pub bias: u32,
    /// Handle of an open for writing that the change is made through; 0: none.
    pub handle: u64,
}

/// How to move a name to another MDT.
#[derive(Debug, Clone, Default)]
pub struct MigrateArgs {
    /// Type of what it stands for.
    pub mode: u32,
    /// Time of the change.
    pub now: Timespec,
    /// What it stands for stays.
    pub name_only: bool,
    /// The layout that a directory is to get (`lmv_user_md`).
    pub lum: Bytes,
}

/// Locks one request cancels on its way, at most.
const EARLY_CANCELS: usize = 32;
/// Locks on objects that are gone that wait for a request, before they get one of their own.
const EARLY_WAITING: usize = 256;
/// A migration is asked for so long where an MDT that it needs is away.
const MIGRATE_PATIENCE: Duration = Duration::from_secs(60);

/// Lustre's MDT takes only times that are marked as set, the present too (`ll_setattr_raw`, `mdt_attr_valid_xlate`).
fn told_as_set(valid: u64) -> u64 {
    let mark = |time, set| if valid & time != 0 { set } else { 0 };
    valid
        | mark(attr::ATIME, attr::ATIME_SET)
        | mark(attr::MTIME, attr::MTIME_SET)
        | mark(attr::CTIME, attr::CTIME_SET)
}

impl Mdc {
    /// A DLM_REQ buffer with early cancels: locks on objects that are gone.
    pub(super) fn elc(&self) -> Bytes {
        let mut waiting = self.cancels.lock();
        let at = waiting.len().saturating_sub(EARLY_CANCELS);
        LdlmRequest::cancel(&waiting.split_off(at)).to_bytes()
    }

    /// The object is gone and nothing of it is cached any more: its locks are let go, with the next requests that can carry
    /// that. A table of locks that no name leads to would fill up otherwise.
    pub(crate) fn object_gone(&self, fid: Fid) {
        let cookies = self
            .namespace()
            .forget_unused(&fid.res_id(), LdlmType::IBITS);
        let many = {
            let mut waiting = self.cancels.lock();
            waiting.extend(cookies);
            if waiting.len() > EARLY_WAITING {
                std::mem::take(&mut *waiting)
            } else {
                Vec::new()
            }
        };
        if !many.is_empty() {
            let ns = self.namespace().clone();
            tokio::spawn(async move { ns.send_cancel(&many).await });
        }
    }

    pub(super) async fn reint(&self, rq: Request) -> Result<Answer<'_>, TargetError> {
        self.call(rq.replayable()).await
    }

    pub(super) fn reint_rq(rec: Bytes) -> Request {
        Request::new(portal::MDS_REQUEST, opc::MDS_REINT)
            .push_bytes(rec)
            .push_empty()
    }

    /// mkdir, mknod, symlink.
    pub async fn create(&self, ids: &Ids, a: &CreateArgs) -> Result<Changed, TargetError> {
        let mut rec = RecCreate {
            opcode: ReintOp::CREATE,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid1: ids.suppgids[0],
            suppgid2: ids.suppgids[1],
            fid1: a.parent,
            fid2: a.fid,
            time: self.time(a.now),
            rdev: a.rdev as u64,
            mode: a.mode,
            umask: ids.umask,
            layout_ver: a.layout_version,
            ..Default::default()
        };
        // a layout is for a new directory: one that is there already is not to be split, unless that is asked for
        rec.set_flags(match (a.eadata.is_empty() || a.restripe, a.inherited) {
            (true, _) => 0,
            (false, true) => open::DEFAULT_LMV,
            (false, false) => open::CREAT,
        });
        let data = match &a.symlink {
            Some(target) => nul(target),
            None => a.eadata.clone(),
        };
        let rq = Self::reint_rq(coral_wire::Wire::to_bytes(&rec))
            .push_bytes(nul(&a.name))
            .push_bytes(data)
            .push_bytes(self.elc())
            .push_empty()
            .push_empty()
            .push_empty()
            .push_empty()
            .about([a.parent, a.fid]);
        let reply = self.reint(rq).await?;
        Changed::read(self, &reply)
    }

    /// A further name.
    pub async fn link(
        &self,
        ids: &Ids,
        fid: Fid,
        parent: Fid,
        layout_version: u32,
        name: &[u8],
        now: Timespec,
    ) -> Result<Changed, TargetError> {
        let rec = RecLink {
            opcode: ReintOp::LINK,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid1: ids.suppgids[0],
            suppgid2: ids.suppgids[1],
            fid1: fid,
            fid2: parent,
            time: self.time(now),
            layout_ver: if self.coral() { layout_version } else { 0 },
            ..Default::default()
        };
        let rq = Self::reint_rq(coral_wire::Wire::to_bytes(&rec))
            .push_empty()
            .push_bytes(nul(name))
            .push_bytes(self.elc())
            .push_empty()
            .about([parent, fid]);
        let reply = self.reint(rq).await?;
        Changed::read(self, &reply)
    }

    /// A removal from `dir`, in whose name and when.
    pub(super) fn rec_unlink(&self, ids: &Ids, dir: Fid, now: Timespec) -> RecUnlink {
        RecUnlink {
            opcode: ReintOp::UNLINK,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid1: ids.suppgids[0],
            suppgid2: ids.suppgids[1],
            fid1: dir,
            time: self.time(now),
            ..Default::default()
        }
    }

    /// Removes a name; `dir`: it must be an empty directory, else it must be none. A Coral server closes `open` with it, unless it
    /// stands for something else: true.
    #[expect(clippy::too_many_arguments, reason = "a name, and what it stands for")]
    pub async fn unlink(
        &self,
        ids: &Ids,
        parent: Fid,
        name: &[u8],
        child: Fid,
        dir: bool,
        now: Timespec,
        open: Option<&Open>,
    ) -> Result<(Changed, bool), TargetError> {
        let close = open.map_or(0, |open| self.closing(open));
        let mut rec = RecUnlink {
            fid2: child,
            close,
            mode: if dir { libc::S_IFDIR } else { 0 },
            ..self.rec_unlink(ids, parent, now)
        };
        let rq = Self::reint_rq(coral_wire::Wire::to_bytes(&rec))
            .push_bytes(nul(name))
            .push_bytes(self.elc())
            .push_empty();
        let reply = self.reint(rq.about([parent, child])).await?;
        let changed = Changed::read(self, &reply)?;
        let removed = changed.attrs.body.fid1;
        let closed = open.filter(|_| changed.attrs.body.open_handle == close);
        if self.coral() && (removed != child || closed.is_none()) {
            // a replay removes and closes what was removed and closed, not what we believed the name to stand for
            rec.fid2 = removed;
            rec.close = closed.map_or(0, |_| close);
            self.import().edit_replay(reply.transno, |bufs| {
                bufs[0] = coral_wire::Wire::to_bytes(&rec)
            });
        }
        if let Some(open) = closed {
            self.forget_open(open, reply.transno);
        }
        Ok((changed, closed.is_some()))
    }

    /// Moves what `name` of `parent` stands for to the MDT of the new FID `target`, or only the name to the shard where it
    /// belongs. `mode`: its type.
    pub async fn migrate(
        &self,
        ids: &Ids,
        parent: Fid,
        name: &[u8],
        target: Fid,
        a: &MigrateArgs,
    ) -> Result<(), TargetError> {
        let rec = RecRename {
            opcode: ReintOp::MIGRATE,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid1: ids.suppgids[0],
            suppgid2: ids.suppgids[1],
            fid1: parent,
            fid2: target,
            time: self.time(a.now),
            bias: if a.name_only { bias::MIGRATE_NSONLY } else { 0 },
            mode: a.mode,
            ..Default::default()
        };
        let rq = Self::reint_rq(coral_wire::Wire::to_bytes(&rec))
            .push_empty()
            .push_bytes(nul(name))
            .push_empty()
            .push_bytes(self.elc())
            .push_empty()
            .push_empty()
            .push_empty()
            .push_bytes(a.lum.clone());
        let rq = rq.about([parent, target]).patience(MIGRATE_PATIENCE);
        self.reint(rq).await.map(drop)
    }

    /// Renames; what stood at the new name is removed. `flags`: `coral_wire::coral::RENAME_*`, for Coral servers only, as is
    /// `layout_version`, that of the new directory.
    /// `mode` is that of what moves: a stock MDT lets renames run beside each other unless it says that a directory goes to
    /// another one, and two of these at once may each move one into the other (`mdt_reint_rename` in
    /// `lustre/mdt/mdt_reint.c`).
    #[expect(clippy::too_many_arguments, reason = "two names in two directories")]
    pub async fn rename(
        &self,
        ids: &Ids,
        parent: Fid,
        name: &[u8],
        new_parent: Fid,
        layout_version: u32,
        new_name: &[u8],
        mode: u32,
        flags: u32,
        now: Timespec,
    ) -> Result<Changed, TargetError> {
        let rec = RecRename {
            opcode: ReintOp::RENAME,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid1: ids.suppgids[0],
            suppgid2: ids.suppgids[1],
            fid1: parent,
            fid2: new_parent,
            time: self.time(now),
            mode,
            padding_5: if self.coral() { flags } else { 0 },
            layout_ver: if self.coral() { layout_version } else { 0 },
            ..Default::default()
        };
        let mut rq = Self::reint_rq(coral_wire::Wire::to_bytes(&rec))
            .push_empty()
            .push_bytes(nul(name))
            .push_bytes(nul(new_name))
            .push_bytes(self.elc())
            .push_empty()
            .about([parent, new_parent]);
        rq.portal = portal::MDS_IO;
        let reply = self.reint(rq).await?;
        Changed::read(self, &reply)
    }

    /// Changes attributes; the new ones.
    pub async fn setattr(
        &self,
        ids: &Ids,
        fid: Fid,
        a: &SetattrArgs,
    ) -> Result<Attrs, TargetError> {
        self.setattr_with(ids, fid, a, Bytes::new()).await
    }

    /// The record of a setattr.
    pub(super) fn setattr_rec(&self, ids: &Ids, fid: Fid, a: &SetattrArgs) -> RecSetattr {
        RecSetattr {
            opcode: ReintOp::SETATTR,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid: ids.suppgids[0],
            fid,
            valid: if self.coral() {
                a.valid
            } else {
                told_as_set(a.valid)
            },
            uid: a.uid,
            gid: a.gid,
            size: a.size,
            mtime: self.time(a.mtime),
            atime: self.time(a.atime),
            ctime: self.time(a.ctime),
            attr_flags: a.flags,
            mode: a.mode,
            bias: a.bias,
            projid: a.projid,
            ..Default::default()
        }
    }

    /// The same with a default layout of a directory (`lov_user_md`, `lmv_user_md`); empty: none.
    pub async fn setattr_with(
        &self,
        ids: &Ids,
        fid: Fid,
        a: &SetattrArgs,
        eadata: Bytes,
    ) -> Result<Attrs, TargetError> {
        let rec = self.setattr_rec(ids, fid, a);
        let epoch = MdtIoepoch {
            open_handle: a.handle,
            ..Default::default()
        };
        // a Lustre MDT looks at no handle here
        let epoch = if self.coral() && a.handle != 0 {
            coral_wire::Wire::to_bytes(&epoch)
        } else {
            Bytes::new()
        };
        let mut rq = Self::reint_rq(coral_wire::Wire::to_bytes(&rec))
            .push_bytes(epoch)
            .push_bytes(eadata)
            .push_empty()
            .push_bytes(self.elc())
            .about([fid, Fid::ZERO]);
        // others may wait for the lock under which they were kept, and hold every place meanwhile
        rq.urgent = a.bias & KEPT_ATTRS != 0;
        let reply = self.reint(rq).await?;
        Attrs::read(&reply, 1)
    }

    /// Sets (`Some`) or removes (`None`) an xattr; `flags` XATTR_CREATE 1, XATTR_REPLACE 2.
    pub async fn setxattr(
        &self,
        ids: &Ids,
        fid: Fid,
        name: &[u8],
        value: Option<Bytes>,
        flags: u32,
        now: Timespec,
    ) -> Result<(), TargetError> {
        let rec = RecSetxattr {
            opcode: ReintOp::SETXATTR,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid1: ids.suppgids[0],
            suppgid2: ids.suppgids[1],
            fid,
            valid: md::FLCTIME
                | if value.is_some() {
                    md::FLXATTR
                } else {
                    md::FLXATTRRM
                },
            time: self.time(now),
            size: value.as_ref().map_or(0, |v| v.len() as u32),
            flags,
            ..Default::default()
        };
        let rq = Self::reint_rq(coral_wire::Wire::to_bytes(&rec))
            .push_bytes(nul(name))
            .push_bytes(value.unwrap_or_default())
            .push_bytes(self.elc())
            .push_empty()
            .about([fid, Fid::ZERO]);
        self.reint(rq).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lustre_mdt_is_told_the_present_as_a_time_set() {
        let told = told_as_set(attr::ATIME | attr::CTIME | attr::MODE);
        assert_eq!(
            told,
            attr::ATIME | attr::ATIME_SET | attr::CTIME | attr::CTIME_SET | attr::MODE
        );
    }
}
