//! What the generator itself costs: CPU of an operation beside fio's psync for the same pattern, and of a latency sample.
//!
//! `cargo run --release -p coral-lab --example overhead [DIR]`; DIR is on tmpfs, /dev/shm unless said.

use coral_lab::load::clock::Clock;
use coral_lab::load::meter::Meter;
use coral_lab::load::out::Out;
use coral_lab::load::progress::Line;
use coral_lab::load::{Run, run};
use std::process::Command;

/// Bytes of a run, in pieces of 4 KiB.
const BYTES: u64 = 1 << 30;
const BLOCK: u64 = 4096;
/// Passes over them, for a run of some seconds.
const PASSES: u64 = 4;
/// Clock ticks of /proc in a second.
const TICKS: f64 = 100.0;

/// Seconds of CPU that this process has used.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or("");
    let field = |i: usize| {
        after
            .split_whitespace()
            .nth(i)
            .and_then(|f| f.parse().ok())
            .unwrap_or(0.0)
    };
    (field(11) + field(12)) / TICKS
}

fn ours(dir: &str, access: &str) -> f64 {
    let before = cpu_s();
    let mut operations = 0;
    for _ in 0..PASSES {
        let (file, block) = (format!("{dir}/overhead"), BYTES.to_string());
        let args = ["-b", &block, "-t", "4k", access, "-k", "-E", "-o", &file];
        match run(Run::new("ior", &args, Out::silent())) {
            Ok(ended) => {
                let record = ended.record.unwrap_or_default();
                operations += record["phases"][0]["operations"].as_u64().unwrap_or(0);
            }
            Err(e) => eprintln!("ior: {e}"),
        }
    }
    (cpu_s() - before) * 1e9 / operations as f64
}

fn fios(dir: &str, access: &str) -> Option<f64> {
    let rw = if access == "-w" { "write" } else { "read" };
    let out = Command::new("fio")
        .args([
            "--name=o",
            "--ioengine=psync",
            "--bs=4k",
            "--thread",
            "--output-format=json",
            "--overwrite=1",
        ])
        .args([
            format!("--rw={rw}"),
            format!("--size={BYTES}"),
            format!("--loops={PASSES}"),
        ])
        .arg(format!("--filename={dir}/overhead"))
        .output()
        .ok()?;
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    let job = &json["jobs"][0];
    let number = |v: &serde_json::Value| v.as_f64().unwrap_or(0.0);
    let cpu = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0
        * number(&job["job_runtime"])
        / 1e3;
    Some(cpu * 1e9 / number(&job[rw]["total_ios"]))
}

fn main() {
    let dir = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/dev/shm".to_owned());
    println!("CPU of an operation of {BLOCK} bytes on {dir}, nanoseconds (user and system)");
    println!("{:<8} {:>8} {:>10}", "access", "ior", "fio psync");
    // the file is there before anything is counted
    ours(&dir, "-w");
    for access in ["-w", "-r"] {
        let (ior, fio) = (ours(&dir, access), fios(&dir, access));
        let fio = fio.map_or("none".to_owned(), |ns| format!("{ns:.0}"));
        println!(
            "{:<8} {ior:>8.0} {fio:>10}",
            if access == "-w" { "write" } else { "read" }
        );
    }
    let _ = std::fs::remove_file(format!("{dir}/overhead"));

    let (line, clock) = (Line::default(), Clock::start());
    let mut meter = Meter::start(clock, &line);
    let (samples, before) = (100_000_000_u64, cpu_s());
    for _ in 0..samples {
        meter.done(BLOCK);
    }
    let ns = (cpu_s() - before) * 1e9 / samples as f64;
    let p50 = meter.finish().map_or(0, |l| l.summary().p50);
    println!(
        "a latency sample: {ns:.1} ns of CPU with its clock reading and counts (median interval {p50} ns)"
    );
    println!(
        "500,000 samples a second: {:.2}% of one core",
        ns * 500_000.0 / 1e9 * 100.0
    );
}
