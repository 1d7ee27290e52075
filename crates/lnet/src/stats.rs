//! What a node counts. Lustre's words are those of `lnetctl stats show` (`struct lnet_counters`, lnet/include/uapi/linux/lnet).

use coral_metrics::{Counter, Desc, Histogram};

/// The tables of this layer.
pub const METRICS: &[&[Desc]] = &[NodeStats::TABLE, HandoverStats::TABLE];

coral_metrics::group! {
    /// What a node has done since its start.
    pub struct NodeStats {
        /// Messages of our own given to nodes of this process, ourselves included (part of `send_count`).
        pub mem_sent: Counter = "coral_lnet_mem_send_total", Messages, Stable;
        /// Messages of our own written completely to a socket (part of `send_count`).
        pub sock_sent: Counter = "coral_lnet_sock_send_total", Messages, Stable;
        /// Messages received (`recv_count`).
        pub received: Counter = "coral_lnet_recv_total", Messages, Stable;
        /// Payload of our own messages given to an LND (`send_length`).
        pub sent_bytes: Counter = "coral_lnet_send_bytes_total", Bytes, Stable;
        /// Payload received (`recv_length`).
        pub received_bytes: Counter = "coral_lnet_recv_bytes_total", Bytes, Stable;
        /// Payload copied between buffers of ours: what a socket read together with a header; never in memory.
        pub copied_bytes: Counter = "coral_lnet_copied_bytes_total", Bytes, Experimental;
        /// Dropped: PUTs and GETs that nothing matched, pushes that make no sense, messages that claim to be ours.
        pub unmatched: Counter = "coral_lnet_drop_unmatched_total", Messages, Stable;
        /// Dropped: ACKs and REPLYs that nobody waits for any more, and REPLYs longer than what was asked for.
        pub late: Counter = "coral_lnet_drop_late_total", Messages, Stable;
        /// Dropped: PUTs with too many unread events before them, and responses of which too many were queued.
        pub overrun: Counter = "coral_lnet_drop_overrun_total", Messages, Stable;
        /// Messages lost or delayed on purpose by fault rules.
        pub faults: Counter = "coral_lnet_faults_total", Messages, Stable;
        /// Pings answered.
        pub pings: Counter = "coral_lnet_pings_total", Messages, Stable;
        /// Discovery pushes taken.
        pub pushes: Counter = "coral_lnet_pushes_total", Messages, Stable;
        /// Bursts of messages written to the socket on the stack of their sender.
        pub direct_writes: Counter = "coral_lnet_direct_writes_total", Requests, Experimental;
        /// Bursts left to the writer task because the socket was full.
        pub deferred_writes: Counter = "coral_lnet_deferred_writes_total", Requests, Experimental;
        /// Messages forwarded for others (`route_count`).
        pub routed: Counter = "coral_lnet_route_total", Messages, Stable;
        /// Payload forwarded for others (`route_length`).
        pub routed_bytes: Counter = "coral_lnet_route_bytes_total", Bytes, Stable;
        /// Dropped: messages for others to whom no way leads on.
        pub no_route: Counter = "coral_lnet_drop_no_route_total", Messages, Stable;
        /// Dropped: messages for others, because this node is no router or they should not have come here.
        pub not_routing: Counter = "coral_lnet_drop_not_routing_total", Messages, Stable;
        /// Dropped: messages for others whose next hop could not be reached or broke.
        pub route_failed: Counter = "coral_lnet_drop_route_failed_total", Messages, Stable;
        /// Times a connection was not read further for want of a router credit or buffer.
        pub route_waits: Counter = "coral_lnet_route_waits_total", Messages, Stable;
        /// Waits of messages of our own for a send credit; those that got one at once are not in it.
        pub credit_wait: Histogram = "coral_lnet_credit_wait_seconds", Seconds, Experimental;
        /// Messages sent again by another way after the LND failed (`resend_count`).
        pub resent: Counter = "coral_lnet_resend_total", Messages, Stable;
        /// ACKs and REPLYs given up because they did not come in time (`response_timeout_count`).
        pub response_timeouts: Counter = "coral_lnet_response_timeout_total", Messages, Stable;
        /// Messages of our own not sent, as no NID of ours and no route leads there (`local_no_route_count`).
        pub local_no_route: Counter = "coral_lnet_local_no_route_total", Messages, Stable;
        /// TCP connections established, by either side.
        pub conns: Counter = "coral_lnet_conns_total", Connections, Stable;
        /// Connects of peers that failed in the handshake.
        pub bad_handshakes: Counter = "coral_lnet_bad_handshakes_total", Connections, Stable;
        /// Connections that the rule of the acceptor refused (`--accept`).
        pub refused: Counter = "coral_lnet_refused_total", Connections, Stable;
        /// Connections closed because of bytes that break the protocol.
        pub bad_bytes: Counter = "coral_lnet_bad_bytes_closed_total", Connections, Stable;
    }
}

coral_metrics::group! {
    /// How often work stayed on the stack it arrived on, and how often it had to move.
    pub struct HandoverStats {
        /// Futures finished by their first poll, on the stack of whoever brought the message.
        pub inline: Counter = "coral_exec_inline_total", Futures, Experimental;
        /// Futures handed to another thread, because they waited or the stack was nested too deep.
        pub spawned: Counter = "coral_exec_handovers_total", Futures, Experimental;
        /// Of the handed over, those that were not tried on the stack because it was nested too deep.
        pub too_deep: Counter = "coral_exec_too_deep_total", Futures, Experimental;
        /// Futures that panicked in their first poll.
        pub panicked: Counter = "coral_exec_panicked_total", Futures, Experimental;
    }
}
