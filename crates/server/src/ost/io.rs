//! OST_READ and OST_WRITE (`tgt_brw_read`, `tgt_brw_write` in `lustre/target/tgt_handler.c`).

use bytes::Bytes;
use coral_buffers::Payload;
use coral_ldlm::LocalLock;
use coral_osd::{Batch, ObjAttr, Objects, OsdError, SeekWhence};
use coral_wire::Errno;
use coral_wire::ldlm::{LdlmMode, LdlmReply, LdlmRequest};
use coral_wire::ost::{OBD_FL_CKSUM_MASK, ObdFlags, Obdo, OstLvb, md};
use coral_wire::ptlrpc::{MSG_REPLAY, MSG_RESENT, Message, portal};
use tokio::time::Instant;

use super::brw::{Brw, Extent};
use super::grant::Claim;
use super::{Ost, OstAnswer, OstError, done, obdo, reply, stored};
use crate::target::TargetRequest;

/// A piece of a read is small up to this, bytes.
const NEAR_BYTES: usize = 16 << 10;
/// Such pieces are read together up to this, bytes.
const TOGETHER_BYTES: usize = 1 << 20;

impl Ost {
    /// Takes the lock a request wants the server to take: on its whole span.
    async fn brw_lock(&self, rq: &TargetRequest, b: &Brw, mode: LdlmMode) -> Option<LocalLock> {
        let ldlm = rq.target.ldlm();
        if !b.srvlock {
            ldlm.prolong(rq.exp.cookie, b.res);
            return None;
        }
        let (start, end) = b.span();
        let (ty, policy) = self.lock_on(start, end);
        Some(ldlm.lock_local(b.res, ty, mode, policy, None).await)
    }

    pub(super) async fn read(&self, rq: &TargetRequest) -> Result<OstAnswer, OstError> {
        let b = Brw::parse(&rq.rq.msg, Ost::coral(&rq.exp))?;
        let cksum = b.cksum()?;
        let lock = self.brw_lock(rq, &b, LdlmMode::PR).await;
        let begun = Instant::now();
        let data = self.read_pieces(&b).await?;
        let stats = rq.target.stats();
        stats.read_io.record_time(begun.elapsed());
        let along = self.lock_along(rq, &b);
        let nob: usize = data.iter().map(Payload::len).sum();
        let mut oa = b.oa;
        oa.valid = 0;
        if let Some(size) = self.size_behind(rq, &b, nob) {
            (oa.size, oa.valid) = (size, md::FLSIZE);
        }
        drop(lock);
        stats.read.record(nob as u64);

        if let Some(cksum) = cksum {
            oa.valid |= md::FLCKSUM | md::FLFLAGS;
            oa.flags = cksum.flags();
            oa.nlink = cksum.compute(data.iter().flatten().map(|s| &s[..]));
        }
        if b.oa.valid & md::FLGRANT != 0 {
            self.shrink_if_asked(rq, &b.oa);
            oa.valid |= md::FLGRANT;
            oa.grant = 0;
        }
        let mut msg = reply();
        msg.push(&oa);
        if b.short_io {
            let all: Payload = data.iter().flatten().cloned().collect();
            msg.push_bytes(all.copy_to_bytes());
            if let Some((lock, lvb)) = along {
                msg.push(&lock).push(&lvb);
            }
        } else if let Err(e) = rq.rq.bulk_write_to_client(portal::OST_BULK, data).await {
            tracing::info!(client = %rq.exp.uuid, object = %b.id, "read: {e}; the client will retry");
            return Ok(None);
        }
        Ok(Some((nob as i32, msg)))
    }

    /// The lock on the whole object that a Coral client asks for along with a read, if it is free, and the object as it is under it.
    /// The caller holds a lock of the server's own, under which the data was read.
    fn lock_along(&self, rq: &TargetRequest, b: &Brw) -> Option<(LdlmReply, OstLvb)> {
        let asks = b.srvlock && b.short_io && Ost::coral(&rq.exp);
        let req = LdlmRequest::decode(rq.buf(6)).ok().filter(|_| asks)?;
        let (ldlm, exp) = (rq.target.ldlm(), rq.exp.cookie);
        // the lock of an earlier try whose reply was lost: the client would never give it back
        if rq.rq.body.flags & MSG_RESENT != 0
            && let Some(rep) = ldlm.find_resent(exp, req.handle(0))
        {
            ldlm.cancel(exp, &[rep.handle]);
        }
        let (ty, policy) = self.lock_on(0, u64::MAX);
        let given = ldlm.try_grant(exp, req.handle(0), b.res, ty, LdlmMode::PR, policy);
        let lock = given.and_then(|(cookie, _)| ldlm.reply_for(cookie));
        // under the lock: what is said is what stays
        let attr = match self.objects.attr(b.id) {
            Ok(attr) => attr,
            Err(_) => {
                if let Some(lock) = &lock {
                    ldlm.cancel(exp, &[lock.handle]);
                }
                return None;
            }
        };
        Some((
            lock.unwrap_or_default(),
            obdo::lvb(&attr.unwrap_or_default()),
        ))
    }

    /// For a Coral client whose read of one range brought `nob` bytes, less than it asked for: the size of the object, if no client can have
    /// made it longer behind what was read. The caller holds the lock under which that was read. `None`: a glimpse tells.
    fn size_behind(&self, rq: &TargetRequest, b: &Brw, nob: usize) -> Option<u64> {
        let [e] = &b.extents[..] else { return None };
        if nob >= e.len || !Ost::coral(&rq.exp) {
            return None;
        }
        let (ty, _) = self.lock_on(0, u64::MAX);
        if rq
            .target
            .ldlm()
            .may_be_written(b.res, ty, e.off + nob as u64)
        {
            return None;
        }
        let attr = self.objects.attr(b.id).ok()?;
        Some(attr.unwrap_or_default().size)
    }

    /// The data of a read, one payload per descriptor, up to the end of the object. One piece after the other: the file system
    /// below reads ahead for who reads in order.
    async fn read_pieces(&self, b: &Brw) -> Result<Vec<Payload>, OstError> {
        let mut out = vec![Payload::new(); b.md_lens.len().max(1)];
        let pieces = b.pieces();
        let mut left = &pieces[..];
        while let Some((_, first)) = left.first() {
            let (near, len) = together(left);
            let data = stored(self.objects.read(b.id, first.off, len).await)?;
            for (md, e) in near {
                let from = ((e.off - first.off) as usize).min(data.len());
                out[*md].push(data.slice(from..data.len().min(from + e.len)));
            }
            if data.len() < len {
                break;
            }
            left = &left[near.len()..];
        }
        Ok(out)
    }

    pub(super) async fn write(&self, rq: &TargetRequest) -> Result<OstAnswer, OstError> {
        let b = Brw::parse(&rq.rq.msg, Ost::coral(&rq.exp))?;
        let cksum = b.cksum()?;
        let data = match self.write_data(rq, &b).await? {
            Some(data) => data,
            None => return Ok(None),
        };
        let mut oa = b.oa;
        if let Some(cksum) = cksum {
            oa.flags = oa.flags & !ObdFlags::from_bits_retain(OBD_FL_CKSUM_MASK) | cksum.flags();
            oa.nlink = cksum.compute(data.iter().map(|s| &s[..]));
            oa.valid |= md::FLCKSUM | md::FLFLAGS;
            if oa.nlink != b.oa.nlink {
                // Bytes were changed on the way. The client sees it by our sum and sends again.
                tracing::warn!(client = %rq.exp.uuid, object = %b.id, "write: checksum differs, refused");
                // Nothing is given, and what the client told of its own grant is no gift.
                oa.grant = 0;
                oa.valid &= !md::FLGRANT;
                return Ok(done(write_reply(oa, b.niobuf_count)));
            }
        }
        let lock = self.brw_lock(rq, &b, LdlmMode::PW).await;
        let changing = self.usage.changing(b.id).await.map_err(OstError::from)?;
        self.may_change(rq, b.id)?;
        if b.first && !rq.is_replay() && self.others_wrote(&b, &data).await? {
            return Err(Errno::ESTALE.into());
        }
        let booked = match self.book_write(rq, &b) {
            // it waits for the disk: not with the grants locked
            Err(e) if e.errno() == Errno::ENOSPC && self.settle().await? => {
                self.may_change(rq, b.id)?;
                self.book_write(rq, &b)
            }
            booked => booked,
        };
        let (more, space) = booked?;
        oa.grant = more;
        let mut settles = 0;
        let attr = loop {
            let done = self.store(rq, &b, &data).await;
            match self.has_settled(rq, b.id, &done, &mut settles).await {
                Ok(true) => {}
                Ok(false) => break done,
                Err(e) => break Err(e),
            }
        };
        // It is on the disk now, and no promise is needed for it any more.
        drop(space);
        // also when only a part of it could be stored
        drop(changing);
        let attr = attr?;
        // Times stay out, as in a real server's reply: a client that holds the whole object's lock
        // knows them, another has to ask anyway.
        oa.valid &= !(md::FLMTIME | md::FLATIME);
        oa.valid |= md::FLSIZE | md::FLBLOCKS | md::FLMODE;
        oa.valid |= md::FLUSRQUOTA | md::FLGRPQUOTA | md::FLPRJQUOTA;
        let sent = oa;
        obdo::fill(&mut oa, &attr, Ost::times(rq));
        (oa.valid, oa.mtime, oa.atime, oa.ctime) = (sent.valid, sent.mtime, sent.atime, sent.ctime);
        let mut msg = write_reply(oa, b.niobuf_count);
        // Numbers in the order of the changes: clients replay by them.
        rq.target
            .commit_idempotent(rq, Batch::new(), &mut msg)
            .map_err(OstError::from)?;
        self.note_change(rq, b.id);
        drop(lock);
        if b.sync {
            self.sync_one(rq, b.id).await?;
        }
        Ok(done(msg))
    }

    /// The object of a first write has data already, and not these: a write that is sent again finds its own.
    async fn others_wrote(&self, b: &Brw, data: &Payload) -> Result<bool, OstError> {
        let now = self.objects.attr(b.id).map_err(OstError::from)?;
        let size = now.map_or(0, |a| a.size);
        if size == 0 {
            return Ok(false);
        }
        let there = stored(self.objects.read(b.id, 0, data.len() + 1).await)?;
        Ok(there != data.copy_to_bytes())
    }

    /// The bytes of a write; `None` when they did not come and no answer is due.
    async fn write_data(&self, rq: &TargetRequest, b: &Brw) -> Result<Option<Payload>, OstError> {
        if b.short_io {
            let data = rq.buf(5);
            let whole = data.len() >= b.total();
            return if whole {
                Ok(Some(data.slice(..b.total()).into()))
            } else {
                Err(Errno::EPROTO.into())
            };
        }
        match rq
            .rq
            .bulk_read_from_client(portal::OST_BULK, &b.md_lens)
            .await
        {
            Ok(parts) => {
                let all: Payload = parts.iter().flatten().cloned().collect();
                if all.len() == b.total() {
                    Ok(Some(all))
                } else {
                    Err(Errno::EPROTO.into())
                }
            }
            Err(e) => {
                tracing::info!(client = %rq.exp.uuid, object = %b.id, "write: {e}; the client will retry");
                Ok(None)
            }
        }
    }

    async fn store(
        &self,
        rq: &TargetRequest,
        b: &Brw,
        data: &Payload,
    ) -> Result<ObjAttr, OstError> {
        let mut set = Ost::asked_attr(rq, &b.oa);
        set.if_unowned = true;
        let overtaken = {
            let mut set = self.times_set.lock();
            let overtaken = set.overtaken(rq.exp.cookie, b.id, rq.rq.xid);
            if !overtaken && b.oa.valid & md::FLHANDLE != 0 {
                // Written back: several such are under way at once, and the last one's time is to stay.
                set.note(rq.exp.cookie, b.id, rq.rq.xid);
            }
            overtaken
        };
        if overtaken {
            // The times that were set stay; the write alone would move mtime.
            let now = self.objects.attr(b.id).map_err(OstError::from)?;
            (set.mtime, set.ctime) = (now.map(|a| a.mtime), now.map(|a| a.ctime));
            set.atime = None;
        } else {
            self.newest.lock().note(b.id, &set);
        }
        let begun = Instant::now();
        for (off, bufs) in b.cut(data.iter().cloned()) {
            stored(self.objects.write_promised(b.id, off, &bufs).await)?;
        }
        let stats = rq.target.stats();
        stats.write_io.record_time(begun.elapsed());
        stats.written.record(data.len() as u64);
        if overtaken {
            return stored(self.objects.set_attr(b.id, &set));
        }
        self.newest.lock().raise(b.id, &mut set);
        loop {
            let attr = stored(self.objects.set_attr(b.id, &set))?;
            // one that is newer may have been stored in between
            if !self.newest.lock().raise(b.id, &mut set) {
                return Ok(attr);
            }
        }
    }

    /// Books the space of a write: the grant the client gets in addition, and the space, held until the write is stored. A write
    /// whose space the client had not been promised fails when others have been promised what is left, unless it overwrites.
    fn book_write(&self, rq: &TargetRequest, b: &Brw) -> Result<(u64, Space<'_>), OstError> {
        let mut space = Space {
            room: &*self.objects,
            promised: 0,
            claimed: 0,
        };
        let again = rq.rq.body.flags & (MSG_RESENT | MSG_REPLAY) != 0;
        let mut grants = self.grants.lock();
        // What it says to have and was not given is not there.
        let from_grant = b.from_grant.min(grants.held(rq.exp.cookie));
        let unpromised = (b.total() as u64).saturating_sub(from_grant);
        // A replay had its room when it was first executed. One sent again that was executed finds its bytes stored.
        let replay = rq.rq.body.flags & MSG_REPLAY != 0 && rq.target.in_recovery();
        let overwrites = || self.overwrites(b).map_err(OstError::from);
        if unpromised > 0 && !replay {
            match self.objects.claim(unpromised) {
                Ok(()) => space.claimed = unpromised,
                Err(OsdError::NoSpace) if overwrites()? => {}
                Err(e) => return Err(e.into()),
            }
        }
        if b.oa.valid & md::FLGRANT == 0 || again {
            // It tells nothing of the grant, or told it before. What it takes from the grant is gone from it all the same.
            if from_grant > 0 && !replay && !overwrites()? {
                space.promised = grants.spend(rq.exp.cookie, from_grant);
            }
            return Ok((0, space));
        }
        let used = match b.oa.data_version {
            // `o_grant_used` shares the field.
            told if told > 0 => told.max(b.from_grant),
            _ => b.from_grant,
        };
        // Who gives grant back tells how much instead of what it has, and is given none.
        let shrinks = shrinks(&b.oa);
        let claim = Claim {
            held: b.oa.grant,
            want: if shrinks { 0 } else { b.oa.mode as u64 },
            dropped: b.oa.misc as u64,
            used,
        };
        let booked = grants.write(rq.exp.cookie, claim, space.room);
        space.promised = booked.spent;
        if shrinks {
            grants.shrink(rq.exp.cookie, b.oa.grant, space.room);
        }
        Ok((booked.more, space))
    }

    /// True when every byte of the write lies where data are stored already.
    fn overwrites(&self, b: &Brw) -> Result<bool, OsdError> {
        for e in &b.extents {
            let hole = self.objects.seek(b.id, e.off, SeekWhence::Hole)?;
            if hole.is_none_or(|h| h < e.off + e.len as u64) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn shrink_if_asked(&self, rq: &TargetRequest, oa: &Obdo) {
        if shrinks(oa) {
            self.grants
                .lock()
                .shrink(rq.exp.cookie, oa.grant, &*self.objects);
        }
    }
}

/// The first of these pieces that are read together, with what is between them, and bytes from the first to the last: small ones that
/// are no farther apart than they are long. To ask for each costs more.
fn together(pieces: &[(usize, Extent)]) -> (&[(usize, Extent)], usize) {
    let first = pieces[0].1;
    let (mut count, mut len) = (1, first.len);
    for pair in pieces.windows(2) {
        let (a, b) = (pair[0].1, pair[1].1);
        let gap = b.off.saturating_sub(a.off + a.len as u64);
        let with = (b.off - first.off) as usize + b.len;
        if a.len.max(b.len) > NEAR_BYTES || gap > a.len as u64 || with > TOGETHER_BYTES {
            break;
        }
        (count, len) = (count + 1, with);
    }
    (&pieces[..count], len)
}

fn shrinks(oa: &Obdo) -> bool {
    oa.valid & md::FLFLAGS != 0 && oa.flags.contains(ObdFlags::SHRINK_GRANT)
}

/// Space of a write under way.
struct Space<'a> {
    room: &'a dyn Objects,
    /// Of the client's grant, bytes.
    promised: u64,
    /// Not promised before, bytes.
    claimed: u64,
}

impl Drop for Space<'_> {
    fn drop(&mut self) {
        self.room.unpromise(self.promised);
        self.room.unclaim(self.claimed);
    }
}

fn write_reply(oa: Obdo, niobufs: usize) -> Message {
    let mut msg = reply();
    msg.push(&oa);
    msg.push_bytes(Bytes::from(vec![0; 4 * niobufs]));
    msg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_near_each_other_are_read_together() {
        let k = 1 << 10;
        let counts = |pieces: &[(u64, usize)]| {
            let all: Vec<_> = (pieces.iter())
                .map(|(off, len)| {
                    (
                        0,
                        Extent {
                            off: off * k,
                            len: len << 10,
                        },
                    )
                })
                .collect();
            let (near, len) = together(&all);
            (near.len(), len >> 10)
        };
        let every_second: Vec<_> = (0..256).map(|n| (8 * n, 4)).collect();
        assert_eq!(counts(&every_second), (128, 1020));
        assert_eq!(counts(&[(0, 4), (12, 4)]), (1, 4), "too far");
        assert_eq!(counts(&[(0, 4), (4, 1), (5, 1), (8, 1)]), (3, 6));
        assert_eq!(counts(&[(0, 64), (64, 64)]), (1, 64), "large ones");
    }
}
