//! Asks the kernel whether a range of a file is in memory: `cachestat(2)`, Linux 6.5.
#![allow(unsafe_code, reason = "rustix has no cachestat")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// `__NR_cachestat`, the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;
const PAGE_BYTES: u64 = 4096;

/// `struct cachestat_range` of the kernel.
#[repr(C)]
struct Range {
    off: u64,
    len: u64,
}

/// `struct cachestat` of the kernel, all in pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    nr_cache: u64,
    nr_dirty: u64,
    nr_writeback: u64,
    nr_evicted: u64,
    nr_recently_evicted: u64,
}

/// True when `len > 0` bytes from `off` are in memory or on their way there, and also when the
/// kernel cannot tell.
pub(super) fn holds(file: BorrowedFd<'_>, off: u64, len: u64) -> bool {
    let mut range = Range { off, len };
    let mut stat = Stat::default();
    // SAFETY: the two structures are the kernel's layout and live across the call, which writes
    // only `stat`; the descriptor is open for as long as `file` is borrowed.
    let rc = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw mut range,
            &raw mut stat,
            0u32,
        )
    };
    let pages = (off + len).div_ceil(PAGE_BYTES) - off / PAGE_BYTES;
    rc != 0 || stat.nr_cache >= pages
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_was_just_written_is_there_and_what_is_beyond_is_not() {
        let mut f = tempfile::tempfile().unwrap();
        f.write_all(&[1; 3 * PAGE_BYTES as usize]).unwrap();
        assert!(holds(f.as_fd(), 0, 3 * PAGE_BYTES));
        assert!(holds(f.as_fd(), 5000, 10));
        let mut probe = Stat::default();
        let mut range = Range { off: 0, len: 1 };
        // SAFETY: as above.
        let known = unsafe {
            libc::syscall(
                SYS_CACHESTAT,
                f.as_raw_fd(),
                &raw mut range,
                &raw mut probe,
                0u32,
            )
        } == 0;
        assert_eq!(holds(f.as_fd(), 10 * PAGE_BYTES, 1), !known);
    }
}
