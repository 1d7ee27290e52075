//! Counts panics of this process, on whatever thread or task: tokio keeps one of a task to itself.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Begins to count, with the first call; gives how many there were.
pub fn panics() -> usize {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            print(info);
        }));
    });
    PANICS.load(Ordering::SeqCst)
}
