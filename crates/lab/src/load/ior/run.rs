//! The course of a test: phases, barriers and what is measured between them.

use super::offsets::Offsets;
use super::params::Params;
use super::report::{Point, Report, Timers};
use super::transfer::{Access, Moved, Transfer};
use super::validate::validate;
use crate::load::Failed;
use crate::load::clock::wall_s;
use crate::load::meter::Trace;
use crate::load::random::Rand;
use crate::load::ranks::Rank;
use crate::load::storage::{Buffer, How, OpenFile};
use std::fs;
use std::io;
use std::time::Duration;

/// Runs all tests; the number of errors that verification found, as a code to end with.
pub(super) fn all(args: &[String], tests: &[Params], rank: &mut Rank<'_>) -> Result<u8, Failed> {
    let mut tests = tests.to_vec();
    for p in &mut tests {
        prepare(p, rank)?;
    }
    let mut report = Report::new(&tests[0], rank)?;
    report.header(args);
    let mut errors = 0;
    for p in &tests {
        if rank.among(p.num_tasks as u32) {
            let mut test = Test {
                p,
                report: &mut report,
                rank_offset: 0,
                repetition: None,
                seed: 0,
                order_seed: 0,
                errors: 0,
                iterations: p.wear_out_iterations as u64,
                buffer: Buffer::new(p.transfer_size as usize, rank.here())?,
                rank,
            };
            test.run()?;
            errors = test.errors;
        }
        rank.together()?;
    }
    report.summary(rank);
    // The original ends with the number itself, of which the shell sees the lowest byte.
    Ok(errors.min(255) as u8)
}

/// Fills in what only the ranks together know, and refuses what makes no sense.
fn prepare(p: &mut Params, rank: &Rank<'_>) -> Result<(), Failed> {
    let say = |text: String| {
        if rank.is_first() {
            rank.out.line(text);
        }
    };
    let size = i64::from(rank.size);
    if p.num_tasks == -1 {
        p.num_tasks = size;
    } else if p.num_tasks > size {
        say(format!(
            "WARNING: More tasks requested ({}) than available ({size}),",
            p.num_tasks
        ));
        say(format!("WARNING:          running with {size} tasks.\n"));
        p.num_tasks = size;
    }
    if p.num_nodes == -1 {
        p.num_nodes = i64::from(rank.nodes.count);
    }
    if p.on_node0 == -1 {
        p.on_node0 = i64::from(rank.nodes.on_first);
    }
    let (warnings, wrong) = validate(p);
    warnings.iter().for_each(|w| say(format!("WARNING: {w}")));
    if let Some(wrong) = wrong {
        say(format!("ERROR: {wrong}"));
        return Err(Failed::Said(255));
    }
    if p.dry_run == 0 {
        rank.storage.name().clone_into(&mut p.api);
    }
    if p.direct != 0 && p.api == "CORAL" {
        say(
            "ERROR: --posix.odirect is for POSIX: the client library has no way past its cache"
                .to_owned(),
        );
        return Err(Failed::Said(255));
    }
    Ok(())
}

/// A test that runs, as one rank sees it.
struct Test<'t, 'r> {
    p: &'t Params,
    rank: &'t mut Rank<'r>,
    report: &'t mut Report,
    rank_offset: u32,
    repetition: Option<i64>,
    /// Seed of the data.
    seed: u32,
    /// Seed of the order of offsets.
    order_seed: u32,
    errors: u64,
    /// Transfers that a stonewalled write made, for the read.
    iterations: u64,
    buffer: Buffer,
}

impl Test<'_, '_> {
    fn tasks(&self) -> u32 {
        self.rank.members
    }

    /// The rank whose data this one handles now.
    fn task(&self) -> u32 {
        (self.rank.id + self.rank_offset) % self.tasks()
    }

    fn warn(&self, text: &str) -> Result<(), Failed> {
        if self.p.warnings_are_errors != 0 {
            self.rank.out.line(format!("ERROR: {text}"));
            return Err(Failed::Said(255));
        }
        self.rank.out.line(format!("WARNING: {text}"));
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failed> {
        let p = self.p;
        if self.rank.is_first() {
            let path = self.file_name()?;
            self.report.test_start(p, &path, self.rank);
        }
        let _hog = self.hog()?;
        let start = self.rank.clock.now();
        if (p.write != 0 || p.check_write != 0) && (p.file_per_proc != 0 || self.rank.is_first()) {
            let path = self.file_name()?;
            if self.rank.storage.size(&path).is_ok()
                && p.dry_run == 0
                && self.rank.storage.name() != "DUMMY"
            {
                let what = if p.use_existing != 0 {
                    "overwritten"
                } else {
                    "deleted"
                };
                self.warn(&format!(
                    "The file \"{path}\" exists already and will be {what}"
                ))?;
            }
        }
        self.order_seed = match p.random_seed {
            -1 => self.rank.from_first(wall_s())? as u32,
            seed => seed as u32,
        };
        for repetition in 0..p.repetitions {
            self.repeat(repetition, start)?;
        }
        self.report.test_end(p, self.rank)
    }

    fn repeat(&mut self, repetition: i64, start: i64) -> Result<(), Failed> {
        let p = self.p;
        self.seed = match p.signature {
            0 => self.rank.from_first(wall_s())? as u32,
            signature => signature as u32,
        };
        if self.rank.is_first() && p.verbose >= 2 {
            self.rank.out.line(self.time_stamp("Using"));
        }
        if repetition == 0 {
            self.report.table_header(self.rank);
        }
        self.fill();
        self.repetition = (p.multi_file != 0).then_some(repetition);
        let mut path = self.file_name()?;
        let mut found = 0;
        if p.write != 0 && !self.late(start)? {
            path = self.write(repetition)?;
        }
        if p.check_write != 0 && !self.late(start)? {
            (path, found) = self.check_write(repetition)?;
        }
        if (p.read != 0 || p.check_read != 0) && !self.late(start)? {
            let wrong;
            (path, wrong) = self.read(repetition)?;
            found += wrong;
        }
        let start = self.rank.clock.now();
        self.rank.barrier()?;
        if p.keep == 0 && !(found > 0 && p.keep_with_error != 0) {
            self.remove(&path)?;
            self.rank.barrier()?;
            self.report.removed(start, repetition, self.rank);
        }
        self.rank_offset = 0;
        Ok(())
    }

    fn time_stamp(&self, word: &str) -> String {
        format!(
            "{word} Time Stamp {0} ({0:#x}) for Data Signature",
            self.seed
        )
    }

    /// The minutes of `-T` are over, by rank 0's clock.
    fn late(&mut self, start: i64) -> Result<bool, Failed> {
        if self.p.max_time_min == 0 {
            return Ok(false);
        }
        let spent = self.rank.clock.now() - start;
        let spent = self.rank.from_first(spent)?;
        Ok(spent >= self.p.max_time_min * 60_000_000_000)
    }

    /// The buffer has the data of the own rank, whatever is read later.
    fn fill(&mut self) {
        self.p
            .pattern
            .fill(&mut self.buffer, self.seed, self.rank.id);
    }

    fn write(&mut self, repetition: i64) -> Result<String, Failed> {
        let p = self.p;
        let path = self.file_name()?;
        self.wait()?;
        if p.use_existing == 0 {
            self.remove(&path)?;
        }
        self.iterations = p.wear_out_iterations as u64;
        self.rank.barrier()?;
        let mut timers = Timers::default();
        timers.open.0 = self.rank.clock.now();
        let how = How {
            read: true,
            write: true,
            create: true,
            direct: p.direct != 0,
            ..How::default()
        };
        let mut file = self
            .rank
            .storage
            .open(&path, how)
            .map_err(Failed::storage("Cannot create file", &path))?;
        timers.open.1 = self.rank.clock.now();
        let moved = self.timed(&mut timers, &mut file, &path, Access::Write, repetition)?;
        self.close(&mut timers, file, &path)?;
        self.rank.barrier()?;
        let pairs = moved.pairs;
        self.point(&path, &timers, moved, Access::Write, repetition)?;
        if p.deadline_s > 0 {
            self.iterations = pairs;
        }
        Ok(path)
    }

    fn check_write(&mut self, repetition: i64) -> Result<(String, u64), Failed> {
        let p = self.p;
        self.rank.barrier()?;
        if self.rank.is_first() && p.verbose >= 1 {
            self.rank
                .out
                .line("Verifying contents of the file(s) just written.");
            self.rank
                .out
                .line(crate::load::text::ctime(wall_s()) + "\n");
        }
        if p.reorder != 0 {
            self.rank_offset = self.shift(p.task_offset + 1);
        }
        let path = self.file_name()?;
        let mut file = self.open_to_read(&path)?;
        let moved = self.transfer(&mut *file, &path, Access::WriteCheck, repetition)?;
        file.close()
            .map_err(Failed::storage("cannot close", &path))?;
        self.rank_offset = 0;
        let errors = self.count_errors(moved.errors, "write")?;
        Ok((path, errors))
    }

    fn read(&mut self, repetition: i64) -> Result<(String, u64), Failed> {
        let p = self.p;
        if !p.status_file.is_empty() {
            self.iterations = self.read_status()?;
        }
        self.reorder(repetition);
        let path = self.file_name()?;
        self.wait()?;
        self.rank.barrier()?;
        let access = if p.check_read != 0 {
            Access::ReadCheck
        } else {
            Access::Read
        };
        let mut timers = Timers::default();
        timers.open.0 = self.rank.clock.now();
        let mut file = self.open_to_read(&path)?;
        timers.open.1 = self.rank.clock.now();
        let moved = self.timed(&mut timers, &mut file, &path, access, repetition)?;
        self.close(&mut timers, file, &path)?;
        let errors = if p.check_read != 0 {
            self.count_errors(moved.errors, "read")?
        } else {
            0
        };
        self.point(&path, &timers, moved, access, repetition)?;
        Ok((path, errors))
    }

    fn open_to_read(&self, path: &str) -> Result<Box<dyn OpenFile>, Failed> {
        let how = How {
            read: true,
            direct: self.p.direct != 0,
            ..How::default()
        };
        let open = self.rank.storage.open(path, how);
        open.map_err(Failed::storage("Cannot open file", path))
    }

    fn timed(
        &mut self,
        timers: &mut Timers,
        file: &mut Box<dyn OpenFile>,
        path: &str,
        access: Access,
        repetition: i64,
    ) -> Result<Moved, Failed> {
        if self.p.barriers != 0 {
            self.rank.barrier()?;
        }
        timers.transfer.0 = self.rank.clock.now();
        let moved = self.transfer(&mut **file, path, access, repetition)?;
        timers.transfer.1 = self.rank.clock.now();
        if self.p.barriers != 0 {
            self.rank.barrier()?;
        }
        Ok(moved)
    }

    fn close(
        &self,
        timers: &mut Timers,
        file: Box<dyn OpenFile>,
        path: &str,
    ) -> Result<(), Failed> {
        timers.close.0 = self.rank.clock.now();
        file.close()
            .map_err(Failed::storage("cannot close", path))?;
        timers.close.1 = self.rank.clock.now();
        Ok(())
    }

    fn transfer(
        &mut self,
        file: &mut dyn OpenFile,
        path: &str,
        access: Access,
        repetition: i64,
    ) -> Result<Moved, Failed> {
        let p = self.p;
        let (task, tasks) = (self.task(), self.tasks());
        let each = p.block_size * p.segments;
        let planned = if p.file_per_proc != 0 {
            each
        } else {
            each * i64::from(tasks)
        };
        let size = match access {
            _ if p.random_offset < 2 => planned,
            Access::Write | Access::WriteCheck => planned,
            _ => file.size().map_err(Failed::storage("cannot stat", path))? as i64,
        };
        let last_first = access == Access::Write && (p.file_per_proc != 0 || self.rank.is_first());
        let trace = match p.per_op_csv.as_str() {
            "" => None,
            prefix => Some(Trace::create(
                format!("{prefix}-{repetition}-{:05}.csv", self.rank.id),
                self.rank.clock.now(),
                p.transfer_size as u64,
            )?),
        };
        Transfer {
            p,
            access,
            file,
            path,
            buffer: &mut self.buffer,
            offsets: Offsets::new(p, task, tasks, self.order_seed, size, last_first),
            seed: self.seed,
            task,
            iterations: self.iterations,
            trace,
        }
        .run(self.rank)
    }

    /// Everyone's figures come together; rank 0 prints them.
    fn point(
        &mut self,
        path: &str,
        timers: &Timers,
        moved: Moved,
        access: Access,
        repetition: i64,
    ) -> Result<(), Failed> {
        let size = match self.rank.storage.size(path) {
            Ok(size) => size,
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(Failed::storage("cannot stat", path)(e)),
        };
        let point = Point::gather(self.p, timers, &moved, size, self.rank)?;
        self.report.point(
            self.p,
            point,
            access == Access::Write,
            repetition,
            self.rank,
        )
    }

    fn count_errors(&mut self, mine: u64, what: &str) -> Result<u64, Failed> {
        let errors = self.rank.sum(mine)?;
        self.errors += errors;
        if errors > 0 && self.rank.is_first() {
            self.warn(&format!(
                "Incorrect data on {what} ({errors} errors found).\n"
            ))?;
            self.rank.out.line(self.time_stamp("Used"));
        }
        Ok(errors)
    }

    /// Ranks away, for so many nodes.
    fn shift(&self, nodes: i64) -> u32 {
        let each = if self.rank.nodes.block_mapped {
            self.p.on_node0
        } else {
            1
        };
        (nodes * each).rem_euclid(i64::from(self.tasks())) as u32
    }

    /// Whose data this rank reads: `-C`, `-Z`, `-Z -Z`.
    fn reorder(&mut self, repetition: i64) {
        let p = self.p;
        let tasks = self.tasks();
        if p.reorder != 0 {
            self.rank_offset = self.shift(p.task_offset);
        }
        let seed = match p.reorder_seed {
            s if s < 0 => (-s + repetition) as u32,
            s => s as u32,
        };
        if p.reorder_random == 1 {
            let nodes = p.task_offset.min(p.num_nodes - 1);
            let least = (nodes * p.on_node0).max(0);
            let mut rand = Rand::new(self.rank.id.wrapping_add(seed));
            self.rank_offset = rand.next() % tasks;
            // Where no rank is far enough, the original draws for ever.
            while i64::from(self.rank_offset) < least && least < i64::from(tasks) {
                self.rank_offset = rand.next() % tasks;
            }
        } else if p.reorder_random > 1 {
            let mut rand = Rand::new(seed);
            let mut order: Vec<u32> = (0..tasks).collect();
            for i in 0..tasks {
                order.swap((i + rand.next() % (tasks - i)) as usize, i as usize);
            }
            self.rank_offset = (order[self.rank.id as usize] + tasks - self.rank.id) % tasks;
        }
    }

    fn read_status(&mut self) -> Result<u64, Failed> {
        let mut count = -1;
        if self.rank.is_first() {
            let text = fs::read_to_string(&self.p.status_file).unwrap_or_default();
            count = text.trim().parse::<i64>().unwrap_or(-1);
            if count == -1 {
                self.warn("Could not read back the stonewalling status from the file!")?;
            }
        }
        Ok(self.rank.from_first(count)?.max(0) as u64)
    }

    /// The name of the file that this rank handles now.
    fn file_name(&self) -> Result<String, Failed> {
        let p = self.p;
        let names: Vec<&str> = p.test_file.split('@').filter(|n| !n.is_empty()).collect();
        let first = names.first().copied().unwrap_or("testFile");
        let mut name = first.to_owned();
        if p.file_per_proc != 0 {
            if names.len() > 1 && p.unique_dir != 0 {
                self.rank
                    .out
                    .line("ERROR: cannot use multiple file names with unique directories");
                return Err(Failed::Said(255));
            }
            let task = self.task();
            let root = names
                .get(task as usize % names.len().max(1))
                .copied()
                .unwrap_or(first);
            let root = match p.unique_dir {
                0 => root.to_owned(),
                _ => self.own_directory(root, task)?,
            };
            name = format!("{root}.{task:08}");
        }
        if let Some(repetition) = self.repetition {
            name += &format!(".{repetition}");
        }
        Ok(name)
    }

    /// `/dir/file` as `/dir/RANK/file`.
    fn own_directory(&self, root: &str, task: u32) -> Result<String, Failed> {
        let (dir, file) = root.rsplit_once('/').unwrap_or((".", root));
        let dir = format!("{dir}/{task}");
        match self.rank.storage.mkdir(&dir, 0o700) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(Failed::storage("cannot create directory:", &dir)(e))
            }
            _ => Ok(format!("{dir}/{file}")),
        }
    }

    fn remove(&mut self, path: &str) -> Result<(), Failed> {
        let mut path = path.to_owned();
        if self.p.file_per_proc == 0 {
            if !self.rank.is_first() {
                return Ok(());
            }
        } else if self.p.reorder_random != 0 {
            // Random ranks read one file twice and another never: each removes its own.
            let offset = std::mem::take(&mut self.rank_offset);
            path = self.file_name()?;
            self.rank_offset = offset;
        }
        match self.rank.storage.unlink(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                let why = format!("cannot delete file {path}: {e}");
                self.rank.lose(&why)?;
                self.warn(&why)
            }
            _ => Ok(()),
        }
    }

    fn wait(&self) -> Result<(), Failed> {
        match self.p.delay_s {
            s if s > 0 && self.p.dry_run == 0 => self.rank.pause(Duration::from_secs(s as u64)),
            _ => Ok(()),
        }
    }

    /// Memory that an application would have taken.
    fn hog(&self) -> Result<Buffer, Failed> {
        let bytes = match (self.p.memory_per_task, self.p.memory_per_node) {
            (0, 0) => 0,
            (0, node) => node / self.p.on_node0.max(1),
            (task, _) => task,
        };
        Buffer::new(bytes.max(0) as usize, self.rank.here())
    }
}
