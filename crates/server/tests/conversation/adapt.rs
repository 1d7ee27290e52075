//! What of a recorded request must be other before our servers can take it, beyond values that were mapped.

use super::conversation::{Event, Kind};
use super::values::Values;
use bytes::Bytes;
use coral_wire::layout::Layout;
use coral_wire::ost::{CksumType, NiobufRemote, OBD_FL_CKSUM_MASK, ObdFlags, Obdo, md};
use coral_wire::ptlrpc::{Message, PtlrpcBody};
use coral_wire::{Wire, raw};

/// A read with a checksum that our servers grant: the recorded type is T10's.
pub fn other_checksum(ours: &mut Message) {
    let Ok(mut oa) = ours.get::<Obdo>(1) else {
        return;
    };
    if oa.valid & md::FLFLAGS != 0 && oa.flags.0 & OBD_FL_CKSUM_MASK != 0 {
        oa.flags = ObdFlags((oa.flags.0 & !OBD_FL_CKSUM_MASK) | CksumType::Crc32c.flags().0);
        ours.bufs[1] = oa.to_bytes();
    }
}

/// What a client writes: its own bytes when they are in the message, else as many of ours, one piece a descriptor; with a
/// checksum we know.
pub fn written(ours: &mut Message) -> Vec<Bytes> {
    let Ok(mut oa) = ours.get::<Obdo>(1) else {
        return vec![];
    };
    let ranges: Vec<NiobufRemote> = raw::decode_all(ours.buf(3));
    let inline = oa.flags.contains(ObdFlags::SHORT_IO);
    let total: usize = ranges.iter().map(|n| n.len as usize).sum();
    let data = if inline {
        ours.buf(5).clone()
    } else {
        Bytes::from(vec![0x5a; total])
    };
    if oa.valid & md::FLCKSUM != 0 {
        let ty = CksumType::Crc32c;
        oa.flags = ObdFlags((oa.flags.0 & !OBD_FL_CKSUM_MASK) | ty.flags().0);
        oa.nlink = ty.compute([&data[..]]);
        ours.bufs[1] = oa.to_bytes();
    }
    let mut rest = data;
    if inline {
        vec![]
    } else {
        descriptors(&ranges)
            .into_iter()
            .map(|len| rest.split_to(len))
            .collect()
    }
}

/// The layout in a replayed open names the OSTs that our objects are on.
pub fn homes(theirs: &Message, ours: &mut Message, at: usize, values: &Values) {
    let (Ok(Layout::Plain(t)), Ok(Layout::Plain(mut o))) =
        (Layout::decode(theirs.buf(at)), Layout::decode(ours.buf(at)))
    else {
        return;
    };
    for (t, o) in t.objects.iter().zip(&mut o.objects) {
        o.ost_idx = values.home([t.oi.id, t.oi.seq]).unwrap_or(o.ost_idx);
    }
    ours.bufs[at] = Layout::Plain(o).encode();
}

/// The recorded reply to a request.
pub fn reply_to<'a>(e: &Event, body: &PtlrpcBody, later: &'a [Event]) -> Option<&'a Event> {
    later.iter().find(|l| {
        l.kind == Kind::Reply && (l.bits == e.bits || body.mbits != 0 && l.bits == body.mbits)
    })
}

/// Match bits of a request's bulk descriptors.
pub fn bulk_bits(e: &Event, body: &PtlrpcBody) -> impl Iterator<Item = u64> + use<> {
    let last = if body.mbits == 0 { e.bits } else { body.mbits };
    (last & !63)..=last
}

/// Lengths of descriptors as a kernel client fills them: 256 page fragments each.
fn descriptors(ranges: &[NiobufRemote]) -> Vec<usize> {
    let (mut lens, mut fragments) = (vec![0], 0);
    for r in ranges {
        let (mut at, end) = (r.offset, r.offset + r.len as u64);
        while at < end {
            if fragments == 256 {
                lens.push(0);
                fragments = 0;
            }
            let next = ((at / 4096 + 1) * 4096).min(end);
            *lens.last_mut().expect("one") += (next - at) as usize;
            (at, fragments) = (next, fragments + 1);
        }
    }
    lens
}
