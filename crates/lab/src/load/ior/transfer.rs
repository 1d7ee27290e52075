//! The transfers of one task in one phase, up to the stonewall and through the wear-out after it.

use super::offsets::Offsets;
use super::params::Params;
use crate::load::Failed;
use crate::load::clock::seconds;
use crate::load::meter::{Latency, Meter, Trace};
use crate::load::ranks::Rank;
use crate::load::storage::{Buffer, OpenFile};
use std::io;
use std::time::Duration;

/// What a phase does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    /// Reads what was just written, and compares.
    WriteCheck,
    Read,
    /// Reads and compares.
    ReadCheck,
}

impl Access {
    fn writes(self) -> bool {
        self == Access::Write
    }

    fn checks(self) -> bool {
        matches!(self, Access::WriteCheck | Access::ReadCheck)
    }

    /// Whose data are compared, in messages.
    fn checked(self) -> &'static str {
        match self {
            Access::Write | Access::WriteCheck => "write",
            Access::Read | Access::ReadCheck => "read",
        }
    }
}

/// A short transfer is tried again so often (hpc/ior: MAX_RETRY).
const MAX_RETRY: u32 = 10_000;

/// One task's part of a phase.
pub(super) struct Transfer<'t> {
    pub p: &'t Params,
    pub access: Access,
    pub file: &'t mut dyn OpenFile,
    pub path: &'t str,
    pub buffer: &'t mut Buffer,
    pub offsets: Offsets,
    /// Seed of the data.
    pub seed: u32,
    /// Whose data these are: the own rank, or one it reads for.
    pub task: u32,
    /// Stop after so many transfers; 0 for no such limit.
    pub iterations: u64,
    pub trace: Option<Trace>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub bytes: u64,
    pub operations: u64,
    /// What IOR divides by: the own transfers, or with a wear-out the most of any task.
    pub pairs: u64,
    pub errors: u64,
    pub latency: Latency,
    /// Bytes, transfers and seconds when the stonewall fell, of this task.
    pub at_wall: Option<(u64, u64, f64)>,
}

impl Transfer<'_> {
    /// Runs it.
    pub(super) fn run(mut self, rank: &mut Rank<'_>) -> Result<Moved, Failed> {
        let mut prefill = self.prefill_buffer(rank)?;
        let mut errors = 0;
        let limit = (self.p.deadline_s > 0).then(|| self.p.deadline_s * 1_000_000_000);
        if let Some(buffer) = prefill.as_mut().filter(|_| limit.is_none()) {
            (0..self.p.segments).try_for_each(|s| self.prefill(s, buffer, rank))?;
            rank.barrier()?;
        }
        let start = rank.clock.now();
        let mut meter = Meter::start(rank.clock, rank.line).with_trace(self.trace.take());
        let in_segment = self.offsets.in_segment();
        let mut place = (0, 0);
        let mut hit = false;
        loop {
            while place.0 < self.p.segments && !hit && in_segment > 0 {
                if place.1 == 0
                    && let Some(buffer) = prefill.as_mut().filter(|_| limit.is_some())
                {
                    self.prefill(place.0, buffer, rank)?;
                    rank.barrier()?;
                    meter.begin();
                }
                let now = self.one(rank, &mut meter, place, &mut errors)?;
                place = next(place, in_segment);
                hit = limit.is_some_and(|l| now - start > l)
                    || self.iterations != 0 && meter.operations() == self.iterations;
            }
            let past = rank.clock.now() - start >= self.p.min_time_s * 1_000_000_000;
            if hit || past || in_segment == 0 {
                break;
            }
            place = (0, 0);
        }
        let mut moved = Moved {
            pairs: meter.operations(),
            ..Moved::default()
        };
        if self.p.wear_out != 0 {
            let spent = seconds(rank.clock.now() - start);
            moved.at_wall = Some((meter.bytes(), meter.operations(), spent));
            let all = rank.all(meter.operations())?;
            moved.pairs = all.iter().copied().max().unwrap_or(0);
            meter.begin();
            while meter.operations() < moved.pairs && in_segment > 0 {
                if place.0 >= self.p.segments {
                    place = (0, 0);
                }
                self.one(rank, &mut meter, place, &mut errors)?;
                place = next(place, in_segment);
            }
        }
        (moved.bytes, moved.operations) = (meter.bytes(), meter.operations());
        moved.errors = errors;
        moved.latency = meter.finish()?;
        if self.access.writes() && self.p.fsync != 0 {
            self.file
                .sync()
                .map_err(Failed::storage("cannot fsync", self.path))?;
        }
        Ok(moved)
    }

    /// One transfer; the time after it.
    fn one(
        &mut self,
        rank: &Rank<'_>,
        meter: &mut Meter<'_>,
        (segment, j): (i64, i64),
        errors: &mut u64,
    ) -> Result<i64, Failed> {
        let offset = self.offsets.at(segment, j) as u64;
        let pattern = self.p.pattern;
        let size = self.buffer.len() as u64;
        if self.access.writes() {
            if pattern.changes() {
                pattern.update(offset, self.buffer, self.seed, self.task);
                meter.begin();
            }
            self.write(offset)?;
        } else {
            if self.access.checks() {
                // What was read before must not pass for what is there.
                self.buffer[0] = !self.buffer[0];
                meter.begin();
            }
            self.read(offset)?;
        }
        let mut now = meter.done(size);
        if self.access.checks()
            && let Some(at) = pattern.wrong(offset, self.buffer, self.seed, self.task)
        {
            if *errors == 0 {
                eprintln!("ior: {}: byte {} is wrong", self.path, offset + at as u64);
            }
            *errors += 1;
            let what = self.access.checked();
            rank.lose(&format!("incorrect data on {what}"))?;
            if self.p.stop_on_error != 0 {
                return Err(Failed::Refused(format!(
                    "{}: byte {} is wrong, and -q ends the run at that",
                    self.path,
                    offset + at as u64
                )));
            }
        }
        if self.access.writes() && self.p.fsync_per_write != 0 {
            self.file
                .sync()
                .map_err(Failed::storage("cannot fsync", self.path))?;
            meter.begin();
            now = meter.now();
        }
        if self.p.io_delay_us > 0 {
            rank.pause(Duration::from_micros(self.p.io_delay_us as u64))?;
            meter.begin();
            now = meter.now();
        }
        Ok(now)
    }

    fn write(&mut self, offset: u64) -> Result<(), Failed> {
        write_all(self.file, self.buffer, offset, self.p.single_attempt != 0)
            .map_err(Failed::storage("cannot write to file", self.path))
    }

    fn read(&mut self, offset: u64) -> Result<(), Failed> {
        let (mut done, mut tries) = (0, 0);
        let result = loop {
            match self
                .file
                .read_at(&mut self.buffer[done..], offset + done as u64)
            {
                Ok(0) => {
                    break Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the file ends here",
                    ));
                }
                Ok(n) => done += n,
                Err(e) => break Err(e),
            }
            if done == self.buffer.len() {
                break Ok(());
            }
            tries += 1;
            if self.p.single_attempt != 0 || tries > MAX_RETRY {
                break Err(io::Error::other(format!(
                    "{done} bytes of {}",
                    self.buffer.len()
                )));
            }
        };
        result.map_err(Failed::storage("cannot read from file", self.path))
    }

    /// What the file is filled with before random writes: data that no verification takes for its own.
    fn prefill_buffer(&self, rank: &Rank<'_>) -> Result<Option<Buffer>, Failed> {
        let wanted = self.p.prefill > 0 && self.access.writes();
        if !wanted {
            return Ok(None);
        }
        let mut buffer = Buffer::new(self.p.prefill as usize, rank.here())?;
        buffer.fill(0xff);
        Ok(Some(buffer))
    }

    fn prefill(
        &mut self,
        segment: i64,
        buffer: &mut Buffer,
        rank: &Rank<'_>,
    ) -> Result<(), Failed> {
        let block = self.p.block_size;
        let start = match self.p.file_per_proc {
            0 => (segment * i64::from(rank.members) + i64::from(self.task)) * block,
            _ => segment * block,
        };
        for offset in (start..start + block).step_by(buffer.len()) {
            write_all(self.file, buffer, offset as u64, false)
                .map_err(Failed::storage("cannot write to file", self.path))?;
        }
        Ok(())
    }
}

fn next((segment, j): (i64, i64), in_segment: i64) -> (i64, i64) {
    if j + 1 == in_segment {
        (segment + 1, 0)
    } else {
        (segment, j + 1)
    }
}

fn write_all(file: &mut dyn OpenFile, from: &[u8], offset: u64, once: bool) -> io::Result<()> {
    let (mut done, mut tries) = (0, 0);
    loop {
        done += file.write_at(&from[done..], offset + done as u64)?;
        if done == from.len() {
            return Ok(());
        }
        tries += 1;
        if once || tries > MAX_RETRY {
            return Err(io::Error::other(format!("{done} bytes of {}", from.len())));
        }
    }
}
