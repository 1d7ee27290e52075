//! OST: the target that holds file data (`lustre/ofd`, `lustre/target/tgt_handler.c`).
//!
//! - `brw`: what a bulk request asks for; `io`: OST_READ and OST_WRITE.
//! - `ops`: every other request on an object; `info`: statfs and keyed values.
//! - `usage`: what owners have in use.
//! - `grant`: space promised to clients; `connect`: what is agreed at connect.
//! - `lvb`: size and times carried by extent locks, and glimpses; `newest`: times of writes that come in another order.
//! - `obdo`: attributes on the wire.
//!
//! Invariants:
//! * An object exists from the first request that stores something in it. A missing object is
//!   empty: reads bring nothing, its size is 0, destroying it succeeds.
//! * Requests that modify get a transno but no stored reply: executing one twice is harmless.
//! * Data received from the network goes to the file without a copy; a read is one buffer per
//!   bulk descriptor.
//! * A lock taken for a request is held while the object is read or written, not while data are on
//!   the network.
//!
//! Absent: precreation for MDTs of other makers, limits of quotas, FIEMAP, mirrors' layout versions.

mod brw;
mod connect;
mod error;
mod grant;
mod info;
mod io;
mod lvb;
mod newest;
mod obdo;
mod ops;
mod shared;
mod usage;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use coral_lnet::Node;
use coral_osd::{Device, Kv, ObjAttr, ObjectId, Objects, OsdError, SetAttr, Visit};
use coral_wire::connect::{ConnectFlags2, ObdConnectData};
use coral_wire::ldlm::{Ibits, LdlmType, Policy};
use coral_wire::ost::Obdo;
use coral_wire::ptlrpc::{Message, opc};
use coral_wire::{Errno, PtlrpcBody};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

pub(crate) use self::error::OstError;
use self::grant::Grants;
use self::obdo::Times;
use self::usage::OstUsage;
pub use self::usage::to_be_counted;
pub(crate) use self::usage::{Changing, ToCount};
use crate::mdt::low_space;
use crate::quota::{Owner, Used};
use crate::target::{Export, LuTarget, TargetConfig, TargetKind, TargetOps, TargetRequest};

/// Objects whose last change of times is remembered, for writes that were overtaken by it.
const TIMES_MAX: usize = 8192;

/// How often a change waits for the disk to settle before it is refused for want of room.
const SETTLES_MAX: u32 = 4;

/// An object storage target.
pub struct Ost {
    objects: Arc<dyn Objects>,
    /// The objects are files of an MDT: their locks are DOM bits, and a change needs the file to be there (ENOENT).
    files: Option<Arc<FileThere>>,
    grants: Mutex<Grants>,
    times_set: Mutex<TimesSet>,
    newest: Mutex<newest::Newest>,
    /// Uncommitted changes.
    changes: Mutex<shared::Changes>,
    usage: Arc<OstUsage>,
}

/// Whose the file of an object is, if it exists and has data on the MDT.
type FileThere = dyn Fn(ObjectId) -> Result<Owner, Errno> + Send + Sync;

/// Result of a request: status and buffers, or no answer at all (the client sends it again).
type OstAnswer = Option<(i32, Message)>;

impl Ost {
    /// The operations of an OST on its objects.
    pub fn new(objects: Arc<dyn Objects>, kv: Device) -> Arc<Ost> {
        Self::with_files(objects, kv, None)
    }

    /// The same for the data an MDT holds; `there` says whether the file of an object exists.
    pub(crate) fn for_mdt(
        objects: Arc<dyn Objects>,
        kv: Device,
        there: Arc<FileThere>,
    ) -> Arc<Ost> {
        Self::with_files(objects, kv, Some(there))
    }

    fn with_files(
        objects: Arc<dyn Objects>,
        kv: Device,
        files: Option<Arc<FileThere>>,
    ) -> Arc<Ost> {
        Arc::new(Ost {
            usage: Arc::new(OstUsage::new(objects.clone(), kv, files.clone())),
            objects,
            files,
            grants: Mutex::default(),
            times_set: Mutex::default(),
            newest: Mutex::default(),
            changes: Mutex::default(),
        })
    }

    /// Counts in the background what owners have in use, as far as the tables do not say it; this is start number `instance`.
    pub(crate) fn start_counting(&self, to_count: ToCount, instance: u32) -> Result<(), OsdError> {
        self.usage.start(to_count, instance)
    }

    /// Nothing holds the objects when this returns, but who holds this.
    pub(crate) async fn stop_counting(&self) {
        self.usage.stop().await;
    }

    /// Lock values of the objects.
    pub(crate) fn lvb_ops(objects: Arc<dyn Objects>) -> Arc<dyn coral_ldlm::LvbOps> {
        Arc::new(lvb::ObjectLvb(objects))
    }

    /// Adds to `granted` what of `asked` concerns data: grants and checksums.
    pub(crate) fn agree_data(&self, asked: &ObdConnectData, granted: &mut ObdConnectData) {
        connect::agree_data(asked, granted);
    }

    /// The client of `rq` changed an object, and its change has a number.
    fn note_change(&self, rq: &TargetRequest, id: ObjectId) {
        self.changes.lock().note(rq.exp.cookie, id);
    }

    /// What the client of `rq` did to an object is safe when this returns, whatever other clients replay after a loss of power.
    async fn sync_one(&self, rq: &TargetRequest, id: ObjectId) -> Result<(), OstError> {
        let shared = self.changes.lock().shared(id);
        match shared {
            true => rq.target.sync().await.map_err(OstError::from),
            false => stored(self.objects.sync_object(id).await),
        }
    }

    /// The client is gone.
    pub(crate) fn forget(&self, export: u64) {
        self.grants.lock().forget(export, &*self.objects);
    }

    /// Removes an object.
    pub(crate) async fn remove(&self, id: ObjectId) -> Result<(), OsdError> {
        let _changing = self.usage.changing(id).await?;
        self.objects.destroy(id).await.map(drop)
    }

    /// Whether so little of the device is free that what can be freed should be soon.
    pub(crate) fn space_is_low(&self) -> Result<bool, OsdError> {
        let s = self.objects.space()?;
        Ok(low_space(s.blocks_avail, s.blocks, s.block_size))
    }

    /// Visits every object that may have come to be without being on disk before the start, until `visit` returns false.
    pub(crate) async fn each(&self, visit: Visit) -> Result<(), OsdError> {
        self.usage.each(visit).await
    }

    /// The file of an object gets another owner, in these tables, before the value ends.
    pub(crate) fn changing_owner(&self, id: ObjectId) -> Result<Changing, OsdError> {
        self.usage.changing_in_tables(id)
    }

    /// Space that an id has in use; EINPROGRESS until it is known.
    pub(crate) async fn used(&self, kind: u32, id: u32) -> Result<Used, OstError> {
        stored(self.usage.of_id(kind, id).await)?.ok_or(Errno::EINPROGRESS.into())
    }

    /// Times of an object were set by another request than one of ours; an object that is not there stays so.
    pub(crate) async fn set_times(
        &self,
        rq: &TargetRequest,
        id: ObjectId,
        set: &SetAttr,
    ) -> Result<(), OstError> {
        self.note_times_set(rq, id);
        match self.objects.attr(id).map_err(OstError::from)? {
            Some(_) => self.set_attr(rq, id, set).await.map(drop),
            None => Ok(()),
        }
    }

    /// The client of `rq` sets the times of an object: no write from before it changes them any more.
    fn note_times_set(&self, rq: &TargetRequest, id: ObjectId) {
        self.times_set.lock().note(rq.exp.cookie, id, rq.rq.xid);
        self.newest.lock().forget(id);
    }

    async fn set_attr(
        &self,
        rq: &TargetRequest,
        id: ObjectId,
        set: &SetAttr,
    ) -> Result<ObjAttr, OstError> {
        let mut settles = 0;
        loop {
            let done = stored(self.objects.set_attr(id, set));
            if !self.has_settled(rq, id, &done, &mut settles).await? {
                return done;
            }
        }
    }

    /// Whether what stores in an object is to be done again: it found no room, and has been waited for the disk to settle, a few times
    /// at most ([`coral_osd::Room::settle`]).
    async fn has_settled<T>(
        &self,
        rq: &TargetRequest,
        id: ObjectId,
        done: &Result<T, OstError>,
        settles: &mut u32,
    ) -> Result<bool, OstError> {
        let full = matches!(done, Err(e) if e.errno() == Errno::ENOSPC);
        if !full || *settles == SETTLES_MAX {
            return Ok(false);
        }
        *settles += 1;
        if !self.settle().await? {
            return Ok(false);
        }
        self.may_change(rq, id).map(|()| true)
    }

    /// Waits for the disk. False where there is nothing to wait for.
    async fn settle(&self) -> Result<bool, OstError> {
        stored(self.objects.settle().await)
    }

    /// Type and extent of a lock on bytes `start..=end` of an object.
    fn lock_on(&self, start: u64, end: u64) -> (LdlmType, Policy) {
        match self.files {
            Some(_) => (LdlmType::IBITS, Policy::ibits(Ibits::DOM)),
            None => (LdlmType::EXTENT, Policy::extent(start, end)),
        }
    }

    /// Asked under the lock, after each wait. ENOTCONN when the client was evicted meanwhile: others may have what its own locks
    /// covered. ENOENT when what is to be changed is no file any more.
    fn may_change(&self, rq: &TargetRequest, id: ObjectId) -> Result<(), OstError> {
        if rq.exp.gone() {
            return Err(Errno::ENOTCONN.into());
        }
        match &self.files {
            Some(there) => Ok(there(id).map(drop)?),
            None => Ok(()),
        }
    }

    /// Makes the OST `fsname-OSTindex` on `osd` and starts it. Clients reach it once it is added to
    /// a [`crate::ServerNode`].
    pub fn start<O>(
        node: Arc<Node>,
        fsname: &str,
        index: u32,
        osd: Arc<O>,
    ) -> Result<Arc<LuTarget>, OsdError>
    where
        O: Kv + Objects + 'static,
    {
        let cfg = TargetConfig::new(TargetKind::Ost, &format!("{fsname}-OST{index:04x}"), index);
        Self::start_on(node, cfg, Device::from(osd.clone()), osd)
    }

    /// As [`Ost::start`], with limits of one's own, and tables and objects apart.
    pub fn start_on(
        node: Arc<Node>,
        cfg: TargetConfig,
        kv: impl Into<Device>,
        objects: Arc<dyn Objects>,
    ) -> Result<Arc<LuTarget>, OsdError> {
        let kv = kv.into();
        let to_count = ToCount::before_start(&kv)?;
        let target = LuTarget::new(node, cfg, kv.clone())?;
        target
            .ldlm()
            .set_lvb_ops(Arc::new(lvb::ObjectLvb(objects.clone())));
        let ost = Ost::new(objects, kv);
        ost.start_counting(to_count, target.instance())?;
        target.start(ost);
        Ok(target)
    }

    async fn answer(&self, rq: &TargetRequest) -> Result<OstAnswer, OstError> {
        match rq.rq.body.opc {
            opc::OST_READ => self.read(rq).await,
            opc::OST_WRITE => self.write(rq).await,
            opc::OST_GETATTR => self.getattr(rq).await.map(done),
            opc::OST_SETATTR => self.setattr(rq).await.map(done),
            opc::OST_PUNCH => self.punch(rq).await.map(done),
            opc::OST_FALLOCATE => self.fallocate(rq).await.map(done),
            opc::OST_SEEK => self.seek(rq).await.map(done),
            opc::OST_SYNC => self.sync(rq).await.map(done),
            opc::OST_CREATE => self.create(rq).map(done),
            opc::OST_DESTROY => self.destroy(rq).await.map(done),
            opc::OST_LADVISE => self.ladvise(rq).map(done),
            opc::OST_QUOTACTL => self.quotactl(rq).await.map(done),
            opc::OST_STATFS => self.statfs().map(done),
            opc::OST_GET_INFO => self.get_info(rq).map(done),
            opc::OST_SET_INFO => self.set_info(rq).map(done),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// How times travel between us and the client of `rq`.
    fn times(rq: &TargetRequest) -> Times {
        match Self::coral(&rq.exp) {
            true => Times::Packed,
            false => Times::Seconds,
        }
    }

    /// Times, owner and parent that a request brings, the owner as it counts here.
    fn asked_attr(rq: &TargetRequest, oa: &Obdo) -> SetAttr {
        rq.exp
            .view()
            .owners_to_fs(obdo::set_attr(oa, Ost::times(rq)))
    }

    fn coral(exp: &Export) -> bool {
        exp.connect().has2(ConnectFlags2::CORAL)
    }
}

impl TargetOps for Ost {
    fn connect_data(&self, asked: &ObdConnectData) -> Result<ObdConnectData, Errno> {
        connect::agree(asked, self.objects.max_bytes())
    }

    fn book_grant(&self, exp: &Export, has: Option<u64>) -> u64 {
        let held = self.grants.lock().connect(exp.cookie, has, &*self.objects);
        if exp.gone() {
            self.forget(exp.cookie);
        }
        held
    }

    fn handle(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // Others may have written there since.
            if rq.replay_committed() {
                let body = PtlrpcBody {
                    transno: rq.rq.body.transno,
                    ..PtlrpcBody::reply(&rq.rq.body, 0)
                };
                return rq.reply(0, Message::new(&body)).await;
            }
            match self.answer(&rq).await {
                Ok(Some((status, msg))) => rq.reply(status, msg).await,
                Ok(None) => {}
                Err(e) => {
                    if e.is_ours() {
                        let (xid, nid, op) = (rq.rq.xid, rq.rq.from, opc::name(rq.rq.body.opc));
                        let target_name = &rq.target.config().name;
                        tracing::error!(target_name, error = %e, xid, %nid, op, "request failed");
                    }
                    rq.fail(e.errno()).await
                }
            }
        })
    }

    fn enqueue(self: Arc<Self>, rq: TargetRequest) -> BoxFuture<'static, ()> {
        Box::pin(async move { lvb::glimpse(&*self.objects, rq).await })
    }

    fn export_gone(self: Arc<Self>, exp: Arc<Export>, _evicted: bool) -> BoxFuture<'static, ()> {
        self.forget(exp.cookie);
        Box::pin(async {})
    }

    fn sync_data(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async {
            self.changes.lock().commit_begins();
            let began = self.usage.sync_begins();
            self.objects.sync_all().await?;
            self.usage.synced(began).await;
            Ok(())
        })
    }

    fn stopping(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.stop_counting().await })
    }
}

fn done(msg: Message) -> OstAnswer {
    Some((0, msg))
}

/// A reply without buffers yet.
fn reply() -> Message {
    Message::new(&PtlrpcBody::default())
}

/// What a storage call brought, for a client.
fn stored<T>(done: Result<T, OsdError>) -> Result<T, OstError> {
    done.map_err(OstError::from)
}

/// When clients last set the times of objects, or wrote back what they had cached: a write sent before that (smaller xid) but
/// arriving after it must not set them back (`ofd_fmd` in `lustre/ofd/ofd_fmd.c`). Bounded: the oldest entry
/// goes first.
#[derive(Default)]
struct TimesSet {
    xid: BTreeMap<(u64, ObjectId), u64>,
    order: VecDeque<(u64, ObjectId)>,
}

impl TimesSet {
    fn note(&mut self, export: u64, id: ObjectId, xid: u64) {
        if self.xid.insert((export, id), xid).is_none() {
            self.order.push_back((export, id));
        }
        if self.order.len() > TIMES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.xid.remove(&oldest);
        }
    }

    /// True when the times were set by a later request of the same client.
    fn overtaken(&self, export: u64, id: ObjectId, xid: u64) -> bool {
        self.xid.get(&(export, id)).is_some_and(|set| *set > xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_set_later_win_and_memory_is_bounded() {
        let mut t = TimesSet::default();
        let id = |oid| ObjectId { seq: 0, oid };
        t.note(1, id(1), 100);
        assert!(t.overtaken(1, id(1), 99));
        assert!(
            !t.overtaken(1, id(1), 101) && !t.overtaken(2, id(1), 99) && !t.overtaken(1, id(2), 99)
        );
        for oid in 2..2 * TIMES_MAX as u64 {
            t.note(1, id(oid), 5);
            t.note(1, id(oid), 6);
        }
        assert_eq!((t.xid.len(), t.order.len()), (TIMES_MAX, TIMES_MAX));
    }
}
