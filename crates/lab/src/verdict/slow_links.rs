//! Ways to targets that are slower than others, of each client by itself.

use std::collections::{BTreeMap, BTreeSet};

use super::alike::{Alike, SlowTo};
use super::clients::{ENOUGH_OF_PATH, View, who};
use super::facts::{Facts, Path};
use super::rules::{
    Cause, CauseKind, MORE_LEAST_S, RTT_NEAR_S, SHARE_LEAST, TIMES_PEERS, mean_bytes, ms, peers,
};
use super::slow_kinds::{held_up, slow_kinds};

/// Two times are one where the less is so large a part of the other.
const NEARLY: f64 = 0.9;

/// A way that is slow as its client sees it.
struct SlowWay<'a> {
    /// Share of all operations' time.
    share: f64,
    figure: String,
    /// The quickest request tells it, and not the mean of all.
    is_far: bool,
    /// NIDs of the clients; none: it is all of them.
    from: &'a [String],
}

fn slow_way<'a>(v: &View<'a>, (p, own_way): (&Path, f64)) -> Option<SlowWay<'a>> {
    let share = v.on_way(p) + v.queued_for_way(p, p.way_s() * p.rpcs as f64);
    // What carries as many bytes: others are through before the data are. Of a way that nobody knows nothing is compared.
    let alike = |o: &Path| o.rtt_s.is_finite() && mean_bytes(o) >= mean_bytes(p) / TIMES_PEERS;
    let others = v.ways().filter(|(o, _)| o.target != p.target);
    let nearest = others.min_by(|(_, a), (_, b)| a.total_cmp(b));
    let more_least = match nearest.is_some_and(|(o, _)| alike(o)) {
        true => MORE_LEAST_S,
        false => RTT_NEAR_S,
    };
    let nearest = nearest.map_or(f64::INFINITY, |(_, there)| there);
    let known = nearest.is_finite() && own_way.is_finite();
    let far = known && own_way > TIMES_PEERS * nearest && own_way - nearest > more_least;
    let way = p.usual_way_s();
    let peers = peers(v.paths, p, alike, Path::usual_way_s);
    let is_slow = |m: f64| way > TIMES_PEERS * m && way - m > MORE_LEAST_S;
    let slow = p.rpcs >= ENOUGH_OF_PATH && own_way.is_finite() && peers.is_some_and(is_slow);
    (far || slow).then(|| SlowWay {
        share,
        figure: format!(
            "{} on the way an RPC, {}; {}",
            ms(way),
            match own_way < NEARLY * p.rtt_s && p.rtt_s.is_finite() {
                // What is more may be a queue, or what LNet holds back where it arrives.
                true => format!(
                    "{} at least there and back, {} of it as TCP and its sender have it",
                    ms(p.rtt_s),
                    ms(own_way)
                ),
                false => format!("{} at least there and back", ms(own_way)),
            },
            match (far, peers) {
                (false, Some(m)) => format!("its peers {}", ms(m)),
                _ => format!("the nearest server {}", ms(nearest)),
            }
        ),
        is_far: far,
        from: v.nids,
    })
}

/// Targets to which the way is slow from all clients that use it, or from some: for all requests, or for some kinds of them. `behind` are
/// those before which a queue stands.
pub(super) fn slow_links(f: &Facts, behind: &[String]) -> Vec<Cause> {
    let views = f.views();
    // Of a target to which nobody sent enough it is not known how far it is.
    let known = f.paths.iter().filter(|p| p.rpcs >= ENOUGH_OF_PATH);
    let known = known.filter(|p| !behind.contains(&p.target));
    let known: BTreeSet<&str> = known.map(|p| p.target.as_str()).collect();
    let mut all: BTreeMap<&str, Vec<SlowWay<'_>>> = BTreeMap::new();
    let mut of_kinds = vec![];
    for v in &views {
        for way in v.ways().filter(|(p, _)| known.contains(p.target.as_str())) {
            match slow_way(v, way) {
                Some(slow) => all.entry(&way.0.target).or_default().push(slow),
                None => of_kinds.extend(slow_kinds(v, way)),
            }
        }
    }
    let links: Vec<SlowLink> = all
        .into_iter()
        .map(|(target, ways)| SlowLink { target, ways })
        .collect();
    let (nodes, apart) = by_node(f, links);
    let own = apart.iter().filter_map(|l| l.cause(&views));
    let own = own.chain(nodes.iter().filter_map(|(node, on)| of_node(node, on)));
    own.chain(many(&apart)).chain(held_up(&of_kinds)).collect()
}

/// Nodes of which several targets are used, and the way to all of these is slow; and the others of these links.
fn by_node<'a>(
    f: &'a Facts,
    links: Vec<SlowLink<'a>>,
) -> (BTreeMap<&'a str, Vec<SlowLink<'a>>>, Vec<SlowLink<'a>>) {
    let peer = |target: &str| {
        let own = f.paths.iter().find(|p| p.target == target);
        own.map_or("", |p| p.peer.as_str())
    };
    let used = |node: &str| {
        let known = f.paths.iter().filter(|p| p.rpcs >= ENOUGH_OF_PATH);
        known.filter(|p| p.peer == node).count()
    };
    let mut nodes: BTreeMap<&str, Vec<SlowLink<'_>>> = BTreeMap::new();
    for l in links {
        nodes.entry(peer(l.target)).or_default().push(l);
    }
    let is_whole = |node: &str, on: usize| !node.is_empty() && on > 1 && on == used(node);
    let (whole, apart): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (nodes.into_iter()).partition(|(node, on)| is_whole(node, on.len()));
    (whole, apart.into_values().flatten().collect())
}

/// The way to a node is one, however many targets it has.
fn of_node(node: &str, links: &[SlowLink]) -> Option<Cause> {
    let share = links.iter().map(SlowLink::share).sum::<f64>();
    let most = links
        .iter()
        .max_by(|a, b| a.share().total_cmp(&b.share()))?;
    let worst = most.worst()?;
    let names: Vec<&str> = links.iter().map(|l| l.target).collect();
    let from: BTreeSet<&String> = links
        .iter()
        .flat_map(|l| &l.ways)
        .flat_map(|w| w.from)
        .collect();
    (share >= SHARE_LEAST).then(|| Cause {
        kind: CauseKind::SlowLink,
        subject: names.join(", "),
        fid: None,
        share: share.min(1.0),
        figure: format!(
            "{}; that is {}, for one: all of them are on {node}{}",
            worst.figure,
            most.target,
            who(from).map_or_else(String::new, |who| format!("; from {who}"))
        ),
        ceiling: None,
        change: format!("measure the way to {node} alone with `lst`"),
    })
}

/// A target, with the clients from which the way to it is slow.
struct SlowLink<'a> {
    target: &'a str,
    ways: Vec<SlowWay<'a>>,
}

impl SlowLink<'_> {
    fn share(&self) -> f64 {
        self.ways.iter().map(|w| w.share).sum()
    }

    fn worst(&self) -> Option<&SlowWay<'_>> {
        (self.ways.iter()).max_by(|a, b| a.share.total_cmp(&b.share))
    }

    /// It alone accounts for so much that it is told.
    fn cause(&self, views: &[View]) -> Option<Cause> {
        let (share, target) = (self.share(), self.target);
        let users = views.iter().flat_map(|v| v.paths);
        let users = users.filter(|p| p.target == target && p.rpcs > 0).count();
        let worst = self.worst()?;
        (share >= SHARE_LEAST).then(|| Cause {
            kind: CauseKind::SlowLink,
            subject: target.to_owned(),
            fid: None,
            share,
            figure: match who(self.ways.iter().flat_map(|w| w.from)) {
                Some(from) if self.ways.len() < users => format!("{}; from {from}", worst.figure),
                _ => worst.figure.clone(),
            },
            ceiling: None,
            change: format!("measure the way to {target} alone with `lst`"),
        })
    }
}

/// Targets that are all far, while a server is near, each of which has too little of the time to be told alone.
fn many<'a>(links: &[SlowLink<'a>]) -> Option<Cause> {
    let is_far = |l: &&SlowLink<'a>| l.share() < SHARE_LEAST && l.ways.iter().all(|w| w.is_far);
    let far: Vec<&SlowLink<'a>> = links.iter().filter(is_far).collect();
    let of = |l: &&SlowLink<'a>| {
        let mut to = SlowTo::new(l.target);
        l.ways.iter().for_each(|w| to.add(w.share, w.from));
        to
    };
    let alike = Alike::of(far.iter().map(of).collect())?;
    let worst = far.iter().find(|l| l.target == alike.most)?.worst()?;
    let figure = format!("{}; that is {}, for one", worst.figure, alike.most);
    alike.cause(
        figure,
        "measure the way to one of them alone with `lst`".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::facts::OpKind;
    use super::super::rules::causes;
    use super::*;
    use crate::attribution::Segment;

    /// A near MDT, and so many OSTs that are 20 ms away, which share the time.
    fn far_osts(count: u32) -> Vec<Cause> {
        far_osts_on(count, "")
    }

    /// The same with these OSTs on one node.
    fn far_osts_on(count: u32, node: &str) -> Vec<Cause> {
        let path = |target: String, way_s: f64| Path {
            peer: if way_s > 0.01 {
                node.into()
            } else {
                "m@tcp".into()
            },
            target,
            rpcs: 100,
            service_s: 100.0 * way_s,
            seconds: [(Segment::Network, 100.0 * way_s)].into(),
            rtt_s: way_s,
            ..Path::default()
        };
        let osts = (0..count).map(|i| path(format!("fs-OST{i:04x}"), 0.02));
        let paths: Vec<Path> = osts.chain([path("fs-MDT0000".into(), 0.000_1)]).collect();
        let f = Facts {
            window_s: 1.0,
            ops: vec![OpKind {
                op: "READ".into(),
                count: 100,
                seconds: paths.iter().map(|p| p.service_s).sum(),
            }],
            seconds: (paths.iter())
                .map(|p| ((Segment::Network, p.target.clone()), p.service_s))
                .collect(),
            paths,
            ..Facts::default()
        };
        causes(&f)
    }

    #[test]
    fn far_targets_are_told_together_where_none_has_much_of_the_time() {
        let four = far_osts(4);
        assert_eq!(four.len(), 4, "{four:?}");
        let eight = far_osts(8);
        let named: Vec<_> = eight
            .iter()
            .map(|c| (c.kind, c.targets().count()))
            .collect();
        assert_eq!(named, [(CauseKind::SlowLink, 8)], "{eight:?}");
        assert!(eight[0].share > 0.99, "{eight:?}");
        let told = "20.00 ms on the way an RPC, 20.00 ms at least there and back; the nearest server 100.0 us; that is fs-OST000";
        assert!(eight[0].figure.starts_with(told), "{eight:?}");
        assert!(eight[0].is_same(&four[1]) && !four[0].is_same(&four[1]));
    }

    #[test]
    fn a_node_that_is_far_is_one_cause_however_many_targets_it_has() {
        for count in [2, 4, 8] {
            let all = far_osts_on(count, "s@tcp");
            let named: Vec<_> = all.iter().map(|c| c.targets().count()).collect();
            assert_eq!(named, [count as usize], "{all:?}");
            let told = ", for one: all of them are on s@tcp";
            assert!(all[0].figure.ends_with(told), "{all:?}");
            assert!(all[0].change.contains("the way to s@tcp alone"), "{all:?}");
        }
    }
}
