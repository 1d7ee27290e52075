//! `cargo xtask bench originals`: the load generators of Coral beside the programs whose command lines they take.
//!
//! The originals are the ones on the PATH. Each round runs the same command line by both, in turns, as one task on the same
//! directory, and takes the rates from what both print alike. The median of the rounds' own ratios is printed with its range.

use super::peers::middle;
use crate::step;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rounds of each command line.
const ROUNDS: usize = 7;
/// Which number of a line is the rate: greatest and least come before the mean.
const MEAN: usize = 2;
/// How the lines of an ior begin that have its rates.
const IOR: &[&str] = &["write ", "read "];

/// What both programs are asked to do.
struct Load {
    program: &'static str,
    args: &'static [&'static str],
    /// How the lines with its rates begin.
    lines: &'static [&'static str],
    /// The option for the file or directory, and the name of it.
    place: (&'static str, &'static str),
}

const LOADS: &[Load] = &[
    Load {
        program: "ior",
        args: &["-a", "POSIX", "-w", "-r", "-b", "512m", "-t", "1m"],
        lines: IOR,
        place: ("-o", "file"),
    },
    Load {
        program: "ior",
        args: &["-a", "POSIX", "-w", "-r", "-b", "128m", "-t", "4k"],
        lines: IOR,
        place: ("-o", "file"),
    },
    Load {
        program: "mdtest",
        args: &["-F", "-C", "-T", "-r", "-n", "20000"],
        lines: &["File creation", "File stat", "File removal"],
        place: ("-d", "tree"),
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
    found.ok_or_else(|| {
        format!("{program} is not on the PATH, or is Coral's: put the original ior and mdtest (https://github.com/hpc/ior) there")
    })
}

/// The rates in a report, in the order of the load's lines.
fn rates(load: &Load, report: &str) -> Option<Vec<f64>> {
    let summary = report
        .split_once("Summary of all tests")
        .or_else(|| report.split_once("SUMMARY rate"))?
        .1;
    let rate = |begin: &&str| {
        let line = summary.lines().find_map(|l| l.trim().strip_prefix(*begin));
        let mut numbers = line?.split_whitespace().filter_map(|w| w.parse().ok());
        numbers.nth(MEAN)
    };
    load.lines.iter().map(rate).collect()
}

fn measure(load: &Load, command: &mut Command, dir: &Path) -> Result<Vec<f64>, String> {
    let (option, name) = load.place;
    command.args(load.args).arg(option).arg(dir.join(name));
    let ended = command
        .output()
        .map_err(|e| format!("run {command:?}: {e}"))?;
    let report = String::from_utf8_lossy(&ended.stdout);
    rates(load, &report)
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
    for load in LOADS {
        original(load.program)?;
    }
    let coral = step::build_release()?;
    let place = dir.join(format!("originals-{}", std::process::id()));
    std::fs::create_dir_all(&place).map_err(|e| format!("make {}: {e}", place.display()))?;
    println!("one task, {ROUNDS} rounds, on {}", dir.display());
    let done = LOADS
        .iter()
        .try_for_each(|load| compare(load, &coral, &place));
    std::fs::remove_dir_all(&place).map_err(|e| format!("remove {}: {e}", place.display()))?;
    done
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
    for (i, line) in load.lines.iter().enumerate() {
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
        assert_eq!(rates(&LOADS[0], report), Some(vec![193.74, 264.78]));
        let report = "SUMMARY rate (in ops/sec): (of 1 iterations)\n   File creation   4.0  3.0  3.5  0.1\n   \
                      File stat  8.0 7.0 7.5 0.1\n   File removal 6.0 5.0 5.5 0.1\n";
        assert_eq!(rates(&LOADS[2], report), Some(vec![3.5, 7.5, 5.5]));
        assert_eq!(
            rates(&LOADS[0], "Summary of all tests:\nwrite 1 2 3\n"),
            None
        );
    }
}
