//! A server that can only do locks, and clients of it, on one in-process network.
#![allow(dead_code)]

use bytes::Bytes;
use coral_ldlm::*;
use coral_lnet::{LinkModel, MemNet, Node, NodeConfig};
use coral_ptlrpc::{
    Import, ImportConfig, ImportObserver, Request, RequestHandler, RpcError, ServerRequest,
    Service, ServiceConfig,
};
use coral_wire::connect::{ConnectFlags, ObdConnectData};
use coral_wire::errno::Errno;
use coral_wire::ldlm::*;
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::{
    MSG_CONNECT_RECOVERING, MSG_CONNECT_REPLAYABLE, MSG_LOCK_REPLAY_DONE, Message, PtlrpcBody, opc,
    portal,
};
use coral_wire::{DecodeError, Wire};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub const PR: LdlmMode = LdlmMode::PR;
pub const PW: LdlmMode = LdlmMode::PW;
pub const EX: LdlmMode = LdlmMode::EX;
pub const FILE: ResId = ResId([0x200000402, 5, 0, 0]);
pub const OBJECT: ResId = ResId([77, 0, 0, 0]);
pub const FLOCK: ResId = ResId([0x200000402, 5, 0, 12]);
pub const NO_FLAGS: LdlmFlags = LdlmFlags(0);
/// Between an intent's lock and its reply.
pub const INTENT: Duration = Duration::from_millis(5);

pub fn bits(b: u64) -> Policy {
    Policy::ibits(Ibits(b))
}

pub fn range(start: u64, end: u64, owner: u64) -> Policy {
    Policy::Flock {
        start,
        end,
        owner,
        pid: owner as u32,
    }
}

/// Export table of the server.
#[derive(Default)]
pub struct Exports {
    pub peers: Mutex<BTreeMap<ExportId, AstPeer>>,
    pub evicted: Mutex<Vec<(ExportId, EvictReason)>>,
    /// Callbacks by opcode, as (export, request).
    pub log: Mutex<Vec<(ExportId, &'static str, LockInfo, LdlmFlags)>>,
    /// Locks of which clients say that they have none such when a glimpse names them.
    pub unknown: Mutex<Vec<u64>>,
    /// Clients answer for the object.
    pub whole: std::sync::atomic::AtomicBool,
}

/// Notes every callback, then sends it.
struct Noted {
    exports: Arc<Exports>,
    real: Arc<PtlrpcAsts<Peers>>,
}

struct Peers(Arc<Exports>);

impl AstPeers for Peers {
    fn peer(&self, exp: ExportId) -> Option<AstPeer> {
        self.0.peers.lock().get(&exp).copied()
    }
    fn evict(&self, exp: ExportId, why: EvictReason) {
        self.0.peers.lock().remove(&exp);
        self.0.evicted.lock().push((exp, why));
    }
}

impl AstSender for Noted {
    fn blocking(
        &self,
        exp: ExportId,
        lock: &LockInfo,
        by: &LockDesc,
    ) -> BoxFuture<'static, Result<(), AstError>> {
        self.exports
            .log
            .lock()
            .push((exp, "BL", lock.clone(), lock.flags));
        self.real.blocking(exp, lock, by)
    }
    fn completion(
        &self,
        exp: ExportId,
        lock: &LockInfo,
        flags: LdlmFlags,
        lvb: Bytes,
    ) -> BoxFuture<'static, Result<(), AstError>> {
        self.exports
            .log
            .lock()
            .push((exp, "CP", lock.clone(), flags));
        self.real.completion(exp, lock, flags, lvb)
    }
    fn glimpse(
        &self,
        exp: ExportId,
        lock: &LockInfo,
    ) -> BoxFuture<'static, Result<Bytes, AstError>> {
        self.exports
            .log
            .lock()
            .push((exp, "GL", lock.clone(), NO_FLAGS));
        if self.exports.unknown.lock().contains(&lock.cookie) {
            return Box::pin(async { Err(AstError::NoLock) });
        }
        self.real.glimpse(exp, lock)
    }
    fn answers_for_objects(&self, _exp: ExportId) -> bool {
        self.exports
            .whole
            .load(std::sync::atomic::Ordering::Relaxed)
    }
    fn nid(&self, exp: ExportId) -> Option<coral_lnet::Nid> {
        self.real.nid(exp)
    }
    fn evict(&self, exp: ExportId, why: EvictReason) {
        self.real.evict(exp, why)
    }
}

/// Stored size of every object.
#[derive(Default)]
pub struct Sizes {
    pub bytes: AtomicU64,
    /// Happens once, between the next look at the size and the answer.
    pub meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl LvbOps for Sizes {
    fn lvb(&self, _res: ResId) -> BoxFuture<'static, OstLvb> {
        let lvb = OstLvb {
            size: self.bytes.load(Ordering::Relaxed),
            ..OstLvb::default()
        };
        let meanwhile = self.meanwhile.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        Box::pin(async move { lvb })
    }
    fn update(&self, _res: ResId, _lvb: &OstLvb) {}
}

pub struct Server {
    pub node: Arc<Node>,
    pub ldlm: Arc<LdlmServer>,
    pub exports: Arc<Exports>,
    pub sizes: Arc<Sizes>,
    service: Mutex<Option<Arc<Service>>>,
    /// After a restart, until the clients' last replay ping.
    recovering: AtomicBool,
    pings_due: AtomicU64,
}

impl Server {
    /// Callbacks sent since the last call: (client's number, kind).
    pub fn callbacks(&self) -> Vec<&'static str> {
        self.exports
            .log
            .lock()
            .drain(..)
            .map(|(_, kind, ..)| kind)
            .collect()
    }

    fn connect(&self, rq: &ServerRequest) -> Result<Message, DecodeError> {
        let handle = u64::from_le_bytes(rq.msg.buf(3)[..8].try_into().unwrap());
        let data: ObdConnectData = rq.msg.get(4)?;
        let exp = self.node.next_cookie();
        self.exports.peers.lock().insert(
            exp,
            AstPeer {
                nid: rq.from,
                client_handle: handle,
                conn_cnt: rq.body.conn_cnt,
            },
        );
        let recovering = if self.recovering.load(Ordering::Relaxed) {
            MSG_CONNECT_RECOVERING
        } else {
            0
        };
        let body = PtlrpcBody {
            handle: exp,
            op_flags: MSG_CONNECT_REPLAYABLE | recovering,
            ..Default::default()
        };
        let mut m = Message::new(&body);
        m.push(&data);
        Ok(m)
    }

    async fn enqueue(&self, exp: ExportId, rq: &ServerRequest) -> (i32, Message) {
        let mut m = Message::new(&PtlrpcBody::default());
        let Ok(dlm) = LdlmRequest::decode(rq.msg.buf(1)) else {
            return (Errno::EPROTO.status(), m);
        };
        self.ldlm.cancel(exp, dlm.early_cancels());
        let done = if dlm.flags.contains(LdlmFlags::REPLAY) {
            self.ldlm.replay(exp, &dlm).map(|r| (0, r, Bytes::new()))
        } else if !rq.msg.buf(2).is_empty() {
            self.intent(exp, &dlm).await
        } else if dlm.flags.contains(LdlmFlags::HAS_INTENT) {
            self.ldlm
                .glimpse(exp, &dlm)
                .await
                .map(|g| (g.status, g.reply, g.lvb.to_bytes()))
        } else {
            self.ldlm
                .enqueue(exp, &dlm)
                .await
                .map(|e| (0, e.reply, e.lvb))
        };
        match done {
            Ok((status, reply, lvb)) => {
                m.push(&reply).push_bytes(lvb);
                (status, m)
            }
            Err(e) => (e.status(), m),
        }
    }

    /// The lock is granted, others may ask for it, and some time later the reply goes.
    async fn intent(
        self: &Server,
        exp: ExportId,
        dlm: &LdlmRequest,
    ) -> Result<(i32, LdlmReply, Bytes), EnqueueError> {
        let (desc, cookie) = (&dlm.desc, dlm.handle(0));
        let (res, ty, mode, policy) = (desc.res(), desc.ty(), desc.req_mode, desc.policy());
        let given = self.ldlm.grant(exp, cookie, res, ty, mode, policy).await?;
        tokio::time::sleep(INTENT).await;
        let reply = self.ldlm.reply_for(given.0);
        Ok((0, reply.ok_or(EnqueueError::Aborted)?, Bytes::new()))
    }
}

impl RequestHandler for Server {
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let exp = rq.body.handle;
            let empty = Message::new(&PtlrpcBody::default());
            let (status, msg) = match rq.body.opc {
                opc::MDS_CONNECT | opc::OST_CONNECT => (0, self.connect(&rq).unwrap()),
                _ if !self.exports.peers.lock().contains_key(&exp) => {
                    (Errno::ENOTCONN.status(), empty)
                }
                opc::LDLM_ENQUEUE => self.enqueue(exp, &rq).await,
                opc::LDLM_CANCEL => {
                    let dlm = LdlmRequest::decode(rq.msg.buf(1)).unwrap();
                    let known = self.ldlm.cancel_but_flocks(exp, dlm.cancels());
                    (
                        if known == 0 {
                            Errno::ESTALE.status()
                        } else {
                            0
                        },
                        empty,
                    )
                }
                opc::OBD_PING if rq.body.flags & MSG_LOCK_REPLAY_DONE != 0 => {
                    self.pings_due.fetch_sub(1, Ordering::Relaxed);
                    if self.pings_due.load(Ordering::Relaxed) == 0 {
                        self.recovering.store(false, Ordering::Relaxed);
                        self.ldlm.replay_finished();
                    }
                    (0, empty)
                }
                _ => (0, empty),
            };
            rq.reply(status, msg).await;
        })
    }
}

/// What a client's hook saw, and what it answers.
#[derive(Default)]
pub struct Hook {
    pub cancelled: Mutex<Vec<(LockInfo, bool, bool)>>,
    pub blocked: AtomicU64,
    pub size: AtomicU64,
    /// Time a flush takes.
    pub flush: Mutex<Duration>,
}

impl LockHook for Hook {
    fn cancelling(
        &self,
        lock: &LockInfo,
        discard: bool,
        local_only: bool,
    ) -> BoxFuture<'static, ()> {
        self.cancelled
            .lock()
            .push((lock.clone(), discard, local_only));
        let flush = *self.flush.lock();
        Box::pin(async move {
            if !flush.is_zero() && !local_only {
                tokio::time::sleep(flush).await;
            }
        })
    }
    fn blocked(&self, _lock: &LockInfo) {
        self.blocked.fetch_add(1, Ordering::Relaxed);
    }
    fn glimpse(&self, _lock: &LockInfo) -> Option<OstLvb> {
        let size = self.size.load(Ordering::Relaxed);
        (size > 0).then(|| OstLvb {
            size,
            ..OstLvb::default()
        })
    }
}

impl Hook {
    pub fn count(&self) -> usize {
        self.cancelled.lock().len()
    }
}

struct Observer(Weak<ClientNamespace>);

impl ImportObserver for Observer {
    fn on_evicted(&self) -> BoxFuture<'static, ()> {
        let ns = self.0.upgrade();
        Box::pin(async move {
            if let Some(ns) = ns {
                ns.drop_all().await;
            }
        })
    }
    fn replay_locks(&self, _import: Arc<Import>) -> BoxFuture<'static, Result<(), RpcError>> {
        let ns = self.0.upgrade();
        Box::pin(async move {
            match ns {
                Some(ns) => ns.replay_locks().await,
                None => Ok(()),
            }
        })
    }
}

pub struct Client {
    pub node: Arc<Node>,
    pub ldlm: Arc<LdlmClient>,
    pub import: Arc<Import>,
    pub ns: Arc<ClientNamespace>,
    pub hook: Arc<Hook>,
}

impl Client {
    pub async fn ibits(&self, mode: LdlmMode, b: u64) -> Result<LockRef, LockError> {
        self.ns
            .enqueue(FILE, LdlmType::IBITS, mode, bits(b), NO_FLAGS, 0)
            .await
            .map(|(l, _)| l)
    }
    /// As an MDT's client asks, with an operation that the lock is for.
    pub fn intent_rq(&self, mode: LdlmMode, b: u64) -> (PendingLock, Request) {
        let pending = self
            .ns
            .prepare(FILE, LdlmType::IBITS, mode, bits(b), LdlmFlags::HAS_INTENT);
        let rq = Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
            .push_bytes(pending.request().to_bytes())
            .push(&LdlmIntent { opc: it::GETATTR });
        (pending, rq)
    }
    pub async fn intent(&self, mode: LdlmMode, b: u64) -> Option<LockRef> {
        let (pending, rq) = self.intent_rq(mode, b);
        let (reply, pending) = self.ns.intent(rq, pending).await.ok()?;
        let rep = reply.msg.get::<LdlmReply>(1).ok()?;
        self.ns.finish(pending, &rep, reply.status)
    }
    pub async fn extent(
        &self,
        mode: LdlmMode,
        start: u64,
        end: u64,
    ) -> Result<(LockRef, OstLvb), LockError> {
        let (l, lvb) = self
            .ns
            .enqueue(
                OBJECT,
                LdlmType::EXTENT,
                mode,
                Policy::extent(start, end),
                NO_FLAGS,
                56,
            )
            .await?;
        Ok((l, OstLvb::decode(&lvb).unwrap()))
    }
    pub async fn setlk(&self, mode: LdlmMode, policy: Policy, wait: bool) -> Result<(), LockError> {
        self.ns
            .flock(FLOCK, mode, policy, FlockOp::Lock { wait })
            .await
            .map(|_| ())
    }
    pub async fn unlock(&self, policy: Policy) {
        self.ns
            .flock(FLOCK, LdlmMode::NL, policy, FlockOp::Unlock)
            .await
            .unwrap();
    }
}

pub struct Bed {
    pub net: Arc<MemNet>,
    pub server: Arc<Server>,
    pub clients: Vec<Client>,
}

async fn node(net: &Arc<MemNet>, n: u32) -> Arc<Node> {
    let cfg = NodeConfig::in_memory(format!("{n}@lo").parse().unwrap(), n as u64);
    Node::start(cfg, Some(net.clone())).await.unwrap()
}

impl Bed {
    pub async fn new(clients: usize) -> Bed {
        Bed::with(clients, ClientConfig::default()).await
    }

    pub async fn with(clients: usize, cfg: ClientConfig) -> Bed {
        let net = MemNet::new();
        let server = start_server(&net).await;
        let mut bed = Bed {
            net,
            server,
            clients: Vec::new(),
        };
        for n in 0..clients {
            bed.add_client(n as u32 + 2, cfg.clone()).await;
        }
        bed
    }

    async fn add_client(&mut self, n: u32, cfg: ClientConfig) {
        let node = node(&self.net, n).await;
        let ldlm = LdlmClient::new(&node);
        let data = ObdConnectData {
            connect_flags: ConnectFlags::FULL20 | ConnectFlags::VERSION,
            version: 0x0211_3900,
            ..ObdConnectData::default()
        };
        let icfg = ImportConfig::mdt(
            "coral-MDT0000_UUID",
            vec![self.server.node.nid()],
            &format!("client-{n}"),
            data,
        );
        let import = Import::new(node.clone(), icfg);
        let ns = ldlm.namespace_with(import.clone(), cfg);
        let hook = Arc::new(Hook::default());
        ns.set_hook(hook.clone());
        import.set_observer(Arc::new(Observer(Arc::downgrade(&ns))));
        import.connect().await.unwrap();
        self.clients.push(Client {
            node,
            ldlm,
            import,
            ns,
            hook,
        });
    }

    /// Granted locks of the server and of all clients agree: same cookies, modes and policies.
    pub fn check_agreement(&self) {
        let server = self.server.ldlm.locks();
        for c in &self.clients {
            for l in
                c.ns.locks()
                    .into_iter()
                    .filter(|l| l.granted_mode != LdlmMode::NONE && l.remote_cookie != 0)
            {
                let s = server
                    .iter()
                    .find(|s| s.cookie == l.remote_cookie)
                    .unwrap_or_else(|| panic!("server has no {l:?}"));
                assert_eq!(
                    (s.granted_mode, s.policy, s.res),
                    (l.granted_mode, l.policy, l.res)
                );
            }
        }
    }
}

/// Clients that are 20 ms away from the server.
pub async fn far(clients: usize) -> Bed {
    let bed = Bed::new(clients).await;
    let model = LinkModel {
        delay: Duration::from_millis(20),
        ..LinkModel::default()
    };
    for c in &bed.clients {
        bed.net
            .set_link(c.node.nid(), bed.server.node.nid(), model, 1);
    }
    bed
}

impl Bed {
    /// The server dies and comes back without memory; clients are to replay.
    pub async fn restart_server(&mut self) {
        let old = self.server.service.lock().take();
        if let Some(s) = old {
            s.stop().await;
        }
        self.server = serve(self.server.node.clone(), self.clients.len() as u64);
    }
}

async fn start_server(net: &Arc<MemNet>) -> Arc<Server> {
    serve(node(net, 1).await, 0)
}

/// `clients`: how many must replay first.
fn serve(node: Arc<Node>, clients: u64) -> Arc<Server> {
    let exports = Arc::new(Exports::default());
    let real = PtlrpcAsts::new(node.clone(), Peers(exports.clone()));
    let ldlm = LdlmServer::new(
        "test",
        node.clone(),
        Arc::new(Noted {
            exports: exports.clone(),
            real,
        }),
    );
    let sizes = Arc::new(Sizes::default());
    ldlm.set_lvb_ops(sizes.clone());
    if clients > 0 {
        ldlm.begin_replay();
    }
    let server = Arc::new(Server {
        node: node.clone(),
        ldlm,
        exports,
        sizes,
        service: Mutex::new(None),
        recovering: AtomicBool::new(clients > 0),
        pings_due: AtomicU64::new(clients),
    });
    let portals = [portal::MDS_REQUEST, portal::LDLM_CANCEL_REQUEST];
    let service = Service::start(&node, ServiceConfig::new("locks", &portals), server.clone());
    *server.service.lock() = Some(service);
    server
}
