//! Golden: every message of a real Lustre decodes into our types and encodes back to the same bytes.
//!
//! With the captures of a real Lustre at hand (see `support::captures`) this walks every TCP stream of every capture and
//! prints what it met: counts by opcode, types used, and each buffer left opaque with the reason. Without them
//! `vectors.rs` does the same on a compact set taken from them.

mod support;

use std::collections::BTreeSet;
use support::walk::{self, Report};

fn walk_all() -> Option<Report> {
    let files = support::capture_files();
    if files.is_empty() {
        eprintln!("no captures here: set CORAL_CAPTURES to a directory of pcap files; vectors.rs runs without them");
        return None;
    }
    let mut report = Report::default();
    for f in files {
        let name = f.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = std::fs::read(&f).expect("capture is readable");
        walk::capture(&name, &bytes, &mut report);
    }
    Some(report)
}

#[test]
fn every_message_encodes_back() {
    let Some(r) = walk_all() else { return };
    println!("{} streams, {} bytes not attributed (starts cut off, gaps, ends)", r.streams, r.lost);
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
    let kinds: BTreeSet<&String> = r.errors.iter().collect();
    for e in kinds.iter().take(60) {
        println!("WRONG {e}");
    }
    assert!(r.errors.is_empty(), "{} mismatches, {} different", r.errors.len(), kinds.len());
    assert!(r.counts.values().sum::<usize>() > 10_000, "the captures hold far more messages than were found");
    // lnet.pcap: 24 reads, 24 writes and 12 pings of the tests and 9 of the console, each with its reply.
    let selftest: usize = r.counts.iter().filter(|(k, _)| k.starts_with("selftest ")).map(|(_, n)| n).sum();
    assert!(selftest >= 138, "{selftest} self-test messages found");
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
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vectors.bin"), file).expect("data directory is writable");
}

/// Writes the conversations that `crates/server/tests/conversation.rs` plays.
#[test]
#[ignore = "generator: run after changing what a conversation holds"]
fn extract_conversations() {
    let dir = support::captures().expect("captures are needed");
    let marks = std::fs::read_to_string(dir.join("session.marks")).expect("the list of operations");
    let client = "10.77.0.3@tcp".parse().expect("a NID");
    for (name, marks) in [("session", support::extract::marks(&marks)), ("mount", vec![(0, "mount".to_string())])] {
        let pcap = std::fs::read(dir.join(format!("{name}.pcap"))).expect("capture is readable");
        let events = support::extract::conversation(&pcap, client, &marks, &["migrate-dir"]);
        let file = support::conversation::encode(&events);
        println!("{name}: {} events, {} bytes in a file of {}", events.len(), events.iter().map(|e| e.bytes.len()).sum::<usize>(), file.len());
        let path = format!("{}/../server/tests/data/{name}.talk", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, file).expect("data directory is writable");
    }
}
