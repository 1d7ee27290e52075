//! Servers on a disk whose power can be cut, and clients.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use coral_powerfs::{CutReport, Platters, PowerFs};

use crate::common::{Place, Running, coral, is_mounted, ok, pause};

/// How long servers may take to start, recovery included, seconds.
const START_S: u64 = 240;
/// Where Linux tells one boot from another.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

pub struct Rig {
    pub place: Place,
    runtime: tokio::runtime::Runtime,
    seed: u64,
    /// None while the power is off.
    power: Option<PowerFs>,
    servers: Option<Child>,
    /// The mount in the servers' process; None: clients are processes of their own.
    pub inner: Option<PathBuf>,
    clients: Vec<Running>,
    pub mounts: Vec<PathBuf>,
    boots: u64,
}

impl Rig {
    /// A new file system. `lives`: two clients that outlive the cuts; else one that dies with the servers.
    pub fn new(seed: u64, lives: bool) -> Rig {
        let place = Place::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let at = place.make("disk");
        std::fs::write(place.path("boot"), "").expect("a file");
        ok(Command::new("mount")
            .args(["--bind"])
            .arg(place.path("boot"))
            .arg(BOOT_ID));
        let inner = (!lives).then(|| place.make("mnt"));
        let power = PowerFs::on(Platters::empty(), &at, seed, runtime.handle()).expect("a mount");
        let mut rig = Rig {
            place,
            runtime,
            seed,
            power: Some(power),
            servers: None,
            inner,
            clients: Vec::new(),
            mounts: Vec::new(),
            boots: 0,
        };
        rig.boot();
        rig.start();
        match &rig.inner {
            Some(mnt) => rig.mounts.push(mnt.clone()),
            None => (2..4).for_each(|host| rig.mount(host)),
        }
        rig
    }

    fn mount(&mut self, host: u64) {
        let mnt = self.place.make(&format!("mnt{host}"));
        let (port, nid) = (self.place.port.to_string(), format!("127.0.0.{host}@tcp"));
        let args = [
            "mount",
            "127.0.0.1@tcp:/coral",
            &mnt.to_string_lossy(),
            "--nid",
            &nid,
            "--port",
            &port,
            "--cache-mb",
            "64",
        ];
        self.clients.push(Running::start(
            &args,
            &self.place.path(&format!("client{host}")),
            &[&mnt],
        ));
        self.mounts.push(mnt);
    }

    pub fn data(&self) -> PathBuf {
        self.place.path("disk").join("data")
    }

    /// The machine that has the disk is another boot from now on.
    fn boot(&mut self) {
        self.boots += 1;
        let id = format!(
            "{:08x}-0000-4000-8000-{:012x}\n",
            self.boots,
            self.seed & 0xffff_ffff_ffff
        );
        std::fs::write(self.place.path("boot"), id).expect("a file");
    }

    pub fn start(&mut self) {
        let power = self.power.as_ref().expect("the power is on");
        let (data, port) = (self.data(), self.place.port.to_string());
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.place.path("servers.log"))
            .expect("a log");
        let mut command = coral();
        command
            .arg("up")
            .arg(&data)
            .args(["--foreground", "--osts", "2", "--port", &port]);
        if let Some(mnt) = &self.inner {
            command.arg("--mount").arg(mnt).args(["--cache-mb", "64"]);
        }
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        let started = power.watch(&mut command).expect("a filter");
        let mut child = command.spawn().expect("coral");
        started().expect("the filter's listener");
        for _ in 0..START_S * 20 {
            if let Some(status) = child.try_wait().expect("its state") {
                panic!("coral up ended at its start: {status}\n{}", self.log());
            }
            let ready = match &self.inner {
                Some(mnt) => is_mounted(mnt),
                None => coral()
                    .arg("status")
                    .arg(&data)
                    .output()
                    .is_ok_and(|o| o.status.success()),
            };
            if ready {
                self.servers = Some(child);
                return;
            }
            pause(50);
        }
        let _ = child.kill();
        panic!("coral up did not start within {START_S} s\n{}", self.log());
    }

    /// The end of the servers' log.
    pub fn log(&self) -> String {
        let all = std::fs::read_to_string(self.place.path("servers.log")).unwrap_or_default();
        let lines: Vec<&str> = all.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Cuts the power: the servers die, and their disk has what it had.
    pub fn cut(&mut self, torn: bool) -> CutReport {
        let cut = self.power.take().expect("the power is on").cut();
        let mut servers = self.servers.take().expect("they run");
        let _ = servers.kill();
        let inner = self.inner.clone();
        let reap = move || {
            let _ = servers.wait();
            if let Some(mnt) = inner {
                let _ = Command::new("umount")
                    .arg("-l")
                    .arg(mnt)
                    .stderr(Stdio::null())
                    .status();
            }
        };
        let (disk, report) = cut.after_kill(reap, torn);
        self.boot();
        let next = self.seed.wrapping_add(self.boots);
        self.power = Some(
            PowerFs::on(disk, &self.place.path("disk"), next, self.runtime.handle())
                .expect("a mount"),
        );
        report
    }

    /// Stops the servers cleanly and checks their targets: the problems.
    pub fn check(&mut self) -> Vec<String> {
        let mut servers = self.servers.take().expect("they run");
        ok(Command::new("kill")
            .arg("-INT")
            .arg(servers.id().to_string()));
        crate::common::until("the servers have stopped", || {
            servers.try_wait().expect("their state").is_some()
        });
        let out = coral()
            .arg("check")
            .arg(self.data())
            .output()
            .expect("coral check");
        match out.status.success() {
            true => Vec::new(),
            false => crate::common::text(&out)
                .lines()
                .filter(|l| l.starts_with("    "))
                .map(|l| l.trim().to_owned())
                .collect(),
        }
    }

    /// Another program makes all changes of the disk's journal durable.
    pub fn foreign_sync(disk: &Path) {
        let one = || -> std::io::Result<()> {
            let f = File::create(disk.join("foreign"))?;
            std::io::Write::write_all(&mut &f, b"x")?;
            f.sync_all()
        };
        let _ = one(); // the power may be off
    }

    pub fn disk(&self) -> PathBuf {
        self.place.path("disk")
    }

    /// Says where everything is left.
    pub fn keep(&mut self) -> PathBuf {
        self.place.dir.disable_cleanup(true);
        self.place.dir.path().to_owned()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // the servers first: a client's unmount needs them, a killed one's does not
        self.clients.clear();
        if let Some(mut s) = self.servers.take()
            && let Some(power) = self.power.take()
        {
            let cut = power.cut();
            let _ = s.kill();
            let inner = self.inner.clone();
            cut.after_kill(
                || {
                    let _ = s.wait();
                    if let Some(mnt) = inner {
                        let _ = Command::new("umount")
                            .arg("-l")
                            .arg(mnt)
                            .stderr(Stdio::null())
                            .status();
                    }
                },
                false,
            );
        }
        let _ = Command::new("umount").arg("-l").arg(BOOT_ID).status();
    }
}
