//! Which way a message goes: to a node of this process, to a peer on a network of ours by one of several interfaces, or through
//! a gateway (lnet/lnet/lib-move.c, `lnet_select_pathway`).
//!
//! A plain destination on our own network costs one load more than without routes and Multi-Rail.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::ni::Ni;
use crate::routes::{GwLoad, net_name};
use crate::sock::Peer;
use crate::{Nid, Node, SendError};

/// The next hop.
#[derive(Clone)]
pub(crate) enum Route {
    /// A node of this process, perhaps ourselves.
    Mem(Arc<Node>),
    /// Over TCP.
    Sock(Arc<Peer>),
}

impl Route {
    /// NID of the next hop.
    pub(crate) fn hop(&self) -> Nid {
        match self {
            Route::Mem(node) => node.nid(),
            Route::Sock(peer) => peer.nid,
        }
    }
}

/// What is to be sent, as far as its way depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// The NID it must come from: an answer comes from where the question went.
    pub(crate) from: Option<Nid>,
    /// The hop by which came what it answers (`lnet_send`, `rtr_nid`).
    pub(crate) by: Option<Nid>,
    /// Bytes of payload, or what a GET asks for.
    pub(crate) bytes: usize,
}

impl Load {
    /// Something of our own.
    pub(crate) fn of(bytes: usize) -> Load {
        Load {
            bytes,
            ..Load::default()
        }
    }
}

/// The way of one message.
pub(crate) struct Path {
    pub(crate) route: Route,
    /// What its header says.
    pub(crate) src: Nid,
    pub(crate) dest: Nid,
    /// There are other ways, should this one fail.
    pub(crate) others: bool,
}

/// Networks kept in [`NoWay`].
const NO_WAY_KEPT: usize = 64;
/// Milliseconds after which it is said again that there is no way to a network.
const NO_WAY_AGAIN: u64 = 600_000;

/// Networks of which was said, and when, that nothing leads to them.
#[derive(Debug, Default)]
pub(crate) struct NoWay(BTreeMap<u32, u64>);

impl NoWay {
    /// Whether it is to be said of `net`: the first time, and then every ten minutes.
    fn is_news(&mut self, net: u32, now_ms: u64) -> bool {
        self.0.retain(|_, said| now_ms < *said + NO_WAY_AGAIN);
        let news = !self.0.contains_key(&net) && self.0.len() < NO_WAY_KEPT;
        if news {
            self.0.insert(net, now_ms);
        }
        news
    }
}

/// Next hops not to be tried again.
pub(crate) type Tried = SmallVec<[Nid; 4]>;

/// No further peer can be had.
const FULL: &str = "too many peers, or too many connects to those who only want an answer";

fn unreachable(nid: Nid, why: &'static str) -> SendError {
    SendError::Unreachable {
        nid,
        source: io::Error::new(io::ErrorKind::NetworkUnreachable, why),
    }
}

impl Node {
    /// Whether anything leads to the network of `nid`: a NID of ours, or a route, its gateway alive or not. When not, no message
    /// to it can be sent, however long one waits. Nodes of this process may come and go.
    pub fn leads_to(&self, nid: Nid) -> bool {
        self.has_mem() || self.reaches(nid.net()) || self.is_ours(nid)
    }

    /// Whether a NID of ours, or a route, leads to `net`.
    fn reaches(&self, net: u32) -> bool {
        self.nids().iter().any(|n| n.net() == net) || self.route_table().lock().leads_to(net)
    }

    /// Whether a message for `nid` is for us.
    pub(crate) fn is_ours(&self, nid: Nid) -> bool {
        nid == Nid::LO || self.nids().contains(&nid)
    }

    /// Whether the node of `peer` is of this process: it is this one, or one of the two lives in memory alone.
    pub fn is_beside(&self, peer: Nid) -> bool {
        peer.is_lo() || self.nids().contains(&peer) || self.nid().is_lo()
    }

    /// The way of a message to `to`.
    pub(crate) fn path(
        self: &Arc<Self>,
        load: Load,
        to: Nid,
        tried: &[Nid],
    ) -> Result<Path, SendError> {
        let found = self.path_by(load, to, tried, load.from.is_none());
        if found.is_err() {
            self.note_no_way(load.from, to);
        }
        found
    }

    /// The way to this very NID, although its node may have others.
    pub(crate) fn path_to_ni(self: &Arc<Self>, to: Nid) -> Result<Path, SendError> {
        self.path_by(Load::default(), to, &[], false)
    }

    /// The way on of a message of somebody else, which came from the hop `from`. Its source says nothing about how it leaves, and
    /// what its header says stays: it goes to that very NID.
    pub(crate) fn path_on(
        self: &Arc<Self>,
        to: Nid,
        from: Nid,
        bytes: usize,
    ) -> Result<Path, SendError> {
        self.path_by(Load::of(bytes), to, &[from], false)
    }

    fn path_by(
        self: &Arc<Self>,
        load: Load,
        to: Nid,
        tried: &[Nid],
        rails: bool,
    ) -> Result<Path, SendError> {
        let from = load.from;
        if self.is_down() {
            return Err(SendError::Shutdown);
        }
        if self.is_ours(to) {
            return Ok(Path {
                route: Route::Mem(self.clone()),
                src: from.unwrap_or(to),
                dest: to,
                others: false,
            });
        }
        let ours = self.nids().iter().copied().find(|n| n.net() == to.net());
        if ours.is_none()
            && self.has_routes()
            && let Some(found) = self.routed(load, to, tried)
        {
            return found;
        }
        if let Some(node) = self.mem_node(to) {
            return Ok(Path {
                route: Route::Mem(node),
                src: from.or(ours).unwrap_or(self.nid()),
                dest: to,
                others: false,
            });
        }
        if self.mem_alone() {
            return Err(unreachable(to, "no such node"));
        }
        if rails
            && self.has_rails()
            && let Some(path) = self.rail(to, tried)
        {
            return Ok(path);
        }
        match (ours, to.ipv4()) {
            (Some(local), Some(_)) => {
                let local = from
                    .filter(|f| f.net() == to.net())
                    .unwrap_or_else(|| self.local_towards(local, to));
                let peer = self
                    .sock()
                    .peer(local, to, from.is_some())
                    .ok_or_else(|| unreachable(to, FULL))?;
                Ok(Path {
                    route: Route::Sock(peer),
                    src: from.unwrap_or(local),
                    dest: to,
                    others: false,
                })
            }
            _ => Err(unreachable(
                to,
                "no network interface on its network, and no route to it",
            )),
        }
    }

    /// Counts a message of ours that finds neither a NID nor a route to its network, and says so: who misses an answer sees only
    /// silence.
    fn note_no_way(&self, from: Option<Nid>, to: Nid) {
        let own = from.is_none_or(|f| self.is_ours(f));
        let net = to.net();
        if !own || self.is_down() || self.reaches(net) {
            return;
        }
        self.stats().local_no_route.inc();
        if self.no_way().lock().is_news(net, self.sock().now_ms()) {
            let net = net_name(net);
            tracing::warn!(node = %self.nid(), "no route to {net}: what is sent to {to} is dropped, replies to its requests too; add --route '{net} GATEWAY'");
        }
    }

    /// Of several NIDs of ours on the network of `to` the one that has connections with it, else `first`.
    fn local_towards(&self, first: Nid, to: Nid) -> Nid {
        let mut on_net = self.nids().iter().copied().filter(|n| n.net() == to.net());
        if on_net.clone().nth(1).is_none() {
            return first;
        }
        on_net
            .find(|n| self.sock().has_conns(*n, to))
            .unwrap_or(first)
    }

    /// The way through a gateway; None: there is no route to the network of `to`, dead or alive.
    fn routed(
        self: &Arc<Self>,
        load: Load,
        to: Nid,
        tried: &[Nid],
    ) -> Option<Result<Path, SendError>> {
        let Load { from, bytes, .. } = load;
        // A hop of this process is known by its primary NID.
        let beside = |n: &Arc<Node>| {
            n.nids()
                .iter()
                .copied()
                .find(|n| self.nids().iter().any(|o| o.net() == n.net()))
        };
        let by = load
            .by
            .map(|hop| self.mem_node(hop).as_ref().and_then(beside).unwrap_or(hop));
        let mut gone: SmallVec<[Nid; 4]> = SmallVec::from_slice(tried);
        let (gateway, others) = loop {
            let mut routes = self.route_table().lock();
            if !routes.leads_to(to.net()) {
                return None;
            }
            let found = routes
                .choose(to, bytes as u64, by, &gone, |gw| self.gateway_load(gw))
                .filter(|(gw, _)| !self.mem_alone() || !gone.contains(gw));
            drop(routes);
            match found {
                // What TCP would find out by connecting: another gateway is tried.
                Some((gw, _)) if self.mem_alone() && self.mem_node(gw).is_none() => gone.push(gw),
                Some(found) => break found,
                None => return Some(Err(unreachable(to, "no router on the way to it is alive"))),
            }
        };
        // Routes are taken only when we have a NID on the gateway's network. An answer leaves by the NID that was asked.
        let first = self
            .nids()
            .iter()
            .copied()
            .find(|n| n.net() == gateway.net())?;
        let local = from
            .filter(|f| f.net() == gateway.net())
            .unwrap_or_else(|| self.local_towards(first, gateway));
        let route = match self.mem_node(gateway) {
            Some(node) => Route::Mem(node),
            // A gateway is ours to connect to, whoever waits behind it.
            None => match self.sock().peer(local, gateway, false) {
                Some(peer) => Route::Sock(peer),
                None => return Some(Err(unreachable(to, FULL))),
            },
        };
        Some(Ok(Path {
            route,
            src: from.unwrap_or(local),
            dest: to,
            others,
        }))
    }

    fn gateway_load(&self, gateway: Nid) -> GwLoad {
        let health = self.peer_table().ni(gateway).health();
        let (queued, credits) = self.sock().load(gateway);
        GwLoad {
            health,
            queued,
            credits,
        }
    }

    /// The way to a peer with several NIDs (`lnet_get_best_ni`, `lnet_select_peer_ni`): health, credits, then in turn.
    fn rail(&self, to: Nid, tried: &[Nid]) -> Option<Path> {
        let rails: SmallVec<[Arc<Ni>; 4]> = self.peer_table().rails(to).iter().cloned().collect();
        let usable = |r: &&Arc<Ni>| {
            self.nids().iter().any(|n| n.net() == r.nid.net())
                && !tried.contains(&r.nid)
                && r.nid.ipv4().is_some()
        };
        let count = rails.iter().filter(usable).count();
        let theirs = rails.iter().filter(usable).min_by_key(|r| {
            (
                Reverse(r.health()),
                Reverse(self.sock().load(r.nid).1),
                r.seq.load(Ordering::Relaxed),
            )
        })?;
        let ours = self
            .nis()
            .iter()
            .filter(|n| n.nid.net() == theirs.nid.net())
            .min_by_key(|n| {
                (
                    n.is_down(),
                    Reverse(n.health()),
                    n.seq.load(Ordering::Relaxed),
                )
            })?;
        for ni in [theirs, ours] {
            ni.seq.fetch_add(1, Ordering::Relaxed);
        }
        let peer = self.sock().peer(ours.nid, theirs.nid, false)?;
        Some(Path {
            route: Route::Sock(peer),
            src: ours.nid,
            dest: theirs.nid,
            others: count > 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_route_is_said_once_in_ten_minutes_for_each_network() {
        let mut said = NoWay::default();
        assert!(said.is_news(1, 5) && !said.is_news(1, 6) && said.is_news(2, 6));
        assert!(!said.is_news(1, NO_WAY_AGAIN + 4) && said.is_news(1, NO_WAY_AGAIN + 5));
        assert_eq!(
            (0..1000).filter(|net| said.is_news(*net, 7)).count(),
            NO_WAY_KEPT - 2,
            "bounded"
        );
    }
}
