//! The summary over the repetitions of each test.

use super::{MIB, Params, Point};
use crate::load::record::spread;

pub(super) const SUMMARY_HEAD: &str = "
Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   Min(OPs)  Mean(OPs)     StdDev    Mean(s) Stonewall(s) Stonewall(MiB) Test# #Tasks tPN reps fPP reord reordoff reordrand seed segcnt   blksiz    xsize aggs(MiB)   API RefNum
";

/// A line of the summary.
pub(super) struct Operation<'p> {
    pub(super) p: &'p Params,
    pub(super) operation: &'static str,
    pub(super) bandwidths: Vec<f64>,
    pub(super) operations: Vec<f64>,
    pub(super) times: Vec<f64>,
    /// Mean seconds, and bytes of a task over them.
    pub(super) wall: Option<(f64, f64)>,
    pub(super) bytes: u64,
}

pub(super) fn operations<'p>(p: &'p Params, points: &[(bool, Point)]) -> Vec<Operation<'p>> {
    let of = |write: bool, operation| {
        let points: Vec<&Point> = points
            .iter()
            .filter(|(w, _)| *w == write)
            .map(|(_, x)| x)
            .collect();
        let first = points.first()?;
        let wall_s: f64 = points
            .iter()
            .filter_map(|x| x.wall.as_ref())
            .map(|w| w.seconds_first)
            .sum();
        let wall_bytes: u64 = points
            .iter()
            .filter_map(|x| x.wall.as_ref())
            .map(|w| w.bytes_mean())
            .sum();
        Some(Operation {
            p,
            operation,
            bandwidths: points.iter().map(|x| x.bandwidth()).collect(),
            operations: points
                .iter()
                .map(|x| x.bytes as f64 / p.transfer_size as f64 / x.total)
                .collect(),
            times: points.iter().map(|x| x.total).collect(),
            wall: (p.wear_out != 0)
                .then(|| (wall_s / points.len() as f64, wall_bytes as f64 / wall_s)),
            bytes: first.bytes,
        })
    };
    let wanted = [
        (p.write != 0, true, "write"),
        (p.read != 0 || p.check_read != 0, false, "read"),
    ];
    let wanted = wanted.into_iter().filter(|w| w.0);
    wanted
        .filter_map(|(_, write, name)| of(write, name))
        .collect()
}

impl Operation<'_> {
    pub(super) fn as_json(&self) -> serde_json::Value {
        serde_json::json!({
            "bytes_per_s": spread(&self.bandwidths),
            "operations_per_s": spread(&self.operations),
            "seconds": spread(&self.times),
        })
    }
}

/// Greatest, least, mean, and deviation of the population.
pub(super) fn figures(values: &[f64]) -> [f64; 4] {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (mean - v).powi(2)).sum();
    [
        values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        values.iter().copied().fold(f64::INFINITY, f64::min),
        mean,
        (squares / n).sqrt(),
    ]
}

pub(super) fn summary_lines(p: &Params, points: &[(bool, Point)]) -> String {
    operations(p, points).iter().map(summary_line).collect()
}

fn summary_line(s: &Operation<'_>) -> String {
    let p = s.p;
    let mut line = format!("{:<9} ", s.operation);
    figures(&s.bandwidths)
        .iter()
        .for_each(|f| line += &format!("{:>10.2} ", f / MIB));
    figures(&s.operations)
        .iter()
        .for_each(|f| line += &format!("{f:>10.2} "));
    line += &format!("{:>10.5} ", figures(&s.times)[2]);
    line += &match s.wall {
        Some((time, rate)) => format!("{time:>10.2} {:>13.2} ", rate / MIB),
        None => format!("{:>10} {:>13} ", "NA", "NA"),
    };
    line + &format!(
        "{:>5} {:>6} {:>3} {:>4} {:>3} {:>5} {:>8} {:>9} {:>4} {:>6} {:>8} {:>8} {:>9.1} {:>3} {:>6}\n",
        p.id,
        p.num_tasks,
        p.on_node0,
        p.repetitions,
        p.file_per_proc,
        p.reorder,
        p.task_offset,
        p.reorder_random,
        p.reorder_seed,
        p.segments,
        p.block_size,
        p.transfer_size,
        s.bytes as f64 / MIB,
        p.api,
        p.reference
    )
}
