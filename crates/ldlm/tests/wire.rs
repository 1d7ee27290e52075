//! What callbacks and replies look like on the wire, compared with what a real server sent (`contend.pcap`, fields only).

mod common;
use common::*;

use coral_ldlm::*;
use coral_ptlrpc::{RequestHandler, ServerRequest, Service, ServiceConfig};
use coral_wire::ldlm::*;
use coral_wire::ptlrpc::{Message, PtlrpcBody, opc, portal};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Stands in for a client's callback service and keeps what comes.
#[derive(Default)]
struct Tap(Mutex<Vec<(u32, u64, Message)>>);

impl RequestHandler for Tap {
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()> {
        self.0
            .lock()
            .push((rq.body.opc, rq.body.handle, rq.msg.clone()));
        Box::pin(async move { rq.reply(0, Message::new(&PtlrpcBody::default())).await })
    }
}

struct Tapped {
    bed: Bed,
    tap: Arc<Tap>,
    _service: Arc<Service>,
}

/// Client 0's callbacks go to the tap.
async fn tapped() -> Tapped {
    let bed = Bed::new(2).await;
    bed.clients[0].ldlm.stop().await;
    let tap = Arc::new(Tap::default());
    let service = Service::start(
        &bed.clients[0].node,
        ServiceConfig::new("tap", &[portal::LDLM_CB_REQUEST]),
        tap.clone(),
    );
    Tapped {
        bed,
        tap,
        _service: service,
    }
}

impl Tapped {
    fn one(&self) -> (u32, LdlmRequest, Message) {
        let mut all = self.tap.0.lock();
        assert_eq!(all.len(), 1, "one callback");
        let (opc, handle, msg) = all.remove(0);
        assert_eq!(
            handle,
            self.bed.clients[0].import.handle_cookie(),
            "pb_handle is the client's"
        );
        (opc, LdlmRequest::decode(msg.buf(1)).unwrap(), msg)
    }
    fn server_cookie(&self, client_cookie: u64) -> u64 {
        self.bed
            .server
            .ldlm
            .locks()
            .iter()
            .find(|l| l.remote_cookie == client_cookie)
            .unwrap()
            .cookie
    }
}

#[tokio::test(start_paused = true)]
async fn blocking_callback() {
    let t = tapped().await;
    let held = t.bed.clients[0].ibits(PR, 0x1b).await.unwrap();
    let wait = tokio::time::timeout(
        std::time::Duration::from_secs(1),
        t.bed.clients[1].ibits(EX, 8),
    );
    assert!(wait.await.is_err());
    let (op, rq, msg) = t.one();
    // Frame 6: two buffers, count 0, the blocker's description with its bits repeated, handles: the client's, ours.
    assert_eq!(
        (op, msg.len(), msg.buf(1).len(), rq.count, rq.flags),
        (opc::LDLM_BL_CALLBACK, 2, 104, 0, LdlmFlags(0))
    );
    assert_eq!(
        (
            rq.desc.res(),
            rq.desc.ty(),
            rq.desc.req_mode,
            rq.desc.granted_mode
        ),
        (FILE, LdlmType::IBITS, EX, LdlmMode::NONE)
    );
    assert_eq!(rq.desc.policy_data[..2], [8, 8]);
    assert_eq!(
        rq.handles[..],
        [held.cookie(), t.server_cookie(held.cookie())]
    );
}

#[tokio::test(start_paused = true)]
async fn a_callback_that_is_lost_once_is_sent_again() {
    let bed = Bed::new(2).await;
    let _held = bed.clients[0].ibits(PR, 0x1b).await.unwrap();
    bed.clients[0].ldlm.stop().await;
    let tap = Arc::new(Tap::default());
    let node = bed.clients[0].node.clone();
    let again = tap.clone();
    tokio::spawn(async move {
        tokio::time::sleep(std::time::Duration::from_secs(8)).await;
        let service = Service::start(
            &node,
            ServiceConfig::new("tap", &[portal::LDLM_CB_REQUEST]),
            again,
        );
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        drop(service);
    });
    assert!(
        tokio::time::timeout(
            std::time::Duration::from_secs(50),
            bed.clients[1].ibits(EX, 8)
        )
        .await
        .is_err()
    );
    assert_eq!(
        (tap.0.lock().len(), bed.server.exports.evicted.lock().len()),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn completion_callback() {
    let t = tapped().await;
    t.bed.server.sizes.bytes.store(9, Ordering::Relaxed);
    let (held, _) = t.bed.clients[1].extent(PW, 0, 4095).await.unwrap();
    let pending = t.bed.clients[0].ns.prepare(
        OBJECT,
        LdlmType::EXTENT,
        PW,
        Policy::extent(0, 4095),
        NO_FLAGS,
    );
    let exp = *t
        .bed
        .server
        .exports
        .peers
        .lock()
        .iter()
        .find(|(_, p)| p.nid == t.bed.clients[0].node.nid())
        .unwrap()
        .0;
    let reply = t
        .bed
        .server
        .ldlm
        .enqueue(exp, &pending.request())
        .await
        .unwrap();
    // Frame 68: the lock waits.
    assert_eq!(
        (reply.reply.flags, reply.reply.desc.granted_mode),
        (LdlmFlags(0x2_0002), LdlmMode::NONE)
    );
    assert!(t.tap.0.lock().is_empty());
    drop(held);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let (op, rq, msg) = t.one();
    // Frame 394: three buffers, the lock as granted, the LVB of 56 bytes.
    assert_eq!(
        (op, msg.len(), msg.buf(2).len(), rq.count, rq.flags),
        (opc::LDLM_CP_CALLBACK, 3, 56, 0, LdlmFlags(0))
    );
    assert_eq!(
        (rq.desc.req_mode, rq.desc.granted_mode, rq.desc.policy()),
        (PW, PW, Policy::extent(0, u64::MAX))
    );
    assert_eq!(rq.handles[..], [pending.cookie(), reply.reply.handle]);
    assert_eq!(msg.get::<OstLvb>(2).unwrap().size, 9);
}

#[tokio::test(start_paused = true)]
async fn glimpse_callback_and_replies() {
    let t = tapped().await;
    let (held, _) = t.bed.clients[0].extent(PW, 0, 4095).await.unwrap();
    let exp = *t
        .bed
        .server
        .exports
        .peers
        .lock()
        .iter()
        .find(|(_, p)| p.nid == t.bed.clients[1].node.nid())
        .unwrap()
        .0;
    let ask = |cookie| {
        let desc = LockDesc::new(OBJECT, LdlmType::EXTENT, PR, &Policy::extent(0, u64::MAX));
        LdlmRequest::enqueue(LdlmFlags::HAS_INTENT, desc, cookie)
    };
    let got = t.bed.server.ldlm.glimpse(exp, &ask(5)).await.unwrap();
    // Frame 344: no lock, and a description of none.
    assert_eq!(
        (got.status, got.reply),
        (ELDLM_LOCK_ABORTED, LdlmReply::default())
    );
    let (op, rq, msg) = t.one();
    // Frame 92: the holder's own lock is described, only its cookie is given.
    assert_eq!((op, msg.len(), rq.count), (opc::LDLM_GL_CALLBACK, 2, 0));
    assert_eq!(
        (
            rq.desc.granted_mode,
            rq.desc.policy(),
            rq.handles[..].to_vec()
        ),
        (PW, Policy::extent(0, u64::MAX), vec![held.cookie(), 0])
    );
    t.bed.clients[0].ns.cancel(held).await;
    let got = t.bed.server.ldlm.glimpse(exp, &ask(6)).await.unwrap();
    // Frame 62: granted.
    assert_eq!(
        (got.status, got.reply.flags, got.reply.desc.granted_mode),
        (0, LdlmFlags(0x1001), PR)
    );
}

#[tokio::test(start_paused = true)]
async fn requests_with_forbidden_content_are_refused() {
    let t = tapped().await;
    let exp = *t.bed.server.exports.peers.lock().keys().next().unwrap();
    let ldlm = &t.bed.server.ldlm;
    let good = LockDesc::new(FILE, LdlmType::IBITS, PR, &bits(1));
    let ask = |flags: u32, desc| LdlmRequest::enqueue(LdlmFlags(flags), desc, 5);
    assert_eq!(
        ldlm.enqueue(exp, &ask(0x20, good)).await.unwrap_err(),
        EnqueueError::Protocol
    );
    let mut odd = good;
    odd.resource.r#type = LdlmType(99);
    assert_eq!(
        ldlm.enqueue(exp, &ask(0, odd)).await.unwrap_err(),
        EnqueueError::Malformed
    );
    for mode in [0, 3, 512, u32::MAX] {
        let odd = LockDesc {
            req_mode: LdlmMode(mode),
            ..good
        };
        assert_eq!(
            ldlm.enqueue(exp, &ask(0, odd)).await.unwrap_err(),
            EnqueueError::Malformed
        );
    }
    let backward = LockDesc::new(OBJECT, LdlmType::EXTENT, PR, &Policy::extent(9, 1));
    assert_eq!(
        ldlm.glimpse(exp, &ask(0x1000, backward)).await.unwrap_err(),
        EnqueueError::Malformed
    );
    assert_eq!(
        ldlm.enqueue(
            exp,
            &ask(0, LockDesc::new(FILE, LdlmType::IBITS, PR, &bits(0)))
        )
        .await
        .unwrap_err(),
        EnqueueError::Aborted
    );
    assert_eq!(ldlm.cancel(exp, &[0, 1, u64::MAX]), 0);
    ldlm.export_gone(exp);
    assert_eq!(
        ldlm.enqueue(exp, &ask(0, good)).await.unwrap_err(),
        EnqueueError::NoExport
    );
    assert_eq!(ldlm.counts(), (0, 0));
}
