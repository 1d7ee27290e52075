//! What goes wrong in a client, with all that is known of it.
//!
//! [`TargetError`] is of `mgc`, `mdc` and `osc`: a request to one target. [`Error`] is of `lmv`, `lov` and `llite`, and of whoever
//! calls them; [`Refusal`] are the checks that a client makes by itself. An error is handed up as it is and logged once, at the
//! top ([`ErrorLog`]); which errno it is for a program stands in one table, [`Error::errno`] in `error/errno.rs`.
//!
//! # Invariants
//! - What is an ordinary answer (no such name, a lock that is taken) allocates nothing.
//! - Each of the three is small enough to be handed up by value.

mod errno;
mod log;

pub use log::{ErrorLog, Kind, QUIET};

use std::sync::Arc;

use coral_ldlm::LockError;
use coral_ptlrpc::{Call, Import, RpcError};
use coral_wire::fid::Fid;
use coral_wire::ptlrpc::opc;
use coral_wire::{DecodeError, Errno};

/// Why a target did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The server answered with an error.
    #[error("{call}: {errno}")]
    Refused {
        /// What it said.
        errno: Errno,
        /// The request.
        call: Call,
    },
    /// There was no reply: evicted, not connected, interrupted, timed out, or an answer that is not PTLRPC.
    #[error(transparent)]
    NoReply(#[from] RpcError),
    /// The reply does not decode, or says what cannot be.
    #[error("{call}: bad reply: {what}")]
    BadReply {
        /// What is wrong with it.
        what: String,
        /// The request.
        call: Call,
    },
    /// What was read had a wrong checksum, each time.
    #[error("{0}: the checksum of the data differs, each time it is read")]
    ReadChecksum(Call),
    /// What was written arrived with a wrong checksum, each time.
    #[error("{0}: the checksum of the data differs, each time it is written")]
    WriteChecksum(Call),
    /// The server gives no such lock (`ELDLM_LOCK_ABORTED`).
    #[error("{0}: the server gives no lock")]
    NoLock(Call),
    /// This client was evicted: the lock that was asked for, or that covered dirty data, is void.
    #[error("{0}: evicted by the server, the lock is void")]
    LockVoid(Call),
    /// It does not answer now, and the question is not worth a wait (`statfs`).
    #[error("{0}: no answer now")]
    Away(Call),
}

impl TargetError {
    /// Of a lock on `fid` that was asked for through `import`.
    pub(crate) fn of_lock(e: LockError, import: &Import, fid: Fid) -> Self {
        let call = |xid| import.call_named(opc::LDLM_ENQUEUE, xid, fid);
        match e {
            LockError::Rpc(e) => e.into(),
            LockError::Refused { errno, xid } => TargetError::Refused {
                errno,
                call: call(xid),
            },
            LockError::Aborted => TargetError::NoLock(call(0)),
            LockError::Evicted => TargetError::LockVoid(call(0)),
            LockError::Proto(what) => TargetError::BadReply {
                what,
                call: call(0),
            },
        }
    }

    /// The request, as far as it is known.
    pub fn call(&self) -> Option<&Call> {
        match self {
            TargetError::Refused { call, .. } | TargetError::BadReply { call, .. } => Some(call),
            TargetError::NoReply(e) => e.call(),
            TargetError::ReadChecksum(call)
            | TargetError::WriteChecksum(call)
            | TargetError::NoLock(call)
            | TargetError::LockVoid(call)
            | TargetError::Away(call) => Some(call),
        }
    }

    /// Whether programs see it as `errno`.
    pub fn is(&self, errno: Errno) -> bool {
        self.errno() == errno
    }
}

/// Why a file system operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A target did not do what it was asked.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A check of this client refuses it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The file has data on an OST that the configuration does not name, or that is deactivated.
    #[error("OST {0:04x} is not in use here: it is deactivated, or not in the configuration")]
    NoOst(u32),
    /// There is no MDT of this index; `None`: none at all.
    #[error("no MDT {}", .0.map_or("is connected".into(), |i| format!("{i:04x} is in use here")))]
    NoMdt(Option<u32>),
    /// Data that was written before could not be stored; every handle that was open is told.
    #[error("data written before could not be stored: {0}")]
    Lost(Arc<Error>),
    /// A restarted server has lost acknowledged changes of this file or directory, and they could not be made again.
    #[error("a restarted server has lost acknowledged changes")]
    ChangesLost,
    /// The locks that covered the data are void: this client was evicted by the server that gave them.
    #[error("the locks on the data are void: evicted by a server")]
    LocksVoid,
    /// The open file went with an eviction by its MDT: it had no name any more.
    #[error("the open file is gone: evicted by its MDT, and it has no name")]
    OpenLost,
    /// The MDT gave the file no objects for a range that is to be written.
    #[error("the MDT gave no objects for the range")]
    NoObjects,
    /// A layout that does not decode.
    #[error("the layout of {fid} makes no sense: {what}")]
    BadLayout {
        /// The file.
        fid: Fid,
        /// What does not decode.
        what: DecodeError,
    },
    /// The layout is of a kind that data cannot be read or written with here.
    #[error("the layout is of a kind that is not supported here")]
    Layout,
    /// A task of this client has failed.
    #[error("a task of this client has failed")]
    Task,
}

impl Error {
    /// The request that failed, where it was one.
    pub fn call(&self) -> Option<&Call> {
        match self {
            Error::Target(e) => e.call(),
            Error::Lost(e) => e.call(),
            _ => None,
        }
    }

    /// Whether programs see it as `errno`.
    pub fn is(&self, errno: Errno) -> bool {
        self.errno() == errno
    }

    /// It is no ordinary answer, and worth a line in the log.
    pub fn is_trouble(&self) -> bool {
        self.kind() != Kind::Ordinary
    }

    /// The object is not there, or not any more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.errno(), Errno::ENOENT | Errno::ESTALE)
    }
}

/// A check of this client that refuses an operation before a server is asked, or knows the answer without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such name, by what is cached under a lock.
    #[error("there is no such name")]
    NoName,
    /// The name is taken.
    #[error("the name is taken")]
    NameTaken,
    /// Longer than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// Empty, or with "/" or NUL in it.
    #[error("not a name: it is empty, or has a slash or NUL in it")]
    BadName,
    /// The path has no name at its end that could be made or removed.
    #[error("the path ends with no name")]
    NoNameInPath,
    /// More than 40 symbolic links in a path.
    #[error("too many symbolic links in the path")]
    TooManyLinks,
    /// A symbolic link to nothing.
    #[error("the target of the link is empty")]
    EmptyTarget,
    /// A symbolic link to more than a path can hold.
    #[error("the target of the link is too long")]
    TargetTooLong,
    /// Not a symbolic link.
    #[error("not a symbolic link")]
    NotALink,
    /// Not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// A directory, where none may be.
    #[error("a directory")]
    Directory,
    /// A special file has no size to set.
    #[error("it has no size that can be set")]
    NoSize,
    /// "." is not a name to remove.
    #[error("\".\" cannot be removed")]
    RemovesDot,
    /// ".." is not empty: the directory is in it.
    #[error("\"..\" cannot be removed: it is not empty")]
    RemovesDotDot,
    /// Mode or ACL do not permit it.
    #[error("mode and ACL do not permit it")]
    Permission,
    /// Only the owner may.
    #[error("only the owner may")]
    NotOwner,
    /// Quotas of others are root's to see.
    #[error("quotas of others are for root")]
    OthersQuota,
    /// The parameter can be read only.
    #[error("the parameter can only be read")]
    ReadOnlyParam,
    /// There is no such parameter.
    #[error("there is no such parameter")]
    NoParam,
    /// Not a value of that parameter; which are.
    #[error("not a value of that parameter: give {0}")]
    BadParam(&'static str),
    /// Flags of renameat2 that do not go together, are not known, or that the server does not know.
    #[error("these flags of a rename are not supported")]
    RenameFlags,
    /// No extended attribute of that name.
    #[error("there is no such extended attribute")]
    NoXattr,
    /// Extended attributes of that kind were not asked for at mount.
    #[error("extended attributes of this kind are off")]
    XattrsOff,
    /// Longer than the name of an extended attribute can be.
    #[error("the name of the extended attribute is too long")]
    XattrNameTooLong,
    /// Longer than the value of an extended attribute can be.
    #[error("the value of the extended attribute is too long")]
    XattrTooLong,
    /// A `lustre.*` attribute with a text that is none of its.
    #[error("not a value of that attribute")]
    BadXattr,
    /// A request of `lfs` that does not decode.
    #[error("the request does not decode")]
    BadRequest,
    /// The file has a layout already.
    #[error("the file has a layout")]
    HasLayout,
    /// Further than a file can go.
    #[error("further than a file can go")]
    TooLarge,
    /// The last component of the file's layout ends before that.
    #[error("the last component of the file's layout ends before that")]
    BehindLayout,
    /// An OST cannot hold so large an object.
    #[error("an OST cannot hold so large an object")]
    ObjectTooLarge,
    /// No data or hole from there on (lseek).
    #[error("no data from there on")]
    NoData,
    /// fallocate with a mode that is not supported.
    #[error("this mode of fallocate is not supported")]
    FallocateMode,
    /// A range of no bytes, or one that ends before it begins.
    #[error("not a range")]
    BadRange,
    /// The mount has no file locks.
    #[error("file locks are off")]
    LocksOff,
    /// Another owner on this client has the lock.
    #[error("the lock is taken")]
    LockTaken,
    /// A file that was lost with an eviction is closed.
    #[error("the file was closed by an eviction")]
    ClosedByEviction,
    /// The part of a striped directory that has this name is lost.
    #[error("the part of the directory for this name is lost")]
    ShardLost,
    /// A directory was moved to another MDT while it was read.
    #[error("the directory was moved to another MDT while it was read")]
    DirectoryMoved,
    /// Names cannot be made where their hash is not known.
    #[error("the directory's hash is not known here")]
    UnknownHash,
    /// The MDT asked for does not exist.
    #[error("there is no such MDT")]
    NoSuchMdt,
    /// A list of MDTs to migrate to lacks the one where the directory has to go.
    #[error("the MDT of the directory above is not among those given")]
    NotListed,
}

const _: () = assert!(size_of::<TargetError>() <= 96 && size_of::<Error>() <= 96);
