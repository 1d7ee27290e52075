//! Leases: opens that another's open for writing breaks.

use coral_wire::ldlm::{Ibits, LdlmMode, LdlmRequest, LdlmType, Policy};
use coral_wire::mds::open as flag;
use coral_wire::{Errno, Fid};

use super::super::core::MdtCore;
use super::super::ctx::Ctx;
use super::super::record::Inode;
use super::Open;

impl Ctx {
    /// The lock that is a lease: whoever opens the file to write it, or truncates it, calls it back. It lives with the client,
    /// whose close may come with it. `None`: it is not free at once.
    pub(super) fn lease_lock(&self, req: &LdlmRequest, fid: &Fid) -> Option<u64> {
        let given = self.ops.ldlm.try_grant(
            self.exp(),
            req.handle(0),
            fid.res_id(),
            LdlmType::IBITS,
            LdlmMode::PW,
            Policy::ibits(Ibits::OPEN),
        )?;
        Some(given.0)
    }

    /// EPROTO of a lease without a lock, EINVAL of what is no file, EBUSY of what others use.
    pub(super) fn may_lease(
        &self,
        core: &MdtCore,
        o: &Open<'_>,
        fid: &Fid,
        ino: &Inode,
    ) -> Result<(), Errno> {
        if !o.has(flag::LOCK) {
            return Err(Errno::EPROTO);
        }
        if !ino.is_reg() {
            return Err(Errno::EINVAL);
        }
        core.opens.may_lease(fid, o.rec.open_handle_old, self.exp())
    }
}
