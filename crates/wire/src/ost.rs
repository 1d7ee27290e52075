//! OST structures and bulk checksums (`lustre_idl.h`, `lustre/include/obd_cksum.h`).

use crate::fid::{Fid, OstId};
use crate::raw::{wire_flags, wire_struct};

/// Which fields of an [`Obdo`] or an `MdtBody` mean something (`OBD_MD_*`).
pub mod md {
    /// Lists the bits with their names.
    macro_rules! bits {
        ($($name:ident = $n:literal),* $(,)?) => {
            $(#[doc = concat!("`OBD_MD_", stringify!($name), "`")] pub const $name: u64 = $n;)*
            /// Names of the set bits, joined by `|`.
            pub fn names(valid: u64) -> String {
                let mut out: Vec<&str> = Vec::new();
                $(if valid & $name != 0 { out.push(stringify!($name)); })*
                out.join("|")
            }
        };
    }
    bits! {
        FLID = 0x1, FLATIME = 0x2, FLMTIME = 0x4, FLCTIME = 0x8, FLSIZE = 0x10, FLBLOCKS = 0x20, FLBLKSZ = 0x40, FLMODE = 0x80,
        FLTYPE = 0x100, FLUID = 0x200, FLGID = 0x400, FLFLAGS = 0x800, DOM_SIZE = 0x1000, FLNLINK = 0x2000, FLPARENT = 0x4000,
        LAYOUT_VERSION = 0x8000, FLRDEV = 0x1_0000, FLEASIZE = 0x2_0000, LINKNAME = 0x4_0000, FLHANDLE = 0x8_0000,
        FLCKSUM = 0x10_0000, FLPRJQUOTA = 0x40_0000, FLGROUP = 0x100_0000, FLFID = 0x200_0000, FLGRANT = 0x800_0000,
        FLDIREA = 0x1000_0000, FLUSRQUOTA = 0x2000_0000, FLGRPQUOTA = 0x4000_0000, FLMODEASIZE = 0x8000_0000,
        MDS = 0x1_0000_0000, MEA = 0x4_0000_0000, TSTATE = 0x8_0000_0000, FLXATTR = 0x10_0000_0000, FLXATTRLS = 0x20_0000_0000,
        FLXATTRRM = 0x40_0000_0000, FLACL = 0x80_0000_0000, FLAGSTATFS = 0x100_0000_0000, FLCROSSREF = 0x1000_0000_0000,
        FLGETATTRLOCK = 0x2000_0000_0000, FLOBJCOUNT = 0x4000_0000_0000, FLDATAVERSION = 0x10_0000_0000_0000,
        CLOSE_INTENT_EXECED = 0x20_0000_0000_0000, DEFAULT_MEA = 0x40_0000_0000_0000, FLOSTLAYOUT = 0x80_0000_0000_0000,
        FLPROJID = 0x100_0000_0000_0000, SECCTX = 0x200_0000_0000_0000, FLLAZYSIZE = 0x400_0000_0000_0000,
        FLLAZYBLOCKS = 0x800_0000_0000_0000, FLBTIME = 0x1000_0000_0000_0000, ENCCTX = 0x2000_0000_0000_0000,
        NAMEHASH = 0x4000_0000_0000_0000,
    }
    /// Everything a getattr without layout asks for (`OBD_MD_FLGETATTR`).
    pub const FLGETATTR: u64 = FLID
        | FLATIME
        | FLMTIME
        | FLCTIME
        | FLSIZE
        | FLBLKSZ
        | FLMODE
        | FLTYPE
        | FLUID
        | FLGID
        | FLFLAGS
        | FLNLINK
        | FLPARENT
        | FLRDEV
        | FLGROUP
        | FLPROJID
        | FLBTIME;
}

wire_flags! {
    /// `o_flags` (`OBD_FL_*`). The checksum type is a number in bits 12..16, not single bits: see [`CksumType`].
    pub struct ObdFlags(u32) {
        DELORPHAN = 0x4, NO_PRJQUOTA = 0x80, NO_USRQUOTA = 0x100, NO_GRPQUOTA = 0x200, CREATE_CROW = 0x400,
        /// Server takes the locks.
        SRVLOCK = 0x800,
        /// Give grant back.
        SHRINK_GRANT = 0x2_0000,
        RECOV_RESEND = 0x8_0000, NOSPC_BLK = 0x10_0000,
        /// Flush pages on the OST.
        FLUSH = 0x20_0000,
        /// Data is inside the message.
        SHORT_IO = 0x40_0000,
        ROOT_SQUASH = 0x80_0000, ROOT_PRJQUOTA = 0x100_0000,
    }
}

/// `o_flags` bits that hold the checksum type.
pub const OBD_FL_CKSUM_MASK: u32 = 0xf000;

wire_struct! {
    /// `ost_layout`: what an OST object knows of the file it belongs to.
    pub packed struct OstLayout : 28 {
        0 stripe_size: u32,
        4 stripe_count: u32,
        8 comp_start: u64,
        16 comp_end: u64,
        24 comp_id: u32,
    }
}

wire_struct! {
    /// `obdo`: attributes of an object; several fields have a second meaning in bulk requests.
    pub struct Obdo : 208 {
        /// Which fields count, see [`md`].
        0 valid: u64,
        8 oi: OstId,
        24 parent_seq: u64,
        /// Bytes; punch: first byte.
        32 size: u64,
        /// Seconds.
        40 mtime: i64,
        /// Seconds.
        48 atime: i64,
        /// Seconds.
        56 ctime: i64,
        /// 512-byte blocks; punch: end; bulk: bytes dirty in the client's cache (`o_dirty`).
        64 blocks: u64,
        /// Bytes of grant.
        72 grant: u64,
        80 blksize: u32,
        /// Mode; bulk: bytes the client could still dirty (`o_undirty`).
        84 mode: u32,
        88 uid: u32,
        92 gid: u32,
        96 flags: ObdFlags,
        /// Links; bulk: checksum (`o_cksum`); fallocate: mode (`o_falloc_mode`).
        100 nlink: u32,
        104 parent_oid: u32,
        /// Bulk: bytes of grant dropped (`o_dropped`).
        108 misc: u32,
        112 ioepoch: u64,
        120 stripe_idx: u32,
        124 parent_ver: u32,
        /// Cookie of the lock under which the I/O is done.
        128 handle: u64,
        136 layout: OstLayout,
        164 layout_version: u32,
        168 uid_h: u32,
        172 gid_h: u32,
        /// Data version; bulk write: grant consumed.
        176 data_version: u64,
        184 projid: u32,
        188 padding_4: u32,
        192 padding_5: u64,
        200 padding_6: u64,
    }
}

/// `ost_body` is nothing but an [`Obdo`].
pub type OstBody = Obdo;

impl Obdo {
    /// The file this object belongs to, and its stripe number (`o_parent_*`, `o_stripe_idx`).
    pub fn parent(&self) -> (Fid, u32) {
        (
            Fid {
                seq: self.parent_seq,
                oid: self.parent_oid,
                ver: self.parent_ver,
            },
            self.stripe_idx,
        )
    }

    /// Sets file and stripe number with their valid bit.
    pub fn set_parent(&mut self, fid: Fid, stripe_idx: u32) {
        (
            self.parent_seq,
            self.parent_oid,
            self.parent_ver,
            self.stripe_idx,
        ) = (fid.seq, fid.oid, fid.ver, stripe_idx);
        self.valid |= md::FLFID;
    }
}

wire_struct! {
    /// `obd_ioobj`.
    #[derive(Eq)]
    pub struct ObdIoobj : 24 {
        0 oid: OstId,
        /// (most bulk MDs - 1) << 16.
        16 max_brw: u32,
        20 bufcnt: u32,
    }
}

impl ObdIoobj {
    /// One object with `niobufs` pieces, moved in `mds` bulk MDs. The bound sent is the next power of two: servers refuse others
    /// (`tgt_io_data_unpack`), as it is a mask of match bits to them.
    pub fn new(oid: OstId, mds: u32, niobufs: u32) -> ObdIoobj {
        ObdIoobj {
            oid,
            max_brw: (mds.next_power_of_two() - 1) << 16,
            bufcnt: niobufs,
        }
    }

    /// Most bulk MDs.
    pub fn max_mds(&self) -> u32 {
        (self.max_brw >> 16) + 1
    }
}

/// Flags of a [`NiobufRemote`] (`OBD_BRW_*`).
pub mod brw {
    /// Read.
    pub const READ: u32 = 0x1;
    /// Write.
    pub const WRITE: u32 = 0x2;
    /// Do not delay.
    pub const NDELAY: u32 = 0x4;
    /// Part of synchronous I/O.
    pub const SYNC: u32 = 0x8;
    /// Space was taken from the grant.
    pub const FROM_GRANT: u32 = 0x20;
    /// Server granted it.
    pub const GRANTED: u32 = 0x40;
    /// Not cached.
    pub const NOCACHE: u32 = 0x80;
    /// Quota is not enforced.
    pub const NOQUOTA: u32 = 0x100;
    /// The server takes the lock.
    pub const SRVLOCK: u32 = 0x200;
    /// The server may delay the commit.
    pub const ASYNC: u32 = 0x400;
    /// Over user quota (reply).
    pub const OVER_USRQUOTA: u32 = 0x1000;
    /// Over group quota (reply).
    pub const OVER_GRPQUOTA: u32 = 0x2000;
    /// Over project quota (reply).
    pub const OVER_PRJQUOTA: u32 = 0x8000;
}

wire_struct! {
    /// `niobuf_remote`: a piece of an object.
    #[derive(Eq)]
    pub struct NiobufRemote : 16 {
        /// Byte offset in the object.
        0 offset: u64,
        /// Bytes.
        8 len: u32,
        /// See [`brw`].
        12 flags: u32,
    }
}

wire_struct! {
    /// `ost_lvb`: size, times and blocks of an OST object, carried by locks.
    #[derive(Eq)]
    pub struct OstLvb : 56 {
        /// Bytes.
        0 size: u64,
        /// Seconds.
        8 mtime: i64,
        /// Seconds.
        16 atime: i64,
        /// Seconds.
        24 ctime: i64,
        /// 512-byte blocks, or a coded error.
        32 blocks: u64,
        40 mtime_ns: u32,
        44 atime_ns: u32,
        48 ctime_ns: u32,
        52 padding: u32,
    }
}

/// Base of an error coded into `blocks` (`OST_LVB_ERR_INIT`).
const LVB_ERR_INIT: u64 = 0xffba_dbad_8000_0000;
const LVB_ERR_MASK: u64 = 0xffba_dbad_0000_0000;

impl OstLvb {
    /// Reads the full form or the old one of 40 bytes without nanoseconds.
    pub fn decode_any(buf: &[u8]) -> Result<OstLvb, crate::DecodeError> {
        if buf.len() < 40 {
            return Err(crate::DecodeError::Short {
                what: "OstLvb",
                need: 40,
                have: buf.len(),
            });
        }
        let mut whole = [0; 56];
        let n = buf.len().min(56);
        whole[..n].copy_from_slice(&buf[..n]);
        crate::Wire::decode(&whole)
    }

    /// The error coded into `blocks`, if one is (`OST_LVB_GET_ERR`).
    pub fn error(&self) -> Option<crate::Errno> {
        if self.blocks & LVB_ERR_MASK != LVB_ERR_MASK {
            return None;
        }
        crate::Errno::from_status(self.blocks.wrapping_sub(LVB_ERR_INIT) as i32)
    }

    /// Codes an error into `blocks`.
    pub fn set_error(&mut self, e: crate::Errno) {
        self.blocks = LVB_ERR_INIT.wrapping_add(e.status() as i64 as u64);
    }
}

wire_struct! {
    /// `obd_statfs`.
    pub struct ObdStatfs : 144 {
        0 r#type: u64,
        8 blocks: u64,
        16 bfree: u64,
        24 bavail: u64,
        32 files: u64,
        40 ffree: u64,
        48 fsid: [u8; 40],
        /// Bytes of a block; never 0 (a kernel client asserts it).
        88 bsize: u32,
        92 namelen: u32,
        96 maxbytes: u64,
        104 state: u32,
        108 fprecreated: u32,
        112 granted: u32,
        116 spare3: u32,
        120 spare4: u32,
        124 spare5: u32,
        128 spare6: u32,
        132 spare7: u32,
        136 spare8: u32,
        140 spare9: u32,
    }
}

wire_struct! {
    /// `ladvise_hdr` without its advices.
    #[derive(Eq)]
    pub struct LadviseHdr : 32 {
        0 magic: u32,
        4 count: u32,
        8 flags: u64,
        16 value1: u32,
        20 value2: u32,
        24 value3: u64,
    }
}

wire_struct! {
    /// `lu_ladvise`.
    #[derive(Eq)]
    pub struct LuLadvise : 32 {
        0 advice: u16,
        2 value1: u16,
        4 value2: u32,
        8 start: u64,
        16 end: u64,
        24 value3: u32,
        28 value4: u32,
    }
}

/// Checksum types as bits of `ocd_cksum_types` (`OBD_CKSUM_*`).
pub mod cksum_type {
    /// CRC-32 (IEEE).
    pub const CRC32: u32 = 0x1;
    /// Adler-32.
    pub const ADLER: u32 = 0x2;
    /// CRC-32C (Castagnoli).
    pub const CRC32C: u32 = 0x4;
    /// Any of the T10 guard-tag forms, which Coral does not claim.
    pub const T10_ALL: u32 = 0xf0;
}

/// A checksum algorithm of bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CksumType {
    /// CRC-32 (IEEE), seed all ones, not inverted at the end.
    Crc32,
    /// Adler-32, seed 1.
    Adler,
    /// CRC-32C, seed all ones, not inverted at the end.
    Crc32c,
}

impl CksumType {
    /// From the type number in `o_flags`; `None` for T10 and unknown ones. No type at all means CRC-32.
    pub fn from_flags(flags: ObdFlags) -> Option<CksumType> {
        match flags.0 & OBD_FL_CKSUM_MASK {
            0 | 0x1000 => Some(CksumType::Crc32),
            0x2000 => Some(CksumType::Adler),
            0x4000 => Some(CksumType::Crc32c),
            _ => None,
        }
    }

    /// As the type number in `o_flags`.
    pub fn flags(self) -> ObdFlags {
        ObdFlags(match self {
            CksumType::Crc32 => 0x1000,
            CksumType::Adler => 0x2000,
            CksumType::Crc32c => 0x4000,
        })
    }

    /// The best one of a mask of [`cksum_type`] bits: CRC-32C, then Adler, then CRC-32.
    pub fn best(mask: u32) -> Option<CksumType> {
        [
            (cksum_type::CRC32C, CksumType::Crc32c),
            (cksum_type::ADLER, CksumType::Adler),
            (cksum_type::CRC32, CksumType::Crc32),
        ]
        .into_iter()
        .find_map(|(bit, t)| (mask & bit != 0).then_some(t))
    }

    /// The checksum of the concatenated segments as it stands in `o_cksum`.
    pub fn compute<'a>(self, segments: impl IntoIterator<Item = &'a [u8]>) -> u32 {
        match self {
            CksumType::Crc32 => !segments
                .into_iter()
                .fold(crc32fast::Hasher::new(), |mut h, s| {
                    h.update(s);
                    h
                })
                .finalize(),
            // the kernel's crc32c inverts at the end, its crc32 does not
            CksumType::Crc32c => segments.into_iter().fold(0, crc32c::crc32c_append),
            CksumType::Adler => segments
                .into_iter()
                .fold(adler2::Adler32::new(), |mut a, s| {
                    a.write_slice(s);
                    a
                })
                .checksum(),
        }
    }
}

/// CRC-32 as the kernel's crypto layer computes it with seed `~0` and no final inversion.
pub fn crc32(data: &[u8]) -> u32 {
    CksumType::Crc32.compute([data])
}

wire_struct! {
    /// `fiemap` without its extents (Linux `fiemap.h`).
    #[derive(Eq)]
    pub struct Fiemap : 32 {
        0 start: u64,
        8 length: u64,
        16 flags: u32,
        20 mapped_extents: u32,
        24 extent_count: u32,
        28 reserved: u32,
    }
}

wire_struct! {
    /// `fiemap_extent`.
    #[derive(Eq)]
    pub struct FiemapExtent : 56 {
        0 logical: u64,
        8 physical: u64,
        16 length: u64,
        24 reserved64: [u64; 2],
        40 flags: u32,
        /// Lustre: the OST or stripe.
        44 device: u32,
        48 reserved: [u32; 2],
    }
}

wire_struct! {
    /// `ll_fiemap_info_key`: key of OST_GET_INFO for FIEMAP.
    pub struct FiemapInfoKey : 248 {
        0 name: [u8; 8],
        8 oa: Obdo,
        216 fiemap: Fiemap,
    }
}

#[cfg(test)]
mod tests {
    use super::CksumType::{Adler, Crc32, Crc32c};

    /// Of the nine digits, as the kernel's crypto layer gives them with Lustre's seeds (`lnet-crypto.h`); CRC-32C also as a
    /// stock 2.17 server answered it.
    #[test]
    fn checksums_are_the_kernels() {
        let of = |t: super::CksumType| t.compute([&b"1234"[..], b"56789"]);
        assert_eq!(
            (of(Crc32), of(Crc32c), of(Adler)),
            (!0xcbf4_3926, 0xe306_9283, 0x091e_01de)
        );
    }
}
