//! FUSE_INTERRUPT: which requests are waiting, and when a signal may end one.
//!
//! The kernel sends an interrupt once, at the first signal of any kind, and then waits for the answer. A lock wait
//! (F_SETLKW, flock) ends with EINTR at any signal, as POSIX wants. Everything else behaves as on a local file system and in
//! Lustre (`libcfs/include/libcfs/linux/linux-wait.h`, LUSTRE_FATAL_SIGS): only a signal that is about to end the program
//! counts; a timer or a child's death does not make open(2) fail. So after an interrupt the caller's pending signals are
//! looked at, and again every [`RECHECK`] until the answer is there.
//!
//! Invariants:
//! * An interrupt that overtakes its request's registration is kept ([`EARLY`] of them) and found by it.
//! * A program that is being killed is gone only when what it changes has been changed: else its locks would be given to others
//!   first. A request that changes something ends early only when a server cannot be reached, as in Lustre, where a signal counts
//!   after the request has timed out.
//! * Any other request than a lock wait is heard to its end, also when nobody waits for it: it is dropped only when a server cannot
//!   be reached.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::abi::op;
use crate::error::OpError;
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

/// When a signal ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Any signal does: a lock wait.
    AtAnySignal,
    /// One that ends the program: it only looks.
    WhenKilled,
    /// One that ends the program, when a server cannot be reached: it changes something, opens or closes it, or brings the kernel
    /// names to know.
    WhenKilledAndCutOff,
}

impl Ends {
    /// Of a request that is no lock wait.
    pub(crate) fn of(opcode: u32) -> Ends {
        match opcode {
            op::GETATTR
            | op::READLINK
            | op::READ
            | op::STATFS
            | op::FSYNC
            | op::GETXATTR
            | op::LISTXATTR
            | op::READDIR
            | op::FSYNCDIR
            | op::GETLK
            | op::ACCESS
            | op::LSEEK
            | op::SYNCFS
            | op::STATX => Ends::WhenKilled,
            _ => Ends::WhenKilledAndCutOff,
        }
    }
}

/// Drives `fut` to its answer, or answers EINTR when a signal ends it. `pid`: who asked; `cut_off`: whether a server cannot be
/// reached.
pub(crate) async fn drive(
    mut fut: BoxFuture<'static, Reply>,
    interrupted: oneshot::Receiver<()>,
    ends: Ends,
    pid: u32,
    cut_off: impl Fn() -> bool,
) -> Reply {
    tokio::select! {
        biased;
        r = &mut fut => return r,
        // Err: the sender went with the table, at the end of the session; then there is nobody to interrupt.
        r = interrupted => if r.is_err() { return fut.await },
    }
    loop {
        let eintr = Err(OpError::Interrupted);
        match ends {
            Ends::AtAnySignal => return eintr,
            Ends::WhenKilled | Ends::WhenKilledAndCutOff if !fatal_pending(pid) => {}
            _ if cut_off() => return eintr,
            Ends::WhenKilled => {
                tokio::spawn(fut);
                return eintr;
            }
            Ends::WhenKilledAndCutOff => {}
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
            Ends::AtAnySignal,
            std::process::id(),
            || false,
        )
        .await;
        assert!(matches!(r, Err(OpError::Interrupted)));
    }

    #[tokio::test(start_paused = true)]
    async fn other_requests_outlast_harmless_signals() {
        let w = Waiting::default();
        let rx = w.register(2);
        w.interrupt(2);
        let slow = Box::pin(async {
            tokio::time::sleep(RECHECK * 5).await;
            Err(OpError::NotHere)
        });
        let r = drive(slow, rx, Ends::WhenKilled, std::process::id(), || true).await;
        assert!(
            matches!(r, Err(OpError::NotHere)),
            "no fatal signal is pending for this test"
        );
    }

    /// Of a process that is no more: it counts as killed.
    const GONE: u32 = u32::MAX;

    #[tokio::test(start_paused = true)]
    async fn a_killed_program_is_gone_when_its_change_is_done() {
        let w = Waiting::default();
        let rx = w.register(2);
        w.interrupt(2);
        let (done, mut ended) = oneshot::channel();
        let change = Box::pin(async {
            tokio::time::sleep(RECHECK * 50).await;
            let _ = done.send(());
            Err(OpError::NotHere)
        });
        let ends = Ends::of(op::SETATTR);
        let r = drive(change, rx, ends, GONE, || false).await;
        assert!(matches!(r, Err(OpError::NotHere)));
        assert!(ended.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_program_does_not_wait_for_servers_that_are_away() {
        let w = Waiting::default();
        let rx = w.register(2);
        w.interrupt(2);
        let begun = tokio::time::Instant::now();
        // the servers go while it waits
        let cut_off = || begun.elapsed() > RECHECK * 5;
        let never = Box::pin(std::future::pending());
        let r = drive(never, rx, Ends::of(op::RENAME2), GONE, cut_off).await;
        assert!(matches!(r, Err(OpError::Interrupted)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_killed_program_looked_at_is_heard_to_its_end() {
        let w = Waiting::default();
        let rx = w.register(2);
        w.interrupt(2);
        let (done, ended) = oneshot::channel();
        let look = Box::pin(async {
            tokio::time::sleep(RECHECK * 5).await;
            let _ = done.send(());
            Err(OpError::NotHere)
        });
        let r = drive(look, rx, Ends::of(op::GETATTR), GONE, || false).await;
        assert!(matches!(r, Err(OpError::Interrupted)));
        ended.await.expect("it goes on");
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
