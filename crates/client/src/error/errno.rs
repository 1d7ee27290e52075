//! The table: which errno a program sees for each error. What differs from a local file system is in docs/semantics.md.

use coral_ptlrpc::RpcError;
use coral_wire::Errno;

use super::{Error, Refusal, TargetError};

impl TargetError {
    /// What a program sees.
    pub fn errno(&self) -> Errno {
        match self {
            // The server's word, unchanged: its errnos are Linux's.
            TargetError::Refused { errno, .. } => *errno,
            TargetError::NoReply(e) => match e {
                // As Lustre: paths of llite turn the ESHUTDOWN and ENOTCONN of an evicted import into EIO. A server that this
                // client has left is no different to a program.
                RpcError::Evicted(_) | RpcError::Unreachable(_) => Errno::EIO,
                RpcError::Interrupted => Errno::EINTR,
                RpcError::Timeout(_) => Errno::ETIMEDOUT,
                RpcError::Proto { .. } => Errno::EPROTO,
            },
            // Not EIO: no disk has failed, the two ends do not understand each other.
            TargetError::BadReply { .. } => Errno::EPROTO,
            TargetError::ReadChecksum(_) => Errno::EIO,
            // As Lustre after `osc_resends`: the data is here still, and may be written again.
            TargetError::WriteChecksum(_) => Errno::EAGAIN,
            TargetError::NoLock(_) => Errno::ENOLCK,
            TargetError::LockVoid(_) => Errno::EIO,
            // A lazy statfs of Lustre, whose default it is.
            TargetError::Away(_) => Errno::EAGAIN,
        }
    }
}

impl Error {
    /// What a program sees.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Target(e) => e.errno(),
            Error::Refused(e) => e.errno(),
            // As Lustre for a deactivated OST: `df` and `lfs df` say which, a program only that the data is out of reach.
            Error::NoOst(_) | Error::NoMdt(_) => Errno::EIO,
            // fsync and close say what the write would have said: ENOSPC stays ENOSPC.
            Error::Lost(why) => why.errno(),
            Error::ChangesLost | Error::LocksVoid | Error::OpenLost => Errno::EIO,
            Error::NoObjects | Error::Task => Errno::EIO,
            // As any answer that does not decode.
            Error::BadLayout { .. } => Errno::EPROTO,
            Error::Layout => Errno::EOPNOTSUPP,
        }
    }
}

impl Refusal {
    /// What a program sees.
    pub fn errno(&self) -> Errno {
        use Refusal as R;
        match self {
            R::NoName | R::NoParam => Errno::ENOENT,
            // symlink(2) says so of an empty target.
            R::EmptyTarget => Errno::ENOENT,
            R::NameTaken | R::HasLayout => Errno::EEXIST,
            R::NameTooLong | R::TargetTooLong => Errno::ENAMETOOLONG,
            R::BadName | R::NoNameInPath | R::NotALink | R::RemovesDot => Errno::EINVAL,
            R::NoSize | R::BadParam | R::RenameFlags | R::BadXattr => Errno::EINVAL,
            R::BadRequest | R::BadRange => Errno::EINVAL,
            R::TooManyLinks => Errno::ELOOP,
            R::NotADirectory => Errno::ENOTDIR,
            R::Directory => Errno::EISDIR,
            R::RemovesDotDot => Errno::ENOTEMPTY,
            // Mode bits and ACLs are EACCES, what belongs to an owner is EPERM, as in Linux.
            R::Permission => Errno::EACCES,
            R::NotOwner | R::OthersQuota | R::ReadOnlyParam => Errno::EPERM,
            R::NoXattr => Errno::ENODATA,
            R::XattrsOff | R::FallocateMode => Errno::EOPNOTSUPP,
            R::XattrNameTooLong => Errno::ERANGE,
            R::XattrTooLong => Errno::E2BIG,
            R::TooLarge | R::ObjectTooLarge => Errno::EFBIG,
            R::NoData => Errno::ENXIO,
            // As Lustre mounted with `noflock`.
            R::LocksOff => Errno::ENOSYS,
            R::LockTaken => Errno::EAGAIN,
            R::ClosedByEviction => Errno::ESTALE,
            // As Lustre's `lmv`: other names of the directory go on.
            R::ShardLost | R::NoSuchMdt => Errno::ENODEV,
            // `lmv_name_to_stripe_index` refuses to guess.
            R::UnknownHash => Errno::EBADF,
        }
    }
}

impl From<&Error> for Errno {
    fn from(e: &Error) -> Errno {
        e.errno()
    }
}

impl From<Error> for Errno {
    fn from(e: Error) -> Errno {
        e.errno()
    }
}

impl From<TargetError> for Errno {
    fn from(e: TargetError) -> Errno {
        e.errno()
    }
}

impl From<Error> for std::io::Error {
    /// Keeps the reason; the number is in the [`Error`] inside.
    fn from(e: Error) -> std::io::Error {
        std::io::Error::new(std::io::Error::from(e.errno()).kind(), e)
    }
}
