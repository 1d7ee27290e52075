//! Setuid, setgid and file capabilities, which a write takes from a file.
//!
//! What the file has is known under a lock of its MDT, so it is known also when another client gave it the bits after this one
//! opened it; without a lock the MDT is asked. What goes is for the MDT to say (`MDS_ATTR_KILL_SUID`): it takes the bits from
//! the mode as it is then, and a Coral MDT the capabilities with them, from whoever holds the file open for writing.
//!
//! Lustre: `file_remove_privs` of Linux, `mdd_fix_attr` in `lustre/mdd/mdd_object.c`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use coral_wire::Errno;
use coral_wire::fid::Fid;
use coral_wire::mds::attr;

use super::attributes::Attributes;
use super::cache::Cache;
use super::changes::Changes;
use super::handle::FileHandle;
use super::identities::Identities;
use super::servers::Servers;
use super::types::Cred;
use super::upcalls::Upcalls;
use super::xattr::{CAPABILITY, Xattrs};
use crate::error::Error;
use crate::mdc::{Ids, Mdc, SetattrArgs};

/// Whether a mode has setuid, or setgid where the group may execute (elsewhere it marks mandatory locking).
pub(super) fn has_setid(mode: u32) -> bool {
    mode & libc::S_ISUID != 0
        || mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
}

/// Takes privileges from files.
pub(super) struct Privileges {
    pub servers: Arc<Servers>,
    pub ids: Arc<Identities>,
    pub cache: Arc<Cache>,
    pub upcalls: Arc<Upcalls>,
    pub changes: Arc<Changes>,
    pub attributes: Arc<Attributes>,
    pub xattrs: Arc<Xattrs>,
}

impl Privileges {
    /// A write through `fh` begins: capabilities go, and by anybody's hand but root's setuid and setgid.
    pub async fn drop_for_write(&self, cred: &Cred, fh: &FileHandle) -> Result<(), Error> {
        let fid = fh.fid();
        let setid = cred.uid != 0 && has_setid(self.mode_now(fid).await?);
        let capable = self.may_have_capabilities(fh).await?;
        if !setid && !capable {
            return Ok(());
        }
        let mdc = self.servers.lmv.of(fid).await?;
        let ids = self.ids.of(cred, &[fid]).await;
        // root's own write leaves setuid, so its capabilities go apart
        let with_bits = mdc.coral() && cred.uid != 0;
        if setid || with_bits {
            fh.still_open(self.servers.now()).await?;
            self.kill_setid(&ids, &mdc, fid, fh.at_mdt.cookie().await)
                .await?;
        }
        if capable && !with_bits {
            self.drop_capabilities(&mdc, fid).await?;
        }
        if let Some(who) = self.upcalls.who() {
            // the change was this client's own, of which no lock tells
            who.inval_inode(fid, true);
        }
        Ok(())
    }

    /// Permission bits, as a lock tells or the MDT says now.
    async fn mode_now(&self, fid: Fid) -> Result<u32, Error> {
        match self.cache.mode(fid) {
            Some(mode) => Ok(mode),
            None => Ok(self.attributes.md_inode(fid).await?.attr.mode),
        }
    }

    /// False when the file is known to have no capabilities. Asked once a handle where no lock covers the answer.
    async fn may_have_capabilities(&self, fh: &FileHandle) -> Result<bool, Error> {
        let fid = fh.fid();
        if self.cache.is_uncapped(fid) {
            return Ok(false);
        }
        // with a lock, if one can be had, the answer holds until it is called back
        if self.mode_now(fid).await.is_err_and(|e| e.is_gone()) {
            return Ok(false);
        }
        if self.cache.mode(fid).is_none() && fh.uncapped.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let found = self.xattrs.get(&Cred::root(), fid, CAPABILITY).await;
        let none = match found {
            Err(e) if has_none(e.errno()) || e.is_gone() => true,
            found => found.map(|_| false)?,
        };
        fh.uncapped.store(none, Ordering::Relaxed);
        Ok(!none)
    }

    /// Has the MDT take setuid and setgid away; `handle` (0: none) is the caller's open for writing.
    pub async fn kill_setid(
        &self,
        ids: &Ids,
        mdc: &Mdc,
        fid: Fid,
        handle: u64,
    ) -> Result<(), Error> {
        let now = self.servers.now();
        let valid = attr::KILL_SUID | attr::KILL_SGID | attr::FORCE | attr::CTIME | attr::CTIME_SET;
        let args = SetattrArgs {
            valid,
            ctime: now,
            handle,
            ..Default::default()
        };
        let attrs = mdc.setattr(ids, fid, &args).await?;
        self.changes.object(mdc, fid, &attrs.body, now);
        Ok(())
    }

    /// Removes the capabilities at an MDT that does not by itself.
    pub async fn drop_capabilities(&self, mdc: &Mdc, fid: Fid) -> Result<(), Error> {
        if self.cache.is_uncapped(fid) {
            return Ok(());
        }
        match mdc
            .setxattr(&Ids::root(), fid, CAPABILITY, None, 0, self.servers.now())
            .await
        {
            Err(e) if has_none(e.errno()) => Ok(()),
            done => {
                self.cache.forget_attrs(fid);
                Ok(done?)
            }
        }
    }
}

/// Of an extended attribute: there is none, or can be none.
fn has_none(e: Errno) -> bool {
    matches!(e, Errno::ENODATA | Errno::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges() {
        assert!(!has_setid(0o100755) && has_setid(0o104755) && has_setid(0o102755));
        assert!(!has_setid(0o102644), "mandatory locking is no privilege");
    }
}
