//! Our servers under the recorded ones' NID and names, in this process, and the client's node.

use coral_lnet::{MemNet, Node, NodeConfig, PortalHandler, PutEvent, WallClock};
use coral_osd::OsdMem;
use coral_server::mdt::{Mdt, MdtConfig, OstTarget, StripeDefaults};
use coral_server::mgs::Mgs;
use coral_server::ost::Ost;
use coral_server::{ServerNode, register};
use coral_wire::ldlm::LdlmRequest;
use coral_wire::ptlrpc::{Message, PtlrpcBody, portal};
use parking_lot::Mutex;
use std::sync::Arc;

pub const SERVER: &str = "10.77.0.2@tcp";
pub const CLIENT: &str = "10.77.0.3@tcp";
const FSNAME: &str = "lfs";

pub struct Rig {
    server_node: Arc<Node>,
    server: Arc<ServerNode>,
    mdt: Mdt,
    pub client: Arc<Node>,
    pub callbacks: Arc<Callbacks>,
}

async fn node(mem: &Arc<MemNet>, nid: &str, seed: u64) -> Arc<Node> {
    let wall = WallClock { base: (1_795_217_951, 0), at: tokio::time::Instant::now() };
    let cfg = NodeConfig { nids: vec![nid.parse().expect("a NID")], seed, wall: Some(wall), ..NodeConfig::default() };
    Node::start(cfg, Some(mem.clone())).await.expect("node")
}

impl Rig {
    /// MGS, one MDT and two OSTs, as the recorded server had them but for its second MDT.
    pub async fn new() -> Rig {
        let mem = MemNet::new();
        let n = node(&mem, SERVER, 1).await;
        let server = ServerNode::start(n.clone());
        let nid = n.nid();
        server.add_target(Mgs::start(n.clone(), Arc::new(OsdMem::new())).expect("MGS").1);
        let mut cfg = MdtConfig::new(FSNAME, 0);
        // the recorded file system's default
        cfg.defaults = Some(StripeDefaults { stripe_size: 4 << 20, stripe_count: 1 });
        let mdt = Mdt::start(n.clone(), cfg, Arc::new(OsdMem::new())).expect("MDT");
        let mut targets = vec![mdt.target.clone()];
        for i in 0..2 {
            targets.push(Ost::start(n.clone(), FSNAME, i, Arc::new(OsdMem::new())).expect("OST"));
        }
        for t in &targets {
            server.add_target(t.clone());
            register::register(&n, &[nid], FSNAME, t, &[nid], register::Formatting { fresh: true, identity: t.name(), failover: &[] }).await.expect("registered");
        }
        let ost = |index| OstTarget { index, uuid: format!("{FSNAME}-OST{index:04x}_UUID"), nids: vec![nid], active: true };
        mdt.set_osts((0..2).map(ost).collect());
        let client = node(&mem, CLIENT, 2).await;
        let callbacks = Arc::new(Callbacks::default());
        client.serve_portal(portal::LDLM_CB_REQUEST, callbacks.clone());
        Rig { server_node: n, server, mdt, client, callbacks }
    }

    pub async fn stop(self) {
        self.mdt.stop().await;
        self.server.stop().await;
        self.client.shutdown().await;
        self.server_node.shutdown().await;
    }
}

/// A lock callback of ours.
pub struct Callback {
    pub body: PtlrpcBody,
    pub request: LdlmRequest,
}

/// Answers our servers' callbacks at once and keeps them.
#[derive(Default)]
pub struct Callbacks(pub Mutex<Vec<Callback>>);

impl PortalHandler for Callbacks {
    fn on_put(&self, node: &Arc<Node>, ev: PutEvent) {
        let Ok(m) = Message::decode(ev.data.copy_to_bytes()) else { return };
        let (Ok(body), Ok(request)) = (m.body(), LdlmRequest::decode(m.buf(1))) else { return };
        self.0.lock().push(Callback { body, request });
        let reply = Message::new(&PtlrpcBody::reply(&body, 0)).encode();
        let node = node.clone();
        tokio::spawn(async move { node.put(ev.from, portal::LDLM_CB_REPLY, ev.mbits, 0, reply.into(), false).await });
    }
}
