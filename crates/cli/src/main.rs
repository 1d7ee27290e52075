//! Coral's commands: one binary, many names.
//!
//! The name it is called by picks the command: `coral`, `lfs`, `lst`, `lnetctl`, `lctl`, `mount.coral` (the helper of mount(8)),
//! and the load generators `ior`, `mdtest`, `mib` and `mdsrate`.

mod absent;
mod args;
mod check;
mod client;
mod control;
mod daemon;
mod descriptors;
mod explain;
mod format;
mod generator;
mod history;
mod holder;
mod lab;
mod left_out;
mod lfs;
mod lnetctl;
mod log;
mod lst;
mod metrics;
mod mount_options;
mod net;
mod older;
mod params;
mod quote;
mod repair;
mod router;
mod rundir;
mod serve;
mod servers;
mod status;
mod trace;
mod up;

use args::{Cli, Command};
use client::MountedClient;
use control::{Ask, Asked};
use coral_lab::load;
use coral_node::Servers;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Buffers and records are made on one thread and given back on another all the time, which glibc's allocator pays for with locks and
/// system calls.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    let called = args.first().map(|a| {
        std::path::Path::new(a)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    });
    if matches!(called.as_deref(), Some("lfs" | "lnetctl" | "lctl")) {
        daemon::end_with_closed_pipe();
    }
    if let Some(name) = called.as_deref().filter(|c| load::NAMES.contains(c)) {
        let _ = descriptors::raise_limit();
        // A process of the run that has ended is an error to report, not a signal to end by.
        return generator::main(name, args);
    }
    match called.as_deref() {
        Some("lfs") => return lfs::main(args.split_off(1)),
        Some("lst") => return lst::main(args.split_off(1)),
        Some("lnetctl") => return lnetctl::main(args.split_off(1), false),
        Some("lctl") => return lnetctl::main(args.split_off(1), true),
        Some("mount.coral" | "mount.fuse.coral" | "mount.lustre") => {
            args = client::mount_helper_args(args)
        }
        // mount.fuse calls the program that the type of a mount names, as in fuse.coral, like a helper
        _ if args
            .get(1)
            .is_some_and(|a| a.to_string_lossy().contains(":/")) =>
        {
            args = client::mount_helper_args(args)
        }
        _ => {}
    }
    let cli = Cli::read(args);
    if let Command::Lst { args } = cli.command {
        return lst::main(args); // it says itself where its log goes
    }
    if !matches!(
        cli.command,
        Command::Up(_)
            | Command::Serve(_)
            | Command::Mount(_)
            | Command::Router(_)
            | Command::Ior { .. }
            | Command::Mdtest { .. }
            | Command::Mib { .. }
            | Command::Mdsrate { .. }
    ) && !matches!(&cli.command, Command::Explain(e) if e.put_back)
    {
        // Who puts back the changes of a trial goes on when nobody listens any more.
        daemon::end_with_closed_pipe();
    }
    if matches!(
        cli.command,
        Command::Up(_)
            | Command::Serve(_)
            | Command::Format(_)
            | Command::Check(_)
            | Command::Mount(_)
            | Command::Router(_)
    ) {
        // What these make is their user's alone: tables of targets, sockets, logs.
        rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    }
    start_log(logged(&cli.command));
    if let Err(e) = descriptors::raise_limit() {
        tracing::warn!(error = %e, "the limit of open files stays as it is");
    }
    let done = match cli.command {
        Command::Up(a) => return ended(up::run(a)),
        Command::Down(a) => status::down(a),
        Command::Status(a) => status::status(a),
        Command::Check(a) => return ended(check::run(a)),
        Command::Format(a) => format::run(a),
        Command::Serve(a) => serve::run(a),
        Command::Mount(a) => client::run(a),
        Command::Router(a) => router::run(a),
        Command::History(a) => history::run(a),
        Command::Lab(a) => return lab::run(a),
        Command::Metrics(a) => metrics::run(a),
        Command::Trace(a) => return ended(trace::run(a)),
        Command::Explain(a) => return ended(explain::run(&a)),
        Command::Lfs { args } => return lfs::main(args),
        Command::Lst { .. } => Ok(()),
        Command::Lnetctl { args } => return lnetctl::main(args, false),
        Command::Lctl { args } => return lnetctl::main(args, true),
        Command::Ior { args } => return generate("ior", args),
        Command::Mdtest { args } => return generate("mdtest", args),
        Command::Mib { args } => return generate("mib", args),
        Command::Mdsrate { args } => return generate("mdsrate", args),
    };
    ended(done.map(|()| ExitCode::SUCCESS))
}

/// The exit code of a command; what went wrong is said.
fn ended(done: Result<ExitCode, String>) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(why) => {
            eprintln!("coral: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A load generator as a subcommand.
fn generate(name: &str, words: Vec<OsString>) -> ExitCode {
    let args = std::iter::once(OsString::from(name)).chain(words);
    generator::main(name, args.collect())
}

/// What is logged where nobody says anything else.
pub(crate) const LOGGED: &str = "info,fjall=warn,lsm_tree=warn";

/// What is logged of a command where nobody says anything else.
fn logged(command: &Command) -> &'static str {
    match command {
        // a check tells itself what is wrong with a store, file by file
        Command::Check(_) => "info,fjall=off,lsm_tree=off,sfa=off",
        // A load generator tells itself why it has failed: each attempt to reach a server would be a line before its one error.
        Command::Ior { .. }
        | Command::Mdtest { .. }
        | Command::Mib { .. }
        | Command::Mdsrate { .. } => "warn",
        _ => LOGGED,
    }
}

/// Logs go to standard error; `CORAL_LOG` sets what is shown (as in `CORAL_LOG=coral_ptlrpc=debug`), and `otherwise` without it.
pub(crate) fn start_log(otherwise: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CORAL_LOG")
        .unwrap_or_else(|_| otherwise.into());
    let log = std::sync::Arc::new(log::Log::new(std::io::stderr()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || log::Line(log.clone()))
        .with_ansi(false)
        .init();
}

/// The runtime of every command that serves or mounts.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    // Handlers may block in the page cache or on the disk for moments, so a few more threads than cores.
    let threads = std::thread::available_parallelism().map_or(2, usize::from) * 2 + 2;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|e| format!("cannot start the runtime: {e}"))
}

/// Waits until this process is told to stop: Ctrl-C, SIGTERM, `coral down`, or the mount's end.
/// Answers status requests meanwhile. A `down` is returned to be answered when all has stopped ([`control::stopped`]).
/// Returns at once when `ready` failed: whoever asked for this process has gone.
pub(crate) async fn run_until_stopped(
    ready: &Result<(), String>,
    asked: &mut mpsc::Receiver<Asked>,
    client: Option<&MountedClient>,
    servers: Option<&Servers>,
    status: impl Fn() -> serde_json::Value,
) -> Option<oneshot::Sender<serde_json::Value>> {
    let mut own = StopSignals::default();
    let params_of = params::Of {
        llite: client.map(MountedClient::llite),
        servers,
    };
    while ready.is_ok() {
        let signalled = async {
            match client {
                Some(c) => c.signalled().await,
                None => own.given().await,
            }
        };
        tokio::select! {
            () = signalled => return None,
            Some((ask, reply)) = asked.recv() => match (ask, client) {
                (Ask::Down, Some(c)) => match c.try_umount().await {
                    Ok(()) => return Some(reply),
                    Err(why) => { let _ = reply.send(serde_json::json!({ "error": why })); }
                },
                (Ask::Down | Ask::DownForced, _) => return Some(reply),
                (ask, _) => { let _ = reply.send(answer(ask, params_of, &status).await); }
            },
        }
    }
    None
}

/// What a process answers on its control socket; that it is to end is for the caller to do.
pub(crate) async fn answer(
    ask: Ask,
    of: params::Of<'_>,
    status: impl Fn() -> serde_json::Value,
) -> serde_json::Value {
    match ask {
        Ask::Status => status(),
        Ask::Down | Ask::DownForced => serde_json::json!({ "error": "stopping" }),
        Ask::GetParam(pattern) => params::get(of, &pattern),
        Ask::ListParam(pattern, below) => params::list(of, &pattern, below),
        Ask::SetParam(pattern, value) => params::set(of, &pattern, &value).await,
        Ask::AbortRecovery(pattern) => {
            serde_json::json!({ "aborted": of.servers.map_or_else(Vec::new, |s| servers::abort_recovery(s, &pattern)) })
        }
        Ask::Nodemap(ask) => match of.servers {
            Some(servers) => servers::nodemap(servers, &ask).await,
            None => servers::no_nodemaps(),
        },
    }
}

/// Ctrl-C and SIGTERM. From when it is made they do not end the process by themselves.
pub(crate) struct StopSignals([Option<tokio::signal::unix::Signal>; 2]);

impl Default for StopSignals {
    fn default() -> StopSignals {
        StopSignals(
            [SignalKind::interrupt(), SignalKind::terminate()].map(|kind| signal(kind).ok()),
        )
    }
}

impl StopSignals {
    /// Resolves when one was given.
    pub(crate) async fn given(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        let next = async |s: &mut Option<tokio::signal::unix::Signal>| match s {
            Some(s) => drop(s.recv().await),
            None => std::future::pending().await,
        };
        tokio::select! {
            () = next(interrupt) => {}
            () = next(terminate) => {}
        }
    }
}

/// What a process counted since its start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// RPCs of the client, all targets.
    pub rpcs: u64,
    /// The same by operation.
    pub by_opcode: BTreeMap<String, u64>,
    /// Requests that had to be handed to another thread.
    pub handovers: u64,
    /// Requests that servers of this process took.
    pub requests: u64,
    /// How often a thread of this process slept and was woken.
    pub wakeups: u64,
}

/// Requests that the services of servers on a node have taken since its start.
fn requests(node: &coral_lnet::Node) -> u64 {
    let mut all = coral_metrics::Snapshot::default();
    all.add(node.metrics(), &[]);
    let series = all.of("coral_ptlrpc_service_requests_total");
    let ours = series.into_iter().flatten();
    let of_servers = ours.filter(|(labels, _)| {
        labels
            .iter()
            .all(|(_, name)| name != coral_ldlm::CALLBACK_SERVICE)
    });
    let counts = of_servers.map(|(_, point)| match point {
        coral_metrics::Point::Count(n) => *n,
        coral_metrics::Point::Recorded(_) => 0,
    });
    counts.sum()
}

/// Adds up the counters of a process's nodes and clients.
pub(crate) fn counters(servers: Option<&Servers>, client: Option<&MountedClient>) -> Counters {
    let mut sum = Counters {
        wakeups: coral_metrics::wakeups(std::process::id()),
        ..Counters::default()
    };
    if let Some(c) = client {
        c.add_counters(&mut sum);
    }
    // of `coral up` it is one node
    let node = servers.map(Servers::node);
    if let Some(node) = node.or_else(|| client.map(MountedClient::node)) {
        sum.handovers += node.handovers().spawned.value();
    }
    if let Some(s) = servers {
        sum.requests += requests(s.node());
    }
    sum
}

impl Counters {
    /// Puts them into the answer to `coral status`.
    pub(crate) fn put_into(&self, answer: &mut serde_json::Value) {
        answer["rpcs"] = self.rpcs.into();
        answer["rpcs_by_opcode"] = serde_json::json!(self.by_opcode);
        answer["requests"] = self.requests.into();
        answer["handovers"] = self.handovers.into();
        answer["wakeups"] = self.wakeups.into();
    }
}
