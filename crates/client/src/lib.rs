//! The Lustre client as a library: MGC, MDC, OSC, LMV, LOV and llite.
//!
//! Layers, top down, as in Lustre: [`llite`] is a POSIX file system without a mount; it asks [`lmv`] which metadata
//! server a name lives on, [`mdc`] speaks to one MDT, [`lov`] maps file offsets to objects, [`osc`] speaks to one OST,
//! [`mgc`] reads the configuration. Programs that embed a file system use [`FileSystem`], by path, or [`blocking::FileSystem`] without
//! a runtime of their own.
//!
//! Calls of the asynchronous parts wait without a thread. What would block one runs elsewhere: the kernel's pages are dropped on a
//! thread of tokio's blocking pool. Only reading a caller's groups from `/proc` is done in place. Nothing is global: a mount is a
//! value.

mod api;
mod ask;
pub mod error;
pub mod grant;
pub mod llite;
pub mod lmv;
pub mod lov;
pub mod mdc;
pub mod mgc;
pub mod osc;
mod stats;
pub mod target;
pub mod time;

pub use api::{
    ConnectError, File, FileSystem, OpenOptions, PathError, Source, SourceError, blocking,
};
pub use error::{Error, ErrorLog, Refusal, TargetError};
pub use llite::types::{
    Attr, Cred, DirEntry, Entry, FileLock, Invalidate, LockKind, MountError, MountOptions,
    SeekWhence, SetAttr, SetTime, StatFs, Timespec, Waits,
};
pub use llite::{DirHandle, FileHandle, Llite};
pub use stats::METRICS;
