//! Forwarding: a message for somebody else goes on to its next hop, whole and with its header unchanged
//! (`lnet_parse_forward_locked`, `lnet_post_routed_recv_locked`, lnet/lnet/lib-move.c).
//!
//! Invariants: a message in transit holds a buffer and a router credit until it is written to the next hop; what cannot go on is
//! dropped and counted by reason, never sent back.

use std::sync::Arc;

use coral_stopwatch::{Kind, Passing};
use coral_wire::lnet::{LNET_HDR_SIZE, LnetHdr, LnetMsg};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::msg::Msg;
use crate::path::Route;
use crate::sock::{Credits, Done, Peer, Tx};
use crate::{Nid, Node, SendError};

/// What is to be done with a message that is not for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on.
    Forward,
    /// It is read and dropped: we are no router.
    Drop,
    /// The sender breaks the protocol: it is on the destination's network itself, or took the wrong one of our NIDs.
    Refuse,
}

/// Judges a message for `dest` that came in by our NID `local` (`lnet_parse`).
pub(crate) fn judge(local: Nid, dest: Nid, ours: &[Nid], routing: bool) -> Verdict {
    if dest.net() == local.net() || dest.is_lo() || ours.contains(&dest) {
        Verdict::Refuse
    } else if routing {
        Verdict::Forward
    } else {
        Verdict::Drop
    }
}

/// A message in transit whose header has arrived.
pub(crate) struct Transit {
    pub(crate) raw: [u8; LNET_HDR_SIZE],
    pub(crate) credits: Credits,
    /// When its header was here, and when it had its credits.
    pub(crate) stamps: (Instant, Instant),
    /// It goes on when it is complete; else it is dropped.
    pub(crate) forward: bool,
    /// Share of the address it came from in the connects for others.
    pub(crate) origin: Arc<Semaphore>,
}

/// What the stopwatch is to be told of a message that is here whole.
fn passing(msg: &Msg, transit: Option<&Transit>) -> Passing {
    let whole = Instant::now();
    let (arrived, admitted) = transit.map_or((whole, whole), |t| t.stamps);
    let (kind, portal, mbits) = match msg.kind {
        LnetMsg::Put {
            ptl_index,
            match_bits,
            ..
        } => (Kind::Put, ptl_index, match_bits),
        LnetMsg::Get {
            ptl_index,
            match_bits,
            ..
        } => (Kind::Get, ptl_index, match_bits),
        LnetMsg::Ack { .. } | LnetMsg::Reply { .. } => (Kind::Answer, 0, 0),
    };
    Passing {
        from: msg.src.0,
        to: msg.dest.0,
        kind,
        portal,
        mbits,
        bytes: msg.payload.len() as u64,
        arrived,
        admitted,
        whole,
    }
}

impl Node {
    /// Waits for what a message that came from `from` needs to pass: a router credit of the peer and a buffer.
    pub(crate) async fn admit_transit(
        &self,
        from: &Peer,
        hdr: &LnetHdr,
    ) -> Result<Credits, SendError> {
        let credit = from.router_credit().await?;
        let buffer = self
            .router()
            .buffer(hdr.payload_length as usize)
            .await
            .ok_or(SendError::Shutdown)?;
        Ok(Credits::from_iter([credit, buffer]))
    }

    /// Sends on a message that arrived whole from the hop `from`, unless we are no router. `transit`: what it holds; None when it
    /// came by memlnd, where nothing is buffered.
    pub(crate) fn forward(self: &Arc<Self>, from: Nid, msg: Msg, transit: Option<Transit>) {
        let stats = self.stats();
        if !transit.as_ref().map_or(self.is_routing(), |t| t.forward) {
            return stats.not_routing.inc();
        }
        let path = match self.path_on(msg.dest, from, msg.payload.len()) {
            // Back to where it came from: a loop.
            Ok(path) if path.route.hop() == from => None,
            Ok(path) => Some(path),
            Err(_) => None,
        };
        let Some(path) = path else {
            tracing::debug!(node = %self.nid(), %from, src = %msg.src, dest = %msg.dest, "no route: message dropped");
            return stats.no_route.inc();
        };
        let done = Done::Forwarded(
            self.stats_arc(),
            Box::new((self.stopwatch().clone(), passing(&msg, transit.as_ref()))),
        );
        stats.routed.inc();
        stats.routed_bytes.add(msg.payload.len() as u64);
        match (path.route, transit) {
            (Route::Sock(peer), Some(t)) => {
                peer.count_sent(&msg.kind);
                peer.send(Tx::raw(&t.raw, msg.payload, done, t.credits, t.origin));
            }
            (route, t) => self.launch_now(
                route,
                msg,
                done,
                t.map(|t| t.credits).unwrap_or_default(),
                None,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_for_us() {
        let nid = |s: &str| s.parse::<Nid>().unwrap();
        let (tcp, tcp1) = (nid("10.0.0.4@tcp"), nid("10.1.0.4@tcp1"));
        let table = [
            ("10.1.0.9@tcp1", true, Verdict::Forward),
            ("10.1.0.9@tcp1", false, Verdict::Drop),
            ("10.9.0.9@tcp9", true, Verdict::Forward),
            ("10.0.0.9@tcp", true, Verdict::Refuse),
            ("10.0.0.9@tcp", false, Verdict::Refuse),
            ("10.1.0.4@tcp1", true, Verdict::Refuse),
            ("10.1.0.4@tcp1", false, Verdict::Refuse),
            ("0@lo", true, Verdict::Refuse),
        ];
        for (dest, routing, verdict) in table {
            assert_eq!(
                judge(tcp, nid(dest), &[tcp, tcp1], routing),
                verdict,
                "{dest}, routing {routing}"
            );
        }
    }
}
