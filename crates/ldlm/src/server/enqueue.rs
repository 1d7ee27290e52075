//! Requests of clients about locks: enqueue, convert, replay.

use bytes::Bytes;
use coral_wire::coral::blocks::{Blocks, PAGE_BYTES};
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmReply, LdlmRequest, LdlmType, LockDesc, Policy};
use std::sync::Arc;

use super::{EnqueueError, EnqueueReply, LdlmServer, reply_of};
use crate::ExportId;
use crate::core::{Actions, LockInfo, Outcome, Want};

/// Checks a request and says what it asks for (`ldlm_handle_enqueue`).
pub(super) fn want_of(exp: ExportId, req: &LdlmRequest) -> Result<Want, EnqueueError> {
    if !LdlmFlags::FROM_CLIENT.contains(req.flags) {
        return Err(EnqueueError::Protocol);
    }
    let (ty, mode, policy) = (req.desc.ty(), req.desc.req_mode, req.desc.policy());
    if !crate::core::well_formed(ty, mode, &policy) {
        return Err(EnqueueError::Malformed);
    }
    Ok(Want {
        res: req.desc.res(),
        ty,
        mode,
        policy,
        flags: req.flags,
        export: Some(exp),
        remote: req.handle(0),
        ignore: None,
    })
}

/// Of the blocks that a request names its extent is one: no others are given.
pub(super) fn check_blocks(policy: &mut Policy) {
    if let Policy::Extent {
        start, end, blocks, ..
    } = policy
    {
        let one = |b: &Blocks| start.is_multiple_of(PAGE_BYTES) && *end - *start == b.of_each() - 1;
        *blocks = blocks.filter(one);
    }
}

impl LdlmServer {
    /// A client's enqueue without intent (plain, extent, ibits, flock). Returns at once: granted, or queued with
    /// `BLOCK_*` set in the reply (blocking callbacks are on their way, the completion callback will follow).
    /// The cookies after the first in the request (early cancels) must have been passed to [`Self::cancel`] before.
    pub async fn enqueue(
        self: &Arc<Self>,
        exp: ExportId,
        req: &LdlmRequest,
    ) -> Result<EnqueueReply, EnqueueError> {
        let reply = self.enqueue_now(exp, req)?;
        Ok(EnqueueReply {
            lvb: self.lvb_for(&reply).await,
            reply,
        })
    }

    /// What of an enqueue happens under the mutex: apart, so that the future is `Send`.
    fn enqueue_now(
        self: &Arc<Self>,
        exp: ExportId,
        req: &LdlmRequest,
    ) -> Result<LdlmReply, EnqueueError> {
        let mut want = want_of(exp, req)?;
        check_blocks(&mut want.policy);
        self.stats.enqueues.inc();
        let asked = want.policy;
        let mut out = Actions::new();
        let mut st = self.state.lock();
        if st.gone.contains(&exp) {
            return Err(EnqueueError::NoExport);
        }
        // A flock that waits asks nobody to go: its reply tells how it stands now. What becomes of it later, a grant or the end of
        // its wait, is told by a completion callback.
        let flock = want.ty == LdlmType::FLOCK;
        let outcome = st.ns.enqueue(want, !flock, &mut out);
        let now = match &outcome {
            Ok(Outcome::Granted(cookie) | Outcome::Waiting(cookie)) => st.ns.info(*cookie),
            _ => None,
        };
        self.finish(st, out);
        if let Ok(Outcome::Waiting(_)) = &outcome {
            self.stats.queued.inc();
        }
        let now = || reply_of(&now.expect("the lock was there under the mutex"));
        let reply = match outcome? {
            Outcome::Granted(_) => now(),
            Outcome::Waiting(_) if flock => waits(now()),
            Outcome::Waiting(cookie) => self.answer_waiting(exp, cookie)?,
            Outcome::Absorbed => absorbed(req),
            Outcome::Tested(found) => tested(req, found),
        };
        Ok(mark_changes(reply, req, &asked))
    }

    /// The reply for a lock that had to be queued, no flock: by now it may be granted, or dropped with its export.
    fn answer_waiting(
        self: &Arc<Self>,
        exp: ExportId,
        cookie: u64,
    ) -> Result<LdlmReply, EnqueueError> {
        let mut st = self.state.lock();
        let (info, asked_to_go) = st.ns.reply_done(cookie).ok_or(EnqueueError::NoExport)?;
        let mut reply = reply_of(&info);
        if info.granted_mode == LdlmMode::NONE {
            reply = waits(reply);
        } else if asked_to_go {
            reply.flags |= LdlmFlags::AST_SENT | (info.flags & LdlmFlags::DISCARD_DATA);
            if info.flags.contains(LdlmFlags::CANCEL_ON_BLOCK) {
                let mut out = Actions::new();
                st.ns.cancel(cookie, Some(exp), &mut out);
                self.finish(st, out);
            } else {
                self.owe(&mut st, cookie);
            }
        }
        Ok(reply)
    }

    async fn lvb_for(&self, reply: &LdlmReply) -> Bytes {
        match self.lvb.get() {
            Some(ops) if super::has_lvb(reply.desc.ty(), &reply.desc.policy()) => {
                coral_wire::Wire::to_bytes(&ops.lvb(reply.desc.res()).await)
            }
            _ => Bytes::new(),
        }
    }

    /// The enqueue was sent before (RESENT): the reply for the lock that the export already has under this client cookie.
    pub fn find_resent(&self, exp: ExportId, client_cookie: u64) -> Option<LdlmReply> {
        let info = self.state.lock().ns.find_remote(exp, client_cookie)?;
        let reply = reply_of(&info);
        Some(match info.granted_mode {
            LdlmMode::NONE => waits(reply),
            _ => reply,
        })
    }

    /// [`Self::find_resent`] with the LVB that goes with the lock: the client has not seen it yet.
    pub async fn resent(
        self: &Arc<Self>,
        exp: ExportId,
        client_cookie: u64,
    ) -> Option<EnqueueReply> {
        let reply = self.find_resent(exp, client_cookie)?;
        Some(EnqueueReply {
            lvb: self.lvb_for(&reply).await,
            reply,
        })
    }

    /// LDLM_CONVERT: the lock named by handle 0 (our cookie) keeps only the inode bits in the request's policy. `None`: there
    /// is no such lock (status 303).
    pub fn convert(
        self: &Arc<Self>,
        exp: ExportId,
        req: &LdlmRequest,
    ) -> Result<Option<LdlmReply>, EnqueueError> {
        // kernel clients leave the type out (`ldlm_cli_inodebits_convert`)
        let Policy::Ibits { bits: keep, .. } = req.desc.ibits() else {
            return Err(EnqueueError::Malformed);
        };
        let cookie = req.handle(0);
        let mut out = Actions::new();
        let mut st = self.state.lock();
        let Some(before) = st.ns.info(cookie).filter(|l| l.export == Some(exp)) else {
            return Ok(None);
        };
        if before.granted_mode != req.desc.req_mode {
            return Err(EnqueueError::Protocol);
        }
        st.ns.keep_bits(cookie, exp, keep.0, &mut out);
        st.waiting_locks.remove(cookie);
        let desc = st.ns.info(cookie).map_or(LockDesc::default(), |l| l.desc());
        self.finish(st, out);
        Ok(Some(LdlmReply {
            flags: req.flags,
            desc,
            handle: before.remote_cookie,
            ..LdlmReply::default()
        }))
    }

    /// Recovery begins: waiting locks are only collected until [`Self::replay_finished`].
    pub fn begin_replay(&self) {
        self.state.lock().ns.begin_replay();
    }

    /// Replay after a restart: the lock is put where it stood, among the granted ones (`BLOCK_GRANTED` set) or the waiting
    /// (`replay_one_lock` in `ldlm_request.c`). A lock that was replayed already is found again.
    pub fn replay(
        self: &Arc<Self>,
        exp: ExportId,
        req: &LdlmRequest,
    ) -> Result<LdlmReply, EnqueueError> {
        let want = want_of(exp, req)?;
        let mut st = self.state.lock();
        if st.gone.contains(&exp) {
            return Err(EnqueueError::NoExport);
        }
        if let Some(info) = st.ns.find_remote(exp, want.remote) {
            return Ok(LdlmReply {
                flags: req.flags,
                ..reply_of(&info)
            });
        }
        let granted = req.flags.contains(LdlmFlags::BLOCK_GRANTED);
        let cookie = st.ns.replay(want, granted)?;
        let info = st.ns.info(cookie).expect("the lock was just added");
        Ok(LdlmReply {
            flags: req.flags,
            ..reply_of(&info)
        })
    }

    /// Lock replay is over: grants what can be granted.
    pub fn replay_finished(self: &Arc<Self>) {
        let mut out = Actions::new();
        let mut st = self.state.lock();
        st.ns.end_replay(&mut out);
        self.finish(st, out);
    }
}

/// The reply for a lock that waits.
fn waits(mut reply: LdlmReply) -> LdlmReply {
    reply.flags |= LdlmFlags::BLOCK_GRANTED | LdlmFlags::NO_TIMEOUT;
    reply
}

/// The reply for a flock of which no lock of its own remains: as it was asked for.
fn absorbed(req: &LdlmRequest) -> LdlmReply {
    LdlmReply {
        desc: LockDesc {
            granted_mode: req.desc.req_mode,
            ..req.desc
        },
        ..LdlmReply::default()
    }
}

/// The reply to F_GETLK: the lock in the way, or mode NL.
fn tested(req: &LdlmRequest, found: Option<LockInfo>) -> LdlmReply {
    let desc = match found {
        Some(l) => LockDesc {
            req_mode: l.granted_mode,
            granted_mode: LdlmMode::NONE,
            policy_data: l.policy.to_wire(),
            ..req.desc
        },
        None => LockDesc {
            req_mode: LdlmMode::NL,
            ..req.desc
        },
    };
    LdlmReply {
        flags: LdlmFlags::LOCK_CHANGED,
        desc,
        ..LdlmReply::default()
    }
}

/// Repeats the request's flags and sets `LOCK_CHANGED` when the lock is not what was asked for.
fn mark_changes(mut reply: LdlmReply, req: &LdlmRequest, asked: &Policy) -> LdlmReply {
    reply.flags |= req.flags;
    if reply.desc.req_mode != req.desc.req_mode || reply.desc.policy() != *asked {
        reply.flags |= LdlmFlags::LOCK_CHANGED;
    }
    reply
}
