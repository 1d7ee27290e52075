//! INIT: what this mount agrees on with the kernel, flag by flag. Linux: `fs/fuse/inode.c`, process_init_reply.

use zerocopy::FromBytes;

use crate::abi::{self, init::*};
use crate::error::OpError;

/// Flags asked for when the kernel offers them, each with its reason.
const WANTED: &[(u64, &str)] = &[
    (ASYNC_READ, "requests of read-ahead may overlap"),
    (POSIX_LOCKS, "fcntl locks go to LDLM flock resources"),
    (FLOCK_LOCKS, "so do flock locks, told apart by LK_FLOCK"),
    (
        ATOMIC_O_TRUNC,
        "open(O_TRUNC) is one intent RPC, and close to atomic",
    ),
    (
        EXPORT_SUPPORT,
        "lookup of \".\" and \"..\" by node id works",
    ),
    (BIG_WRITES, "writes above 4 KiB (implied by newer kernels)"),
    (
        DONT_MASK,
        "the MDT applies the umask, unless the directory has a default ACL",
    ),
    (
        AUTO_INVAL_DATA,
        "cached pages also go when size or mtime turn out changed by another client",
    ),
    (DO_READDIRPLUS, "ls -l in one pass"),
    (READDIRPLUS_AUTO, "but not for a plain ls"),
    (
        ASYNC_DIO,
        "asynchronous O_DIRECT may have many requests under way",
    ),
    (
        PARALLEL_DIROPS,
        "lookups and readdir of one directory do not wait for each other",
    ),
    (
        POSIX_ACL,
        "the kernel checks ACLs too, and forgets a mode when it sets one",
    ),
    (
        ABORT_ERROR,
        "an aborted connection is told from an unmounted one",
    ),
    (MAX_PAGES, "requests of 1 MiB"),
    (
        CACHE_SYMLINKS,
        "a symlink never changes its target and a FID is never used again",
    ),
    (
        HANDLE_KILLPRIV_V2,
        "we drop setuid and setgid on write and truncate: FOPEN_DIRECT_IO writes skip the kernel's way",
    ),
    (SETXATTR_EXT, "tells when an ACL must clear setgid"),
    (INIT_EXT, "flags beyond 32 bits"),
    (
        DIRECT_IO_ALLOW_MMAP,
        "MAP_SHARED on files opened with FOPEN_DIRECT_IO",
    ),
    // Not wanted, on purpose: WRITEBACK_CACHE (the kernel would own size and dirty pages with no lock of ours),
    // SPLICE_* (we keep payloads in memory of our own), NO_OPEN/NO_OPENDIR (Lustre opens are stateful), HANDLE_KILLPRIV (v1),
    // EXPLICIT_INVAL_DATA (the opposite of AUTO_INVAL_DATA), SECURITY_CTX, SUBMOUNTS, DAX, PASSTHROUGH, ALLOW_IDMAP,
    // OVER_IO_URING (off by default in the kernel, still moving), REQUEST_TIMEOUT (recovery may take minutes).
];

/// Asynchronous requests the kernel may have under way: as many as it can count. Reads of pages that wait for a lock must not keep from
/// us those that hold pages which are to be dropped before that lock is given back. Their number is bounded by the programs
/// that read, and what is written back by the kernel's own limit (`BDI_CAP_STRICTLIMIT` in Linux's `fs/fuse/inode.c`).
const MAX_BACKGROUND: u16 = u16::MAX;
/// At this many it reads ahead no more, and writes back only what is waited for.
const CONGESTION_THRESHOLD: u16 = 96;
/// Read-ahead of files read through the page cache, bytes: the most the kernel may do by itself (it offers 128 KiB) ...
const MAX_READAHEAD: u32 = 1 << 20;
/// ... and what it is set to where that is allowed, KiB: one request. What is read in a row the client reads ahead of it.
pub(crate) const READ_AHEAD_KIB: u32 = 1024;
const PAGE: usize = 4096;

/// The answer to INIT, and the flags agreed on; without `locks` the kernel keeps them. EPROTO for a kernel older than we can
/// serve.
pub(crate) fn answer(
    body: &[u8],
    max_write: usize,
    locks: bool,
) -> Result<(abi::InitOut, u64), OpError> {
    let (i, rest) = abi::InitIn::read_from_prefix(body).map_err(|_| OpError::Malformed)?;
    if i.major != abi::KERNEL_VERSION || i.minor < abi::MINOR_VERSION_MIN {
        tracing::error!(
            "kernel speaks FUSE {}.{}, need {}.{}",
            i.major,
            i.minor,
            abi::KERNEL_VERSION,
            abi::MINOR_VERSION_MIN
        );
        return Err(OpError::Protocol);
    }
    let mut offered = u64::from(i.flags);
    if offered & INIT_EXT != 0 {
        let (flags2, _) = u32::read_from_prefix(rest).map_err(|_| OpError::Malformed)?;
        offered |= u64::from(flags2) << 32;
    }
    let unwanted = if locks { 0 } else { POSIX_LOCKS | FLOCK_LOCKS };
    let agreed = WANTED.iter().map(|w| w.0).fold(0, |all, flag| all | flag) & offered & !unwanted;
    tracing::debug!(
        "FUSE {}.{} offers {offered:#x}, agreed {agreed:#x}",
        i.major,
        i.minor
    );
    let out = abi::InitOut {
        major: abi::KERNEL_VERSION,
        minor: i.minor.min(abi::MINOR_VERSION),
        max_readahead: i.max_readahead.min(MAX_READAHEAD),
        flags: agreed as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTION_THRESHOLD,
        max_write: max_write as u32,
        time_gran: 1,
        max_pages: (max_write / PAGE) as u16,
        flags2: (agreed >> 32) as u32,
        ..Default::default()
    };
    Ok((out, agreed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn init_in(minor: u32, flags: u64) -> Vec<u8> {
        let i = abi::InitIn {
            major: 7,
            minor,
            max_readahead: 1 << 17,
            flags: flags as u32,
        };
        let mut b = i.as_bytes().to_vec();
        b.extend_from_slice(&((flags >> 32) as u32).to_ne_bytes());
        b.extend_from_slice(&[0; 44]);
        b
    }

    #[test]
    fn only_what_both_want() {
        let offered = INIT_EXT | DIRECT_IO_ALLOW_MMAP | POSIX_ACL | 1 << 16 | 1 << 41;
        let (out, agreed) = answer(&init_in(45, offered), 1 << 20, true).unwrap();
        assert_eq!(
            agreed,
            INIT_EXT | DIRECT_IO_ALLOW_MMAP | POSIX_ACL,
            "no WRITEBACK_CACHE, no io_uring"
        );
        assert_eq!(
            (out.minor, out.max_pages, out.max_write, out.flags2),
            (45, 256, 1 << 20, 1 << 4)
        );
    }

    #[test]
    fn without_the_extension_bit_the_second_word_is_not_read() {
        let (_, agreed) = answer(
            &init_in(36, DIRECT_IO_ALLOW_MMAP | ASYNC_DIO),
            1 << 20,
            true,
        )
        .unwrap();
        assert_eq!(agreed, ASYNC_DIO);
    }

    #[test]
    fn old_and_new_kernels() {
        let (_, agreed) = answer(
            &init_in(45, POSIX_LOCKS | FLOCK_LOCKS | ASYNC_DIO),
            1 << 20,
            false,
        )
        .unwrap();
        assert_eq!(
            agreed & (POSIX_LOCKS | FLOCK_LOCKS),
            0,
            "the kernel keeps locks by itself only when they are not agreed on"
        );
        assert!(answer(&init_in(30, 0), 1 << 20, true).is_err());
        assert_eq!(
            answer(&init_in(99, 0), 1 << 20, true).unwrap().0.minor,
            abi::MINOR_VERSION
        );
        assert!(answer(&[0; 8], 1 << 20, true).is_err());
    }
}
