//! When the commands of a disk are answered.

use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use super::DiskModel;

/// How much longer a slow command takes.
const SLOW_FACTOR: u32 = 10;

/// The commands under way. They are answered in the order in which they were given: what comes after a commit is never known
/// before it.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// When each of those under way is answered, in order.
    under_way: std::collections::VecDeque<Instant>,
    /// When the last transfer ends.
    transferred: Option<Instant>,
}

impl Queue {
    /// When a command that comes now is answered; `None`: now.
    pub(super) fn admit(
        &mut self,
        model: &DiskModel,
        latency: Duration,
        bytes: u64,
        rng: &mut ChaCha8Rng,
    ) -> Option<Instant> {
        let transfer = model
            .bytes_per_sec
            .map_or(0, |rate| bytes.saturating_mul(1_000_000) / rate.max(1));
        let transfer = Duration::from_micros(transfer);
        if latency.is_zero() && transfer.is_zero() && self.under_way.is_empty() {
            return None;
        }
        let now = Instant::now();
        while self.under_way.front().is_some_and(|at| *at <= now) {
            self.under_way.pop_front();
        }
        let depth = model.queue_depth.max(1) as usize;
        // its turn comes when so many before it are answered that it is one of `depth`
        let turn = match self.under_way.len().checked_sub(depth) {
            Some(first) => self.under_way[first],
            None => now,
        };
        let slow = model.slow_share > 0.0 && rng.random_bool(model.slow_share.min(1.0));
        let latency = if slow { latency * SLOW_FACTOR } else { latency };
        let begins = self.transferred.map_or(turn, |ends| ends.max(turn));
        let transferred = begins + transfer;
        self.transferred = Some(transferred);
        let last = self.under_way.back().copied().unwrap_or(now);
        let at = (transferred + latency).max(last);
        if at <= now {
            return None;
        }
        self.under_way.push_back(at);
        Some(at)
    }
}
