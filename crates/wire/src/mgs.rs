//! MGS structures (`lustre_idl.h`, mgs part; `lustre/mgs`).

pub use crate::cfg::{
    CfgMarker, ConfigLogReader, ConfigLogWriter, ConfigRecord, Lcfg, LmvDesc, LovDesc, LustreCfg,
};

use crate::nid::Nid;
use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Kinds of configuration (`enum mgs_cfg_type`): resource names and `MgsConfigBody::type`.
pub const MGS_CFG_T_CONFIG: u16 = 0;
/// Security rules; share the config resource.
pub const MGS_CFG_T_SPTLRPC: u16 = 1;
/// Nid table of running targets (imperative recovery).
pub const MGS_CFG_T_RECOVER: u16 = 2;
/// `lctl set_param -P`.
pub const MGS_CFG_T_PARAMS: u16 = 3;
/// Nodemaps.
pub const MGS_CFG_T_NODEMAP: u16 = 4;
/// Write barriers.
pub const MGS_CFG_T_BARRIER: u16 = 5;

/// Target flags of [`MgsTargetInfo`] (`LDD_F_*`, `lustre_disk.h`).
pub mod ldd {
    /// It is an MDT.
    pub const SV_TYPE_MDT: u32 = 0x0001;
    /// It is an OST.
    pub const SV_TYPE_OST: u32 = 0x0002;
    /// It is an MGS.
    pub const SV_TYPE_MGS: u32 = 0x0004;
    /// Needs an index.
    pub const NEED_INDEX: u32 = 0x0010;
    /// Never registered.
    pub const VIRGIN: u32 = 0x0020;
    /// Logs must be written anew.
    pub const UPDATE: u32 = 0x0040;
    /// Rewrite the LDD.
    pub const REWRITE_LDD: u32 = 0x0080;
    /// Regenerate all logs of the file system.
    pub const WRITECONF: u32 = 0x0100;
    /// Parameters are set.
    pub const PARAM: u32 = 0x0400;
    /// MGS: all nodes are failover nodes.
    pub const IR_CAPABLE: u32 = 0x2000;
    /// Registered with error.
    pub const ERROR: u32 = 0x4000;
    /// Target's primary node answers.
    pub const NO_PRIMNODE: u32 = 0x1000;
}

wire_struct! {
    /// `mgs_target_info`: a target registers.
    pub struct MgsTargetInfo : 4544 {
        0 lustre_ver: u32,
        4 stripe_index: u32,
        8 config_ver: u32,
        /// See [`ldd`].
        12 flags: u32,
        16 nid_count: u32,
        20 instance: u32,
        24 fsname: [u8; 64],
        88 svname: [u8; 64],
        152 uuid: [u8; 40],
        192 nids: [Nid; 32],
        448 params: [u8; 4096],
    }
}

wire_struct! {
    /// `mgs_config_body`.
    #[derive(Eq)]
    pub struct MgsConfigBody : 80 {
        /// Name of the log, NUL terminated.
        0 name: [u8; 64],
        /// Next index wanted.
        64 offset: u64,
        /// `MGS_CFG_T_*`.
        72 r#type: u16,
        /// RECOVER: bytes of a NID in the records; NODEMAP: pass.
        74 rec_nid_size: u8,
        /// log2 of a unit's bytes.
        75 bits: u8,
        /// Units of room in the bulk.
        76 units: u32,
    }
}

wire_struct! {
    /// `mgs_config_res`.
    #[derive(Eq)]
    pub struct MgsConfigRes : 16 {
        /// Index of the last record.
        0 offset: u64,
        /// Entries there are (RECOVER: the table's version), or bytes of the log.
        8 size: u64,
    }
}

wire_struct! {
    /// Head of `mgs_nidtbl_entry`; its NIDs follow.
    #[derive(Eq)]
    pub struct MgsNidtblHead : 24 {
        0 version: u64,
        8 instance: u32,
        12 index: u32,
        /// Bytes of the entry with its NIDs.
        16 length: u32,
        /// `ldd::SV_TYPE_MDT` or `_OST`.
        20 r#type: u8,
        /// 0 short NIDs, 1 large ones.
        21 nid_type: u8,
        /// Bytes of a NID.
        22 nid_size: u8,
        23 nid_count: u8,
    }
}

/// `mgs_nidtbl_entry`: where a target runs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MgsNidtblEntry {
    /// The fixed part.
    pub head: MgsNidtblHead,
    /// The NIDs' bytes, `nid_size` each.
    pub nids: Bytes,
}

impl MgsNidtblEntry {
    /// Reads the entry at the head of `buf` and gives the rest.
    pub fn decode(buf: &Bytes) -> Result<(MgsNidtblEntry, Bytes), DecodeError> {
        let head = MgsNidtblHead::decode(buf)?;
        let len = head.length as usize;
        let need = size_of::<MgsNidtblHead>() + head.nid_size as usize * head.nid_count as usize;
        if len < need || len > buf.len() {
            return Err(DecodeError::Length {
                what: "MgsNidtblEntry",
                field: "length",
                got: len as u64,
            });
        }
        let nids = buf.slice(size_of::<MgsNidtblHead>()..len);
        Ok((MgsNidtblEntry { head, nids }, buf.slice(len..)))
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Bytes {
        let mut v = self.head.as_bytes().to_vec();
        v.extend_from_slice(&self.nids);
        v.into()
    }

    /// The short NIDs; empty for large ones.
    pub fn short_nids(&self) -> Vec<Nid> {
        if self.head.nid_size != 8 {
            return Vec::new();
        }
        crate::raw::decode_all(&self.nids[..self.nids.len().min(8 * self.head.nid_count as usize)])
    }
}
