//! Nodemaps: which ids the servers believe of which nodes, and who a node's users are here (`lustre/ptlrpc/nodemap_*.c`).
//!
//! - [`core`]: nodemaps as a plain value; [`idmap`]: pairs of ids; [`text`]: as `lctl` shows them.
//! - [`view`]: what one client's nodemap says, applied to attributes and ACLs.
//! - [`store`]: how the MGS keeps them.
//!
//! The MGS has the nodemaps ([`crate::mgs::Mgs::nodemap_command`]) and hands them to the servers ([`crate::ServerNode::set_nodemaps`]),
//! each of which gives every export its [`View`] at connect and again when they change. Requests are mapped where their identity is
//! read (`mdt/who.rs`), attributes where they are packed (`mdt/packed.rs`, `ost/obdo.rs`).

pub mod core;
pub mod idmap;
pub mod store;
pub mod text;
pub mod view;

pub use self::core::{Command, IdType, Nodemap, Nodemaps};
pub use self::view::View;

/// Name of what a server locks and reads at the MGS (`LUSTRE_NODEMAP_NAME`).
pub const NODEMAP_LOG: &str = "nodemap";
