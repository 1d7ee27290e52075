//! Parameters of a test, and the options and directives that set them (hpc/ior: `src/parse_options.c`).

use crate::load::Failed;
use crate::load::nearest::nearest;
use crate::load::options::{self, Kind, Slot, Spec, Target, atoi, number, spec};
use crate::load::out::Out;
use crate::load::pattern::Pattern;
use std::fs;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Text,
    Csv,
    Json,
}

macro_rules! params {
    ($($(#[$doc:meta])* $field:ident $key:literal = $default:expr),* $(,)?) => {
        /// Parameters of a test. Numbers are as the original keeps them; flags count how often they were given.
        #[derive(Clone, Debug)]
        pub(crate) struct Params {
            $($(#[$doc])* pub $field: i64,)*
            pub api: String,
            pub test_file: String,
            pub script: String,
            pub packet: String,
            pub memory_per_node_text: String,
            pub summary_file: String,
            pub rank_csv: String,
            pub per_op_csv: String,
            pub status_file: String,
            pub debug: String,
            pub platform: String,
            pub format: Format,
            pub pattern: Pattern,
            pub id: i64,
            /// Where directives say what they do; None in copies that say nothing.
            pub out: Option<Out>,
        }

        impl Default for Params {
            fn default() -> Params {
                Params {
                    $($field: $default,)*
                    api: "POSIX".to_owned(),
                    test_file: "testFile".to_owned(),
                    script: String::new(),
                    packet: String::new(),
                    memory_per_node_text: String::new(),
                    summary_file: String::new(),
                    rank_csv: String::new(),
                    per_op_csv: String::new(),
                    status_file: String::new(),
                    debug: String::new(),
                    platform: String::new(),
                    format: Format::Text,
                    pattern: Pattern::Timestamp,
                    id: 0,
                    out: None,
                }
            }
        }

        impl Params {
            fn number_of(&mut self, key: &str) -> Option<&mut i64> {
                match key {
                    $($key => Some(&mut self.$field),)*
                    _ => None,
                }
            }

            /// For the record.
            pub(crate) fn as_json(&self) -> serde_json::Value {
                let mut map = serde_json::Map::new();
                $(map.insert($key.to_owned(), self.$field.into());)*
                map.insert("api".to_owned(), self.api.clone().into());
                map.insert("testFile".to_owned(), self.test_file.clone().into());
                map.insert("dataPacketType".to_owned(), format!("{:?}", self.pattern).into());
                map.into()
            }
        }
    };
}

params! {
    reference "refNum" = 0,
    block_size "blockSize" = 1 << 20,
    transfer_size "transferSize" = 1 << 18,
    segments "segmentCount" = 1,
    repetitions "repetitions" = 1,
    collective "collective" = 0,
    reorder "reorderTasks" = 0,
    reorder_random "reorderTasksRandom" = 0,
    reorder_seed "reorderTasksRandomSeed" = 0,
    task_offset "taskPerNodeOffset" = 1,
    delay_s "interTestDelay" = 0,
    io_delay_us "interIODelay" = 0,
    deadline_s "deadlineForStonewalling" = 0,
    wear_out "stoneWallingWearOut" = 0,
    wear_out_iterations "stoneWallingWearOutIterations" = 0,
    min_time_s "minTimeDuration" = 0,
    max_time_min "maxTimeDuration" = 0,
    fsync "fsync" = 0,
    fsync_per_write "fsyncPerWrite" = 0,
    use_existing "useExistingTestFile" = 0,
    file_per_proc "filePerProc" = 0,
    barriers "intraTestBarriers" = 0,
    signature "setTimeStampSignature" = 0,
    outlier_s "outlierThreshold" = 0,
    keep "keepFile" = 0,
    keep_with_error "keepFileWithError" = 0,
    multi_file "multiFile" = 0,
    num_tasks "numTasks" = -1,
    num_nodes "numNodes" = -1,
    on_node0 "numTasksOnNode0" = -1,
    read "readFile" = 0,
    write "writeFile" = 0,
    check_read "checkRead" = 0,
    check_write "checkWrite" = 0,
    unique_dir "uniqueDir" = 0,
    verbose "verbose" = 0,
    single_attempt "singleXferAttempt" = 0,
    dual_mount "dualMount" = 0,
    random_offset "randomOffset" = 0,
    prefill "randomPrefill" = 0,
    random_seed "random-offset-seed" = -1,
    warnings_are_errors "warningAsErrors" = 0,
    dry_run "dryRun" = 0,
    memory_per_task "memoryPerTask" = 0,
    memory_per_node "memoryPerNode" = 0,
    summary_always "summaryAlways" = 0,
    direct "posix.odirect" = 0,
    stop_on_error "quitOnError" = 0,
}

const MPIIO: &str = "only the MPI-IO interface uses it";
const NO_HDF5: &str = "there is no HDF5 interface here";

/// The options. Those at the end are of older versions or of interfaces that are not here.
#[rustfmt::skip]
pub(crate) const SPECS: [Spec; 72] = [
    spec("a", "", Kind::Text, "api", "API for I/O [POSIX|CORAL|DUMMY]"),
    spec("A", "", Kind::Int, "refNum", "number that the summary shows"),
    spec("b", "", Kind::Long, "blockSize", "bytes that a task writes in one piece (e.g.: 8, 4k, 2m, 1g)"),
    spec("c", "collective", Kind::Refused("collective transfers need MPI-IO"), "collective", ""),
    spec("C", "", Kind::Flag, "reorderTasks", "read what the task of another node wrote"),
    spec("d", "", Kind::Int, "interTestDelay", "seconds to wait before each phase"),
    spec("D", "", Kind::Int, "deadlineForStonewalling", "seconds after which a phase stops"),
    spec("e", "", Kind::Flag, "fsync", "fsync after the writes of a phase"),
    spec("E", "", Kind::Flag, "useExistingTestFile", "do not remove the file before it is written"),
    spec("f", "", Kind::Text, "scriptFile", "script of tests"),
    spec("F", "", Kind::Flag, "filePerProc", "a file for each task"),
    spec("g", "", Kind::Flag, "intraTestBarriers", "barriers between open, transfers and close"),
    spec("G", "", Kind::Int, "setTimeStampSignature", "seed of the data"),
    spec("i", "", Kind::Int, "repetitions", "repetitions of the test"),
    spec("j", "", Kind::Int, "outlierThreshold", "warn of tasks that are so many seconds from the mean"),
    spec("k", "", Kind::Flag, "keepFile", "leave the files at the end"),
    spec("K", "", Kind::Flag, "keepFileWithError", "leave files in which wrong data were found"),
    spec("l", "dataPacketType", Kind::Text, "dataPacketType", "data [offset|incompressible|timestamp|random|o|i|t|r]"),
    spec("m", "", Kind::Flag, "multiFile", "another file for each repetition"),
    spec("M", "", Kind::Text, "memoryPerNode", "memory to take on each node (e.g.: 2g, 75%)"),
    spec("N", "", Kind::Int, "numTasks", "tasks; as many are started where nothing else says how many"),
    spec("o", "", Kind::Text, "testFile", "name of the file; a@b@c deals the files of tasks over several"),
    spec("O", "", Kind::Text, "directives", "directives (e.g. -O checkRead=1,summaryFormat=JSON)"),
    spec("Q", "", Kind::Int, "taskPerNodeOffset", "nodes to shift by with -C, at least with -Z"),
    spec("r", "", Kind::Flag, "readFile", "read"),
    spec("R", "", Kind::Flag, "checkRead", "read and verify (without a write: needs -G)"),
    spec("s", "", Kind::Long, "segmentCount", "segments: blocks of all tasks, one after the other"),
    spec("t", "", Kind::Long, "transferSize", "bytes of one transfer (e.g.: 8, 4k, 2m, 1g)"),
    spec("T", "", Kind::Int, "maxTimeDuration", "minutes after which no further phase starts"),
    spec("u", "", Kind::Flag, "uniqueDir", "a directory for each task's file"),
    spec("v", "", Kind::Flag, "verbose", "say more; several times for more"),
    spec("w", "", Kind::Flag, "writeFile", "write"),
    spec("W", "", Kind::Flag, "checkWrite", "read again after the write and verify"),
    spec("x", "", Kind::Flag, "singleXferAttempt", "a transfer that is cut short fails"),
    spec("X", "", Kind::Int, "reorderTasksRandomSeed", "seed of -Z; negative: another one each repetition"),
    spec("y", "", Kind::Refused("one mount for each socket is not here; -F -o a@b deals files over mounts"), "dualMount", ""),
    spec("Y", "", Kind::Flag, "fsyncPerWrite", "fsync after each write"),
    spec("z", "", Kind::Flag, "randomOffset", "shuffled offsets; twice for random ones"),
    spec("Z", "", Kind::Flag, "reorderTasksRandom", "read what a random task wrote; twice for a permutation"),
    spec("", "randomPrefill", Kind::Long, "randomPrefill", "with -z: fill the file first, in pieces of this size"),
    spec("", "random-offset-seed", Kind::Int, "random-offset-seed", "seed of -z"),
    spec("", "warningAsErrors", Kind::Flag, "warningAsErrors", "a warning ends the run"),
    spec("", "dryRun", Kind::Flag, "dryRun", "no I/O; show what would be printed"),
    spec("", "posix.odirect", Kind::Flag, "posix.odirect", "past the page cache (O_DIRECT)"),
    spec("q", "", Kind::Flag, "quitOnError", "end at the first wrong data"),
    spec("", "posix.rangelocks", Kind::Refused("locks of byte ranges around transfers are not here"), "", ""),
    spec("", "posix.lustre.stripecount", Kind::Refused(STRIPES), "", ""),
    spec("", "posix.lustre.stripesize", Kind::Refused(STRIPES), "", ""),
    spec("", "posix.lustre.startost", Kind::Refused(STRIPES), "", ""),
    spec("", "posix.lustre.pool", Kind::Refused(STRIPES), "", ""),
    spec("", "posix.lustre.ignorelocks", Kind::Refused("reads without locks are not here"), "", ""),
    spec("", "mpiio.hintsFileName", Kind::Idle(true), "", MPIIO),
    spec("", "mpiio.showHints", Kind::Idle(false), "", MPIIO),
    spec("", "mpiio.preallocate", Kind::Idle(false), "", MPIIO),
    spec("", "mpiio.useStridedDatatype", Kind::Idle(false), "", MPIIO),
    spec("", "mpiio.useFileView", Kind::Idle(false), "", MPIIO),
    spec("", "aio.max-pending", Kind::Idle(true), "", "only the AIO interface uses it"),
    spec("", "aio.granularity", Kind::Idle(true), "", "only the AIO interface uses it"),
    spec("", "mmap.madv_dont_need", Kind::Idle(false), "", "only the MMAP interface uses it"),
    spec("", "mmap.madv_pattern", Kind::Idle(false), "", "only the MMAP interface uses it"),
    spec("", "dummy.delay-xfer", Kind::Refused("DUMMY has no delays here"), "", ""),
    spec("", "gpuDirect", Kind::Refused("there is no GPU memory here"), "", ""),
    spec("H", "", Kind::Idle(false), "", MPIIO),
    spec("U", "", Kind::Idle(true), "", MPIIO),
    spec("p", "", Kind::Idle(false), "", MPIIO),
    spec("S", "", Kind::Idle(false), "", MPIIO),
    spec("V", "", Kind::Idle(false), "", MPIIO),
    spec("P", "", Kind::Refused("a shared file pointer needs MPI-IO"), "", ""),
    spec("I", "", Kind::Refused(NO_HDF5), "", ""),
    spec("J", "", Kind::Refused(NO_HDF5), "", ""),
    spec("n", "", Kind::Refused(NO_HDF5), "", ""),
    spec("B", "", Kind::Flag, "posix.odirect", "past the page cache; today --posix.odirect"),
];

const STRIPES: &str = "set stripes on the directory with 'lfs setstripe'; files inherit them";

/// Directives of scripts and of `-O`, in lower case, and the key they set. Sizes take suffixes.
#[rustfmt::skip]
const DIRECTIVES: [(&str, &str, bool); 44] = [
    ("refnum", "refNum", false),
    ("deadlineforstonewalling", "deadlineForStonewalling", false),
    ("stonewallingwearout", "stoneWallingWearOut", false),
    ("stonewallingwearoutiterations", "stoneWallingWearOutIterations", false),
    ("maxtimeduration", "maxTimeDuration", false),
    ("mintimeduration", "minTimeDuration", false),
    ("outlierthreshold", "outlierThreshold", false),
    ("numnodes", "numNodes", false),
    ("numtasks", "numTasks", false),
    ("numtasksonnode0", "numTasksOnNode0", false),
    ("repetitions", "repetitions", false),
    ("intertestdelay", "interTestDelay", false),
    ("interiodelay", "interIODelay", false),
    ("readfile", "readFile", false),
    ("writefile", "writeFile", false),
    ("fileperproc", "filePerProc", false),
    ("taskpernodeoffset", "taskPerNodeOffset", false),
    ("reordertasksconstant", "reorderTasks", false),
    ("reordertasksrandom", "reorderTasksRandom", false),
    ("reordertasksrandomseed", "reorderTasksRandomSeed", false),
    ("reordertasks", "reorderTasks", false),
    ("checkwrite", "checkWrite", false),
    ("checkread", "checkRead", false),
    ("keepfile", "keepFile", false),
    ("keepfilewitherror", "keepFileWithError", false),
    ("multifile", "multiFile", false),
    ("warningaserrors", "warningAsErrors", false),
    ("segmentcount", "segmentCount", true),
    ("blocksize", "blockSize", true),
    ("transfersize", "transferSize", true),
    ("singlexferattempt", "singleXferAttempt", false),
    ("intratestbarriers", "intraTestBarriers", false),
    ("verbose", "verbose", false),
    ("settimestampsignature", "setTimeStampSignature", false),
    ("uniquedir", "uniqueDir", false),
    ("useexistingtestfile", "useExistingTestFile", false),
    ("fsyncperwrite", "fsyncPerWrite", false),
    ("fsync", "fsync", false),
    ("randomoffset", "randomOffset", false),
    ("memorypertask", "memoryPerTask", true),
    ("summaryalways", "summaryAlways", false),
    ("collective", "collective", false),
    ("dualmount", "dualMount", false),
    ("useo_direct", "posix.odirect", false),
];

const DIRECTIVE_TEXTS: [&str; 12] = [
    "api",
    "summaryfile",
    "summaryformat",
    "saverankperformancedetailscsv",
    "saveperopdatacsv",
    "debug",
    "platform",
    "testfile",
    "stonewallingstatusfile",
    "datapackettype",
    "memorypernode",
    "allocatebufferongpu",
];

impl Params {
    /// Files that the test names.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let of_run = [
            &self.script,
            &self.summary_file,
            &self.rank_csv,
            &self.per_op_csv,
            &self.status_file,
        ];
        let tested = self.test_file.split('@');
        tested.chain(of_run.into_iter().map(String::as_str))
    }
}

impl Target for Params {
    fn slot(&mut self, key: &str) -> Slot<'_> {
        match key {
            "api" => Slot::Text(&mut self.api),
            "scriptFile" => Slot::Text(&mut self.script),
            "dataPacketType" => Slot::Text(&mut self.packet),
            "memoryPerNode" => Slot::Text(&mut self.memory_per_node_text),
            "testFile" => Slot::Text(&mut self.test_file),
            "directives" => Slot::Act(Box::new(|text| self.directives(text))),
            key => match self.number_of(key) {
                Some(n) => Slot::Number(n),
                None => unreachable!("the option table names {key}"),
            },
        }
    }
}

impl Params {
    /// Several directives with commas between them; a comment ends them.
    pub(crate) fn directives(&mut self, line: &str) -> Result<(), String> {
        let line = line.split('#').next().unwrap_or("");
        for part in line.split(',') {
            if part.len() < 3 {
                return Err(format!(
                    "Invalid option substring string: \"{part}\" in \"{line}\""
                ));
            }
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("Syntax error in configuration options: {part}"));
            };
            let (key, value) = (key.trim(), value.split_whitespace().next().unwrap_or(""));
            if key.is_empty() || value.is_empty() {
                return Err(format!("Syntax error in configuration options: {part}"));
            }
            self.directive(key, value)?;
        }
        Ok(())
    }

    fn directive(&mut self, key: &str, value: &str) -> Result<(), String> {
        let lower = key.to_ascii_lowercase();
        if let Some((_, key, size)) = DIRECTIVES.iter().find(|(name, ..)| *name == lower) {
            let value = if *size { number(value) } else { atoi(value) };
            if matches!(*key, "collective" | "dualMount") && value != 0 {
                return Err(format!("{key}={value} is refused: see -h"));
            }
            if let Some(n) = self.number_of(key) {
                *n = value;
            }
            return Ok(());
        }
        match lower.as_str() {
            "api" => value.clone_into(&mut self.api),
            "testfile" => value.clone_into(&mut self.test_file),
            "debug" => value.clone_into(&mut self.debug),
            "platform" => value.clone_into(&mut self.platform),
            "stonewallingstatusfile" => value.clone_into(&mut self.status_file),
            "datapackettype" => value.clone_into(&mut self.packet),
            "memorypernode" => value.clone_into(&mut self.memory_per_node_text),
            "saveperopdatacsv" => value.clone_into(&mut self.per_op_csv),
            "saverankperformancedetailscsv" => self.start_rank_csv(value)?,
            "summaryfile" => self.start_summary_file(value)?,
            "summaryformat" => {
                self.format = match value.to_ascii_lowercase().as_str() {
                    "default" => Format::Text,
                    "json" => Format::Json,
                    "csv" => Format::Csv,
                    _ => return Err("Unknown summaryFormat".to_owned()),
                }
            }
            _ => return self.option_directive(key, value),
        }
        Ok(())
    }

    /// What is no directive may be an option of an interface.
    fn option_directive(&mut self, key: &str, value: &str) -> Result<(), String> {
        let before = self.out.take();
        let done = options::directive(key, value, &SPECS, self);
        self.out = before;
        done.map_err(|parsed| {
            if let Some(refused) = parsed.notes.iter().find(|n| n.contains("refused")) {
                return refused.clone();
            }
            let names = DIRECTIVES.iter().map(|d| d.0).chain(DIRECTIVE_TEXTS);
            let hint =
                nearest(key, names).map_or_else(String::new, |n| format!("; the nearest is {n}"));
            format!("Unrecognized parameter \"{key}\"{hint}")
        })
    }

    /// Says something, where this copy says anything: rank 0 alone makes files while the command line is read.
    fn speaks(&self) -> bool {
        self.out.is_some()
    }

    fn start_rank_csv(&mut self, path: &str) -> Result<(), String> {
        if self.speaks() {
            let head =
                "access,rank,runtime-with-openclose,runtime,throughput-withopenclose,throughput\n";
            fs::write(path, head).map_err(|e| {
                format!("Cannot open saveRankPerformanceDetailsCSV file for write! {path}: {e}")
            })?;
        }
        path.clone_into(&mut self.rank_csv);
        Ok(())
    }

    fn start_summary_file(&mut self, path: &str) -> Result<(), String> {
        if let Some(out) = &self.out {
            fs::write(path, "")
                .map_err(|e| format!("Cannot open output file for writes! {path}: {e}"))?;
            out.line(format!("Writing output to {path}"));
        }
        path.clone_into(&mut self.summary_file);
        Ok(())
    }

    /// What follows from options that were given together. Says what is wrong as the original does.
    pub(crate) fn settle(&mut self, out: &Out) -> Result<(), Failed> {
        let refuse = |text: String| {
            out.line(format!("ERROR: {text}"));
            Err(Failed::Said(255))
        };
        match Pattern::named(&self.packet) {
            Some(pattern) => self.pattern = pattern,
            None => {
                return refuse(format!(
                    "Unknown packet type \"{}\"; it is offset, incompressible, timestamp or random",
                    self.packet
                ));
            }
        }
        if !self.memory_per_node_text.is_empty() {
            self.memory_per_node = match memory(&self.memory_per_node_text) {
                Some(bytes) => bytes,
                None => return refuse("percentage must be between 0 and 100".to_owned()),
            };
        }
        let api = self.api.to_ascii_uppercase();
        if !["POSIX", "CORAL", "DUMMY"].contains(&api.as_str()) {
            return refuse(format!(
                "Unrecognized I/O API: there is no {} here; POSIX, CORAL and DUMMY are",
                self.api
            ));
        }
        self.api = api;
        Ok(())
    }

    /// What the test works on.
    pub(crate) fn interface(&self) -> &str {
        if self.dry_run != 0 {
            "DUMMY"
        } else {
            &self.api
        }
    }
}

/// A size, or a part of this machine's memory.
fn memory(text: &str) -> Option<i64> {
    let Some(percent) = text.trim().strip_suffix('%') else {
        return Some(number(text));
    };
    let percent: i64 = percent.trim().parse().ok()?;
    let total = rustix::system::sysinfo();
    let total = total.totalram as i64 * i64::from(total.mem_unit.max(1));
    (0..=100).contains(&percent).then(|| total / 100 * percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_and_directive_has_its_place() {
        let mut p = Params::default();
        for s in SPECS {
            if matches!(s.kind, Kind::Flag | Kind::Int | Kind::Long | Kind::Text) {
                let _ = p.slot(s.key);
            }
        }
        for (_, key, _) in DIRECTIVES {
            assert!(p.number_of(key).is_some(), "{key}");
        }
    }

    #[test]
    fn directives_are_read_without_regard_to_case() {
        let mut p = Params::default();
        p.directives("BLOCKSIZE=4k,transferSize = 1k , stoneWallingWearOut=1,useO_DIRECT=1")
            .expect("fine");
        assert_eq!((p.block_size, p.transfer_size), (4096, 1024));
        assert_eq!((p.wear_out, p.direct), (1, 1));
        p.directives("--posix.odirect=0").expect("fine");
        assert_eq!(p.direct, 0);
        let why = p.directives("blocksiz=4k").expect_err("no such name");
        assert!(why.contains("nearest is blocksize"), "{why}");
        assert!(p.directives("summaryFormat=XML").is_err());
        assert!(p.directives("collective=1").is_err());
        assert!(p.directives("a").is_err() && p.directives("abc").is_err());
        assert!(
            p.directives("posix.lustre.stripecount=4")
                .expect_err("refused")
                .contains("lfs setstripe")
        );
    }

    #[test]
    fn memory_is_a_size_or_a_part() {
        assert_eq!(memory("2g"), Some(2 << 30));
        assert!(memory("10%").expect("a part") > 0);
        assert_eq!(memory("101%"), None);
    }
}
