//! The compact set of messages in `tests/data/vectors.bin`.
//!
//! Container: the magic `CORALVEC`, u32 version 1, then records until the end: u8 kind (0 message, 1 bulk, 2 ping, 3 selftest),
//! u8 flags (1: a reply, followed by its request), u16 zero, u32 opcode, u32 bytes of the request, u32 bytes of the message,
//! request, message. Everything little endian. Written by `cargo test -p coral-wire --test golden extract_vectors -- --ignored`.

use bytes::Bytes;

pub const MAGIC: &[u8; 8] = b"CORALVEC";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Message,
    Bulk,
    Ping,
    Srpc,
}

const KINDS: [Kind; 4] = [Kind::Message, Kind::Bulk, Kind::Ping, Kind::Srpc];

#[derive(Clone, PartialEq, Eq)]
pub struct Vector {
    pub kind: Kind,
    pub opcode: u32,
    /// For replies: the encoded request.
    pub request: Option<Bytes>,
    pub bytes: Bytes,
}

impl Vector {
    pub fn message(opcode: u32, _reply: bool, request: Option<Bytes>, bytes: Bytes) -> Vector {
        Vector {
            kind: Kind::Message,
            opcode,
            request,
            bytes,
        }
    }

    pub fn bulk(opcode: u32, bytes: Bytes) -> Vector {
        Vector {
            kind: Kind::Bulk,
            opcode,
            request: None,
            bytes,
        }
    }

    pub fn ping(bytes: Bytes) -> Vector {
        Vector {
            kind: Kind::Ping,
            opcode: 0,
            request: None,
            bytes,
        }
    }

    pub fn srpc(bytes: Bytes) -> Vector {
        Vector {
            kind: Kind::Srpc,
            opcode: 0,
            request: None,
            bytes,
        }
    }
}

pub fn encode(vectors: &[Vector]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&1u32.to_le_bytes());
    for v in vectors {
        let request = v.request.clone().unwrap_or_default();
        out.push(KINDS.iter().position(|k| *k == v.kind).unwrap_or(0) as u8);
        out.push(v.request.is_some() as u8);
        out.extend_from_slice(&[0, 0]);
        for n in [v.opcode, request.len() as u32, v.bytes.len() as u32] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&request);
        out.extend_from_slice(&v.bytes);
    }
    out
}

pub fn decode(file: &[u8]) -> Vec<Vector> {
    assert_eq!(&file[..8], MAGIC, "not a vector file");
    let mut rest = Bytes::copy_from_slice(&file[12..]);
    let mut out = Vec::new();
    while !rest.is_empty() {
        let head = rest.split_to(16);
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
        let request = rest.split_to(word(8));
        let bytes = rest.split_to(word(12));
        out.push(Vector {
            kind: KINDS[head[0] as usize],
            opcode: word(4) as u32,
            request: (head[1] & 1 != 0).then_some(request),
            bytes,
        });
    }
    out
}
