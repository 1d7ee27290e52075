//! How far clocks are apart, from the RPCs themselves: a request arrives after it was sent, a reply likewise. Of all messages
//! the fastest ones bound it best, as in NTP. Nothing is sent for it. Processes of one machine have one clock, and need none of it.

/// What is known of another node's clock: it shows `offset_ns` more than the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Its lead over the clock of the client, nanoseconds.
    pub offset_ns: i64,
    /// The lead may be so much more or less; None: no message tells.
    pub uncertain_ns: Option<i64>,
}

impl Clock {
    /// The same clock.
    pub const SAME: Clock = Clock {
        offset_ns: 0,
        uncertain_ns: Some(0),
    };

    /// How far a moment may be wrong.
    pub(super) fn sure(&self) -> i64 {
        self.uncertain_ns.unwrap_or(i64::MAX / 4)
    }
}

/// Bounds of a lead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bounds {
    least: Option<i64>,
    most: Option<i64>,
}

impl Bounds {
    /// A message left at `sent` by the client's clock, and was there at `arrived` by the other.
    pub(super) fn there(&mut self, sent: i64, arrived: i64) {
        let most = arrived - sent;
        self.most = Some(self.most.map_or(most, |m| m.min(most)));
    }

    /// A message left at `sent` by the other clock, and was back at `arrived` by the client's.
    pub(super) fn back(&mut self, sent: i64, arrived: i64) {
        let least = sent - arrived;
        self.least = Some(self.least.map_or(least, |l| l.max(least)));
    }

    /// In the middle. Bounds that cross tell of a clock that drifts: then that is the uncertainty.
    pub(super) fn clock(&self) -> Clock {
        match (self.least, self.most) {
            (Some(least), Some(most)) => Clock {
                offset_ns: least + (most - least) / 2,
                uncertain_ns: Some(((most - least).abs() + 1) / 2),
            },
            (one, other) => Clock {
                offset_ns: one.or(other).unwrap_or(0),
                uncertain_ns: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_messages_bound_the_offset() {
        let mut b = Bounds::default();
        assert_eq!(b.clock().uncertain_ns, None);
        // its clock is 1000 ahead; ways of 30 and 50, slow ones of 500
        b.there(0, 1030);
        b.there(100, 1600);
        assert_eq!(b.clock().uncertain_ns, None);
        b.back(2050, 1100);
        b.back(3000, 2500);
        let c = b.clock();
        assert_eq!(c.offset_ns, 990);
        assert_eq!(c.uncertain_ns, Some(40));
        assert!((c.offset_ns - 1000).abs() <= 40);
    }
}
