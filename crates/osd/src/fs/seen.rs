//! How many bytes of tables may be seen before they are written, on one answer of the kernel that there is room.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// So many on one answer. The ballast has more, which they get if the disk has filled up meanwhile.
const MAX_BYTES: u64 = 256 << 10;
/// An answer that is older is none.
const ANSWER_AGE: Duration = Duration::from_secs(1);

/// What is left of the last answer, and when it was given.
#[derive(Default)]
pub(super) struct SeenAllowance(Mutex<Option<(u64, Instant)>>);

impl SeenAllowance {
    /// Whether `bytes` more may be seen. `is_roomy` asks the kernel.
    pub(super) fn take(&self, bytes: u64, is_roomy: impl FnOnce() -> bool) -> bool {
        let mut answer = self.0.lock();
        if let Some((left, given)) = &mut *answer
            && *left >= bytes
            && given.elapsed() < ANSWER_AGE
        {
            *left -= bytes;
            return true;
        }
        let roomy = bytes <= MAX_BYTES && is_roomy();
        *answer = roomy.then(|| (MAX_BYTES - bytes, Instant::now()));
        roomy
    }

    /// There was no room after all.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_used_up_and_gets_old() {
        let (allowance, asked, room) = (SeenAllowance::default(), Cell::new(0), Cell::new(true));
        let take = |bytes| {
            allowance.take(bytes, || {
                asked.set(asked.get() + 1);
                room.get()
            })
        };
        assert!(take(1000) && take(MAX_BYTES - 1000));
        assert_eq!(asked.get(), 1);
        assert!(take(1));
        assert_eq!(asked.get(), 2, "the first was used up");
        room.set(false);
        assert!(take(1));
        tokio::time::advance(ANSWER_AGE).await;
        assert!(!take(1), "the second is old");
        assert!(!take(1));
        assert_eq!(asked.get(), 4);
        room.set(true);
        assert!(!take(MAX_BYTES + 1), "too much for one");
        assert!(take(1));
        room.set(false);
        allowance.forget();
        assert!(!take(1));
    }
}
