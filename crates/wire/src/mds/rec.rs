//! Records of reint requests: each is 136 bytes and its first word says which (`lustre_idl.h`, `mdt_rec_*`).

use super::{ReintOp, bias};
use crate::fid::Fid;
use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;

wire_struct! {
    /// `mdt_rec_reint`: the common form; use the record of the opcode to read fields.
    #[derive(Eq)]
    pub struct MdtRecReint : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32, 12 padding_1_h: u32, 16 fsgid: u32, 20 padding_2_h: u32,
        24 suppgid1: u32, 28 padding_3_h: u32, 32 suppgid2: u32, 36 padding_4_h: u32,
        40 fid1: Fid, 56 fid2: Fid, 72 mtime: i64, 80 atime: i64, 88 ctime: i64, 96 size: u64, 104 blocks: u64,
        112 bias: u32, 116 mode: u32, 120 flags: u32, 124 flags_h: u32, 128 umask: u32, 132 mirror_id_old: u16, 134 padding_4: u16,
    }
}

wire_struct! {
    /// `mdt_rec_create`: create and open.
    #[derive(Eq)]
    pub struct RecCreate : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32,
        /// Layout version of a striped parent.
        12 layout_ver: u32,
        16 fsgid: u32, 20 padding_2_h: u32, 24 suppgid1: u32, 28 padding_3_h: u32, 32 suppgid2: u32, 36 padding_4_h: u32,
        /// Parent.
        40 fid1: Fid,
        /// The new object's FID, chosen by the client; open without create: the object if known.
        56 fid2: Fid,
        /// Replay: the handle it had.
        72 open_handle_old: u64,
        /// Seconds.
        80 time: i64,
        88 rdev: u64, 96 ioepoch: u64, 104 padding_1: u64,
        /// Type and permission bits.
        112 mode: u32,
        /// See [`bias`].
        116 bias: u32,
        /// Low half of the open flags.
        120 flags_l: u32,
        /// High half.
        124 flags_h: u32,
        128 umask: u32, 132 padding_4: u32,
    }
}

impl RecCreate {
    /// Open flags, see [`super::open`].
    pub const fn flags(&self) -> u64 {
        ((self.flags_h as u64) << 32) | self.flags_l as u64
    }

    /// Sets the open flags.
    pub const fn set_flags(&mut self, f: u64) {
        self.flags_l = f as u32;
        self.flags_h = (f >> 32) as u32;
    }
}

wire_struct! {
    /// `mdt_rec_link`.
    #[derive(Eq)]
    pub struct RecLink : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32,
        /// Layout version of a striped directory, as for a create. Coral's own.
        12 layout_ver: u32,
        16 fsgid: u32, 20 padding_2_h: u32,
        24 suppgid1: u32, 28 padding_3_h: u32, 32 suppgid2: u32, 36 padding_4_h: u32,
        /// The object.
        40 fid1: Fid,
        /// The directory.
        56 fid2: Fid,
        /// Seconds.
        72 time: i64,
        80 padding_1: u64, 88 padding_2: u64, 96 padding_3: u64, 104 padding_4: u64, 112 bias: u32,
        116 padding_5: u32, 120 padding_6: u32, 124 padding_7: u32, 128 padding_8: u32, 132 padding_9: u32,
    }
}

wire_struct! {
    /// `mdt_rec_unlink`: unlink and rmdir.
    #[derive(Eq)]
    pub struct RecUnlink : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32, 12 padding_1_h: u32, 16 fsgid: u32, 20 padding_2_h: u32,
        24 suppgid1: u32, 28 padding_3_h: u32, 32 suppgid2: u32, 36 padding_4_h: u32,
        /// The directory.
        40 fid1: Fid,
        /// The object if known.
        56 fid2: Fid,
        /// Seconds.
        72 time: i64,
        /// Handle of an open of the object that its client has no more use for: it is closed with the removal, and the reply's
        /// body names it then. Coral's own; 0: none.
        80 close: u64,
        88 padding_3: u64, 96 padding_4: u64, 104 padding_5: u64, 112 bias: u32,
        /// Type bits: S_IFDIR for rmdir.
        116 mode: u32,
        120 padding_6: u32, 124 padding_7: u32, 128 padding_8: u32, 132 padding_9: u32,
    }
}

wire_struct! {
    /// `mdt_rec_rename`.
    #[derive(Eq)]
    pub struct RecRename : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32,
        /// Layout version of a striped target directory, as for a create. Coral's own.
        12 layout_ver: u32,
        16 fsgid: u32, 20 padding_2_h: u32,
        24 suppgid1: u32, 28 padding_3_h: u32, 32 suppgid2: u32, 36 padding_4_h: u32,
        /// Source directory.
        40 fid1: Fid,
        /// Target directory.
        56 fid2: Fid,
        /// Seconds.
        72 time: i64,
        80 padding_1: u64, 88 padding_2: u64, 96 padding_3: u64, 104 padding_4: u64, 112 bias: u32, 116 mode: u32,
        120 padding_5: u32, 124 padding_6: u32, 128 padding_7: u32, 132 padding_8: u32,
    }
}

wire_struct! {
    /// `mdt_rec_setattr`: setattr, and the attributes of a close.
    #[derive(Eq)]
    pub struct RecSetattr : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32, 12 padding_1_h: u32, 16 fsgid: u32, 20 padding_2_h: u32,
        24 suppgid: u32, 28 padding_3_h: u32, 32 padding_1: u32, 36 padding_2: u32,
        40 fid: Fid,
        /// Which fields count, see [`super::attr`].
        56 valid: u64,
        64 uid: u32, 68 gid: u32,
        /// Bytes.
        72 size: u64,
        /// 512-byte blocks.
        80 blocks: u64,
        /// Seconds.
        88 mtime: i64,
        /// Seconds.
        96 atime: i64,
        /// Seconds.
        104 ctime: i64,
        112 attr_flags: u32, 116 mode: u32,
        /// See [`bias`].
        120 bias: u32,
        124 projid: u32, 128 padding_4: u32, 132 padding_5: u32,
    }
}

wire_struct! {
    /// `mdt_rec_setxattr`.
    #[derive(Eq)]
    pub struct RecSetxattr : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32, 12 padding_1_h: u32, 16 fsgid: u32, 20 padding_2_h: u32,
        24 suppgid1: u32, 28 padding_3_h: u32, 32 suppgid2: u32, 36 padding_4_h: u32,
        40 fid: Fid, 56 padding_1: u64, 64 padding_2: u32, 68 padding_3: u32,
        /// `md::FLXATTR` to set, `md::FLXATTRRM` to remove.
        72 valid: u64,
        /// Seconds.
        80 time: i64,
        88 padding_5: u64, 96 padding_6: u64, 104 padding_7: u64,
        /// Bytes of the value.
        112 size: u32,
        /// XATTR_CREATE 1, XATTR_REPLACE 2.
        116 flags: u32,
        120 padding_8: u32, 124 padding_9: u32, 128 padding_10: u32, 132 padding_11: u32,
    }
}

wire_struct! {
    /// `mdt_rec_resync`.
    #[derive(Eq)]
    pub struct RecResync : 136 {
        0 opcode: ReintOp, 4 cap: u32, 8 fsuid: u32, 12 padding_1_h: u32, 16 fsgid: u32, 20 padding_2_h: u32,
        24 suppgid1: u32, 28 padding_3_h: u32, 32 suppgid2: u32, 36 padding_4_h: u32,
        40 fid: Fid, 56 padding0: [u8; 16], 72 lease_handle: u64,
        80 padding1: u64, 88 padding2: u64, 96 padding3: u64, 104 padding4: u64, 112 bias: u32,
        116 padding5: u32, 120 padding6: u32, 124 padding7: u32, 128 mirror_id_new: u32, 132 mirror_id_old: u16, 134 padding9: u16,
    }
}

/// A reint record by its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    missing_docs,
    reason = "lives on the stack of one call; the variants are named after their records"
)]
pub enum Rec {
    Setattr(RecSetattr),
    Create(RecCreate),
    Link(RecLink),
    Unlink(RecUnlink),
    Rename(RecRename),
    Open(RecCreate),
    Setxattr(RecSetxattr),
    Rmentry(RecUnlink),
    Migrate(RecRename),
    Resync(RecResync),
}

impl Rec {
    /// Reads the record its first word names.
    pub fn decode(buf: &[u8]) -> Result<Rec, DecodeError> {
        let head = MdtRecReint::decode(buf)?;
        Ok(match head.opcode {
            ReintOp::SETATTR => Rec::Setattr(Wire::decode(buf)?),
            ReintOp::CREATE => Rec::Create(Wire::decode(buf)?),
            ReintOp::LINK => Rec::Link(Wire::decode(buf)?),
            ReintOp::UNLINK => Rec::Unlink(Wire::decode(buf)?),
            ReintOp::RENAME => Rec::Rename(Wire::decode(buf)?),
            ReintOp::OPEN => Rec::Open(Wire::decode(buf)?),
            ReintOp::SETXATTR => Rec::Setxattr(Wire::decode(buf)?),
            ReintOp::RMENTRY => Rec::Rmentry(Wire::decode(buf)?),
            ReintOp::MIGRATE => Rec::Migrate(Wire::decode(buf)?),
            ReintOp::RESYNC => Rec::Resync(Wire::decode(buf)?),
            op => {
                return Err(DecodeError::Value {
                    what: "MdtRecReint",
                    field: "opcode",
                    got: op.0 as u64,
                });
            }
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Rec::Setattr(r) => r.to_bytes(),
            Rec::Create(r) | Rec::Open(r) => r.to_bytes(),
            Rec::Link(r) => r.to_bytes(),
            Rec::Unlink(r) | Rec::Rmentry(r) => r.to_bytes(),
            Rec::Rename(r) | Rec::Migrate(r) => r.to_bytes(),
            Rec::Setxattr(r) => r.to_bytes(),
            Rec::Resync(r) => r.to_bytes(),
        }
    }

    /// The opcode.
    pub fn op(&self) -> ReintOp {
        match self {
            Rec::Setattr(_) => ReintOp::SETATTR,
            Rec::Create(_) => ReintOp::CREATE,
            Rec::Link(_) => ReintOp::LINK,
            Rec::Unlink(_) => ReintOp::UNLINK,
            Rec::Rename(_) => ReintOp::RENAME,
            Rec::Open(_) => ReintOp::OPEN,
            Rec::Setxattr(_) => ReintOp::SETXATTR,
            Rec::Rmentry(_) => ReintOp::RMENTRY,
            Rec::Migrate(_) => ReintOp::MIGRATE,
            Rec::Resync(_) => ReintOp::RESYNC,
        }
    }
}

/// Whether a close with this bias carries [`super::CloseData`].
pub const fn close_has_intent(b: u32) -> bool {
    b & bias::CLOSE_INTENT != 0
}
