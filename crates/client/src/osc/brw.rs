//! Bulk reads and writes of one object: cut into RPCs, short I/O inside the message, checksums.
//!
//! An RPC carries at most `ocd_brw_size` bytes, in bulk descriptors (MDs) of at most 1 MiB. It is one range, but for dirty data and
//! for blocks that are read ahead, where several may share one; then each is described by a niobuf.
//! Lustre: `osc_brw_prep_request`, `osc_brw_fini_request` in `lustre/osc/osc_request.c`.

use bytes::Bytes;
use coral_buffers::Payload;
use coral_ldlm::LockRef;
use coral_ptlrpc::{Bulk, Request};
use coral_wire::connect::ConnectFlags;
use coral_wire::coral::FIRST_WRITE;
use coral_wire::ldlm::{LdlmFlags, LdlmMode, LdlmReply};
use coral_wire::ost::{
    CksumType, NiobufRemote, OBD_FL_CKSUM_MASK, ObdFlags, ObdIoobj, Obdo, brw, md,
};
use coral_wire::ptlrpc::{opc, portal};
use coral_wire::{Errno, Wire};
use futures_util::future::try_join_all;

use super::device::{Osc, object_attr};
use super::object::{BackedBy, IN_FLIGHT, IoLock, ObjectAttr, ObjectData, ObjectRef, WriteAttr};
use crate::ask::{Answer, ask};
use crate::error::TargetError;

/// Largest bulk descriptor, bytes (LNET_MTU).
pub const MD_BYTES: usize = 1 << 20;
/// Page of the object, bytes: the unit in which stock servers fill descriptors.
const PAGE_BYTES: u64 = 4096;
/// Data up to this travels inside the message (Lustre: OBD_DEF_SHORT_IO_BYTES 16 KiB), bytes.
pub const SHORT_IO_BYTES: usize = 16 << 10;
/// A write whose checksum does not match is sent again so often (Lustre: osc_resends 10).
const CKSUM_RETRIES: u32 = 10;

/// Data of an object and where they begin, bytes.
pub type Part = (u64, Payload);

impl Osc {
    /// The largest object the OST can hold, bytes (`ocd_maxbytes`).
    pub fn max_bytes(&self) -> u64 {
        let granted = self.target.granted();
        if granted.has(ConnectFlags::MAXBYTES) && granted.maxbytes > 0 {
            granted.maxbytes
        } else {
            i64::MAX as u64
        }
    }

    /// Largest RPC this OST takes, bytes.
    pub fn rpc_bytes(&self) -> usize {
        (self.target.granted().brw_size as usize).clamp(4096, 4 << 20)
    }

    fn short_io(&self, len: usize) -> bool {
        len <= SHORT_IO_BYTES && self.target.granted().has(ConnectFlags::SHORTIO)
    }

    /// Reads `len` bytes at `offset`; short when the object ends before, as far as the OST has it.
    pub async fn read(
        &self,
        obj: &ObjectRef,
        offset: u64,
        len: usize,
        lock: IoLock,
    ) -> Result<ObjectData, TargetError> {
        let (lock, _held) = self.held(obj, LdlmMode::PR, lock);
        let max = self.rpc_bytes();
        if len <= max {
            return self.read_rpc(obj, &[(offset, len)], lock).await;
        }
        let mut out = ObjectData::default();
        let mut at = 0;
        while at < len {
            let mut batch = Vec::new();
            while at < len && batch.len() < IN_FLIGHT {
                let n = max.min(len - at);
                batch.push([(offset + at as u64, n)]);
                at += n;
            }
            let rpcs = batch.iter().map(|range| self.read_rpc(obj, range, lock));
            for (part, [(_, n)]) in try_join_all(rpcs).await?.into_iter().zip(&batch) {
                let short = part.data.len() < *n;
                out.data.append(part.data);
                out.is_end = part.is_end;
                if short {
                    return Ok(out);
                }
            }
        }
        Ok(out)
    }

    /// Reads several ranges, ascending and whole pages, of [`Osc::rpc_bytes`] at most together: with one request. What they have, one
    /// after the other; short when the object ends before, as far as the OST has it.
    pub async fn read_ranges(
        &self,
        obj: &ObjectRef,
        ranges: &[(u64, usize)],
        lock: IoLock,
    ) -> Result<Payload, TargetError> {
        let (lock, _held) = self.held(obj, LdlmMode::PR, lock);
        Ok(self.read_rpc(obj, ranges, lock).await?.data)
    }

    /// Writes `data` at `offset`.
    pub async fn write(
        &self,
        obj: &ObjectRef,
        offset: u64,
        data: Payload,
        attr: &WriteAttr,
        lock: IoLock,
    ) -> Result<(), TargetError> {
        let (lock, _held) = self.held(obj, LdlmMode::PW, lock);
        let max = self.rpc_bytes();
        if data.len() <= max {
            return self
                .write_rpc(obj, &[(offset, data)], attr, lock, None)
                .await;
        }
        let cut = |at: usize| {
            let end = data.len().min(at + max);
            [(offset + at as u64, data.slice(at..end))]
        };
        let parts: Vec<_> = (0..data.len()).step_by(max).map(cut).collect();
        for batch in parts.chunks(IN_FLIGHT) {
            let rpcs = batch
                .iter()
                .map(|part| self.write_rpc(obj, part, attr, lock, None));
            try_join_all(rpcs).await?;
        }
        Ok(())
    }

    /// Writes dirty data, in one RPC: under a lock of ours, into space that was granted. It waits for no other
    /// request of this client, which may be waiting for that lock.
    pub async fn write_back(
        &self,
        obj: &ObjectRef,
        parts: &[Part],
        attr: &WriteAttr,
        by: BackedBy,
    ) -> Result<(), TargetError> {
        self.write_rpc(obj, parts, attr, IoLock::Ours(by.cookie), Some(by))
            .await
    }

    /// Writes the first data of an object, in one RPC: into space that was granted, under a lock of the server's. ESTALE where others have
    /// written to it.
    pub async fn write_first(
        &self,
        obj: &ObjectRef,
        data: Payload,
        attr: &WriteAttr,
    ) -> Result<(), TargetError> {
        let by = BackedBy {
            cookie: 0,
            generation: None,
            granted: true,
            first: true,
        };
        self.write_rpc(obj, &[(0, data)], attr, IoLock::Server, Some(by))
            .await
    }

    fn brw_obdo(obj: &ObjectRef, lock: IoLock) -> Obdo {
        // of a lock of the server's own it is said elsewhere
        let ours = if lock == IoLock::Server {
            IoLock::Ours(0)
        } else {
            lock
        };
        let mut o = Self::locked(obj, ours);
        o.valid |= md::FLFLAGS;
        o
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a bulk request has that many parts"
    )]
    fn brw_request(
        &self,
        opcode: u32,
        obj: &ObjectRef,
        o: &Obdo,
        ranges: &[(u64, usize)],
        mds: usize,
        lock: IoLock,
        more: u32,
    ) -> Request {
        let write = opcode == opc::OST_WRITE;
        let dir = if write { brw::WRITE } else { brw::READ };
        let flags = more
            | dir
            | if lock == IoLock::Server {
                brw::SRVLOCK
            } else {
                0
            };
        let niobufs: Vec<u8> = ranges
            .iter()
            .flat_map(|(offset, len)| {
                let (offset, len) = (*offset, *len as u32);
                NiobufRemote { offset, len, flags }.to_bytes()
            })
            .collect();
        let mut rq = Request::new(self.io_portal(), opcode)
            .push(o)
            .push(&ObdIoobj::new(obj.oi, mds as u32, ranges.len() as u32))
            .push_bytes(niobufs)
            .push_bytes(Bytes::new());
        // others may wait for our lock, and take every place while they do
        rq.urgent = lock != IoLock::Server;
        rq
    }

    /// Reads the object from its beginning, as far as one message holds it, with a lock on the whole of it and its attributes under
    /// that lock; these are `None` when the lock was not free. `None`: this OST gives no lock with a read.
    pub async fn read_locked(
        &self,
        obj: &ObjectRef,
    ) -> Result<Option<(Payload, Option<(ObjectAttr, LockRef)>)>, TargetError> {
        if self.is_mdt() || !self.coral() || !self.short_io(SHORT_IO_BYTES) {
            return Ok(None);
        }
        let (lock, len) = (IoLock::Server, SHORT_IO_BYTES);
        let mut o = Self::brw_obdo(obj, lock);
        o.flags |= ObdFlags::SHORT_IO;
        let cksum = self.cksum();
        if let Some(c) = cksum {
            o.valid |= md::FLCKSUM;
            o.flags |= c.flags();
        }
        let (ty, policy) = self.whole();
        let (ns, flags) = (self.namespace(), LdlmFlags::HAS_INTENT);
        let pending = ns.prepare(obj.oi.res_id(), ty, LdlmMode::PR, policy, flags);
        let rq = self
            .brw_request(opc::OST_READ, obj, &o, &[(0, len)], 0, lock, 0)
            .push_bytes(Bytes::new())
            .push_bytes(pending.request().to_bytes())
            .concerning(obj.parent);
        let (reply, pending) = ns.intent(rq, pending).await?;
        let reply = Answer::of(reply, self.import(), opc::OST_READ, obj.parent);
        if let Some(errno) = Errno::from_status(reply.status) {
            return Err(reply.refused(errno));
        }
        let held = match reply.msg.buf(3).is_empty() {
            true => None,
            false => ns.finish(pending, &reply.get::<LdlmReply>(3)?, 0),
        };
        let data = read_data(&reply, true, len)?;
        if !verify(&reply, cksum, &data)? {
            return Ok(None); // read again, in the usual way
        }
        let held = match held {
            Some(lock) => Some((object_attr(&reply.get(4)?), lock)),
            None => None,
        };
        Ok(Some((data, held)))
    }

    async fn read_rpc(
        &self,
        obj: &ObjectRef,
        ranges: &[(u64, usize)],
        lock: IoLock,
    ) -> Result<ObjectData, TargetError> {
        let len = ranges.iter().map(|(_, len)| len).sum();
        let mut o = Self::brw_obdo(obj, lock);
        let cksum = self.cksum();
        if let Some(c) = cksum {
            o.valid |= md::FLCKSUM;
            o.flags |= c.flags();
        }
        let short = self.short_io(len);
        if short {
            o.flags |= ObdFlags::SHORT_IO;
        }
        let lens = if short {
            Vec::new()
        } else {
            md_lens(ranges, self.target.coral())
        };
        for attempt in 0.. {
            let mut rq = self
                .brw_request(opc::OST_READ, obj, &o, ranges, lens.len(), lock, 0)
                .push_bytes(Bytes::new());
            if !short {
                rq = rq.bulk(Bulk::Sink {
                    portal: portal::OST_BULK,
                    lens: lens.clone(),
                });
            }
            let reply = ask(self.import(), rq.concerning(obj.parent)).await?;
            let data = read_data(&reply, short, len)?;
            match verify(&reply, cksum, &data)? {
                true => {
                    let is_end = self.coral() && is_end(&reply, ranges, &data)?;
                    return Ok(ObjectData { data, is_end });
                }
                false if attempt < CKSUM_RETRIES => {
                    tracing::warn!(oi = ?obj.oi, offset = ranges[0].0, len, "read checksum differs, reading again")
                }
                false => return Err(TargetError::ReadChecksum(reply.call())),
            }
        }
        unreachable!("the loop ends by return")
    }

    /// `by`: it was dirty, or belongs to what is.
    async fn write_rpc(
        &self,
        obj: &ObjectRef,
        parts: &[Part],
        attr: &WriteAttr,
        lock: IoLock,
        by: Option<BackedBy>,
    ) -> Result<(), TargetError> {
        let ranges: Vec<(u64, usize)> = parts.iter().map(|(at, d)| (*at, d.len())).collect();
        let data: Payload = parts.iter().flat_map(|(_, d)| d.iter()).cloned().collect();
        let mut o = Self::brw_obdo(obj, lock);
        self.stamp(&mut o, attr);
        let cksum = self.cksum();
        let mut sum = 0;
        if let Some(c) = cksum {
            o.valid |= md::FLCKSUM;
            o.flags |= c.flags();
            sum = c.compute(data.iter().map(|b| &b[..]));
            o.nlink = sum; // o_cksum shares the field
        }
        let short = self.short_io(data.len());
        if short {
            o.flags |= ObdFlags::SHORT_IO;
        }
        let lens = if short {
            Vec::new()
        } else {
            md_lens(&ranges, self.target.coral())
        };
        let (granted, first) = by.map_or((false, false), |b| (b.granted, b.first));
        // dirty data, in granted space, was copied together already
        let data = if granted { data } else { self.to_keep(data) };
        for attempt in 0.. {
            self.grant().announce(&mut o);
            let mut flags = if granted { brw::FROM_GRANT } else { 0 };
            flags |= if first { FIRST_WRITE } else { 0 };
            let mut rq =
                self.brw_request(opc::OST_WRITE, obj, &o, &ranges, lens.len(), lock, flags);
            // others may wait for the lock of the MDT under which it was kept back
            rq.urgent |= first;
            rq.generation = by.and_then(|b| b.generation);
            let rq = if short {
                rq.push_bytes(data.copy_to_bytes())
            } else {
                rq.push_bytes(Bytes::new()).bulk(Bulk::Source {
                    portal: portal::OST_BULK,
                    data: md_slices(&data, &lens),
                })
            };
            let rq = self.keep(obj, rq).concerning(obj.parent);
            let reply = ask(self.import(), rq).await?;
            self.sync_if_much();
            check_rcs(&reply)?;
            let body = reply.get::<Obdo>(1)?;
            self.grant().answered(&body);
            let differs = cksum.is_some() && body.valid & md::FLCKSUM != 0 && body.nlink != sum;
            if !differs {
                return Ok(());
            }
            tracing::warn!(oi = ?obj.oi, offset = ranges[0].0, len = data.len(), attempt, "write checksum differs, writing again");
            if attempt >= CKSUM_RETRIES {
                return Err(TargetError::WriteChecksum(reply.call()));
            }
        }
        unreachable!("the loop ends by return")
    }
}

/// Lengths of the bulk descriptors of a transfer of these ranges. A stock server fills a descriptor with 256 fragments, one per page
/// of the object, so the first is short when the transfer starts inside a page; two Coral ends cut at 1 MiB and nowhere else.
/// Between two ranges there is no part of a page.
fn md_lens(ranges: &[(u64, usize)], coral: bool) -> Vec<u32> {
    let lead = match ranges {
        [(offset, _), ..] if !coral => (offset % PAGE_BYTES) as usize,
        _ => 0,
    };
    let mut out = Vec::new();
    let mut left: usize = ranges.iter().map(|(_, len)| len).sum();
    let mut room = MD_BYTES - lead;
    while left > 0 {
        let n = room.min(left);
        out.push(n as u32);
        left -= n;
        room = MD_BYTES;
    }
    out
}

/// The data cut at descriptor boundaries, without copying.
fn md_slices(data: &Payload, lens: &[u32]) -> Vec<Payload> {
    assert_eq!(
        lens.iter().map(|n| *n as usize).sum::<usize>(),
        data.len(),
        "descriptors hold all data"
    );
    if let [_] = lens {
        return vec![data.clone()];
    }
    let mut at = 0;
    lens.iter()
        .map(|n| {
            let part = data.slice(at..at + *n as usize);
            at += *n as usize;
            part
        })
        .collect()
}

/// Bytes a read reply brought: its status says how many, beyond that the buffers may be longer.
fn read_data(reply: &Answer<'_>, short: bool, wanted: usize) -> Result<Payload, TargetError> {
    let got = reply.status as usize;
    if got > wanted {
        return Err(reply.bad("more data than was asked for"));
    }
    let mut all = Payload::new();
    if short {
        all = Payload::from(reply.msg.buf(2).clone());
    } else {
        for part in &reply.bulk {
            all.append(part.clone());
        }
    }
    if all.len() < got {
        return Err(reply.bad("less data than it says"));
    }
    Ok(if all.len() == got {
        all
    } else {
        all.slice(0..got)
    })
}

/// The reply to a read of one range says that the object ends with what was read, whatever other clients may have written and not
/// stored yet.
fn is_end(
    reply: &Answer<'_>,
    ranges: &[(u64, usize)],
    data: &Payload,
) -> Result<bool, TargetError> {
    let &[(offset, wanted)] = ranges else {
        return Ok(false);
    };
    if data.len() == wanted {
        return Ok(false);
    }
    let body = reply.get::<Obdo>(1)?;
    // one that is longer was written behind this since it was read
    Ok(body.valid & md::FLSIZE != 0 && body.size <= offset + data.len() as u64)
}

/// True when the checksum in the reply is right, absent or not wanted.
fn verify(
    reply: &Answer<'_>,
    wanted: Option<CksumType>,
    data: &Payload,
) -> Result<bool, TargetError> {
    if wanted.is_none() || data.is_empty() {
        return Ok(true);
    }
    let body = reply.get::<Obdo>(1)?;
    if body.valid & md::FLCKSUM == 0 {
        return Ok(true);
    }
    let kind = match body.flags.bits() & OBD_FL_CKSUM_MASK {
        0 => wanted,
        _ => CksumType::from_flags(body.flags),
    };
    Ok(kind.is_none_or(|k| k.compute(data.iter().map(|b| &b[..])) == body.nlink))
}

/// Fails unless all return codes of a write are zero.
fn check_rcs(reply: &Answer<'_>) -> Result<(), TargetError> {
    match first_rc(reply.msg.buf(2)) {
        None => Ok(()),
        Some(rc) => Err(match Errno::from_status(rc) {
            Some(errno) => reply.refused(errno),
            None => reply.bad(format_args!("a return code of {rc}")),
        }),
    }
}

/// The first return code that is not zero, of one u32 per niobuf.
fn first_rc(rcs: &[u8]) -> Option<i32> {
    rcs.chunks_exact(4)
        .map(|rc| i32::from_le_bytes([rc[0], rc[1], rc[2], rc[3]]))
        .find(|rc| *rc != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_cover_the_data_once() {
        for len in [
            1,
            4096,
            MD_BYTES - 1,
            MD_BYTES,
            MD_BYTES + 1,
            4 * MD_BYTES,
            3 * MD_BYTES + 17,
        ] {
            for (offset, coral) in [(0, true), (100, true), (0, false), (100, false)] {
                let lens = md_lens(&[(offset, len)], coral);
                assert_eq!(lens.iter().map(|l| *l as usize).sum::<usize>(), len);
                assert!(lens.iter().all(|l| *l as usize <= MD_BYTES));
                let data = Payload::from(Bytes::from(vec![7u8; len]));
                let parts: Vec<usize> = md_slices(&data, &lens).iter().map(|p| p.len()).collect();
                assert_eq!(parts, lens.iter().map(|l| *l as usize).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_stock_server_counts_pages() {
        let lens = |ranges: &[(u64, usize)], coral| md_lens(ranges, coral);
        let md = MD_BYTES as u32;
        assert_eq!(lens(&[(100, MD_BYTES)], false), [md - 100, 100]);
        assert_eq!(lens(&[(100, MD_BYTES)], true), [md]);
        // part of a page, then others far away: 256 pages are full before a MiB is
        let apart = [(100, 3996), (1 << 20, 255 * 4096), (1 << 30, 10)];
        assert_eq!(lens(&apart, false), [md - 100, 10]);
        assert_eq!(lens(&apart, true), [md - 90]);
    }

    #[test]
    fn return_codes() {
        assert_eq!(first_rc(&[0; 8]), None);
        let rcs = |all: [i32; 2]| first_rc(&all.map(i32::to_le_bytes).concat());
        assert_eq!((rcs([0, -28]), rcs([7, -5])), (Some(-28), Some(7)));
    }
}
