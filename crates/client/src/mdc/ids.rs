//! Who a metadata request is made for.

use coral_wire::fid::Fid;
use coral_wire::mds::MdtBody;

/// File system ids of the caller as they go into every record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// File system user id.
    pub fsuid: u32,
    /// File system group id.
    pub fsgid: u32,
    /// Capabilities (`CAP_*` bit mask, low 32).
    pub cap: u32,
    /// Up to two supplementary groups that matter for the objects at hand; `u32::MAX`: none.
    pub suppgids: [u32; 2],
    /// umask of the process.
    pub umask: u32,
}

impl Ids {
    /// No supplementary group.
    pub const NO_GROUP: u32 = u32::MAX;

    /// The superuser.
    pub fn root() -> Self {
        Self {
            fsuid: 0,
            fsgid: 0,
            cap: u32::MAX,
            suppgids: [Self::NO_GROUP; 2],
            umask: 0,
        }
    }

    /// An mdt_body about `fid` for this caller.
    pub(crate) fn body(&self, fid: Fid, valid: u64) -> MdtBody {
        let mut b = MdtBody {
            fid1: fid,
            valid,
            fsuid: self.fsuid,
            fsgid: self.fsgid,
            capability: self.cap,
            suppgid: self.suppgids[0],
            ..Default::default()
        };
        if !fid.is_zero() {
            b.valid |= coral_wire::mds::md::FLID;
        }
        b
    }
}
