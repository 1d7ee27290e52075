//! Server-side locks around a change, so that clients drop what they cache of it first
//! (`lustre/mdt/mdt_reint.c`).
//!
//! * A directory whose entries change is locked CW on UPDATE: changers of one directory do not
//!   exclude each other (the core's mutex orders them), readers' PR locks are called back.
//! * An object that changes is locked EX on the bits its change touches.
//!
//! Order, so that no two changes wait for each other: directories by resource, then objects by
//! resource; renames of directories across directories hold the MDT's rename mutex besides.

use coral_ldlm::{ExportId, LocalLock};
use coral_wire::Fid;
use coral_wire::ldlm::{Ibits, LdlmMode, LdlmType, Policy};

use super::handler::MdtOps;

/// Locks held during a change; released when dropped.
#[derive(Default)]
pub struct Held {
    locks: smallvec::SmallVec<[LocalLock; 4]>,
}

impl MdtOps {
    /// Locks `dirs` for a change of entries and `objects` for a change of what the bits cover.
    /// `own`: the client whose own locks stay.
    pub async fn lock(&self, dirs: &[Fid], objects: &[(Fid, Ibits)], own: Option<ExportId>) -> Held {
        let mut held = Held::default();
        let mut dirs: smallvec::SmallVec<[Fid; 2]> = dirs.into();
        dirs.sort_unstable();
        dirs.dedup();
        // a directory that is also what changes (a link to ".") has its lock already; the
        // operation fails later
        let mut objects: smallvec::SmallVec<[(Fid, Ibits); 2]> = objects.into();
        objects.retain(|o| !dirs.contains(&o.0));
        objects.sort_unstable_by_key(|o| o.0);
        for d in dirs {
            held.locks.push(self.lock_one(&d, LdlmMode::CW, Ibits::UPDATE, own).await);
        }
        for (fid, bits) in objects {
            held.locks.push(self.lock_one(&fid, LdlmMode::EX, bits, own).await);
        }
        held
    }

    /// Locks the layout of `fid` for a change; nobody keeps a lock on it.
    pub async fn lock_layout(&self, fid: &Fid) -> LocalLock {
        self.lock_one(fid, LdlmMode::EX, Ibits::LAYOUT, None).await
    }

    async fn lock_one(&self, fid: &Fid, mode: LdlmMode, bits: Ibits, own: Option<ExportId>) -> LocalLock {
        let (res, policy) = (fid.res_id(), Policy::ibits(bits));
        match self.ldlm.try_lock_local(res, LdlmType::IBITS, mode, policy, own) {
            Some(l) => l,
            None => self.ldlm.lock_local(res, LdlmType::IBITS, mode, policy, own).await,
        }
    }
}
