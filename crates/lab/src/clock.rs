//! The machine's clocks: a laboratory measures real systems in real time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A moment, to measure from.
#[expect(
    clippy::disallowed_methods,
    reason = "the laboratory measures other processes in real time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970, to name a moment across processes.
#[expect(
    clippy::disallowed_methods,
    reason = "records of real runs carry the time of day"
)]
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

/// A thread of its own.
#[expect(
    clippy::disallowed_methods,
    reason = "a sampler runs beside what it measures"
)]
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}

/// Waits.
#[expect(
    clippy::disallowed_methods,
    reason = "the laboratory waits for other processes in real time"
)]
pub(crate) fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}

/// `1767225600000` as `2026-01-01T00:00:00Z`.
pub(crate) fn utc(unix_ms: u64) -> String {
    i64::try_from(unix_ms / 1000)
        .ok()
        .and_then(|s| jiff::Timestamp::from_second(s).ok())
        .map_or_else(String::new, |t| t.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(s * 1000), text);
        }
    }
}
