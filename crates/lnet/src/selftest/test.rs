//! A test on its client: one loop per destination and concurrency, each an RPC after the other
//! (`lnet/selftest/framework.c`, `brw_test.c`, `ping_test.c`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use coral_wire::srpc::{BrwReqst, PingReqst, SrpcBody};
use tokio::sync::watch;

use super::rpc::{Bulk, RpcError};
use super::{BrwParams, Rw, Selftest, Service};
use crate::{Nid, Node};

/// `LST_PING_TEST_MAGIC`.
pub(crate) const PING_MAGIC: u32 = 0xbabe_face;

/// What a test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestParams {
    /// Small messages both ways.
    Ping,
    /// Bulk.
    Brw(BrwParams),
}

/// Errors of a session's tests on this node.
#[derive(Debug, Default)]
pub(crate) struct TestErrors {
    pub(crate) brw: AtomicU32,
    pub(crate) ping: AtomicU32,
}

/// A test whose client we are.
pub(crate) struct ClientTest {
    pub(crate) params: TestParams,
    pub(crate) feats: u32,
    pub(crate) dests: Vec<Nid>,
    pub(crate) concurrency: u32,
    /// RPCs of each loop; None: until stopped.
    pub(crate) count: Option<u32>,
    /// A loop ends with its first error.
    pub(crate) stop_on_error: bool,
    pub(crate) errors: Arc<TestErrors>,
    /// Loops that run.
    active: AtomicUsize,
    stopping: AtomicBool,
    abort: watch::Sender<bool>,
}

impl ClientTest {
    #[allow(clippy::too_many_arguments, reason = "the fields of a test request")]
    pub(crate) fn new(
        params: TestParams,
        feats: u32,
        dests: Vec<Nid>,
        concurrency: u32,
        count: Option<u32>,
        stop_on_error: bool,
        errors: Arc<TestErrors>,
    ) -> Arc<ClientTest> {
        let (active, stopping, abort) = (
            AtomicUsize::new(0),
            AtomicBool::new(false),
            watch::Sender::new(false),
        );
        Arc::new(ClientTest {
            params,
            feats,
            dests,
            concurrency,
            count,
            stop_on_error,
            errors,
            active,
            stopping,
            abort,
        })
    }

    /// Loops that run.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Loops it has.
    pub(crate) fn units(&self) -> usize {
        self.dests.len() * self.concurrency as usize
    }

    /// Claims the test for a run that [`Self::run`] begins; false: it runs already.
    pub(crate) fn claim(&self) -> bool {
        let claimed = self
            .active
            .compare_exchange(0, self.units(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if claimed {
            self.stopping.store(false, Ordering::Release);
            self.abort.send_replace(false);
        }
        claimed
    }

    /// Starts all loops. Only after [`Self::claim`]; a stop between the two ends them at once.
    pub(crate) fn run(self: &Arc<Self>, st: &Arc<Selftest>, node: &Arc<Node>) {
        for dest in &self.dests {
            for _ in 0..self.concurrency {
                let unit = Unit {
                    test: self.clone(),
                    st: st.clone(),
                    node: node.clone(),
                    dest: *dest,
                };
                tokio::spawn(unit.run());
            }
        }
    }

    /// Lets each loop end after the RPC it is at; with `force` that is given up.
    pub(crate) fn stop(&self, force: bool) {
        self.stopping.store(true, Ordering::Release);
        if force {
            self.abort.send_replace(true);
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// One loop.
struct Unit {
    test: Arc<ClientTest>,
    st: Arc<Selftest>,
    node: Arc<Node>,
    dest: Nid,
}

impl Unit {
    async fn run(self) {
        let mut abort = self.test.abort.subscribe();
        tokio::select! {
            biased;
            () = self.repeat() => {}
            _ = abort.wait_for(|a| *a) => {}
        }
        // `drop` counts this unit out.
    }

    async fn repeat(&self) {
        let mut left = self.test.count;
        while left != Some(0) && !self.test.is_stopping() {
            left = left.map(|n| n - 1);
            if self.one().await.is_err() && self.test.stop_on_error {
                return;
            }
            // Within a process an RPC is over without ever waiting: others want to run too.
            tokio::task::consume_budget().await;
        }
    }

    /// One RPC, its errors counted.
    async fn one(&self) -> Result<(), Failed> {
        let (done, errors) = match self.test.params {
            TestParams::Ping => (self.ping().await, &self.test.errors.ping),
            TestParams::Brw(p) => (self.brw(p).await, &self.test.errors.brw),
        };
        if let Err(why) = &done
            && (!self.test.is_stopping() || matches!(why, Failed::Remote(_) | Failed::Corrupt))
        {
            tracing::warn!(node = %self.node.nid(), peer = %self.dest, error = %why, "self-test RPC failed");
            errors.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    async fn ping(&self) -> Result<(), Failed> {
        let seq = self.st.ping_seq.fetch_add(1, Ordering::Relaxed);
        let (secs, nsecs) = self.node.wall_time();
        let body = |rpyid, _| {
            SrpcBody::PingReqst(PingReqst {
                rpyid,
                magic: PING_MAGIC,
                seq,
                time_sec: secs as u64,
                time_nsec: nsecs as u64,
            })
        };
        let answer = self
            .st
            .rpc
            .call(
                &self.node,
                self.dest,
                Service::Ping,
                self.test.feats,
                Bulk::None,
                body,
            )
            .await?;
        match answer.msg.body {
            SrpcBody::PingReply(r) if (r.magic, r.seq) == (PING_MAGIC, seq) => Ok(()),
            _ => Err(Failed::Corrupt),
        }
    }

    async fn brw(&self, p: BrwParams) -> Result<(), Failed> {
        let st = &self.st;
        let bulk = match p.rw {
            Rw::Read => Bulk::Sink,
            Rw::Write => Bulk::Source(st.patterns.source(p.len_bytes as usize, st.take_error())),
        };
        let body = |rpyid, bulkid| {
            SrpcBody::BrwReqst(BrwReqst {
                rpyid,
                bulkid,
                rw: p.rw as u32,
                len: p.len_bytes,
                flags: p.check as u32,
            })
        };
        let answer = st
            .rpc
            .call(
                &self.node,
                self.dest,
                Service::Brw,
                self.test.feats,
                bulk,
                body,
            )
            .await?;
        match super::rpc::status_of(&answer.msg) {
            0 => {}
            status => return Err(Failed::Remote(status)),
        }
        match answer.bulk {
            Some(data)
                if data.len() != p.len_bytes as usize
                    || !st.patterns.passes(&data, p.check, p.offset_bytes as usize) =>
            {
                Err(Failed::Corrupt)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.test.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why one RPC of a test failed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("the server answered with error {0}")]
    Remote(u32),
    #[error("wrong data")]
    Corrupt,
}
