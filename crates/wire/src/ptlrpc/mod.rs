//! PTLRPC: opcodes, portals, the body of every message and the message container
//! (`include/uapi/linux/lustre/lustre_idl.h`, `lustre/ptlrpc/pack_generic.c`).

mod message;
pub mod opc;
pub mod portal;

pub use message::Message;

use crate::raw::wire_struct;

/// `lm_magic` of the only message format spoken.
pub const LUSTRE_MSG_MAGIC_V2: u32 = 0x0BD0_0BD3;
/// `lm_flags`: the sender can take early replies.
pub const MSGHDR_AT_SUPPORT: u32 = 1;
/// `lm_flags`: the checksum of early replies covers the whole body.
pub const MSGHDR_CKSUM_INCOMPAT18: u32 = 2;

/// `pb_type` of a request.
pub const PTL_RPC_MSG_REQUEST: u32 = 4711;
/// `pb_type` of a reply that says the request was not processed.
pub const PTL_RPC_MSG_ERR: u32 = 4712;
/// `pb_type` of a reply.
pub const PTL_RPC_MSG_REPLY: u32 = 4713;

/// Low half of `pb_version`.
pub const PTLRPC_MSG_VERSION: u32 = 3;
/// High half of `pb_version`: pings and the like.
pub const LUSTRE_OBD_VERSION: u32 = 0x1_0000;
/// High half of `pb_version`: MDS, FLD and SEQ requests.
pub const LUSTRE_MDS_VERSION: u32 = 0x2_0000;
/// High half of `pb_version`: OST requests.
pub const LUSTRE_OST_VERSION: u32 = 0x3_0000;
/// High half of `pb_version`: lock requests.
pub const LUSTRE_DLM_VERSION: u32 = 0x4_0000;
/// High half of `pb_version`: llog requests.
pub const LUSTRE_LOG_VERSION: u32 = 0x5_0000;
/// High half of `pb_version`: MGS requests.
pub const LUSTRE_MGS_VERSION: u32 = 0x6_0000;

/// `pb_flags`: sent before, no reply was seen.
pub const MSG_RESENT: u32 = 0x2;
/// `pb_flags`: was processed and replied to before the server restarted.
pub const MSG_REPLAY: u32 = 0x4;
/// `pb_flags`: this client has replayed all requests.
pub const MSG_REQ_REPLAY_DONE: u32 = 0x40;
/// `pb_flags`: this client has replayed all locks.
pub const MSG_LOCK_REPLAY_DONE: u32 = 0x80;
/// `pb_flags`: client is banned by the nodemap.
pub const MSG_CLIENT_BANNED: u32 = 0x100;
/// `pb_flags`: uid and gid of the caller are in the body.
pub const MSG_PACK_UID_GID: u32 = 0x200;
/// `pb_flags`: project id is in the body.
pub const MSG_PACK_PROJID: u32 = 0x400;

/// `pb_op_flags` of a connect: the target is in recovery.
pub const MSG_CONNECT_RECOVERING: u32 = 0x1;
/// `pb_op_flags` of a connect: the target knows this import already.
pub const MSG_CONNECT_RECONNECT: u32 = 0x2;
/// `pb_op_flags` of a connect: the target supports replay.
pub const MSG_CONNECT_REPLAYABLE: u32 = 0x4;
/// `pb_op_flags` of a connect: first attempt of this client.
pub const MSG_CONNECT_INITIAL: u32 = 0x20;
/// `pb_op_flags` of a connect: the client knows message format v2.
pub const MSG_CONNECT_NEXT_VER: u32 = 0x80;
/// `pb_op_flags` of a connect: the first transno to be replayed is in the connect data.
pub const MSG_CONNECT_TRANSNO: u32 = 0x100;

/// Bytes of a job id with its NUL.
pub const LUSTRE_JOBID_SIZE: usize = 32;
/// Bytes of a message that has nothing but a body; the offset of a final reply behind early ones.
pub const BODY_ONLY_SIZE: usize = 224;

wire_struct! {
    /// `ptlrpc_body_v3`: buffer 0 of every message.
    pub struct PtlrpcBody : 184 {
        /// Request: the server's export cookie; AST: the client's import cookie; connect reply: the new export cookie.
        0 handle: u64,
        /// `PTL_RPC_MSG_*`.
        8 r#type: u32,
        /// `LUSTRE_*_VERSION | PTLRPC_MSG_VERSION`.
        12 version: u32,
        /// Opcode, see [`opc`].
        16 opc: u32,
        /// Reply: 0, a negative errno or a count. Request: pid of the caller. Read through [`PtlrpcBody::status`].
        20 status: i32,
        /// Highest xid such that it and all lower ones have been replied to.
        24 last_xid: u64,
        /// Slot of a modifying request, 1..max_mod_rpcs; 0 none.
        32 tag: u16,
        34 padding0: u16,
        /// Project id of the inode, informative.
        36 projid: u32,
        /// Reply: highest transno on stable storage.
        40 last_committed: u64,
        /// Reply: number of the transaction; replay: the number it had.
        48 transno: u64,
        /// `MSG_*`.
        56 flags: u32,
        /// `MSG_CONNECT_*` of connect requests and replies.
        60 op_flags: u32,
        /// Number of the connection attempt, grows.
        64 conn_cnt: u32,
        /// Request: seconds the client will wait; reply: the server's estimate in seconds.
        68 timeout: u32,
        /// Reply: seconds the request took.
        72 service_time: u32,
        /// Reply: limit of locks in the client's LRU.
        76 limit: u32,
        /// Reply: server lock volume.
        80 slv: u64,
        /// Reply: versions of the objects before the operation.
        88 pre_versions: [u64; 4],
        /// Match bits of the last bulk MD, and of the reply if agreed.
        120 mbits: u64,
        128 padding64_0: u64,
        136 padding64_1: u64,
        /// uid of the caller, informative.
        144 uid: u32,
        /// gid of the caller, informative.
        148 gid: u32,
        /// Job id, NUL terminated.
        152 jobid: [u8; 32],
    }
}

impl PtlrpcBody {
    /// A request body for opcode `opc` with the version it demands; the rest zero.
    pub fn request(opc: u32) -> PtlrpcBody {
        PtlrpcBody {
            r#type: PTL_RPC_MSG_REQUEST,
            version: version_of(opc),
            opc,
            ..Default::default()
        }
    }

    /// A reply to `rq` with `status` (0, a negative errno or a count). As real servers fill it: opcode and type, no handle
    /// (a connect reply has one), no connection count, no target in the version.
    pub fn reply(rq: &PtlrpcBody, status: i32) -> PtlrpcBody {
        PtlrpcBody {
            r#type: PTL_RPC_MSG_REPLY,
            version: PTLRPC_MSG_VERSION,
            opc: rq.opc,
            status,
            ..Default::default()
        }
    }
}

/// `pb_version` that a request of this opcode must carry (`lustre_msg_check_version` and its callers).
pub fn version_of(opc: u32) -> u32 {
    let target = match opc {
        opc::OST_CONNECT | opc::OST_DISCONNECT | opc::MDS_CONNECT | opc::MDS_DISCONNECT => {
            LUSTRE_OBD_VERSION
        }
        opc::MGS_CONNECT | opc::MGS_DISCONNECT | opc::OBD_PING | opc::OBD_IDX_READ => {
            LUSTRE_OBD_VERSION
        }
        1..=32 => LUSTRE_OST_VERSION,
        33..=99 | opc::SEQ_QUERY | opc::FLD_QUERY | opc::FLD_READ | opc::OUT_UPDATE => {
            LUSTRE_MDS_VERSION
        }
        101..=199 => LUSTRE_DLM_VERSION,
        250..=299 => LUSTRE_MGS_VERSION,
        501..=599 => LUSTRE_LOG_VERSION,
        _ => LUSTRE_OBD_VERSION,
    };
    target | PTLRPC_MSG_VERSION
}
