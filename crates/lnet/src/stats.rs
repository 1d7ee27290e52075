//! Counters of a node.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn inc(&self) {
        self.add(1);
    }
}

/// What a node has done since its start. Messages unless the name says bytes.
#[derive(Debug, Default)]
pub struct NodeStats {
    /// Messages of our own handed to memlnd (including to ourselves). What is forwarded for others is in [`Self::routed`] only.
    pub mem_sent: Counter,
    /// Messages of our own written completely to a socket.
    pub sock_sent: Counter,
    /// Messages received, by any LND.
    pub received: Counter,
    /// Payload bytes of our own messages handed to an LND.
    pub sent_bytes: Counter,
    /// Payload bytes received.
    pub received_bytes: Counter,
    /// Payload bytes copied from one buffer of ours to another: the first part of what a socket read together with a header.
    /// memlnd never adds to it.
    pub copied_bytes: Counter,
    /// PUTs and GETs that nothing matched, and pushes that are too long, make no sense or are about others, and
    /// messages that claim to be ours; dropped.
    pub unmatched: Counter,
    /// ACKs and REPLYs nobody waits for any more, and REPLYs longer than what was asked for; dropped.
    pub late: Counter,
    /// PUTs dropped because the match entry held too many unread events, and responses because too many were queued.
    pub overrun: Counter,
    /// Messages lost or delayed on purpose by [`crate::Faults`].
    pub faults: Counter,
    /// Pings answered.
    pub pings: Counter,
    /// Discovery pushes taken.
    pub pushes: Counter,
    /// Bursts of messages a sender wrote to the socket on its own stack.
    pub direct_writes: Counter,
    /// Bursts that were left to the writer task because the socket was full.
    pub deferred_writes: Counter,
    /// Messages forwarded for others (`route_count`).
    pub routed: Counter,
    /// Payload bytes of those (`route_length`).
    pub routed_bytes: Counter,
    /// Messages for others dropped because no way leads on.
    pub no_route: Counter,
    /// Messages for others dropped because this node is no router, or because their destination is one that they should not have
    /// come here for and the peer did not write them itself.
    pub not_routing: Counter,
    /// Messages for others lost because the next hop could not be reached or its connection broke.
    pub route_failed: Counter,
    /// Times a connection was not read further because its peer had no router credit, or there was no router buffer.
    pub route_waits: Counter,
    /// Messages sent again by another way after the LND failed (`resend_count`).
    pub resent: Counter,
    /// ACKs and REPLYs given up because they did not come in time (`response_timeout_count`).
    pub response_timeouts: Counter,
    /// Messages of our own that were not sent because neither a NID of ours nor a route leads to their network
    /// (`local_no_route_count`).
    pub local_no_route: Counter,
    /// TCP connections established, by either side.
    pub conns: Counter,
    /// Connection attempts of peers that failed in the handshake.
    pub bad_handshakes: Counter,
    /// Connections that the rule of the acceptor refused ([`crate::Accept`]).
    pub refused: Counter,
    /// Connections closed because of bytes that break the protocol.
    pub bad_bytes: Counter,
}
