//! The course of a test: iterations, phases, and what is measured in them.

use super::options::Options;
use super::report::{self, Iteration, Kind, Measured};
use super::tree::{self, Tree, Turn};
use crate::load::Failed;
use crate::load::clock::wall_s;
use crate::load::memory::fits;
use crate::load::meter::{Meter, Trace};
use crate::load::ranks::Rank;
use crate::load::storage::Buffer;
use std::io;
use std::process::Command;
use std::time::Duration;

/// Permission bits of directories.
pub(super) const DIR_MODE: u32 = 0o775;
/// Permission bits of files.
pub(super) const FILE_MODE: u32 = 0o664;

/// Runs all tests; the number of errors that verification found, as a code to end with, and 1 where other operations failed.
pub(super) fn all(args: &[String], o: &Options, rank: &mut Rank<'_>) -> Result<u8, Failed> {
    if rank.is_first() {
        report::started(args, rank);
        if let Some(wrong) = o.wrong(rank.size) {
            rank.out.line(format!("ERROR: {wrong}"));
            return Err(Failed::Said(1));
        }
        report::start_rank_csv(o)?;
        if o.is("read") && o.number("read_bytes") == 0 {
            rank.out
                .line("WARNING: Read bytes is 0, thus, a read test will actually just open/close");
        }
        report::node_map(rank);
    }
    rank.barrier()?;
    let mut test = Test::new(o, rank)?;
    let made = test.make_root()?;
    if test.rank.is_first() {
        report::place(o, &test.path, test.seed_of_order, test.stride, test.rank);
    }
    let (first, last) = match o.number("last") {
        0 => (test.rank.size, test.rank.size),
        last => (o.number("first").max(1) as u32, last as u32),
    };
    let mut tasks = first;
    while tasks <= last {
        if test.rank.among(tasks) {
            test.run()?;
        }
        test.rank.together()?;
        tasks += o.number("task_step") as u32;
    }
    if made && o.is("remove") {
        let (path, storage) = (test.path.clone(), test.rank.storage.clone());
        storage.rmdir(&path).map_err(Failed::storage(
            "Unable to remove test directory path",
            &path,
        ))?;
    }
    let errors = test.all_errors;
    let lost = rank.all_lost()?;
    if rank.is_first() {
        report::finished(rank);
        // Wrong data have been told.
        if lost.count > errors
            && let Some(told) = lost.told()
        {
            eprintln!("mdtest: {told}; what is printed counts them as done");
        }
    }
    Ok(errors.max(u64::from(lost.count > 0)).min(255) as u8)
}

/// A test, as one rank sees it.
pub(super) struct Test<'o, 'r, 't> {
    pub(super) o: &'o Options,
    pub(super) rank: &'t mut Rank<'r>,
    pub(super) tree: Tree,
    /// Items of this rank in a tree: less than planned after a stonewall.
    pub(super) items: u64,
    pub(super) loops: u64,
    pub(super) stride: u64,
    /// The directory of `-d` that this rank works in.
    pub(super) path: String,
    pub(super) order: Vec<u64>,
    pub(super) seed_of_order: u32,
    pub(super) seed: u32,
    pub(super) write_buffer: Buffer,
    pub(super) read_buffer: Buffer,
    /// Errors that verification found in this rank's data.
    pub(super) errors: u64,
    /// In those of all ranks.
    all_errors: u64,
    pub(super) iteration: u32,
    /// Phases of this rank that have not been brought together with those of the others.
    pub(super) done: Vec<Measured>,
    /// The phases of this iteration of which all ranks have told.
    table: Iteration,
}

impl<'o, 'r, 't> Test<'o, 'r, 't> {
    fn new(o: &'o Options, rank: &'t mut Rank<'r>) -> Result<Self, Failed> {
        let tree = Tree::new(o);
        let now = rank.from_first(wall_s())? as u32;
        let seed = match o.number("buffer_seed") {
            -1 => now,
            seed => seed as u32,
        };
        let mut seed_of_order = o.number("random_seed") as u32;
        if o.is("randomize") {
            let common = if seed_of_order == 0 {
                now
            } else {
                seed_of_order
            };
            seed_of_order = common.wrapping_add(rank.id);
        }
        let mut stride = o.number("stride").max(0) as u64;
        if rank.nodes.count > 1 && rank.nodes.block_mapped {
            stride *= u64::from(rank.nodes.on_first);
        }
        let paths = o.paths();
        let path = match paths.len() {
            0 => ".".to_owned(),
            n => paths[rank.id as usize % n].to_owned(),
        };
        let here = rank.here();
        let [to_write, to_read] = ["write_bytes", "read_bytes"].map(|k| o.number(k) as u64);
        let both = to_write.saturating_add(to_read);
        fits(&format!("buffers of {both} bytes"), both, here)?;
        let mut write_buffer = Buffer::new(to_write as usize, here)?;
        o.pattern.fill(&mut write_buffer, seed, rank.id);
        Ok(Test {
            items: tree.items,
            loops: tree.loops,
            order: tree::order(
                tree.items,
                (seed_of_order > 0).then_some(seed_of_order),
                here,
            )?,
            tree,
            stride,
            path,
            seed_of_order,
            seed,
            write_buffer,
            read_buffer: Buffer::new(to_read as usize, here)?,
            errors: 0,
            all_errors: 0,
            iteration: 0,
            done: Vec::new(),
            table: Iteration::default(),
            o,
            rank,
        })
    }

    pub(super) fn warn(&self, text: &str) -> Result<(), Failed> {
        let fatal = self.o.is("warnings_are_errors");
        self.rank.out.line(format!(
            "{}: {text}",
            if fatal { "ERROR" } else { "WARNING" }
        ));
        if fatal { Err(Failed::Said(1)) } else { Ok(()) }
    }

    /// A call that failed is a warning in the original, and the operation counts. Not so where its interface ends the run:
    /// files that cannot be made, opened, written or closed.
    pub(super) fn expect(
        &self,
        what: &str,
        path: &str,
        done: io::Result<()>,
    ) -> Result<(), Failed> {
        match done {
            Ok(()) => Ok(()),
            Err(e) => self.lose(&format!("{what} {path}: {e}")),
        }
    }

    /// The same of one of which this is known.
    pub(super) fn lose(&self, text: &str) -> Result<(), Failed> {
        self.rank.lose(text)?;
        self.warn(text)
    }

    pub(super) fn leads(&self) -> bool {
        (self.rank.id as usize) < self.o.paths().len().max(1)
    }

    /// Makes the directory of `-d`; true if this rank did.
    fn make_root(&mut self) -> Result<bool, Failed> {
        let mut made = false;
        if self.leads() {
            made = match self.rank.storage.mkdir(&self.path, DIR_MODE) {
                Ok(()) => true,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
                Err(e) => {
                    return Err(Failed::storage(
                        "Unable to create test directory path",
                        &self.path,
                    )(e));
                }
            };
        }
        self.rank.barrier()?;
        Ok(made)
    }

    fn run(&mut self) -> Result<(), Failed> {
        if self.rank.is_first() {
            report::planned(self.o, &self.tree, self.rank);
        }
        let mut table = Vec::new();
        for iteration in 0..self.o.number("iterations") as u32 {
            self.iteration = iteration;
            (self.items, self.loops) = (self.tree.items, self.tree.loops);
            self.iterate()?;
            table.push(std::mem::take(&mut self.table));
        }
        self.all_errors = self.rank.sum(self.errors)?;
        if self.rank.is_first() {
            report::summary(self.o, &self.tree, &table, self.rank)?;
            if self.all_errors > 0 {
                self.rank.out.line(format!(
                    "\nERROR: verifying the data on read ({} errors)! Take the performance values with care!\n",
                    self.all_errors
                ));
            }
        }
        Ok(())
    }

    fn iterate(&mut self) -> Result<(), Failed> {
        let o = self.o;
        if o.is("create") {
            self.make_trees()?;
        }
        for (wanted, dirs) in [
            (o.is("dirs_only") && !o.is("shared_file"), true),
            (o.is("files_only"), false),
        ] {
            if !wanted {
                continue;
            }
            if o.is("pre_delay") {
                let time = Duration::from_secs(o.number("pre_delay") as u64);
                self.rank.pause(time)?;
            }
            self.rank.barrier()?;
            if dirs {
                self.directories()?
            } else {
                self.files()?
            }
            self.gather()?;
        }
        self.rank.barrier()?;
        if o.is("remove") {
            self.remove_trees()?;
        }
        Ok(())
    }

    /// Brings the phases together that are over: from now on they are in the record, whatever becomes of the run. Only where the ranks
    /// meet anyway.
    pub(super) fn gather(&mut self) -> Result<(), Failed> {
        for m in std::mem::take(&mut self.done) {
            self.table.gather(self.iteration, &m, self.rank)?;
        }
        Ok(())
    }

    fn directories(&mut self) -> Result<(), Failed> {
        let o = self.o;
        if o.is("create") {
            self.phase(Kind::DirCreate, Turn::Create, |t, m| {
                t.each("dir", Turn::Create, m, |t, path, _| {
                    let made = t.rank.storage.mkdir(path, DIR_MODE);
                    t.expect("unable to create directory", path, made)
                })
            })?;
        }
        if o.is("stat") {
            self.phase(Kind::DirStat, Turn::Stat, |t, m| t.stat(m, "dir"))?;
        }
        if o.is("read") {
            // An empty loop, as in the original.
            self.phase(Kind::DirRead, Turn::Read, |t, _| Ok(t.items))?;
        }
        if o.is("rename") && self.items > 1 {
            self.phase(Kind::DirRename, Turn::Stat, Test::rename)?;
        }
        if o.is("remove") {
            self.phase(Kind::DirRemove, Turn::Remove, |t, m| {
                t.each("dir", Turn::Remove, m, |t, path, _| {
                    let removed = t.rank.storage.rmdir(path);
                    t.expect("unable to remove directory", path, removed)
                })
            })?;
        }
        Ok(())
    }

    fn files(&mut self) -> Result<(), Failed> {
        let o = self.o;
        if o.is("create") {
            self.phase(Kind::FileCreate, Turn::Create, Test::create_files)?;
        } else if !o.status_file.is_empty() {
            self.read_status()?;
        }
        if o.is("stat") {
            self.phase(Kind::FileStat, Turn::Stat, |t, m| t.stat(m, "file"))?;
        }
        if o.is("read") {
            self.phase(Kind::FileRead, Turn::Read, Test::read_files)?;
        }
        if o.is("remove") {
            self.phase(Kind::FileRemove, Turn::Remove, |t, m| {
                // The first task removes it for all.
                if t.o.is("shared_file") && !t.rank.is_first() {
                    return Ok(t.items * t.loops);
                }
                t.each("file", Turn::Remove, m, |t, path, _| {
                    let removed = t.rank.storage.unlink(path);
                    t.expect("unable to remove file", path, removed)
                })
            })?;
        }
        Ok(())
    }

    /// Measures one phase from barrier to barrier. `work` answers the number of its operations.
    fn phase(
        &mut self,
        kind: Kind,
        turn: Turn,
        work: impl FnOnce(&mut Self, &mut Meter<'_>) -> Result<u64, Failed>,
    ) -> Result<(), Failed> {
        let barriers = !self.o.is("no_barriers");
        self.command("prologue")?;
        if barriers {
            self.rank.barrier()?;
        }
        let mut start = self.rank.clock.now();
        if self.o.is("unique_dir") {
            if matches!(turn, Turn::Create) {
                self.rank.barrier()?;
            }
            if !self.o.is("time_unique") {
                start = self.rank.clock.now();
            }
        }
        let trace = self.trace(kind, start)?;
        let mut meter = Meter::start(self.rank.clock, self.rank.line).with_trace(trace);
        let errors = self.errors;
        let items = work(self, &mut meter)?;
        let before_barrier = self.rank.clock.now();
        if self.o.is("call_sync") {
            self.rank
                .storage
                .sync()
                .map_err(Failed::storage("cannot sync", &self.path))?;
        }
        self.command("epilogue")?;
        if barriers {
            self.rank.barrier()?;
        }
        let end = self.rank.clock.now();
        let stonewall = self
            .done
            .pop_if(|m| m.kind == Kind::Wall)
            .and_then(|m| m.stonewall);
        self.done.push(Measured {
            kind,
            start,
            before_barrier,
            end,
            items,
            operations: meter.operations(),
            bytes: meter.bytes(),
            errors: self.errors - errors,
            latency: meter.finish()?,
            stonewall,
        });
        if barriers { self.gather() } else { Ok(()) }
    }

    fn trace(&self, kind: Kind, start: i64) -> Result<Option<Trace>, Failed> {
        if self.o.per_op_csv.is_empty() || !kind.is_file() {
            return Ok(None);
        }
        let bytes = match kind {
            Kind::FileRead => self.o.number("read_bytes"),
            Kind::FileStat => 1,
            _ => self.o.number("write_bytes"),
        };
        let path = format!(
            "{}-{}-{:05}.csv",
            self.o.per_op_csv,
            kind.name(),
            self.rank.id
        );
        Trace::create(path, start, bytes.max(1) as u64).map(Some)
    }

    fn command(&self, which: &str) -> Result<(), Failed> {
        let line = if which == "prologue" {
            &self.o.prologue
        } else {
            &self.o.epilogue
        };
        if line.is_empty() {
            return Ok(());
        }
        if self.rank.is_first() {
            self.rank.out.line(format!("calling {which}: \"{line}\""));
        }
        let status = Command::new("sh").args(["-c", line]).status();
        match status {
            Ok(s) if s.success() => Ok(()),
            Ok(s) => self.warn(&format!("{which} \"{line}\" ended: {s}")),
            Err(e) => self.warn(&format!("{which} \"{line}\": {e}")),
        }
    }
}
