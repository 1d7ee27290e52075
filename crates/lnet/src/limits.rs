//! Every bound of a node in one place.

use std::time::Duration;

/// Bounds and timers, with Lustre's defaults where it has one.
#[derive(Clone, Debug)]
pub struct Limits {
    /// PUTs and GETs handed to the LND and not yet written, per peer; more wait. Lustre: peer_credits 8.
    pub peer_credits: usize,
    /// The same over all peers. Lustre: credits 256.
    pub ni_credits: usize,
    /// ACKs and REPLYs queued for one peer (they hold no credits); more are dropped, as if the network had lost them.
    pub responses_per_peer: usize,
    /// A connection with something to send, or a message half received, that moves no byte for so long is closed.
    /// Lustre: sock_timeout 50 s.
    pub sock_timeout: Duration,
    /// Longest wait for a TCP connect, and for the whole handshake on either side. Lustre: accept_timeout 5 s.
    pub handshake_timeout: Duration,
    /// Accepted TCP connections that have not finished their handshake; for one more the oldest of the address with most
    /// gives way.
    pub half_open: usize,
    /// Of those, from one address; for one more its oldest gives way.
    pub half_open_per_address: usize,
    /// Connections accepted from one address; for one more the one that has carried no message for longest gives way.
    pub conns_per_address: usize,
    /// A connection that has carried a message since does not; if none is left, the new one is closed at once. Clients say something
    /// every 25 s.
    pub gives_way_after: Duration,
    /// Connections of one type from one peer (a kernel peer opens `conns_per_peer` of each bulk type); more are refused.
    pub conns_per_type: usize,
    /// A peer we sent nothing for so long gets a keepalive. Lustre: keepalive_idle 30 s.
    pub keepalive_idle: Duration,
    /// TCP peers whose state is kept, connected or not; more are refused. One without connections is forgotten within seconds.
    pub peers: usize,
    /// Connects that run at once to peers that we send messages of our own to, gateways among them; more wait, for at most
    /// [`Self::handshake_timeout`].
    pub connectors: usize,
    /// Connects that run at once for others: for messages in transit, and for answers to who has no connection with us. More
    /// messages in transit wait, for at most [`Self::handshake_timeout`]. Answers may have half of them: further ones are
    /// dropped, as if the network had lost them.
    pub connectors_for_others: usize,
    /// Of those, connects for messages in transit that came from one address; further ones of its wait likewise.
    pub connectors_per_address: usize,
    /// Pause after a failed connect; doubles up to [`Self::max_reconnect`]. Sends to a peer that we never reached fail at once
    /// meanwhile; to one that we had opened connections to they wait for the next try and fail with it (ten tries, then at once).
    /// Lustre: min_reconnectms 1 s; less here, because the layer above waits for no connection but asks again.
    pub min_reconnect: Duration,
    /// Longest such pause. Lustre: max_reconnectms 60 s.
    pub max_reconnect: Duration,
    /// How often a lost connection race is tried again before it counts as a failure. Lustre: 5.
    pub race_retries: u32,
    /// Unused receive buffers of 1 MiB a node keeps.
    pub free_buffers: usize,
    /// NIDs of peers that are kept in the peer table. When it is full, those go that nobody is connected with: first those that
    /// never told about themselves, the longest unused first. What the operator gave stays.
    pub known_peers: usize,
    /// Router buffers one peer may hold; 0: as many as [`Self::peer_credits`]. Lustre: peer_buffer_credits 0.
    pub peer_buffer_credits: usize,
    /// Between two pings of a router we use. Lustre: alive_router_check_interval 60 s.
    pub router_check: Duration,
    /// Longest wait for the answer. Lustre: router_ping_timeout 50 s.
    pub router_ping: Duration,
    /// An ACK or REPLY that has not come after so long is given up. Lustre: lnet_transaction_timeout 150 s.
    pub transaction: Duration,
    /// Times a message is sent again by another way when the LND fails. Lustre: lnet_retry_count 2.
    pub retries: u32,
    /// First pause between recovery pings of an interface that failed; doubles up to [`Self::max_recovery`].
    /// Lustre: lnet_recovery_interval 1 s.
    pub recovery: Duration,
    /// Longest such pause. Lustre: lnet_max_recovery_ping_interval 900 s.
    pub max_recovery: Duration,
    /// Ask peers which NIDs they have. Lustre: lnet_peer_discovery_disabled 0.
    pub discovery: bool,
}

impl Limits {
    /// Router buffers one peer may hold.
    pub fn router_credits(&self) -> usize {
        if self.peer_buffer_credits == 0 {
            self.peer_credits
        } else {
            self.peer_buffer_credits
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            peer_credits: 8,
            ni_credits: 256,
            responses_per_peer: 4096,
            sock_timeout: Duration::from_secs(50),
            handshake_timeout: Duration::from_secs(5),
            half_open: 64,
            half_open_per_address: 16,
            conns_per_address: 256,
            gives_way_after: Duration::from_secs(60),
            conns_per_type: 16,
            keepalive_idle: Duration::from_secs(30),
            peers: 65536,
            connectors: 256,
            connectors_for_others: 128,
            connectors_per_address: 16,
            min_reconnect: Duration::from_millis(100),
            max_reconnect: Duration::from_secs(2),
            race_retries: 20,
            free_buffers: 16,
            known_peers: 4096,
            peer_buffer_credits: 0,
            router_check: Duration::from_secs(60),
            router_ping: Duration::from_secs(50),
            transaction: Duration::from_secs(150),
            retries: 2,
            recovery: Duration::from_secs(1),
            max_recovery: Duration::from_secs(900),
            discovery: true,
        }
    }
}
