//! States of an import as a pure table (`lustre/ptlrpc/import.c`, `lustre/include/lustre_import.h`).
//!
//! Inputs are [`Event`]s, the output is the next state; an event that makes no sense in a state is an error that names both.
//! The shell ([`crate::Import`]) does what a state asks for: connect, replay, wait, resend.

/// Where an import stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImportState {
    /// Never connected.
    New,
    /// A connect request is under way.
    Connecting,
    /// The server restarted: requests are being replayed.
    Replay,
    /// Locks are being replayed.
    ReplayLocks,
    /// Waiting for the other clients' replay.
    ReplayWait,
    /// Unreplied requests are about to be sent again.
    Recover,
    /// In use.
    Full,
    /// The connection is lost; another attempt follows.
    Discon,
    /// The server forgot us: everything cached is being dropped.
    Evicted,
    /// Unused for long: the server is being told that this client goes.
    Leaving,
    /// Disconnected for want of use; the next request connects again.
    Idle,
    /// Disconnected on purpose; nothing follows.
    Closed,
}

/// What a connect reply said (`ptlrpc_connect_interpret`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// First connect of this import.
    pub initial: bool,
    /// Reply flag RECONNECT: the server knows our export.
    pub reconnect: bool,
    /// Reply flag RECOVERING: the server restarted and collects replays.
    pub recovering: bool,
    /// The reply's export handle is the one we had.
    pub same_handle: bool,
    /// How far the last recovery came: REPLAY, REPLAY_LOCKS or REPLAY_WAIT (`imp_replay_state`).
    pub reached: ImportState,
}

/// What happens to an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connect request goes out.
    ConnectSent,
    /// The server accepted.
    Connected(Granted),
    /// The connect request failed or was refused.
    ConnectFailed,
    /// All requests are replayed.
    RequestsReplayed,
    /// All locks are replayed.
    LocksReplayed,
    /// The server's recovery is over.
    ServerRecovered,
    /// Everything cached has been dropped after an eviction.
    Invalidated,
    /// Requests may flow again.
    Resent,
    /// A request timed out, could not be sent, or was answered with ENOTCONN.
    ConnectionLost,
    /// Nothing needs the connection.
    Unused,
    /// The server knows.
    Left,
    /// A request wants the connection back.
    Wanted,
    /// The owner disconnects.
    Close,
}

/// An event that makes no sense in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {event:?} in import state {state:?}")]
pub struct BadEvent {
    /// The state.
    pub state: ImportState,
    /// The event.
    pub event: Event,
}

impl ImportState {
    /// The state after `event`.
    pub fn after(self, event: Event) -> Result<ImportState, BadEvent> {
        use ImportState as S;
        let next = match (self, event) {
            (_, Event::Close) => S::Closed,
            (S::Closed, Event::ConnectionLost | Event::ConnectFailed | Event::Connected(_)) => {
                S::Closed
            }
            (S::New | S::Discon, Event::ConnectSent) => S::Connecting,
            (S::Connecting, Event::Connected(g)) => after_connect(g),
            (S::Connecting, Event::ConnectFailed | Event::ConnectionLost) => S::Discon,
            (S::Replay, Event::RequestsReplayed) => S::ReplayLocks,
            (S::ReplayLocks, Event::LocksReplayed) => S::ReplayWait,
            (S::ReplayWait, Event::ServerRecovered) => S::Recover,
            (S::Evicted, Event::Invalidated) => S::Recover,
            (S::Recover, Event::Resent) => S::Full,
            (S::Full, Event::Unused) => S::Leaving,
            (S::Leaving, Event::Left) => S::Idle,
            (S::Idle, Event::Wanted) => S::Discon,
            (
                S::Full
                | S::Replay
                | S::ReplayLocks
                | S::ReplayWait
                | S::Recover
                | S::Discon
                | S::Evicted
                | S::Leaving,
                Event::ConnectionLost,
            ) => S::Discon,
            (state, event) => return Err(BadEvent { state, event }),
        };
        Ok(next)
    }

    /// Whether ordinary requests may be sent.
    pub fn sends(self) -> bool {
        self == ImportState::Full
    }

    /// Lustre's name of the state, as `lctl get_param *.*.import` prints it.
    pub fn name(self) -> &'static str {
        match self {
            ImportState::New => "NEW",
            ImportState::Connecting => "CONNECTING",
            ImportState::Replay => "REPLAY",
            ImportState::ReplayLocks => "REPLAY_LOCKS",
            ImportState::ReplayWait => "REPLAY_WAIT",
            ImportState::Recover => "RECOVER",
            ImportState::Full => "FULL",
            ImportState::Discon => "DISCONN",
            ImportState::Evicted => "EVICTED",
            ImportState::Leaving => "CONNECTING",
            ImportState::Idle => "IDLE",
            ImportState::Closed => "CLOSED",
        }
    }
}

/// The state a connect reply leads to.
fn after_connect(g: Granted) -> ImportState {
    if g.initial {
        // A server in recovery that still knows us from before: we have nothing to replay, and wait for the others.
        return if g.recovering {
            ImportState::ReplayWait
        } else {
            ImportState::Full
        };
    }
    match (g.reconnect, g.recovering) {
        // The connection broke in the middle of a recovery that goes on: what the server has got it has.
        (true, true) if g.same_handle => g.reached,
        (_, true) => ImportState::Replay,
        (true, false) if g.same_handle => ImportState::Recover,
        _ => ImportState::Evicted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ImportState as S;

    const STATES: [S; 12] = [
        S::New,
        S::Connecting,
        S::Replay,
        S::ReplayLocks,
        S::ReplayWait,
        S::Recover,
        S::Full,
        S::Discon,
        S::Evicted,
        S::Leaving,
        S::Idle,
        S::Closed,
    ];

    fn granted(initial: bool, reconnect: bool, recovering: bool, same_handle: bool) -> Event {
        Event::Connected(Granted {
            initial,
            reconnect,
            recovering,
            same_handle,
            reached: S::Replay,
        })
    }

    #[test]
    fn a_recovery_goes_on_where_the_connection_broke() {
        for reached in [S::Replay, S::ReplayLocks, S::ReplayWait] {
            let g = Granted {
                initial: false,
                reconnect: true,
                recovering: true,
                same_handle: true,
                reached,
            };
            assert_eq!(S::Connecting.after(Event::Connected(g)), Ok(reached));
            for other in [
                Granted {
                    reconnect: false,
                    ..g
                },
                Granted {
                    same_handle: false,
                    ..g
                },
            ] {
                assert_eq!(
                    S::Connecting.after(Event::Connected(other)),
                    Ok(S::Replay),
                    "another start of the server"
                );
            }
        }
    }

    /// One row per event: the states it leads to, in the order of `STATES`; None is an error.
    #[test]
    fn the_table() {
        let e = None;
        let c = Some(S::Closed);
        let d = Some(S::Discon);
        let rows: [(Event, [Option<S>; 12]); 17] = [
            (
                Event::ConnectSent,
                [
                    Some(S::Connecting),
                    e,
                    e,
                    e,
                    e,
                    e,
                    e,
                    Some(S::Connecting),
                    e,
                    e,
                    e,
                    e,
                ],
            ),
            (
                granted(true, false, false, false),
                [e, Some(S::Full), e, e, e, e, e, e, e, e, e, c],
            ),
            (
                granted(true, true, true, false),
                [e, Some(S::ReplayWait), e, e, e, e, e, e, e, e, e, c],
            ),
            (
                granted(false, true, false, true),
                [e, Some(S::Recover), e, e, e, e, e, e, e, e, e, c],
            ),
            (
                granted(false, true, false, false),
                [e, Some(S::Evicted), e, e, e, e, e, e, e, e, e, c],
            ),
            (
                granted(false, false, true, false),
                [e, Some(S::Replay), e, e, e, e, e, e, e, e, e, c],
            ),
            (
                granted(false, false, false, false),
                [e, Some(S::Evicted), e, e, e, e, e, e, e, e, e, c],
            ),
            (Event::ConnectFailed, [e, d, e, e, e, e, e, e, e, e, e, c]),
            (
                Event::RequestsReplayed,
                [e, e, Some(S::ReplayLocks), e, e, e, e, e, e, e, e, e],
            ),
            (
                Event::LocksReplayed,
                [e, e, e, Some(S::ReplayWait), e, e, e, e, e, e, e, e],
            ),
            (
                Event::ServerRecovered,
                [e, e, e, e, Some(S::Recover), e, e, e, e, e, e, e],
            ),
            (
                Event::Invalidated,
                [e, e, e, e, e, e, e, e, Some(S::Recover), e, e, e],
            ),
            (Event::ConnectionLost, [e, d, d, d, d, d, d, d, d, d, e, c]),
            (
                Event::Unused,
                [e, e, e, e, e, e, Some(S::Leaving), e, e, e, e, e],
            ),
            (
                Event::Left,
                [e, e, e, e, e, e, e, e, e, Some(S::Idle), e, e],
            ),
            (Event::Wanted, [e, e, e, e, e, e, e, e, e, e, d, e]),
            (Event::Close, [c; 12]),
        ];
        for (event, row) in rows {
            for (state, want) in STATES.into_iter().zip(row) {
                assert_eq!(state.after(event).ok(), want, "{event:?} in {state:?}");
            }
        }
        assert_eq!(S::Recover.after(Event::Resent), Ok(S::Full));
        assert_eq!(
            S::New.after(Event::Resent),
            Err(BadEvent {
                state: S::New,
                event: Event::Resent
            })
        );
    }
}
