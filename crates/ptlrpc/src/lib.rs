//! PTLRPC: requests, bulk, imports with recovery on the client side, services on the server side.
//!
//! - [`Import`]: a client's connection to one target: connect, xids, slots, resend, replay, pings, eviction. Its states are a
//!   pure table in [`state`]; its time-outs a pure estimate in [`timeouts`].
//! - [`Service`] and [`ServerRequest`]: the server side: bounded queues, inline execution, early replies, bulk.
//! - [`send_ast`]: a tiny RPC from a server to a client's callback portal.
//!
//! # Invariants
//! - No lock of this crate is held while a message is sent: memlnd delivers on the sender's stack.
//! - A request that is answered inline arms no timer and moves to no other thread.
//! - A modifying request to an MDT holds a slot tag from before its xid is taken until its reply is here; a call that is dropped
//!   meanwhile is finished in the background.
//!
//! Read from `lustre/ptlrpc/{client,import,niobuf,service,pinger,recover}.c`. Left out: security flavours other than null,
//! NRS policies, request and reply buffers of fixed size (replies are as large as they come).
#![warn(missing_docs)]

pub mod alive;
pub mod ast;
mod attempt;
mod call;
mod config;
mod connect;
mod idle;
mod import;
mod recovery;
mod replay;
mod request;
mod server_request;
mod service;
mod slots;
pub mod state;
mod stats;
pub mod timeouts;
mod watched;
mod xid;

pub use ast::send_ast;
pub use config::ImportConfig;
pub use import::{Import, ImportObserver};
pub use replay::Lost;
pub use request::{Bulk, Call, ConnectError, Replay, Reply, Request, RpcError};
pub use server_request::{Arrival, BulkError, Control, ServerRequest};
pub use service::{RequestHandler, Service, ServiceConfig};
pub use state::ImportState;
pub use stats::{METRICS, OPCODES, RpcStats, ServiceStats};
