//! The clock of a measurement: nanoseconds since an instant that all ranks share.
//!
//! Ranks of one process read the same clock. Another process measures how far its clock is from the hub's when it joins
//! ([`crate::load::hub`]); the bound of that is kept and written into the record.

use std::time::{Duration, Instant};

/// A clock that counts from a common zero. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: Instant,
    /// Added to what this process counts, to be at the hub's time.
    offset_ns: i64,
    /// The offset is known to this bound; 0 in the hub's own process.
    uncertainty_ns: u64,
}

impl Clock {
    /// Starts at zero.
    #[expect(
        clippy::disallowed_methods,
        reason = "a measurement of the machine goes by the machine's clock"
    )]
    pub fn start() -> Clock {
        Clock {
            zero: Instant::now(),
            offset_ns: 0,
            uncertainty_ns: 0,
        }
    }

    /// The same, moved by an offset that is known to a bound.
    pub fn moved(self, offset_ns: i64, uncertainty_ns: u64) -> Clock {
        Clock {
            offset_ns: self.offset_ns + offset_ns,
            uncertainty_ns,
            ..self
        }
    }

    /// Nanoseconds since the common zero.
    #[inline]
    #[expect(
        clippy::disallowed_methods,
        reason = "a measurement of the machine goes by the machine's clock"
    )]
    pub fn now(&self) -> i64 {
        let since = Instant::now().duration_since(self.zero);
        (since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())) as i64 + self.offset_ns
    }

    /// The same of a moment of this process.
    pub(super) fn at(&self, moment: Instant) -> i64 {
        let ns = |time: Duration| time.as_nanos() as i64;
        let before = self.zero.checked_duration_since(moment);
        let since = before.map_or_else(|| ns(moment.duration_since(self.zero)), |b| -ns(b));
        since + self.offset_ns
    }

    /// Seconds since the common zero.
    pub fn seconds(&self) -> f64 {
        seconds(self.now())
    }

    /// How far the time may be from the hub's, nanoseconds.
    pub fn uncertainty_ns(&self) -> u64 {
        self.uncertainty_ns
    }
}

/// Nanoseconds as seconds.
pub fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// Waits on the machine's clock.
#[expect(
    clippy::disallowed_methods,
    reason = "ranks are threads that wait on the machine's clock"
)]
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// The wall clock, seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the time of day is printed and written into records"
)]
pub fn wall_s() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
