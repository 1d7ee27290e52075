//! The golden check on a compact set of messages taken from a real Lustre, for when the captures are not at hand.
//! `tests/data/vectors.bin` is written by the ignored test `extract_vectors` in `golden.rs`; its format is in `support::vectors`.

mod support;

use coral_wire::formats;
use coral_wire::lnet::PingInfo;
use coral_wire::ptlrpc::{Message, opc};
use std::collections::BTreeSet;
use support::recode::{self, Recoded};
use support::vectors::{Kind, Vector};
use support::walk::Asked;

fn vectors() -> Vec<Vector> {
    support::vectors::decode(include_bytes!("data/vectors.bin"))
}

/// Panics unless the buffer came back as it was.
fn expect(what: &str, rc: Recoded, was: &[u8]) {
    match rc {
        Recoded::Typed(ty, is) => assert!(is[..] == *was, "{what}: {ty} does not encode back"),
        Recoded::Opaque(_) => {}
        Recoded::Bad(e) => panic!("{what}: {e}"),
    }
}

fn message(v: &Vector) -> u32 {
    let m = Message::decode(v.bytes.clone()).expect("container");
    assert_eq!(m.encode(), v.bytes, "container encodes back");
    let body = m.body().expect("body");
    let asked = v.request.clone().map(|r| {
        let request = Message::decode(r).expect("request");
        Asked {
            format: formats::of_request(v.opcode, &request).expect("format"),
            opcode: v.opcode,
            request,
        }
    });
    let fields = match &asked {
        Some(a) => a.format.reply,
        None => formats::of_request(body.opc, &m).expect("format").request,
    };
    for (what, rc, was) in recode::message(fields, &m, asked.as_ref(), asked.is_none()) {
        let name = opc::name(body.opc).unwrap_or("?");
        expect(&format!("{name} {what}"), rc, &was);
    }
    body.opc
}

#[test]
fn vectors_encode_back() {
    let all = vectors();
    let mut opcodes = BTreeSet::new();
    for v in &all {
        match v.kind {
            Kind::Message => {
                opcodes.insert(message(v));
            }
            Kind::Bulk => {
                let rc = match v.opcode {
                    opc::MDS_READPAGE => recode::dir_pages(&v.bytes),
                    opc::MDS_BATCH => recode::batch_bulk(&v.bytes),
                    _ => recode::nid_table(&v.bytes),
                };
                expect("bulk", rc, &v.bytes);
            }
            Kind::Ping => assert_eq!(PingInfo::decode(&v.bytes).expect("ping").encode(), v.bytes),
            Kind::Srpc => expect("selftest", recode::srpc(&v.bytes), &v.bytes),
        }
    }
    println!(
        "{} vectors of {} opcodes: {:?}",
        all.len(),
        opcodes.len(),
        opcodes.iter().map(|o| opc::name(*o)).collect::<Vec<_>>()
    );
    assert!(
        opcodes.len() >= 43,
        "the set holds {} opcodes only",
        opcodes.len()
    );
}

/// Any bit flipped in a real message leads to a value or an error, never to a panic.
#[test]
fn flipped_bits_never_panic() {
    for v in vectors() {
        let mut raw = v.bytes.to_vec();
        let step = (raw.len() * 8 / 300).max(1);
        for bit in (0..raw.len() * 8).step_by(step) {
            raw[bit / 8] ^= 1 << (bit % 8);
            survive(&v, raw.clone().into());
            raw[bit / 8] ^= 1 << (bit % 8);
        }
        for len in (0..raw.len()).step_by((raw.len() / 40).max(1)) {
            survive(&v, raw[..len].to_vec().into());
        }
    }
}

fn survive(v: &Vector, raw: bytes::Bytes) {
    match v.kind {
        Kind::Message => {
            let Ok(m) = Message::decode(raw) else { return };
            let _ = m.body();
            let asked = v.request.clone().map(|r| {
                let request = Message::decode(r).expect("request");
                Asked {
                    format: formats::of_request(v.opcode, &request).expect("format"),
                    opcode: v.opcode,
                    request,
                }
            });
            let format = asked
                .as_ref()
                .map(|a| a.format.reply)
                .or(formats::of_request(v.opcode, &m).map(|f| f.request));
            if let Some(fields) = format {
                let _ = recode::message(fields, &m, asked.as_ref(), asked.is_none());
            }
        }
        Kind::Bulk => {
            let _ = (
                recode::dir_pages(&raw),
                recode::batch_bulk(&raw),
                recode::nid_table(&raw),
            );
        }
        Kind::Ping => {
            let _ = PingInfo::decode(&raw);
        }
        Kind::Srpc => {
            let _ = recode::srpc(&raw);
        }
    }
}

mod random {
    use super::*;
    use bytes::Bytes;
    use coral_wire::cfg::LustreCfg;
    use coral_wire::layout::{Layout, LmvMd, LmvUserMd};
    use coral_wire::mgs::MgsNidtblEntry;
    use proptest::prelude::*;

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

    fn buffer() -> impl Strategy<Value = Vec<u8>> {
        let small = prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()];
        (
            proptest::collection::vec(small, 0..400),
            0usize..MAGICS.len() * 2,
        )
            .prop_map(|(mut v, m)| {
                if let (Some(magic), true) = (MAGICS.get(m), v.len() >= 4) {
                    v[..4].copy_from_slice(&magic.to_le_bytes());
                }
                v
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Random buffers in every place of every format: values or errors.
        #[test]
        fn every_field_of_every_format(bufs in proptest::collection::vec(buffer(), 11)) {
            for f in formats::ALL {
                for (fields, is_request) in [(f.request, true), (f.reply, false)] {
                    let mut m = Message::default();
                    for b in bufs.iter().take(fields.len()) {
                        m.push_bytes(Bytes::from(b.clone()));
                    }
                    let _ = recode::message(fields, &m, None, is_request);
                    for op in opc::ALL {
                        let _ = formats::of_request(*op, &m);
                    }
                }
            }
        }

        /// Decoders of variable things give no more than they were given: nothing is multiplied.
        #[test]
        fn nothing_grows(raw in buffer()) {
            let raw = Bytes::from(raw);
            let bound = raw.len() + 64;
            if let Ok(l) = Layout::decode(&raw) {
                prop_assert!(l.encode().len() <= bound);
            }
            if let Ok(l) = LmvMd::decode(&raw) {
                prop_assert!(l.stripe_fids.len() * 16 <= bound);
            }
            if let Ok(l) = LmvUserMd::decode(&raw) {
                prop_assert!(l.objects.len() * 24 <= bound);
            }
            if let Ok(c) = LustreCfg::decode(&raw) {
                prop_assert!(c.bufs.iter().map(|b| b.len()).sum::<usize>() <= 8 * bound);
            }
            if let Ok((e, rest)) = MgsNidtblEntry::decode(&raw) {
                prop_assert!(rest.len() < raw.len() && e.nids.len() <= bound);
            }
            if let Ok(p) = PingInfo::decode(&raw) {
                prop_assert!(p.nis.len() * 16 <= bound);
            }
            let _ = (recode::dir_pages(&raw), recode::batch_bulk(&raw), recode::nid_table(&raw), recode::srpc(&raw));
        }
    }
}
