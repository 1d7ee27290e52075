//! LDLM_ENQUEUE with an intent: the operation and the lock on its result in one request
//! (`mdt_intent_policy` in `lustre/mdt/mdt_handler.c`).
//!
//! A lock goes with the reply only if it is free: a lock that would have to wait is left out
//! (status 301) and the client asks again when it wants one. The grant and the reading of what it
//! covers happen under the core's lock, so a reply never shows a state older than its lock.

use bytes::Bytes;
use coral_ldlm::LocalLock;
use coral_wire::coral::LEND;
use coral_wire::layout::Layout;
use coral_wire::ldlm::{
    ELDLM_LOCK_ABORTED, Ibits, LdlmFlags, LdlmIntent, LdlmMode, LdlmReply, LdlmRequest, LdlmType,
    Policy, it,
};
use coral_wire::mds::{LayoutIntent, MdtBody, disp, layout_intent, md};
use coral_wire::ptlrpc::{MSG_REPLAY, MSG_RESENT};
use coral_wire::{Errno, Fid};

use super::core::MdtCore;
use super::cred::Ucred;
use super::ctx::{Answer, Ctx};
use super::namespace::{self, At};
use super::out::DOUBT_LIMIT;
use super::packed::Packed;
use super::record::Inode;
use super::store::{MdtResult, Txn};
use super::stripe;
use super::xattr;

/// What an intent came to, apart from attributes.
#[derive(Clone, Copy, Debug, Default)]
pub struct IntentOutcome {
    /// Disposition bits.
    pub disp: u64,
    /// Status of the operation.
    pub error: Option<Errno>,
    /// Server cookie of the lock given.
    pub lock: Option<u64>,
}

/// What a getattr or lookup intent asks for.
pub struct GetattrIntent<'a> {
    /// The lock that is to come with it.
    pub req: &'a LdlmRequest,
    /// IT_GETATTR or IT_LOOKUP.
    pub op: u64,
    /// The directory or the object, and which attributes.
    pub body: MdtBody,
    /// The name; empty: the object itself.
    pub name: &'a [u8],
    /// Who asks.
    pub cred: Ucred,
}

/// What an answer has to wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// Another client may keep attributes of this file back.
    Kept(Fid),
    /// What these bits cover of this object is being changed.
    Changing(Fid, Ibits),
}

/// An object of which nobody changes what these bits cover as long as this is held.
pub struct HeldObject {
    fid: Fid,
    bits: Ibits,
    lock: LocalLock,
}

/// The client asks for the intent's answer alone.
fn wants_no_lock(req: &LdlmRequest) -> bool {
    req.flags & LdlmFlags::INTENT_ONLY == LdlmFlags::INTENT_ONLY
}

impl Ctx {
    /// Serves an enqueue with intent.
    pub async fn enqueue(&self) -> MdtResult<Answer> {
        let req = LdlmRequest::decode(self.buf(1))?;
        let early: Vec<u64> = req
            .early_cancels()
            .iter()
            .copied()
            .filter(|&c| c != 0)
            .collect();
        if !early.is_empty() {
            self.ops.ldlm.cancel(self.exp(), &early);
        }
        if self.buf(2).is_empty() {
            if matches!(
                req.desc.policy(),
                Policy::Ibits {
                    bits: Ibits::DOM,
                    ..
                }
            ) {
                return self.glimpse(&req).await;
            }
            return self.plain(&req).await;
        }
        let intent: LdlmIntent = self.rq.rq.msg.get(2)?;
        if intent.opc != LEND {
            self.take_back_of_before(&req);
        }
        match intent.opc {
            o if o & it::OPEN != 0 => self.intent_open(&req).await,
            it::GETATTR | it::LOOKUP => self.intent_getattr(&req, intent.opc).await,
            it::READDIR => self.plain(&req).await,
            it::LAYOUT => self.intent_layout(&req).await,
            it::GETXATTR => self.intent_getxattr(&req),
            LEND => Box::pin(self.intent_lend(&req)).await,
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    /// A resent request whose lock was given already: that lock is not known to the client.
    pub fn take_back_of_before(&self, req: &LdlmRequest) {
        if let Some(cookie) = self.given_before(req) {
            self.ops.ldlm.cancel(self.exp(), &[cookie]);
        }
    }

    /// The lock that a resent request was given already.
    pub(super) fn given_before(&self, req: &LdlmRequest) -> Option<u64> {
        let again = self.rq.rq.body.flags & (MSG_RESENT | MSG_REPLAY) != 0;
        let found = again.then(|| self.ops.ldlm.find_resent(self.exp(), req.handle(0)));
        found.flatten().map(|rep| rep.handle)
    }

    /// An enqueue that has the intent flag but no intent: READDIR locks.
    async fn plain(&self, req: &LdlmRequest) -> MdtResult<Answer> {
        match self.ops.ldlm.enqueue(self.exp(), req).await {
            Ok(r) => {
                let mut a = self.answer(0);
                a.msg.push(&r.reply).push_bytes(r.lvb);
                Ok(a)
            }
            Err(e) => {
                let mut a = self.answer(e.status());
                a.msg.push(&LdlmReply::default()).push_empty();
                Ok(a)
            }
        }
    }

    /// Gives the client a PR lock on `fid` if `bits` are free, with `try_bits` as far as they are.
    pub fn give_lock(
        &self,
        req: &LdlmRequest,
        fid: &Fid,
        bits: Ibits,
        try_bits: Ibits,
    ) -> Option<u64> {
        if wants_no_lock(req) {
            return None;
        }
        let known = self.known_bits();
        let (bits, try_bits) = (Ibits(bits.0 & known), Ibits(try_bits.0 & known));
        let policy = Policy::Ibits {
            bits,
            try_bits,
            gid: 0,
            initiator_id: 0,
        };
        let ldlm = &self.ops.ldlm;
        let given = ldlm.try_grant(
            self.exp(),
            req.handle(0),
            fid.res_id(),
            LdlmType::IBITS,
            LdlmMode::PR,
            policy,
        )?;
        Some(given.0)
    }

    fn known_bits(&self) -> u64 {
        match self.rq.exp.connect().ibits_known {
            0 => u64::MAX,
            k => k,
        }
    }

    /// An answer with DLM_REP filled in; status 0 with a lock, else 301.
    pub fn intent_answer(&self, out: &IntentOutcome) -> Answer {
        let mut rep = out
            .lock
            .and_then(|l| self.ops.ldlm.reply_for(l))
            .unwrap_or_default();
        let mut a = self.answer(if rep.handle != 0 {
            0
        } else {
            ELDLM_LOCK_ABORTED
        });
        if rep.handle != 0 {
            rep.flags = LdlmFlags::LOCK_CHANGED | LdlmFlags::HAS_INTENT;
        }
        rep.policy_res1 = out.disp;
        rep.policy_res2 = out.error.map_or(0, |e| i64::from(-e.0) as u64);
        a.msg.push(&rep);
        a
    }

    /// The answer to a getattr or lookup intent.
    pub(super) fn getattr_answer(&self, out: &IntentOutcome, p: Packed) -> Answer {
        let mut a = self.intent_answer(out);
        a.msg
            .push(&p.body)
            .push_bytes(p.md)
            .push_bytes(p.acl)
            .push_empty()
            .push_empty()
            .push_bytes(p.default_lmv)
            .push_empty();
        a
    }

    /// IT_GETATTR and IT_LOOKUP: by name in `fid1`, or without a name `fid2` (else `fid1`) itself.
    async fn intent_getattr(&self, req: &LdlmRequest, op: u64) -> MdtResult<Answer> {
        let body = self.body(3)?;
        let asked = GetattrIntent {
            req,
            op,
            body,
            name: self.name(5),
            cred: self.cred_of(&body),
        };
        let mut held = None;
        loop {
            match self.try_getattr(&asked, &mut held)? {
                Ok(answer) => return Ok(*answer),
                Err(Blocked::Kept(fid)) => {
                    held = None;
                    Box::pin(self.end_keeping(&fid)).await;
                }
                Err(Blocked::Changing(fid, bits)) => {
                    drop(held.take());
                    held = Some(self.unchanged(&fid, LdlmMode::PR, bits).await?);
                }
            }
        }
    }

    /// Whether a layout of this object must not reach the client without a lock ([`Ctx::sure_lock`]). Of directories nothing is
    /// waited for: a kernel client has a directory's lock in use while it asks for its shards, whatever the order of their FIDs.
    pub fn believes_layouts(&self, ino: &Inode) -> bool {
        !self.coral && ino.is_reg() && !self.rq.is_replay()
    }

    /// Waits until nobody changes what `bits` cover of the object `fid`; it stays so as long as the lock is held. EINPROGRESS, for the
    /// client to come again, where another MDT has to say first whether it was changed. What it waits for may be queued behind it.
    pub async fn unchanged(&self, fid: &Fid, mode: LdlmMode, bits: Ibits) -> MdtResult<HeldObject> {
        self.rq.rq.leave_lane();
        let (ty, policy) = (LdlmType::IBITS, Policy::ibits(bits));
        let lock = (self.ops.ldlm).lock_local(fid.res_id(), ty, mode, policy, None);
        let mut lock = Box::pin(lock);
        loop {
            if let Ok(lock) = tokio::time::timeout(DOUBT_LIMIT, &mut lock).await {
                let fid = *fid;
                return Ok(HeldObject { fid, bits, lock });
            }
            if self.ops.out.in_doubt(&[*fid]) {
                return Err(Errno::EINPROGRESS.into());
            }
        }
    }

    /// The lock on an object without which a client must not be answered, or what it waits for. What is `held` of that object
    /// becomes the client's, also where others wait for it by now.
    ///
    /// * A kernel client that is told of an object on another MDT without the lock on its name takes the lock of the other MDT for
    ///   both, gives it back twice, and panics (`lmv_intent_remote`).
    /// * It believes a layout that comes without a lock (`ll_prep_inode`). While a file moves to another MDT, it would take its objects for
    ///   those of the old FID for ever, and refuse them under the new one (`lov_init_sub`).
    pub fn sure_lock(
        &self,
        req: &LdlmRequest,
        fid: &Fid,
        bits: Ibits,
        held: &mut Option<HeldObject>,
    ) -> MdtResult<Result<Option<u64>, Blocked>> {
        let bits = Ibits(bits.0 & self.known_bits());
        // who knows no such locks asks for none
        if wants_no_lock(req) || bits.0 == 0 {
            return Ok(Ok(None));
        }
        if let Some(object) = held.take_if(|o| o.fid == *fid && o.bits == bits) {
            let lock = self.give(req, object, held)?;
            return Ok(Ok(Some(lock)));
        }
        match self.give_lock(req, fid, bits, Ibits(0)) {
            None if self.rq.exp.gone() => Err(Errno::ENOTCONN.into()),
            None => Ok(Err(Blocked::Changing(*fid, bits))),
            lock => Ok(Ok(lock)),
        }
    }

    /// The client gets what is held. One that is gone does not: the lock goes back to `held`, as the core may be locked, with which no
    /// lock is let go of.
    fn give(
        &self,
        req: &LdlmRequest,
        object: HeldObject,
        held: &mut Option<HeldObject>,
    ) -> MdtResult<u64> {
        match object.lock.give_to(self.exp(), req.handle(0)) {
            Ok((cookie, _)) => Ok(cookie),
            Err(lock) => {
                *held = Some(HeldObject { lock, ..object });
                Err(Errno::ENOTCONN.into())
            }
        }
    }

    /// The same as [`Ctx::intent_getattr`], or what it waits for.
    pub fn try_getattr(
        &self,
        asked: &GetattrIntent<'_>,
        held: &mut Option<HeldObject>,
    ) -> MdtResult<Result<Box<Answer>, Blocked>> {
        let answer = |out: &IntentOutcome, p| Ok(Ok(Box::new(self.getattr_answer(out, p))));
        let GetattrIntent {
            req,
            op,
            body: ref b,
            name,
            ref cred,
        } = *asked;
        let mut out = IntentOutcome {
            disp: disp::IT_EXECD | disp::LOOKUP_EXECD,
            ..IntentOutcome::default()
        };
        let core = self.reading();
        let dir = Some(&b.fid1).filter(|_| !name.is_empty());
        if let Some(lent) = self.lent_to_other(&core, dir, None)? {
            return Ok(Err(lent));
        }
        let found = if name.is_empty() {
            Ok(Some(if b.fid2.is_zero() { b.fid1 } else { b.fid2 }))
        } else {
            namespace::lookup(
                &mut Txn::new(&core.store),
                cred,
                At {
                    parent: b.fid1,
                    name,
                    layout: 0,
                },
            )
        };
        let fid = match found {
            Ok(Some(fid)) => fid,
            Ok(None) => {
                out.disp |= disp::LOOKUP_NEG;
                return answer(&out, Packed::default());
            }
            Err(e) => {
                out.error = Some(self.told(&e));
                return answer(&out, Packed::default());
            }
        };
        if !core.store.is_here(&fid) {
            out.disp |= disp::LOOKUP_POS;
            out.lock = match self.sure_lock(req, &fid, Ibits::LOOKUP, held)? {
                Ok(lock) => lock,
                Err(blocked) => return Ok(Err(blocked)),
            };
            let body = super::remote::elsewhere(fid);
            let p = Packed {
                body,
                ..Packed::default()
            };
            drop(core);
            return answer(&out, p);
        }
        let Some(ino) = core
            .store
            .find(&fid)?
            .filter(|i| i.nlink > 0 || core.opens.is_open(&fid))
        else {
            out.disp |= disp::LOOKUP_NEG;
            out.error = name.is_empty().then_some(Errno::ENOENT);
            return answer(&out, Packed::default());
        };
        if let Some(blocked) = self.kept_by_other(&core, &fid, &ino)? {
            return Ok(Err(blocked));
        }
        let mut bits = if op == it::LOOKUP {
            Ibits::LOOKUP.0 | Ibits::PERM.0
        } else {
            Ibits::LOOKUP.0 | Ibits::UPDATE.0 | Ibits::PERM.0
        };
        if b.valid & md::FLCROSSREF != 0 {
            bits &= !Ibits::LOOKUP.0;
        }
        let layout = if ino.is_reg() {
            Ibits::LAYOUT
        } else {
            Ibits(0)
        };
        out.lock = match self.believes_layouts(&ino) {
            true => match self.sure_lock(req, &fid, Ibits(bits | layout.0), held)? {
                Ok(lock) => lock,
                Err(blocked) => return Ok(Err(blocked)),
            },
            false => self.give_lock(req, &fid, Ibits(bits), layout),
        };
        out.disp |= disp::LOOKUP_POS;
        let p = self.pack_all(&core.store, &fid, &ino, Some(b.valid))?;
        drop(core);
        answer(&out, p)
    }

    /// IT_LAYOUT: the layout, made for a range first if the client is about to write there.
    async fn intent_layout(&self, req: &LdlmRequest) -> MdtResult<Answer> {
        let li: LayoutIntent = self.rq.rq.msg.get(3)?;
        let fid = Fid::from_res_id(&req.desc.res());
        let changes = matches!(li.opc, layout_intent::WRITE | layout_intent::TRUNC);
        if !changes && li.opc != layout_intent::ACCESS {
            return Err(Errno::EOPNOTSUPP.into());
        }
        // what is on disk is there already, or its file has gone since
        let done = self.rq.replay_committed();
        let transno = if changes && !done {
            self.change_layout(&fid, &li).await?
        } else {
            0
        };
        let mut held = None;
        let (out, lov) = loop {
            match self.try_layout(req, &fid, done, &mut held)? {
                Some(read) => break read,
                None => {
                    drop(held.take());
                    held = Some(self.unchanged(&fid, LdlmMode::CR, Ibits::LAYOUT).await?);
                }
            }
        };
        let mut a = self.intent_answer(&out);
        a.msg.push_bytes(lov);
        if transno != 0 {
            let mut body = a.msg.body()?;
            body.transno = transno;
            a.msg.set_body(&body);
        }
        Ok(a)
    }

    /// The layout with the lock on it; `None`: a kernel client has to wait for the lock. The lock is given and the layout read
    /// together; another change may have come since the layout was made, the client then gets the newer one.
    fn try_layout(
        &self,
        req: &LdlmRequest,
        fid: &Fid,
        done: bool,
        held: &mut Option<HeldObject>,
    ) -> MdtResult<Option<(IntentOutcome, Bytes)>> {
        let core = self.reading();
        let ino = match core.store.find(fid)? {
            Some(ino) => ino,
            None if done => Inode::default(),
            None => return Err(Errno::ENOENT.into()),
        };
        let lock = match held.take() {
            Some(object) => Some(self.give(req, object, held)?),
            None => self.layout_lock(req, fid),
        };
        if lock.is_none() && self.believes_layouts(&ino) && !self.rq.exp.gone() {
            return Ok(None);
        }
        let out = IntentOutcome {
            disp: disp::IT_EXECD,
            error: None,
            lock,
        };
        Ok(Some((out, ino.lov)))
    }

    /// Makes objects for the range the intent names, if there are none yet. Returns the transno.
    async fn change_layout(&self, fid: &Fid, li: &LayoutIntent) -> MdtResult<u64> {
        let _lock = self.ops.lock_layout(fid).await;
        let (transno, first) = self.put_grown(fid, li)?;
        if first {
            self.layout_made().await?;
        }
        Ok(transno)
    }

    /// The transaction of [`Ctx::change_layout`]: its transno, and whether the file had no layout before.
    fn put_grown(&self, fid: &Fid, li: &LayoutIntent) -> MdtResult<(u64, bool)> {
        let mut guard = self.core();
        let core = &mut *guard;
        let first = core.store.find(fid)?.is_some_and(|i| i.lov.is_empty());
        let Some(lov) = self.grow_layout(core, fid, li)? else {
            return Ok((0, false));
        };
        let mut t = Txn::new(&core.store);
        let h = t.get(fid)?;
        t.change(h).lov = lov.clone();
        // what a resend gets: the layout without a lock
        let mut a = self.intent_answer(&IntentOutcome {
            disp: disp::IT_EXECD,
            ..IntentOutcome::default()
        });
        a.msg.push_bytes(lov);
        self.commit(t, &mut a)?;
        Ok((a.msg.body()?.transno, first))
    }

    fn layout_lock(&self, req: &LdlmRequest, fid: &Fid) -> Option<u64> {
        let policy = Policy::ibits(Ibits::LAYOUT);
        let given = self.ops.ldlm.try_grant(
            self.exp(),
            req.handle(0),
            fid.res_id(),
            LdlmType::IBITS,
            LdlmMode::CR,
            policy,
        )?;
        Some(given.0)
    }

    /// The layout of `fid` with objects for the range the intent names; `None` if it has them.
    fn grow_layout(
        &self,
        core: &mut MdtCore,
        fid: &Fid,
        li: &LayoutIntent,
    ) -> MdtResult<Option<Bytes>> {
        if let Some(lov) = self.missing_layout(core, fid)? {
            return Ok(Some(lov));
        }
        let ino = core.store.inode(fid)?;
        if !ino.is_reg() {
            return Err(Errno::EINVAL.into());
        }
        let Layout::Composite(comp) = Layout::decode(&ino.lov)? else {
            return Ok(None);
        };
        // a replay brings the layout that the client was given then (`mdt_intent_layout`): the client has written to those objects
        if self.rq.is_replay()
            && let Ok(Layout::Composite(given)) = Layout::decode(self.buf(4))
        {
            return Ok(stripe::adopt(comp, given).map(|c| c.encode()));
        }
        // a truncate instantiates what lies below the new end, so that the last component can hold it
        let (start, end) = match li.opc {
            layout_intent::TRUNC => (li.start.min(li.end), li.end.max(li.start.saturating_add(1))),
            _ => (li.start, li.end),
        };
        let (mut alloc, store) = core.allocator();
        let (comp, changed) = alloc.instantiate(store, fid, comp, start, end)?;
        Ok(changed.then(|| comp.encode()))
    }

    /// IT_GETXATTR: every attribute with its value, and the XATTR lock.
    fn intent_getxattr(&self, req: &LdlmRequest) -> MdtResult<Answer> {
        let b = self.body(3)?;
        let core = self.reading();
        let ino = core.store.inode(&b.fid1)?;
        let lock = self.give_lock(req, &b.fid1, Ibits::XATTR, Ibits(0));
        let (mut names, mut values, mut lens) = (Vec::new(), Vec::new(), Vec::new());
        let mut count = 0;
        for (name, value) in xattr::all(&core.store, &b.fid1, &ino)? {
            let value = self.view.xattr_to_client(&name, value);
            names.extend_from_slice(&name);
            names.push(0);
            lens.extend_from_slice(&(value.len() as u32).to_le_bytes());
            values.extend_from_slice(&value);
            count += 1;
        }
        drop(core);
        let body = MdtBody {
            valid: md::FLXATTR,
            eadatasize: names.len() as u32,
            aclsize: values.len() as u32,
            max_mdsize: count,
            ..MdtBody::default()
        };
        let mut a = self.intent_answer(&IntentOutcome {
            disp: 0,
            error: None,
            lock,
        });
        a.msg.push(&body).push_empty().push_empty();
        a.msg
            .push_bytes(names.into())
            .push_bytes(values.into())
            .push_bytes(lens.into());
        Ok(a)
    }
}
