//! Splits one direction of a connection: acceptor request, HELLO, ksock messages with LNet headers and payloads.
//! Everything is decoded into the crate's types and encoded back at once.

use super::pcap::Half;
use bytes::Bytes;
use coral_wire::Wire;
use coral_wire::lnet::*;

/// One thing on the stream. `raw` is what stood there.
pub enum Item {
    ConnRequest,
    Hello,
    Noop,
    /// `at_us`: when it was complete, microseconds since 1970.
    Lnet {
        hdr: LnetHdr,
        payload: Bytes,
        at_us: u64,
    },
}

/// What came of a direction.
#[derive(Default)]
pub struct Split {
    pub items: Vec<Item>,
    /// Bytes that could not be attributed: before the first message of a stream whose start is missing, behind a gap, or of a message cut off by the capture's end.
    pub lost: usize,
    /// Mismatches between what stood there and what the codec gives back.
    pub errors: Vec<String>,
}

pub fn split(half: &Half) -> Split {
    let mut out = Split::default();
    for (i, run) in half.runs.iter().enumerate() {
        let run = Bytes::from(run.clone());
        let start = if i == 0 && half.from_start {
            Some(0)
        } else {
            resync(half, i, &run)
        };
        let Some(start) = start else {
            out.lost += run.len();
            continue;
        };
        out.lost += start;
        messages(
            &run.slice(start..),
            |end| half.complete_at(i, start + end),
            &mut out,
        );
    }
    out
}

/// The first segment that begins with a believable message.
fn resync(half: &Half, run_no: usize, run: &Bytes) -> Option<usize> {
    let believable = |at: &usize| {
        let Ok(k) = KsockMsgHdr::decode(&run[*at..]) else {
            return false;
        };
        match k.r#type {
            KSOCK_MSG_NOOP => k.csum == 0,
            KSOCK_MSG_LNET => {
                k.csum == 0 && LnetHdr::decode(run.get(*at + 24..).unwrap_or(&[])).is_ok()
            }
            _ => false,
        }
    };
    if run_no == 0 {
        half.segment_starts.iter().copied().find(believable)
    } else {
        (0..run.len()).find(believable)
    }
}

fn messages(run: &Bytes, complete_at: impl Fn(usize) -> u64, out: &mut Split) {
    let mut rest = run.clone();
    while !rest.is_empty() {
        match next(&rest, out) {
            Some(n) => {
                rest = rest.slice(n..);
                if let Some(Item::Lnet { at_us, .. }) = out.items.last_mut().filter(|_| n > 24) {
                    *at_us = complete_at(run.len() - rest.len());
                }
            }
            None => {
                out.lost += rest.len();
                return;
            }
        }
    }
}

/// Takes one item off `rest` and gives its length; `None` when it is incomplete.
fn next(rest: &Bytes, out: &mut Split) -> Option<usize> {
    let magic = u32::decode(rest).ok()?;
    match magic {
        LNET_PROTO_ACCEPTOR_MAGIC => {
            let c = ConnRequest::decode(rest).ok()?;
            check(out, "ConnRequest", &rest[..16], &c.to_bytes());
            assert_eq!(
                c,
                ConnRequest::new(c.nid),
                "an acceptor request is nothing but its NID"
            );
            out.items.push(Item::ConnRequest);
            Some(16)
        }
        LNET_PROTO_MAGIC => {
            let h = KsockHello::decode(rest).ok()?;
            check(out, "KsockHello", &rest[..56], &h.to_bytes());
            assert_eq!((h.version, h.nips), (KSOCK_PROTO_V3, 0));
            out.items.push(Item::Hello);
            Some(56)
        }
        KSOCK_MSG_NOOP => {
            let k = KsockMsgHdr::decode(rest).ok()?;
            check(
                out,
                "NOOP",
                &rest[..24],
                &KsockMsgHdr::noop(k.zc_cookies[0], k.zc_cookies[1]).to_bytes(),
            );
            out.items.push(Item::Noop);
            Some(24)
        }
        KSOCK_MSG_LNET => lnet(rest, out),
        other => {
            out.errors
                .push(format!("no message begins with {other:#x}"));
            None
        }
    }
}

fn lnet(rest: &Bytes, out: &mut Split) -> Option<usize> {
    let k = KsockMsgHdr::decode(rest).ok()?;
    let head = rest.get(24..24 + LNET_HDR_SIZE)?;
    let hdr = match LnetHdr::decode(head) {
        Ok(h) => h,
        Err(e) => {
            out.errors.push(e.to_string());
            return None;
        }
    };
    let end = 24 + LNET_HDR_SIZE + hdr.payload_length as usize;
    if end > rest.len() {
        return None;
    }
    check(
        out,
        "KsockMsgHdr",
        &rest[..24],
        &KsockMsgHdr { csum: 0, ..k }.to_bytes(),
    );
    check(out, "LnetHdr", head, &hdr.encode());
    out.items.push(Item::Lnet {
        hdr,
        payload: rest.slice(24 + LNET_HDR_SIZE..end),
        at_us: 0,
    });
    Some(end)
}

fn check(out: &mut Split, what: &str, was: &[u8], is: &[u8]) {
    if was != is {
        out.errors
            .push(format!("{what}: {} became {}", hex(was), hex(is)));
    }
}

pub fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}
