//! A gateway (a router as seen by who sends through it): whether it is alive, and when to ask it again.
//!
//! Plain state; the pings are made by the node's monitor. As `lnet_check_routers`, `lnet_router_discovery_ping_reply` and
//! `lnet_is_route_alive` (lnet/lnet/router.c). Different from there: a gateway that was never asked is tried at once instead of
//! failing the first sends, a broken connection makes it a suspect that is asked at once, a new connection with one that is not
//! alive too, and a dead one is asked every second ten times and then after 2, 4, 8, ... seconds up to the interval, so that it
//! comes back sooner: servers evict clients that they cannot call back for 20 s.

use std::time::Duration;

/// What is known of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GwState {
    /// It has not been asked yet. Used when no gateway is known to be alive.
    Unknown,
    /// It answered, and routes.
    Alive,
    /// It answered once, but a connection with it broke since. Used when no gateway is known to be alive.
    Suspect,
    /// It did not answer.
    Dead,
    /// It answered, but says that it does not route.
    NotRouting,
}

/// What happens to a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GwEvent {
    /// It answered a ping as a router.
    Answered,
    /// It answered a ping and does not route.
    AnsweredNotRouting,
    /// A ping failed or was not answered in time.
    Silent,
    /// A connection with it broke.
    ConnLost,
    /// A connection with it is there.
    Connected,
    /// A message came through it from another network.
    Forwarded,
}

/// Timers of the gateway checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GwTimers {
    /// Between two pings of a gateway that is alive.
    pub(crate) interval: Duration,
}

/// Pause before a dead gateway is asked again; after [`STEADY`] silences it doubles up to the interval.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// See [`FIRST_RETRY`].
const STEADY: u32 = 9;

/// A gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    state: GwState,
    /// A ping is under way.
    asking: bool,
    /// Milliseconds of the node's life at which it is asked again.
    next_ask: u64,
    /// Pings it did not answer in a row.
    silences: u32,
}

impl Gateway {
    /// One that has not been asked.
    pub(crate) fn new() -> Gateway {
        Gateway {
            state: GwState::Unknown,
            asking: false,
            next_ask: 0,
            silences: 0,
        }
    }

    pub(crate) fn state(&self) -> GwState {
        self.state
    }

    /// How good it is as a choice; None: not to be used.
    pub(crate) fn rank(&self) -> Option<u8> {
        match self.state {
            GwState::Alive => Some(1),
            GwState::Unknown | GwState::Suspect => Some(0),
            GwState::Dead | GwState::NotRouting => None,
        }
    }

    /// Takes an event; true: it changed between usable and not.
    pub(crate) fn handle(&mut self, ev: GwEvent, now_ms: u64, timers: GwTimers) -> bool {
        use GwEvent::*;
        use GwState::*;
        let before = self.rank().is_some();
        if matches!(ev, Answered | AnsweredNotRouting | Silent) {
            self.asking = false;
        }
        let interval = timers.interval.as_millis() as u64;
        match ev {
            Answered => {
                (self.state, self.silences) = (Alive, 0);
                self.next_ask = now_ms + interval;
            }
            AnsweredNotRouting => {
                (self.state, self.silences) = (NotRouting, 0);
                self.next_ask = now_ms + interval;
            }
            Silent => {
                self.state = Dead;
                let pause = (FIRST_RETRY.as_millis() as u64)
                    << self.silences.saturating_sub(STEADY).min(16);
                self.next_ask = now_ms + pause.min(interval);
                self.silences = self.silences.saturating_add(1);
            }
            ConnLost => {
                self.state = match self.state {
                    Alive | Suspect => Suspect,
                    other => other,
                };
                if self.rank().is_some() {
                    self.next_ask = now_ms;
                }
            }
            Connected => {
                if self.state != Alive {
                    self.next_ask = now_ms;
                }
            }
            // Only a router sends what others wrote; one that says it does not is believed before what it does.
            Forwarded => {
                if matches!(self.state, Unknown | Suspect | Dead) {
                    (self.state, self.silences) = (Alive, 0);
                    self.next_ask = self.next_ask.max(now_ms);
                }
            }
        }
        before != self.rank().is_some()
    }

    /// Whether it is to be asked now. It then counts as being asked until the answer is reported.
    pub(crate) fn ask_now(&mut self, now_ms: u64) -> bool {
        let ask = !self.asking && now_ms >= self.next_ask;
        self.asking |= ask;
        ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use GwEvent::*;
    use GwState::*;

    const TIMERS: GwTimers = GwTimers {
        interval: Duration::from_secs(60),
    };

    fn in_state(state: GwState) -> Gateway {
        Gateway {
            state,
            asking: true,
            next_ask: 500,
            silences: 0,
        }
    }

    /// Every state with every event: the state after it, and when the gateway is asked next (the clock is at 1000).
    #[test]
    fn the_table() {
        let table = [
            (Unknown, Answered, Alive, 61_000),
            (Unknown, AnsweredNotRouting, NotRouting, 61_000),
            (Unknown, Silent, Dead, 2_000),
            (Unknown, ConnLost, Unknown, 1_000),
            (Unknown, Connected, Unknown, 1_000),
            (Unknown, Forwarded, Alive, 1_000),
            (Alive, Answered, Alive, 61_000),
            (Alive, AnsweredNotRouting, NotRouting, 61_000),
            (Alive, Silent, Dead, 2_000),
            (Alive, ConnLost, Suspect, 1_000),
            (Alive, Connected, Alive, 500),
            (Alive, Forwarded, Alive, 500),
            (Suspect, Answered, Alive, 61_000),
            (Suspect, AnsweredNotRouting, NotRouting, 61_000),
            (Suspect, Silent, Dead, 2_000),
            (Suspect, ConnLost, Suspect, 1_000),
            (Suspect, Connected, Suspect, 1_000),
            (Suspect, Forwarded, Alive, 1_000),
            (Dead, Answered, Alive, 61_000),
            (Dead, AnsweredNotRouting, NotRouting, 61_000),
            (Dead, Silent, Dead, 2_000),
            (Dead, ConnLost, Dead, 500),
            (Dead, Connected, Dead, 1_000),
            (Dead, Forwarded, Alive, 1_000),
            (NotRouting, Answered, Alive, 61_000),
            (NotRouting, AnsweredNotRouting, NotRouting, 61_000),
            (NotRouting, Silent, Dead, 2_000),
            (NotRouting, ConnLost, NotRouting, 500),
            (NotRouting, Connected, NotRouting, 1_000),
            (NotRouting, Forwarded, NotRouting, 500),
        ];
        for (from, ev, to, next_ask) in table {
            let mut gw = in_state(from);
            let was_usable = gw.rank().is_some();
            let changed = gw.handle(ev, 1000, TIMERS);
            assert_eq!(
                (gw.state(), gw.next_ask),
                (to, next_ask),
                "{from:?} with {ev:?}"
            );
            assert_eq!(
                changed,
                was_usable != gw.rank().is_some(),
                "{from:?} with {ev:?}"
            );
            let answered = matches!(ev, Answered | AnsweredNotRouting | Silent);
            assert_eq!(gw.asking, !answered, "{from:?} with {ev:?}");
        }
    }

    #[test]
    fn a_silent_gateway_is_asked_less_and_less_up_to_the_interval() {
        let mut gw = Gateway::new();
        let mut pauses = Vec::new();
        for _ in 0..17 {
            assert!(gw.ask_now(gw.next_ask));
            assert!(!gw.ask_now(u64::MAX), "one ping at a time");
            gw.handle(Silent, 10, TIMERS);
            pauses.push((gw.next_ask - 10) / 1000);
        }
        assert_eq!(
            pauses,
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 60, 60]
        );
    }
}
