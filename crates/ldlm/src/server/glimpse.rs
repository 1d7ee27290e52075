//! Glimpse: how big an object is while others write to it, without taking their locks away.
//!
//! Lustre: `ofd_intent_policy` in `lustre/ofd/ofd_dlm.c`, `ofd_lvbo_update` in `ofd_lvb.c`.

use coral_stopwatch::{Wait, waits};
use coral_wire::ldlm::{
    ELDLM_LOCK_ABORTED, Ibits, LdlmMode, LdlmReply, LdlmRequest, LdlmType, Policy, ResId,
};
use coral_wire::ost::OstLvb;
use std::sync::Arc;
use tokio::time::Instant;

use super::{EnqueueError, GlimpseReply, LdlmServer, intent_reply_of};
use crate::ExportId;
use crate::ast::AstError;
use crate::core::{LockInfo, Refused};

/// Locks of one client of Lustre that it is asked about, one after the other, as long as it knows nothing of them: it is giving those
/// back. One of Coral answers for the object, so that its first answer says all. Lustre: 1.
const LOCKS_ASKED: usize = 4;

impl LdlmServer {
    /// Glimpse: enqueue of an extent lock, or of the DOM bit, with `HAS_INTENT`. When nobody holds a conflicting lock it is granted (status 0);
    /// else the holders of write locks are asked for theirs and there is no lock (status 301).
    pub async fn glimpse(
        self: &Arc<Self>,
        exp: ExportId,
        req: &LdlmRequest,
    ) -> Result<GlimpseReply, EnqueueError> {
        if let Some(free) = self.try_glimpse(exp, req).await? {
            return Ok(free);
        }
        // Without a lock the reply describes none.
        let reply = LdlmReply::default();
        Ok(GlimpseReply {
            status: ELDLM_LOCK_ABORTED,
            reply,
            lvb: self.glimpse_local(req.desc.res(), req.desc.ty()).await,
        })
    }

    /// The same where nobody holds a conflicting lock; `None`: somebody does. No client is asked.
    pub async fn try_glimpse(
        self: &Arc<Self>,
        exp: ExportId,
        req: &LdlmRequest,
    ) -> Result<Option<GlimpseReply>, EnqueueError> {
        let mut want = super::enqueue::want_of(exp, req)?;
        super::enqueue::check_blocks(&mut want.policy);
        if !super::has_lvb(want.ty, &want.policy) {
            return Err(EnqueueError::Malformed);
        }
        self.stats.enqueues.inc();
        let res = want.res;
        let granted = {
            let mut st = self.state.lock();
            if st.gone.contains(&exp) {
                return Err(EnqueueError::NoExport);
            }
            match st.ns.try_enqueue(want) {
                Ok(cookie) => st.ns.info(cookie),
                Err(Refused::WouldBlock) => None,
                Err(e) => return Err(e.into()),
            }
        };
        let Some(lock) = granted else { return Ok(None) };
        Ok(Some(GlimpseReply {
            status: 0,
            reply: intent_reply_of(&lock),
            lvb: self.stored_lvb(res).await,
        }))
    }

    /// Client `exp` tells what it keeps back under its lock on any of the inode bits `bits`, and keeps the lock. False: it has none, or
    /// does not know of it yet.
    pub async fn ask_kept(self: &Arc<Self>, exp: ExportId, res: ResId, bits: Ibits) -> bool {
        let covers = |l: &LockInfo| match l.policy {
            Policy::Ibits { bits: held, .. } => held.intersects(bits),
            _ => false,
        };
        let lock = {
            let st = self.state.lock();
            let mut granted = st.ns.granted(res, LdlmType::IBITS);
            granted.find(|l| l.export == Some(exp) && covers(l))
        };
        let Some(lock) = lock else { return false };
        match waits(Wait::Lock, self.asts.glimpse(exp, &lock)).await {
            Ok(_) => true,
            Err(AstError::NoLock) => false,
            Err(e) => {
                self.answered(exp, lock.cookie, "glimpse", Err(e));
                false
            }
        }
    }

    /// Size and times of an object with what clients have not written yet: asks them; no lock is taken.
    pub async fn glimpse_local(self: &Arc<Self>, res: ResId, ty: LdlmType) -> OstLvb {
        let stored = self.stored_lvb(res).await;
        let writers = self.writers(res, ty, stored.size);
        let asked = writers.into_iter().map(|of_one| self.ask_size(of_one));
        let answers = waits(Wait::Lock, futures_util::future::join_all(asked)).await;
        // Whoever is not asked, or had no answer, may have written its data and given its lock back since the stored value was read:
        // it is read again.
        let mut lvb = self.stored_lvb(res).await;
        for a in answers.into_iter().flatten() {
            merge(&mut lvb, &a);
            if let Some(ops) = self.lvb.get() {
                ops.update(res, &a);
            }
        }
        lvb
    }

    async fn stored_lvb(&self, res: ResId) -> OstLvb {
        match self.lvb.get() {
            Some(ops) => ops.lvb(res).await,
            None => OstLvb::default(),
        }
    }

    /// Of each client its write locks, those first that reach furthest. Only under those beyond `size` can the object have grown; of a client
    /// that has none such one is named all the same: it knows when it wrote last, and how much.
    fn writers(&self, res: ResId, ty: LdlmType, size: u64) -> Vec<Vec<LockInfo>> {
        let mut all = self.write_locks(res, ty);
        all.sort_by_key(|l| (l.export, std::cmp::Reverse(last_byte(l))));
        let of_each = all.chunk_by(|a, b| a.export == b.export);
        let beyond = |of_one: &[LockInfo]| {
            of_one
                .iter()
                .filter(|l| last_byte(l) >= size)
                .count()
                .max(1)
        };
        of_each.map(|l| l[..beyond(l)].to_vec()).collect()
    }

    /// The locks of clients under which they write an object.
    fn write_locks(&self, res: ResId, ty: LdlmType) -> Vec<LockInfo> {
        let writes = |l: &LockInfo| {
            [LdlmMode::PW, LdlmMode::EX, LdlmMode::CW, LdlmMode::GROUP].contains(&l.granted_mode)
        };
        let st = self.state.lock();
        st.ns
            .granted(res, ty)
            .filter(|l| l.export.is_some() && super::has_lvb(ty, &l.policy) && writes(l))
            .collect()
    }

    /// A client may have written, from byte `at` on, what is not stored yet.
    pub fn may_be_written(&self, res: ResId, ty: LdlmType, at: u64) -> bool {
        let locks = self.write_locks(res, ty);
        locks.iter().any(|l| last_byte(l) >= at)
    }

    /// Asks one client, which has these locks. One that answers that it knows nothing of a lock may be just giving that one back, and is
    /// asked about the next.
    async fn ask_size(self: &Arc<Self>, locks: Vec<LockInfo>) -> Option<OstLvb> {
        for lock in locks.into_iter().take(LOCKS_ASKED) {
            let exp = lock.export?;
            let begun = Instant::now();
            let answer = self.asts.glimpse(exp, &lock).await;
            self.stats.glimpse.record_time(begun.elapsed());
            match answer {
                Ok(lvb) => return OstLvb::decode_any(&lvb).ok(),
                Err(AstError::NoLock) if self.asts.answers_for_objects(exp) => return None,
                Err(AstError::NoLock) => {}
                Err(e) => {
                    self.answered(exp, lock.cookie, "glimpse", Err(e));
                    return None;
                }
            }
        }
        None
    }
}

/// Where a lock ends.
fn last_byte(lock: &LockInfo) -> u64 {
    match lock.policy {
        Policy::Extent { end, .. } => end,
        _ => u64::MAX,
    }
}

/// Takes over what is larger or newer.
fn merge(into: &mut OstLvb, from: &OstLvb) {
    into.size = into.size.max(from.size);
    into.blocks = into.blocks.max(from.blocks);
    (into.mtime, into.mtime_ns) = (into.mtime, into.mtime_ns).max((from.mtime, from.mtime_ns));
    (into.atime, into.atime_ns) = (into.atime, into.atime_ns).max((from.atime, from.atime_ns));
    (into.ctime, into.ctime_ns) = (into.ctime, into.ctime_ns).max((from.ctime, from.ctime_ns));
}
