//! Inode-bits locks: the bits that are taken along only when nobody else has them.
//!
//! Lustre: `ldlm_inodebits_compat_queue` in `lustre/ldlm/ldlm_inodebits.c`.

use coral_wire::ldlm::{Ibits, Policy};

use super::lock::Lock;

/// Optional bits of an ibits lock; 0 for other types.
pub(super) fn try_bits(lock: &Lock) -> u64 {
    match lock.policy {
        Policy::Ibits { try_bits, .. } => try_bits.0,
        _ => 0,
    }
}

/// False for an ibits lock without a single bit: it would conflict with nothing and protect nothing.
pub(super) fn wants_something(lock: &Lock) -> bool {
    match lock.policy {
        Policy::Ibits { bits, try_bits, .. } => (bits.0 | try_bits.0) != 0,
        _ => true,
    }
}

/// The policy of `want` less the optional bits that an incompatible lock has or waits for.
pub(super) fn trimmed<'a>(want: &Lock, others: impl Iterator<Item = &'a Lock>) -> Policy {
    let Policy::Ibits {
        bits,
        mut try_bits,
        gid,
        initiator_id,
    } = want.policy
    else {
        return want.policy;
    };
    for o in others {
        let ignored = want.ignore.is_some() && want.ignore == o.export;
        if let (
            false,
            false,
            Policy::Ibits {
                bits: b,
                try_bits: t,
                ..
            },
        ) = (ignored, o.mode.compatible(want.mode), o.policy)
        {
            try_bits.0 &= !(b.0 | t.0);
        }
    }
    Policy::Ibits {
        bits,
        try_bits,
        gid,
        initiator_id,
    }
}

/// All bits, optional ones included, as granted.
pub(super) fn with_try_bits(policy: Policy) -> Policy {
    match policy {
        Policy::Ibits {
            bits,
            try_bits,
            gid,
            initiator_id,
        } => Policy::Ibits {
            bits: Ibits(bits.0 | try_bits.0),
            try_bits: Ibits(0),
            gid,
            initiator_id,
        },
        p => p,
    }
}

/// The policy less all bits outside `keep`.
pub(super) fn only(policy: Policy, keep: u64) -> Policy {
    match policy {
        Policy::Ibits {
            bits,
            gid,
            initiator_id,
            ..
        } => Policy::Ibits {
            bits: Ibits(bits.0 & keep),
            try_bits: Ibits(0),
            gid,
            initiator_id,
        },
        p => p,
    }
}
