//! The peer table: which NIDs belong to one node, under its primary NID (lnet/lnet/peer.c).
//!
//! Plain state, filled by traffic, ping answers, pushes and the operator. What comes from outside costs bounded memory: so many
//! NIDs, and of each peer what a ping answer holds without its tail. In a full table room is made by those whom nobody uses.
//!
//! Invariants: a NID belongs to one peer; the first NID of a peer is its primary one; a peer that says which NIDs it has cannot
//! take one that another peer has said, or the operator has given.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use coral_wire::lnet::{PingInfo, feat};

use crate::Nid;
use crate::ni::Ni;

/// Most NIDs of one peer that are kept.
const MAX_NIS: usize = 64;
/// When all entries are in use, uses of the table until it is looked through again for room.
const LOOK_AGAIN: u64 = 1024;

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
    /// When it was last used, by [`PeerTable::clock`].
    used: u64,
}

impl Peer {
    /// Nobody but the table has its interfaces: there is no connection with it, and no message under way.
    fn is_idle(&self) -> bool {
        self.source < Source::Configured && self.nis.iter().all(|n| Arc::strong_count(n) == 1)
    }
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
    max: usize,
    /// Counts uses.
    clock: u64,
    /// When it is worth to look for room again.
    look_again: u64,
}

impl PeerTable {
    /// Keeps at most `max` NIDs.
    pub(crate) fn new(max: usize) -> PeerTable {
        PeerTable { peers: BTreeMap::new(), primary_of: BTreeMap::new(), max, clock: 0, look_again: 0 }
    }

    /// The interface with this NID, made if it is not there. Without room it is made and not kept.
    pub(crate) fn ni(&mut self, nid: Nid) -> Arc<Ni> {
        if let Some(ni) = self.find(nid) {
            return ni;
        }
        let ni = Arc::new(Ni::new(nid));
        self.make_room(1, nid);
        if self.primary_of.len() < self.max {
            self.primary_of.insert(nid, nid);
            let (used, nis) = (self.tick(), vec![ni.clone()]);
            self.peers.insert(nid, Peer { source: Source::Traffic, multi_rail: false, nis, told: None, used });
        }
        ni
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The peer with this NID, which is used.
    fn using(&mut self, nid: Nid) -> Option<(Nid, &Peer)> {
        let primary = *self.primary_of.get(&nid)?;
        let now = self.tick();
        let peer = self.peers.get_mut(&primary)?;
        peer.used = now;
        Some((primary, peer))
    }

    fn find(&mut self, nid: Nid) -> Option<Arc<Ni>> {
        let (_, peer) = self.using(nid)?;
        peer.nis.iter().find(|n| n.nid == nid).cloned()
    }

    /// Makes room for `n` more NIDs, if it can: idle peers go, those known by traffic alone first, the longest unused first. Some
    /// more than needed go at once, so that a flood of new NIDs does not look through the table for each. `keep` stays.
    fn make_room(&mut self, n: usize, keep: Nid) {
        let missing = (self.primary_of.len() + n).saturating_sub(self.max);
        if missing == 0 || self.tick() < self.look_again {
            return;
        }
        let idle = self.peers.iter().filter(|(primary, p)| **primary != keep && p.is_idle());
        let mut idle: Vec<(Source, u64, Nid)> = idle.map(|(primary, p)| (p.source, p.used, *primary)).collect();
        idle.sort_unstable();
        let mut freed = 0;
        for (.., primary) in idle {
            if freed >= missing.max(self.max / 16) {
                break;
            }
            freed += self.forget(primary);
        }
        if freed < missing {
            self.look_again = self.clock + LOOK_AGAIN;
        }
    }

    /// Takes a peer away; gives how many NIDs it had.
    fn forget(&mut self, primary: Nid) -> usize {
        let nis = self.peers.remove(&primary).map_or_else(Vec::new, |p| p.nis);
        for ni in &nis {
            self.primary_of.remove(&ni.nid);
        }
        nis.len()
    }

    /// Primary NID of the peer that has `nid`; `nid` itself when nothing is known.
    pub(crate) fn primary(&mut self, nid: Nid) -> Nid {
        self.using(nid).map_or(nid, |(primary, _)| primary)
    }

    /// Every NID under which the peer `nid` can be reached; empty when only that one is known.
    pub(crate) fn rails(&mut self, nid: Nid) -> &[Arc<Ni>] {
        match self.using(nid).map(|(_, peer)| peer) {
            Some(p) if p.multi_rail && p.nis.len() > 1 => &p.nis,
            _ => &[],
        }
    }

    /// Whether any peer has more than one NID.
    pub(crate) fn has_rails(&self) -> bool {
        self.peers.values().any(|p| p.multi_rail && p.nis.len() > 1)
    }

    /// What the peer with this NID told of itself last.
    pub(crate) fn told(&self, nid: Nid) -> Option<PingInfo> {
        self.peers.get(self.primary_of.get(&nid)?)?.told.clone()
    }

    /// The node at `from` told about itself; `ours` are our own NIDs.
    pub(crate) fn learn(&mut self, from: Nid, mut info: PingInfo, ours: &[Nid]) {
        // Nobody reads it.
        info.tail = Bytes::new();
        let mut nids: Vec<Nid> = info.nids().filter(|n| !ours.contains(n)).take(MAX_NIS).collect();
        let multi_rail = info.features & feat::MULTI_RAIL != 0;
        // What it says of itself must hold the NID it spoke from, else it is about somebody else.
        if !multi_rail || !nids.contains(&from) {
            nids = vec![from];
        }
        self.ni(from);
        let Some(old) = self.primary_of.get(&from).copied() else { return };
        let keep = self.peers.get(&old).is_some_and(|p| p.source == Source::Configured);
        if keep {
            // The operator's list stands; what it told is kept to be seen.
            if let Some(p) = self.peers.get_mut(&old) {
                p.told = Some(info);
            }
            return;
        }
        nids.retain(|n| self.primary_of.get(n).is_none_or(|p| *p == old || self.peers.get(p).is_none_or(|p| p.source == Source::Traffic)));
        self.make_room(nids.iter().filter(|n| !self.primary_of.contains_key(n)).count(), old);
        let room = self.max.saturating_sub(self.primary_of.len());
        let mut fresh = 0;
        nids.retain(|n| {
            let known = self.primary_of.contains_key(n);
            fresh += usize::from(!known);
            known || fresh <= room
        });
        self.set(old, nids, multi_rail, Source::Discovered, Some(info));
    }

    /// Makes one peer of `nids` (first is primary), which takes over what the peer `old` and single NIDs had.
    fn set(&mut self, old: Nid, nids: Vec<Nid>, multi_rail: bool, source: Source, told: Option<PingInfo>) {
        let mut nis: BTreeMap<Nid, Arc<Ni>> = BTreeMap::new();
        for primary in nids.iter().filter_map(|n| self.primary_of.get(n).copied()).chain([old]).collect::<Vec<_>>() {
            if let Some(p) = self.peers.remove(&primary) {
                for ni in p.nis {
                    self.primary_of.remove(&ni.nid);
                    nis.insert(ni.nid, ni);
                }
            }
        }
        let Some(primary) = nids.first().copied() else { return };
        for n in &nids {
            self.primary_of.insert(*n, primary);
        }
        let nis = nids.into_iter().map(|n| nis.remove(&n).unwrap_or_else(|| Arc::new(Ni::new(n)))).collect();
        let used = self.tick();
        self.peers.insert(primary, Peer { source, multi_rail, nis, told, used });
    }

    /// The operator says that these NIDs are one peer's, besides those it has.
    pub(crate) fn add(&mut self, primary: Nid, nids: &[Nid], ours: &[Nid]) -> Result<(), PeerError> {
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
                Some(p) if *p != primary && self.peers.get(p).is_some_and(|p| p.source > Source::Traffic) => {
                    return Err(PeerError::Taken { nid: *n, primary: *p });
                }
                _ => {}
            }
        }
        let fresh = all.iter().filter(|n| !self.primary_of.contains_key(n)).count();
        self.make_room(fresh, primary);
        if all.len() > MAX_NIS || self.primary_of.len() + fresh > self.max {
            return Err(PeerError::Full);
        }
        let told = self.told(primary);
        self.set(primary, all, true, Source::Configured, told);
        Ok(())
    }

    /// Takes NIDs of a peer away; with none given, or when the primary one is among them, the whole peer.
    pub(crate) fn del(&mut self, primary: Nid, nids: &[Nid]) -> Result<(), PeerError> {
        let peer = self.peers.get_mut(&primary).ok_or(PeerError::Missing(primary))?;
        if let Some(n) = nids.iter().find(|n| !peer.nis.iter().any(|p| p.nid == **n)) {
            return Err(PeerError::Missing(*n));
        }
        if nids.is_empty() || nids.contains(&primary) {
            self.forget(primary);
            return Ok(());
        }
        peer.nis.retain(|n| !nids.contains(&n.nid));
        peer.source = Source::Configured;
        for n in nids {
            self.primary_of.remove(n);
        }
        Ok(())
    }

    /// Every peer.
    pub(crate) fn views(&self) -> Vec<PeerView> {
        let view = |(primary, p): (&Nid, &Peer)| PeerView { primary: *primary, multi_rail: p.multi_rail, nis: p.nis.clone(), told: p.told.clone() };
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
        t.learn(nid(3), info(MR, &[nid(2), nid(3), nid(9)]), &[nid(9)]);
        assert_eq!(t.primary(nid(3)), nid(2));
        assert_eq!(t.rails(nid(3)).len(), 2, "one of our own NIDs is nobody else's");
        assert!(Arc::ptr_eq(&t.rails(nid(3))[0], &counted), "counters are kept");
        t.learn(nid(2), info(MR, &[nid(2)]), &[]);
        assert_eq!(t.primary(nid(3)), nid(3), "it has it no more");
        assert_eq!(t.views().len(), 1);
    }

    #[test]
    fn without_multi_rail_a_nid_is_a_peer() {
        let mut t = PeerTable::new(10);
        t.learn(nid(2), info(0, &[nid(2), nid(3)]), &[]);
        assert_eq!(t.primary(nid(3)), nid(3));
        assert!(!t.has_rails());
    }

    #[test]
    fn nobody_takes_the_nids_of_others() {
        let mut t = PeerTable::new(10);
        t.learn(nid(2), info(MR, &[nid(2), nid(3)]), &[]);
        t.learn(nid(4), info(MR, &[nid(4), nid(3), nid(2)]), &[]);
        assert_eq!((t.primary(nid(3)), t.primary(nid(4))), (nid(2), nid(4)));
        t.learn(nid(5), info(MR, &[nid(6), nid(7)]), &[]);
        assert_eq!(t.primary(nid(6)), nid(6), "it told of somebody else");
        assert_eq!(t.add(nid(4), &[nid(3)], &[]), Err(PeerError::Taken { nid: nid(3), primary: nid(2) }));
    }

    #[test]
    fn the_operator_has_the_last_word() {
        let mut t = PeerTable::new(10);
        t.add(nid(2), &[nid(3), nid(4)], &[nid(1)]).unwrap();
        t.learn(nid(3), info(MR, &[nid(3)]), &[]);
        assert_eq!(t.primary(nid(4)), nid(2));
        assert_eq!(t.add(nid(5), &[nid(1)], &[nid(1)]), Err(PeerError::Ours(nid(1))));
        assert_eq!(t.del(nid(2), &[nid(9)]), Err(PeerError::Missing(nid(9))));
        t.del(nid(2), &[nid(4)]).unwrap();
        assert_eq!((t.rails(nid(2)).len(), t.primary(nid(4))), (2, nid(4)));
        t.del(nid(2), &[]).unwrap();
        assert_eq!(t.del(nid(2), &[]), Err(PeerError::Missing(nid(2))));
        assert!(t.primary_of.is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut t = PeerTable::new(3);
        t.learn(nid(2), info(MR, &(2..100).map(nid).collect::<Vec<_>>()), &[]);
        assert_eq!(t.primary_of.len(), 3);
        let connected = t.ni(nid(2));
        t.ni(nid(200));
        assert_eq!(t.primary(nid(200)), nid(200));
        assert_eq!((t.primary_of.len(), t.rails(nid(4)).len()), (3, 3), "one who is connected stays");
        assert_eq!(t.add(nid(201), &[], &[]), Err(PeerError::Full));
        drop(connected);
        t.clock += LOOK_AGAIN;
        t.add(nid(201), &[], &[]).unwrap();
        assert_eq!(t.primary_of.len(), 1);
    }

    #[test]
    fn a_flood_of_nids_leaves_room_for_peers() {
        let mut t = PeerTable::new(32);
        t.add(nid(2), &[nid(3)], &[]).unwrap();
        t.learn(nid(4), info(MR, &[nid(4), nid(5)]), &[]);
        let connected = t.ni(nid(6));
        for n in 0..1000 {
            drop(t.ni(nid(1000 + n)));
            assert!(t.primary_of.len() <= 32);
        }
        assert_eq!(t.find(nid(1000 + 999)).map(|n| n.nid), Some(nid(1000 + 999)), "the last one is kept");
        assert!(!t.primary_of.contains_key(&nid(1000)), "the first one is not");
        assert_eq!((t.rails(nid(3)).len(), t.rails(nid(4)).len()), (2, 2), "who told goes after who did not, what the operator gave never");
        assert!(Arc::ptr_eq(&t.ni(nid(6)), &connected));
        t.learn(nid(7), info(MR, &[nid(7), nid(8), nid(9)]), &[]);
        assert_eq!(t.rails(nid(9)).len(), 3, "and who comes later is discovered");
        // Those who told go too, when all others have gone.
        for n in 0..100 {
            t.learn(nid(2000 + n), info(0, &[nid(2000 + n)]), &[]);
        }
        assert!(t.rails(nid(4)).is_empty() && t.told(nid(2099)).is_some());
    }

    #[test]
    fn what_a_peer_told_is_kept_without_its_tail() {
        let mut t = PeerTable::new(10);
        let long = PingInfo { tail: Bytes::from(vec![1; 4000]), ..info(MR, &[nid(2)]) };
        t.learn(nid(2), long, &[]);
        assert_eq!(t.told(nid(2)).map(|i| i.tail.len()), Some(0));
    }
}
