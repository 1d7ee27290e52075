//! Data on MDT: the data of files whose first component is on the MDT (`lustre/mdt/mdt_io.c`).
//!
//! The data of file {sequence, oid} is object {sequence, oid} of the MDT's own device, served by the same code as an OST's
//! ([`Ost::for_mdt`]); its lock is the DOM bit of the file. Size and times of the data are the object's.
//!
//! A file that goes leaves a row in the table `destroy`, in the transaction that removed it; once that is on disk
//! ([`super::waiting`]), a background task takes the DOM lock, so that clients drop what they have not written, and removes
//! object and row. A write that comes later finds no
//! file (ENOENT).
//!
//! Absent: DOM locks and data in the replies of opens and lookups (a client asks for them when it needs them), fiemap.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use coral_osd::{Batch, ObjectId, Objects, Op, OsdError, SetAttr};
use coral_wire::layout::{Layout, LovMd};
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmMode, LdlmRequest, LdlmType, Policy};
use coral_wire::ptlrpc::MSG_RESENT;
use coral_wire::{Errno, Fid};
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::attr;
use super::ctx::{Answer, Ctx};
use super::handler::MdtOps;
use super::store::{MdtResult, Store};
use super::waiting::Waiting;
use super::{table, usage};
use crate::ost::Ost;
use crate::target::LuTarget;

/// Largest component on the MDT, bytes (`lod.*.dom_stripesize`).
pub const STRIPE_BYTES: u32 = 1 << 20;
/// Objects removed in one round.
const ROUND_OBJECTS: usize = 256;
/// Pause after a round that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Whether the layout attribute `lov` has a component on the MDT.
pub fn is_dom(lov: &Bytes) -> bool {
    let first = match Layout::decode(lov) {
        Ok(Layout::Composite(c)) => c.entries.first().and_then(|e| e.plain().map(LovMd::is_dom)),
        _ => None,
    };
    first.unwrap_or(false)
}

/// The object with the data of `fid`.
pub fn object(fid: &Fid) -> ObjectId {
    ObjectId {
        seq: fid.seq,
        oid: u64::from(fid.oid),
    }
}

/// The service of the data in `data`, of files in `store`.
pub fn service(store: Store, data: Arc<dyn Objects>) -> Arc<Ost> {
    let kv = store.kv().clone();
    let there = move |id: ObjectId| {
        let fid = Fid {
            seq: id.seq,
            oid: id.oid as u32,
            ver: 0,
        };
        match store.find(&fid) {
            Ok(Some(ino)) if ino.is_reg() && is_dom(&ino.lov) => Ok(usage::of_inode(&ino).0),
            Ok(_) => Err(Errno::ENOENT),
            Err(e) => Err(e.errno()),
        }
    };
    Ost::for_mdt(data, kv, Arc::new(there))
}

/// The background task that removes data, and how to wake it. It ends with this value.
pub struct Remover {
    wake: Arc<Notify>,
    /// Not on disk yet.
    waiting: parking_lot::Mutex<Waiting<Fid>>,
    task: parking_lot::Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Remover {
    fn drop(&mut self) {
        drop(self.abort());
    }
}

impl Remover {
    /// Not started yet.
    pub(super) fn new() -> Remover {
        Remover {
            wake: Arc::default(),
            waiting: parking_lot::Mutex::default(),
            task: parking_lot::Mutex::default(),
        }
    }

    /// Starts it for `ops`: what a crash left is removed first.
    pub fn start(&self, ops: &Arc<MdtOps>, target: &Arc<LuTarget>) {
        let task = run(
            Arc::downgrade(ops),
            Arc::downgrade(target),
            self.wake.clone(),
            target.durable(),
        );
        *self.task.lock() = Some(tokio::spawn(task));
    }

    /// Ends it.
    pub async fn stop(&self) {
        if let Some(task) = self.abort() {
            let _ = task.await;
        }
    }

    fn abort(&self) -> Option<JoinHandle<()>> {
        let task = self.task.lock().take();
        task.inspect(JoinHandle::abort)
    }

    /// Rows of these files were committed before `mark` was taken.
    pub fn committed(&self, gone: &[Fid], mark: u64) {
        if !gone.is_empty() {
            self.waiting.lock().add(mark, gone);
            self.wake.notify_one();
        }
    }
}

/// Files whose data `batch` makes due for removal.
pub fn removed_by(batch: &Batch) -> Vec<Fid> {
    let row = |op: &Op| match op {
        Op::Put {
            table: table::DESTROY,
            key,
            ..
        } => table::data_of_key(key),
        _ => None,
    };
    batch.ops().iter().filter_map(row).collect()
}

async fn run(
    ops: Weak<MdtOps>,
    target: Weak<LuTarget>,
    wake: Arc<Notify>,
    mut durable: watch::Receiver<u64>,
) {
    // what an earlier start left
    let mut read = Some(0);
    loop {
        {
            let (Some(ops), Some(target)) = (ops.upgrade(), target.upgrade()) else {
                return;
            };
            if let Err(e) = ops.remove_due(&target, &mut read).await {
                tracing::error!(error = %e, "removing data on the MDT");
                read = Some(0);
                drop((ops, target));
                tokio::time::sleep(RETRY).await;
                continue;
            }
        }
        tokio::select! {
            biased;
            () = wake.notified() => (),
            changed = durable.changed() => if changed.is_err() { return },
        }
    }
}

impl MdtOps {
    /// Removes what is on disk. `read`: the table holds more than is known, and is read when this mark is on disk.
    async fn remove_due(&self, target: &LuTarget, read: &mut Option<u64>) -> Result<(), OsdError> {
        let ripe = self.remover.waiting.lock().ripe(*target.durable().borrow());
        if ripe.spilled {
            *read = read.or(Some(0));
        }
        for some in ripe.rows.chunks(ROUND_OBJECTS) {
            self.remove_some(some).await?;
        }
        while read.is_some_and(|mark| target.is_durable(mark)) {
            let kv = self.core.read().store.kv().clone();
            let rows = kv.range(table::DESTROY, &table::DATA_PREFIX, None, ROUND_OBJECTS)?;
            let fids: Vec<Fid> = rows
                .iter()
                .filter_map(|(k, _)| table::data_of_key(k))
                .collect();
            // A row can be read before its transaction is on disk.
            let mark = target.mark();
            *read = (rows.len() == ROUND_OBJECTS).then_some(mark);
            if target.is_durable(mark) {
                self.remove_some(&fids).await?;
            } else if !fids.is_empty() {
                self.remover.waiting.lock().add(mark, &fids);
                target.sync_soon();
            }
        }
        let (many, some) = {
            let waiting = self.remover.waiting.lock();
            (waiting.many(), waiting.rows().next().is_some())
        };
        if many || (some && self.data.space_is_low()?) {
            target.sync_soon();
        }
        Ok(())
    }

    /// Removes the data of these files, whose rows are on disk.
    async fn remove_some(&self, fids: &[Fid]) -> Result<(), OsdError> {
        let mut done = Batch::new();
        for gone in join_all(fids.iter().map(|fid| self.remove(*fid))).await {
            done.del(table::DESTROY, table::data_key(&gone?));
        }
        if !done.is_empty() {
            self.osp.commit_local(done)?;
        }
        Ok(())
    }

    async fn remove(&self, fid: Fid) -> Result<Fid, OsdError> {
        let policy = Policy::ibits(Ibits::DOM);
        let flags = LdlmFlags::AST_DISCARD_DATA;
        let _lock = self
            .ldlm
            .lock_local_with(
                fid.res_id(),
                LdlmType::IBITS,
                LdlmMode::PW,
                policy,
                flags,
                None,
            )
            .await;
        self.data.remove(object(&fid)).await?;
        Ok(fid)
    }
}

impl Ctx {
    /// A lock on the DOM bit with the intent flag and no intent: how big is the data (`mdt_glimpse_enqueue`)?
    pub async fn glimpse(&self, req: &LdlmRequest) -> MdtResult<Answer> {
        if self.rq.rq.body.flags & MSG_RESENT != 0
            && let Some(rep) = self.ops.ldlm.find_resent(self.exp(), req.handle(0))
        {
            self.ops.ldlm.cancel(self.exp(), &[rep.handle]);
        }
        match self.ops.ldlm.glimpse(self.exp(), req).await {
            Ok(g) => {
                let mut a = self.answer(g.status);
                a.msg.push(&g.reply).push(&g.lvb);
                Ok(a)
            }
            Err(e) => Ok(self.answer(e.status())),
        }
    }

    /// Whether `fid` is a file with data here.
    pub fn has_data(&self, fid: &Fid) -> MdtResult<bool> {
        Ok(self
            .reading()
            .store
            .find(fid)?
            .is_some_and(|i| i.is_reg() && is_dom(&i.lov)))
    }

    /// Times of the file were set: those of its data, if it has any, are the same.
    pub async fn set_data_times(&self, fid: &Fid, set: &attr::MdAttr) -> MdtResult<()> {
        let times = SetAttr {
            mtime: set.mtime,
            atime: set.atime,
            ctime: set.ctime,
            ..SetAttr::default()
        };
        Ok(self
            .ops
            .data
            .set_times(&self.rq, object(fid), &times)
            .await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coral_wire::layout::{CompEntry, CompMd, lcme, pattern};

    #[test]
    fn which_layouts_have_data_here() {
        let dom = LovMd {
            pattern: pattern::MDT,
            ..LovMd::new(1 << 20, Vec::new())
        };
        let lov = |md| {
            Layout::Composite(CompMd::new(
                1,
                0,
                0,
                vec![CompEntry::new(1, lcme::INIT, 0, 1 << 20, md)],
            ))
            .encode()
        };
        assert!(is_dom(&lov(dom)));
        assert!(!is_dom(&lov(LovMd::new(1 << 20, Vec::new()))));
        assert!(!is_dom(&LovMd::new(1 << 20, Vec::new()).encode()) && !is_dom(&Bytes::new()));
    }

    #[test]
    fn rows_of_data_and_of_objects_are_told_apart() {
        let fid = Fid::new(0x2_0000_0400, 9);
        assert_eq!(table::data_of_key(&table::data_key(&fid)), Some(fid));
        assert_eq!(table::destroy_of_key(&table::data_key(&fid)), None);
        assert_eq!(table::data_of_key(&table::destroy_key(u32::MAX, 9)), None);
        let mut b = Batch::new();
        b.put(table::DESTROY, table::destroy_key(3, 9), Bytes::new());
        assert_eq!(removed_by(&b), []);
        b.put(table::DESTROY, table::data_key(&fid), Bytes::new());
        assert_eq!(removed_by(&b), [fid]);
    }
}
