//! Wall time: the machine's, or that of a simulation.

/// Wall time that follows tokio's clock: `base` was the time (seconds, nanoseconds since 1970) at instant `at`.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// Seconds and nanoseconds since 1970.
    pub base: (i64, u32),
    /// The instant that belongs to `base`.
    pub at: tokio::time::Instant,
}

impl WallClock {
    /// When simulated time begins unless it is said otherwise: 14 November 2023, 22:13:20 UTC, in seconds since 1970.
    pub const SIMULATED_SECS: i64 = 1_700_000_000;

    /// A clock that shows `secs` seconds since 1970 now.
    pub fn starting_at(secs: i64) -> WallClock {
        WallClock {
            base: (secs, 0),
            at: tokio::time::Instant::now(),
        }
    }
}

/// Seconds and nanoseconds since 1970.
pub(crate) fn time_by(wall: Option<WallClock>) -> (i64, u32) {
    let Some(WallClock { base, at }) = wall else {
        return machine_time();
    };
    let passed = at.elapsed();
    let nanos = base.1 as u64 + passed.subsec_nanos() as u64;
    (
        base.0 + passed.as_secs() as i64 + (nanos / 1_000_000_000) as i64,
        (nanos % 1_000_000_000) as u32,
    )
}

/// The one place where a node looks at the machine's clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the real wall time, where no simulated one is given"
)]
fn machine_time() -> (i64, u32) {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    (now.as_secs() as i64, now.subsec_nanos())
}
