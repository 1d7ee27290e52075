//! Operations over several MDTs that this MDT coordinates (`lustre/target/update_trans.c`).
//!
//! The MDT that a client asks coordinates: it locks everything, in one order, looks, has the other MDTs prepare their parts, and
//! decides by the transaction that makes its own part and leaves a row in the table `decided`. The client hears of it when that is
//! on disk. The others are told to make their parts until all have them on disk; then the row goes.
//!
//! Invariants:
//! * An operation is decided when its row is on disk, and undone when its coordinator has ended before that: an operation of
//!   which nothing is known was not decided.
//! * Nobody is told that it is decided before the row is on disk, nor that it is not before the operation has ended.
//! * Numbers are never given twice: each start of the target has an instance of its own.
//! * Locks are taken in the order of FIDs; of those on one FID, those on MDTs where it has a name come before that on the MDT where it
//!   lies. With the rules of `locks` no two operations wait for each other, wherever they are coordinated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_osd::{Kv, OsdError};
use coral_wire::coral::updates::{LockNeed, Look, OpId, Request, Seen, Update};
use coral_wire::ldlm::Ibits;
use coral_wire::{Errno, Fid};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::ctx::{Answer, Ctx};
use super::handler::MdtOps;
use super::locks::HeldLocks;
use super::mdts::Mdts;
use super::record::Inode;
use super::store::{Away, MdtError, MdtResult, Txn};
use super::table;
use crate::target::LuTarget;

/// Pause before an MDT that has not made its part is told again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// Which start of the target this is.
    instance: u32,
    next: u32,
    /// Under way, and not known to be decided on disk.
    active: BTreeSet<OpId>,
    /// Decided and committed before that mark was taken: those MDTs are to make their parts when it is on disk.
    committed: BTreeMap<OpId, (u64, BTreeSet<u32>)>,
    /// Decided, on disk: MDTs that have not made their part yet.
    decided: BTreeMap<OpId, BTreeSet<u32>>,
    task: Option<JoinHandle<()>>,
}

/// The operations that one MDT coordinates.
#[derive(Default)]
pub struct Trans {
    state: Mutex<State>,
    /// A decision is on disk that may have been listed too late for the sync that brought it there.
    listed: Arc<Notify>,
}

fn encode(mdts: &BTreeSet<u32>) -> Bytes {
    let words: Vec<u8> = mdts.iter().flat_map(|m| m.to_le_bytes()).collect();
    words.into()
}

/// The operations in the table `decided`, with the MDTs that may not have made their parts.
pub(super) fn stored(kv: &dyn Kv) -> Result<BTreeMap<OpId, BTreeSet<u32>>, OsdError> {
    let rows = kv.range(table::DECIDED, &[], None, usize::MAX)?;
    let word = |w: &[u8]| w.try_into().map(u32::from_le_bytes).ok();
    let row = |(k, v): &(Bytes, Bytes)| {
        let mdts = v.chunks(4).filter_map(word).collect();
        Some((OpId::of_key(k)?, mdts))
    };
    Ok(rows.iter().filter_map(row).collect())
}

impl Trans {
    /// Takes up what was decided before the start, which is on disk.
    pub(super) fn start(&self, ops: &Arc<MdtOps>, target: &LuTarget) -> MdtResult<()> {
        let kv = ops.core.read().store.kv().clone();
        let mut st = self.state.lock();
        st.instance = target.instance();
        st.decided = stored(&*kv)?;
        st.task = Some(tokio::spawn(tell(
            Arc::downgrade(ops),
            target.durable(),
            self.listed.clone(),
        )));
        Ok(())
    }

    /// Takes over what is on disk.
    fn ripen(&self, durable: u64) {
        let mut st = self.state.lock();
        let ripe = |(_, (mark, _)): &(&OpId, &(u64, BTreeSet<u32>))| *mark <= durable;
        let ids: Vec<OpId> = st
            .committed
            .iter()
            .filter(ripe)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some((_, parts)) = st.committed.remove(&id) {
                st.active.remove(&id);
                st.decided.insert(id, parts);
            }
        }
    }

    /// Ends the background task.
    pub(super) async fn stop(&self) {
        let task = self.state.lock().task.take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    /// To a participant: whether an operation was decided. ENOENT: it was not, and will not be; EAGAIN: that is not known yet.
    pub(super) fn answer(&self, ops: &MdtOps, id: &OpId) -> MdtResult<()> {
        if self.state.lock().active.contains(id) {
            return Err(Errno::EAGAIN.into());
        }
        let kv = ops.core.read().store.kv().clone();
        match kv.get(table::DECIDED, &id.key())? {
            Some(_) => Ok(()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    /// How many operations are decided and not made everywhere.
    pub fn unfinished(&self) -> usize {
        let st = self.state.lock();
        st.committed.len() + st.decided.len()
    }
}

/// Tells MDTs to make their parts of what is decided.
///
/// Each MDT is told by itself: one that is away delays no other.
async fn tell(ops: Weak<MdtOps>, mut durable: watch::Receiver<u64>, listed: Arc<Notify>) {
    let (mut running, mut busy) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        let Some(strong) = ops.upgrade() else { return };
        strong.trans.ripen(*durable.borrow_and_update());
        let mut todo: BTreeMap<u32, Vec<OpId>> = BTreeMap::new();
        for (id, mdts) in &strong.trans.state.lock().decided {
            for mdt in mdts {
                todo.entry(*mdt).or_default().push(*id);
            }
        }
        for (mdt, ids) in todo {
            if busy.insert(mdt) {
                running.push(tell_one(ops.clone(), mdt, ids));
            }
        }
        drop(strong);
        tokio::select! {
            changed = durable.changed() => if changed.is_err() { return },
            () = listed.notified() => {}
            Some(mdt) = running.next(), if !running.is_empty() => {
                busy.remove(&mdt);
            }
        }
    }
}

/// Tells one MDT to make its parts of these; which MDT that was.
async fn tell_one(ops: Weak<MdtOps>, mdt: u32, ids: Vec<OpId>) -> u32 {
    let Some(ops) = ops.upgrade() else { return mdt };
    let told = ids.iter().map(|id| {
        let mdts = &ops.mdts;
        async move { (*id, mdts.send(mdt, &Request::Commit(*id)).await) }
    });
    let mut failed = false;
    for (id, answer) in join_all(told).await {
        match answer {
            Ok(_) => ops.trans.made(&ops, id, mdt),
            Err(error) => {
                tracing::debug!(?id, mdt, %error, "another MDT has not made its part yet");
                failed = true;
            }
        }
    }
    drop(ops);
    if failed {
        tokio::time::sleep(RETRY).await;
    }
    mdt
}

impl Trans {
    /// An MDT has its part on disk.
    fn made(&self, ops: &MdtOps, id: OpId, mdt: u32) {
        {
            let mut st = self.state.lock();
            let Some(left) = st.decided.get_mut(&id) else {
                return;
            };
            left.remove(&mdt);
            if !left.is_empty() {
                return;
            }
            st.decided.remove(&id);
        }
        let core = ops.core.write();
        let mut t = Txn::new(&core.store);
        t.del(table::DECIDED, id.key().to_vec());
        if let Err(error) = ops.commit_own(&core.store, t.finish()) {
            // the row stays: whoever is told again has made its part
            tracing::error!(?id, %error, "forgetting an operation over several MDTs");
        }
    }
}

/// One lock of an operation: of that object, on that MDT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub fid: Fid,
    pub mdt: u32,
    pub bits: u64,
}

/// An operation under way. Dropped before it is decided, it will not be.
pub(super) struct Op {
    ops: Arc<MdtOps>,
    mdts: Arc<Mdts>,
    id: OpId,
    /// Other MDTs that hold locks for it.
    parts: BTreeSet<u32>,
    /// What is locked there.
    away: BTreeMap<Fid, Away>,
    /// What was to be locked there, and is not there.
    lost: BTreeSet<Fid>,
    locks: HeldLocks,
    decided: bool,
}

impl Op {
    /// Begins one; nothing is locked yet.
    pub fn begin(ops: &Arc<MdtOps>) -> Op {
        let mut st = ops.trans.state.lock();
        st.next += 1;
        let id = OpId {
            coordinator: ops.mdts.index(),
            instance: st.instance,
            number: st.next,
        };
        st.active.insert(id);
        drop(st);
        Op {
            ops: ops.clone(),
            mdts: ops.mdts.clone(),
            id,
            parts: BTreeSet::new(),
            away: BTreeMap::new(),
            lost: BTreeSet::new(),
            locks: HeldLocks::default(),
            decided: false,
        }
    }

    /// Locks all of these, here and there, and looks names up in directories of other MDTs. What was locked before comes first in
    /// the order of locks.
    pub async fn lock(&mut self, mut needs: Vec<Need>, looks: &[Look]) -> MdtResult<()> {
        let mut homes = BTreeMap::new();
        needs.sort_by_key(|n| n.fid);
        for twice in needs
            .chunk_by(|a, b| a.fid == b.fid)
            .filter(|n| n.len() > 1)
        {
            if let Some(n) = twice.first() {
                homes.insert(n.fid, self.ops.home(&n.fid).await?);
            }
        }
        needs.sort_by_key(|n| (n.fid, homes.get(&n.fid) == Some(&n.mdt), n.mdt));
        for run in needs.chunk_by(|a, b| a.mdt == b.mdt) {
            let Some(mdt) = run.first().map(|n| n.mdt) else {
                continue;
            };
            if mdt == self.ops.mdts.index() {
                for n in run {
                    self.locks
                        .add(self.ops.lock_next(&n.fid, Ibits(n.bits)).await);
                }
                continue;
            }
            self.lock_there(mdt, run, looks).await?;
        }
        Ok(())
    }

    /// What a name stands for, without a lock: to know what to lock.
    pub async fn look(&mut self, dir: Fid, name: &Bytes) -> MdtResult<Option<Fid>> {
        let mdt = self.ops.home(&dir).await?;
        if mdt == self.ops.mdts.index() {
            return self.ops.core.read().store.lookup(&dir, name);
        }
        let looks = vec![Look {
            dir,
            name: name.clone(),
        }];
        let seen = self.ask(mdt, Vec::new(), looks, 0).await?;
        Ok(seen.names.first().copied().flatten().map(|(fid, _)| fid))
    }

    /// FIDs for new objects on these MDTs, one for each.
    pub async fn new_fids(&mut self, mdts: &[u32]) -> MdtResult<Vec<Fid>> {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        mdts.iter()
            .for_each(|m| *counts.entry(*m).or_default() += 1);
        let mut new: BTreeMap<u32, Vec<Fid>> = BTreeMap::new();
        for (mdt, count) in counts {
            let fids = match mdt == self.ops.mdts.index() {
                true => self.ops.new_fids(count).await?,
                false => self.ask(mdt, Vec::new(), Vec::new(), count).await?.fids,
            };
            new.insert(mdt, fids);
        }
        let next = |m: &u32| new.get_mut(m).and_then(Vec::pop);
        let fids: Option<Vec<Fid>> = mdts.iter().map(next).collect();
        Ok(fids.ok_or(Errno::EPROTO)?)
    }

    /// The directories above `dir`, itself first, the root last. The lock on moves of directories is held.
    pub async fn above(&self, dir: Fid) -> MdtResult<Vec<Fid>> {
        let mut fids = vec![dir];
        while let Some(at) = fids.last().copied().filter(|f| *f != Fid::ROOT) {
            if fids.len() > super::ancestors::DEPTH_MAX {
                return Err(Errno::ELOOP.into());
            }
            let mdt = self.ops.home(&at).await?;
            let more = match mdt == self.ops.mdts.index() {
                true => self.ops.above_here(at).await?,
                false => self.mdts.send(mdt, &Request::Above(at)).await?.fids,
            };
            if more.first() != Some(&at) || more.len() < 2 {
                return Err(Errno::EPROTO.into());
            }
            fids.extend(&more[1..]);
        }
        Ok(fids)
    }

    /// The shards of a locked object.
    pub fn shards(&self, fid: &Fid) -> MdtResult<Vec<Fid>> {
        let core = self.ops.core.read();
        match self.away.get(fid) {
            Some(away) => super::striped::shards(&core.store, fid, &away.ino),
            None => match core.store.find(fid)? {
                Some(ino) => super::striped::shards(&core.store, fid, &ino),
                None => Ok(Vec::new()),
            },
        }
    }

    /// Whether a locked object is a directory; ENOENT when it is not there.
    pub fn is_dir(&self, fid: &Fid) -> MdtResult<bool> {
        match self.away.get(fid) {
            Some(away) => Ok(away.ino.is_dir()),
            None => Ok(self.ops.core.read().store.inode(fid)?.is_dir()),
        }
    }

    /// Sends a Lock. EINPROGRESS, for the client to come again: the other has let go of what it had locked before.
    async fn ask(
        &mut self,
        mdt: u32,
        needs: Vec<LockNeed>,
        looks: Vec<Look>,
        fids: u32,
    ) -> MdtResult<Seen> {
        let rq = Request::Lock {
            id: self.id,
            needs,
            looks,
            fids,
            again: !self.parts.insert(mdt),
        };
        match self.mdts.send(mdt, &rq).await {
            Err(Errno::ESTALE) => Err(Errno::EINPROGRESS.into()),
            answer => Ok(answer?),
        }
    }

    async fn lock_there(&mut self, mdt: u32, run: &[Need], looks: &[Look]) -> MdtResult<()> {
        let here = |dir: &Fid| run.iter().any(|n| n.fid == *dir);
        let looks: Vec<Look> = looks.iter().filter(|l| here(&l.dir)).cloned().collect();
        let need = |n: &Need| LockNeed {
            fid: n.fid,
            bits: n.bits,
        };
        let needs = run.iter().map(need).collect();
        let seen = self.ask(mdt, needs, looks.clone(), 0).await?;
        if seen.objects.len() != run.len() || seen.names.len() != looks.len() {
            return Err(Errno::EPROTO.into());
        }
        for (n, (record, has_entries)) in run.iter().zip(seen.objects) {
            let Some(record) = record else {
                self.lost.insert(n.fid);
                continue;
            };
            let ino = Inode::decode(&record)
                .map_err(|source| MdtError::Corrupt { fid: n.fid, source })?;
            let of_it = looks
                .iter()
                .zip(&seen.names)
                .filter(|(l, _)| l.dir == n.fid);
            let names = of_it.map(|(l, found)| (l.name.clone(), found.map(|(fid, _)| fid)));
            let away = Away {
                mdt,
                ino,
                has_entries,
                names: names.collect(),
                dropped: Vec::new(),
                added: Vec::new(),
            };
            self.away.insert(n.fid, away);
        }
        Ok(())
    }

    /// How an object of another MDT looked when it was locked.
    pub fn away(&self, fid: &Fid) -> Option<&Away> {
        self.away.get(fid)
    }

    /// A transaction that sees what is locked elsewhere.
    pub fn txn<'s>(&self, store: &'s super::store::Store) -> Txn<'s> {
        let mut t = Txn::new(store);
        for (fid, away) in &self.away {
            t.take_away(*fid, away.clone());
        }
        t.know_lost(self.lost.clone());
        t
    }

    /// Has the other MDTs keep their parts on disk.
    pub async fn prepare(&self, updates: &BTreeMap<u32, Vec<Update>>) -> MdtResult<()> {
        let orders = updates.iter().map(|(mdt, updates)| {
            let rq = Request::Prepare {
                id: self.id,
                updates: updates.clone(),
            };
            async move { self.mdts.send(*mdt, &rq).await }
        });
        for answer in join_all(orders).await {
            match answer {
                // it has restarted, or let go of what was locked: the client is to come again
                Err(Errno::ESTALE) => return Err(Errno::EINPROGRESS.into()),
                answer => answer?,
            };
        }
        Ok(())
    }

    /// Commits this MDT's part with the decision. The core is locked; [`Op::finish`] follows.
    pub fn decide(&mut self, cx: &Ctx, mut t: Txn<'_>, a: &mut Answer) -> MdtResult<()> {
        let parts: BTreeSet<u32> = t.updates().into_keys().collect();
        if parts.is_empty() {
            // nothing changes elsewhere: who is locked is let go as by an operation that is not made
            return cx.commit(t, a);
        }
        t.put(table::DECIDED, self.id.key().to_vec(), encode(&parts));
        cx.commit(t, a)?;
        self.is_decided(parts, cx.rq.target.mark());
        Ok(())
    }

    /// The same of an operation that no client has asked for.
    pub fn decide_own(&mut self, mut t: Txn<'_>, target: &LuTarget) -> MdtResult<()> {
        let (parts, store): (BTreeSet<u32>, _) = (t.updates().into_keys().collect(), t.store);
        if parts.is_empty() {
            return self.ops.commit_own(store, t.finish());
        }
        t.put(table::DECIDED, self.id.key().to_vec(), encode(&parts));
        self.ops.commit_own(store, t.finish())?;
        self.is_decided(parts, target.mark());
        Ok(())
    }

    /// The decision of these MDTs' parts was committed before `mark` was taken.
    fn is_decided(&mut self, parts: BTreeSet<u32>, mark: u64) {
        self.decided = true;
        let mut st = self.ops.trans.state.lock();
        st.committed.insert(self.id, (mark, parts.clone()));
        drop(st);
        // who was locked only is let go
        self.let_go(self.parts.difference(&parts).copied().collect());
        self.parts = parts;
    }

    /// Waits until the decision is on disk. The others make their parts from then on, also when nobody waits.
    pub async fn finish(self, target: &Arc<LuTarget>) -> MdtResult<()> {
        target.sync().await?;
        // a sync of somebody else may have passed the commit before it was listed
        self.ops.trans.listed.notify_one();
        Ok(())
    }

    /// Tells these MDTs that nothing comes of it for them.
    fn let_go(&self, parts: Vec<u32>) {
        if parts.is_empty() {
            return;
        }
        let (mdts, id) = (self.mdts.clone(), self.id);
        tokio::spawn(async move {
            let rq = Request::Abort(id);
            join_all(parts.iter().map(|m| mdts.send(*m, &rq))).await;
        });
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if self.decided {
            return;
        }
        self.ops.trans.state.lock().active.remove(&self.id);
        let parts = std::mem::take(&mut self.parts);
        self.let_go(parts.into_iter().collect());
    }
}
