//! How long a trial's own operations may take: they stand in the queue that they are to explain.

use super::apart::give_up;
use std::process::exit;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Seconds that operations have, beside twice the window, and for each target.
const LEAST_S: f64 = 10.0;
const TARGET_S: f64 = 5.0;

/// Seconds that a trial's own operations may take which look at so many targets, with a window of so many seconds.
pub(super) fn seconds(window_s: f64, targets: usize) -> f64 {
    LEAST_S + 2.0 * window_s + TARGET_S * targets as f64
}

/// Ends this process if it is not dropped in time: an operation that waits in the kernel cannot be given up otherwise. Where it waits for a
/// directory in which another one works, the kernel lets go of it when that has ended; the command does not wait for that. What was
/// changed is put back by the process that does so.
pub(super) struct Limit(#[expect(dead_code, reason = "dropping it is what it is for")] Sender<()>);

impl Limit {
    /// From now on. When the time is over `told` goes to standard output and `why` to standard error.
    #[expect(
        clippy::disallowed_methods,
        reason = "a command of one thread, which may wait in the kernel"
    )]
    pub(super) fn new(seconds: f64, told: String, why: String) -> Limit {
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let waited = ended.recv_timeout(Duration::from_secs_f64(seconds));
            if waited == Err(RecvTimeoutError::Timeout) {
                // Nobody is left to hear of it.
                let _ = crate::trace::print(&told);
                eprintln!("coral: {why}");
                give_up();
                exit(1);
            }
        });
        Limit(done)
    }
}
