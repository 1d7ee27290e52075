//! What a kernel client sent to a kernel server, sent to us: our answers must be the kernel server's.
//!
//! The mount is in `data/mount.pcap.lz4`. Streams of a self-test and of a file system's session are put together from it and from
//! `data/lst.bin` (see `assembled`). The long captures of both are replayed too where they are: directory in CORAL_CAPTURES, else
//! `../shared/captures` beside the repository or two levels up.
//! Every NID is replaced by one of this machine in all bytes.

mod pcap;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use coral_lnet::{Nid, Node, NodeConfig, PortalHandler, PutEvent};
use coral_wire::lnet::{KsockMsgHdr, LnetHdr, LnetMsg, WireHandle};
use parking_lot::Mutex;
use pcap::{CLIENT, SERVER, Stream, capture, lnet_type, messages, streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use zerocopy::IntoBytes;

const PORT: u16 = 22988;

fn replace_nids(bytes: &mut [u8], from: [Ipv4Addr; 2], to: [Nid; 2]) {
    for i in 0..bytes.len().saturating_sub(7) {
        for (f, t) in from.iter().zip(to) {
            if bytes[i..i + 8] == Nid::tcp(0, *f).0.to_le_bytes() {
                bytes[i..i + 8].copy_from_slice(&t.0.to_le_bytes());
            }
        }
    }
}

struct Recorder(Mutex<Vec<PutEvent>>);

impl PortalHandler for Recorder {
    fn on_put(&self, _: &Arc<Node>, ev: PutEvent) {
        self.0.lock().push(ev);
    }
}

struct Replayed {
    /// What we sent, the handshake taken off.
    sent: Vec<u8>,
    hello: [u8; 56],
}

/// Sends the client's bytes of one connection and collects what comes back until nothing does.
async fn replay(from: Nid, to: Nid, bytes: &[u8]) -> Replayed {
    let sock = TcpSocket::new_v4().unwrap();
    sock.bind((from.ipv4().unwrap(), 0).into()).unwrap();
    let (mut rx, mut tx) = sock
        .connect((to.ipv4().unwrap(), PORT).into())
        .await
        .unwrap()
        .into_split();
    let bytes = bytes.to_vec();
    let writer = tokio::spawn(async move {
        tx.write_all(&bytes).await.unwrap();
        tx
    });
    let mut hello = [0; 56];
    timeout(Duration::from_secs(10), rx.read_exact(&mut hello))
        .await
        .expect("a HELLO")
        .unwrap();
    let _tx = timeout(Duration::from_secs(20), writer)
        .await
        .expect("all taken")
        .unwrap();
    let (mut sent, mut buf) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(n) = timeout(Duration::from_millis(500), rx.read(&mut buf)).await {
        let n = n.unwrap();
        assert!(n > 0, "the connection stays open");
        sent.extend_from_slice(&buf[..n]);
    }
    Replayed { sent, hello }
}

/// Replays all connections of a capture and compares what LNet alone decides: HELLO, ping replies, ACKs, zero-copy
/// acknowledgements. What PTLRPC and lst would answer is missing; their requests must have been delivered.
async fn replay_file(name: &str, test: u8) {
    if let Some(pcap) = capture(name) {
        replay_streams(name, streams(&pcap), test).await;
    }
}

async fn replay_streams(name: &str, streams: BTreeMap<u16, Stream>, test: u8) {
    let pid = std::process::id();
    let ip = |n| Ipv4Addr::new(127, 254, (pid % 251) as u8, (test << 4) + n);
    let (us, them) = (Nid::tcp(0, ip(1)), Nid::tcp(0, ip(2)));
    let cfg = NodeConfig {
        nids: vec![us],
        listen_port: Some(PORT),
        connect_port: PORT,
        secure_ports: false,
        ..NodeConfig::default()
    };
    let node = Node::start(cfg, None).await.unwrap();
    let recorder = Arc::new(Recorder(Mutex::new(Vec::new())));
    for portal in 1..64 {
        node.serve_portal(portal, recorder.clone());
    }
    let (mut puts, mut cookies, mut pings) = (0, 0, 0);
    for (port, mut s) in streams.into_iter().rev() {
        replace_nids(&mut s.client, [SERVER, CLIENT], [us, them]);
        replace_nids(&mut s.server, [SERVER, CLIENT], [us, them]);
        // Zero-copy acknowledgements of the server's bulk would acknowledge what we never sent.
        let client = messages(&s.client[72..]);
        let kept: Vec<&[u8]> = client.iter().copied().filter(|m| m[0] != 0xc0).collect();
        let got = replay(them, us, &[&s.client[..72], &kept.concat()].concat()).await;

        assert_eq!(
            got.hello[..32],
            s.server[..32],
            "{port}: HELLO before our incarnation"
        );
        assert_eq!(got.hello[40..], s.server[40..56], "{port}: HELLO after it");
        assert_ne!(got.hello[32..40], [0; 8]);

        let ours = messages(&got.sent);
        assert_eq!(
            ours.concat().len(),
            got.sent.len(),
            "we sent whole messages"
        );
        let theirs = messages(&s.server[56..]);
        for ty in [0, 3] {
            let of = |list: &[&[u8]]| {
                list.iter()
                    .filter(|m| lnet_type(m) == Some(ty))
                    .map(|m| m.to_vec())
                    .collect::<Vec<_>>()
            };
            // A REPLY to anything but a ping comes from a bulk source, which is not ours to have.
            let theirs: Vec<_> = of(&theirs)
                .into_iter()
                .filter(|m| ty == 0 || m[96..].starts_with(b"gnip"))
                .collect();
            let theirs: Vec<_> = theirs
                .into_iter()
                .filter(|m| ty == 3 || m[24 + 48..24 + 56] == (1u64 << 63).to_le_bytes())
                .collect();
            let ours: Vec<_> = of(&ours)
                .into_iter()
                .filter(|m| ty == 3 || m[24 + 48..24 + 56] == (1u64 << 63).to_le_bytes())
                .collect();
            assert_eq!(ours.len(), theirs.len(), "{port}: as many of type {ty}");
            for (o, t) in ours.iter().zip(&theirs) {
                // Theirs may ask for a zero-copy acknowledgement, or carry one.
                assert_eq!(o[24..], t[24..], "{port}: message of type {ty}");
                pings += 1;
            }
        }
        let wanted: Vec<u64> = kept
            .iter()
            .map(|m| u64::from_le_bytes(m[8..16].try_into().unwrap()))
            .filter(|c| *c != 0)
            .collect();
        let given: Vec<u64> = ours
            .iter()
            .filter(|m| m[0] == 0xc0)
            .map(|m| u64::from_le_bytes(m[16..24].try_into().unwrap()))
            .collect();
        assert_eq!(
            given, wanted,
            "{port}: every zero-copy message acknowledged, in order"
        );
        cookies += given.len();
        puts += kept
            .iter()
            .filter(|m| lnet_type(m) == Some(1) && m[24 + 64..24 + 68] != [0; 4])
            .count();
    }
    assert_eq!(recorder.0.lock().len(), puts, "every request was delivered");
    println!(
        "{name}: {puts} PUTs delivered, {pings} ping replies and ACKs equal, {cookies} zero-copy messages acknowledged"
    );
    assert!(puts > 0 && pings > 0);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mount_of_a_kernel_client() {
    replay_file("mount.pcap", 1).await;
}

/// A PUT of the client, as a kernel client sends it.
fn client_put((portal, bits): (u32, u64), cookie: u64, payload: &[u8]) -> Vec<u8> {
    let msg = LnetMsg::Put {
        ack_wmd: WireHandle::NONE,
        match_bits: bits,
        hdr_data: 0,
        ptl_index: portal,
        offset: 0,
    };
    let [dest_nid, src_nid] = [SERVER, CLIENT].map(|ip| Nid::tcp(0, ip));
    let hdr = LnetHdr {
        dest_nid,
        src_nid,
        dest_pid: 12345,
        src_pid: 12345,
        payload_length: payload.len() as u32,
        msg,
    };
    [KsockMsgHdr::lnet(cookie).as_bytes(), &hdr.encode(), payload].concat()
}

/// The connections of the recorded mount with other messages on them: the handshakes and the ping with its answer are a kernel's,
/// behind them come `control` and `bulk`.
fn assembled(control: &[Vec<u8>], bulk: &[Vec<u8>]) -> BTreeMap<u16, Stream> {
    let ctype = |s: &Stream| s.client[16 + 48];
    let mount = capture("mount.pcap").expect("it is part of the sources");
    let mut out = BTreeMap::new();
    for (port, s) in streams(&mount) {
        let (ask, answer) = (messages(&s.client[72..]), messages(&s.server[56..]));
        let of = |list: &[&[u8]], ty| {
            list.iter()
                .find(|m| lnet_type(m) == Some(ty))
                .map_or_else(Vec::new, |m| m.to_vec())
        };
        let (ping, reply, puts) = match ctype(&s) {
            1 => (of(&ask, 2), of(&answer, 3), control),
            3 => (Vec::new(), Vec::new(), bulk),
            _ => continue,
        };
        assert!(
            reply.is_empty() || reply[96..].starts_with(b"gnip"),
            "the first GET is the ping"
        );
        out.insert(
            port,
            Stream {
                client: [&s.client[..72], &ping, &puts.concat()].concat(),
                server: [&s.server[..56], &reply].concat(),
            },
        );
    }
    assert_eq!(out.len(), 2, "a control and a bulk connection");
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selftest_of_a_kernel_client() {
    // Each request of the recorded session: portal, service, request and reply of 160 bytes (see `lst_replay.rs`).
    let exchanges = include_bytes!("data/lst.bin").chunks_exact(2 + 2 * 160);
    let requests: Vec<_> = exchanges
        .map(|x| client_put((x[0] as u32, x[1] as u64), 0, &x[2..162]))
        .collect();
    assert!(requests.len() >= 60, "{}", requests.len());
    replay_streams("assembled self-test", assembled(&requests, &[]), 5).await;
    replay_file("lnet.pcap", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_of_a_kernel_client() {
    // What a file system adds to a mount: bulk data on its own connection, of which the large parts are to be acknowledged.
    let bulk: Vec<_> = [
        (0, 0),
        (4096, 0x8001),
        (300_000, 0x8002),
        (1 << 20, 0x8003),
        (100, 0),
        (70_000, u64::MAX),
    ]
    .into_iter()
    .map(|(len, cookie)| client_put((8, len as u64), cookie, &vec![len as u8; len]))
    .collect();
    let requests: Vec<_> = (1..40u64)
        .map(|i| {
            client_put(
                (6, i),
                if i % 5 == 0 { 0x9000 + i } else { 0 },
                &vec![i as u8; 200 * i as usize],
            )
        })
        .collect();
    replay_streams("assembled session", assembled(&requests, &bulk), 6).await;
    replay_file("session.pcap", 3).await;
}

#[test]
#[ignore = "generator of data/mount.pcap.lz4"]
fn pack_the_mount() {
    let packed = lz4_flex::compress_prepend_size(&capture("mount.pcap").unwrap());
    std::fs::write(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mount.pcap.lz4"),
        packed,
    )
    .unwrap();
}

/// The first bytes of our connections are a kernel client's, but for NIDs and incarnation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_connections_begin_as_a_kernel_clients() {
    let Some(pcap) = capture("mount.pcap") else {
        return;
    };
    let ip = |n: u8| Ipv4Addr::new(127, 254, (std::process::id() % 251) as u8, (4 << 4) + n);
    let (server, us) = (Nid::tcp(0, ip(1)), Nid::tcp(0, ip(2)));
    let listener = TcpListener::bind((ip(1), PORT)).await.unwrap();
    let cfg = NodeConfig {
        nids: vec![us],
        connect_port: PORT,
        secure_ports: false,
        ..NodeConfig::default()
    };
    let node = Node::start(cfg, None).await.unwrap();
    let pinging = tokio::spawn({
        let node = node.clone();
        async move { node.ping(server).await }
    });
    let mut open: Vec<TcpStream> = Vec::new();
    let mut incarnations = Vec::new();
    for (_, mut s) in streams(&pcap).into_iter().rev() {
        replace_nids(&mut s.client, [SERVER, CLIENT], [server, us]);
        replace_nids(&mut s.server, [SERVER, CLIENT], [server, us]);
        let (mut c, _) = timeout(Duration::from_secs(10), listener.accept())
            .await
            .unwrap()
            .unwrap();
        let mut first = [0; 72];
        c.read_exact(&mut first).await.unwrap();
        assert_eq!(first[..48], s.client[..48]);
        assert_eq!(first[56..], s.client[56..72]);
        incarnations.push(first[48..56].to_vec());
        // The kernel server's own HELLO is the answer.
        c.write_all(&s.server[..56]).await.unwrap();
        open.push(c);
    }
    assert!(
        incarnations.windows(2).all(|w| w[0] == w[1]),
        "one incarnation in a life"
    );
    // The ping is on the control connection, and is a kernel's but for the handle and the length asked for.
    let mut ping = [0; 96];
    timeout(Duration::from_secs(10), open[0].read_exact(&mut ping))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((ping[0], ping[24 + 24], ping[24 + 55]), (0xc1, 2, 0x80));
    sleep(Duration::from_millis(10)).await;
    pinging.abort();
    node.shutdown().await;
}
