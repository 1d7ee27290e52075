//! Routes: which gateways lead to a network that is not ours, and which of them takes the next message.
//!
//! Plain state. The choice is `lnet_find_route_locked` of lnet/lnet/lib-move.c: gateways that are alive, then lowest priority
//! number, fewest hops, best health, fewest bytes queued, most credits. Among equals Lustre takes the one used longest ago
//! (`lr_seq`); here it is the one that was given the fewest bytes, a GET counting as what it asks for: in turn by messages, a
//! small message between two large ones sends all large ones the same way. The grammar of a route is that of the kernel module's `routes` parameter (lnet/lnet/config.c): `NET [HOPS] GATEWAY[:PRIORITY] ...`, several separated
//! by `;`, with `[a-b]` and `[a,b]` ranges; commas between gateways, and hops and priority behind them, are taken too.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use coral_wire::lnet::{LNET_NI_STATUS_UP, PingInfo, feat};

use crate::Nid;
use crate::gateway::{Gateway, GwEvent, GwState, GwTimers};

/// Most routes of one node.
const MAX_ROUTES: usize = 4096;
/// Most routes one text expands to.
const MAX_EXPANDED: usize = 1024;
/// Destinations beyond routers that are remembered.
const MAX_USED: usize = 4096;
/// Most hops of a route.
const MAX_HOPS: u8 = 255;
/// Bytes a message counts for beside its payload.
const HEADERS: u64 = 96;
/// A gateway that comes back, or is new, catches up on so many bytes at most.
const CATCH_UP: u64 = 4 << 20;

/// A route as an operator gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// The network it leads to: type in the high half, number in the low (see [`parse_net`]).
    pub net: u32,
    /// The router's NID on a network of ours.
    pub gateway: Nid,
    /// Routers on the way, 1 to 255; None: not said, which counts as 1.
    pub hops: Option<u8>,
    /// Routes with the lowest number are used, others only when those are dead. 0 by default.
    pub priority: u32,
}

/// Why a route is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The text is no route.
    #[error(
        "'{text}' is no route: {why}; expected 'NET GATEWAY[,GATEWAY...] [HOPS] [PRIORITY]', as in 'tcp1 10.0.0.4@tcp'"
    )]
    Syntax {
        /// What was given.
        text: String,
        /// What is wrong in it.
        why: String,
    },
    /// We have no NID on the gateway's network.
    #[error(
        "the gateway {gateway} of the route to {net} is on network {on}, on which this node has no NID"
    )]
    UnknownNet {
        /// Network of the route.
        net: String,
        /// Its gateway.
        gateway: Nid,
        /// The gateway's network.
        on: String,
    },
    /// The gateway is this node.
    #[error("the route to {net} through {gateway} leads through this node itself")]
    ThroughUs {
        /// Network of the route.
        net: String,
        /// Its gateway.
        gateway: Nid,
    },
    /// We are on that network.
    #[error("a route to {0} is of no use: this node is on {0} itself")]
    OwnNet(String),
    /// The gateway is on the network the route leads to.
    #[error(
        "the gateway {gateway} is on {net}, the network the route leads to; it must be on a network of this node"
    )]
    GatewayBeyond {
        /// Network of the route.
        net: String,
        /// Its gateway.
        gateway: Nid,
    },
    /// There is one already.
    #[error("there is a route to {net} through {gateway} already")]
    Exists {
        /// Network of the route.
        net: String,
        /// Its gateway.
        gateway: Nid,
    },
    /// There is none to take away.
    #[error("there is no route to {net} through {gateway}")]
    Missing {
        /// Network of the route.
        net: String,
        /// Its gateway.
        gateway: Nid,
    },
    /// The table is full.
    #[error("there are {MAX_ROUTES} routes already")]
    TooMany,
}

/// Name of a network, as in `tcp1`.
pub fn net_name(net: u32) -> String {
    let nid = Nid::new(net, 0).to_string();
    nid.split_once('@')
        .map_or(nid.clone(), |(_, name)| name.to_owned())
}

/// The network with this name; None: there is no such type.
pub fn parse_net(name: &str) -> Option<u32> {
    let name = name.trim();
    let nid = format!("0.0.0.0@{name}")
        .parse::<Nid>()
        .or_else(|_| format!("0@{name}").parse::<Nid>());
    nid.ok().map(Nid::net)
}

/// The routes a text means; see the head of this file for the grammar.
pub fn parse_routes(text: &str) -> Result<Vec<RouteSpec>, RouteError> {
    let mut out = Vec::new();
    for one in text.split([';', '\n']).filter(|s| !s.trim().is_empty()) {
        out.extend(parse_route(one.trim()).map_err(|why| RouteError::Syntax {
            text: one.trim().to_owned(),
            why,
        })?);
    }
    if out.is_empty() {
        return Err(RouteError::Syntax {
            text: text.to_owned(),
            why: "it is empty".into(),
        });
    }
    Ok(out)
}

/// Splits at commas and blanks outside of brackets.
fn words(text: &str) -> Vec<String> {
    let (mut out, mut depth, mut word) = (Vec::new(), 0i32, String::new());
    for c in text.chars() {
        depth += (c == '[') as i32 - (c == ']') as i32;
        if depth <= 0 && (c.is_whitespace() || c == ',') {
            out.push(std::mem::take(&mut word));
        } else {
            word.push(c);
        }
    }
    out.push(word);
    out.retain(|w| !w.is_empty());
    out
}

/// `LOW`, `LOW-HIGH` or `LOW-HIGH/STEP`, as they stand in brackets of NIDs: least, most and step.
pub(crate) fn range(item: &str) -> Option<(u32, u32, usize)> {
    let item = item.trim();
    let Some((lo, rest)) = item.split_once('-') else {
        let n = item.parse().ok()?;
        return Some((n, n, 1));
    };
    let (hi, step) = rest.split_once('/').unwrap_or((rest, "1"));
    let (lo, hi, step) = (
        lo.trim().parse().ok()?,
        hi.trim().parse().ok()?,
        step.trim().parse().ok()?,
    );
    (lo <= hi && step > 0).then_some((lo, hi, step))
}

/// `a[1-3,7]b` as a1b, a2b, a3b, a7b; `a[1-5/2]b` as a1b, a3b, a5b.
fn expand(word: &str, out: &mut Vec<String>) -> Result<(), String> {
    let Some(open) = word.find('[') else {
        out.push(word.to_owned());
        return if out.len() > MAX_EXPANDED {
            Err(format!("it means more than {MAX_EXPANDED} routes"))
        } else {
            Ok(())
        };
    };
    let close = word[open..]
        .find(']')
        .map(|i| open + i)
        .ok_or("a '[' without ']'")?;
    for part in word[open + 1..close].split(',') {
        let (lo, hi, step) = range(part)
            .filter(|(lo, hi, _)| hi - lo < MAX_EXPANDED as u32)
            .ok_or_else(|| format!("'{part}' is no range of numbers"))?;
        for n in (lo..=hi).step_by(step) {
            expand(&format!("{}{n}{}", &word[..open], &word[close + 1..]), out)?;
        }
    }
    Ok(())
}

fn parse_route(text: &str) -> Result<Vec<RouteSpec>, String> {
    let words = words(text);
    let mut it = words.iter().peekable();
    let mut nets = Vec::new();
    expand(it.next().ok_or("it is empty")?, &mut nets)?;
    let nets = nets
        .iter()
        .map(|n| {
            parse_net(n)
                .filter(|n| n >> 16 != coral_wire::nid::NET_LO >> 16)
                .ok_or(format!("'{n}' is no network"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let number = |w: &str| w.parse::<u32>().ok();
    let mut hops = it.next_if(|w| number(w).is_some()).and_then(|w| number(w));
    let mut gateways = Vec::new();
    while let Some(word) = it.next_if(|w| number(w).is_none()) {
        let (nids, priority) = match word.rsplit_once(':') {
            Some((nids, p)) => (
                nids,
                Some(number(p).ok_or(format!("'{p}' is no priority"))?),
            ),
            None => (word.as_str(), None),
        };
        let mut all = Vec::new();
        expand(nids, &mut all)?;
        for nid in all {
            let nid: Nid = nid.parse().map_err(|_| format!("'{nid}' is no NID"))?;
            if nid.is_lo() {
                return Err(format!("{nid} cannot be a gateway"));
            }
            gateways.push((nid, priority));
        }
    }
    if gateways.is_empty() {
        return Err("it has no gateway".into());
    }
    if let Some(word) = it.next() {
        match hops {
            None => hops = number(word),
            Some(_) => return Err(format!("'{word}' is one number too many")),
        }
    }
    let default_priority = it
        .next()
        .map(|w| number(w).ok_or(format!("'{w}' is no priority")))
        .transpose()?;
    if let Some(word) = it.next() {
        return Err(format!("'{word}' is one word too many"));
    }
    let hops = hops
        .map(|h| {
            u8::try_from(h)
                .ok()
                .filter(|h| *h >= 1)
                .ok_or(format!("{h} hops: give 1 to {MAX_HOPS}"))
        })
        .transpose()?;
    if nets.len() * gateways.len() > MAX_EXPANDED {
        return Err(format!("it means more than {MAX_EXPANDED} routes"));
    }
    let spec = |net: u32, (gateway, priority): (Nid, Option<u32>)| RouteSpec {
        net,
        gateway,
        hops,
        priority: priority.or(default_priority).unwrap_or(0),
    };
    Ok(nets
        .iter()
        .flat_map(|net| gateways.iter().map(|g| spec(*net, *g)))
        .collect())
}

/// What the choice between gateways looks at beside the routes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GwLoad {
    /// 0 to 1000.
    pub(crate) health: u32,
    /// Bytes queued for it.
    pub(crate) queued: u64,
    /// Send credits left.
    pub(crate) credits: usize,
}

#[derive(Debug)]
struct Route {
    spec: RouteSpec,
    /// Bytes it was chosen for, its messages' answers included.
    given: u64,
    /// The gateway said that it has no NI on the network.
    multi_hop: Option<bool>,
    /// The gateway's NI on the network is up, as far as it said.
    remote_up: bool,
}

impl Route {
    /// Takes in what the gateway says of its NIs (`lnet_router_discovery_ping_reply`).
    fn learn(&mut self, info: &PingInfo) {
        let mut of_net = info
            .nis
            .iter()
            .filter(|n| n.nid.net() == self.spec.net)
            .peekable();
        self.multi_hop = Some(of_net.peek().is_none());
        self.remote_up = match of_net.peek() {
            Some(_) => of_net.any(|n| n.status == LNET_NI_STATUS_UP),
            None => self.spec.hops != Some(1),
        };
    }
}

/// A route as it is, for whoever shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteView {
    pub(crate) spec: RouteSpec,
    pub(crate) alive: bool,
    pub(crate) multi_hop: bool,
}

/// All routes of a node.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    nets: BTreeMap<u32, Vec<Route>>,
    gateways: BTreeMap<Nid, Gateway>,
    /// Destinations that were sent to by a route, so that they can be told of when their gateway dies.
    used: BTreeSet<Nid>,
}

impl RouteTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.nets.is_empty()
    }

    /// Adds a route of a node that has the NIDs `us`.
    pub(crate) fn add(&mut self, us: &[Nid], spec: RouteSpec) -> Result<(), RouteError> {
        let (net, gateway) = (net_name(spec.net), spec.gateway);
        if us.contains(&gateway) {
            return Err(RouteError::ThroughUs { net, gateway });
        }
        if us.iter().any(|n| n.net() == spec.net) {
            return Err(RouteError::OwnNet(net));
        }
        if gateway.net() == spec.net {
            return Err(RouteError::GatewayBeyond { net, gateway });
        }
        if !us.iter().any(|n| n.net() == gateway.net()) {
            return Err(RouteError::UnknownNet {
                net,
                gateway,
                on: net_name(gateway.net()),
            });
        }
        if self.nets.values().map(Vec::len).sum::<usize>() >= MAX_ROUTES {
            return Err(RouteError::TooMany);
        }
        let list = self.nets.entry(spec.net).or_default();
        if list.iter().any(|r| r.spec.gateway == gateway) {
            return Err(RouteError::Exists { net, gateway });
        }
        list.push(Route {
            spec,
            given: 0,
            multi_hop: None,
            remote_up: true,
        });
        self.gateways.entry(gateway).or_insert_with(Gateway::new);
        Ok(())
    }

    /// Takes a route away.
    pub(crate) fn del(&mut self, net: u32, gateway: Nid) -> Result<(), RouteError> {
        let list = self.nets.get_mut(&net);
        let at = list
            .as_ref()
            .and_then(|l| l.iter().position(|r| r.spec.gateway == gateway));
        let (Some(list), Some(at)) = (list, at) else {
            return Err(RouteError::Missing {
                net: net_name(net),
                gateway,
            });
        };
        list.remove(at);
        if list.is_empty() {
            self.nets.remove(&net);
        }
        if !self
            .nets
            .values()
            .flatten()
            .any(|r| r.spec.gateway == gateway)
        {
            self.gateways.remove(&gateway);
        }
        Ok(())
    }

    /// Whether there is a route to `net`, alive or not.
    pub(crate) fn leads_to(&self, net: u32) -> bool {
        self.nets.contains_key(&net)
    }

    /// The gateway for the next message to `to`, of so many bytes, other than those in `not`, and whether there are others.
    /// `by`: the gateway the message came from which this one answers; it takes that way while it is alive.
    pub(crate) fn choose(
        &mut self,
        to: Nid,
        bytes: u64,
        by: Option<Nid>,
        not: &[Nid],
        load: impl Fn(Nid) -> GwLoad,
    ) -> Option<(Nid, bool)> {
        let gateways = &self.gateways;
        let routes = self.nets.get_mut(&to.net())?;
        let single = routes.len() == 1;
        let key = |r: &Route| {
            let rank = gateways
                .get(&r.spec.gateway)?
                .rank()
                .filter(|_| r.remote_up)?;
            let l = if single {
                GwLoad::default()
            } else {
                load(r.spec.gateway)
            };
            let hops = r.spec.hops.unwrap_or(1);
            let asked_by = by == Some(r.spec.gateway)
                && gateways.get(&r.spec.gateway)?.state() == GwState::Alive;
            Some((
                !asked_by,
                Reverse(rank),
                r.spec.priority,
                hops,
                Reverse(l.health),
                l.queued,
                Reverse(l.credits),
                r.given,
            ))
        };
        let most = routes.iter().map(|r| r.given).max()?;
        routes
            .iter_mut()
            .for_each(|r| r.given = r.given.max(most.saturating_sub(CATCH_UP)));
        let mut usable = 0;
        let mut best = None;
        for (i, r) in routes
            .iter()
            .enumerate()
            .filter(|(_, r)| !not.contains(&r.spec.gateway))
        {
            let Some(k) = key(r) else { continue };
            usable += 1;
            if best.as_ref().is_none_or(|(least, _)| k < *least) {
                best = Some((k, i));
            }
        }
        let best = &mut routes[best?.1];
        best.given += HEADERS + bytes;
        if self.used.len() < MAX_USED {
            self.used.insert(to);
        }
        Some((best.spec.gateway, usable > 1))
    }

    /// Destinations that messages went to by way of `gateway`, perhaps among others.
    pub(crate) fn reached_by(&self, gateway: Nid) -> Vec<Nid> {
        let leads = |net: u32| {
            self.nets
                .get(&net)
                .is_some_and(|l| l.iter().any(|r| r.spec.gateway == gateway))
        };
        self.used
            .iter()
            .copied()
            .filter(|n| leads(n.net()))
            .collect()
    }

    /// Something happened to a NID that may be a gateway. True: routes became usable or unusable.
    pub(crate) fn handle(
        &mut self,
        gateway: Nid,
        ev: GwEvent,
        now_ms: u64,
        timers: GwTimers,
    ) -> bool {
        self.gateways
            .get_mut(&gateway)
            .is_some_and(|gw| gw.handle(ev, now_ms, timers))
    }

    /// A gateway told about itself.
    pub(crate) fn answered(
        &mut self,
        gateway: Nid,
        info: &PingInfo,
        now_ms: u64,
        timers: GwTimers,
    ) -> bool {
        let routing = info.features & feat::RTE_DISABLED == 0;
        for r in self
            .nets
            .values_mut()
            .flatten()
            .filter(|r| r.spec.gateway == gateway)
        {
            r.learn(info);
        }
        self.handle(
            gateway,
            if routing {
                GwEvent::Answered
            } else {
                GwEvent::AnsweredNotRouting
            },
            now_ms,
            timers,
        )
    }

    /// The gateways that are to be pinged now.
    pub(crate) fn ask_due(&mut self, now_ms: u64) -> Vec<Nid> {
        self.gateways
            .iter_mut()
            .filter_map(|(nid, gw)| gw.ask_now(now_ms).then_some(*nid))
            .collect()
    }

    /// Whether `nid` is a gateway of ours.
    pub(crate) fn is_gateway(&self, nid: Nid) -> bool {
        self.gateways.contains_key(&nid)
    }

    /// Every gateway with its state.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = (Nid, GwState)> + '_ {
        self.gateways.iter().map(|(nid, gw)| (*nid, gw.state()))
    }

    /// Every route as it is.
    pub(crate) fn views(&self) -> Vec<RouteView> {
        let view = |r: &Route| RouteView {
            spec: r.spec,
            alive: r.remote_up
                && self
                    .gateways
                    .get(&r.spec.gateway)
                    .is_some_and(|g| g.state() == GwState::Alive),
            multi_hop: r.multi_hop.unwrap_or(r.spec.hops != Some(1)),
        };
        self.nets.values().flatten().map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TIMERS: GwTimers = GwTimers {
        interval: Duration::from_secs(60),
    };

    fn nid(s: &str) -> Nid {
        s.parse().unwrap()
    }

    fn net(s: &str) -> u32 {
        parse_net(s).unwrap()
    }

    #[test]
    fn grammar() {
        let r = |t: &str| parse_routes(t).unwrap();
        let one = |net_: &str, gw: &str, hops, priority| RouteSpec {
            net: net(net_),
            gateway: nid(gw),
            hops,
            priority,
        };
        assert_eq!(
            r("tcp1 10.0.0.4@tcp"),
            [one("tcp1", "10.0.0.4@tcp", None, 0)]
        );
        assert_eq!(
            r("tcp1 2 10.0.0.4@tcp:3"),
            [one("tcp1", "10.0.0.4@tcp", Some(2), 3)]
        );
        assert_eq!(
            r("tcp1 10.0.0.4@tcp 2 3"),
            [one("tcp1", "10.0.0.4@tcp", Some(2), 3)]
        );
        assert_eq!(r("tcp1 10.0.0.4@tcp, 10.0.0.5@tcp").len(), 2);
        assert_eq!(
            r("tcp1 10.0.0.[4-6,9]@tcp")
                .iter()
                .map(|r| r.gateway.addr() & 255)
                .collect::<Vec<_>>(),
            [4, 5, 6, 9]
        );
        assert_eq!(
            r("tcp1 10.0.0.[4-8/2]@tcp")
                .iter()
                .map(|r| r.gateway.addr() & 255)
                .collect::<Vec<_>>(),
            [4, 6, 8]
        );
        assert_eq!(r("tcp[1,2] 10.0.0.[4-5]@tcp; o2ib 10.0.0.4@tcp").len(), 5);
        for bad in [
            "",
            "tcp1",
            "tcp1 2",
            "nonet 10.0.0.4@tcp",
            "tcp1 10.0.0.4@nonet",
            "tcp1 0@lo",
            "lo 10.0.0.4@tcp",
            "tcp1 0 10.0.0.4@tcp",
            "tcp1 256 10.0.0.4@tcp",
            "tcp1 10.0.0.4@tcp:x",
            "tcp1 10.0.0.[4@tcp",
            "tcp1 10.0.0.[9-4]@tcp",
            "tcp1 1 10.0.0.4@tcp 2",
            "tcp1 10.0.0.4@tcp 1 2 3",
            "tcp[0-99999999] 1.1.1.1@tcp",
            "tcp[1-999] 10.0.0.[1-200]@tcp",
        ] {
            let err = parse_routes(bad).unwrap_err().to_string();
            assert!(err.contains("is no route"), "{bad}: {err}");
        }
    }

    fn table(routes: &str) -> RouteTable {
        let mut t = RouteTable::default();
        for r in parse_routes(routes).unwrap() {
            t.add(&[nid("10.0.0.1@tcp"), nid("10.2.0.1@tcp2")], r)
                .unwrap();
        }
        t
    }

    #[test]
    fn routes_that_make_no_sense() {
        let mut t = table("tcp1 10.0.0.4@tcp");
        let mut why = |s: &str| {
            t.add(
                &[nid("10.0.0.1@tcp"), nid("10.2.0.1@tcp2")],
                parse_routes(s).unwrap()[0],
            )
            .unwrap_err()
            .to_string()
        };
        assert!(why("tcp1 10.0.0.1@tcp").contains("through this node itself"));
        assert!(why("tcp2 10.0.0.4@tcp").contains("is on tcp2 itself"));
        assert!(why("tcp3 10.3.0.4@tcp3").contains("must be on a network of this node"));
        assert!(why("tcp3 10.4.0.4@tcp4").contains("no NID"));
        assert!(why("tcp1 10.0.0.4@tcp").contains("already"));
        assert!(t.del(net("tcp1"), nid("10.0.0.5@tcp")).is_err());
        t.del(net("tcp1"), nid("10.0.0.4@tcp")).unwrap();
        assert!(
            t.is_empty() && t.gateways.is_empty(),
            "a gateway without routes is forgotten"
        );
    }

    fn far() -> Nid {
        nid("10.1.0.9@tcp1")
    }

    fn no_load(_: Nid) -> GwLoad {
        GwLoad::default()
    }

    #[test]
    fn equals_take_turns_and_the_dead_are_left_out() {
        let mut t = table("tcp1 10.0.0.[4-5]@tcp");
        let (a, b) = (nid("10.0.0.4@tcp"), nid("10.0.0.5@tcp"));
        let picks = |t: &mut RouteTable| {
            (0..4)
                .map(|_| t.choose(far(), 0, None, &[], no_load).unwrap().0)
                .collect::<Vec<_>>()
        };
        assert_eq!(picks(&mut t), [a, b, a, b]);
        assert_eq!(t.reached_by(a), [far()]);
        assert!(
            t.choose(far(), 0, None, &[], no_load).unwrap().1,
            "there is another"
        );
        t.handle(a, GwEvent::Silent, 0, TIMERS);
        assert!(!t.choose(far(), 0, None, &[], no_load).unwrap().1);
        assert_eq!(picks(&mut t), [b; 4]);
        t.handle(b, GwEvent::ConnLost, 0, TIMERS);
        assert_eq!(picks(&mut t), [b; 4], "better than none");
        t.handle(b, GwEvent::Silent, 0, TIMERS);
        assert_eq!(t.choose(far(), 0, None, &[], no_load), None);
        t.handle(a, GwEvent::Answered, 0, TIMERS);
        assert_eq!(picks(&mut t), [a; 4]);
        assert_eq!(
            t.choose(far(), 0, None, &[a], no_load),
            None,
            "the one that just failed is not tried again"
        );
        assert_eq!(t.choose(nid("10.9.0.1@tcp9"), 0, None, &[], no_load), None);
    }

    #[test]
    fn equals_share_the_bytes_and_answers_go_back_by_their_way() {
        let mut t = table("tcp1 10.0.0.[4-5]@tcp");
        let gws = [nid("10.0.0.4@tcp"), nid("10.0.0.5@tcp")];
        for gw in gws {
            t.handle(gw, GwEvent::Answered, 0, TIMERS);
        }
        let mut bytes = [0; 2];
        let mut send = |t: &mut RouteTable, n: u64, by| {
            let gw = t.choose(far(), n, by, &[], no_load).unwrap().0;
            bytes[usize::from(gw == gws[1])] += n;
            bytes
        };
        for _ in 0..1000 {
            send(&mut t, 1 << 20, None);
            send(&mut t, 500, None);
        }
        let shared = send(&mut t, 0, None);
        assert!(
            shared[0].abs_diff(shared[1]) <= 2 << 20,
            "{shared:?}: a large one, a small one, a large one"
        );
        for _ in 0..9 {
            send(&mut t, 1 << 20, Some(gws[0]));
        }
        assert_eq!(
            send(&mut t, 0, None)[0] - shared[0],
            9 << 20,
            "all by the gateway the question came from"
        );
        t.handle(gws[0], GwEvent::ConnLost, 0, TIMERS);
        assert_eq!(
            send(&mut t, 1 << 20, Some(gws[0]))[1] - shared[1],
            1 << 20,
            "while it is alive"
        );
        // One that comes back, however long it was away, is not given everything.
        (0..1000).for_each(|_| {
            send(&mut t, 1 << 20, None);
        });
        t.handle(gws[0], GwEvent::Answered, 0, TIMERS);
        let before = send(&mut t, 0, None);
        (0..100).for_each(|_| {
            send(&mut t, 1 << 20, None);
        });
        let after = send(&mut t, 0, None);
        assert!(
            (after[0] - before[0]).abs_diff(after[1] - before[1]) <= CATCH_UP + (2 << 20),
            "{before:?} {after:?}"
        );
    }

    #[test]
    fn order_of_the_choice() {
        let mut t = table(
            "tcp1 10.0.0.4@tcp 2; tcp1 10.0.0.5@tcp 3; tcp1 10.0.0.6@tcp 1 1; tcp1 10.0.0.7@tcp 2",
        );
        let last = |n: Option<(Nid, bool)>| n.map(|(n, _)| n.addr() & 255);
        let busy = |busy: u32| {
            move |n: Nid| GwLoad {
                health: 1000,
                queued: u64::from(n.addr() & 255 == busy),
                credits: 8,
            }
        };
        assert_eq!(
            last(t.choose(far(), 0, None, &[], busy(4))),
            Some(7),
            "fewest bytes queued"
        );
        assert_eq!(last(t.choose(far(), 0, None, &[], busy(7))), Some(4));
        let sick = |n: Nid| GwLoad {
            health: if n.addr() & 255 == 4 { 900 } else { 1000 },
            queued: 9,
            credits: 8,
        };
        assert_eq!(
            last(t.choose(far(), 0, None, &[], sick)),
            Some(7),
            "health before load"
        );
        for dead in ["10.0.0.4@tcp", "10.0.0.7@tcp"] {
            t.handle(nid(dead), GwEvent::Silent, 0, TIMERS);
        }
        assert_eq!(
            last(t.choose(far(), 0, None, &[], no_load)),
            Some(5),
            "more hops"
        );
        t.handle(nid("10.0.0.5@tcp"), GwEvent::Silent, 0, TIMERS);
        assert_eq!(
            last(t.choose(far(), 0, None, &[], no_load)),
            Some(6),
            "priority 1 only when all of 0 are dead"
        );
    }

    #[test]
    fn a_gateway_whose_far_side_is_down_is_left_out() {
        let mut t = table("tcp1 10.0.0.4@tcp");
        let gw = nid("10.0.0.4@tcp");
        let mut info = PingInfo::new(
            feat::NI_STATUS | feat::MULTI_RAIL,
            12345,
            1,
            &[gw, nid("10.1.0.4@tcp1")],
        );
        t.answered(gw, &info, 0, TIMERS);
        assert!(t.views()[0].alive && !t.views()[0].multi_hop);
        info.nis[2].status = coral_wire::lnet::LNET_NI_STATUS_DOWN;
        t.answered(gw, &info, 0, TIMERS);
        assert_eq!(t.choose(far(), 0, None, &[], no_load), None);
        assert!(!t.views()[0].alive);
        info.nis.pop();
        t.answered(gw, &info, 0, TIMERS);
        assert!(
            t.views()[0].alive && t.views()[0].multi_hop,
            "another router is behind it"
        );
        info.features |= feat::RTE_DISABLED;
        t.answered(gw, &info, 0, TIMERS);
        assert_eq!(t.choose(far(), 0, None, &[], no_load), None);
    }
}
