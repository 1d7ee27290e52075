//! A client on a cluster with one MDT, all in this process. One program: each is compiled with all of the servers.

#[path = "../common/mod.rs"]
mod common;

mod ahead;
mod along;
mod created;
mod dom;
mod dropped;
mod failover;
mod freed;
mod held;
mod kept;
mod late;
mod made;
mod model;
mod orphans;
mod pages;
mod posix;
mod privileges;
mod recovery;
mod removals;
mod reopen;
mod rows;
mod rpcs;
mod shared;
mod shown;
mod stored;
mod untold;
mod writeback;
