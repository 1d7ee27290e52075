//! The MDT's connections to the other MDTs (`lustre/osp/lwp_dev.c`, `osp_dev.c`).
//!
//! They are light: the other end does not keep them on disk and waits for none of them after its restart, and lets them in while
//! it waits for clients. What must survive a restart of either end is in its own tables, not in requests to be replayed.
//! Who may speak as an MDT is whoever has a NID that the configuration gives for one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_lnet::{Nid, Node};
use coral_ptlrpc::{ConnectError, Import, ImportConfig, ImportState, Reply, Request as Rpc};
use coral_wire::connect::{ConnectFlags as F, ConnectFlags2 as F2};
use coral_wire::coral::updates::{Request, Seen};
use coral_wire::fld::{FLD_LOOKUP, LuSeqRange, RANGE_MDT, SEQ_ALLOC_SUPER};
use coral_wire::layout::LmvUserMd;
use coral_wire::mds::MdtBody;
use coral_wire::ost::ObdStatfs;
use coral_wire::ptlrpc::Message;
use coral_wire::{Errno, ObdConnectData, opc, portal};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::osp::OstTarget;
use super::store::MdtResult;
use super::turns::Turns;

/// Another MDT is waited for so long; then whoever asked is told to come back (EINPROGRESS).
pub(super) const PEER_LIMIT: Duration = Duration::from_secs(20);
/// Pause between attempts to connect to an MDT that was never there.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Longest order to another MDT: with what goes around it, it must fit into one LNet message.
const REQUEST_MAX_BYTES: usize = 1_000_000;
/// Requests to one MDT at a time.
const IN_FLIGHT: usize = 64;

/// How long the space of another MDT is taken to be what it was (`qos_maxage`).
const SPACE_MAX_AGE: Duration = Duration::from_secs(5);
/// Imbalance of free space, in percent, from which it weighs (`qos_threshold_rr` of MDTs).
const QOS_THRESHOLD_PERCENT: u128 = 5;
/// The space of all MDTs, in shares.
const SHARES: u128 = 1 << 32;

/// An MDT as the configuration names it.
pub type MdtTarget = OstTarget;

/// What a connection between MDTs asks for.
pub(super) const PEER_FLAGS: u64 = F::MDS_MDS.0 | F::LIGHTWEIGHT.0;

struct Peer {
    target: MdtTarget,
    import: Arc<Import>,
}

/// Space of the other MDTs, as they said last.
#[derive(Default)]
struct Room {
    asked_at: Option<Instant>,
    /// Bytes and inodes, in the units that Lustre compares.
    free: BTreeMap<u32, (u128, u128)>,
    turns: Turns,
}

/// Connections to the other MDTs of the file system.
pub struct Mdts {
    node: Arc<Node>,
    index: u32,
    /// There were others before this start.
    others: bool,
    client_uuid: String,
    peers: Mutex<BTreeMap<u32, Peer>>,
    room: Mutex<Room>,
    /// There are others than before.
    changed: watch::Sender<()>,
}

impl Mdts {
    /// Of the MDT `index`, called `mdt_name`; it has none yet. `others`: it had some before this start.
    pub(super) fn new(node: Arc<Node>, mdt_name: &str, index: u32, others: bool) -> Arc<Mdts> {
        Arc::new(Mdts {
            node,
            index,
            others,
            client_uuid: format!("{mdt_name}-lwp_UUID"),
            peers: Mutex::default(),
            room: Mutex::default(),
            changed: watch::Sender::new(()),
        })
    }

    /// The MDTs of the file system now, this one among them; others are connected to in the background. Returns whether there
    /// are any.
    pub(super) fn set(&self, mdts: Vec<MdtTarget>, version: u32) -> bool {
        let mut gone = Vec::new();
        let several = {
            let mut peers = self.peers.lock();
            for m in mdts
                .into_iter()
                .filter(|m| m.index != self.index && !m.nids.is_empty())
            {
                match peers.get(&m.index) {
                    Some(p) if p.target.uuid == m.uuid && p.target.nids == m.nids => {}
                    _ => {
                        let import = self.import_to(&m, version);
                        tokio::spawn(connect(Arc::downgrade(&import)));
                        gone.extend(peers.insert(m.index, Peer { target: m, import }));
                    }
                }
            }
            !peers.is_empty()
        };
        self.changed.send_replace(());
        for p in gone {
            tokio::spawn(async move { p.import.disconnect().await });
        }
        several
    }

    fn import_to(&self, m: &MdtTarget, version: u32) -> Arc<Import> {
        let flags = PEER_FLAGS
            | F::VERSION.0
            | F::FULL20.0
            | F::FID.0
            | F::AT.0
            | F::BULK_MBITS.0
            | F::FLAGS2.0;
        let data = ObdConnectData {
            connect_flags: F(flags),
            connect_flags2: F2(F2::REP_MBITS.0 | F2::CORAL.0),
            version,
            ..ObdConnectData::default()
        };
        let mut cfg = ImportConfig::mdt(&m.uuid, m.nids.clone(), &self.client_uuid, data);
        cfg.part = 1;
        cfg.max_in_flight = IN_FLIGHT;
        Import::new(self.node.clone(), cfg)
    }

    /// Whether there is such an MDT, as far as is known.
    pub(super) fn has(&self, index: u32) -> bool {
        index == self.index || self.peers.lock().contains_key(&index)
    }

    /// The MDTs on which new objects can be made, this one among them, by index: all but those that are known to be away.
    /// EINPROGRESS: there are others, and the MGS has yet to say which.
    pub(super) fn usable(&self) -> Result<Vec<u32>, Errno> {
        let peers = self.peers.lock();
        if self.others && peers.is_empty() {
            return Err(Errno::EINPROGRESS);
        }
        let there = |p: &Peer| {
            use ImportState::{Closed, Discon};
            !matches!(p.import.state(), Discon | Closed)
        };
        let others = peers.iter().filter(|(_, p)| there(p)).map(|(i, _)| *i);
        let all: BTreeSet<u32> = others.chain([self.index]).collect();
        Ok(all.into_iter().collect())
    }

    /// The same for shards that `lum` asks for. EINPROGRESS also where it lists an MDT that is away: that is waited for.
    pub(super) fn usable_for(&self, lum: &LmvUserMd) -> Result<Vec<u32>, Errno> {
        let usable = self.usable()?;
        let is_away = |m: u32| self.has(m) && !usable.contains(&m);
        match lum.objects.iter().any(|o| is_away(o.mds)) {
            true => Err(Errno::EINPROGRESS),
            false => Ok(usable),
        }
    }

    /// Takes `count` of the others among `usable` for shards: in turn, and by their space where that is uneven
    /// (`lod_mdt_alloc_qos`, `lod_mdt_alloc_rr`). Space is asked for in the background: until it is known, all are equal.
    pub(super) fn roomy(self: &Arc<Self>, usable: &[u32], count: usize) -> Vec<u32> {
        let others: Vec<u32> = usable
            .iter()
            .copied()
            .filter(|m| *m != self.index)
            .collect();
        let mut room = self.room.lock();
        if room.asked_at.is_none_or(|at| at.elapsed() >= SPACE_MAX_AGE) {
            room.asked_at = Some(Instant::now());
            tokio::spawn(ask_space(Arc::downgrade(self), others.clone()));
        }
        let weights = weights(&others, &room.free);
        let targets: Vec<(u32, i128)> = others.into_iter().zip(weights).collect();
        room.turns.take(&targets, count)
    }

    /// Asks an MDT what it has left.
    async fn statfs(&self, index: u32) -> Result<(u128, u128), Errno> {
        let rpc = Rpc::new(portal::MDS_REQUEST, opc::MDS_STATFS).push(&MdtBody::default());
        let reply = self.call(index, rpc).await?;
        let s: ObdStatfs = reply.get(1).map_err(|_| Errno::EPROTO)?;
        let bytes = u128::from(s.bavail) * u128::from(s.bsize);
        Ok((bytes >> 16, u128::from(s.ffree) >> 8))
    }

    /// Whether there are others, though they may not be known again yet.
    pub(super) fn several(&self) -> bool {
        self.others || !self.peers.lock().is_empty()
    }

    /// How many MDTs there are, this one among them, as far as is known.
    pub(super) fn count(&self) -> u32 {
        self.peers.lock().len() as u32 + 1
    }

    /// Index of this MDT.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Disconnects from all.
    pub(super) async fn stop(&self) {
        for p in self.end().into_values() {
            if p.import.state() == ImportState::Full {
                let _ = tokio::time::timeout(CONNECT_PAUSE, p.import.disconnect()).await;
            }
        }
    }

    /// Lets go of all, who are told nothing.
    pub(super) fn abandon(&self) {
        drop(self.end());
    }

    fn end(&self) -> BTreeMap<u32, Peer> {
        std::mem::take(&mut self.peers.lock())
    }

    /// Whether the configuration gives this NID for another MDT.
    pub(super) fn is_mdt(&self, nid: Nid) -> bool {
        let peers = self.peers.lock();
        peers.values().any(|p| p.target.nids.contains(&nid))
    }

    /// The connection to an MDT, which the configuration may not have named yet.
    async fn import(&self, index: u32) -> Arc<Import> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(p) = self.peers.lock().get(&index) {
                return p.import.clone();
            }
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Asks the MDT `index`; EINPROGRESS when it does not answer in time.
    async fn call(&self, index: u32, rq: Rpc) -> Result<Message, Errno> {
        let asking = async {
            let import = self.import(index).await;
            import.recovered().await;
            import.call(rq).await
        };
        match tokio::time::timeout(PEER_LIMIT, asking).await {
            Ok(Ok(reply)) => done(reply),
            Ok(Err(_)) | Err(_) => Err(Errno::EINPROGRESS),
        }
    }

    /// Sends an order about an operation over several MDTs.
    pub(super) async fn send(&self, index: u32, rq: &Request) -> Result<Seen, Errno> {
        let body = rq.encode();
        if body.len() > REQUEST_MAX_BYTES {
            return Err(Errno::E2BIG);
        }
        let rpc = Rpc::new(portal::OUT, opc::OUT_UPDATE).push_bytes(body);
        // what ends an operation passes those that wait for its locks
        let rpc = match rq {
            Request::Lock { .. } => rpc,
            _ => rpc.urgent(),
        };
        let reply = self.call(index, rpc).await?;
        match reply.buf(1) {
            b if b.is_empty() => Ok(Seen::default()),
            b => Seen::decode(b).map_err(|_| Errno::EPROTO),
        }
    }

    /// Asks MDT0000 for a super-sequence.
    pub(super) async fn super_sequence(&self) -> MdtResult<LuSeqRange> {
        let asked = LuSeqRange {
            index: self.index,
            flags: RANGE_MDT,
            ..LuSeqRange::default()
        };
        let rpc = Rpc::new(portal::SEQ_CONTROLLER, opc::SEQ_QUERY)
            .push_bytes(Bytes::copy_from_slice(&SEQ_ALLOC_SUPER.to_le_bytes()))
            .push(&asked);
        Ok(range_of(&self.call(0, rpc).await?)?)
    }

    /// Asks MDT0000 where a sequence is.
    pub(super) async fn locate(&self, seq: u64) -> MdtResult<LuSeqRange> {
        let asked = LuSeqRange {
            start: seq,
            ..LuSeqRange::default()
        };
        let rpc = Rpc::new(portal::FLD_REQUEST, opc::FLD_QUERY)
            .push_bytes(Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes()))
            .push(&asked);
        Ok(range_of(&self.call(0, rpc).await?)?)
    }
}

/// Asks these MDTs what they have left.
async fn ask_space(mdts: Weak<Mdts>, indices: Vec<u32>) {
    let Some(mdts) = mdts.upgrade() else { return };
    let asked = indices.iter().map(|i| mdts.statfs(*i));
    let answers = join_all(asked).await;
    let free = indices.into_iter().zip(answers);
    let free = free.filter_map(|(index, answer)| Some((index, answer.ok()?)));
    mdts.room.lock().free = free.collect();
}

/// Weights of these MDTs: equal while their space is even, or not known of one; else by bytes and inodes.
fn weights(mdts: &[u32], free: &BTreeMap<u32, (u128, u128)>) -> Vec<i128> {
    let equal = vec![1; mdts.len()];
    let known: Option<Vec<(u128, u128)>> = mdts.iter().map(|m| free.get(m).copied()).collect();
    let Some(known) = known else { return equal };
    let even = |of: fn(&(u128, u128)) -> u128| {
        let least = known.iter().map(of).min().unwrap_or(0);
        let most = known.iter().map(of).max().unwrap_or(0);
        most * (100 - QOS_THRESHOLD_PERCENT) / 100 <= least
    };
    if even(|f| f.0) && even(|f| f.1) {
        return equal;
    }
    let weight = |(bytes, inodes): &(u128, u128)| bytes * inodes;
    let total: u128 = known.iter().map(weight).sum();
    // shares keep the sums small, whatever the sizes
    let unit = total / SHARES + 1;
    let shares = known.iter().map(|f| (weight(f) / unit) as i128);
    shares.collect()
}

fn range_of(reply: &Message) -> Result<LuSeqRange, Errno> {
    let r: LuSeqRange = reply.get(1).map_err(|_| Errno::EPROTO)?;
    match r.start < r.end {
        true => Ok(r),
        false => Err(Errno::EPROTO),
    }
}

fn done(reply: Reply) -> Result<Message, Errno> {
    match Errno::from_status(reply.status) {
        Some(e) => Err(e),
        None => Ok(reply.msg),
    }
}

/// Connects, however often it takes, while anybody wants the MDT.
async fn connect(import: Weak<Import>) {
    while let Some(i) = import.upgrade() {
        match i.connect().await {
            Ok(_) | Err(ConnectError::Closed) => return,
            Err(_) => {}
        }
        drop(i);
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_weighs_where_it_is_uneven() {
        let free = |all: &[(u32, u128)]| all.iter().map(|(i, n)| (*i, (*n, *n))).collect();
        let even = free(&[(1, 1000), (2, 980), (3, 960)]);
        assert_eq!(weights(&[1, 2, 3], &even), [1, 1, 1]);
        let uneven = free(&[(1, 2000), (2, 1000), (3, 0)]);
        let w = weights(&[1, 2, 3], &uneven);
        assert_eq!(w, [4_000_000, 1_000_000, 0]);
        // one of them has not said
        assert_eq!(weights(&[1, 4], &uneven), [1, 1]);
        let huge = free(&[(1, u128::from(u64::MAX)), (2, 1)]);
        assert!(weights(&[1, 2], &huge)[0] <= SHARES as i128);
    }
}
