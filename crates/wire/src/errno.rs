//! Error numbers as they travel: Linux x86 numbering on every host (`lustre/ptlrpc/errno.c`).
//!
//! A reply's status is the negative of one of these; [`Errno`] holds the positive number.

use core::fmt;

/// A positive Linux x86 error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident $n:literal $text:literal),* $(,)?) => {
        impl Errno {
            $( #[doc = $text] pub const $name: Errno = Errno($n); )*

            /// The symbolic name, if known.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $( $n => Some(stringify!($name)), )* _ => None }
            }

            /// What it means, in strerror's words.
            pub fn text(self) -> &'static str {
                match self.0 { $( $n => $text, )* _ => "Unknown error" }
            }
        }
    };
}

errnos! {
    EPERM 1 "Operation not permitted", ENOENT 2 "No such file or directory", ESRCH 3 "No such process",
    EINTR 4 "Interrupted system call", EIO 5 "Input/output error", ENXIO 6 "No such device or address",
    E2BIG 7 "Argument list too long", ENOEXEC 8 "Exec format error", EBADF 9 "Bad file descriptor",
    ECHILD 10 "No child processes", EAGAIN 11 "Resource temporarily unavailable", ENOMEM 12 "Cannot allocate memory",
    EACCES 13 "Permission denied", EFAULT 14 "Bad address", ENOTBLK 15 "Block device required",
    EBUSY 16 "Device or resource busy", EEXIST 17 "File exists", EXDEV 18 "Invalid cross-device link",
    ENODEV 19 "No such device", ENOTDIR 20 "Not a directory", EISDIR 21 "Is a directory",
    EINVAL 22 "Invalid argument", ENFILE 23 "Too many open files in system", EMFILE 24 "Too many open files",
    ENOTTY 25 "Inappropriate ioctl for device", ETXTBSY 26 "Text file busy", EFBIG 27 "File too large",
    ENOSPC 28 "No space left on device", ESPIPE 29 "Illegal seek", EROFS 30 "Read-only file system",
    EMLINK 31 "Too many links", EPIPE 32 "Broken pipe", EDOM 33 "Numerical argument out of domain",
    ERANGE 34 "Numerical result out of range", EDEADLK 35 "Resource deadlock avoided", ENAMETOOLONG 36 "File name too long",
    ENOLCK 37 "No locks available", ENOSYS 38 "Function not implemented", ENOTEMPTY 39 "Directory not empty",
    ELOOP 40 "Too many levels of symbolic links", ENOMSG 42 "No message of desired type", EBADE 52 "Invalid exchange",
    EBADR 53 "Invalid request descriptor", EBADRQC 56 "Invalid request code", EBADSLT 57 "Invalid slot",
    ENOSTR 60 "Device not a stream", ENODATA 61 "No data available", ETIME 62 "Timer expired",
    EREMOTE 66 "Object is remote", ECOMM 70 "Communication error on send", EPROTO 71 "Protocol error",
    EBADMSG 74 "Bad message", EOVERFLOW 75 "Value too large for defined data type", EBADFD 77 "File descriptor in bad state",
    EREMCHG 78 "Remote address changed", EUSERS 87 "Too many users", ENOTSOCK 88 "Socket operation on non-socket",
    EMSGSIZE 90 "Message too long", EPROTONOSUPPORT 93 "Protocol not supported", EOPNOTSUPP 95 "Operation not supported",
    EADDRINUSE 98 "Address already in use", EADDRNOTAVAIL 99 "Cannot assign requested address", ENETDOWN 100 "Network is down",
    ENETUNREACH 101 "Network is unreachable", ECONNABORTED 103 "Software caused connection abort",
    ECONNRESET 104 "Connection reset by peer", ENOBUFS 105 "No buffer space available",
    ENOTCONN 107 "Transport endpoint is not connected", ESHUTDOWN 108 "Cannot send after transport endpoint shutdown",
    ETIMEDOUT 110 "Connection timed out", ECONNREFUSED 111 "Connection refused", EHOSTDOWN 112 "Host is down",
    EHOSTUNREACH 113 "No route to host", EALREADY 114 "Operation already in progress", EINPROGRESS 115 "Operation now in progress",
    ESTALE 116 "Stale file handle", EREMOTEIO 121 "Remote I/O error", EDQUOT 122 "Disk quota exceeded", ECANCELED 125 "Operation canceled",
    EKEYREJECTED 129 "Key was rejected by service", ERESTARTSYS 512 "Interrupted system call, restart",
    ENOTSUPP 524 "Operation is not supported",
}

impl Errno {
    /// Same number as `EAGAIN`.
    pub const EWOULDBLOCK: Errno = Errno::EAGAIN;

    /// From a status as found in a reply: `Some` for a negative one, `None` for success (or a count, or an LDLM status).
    pub fn from_status(status: i32) -> Option<Errno> {
        (status < 0).then(|| Errno(status.checked_neg().unwrap_or(i32::MAX)))
    }

    /// As a reply's status: negative.
    pub fn status(self) -> i32 {
        -self.0
    }

    /// `Ok` of the status itself when it is not negative, else the error.
    pub fn check(status: i32) -> Result<i32, Errno> {
        match Errno::from_status(status) {
            Some(e) => Err(e),
            None => Ok(status),
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Errno {
        Errno(e.raw_os_error().unwrap_or(Errno::EIO.0))
    }
}

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(e.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(n) => write!(f, "{} ({n})", self.text()),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(n) => f.write_str(n),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_round_trip() {
        assert_eq!(Errno::from_status(-2), Some(Errno::ENOENT));
        assert_eq!(Errno::from_status(0), None);
        assert_eq!(Errno::from_status(301), None);
        assert_eq!(Errno::from_status(i32::MIN), Some(Errno(i32::MAX)));
        assert_eq!(Errno::ENOENT.status(), -2);
        assert_eq!(
            Errno::ENOENT.to_string(),
            "No such file or directory (ENOENT)"
        );
    }
}
