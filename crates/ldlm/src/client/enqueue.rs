//! Asking for locks.

use bytes::Bytes;
use coral_ptlrpc::{Reply, Request, RpcError};
use coral_stopwatch::{Wait, waits};
use coral_wire::coral::glimpses::{self, DataWanted};
use coral_wire::ldlm::{
    ELDLM_LOCK_ABORTED, LdlmFlags, LdlmMode, LdlmReply, LdlmRequest, LdlmType, LockDesc, Policy,
    ResId,
};
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::opc;
use coral_wire::raw::decode_all;
use coral_wire::{Errno, Wire};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::flock::Aftermath;
use super::{ClientNamespace, LockError, LockRef, PendingLock};

type Call = BoxFuture<'static, Result<Reply, RpcError>>;

/// An enqueue that may be dropped at any time: dropped while its RPC is under way, the RPC is finished in the background and
/// what it brought is given back; dropped while the lock waits at the server, it is withdrawn there.
struct Enqueue {
    pending: Option<PendingLock>,
    call: Asking,
    /// A server cookie is known, the lock is not ours yet.
    waiting: bool,
}

/// A call that is made once.
struct Asking {
    call: Option<Call>,
    started: bool,
}

impl Asking {
    fn of(ns: &ClientNamespace, rpc: Request) -> Asking {
        let import = ns.import.clone();
        Asking {
            call: Some(Box::pin(async move { import.call(rpc).await })),
            started: false,
        }
    }

    async fn reply(&mut self) -> Result<Reply, RpcError> {
        self.started = true;
        let call = self.call.as_mut().expect("a call is made once");
        let reply = std::future::poll_fn(|cx| call.poll_unpin(cx)).await;
        self.call = None;
        reply
    }

    /// The call, if it is under way.
    fn take(&mut self) -> Option<Call> {
        self.call.take().filter(|_| self.started)
    }
}

impl Drop for Enqueue {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let ns = pending.ns.clone();
        let aftermath = Aftermath::of_drop(&ns.aftermaths, &pending.request.desc);
        match self.call.take() {
            Some(call) => ns.clone().spawn(Box::pin(async move {
                if let Ok(reply) = call.await {
                    ns.abandon(pending, &reply).await;
                }
                drop(aftermath);
            })),
            _ if self.waiting => {
                let me = ns.clone();
                ns.spawn(Box::pin(async move {
                    me.withdraw(pending).await;
                    drop(aftermath);
                }));
            }
            _ => {}
        }
    }
}

/// A request that asks for several locks, with the promises of [`Enqueue`].
struct Enqueues {
    pending: Vec<PendingLock>,
    call: Asking,
    replies: fn(&Reply) -> Vec<Option<LdlmReply>>,
}

impl Drop for Enqueues {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else {
            return;
        };
        let Some(ns) = self.pending.first().map(|p| p.ns.clone()) else {
            return;
        };
        let (pending, replies) = (std::mem::take(&mut self.pending), self.replies);
        let me = ns.clone();
        ns.spawn(Box::pin(async move {
            if let Ok(reply) = call.await {
                for (p, rep) in pending.into_iter().zip(replies(&reply)) {
                    if let Some(rep) = rep
                        && let Some(h) = me.locks.lock().get_mut(p.cookie())
                    {
                        h.remote = rep.handle;
                    }
                    me.clone().withdraw(p).await;
                }
            }
        }));
    }
}

impl ClientNamespace {
    /// Registers a lock before its request is sent (callbacks may overtake the reply). The request to put into an
    /// intent RPC is [`PendingLock::request`].
    ///
    /// # Panics
    /// With 16 Mi locks.
    pub fn prepare(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        flags: LdlmFlags,
    ) -> PendingLock {
        let cookie = self
            .locks
            .lock()
            .prepare(res, ty, mode, policy, flags)
            .expect("the LRU bounds the locks of a client");
        let request = LdlmRequest::enqueue(flags, LockDesc::new(res, ty, mode, &policy), cookie);
        PendingLock {
            ns: self.clone(),
            request,
            live: true,
        }
    }

    /// Takes in the reply to an intent RPC sent with [`PendingLock::request`]. `None`: the reply granted no lock.
    /// The lock may come on another resource, mode or policy than asked for: see [`LockRef::info`].
    pub fn finish(
        self: &Arc<Self>,
        mut pending: PendingLock,
        rep: &LdlmReply,
        status: i32,
    ) -> Option<LockRef> {
        let cookie = pending.cookie();
        let none = status < 0 || status == ELDLM_LOCK_ABORTED || rep.handle == 0;
        let mut locks = self.locks.lock();
        let waits = rep.flags.intersects(LdlmFlags::BLOCKED)
            && locks.get(cookie).is_some_and(|h| !h.granted);
        if none || waits || locks.get(cookie).is_none_or(|h| h.dead) {
            // An intent's lock is granted in its reply or not at all; one that waits is of no use.
            if let Some(h) = locks.get_mut(cookie).filter(|_| !none) {
                h.remote = rep.handle;
            }
            return None;
        }
        locks.grant(cookie, &rep.desc, rep.handle);
        if rep.flags.contains(LdlmFlags::AST_SENT) {
            // Pinned by the caller: given back with the last pin.
            let _ = locks.block(
                cookie,
                rep.handle,
                rep.flags.contains(LdlmFlags::DISCARD_DATA),
            );
        }
        drop(locks);
        pending.live = false;
        Some(LockRef::new(self.clone(), cookie))
    }

    /// Sends an intent RPC that carries [`PendingLock::request`]; its reply is for [`ClientNamespace::finish`]. Dropped while it is
    /// under way, it is finished in the background and the lock it brought is given back.
    pub async fn intent(
        self: &Arc<Self>,
        rpc: Request,
        pending: PendingLock,
    ) -> Result<(Reply, PendingLock), RpcError> {
        let mut enq = self.start_with(rpc, pending);
        let reply = enq.call.reply().await?;
        Ok((reply, enq.pending.take().expect("the lock is pending")))
    }

    /// Sends a request that asks for all these locks; its reply is for [`ClientNamespace::finish`], one answer a lock. `replies`
    /// finds them in the reply, in the order of the locks; `None`: it was not answered. Dropped as [`ClientNamespace::intent`].
    pub async fn intents(
        self: &Arc<Self>,
        rpc: Request,
        pending: Vec<PendingLock>,
        replies: fn(&Reply) -> Vec<Option<LdlmReply>>,
    ) -> Result<(Reply, Vec<PendingLock>), RpcError> {
        let mut enq = Enqueues {
            pending,
            call: Asking::of(self, rpc),
            replies,
        };
        let reply = enq.call.reply().await?;
        Ok((reply, std::mem::take(&mut enq.pending)))
    }

    fn start(&self, pending: PendingLock) -> Enqueue {
        // It may be asked for with another lock in hand, for which those wait that have all places for requests.
        let rpc = Request::new(self.portal, opc::LDLM_ENQUEUE)
            .push_bytes(pending.request.to_bytes())
            .urgent();
        self.start_with(rpc, pending)
    }

    fn start_with(&self, rpc: Request, pending: PendingLock) -> Enqueue {
        Enqueue {
            pending: Some(pending),
            call: Asking::of(self, rpc),
            waiting: false,
        }
    }

    /// Plain, extent, ibits or flock enqueue without intent; waits until granted. Returns the lock, pinned, and the LVB (at most
    /// `lvb_len` bytes). Dropping the future cancels the lock at the server, also while it waits.
    pub async fn enqueue(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        mode: LdlmMode,
        policy: Policy,
        flags: LdlmFlags,
        lvb_len: usize,
    ) -> Result<(LockRef, Bytes), LockError> {
        let begun = Instant::now();
        let mut enq = self.start(self.prepare(res, ty, mode, policy, flags));
        let reply = enq.call.reply().await?;
        let rep = checked(&reply)?;
        let lock = self.granted(&mut enq, &rep).await?;
        self.stats.enqueue.record_time(begun.elapsed());
        let late = lock.take_lvb();
        let mut lvb = if late.is_empty() {
            reply.msg.buf(2).clone()
        } else {
            late
        };
        lvb.truncate(lvb_len);
        Ok((lock, lvb))
    }

    /// Takes in a reply that promises a lock, and waits for the grant if need be.
    async fn granted(
        self: &Arc<Self>,
        enq: &mut Enqueue,
        rep: &LdlmReply,
    ) -> Result<LockRef, LockError> {
        let pending = enq.pending.as_ref().expect("the lock is pending");
        let cookie = pending.cookie();
        let gone: fn() -> LockError = match pending.request.desc.ty() {
            // granted, and unlocked by its own owner before this task ran
            LdlmType::FLOCK => || refused(Errno::EINTR, 0),
            _ => || LockError::Evicted,
        };
        let rx = self.note_reply(cookie, rep, gone)?;
        if let Some(rx) = rx {
            enq.waiting = true;
            let begun = Instant::now();
            let _ = waits(Wait::Lock, rx).await;
            self.stats.wait.record_time(begun.elapsed());
        }
        let refused = {
            let mut locks = self.locks.lock();
            let h = locks.get_mut(cookie).ok_or_else(gone)?;
            if h.dead {
                Some(LockError::Evicted)
            } else {
                h.refused.map(|errno| refused(errno, 0))
            }
        };
        // The lock, or what became of it, is known: nothing is left to withdraw.
        enq.waiting = false;
        let mut pending = enq.pending.take().expect("the lock is pending");
        match refused {
            Some(e) => Err(e),
            None => {
                pending.live = false;
                Ok(LockRef::new(self.clone(), cookie))
            }
        }
    }

    /// Notes the reply; where to wait when the lock is not granted yet.
    fn note_reply(
        &self,
        cookie: u64,
        rep: &LdlmReply,
        gone: fn() -> LockError,
    ) -> Result<Option<oneshot::Receiver<()>>, LockError> {
        let mut locks = self.locks.lock();
        let h = locks.get_mut(cookie).ok_or_else(gone)?;
        if h.dead {
            return Err(LockError::Evicted);
        }
        if h.remote == 0 {
            h.remote = rep.handle;
        }
        if rep.flags.intersects(LdlmFlags::BLOCKED) {
            if h.granted || h.refused.is_some() {
                return Ok(None);
            }
            let (tx, rx) = oneshot::channel();
            h.waiter = Some(tx);
            return Ok(Some(rx));
        }
        locks.grant(cookie, &rep.desc, rep.handle);
        if rep.flags.contains(LdlmFlags::AST_SENT) {
            let _ = locks.block(
                cookie,
                rep.handle,
                rep.flags.contains(LdlmFlags::DISCARD_DATA),
            );
        }
        Ok(None)
    }

    /// The reply of an enqueue nobody waits for any more.
    async fn abandon(self: Arc<Self>, pending: PendingLock, reply: &Reply) {
        let Ok(rep) = checked(reply) else {
            return;
        };
        let asked = pending.request.desc;
        if rep.handle == 0 && asked.ty() == LdlmType::FLOCK {
            // granted, and part of an older lock of its owner already
            drop(pending);
            return self.restore_flocks(&asked, true).await;
        }
        if let Some(h) = self.locks.lock().get_mut(pending.cookie()) {
            h.remote = rep.handle;
        }
        self.withdraw(pending).await;
    }

    /// Gives a lock back that its asker does not want any more, granted meanwhile or not.
    async fn withdraw(self: Arc<Self>, pending: PendingLock) {
        let asked = pending.request.desc;
        if asked.ty() == LdlmType::FLOCK {
            // Not forgotten yet: a completion callback that finds it unknown ends it at the server, and others would get what its
            // owner held before.
            let remote = self.locks.lock().withdraw_flock(pending.cookie());
            let status = match remote {
                0 => None,
                _ => self.send_cancel(&[remote]).await,
            };
            let merged = status == Some(Errno::ESTALE.status());
            return self.restore_flocks(&asked, merged).await;
        }
        // Forgotten first: a completion callback that comes now is answered "unknown", and the server drops the lock.
        drop(pending);
    }

    /// Glimpse enqueue: size and times of an OST object; with the lock when the server gave it.
    pub async fn glimpse(
        self: &Arc<Self>,
        res: ResId,
    ) -> Result<(OstLvb, Option<LockRef>), LockError> {
        self.glimpse_with(res, LdlmType::EXTENT, Policy::extent(0, u64::MAX))
            .await
    }

    /// The same with the lock `policy` describes: all of an OST object (extent), or a file's data on an MDT (DOM inode bit).
    pub async fn glimpse_with(
        self: &Arc<Self>,
        res: ResId,
        ty: LdlmType,
        policy: Policy,
    ) -> Result<(OstLvb, Option<LockRef>), LockError> {
        let pending = self.prepare(res, ty, LdlmMode::PR, policy, LdlmFlags::HAS_INTENT);
        let mut enq = self.start(pending);
        let reply = enq.call.reply().await?;
        if let Some(e) = Errno::from_status(reply.status) {
            return Err(refused(e, reply.xid));
        }
        let rep = reply
            .msg
            .get::<LdlmReply>(1)
            .map_err(|e| LockError::Proto(e.to_string()))?;
        let lvb =
            OstLvb::decode_any(reply.msg.buf(2)).map_err(|e| LockError::Proto(e.to_string()))?;
        if let Some(e) = lvb.error() {
            return Err(refused(e, reply.xid));
        }
        let pending = enq.pending.take().expect("the lock is pending");
        Ok((lvb, self.finish(pending, &rep, reply.status)))
    }

    /// Glimpses of several OST objects in one request, which an OST of Coral takes: each with its lock, and with the data of small ones
    /// where that is wanted. `None`: that one is to be asked for alone.
    pub async fn glimpses(
        self: &Arc<Self>,
        objects: &[ResId],
        wanted: Option<DataWanted>,
    ) -> Result<Vec<Option<Glimpsed>>, LockError> {
        let whole = Policy::extent(0, u64::MAX);
        let pend = |res: &ResId| {
            let (ty, mode) = (LdlmType::EXTENT, LdlmMode::PR);
            self.prepare(*res, ty, mode, whole, LdlmFlags::HAS_INTENT)
        };
        let pending: Vec<PendingLock> = objects.iter().map(pend).collect();
        let asked: Vec<LdlmRequest> = pending.iter().map(|p| p.request()).collect();
        let Some((first, further)) = asked.split_first() else {
            return Ok(Vec::new());
        };
        let mut rq = self.glimpses_of(first, further);
        if let Some(wanted) = wanted {
            rq = rq.push(&wanted);
        }
        let (reply, pending) = self.intents(rq, pending, glimpsed).await?;
        if let Some(e) = Errno::from_status(reply.status) {
            return Err(refused(e, reply.xid));
        }
        let locks = decode_all::<LdlmReply>(reply.msg.buf(1));
        let values = decode_all::<OstLvb>(reply.msg.buf(2));
        let mut data = wanted
            .map(|w| data_along(w, &reply))
            .unwrap_or_default()
            .into_iter();
        let mut answers = locks.iter().zip(values);
        let found = pending.into_iter().map(|pending| {
            let (lock, value) = answers.next()?;
            let data = data.next().flatten();
            let lock = self.finish(pending, lock, reply.status)?;
            value
                .error()
                .is_none()
                .then_some(Glimpsed { value, lock, data })
        });
        Ok(found.collect())
    }

    fn glimpses_of(&self, first: &LdlmRequest, further: &[LdlmRequest]) -> Request {
        Request::new(self.portal, opc::LDLM_ENQUEUE)
            .push_bytes(first.to_bytes())
            .push_bytes(glimpses::encode(further))
            .urgent()
    }

    /// The data of small OST objects on which this client has locks, as it comes along with glimpses. `None`: it did not.
    pub async fn data_of(
        self: &Arc<Self>,
        objects: &[ResId],
        wanted: DataWanted,
    ) -> Result<Vec<Option<Bytes>>, LockError> {
        let whole = Policy::extent(0, u64::MAX);
        let no_lock = |res: &ResId| {
            let desc = LockDesc::new(*res, LdlmType::EXTENT, LdlmMode::NL, &whole);
            LdlmRequest::enqueue(LdlmFlags::HAS_INTENT, desc, 0)
        };
        let asked: Vec<LdlmRequest> = objects.iter().map(no_lock).collect();
        let Some((first, further)) = asked.split_first() else {
            return Ok(Vec::new());
        };
        let rq = self.glimpses_of(first, further).push(&wanted);
        let reply = self.import.call(rq).await?;
        match Errno::from_status(reply.status) {
            Some(e) => Err(refused(e, reply.xid)),
            None => Ok(data_along(wanted, &reply)),
        }
    }
}

/// What a glimpse brought of an object.
pub struct Glimpsed {
    /// Size and times.
    pub value: OstLvb,
    /// The lock that covers them.
    pub lock: LockRef,
    /// All of its data, if that came along.
    pub data: Option<Bytes>,
}

/// The data that came with the answers. Where it does not fit together there is none, and the files are read one by one.
fn data_along(wanted: DataWanted, reply: &Reply) -> Vec<Option<Bytes>> {
    let data = wanted.decode_data(reply.msg.buf(3), reply.msg.buf(4));
    data.unwrap_or_else(|| {
        tracing::warn!(
            xid = reply.xid,
            "data that came with glimpses was changed on the way"
        );
        Vec::new()
    })
}

/// The answers to several glimpses in one request.
fn glimpsed(reply: &Reply) -> Vec<Option<LdlmReply>> {
    let locks = decode_all::<LdlmReply>(reply.msg.buf(1));
    locks.into_iter().map(Some).collect()
}

fn refused(errno: Errno, xid: u64) -> LockError {
    LockError::Refused { errno, xid }
}

/// The DLM_REP buffer of a reply that is no refusal.
pub(super) fn checked(reply: &Reply) -> Result<LdlmReply, LockError> {
    if let Some(e) = Errno::from_status(reply.status) {
        return Err(refused(e, reply.xid));
    }
    if reply.status == ELDLM_LOCK_ABORTED {
        return Err(LockError::Aborted);
    }
    if reply.status != 0 {
        return Err(LockError::Proto(format!("lock status {}", reply.status)));
    }
    LdlmReply::decode(reply.msg.buf(1)).map_err(|e| LockError::Proto(e.to_string()))
}

/// Sends an enqueue that makes no lock of its own on this side (F_GETLK) and returns the reply.
pub(super) async fn ask(
    ns: &Arc<ClientNamespace>,
    pending: PendingLock,
) -> Result<LdlmReply, LockError> {
    let mut enq = ns.start(pending);
    let reply = enq.call.reply().await?;
    checked(&reply)
}
