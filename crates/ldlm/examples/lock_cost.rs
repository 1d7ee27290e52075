//! What locks cost: nanoseconds per uncontended server-side lock and release, what a contended one adds, and a match on a
//! client.
//!
//! `cargo run --release -p coral-ldlm --example lock_cost`

use bytes::Bytes;
use coral_ldlm::*;
use coral_lnet::{MemNet, Node, NodeConfig};
use coral_ptlrpc::{Import, ImportConfig};
use coral_wire::connect::ObdConnectData;
use coral_wire::ldlm::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

/// A client that cancels as soon as it is asked, on the caller's stack.
#[derive(Default)]
struct Obliging(OnceLock<Arc<LdlmServer>>);

struct Asts(Arc<Obliging>);

impl AstSender for Asts {
    fn blocking(
        &self,
        exp: ExportId,
        lock: &LockInfo,
        _by: &LockDesc,
    ) -> BoxFuture<'static, Result<(), AstError>> {
        let (me, cookie) = (self.0.clone(), lock.cookie);
        Box::pin(async move {
            if let Some(server) = me.0.get() {
                server.cancel(exp, &[cookie]);
            }
            Ok(())
        })
    }
    fn completion(
        &self,
        _: ExportId,
        _: &LockInfo,
        _: LdlmFlags,
        _: Bytes,
    ) -> BoxFuture<'static, Result<(), AstError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn glimpse(&self, _: ExportId, _: &LockInfo) -> BoxFuture<'static, Result<Bytes, AstError>> {
        Box::pin(std::future::ready(Err(AstError::NoLock)))
    }
    fn evict(&self, _: ExportId, _: EvictReason) {}
}

/// Rounds of a batch, short enough to fit into a time slice of a busy machine; the best batch counts.
const ROUNDS: u32 = 2000;
const BATCHES: u32 = 500;

async fn report(what: &str, mut round: impl AsyncFnMut(u32)) {
    let mut best = f64::MAX;
    for b in 0..BATCHES {
        let start = Instant::now();
        for n in 0..ROUNDS {
            round(b * ROUNDS + n).await;
        }
        best = best.min(start.elapsed().as_nanos() as f64 / ROUNDS as f64);
    }
    println!("{what:<60} {best:>8.0} ns");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cfg = NodeConfig {
        nids: vec!["1@lo".parse().expect("a NID")],
        ..NodeConfig::default()
    };
    let node = Node::start(cfg, Some(MemNet::new()))
        .await
        .expect("node starts");
    let client = Arc::new(Obliging::default());
    let server = LdlmServer::new("bench", node, Arc::new(Asts(client.clone())));
    let _ = client.0.set(server.clone());
    let update = Policy::ibits(Ibits::UPDATE);
    let res = |n: u32| ResId([0x200000402, n as u64 % 4096, 0, 0]);

    report("lock_local and release, nobody else", async |n| {
        drop(
            server
                .lock_local(res(n), LdlmType::IBITS, LdlmMode::CW, update, None)
                .now_or_never()
                .expect("uncontended"),
        );
    })
    .await;

    let dir = res(5000);
    server
        .try_grant(7, 1, dir, LdlmType::IBITS, LdlmMode::PR, update)
        .expect("free");
    report("the same, over a lock the client may keep", async |_| {
        drop(
            server
                .lock_local(dir, LdlmType::IBITS, LdlmMode::CW, update, Some(7))
                .now_or_never()
                .expect("ignored"),
        );
    })
    .await;
    server.export_gone(7);

    report("try_grant to a client and its cancel", async |n| {
        let (cookie, _) = server
            .try_grant(8, n as u64, res(n), LdlmType::IBITS, LdlmMode::PR, update)
            .expect("free");
        server.cancel(8, &[cookie]);
    })
    .await;

    report(
        "lock_local against a client that gives its lock up at once",
        async |n| {
            server
                .try_grant(8, n as u64, res(n), LdlmType::IBITS, LdlmMode::PR, update)
                .expect("free");
            drop(
                server
                    .lock_local(res(n), LdlmType::IBITS, LdlmMode::EX, update, None)
                    .await,
            );
        },
    )
    .await;

    client_side().await;
}

/// A client with 10,000 locks; no server is asked.
async fn client_side() {
    let cfg = NodeConfig {
        nids: vec!["2@lo".parse().expect("a NID")],
        ..NodeConfig::default()
    };
    let node = Node::start(cfg, Some(MemNet::new()))
        .await
        .expect("node starts");
    let icfg = ImportConfig::mdt(
        "coral-MDT0000_UUID",
        vec![node.nid()],
        "bench",
        ObdConnectData::default(),
    );
    let ns = LdlmClient::new(&node).namespace(Import::new(node.clone(), icfg));
    let bits = Policy::ibits(Ibits(0x13));
    let res = |n: u32| ResId([0x200000402, n as u64 % 10_000, 0, 0]);
    for n in 0..10_000 {
        let pending = ns.prepare(
            res(n),
            LdlmType::IBITS,
            LdlmMode::PR,
            bits,
            LdlmFlags::HAS_INTENT,
        );
        let desc = LockDesc {
            granted_mode: LdlmMode::PR,
            ..LockDesc::new(res(n), LdlmType::IBITS, LdlmMode::PR, &bits)
        };
        drop(ns.finish(
            pending,
            &LdlmReply {
                desc,
                handle: n as u64 + 1,
                ..LdlmReply::default()
            },
            0,
        ));
    }
    let need = Policy::ibits(Ibits::LOOKUP);
    report("match_lock and drop, one of 10,000 locks", async |n| {
        drop(
            ns.match_lock(
                &res(n.wrapping_mul(7919)),
                LdlmType::IBITS,
                LdlmMode::CR,
                &need,
            )
            .expect("it is there"),
        );
    })
    .await;
}
