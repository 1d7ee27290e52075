//! Intents: a lock enqueue that carries an operation; the MDT does it and says in the reply what came of it.
//!
//! Lustre: `lustre/mdc/mdc_locks.c` (`mdc_enqueue`, `mdc_finish_intent_lock`), `lustre/mdt/mdt_open.c`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coral_ldlm::{LockRef, PendingLock};
use coral_ptlrpc::{Reply, Request};
use coral_wire::Errno;
use coral_wire::Wire;
use coral_wire::coral::{KEEPS_ATTRS, KEPT_ATTRS, LENT, MAY_MAKE, UNTOLD_OPEN};
use coral_wire::fid::Fid;
use coral_wire::ldlm::{
    ELDLM_LOCK_ABORTED, Ibits, LdlmFlags, LdlmIntent, LdlmMode, LdlmReply, LdlmRequest, LdlmType,
    Policy, it,
};
use coral_wire::mds::{LayoutIntent, MdtBody, RecCreate, ReintOp, disp, md, open};
use coral_wire::ptlrpc::{opc, portal};

use super::device::{Attrs, BIG_EA_BYTES, EA_BYTES, KeptOpen, Mdc, Open, WANT, nul};
use super::ids::Ids;
use crate::ask::Answer;
use crate::error::TargetError;
use crate::time::Timespec;

/// Pause before an MDT that is not ready is asked again.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// What a lookup or getattr intent found.
pub struct Found {
    /// Attributes, layout, ACL.
    pub attrs: Attrs,
    /// The lock that covers them, if the server gave one.
    pub lock: Option<LockRef>,
}

/// An open file as the MDT answered it.
pub struct Opened {
    /// Attributes, layout, ACL.
    pub attrs: Attrs,
    /// The open handle; changes when the open is replayed to a restarted server.
    pub handle: Arc<AtomicU64>,
    /// Names the open for replay.
    pub transno: u64,
    /// [`coral_ptlrpc::Import::generation`] of before it: an eviction since has closed it.
    pub generation: u64,
    /// The file did not exist before.
    pub created: bool,
    /// What is set of the file's attributes may be kept back while it is open so and the lock is held.
    pub keeps: bool,
    /// More files like it may be made in its directory and be told of later.
    pub more: bool,
    /// A lock that came with it.
    pub lock: Option<LockRef>,
    /// How the directory looks now, if the file was created (Coral servers).
    pub dir: Option<MdtBody>,
}

/// What an intent reply says apart from its buffers.
pub(super) struct Outcome<'a> {
    disposition: u64,
    pub(super) lock: Option<LockRef>,
    pub(super) reply: Answer<'a>,
}

impl Outcome<'_> {
    fn has(&self, bit: u64) -> bool {
        self.disposition & bit != 0
    }

    /// Why an open that was answered has opened nothing; EREMOTE: the object is on another MDT than its name. ESTALE: it is none that
    /// an MDT opens, and took the name since it was looked up; the caller looks again.
    fn not_opened(&self) -> TargetError {
        let body = Attrs::read(&self.reply, 2).ok().map(|a| a.body);
        let is_special =
            |mode: u32| !matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG | libc::S_IFDIR);
        match body {
            _ if self.has(disp::LOOKUP_NEG) => self.reply.refused(Errno::ENOENT),
            Some(b) if b.valid & md::MDS != 0 => self.reply.refused(Errno::EREMOTE),
            Some(b) if is_special(b.mode) => self.reply.refused(Errno::ESTALE),
            _ => self.reply.bad("an open that neither opened nor failed"),
        }
    }
}

impl Mdc {
    /// Sends an intent RPC under `pending`; an error of the operation (policy_res2) becomes `Err` after the lock, if any, is given up.
    pub(super) async fn intent(
        &self,
        rq: Request,
        pending: PendingLock,
    ) -> Result<Outcome<'_>, TargetError> {
        let (opc, fid) = (rq.opc, rq.fid());
        let (reply, pending) = self.namespace().intent(rq, pending).await?;
        let reply = Answer::of(reply, self.import(), opc, fid);
        let status = Errno::from_status(reply.status);
        let rep = match (reply.get::<LdlmReply>(1), status) {
            (Ok(rep), _) => rep,
            (Err(_), Some(errno)) => return Err(reply.refused(errno)),
            (Err(e), None) => return Err(e),
        };
        let lock = self.namespace().finish(pending, &rep, reply.status);
        if let Some(errno) = status {
            return Err(reply.refused(errno));
        }
        if reply.status > 0 && reply.status != ELDLM_LOCK_ABORTED {
            tracing::debug!(
                status = reply.status,
                "intent reply with an unusual lock status"
            );
        }
        if let Some(e) = Errno::from_status(rep.policy_res2 as i32)
            .filter(|_| rep.policy_res1 & disp::IT_EXECD != 0)
        {
            self.drop_lock(lock);
            return Err(reply.refused(e));
        }
        Ok(Outcome {
            disposition: rep.policy_res1,
            lock,
            reply,
        })
    }

    /// Gives a lock back without waiting for it.
    pub(crate) fn drop_lock(&self, lock: Option<LockRef>) {
        if let Some(l) = lock {
            let ns = self.namespace().clone();
            tokio::spawn(async move { ns.cancel(l).await });
        }
    }

    fn intent_rq(it: u64, dlm: &LdlmRequest) -> Request {
        Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
            .push_bytes(dlm.to_bytes())
            .push(&LdlmIntent { opc: it })
    }

    pub(super) fn pend(&self, fid: Fid, mode: LdlmMode, bits: Ibits) -> PendingLock {
        self.namespace().prepare(
            fid.res_id(),
            LdlmType::IBITS,
            mode,
            Policy::ibits(bits),
            LdlmFlags::HAS_INTENT,
        )
    }

    /// Looks a name up (`name` empty: the object `parent` itself), asking for LOOKUP, UPDATE and PERM bits on what is found.
    pub async fn lookup_lock(
        &self,
        ids: &Ids,
        parent: Fid,
        name: &[u8],
    ) -> Result<Found, TargetError> {
        let pending = self.pend(parent, LdlmMode::CR, Ibits::UPDATE);
        let mut body = ids.body(parent, WANT);
        body.eadatasize = EA_BYTES;
        if name.is_empty() {
            body.fid2 = parent;
        }
        let rq = Self::intent_rq(it::GETATTR, &pending.request())
            .push(&body)
            .push_bytes(Bytes::new())
            .push_bytes(nul(name))
            .concerning(parent);
        let out = self.intent(rq, pending).await?;
        if out.has(disp::LOOKUP_NEG) {
            self.drop_lock(out.lock);
            return Err(out.reply.refused(Errno::ENOENT));
        }
        let attrs = Attrs::read(&out.reply, 2)?;
        if attrs.truncated() {
            let attrs = self
                .getattr_sized(ids, attrs.body.fid1, BIG_EA_BYTES)
                .await?;
            return Ok(Found {
                attrs,
                lock: out.lock,
            });
        }
        Ok(Found {
            attrs,
            lock: out.lock,
        })
    }

    /// Opens. `fid2` is the FID for the new file with `CREAT`, else the file itself; `name` empty: open by FID.
    /// `flags` are [`open`] bits; `layout_version` that of a striped `parent`, as for [`super::CreateArgs`]. Without `want_lock` a
    /// lock is given only by servers that give one always.
    #[expect(clippy::too_many_arguments, reason = "an open has that many parts")]
    pub async fn open(
        &self,
        ids: &Ids,
        parent: Fid,
        name: &[u8],
        fid2: Fid,
        flags: u64,
        mode: u32,
        now: Timespec,
        layout_version: u32,
        want_lock: bool,
    ) -> Result<Opened, TargetError> {
        let makes = flags & open::CREAT != 0 && want_lock;
        let rec = RecCreate {
            fid1: parent,
            fid2,
            time: self.time(now),
            mode,
            layout_ver: layout_version,
            bias: if makes && self.coral() { KEPT_ATTRS } else { 0 },
            ..Default::default()
        };
        self.open_as(ids, name, rec, flags, want_lock).await
    }

    /// Tells a Coral MDT of the file `fid` that was made as `name` in `parent`, which is lent, and opens it.
    #[expect(clippy::too_many_arguments, reason = "an open has that many parts")]
    pub async fn make_lent(
        &self,
        ids: &Ids,
        parent: Fid,
        name: &[u8],
        fid: Fid,
        flags: u64,
        mode: u32,
        now: Timespec,
        layout_version: u32,
    ) -> Result<Opened, TargetError> {
        let rec = RecCreate {
            fid1: parent,
            fid2: fid,
            time: self.time(now),
            mode,
            layout_ver: layout_version,
            bias: KEPT_ATTRS | LENT,
            ..Default::default()
        };
        self.open_as(ids, name, rec, flags, true).await
    }

    /// Tells a Coral MDT of an open of `fid` under a lock of this client's, before that lock goes.
    pub async fn open_untold(
        &self,
        ids: &Ids,
        fid: Fid,
        flags: u64,
        now: Timespec,
    ) -> Result<Opened, TargetError> {
        let rec = RecCreate {
            fid1: fid,
            fid2: fid,
            time: self.time(now),
            bias: UNTOLD_OPEN,
            ..Default::default()
        };
        self.open_as(ids, b"", rec, flags, false).await
    }

    /// The open that `rec` describes, but for who asks and with which `flags`.
    async fn open_as(
        &self,
        ids: &Ids,
        name: &[u8],
        rec: RecCreate,
        flags: u64,
        want_lock: bool,
    ) -> Result<Opened, TargetError> {
        let creat = flags & open::CREAT != 0;
        let (parent, fid2) = (rec.fid1, rec.fid2);
        let generation = self.import().generation();
        let mut flags = flags;
        if name.is_empty() {
            flags |= open::BY_FID;
        }
        let mut rec = RecCreate {
            opcode: ReintOp::OPEN,
            cap: ids.cap,
            fsuid: ids.fsuid,
            fsgid: ids.fsgid,
            suppgid1: ids.suppgids[0],
            suppgid2: ids.suppgids[1],
            umask: ids.umask,
            ..rec
        };
        rec.set_flags(flags);
        let (lock_mode, bits, intent) = if creat {
            (LdlmMode::CW, Ibits::UPDATE, it::OPEN | it::CREAT)
        } else {
            (LdlmMode::CR, Ibits::LOOKUP, it::OPEN)
        };
        // An MDT whose OSTs are not back yet has no objects for a new file: it says so, and is asked again without end, as the
        // kernel client does (`mdc_enqueue_base`).
        let about = if intent & it::CREAT == 0 {
            [Fid::ZERO; 2]
        } else {
            [parent, rec.fid2]
        };
        let (dlm, out) = loop {
            let pending = self.pend(parent, lock_mode, bits);
            let mut dlm = pending.request();
            if !want_lock {
                dlm.flags |= LdlmFlags::INTENT_ONLY;
            }
            let mut rq = open_rq(intent, &dlm, &rec, name, &Bytes::new());
            // others may be waiting for the lock under which it was read, or for the directory, and hold every place meanwhile
            rq.urgent = rec.bias & (UNTOLD_OPEN | LENT) != 0;
            let rq = rq
                .replayable_open()
                .about(about)
                .concerning(if name.is_empty() { fid2 } else { parent });
            match self.intent(rq, pending).await {
                // who has a lock that others may be waiting for sees to that
                Err(e) if e.is(Errno::EINPROGRESS) && rec.bias & LENT == 0 => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                done => break (dlm, done?),
            }
        };
        if !out.has(disp::OPEN_OPEN) {
            let why = out.not_opened();
            self.drop_lock(out.lock);
            return Err(why);
        }
        let dir = self.bodies(&out.reply, 5).first().copied();
        let mut attrs = Attrs::read(&out.reply, 2)?;
        let (body, transno) = (attrs.body, out.reply.transno);
        let handle = Arc::new(AtomicU64::new(body.open_handle));
        let keeps = self.coral() && out.has(KEEPS_ATTRS) && out.lock.is_some();
        let made = if keeps { open::CREATED } else { 0 };
        rec.set_flags(rec.flags() | made);
        // a replay must give the file the objects it has by then, not new ones
        let keep = match attrs.md.is_empty() || attrs.truncated() || !creat {
            true => Bytes::new(),
            false => {
                rec.set_flags(rec.flags() | open::HAS_EA);
                Bytes::copy_from_slice(&attrs.md)
            }
        };
        self.keep_for_replay(transno, intent, dlm, rec, &body, name, &keep, &handle);
        if attrs.truncated() {
            attrs.md = self
                .getattr_sized(&Ids::root(), body.fid1, BIG_EA_BYTES)
                .await?
                .md;
        }
        Ok(Opened {
            attrs,
            handle,
            transno,
            generation,
            created: out.disposition & disp::OPEN_CREATE != 0,
            keeps,
            more: keeps && out.has(MAY_MAKE),
            lock: out.lock,
            dir,
        })
    }

    /// Puts into the kept request what a replay must say: the FID and handle of the first reply, and no lock wanted.
    #[expect(
        clippy::too_many_arguments,
        reason = "all parts of the request that was sent"
    )]
    fn keep_for_replay(
        &self,
        transno: u64,
        intent: u64,
        mut dlm: LdlmRequest,
        mut rec: RecCreate,
        body: &MdtBody,
        name: &[u8],
        eadata: &Bytes,
        handle: &Arc<AtomicU64>,
    ) {
        if transno == 0 {
            return;
        }
        dlm.flags |= LdlmFlags::INTENT_ONLY;
        rec.fid2 = body.fid1;
        rec.open_handle_old = body.open_handle;
        let bufs = open_rq(intent, &dlm, &rec, name, eadata).bufs;
        self.import().amend_replay(transno, bufs);
        self.opens.lock().insert(
            transno,
            KeptOpen {
                handle: Arc::downgrade(handle),
                closing: false,
            },
        );
    }

    /// The server replayed an open: its new handle replaces the old one. The next replay must name the new one as the old, or
    /// a close that is replayed with it finds no open file, which then stays open there. Not so when a close is under way: it
    /// has the handle that the open names.
    pub(crate) fn open_replayed(&self, transno: u64, reply: &Reply) {
        let opens = self.opens.lock();
        let Some(o) = opens.get(&transno) else { return };
        // no handle: it was refused
        if let (Some(h), Ok(body)) = (o.handle.upgrade(), reply.msg.get::<MdtBody>(2))
            && body.open_handle != 0
        {
            h.store(body.open_handle, Ordering::Release);
            if !o.closing {
                self.name_old(transno, body.open_handle);
            }
        }
    }

    /// The handle that a close of this open is to name. Replays of the open name it as the old one from here on, so that the
    /// close finds the file whatever handles later starts of the server give it.
    pub(super) fn closing(&self, open: &Open) -> u64 {
        let mut opens = self.opens.lock();
        let now = open.handle.load(Ordering::Acquire);
        if let Some(o) = opens.get_mut(&open.transno).filter(|o| o.is(open)) {
            o.closing = true;
            self.name_old(open.transno, now);
        }
        now
    }

    fn name_old(&self, transno: u64, open_handle_old: u64) {
        self.import().edit_replay(transno, |bufs| {
            if let Some(buf) = bufs.get_mut(OPEN_REC)
                && let Ok(rec) = RecCreate::decode(buf)
            {
                *buf = RecCreate {
                    open_handle_old,
                    ..rec
                }
                .to_bytes();
            }
        });
    }

    /// The MDT has closed everything.
    pub(crate) fn evicted(&self) {
        self.opens.lock().clear();
    }

    /// The file is closed, by the request with transno `by` (0: which is not known): its open need not be replayed any more when that
    /// need not.
    pub(super) fn forget_open(&self, open: &Open, by: u64) {
        let mut opens = self.opens.lock();
        if opens.get(&open.transno).is_some_and(|o| o.is(open)) {
            opens.remove(&open.transno);
            self.import().forget_open(open.transno, by);
        }
    }

    /// Whether a lock is held that tells when the layout of a file changes.
    pub fn holds_layout(&self, fid: Fid) -> bool {
        let bits = Policy::ibits(Ibits::LAYOUT);
        let (res, ty) = (fid.res_id(), LdlmType::IBITS);
        let held = self.namespace().match_lock(&res, ty, LdlmMode::CR, &bits);
        held.is_some()
    }

    /// The layout of a file, after instantiating `start..end` when `intent_op` says write or truncate
    /// (`coral_wire::mds::layout_intent`). The lock, if given, covers it.
    pub async fn layout(
        &self,
        fid: Fid,
        intent_op: u32,
        start: u64,
        end: u64,
    ) -> Result<(Bytes, Option<LockRef>), TargetError> {
        let mode = if intent_op == coral_wire::mds::layout_intent::ACCESS {
            LdlmMode::CR
        } else {
            LdlmMode::EX
        };
        let pending = self.pend(fid, mode, Ibits::LAYOUT);
        let li = LayoutIntent {
            opc: intent_op,
            flags: 0,
            start,
            end,
        };
        let mut rq = Self::intent_rq(it::LAYOUT, &pending.request())
            .push(&li)
            .push_bytes(Bytes::new())
            .concerning(fid);
        if intent_op != coral_wire::mds::layout_intent::ACCESS {
            rq = rq.replayable();
        }
        let out = self.intent(rq, pending).await?;
        let layout = out.reply.msg.buf(2).clone();
        if out.reply.transno != 0 && !layout.is_empty() {
            // a replay must give the file the objects that it has by then, not new ones
            self.import().edit_replay(out.reply.transno, |bufs| {
                bufs[LAYOUT_EA] = Bytes::copy_from_slice(&layout)
            });
        }
        Ok((layout, out.lock))
    }
}

/// The layout among the buffers of a layout intent: empty, but in a replay.
const LAYOUT_EA: usize = 3;

/// The record among the buffers of an open intent.
const OPEN_REC: usize = 2;

/// The buffers of an open intent.
fn open_rq(
    intent: u64,
    dlm: &LdlmRequest,
    rec: &RecCreate,
    name: &[u8],
    eadata: &Bytes,
) -> Request {
    Request::new(portal::MDS_REQUEST, opc::LDLM_ENQUEUE)
        .push_bytes(dlm.to_bytes())
        .push(&LdlmIntent { opc: intent })
        .push_bytes(rec.to_bytes())
        .push_empty()
        .push_empty()
        .push_bytes(nul(name))
        .push_bytes(eadata.clone())
        .push_empty()
        .push_empty()
        .push_empty()
        .push_empty()
}
