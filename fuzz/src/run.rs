//! Runs a target on input after input, and says which seed repeats a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use arbtest::arbtest;
use peak_alloc::PeakAlloc;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Target;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// One input may make the program hold so many bytes more than before it. The largest samples are of some 100 KB.
pub const MEMORY_MAX_BYTES: usize = 64 << 20;

/// One input may take so long, on a busy machine and without optimization. The others take milliseconds.
pub const TIME_MAX: Duration = Duration::from_secs(5);

/// An input that has not ended by then ends the program.
const HANG: Duration = Duration::from_secs(60);

/// The input under way: since when, and the line that repeats it.
static UNDER_WAY: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// One input at a time: the memory of the whole process is counted.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `target` on inputs drawn from `seed` until `budget` is over; how many there were. Panics with the line that repeats a
/// failure.
pub fn campaign(target: &Target, budget: Duration, seed: u64) -> u64 {
    let (begin, mut count) = (now(), 0);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    while begin.elapsed() < budget {
        // arbtest's seed: 32 bits of number, 32 bits of size
        let size = rng.random_range(16..=target.size_max);
        one(
            target,
            u64::from(rng.random::<u32>()) << 32 | u64::from(size),
        );
        count += 1;
    }
    count
}

/// Runs the one input of `seed`. Panics with the line that repeats a failure.
pub fn one(target: &Target, seed: u64) {
    let _turn = lock(&TURN);
    let watch = Watch::new(target, seed);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let begin = now();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        arbtest(target.property).seed(seed).run();
    }));
    let (took, held) = (begin.elapsed(), MEMORY.peak_usage().saturating_sub(before));
    if ran.is_err() {
        panic!("{}", watch.repeat("failed"));
    }
    assert!(
        took <= TIME_MAX,
        "{}",
        watch.repeat(&format!("took {took:?}"))
    );
    assert!(
        held <= MEMORY_MAX_BYTES,
        "{}",
        watch.repeat(&format!("held {held} bytes"))
    );
}

/// Looks for a smaller input that fails as the one of `seed` does, and prints what it finds.
pub fn minimize(target: &Target, seed: u64, budget: Duration) {
    arbtest(target.property)
        .seed(seed)
        .budget(budget)
        .minimize()
        .run();
}

/// An input under way, until it is dropped.
struct Watch<'a> {
    target: &'a Target,
    seed: u64,
}

impl<'a> Watch<'a> {
    fn new(target: &'a Target, seed: u64) -> Watch<'a> {
        static ONCE: Once = Once::new();
        ONCE.call_once(watch_for_hangs);
        let watch = Watch { target, seed };
        *lock(&UNDER_WAY) = Some((now(), watch.repeat("hangs")));
        watch
    }

    fn repeat(&self, what: &str) -> String {
        let (name, seed) = (self.target.name, self.seed);
        format!("{name} {what}; run it again: cargo xtask fuzz {name} --seed {seed:#018x}")
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        *lock(&UNDER_WAY) = None;
    }
}

/// Ends the program when an input does not end.
#[expect(
    clippy::disallowed_methods,
    reason = "only another thread sees that this one hangs"
)]
fn watch_for_hangs() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            if let Some((since, line)) = &*lock(&UNDER_WAY)
                && since.elapsed() > HANG
            {
                eprintln!("{line}");
                std::process::abort();
            }
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a tool that measures how long decoders take"
)]
fn now() -> Instant {
    Instant::now()
}

/// A seed that is another one in each run.
#[expect(
    clippy::disallowed_methods,
    reason = "the seed is printed, and each failure has its own"
)]
pub fn fresh_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |d| d.as_nanos() as u64)
}
