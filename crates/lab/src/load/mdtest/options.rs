//! mdtest's options, what follows from them, and what is refused.

use super::tree::{MAX_DEPTH_COUNT, MAX_DIRS_COUNT, Tree};
use crate::load::options::{Kind, Slot, Spec, Target, spec};
use crate::load::pattern::Pattern;
use std::collections::BTreeMap;

const GPU: &str = "there is no GPU memory here";

#[rustfmt::skip]
pub(super) const SPECS: [Spec; 51] = [
    spec("a", "", Kind::Text, "api", "API for I/O [POSIX|CORAL|DUMMY]"),
    spec("b", "", Kind::Int, "branch_factor", "subdirectories of a directory of the tree"),
    spec("d", "", Kind::Text, "path", "directory to work in, or several: dir1@dir2@dir3"),
    spec("B", "", Kind::Int, "no_barriers", "1: no barriers between phases"),
    spec("C", "", Kind::Flag, "create", "only create"),
    spec("T", "", Kind::Flag, "stat", "only stat"),
    spec("E", "", Kind::Flag, "read", "only read"),
    spec("r", "", Kind::Flag, "remove", "only remove what an earlier run left"),
    spec("U", "", Kind::Flag, "rename", "rename directories"),
    spec("D", "", Kind::Flag, "dirs_only", "directories only"),
    spec("e", "", Kind::Long, "read_bytes", "bytes to read from each file"),
    spec("f", "", Kind::Int, "first", "tasks to begin with"),
    spec("F", "", Kind::Flag, "files_only", "files only"),
    spec("g", "", Kind::Refused("layouts of directories are set with 'lfs setdirstripe'"), "", ""),
    spec("G", "", Kind::Int, "buffer_seed", "seed of the data; the time if not set"),
    spec("i", "", Kind::Int, "iterations", "iterations of the test"),
    spec("I", "", Kind::Long, "items_per_dir", "items in each directory of the tree"),
    spec("k", "", Kind::Flag, "make_node", "create files with mknod"),
    spec("l", "", Kind::Int, "last", "tasks to end with"),
    spec("L", "", Kind::Flag, "leaf_only", "items in the leaves of the tree only"),
    spec("n", "", Kind::Long, "items", "items that each task handles"),
    spec("N", "", Kind::Int, "stride", "nodes to shift by between phases (0: each task handles its own)"),
    spec("p", "", Kind::Int, "pre_delay", "seconds to wait before each iteration"),
    spec("P", "", Kind::Flag, "rate_and_time", "print rates and times"),
    spec("", "print-all-procs", Kind::Flag, "all_procs", "print the figures of every task"),
    spec("R", "", Kind::Flag, "randomize", "stat and read in random order"),
    spec("", "random-seed", Kind::Int, "random_seed", "seed of -R"),
    spec("s", "", Kind::Int, "task_step", "tasks to add from -f to -l"),
    spec("S", "", Kind::Flag, "shared_file", "all tasks on the same files"),
    spec("c", "", Kind::Flag, "collective", "task 0 creates and removes for all"),
    spec("t", "", Kind::Flag, "time_unique", "time the way to the own directory as well"),
    spec("u", "", Kind::Flag, "unique_dir", "a directory for each task"),
    spec("v", "", Kind::Flag, "verbose", "say more"),
    spec("V", "", Kind::Int, "verbose", "how much to say"),
    spec("w", "", Kind::Long, "write_bytes", "bytes to write to each file"),
    spec("W", "", Kind::Int, "stonewall_s", "seconds after which the creation of files stops; all tasks then go on to the most that one did"),
    spec("x", "", Kind::Text, "status_file", "file for the number of items that a stonewalled creation made"),
    spec("X", "verify-read", Kind::Flag, "verify_read", "verify what is read"),
    spec("", "verify-write", Kind::Flag, "verify_write", "read what was written at once and verify it"),
    spec("y", "", Kind::Flag, "sync_file", "fsync after the write"),
    spec("Y", "", Kind::Flag, "call_sync", "sync(2) at the end of each phase, within its time"),
    spec("z", "", Kind::Int, "depth", "depth of the tree"),
    spec("Z", "", Kind::Flag, "print_time", "print times instead of rates"),
    spec("", "dataPacketType", Kind::Text, "packet", "data [offset|incompressible|timestamp|random|o|i|t|r]"),
    spec("", "run-cmd-before-phase", Kind::Text, "prologue", "command before each phase, outside of its time"),
    spec("", "run-cmd-after-phase", Kind::Text, "epilogue", "command after each phase, within its time"),
    spec("", "allocateBufferOnGPU", Kind::Refused(GPU), "", ""),
    spec("", "showRankStatistics", Kind::Flag, "rank_statistics", "figures over the tasks as well"),
    spec("", "saveRankPerformanceDetails", Kind::Text, "rank_csv", "file for the figures of each task"),
    spec("", "savePerOpDataCSV", Kind::Text, "per_op_csv", "prefix of files with a line for each operation"),
    spec("", "warningAsErrors", Kind::Flag, "warnings_are_errors", "a warning ends the run"),
];

/// Values of the options. Numbers that nothing sets are 0, except those of [`Options::default`].
#[derive(Clone, Debug)]
pub(super) struct Options {
    numbers: BTreeMap<String, i64>,
    pub api: String,
    pub path: String,
    pub status_file: String,
    pub packet: String,
    pub prologue: String,
    pub epilogue: String,
    pub rank_csv: String,
    pub per_op_csv: String,
    pub pattern: Pattern,
}

impl Default for Options {
    fn default() -> Options {
        let numbers = [
            ("branch_factor", 1),
            ("buffer_seed", -1),
            ("iterations", 1),
            ("task_step", 1),
            ("first", 1),
        ];
        Options {
            numbers: numbers.map(|(k, v)| (k.to_owned(), v)).into(),
            api: "POSIX".to_owned(),
            path: "./out".to_owned(),
            status_file: String::new(),
            packet: "t".to_owned(),
            prologue: String::new(),
            epilogue: String::new(),
            rank_csv: String::new(),
            per_op_csv: String::new(),
            pattern: Pattern::Timestamp,
        }
    }
}

impl Target for Options {
    fn slot(&mut self, key: &str) -> Slot<'_> {
        match key {
            "api" => Slot::Text(&mut self.api),
            "path" => Slot::Text(&mut self.path),
            "status_file" => Slot::Text(&mut self.status_file),
            "packet" => Slot::Text(&mut self.packet),
            "prologue" => Slot::Text(&mut self.prologue),
            "epilogue" => Slot::Text(&mut self.epilogue),
            "rank_csv" => Slot::Text(&mut self.rank_csv),
            "per_op_csv" => Slot::Text(&mut self.per_op_csv),
            key => Slot::Number(self.numbers.entry(key.to_owned()).or_default()),
        }
    }
}

impl Options {
    /// The number of an option.
    pub(super) fn number(&self, key: &str) -> i64 {
        debug_assert!(SPECS.iter().any(|s| s.key == key), "{key}");
        self.numbers.get(key).copied().unwrap_or(0)
    }

    /// The option was given, or follows from others.
    pub(super) fn is(&self, key: &str) -> bool {
        self.number(key) != 0
    }

    fn set(&mut self, key: &str, value: i64) {
        self.numbers.insert(key.to_owned(), value);
    }

    /// For the record.
    pub(super) fn as_json(&self) -> serde_json::Value {
        let mut map: serde_json::Map<String, serde_json::Value> = self
            .numbers
            .iter()
            .map(|(k, v)| (k.clone(), (*v).into()))
            .collect();
        map.insert("api".to_owned(), self.api.clone().into());
        map.insert("path".to_owned(), self.path.clone().into());
        map.into()
    }

    /// Directories of `-d`.
    pub(super) fn paths(&self) -> Vec<&str> {
        self.path.split('@').filter(|p| !p.is_empty()).collect()
    }

    /// What follows from options, and what cannot be told from the number of ranks.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        self.pattern = Pattern::named(&self.packet)
            .ok_or_else(|| format!("Unknown packet type \"{}\"", self.packet))?;
        let api = self.api.to_ascii_uppercase();
        if !["POSIX", "CORAL", "DUMMY"].contains(&api.as_str()) {
            return Err(format!(
                "Unrecognized I/O API: there is no {} here; POSIX, CORAL and DUMMY are",
                self.api
            ));
        }
        self.api = api;
        if !["create", "stat", "read", "remove", "rename"]
            .iter()
            .any(|k| self.is(k))
        {
            ["create", "stat", "read", "remove", "rename"]
                .iter()
                .for_each(|k| self.set(k, 1));
        }
        if !self.is("dirs_only") && !self.is("files_only") {
            self.set("dirs_only", 1);
            self.set("files_only", 1);
        }
        if self.is("shared_file") {
            self.set("dirs_only", 0);
        }
        for key in [
            "items",
            "items_per_dir",
            "write_bytes",
            "read_bytes",
            "pre_delay",
            "stonewall_s",
        ] {
            if self.number(key) < 0 {
                return Err(format!("{key} must not be negative"));
            }
        }
        if self.number("iterations") < 1 {
            return Err("there must be one iteration at least".to_owned());
        }
        if self.number("depth") > MAX_DEPTH_COUNT {
            return Err(format!("-z is at most {MAX_DEPTH_COUNT}"));
        }
        let dirs = Tree::new(self).dirs;
        if dirs > MAX_DIRS_COUNT {
            return Err(format!(
                "the tree would have {dirs} directories, and {MAX_DIRS_COUNT} is the most: give a smaller -z or -b"
            ));
        }
        Ok(())
    }

    /// What the original refuses, in its words.
    #[rustfmt::skip]
    pub(super) fn wrong(&self, size: u32) -> Option<String> {
        let n = |k| self.number(k);
        let paths = self.paths().len() as i64;
        let both = n("items") > 0 && n("items_per_dir") > 0;
        let rules = [
            (n("stonewall_s") > 0 && n("branch_factor") > 1 || self.is("no_barriers") && n("stonewall_s") > 0,
                format!("Error, stone wall timer does only work with a branch factor <= 1 (current is {}) and with barriers\n", n("branch_factor"))),
            (self.is("no_barriers") && n("stride") != 0, "Possible race conditions will occur: -B not compatible with -N".into()),
            (self.is("shared_file") && self.is("collective"), "-c not compatible with -S".into()),
            (paths > 1 && self.is("collective"), "-c not compatible with multiple test directories".into()),
            (self.is("collective") && self.is("no_barriers"), "-c not compatible with -B".into()),
            (self.is("unique_dir") && self.is("shared_file"), "-u not compatible with -S".into()),
            (paths > 1 && n("stride") > 0, "cannot have multiple directory paths with -N strides between neighbor tasks".into()),
            (paths > 1 && !self.is("unique_dir"), "shared directory mode is not compatible with multiple directory paths".into()),
            (paths > i64::from(size), "cannot have more directory paths than MPI tasks".into()),
            (n("depth") < 0, "depth must be greater than or equal to zero".into()),
            (n("branch_factor") < 1 && n("depth") > 0, "branch factor must be greater than or equal to zero".into()),
            (both && self.is("unique_dir"), "only specify the number of items or the number of items per directory".into()),
            (both && n("items_per_dir") > 0 && n("items") % n("items_per_dir").max(1) != 0, "items must be a multiple of items per directory".into()),
            (n("write_bytes") > 0 && self.is("make_node"), "-k not compatible with -w".into()),
            (self.is("verify_read") && !self.is("read"), "Verify read requires that the read test is used".into()),
            (self.is("verify_read") && n("read_bytes") <= 0, "Verify read requires that read bytes is > 0".into()),
            (self.is("create") && self.is("read") && n("read_bytes") > n("write_bytes"), "When writing and reading files, read bytes must be smaller than write bytes".into()),
            (n("stonewall_s") > 0 && both, "-W is for one directory: -n or -I, not both".into()),
            (n("last") > i64::from(size), "process number: last > number of processes doesn't make sense".into()),
            (n("last") > 0 && n("first") > n("last"), "process number: first > last doesn't make sense".into()),
            (Tree::new(self).all(size).is_none(), format!("the items of {size} tasks are more than can be counted: give a smaller -n or -I")),
            (n("task_step") < 1, "the step from -f to -l must be positive".into()),
        ];
        rules.into_iter().find(|(wrong, _)| *wrong).map(|(_, text)| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::options::parse;

    fn read(line: &str) -> Options {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut o = Options::default();
        let parsed = parse(&args, &SPECS, &mut o);
        assert!(!parsed.error && !parsed.fatal, "{parsed:?}");
        o.settle().expect("fine");
        o
    }

    #[test]
    fn the_lines_of_io500_are_read() {
        let o = read(
            "-n 1000000 -u -L -F -P -G 7 -N 1 -C -Y -W 300 -x /s -d /d --saveRankPerformanceDetails=/r.csv",
        );
        assert_eq!(o.number("items"), 1_000_000);
        assert!(o.is("create") && !o.is("stat") && !o.is("dirs_only"));
        assert_eq!(o.rank_csv, "/r.csv");
        assert_eq!(o.wrong(4), None);
        let o = read("-t -w 3901 -e 3901 -P -N 1 -F -n 100 -d /d");
        assert_eq!((o.number("write_bytes"), o.wrong(4)), (3901, None));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            "-c -S -n 1",
            "-u -S -n 1",
            "-k -w 10 -n 1",
            "-d a@b -n 1",
            "-u -n 4 -I 2",
            "-n 5 -I 2",
            "-W 3 -b 2 -z 1 -n 9",
            "-X -n 1",
            "-B 1 -N 1 -n 1",
            "-l 9 -n 1",
            "-e 10 -n 1",
        ] {
            assert!(read(line).wrong(4).is_some(), "{line}");
        }
    }

    #[test]
    fn more_items_than_a_number_can_hold_are_refused() {
        let most = i64::MAX;
        for (line, tasks, refused) in [
            (format!("-n {most} -u"), 2, false),
            (format!("-n {most} -u"), 3, true),
            (format!("-I {most} -b 2 -z 1"), 1, true),
            // items in leaves only, after the numbers of those above
            (format!("-I {most} -b 1 -z 2 -L"), 1, true),
            (format!("-n {most} -I 1"), 4, true),
        ] {
            let why = read(&line).wrong(tasks);
            let said = format!(
                "the items of {tasks} tasks are more than can be counted: give a smaller -n or -I"
            );
            assert_eq!(why, refused.then_some(said), "{line}");
        }
    }

    #[test]
    fn a_tree_that_no_task_could_hold_is_refused() {
        let settled = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let mut o = Options::default();
            parse(&args, &SPECS, &mut o);
            o.settle()
        };
        assert_eq!(settled("-z 22 -b 2 -n 1"), Ok(()));
        let why = settled("-z 24 -b 2 -n 1").unwrap_err();
        assert!(why.contains("33554431 directories"), "{why}");
        let why = settled("-z 64 -b 10 -n 1").unwrap_err();
        assert!(why.contains("smaller -z or -b"), "{why}");
        assert_eq!(
            settled("-z 201 -b 1 -n 1").unwrap_err(),
            "-z is at most 200"
        );
    }
}
