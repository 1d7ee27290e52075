//! Takes the conversation of one client out of a capture.

use super::conversation::{Event, Kind};
use super::pcap;
use super::stream::{self, Item};
use bytes::Bytes;
use coral_wire::lnet::{LnetHdr, LnetMsg};
use coral_wire::ptlrpc::{BODY_ONLY_SIZE, MSGHDR_AT_SUPPORT, opc, portal};
use coral_wire::{Message, Nid};
use std::collections::{BTreeSet, HashMap};

/// Names of operations and when each began, microseconds since 1970, from a file as `session.marks`.
pub fn marks(text: &str) -> Vec<(u64, String)> {
    let mut out = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        if let (Some(time), Some("BEGIN"), Some(name)) = (words.next(), words.next(), words.next())
        {
            let (secs, fraction) = time.split_once('.').unwrap_or((time, "0"));
            let us = secs.parse::<u64>().unwrap_or(0) * 1_000_000
                + fraction
                    .get(..6)
                    .and_then(|f| f.parse::<u64>().ok())
                    .unwrap_or(0);
            out.push((us, name.to_string()));
        }
    }
    out
}

/// Everything `client` said and was told, and the marks, in order of time; of operations to `cut`, as many messages as said.
/// Early replies, which only ask for patience, are left out.
pub fn conversation(
    file: &[u8],
    client: Nid,
    marks: &[(u64, String)],
    cut: &[(&str, usize)],
) -> Vec<Event> {
    let mut timed: Vec<(u64, usize, Event)> = Vec::new();
    for (at, name) in marks {
        timed.push((
            *at,
            0,
            Event {
                kind: Kind::Operation,
                portal: 0,
                bits: 0,
                bytes: Bytes::copy_from_slice(name.as_bytes()),
            },
        ));
    }
    let mut bulk = BTreeSet::new();
    let mut seen = HashMap::new();
    let mut early = BTreeSet::new();
    for half in pcap::halves(file) {
        for item in stream::split(&half).items {
            let Item::Lnet {
                hdr,
                payload,
                at_us,
            } = item
            else {
                continue;
            };
            // a message sent again on another connection stands twice
            let key = (hdr.src_nid, format!("{:?}", hdr.msg), payload.clone());
            if let Some(event) =
                event(&hdr, payload, client, &mut bulk).filter(|_| seen.insert(key, ()).is_none())
            {
                if matches!(hdr.msg, LnetMsg::Put { offset: 0, .. })
                    && event.bytes.len() <= BODY_ONLY_SIZE
                {
                    early.insert(timed.len());
                }
                timed.push((at_us, timed.len(), event));
            }
        }
    }
    timed.sort_by_key(|(at, n, _)| (*at, *n));
    let adaptive: BTreeSet<u64> = timed
        .iter()
        .filter(|(_, _, e)| e.kind == Kind::Request && takes_early(&e.bytes))
        .map(|(_, _, e)| e.bits)
        .collect();
    timed.retain(|(_, n, e)| {
        !(e.kind == Kind::Reply && early.contains(n) && adaptive.contains(&e.bits))
    });
    let (mut operation, mut messages) = (Bytes::new(), 0);
    let mut wanted = |e: &Event| {
        if e.kind == Kind::Operation {
            (operation, messages) = (e.bytes.clone(), 0);
            return true;
        }
        messages += 1;
        !cut.iter()
            .any(|(o, n)| o.as_bytes() == operation && messages > *n)
            && (e.kind != Kind::Bulk || bulk.contains(&e.bits))
    };
    timed
        .into_iter()
        .map(|(_, _, e)| e)
        .filter(|e| wanted(e))
        .collect()
}

/// Whether the final reply to a request goes behind the room of an early one.
fn takes_early(request: &Bytes) -> bool {
    Message::decode(request.clone()).is_ok_and(|m| m.flags & MSGHDR_AT_SUPPORT != 0)
}

fn event(hdr: &LnetHdr, payload: Bytes, client: Nid, bulk: &mut BTreeSet<u64>) -> Option<Event> {
    let LnetMsg::Put {
        match_bits,
        ptl_index,
        ..
    } = hdr.msg
    else {
        return None;
    };
    let from_client = hdr.src_nid == client;
    if !from_client && hdr.dest_nid != client {
        return None;
    }
    let kind = match ptl_index {
        portal::LDLM_CB_REQUEST if !from_client => Kind::Callback,
        portal::LDLM_CB_REPLY if from_client => Kind::CallbackReply,
        portal::MDS_BULK | portal::MGS_BULK if !from_client && !payload.is_empty() => Kind::Bulk,
        portal::OSC_REPLY | portal::MDC_REPLY | portal::MGC_REPLY | portal::LDLM_CANCEL_REPLY
            if !from_client =>
        {
            Kind::Reply
        }
        p if from_client && portal::reply_of(p).is_some() => {
            let body = Message::decode(payload.clone()).ok()?.body().ok()?;
            if matches!(body.opc, opc::MDS_READPAGE | opc::MGS_CONFIG_READ) {
                // up to the number of descriptors, the last of which the body names
                bulk.extend((body.mbits & !63)..=body.mbits);
                bulk.extend((match_bits & !63)..=match_bits);
            }
            Kind::Request
        }
        _ => return None,
    };
    Some(Event {
        kind,
        portal: ptl_index,
        bits: match_bits,
        bytes: payload,
    })
}
