//! An independent reader, Wireshark's, sees LNet and Lustre in what our own mount sends.
//!
//! Its dissector leaves the ends of some real Lustre messages undissected and notes that as an expert item ("Capture:... offset:...",
//! the same kinds of messages in captures of a kernel Lustre); those are no fault. A packet that it cannot decode is.

mod common;

use common::{Place, Running, in_network_namespace, ok, pause, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Opcodes that a mount with a little work on it must show, with their names.
const EXPECTED: [(u32, &str); 11] = [
    (250, "MGS_CONNECT"),
    (501, "LLOG_ORIGIN_HANDLE_CREATE"),
    (38, "MDS_CONNECT"),
    (8, "OST_CONNECT"),
    (101, "LDLM_ENQUEUE"),
    (36, "MDS_REINT"),
    (35, "MDS_CLOSE"),
    (37, "MDS_READPAGE"),
    (4, "OST_WRITE"),
    (39, "MDS_DISCONNECT"),
    (9, "OST_DISCONNECT"),
];
/// Highest LNet message type: ACK 0, PUT 1, GET 2, REPLY 3, HELLO 4.
const LNET_TYPE_MAX: u32 = 4;
/// How long the last packets take to reach the capture, milliseconds.
const SETTLE_MS: u64 = 500;

/// A running capture; stopped when dropped.
struct Capture(Child);

impl Capture {
    fn start(file: &Path) -> Capture {
        let child = Command::new("tshark")
            .args(["-q", "-i", "lo", "-w"])
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tshark");
        let capture = Capture(child);
        until("the capture has begun", || {
            std::fs::metadata(file).is_ok_and(|m| m.len() > 0)
        });
        pause(SETTLE_MS);
        capture
    }

    fn stop(mut self) {
        pause(SETTLE_MS);
        ok(Command::new("kill")
            .arg("-INT")
            .arg(self.0.id().to_string()));
        self.0.wait().expect("its end");
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What tshark prints of the capture.
fn read(file: &Path, port: u16, more: &[&str]) -> String {
    ok(Command::new("tshark")
        .arg("-r")
        .arg(file)
        .args(["-d", &format!("tcp.port=={port},lnet")])
        .args(more))
}

/// The values of a field and how often each was seen.
fn counts(file: &Path, port: u16, filter: &str, field: &str) -> BTreeMap<u32, usize> {
    let text = read(file, port, &["-Y", filter, "-T", "fields", "-e", field]);
    let mut out = BTreeMap::new();
    for value in text.split([',', '\n']).filter(|v| !v.is_empty()) {
        *out.entry(
            value
                .parse()
                .unwrap_or_else(|_| panic!("{field} is '{value}'")),
        )
        .or_default() += 1;
    }
    out
}

fn use_the_mount(mnt: &Path) {
    std::fs::write(mnt.join("small"), "hello").unwrap();
    std::fs::create_dir(mnt.join("dir")).unwrap();
    std::fs::write(mnt.join("big"), common::pattern(1, 3 << 20)).unwrap();
    std::fs::rename(mnt.join("small"), mnt.join("dir/small")).unwrap();
    assert_eq!(std::fs::read(mnt.join("dir/small")).unwrap(), b"hello");
    assert_eq!(std::fs::read_dir(mnt).unwrap().count(), 2);
    std::fs::remove_file(mnt.join("big")).unwrap();
}

#[test]
fn tshark_reads_our_mount_as_lnet_and_lustre() {
    if !Command::new("tshark")
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
    {
        println!("skipped: tshark is not installed (apt install tshark)");
        return;
    }
    in_network_namespace("tshark_reads_our_mount_as_lnet_and_lustre", || {
        let place = Place::new();
        let (data, mnt, file, port) = (
            place.path("data"),
            place.make("mnt"),
            place.path("mount.pcap"),
            place.port,
        );
        let port_s = port.to_string();
        let server = Running::start(
            &["up", &data.to_string_lossy(), "--port", &port_s],
            &data,
            &[],
        );
        let capture = Capture::start(&file);
        let client = Running::start(
            &[
                "mount",
                "127.0.0.1@tcp:/coral",
                &mnt.to_string_lossy(),
                "--port",
                &port_s,
            ],
            &place.path("client"),
            &[&mnt],
        );
        use_the_mount(&mnt);
        client.stop();
        capture.stop();
        server.stop();

        let opcodes = counts(&file, port, "lustre", "lustre.ptlrpc_body.pb_opc");
        println!("opcodes with counts: {opcodes:?}");
        let missing: Vec<_> = EXPECTED
            .iter()
            .filter(|(opc, _)| !opcodes.contains_key(opc))
            .collect();
        assert!(missing.is_empty(), "tshark does not see {missing:?}");
        let types = counts(&file, port, "lnet", "lnet.msg_type");
        println!("LNet message types with counts: {types:?}");
        assert!(
            types.keys().all(|t| *t <= LNET_TYPE_MAX),
            "unknown LNet messages: {types:?}"
        );
        let whole = read(&file, port, &["-V"]);
        let bad: Vec<&str> = whole
            .lines()
            .filter(|l| l.contains("Malformed Packet") || l.contains("Dissector bug"))
            .collect();
        assert!(
            bad.is_empty(),
            "tshark cannot decode {} packets: {bad:?}",
            bad.len()
        );
    });
}
