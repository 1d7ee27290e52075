//! A target whose only operation is to append a number to a log, and clients of it, over memlnd.
#![allow(dead_code)]

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use coral_lnet::{FaultAction, FaultRule, MemNet, MsgType, Nid, Node, NodeConfig, WallClock};
use coral_osd::{Batch, Kv, OsdMem, Table};
use coral_ptlrpc::{Import, ImportConfig, Request};
use coral_server::{
    Export, LuTarget, ServerNode, TargetConfig, TargetKind, TargetOps, TargetRequest,
};
use coral_wire::connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
use coral_wire::errno::Errno;
use coral_wire::ptlrpc::*;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

/// Appends its argument (u64, buffer 1) to the log: a transaction.
pub const ADD: u32 = opc::MDS_REINT;
/// A transaction that stores nothing.
pub const OPEN: u32 = opc::MDS_GETATTR_NAME;
/// Takes as many seconds as its argument says, then answers.
pub const SLOW: u32 = opc::MDS_STATFS;
/// An open that is [`ADD`], also when it is replayed though it was committed.
pub const OPEN_ADD: u32 = opc::MDS_GETXATTR;
/// Takes 10 s, then is [`ADD`].
pub const LATE_ADD: u32 = opc::MDS_SETXATTR;

const LOG: Table = Table("test_log");
/// `coral_server::target::LAST_RCVD`.
const LAST_RCVD: Table = Table("last_rcvd");
pub const SERVER: &str = "10.0.0.100@tcp";

pub fn nid(s: &str) -> Nid {
    s.parse().unwrap()
}

#[derive(Default)]
pub struct Log {
    target: OnceLock<Weak<LuTarget>>,
    /// Serializes read-modify-commit.
    core: Mutex<()>,
    pub reconstructed: Mutex<Vec<u64>>,
    pub reopened: Mutex<Vec<u64>>,
    pub gone: Mutex<Vec<(String, bool)>>,
    pub executed_slow: Mutex<u32>,
}

impl Log {
    fn add(&self, rq: &TargetRequest) -> Message {
        if rq.replay_committed() && rq.rq.body.opc != OPEN_ADD {
            return Message::new(&PtlrpcBody {
                transno: rq.rq.body.transno,
                ..PtlrpcBody::default()
            });
        }
        let _serial = self.core.lock();
        let kv = rq.target.kv();
        let next = kv.last(LOG, b"").unwrap().map_or(0, |(k, _)| {
            u64::from_be_bytes(k[..].try_into().unwrap()) + 1
        });
        let mut batch = Batch::new();
        batch.put(LOG, next.to_be_bytes().to_vec(), rq.buf(1).clone());
        let mut msg = Message::new(&PtlrpcBody::default());
        rq.target.commit(rq, batch, &mut msg).unwrap();
        msg
    }
}

impl TargetOps for Log {
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
        Ok(ObdConnectData {
            maxmodrpcs: 8,
            ..*asked
        })
    }

    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match rq.rq.body.opc {
                ADD | OPEN_ADD => {
                    let msg = self.add(&rq);
                    rq.reply(0, msg).await
                }
                LATE_ADD => {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    let msg = self.add(&rq);
                    rq.reply(0, msg).await
                }
                OPEN => {
                    if rq.is_replay() {
                        self.reopened.lock().push(rq.rq.body.transno);
                    }
                    let mut msg = Message::new(&PtlrpcBody::default());
                    // as an MDT, also what was committed
                    rq.target.commit_empty(&rq, &mut msg).unwrap();
                    rq.reply(0, msg).await
                }
                SLOW => {
                    *self.executed_slow.lock() += 1;
                    tokio::time::sleep(Duration::from_secs(rq.rq.msg.get::<u64>(1).unwrap())).await;
                    rq.reply(0, Message::default()).await
                }
                _ => rq.fail(Errno::EOPNOTSUPP).await,
            }
        })
    }

    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(rq.fail(Errno::EOPNOTSUPP))
    }

    fn export_gone(self: Arc<Self>, exp: Arc<Export>, evicted: bool) -> BoxFuture<'static, ()> {
        self.gone.lock().push((exp.uuid.clone(), evicted));
        Box::pin(async {})
    }

    fn reconstruct(&self, _: &Arc<Export>, _: &Message, reply: &mut Message) {
        self.reconstructed
            .lock()
            .push(reply.body().unwrap().transno);
    }
}

/// A running server on a disk.
pub struct Server {
    pub node: Arc<Node>,
    pub sn: Arc<ServerNode>,
    pub target: Arc<LuTarget>,
    pub log: Arc<Log>,
}

pub async fn node(mem: &Arc<MemNet>, n: &str, seed: u64, wall: WallClock) -> Arc<Node> {
    let cfg = NodeConfig {
        wall: Some(wall),
        ..NodeConfig::in_memory(nid(n), seed)
    };
    Node::start(cfg, Some(mem.clone())).await.unwrap()
}

pub struct World {
    pub mem: Arc<MemNet>,
    pub wall: WallClock,
    /// Ping interval of clients: an idle one notices a restart only then, and recovery waits for it.
    pub ping: Duration,
    seed: Mutex<u64>,
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            mem: MemNet::new(),
            wall: WallClock::starting_at(WallClock::SIMULATED_SECS),
            ping: Duration::from_secs(25),
            seed: Mutex::new(seed * 1000),
        }
    }

    fn seed(&self) -> u64 {
        let mut s = self.seed.lock();
        *s += 1;
        *s
    }

    pub async fn server(&self, disk: &OsdMem) -> Server {
        let node = node(&self.mem, SERVER, self.seed(), self.wall).await;
        let sn = ServerNode::start(node.clone());
        let cfg = TargetConfig::new(TargetKind::Mdt, "t-MDT0000", 0);
        let target =
            LuTarget::new(node.clone(), cfg, Arc::new(disk.clone()) as Arc<dyn Kv>).unwrap();
        let log = Arc::new(Log::default());
        let _ = log.target.set(Arc::downgrade(&target));
        target.start(log.clone());
        sn.add_target(target.clone());
        Server {
            node,
            sn,
            target,
            log,
        }
    }

    pub async fn client(&self, n: &str) -> Arc<Import> {
        let node = node(&self.mem, n, self.seed(), self.wall).await;
        self.client_on(node, &format!("client-{n}"))
    }

    /// One of many on a node.
    pub fn client_on(&self, node: Arc<Node>, uuid: &str) -> Arc<Import> {
        let data = ObdConnectData {
            connect_flags: ConnectFlags::AT
                | ConnectFlags::BULK_MBITS
                | ConnectFlags::MULTIMODRPCS
                | ConnectFlags::FLAGS2,
            connect_flags2: ConnectFlags2::REP_MBITS,
            ..Default::default()
        };
        let cfg = ImportConfig::mdt("t-MDT0000_UUID", vec![nid(SERVER)], uuid, data);
        Import::new(
            node,
            ImportConfig {
                ping_interval: self.ping,
                ..cfg
            },
        )
    }
}

impl Server {
    /// As kill -9: nothing is synced, nobody is told.
    pub async fn kill(self) {
        self.node.shutdown().await;
        self.sn.stop_services().await;
    }

    /// As `umount` of a target.
    pub async fn stop(self) {
        self.sn.stop().await;
        self.node.shutdown().await;
    }
}

pub fn add(v: u64) -> Request {
    Request::new(portal::MDS_REQUEST, ADD).push(&v).replayable()
}

pub fn open_add(v: u64) -> Request {
    Request::new(portal::MDS_REQUEST, OPEN_ADD)
        .push(&v)
        .replayable_open()
}

pub fn late_add(v: u64) -> Request {
    Request::new(portal::MDS_REQUEST, LATE_ADD).push(&v)
}

pub fn slow(secs: u64) -> Request {
    Request::new(portal::MDS_REQUEST, SLOW).push(&secs)
}

pub fn open() -> Request {
    Request::new(portal::MDS_REQUEST, OPEN).replayable_open()
}

/// What the log on `disk` holds, in order.
pub fn log_of(disk: &OsdMem) -> Vec<u64> {
    let all = disk.range(LOG, b"", None, usize::MAX).unwrap();
    all.iter()
        .map(|(_, v)| u64::from_le_bytes(v[..8].try_into().unwrap()))
        .collect()
}

/// How many clients and stored replies the target on `disk` remembers.
pub fn remembered(disk: &OsdMem) -> usize {
    let rows = |from: &[u8], to: &[u8]| {
        disk.range(LAST_RCVD, from, Some(to), usize::MAX)
            .unwrap()
            .len()
    };
    rows(b"c", b"d") + rows(b"r", b"s")
}

/// A share of the PUTs of `node` to `portal` is lost, at most `times`.
pub fn lose(node: &Node, portal: u32, rate: f64, times: Option<u64>) {
    let rule = FaultRule {
        times,
        ..FaultRule::all(FaultAction::Drop)
            .portal(portal)
            .kind(MsgType::Put)
            .share(rate)
    };
    node.faults().add(rule);
}
