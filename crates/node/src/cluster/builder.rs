//! What a cluster is made of.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use coral_lnet::{LinkModel, MemNet, Nid, PoolSizes, RouteSpec, WallClock};
use coral_osd::{DiskModel, OsdMem, OsdSim, TargetKind};
use coral_server::mdt::StripeDefaults;

use super::{Cluster, ClusterError, Disks};

/// Number of the device of MDT0001; those of OSTs are less.
const MORE_MDTS: u64 = 1 << 20;

/// A node that forwards.
#[derive(Clone)]
pub(super) struct RouterPlan {
    pub nids: Vec<Nid>,
    pub buffers: PoolSizes,
}

/// What a cluster was built of, for its restarts.
#[derive(Clone)]
pub(super) struct Plan {
    pub fsname: String,
    pub stripes: StripeDefaults,
    capacity: Option<u64>,
    disk: DiskModel,
    pub seed: u64,
    pub wall: WallClock,
    pub routes: Vec<RouteSpec>,
    pub links: Vec<(Nid, Nid, LinkModel)>,
    pub routers: Vec<RouterPlan>,
    /// Where targets are of which nothing else is said.
    server: Nid,
    mgs: Option<Nid>,
    mdts: BTreeMap<u32, Nid>,
    osts: BTreeMap<u32, Nid>,
}

impl Plan {
    /// The primary NID of the node of a target.
    pub(super) fn place(&self, kind: TargetKind, index: u32) -> Nid {
        let own = match kind {
            TargetKind::Mgs => self.mgs,
            TargetKind::Mdt => self.mdts.get(&index).copied(),
            TargetKind::Ost => self.osts.get(&index).copied(),
        };
        own.unwrap_or(self.server)
    }

    /// An empty device for an MDT that is not the first.
    pub(super) fn new_mdt_device(&self, index: u32) -> OsdSim {
        self.new_device(MORE_MDTS + u64::from(index) - 1)
    }

    /// An empty device for target `number`.
    pub(super) fn new_device(&self, number: u64) -> OsdSim {
        let mem = self
            .capacity
            .map_or_else(OsdMem::new, OsdMem::with_capacity);
        OsdSim::new(mem, self.disk, self.seed.wrapping_add(number << 32))
    }
}

/// What a [`Cluster`] is to be made of.
#[derive(Clone)]
pub struct Builder {
    plan: Plan,
    mdts: u32,
    osts: u32,
    net: Option<Arc<MemNet>>,
    disks: Option<Disks>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            plan: Plan {
                fsname: "coral".into(),
                stripes: StripeDefaults {
                    stripe_size: 1 << 20,
                    stripe_count: 1,
                },
                capacity: None,
                disk: DiskModel::INSTANT,
                seed: 1,
                wall: WallClock::starting_at(WallClock::SIMULATED_SECS),
                routes: Vec::new(),
                links: Vec::new(),
                routers: Vec::new(),
                server: Nid::tcp(0, Ipv4Addr::new(10, 0, 0, 1)),
                mgs: None,
                mdts: BTreeMap::new(),
                osts: BTreeMap::new(),
            },
            mdts: 1,
            osts: 1,
            net: None,
            disks: None,
        }
    }
}

impl Builder {
    /// Its name, 1 to 8 characters; `coral` unless it is said.
    pub fn fsname(mut self, name: &str) -> Builder {
        self.plan.fsname = name.to_owned();
        self
    }

    /// Number of MDTs; 1 unless it is said.
    pub fn mdts(mut self, count: u32) -> Builder {
        self.mdts = count;
        self
    }

    /// Number of OSTs; 1 unless it is said.
    pub fn osts(mut self, count: u32) -> Builder {
        self.osts = count;
        self
    }

    /// Layout of new files that ask for no other: `count` stripes of `size` bytes; 1 stripe of 1 MiB unless it is said.
    pub fn stripes(mut self, count: u16, size: u32) -> Builder {
        self.plan.stripes = StripeDefaults {
            stripe_size: size,
            stripe_count: count,
        };
        self
    }

    /// Room of each OST and MDT, in bytes of objects; that of [`OsdMem::new`] unless it is said.
    pub fn disk_capacity(mut self, bytes: u64) -> Builder {
        self.plan.capacity = Some(bytes);
        self
    }

    /// How fast the disks below the targets are; they take no time unless it is said.
    pub fn disk_model(mut self, model: DiskModel) -> Builder {
        self.plan.disk = model;
        self
    }

    /// Devices of another cluster, which does not run any more; they say how many MDTs and OSTs there are.
    pub fn disks(mut self, disks: Disks) -> Builder {
        self.disks = Some(disks);
        self
    }

    /// Seed of the first node; the others' count on from there. 1 unless it is said.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.plan.seed = seed;
        self
    }

    /// The time of all nodes; unless it is said, it begins when the builder is made, as in [`WallClock::SIMULATED_SECS`].
    pub fn wall_clock(mut self, wall: WallClock) -> Builder {
        self.plan.wall = wall;
        self
    }

    /// The network; unless it is said, an empty one with no other beside it ([`MemNet::alone`]). Several file systems on one
    /// network have servers with NIDs of their own.
    pub fn on(mut self, net: Arc<MemNet>) -> Builder {
        self.net = Some(net);
        self
    }

    /// NID of the node of all targets of which nothing else is said; 10.0.0.1@tcp unless it is said.
    pub fn server_at(mut self, nid: Nid) -> Builder {
        self.plan.server = nid;
        self
    }

    /// NID of the node of the MGS.
    pub fn mgs_at(mut self, nid: Nid) -> Builder {
        self.plan.mgs = Some(nid);
        self
    }

    /// NID of the node of MDT0000.
    pub fn mdt_at(self, nid: Nid) -> Builder {
        self.mdt_number_at(0, nid)
    }

    /// NID of the node of an MDT.
    pub fn mdt_number_at(mut self, index: u32, nid: Nid) -> Builder {
        self.plan.mdts.insert(index, nid);
        self
    }

    /// NID of the node of an OST.
    pub fn ost_at(mut self, index: u32, nid: Nid) -> Builder {
        self.plan.osts.insert(index, nid);
        self
    }

    /// Routes of the nodes of servers.
    pub fn routes(mut self, routes: Vec<RouteSpec>) -> Builder {
        self.plan.routes = routes;
        self
    }

    /// A node that forwards between the networks of its NIDs. It is there when [`Builder::start`] is done.
    pub fn router(mut self, nids: &[Nid]) -> Builder {
        self.plan.routers.push(RouterPlan {
            nids: nids.to_vec(),
            buffers: PoolSizes::default(),
        });
        self
    }

    /// How messages between the nodes with these primary NIDs travel, both ways; with no time and no loss unless it is said.
    pub fn link(mut self, a: Nid, b: Nid, model: LinkModel) -> Builder {
        self.plan.links.push((a, b, model));
        self
    }

    /// Starts it all.
    pub async fn start(self) -> Result<Cluster, ClusterError> {
        if self.mdts == 0 {
            return Err(ClusterError::NoMdt);
        }
        let more = 1..self.mdts;
        let new_disks = || Disks {
            mgs: self.plan.new_device(0),
            mdt: self.plan.new_device(1),
            more_mdts: more.map(|i| self.plan.new_mdt_device(i)).collect(),
            osts: (0..u64::from(self.osts))
                .map(|i| self.plan.new_device(2 + i))
                .collect(),
        };
        let disks = self.disks.clone().unwrap_or_else(new_disks);
        let net = self.net.clone().unwrap_or_else(MemNet::alone);
        Cluster::launch(self.plan, net, disks).await
    }
}
