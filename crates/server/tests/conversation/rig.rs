//! Our servers under the recorded ones' NID and names, in this process, and the client's node.

use super::callbacks::Callbacks;
use bytes::Bytes;
use coral_lnet::{MemNet, Node, NodeConfig, WallClock};
use coral_node::backend::simulated_label;
use coral_node::{Servers, ServersConfig, TargetSpec};
use coral_osd::{OsdMem, TargetKind};
use coral_ptlrpc::{Import, ImportConfig, Request};
use coral_server::LuTarget;
use coral_server::mdt::StripeDefaults;
use coral_wire::ObdConnectData;
use coral_wire::connect::{ConnectFlags as F, release};
use coral_wire::fld::{LuSeqRange, SEQ_ALLOC_META};
use coral_wire::ptlrpc::{opc, portal};
use std::sync::Arc;

pub const SERVER: &str = "10.77.0.2@tcp";
pub const CLIENT: &str = "10.77.0.3@tcp";
pub const FSNAME: &str = "lfs";
const MDTS: u32 = 2;
const OSTS: u32 = 2;
/// So many sequences the recorded client of `contend.talk` and others had of the second MDT.
const SEQUENCES: u32 = 4;
/// The client that had them.
const EARLIER: &str = "7d1f8a52-0f0e-4c61-9d57-1a2b3c4d5e70";

pub struct Rig {
    mem: Arc<MemNet>,
    wall: WallClock,
    /// Of the MGS, each MDT and each OST.
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
    /// MGS, two MDTs and two OSTs, as the recorded server had them; the clock stands at `secs`.
    pub async fn new(secs: i64) -> Rig {
        let mem = MemNet::new();
        let wall = WallClock::starting_at(secs);
        let devices = (0..1 + MDTS + OSTS).map(|_| OsdMem::new()).collect();
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

    /// The second MDT has given clients sequences before the recording.
    pub async fn give_sequences(&self) {
        let data = ObdConnectData {
            connect_flags: F(F::VERSION.0 | F::FULL20.0 | F::FID.0),
            version: release(2, 17, 57, 0),
            ..ObdConnectData::default()
        };
        let nids = vec![SERVER.parse().expect("a NID")];
        let import = Import::new(
            self.client.clone(),
            ImportConfig::mdt("lfs-MDT0001_UUID", nids, EARLIER, data),
        );
        import.connect().await.expect("an earlier client connects");
        for _ in 0..SEQUENCES {
            let rq = Request::new(portal::SEQ_METADATA, opc::SEQ_QUERY)
                .push_bytes(Bytes::copy_from_slice(&SEQ_ALLOC_META.to_le_bytes()))
                .push(&LuSeqRange::default());
            let reply = import.call(rq).await.expect("a sequence");
            assert_eq!(reply.status, 0, "an earlier client's sequence");
        }
        import.disconnect().await;
    }

    async fn start(&mut self, seed: u64) {
        let n = node(&self.mem, SERVER, seed, self.wall).await;
        let osts = (0..OSTS).map(|i| (TargetKind::Ost, i));
        let mdts = (0..MDTS).map(|i| (TargetKind::Mdt, i));
        let all = [(TargetKind::Mgs, 0)].into_iter().chain(mdts);
        let spec = |((kind, index), device): (_, &OsdMem)| {
            TargetSpec::memory(simulated_label(kind, FSNAME, index, &[]), device)
        };
        let config = ServersConfig {
            targets: (all.chain(osts)).zip(&self.devices).map(spec).collect(),
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

    /// New files get their objects on these OSTs; on any when there are none.
    pub fn place(&self, osts: &[u32]) {
        for mdt in self.up().mdts() {
            for o in &mut mdt.ops.core.write().osts {
                o.active = osts.is_empty() || osts.contains(&o.index);
            }
        }
    }

    /// The target a client of the recorded servers calls `uuid`.
    pub fn target(&self, uuid: &str) -> Option<&Arc<LuTarget>> {
        let of_files = |t: &&Arc<LuTarget>| t.config().kind != coral_server::TargetKind::Mgs;
        self.up()
            .targets()
            .filter(of_files)
            .find(|t| t.uuid() == uuid)
    }

    pub async fn stop(self) {
        self.up().stop().await;
        self.client.shutdown().await;
    }
}
