//! What a task does in each phase: items are created, looked at, read, renamed and removed.

use super::report::{Kind, Measured};
use super::run::{FILE_MODE, Test};
use super::tree::{self, Names, Turn, names};
use crate::load::Failed;
use crate::load::clock::seconds;
use crate::load::meter::{Latency, Meter};
use crate::load::pattern::Pattern;
use crate::load::record::Stonewall;
use crate::load::storage::How;
use std::fmt::Write as _;
use std::io;

impl Test<'_, '_, '_> {
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

    /// Does something with each item of this task, or with `-c` of all tasks if it is the first.
    pub(super) fn each(
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

    pub(super) fn stat(&mut self, meter: &mut Meter<'_>, word: &str) -> Result<u64, Failed> {
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
    pub(super) fn rename(&mut self, meter: &mut Meter<'_>) -> Result<u64, Failed> {
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

    pub(super) fn create_files(&mut self, meter: &mut Meter<'_>) -> Result<u64, Failed> {
        if self.o.is("collective") {
            self.each("file", Turn::Create, meter, |t, path, _| t.touch(path))?;
            self.rank.barrier()?;
            meter.begin();
        }
        let limit = self.o.number("stonewall_s") * 1_000_000_000;
        let names = self.names(self.rank.id, Turn::Create);
        let start = meter.now();
        let mut path = String::new();
        let (mut made, mut written) = (0, 0);
        'all: for nth in 0..self.loops {
            for i in 0..self.items {
                let number = self.path_of(&mut path, &names, "file", nth, i);
                let bytes = self.create(&path, number)?;
                let now = meter.done(bytes);
                (made, written) = (made + 1, written + bytes);
                if limit > 0 && now - start > limit {
                    break 'all;
                }
            }
        }
        if limit > 0 {
            self.wear_out(meter, &names, (made, written), start)?;
        }
        Ok(self.items * self.loops)
    }

    /// After the stonewall every task goes on to the most that one did; that is what there is from now on.
    fn wear_out(
        &mut self,
        meter: &mut Meter<'_>,
        names: &Names,
        (made, written): (u64, u64),
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
            let bytes = self.create(&path, number)?;
            meter.done(bytes);
        }
        self.items = max;
        if !self.o.status_file.is_empty() && self.rank.is_first() {
            let file = &self.o.status_file;
            std::fs::write(file, max.to_string()).map_err(Failed::file(file))?;
        }
        let times = self.rank.all(spent)?;
        let most = times.iter().copied().fold(0.0, f64::max);
        let bytes = self.rank.sum(written)?;
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

    pub(super) fn read_status(&mut self) -> Result<(), Failed> {
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
        made.map_err(Failed::storage("unable to create file", path))
    }

    /// Bytes that were written to it.
    fn create(&mut self, path: &str, number: u64) -> Result<u64, Failed> {
        if self.o.is("make_node") {
            let made = self.rank.storage.mknod(path, FILE_MODE);
            made.map_err(Failed::storage("unable to mknod file", path))?;
            return Ok(0);
        }
        if self.write_buffer.is_empty() {
            self.touch(path)?;
            return Ok(0);
        }
        let o = self.o;
        let how = How {
            write: true,
            read: true,
            create: true,
            mode: FILE_MODE,
            ..How::default()
        };
        let made = self.rank.storage.open(path, how);
        let mut file = made.map_err(Failed::storage("unable to create file", path))?;
        o.pattern
            .update(number, &mut self.write_buffer, self.seed, self.rank.id);
        let bytes = file
            .write_at(&self.write_buffer, 0)
            .and_then(|n| match n == self.write_buffer.len() {
                true => Ok(n as u64),
                false => Err(io::Error::other(format!(
                    "{n} bytes of {} were written",
                    self.write_buffer.len()
                ))),
            })
            .map_err(Failed::storage("unable to write file", path))?;
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
            if !right {
                self.is_wrong(path)?;
            }
            // What was read may be wrong; the next file gets what it should have.
            o.pattern
                .fill(&mut self.write_buffer, self.seed, self.rank.id);
        }
        let closed = file.close();
        closed.map_err(Failed::storage("unable to close file", path))?;
        Ok(bytes)
    }

    pub(super) fn read_files(&mut self, meter: &mut Meter<'_>) -> Result<u64, Failed> {
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
                let opened = self.rank.storage.open(&path, how);
                let mut file = opened.map_err(Failed::storage("unable to open file", &path))?;
                let mut moved = 0;
                if bytes > 0 {
                    self.read_buffer[0] = !self.read_buffer[0];
                    let read = file.read_at(&mut self.read_buffer, 0);
                    moved = *read.as_ref().unwrap_or(&0) as u64;
                    if !matches!(read, Ok(n) if n == bytes) {
                        self.lose(&format!("unable to read file {path}"))?;
                        self.errors += 1;
                    } else if self.o.is("verify_read") && !self.is_right(number, whose as u32) {
                        eprintln!("mdtest: {path}: its data are wrong");
                        self.is_wrong(&path)?;
                    }
                }
                let closed = file.close();
                closed.map_err(Failed::storage("unable to close file", &path))?;
                meter.done(moved);
            }
        }
        Ok(self.items * self.loops)
    }

    /// What was read of a file is not what was written.
    fn is_wrong(&mut self, path: &str) -> Result<(), Failed> {
        self.errors += 1;
        self.rank.lose(&format!("{path}: its data are wrong"))
    }

    fn is_right(&self, number: u64, whose: u32) -> bool {
        let pattern: Pattern = self.o.pattern;
        pattern
            .wrong(number, &self.read_buffer, self.seed, whose)
            .is_none()
    }
}
