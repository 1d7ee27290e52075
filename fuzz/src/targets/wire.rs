//! Decoders of `crates/wire`: what a peer sends.

#[path = "../../../crates/wire/tests/support/mod.rs"]
mod support;

use std::sync::OnceLock;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use coral_wire::acl::Acl;
use coral_wire::cfg::{ConfigLogReader, LustreCfg};
use coral_wire::layout::{CompMd, ForeignMd, Layout, LmvMd, LmvUserMd, LovMd};
use coral_wire::ldlm::LdlmRequest;
use coral_wire::llog::{Llog, parse_chunk};
use coral_wire::lnet::{KsockHello, KsockMsgHdr, LnetHdr, PingInfo};
use coral_wire::mds::batch::{BATCH_MAX, decode_header, decode_list};
use coral_wire::mds::{BUT_REQUEST_MAGIC, Rec, parse_page, readpage_entries};
use coral_wire::mgs::MgsNidtblEntry;
use coral_wire::ost::OstLvb;
use coral_wire::ptlrpc::{Message, opc};
use coral_wire::srpc::SrpcMsg;
use coral_wire::{ObdConnectData, Wire, formats};
use support::recode;
use support::vectors::Vector;

use crate::mutate;

/// Words that decoders look for, so that random bytes get past the first check.
const MAGICS: [u32; 12] = [
    0x0BD1_0BD0,
    0x0BD3_0BD0,
    0x0BD5_0BD0,
    0x0BD6_0BD0,
    0x0BD7_0BD0,
    0x0CD2_0CD0,
    0x0CD3_0CD0,
    0x0CD4_0CD0,
    0x1cf6_0001,
    0x0BD0_0BD3,
    0xBADE_0001,
    2,
];

/// Messages of a real Lustre, one of each kind.
fn vectors() -> &'static [Vector] {
    static ALL: OnceLock<Vec<Vector>> = OnceLock::new();
    ALL.get_or_init(|| {
        support::vectors::decode(include_bytes!(
            "../../../crates/wire/tests/data/vectors.bin"
        ))
    })
}

/// Up to `max` bytes, mostly small ones, often with a magic in front.
fn buffer(u: &mut Unstructured<'_>, max: usize) -> Result<Bytes> {
    let len = u.int_in_range(0..=max)?.min(u.len());
    let mut b = u.bytes(len)?.to_vec();
    for byte in &mut b {
        if *byte & 0x40 == 0 {
            *byte &= 3;
        }
    }
    if b.len() >= 4 && u.ratio(2, 3)? {
        b[..4].copy_from_slice(&u.choose(&MAGICS)?.to_le_bytes());
    }
    Ok(b.into())
}

/// A real sample with changes, of those for which `wanted` holds, or a random buffer.
fn sample(u: &mut Unstructured<'_>, max: usize) -> Result<Bytes> {
    if u.ratio(1, 4)? {
        return buffer(u, max);
    }
    let v = u.choose(vectors())?;
    // a buffer out of a message, or all of it
    let part = match Message::decode(v.bytes.clone()) {
        Ok(m) if !m.bufs.is_empty() && u.ratio(3, 4)? => u.choose(&m.bufs)?.clone(),
        _ => v.bytes.clone(),
    };
    Ok(mutate(u, &part)?.into())
}

/// Whole messages of a real Lustre with changes: every buffer is decoded as what it is, and encoded again.
pub(crate) fn samples(u: &mut Unstructured<'_>) -> Result<()> {
    let v = u.choose(vectors())?;
    let raw = mutate(u, &v.bytes)?;
    let request = match &v.request {
        Some(r) if u.ratio(1, 2)? => Some(mutate(u, r)?.into()),
        other => other.clone(),
    };
    // a reply is read by its request, which our own side made: it decodes
    let decodes = |r: &Bytes| {
        Message::decode(r.clone()).is_ok_and(|m| formats::of_request(v.opcode, &m).is_some())
    };
    let request = request.filter(decodes).or(v.request.clone());
    let v = Vector {
        kind: v.kind,
        opcode: v.opcode,
        bytes: v.bytes.clone(),
        request,
    };
    support::survive(&v, raw.into());
    Ok(())
}

/// Random buffers in every place of a format: values or errors.
pub(crate) fn fields(u: &mut Unstructured<'_>) -> Result<()> {
    let f = u.choose(formats::ALL)?;
    let (fields, is_request) = *u.choose(&[(f.request, true), (f.reply, false)])?;
    let mut m = Message::default();
    for _ in 0..fields.len() {
        m.push_bytes(buffer(u, 400)?);
    }
    let _ = recode::message(fields, &m, None, is_request);
    for op in opc::ALL {
        let _ = formats::of_request(*op, &m);
    }
    let container = Message::decode(m.encode()).expect("what was encoded decodes");
    assert_eq!(container.bufs, m.bufs);
    Ok(())
}

/// Layouts of files and directories: what is decoded encodes to no more than was given.
pub(crate) fn layouts(u: &mut Unstructured<'_>) -> Result<()> {
    let raw = sample(u, 400)?;
    let bound = raw.len() + 64;
    if let Ok(l) = Layout::decode(&raw) {
        let again = l.encode();
        assert!(again.len() <= bound);
        assert_eq!(
            Layout::decode(&again).as_ref(),
            Ok(&l),
            "encoded and decoded"
        );
    }
    if let Ok(l) = LmvMd::decode(&raw) {
        assert!(l.stripe_fids.len() * 16 <= bound);
    }
    if let Ok(l) = LmvUserMd::decode(&raw) {
        assert!(l.objects.len() * 24 <= bound);
    }
    let _ = (
        LovMd::decode(&raw),
        CompMd::decode(&raw),
        ForeignMd::decode(&raw),
    );
    Ok(())
}

/// Configuration logs and their records, and NID tables.
pub(crate) fn logs(u: &mut Unstructured<'_>) -> Result<()> {
    let raw = sample(u, 1000)?;
    let bound = raw.len() + 64;
    if let Ok(c) = LustreCfg::decode(&raw) {
        assert!(c.bufs.iter().map(Bytes::len).sum::<usize>() <= 8 * bound);
    }
    if let Ok((e, rest)) = MgsNidtblEntry::decode(&raw) {
        assert!(rest.len() < raw.len() && e.nids.len() <= bound);
    }
    if let Ok(log) = Llog::decode(&raw) {
        let _ = ConfigLogReader::read_all(&log);
    }
    let _ = (parse_chunk(&raw), recode::nid_table(&raw));
    Ok(())
}

/// Pages of directories, lists of sub-requests, records of changes and ACLs.
pub(crate) fn directories(u: &mut Unstructured<'_>) -> Result<()> {
    let raw = sample(u, 5000)?;
    if let Ok((entries, _)) = readpage_entries(&raw) {
        assert!(entries.len() * 8 <= raw.len());
    }
    if let Ok(subs) = decode_list(BUT_REQUEST_MAGIC, &raw, BATCH_MAX) {
        assert!(subs.len() * 32 <= raw.len());
    }
    let _ = (
        decode_header(&raw, &raw),
        parse_page(&raw),
        Rec::decode(&raw),
        Acl::decode(&raw),
        recode::dir_pages(&raw),
        recode::batch_bulk(&raw),
    );
    Ok(())
}

/// Headers of LNet and socklnd, answers to pings, and the self-test.
pub(crate) fn lnet(u: &mut Unstructured<'_>) -> Result<()> {
    let raw = sample(u, 200)?;
    if let Ok(hdr) = LnetHdr::decode(&raw) {
        assert_eq!(LnetHdr::decode(&hdr.encode()), Ok(hdr));
    }
    if let Ok(p) = PingInfo::decode(&raw) {
        assert!(p.nis.len() * 16 <= raw.len() + 64);
    }
    let _ = (
        KsockMsgHdr::decode(&raw),
        KsockHello::decode(&raw),
        SrpcMsg::decode(&raw),
        recode::srpc(&raw),
    );
    Ok(())
}

/// Requests and value blocks of locks, and connect data.
pub(crate) fn locks(u: &mut Unstructured<'_>) -> Result<()> {
    let raw = sample(u, 400)?;
    let _ = (
        LdlmRequest::decode(&raw),
        OstLvb::decode_any(&raw),
        ObdConnectData::decode_any(&raw),
    );
    Ok(())
}
