//! A whole file system in this process: its servers on one node of a [`MemNet`] or on several, on devices in memory.
//!
//! - [`Builder`]: what it is made of.
//! - [`Disks`]: what survives a kill.
//!
//! # Invariants
//! - All nodes share one wall clock, which follows tokio's; seeds and NIDs are counted from the cluster's seed. With a paused
//!   clock and one thread a cluster does the same each time.
//! - An MDT knows the OSTs and the other MDTs of the cluster before a client reaches it.
//!
//! Absent: directories (for those, [`Servers`] on a node).

mod builder;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coral_client::{MountError, MountOptions};
use coral_lnet::{MemNet, Nid, Node, NodeConfig, RouteSpec, StartError};
use coral_osd::{Objects, OsdError, OsdSim, TargetKind};
use coral_server::mdt::{Mdt, OstTarget};
use coral_server::mgs::Mgs;
use coral_server::{LuTarget, ServerNode};
use coral_wire::nid::NET_LO;

use crate::backend::{TargetSpec, simulated_label};
use crate::client::Client;
use crate::servers::{Servers, ServersConfig, ServersError};

pub use builder::Builder;
use builder::Plan;

/// How far a restart sets the count of seeds forward, so that no node of before has those of a new one.
const SEEDS_PER_LIFE: u64 = 1000;

/// Why a cluster, or a part of it, could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file system has an MDT.
    #[error("0 MDTs: give at least 1")]
    NoMdt,
    /// A node does not start.
    #[error(transparent)]
    Node(#[from] StartError),
    /// Its servers do not start.
    #[error(transparent)]
    Servers(#[from] ServersError),
    /// A client cannot mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A device fails.
    #[error(transparent)]
    Device(#[from] OsdError),
}

/// The devices of a cluster: what survives a kill of its servers. One that is put in the place of another counts from the next
/// start on.
#[derive(Clone)]
pub struct Disks {
    /// Of the MGS.
    pub mgs: OsdSim,
    /// Of MDT0000.
    pub mdt: OsdSim,
    /// Of the other MDTs, MDT0001 first.
    pub more_mdts: Vec<OsdSim>,
    /// Of the OSTs, by index.
    pub osts: Vec<OsdSim>,
}

impl Disks {
    /// The device of an MDT.
    ///
    /// # Panics
    /// There is no such MDT.
    pub fn mdt_number(&self, index: u32) -> &OsdSim {
        match index {
            0 => &self.mdt,
            i => &self.more_mdts[i as usize - 1],
        }
    }

    /// How many MDTs there are.
    pub fn mdt_count(&self) -> u32 {
        1 + self.more_mdts.len() as u32
    }
}

/// A file system with all its servers.
pub struct Cluster {
    /// The network of its nodes; other clusters may be on it too.
    pub net: Arc<MemNet>,
    /// Its devices.
    pub disks: Disks,
    plan: Plan,
    /// What runs, by primary NID.
    servers: BTreeMap<Nid, Servers>,
    routers: Vec<Arc<Node>>,
    /// Seed of the next node.
    next_seed: AtomicU64,
}

impl Cluster {
    /// A file system of one MDT and one OST on one node, to be changed before it is started.
    pub fn builder() -> Builder {
        Builder::default()
    }

    async fn launch(plan: Plan, net: Arc<MemNet>, disks: Disks) -> Result<Cluster, ClusterError> {
        let mut cluster = Cluster {
            net,
            disks,
            next_seed: AtomicU64::new(plan.seed),
            plan,
            servers: BTreeMap::new(),
            routers: Vec::new(),
        };
        for (a, b, model) in &cluster.plan.links {
            cluster.net.set_link(*a, *b, *model, cluster.plan.seed);
        }
        if let Err(why) = cluster.start_all().await {
            cluster.stop().await;
            return Err(why);
        }
        Ok(cluster)
    }

    async fn start_all(&mut self) -> Result<(), ClusterError> {
        for router in self.plan.routers.clone() {
            let config = NodeConfig {
                nids: router.nids,
                routing: Some(router.buffers),
                ..self.config(Nid(0))
            };
            let router = Node::start(config, Some(self.net.clone())).await?;
            self.routers.push(router);
        }
        self.start_targets(|_| true).await
    }

    /// Starts the targets whose nodes match, each on its device: the MGS first, the MDTs last, when their OSTs are there.
    async fn start_targets(&mut self, at: impl Fn(Nid) -> bool) -> Result<(), ClusterError> {
        let osts = (0..self.disks.osts.len() as u32).map(|i| (TargetKind::Ost, i));
        let mdts = (0..self.disks.mdt_count()).map(|i| (TargetKind::Mdt, i));
        let order = std::iter::once((TargetKind::Mgs, 0))
            .chain(osts)
            .chain(mdts);
        for (kind, index) in order.collect::<Vec<_>>() {
            let nid = self.plan.place(kind, index);
            if at(nid) {
                self.start_target(kind, index, nid).await?;
            }
        }
        self.tell_mdts();
        Ok(())
    }

    /// Tells all MDTs of each other.
    fn tell_mdts(&self) {
        let all: Vec<OstTarget> = (0..self.disks.mdt_count())
            .map(|i| OstTarget {
                index: i,
                uuid: format!("{}-MDT{i:04x}_UUID", self.plan.fsname),
                nids: vec![self.plan.place(TargetKind::Mdt, i)],
                active: true,
            })
            .collect();
        for mdt in self.servers.values().flat_map(|s| s.mdts()) {
            if let Err(error) = mdt.set_mdts(all.clone()) {
                tracing::error!(%error, "an MDT cannot use the others");
            }
        }
    }

    async fn start_target(
        &mut self,
        kind: TargetKind,
        index: u32,
        nid: Nid,
    ) -> Result<(), ClusterError> {
        if !self.servers.contains_key(&nid) {
            let servers = self.new_servers(nid).await?;
            self.servers.insert(nid, servers);
        }
        let device = match kind {
            TargetKind::Mgs => &self.disks.mgs,
            TargetKind::Mdt => self.disks.mdt_number(index),
            TargetKind::Ost => &self.disks.osts[index as usize],
        };
        let mut spec = self.spec(kind, index, device);
        if kind == TargetKind::Mdt {
            spec.osts = self.osts_as_planned();
        }
        if let Some(servers) = self.servers.get_mut(&nid) {
            servers.add(spec).await?;
        }
        Ok(())
    }

    /// Services at `nid`, without targets.
    async fn new_servers(&self, nid: Nid) -> Result<Servers, ClusterError> {
        let config = NodeConfig {
            routes: self.plan.routes.clone(),
            ..self.config(nid)
        };
        let node = Node::start(config, Some(self.net.clone())).await?;
        let config = ServersConfig {
            default_stripes: Some(self.plan.stripes),
            ..ServersConfig::default()
        };
        Ok(Servers::new(node, config))
    }

    fn spec(&self, kind: TargetKind, index: u32, device: &OsdSim) -> TargetSpec {
        let mgs = [self.mgs_nid()];
        let mgs = if kind == TargetKind::Mgs {
            &[][..]
        } else {
            &mgs
        };
        TargetSpec::memory(simulated_label(kind, &self.plan.fsname, index, mgs), device)
    }

    /// All OSTs, where the plan has them.
    fn osts_as_planned(&self) -> Vec<OstTarget> {
        let indices = 0..self.disks.osts.len() as u32;
        let at = |i| vec![self.plan.place(TargetKind::Ost, i)];
        indices.map(|i| self.ost_target(i, at(i))).collect()
    }

    /// OST `index` as an MDT is told of it, when it is to be found at `nids`.
    pub fn ost_target(&self, index: u32, nids: Vec<Nid>) -> OstTarget {
        OstTarget {
            index,
            uuid: format!("{}-OST{index:04x}_UUID", self.plan.fsname),
            nids,
            active: true,
        }
    }

    /// A further MDT on the node of the others, of which the MGS alone is told.
    pub async fn add_mdt(&mut self) -> Result<(), ClusterError> {
        let index = self.disks.mdt_count();
        let device = self.plan.new_mdt_device(index);
        self.disks.more_mdts.push(device);
        let nid = self.plan.place(TargetKind::Mdt, index);
        self.start_target(TargetKind::Mdt, index, nid).await
    }

    /// A further OST on the node of the others, of which the MGS alone is told.
    pub async fn add_ost(&mut self) -> Result<(), ClusterError> {
        let index = self.disks.osts.len() as u32;
        let device = self.plan.new_device(2 + u64::from(index));
        self.disks.osts.push(device);
        let nid = self.plan.place(TargetKind::Ost, index);
        self.start_target(TargetKind::Ost, index, nid).await
    }

    /// Serves OST `index`, which lies on `device`, at `nid`, and tells the MGS that it may be at `failover` too. It is no part of
    /// the cluster: nobody but the caller ends it.
    pub async fn serve_ost(
        &self,
        index: u32,
        device: &OsdSim,
        nid: Nid,
        failover: &[Nid],
    ) -> Result<Servers, ClusterError> {
        let mut servers = self.new_servers(nid).await?;
        let mut spec = self.spec(TargetKind::Ost, index, device);
        spec.failover = failover.to_vec();
        servers.add(spec).await?;
        Ok(servers)
    }

    /// The servers are gone at once and come back on what they had committed.
    pub async fn kill_and_restart(&mut self) -> Result<(), ClusterError> {
        self.restart_after(|_| false).await
    }

    /// The machine of the OSTs loses power: what they had not synced is gone. All servers start again.
    pub async fn osts_lose_power(&mut self) -> Result<(), ClusterError> {
        self.restart_after(|kind| kind == TargetKind::Ost).await
    }

    /// The machine of the MDTs loses power: what it had not synced is gone. All servers start again.
    pub async fn mdt_loses_power(&mut self) -> Result<(), ClusterError> {
        self.restart_after(|kind| kind == TargetKind::Mdt).await
    }

    async fn restart_after(
        &mut self,
        loses_power: impl Fn(TargetKind) -> bool,
    ) -> Result<(), ClusterError> {
        for nid in self.server_nids() {
            self.end(nid, &loses_power).await?;
        }
        self.next_seed.fetch_add(SEEDS_PER_LIFE, Ordering::Relaxed);
        self.start_targets(|_| true).await
    }

    /// The machine at `nid` loses power: what its targets had not synced is gone.
    pub async fn lose_power(&mut self, nid: Nid) -> Result<(), ClusterError> {
        self.end(nid, |_| true).await
    }

    /// The servers at `nid` are gone at once.
    pub async fn kill(&mut self, nid: Nid) -> Result<(), ClusterError> {
        self.end(nid, |_| false).await
    }

    /// Ends the servers at `nid` at once, if they run. The disks of a kind that loses power keep what was synced; of the others,
    /// the objects are synced, as a target on a directory does when it is opened: what a killed process left in the page cache
    /// counts as committed.
    async fn end(
        &mut self,
        nid: Nid,
        loses_power: impl Fn(TargetKind) -> bool,
    ) -> Result<(), ClusterError> {
        let Some(servers) = self.servers.remove(&nid) else {
            return Ok(());
        };
        servers.kill().await;
        let osts = (0..).zip(&mut self.disks.osts);
        let mdts = std::iter::once(&mut self.disks.mdt).chain(&mut self.disks.more_mdts);
        let mdts = (0..).zip(mdts);
        let disks = osts
            .map(|(i, disk)| (TargetKind::Ost, i, disk))
            .chain(mdts.map(|(i, disk)| (TargetKind::Mdt, i, disk)));
        for (kind, index, disk) in disks {
            if self.plan.place(kind, index) != nid {
                continue;
            }
            if loses_power(kind) {
                *disk = disk.power_loss();
            } else {
                disk.sync_all().await?;
            }
        }
        Ok(())
    }

    /// Servers that were killed come back on what they had committed.
    pub async fn restart(&mut self, nid: Nid) -> Result<(), ClusterError> {
        self.start_targets(|at| at == nid).await
    }

    /// A client in the servers' process, as far as they know: it is not waited for after a restart.
    pub async fn client(&self) -> Result<Client, ClusterError> {
        self.mount(self.local_node().await?).await
    }

    /// A client elsewhere: servers wait for it after a restart.
    pub async fn remote_client(&self) -> Result<Client, ClusterError> {
        self.mount(self.remote_node().await?).await
    }

    /// A client with this NID and these routes.
    pub async fn client_at(&self, nid: Nid, routes: &[RouteSpec]) -> Result<Client, ClusterError> {
        self.mount(self.node_at(nid, routes).await?).await
    }

    async fn mount(&self, node: Arc<Node>) -> Result<Client, ClusterError> {
        Ok(Client::mount(node, self.mount_options()).await?)
    }

    /// How this file system is mounted, to be changed.
    pub fn mount_options(&self) -> MountOptions {
        MountOptions::new(&self.plan.fsname, vec![self.mgs_nid()])
    }

    /// A node that is in the servers' process as far as they know, `N@lo`.
    pub async fn local_node(&self) -> Result<Arc<Node>, StartError> {
        self.numbered_node(|n| Nid::new(NET_LO, n as u32)).await
    }

    /// A node on another machine, as far as servers know, `10.0.N.N@tcp`.
    pub async fn remote_node(&self) -> Result<Arc<Node>, StartError> {
        let host = |n: u64| [10, 0, (1 + n / 250 % 250) as u8, (n % 250) as u8];
        self.numbered_node(|n| Nid::tcp(0, host(n).into())).await
    }

    /// A node with this NID and these routes.
    pub async fn node_at(&self, nid: Nid, routes: &[RouteSpec]) -> Result<Arc<Node>, StartError> {
        let config = NodeConfig {
            routes: routes.to_vec(),
            ..self.config(nid)
        };
        Node::start(config, Some(self.net.clone())).await
    }

    /// A node with the next seed that gives a free NID.
    async fn numbered_node(&self, nid: impl Fn(u64) -> Nid) -> Result<Arc<Node>, StartError> {
        let config = loop {
            let seed = self.next_seed();
            if self.net.node(nid(seed)).is_none() {
                break self.config_with(nid(seed), seed);
            }
        };
        Node::start(config, Some(self.net.clone())).await
    }

    fn next_seed(&self) -> u64 {
        self.next_seed.fetch_add(1, Ordering::Relaxed)
    }

    /// A node with the next seed.
    fn config(&self, nid: Nid) -> NodeConfig {
        self.config_with(nid, self.next_seed())
    }

    fn config_with(&self, nid: Nid, seed: u64) -> NodeConfig {
        NodeConfig {
            wall: Some(self.plan.wall),
            ..NodeConfig::in_memory(nid, seed)
        }
    }

    /// Where the MGS is.
    pub fn mgs_nid(&self) -> Nid {
        self.plan.place(TargetKind::Mgs, 0)
    }

    /// The NIDs of the nodes whose servers run.
    pub fn server_nids(&self) -> Vec<Nid> {
        self.servers.keys().copied().collect()
    }

    /// What runs at `nid`.
    pub fn servers_at(&self, nid: Nid) -> Option<&Servers> {
        self.servers.get(&nid)
    }

    /// The routers.
    pub fn routers(&self) -> &[Arc<Node>] {
        &self.routers
    }

    /// What runs where MDT0000 is.
    ///
    /// # Panics
    /// It was killed and not started again.
    fn at_mdt(&self) -> &Servers {
        let nid = self.plan.place(TargetKind::Mdt, 0);
        self.servers.get(&nid).expect("the MDT runs")
    }

    /// The node of the MDT: with one server node, that of all servers.
    ///
    /// # Panics
    /// It was killed and not started again; the same goes for what follows.
    pub fn node(&self) -> &Arc<Node> {
        self.at_mdt().node()
    }

    /// The services of the node of the MDT.
    pub fn server(&self) -> &Arc<ServerNode> {
        self.at_mdt().server()
    }

    /// MDT0000.
    pub fn mdt(&self) -> &Arc<Mdt> {
        self.mdt_number(0)
    }

    /// An MDT by its index.
    pub fn mdt_number(&self, index: u32) -> &Arc<Mdt> {
        let nid = self.plan.place(TargetKind::Mdt, index);
        let servers = self.servers.get(&nid).expect("the MDT runs");
        let mut mdts = servers.mdts().iter();
        mdts.find(|m| m.target.index() == index)
            .expect("the MDT runs")
    }

    /// The MGS.
    pub fn mgs(&self) -> &Arc<Mgs> {
        let servers = self.servers.get(&self.mgs_nid()).expect("the MGS runs");
        servers.mgs().expect("the MGS runs")
    }

    /// An OST by its index.
    pub fn ost(&self, index: u32) -> &Arc<LuTarget> {
        let nid = self.plan.place(TargetKind::Ost, index);
        let servers = self.servers.get(&nid).expect("the OST runs");
        let mut targets = servers.targets();
        let found = targets
            .find(|t| t.config().kind == coral_server::TargetKind::Ost && t.index() == index);
        found.expect("the OST runs")
    }

    /// All OSTs, by index.
    pub fn osts(&self) -> Vec<Arc<LuTarget>> {
        let indices = 0..self.disks.osts.len() as u32;
        indices.map(|i| self.ost(i).clone()).collect()
    }

    /// Stops all servers and routers; clients should have unmounted.
    pub async fn stop(&self) {
        // the MDTs first: they are clients of the others
        let mdts: Vec<Nid> = (0..self.disks.mdt_count())
            .map(|i| self.plan.place(TargetKind::Mdt, i))
            .collect();
        let mgs = self.mgs_nid();
        let late = |nid: &Nid| (!mdts.contains(nid), *nid == mgs);
        let mut order = self.server_nids();
        order.sort_by_key(late);
        for nid in order {
            self.servers[&nid].stop().await;
        }
        for router in &self.routers {
            router.shutdown().await;
        }
    }
}
