//! `cargo xtask bench lnet`: the self-test between processes over loopback TCP, beside iperf3 in the same run.
//!
//! Each round runs iperf3 with one stream, then bulk read and write of 1 MiB between two processes that serve the self-test,
//! driven by a third (all are coral-lnet's example `lst-bench`); the medians of the rounds' own ratios are printed, so that what else the machine does falls on
//! both alike. Then small messages at three concurrencies, and two nodes of one process in memory. Times are only reported.

use crate::step;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Rounds; the median is printed.
const ROUNDS: usize = 5;
/// Seconds of each measurement.
const SECONDS: u32 = 3;
/// TCP port of the nodes, and iperf3's.
const PORT: &str = "9986";
const IPERF_PORT: &str = "9985";
const CLIENT: &str = "127.77.0.2@tcp";
const SERVER: &str = "127.77.0.3@tcp";
const CONSOLE: &str = "127.77.0.4@tcp";
/// Loops of the bulk tests.
const BULK_CONCURRENCY: &str = "8";

/// A child that ends with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// MB/s, CPU seconds per GiB.
#[derive(Clone, Copy)]
struct Throughput {
    mb_per_s: f64,
    cpu_per_gib: f64,
}

const GIB: f64 = (1u64 << 30) as f64;

pub(crate) fn run() -> Result<(), String> {
    step::run("cargo", &["build", "--release", "--locked", "-p", "coral-lnet", "--example", "lst-bench"])?;
    let tool = step::target_dir().join("release/examples/lst-bench");
    let serve = |nid: &str| {
        let child = Command::new(&tool).args(["serve", nid, PORT]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        child.map(Process).map_err(|e| format!("lst-bench serve: {e}"))
    };
    let nodes = [serve(CLIENT)?, serve(SERVER)?];
    step::settle();
    let mut rounds: Vec<[Option<Throughput>; 3]> = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push([iperf()?, Some(bulk(&tool, &nodes, "read")?), Some(bulk(&tool, &nodes, "write")?)]);
    }
    println!("1 MiB bulk, two processes over loopback TCP, {BULK_CONCURRENCY} under way; medians of {ROUNDS} rounds of {SECONDS} s");
    println!("{:<12} {:>10} {:>14} {:>14} {:>14}", "", "MB/s", "CPU s per GiB", "rate/iperf3", "CPU/iperf3");
    for (i, name) in ["iperf3 -P 1", "brw read", "brw write"].into_iter().enumerate() {
        let of = |f: &dyn Fn(&Throughput) -> f64| median(rounds.iter().filter_map(|r| r[i].as_ref().map(f)).collect());
        let ratio = |f: &dyn Fn(&Throughput) -> f64| median(rounds.iter().filter_map(|r| Some(f(r[i].as_ref()?) / f(r[0].as_ref()?))).collect());
        let (rate, cpu) = (|t: &Throughput| t.mb_per_s, |t: &Throughput| t.cpu_per_gib);
        println!("{name:<12} {:>10.0} {:>14.3} {:>14.2} {:>14.2}", of(&rate), of(&cpu), ratio(&rate), ratio(&cpu));
    }
    println!("\nping test between the same processes (an RPC is two messages)");
    println!("{:<12} {:>10} {:>12} {:>16}", "concurrency", "RPC/s", "messages/s", "CPU us/message");
    for concurrency in ["1", "8", "64"] {
        let runs = (0..ROUNDS).map(|_| ping(&tool, &nodes, concurrency)).collect::<Result<Vec<_>, _>>()?;
        let rate = median(runs.iter().map(|r| r.0).collect());
        println!("{concurrency:<12} {rate:>10.0} {:>12.0} {:>16.2}", rate * 2.0, median(runs.iter().map(|r| r.1).collect()));
    }
    drop(nodes);
    println!();
    step::run_in(Command::new(&tool).args(["memory", &SECONDS.to_string()]))
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One stream of iperf3; None without the program.
fn iperf() -> Result<Option<Throughput>, String> {
    if !step::on_path("iperf3") {
        return Ok(None);
    }
    let host = CLIENT.split('@').next().unwrap_or_default();
    let server = Command::new("iperf3").args(["-s", "-1", "-B", host, "-p", IPERF_PORT]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Process(server.map_err(|e| format!("iperf3: {e}"))?);
    step::settle();
    let text = output(Command::new("iperf3").args(["-c", host, "-p", IPERF_PORT, "-J", "-t", &SECONDS.to_string()]))?;
    let received = text.rfind("\"sum_received\"").map_or("", |i| &text[i..]);
    let field = |text: &str, name| number(text, name).ok_or_else(|| format!("iperf3 printed no {name}"));
    let (bits, bytes) = (field(received, "bits_per_second")?, field(received, "bytes")?);
    let cpu = text.rfind("\"cpu_utilization_percent\"").map_or("", |i| &text[i..]);
    let seconds = field(received, "seconds")?;
    let busy = (field(cpu, "host_total")? + field(cpu, "remote_total")?) / 100.0 * seconds;
    Ok(Some(Throughput { mb_per_s: bits / 8e6, cpu_per_gib: busy / (bytes / GIB) }))
}

/// Runs one test between the nodes: what it printed and the CPU seconds of both nodes.
fn quick(tool: &Path, nodes: &[Process; 2], only: &str, concurrency: &str) -> Result<(String, f64), String> {
    let cpu = || nodes.iter().map(|n| crate::bench::process_cpu(n.0.id())).sum::<f64>();
    let before = cpu();
    let text = output(Command::new(tool).args(["quick", CLIENT, SERVER, CONSOLE, PORT, only, concurrency, &SECONDS.to_string()]))?;
    Ok((text, cpu() - before))
}

fn bulk(tool: &Path, nodes: &[Process; 2], only: &str) -> Result<Throughput, String> {
    let (text, cpu) = quick(tool, nodes, only, BULK_CONCURRENCY)?;
    let get = |name| number(&text, name).ok_or_else(|| format!("lst-bench printed: {text}"));
    Ok(Throughput { mb_per_s: get("mb_per_s")?, cpu_per_gib: cpu / (get("total_bytes")? / GIB) })
}

/// RPCs a second, and microseconds of CPU per message.
fn ping(tool: &Path, nodes: &[Process; 2], concurrency: &str) -> Result<(f64, f64), String> {
    let (text, cpu) = quick(tool, nodes, "ping", concurrency)?;
    let get = |name| number(&text, name).ok_or_else(|| format!("lst-bench printed: {text}"));
    Ok((get("rpcs_per_s")?, cpu * 1e6 / (get("total_rpcs")? * 2.0)))
}

/// Standard output of a program that ends well.
fn output(command: &mut Command) -> Result<String, String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("{command:?}: {}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)))
}

/// The first number called `name` in JSON text.
fn number(text: &str, name: &str) -> Option<f64> {
    let key = format!("\"{name}\":");
    let rest = text[text.find(&key)? + key.len()..].trim_start();
    rest.split([',', '}', '\n', ']']).next()?.trim().parse().ok()
}
