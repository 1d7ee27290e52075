//! `cargo xtask bench lnet`: the self-test between processes over loopback TCP, beside iperf3 in the same run.
//!
//! Each round runs iperf3 with one stream, then bulk read and write of 1 MiB between two processes that serve the self-test,
//! directly and through a router in a third, driven by one more (all are coral-lnet's example `lst-bench`); the medians of the
//! rounds' own ratios are printed, so that what else the machine does falls on all alike. Then small messages at three
//! concurrencies, two nodes of one process in memory, and the router beside plain relays (`router-bench`). Times are only reported.

use crate::step;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Rounds; the median is printed.
const ROUNDS: usize = 5;
/// Seconds of each measurement.
const SECONDS: u32 = 2;
/// TCP port of the nodes, and iperf3's.
const PORT: &str = "9986";
const IPERF_PORT: &str = "9985";
const CLIENT: &str = "127.77.0.2@tcp";
const SERVER: &str = "127.77.0.3@tcp";
const CONSOLE: &str = "127.77.0.4@tcp";
/// Beyond the router.
const FAR: &str = "127.77.1.3@tcp1";
const ROUTER: [&str; 2] = ["127.77.0.5@tcp", "127.77.1.5@tcp1"];
const ROUTE: &str = "tcp1 127.77.0.5@tcp";
const ROUTE_BACK: &str = "tcp 127.77.1.5@tcp1";
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

/// The processes between which is measured.
struct Rig {
    tool: PathBuf,
    client: Process,
    server: Process,
    router: Process,
    _far: Process,
}

impl Rig {
    fn start(tool: PathBuf) -> Result<Rig, String> {
        let run = |args: &[&str]| {
            let child = Command::new(&tool)
                .args(args)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            child
                .map(Process)
                .map_err(|e| format!("lst-bench {args:?}: {e}"))
        };
        let router = run(&["router", ROUTER[0], ROUTER[1], PORT])?;
        step::settle();
        let (client, server) = (
            run(&["serve", CLIENT, PORT, ROUTE])?,
            run(&["serve", SERVER, PORT, ROUTE])?,
        );
        let far = run(&["serve", FAR, PORT, ROUTE_BACK])?;
        step::settle();
        Ok(Rig {
            tool,
            client,
            server,
            router,
            _far: far,
        })
    }

    fn cpu(of: &[&Process]) -> f64 {
        of.iter().map(|p| crate::bench::process_cpu(p.0.id())).sum()
    }

    /// Runs one test between the client and a server: what was printed and the CPU seconds of `whose`.
    fn quick(
        &self,
        server: &str,
        whose: &[&Process],
        only: &str,
        concurrency: &str,
    ) -> Result<(String, f64), String> {
        let before = Rig::cpu(whose);
        let secs = SECONDS.to_string();
        let text = output(Command::new(&self.tool).args([
            "quick",
            CLIENT,
            server,
            CONSOLE,
            PORT,
            ROUTE,
            only,
            concurrency,
            &secs,
        ]))?;
        Ok((text, Rig::cpu(whose) - before))
    }

    fn bulk(&self, server: &str, whose: &[&Process], only: &str) -> Result<Throughput, String> {
        let (text, cpu) = self.quick(server, whose, only, BULK_CONCURRENCY)?;
        let get = |name| number(&text, name).ok_or_else(|| format!("lst-bench printed: {text}"));
        Ok(Throughput {
            mb_per_s: get("mb_per_s")?,
            cpu_per_gib: cpu / (get("total_bytes")? / GIB),
        })
    }

    /// RPCs a second, and microseconds of CPU per message.
    fn ping(&self, concurrency: &str) -> Result<(f64, f64), String> {
        let (text, cpu) = self.quick(SERVER, &[&self.client, &self.server], "ping", concurrency)?;
        let get = |name| number(&text, name).ok_or_else(|| format!("lst-bench printed: {text}"));
        Ok((get("rpcs_per_s")?, cpu * 1e6 / (get("total_rpcs")? * 2.0)))
    }

    /// Where the CPU time of both nodes goes during the ping test with the highest concurrency: programs, then functions.
    fn profile_ping(&self) -> Result<(), String> {
        let file = step::target_dir()
            .join("bench-lnet.perf")
            .to_string_lossy()
            .into_owned();
        let pids = format!("{},{}", self.client.0.id(), self.server.0.id());
        let secs = SECONDS.to_string();
        let record = Command::new("perf")
            .args([
                "record", "-q", "-F", "999", "-g", "-o", &file, "-p", &pids, "--", "sleep", &secs,
            ])
            .stderr(Stdio::null())
            .spawn();
        let mut record = Process(record.map_err(|e| format!("perf: {e}"))?);
        self.ping("64")?;
        let _ = record.0.wait();
        for sort in ["dso", "dso,symbol"] {
            let text = output(Command::new("perf").args([
                "report",
                "-i",
                &file,
                "--no-children",
                "-g",
                "none",
                "--sort",
                sort,
                "--percent-limit",
                "1.5",
            ]))?;
            println!("\nCPU time of ping at concurrency 64, by {sort}");
            text.lines()
                .filter(|l| !l.starts_with('#') && !l.trim().is_empty())
                .for_each(|l| println!("{}", l.trim_end_matches([' ', '-'])));
        }
        Ok(())
    }

    /// One round of the bulk rows, in their order.
    fn round(&self) -> Result<[Throughput; 5], String> {
        let ends = [&self.client, &self.server];
        let direct = |only| self.bulk(SERVER, &ends, only);
        let routed = |only| self.bulk(FAR, &[&self.router], only);
        Ok([
            iperf()?,
            direct("read")?,
            direct("write")?,
            routed("read")?,
            routed("write")?,
        ])
    }
}

const BULK_ROWS: [&str; 5] = [
    "iperf3 -P 1",
    "brw read",
    "brw write",
    "brw read, router",
    "brw write, router",
];

/// `cargo xtask bench rpc`: one RPC between two processes, beside an echo of its bytes.
pub(crate) fn rpc() -> Result<(), String> {
    step::run(
        "cargo",
        &[
            "run",
            "--release",
            "--locked",
            "-p",
            "coral-node",
            "--example",
            "rpc_echo",
        ],
    )
}

/// `profile`: also print where the CPU time of small messages goes (needs perf).
pub(crate) fn run(profile: bool) -> Result<(), String> {
    if !step::on_path("iperf3") {
        return Err("iperf3 is not on the PATH, and every row is compared with it: install it (apt-get install iperf3)".into());
    }
    step::run(
        "cargo",
        &[
            "build",
            "--release",
            "--locked",
            "-p",
            "coral-lnet",
            "--example",
            "lst-bench",
            "--example",
            "router-bench",
        ],
    )?;
    let examples = step::target_dir().join("release/examples");
    let rig = Rig::start(examples.join("lst-bench"))?;
    let rounds = (0..ROUNDS)
        .map(|_| rig.round())
        .collect::<Result<Vec<_>, _>>()?;
    println!(
        "1 MiB bulk between two processes over loopback TCP, {BULK_CONCURRENCY} under way; medians of {ROUNDS} rounds of {SECONDS} s"
    );
    println!("CPU: of both ends; of the rows with a router, the router's alone");
    println!(
        "{:<18} {:>8} {:>14} {:>12} {:>12} {:>12}",
        "", "MB/s", "CPU s per GiB", "rate/iperf3", "CPU/iperf3", "rate/direct"
    );
    for (i, name) in BULK_ROWS.into_iter().enumerate() {
        let of = |f: &dyn Fn(&Throughput) -> f64| median(rounds.iter().map(|r| f(&r[i])).collect());
        let ratio = |to: usize, f: &dyn Fn(&Throughput) -> f64| {
            median(rounds.iter().map(|r| f(&r[i]) / f(&r[to])).collect())
        };
        let (rate, cpu) = (|t: &Throughput| t.mb_per_s, |t: &Throughput| t.cpu_per_gib);
        let direct = if i < 3 {
            String::new()
        } else {
            format!("{:.2}", ratio(i - 2, &rate))
        };
        println!(
            "{name:<18} {:>8.0} {:>14.3} {:>12.2} {:>12.2} {direct:>12}",
            of(&rate),
            of(&cpu),
            ratio(0, &rate),
            ratio(0, &cpu)
        );
    }
    println!(
        "\nping test between the two processes, through one pair of nodes (an RPC is two messages)"
    );
    println!(
        "{:<12} {:>10} {:>12} {:>16}",
        "concurrency", "RPC/s", "messages/s", "CPU us/message"
    );
    for concurrency in ["1", "8", "64"] {
        let runs = (0..ROUNDS)
            .map(|_| rig.ping(concurrency))
            .collect::<Result<Vec<_>, _>>()?;
        let rate = median(runs.iter().map(|r| r.0).collect());
        println!(
            "{concurrency:<12} {rate:>10.0} {:>12.0} {:>16.2}",
            rate * 2.0,
            median(runs.iter().map(|r| r.1).collect())
        );
    }
    if profile {
        rig.profile_ping()?;
    }
    println!();
    step::run_in(Command::new(&rig.tool).args(["memory", &SECONDS.to_string()]))?;
    drop(rig);
    println!();
    step::run_in(
        Command::new(examples.join("router-bench")).args([SECONDS.to_string(), ROUNDS.to_string()]),
    )
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One stream of iperf3.
fn iperf() -> Result<Throughput, String> {
    let host = CLIENT.split('@').next().unwrap_or_default();
    let server = Command::new("iperf3")
        .args(["-s", "-1", "-B", host, "-p", IPERF_PORT])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = Process(server.map_err(|e| format!("iperf3: {e}"))?);
    step::settle();
    let text = output(Command::new("iperf3").args([
        "-c",
        host,
        "-p",
        IPERF_PORT,
        "-J",
        "-t",
        &SECONDS.to_string(),
    ]))?;
    let received = text.rfind("\"sum_received\"").map_or("", |i| &text[i..]);
    let field =
        |text: &str, name| number(text, name).ok_or_else(|| format!("iperf3 printed no {name}"));
    let (bits, bytes) = (
        field(received, "bits_per_second")?,
        field(received, "bytes")?,
    );
    let cpu = text
        .rfind("\"cpu_utilization_percent\"")
        .map_or("", |i| &text[i..]);
    let seconds = field(received, "seconds")?;
    let busy = (field(cpu, "host_total")? + field(cpu, "remote_total")?) / 100.0 * seconds;
    Ok(Throughput {
        mb_per_s: bits / 8e6,
        cpu_per_gib: busy / (bytes / GIB),
    })
}

/// Standard output of a program that ends well.
fn output(command: &mut Command) -> Result<String, String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!(
        "{command:?}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    ))
}

/// The first number called `name` in JSON text.
fn number(text: &str, name: &str) -> Option<f64> {
    let key = format!("\"{name}\":");
    let rest = text[text.find(&key)? + key.len()..].trim_start();
    rest.split([',', '}', '\n', ']'])
        .next()?
        .trim()
        .parse()
        .ok()
}
