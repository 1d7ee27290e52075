//! The ways of each client apart: how far a target is, is a matter of both its ends.
//!
//! A client that is far from every server has distance. A target that is far from a client whose other targets are near has a slow
//! link. Figures of all clients together would show neither.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Facts, Path, paths, seconds};
use super::links::Link;
use super::rules::RTT_NEAR_S;
use crate::attribution::{Joined, JoinedOp, Segment};

/// RPCs of a client from which on its least times are believed by themselves; those with fewer are taken together.
const ENOUGH_RPCS: u64 = 50;

/// Clients with the paths from them: one, or several with few RPCs each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clients {
    /// Their NIDs.
    pub nids: Vec<String>,
    /// Operations.
    pub count: u64,
    /// Seconds of these, all together.
    pub seconds: f64,
    /// Their paths, by target.
    pub paths: Vec<Path>,
}

/// Those of `ops`, apart; none where there is nothing to tell apart.
pub(super) fn clients(
    j: &Joined,
    ops: &[&JoinedOp],
    span: (i64, i64),
    stored: &[Option<u64>],
) -> Vec<Clients> {
    let mut rpcs: BTreeMap<usize, u64> = ops.iter().map(|o| (o.client, 0)).collect();
    for r in &j.rpcs {
        rpcs.entry(r.client).and_modify(|n| *n += 1);
    }
    let group = |(i, (client, n)): (usize, (&usize, &u64))| match *n >= ENOUGH_RPCS {
        true => (*client, i + 1),
        false => (*client, 0),
    };
    let groups: BTreeMap<usize, usize> = rpcs.iter().enumerate().map(group).collect();
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
        for p in &o.parts {
            let of = at.entry((g, p.at)).or_default();
            *of.entry(p.segment).or_default() += seconds(p.ns());
        }
    }
    for ((g, target), mut p) in paths(j, span, stored, |c| groups.get(&c).copied()) {
        p.op_seconds = at.remove(&(g, target)).unwrap_or_default();
        all.entry(g).or_default().paths.push(p);
    }
    all.into_values().collect()
}

/// What some clients see, of all that was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    f: &'a Facts,
    /// NIDs of the clients; none: it is all of them.
    pub nids: &'a [String],
    /// Their operations.
    pub count: u64,
    /// Seconds of these.
    pub seconds: f64,
    /// Paths from them.
    pub paths: &'a [Path],
}

impl Facts {
    /// What each client sees, or all of them where they are not told apart.
    pub(super) fn views<'a>(&'a self) -> Vec<View<'a>> {
        let all = View {
            f: self,
            nids: &[],
            count: self.count(),
            seconds: self.op_s(),
            paths: &self.paths,
        };
        let of = |c: &'a Clients| {
            let Clients {
                nids,
                count,
                seconds,
                paths,
            } = c;
            View {
                nids,
                count: *count,
                seconds: *seconds,
                paths,
                ..all
            }
        };
        match self.clients.is_empty() {
            true => vec![all],
            false => self.clients.iter().map(of).collect(),
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

    /// Waits for slots of a target, which are those of whatever its RPCs spend their time on: `what`, seconds of them.
    pub fn queued_for(&self, p: &Path, what: f64) -> f64 {
        self.at(Segment::ClientQueue, p) * what / p.service_s.max(1e-12)
    }

    /// Share of the operations' time that is on the way to a target and back: also what is held back before it is sent, as by a
    /// delay that LNet makes.
    pub fn on_way(&self, p: &Path) -> f64 {
        let at = |s: Segment| self.at(s, p);
        let held = p.held_s() * p.rpcs as f64 / self.f.op_s().max(1e-12);
        at(Segment::Network)
            + at(Segment::Bulk)
            + (at(Segment::Send) + at(Segment::ReplyOut)).min(held)
    }

    /// Least time there and back to a server. Of a busy way even the quickest RPC may have stood in a queue: where TCP has measured
    /// the way, that counts, with what was held back before it was sent.
    pub fn unqueued(&self, p: &Path) -> f64 {
        let mine = |nid: &String| self.nids.is_empty() || self.nids.contains(nid);
        let ends =
            |l: &Link| (l.from == p.peer && mine(&l.to)) || (l.to == p.peer && mine(&l.from));
        let of = |l: &&Link| ends(l) && l.least_rtt_s > 0.0;
        let least = self.f.links.iter().filter(of).map(|l| l.least_rtt_s);
        let least = least.fold(f64::INFINITY, f64::min);
        p.rtt_s.min(least + p.send_s)
    }

    fn is_far(&self) -> bool {
        let used = self.paths.iter().filter(|p| p.rpcs > 0);
        let nearest = used.map(|p| p.rtt_s).fold(f64::INFINITY, f64::min);
        nearest.is_finite() && nearest > RTT_NEAR_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_clients_are_told_in_few_words() {
        let nids: Vec<String> = (0..300).map(|i| format!("c{i}@tcp")).collect();
        assert_eq!(who(&nids[..0]), None);
        assert_eq!(who(&nids[..1]).as_deref(), Some("c0@tcp"));
        assert_eq!(who(&nids).as_deref(), Some("300 clients, c0@tcp for one"));
    }
}
