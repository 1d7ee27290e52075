//! IOR's JSON, with its own spacing.

use super::super::params::Params;
use super::{MIB, Operation, Pairs, Point, Shown, figures};

pub(super) const RESULTS: &str = ", \n    \"Results\": [\n";
pub(super) const RESULTS_END: &str = "]\n";
pub(super) const TEST_END: &str = "\n  }\n";

fn quoted(text: &str) -> String {
    // The original writes texts as they are, and a quote in a path spoils its file.
    serde_json::to_string(text).unwrap_or_default()
}

fn number(value: f64) -> String {
    // An infinite figure is a text in the original as well.
    if value.is_finite() {
        format!("{value:.4}")
    } else {
        format!("\"{}\"", crate::load::text::c_fixed(value, 4))
    }
}

pub(super) fn header(began: &str, command: &str, machine: &str) -> String {
    format!(
        "{{\n  \"Version\": \"{}\", \n  \"Began\": {}, \n  \"Command line\": {}, \n  \"Machine\": {}, \n  \"tests\": [\n",
        super::super::VERSION,
        quoted(began),
        quoted(command),
        quoted(machine)
    )
}

/// A named object of a test.
pub(super) fn section(name: &str, pairs: &Pairs) -> String {
    let lines: Vec<String> = pairs
        .iter()
        .map(|(k, v)| format!("      \"{k}\": {v}"))
        .collect();
    format!(", \n    \"{name}\": {{\n{}\n    }}\n", lines.join(", \n"))
}

pub(super) fn test(
    nth: usize,
    p: &Params,
    now: &str,
    path: &str,
    space: Option<&Shown>,
    platform: &str,
) -> String {
    let before = if nth > 0 { ", \n" } else { "" };
    let mut text = format!(
        "{before}    {{\n    \"TestID\": {}, \n    \"StartTime\": {}",
        p.id,
        quoted(now)
    );
    if let Some(s) = space {
        text += &format!(
            "    , \"Path\": {},\"Capacity\": \"{:.1} {}\", \"Used Capacity\": \"{:2.1}%\",\"Inodes\": \"{:.1} Mi\", \"Used Inodes\" : \"{:2.1}%\"\n",
            quoted(path),
            s.size,
            s.unit,
            s.used,
            s.inodes,
            s.used_inodes
        );
    }
    text + &section("Parameters", &parameters(p, platform))
}

pub(super) fn parameters(p: &Params, platform: &str) -> Pairs {
    let letter = ["g", "t", "o", "i"][p.pattern.number()];
    vec![
        ("testID", p.id.to_string()),
        ("refnum", p.reference.to_string()),
        ("api", quoted(&p.api)),
        ("platform", quoted(platform)),
        ("testFileName", quoted(&p.test_file)),
        ("deadlineForStonewall", p.deadline_s.to_string()),
        ("stoneWallingWearOut", p.wear_out.to_string()),
        ("maxTimeDuration", p.max_time_min.to_string()),
        ("outlierThreshold", p.outlier_s.to_string()),
        ("options", quoted("(null)")),
        ("dryRun", p.dry_run.to_string()),
        ("nodes", p.num_nodes.to_string()),
        ("memoryPerTask", p.memory_per_task.to_string()),
        ("memoryPerNode", p.memory_per_node.to_string()),
        ("tasksPerNode", p.on_node0.to_string()),
        ("repetitions", p.repetitions.to_string()),
        ("multiFile", p.multi_file.to_string()),
        ("interTestDelay", p.delay_s.to_string()),
        ("fsync", p.fsync.to_string()),
        ("fsyncperwrite", p.fsync_per_write.to_string()),
        ("useExistingTestFile", p.use_existing.to_string()),
        ("uniqueDir", p.unique_dir.to_string()),
        ("singleXferAttempt", p.single_attempt.to_string()),
        ("readFile", p.read.to_string()),
        ("writeFile", p.write.to_string()),
        ("filePerProc", p.file_per_proc.to_string()),
        ("reorderTasks", p.reorder.to_string()),
        ("reorderTasksRandom", p.reorder_random.to_string()),
        ("reorderTasksRandomSeed", p.reorder_seed.to_string()),
        ("randomOffset", p.random_offset.to_string()),
        ("checkWrite", p.check_write.to_string()),
        ("checkRead", p.check_read.to_string()),
        ("dataPacketType", p.pattern.number().to_string()),
        ("keepFile", p.keep.to_string()),
        ("keepFileWithError", p.keep_with_error.to_string()),
        ("warningAsErrors", p.warnings_are_errors.to_string()),
        ("verbose", p.verbose.to_string()),
        ("data packet type", quoted(letter)),
        (
            "setTimeStampSignature/incompressibleSeed",
            p.signature.to_string(),
        ),
        ("collective", p.collective.to_string()),
        ("segmentCount", p.segments.to_string()),
        ("transferSize", p.transfer_size.to_string()),
        ("blockSize", p.block_size.to_string()),
    ]
}

/// An element of Results.
fn element(more: bool, lines: &[String]) -> String {
    let before = if more { ", \n" } else { "" };
    format!(
        "{before}            {{\n        {}\n      }}\n",
        lines.join(", \n        ")
    )
}

pub(super) fn point(more: bool, p: &Params, x: &Point, access: &str) -> String {
    let figures = [
        ("bwMiB", x.bandwidth() / MIB),
        ("blockKiB", p.block_size as f64 / 1024.0),
        ("xferKiB", p.transfer_size as f64 / 1024.0),
        ("iops", x.iops(p)),
        ("latency", x.latency),
        ("openTime", x.open),
        ("wrRdTime", x.transfer),
        ("closeTime", x.close),
        ("totalTime", x.total),
    ];
    let mut lines = vec![format!("\"access\": \"{access}\"")];
    lines.extend(
        figures
            .iter()
            .map(|(k, v)| format!("\"{k}\": {}", number(*v))),
    );
    element(more, &lines)
}

pub(super) fn removed(more: bool, took: f64) -> String {
    let lines = [
        "\"access\": \"remove\"".to_owned(),
        format!("\"totalTime\": {}", number(took)),
    ];
    element(more, &lines)
}

/// The best figures, at -v.
pub(super) fn max(p: &Params, write: f64, read: f64) -> String {
    if p.verbose == 0 {
        return String::new();
    }
    let mut pairs: Pairs = Vec::new();
    if p.write != 0 {
        pairs.push(("writeMiB", number(write / MIB)));
        pairs.push(("writeMB", number(write / 1e6)));
    }
    if p.read != 0 {
        pairs.push(("readMiB", number(read / MIB)));
        pairs.push(("readMB", number(read / 1e6)));
    }
    section("max", &pairs)
}

/// An element of the summary.
pub(super) fn summary(s: &Operation<'_>) -> String {
    let p = s.p;
    let integers = [
        ("TestID", p.id),
        ("ReferenceNumber", p.reference),
        ("segmentCount", p.segments),
        ("blockSize", p.block_size),
        ("transferSize", p.transfer_size),
        ("numTasks", p.num_tasks),
        ("tasksPerNode", p.on_node0),
        ("repetitions", p.repetitions),
        ("filePerProc", p.file_per_proc),
        ("reorderTasks", p.reorder),
        ("taskPerNodeOffset", p.task_offset),
        ("reorderTasksRandom", p.reorder_random),
        ("reorderTasksRandomSeed", p.reorder_seed),
    ];
    let (b, o) = (figures(&s.bandwidths), figures(&s.operations));
    let mut reals = vec![
        ("bwMaxMIB", b[0] / MIB),
        ("bwMinMIB", b[1] / MIB),
        ("bwMeanMIB", b[2] / MIB),
        ("bwStdMIB", b[3] / MIB),
        ("OPsMax", o[0]),
        ("OPsMin", o[1]),
        ("OPsMean", o[2]),
        ("OPsSD", o[3]),
        ("MeanTime", figures(&s.times)[2]),
    ];
    if let Some((time, rate)) = s.wall {
        reals.push(("StoneWallTime", time));
        reals.push(("StoneWallbwMeanMIB", rate / MIB));
    }
    reals.push(("xsizeMiB", s.bytes as f64 / MIB));
    let mut lines = vec![
        format!("\"operation\": \"{}\"", s.operation),
        format!("\"API\": {}", quoted(&p.api)),
    ];
    lines.extend(integers.iter().map(|(k, v)| format!("\"{k}\": {v}")));
    lines.extend(
        reals
            .iter()
            .map(|(k, v)| format!("\"{k}\": {}", number(*v))),
    );
    format!("    {{\n    {}\n  }}\n", lines.join(", \n    "))
}

/// The end of the whole.
pub(super) fn end(summaries: &[String], finished: &str) -> String {
    format!(
        "]\n, \n\"summary\": [\n{}]\n, \n\"Finished\": {}\n}}\n",
        summaries.join(", \n"),
        quoted(finished)
    )
}
