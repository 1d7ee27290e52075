//! The MDT's connections to its OSTs: free space, destruction of objects, change of owners
//! (`lustre/osp`).
//!
//! A file that goes leaves its objects in the table `destroy`, in the transaction that removed it; once that is on disk
//! ([`super::waiting`]), a background task sends OST_DESTROY, and forgets a row when the OST has committed that (`osp_sync.c`
//! sends what `last_committed` covers, and cancels a llog record then). Nothing is lost by a crash of either side: a row stays until its object is gone for good, and to destroy an
//! object twice is harmless. A file that gets another owner leaves its objects in the table `owner` likewise; the OST is told the
//! owner that the file has then, and a row stays until the OST has committed that.
//!
//! An OST that is not connected, or does not answer statfs, gets no new objects, as `lod` leaves out
//! inactive OSTs. The allocator learns of a lost or a new connection at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use coral_lnet::{Nid, Node};
use coral_osd::{Batch, Kv, OsdError, Table};
use coral_ptlrpc::{
    ConnectError, Import, ImportConfig, ImportObserver, ImportState, Reply, Request,
};
use coral_wire::connect::{CLAIMED, ConnectFlags as F};
use coral_wire::ldlm::LdlmRequest;
use coral_wire::ost::{ObdStatfs, Obdo, md};
use coral_wire::{Errno, Fid, ObdConnectData, OstId, opc, portal};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::due::{Answered, Due, Next};
use super::handler::MdtOps;
use super::object_ids::OstSpace;
use super::store::{MdtResult, Store};
use super::stripe::StripeDefaults;
use super::waiting::{Waiting, low_space};
use super::{table, usage};
use crate::quota::Owner;
use crate::target::LuTarget;

/// Seconds between statfs of all OSTs (`osp.*.maxage`).
const STATFS_INTERVAL: Duration = Duration::from_secs(5);
/// The same while an OST has not answered yet.
const STATFS_RETRY: Duration = Duration::from_millis(200);
/// Pause between attempts to connect to an OST that was never there.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);
/// After a file went, so long is waited for more to go with the same round.
const GATHER: Duration = Duration::from_millis(20);
/// Objects of one OST destroyed in one round.
const ROUND_OBJECTS: usize = 512;
/// Requests to one OST at a time.
const IN_FLIGHT: usize = 16;
/// A background request gives up after this long and is tried again later.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);

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

/// What a table holds for OSTs to do.
struct Todo {
    table: Table,
    due: Mutex<Due>,
    /// Not on disk yet.
    waiting: Mutex<Waiting<(u32, u64)>>,
}

impl Todo {
    fn new(table: Table) -> Todo {
        Todo {
            table,
            due: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// The next objects of `ost`.
    fn take(&self, target: &LuTarget, kv: &dyn Kv, ost: u32) -> Result<Vec<u64>, OsdError> {
        let next = self.due.lock().take(ost, ROUND_OBJECTS);
        let begin = match next {
            Next::Nothing => return Ok(Vec::new()),
            Next::Objects(ids) => return Ok(ids),
            Next::Read(begin) => begin,
        };
        let (from, end) = (
            table::destroy_key(ost, begin),
            table::prefix_end(&ost.to_be_bytes()),
        );
        let rows = kv
            .range(self.table, &from, end.as_deref(), ROUND_OBJECTS)
            .inspect_err(|_| self.due.lock().missed(ost))?;
        let ids: Vec<u64> = rows
            .iter()
            .filter_map(|(k, _)| table::destroy_of_key(k))
            .map(|(_, id)| id)
            .collect();
        let ids = self.due.lock().read(ost, ids, rows.len() == ROUND_OBJECTS);
        // A row can be read before its transaction is on disk.
        let mark = target.mark();
        if ids.is_empty() || target.is_durable(mark) {
            return Ok(ids);
        }
        self.waiting
            .lock()
            .add(mark, &ids.iter().map(|id| (ost, *id)).collect::<Vec<_>>());
        target.sync_soon();
        Ok(Vec::new())
    }

    /// Makes due what is on disk.
    fn ripen(&self, durable: u64) {
        let ripe = self.waiting.lock().ripe(durable);
        let mut due = self.due.lock();
        due.add(&ripe.rows);
        if ripe.spilled {
            due.missed_all();
        }
    }
}

/// The owner of an object's file, as its OST was told; `None`: there is no such file any more.
#[derive(Clone, Copy, PartialEq)]
struct ToldOwner {
    fid: Fid,
    owner: Option<Owner>,
}

struct OspPeer {
    target: OstTarget,
    import: Arc<Import>,
    space: Option<ObdStatfs>,
    /// Connected, but the last statfs found no answer.
    silent: bool,
    /// Not connected since an attempt failed or the connection was lost; before that it may be used.
    lost: bool,
}

impl OspPeer {
    fn new(target: OstTarget, import: Arc<Import>) -> OspPeer {
        OspPeer {
            target,
            import,
            space: None,
            silent: false,
            lost: false,
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

#[derive(Default)]
struct OspState {
    peers: BTreeMap<u32, OspPeer>,
    defaults: StripeDefaults,
    target: Option<Arc<LuTarget>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
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

/// Connections to OSTs and the background task that uses them.
pub struct Osp {
    node: Arc<Node>,
    client_uuid: String,
    state: Mutex<OspState>,
    destroys: Todo,
    owners: Todo,
    /// What was told of the objects that OSTs have yet to commit, by OST and object.
    told: Mutex<BTreeMap<(u32, u64), ToldOwner>>,
    wake: Notify,
    /// The allocator's view of the OSTs may be another now.
    changed: Arc<Notify>,
}

impl Osp {
    /// For the MDT called `mdt_name`; [`Osp::start`] makes it work.
    pub fn new(node: Arc<Node>, mdt_name: &str) -> Arc<Osp> {
        // the same uuid after every start: OSTs know their MDT again
        let client_uuid = format!("{mdt_name}-mdtlov_UUID");
        let (wake, changed) = (Notify::new(), Arc::new(Notify::new()));
        let (destroys, owners) = (Todo::new(table::DESTROY), Todo::new(table::OWNER));
        let told = Mutex::default();
        Arc::new(Osp {
            node,
            client_uuid,
            state: Mutex::default(),
            destroys,
            owners,
            told,
            wake,
            changed,
        })
    }

    /// Starts the background tasks.
    pub fn start(self: &Arc<Self>, target: &Arc<LuTarget>, ops: &Arc<MdtOps>) {
        let defaults = ops.core.lock().defaults;
        // Set before a task runs, which may be at once on another thread: a task that finds no target ends.
        let mut st = self.state.lock();
        st.defaults = defaults;
        st.target = Some(target.clone());
        let work = tokio::spawn(run(
            Arc::downgrade(self),
            Arc::downgrade(ops),
            target.durable(),
        ));
        let show = tokio::spawn(show_spaces(
            Arc::downgrade(self),
            Arc::downgrade(ops),
            self.changed.clone(),
        ));
        st.tasks = vec![work, show];
    }

    /// Ends the background tasks and disconnects.
    pub async fn stop(&self) {
        for p in self.end().await.into_values() {
            p.import.disconnect().await;
        }
    }

    /// Ends the background tasks and lets go of the OSTs, who are told nothing.
    pub async fn abandon(&self) {
        drop(self.end().await);
    }

    async fn end(&self) -> BTreeMap<u32, OspPeer> {
        let (tasks, peers) = {
            let mut st = self.state.lock();
            st.target = None;
            (std::mem::take(&mut st.tasks), std::mem::take(&mut st.peers))
        };
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        peers
    }

    /// These rows of the table `destroy` were committed before `mark` was taken.
    pub(super) fn destroy(&self, rows: &[(u32, u64)], mark: u64) {
        self.add(&self.destroys, rows, mark);
    }

    /// These rows of the table `owner` were committed before `mark` was taken.
    pub(super) fn tell_owners(&self, rows: &[(u32, u64)], mark: u64) {
        self.add(&self.owners, rows, mark);
    }

    fn add(&self, todo: &Todo, rows: &[(u32, u64)], mark: u64) {
        if !rows.is_empty() {
            todo.waiting.lock().add(mark, rows);
            self.wake.notify_one();
        }
    }

    /// Makes due what is on disk, and asks for a sync where much waits for one, or an OST has little space left.
    fn ripen(&self, target: &LuTarget) {
        let durable = *target.durable().borrow();
        [&self.owners, &self.destroys]
            .into_iter()
            .for_each(|todo| todo.ripen(durable));
        let waiting = self.destroys.waiting.lock();
        let osts: BTreeSet<u32> = if waiting.many() {
            BTreeSet::new()
        } else {
            waiting.rows().map(|(ost, _)| *ost).collect()
        };
        let many = waiting.many();
        drop(waiting);
        let low = |s: &ObdStatfs| low_space(s.bavail, s.blocks, s.bsize);
        let peers = &self.state.lock().peers;
        if many
            || osts.iter().any(|ost| {
                peers
                    .get(ost)
                    .is_some_and(|p| p.space.as_ref().is_some_and(low))
            })
        {
            target.sync_soon();
        }
    }

    /// A transaction of the MDT itself; returns its mark.
    pub fn commit_local(&self, batch: Batch) -> Result<u64, OsdError> {
        match self.target() {
            Some(t) => t.commit_local(batch),
            None => Err(OsdError::Invalid("the target is stopping")),
        }
    }

    /// `None` when it is stopping.
    fn target(&self) -> Option<Arc<LuTarget>> {
        self.state.lock().target.clone()
    }

    /// The file system's default layout.
    pub fn defaults(&self) -> StripeDefaults {
        self.state.lock().defaults
    }

    /// Changes the copy of the default layout.
    pub fn set_defaults(&self, d: StripeDefaults) {
        self.state.lock().defaults = d;
    }

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
                        fresh.push(import.clone());
                        gone.extend(st.peers.insert(o.index, OspPeer::new(o, import)));
                    }
                }
            }
        }
        for import in fresh {
            import.set_observer(Arc::new(OspWatch(self.changed.clone())));
            tokio::spawn(connect(Arc::downgrade(&import), self.changed.clone()));
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
    fn connected(&self) -> Vec<(u32, Arc<Import>)> {
        let st = self.state.lock();
        let up = st
            .peers
            .iter()
            .filter(|(_, p)| p.import.state() == ImportState::Full);
        up.map(|(i, p)| (*i, p.import.clone())).collect()
    }

    /// Asks every OST for its space. Returns whether all answered.
    async fn refresh(&self) -> bool {
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

    /// Destroys what is due, at most one round of every OST that answers. Returns whether there may
    /// be more to do right away.
    async fn destroy_round(&self, ops: &Weak<MdtOps>) -> Result<bool, OsdError> {
        let (mut rounds, mut failed) = (Vec::new(), None);
        let Some(kv) = ops.upgrade().map(|ops| ops.core.lock().store.kv().clone()) else {
            return Ok(false);
        };
        let Some(target) = self.target() else {
            return Ok(false);
        };
        for (ost, import) in self.connected() {
            match self.destroys.take(&target, &*kv, ost) {
                Ok(ids) => {
                    let kv = kv.clone();
                    rounds.push(async move {
                        (ost, ids.len(), destroy_some(&*kv, import, ost, ids).await)
                    });
                }
                // what was taken for other OSTs must not be forgotten
                Err(e) => failed = Some(e),
            }
        }
        let mut more = false;
        for (ost, asked, gone) in join_all(rounds).await {
            more |= gone.len() == ROUND_OBJECTS;
            let mut due = self.destroys.due.lock();
            if gone.len() < asked {
                due.missed(ost);
            }
            gone.into_iter()
                .for_each(|(id, when)| due.answered(ost, id, when));
        }
        for (ost, ids) in self.settled(&self.destroys) {
            more |= ids.len() == ROUND_OBJECTS;
            let mut done = Batch::new();
            for id in ids {
                done.del(table::DESTROY, table::destroy_key(ost, id));
            }
            self.commit_local(done)
                .inspect_err(|_| self.destroys.due.lock().missed(ost))?;
        }
        failed.map_or(Ok(more), Err)
    }

    /// Takes out what OSTs have committed, one OST after another, a round's number of each.
    fn settled<'a>(&self, todo: &'a Todo) -> impl Iterator<Item = (u32, Vec<u64>)> + use<'a> {
        let settle = move |(ost, import): (u32, Arc<Import>)| {
            // In this order: what an earlier start of the OST has committed has smaller numbers than anything of a later one.
            let committed = import.last_committed();
            (
                ost,
                todo.due
                    .lock()
                    .settle(ost, import.granted().instance, committed, ROUND_OBJECTS),
            )
        };
        self.connected()
            .into_iter()
            .map(settle)
            .filter(|(_, ids)| !ids.is_empty())
    }

    /// Tells owners, at most one round of every OST that answers. Returns whether there may be more to do right away.
    async fn owner_round(&self, ops: &Weak<MdtOps>) -> Result<bool, OsdError> {
        let Some(store) = ops.upgrade().map(|ops| ops.core.lock().store.clone()) else {
            return Ok(false);
        };
        let Some(target) = self.target() else {
            return Ok(false);
        };
        let (mut rounds, mut failed) = (Vec::new(), None);
        for (ost, import) in self.connected() {
            match self.owners.take(&target, &**store.kv(), ost) {
                Ok(ids) => rounds.push(tell_some(&store, import, ost, ids)),
                Err(e) => failed = Some(e),
            }
        }
        let mut more = false;
        for (ost, all, answers) in join_all(rounds).await {
            more |= answers.len() == ROUND_OBJECTS;
            let mut due = self.owners.due.lock();
            if !all {
                due.missed(ost);
            }
            for (id, told, when) in answers {
                self.told.lock().insert((ost, id), told);
                due.answered(ost, id, when);
            }
        }
        for (ost, ids) in self.settled(&self.owners) {
            more |= ids.len() == ROUND_OBJECTS;
            let Some(ops) = ops.upgrade() else { break };
            self.forget_told(&ops, ost, &ids)
                .inspect_err(|_| self.owners.due.lock().missed(ost))?;
        }
        failed.map_or(Ok(more), Err)
    }

    /// One round of all that OSTs have to do.
    async fn rounds(&self, ops: &Weak<MdtOps>) -> Result<bool, OsdError> {
        let told = self.owner_round(ops).await;
        let destroyed = self.destroy_round(ops).await?;
        Ok(told? || destroyed)
    }

    /// Forgets the rows of what was told, but where the owner changed since.
    fn forget_told(&self, ops: &MdtOps, ost: u32, ids: &[u64]) -> Result<(), OsdError> {
        let core = ops.core.lock();
        let mut done = Batch::new();
        for &id in ids {
            let Some(told) = self.told.lock().remove(&(ost, id)) else {
                continue;
            };
            let now =
                owner_of(&core.store, ost, id).map_err(|e| OsdError::Corrupt(e.to_string()))?;
            match now {
                Some(now) if now == told || now.owner.is_none() => {
                    done.del(table::OWNER, table::destroy_key(ost, id));
                }
                // passed over, if the table was read meanwhile
                Some(_) => self.owners.due.lock().missed(ost),
                None => (),
            }
        }
        if done.is_empty() {
            Ok(())
        } else {
            self.commit_local(done).map(drop)
        }
    }
}

/// Tells one OST whose objects are, until it fails to answer. Returns the OST, whether that was all, and what it took.
async fn tell_some(
    store: &Store,
    import: Arc<Import>,
    ost: u32,
    ids: Vec<u64>,
) -> (u32, bool, Vec<(u64, ToldOwner, Answered)>) {
    let (mut all, mut done) = (true, Vec::with_capacity(ids.len()));
    for part in ids.chunks(IN_FLIGHT) {
        let instance = import.granted().instance;
        let owners = part
            .iter()
            .filter_map(|&id| match owner_of(store, ost, id) {
                Ok(told) => Some((id, told?)),
                Err(e) => {
                    tracing::error!(error = %e, ost, id, "whose object is it");
                    all = false;
                    None
                }
            });
        let tell = owners.map(|(id, told)| {
            let import = &import;
            async move {
                let Some(owner) = told.owner else {
                    return (id, told, Some((0, 0)));
                };
                let valid = md::FLID | md::FLGROUP | md::FLUID | md::FLGID | md::FLPROJID;
                let Owner { uid, gid, projid } = owner;
                let body = Obdo {
                    oi: OstId::group0(id),
                    valid,
                    uid,
                    gid,
                    projid,
                    ..Obdo::default()
                };
                let rq = Request::new(portal::OST_REQUEST, opc::OST_SETATTR)
                    .push(&body)
                    .push_empty();
                let answer = call(import, rq).await.map(|r| (r.status, r.transno));
                (id, told, answer)
            }
        });
        let answers = join_all(tell).await;
        let silent = answers.iter().any(|(_, _, answer)| answer.is_none());
        let taken = |(id, told, answer): (u64, ToldOwner, Option<(i32, u64)>)| match answer {
            Some((0, transno)) => Some((id, told, Answered { instance, transno })),
            _ => None,
        };
        let (asked, before) = (answers.len(), done.len());
        done.extend(answers.into_iter().filter_map(taken));
        all &= done.len() - before == asked;
        if silent {
            return (ost, false, done);
        }
    }
    (ost, all, done)
}

/// The owner to be told of an object; `None`: the table `owner` has none for it.
fn owner_of(store: &Store, ost: u32, id: u64) -> MdtResult<Option<ToldOwner>> {
    let Some(row) = store.kv().get(table::OWNER, &table::destroy_key(ost, id))? else {
        return Ok(None);
    };
    let fid = table::fid_of_key(&row).unwrap_or(Fid::ZERO);
    let owner = store.find(&fid)?.map(|ino| usage::of_inode(&ino).0);
    Ok(Some(ToldOwner { fid, owner }))
}

/// Destroys objects of one OST, until it fails to answer. Returns those that are gone.
async fn destroy_some(
    kv: &dyn Kv,
    import: Arc<Import>,
    ost: u32,
    ids: Vec<u64>,
) -> Vec<(u64, Answered)> {
    let mut gone = Vec::with_capacity(ids.len());
    for part in ids.chunks(IN_FLIGHT) {
        // Before it is asked: what a later start answers is at worst destroyed once more.
        let instance = import.granted().instance;
        let tell = part.iter().map(|&id| {
            let row = kv
                .get(table::DESTROY, &table::destroy_key(ost, id))
                .ok()
                .flatten();
            let count = row.map_or(1, |v| table::destroy_count_of(&v));
            let valid = md::FLID | md::FLGROUP | if count > 1 { md::FLOBJCOUNT } else { 0 };
            let body = Obdo {
                oi: OstId::group0(id),
                valid,
                misc: if count > 1 { count } else { 0 },
                ..Obdo::default()
            };
            let rq = Request::new(portal::OST_REQUEST, opc::OST_DESTROY).push(&body);
            call(
                &import,
                rq.push_bytes(LdlmRequest::default().to_bytes())
                    .push_empty(),
            )
        });
        let answers = join_all(tell).await;
        for (id, r) in part.iter().zip(&answers) {
            // an OST that knows no such object has nothing to commit
            if let Some(r) = r
                .as_ref()
                .filter(|r| r.status == 0 || r.status == -Errno::ENOENT.0)
            {
                gone.push((
                    *id,
                    Answered {
                        instance,
                        transno: r.transno,
                    },
                ));
            }
        }
        if answers.iter().any(Option::is_none) {
            break;
        }
    }
    gone
}

/// The reply to a request; `None` if it found no answer.
async fn call(import: &Arc<Import>, rq: Request) -> Option<Reply> {
    tokio::time::timeout(REQUEST_LIMIT, import.call(rq))
        .await
        .ok()
        .and_then(Result::ok)
}

/// Connects to an OST, however long it takes until it is there; later the import reconnects by itself.
async fn connect(import: Weak<Import>, changed: Arc<Notify>) {
    let mut told = false;
    while let Some(import) = import.upgrade() {
        let done = import.connect().await;
        changed.notify_one();
        match done {
            Ok(_) | Err(ConnectError::Closed) => return,
            Err(e) if !told => {
                tracing::warn!(error = %e, "an OST is not there: it gets no new objects until it is")
            }
            Err(_) => (),
        }
        told = true;
        drop(import);
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
}

/// Shows the allocator what changed; ends with the MDT.
async fn show_spaces(osp: Weak<Osp>, ops: Weak<MdtOps>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        let (Some(osp), Some(ops)) = (osp.upgrade(), ops.upgrade()) else {
            return;
        };
        let spaces = osp.spaces();
        ops.core.lock().osts = spaces;
    }
}

/// The background task: ends with the MDT.
async fn run(osp: Weak<Osp>, ops: Weak<MdtOps>, mut durable: watch::Receiver<u64>) {
    let mut next_statfs = tokio::time::Instant::now();
    loop {
        let Some(me) = osp.upgrade() else { return };
        if tokio::time::Instant::now() >= next_statfs && me.count() > 0 {
            let pause = if me.refresh().await {
                STATFS_INTERVAL
            } else {
                STATFS_RETRY
            };
            next_statfs = tokio::time::Instant::now() + pause;
        }
        loop {
            let Some(target) = me.target() else { return };
            me.ripen(&target);
            drop(target);
            // an owner first: told to an object that is gone, it would make it anew
            match me.rounds(&ops).await {
                Ok(true) => continue,
                Ok(false) => break,
                Err(_) if me.target().is_none() => return,
                Err(e) => {
                    tracing::error!(error = %e, "telling OSTs of owners and of objects that are gone");
                    break;
                }
            }
        }
        tokio::select! {
            biased;
            () = me.wake.notified() => tokio::time::sleep(GATHER).await,
            Ok(()) = durable.changed() => (),
            () = tokio::time::sleep_until(next_statfs), if me.count() > 0 => (),
        }
        if ops.strong_count() == 0 {
            return;
        }
    }
}
