//! A network interface of ours or of a peer: what went through it, and its health.
//!
//! As `struct lnet_ni` and `struct lnet_peer_ni` (lnet/include/lnet/lib-types.h), without credits: those are the LND peer's.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use coral_wire::lnet::LnetMsg;

use crate::Nid;

/// Health of a good interface (`LNET_MAX_HEALTH_VALUE`).
pub(crate) const MAX_HEALTH: u32 = 1000;
/// What one failure costs, and one success gives back (`lnet_health_sensitivity`).
pub(crate) const HEALTH_SENSITIVITY: u32 = 100;

/// Seconds between two questions to an interface whether it belongs where others say it does: whoever says so costs it no more.
const ASK_AGAIN_S: u64 = 30;

/// Messages by type.
#[derive(Debug, Default)]
pub(crate) struct ByType([AtomicU64; 4]);

impl ByType {
    pub(crate) fn count(&self, msg: &LnetMsg) {
        let i = match msg {
            LnetMsg::Ack { .. } => 0,
            LnetMsg::Put { .. } => 1,
            LnetMsg::Get { .. } => 2,
            LnetMsg::Reply { .. } => 3,
        };
        self.0[i].fetch_add(1, Ordering::Relaxed);
    }

    /// ACK, PUT, GET, REPLY.
    pub(crate) fn values(&self) -> [u64; 4] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

/// What went through an interface.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: ByType,
    pub(crate) received: ByType,
    pub(crate) dropped: ByType,
}

/// One interface: a NID of ours, or of a peer.
#[derive(Debug)]
pub(crate) struct Ni {
    pub(crate) nid: Nid,
    pub(crate) traffic: Traffic,
    health: AtomicU32,
    /// Of one of ours: its address is gone from this machine (`ni_fatal_error_on`).
    down: AtomicBool,
    /// Sends that chose it: the round robin.
    pub(crate) seq: AtomicU64,
    /// Failed sends by where the fault was seen.
    pub(crate) failures: Failures,
    /// Recovery pings sent since it last was healthy, and the second of the node's life of the next one.
    pub(crate) ping_count: AtomicU32,
    pub(crate) next_ping: AtomicU64,
    /// Of a peer's: that it belongs to its peer is not only somebody else's word.
    vouched: AtomicBool,
    /// The second of the node's life at which it may be asked again whether it belongs where others say it does.
    next_ask: AtomicU64,
}

/// Why sends through an interface failed (`struct lnet_health_local_stats` and `.._remote_stats`).
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// The connection broke with the message on it.
    pub(crate) dropped: AtomicU64,
    /// No progress, or no answer in time.
    pub(crate) timeouts: AtomicU64,
    /// No connection could be had.
    pub(crate) errors: AtomicU64,
}

impl Ni {
    pub(crate) fn new(nid: Nid) -> Ni {
        Ni {
            nid,
            traffic: Traffic::default(),
            health: AtomicU32::new(MAX_HEALTH),
            down: AtomicBool::new(false),
            seq: AtomicU64::new(0),
            failures: Failures::default(),
            ping_count: AtomicU32::new(0),
            next_ping: AtomicU64::new(0),
            vouched: AtomicBool::new(false),
            next_ask: AtomicU64::new(0),
        }
    }

    /// 0 to 1000.
    pub(crate) fn health(&self) -> u32 {
        self.health.load(Ordering::Relaxed)
    }

    /// A send through it failed.
    pub(crate) fn failed(&self) {
        let less = |h: u32| Some(h.saturating_sub(HEALTH_SENSITIVITY));
        let _ = self
            .health
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Something got through.
    pub(crate) fn succeeded(&self) {
        if self.health() < MAX_HEALTH {
            let more = |h: u32| Some((h + HEALTH_SENSITIVITY).min(MAX_HEALTH));
            let _ = self
                .health
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
            self.ping_count.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it has said itself where it belongs, or nobody here could ask it.
    pub(crate) fn is_vouched(&self) -> bool {
        self.vouched.load(Ordering::Relaxed)
    }

    pub(crate) fn vouch(&self, vouched: bool) {
        self.vouched.store(vouched, Ordering::Relaxed);
    }

    /// Whether it is to be asked now where it belongs; then not again for [`ASK_AGAIN_S`].
    pub(crate) fn ask_now(&self, now_s: u64) -> bool {
        let due = |at: u64| (at <= now_s).then_some(now_s + ASK_AGAIN_S);
        self.next_ask
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, due)
            .is_ok()
    }

    /// Its address is gone.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// True: that is news.
    pub(crate) fn set_down(&self, down: bool) -> bool {
        self.down.swap(down, Ordering::Relaxed) != down
    }

    /// Health as an operator sets it; clipped to 1000.
    pub(crate) fn set_health(&self, value: u32) {
        self.health.store(value.min(MAX_HEALTH), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_stays_between_its_ends() {
        let ni = Ni::new(Nid(1));
        ni.succeeded();
        assert_eq!(ni.health(), MAX_HEALTH);
        ni.failed();
        assert_eq!(ni.health(), 900);
        for _ in 0..20 {
            ni.failed();
        }
        assert_eq!(ni.health(), 0);
        ni.succeeded();
        assert_eq!(ni.health(), 100);
        ni.set_health(5000);
        assert_eq!(ni.health(), MAX_HEALTH);
    }
}
