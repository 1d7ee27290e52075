//! A message on its way out, and a burst of them being written.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use coral_buffers::Payload;
use coral_stopwatch::{Passing, Stopwatch};
use coral_wire::lnet::{LNET_HDR_SIZE, LnetHdr, LnetMsg, WireHandle};
use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Peer;
use super::frame::{HEAD_LEN, KSM_LEN, encode_lnet, encode_noop};
use crate::msg::Msg;
use crate::path::{Load, Tried};
use crate::pending::Pending;
use crate::portals::GetSlot;
use crate::{KnownBy, Nid, Node, NodeStats, SendError};

/// Segments given to one system call.
const MAX_IOV: usize = 64;

/// Whom to tell what became of a message.
pub(crate) enum Done {
    /// Nobody.
    Nobody,
    /// A sender that waits until the LND has taken it.
    Sent(oneshot::Sender<Result<(), SendError>>),
    /// A sender that waits for the answer: told only of failures.
    Answer(Arc<Pending>, WireHandle),
    /// The owner of the bulk source this is the REPLY from.
    Offer(Arc<GetSlot>),
    /// Nobody here: it is forwarded for others. A failure is counted.
    Forwarded(Arc<NodeStats>, Box<(Arc<Stopwatch>, Passing)>),
}

impl Done {
    /// Not a message of ours: it counts as routed, not as sent (`lnet_msg_decommit_tx`).
    pub(crate) fn is_forwarded(&self) -> bool {
        matches!(self, Done::Forwarded(..))
    }

    /// `hop`: whom it was given to, or was to be.
    pub(crate) fn finish(self, result: Result<(), SendError>, hop: Nid) {
        match self {
            Done::Nobody => {}
            Done::Sent(tx) => {
                let _ = tx.send(result);
            }
            Done::Answer(pending, wmd) => match result {
                Ok(()) => pending.sent(wmd, hop),
                Err(e) => drop(pending.complete(wmd, Err(e))),
            },
            Done::Offer(slot) => slot.finish(result),
            Done::Forwarded(stats, passing) => match result {
                Ok(()) => passing.0.passed(passing.1),
                Err(_) => stats.route_failed.inc(),
            },
        }
    }
}

/// Credits a message holds until it is written.
pub(crate) type Credits = SmallVec<[OwnedSemaphorePermit; 2]>;

/// What is needed to send a message by another way when one fails (`lnet_attempt_msg_resend`, lnet/lnet/lib-msg.c).
pub(crate) struct Again {
    pub(crate) node: Arc<Node>,
    /// The peer, by whatever NID.
    pub(crate) to: Nid,
    /// Next hops that failed.
    pub(crate) tried: Tried,
    /// Times it may still be tried.
    pub(crate) left: u32,
}

struct Retry {
    again: Again,
    src: Nid,
    kind: LnetMsg,
    response: bool,
}

enum Head {
    Noop([u8; KSM_LEN]),
    Lnet([u8; HEAD_LEN]),
}

/// A message on its way out.
pub(crate) struct Tx {
    head: Head,
    payload: Payload,
    done: Done,
    _credits: Credits,
    /// It answers a message of the peer and holds no credit.
    pub(crate) response: bool,
    /// Of one in transit: what a connect for its sake takes a share of.
    pub(crate) origin: Option<Arc<Semaphore>>,
    /// Only where there is another way.
    retry: Option<Box<Retry>>,
}

impl Tx {
    pub(crate) fn new(msg: Msg, done: Done, credits: Credits) -> Tx {
        let head = Head::Lnet(encode_lnet(&msg.hdr().encode()));
        Tx {
            head,
            response: msg.is_response(),
            payload: msg.payload,
            done,
            _credits: credits,
            origin: None,
            retry: None,
        }
    }

    /// A message in transit: its header goes on as it came.
    pub(crate) fn raw(
        header: &[u8; LNET_HDR_SIZE],
        payload: Payload,
        done: Done,
        credits: Credits,
        origin: Arc<Semaphore>,
    ) -> Tx {
        debug_assert!(
            LnetHdr::decode(header).is_ok_and(|h| h.payload_length as usize == payload.len()),
            "a message in transit goes on with the payload that its header announces"
        );
        Tx {
            head: Head::Lnet(encode_lnet(header)),
            response: false,
            payload,
            done,
            _credits: credits,
            origin: Some(origin),
            retry: None,
        }
    }

    /// It may be tried by another way when this one fails.
    pub(crate) fn may_try(&mut self, again: Again) {
        if let Head::Lnet(b) = &self.head
            && let Ok(hdr) = LnetHdr::decode(&b[KSM_LEN..])
        {
            self.retry = Some(Box::new(Retry {
                again,
                src: hdr.src_nid,
                kind: hdr.msg,
                response: self.response,
            }));
        }
    }

    pub(crate) fn noop(cookies: [u64; 2]) -> Tx {
        let head = Head::Noop(encode_noop(cookies));
        Tx {
            head,
            payload: Payload::new(),
            done: Done::Nobody,
            _credits: Credits::new(),
            response: false,
            origin: None,
            retry: None,
        }
    }

    fn head(&self) -> &[u8] {
        match &self.head {
            Head::Noop(b) => b,
            Head::Lnet(b) => b,
        }
    }

    pub(crate) fn is_noop(&self) -> bool {
        matches!(self.head, Head::Noop(_))
    }

    /// Bytes on the wire.
    pub(crate) fn len(&self) -> usize {
        self.head().len() + self.payload.len()
    }

    /// It begins something of ours: neither an answer nor in transit.
    pub(crate) fn begins(&self) -> bool {
        self.is_ours() && !self.response
    }

    /// Whether it counts as sent by us.
    pub(crate) fn is_ours(&self) -> bool {
        !self.is_noop() && !self.done.is_forwarded()
    }

    pub(crate) fn payload_len(&self) -> usize {
        self.payload.len()
    }

    /// It is not sent because its receiver asks for too much. That is nobody else's fault, and tried no other way.
    pub(crate) fn abandon(self, peer: &Peer) {
        self.done.finish(Err(SendError::Timeout), peer.nid);
    }

    /// The LND is done with it: it was written to `peer`, or could not be. Tries another way when there is one.
    pub(crate) fn finish(self, result: Result<(), SendError>, peer: &Peer) {
        if self.is_noop() {
            return;
        }
        let Err(err) = &result else {
            return self.done.finish(result, peer.nid);
        };
        peer.failed(err);
        let Some(retry) = self
            .retry
            .filter(|r| r.again.left > 0 && !matches!(err, SendError::Shutdown))
        else {
            return self.done.finish(result, peer.nid);
        };
        let Retry {
            mut again,
            src,
            kind,
            response,
        } = *retry;
        again.tried.push(peer.nid);
        again.left -= 1;
        let node = again.node.clone();
        let load = Load {
            from: response.then_some(src),
            by: None,
            bytes: self.payload.len(),
        };
        match node.path(load, again.to, &again.tried) {
            Ok(path) => {
                node.stats().resent.inc();
                let msg = Msg {
                    dest: path.dest,
                    src: path.src,
                    kind,
                    payload: self.payload,
                    known_by: KnownBy::Process,
                };
                node.launch_now(path.route, msg, self.done, Credits::new(), Some(again));
            }
            Err(_) => self.done.finish(result, peer.nid),
        }
    }
}

/// Messages being written: the front one may be written in part.
#[derive(Default)]
pub(crate) struct Burst {
    txs: VecDeque<Tx>,
    /// Bytes of the front message that are out.
    written: usize,
}

impl Burst {
    pub(crate) fn is_empty(&self) -> bool {
        self.txs.is_empty()
    }

    pub(crate) fn push(&mut self, tx: Tx) {
        self.txs.push_back(tx);
    }

    /// What is left to write, as far as one system call takes it.
    pub(crate) fn slices(&self) -> SmallVec<[IoSlice<'_>; MAX_IOV]> {
        let mut out = SmallVec::new();
        let mut skip = self.written;
        for tx in &self.txs {
            for seg in std::iter::once(tx.head()).chain(tx.payload.iter().map(|b| &b[..])) {
                if skip >= seg.len() {
                    skip -= seg.len();
                    continue;
                }
                if out.len() == MAX_IOV {
                    return out;
                }
                out.push(IoSlice::new(&seg[skip..]));
                skip = 0;
            }
        }
        out
    }

    /// `n` bytes went out. [`Self::pop_done`] gives the messages that are complete by it.
    pub(crate) fn advance(&mut self, n: usize) {
        self.written += n;
    }

    /// The next message that is out completely.
    pub(crate) fn pop_done(&mut self) -> Option<Tx> {
        let len = self.txs.front()?.len();
        if self.written < len {
            return None;
        }
        self.written -= len;
        self.txs.pop_front()
    }

    /// Messages in it.
    pub(crate) fn count(&self) -> usize {
        self.txs.len()
    }

    /// The connection with `peer` broke.
    pub(crate) fn fail(self, peer: &Peer, err: impl Fn() -> SendError) {
        for tx in self.txs {
            tx.finish(Err(err()), peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn tx(segs: &[usize]) -> Tx {
        let payload = segs
            .iter()
            .map(|n| Bytes::from(vec![*n as u8; *n]))
            .collect();
        let kind = LnetMsg::Put {
            ack_wmd: WireHandle::NONE,
            match_bits: 0,
            hdr_data: 0,
            ptl_index: 1,
            offset: 0,
        };
        Tx::new(
            Msg {
                dest: Nid(1),
                src: Nid(2),
                kind,
                payload,
                known_by: KnownBy::Process,
            },
            Done::Nobody,
            Credits::new(),
        )
    }

    fn flat(b: &Burst) -> Vec<u8> {
        b.slices().iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn any_split_of_the_writes_sends_the_same_bytes() {
        let make = || {
            let mut b = Burst::default();
            for t in [tx(&[]), tx(&[5, 300]), Tx::noop([0, 9]), tx(&[1, 1, 1])] {
                b.push(t);
            }
            b
        };
        let all = flat(&make());
        assert_eq!(all.len(), 3 * HEAD_LEN + KSM_LEN + 308);
        for step in 1..all.len() {
            let mut b = make();
            let (mut sent, mut done) = (Vec::new(), 0);
            while !b.is_empty() {
                let mut next = flat(&b);
                next.truncate(step);
                b.advance(next.len());
                done += std::iter::from_fn(|| b.pop_done()).count();
                sent.extend(next);
            }
            assert!(sent == all, "step {step}");
            assert_eq!(done, 4);
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let mut b = Burst::default();
        b.push(tx(&[3; 100]));
        assert_eq!(b.slices().len(), MAX_IOV);
        let first: usize = b.slices().iter().map(|s| s.len()).sum();
        b.advance(first);
        assert!(b.pop_done().is_none());
        assert_eq!(b.slices().len(), 101 - MAX_IOV);
    }
}
