//! LNet self-test, speaking the kernel module's protocol (`lnet/selftest`): nodes that serve it and run its tests, and the
//! [`console`] that drives them. Either side may be a kernel.
//!
//! [`Selftest::serve`] makes a node take part. What a console asks of it is in `framework` (sessions, batches, tests,
//! counters: plain state), how a test runs in `test`, how requests are answered in `service`, RPCs of our own in `rpc`.
//!
//! # Invariants
//! - A node has one session at most; what runs belongs to it, and stops with it.
//! - Units (client loops) and RPCs in service are bounded ([`MAX_UNITS`], [`MAX_SERVED`]).
//!
//! # Left out
//! Peers of the other byte order; the `join` service (kernel nodes have none either); `LST_FEATURES` other than 0 and 1.

mod brw;
pub mod console;
mod framework;
pub mod nids;
pub mod quick;
mod rpc;
mod service;
mod test;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use coral_wire::srpc::SrpcType;
use parking_lot::Mutex;

pub use brw::{BrwParams, Check, Rw};
pub use rpc::{RPC_TIMEOUT, RpcError};
pub use test::TestParams;

use crate::Node;
use brw::Patterns;
use framework::Framework;
use rpc::RpcClient;

/// Requests to test services (`SRPC_REQUEST_PORTAL`).
pub const TEST_PORTAL: u32 = 50;
/// Requests to the framework (`SRPC_FRAMEWORK_REQUEST_PORTAL`).
pub const FRAMEWORK_PORTAL: u32 = 51;
/// Replies and bulk (`SRPC_RDMA_PORTAL`).
pub const RDMA_PORTAL: u32 = 52;
/// Feature: bulk lengths in bytes and offsets (`LST_FEAT_BULK_LEN`).
pub const FEAT_BULK_LEN: u32 = 1;
/// All features we know (`LST_FEATS_MASK`).
pub const FEATS_MASK: u32 = FEAT_BULK_LEN;
/// Bytes of a session's or group's name, its final NUL included (`LST_NAME_SIZE`).
pub const NAME_SIZE: usize = 32;
/// Highest concurrency of a test (`LST_MAX_CONCUR`).
pub const MAX_CONCURRENCY: u32 = 1024;
/// Destinations of one test on one client: what one page of the kernel's list holds (`SFW_ID_PER_PAGE`). The kernel takes
/// more, but loses the last of each further page.
pub const MAX_DESTINATIONS: u32 = 341;
/// Client loops of one session on one node.
pub const MAX_UNITS: usize = 65_536;
/// Requests a node serves at once; more are dropped, and counted.
pub const MAX_SERVED: usize = 4096;

/// Services, by the match bits of their requests (`enum srpc_service_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Debug = 0,
    MakeSession = 1,
    RemoveSession = 2,
    Batch = 3,
    Test = 4,
    Stat = 5,
    Brw = 11,
    Ping = 12,
}

impl Service {
    const ALL: [Service; 8] = [
        Service::Debug,
        Service::MakeSession,
        Service::RemoveSession,
        Service::Batch,
        Service::Test,
        Service::Stat,
        Service::Brw,
        Service::Ping,
    ];

    pub(crate) fn from_mbits(mbits: u64) -> Option<Service> {
        Service::ALL.into_iter().find(|s| *s as u64 == mbits)
    }

    pub(crate) fn is_framework(self) -> bool {
        (self as u32) < 10
    }

    pub(crate) fn request(self) -> SrpcType {
        match self {
            Service::Debug => SrpcType::DEBUG_REQST,
            Service::MakeSession => SrpcType::MKSN_REQST,
            Service::RemoveSession => SrpcType::RMSN_REQST,
            Service::Batch => SrpcType::BATCH_REQST,
            Service::Test => SrpcType::TEST_REQST,
            Service::Stat => SrpcType::STAT_REQST,
            Service::Brw => SrpcType::BRW_REQST,
            Service::Ping => SrpcType::PING_REQST,
        }
    }
}

/// A node's part in self-tests.
pub struct Selftest {
    pub(crate) rpc: RpcClient,
    pub(crate) patterns: Patterns,
    pub(crate) framework: Mutex<Framework>,
    /// Requests being served.
    serving: AtomicU32,
    /// Somebody watches the session's timeout.
    watched: AtomicBool,
    /// Bulks that are still to be sent with wrong data (`brw_inject_errors`).
    inject: AtomicU32,
    /// Sequence of the ping test.
    pub(crate) ping_seq: AtomicU32,
    me: Weak<Selftest>,
}

impl std::fmt::Debug for Selftest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Selftest")
    }
}

impl Selftest {
    /// Makes `node` serve self-tests. A second call for the same node replaces the first.
    pub fn serve(node: &Arc<Node>) -> Arc<Selftest> {
        let me = Arc::new_cyclic(|me| Selftest {
            rpc: RpcClient::new(node.wall_time().0 as u64),
            patterns: Patterns::new(),
            framework: Mutex::new(Framework::new(node)),
            serving: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            inject: AtomicU32::new(0),
            ping_seq: AtomicU32::new(0),
            me: me.clone(),
        });
        node.serve_portal(TEST_PORTAL, me.clone());
        node.serve_portal(FRAMEWORK_PORTAL, me.clone());
        me
    }

    /// Ends the session, if there is one, and stops serving.
    pub fn stop(&self, node: &Arc<Node>) {
        node.unserve_portal(TEST_PORTAL);
        node.unserve_portal(FRAMEWORK_PORTAL);
        self.framework.lock().end_session();
    }

    /// The next `count` bulks this node sends are wrong, so that checks have something to find.
    pub fn inject_errors(&self, count: u32) {
        self.inject.store(count, Ordering::Relaxed);
    }

    /// Whether the bulk about to be sent has to be wrong.
    pub(crate) fn take_error(&self) -> bool {
        self.inject.load(Ordering::Relaxed) > 0
            && self
                .inject
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok()
    }
}
