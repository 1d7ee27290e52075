//! LNet and socklnd on a TCP stream (`include/uapi/linux/lnet/lnet-idl.h`, `lnet/klnds/socklnd/socklnd_proto.c`).
//!
//! A connection begins with [`ConnRequest`] and a [`KsockHello`] each way; then come messages: [`KsockMsgHdr`], for
//! LNET ones followed by [`LnetHdr`] and its payload. Only the short-NID forms (HELLO v2 and v3) are spoken.

use crate::nid::Nid;
use crate::raw::{DecodeError, Wire, wire_struct};
use bytes::Bytes;
use zerocopy::IntoBytes;

/// Magic of [`ConnRequest`].
pub const LNET_PROTO_ACCEPTOR_MAGIC: u32 = 0xacce_7100;
/// Version of the acceptor request with a short NID.
pub const LNET_PROTO_ACCEPTOR_VERSION: u32 = 1;
/// Magic of [`KsockHello`] v2 and later.
pub const LNET_PROTO_MAGIC: u32 = 0x4572_6963;
/// HELLO version with the three typed connections.
pub const KSOCK_PROTO_V3: u32 = 3;
/// Magic of [`PingInfo`].
pub const LNET_PROTO_PING_MAGIC: u32 = 0x7069_6E67;
/// Match bits of pings and pushes on portal 0.
pub const LNET_PROTO_PING_MATCHBITS: u64 = 1 << 63;
/// Largest payload of one LNet message in bytes.
pub const LNET_MTU: usize = 1 << 20;

wire_struct! {
    /// `lnet_acceptor_connreq`: first bytes of the connecting side.
    #[derive(Eq)]
    pub struct ConnRequest : 16 {
        0 magic: u32,
        4 version: u32,
        /// The NID the caller wants.
        8 nid: Nid,
    }
}

impl ConnRequest {
    /// For a connection to `nid`.
    pub fn new(nid: Nid) -> ConnRequest {
        ConnRequest {
            magic: LNET_PROTO_ACCEPTOR_MAGIC,
            version: LNET_PROTO_ACCEPTOR_VERSION,
            nid,
        }
    }
}

/// What a connection is for (`SOCKLND_CONN_*`), as its initiator sees it.
pub mod ctype {
    /// Any (old protocols).
    pub const ANY: u32 = 0;
    /// Small messages.
    pub const CONTROL: u32 = 1;
    /// Bulk towards the initiator.
    pub const BULK_IN: u32 = 2;
    /// Bulk from the initiator.
    pub const BULK_OUT: u32 = 3;
    /// In an answer: connection refused, race lost.
    pub const NONE: u32 = u32::MAX;

    /// The same connection as the other side sees it.
    pub const fn invert(t: u32) -> u32 {
        match t {
            BULK_IN => BULK_OUT,
            BULK_OUT => BULK_IN,
            t => t,
        }
    }
}

wire_struct! {
    /// `ksock_hello_msg`, v2 and v3, without interfaces.
    #[derive(Eq)]
    pub struct KsockHello : 56 {
        0 magic: u32,
        4 version: u32,
        8 src_nid: Nid,
        16 dst_nid: Nid,
        24 src_pid: u32,
        28 dst_pid: u32,
        /// One constant per life of the sender.
        32 src_incarnation: u64,
        40 dst_incarnation: u64,
        /// See [`ctype`].
        48 ctype: u32,
        /// Interfaces that follow, 4 bytes each; always 0 today.
        52 nips: u32,
    }
}

/// `ksm_type` of a message without payload: keepalive or zero-copy acknowledgement.
pub const KSOCK_MSG_NOOP: u32 = 0xC0;
/// `ksm_type` of an LNet message.
pub const KSOCK_MSG_LNET: u32 = 0xC1;

wire_struct! {
    /// Head of `ksock_msg`.
    #[derive(Eq)]
    pub struct KsockMsgHdr : 24 {
        0 r#type: u32,
        /// 0: none.
        4 csum: u32,
        /// [0] not 0: wants an acknowledgement; [1] not 0: is one (or a keepalive).
        8 zc_cookies: [u64; 2],
    }
}

impl KsockMsgHdr {
    /// Before an LNet message; `zc` is 0 when no acknowledgement is wanted.
    pub fn lnet(zc: u64) -> KsockMsgHdr {
        KsockMsgHdr {
            r#type: KSOCK_MSG_LNET,
            csum: 0,
            zc_cookies: [zc, 0],
        }
    }

    /// A NOOP with these cookies.
    pub fn noop(c0: u64, c1: u64) -> KsockMsgHdr {
        KsockMsgHdr {
            r#type: KSOCK_MSG_NOOP,
            csum: 0,
            zc_cookies: [c0, c1],
        }
    }
}

/// `lnet_handle_wire`: an opaque handle of the other side's memory descriptor.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Debug,
    zerocopy::FromBytes,
    IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct WireHandle {
    /// Which life of the node.
    pub interface_cookie: u64,
    /// Which descriptor.
    pub object_cookie: u64,
}

impl WireHandle {
    /// None: no acknowledgement wanted.
    pub const NONE: WireHandle = WireHandle {
        interface_cookie: u64::MAX,
        object_cookie: u64::MAX,
    };
}

impl Default for WireHandle {
    fn default() -> WireHandle {
        WireHandle::NONE
    }
}

wire_struct! {
    /// `lnet_hdr` with short NIDs as its bytes lie; [`LnetHdr`] is the parsed form.
    #[derive(Eq)]
    pub struct LnetHdrRaw : 72 {
        0 dest_nid: Nid,
        8 src_nid: Nid,
        16 dest_pid: u32,
        20 src_pid: u32,
        24 r#type: u32,
        28 payload_length: u32,
        /// Meaning by type.
        32 msg: [u64; 5],
    }
}

/// Bytes of [`LnetHdrRaw`].
pub const LNET_HDR_SIZE: usize = size_of::<LnetHdrRaw>();

/// What an LNet message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LnetMsg {
    /// A PUT arrived.
    Ack {
        /// The handle the PUT carried.
        dst_wmd: WireHandle,
        /// Its match bits.
        match_bits: u64,
        /// Bytes taken.
        mlength: u32,
    },
    /// Data for a portal.
    Put {
        /// Where the acknowledgement goes; NONE none wanted.
        ack_wmd: WireHandle,
        /// Match bits.
        match_bits: u64,
        /// 64 bits out of band.
        hdr_data: u64,
        /// Portal.
        ptl_index: u32,
        /// Offset in the receiver's buffer, bytes.
        offset: u32,
    },
    /// Data wanted from a portal.
    Get {
        /// Where the reply goes.
        return_wmd: WireHandle,
        /// Match bits.
        match_bits: u64,
        /// Portal.
        ptl_index: u32,
        /// Offset in the sender's buffer, bytes.
        src_offset: u32,
        /// Most bytes wanted.
        sink_length: u32,
    },
    /// Answer to a GET.
    Reply {
        /// The handle the GET carried.
        dst_wmd: WireHandle,
    },
}

/// A parsed LNet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LnetHdr {
    /// Receiver.
    pub dest_nid: Nid,
    /// Sender.
    pub src_nid: Nid,
    /// Receiver's process.
    pub dest_pid: u32,
    /// Sender's process.
    pub src_pid: u32,
    /// Bytes that follow.
    pub payload_length: u32,
    /// The rest, by type.
    pub msg: LnetMsg,
}

const fn low(w: u64) -> u32 {
    w as u32
}

const fn high(w: u64) -> u32 {
    (w >> 32) as u32
}

const fn join(low: u32, high: u32) -> u64 {
    ((high as u64) << 32) | low as u64
}

impl LnetHdr {
    /// Reads the 72 bytes; an unknown type or a payload above [`LNET_MTU`] is an error.
    pub fn decode(buf: &[u8]) -> Result<LnetHdr, DecodeError> {
        LnetHdr::from_raw(&LnetHdrRaw::decode(buf)?)
    }

    /// Reads the raw form.
    pub fn from_raw(r: &LnetHdrRaw) -> Result<LnetHdr, DecodeError> {
        if r.payload_length as usize > LNET_MTU {
            return Err(DecodeError::Length {
                what: "LnetHdr",
                field: "payload_length",
                got: r.payload_length as u64,
            });
        }
        let m = &r.msg;
        let wmd = WireHandle {
            interface_cookie: m[0],
            object_cookie: m[1],
        };
        let msg = match r.r#type {
            0 => LnetMsg::Ack {
                dst_wmd: wmd,
                match_bits: m[2],
                mlength: low(m[3]),
            },
            1 => LnetMsg::Put {
                ack_wmd: wmd,
                match_bits: m[2],
                hdr_data: m[3],
                ptl_index: low(m[4]),
                offset: high(m[4]),
            },
            2 => LnetMsg::Get {
                return_wmd: wmd,
                match_bits: m[2],
                ptl_index: low(m[3]),
                src_offset: high(m[3]),
                sink_length: low(m[4]),
            },
            3 => LnetMsg::Reply { dst_wmd: wmd },
            t => {
                return Err(DecodeError::Value {
                    what: "LnetHdr",
                    field: "type",
                    got: t as u64,
                });
            }
        };
        Ok(LnetHdr {
            dest_nid: r.dest_nid,
            src_nid: r.src_nid,
            dest_pid: r.dest_pid,
            src_pid: r.src_pid,
            payload_length: r.payload_length,
            msg,
        })
    }

    /// As the bytes lie; unused words are 0.
    pub fn to_raw(&self) -> LnetHdrRaw {
        let (ty, wmd, rest) = match self.msg {
            LnetMsg::Ack {
                dst_wmd,
                match_bits,
                mlength,
            } => (0, dst_wmd, [match_bits, mlength as u64, 0]),
            LnetMsg::Put {
                ack_wmd,
                match_bits,
                hdr_data,
                ptl_index,
                offset,
            } => (1, ack_wmd, [match_bits, hdr_data, join(ptl_index, offset)]),
            LnetMsg::Get {
                return_wmd,
                match_bits,
                ptl_index,
                src_offset,
                sink_length,
            } => (
                2,
                return_wmd,
                [match_bits, join(ptl_index, src_offset), sink_length as u64],
            ),
            LnetMsg::Reply { dst_wmd } => (3, dst_wmd, [0, 0, 0]),
        };
        LnetHdrRaw {
            dest_nid: self.dest_nid,
            src_nid: self.src_nid,
            dest_pid: self.dest_pid,
            src_pid: self.src_pid,
            r#type: ty,
            payload_length: self.payload_length,
            msg: [
                wmd.interface_cookie,
                wmd.object_cookie,
                rest[0],
                rest[1],
                rest[2],
            ],
        }
    }

    /// The 72 bytes.
    pub fn encode(&self) -> [u8; LNET_HDR_SIZE] {
        let mut out = [0; LNET_HDR_SIZE];
        out.copy_from_slice(self.to_raw().as_bytes());
        out
    }
}

/// Features of a node in its ping answer (`LNET_PING_FEAT_*`).
pub mod feat {
    /// Answers pings.
    pub const BASE: u32 = 1;
    /// Says the status of each interface.
    pub const NI_STATUS: u32 = 2;
    /// Does not route.
    pub const RTE_DISABLED: u32 = 4;
    /// Knows Multi-Rail.
    pub const MULTI_RAIL: u32 = 8;
    /// Takes pushes.
    pub const DISCOVERY: u32 = 16;
    /// Has large NIDs behind the short ones.
    pub const LARGE_ADDR: u32 = 32;
    /// The primary NID is a large one.
    pub const PRIMARY_LARGE: u32 = 64;
    /// Metadata per NID follows.
    pub const METADATA: u32 = 128;
}

/// Interface status: up.
pub const LNET_NI_STATUS_UP: u32 = 0x15aa_c0de;
/// Interface status: down.
pub const LNET_NI_STATUS_DOWN: u32 = 0xdead_face;

wire_struct! {
    /// `lnet_ni_status`.
    #[derive(Eq)]
    pub struct NiStatus : 16 {
        0 nid: Nid,
        /// UP or DOWN; of the loopback entry: sequence number of this information.
        8 status: u32,
        /// Of the first entry with LARGE_ADDR: bytes of the whole.
        12 msg_size: u32,
    }
}

/// `lnet_ping_info`: what a node says of itself; answer to a ping and content of a push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PingInfo {
    /// See [`feat`].
    pub features: u32,
    /// LNet pid.
    pub pid: u32,
    /// Interfaces; the first is `0@lo`, the second the primary NID.
    pub nis: Vec<NiStatus>,
    /// Large NIDs, metadata or spare room behind the short entries, as received. A copy: it holds no received buffer.
    pub tail: Bytes,
}

impl PingInfo {
    /// Most interfaces accepted.
    pub const MAX_NIS: usize = 1024;

    /// This node with these NIDs, all up; `seq` grows with each change.
    pub fn new(features: u32, pid: u32, seq: u32, nids: &[Nid]) -> PingInfo {
        let lo = NiStatus {
            nid: Nid::LO,
            status: seq,
            msg_size: 0,
        };
        let up = nids.iter().map(|n| NiStatus {
            nid: *n,
            status: LNET_NI_STATUS_UP,
            msg_size: 0,
        });
        PingInfo {
            features,
            pid,
            nis: core::iter::once(lo).chain(up).collect(),
            tail: Bytes::new(),
        }
    }

    /// Reads a ping answer or a push.
    pub fn decode(buf: &Bytes) -> Result<PingInfo, DecodeError> {
        let head = <[u32; 4]>::decode(buf)?;
        if head[0] != LNET_PROTO_PING_MAGIC {
            return Err(DecodeError::Magic {
                what: "PingInfo",
                got: head[0] as u64,
            });
        }
        let n = head[3] as usize;
        let end = 16usize.saturating_add(n.saturating_mul(16));
        if n > Self::MAX_NIS || end > buf.len() {
            return Err(DecodeError::Length {
                what: "PingInfo",
                field: "nnis",
                got: n as u64,
            });
        }
        Ok(PingInfo {
            features: head[1],
            pid: head[2],
            nis: crate::raw::decode_all(&buf[16..end]),
            tail: Bytes::copy_from_slice(&buf[end..]),
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut v = [
            LNET_PROTO_PING_MAGIC,
            self.features,
            self.pid,
            self.nis.len() as u32,
        ]
        .as_bytes()
        .to_vec();
        v.extend_from_slice(self.nis.as_bytes());
        v.extend_from_slice(&self.tail);
        v.into()
    }

    /// NIDs other than loopback, primary first.
    pub fn nids(&self) -> impl Iterator<Item = Nid> + '_ {
        self.nis.iter().map(|n| n.nid).filter(|n| !n.is_lo())
    }

    /// Sequence number of the information.
    pub fn seq(&self) -> u32 {
        self.nis.first().map_or(0, |n| n.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ping_info_of_a_node() {
        let p = PingInfo::new(
            feat::BASE | feat::NI_STATUS,
            12345,
            3,
            &["10.0.0.1@tcp".parse().unwrap()],
        );
        assert_eq!(p.encode().len(), 48);
        assert_eq!(PingInfo::decode(&p.encode()).unwrap(), p);
        assert_eq!((p.seq(), p.nids().count()), (3, 1));
    }

    #[test]
    fn ping_info_holds_no_received_buffer() {
        let mut b = PingInfo::new(feat::MULTI_RAIL, 12345, 3, &[])
            .encode()
            .to_vec();
        b.resize(100, 7);
        let received = Bytes::from(b);
        let p = PingInfo::decode(&received).unwrap();
        assert_eq!(p.tail.len(), 68);
        assert_eq!(p.encode(), received);
        assert!(received.is_unique(), "nobody else refers to it");
    }

    #[test]
    fn header_offsets() {
        let h = LnetHdr {
            dest_nid: Nid(1),
            src_nid: Nid(2),
            dest_pid: 3,
            src_pid: 4,
            payload_length: 5,
            msg: LnetMsg::Put {
                ack_wmd: WireHandle::NONE,
                match_bits: 6,
                hdr_data: 7,
                ptl_index: 8,
                offset: 9,
            },
        };
        let raw = h.encode();
        assert_eq!(
            (raw[24], raw[28], raw[48], raw[56], raw[64], raw[68]),
            (1, 5, 6, 7, 8, 9)
        );
        assert_eq!(LnetHdr::decode(&raw).unwrap(), h);
    }

    proptest! {
        #[test]
        fn never_panics(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(h) = LnetHdr::decode(&raw) {
                prop_assert_eq!(LnetHdr::decode(&h.encode()).unwrap(), h);
            }
            let raw = Bytes::from(raw);
            if let Ok(p) = PingInfo::decode(&raw) {
                prop_assert_eq!(p.encode(), raw);
            }
        }
    }
}
