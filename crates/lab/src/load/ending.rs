//! A run that is ended from outside, as by a signal.
//!
//! # Invariants
//! - Operations that are under way end; the next one of each rank fails, and with it the run, as where a rank fails by itself: phases
//!   that are over are in the record, which says why it is incomplete.
//! - Ranks that wait for others hear of it at once.

use super::clock::Clock;
use super::failed::Failed;
use super::meet::Meeting;
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};

/// Why a run is ended, for all its ranks in this process.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<State>);

/// Why, and whether somebody outside of the run wanted it.
#[derive(Debug)]
struct Why {
    text: String,
    is_outside: bool,
}

#[derive(Debug, Default)]
struct State {
    why: OnceLock<Why>,
    meeting: Mutex<Option<Arc<Meeting>>>,
}

impl Ending {
    /// Ends the run. The first reason stays.
    pub fn end(&self, why: &str) {
        self.set(why, true);
    }

    /// Ends it because it cannot go on: what fails in another process is heard of in the middle of a phase too.
    pub(super) fn broken(&self, why: &str) {
        self.set(why, false);
    }

    fn set(&self, why: &str, is_outside: bool) {
        let text = why.to_owned();
        let why = self.0.why.get_or_init(|| Why { text, is_outside });
        if let Some(meeting) = &*self.0.meeting.lock() {
            meeting.break_up(&why.text);
        }
    }

    /// Why it is ended, if it is.
    pub fn why(&self) -> Option<&str> {
        self.0.why.get().map(|w| w.text.as_str())
    }

    /// How it failed, if it was ended; from outside also when.
    pub(super) fn failed(&self, clock: Clock) -> Option<Failed> {
        let why = self.0.why.get()?;
        Some(Failed::Apart(match why.is_outside {
            true => format!("{} after {:.3} s", why.text, clock.now() as f64 / 1e9),
            false => why.text.clone(),
        }))
    }

    /// Where its ranks meet.
    pub(super) fn at(&self, meeting: &Arc<Meeting>) {
        *self.0.meeting.lock() = Some(meeting.clone());
        if let Some(why) = self.why() {
            meeting.break_up(why);
        }
    }

    /// Fails once the run is ended.
    #[inline]
    pub(super) fn goes_on(&self) -> io::Result<()> {
        match self.why() {
            None => Ok(()),
            Some(why) => Err(io::Error::new(io::ErrorKind::Interrupted, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_belongs_to_what_came_from_outside() {
        let of = |end: fn(&Ending)| {
            let ending = Ending::default();
            end(&ending);
            ending.failed(Clock::start()).map(|f| f.to_string())
        };
        assert_eq!(of(|_| ()), None);
        assert_eq!(of(|e| e.broken("no seed")).as_deref(), Some("no seed"));
        let told = of(|e| e.end("ended by SIGTERM")).unwrap();
        assert!(told.starts_with("ended by SIGTERM after 0."), "{told}");
    }
}
