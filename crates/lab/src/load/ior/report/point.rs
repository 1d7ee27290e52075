//! A phase of a test: what each rank did, and IOR's figures of it.

use super::super::params::Params;
use super::super::transfer::Moved;
use crate::load::Failed;
use crate::load::clock::seconds;
use crate::load::meter::Latency;
use crate::load::ranks::Rank;
use crate::load::record::{Phase, RankPhase, Stonewall};

/// Starts and ends of one rank's phase, nanoseconds of the common clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers {
    pub open: (i64, i64),
    pub transfer: (i64, i64),
    pub close: (i64, i64),
}

/// A rank's part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    timers: Timers,
    bytes: u64,
    operations: u64,
    pairs: u64,
    size: u64,
    wall: (u64, u64, f64),
    errors: u64,
}

impl Part {
    pub(super) fn total(&self) -> f64 {
        seconds(self.timers.close.1 - self.timers.open.0)
    }

    pub(super) fn transfer(&self) -> f64 {
        seconds(self.timers.transfer.1 - self.timers.transfer.0)
    }

    fn numbers(&self) -> [i64; 13] {
        let t = &self.timers;
        [
            t.open.0,
            t.open.1,
            t.transfer.0,
            t.transfer.1,
            t.close.0,
            t.close.1,
            self.bytes as i64,
            self.operations as i64,
            self.pairs as i64,
            self.size as i64,
            self.wall.0 as i64,
            self.wall.1 as i64,
            (self.wall.2 * 1e9) as i64,
        ]
    }

    fn of(n: &[i64], errors: u64) -> Part {
        let at = |i: usize| n.get(i).copied().unwrap_or(0);
        Part {
            timers: Timers {
                open: (at(0), at(1)),
                transfer: (at(2), at(3)),
                close: (at(4), at(5)),
            },
            bytes: at(6) as u64,
            operations: at(7) as u64,
            pairs: at(8) as u64,
            size: at(9) as u64,
            wall: (at(10) as u64, at(11) as u64, seconds(at(12))),
            errors,
        }
    }
}

/// The stonewall of a phase with wear-out.
#[derive(Clone, Debug)]
pub(crate) struct Wall {
    pub pairs_min: u64,
    pub bytes_min: u64,
    bytes: u64,
    tasks: u64,
    /// Seconds of rank 0, which is what IOR shows.
    pub seconds_first: f64,
    seconds_most: f64,
    pairs: Vec<u64>,
}

impl Wall {
    /// Bytes of a task.
    pub(crate) fn bytes_mean(&self) -> u64 {
        self.bytes / self.tasks
    }
}

/// A phase.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub ranks: Vec<Part>,
    latencies: Latency,
    pub bytes: u64,
    /// Size of the file, or sum of the files.
    pub size: u64,
    pub pairs: u64,
    pub open: f64,
    pub transfer: f64,
    pub close: f64,
    pub total: f64,
    /// The least mean latency of a rank.
    pub latency: f64,
    pub wall: Option<Wall>,
}

impl Point {
    /// Everyone gives its part; everyone has the whole.
    pub(crate) fn gather(
        p: &Params,
        timers: &Timers,
        moved: &Moved,
        size: u64,
        rank: &mut Rank<'_>,
    ) -> Result<Point, Failed> {
        let mine = Part {
            timers: *timers,
            bytes: moved.bytes,
            operations: moved.operations,
            pairs: moved.pairs,
            size,
            wall: moved.at_wall.unwrap_or_default(),
            errors: moved.errors,
        };
        let numbers = rank.all_of(&mine.numbers())?;
        let errors = rank.all(mine.errors)?;
        let mut latencies = Latency::new();
        for bytes in rank
            .share(moved.latency.to_bytes())?
            .iter()
            .filter(|_| rank.is_first())
        {
            latencies.merge(&Latency::from_bytes(bytes));
        }
        let ranks: Vec<Part> = numbers
            .iter()
            .zip(errors)
            .map(|(n, e)| Part::of(n, e))
            .collect();
        Ok(Point::of(p, ranks, latencies))
    }

    fn of(p: &Params, ranks: Vec<Part>, latencies: Latency) -> Point {
        let first = |f: fn(&Part) -> i64| ranks.iter().map(f).min().unwrap_or(0);
        let last = |f: fn(&Part) -> i64| ranks.iter().map(f).max().unwrap_or(0);
        let sizes = ranks.iter().map(|r| r.size);
        let wall = (p.wear_out != 0).then(|| Wall {
            pairs_min: ranks.iter().map(|r| r.wall.1).min().unwrap_or(0),
            bytes_min: ranks.iter().map(|r| r.wall.0).min().unwrap_or(0),
            bytes: ranks.iter().map(|r| r.wall.0).sum(),
            tasks: ranks.len() as u64,
            seconds_first: ranks.first().map_or(0.0, |r| r.wall.2),
            seconds_most: ranks.iter().map(|r| r.wall.2).fold(0.0, f64::max),
            pairs: ranks.iter().map(|r| r.wall.1).collect(),
        });
        Point {
            bytes: ranks.iter().map(|r| r.bytes).sum(),
            size: if p.file_per_proc != 0 {
                sizes.sum()
            } else {
                sizes.min().unwrap_or(0)
            },
            pairs: ranks.iter().map(|r| r.pairs).max().unwrap_or(0),
            open: seconds(last(|r| r.timers.open.1) - first(|r| r.timers.open.0)),
            transfer: seconds(last(|r| r.timers.transfer.1) - first(|r| r.timers.transfer.0)),
            close: seconds(last(|r| r.timers.close.1) - first(|r| r.timers.close.0)),
            total: seconds(last(|r| r.timers.close.1) - first(|r| r.timers.open.0)),
            latency: ranks
                .iter()
                .map(|r| r.transfer() / r.pairs as f64)
                .fold(f64::INFINITY, f64::min),
            latencies,
            wall,
            ranks,
        }
    }

    /// Bytes over the time from the first open to the last close.
    pub(crate) fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.total
    }

    /// Transfers over the time of the transfers alone.
    pub(crate) fn iops(&self, p: &Params) -> f64 {
        (self.bytes / p.transfer_size as u64) as f64 / self.transfer
    }

    /// The timers that `-j` looks at, with everyone's values.
    pub(super) fn per_rank(&self) -> Vec<(&'static str, Vec<f64>)> {
        let all = |f: fn(&Timers) -> i64| -> Vec<f64> {
            self.ranks.iter().map(|r| seconds(f(&r.timers))).collect()
        };
        vec![
            ("start time", all(|t| t.open.0)),
            ("elapsed create time", all(|t| t.open.1 - t.open.0)),
            (
                "elapsed transfer time",
                all(|t| t.transfer.1 - t.transfer.0),
            ),
            ("elapsed close time", all(|t| t.close.1 - t.close.0)),
            ("end time", all(|t| t.close.1)),
        ]
    }

    /// `-vvv`: the six timers of this rank.
    pub(super) fn times(&self, p: &Params, write: bool, rank: &Rank<'_>) {
        let (of, access) = if write {
            ("write ", "write")
        } else {
            ("read ", "read")
        };
        let t = &self.ranks[rank.id as usize].timers;
        let names = [
            "open start",
            "open stop",
            "start",
            "stop",
            "close start",
            "close stop",
        ];
        let stamps = [
            t.open.0,
            t.open.1,
            t.transfer.0,
            t.transfer.1,
            t.close.0,
            t.close.1,
        ];
        for (name, stamp) in names.iter().zip(stamps) {
            let name = if name.contains(' ') {
                format!("{of}{name}")
            } else {
                format!("{access} {name}")
            };
            rank.out.line(format!(
                "Test {}: Task={}, Time={:.6}, {name}",
                p.id,
                rank.id,
                seconds(stamp)
            ));
        }
    }

    /// For the record: what each rank did, and what was printed.
    pub(super) fn phase(&self, p: &Params, access: &str, repetition: i64) -> Phase {
        let per_rank = self.ranks.iter().map(|r| RankPhase {
            start_s: seconds(r.timers.open.0),
            end_s: seconds(r.timers.close.1),
            operations: r.operations,
            bytes: r.bytes,
        });
        let mut phase = Phase::of(
            access,
            repetition as u32,
            per_rank.collect(),
            Some(&self.latencies),
        );
        phase.test = p.id as u32;
        phase.errors = self.ranks.iter().map(|r| r.errors).sum();
        phase.stonewall = self.wall.as_ref().map(|w| Stonewall {
            deadline_s: p.deadline_s as f64,
            wear_out: true,
            operations_min: w.pairs_min,
            operations_max: w.pairs.iter().copied().max().unwrap_or(0),
            operations_mean: w.pairs.iter().sum::<u64>() as f64 / w.tasks as f64,
            bytes: w.bytes,
            seconds: w.seconds_most,
            bytes_per_s: w.bytes as f64 / w.seconds_most,
            operations_per_s: w.pairs.iter().sum::<u64>() as f64 / w.seconds_most,
            tail_s: self.transfer - w.seconds_most,
        });
        let figures = [
            ("bw_mib_per_s", self.bandwidth() / super::MIB),
            ("iops", self.iops(p)),
            ("latency_s_best_rank_mean", self.latency),
            ("open_s", self.open),
            ("transfer_s", self.transfer),
            ("close_s", self.close),
            ("total_s", self.total),
            (
                "summary_ops_per_s",
                self.bytes as f64 / p.transfer_size as f64 / self.total,
            ),
        ];
        phase.printed = figures
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).into()))
            .collect();
        phase
    }
}
