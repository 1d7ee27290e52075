//! The golden check on a compact set of messages taken from a real Lustre, for when the captures are not at hand.
//! `tests/data/vectors.bin` is written by the ignored test `extract_vectors` in `golden.rs`; its format is in `support::vectors`.

mod support;

use coral_wire::formats;
use coral_wire::lnet::PingInfo;
use coral_wire::ptlrpc::{Message, opc};
use std::collections::BTreeSet;
use support::recode::{self, Recoded};
use support::survive;
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
