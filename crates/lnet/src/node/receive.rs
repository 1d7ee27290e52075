//! What becomes of a message that arrives: it is judged by fault rules, delivered here, answered, or sent on.

use std::sync::Arc;

use coral_buffers::Payload;
use coral_wire::lnet::{LnetMsg, WireHandle};
use tokio::time::Instant;

use super::Node;
use crate::faults::{Side, Verdict};
use crate::forward::Transit;
use crate::msg::Msg;
use crate::path::Load;
use crate::peers::Word;
use crate::portals::PutMatch;
use crate::sock::{Credits, Done, cork};
use crate::{Nid, PingInfo, PutEvent, ping};

impl Node {
    /// A message has arrived from the hop `from` by our NID `local`, by whatever LND: for us, or to be sent on. Runs handlers and
    /// wakers on this stack, unless a rule holds the message back. `transit`: what a message in transit holds, when it came by
    /// socket.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        from: Nid,
        local: Nid,
        msg: Msg,
        transit: Option<Transit>,
    ) {
        let verdict = if msg.src == msg.dest {
            None
        } else {
            self.faults.judge(&msg, Side::Receive, local)
        };
        match verdict {
            None => self.take(from, msg, transit),
            Some(Verdict::Drop | Verdict::Fail(_)) => self.stats.faults.inc(),
            Some(Verdict::Delay(held)) => {
                self.stats.faults.inc();
                self.later(held, move |me| me.take(from, msg, transit));
            }
        }
    }

    /// By which of our NIDs a message comes in from a node of this process that has the NIDs `theirs`: memlnd has no interfaces.
    pub(crate) fn facing(&self, msg: &Msg, theirs: &[Nid]) -> Nid {
        let to_us = self.nids().iter().find(|n| **n == msg.dest);
        let beside = || {
            self.nids()
                .iter()
                .find(|n| theirs.iter().any(|t| t.net() == n.net()))
        };
        to_us.or_else(beside).copied().unwrap_or(self.nid())
    }

    fn take(self: &Arc<Self>, from: Nid, msg: Msg, transit: Option<Transit>) {
        if self.is_ours(msg.dest) {
            self.deliver(from, msg);
        } else if !self.is_down() {
            self.forward(from, msg, transit);
        }
    }

    /// Whether what a message from the hop `hop` says about `src` is believed: a gateway of ours brings word of networks on which
    /// we have no NID, but on ours everybody speaks for itself alone.
    fn speaks_for(&self, hop: Nid, src: Nid) -> bool {
        let itself = || {
            let mut peers = self.peer_table();
            peers.primary(hop) == peers.primary(src)
        };
        let from_afar = || {
            !self.nids().iter().any(|n| n.net() == src.net()) && self.gateway_is_up(hop).is_some()
        };
        hop == src || from_afar() || self.mem_node(hop).is_some() || itself()
    }

    /// A push, `info`, that came from the hop `hop`.
    fn on_push(self: &Arc<Self>, hop: Nid, src: Nid, info: &Payload) {
        let fits = info.len() <= ping::MAX_LEN as usize && self.speaks_for(hop, src);
        match fits.then(|| PingInfo::decode(&info.copy_to_bytes())) {
            Some(Ok(info)) => {
                self.stats.pushes.inc();
                let word = if self.mem_node(hop).is_some() {
                    Word::Inside
                } else {
                    Word::Via(hop)
                };
                self.learn(word, src, info);
            }
            _ => self.stats.unmatched.inc(),
        }
    }

    fn deliver(self: &Arc<Self>, hop: Nid, msg: Msg) {
        if self.is_down() {
            return;
        }
        self.stats.received.inc();
        self.stats.received_bytes.add(msg.payload.len() as u64);
        match msg.kind {
            LnetMsg::Put {
                ack_wmd,
                match_bits: mbits,
                hdr_data,
                ptl_index: portal,
                offset,
            } => {
                let mlength = msg.payload.len() as u32;
                // Upper layers know a node by its primary NID; the ACK goes to the one that asked.
                let ack = (ack_wmd != WireHandle::NONE).then_some(LnetMsg::Ack {
                    dst_wmd: ack_wmd,
                    match_bits: mbits,
                    mlength,
                });
                if (portal, mbits) == (ping::PORTAL, ping::MBITS) {
                    self.on_push(hop, msg.src, &msg.payload);
                    return self.acknowledge(hop, msg.dest, msg.src, ack);
                }
                let from = if self.has_rails() {
                    self.peer_table().primary(msg.src)
                } else {
                    msg.src
                };
                let ev = PutEvent {
                    from,
                    portal,
                    mbits,
                    hdr_data,
                    offset,
                    data: msg.payload,
                    known_by: msg.known_by,
                    at: Instant::now(),
                };
                self.on_put(hop, msg.dest, msg.src, ev, ack);
            }
            LnetMsg::Get {
                return_wmd,
                match_bits,
                ptl_index,
                src_offset,
                sink_length,
            } => {
                self.on_get(
                    hop,
                    &msg,
                    return_wmd,
                    (ptl_index, match_bits),
                    src_offset,
                    sink_length,
                );
            }
            LnetMsg::Ack { dst_wmd, .. } | LnetMsg::Reply { dst_wmd } => {
                if !self.pending.complete(dst_wmd, Ok(msg.payload)) {
                    self.stats.late.inc();
                }
            }
        }
    }

    fn acknowledge(self: &Arc<Self>, hop: Nid, dest: Nid, from: Nid, ack: Option<LnetMsg>) {
        if let Some(kind) = ack {
            self.respond(hop, dest, from, kind, Payload::new(), Done::Nobody);
        }
    }

    fn on_put(
        self: &Arc<Self>,
        hop: Nid,
        dest: Nid,
        from: Nid,
        ev: PutEvent,
        ack: Option<LnetMsg>,
    ) {
        let acknowledge = || self.acknowledge(hop, dest, from, ack);
        match self.portals.match_put(ev.portal, ev.mbits) {
            PutMatch::Expected(slot) => {
                if slot.deliver(ev) {
                    acknowledge();
                } else {
                    self.stats.overrun.inc();
                }
            }
            PutMatch::Handler(h) => {
                if h.is_quick(ev.portal, ev.mbits) {
                    h.on_put(self, ev);
                } else {
                    cork::apart(|| h.on_put(self, ev));
                }
                acknowledge();
            }
            PutMatch::None => {
                tracing::debug!(node = %self.nid(), %from, portal = ev.portal, mbits = ev.mbits, "PUT without match dropped");
                self.stats.unmatched.inc();
            }
        }
    }

    fn on_get(
        self: &Arc<Self>,
        hop: Nid,
        msg: &Msg,
        reply: WireHandle,
        (portal, mbits): (u32, u64),
        offset: u32,
        len: u32,
    ) {
        let kind = LnetMsg::Reply { dst_wmd: reply };
        let part = |data: Payload| {
            let from = data.len().min(offset as usize);
            let to = data.len().min(from.saturating_add(len as usize));
            if (from, to) == (0, data.len()) {
                data
            } else {
                data.slice(from..to)
            }
        };
        if (portal, mbits) == (ping::PORTAL, ping::MBITS) {
            self.stats.pings.inc();
            let info = Payload::from(self.ping_info().encode());
            return self.respond(hop, msg.dest, msg.src, kind, part(info), Done::Nobody);
        }
        match self.portals.match_get(portal, mbits) {
            Some(slot) => {
                let data = part(slot.data.clone());
                self.respond(hop, msg.dest, msg.src, kind, data, Done::Offer(slot));
            }
            None => {
                tracing::debug!(node = %self.nid(), from = %msg.src, portal, mbits, "GET without match dropped");
                self.stats.unmatched.inc();
            }
        }
    }

    /// Answers a message of `to` from the NID it came to, and by the hop it came by, which is where Lustre looks for it.
    fn respond(
        self: &Arc<Self>,
        hop: Nid,
        me: Nid,
        to: Nid,
        kind: LnetMsg,
        payload: Payload,
        done: Done,
    ) {
        let load = Load {
            from: Some(me),
            by: Some(hop),
            bytes: payload.len(),
        };
        match self.path(load, to, &[]) {
            Ok(path) => self.launch(path, to, kind, payload, done, Credits::new()),
            Err(e) => done.finish(Err(e), to),
        }
    }
}
