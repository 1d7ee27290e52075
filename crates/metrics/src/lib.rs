//! What a node counts: counters, gauges and histograms, each declared once, in the table of its layer.
//!
//! A layer declares its metrics with [`group!`]: field, name, unit, stability and a line of help. The owner keeps the group in an
//! [`Arc`](std::sync::Arc), counts in its fields, and attaches it to the [`Registry`] of its node, which is a value as the node is.
//! A [`Snapshot`] of registries is shown as Prometheus text or JSON.
//!
//! # Invariants
//! - Counting is one relaxed atomic addition, recording in a histogram two; neither locks, allocates nor looks at a clock.
//! - A registry keeps no group alive: what a target or a mount counted goes with it.
//! - The labels of a metric are of a bounded set: a target, a service, an opcode.
//! - Memory is bounded: a histogram has [`histogram::BUCKETS`] buckets, and a [`Family`] a cell for each value of its label.
#![warn(missing_docs)]

mod counter;
mod desc;
mod family;
pub mod histogram;
mod registry;
mod snapshot;
mod wakeups;

pub use counter::{Counter, Gauge, Held, Probe};
pub use desc::{Desc, Kind, Metric, OfKind, Stability, Unit};
pub use family::{Family, LabelSet};
pub use histogram::{Histogram, Recorded};
pub use registry::{Group, Registry};
pub use snapshot::{Point, Series, Snapshot};
pub use wakeups::wakeups;

/// Declares the metrics of one owner: a struct of them with its table, `TABLE`.
///
/// ```
/// use coral_metrics::{Counter, Family, Histogram, LabelSet};
///
/// const WAYS: LabelSet = LabelSet { label: "way", count: 2, name: |i| ["in", "out"][i] };
///
/// coral_metrics::group! {
///     /// What a door has done.
///     pub struct DoorStats {
///         /// Times it was opened.
///         pub opened: Counter = "coral_door_opened_total", Requests, Stable;
///         /// How long it stood open.
///         pub open: Histogram = "coral_door_open_seconds", Seconds, Experimental;
///         /// Who passed it.
///         pub passed: Family<Counter> = "coral_door_passed_total", Requests, Experimental, by WAYS;
///     }
/// }
///
/// let stats = DoorStats::default();
/// stats.opened.inc();
/// stats.passed.at(1).add(2);
/// assert_eq!((stats.opened.value(), stats.passed.at(1).value()), (1, 2));
/// assert_eq!(DoorStats::TABLE[0].help, "Times it was opened.");
/// ```
#[macro_export]
macro_rules! group {
    (
        $(#[$meta:meta])*
        $vis:vis struct $group:ident {
            $(
                #[doc = $help:literal]
                $fvis:vis $field:ident : $ty:ty = $name:literal, $unit:ident, $stability:ident $(, by $labels:expr)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $group {
            $(#[doc = $help] $fvis $field: $ty,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: $crate::group!(@new $($labels)?),)* }
            }
        }

        impl $group {
            /// Its metrics, in the order of its fields.
            pub const TABLE: &'static [$crate::Desc] = &[
                $($crate::Desc {
                    name: $name,
                    kind: <$ty as $crate::OfKind>::KIND,
                    unit: $crate::Unit::$unit,
                    stability: $crate::Stability::$stability,
                    label: $crate::group!(@label $($labels)?),
                    help: $crate::Desc::line($help),
                },)*
            ];
        }

        impl $crate::Group for $group {
            fn table(&self) -> &'static [$crate::Desc] {
                Self::TABLE
            }

            fn observe(&self, see: &mut dyn FnMut(&'static $crate::Desc, &dyn $crate::Metric)) {
                let mut table = Self::TABLE.iter();
                $(if let Some(desc) = table.next() {
                    see(desc, &self.$field);
                })*
            }
        }
    };
    (@new) => { Default::default() };
    (@new $labels:expr) => { $crate::Family::new(&$labels) };
    (@label) => { None };
    (@label $labels:expr) => { Some($labels.label) };
}
