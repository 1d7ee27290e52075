//! Golden: every message of a real Lustre decodes into our types and encodes back to the same bytes.
//!
//! This walks every TCP stream of a recorded mount, which is part of the sources, and of a self-test session put together from
//! its recorded exchanges; with the captures of a real Lustre at hand (see `support::captures`) those of every capture too. It
//! prints what it met: counts by opcode, types used, and each buffer left opaque with the reason. `vectors.rs` does the same on a
//! compact set of messages taken from all captures.

mod support;

use coral_wire::Wire;
use coral_wire::lnet::{
    ConnRequest, KSOCK_PROTO_V3, KsockHello, KsockMsgHdr, LNET_PROTO_MAGIC, LnetHdr, LnetMsg,
    WireHandle,
};
use coral_wire::nid::Nid;
use std::collections::BTreeSet;
use support::walk::{self, Report};

fn walk_all() -> Option<Report> {
    let files = support::capture_files();
    if files.is_empty() {
        eprintln!(
            "no captures here: set CORAL_CAPTURES to a directory of pcap files; vectors.rs runs without them"
        );
        return None;
    }
    let mut report = Report::default();
    for f in files {
        let name = f
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let bytes = std::fs::read(&f).expect("capture is readable");
        walk::capture(&name, &bytes, &mut report);
    }
    Some(report)
}

/// A capture file of one connection from 10.77.0.3 to 10.77.0.2: each way a SYN, then the bytes in segments.
fn pcap_of(client: &[u8], server: &[u8]) -> Vec<u8> {
    let mut file = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect::<Vec<u8>>();
    let mut segment = |from_client: bool, seq: u32, syn: bool, data: &[u8]| {
        let mut ports = [50_000u16.to_be_bytes(), 988u16.to_be_bytes()];
        let mut ips = [[10u8, 77, 0, 3], [10, 77, 0, 2]];
        if !from_client {
            ports.reverse();
            ips.reverse();
        }
        let mut tcp = ports.concat();
        tcp.extend(seq.to_be_bytes());
        tcp.extend([
            0,
            0,
            0,
            0,
            5 << 4,
            if syn { 2 } else { 16 },
            1,
            0,
            0,
            0,
            0,
            0,
        ]);
        tcp.extend(data);
        let mut ip = vec![0x45, 0];
        ip.extend((20 + tcp.len() as u16).to_be_bytes());
        ip.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        ip.extend(ips.concat());
        let frame = [&[0; 12][..], &[8, 0], &ip, &tcp].concat();
        for w in [1, seq, frame.len() as u32, frame.len() as u32] {
            file.extend(w.to_le_bytes());
        }
        file.extend(frame);
    };
    for (from_client, bytes) in [(true, client), (false, server)] {
        segment(from_client, 1000, true, &[]);
        for (i, part) in bytes.chunks(1400).enumerate() {
            segment(from_client, 1001 + 1400 * i as u32, false, part);
        }
    }
    file
}

/// The recorded exchanges of a self-test session (portal, service, request and reply of 160 bytes) with headers and a handshake.
fn selftest_session() -> (usize, Vec<u8>) {
    let [us, them] = ["10.77.0.2@tcp", "10.77.0.3@tcp"].map(|n| n.parse::<Nid>().expect("a NID"));
    let put = |from: Nid, to: Nid, (portal, bits): (u32, u64), payload: &[u8]| {
        let msg = LnetMsg::Put {
            ack_wmd: WireHandle::NONE,
            match_bits: bits,
            hdr_data: 0,
            ptl_index: portal,
            offset: 0,
        };
        let hdr = LnetHdr {
            dest_nid: to,
            src_nid: from,
            dest_pid: 12345,
            src_pid: 12345,
            payload_length: payload.len() as u32,
            msg,
        };
        [&KsockMsgHdr::lnet(0).to_bytes()[..], &hdr.encode(), payload].concat()
    };
    let hello = |src_nid, dst_nid| KsockHello {
        magic: LNET_PROTO_MAGIC,
        version: KSOCK_PROTO_V3,
        src_nid,
        dst_nid,
        src_pid: 12345,
        dst_pid: 12345,
        src_incarnation: 7,
        dst_incarnation: 0,
        ctype: 1,
        nips: 0,
    };
    let mut client = [
        ConnRequest::new(us).to_bytes().to_vec(),
        hello(them, us).to_bytes().to_vec(),
    ]
    .concat();
    let mut server = hello(us, them).to_bytes().to_vec();
    let exchanges = include_bytes!("../../lnet/tests/data/lst.bin").chunks_exact(2 + 2 * 160);
    let count = exchanges.len();
    for x in exchanges {
        let (request, reply) = x[2..].split_at(160);
        client.extend(put(them, us, (x[0] as u32, x[1] as u64), request));
        let bits = u64::from_le_bytes(request[24..32].try_into().expect("8 bytes"));
        server.extend(put(us, them, (52, bits), reply));
    }
    (count, pcap_of(&client, &server))
}

fn expect_no_errors(r: &Report) {
    let kinds: BTreeSet<&String> = r.errors.iter().collect();
    for e in kinds.iter().take(60) {
        println!("WRONG {e}");
    }
    assert!(
        r.errors.is_empty(),
        "{} mismatches, {} different",
        r.errors.len(),
        kinds.len()
    );
}

/// Self-test messages of both sides that were found.
fn selftest_messages(r: &Report) -> usize {
    r.counts
        .iter()
        .filter(|(k, _)| k.starts_with("selftest "))
        .map(|(_, n)| n)
        .sum()
}

#[test]
fn every_message_of_the_sources_own_streams_encodes_back() {
    let mut r = Report::default();
    let mount =
        lz4_flex::decompress_size_prepended(include_bytes!("../../lnet/tests/data/mount.pcap.lz4"))
            .expect("it is packed so");
    walk::capture("mount", &mount, &mut r);
    let (exchanges, session) = selftest_session();
    walk::capture("self-test", &session, &mut r);
    println!("{:?}", r.counts);
    expect_no_errors(&r);
    assert_eq!(
        selftest_messages(&r),
        2 * exchanges,
        "each request and each reply"
    );
    for kind in ["ksock connection request", "ksock hello"] {
        assert_eq!(
            r.counts.get(kind).copied(),
            Some(if kind.ends_with("hello") { 8 } else { 4 }),
            "{kind}: three connections and one"
        );
    }
    assert!(
        r.typed.len() >= 15,
        "a mount has many kinds of buffers: {:?}",
        r.typed
    );
}

#[test]
fn every_message_encodes_back() {
    let Some(r) = walk_all() else { return };
    println!(
        "{} streams, {} bytes not attributed (starts cut off, gaps, ends)",
        r.streams, r.lost
    );
    println!("\nmessages:");
    for (k, n) in &r.counts {
        println!("{n:8}  {k}");
    }
    println!("\nbuffers decoded into types:");
    for (k, n) in &r.typed {
        println!("{n:8}  {k}");
    }
    println!("\nbuffers left opaque:");
    for (k, (n, bytes)) in &r.opaque {
        println!("{n:8}  {k} ({bytes} bytes)");
    }
    expect_no_errors(&r);
    assert!(
        r.counts.values().sum::<usize>() > 10_000,
        "the captures hold far more messages than were found"
    );
    // lnet.pcap: 24 reads, 24 writes and 12 pings of the tests and 9 of the console, each with its reply.
    assert!(
        selftest_messages(&r) >= 138,
        "{} self-test messages found",
        selftest_messages(&r)
    );
}

/// Writes `tests/data/vectors.bin` from the captures.
#[test]
#[ignore = "generator: run after changing what is sampled"]
fn extract_vectors() {
    let r = walk_all().expect("captures are needed");
    let mut chosen: Vec<support::vectors::Vector> = Vec::new();
    for list in r.samples.values() {
        // the shortest says as much as the longest: keep the file small
        let mut list: Vec<_> = list.iter().filter(|v| v.bytes.len() <= 16384).collect();
        list.sort_by_key(|v| v.bytes.len());
        if let Some(v) = list.first() {
            chosen.push((*v).clone());
        }
    }
    let file = support::vectors::encode(&chosen);
    println!("{} vectors, {} bytes", chosen.len(), file.len());
    std::fs::write(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vectors.bin"),
        file,
    )
    .expect("data directory is writable");
}

/// Messages of `migrate-dir` that are kept: up to the reply to the migration of the directory; hundreds of files follow.
const MIGRATED: usize = 40;

/// Writes the conversations that `crates/server/tests/conversation.rs` plays. `recovery.pcap` goes on where `contend.pcap` ends.
#[test]
#[ignore = "generator: run after changing what a conversation holds"]
fn extract_conversations() {
    let dir = support::captures().expect("captures are needed");
    let marks = std::fs::read_to_string(dir.join("session.marks")).expect("the list of operations");
    let named = |at, name: &str| (at, name.to_string());
    // between the last message to the server that was killed and the first to the one that was started
    let recovery = vec![
        named(0, "recovery"),
        named(1_795_218_630_000_000, "restart"),
    ];
    let talks = [
        (
            "session",
            vec![("session", support::extract::marks(&marks))],
        ),
        ("mount", vec![("mount", vec![named(0, "mount")])]),
        (
            "contend",
            vec![
                ("contend", vec![named(0, "contend")]),
                ("recovery", recovery),
            ],
        ),
    ];
    let client = "10.77.0.3@tcp".parse().expect("a NID");
    for (name, parts) in talks {
        let mut events = Vec::new();
        for (file, marks) in parts {
            let pcap =
                std::fs::read(dir.join(format!("{file}.pcap"))).expect("capture is readable");
            events.extend(support::extract::conversation(
                &pcap,
                client,
                &marks,
                &[("migrate-dir", MIGRATED)],
            ));
        }
        let file = support::conversation::encode(&events);
        println!(
            "{name}: {} events, {} bytes in a file of {}",
            events.len(),
            events.iter().map(|e| e.bytes.len()).sum::<usize>(),
            file.len()
        );
        let path = format!(
            "{}/../server/tests/data/{name}.talk",
            env!("CARGO_MANIFEST_DIR")
        );
        std::fs::write(path, file).expect("data directory is writable");
    }
}
