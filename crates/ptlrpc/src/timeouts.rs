//! Adaptive time-outs: how long to wait for a reply (`lustre/ptlrpc/import.c` `at_measured`, `lustre/include/lustre_import.h`).
//!
//! The estimate of a portal is the longest service time the server has told of in the last [`HISTORY`] seconds, between
//! [`AT_MIN_S`] and [`AT_MAX_S`]; a wait is 1.25 times that and 5 s. Pure: `now` is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Least estimate in seconds (`at_min`).
pub const AT_MIN_S: u32 = 5;
/// Greatest estimate in seconds (`at_max`).
pub const AT_MAX_S: u32 = 600;
/// How long a measurement counts (`at_history`).
pub const HISTORY: Duration = Duration::from_secs(600);
/// An early reply goes out so long before the deadline, in seconds (`at_early_margin`).
pub const EARLY_MARGIN_S: u32 = 5;
/// An early reply asks for so many more seconds (`at_extra`).
pub const EXTRA_S: u32 = 30;
/// Time-out of a connect request in seconds (`INITIAL_CONNECT_TIMEOUT`).
pub const CONNECT_TIMEOUT_S: u32 = 5;
/// Slices of the history.
const BINS: usize = 4;

/// Running maximum of service times in whole seconds.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    bins: [u32; BINS],
    bin_start: Option<Instant>,
}

impl Estimate {
    /// Takes note of a measured or announced service time in seconds.
    pub fn measured(&mut self, now: Instant, secs: u32) {
        let width = HISTORY / BINS as u32;
        let start = *self.bin_start.get_or_insert(now);
        let passed = (now.saturating_duration_since(start).as_secs() / width.as_secs())
            .min(BINS as u64) as usize;
        if passed > 0 {
            self.bins.rotate_right(passed % BINS);
            self.bins[..passed].fill(0);
            self.bin_start = Some(now);
        }
        self.bins[0] = self.bins[0].max(secs);
    }

    /// The estimate in seconds.
    pub fn secs(&self) -> u32 {
        self.bins
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .clamp(AT_MIN_S, AT_MAX_S)
    }

    /// How long a client waits for a reply, in seconds (`at_est2timeout`).
    pub fn timeout_s(&self) -> u32 {
        let est = self.secs();
        est + est / 4 + 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bounds_and_history() {
        let now = Instant::now();
        let mut e = Estimate::default();
        assert_eq!((e.secs(), e.timeout_s()), (5, 11));
        e.measured(now, 40);
        assert_eq!((e.secs(), e.timeout_s()), (40, 55));
        e.measured(now + Duration::from_secs(160), 10);
        assert_eq!(e.secs(), 40, "still in the history");
        e.measured(now + Duration::from_secs(160 + 700), 1);
        assert_eq!(e.secs(), 5, "forgotten");
        e.measured(now + Duration::from_secs(900), 100_000);
        assert_eq!(e.secs(), AT_MAX_S);
    }
}
