//! What tests of nodes over TCP share. Every test has addresses of its own (by process id and test number), so that runs side by
//! side do not meet.
#![allow(dead_code, reason = "each test file uses its share")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::{Nid, Node, NodeConfig, PoolSizes, parse_routes};
use coral_wire::lnet::{KsockMsgHdr, LNET_PROTO_PING_MATCHBITS, LnetHdr, LnetMsg, WireHandle};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use zerocopy::IntoBytes;

/// TCP port of all nodes.
pub const PORT: u16 = 20988;

/// Longer than anything here takes; a test that hangs fails by it.
pub const LONG: Duration = Duration::from_secs(30);

/// Address `n` of a test.
pub fn ip(test: u8, n: u8) -> Ipv4Addr {
    let pid = std::process::id();
    Ipv4Addr::new(
        127,
        2 + (pid >> 7) as u8 % 250,
        ((pid & 0x7f) << 1) as u8 + (test >> 5),
        ((test & 31) << 3) + n,
    )
}

/// NID `n` of a test.
pub fn nid(test: u8, n: u8) -> Nid {
    Nid::tcp(0, ip(test, n))
}

/// NID `n` of a test on the network tcp`net`.
pub fn nid_on(test: u8, net: u16, n: u8) -> Nid {
    Nid::tcp(net, ip(test, n))
}

/// A node with several NIDs, with routes.
pub fn config_of(nids: &[Nid], routes: &str) -> NodeConfig {
    let routes = if routes.is_empty() {
        Vec::new()
    } else {
        parse_routes(routes).unwrap()
    };
    NodeConfig {
        nids: nids.to_vec(),
        listen_port: Some(PORT),
        connect_port: PORT,
        secure_ports: false,
        routes,
        ..NodeConfig::default()
    }
}

/// A router.
pub async fn start_router(nids: &[Nid], routes: &str) -> Arc<Node> {
    start(NodeConfig {
        routing: Some(PoolSizes::default()),
        ..config_of(nids, routes)
    })
    .await
}

/// A control connection from `from` to `to`, with the handshake done.
pub async fn raw_conn(from: Nid, to: Nid) -> TcpStream {
    let sock = TcpSocket::new_v4().unwrap();
    sock.set_reuseaddr(true).unwrap();
    sock.bind((from.ipv4().unwrap(), 0).into()).unwrap();
    let mut s = sock
        .connect((to.ipv4().unwrap(), PORT).into())
        .await
        .unwrap();
    s.write_all(&[connreq(to), hello(from, to, 7, 1)].concat())
        .await
        .unwrap();
    timeout(LONG, s.read_exact(&mut [0; 56]))
        .await
        .unwrap()
        .unwrap();
    s
}

/// A message with its headers.
pub fn frame(src: Nid, dest: Nid, msg: LnetMsg, payload: &[u8]) -> Vec<u8> {
    let hdr = LnetHdr {
        dest_nid: dest,
        src_nid: src,
        dest_pid: 12345,
        src_pid: 12345,
        payload_length: payload.len() as u32,
        msg,
    };
    [KsockMsgHdr::lnet(0).as_bytes(), &hdr.encode(), payload].concat()
}

/// A PUT that wants no ACK.
pub fn put_to(portal: u32, match_bits: u64) -> LnetMsg {
    LnetMsg::Put {
        ack_wmd: WireHandle::NONE,
        match_bits,
        hdr_data: 0,
        ptl_index: portal,
        offset: 0,
    }
}

/// A discovery push that wants no ACK.
pub fn push() -> LnetMsg {
    put_to(0, LNET_PROTO_PING_MATCHBITS)
}

/// A ping whose answer goes to the handle `object`.
pub fn ping_of(object: u64) -> LnetMsg {
    let return_wmd = WireHandle {
        interface_cookie: 1,
        object_cookie: object,
    };
    LnetMsg::Get {
        return_wmd,
        match_bits: LNET_PROTO_PING_MATCHBITS,
        ptl_index: 0,
        src_offset: 0,
        sink_length: 4096,
    }
}

/// The next LNet message that comes: its header and payload.
pub async fn next_message(s: &mut TcpStream) -> (LnetHdr, Vec<u8>) {
    loop {
        let mut ksm = [0; 24];
        timeout(LONG, s.read_exact(&mut ksm))
            .await
            .expect("a message")
            .unwrap();
        if ksm[0] == 0xc0 {
            continue;
        }
        let mut hdr = [0; 72];
        s.read_exact(&mut hdr).await.unwrap();
        let hdr = LnetHdr::decode(&hdr).unwrap();
        let mut payload = vec![0; hdr.payload_length as usize];
        s.read_exact(&mut payload).await.unwrap();
        return (hdr, payload);
    }
}

/// Node `n` of a test.
pub fn config(test: u8, n: u8) -> NodeConfig {
    NodeConfig {
        nids: vec![nid(test, n)],
        listen_port: Some(PORT),
        connect_port: PORT,
        seed: n as u64,
        secure_ports: false,
        ..NodeConfig::default()
    }
}

/// Starts a node.
pub async fn start(cfg: NodeConfig) -> Arc<Node> {
    Node::start(cfg, None).await.unwrap()
}

/// Stops nodes.
pub async fn stop(nodes: &[&Arc<Node>]) {
    for n in nodes {
        n.shutdown().await;
    }
}

/// Waits until `what` holds.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + LONG;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Connects to the acceptor of node 1 from an address of its own.
pub async fn raw(test: u8, from: u8) -> TcpStream {
    let sock = TcpSocket::new_v4().unwrap();
    sock.bind((ip(test, from), 0).into()).unwrap();
    sock.connect((ip(test, 1), PORT).into()).await.unwrap()
}

/// Waits until the other side closes.
pub async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let end = timeout(LONG, stream.read_to_end(&mut rest))
        .await
        .expect("the connection is closed");
    drop(end);
}

/// An acceptor request.
pub fn connreq(target: Nid) -> Vec<u8> {
    let mut v = 0xacce_7100u32.to_le_bytes().to_vec();
    v.extend(1u32.to_le_bytes());
    v.extend(target.0.to_le_bytes());
    v
}

/// A HELLO.
pub fn hello(src: Nid, dst: Nid, incarnation: u64, ctype: i32) -> Vec<u8> {
    let mut v = Vec::new();
    v.extend(0x4572_6963u32.to_le_bytes());
    v.extend(3u32.to_le_bytes());
    v.extend(src.0.to_le_bytes());
    v.extend(dst.0.to_le_bytes());
    v.extend(12345u32.to_le_bytes());
    v.extend(0u32.to_le_bytes());
    v.extend(incarnation.to_le_bytes());
    v.extend(0u64.to_le_bytes());
    v.extend(ctype.to_le_bytes());
    v.extend(0u32.to_le_bytes());
    v
}

/// A connection with node 1, the handshake done, and the HELLO that came back.
pub async fn shake(test: u8, from: u8, incarnation: u64, ctype: i32) -> (TcpStream, [u8; 56]) {
    let mut s = raw(test, from).await;
    s.write_all(
        &[
            connreq(nid(test, 1)),
            hello(nid(test, from), nid(test, 1), incarnation, ctype),
        ]
        .concat(),
    )
    .await
    .unwrap();
    let mut answer = [0; 56];
    timeout(LONG, s.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    (s, answer)
}

/// An LNet PUT with a zero-copy cookie, as a kernel sends bulk.
pub fn put(src: Nid, dst: Nid, zc: u64, portal: u32, mbits: u64, payload: &[u8]) -> Vec<u8> {
    let mut v = 0xc1u32.to_le_bytes().to_vec();
    v.extend(0u32.to_le_bytes());
    v.extend(zc.to_le_bytes());
    v.extend(0u64.to_le_bytes());
    v.extend(dst.0.to_le_bytes());
    v.extend(src.0.to_le_bytes());
    v.extend(12345u32.to_le_bytes());
    v.extend(12345u32.to_le_bytes());
    v.extend(1u32.to_le_bytes());
    v.extend((payload.len() as u32).to_le_bytes());
    v.extend([0xff; 16]);
    v.extend(mbits.to_le_bytes());
    v.extend(0u64.to_le_bytes());
    v.extend(portal.to_le_bytes());
    v.extend(0u32.to_le_bytes());
    v.extend(payload);
    v
}

/// Nodes 1 and 2 of a test.
pub async fn pair(test: u8) -> (Arc<Node>, Arc<Node>) {
    (start(config(test, 1)).await, start(config(test, 2)).await)
}

/// `len` bytes that depend on `seed`, cut into segments.
pub fn noise(seed: u64, len: usize) -> Payload {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut all = vec![0u8; len];
    rng.fill(&mut all[..]);
    let all = Bytes::from(all);
    let mut out = Payload::new();
    let mut at = 0;
    while at < len {
        let n = rng.random_range(1..=len - at);
        out.push(all.slice(at..at + n));
        at += n;
    }
    out
}
