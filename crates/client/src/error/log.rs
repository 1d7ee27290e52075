//! The one log line of an error, written by whoever hands it to a program: the FUSE session, or a file system by path.

use std::fmt::Display;
use std::time::Duration;

use coral_ptlrpc::RpcError;
use coral_wire::Errno;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Error, TargetError};

/// Of each kind of trouble one line in this time; how many were left out is said in the next. A dead OST fails every request.
pub const QUIET: Duration = Duration::from_secs(10);

/// What an error is to whoever reads the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An answer that programs expect and understand: no such name, no permission, no space. Logged at trace only.
    Ordinary,
    /// A server cannot be reached, or is not used.
    Unreachable,
    /// A server evicted this client.
    Evicted,
    /// No answer in time.
    TimedOut,
    /// What a server said does not make sense.
    BadReply,
    /// Data does not arrive as it was sent.
    Checksum,
    /// Data or changes are lost. That had its line when it happened, so what tells a program of it has none.
    Lost,
    /// A server has failed at it, and says so.
    Server,
    /// A defect of this client.
    Internal,
}

const KINDS: usize = Kind::Internal as usize + 1;

/// Errnos of servers that are answers, not trouble. ENOSPC and EDQUOT are among them: whoever writes is told, and
/// `lfs df` and `lfs quota` say where.
fn is_ordinary(e: Errno) -> bool {
    use Errno as E;
    matches!(
        e,
        E::EPERM | E::ENOENT | E::EINTR | E::ENXIO | E::E2BIG | E::EAGAIN | E::EACCES | E::EBUSY
    ) || matches!(
        e,
        E::EEXIST | E::EXDEV | E::ENOTDIR | E::EISDIR | E::EINVAL | E::ETXTBSY | E::EFBIG
    ) || matches!(
        e,
        E::ENOSPC | E::EROFS | E::EMLINK | E::ERANGE | E::EDEADLK | E::ENAMETOOLONG | E::ENOLCK
    ) || matches!(
        e,
        E::ENOSYS | E::ENOTEMPTY | E::ELOOP | E::ENODATA | E::EOPNOTSUPP | E::ESTALE | E::EDQUOT
    ) || e == E::EALREADY // a migration or a new layout of a directory that is as asked
}

impl Error {
    /// What it is to whoever reads the log.
    pub fn kind(&self) -> Kind {
        match self {
            Error::Target(e) => e.kind(),
            Error::Refused(_) | Error::Layout => Kind::Ordinary,
            Error::NoOst(_) | Error::NoMdt(_) => Kind::Unreachable,
            Error::Lost(_) | Error::ChangesLost => Kind::Lost,
            Error::LocksVoid | Error::OpenLost => Kind::Evicted,
            Error::BadLayout { .. } => Kind::BadReply,
            Error::NoObjects => Kind::Server,
            Error::Task => Kind::Internal,
        }
    }
}

impl TargetError {
    fn kind(&self) -> Kind {
        match self {
            TargetError::Refused { errno, .. } if is_ordinary(*errno) => Kind::Ordinary,
            TargetError::Refused { .. } => Kind::Server,
            TargetError::NoReply(RpcError::Evicted(_)) | TargetError::LockVoid(_) => Kind::Evicted,
            TargetError::NoReply(RpcError::Unreachable(_)) => Kind::Unreachable,
            TargetError::NoReply(RpcError::Interrupted) => Kind::Ordinary,
            TargetError::NoReply(RpcError::Timeout(_)) => Kind::TimedOut,
            TargetError::NoReply(RpcError::Proto { .. }) => Kind::BadReply,
            TargetError::BadReply { .. } => Kind::BadReply,
            TargetError::ReadChecksum(_) | TargetError::WriteChecksum(_) => Kind::Checksum,
            TargetError::NoLock(_) => Kind::Server,
            TargetError::Away(_) => Kind::Unreachable,
        }
    }
}

/// What was said of each kind.
#[derive(Debug, Default)]
pub struct ErrorLog {
    said: Mutex<[Option<Said>; KINDS]>,
}

/// The last line of one kind.
#[derive(Debug, Clone, Copy)]
struct Said {
    at: Instant,
    /// Left out since.
    hidden: u64,
}

impl ErrorLog {
    /// The operation `op` failed, and whoever asked is told now. `on` is what was asked about, a FID or a path.
    pub fn tell(&self, op: &str, on: impl Display, e: &Error) {
        self.tell_of(e.kind(), op, on, e.errno(), e);
    }

    /// The same for an error of another type.
    pub fn tell_of(&self, kind: Kind, op: &str, on: impl Display, errno: Errno, e: &dyn Display) {
        if matches!(kind, Kind::Ordinary | Kind::Lost) {
            tracing::trace!(op, %on, ?errno, error = %e, "operation failed");
        } else if let Some(hidden) = self.admit(kind, Instant::now()) {
            tracing::warn!(op, %on, ?errno, hidden, error = %e, "operation failed");
        }
    }

    /// Whether a line of this kind may be written now, and how many were left out before it.
    fn admit(&self, kind: Kind, now: Instant) -> Option<u64> {
        let mut said = self.said.lock();
        let last = &mut said[kind as usize];
        match last {
            Some(l) if now.duration_since(l.at) < QUIET => {
                l.hidden += 1;
                None
            }
            _ => {
                let hidden = last.map_or(0, |l| l.hidden);
                *last = Some(Said { at: now, hidden: 0 });
                Some(hidden)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A migration that was interrupted and is asked for again answers this for all that is done.
    #[test]
    fn what_is_as_asked_is_no_trouble() {
        assert!(is_ordinary(Errno::EALREADY));
        assert!(!is_ordinary(Errno::EIO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_told_once_in_a_while_and_others_beside_it() {
        let (log, start) = (ErrorLog::default(), Instant::now());
        assert_eq!(log.admit(Kind::Unreachable, start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.admit(Kind::Unreachable, start + QUIET / 2), None);
        }
        assert_eq!(log.admit(Kind::Evicted, start + QUIET / 2), Some(0));
        assert_eq!(log.admit(Kind::Unreachable, start + QUIET), Some(1000));
        assert_eq!(log.admit(Kind::Unreachable, start + QUIET * 3), Some(0));
    }
}
