//! The ways of each client apart: how far a target is, is a matter of both its ends.
//!
//! A client that is far from every server has distance. A target that is far from a client whose other targets are near has a slow
//! link. Figures of all clients together would show neither.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Facts, OpKind, Path, seconds, waited};
use super::hosts::{CORE_BUSY, CPU_WAIT};
use super::links::Link;
use super::notes::kind_of;
use super::requests::Requests;
use super::rules::RTT_NEAR_S;
use super::slots::part_of_default;
use super::stood::{Standstill, still_ns};
use crate::attribution::{Joined, JoinedOp, Segment};

/// RPCs of a client from which on it is told apart; of those with fewer, those that used the same targets are taken together.
const ENOUGH_RPCS: u64 = 50;
/// RPCs of a path from which on its least times are believed: the least of few may have stood in a queue.
pub(super) const ENOUGH_OF_PATH: u64 = 10;

/// Clients with the paths from them: one, or several with few RPCs each and the same targets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clients {
    /// Their NIDs.
    pub nids: Vec<String>,
    /// Operations.
    pub count: u64,
    /// Seconds of these, all together.
    pub seconds: f64,
    /// Operations by name.
    pub ops: Vec<OpKind>,
    /// As [`Facts::waited`], of their operations.
    pub waited: (f64, f64),
    /// Their paths, by target.
    pub paths: Vec<Path>,
}

/// Paths by group of clients and target.
type Paths = BTreeMap<(usize, usize), Path>;

/// Those of `ops`, apart; none where there is nothing to tell apart. `paths` makes paths of clients in groups, and `together` are those
/// of all clients.
pub(super) fn clients(
    j: &Joined,
    ops: &[&JoinedOp],
    together: &[Path],
    standstills: &[Standstill],
    paths: impl Fn(&dyn Fn(usize) -> Option<usize>) -> Paths,
) -> Vec<Clients> {
    let mut used: BTreeMap<usize, (u64, Vec<usize>)> =
        ops.iter().map(|o| (o.client, (0, vec![]))).collect();
    let mut nearest: BTreeMap<usize, f64> = BTreeMap::new();
    for ((client, target), p) in paths(&|client| Some(client)) {
        let (rpcs, targets) = used.entry(client).or_default();
        *rpcs += p.rpcs;
        targets.push(target);
        if p.rpcs >= ENOUGH_OF_PATH {
            let least = nearest.entry(client).or_insert(f64::INFINITY);
            *least = least.min(p.rtt_s);
        }
    }
    // One that is known to be far from all is not taken together with those that are near.
    let is_far = |client: &usize| {
        let least = nearest.get(client).copied().filter(|s| s.is_finite());
        least.is_some_and(|s| s > RTT_NEAR_S)
    };
    let mut alike: BTreeMap<(&[usize], bool), usize> = BTreeMap::new();
    let groups = used.iter().map(|(client, (rpcs, targets))| match rpcs {
        ENOUGH_RPCS.. => (*client, *client),
        _ => {
            let of = (targets.as_slice(), is_far(client));
            (*client, *alike.entry(of).or_insert(*client))
        }
    });
    let groups: BTreeMap<usize, usize> = groups.collect();
    if groups.values().collect::<BTreeSet<_>>().len() < 2 {
        return vec![];
    }
    let mut all: BTreeMap<usize, Clients> = BTreeMap::new();
    for (client, g) in &groups {
        let nid = j.names[*client].clone();
        all.entry(*g).or_default().nids.push(nid);
    }
    let mut at: BTreeMap<(usize, usize), BTreeMap<Segment, f64>> = BTreeMap::new();
    for o in ops {
        let g = groups[&o.client];
        let own = all.entry(g).or_default();
        own.count += 1;
        own.seconds += seconds(o.ns());
        let kind = kind_of(&mut own.ops, &o.op.op);
        kind.count += 1;
        kind.seconds += seconds(o.ns());
        for p in &o.parts {
            let of = at.entry((g, p.at)).or_default();
            let counted = p.ns() - still_ns(standstills, j, p);
            *of.entry(p.segment).or_default() += seconds(counted);
        }
    }
    for (g, own) in &mut all {
        own.waited = waited(j, ops.iter().copied().filter(|o| groups[&o.client] == *g));
    }
    for ((g, target), mut p) in paths(&|client| groups.get(&client).copied()) {
        p.op_seconds = at.remove(&(g, target)).unwrap_or_default();
        all.entry(g).or_default().paths.push(p);
    }
    let mut all: Vec<Clients> = all.into_values().collect();
    all.iter_mut().for_each(|c| believe(&mut c.paths, together));
    all
}

/// Of paths with few RPCs the least times are those of all clients to these targets, as far as the client is not farther from
/// everything: from what it sent enough to, or from all together.
fn believe(own: &mut [Path], together: &[Path]) {
    let total = own.iter().map(|p| p.rpcs).sum::<u64>();
    let least = |what: fn(&Path) -> f64| {
        let is_sure = |p: &&Path| total >= ENOUGH_RPCS || p.rpcs >= ENOUGH_OF_PATH;
        let sure = own.iter().filter(is_sure).map(what);
        sure.min_by(f64::total_cmp).unwrap_or(0.0)
    };
    let (nearest, held) = (least(|p| p.rtt_s), least(|p| p.send_s));
    for p in own.iter_mut().filter(|p| p.rpcs < ENOUGH_OF_PATH) {
        if let Some(all) = together.iter().find(|o| o.target == p.target) {
            p.rtt_s = p.rtt_s.min(all.rtt_s.max(nearest));
            p.send_s = p.send_s.min(all.send_s.max(held));
        }
    }
}

/// What some clients see, of all that was seen.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    f: &'a Facts,
    /// NIDs of the clients; none: it is all of them.
    pub nids: &'a [String],
    /// Their operations.
    pub count: u64,
    /// Seconds of these.
    pub seconds: f64,
    /// As [`Facts::waited`], of these.
    pub waited: (f64, f64),
    /// Paths from them.
    pub paths: &'a [Path],
    /// Least time there and back on each of these, seconds. Of a busy way even the quickest RPC may have stood in a queue, or waited for
    /// a processor: where TCP has measured such a way, that counts, with what was held back before it was sent. Elsewhere it does not:
    /// what LNet holds back where it arrives, TCP has never seen, and nobody stamps it.
    pub there: Vec<f64>,
    /// Of each of these, what TCP has measured where that counts; infinite: elsewhere.
    trips: Vec<f64>,
}

/// Least round trip that TCP has measured, by both ends and by one, in whichever direction.
#[derive(Default)]
struct LeastTrips<'a> {
    between: BTreeMap<(&'a str, &'a str), f64>,
    of: BTreeMap<&'a str, f64>,
}

impl<'a> LeastTrips<'a> {
    fn new(f: &'a Facts) -> Self {
        let mut all = Self::default();
        let is_starved =
            (f.hosts.iter()).any(|h| h.busiest_core >= CORE_BUSY || h.cpu_wait >= CPU_WAIT);
        // What stands before one direction delays the answers to the other.
        let queues = f.links.iter().filter(|l| is_starved || l.has_queue());
        let queues: BTreeSet<[&str; 2]> = queues.map(Link::ends).collect();
        let queued = f.links.iter().filter(|l| queues.contains(&l.ends()));
        for l in queued.filter(|l| l.least_rtt_s > 0.0) {
            for (from, to) in [(l.from.as_str(), l.to.as_str()), (&l.to, &l.from)] {
                for least in [
                    all.between.entry((from, to)).or_insert(f64::INFINITY),
                    all.of.entry(to).or_insert(f64::INFINITY),
                ] {
                    *least = least.min(l.least_rtt_s);
                }
            }
        }
        all
    }

    /// From the nearest of these clients; none: from whomever.
    fn to(&self, peer: &str, nids: &[String]) -> f64 {
        let least = match nids {
            [] => self.of.get(peer).copied(),
            _ => (nids.iter())
                .filter_map(|nid| self.between.get(&(nid.as_str(), peer)).copied())
                .min_by(f64::total_cmp),
        };
        least.unwrap_or(f64::INFINITY)
    }
}

impl Facts {
    /// What each client sees, or all of them where they are not told apart.
    pub(super) fn views<'a>(&'a self) -> Vec<View<'a>> {
        let trips = LeastTrips::new(self);
        let view = |nids: &'a [String], count, seconds, waited, paths: &'a [Path]| {
            let trips: Vec<f64> = paths.iter().map(|p| trips.to(&p.peer, nids)).collect();
            let there = paths.iter().zip(&trips);
            View {
                f: self,
                nids,
                count,
                seconds,
                waited,
                paths,
                there: there
                    .map(|(p, trip)| p.rtt_s.min(trip + p.send_s))
                    .collect(),
                trips,
            }
        };
        match self.clients.is_empty() {
            true => vec![view(
                &[],
                self.count(),
                self.op_s(),
                self.waited,
                &self.paths,
            )],
            false => (self.clients.iter())
                .map(|c| view(&c.nids, c.count, c.seconds, c.waited, &c.paths))
                .collect(),
        }
    }

    /// Those of clients from which every server is far.
    pub(super) fn far_views(&self) -> Vec<View<'_>> {
        let mut all = self.views();
        all.retain(View::is_far);
        all
    }
}

/// Clients in few words, with one of them for all where they are several; None: there are none.
pub(super) fn who<'a>(nids: impl IntoIterator<Item = &'a String>) -> Option<String> {
    let nids: Vec<&String> = nids.into_iter().collect();
    match nids[..] {
        [] => None,
        [one] => Some(one.clone()),
        [one, ..] => Some(format!("{} clients, {one} for one", nids.len())),
    }
}

impl View<'_> {
    /// Share of all operations' time that these clients had in a segment at a target.
    pub fn at(&self, s: Segment, p: &Path) -> f64 {
        match self.nids {
            [] => self.f.share(s, Some(&p.target)),
            _ => p.op_seconds.get(&s).copied().unwrap_or(0.0) / self.f.op_s().max(1e-12),
        }
    }

    /// The same at all targets.
    pub fn share(&self, s: Segment) -> f64 {
        match self.nids {
            [] => self.f.share(s, None),
            _ => self.paths.iter().map(|p| self.at(s, p)).sum(),
        }
    }

    /// Waits for slots of a target of which the way is to blame, on which its RPCs spend `way_s`.
    pub fn queued_for_way(&self, p: &Path, way_s: f64) -> f64 {
        let queued = self.at(Segment::ClientQueue, p) * part_of_default(p.in_flight_max);
        queued * way_s / p.service_s.max(1e-12)
    }

    /// Share of the operations' time that is on the way to a target and back: also what is held back before it is sent, as by a
    /// delay that LNet makes.
    pub fn on_way(&self, p: &Path) -> f64 {
        self.at(Segment::Network, p) + self.at(Segment::Bulk, p) + self.held(p) + self.unstamped(p)
    }

    /// The same of requests of which nobody knows when they were sent: no less than others.
    fn unstamped(&self, p: &Path) -> f64 {
        let late = p.late_waited_s() / self.f.op_s().max(1e-12);
        let missing = (late - self.held(p)).max(0.0);
        self.at(Segment::Remote, p).min(missing)
    }

    /// Share of the operations' time by which requests to a target and their replies were sent late because of the way.
    pub fn held(&self, p: &Path) -> f64 {
        let sending = self.at(Segment::Send, p) + self.at(Segment::ReplyOut, p);
        sending.min(p.held_waited_s() / self.f.op_s().max(1e-12))
    }

    /// The paths, each with the least time there and back.
    pub fn ways(&self) -> impl Iterator<Item = (&Path, f64)> {
        self.paths.iter().zip(self.there.iter().copied())
    }

    /// Kinds of requests on a path whose least times are believed, with their opcodes and the least time there and back of each, as
    /// [`View::there`]. Where TCP was not asked, even the quickest of those that carry much may have stood behind others' data.
    pub fn kinds(&self, path: &Path) -> impl Iterator<Item = (u32, &Requests, f64)> {
        let ways = self.paths.iter().zip(&self.trips);
        let of_path = ways.filter(|(p, _)| p.target == path.target);
        of_path.flat_map(|(p, trip)| {
            let is_known = |r: &Requests| r.is_known() && (!r.is_large() || self.knows_tcp());
            let known = p.kinds.iter().filter(move |(_, r)| is_known(r));
            known.map(move |(opc, r)| (*opc, r, r.rtt_s.min(trip + r.send_s)))
        })
    }

    /// Whether TCP was asked about connections.
    pub fn knows_tcp(&self) -> bool {
        !self.f.links.is_empty()
    }

    fn is_far(&self) -> bool {
        let used = self.paths.iter().zip(&self.there);
        let used = used.filter(|(p, _)| p.rpcs > 0).map(|(_, there)| *there);
        let nearest = used.fold(f64::INFINITY, f64::min);
        nearest.is_finite() && nearest > RTT_NEAR_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RPCs of each client to targets: the client, the target, how many, and how long the quickest is on the way.
    fn told_apart(used: &[(usize, usize, u64, f64)]) -> Vec<Clients> {
        let path = |target: usize, rpcs: u64, rtt_s: f64| Path {
            target: format!("fs-OST{target:04x}"),
            rpcs,
            rtt_s,
            send_s: rtt_s / 2.0,
            ..Path::default()
        };
        let grouped = |group: &dyn Fn(usize) -> Option<usize>| {
            let mut all = BTreeMap::<(usize, usize), Path>::new();
            for (client, target, rpcs, rtt_s) in used {
                let new = path(*target, *rpcs, *rtt_s);
                let old = all
                    .entry((group(*client).unwrap(), *target))
                    .or_insert(Path {
                        rpcs: 0,
                        ..new.clone()
                    });
                old.rpcs += rpcs;
                old.rtt_s = old.rtt_s.min(new.rtt_s);
                old.send_s = old.send_s.min(new.send_s);
            }
            all
        };
        let together: Vec<Path> = grouped(&|_| Some(0)).into_values().collect();
        let op = |client: usize| JoinedOp {
            op: coral_stopwatch::Op {
                id: 1,
                op: "READ".into(),
                fid: (1, 1, 0),
                span: (0, 1),
                run_ns: 0,
                waits: vec![],
            },
            client,
            parts: vec![],
            rpcs: vec![],
        };
        let ops: Vec<JoinedOp> = used.iter().map(|u| op(u.0)).collect();
        let j = Joined {
            names: (0..100).map(|i| format!("c{i}@tcp")).collect(),
            ..Joined::default()
        };
        clients(&j, &ops.iter().collect::<Vec<_>>(), &together, &[], grouped)
    }

    /// One is far from all, the other near, and neither used the other's target, beside one that is busy.
    #[test]
    fn clients_that_used_other_targets_are_not_compared() {
        let all = told_apart(&[(0, 0, 30, 0.02), (1, 1, 30, 0.000_1), (2, 2, 900, 0.000_1)]);
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|c| c.paths.len() == 1), "{all:?}");
        // the same targets: there it is one group, unless one is known to be far
        let groups = |rpcs: u64, far: f64| {
            let few = [(0, 0, rpcs, far), (1, 0, rpcs, 0.000_1)];
            let all = told_apart(&[few[0], few[1], (2, 2, 900, 0.000_1)]);
            all.iter().map(|c| c.nids.len()).collect::<Vec<_>>()
        };
        assert_eq!(groups(30, 0.001), [2, 1]);
        assert_eq!(groups(9, 0.02), [2, 1], "it may have been a queue");
        assert_eq!(groups(30, 0.02), [1, 1, 1]);
    }

    /// 21 requests to each of two OSTs that are 20 ms away, and three to the MDT, which another client that is near uses too.
    #[test]
    fn the_way_of_another_client_is_not_its_own() {
        let used = |c: usize, rpcs: [u64; 3], s: f64| {
            let used = rpcs.into_iter().enumerate();
            used.map(move |(t, rpcs)| (c, t, rpcs, s))
        };
        let far = used(0, [3, 21, 21], 0.02);
        let all: Vec<_> = far.chain(used(1, [90, 900, 900], 0.000_04)).collect();
        let all = told_apart(&all);
        let own = all.iter().find(|c| c.nids == ["c0@tcp"]).unwrap();
        let ways: Vec<_> = own.paths.iter().map(|p| (p.rtt_s, p.send_s)).collect();
        assert_eq!(ways, [(0.02, 0.01); 3]);
    }

    /// A client has sent one or two RPCs to each of 40 targets, some of which stood in a queue; others have sent many.
    #[test]
    fn the_least_of_few_rpcs_is_that_of_all_clients() {
        let queued = |t: usize| if t.is_multiple_of(3) { 0.03 } else { 0.000_2 };
        let seen = |client: usize, far: f64| {
            let few = (0..40).map(|t| (client, t, 2, far + queued(t)));
            let many = (0..40).map(|t| (client + 1, t, 90, 0.000_1));
            let all = told_apart(&few.chain(many).collect::<Vec<_>>());
            let own = all.iter().find(|c| c.nids == ["c0@tcp"]).unwrap();
            let ways = own.paths.iter().map(|p| p.rtt_s);
            (
                ways.clone().fold(f64::INFINITY, f64::min),
                ways.fold(0.0, f64::max),
            )
        };
        assert_eq!(seen(0, 0.0), (0.000_2, 0.000_2));
        // farther than the others from everything
        assert_eq!(seen(0, 0.02), (0.020_2, 0.020_2));
    }

    /// Of two ways between many clients and targets that TCP has measured, each has its own.
    #[test]
    fn a_way_counts_as_tcp_has_measured_it_without_its_queue() {
        let link = |from: &str, to: &str, least_rtt_s: f64| super::super::links::Link {
            from: from.into(),
            to: to.into(),
            least_rtt_s,
            waiting_bytes: 1e6,
            ..Default::default()
        };
        let path = Path {
            peer: "s@tcp".into(),
            rpcs: 100,
            rtt_s: 0.03,
            ..Path::default()
        };
        let of = |nid: &str| Clients {
            nids: vec![nid.into()],
            paths: vec![path.clone()],
            ..Clients::default()
        };
        let f = Facts {
            links: vec![
                link("c@tcp", "s@tcp", 0.000_2),
                link("s@tcp", "d@tcp", 0.01),
            ],
            clients: vec![of("c@tcp"), of("d@tcp"), of("e@tcp")],
            ..Facts::default()
        };
        let there: Vec<f64> = f.views().iter().map(|v| v.there[0]).collect();
        assert_eq!(there, [0.000_2, 0.01, 0.03]);
        let far = f.far_views();
        let far: Vec<&String> = far.iter().flat_map(|v| v.nids).collect();
        assert_eq!(far, ["d@tcp", "e@tcp"], "the first has a queue only");
        // a short round trip of TCP over which nothing waits: it is LNet that holds back what comes in
        let mut free = f.clone();
        free.links.iter_mut().for_each(|l| l.waiting_bytes = 500.0);
        let there: Vec<f64> = free.views().iter().map(|v| v.there[0]).collect();
        assert_eq!(there, [0.03; 3]);
        let together = Facts {
            clients: vec![],
            paths: vec![path],
            ..f
        };
        assert_eq!(together.views()[0].there, [0.000_2]);
    }

    #[test]
    fn many_clients_are_told_in_few_words() {
        let nids: Vec<String> = (0..300).map(|i| format!("c{i}@tcp")).collect();
        assert_eq!(who(&nids[..0]), None);
        assert_eq!(who(&nids[..1]).as_deref(), Some("c0@tcp"));
        assert_eq!(who(&nids).as_deref(), Some("300 clients, c0@tcp for one"));
    }
}
