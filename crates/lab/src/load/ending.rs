//! A run that is ended before it is over: from outside, as by a signal, or because a rank of it failed.
//!
//! # Invariants
//! - Where the meeting of its ranks breaks the run is ended, and where the run is ended their meeting breaks.
//! - Operations that are under way end; the next one of each rank fails, and with it the run, as where a rank fails by itself: phases
//!   that are over are in the record, which says why it is incomplete.
//! - Ranks that wait for others hear of it at once.

use super::clock::Clock;
use super::failed::Failed;
use super::meet::Meeting;
use super::pulse::Process;
use crate::clock::now;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Processes that are given up are ended by force after this.
pub(super) const FORCE_AFTER: Duration = Duration::from_secs(5);
/// A process that a signal ends waits so long for whoever started it to say the same to all.
const TELL_AFTER: Duration = Duration::from_millis(300);
/// So long at most it is waited until they have ended, and how often it is looked. A process that ends while a mount has an operation
/// of it is there until the mount gives that up, after 5 s: this one too, beside the others.
const OTHERS_LIMIT: Duration = Duration::from_secs(3);
const OTHERS_LOOK: Duration = Duration::from_millis(10);

/// Why a run is ended, for all its ranks in this process.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<State>);

/// Why, and who wanted it.
#[derive(Debug)]
struct Why {
    text: String,
    by: By,
}

/// Who ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Somebody outside of it, who has told this process.
    OneHere,
    /// The same, and whoever started this process has said so: all processes are told.
    OneThere,
    /// It cannot go on.
    Itself,
}

#[derive(Debug, Default)]
struct State {
    why: OnceLock<Why>,
    /// Those that wait for it ([`Ending::wait`]).
    waiting: Mutex<()>,
    ended: Condvar,
    /// It has this ending, so it is not kept by it.
    meeting: Mutex<Weak<Meeting>>,
    /// Other processes of the run that this one has started, and that have not ended.
    others: AtomicUsize,
    /// They are not waited for any more.
    given_up: OnceLock<Instant>,
}

impl Ending {
    /// Ends the run. The first reason stays.
    pub fn end(&self, why: &str) {
        self.set(why, By::OneHere);
    }

    /// Ends it for a signal to this process. It may have come to all processes of the run, as from a terminal: then the one where the
    /// ranks meet says so, and this one waits a moment for that.
    pub fn end_by_signal(&self, name: &str) {
        if !self.is_of_all() {
            self.wait(TELL_AFTER);
        }
        self.end(&format!("ended by {name}"));
    }

    /// Ends it because all processes of the run are told to.
    pub(super) fn told(&self, why: &str) {
        self.set(why, By::OneThere);
    }

    /// Ends it because it cannot go on: what fails in another process is heard of in the middle of a phase too.
    pub(super) fn broken(&self, why: &str) {
        self.set(why, By::Itself);
    }

    fn set(&self, why: &str, by: By) {
        let text = why.to_owned();
        let why = self.0.why.get_or_init(|| Why { text, by });
        // Who has looked and does not wait yet holds this.
        drop(self.0.waiting.lock());
        self.0.ended.notify_all();
        if let Some(meeting) = self.meeting() {
            meeting.break_up(&why.text);
        }
    }

    fn meeting(&self) -> Option<Arc<Meeting>> {
        self.0.meeting.lock().upgrade()
    }

    /// Why it is ended, if it is.
    pub fn why(&self) -> Option<&str> {
        self.0.why.get().map(|w| w.text.as_str())
    }

    /// Why, where it was ended from outside.
    pub(super) fn outside(&self) -> Option<&str> {
        let why = self.0.why.get().filter(|w| w.by != By::Itself)?;
        Some(&why.text)
    }

    /// Why, for the other processes of the run, where somebody has ended this `process` of it alone.
    pub(super) fn of_this_alone(&self, process: &Process) -> Option<String> {
        let why = self.0.why.get().filter(|w| w.by == By::OneHere)?;
        let is_alone = !self.is_of_all();
        is_alone.then(|| format!("{} {}", process.does("was", "were"), why.text))
    }

    /// How it failed, if it was ended; from outside also when.
    pub(super) fn failed(&self, clock: Clock) -> Option<Failed> {
        let why = self.0.why.get()?;
        Some(Failed::Apart(match why.by != By::Itself {
            true => format!("{} after {:.3} s", why.text, clock.now() as f64 / 1e9),
            false => why.text.clone(),
        }))
    }

    /// Waits so long, or until the run is ended.
    pub(super) fn wait(&self, time: Duration) {
        // None: longer than a clock counts.
        let until = now().checked_add(time);
        let mut waiting = self.0.waiting.lock();
        while self.why().is_none() && until.is_none_or(|until| now() < until) {
            match until {
                Some(until) => {
                    self.0.ended.wait_until(&mut waiting, until);
                }
                None => self.0.ended.wait(&mut waiting),
            }
        }
    }

    /// The ranks meet in this process, which speaks for all of them.
    pub(super) fn is_of_all(&self) -> bool {
        self.meeting().is_some()
    }

    /// Who has not ended yet, in a sentence, and whether there is no record for that: for whoever waits no longer.
    /// None: another process tells it.
    pub(super) fn left_over(&self) -> Option<String> {
        let meeting = self.meeting()?;
        let left = meeting.not_left();
        let still = meeting.still();
        let is_still = |rank: &u32| still.iter().any(|p| p.ranks.contains(rank));
        let at_work: Vec<u32> = left.iter().copied().filter(|r| !is_still(r)).collect();
        let at_work = match &at_work[..] {
            [] if !still.is_empty() => None,
            [] => Some("the ranks have ended, and their mounts or processes have not".to_owned()),
            [one] => Some(format!("rank {one} is in an operation that has not ended")),
            several => Some(format!(
                "ranks {} are in operations that have not ended",
                super::text::ranks(several)
            )),
        };
        let still = still.iter().map(|p| p.does("stands still", "stand still"));
        let who: Vec<String> = at_work.into_iter().chain(still).collect();
        let who = who.join("; ");
        // The ranks hand it over before they leave, and it is taken to be written.
        let record = match left.is_empty() && !meeting.has_record() {
            true => "",
            false => ", and there is no record",
        };
        Some(format!("{who}; nothing is waited for any longer{record}"))
    }

    /// Other processes of the run are not waited for any more: they end, by force after a while.
    pub(super) fn give_up(&self) {
        let _ = self.0.given_up.set(now());
    }

    /// Since when.
    pub(super) fn given_up(&self) -> Option<Instant> {
        self.0.given_up.get().copied()
    }

    /// So many other processes have not ended.
    pub(super) fn others_are(&self, count: usize) {
        self.0.others.store(count, Ordering::Relaxed);
    }

    /// Waits until no other process of the run is there that this one has started, until some seconds after they were given up.
    pub(super) fn wait_for_others(&self) {
        let until = self.given_up().unwrap_or_else(now) + OTHERS_LIMIT;
        while self.0.others.load(Ordering::Relaxed) > 0 && now() < until {
            super::clock::sleep(OTHERS_LOOK);
        }
    }

    /// Where its ranks meet.
    pub(super) fn at(&self, meeting: &Arc<Meeting>) {
        *self.0.meeting.lock() = Arc::downgrade(meeting);
        meeting.ends(self);
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

    #[test]
    fn who_waits_hears_of_the_end() {
        let ending = Ending::default();
        std::thread::scope(|s| {
            for seconds in [600, u64::MAX] {
                let ending = &ending;
                s.spawn(move || ending.wait(Duration::from_secs(seconds)));
            }
            ending.wait(Duration::from_millis(1));
            assert_eq!(ending.why(), None, "nothing has ended it");
            ending.broken("no disk");
        });
    }
}
