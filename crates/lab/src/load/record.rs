//! Our own record of a run, as JSON.
//!
//! It holds what the originals leave out or show in a way that misleads: raw points, both deviations by name, what each
//! rank really moved, latencies as percentiles, the stonewall's four figures. What was printed stands beside it.

use super::meter::{Latency, LatencySummary};
use super::progress::Board;
use super::pulse::Process;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The format's name and version.
pub const FORMAT: &str = "coral-load-1";

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: &'static str,
    /// The name it was called by.
    pub tool: String,
    /// Coral's version.
    pub version: &'static str,
    /// The command line.
    pub command: Vec<String>,
    /// Seconds since 1970.
    pub began_unix_s: u64,
    /// Seconds since 1970; 0 in a record that a killed run left.
    pub ended_unix_s: u64,
    /// The run ended well: all phases ran to their end, no operation failed, nor did a process.
    pub complete: bool,
    /// Why not.
    pub why_incomplete: Option<String>,
    /// Operations that failed where the original goes on after a warning: they are counted among the others.
    pub failed_operations: u64,
    /// How it was worked on: "POSIX" by system calls, "CORAL" by the library, "DUMMY" not at all. What file system a path is on is
    /// not known here.
    pub interface: &'static str,
    /// Ranks.
    pub ranks: u32,
    /// Host of each rank.
    pub hosts: Vec<String>,
    /// Each rank's clock is within this of the common time, nanoseconds.
    pub clock_uncertainty_ns: Vec<u64>,
    /// Parameters after defaults and the command line.
    pub parameters: Value,
    /// Processes that stood still for some seconds while the ranks worked: figures of that time have it in them.
    pub stood_still: Vec<StoodStill>,
    /// What was measured, in order.
    pub phases: Vec<Phase>,
    /// Over the repetitions of a phase: name, figures.
    pub summary: Map<String, Value>,
    /// What a reader should know, as an option without effect.
    pub notes: Vec<String>,
}

impl Record {
    /// Writes down the phase that just ended.
    pub fn push(&mut self, phase: Phase) {
        self.phases.push(phase);
    }
}

/// A phase: a time in which all ranks do the same.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// As in "write", "File creation".
    pub name: String,
    /// Test of a script, from 0.
    pub test: u32,
    /// Repetition, from 0.
    pub repetition: u32,
    /// From the first rank's start to the last rank's end, seconds since the run's zero.
    pub start_s: f64,
    /// Its end.
    pub end_s: f64,
    /// Operations of all ranks.
    pub operations: u64,
    /// Bytes of all ranks.
    pub bytes: u64,
    /// Bytes over the whole time.
    pub bytes_per_s: f64,
    /// Operations over the whole time.
    pub operations_per_s: f64,
    /// Sum of what each rank moved over its own time: above `bytes_per_s` where some ranks started later or ended sooner.
    pub rank_bytes_per_s_sum: f64,
    /// Latency of the operations of all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<LatencySummary>,
    /// The stonewall, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stonewall: Option<Stonewall>,
    /// Each rank.
    pub per_rank: Vec<RankPhase>,
    /// The figures that the original prints, by its names.
    pub printed: Map<String, Value>,
    /// Errors that verification found.
    #[serde(skip_serializing_if = "is_zero")]
    pub errors: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A process that stood still, as after SIGSTOP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoodStill {
    /// Its ranks; none: it only started the run, and ranks that met waited for it.
    pub ranks: Vec<u32>,
    /// Its id.
    pub process: u32,
    /// Where.
    pub host: String,
    /// When it was heard last, seconds since the run's zero.
    pub from_s: f64,
    /// Until it was heard again, was gone or the run was over, seconds: a second more than it stood still at most.
    pub for_s: f64,
}

impl StoodStill {
    /// In a sentence, for a reader of figures.
    pub fn told(&self) -> String {
        let first = self.ranks.first().copied().unwrap_or(0);
        let process = Process {
            ranks: first..first + self.ranks.len() as u32,
            pid: self.process,
            host: self.host.clone(),
        };
        format!("{process} stood still for {:.1} s", self.for_s)
    }
}

/// A rank in a phase.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RankPhase {
    /// Start, seconds since the run's zero.
    pub start_s: f64,
    /// End.
    pub end_s: f64,
    /// Operations it did.
    pub operations: u64,
    /// Bytes it moved.
    pub bytes: u64,
}

/// What a stonewall cut off, and what came after it.
#[derive(Clone, Debug, Serialize)]
pub struct Stonewall {
    /// When it was to stop, seconds.
    pub deadline_s: f64,
    /// The others went on to what the fastest rank had done.
    pub wear_out: bool,
    /// Fewest operations of a rank when it fell.
    pub operations_min: u64,
    /// Most.
    pub operations_max: u64,
    /// Mean.
    pub operations_mean: f64,
    /// Bytes of all ranks when it fell.
    pub bytes: u64,
    /// Seconds to it, of the slowest rank.
    pub seconds: f64,
    /// Bytes of all ranks over those seconds.
    pub bytes_per_s: f64,
    /// Operations of all ranks over those seconds.
    pub operations_per_s: f64,
    /// Seconds that the wear-out took after it.
    pub tail_s: f64,
}

impl Phase {
    /// Of what each rank did, with the latencies of all.
    pub fn of(
        name: &str,
        repetition: u32,
        per_rank: Vec<RankPhase>,
        latency: Option<&Latency>,
    ) -> Phase {
        let min = |f: fn(&RankPhase) -> f64| per_rank.iter().map(f).fold(f64::INFINITY, f64::min);
        let max =
            |f: fn(&RankPhase) -> f64| per_rank.iter().map(f).fold(f64::NEG_INFINITY, f64::max);
        let (start, end) = (min(|r| r.start_s), max(|r| r.end_s));
        let operations = per_rank.iter().map(|r| r.operations).sum();
        let bytes: u64 = per_rank.iter().map(|r| r.bytes).sum();
        let rank_rates = per_rank
            .iter()
            .map(|r| r.bytes as f64 / (r.end_s - r.start_s))
            .sum::<f64>();
        Phase {
            name: name.to_owned(),
            test: 0,
            repetition,
            start_s: start,
            end_s: end,
            operations,
            bytes,
            bytes_per_s: bytes as f64 / (end - start),
            operations_per_s: operations as f64 / (end - start),
            rank_bytes_per_s_sum: rank_rates,
            latency_ns: latency.map(Latency::summary),
            stonewall: None,
            per_rank,
            printed: Map::new(),
            errors: 0,
        }
    }
}

/// Figures over repetitions: every value, and both deviations by name.
pub fn spread(values: &[f64]) -> Value {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    serde_json::json!({
        "values": values,
        "n": values.len(),
        "mean": mean,
        "min": values.iter().copied().fold(f64::INFINITY, f64::min),
        "max": values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "stdev_population": (squares / n).sqrt(),
        "stdev_sample": (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()),
    })
}

/// Operations and bytes that the ranks of this process have done, as one line of JSON.
pub fn progress_line(board: &Board, seconds: f64) -> String {
    let (operations, bytes) = board.totals();
    serde_json::json!({ "t": seconds, "operations": operations, "bytes": bytes }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_deviations_have_their_names() {
        let s = spread(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(s["stdev_population"], 2.0);
        let sample = s["stdev_sample"].as_f64().expect("a number");
        assert!((sample - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(s["mean"], 5.0);
        assert!(spread(&[1.0])["stdev_sample"].is_null());
    }

    #[test]
    fn a_phase_sums_its_ranks() {
        let rank = |start_s, end_s, bytes| RankPhase {
            start_s,
            end_s,
            bytes,
            operations: 10,
        };
        let p = Phase::of(
            "write",
            0,
            vec![rank(0.0, 2.0, 100), rank(1.0, 5.0, 300)],
            None,
        );
        assert_eq!((p.bytes, p.operations), (400, 20));
        assert_eq!(p.bytes_per_s, 80.0);
        assert_eq!(p.rank_bytes_per_s_sum, 50.0 + 75.0);
    }
}
