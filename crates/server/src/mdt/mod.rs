//! The metadata target: name space, attributes, layouts, open files.
//!
//! Layers, bottom up, each a file:
//! * records and tables: [`record`], [`table`], [`acl`], [`cred`];
//! * the functional core: [`store`] (transactions), [`namespace`], [`attr`], [`xattr`], [`stripe`];
//! * [`open`] handles and the whole state, [`core`]; [`check`], the offline verifier.
//!
//! Invariants: one writer at a time; one operation is one atomic batch; a change is made only
//! after the locks of clients that cache what it changes have been called back.
//! Lustre: `lustre/mdt`, `lustre/mdd`, `lustre/lod`. Absent: other MDTs (DNE), HSM, quotas,
//! changelogs, FLR writes, data on MDT.

pub mod acl;
pub mod attr;
pub mod check;
pub mod core;
pub mod cred;
pub mod namespace;
pub mod open;
pub mod record;
pub mod store;
pub mod stripe;
pub mod table;
pub mod xattr;

#[cfg(test)]
mod model_tests;
