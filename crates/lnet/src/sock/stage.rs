//! Who writes to a connection: the states of its outgoing side, as a table.
//!
//! Invariants: one writer at most; what is left to the writer task is written by nobody else; a closed connection stays closed.

use super::conn::CloseReason;

/// Where the outgoing side of a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing is to be written.
    #[default]
    Idle,
    /// Somebody writes, a sender or the writer task.
    Writing,
    /// The socket took no more: the rest is the writer task's.
    Left,
    /// It is closed.
    Closed(CloseReason),
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageEvent {
    /// A message was put into the queue.
    Queued,
    /// The writer found the queue empty.
    Drained,
    /// The writer stops because the socket takes no more, or it has written enough for others.
    Full,
    /// The writer task takes over.
    Resumed,
    /// The connection ends.
    Close(CloseReason),
}

/// What whoever told it has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageAct {
    /// Nothing: another writes, or all is written.
    Nothing,
    /// Write.
    Write,
    /// Wake the writer task.
    Wake,
    /// Tell those who wait for what is queued or half written that it failed.
    Fail(CloseReason),
}

/// An event that makes no sense in a state: a mistake of this program, none of a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} in {stage:?}")]
pub(crate) struct NoSense {
    stage: Stage,
    event: StageEvent,
}

impl Stage {
    /// Takes an event.
    pub(crate) fn handle(&mut self, event: StageEvent) -> Result<StageAct, NoSense> {
        use StageEvent as E;
        let (next, act) = match (*self, event) {
            (Stage::Closed(why), E::Close(_)) => (Stage::Closed(why), StageAct::Nothing),
            (Stage::Closed(why), _) => (Stage::Closed(why), StageAct::Fail(why)),
            (_, E::Close(why)) => (Stage::Closed(why), StageAct::Fail(why)),
            (Stage::Idle, E::Queued) => (Stage::Writing, StageAct::Write),
            (busy, E::Queued) => (busy, StageAct::Nothing),
            (Stage::Writing, E::Drained) => (Stage::Idle, StageAct::Nothing),
            (Stage::Writing, E::Full) => (Stage::Left, StageAct::Wake),
            (Stage::Left, E::Resumed) => (Stage::Writing, StageAct::Write),
            // The task was woken for what somebody has written, or writes, meanwhile.
            (stage @ (Stage::Idle | Stage::Writing), E::Resumed) => (stage, StageAct::Nothing),
            (stage, event) => return Err(NoSense { stage, event }),
        };
        *self = next;
        Ok(act)
    }

    /// There is something to write.
    pub(crate) fn is_busy(self) -> bool {
        matches!(self, Stage::Writing | Stage::Left)
    }

    /// Why it is closed.
    pub(crate) fn closed(self) -> Option<CloseReason> {
        match self {
            Stage::Closed(why) => Some(why),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Stage::*;
    use super::StageAct::*;
    use super::StageEvent::*;
    use super::*;

    /// Every state with every event.
    #[test]
    fn the_table() {
        let (reset, late) = (CloseReason::Reset, CloseReason::Timeout);
        type After = Option<(Stage, StageAct)>;
        let table: [(Stage, StageEvent, After); 20] = [
            (Idle, Queued, Some((Writing, Write))),
            (Idle, Drained, None),
            (Idle, Full, None),
            (Idle, Resumed, Some((Idle, Nothing))),
            (Idle, Close(reset), Some((Closed(reset), Fail(reset)))),
            (Writing, Queued, Some((Writing, Nothing))),
            (Writing, Drained, Some((Idle, Nothing))),
            (Writing, Full, Some((Left, Wake))),
            (Writing, Resumed, Some((Writing, Nothing))),
            (Writing, Close(reset), Some((Closed(reset), Fail(reset)))),
            (Left, Queued, Some((Left, Nothing))),
            (Left, Drained, None),
            (Left, Full, None),
            (Left, Resumed, Some((Writing, Write))),
            (Left, Close(reset), Some((Closed(reset), Fail(reset)))),
            (Closed(late), Queued, Some((Closed(late), Fail(late)))),
            (Closed(late), Drained, Some((Closed(late), Fail(late)))),
            (Closed(late), Full, Some((Closed(late), Fail(late)))),
            (Closed(late), Resumed, Some((Closed(late), Fail(late)))),
            (Closed(late), Close(reset), Some((Closed(late), Nothing))),
        ];
        for (from, event, want) in table {
            let mut stage = from;
            let got = stage.handle(event);
            match want {
                Some((to, act)) => {
                    assert_eq!((stage, got), (to, Ok(act)), "{from:?} with {event:?}")
                }
                None => assert_eq!(
                    (stage, got),
                    (from, Err(NoSense { stage: from, event })),
                    "{from:?} with {event:?}"
                ),
            }
        }
    }
}
