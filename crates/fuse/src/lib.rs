//! llite as a mount: Coral's own FUSE server.
//!
//! Why our own and not a crate: FUSE_INTERRUPT must end a wait (fuser answers ENOSYS), flock must be told from fcntl locks,
//! a request is polled on the thread that read it (no hand-over on the fast path), a WRITE's payload goes down without a
//! copy, and a READ's answer goes out from the payload's own segments.
//!
//! Data: reads through a descriptor opened read-only, where llite says so, and mappings use the kernel's page cache; llite
//! holds extent locks that cover its pages and has them dropped before it gives these back. Everything else is opened with
//! FOPEN_DIRECT_IO and PARALLEL_DIRECT_WRITES. AUTO_INVAL_DATA drops pages, too, when size or mtime turn out changed. Names
//! and attributes are remembered by the kernel exactly as long as llite says a lock covers them.
//!
//! Permissions are checked by the kernel (default_permissions, and ACLs), as by Lustre's client, from attributes that a lock covers,
//! and by the MDT with the caller's ids. The kernel alone can check pipes, sockets, devices and watches: it opens them without
//! asking anybody. The price is a GETATTR where the kernel does not know the attributes: two at a create (of the directory, which
//! has changed, and of the file, whose size no lock covers yet), one at an open of a file whose size no lock covers, one for each
//! new directory on the way. A user other than root has no use of CAP_DAC_OVERRIDE and its like at the MDT: no capability
//! reaches a FUSE server.
//!
//! If the process dies, calls on the mount fail with ENOTCONN until `fusermount3 -u DIR` (or `umount DIR`).
//!
//! The kernel's side: Linux `fs/fuse/`, `include/uapi/linux/fuse.h`. Lustre's: `lustre/llite/` hooks into the VFS instead.

pub mod abi;
mod buf;
mod error;
mod fresh;
mod fs;
mod handles;
mod init;
mod interrupt;
mod ioctl;
mod listings;
mod llite;
mod mount;
mod naming;
mod nodes;
mod notify;
mod ops;
mod readers;
mod reply;
mod session;
mod sizes;
mod stats;
mod sys;
mod told;

pub use error::OpError;
pub use fs::FileSystem;
pub use llite::mount;
pub use mount::{
    FuseOptions, Mount, MountError, UnmountError, is_dead, is_mounted, mount_fs, remount,
};
pub use stats::{FuseStats, METRICS};
