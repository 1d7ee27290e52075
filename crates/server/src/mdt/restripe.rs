//! Names of directories that are split or merged move to other shards (`lustre/mdt/mdt_restripe.c`).
//!
//! A request changes the layout (`reint/restripe.rs`) and leaves a row in the table `restripe` of the MDT where the directory lies.
//! From then on no shard takes a name that belongs to another one, so the names that are left can only become fewer. A task of that
//! MDT moves them one by one, as an operation over several MDTs each, and ends the change when none is left.
//!
//! | layout | names are looked for in | and belong in |
//! | --- | --- | --- |
//! | split | `0..migrate_offset`, by `migrate_hash` | all shards, by `hash_type` |
//! | merged | all shards, by `hash_type` | `0..migrate_offset`, by `migrate_hash` |
//!
//! Only names move: a file stays on its MDT, as in Lustre (`dir_restripe_nsonly`). Absent: splitting by itself when a directory grows.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_osd::{Kv, OsdError, Time};
use coral_wire::coral::updates::{Request, Seen};
use coral_wire::layout::LmvMd;
use coral_wire::{Errno, Fid};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::core::MdtCore;
use super::handler::MdtOps;
use super::out::ALL_BITS;
use super::record::S_IFDIR;
use super::reint::migrate::{Aim, Found};
use super::remote::{Needs, RENAMES, RETRIES, same};
use super::store::{MdtError, MdtResult, Store, Txn};
use super::trans::Op;
use super::{migrating, striped, table};
use crate::target::LuTarget;

/// Pause before what could not be done is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Entries of a shard that are looked at in one go.
const LOOK_AT: usize = 256;
/// Directories that are known to wait at a time; the others follow.
const DIRS_MAX: usize = 64;

/// The task that moves names.
#[derive(Default)]
pub struct Restriper {
    wake: Arc<Notify>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Restriper {
    /// There is another directory.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends the task.
    pub(super) async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }
}

/// The directories whose names have yet to move.
fn waiting(kv: &dyn Kv) -> Result<Vec<Fid>, OsdError> {
    let rows = kv.range(table::RESTRIPE, &[], None, DIRS_MAX)?;
    Ok(rows
        .iter()
        .filter_map(|(k, _)| table::fid_of_key(k))
        .collect())
}

async fn run(ops: Weak<MdtOps>, target: Weak<LuTarget>) {
    loop {
        let (Some(ops), Some(target)) = (ops.upgrade(), target.upgrade()) else {
            return;
        };
        let kv = ops.core.read().store.kv().clone();
        let dirs = waiting(&*kv).unwrap_or_default();
        let mut later = target.in_recovery();
        for dir in dirs.iter().filter(|_| !target.in_recovery()) {
            if let Err(error) = ops.restripe(&target, *dir).await {
                tracing::debug!(target_name = %target.name(), %dir, %error, "names of a directory that is split or merged have yet to move");
                later = true;
            }
        }
        if !later && !dirs.is_empty() {
            continue;
        }
        let wake = ops.restriper.wake.clone();
        drop((ops, target));
        match later {
            true => tokio::time::sleep(RETRY).await,
            false => wake.notified().await,
        }
    }
}

impl MdtOps {
    /// Begins to move names, also those that were left when the MDT ended.
    pub(super) fn start_restriper(self: &Arc<Self>, target: &Arc<LuTarget>) {
        let task = tokio::spawn(run(Arc::downgrade(self), Arc::downgrade(target)));
        *self.restriper.task.lock() = Some(task);
    }

    /// How many directories have names that are yet to move; those beyond a few are not counted.
    pub fn restriping(&self) -> Result<usize, OsdError> {
        let kv = self.core.read().store.kv().clone();
        Ok(waiting(&*kv)?.len())
    }

    /// Moves the names of `dir` that are not where they belong, and ends the change of its layout.
    async fn restripe(self: &Arc<Self>, target: &Arc<LuTarget>, dir: Fid) -> MdtResult<()> {
        let Some(lmv) = self.restriped(&dir)? else {
            // it was removed, or a repair has ended it
            let core = self.core.write();
            let mut t = Txn::new(&core.store);
            t.del(table::RESTRIPE, table::fid_key(&dir).to_vec());
            return self.commit_own(&core.store, t.finish());
        };
        for shard in lmv.stripe_fids.iter().filter(|f| !f.is_zero()) {
            self.empty_out(target, &lmv, *shard).await?;
        }
        self.end_restripe(target, dir, &lmv).await
    }

    /// The layout of the directory if it is one that is split or merged.
    fn restriped(&self, dir: &Fid) -> MdtResult<Option<LmvMd>> {
        let store = self.core.read().store.clone();
        let Some(ino) = store.find(dir)?.filter(|i| i.nlink > 0) else {
            return Ok(None);
        };
        Ok(striped::layout(&store, dir, &ino)?.filter(migrating::is_restriping))
    }

    /// Moves the names of one shard that belong to others.
    async fn empty_out(
        self: &Arc<Self>,
        target: &Arc<LuTarget>,
        lmv: &LmvMd,
        shard: Fid,
    ) -> MdtResult<()> {
        let mut failed = Ok(());
        let mut from = 0;
        loop {
            let home = self.home(&shard).await?;
            let seen = match home == self.mdts.index() {
                true => self.strays_here(shard, from).await?,
                false => {
                    self.mdts
                        .send(home, &Request::Strays { shard, from })
                        .await?
                }
            };
            for (name, file_type) in seen.strays {
                let is_dir = file_type == S_IFDIR;
                // what else there is moves all the same
                if let Err(e) = self.move_name(target, lmv, shard, &name, is_dir).await {
                    failed = Err(e);
                }
            }
            match seen.next {
                0 => return failed,
                next => from = next,
            }
        }
    }

    /// Names of this MDT's shard that belong to others, by its own attribute, among some from a hash on.
    pub(super) async fn strays_here(&self, shard: Fid, from: u64) -> MdtResult<Seen> {
        self.out.settled(&[shard]).await?;
        let store = self.core.read().store.clone();
        let ino = store.inode(&shard)?;
        let own = striped::attribute(&store, &shard, &ino)?.ok_or(Errno::ESTALE)?;
        let number = own.head.master_mdt_index as usize;
        let entries = store.entries(&shard, from, LOOK_AT)?;
        let last = entries.last().filter(|_| entries.len() == LOOK_AT);
        // names of one hash may go on behind the last
        let next = last.map_or(0, |e| e.hash.max(from + 1));
        let strays = entries
            .iter()
            .filter(|e| own.shard_of(&e.name).is_some_and(|n| n != number))
            .map(|e| (e.name.clone(), e.file_type));
        Ok(Seen {
            strays: strays.collect(),
            next,
            ..Seen::default()
        })
    }

    /// Moves one name to the shard where it belongs.
    async fn move_name(
        self: &Arc<Self>,
        target: &Arc<LuTarget>,
        lmv: &LmvMd,
        old: Fid,
        name: &Bytes,
        is_dir: bool,
    ) -> MdtResult<()> {
        let (_, new) = migrating::places(Fid::ZERO, Some(lmv), name)?;
        for _ in 0..RETRIES {
            let mut op = Op::begin(self);
            if is_dir {
                // who looks for what is above a directory finds FIDs that stay
                op.lock(vec![RENAMES], &[]).await?;
            }
            let Some(child) = op.look(old, name).await? else {
                return Ok(());
            };
            let Some(ino) = self.peek(child).await? else {
                return Err(Errno::ENOENT.into());
            };
            if ino.is_dir() && !is_dir {
                return Err(Errno::EAGAIN.into());
            }
            let (secs, nsecs) = target.node().wall_time();
            let f = Found {
                name: name.clone(),
                old,
                new,
                moved: false,
                child,
                ino,
                time: Time { secs, nsecs },
                lease: None,
            };
            f.lock(self, &mut op, &Aim::Name).await?;
            let change = |core: &MdtCore, t: &mut Txn<'_>| f.run(core, t, &Aim::Name);
            match self.make_own(target, op, change).await {
                Err(MdtError::Errno(Errno::EAGAIN)) => {}
                done => return done,
            }
        }
        Err(Errno::EAGAIN.into())
    }

    /// The layout is as it is to stay: no shard has a name that belongs to another.
    async fn end_restripe(
        self: &Arc<Self>,
        target: &Arc<LuTarget>,
        dir: Fid,
        was: &LmvMd,
    ) -> MdtResult<()> {
        let op = self.lock_all(dir, was).await?;
        let change = |core: &MdtCore, t: &mut Txn<'_>| {
            let h = unchanged(&core.store, t, &dir, Some(was))?;
            migrating::shrink(t, h, was)?;
            t.del(table::RESTRIPE, table::fid_key(&dir).to_vec());
            Ok(())
        };
        self.make_own(target, op, change).await
    }

    /// An operation that has a striped directory of this MDT and all its shards locked.
    pub(super) async fn lock_all(self: &Arc<Self>, dir: Fid, lmv: &LmvMd) -> MdtResult<Op> {
        let mut needs = Needs::default();
        needs.add(dir, self.mdts.index(), ALL_BITS.0);
        for shard in lmv.stripe_fids.iter().filter(|f| !f.is_zero()) {
            needs.add(*shard, self.home(shard).await?, ALL_BITS.0);
        }
        let mut op = Op::begin(self);
        op.lock(needs.list(), &[]).await?;
        Ok(op)
    }

    /// Makes an operation of this MDT's own of which all is locked. `change` is run twice: for what others prepare, and to decide.
    pub(super) async fn make_own(
        &self,
        target: &Arc<LuTarget>,
        mut op: Op,
        change: impl Fn(&MdtCore, &mut Txn<'_>) -> MdtResult<()>,
    ) -> MdtResult<()> {
        let updates = {
            let core = self.core.read();
            let mut t = op.txn(&core.store);
            change(&core, &mut t)?;
            t.updates()
        };
        op.prepare(&updates).await?;
        {
            let core = self.core.write();
            let mut t = op.txn(&core.store);
            change(&core, &mut t)?;
            same(&updates, &t.updates())?;
            op.decide_own(t, target)?;
        }
        op.finish(target).await
    }
}

/// The locked directory; EAGAIN when it is not laid out as it was before it was locked.
pub(super) fn unchanged(
    store: &Store,
    t: &mut Txn<'_>,
    dir: &Fid,
    was: Option<&LmvMd>,
) -> MdtResult<super::store::TxnObject> {
    let h = t.get(dir)?;
    match striped::layout(store, dir, t.ino(h))?.as_ref() == was && t.ino(h).nlink > 0 {
        true => Ok(h),
        false => Err(Errno::EAGAIN.into()),
    }
}
