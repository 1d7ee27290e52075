//! How requests of consoles and test clients are answered (`srpc_handle_rpc` of `lnet/selftest/rpc.c`, `brw_test.c`,
//! `ping_test.c`): bulk first, then the reply. A request that is none is dropped, and counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use coral_wire::srpc::*;
use tokio::time::Instant;

use super::framework::Outcome;
use super::rpc::RPC_TIMEOUT;
use super::test::PING_MAGIC;
use super::{
    Check, FEAT_BULK_LEN, FEATS_MASK, FRAMEWORK_PORTAL, MAX_SERVED, RDMA_PORTAL, Rw, Selftest,
    Service,
};
use crate::{LNET_MTU, Node, PortalHandler, PutEvent, SendError, exec};

/// Bytes of the kernel's page, in which lengths were counted before feature 1.
const PAGE: u32 = 4096;

impl PortalHandler for Selftest {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        self.rpc.counters.received.inc();
        let (Some(me), Some(served)) = (self.me.upgrade(), Served::begin(self)) else {
            return self.rpc.counters.dropped.inc();
        };
        let node2 = node.clone();
        exec::run_inline(
            node.handovers(),
            Box::pin(async move {
                let _served = served;
                if me.serve_one(&node2, ev).await.is_none() {
                    me.rpc.counters.dropped.inc();
                }
            }),
        );
    }

    fn is_quick(&self, _portal: u32, mbits: u64) -> bool {
        mbits == Service::Ping as u64
    }
}

/// One request being served, counted while it lives.
struct Served(Arc<Selftest>);

impl Served {
    fn begin(st: &Selftest) -> Option<Served> {
        let served = Served(st.me.upgrade()?);
        let before = st.serving.fetch_add(1, Ordering::AcqRel);
        ((before as usize) < MAX_SERVED).then_some(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A reply that is to be sent: features and body.
type Reply = (u32, SrpcBody);

impl Selftest {
    /// None: dropped.
    async fn serve_one(self: &Arc<Self>, node: &Arc<Node>, ev: PutEvent) -> Option<()> {
        let service = Service::from_mbits(ev.mbits)
            .filter(|s| s.is_framework() == (ev.portal == FRAMEWORK_PORTAL))?;
        let bytes = ev.data.copy_to_bytes();
        let msg = SrpcMsg::decode(&bytes)
            .ok()
            .filter(|m| bytes.len() == SRPC_MSG_LEN && m.head.r#type == service.request())?;
        // Every request begins with the match bits of its reply.
        let rpyid = u64::from_le_bytes(bytes[24..32].try_into().ok()?);
        let (feats, body) = match service {
            Service::Brw => self.brw(node, &ev, &msg).await?,
            Service::Ping => ping(&msg)?,
            _ => self.framework_request(service, node, &ev, &msg).await?,
        };
        let reply = SrpcMsg::new(SrpcType(service.request().0 + 1), feats, body).encode();
        self.count(match service {
            // As `is_quick` says.
            Service::Ping => {
                node.put_unwatched(ev.from, RDMA_PORTAL, rpyid, reply.into())
                    .await
            }
            _ => {
                node.put(ev.from, RDMA_PORTAL, rpyid, 0, reply.into(), false)
                    .await
            }
        })
    }

    fn count<T>(&self, sent: Result<T, SendError>) -> Option<T> {
        sent.inspect_err(|_| self.rpc.counters.errors.inc()).ok()
    }

    async fn framework_request(
        self: &Arc<Self>,
        service: Service,
        node: &Arc<Node>,
        ev: &PutEvent,
        msg: &SrpcMsg,
    ) -> Option<Reply> {
        if msg.head.version != SRPC_MSG_VERSION {
            return None;
        }
        let (outcome, mut feats) = {
            let mut fw = self.framework.lock();
            (
                fw.handle(service, msg, node, &self.rpc.counters, Instant::now()),
                fw.feats(),
            )
        };
        let body = match outcome {
            Outcome::Drop => return None,
            Outcome::Reply(body) => body,
            Outcome::Made(body) => {
                // One watcher, however many sessions follow each other.
                if !self.watched.swap(true, Ordering::AcqRel) {
                    tokio::spawn(watch_timeout(Arc::downgrade(self)));
                }
                body
            }
            Outcome::Run(tests, body) => {
                tests.iter().for_each(|t| t.run(self, node));
                body
            }
            Outcome::FetchDests(len) => {
                let SrpcBody::TestReqst(r) = &msg.body else {
                    return None;
                };
                let list = tokio::time::timeout(
                    RPC_TIMEOUT,
                    node.get(ev.from, RDMA_PORTAL, r.bulkid, len),
                )
                .await
                .ok()?;
                let list = self.count(list)?;
                self.rpc.counters.bulk_get.add(list.len() as u64);
                let mut fw = self.framework.lock();
                feats = fw.feats();
                fw.add_client_test(r, &list.copy_to_bytes())
            }
        };
        Some((feats, body))
    }

    async fn brw(&self, node: &Arc<Node>, ev: &PutEvent, msg: &SrpcMsg) -> Option<Reply> {
        let SrpcBody::BrwReqst(r) = &msg.body else {
            return None;
        };
        let feats = msg.head.ses_feats;
        let says = |feats, status: i32| {
            Some((
                feats,
                SrpcBody::BrwReply(BrwReply {
                    status: status as u32,
                }),
            ))
        };
        let (Some(rw), Some(check)) = (Rw::from_wire(r.rw), Check::from_wire(r.flags)) else {
            return says(0, libc::EINVAL);
        };
        if feats & !FEATS_MASK != 0 {
            return says(FEATS_MASK, libc::EPROTO);
        }
        let len = r.len;
        let odd = feats & FEAT_BULK_LEN == 0 && len % PAGE != 0;
        if odd || len == 0 || len as usize > LNET_MTU {
            return says(feats, libc::EINVAL);
        }
        let transfer = async {
            match rw {
                Rw::Read => {
                    let data = self.patterns.source(len as usize, self.take_error());
                    node.put(ev.from, RDMA_PORTAL, r.bulkid, 0, data, false)
                        .await?;
                    self.rpc.counters.bulk_put.add(len as u64);
                    Ok(true)
                }
                Rw::Write => {
                    let data = node.get(ev.from, RDMA_PORTAL, r.bulkid, len).await?;
                    self.rpc.counters.bulk_get.add(data.len() as u64);
                    Ok(data.len() == len as usize && self.patterns.passes(&data, check, 0))
                }
            }
        };
        let right = tokio::time::timeout(RPC_TIMEOUT, transfer)
            .await
            .unwrap_or(Err(SendError::Timeout));
        let right = self.count(right)?;
        if !right {
            tracing::warn!(node = %node.nid(), peer = %ev.from, "self-test bulk holds wrong data");
        }
        says(feats, if right { 0 } else { libc::EBADMSG })
    }
}

fn ping(msg: &SrpcMsg) -> Option<Reply> {
    let SrpcBody::PingReqst(r) = &msg.body else {
        return None;
    };
    if r.magic != PING_MAGIC {
        return None;
    }
    let known = msg.head.ses_feats & !FEATS_MASK == 0;
    let (feats, status) = if known {
        (msg.head.ses_feats, 0)
    } else {
        (FEATS_MASK, libc::EPROTO as u32)
    };
    Some((
        feats,
        SrpcBody::PingReply(PingReply {
            status,
            magic: PING_MAGIC,
            seq: r.seq,
        }),
    ))
}

/// Ends the session when its console has been silent for too long; lives as long as there is one.
async fn watch_timeout(st: std::sync::Weak<Selftest>) {
    loop {
        let at = {
            let Some(st) = st.upgrade() else { return };
            let fw = st.framework.lock();
            match fw.expiry() {
                Some(at) => at,
                // Under the lock: whoever makes the next session finds that nobody watches.
                None => return st.watched.store(false, Ordering::Release),
            }
        };
        tokio::time::sleep_until(at).await;
        let Some(st) = st.upgrade() else { return };
        let mut fw = st.framework.lock();
        if fw.expiry().is_some_and(|at| at <= Instant::now()) {
            tracing::warn!("self-test session expired: its console is silent");
            fw.end_session();
        }
    }
}
