//! What a node did in each second of the last hour: so that throughput over time is a question one can ask afterwards.
//!
//! A task looks at the node's counters once a second and keeps the differences in a ring. A second in which the task did not
//! run (a stalled machine) is missing, and what was counted meanwhile is in the next one.
//!
//! Memory: [`KEPT`] samples of [`SAMPLE_BYTES`] bytes and 16 bytes per interface of the node: for a node with two interfaces
//! less than 600 KiB. Nothing else is kept, whatever the node does.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use crate::{Node, NodeStats};

/// Seconds that are kept.
pub const KEPT: usize = 3600;
/// Size of a sample without its interfaces.
pub const SAMPLE_BYTES: usize = std::mem::size_of::<Sample>();
const _: () = assert!(SAMPLE_BYTES <= 128);

/// Numbers of one second, or sums since the start. Messages unless the name says bytes; bytes are payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Sent of our own, by any LND.
    pub sent: u64,
    /// Payload of those.
    pub sent_bytes: u64,
    /// Received, by any LND.
    pub received: u64,
    /// Payload received.
    pub received_bytes: u64,
    /// Forwarded for others.
    pub routed: u64,
    /// Payload forwarded for others.
    pub routed_bytes: u64,
    /// Lost: nothing matched, nobody waited any more, or too much was queued.
    pub dropped: u64,
    /// Lost on their way through this router: no way on, or the next hop failed.
    pub route_dropped: u64,
    /// Struck by fault rules.
    pub faults: u64,
}

impl Counts {
    fn of(s: &NodeStats) -> Counts {
        Counts {
            sent: s.mem_sent.value() + s.sock_sent.value(),
            sent_bytes: s.sent_bytes.value(),
            received: s.received.value(),
            received_bytes: s.received_bytes.value(),
            routed: s.routed.value(),
            routed_bytes: s.routed_bytes.value(),
            dropped: s.unmatched.value() + s.late.value() + s.overrun.value(),
            route_dropped: s.no_route.value() + s.not_routing.value() + s.route_failed.value(),
            faults: s.faults.value(),
        }
    }

    fn since(self, old: Counts) -> Counts {
        Counts {
            sent: self.sent - old.sent,
            sent_bytes: self.sent_bytes - old.sent_bytes,
            received: self.received - old.received,
            received_bytes: self.received_bytes - old.received_bytes,
            routed: self.routed - old.routed,
            routed_bytes: self.routed_bytes - old.routed_bytes,
            dropped: self.dropped - old.dropped,
            route_dropped: self.route_dropped - old.route_dropped,
            faults: self.faults - old.faults,
        }
    }
}

/// What happened in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Its end, seconds since 1970.
    pub at: i64,
    /// Of the whole node.
    #[serde(flatten)]
    pub counts: Counts,
    /// Messages sent and received of each interface, in the order of [`Node::nets`].
    pub nis: Vec<(u64, u64)>,
}

struct HistoryState {
    last: Counts,
    last_nis: Vec<(u64, u64)>,
    ring: VecDeque<Sample>,
}

/// The last hour of a node.
pub struct History {
    st: Mutex<HistoryState>,
}

impl History {
    /// Begins to follow a node; ends with it.
    pub fn follow(node: &Arc<Node>) -> Arc<History> {
        let st = HistoryState {
            last: Counts::of(node.stats()),
            last_nis: nis(node),
            ring: VecDeque::new(),
        };
        let me = Arc::new(History { st: Mutex::new(st) });
        tokio::spawn(look(Arc::downgrade(&me), Arc::downgrade(node)));
        me
    }

    /// The samples of the last so many seconds, oldest first.
    pub fn last(&self, seconds: usize) -> Vec<Sample> {
        let st = self.st.lock();
        st.ring
            .iter()
            .skip(st.ring.len().saturating_sub(seconds))
            .cloned()
            .collect()
    }

    fn take(&self, at: i64, now: Counts, now_nis: Vec<(u64, u64)>) {
        let mut st = self.st.lock();
        let zero = (0, 0);
        let nis = now_nis.iter().enumerate().map(|(i, n)| {
            let old = st.last_nis.get(i).unwrap_or(&zero);
            (n.0.saturating_sub(old.0), n.1.saturating_sub(old.1))
        });
        let sample = Sample {
            at,
            counts: now.since(st.last),
            nis: nis.collect(),
        };
        if st.ring.len() == KEPT {
            st.ring.pop_front();
        }
        st.ring.push_back(sample);
        st.last = now;
        st.last_nis = now_nis;
    }
}

/// Messages sent and received of each interface since the start.
fn nis(node: &Node) -> Vec<(u64, u64)> {
    node.nets()
        .iter()
        .flat_map(|n| &n.nis)
        .map(|n| (n.traffic.sent.total(), n.traffic.received.total()))
        .collect()
}

async fn look(history: Weak<History>, node: Weak<Node>) {
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    clock.tick().await;
    loop {
        clock.tick().await;
        let (Some(history), Some(node)) = (history.upgrade(), node.upgrade()) else {
            return;
        };
        history.take(node.wall_time().0, Counts::of(node.stats()), nis(&node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_as_differences() {
        let st = HistoryState {
            last: Counts::default(),
            last_nis: Vec::new(),
            ring: VecDeque::new(),
        };
        let h = History { st: Mutex::new(st) };
        for i in 1..=KEPT as u64 + 10 {
            h.take(
                i as i64,
                Counts {
                    sent: i * i,
                    ..Counts::default()
                },
                vec![(i, 2 * i)],
            );
        }
        let all = h.last(usize::MAX);
        assert_eq!(all.len(), KEPT);
        assert_eq!(
            (all[0].at, all[0].counts.sent, all[0].nis[0]),
            (11, 21, (1, 2))
        );
        assert_eq!(
            h.last(2).iter().map(|s| s.at).collect::<Vec<_>>(),
            [3609, 3610]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_followed_second_by_second() {
        let cfg = crate::NodeConfig {
            nids: vec!["1@lo".parse().unwrap()],
            ..Default::default()
        };
        let node = Node::start(cfg, None).await.unwrap();
        let h = History::follow(&node);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        node.ping(node.nid()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let counts: Vec<(u64, u64)> = h
            .last(10)
            .iter()
            .map(|s| (s.counts.sent, s.counts.received))
            .collect();
        assert_eq!(
            counts,
            [(0, 0), (2, 2), (0, 0)],
            "a GET and its REPLY, in the second it happened"
        );
    }
}
