//! What the fuzz targets of `fuzz/` reach of the inside: thin functions over the framing of socklnd, the routes and the peers.
//! Nothing else uses it.

use coral_wire::lnet::{LNET_HDR_SIZE, LnetHdr, PingInfo};

use crate::Nid;
use crate::gateway::{GwEvent, GwTimers};
use crate::peers::{PeerTable, Word};
use crate::routes::{GwLoad, RouteSpec, RouteTable};
use crate::sock::frame::{BufPool, Frame, Framer, encode_lnet, encode_noop};

/// A NOOP of a stream.
pub fn noop(cookies: [u64; 2]) -> Vec<u8> {
    encode_noop(cookies).to_vec()
}

/// An LNet message of a stream, without its payload.
pub fn message(hdr: &[u8; LNET_HDR_SIZE]) -> Vec<u8> {
    encode_lnet(hdr).to_vec()
}

/// The LNet messages of a stream that comes in pieces, up to the first error: headers and lengths of payloads. Messages for
/// others than `local` are passed on at once.
pub fn frames(local: Option<Nid>, stream: &[u8], piece: usize) -> Vec<(LnetHdr, usize)> {
    let mut framer = Framer::new(BufPool::new(1), local);
    let (mut out, mut rest) = (Vec::new(), stream);
    while !rest.is_empty() {
        let ([mut a, mut b], room) = framer.spaces();
        let n = rest.len().min(room).min(piece.max(1));
        let k = n.min(a.len());
        a[..k].copy_from_slice(&rest[..k]);
        b[..n - k].copy_from_slice(&rest[k..n]);
        framer.filled(n);
        rest = &rest[n..];
        loop {
            let frame = match framer.next_frame() {
                Ok(Some(Frame::Transit { .. })) => framer.begin(),
                Ok(Some(frame)) => Some(frame),
                Ok(None) => break,
                Err(_) => return out,
            };
            if let Some(Frame::Lnet { hdr, payload, .. }) = frame {
                out.push((hdr, payload.len()));
            }
        }
    }
    out
}

/// The routes of a node.
#[derive(Debug, Default)]
pub struct Routes(RouteTable);

impl Routes {
    /// Adds a route of a node that has the NIDs `us`; whether it was taken.
    pub fn add(&mut self, us: &[Nid], spec: RouteSpec) -> bool {
        self.0.add(us, spec).is_ok()
    }

    /// Takes a route away; whether it was there.
    pub fn del(&mut self, net: u32, gateway: Nid) -> bool {
        self.0.del(net, gateway).is_ok()
    }

    /// What happens to a gateway, by number.
    pub fn event(&mut self, number: u8, gateway: Nid, now_ms: u64) {
        let event = match number % 6 {
            0 => GwEvent::Answered,
            1 => GwEvent::AnsweredNotRouting,
            2 => GwEvent::Silent,
            3 => GwEvent::ConnLost,
            4 => GwEvent::Connected,
            _ => GwEvent::Forwarded,
        };
        self.0.handle(gateway, event, now_ms, TIMERS);
    }

    /// A gateway told about itself.
    pub fn answered(&mut self, gateway: Nid, info: &PingInfo, now_ms: u64) {
        self.0.answered(gateway, info, now_ms, TIMERS);
    }

    /// The gateways to be pinged now.
    pub fn ask_due(&mut self, now_ms: u64) -> Vec<Nid> {
        self.0.ask_due(now_ms)
    }

    /// The gateway for a message to `to`, other than those in `not`.
    pub fn choose(&mut self, to: Nid, bytes: u64, not: &[Nid]) -> Option<Nid> {
        let load = |_| GwLoad::default();
        self.0.choose(to, bytes, None, not, load).map(|(gw, _)| gw)
    }

    /// Network and gateway of each route.
    pub fn all(&self) -> Vec<(u32, Nid)> {
        let views = self.0.views();
        views.iter().map(|v| (v.spec.net, v.spec.gateway)).collect()
    }

    /// Every gateway.
    pub fn gateways(&self) -> Vec<Nid> {
        self.0.gateways().map(|(nid, _)| nid).collect()
    }
}

const TIMERS: GwTimers = GwTimers {
    interval: std::time::Duration::from_secs(60),
};

/// The peers of a node.
#[derive(Debug)]
pub struct Peers(PeerTable);

impl Peers {
    /// Keeps at most `max` NIDs.
    pub fn new(max: usize) -> Peers {
        Peers(PeerTable::new(max))
    }

    /// Time goes on to so many milliseconds.
    pub fn now(&mut self, now_ms: u64) {
        self.0.now_ms = now_ms;
    }

    /// A message is sent to this NID, or came from it.
    pub fn used(&mut self, nid: Nid) {
        self.0.ni(nid);
        self.0.rails(nid);
    }

    /// The node at `from` told about itself, itself or by way of `via`.
    pub fn learn(&mut self, from: Nid, via: Option<Nid>, info: PingInfo, ours: &[Nid]) {
        let word = via.map_or(Word::Own, Word::Via);
        self.0.learn(word, from, info, ours);
    }

    /// The operator adds NIDs to a peer; whether that was taken.
    pub fn add(&mut self, primary: Nid, nids: &[Nid], ours: &[Nid]) -> bool {
        self.0.add(primary, nids, ours).is_ok()
    }

    /// The operator takes NIDs away; whether they were there.
    pub fn del(&mut self, primary: Nid, nids: &[Nid]) -> bool {
        self.0.del(primary, nids).is_ok()
    }

    /// The NID that stands for the peer with this one.
    pub fn primary(&mut self, nid: Nid) -> Nid {
        self.0.primary(nid)
    }

    /// Every peer: the NID that stands for it, and all it has.
    pub fn all(&self) -> Vec<(Nid, Vec<Nid>)> {
        let views = self.0.views();
        views
            .iter()
            .map(|v| (v.primary, v.nis.iter().map(|n| n.nid).collect()))
            .collect()
    }
}
