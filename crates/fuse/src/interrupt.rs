//! FUSE_INTERRUPT: which requests are waiting, and when a signal may end one.
//!
//! The kernel sends an interrupt once, at the first signal of any kind, and then waits for the answer. A lock wait
//! (F_SETLKW, flock) ends with EINTR at any signal, as POSIX wants. Everything else behaves as on a local file system and in
//! Lustre (`libcfs/include/libcfs/linux/linux-wait.h`, LUSTRE_FATAL_SIGS): only a signal that is about to end the program
//! counts; a timer or a child's death does not make open(2) fail. So after an interrupt the caller's pending signals are
//! looked at, and again every [`RECHECK`] until the answer is there.
//!
//! Invariant: an interrupt that overtakes its request's registration is kept ([`EARLY`] of them) and found by it.

use std::collections::VecDeque;
use std::time::Duration;

use coral_wire::Errno;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::nodes::IdMap;
use crate::reply::Reply;

/// Interrupts kept for requests that have not gone to wait (yet). Those of requests answered meanwhile age out.
const EARLY: usize = 1024;
/// How often a signalled caller's pending signals are looked at again.
const RECHECK: Duration = Duration::from_millis(100);
/// SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM as bits of the masks in /proc/PID/status.
const FATAL: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 8 | 1 << 14;

#[derive(Default)]
struct Inner {
    waiting: IdMap<u64, oneshot::Sender<()>>,
    early: VecDeque<u64>,
}

/// The waiting requests of one mount.
#[derive(Default)]
pub(crate) struct Waiting {
    inner: Mutex<Inner>,
}

impl Waiting {
    /// Registers request `unique`; the receiver fires when it is interrupted.
    pub fn register(&self, unique: u64) -> oneshot::Receiver<()> {
        let (tx, rx) = oneshot::channel();
        let inner = &mut *self.inner.lock();
        match inner.early.iter().position(|&u| u == unique) {
            Some(at) => {
                inner.early.remove(at);
                let _ = tx.send(());
            }
            None => {
                inner.waiting.insert(unique, tx);
            }
        }
        rx
    }

    /// The request was answered.
    pub fn done(&self, unique: u64) {
        self.inner.lock().waiting.remove(&unique);
    }

    /// The kernel interrupts request `unique`.
    pub fn interrupt(&self, unique: u64) {
        let inner = &mut *self.inner.lock();
        match inner.waiting.remove(&unique) {
            Some(tx) => {
                let _ = tx.send(());
            }
            None => {
                if inner.early.len() == EARLY {
                    inner.early.pop_front();
                }
                inner.early.push_back(unique);
            }
        }
    }

    /// Requests waiting now.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.inner.lock().waiting.len()
    }
}

/// Drives `fut` to its answer, or drops it and answers EINTR. `any_signal`: a lock wait. `pid`: who asked.
pub(crate) async fn drive(
    mut fut: BoxFuture<'static, Reply>,
    interrupted: oneshot::Receiver<()>,
    any_signal: bool,
    pid: u32,
) -> Reply {
    tokio::select! {
        biased;
        r = &mut fut => return r,
        // Err: the sender went with the table, at the end of the session; then there is nobody to interrupt.
        r = interrupted => if r.is_err() { return fut.await },
    }
    loop {
        if any_signal || fatal_pending(pid) {
            return Err(Errno(libc::EINTR));
        }
        tokio::select! {
            biased;
            r = &mut fut => return r,
            () = tokio::time::sleep(RECHECK) => {}
        }
    }
}

/// Whether the program is about to be ended by a signal. Unknown callers (other pid namespace) count as yes.
fn fatal_pending(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => pending_mask(&status) & FATAL != 0,
        Err(_) => true,
    }
}

/// Signals pending for the thread or its process.
fn pending_mask(status: &str) -> u64 {
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    field("SigPnd:").unwrap_or(0) | field("ShdPnd:").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn an_early_interrupt_is_not_lost() {
        let w = Waiting::default();
        w.interrupt(8);
        assert!(matches!(w.register(8).now_or_never(), Some(Ok(()))));
        let mut rx = w.register(10);
        assert!((&mut rx).now_or_never().is_none());
        w.interrupt(10);
        assert!(matches!(rx.now_or_never(), Some(Ok(()))));
        assert_eq!(w.len(), 0);
    }

    #[test]
    fn early_interrupts_are_bounded() {
        let w = Waiting::default();
        for u in 0..10 * EARLY as u64 {
            w.interrupt(u);
        }
        assert_eq!(w.inner.lock().early.len(), EARLY);
    }

    #[tokio::test]
    async fn a_lock_wait_ends_at_any_signal() {
        let w = Waiting::default();
        let rx = w.register(2);
        w.interrupt(2);
        let r = drive(
            Box::pin(std::future::pending()),
            rx,
            true,
            std::process::id(),
        )
        .await;
        assert!(matches!(r, Err(Errno(libc::EINTR))));
    }

    #[tokio::test(start_paused = true)]
    async fn other_requests_outlast_harmless_signals() {
        let w = Waiting::default();
        let rx = w.register(2);
        w.interrupt(2);
        let slow = Box::pin(async {
            tokio::time::sleep(RECHECK * 5).await;
            Err(Errno(libc::ENOENT))
        });
        let r = drive(slow, rx, false, std::process::id()).await;
        assert!(
            matches!(r, Err(Errno(libc::ENOENT))),
            "no fatal signal is pending for this test"
        );
    }

    #[test]
    fn signal_masks() {
        let s = "Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000004000\nSigCgt:\tffffffffffffffff\n";
        assert_eq!(pending_mask(s), 1 << 8 | 1 << 14);
        assert_eq!(
            pending_mask("Name:\tx\nShdPnd:\t0000000000002000\n") & FATAL,
            0,
            "SIGALRM is not fatal"
        );
    }
}
