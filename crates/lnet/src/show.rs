//! What a node shows of itself, and what an operator changes in it while it runs: what `lnetctl net|peer|route|routing|stats`
//! need (lnet/utils/lnetctl.c names the fields). Plain structs, a picture of one moment.

use std::sync::atomic::Ordering;

use coral_wire::lnet::{LNET_NI_STATUS_UP, feat};
use serde::{Deserialize, Serialize};

use crate::ni::{ByType, Ni};
use crate::peers::PeerError;
use crate::router::PoolSizes;
use crate::routes::{RouteError, RouteSpec, net_name};
use crate::{Nid, Node};

/// Messages by type since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TypeCounts {
    /// PUTs.
    pub put: u64,
    /// GETs.
    pub get: u64,
    /// REPLYs.
    pub reply: u64,
    /// ACKs.
    pub ack: u64,
}

impl TypeCounts {
    fn of(counts: &ByType) -> TypeCounts {
        let [ack, put, get, reply] = counts.values();
        TypeCounts {
            put,
            get,
            reply,
            ack,
        }
    }

    /// All together.
    pub fn total(&self) -> u64 {
        self.put + self.get + self.reply + self.ack
    }
}

/// Messages through one interface since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficShow {
    /// Handed to the LND.
    pub sent: TypeCounts,
    /// Received.
    pub received: TypeCounts,
    /// Lost: the LND could not send them.
    pub dropped: TypeCounts,
}

impl TrafficShow {
    fn of(ni: &Ni) -> TrafficShow {
        let t = &ni.traffic;
        TrafficShow {
            sent: TypeCounts::of(&t.sent),
            received: TypeCounts::of(&t.received),
            dropped: TypeCounts::of(&t.dropped),
        }
    }
}

/// Health of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealthShow {
    /// 0 to 1000.
    pub value: u32,
    /// Messages lost with a connection.
    pub dropped: u64,
    /// Messages that made no progress or whose answer did not come.
    pub timeouts: u64,
    /// Messages for which no connection could be had.
    pub errors: u64,
    /// Recovery pings since it last was healthy.
    pub ping_count: u32,
    /// Second of the node's life of the next recovery ping; 0: none.
    pub next_ping: u64,
}

impl HealthShow {
    fn of(ni: &Ni) -> HealthShow {
        let f = &ni.failures;
        HealthShow {
            value: ni.health(),
            dropped: f.dropped.load(Ordering::Relaxed),
            timeouts: f.timeouts.load(Ordering::Relaxed),
            errors: f.errors.load(Ordering::Relaxed),
            ping_count: ni.ping_count.load(Ordering::Relaxed),
            next_ping: ni.next_ping.load(Ordering::Relaxed),
        }
    }
}

/// Tunables of a network (`lnetctl net show`: tunables).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tunables {
    /// Seconds after which a silent peer counts as dead.
    pub peer_timeout: u64,
    /// Messages under way to one peer.
    pub peer_credits: usize,
    /// Router buffers one peer may hold; 0: as many as peer_credits.
    pub peer_buffer_credits: usize,
    /// Messages under way to all peers.
    pub credits: usize,
}

/// An interface of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NiShow {
    /// Its NID.
    pub nid: String,
    /// Up or not.
    pub up: bool,
    /// Messages.
    pub traffic: TrafficShow,
    /// Health.
    pub health: HealthShow,
    /// Tunables; all 0 for the loopback.
    pub tunables: Tunables,
    /// Send credits now, and the fewest there were.
    pub tx_credits: usize,
    /// The fewest there were.
    pub min_tx_credits: usize,
}

/// A network of ours with its interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetShow {
    /// Its name, as in `tcp1`.
    pub net: String,
    /// Our interfaces on it.
    pub nis: Vec<NiShow>,
}

/// An interface of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerNiShow {
    /// Its NID.
    pub nid: String,
    /// `up`, `down`, or `NA` when only routers are watched and it is none.
    pub state: &'static str,
    /// Send credits it has.
    pub max_tx_credits: usize,
    /// Send credits now.
    pub tx_credits: usize,
    /// The fewest send credits there were.
    pub min_tx_credits: usize,
    /// Bytes queued for it.
    pub tx_queued_bytes: u64,
    /// Router credits now (for what it sends through us).
    pub rtr_credits: usize,
    /// The fewest there were.
    pub min_rtr_credits: usize,
    /// TCP connections with it.
    pub conns: usize,
    /// Messages.
    pub traffic: TrafficShow,
    /// Health.
    pub health: HealthShow,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerShow {
    /// The NID it is known by.
    pub primary_nid: String,
    /// Several of its NIDs may be used.
    pub multi_rail: bool,
    /// It told us that it routes.
    pub router: bool,
    /// Its interfaces, primary first.
    pub nis: Vec<PeerNiShow>,
}

/// What a node sends over one TCP connection, since that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkShow {
    /// NID of this node.
    pub from: String,
    /// NID of the peer.
    pub to: String,
    /// TCP ports here and there, which tell it from others.
    pub ports: (u16, u16),
    /// Bytes that the peer has acknowledged.
    pub acked_bytes: u64,
    /// Bytes that wait here, in the socket and before it, or are on the way.
    pub waiting_bytes: u64,
    /// Bytes that came and are not read.
    pub unread_bytes: u64,
    /// How long data were on the way or waited to be, microseconds.
    pub busy_us: u64,
    /// Of that, how long the peer had no room, microseconds.
    pub peer_full_us: u64,
    /// Round trip, smoothed, microseconds.
    pub rtt_us: u32,
    /// The least round trip of some minutes, microseconds.
    pub least_rtt_us: u32,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteShow {
    /// The network it leads to.
    pub net: String,
    /// NID of the router.
    pub gateway: String,
    /// Hops as given; -1: not given.
    pub hops: i32,
    /// Priority; lowest is used first.
    pub priority: u32,
    /// It can be used.
    pub up: bool,
    /// There are more routers behind the gateway.
    pub multi_hop: bool,
}

/// One pool of router buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolShow {
    /// Pages of a buffer.
    pub npages: usize,
    /// Buffers.
    pub nbuffers: usize,
    /// Free ones.
    pub credits: usize,
    /// The fewest there were.
    pub mincredits: usize,
}

/// Routing of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RoutingShow {
    /// It forwards for others.
    pub enabled: bool,
    /// For messages without payload.
    pub tiny: PoolShow,
    /// For messages of up to one page.
    pub small: PoolShow,
    /// For all others.
    pub large: PoolShow,
}

impl Node {
    /// Our networks with their interfaces, the loopback first.
    pub fn nets(&self) -> Vec<NetShow> {
        let mut out: Vec<NetShow> = Vec::new();
        let lo = Ni::new(Nid::LO);
        for ni in std::iter::once(&lo).chain(self.nis().iter().map(|n| &**n)) {
            let (tunables, tx_credits, min_tx_credits) = if ni.nid.is_lo() {
                Default::default()
            } else {
                self.sock().show_ni()
            };
            let show = NiShow {
                nid: ni.nid.to_string(),
                up: !ni.is_down(),
                traffic: TrafficShow::of(ni),
                health: HealthShow {
                    value: if ni.nid.is_lo() { 0 } else { ni.health() },
                    ..HealthShow::of(ni)
                },
                tunables,
                tx_credits,
                min_tx_credits,
            };
            let net = net_name(ni.nid.net());
            match out.iter_mut().find(|n| n.net == net) {
                Some(n) => n.nis.push(show),
                None => out.push(NetShow {
                    net,
                    nis: vec![show],
                }),
            }
        }
        out
    }

    /// The peers, by primary NID.
    pub fn peers(&self) -> Vec<PeerShow> {
        let views = self.peer_table().views();
        let routing = self.router().is_on();
        let show_ni = |ni: &Ni, told: Option<u32>, gateway: Option<bool>| {
            let up = match (gateway, told) {
                (Some(up), _) => Some(up),
                (None, Some(status)) if routing => Some(status == LNET_NI_STATUS_UP),
                (None, None) if routing => Some(self.sock().is_connected(ni.nid)),
                _ => None,
            };
            let state = up.map_or("NA", |up| if up { "up" } else { "down" });
            self.sock().show_peer(
                ni.nid,
                PeerNiShow {
                    nid: ni.nid.to_string(),
                    state,
                    max_tx_credits: 0,
                    tx_credits: 0,
                    min_tx_credits: 0,
                    tx_queued_bytes: 0,
                    rtr_credits: 0,
                    min_rtr_credits: 0,
                    conns: 0,
                    traffic: TrafficShow::of(ni),
                    health: HealthShow::of(ni),
                },
            )
        };
        let show = |v: crate::peers::PeerView| {
            let status = |nid: Nid| {
                v.told
                    .as_ref()
                    .and_then(|t| t.nis.iter().find(|n| n.nid == nid))
                    .map(|n| n.status)
            };
            PeerShow {
                primary_nid: v.primary.to_string(),
                multi_rail: v.multi_rail,
                router: v
                    .told
                    .as_ref()
                    .is_some_and(|t| t.features & feat::RTE_DISABLED == 0),
                nis: v
                    .nis
                    .iter()
                    .map(|n| show_ni(n, status(n.nid), self.gateway_is_up(n.nid)))
                    .collect(),
            }
        };
        views.into_iter().map(show).collect()
    }

    /// What TCP knows of the connections, by peer.
    pub fn links(&self) -> Vec<LinkShow> {
        self.sock().links()
    }

    /// The routes, by network.
    pub fn routes(&self) -> Vec<RouteShow> {
        let views = self.route_table().lock().views();
        let show = |v: &crate::routes::RouteView| RouteShow {
            net: net_name(v.spec.net),
            gateway: v.spec.gateway.to_string(),
            hops: v.spec.hops.map_or(-1, i32::from),
            priority: v.spec.priority,
            up: v.alive,
            multi_hop: v.multi_hop,
        };
        views.iter().map(show).collect()
    }

    /// Whether this node forwards, and its buffers.
    pub fn routing(&self) -> RoutingShow {
        self.router().show()
    }

    /// Adds a route. Its gateway is asked at once whether it is alive.
    pub fn add_route(&self, spec: RouteSpec) -> Result<(), RouteError> {
        self.route_table().lock().add(self.nids(), spec)?;
        self.routes_changed();
        Ok(())
    }

    /// Takes a route away.
    pub fn del_route(&self, net: u32, gateway: Nid) -> Result<(), RouteError> {
        self.route_table().lock().del(net, gateway)?;
        self.routes_changed();
        Ok(())
    }

    /// Says that these NIDs are one peer's; it may be known already. What the operator says stands above what peers tell.
    pub fn add_peer(&self, primary: Nid, nids: &[Nid]) -> Result<(), PeerError> {
        let done = self.peer_table().add(primary, nids, self.nids());
        self.peers_changed();
        done
    }

    /// Takes NIDs of a peer away; with none given the whole peer.
    pub fn del_peer(&self, primary: Nid, nids: &[Nid]) -> Result<(), PeerError> {
        let done = self.peer_table().del(primary, nids);
        self.peers_changed();
        done
    }

    /// Begins or ends to forward for others.
    pub fn set_routing(&self, on: bool) {
        if self.router().set(on) != on {
            self.info_changed();
        }
    }

    /// Changes the number of router buffers; what is in use stays until it is free.
    pub fn set_pools(&self, sizes: PoolSizes) {
        self.router().resize(sizes);
    }

    /// Sets the health of an interface of ours or of a peer, 0 to 1000. False: it is unknown.
    pub fn set_health(&self, nid: Nid, value: u32) -> bool {
        let peers = self.peer_table();
        let found = self
            .nis()
            .iter()
            .find(|n| n.nid == nid)
            .or_else(|| peers.nis().find(|n| n.nid == nid));
        if let Some(ni) = found {
            ni.set_health(value);
        }
        found.is_some()
    }
}
