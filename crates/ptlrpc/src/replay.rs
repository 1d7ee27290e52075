//! Requests kept for replay, by transno (`lustre/ptlrpc/client.c`, `ptlrpc_retain_replayable_request`).
//!
//! A request is kept until the server's `last_committed` reaches its transno; an open until it was closed and everything the
//! server had done by then is committed. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use coral_wire::ptlrpc::PtlrpcBody;

use crate::Request;

/// A kept request.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) request: Request,
    /// The body as it was sent; its xid, tag and match bits are used again.
    pub(crate) body: PtlrpcBody,
    pub(crate) xid: u64,
    pub(crate) transno: u64,
    pub(crate) pre_versions: [u64; 4],
    /// An open that has not been closed.
    open: bool,
    /// A closed open goes when this is committed.
    until: u64,
}

/// The kept requests of an import.
#[derive(Debug, Default)]
pub(crate) struct ReplayList {
    kept: BTreeMap<u64, Kept>,
    last_committed: u64,
    /// Highest transno seen in any reply.
    last_seen: u64,
}

impl ReplayList {
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn last_committed(&self) -> u64 {
        self.last_committed
    }

    /// Keeps a request that got `transno`.
    pub(crate) fn keep(&mut self, request: Request, body: PtlrpcBody, xid: u64, transno: u64, pre_versions: [u64; 4], open: bool) {
        self.last_seen = self.last_seen.max(transno);
        if open || transno > self.last_committed {
            self.kept.insert(transno, Kept { request, body, xid, transno, pre_versions, open, until: transno });
        }
    }

    /// Takes note of a transno that needs no replay.
    pub(crate) fn seen(&mut self, transno: u64) {
        self.last_seen = self.last_seen.max(transno);
    }

    /// The server said that everything up to `transno` is committed.
    pub(crate) fn committed(&mut self, transno: u64) {
        if transno > self.last_committed {
            self.last_committed = transno;
            // Once per sync of the server, not per request.
            self.kept.retain(|_, k| k.open || k.until > transno);
        }
    }

    /// The open with `transno` is closed.
    pub(crate) fn close(&mut self, transno: u64) {
        let until = self.last_seen;
        if let Some(k) = self.kept.get_mut(&transno) {
            k.open = false;
            k.until = until;
            if until <= self.last_committed {
                self.kept.remove(&transno);
            }
        }
    }

    pub(crate) fn amend(&mut self, transno: u64, bufs: Vec<Bytes>) {
        if let Some(k) = self.kept.get_mut(&transno) {
            k.request.bufs = bufs;
        }
    }

    /// What to replay, in transno order, to a server that has committed up to `committed`.
    /// A closed open is replayed as long as its close may have to be: the close needs its handle.
    pub(crate) fn replay_from(&mut self, committed: u64) -> Vec<Kept> {
        self.committed(committed);
        self.kept.values().cloned().collect()
    }

    pub(crate) fn clear(&mut self) {
        *self = ReplayList::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(l: &mut ReplayList, transno: u64, open: bool) {
        l.keep(Request::new(12, 36), PtlrpcBody::default(), transno * 128, transno, [0; 4], open);
    }

    fn transnos(l: &mut ReplayList) -> Vec<u64> {
        l.replay_from(0).iter().map(|k| k.transno).collect()
    }

    #[test]
    fn committed_requests_go_opens_stay() {
        let mut l = ReplayList::default();
        add(&mut l, 3, false);
        add(&mut l, 1, true);
        add(&mut l, 2, false);
        assert_eq!(transnos(&mut l), [1, 2, 3]);
        l.committed(2);
        assert_eq!(transnos(&mut l), [1, 3]);
        l.committed(1);
        assert_eq!(l.last_committed(), 2, "never backwards");
        l.committed(9);
        assert_eq!(transnos(&mut l), [1]);
    }

    #[test]
    fn a_closed_open_goes_when_its_close_is_committed() {
        let mut l = ReplayList::default();
        add(&mut l, 1, true);
        add(&mut l, 2, false);
        l.committed(1);
        l.close(1);
        assert_eq!(transnos(&mut l), [1, 2], "the close has transno 2");
        l.committed(2);
        assert_eq!(transnos(&mut l), Vec::<u64>::new());
        l.close(1);
    }

    #[test]
    fn amended_buffers_are_replayed() {
        let mut l = ReplayList::default();
        add(&mut l, 5, true);
        l.amend(5, vec![Bytes::from_static(b"x")]);
        l.amend(6, vec![]);
        assert_eq!(l.replay_from(0)[0].request.bufs, [Bytes::from_static(b"x")]);
    }
}
