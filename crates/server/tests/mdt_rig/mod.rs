//! An MDT on one node and clients on others, all in this process, and requests as a client packs them.
#![allow(dead_code)]

pub mod client;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coral_lnet::{MemNet, Node, NodeConfig};
use coral_node::backend::simulated_label;
use coral_node::{Backend, Servers, ServersConfig, TargetSpec};
use coral_osd::{Batch, Fresh, Kv, Op, OsdMem};
use coral_server::mdt::identity::NameService;
use coral_server::mdt::{Mdt, OstTarget, StripeDefaults, table};
use coral_server::{LuTarget, ServerNode, TargetConfig, TargetKind, TargetOps, TargetRequest};
use coral_wire::connect::ConnectFlags2 as F2;
use coral_wire::{Errno, ObdConnectData, portal};
use futures_util::future::BoxFuture;

pub use client::Client;

const SERVER: &str = "10.0.0.1@tcp";
/// That of a target unless said otherwise.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);

/// The change that takes `op` back.
pub fn undo(kv: &dyn Kv, op: &Op) -> Batch {
    let mut b = Batch::new();
    let (table, key) = op.row();
    match kv.get(table, key).expect("read") {
        Some(v) => b.put(table, key.clone(), v),
        None => b.del(table, key.clone()),
    };
    b
}

pub struct Rig {
    pub mem: OsdMem,
    /// The device in use: `mem` unless a test brings another.
    kv: Arc<dyn Kv>,
    net: Arc<MemNet>,
    osts: u32,
    /// Real OSTs; without them OSTs can be connected to and nothing else.
    pub real: Vec<Arc<OsdMem>>,
    /// The real OSTs have nodes of their own, `10.0.1.<index>@tcp`; what runs there.
    pub far: Option<Vec<Option<Servers>>>,
    /// uid and gid of the root directory, should the next start make it.
    pub root_owner: (u32, u32),
    /// How often the next start syncs by itself.
    pub sync_interval: Duration,
    /// Who knows users from the next start on.
    pub names: Option<Arc<dyn NameService>>,
    up: Option<Servers>,
    seed: AtomicU64,
}

impl Rig {
    pub async fn new(osts: u32) -> Rig {
        let mem = OsdMem::new();
        Rig::on(osts, mem.clone(), Arc::new(mem)).await
    }

    /// An MDT on another device than memory.
    pub async fn on(osts: u32, mem: OsdMem, kv: Arc<dyn Kv>) -> Rig {
        let mut rig = Rig::down(osts, mem, kv);
        rig.restart().await;
        rig
    }

    /// An MDT with OSTs that serve, all on one node.
    pub async fn with_osts(n: u32) -> Rig {
        let mem = OsdMem::new();
        let mut rig = Rig::down(n, mem.clone(), Arc::new(mem));
        rig.real = (0..n).map(|_| Arc::new(OsdMem::new())).collect();
        rig.restart().await;
        rig
    }

    /// The same, each OST on a node of its own.
    pub async fn with_far_osts(n: u32) -> Rig {
        let mem = OsdMem::new();
        let mut rig = Rig::down(n, mem.clone(), Arc::new(mem));
        rig.real = (0..n).map(|_| Arc::new(OsdMem::new())).collect();
        rig.far = Some((0..n).map(|_| None).collect());
        for i in 0..n {
            rig.start_ost(i).await;
        }
        rig.restart().await;
        rig
    }

    fn down(osts: u32, mem: OsdMem, kv: Arc<dyn Kv>) -> Rig {
        Rig {
            mem,
            kv,
            net: MemNet::new(),
            osts,
            real: vec![],
            far: None,
            root_owner: (0, 0),
            names: None,
            sync_interval: SYNC_INTERVAL,
            up: None,
            seed: AtomicU64::new(1),
        }
    }

    /// Starts the OST with a node of its own.
    pub async fn start_ost(&mut self, index: u32) {
        let node = self.node(&format!("10.0.1.{index}@tcp")).await;
        let mut servers = Servers::new(node, ServersConfig::default());
        servers.add_unregistered(self.ost(index)).expect("OST");
        self.far.as_mut().expect("far OSTs")[index as usize] = Some(servers);
    }

    fn ost(&self, index: u32) -> TargetSpec {
        let label = simulated_label(coral_osd::TargetKind::Ost, "test", index, &[]);
        TargetSpec::memory(label, &*self.real[index as usize])
    }

    /// Its process is gone at once.
    pub async fn kill_ost(&mut self, index: u32) {
        let ost = &mut self.far.as_mut().expect("far OSTs")[index as usize];
        ost.take().expect("running").kill().await;
    }

    /// Its machine loses power: what was not synced is gone. Call after [`Rig::kill_ost`].
    pub fn lose_ost_power(&mut self, index: u32) {
        let disk = &mut self.real[index as usize];
        *disk = Arc::new(disk.power_loss());
    }

    async fn node(&self, nid: &str) -> Arc<Node> {
        let seed = self.seed.fetch_add(1, Ordering::Relaxed);
        let cfg = NodeConfig::in_memory(nid.parse().expect("a NID"), seed);
        Node::start(cfg, Some(self.net.clone()))
            .await
            .expect("node")
    }

    /// Starts the server on what its device holds.
    pub async fn restart(&mut self) {
        let node = self.node(SERVER).await;
        let config = ServersConfig {
            default_stripes: Some(StripeDefaults {
                stripe_size: 1 << 20,
                stripe_count: 1,
            }),
            names: self.names.clone(),
            recovery_soft: Some(Duration::from_secs(20)),
            sync_interval: Some(self.sync_interval),
            ..ServersConfig::default()
        };
        let mut servers = Servers::new(node.clone(), config);
        for i in (0..self.osts).filter(|_| self.far.is_none()) {
            match self.real.get(i as usize) {
                Some(_) => drop(servers.add_unregistered(self.ost(i)).expect("OST")),
                None => servers.server().add_target(deaf_ost(&node, i)),
            }
        }
        let at = |index: u32| {
            if self.far.is_some() {
                format!("10.0.1.{index}@tcp")
            } else {
                SERVER.into()
            }
        };
        let ost = |index| OstTarget {
            index,
            uuid: format!("test-OST{index:04x}_UUID"),
            nids: vec![at(index).parse().expect("a NID")],
            active: true,
        };
        let (uid, gid) = self.root_owner;
        let mdt = TargetSpec {
            osts: (0..self.osts).map(ost).collect(),
            ..TargetSpec::new(Backend::Given {
                label: simulated_label(coral_osd::TargetKind::Mdt, "test", 0, &[]),
                fresh: Some(Fresh { uid, gid }),
                tables: self.kv.clone(),
                objects: Arc::new(OsdMem::new()),
            })
        };
        servers.add_unregistered(mdt).expect("MDT");
        self.up = Some(servers);
    }

    /// The server is gone at once; its device keeps what was committed.
    pub async fn kill(&mut self) {
        self.up.take().expect("running").kill().await;
    }

    /// Another device, on which nothing is.
    pub fn empty(&mut self) {
        self.mem = OsdMem::new();
        self.kv = Arc::new(self.mem.clone());
    }

    /// The server's machine loses power: what was not synced is gone. Call after [`Rig::kill`].
    pub fn lose_power(&mut self) {
        self.mem = self.mem.power_loss();
        self.kv = Arc::new(self.mem.clone());
    }

    pub async fn stop(&self) {
        if let Some(servers) = &self.up {
            servers.stop().await;
        }
    }

    /// Evicts this client.
    pub fn evict(&self, c: &Client) {
        let target = &self.mdt().target;
        let exp = target
            .exports()
            .into_iter()
            .find(|e| e.nid() == c.node.nid())
            .expect("connected");
        target.evict(exp.cookie, "a test");
    }

    /// The next reply of the MDT to a client is lost.
    pub fn lose_a_reply(&self) {
        use coral_lnet::{FaultAction, FaultRule, MsgType};
        let rule = FaultRule::all(FaultAction::Drop)
            .portal(portal::MDC_REPLY)
            .kind(MsgType::Put)
            .times(1);
        self.up().node().faults().add(rule);
    }

    /// OST objects waiting to be destroyed, other than ranges of ids that no file refers to.
    pub fn destroy_pending(&self) -> usize {
        let rows = self
            .mem
            .range(table::DESTROY, b"", None, 1000)
            .expect("read");
        rows.iter()
            .filter(|(_, v)| table::destroy_count_of(v) == 1)
            .count()
    }

    /// OST objects whose owner waits to be told for good.
    pub fn owners_pending(&self) -> usize {
        self.mem
            .range(table::OWNER, b"", None, 1000)
            .expect("read")
            .len()
    }

    fn up(&self) -> &Servers {
        self.up.as_ref().expect("running")
    }

    pub fn mdt(&self) -> &Mdt {
        &self.up().mdts()[0]
    }

    pub fn server(&self) -> &Arc<ServerNode> {
        self.up().server()
    }

    pub async fn client(&self, nid: &str) -> Client {
        self.client_as(nid, F2::CORAL.0).await
    }

    /// A client that asks for `private` besides Lustre's own flags of the second word.
    pub async fn client_as(&self, nid: &str, private: u64) -> Client {
        let node = self.node(nid).await;
        Client::connect(node, "test-MDT0000_UUID", SERVER, private).await
    }
}

/// An OST that accepts connections and fails all that is asked of it.
struct Deaf;

impl TargetOps for Deaf {
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
        Ok(*asked)
    }
    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(rq.fail(Errno::EIO))
    }
    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(rq.fail(Errno::EIO))
    }
}

fn deaf_ost(node: &Arc<Node>, index: u32) -> Arc<LuTarget> {
    let cfg = TargetConfig::new(TargetKind::Ost, &format!("test-OST{index:04x}"), index);
    let target = LuTarget::new(node.clone(), cfg, Arc::new(OsdMem::new())).expect("a target");
    target.start(Arc::new(Deaf));
    target
}

/// Makes a closure for a batch of one change out of one that returns the batch.
pub fn nothing<T>(_: T) {}
