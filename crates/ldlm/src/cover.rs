//! When one lock's policy includes another's.

use coral_wire::ldlm::Policy;

/// True when a lock with policy `held` protects everything that `need` names.
pub(crate) fn covers(held: &Policy, need: &Policy) -> bool {
    match (held, need) {
        (Policy::Plain, Policy::Plain) => true,
        (
            Policy::Extent { gid, .. },
            Policy::Extent {
                start, end, gid: g, ..
            },
        ) => gid == g && held.span().is_some_and(|s| s.has(*start, *end)),
        (Policy::Ibits { bits, .. }, Policy::Ibits { bits: b, .. }) => b.0 & !bits.0 == 0,
        (
            Policy::Flock {
                start, end, owner, ..
            },
            Policy::Flock {
                start: s,
                end: e,
                owner: o,
                ..
            },
        ) => start <= s && e <= end && owner == o,
        _ => false,
    }
}
