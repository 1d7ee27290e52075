//! Nodes and clusters made of parts: what the command line, the tests, the laboratory and the bindings start from.
//!
//! - [`net`]: an LNet node from NIDs, routes, a port and a seed, and what leads to other nodes.
//! - [`servers`]: the running servers of one node; [`device`]: what their targets lie on; [`target_dir`]: what a target's
//!   directory holds beside its label.
//! - [`client`]: a mounted file system and the node it speaks through.
//! - [`cluster`]: a whole file system in this process: servers on one node or on several, clients, routers, links, power losses.
//!
//! # Invariants
//! - A node is a value: nothing here is global, and any number of nodes, servers and clusters live in one process.
//! - What is started for a test is what is started for users: [`Cluster`] is made of [`Servers`] and [`Client`], as the command
//!   line is.
//! - Which storage a target is on is decided in one place, [`device`].
//!
//! Absent: FUSE mounts, daemons and everything that talks to a person (the command line has them); several MDTs.
//!
//! # Example
//!
//! A file system of two OSTs, a file on both of them, and the same file after all servers were killed:
//!
//! ```
//! use coral_client::Cred;
//! use coral_node::Cluster;
//!
//! const O_RDWR: u32 = 2;
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut cluster = Cluster::builder().osts(2).stripes(2, 65536).start().await?;
//!     let fs = cluster.remote_client().await?;
//!     let me = Cred::root();
//!
//!     let (_, file) = fs.create(&me, fs.root(), b"greeting", 0o644, O_RDWR).await?;
//!     let data = bytes::Bytes::from(vec![b'x'; 200_000]);
//!     assert_eq!(fs.write(&me, &file, 0, data.clone().into()).await?, data.len());
//!     fs.release(&file).await?;
//!
//!     cluster.kill_and_restart().await?;
//!
//!     let found = fs.lookup(&me, fs.root(), b"greeting").await?;
//!     let file = fs.open(&me, found.attr.fid, 0).await?;
//!     let read = fs.read(&file, 0, 1 << 20).await?;
//!     assert!(read.copy_to_bytes() == data);
//!     fs.release(&file).await?;
//!
//!     fs.umount().await;
//!     cluster.stop().await;
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod backend;
pub mod client;
pub mod cluster;
pub mod net;
pub mod servers;
pub mod target_dir;

pub use backend::{Backend, TargetSpec};
pub use client::Client;
pub use cluster::{Builder, Cluster, ClusterError, Disks};
pub use net::NetConfig;
pub use servers::{Servers, ServersConfig, ServersError, TargetStatus};
