//! The peer table: which NIDs belong to one node, under its primary NID (lnet/lnet/peer.c).
//!
//! Plain state, filled by traffic, ping answers, pushes and the operator. What comes from outside costs bounded memory: so many
//! NIDs, and of each peer what a ping answer holds without its tail. In a full table room is made by those whom nobody uses, and
//! then by those whom the same hop brought.
//!
//! Invariants: a NID belongs to one peer; the first NID of a peer is its primary one; a peer that says which NIDs it has cannot
//! take one that another peer has said, that somebody else speaks with us by, or that the operator has given, unless that one
//! says the same; a NID on a network of ours that has not said itself where it belongs speaks, and is sent to, for itself alone.
//! (Lustre believes whoever spoke last, but for what the operator has given: `lnet_peer_add_nid`.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use coral_wire::lnet::{PingInfo, feat};

use crate::Nid;
use crate::ni::Ni;

/// Most NIDs of one peer that are kept.
const MAX_NIS: usize = 64;
/// When all entries are in use, uses of the table until it is looked through again for room, or milliseconds.
const LOOK_AGAIN: (u64, u64) = (1024, 1000);

/// Milliseconds for which nothing of a peer that told about itself, and has no connection, was seen, until it is idle. Behind a
/// router that is all one knows. PTLRPC pings every 25 s.
const SILENCE_MS: u64 = 300_000;
/// One hop may bring so much of the table.
const HOP_SHARE: usize = 2;

/// Whose word it is what a peer is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Of a node of this process.
    Inside,
    /// Its own: by its own connection, or asked by us.
    Own,
    /// It came by way of this hop.
    Via(Nid),
}

/// Why a change of the peer table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The NID is one of ours.
    #[error("{0} is a NID of this node")]
    Ours(Nid),
    /// It belongs to somebody else.
    #[error("{nid} belongs to the peer {primary}")]
    Taken {
        /// The NID.
        nid: Nid,
        /// Primary NID of the peer that has it.
        primary: Nid,
    },
    /// There is no such peer, or the peer has no such NID.
    #[error("there is no peer {0}")]
    Missing(Nid),
    /// The table, or the peer's list, is full.
    #[error("the peer table is full")]
    Full,
}

/// Where the knowledge of a peer comes from, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// It was sent to or heard from.
    Traffic,
    /// It told.
    Discovered,
    /// The operator said so.
    Configured,
}

#[derive(Debug)]
struct Peer {
    source: Source,
    multi_rail: bool,
    nis: Vec<Arc<Ni>>,
    told: Option<PingInfo>,
    /// The hop that brought it into the table; None: it speaks for itself.
    hop: Option<Nid>,
    /// When it was last used, by [`PeerTable::clock`] and by [`PeerTable::now_ms`].
    used: (u64, u64),
}

impl Peer {
    /// Nobody but the table has its interfaces: there is no connection with it.
    fn is_apart(&self) -> bool {
        self.source < Source::Configured && self.nis.iter().all(is_apart)
    }

    /// And nothing was heard of it for long, when it is behind a router. Who never told about itself has nothing to lose.
    fn is_idle(&self, now_ms: u64) -> bool {
        self.is_apart()
            && (self.source == Source::Traffic
                || self.hop.is_none()
                || self.used.1 + SILENCE_MS <= now_ms)
    }

    fn ni(&self, nid: Nid) -> Option<&Arc<Ni>> {
        self.nis.iter().find(|n| n.nid == nid)
    }

    /// Whether `nid`, one of its NIDs, is known to be one.
    fn stands_for(&self, nid: Nid) -> bool {
        self.source == Source::Configured
            || self.nis.len() == 1
            || self.ni(nid).is_some_and(|n| n.is_vouched())
    }
}

/// Nobody but the table has it.
fn is_apart(ni: &Arc<Ni>) -> bool {
    Arc::strong_count(ni) == 1
}

/// A peer as it is, for whoever shows it.
#[derive(Clone, Debug)]
pub(crate) struct PeerView {
    pub(crate) primary: Nid,
    pub(crate) multi_rail: bool,
    pub(crate) nis: Vec<Arc<Ni>>,
    /// What it told of itself last.
    pub(crate) told: Option<PingInfo>,
}

/// All peers of a node.
#[derive(Debug)]
pub(crate) struct PeerTable {
    peers: BTreeMap<Nid, Peer>,
    primary_of: BTreeMap<Nid, Nid>,
    /// NIDs in the table by the hop that brought them.
    brought: BTreeMap<Nid, usize>,
    max: usize,
    /// Counts uses.
    clock: u64,
    /// Milliseconds of the node's life, as whoever uses the table says.
    pub(crate) now_ms: u64,
    /// When it is worth to look for room again.
    look_again: (u64, u64),
}

impl PeerTable {
    /// Keeps at most `max` NIDs.
    pub(crate) fn new(max: usize) -> PeerTable {
        PeerTable {
            peers: BTreeMap::new(),
            primary_of: BTreeMap::new(),
            brought: BTreeMap::new(),
            max,
            clock: 0,
            now_ms: 0,
            look_again: (0, 0),
        }
    }

    /// The interface with this NID, made if it is not there. Without room it is made and not kept.
    pub(crate) fn ni(&mut self, nid: Nid) -> Arc<Ni> {
        self.ni_by(nid, None)
    }

    /// The same, for one whom `hop` brings.
    fn ni_by(&mut self, nid: Nid, hop: Option<Nid>) -> Arc<Ni> {
        if let Some(ni) = self.find(nid) {
            return ni;
        }
        let ni = Arc::new(Ni::new(nid));
        self.make_room(1, nid, hop);
        if self.primary_of.len() < self.max {
            self.insert_single(ni.clone(), hop);
        }
        ni
    }

    fn insert_single(&mut self, ni: Arc<Ni>, hop: Option<Nid>) {
        let (nid, used) = (ni.nid, self.tick());
        self.insert(
            nid,
            Peer {
                source: Source::Traffic,
                multi_rail: false,
                nis: vec![ni],
                told: None,
                hop,
                used,
            },
        );
    }

    fn insert(&mut self, primary: Nid, peer: Peer) {
        for ni in &peer.nis {
            self.primary_of.insert(ni.nid, primary);
        }
        if let Some(hop) = peer.hop {
            *self.brought.entry(hop).or_default() += peer.nis.len();
        }
        self.peers.insert(primary, peer);
    }

    fn remove(&mut self, primary: Nid) -> Option<Peer> {
        let peer = self.peers.remove(&primary)?;
        for ni in &peer.nis {
            self.primary_of.remove(&ni.nid);
        }
        if let Some(hop) = peer.hop
            && let Some(n) = self.brought.get_mut(&hop)
        {
            *n -= peer.nis.len();
            if *n == 0 {
                self.brought.remove(&hop);
            }
        }
        Some(peer)
    }

    fn tick(&mut self) -> (u64, u64) {
        self.clock += 1;
        (self.clock, self.now_ms)
    }

    /// The peer with this NID, which is used.
    fn using(&mut self, nid: Nid) -> Option<(Nid, &Peer)> {
        let primary = *self.primary_of.get(&nid)?;
        let now = self.tick();
        let peer = self.peers.get_mut(&primary)?;
        peer.used = now;
        Some((primary, peer))
    }

    /// The peer with this NID.
    fn peer_of(&self, nid: Nid) -> Option<&Peer> {
        self.peers.get(self.primary_of.get(&nid)?)
    }

    fn find(&mut self, nid: Nid) -> Option<Arc<Ni>> {
        self.using(nid)?.1.ni(nid).cloned()
    }

    /// Makes room for `n` more NIDs that `hop` brings, if it can. `keep` stays. Some more than needed go at once, so that a flood
    /// of new NIDs does not look through the table for each.
    fn make_room(&mut self, n: usize, keep: Nid, hop: Option<Nid>) {
        let had = |t: &PeerTable, hop: Nid| t.brought.get(&hop).copied().unwrap_or(0);
        if let Some(hop) = hop {
            let over = (had(self, hop) + n).saturating_sub(self.max / HOP_SHARE);
            self.make_go(over, keep, |p| p.hop == Some(hop) && p.is_apart());
        }
        let missing = (self.primary_of.len() + n).saturating_sub(self.max);
        let (clock, now_ms) = self.tick();
        if missing == 0 || clock < self.look_again.0 && now_ms < self.look_again.1 {
            return;
        }
        // Those known by traffic alone first, the longest unused first.
        let mut missing =
            missing.saturating_sub(self.make_go(missing, keep, |p| p.is_idle(now_ms)));
        // All are in use: who has brought more than the newcomer's hop has to give, the newcomer's own hop among them; to one that
        // speaks for itself only who has brought much.
        let most = self
            .brought
            .iter()
            .max_by_key(|(_, n)| **n)
            .map(|(hop, n)| (*hop, *n));
        let bound = hop.map_or(self.max / HOP_SHARE / 2, |hop| had(self, hop) + n);
        if let Some((largest, most)) = most
            && (Some(largest) == hop || most > bound)
        {
            missing = missing.saturating_sub(
                self.make_go(missing, keep, |p| p.hop == Some(largest) && p.is_apart()),
            );
        }
        if missing > 0 {
            self.look_again = (clock + LOOK_AGAIN.0, now_ms + LOOK_AGAIN.1);
        }
    }

    /// Takes peers away that `may_go`, but for `keep`, until at least `n` NIDs are gone; gives how many went.
    fn make_go(&mut self, n: usize, keep: Nid, may_go: impl Fn(&Peer) -> bool) -> usize {
        if n == 0 {
            return 0;
        }
        let who = self
            .peers
            .iter()
            .filter(|(primary, p)| **primary != keep && may_go(p));
        let mut who: Vec<(Source, u64, Nid)> = who
            .map(|(primary, p)| (p.source, p.used.0, *primary))
            .collect();
        who.sort_unstable();
        let mut gone = 0;
        for (.., primary) in who {
            if gone >= n.max(self.max / 16) {
                break;
            }
            gone += self.remove(primary).map_or(0, |p| p.nis.len());
        }
        gone
    }

    /// Under which NID the node that has `nid` is known; `nid` itself when nothing else is known for sure.
    pub(crate) fn primary(&mut self, nid: Nid) -> Nid {
        self.using(nid)
            .filter(|(_, p)| p.stands_for(nid))
            .map_or(nid, |(primary, _)| primary)
    }

    /// Whether both NIDs are said to be one peer's.
    fn are_one(&self, a: Nid, b: Nid) -> bool {
        self.primary_of
            .get(&a)
            .is_some_and(|p| self.primary_of.get(&b) == Some(p))
    }

    /// Every NID under which the peer `nid` can be reached; empty when only that one is known for sure.
    pub(crate) fn rails(&mut self, nid: Nid) -> &[Arc<Ni>] {
        match self.using(nid).map(|(_, peer)| peer) {
            Some(p) if p.multi_rail && p.nis.len() > 1 && p.stands_for(nid) => &p.nis,
            _ => &[],
        }
    }

    /// The interface `nid`, when others say where it belongs and it has not said so itself.
    pub(crate) fn hearsay(&self, nid: Nid) -> Option<Arc<Ni>> {
        self.peer_of(nid)
            .filter(|p| !p.stands_for(nid))?
            .ni(nid)
            .cloned()
    }

    /// Whether it is said to be one of several NIDs of a peer, by whomever.
    pub(crate) fn is_one_of_several(&self, nid: Nid) -> bool {
        self.peer_of(nid)
            .is_some_and(|p| p.multi_rail && p.nis.len() > 1)
    }

    /// Whether any peer has more than one NID.
    pub(crate) fn has_rails(&self) -> bool {
        self.peers.values().any(|p| p.multi_rail && p.nis.len() > 1)
    }

    /// What the peer with this NID told of itself last.
    pub(crate) fn told(&self, nid: Nid) -> Option<PingInfo> {
        self.peer_of(nid)?.told.clone()
    }

    /// The node at `from` told about itself; `ours` are our own NIDs. Gives the interfaces that were not taken in for want of
    /// their own word.
    pub(crate) fn learn(
        &mut self,
        word: Word,
        from: Nid,
        mut info: PingInfo,
        ours: &[Nid],
    ) -> Vec<Arc<Ni>> {
        // Nobody reads it.
        info.tail = Bytes::new();
        // each once: whoever names a NID twice has it once
        let mut named = BTreeSet::new();
        let mut nids: Vec<Nid> = info
            .nids()
            .filter(|n| !ours.contains(n) && named.insert(*n))
            .take(MAX_NIS)
            .collect();
        let multi_rail = info.features & feat::MULTI_RAIL != 0;
        // What it says of itself must hold the NID it spoke from, else it is about somebody else.
        if !multi_rail || !nids.contains(&from) {
            nids = vec![from];
        }
        let hop = match word {
            // Of one who is known already others can only tell news.
            Word::Via(hop) if hop != from => self
                .peer_of(from)
                .filter(|p| p.source > Source::Traffic)
                .map_or(Some(hop), |p| p.hop),
            _ => None,
        };
        let itself = !matches!(word, Word::Via(hop) if hop != from);
        self.ni_by(from, hop);
        let Some(old) = self.primary_of.get(&from).copied() else {
            return Vec::new();
        };
        if let Some(p) = self
            .peers
            .get_mut(&old)
            .filter(|p| p.source == Source::Configured)
        {
            // The operator's list stands; what it told is kept to be seen.
            p.told = Some(info);
            return Vec::new();
        }
        let mut refused = Vec::new();
        nids.retain(|n| {
            let may = self.may_take(from, *n);
            if !may {
                refused.extend(
                    self.peer_of(*n)
                        .filter(|p| p.source < Source::Configured)
                        .and_then(|p| p.ni(*n))
                        .cloned(),
                );
            }
            may
        });
        self.make_room(
            nids.iter()
                .filter(|n| !self.primary_of.contains_key(n))
                .count(),
            old,
            hop,
        );
        let room = self.max.saturating_sub(self.primary_of.len());
        let mut fresh = 0;
        nids.retain(|n| {
            let known = self.primary_of.contains_key(n);
            fresh += usize::from(!known);
            known || fresh <= room
        });
        // Those on other networks than ours cannot be asked but by the way their word came; that way is not a neighbour's.
        let near = |n: Nid| ours.iter().any(|o| o.net() == n.net());
        let sure = |n: Nid| {
            word == Word::Inside
                || !near(n) && !near(from)
                || n == from && itself
                || self.agrees(from, n)
        };
        let vouched: Vec<bool> = nids.iter().map(|n| sure(*n)).collect();
        self.set(old, nids, multi_rail, Source::Discovered, Some(info), hop);
        for (ni, vouched) in self
            .peer_of(from)
            .map_or(&[][..], |p| &p.nis)
            .iter()
            .zip(vouched)
        {
            ni.vouch(vouched);
        }
        refused
    }

    /// Whether `nid` has said itself that it belongs to the node at `from`.
    fn agrees(&self, from: Nid, nid: Nid) -> bool {
        let said = |p: &Peer| p.told.as_ref().is_some_and(|t| t.nids().any(|n| n == from));
        self.peer_of(nid).is_some_and(|p| {
            p.ni(nid).is_some_and(|n| n.is_vouched()) && (self.are_one(from, nid) || said(p))
        })
    }

    /// Whether the node at `from` may say that `nid` is its own too: nobody else has, or `nid` has said so itself.
    fn may_take(&self, from: Nid, nid: Nid) -> bool {
        let Some(p) = self.peer_of(nid) else {
            return true;
        };
        let unused = || p.source == Source::Traffic && p.is_apart();
        self.are_one(from, nid)
            || p.source < Source::Configured && (self.agrees(from, nid) || unused())
    }

    /// Makes one peer of `nids` (first is primary), which takes over what the peer `old` and single NIDs had. Others of `old`
    /// that are connected go on alone.
    fn set(
        &mut self,
        old: Nid,
        nids: Vec<Nid>,
        multi_rail: bool,
        source: Source,
        told: Option<PingInfo>,
        hop: Option<Nid>,
    ) {
        let mut nis: BTreeMap<Nid, Arc<Ni>> = BTreeMap::new();
        for primary in nids
            .iter()
            .filter_map(|n| self.primary_of.get(n).copied())
            .chain([old])
            .collect::<Vec<_>>()
        {
            nis.extend(
                self.remove(primary)
                    .into_iter()
                    .flat_map(|p| p.nis)
                    .map(|ni| (ni.nid, ni)),
            );
        }
        let Some(primary) = nids.first().copied() else {
            return;
        };
        let nis_of = nids
            .into_iter()
            .map(|n| nis.remove(&n).unwrap_or_else(|| Arc::new(Ni::new(n))))
            .collect();
        let used = self.tick();
        self.insert(
            primary,
            Peer {
                source,
                multi_rail,
                nis: nis_of,
                told,
                hop,
                used,
            },
        );
        for ni in nis.into_values().filter(|ni| !is_apart(ni)) {
            self.insert_single(ni, hop);
        }
    }

    /// The operator says that these NIDs are one peer's, besides those it has.
    pub(crate) fn add(
        &mut self,
        primary: Nid,
        nids: &[Nid],
        ours: &[Nid],
    ) -> Result<(), PeerError> {
        let mut all = match self.peers.get(&primary) {
            Some(p) => p.nis.iter().map(|n| n.nid).collect(),
            None => vec![primary],
        };
        for n in nids {
            if !all.contains(n) {
                all.push(*n);
            }
        }
        for n in &all {
            if ours.contains(n) || n.is_lo() {
                return Err(PeerError::Ours(*n));
            }
            match self.primary_of.get(n) {
                Some(p)
                    if *p != primary
                        && self
                            .peers
                            .get(p)
                            .is_some_and(|p| p.source > Source::Traffic) =>
                {
                    return Err(PeerError::Taken {
                        nid: *n,
                        primary: *p,
                    });
                }
                _ => {}
            }
        }
        let fresh = |me: &PeerTable| {
            all.iter()
                .filter(|n| !me.primary_of.contains_key(n))
                .count()
        };
        self.make_room(fresh(self), primary, None);
        // some of them may have been what made room
        if all.len() > MAX_NIS || self.primary_of.len() + fresh(self) > self.max {
            return Err(PeerError::Full);
        }
        let told = self.told(primary);
        self.set(primary, all, true, Source::Configured, told, None);
        Ok(())
    }

    /// Takes NIDs of a peer away; with none given, or when the primary one is among them, the whole peer.
    pub(crate) fn del(&mut self, primary: Nid, nids: &[Nid]) -> Result<(), PeerError> {
        let peer = self
            .peers
            .get(&primary)
            .ok_or(PeerError::Missing(primary))?;
        if let Some(n) = nids.iter().find(|n| peer.ni(**n).is_none()) {
            return Err(PeerError::Missing(*n));
        }
        if let Some(mut peer) = self.remove(primary)
            && !(nids.is_empty() || nids.contains(&primary))
        {
            peer.nis.retain(|n| !nids.contains(&n.nid));
            peer.source = Source::Configured;
            self.insert(primary, peer);
        }
        Ok(())
    }

    /// Every peer.
    pub(crate) fn views(&self) -> Vec<PeerView> {
        let view = |(primary, p): (&Nid, &Peer)| PeerView {
            primary: *primary,
            multi_rail: p.multi_rail,
            nis: p.nis.clone(),
            told: p.told.clone(),
        };
        self.peers.iter().map(view).collect()
    }

    /// Every interface of every peer.
    pub(crate) fn nis(&self) -> impl Iterator<Item = &Arc<Ni>> {
        self.peers.values().flat_map(|p| &p.nis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(n: u32) -> Nid {
        Nid::new(coral_wire::nid::NET_TCP, n)
    }

    fn info(features: u32, nids: &[Nid]) -> PingInfo {
        PingInfo::new(features, 12345, 1, nids)
    }

    const MR: u32 = feat::MULTI_RAIL | feat::DISCOVERY;

    #[test]
    fn a_peer_that_tells_its_nids_becomes_one() {
        let mut t = PeerTable::new(10);
        let counted = t.ni(nid(2));
        t.ni(nid(3));
        assert!(t.rails(nid(2)).is_empty() && !t.has_rails());
        let unsure = t.learn(
            Word::Own,
            nid(3),
            info(MR, &[nid(2), nid(3), nid(9)]),
            &[nid(9)],
        );
        assert_eq!(
            unsure.iter().map(|n| n.nid).collect::<Vec<_>>(),
            [nid(2)],
            "it is connected: it is to be asked"
        );
        assert_eq!((t.primary(nid(3)), t.primary(nid(2))), (nid(3), nid(2)));
        assert!(
            t.learn(
                Word::Own,
                nid(2),
                info(MR, &[nid(2), nid(3), nid(9)]),
                &[nid(9)]
            )
            .is_empty(),
            "and says the same"
        );
        assert_eq!(t.primary(nid(3)), nid(2));
        assert_eq!(
            t.rails(nid(3)).len(),
            2,
            "one of our own NIDs is nobody else's"
        );
        assert!(
            Arc::ptr_eq(&t.rails(nid(3))[0], &counted),
            "counters are kept"
        );
        t.learn(Word::Own, nid(2), info(MR, &[nid(2)]), &[]);
        assert_eq!(t.primary(nid(3)), nid(3), "it has it no more");
        assert_eq!(t.views().len(), 1);
        let connected = t.ni(nid(2));
        t.learn(Word::Own, nid(3), info(MR, &[nid(2), nid(3)]), &[]);
        t.learn(Word::Own, nid(2), info(MR, &[nid(2), nid(3)]), &[]);
        t.learn(Word::Own, nid(3), info(MR, &[nid(3)]), &[]);
        assert!(
            Arc::ptr_eq(&t.ni(nid(2)), &connected) && !t.are_one(nid(2), nid(3)),
            "one that is connected goes on alone"
        );
    }

    #[test]
    fn without_multi_rail_a_nid_is_a_peer() {
        let mut t = PeerTable::new(10);
        t.learn(Word::Own, nid(2), info(0, &[nid(2), nid(3)]), &[]);
        assert_eq!(t.primary(nid(3)), nid(3));
        assert!(!t.has_rails());
    }

    #[test]
    fn nobody_takes_the_nids_of_others() {
        let mut t = PeerTable::new(10);
        t.learn(Word::Own, nid(2), info(MR, &[nid(2), nid(3)]), &[]);
        t.learn(Word::Own, nid(4), info(MR, &[nid(4), nid(3), nid(2)]), &[]);
        assert_eq!((t.primary(nid(3)), t.primary(nid(4))), (nid(2), nid(4)));
        t.learn(Word::Own, nid(5), info(MR, &[nid(6), nid(7)]), &[]);
        assert_eq!(t.primary(nid(6)), nid(6), "it told of somebody else");
        assert_eq!(
            t.add(nid(4), &[nid(3)], &[]),
            Err(PeerError::Taken {
                nid: nid(3),
                primary: nid(2)
            })
        );
    }

    #[test]
    fn who_is_listed_by_others_speaks_for_itself_until_it_says_the_same() {
        let ours = [nid(1)];
        let mut t = PeerTable::new(10);
        let (bad, victim, second) = (nid(9), nid(2), nid(3));
        t.learn(Word::Own, bad, info(MR, &[victim, bad]), &ours);
        assert!(
            t.rails(victim).is_empty()
                && t.primary(victim) == victim
                && t.hearsay(victim).is_some()
        );
        t.learn(Word::Own, bad, info(MR, &[bad, victim]), &ours);
        assert!(
            t.rails(victim).is_empty() && t.primary(victim) == victim,
            "not under the other's name either"
        );
        assert_eq!(
            t.rails(bad).len(),
            2,
            "where its own messages go it may say"
        );
        // Its word by somebody else's connection is not its own.
        t.learn(Word::Via(bad), victim, info(MR, &[bad, victim]), &ours);
        assert!(t.rails(victim).is_empty());
        // Asked, it knows nothing of the other.
        t.learn(Word::Own, victim, info(MR, &[victim, second]), &ours);
        assert!(
            !t.are_one(victim, bad) && t.rails(victim).len() == 2 && t.rails(second).is_empty()
        );
        assert_eq!(
            t.learn(Word::Own, bad, info(MR, &[bad, victim]), &ours)
                .len(),
            1,
            "it is refused, and asked again"
        );
        assert!(!t.are_one(victim, bad) && t.rails(victim).iter().all(|n| n.nid != bad));
        t.learn(Word::Own, second, info(MR, &[victim, second]), &ours);
        assert_eq!((t.primary(second), t.rails(second).len()), (victim, 2));
        t.learn(Word::Own, victim, info(MR, &[victim, second]), &ours);
        assert_eq!(t.rails(second).len(), 2, "it has said so, and that stands");
    }

    #[test]
    fn a_neighbour_does_not_speak_for_who_is_behind_a_router() {
        let ours = [nid(1)];
        let (bad, gateway, victim) = (nid(9), nid(2), far(5));
        let mut t = PeerTable::new(20);
        t.learn(Word::Via(bad), bad, info(MR, &[bad, victim]), &ours);
        assert!(
            t.primary(victim) == victim && t.rails(victim).is_empty(),
            "though nothing else is known of it"
        );
        assert!(
            t.is_one_of_several(victim) && t.rails(bad).len() == 2,
            "its own messages may go there"
        );
        let mut t = PeerTable::new(20);
        t.learn(
            Word::Via(gateway),
            victim,
            info(MR, &[victim, far(6)]),
            &ours,
        );
        t.learn(Word::Via(bad), bad, info(MR, &[bad, victim]), &ours);
        assert_eq!(
            (t.primary(far(6)), t.rails(victim).len()),
            (victim, 2),
            "and what it said of itself stands"
        );
    }

    #[test]
    fn two_peers_that_name_each_other_become_one() {
        let ours = [nid(1)];
        let mut t = PeerTable::new(10);
        t.learn(Word::Own, nid(2), info(MR, &[nid(2)]), &ours);
        let asked = t.learn(Word::Own, nid(3), info(MR, &[nid(2), nid(3)]), &ours);
        assert_eq!(
            (t.primary(nid(3)), asked[0].nid),
            (nid(3), nid(2)),
            "it has a new interface, and the old one has not said so yet"
        );
        t.learn(Word::Own, nid(2), info(MR, &[nid(2), nid(3)]), &ours);
        assert_eq!(
            (
                t.primary(nid(3)),
                t.rails(nid(3)).len(),
                t.rails(nid(2)).len()
            ),
            (nid(2), 2, 2)
        );
        // Who had agreed once and was alone since has to say it again.
        t.learn(Word::Own, nid(2), info(MR, &[nid(2)]), &ours);
        t.learn(Word::Own, nid(4), info(MR, &[nid(4), nid(3)]), &ours);
        assert!(t.rails(nid(3)).is_empty());
    }

    fn far(n: u32) -> Nid {
        Nid::new(coral_wire::nid::NET_TCP + 1, n)
    }

    #[test]
    fn a_flood_through_one_hop_replaces_what_that_hop_brought() {
        let ours = [nid(1)];
        let (good, bad) = (nid(2), nid(9));
        let push = |t: &mut PeerTable, hop, n| {
            t.learn(
                Word::Via(hop),
                far(n),
                info(MR, &[far(n), far(n + 1)]),
                &ours,
            )
        };
        let mut t = PeerTable::new(64);
        (10..30)
            .step_by(2)
            .for_each(|n| drop(push(&mut t, good, n)));
        for n in (1000..3000).step_by(2) {
            push(&mut t, bad, n);
            assert!(
                t.primary_of.len() <= 64
                    && t.brought.values().sum::<usize>() <= 64
                    && t.brought[&bad] <= 32,
                "{n}"
            );
        }
        assert!(
            (10..30).step_by(2).all(|n| t.rails(far(n)).len() == 2),
            "those behind the other hop are as they were"
        );
        assert_eq!(t.rails(far(2998)).len(), 2);
        // In a table full of peers in use those go of the hop that has brought most.
        (5000..6000)
            .step_by(2)
            .for_each(|n| drop(push(&mut t, nid(8), n)));
        assert!(
            t.brought[&good] == 20 && t.brought[&bad].max(t.brought[&nid(8)]) <= 32,
            "{:?}",
            t.brought
        );
        let known = (200..210)
            .step_by(2)
            .filter(|n| {
                push(&mut t, nid(7), *n);
                t.rails(far(*n)).len() == 2
            })
            .count();
        assert_eq!(
            known, 5,
            "and who comes later is known too: {:?}",
            t.brought
        );
        t.peers
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|p| drop(t.remove(p)));
        assert!(t.brought.is_empty() && t.primary_of.is_empty());
    }

    #[test]
    fn behind_a_router_a_peer_is_in_use_while_it_is_heard_of() {
        let ours = [nid(1)];
        let mut t = PeerTable::new(16);
        t.learn(
            Word::Via(nid(2)),
            far(1),
            info(MR, &[far(1), far(2)]),
            &ours,
        );
        for n in 0..100 {
            t.now_ms += SILENCE_MS / 2;
            assert_eq!(t.primary(far(2)), far(1), "a message of it comes");
            // Those that speak for themselves fill the table in between.
            (0..20).for_each(|i| {
                drop(t.learn(
                    Word::Own,
                    nid(1000 + 20 * n + i),
                    info(0, &[nid(1000 + 20 * n + i)]),
                    &ours,
                ))
            });
        }
        t.now_ms += SILENCE_MS;
        (0..20).for_each(|i| {
            drop(t.learn(Word::Own, nid(9000 + i), info(0, &[nid(9000 + i)]), &ours))
        });
        assert!(t.told(far(1)).is_none(), "it was silent for long");
    }

    #[test]
    fn the_operator_has_the_last_word() {
        let mut t = PeerTable::new(10);
        t.add(nid(2), &[nid(3), nid(4)], &[nid(1)]).unwrap();
        t.learn(Word::Own, nid(3), info(MR, &[nid(3)]), &[]);
        assert_eq!(t.primary(nid(4)), nid(2));
        assert_eq!(
            t.add(nid(5), &[nid(1)], &[nid(1)]),
            Err(PeerError::Ours(nid(1)))
        );
        assert_eq!(t.del(nid(2), &[nid(9)]), Err(PeerError::Missing(nid(9))));
        t.del(nid(2), &[nid(4)]).unwrap();
        assert_eq!((t.rails(nid(2)).len(), t.primary(nid(4))), (2, nid(4)));
        t.del(nid(2), &[]).unwrap();
        assert_eq!(t.del(nid(2), &[]), Err(PeerError::Missing(nid(2))));
        assert!(t.primary_of.is_empty());
    }

    #[test]
    fn a_nid_named_twice_is_there_once() {
        let mut t = PeerTable::new(10);
        t.ni(nid(1));
        let said = info(feat::MULTI_RAIL, &[nid(1), nid(2), nid(2), nid(1)]);
        t.learn(Word::Own, nid(1), said, &[]);
        let nis: Vec<Nid> = t.views()[0].nis.iter().map(|n| n.nid).collect();
        assert_eq!(nis, [nid(1), nid(2)]);
    }

    #[test]
    fn room_is_not_made_by_those_it_is_for() {
        let mut t = PeerTable::new(4);
        for n in 1..=4 {
            t.ni(nid(n));
        }
        let _ = t.add(nid(9), &[nid(1), nid(2), nid(3), nid(4)], &[]);
        assert!(t.nis().count() <= 4);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut t = PeerTable::new(3);
        t.learn(
            Word::Own,
            nid(2),
            info(MR, &(2..100).map(nid).collect::<Vec<_>>()),
            &[],
        );
        assert_eq!(t.primary_of.len(), 3);
        let connected = t.ni(nid(2));
        t.ni(nid(200));
        assert_eq!(t.primary(nid(200)), nid(200));
        assert_eq!(
            (t.primary_of.len(), t.rails(nid(4)).len()),
            (3, 3),
            "one who is connected stays"
        );
        assert_eq!(t.add(nid(201), &[], &[]), Err(PeerError::Full));
        drop(connected);
        assert_eq!(
            t.add(nid(201), &[], &[]),
            Err(PeerError::Full),
            "it may be under way still"
        );
        t.now_ms += SILENCE_MS;
        t.add(nid(201), &[], &[]).unwrap();
        assert_eq!(t.primary_of.len(), 1);
    }

    #[test]
    fn a_flood_of_nids_leaves_room_for_peers() {
        let mut t = PeerTable::new(32);
        t.add(nid(2), &[nid(3)], &[]).unwrap();
        t.learn(Word::Own, nid(4), info(MR, &[nid(4), nid(5)]), &[]);
        let connected = t.ni(nid(6));
        for n in 0..1000 {
            drop(t.ni(nid(1000 + n)));
            assert!(t.primary_of.len() <= 32);
        }
        assert_eq!(
            t.find(nid(1000 + 999)).map(|n| n.nid),
            Some(nid(1000 + 999)),
            "the last one is kept"
        );
        assert!(
            !t.primary_of.contains_key(&nid(1000)),
            "the first one is not"
        );
        assert_eq!(
            (t.rails(nid(3)).len(), t.rails(nid(4)).len()),
            (2, 2),
            "who told goes after who did not, what the operator gave never"
        );
        assert!(Arc::ptr_eq(&t.ni(nid(6)), &connected));
        t.learn(Word::Own, nid(7), info(MR, &[nid(7), nid(8), nid(9)]), &[]);
        assert_eq!(
            t.rails(nid(9)).len(),
            3,
            "and who comes later is discovered"
        );
        // Those who told go too, when all others have gone and they were silent for long.
        for n in 0..100 {
            t.now_ms += SILENCE_MS / 8;
            t.learn(Word::Own, nid(2000 + n), info(0, &[nid(2000 + n)]), &[]);
        }
        assert!(t.rails(nid(4)).is_empty() && t.told(nid(2099)).is_some());
    }

    #[test]
    fn what_a_peer_told_is_kept_without_its_tail() {
        let mut t = PeerTable::new(10);
        let long = PingInfo {
            tail: Bytes::from(vec![1; 4000]),
            ..info(MR, &[nid(2)])
        };
        t.learn(Word::Own, nid(2), long, &[]);
        assert_eq!(t.told(nid(2)).map(|i| i.tail.len()), Some(0));
    }
}
