//! A client on a cluster with several MDTs, all in this process.

#[path = "../common/mod.rs"]
mod common;
#[path = "../several/mod.rs"]
mod several;

mod mdts;
mod migrate;
mod restripe;
mod rmfid;
mod striped;
mod waits;
