//! The command line of `coral`.

mod times;

use crate::mount_options::{CACHE_MB, claimable};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use coral_lnet::Accept;
use coral_wire::nid::Nid;
use std::path::PathBuf;

/// Lustre in user space.
#[derive(Debug, Parser)]
#[command(
    name = "coral",
    version,
    about = "Lustre in user space: servers, client and tools"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads a command line; ends the program with a message where it is none. A negative number is the value of the option before it,
    /// which says what it takes.
    pub(crate) fn read(args: impl IntoIterator<Item = std::ffi::OsString>) -> Cli {
        let matches = with_negative_numbers(Cli::command()).get_matches_from(args);
        Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
    }
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let allow = |a: clap::Arg| match a.get_action().takes_values() && !a.is_positional() {
        true => a.allow_negative_numbers(true),
        false => a,
    };
    (command.mut_args(allow)).mut_subcommands(with_negative_numbers)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a whole file system (MGS, MDT, OSTs and a mount) in one process; the first time DIR is formatted.
    Up(Up),
    /// Stop what runs in DIR, cleanly.
    Down(Down),
    /// Say what runs in DIR.
    Status(Status),
    /// Verify the targets in DIR (nothing may run there): orphans, dangling entries, wrong link counts.
    Check(Check),
    /// Format one target directory, to be served by `coral serve`.
    Format(Format),
    /// Serve formatted target directories on one node.
    Serve(Serve),
    /// Mount a Lustre file system without a kernel module.
    Mount(Mount),
    /// Forward between LNet networks.
    Router(Router),
    /// LNet self-test: nodes, console and quick measurement (also as a program of its own name; `coral lst help`).
    #[command(disable_help_flag = true)]
    Lst {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// What a node sent, received, forwarded and lost in each second of the last hour.
    History(History),
    /// What the nodes of a running process have counted, as text for Prometheus.
    Metrics(Metrics),
    /// Single operations with the segments of their time: queues, network, locks, processors, storage.
    Trace(Trace),
    /// What limits a run: a verdict with figures, from where the time of operations went.
    Explain(Explain),
    /// The lfs command (also as a program of its own name).
    #[command(disable_help_flag = true)]
    Lfs {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// The lnetctl command (also as a program of its own name): LNet of a running node.
    #[command(disable_help_flag = true)]
    Lnetctl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// LNet's commands of lctl (also as a program of its own name): net_drop_*, net_delay_*, ping, list_nids, get_param.
    #[command(disable_help_flag = true)]
    Lctl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// IOR's command line and output: bandwidth of files (also as a program of its own name).
    #[command(disable_help_flag = true)]
    Ior {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// mdtest's command line and output: rates of creates, stats, reads and removals (also as a program of its own name).
    #[command(disable_help_flag = true)]
    Mdtest {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// mib's command line and output: bandwidth against the clock (also as a program of its own name).
    #[command(disable_help_flag = true)]
    Mib {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// mdsrate's command line and output: rates of an MDT (also as a program of its own name).
    #[command(disable_help_flag = true)]
    Mdsrate {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// Experiments: load, repeats, what the machine did meanwhile, and a report; the studies in one command each.
    Lab(Lab),
}

#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub action: LabAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabAction {
    /// Run an experiment in a new directory, and write its report.
    Run(LabRun),
    /// Go on with a run that ended early: what is there is kept, what is missing is measured.
    Resume {
        /// The run directory.
        dir: PathBuf,
        #[command(flatten)]
        place: LabWhere,
    },
    /// Write the report of a run again.
    Report {
        /// The run directory.
        dir: PathBuf,
    },
    /// Answer each line of standard input with samples of this machine: what an experiment starts on its hosts.
    #[command(hide = true)]
    Agent,
    /// The studies, and the runs in a directory.
    List {
        /// Where to look for runs.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LabRun {
    /// Name of a study (`coral lab list`), or a TOML file with its path.
    pub experiment: String,
    /// Which of the experiment's profiles (`full` is the experiment as it is).
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// The run directory, which must not hold a run and is made where its parent is (default lab-NAME-N, the first that is free).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub place: LabWhere,
}

/// On which file systems an experiment runs.
#[derive(Debug, Args, Clone)]
pub(crate) struct LabWhere {
    /// NAME=DIR: a mounted file system, or any directory, in the place of one that the laboratory would start; again for further ones
    /// and for further clients of one.
    #[arg(long, value_name = "NAME=DIR")]
    pub mount: Vec<String>,
    /// Where the targets of file systems go that the laboratory starts (default the run directory).
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct History {
    /// Directory (`coral up`, `serve`, `router`), mount point or pid of the running process; default: the only one of this user.
    pub dir: Option<PathBuf>,
    /// How far back, in seconds, at most 3600 (`60`, `60s`, `10m` or `1h`).
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = times::seconds, allow_hyphen_values = true)]
    pub since: usize,
    /// NID of the node, when the process has several.
    #[arg(long, value_name = "NID")]
    pub node: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a plot of the bytes per second.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Metrics {
    /// Directory (`coral up`, `serve`, `router`), mount point or pid of the running process; default: the only one of this user.
    pub dir: Option<PathBuf>,
    /// NID of the node, when the process has several; default: all.
    #[arg(long, value_name = "NID")]
    pub node: Option<String>,
    /// Print JSON, with quantiles of histograms.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// Mount points, directories or pids of running processes: clients, servers, routers; default: all of this user.
    #[arg(value_name = "MOUNT|DIR")]
    pub places: Vec<PathBuf>,
    /// Only operations that took so long at least, as in 10ms.
    #[arg(long, value_name = "TIME", value_parser = times::nanoseconds, allow_hyphen_values = true)]
    pub slow: Option<i64>,
    /// Only operations on this file.
    #[arg(long, value_name = "FID")]
    pub fid: Option<coral_wire::fid::Fid>,
    /// Only operations of this name, such as GETATTR on a mount, stat in the library.
    #[arg(long)]
    pub op: Option<String>,
    /// Print so many, the slowest.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub most: usize,
    /// Also write them to a file that Perfetto (ui.perfetto.dev) opens.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Print all records as JSON instead, for `coral explain FILE`.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Mount points, directories or pids of running processes, or one run of the laboratory or file of `coral trace --json`; default: all processes of this user.
    #[arg(value_name = "MOUNT|DIR|RUN")]
    pub places: Vec<PathBuf>,
    /// Watch this machine's processors and memory for so long.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = times::watch, allow_hyphen_values = true)]
    pub watch: f64,
    /// Also make the one trial that tells the first two causes apart. It says what it changes before it does, and puts that back.
    #[arg(long = "try")]
    pub trial: bool,
    /// With --try: watch for so long before a change, with it, and after it was put back.
    #[arg(
        long = "for",
        value_name = "SECONDS",
        default_value_t = 5.0,
        value_parser = times::window,
        allow_hyphen_values = true,
        requires = "trial"
    )]
    pub window: f64,
    /// Puts back what a trial changed, when standard input ends.
    #[arg(long, hide = true)]
    pub put_back: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Where a node listens.
#[derive(Debug, Args, Clone)]
pub(crate) struct Net {
    /// NID of this node, primary first; give it again for each network interface. Several nodes on one machine:
    /// 127.0.0.1@tcp, 127.0.0.2@tcp, ... (default 127.0.0.1@tcp, of a mount the address that reaches its first server, of
    /// `coral up` on a directory that was up before what it had then).
    #[arg(long, value_name = "NID")]
    pub nid: Vec<Nid>,
    /// TCP port of every node of this file system (default 988, Lustre's own, which needs root).
    #[arg(long, value_name = "PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Whose connections this node takes: 'secure' from ports below 1024, which are root's; 'user' of root and of this user on this
    /// machine; 'all'; 'none'. Default: secure with the privilege to bind such ports, else user.
    #[arg(long, value_name = "WHOSE")]
    pub accept: Option<Accept>,
    /// Route to another network: 'NET GATEWAY[,GATEWAY...] [HOPS] [PRIORITY]', as in 'tcp1 10.0.0.4@tcp'; may be given again.
    #[arg(long, value_name = "ROUTE")]
    pub route: Vec<String>,
    /// TOML file with routes: routes = ["tcp1 10.0.0.4@tcp", ...]
    #[arg(long, value_name = "FILE")]
    pub routes: Option<PathBuf>,
}

/// What this end says it is.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Claim {
    /// The Lustre release to claim when connecting, 2.15.0 to 2.18.255 (default 2.17.57): some peers go by it.
    #[arg(long, value_name = "RELEASE", value_parser = claimable)]
    pub claim_version: Option<u32>,
}

/// How servers that were restarted wait for the clients they had.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Recovery {
    /// Wait for none of the clients of before: they lose what they have not replayed (acknowledged writes, open files).
    #[arg(long)]
    pub abort_recovery: bool,
    /// Seconds after which clients that have not come back are given up (default 60).
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400), allow_hyphen_values = true)]
    pub recovery_time_soft: Option<u32>,
    /// Seconds after which clients that are not done are given up (default 180).
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400), allow_hyphen_values = true)]
    pub recovery_time_hard: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Router {
    #[command(flatten)]
    pub net: Net,
    /// Buffers for messages without payload.
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub tiny: usize,
    /// Buffers for messages of up to 4 KiB.
    #[arg(long, value_name = "N", default_value_t = 16384)]
    pub small: usize,
    /// Buffers for messages of up to 1 MiB.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub large: usize,
    /// State directory: control socket and log (default $XDG_RUNTIME_DIR/coral-router, else /run/coral-router).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Stay in the foreground until Ctrl-C.
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Directory that holds the targets.
    pub dir: PathBuf,
    #[command(flatten)]
    pub claim: Claim,
    /// Mount the file system here, in the same process.
    #[arg(long, value_name = "MNT")]
    pub mount: Option<PathBuf>,
    /// Name of the file system, 1 to 8 letters, digits, '-' or '_' (default coral).
    #[arg(long, value_name = "NAME")]
    pub fsname: Option<String>,
    /// Number of MDTs (default 1).
    #[arg(long, value_name = "N")]
    pub mdts: Option<u32>,
    /// Number of OSTs (default 4); may be raised later, not lowered.
    #[arg(long, value_name = "N")]
    pub osts: Option<u32>,
    #[command(flatten)]
    pub net: Net,
    /// Stripes of a new file whose directory says nothing else (default 1; -1 for all OSTs).
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub stripe_count: Option<i32>,
    /// Stripe size of such files, a multiple of 64K (default 1M).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub stripe_size: Option<u64>,
    /// Memory budget of the client's caches, MiB (default 256).
    #[arg(long, value_name = "MiB", value_parser = cache_mb())]
    pub cache_mb: Option<u32>,
    #[command(flatten)]
    pub recovery: Recovery,
    /// Stay in the foreground until Ctrl-C.
    #[arg(long)]
    pub foreground: bool,
}

impl Up {
    /// `coral up DIR`.
    pub(crate) fn of(dir: PathBuf) -> Up {
        let net = Net {
            nid: Vec::new(),
            port: None,
            accept: None,
            route: Vec::new(),
            routes: None,
        };
        Up {
            dir,
            claim: Claim::default(),
            mount: None,
            fsname: None,
            mdts: None,
            osts: None,
            net,
            stripe_count: None,
            stripe_size: None,
            cache_mb: None,
            recovery: Recovery::default(),
            foreground: false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Directory given to `coral up` or `coral serve`, or of a `coral router`.
    pub dir: PathBuf,
    /// Detach the mount even when it is in use.
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Directory given to `coral up` or `coral serve`, or of a `coral router`.
    pub dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Directory given to `coral up`, or target directories.
    #[arg(required = true)]
    pub dirs: Vec<PathBuf>,
    /// Mend what is wrong, then check again; what has no place goes to lost+found.
    #[arg(long)]
    pub repair: bool,
    /// With --repair: remove objects that no file has.
    #[arg(long, requires = "repair")]
    pub remove_objects: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Format {
    /// A management target (may be combined with --mdt).
    #[arg(long)]
    pub mgs: bool,
    /// A metadata target with this index.
    #[arg(long, value_name = "INDEX")]
    pub mdt: Option<u32>,
    /// An object storage target with this index.
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["mdt", "mgs"])]
    pub ost: Option<u32>,
    /// Name of the file system, 1 to 8 letters, digits, '-' or '_'.
    #[arg(long, value_name = "NAME")]
    pub fsname: Option<String>,
    /// NID of the MGS; several for failover.
    #[arg(long, value_name = "NID")]
    pub mgsnode: Vec<Nid>,
    /// NID of another node that serves this target when the first does not; give it again for further ones.
    #[arg(long, value_name = "NID")]
    pub failnode: Vec<Nid>,
    /// Stripes of a new file whose directory says nothing else (MDT only).
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true
    )]
    pub stripe_count: i32,
    /// Stripe size of such files (MDT only).
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size)]
    pub stripe_size: u64,
    /// The directory; made if it is not there, refused if it is not empty.
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Target directories made by `coral format`.
    #[arg(required = true)]
    pub dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub net: Net,
    #[command(flatten)]
    pub claim: Claim,
    #[command(flatten)]
    pub recovery: Recovery,
    /// Serve targets that their MGS takes for older copies or does not know as they are: what was done since is lost, and clients
    /// of before are not waited for
    #[arg(long)]
    pub accept_older: bool,
    /// Stay in the foreground until Ctrl-C.
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// NID[:NID...]:/fsname[/subdir]
    pub source: String,
    /// Where to mount.
    pub mountpoint: PathBuf,
    /// Mount options, comma separated: ro, noexec, nosuid, nodev, noatime, strictatime, sync, dirsync, remount, noflock,
    /// localflock, nouser_xattr, and of the flags below port=, cache_mb=, version=, nid=, route=,
    /// accept=.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    #[command(flatten)]
    pub net: Net,
    #[command(flatten)]
    pub claim: Claim,
    /// Memory budget of the client's caches, MiB (default 256).
    #[arg(long, value_name = "MiB", value_parser = cache_mb())]
    pub cache_mb: Option<u32>,
    /// Stay in the foreground until Ctrl-C or unmount.
    #[arg(long)]
    pub foreground: bool,
    /// Check everything that can be checked without servers, and do not mount (as mount -f).
    #[arg(short = 'f', long)]
    pub fake: bool,
    /// Ignore mount options that nobody knows (as mount -s).
    #[arg(short = 's', long)]
    pub sloppy: bool,
    /// Read-only: -o ro (as mount -r).
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Read and write, the default (as mount -w).
    #[arg(short = 'w', long, conflicts_with = "read_only")]
    pub rw: bool,
    /// Say what the options came to (as mount -v).
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Say nothing when it is mounted (as mount.coral).
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// For mount(8): there is no /etc/mtab to leave alone.
    #[arg(short = 'n', hide = true)]
    pub no_mtab: bool,
    /// For mount(8), which names the type it was called with.
    #[arg(short = 't', hide = true)]
    pub fs_type: Option<String>,
    /// For mount(8): a mount in another namespace is not made.
    #[arg(short = 'N', hide = true)]
    pub namespace: Option<String>,
    /// Log file when in the background (default $XDG_RUNTIME_DIR/coral/mount-DIR.log, else /tmp/coral-UID/mount-DIR.log).
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

fn cache_mb() -> clap::builder::RangedI64ValueParser<u32> {
    let (least, most) = CACHE_MB.into_inner();
    clap::value_parser!(u32).range(i64::from(least)..=i64::from(most))
}

fn size(text: &str) -> Result<u64, String> {
    crate::lfs::parse_size(text)
        .ok_or_else(|| format!("'{text}' is no size: give a number with K, M, G or T"))
}

/// Stripe size must be a multiple of this, bytes (Lustre's LOV_MIN_STRIPE_SIZE).
const STRIPE_SIZE_UNIT: u64 = 65536;
/// Most stripes of a file (Lustre's LOV_MAX_STRIPE_COUNT).
const STRIPES_MAX: i32 = 2000;

/// Default stripes of new files: a count (-1: all OSTs) and a size in bytes.
pub(crate) fn check_stripes(count: i32, size: u64) -> Result<(), String> {
    if size == 0 || !size.is_multiple_of(STRIPE_SIZE_UNIT) || size > u32::MAX as u64 {
        return Err(format!(
            "--stripe-size {size}: give a multiple of 64K below 4G"
        ));
    }
    if count != -1 && !(1..=STRIPES_MAX).contains(&count) {
        return Err(format!(
            "--stripe-count {count}: give 1 to {STRIPES_MAX}, or -1 for all OSTs"
        ));
    }
    Ok(())
}

/// A file system's name as Lustre allows it: 1 to 8 of letters, digits, '-' and '_'.
pub(crate) fn check_fsname(name: &str) -> Result<(), String> {
    let good = (1..=8).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if good {
        Ok(())
    } else {
        Err(format!(
            "'{name}' is no file system name: 1 to 8 letters, digits, '-' or '_'"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        with_negative_numbers(Cli::command()).debug_assert();
    }

    #[test]
    fn a_negative_number_is_told_with_what_the_option_takes() {
        let refused = |words: &[&str]| {
            let command = with_negative_numbers(Cli::command());
            command.try_get_matches_from(words).unwrap_err().to_string()
        };
        let said = refused(&["coral", "up", "d", "--osts", "-1"]);
        assert!(said.contains("invalid value '-1' for '--osts"), "{said}");
        assert!(!said.contains("-- -1"), "{said}");
    }

    #[test]
    fn a_negative_number_is_no_directory() {
        for words in [
            ["coral", "up", "-1"],
            ["coral", "down", "-9"],
            ["coral", "check", "-2"],
        ] {
            let command = with_negative_numbers(Cli::command());
            let refused = command.try_get_matches_from(words).unwrap_err();
            assert_eq!(
                refused.kind(),
                clap::error::ErrorKind::UnknownArgument,
                "{words:?}: {refused}"
            );
        }
    }

    #[test]
    fn names_longer_than_eight_are_refused() {
        assert!(check_fsname("coral").is_ok());
        assert!(check_fsname("waytoolong").is_err());
        assert!(check_fsname("").is_err());
        assert!(check_fsname("a/b").is_err());
    }
}
