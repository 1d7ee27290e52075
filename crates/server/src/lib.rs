//! Lustre servers: MGS, MDT and OST targets, their exports, transactions and recovery.
//!
//! - [`dispatch`]: [`ServerNode`], the services of one node; routes each request to its target.
//! - [`target`]: what all targets share: exports, transactions with reply data, last_committed, recovery, evictions.
//! - [`mgs`], [`mdt`], [`ost`]: the targets themselves, as [`TargetOps`].
//! - [`nodemap`]: which ids are believed of which nodes; [`nidlist`]: lists of nodes.
//! - [`quota`]: what targets count for users, groups and projects, and how they answer for it.
#![warn(missing_docs)]

pub mod dispatch;
#[doc(hidden)]
pub mod fuzzing;
pub mod mdt;
pub mod mgs;
pub mod nidlist;
pub mod nodemap;
pub mod older_copy;
pub mod ost;
pub mod quota;
pub mod register;
mod stats;
pub mod target;

pub use dispatch::ServerNode;
pub use stats::{METRICS, MdtStats, TargetStats};
pub use target::{
    Export, LuTarget, Membership, RecoveryStatus, TargetConfig, TargetKind, TargetOps,
    TargetRequest, WaitedFor, Windows,
};
