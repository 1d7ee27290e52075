//! What mdtest prints (hpc/ior: `src/mdtest.c`), and what the record has of it.

use super::options::Options;
use super::tree::Tree;
use crate::load::Failed;
use crate::load::clock::{seconds, wall_s};
use crate::load::ior::{VERSION, space_lines};
use crate::load::meter::Latency;
use crate::load::ranks::Rank;
use crate::load::record::{Phase, RankPhase, Stonewall, spread};
use crate::load::text::{c_exponent, date_time};
use std::fs::OpenOptions;
use std::io::Write;

/// Phases, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    DirCreate,
    DirStat,
    DirRead,
    DirRename,
    DirRemove,
    FileCreate,
    FileStat,
    FileRead,
    FileRemove,
    TreeCreate,
    TreeRemove,
    /// No phase: where the stonewall fell in the one that follows.
    Wall,
}

const KINDS: [(Kind, &str); 11] = [
    (Kind::DirCreate, "Directory creation"),
    (Kind::DirStat, "Directory stat"),
    (Kind::DirRead, "Directory read"),
    (Kind::DirRename, "Directory rename"),
    (Kind::DirRemove, "Directory removal"),
    (Kind::FileCreate, "File creation"),
    (Kind::FileStat, "File stat"),
    (Kind::FileRead, "File read"),
    (Kind::FileRemove, "File removal"),
    (Kind::TreeCreate, "Tree creation"),
    (Kind::TreeRemove, "Tree removal"),
];

impl Kind {
    pub(super) fn name(self) -> &'static str {
        KINDS
            .iter()
            .find(|(k, _)| *k == self)
            .map_or("", |(_, n)| n)
    }

    pub(super) fn is_file(self) -> bool {
        (Kind::FileCreate..=Kind::FileRemove).contains(&self)
    }

    fn is_tree(self) -> bool {
        matches!(self, Kind::TreeCreate | Kind::TreeRemove)
    }
}

/// What one rank measured of a phase.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub kind: Kind,
    pub start: i64,
    pub before_barrier: i64,
    pub end: i64,
    /// As they are printed.
    pub items: u64,
    /// What was done.
    pub operations: u64,
    pub bytes: u64,
    /// Files whose data were wrong, or could not be read whole.
    pub errors: u64,
    pub latency: Latency,
    pub stonewall: Option<Stonewall>,
}

impl Measured {
    pub(super) fn of(kind: Kind, latency: Latency) -> Measured {
        Measured {
            kind,
            start: 0,
            before_barrier: 0,
            end: 0,
            items: 0,
            operations: 0,
            bytes: 0,
            errors: 0,
            latency,
            stonewall: None,
        }
    }
}

/// A rank's line of a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    start: f64,
    time: f64,
    time_before_barrier: f64,
    items: u64,
    operations: u64,
    bytes: u64,
    errors: u64,
}

/// An iteration: the phases that ran, each with a line for every rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Iteration(Vec<(Kind, Vec<Line>)>);

impl Iteration {
    fn lines(&self, kind: Kind) -> Option<&[Line]> {
        self.0.iter().find(|(k, _)| *k == kind).map(|(_, l)| &l[..])
    }

    /// Brings together what the ranks say of a phase, and writes it into the record.
    pub(super) fn gather(
        &mut self,
        iteration: u32,
        m: &Measured,
        rank: &mut Rank<'_>,
    ) -> Result<(), Failed> {
        let mut lines = Vec::new();
        let mut latency = Latency::new();
        // In one exchange: who has got through it may fail at once.
        for of_rank in rank.share(m.to_bytes())?.iter() {
            let (line, latencies) = Line::from_bytes(of_rank);
            lines.push(line);
            if rank.is_first() {
                latency.merge(&Latency::from_bytes(latencies));
            }
        }
        if let Some(record) = &mut rank.record {
            record.push(phase(iteration, m, &lines, &latency));
        }
        self.0.push((m.kind, lines));
        Ok(())
    }
}

/// Numbers of a rank before its latencies.
const NUMBERS: usize = 7;

impl Measured {
    fn to_bytes(&self) -> Vec<u8> {
        let numbers: [i64; NUMBERS] = [
            self.start,
            self.end - self.start,
            self.before_barrier - self.start,
            self.items as i64,
            self.operations as i64,
            self.bytes as i64,
            self.errors as i64,
        ];
        let mut bytes = numbers.map(i64::to_le_bytes).concat();
        bytes.extend(self.latency.to_bytes());
        bytes
    }
}

impl Line {
    /// From [`Measured::to_bytes`]; and the latencies.
    fn from_bytes(bytes: &[u8]) -> (Line, &[u8]) {
        let (numbers, latencies) = bytes.split_at_checked(NUMBERS * 8).unwrap_or((bytes, &[]));
        let numbers = numbers.as_chunks::<8>().0;
        let n = |i: usize| numbers.get(i).map_or(0, |b| i64::from_le_bytes(*b));
        let line = Line {
            start: seconds(n(0)),
            time: seconds(n(1)),
            time_before_barrier: seconds(n(2)),
            items: n(3) as u64,
            operations: n(4) as u64,
            bytes: n(5) as u64,
            errors: n(6) as u64,
        };
        (line, latencies)
    }
}

fn phase(iteration: u32, m: &Measured, lines: &[Line], latency: &Latency) -> Phase {
    // What each did: of a tree that one rank makes for all, each says that it made it, which is what is printed.
    let per_rank = lines.iter().map(|l| RankPhase {
        start_s: l.start,
        end_s: l.start + l.time_before_barrier,
        operations: l.operations,
        bytes: l.bytes,
    });
    let latency = (m.kind != Kind::DirRead).then_some(latency);
    let mut phase = Phase::of(m.kind.name(), iteration, per_rank.collect(), latency);
    phase.errors = lines.iter().map(|l| l.errors).sum();
    phase.stonewall.clone_from(&m.stonewall);
    if let Some(wall) = &mut phase.stonewall {
        wall.tail_s = phase.end_s - phase.start_s - wall.seconds;
    }
    phase
        .printed
        .insert("rate_per_s".to_owned(), rate(m.kind, lines).into());
    phase
}

/// The rate as it is printed: the slowest rank's, times the ranks; of trees, the first rank's.
fn rate(kind: Kind, lines: &[Line]) -> f64 {
    let of = |l: &Line| {
        if l.items == 0 {
            0.0
        } else {
            l.items as f64 / l.time
        }
    };
    match (kind.is_tree(), lines.first()) {
        (true, Some(first)) => of(first),
        _ => lines.iter().map(of).fold(f64::INFINITY, f64::min) * lines.len() as f64,
    }
}

/// The time as it is printed: the slowest rank's; of trees, the first rank's.
fn time(kind: Kind, lines: &[Line]) -> f64 {
    match (kind.is_tree(), lines.first()) {
        (true, Some(first)) => first.time,
        _ => lines.iter().map(|l| l.time).fold(0.0, f64::max),
    }
}

pub(super) fn started(args: &[String], rank: &Rank<'_>) {
    let (program, words) = args
        .split_first()
        .map_or(("mdtest", &[][..]), |(p, w)| (p, w));
    let words: String = words.iter().map(|w| format!(" '{w}'")).collect();
    rank.out.print(format_args!(
        "-- started at {} --\n\nmdtest-{VERSION} was launched with {} total task(s) on {} node(s)\nCommand line used: {program}{words}\n",
        date_time(wall_s()),
        rank.size,
        rank.nodes.count
    ));
}

pub(super) fn node_map(rank: &Rank<'_>) {
    let hosts = &rank.nodes.hosts;
    let map: String = hosts
        .iter()
        .map(|h| if *h == hosts[0] { '1' } else { '0' })
        .collect();
    rank.out.line(format!("Nodemap: {map}"));
}

/// Where the test runs.
pub(super) fn place(o: &Options, path: &str, seed: u32, stride: u64, rank: &Rank<'_>) {
    match rank.storage.space(path) {
        Ok(space) => rank.out.print(space_lines(path, space)),
        Err(e) => rank.out.line(format!(
            "WARNING: Backend returned error during statfs: {e}"
        )),
    }
    if o.number("stride") > 0 {
        rank.out
            .line(format!("Shifting ranks by {stride} for each phase."));
    }
    if seed > 0 {
        rank.out.line(format!("random seed: {seed}"));
    }
}

/// How much there is to do.
pub(super) fn planned(o: &Options, tree: &Tree, rank: &Rank<'_>) {
    let (tasks, items) = (rank.members, tree.all(rank.members).unwrap_or(u64::MAX));
    rank.out
        .line(match (o.is("files_only"), o.is("dirs_only")) {
            (true, true) => format!("{tasks} tasks, {items} files/directories"),
            (true, false) if o.is("shared_file") => format!("{tasks} tasks, 1 file"),
            (true, false) => format!("{tasks} tasks, {items} files"),
            _ => format!("{tasks} tasks, {items} directories"),
        });
}

pub(super) fn finished(rank: &Rank<'_>) {
    rank.out.print(format_args!(
        "-- finished at {} --\n\n",
        date_time(wall_s())
    ));
}

/// Makes the file of `--saveRankPerformanceDetails`, with its head.
pub(super) fn start_rank_csv(o: &Options) -> Result<(), Failed> {
    if o.rank_csv.is_empty() {
        return Ok(());
    }
    let mut head = "rank,items".to_owned();
    KINDS
        .iter()
        .for_each(|(_, n)| head += &format!(",rate-{n},time-{n}"));
    std::fs::write(&o.rank_csv, head + "\n").map_err(Failed::file(&o.rank_csv))
}

/// The end of a test: the tables, the file of ranks, and the record.
pub(super) fn summary(
    o: &Options,
    tree: &Tree,
    table: &[Iteration],
    rank: &mut Rank<'_>,
) -> Result<(), Failed> {
    let mut text = String::new();
    if o.is("rate_and_time") {
        text += &summary_text(o, table, false);
        text += &summary_text(o, table, true);
    } else {
        text += &summary_text(o, table, o.is("print_time"));
    }
    rank.out.print(text);
    if !o.rank_csv.is_empty() {
        append_ranks(o, tree, table, rank.members)?;
    }
    let tasks = rank.members;
    if let Some(record) = &mut rank.record {
        // As in the table that is printed.
        for (kind, name) in KINDS.iter().filter(|(k, _)| *k != Kind::DirRead) {
            let rates: Vec<f64> = table
                .iter()
                .filter_map(|i| i.lines(*kind))
                .map(|l| rate(*kind, l))
                .collect();
            if !rates.is_empty() {
                record
                    .summary
                    .insert(format!("{tasks}.{name}"), spread(&rates));
            }
        }
    }
    Ok(())
}

/// Greatest, least, mean, and deviation of a sample.
fn figures(values: &[f64]) -> [f64; 4] {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (mean - v).powi(2)).sum();
    let deviation = if values.len() == 1 {
        0.0
    } else {
        (squares / (n - 1.0)).sqrt()
    };
    [
        values.iter().copied().fold(0.0, f64::max),
        values.iter().copied().fold(1e308, f64::min),
        mean,
        deviation,
    ]
}

fn summary_text(o: &Options, table: &[Iteration], times: bool) -> String {
    let value = |kind, lines: Option<&[Line]>| match lines {
        None => 0.0,
        Some(lines) if times => time(kind, lines),
        Some(lines) => rate(kind, lines),
    };
    let shown = KINDS.iter().filter(|(k, _)| match k {
        Kind::DirRead => false,
        k if k.is_tree() => true,
        k if k.is_file() => o.is("files_only"),
        _ => o.is("dirs_only"),
    });
    let what = if times {
        "time (in ms/op)"
    } else {
        "rate (in ops/sec)"
    };
    let mut text = String::new();
    if o.is("all_procs") {
        text += &every_task(o, table, times);
    }
    text += &format!("\nSUMMARY {what}: (of {} iterations)\n", table.len());
    let statistics = o.is("rank_statistics");
    text += "   Operation     ";
    text += match statistics {
        true => "per Rank: Max            Min           Mean      per Iteration:",
        false => "               ",
    };
    text += " Max            Min           Mean        Std Dev\n   ---------      ";
    if statistics {
        text += "         ---            ---           ----       ";
    }
    text += "               ---            ---           ----        -------\n";
    for (kind, name) in shown {
        let values: Vec<f64> = table.iter().map(|i| value(*kind, i.lines(*kind))).collect();
        let [max, min, mean, deviation] = figures(&values);
        let wide = if kind.is_tree() { 22 } else { 18 };
        text += &format!("   {name:<wide$} ");
        if statistics {
            let ranks: Vec<f64> = table
                .iter()
                .flat_map(|i| i.lines(*kind).unwrap_or(&[]))
                .map(|l| {
                    if times {
                        l.time_before_barrier
                    } else {
                        l.items as f64 / l.time_before_barrier
                    }
                })
                .collect();
            let [max, min, mean, _] = if ranks.is_empty() {
                [0.0; 4]
            } else {
                figures(&ranks)
            };
            text += &format!("{max:>14.3} {min:>14.3} {mean:>14.3}     ");
        }
        if !kind.is_tree() {
            text += "    ";
        }
        text += &format!("{max:>14.3} {min:>14.3} {mean:>14.3} {deviation:>14.3}\n");
    }
    text
}

/// `--print-all-procs`.
fn every_task(o: &Options, table: &[Iteration], times: bool) -> String {
    let mut text = format!(
        "\nPer process result ({}):\n",
        if times { "time" } else { "rate" }
    );
    let first = if o.is("files_only") && !o.is("dirs_only") {
        Kind::FileCreate
    } else {
        Kind::DirCreate
    };
    for (i, iteration) in table.iter().enumerate() {
        text += &format!("iteration: {i}\n");
        for (kind, name) in KINDS.iter().filter(|(k, _)| *k >= first) {
            let lines = iteration.lines(*kind).unwrap_or(&[]);
            let values = lines.iter().map(|l| match times {
                true => l.time_before_barrier,
                false => l.items as f64 / l.time_before_barrier,
            });
            let values: Vec<String> = values.map(|v| c_exponent(v, 6)).collect();
            text += &format!("Test {name} {}\n", values.join(","));
        }
    }
    text
}

/// Lines of `--saveRankPerformanceDetails`: all tasks in the first iteration, then every task in each.
fn append_ranks(o: &Options, tree: &Tree, table: &[Iteration], tasks: u32) -> Result<(), Failed> {
    let pair = |items: u64, time: f64| match items {
        0 => ",,".to_owned(),
        items => format!(
            ",{},{}",
            c_exponent(items as f64 / time, 10),
            c_exponent(time, 10)
        ),
    };
    let mut text = format!("all,{}", tree.items * tree.loops);
    for (kind, _) in KINDS {
        let lines = table.first().and_then(|i| i.lines(kind)).unwrap_or(&[]);
        let items = lines.iter().map(|l| l.items).sum();
        text += &pair(items, lines.iter().map(|l| l.time).fold(0.0, f64::max));
    }
    text += "\n";
    for iteration in table {
        for task in 0..tasks as usize {
            text += &format!("{task},");
            for (kind, _) in KINDS.iter().filter(|(k, _)| !k.is_tree()) {
                let line = iteration.lines(*kind).and_then(|l| l.get(task));
                text += &line.map_or(",,".to_owned(), |l| pair(l.items, l.time_before_barrier));
            }
            text += "\n";
        }
    }
    let file = OpenOptions::new().append(true).open(&o.rank_csv);
    file.and_then(|mut f| f.write_all(text.as_bytes()))
        .map_err(Failed::file(&o.rank_csv))
}
