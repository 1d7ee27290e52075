//! The file systems that are measured, and how each is served and mounted.

use super::ADDRESS;
use crate::bench::served::printed;
use crate::{conform, step};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Kind {
    /// A directory of the local file system, with nothing between.
    Directory,
    /// bindfs: FUSE in front of that directory, and no server.
    Passthrough,
    /// Servers and mount in one process.
    CoralInOne,
    /// Servers in one process, the mount in another, TCP between.
    Coral,
    /// One brick and a client, from files that describe them: no management daemon.
    Gluster,
    /// Master, chunk server and client.
    Moose,
}

/// All of them, as they are shown.
pub(super) const KINDS: &[Kind] = &[
    Kind::Directory,
    Kind::Passthrough,
    Kind::CoralInOne,
    Kind::Coral,
    Kind::Gluster,
    Kind::Moose,
];

/// Port of Coral in one process, and of its servers.
const CORAL_PORTS: [&str; 2] = ["9981", "9982"];
const GLUSTER_PORT: &str = "24999";
/// Where MooseFS's master waits for loggers, chunk servers and clients, and where the chunk server does.
const MOOSE_PORTS: [&str; 4] = ["24419", "24420", "24421", "24422"];
/// What its Debian package has for a new master.
const MOOSE_EMPTY: &str = "/var/lib/mfs/metadata.mfs.empty";

/// A process that ends with its owner.
pub(super) struct Process(Child);

impl Process {
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // asked first: a chunk server writes down what it has
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        for _ in 0..30 {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            step::settle();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(
    program: impl AsRef<std::ffi::OsStr>,
    args: &[&str],
    log: &Path,
) -> Result<Process, String> {
    let log = std::fs::File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let program = program.as_ref();
    let mut command = conform::ends_with_us(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|e| e.to_string())?)
        .stderr(log);
    let child = command.spawn();
    child
        .map(Process)
        .map_err(|e| format!("{}: {e}", program.display()))
}

/// Runs a command; what it says is only of interest when it fails.
fn quietly(command: &mut Command) -> Result<(), String> {
    printed(command).map(drop)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

impl Kind {
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Kind::Directory => "directory",
            Kind::Passthrough => "FUSE passthrough",
            Kind::CoralInOne => "Coral, one process",
            Kind::Coral => "Coral over TCP",
            Kind::Gluster => "GlusterFS",
            Kind::Moose => "MooseFS",
        }
    }

    /// Name of its directory.
    pub(super) fn short(self) -> &'static str {
        match self {
            Kind::Directory => "directory",
            Kind::Passthrough => "passthrough",
            Kind::CoralInOne => "one",
            Kind::Coral => "tcp",
            Kind::Gluster => "gluster",
            Kind::Moose => "moose",
        }
    }

    /// One that Coral is measured against.
    pub(super) fn is_peer(self) -> bool {
        matches!(self, Kind::Gluster | Kind::Moose)
    }

    /// A program it needs and that is not here.
    pub(in crate::bench) fn lacks(self) -> Option<&'static str> {
        let needed: &[&'static str] = match self {
            Kind::Directory | Kind::CoralInOne | Kind::Coral => &[],
            Kind::Passthrough => &["bindfs"],
            Kind::Gluster => &["glusterfsd", "glusterfs"],
            Kind::Moose => &["mfsmaster", "mfschunkserver", "mfsmount"],
        };
        needed.iter().copied().find(|p| !step::on_path(p))
    }

    /// Type of its mount in mountinfo; None: it is none.
    pub(super) fn mounted_as(self) -> Option<&'static str> {
        match self {
            Kind::Directory => None,
            Kind::Passthrough => Some("fuse"),
            Kind::CoralInOne | Kind::Coral => Some("fuse.coral"),
            Kind::Gluster => Some("fuse.glusterfs"),
            Kind::Moose => Some("fuse mfs"),
        }
    }

    /// Starts its servers in `dir`, which has directories `data` and `mnt`.
    pub(super) fn serve(self, dir: &Path, coral: &Path) -> Result<Vec<Process>, String> {
        match self {
            Kind::Directory | Kind::Passthrough | Kind::CoralInOne => Ok(Vec::new()),
            Kind::Coral => {
                let nid = format!("{ADDRESS}@tcp");
                let mut up = Command::new(coral);
                up.arg("up").arg(dir.join("data"));
                quietly(up.args(["--nid", &nid, "--port", CORAL_PORTS[1]]))?;
                Ok(Vec::new())
            }
            Kind::Gluster => {
                let vol = dir.join("server.vol");
                let data = dir.join("data");
                write(&vol, &gluster_server(&data.to_string_lossy()))?;
                let (vol, log) = (vol.to_string_lossy(), dir.join("server.log"));
                let log = log.to_string_lossy();
                let args = ["-N", "-f", &vol, "-l", &log];
                Ok(vec![start("glusterfsd", &args, &dir.join("server.out"))?])
            }
            Kind::Moose => moose_servers(dir),
        }
    }

    /// Mounts it on `mnt` in `dir`; the client's process, if it stays in the foreground.
    pub(super) fn mount(self, dir: &Path, coral: &Path) -> Result<Option<Process>, String> {
        let (data, mnt) = (dir.join("data"), dir.join("mnt"));
        let (data, at) = (data.to_string_lossy(), mnt.to_string_lossy());
        let log = dir.join("client.out");
        let foreground = |program: &str, args: &[&str]| start(program, args, &log).map(Some);
        match self {
            Kind::Directory => Ok(None),
            Kind::Passthrough => foreground("bindfs", &["-f", &data, &at]),
            Kind::CoralInOne => {
                let mut up = Command::new(coral);
                up.args(["up", &data, "--mount", &at]);
                quietly(up.args(["--port", CORAL_PORTS[0]])).map(|()| None)
            }
            Kind::Coral => {
                let source = format!("{ADDRESS}@tcp:/coral");
                let args = ["mount", &source, &at, "--port", CORAL_PORTS[1]];
                let more = ["--nid", "127.0.0.2@tcp", "--foreground"];
                start(coral, &[&args[..], &more[..]].concat(), &log).map(Some)
            }
            Kind::Gluster => {
                let vol = dir.join("client.vol");
                write(&vol, &gluster_client())?;
                let (vol, log) = (vol.to_string_lossy(), dir.join("client.log"));
                let log = log.to_string_lossy();
                foreground("glusterfs", &["-N", "-f", &vol, "-l", &log, &at])
            }
            Kind::Moose => {
                let args = [&at, "-f", "-H", ADDRESS, "-P", MOOSE_PORTS[2]];
                foreground("mfsmount", &args)
            }
        }
    }

    /// Takes the mount down.
    pub(super) fn unmount(self, dir: &Path, coral: &Path) -> Result<(), String> {
        match self {
            Kind::Directory => Ok(()),
            Kind::CoralInOne => quietly(Command::new(coral).arg("down").arg(dir.join("data"))),
            _ => quietly(Command::new("umount").arg(dir.join("mnt"))),
        }
    }

    /// Stops servers that are no processes of ours.
    pub(super) fn stop(self, dir: &Path, coral: &Path) {
        if self == Kind::Coral
            && let Err(why) = quietly(Command::new(coral).arg("down").arg(dir.join("data")))
        {
            eprintln!("xtask: {why}");
        }
    }
}

/// A brick as `gluster volume create` would describe it, without replicas.
fn gluster_server(data: &str) -> String {
    format!(
        "volume posix
  type storage/posix
  option directory {data}
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume brick
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.listen-port {GLUSTER_PORT}
  option transport.socket.bind-address {ADDRESS}
  option auth.addr.brick.allow *
  subvolumes brick
end-volume
"
    )
}

/// A client with the translators that a new volume has by default.
fn gluster_client() -> String {
    let mut text = format!(
        "volume client
  type protocol/client
  option transport-type tcp
  option remote-host {ADDRESS}
  option remote-port {GLUSTER_PORT}
  option remote-subvolume brick
end-volume
"
    );
    let mut below = "client";
    for name in ["write-behind", "open-behind", "quick-read", "md-cache"] {
        text += &format!(
            "volume {name}\n  type performance/{name}\n  subvolumes {below}\nend-volume\n"
        );
        below = name;
    }
    text
}

fn moose_servers(dir: &Path) -> Result<Vec<Process>, String> {
    let place = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let data = dir.join("data");
    for part in ["master", "chunks", "disk"] {
        let part = data.join(part);
        std::fs::create_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
    }
    std::fs::copy(MOOSE_EMPTY, data.join("master/metadata.mfs"))
        .map_err(|e| format!("{MOOSE_EMPTY}: {e}"))?;
    write(
        &dir.join("exports.cfg"),
        "* / rw,alldirs,admin,maproot=0:0\n",
    )?;
    write(&dir.join("disk.cfg"), &(place("data/disk") + "\n"))?;
    let [ml, cs, cl, own] = MOOSE_PORTS;
    let who = "WORKING_USER = root\nWORKING_GROUP = root\n";
    write(
        &dir.join("master.cfg"),
        &format!(
            "{who}DATA_PATH = {}\nEXPORTS_FILENAME = {}\nMATOML_LISTEN_PORT = {ml}\nMATOCS_LISTEN_PORT = {cs}\nMATOCL_LISTEN_PORT = {cl}\n",
            place("data/master"),
            place("exports.cfg")
        ),
    )?;
    write(
        &dir.join("chunks.cfg"),
        &format!(
            "{who}DATA_PATH = {}\nHDD_CONF_FILENAME = {}\nMASTER_HOST = {ADDRESS}\nMASTER_PORT = {cs}\nBIND_HOST = {ADDRESS}\nCSSERV_LISTEN_HOST = {ADDRESS}\nCSSERV_LISTEN_PORT = {own}\nHDD_FSYNC_BEFORE_CLOSE = 1\n",
            place("data/chunks"),
            place("disk.cfg")
        ),
    )?;
    let (master, chunks) = (place("master.cfg"), place("chunks.cfg"));
    let mut up = Vec::new();
    for (program, config) in [("mfsmaster", &master), ("mfschunkserver", &chunks)] {
        let log = dir.join(format!("{program}.out"));
        up.push(start(program, &["-f", "-c", config, "start"], &log)?);
        // the second asks the first once, and again only after a while
        (0..5).for_each(|_| step::settle());
    }
    Ok(up)
}
