//! What counting costs: nanoseconds for a counter and for a record of a histogram, by one thread and by two on the same one,
//! and bytes allocated on the way.

use std::hint::black_box;
use std::thread::scope;

use coral_metrics::{Counter, Histogram};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const ROUNDS: u64 = 20_000_000;

/// Nanoseconds for one call when `threads` of them make [`ROUNDS`] each.
#[expect(clippy::disallowed_methods, reason = "it measures the machine")]
fn ns(threads: usize, rounds: u64, call: impl Fn(u64) + Sync) -> f64 {
    let begun = std::time::Instant::now();
    scope(|s| {
        for _ in 1..threads {
            s.spawn(|| (0..rounds).for_each(&call));
        }
        (0..rounds).for_each(&call);
    });
    begun.elapsed().as_nanos() as f64 / rounds as f64
}

fn main() {
    let (counter, histogram) = (Counter::default(), Histogram::default());
    // as latencies go: 1 us to 1 ms, in no order
    let value = |i: u64| 1000 + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44);
    let mutex = parking_lot::Mutex::new(hdrhistogram::Histogram::<u64>::new(1).unwrap());
    mutex.lock().record(1 << 40).unwrap();
    for threads in [1, 2] {
        let add = ns(threads, ROUNDS, |i| black_box(&counter).add(black_box(i)));
        let record = ns(threads, ROUNDS, |i| black_box(&histogram).record(value(i)));
        let locked = ns(threads, ROUNDS / 10, |i| {
            mutex.lock().record(black_box(value(i))).unwrap();
        });
        println!(
            "{threads} thread(s): {add:.1} ns per counter add, {record:.1} ns per histogram record (hdrhistogram behind a mutex: {locked:.1} ns)"
        );
    }
    ALLOCATED.reset_peak_usage();
    let before = ALLOCATED.current_usage();
    counter.inc();
    histogram.record(black_box(4096));
    println!(
        "{} bytes allocated by an add and a record",
        ALLOCATED.peak_usage() - before
    );
}
