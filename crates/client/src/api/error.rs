//! How failures are told to programs.

use std::fmt;
use std::io;

use bytes::Bytes;
use coral_wire::Errno;

use crate::error::{Error, TargetError};

/// Why an operation of a [`super::FileSystem`] or a [`super::File`] failed: what was to be done, with which path, and the reason.
///
/// ```no_run
/// # async fn example(fs: coral_client::FileSystem) {
/// if let Err(e) = fs.stat("results").await {
///     eprintln!("{e}"); // stat results: No such file or directory (ENOENT)
///     assert_eq!(e.raw_os_error(), Some(2));
///     if let Some(call) = e.reason().call() {
///         eprintln!("said by {} at {}, xid {}", call.target, call.nid, call.xid);
///     }
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PathError(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    op: &'static str,
    path: Bytes,
    why: Error,
}

impl PathError {
    pub(super) fn new(op: &'static str, path: &[u8], why: Error) -> Self {
        let path = Bytes::copy_from_slice(path);
        Self(Box::new(Inner { op, path, why }))
    }

    /// The operation, by the name of its method.
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// The path as the caller gave it; of an open file, the one that it was opened by.
    pub fn path(&self) -> &[u8] {
        &self.0.path
    }

    /// The reason, with the request to a server that failed, if it was one.
    pub fn reason(&self) -> &Error {
        &self.0.why
    }

    /// What the system call on a mount would fail with.
    pub fn errno(&self) -> Errno {
        self.0.why.errno()
    }

    /// The same as a number, as [`io::Error::raw_os_error`]; there is always one.
    pub fn raw_os_error(&self) -> Option<i32> {
        Some(self.errno().0)
    }

    /// The same in the standard library's words.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from(self.errno()).kind()
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, path) = (self.0.op, self.0.path.escape_ascii());
        write!(f, "{op} {path}: {}", self.errno())?;
        match &self.0.why {
            // the server's errno is the whole reason
            Error::Target(TargetError::Refused { .. }) if !self.0.why.is_trouble() => Ok(()),
            why => write!(f, ": {why}"),
        }
    }
}

impl std::error::Error for PathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.why)
    }
}

impl From<PathError> for io::Error {
    /// Keeps all of it: [`io::Error::get_ref`] leads back to the [`PathError`], and so to the errno.
    fn from(e: PathError) -> io::Error {
        io::Error::new(e.kind(), e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Refusal;

    #[test]
    fn it_says_what_failed_and_survives_as_an_io_error() {
        let e = PathError::new("open", b"a/b\n", Error::Layout);
        assert_eq!(
            e.to_string(),
            "open a/b\\n: Operation not supported (EOPNOTSUPP): the layout is of a kind that is not supported here"
        );
        let e = PathError::new("stat", b"x", Refusal::NoName.into());
        let io = io::Error::from(e);
        assert_eq!(io.kind(), io::ErrorKind::NotFound);
        let inside = io.get_ref().and_then(|e| e.downcast_ref::<PathError>());
        assert_eq!(inside.map(PathError::errno), Some(Errno::ENOENT));
    }
}
