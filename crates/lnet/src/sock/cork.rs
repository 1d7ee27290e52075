//! Messages that a batch of arrivals causes are written together: one system call for many answers.
//!
//! While the reader of a connection works through what one read gave it, connections to which something is sent on its stack
//! are remembered instead of written, and written when the batch is done. What may take long (a portal handler that does not
//! say it is quick) is run after what was held back is out, and with writing at once. What nobody is in a hurry for may be left to the
//! end of the batch altogether.
//!
//! Invariants: what is held back is written, and what was left to the end is done, before the reader waits for anything, also when a
//! handler panics; only this thread writes to a connection that it holds (its stage is Writing).

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use smallvec::SmallVec;

use super::conn::Conn;

type Held = SmallVec<[Arc<Conn>; 4]>;
type AtEnd = Box<dyn FnOnce()>;

thread_local! {
    /// What this stack holds back; None: nothing is to be. A property of the stack, not of any node.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
    /// What is to be done when this batch ends; None: there is none.
    static AT_END: RefCell<Option<Vec<AtEnd>>> = const { RefCell::new(None) };
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

/// Puts what was there before back, and does what was left to the end.
struct Ends(Option<Vec<AtEnd>>);

impl Drop for Ends {
    fn drop(&mut self) {
        let before = self.0.take();
        let ends = AT_END.with(|e| e.replace(before)).unwrap_or_default();
        if !ends.is_empty() {
            // a stack that unwinds already must not panic
            let done = |end: AtEnd| drop(catch_unwind(AssertUnwindSafe(end)));
            gathered(|| ends.into_iter().for_each(done));
        }
    }
}

fn write(held: Option<Held>) {
    for conn in held.into_iter().flatten() {
        conn.write_now();
    }
}

fn gathered<T>(batch: impl FnOnce() -> T) -> T {
    let _restore = Restore(HELD.with(|h| h.replace(Some(Held::new()))));
    batch()
}

/// Runs `batch`; what it sends on this stack is written at its end.
pub(crate) fn together<T>(batch: impl FnOnce() -> T) -> T {
    let _ends = Ends(AT_END.with(|e| e.replace(Some(Vec::new()))));
    gathered(batch)
}

/// Does `end` when the batch of this stack ends, after what the batch has sent is written; at once where there is no batch.
pub(crate) fn at_end(end: impl FnOnce() + 'static) {
    let now = AT_END.with(|e| match &mut *e.borrow_mut() {
        Some(ends) => {
            ends.push(Box::new(end));
            None
        }
        None => Some(end),
    });
    if let Some(end) = now {
        end();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// What was done, in its order.
    #[derive(Clone, Default)]
    struct Log(Rc<RefCell<Vec<&'static str>>>);

    impl Log {
        fn did(&self, what: &'static str) {
            self.0.borrow_mut().push(what);
        }

        fn at_end(&self, what: &'static str) {
            let log = self.clone();
            at_end(move || log.did(what));
        }
    }

    #[test]
    fn what_is_left_to_the_end_is_done_then() {
        let log = Log::default();
        log.at_end("no batch");
        log.did("begins");
        together(|| {
            apart(|| log.at_end("left by what is slow"));
            log.at_end("left");
            together(|| {
                log.at_end("left by a batch in it");
                log.did("in it");
            });
            log.did("last");
        });
        log.at_end("no batch again");
        let want = [
            "no batch",
            "begins",
            "in it",
            "left by a batch in it",
            "last",
            "left by what is slow",
            "left",
            "no batch again",
        ];
        assert_eq!(*log.0.borrow(), want);
    }

    #[test]
    fn a_panic_loses_nothing() {
        let log = Log::default();
        let batch = || {
            together(|| {
                log.at_end("before");
                at_end(|| panic!("in what was left"));
                log.at_end("after");
                panic!("in the batch");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(batch)).is_err());
        log.at_end("no batch");
        assert_eq!(*log.0.borrow(), ["before", "after", "no batch"]);
    }
}
