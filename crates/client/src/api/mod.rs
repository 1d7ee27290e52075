//! A file system by path, for programs that mount nothing: no FUSE, no mount point, no privileges.
//!
//! [`FileSystem`] is for programs that have a tokio runtime, [`blocking::FileSystem`] for those that have none. Paths begin at the
//! mounted directory, with or without a "/"; symbolic links are followed. A [`PathError`] says what
//! failed and why, with the errno that the system call on a mount would give; `?` makes a [`std::io::Error`] of it. What is missing here ([`crate::Llite`] has it): file locks, extended attributes, layouts.
//!
//! ```no_run
//! use coral_client::{FileSystem, OpenOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let fs = FileSystem::mount("10.0.0.1@tcp:/coral").await?;
//! fs.mkdir("results", 0o755).await?;
//! let file = fs
//!     .open("results/run1", &OpenOptions::new().write(true).create(true))
//!     .await?;
//! file.write_at(b"42", 0).await?;
//! file.sync().await?;
//! file.close().await?;
//! for entry in fs.read_dir("results").await? {
//!     println!("{}", String::from_utf8_lossy(&entry.name));
//! }
//! fs.unmount().await;
//! # Ok(())
//! # }
//! ```

pub mod blocking;
mod error;
mod file;
mod file_system;
mod mounted;
mod source;
mod walk;

pub use error::PathError;
pub use file::{File, OpenOptions};
pub use file_system::{ConnectError, FileSystem};
pub use source::{Source, SourceError};
