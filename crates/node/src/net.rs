//! An LNet node out of NIDs, a port, routes and a seed, and what is known of the ways to others.
//!
//! What a command says when a node does not start, or waits for, is the command's.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use coral_lnet::{Accept, Nid, Node, NodeConfig, PoolSizes, RouteSpec, StartError, net_name};
use coral_wire::lnet::feat;
use coral_wire::nid::NET_TCP;
use tokio::sync::watch;

/// Lustre's own acceptor port.
pub const DEFAULT_PORT: u16 = 988;

/// How long a gateway may take to say whether it routes.
const GATEWAY_ANSWER: Duration = Duration::from_secs(5);

/// What a node that others reach over TCP is started with.
#[derive(Debug, Clone, Default)]
pub struct NetConfig {
    /// Our NIDs, primary first.
    pub nids: Vec<Nid>,
    /// TCP port of every node.
    pub port: u16,
    /// Routes to other networks.
    pub routes: Vec<RouteSpec>,
    /// Whose connections are taken; None: by privilege ([`Accept::of_this_process`]).
    pub accept: Option<Accept>,
    /// Forward for others, with so many buffers; None: do not.
    pub routing: Option<PoolSizes>,
}

/// NIDs that cannot be a node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NidError {
    /// It is on another kind of network than TCP.
    #[error("{0}: only tcp networks are supported so far")]
    NotTcp(Nid),
    /// Both are one address on two networks.
    #[error("{0} and {1}: one address on two networks is not supported so far")]
    OneAddress(Nid, Nid),
}

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// Its NIDs are refused.
    #[error(transparent)]
    Nids(#[from] NidError),
    /// LNet does not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Refuses NIDs that cannot be ours.
pub fn check_nids(nids: &[Nid]) -> Result<(), NidError> {
    if let Some(n) = nids.iter().find(|n| n.net() & 0xffff_0000 != NET_TCP) {
        return Err(NidError::NotTcp(*n));
    }
    let twice = nids.iter().enumerate().find_map(|(i, n)| {
        let other = nids[..i].iter();
        let same = other.copied().find(|m| m.addr() == n.addr() && m != n);
        Some((same?, *n))
    });
    twice.map_or(Ok(()), |(a, b)| Err(NidError::OneAddress(a, b)))
}

/// Starts a node with an acceptor.
pub async fn start(net: &NetConfig) -> Result<Arc<Node>, NetError> {
    check_nids(&net.nids)?;
    let config = NodeConfig {
        nids: net.nids.clone(),
        listen_port: Some(net.port),
        connect_port: net.port,
        alone: true,
        accept: net.accept.unwrap_or_else(Accept::of_this_process),
        seed: fresh_seed(),
        routes: net.routes.clone(),
        routing: net.routing,
        ..NodeConfig::default()
    };
    Ok(Node::start(config, None).await?)
}

/// Seed of a node's generator that differs between runs (cookies must), so it comes from the kernel.
pub fn fresh_seed() -> u64 {
    let hex: String = crate::target_dir::fresh_uuid()
        .bytes()
        .filter(u8::is_ascii_hexdigit)
        .map(char::from)
        .take(16)
        .collect();
    u64::from_str_radix(&hex, 16).unwrap_or(std::process::id() as u64)
}

/// The first of the routes that leads to the network of `peer` names where to go; without one, `peer` itself.
pub fn next_hop(peer: Nid, routes: &[RouteSpec]) -> Nid {
    routes
        .iter()
        .find(|r| r.net == peer.net())
        .map_or(peer, |r| r.gateway)
}

/// The NID to reach `peer` from when none is given: on the peer's network, or on that of the gateway on the way to it.
pub fn local_nid(peer: Nid, port: u16, routes: &[RouteSpec]) -> io::Result<Nid> {
    coral_lnet::local_nid_on(next_hop(peer, routes), port)
}

/// What a gateway said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayAnswer {
    /// It forwards.
    Routes,
    /// It answers, and forwards nothing.
    DoesNotRoute,
    /// It does not answer.
    Silent,
}

/// The gateways on the way to servers, asked as soon as this is made.
pub struct Gateways {
    /// Networks of ours.
    ours: BTreeSet<String>,
    asked: Vec<(Nid, watch::Receiver<Option<GatewayAnswer>>)>,
}

impl Gateways {
    /// Asks those through which all of `servers` must be reached; none when one of them is on a network of ours.
    pub fn towards(node: &Arc<Node>, servers: &[Nid]) -> Gateways {
        let near = |n: &Nid| node.nids().iter().any(|own| own.net() == n.net());
        let nets: BTreeSet<String> = servers.iter().map(|n| net_name(n.net())).collect();
        let routes = if servers.iter().any(near) {
            Vec::new()
        } else {
            node.routes()
        };
        let gateways: BTreeSet<Nid> = routes
            .iter()
            .filter(|r| nets.contains(&r.net))
            .filter_map(|r| r.gateway.parse().ok())
            .collect();
        let ask = |gw: Nid| (gw, ask_gateway(node.clone(), gw));
        Gateways {
            ours: node.nids().iter().map(|n| net_name(n.net())).collect(),
            asked: gateways.into_iter().map(ask).collect(),
        }
    }

    /// Networks on which the asking node is itself: servers behind a gateway need a route to them.
    pub fn own_nets(&self) -> &BTreeSet<String> {
        &self.ours
    }

    /// What each of them says, when all have said it or time is up.
    pub async fn answers(&self) -> Vec<(Nid, GatewayAnswer)> {
        let mut out = Vec::new();
        for (gateway, answer) in &self.asked {
            out.push((*gateway, said(answer).await));
        }
        out
    }

    /// Resolves with one of them when none is a router. Never, when there are none or one forwards or is silent.
    pub async fn none_routes(&self) -> Nid {
        for (_, answer) in &self.asked {
            if said(answer).await != GatewayAnswer::DoesNotRoute {
                return std::future::pending().await;
            }
        }
        match self.asked.first() {
            None => std::future::pending().await,
            Some((gateway, _)) => *gateway,
        }
    }
}

async fn said(answer: &watch::Receiver<Option<GatewayAnswer>>) -> GatewayAnswer {
    let mut answer = answer.clone();
    let got = answer.wait_for(Option::is_some).await;
    got.ok().and_then(|a| *a).unwrap_or(GatewayAnswer::Silent)
}

fn ask_gateway(node: Arc<Node>, gw: Nid) -> watch::Receiver<Option<GatewayAnswer>> {
    let (tx, rx) = watch::channel(None);
    tokio::spawn(async move {
        let said = match tokio::time::timeout(GATEWAY_ANSWER, node.ping(gw)).await {
            Ok(Ok(info)) if info.features & feat::RTE_DISABLED != 0 => GatewayAnswer::DoesNotRoute,
            Ok(Ok(_)) => GatewayAnswer::Routes,
            _ => GatewayAnswer::Silent,
        };
        let _ = tx.send(Some(said));
    });
    rx
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_lnet::MemNet;
    use coral_lnet::parse_routes;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    #[test]
    fn nids_are_tcp_and_each_has_an_address_of_its_own() {
        let check = |all: &[&str]| check_nids(&all.iter().map(|n| nid(n)).collect::<Vec<_>>());
        assert_eq!(check(&["10.0.0.1@tcp7"]), Ok(()));
        assert_eq!(check(&["10.0.0.1@tcp", "10.0.0.2@tcp2"]), Ok(()));
        let (a, b) = (nid("10.0.0.1@tcp"), nid("10.0.0.1@tcp2"));
        assert_eq!(check_nids(&[a, b]), Err(NidError::OneAddress(a, b)));
        let o2ib = nid("10.0.0.1@o2ib");
        assert_eq!(check_nids(&[a, o2ib]), Err(NidError::NotTcp(o2ib)));
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(fresh_seed(), fresh_seed());
    }

    #[test]
    fn a_route_says_where_to_go_first() {
        let routes = parse_routes("tcp1 10.0.0.4@tcp").unwrap();
        let (near, far) = (nid("10.0.0.9@tcp"), nid("10.1.0.9@tcp1"));
        assert_eq!(next_hop(far, &routes), nid("10.0.0.4@tcp"));
        assert_eq!(next_hop(near, &routes), near);
    }

    /// A node at 10.0.0.1@tcp with a route through each of `gateways`, which run in the same net.
    async fn behind(gateways: &[(&str, bool)]) -> (Arc<Node>, Vec<Arc<Node>>) {
        let net = MemNet::alone();
        let mut running = Vec::new();
        let mut routes = Vec::new();
        for (i, (gateway, routing)) in gateways.iter().enumerate() {
            let config = NodeConfig {
                nids: vec![nid(gateway), nid(&format!("10.1.0.{i}@tcp1"))],
                routing: routing.then(PoolSizes::default),
                ..NodeConfig::in_memory(nid(gateway), i as u64 + 2)
            };
            running.push(Node::start(config, Some(net.clone())).await.unwrap());
            routes.extend(parse_routes(&format!("tcp1 {gateway}")).unwrap());
        }
        let config = NodeConfig {
            routes,
            ..NodeConfig::in_memory(nid("10.0.0.1@tcp"), 1)
        };
        (Node::start(config, Some(net)).await.unwrap(), running)
    }

    #[tokio::test(start_paused = true)]
    async fn gateways_say_whether_they_route() {
        let (node, mut all) = behind(&[("10.0.0.8@tcp", true), ("10.0.0.9@tcp", false)]).await;
        let (no, yes) = (nid("10.0.0.9@tcp"), nid("10.0.0.8@tcp"));
        let far = [nid("10.1.0.77@tcp1")];
        let asked = Gateways::towards(&node, &far);
        assert_eq!(
            asked.answers().await,
            [
                (yes, GatewayAnswer::Routes),
                (no, GatewayAnswer::DoesNotRoute)
            ]
        );
        let limit = Duration::from_secs(60);
        assert!(
            tokio::time::timeout(limit, asked.none_routes())
                .await
                .is_err(),
            "one of them does"
        );
        assert!(
            Gateways::towards(&node, &[far[0], no])
                .answers()
                .await
                .is_empty(),
            "a server is near"
        );
        all.remove(0).shutdown().await;
        assert_eq!(
            Gateways::towards(&node, &far).answers().await[0],
            (yes, GatewayAnswer::Silent)
        );

        let (node, _all) = behind(&[("10.0.0.9@tcp", false)]).await;
        let asked = Gateways::towards(&node, &far);
        assert_eq!(asked.none_routes().await, no);
        assert_eq!(Vec::from_iter(asked.own_nets()), ["tcp"]);
    }
}
