//! One LNet message in memory, and its header on the wire.
//!
//! `lnet_hdr` with 8-byte NIDs: 72 bytes, little endian (lnet/include/uapi/linux/lnet/lnet-idl.h, `struct _lnet_hdr_nid4`).

use crate::{LNET_MTU, Nid, Payload};

/// Bytes of an LNet header on the wire.
pub(crate) const HDR_LEN: usize = 72;
/// The LNet process id of everything that speaks as a kernel does.
pub(crate) const LNET_PID: u32 = 12345;

/// Opaque handle of the sender's memory descriptor: we find our waiter by it when ACK or REPLY bring it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wmd {
    pub(crate) interface: u64,
    pub(crate) object: u64,
}

impl Wmd {
    /// "No ACK wanted".
    pub(crate) const NONE: Wmd = Wmd { interface: u64::MAX, object: u64::MAX };
}

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ack { wmd: Wmd, mbits: u64, mlength: u32 },
    Put { ack: Wmd, mbits: u64, hdr_data: u64, portal: u32, offset: u32 },
    Get { reply: Wmd, mbits: u64, portal: u32, offset: u32, len: u32 },
    Reply { wmd: Wmd },
}

/// A message: header and payload.
#[derive(Clone, Debug)]
pub(crate) struct Msg {
    pub(crate) dest: Nid,
    pub(crate) src: Nid,
    pub(crate) kind: Kind,
    pub(crate) payload: Payload,
}

/// A header that breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HdrError {
    #[error("unknown LNet message type {0}")]
    Type(u32),
    #[error("payload of {0} bytes is above {LNET_MTU}")]
    TooLong(u32),
    #[error("{0} bytes of payload on a message that has none")]
    Unexpected(u32),
}

fn u32_at(b: &[u8; HDR_LEN], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| b[at + i]))
}

fn u64_at(b: &[u8; HDR_LEN], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| b[at + i]))
}

fn wmd_at(b: &[u8; HDR_LEN]) -> Wmd {
    Wmd { interface: u64_at(b, 32), object: u64_at(b, 40) }
}

/// A decoded header; the payload follows it on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hdr {
    pub(crate) dest: Nid,
    pub(crate) src: Nid,
    pub(crate) kind: Kind,
    /// Bytes of payload, at most [`LNET_MTU`].
    pub(crate) payload_len: u32,
}

impl Hdr {
    /// Reads a header and checks what can be checked without a node.
    pub(crate) fn decode(b: &[u8; HDR_LEN]) -> Result<Hdr, HdrError> {
        let payload_len = u32_at(b, 28);
        let wmd = wmd_at(b);
        let mbits = u64_at(b, 48);
        let kind = match u32_at(b, 24) {
            0 => Kind::Ack { wmd, mbits, mlength: u32_at(b, 56) },
            1 => Kind::Put { ack: wmd, mbits, hdr_data: u64_at(b, 56), portal: u32_at(b, 64), offset: u32_at(b, 68) },
            2 => Kind::Get { reply: wmd, mbits, portal: u32_at(b, 56), offset: u32_at(b, 60), len: u32_at(b, 64) },
            3 => Kind::Reply { wmd },
            t => return Err(HdrError::Type(t)),
        };
        if payload_len as usize > LNET_MTU {
            return Err(HdrError::TooLong(payload_len));
        }
        if payload_len > 0 && matches!(kind, Kind::Ack { .. } | Kind::Get { .. }) {
            return Err(HdrError::Unexpected(payload_len));
        }
        Ok(Hdr { dest: Nid(u64_at(b, 0)), src: Nid(u64_at(b, 8)), kind, payload_len })
    }

    /// Writes the header.
    pub(crate) fn encode(&self) -> [u8; HDR_LEN] {
        let mut b = [0u8; HDR_LEN];
        let mut put = |at: usize, v: &[u8]| b[at..at + v.len()].copy_from_slice(v);
        put(0, &self.dest.0.to_le_bytes());
        put(8, &self.src.0.to_le_bytes());
        put(16, &LNET_PID.to_le_bytes());
        put(20, &LNET_PID.to_le_bytes());
        put(28, &self.payload_len.to_le_bytes());
        let (ty, wmd) = match self.kind {
            Kind::Ack { wmd, mbits, mlength } => {
                put(48, &mbits.to_le_bytes());
                put(56, &mlength.to_le_bytes());
                (0u32, wmd)
            }
            Kind::Put { ack, mbits, hdr_data, portal, offset } => {
                put(48, &mbits.to_le_bytes());
                put(56, &hdr_data.to_le_bytes());
                put(64, &portal.to_le_bytes());
                put(68, &offset.to_le_bytes());
                (1, ack)
            }
            Kind::Get { reply, mbits, portal, offset, len } => {
                put(48, &mbits.to_le_bytes());
                put(56, &portal.to_le_bytes());
                put(60, &offset.to_le_bytes());
                put(64, &len.to_le_bytes());
                (2, reply)
            }
            Kind::Reply { wmd } => (3, wmd),
        };
        put(24, &ty.to_le_bytes());
        put(32, &wmd.interface.to_le_bytes());
        put(40, &wmd.object.to_le_bytes());
        b
    }
}

impl Msg {
    /// The header that goes before this message's payload. Panics when the payload is above [`LNET_MTU`].
    pub(crate) fn hdr(&self) -> Hdr {
        assert!(self.payload.len() <= LNET_MTU, "LNet message with {} bytes of payload", self.payload.len());
        Hdr { dest: self.dest, src: self.src, kind: self.kind, payload_len: self.payload.len() as u32 }
    }

    /// Whether this only answers a message of the peer, so that it must not wait for credits.
    pub(crate) fn is_response(&self) -> bool {
        matches!(self.kind, Kind::Ack { .. } | Kind::Reply { .. })
    }

    /// Portal it is addressed to, where it has one.
    pub(crate) fn portal(&self) -> Option<u32> {
        match self.kind {
            Kind::Put { portal, .. } | Kind::Get { portal, .. } => Some(portal),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_kinds() -> Vec<Kind> {
        let wmd = Wmd { interface: 0x1122, object: 0x3344 };
        vec![
            Kind::Ack { wmd, mbits: 5, mlength: 6 },
            Kind::Put { ack: Wmd::NONE, mbits: 7, hdr_data: 8, portal: 9, offset: 10 },
            Kind::Get { reply: wmd, mbits: 11, portal: 12, offset: 13, len: 14 },
            Kind::Reply { wmd },
        ]
    }

    #[test]
    fn headers_both_ways() {
        for kind in all_kinds() {
            let payload_len = if matches!(kind, Kind::Put { .. } | Kind::Reply { .. }) { 4096 } else { 0 };
            let hdr = Hdr { dest: Nid(1), src: Nid(2), kind, payload_len };
            assert_eq!(Hdr::decode(&hdr.encode()), Ok(hdr));
        }
    }

    /// The ping of a kernel client, as the fields of the wire description place it.
    #[test]
    fn get_as_the_kernel_lays_it_out() {
        let kind = Kind::Get { reply: Wmd { interface: 1, object: 2 }, mbits: 1 << 63, portal: 0, offset: 0, len: 0x110 };
        let b = Hdr { dest: Nid(0x2_0000_0a4d_0002), src: Nid(0x2_0000_0a4d_0003), kind, payload_len: 0 }.encode();
        assert_eq!(b[0..8], [2, 0, 0x4d, 0x0a, 0, 0, 2, 0]);
        assert_eq!(b[16..20], 12345u32.to_le_bytes());
        assert_eq!(b[24], 2);
        assert_eq!(b[55], 0x80);
        assert_eq!(b[64..66], [0x10, 0x01]);
    }

    #[test]
    fn nonsense_is_refused() {
        let ok = Hdr { dest: Nid(1), src: Nid(2), kind: Kind::Reply { wmd: Wmd::NONE }, payload_len: 0 }.encode();
        let mut b = ok;
        b[24] = 4;
        assert_eq!(Hdr::decode(&b), Err(HdrError::Type(4)));
        let mut b = ok;
        b[28..32].copy_from_slice(&(LNET_MTU as u32 + 1).to_le_bytes());
        assert_eq!(Hdr::decode(&b), Err(HdrError::TooLong(LNET_MTU as u32 + 1)));
        b[24] = 0;
        b[28..32].copy_from_slice(&1u32.to_le_bytes());
        assert_eq!(Hdr::decode(&b), Err(HdrError::Unexpected(1)));
    }
}
