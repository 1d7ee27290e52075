//! A small server for the import's tests: one target, exports, reply data, recovery; everything in memory, nothing of
//! coral-server. What it executed is in a log that outlives a restart.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coral_buffers::Payload;
use coral_lnet::{FaultAction, FaultRule, MemNet, MsgType, Nid, Node, NodeConfig};
use coral_ptlrpc::{Import, ImportConfig, RequestHandler, ServerRequest, Service, ServiceConfig};
use coral_wire::connect::{ConnectFlags, ConnectFlags2, ObdConnectData};
use coral_wire::errno::Errno;
use coral_wire::ptlrpc::*;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

/// Opcode that adds its argument (u64, buffer 1) to the log; a transaction.
pub const ADD: u32 = opc::MDS_REINT;
/// Opcode that returns its argument.
pub const ECHO: u32 = opc::MDS_GETATTR;
/// Opcode that takes as many seconds as its argument says.
pub const SLOW: u32 = opc::MDS_STATFS;
/// Opcode that fetches bulk data; lengths in buffer 1.
pub const WRITE: u32 = opc::OST_WRITE;
/// Opcode that sends bulk data; lengths in buffer 1.
pub const READ: u32 = opc::OST_READ;
/// Bulk portal.
pub const BULK: u32 = portal::OST_BULK;

pub fn nid(s: &str) -> Nid {
    s.parse().unwrap()
}

pub async fn node(mem: &Arc<MemNet>, n: &str, seed: u64) -> Arc<Node> {
    let cfg = NodeConfig::in_memory(nid(n), seed);
    Node::start(cfg, Some(mem.clone())).await.unwrap()
}

/// What survives a restart.
#[derive(Default)]
pub struct Disk {
    /// (transno, value) in the order of execution.
    pub log: Vec<(u64, u64)>,
    pub last_transno: u64,
    /// By client uuid and tag: xid, transno, value.
    pub replies: BTreeMap<(String, u16), (u64, u64)>,
    pub clients: Vec<String>,
}

#[derive(Default)]
struct State {
    /// Cookie by client uuid.
    exports: BTreeMap<String, (u64, u32)>,
    recovering: bool,
    committed: u64,
    in_progress: Vec<u64>,
}

pub struct Mini {
    pub node: Arc<Node>,
    pub disk: Arc<Mutex<Disk>>,
    state: Mutex<State>,
    /// What last_committed lags behind by.
    pub lag: Mutex<u64>,
    /// How often to answer EINPROGRESS.
    pub inprogress: Mutex<u32>,
    pub written: Mutex<Vec<Payload>>,
    /// Whether the bulk data of each READ came to its client.
    pub read: Mutex<Vec<bool>>,
    pub seen: Mutex<Vec<(u32, u64, PtlrpcBody)>>,
    pub flags_extra: Mutex<ConnectFlags>,
    /// Arguments of ADDs that are executed and not answered, once each.
    pub silent: Mutex<Vec<u64>>,
}

pub struct Server {
    pub mini: Arc<Mini>,
    pub services: Vec<Arc<Service>>,
}

impl Server {
    pub fn start(node: &Arc<Node>, disk: &Arc<Mutex<Disk>>) -> Server {
        let recovering = !disk.lock().clients.is_empty();
        let committed = disk.lock().last_transno;
        let mini = Arc::new(Mini {
            node: node.clone(),
            disk: disk.clone(),
            state: Mutex::new(State {
                recovering,
                committed,
                ..Default::default()
            }),
            lag: Mutex::new(0),
            inprogress: Mutex::new(0),
            written: Mutex::default(),
            read: Mutex::default(),
            seen: Mutex::default(),
            flags_extra: Mutex::new(ConnectFlags::empty()),
            silent: Mutex::default(),
        });
        let services = [("mds", portal::MDS_REQUEST), ("ost", portal::OST_IO)].map(|(n, p)| {
            Service::start(
                node,
                ServiceConfig::new(n, &[p]),
                mini.clone() as Arc<dyn RequestHandler>,
            )
        });
        Server {
            mini,
            services: services.into(),
        }
    }

    pub async fn stop(self) {
        for s in &self.services {
            s.stop().await;
        }
    }

    /// Forgets every client, as an eviction does.
    pub fn evict_all(&self) {
        self.mini.state.lock().exports.clear();
        self.mini.disk.lock().clients.clear();
    }
}

fn arg(rq: &ServerRequest) -> u64 {
    rq.msg.get::<u64>(1).unwrap_or(0)
}

fn lens(rq: &ServerRequest) -> Vec<u32> {
    rq.msg
        .buf(1)
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes(c.try_into().unwrap()))
        .collect()
}

/// Deterministic bytes of descriptor `i`.
pub fn pattern(i: usize, len: u32) -> Bytes {
    (0..len)
        .map(|n| (n as usize * 31 + i * 7 + 1) as u8)
        .collect::<Vec<u8>>()
        .into()
}

impl RequestHandler for Mini {
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.seen.lock().push((rq.body.opc, rq.xid, rq.body));
            if matches!(rq.body.opc, opc::MDS_CONNECT | opc::OST_CONNECT) {
                return self.connect(rq).await;
            }
            let known = self
                .state
                .lock()
                .exports
                .values()
                .any(|(c, n)| *c == rq.body.handle && *n == rq.body.conn_cnt);
            if !known {
                return rq.reply_error(Errno::ENOTCONN.status()).await;
            }
            rq.use_reply_mbits();
            self.request(rq).await
        })
    }
}

impl Mini {
    async fn connect(&self, rq: ServerRequest) {
        let uuid = String::from_utf8_lossy(rq.msg.str(2)).into_owned();
        let asked: ObdConnectData = ObdConnectData::decode_any(rq.msg.buf(4)).unwrap();
        let (cookie, op_flags) = {
            let mut st = self.state.lock();
            let mut disk = self.disk.lock();
            match st.exports.get_mut(&uuid) {
                Some(e) => {
                    e.1 = rq.body.conn_cnt;
                    let rec = if st.recovering {
                        MSG_CONNECT_RECOVERING
                    } else {
                        0
                    };
                    (
                        st.exports[&uuid].0,
                        MSG_CONNECT_RECONNECT | MSG_CONNECT_REPLAYABLE | rec,
                    )
                }
                None => {
                    let c = self.node.next_cookie();
                    st.exports.insert(uuid.clone(), (c, rq.body.conn_cnt));
                    let known = disk.clients.contains(&uuid);
                    if !known {
                        disk.clients.push(uuid);
                    }
                    let rec = if known && st.recovering {
                        MSG_CONNECT_RECOVERING | MSG_CONNECT_RECONNECT
                    } else {
                        0
                    };
                    (c, MSG_CONNECT_REPLAYABLE | rec)
                }
            }
        };
        let mut data = asked;
        data.connect_flags |= *self.flags_extra.lock();
        data.maxmodrpcs = 5;
        let body = PtlrpcBody {
            handle: cookie,
            op_flags,
            last_committed: self.state.lock().committed,
            ..Default::default()
        };
        let mut msg = Message::new(&body);
        msg.push(&data);
        rq.reply(0, msg).await
    }

    async fn request(&self, rq: ServerRequest) {
        let body = PtlrpcBody {
            last_committed: self.state.lock().committed,
            ..Default::default()
        };
        let mut msg = Message::new(&body);
        match rq.body.opc {
            opc::OBD_PING if rq.body.flags & MSG_LOCK_REPLAY_DONE != 0 => {
                self.state.lock().recovering = false;
                rq.reply(0, msg).await
            }
            opc::MDS_DISCONNECT | opc::OST_DISCONNECT => {
                let uuid = self
                    .state
                    .lock()
                    .exports
                    .iter()
                    .find(|(_, (c, _))| *c == rq.body.handle)
                    .map(|(u, _)| u.clone());
                if let Some(uuid) = uuid {
                    self.state.lock().exports.remove(&uuid);
                    self.disk.lock().clients.retain(|c| *c != uuid);
                }
                rq.reply(0, msg).await
            }
            ECHO => {
                if std::mem::take(&mut *self.inprogress.lock()) > 0 {
                    return rq.reply(Errno::EINPROGRESS.status(), msg).await;
                }
                msg.push_bytes(rq.msg.buf(1).clone());
                rq.reply(0, msg).await
            }
            SLOW => {
                if self.state.lock().in_progress.contains(&rq.xid) {
                    return;
                }
                self.state.lock().in_progress.push(rq.xid);
                tokio::time::sleep(Duration::from_secs(arg(&rq))).await;
                self.state.lock().in_progress.retain(|x| *x != rq.xid);
                rq.reply(0, msg).await
            }
            ADD => {
                let transno = self.add(&rq);
                let place = self.silent.lock().iter().position(|v| *v == arg(&rq));
                if let Some(i) = place {
                    self.silent.lock().remove(i);
                    return;
                }
                let committed = self.state.lock().committed;
                msg.set_body(&PtlrpcBody {
                    transno,
                    last_committed: committed,
                    ..body
                });
                rq.reply(0, msg).await
            }
            WRITE => match rq.bulk_read_from_client(BULK, &lens(&rq)).await {
                Ok(data) => {
                    *self.written.lock() = data;
                    rq.reply(0, msg).await
                }
                Err(e) => panic!("bulk read: {e}"),
            },
            READ => {
                let data = lens(&rq)
                    .iter()
                    .enumerate()
                    .map(|(i, l)| Payload::from(pattern(i, *l)))
                    .collect();
                let sent = rq.bulk_write_to_client(BULK, data).await;
                self.read.lock().push(sent.is_ok());
                match sent {
                    Ok(()) => rq.reply(0, msg).await,
                    // The client will send again.
                    Err(_) => drop(rq),
                }
            }
            _ => rq.reply(0, msg).await,
        }
    }

    /// Executes an ADD once: by tag and xid it is found again.
    fn add(&self, rq: &ServerRequest) -> u64 {
        let mut st = self.state.lock();
        let mut disk = self.disk.lock();
        let uuid = st
            .exports
            .iter()
            .find(|(_, (c, _))| *c == rq.body.handle)
            .unwrap()
            .0
            .clone();
        let key = (uuid, rq.body.tag);
        if let Some((xid, transno)) = disk.replies.get(&key)
            && *xid == rq.xid
        {
            return *transno;
        }
        let transno = match rq.body.flags & MSG_REPLAY != 0 {
            true => rq.body.transno,
            false => disk.last_transno + 1,
        };
        disk.last_transno = disk.last_transno.max(transno);
        disk.log.push((transno, rq.msg.get::<u64>(1).unwrap()));
        disk.replies.insert(key, (rq.xid, transno));
        st.committed = disk.last_transno.saturating_sub(*self.lag.lock());
        transno
    }
}

pub fn flags() -> ObdConnectData {
    ObdConnectData {
        connect_flags: ConnectFlags::AT
            | ConnectFlags::BULK_MBITS
            | ConnectFlags::MULTIMODRPCS
            | ConnectFlags::FLAGS2
            | ConnectFlags::VERSION,
        connect_flags2: ConnectFlags2::REP_MBITS | ConnectFlags2::INC_XID,
        ..Default::default()
    }
}

pub fn import(node: &Arc<Node>, servers: &[&str]) -> Arc<Import> {
    let cfg = ImportConfig::mdt(
        "t-MDT0000_UUID",
        servers.iter().map(|s| nid(s)).collect(),
        &format!("client-of-{}", node.nid()),
        flags(),
    );
    Import::new(node.clone(), cfg)
}

/// The next `times` PUTs of `node` to `portal` are lost.
pub fn lose(node: &Node, portal: u32, times: u64) {
    node.faults().add(
        FaultRule::all(FaultAction::Drop)
            .portal(portal)
            .kind(MsgType::Put)
            .times(times),
    );
}
