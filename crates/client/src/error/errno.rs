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
            R::NoSize | R::BadParam(_) | R::RenameFlags | R::BadXattr => Errno::EINVAL,
            R::BadRequest | R::BadRange => Errno::EINVAL,
            R::TooManyLinks => Errno::ELOOP,
            R::NotADirectory => Errno::ENOTDIR,
            R::Directory => Errno::EISDIR,
            R::RemovesDotDot => Errno::ENOTEMPTY,
            // Mode bits and ACLs are EACCES, what belongs to an owner is EPERM, as in Linux.
            R::Permission => Errno::EACCES,
            R::NotOwner | R::OthersQuota | R::ReadOnlyParam => Errno::EPERM,
            R::NoXattr | R::BehindLayout => Errno::ENODATA,
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
            R::ShardLost | R::NoSuchMdt | R::NotListed => Errno::ENODEV,
            // As Lustre's MDT.
            R::DirectoryMoved => Errno::ESTALE,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coral_ptlrpc::Call;
    use coral_wire::DecodeError;
    use coral_wire::fid::Fid;
    use coral_wire::nid::Nid;

    use super::*;

    fn call() -> Call {
        Call {
            target: "t-OST0001_UUID".into(),
            nid: Nid::LO,
            opc: coral_wire::ptlrpc::opc::OST_READ,
            xid: 7,
            fid: Fid::new(0x2_0000_0400, 5),
        }
    }

    #[test]
    fn of_requests() {
        use TargetError as T;
        let refused = |errno| T::Refused {
            errno,
            call: call(),
        };
        let what = String::new;
        let table = [
            (refused(Errno::ENOENT), Errno::ENOENT),
            (refused(Errno::EDQUOT), Errno::EDQUOT),
            (RpcError::Evicted(call()).into(), Errno::EIO),
            (RpcError::Unreachable(call()).into(), Errno::EIO),
            (RpcError::Interrupted.into(), Errno::EINTR),
            (RpcError::Timeout(call()).into(), Errno::ETIMEDOUT),
            (
                RpcError::Proto {
                    call: call(),
                    what: what(),
                }
                .into(),
                Errno::EPROTO,
            ),
            (
                T::BadReply {
                    what: what(),
                    call: call(),
                },
                Errno::EPROTO,
            ),
            (T::ReadChecksum(call()), Errno::EIO),
            (T::WriteChecksum(call()), Errno::EAGAIN),
            (T::NoLock(call()), Errno::ENOLCK),
            (T::LockVoid(call()), Errno::EIO),
            (T::Away(call()), Errno::EAGAIN),
        ];
        for (e, errno) in table {
            assert_eq!(e.errno(), errno, "{e}");
            let named = e.to_string();
            let said = "OST_READ (xid 7) to t-OST0001_UUID at 0@lo for [0x200000400:0x5:0x0]";
            assert!(
                named.contains(said) || e.is(Errno::EINTR),
                "{named} names the request"
            );
            assert_eq!(Error::from(e).errno(), errno);
        }
    }

    #[test]
    fn of_operations() {
        let bad = DecodeError::Magic { what: "", got: 0 };
        let fid = Fid::ZERO;
        let table = [
            (Error::NoOst(1), Errno::EIO),
            (Error::NoMdt(None), Errno::EIO),
            (Error::Lost(Arc::new(Error::LocksVoid)), Errno::EIO),
            (
                Error::Lost(Arc::new(Refusal::ObjectTooLarge.into())),
                Errno::EFBIG,
            ),
            (Error::ChangesLost, Errno::EIO),
            (Error::LocksVoid, Errno::EIO),
            (Error::OpenLost, Errno::EIO),
            (Error::NoObjects, Errno::EIO),
            (Error::BadLayout { fid, what: bad }, Errno::EPROTO),
            (Error::Layout, Errno::EOPNOTSUPP),
            (Error::Task, Errno::EIO),
        ];
        for (e, errno) in table {
            assert_eq!(e.errno(), errno, "{e}");
        }
    }

    #[test]
    fn of_refusals() {
        use Refusal as R;
        let table = [
            (R::NoName, Errno::ENOENT),
            (R::NameTaken, Errno::EEXIST),
            (R::NameTooLong, Errno::ENAMETOOLONG),
            (R::BadName, Errno::EINVAL),
            (R::NoNameInPath, Errno::EINVAL),
            (R::TooManyLinks, Errno::ELOOP),
            (R::EmptyTarget, Errno::ENOENT),
            (R::TargetTooLong, Errno::ENAMETOOLONG),
            (R::NotALink, Errno::EINVAL),
            (R::NotADirectory, Errno::ENOTDIR),
            (R::Directory, Errno::EISDIR),
            (R::NoSize, Errno::EINVAL),
            (R::RemovesDot, Errno::EINVAL),
            (R::RemovesDotDot, Errno::ENOTEMPTY),
            (R::Permission, Errno::EACCES),
            (R::NotOwner, Errno::EPERM),
            (R::OthersQuota, Errno::EPERM),
            (R::ReadOnlyParam, Errno::EPERM),
            (R::NoParam, Errno::ENOENT),
            (R::BadParam("0 or 1"), Errno::EINVAL),
            (R::RenameFlags, Errno::EINVAL),
            (R::NoXattr, Errno::ENODATA),
            (R::BehindLayout, Errno::ENODATA),
            (R::XattrsOff, Errno::EOPNOTSUPP),
            (R::XattrNameTooLong, Errno::ERANGE),
            (R::XattrTooLong, Errno::E2BIG),
            (R::BadXattr, Errno::EINVAL),
            (R::BadRequest, Errno::EINVAL),
            (R::HasLayout, Errno::EEXIST),
            (R::TooLarge, Errno::EFBIG),
            (R::ObjectTooLarge, Errno::EFBIG),
            (R::NoData, Errno::ENXIO),
            (R::FallocateMode, Errno::EOPNOTSUPP),
            (R::BadRange, Errno::EINVAL),
            (R::LocksOff, Errno::ENOSYS),
            (R::LockTaken, Errno::EAGAIN),
            (R::ClosedByEviction, Errno::ESTALE),
            (R::ShardLost, Errno::ENODEV),
            (R::DirectoryMoved, Errno::ESTALE),
            (R::UnknownHash, Errno::EBADF),
            (R::NoSuchMdt, Errno::ENODEV),
        ];
        for (e, errno) in table {
            assert_eq!(Error::from(e).errno(), errno, "{e}");
        }
    }
}
