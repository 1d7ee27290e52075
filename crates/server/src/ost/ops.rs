//! Requests on one object other than bulk I/O (`lustre/ofd/ofd_dev.c`: `ofd_*_hdl`).

use coral_ldlm::LocalLock;
use coral_osd::{Batch, FallocMode, ObjectId, SeekWhence, SetAttr};
use coral_wire::Errno;
use coral_wire::ldlm::{LdlmMode, LdlmType, Policy, ResId};
use coral_wire::ost::{ObdFlags, Obdo, md};
use coral_wire::ptlrpc::Message;

use super::brw::object_of;
use super::{Ost, OstError, obdo, reply, stored};
use crate::target::TargetRequest;

/// "To the end of the object" (`OBD_OBJECT_EOF`).
const OBJECT_EOF: u64 = u64::MAX;
/// Most objects in one destroy.
const DESTROY_MAX: u32 = 4096;

const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 16;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// A request's obdo and the object it names.
struct Named {
    oa: Obdo,
    id: ObjectId,
    res: ResId,
}

impl Named {
    fn of(rq: &TargetRequest) -> Result<Named, OstError> {
        let oa: Obdo = rq.rq.msg.get(1).map_err(|_| Errno::EPROTO)?;
        let (id, res) = object_of(&oa.oi)?;
        Ok(Named { oa, id, res })
    }

    fn flagged(&self, flag: ObdFlags) -> bool {
        self.oa.valid & md::FLFLAGS != 0 && self.oa.flags.contains(flag)
    }

    fn has(&self, bits: u64) -> bool {
        self.oa.valid & bits == bits
    }

    /// A reply obdo with the object's id.
    fn out(&self, valid: u64) -> Obdo {
        Obdo {
            oi: self.oa.oi,
            valid: md::FLID | valid,
            ..Default::default()
        }
    }

    /// The lock on `start..=end` if the request wants the server to take it.
    async fn lock(
        &self,
        ost: &Ost,
        rq: &TargetRequest,
        mode: LdlmMode,
        start: u64,
        end: u64,
    ) -> Option<LocalLock> {
        if !self.flagged(ObdFlags::SRVLOCK) {
            return None;
        }
        let (ty, policy) = ost.lock_on(start, end);
        Some(
            rq.target
                .ldlm()
                .lock_local(self.res, ty, mode, policy, None)
                .await,
        )
    }
}

fn only(oa: &Obdo) -> Message {
    let mut msg = reply();
    msg.push(oa);
    msg
}

impl Ost {
    /// A reply with a transno.
    fn committed(&self, rq: &TargetRequest, oa: &Obdo) -> Result<Message, OstError> {
        let mut msg = only(oa);
        let done = rq.target.commit_idempotent(rq, Batch::new(), &mut msg);
        done.map_err(OstError::from)?;
        self.note_change(rq, object_of(&oa.oi)?.0);
        Ok(msg)
    }

    pub(super) async fn getattr(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let n = Named::of(rq)?;
        let mode = if n.flagged(ObdFlags::FLUSH) {
            LdlmMode::PW
        } else {
            LdlmMode::PR
        };
        let lock = n.lock(self, rq, mode, 0, OBJECT_EOF).await;
        let attr = self
            .objects
            .attr(n.id)
            .map_err(OstError::from)?
            .unwrap_or_default();
        // Lustre's version is the object's last transaction; this is the target's, which no change leaves as it was either
        let version = rq.target.last_transno();
        drop(lock);
        let mut oa = n.out(md::FLGROUP | md::FLFLAGS | md::FLDATAVERSION);
        oa.flags = ObdFlags::FLUSH;
        oa.data_version = version;
        obdo::fill(&mut oa, &attr, Ost::times(rq));
        obdo::fill_owner(&mut oa, &attr, &rq.exp.view());
        Ok(only(&oa))
    }

    pub(super) async fn setattr(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let n = Named::of(rq)?;
        if n.has(md::FLSIZE) && n.oa.size != OBJECT_EOF {
            return Err(Errno::EPERM.into()); // a truncate is a punch
        }
        // A Coral client asks for it: sizes and times that others cache under their locks go first.
        let _lock = n.lock(self, rq, LdlmMode::PW, 0, OBJECT_EOF).await;
        let changing = stored(self.usage.changing(n.id).await)?;
        self.may_change(rq, n.id)?;
        let set = Ost::asked_attr(rq, &n.oa);
        let attr = self.set_attr(rq, n.id, &set).await?;
        drop(changing);
        if n.oa.valid & (md::FLMTIME | md::FLATIME | md::FLCTIME) != 0 {
            self.note_times_set(rq, n.id);
        }
        let mut oa = n.out(md::FLGROUP);
        obdo::fill(&mut oa, &attr, Ost::times(rq));
        obdo::fill_owner(&mut oa, &attr, &rq.exp.view());
        self.committed(rq, &oa)
    }

    /// Truncate (`end` is the end of the object), or a hole of `size..blocks`, which stock servers
    /// refuse and only Coral's own client sends.
    pub(super) async fn punch(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let n = Named::of(rq)?;
        if !n.has(md::FLSIZE | md::FLBLOCKS) {
            return Err(Errno::EPROTO.into());
        }
        let (start, end) = (n.oa.size, n.oa.blocks);
        if start > self.objects.max_bytes() {
            return Err(Errno::EFBIG.into());
        }
        if end < start {
            return Err(Errno::EINVAL.into());
        }
        let lock = n
            .lock(
                self,
                rq,
                LdlmMode::PW,
                start,
                end.saturating_sub(1).max(start),
            )
            .await;
        let changing = stored(self.usage.changing(n.id).await)?;
        self.may_change(rq, n.id)?;
        let done = match end {
            OBJECT_EOF => self.objects.truncate(n.id, start),
            _ => self.objects.punch(n.id, start, end),
        };
        let done = stored(done.await);
        let attr = self.after_change(rq, &n, done).await;
        drop(changing);
        let attr = attr?;
        let mut oa = n.out(md::FLBLOCKS);
        oa.blocks = attr.blocks;
        // our own client spares the question that would follow
        if Ost::coral(&rq.exp) {
            obdo::fill(&mut oa, &attr, Ost::times(rq));
        }
        let done = self.committed(rq, &oa);
        drop(lock);
        done
    }

    pub(super) async fn fallocate(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let n = Named::of(rq)?;
        if !n.has(md::FLSIZE | md::FLBLOCKS) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (start, end) = (n.oa.size, n.oa.blocks);
        if start >= end {
            return Err(Errno::EINVAL.into());
        }
        // `o_falloc_mode` shares the field.
        let mode = falloc_mode(n.oa.nlink)?;
        let lock = n.lock(self, rq, LdlmMode::PW, start, end - 1).await;
        let changing = stored(self.usage.changing(n.id).await)?;
        self.may_change(rq, n.id)?;
        let done = stored(self.objects.fallocate(n.id, mode, start, end).await);
        let attr = self.after_change(rq, &n, done).await;
        drop(changing);
        let attr = attr?;
        let mut oa = n.out(0);
        obdo::fill(&mut oa, &attr, Ost::times(rq));
        let done = self.committed(rq, &oa);
        drop(lock);
        done
    }

    /// Sets the times of an object whose change is `done`, or failed.
    async fn after_change(
        &self,
        rq: &TargetRequest,
        n: &Named,
        done: Result<(), OstError>,
    ) -> Result<coral_osd::ObjAttr, OstError> {
        let mut set = SetAttr {
            if_unowned: true,
            ..Ost::asked_attr(rq, &n.oa)
        };
        done?;
        self.times_set.lock().note(rq.exp.cookie, n.id, rq.rq.xid);
        {
            // other clients may have written behind it what they send later
            let mut newest = self.newest.lock();
            newest.note(n.id, &set);
            newest.raise(n.id, &mut set);
        }
        self.set_attr(rq, n.id, &set).await
    }

    pub(super) async fn seek(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let n = Named::of(rq)?;
        // The field of the mode holds the kind of seek.
        let whence = match n.oa.mode {
            SEEK_DATA => SeekWhence::Data,
            SEEK_HOLE => SeekWhence::Hole,
            _ => return Err(Errno::EPROTO.into()),
        };
        let off = n.oa.size;
        if off > i64::MAX as u64 {
            return Err(Errno::EPROTO.into());
        }
        let lock = n.lock(self, rq, LdlmMode::PR, off, OBJECT_EOF).await;
        let found = self
            .objects
            .seek(n.id, off, whence)
            .map_err(OstError::from)?;
        drop(lock);
        let mut oa = n.oa;
        oa.size = found.unwrap_or(Errno::ENXIO.status() as i64 as u64);
        Ok(only(&oa))
    }

    pub(super) async fn sync(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let asked: Obdo = rq.rq.msg.get(1).map_err(|_| Errno::EPROTO)?;
        if asked.oi.id == 0 && asked.oi.seq == 0 {
            rq.target.sync().await.map_err(OstError::from)?;
            return Ok(only(&Obdo::default()));
        }
        let n = Named::of(rq)?;
        self.sync_one(rq, n.id).await?;
        let attr = self
            .objects
            .attr(n.id)
            .map_err(OstError::from)?
            .unwrap_or_default();
        let mut oa = n.out(md::FLGROUP);
        obdo::fill(&mut oa, &attr, Ost::times(rq));
        Ok(only(&oa))
    }

    /// Objects are created when first used: nothing to do but to agree.
    pub(super) fn create(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let oa: Obdo = rq.rq.msg.get(1).map_err(|_| Errno::EPROTO)?;
        let valid = md::FLID | md::FLGROUP;
        Ok(only(&Obdo {
            oi: oa.oi,
            valid,
            ..Default::default()
        }))
    }

    pub(super) async fn destroy(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let n = Named::of(rq)?;
        let count = if n.has(md::FLOBJCOUNT) { n.oa.misc } else { 1 };
        if count == 0 || count > DESTROY_MAX {
            return Err(Errno::EPROTO.into());
        }
        let mut oi = n.oa.oi;
        let mut failed = None;
        for left in (0..count).rev() {
            let (id, res) = object_of(&oi)?;
            // one that cannot go keeps no other (`ofd_destroy_hdl`)
            if let Err(e) = self.destroy_one(rq, id, res).await {
                failed.get_or_insert(e);
            }
            if left > 0 {
                oi = next_object(oi)?;
            }
        }
        match failed {
            Some(e) => Err(e),
            None => self.committed(rq, &n.out(0)),
        }
    }

    async fn destroy_one(
        &self,
        rq: &TargetRequest,
        id: ObjectId,
        res: ResId,
    ) -> Result<(), OstError> {
        // Nobody may write to it any more under a lock.
        let policy = Policy::extent(0, OBJECT_EOF);
        let _lock = rq
            .target
            .ldlm()
            .lock_local(res, LdlmType::EXTENT, LdlmMode::PW, policy, None)
            .await;
        let _changing = stored(self.usage.changing(id).await)?;
        stored(self.objects.destroy(id).await)?;
        self.newest.lock().gone(id);
        Ok(())
    }

    /// Advice is heard and not acted on: the kernel's page cache does what is asked by itself.
    pub(super) fn ladvise(&self, rq: &TargetRequest) -> Result<Message, OstError> {
        let n = Named::of(rq)?;
        Ok(only(&n.out(md::FLGROUP)))
    }
}

/// The id after `oi` in its sequence.
fn next_object(oi: coral_wire::OstId) -> Result<coral_wire::OstId, OstError> {
    let mut next = oi;
    if oi.is_group0() {
        next.id = next.id.checked_add(1).ok_or(Errno::EPROTO)?;
    } else if oi.raw_fid().oid == u32::MAX {
        return Err(Errno::EPROTO.into());
    } else {
        next.seq += 1;
    }
    Ok(next)
}

fn falloc_mode(bits: u32) -> Result<FallocMode, Errno> {
    let keep = bits & FALLOC_KEEP_SIZE != 0;
    match bits & !FALLOC_KEEP_SIZE {
        0 if keep => Ok(FallocMode::AllocateKeepSize),
        0 => Ok(FallocMode::Allocate),
        FALLOC_PUNCH_HOLE => Ok(FallocMode::PunchHole),
        FALLOC_ZERO_RANGE if keep => Ok(FallocMode::ZeroRangeKeepSize),
        FALLOC_ZERO_RANGE => Ok(FallocMode::ZeroRange),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use coral_wire::{Fid, OstId};

    use super::*;

    #[test]
    fn fallocate_modes() {
        assert_eq!(falloc_mode(0), Ok(FallocMode::Allocate));
        assert_eq!(falloc_mode(3), Ok(FallocMode::PunchHole));
        assert_eq!(
            falloc_mode(2),
            Ok(FallocMode::PunchHole),
            "KEEP_SIZE goes without saying"
        );
        assert_eq!(falloc_mode(17), Ok(FallocMode::ZeroRangeKeepSize));
        for bits in [8, 18, 32, 64, 1 << 31] {
            assert_eq!(falloc_mode(bits), Err(Errno::EOPNOTSUPP), "{bits}");
        }
    }

    #[test]
    fn ids_count_up_in_both_forms() {
        assert_eq!(next_object(OstId::group0(7)).unwrap(), OstId::group0(8));
        let fid = |oid| OstId::from_fid(Fid::new(0x2_c000_0400, oid));
        assert_eq!(next_object(fid(7)).unwrap(), fid(8));
        assert!(next_object(fid(u32::MAX)).is_err());
        assert!(next_object(OstId::group0(u64::MAX)).is_err());
    }
}
