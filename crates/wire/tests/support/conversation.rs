//! A recorded conversation of one client with its servers, message by message in the order it was captured, in a compact file.
//!
//! File: the magic `CORALTLK`, u32 version 1, then an LZ4 block with its size in front (`lz4_flex`). In it, records until
//! the end: u8 kind, u32 portal, u64 match bits, u32 length, bytes. Everything little endian. Bulk data of files is left out.
//! Written by `cargo test -p coral-wire --test golden extract_conversations -- --ignored`; `crates/server` plays it.

use bytes::{Buf, BufMut, Bytes};

pub const MAGIC: &[u8; 12] = b"CORALTLK\x01\0\0\0";

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An operation of the session begins: its name.
    Operation,
    /// Client to server: portal, match bits, message.
    Request,
    /// Server to client: match bits of the request, message.
    Reply,
    /// Server to client: a lock callback with its match bits, message.
    Callback,
    /// Client to server: match bits of the callback, message.
    CallbackReply,
    /// Server to client, of a directory or a table of NIDs: match bits, data.
    Bulk,
}

const KINDS: [Kind; 6] = [
    Kind::Operation,
    Kind::Request,
    Kind::Reply,
    Kind::Callback,
    Kind::CallbackReply,
    Kind::Bulk,
];

#[derive(Clone)]
pub struct Event {
    pub kind: Kind,
    pub portal: u32,
    pub bits: u64,
    pub bytes: Bytes,
}

pub fn encode(events: &[Event]) -> Vec<u8> {
    let mut raw = Vec::new();
    for e in events {
        raw.put_u8(KINDS.iter().position(|k| *k == e.kind).unwrap_or(0) as u8);
        raw.put_u32_le(e.portal);
        raw.put_u64_le(e.bits);
        raw.put_u32_le(e.bytes.len() as u32);
        raw.extend_from_slice(&e.bytes);
    }
    [&MAGIC[..], &lz4_flex::compress_prepend_size(&raw)].concat()
}

pub fn decode(file: &[u8]) -> Vec<Event> {
    assert_eq!(&file[..12], MAGIC, "not a conversation of this version");
    let mut rest =
        Bytes::from(lz4_flex::decompress_size_prepended(&file[12..]).expect("LZ4 block"));
    let mut out = Vec::new();
    while rest.has_remaining() {
        let kind = KINDS[rest.get_u8() as usize];
        let (portal, bits, len) = (
            rest.get_u32_le(),
            rest.get_u64_le(),
            rest.get_u32_le() as usize,
        );
        out.push(Event {
            kind,
            portal,
            bits,
            bytes: rest.split_to(len),
        });
    }
    out
}
