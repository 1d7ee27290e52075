//! This MDT's parts of operations that other MDTs coordinate (`lustre/target/out_handler.c`).
//!
//! | state of a part | what is kept | who changes it |
//! | --- | --- | --- |
//! | locked | locks, in memory | Prepare, Abort; forgotten with its coordinator's connection, or [`LOCKED_LIMIT`] after the last Lock |
//! | prepared | locks, and a row of `prepared` on disk | Commit and Abort, from the coordinator or by asking it |
//! | gone | nothing | |
//!
//! Invariants:
//! * A prepared part is on disk before its coordinator hears so, and stays until the coordinator's decision is known.
//! * What it changes stays locked from before it is looked at until it is changed, also over a restart. So the changes fit when
//!   they are made, in whatever order the operations of several coordinators end.
//! * Its row goes in the transaction that makes the changes: they are made once, however often it is said.
//! * Nobody reads a directory that a prepared part changes: whether it has changed is known only by the coordinator.

mod apply;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::ExportId;
use coral_osd::{Kv, OsdError};
use coral_wire::coral::updates::{LockNeed, Look, OpId, Request, Seen, Update};
use coral_wire::ldlm::Ibits;
use coral_wire::{ConnectFlags as F, ConnectFlags2 as F2, Errno, Fid};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::apply::apply;
pub(super) use self::apply::time_of;
use super::ctx::{Answer, Ctx};
use super::handler::MdtOps;
use super::locks::HeldLocks;
use super::mdts::{PEER_FLAGS, PEER_LIMIT};
use super::record::{Inode, XattrValue};
use super::store::{MdtError, MdtResult, Store, Txn, torn};
use super::{dom, table};
use crate::target::LuTarget;

/// A part that is locked and not prepared is forgotten after so long: its coordinator is gone, or begins anew.
const LOCKED_LIMIT: Duration = Duration::from_secs(60);
/// The coordinator is asked about a part that has been prepared for so long.
const ASK_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked for such parts.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Whoever reads what is in doubt waits so long, and is then told to come back (EINPROGRESS).
pub(super) const DOUBT_LIMIT: Duration = Duration::from_secs(5);
/// Operations known to be aborted whose locks may yet be granted.
const ABORTED_MAX: usize = 4096;
/// FIDs that one Lock may ask for.
const FIDS_MAX: u32 = 16;

struct Part {
    /// Who coordinates it now; 0 after a restart.
    export: ExportId,
    since: Instant,
    locks: HeldLocks,
    /// What is in doubt, when it is prepared.
    doubt: Option<BTreeSet<Fid>>,
}

#[derive(Default)]
struct Parts {
    by_id: BTreeMap<OpId, Part>,
    aborted: BTreeSet<OpId>,
    /// The same, oldest first.
    aborted_order: VecDeque<OpId>,
}

/// The parts of one MDT.
pub struct Out {
    parts: Mutex<Parts>,
    /// How many are prepared.
    prepared: AtomicUsize,
    /// A part ended.
    ended: watch::Sender<()>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Default for Out {
    fn default() -> Out {
        Out {
            parts: Mutex::default(),
            prepared: AtomicUsize::new(0),
            ended: watch::Sender::new(()),
            task: Mutex::default(),
        }
    }
}

/// All that clients cache of an object but its data.
pub(super) const ALL_BITS: Ibits =
    Ibits(Ibits::LOOKUP.0 | Ibits::UPDATE.0 | Ibits::PERM.0 | Ibits::XATTR.0 | Ibits::LAYOUT.0);

/// What a change of this kind needs locked after a restart.
fn lock_of(update: &Update) -> Ibits {
    match update {
        Update::AddEntry { .. } | Update::DelEntry { .. } | Update::Touch { .. } => Ibits::UPDATE,
        Update::Object { .. } | Update::Insert { .. } | Update::Remove { .. } => {
            Ibits(Ibits::LOOKUP.0 | Ibits::UPDATE.0)
        }
        Update::Follow { .. } | Update::Place { .. } => ALL_BITS,
        Update::Project { .. } => Ibits::UPDATE,
    }
}

/// What a part needs locked after a restart: of each object, the bits of all its changes.
fn locks_of<'a>(updates: impl IntoIterator<Item = &'a Update>) -> BTreeMap<Fid, Ibits> {
    let mut all: BTreeMap<Fid, Ibits> = BTreeMap::new();
    for u in updates {
        all.entry(u.fid()).or_insert(Ibits(0)).0 |= lock_of(u).0;
    }
    all
}

/// The prepared parts in `kv`, whose coordinators are to be asked.
pub(super) fn stored(kv: &dyn Kv) -> Result<Vec<(OpId, Bytes)>, OsdError> {
    let rows = kv.range(table::PREPARED, &[], None, usize::MAX)?;
    let row = |(k, v): &(Bytes, Bytes)| Some((OpId::of_key(k)?, v.clone()));
    Ok(rows.iter().filter_map(row).collect())
}

impl Out {
    fn part_prepared(&self) {
        self.prepared.fetch_add(1, Relaxed);
    }

    fn part_ended(&self, part: &Part) {
        if part.doubt.is_some() {
            self.prepared.fetch_sub(1, Relaxed);
        }
        self.ended.send_replace(());
    }

    pub(super) fn in_doubt(&self, fids: &[Fid]) -> bool {
        if self.prepared.load(Relaxed) == 0 {
            return false;
        }
        let parts = self.parts.lock();
        let doubts = parts.by_id.values().filter_map(|p| p.doubt.as_ref());
        let mut doubts = doubts.into_iter();
        doubts.any(|doubt| fids.iter().any(|f| doubt.contains(f)))
    }

    /// ESTALE where the coordinator has been answered a Lock before (`again`), and that part is gone.
    fn holds_part(&self, id: &OpId, again: bool) -> Result<(), Errno> {
        match again && !self.parts.lock().by_id.contains_key(id) {
            true => Err(Errno::ESTALE),
            false => Ok(()),
        }
    }

    /// Waits until nothing of these is in doubt; EINPROGRESS when that takes long.
    pub(super) async fn settled(&self, fids: &[Fid]) -> Result<(), Errno> {
        if !self.in_doubt(fids) {
            return Ok(());
        }
        let mut ended = self.ended.subscribe();
        let settled = async {
            while self.in_doubt(fids) {
                if ended.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(DOUBT_LIMIT, settled)
            .await
            .map_err(|_| Errno::EINPROGRESS)
    }

    /// A connection is gone: what its coordinator had locked over it and not prepared will not be.
    pub(super) fn export_gone(&self, export: ExportId) {
        let mut parts = self.parts.lock();
        let of_it = |p: &Part| p.export == export && p.doubt.is_none();
        let gone: Vec<OpId> = parts
            .by_id
            .iter()
            .filter(|(_, p)| of_it(p))
            .map(|(id, _)| *id)
            .collect();
        let gone: Vec<Part> = gone
            .iter()
            .filter_map(|id| parts.by_id.remove(id))
            .collect();
        drop(parts);
        gone.iter().for_each(|p| self.part_ended(p));
    }

    /// How many parts are prepared and not decided.
    pub fn prepared(&self) -> usize {
        self.prepared.load(Relaxed)
    }

    /// Ends the background task.
    pub(super) async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }
}

impl MdtOps {
    /// Takes up what was prepared before the start, and begins to ask about it. No client is here yet.
    pub(super) fn start_out(self: &Arc<Self>, target: &Arc<LuTarget>) -> MdtResult<()> {
        let store = self.core.read().store.clone();
        for (id, raw) in stored(&**store.kv())? {
            let updates = Update::decode_all(&raw).map_err(|_| torn(&Fid::ZERO))?;
            let needs = locks_of(&updates);
            let mut locks = HeldLocks::default();
            for (fid, bits) in &needs {
                locks.add(self.lock_first(fid, *bits));
            }
            let doubt = needs.into_keys().collect();
            tracing::info!(target = %target.name(), ?id, "an operation that another MDT coordinates is in doubt: it is asked");
            let part = Part {
                export: 0,
                since: Instant::now(),
                locks,
                doubt: Some(doubt),
            };
            self.out.parts.lock().by_id.insert(id, part);
            self.out.part_prepared();
        }
        *self.out.task.lock() = Some(tokio::spawn(resolve(
            Arc::downgrade(self),
            Arc::downgrade(target),
        )));
        Ok(())
    }
}

/// Asks the coordinators of parts that have been prepared for long, and forgets those that were only locked.
async fn resolve(ops: Weak<MdtOps>, target: Weak<LuTarget>) {
    loop {
        let (Some(ops), Some(target)) = (ops.upgrade(), target.upgrade()) else {
            return;
        };
        let now = Instant::now();
        let (mut ask, mut forget) = (Vec::new(), Vec::new());
        for (id, p) in &ops.out.parts.lock().by_id {
            let age = now.saturating_duration_since(p.since);
            match p.doubt {
                Some(_) if p.export == 0 || age >= ASK_AFTER => ask.push(*id),
                None if age >= LOCKED_LIMIT => forget.push(*id),
                _ => {}
            }
        }
        for id in forget {
            tracing::warn!(target = %target.name(), ?id, "an operation was locked here for another MDT, and nothing more was heard of it: it is given up");
            ops.give_up_part(&id);
        }
        let asked = ask.into_iter().map(|id| {
            let mdts = &ops.mdts;
            async move { (id, mdts.send(id.coordinator, &Request::Ask(id)).await) }
        });
        for (id, answer) in join_all(asked).await {
            let done = match answer {
                Ok(_) => ops.commit_part(&id),
                Err(Errno::ENOENT) => ops.abort_part(&id),
                Err(_) => Ok(()),
            };
            done.unwrap_or_else(|e| not_resolved(&target, &id, &e));
        }
        drop((ops, target));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn not_resolved(target: &LuTarget, id: &OpId, error: &super::store::MdtError) {
    tracing::error!(target = %target.name(), ?id, %error, "ending an operation over several MDTs");
}

impl Ctx {
    /// OUT_UPDATE: an order of another MDT.
    pub(super) async fn out_update(&self) -> MdtResult<Answer> {
        self.is_peer()?;
        let rq = Request::decode(self.buf(1))?;
        let seen = match rq {
            Request::Lock {
                id,
                needs,
                looks,
                fids,
                again,
            } => {
                self.rq.rq.leave_lane();
                self.ops.out.holds_part(&id, again)?;
                let seen = self.lock_part(id, &needs, &looks, fids, again).await?;
                Some(seen)
            }
            Request::Prepare { id, updates } => {
                self.prepare_part(id, &updates).await?;
                None
            }
            Request::Commit(id) => {
                self.ops.commit_part(&id)?;
                self.rq.target.sync().await?;
                None
            }
            Request::Abort(id) => {
                self.ops.abort_part(&id)?;
                None
            }
            Request::Ask(id) => {
                self.ops.trans.answer(&self.ops, &id)?;
                None
            }
            Request::Above(fid) => Some(Seen {
                fids: self.ops.above_here(fid).await?,
                ..Seen::default()
            }),
            Request::Peek(fid) => Some(self.ops.peek_here(fid).await?),
            Request::Strays { shard, from } => Some(self.ops.strays_here(shard, from).await?),
        };
        let mut a = self.answer(0);
        match seen {
            Some(seen) => a.msg.push_bytes(seen.encode()),
            None => a.msg.push_empty(),
        };
        Ok(a)
    }

    /// An error for whoever is no MDT of this file system: nothing that an MDT says is checked against a user. EINPROGRESS for one
    /// that speaks as an MDT: the configuration may be about to name it.
    pub(super) fn is_peer(&self) -> MdtResult<()> {
        let c = self.rq.exp.connect();
        if !c.has(F(PEER_FLAGS)) || !c.has2(F2::CORAL) {
            return Err(Errno::EPERM.into());
        }
        let nid = self.rq.exp.nid();
        match self.rq.target.node().nids().contains(&nid) || self.ops.mdts.is_mdt(nid) {
            true => Ok(()),
            false => Err(Errno::EINPROGRESS.into()),
        }
    }

    async fn lock_part(
        &self,
        id: OpId,
        needs: &[LockNeed],
        looks: &[Look],
        fids: u32,
        again: bool,
    ) -> MdtResult<Seen> {
        // a client that comes back may yet replay a change of what would be locked
        if self.rq.target.in_recovery() {
            return Err(Errno::EINPROGRESS.into());
        }
        // a lock twice would wait for itself, and what is asked for is bounded
        let ordered = needs.windows(2).all(|w| w[0].fid < w[1].fid);
        if !ordered || fids > FIDS_MAX {
            return Err(Errno::EINVAL.into());
        }
        let locks = async {
            let mut locks = HeldLocks::default();
            for need in needs {
                locks.add(self.ops.lock_next(&need.fid, Ibits(need.bits)).await);
            }
            locks
        };
        // the coordinator has given it up by then, and others may want what it has locked
        let locks = tokio::time::timeout(PEER_LIMIT, locks).await;
        let locks = locks.map_err(|_| Errno::EINPROGRESS)?;
        let new = self.ops.new_fids(fids).await?;
        let mut seen = see(&self.core().store, needs, looks)?;
        seen.fids = new;
        let mut parts = self.ops.out.parts.lock();
        let part = parts.by_id.get(&id);
        let late = parts.aborted.contains(&id) || self.rq.exp.gone();
        // what was locked for it before has been let go of: it may have changed
        let lost = again && part.is_none();
        if late || lost || part.is_some_and(|p| p.doubt.is_some()) {
            drop(parts);
            return Err(Errno::ESTALE.into());
        }
        let part = parts.by_id.entry(id).or_insert_with(|| Part {
            export: self.exp(),
            since: Instant::now(),
            locks: HeldLocks::default(),
            doubt: None,
        });
        part.since = Instant::now();
        part.locks.add(locks);
        Ok(seen)
    }

    async fn prepare_part(&self, id: OpId, updates: &[Update]) -> MdtResult<()> {
        // nobody knows what is not there yet, nor uses it before it is
        let is_new = |u: &&Update| matches!(u, Update::Insert { .. });
        let mut new = HeldLocks::default();
        for (fid, bits) in locks_of(updates.iter().filter(is_new)) {
            new.add(self.ops.lock_first(&fid, bits));
        }
        let kept = {
            // An abort takes the same mutex: no row is left behind by one that came too late.
            let core = self.core();
            for u in updates.iter().filter(is_new) {
                if core.store.find(&u.fid())?.is_some() {
                    return Err(Errno::EEXIST.into());
                }
            }
            {
                let mut parts = self.ops.out.parts.lock();
                let part = parts.by_id.get_mut(&id).ok_or(Errno::ESTALE)?;
                if part.doubt.is_none() {
                    part.locks.add(new);
                    part.doubt = Some(updates.iter().map(Update::fid).collect());
                    self.ops.out.part_prepared();
                }
            }
            let mut t = Txn::new(&core.store);
            t.put(
                table::PREPARED,
                id.key().to_vec(),
                Update::encode_all(updates),
            );
            self.ops.commit_own(&core.store, t.finish())
        };
        if let Err(e) = kept {
            self.ops.abort_part(&id)?;
            return Err(e);
        }
        Ok(self.rq.target.sync().await?)
    }
}

/// Objects and names as they are now.
fn see(store: &Store, needs: &[LockNeed], looks: &[Look]) -> MdtResult<Seen> {
    let mut seen = Seen::default();
    for need in needs {
        let there = store.find(&need.fid)?;
        let has_entries = match &there {
            Some(i) if i.is_dir() => !store.is_empty(&need.fid)?,
            _ => false,
        };
        let record = there.map(|i| portable(store, &need.fid, i)).transpose()?;
        seen.objects.push((record, has_entries));
    }
    for look in looks {
        let found = store.lookup(&look.dir, &look.name)?;
        seen.names.push(found.map(|fid| (fid, 0)));
    }
    Ok(seen)
}

/// The record with all of its extended attributes inside.
fn portable(store: &Store, fid: &Fid, mut ino: Inode) -> MdtResult<Bytes> {
    let mut inside = Vec::new();
    for (name, _) in &ino.xattrs {
        if let Some(value) = store.xattr(fid, &ino, name)? {
            inside.push((name.clone(), XattrValue::Inline(value)));
        }
    }
    ino.xattrs = inside;
    Ok(ino.encode())
}

impl MdtOps {
    async fn peek_here(&self, fid: Fid) -> MdtResult<Seen> {
        self.out.settled(&[fid]).await?;
        let need = LockNeed { fid, bits: 0 };
        see(&self.core.read().store, &[need], &[])
    }

    /// How an object looks, wherever it lies and without a lock, with all of its extended attributes in its record.
    pub(super) async fn peek(&self, fid: Fid) -> MdtResult<Option<Inode>> {
        let mdt = self.home(&fid).await?;
        let seen = match mdt == self.mdts.index() {
            true => self.peek_here(fid).await?,
            false => self.mdts.send(mdt, &Request::Peek(fid)).await?,
        };
        let (record, _) = seen.objects.into_iter().next().ok_or(Errno::EPROTO)?;
        let decode = |raw| Inode::decode(&raw).map_err(|source| MdtError::Corrupt { fid, source });
        record.map(decode).transpose()
    }

    /// The coordinator has decided: the part is made, once.
    fn commit_part(&self, id: &OpId) -> MdtResult<()> {
        {
            let core = self.core.write();
            if let Some(raw) = core.store.kv().get(table::PREPARED, &id.key())? {
                let updates = Update::decode_all(&raw).map_err(|_| torn(&Fid::ZERO))?;
                let mut t = Txn::new(&core.store);
                // who had it open before a restart may yet come back to it
                let is_open = |f: &Fid| core.recovering || core.opens.is_open(f);
                for u in &updates {
                    apply(&mut t, u, &is_open)?;
                }
                t.del(table::PREPARED, id.key().to_vec());
                let mut changing = Vec::new();
                for u in &updates {
                    if let Update::Project { fid, .. } = u
                        && core.store.find(fid)?.is_some_and(|i| dom::is_dom(&i.lov))
                    {
                        changing.push(self.data.changing_owner(dom::object(fid))?);
                    }
                }
                self.commit_own(&core.store, t.finish())?;
                drop(core);
            }
        }
        self.forget_part(id);
        Ok(())
    }

    /// Nothing more is heard of the operation. One that was prepared since is another's to decide.
    fn give_up_part(&self, id: &OpId) {
        let part = {
            // prepare takes the same mutex
            let _core = self.core.write();
            let mut parts = self.out.parts.lock();
            match parts.by_id.get(id).is_some_and(|p| p.doubt.is_none()) {
                true => parts.by_id.remove(id),
                false => None,
            }
        };
        if let Some(part) = part {
            self.out.part_ended(&part);
        }
    }

    /// The operation will not be.
    fn abort_part(&self, id: &OpId) -> MdtResult<()> {
        let part = {
            let core = self.core.write();
            if core.store.kv().get(table::PREPARED, &id.key())?.is_some() {
                let mut t = Txn::new(&core.store);
                t.del(table::PREPARED, id.key().to_vec());
                self.commit_own(&core.store, t.finish())?;
            }
            let mut parts = self.out.parts.lock();
            if parts.aborted.insert(*id) {
                parts.aborted_order.push_back(*id);
            }
            if parts.aborted.len() > ABORTED_MAX
                && let Some(oldest) = parts.aborted_order.pop_front()
            {
                parts.aborted.remove(&oldest);
            }
            parts.by_id.remove(id)
        };
        // its locks go with no mutex held
        if let Some(part) = part {
            self.out.part_ended(&part);
        }
        Ok(())
    }

    fn forget_part(&self, id: &OpId) {
        let part = self.out.parts.lock().by_id.remove(id);
        if let Some(part) = part {
            self.out.part_ended(&part);
        }
    }
}
