//! The FUSE kernel interface, protocol 7.45: structures, opcodes and flags.
//!
//! Facts from Linux `include/uapi/linux/fuse.h`; names are the kernel's without their `fuse_`/`FUSE_` prefix. Everything
//! is native-endian and padded to 8 bytes, so the structures are read and written as they lie. Sizes are asserted below.
//! Absent: CUSE, DAX mappings, io_uring, passthrough, security contexts, id-mapped mounts: none is negotiated.

#![allow(
    missing_docs,
    reason = "fields carry the kernel's own names; the header they come from documents them"
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major protocol version spoken.
pub const KERNEL_VERSION: u32 = 7;
/// Newest minor version this code knows.
pub const MINOR_VERSION: u32 = 45;
/// Oldest minor version accepted (RENAME2, LSEEK, MAX_PAGES and CACHE_SYMLINKS exist).
pub const MINOR_VERSION_MIN: u32 = 31;
/// First minor version with `NOTIFY_INC_EPOCH`.
pub const MINOR_INC_EPOCH: u32 = 44;
/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;

/// Request opcodes.
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
    /// One past the largest opcode counted in statistics.
    pub const COUNT: usize = 54;

    /// The kernel's name of an opcode, for logs and statistics.
    pub fn name(opcode: u32) -> &'static str {
        const NAMES: [&str; COUNT] = [
            "?0",
            "LOOKUP",
            "FORGET",
            "GETATTR",
            "SETATTR",
            "READLINK",
            "SYMLINK",
            "?7",
            "MKNOD",
            "MKDIR",
            "UNLINK",
            "RMDIR",
            "RENAME",
            "LINK",
            "OPEN",
            "READ",
            "WRITE",
            "STATFS",
            "RELEASE",
            "?19",
            "FSYNC",
            "SETXATTR",
            "GETXATTR",
            "LISTXATTR",
            "REMOVEXATTR",
            "FLUSH",
            "INIT",
            "OPENDIR",
            "READDIR",
            "RELEASEDIR",
            "FSYNCDIR",
            "GETLK",
            "SETLK",
            "SETLKW",
            "ACCESS",
            "CREATE",
            "INTERRUPT",
            "BMAP",
            "DESTROY",
            "IOCTL",
            "POLL",
            "NOTIFY_REPLY",
            "BATCH_FORGET",
            "FALLOCATE",
            "READDIRPLUS",
            "RENAME2",
            "LSEEK",
            "COPY_FILE_RANGE",
            "SETUPMAPPING",
            "REMOVEMAPPING",
            "SYNCFS",
            "TMPFILE",
            "STATX",
            "COPY_FILE_RANGE_64",
        ];
        NAMES.get(opcode as usize).copied().unwrap_or("?")
    }
}

/// Flags of INIT, the second word shifted up by 32.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Flags in the answer to OPEN and CREATE.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of `SetattrIn::valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// GETATTR and STATX: the file handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// SETLK, SETLKW: this is flock(2), not fcntl(2).
pub const LK_FLOCK: u32 = 1 << 0;
/// READ: `lock_owner` is set, as it is for every read that goes around the page cache and for no other.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// WRITE: written back from mmapped pages; the file handle is any one open for writing.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: clear setuid and setgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// OPEN, CREATE: the truncation clears setuid and setgid.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// SETXATTR: the ACL clears setgid.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Codes of unsolicited messages to the kernel, sent in the error field of the header.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const INC_EPOCH: i32 = 8;
}

/// `ioctl` that ties a fresh `/dev/fuse` to an existing connection: `_IOR(229, 0, u32)`.
pub const DEV_IOC_CLONE: u64 = 0x8004_e500;

macro_rules! abi {
    ($($(#[$m:meta])* struct $name:ident = $size:literal { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$m])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

abi! {
    struct InHeader = 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    struct OutHeader = 16 { len: u32, error: i32, unique: u64 }
    struct InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    struct InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused0: u16, unused: [u32; 5],
    }
    struct Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    struct EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    struct AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    struct ForgetIn = 8 { nlookup: u64 }
    struct ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    struct BatchForgetIn = 8 { count: u32, dummy: u32 }
    struct GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    struct SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    struct MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    struct MkdirIn = 8 { mode: u32, umask: u32 }
    struct RenameIn = 8 { newdir: u64 }
    struct Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    struct LinkIn = 8 { oldnodeid: u64 }
    struct OpenIn = 8 { flags: u32, open_flags: u32 }
    struct CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    struct OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    struct CreateOut = 144 { entry: EntryOut, open: OpenOut }
    struct ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    struct FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    struct ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    struct WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    struct WriteOut = 8 { size: u32, padding: u32 }
    struct StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    struct FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    struct SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    struct SetxattrInCompat = 8 { size: u32, flags: u32 }
    struct GetxattrIn = 8 { size: u32, padding: u32 }
    struct GetxattrOut = 8 { size: u32, padding: u32 }
    struct FileLock = 24 { start: u64, end: u64, typ: u32, pid: u32 }
    struct LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    struct LkOut = 24 { lk: FileLock }
    struct AccessIn = 8 { mask: u32, padding: u32 }
    struct InterruptIn = 8 { unique: u64 }
    struct FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    struct LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    struct LseekOut = 8 { offset: u64 }
    struct IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    struct IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    struct Dirent = 24 { ino: u64, off: u64, namelen: u32, typ: u32 }
    struct InvalInodeOut = 24 { ino: u64, off: i64, len: i64 }
    struct NotifyStoreOut = 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// What goes before the data of a NOTIFY_STORE.
    struct StoreHead = 40 { header: OutHeader, store: NotifyStoreOut }
    struct InvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32 }
    struct StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    struct SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    struct Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64, size: u64,
        blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32,
        rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    struct StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
}

impl StoreHead {
    /// For `size` bytes of the file `nodeid` from `offset` on.
    pub fn new(nodeid: u64, offset: u64, size: u32) -> Self {
        Self {
            header: OutHeader {
                len: size_of::<Self>() as u32 + size,
                error: notify::STORE,
                unique: 0,
            },
            store: NotifyStoreOut {
                nodeid,
                offset,
                size,
                padding: 0,
            },
        }
    }
}

/// Bytes before the payload of a WRITE: the header and `WriteIn`.
pub const WRITE_HEAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// Length of a directory record with a name of `n` bytes after a fixed part of `fixed`: padded to 8.
pub const fn record_len(fixed: usize, n: usize) -> usize {
    (fixed + n + 7) & !7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_names_line_up() {
        assert_eq!(op::name(op::FORGET), "FORGET");
        assert_eq!(op::name(op::FSYNC), "FSYNC");
        assert_eq!(op::name(op::SETLKW), "SETLKW");
        assert_eq!(op::name(op::BATCH_FORGET), "BATCH_FORGET");
        assert_eq!(op::name(op::SYNCFS), "SYNCFS");
        assert_eq!(op::name(op::COPY_FILE_RANGE_64), "COPY_FILE_RANGE_64");
        assert_eq!(op::name(4096), "?");
    }

    #[test]
    fn records_are_padded_to_eight() {
        assert_eq!(record_len(24, 1), 32);
        assert_eq!(record_len(24, 8), 32);
        assert_eq!(record_len(24, 9), 40);
    }
}
