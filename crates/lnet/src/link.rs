//! A modelled link of memlnd, one way: bandwidth, delay, jitter, loss, cut.
//!
//! A message leaves when those before it have left (bandwidth), arrives a delay later, and never before one that was sent
//! earlier, as on one TCP connection. One task per link carries what is under way.
//!
//! # Invariants
//! - Time is tokio's clock and chance is the link's seeded generator: under a paused clock a link is a discrete-event model.
//! - What is under way is bounded by [`MAX_QUEUED`]; more is lost, as in a full switch.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use crate::msg::Msg;
use crate::{Nid, Node};

/// Messages under way on one link, one way.
pub const MAX_QUEUED: usize = 4096;
/// Bytes of an LNet message beside its payload.
const HEADER_BYTES: u64 = 72 + 24;

/// How a link behaves. The default is ideal: no time, no loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkModel {
    /// Bytes per second, headers included; None: without limit.
    pub bandwidth: Option<u64>,
    /// Time from leaving to arriving.
    pub delay: Duration,
    /// At most so much more, evenly distributed.
    pub jitter: Duration,
    /// Share of messages that are lost, 0.0 to 1.0.
    pub loss: f64,
    /// Nothing passes; the sender is not told.
    pub cut: bool,
}

/// What a link has done since it was made, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStat {
    /// Given to it.
    pub sent: u64,
    /// Handed to the receiver.
    pub delivered: u64,
    /// Lost by chance, by a cut, by a reset, or because too many were under way.
    pub lost: u64,
}

/// From which NID to which node, and by which of its NIDs it comes in.
type Way = (Nid, Weak<Node>, Nid);

struct LinkState {
    model: LinkModel,
    rng: ChaCha8Rng,
    /// When the last message has left.
    free_at: Option<Instant>,
    last_arrival: Option<Instant>,
    queue: VecDeque<(Instant, Way, Msg)>,
    running: bool,
    stat: LinkStat,
}

/// One way of a pair of nodes.
pub(crate) struct Link {
    st: Mutex<LinkState>,
}

impl LinkState {
    /// When a message of so many bytes arrives that is sent now; None: never.
    fn arrival(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let m = self.model;
        if m.cut
            || (m.loss > 0.0 && self.rng.random::<f64>() < m.loss)
            || self.queue.len() >= MAX_QUEUED
        {
            return None;
        }
        let start = self.free_at.map_or(now, |f| f.max(now));
        let left = start
            + m.bandwidth.map_or(Duration::ZERO, |bw| {
                Duration::from_secs_f64(bytes as f64 / bw.max(1) as f64)
            });
        self.free_at = Some(left);
        let jitter = if m.jitter.is_zero() {
            Duration::ZERO
        } else {
            m.jitter.mul_f64(self.rng.random::<f64>())
        };
        let arrival = (left + m.delay + jitter).max(self.last_arrival.unwrap_or(now));
        self.last_arrival = Some(arrival);
        Some(arrival)
    }

    fn lose_all(&mut self) {
        self.stat.lost += self.queue.len() as u64;
        self.queue.clear();
        (self.free_at, self.last_arrival) = (None, None);
    }
}

impl Link {
    pub(crate) fn new(model: LinkModel, seed: u64) -> Link {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let st = LinkState {
            model,
            rng,
            free_at: None,
            last_arrival: None,
            queue: VecDeque::new(),
            running: false,
            stat: LinkStat::default(),
        };
        Link { st: Mutex::new(st) }
    }

    pub(crate) fn model(&self) -> LinkModel {
        self.st.lock().model
    }

    pub(crate) fn stat(&self) -> LinkStat {
        self.st.lock().stat
    }

    /// A new model; a cut loses what is under way.
    pub(crate) fn set(&self, model: LinkModel) {
        let mut st = self.st.lock();
        st.model = model;
        if model.cut {
            st.lose_all();
        }
    }

    /// Loses what is under way.
    pub(crate) fn lose_all(&self) {
        self.st.lock().lose_all();
    }

    /// Takes a message on its way. One that takes no time is delivered here and now.
    /// `local`: by which NID of `to` it comes in.
    pub(crate) fn send(self: &Arc<Self>, from: Nid, (to, local): (&Arc<Node>, Nid), msg: Msg) {
        let now = Instant::now();
        {
            let mut st = self.st.lock();
            st.stat.sent += 1;
            let Some(arrival) = st.arrival(now, msg.payload.len() as u64 + HEADER_BYTES) else {
                st.stat.lost += 1;
                return;
            };
            if arrival > now || !st.queue.is_empty() {
                st.queue
                    .push_back((arrival, (from, Arc::downgrade(to), local), msg));
                if !std::mem::replace(&mut st.running, true) {
                    to.runtime().spawn(self.clone().carry());
                }
                return;
            }
            st.stat.delivered += 1;
        }
        to.arrive(from, local, msg, None);
    }

    /// Delivers what is under way, each at its time, until nothing is.
    async fn carry(self: Arc<Self>) {
        loop {
            let Some(at) = self.head() else { return };
            tokio::time::sleep_until(at).await;
            let due = {
                let mut st = self.st.lock();
                // It may have been lost meanwhile, and another be first.
                let due = st
                    .queue
                    .front()
                    .is_some_and(|(at, ..)| *at <= Instant::now());
                let next = if due { st.queue.pop_front() } else { None };
                st.stat.delivered += u64::from(due);
                next
            };
            if let Some((_, (from, to, local), msg)) = due
                && let Some(to) = to.upgrade()
            {
                to.arrive(from, local, msg, None);
            }
        }
    }

    fn head(&self) -> Option<Instant> {
        let mut st = self.st.lock();
        let at = st.queue.front().map(|(at, ..)| *at);
        st.running = at.is_some();
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(model: LinkModel) -> LinkState {
        let link = Link::new(model, 7);
        link.st.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn bandwidth_queues_and_delay_adds() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let mut st = state(LinkModel {
            bandwidth: Some(1_000_000),
            delay: ms(5),
            ..Default::default()
        });
        assert_eq!(st.arrival(now, 10_000), Some(now + ms(15)));
        assert_eq!(
            st.arrival(now, 10_000),
            Some(now + ms(25)),
            "behind the first"
        );
        assert_eq!(
            st.arrival(now + ms(100), 1000),
            Some(now + ms(106)),
            "the link was free"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn jitter_keeps_the_order_and_loss_its_share() {
        let now = Instant::now();
        let mut st = state(LinkModel {
            delay: Duration::from_millis(1),
            jitter: Duration::from_secs(1),
            loss: 0.1,
            ..Default::default()
        });
        let arrivals: Vec<Option<Instant>> = (0..1000).map(|_| st.arrival(now, 100)).collect();
        let lost = arrivals.iter().filter(|a| a.is_none()).count();
        assert!((50..200).contains(&lost), "{lost} of 1000 at 0.1");
        assert!(arrivals.iter().flatten().is_sorted());
        st.model.cut = true;
        assert_eq!(st.arrival(now, 1), None);
    }
}
