//! The metadata target: name space, attributes, layouts, open files.
//!
//! Layers, bottom up, each a file:
//! * records and tables: [`record`], [`table`], [`acl`], [`cred`];
//! * the functional core: [`store`] (transactions), [`namespace`], [`attr`], [`xattr`], [`stripe`] and [`object_ids`], [`usage`];
//! * [`open_handles`] and the whole state, [`core`]; [`check`], the offline verifier, and [`repair`], which mends what it finds;
//! * requests: [`ctx`], [`packed`], [`locks`], `version` (what replays are allowed on), then `getattr`, `reint`, `intent`, `batch`, `opening`, `misc`;
//! * who asks: `who`, with [`identity`] (the groups of users), [`squash`] (root squash), and their settings in `params`;
//! * [`osp`], the MDT as a client of its OSTs; [`dom`], data on the MDT; [`handler`], the MDT as a target;
//! * `lending`: directories from which one client takes names and tells of it later;
//! * other MDTs: [`fld`] (whose a FID is), [`mdts`] (connections), `remote` (names and objects apart), [`trans`] and [`out`] (operations
//!   over several of them), `restripe` (names on their way to other shards).
//!
//! Invariants: one writer at a time; one operation is one atomic batch; a change is made only
//! after the locks of clients that cache what it changes have been called back. No lock of the
//! lock manager is released and no request sent while the core's lock is held. What only reads shares it.
//! Lustre: `lustre/mdt`, `lustre/mdd`, `lustre/lod`. Absent: HSM, limits of quotas, changelogs, FLR writes.

pub mod acl;
mod ancestors;
pub mod attr;
mod batch;
pub mod check;
mod closing;
mod connect;
pub mod core;
pub mod cred;
pub mod ctx;
pub mod dom;
pub mod fld;
mod follows;
mod getattr;
pub mod handler;
pub mod identity;
mod intent;
mod lending;
pub mod locks;
pub mod mdts;
pub mod migrating;
mod misc;
pub mod namespace;
pub mod object_ids;
pub mod open_handles;
mod opening;
pub(crate) mod orphans;
pub mod osp;
pub mod out;
pub mod packed;
mod params;
pub mod record;
mod reint;
mod remote;
pub mod repair;
mod restripe;
mod rmfid;
pub mod squash;
pub mod store;
pub mod stripe;
pub mod striped;
pub mod table;
pub mod trans;
mod turns;
pub mod usage;
mod version;
mod waiting;
mod who;
pub mod xattr;

#[cfg(test)]
mod model_tests;

pub use self::check::{check, check_all};
pub use handler::{Mdt, MdtConfig, MdtOps};
pub use mdts::MdtTarget;
pub use osp::OstTarget;
pub use stripe::StripeDefaults;
pub(crate) use waiting::low_space;
