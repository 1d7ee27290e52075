//! What developers run: `cargo xtask demo | test | tidy | bench | chaos | power | storm | hostile | fuzz | xfstests | conform | setup`.
//!
//! Each command first sets up what it needs, so that a fresh Debian machine with a Rust toolchain is enough.

mod bench;
mod bench_lnet;
mod conform;
mod demo;
mod deny;
mod fuzz;
mod hostile;
mod long;
mod power;
mod programs;
mod scale;
mod setup;
mod step;
mod storm;
mod test;
mod tidy;
mod xfstests;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Coral's developer commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up, build, start a file system in ./data, mount it on ./mnt and show it at work.
    Demo,
    /// Set up and run every test.
    Test {
        /// Only the cargo tests: no mounts, no real programs.
        #[arg(long)]
        quick: bool,
    },
    /// Check the sizes of files and functions, and the words of comments and pages.
    Tidy {
        /// First lower the ceilings in tidy.toml to what files and functions have shrunk to.
        #[arg(long)]
        shrink: bool,
    },
    /// Set up, then measure the mount against the directory underneath and print ratios.
    Bench {
        /// Instead: `lnet`: the self-test between processes against iperf3, and a router; `router`: one router, six clients, one
        /// and two file systems, with its throughput over time as tables and plots in DIR; `memory`: a client that walks 1,000,000
        /// names and streams 20 GiB; `originals`: the load generators beside the ior, mdtest, mib and mdsrate on the PATH; `peers`: Coral over TCP
        /// beside GlusterFS, MooseFS, a FUSE passthrough and the directory (root); `rpc`: one RPC between two processes beside an echo
        /// of its bytes; `scale`: many files: rates, starts, memory of the servers, space; `shared`: two mounts that write and read one
        /// file, beside a file for each; `steady`: small writes in random order beside a FUSE passthrough, and the servers' memory after
        /// ten rounds.
        #[arg(value_parser = ["lnet", "memory", "originals", "peers", "router", "rpc", "scale", "shared", "steady"])]
        what: Option<String>,
        /// Where the file system and the files to compare with are put.
        #[arg(long, default_value = "target/bench")]
        dir: std::path::PathBuf,
        /// Also print in which layers the Coral process spent its CPU time, or with `lnet` the nodes of small messages (with perf).
        #[arg(long)]
        profile: bool,
        /// Only rows with one of these in their name, separated by commas, also by one that is in a name (rows that need what others made need those too).
        #[arg(long)]
        rows: Option<String>,
        /// Another build of the program `coral`, to measure beside this one instead of the local directory; with `peers` and `scale`
        /// the one to measure, instead of building it.
        #[arg(long, value_name = "FILE")]
        beside: Option<std::path::PathBuf>,
        /// How often the table is measured.
        #[arg(long, default_value_t = 1)]
        times: usize,
        /// With `scale`: how many files, in steps of 100,000.
        #[arg(long, default_value_t = 1_000_000)]
        files: u64,
        /// MDTs; without a name of a benchmark, a file system with so many is measured beside one that has one.
        #[arg(long, default_value_t = 1)]
        mdts: u32,
        /// With several MDTs: new directories are striped over all of them.
        #[arg(long)]
        striped: bool,
        /// With `scale`: every file gets data.
        #[arg(long)]
        data: bool,
    },
    /// A file system over a network that loses, delays and resets, through a router that dies: by the machine's clock.
    Chaos {
        /// How long, seconds.
        #[arg(long, default_value_t = 600)]
        seconds: u32,
        /// All nodes in one process, with memlnd for a network; else real mounts over TCP between network namespaces (root).
        #[arg(long)]
        one_process: bool,
    },
    /// Cut the power of the servers' disks again and again under a workload that knows what it was told (root).
    Power {
        /// How often.
        #[arg(long, default_value_t = 500)]
        cuts: u32,
        /// What is lost and what the workload does comes from it; each ten cuts are a file system of their own with the next seed.
        #[arg(long, default_value_t = 1)]
        seed: u32,
    },
    /// Kill two servers and a router with -9 and part them from two clients, for minutes; nothing acknowledged may be missing (root).
    Storm {
        /// How long.
        #[arg(long, default_value_t = 60)]
        minutes: u32,
        /// Of the order of faults and of what the clients do.
        #[arg(long, default_value_t = 1)]
        seed: u32,
    },
    /// A client that is connected and sends nonsense, beside one that works: the servers live, hold little and protect the other.
    Hostile {
        /// How long, in minutes of CPU time.
        #[arg(long, default_value_t = 60)]
        minutes: u32,
        /// Of what it does and how its messages are changed.
        #[arg(long, default_value_t = 1)]
        seed: u32,
    },
    /// Give a decoder or a state machine random bytes for minutes; without a target, list them.
    Fuzz(fuzz::Fuzz),
    /// Run xfstests' generic tests on two mounts and compare with the list of expected failures (root).
    Xfstests(xfstests::Xfstests),
    /// Check a live Lustre, ours or not: POSIX, layouts, coherence of two clients, contention, recovery.
    Conform(conform::Conform),
    /// One job of the benchmark, in a process of its own.
    #[command(hide = true)]
    BenchWorker {
        work: String,
        dir: std::path::PathBuf,
        job: u64,
        amount: u64,
        scratch: std::path::PathBuf,
    },
    /// Install the Debian packages and the test programs, nothing else.
    Setup,
}

/// The benchmarks that take no more than a directory.
fn bench_in(what: &str, dir: &std::path::Path) -> Result<(), String> {
    match what {
        "memory" => long::memory(),
        "originals" => bench::originals::run(dir),
        "router" => long::router(dir),
        _ => bench_lnet::rpc(),
    }
}

fn main() -> ExitCode {
    let (started, inside) = (step::now(), std::env::var_os(conform::INSIDE).is_some());
    let done = match Cli::parse().command {
        Command::Demo => demo::run(),
        Command::Test { quick } => test::run(quick),
        Command::Tidy { shrink } => tidy::run(shrink),
        Command::Bench {
            what: Some(what),
            dir,
            files,
            mdts,
            data,
            beside,
            ..
        } if what == "scale" => scale::run(&scale::Asked {
            coral: beside,
            dir: &dir,
            files,
            mdts,
            data,
        }),
        Command::Bench {
            what: Some(what),
            dir,
            ..
        } if matches!(&*what, "memory" | "originals" | "router" | "rpc") => bench_in(&what, &dir),
        Command::Bench {
            what: Some(what),
            dir,
            rows,
            beside,
            ..
        } if matches!(&*what, "peers" | "shared" | "steady") => {
            bench::of_mounts(&what, &dir, beside.as_deref(), rows.as_deref())
        }
        Command::Bench {
            what: Some(_),
            profile,
            ..
        } => bench_lnet::run(profile),
        Command::Bench {
            what: None,
            dir,
            profile,
            rows,
            beside,
            times,
            mdts,
            striped,
            ..
        } => bench::run(&bench::Asked {
            dir: &dir,
            beside: beside.as_deref(),
            mdts,
            striped,
            times,
            profile,
            rows: rows.as_deref(),
        }),
        Command::Conform(asked) => conform::run(&asked),
        Command::BenchWorker {
            work,
            dir,
            job,
            amount,
            scratch,
        } => return worker(&work, &dir, job, amount, &scratch),
        Command::Chaos {
            seconds,
            one_process,
        } => long::chaos(seconds, one_process),
        Command::Power { cuts, seed } => power::run(cuts, seed),
        Command::Storm { minutes, seed } => storm::run(minutes, seed),
        Command::Hostile { minutes, seed } => hostile::run(minutes, seed),
        Command::Fuzz(asked) => fuzz::run(&asked),
        Command::Xfstests(asked) => xfstests::run(&asked),
        Command::Setup => setup::everything(),
    };
    if !inside {
        eprintln!("xtask: {:.0} s", started.elapsed().as_secs_f64());
    }
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // empty: it was said already
            if !why.is_empty() {
                eprintln!("xtask: {why}");
            }
            ExitCode::FAILURE
        }
    }
}

fn worker(
    work: &str,
    dir: &std::path::Path,
    job: u64,
    amount: u64,
    scratch: &std::path::Path,
) -> ExitCode {
    match bench::worker(work, dir, job, amount, scratch) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
