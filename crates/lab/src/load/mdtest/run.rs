//! The course of a test: iterations, phases, and what is measured in them.

use super::options::Options;
use super::report::{self, Kind, Measured};
use super::tree::{self, Names, Tree, Turn, names};
use crate::load::Failed;
use crate::load::clock::{seconds, sleep, wall_s};
use crate::load::meter::{Latency, Meter, Trace};
use crate::load::pattern::Pattern;
use crate::load::ranks::Rank;
use crate::load::record::Stonewall;
use crate::load::storage::{Buffer, How};
use std::fmt::Write as _;
use std::io;
use std::process::Command;
use std::time::Duration;

/// Permission bits of directories.
const DIR_MODE: u32 = 0o775;
/// Permission bits of files.
const FILE_MODE: u32 = 0o664;

/// Runs all tests; the number of errors that verification found, as a code to end with.
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
    let errors = test.errors;
    if rank.is_first() {
        report::finished(rank);
    }
    Ok(errors.min(255) as u8)
}

/// A test, as one rank sees it.
struct Test<'o, 'r, 't> {
    o: &'o Options,
    rank: &'t mut Rank<'r>,
    tree: Tree,
    /// Items of this rank in a tree: less than planned after a stonewall.
    items: u64,
    loops: u64,
    stride: u64,
    /// The directory of `-d` that this rank works in.
    path: String,
    order: Vec<u64>,
    seed_of_order: u32,
    seed: u32,
    write_buffer: Buffer,
    read_buffer: Buffer,
    errors: u64,
    iteration: u32,
    done: Vec<Measured>,
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
        let mut write_buffer = Buffer::new(o.number("write_bytes") as usize);
        o.pattern.fill(&mut write_buffer, seed, rank.id);
        Ok(Test {
            items: tree.items,
            loops: tree.loops,
            order: tree::order(tree.items, (seed_of_order > 0).then_some(seed_of_order)),
            tree,
            stride,
            path,
            seed_of_order,
            seed,
            write_buffer,
            read_buffer: Buffer::new(o.number("read_bytes") as usize),
            errors: 0,
            iteration: 0,
            done: Vec::new(),
            o,
            rank,
        })
    }

    fn warn(&self, text: &str) -> Result<(), Failed> {
        let fatal = self.o.is("warnings_are_errors");
        self.rank.out.line(format!(
            "{}: {text}",
            if fatal { "ERROR" } else { "WARNING" }
        ));
        if fatal { Err(Failed::Said(1)) } else { Ok(()) }
    }

    /// A call that failed is a warning in the original, and the operation counts.
    fn expect(&self, what: &str, path: &str, done: io::Result<()>) -> Result<(), Failed> {
        match done {
            Ok(()) => Ok(()),
            Err(e) => self.warn(&format!("{what} {path}: {e}")),
        }
    }

    fn leads(&self) -> bool {
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
            let done = std::mem::take(&mut self.done);
            table.push(report::gather(iteration, done, self.rank)?);
        }
        self.errors = self.rank.sum(self.errors)?;
        if self.rank.is_first() {
            report::summary(self.o, &self.tree, &table, self.rank)?;
            if self.errors > 0 {
                self.rank.out.line(format!(
                    "\nERROR: verifying the data on read ({} errors)! Take the performance values with care!\n",
                    self.errors
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
                sleep(Duration::from_secs(o.number("pre_delay") as u64));
            }
            self.rank.barrier()?;
            if dirs {
                self.directories()?
            } else {
                self.files()?
            }
        }
        self.rank.barrier()?;
        if o.is("remove") {
            self.remove_trees()?;
        }
        Ok(())
    }

    fn directories(&mut self) -> Result<(), Failed> {
        let o = self.o;
        if o.is("create") {
            self.phase(Kind::DirCreate, Turn::Create, |t, m| {
                t.each_made(Turn::Create, m, |t, path, _| {
                    let made = t.rank.storage.mkdir(path, DIR_MODE);
                    t.expect("unable to create directory", path, made)
                })
            })?;
        }
        if o.is("stat") {
            self.phase(Kind::DirStat, Turn::Stat, |t, m| t.stat(m, "dir"))?;
        }
        if o.is("read") {
            self.phase(Kind::DirRead, Turn::Read, |t, _| Ok(t.items))?;
        }
        if o.is("rename") && self.items > 1 {
            self.phase(Kind::DirRename, Turn::Stat, Test::rename)?;
        }
        if o.is("remove") {
            self.phase(Kind::DirRemove, Turn::Remove, |t, m| {
                t.each_made(Turn::Remove, m, |t, path, _| {
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
                t.each_made_file(Turn::Remove, m, |t, path, _| {
                    if t.o.is("shared_file") && t.rank.id != 0 {
                        return Ok(());
                    }
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
            bytes: meter.bytes(),
            latency: meter.finish()?,
            stonewall,
        });
        Ok(())
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

    fn names(&self, task: u32, turn: Turn) -> Names {
        names(self.o, task, self.rank.members, self.stride, turn)
    }

    /// The path of item `i` in tree `nth`, into `path`; its number.
    fn path_of(&self, path: &mut String, names: &Names, word: &str, nth: u64, i: u64) -> u64 {
        let (directory, number) = self.tree.item(&names.base, i);
        path.clear();
        let root = tree::test_dir(&self.path, self.iteration, nth);
        let _ = write!(
            path,
            "{root}/{}.0/{directory}{word}.{}{number}",
            names.base, names.middle
        );
        number
    }

    /// Creates or removes this task's directories, or with `-c` those of all tasks if it is the first.
    fn each_made(
        &mut self,
        turn: Turn,
        meter: &mut Meter<'_>,
        act: impl FnMut(&mut Self, &str, u64) -> Result<(), Failed>,
    ) -> Result<u64, Failed> {
        self.each("dir", turn, meter, act)
    }

    fn each_made_file(
        &mut self,
        turn: Turn,
        meter: &mut Meter<'_>,
        act: impl FnMut(&mut Self, &str, u64) -> Result<(), Failed>,
    ) -> Result<u64, Failed> {
        self.each("file", turn, meter, act)
    }

    fn each(
        &mut self,
        word: &str,
        turn: Turn,
        meter: &mut Meter<'_>,
        mut act: impl FnMut(&mut Self, &str, u64) -> Result<(), Failed>,
    ) -> Result<u64, Failed> {
        let all = match (self.o.is("collective"), self.rank.is_first()) {
            (false, _) => self.rank.id..self.rank.id + 1,
            (true, true) => 0..self.rank.members,
            (true, false) => 0..0,
        };
        let mut path = String::new();
        for task in all {
            let names = self.names(task, turn);
            for nth in 0..self.loops {
                for i in 0..self.items {
                    let number = self.path_of(&mut path, &names, word, nth, i);
                    act(self, &path, number)?;
                    meter.done(0);
                }
            }
        }
        Ok(self.items * self.loops)
    }

    fn stat(&mut self, meter: &mut Meter<'_>, word: &str) -> Result<u64, Failed> {
        let names = self.names(self.rank.id, Turn::Stat);
        let mut path = String::new();
        for nth in 0..self.loops {
            for at in 0..self.items {
                self.path_of(&mut path, &names, word, nth, self.ordered(at));
                let found = self.rank.storage.size(&path).map(drop);
                self.expect("unable to stat", &path, found)?;
                meter.done(0);
            }
        }
        Ok(self.items * self.loops)
    }

    /// The item that comes at a place: by order, where a stonewall left fewer than planned.
    fn ordered(&self, at: u64) -> u64 {
        if self.items == self.tree.items && self.seed_of_order > 0 {
            self.order.get(at as usize).copied().unwrap_or(at)
        } else {
            at
        }
    }

    /// Each directory takes the name of the one before it; the first one's way leads over another name.
    fn rename(&mut self, meter: &mut Meter<'_>) -> Result<u64, Failed> {
        let names = self.names(self.rank.id, Turn::Stat);
        for nth in 0..self.loops {
            let (mut path, mut last, mut aside) = (String::new(), String::new(), String::new());
            for i in 0..self.items {
                self.path_of(&mut path, &names, "dir", nth, i);
                if i == 0 {
                    aside = format!("{path}-XX");
                    last.clone_from(&aside);
                } else if i == self.items - 1 {
                    path.clone_from(&aside);
                }
                let renamed = self.rank.storage.rename(&path, &last);
                self.expect("unable to rename directory", &path, renamed)?;
                meter.done(0);
                last.clone_from(&path);
            }
        }
        Ok(self.items * self.loops)
    }

    fn create_files(&mut self, meter: &mut Meter<'_>) -> Result<u64, Failed> {
        if self.o.is("collective") {
            self.each_made_file(Turn::Create, meter, |t, path, _| t.touch(path))?;
            self.rank.barrier()?;
            meter.begin();
        }
        let limit = self.o.number("stonewall_s") * 1_000_000_000;
        let names = self.names(self.rank.id, Turn::Create);
        let start = meter.now();
        let mut path = String::new();
        let mut made = 0;
        'all: for nth in 0..self.loops {
            for i in 0..self.items {
                let number = self.path_of(&mut path, &names, "file", nth, i);
                self.create(&path, number)?;
                let now = meter.done(self.o.number("write_bytes") as u64);
                made += 1;
                if limit > 0 && now - start > limit {
                    break 'all;
                }
            }
        }
        if limit > 0 {
            self.wear_out(meter, &names, made, start)?;
        }
        Ok(self.items * self.loops)
    }

    /// After the stonewall every task goes on to the most that one did; that is what there is from now on.
    fn wear_out(
        &mut self,
        meter: &mut Meter<'_>,
        names: &Names,
        made: u64,
        start: i64,
    ) -> Result<(), Failed> {
        let spent = seconds(self.rank.clock.now() - start);
        let all = self.rank.all(made)?;
        let (min, max) = (
            all.iter().min().copied().unwrap_or(0),
            all.iter().max().copied().unwrap_or(0),
        );
        let sum: u64 = all.iter().sum();
        if self.items != sum / all.len() as u64 && self.rank.is_first() {
            self.rank.out.line(format!(
                "Continue stonewall hit min: {min} max: {max} avg: {:.1} \n",
                sum as f64 / all.len() as f64
            ));
        }
        meter.begin();
        let mut path = String::new();
        for i in made..max {
            let number = self.path_of(&mut path, names, "file", 0, i);
            self.create(&path, number)?;
            meter.done(self.o.number("write_bytes") as u64);
        }
        self.items = max;
        if !self.o.status_file.is_empty() && self.rank.is_first() {
            let file = &self.o.status_file;
            std::fs::write(file, max.to_string()).map_err(Failed::file(file))?;
        }
        let times = self.rank.all(spent)?;
        let most = times.iter().copied().fold(0.0, f64::max);
        let bytes = sum * self.o.number("write_bytes") as u64;
        self.done.push(Measured {
            stonewall: Some(Stonewall {
                deadline_s: self.o.number("stonewall_s") as f64,
                wear_out: true,
                operations_min: min,
                operations_max: max,
                operations_mean: sum as f64 / all.len() as f64,
                bytes,
                seconds: most,
                bytes_per_s: bytes as f64 / most,
                operations_per_s: sum as f64 / most,
                tail_s: 0.0,
            }),
            ..Measured::of(Kind::Wall, Latency::new())
        });
        Ok(())
    }

    fn read_status(&mut self) -> Result<(), Failed> {
        let mut count = -1;
        if self.rank.is_first() {
            let text = std::fs::read_to_string(&self.o.status_file).unwrap_or_default();
            count = text.trim().parse().unwrap_or(-1);
            if count < 0 {
                self.warn("Could not read stonewall status file")?;
            }
        }
        let count: i64 = self.rank.from_first(count)?;
        if count >= 0 {
            self.items = (count as u64).min(self.tree.items);
        }
        Ok(())
    }

    fn touch(&self, path: &str) -> Result<(), Failed> {
        let how = How {
            write: true,
            read: true,
            create: true,
            mode: FILE_MODE,
            ..How::default()
        };
        let made = self.rank.storage.open(path, how).and_then(|f| f.close());
        self.expect("unable to create file", path, made)
    }

    fn create(&mut self, path: &str, number: u64) -> Result<(), Failed> {
        if self.o.is("make_node") {
            let made = self.rank.storage.mknod(path, FILE_MODE);
            return self.expect("unable to mknod file", path, made);
        }
        if self.write_buffer.is_empty() {
            return self.touch(path);
        }
        let o = self.o;
        let how = How {
            write: true,
            read: true,
            create: true,
            mode: FILE_MODE,
            ..How::default()
        };
        let mut file = match self.rank.storage.open(path, how) {
            Ok(file) => file,
            Err(e) => return self.warn(&format!("unable to create file {path}: {e}")),
        };
        o.pattern
            .update(number, &mut self.write_buffer, self.seed, self.rank.id);
        match file.write_at(&self.write_buffer, 0) {
            Ok(n) if n == self.write_buffer.len() => {}
            Ok(n) => self.warn(&format!(
                "unable to write file {path}: {n} bytes of {}",
                self.write_buffer.len()
            ))?,
            Err(e) => self.warn(&format!("unable to write file {path}: {e}"))?,
        }
        if o.is("sync_file") {
            let synced = file.sync();
            self.expect("unable to sync file", path, synced)?;
        }
        if o.is("verify_write") {
            self.write_buffer[0] = !self.write_buffer[0];
            let read = file.read_at(&mut self.write_buffer, 0);
            let right = matches!(read, Ok(n) if n == self.write_buffer.len())
                && o.pattern
                    .wrong(number, &self.write_buffer, self.seed, self.rank.id)
                    .is_none();
            self.errors += u64::from(!right);
            // What was read may be wrong; the next file gets what it should have.
            o.pattern
                .fill(&mut self.write_buffer, self.seed, self.rank.id);
        }
        let closed = file.close();
        self.expect("unable to close file", path, closed)
    }

    fn read_files(&mut self, meter: &mut Meter<'_>) -> Result<u64, Failed> {
        let names = self.names(self.rank.id, Turn::Read);
        let whose = match self.o.is("shared_file") {
            true => u64::from(self.rank.id),
            false => (u64::from(self.rank.id) + 2 * self.stride) % u64::from(self.rank.members),
        };
        let bytes = self.read_buffer.len();
        let mut path = String::new();
        for nth in 0..self.loops {
            for at in 0..self.items {
                let number = self.path_of(&mut path, &names, "file", nth, self.ordered(at));
                let how = How {
                    read: true,
                    ..How::default()
                };
                let mut file = match self.rank.storage.open(&path, how) {
                    Ok(file) => file,
                    Err(e) => {
                        self.warn(&format!("unable to open file {path}: {e}"))?;
                        continue;
                    }
                };
                if bytes > 0 {
                    self.read_buffer[0] = !self.read_buffer[0];
                    let read = file.read_at(&mut self.read_buffer, 0);
                    if !matches!(read, Ok(n) if n == bytes) {
                        self.warn(&format!("unable to read file {path}"))?;
                        self.errors += 1;
                    } else if self.o.is("verify_read") && self.is_wrong(number, whose as u32) {
                        eprintln!("mdtest: {path}: its data are wrong");
                        self.errors += 1;
                    }
                }
                let closed = file.close();
                self.expect("unable to close file", &path, closed)?;
                meter.done(bytes as u64);
            }
        }
        Ok(self.items * self.loops)
    }

    fn is_wrong(&self, number: u64, whose: u32) -> bool {
        let pattern: Pattern = self.o.pattern;
        pattern
            .wrong(number, &self.read_buffer, self.seed, whose)
            .is_some()
    }

    fn make_trees(&mut self) -> Result<(), Failed> {
        for nth in 0..self.loops {
            if self.leads() {
                let dir = tree::test_dir(&self.path, self.iteration, nth);
                match self.rank.storage.mkdir(&dir, DIR_MODE) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                        self.warn(&format!("Unable to create test directory {dir}: {e}"))?;
                    }
                    _ => {}
                }
            }
        }
        self.trees(Kind::TreeCreate, |t, root, base, below| {
            for dir in std::iter::once(String::new()).chain(below) {
                let path = format!("{root}/{base}.0/{dir}");
                let made = t.rank.storage.mkdir(&path, DIR_MODE);
                t.expect("unable to create tree directory", &path, made)?;
            }
            Ok(())
        })
    }

    fn remove_trees(&mut self) -> Result<(), Failed> {
        self.trees(Kind::TreeRemove, |t, root, base, below| {
            for dir in below.into_iter().rev().chain([String::new()]) {
                let path = format!("{root}/{base}.0/{dir}");
                let removed = t.rank.storage.rmdir(&path);
                t.expect("Unable to remove directory", &path, removed)?;
            }
            Ok(())
        })?;
        for nth in 0..self.loops {
            let dir = tree::test_dir(&self.path, self.iteration, nth);
            if self.leads() && self.rank.storage.size(&dir).is_ok() {
                let removed = self.rank.storage.rmdir(&dir);
                self.expect("unable to remove directory", &dir, removed)?;
            }
        }
        Ok(())
    }

    /// The trees that this task is to make or remove, between barriers.
    fn trees(
        &mut self,
        kind: Kind,
        mut act: impl FnMut(&mut Self, &str, &str, Vec<String>) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        self.rank.barrier()?;
        let start = self.rank.clock.now();
        let first = self.rank.is_first();
        let owners = match (self.o.is("unique_dir"), self.o.is("collective")) {
            (false, _) if first => 0..1,
            (true, true) if first => 0..u64::from(self.rank.members),
            (true, false) => u64::from(self.rank.id)..u64::from(self.rank.id) + 1,
            _ => 0..0,
        };
        for owner in owners {
            let base = tree::base(self.o, owner);
            for nth in 0..self.loops {
                let root = tree::test_dir(&self.path, self.iteration, nth);
                act(self, &root, &base, self.tree.directories(&base))?;
            }
        }
        let before_barrier = self.rank.clock.now();
        self.rank.barrier()?;
        self.done.push(Measured {
            start,
            before_barrier,
            end: self.rank.clock.now(),
            items: self.tree.dirs,
            ..Measured::of(kind, Latency::new())
        });
        Ok(())
    }
}
