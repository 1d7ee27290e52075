//! Our servers under the recorded ones' NID and names, in this process, and the client's node.

use super::callbacks::Callbacks;
use coral_lnet::{MemNet, Node, NodeConfig, WallClock};
use coral_osd::OsdMem;
use coral_server::mdt::{Mdt, MdtConfig, OstTarget, StripeDefaults};
use coral_server::mgs::Mgs;
use coral_server::ost::Ost;
use coral_server::{ServerNode, Target, register};
use coral_wire::ptlrpc::portal;
use std::sync::Arc;

pub const SERVER: &str = "10.77.0.2@tcp";
pub const CLIENT: &str = "10.77.0.3@tcp";
pub const FSNAME: &str = "lfs";
const OSTS: u32 = 2;

/// What runs on the servers' machine.
struct Up {
    node: Arc<Node>,
    server: Arc<ServerNode>,
    mdt: Mdt,
    targets: Vec<Arc<Target>>,
}

pub struct Rig {
    mem: Arc<MemNet>,
    wall: WallClock,
    /// Of the MGS, the MDT and each OST.
    devices: Vec<Arc<OsdMem>>,
    up: Option<Up>,
    pub client: Arc<Node>,
    pub callbacks: Arc<Callbacks>,
}

async fn node(mem: &Arc<MemNet>, nid: &str, seed: u64, wall: WallClock) -> Arc<Node> {
    let cfg = NodeConfig {
        nids: vec![nid.parse().expect("a NID")],
        seed,
        wall: Some(wall),
        ..NodeConfig::default()
    };
    Node::start(cfg, Some(mem.clone())).await.expect("node")
}

impl Rig {
    /// MGS, one MDT and two OSTs, as the recorded server had them but for its second MDT; the clock stands at `secs`.
    pub async fn new(secs: i64) -> Rig {
        let mem = MemNet::new();
        let wall = WallClock {
            base: (secs, 0),
            at: tokio::time::Instant::now(),
        };
        let devices = (0..2 + OSTS).map(|_| Arc::new(OsdMem::new())).collect();
        let client = node(&mem, CLIENT, 2, wall).await;
        let callbacks = Arc::new(Callbacks::default());
        client.serve_portal(portal::LDLM_CB_REQUEST, callbacks.clone());
        let mut rig = Rig {
            mem,
            wall,
            devices,
            up: None,
            client,
            callbacks,
        };
        rig.start(1).await;
        rig
    }

    async fn start(&mut self, seed: u64) {
        let n = node(&self.mem, SERVER, seed, self.wall).await;
        let server = ServerNode::start(n.clone());
        let nid = n.nid();
        server.add_target(
            Mgs::start(n.clone(), self.devices[0].clone())
                .expect("MGS")
                .1,
        );
        let mut cfg = MdtConfig::new(FSNAME, 0);
        // the recorded file system's default
        cfg.defaults = Some(StripeDefaults {
            stripe_size: 4 << 20,
            stripe_count: 1,
        });
        let mdt = Mdt::start(n.clone(), cfg, self.devices[1].clone()).expect("MDT");
        let mut targets = vec![mdt.target.clone()];
        for i in 0..OSTS {
            targets.push(
                Ost::start(n.clone(), FSNAME, i, self.devices[2 + i as usize].clone())
                    .expect("OST"),
            );
        }
        for t in &targets {
            server.add_target(t.clone());
            let formatting = register::Formatting {
                fresh: seed == 1,
                identity: t.name(),
                failover: &[],
            };
            register::register(&n, &[nid], FSNAME, t, &[nid], formatting)
                .await
                .expect("registered");
        }
        let ost = |index| OstTarget {
            index,
            uuid: format!("{FSNAME}-OST{index:04x}_UUID"),
            nids: vec![nid],
            active: true,
        };
        mdt.set_osts((0..OSTS).map(ost).collect());
        self.up = Some(Up {
            node: n,
            server,
            mdt,
            targets,
        });
    }

    /// The servers' machine loses power and is started again on its devices: what was not synced is gone.
    pub async fn restart(&mut self) {
        let up = self.up.take().expect("running");
        up.node.shutdown().await;
        drop(up);
        for d in &mut self.devices {
            *d = Arc::new(d.power_loss());
        }
        self.start(3).await;
    }

    /// The servers' node.
    pub fn server(&self) -> &Arc<Node> {
        &self.up.as_ref().expect("running").node
    }

    /// New files get their objects on these OSTs; on any when there are none.
    pub fn place(&self, osts: &[u32]) {
        let up = self.up.as_ref().expect("running");
        for o in &mut up.mdt.ops.core.lock().osts {
            o.active = osts.is_empty() || osts.contains(&o.index);
        }
    }

    /// The target a client of the recorded servers calls `uuid`, or the one that stands for it.
    pub fn target(&self, uuid: &str) -> Option<&Arc<Target>> {
        let targets = &self.up.as_ref().expect("running").targets;
        targets
            .iter()
            .find(|t| t.uuid() == uuid)
            .or_else(|| targets.first().filter(|_| uuid.contains("-MDT")))
    }

    pub async fn stop(mut self) {
        let up = self.up.take().expect("running");
        up.mdt.stop().await;
        up.server.stop().await;
        self.client.shutdown().await;
        up.node.shutdown().await;
    }
}
