//! What two ends agree on at connect (`lustre_idl.h`: `OBD_CONNECT_*`, `obd_connect_data`).

use crate::raw::{wire_flags, wire_struct};

wire_flags! {
    /// First word of connect flags (`OBD_CONNECT_*`).
    pub struct ConnectFlags(u64) {
        RDONLY = 0x1, INDEX = 0x2, MDS = 0x4, GRANT = 0x8, SRVLOCK = 0x10,
        VERSION = 0x20, MGS_NIDLIST = 0x40, ACL = 0x80, XATTR = 0x100, LARGE_ACL = 0x200,
        OLD_FALLOC = 0x400, TRANSNO = 0x800, IBITS = 0x1000, BARRIER = 0x2000, ATTRFID = 0x4000,
        NODEVOH = 0x8000, RMT_CLIENT = 0x1_0000, RMT_CLIENT_FORCE = 0x2_0000, BRW_SIZE = 0x4_0000, QUOTA64 = 0x8_0000,
        MDS_CAPA = 0x10_0000, OSS_CAPA = 0x20_0000, CANCELSET = 0x40_0000, SOM = 0x80_0000, AT = 0x100_0000,
        LRU_RESIZE = 0x200_0000, MDS_MDS = 0x400_0000, REAL = 0x800_0000, CHANGE_QS = 0x1000_0000, CKSUM = 0x2000_0000,
        FID = 0x4000_0000, VBR = 0x8000_0000, LOV_V3 = 0x1_0000_0000, GRANT_SHRINK = 0x2_0000_0000, SKIP_ORPHAN = 0x4_0000_0000,
        MAX_EASIZE = 0x8_0000_0000, FULL20 = 0x10_0000_0000, LAYOUTLOCK = 0x20_0000_0000, B64BITHASH = 0x40_0000_0000, MAXBYTES = 0x80_0000_0000,
        IMP_RECOV = 0x100_0000_0000, JOBSTATS = 0x200_0000_0000, UMASK = 0x400_0000_0000, EINPROGRESS = 0x800_0000_0000, GRANT_PARAM = 0x1000_0000_0000,
        HPREQ_CHECK1 = 0x2000_0000_0000, LVB_TYPE = 0x4000_0000_0000, NANOSEC_TIME = 0x8000_0000_0000, LIGHTWEIGHT = 0x1_0000_0000_0000, SHORTIO = 0x2_0000_0000_0000,
        PINGLESS = 0x4_0000_0000_0000, FLOCK_DEAD = 0x8_0000_0000_0000, DISP_STRIPE = 0x10_0000_0000_0000, OPEN_BY_FID = 0x20_0000_0000_0000, LFSCK = 0x40_0000_0000_0000,
        UNLINK_CLOSE = 0x100_0000_0000_0000, MULTIMODRPCS = 0x200_0000_0000_0000, DIR_STRIPE = 0x400_0000_0000_0000, SUBTREE = 0x800_0000_0000_0000, BULK_MBITS = 0x2000_0000_0000_0000,
        OBDOPACK = 0x4000_0000_0000_0000, FLAGS2 = 0x8000_0000_0000_0000,
    }
}

wire_flags! {
    /// Second word of connect flags (`OBD_CONNECT2_*`), valid with [`ConnectFlags::FLAGS2`].
    pub struct ConnectFlags2(u64) {
        FILE_SECCTX = 0x1, LOCKAHEAD = 0x2, DIR_MIGRATE = 0x4, SUM_STATFS = 0x8, OVERSTRIPING = 0x10, FLR = 0x20, WBC_INTENTS = 0x40, LOCK_CONVERT = 0x80,
        ARCHIVE_ID_ARRAY = 0x100, INC_XID = 0x200, SELINUX_POLICY = 0x400, LSOM = 0x800, PCC = 0x1000, CRUSH = 0x2000, ASYNC_DISCARD = 0x4000, ENCRYPT = 0x8000,
        FIDMAP = 0x1_0000, GETATTR_PFID = 0x2_0000, LSEEK = 0x4_0000, DOM_LVB = 0x8_0000, REP_MBITS = 0x10_0000, MODE_CONVERT = 0x20_0000, BATCH_RPC = 0x40_0000,
        PCCRO = 0x80_0000, MNE_TYPE = 0x100_0000, LOCK_CONTENTION = 0x200_0000, ATOMIC_OPEN_LOCK = 0x400_0000, ENCRYPT_NAME = 0x800_0000,
        DMV_IMP_INHERIT = 0x2000_0000, ENCRYPT_FID2PATH = 0x4000_0000, REPLAY_CREATE = 0x8000_0000, LARGE_NID = 0x1_0000_0000, COMPRESS = 0x2_0000_0000,
        UNALIGNED_DIO = 0x4_0000_0000, CONN_POLICY = 0x8_0000_0000, SPARSE = 0x10_0000_0000, MIRROR_ID_FIX = 0x20_0000_0000, UPDATE_LAYOUT = 0x40_0000_0000,
        READDIR_OPEN = 0x80_0000_0000, FLR_EC = 0x100_0000_0000, FLR_IMMED_MIRROR = 0x200_0000_0000, NO_APPEND = 0x400_0000_0000, FLR_EC_WR = 0x800_0000_0000,
        PERFSTATS = 0x1000_0000_0000,
        // not Lustre's: see `crate::coral`
        CORAL = 0x4000_0000_0000_0000,
    }
}

wire_struct! {
    /// `obd_connect_data`: asked for in the request, granted in the reply. A field counts only with its flag.
    pub struct ObdConnectData : 192 {
        0 connect_flags: ConnectFlags,
        /// Release: major<<24 | minor<<16 | patch<<8 | fix.
        8 version: u32,
        /// Bytes of write cache granted at once.
        12 grant: u32,
        /// Index of the target.
        16 index: u32,
        /// Largest bulk in bytes.
        20 brw_size: u32,
        /// Inode lock bits understood.
        24 ibits_known: u64,
        /// log2 of the block size of the OST's file system.
        32 grant_blkbits: u8,
        /// log2 of bytes an inode takes.
        33 grant_inobits: u8,
        /// Overhead of an extent in KiB.
        34 grant_tax_kb: u16,
        /// Most blocks of an extent.
        36 grant_max_blks: u32,
        /// First transno the client will replay.
        40 transno: u64,
        /// Group of objects (servers only).
        48 group: u32,
        /// Checksum types, see [`crate::ost::cksum_type`].
        52 cksum_types: u32,
        /// Largest layout attribute in bytes.
        56 max_easize: u32,
        /// Number of the target's start.
        60 instance: u32,
        /// Largest object in bytes.
        64 maxbytes: u64,
        /// Modifying requests in flight.
        72 maxmodrpcs: u16,
        74 conn_policy: u8,
        75 padding0: u8,
        76 padding1: u32,
        80 connect_flags2: ConnectFlags2,
        88 compr_type: u64,
        96 padding: [u64; 12],
    }
}

/// The Lustre release both ends claim unless told otherwise: the one whose protocol was read.
pub const CLAIMED: u32 = release(2, 17, 57, 0);

/// Releases one may claim instead: the lines whose peers were considered.
pub const CLAIMABLE: std::ops::RangeInclusive<u32> =
    release(2, 15, 0, 0)..=release(2, 18, u8::MAX, u8::MAX);

/// A Lustre release as `ocd_version` codes it.
pub const fn release(major: u8, minor: u8, patch: u8, fix: u8) -> u32 {
    ((major as u32) << 24) | ((minor as u32) << 16) | ((patch as u32) << 8) | fix as u32
}

impl ObdConnectData {
    /// Bytes of the oldest form, up to `maxbytes` inclusive, that a peer may send.
    pub const MIN_SIZE: usize = 72;

    /// Reads connect data of any length from [`ObdConnectData::MIN_SIZE`] on; what is missing is zero.
    pub fn decode_any(buf: &[u8]) -> Result<ObdConnectData, crate::DecodeError> {
        if buf.len() < Self::MIN_SIZE {
            return Err(crate::DecodeError::Short {
                what: "ObdConnectData",
                need: Self::MIN_SIZE,
                have: buf.len(),
            });
        }
        let mut whole = [0; size_of::<ObdConnectData>()];
        let n = buf.len().min(whole.len());
        whole[..n].copy_from_slice(&buf[..n]);
        crate::Wire::decode(&whole)
    }

    /// Whether all of these flags are set.
    pub fn has(&self, f: ConnectFlags) -> bool {
        self.connect_flags.contains(f)
    }

    /// Whether all of these second-word flags are set and valid.
    pub fn has2(&self, f: ConnectFlags2) -> bool {
        self.has(ConnectFlags::FLAGS2) && self.connect_flags2.contains(f)
    }
}
