//! The OSTs of the file system, connections to them, and their free space (`lustre/osp/osp_dev.c`, `osp_precreate.c`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_lnet::Nid;
use coral_ptlrpc::{ConnectError, Import, ImportConfig, ImportObserver, ImportState, Request};
use coral_wire::connect::{CLAIMED, ConnectFlags as F};
use coral_wire::fid::OstId;
use coral_wire::ost::ObdStatfs;
use coral_wire::{Errno, Fid, ObdConnectData, opc, portal};
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::Osp;
use crate::mdt::handler::MdtOps;
use crate::mdt::object_ids::{self, OstSpace};

/// Seconds between statfs of all OSTs (`osp.*.maxage`).
pub(super) const STATFS_INTERVAL: Duration = Duration::from_secs(5);

/// The same while objects wait to be destroyed.
pub(super) const STATFS_WAITING: Duration = Duration::from_secs(1);

/// The same while an OST has not answered yet.
pub(super) const STATFS_RETRY: Duration = Duration::from_millis(200);

/// Pause between questions for the last object of an OST.
const NUMBER_PAUSE: Duration = Duration::from_millis(200);

/// Pause between attempts to connect to an OST that was never there.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// An OST as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OstTarget {
    /// Its index.
    pub index: u32,
    /// Its uuid, `coral-OST0000_UUID`.
    pub uuid: String,
    /// Where to find it.
    pub nids: Vec<Nid>,
    /// Whether it may get new objects.
    pub active: bool,
}

pub(super) struct OspPeer {
    target: OstTarget,
    pub(super) import: Arc<Import>,
    pub(super) space: Option<ObdStatfs>,
    /// Connected, but the last statfs found no answer.
    silent: bool,
    /// Not connected since an attempt failed or the connection was lost; before that it may be used.
    lost: bool,
    /// It has told which objects it has, and ids are given beyond them.
    numbered: bool,
}

impl OspPeer {
    fn new(target: OstTarget, import: Arc<Import>) -> OspPeer {
        OspPeer {
            target,
            import,
            space: None,
            silent: false,
            lost: false,
            numbered: false,
        }
    }

    /// Whether it is connected, or the first attempt is still under way.
    fn connected(&mut self) -> bool {
        match self.import.state() {
            ImportState::Full => self.lost = false,
            ImportState::New | ImportState::Connecting => (),
            _ => self.lost = true,
        }
        !self.lost
    }
}

/// Tells of connections that come and go.
struct OspWatch(Arc<Notify>);

impl ImportObserver for OspWatch {
    fn on_recovered(&self) {
        self.0.notify_one();
    }
    fn on_disconnected(&self) {
        self.0.notify_one();
    }
}

impl Osp {
    /// Number of OSTs.
    pub fn count(&self) -> usize {
        self.state.lock().peers.len()
    }

    /// The OSTs as allocation sees them. One that is connected but silent counts as down, unless all are: then it is this
    /// machine that is slow. With none connected all may be used: after a restart they are on their way, and I/O waits for them.
    pub fn spaces(&self) -> Vec<OstSpace> {
        let mut st = self.state.lock();
        let connected: Vec<bool> = st.peers.values_mut().map(OspPeer::connected).collect();
        let any = connected.contains(&true);
        let heard = st
            .peers
            .values()
            .zip(&connected)
            .any(|(p, c)| *c && !p.silent && p.target.active);
        let space = |(p, connected): (&OspPeer, bool)| OstSpace {
            index: p.target.index,
            avail_bytes: p.space.map(|s| s.bavail.saturating_mul(u64::from(s.bsize))),
            active: p.target.active && (connected || !any) && !(heard && p.silent),
        };
        st.peers.values().zip(connected).map(space).collect()
    }

    /// Adds the OSTs' blocks to a statfs, in its block size.
    pub fn add_space(&self, st: &mut ObdStatfs) {
        let spaces: Vec<ObdStatfs> = self
            .state
            .lock()
            .peers
            .values()
            .filter_map(|p| p.space)
            .collect();
        if spaces.is_empty() {
            return;
        }
        let unit = u128::from(st.bsize.max(1));
        let blocks = |n: u64, bsize: u32| (u128::from(n) * u128::from(bsize) / unit) as u64;
        (st.blocks, st.bfree, st.bavail) = (0, 0, 0);
        for s in spaces {
            st.blocks += blocks(s.blocks, s.bsize);
            st.bfree += blocks(s.bfree, s.bsize);
            st.bavail += blocks(s.bavail, s.bsize);
        }
    }

    /// The OSTs of the file system now; new ones are connected to in the background.
    pub fn set_osts(self: &Arc<Self>, osts: Vec<OstTarget>) {
        let mut gone = Vec::new();
        let mut fresh = Vec::new();
        {
            let mut st = self.state.lock();
            let keep: Vec<u32> = osts.iter().map(|o| o.index).collect();
            let stale: Vec<u32> = st
                .peers
                .keys()
                .copied()
                .filter(|i| !keep.contains(i))
                .collect();
            gone.extend(stale.into_iter().filter_map(|i| st.peers.remove(&i)));
            for o in osts {
                if o.nids.is_empty() {
                    tracing::warn!(
                        uuid = o.uuid,
                        "the configuration gives no NID for this OST: it is left out"
                    );
                    continue;
                }
                match st.peers.get_mut(&o.index) {
                    Some(p) if p.target.uuid == o.uuid && p.target.nids == o.nids => {
                        p.target.active = o.active
                    }
                    _ => {
                        let import =
                            self.import(&o, st.target.as_ref().map_or(CLAIMED, |t| t.claimed()));
                        fresh.push((o.index, import.clone()));
                        gone.extend(st.peers.insert(o.index, OspPeer::new(o, import)));
                    }
                }
            }
        }
        for (index, import) in fresh {
            import.set_observer(Arc::new(OspWatch(self.changed.clone())));
            tokio::spawn(meet(Arc::downgrade(self), index, Arc::downgrade(&import)));
        }
        for p in gone {
            tokio::spawn(async move { p.import.disconnect().await });
        }
        self.changed.notify_one();
        self.wake.notify_one();
    }

    fn import(&self, o: &OstTarget, version: u32) -> Arc<Import> {
        let flags = F::MDS.0
            | F::VERSION.0
            | F::FULL20.0
            | F::FID.0
            | F::AT.0
            | F::BRW_SIZE.0
            | F::CANCELSET.0
            | F::BULK_MBITS.0
            | F::FLAGS2.0;
        let data = ObdConnectData {
            connect_flags: F(flags),
            connect_flags2: coral_wire::ConnectFlags2::REP_MBITS,
            version,
            brw_size: 1 << 20,
            ..ObdConnectData::default()
        };
        let mut cfg = ImportConfig::ost(&o.uuid, o.nids.clone(), &self.client_uuid, data);
        cfg.part = 1;
        Import::new(self.node.clone(), cfg)
    }

    /// The OSTs that are connected now, so that nothing waits for one that is not.
    pub(super) fn connected(&self) -> Vec<(u32, Arc<Import>)> {
        let st = self.state.lock();
        let up = st
            .peers
            .iter()
            .filter(|(_, p)| p.import.state() == ImportState::Full);
        up.map(|(i, p)| (*i, p.import.clone())).collect()
    }

    /// Waits until the OSTs that are connected, or are being connected to for the first time, have told which objects they have.
    pub async fn all_numbered(&self) {
        let mut news = self.numbered.subscribe();
        loop {
            let all = {
                let mut st = self.state.lock();
                st.peers.values_mut().all(|p| p.numbered || !p.connected())
            };
            if all || news.changed().await.is_err() {
                return;
            }
        }
    }

    /// Asks an OST for its last object: no id is given again that an object has, in case that an older copy of the MDT was put back
    /// (`osp_precreate.c`, `osp_get_lastfid_from_ost`). False: it has not told yet.
    async fn number(&self, index: u32, import: &Arc<Import>) -> bool {
        let Some(ops) = self.state.lock().ops.upgrade() else {
            return false;
        };
        let first = object_ids::first_id(ops.core.read().store.fld().index());
        let Some(last) = last_id(import, index, first).await else {
            return false;
        };
        let mut core = ops.core.write();
        let store = core.store.clone();
        if let Err(e) = core.ids.at_least(&store, index, last) {
            tracing::error!(error = %e, ost = index, "ids that its objects have cannot be left out");
            return false;
        }
        drop(core);
        let mut st = self.state.lock();
        let peer = st.peers.get_mut(&index);
        if let Some(p) = peer.filter(|p| Arc::ptr_eq(&p.import, import)) {
            p.numbered = true;
        }
        drop(st);
        self.numbered.send_modify(|n| *n += 1);
        true
    }

    /// Asks every OST for its space. Returns whether all answered.
    pub(super) async fn refresh(&self) -> bool {
        let imports = self.connected();
        let mut all = imports.len() == self.count();
        let ask = imports.into_iter().map(|(index, import)| async move {
            let rq = Request::new(portal::OST_CREATE, opc::OST_STATFS);
            let reply = tokio::time::timeout(STATFS_INTERVAL, import.call(rq))
                .await
                .ok()
                .and_then(Result::ok);
            let silent = reply.is_none();
            let space = reply
                .filter(|r| r.status == 0)
                .and_then(|r| r.msg.get::<ObdStatfs>(1).ok());
            (index, silent, space)
        });
        for (index, silent, space) in join_all(ask).await {
            all &= space.is_some();
            if let Some(p) = self.state.lock().peers.get_mut(&index) {
                p.silent = silent;
                p.space = space.or(p.space);
            }
        }
        self.changed.notify_one();
        all
    }
}

/// The greatest id of an object on an OST of those that this MDT gives, from `first`; below it when there is none; `None` when it
/// does not tell.
async fn last_id(import: &Arc<Import>, ost: u32, first: u64) -> Option<u64> {
    let asked = OstId::group0(first).to_fid(ost);
    let rq = Request::new(portal::OST_REQUEST, opc::OST_GET_INFO)
        .push_str_nul(b"last_fid")
        .push(&asked);
    let reply = tokio::time::timeout(STATFS_INTERVAL, import.call(rq)).await;
    let reply = reply.ok()?.ok()?;
    if reply.status == Errno::EOPNOTSUPP.status() {
        // an older release of Coral: it makes what it is told to
        return Some(first - 1);
    }
    if reply.status != 0 {
        return None;
    }
    Some(OstId::from_fid(reply.msg.get::<Fid>(1).ok()?).object_id())
}

/// Connects to an OST, however long it takes until it is there, and asks for its last object; later the import reconnects by
/// itself.
async fn meet(osp: Weak<Osp>, index: u32, import: Weak<Import>) {
    let (mut met, mut told) = (false, false);
    while let (Some(osp), Some(import)) = (osp.upgrade(), import.upgrade()) {
        if !met {
            let done = import.connect().await;
            osp.changed.notify_one();
            met = match done {
                Ok(_) => true,
                Err(ConnectError::Closed) => return,
                Err(e) => {
                    if !told {
                        tracing::warn!(error = %e, "an OST is not there: it gets no new objects until it is");
                    }
                    told = true;
                    osp.numbered.send_modify(|n| *n += 1);
                    false
                }
            };
        }
        if met && osp.number(index, &import).await {
            return;
        }
        drop((osp, import));
        tokio::time::sleep(match met {
            true => NUMBER_PAUSE,
            false => CONNECT_PAUSE,
        })
        .await;
    }
}

/// Shows the allocator what changed; ends with the MDT.
pub(super) async fn show_spaces(osp: Weak<Osp>, ops: Weak<MdtOps>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        let (Some(osp), Some(ops)) = (osp.upgrade(), ops.upgrade()) else {
            return;
        };
        let spaces = osp.spaces();
        ops.core.write().osts = spaces;
    }
}
