//! Captures of a real Lustre: found, put together into streams, cut into messages.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The shortest capture, a mount, as an LZ4 block: what runs everywhere. Written by the ignored test `pack_the_mount` in
/// `replay.rs`.
const MOUNT: &[u8] = include_bytes!("../data/mount.pcap.lz4");

/// A capture by its name; the mount is always there, the others are where the recordings are.
pub fn capture(name: &str) -> Option<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut dirs: Vec<PathBuf> = std::env::var_os("CORAL_CAPTURES")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    dirs.extend(root.ancestors().skip(3).map(|d| d.join("shared/captures")));
    let found = dirs.into_iter().map(|d| d.join(name)).find(|p| p.exists());
    match found {
        Some(p) => Some(std::fs::read(p).unwrap()),
        None if name == "mount.pcap" => Some(lz4_flex::decompress_size_prepended(MOUNT).unwrap()),
        None => {
            println!(
                "no {name} here: only what is part of the sources is replayed. Set CORAL_CAPTURES to a directory of recordings"
            );
            None
        }
    }
}

/// One TCP connection: the client's bytes and the server's.
#[derive(Default)]
pub struct Stream {
    pub client: Vec<u8>,
    pub server: Vec<u8>,
}

/// The TCP connections of a pcap file by the client's port, put together by sequence number.
pub fn streams(pcap: &[u8]) -> BTreeMap<u16, Stream> {
    let u32le = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(
        u32le(0),
        0xa1b2_c3d4,
        "a pcap file of a little endian machine"
    );
    type Segments = Vec<(u32, Vec<u8>)>;
    let mut parts: BTreeMap<(u16, bool), Segments> = BTreeMap::new();
    let mut at = 24;
    while at + 16 <= pcap.len() {
        let len = u32le(at + 8);
        let frame = &pcap[at + 16..at + 16 + len];
        at += 16 + len;
        if frame[12..14] != [8, 0] || frame[23] != 6 {
            continue;
        }
        let ip = &frame[14..14 + u16::from_be_bytes([frame[16], frame[17]]) as usize];
        let tcp = &ip[(ip[0] as usize & 15) * 4..];
        let data = &tcp[(tcp[12] as usize >> 4) * 4..];
        let from_client = ip[12..16] == CLIENT.octets();
        let port = if from_client {
            [tcp[0], tcp[1]]
        } else {
            [tcp[2], tcp[3]]
        };
        let seq = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        parts
            .entry((u16::from_be_bytes(port), from_client))
            .or_default()
            .push((seq, data.to_vec()));
    }
    let mut out: BTreeMap<u16, Stream> = BTreeMap::new();
    for ((port, from_client), list) in parts {
        let bytes = join(list);
        let s = out.entry(port).or_default();
        *if from_client {
            &mut s.client
        } else {
            &mut s.server
        } = bytes;
    }
    out
}

/// Segments (the first is the SYN) in order, without what was sent twice.
fn join(mut list: Vec<(u32, Vec<u8>)>) -> Vec<u8> {
    let first = list[0].0.wrapping_add(1);
    list.sort_by_key(|(seq, _)| seq.wrapping_sub(first) as i32);
    let mut out = Vec::new();
    for (seq, data) in list {
        let at = seq.wrapping_sub(first) as usize;
        if at < usize::MAX / 2 && at <= out.len() && at + data.len() > out.len() {
            let known = out.len() - at;
            out.extend_from_slice(&data[known..]);
        }
    }
    out
}

/// Cuts a stream after the handshake into messages (24 or 96 bytes and payload); what is cut off at the end is left out.
pub fn messages(mut b: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    while b.len() >= 24 {
        let len = match b[0] {
            0xc0 => 24,
            _ if b.len() >= 96 => 96 + u32::from_le_bytes(b[52..56].try_into().unwrap()) as usize,
            _ => break,
        };
        if b.len() < len {
            break;
        }
        out.push(&b[..len]);
        b = &b[len..];
    }
    out
}

/// LNet message type, None for a NOOP.
pub fn lnet_type(m: &[u8]) -> Option<u8> {
    (m[0] == 0xc1).then(|| m[24 + 24])
}
