//! File systems that the laboratory starts itself: servers, a router, clients, each a process on this machine.
//!
//! ```text
//! system N: MDSs and OSSs on 127.0.(10+N).x, network tcpN ── router 127.0.9.x ── clients on 127.0.(100+N).x, network tcp9
//!                                                                     mounts of the library from 127.(10+N).0.1 on
//! ```
//!
//! Without a router all are on one network. It needs a network and a mount namespace of its own ([`super::needs_namespace`]), in which the
//! loopback device is the network, so that nothing meets what else runs here and nothing outlives it.
//!
//! Delay is a rule of LNet at the clients, because many kernels have no netem; a rate limit is a token bucket on the loopback device,
//! and a client's slice of it a class of its own.

use super::process::{output, output_unless};
use super::rig_spec::RigSpec;
use super::runner::Settings;
use crate::clock;
use crate::entry::Owner;
use crate::process_stat::ProcessStat;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the process of a client may go on after it was unmounted, and between looks.
const CLIENT_END: Duration = Duration::from_secs(60);
const END_POLL: Duration = Duration::from_millis(5);
/// Longest path of a control socket (sun_path has 108 bytes) with its file name.
const MAX_SOCKET_PATH: usize = 107;
/// Where entries of processes are, below the rig's directory.
const REGISTRY: &str = "run/coral";

struct Mount {
    dir: PathBuf,
    args: Vec<String>,
    /// The core on which its process has to stay.
    core: Option<u64>,
    /// The process that serves it.
    pid: Option<u32>,
}

/// A running rig.
pub(crate) struct Rig {
    pub(crate) spec: RigSpec,
    dir: PathBuf,
    coral: PathBuf,
    /// Set to end the run: what starts then is killed. What ends it in order is not.
    stop: Arc<AtomicBool>,
    /// Directories of processes that `coral down` stops, with their names, in the order they were started.
    servers: Vec<(String, PathBuf)>,
    /// By file system, then by client.
    mounts: BTreeMap<String, Vec<Mount>>,
    limited: bool,
}

impl Rig {
    /// Starts one in `dir`, which is removed when it stops.
    pub(crate) fn start(spec: &RigSpec, dir: &Path, settings: &Settings) -> Result<Rig, String> {
        let longest = dir.join(REGISTRY).join(Owner::LONGEST.dir());
        if longest.join("control.sock").as_os_str().len() > MAX_SOCKET_PATH {
            return Err(format!(
                "the path '{}' is too long for control sockets in it: give a shorter --scratch",
                dir.display()
            ));
        }
        let _ = std::fs::remove_dir_all(dir);
        let mut rig = Rig {
            spec: spec.clone(),
            dir: dir.to_owned(),
            coral: settings.coral.clone(),
            stop: settings.stop.clone(),
            servers: vec![],
            mounts: BTreeMap::new(),
            limited: false,
        };
        rig.mkdir("run")?;
        std::fs::set_permissions(
            dir.join("run"),
            std::os::unix::fs::PermissionsExt::from_mode(0o700),
        )
        .map_err(|e| format!("'{}': {e}", dir.display()))?;
        rig.limit()?;
        if let Some(buffers) = spec.router_buffers {
            rig.start_router(buffers)?;
        }
        for i in 0..spec.systems.len() {
            rig.start_system(i)?;
        }
        for i in 0..spec.systems.len() {
            rig.start_clients(i)?;
        }
        Ok(rig)
    }

    /// Limits the loopback device: all traffic together, or that of each client, both ways.
    fn limit(&mut self) -> Result<(), String> {
        let (rate, slice) = (self.spec.rate.clone(), self.spec.slice_rate.clone());
        if !rate.is_empty() {
            // The burst holds the largest segment that the loopback device passes at once.
            let tbf = format!("qdisc replace dev lo root tbf rate {rate} burst 1mb latency 400ms");
            self.limited = true;
            return self.starts(&mut tc(&tbf));
        }
        if slice.is_empty() {
            return Ok(());
        }
        self.limited = true;
        self.starts(&mut tc("qdisc replace dev lo root handle 1: htb"))?;
        for c in 1..=self.spec.clients {
            let class = format!("rate {slice} ceil {slice} burst 1mb cburst 1mb quantum 60000");
            self.starts(&mut tc(&format!(
                "class add dev lo parent 1: classid 1:{c:x} htb {class}"
            )))?;
            for i in 0..self.spec.systems.len() {
                for way in ["src", "dst"] {
                    self.starts(&mut tc(&format!(
                        "filter add dev lo parent 1: protocol ip prio 1 u32 match ip {way} 127.0.{}.{c}/32 flowid 1:{c:x}",
                        100 + i
                    )))?;
                }
            }
        }
        Ok(())
    }

    fn mkdir(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.dir.join(name);
        std::fs::create_dir_all(&dir)
            .map_err(|e| format!("cannot make '{}': {e}", dir.display()))?;
        Ok(dir)
    }

    /// Runs a command of the start, until the run has to end.
    fn starts(&self, command: &mut Command) -> Result<(), String> {
        output_unless(command, &|| self.stop.load(Ordering::Relaxed)).map(drop)
    }

    fn coral(&self, args: &[&str]) -> Command {
        let mut c = Command::new(&self.coral);
        // A registry of its own: process ids of this namespace mean others outside.
        c.args(args).env("XDG_RUNTIME_DIR", self.dir.join("run"));
        c
    }

    fn net(&self, system: usize) -> String {
        if self.spec.router_buffers.is_some() {
            format!("tcp{system}")
        } else {
            "tcp".into()
        }
    }

    fn client_net(&self) -> &'static str {
        if self.spec.router_buffers.is_some() {
            "tcp9"
        } else {
            "tcp"
        }
    }

    /// The arguments of a server's route to the clients, or of a client's to the servers.
    fn route(&self, to: &str, near: &str, router: usize) -> Vec<String> {
        match self.spec.router_buffers {
            None => vec![],
            Some(_) => vec!["--route".into(), format!("{to} 127.0.9.{router}@{near}")],
        }
    }

    fn start_router(&mut self, buffers: u64) -> Result<(), String> {
        let dir = self.mkdir("router")?;
        let (d, buffers) = (dir.display().to_string(), buffers.to_string());
        let mut args = vec![
            "router".to_owned(),
            "--dir".into(),
            d,
            "--large".into(),
            buffers,
            "--nid".into(),
            format!("127.0.9.100@{}", self.client_net()),
        ];
        for i in 0..self.spec.systems.len() {
            args.extend(["--nid".into(), format!("127.0.9.{}@{}", i + 1, self.net(i))]);
        }
        self.starts(&mut self.coral(&args.iter().map(String::as_str).collect::<Vec<_>>()))?;
        self.servers.push(("router".into(), dir));
        Ok(())
    }

    fn start_system(&mut self, i: usize) -> Result<(), String> {
        let system = self.spec.systems[i].clone();
        let (net, name) = (self.net(i), system.name.as_str());
        let mgs = format!("127.0.{}.1@{net}", 10 + i);
        let stripes = self.spec.stripe_count.to_string();
        let mut first = 0;
        for (m, mdts) in system.mds.iter().enumerate() {
            let server = match m {
                0 => format!("{name}-mds"),
                m => format!("{name}-mds{m}"),
            };
            let dirs = self.format(&server, *mdts, |t| {
                let (index, mut args) = (first + t, vec!["--mdt".to_owned()]);
                args.extend([index.to_string(), "--stripe-count".into(), stripes.clone()]);
                match index {
                    0 => args.push("--mgs".into()),
                    _ => args.extend(["--mgsnode".into(), mgs.clone()]),
                }
                args
            })?;
            first += mdts;
            self.serve(
                &server,
                &dirs,
                &format!("127.0.{}.{}@{net}", 10 + i, m + 1),
                i,
            )?;
        }
        let mut first = 0;
        for (o, osts) in system.oss.iter().enumerate() {
            let server = format!("{name}-oss{o}");
            let dirs = self.format(&server, *osts, |t| {
                let index = (first + t).to_string();
                ["--ost", &index, "--mgsnode", &mgs]
                    .map(str::to_owned)
                    .to_vec()
            })?;
            first += osts;
            let nid = format!("127.0.{}.{}@{net}", 10 + i, system.mds.len() + o + 1);
            self.serve(&server, &dirs, &nid, i)?;
        }
        Ok(())
    }

    /// Formats `count` targets of a server, each with the arguments for it; their directories.
    fn format(
        &self,
        server: &str,
        count: u32,
        args: impl Fn(u32) -> Vec<String>,
    ) -> Result<Vec<String>, String> {
        let fsname = server.split('-').next().unwrap_or(server);
        let of = |t| {
            let name = match t {
                0 => server.to_owned(),
                t => format!("{server}.{t}"),
            };
            let dir = self.dir.join(name).display().to_string();
            let args = args(t);
            let mut words = vec!["format", "--fsname", fsname];
            words.extend(args.iter().map(String::as_str));
            words.push(&dir);
            self.starts(&mut self.coral(&words))?;
            Ok(dir)
        };
        (0..count).map(of).collect()
    }

    fn serve(
        &mut self,
        name: &str,
        dirs: &[String],
        nid: &str,
        system: usize,
    ) -> Result<(), String> {
        let route = self.route(self.client_net(), &self.net(system), system + 1);
        let mut args = vec!["serve"];
        args.extend(dirs.iter().map(String::as_str));
        args.extend(["--nid", nid]);
        args.extend(route.iter().map(String::as_str));
        self.starts(&mut self.coral(&args))?;
        self.servers
            .push((name.to_owned(), PathBuf::from(&dirs[0])));
        Ok(())
    }

    fn start_clients(&mut self, i: usize) -> Result<(), String> {
        let name = self.spec.systems[i].name.clone();
        let route = self.route(&self.net(i), self.client_net(), 100);
        let source = format!("127.0.{}.1@{}:/{name}", 10 + i, self.net(i));
        let mut mounts = vec![];
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        for c in 0..self.spec.clients {
            let dir = self.mkdir(&format!("mnt/{name}.{c}"))?;
            let mut args = vec![
                "mount".to_owned(),
                source.clone(),
                dir.display().to_string(),
                "--nid".into(),
            ];
            args.push(format!("127.0.{}.{}@{}", 100 + i, c + 1, self.client_net()));
            args.extend(["--cache-mb".into(), self.spec.cache_mb.to_string()]);
            args.extend(route.iter().cloned());
            mounts.push(Mount {
                dir,
                args,
                core: self.spec.slice_cores.then(|| c % cores),
                pid: None,
            });
        }
        // Those that are mounted already are stopped also when one fails.
        self.mounts.insert(name.clone(), vec![]);
        for mut m in mounts {
            self.mount(&m)?;
            m.pid = pid_with(&m.dir.display().to_string());
            self.mounts.entry(name.clone()).or_default().push(m);
        }
        Ok(())
    }

    fn mount(&self, m: &Mount) -> Result<(), String> {
        let mut command = match m.core {
            None => Command::new(&self.coral),
            Some(core) => {
                let mut c = Command::new("taskset");
                c.args(["-c", &core.to_string()]).arg(&self.coral);
                c
            }
        };
        command.args(&m.args);
        self.starts(command.env("XDG_RUNTIME_DIR", self.dir.join("run")))?;
        if self.spec.rtt_ms > 0.0 {
            // The rule sees what leaves and what arrives, each by half of the round trip.
            let (dir, half) = (
                m.dir.display().to_string(),
                format!("{:.6}", self.spec.rtt_ms / 2000.0),
            );
            self.starts(&mut self.coral(&[
                "lctl",
                "--dir",
                &dir,
                "net_delay_add",
                "-s",
                "*",
                "-d",
                "*",
                "-r",
                "1",
                "-l",
                &half,
            ]))?;
        }
        Ok(())
    }

    /// Unmounts and mounts every client again: their caches and locks are gone.
    pub(crate) fn remount(&mut self) -> Result<(), String> {
        for m in self.mounts.values().flatten() {
            unmount(&m.dir)?;
        }
        self.clients_ended()?;
        let mut mounts = std::mem::take(&mut self.mounts);
        let mounted = mounts.values_mut().flatten().try_for_each(|m| {
            self.mount(m)?;
            m.pid = pid_with(&m.dir.display().to_string());
            Ok(())
        });
        self.mounts = mounts;
        mounted
    }

    /// Waits until the processes of unmounted clients have ended: their NIDs are free then.
    fn clients_ended(&self) -> Result<(), String> {
        let begin = clock::now();
        let alive = || {
            self.mounts
                .values()
                .flatten()
                .find(|m| m.pid.is_some_and(lives))
        };
        while let Some(m) = alive() {
            if begin.elapsed() > CLIENT_END {
                return Err(format!(
                    "the process of '{}' goes on {} s after it was unmounted",
                    m.dir.display(),
                    CLIENT_END.as_secs()
                ));
            }
            clock::pause(END_POLL);
        }
        Ok(())
    }

    /// Mount points of a file system, by client.
    pub(crate) fn mounts(&self) -> BTreeMap<String, Vec<PathBuf>> {
        self.mounts
            .iter()
            .map(|(n, m)| (n.clone(), m.iter().map(|m| m.dir.clone()).collect()))
            .collect()
    }

    /// The arguments by which a load generator mounts a file system through the library, and the first NID of such mounts.
    pub(crate) fn library(&self, name: &str) -> Option<String> {
        let i = self.spec.systems.iter().position(|s| s.name == name)?;
        let (net, to) = (self.net(i), 10 + i);
        Some(format!(
            "--coral-fs 127.0.{to}.1@{net}:/{name} --coral-nid 127.{to}.0.1@{net}"
        ))
    }

    /// Directories at which the servers and the router can be asked, by name.
    pub(crate) fn servers(&self) -> &[(String, PathBuf)] {
        &self.servers
    }

    /// Directories at which the processes of the mounts can be asked, by name: each has one of its own in the registry of this rig.
    pub(crate) fn clients(&self) -> Vec<(String, PathBuf)> {
        // their PID namespace is that of this process
        let at = |pid| self.dir.join(REGISTRY).join(Owner::here(pid).dir());
        let pids = self.client_pids();
        pids.map(|(name, pid)| (name, at(pid))).collect()
    }

    fn client_pids(&self) -> impl Iterator<Item = (String, u32)> {
        self.mounts.iter().flat_map(|(name, list)| {
            let all = list.iter().enumerate();
            all.filter_map(move |(c, m)| Some((format!("{name}-client{c}"), m.pid?)))
        })
    }

    /// Every process with its name: servers, the router, and clients together as they are mounted.
    pub(crate) fn processes(&self) -> Vec<(String, u32)> {
        let servers = self
            .servers
            .iter()
            .filter_map(|(n, d)| Some((n.clone(), pid_with(&d.display().to_string())?)));
        servers.chain(self.client_pids()).collect()
    }

    /// Ends all of it; the first error is returned, and the rest is ended all the same.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        let mut failed = None;
        let mut note = |r: Result<(), String>| {
            if let Err(e) = r {
                failed.get_or_insert(e);
            }
        };
        for m in self.mounts.values().flatten() {
            note(unmount(&m.dir));
        }
        note(self.clients_ended());
        self.mounts.clear();
        for (_, dir) in std::mem::take(&mut self.servers).into_iter().rev() {
            note(output(&mut self.coral(&["down", &dir.display().to_string()])).map(drop));
        }
        if std::mem::take(&mut self.limited) {
            note(output(&mut tc("qdisc del dev lo root")).map(drop));
        }
        if let Err(e) = std::fs::remove_dir_all(&self.dir)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            note(Err(format!("'{}': {e}", self.dir.display())));
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn tc(words: &str) -> Command {
    let mut c = Command::new("tc");
    c.args(words.split_whitespace());
    c
}

fn unmount(dir: &Path) -> Result<(), String> {
    rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty())
        .map_err(|e| format!("cannot unmount '{}': {e}", dir.display()))
}

/// The process is there and has not ended.
fn lives(pid: u32) -> bool {
    ProcessStat::of(pid).is_ok_and(|s| !s.has_ended())
}

/// The process of `coral` that has this argument: its foreground form, which stays.
fn pid_with(argument: &str) -> Option<u32> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|e| {
        let pid: u32 = e.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(e.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        let is =
            words.contains(&argument.as_bytes()) && words.contains(&b"--foreground".as_slice());
        is.then_some(pid)
    })
}

/// What `{NAME}`, `{NAME.2}`, `{NAME.*}` and `{NAME.*/file}` stand for: the first mount, the third, all of them joined by `@` as IOR
/// takes several, each with the file behind.
pub(crate) fn mount_value(mounts: &BTreeMap<String, Vec<PathBuf>>, name: &str) -> Option<String> {
    let at = name.find(['.', '/']).unwrap_or(name.len());
    let list = mounts.get(&name[..at])?;
    let rest = &name[at..];
    if let Some(tail) = rest.strip_prefix(".*") {
        let all: Vec<String> = list
            .iter()
            .map(|m| format!("{}{tail}", m.display()))
            .collect();
        return Some(all.join("@"));
    }
    let (index, tail) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(r) => {
            let end = r.find('/').unwrap_or(r.len());
            (r[..end].parse::<usize>().ok()?, &r[end..])
        }
    };
    Some(format!("{}{tail}", list.get(index)?.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_named() {
        let m = BTreeMap::from([("fs1".to_owned(), vec![PathBuf::from("/a"), "/b".into()])]);
        for (name, value) in [
            ("fs1", Some("/a")),
            ("fs1.1", Some("/b")),
            ("fs1.*", Some("/a@/b")),
            ("fs1.*/f", Some("/a/f@/b/f")),
            ("fs1/x", Some("/a/x")),
            ("fs1.1/x", Some("/b/x")),
            ("fs1.2", None),
            ("fs2", None),
            ("fs1.x", None),
        ] {
            assert_eq!(mount_value(&m, name).as_deref(), value, "{name}");
        }
    }
}
