//! `cargo xtask bench originals`: the load generators of Coral beside the programs whose command lines they take.
//!
//! The originals are the ones on the PATH; one that is not there is left out, and said so. Each round runs the same command line by
//! both, in turns, as one task in a new directory, and takes the rates from what both print alike. The median of the rounds' own
//! ratios is printed with its range.

use super::peers::middle;
use crate::step;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rounds of each command line.
const ROUNDS: usize = 7;
/// Which number of a line is the rate: greatest and least come before the mean.
const MEAN: usize = 2;

/// What both programs are asked to do.
struct Load {
    program: &'static str,
    args: &'static [&'static str],
    /// Its rates; in a summary, their lines begin so.
    rates: &'static [&'static str],
    /// Finds them in what was printed.
    find: fn(&Load, &str) -> Option<Vec<f64>>,
    /// The option for the file or directory, and the name of it.
    place: (&'static str, &'static str),
}

const LOADS: &[Load] = &[
    Load {
        program: "ior",
        args: &["-a", "POSIX", "-w", "-r", "-b", "512m", "-t", "1m"],
        rates: &["write ", "read "],
        find: of_summary,
        place: ("-o", "file"),
    },
    Load {
        program: "ior",
        args: &["-a", "POSIX", "-w", "-r", "-b", "128m", "-t", "4k"],
        rates: &["write ", "read "],
        find: of_summary,
        place: ("-o", "file"),
    },
    Load {
        program: "mdtest",
        args: &["-F", "-C", "-T", "-r", "-n", "20000"],
        rates: &["File creation", "File stat", "File removal"],
        find: of_summary,
        place: ("-d", "tree"),
    },
    Load {
        program: "mib",
        args: &["-F", "-n", "-s", "64k", "-l", "4096", "-L", "60"],
        rates: &["write", "read"],
        find: of_mib,
        place: ("-t", "."),
    },
    Load {
        program: "mdsrate",
        args: &["--create", "--nfiles", "20000", "--filefmt", "f%%d"],
        rates: &["create"],
        find: of_mdsrate,
        place: ("--dirfmt", "d"),
    },
    Load {
        program: "mdsrate",
        args: &["--stat", "--nfiles", "20000", "--filefmt", "f%%d"],
        rates: &["stat"],
        find: of_mdsrate,
        place: ("--dirfmt", "d"),
    },
];

/// The program of that name on the PATH that is not one of ours.
fn original(program: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find_map(|dir| {
        let found = dir.join(program).canonicalize().ok()?;
        let ours = found.file_name().is_some_and(|name| name == "coral");
        (!ours && found.is_file()).then_some(found)
    });
    found.ok_or_else(|| format!("{program} is not on the PATH, or is Coral's: it is left out"))
}

/// The rates in a summary of ior or mdtest, in the order of the load's.
fn of_summary(load: &Load, report: &str) -> Option<Vec<f64>> {
    let summary = report
        .split_once("Summary of all tests")
        .or_else(|| report.split_once("SUMMARY rate"))?
        .1;
    let rate = |begin: &&str| {
        let line = summary.lines().find_map(|l| l.trim().strip_prefix(*begin));
        let mut numbers = line?.split_whitespace().filter_map(|w| w.parse().ok());
        numbers.nth(MEAN)
    };
    load.rates.iter().map(rate).collect()
}

/// The last two numbers of mib's line.
fn of_mib(load: &Load, report: &str) -> Option<Vec<f64>> {
    let words: Vec<&str> = report.lines().last()?.split_whitespace().collect();
    let last = words.len().checked_sub(load.rates.len())?;
    words[last..].iter().map(|w| w.parse().ok()).collect()
}

/// The first number of mdsrate's line.
fn of_mdsrate(_: &Load, report: &str) -> Option<Vec<f64>> {
    let line = report.lines().find_map(|l| l.strip_prefix("Rate: "))?;
    Some(vec![line.split_whitespace().next()?.parse().ok()?])
}

fn measure(load: &Load, command: &mut Command, dir: &Path) -> Result<Vec<f64>, String> {
    let (option, name) = load.place;
    let of_place = |what: &str, e: std::io::Error| format!("{what} {}: {e}", dir.display());
    std::fs::create_dir_all(dir).map_err(|e| of_place("make", e))?;
    command.args(load.args).arg(option).arg(dir.join(name));
    let ended = command
        .output()
        .map_err(|e| format!("run {command:?}: {e}"))?;
    let report = String::from_utf8_lossy(&ended.stdout);
    std::fs::remove_dir_all(dir).map_err(|e| of_place("remove", e))?;
    (load.find)(load, &report)
        .filter(|_| ended.status.success())
        .ok_or_else(|| {
            format!(
                "{command:?} gave no rates ({}): {report}{}",
                ended.status,
                String::from_utf8_lossy(&ended.stderr)
            )
        })
}

pub(crate) fn run(dir: &Path) -> Result<(), String> {
    // before anything is built
    let mut there = vec![];
    for load in LOADS {
        match original(load.program) {
            Ok(_) => there.push(load),
            Err(why) => println!("{} {}: {why}", load.program, load.args.join(" ")),
        }
    }
    if there.is_empty() {
        return Err("put ior and mdtest (https://github.com/hpc/ior), mib (https://github.com/LLNL/mib) or Lustre's mdsrate (lustre/tests/mpi) on the PATH".into());
    }
    let coral = step::build_release()?;
    let place = dir.join(format!("originals-{}", std::process::id()));
    println!("one task, {ROUNDS} rounds, on {}", dir.display());
    let mut loads = there.into_iter();
    loads.try_for_each(|load| compare(load, &coral, &place))
}

/// Runs one command line by both, and prints its rows.
fn compare(load: &Load, coral: &Path, dir: &Path) -> Result<(), String> {
    let original = original(load.program)?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let mut sides = [Vec::new(), Vec::new()];
        for turn in [round % 2, 1 - round % 2] {
            let mut command = match turn {
                0 => Command::new(&original),
                _ => Command::new(coral),
            };
            if turn == 1 {
                command.arg(load.program);
            }
            sides[turn] = measure(load, &mut command, dir)?;
        }
        rounds.push(sides);
    }
    println!("{} {}", load.program, load.args.join(" "));
    for (i, line) in load.rates.iter().enumerate() {
        let of = |side: usize| middle(rounds.iter().map(|r| r[side][i]).collect()).0;
        let ratios = rounds.iter().map(|r| r[1][i] / r[0][i]);
        let (ratio, least, most) = middle(ratios.collect());
        println!(
            "  {:<14} original {:>12.1}   coral {:>12.1}   ratio {ratio:.2} ({least:.2} to {most:.2})",
            line.trim(),
            of(0),
            of(1),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_taken_from_the_summary() {
        let report = "write 1 2 3 4\nSummary of all tests:\nOperation Max(MiB) Min(MiB) Mean(MiB)\n\
                      write 222.43 153.86 193.74 29.09\nread 286.02 222.34 264.78 30.01\n";
        assert_eq!(of_summary(&LOADS[0], report), Some(vec![193.74, 264.78]));
        let report = "SUMMARY rate (in ops/sec): (of 1 iterations)\n   File creation   4.0  3.0  3.5  0.1\n   \
                      File stat  8.0 7.0 7.5 0.1\n   File removal 6.0 5.0 5.5 0.1\n";
        assert_eq!(of_summary(&LOADS[2], report), Some(vec![3.5, 7.5, 5.5]));
        assert_eq!(
            of_summary(&LOADS[0], "Summary of all tests:\nwrite 1 2 3\n"),
            None
        );
        let mib = "Fri Nov 27 00:02:41 2026      1   64k   200     5     575.10    7131.65\n";
        assert_eq!(of_mib(&LOADS[3], mib), Some(vec![575.1, 7131.65]));
        let rate = "0: vm starting at Fri\nRate: 3753.89 eff 3754.63 aggr 3754.63 avg client creates/sec\n";
        assert_eq!(of_mdsrate(&LOADS[4], rate), Some(vec![3753.89]));
        assert_eq!(
            (of_mib(&LOADS[3], ""), of_mdsrate(&LOADS[4], "x")),
            (None, None)
        );
    }
}
