//! Messages that a batch of arrivals causes are written together: one system call for many answers.
//!
//! While the reader of a connection works through what one read gave it, connections to which something is sent on its stack
//! are remembered instead of written, and written when the batch is done. What may take long (a portal handler that does not
//! say it is quick) is run after what was held back is out, and with writing at once.
//!
//! Invariants: what is held back is written before the reader waits for anything, also when a handler panics; only this thread
//! writes to a connection that it holds (its stage is Writing).

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::conn::Conn;

type Held = SmallVec<[Arc<Conn>; 4]>;

thread_local! {
    /// What this stack holds back; None: nothing is to be. A property of the stack, not of any node.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Puts what was there before back, and writes what was held.
struct Restore(Option<Held>);

impl Drop for Restore {
    fn drop(&mut self) {
        let before = self.0.take();
        let held = HELD.with(|h| h.replace(before));
        write(held);
    }
}

fn write(held: Option<Held>) {
    for conn in held.into_iter().flatten() {
        conn.write_now();
    }
}

/// Runs `batch`; what it sends on this stack is written at its end.
pub(crate) fn together<T>(batch: impl FnOnce() -> T) -> T {
    let _restore = Restore(HELD.with(|h| h.replace(Some(Held::new()))));
    batch()
}

/// Writes what is held back, and runs `slow` with writing at once.
pub(crate) fn apart<T>(slow: impl FnOnce() -> T) -> T {
    let Some(held) = HELD.with(|h| h.take()) else {
        return slow();
    };
    write(Some(held));
    // Afterwards the batch goes on, with nothing held.
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            HELD.with(|h| *h.borrow_mut() = Some(Held::new()));
        }
    }
    let _again = Again;
    slow()
}

/// Writes what is held back; the batch goes on.
pub(super) fn flush() {
    let held = HELD.with(|h| h.borrow_mut().as_mut().map(std::mem::take));
    write(held);
}

/// Whether `conn`, which is to be written now, will be written at the end of the batch instead.
pub(super) fn holds(conn: &Arc<Conn>) -> bool {
    HELD.with(|h| match &mut *h.borrow_mut() {
        Some(held) => {
            held.push(conn.clone());
            true
        }
        None => false,
    })
}
