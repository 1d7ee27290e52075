//! Lustre servers: MGS, MDT and OST targets, their exports, transactions and recovery.
pub mod mdt;
