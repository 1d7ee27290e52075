//! How failures below become errno for the caller of llite.

use coral_ldlm::LockError;
use coral_ptlrpc::{Reply, RpcError};
use coral_wire::{DecodeError, Errno};

/// The errno an application sees when an RPC could not be completed.
/// Eviction is EIO as in Lustre (`ll_i2*` paths turn -ESHUTDOWN and -ENOTCONN of an evicted import into EIO), and so is a server
/// that this client has left.
pub(crate) fn rpc_errno(e: &RpcError) -> Errno {
    match e {
        RpcError::Evicted(_) | RpcError::Unreachable(_) => Errno::EIO,
        RpcError::Interrupted => Errno::EINTR,
        RpcError::Timeout => Errno::ETIMEDOUT,
        _ => Errno::EPROTO,
    }
}

/// A reply that does not decode.
pub(crate) fn proto(e: DecodeError) -> Errno {
    tracing::warn!(error = %e, "undecodable reply");
    Errno::EPROTO
}

/// The reply if its status is not negative.
pub(crate) fn ok(reply: Result<Reply, RpcError>) -> Result<Reply, Errno> {
    let reply = reply.map_err(|e| rpc_errno(&e))?;
    Errno::check(reply.status)?;
    Ok(reply)
}

/// Errno of a lock that was not obtained.
pub(crate) fn lock_errno(e: &LockError) -> Errno {
    match e {
        LockError::Rpc(e) => rpc_errno(e),
        LockError::Refused(e) => *e,
        LockError::Aborted => Errno::ENOLCK,
        LockError::Evicted => Errno::EIO,
        LockError::Proto(_) => Errno::EPROTO,
    }
}
