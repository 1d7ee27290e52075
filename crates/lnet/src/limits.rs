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
    /// Accepted TCP connections that have not finished their handshake; more wait in the backlog.
    pub half_open: usize,
    /// Connections of one type from one peer (a kernel peer opens `conns_per_peer` of each bulk type); more are refused.
    pub conns_per_type: usize,
    /// A peer we sent nothing for so long gets a keepalive. Lustre: keepalive_idle 30 s.
    pub keepalive_idle: Duration,
    /// Pause after a failed connect; doubles up to [`Self::max_reconnect`]. Sends fail at once meanwhile.
    /// Lustre: min_reconnectms 1 s; less here, because the layer above waits for no connection but asks again.
    pub min_reconnect: Duration,
    /// Longest such pause. Lustre: max_reconnectms 60 s.
    pub max_reconnect: Duration,
    /// How often a lost connection race is tried again before it counts as a failure. Lustre: 5.
    pub race_retries: u32,
    /// Unused receive buffers of 1 MiB a node keeps.
    pub free_buffers: usize,
    /// Peers whose discovery data is kept.
    pub known_peers: usize,
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
            conns_per_type: 16,
            keepalive_idle: Duration::from_secs(30),
            min_reconnect: Duration::from_millis(100),
            max_reconnect: Duration::from_secs(2),
            race_retries: 20,
            free_buffers: 16,
            known_peers: 1024,
        }
    }
}
