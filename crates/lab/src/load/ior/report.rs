//! What IOR prints: text, CSV or JSON, byte for byte (hpc/ior: `src/ior-output.c`, `src/ior.c`).
//!
//! Rank 0 prints. Four of the figures are not what they seem; they stay as they are, and the record has the right ones.
//! The table's Latency is the best rank's mean, its IOPS are over the transfers alone and the summary's OPs over open and
//! close as well; the summary's StdDev is that of the population; and Stonewall(MiB) is one task's rate.

mod json;
mod point;
mod summary;

pub(super) use point::{Point, Timers};

use self::summary::{Operation, SUMMARY_HEAD, figures, operations, summary_lines};
use super::params::{Format, Params};
use crate::load::Failed;
use crate::load::clock::{seconds, wall_s};
use crate::load::out::Out;
use crate::load::ranks::Rank;
use crate::load::storage::Space;
use crate::load::text::{c_exponent, cell, ctime, human};
use std::fs::OpenOptions;
use std::io::Write;

const MIB: f64 = 1_048_576.0;
const TABLE: &str = "
access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
";
const CSV: &str = "access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),numTasks,iter\n";

/// What rank 0 prints and keeps for the summary. Other ranks have one that prints nothing.
pub(super) struct Report {
    first: bool,
    format: Format,
    /// Results: a file of their own, or the same as the rest.
    results: Out,
    log: Out,
    /// Points of each test, with whether they are writes.
    tests: Vec<(Params, Vec<(bool, Point)>)>,
    /// Elements of JSON that were printed, of the section that is open.
    elements: usize,
}

impl Report {
    pub(super) fn new(p: &Params, rank: &Rank<'_>) -> Result<Report, Failed> {
        let results = match p.summary_file.as_str() {
            path if !path.is_empty() && rank.is_first() => {
                let file = OpenOptions::new().append(true).create(true).open(path);
                Out::to(Box::new(file.map_err(Failed::file(path))?))
            }
            _ => rank.out.clone(),
        };
        Ok(Report {
            first: rank.is_first(),
            format: p.format,
            results,
            log: rank.out.clone(),
            tests: Vec::new(),
            elements: 0,
        })
    }

    pub(super) fn header(&mut self, args: &[String]) {
        if !self.first {
            return;
        }
        let began = ctime(wall_s());
        let uname = rustix::system::uname();
        let machine = format!(
            "{} {}",
            uname.sysname().to_string_lossy(),
            uname.nodename().to_string_lossy()
        );
        match self.format {
            Format::Csv => {}
            Format::Text => self.results.print(format_args!(
                "IOR-{}: MPI Coordinated Test of Parallel I/O\n{}{}{}",
                super::VERSION,
                pair("Began", &began),
                pair("Command line", args.join(" ")),
                pair("Machine", &machine),
            )),
            Format::Json => self
                .results
                .print(json::header(&began, &args.join(" "), &machine)),
        }
    }

    /// The head of a test: where, on what, with which options.
    pub(super) fn test_start(&mut self, p: &Params, path: &str, rank: &Rank<'_>) {
        let nth = self.tests.len();
        self.tests.push((p.clone(), Vec::new()));
        self.elements = 0;
        let space = rank.storage.space(directory(path));
        if let Err(e) = &space {
            self.log.line(format!(
                "WARNING: Backend returned error during statfs: {e}"
            ));
        }
        let now = ctime(wall_s());
        match self.format {
            Format::Csv => {}
            Format::Text => {
                let mut text = pair("TestID", p.id) + &pair("StartTime", &now);
                if let Ok(s) = space {
                    text += &space_lines(path, s);
                }
                if p.verbose >= 3 {
                    text += "\nParameters: \n";
                    json::parameters(p, &platform(p))
                        .iter()
                        .for_each(|(k, v)| text += &pair(k, v.trim_matches('"')));
                }
                self.results.print(text + &options_text(p));
            }
            Format::Json => {
                let space = space.ok().map(Shown::of);
                let head = json::test(nth, p, &now, path, space.as_ref(), &platform(p));
                self.results
                    .print(head + &json::section("Options", &options(p)) + json::RESULTS);
            }
        }
    }

    pub(super) fn table_header(&self, rank: &Rank<'_>) {
        if rank.is_first() {
            match self.format {
                Format::Text => self.results.print(TABLE),
                Format::Csv => self.results.print(CSV),
                Format::Json => {}
            }
        }
    }

    /// A phase of a test is over; called by every rank.
    pub(super) fn point(
        &mut self,
        p: &Params,
        point: Point,
        write: bool,
        repetition: i64,
        rank: &mut Rank<'_>,
    ) -> Result<(), Failed> {
        self.outliers(p, &point, write, rank);
        if !self.first {
            return Ok(());
        }
        let access = if write { "write" } else { "read" };
        // Whatever fails from here on, the phase is over.
        if let Some(record) = &mut rank.record {
            record.push(point.phase(p, access, repetition));
        }
        self.mismatch(p, &point)?;
        match self.format {
            Format::Text => self
                .results
                .print(table_line(p, &point, access, repetition)),
            Format::Csv => self.results.print(csv_line(p, &point, access, repetition)),
            Format::Json => {
                self.elements += 1;
                self.results
                    .print(json::point(self.elements > 1, p, &point, access));
            }
        }
        if !p.rank_csv.is_empty() {
            append_ranks(p, &point, access)?;
        }
        if let Some((_, points)) = self.tests.last_mut() {
            points.push((write, point));
        }
        Ok(())
    }

    /// What was moved is not what was planned, or not what the file's size says.
    fn mismatch(&self, p: &Params, point: &Point) -> Result<(), Failed> {
        if let Some(wall) = &point.wall {
            self.log.line(format!(
                "stonewalling pairs accessed min: {} max: {} -- min data: {:.1} GiB mean data: {:.1} GiB time: {:.1}s",
                wall.pairs_min,
                point.pairs,
                wall.bytes_min as f64 / 1_073_741_824.0,
                wall.bytes_mean() as f64 / 1_073_741_824.0,
                wall.seconds_first
            ));
        }
        let planned = (p.block_size * p.segments * p.num_tasks) as u64;
        if (planned, point.size) == (point.bytes, point.bytes) {
            return Ok(());
        }
        let mut lines = vec![
            format!("Expected aggregate file size       = {planned}"),
            format!("Stat() of aggregate file size      = {}", point.size),
            format!("Using actual aggregate bytes moved = {}", point.bytes),
        ];
        if p.deadline_s > 0 {
            lines.push("Maybe caused by deadlineForStonewalling".to_owned());
        }
        for line in lines {
            let fatal = p.warnings_are_errors != 0;
            self.log.line(format!(
                "{}: {line}",
                if fatal { "ERROR" } else { "WARNING" }
            ));
            if fatal {
                return Err(Failed::Said(255));
            }
        }
        Ok(())
    }

    /// `-j`: each rank says where it is far from the mean.
    fn outliers(&self, p: &Params, point: &Point, write: bool, rank: &Rank<'_>) {
        if p.verbose >= 3 {
            point.times(p, write, rank);
        }
        if p.outlier_s == 0 {
            return;
        }
        let access = if write { "write" } else { "read" };
        for (name, values) in point.per_rank() {
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let squares: f64 = values.iter().map(|v| (mean - v).powi(2)).sum();
            let mine = values[rank.id as usize];
            if (mine - mean).abs() > p.outlier_s as f64 {
                rank.out.line(format!(
                    "WARNING: for {}, task {}, {access} {name} is {mine:.6} (mean={mean:.6}, stddev={:.6})\n",
                    rank.nodes.hosts[rank.id as usize],
                    rank.id,
                    (squares / values.len() as f64).sqrt()
                ));
            }
        }
    }

    pub(super) fn removed(&mut self, start: i64, repetition: i64, rank: &Rank<'_>) {
        let verbose = self.tests.last().is_some_and(|(p, _)| p.verbose > 0);
        if !self.first || !verbose {
            return;
        }
        let took = seconds(rank.clock.now() - start);
        match self.format {
            Format::Text => self.results.print(format_args!(
                "remove    -          -          -           -          -          -          -          -          {}{repetition:<4}\n",
                cell(took, " ")
            )),
            Format::Json => {
                self.elements += 1;
                self.results.print(json::removed(self.elements > 1, took));
            }
            Format::Csv => {}
        }
    }

    /// The end of a test: the best figures at -v, and how far a stonewalled write got.
    pub(super) fn test_end(&mut self, p: &Params, rank: &Rank<'_>) -> Result<(), Failed> {
        let Some((_, points)) = self.tests.last().filter(|_| rank.is_first()) else {
            return Ok(());
        };
        let best = |write| {
            let of = points.iter().filter(|(w, _)| *w == write);
            of.map(|(_, x)| x.bandwidth()).fold(0.0, f64::max)
        };
        let (write, read) = (best(true), best(false));
        if self.format == Format::Json {
            let max = json::max(p, write, read);
            self.results.print(json::RESULTS_END.to_owned() + &max);
        } else if self.format == Format::Text && p.summary_always != 0 {
            self.results.print(SUMMARY_HEAD);
            self.results.print(summary_lines(p, points));
        } else if self.format == Format::Text && p.verbose > 0 {
            let line =
                |name, v: f64| format!("{name} {:.2} MiB/sec ({:.2} MB/sec)\n", v / MIB, v / 1e6);
            if p.write != 0 {
                self.results.print(line("Max Write:", write));
            }
            if p.read != 0 {
                self.results.print(line("Max Read: ", read));
            }
        }
        if p.wear_out != 0 {
            let pairs = points.iter().find(|(w, _)| *w).map_or(0, |(_, x)| x.pairs);
            if p.status_file.is_empty() {
                self.log
                    .line(format!("Pairs deadlineForStonewallingaccessed: {pairs}"));
            } else if p.write != 0 {
                std::fs::write(&p.status_file, pairs.to_string())
                    .map_err(Failed::file(&p.status_file))?;
            }
        }
        if self.format == Format::Json {
            self.results.print(json::TEST_END);
        }
        Ok(())
    }

    /// The end of all tests.
    pub(super) fn summary(&self, rank: &mut Rank<'_>) {
        if !self.first {
            return;
        }
        match self.format {
            Format::Csv => {}
            Format::Text => {
                self.results.print("\nSummary of all tests:");
                self.results.print(SUMMARY_HEAD);
                for (p, points) in &self.tests {
                    self.results.print(summary_lines(p, points));
                }
                self.results.print(pair("Finished", ctime(wall_s())));
            }
            Format::Json => {
                let lines = self
                    .tests
                    .iter()
                    .flat_map(|(p, points)| operations(p, points));
                let lines: Vec<String> = lines.map(|s| json::summary(&s)).collect();
                self.results.print(json::end(&lines, &ctime(wall_s())));
            }
        }
        if let Some(record) = &mut rank.record {
            for (p, points) in &self.tests {
                for s in operations(p, points) {
                    record
                        .summary
                        .insert(format!("{}.{}", p.id, s.operation), s.as_json());
                }
            }
        }
    }
}

fn pair(key: &str, value: impl std::fmt::Display) -> String {
    format!("{key:<20}: {value}\n")
}

/// The directory that a file is in, as the original finds it for statfs.
fn directory(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) => "/",
        Some(at) => &path[..at],
        None => ".",
    }
}

/// Where a test runs, and how full that is.
pub(crate) fn space_lines(path: &str, space: Space) -> String {
    let s = Shown::of(space);
    let used = format!(
        "{:.1} {}   Used FS: {:2.1}%   Inodes: {:.1} Mi   Used Inodes: {:2.1}%",
        s.size, s.unit, s.used, s.inodes, s.used_inodes
    );
    pair("Path", path) + &pair("FS", used)
}

/// Space as it is shown.
pub(super) struct Shown {
    size: f64,
    unit: &'static str,
    used: f64,
    inodes: f64,
    used_inodes: f64,
}

impl Shown {
    fn of(s: Space) -> Shown {
        let part = |free: u64, all: u64| (1.0 - free as f64 / all as f64) * 100.0;
        let gib = (s.blocks * s.block_bytes) as f64 / 1_073_741_824.0;
        let (size, unit) = if gib > 1024.0 {
            (gib / 1024.0, "TiB")
        } else {
            (gib, "GiB")
        };
        Shown {
            size,
            unit,
            used: part(s.free_blocks, s.blocks),
            inodes: s.inodes as f64 / MIB,
            used_inodes: part(s.free_inodes, s.inodes),
        }
    }
}

/// Host without its number, and system.
fn platform(p: &Params) -> String {
    if !p.platform.is_empty() {
        return p.platform.clone();
    }
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    // A name that is a number keeps its first digit.
    let keep = host.rfind(|c: char| !c.is_ascii_digit()).unwrap_or(0) + 1;
    format!(
        "{}({})",
        host.get(..keep).unwrap_or(&host),
        uname.sysname().to_string_lossy()
    )
}

/// Key and value, of which texts have their quotes.
pub(super) type Pairs = Vec<(&'static str, String)>;

fn options(p: &Params) -> Pairs {
    let text = |s: &str| format!("\"{s}\"");
    let mut list: Pairs = vec![
        ("api", text(&p.api)),
        ("apiVersion", text("")),
        ("test filename", text(&p.test_file)),
        (
            "access",
            text(if p.file_per_proc != 0 {
                "file-per-process"
            } else {
                "single-shared-file"
            }),
        ),
        ("type", text("independent")),
        ("segments", p.segments.to_string()),
        (
            "ordering in a file",
            text(if p.random_offset != 0 {
                "random"
            } else {
                "sequential"
            }),
        ),
    ];
    if p.reorder == 0 && p.reorder_random == 0 {
        list.push(("ordering inter file", text("no tasks offsets")));
    }
    if p.reorder == 1 {
        list.push(("ordering inter file", text("constant task offset")));
        list.push(("task offset", p.task_offset.to_string()));
    }
    if p.reorder_random == 1 {
        list.push(("ordering inter file", text("random task offset")));
        list.push(("task offset", p.task_offset.to_string()));
        list.push(("reorder random seed", p.reorder_seed.to_string()));
    }
    list.push(("nodes", p.num_nodes.to_string()));
    list.push(("tasks", p.num_tasks.to_string()));
    list.push(("clients per node", p.on_node0.to_string()));
    for (name, bytes) in [
        ("memoryPerTask", p.memory_per_task),
        ("memoryPerNode", p.memory_per_node),
    ] {
        if bytes != 0 {
            list.push((name, text(&human(bytes))));
        }
    }
    list.push(("memoryBuffer", text("CPU")));
    list.push(("dataAccess", text("CPU")));
    list.push(("GPUDirect", text("0")));
    list.push(("repetitions", p.repetitions.to_string()));
    list.push(("xfersize", text(&human(p.transfer_size))));
    list.push(("blocksize", text(&human(p.block_size))));
    list.push((
        "aggregate filesize",
        text(&human(p.block_size * p.segments * p.num_tasks)),
    ));
    for (name, value) in [("dryRun", p.dry_run), ("verbose", p.verbose)] {
        if value != 0 {
            list.push((name, value.to_string()));
        }
    }
    if p.deadline_s > 0 {
        list.push(("stonewallingTime", p.deadline_s.to_string()));
        list.push(("stoneWallingWearOut", p.wear_out.to_string()));
    }
    list
}

fn options_text(p: &Params) -> String {
    let mut text = "\nOptions: \n".to_owned();
    if !p.debug.is_empty() {
        text = format!("\n*** DEBUG MODE ***\n*** {} ***\n\n{text}", p.debug);
    }
    options(p)
        .iter()
        .for_each(|(k, v)| text += &pair(k, v.trim_matches('"')));
    text + "\nResults: \n"
}

fn table_line(p: &Params, x: &Point, access: &str, repetition: i64) -> String {
    format!(
        "{access:<10}{}{}{}{}{}{}{}{}{}{repetition:<4}\n",
        cell(x.bandwidth() / MIB, " "),
        cell(x.iops(p), " "),
        cell(x.latency, "  "),
        cell(p.block_size as f64 / 1024.0, " "),
        cell(p.transfer_size as f64 / 1024.0, " "),
        cell(x.open, " "),
        cell(x.transfer, " "),
        cell(x.close, " "),
        cell(x.total, " "),
    )
}

fn csv_line(p: &Params, x: &Point, access: &str, repetition: i64) -> String {
    let figures = [
        x.bandwidth() / MIB,
        x.iops(p),
        x.latency,
        p.block_size as f64 / 1024.0,
        p.transfer_size as f64 / 1024.0,
        x.open,
        x.transfer,
        x.close,
        x.total,
    ];
    let figures: Vec<String> = figures.iter().map(|f| format!("{f:.4}")).collect();
    format!(
        "{access},{},{},{repetition}\n",
        figures.join(","),
        p.num_tasks
    )
}

/// Lines of `saveRankPerformanceDetailsCSV`. Each rank is said to have moved the same; the record has what it did.
fn append_ranks(p: &Params, x: &Point, access: &str) -> Result<(), Failed> {
    let each = x.bytes as f64 / x.ranks.len() as f64;
    let mut text = String::new();
    for (i, r) in x.ranks.iter().enumerate() {
        let (total, transfer) = (r.total(), r.transfer());
        let figures = [total, transfer, each / total, each / transfer];
        let figures: Vec<String> = figures.iter().map(|f| c_exponent(*f, 10)).collect();
        text += &format!("{access},{i},{}\n", figures.join(","));
    }
    let file = OpenOptions::new().append(true).open(&p.rank_csv);
    file.and_then(|mut f| f.write_all(text.as_bytes()))
        .map_err(Failed::file(&p.rank_csv))
}
