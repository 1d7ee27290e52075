//! What a rank counts while it works: operations, bytes, and how long each operation took.
//!
//! One clock reading an operation: the end of one is the start of the next, unless there is work between them that is
//! not the file system's ([`Meter::begin`]). That is the cost that keeps 500,000 samples a second cheap.

use super::clock::Clock;
use super::failed::Failed;
use super::progress::Line;
use super::text::c_exponent;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};

/// Longest latency that is told from longer ones, nanoseconds: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Shares at which a distribution is written down.
const CDF: [f64; 22] = [
    0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95,
    0.975, 0.99, 0.995, 0.999, 0.9999, 1.0,
];
/// Digits of a latency that are right.
const DIGITS: u8 = 3;

/// Counts of one rank in one phase.
pub struct Meter<'a> {
    clock: Clock,
    line: &'a Line,
    last: i64,
    operations: u64,
    bytes: u64,
    latency: Latency,
    trace: Option<Trace>,
}

impl<'a> Meter<'a> {
    /// Starts now.
    pub fn start(clock: Clock, line: &'a Line) -> Meter<'a> {
        Meter {
            clock,
            line,
            last: clock.now(),
            operations: 0,
            bytes: 0,
            latency: Latency::new(),
            trace: None,
        }
    }

    /// Writes a line for each operation as well.
    pub fn with_trace(mut self, trace: Option<Trace>) -> Meter<'a> {
        self.trace = trace;
        self
    }

    /// The next operation starts now, not at the end of the last one.
    #[inline]
    pub fn begin(&mut self) {
        self.last = self.clock.now();
    }

    /// The time of the last reading.
    pub fn now(&self) -> i64 {
        self.last
    }

    /// An operation that moved `bytes` is done; the time now.
    #[inline]
    pub fn done(&mut self, bytes: u64) -> i64 {
        let now = self.clock.now();
        let took = (now - self.last).max(0) as u64;
        self.latency.add(took);
        self.operations += 1;
        self.bytes += bytes;
        self.line.add(bytes);
        if let Some(trace) = &mut self.trace {
            trace.add(self.last, took, bytes);
        }
        self.last = now;
        now
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The latencies, and the trace written out.
    pub fn finish(self) -> Result<Latency, Failed> {
        if let Some(trace) = self.trace {
            trace.finish()?;
        }
        Ok(self.latency)
    }
}

/// How long operations took.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

impl Latency {
    /// Of no operation yet.
    pub fn new() -> Latency {
        Latency(
            Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are constants"),
        )
    }

    /// Adds one, nanoseconds. What takes longer than an hour counts as an hour.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds those of another rank.
    pub fn merge(&mut self, other: &Latency) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// As bytes, for another process: pairs of value and count.
    pub fn to_bytes(&self) -> Vec<u8> {
        let pairs = self.0.iter_recorded();
        pairs
            .flat_map(|v| [v.value_iterated_to(), v.count_at_value()])
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// From [`Latency::to_bytes`]; what is cut off is left out.
    pub fn from_bytes(bytes: &[u8]) -> Latency {
        let mut latency = Latency::new();
        for pair in bytes.as_chunks::<16>().0 {
            let (value, count) = pair.split_at(8);
            let number = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
            latency.0.saturating_record_n(number(value), number(count));
        }
        latency
    }

    /// What the record says of it.
    pub fn summary(&self) -> LatencySummary {
        let at = |quantile| self.0.value_at_quantile(quantile);
        LatencySummary {
            samples: self.0.len(),
            min: if self.0.is_empty() { 0 } else { self.0.min() },
            mean: self.0.mean(),
            max: self.0.max(),
            stdev: self.0.stdev(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            cdf: CDF.iter().map(|q| (at(*q), *q)).collect(),
        }
    }
}

/// Latency of operations, nanoseconds. Closed loop: an operation starts when the last one has ended.
#[derive(Clone, Debug, Serialize)]
pub struct LatencySummary {
    /// Operations.
    pub samples: u64,
    /// Shortest.
    pub min: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Longest.
    pub max: u64,
    /// Deviation of the population.
    pub stdev: f64,
    /// Half took at most this.
    pub p50: u64,
    /// 90% took at most this.
    pub p90: u64,
    /// 99% took at most this.
    pub p99: u64,
    /// 99.9% took at most this.
    pub p999: u64,
    /// 99.99% took at most this.
    pub p9999: u64,
    /// The distribution: nanoseconds, and the share of operations that took at most so long.
    pub cdf: Vec<(u64, f64)>,
}

/// A line for each operation in a file of IOR's form: start, duration, bytes per second.
pub struct Trace {
    path: String,
    file: BufWriter<File>,
    zero: i64,
    failed: Option<std::io::Error>,
    /// Bytes that an operation counts for where it moved none.
    bytes: u64,
}

/// What is gathered before it is written: a million lines of IOR's buffer are about this long.
const TRACE_BUFFER: usize = 1 << 20;

impl Trace {
    /// Makes the file. Times count from `zero`; every operation counts for `bytes`.
    pub fn create(path: String, zero: i64, bytes: u64) -> Result<Trace, Failed> {
        let mut file = BufWriter::with_capacity(
            TRACE_BUFFER,
            File::create(&path).map_err(Failed::file(&path))?,
        );
        file.write_all(b"time,runtime,tp\n")
            .map_err(Failed::file(&path))?;
        Ok(Trace {
            path,
            file,
            zero,
            failed: None,
            bytes,
        })
    }

    fn add(&mut self, start: i64, took: u64, _moved: u64) {
        let (time, took) = ((start - self.zero) as f64 / 1e9, took as f64 / 1e9);
        let wrote = writeln!(
            self.file,
            "{},{},{}",
            c_exponent(time, 8),
            c_exponent(took, 8),
            c_exponent(self.bytes as f64 / took, 6)
        );
        if let Err(e) = wrote {
            self.failed.get_or_insert(e);
        }
    }

    fn finish(mut self) -> Result<(), Failed> {
        let flushed = self.file.flush();
        self.failed
            .map_or(flushed, Err)
            .map_err(Failed::file(self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_counts_what_was_done_and_everyone_may_read_it() {
        let line = Line::default();
        let mut meter = Meter::start(Clock::start(), &line);
        for _ in 0..1000 {
            meter.done(4096);
        }
        assert_eq!((meter.operations(), meter.bytes()), (1000, 4_096_000));
        assert_eq!(line.read(), (1000, 4_096_000));
        assert_eq!(meter.finish().expect("no trace").summary().samples, 1000);
    }

    #[test]
    fn latencies_merge_and_travel_without_loss() {
        let mut a = Latency::new();
        let mut b = Latency::new();
        for i in 1..=100_000_u64 {
            if i % 2 == 0 { &mut a } else { &mut b }.add(i * 1000);
        }
        a.merge(&Latency::from_bytes(&b.to_bytes()));
        let s = a.summary();
        assert_eq!(s.samples, 100_000);
        let near = |got: u64, want: f64| (got as f64 - want).abs() <= want / 500.0;
        assert!(
            near(s.p50, 50e6) && near(s.p99, 99e6) && near(s.max, 100e6),
            "{s:?}"
        );
        assert!(
            near(s.min, 1000.0) && near(s.mean as u64, 50_000_500.0),
            "{s:?}"
        );
        a.add(u64::MAX);
        assert!(a.summary().max >= LONGEST_NS, "an hour stands for longer");
    }

    #[test]
    fn a_trace_has_a_line_for_each_operation() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t.csv").to_string_lossy().into_owned();
        let line = Line::default();
        let trace = Trace::create(path.clone(), 0, 4096).expect("a file");
        let mut meter = Meter::start(Clock::start(), &line).with_trace(Some(trace));
        for _ in 0..3 {
            meter.done(4096);
        }
        meter.finish().expect("written");
        let text = std::fs::read_to_string(path).expect("the file");
        assert_eq!(text.lines().count(), 4);
        assert!(
            text.lines().skip(1).all(|l| l.split(',').count() == 3),
            "{text}"
        );
    }
}
