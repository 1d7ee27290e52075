//! LNet on the wire below the payloads: acceptor requests, HELLOs, acknowledgements and headers of a real Lustre decode and encode
//! back the same, also where the captures are not at hand.
//!
//! `data/lnet-frames.bin`: one frame after the other, each a length byte and its bytes (an LNet message without its payload), one
//! of each kind, portal and payload length in `lnet.pcap`, `router-tcp.pcap` and `router-tcp1.pcap` (Lustre 2.17.57; the
//! self-test, and a mount through a kernel router). Payloads are in `vectors.rs` and in coral-lnet's `lst_replay.rs`.

mod support;

use coral_wire::Wire;
use coral_wire::lnet::*;
use std::collections::BTreeMap;

fn frames() -> Vec<&'static [u8]> {
    let mut rest: &[u8] = include_bytes!("data/lnet-frames.bin");
    let mut out = Vec::new();
    while let Some((len, more)) = rest.split_first() {
        let (frame, after) = more.split_at(*len as usize);
        out.push(frame);
        rest = after;
    }
    out
}

/// What it is, and its bytes encoded anew; None: it is nothing.
fn recode(frame: &[u8]) -> Option<(String, Vec<u8>)> {
    let ksm = |f: &[u8]| KsockMsgHdr::decode(f).ok().map(|k| k.to_bytes().to_vec());
    match u32::decode(frame).ok()? {
        LNET_PROTO_ACCEPTOR_MAGIC => ConnRequest::decode(frame)
            .ok()
            .map(|c| ("acceptor request".into(), c.to_bytes().to_vec())),
        LNET_PROTO_MAGIC => KsockHello::decode(frame)
            .ok()
            .map(|h| ("HELLO".into(), h.to_bytes().to_vec())),
        KSOCK_MSG_NOOP => Some(("NOOP".into(), ksm(frame)?)),
        KSOCK_MSG_LNET => {
            let hdr = LnetHdr::decode(frame.get(24..)?).ok()?;
            let kind = format!("{:?}", hdr.msg)
                .split([' ', '{'])
                .next()
                .unwrap_or_default()
                .to_owned();
            Some((kind, [ksm(frame)?, hdr.encode().to_vec()].concat()))
        }
        _ => None,
    }
}

#[test]
fn every_frame_encodes_back() {
    let mut kinds = BTreeMap::<String, usize>::new();
    for (i, f) in frames().into_iter().enumerate() {
        let (kind, is) = recode(f).unwrap_or_else(|| panic!("frame {i} is nothing"));
        assert_eq!(is, f, "frame {i}, {kind}");
        *kinds.entry(kind).or_default() += 1;
    }
    println!("{kinds:?}");
    for kind in [
        "acceptor request",
        "HELLO",
        "NOOP",
        "Ack",
        "Put",
        "Get",
        "Reply",
    ] {
        assert!(kinds.contains_key(kind), "no {kind} among them: {kinds:?}");
    }
}

/// Every bit flipped and every length: a value or an error.
#[test]
fn flipped_and_cut_frames_never_panic() {
    for f in frames() {
        let mut raw = f.to_vec();
        for bit in 0..raw.len() * 8 {
            raw[bit / 8] ^= 1 << (bit % 8);
            let _ = recode(&raw);
            raw[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..raw.len() {
            let _ = recode(&raw[..len]);
        }
    }
}

/// Writes `tests/data/lnet-frames.bin` from the captures.
#[test]
#[ignore = "generator: needs lnet.pcap, router-tcp.pcap and router-tcp1.pcap"]
fn extract_frames() {
    let mut seen = BTreeMap::<Vec<u8>, Vec<u8>>::new();
    for file in support::capture_files() {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name != "lnet.pcap" && !name.starts_with("router-") {
            continue;
        }
        for half in support::pcap::halves(&std::fs::read(&file).expect("capture")) {
            for run in half.runs.iter().take(usize::from(half.from_start)) {
                let mut rest = &run[..];
                while let Some(len) = frame_len(rest) {
                    let (head, whole) = len;
                    let Some(frame) = rest.get(..head) else { break };
                    seen.entry(key(frame)).or_insert_with(|| frame.to_vec());
                    let Some(next) = rest.get(whole..) else { break };
                    rest = next;
                }
            }
        }
    }
    let out: Vec<u8> = seen
        .values()
        .flat_map(|f| std::iter::once(f.len() as u8).chain(f.iter().copied()))
        .collect();
    println!("{} frames, {} bytes", seen.len(), out.len());
    std::fs::write(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/lnet-frames.bin"),
        out,
    )
    .expect("data directory is writable");
}

/// Bytes of the frame at the front without and with its payload.
fn frame_len(rest: &[u8]) -> Option<(usize, usize)> {
    match u32::decode(rest).ok()? {
        LNET_PROTO_ACCEPTOR_MAGIC => Some((16, 16)),
        LNET_PROTO_MAGIC => Some((56, 56)),
        KSOCK_MSG_NOOP => Some((24, 24)),
        KSOCK_MSG_LNET => {
            let hdr = LnetHdr::decode(rest.get(24..)?).ok()?;
            let head = 24 + LNET_HDR_SIZE;
            Some((head, head + hdr.payload_length as usize))
        }
        _ => None,
    }
}

/// What makes a frame worth keeping: its kind, its length, and of a message type, networks, portal and payload length.
fn key(frame: &[u8]) -> Vec<u8> {
    let of = |r: std::ops::Range<usize>| frame.get(r).unwrap_or(&[]).to_vec();
    let mut k = vec![frame.len() as u8];
    match frame.len() {
        // Networks of destination and source, type, payload length; of PUTs and GETs the portal.
        96 => {
            let portal = match frame[48] {
                1 => of(88..92),
                2 => of(80..84),
                _ => Vec::new(),
            };
            k.extend([of(28..32), of(36..40), of(48..56), portal].concat());
        }
        56 => k.extend([of(20..24), of(48..52)].concat()),
        24 => k.push(u8::from(frame[8..16] == [0; 8])),
        _ => {}
    }
    k
}
