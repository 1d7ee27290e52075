//! The framing of socklnd, and the tables of routes and peers of a node.

use std::net::Ipv4Addr;

use arbitrary::{Result, Unstructured};
use coral_lnet::fuzzing::{self, Peers, Routes};
use coral_lnet::{LNET_MTU, Nid, PingInfo, RouteSpec};
use coral_wire::lnet::{LnetHdr, LnetMsg, WireHandle};

use crate::mutate;

/// A stream of messages with changes, in pieces: what comes out is what its headers say, and no more than went in.
pub(crate) fn frames(u: &mut Unstructured<'_>) -> Result<()> {
    let mut stream = Vec::new();
    for _ in 0..u.int_in_range(1..=6u8)? {
        stream.extend(match u.ratio(1, 4)? {
            true => fuzzing::noop([0, u.int_in_range(0..=3)?]),
            false => message(u)?,
        });
    }
    let stream = mutate(u, &stream)?;
    let local = u.ratio(1, 2)?.then_some(Nid(1));
    let piece = u.int_in_range(1..=5000)?;
    let mut read = 0;
    for (hdr, len) in fuzzing::frames(local, &stream, piece) {
        assert_eq!(hdr.payload_length as usize, len);
        assert!(len <= LNET_MTU);
        read += len;
    }
    assert!(read <= stream.len(), "more than was fed");
    Ok(())
}

fn message(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let wmd = WireHandle::NONE;
    let len = u.int_in_range(0..=6000u32)?;
    let (msg, len) = match u.int_in_range(0..=3u8)? {
        0 => (
            LnetMsg::Ack {
                dst_wmd: wmd,
                match_bits: 1,
                mlength: len,
            },
            0,
        ),
        1 => (
            LnetMsg::Get {
                return_wmd: wmd,
                match_bits: 1,
                ptl_index: 2,
                src_offset: 0,
                sink_length: len,
            },
            0,
        ),
        _ => (
            LnetMsg::Put {
                ack_wmd: wmd,
                match_bits: 1,
                hdr_data: 0,
                ptl_index: 6,
                offset: 0,
            },
            len,
        ),
    };
    let hdr = LnetHdr {
        dest_nid: Nid(u.int_in_range(1..=2)?),
        src_nid: Nid(2),
        dest_pid: 3,
        src_pid: 4,
        payload_length: len,
        msg,
    };
    let mut out = fuzzing::message(&hdr.encode());
    out.resize(out.len() + len as usize, 7);
    Ok(out)
}

/// A NID out of few, on three networks.
fn nid(u: &mut Unstructured<'_>) -> Result<Nid> {
    let net = u.int_in_range(0..=2u16)?;
    Ok(Nid::tcp(
        net,
        Ipv4Addr::new(10, 0, 0, u.int_in_range(1..=6)?),
    ))
}

/// What a node says of itself.
fn word(u: &mut Unstructured<'_>, of: Nid) -> Result<PingInfo> {
    let mut nids = vec![];
    for _ in 0..u.int_in_range(0..=4u8)? {
        nids.push(nid(u)?);
    }
    if u.ratio(3, 4)? {
        nids.insert(0, of);
    }
    Ok(PingInfo::new(u.arbitrary()?, 12345, u.arbitrary()?, &nids))
}

/// Routes come and go, gateways answer and fall silent: a gateway is known while it has a route, and a choice is one of them.
pub(crate) fn routes(u: &mut Unstructured<'_>) -> Result<()> {
    let us = [Nid::tcp(0, Ipv4Addr::new(10, 0, 0, 100))];
    let (mut routes, mut now_ms) = (Routes::default(), 0u64);
    while !u.is_empty() {
        now_ms += u.int_in_range(0..=100_000u64)?;
        let gateway = nid(u)?;
        match u.int_in_range(0..=5u8)? {
            0 => {
                let spec = RouteSpec {
                    net: nid(u)?.net(),
                    gateway,
                    hops: u.arbitrary()?,
                    priority: u.int_in_range(0..=3)?,
                };
                let had = routes.all();
                let added = routes.add(&us, spec);
                assert_eq!(routes.all().len(), had.len() + usize::from(added));
                assert!(!(added && had.contains(&(spec.net, gateway))));
            }
            1 => {
                let net = nid(u)?.net();
                let had = routes.all().contains(&(net, gateway));
                assert_eq!(routes.del(net, gateway), had);
            }
            2 => routes.event(u.arbitrary()?, gateway, now_ms),
            3 => {
                let info = word(u, gateway)?;
                routes.answered(gateway, &info, now_ms);
            }
            4 => {
                let known = routes.gateways();
                assert!(routes.ask_due(now_ms).iter().all(|g| known.contains(g)));
            }
            _ => {
                let (to, not) = (nid(u)?, [nid(u)?]);
                if let Some(by) = routes.choose(to, 1000, &not) {
                    assert!(routes.all().contains(&(to.net(), by)) && !not.contains(&by));
                }
            }
        }
        let all = routes.all();
        let mut of_routes: Vec<Nid> = all.iter().map(|r| r.1).collect();
        of_routes.sort_unstable();
        of_routes.dedup();
        assert_eq!(routes.gateways(), of_routes, "gateways without a route");
    }
    Ok(())
}

/// Peers speak of themselves and of others, and the operator has his say: the table stays within its bound, and a NID is of one
/// peer.
pub(crate) fn peers(u: &mut Unstructured<'_>) -> Result<()> {
    const MAX: usize = 12;
    let ours = [Nid::tcp(0, Ipv4Addr::new(10, 0, 0, 100))];
    let (mut peers, mut now_ms) = (Peers::new(MAX), 0u64);
    while !u.is_empty() {
        now_ms += u.int_in_range(0..=200_000u64)?;
        peers.now(now_ms);
        let of = nid(u)?;
        match u.int_in_range(0..=4u8)? {
            0 => peers.used(of),
            1 => {
                let via = if u.ratio(1, 3)? { Some(nid(u)?) } else { None };
                let info = word(u, of)?;
                peers.learn(of, via, info, &ours);
            }
            2 => {
                let more = [nid(u)?, nid(u)?];
                peers.add(of, &more, &ours);
            }
            3 => {
                let fewer = [nid(u)?];
                let some = u.ratio(1, 2)?;
                peers.del(of, if some { &fewer } else { &[] });
            }
            _ => {
                let primary = peers.primary(of);
                assert_eq!(peers.primary(primary), primary);
            }
        }
        let all = peers.all();
        let mut nids: Vec<Nid> = all.iter().flat_map(|(_, n)| n.clone()).collect();
        assert!(nids.len() <= MAX, "{} NIDs", nids.len());
        nids.sort_unstable();
        assert!(
            nids.windows(2).all(|w| w[0] != w[1]),
            "a NID of two peers: {all:?}"
        );
        for (primary, nids) in &all {
            assert!(
                nids.contains(primary),
                "{primary} is not of its peer: {all:?}"
            );
            assert!(!nids.contains(&ours[0]), "we are our own peer: {all:?}");
        }
    }
    Ok(())
}
