//! MDS structures and constants (`lustre_idl.h`, `lustre_user.h`): bodies, reint records, open flags, dispositions.

pub mod batch;
mod dirpage;
mod rec;

pub use dirpage::{
    DirEntry, DirPageBuilder, DirPageError, DirPages, LU_PAGE_SIZE, MDS_DIR_END_OFF, luda,
    parse_page, readpage_entries,
};
pub use rec::*;

pub use crate::ost::md;

use crate::fid::Fid;
use crate::raw::{wire_enum, wire_struct};

wire_struct! {
    /// `mdt_body`: attributes in replies, arguments in requests.
    pub struct MdtBody : 216 {
        /// The object, or the parent.
        0 fid1: Fid,
        /// The child.
        16 fid2: Fid,
        /// Cookie of an open handle.
        32 open_handle: u64,
        /// Which fields count, see [`md`].
        40 valid: u64,
        /// Bytes; readpage: hash to start from.
        48 size: u64,
        /// Seconds.
        56 mtime: i64,
        /// Seconds.
        64 atime: i64,
        /// Seconds.
        72 ctime: i64,
        /// 512-byte blocks.
        80 blocks: u64,
        88 version: u64,
        96 t_state: u64,
        104 fsuid: u32,
        108 fsgid: u32,
        112 capability: u32,
        116 mode: u32,
        120 uid: u32,
        124 gid: u32,
        /// Inode flags (`LUSTRE_*_FL`) in replies.
        128 flags: u32,
        132 rdev: u32,
        /// Links; readpage: bytes wanted.
        136 nlink: u32,
        140 layout_gen: u32,
        144 suppgid: u32,
        /// Bytes of the layout attribute (or wanted).
        148 eadatasize: u32,
        /// Bytes of the ACL attribute.
        152 aclsize: u32,
        156 max_mdsize: u32,
        160 unused3: u32,
        164 uid_h: u32,
        168 gid_h: u32,
        172 projid: u32,
        176 dom_size: u64,
        184 dom_blocks: u64,
        /// Seconds.
        192 btime: u64,
        200 xattr_absent: u64,
        208 padding_10: u64,
    }
}

wire_struct! {
    /// `mdt_ioepoch`: the handle a close or a truncate is about.
    #[derive(Eq)]
    pub struct MdtIoepoch : 24 {
        0 open_handle: u64,
        8 unused1: u64,
        16 unused2: u32,
        20 padding: u32,
    }
}

wire_struct! {
    /// `close_data`: what a close does besides.
    #[derive(Eq)]
    pub struct CloseData : 96 {
        /// Lease cookie.
        0 handle: u64,
        8 fid: Fid,
        24 data_version: u64,
        /// By bias: resync count and ids (u32), a mirror id (u16), an archive id (u32) or a data version.
        32 reserved: [u64; 8],
    }
}

wire_struct! {
    /// `layout_intent`.
    #[derive(Eq)]
    pub struct LayoutIntent : 24 {
        /// See [`layout_intent`].
        0 opc: u32,
        4 flags: u32,
        /// First byte of the range to be instantiated.
        8 start: u64,
        /// End of it, exclusive.
        16 end: u64,
    }
}

/// `lai_opc` (`enum layout_intent_opc`).
pub mod layout_intent {
    /// Read the layout.
    pub const ACCESS: u32 = 0;
    /// About to write: instantiate.
    pub const WRITE: u32 = 2;
    /// About to truncate: instantiate.
    pub const TRUNC: u32 = 4;
    /// PCC read-only set.
    pub const PCCRO_SET: u32 = 7;
    /// PCC read-only clear.
    pub const PCCRO_CLEAR: u32 = 8;
    /// Change flags.
    pub const CHANGE: u32 = 9;
}

wire_enum! {
    /// `enum mds_reint_op`.
    pub struct ReintOp(u32) {
        /// chmod, chown, truncate, times.
        SETATTR = 1,
        /// mkdir, mknod, symlink.
        CREATE = 2,
        /// Hard link.
        LINK = 3,
        /// unlink, rmdir.
        UNLINK = 4,
        /// rename.
        RENAME = 5,
        /// open.
        OPEN = 6,
        /// setxattr, removexattr.
        SETXATTR = 7,
        /// Remove a directory entry only.
        RMENTRY = 8,
        /// Move a directory to other MDTs.
        MIGRATE = 9,
        /// Mirror resync begins.
        RESYNC = 10,
    }
}

/// Disposition of an intent, `lock_policy_res1` (`enum lustre_disposition`).
pub mod disp {
    /// The intent was executed.
    pub const IT_EXECD: u64 = 0x1;
    /// A lookup was done.
    pub const LOOKUP_EXECD: u64 = 0x2;
    /// and found nothing.
    pub const LOOKUP_NEG: u64 = 0x4;
    /// and found something.
    pub const LOOKUP_POS: u64 = 0x8;
    /// Creation was tried.
    pub const OPEN_CREATE: u64 = 0x10;
    /// Open was tried.
    pub const OPEN_OPEN: u64 = 0x20;
    /// Client only.
    pub const ENQ_OPEN_REF: u64 = 0x80_0000;
    /// Client only.
    pub const ENQ_CREATE_REF: u64 = 0x100_0000;
    /// An open lock was given.
    pub const OPEN_LOCK: u64 = 0x200_0000;
    /// A lease was given.
    pub const OPEN_LEASE: u64 = 0x400_0000;
    /// A layout was made.
    pub const OPEN_STRIPE: u64 = 0x800_0000;
    /// The lease was denied.
    pub const OPEN_DENY: u64 = 0x1000_0000;
}

/// Open flags of `RecCreate` (`MDS_OPEN_*`).
pub mod open {
    /// Read.
    pub const READ: u64 = 0o1;
    /// Write.
    pub const WRITE: u64 = 0o2;
    /// Execute.
    pub const EXEC: u64 = 0o4;
    /// Replay: this open created the file.
    pub const CREATED: u64 = 0o10;
    /// Create.
    pub const CREAT: u64 = 0o100;
    /// Must not exist.
    pub const EXCL: u64 = 0o200;
    /// O_NOCTTY.
    pub const NOCTTY: u64 = 0o400;
    /// Truncate.
    pub const TRUNC: u64 = 0o1000;
    /// Append.
    pub const APPEND: u64 = 0o2000;
    /// O_NONBLOCK.
    pub const NONBLOCK: u64 = 0o4000;
    /// Synchronous.
    pub const SYNC: u64 = 0o10000;
    /// FASYNC.
    pub const FASYNC: u64 = 0o20000;
    /// O_LARGEFILE.
    pub const LARGEFILE: u64 = 0o100000;
    /// Must be a directory.
    pub const DIRECTORY: u64 = 0o200000;
    /// O_NOFOLLOW.
    pub const NOFOLLOW: u64 = 0o400000;
    /// By FID, no name.
    pub const BY_FID: u64 = 0o40000000;
    /// Make objects later.
    pub const DELAY_CREATE: u64 = 0o100000000;
    /// Owner may always.
    pub const OWNEROVERRIDE: u64 = 0o200000000;
    /// Wants an open lock.
    pub const LOCK: u64 = 0o4000000000;
    /// A layout is in the request.
    pub const HAS_EA: u64 = 0o10000000000;
    /// The layout names existing objects.
    pub const HAS_OBJS: u64 = 0o20000000000;
    /// Do not restore from the archive.
    pub const NORESTORE: u64 = 0o100000000000;
    /// New stripe needed.
    pub const NEWSTRIPE: u64 = 0o200000000000;
    /// Created unlinked.
    pub const VOLATILE: u64 = 0o400000000000;
    /// Wants a lease.
    pub const LEASE: u64 = 0o1000000000000;
    /// HSM release.
    pub const RELEASE: u64 = 0o2000000000000;
    /// Mirror resync; on mkdir: send the LMV attribute back.
    pub const RESYNC: u64 = 0o4000000000000;
    /// PCC.
    pub const PCC: u64 = 0o10000000000000;
    /// FID in the request is to be used.
    pub const WITH_FID: u64 = 0o20000000000000;
    /// Send the default LMV of the parent back.
    pub const DEFAULT_LMV: u64 = 0o40000000000000;
}

/// `sa_valid` of a setattr (`MDS_ATTR_*`).
pub mod attr {
    /// Mode.
    pub const MODE: u64 = 0x1;
    /// Owner.
    pub const UID: u64 = 0x2;
    /// Group.
    pub const GID: u64 = 0x4;
    /// Size.
    pub const SIZE: u64 = 0x8;
    /// Access time.
    pub const ATIME: u64 = 0x10;
    /// Modification time.
    pub const MTIME: u64 = 0x20;
    /// Change time.
    pub const CTIME: u64 = 0x40;
    /// Access time given by the user.
    pub const ATIME_SET: u64 = 0x80;
    /// Modification time given by the user.
    pub const MTIME_SET: u64 = 0x100;
    /// No permission check.
    pub const FORCE: u64 = 0x200;
    /// Inode flags.
    pub const ATTR_FLAG: u64 = 0x400;
    /// Drop setuid.
    pub const KILL_SUID: u64 = 0x800;
    /// Drop setgid.
    pub const KILL_SGID: u64 = 0x1000;
    /// Change time given by the client.
    pub const CTIME_SET: u64 = 0x2000;
    /// From open(O_TRUNC).
    pub const FROM_OPEN: u64 = 0x4000;
    /// Blocks.
    pub const BLOCKS: u64 = 0x8000;
    /// Project id.
    pub const PROJID: u64 = 0x1_0000;
    /// Lazy size.
    pub const LSIZE: u64 = 0x2_0000;
    /// Lazy blocks.
    pub const LBLOCKS: u64 = 0x4_0000;
    /// Owner override.
    pub const OVERRIDE: u64 = 0x200_0000;
}

/// Inode flags as they travel and as `chattr` has them (`LUSTRE_*_FL`, `FS_*_FL`).
pub mod fl {
    /// Every write is synchronous.
    pub const SYNC: u32 = 0x8;
    /// Nothing of the object may change.
    pub const IMMUTABLE: u32 = 0x10;
    /// It may only grow.
    pub const APPEND: u32 = 0x20;
    /// Backups leave it out.
    pub const NODUMP: u32 = 0x40;
    /// Reads leave the access time alone.
    pub const NOATIME: u32 = 0x80;
    /// New objects get the directory's project.
    pub const PROJINHERIT: u32 = 0x2000_0000;
}

/// Bias of reint records and closes (`enum mds_op_bias`).
pub mod bias {
    /// Name lies on another MDT.
    pub const CROSS_REF: u32 = 1 << 1;
    /// No permission check.
    pub const PERM_BYPASS: u32 = 1 << 3;
    /// No quota.
    pub const QUOTA_IGNORE: u32 = 1 << 5;
    /// Keep as orphan.
    pub const KEEP_ORPHAN: u32 = 1 << 7;
    /// Open in recovery.
    pub const RECOV_OPEN: u32 = 1 << 8;
    /// The file was written.
    pub const DATA_MODIFIED: u32 = 1 << 9;
    /// Create unlinked.
    pub const CREATE_VOLATILE: u32 = 1 << 10;
    /// Owner may always.
    pub const OWNEROVERRIDE: u32 = 1 << 11;
    /// Close releases (HSM).
    pub const HSM_RELEASE: u32 = 1 << 12;
    /// Close ends a migration.
    pub const CLOSE_MIGRATE: u32 = 1 << 13;
    /// Close swaps layouts.
    pub const CLOSE_LAYOUT_SWAP: u32 = 1 << 14;
    /// Close merges a mirror.
    pub const CLOSE_LAYOUT_MERGE: u32 = 1 << 15;
    /// Close ends a resync.
    pub const CLOSE_RESYNC_DONE: u32 = 1 << 16;
    /// Close splits a mirror.
    pub const CLOSE_LAYOUT_SPLIT: u32 = 1 << 17;
    /// Truncate keeps the lease.
    pub const TRUNC_KEEP_LEASE: u32 = 1 << 18;
    /// PCC attach.
    pub const PCC_ATTACH: u32 = 1 << 19;
    /// Close carries times.
    pub const CLOSE_UPDATE_TIMES: u32 = 1 << 20;
    /// Set a stripe only when creating.
    pub const SETSTRIPE_CREATE: u32 = 1 << 21;
    /// By FID.
    pub const FID_OP: u32 = 1 << 22;
    /// Migrate entries only.
    pub const MIGRATE_NSONLY: u32 = 1 << 23;
    /// The client sends a default LMV.
    pub const CREATE_DEFAULT_LMV: u32 = 1 << 24;
    /// Rename must be retried.
    pub const RENAME_AGAIN: u32 = 1 << 26;
    /// A hash instead of a name.
    pub const NAMEHASH: u32 = 1 << 27;
    /// Any bias that makes a close carry `CloseData`.
    pub const CLOSE_INTENT: u32 = HSM_RELEASE
        | CLOSE_LAYOUT_SWAP
        | CLOSE_LAYOUT_MERGE
        | CLOSE_LAYOUT_SPLIT
        | CLOSE_RESYNC_DONE;
}

/// Inode flags of `MdtBody::flags` and `RecSetattr::attr_flags` (`LUSTRE_*_FL`, mostly ext4's).
pub mod inode_flags {
    /// Synchronous.
    pub const SYNC: u32 = 0x8;
    /// Immutable.
    pub const IMMUTABLE: u32 = 0x10;
    /// Append only.
    pub const APPEND: u32 = 0x20;
    /// Not dumped.
    pub const NODUMP: u32 = 0x40;
    /// No access time.
    pub const NOATIME: u32 = 0x80;
    /// Directory synchronous.
    pub const DIRSYNC: u32 = 0x1_0000;
    /// Top of a tree.
    pub const TOPDIR: u32 = 0x2_0000;
    /// Encrypted.
    pub const ENCRYPT: u32 = 0x80_0000;
    /// Project id inherited.
    pub const PROJINHERIT: u32 = 0x2000_0000;
    /// What a user may change.
    pub const USER_MODIFIABLE: u32 =
        SYNC | IMMUTABLE | APPEND | NODUMP | NOATIME | 0x400 | DIRSYNC | TOPDIR | PROJINHERIT;
}

wire_struct! {
    /// Head of `getinfo_fid2path`; the path (or the root FID) follows.
    #[derive(Eq)]
    pub struct GetinfoFid2path : 32 {
        0 fid: Fid,
        /// Where to go on; -1 at first (unsigned all ones).
        16 recno: u64,
        /// Which hard link.
        24 linkno: u32,
        /// Bytes of room for the path.
        28 pathlen: u32,
    }
}

wire_struct! {
    /// `mdc_swap_layouts`.
    #[derive(Eq)]
    pub struct SwapLayouts : 24 {
        0 flags: u64,
        8 dv1: u64,
        16 dv2: u64,
    }
}

wire_struct! {
    /// `hsm_user_state` without extended information, which no request carries.
    #[derive(Eq)]
    pub struct HsmUserState : 32 {
        0 states: u32,
        4 archive_id: u32,
        8 in_progress_state: u32,
        12 in_progress_action: u32,
        /// First byte in progress.
        16 in_progress_start: u64,
        /// Bytes in progress.
        24 in_progress_length: u64,
    }
}

wire_struct! {
    /// `hsm_state_set`.
    #[derive(Eq)]
    pub struct HsmStateSet : 24 {
        0 valid: u32,
        4 archive_id: u32,
        8 setmask: u64,
        16 clearmask: u64,
    }
}

wire_struct! {
    /// Head of `but_update_header` (batch requests); inline sub-requests follow.
    #[derive(Eq)]
    pub struct ButUpdateHeader : 24 {
        0 magic: u32,
        4 count: u32,
        8 inline_length: u32,
        12 reply_size: u32,
        16 update_count: u32,
        20 padding: u32,
    }
}

wire_struct! {
    /// `but_update_buffer`: size of one buffer of sub-requests that the server fetches in bulk.
    #[derive(Eq)]
    pub struct ButUpdateBuffer : 8 {
        0 size: u32,
        4 padding: u32,
    }
}

wire_struct! {
    /// Head of `batch_update_request` and `batch_update_reply`; messages follow.
    #[derive(Eq)]
    pub struct BatchUpdateHead : 8 {
        0 magic: u32,
        /// Request: messages that follow. Reply: those that succeeded; the messages of failed ones follow too.
        4 count: u16,
        6 padding: u16,
    }
}

/// `BUT_REQUEST_MAGIC`.
pub const BUT_REQUEST_MAGIC: u32 = 0xBADE_0001;
/// `BUT_HEADER_MAGIC`.
pub const BUT_HEADER_MAGIC: u32 = 0xBADF_0001;
/// `BUT_REPLY_MAGIC`.
pub const BUT_REPLY_MAGIC: u32 = 0x00AD_0001;

/// Names of extended attributes with a meaning (`lustre_idl.h`).
pub mod xattr {
    /// Layout.
    pub const LOV: &str = "trusted.lov";
    /// Layout as users name it.
    pub const LUSTRE_LOV: &str = "lustre.lov";
    /// FID and flags of an inode.
    pub const LMA: &str = "trusted.lma";
    /// Striped directory.
    pub const LMV: &str = "trusted.lmv";
    /// Default layout of new directories.
    pub const DEFAULT_LMV: &str = "trusted.dmv";
    /// Parents and names.
    pub const LINK: &str = "trusted.link";
    /// OST object's parent.
    pub const FID: &str = "trusted.fid";
    /// Version.
    pub const VERSION: &str = "trusted.version";
    /// Lazy size.
    pub const SOM: &str = "trusted.som";
    /// HSM.
    pub const HSM: &str = "trusted.hsm";
    /// Access ACL.
    pub const ACL_ACCESS: &str = "system.posix_acl_access";
    /// Default ACL.
    pub const ACL_DEFAULT: &str = "system.posix_acl_default";
}

/// `link_ea_header.leh_magic`.
pub const LINK_EA_MAGIC: u32 = 0x11EA_F1DF;
