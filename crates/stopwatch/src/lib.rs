//! The stopwatch of a request: each segment of its time is stamped where it happens, and kept in a bounded ring of the node.
//!
//! Nothing of it goes on the wire. Records of several nodes are joined afterwards, by the client's NID and the xid.
//!
//! - [`Stopwatch`]: the rings of one node, and its clock.
//! - [`Watch`]: one operation that waits or needs an RPC, one RPC, or one request being handled. While its future is polled it is the current one of the thread, so
//!   that whoever waits below can say for what ([`waits`]) without being handed anything.
//! - [`Dump`]: what a node gives out.
//!
//! # Invariants
//! - Time is tokio's clock: under a paused clock the stamps are exact.
//! - Memory is bounded: [`KEPT`] records of each kind, [`WAITS_KEPT`] waits of each, and [`UNDER_WAY_MAX`] of what is under way.
//! - A future that does not wait reads no clock here but where it begins and ends.
#![warn(missing_docs)]

mod record;
mod ring;
mod stopwatch;
mod timed;
mod under_way;
mod watch;

pub use record::{Begun, Dump, Kind, Machine, Op, Passage, Rpc, Served, Wait, Waited, Waits};
pub use ring::KEPT;
pub use stopwatch::{Name, Passing, RpcEnd, ServedEnd, Stopwatch, dumps};
pub use timed::{apart, carried, waits, watched};
pub use under_way::{Asked, Entry, Teller, UNDER_WAY_MAX};
pub use watch::{Part, Ran, Seen, WAITS_KEPT, Watch, current, first_poll, handled, poll_first};
