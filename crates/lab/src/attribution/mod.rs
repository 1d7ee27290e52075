//! Time taken apart: the stopwatches of several nodes joined, so that each operation's time lies in segments.
//!
//! - [`Segment`]: where time can be.
//! - [`Joined`]: operations with their parts, in the order in which they were, without gaps or overlaps.
//! - [`Clock`]: how far the clock of a node is from that of another, and how sure that is.
//!
//! # Invariants
//! - The parts of an operation add up to its time. What nobody stamped is [`Segment::NotPlaced`].
//! - Stamps that contradict each other are told in [`Joined::conflict_ns`], and not hidden by moving parts.

mod clocks;
mod join;
mod line;
mod perfetto;
mod segment;
mod text;

pub use clocks::Clock;
#[cfg(test)]
pub(crate) use join::rpc_of;
pub(crate) use join::to_one_clock;
pub use join::{Asks, Callback, Joined, JoinedOp, JoinedRpc, Meanwhile, join};
pub use line::Part;
pub use perfetto::perfetto;
pub use segment::Segment;
pub(crate) use text::time;
pub use text::{Filter, operation_text, text};
