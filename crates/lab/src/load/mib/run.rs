//! The write phase and the read phase, each until its calls or its seconds are over.

use super::options::{Options, file_system};
use super::{VERSION, arch};
use crate::load::Failed;
use crate::load::clock::{seconds, wall_s};
use crate::load::meter::{Latency, Meter};
use crate::load::random::Rand;
use crate::load::ranks::Rank;
use crate::load::record::{Phase, RankPhase, Record};
use crate::load::storage::{Buffer, How, OpenFile};
use crate::load::text::ctime;
use std::fs::File;
use std::io::{self, BufWriter, Write};

const MIB: f64 = 1_048_576.0;
/// Stars of a progress bar.
const STARS: u64 = 50;
/// A short transfer is tried again so often.
const RETRIES: u32 = 10;

pub(super) fn run(o: &Options, rank: &mut Rank<'_>) -> Result<u8, Failed> {
    let space = rank
        .storage
        .space(&o.dir)
        .map_err(absent)
        .map_err(Failed::storage("Could not statfs", &o.dir))?;
    match file_system(space.kind, o.force || rank.storage.name() == "DUMMY") {
        // Each task of the original says this, before it knows which one it is.
        Ok(text) if o.environment => rank.out.line(text),
        Ok(_) => {}
        Err(text) => {
            if rank.is_first() {
                rank.out.line(text);
            }
            return Err(Failed::Said(1));
        }
    }
    rank.barrier()?;
    if o.sign_on {
        rank.out.print(format_args!(
            "\n\nmib-{VERSION}-{}  {}\n\n",
            arch(),
            ctime(wall_s())
        ));
        rank.barrier()?;
    }
    if o.environment && rank.is_first() {
        rank.out.print(o.shown(rank.size));
    }
    if let Some(record) = rank.record.as_mut().filter(|_| o.remove && o.write_only) {
        let text = "-r removes files when they have been read: with -W they stay";
        note(record, text.to_owned());
    }
    let zero = rank.clock.now();
    let mut rates = [0.0; 2];
    if !o.read_only {
        rates[0] = Task::new(o, rank, true, zero).run()?;
        tell(
            o,
            rank,
            format_args!("Aggregate write rate = {:>10.2}\n", rates[0]),
        );
    }
    if !o.write_only {
        rates[1] = Task::new(o, rank, false, zero).run()?;
        tell(
            o,
            rank,
            format_args!("Aggregate read rate = {:>10.2}\n", rates[1]),
        );
    }
    if rank.is_first() {
        rank.out.print(result(o, rank.size, rates));
    }
    Ok(0)
}

/// Why there is no directory, with what is to do.
fn absent(why: io::Error) -> io::Error {
    match why.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            why.kind(),
            format!(
                "{why}; mib writes its files into a directory that is there: make it, or give another one with -t"
            ),
        ),
        _ => why,
    }
}

/// What needs a word, on standard error and in the record.
fn note(record: &mut Record, text: String) {
    eprintln!("mib: note: {text}");
    record.notes.push(text);
}

/// `-I`.
fn tell(o: &Options, rank: &Rank<'_>, text: std::fmt::Arguments<'_>) {
    if o.intermediate && rank.is_first() {
        rank.out.print(text);
    }
}

fn result(o: &Options, tasks: u32, [write, read]: [f64; 2]) -> String {
    let (unit, letter) = if o.call_bytes > 1 << 20 {
        (1 << 20, 'M')
    } else {
        (1 << 10, 'k')
    };
    let mut text = String::new();
    if o.headers {
        let line = |a: &str, cells: [&str; 6]| {
            format!(
                "{a} {:>6} {:>5} {:>5} {:>5} {:>10} {:>10}\n",
                cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]
            )
        };
        text += &line(
            "          date          ",
            ["tasks", "xfer", "call", "time", "write", "read"],
        );
        text += &line(
            &" ".repeat(24),
            [" ", " ", "limit", "limit", "MB/s", "MB/s"],
        );
        text += &line(
            &"-".repeat(24),
            [
                "------",
                "-----",
                "-----",
                "-----",
                "----------",
                "----------",
            ],
        );
    }
    text + &format!(
        "{} {tasks:>6} {:>4}{letter} {:>5} {:>5} {write:>10.2} {read:>10.2}\n",
        ctime(wall_s()),
        o.call_bytes / unit,
        o.call_limit,
        o.time_limit_s
    )
}

/// One rank in one phase.
struct Task<'t, 'r> {
    o: &'t Options,
    rank: &'t mut Rank<'r>,
    write: bool,
    /// Profiles count from here.
    zero: i64,
    path: String,
}

/// What one rank did.
#[derive(Default)]
struct Done {
    bytes: u64,
    calls: u64,
    short: u64,
    start: i64,
    /// End of the last call; of a write, of the fsync after it.
    end: i64,
    /// End of the last call that moved all of its bytes.
    last_full: i64,
    /// From the open to the end of everything.
    whole: i64,
    /// Ends of all calls, for profiles.
    stamps: Vec<i64>,
    latency: Latency,
}

impl<'t, 'r> Task<'t, 'r> {
    fn new(o: &'t Options, rank: &'t mut Rank<'r>, write: bool, zero: i64) -> Self {
        // A reader takes the file of a task half the ranks away: with two nodes, one that it has no cache of.
        let whose = if write {
            rank.id
        } else {
            (rank.id + rank.size / 2) % rank.size
        };
        let path = format!("{}/mibData.{whose:08}", o.dir);
        Task {
            o,
            rank,
            write,
            zero,
            path,
        }
    }

    fn word(&self) -> &'static str {
        if self.write { "write" } else { "read" }
    }

    fn run(mut self) -> Result<f64, Failed> {
        self.rank.barrier()?;
        if self.write && self.o.new {
            match self.rank.storage.unlink(&self.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Failed::storage("failed to unlink", &self.path)(e));
                }
                _ => {}
            }
        }
        let opened = self.rank.clock.now();
        let how = How {
            read: !self.write,
            write: self.write,
            create: self.write,
            direct: self.o.direct,
            ..How::default()
        };
        let mut file = self
            .rank
            .storage
            .open(&self.path, how)
            .map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => Failed::Refused(format!("No file: {}", self.path)),
                _ => Failed::storage("cannot open", &self.path)(e),
            })?;
        let file_bytes = match self.o.random.filter(|_| !self.write) {
            Some(granularity) => self.check_random(&mut *file, granularity)?,
            None => 0,
        };
        self.rank.barrier()?;
        let mut done = self.calls(&mut *file, file_bytes)?;
        if self.write {
            file.sync().map_err(Failed::storage("fsync", &self.path))?;
            done.end = self.rank.clock.now();
        }
        self.rank.barrier()?;
        file.close().map_err(Failed::storage("close", &self.path))?;
        if !self.write && self.o.remove {
            self.rank
                .storage
                .unlink(&self.path)
                .map_err(Failed::storage("failed to unlink", &self.path))?;
        }
        self.rank.barrier()?;
        done.whole = self.rank.clock.now() - opened;
        self.report(done)
    }

    fn check_random(&self, file: &mut dyn OpenFile, granularity: u64) -> Result<u64, Failed> {
        let size = file.size().map_err(Failed::storage("fstat", &self.path))?;
        if size < granularity {
            return Err(Failed::Refused(format!(
                "In task {}, the file size ({size}) is too small for the granularity ({granularity})",
                self.rank.id
            )));
        }
        Ok(size)
    }

    fn calls(&mut self, file: &mut dyn OpenFile, file_bytes: u64) -> Result<Done, Failed> {
        let o = self.o;
        let mut buffer = Buffer::new(o.call_bytes as usize, self.rank.here())?;
        fill(&mut buffer, self.rank.id);
        let mut bar = Bar::start(
            o,
            self.rank,
            if self.write {
                "write phase"
            } else {
                "read phase"
            },
        );
        let mut rand = Rand::new(1);
        let mut done = Done::default();
        let mut offset = 0;
        let mut meter = Meter::start(self.rank.clock, self.rank.line);
        done.start = meter.now();
        (done.last_full, done.end) = (done.start, done.start);
        let limit = done.start + (o.time_limit_s * 1_000_000_000) as i64;
        if o.profiles.is_some() {
            done.stamps.push(done.start - self.zero);
        }
        while done.calls < o.call_limit && done.end < limit {
            if let Some(granularity) = o.random.filter(|_| !self.write) {
                let places = file_bytes.saturating_sub(o.call_bytes) / granularity + 1;
                let drawn = u64::from(rand.next()) << 31 | u64::from(rand.next());
                offset = drawn % places * granularity;
            }
            let moved = match self.write {
                true => transfer(buffer.len(), |at| {
                    file.write_at(&buffer[at..], offset + at as u64)
                }),
                false => transfer(o.call_bytes as usize, |at| {
                    file.read_at(&mut buffer[at..], offset + at as u64)
                }),
            };
            let moved = moved.map_err(Failed::storage(self.word(), &self.path))? as u64;
            offset += moved;
            done.bytes += moved;
            done.calls += 1;
            done.end = meter.done(moved);
            if moved < o.call_bytes {
                done.short += 1;
            } else {
                done.last_full = done.end;
            }
            if o.profiles.is_some() {
                done.stamps.push(done.end - self.zero);
            }
            bar.show(self.rank, done.calls, seconds(done.end - done.start));
        }
        bar.end(self.rank);
        done.latency = meter.finish()?;
        Ok(done)
    }

    /// Everyone's figures come together; the rate that is printed, MiB a second.
    fn report(&mut self, done: Done) -> Result<f64, Failed> {
        let (o, write, word) = (self.o, self.write, self.word());
        let numbers = [
            done.bytes as i64,
            done.calls as i64,
            done.short as i64,
            done.start,
            done.end,
            done.last_full,
        ];
        let all = self.rank.all_of(&numbers)?;
        let most_calls = all.iter().map(|n| n[1]).max().unwrap_or(0);
        tell(
            o,
            self.rank,
            format_args!("Call {most_calls} was the last {word} recorded\n"),
        );
        let whole = seconds(done.whole);
        tell(
            o,
            self.rank,
            format_args!("\nAfter {most_calls} calls and {whole:.6} seconds\n"),
        );
        let bytes: i64 = all.iter().map(|n| n[0]).sum();
        let short: i64 = all.iter().map(|n| n[2]).sum();
        let start = all.iter().map(|n| n[3]).min().unwrap_or(0);
        let end = all.iter().map(|n| n[4]).max().unwrap_or(0);
        let (mib, time) = (bytes as f64 / MIB, seconds(end - start));
        if self.rank.size > 1 {
            let did = if write { "written" } else { "read" };
            tell(
                o,
                self.rank,
                format_args!("{mib:.6} MB {did} in {time:.6} seconds\n"),
            );
            if short != 0 {
                tell(o, self.rank, format_args!("{short} short {word}s\n"));
            }
        }
        let rate = if time > 0.0 { mib / time } else { 0.0 };
        // Before the table of calls, which may fail: the phase is over.
        self.record(&all, &done, rate)?;
        if let Some(base) = &o.profiles {
            self.profile(&format!("{base}.{word}"), &done.stamps, most_calls)?;
        }
        Ok(rate)
    }

    /// A row for each call, a column for each task; 0 where a task had no such call. One task alone has a column too, which the
    /// original leaves out.
    fn profile(&mut self, path: &str, stamps: &[i64], most_calls: i64) -> Result<(), Failed> {
        let rows = most_calls as usize + 1;
        let tasks = self.rank.size;
        tell(
            self.o,
            self.rank,
            format_args!("Table of {tasks} tasks with up to {rows} system calls\n"),
        );
        let columns = self.rank.all_of(stamps)?;
        if !self.rank.is_first() {
            return Ok(());
        }
        let mut file = BufWriter::new(File::create(path).map_err(Failed::file(path))?);
        for row in 0..rows {
            let cell = |c: &Vec<i64>| format!("{:.6}\t", c.get(row).map_or(0.0, |ns| seconds(*ns)));
            let line: String = columns.iter().map(cell).collect();
            writeln!(file, "{line}").map_err(Failed::file(path))?;
        }
        file.flush().map_err(Failed::file(path))
    }

    fn record(&mut self, all: &[Vec<i64>], done: &Done, rate: f64) -> Result<(), Failed> {
        let mut latencies = Latency::new();
        for bytes in self
            .rank
            .share(done.latency.to_bytes())?
            .iter()
            .filter(|_| self.rank.is_first())
        {
            latencies.merge(&Latency::from_bytes(bytes));
        }
        let word = self.word();
        let Some(record) = &mut self.rank.record else {
            return Ok(());
        };
        let per_rank = all.iter().map(|n| RankPhase {
            start_s: seconds(n[3]),
            // A read that found the end of the file moved nothing: the phase was over at the last one before.
            end_s: seconds(if self.write { n[4] } else { n[5] }),
            operations: n[1] as u64,
            bytes: n[0] as u64,
        });
        let mut phase = Phase::of(word, 0, per_rank.collect(), Some(&latencies));
        let short: i64 = all.iter().map(|n| n[2]).sum();
        phase
            .printed
            .insert("rate_mib_per_s".to_owned(), rate.into());
        phase
            .printed
            .insert("short_transfers".to_owned(), short.into());
        if short > 0 && !self.write {
            let right = phase.bytes_per_s / MIB;
            let text = format!(
                "{short} reads found the end of a file; up to the last full read the rate is {right:.2} MiB/s, printed is {rate:.2}"
            );
            note(record, text);
        }
        record.push(phase);
        Ok(())
    }
}

/// Moves a whole call where it can; how much it was.
fn transfer(len: usize, mut once: impl FnMut(usize) -> io::Result<usize>) -> io::Result<usize> {
    let (mut done, mut tries) = (0, 0);
    while done < len && tries < RETRIES {
        match once(done)? {
            0 => break,
            n => done += n,
        }
        tries += 1;
    }
    Ok(done)
}

/// Words of rank and position.
fn fill(buffer: &mut [u8], rank: u32) {
    for (i, word) in buffer.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = ((u64::from(rank) << 4) + i as u64).to_le_bytes();
    }
}

/// `-P`.
struct Bar {
    shown: u64,
    on: bool,
    calls: u64,
    seconds: u64,
}

impl Bar {
    fn start(o: &Options, rank: &Rank<'_>, phase: &str) -> Bar {
        let on = o.progress && rank.is_first();
        if on {
            rank.out.print(format_args!(
                "\n{phase}\nshould last about this long---------------------->\n"
            ));
        }
        Bar {
            shown: 0,
            on,
            calls: o.call_limit,
            seconds: o.time_limit_s,
        }
    }

    fn show(&mut self, rank: &Rank<'_>, calls: u64, time: f64) {
        if !self.on {
            return;
        }
        let by_time = (STARS as f64 * time / self.seconds as f64) as u64;
        let by_calls = STARS * calls / self.calls;
        let due = by_time.max(by_calls);
        if due > self.shown && due < STARS - 1 {
            rank.out.print("*".repeat((due - self.shown) as usize));
            self.shown = due;
        }
    }

    fn end(&self, rank: &Rank<'_>) {
        if self.on {
            rank.out.print("\n");
        }
    }
}
