//! The end of a process whose run does not end: a rank of it is in an operation that nobody answers.

use super::place::{Environment, RANKS};
use super::{Duration, Ending, Mounted};
use crate::clock::spawn;
use std::io::Write;

/// Where a run is ended by a signal or by a failure, operations that are under way have so long to end. Its mounts and processes then have
/// 5 s at most, and a mount that has an operation of a process which ends takes 5 s to give it up: 20 s are for all of it.
pub const END_LIMIT: Duration = Duration::from_secs(12);
/// Ranks in other processes than rank 0's have so long after a failure: it has what they did, or goes on without.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// A run that has failed says why after this, where it has not ended and said so by then.
const SAY_AFTER: Duration = Duration::from_secs(1);

/// Ends this process under its ranks, and says which of them are in an operation. `when` is the beginning of a sentence.
pub fn end_by_force(tool: &str, when: &str, mounted: &Mounted, ending: &Ending, code: i32) -> ! {
    if let Some(left) = ending.left_over() {
        say(tool, &format!("{when}: {left}"));
    }
    ending.give_up();
    mounted.abandon();
    ending.wait_for_others();
    std::process::exit(code);
}

/// Sees to it that this process ends after its run has failed; one that was ended from outside is seen to there.
pub(super) fn watch(
    tool: &str,
    env: &Environment,
    mounted: &Mounted,
    ending: &Ending,
) -> std::io::Result<()> {
    // Whoever started it tells it when its time is over.
    if env.var(RANKS).is_some() {
        return Ok(());
    }
    let (tool, mounted, ending) = (tool.to_owned(), mounted.clone(), ending.clone());
    let watch = move || {
        ending.wait(Duration::MAX);
        let Some(why) = ending.why().filter(|_| ending.outside().is_none()) else {
            return;
        };
        let pause = crate::load::clock::sleep;
        pause(SAY_AFTER);
        let limit = match ending.is_of_all() {
            true => {
                let limit = END_LIMIT.as_secs();
                say(
                    &tool,
                    &format!("{why}; what is under way has {limit} s to end"),
                );
                END_LIMIT
            }
            false => LEAVE_LIMIT,
        };
        pause(limit - SAY_AFTER);
        let when = format!("{} s after that", limit.as_secs());
        end_by_force(&tool, &when, &mounted, &ending, 1);
    };
    spawn("watch", watch).map(drop)
}

/// A line for whoever started the run.
pub(super) fn say(tool: &str, what: &str) {
    // It may be closed.
    let _ = writeln!(std::io::stderr(), "{tool}: {what}");
}
