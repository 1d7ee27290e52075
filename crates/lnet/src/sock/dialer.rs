//! When a connection to a peer is opened: the states of the connecting side, as a table. Plain state; `now` is an argument.
//!
//! As `ksocknal_connect`, `ksocknal_connect_cb` and the peer's closing decide it (lnet/klnds/socklnd/socklnd_cb.c).
//!
//! Invariants: at most one connector runs; a message waits only while one does; nobody connects before a pause is over, but for
//! the connector that waits for it.

use std::time::Duration;

use tokio::time::Instant;

use crate::Limits;

/// How often lost connections are opened again without anybody sending: the peer may need them for callbacks.
pub(super) const REOPEN_TRIES: u32 = 10;

/// Pause after `fails` failed connects in a row.
fn backoff(fails: u32, limits: &Limits) -> Duration {
    let doubled = limits
        .min_reconnect
        .saturating_mul(1 << fails.saturating_sub(1).min(16));
    doubled.min(limits.max_reconnect)
}

/// Whether and when to connect to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dialer {
    /// A connector runs.
    connecting: bool,
    /// We have opened connections to it: we open lost ones again.
    initiator: bool,
    /// Failed connects in a row, and when the next may begin.
    fails: u32,
    retry_at: Option<Instant>,
    down: bool,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialEvent {
    /// A message is to be sent and there is no connection for it.
    Wanted,
    /// A message goes out on a connection; `missing`: some other type of connection is not there.
    Sent { missing: bool },
    /// A connection is there; `active`: we opened it.
    Opened { active: bool },
    /// The connector has nothing left to open.
    Complete,
    /// The connector failed.
    Failed,
    /// A connection broke; `reopen`: we had opened it, and may open it again.
    Lost { reopen: bool },
    /// The node goes down.
    Shutdown,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialAct {
    /// Nothing.
    Nothing,
    /// The message waits for the connector that runs.
    Wait,
    /// Start a connector after this pause; a message that wanted a connection waits for it.
    Connect(Duration),
    /// What waits cannot be sent.
    Refuse,
}

impl Dialer {
    pub(super) fn is_down(&self) -> bool {
        self.down
    }

    /// A connector runs.
    pub(super) fn is_connecting(&self) -> bool {
        self.connecting
    }

    fn may_connect(&self, now: Instant) -> bool {
        !self.connecting && self.retry_at.is_none_or(|at| at <= now)
    }

    /// No connector runs, and the next need not wait.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.may_connect(now)
    }

    fn connect(&mut self, after: Duration) -> DialAct {
        self.connecting = true;
        DialAct::Connect(after)
    }

    /// Takes an event.
    pub(super) fn handle(&mut self, event: DialEvent, now: Instant, limits: &Limits) -> DialAct {
        if self.down {
            self.connecting &= !matches!(event, DialEvent::Complete | DialEvent::Failed);
            return if event == DialEvent::Wanted {
                DialAct::Refuse
            } else {
                DialAct::Nothing
            };
        }
        match event {
            DialEvent::Wanted if self.connecting => DialAct::Wait,
            DialEvent::Wanted if self.may_connect(now) => self.connect(Duration::ZERO),
            DialEvent::Wanted => DialAct::Refuse,
            DialEvent::Sent { missing } if missing && self.initiator && self.may_connect(now) => {
                self.connect(Duration::ZERO)
            }
            DialEvent::Lost { reopen } if reopen && self.may_connect(now) => {
                self.connect(Duration::ZERO)
            }
            DialEvent::Sent { .. } | DialEvent::Lost { .. } => DialAct::Nothing,
            DialEvent::Opened { active } => {
                self.initiator |= active;
                DialAct::Nothing
            }
            DialEvent::Complete => {
                (self.connecting, self.fails, self.retry_at) = (false, 0, None);
                DialAct::Nothing
            }
            DialEvent::Failed => {
                self.fails = self.fails.saturating_add(1);
                let pause = backoff(self.fails, limits);
                self.retry_at = Some(now + pause);
                self.connecting = false;
                if self.initiator && self.fails <= REOPEN_TRIES {
                    self.connect(pause)
                } else {
                    DialAct::Refuse
                }
            }
            DialEvent::Shutdown => {
                self.down = true;
                DialAct::Refuse
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DialAct::*;
    use super::DialEvent::*;
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit() {
        let limits = Limits::default();
        let pauses: Vec<u128> = (1..8).map(|n| backoff(n, &limits).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(backoff(u32::MAX, &limits), limits.max_reconnect);
    }

    /// Every state with every event: what is done, and the state's letter after it. I idle, C a connector runs, P a pause,
    /// O a pause that is over, D down; small where we never opened a connection.
    #[tokio::test(start_paused = true)]
    async fn the_table() {
        let limits = Limits::default();
        let now = Instant::now() + Duration::from_secs(100);
        let state = |letter: char| {
            let mut d = Dialer {
                initiator: letter.is_ascii_uppercase(),
                ..Dialer::default()
            };
            match letter.to_ascii_uppercase() {
                'C' => d.connecting = true,
                'P' => (d.fails, d.retry_at) = (1, Some(now + Duration::from_millis(1))),
                'O' => (d.fails, d.retry_at) = (1, Some(now)),
                'D' => d.down = true,
                _ => {}
            }
            d
        };
        let letter = |d: &Dialer| {
            let l = match (d.down, d.connecting, d.retry_at) {
                (true, ..) => 'D',
                (_, true, _) => 'C',
                (_, _, Some(at)) if at > now => 'P',
                (_, _, Some(_)) => 'O',
                _ => 'I',
            };
            if d.initiator {
                l
            } else {
                l.to_ascii_lowercase()
            }
        };
        let (at_once, first, second) = (
            Connect(Duration::ZERO),
            Connect(Duration::from_millis(100)),
            Connect(Duration::from_millis(200)),
        );
        let events = [
            Wanted,
            Sent { missing: true },
            Sent { missing: false },
            Opened { active: true },
            Opened { active: false },
            Complete,
            Failed,
            Lost { reopen: true },
            Lost { reopen: false },
            Shutdown,
        ];
        // Complete and Failed come from a connector, so they matter in C alone; elsewhere they are pinned as well.
        let table: [(char, [(DialAct, char); 10]); 10] = [
            (
                'I',
                [
                    (at_once, 'C'),
                    (at_once, 'C'),
                    (Nothing, 'I'),
                    (Nothing, 'I'),
                    (Nothing, 'I'),
                    (Nothing, 'I'),
                    (first, 'C'),
                    (at_once, 'C'),
                    (Nothing, 'I'),
                    (Refuse, 'D'),
                ],
            ),
            (
                'i',
                [
                    (at_once, 'c'),
                    (Nothing, 'i'),
                    (Nothing, 'i'),
                    (Nothing, 'I'),
                    (Nothing, 'i'),
                    (Nothing, 'i'),
                    (Refuse, 'p'),
                    (at_once, 'c'),
                    (Nothing, 'i'),
                    (Refuse, 'd'),
                ],
            ),
            (
                'C',
                [
                    (Wait, 'C'),
                    (Nothing, 'C'),
                    (Nothing, 'C'),
                    (Nothing, 'C'),
                    (Nothing, 'C'),
                    (Nothing, 'I'),
                    (first, 'C'),
                    (Nothing, 'C'),
                    (Nothing, 'C'),
                    (Refuse, 'D'),
                ],
            ),
            (
                'c',
                [
                    (Wait, 'c'),
                    (Nothing, 'c'),
                    (Nothing, 'c'),
                    (Nothing, 'C'),
                    (Nothing, 'c'),
                    (Nothing, 'i'),
                    (Refuse, 'p'),
                    (Nothing, 'c'),
                    (Nothing, 'c'),
                    (Refuse, 'd'),
                ],
            ),
            (
                'P',
                [
                    (Refuse, 'P'),
                    (Nothing, 'P'),
                    (Nothing, 'P'),
                    (Nothing, 'P'),
                    (Nothing, 'P'),
                    (Nothing, 'I'),
                    (second, 'C'),
                    (Nothing, 'P'),
                    (Nothing, 'P'),
                    (Refuse, 'D'),
                ],
            ),
            (
                'p',
                [
                    (Refuse, 'p'),
                    (Nothing, 'p'),
                    (Nothing, 'p'),
                    (Nothing, 'P'),
                    (Nothing, 'p'),
                    (Nothing, 'i'),
                    (Refuse, 'p'),
                    (Nothing, 'p'),
                    (Nothing, 'p'),
                    (Refuse, 'd'),
                ],
            ),
            (
                'O',
                [
                    (at_once, 'C'),
                    (at_once, 'C'),
                    (Nothing, 'O'),
                    (Nothing, 'O'),
                    (Nothing, 'O'),
                    (Nothing, 'I'),
                    (second, 'C'),
                    (at_once, 'C'),
                    (Nothing, 'O'),
                    (Refuse, 'D'),
                ],
            ),
            (
                'o',
                [
                    (at_once, 'c'),
                    (Nothing, 'o'),
                    (Nothing, 'o'),
                    (Nothing, 'O'),
                    (Nothing, 'o'),
                    (Nothing, 'i'),
                    (Refuse, 'p'),
                    (at_once, 'c'),
                    (Nothing, 'o'),
                    (Refuse, 'd'),
                ],
            ),
            (
                'D',
                [
                    (Refuse, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                    (Nothing, 'D'),
                ],
            ),
            (
                'd',
                [
                    (Refuse, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                    (Nothing, 'd'),
                ],
            ),
        ];
        for (from, row) in table {
            for (event, want) in events.into_iter().zip(row) {
                let mut d = state(from);
                let act = d.handle(event, now, &limits);
                assert_eq!((act, letter(&d)), want, "{from} with {event:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_connections_are_opened_again_so_many_times() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut d = Dialer::default();
        d.handle(Opened { active: true }, now, &limits);
        assert_eq!(
            d.handle(Lost { reopen: true }, now, &limits),
            Connect(Duration::ZERO)
        );
        let again = (0..100)
            .take_while(|_| matches!(d.handle(Failed, now, &limits), Connect(_)))
            .count();
        assert_eq!(again, REOPEN_TRIES as usize);
        assert_eq!(d.handle(Wanted, now, &limits), Refuse, "the pause lasts");
        assert_eq!(
            d.handle(Wanted, now + limits.max_reconnect, &limits),
            Connect(Duration::ZERO)
        );
    }
}
