//! A kernel console's and client's self-test session, said again to a node of ours: its replies are the kernel node's.
//!
//! `data/lst.bin` holds every exchange of the recorded session (console and client 10.77.0.3, server 10.77.0.2, kernel
//! 6.12, Lustre 2.17.57): portal, service, request and reply of 160 bytes. Differences allowed, and no others:
//! - the counters of a `stat` reply (times, RPCs, messages and bytes since the start);
//! - what follows the reply's own fields in its 160 bytes, where the kernel leaves what its buffer held before.

mod pcap;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::selftest::{RDMA_PORTAL, Selftest};
use coral_lnet::{MemNet, Node, NodeConfig};
use coral_wire::srpc::{SRPC_MSG_LEN, SrpcBody, SrpcMsg, SrpcType, StatReply};

const VECTORS: &[u8] = include_bytes!("data/lst.bin");

struct Exchange {
    portal: u32,
    service: u64,
    request: Bytes,
    reply: Bytes,
}

fn exchanges() -> Vec<Exchange> {
    let cut = VECTORS.chunks_exact(2 + 2 * SRPC_MSG_LEN);
    assert!(cut.remainder().is_empty());
    cut.map(|c| Exchange {
        portal: c[0] as u32,
        service: c[1] as u64,
        request: Bytes::copy_from_slice(&c[2..2 + SRPC_MSG_LEN]),
        reply: Bytes::copy_from_slice(&c[2 + SRPC_MSG_LEN..]),
    })
    .collect()
}

/// The message without what may differ.
fn comparable(bytes: &Bytes) -> SrpcMsg {
    let mut m = SrpcMsg::decode(bytes).unwrap();
    assert_eq!(m.encode(), bytes, "it encodes back");
    m.rest = Bytes::new();
    if let SrpcBody::StatReply(r) = &mut m.body {
        *r = StatReply {
            status: r.status,
            sid: r.sid,
            ..StatReply::default()
        };
    }
    m
}

async fn node(nid: &str, mem: &Arc<MemNet>) -> Arc<Node> {
    Node::start(
        NodeConfig {
            nids: vec![nid.parse().unwrap()],
            ..NodeConfig::default()
        },
        Some(mem.clone()),
    )
    .await
    .unwrap()
}

/// The bulk the client has or wants: what is PUT to it, or what it lets be fetched.
fn write_len(m: &SrpcMsg) -> Option<(u64, Payload)> {
    match &m.body {
        SrpcBody::BrwReqst(r) if r.rw == 2 => {
            let full = 0xeeb0_eeb1_eeb2_eeb3u64
                .to_le_bytes()
                .repeat(r.len as usize / 8);
            Some((r.bulkid, Payload::from(full)))
        }
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_session_gets_the_kernels_replies() {
    let mem = MemNet::new();
    let (client, server) = (node("1@lo", &mem).await, node("2@lo", &mem).await);
    let _st = Selftest::serve(&server);
    let (mut kinds, mut bulk) = (std::collections::BTreeMap::<u32, usize>::new(), 0);
    for (i, x) in exchanges().iter().enumerate() {
        let m = SrpcMsg::decode(&x.request).unwrap();
        let rpyid = u64::from_le_bytes(x.request[24..32].try_into().unwrap());
        let mut reply = client.expect_put(RDMA_PORTAL, rpyid);
        let _source = write_len(&m).map(|(bits, data)| client.offer_get(RDMA_PORTAL, bits, data));
        let mut sink = match &m.body {
            SrpcBody::BrwReqst(r) if r.rw == 1 => {
                Some((client.expect_put(RDMA_PORTAL, r.bulkid), r.len))
            }
            _ => None,
        };
        client
            .put(
                server.nid(),
                x.portal,
                x.service,
                0,
                x.request.clone().into(),
                false,
            )
            .await
            .unwrap();
        let got = tokio::time::timeout(Duration::from_secs(10), reply.recv())
            .await
            .unwrap_or_else(|_| panic!("exchange {i}: no reply"));
        let got = got.data.copy_to_bytes();
        assert_eq!(got.len(), SRPC_MSG_LEN);
        assert_eq!(comparable(&got), comparable(&x.reply), "exchange {i}");
        if let Some((sink, len)) = &mut sink {
            let data = sink.try_recv().expect("bulk comes before the reply").data;
            assert_eq!(data.len(), *len as usize);
            bulk += data.len();
        }
        *kinds.entry(m.head.r#type.0).or_default() += 1;
    }
    println!("{kinds:?}, {bulk} bytes of bulk");
    // Each kind of request that goes to a server of the test: make and remove session, stat, test, debug or not, brw, ping.
    for ty in [
        SrpcType::MKSN_REQST,
        SrpcType::RMSN_REQST,
        SrpcType::STAT_REQST,
        SrpcType::TEST_REQST,
        SrpcType::BRW_REQST,
        SrpcType::PING_REQST,
    ] {
        assert!(kinds.contains_key(&ty.0), "no exchange of type {ty:?}");
    }
    assert_eq!(bulk, 24 << 20, "four loops of six reads");
}

/// A session that is there already, and the same requests from a console that knows no features, differ where they must.
#[tokio::test]
async fn a_second_console_is_told_who_has_the_node() {
    let mem = MemNet::new();
    let (client, server) = (node("1@lo", &mem).await, node("2@lo", &mem).await);
    let _st = Selftest::serve(&server);
    let make = exchanges().into_iter().find(|x| x.service == 1).unwrap();
    let mut m = SrpcMsg::decode(&make.request).unwrap();
    for (nid, status) in [(7u64, 0), (8, libc::EBUSY as u32)] {
        let SrpcBody::MksnReqst(r) = &mut m.body else {
            panic!("not a make session")
        };
        r.sid.nid = nid;
        let mut reply = client.expect_put(RDMA_PORTAL, r.rpyid);
        client
            .put(
                server.nid(),
                make.portal,
                make.service,
                0,
                m.encode().into(),
                false,
            )
            .await
            .unwrap();
        match SrpcMsg::decode(&reply.recv().await.data.copy_to_bytes())
            .unwrap()
            .body
        {
            SrpcBody::MksnReply(r) => assert_eq!((r.status, { r.sid }.nid), (status, 7)),
            b => panic!("{b:?}"),
        }
    }
}

/// Writes `tests/data/lst.bin` from the capture.
#[test]
#[ignore = "generator: needs lnet.pcap"]
fn extract_vectors() {
    let bytes = pcap::capture("lnet.pcap").expect("lnet.pcap is needed");
    let u32_at = |m: &[u8], at: usize| u32::from_le_bytes(m[at..at + 4].try_into().unwrap());
    let u64_at = |m: &[u8], at: usize| u64::from_le_bytes(m[at..at + 8].try_into().unwrap());
    let is_srpc = |m: &&[u8]| {
        pcap::lnet_type(m) == Some(1)
            && m.len() == 96 + SRPC_MSG_LEN
            && u32_at(m, 96) == coral_wire::srpc::SRPC_MSG_MAGIC
    };
    let mut out = Vec::new();
    for (_, s) in pcap::streams(&bytes) {
        let replies = pcap::messages(&s.server[56..]);
        for m in pcap::messages(&s.client[72..]).into_iter().filter(is_srpc) {
            let rpyid = u64_at(m, 96 + 24);
            let reply = replies
                .iter()
                .filter(|r| is_srpc(r))
                .find(|r| u64_at(r, 24 + 48) == rpyid)
                .expect("every request was answered");
            out.extend_from_slice(&[u32_at(m, 24 + 64) as u8, u64_at(m, 24 + 48) as u8]);
            out.extend_from_slice(&m[96..]);
            out.extend_from_slice(&reply[96..]);
        }
    }
    println!("{} exchanges, {} bytes", out.len() / 322, out.len());
    std::fs::write(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/lst.bin"),
        out,
    )
    .expect("data directory is writable");
}
