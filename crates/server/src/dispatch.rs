//! The services of one node and the way of a request to its target (`lustre/target/tgt_handler.c`).

use std::collections::HashMap;
use std::sync::Arc;

use coral_ldlm::EnqueueError;
use coral_lnet::Node;
use coral_ptlrpc::{RequestHandler, ServerRequest, Service, ServiceConfig};
use coral_wire::connect::ConnectFlags2;
use coral_wire::ldlm::{LdlmFlags, LdlmRequest};
use coral_wire::ptlrpc::{MSG_RESENT, Message, PtlrpcBody};
use coral_wire::{Errno, opc, portal};
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};

use crate::nodemap::text::{self, Member};
use crate::target::{
    Admitted, Export, LuTarget, Membership, RecoveryGate, TargetRequest, check_writable,
    wanted_uuid,
};

/// Portals of requests, by service. Cancels have a service of their own: they must never wait behind what waits for them.
const SERVICES: &[(&str, &[u32])] = &[
    ("ldlm_cancel", &[portal::LDLM_CANCEL_REQUEST]),
    ("mgs", &[portal::MGS_REQUEST]),
    (
        "mdt",
        &[
            portal::MDS_REQUEST,
            portal::FLD_REQUEST,
            portal::SEQ_METADATA,
            portal::SEQ_CONTROLLER,
        ],
    ),
    ("mdt_readpage", &[portal::MDS_READPAGE]),
    ("mdt_io", &[portal::MDS_IO]),
    // batches of clients, updates of other MDTs
    ("mdt_out", &[portal::OUT]),
    (
        "ost",
        &[portal::OST_REQUEST, portal::OST_CREATE, portal::SEQ_DATA],
    ),
    ("ost_io", &[portal::OST_IO]),
];

/// `ELDLM_NO_LOCK_DATA`: there is no such lock.
const NO_LOCK_DATA: i32 = 303;

#[derive(Default)]
struct Routes {
    by_uuid: HashMap<String, Arc<LuTarget>>,
    by_cookie: HashMap<u64, (Arc<LuTarget>, Arc<Export>)>,
    /// With so many exports it is looked for those that are gone.
    sweep_at: usize,
}

/// Exports at which it is first looked for those that are gone.
const SWEEP_MIN: usize = 64;

impl Routes {
    /// Forgets exports that are gone, from time to time: a connect costs the same however many clients there are.
    #[expect(
        clippy::disallowed_methods,
        reason = "whether an export stays depends on itself alone"
    )]
    fn sweep(&mut self) {
        if self.by_cookie.len() >= self.sweep_at {
            self.by_cookie.retain(|_, (_, e)| !e.gone());
            self.sweep_at = SWEEP_MIN.max(2 * self.by_cookie.len());
        }
    }
}

struct Dispatcher {
    routes: RwLock<Routes>,
}

/// All services of one node. CONNECT is routed by target uuid, everything else by the export cookie in `pb_handle`.
pub struct ServerNode {
    node: Arc<Node>,
    dispatcher: Arc<Dispatcher>,
    services: Vec<Arc<Service>>,
    membership: Mutex<Arc<Membership>>,
}

impl ServerNode {
    /// Starts the services on all server portals of `node`.
    pub fn start(node: Arc<Node>) -> Arc<ServerNode> {
        let dispatcher = Arc::new(Dispatcher {
            routes: RwLock::default(),
        });
        let start = |(name, portals): &(&str, &[u32])| {
            Service::start(&node, ServiceConfig::new(name, portals), dispatcher.clone())
        };
        let services = SERVICES.iter().map(start).collect();
        Arc::new(ServerNode {
            node,
            dispatcher,
            services,
            membership: Mutex::default(),
        })
    }

    /// Makes a target reachable; clients may connect from now on. Call [`LuTarget::start`] first.
    pub fn add_target(&self, t: Arc<LuTarget>) {
        t.set_membership(self.membership.lock().clone());
        self.dispatcher
            .routes
            .write()
            .by_uuid
            .insert(t.uuid().to_owned(), t);
    }

    /// Nodemaps count from now on, for all targets and their clients, as in `now`.
    pub fn set_nodemaps(&self, now: Membership) {
        let now = Arc::new(now);
        let mut mine = self.membership.lock();
        if *mine != now {
            *mine = now.clone();
            self.targets()
                .iter()
                .for_each(|t| t.set_membership(now.clone()));
        }
    }

    /// The nodemaps that count.
    pub fn nodemaps(&self) -> Arc<Membership> {
        self.membership.lock().clone()
    }

    /// What nodemaps of this server show: theirs, and who is in them.
    pub fn nodemap_params(&self) -> Vec<(String, String)> {
        let now = self.membership.lock().clone();
        let mut members: Vec<(String, Member)> = Vec::new();
        for t in self.targets() {
            for e in t.exports() {
                let Some(map) = e.view().map().map(|m| m.name.clone()) else {
                    continue;
                };
                members.push((
                    map,
                    Member {
                        nid: e.nid().to_string(),
                        uuid: e.uuid.clone(),
                        target: t.name().to_owned(),
                    },
                ));
            }
        }
        members.sort();
        let of = |name: &str| {
            members
                .iter()
                .filter(|(n, _)| n == name)
                .map(|(_, m)| m.clone())
                .collect()
        };
        text::params(&now.maps, of)
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The targets served, by name.
    #[expect(
        clippy::disallowed_methods,
        reason = "the targets are sorted before they are told"
    )]
    pub fn targets(&self) -> Vec<Arc<LuTarget>> {
        let mut all: Vec<_> = self
            .dispatcher
            .routes
            .read()
            .by_uuid
            .values()
            .cloned()
            .collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Stops the services and nothing else: what a killed process leaves behind. Nothing is synced, nobody is told.
    pub async fn stop_services(&self) {
        for s in &self.services {
            s.stop().await;
        }
    }

    /// Stops the services, then every target.
    pub async fn stop(&self) {
        self.stop_services().await;
        for t in self.targets() {
            t.stop().await;
        }
        *self.dispatcher.routes.write() = Routes::default();
    }
}

impl RequestHandler for Dispatcher {
    fn handle(self: Arc<Self>, rq: ServerRequest) -> BoxFuture<'static, ()> {
        match rq.body.opc {
            opc::MDS_CONNECT | opc::OST_CONNECT | opc::MGS_CONNECT => {
                Box::pin(async move { self.connect(rq).await })
            }
            _ => Box::pin(async move { self.request(rq).await }),
        }
    }
}

impl Dispatcher {
    #[expect(
        clippy::disallowed_methods,
        reason = "whether there is one depends on no order"
    )]
    fn any_in_recovery(&self) -> bool {
        let routes = self.routes.read();
        routes.by_uuid.values().any(|t| t.in_recovery())
    }

    async fn connect(&self, rq: ServerRequest) {
        let target = self.routes.read().by_uuid.get(&wanted_uuid(&rq)).cloned();
        let Some(target) = target else {
            return rq.reply(Errno::ENODEV.status(), Message::default()).await;
        };
        match target.connect(&rq).await {
            Ok((exp, msg)) => {
                {
                    let mut routes = self.routes.write();
                    routes.sweep();
                    routes.by_cookie.insert(exp.cookie, (target, exp));
                }
                rq.reply(0, msg).await;
            }
            Err(e) => rq.reply(e.status(), Message::default()).await,
        }
    }

    async fn request(&self, rq: ServerRequest) {
        let found = self.routes.read().by_cookie.get(&rq.body.handle).cloned();
        let Some((target, exp)) = found.filter(|(_, exp)| !exp.gone()) else {
            // A client that leaves an export that is gone has what it wants, unless a target waits for it: the handle may be of
            // before a restart. Lustre always says that it is not connected (`tgt_request_handle`).
            let leaving = matches!(
                rq.body.opc,
                opc::MDS_DISCONNECT | opc::OST_DISCONNECT | opc::MGS_DISCONNECT
            );
            return match leaving && !self.any_in_recovery() {
                true => rq.reply(0, Message::default()).await,
                false => rq.reply_error(Errno::ENOTCONN.status()).await,
            };
        };
        match target.admit(rq, exp) {
            Admitted::New(rq) => match target.gate(rq) {
                RecoveryGate::Pass(rq) => execute(rq).await,
                RecoveryGate::Refuse(rq, e) => rq.fail(e).await,
                RecoveryGate::Wait(rq, turn) => {
                    // What it waits for may be queued behind it.
                    rq.rq.leave_lane();
                    match turn.await {
                        Ok(_turn) => execute(rq).await,
                        Err(_) if rq.exp.gone() => {
                            rq.rq.reply_error(Errno::ENOTCONN.status()).await
                        }
                        Err(_) => {}
                    }
                }
            },
            Admitted::Again(rq, status, msg) => match target.stored().await {
                Ok(()) => rq.reply(status, msg).await,
                Err(e) => rq.reply(Errno::from(e).status(), Message::default()).await,
            },
            Admitted::Dropped => {}
        }
    }
}

/// Executes an admitted request.
async fn execute(rq: TargetRequest) {
    if let Err(e) = check_writable(&rq) {
        return rq.fail(e).await;
    }
    match rq.rq.body.opc {
        opc::OBD_PING => rq.reply_at_once(0, Message::default()).await,
        opc::MDS_DISCONNECT | opc::OST_DISCONNECT | opc::MGS_DISCONNECT => {
            let (target, exp) = (rq.target.clone(), rq.exp.clone());
            target.disconnect(exp).await;
            rq.reply(0, Message::default()).await;
        }
        opc::LDLM_CANCEL => cancel(rq).await,
        opc::LDLM_CONVERT => convert(rq).await,
        opc::LDLM_ENQUEUE => enqueue(rq).await,
        _ => {
            let ops = rq.target.ops().clone();
            ops.handle(rq).await;
        }
    }
}

async fn cancel(rq: TargetRequest) {
    let Ok(dlm) = LdlmRequest::decode(rq.buf(1)) else {
        return rq.fail(Errno::EPROTO).await;
    };
    let (ldlm, exp) = (rq.target.ldlm(), rq.exp.cookie);
    let known = match rq.exp.connect().has2(ConnectFlags2::CORAL) {
        true => ldlm.cancel_but_flocks(exp, dlm.cancels()),
        false => ldlm.cancel(exp, dlm.cancels()),
    };
    let status = if known == 0 {
        Errno::ESTALE.status()
    } else {
        0
    };
    rq.reply_at_once(status, Message::default()).await;
}

async fn convert(rq: TargetRequest) {
    let Ok(dlm) = LdlmRequest::decode(rq.buf(1)) else {
        return rq.fail(Errno::EPROTO).await;
    };
    match rq.target.ldlm().convert(rq.exp.cookie, &dlm) {
        Ok(Some(rep)) => {
            let mut msg = Message::new(&PtlrpcBody::reply(&rq.rq.body, 0));
            msg.push(&rep);
            rq.reply_at_once(0, msg).await;
        }
        Ok(None) => rq.reply_at_once(NO_LOCK_DATA, Message::default()).await,
        Err(e) => rq.reply_at_once(e.status(), Message::default()).await,
    }
}

async fn enqueue(rq: TargetRequest) {
    let Ok(dlm) = LdlmRequest::decode(rq.buf(1)) else {
        return rq.fail(Errno::EPROTO).await;
    };
    let (ldlm, exp) = (rq.target.ldlm().clone(), rq.exp.cookie);
    if !dlm.early_cancels().is_empty() {
        ldlm.cancel(exp, dlm.early_cancels());
    }
    let flags = dlm.flags;
    if flags.contains(LdlmFlags::HAS_INTENT) {
        let ops = rq.target.ops().clone();
        return ops.enqueue(rq).await;
    }
    if flags.contains(LdlmFlags::REPLAY) {
        // It is granted without a look at others' locks: right only while none of them can be used.
        if !rq.target.in_recovery() {
            return rq.fail(Errno::EPROTO).await;
        }
        let done = ldlm.replay(exp, &dlm).map(|rep| (rep, bytes::Bytes::new()));
        return lock_reply(rq, done).await;
    }
    if rq.rq.body.flags & MSG_RESENT != 0
        && let Some(r) = ldlm.resent(exp, dlm.handle(0)).await
    {
        return lock_reply(rq, Ok((r.reply, r.lvb))).await;
    }
    let done = ldlm.enqueue(exp, &dlm).await.map(|r| (r.reply, r.lvb));
    lock_reply(rq, done).await;
}

/// DLM_REP and DLM_LVB.
async fn lock_reply(
    rq: TargetRequest,
    done: Result<(coral_wire::ldlm::LdlmReply, bytes::Bytes), EnqueueError>,
) {
    match done {
        Ok((rep, lvb)) => {
            let mut msg = Message::new(&PtlrpcBody::reply(&rq.rq.body, 0));
            msg.push(&rep).push_bytes(lvb);
            rq.reply(0, msg).await;
        }
        Err(e) => rq.reply(e.status(), Message::default()).await,
    }
}
