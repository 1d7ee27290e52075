//! Points in time, and how they travel: whole seconds with Lustre, packed nanoseconds between two Coral ends.

use coral_lnet::Node;
use coral_wire::coral::{pack_time, unpack_time};

/// A point in time, seconds and nanoseconds since 1970 (seconds may be negative).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timespec {
    /// Whole seconds since the epoch.
    pub secs: i64,
    /// Nanoseconds within the second, 0..1_000_000_000.
    pub nanos: u32,
}

impl Timespec {
    /// Wall time of the node.
    pub(crate) fn now(node: &Node) -> Self {
        let (secs, nanos) = node.wall_time();
        Self { secs, nanos }
    }

    /// As a time field on the wire; `coral`: the peer agreed to [`coral_wire::coral`].
    pub(crate) fn to_wire(self, coral: bool) -> i64 {
        if coral {
            pack_time(self.secs, self.nanos)
        } else {
            self.secs
        }
    }

    /// From a time field on the wire.
    pub(crate) fn from_wire(t: i64, coral: bool) -> Self {
        match coral {
            true => {
                let (secs, nanos) = unpack_time(t);
                Self { secs, nanos }
            }
            false => Self { secs: t, nanos: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_come_back() {
        let t = Timespec {
            secs: 1_700_000_000,
            nanos: 123_456_789,
        };
        assert_eq!(Timespec::from_wire(t.to_wire(true), true), t);
        assert_eq!(
            Timespec::from_wire(t.to_wire(false), false),
            Timespec { nanos: 0, ..t }
        );
    }
}
