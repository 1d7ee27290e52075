//! The rows of the table: what is done, how often, and what is meant to be reached.

/// Size of the streamed files, MiB per job.
const STREAM_MIB: u64 = 256;
/// Random 4 KiB reads per job.
const RANDOM_READS: u64 = 20_000;
/// Records appended to one file.
const APPENDS: u64 = 50_000;
/// Files per job in the metadata rows.
const FILES: u64 = 5_000;
/// Files of the directory that is listed.
const LISTED: u64 = 10_000;
/// Files of the tree that is unpacked and removed.
const TREE_FILES: u64 = 20_000;
/// Size of the file that is read again, MiB.
const AGAIN_MIB: u64 = 1024;

/// One row of the table.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub name: &'static str,
    pub work: &'static str,
    /// What is done before, uncounted; empty: nothing.
    pub prepare: &'static str,
    pub jobs: u64,
    /// Amount each job does: MiB, reads or files.
    pub amount: u64,
    pub unit: Unit,
    /// Caches dropped before each run.
    pub cold: bool,
    /// What it is meant to reach at least.
    pub floor: Option<Floor>,
}

#[derive(Clone, Copy)]
pub(super) enum Floor {
    /// Of the directory's rate.
    Ratio(f64),
    /// Operations per second.
    Rate(f64),
    /// At most so many RPCs per operation.
    Rpcs(f64),
    /// Of the mount's own rate in the row [`READS`].
    OfReads(f64),
}

/// The row others are compared with.
pub(super) const READS: &str = "read 1 MiB, cold, 1 job";

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unit {
    /// MiB; CPU per GiB.
    MiB,
    /// 4 KiB reads or writes; throughput in MiB/s, CPU per GiB.
    Pages,
    /// Operations; CPU per 1,000.
    Ops,
}

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "write 1 MiB, fsync, 1 job",
        work: "write",
        prepare: "",
        jobs: 1,
        amount: STREAM_MIB,
        unit: Unit::MiB,
        cold: true,
        floor: Some(Floor::Ratio(0.3)),
    },
    Row {
        name: "write 1 MiB, fsync, 4 jobs",
        work: "write",
        prepare: "",
        jobs: 4,
        amount: STREAM_MIB,
        unit: Unit::MiB,
        cold: true,
        floor: Some(Floor::Ratio(0.5)),
    },
    Row {
        name: "write 4 KiB sequential, fsync, 1 job",
        work: "write4k",
        prepare: "",
        jobs: 1,
        amount: STREAM_MIB * 256,
        unit: Unit::Pages,
        cold: true,
        floor: None,
    },
    Row {
        name: "append 100 bytes, fsync, 1 job",
        work: "append",
        prepare: "",
        jobs: 1,
        amount: APPENDS,
        unit: Unit::Ops,
        cold: true,
        floor: None,
    },
    Row {
        name: "read 1 MiB, cold, 1 job",
        work: "read",
        prepare: "",
        jobs: 1,
        amount: STREAM_MIB,
        unit: Unit::MiB,
        cold: true,
        floor: Some(Floor::Ratio(0.5)),
    },
    Row {
        name: "read 1 MiB, cold, 4 jobs",
        work: "read",
        prepare: "",
        jobs: 4,
        amount: STREAM_MIB,
        unit: Unit::MiB,
        cold: true,
        floor: Some(Floor::Ratio(0.5)),
    },
    Row {
        name: "read 1 MiB, 1 GiB again, 1 job",
        work: "again",
        prepare: "warm",
        jobs: 1,
        amount: AGAIN_MIB,
        unit: Unit::MiB,
        cold: false,
        floor: Some(Floor::Ratio(0.8)),
    },
    Row {
        name: "read 128 KiB, 1 GiB again, 1 job",
        work: "again128k",
        prepare: "warm",
        jobs: 1,
        amount: AGAIN_MIB,
        unit: Unit::MiB,
        cold: false,
        floor: Some(Floor::Ratio(0.8)),
    },
    Row {
        name: "read 4 KiB, 1 GiB again, 1 job",
        work: "again4k",
        prepare: "warm",
        jobs: 1,
        amount: AGAIN_MIB,
        unit: Unit::MiB,
        cold: false,
        floor: Some(Floor::Ratio(0.8)),
    },
    Row {
        name: "read 4 KiB sequential, cold, 1 job",
        work: "read4k",
        prepare: "",
        jobs: 1,
        amount: STREAM_MIB * 256,
        unit: Unit::Pages,
        cold: true,
        floor: Some(Floor::OfReads(0.8)),
    },
    Row {
        name: "read 4 KiB random, warm, 1 job",
        work: "random",
        prepare: "",
        jobs: 1,
        amount: RANDOM_READS,
        unit: Unit::Pages,
        cold: false,
        floor: None,
    },
    Row {
        name: "read 4 KiB random, warm, 4 jobs",
        work: "random",
        prepare: "",
        jobs: 4,
        amount: RANDOM_READS,
        unit: Unit::Pages,
        cold: false,
        floor: None,
    },
    Row {
        name: "create+close, 1 process",
        work: "create",
        prepare: "",
        jobs: 1,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: Some(Floor::Rate(2500.0)),
    },
    Row {
        name: "stat, 1 process",
        work: "stat",
        prepare: "",
        jobs: 1,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
    Row {
        name: "open+write 1 KiB+close, 1 process",
        work: "fill",
        prepare: "",
        jobs: 1,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
    Row {
        name: "open+read+close, first time, 1 process",
        work: "openread",
        prepare: "",
        jobs: 1,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: Some(Floor::Rpcs(3.0)),
    },
    Row {
        name: "remove, 1 process",
        work: "remove",
        prepare: "",
        jobs: 1,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
    Row {
        name: "create+close, 4 processes",
        work: "create",
        prepare: "",
        jobs: 4,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: Some(Floor::Rate(8000.0)),
    },
    Row {
        name: "stat, 4 processes",
        work: "stat",
        prepare: "",
        jobs: 4,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
    Row {
        name: "remove, 4 processes",
        work: "remove",
        prepare: "",
        jobs: 4,
        amount: FILES,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
    Row {
        name: "ls -l, cold, per file",
        work: "ls",
        prepare: "list",
        jobs: 1,
        amount: LISTED,
        unit: Unit::Ops,
        cold: true,
        floor: Some(Floor::Rate(10_000.0)),
    },
    Row {
        name: "ls -l again, per file",
        work: "ls",
        prepare: "",
        jobs: 1,
        amount: LISTED,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
    Row {
        name: "untar small files, per file",
        work: "untar",
        prepare: "pack",
        jobs: 1,
        amount: TREE_FILES,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
    Row {
        name: "rm -rf of them, per file",
        work: "rmrf",
        prepare: "",
        jobs: 1,
        amount: TREE_FILES,
        unit: Unit::Ops,
        cold: false,
        floor: None,
    },
];

impl Floor {
    /// Whether a row with these figures meets it, in words.
    pub fn judge(self, ratio: f64, rate: f64, rpcs: f64, reads: f64) -> String {
        let (met, text) = match self {
            Floor::Ratio(least) => (ratio >= least, format!("ratio {least} or more")),
            Floor::Rate(least) => (rate >= least, format!("{least} op/s or more")),
            Floor::OfReads(least) => (
                rate >= least * reads,
                format!("{least} of 1 MiB reads or more, is {:.2}", rate / reads),
            ),
            Floor::Rpcs(most) => (rpcs <= most + 0.005, format!("{most} RPC/op or fewer")),
        };
        format!("{}: {text}", if met { "met" } else { "MISSED" })
    }
}
