//! Services over memlnd with a paused clock: bounds, lanes, nonsense, stop, callbacks.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use coral_buffers::Payload;
use coral_lnet::{MemNet, Node};
use coral_ptlrpc::*;
use coral_wire::coral::{LENT, UNTOLD_OPEN};
use coral_wire::ldlm::{LdlmIntent, it};
use coral_wire::mds::{RecCreate, open};
use coral_wire::ost::{NiobufRemote, ObdIoobj, Obdo, brw, md};
use coral_wire::ptlrpc::*;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// Holds every request until a permit is there; pings at once.
struct Gate {
    permits: Semaphore,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl RequestHandler for Gate {
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if rq.body.opc == opc::OBD_PING {
                return rq.reply(0, Message::default()).await;
            }
            let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            self.permits.acquire().await.unwrap().forget();
            self.running.fetch_sub(1, Ordering::SeqCst);
            rq.reply(0, Message::default()).await
        })
    }
}

struct World {
    client: Arc<Node>,
    gate: Arc<Gate>,
    svc: Arc<Service>,
}

async fn world(max_active: usize, max_queued: usize) -> World {
    world_with(ServiceConfig {
        max_active,
        max_queued,
        ..ServiceConfig::new("gate", &[portal::LDLM_CB_REQUEST])
    })
    .await
}

async fn world_with(cfg: ServiceConfig) -> World {
    let mem = MemNet::new();
    let (client, server) = (
        node(&mem, "10.0.0.1@tcp", 1).await,
        node(&mem, "10.0.0.2@tcp", 2).await,
    );
    let gate = Arc::new(Gate {
        permits: Semaphore::new(0),
        running: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let svc = Service::start(&server, cfg, gate.clone());
    World { client, gate, svc }
}

async fn ask(client: Arc<Node>, opcode: u32, secs: u64) -> Result<Reply, RpcError> {
    let rq = Request::new(portal::LDLM_CB_REQUEST, opcode);
    send_ast(
        &client,
        nid("10.0.0.2@tcp"),
        7,
        1,
        rq,
        Duration::from_secs(secs),
    )
    .await
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_pings_pass_it() {
    let w = world(2, 3).await;
    let calls: Vec<_> = (0..8)
        .map(|_| tokio::spawn(ask(w.client.clone(), opc::MDS_REINT, 20)))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let st = w.svc.stats();
    assert_eq!(
        (
            st.requests.value(),
            st.queued.value(),
            st.dropped_full.value()
        ),
        (8, 3, 3)
    );
    ask(w.client.clone(), opc::OBD_PING, 1)
        .await
        .expect("a ping waits for nobody");
    w.gate.permits.add_permits(100);
    let mut ok = 0;
    for c in calls {
        ok += c.await.unwrap().is_ok() as u32;
    }
    assert_eq!(ok, 5, "those that were dropped time out");
    assert_eq!(w.gate.most.load(Ordering::SeqCst), 2);
    assert_eq!(w.svc.stats().replies.value(), 6);
}

/// Whoever holds a lock is not kept waiting by those that wait for it.
#[tokio::test(start_paused = true)]
async fn io_under_a_lock_of_the_client_has_a_lane_of_its_own() {
    let w = world(2, 3).await;
    let write = |valid, flags| {
        let o = Obdo {
            valid,
            handle: 7,
            ..Default::default()
        };
        let rq = Request::new(portal::LDLM_CB_REQUEST, opc::OST_WRITE).push(&o);
        let rq = rq.push(&ObdIoobj::default()).push(&NiobufRemote {
            offset: 0,
            len: 1,
            flags,
        });
        let client = w.client.clone();
        tokio::spawn(async move {
            send_ast(
                &client,
                nid("10.0.0.2@tcp"),
                7,
                1,
                rq,
                Duration::from_secs(20),
            )
            .await
        })
    };
    let running = || w.gate.running.load(Ordering::SeqCst);
    let mut calls: Vec<_> = (0..2)
        .map(|_| write(md::FLID, brw::WRITE | brw::SRVLOCK))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    calls.push(write(md::FLID, brw::WRITE));
    calls.push(write(md::FLHANDLE, brw::WRITE | brw::SRVLOCK));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (running(), w.svc.stats().queued.value()),
        (2, 2),
        "one that names no lock waits, and one that wants another"
    );
    calls.extend((0..3).map(|_| write(md::FLHANDLE, brw::WRITE)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (running(), w.svc.stats().queued.value()),
        (4, 3),
        "the lane is as wide as the other"
    );
    w.gate.permits.add_permits(100);
    for c in calls {
        c.await.unwrap().expect("all are done in the end");
    }
}

/// An open of what was read under a lock, or of what was made under one, is not kept waiting by others; what changes something otherwise, or
/// wants a lock, is no such open.
#[tokio::test(start_paused = true)]
async fn an_open_under_a_lock_of_the_client_has_that_lane_too() {
    for held in [
        (UNTOLD_OPEN, open::READ | open::BY_FID),
        (LENT, open::WRITE | open::CREAT),
    ] {
        let w = world(1, 3).await;
        let opens = |(bias, flags): (u32, u64)| {
            let mut rec = RecCreate {
                bias,
                ..Default::default()
            };
            rec.set_flags(flags);
            let makes = flags & open::CREAT != 0;
            let opc = it::OPEN | if makes { it::CREAT } else { 0 };
            let rq = Request::new(portal::LDLM_CB_REQUEST, opc::LDLM_ENQUEUE);
            let rq = rq.push_empty().push(&LdlmIntent { opc }).push(&rec);
            let client = w.client.clone();
            tokio::spawn(async move {
                let to = nid("10.0.0.2@tcp");
                send_ast(&client, to, 7, 1, rq, Duration::from_secs(20)).await
            })
        };
        let seen = || {
            let running = w.gate.running.load(Ordering::SeqCst);
            (running, w.svc.stats().queued.value())
        };
        let mut calls = vec![opens((0, open::READ))];
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(seen(), (1, 0));
        calls.push(opens((UNTOLD_OPEN, open::WRITE)));
        calls.push(opens((LENT, open::WRITE)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(seen(), (1, 2));
        calls.push(opens(held));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(seen(), (2, 2));
        w.gate.permits.add_permits(100);
        for c in calls {
            c.await.unwrap().expect("all are done in the end");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_in_bytes_too() {
    let w = world_with(ServiceConfig {
        max_active: 1,
        max_queued_bytes: 150_000,
        ..ServiceConfig::new("gate", &[portal::LDLM_CB_REQUEST])
    })
    .await;
    let big = |client: Arc<Node>| async move {
        let rq = Request::new(portal::LDLM_CB_REQUEST, opc::MDS_REINT)
            .push_bytes(Bytes::from(vec![7; 100_000]));
        send_ast(
            &client,
            nid("10.0.0.2@tcp"),
            7,
            1,
            rq,
            Duration::from_secs(20),
        )
        .await
    };
    let calls: Vec<_> = (0..4)
        .map(|_| tokio::spawn(big(w.client.clone())))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let st = w.svc.stats();
    assert_eq!((st.queued.value(), st.dropped_full.value()), (1, 2));
    w.gate.permits.add_permits(100);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = tokio::spawn(big(w.client.clone()));
    assert!(
        again.await.unwrap().is_ok(),
        "what left the queue counts no more"
    );
    for c in calls {
        let _ = c.await;
    }
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_counted_and_does_no_harm() {
    let w = world(2, 3).await;
    let good = Message::new(&PtlrpcBody::request(opc::OBD_PING)).encode();
    let reply = Message::new(&PtlrpcBody {
        r#type: PTL_RPC_MSG_REPLY,
        ..Default::default()
    })
    .encode();
    let mut flipped = good.to_vec();
    flipped[9] ^= 0xff;
    for bad in [
        Bytes::new(),
        Bytes::from_static(b"hello"),
        good.slice(..100),
        reply,
        flipped.into(),
    ] {
        w.client
            .put(
                nid("10.0.0.2@tcp"),
                portal::LDLM_CB_REQUEST,
                128,
                0,
                Payload::from(bad),
                false,
            )
            .await
            .unwrap();
    }
    assert_eq!(w.svc.stats().malformed.value(), 5);
    ask(w.client.clone(), opc::OBD_PING, 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_drops_what_does_not_end() {
    let w = world(2, 3).await;
    let calls: Vec<_> = (0..3)
        .map(|_| tokio::spawn(ask(w.client.clone(), opc::MDS_REINT, 20)))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    w.svc.stop().await;
    for c in calls {
        assert!(matches!(
            c.await.unwrap().unwrap_err(),
            RpcError::Timeout(_)
        ));
    }
    assert!(matches!(
        ask(w.client.clone(), opc::OBD_PING, 1).await,
        Err(RpcError::Timeout(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_callback_to_nobody_fails_at_once() {
    let w = world(1, 1).await;
    let rq = Request::new(portal::LDLM_CB_REQUEST, opc::LDLM_BL_CALLBACK);
    let r = send_ast(&w.client, nid("77@lo"), 7, 1, rq, Duration::from_secs(20)).await;
    assert!(matches!(r, Err(RpcError::Unreachable(_))), "{r:?}");
}
