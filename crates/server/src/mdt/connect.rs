//! What an MDT grants at connect.

use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2};
use coral_wire::ldlm::Ibits;

/// Connect flags an MDT of Coral grants. What is not here is not implemented.
pub(super) const FLAGS: u64 = F::VERSION.0
    | F::ACL.0
    | F::XATTR.0
    | F::RDONLY.0
    | F::LARGE_ACL.0
    | F::IBITS.0
    | F::ATTRFID.0
    | F::NODEVOH.0
    | F::BRW_SIZE.0
    | F::CANCELSET.0
    | F::AT.0
    | F::FID.0
    | F::LOV_V3.0
    | F::MAX_EASIZE.0
    | F::FULL20.0
    | F::LAYOUTLOCK.0
    | F::B64BITHASH.0
    | F::JOBSTATS.0
    | F::UMASK.0
    | F::EINPROGRESS.0
    | F::LVB_TYPE.0
    | F::SHORTIO.0
    | F::FLOCK_DEAD.0
    | F::DIR_STRIPE.0
    | F::DISP_STRIPE.0
    | F::OPEN_BY_FID.0
    | F::MULTIMODRPCS.0
    | F::SUBTREE.0
    | F::BULK_MBITS.0
    | F::SRVLOCK.0
    | F::VBR.0
    | F::MDS_MDS.0
    | F::LIGHTWEIGHT.0
    | F::FLAGS2.0;

/// The same of the second word.
pub(super) const FLAGS2: u64 = F2::DIR_MIGRATE.0
    | F2::SUM_STATFS.0
    | F2::OVERSTRIPING.0
    | F2::INC_XID.0
    | F2::LSEEK.0
    | F2::REP_MBITS.0
    | F2::ATOMIC_OPEN_LOCK.0
    | F2::DMV_IMP_INHERIT.0
    | F2::CRUSH.0
    | F2::DOM_LVB.0
    | F2::BATCH_RPC.0
    | F2::CORAL.0;

/// Lock bits an MDT of Coral knows.
pub(super) const IBITS: u64 = Ibits::LOOKUP.0
    | Ibits::UPDATE.0
    | Ibits::OPEN.0
    | Ibits::LAYOUT.0
    | Ibits::PERM.0
    | Ibits::XATTR.0
    | Ibits::DOM.0;
