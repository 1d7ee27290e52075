//! What a bulk request asks for: its ranges, and how they lie in bulk descriptors.
//!
//! Read from `tgt_brw_read`/`tgt_brw_write` (`lustre/target/tgt_handler.c`) and
//! `__ptlrpc_prep_bulk_page` (`lustre/ptlrpc/client.c`): a descriptor takes 256 fragments, and a
//! fragment is what one niobuf has in one page of the object.

use bytes::Bytes;
use coral_osd::ObjectId;
use coral_wire::coral::FIRST_WRITE;
use coral_wire::ldlm::ResId;
use coral_wire::ost::{CksumType, NiobufRemote, ObdFlags, ObdIoobj, Obdo, brw, md};
use coral_wire::ptlrpc::Message;
use coral_wire::raw::decode_all;
use coral_wire::{Errno, OstId};

/// Largest bulk request in bytes, granted at connect (Lustre: `DT_DEF_BRW_SIZE`).
pub(super) const BRW_BYTES: usize = 4 << 20;
/// Most ranges in one request: every page of it its own.
const NIOBUFS_MAX: usize = BRW_BYTES / PAGE_BYTES;
/// Most data that may travel inside a message, in bytes (Lustre: `OBD_MAX_SHORT_IO_BYTES`).
const SHORT_IO_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;
/// Largest descriptor in bytes (`LNET_MTU`).
const MD_BYTES: usize = 1 << 20;
/// Most fragments of a descriptor (`LNET_MAX_IOV`).
const MD_FRAGMENTS: usize = 256;

/// A range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// First byte.
    pub(super) off: u64,
    /// Bytes.
    pub(super) len: usize,
}

/// A bulk request, verified.
#[derive(Debug)]
pub(super) struct Brw {
    /// The request's obdo.
    pub(super) oa: Obdo,
    /// The object.
    pub(super) id: ObjectId,
    /// Its lock resource.
    pub(super) res: ResId,
    /// Ranges, ascending; those that touch are one.
    pub(super) extents: Vec<Extent>,
    /// Bytes of each bulk descriptor, in order; empty for a request that carries its data itself.
    pub(super) md_lens: Vec<u32>,
    /// Number of ranges in the request.
    pub(super) niobuf_count: usize,
    /// The server is to lock the ranges.
    pub(super) srvlock: bool,
    /// Data travels inside the messages.
    pub(super) short_io: bool,
    /// The write brings the object's first data, or is to be refused.
    pub(super) first: bool,
    /// The write is to be on disk before its reply.
    pub(super) sync: bool,
    /// Bytes of the ranges whose space the client took from its grant, in whole blocks.
    pub(super) from_grant: u64,
}

impl Brw {
    /// Reads the buffers of OST_READ and OST_WRITE. `coral`: the client cuts its data at 1 MiB
    /// and nowhere else.
    pub(super) fn parse(msg: &Message, coral: bool) -> Result<Brw, Errno> {
        let oa: Obdo = msg.get(1).map_err(|_| Errno::EPROTO)?;
        let ioobj: ObdIoobj = msg.get(2).map_err(|_| Errno::EPROTO)?;
        let niobufs: Vec<NiobufRemote> = decode_all(msg.buf(3));
        // a mask of match bits (`tgt_io_data_unpack`)
        let bad_mask = !ioobj.max_mds().is_power_of_two();
        if msg.buf(2).len() != size_of::<ObdIoobj>()
            || niobufs.len() != ioobj.bufcnt as usize
            || bad_mask
        {
            return Err(Errno::EPROTO);
        }
        let (id, res) = object_of(&ioobj.oid)?;
        let short_io = oa.valid & md::FLFLAGS != 0 && oa.flags.contains(ObdFlags::SHORT_IO);
        let total = total_bytes(&niobufs)?;
        if short_io && total > SHORT_IO_BYTES {
            return Err(Errno::EPROTO);
        }
        let flagged = |flag| niobufs.iter().filter(move |n| n.flags & flag != 0);
        let srvlocked = flagged(brw::SRVLOCK).count();
        if srvlocked != 0 && srvlocked != niobufs.len() {
            return Err(Errno::EFAULT);
        }
        let md_lens = match (short_io, coral) {
            (true, _) => Vec::new(),
            (false, true) => plain_md_lens(total),
            (false, false) => page_md_lens(&niobufs),
        };
        Ok(Brw {
            oa,
            id,
            res,
            extents: merge(&niobufs),
            md_lens,
            niobuf_count: niobufs.len(),
            srvlock: srvlocked != 0,
            short_io,
            sync: flagged(brw::SYNC).next().is_some(),
            first: coral && flagged(FIRST_WRITE).next().is_some(),
            from_grant: flagged(brw::FROM_GRANT).map(blocks_bytes).sum(),
        })
    }

    /// Bytes of all ranges.
    pub(super) fn total(&self) -> usize {
        self.extents.iter().map(|e| e.len).sum()
    }

    /// First and last byte of the request.
    pub(super) fn span(&self) -> (u64, u64) {
        let first = self.extents.first().map_or(0, |e| e.off);
        let last = self.extents.last().map_or(0, |e| e.off + e.len as u64 - 1);
        (first, last)
    }

    /// The checksum the client asks for; an unknown algorithm is an error.
    pub(super) fn cksum(&self) -> Result<Option<CksumType>, Errno> {
        if self.oa.valid & md::FLCKSUM == 0 {
            return Ok(None);
        }
        let flags = if self.oa.valid & md::FLFLAGS != 0 {
            self.oa.flags
        } else {
            ObdFlags::empty()
        };
        CksumType::from_flags(flags).map(Some).ok_or(Errno::EPROTO)
    }

    /// Pairs the ranges with the data that belongs to each, without copying.
    pub(super) fn cut(&self, data: impl IntoIterator<Item = Bytes>) -> Vec<(u64, Vec<Bytes>)> {
        let mut data = data.into_iter();
        let mut seg = Bytes::new();
        let take = |e: &Extent| {
            let mut parts = Vec::new();
            let mut left = e.len;
            while left > 0 {
                if seg.is_empty() {
                    match data.next() {
                        Some(next) => seg = next,
                        None => break,
                    }
                }
                let n = left.min(seg.len());
                parts.push(seg.split_to(n));
                left -= n;
            }
            (e.off, parts)
        };
        self.extents
            .iter()
            .map(take)
            .filter(|(_, parts)| !parts.is_empty())
            .collect()
    }

    /// The ranges cut at descriptor boundaries: descriptor and range. Short I/O is one descriptor.
    pub(super) fn pieces(&self) -> Vec<(usize, Extent)> {
        let mut out = Vec::new();
        let whole = [self.total() as u32];
        let lens = if self.short_io {
            &whole[..]
        } else {
            &self.md_lens[..]
        };
        let mut extents = self.extents.iter().copied();
        let mut at = extents.next();
        for (md, md_len) in lens.iter().enumerate() {
            let mut room = *md_len as usize;
            while let (Some(e), true) = (at, room > 0) {
                let n = e.len.min(room);
                out.push((md, Extent { off: e.off, len: n }));
                room -= n;
                let rest = Extent {
                    off: e.off + n as u64,
                    len: e.len - n,
                };
                at = if rest.len > 0 {
                    Some(rest)
                } else {
                    extents.next()
                };
            }
        }
        out
    }
}

/// The object and lock resource an id names; id 0 names none.
pub(super) fn object_of(oi: &OstId) -> Result<(ObjectId, ResId), Errno> {
    let id = ObjectId {
        seq: oi.object_seq(),
        oid: oi.object_id(),
    };
    if id.oid == 0 {
        Err(Errno::EPROTO)
    } else {
        Ok((id, oi.res_id()))
    }
}

fn total_bytes(niobufs: &[NiobufRemote]) -> Result<usize, Errno> {
    if niobufs.is_empty() || niobufs.len() > NIOBUFS_MAX {
        return Err(Errno::EPROTO);
    }
    let mut total = 0;
    let mut end = 0;
    for n in niobufs {
        if n.len == 0 || n.offset < end {
            return Err(Errno::EPROTO);
        }
        end = n
            .offset
            .checked_add(n.len as u64)
            .filter(|e| *e <= i64::MAX as u64)
            .ok_or(Errno::EFBIG)?;
        total += n.len as usize;
        if total > BRW_BYTES {
            return Err(Errno::EPROTO);
        }
    }
    Ok(total)
}

fn merge(niobufs: &[NiobufRemote]) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::with_capacity(1);
    for n in niobufs {
        match out.last_mut() {
            Some(e) if e.off + e.len as u64 == n.offset => e.len += n.len as usize,
            _ => out.push(Extent {
                off: n.offset,
                len: n.len as usize,
            }),
        }
    }
    out
}

fn plain_md_lens(total: usize) -> Vec<u32> {
    (0..total)
        .step_by(MD_BYTES)
        .map(|at| MD_BYTES.min(total - at) as u32)
        .collect()
}

fn page_md_lens(niobufs: &[NiobufRemote]) -> Vec<u32> {
    let mut lens = Vec::new();
    let (mut bytes, mut fragments) = (0u32, 0);
    for n in niobufs {
        let mut at = n.offset;
        let end = n.offset + n.len as u64;
        while at < end {
            let next = (at / PAGE_BYTES as u64 + 1) * PAGE_BYTES as u64;
            bytes += (next.min(end) - at) as u32;
            at = next.min(end);
            fragments += 1;
            if fragments == MD_FRAGMENTS {
                lens.push(bytes);
                (bytes, fragments) = (0, 0);
            }
        }
    }
    if bytes > 0 {
        lens.push(bytes);
    }
    lens
}

/// Space a range takes in whole blocks.
fn blocks_bytes(n: &NiobufRemote) -> u64 {
    let page = PAGE_BYTES as u64;
    (n.offset + n.len as u64).next_multiple_of(page) - n.offset / page * page
}

#[cfg(test)]
mod tests {
    use coral_wire::PtlrpcBody;

    use super::*;

    fn niobuf(offset: u64, len: u32) -> NiobufRemote {
        NiobufRemote {
            offset,
            len,
            flags: 0,
        }
    }

    fn request(niobufs: &[NiobufRemote], flags: ObdFlags) -> Message {
        let oi = OstId::group0(7);
        let mut msg = Message::new(&PtlrpcBody::default());
        msg.push(&Obdo {
            oi,
            flags,
            valid: md::FLFLAGS,
            ..Default::default()
        });
        msg.push(&ObdIoobj::new(oi, 1, niobufs.len() as u32));
        msg.push_bytes(coral_wire::raw::encode_all(niobufs));
        msg
    }

    fn parse(niobufs: &[NiobufRemote]) -> Result<Brw, Errno> {
        Brw::parse(&request(niobufs, ObdFlags::empty()), false)
    }

    #[test]
    fn touching_ranges_become_one() {
        let b = parse(&[niobuf(0, 4096), niobuf(4096, 100), niobuf(8192, 1)]).unwrap();
        assert_eq!(
            b.extents,
            [Extent { off: 0, len: 4196 }, Extent { off: 8192, len: 1 }]
        );
        assert_eq!((b.total(), b.niobuf_count, b.span()), (4197, 3, (0, 8192)));
        assert_eq!(b.md_lens, [4197]);
    }

    #[test]
    fn most_descriptors_are_a_power_of_two() {
        for (mds, sent) in [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8)] {
            assert_eq!(ObdIoobj::new(OstId::group0(7), mds, 1).max_mds(), sent);
        }
        let of = |max_brw: u32| {
            let oi = OstId::group0(7);
            let mut msg = Message::new(&PtlrpcBody::default());
            msg.push(&Obdo {
                oi,
                ..Default::default()
            })
            .push(&ObdIoobj {
                oid: oi,
                max_brw,
                bufcnt: 1,
            });
            msg.push(&niobuf(0, 3 << 20));
            Brw::parse(&msg, false).map(|b| b.md_lens.len())
        };
        assert_eq!(
            (of(3 << 16), of(2 << 16).err()),
            (Ok(3), Some(Errno::EPROTO))
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let big = BRW_BYTES as u32;
        for bad in [
            &[][..],
            &[niobuf(0, 0)],
            &[niobuf(0, big + 1)],
            &[niobuf(0, big), niobuf(big as u64, 1)],
            &[niobuf(10, 10), niobuf(19, 1)],
            &[niobuf(u64::MAX, 10)],
            &[niobuf(i64::MAX as u64, 1)],
            &[
                NiobufRemote {
                    flags: brw::SRVLOCK,
                    ..niobuf(0, 1)
                },
                niobuf(1, 1),
            ],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        let mut msg = request(&[niobuf(0, 1)], ObdFlags::empty());
        msg.bufs.pop();
        assert!(Brw::parse(&msg, false).is_err());
        let long = request(&[niobuf(0, SHORT_IO_BYTES as u32 + 1)], ObdFlags::SHORT_IO);
        assert!(Brw::parse(&long, false).is_err());
    }

    #[test]
    fn descriptors_hold_256_pages_and_coral_cuts_at_1_mib() {
        let mib = MD_BYTES as u32;
        assert_eq!(
            parse(&[niobuf(0, 2 * mib + 5)]).unwrap().md_lens,
            [mib, mib, 5]
        );
        // An unaligned start: the first page is short, and so is the first descriptor.
        let n = [niobuf(100, 2 * mib)];
        assert_eq!(parse(&n).unwrap().md_lens, [mib - 100, mib, 100]);
        let coral = Brw::parse(&request(&n, ObdFlags::empty()), true).unwrap();
        assert_eq!(coral.md_lens, [mib, mib]);
    }

    #[test]
    fn pieces_and_cuts_cover_every_byte_once() {
        let mib = MD_BYTES as u32;
        let lists: [&[NiobufRemote]; 3] = [
            &[niobuf(100, 2 * mib)],
            &[niobuf(0, 10), niobuf(5000, 4096), niobuf(1 << 30, mib)],
            &[niobuf(7, 1)],
        ];
        for list in lists {
            let b = parse(list).unwrap();
            let pieces = b.pieces();
            for (md, want) in b.md_lens.iter().enumerate() {
                let len: usize = pieces.iter().filter(|p| p.0 == md).map(|p| p.1.len).sum();
                assert_eq!(len, *want as usize);
            }
            let again = pieces
                .iter()
                .map(|(_, e)| niobuf(e.off, e.len as u32))
                .collect::<Vec<_>>();
            assert_eq!(merge(&again), b.extents);

            let data: Vec<u8> = (0..b.total()).map(|i| i as u8).collect();
            let segs = data.chunks(3000).map(Bytes::copy_from_slice);
            let cut = b.cut(segs);
            assert_eq!(cut.len(), b.extents.len());
            for ((off, parts), e) in cut.iter().zip(&b.extents) {
                assert_eq!(
                    (*off, parts.iter().map(Bytes::len).sum::<usize>()),
                    (e.off, e.len)
                );
            }
            let flat: Vec<u8> = cut.iter().flat_map(|(_, p)| p.concat()).collect();
            assert!(flat == data);
        }
    }

    proptest::proptest! {
        /// No bytes of a client make it panic, and what is accepted is consistent.
        #[test]
        fn random_requests_are_refused_or_sane(
            oa in proptest::collection::vec(proptest::num::u8::ANY, 200..220),
            ioobj in proptest::collection::vec(proptest::num::u8::ANY, 20..28),
            small in proptest::collection::vec((0..1u64 << 22, 0..1u32 << 21, proptest::num::u32::ANY), 0..6),
            wild in proptest::collection::vec(proptest::num::u8::ANY, 0..40),
            bufcnt in 0..6u32, use_wild in proptest::bool::weighted(0.2), coral in proptest::bool::ANY,
        ) {
            let mut ioobj = ioobj;
            if ioobj.len() >= 24 {
                ioobj[20..24].copy_from_slice(&bufcnt.to_le_bytes());
            }
            let list: Vec<_> = small.iter().map(|(o, l, f)| NiobufRemote { offset: *o, len: *l, flags: *f }).collect();
            let niobufs = if use_wild { wild.into() } else { coral_wire::raw::encode_all(&list) };
            let mut msg = Message::new(&PtlrpcBody::default());
            msg.push_bytes(oa.into()).push_bytes(ioobj.into()).push_bytes(niobufs);
            if let Ok(b) = Brw::parse(&msg, coral) {
                assert!(b.total() > 0 && b.total() <= BRW_BYTES && b.span().0 <= b.span().1);
                assert_eq!(b.pieces().iter().map(|p| p.1.len).sum::<usize>(), b.total());
            }
        }
    }

    #[test]
    fn grant_is_counted_in_blocks() {
        assert_eq!(blocks_bytes(&niobuf(0, 1)), 4096);
        assert_eq!(blocks_bytes(&niobuf(4095, 2)), 8192);
        assert_eq!(blocks_bytes(&niobuf(8192, 4096)), 4096);
    }
}
