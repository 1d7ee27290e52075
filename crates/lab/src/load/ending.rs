//! A run that is ended from outside, as by a signal.
//!
//! # Invariants
//! - Operations that are under way end; the next one of each rank fails, and with it the run, as where a rank fails by itself: phases
//!   that are over are in the record, which says why it is incomplete.
//! - Ranks that wait for others hear of it at once.

use super::meet::Meeting;
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};

/// Why a run is ended, for all its ranks in this process.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<State>);

#[derive(Debug, Default)]
struct State {
    why: OnceLock<String>,
    meeting: Mutex<Option<Arc<Meeting>>>,
}

impl Ending {
    /// Ends the run. The first reason stays.
    pub fn end(&self, why: &str) {
        let why = self.0.why.get_or_init(|| why.to_owned());
        if let Some(meeting) = &*self.0.meeting.lock() {
            meeting.break_up(why);
        }
    }

    /// Why it is ended, if it is.
    pub fn why(&self) -> Option<&str> {
        self.0.why.get().map(String::as_str)
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
