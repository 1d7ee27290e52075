//! `cargo xtask conform MOUNTPOINT|NID:/fsname|up`: the conformance suite (`crates/conform`) against a live Lustre.
//!
//! A mount point is used as it is. A NID source is mounted twice by `coral mount`, and `up` first starts a file system of our
//! own; both in a mount namespace of this process's own, so that nothing of it is seen elsewhere or left behind.

use crate::step;
use coral_conform::{CheckState, GROUPS, Place, Report};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// What is to be checked, and how.
#[derive(clap::Args)]
pub(crate) struct Conform {
    /// A mounted directory, a source as `mount` takes it (NID[:NID...]:/fsname[/subdir]), or `up`: a file system of our own.
    what: String,
    /// The same file system mounted by another client: needed for coherence and contention on a mount point.
    #[arg(long, value_name = "DIR")]
    second: Option<PathBuf>,
    /// Shell command that restarts the servers: the recovery group runs. With `up` it is done without.
    #[arg(long, value_name = "CMD")]
    restart: Option<String>,
    /// Only this group; may be given again. `posix` is all groups that any local file system must pass too.
    #[arg(long, value_name = "GROUP")]
    only: Vec<String>,
    /// Also write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// NIDs of the two clients, for a NID source.
    #[arg(long, value_name = "NID", num_args = 2)]
    nid: Vec<String>,
    /// TCP port of the servers, for a NID source and `up`.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// MDTs of the file system that `up` starts; with several, all is done in directories in shards on all of them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    mdts: u32,
    /// The coral to mount with; built when not given.
    #[arg(long, value_name = "FILE")]
    coral: Option<PathBuf>,
}

/// Set in the environment of the run inside the mount namespace.
pub(crate) const INSIDE: &str = "CORAL_CONFORM_INSIDE";

pub(crate) fn run(asked: &Conform) -> Result<(), String> {
    for o in &asked.only {
        if o != "posix" && !GROUPS.iter().any(|g| g.name == o) {
            let names: Vec<&str> = GROUPS.iter().map(|g| g.name).collect();
            return Err(format!(
                "--only {o}: there is no such group; give posix, {}",
                names.join(", ")
            ));
        }
    }
    let report = if Path::new(&asked.what).is_dir() && asked.what != "up" {
        let place = Place {
            mount: asked.what.clone().into(),
            second: asked.second.clone(),
            restart: asked.restart.clone(),
        };
        check(&place, &asked.only)?
    } else if asked.what == "up" || asked.what.contains(":/") {
        if std::env::var_os(INSIDE).is_none() {
            return inside(std::env::args_os().skip(1));
        }
        mounted(asked)?
    } else {
        return Err(format!(
            "'{}' is no directory and no source such as 10.0.0.1@tcp:/lustre",
            asked.what
        ));
    };
    println!("\n{report}");
    if let Some(file) = &asked.json {
        std::fs::write(file, report.to_json() + "\n")
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    match report.count(CheckState::Differs) {
        0 => Ok(()),
        n => Err(format!("{n} checks differ")),
    }
}

fn check(place: &Place, only: &[String]) -> Result<Report, String> {
    println!(
        "{:<11} {:<62} {:<14} {:<22} SEEN",
        "GROUP", "CHECK", "RESULT", "EXPECTED"
    );
    coral_conform::run(place, only, |row| println!("{row}"))
        .map_err(|e| format!("{}: {e}", place.mount.display()))
}

/// The whole suite on a file system of our own, as `cargo xtask test` runs it.
pub(crate) fn ours(coral: &Path) -> Result<(), String> {
    inside(
        [
            "conform".as_ref(),
            "up".as_ref(),
            "--coral".as_ref(),
            coral.as_os_str(),
        ]
        .map(std::ffi::OsStr::to_owned),
    )
}

/// Runs this program again in a mount namespace of its own.
fn inside(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<(), String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut again = ends_with_us("unshare");
    again
        .args(["-m", "--propagation", "private"])
        .arg(exe)
        .args(args)
        .env(INSIDE, "1");
    match again.status() {
        Ok(s) if s.success() => Ok(()),
        // it has said why, as unshare has
        Ok(_) => Err(String::new()),
        Err(e) => Err(format!("setpriv: {e}")),
    }
}

/// A program that is told to end when this one has, by whatever signal.
pub(crate) fn ends_with_us(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(program);
    command
}

/// Directories and processes of a run, gone when it is dropped.
struct Scratch {
    dir: PathBuf,
    coral: PathBuf,
    mounts: Vec<(PathBuf, Child)>,
    data: Option<PathBuf>,
}

impl Scratch {
    fn new(coral: PathBuf) -> Result<Scratch, String> {
        let dir = std::env::temp_dir().join(format!("coral-conform-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Scratch {
            dir,
            coral,
            mounts: Vec::new(),
            data: None,
        })
    }

    /// Mounts `source` on a directory of this name and waits until it is there.
    fn mount(
        &mut self,
        name: &str,
        source: &str,
        nid: Option<&String>,
        port: Option<u16>,
    ) -> Result<PathBuf, String> {
        let at = self.dir.join(name);
        std::fs::create_dir(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        let mut mount = ends_with_us(&self.coral);
        mount.arg("mount").arg(source).arg(&at).arg("--foreground");
        if let Some(nid) = nid {
            mount.args(["--nid", nid]);
        }
        if let Some(port) = port {
            mount.args(["--port", &port.to_string()]);
        }
        let child = mount
            .stdout(std::process::Stdio::null())
            .spawn()
            .map_err(|e| format!("setpriv: {e}"))?;
        self.mounts.push((at.clone(), child));
        loop {
            if is_mounted(&at) {
                return Ok(at);
            }
            if let Some((_, child)) = self.mounts.last_mut()
                && let Ok(Some(_)) = child.try_wait()
            {
                // it has said why
                return Err(String::new());
            }
            step::settle();
        }
    }

    /// A file system of our own: its source, its port, and the command that kills and starts its servers again.
    fn up(&mut self, port: Option<u16>, mdts: u32) -> Result<(String, u16, String), String> {
        let data = self.dir.join("data");
        let port = port.map_or_else(free_port, Ok)?;
        let up = format!(
            "'{}' up '{}' --nid 127.0.0.1@tcp --port {port} --mdts {mdts}",
            self.coral.display(),
            data.display()
        );
        step::run_in(Command::new("sh").arg("-c").arg(&up))?;
        self.data = Some(data.clone());
        let pid = format!(
            "'{}' status '{}' --json | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p'",
            self.coral.display(),
            data.display()
        );
        let restart = format!(
            "p=$({pid}); kill -9 $p; while kill -0 $p 2>/dev/null; do sleep 0.1; done; {up} > '{}'",
            self.dir.join("up.log").display()
        );
        Ok(("127.0.0.1@tcp:/coral".into(), port, restart))
    }
}

impl Scratch {
    /// Makes a directory in shards on so many MDTs, as are all that are made in it.
    fn in_shards(&self, dir: &Path, mdts: u32) -> Result<(), String> {
        let mdts = mdts.to_string();
        let lfs = |args: &[&str]| {
            let mut command = Command::new(&self.coral);
            step::run_in(command.arg("lfs").args(args).arg(dir))
        };
        lfs(&["mkdir", "-c", &mdts])?;
        lfs(&["setdirstripe", "-D", "-c", &mdts, "--max-inherit", "-1"])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (at, child) in &mut self.mounts {
            let _ = Command::new("umount").arg(&*at).status();
            for _ in 0..20 {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                step::settle();
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(data) = &self.data {
            let _ = Command::new(&self.coral)
                .arg("down")
                .arg(data)
                .stdout(std::process::Stdio::null())
                .status();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn is_mounted(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|l| l.split(' ').nth(1) == at.to_str())
}

/// A port that nobody listens on just now.
fn free_port() -> Result<u16, String> {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr());
    taken
        .map(|a| a.port())
        .map_err(|e| format!("no free port: {e}"))
}

fn mounted(asked: &Conform) -> Result<Report, String> {
    let coral = match &asked.coral {
        Some(c) => c.clone(),
        None => step::build_release()?,
    };
    let mut scratch = Scratch::new(coral)?;
    let (source, port, restart) = match asked.what.as_str() {
        "up" => {
            let (source, port, restart) = scratch.up(asked.port, asked.mdts)?;
            (source, Some(port), asked.restart.clone().or(Some(restart)))
        }
        source => (source.to_string(), asked.port, asked.restart.clone()),
    };
    let mine = ["127.0.0.2@tcp".to_string(), "127.0.0.3@tcp".to_string()];
    let nids: &[String] = if asked.what == "up" {
        &mine
    } else {
        &asked.nid
    };
    let mut mount = scratch.mount("one", &source, nids.first(), port)?;
    let mut second = scratch.mount("two", &source, nids.get(1), port)?;
    if asked.what == "up" && asked.mdts > 1 {
        scratch.in_shards(&mount.join("all"), asked.mdts)?;
        (mount, second) = (mount.join("all"), second.join("all"));
    }
    check(
        &Place {
            mount,
            second: Some(second),
            restart,
        },
        &asked.only,
    )
}
