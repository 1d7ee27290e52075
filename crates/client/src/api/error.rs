//! How failures are told to programs.

use std::io;

use coral_wire::Errno;

/// As the system call on a mount would fail.
pub(super) fn errno(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e.0)
}
