//! LNet in user space: one [`Node`] is one LNet node (one or more NIDs), as `lnet/lnet` and `lnet/klnds/socklnd` are in Lustre.
//!
//! What it offers upwards is Portals: PUT and GET of up to 1 MiB to `(NID, portal, match bits)`, with optional ACK.
//! What is below are two LNDs: `memlnd` (nodes of one process, [`MemNet`]; delivered inline on the sender's stack,
//! buffers are handed over and never copied) and `socklnd` (TCP, compatible with the kernel's).
//!
//! # Invariants
//! - A node is a value: no statics, no process-wide state. Libraries create no runtime.
//! - Delivery is inline: a portal handler runs on the stack of the reader (or of the in-process sender) and must not block.
//! - No lock of this crate is held while a handler, a waker or a sender's code runs.
//! - Everything that queues on behalf of peers is bounded by [`Limits`], router buffers by [`PoolSizes`], what fault rules hold
//!   back by [`faults::MAX_DELAYED`]. What the layers above ask to be sent waits for credits, and is theirs to bound.
//!
//! # Routes, routers, Multi-Rail
//! A node may have several NIDs, on one network or on several. [`RouteSpec`]s lead to networks on which it has none; a node that
//! routes ([`NodeConfig::routing`]) forwards what is for others. Peers with several NIDs are known by their primary one and
//! reached by all. Modules: `path` (which way), `routes` and `gateway` (which router), `forward` and `router` (being one), `peers`
//! and `ni` (who has which interface, and its health), `monitor` (what is looked after once a second), `show` (for tools).
//!
//! # Left out
//! IPv6 NIDs, selection policies (UDSP), zero-copy transmission.
#![warn(missing_docs)]

mod access;
pub mod exec;
mod ext;
pub mod faults;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
pub mod history;
mod limits;
mod link;
mod mem;
mod monitor;
mod msg;
mod ni;
mod node;
mod path;
mod peers;
mod pending;
mod ping;
mod portals;
mod router;
mod routes;
pub mod selftest;
pub mod show;
mod sock;
mod stats;
mod wall;

pub use access::{Accept, KnownBy};
pub use coral_wire::lnet::{LNET_MTU, PingInfo};
pub use coral_wire::nid::{Nid, ProcessId};
pub use faults::{FaultAction, FaultRule, Faults, MsgType};
pub use limits::Limits;
pub use link::{LinkModel, LinkStat};
pub use mem::{MemNet, Passing, Tamper};
pub use node::{Node, NodeConfig, Put, SendError, StartError};
pub use peers::PeerError;
pub use portals::{GetOffer, PortalHandler, PutEvent, PutExpectation};
pub use router::PoolSizes;
pub use routes::{RouteError, RouteSpec, net_name, parse_net, parse_routes};
pub use sock::local::{local_nid_for, local_nid_on};
pub use stats::{HandoverStats, METRICS, NodeStats};
pub use wall::WallClock;
