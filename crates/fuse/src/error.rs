//! Why a request of the kernel is answered with an error, and its line in the log: the top of a mount.

use coral_client::error::Kind;
use coral_client::{Error, ErrorLog};
use coral_wire::Errno;
use coral_wire::fid::Fid;

/// Why a request of the kernel is answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The file system's reason.
    #[error(transparent)]
    Fs(#[from] Error),
    /// Of a file system that says no more.
    #[error("{0}")]
    Plain(#[from] Errno),
    /// The file was replaced since its name was looked up: the kernel is to look again.
    #[error("replaced since it was looked up: {0}")]
    Replaced(Box<OpError>),
    /// The request does not have the form that INIT agreed on.
    #[error("the request does not decode")]
    Malformed,
    /// The file system gave more than was asked for.
    #[error("more data than was asked for")]
    TooMuch,
    /// The kernel's protocol is none of ours.
    #[error("the kernel speaks another protocol")]
    Protocol,
    /// A file that was forgotten.
    #[error("the file was forgotten")]
    Forgotten,
    /// A handle that is not open.
    #[error("the handle is not open")]
    BadHandle,
    /// A kind of request that is left to the kernel.
    #[error("the request is left to the kernel")]
    NotHere,
    /// Not an ioctl of ours.
    #[error("not an ioctl of ours")]
    NotAnIoctl,
    /// A value that the system call does not have.
    #[error("not a value of that system call")]
    BadValue,
    /// The caller's buffer is too small for an extended attribute.
    #[error("the buffer is too small")]
    SmallBuffer,
    /// A signal ended the wait.
    #[error("interrupted")]
    Interrupted,
    /// The file system panicked.
    #[error("a panic of the file system")]
    Panicked,
}

impl OpError {
    /// What the caller of the system call sees.
    pub fn errno(&self) -> Errno {
        match self {
            OpError::Fs(e) => e.errno(),
            OpError::Plain(errno) => *errno,
            // Linux looks a path up once more at ESTALE (`filename_lookup`, `do_filp_open`), and at no other errno.
            OpError::Replaced(_) | OpError::Forgotten => Errno::ESTALE,
            OpError::Malformed | OpError::TooMuch | OpError::Panicked => Errno::EIO,
            OpError::Protocol => Errno::EPROTO,
            OpError::BadHandle => Errno::EBADF,
            // The kernel asks no more, and does it by itself.
            OpError::NotHere => Errno::ENOSYS,
            OpError::NotAnIoctl => Errno::ENOTTY,
            OpError::BadValue => Errno::EINVAL,
            OpError::SmallBuffer => Errno::ERANGE,
            OpError::Interrupted => Errno::EINTR,
        }
    }

    /// For requests that the kernel makes of a file it found by a name. When the file is gone by now, by another client's rename or
    /// unlink, the kernel must look the name up again: ESTALE tells it that. A name that is gone as well is then ENOENT.
    pub(crate) fn looked_up(self) -> OpError {
        match self.errno() {
            Errno::ENOENT => OpError::Replaced(Box::new(self)),
            _ => self,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            OpError::Fs(e) => e.kind(),
            OpError::Malformed | OpError::TooMuch | OpError::Protocol | OpError::Panicked => {
                Kind::Internal
            }
            _ => Kind::Ordinary,
        }
    }

    /// Writes its line. `fid` is asked only where one is written.
    pub(crate) fn tell(&self, log: &ErrorLog, op: &str, fid: impl FnOnce() -> Option<Fid>) {
        let fid = match self.kind() {
            Kind::Ordinary => None,
            _ => fid(),
        };
        let on = fid.map_or(String::new(), |f| f.to_string());
        log.tell_of(self.kind(), op, on, self.errno(), self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use OpError as E;
        let table = [
            (E::Plain(Errno::EXDEV), Errno::EXDEV),
            (E::Replaced(Box::new(E::Interrupted)), Errno::ESTALE),
            (E::Malformed, Errno::EIO),
            (E::TooMuch, Errno::EIO),
            (E::Protocol, Errno::EPROTO),
            (E::Forgotten, Errno::ESTALE),
            (E::BadHandle, Errno::EBADF),
            (E::NotHere, Errno::ENOSYS),
            (E::NotAnIoctl, Errno::ENOTTY),
            (E::BadValue, Errno::EINVAL),
            (E::SmallBuffer, Errno::ERANGE),
            (E::Interrupted, Errno::EINTR),
            (E::Panicked, Errno::EIO),
        ];
        for (e, errno) in table {
            assert_eq!(e.errno(), errno, "{e}");
        }
        assert_eq!(E::Plain(Errno::EIO).looked_up(), E::Plain(Errno::EIO));
        let gone = E::Plain(Errno::ENOENT).looked_up();
        assert_eq!(gone.errno(), Errno::ESTALE);
    }
}
