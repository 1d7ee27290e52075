//! The connection to one OST, and its small requests. Reads and writes are in `brw.rs`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::{ClientNamespace, Glimpsed, LockRef};
use coral_ptlrpc::{Import, Request, RpcError};
use coral_wire::Errno;
use coral_wire::coral::blocks::Blocks;
use coral_wire::coral::glimpses::DataWanted;
use coral_wire::fid::Fid;
use coral_wire::ldlm::{Ibits, LdlmFlags, LdlmMode, LdlmType, Policy};
use coral_wire::ost::{CksumType, ObdFlags, ObdStatfs, Obdo, OstLvb, md};
use coral_wire::ptlrpc::{opc, portal};

use super::brw::SHORT_IO_BYTES;
use super::object::{IN_FLIGHT, IoLock, ObjectAttr, ObjectRef, ObjectTimes, Owner, WriteAttr};
use crate::ask::ask;
use crate::error::TargetError;
use crate::grant::{Grant, PAGE_BYTES};
use crate::stats::OscStats;
use crate::target::{ClientObd, TargetHooks};
use crate::time::Timespec;

/// Longest wait for the space of a target.
pub(crate) const STATFS_LIMIT: Duration = Duration::from_secs(10);

/// "To the end of the object" in `o_blocks`.
pub const OBJECT_EOF: u64 = u64::MAX;

/// Bound of what is kept for one target.
#[derive(Default)]
pub(super) struct Written {
    /// Bytes.
    pub(super) limit: AtomicUsize,
    /// The target was asked to sync.
    pub(super) syncing: Arc<AtomicBool>,
}

/// A connection to one OST.
pub struct Osc {
    /// Index of the OST in the layout EA; of an MDT, its own.
    pub index: u32,
    pub(super) target: Arc<ClientObd>,
    /// It is an MDT.
    pub(super) mdt: bool,
    write_backs: tokio::sync::Semaphore,
    pub(super) kept: Written,
    hooks: parking_lot::Mutex<Option<Arc<dyn TargetHooks>>>,
    stats: Arc<OscStats>,
}

impl Osc {
    pub(crate) fn new(index: u32, target: Arc<ClientObd>) -> Arc<Self> {
        Self::of(index, target, false)
    }

    /// The data an MDT holds.
    pub(crate) fn of_mdt(index: u32, target: Arc<ClientObd>) -> Arc<Self> {
        Self::of(index, target, true)
    }

    fn of(index: u32, target: Arc<ClientObd>, mdt: bool) -> Arc<Self> {
        let write_backs = tokio::sync::Semaphore::new(IN_FLIGHT);
        let me = Arc::new(Self {
            index,
            target,
            mdt,
            write_backs,
            kept: Default::default(),
            hooks: Default::default(),
            stats: Arc::default(),
        });
        me.show();
        me
    }

    /// Shows what is on its way among the metrics of its node.
    fn show(self: &Arc<Self>) {
        let of = |value: fn(&Osc) -> u64| {
            let me = Arc::downgrade(self);
            move || me.upgrade().map(|osc| value(&osc))
        };
        self.stats.dirty.ask(of(|osc| osc.grant().dirty()));
        self.stats.grant.ask(of(|osc| osc.grant().held()));
        self.stats.unstable.ask(of(|osc| osc.kept_bytes() as u64));
        let labels = [("target", self.uuid().trim_end_matches("_UUID"))];
        self.import().node().metrics().attach(&labels, &self.stats);
    }

    /// Who hears of losses; kept alive here.
    pub(crate) fn set_hooks(&self, hooks: Arc<dyn TargetHooks>) {
        self.target.set_hooks(Arc::downgrade(&hooks));
        *self.hooks.lock() = Some(hooks);
    }

    /// It holds the data of an MDT.
    pub(crate) fn is_mdt(&self) -> bool {
        self.mdt
    }

    /// Portal of I/O.
    pub(super) fn io_portal(&self) -> u32 {
        if self.mdt {
            portal::MDS_IO
        } else {
            portal::OST_IO
        }
    }

    /// Portal of everything else.
    fn portal(&self) -> u32 {
        if self.mdt {
            portal::MDS_REQUEST
        } else {
            portal::OST_REQUEST
        }
    }

    /// Type and extent of a lock on the whole object.
    pub(super) fn whole(&self) -> (LdlmType, Policy) {
        match self.mdt {
            true => (LdlmType::IBITS, Policy::ibits(Ibits::DOM)),
            false => (LdlmType::EXTENT, Policy::extent(0, u64::MAX)),
        }
    }

    /// A lock of just this mode on the whole object, one that is held already or a new one. A write lock would do for reading
    /// too, but own appends go under it without asking anybody: what relies on a read lock must not rely on that.
    pub async fn lock_whole(
        &self,
        obj: &ObjectRef,
        mode: LdlmMode,
    ) -> Result<LockRef, TargetError> {
        let (ty, policy) = self.whole();
        self.lock(obj, mode, ty, policy).await
    }

    /// The same on a range, whole pages of it; the server may give more. One that gives less is refused: who needs the rest would ask
    /// for ever. `blocks`: the range is one of these, and a lock on them is welcome.
    pub async fn lock_range(
        &self,
        obj: &ObjectRef,
        range: &Range<u64>,
        mode: LdlmMode,
        blocks: Option<Blocks>,
    ) -> Result<LockRef, TargetError> {
        let end = range.end.checked_next_multiple_of(PAGE_BYTES);
        let last = end.map_or(u64::MAX, |end| end - 1);
        let first = range.start / PAGE_BYTES * PAGE_BYTES;
        let policy = Policy::Extent {
            start: first,
            end: last,
            gid: 0,
            blocks: blocks.filter(|_| self.coral()),
        };
        let lock = self.lock(obj, mode, LdlmType::EXTENT, policy).await?;
        match lock.policy() {
            given if given.span().is_some_and(|s| s.has(first, last)) => Ok(lock),
            other => Err(TargetError::BadReply {
                what: format!("a lock on {other:?} for {first}..={last}"),
                call: self.import().call_named(opc::LDLM_ENQUEUE, 0, obj.parent),
            }),
        }
    }

    async fn lock(
        &self,
        obj: &ObjectRef,
        mode: LdlmMode,
        ty: LdlmType,
        policy: Policy,
    ) -> Result<LockRef, TargetError> {
        let res = obj.oi.res_id();
        if let Some(lock) = self
            .namespace()
            .match_lock(&res, ty, mode, &policy)
            .filter(|l| l.mode() == mode)
        {
            return Ok(lock);
        }
        let (flags, lvb) = (LdlmFlags::empty(), size_of::<OstLvb>());
        let got = self
            .namespace()
            .enqueue(res, ty, mode, policy, flags, lvb)
            .await;
        got.map(|(lock, _)| lock)
            .map_err(|e| TargetError::of_lock(e, self.import(), obj.parent))
    }

    /// An MDT gives a DOM lock with an open. While it is held, a lock of the server's own for our I/O would only call it back:
    /// the I/O goes under it instead, and it stays pinned meanwhile.
    pub(super) fn held(
        &self,
        obj: &ObjectRef,
        mode: LdlmMode,
        lock: IoLock,
    ) -> (IoLock, Option<LockRef>) {
        if !self.mdt || lock != IoLock::Server {
            return (lock, None);
        }
        let (ty, policy) = self.whole();
        match self
            .namespace()
            .match_lock(&obj.oi.res_id(), ty, mode, &policy)
        {
            Some(l) => (IoLock::Ours(l.info().remote_cookie), Some(l)),
            None => (lock, None),
        }
    }

    /// Both ends are Coral.
    pub fn coral(&self) -> bool {
        self.target.coral()
    }

    /// Target uuid.
    pub fn uuid(&self) -> &str {
        &self.target.uuid
    }

    /// The import.
    pub fn import(&self) -> &Arc<Import> {
        &self.target.import
    }

    /// Space the OST has promised.
    pub fn grant(&self) -> &Grant {
        &self.target.grant
    }

    /// Requests of written-back data to this OST at once.
    pub fn write_backs(&self) -> &tokio::sync::Semaphore {
        &self.write_backs
    }

    /// Extent locks held from this OST.
    pub fn namespace(&self) -> &Arc<ClientNamespace> {
        &self.target.namespace
    }

    /// Checksum algorithm agreed at connect, if checksums are wanted.
    pub(super) fn cksum(&self) -> Option<CksumType> {
        self.target.cksum()
    }

    fn obdo(obj: &ObjectRef) -> Obdo {
        let mut o = Obdo {
            oi: obj.oi,
            valid: md::FLID | md::FLGROUP,
            ..Default::default()
        };
        o.set_parent(obj.parent, obj.stripe_idx);
        o
    }

    fn srvlocked(obj: &ObjectRef) -> Obdo {
        let mut o = Self::obdo(obj);
        o.valid |= md::FLFLAGS;
        o.flags = ObdFlags::SRVLOCK;
        o
    }

    /// Under a lock of ours, or one that the server takes.
    pub(super) fn locked(obj: &ObjectRef, lock: IoLock) -> Obdo {
        let IoLock::Ours(cookie) = lock else {
            return Self::srvlocked(obj);
        };
        let mut o = Self::obdo(obj);
        if cookie != 0 {
            o.handle = cookie;
            o.valid |= md::FLHANDLE;
        }
        o
    }

    /// Who waits for a lock of ours may have taken all places for requests: one under that lock does not wait for a place, or the
    /// lock would never be given back.
    pub(super) fn under(lock: IoLock, rq: Request) -> Request {
        if lock == IoLock::Server {
            rq
        } else {
            rq.urgent()
        }
    }

    pub(super) async fn call(&self, rq: Request) -> Result<Obdo, TargetError> {
        ask(self.import(), rq).await?.get(1)
    }

    /// Size, blocks and times, seen after every write acknowledged so far.
    pub async fn getattr(&self, obj: &ObjectRef, lock: IoLock) -> Result<ObjectAttr, TargetError> {
        if self.mdt {
            return self.glimpse(obj).await.map(|(attr, _)| attr);
        }
        let o = if lock == IoLock::Server {
            Self::srvlocked(obj)
        } else {
            Self::obdo(obj)
        };
        let rq = Request::new(portal::OST_REQUEST, opc::OST_GETATTR)
            .push(&o)
            .push_bytes(Bytes::new());
        self.call(Self::under(lock, rq.concerning(obj.parent)))
            .await
            .map(|o| self.attr_of(&o))
    }

    fn attr_of(&self, o: &Obdo) -> ObjectAttr {
        let time = |t| Timespec::from_wire(t, self.target.coral());
        ObjectAttr {
            size: o.size,
            blocks: o.blocks,
            mtime: time(o.mtime),
            atime: time(o.atime),
            ctime: time(o.ctime),
        }
    }

    /// Size, blocks and times, with a lock that covers them if nobody is changing the object.
    pub async fn glimpse(
        &self,
        obj: &ObjectRef,
    ) -> Result<(ObjectAttr, Option<LockRef>), TargetError> {
        let (ty, policy) = self.whole();
        let (v, lock) = self
            .namespace()
            .glimpse_with(obj.oi.res_id(), ty, policy)
            .await
            .map_err(|e| TargetError::of_lock(e, self.import(), obj.parent))?;
        Ok((object_attr(&v), lock))
    }

    /// It takes the glimpses of many objects in one request, and answers just now.
    pub fn takes_glimpses_together(&self) -> bool {
        !self.mdt && self.target.coral() && self.is_connected()
    }

    /// The same of many objects, each with its lock, and `with_data` of small ones. `None`: it is to be asked for alone.
    pub async fn glimpses(
        &self,
        objects: &[ObjectRef],
        with_data: bool,
    ) -> Result<Vec<Option<(ObjectAttr, LockRef, Option<Bytes>)>>, TargetError> {
        let all: Vec<_> = objects.iter().map(|o| o.oi.res_id()).collect();
        let first = objects.first().map_or(Fid::ZERO, |o| o.parent);
        let wanted = with_data.then(|| DataWanted::new(SHORT_IO_BYTES as u32, self.cksum()));
        let found = self.namespace().glimpses(&all, wanted).await;
        let found = found.map_err(|e| TargetError::of_lock(e, self.import(), first))?;
        let read = |g: Glimpsed| (object_attr(&g.value), g.lock, g.data);
        Ok(found.into_iter().map(|f| f.map(read)).collect())
    }

    /// The data of small objects that this client has locks on. `None`: it is to be read alone.
    pub async fn data_of(&self, objects: &[ObjectRef]) -> Result<Vec<Option<Bytes>>, TargetError> {
        let all: Vec<_> = objects.iter().map(|o| o.oi.res_id()).collect();
        let first = objects.first().map_or(Fid::ZERO, |o| o.parent);
        let wanted = DataWanted::new(SHORT_IO_BYTES as u32, self.cksum());
        let data = self.namespace().data_of(&all, wanted).await;
        data.map_err(|e| TargetError::of_lock(e, self.import(), first))
    }

    /// Sets times. A Coral server takes a lock for it, unless we hold one, so that nobody keeps the old ones under a lock of
    /// his, and answers what the object's attributes are now.
    pub async fn setattr(
        &self,
        obj: &ObjectRef,
        t: &ObjectTimes,
        lock: IoLock,
    ) -> Result<Option<ObjectAttr>, TargetError> {
        if self.mdt {
            return Ok(None); // the inode has them
        }
        let mut o = if self.target.coral() {
            Self::locked(obj, lock)
        } else {
            Self::obdo(obj)
        };
        for (value, bit, field) in [
            (t.atime, md::FLATIME, &mut o.atime),
            (t.mtime, md::FLMTIME, &mut o.mtime),
            (t.ctime, md::FLCTIME, &mut o.ctime),
        ] {
            if let Some(v) = value {
                *field = v.to_wire(self.target.coral());
                o.valid |= bit;
            }
        }
        let rq = Request::new(portal::OST_REQUEST, opc::OST_SETATTR)
            .push(&o)
            .push_bytes(Bytes::new());
        let o = self.change(obj, Self::under(lock, rq)).await?;
        Ok(self.target.coral().then(|| self.attr_of(&o)))
    }

    /// Cuts the object at `size` (or extends it to that). A Coral server answers what the object's attributes are now.
    pub async fn truncate(
        &self,
        obj: &ObjectRef,
        size: u64,
        w: &WriteAttr,
        lock: IoLock,
    ) -> Result<Option<ObjectAttr>, TargetError> {
        let (lock, _held) = self.held(obj, LdlmMode::PW, lock);
        let mut o = Self::locked(obj, lock);
        o.size = size;
        o.blocks = OBJECT_EOF;
        o.valid |= md::FLSIZE | md::FLBLOCKS;
        self.stamp(&mut o, w);
        let rq = Request::new(self.io_portal(), opc::OST_PUNCH)
            .push(&o)
            .push_bytes(Bytes::new());
        let o = self.change(obj, Self::under(lock, rq)).await?;
        let all = md::FLSIZE | md::FLBLOCKS | md::FLMTIME | md::FLATIME | md::FLCTIME;
        let told = self.target.coral() && !self.mdt && o.valid & all == all;
        Ok(told.then(|| self.attr_of(&o)))
    }

    /// fallocate(2) on the object's bytes `start..end`; `mode` of `FALLOC_FL_*`.
    pub async fn fallocate(
        &self,
        obj: &ObjectRef,
        mode: u32,
        start: u64,
        end: u64,
        w: &WriteAttr,
    ) -> Result<(), TargetError> {
        let (lock, _held) = self.held(obj, LdlmMode::PW, IoLock::Server);
        let mut o = Self::locked(obj, lock);
        o.size = start;
        o.blocks = end;
        o.nlink = mode; // o_falloc_mode shares the field
        o.valid |= md::FLSIZE | md::FLBLOCKS;
        self.stamp(&mut o, w);
        let rq = Request::new(self.io_portal(), opc::OST_FALLOCATE)
            .push(&o)
            .push_bytes(Bytes::new());
        self.change(obj, Self::under(lock, rq)).await.map(drop)
    }

    /// Next hole or data at or after `offset`; `None` when there is none (ENXIO of the OST).
    pub async fn seek(
        &self,
        obj: &ObjectRef,
        offset: u64,
        hole: bool,
    ) -> Result<Option<u64>, TargetError> {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let (lock, _held) = self.held(obj, LdlmMode::PR, IoLock::Server);
        let mut o = Self::locked(obj, lock);
        o.size = offset;
        o.mode = if hole { SEEK_HOLE } else { SEEK_DATA };
        let rq = Request::new(self.portal(), opc::OST_SEEK).push(&o);
        match self
            .call(Self::under(lock, rq.concerning(obj.parent)))
            .await
        {
            Ok(o) if (o.size as i64) < 0 => Ok(None),
            Ok(o) => Ok(Some(o.size)),
            Err(e) if e.is(Errno::ENXIO) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Everything written to the object is on disk when this returns.
    pub async fn sync(&self, obj: &ObjectRef) -> Result<(), TargetError> {
        let mut o = Self::obdo(obj);
        o.size = 0;
        o.blocks = OBJECT_EOF;
        o.valid |= md::FLSIZE | md::FLBLOCKS;
        let rq = Request::new(self.portal(), opc::OST_SYNC)
            .push(&o)
            .push_bytes(Bytes::new());
        self.call(rq.concerning(obj.parent)).await.map(drop)
    }

    /// Owner and change times of a modification.
    pub(super) fn stamp(&self, o: &mut Obdo, w: &WriteAttr) {
        let wire = |t: Timespec| t.to_wire(self.target.coral());
        let Owner { uid, gid, projid } = w.owner;
        (o.uid, o.gid, o.projid) = (uid, gid, projid);
        o.mtime = wire(w.set.mtime.unwrap_or(w.time));
        o.ctime = wire(w.set.ctime.unwrap_or(w.time));
        o.valid |= md::FLMTIME | md::FLCTIME | md::FLUID | md::FLGID | md::FLPROJID;
        if let Some(atime) = w.set.atime {
            o.atime = wire(atime);
            o.valid |= md::FLATIME;
        }
    }

    /// Whether the OST answers, as far as is known: one that was left for want of use does.
    pub fn is_connected(&self) -> bool {
        self.target.is_connected()
    }

    /// Space. EAGAIN when the OST is not connected, as a lazy statfs of Lustre, whose default it is; also when it was left for
    /// want of use and has not come back within [`STATFS_LIMIT`].
    pub async fn statfs(&self) -> Result<ObdStatfs, TargetError> {
        let rq = Request::new(portal::OST_CREATE, opc::OST_STATFS).limit(STATFS_LIMIT);
        if !self.is_connected() {
            return Err(TargetError::Away(self.import().call_of(&rq, 0)));
        }
        match ask(self.import(), rq).await {
            Err(TargetError::NoReply(RpcError::Timeout(call))) => Err(TargetError::Away(call)),
            answer => answer?.get(1),
        }
    }
}

/// What the value of a lock says of its object.
pub(super) fn object_attr(v: &OstLvb) -> ObjectAttr {
    let time = |secs, nanos| Timespec { secs, nanos };
    ObjectAttr {
        size: v.size,
        blocks: v.blocks,
        mtime: time(v.mtime, v.mtime_ns),
        atime: time(v.atime, v.atime_ns),
        ctime: time(v.ctime, v.ctime_ns),
    }
}
