//! Our servers under the recorded ones' NID and names, in this process, and the client's node.

use super::callbacks::Callbacks;
use coral_lnet::{MemNet, Node, NodeConfig, WallClock};
use coral_node::backend::simulated_label;
use coral_node::{Servers, ServersConfig, TargetSpec};
use coral_osd::{OsdMem, TargetKind};
use coral_server::LuTarget;
use coral_server::mdt::{Mdt, StripeDefaults};
use coral_wire::ptlrpc::portal;
use std::sync::Arc;

pub const SERVER: &str = "10.77.0.2@tcp";
pub const CLIENT: &str = "10.77.0.3@tcp";
pub const FSNAME: &str = "lfs";
const OSTS: u32 = 2;

pub struct Rig {
    mem: Arc<MemNet>,
    wall: WallClock,
    /// Of the MGS, the MDT and each OST.
    devices: Vec<OsdMem>,
    up: Option<Servers>,
    pub client: Arc<Node>,
    pub callbacks: Arc<Callbacks>,
}

async fn node(mem: &Arc<MemNet>, nid: &str, seed: u64, wall: WallClock) -> Arc<Node> {
    let cfg = NodeConfig {
        wall: Some(wall),
        ..NodeConfig::in_memory(nid.parse().expect("a NID"), seed)
    };
    Node::start(cfg, Some(mem.clone())).await.expect("node")
}

impl Rig {
    /// MGS, one MDT and two OSTs, as the recorded server had them but for its second MDT; the clock stands at `secs`.
    pub async fn new(secs: i64) -> Rig {
        let mem = MemNet::new();
        let wall = WallClock::starting_at(secs);
        let devices = (0..2 + OSTS).map(|_| OsdMem::new()).collect();
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
        let osts = (0..OSTS).map(|i| (TargetKind::Ost, i));
        let all = [(TargetKind::Mgs, 0), (TargetKind::Mdt, 0)];
        let spec = |((kind, index), device): (_, &OsdMem)| {
            TargetSpec::memory(simulated_label(kind, FSNAME, index, &[]), device)
        };
        let config = ServersConfig {
            targets: (all.into_iter().chain(osts))
                .zip(&self.devices)
                .map(spec)
                .collect(),
            // the recorded file system's default
            default_stripes: Some(StripeDefaults {
                stripe_size: 4 << 20,
                stripe_count: 1,
            }),
            ..ServersConfig::default()
        };
        self.up = Some(Servers::start(n, config).await.expect("servers"));
    }

    /// The servers' machine loses power and is started again on its devices: what was not synced is gone.
    pub async fn restart(&mut self) {
        self.up.take().expect("running").kill().await;
        for d in &mut self.devices {
            *d = d.power_loss();
        }
        self.start(3).await;
    }

    /// The servers' node.
    pub fn server(&self) -> &Arc<Node> {
        self.up().node()
    }

    fn up(&self) -> &Servers {
        self.up.as_ref().expect("running")
    }

    fn mdt(&self) -> &Mdt {
        &self.up().mdts()[0]
    }

    /// New files get their objects on these OSTs; on any when there are none.
    pub fn place(&self, osts: &[u32]) {
        for o in &mut self.mdt().ops.core.write().osts {
            o.active = osts.is_empty() || osts.contains(&o.index);
        }
    }

    /// The target a client of the recorded servers calls `uuid`, or the one that stands for it.
    pub fn target(&self, uuid: &str) -> Option<&Arc<LuTarget>> {
        let of_files = |t: &&Arc<LuTarget>| t.config().kind != coral_server::TargetKind::Mgs;
        self.up()
            .targets()
            .filter(of_files)
            .find(|t| t.uuid() == uuid)
            .or_else(|| uuid.contains("-MDT").then_some(&self.mdt().target))
    }

    pub async fn stop(self) {
        self.up().stop().await;
        self.client.shutdown().await;
    }
}
