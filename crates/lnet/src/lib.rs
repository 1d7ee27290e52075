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
//! - Everything that queues is bounded by [`Limits`].
#![warn(missing_docs)]

pub mod exec;
mod nid_tmp;
mod mem;
mod node;
mod payload;

pub use nid_tmp::{Nid, ProcessId};
pub use exec::HandoverStats;
pub use mem::MemNet;
pub use node::{GetOffer, Limits, Node, NodeConfig, NodeStats, PortalHandler, PutEvent, PutExpectation, SendError, StartError, WallClock, local_nid_for};
pub use payload::Payload;

/// Largest payload of one LNet message in bytes (`LNET_MTU`, lnet/include/uapi/linux/lnet/lnet-types.h).
pub const LNET_MTU: usize = 1 << 20;

/// Answer to a ping (until coral-wire has it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingInfo {
    /// `LNET_PING_FEAT_*` bits.
    pub features: u32,
    /// LNet pid.
    pub pid: u32,
    /// NIDs with their status word, `0@lo` first.
    pub nis: Vec<(Nid, u32)>,
}
