//! Messages of LNet selftest (`lnet/selftest/rpc.h`): what `lst` and its nodes say to each other.
//!
//! Every message has the same size: a head of 24 bytes and a union as large as its largest member; what the member
//! at hand does not use is kept as it is.

use crate::raw::{DecodeError, Wire, wire_enum, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// `msg_magic`.
pub const SRPC_MSG_MAGIC: u32 = 0xeeb0_f00d;
/// `msg_version`.
pub const SRPC_MSG_VERSION: u32 = 1;
/// Bytes of every message: the head and the union's largest member ([`StatReply`]).
pub const SRPC_MSG_LEN: usize = size_of::<SrpcHead>() + size_of::<StatReply>();

wire_enum! {
    /// `enum srpc_msg_type`; a reply is its request plus one.
    pub struct SrpcType(u32) {
        /// Make a session.
        MKSN_REQST = 0, /// Answer.
        MKSN_REPLY = 1, /// Remove a session.
        RMSN_REQST = 2, /// Answer.
        RMSN_REPLY = 3, /// Run, stop or query a batch.
        BATCH_REQST = 4, /// Answer.
        BATCH_REPLY = 5, /// Counters.
        STAT_REQST = 6, /// Answer.
        STAT_REPLY = 7, /// Add a test.
        TEST_REQST = 8, /// Answer.
        TEST_REPLY = 9, /// State of a node.
        DEBUG_REQST = 10, /// Answer.
        DEBUG_REPLY = 11, /// Bulk read or write.
        BRW_REQST = 12, /// Answer.
        BRW_REPLY = 13, /// Ping.
        PING_REQST = 14, /// Answer.
        PING_REPLY = 15, /// Join a session.
        JOIN_REQST = 16, /// Answer.
        JOIN_REPLY = 17,
    }
}

wire_struct! {
    /// Head of `srpc_msg`.
    #[derive(Eq)]
    pub struct SrpcHead : 24 {
        0 magic: u32, 4 version: u32, 8 r#type: SrpcType, 12 reserved0: u32, 16 reserved1: u32,
        /// Features of the session.
        20 ses_feats: u32,
    }
}

wire_struct! {
    /// `lst_sid`: a session.
    #[derive(Eq)]
    pub packed struct LstSid : 16 { 0 nid: u64, 8 stamp: u64 }
}

wire_struct! {
    /// `srpc_mksn_reqst`.
    #[derive(Eq)]
    pub packed struct MksnReqst : 60 { 0 rpyid: u64, 8 sid: LstSid, 24 force: u32, 28 name: [u8; 32] }
}

wire_struct! {
    /// `srpc_mksn_reply`; also debug without the batch count: see [`DebugReply`].
    #[derive(Eq)]
    pub packed struct MksnReply : 56 { 0 status: u32, 4 sid: LstSid, 20 timeout: u32, 24 name: [u8; 32] }
}

wire_struct! {
    /// `srpc_rmsn_reqst`.
    #[derive(Eq)]
    pub packed struct RmsnReqst : 24 { 0 rpyid: u64, 8 sid: LstSid }
}

wire_struct! {
    /// `srpc_rmsn_reply` and `srpc_test_reply`.
    #[derive(Eq)]
    pub packed struct RmsnReply : 20 { 0 status: u32, 4 sid: LstSid }
}

wire_struct! {
    /// `srpc_join_reqst`.
    #[derive(Eq)]
    pub packed struct JoinReqst : 56 { 0 rpyid: u64, 8 sid: LstSid, 24 group: [u8; 32] }
}

wire_struct! {
    /// `srpc_join_reply`.
    #[derive(Eq)]
    pub packed struct JoinReply : 56 { 0 status: u32, 4 sid: LstSid, 20 timeout: u32, 24 session: [u8; 32] }
}

wire_struct! {
    /// `srpc_debug_reqst`.
    #[derive(Eq)]
    pub packed struct DebugReqst : 28 { 0 rpyid: u64, 8 sid: LstSid, 24 flags: u32 }
}

wire_struct! {
    /// `srpc_debug_reply`.
    #[derive(Eq)]
    pub packed struct DebugReply : 60 { 0 status: u32, 4 sid: LstSid, 20 timeout: u32, 24 nbatch: u32, 28 name: [u8; 32] }
}

wire_struct! {
    /// `srpc_batch_reqst`.
    #[derive(Eq)]
    pub packed struct BatchReqst : 44 {
        0 rpyid: u64, 8 sid: LstSid, 24 bid: u64,
        /// 1 run, 2 stop, 3 query.
        32 opc: u32,
        36 testidx: u32, 40 arg: u32,
    }
}

wire_struct! {
    /// `srpc_batch_reply`.
    #[derive(Eq)]
    pub packed struct BatchReply : 28 { 0 status: u32, 4 sid: LstSid, 20 active: u32, 24 time: u32 }
}

wire_struct! {
    /// `srpc_stat_reqst`.
    #[derive(Eq)]
    pub packed struct StatReqst : 28 { 0 rpyid: u64, 8 sid: LstSid, 24 r#type: u32 }
}

wire_struct! {
    /// `srpc_stat_reply`.
    #[derive(Eq)]
    pub packed struct StatReply : 136 {
        0 status: u32, 4 sid: LstSid,
        /// running_ms, active_batches, zombie_sessions, brw_errors, ping_errors.
        20 fw: [u32; 5],
        /// errors, rpcs_sent, rpcs_rcvd, rpcs_dropped, rpcs_expired.
        40 rpc: [u32; 5],
        /// bulk_get and bulk_put bytes.
        60 rpc_bulk: [[u32; 2]; 2],
        /// msgs_alloc, msgs_max, errors, send, recv, route, drop counts.
        76 lnet: [u32; 7],
        /// send, recv, route, drop bytes.
        104 lnet_bytes: [[u32; 2]; 4],
    }
}

wire_struct! {
    /// `srpc_test_reqst`.
    #[derive(Eq)]
    pub packed struct TestReqst : 72 {
        0 rpyid: u64, 8 bulkid: u64, 16 sid: LstSid, 32 bid: u64, 40 service: u32, 44 r#loop: u32, 48 concur: u32,
        52 is_client: u8, 53 stop_onerr: u8, 54 ndest: [u8; 4],
        /// ping: size, flags; bulk: opcode, flags, length, offset; two bytes more than there are parameters.
        58 params: [u8; 14],
    }
}

wire_struct! {
    /// `srpc_ping_reqst`.
    #[derive(Eq)]
    pub packed struct PingReqst : 32 { 0 rpyid: u64, 8 magic: u32, 12 seq: u32, 16 time_sec: u64, 24 time_nsec: u64 }
}

wire_struct! {
    /// `srpc_ping_reply`.
    #[derive(Eq)]
    pub packed struct PingReply : 12 { 0 status: u32, 4 magic: u32, 8 seq: u32 }
}

wire_struct! {
    /// `srpc_brw_reqst`.
    #[derive(Eq)]
    pub packed struct BrwReqst : 28 {
        0 rpyid: u64, 8 bulkid: u64,
        /// 1 read, 2 write.
        16 rw: u32,
        /// Bytes.
        20 len: u32,
        /// Pattern to check.
        24 flags: u32,
    }
}

wire_struct! {
    /// `srpc_brw_reply`.
    #[derive(Eq)]
    pub packed struct BrwReply : 4 { 0 status: u32 }
}

/// The member of the union that a message uses.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is named as the struct it holds")]
#[allow(
    clippy::large_enum_variant,
    reason = "on the wire all are as large as the largest"
)]
pub enum SrpcBody {
    MksnReqst(MksnReqst),
    MksnReply(MksnReply),
    RmsnReqst(RmsnReqst),
    RmsnReply(RmsnReply),
    BatchReqst(BatchReqst),
    BatchReply(BatchReply),
    StatReqst(StatReqst),
    StatReply(StatReply),
    TestReqst(TestReqst),
    TestReply(RmsnReply),
    DebugReqst(DebugReqst),
    DebugReply(DebugReply),
    BrwReqst(BrwReqst),
    BrwReply(BrwReply),
    PingReqst(PingReqst),
    PingReply(PingReply),
    JoinReqst(JoinReqst),
    JoinReply(JoinReply),
}

/// Runs `$f` on the member.
macro_rules! on_body {
    ($b:expr, $v:ident => $f:expr) => {
        match $b {
            SrpcBody::MksnReqst($v) => $f,
            SrpcBody::MksnReply($v) => $f,
            SrpcBody::RmsnReqst($v) => $f,
            SrpcBody::RmsnReply($v) | SrpcBody::TestReply($v) => $f,
            SrpcBody::BatchReqst($v) => $f,
            SrpcBody::BatchReply($v) => $f,
            SrpcBody::StatReqst($v) => $f,
            SrpcBody::StatReply($v) => $f,
            SrpcBody::TestReqst($v) => $f,
            SrpcBody::DebugReqst($v) => $f,
            SrpcBody::DebugReply($v) => $f,
            SrpcBody::BrwReqst($v) => $f,
            SrpcBody::BrwReply($v) => $f,
            SrpcBody::PingReqst($v) => $f,
            SrpcBody::PingReply($v) => $f,
            SrpcBody::JoinReqst($v) => $f,
            SrpcBody::JoinReply($v) => $f,
        }
    };
}

/// A selftest message.
#[derive(Clone, Debug, PartialEq)]
pub struct SrpcMsg {
    /// The head.
    pub head: SrpcHead,
    /// What it says.
    pub body: SrpcBody,
    /// Rest of the union.
    pub rest: Bytes,
}

impl SrpcMsg {
    /// A message of ours: zeros in what the union's member does not use.
    pub fn new(r#type: SrpcType, ses_feats: u32, body: SrpcBody) -> SrpcMsg {
        const ZEROS: [u8; SRPC_MSG_LEN] = [0; SRPC_MSG_LEN];
        let head = SrpcHead {
            magic: SRPC_MSG_MAGIC,
            version: SRPC_MSG_VERSION,
            r#type,
            reserved0: 0,
            reserved1: 0,
            ses_feats,
        };
        let used = size_of::<SrpcHead>() + on_body!(&body, v => size_of_val(v));
        SrpcMsg {
            head,
            body,
            rest: Bytes::from_static(&ZEROS[used..]),
        }
    }

    /// Reads a message.
    pub fn decode(buf: &Bytes) -> Result<SrpcMsg, DecodeError> {
        let head = SrpcHead::decode(buf)?;
        if head.magic != SRPC_MSG_MAGIC {
            return Err(DecodeError::Magic {
                what: "SrpcMsg",
                got: head.magic as u64,
            });
        }
        let b = &buf[size_of::<SrpcHead>()..];
        let body = match head.r#type {
            SrpcType::MKSN_REQST => SrpcBody::MksnReqst(Wire::decode(b)?),
            SrpcType::MKSN_REPLY => SrpcBody::MksnReply(Wire::decode(b)?),
            SrpcType::RMSN_REQST => SrpcBody::RmsnReqst(Wire::decode(b)?),
            SrpcType::RMSN_REPLY => SrpcBody::RmsnReply(Wire::decode(b)?),
            SrpcType::BATCH_REQST => SrpcBody::BatchReqst(Wire::decode(b)?),
            SrpcType::BATCH_REPLY => SrpcBody::BatchReply(Wire::decode(b)?),
            SrpcType::STAT_REQST => SrpcBody::StatReqst(Wire::decode(b)?),
            SrpcType::STAT_REPLY => SrpcBody::StatReply(Wire::decode(b)?),
            SrpcType::TEST_REQST => SrpcBody::TestReqst(Wire::decode(b)?),
            SrpcType::TEST_REPLY => SrpcBody::TestReply(Wire::decode(b)?),
            SrpcType::DEBUG_REQST => SrpcBody::DebugReqst(Wire::decode(b)?),
            SrpcType::DEBUG_REPLY => SrpcBody::DebugReply(Wire::decode(b)?),
            SrpcType::BRW_REQST => SrpcBody::BrwReqst(Wire::decode(b)?),
            SrpcType::BRW_REPLY => SrpcBody::BrwReply(Wire::decode(b)?),
            SrpcType::PING_REQST => SrpcBody::PingReqst(Wire::decode(b)?),
            SrpcType::PING_REPLY => SrpcBody::PingReply(Wire::decode(b)?),
            SrpcType::JOIN_REQST => SrpcBody::JoinReqst(Wire::decode(b)?),
            SrpcType::JOIN_REPLY => SrpcBody::JoinReply(Wire::decode(b)?),
            t => {
                return Err(DecodeError::Value {
                    what: "SrpcMsg",
                    field: "type",
                    got: t.0 as u64,
                });
            }
        };
        let used = size_of::<SrpcHead>() + on_body!(&body, v => size_of_val(v));
        Ok(SrpcMsg {
            head,
            body,
            rest: buf.slice(used..),
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut v = Vec::with_capacity(SRPC_MSG_LEN);
        v.extend_from_slice(self.head.as_bytes());
        on_body!(&self.body, b => v.extend_from_slice(b.as_bytes()));
        v.extend_from_slice(&self.rest);
        v.into()
    }
}
