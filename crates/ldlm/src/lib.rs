//! LDLM, Lustre's distributed lock manager: plain, extent, inode-bits and flock locks; server and client namespaces.
//!
//! Three layers, lowest first:
//! - [`core`]: the lock table of one server namespace as a plain state machine: resources, granted and waiting
//!   queues, the four lock types. No I/O, no clock, no lock of its own; what must be sent comes out as actions.
//! - [`server`]: [`LdlmServer`], the shell around it: enqueue, cancel, convert, replay, server-side locks, callbacks
//!   (ASTs) through an [`AstSender`], and the time-outs which evict a client that does not answer.
//! - [`client`]: [`LdlmClient`] and [`ClientNamespace`]: locks held by this node, callbacks on portal 15, LRU, replay.
//!
//! Invariants: no mutex is held while anything is sent (messages to a node of the same process are delivered on the
//! caller's stack, and their handlers come back into this crate); a granted lock never conflicts with another granted
//! lock of its resource; waiting locks are granted first come, first served.
//!
//! Read from `lustre/ldlm/*.c` and `lustre/include/lustre_dlm.h`. Left out: lock volume (SLV, LRU_RESIZE), contention
//! history, COS and TXN bookkeeping beyond the mode table, quota glimpses.

pub mod ast;
pub mod client;
pub mod core;
mod cover;
pub mod server;
mod slab;
mod stats;

pub use ast::{AstError, AstPeer, AstPeers, AstSender, EvictReason, PtlrpcAsts};
pub use client::{
    CALLBACK_SERVICE, ClientConfig, ClientNamespace, FlockOp, Glimpsed, LdlmClient, LockError,
    LockHook, LockPool, LockRef, PendingLock,
};
pub use core::LockInfo;
pub use server::{
    EnqueueError, EnqueueReply, GlimpseReply, LdlmConfig, LdlmServer, LocalLock, LvbOps,
};
pub use stats::METRICS;

/// Names an export (a client known to a target): the cookie the server gave at connect.
pub type ExportId = u64;
